"""Audits: does the noise of an estimator bear out its claim? A fit or two on canaries show it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpglm.audit.choices import ChoiceCounts, ChoiceResult, audit_choices, choice_counts
from dpglm.audit.designs import (
    BASELINE_PLANS,
    adaptive_scores,
    baseline_scores,
    canary_scores,
    cross_moment_scores,
    release_weights,
)
from dpglm.audit.outside import BlackBoxResult, audit_guesses, audit_pair
from dpglm.audit.statistics import AuditResult, CanaryScores, audit_scores
from dpglm.baselines.privgene import GeneticPlan
from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.plan import PrivacyPlan

__all__ = [
    "AuditPart",
    "AuditReport",
    "AuditResult",
    "CanaryScores",
    "audit_estimator",
    "audit_scores",
    "audit_table",
    "canary_scores",
    "release_weights",
]

# Each canary has two axes of its own in a full second moment.
_MOST_PAIRS = 250
# Estimators that are not known may need dense rows, and much time for many columns.
_MOST_GUESSED = 500


@dataclass(frozen=True, eq=False)
class AuditPart:
    """One kind of release, and what the audit says of it.

    Attributes
    ----------
    name : str
    evidence : CanaryScores, ChoiceCounts or BlackBoxResult
        What was seen.
    result : AuditResult, ChoiceResult or BlackBoxResult
    """

    name: str
    evidence: CanaryScores | ChoiceCounts | BlackBoxResult
    result: AuditResult | ChoiceResult | BlackBoxResult

    @property
    def verdict(self) -> str:
        """What was found, in words."""
        return "; ".join(self.result.violations) or "nothing speaks against the claim"


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Outcome of the audit of an estimator.

    Attributes
    ----------
    name : str
        Of the estimator's class.
    epsilon, delta : float
        The claim of the estimator.
    parts : tuple of AuditPart
        One for each kind of release.
    """

    name: str
    epsilon: float
    delta: float
    parts: tuple[AuditPart, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return all(part.result.passed for part in self.parts)

    @property
    def violations(self) -> tuple[str, ...]:
        """What was found, in words; empty if the audit passes."""
        return tuple(
            f"{part.name}: {text}" for part in self.parts for text in part.result.violations
        )

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        claim = f"({self.epsilon:g}, {self.delta:g})"
        if self.passed:
            return f"{self.name} passes: nothing speaks against its claim of {claim}."
        return f"{self.name} VIOLATES its claim of {claim}: {'; '.join(self.violations)}."

    def __str__(self) -> str:
        return f"{audit_table([self])}\n\n{self.verdict}"


def audit_estimator(
    estimator: Any,
    *,
    n_canaries: int = 2000,
    n_fits: int = 1000,
    false_alarm: float = 1e-6,
    container: str = "sparse",
    row_norm: float = 1.0,
    black_box: bool = False,
    random_state: Any = None,
) -> AuditReport:
    """Fit an estimator on artificial records, and test whether it is as private as it claims.

    Parameters
    ----------
    estimator : estimator
        Of this library; or any other with ``fit``, ``coef_``, and parameters ``epsilon`` and
        ``delta`` (pure differential privacy without the latter). Cloned.
    n_canaries : int, default=2000
        Artificial records in one fit.
    n_fits : int, default=1000
        Fits, where many are needed: to see how private choices fall, and for estimators of which
        nothing is known.
    false_alarm : float, default=1e-6
        Probability with which each test rejects a claim that holds.
    container : {"dense", "sparse", "blocks", "dask"}, default="sparse"
        How rows are handed to the fits on canaries, and so which code sums over them: 750 dense
        canaries or more are shared among threads, and partitions go to the workers of the Dask
        cluster that is connected, if there is one.
    row_norm : float, default=1.0
        Norm of the records where nothing is known of the estimator.
    black_box : bool, default=False
        Look at ``coef_`` alone, whatever the estimator.
    random_state : int, RandomState instance or None, default=None
        Of which canaries are there; never of the noise, for which a seed is cleared.

    Returns
    -------
    AuditReport

    Raises
    ------
    ValueError
        If the estimator claims nothing, or the audit could not see anything.

    Notes
    -----
    Gradients, second moments, minimisers, counts: one fit on canaries, each on an axis of its own,
    holds as many independent trials (`audit_scores`). Private choices: their frequencies against
    the law that is charged, in many small fits. Other estimators: from outside, by guesses which
    canaries were there, and by telling apart two data sets in many fits; these see much less.

    Rows, labels, steps, penalty and intercept are those of the audit: how an estimator uses its own
    is not seen, nor are traces and overflow. The law of a mini-batch is seen one canary at a time.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit.report import audit_estimator
    >>> report = audit_estimator(DPLogisticRegression(epsilon=5.0))
    >>> print(report.verdict)
    DPLogisticRegression passes: nothing speaks against its claim of (5, 1e-06).
    >>> [part.name for part in report.parts]
    ['second moment, off the diagonal', 'second moment', 'gradients']
    """
    parameters = estimator.get_params(deep=False)
    if "epsilon" not in parameters:
        raise ValueError(
            f"{type(estimator).__name__} has no parameter epsilon, so that there is no claim to "
            "audit; wrap it in an estimator that has one."
        )
    epsilon, delta = parameters["epsilon"], parameters.get("delta", 0.0)
    if not epsilon < np.inf:
        raise ValueError(f"epsilon={epsilon!r} claims nothing that could be audited.")
    plan = None
    if not black_box and hasattr(estimator, "plan"):
        n_classes = 2 if estimator.classes is None else len(estimator.classes)
        plan = estimator.plan(n_canaries, n_canaries, n_classes)
    settings = {"n_canaries": n_canaries, "random_state": random_state}
    if isinstance(plan, PrivacyPlan | AdaptivePlan):
        parts = _descent_parts(estimator, plan, container, n_fits, false_alarm, settings)
    elif isinstance(plan, BASELINE_PLANS):
        scores = baseline_scores(estimator, **settings)
        parts = [AuditPart(_release(plan), scores, audit_scores(scores, false_alarm=false_alarm))]
    elif isinstance(plan, GeneticPlan):
        parts = [_choice_part("choice of a mutation", estimator, n_fits, false_alarm)]
    else:
        claim = {"epsilon": epsilon, "delta": delta, "false_alarm": false_alarm}
        claim["row_norm"] = row_norm
        settings["n_canaries"] = min(n_canaries, _MOST_GUESSED)
        guesses = audit_guesses(estimator, **claim, **settings)
        pair = audit_pair(estimator, n_fits=n_fits, **claim)
        parts = [
            AuditPart("guesses from one fit", guesses, guesses),
            AuditPart("two data sets, many fits", pair, pair),
        ]
    return AuditReport(type(estimator).__name__, float(epsilon), float(delta), tuple(parts))


def _descent_parts(
    estimator: Any,
    plan: PrivacyPlan | AdaptivePlan,
    container: str,
    n_fits: int,
    false_alarm: float,
    settings: dict[str, Any],
) -> Iterator[AuditPart]:
    pairs = min(settings["n_canaries"], _MOST_PAIRS)
    n_classes = max(2, plan.facts.n_outputs)
    full = estimator.plan(pairs, 2 * pairs, n_classes).second_moment
    if full is not None and not full.preconditioner.diagonal:
        scores = cross_moment_scores(estimator, **{**settings, "n_canaries": pairs})
        result = audit_scores(scores, false_alarm=false_alarm)
        yield AuditPart("second moment, off the diagonal", scores, result)
    stages = ["gradients"] if plan.second_moment is None else ["second_moment", "gradients"]
    for stage in stages:
        given, complaints = {**settings, "stage": stage, "container": container}, ()
        if isinstance(plan, AdaptivePlan):
            scores, complaints = adaptive_scores(estimator, **given)
        else:
            scores = canary_scores(estimator, **given)
        result = audit_scores(scores, false_alarm=false_alarm)
        result = replace(result, violations=result.violations + complaints)
        yield AuditPart(stage.replace("_", " "), scores, result)
    if isinstance(plan, AdaptivePlan):
        yield _choice_part("choice of a step", estimator, n_fits, false_alarm)


def _choice_part(name: str, estimator: Any, n_fits: int, false_alarm: float) -> AuditPart:
    choices = choice_counts(estimator, n_fits=n_fits)
    return AuditPart(name, choices, audit_choices(choices, false_alarm=false_alarm))


def _release(plan: Any) -> str:
    kinds = {"PerturbationPlan": "minimiser", "NewtonPlan": "first step", "CountPlan": "counts"}
    return kinds[type(plan).__name__]


def audit_table(reports: Iterable[AuditReport]) -> str:
    """Return the outcome of audits as a table.

    Parameters
    ----------
    reports : iterable of AuditReport

    Returns
    -------
    str

    Examples
    --------
    >>> from dpglm.audit.report import audit_estimator, audit_table
    >>> from dpglm.baselines.majority import MajorityClassifier
    >>> print(audit_table([audit_estimator(MajorityClassifier(epsilon=5.0))]))
    estimator           release  epsilon   shown  outcome  with probability .99 it would have caught
    MajorityClassifier  counts         5  >= ...  passed   noise below 0... times what was charged
    """
    header = ("estimator", "release", "epsilon", "shown", "outcome")
    rows = [(*header, "with probability .99 it would have caught")]
    for report in reports:
        for place, part in enumerate(report.parts):
            lower, claimed = part.result.bounds(report.delta)
            rows.append(
                (
                    "" if place else report.name,
                    part.name,
                    f"{min(claimed, report.epsilon):.3g}",
                    f">= {lower:.3g}",
                    "passed" if part.result.passed else "VIOLATED",
                    part.result.power,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if column in (2, 3) else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]))
    return "\n".join(lines)
