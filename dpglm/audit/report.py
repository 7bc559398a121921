"""Audits: tests of an estimator's privacy claim, by fits on canaries."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpglm import baselines
from dpglm.audit.choices import ChoiceCounts, audit_choices, choice_counts
from dpglm.audit.designs import (
    canary_scores,
    count_scores,
    counted_scores,
    counted_shape,
    cross_moment_scores,
    iterate_scores,
    minimizer_scores,
    planned,
    prepared,
    target_scores,
)
from dpglm.audit.statistics import AuditResult, CanaryScores, audit_scores
from dpglm.checks import check_number, check_whole
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.regression import PrivateRegressor
from dpglm.privacy.noise import seeded_noise
from dpglm.tables import Printed

# Each canary has two separate axes in a full second moment.
_MOST_PAIRS = 250


@dataclass(frozen=True, eq=False, repr=False)
class AuditReport(Printed):
    """Outcome of the audit of an estimator.

    Attributes
    ----------
    name : str
        The name of the estimator's class.
    epsilon, delta : float
        The claim of the estimator.
    parts : tuple of AuditResult
        One for each kind of release.
    """

    name: str
    epsilon: float
    delta: float
    parts: tuple[AuditResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return all(part.passed for part in self.parts)

    @property
    def violations(self) -> tuple[str, ...]:
        """The violations, in words; empty if the audit passes."""
        return tuple(f"{part.name}: {text}" for part in self.parts for text in part.violations)

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        claim = f"({self.epsilon:g}, {self.delta:g})"
        if self.passed:
            return f"{self.name} passes: nothing speaks against its claim of {claim}."
        return f"{self.name} VIOLATES its claim of {claim}: {'; '.join(self.violations)}."

    def __repr__(self) -> str:
        return f"<AuditReport: {self.verdict}>"

    def _blocks(self) -> Iterator[Any]:
        yield "", audit_table([self]), self.verdict


def audit_estimator(
    estimator: Any,
    *,
    n_canaries: int = 2000,
    n_fits: int = 1000,
    false_positive_rate: float = 1e-6,
    container: str = "sparse",
) -> AuditReport:
    """Fit an estimator on artificial records, and test whether it is as private as it claims.

    Parameters
    ----------
    estimator : estimator
        One of dpglm with a finite epsilon, or of a class that inherits from one. Cloned.
    n_canaries : int, default=2000
        Artificial records in one fit.
    n_fits : int, default=1000
        Fits, where many are needed: for private choices and the target of a regressor.
    false_positive_rate : float, default=1e-6
        Probability with which each test rejects a claim that holds.
    container : {"dense", "sparse", "blocks", "dask"}, default="sparse"
        The type of the rows for fits on canaries, and so the code that sums over them. At least 750
        dense canaries are shared among threads, and partitions among the workers of Dask.

    Returns
    -------
    AuditReport

    Raises
    ------
    TypeError
        For an estimator of another package.
    ValueError
        If the estimator claims nothing, or the audit cannot detect anything.

    Notes
    -----
    Rows, labels, step sizes, penalty and intercept are those of the audit, and noise is fresh also
    within `seeded_noise`. Not tested are traces and overflow.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import audit_estimator
    >>> report = audit_estimator(DPLogisticRegression(epsilon=5.0))
    >>> print(report.verdict)
    DPLogisticRegression passes: nothing speaks against its claim of (5, 1e-06).
    >>> [part.name for part in report.parts][:4]
    ['magnitude histogram', 'norm histogram', 'second moment, off the diagonal', 'second moment']
    """
    name = type(estimator).__name__
    audit = next((AUDITS[family] for family in type(estimator).__mro__ if family in AUDITS), None)
    if audit is None:
        raise TypeError(f"audit_estimator audits estimators of dpglm, not {name}.")
    sizes = check_whole("n_canaries", n_canaries), check_whole("n_fits", n_fits)
    rate = check_number("false_positive_rate", false_positive_rate, above=0, below=1)
    parts = []
    with seeded_noise(None):
        for part, evidence in audit(estimator, *sizes, container):
            test = audit_scores if isinstance(evidence, CanaryScores) else audit_choices
            parts.append(replace(test(evidence, false_positive_rate=rate), name=part))
    return AuditReport(name, estimator.epsilon, estimator.delta, tuple(parts))


# Names of releases, and the scores of canaries or counts of choices in them.
Parts = Iterator[tuple[str, CanaryScores | ChoiceCounts]]


def _descent(estimator: Any, n_canaries: int, n_fits: int, container: str) -> Parts:
    """Yield histograms, second moments with their off-diagonal elements, and gradients."""
    pairs, stages = min(n_canaries, _MOST_PAIRS), ("gradients",)
    preconditioner = planned(prepared(estimator), pairs, 2 * pairs).preconditioner
    if preconditioner is not None:
        stages = ("second_moment", "gradients")
        for counts in ("magnitude histogram", "norm histogram"):
            if counted_shape(estimator, counts):
                yield counts, counted_scores(estimator, n_canaries, counts)
        if not preconditioner.diagonal:
            yield "second moment, off the diagonal", cross_moment_scores(estimator, pairs)
    for stage in stages:
        scores = canary_scores(estimator, n_canaries, stage=stage, container=container)
        yield stage.replace("_", " "), scores


def _regression(estimator: Any, n_canaries: int, n_fits: int, container: str) -> Parts:
    """Yield histogram and sum of the target, and the same releases."""
    for release in ("target histogram", "target sum"):
        yield release, target_scores(estimator, min(n_canaries, n_fits), release)
    yield from _descent(estimator, n_canaries, n_fits, container)


def _adaptive_descent(estimator: Any, n_canaries: int, n_fits: int, container: str) -> Parts:
    yield from _descent(estimator, n_canaries, n_fits, container)
    yield "choice of a step", choice_counts(estimator, n_fits=n_fits)


# What is audited of each family.
AUDITS: dict[type, Callable[[Any, int, int, str], Iterable[Any]]] = {
    DPLogisticRegression: _descent,
    DPLinearSVM: _descent,
    baselines.SGDAdvancedComposition: _descent,
    baselines.SGDMomentsAccountant: _descent,
    PrivateRegressor: _regression,
    DPAGDClassifier: _adaptive_descent,
    baselines.DescentOutputPerturbation: lambda e, n, *_: [("last iterate", iterate_scores(e, n))],
    baselines.ObjectivePerturbation: lambda e, n, *_: [("minimiser", minimizer_scores(e, n))],
    baselines.MajorityClassifier: lambda e, n, *_: [("counts", count_scores(e, n))],
    baselines.PrivGene: lambda e, _, n, __: [("choice of a mutation", choice_counts(e, n_fits=n))],
}


def audit_table(reports: Iterable[AuditReport]) -> list[tuple[str, ...]]:
    """Return the outcome of audits as the rows of a table."""
    header = ("estimator", "release", "epsilon", "shown", "outcome")
    rows = [(*header, "caught with probability 0.99")]
    for report in reports:
        for place, part in enumerate(report.parts):
            lower, claimed = part.bounds(report.delta)
            # The name stands once for all parts.
            name = "" if place else report.name
            numbers = (f"{min(claimed, report.epsilon):.3g}", f">= {lower:.3g}")
            outcome = "passed" if part.passed else "VIOLATED"
            rows.append((name, part.name, *numbers, outcome, part.power))
    return rows
