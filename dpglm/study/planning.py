"""The releases and the cost of a run, as text, from public numbers alone."""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dpglm.calculator import ExpectedStandardErrors, expected_accuracy, expected_errors
from dpglm.datasets import sample_from_schema
from dpglm.estimators.agd import AdaptivePlan
from dpglm.estimators.debiasing import RAREST
from dpglm.estimators.plan import PrivacyPlan, of_clip
from dpglm.study.methods import PLANNED, REGRESSORS
from dpglm.tables import Page

Plan = PrivacyPlan | AdaptivePlan
# A title, and what stands below it.
Block = tuple[Any, ...]


def plan_as_asked(arguments: argparse.Namespace) -> str:
    """Return the report that the arguments of the command line ask for."""
    is_number, schema = arguments.estimator in REGRESSORS, arguments.schema
    for name in ("accuracy", "majority", "width", "schema") if is_number else ():
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name}: {arguments.estimator} predicts a number, not classes")
    if arguments.accuracy is None and (schema or arguments.majority or arguments.width):
        raise ValueError("--schema, --majority and --width are for --accuracy, which is not given")
    if schema is not None:
        # It says how many features and classes there are; intervals are of one coefficient each.
        arguments.schema = schema = schema.additive(1) if arguments.width else schema
        arguments.features, arguments.classes = schema.n_encoded, len(schema.classes)
    shape = arguments.n, arguments.features, *[arguments.classes] * (not is_number)
    estimator = _estimator(arguments)
    plan = estimator.plan(*shape)
    head = (
        f"{type(estimator).__name__} on {arguments.n:,} records, {arguments.features:,} features"
        + ("." if is_number else f", {arguments.classes} classes."),
        "Planned from public numbers alone: no data were read, and no budget is spent yet.",
    )
    guesses = [] if arguments.accuracy is None else _expectations(estimator, plan, arguments)
    blocks = [("", *head), ("", "", plan), *guesses, _alternatives(estimator, plan, shape)]
    return str(Page(*blocks))


def _expectations(
    estimator: BaseEstimator, plan: Plan, arguments: argparse.Namespace
) -> Iterator[Block]:
    """Say what accuracy and what intervals to expect: by theory, or on rows of the schema."""
    n_classes, schema = arguments.classes, arguments.schema
    majority = arguments.majority or 1 / n_classes
    settings: dict[str, Any] = {"n_samples": arguments.n, "accuracy": arguments.accuracy}
    if schema is None:
        settings |= {"n_features": arguments.features, "majority": majority}
    else:
        shares = [majority, *[(1 - majority) / (n_classes - 1)] * (n_classes - 1)]
        n_rows, seed = max(3000, 30 * arguments.features), {"random_state": 0}
        X, y = sample_from_schema(schema, n_rows, class_shares=shares, **seed)
        settings |= {"X": X, "y": y, **seed}
    found = expected_accuracy(estimator, **settings)
    text = f"{found.private:.4f}, which is {found.not_private - found.private:.4f}"
    guessed = f"{arguments.accuracy:.4g}, and {majority:.4g} for one label"
    rows = {"without privacy, as guessed": guessed}
    if schema is None:
        rows["with privacy"] = f"{text} lower"
        note = (
            "in theory, for columns that fill their bounds; 0.01 to 0.02 too high, or more, where "
            "n mu / d is below 10 or columns are skewed. --schema simulates instead"
        )
    else:
        rows["without privacy, as fitted"] = f"{found.not_private:.4f}"
        rows["with privacy"] = f"{text} ± {found.standard_error:.4f} lower"
        note = (
            f"simulated on artificial rows of the schema {schema.name!r}, which do not know "
            "how separate the classes are: within 0.5 points on Adult and bank-full, and 1.3 too "
            "low on KDD Cup 1999. A public sample comes nearer, by dpglm.study.expected_accuracy"
        )
    yield "EXPECTED ACCURACY", rows, f"({note})"
    if arguments.width:
        yield _intervals(estimator, plan, arguments, settings)


def _intervals(
    estimator: BaseEstimator, plan: Plan, arguments: argparse.Namespace, settings: dict[str, Any]
) -> Block:
    """Say how wide intervals will be, and how many records make them as narrow as is wanted."""
    schema, width = arguments.schema, arguments.width
    if schema is None:
        found = {
            label: expected_errors(estimator, spread=spread, rarest=RAREST, **settings)
            for label, spread in (("number that fills [0, 1]", 0.29), ("half against half", 0.5))
        }
        note = (
            "of 0.95, in log-odds, in theory: of columns that are not correlated, none with a mean "
            f"square below {RAREST:g}. Of such ones the budget is large enough for "
            f"{plan.expected_columns[1]:,} of {plan.metadata.n_features:,}, with the intercept. "
            "--schema simulates instead"
        )
    else:
        errors = expected_errors(estimator, schema=schema, **settings)
        found = {}
        for column in schema.encoded_columns:
            own = [
                k
                for k, name in enumerate(errors.names)
                if name in (column.name, *column.encoded_names)
                or name.startswith(f"{column.name} (")
            ]
            reported = [k for k in own if errors.sampling[k] > 0]
            # A straight number has an error per unit.
            span = np.ptp(column.bounds) if column.name in errors.names else 1.0
            pair = [part[reported] * span for part in (errors.sampling, errors.privacy)]
            label = f"{column.name} ({len(reported)} of {len(own)} reported)"
            medians = map(np.median, pair)
            found[label] = ExpectedStandardErrors(*medians, errors.n_samples) if reported else None
        note = (
            "of 0.95, in log-odds: of a straight number (by additive(1)) from bound to bound, of "
            "categories the median; simulated on artificial rows of the schema "
            f"{schema.name!r}, which do not know how columns are related: 5 to 30 % too "
            "narrow in the middle on Adult, bank-full and a census. A public sample was within "
            "7 %, by dpglm.study.expected_errors"
        )
    table = [("of a coefficient", "width", "sampling", "privacy", f"records for {width:g}")]
    for label, errors in found.items():
        texts = ["suppressed", "", "", ""]
        if errors is not None:
            texts = [f"{x:.3g}" for x in (errors.width(), errors.sampling, errors.privacy)]
            texts.append(f"{math.ceil(errors.n_samples_for(width)):,}")
        table.append((label, *texts))
    return "EXPECTED INTERVALS", table, f"({note})"


def _alternatives(estimator: BaseEstimator, plan: Plan, shape: tuple[int, ...]) -> Block:
    adaptive, sampled = isinstance(plan, AdaptivePlan), plan.sampling_rate < 1
    epsilon = estimator.epsilon
    changes = {"this plan": {}, "half of epsilon": {"epsilon": epsilon / 2}}
    changes["twice epsilon"] = {"epsilon": epsilon * 2}
    if plan.ledger.neighboring_relation == "zero_out" and not sampled:
        changes["replace_one"] = {"neighboring_relation": "replace_one"}
    rows = [["", "multiplier", "noise on a mean gradient"]]
    if not sampled:
        rows[0].append("iterations afforded" if adaptive else "iterations at this plan's noise")
    noise_here = plan.first_multiplier * plan.noise_per_multiplier
    for name, change in changes.items():
        other = clone(estimator).set_params(**change).plan(*shape) if change else plan
        multiplier = other.first_multiplier
        noise = multiplier * other.noise_per_multiplier
        row = [name, f"{multiplier:.4g}", of_clip(noise)]
        if adaptive:
            row.append(f"{other.n_affordable:,}")
        elif not sampled:
            n_iter = plan.n_iter * (noise_here / noise) ** 2
            row.append(f"{math.floor(n_iter * (1 + 1e-9)):,}")
        rows.append(row)
    return "ALTERNATIVES", rows


def _estimator(arguments: argparse.Namespace) -> BaseEstimator:
    rate, public_n = arguments.sampling_rate, arguments.relation == "add_or_remove_one"
    if rate not in (None, 1) and arguments.estimator == "agd":
        raise ValueError("--sampling-rate: agd searches along lines through all records")
    if arguments.width is not None and arguments.estimator != "logistic":
        raise ValueError("--width: intervals are of --estimator logistic")
    estimator = PLANNED[arguments.estimator].with_parameters(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        inference_fraction=0.5 if arguments.width else None,
        neighboring_relation=arguments.relation,
        n_samples_estimate=arguments.n if public_n else None,
        alpha=arguments.alpha,
        classes=range(arguments.classes),
        max_iter=arguments.n_iter,
        clip_schedule=arguments.clip,
        sampling_rate=None if rate == 1 else rate,
        # Encoded rows bring their bound to a fit.
        max_row_norm=arguments.schema.max_row_norm() if arguments.schema else None,
    )
    if arguments.preconditioner == "auto":
        return estimator
    named = {"none": None}.get(arguments.preconditioner, arguments.preconditioner)
    return estimator.set_params(preconditioner=named)
