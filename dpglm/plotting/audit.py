"""What an audit saw, beside what the claim predicts, as a figure."""

import math
from textwrap import fill
from typing import Any

import numpy as np
from scipy.stats import norm

from dpglm.audit import AuditPart, AuditReport
from dpglm.auditing.choices import ChoiceCounts
from dpglm.auditing.statistics import CanaryScores
from dpglm.plotting.axes import plain, pyplot

__all__ = ["AuditDisplay"]

_BINS = 40
_TITLE_WIDTH = 48
_ABSENT, _PRESENT = "C0", "C1"
_VIOLATED = "C3"


class AuditDisplay:
    """Scores of canaries that were there and that were not, one panel for each kind of release.

    Histograms are what was seen, lines what the claim predicts; private choices are bars beside
    the law that is charged. Make it with `from_report`.

    Parameters
    ----------
    report : AuditReport

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of matplotlib Axes
        One per panel.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import audit_estimator
    >>> from dpglm.plotting.audit import AuditDisplay
    >>> report = audit_estimator(DPLogisticRegression(epsilon=5.0, preconditioner=None))
    >>> display = AuditDisplay.from_report(report).plot()
    >>> display.axes_[0].get_xlabel()
    'score of a canary'
    """

    def __init__(self, report: AuditReport) -> None:
        self.report = report

    @classmethod
    def from_report(cls, report: AuditReport) -> "AuditDisplay":
        """Prepare the figure of a report.

        Parameters
        ----------
        report : AuditReport
            As from `audit_estimator`.

        Returns
        -------
        AuditDisplay
            Not plotted yet.
        """
        return cls(report)

    def plot(self, ax: Any = None) -> "AuditDisplay":
        """Draw the panels.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes, optional
            One per part of the report; by default a new figure.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib; ``pip install "dpglm[plot]"``.
        ValueError
            If the number of axes is not that of the parts.
        """
        parts = self.report.parts
        if ax is None:
            figure, ax = pyplot().subplots(
                1, len(parts), figsize=(4.8 * len(parts), 4.4), layout="constrained", squeeze=False
            )
            report = self.report
            passed = "passes" if report.passed else "VIOLATES ITS CLAIM"
            figure.suptitle(
                f"{report.name}, epsilon {report.epsilon:g}, delta {report.delta:g}: {passed}"
            )
        self.axes_ = np.atleast_1d(np.asarray(ax)).ravel()
        if len(self.axes_) != len(parts):
            raise ValueError(f"ax holds {len(self.axes_)} axes; {len(parts)} are needed.")
        self.figure_ = self.axes_[0].figure
        for axes, part in zip(self.axes_, parts, strict=True):
            _draw(axes, part, self.report.delta)
        return self


def _draw(axes: Any, part: AuditPart, delta: float) -> None:
    evidence, result = part.evidence, part.result
    if isinstance(evidence, ChoiceCounts):
        _draw_choices(axes, evidence)
    elif isinstance(evidence, CanaryScores):
        _draw_scores(axes, evidence)
    else:
        _histogram(axes, [evidence.absent, evidence.present])
        axes.set_xlabel("score")
        axes.set_ylabel("density")
    lower, claimed = result.bounds(delta)
    found = "passed" if result.passed else "VIOLATED: " + result.violations[0].split(":")[0]
    axes.set_title(
        fill(f"{part.name}: {found}", _TITLE_WIDTH)
        + f"\nepsilon >= {lower:.3g} shown, {claimed:.3g} claimed",
        color="black" if result.passed else _VIOLATED,
        fontsize="medium",
    )
    plain(axes)
    axes.legend(frameon=False, fontsize="small")


def _draw_scores(axes: Any, canaries: CanaryScores) -> None:
    absent, present = canaries.scores[~canaries.present], canaries.scores[canaries.present]
    _histogram(axes, [absent, present])
    low, high = canaries.scores.min(), canaries.scores.max()
    x = np.linspace(min(low, -3.5), max(high, canaries.shift + 3.5), 400)
    spread = math.sqrt(1 + canaries.excess_variance)
    for mean, std, color, label in (
        (0.0, 1.0, _ABSENT, "absent, as claimed"),
        (canaries.shift, spread, _PRESENT, "present, as claimed"),
    ):
        axes.plot(x, norm.pdf(x, mean, std), color=color, label=label)
    axes.set_xlabel("score of a canary")
    axes.set_ylabel("density")


def _histogram(axes: Any, values: list[np.ndarray]) -> None:
    bins = np.histogram_bin_edges(np.concatenate(values), _BINS)
    for own, color, label in zip(
        values, (_ABSENT, _PRESENT), ("absent, seen", "present, seen"), strict=True
    ):
        axes.hist(own, bins, density=True, color=color, alpha=0.35, label=label)


def _draw_choices(axes: Any, choices: ChoiceCounts) -> None:
    candidates, n_draws = np.arange(len(choices.law)), choices.counts.sum()
    expected = n_draws * choices.law
    axes.bar(candidates, choices.counts, color=_ABSENT, alpha=0.45, label="seen")
    axes.errorbar(
        candidates,
        expected,
        2 * np.sqrt(expected * (1 - choices.law)),
        fmt=".",
        color="black",
        capsize=2,
        label="as charged, ± 2 standard deviations",
    )
    axes.set_xlabel("candidate")
    axes.set_ylabel(f"times chosen in {n_draws} fits")
