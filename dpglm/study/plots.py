"""Figures of odometers, audits, scores, comparisons and graphs, and what all of them share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from textwrap import fill
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.stats import norm

from dpglm.audit.choices import ChoiceCounts
from dpglm.audit.report import AuditPart, AuditReport
from dpglm.audit.statistics import CanaryScores
from dpglm.estimators.inference import Estimates
from dpglm.exceptions import require
from dpglm.privacy.attacks import attack_power
from dpglm.privacy.ledger import PrivacyLedger, rounded_up
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema.columns import CategoricalColumn, DateColumn, NumericColumn, TextColumn
from dpglm.schema.table import Schema
from dpglm.study.results import GAINS, MAIN_METRICS, SCORES, epsilons_of, grouped, value_text
from dpglm.study.shapes import Term, terms_of
from dpglm.workflow.scores import PrivateScores


def pyplot() -> Any:
    """Return matplotlib's pyplot, or raise an ImportError that names the extra."""
    return require("matplotlib.pyplot", "plot", "Plotting")


def plain(axes: Any) -> None:
    """Leave a faint grid and two of the four spines."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


class Layout(NamedTuple):
    """The title and size of a figure, the shape of its axes, and how many stand side by side."""

    title: str
    size: tuple[float, float]
    shape: tuple[int, ...]
    n_columns: int
    options: Mapping[str, Any] = {}


class Display:
    """A figure: prepared by its ``from_`` method, then drawn by `plot`.

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of matplotlib Axes
        One per panel.
    """

    def plot(self, ax: Any = None) -> Self:
        """Draw the panels.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes, optional
            One per panel, row by row; by default a new figure.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib; ``pip install "dpglm[plot]"``.
        ValueError
            If the number of axes is not that of the panels.
        """
        layout = self._layout()
        n_panels = math.prod(layout.shape)
        panels = np.atleast_1d(np.asarray(_new_axes(layout) if ax is None else ax)).ravel()
        if len(panels) != n_panels:
            raise ValueError(f"ax holds {len(panels)} axes; {n_panels} are needed, one per panel.")
        self.axes_ = panels.reshape(layout.shape)
        self.figure_ = panels[0].figure
        self._draw_panels(own_figure=ax is None)
        for axes in panels:
            plain(axes)
        return self

    def _add_legend(self, own_figure: bool, names: Iterable[str] | None = None) -> None:
        """Add one legend for all panels: below them, or in the last if the figure is not ours."""
        drawn: dict[str, Any] = {}
        for axes in self.axes_.ravel():
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                drawn.setdefault(label, handle)
        handles = {n: drawn[n] for n in (drawn if names is None else names) if n in drawn}
        if not own_figure:
            self.axes_.ravel()[-1].legend(handles.values(), handles.keys())
            return
        # Inches of a column: the line, and the text at 10 points.
        column = 0.65 + 0.08 * max(len(line) for label in handles for line in label.split("\n"))
        n_columns = max(1, int(self.figure_.get_figwidth() / column))
        place = {"loc": "outside lower center", "ncols": n_columns, "frameon": False}
        self.figure_.legend(handles.values(), handles.keys(), **place)


def _new_axes(layout: Layout) -> np.ndarray:
    n_panels = math.prod(layout.shape)
    grid = math.ceil(n_panels / layout.n_columns), layout.n_columns
    options = {"figsize": layout.size, "layout": "constrained", **layout.options}
    figure, axes = pyplot().subplots(*grid, squeeze=False, **options)
    if layout.title:
        figure.suptitle(layout.title)
    for unused in axes.ravel()[n_panels:]:
        unused.remove()
    return axes.ravel()[:n_panels]


@dataclass(eq=False, repr=False)
class OdometerDisplay(Display):
    """Use of a study's limit, fit by fit; make it with `from_odometer`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dpglm import DPLogisticRegression, PrivacyOdometer
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import OdometerDisplay
    >>> path = Path(tempfile.mkdtemp()) / "study.jsonl"
    >>> with PrivacyOdometer(path, epsilon=3.0) as odometer:
    ...     model = DPLogisticRegression(max_iter=5).fit(*make_census(500, random_state=0))
    >>> OdometerDisplay.from_odometer(odometer).plot().axes_[0].get_xlabel()
    'number of fits'
    """

    used: Sequence[float]
    limit: float | None
    delta: float

    @classmethod
    def from_odometer(cls, odometer: PrivacyOdometer) -> Self:
        """Prepare the figure of what is in the file now."""
        return cls([0.0, *odometer.cumulative_epsilon()], odometer.epsilon, odometer.delta)

    def _layout(self) -> Layout:
        return Layout("", (6.4, 3.6), (1,), 1)

    def _draw_panels(self, own_figure: bool) -> None:
        (axes,) = self.axes_
        axes.plot(range(len(self.used)), self.used, marker="o", label="budget used")
        if self.limit is not None:
            axes.axhline(self.limit, color=_VIOLATED, linestyle="--", label="limit")
        axes.set(xlabel="number of fits", ylabel=f"epsilon at delta={self.delta:g}", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)


@dataclass(eq=False, repr=False)
class TradeOffDisplay(Display):
    """How often an attack can be right that a record was there, against how often it is wrong.

    Nothing lies above the line; make it with `from_ledger`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import TradeOffDisplay
    >>> ledger = DPLogisticRegression(epsilon=1.0).plan(n_samples=40_000, n_features=100).ledger
    >>> TradeOffDisplay.from_ledger(ledger).plot().axes_[0].get_ylabel()
    'true positive rate'
    """

    ledger: PrivacyLedger

    @classmethod
    def from_ledger(cls, ledger: PrivacyLedger) -> Self:
        """Prepare the figure of a ledger, ``privacy_`` of a fitted estimator."""
        return cls(ledger)

    def _layout(self) -> Layout:
        ledger = self.ledger
        delta = rounded_up(ledger.reporting_delta)
        title = f"epsilon {rounded_up(ledger.epsilon())} at delta {delta}"
        return Layout(title, (4.8, 4.4), (1,), 1)

    def _draw_panels(self, own_figure: bool) -> None:
        (axes,) = self.axes_
        # Even steps in the normal quantile show both corners.
        rates = norm.cdf(np.linspace(-5.0, 5.0, 201))
        ends = (0.0, *rates, 1.0), (0.0, *attack_power(self.ledger, rates), 1.0)
        axes.plot(*ends, label="who has seen what was released")
        axes.fill_between(*ends, alpha=0.1)
        axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", label="who has seen nothing")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
        axes.legend(loc="lower right", frameon=False)


_ABSENT, _PRESENT, _VIOLATED = "C0", "C1", "C3"


@dataclass(eq=False, repr=False)
class AuditDisplay(Display):
    """Scores of canaries that were there and that were not, one panel for each kind of release.

    Histograms are measured, lines are what the claim predicts. Private choices are bars next to
    the distribution that is charged. Make it with `from_report`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import audit_estimator
    >>> from dpglm.study import AuditDisplay
    >>> report = audit_estimator(DPLogisticRegression(epsilon=5.0, preconditioner=None))
    >>> AuditDisplay.from_report(report).plot().axes_[0].get_xlabel()
    'score of a canary'
    """

    report: AuditReport

    @classmethod
    def from_report(cls, report: AuditReport) -> Self:
        """Prepare the figure of what `audit_estimator` returns."""
        return cls(report)

    def _layout(self) -> Layout:
        report, n_parts = self.report, len(self.report.parts)
        passed = "passes" if report.passed else "VIOLATES ITS CLAIM"
        title = f"{report.name}, epsilon {report.epsilon:g}, delta {report.delta:g}: {passed}"
        return Layout(title, (4.8 * n_parts, 4.4), (n_parts,), n_parts)

    def _draw_panels(self, own_figure: bool) -> None:
        for axes, part in zip(self.axes_, self.report.parts, strict=True):
            _draw_audit(axes, part, self.report.delta)


def _draw_audit(axes: Any, part: AuditPart, delta: float) -> None:
    evidence, result = part.evidence, part.result
    if isinstance(evidence, ChoiceCounts):
        _draw_choices(axes, evidence)
    elif isinstance(evidence, CanaryScores):
        _draw_canaries(axes, evidence)
    else:
        _histogram(axes, evidence.absent, evidence.present)
        axes.set(xlabel="score", ylabel="density")
    lower, claimed = result.bounds(delta)
    found = "passed" if result.passed else "VIOLATED: " + result.violations[0].split(":")[0]
    axes.set_title(
        fill(f"{part.name}: {found}", width=48)
        + f"\nepsilon >= {lower:.3g} shown, {claimed:.3g} claimed",
        color="black" if result.passed else _VIOLATED,
        fontsize="medium",
    )
    axes.legend(frameon=False, fontsize="small")


def _draw_canaries(axes: Any, canaries: CanaryScores) -> None:
    scores, shift = canaries.scores, canaries.shift
    _histogram(axes, scores[~canaries.present], scores[canaries.present])
    x = np.linspace(min(scores.min(), -3.5), max(scores.max(), shift + 3.5), 400)
    axes.plot(x, norm.pdf(x), color=_ABSENT, label="absent, as claimed")
    # A canary that is there is shifted; where its own size varies, the spread is larger as well.
    claimed = norm.pdf(x, shift, math.sqrt(1 + canaries.excess_variance))
    axes.plot(x, claimed, color=_PRESENT, label="present, as claimed")
    axes.set(xlabel="score of a canary", ylabel="density")


def _histogram(axes: Any, absent: np.ndarray, present: np.ndarray) -> None:
    bins = np.histogram_bin_edges(np.concatenate([absent, present]), bins=40)
    style = {"density": True, "alpha": 0.35}
    axes.hist(absent, bins, color=_ABSENT, label="absent, seen", **style)
    axes.hist(present, bins, color=_PRESENT, label="present, seen", **style)


def _draw_choices(axes: Any, choices: ChoiceCounts) -> None:
    candidates, n_draws = np.arange(len(choices.law)), choices.counts.sum()
    expected = n_draws * choices.law
    axes.bar(candidates, choices.counts, color=_ABSENT, alpha=0.45, label="seen")
    spread = 2 * np.sqrt(expected * (1 - choices.law))
    label = "as charged, ± 2 standard deviations"
    axes.errorbar(candidates, expected, spread, fmt=".", color="black", capsize=2, label=label)
    axes.set(xlabel="candidate", ylabel=f"times chosen in {n_draws} fits")


_BAND = {"alpha": 0.25, "linewidth": 0.0}
_PANELS = ("roc_curve", "calibration_curve", "confusion_matrix")


@dataclass(eq=False, repr=False)
class ScoresDisplay(Display):
    """The ROC curve, the calibration curve and the confusion matrix of private scores.

    Bands and bars are 95 percent intervals for the population, noise included; in the matrix, what
    noise alone can do to these counts. Everything shown was released with noise; the figure costs
    no privacy. Make it with `from_scores`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import ScoresDisplay
    >>> from dpglm.workflow import private_scores
    >>> X, y = make_census(4000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X[:2000], y[:2000])
    >>> scores = private_scores(model, X[2000:], y[2000:], epsilon=1.0)
    >>> [ax.get_xlabel() for ax in ScoresDisplay.from_scores(scores).plot().axes_]
    ['false positive rate', 'predicted probability', 'predicted']
    """

    scores: PrivateScores
    panels: Sequence[str]

    @classmethod
    def from_scores(cls, scores: PrivateScores, *, panels: Iterable[str] | None = None) -> Self:
        """Prepare the figure of what `private_scores` returns.

        Parameters
        ----------
        scores : PrivateScores
        panels : iterable of {"roc_curve", "calibration_curve", "confusion_matrix"}, optional
            By default those that were released.
        """
        released = [name for name in _PANELS if getattr(scores, name) is not None]
        chosen = released if panels is None else list(panels)
        if not chosen or not set(chosen) <= set(released):
            raise ValueError(f"panels={chosen!r} must be some of those released, {released}.")
        return cls(scores, chosen)

    def _layout(self) -> Layout:
        n, ledger = len(self.panels), self.scores.privacy_
        delta = f", delta {ledger.reporting_delta:g}" if ledger.protects else ""
        title = f"epsilon {ledger.epsilon():.4g}{delta}, {self.scores.n_records:,} records"
        return Layout(title, (max(5.2, 4.4 * n), 4.6), (n,), n)

    def _draw_panels(self, own_figure: bool) -> None:
        draw = dict(zip(_PANELS, (_draw_roc, _draw_calibration, _draw_confusion), strict=True))
        for axes, name in zip(self.axes_, self.panels, strict=True):
            draw[name](axes, self.scores)


def _draw_roc(axes: Any, scores: PrivateScores) -> None:
    """Draw the rates; the band joins the corners of the intervals of both."""
    false, true = scores.roc_curve.false_positive_rate, scores.roc_curve.true_positive_rate
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":")
    auc = scores.auc
    text = "AUC {:.3f} ({:.3f} to {:.3f})"
    label = "ROC" if auc is None else text.format(auc.value, *auc.interval)
    axes.plot([1, *false.value, 0], [1, *true.value, 0], color="C0", label=label)
    lower = np.transpose([false.interval[1], true.interval[0]])
    upper = np.transpose([false.interval[0], true.interval[1]])
    axes.fill(*np.concatenate([lower, upper[::-1]]).T, color="C0", label="95 % intervals", **_BAND)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="lower right", frameon=False)


def _draw_calibration(axes: Any, scores: PrivateScores) -> None:
    curve = scores.calibration_curve
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":")
    value, (low, high) = curve.observed.value, curve.observed.interval
    bars = np.maximum([value - low, high - value], 0.0)
    label = "groups of records, 95 % intervals"
    axes.errorbar(curve.predicted, value, bars, fmt="o-", label=label, **_ERROR_BARS)
    axes.set(xlabel="predicted probability", ylabel="share of positives", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)


def _draw_confusion(axes: Any, scores: PrivateScores) -> None:
    """Draw the counts on the colour of their share of the label."""
    matrix, names = scores.confusion_matrix, [str(label) for label in scores.classes]
    counts = matrix.value
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, zorder=2)
    half = (matrix.noise_interval[1] - matrix.noise_interval[0]) / 2
    for (i, j), count in np.ndenumerate(counts):
        text = f"{count:,.0f}\n± {half[i, j]:,.0f}"
        color = "white" if shares[i, j] > 0.5 else "black"
        axes.text(j, i, text, ha="center", va="center", color=color, zorder=3)
    places = range(len(names))
    axes.set_title("± 95 % of the noise", fontsize="medium")
    axes.set(xlabel="predicted", ylabel="label", xticks=places, yticks=places)
    axes.set(xticklabels=names, yticklabels=names)


_MARKERS = "osD^vP*X"
_DASHES = ("--", ":", "-.")
_LATER_LOSS = (0, (5, 1.5))
_ERROR_BARS = {"linewidth": 1.5, "markersize": 5, "capsize": 3}
# How many times as far from the best as the median an axis reaches.
_REACH = 6.0


@dataclass(eq=False, repr=False)
class ComparisonDisplay(Display):
    """Scores of estimators against epsilon, one panel per metric, with error bars.

    Estimators without privacy are horizontal lines. If two kinds of loss are compared, the
    second has dashed lines, in the colors of the first. Scores far worse than the others may lie
    outside the view. Make it with `from_results`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import ComparisonDisplay, compare
    >>> from dpglm.datasets import make_census
    >>> census = {"census": make_census(1000, random_state=0)}
    >>> results = compare(census, {"logistic": DPLogisticRegression()}, epsilons=[0.5, 1.0])
    >>> [ax.get_ylabel() for ax in ComparisonDisplay.from_results(results).plot().axes_]
    ['accuracy, test fold', 'AUC, test fold', 'logistic loss, training fold']
    """

    title: str
    panels: list[tuple[str, str, list[Mapping[str, Any]]]]

    @classmethod
    def from_results(
        cls, results: Any, *, dataset: str | None = None, metrics: Iterable[str] = MAIN_METRICS
    ) -> Self:
        """Prepare the figure of one dataset.

        Parameters
        ----------
        results : ComparisonResults
        dataset : str, optional
            Needed if there are several.
        metrics : iterable of {"accuracy", "auc", "training_loss", "test_loss", "fit_seconds"}
        """
        if dataset is None and len(results.datasets) == 1:
            (dataset,) = results.datasets
        if dataset not in results.datasets:
            raise ValueError(f"dataset={dataset!r} must be one of {results.datasets}.")
        return cls(results.headline(dataset), results.panels(dataset, metrics))

    def _layout(self) -> Layout:
        n = len(self.panels)
        n_columns = n if n <= 3 else math.ceil(n / 2)
        size = 4.2 * n_columns, 3.4 * math.ceil(n / n_columns) + 0.8
        return Layout(self.title, size, (n,), n_columns)

    def _draw_panels(self, own_figure: bool) -> None:
        styles = self._styles()
        for axes, (title, metric, rows) in zip(self.axes_, self.panels, strict=True):
            _draw_scores(axes, title, metric, rows, styles)
        self._add_legend(own_figure, styles)

    def _styles(self) -> dict[str, dict[str, Any]]:
        """Return the look of each estimator, the same in every panel."""
        rows = [row for *_, panel in self.panels for row in panel]
        private = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is not None)
        others = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is None)
        loss_of = {row["estimator"]: row["loss"] for row in rows}
        losses = list(dict.fromkeys(loss_of[name] for name in private))
        styles: dict[str, dict[str, Any]] = {}
        for name in private:
            # Colours and markers start anew with each kind of loss; the second is dashed.
            kind = losses.index(loss_of[name])
            i = sum(loss_of[other] == loss_of[name] for other in styles)
            styles[name] = {"color": f"C{i % 10}", "marker": _MARKERS[i % len(_MARKERS)]}
            if kind > 0:
                styles[name] |= {"linestyle": _LATER_LOSS, "fillstyle": "none"}
        for i, name in enumerate(others):
            styles[name] = {"color": "0.5", "linestyle": _DASHES[i % len(_DASHES)]}
        return styles


def _draw_scores(axes: Any, title: str, metric: str, rows: list, styles: Mapping) -> None:
    rows = [row for row in rows if row[metric] is not None and row["epsilon"] != math.inf]
    for row in rows:
        # An AUC of one half ranks nothing and would only stretch the axis.
        if row["epsilon"] is None and (metric, row[metric]) != ("auc", 0.5):
            name = row["estimator"]
            axes.axhline(row[metric], label=name, linewidth=1.2, **styles[name])
    groups = grouped([row for row in rows if row["epsilon"] is not None], "estimator")
    for position, (name, group) in enumerate(groups.items()):
        own = sorted(group, key=itemgetter("epsilon"))
        # Side by side, so that error bars do not overlap.
        shift = 1.02 ** (position - (len(groups) - 1) / 2)
        x, y = [row["epsilon"] * shift for row in own], [row[metric] for row in own]
        errors = [row[f"{metric}_se"] or 0.0 for row in own]
        axes.errorbar(x, y, yerr=errors, label=name, **_ERROR_BARS, **styles[name])
    _limit(axes, [row[metric] for row in rows], metric)
    epsilons = epsilons_of(rows)
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set(xlabel="epsilon", ylabel=title)


def _limit(axes: Any, scores: list[float], metric: str) -> None:
    """End the axis where what is far worse than the others begins."""
    # From here on larger is better.
    sign = 1 if metric in GAINS else -1
    values = sign * np.array(scores)
    if not len(values):
        return
    best = values.max()
    reach = _REACH * np.median(best - values)
    if best - values.min() > reach > 0:
        axes.set_ylim(*sorted((sign * (best - reach), sign * (best + 0.15 * reach))))


_DOT = {"color": "0.8", "markersize": 4, "label": "a setting"}
_STAR = {"color": "#c1440e", "markeredgecolor": "white", "markersize": 15, "zorder": 5}


@dataclass(eq=False, repr=False)
class UtilityGraphDisplay(Display):
    """Scores of simulated settings: one column per parameter, one row per score.

    Grey dots are the settings. A line joins the best ones for each value of the parameter, all
    others being chosen freely; the star is the recommended setting. Bars are standard errors of
    the difference from it. An axis ends at the median setting, or the worst line's best one, so
    that bad settings do not flatten the good. Make it with `from_results`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import UtilityGraph, UtilityGraphDisplay
    >>> grid = {"max_iter": [10, 40], "step_schedule": [0.5, 2.0]}
    >>> graph = UtilityGraph(DPLogisticRegression(), grid, n_samples=1000, n_repeats=2)
    >>> results = graph.run(*make_census(500, random_state=0))
    >>> UtilityGraphDisplay.from_results(results).plot().axes_.shape
    (2, 2)
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    parameters: Sequence[str]
    metrics: Sequence[str]
    by: str | None = None

    @classmethod
    def from_results(
        cls,
        results: Any,
        *,
        parameters: Iterable[str] | None = None,
        metrics: Iterable[str] = ("accuracy", "loss"),
        by: str | None = None,
    ) -> Self:
        """Prepare the figure of a utility graph.

        Parameters
        ----------
        results : UtilityGraphResults
        parameters : iterable of str, optional
            By default all that are not the same in every setting.
        metrics : iterable of {"accuracy", "auc", "loss"}
        by : str, optional
            Draw a line for each value of this parameter instead of a column.
        """
        known = sorted({name for cell in results.cells for name in cell.params})
        if parameters is None:
            parameters = [name for name in results.varied() if name != by]
        metrics, parameters = list(metrics), list(parameters)
        if by is not None and by not in known:
            raise ValueError(f"by={by!r} must be among {known}.")
        if not set(parameters) <= set(known):
            raise ValueError(f"parameters={parameters!r} must be among {known}.")
        if not set(metrics) <= set(SCORES):
            raise ValueError(f"metrics={metrics!r} must be among {list(SCORES)}.")
        if not parameters or not metrics:
            raise ValueError("there is nothing to draw: name a parameter and a score at least.")
        return cls(results.headline(), results.rows(), parameters, metrics, by)

    def _layout(self) -> Layout:
        n_rows, n_columns = shape = len(self.metrics), len(self.parameters)
        title = f"{self.title}\nbars: standard error of the difference from the recommended setting"
        size = max(6.5, 3.0 * n_columns), 2.9 * n_rows + 0.9
        return Layout(title, size, shape, n_columns, {"sharex": "col", "sharey": "row"})

    def _draw_panels(self, own_figure: bool) -> None:
        for line, metric in zip(self.axes_, self.metrics, strict=True):
            for axes, parameter in zip(line, self.parameters, strict=True):
                self._draw(axes, parameter, metric)
                axes.set_ylim(*self._limits(metric))
            line[0].set_ylabel(f"{SCORES[metric]}, held-out public rows")
        for axes, parameter in zip(self.axes_[-1], self.parameters, strict=True):
            axes.set_xlabel(parameter)
        self._add_legend(own_figure)

    def _draw(self, axes: Any, parameter: str, metric: str) -> None:
        key = f"param_{parameter}"
        texts = [_text(value) for value in _in_order(row[key] for row in self.rows)]
        lines, better = self._lines(), max if metric in GAINS else min
        for number, (line, rows) in enumerate(lines.items()):
            # Side by side, so that neither error bars nor dots cover others.
            shift = 0.12 * (number - (len(lines) - 1) / 2)
            best = {}
            for x, text in enumerate(texts):
                here = [row for row in rows if _text(row[key]) == text]
                if here:
                    spread = np.linspace(-0.16, 0.16, len(here)) if len(here) > 1 else 0.0
                    axes.plot(x + shift + spread, [row[metric] for row in here], ".", **_DOT)
                    best[x + shift] = better(here, key=itemgetter(metric))
            axes.errorbar(
                list(best),
                [row[metric] for row in best.values()],
                yerr=[row[f"{metric}_gap_se"] or 0.0 for row in best.values()],
                color=f"C{number % 10}",
                marker="os^Dv"[number % 5],
                **_ERROR_BARS,
                label="the best" if line is None else f"the best with {self.by} = {line}",
            )
            for row in filter(itemgetter("recommended"), rows):
                x = texts.index(_text(row[key])) + shift
                axes.plot(x, row[metric], "*", label="recommended", **_STAR)
        axes.set_xticks(range(len(texts)), texts)
        axes.set_xlim(-0.5, len(texts) - 0.5)

    def _lines(self) -> dict[str | None, list[Mapping[str, Any]]]:
        """Return the settings that were measured, under each value that has a line of its own."""
        lines: dict[str | None, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            own = lines.setdefault(self.by and _text(row[f"param_{self.by}"]), [])
            if row["error"] is None:
                own.append(row)
        return lines

    def _limits(self, metric: str) -> tuple[float, float]:
        # From here on smaller is better. The view ends at the worse of two scores: the median
        # setting's, and the best one of the worst line.
        sign = 1 if metric == "loss" else -1
        lines = [[sign * row[metric] for row in rows] for rows in self._lines().values() if rows]
        scores = np.concatenate(lines)
        best = scores.min()
        reach = max(np.median(scores), *map(min, lines), best + 1e-3) - best
        limits = best - 0.15 * reach, best + 1.08 * reach
        return min(sign * x for x in limits), max(sign * x for x in limits)


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Return distinct values: names and objects as they come, then numbers as they rise."""
    distinct = list({_text(value): value for value in values}.values())
    numbers = [v for v in distinct if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [v for v in distinct if v not in numbers] + sorted(numbers)


def _text(value: Any) -> str:
    """Return the label of a value; the arguments of an object stand below its name."""
    return value_text(value).replace("(", "\n(", 1)


# Most categories to draw (those that add least and most), and most shapes.
_MOST_BARS, _MOST_SHAPES = 16, 60
_MISSING = {"color": "C1", "linestyle": "--", "label": "a missing value"}


@dataclass(eq=False, repr=False)
class CoefficientDisplay(Display):
    """Estimates with their intervals, one line each; make it with `from_estimates`.

    The thick part of a bar is the interval from the draw of the records alone. Suppressed
    estimates are left out, and counted below.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> from dpglm.study import CoefficientDisplay
    >>> model = DPLogisticRegression(epsilon=8.0, inference_fraction=0.5, classes=[0, 1])
    >>> found = model.fit(*make_census(20_000, random_state=0)).inference()
    >>> display = CoefficientDisplay.from_estimates(found.t_test([{"x1": 1.0}, {"x4": 1.0}]))
    >>> display.plot().axes_[0].get_title()
    '95 % intervals'
    """

    estimates: Estimates

    @classmethod
    def from_estimates(cls, estimates: Estimates) -> Self:
        """Prepare the figure of what ``estimates``, `t_test` and others of an inference return."""
        return cls(estimates)

    def _layout(self) -> Layout:
        n = sum(not refused for refused in self.estimates.suppression_reasons)
        return Layout("", (6.8, 1.4 + 0.24 * n), (1,), 1)

    def _draw_panels(self, own_figure: bool) -> None:
        (axes,), found = self.axes_, self.estimates
        given = np.flatnonzero([not refused for refused in found.suppression_reasons])
        at, value = np.arange(len(given)), found.value[given]
        quantile = norm.isf((1 - found.level) / 2)
        for error, width, label in (
            (found.std_error, 1.5, "with the noise"),
            (found.sampling_error, 4.0, "without it"),
        ):
            half = quantile * error[given]
            axes.hlines(at, value - half, value + half, "C0", linewidth=width, label=label)
        axes.plot(value, at, "o", color="C3", markersize=4)
        axes.axvline(0.0, color="0.6", linewidth=1)
        axes.set_yticks(at, [found.names[k] for k in given])
        n_hidden = len(found.names) - len(given)
        hidden = f"{n_hidden} suppressed" if n_hidden else ""
        axes.set(title=f"{100 * found.level:g} % intervals", xlabel=hidden)
        axes.set_ylim(len(given) + 0.8, -1.0)  # a line more, for the legend
        axes.legend(frameon=False, loc="lower right", ncols=2)


@dataclass(eq=False, repr=False)
class ShapeDisplay(Display):
    """Contribution of each column of a table to the score of a class, in the table's units.

    Numbers and dates are piecewise linear between their bounds. Special values, booleans and
    ordinals are points, and categories bars (of many, those that add least and most). Free text
    shows what single words add, in rising order. All have one axis, and are sorted by the standard
    deviation over the values that the schema allows. Over these each is zero on average, whatever
    the rows hold. All listed categories count alike, or all values between the bounds on the scale
    of the column. So the figure costs no privacy: it needs released coefficients and the
    schema alone. The effect of the noise is drawn as well. Make it with `from_estimator`;
    `explain_local` returns the same terms for rows.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> from dpglm.study import ShapeDisplay
    >>> model = DPLogisticRegression().fit(*make_census(2000, random_state=0))
    >>> schema = load_schema("census").additive(1)  # straight lines, as in that table
    >>> display = ShapeDisplay.from_estimator(model, schema, columns=["age"])
    >>> [ax.get_title() for ax in display.plot().axes_]
    ['age']
    """

    score: str
    terms: Sequence[Term]
    n_left_out: int = 0

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        schema: Schema | None = None,
        *,
        columns: Iterable[str] | None = None,
        class_: Any = None,
    ) -> Self:
        """Prepare the figure of a fitted linear model.

        Parameters
        ----------
        estimator : Pipeline or linear classifier
            ``make_pipeline(schema.transformer(), model)``, fitted, or the model alone.
        schema : Schema, optional
            Needed for a model alone.
        columns : iterable of str, optional
            Columns to draw; by default all, or the 60 with the largest spread.
        class_ : label, optional
            Class of the score; needed for more than two. With two, by default the second.
        """
        score, _, terms = terms_of(estimator, schema, class_)
        known = [term.column.name for term in terms]
        chosen = known if columns is None else list(columns)
        if not chosen or not set(chosen) <= set(known):
            raise ValueError(f"columns={chosen!r} must be some of {known}.")
        drawn = [term for term in terms if term.column.name in chosen]
        drawn = sorted(drawn, key=lambda term: -term.spread)
        kept = drawn[:_MOST_SHAPES] if columns is None else drawn
        return cls(score, kept, len(drawn) - len(kept))

    def _layout(self) -> Layout:
        n = len(self.terms)
        n_columns = min(n, 3)
        size = max(6.8, 4.2 * n_columns), 3.0 * math.ceil(n / n_columns) + 0.8
        title = (
            f"what each column adds to the score of {self.score}\n"
            "zero: the mean over all that the schema allows; order: the spread over it"
            + f"; {self.n_left_out} more columns"
            * bool(self.n_left_out)
        )
        return Layout(title, size, (n,), n_columns, {"sharey": True})

    def _draw_panels(self, own_figure: bool) -> None:
        for axes, term in zip(self.axes_, self.terms, strict=True):
            axes.axhline(0.0, color="0.6", linewidth=1)
            axes.set_title(term.column.name)
            draw = _draw_bars if isinstance(term.column, CategoricalColumn) else _draw_line
            draw(axes, term)
        limits = np.array([axes.get_ylim() for axes in self.axes_])
        for axes in self.axes_:
            axes.set_ylim(limits[:, 0].min(), limits[:, 1].max())
        for axes in self.axes_[:: self._layout().n_columns]:
            axes.set_ylabel("added to the score")
        if any(axes.get_legend_handles_labels()[1] for axes in self.axes_):
            self._add_legend(own_figure)


def _draw_line(axes: Any, term: Term) -> None:
    column, x, added, style = term.column, term.public, term.of(term.public), {}
    if isinstance(column, TextColumn):
        x, added, style = np.arange(len(added)), np.sort(added), {"marker": "."}
        axes.set(xlabel=f"single words, in {column.n_features} buckets, of either sign", xticks=[])
    elif isinstance(column, DateColumn):
        # Seconds, as a position between bounds may be within a day.
        x = (86_400 * x).astype("datetime64[s]")
    elif isinstance(column, NumericColumn):
        _mark_numbers(axes, column)
    else:
        style = {"marker": "o", "linestyle": ":"}
        _name_ticks(axes, [str(value) for value in column.categories])
    special = np.zeros(len(added), dtype=bool)
    if isinstance(column, NumericColumn | DateColumn):
        special = np.isin(term.public, column.special_numbers)
    # The term of a special value has nothing to do with those of its neighbours.
    axes.plot(x[~special], added[~special], **style)
    axes.plot(x[special], added[special], "o", color="C0")
    if isinstance(column, DateColumn):
        dates = require("matplotlib.dates", "plot", "Plotting")
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
    for value in term.exceptions.values():
        axes.axhline(value, **_MISSING)


def _mark_numbers(axes: Any, column: NumericColumn) -> None:
    ticker = require("matplotlib.ticker", "plot", "Plotting")
    if column.scale == "asinh":
        # Ticks of one digit at about equal distances; matplotlib's own overlap near zero.
        ticks = {float(f"{value:.1g}") for value in column.values_at(np.linspace(0.0, 1.0, 6))}
        axes.set_xscale("asinh", linear_width=column.linear_width)
        axes.set_xticks(sorted(ticks))
        axes.minorticks_off()
    large = ticker.EngFormatter(sep="")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if abs(x) < 10_000 else large(x))


def _draw_bars(axes: Any, term: Term) -> None:
    names, added = [*map(str, term.column.categories)], term.of(term.public)
    if len(names) > _MOST_BARS:
        order, half = np.argsort(added), _MOST_BARS // 2
        chosen = np.sort(np.concatenate([order[:half], order[-half:]]))
        axes.set_xlabel(f"{_MOST_BARS} of {len(names)}: those that add least and most")
        names, added = [names[k] for k in chosen], added[chosen]
    others = term.exceptions
    colors = ["C0"] * len(names) + ["C1"] * len(others)
    names += [f"({name})" for name in others]
    axes.bar(range(len(names)), [*added, *others.values()], color=colors, zorder=2)
    _name_ticks(axes, names)


def _name_ticks(axes: Any, names: Sequence[str]) -> None:
    """Label the ticks 0, 1, ..., upright if the names would not fit side by side."""
    short = [n if len(n) <= 18 else f"{n[:10]}…{n[-7:]}" for n in names]
    is_upright = sum(map(len, short)) + 2 * len(short) > 36
    axes.set_xticks(range(len(short)), short, rotation=90 if is_upright else 0)
    axes.set_xlim(-0.6, len(short) - 0.4)
