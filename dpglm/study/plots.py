"""Figures of what studies return, by `plot`; and the frame that all of them share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from operator import itemgetter
from textwrap import fill
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from sklearn.metrics import ConfusionMatrixDisplay

from dpglm.checks import check_choice
from dpglm.estimators.inference import Estimates, InferenceResults
from dpglm.exceptions import require
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.study.comparison import (
    GAINS,
    MAIN_METRICS,
    ComparisonResults,
    Row,
    epsilons_of,
    grouped,
    value_text,
)
from dpglm.study.utility import UtilityGraphResults
from dpglm.workflow.scores import PrivateScores, counts_with_noise

_MOST_ABREAST = 3
_GUIDE = {"color": "0.6", "linewidth": 1}
_ERROR_BARS = {"linewidth": 1.5, "markersize": 5, "capsize": 3}


def pyplot() -> Any:
    """Return matplotlib's pyplot, or raise an ImportError that names the extra."""
    return require("matplotlib.pyplot", "plot", "Plotting")


@dataclass(eq=False, repr=False)
class Display:
    """A figure that is prepared; `plot` draws its panels, and sets ``figure_`` and ``axes_``."""

    title: str
    size: tuple[float, float]  # inches of a panel
    panels: Sequence[Callable[[Any], None]]
    legend: Sequence[str] = ()

    def plot(self, ax: Any = None) -> Self:
        """Draw the panels.

        They go to one Axes each, row by row, or to those of a new figure.
        """
        wanted, own_figure = len(self.panels), ax is None
        if own_figure:
            n_columns = min(wanted, _MOST_ABREAST)
            n_rows = math.ceil(wanted / n_columns)
            size = max(6.8, self.size[0] * n_columns), self.size[1] * n_rows + 0.8
            figure = pyplot().figure(figsize=size, layout="constrained")
            figure.suptitle(self.title)
            ax = [figure.add_subplot(n_rows, n_columns, k + 1) for k in range(wanted)]
        self.axes_ = np.atleast_1d(np.asarray(ax)).ravel()
        if (n := len(self.axes_)) != wanted:
            raise ValueError(f"ax holds {n} axes; {wanted} are needed, one per panel.")
        self.figure_ = self.axes_[0].figure
        with pyplot().rc_context({"legend.frameon": False, "date.converter": "concise"}):
            for axes, draw in zip(self.axes_, self.panels, strict=True):
                draw(axes)
                axes.grid(alpha=0.25)
                axes.spines[["top", "right"]].set_visible(False)
            self._add_legend(own_figure)
        return self

    def _add_legend(self, own_figure: bool) -> None:
        """Add one legend for all panels: below them, or in the last if the figure is not ours."""
        drawn: dict[str, Any] = {}
        for axes in self.axes_:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                drawn.setdefault(label, handle)
        labels = [label for label in self.legend if label in drawn]
        handles = [drawn[label] for label in labels]
        if labels and not own_figure:
            self.axes_[-1].legend(handles, labels)
        elif labels:
            n_columns = int(self.figure_.get_figwidth() / 3)  # of three inches
            self.figure_.legend(handles, labels, loc="outside lower center", ncols=n_columns)


def plot(found: Any, ax: Any = None, **options: Any) -> Display:
    """Draw an odometer, scores, intervals, a comparison or a utility graph.

    Parameters
    ----------
    found : object
        One of those in the table below.
    ax : matplotlib Axes or array of Axes, optional
        One per panel, row by row; by default a new figure.
    **options
        The options of the table below.

    Returns
    -------
    Display
        With the attributes ``figure_`` and ``axes_``, an array with one matplotlib Axes per panel.

    Raises
    ------
    ImportError
        Without matplotlib; ``pip install "dpglm[plot]"``.
    TypeError, ValueError
        If there is no figure of such an object, or an option or the number of axes is wrong.

    Notes
    -----
    Figures cost no privacy.

    =====================  =====================================================================
    `PrivacyOdometer`      Use of a study's limit, by charges.
    ``PrivateScores``      Curves and confusion matrix, with intervals of 95 percent; in the matrix,
                           those of the noise alone.
    ``inference()``        Intervals; the thick part is due to the draw of the records alone.
    ``ComparisonResults``  Scores against epsilon; horizontal lines are without privacy. Options:
                           ``dataset``, needed if there are several; ``metrics``.
    ``UtilityGraph.run``   Accuracy of the best setting for each value of a parameter. Option:
                           ``by``, a parameter with a line for each value instead of a panel.
    =====================  =====================================================================

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, make_census, private_scores
    >>> from dpglm.study import plot
    >>> X, y = make_census(1000, random_state=0)
    >>> model = DPLogisticRegression(classes=[0, 1]).fit(X, y)
    >>> scores = private_scores(model, X, y, epsilon=1.0, scores=["confusion_matrix"])
    >>> plot(scores).axes_[0].get_xlabel()
    'Predicted label'
    """
    return display_of(found, **options).plot(ax)


@singledispatch
def display_of(found: Any, **options: Any) -> Display:
    """Return the figure of an object, prepared; `plot` names the objects and the options."""
    raise TypeError(f"found={found!r:.80} has no figure; see dpglm.study.plot for what has one.")


@display_of.register
def _odometer(odometer: PrivacyOdometer) -> Display:
    used = [0.0, *odometer.cumulative_epsilon()]

    def draw(axes: Any) -> None:
        axes.plot(range(len(used)), used, marker="o", label="budget used")
        if odometer.epsilon is not None:
            axes.axhline(odometer.epsilon, color="C3", linestyle="--", label="limit")
        label = f"epsilon at delta={odometer.delta:g}"
        axes.set(xlabel="number of charges", ylabel=label, ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()

    return Display("", (6.4, 3.0), [draw])


@display_of.register
def _estimates(found: Estimates) -> Display:
    refused = np.array([bool(reason) for reason in found.suppression_reasons])
    drawn = np.flatnonzero(~refused & (np.array(found.names) != "const"))
    quantile = ndtri((1 + found.level) / 2)

    def draw(axes: Any) -> None:
        at, value = np.arange(len(drawn)), found.value[drawn]
        for error, width, label in (
            (found.std_error, 1.5, "with the noise"),
            (found.sampling_error, 4.0, "without it"),
        ):
            half = quantile * error[drawn]
            axes.hlines(at, value - half, value + half, "C0", linewidth=width, label=label)
        axes.plot(value, at, "o", color="C3", markersize=4)
        axes.axvline(0.0, **_GUIDE)
        axes.set_yticks(at, [found.names[k] for k in drawn])
        left = f"; {refused.sum()} suppressed" if refused.any() else ""
        axes.set_xlabel(fill(f"{found.unit}{left}", width=60))
        axes.set_title(f"{100 * found.level:g} % intervals")
        axes.set_ylim(len(drawn) + 0.8, -1.0)  # a line more, for the legend
        axes.legend(loc="lower right", ncols=2)
        # Intervals that are mostly noise may leave the view.
        clear = drawn[[found.marks[k] != "noise" for k in drawn]]
        ends = [0.0, *value, *found.low[clear], *found.high[clear]]
        margin = 0.05 * np.ptp(ends) or 0.05
        axes.set_xlim(min(ends) - margin, max(ends) + margin)

    return Display("", (6.8, 0.8 + 0.24 * len(drawn)), [draw])


@display_of.register
def _inference(results: InferenceResults) -> Display:
    return display_of(results.standardized())


@display_of.register
def _scores(scores: PrivateScores) -> Display:
    drawn = {
        _draw_roc: scores.roc_curve,
        _draw_calibration: scores.calibration_curve,
        _draw_confusion: scores.confusion_matrix,
    }
    panels = [partial(draw, scores=scores) for draw, part in drawn.items() if part is not None]
    if not panels:
        raise ValueError("scores has no curves and no matrix to draw; release some of them.")
    ledger = scores.privacy_
    delta = f", delta {ledger.reporting_delta:g}" if ledger.protects else ""
    title = f"epsilon {ledger.epsilon():.4g}{delta}, {scores.n_records:,} records"
    return Display(title, (4.4, 3.8), panels)


def _draw_roc(axes: Any, scores: PrivateScores) -> None:
    """Draw the rates; the band joins the corners of the intervals of both."""
    false, true = scores.roc_curve.false_positive_rate, scores.roc_curve.true_positive_rate
    axes.plot([0, 1], [0, 1], linestyle=":", **_GUIDE)
    auc = scores.auc
    text = "AUC {:.3f} ({:.3f} to {:.3f})"
    label = "ROC" if auc is None else text.format(auc.value, *auc.interval)
    axes.plot([1, *false.value, 0], [1, *true.value, 0], color="C0", label=label)
    lower = np.transpose([false.interval[1], true.interval[0]])
    upper = np.transpose([false.interval[0], true.interval[1]])
    corners = np.concatenate([lower, upper[::-1]]).T
    axes.fill(*corners, color="C0", alpha=0.25, linewidth=0, label="95 % intervals")
    rates = [f"{kind} positive rate (positive: {scores.pos_label})" for kind in ("false", "true")]
    axes.set(xlabel=rates[0], ylabel=rates[1], xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="lower right")


def _draw_calibration(axes: Any, scores: PrivateScores) -> None:
    curve = scores.calibration_curve
    axes.plot([0, 1], [0, 1], linestyle=":", **_GUIDE)
    value, (low, high) = curve.observed.value, curve.observed.interval
    bars = np.maximum([value - low, high - value], 0.0)
    label = "groups of records, 95 % intervals"
    axes.errorbar(curve.predicted, value, bars, fmt="o-", label=label, **_ERROR_BARS)
    labels = f"predicted probability of {scores.pos_label}", f"share of {scores.pos_label}"
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")


def _draw_confusion(axes: Any, scores: PrivateScores) -> None:
    """Draw the counts on the colour of their share of the label."""
    matrix = scores.confusion_matrix
    shares = matrix.value / np.maximum(matrix.value.sum(axis=1, keepdims=True), 1.0)
    drawn = ConfusionMatrixDisplay(shares, display_labels=scores.classes)
    above_grid = {"vmin": 0.0, "vmax": 1.0, "zorder": 2}
    drawn.plot(ax=axes, cmap="Blues", colorbar=False, im_kw=above_grid)
    for cell, text in zip(drawn.text_.ravel(), np.ravel(counts_with_noise(matrix)), strict=True):
        cell.set_text(text.replace(" ", "\n", 1))
    axes.set_title("with 95 % of the noise", fontsize="medium")


_MARKERS = "osD^vP*X"
_DASHES = ("--", ":", "-.")


@display_of.register
def _comparison(
    results: ComparisonResults, *, dataset: str | None = None, metrics: Iterable[str] = MAIN_METRICS
) -> Display:
    if dataset is None and len(results.datasets) == 1:
        (dataset,) = results.datasets
    if dataset not in results.datasets:
        raise ValueError(f"dataset={dataset!r} must be one of {results.datasets}.")
    found = results.panels(dataset, metrics)
    # The look of each estimator, the same in every panel; those without privacy come last.
    rows = results.rows(dataset)
    private = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is not None)
    others = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is None)
    styles: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(private):
        styles[name] = {"color": f"C{i % 10}", "marker": _MARKERS[i % len(_MARKERS)]}
    for i, name in enumerate(others):
        styles[name] = {"color": "0.5", "linestyle": _DASHES[i % len(_DASHES)]}
    panels = [
        partial(_draw_scores, title=title, metric=metric, rows=rows, styles=styles)
        for title, metric, rows in found
    ]
    return Display(results.headline(dataset), (4.2, 3.4), panels, list(styles))


def _draw_scores(
    axes: Any, title: str, metric: str, rows: Sequence[Row], styles: Mapping[str, Mapping]
) -> None:
    rows = [row for row in rows if row[metric] is not None and row["epsilon"] != math.inf]
    for row in rows:
        # An AUC of one half ranks nothing and would only stretch the axis.
        if row["epsilon"] is None and (metric, row[metric]) != ("auc", 0.5):
            name = row["estimator"]
            axes.axhline(row[metric], label=name, linewidth=1.2, **styles[name])
    groups = grouped([row for row in rows if row["epsilon"] is not None], "estimator")
    for name, group in groups.items():
        own = sorted(group, key=itemgetter("epsilon"))
        x, y = [row["epsilon"] for row in own], [row[metric] for row in own]
        errors = [row[f"{metric}_se"] or 0.0 for row in own]
        axes.errorbar(x, y, yerr=errors, label=name, **_ERROR_BARS, **styles[name])
    _end_view(axes, [row[metric] for row in rows], metric, reach=6.0)
    epsilons = epsilons_of(rows)
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set(xlabel="epsilon", ylabel=title)


def _end_view(axes: Any, scores: Sequence[float], metric: str, reach: float) -> None:
    """Leave out what is so many times as far from the best score as the median."""
    sign = 1 if metric in GAINS else -1
    signed = sign * np.array(scores)
    best = signed.max(initial=-math.inf)
    length = reach * np.median(best - signed) if len(signed) else 0.0
    if length > 0 and best - signed.min() > length:
        axes.set_ylim(*sorted((sign * (best - length), sign * (best + 0.15 * length))))


_DOT = {"color": "0.8", "markersize": 4, "label": "a setting"}
_STAR = {"color": "#c1440e", "markeredgecolor": "white", "markersize": 15, "zorder": 5}


@display_of.register
def _utility(results: UtilityGraphResults, *, by: str | None = None) -> Display:
    parameters = [name for name in results.varied() if name != by]
    if by is not None:
        check_choice("by", by, results.varied())
    if not parameters:
        raise ValueError("there is nothing to draw: no other parameter has more than one value.")
    # The settings that were measured, under each value that has a line of its own.
    lines: dict[str, list[Row]] = {}
    for row in results.rows():
        if row["error"] is None:
            label = f"the best with {by} = {value_text(row[f'param_{by}'])}" if by else "the best"
            lines.setdefault(label, []).append(row)
    panels = [partial(_draw_settings, lines=lines, parameter=parameter) for parameter in parameters]
    note = "bars: standard error of the difference from the recommended setting"
    legend = ["a setting", "recommended", *lines]
    return Display(f"{results.headline()}\n{note}", (4.2, 3.0), panels, legend)


def _draw_settings(axes: Any, lines: Mapping[str, Sequence[Row]], parameter: str) -> None:
    key, accuracy = f"param_{parameter}", itemgetter("accuracy")
    values = list(dict.fromkeys(value_text(row[key]) for rows in lines.values() for row in rows))
    for number, (name, rows) in enumerate(lines.items()):
        # Side by side, so that error bars do not cover others.
        shift = 0.12 * (number - (len(lines) - 1) / 2)
        best = {}
        for x, text in enumerate(values):
            here = [row for row in rows if value_text(row[key]) == text]
            if here:
                axes.plot([x + shift] * len(here), [*map(accuracy, here)], ".", **_DOT)
                best[x + shift] = max(here, key=accuracy)
        errors = [row["accuracy_gap_se"] or 0.0 for row in best.values()]
        style = {"color": f"C{number % 10}", "marker": "os^Dv"[number % 5], **_ERROR_BARS}
        heights = [*map(accuracy, best.values())]
        axes.errorbar(list(best), heights, yerr=errors, label=name, **style)
        for row in filter(itemgetter("recommended"), rows):
            x = values.index(value_text(row[key])) + shift
            axes.plot(x, row["accuracy"], "*", label="recommended", **_STAR)
    axes.set_xticks(range(len(values)), values)
    _end_view(axes, [row["accuracy"] for rows in lines.values() for row in rows], "accuracy", 2.0)
    axes.set(xlim=(-0.5, len(values) - 0.5), xlabel=parameter)
    axes.set_ylabel("accuracy, held-out public rows")
