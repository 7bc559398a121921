"""The releases and the cost of a run, as text, from public numbers alone."""

import argparse
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone

from dpglm.calculator import (
    ExpectedStandardErrors,
    PrivacyCalculator,
    expected_accuracy,
    expected_errors,
)
from dpglm.datasets import sample_from_schema
from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.debiasing import most_columns
from dpglm.estimators.plan import MOST_ITERATIONS, PrivacyPlan, total_fraction
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.ledger import PrivacyLedger, rounded_up
from dpglm.schema import Schema
from dpglm.study.methods import METHODS
from dpglm.tables import text_table

_WIDTH = 96
_WHITENED_UNITS = (
    "; clip and noise are in units of the square root of the effective dimension, which the second "
    "moment will show; clip and step are shown for the largest dimension"
)
_LABEL = 36
_ROUNDING = 1e-9
# Artificial rows to plan with.
_MIN_ROWS, _ROWS_PER_COLUMN = 3000, 30
# The least mean square of a column that theory has in mind for intervals.
_RAREST = 0.1
# The part of the budget that intervals have in a plan.
_INFERENCE_FRACTION = 0.5

Plan = PrivacyPlan | AdaptivePlan


class Shape(NamedTuple):
    """The public size of a data set."""

    n_samples: int
    n_features: int
    n_classes: int


class Guess(NamedTuple):
    """Accuracy without privacy, share of the most frequent label, and wanted width of intervals."""

    accuracy: float
    majority: float
    schema: Schema | None = None
    width: float | None = None


def plan_report(
    estimator: BaseEstimator, shape: Shape, *, answer: str = "", guess: Guess | None = None
) -> str:
    """Return what an estimator would do with data of a public shape."""
    plan = estimator.plan(*shape)
    lines = [
        f"{type(estimator).__name__} on {shape.n_samples:,} records, {shape.n_features:,} "
        f"features, {shape.n_classes} classes",
        "Planned from public numbers alone: no data were read, and no budget is spent yet.",
    ]
    if answer:
        lines += ["", *textwrap.wrap(f"ANSWER: {answer}.", _WIDTH)]
    lines += [*_budget(estimator.epsilon, plan.ledger, shape.n_samples), *_noise(plan)]
    if isinstance(plan, PrivacyPlan):
        lines += _iterations(plan)
    if guess is not None:
        lines += _expectations(estimator, plan, shape, guess)
    lines += _alternatives(estimator, plan, shape)
    return "\n".join(lines)


def _budget(epsilon: float, ledger: PrivacyLedger, n_samples: int) -> list[str]:
    delta, relation = ledger.reporting_delta, ledger.neighboring_relation
    rows = {
        "epsilon": f"{epsilon:.6g}",
        "delta": f"{delta:g} = {delta * n_samples:.2g} / {n_samples:,}",
        "neighbours": f"{relation}: {NEIGHBORING_RELATIONS[relation].meaning}",
    }
    if delta * n_samples > 1:
        rows["WARNING"] = (
            "delta exceeds one over the number of records: releasing a record outright at random "
            "would satisfy it. Lower --delta."
        )
    if all(event.mu is not None for event, _ in ledger.events):
        rows["in other units"] = f"mu {ledger.mu():.4g} (GDP), rho {ledger.rho():.4g} (zCDP)"
    elif all(event.rho is not None for event, _ in ledger.events):
        rows["in another unit"] = f"rho {ledger.rho():.4g} (zCDP)"
    if relation != "replace_one":
        replaced = rounded_up(composed_epsilon(ledger.events, delta, 2))
        rows["the same run under replace_one"] = f"epsilon {replaced}"
    # At even odds the best guess is right half of the time, and half of the total variation more.
    guess = 50 * (1 + ledger.delta(0.0))
    rows["in plain words"] = (
        "who has to tell from the result whether one record was used, at even odds, is right "
        f"with a probability of {guess:.1f}% at most, instead of 50%"
    )
    return _section("BUDGET", rows)


def _noise(plan: Plan) -> list[str]:
    rows = {}
    for release in (*plan.counts, *plan.first):
        noise = f"noise multiplier {release.noise_multiplier:.4g}, for {release.purpose}"
        rows[f"first, {release.name}"] = f"{_percent(release.fraction)} of the budget, {noise}"
    each = _first_multiplier(plan) * _noise_per_multiplier(plan)
    if isinstance(plan, AdaptivePlan):
        noise = f"noise multiplier {_first_multiplier(plan):.4g}, clip {plan.clip[0]:.4g}"
        rows["a gradient, at first"] = noise
        rows["a choice of a step"] = f"epsilon {plan.selection_epsilon:.4g}"
        rows["affords at most"] = (
            f"{plan.n_affordable:,} iterations (max_iter is {plan.n_iter:,}); each refinement of "
            "a gradient, where no step seems to help, leaves fewer"
        )
        averaged = ""
    else:
        low, high = plan.noise_multiplier.min(), plan.noise_multiplier.max()
        multipliers = f"{low:.4g} each" if low == high else f"{low:.4g} to {high:.4g}"
        gradients = f"{plan.n_iter:,} gradient{'s' if plan.n_iter > 1 else ''}"
        rows[gradients] = f"noise multiplier {multipliers}, for the descent"
        each = math.sqrt(np.mean(plan.noise_multiplier**2)) * _noise_per_multiplier(plan)
        averaged = f"; {_percent(each / math.sqrt(plan.n_iter))} on the mean of all iterations"
    norm = f"as a norm over {plan.metadata.n_released:,} coordinates"
    rows["noise on a mean gradient"] = f"{_of_clip(each)}, {norm}{averaged}"
    if plan.last:
        share = f"{_percent(total_fraction(plan.last))} of the budget"
        rows["last, for intervals"] = f"{share}, {len(plan.last)} releases"
    if averaged and each > math.sqrt(plan.n_iter):
        rows["WARNING"] = (
            "even the mean of all iterations has more noise than any gradient can be long: nothing "
            "will be learned. Raise --epsilon or --n, or lower --features."
        )
    elif plan.warning_message:
        rows["WARNING"] = plan.warning_message
    if plan.sampling_rate == 1:
        d = plan.metadata.n_features
        rows["signal per direction, n mu / d"] = f"{plan.n_mu / d:.4g} for all d = {d:,} columns"
    else:
        size = plan.metadata.expected_batch_size
        spread = math.sqrt(size * (1 - plan.sampling_rate))
        rows["epochs"] = f"{plan.n_iter * plan.sampling_rate:.4g}"
        rows["records in a batch"] = f"{size:,.6g} expected, give or take {spread:.3g}"
    return _section("NOISE", rows)


def _iterations(plan: PrivacyPlan) -> list[str]:
    divisor = "n" if plan.sampling_rate == 1 else "the expected batch"
    note = f"noise / n: standard deviation in each coordinate of the mean gradient (over {divisor})"
    rows = [("iteration   ", "clip", "step", "multiplier", "noise / n", "epsilon so far")]
    for number, release in enumerate((*plan.counts, *plan.first), 1):
        multiplier, cost = f"{release.noise_multiplier:.4g}", _cost(plan.epsilon_after(number))
        rows.append((release.name, "", "", multiplier, "", cost))
    if plan.first:
        note += _WHITENED_UNITS
    for row in plan.milestones(5):
        values = (row.clip, row.step, row.noise_multiplier, row.noise_std)
        texts = (f"{value:.4g}" for value in values)
        rows.append((f"{row.iteration:,}", *texts, _cost(row.epsilon)))
    if plan.last:
        rows.append(("for intervals", "", "", "", "", _cost(plan.ledger.epsilon())))
    return _section("ITERATIONS", table=rows, note=note)


def _expectations(estimator: BaseEstimator, plan: Plan, shape: Shape, guess: Guess) -> list[str]:
    """Say what accuracy and what intervals to expect: by theory, or on rows of the schema."""
    settings: dict[str, Any] = {"n_samples": shape.n_samples, "accuracy": guess.accuracy}
    if guess.schema is None:
        settings |= {"n_features": shape.n_features, "majority": guess.majority}
    else:
        rest = (1 - guess.majority) / (shape.n_classes - 1)
        settings["random_state"] = 0
        settings["X"], settings["y"] = sample_from_schema(
            guess.schema,
            max(_MIN_ROWS, _ROWS_PER_COLUMN * shape.n_features),
            class_shares=[guess.majority, *[rest] * (shape.n_classes - 1)],
            random_state=0,
        )
    lines = _accuracy(estimator, guess, settings)
    return lines + (_intervals(estimator, plan, guess, settings) if guess.width else [])


def _accuracy(estimator: BaseEstimator, guess: Guess, settings: dict[str, Any]) -> list[str]:
    found = expected_accuracy(estimator, **settings)
    text = f"{found.private:.4f}, which is {found.not_private - found.private:.4f}"
    guessed = f"{guess.accuracy:.4g}, and {guess.majority:.4g} for one label"
    rows = {"without privacy, as guessed": guessed}
    if guess.schema is None:
        rows["with privacy"] = f"{text} lower"
        note = (
            "in theory, for columns that fill their bounds; 0.01 to 0.02 too high, or more, where "
            "n mu / d is below 10 or columns are skewed. --schema simulates instead"
        )
    else:
        rows["without privacy, as fitted"] = f"{found.not_private:.4f}"
        rows["with privacy"] = f"{text} ± {found.standard_error:.4f} lower"
        note = (
            f"simulated on artificial rows of the schema {guess.schema.name!r}, which do not know "
            "how separate the classes are: within 0.5 points on Adult and bank-full, and 1.3 too "
            "low on KDD Cup 1999. A public sample comes nearer, by dpglm.study.expected_accuracy"
        )
    return _section("EXPECTED ACCURACY", rows, note=note)


def _intervals(
    estimator: BaseEstimator, plan: Plan, guess: Guess, settings: dict[str, Any]
) -> list[str]:
    """Say how wide intervals will be, and how many records make them as narrow as is wanted."""
    if guess.schema is None:
        found = {
            label: expected_errors(estimator, spread=spread, rarest=_RAREST, **settings)
            for label, spread in (("number that fills [0, 1]", 0.29), ("half against half", 0.5))
        }
        note = (
            "of 0.95, in log-odds, in theory: of columns that are not correlated, none with a mean "
            f"square below {_RAREST:g}. Of such ones the budget is large enough for "
            f"{most_columns(plan, _RAREST):,} of {plan.metadata.n_features:,}, with the intercept. "
            "--schema simulates instead"
        )
    else:
        errors = expected_errors(estimator, schema=guess.schema, **settings)
        found = dict(_by_column(guess.schema, errors))
        note = (
            "of 0.95, in log-odds: of a straight number (by additive(1)) from bound to bound, of "
            "categories the median; simulated on artificial rows of the schema "
            f"{guess.schema.name!r}, which do not know how columns are related: 5 to 30 % too "
            "narrow in the middle on Adult, bank-full and a census. A public sample was within "
            "7 %, by dpglm.study.expected_errors"
        )
    table = [("of a coefficient", "width", "sampling", "privacy", f"records for {guess.width:g}")]
    for label, errors in found.items():
        texts = ["suppressed", "", "", ""]
        if errors is not None:
            texts = [f"{x:.3g}" for x in (errors.width(), errors.sampling, errors.privacy)]
            texts.append(f"{math.ceil(errors.n_samples_for(guess.width)):,}")
        table.append((label, *texts))
    return _section("EXPECTED INTERVALS", table=table, note=note)


def _by_column(
    schema: Schema, errors: ExpectedStandardErrors
) -> Iterator[tuple[str, ExpectedStandardErrors | None]]:
    """Yield the label of each column of a table with its median errors, None if suppressed."""
    for column in schema.encoded_columns:
        own = [
            k
            for k, name in enumerate(errors.names)
            if name in (column.name, *column.encoded_names) or name.startswith(f"{column.name} (")
        ]
        reported = [k for k in own if errors.sampling[k] > 0]
        median = None
        if reported:
            # A straight number has an error per unit.
            span = np.ptp(column.bounds) if column.name in errors.names else 1.0
            pair = (np.median(part[reported]) * span for part in (errors.sampling, errors.privacy))
            median = ExpectedStandardErrors(*pair, errors.n_samples)
        yield f"{column.name} ({len(reported)} of {len(own)} reported)", median


def _alternatives(estimator: BaseEstimator, plan: Plan, shape: Shape) -> list[str]:
    adaptive, sampled = isinstance(plan, AdaptivePlan), plan.sampling_rate < 1
    epsilon = estimator.epsilon
    changes = {"this plan": {}, "half of epsilon": {"epsilon": epsilon / 2}}
    changes["twice epsilon"] = {"epsilon": epsilon * 2}
    if plan.ledger.neighboring_relation == "zero_out" and not sampled:
        changes["replace_one"] = {"neighboring_relation": "replace_one"}
    rows = [[" " * 18, "multiplier", "noise on a mean gradient"]]
    if not sampled:
        rows[0].append("iterations afforded" if adaptive else "iterations at this plan's noise")
    noise_here = _first_multiplier(plan) * _noise_per_multiplier(plan)
    for name, change in changes.items():
        other = clone(estimator).set_params(**change).plan(*shape) if change else plan
        multiplier = _first_multiplier(other)
        noise = multiplier * _noise_per_multiplier(other)
        row = [name, f"{multiplier:.4g}", _of_clip(noise)]
        if adaptive:
            row.append(f"{other.n_affordable:,}")
        elif not sampled:
            n_iter = plan.n_iter * (noise_here / noise) ** 2
            row.append(f"{math.floor(n_iter * (1 + _ROUNDING)):,}")
        rows.append(row)
    return _section("ALTERNATIVES", table=rows)


def _noise_per_multiplier(plan: Plan) -> float:
    """Return the norm of the noise on the mean gradient over the clip, for a multiplier of 1."""
    size = plan.metadata.expected_batch_size
    return math.sqrt(plan.metadata.n_released) * plan.budget.sensitivity(1.0) / size


def _first_multiplier(plan: Plan) -> float:
    if isinstance(plan, AdaptivePlan):
        return plan.noise_multiplier(plan.gradient_cost)
    return float(plan.noise_multiplier[0])


def _cost(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < 1000 else f"{epsilon:.5g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _of_clip(value: float) -> str:
    return f"{_percent(value)} of the clip" if value < 10 else f"{value:.3g} times the clip"


def _section(
    title: str,
    rows: Mapping[str, str] | None = None,
    table: Iterable[Sequence[str]] = (),
    note: str = "",
) -> list[str]:
    """Return a title, and below it labelled rows, or a table; then a note in parentheses."""
    lines = ["", title]
    for label, text in (rows or {}).items():
        indents = {"initial_indent": f"  {label:<{_LABEL}}", "subsequent_indent": " " * 38}
        lines += textwrap.wrap(text, _WIDTH, **indents)
    lines += [f"  {line}" for line in text_table(table, gap=3)]
    if note:
        lines += textwrap.wrap(f"({note})", _WIDTH, initial_indent="  ", subsequent_indent="   ")
    return lines


def plan_as_asked(arguments: argparse.Namespace) -> str:
    """Return the report that the arguments of the command line ask for."""
    if arguments.epsilon is None and arguments.noise_multiplier is None:
        raise ValueError("give --epsilon, or --noise-multiplier and --n-iter")
    answer = "" if arguments.noise_multiplier is None else _solve(arguments)
    guess = _guess(arguments)
    # A schema says how many features and classes there are, and the bound of the rows.
    if guess is not None and guess.schema is not None:
        arguments.features = guess.schema.n_encoded
        arguments.classes = len(guess.schema.classes)
    shape = Shape(arguments.n, arguments.features, arguments.classes)
    return plan_report(_estimator(arguments, guess), shape, answer=answer, guess=guess)


def _guess(arguments: argparse.Namespace) -> Guess | None:
    """Return what was guessed, if anything."""
    schema, width = arguments.schema, arguments.width
    if arguments.accuracy is None:
        if schema or arguments.majority or width:
            raise ValueError(
                "--schema, --majority and --width are for --accuracy, which is not given"
            )
        return None
    if width and schema:
        schema = schema.additive(1)  # one coefficient for each
    n_classes = arguments.classes if schema is None else len(schema.classes)
    return Guess(arguments.accuracy, arguments.majority or 1 / n_classes, schema, width)


def _estimator(arguments: argparse.Namespace, guess: Guess | None) -> BaseEstimator:
    rate, public_n = arguments.sampling_rate, arguments.relation == "add_or_remove_one"
    if rate not in (None, 1) and arguments.estimator == "agd":
        raise ValueError("--sampling-rate: agd searches along lines through all records")
    if arguments.width is not None and arguments.estimator != "logistic":
        raise ValueError("--width: intervals are of --estimator logistic")
    estimator = METHODS[arguments.estimator].with_parameters(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        inference_fraction=_INFERENCE_FRACTION if arguments.width else None,
        neighboring_relation=arguments.relation,
        n_samples_estimate=arguments.n if public_n else None,
        alpha=arguments.alpha,
        classes=range(arguments.classes),
        max_iter=arguments.n_iter,
        clip_schedule=arguments.clip,
        sampling_rate=None if rate == 1 else rate,
        # Encoded rows bring their bound to a fit.
        max_row_norm=guess.schema.max_row_norm() if guess and guess.schema else None,
    )
    if arguments.preconditioner == "auto":
        return estimator
    named = {"none": None}.get(arguments.preconditioner, arguments.preconditioner)
    return estimator.set_params(preconditioner=named)


def _solve(arguments: argparse.Namespace) -> str:
    """Fill in the number that was left out, and return it in words."""
    if arguments.estimator == "agd":
        raise ValueError("--noise-multiplier: agd decides on its noise as it runs; give --epsilon")
    if arguments.preconditioner in ("full", "diagonal"):
        raise ValueError(
            "--noise-multiplier: plans a run of equal gradients; a preconditioner would release "
            "something else before them, so leave --preconditioner out"
        )
    arguments.preconditioner = "none"
    names = ("epsilon", "n_iter", "sampling_rate")
    missing = [name for name in names if getattr(arguments, name) is None]
    if not missing:
        raise ValueError(
            "--epsilon, --noise-multiplier, --n-iter and --sampling-rate determine one another; "
            "give at most three of them"
        )
    if len(missing) == 2 and missing[1] == "sampling_rate":
        arguments.sampling_rate = 1.0
        missing.pop()
    if len(missing) > 1:
        raise ValueError("--noise-multiplier: give --epsilon, --n-iter or both as well")
    (unknown,) = missing
    calculator = PrivacyCalculator(arguments.relation)
    known = {name: getattr(arguments, name) for name in names if name != unknown}
    known |= {"delta": arguments.delta, "noise_multiplier": arguments.noise_multiplier}
    answer = getattr(calculator, "max_iter" if unknown == "n_iter" else unknown)(**known)
    setattr(arguments, unknown, answer)
    multiplier, epsilon = f"{arguments.noise_multiplier:g}", f"epsilon {arguments.epsilon:.4g}"
    given = f"noise multiplier {multiplier}"
    if unknown == "epsilon":
        return f"{given} and {arguments.n_iter:,} iterations cost {epsilon}"
    if unknown == "sampling_rate":
        rate = f"a sampling rate of {answer:.4g}"
        return f"{given} and {arguments.n_iter:,} iterations afford {rate} at {epsilon}"
    if not 1 <= answer <= MOST_ITERATIONS:
        raise ValueError(
            f"--noise-multiplier: {multiplier} affords {answer:,} iterations at {epsilon}, and a "
            f"plan has 1 to {MOST_ITERATIONS:,}; choose a {'larger' if answer < 1 else 'smaller'} "
            "one"
        )
    epochs = f"{answer * arguments.sampling_rate:,.6g} epochs"
    return f"{given} affords {answer:,} iterations, {epochs}, at {epsilon}"
