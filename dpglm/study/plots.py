"""Figures of comparisons, utility graphs and audits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from scipy.stats import norm

from dpglm.audit.choices import ChoiceCounts
from dpglm.audit.report import AuditPart, AuditReport
from dpglm.audit.statistics import CanaryScores
from dpglm.study.results import LARGER_IS_BETTER, value_text

__all__ = [
    "AuditDisplay",
    "ComparisonDisplay",
    "UtilityGraphDisplay",
    "labelled",
    "legend_below",
    "plain",
    "pyplot",
]


def pyplot() -> Any:
    """Return matplotlib's pyplot, or raise an ImportError that names the extra.

    Examples
    --------
    >>> from dpglm.study.plots import pyplot
    >>> pyplot().__name__
    'matplotlib.pyplot'
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Plotting needs matplotlib: pip install "dpglm[plot]".') from error
    return plt


def plain(axes: Any) -> None:
    """Leave a faint grid and two of the four spines.

    Examples
    --------
    >>> from dpglm.study.plots import plain, pyplot
    >>> figure, axes = pyplot().subplots()
    >>> plain(axes)
    >>> bool(axes.spines["top"].get_visible())
    False
    """
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def labelled(panels: Iterable[Any]) -> dict[str, Any]:
    """Return what is drawn under each label, once however many panels show it.

    Examples
    --------
    >>> from dpglm.study.plots import labelled, pyplot
    >>> figure, panels = pyplot().subplots(2)
    >>> for axes in panels:
    ...     _ = axes.plot([1, 2], label="a line")
    >>> list(labelled(panels))
    ['a line']
    """
    drawn: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            drawn.setdefault(label, handle)
    return drawn


def legend_below(figure: Any, handles: Mapping[str, Any]) -> None:
    """Add a legend below the panels, in as many columns as fit.

    Examples
    --------
    >>> from dpglm.study.plots import labelled, legend_below, pyplot
    >>> figure, axes = pyplot().subplots(layout="constrained")
    >>> _ = axes.plot([1, 2], label="a line")
    >>> legend_below(figure, labelled([axes]))
    >>> len(figure.legends)
    1
    """
    # Inches of a column: the line, and the text at 10 points.
    column = 0.65 + 0.08 * max(len(line) for label in handles for line in label.split("\n"))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, int(figure.get_figwidth() / column)),
        frameon=False,
    )


_DEFAULT_METRICS = ("accuracy", "auc", "training_loss")
_MARKERS = "osD^vP*X"
_DASHES = ("--", ":", "-.")
_LATER_LOSS = (0, (5, 1.5))
# How many times as far from the best as the median an axis reaches.
_REACH = 6.0


class ComparisonDisplay:
    """Scores of estimators against epsilon, one panel per metric, with error bars.

    Estimators without privacy are horizontal lines. Where two kinds of loss are compared, the
    second has dashed lines, in the colors of the first. What is far worse than the others may lie
    outside the view. Make it with `from_results`.

    Parameters
    ----------
    title : str
    panels : list of (str, str, list of mapping)
        Title, metric and averages of each panel, as from ``ComparisonResults.panels``.

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of matplotlib Axes
        One per panel.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.comparison import compare
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study.plots import ComparisonDisplay
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"logistic": DPLogisticRegression(max_iter=20), "majority": DummyClassifier()},
    ...     epsilons=[0.5, 1.0],
    ... )
    >>> display = ComparisonDisplay.from_results(results).plot()
    >>> [ax.get_ylabel() for ax in display.axes_]
    ['accuracy, test fold', 'AUC, test fold', 'logistic loss, training fold']
    """

    def __init__(self, title: str, panels: list[tuple[str, str, list[Mapping[str, Any]]]]) -> None:
        self.title = title
        self.panels = panels

    @classmethod
    def from_results(
        cls,
        results: Any,
        *,
        dataset: str | None = None,
        metrics: Iterable[str] = _DEFAULT_METRICS,
    ) -> "ComparisonDisplay":
        """Prepare the figure of one dataset.

        Parameters
        ----------
        results : ComparisonResults
        dataset : str, optional
            Needed if there are several.
        metrics : iterable of {"accuracy", "auc", "training_loss", "test_loss", "fit_seconds"}

        Returns
        -------
        ComparisonDisplay
            Not plotted yet.

        Raises
        ------
        ValueError
            If the dataset is not among the results, or is not named and there are several.
        """
        if dataset is None and len(results.datasets) == 1:
            dataset = results.datasets[0]
        if dataset not in results.datasets:
            raise ValueError(f"dataset={dataset!r} must be one of {results.datasets}.")
        return cls(results.headline(dataset), results.panels(dataset, metrics))

    def plot(self, ax: Any = None) -> "ComparisonDisplay":
        """Draw the panels.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes, optional
            One per panel; by default a new figure.

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
        self.axes_ = self._new_axes() if ax is None else np.atleast_1d(np.asarray(ax)).ravel()
        if len(self.axes_) != len(self.panels):
            raise ValueError(
                f"ax holds {len(self.axes_)} axes; {len(self.panels)} are needed, one for each of "
                f"{', '.join(title for title, *_ in self.panels)}."
            )
        self.figure_ = self.axes_[0].figure
        styles = self._styles()
        for axes, (title, metric, rows) in zip(self.axes_, self.panels, strict=True):
            _draw(axes, title, metric, rows, styles)
        self._add_legend(own_figure=ax is None)
        return self

    def _new_axes(self) -> np.ndarray:
        plt = pyplot()
        n_columns = len(self.panels) if len(self.panels) <= 3 else math.ceil(len(self.panels) / 2)
        n_rows = math.ceil(len(self.panels) / n_columns)
        figure, axes = plt.subplots(
            n_rows,
            n_columns,
            figsize=(4.2 * n_columns, 3.4 * n_rows + 0.8),
            layout="constrained",
            squeeze=False,
        )
        figure.suptitle(self.title)
        for unused in axes.ravel()[len(self.panels) :]:
            unused.remove()
        return axes.ravel()[: len(self.panels)]

    def _styles(self) -> dict[str, dict[str, Any]]:
        """Return the look of each estimator, the same in every panel."""
        rows = [row for *_, panel in self.panels for row in panel]
        private = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is not None)
        others = dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is None)
        loss_of = {row["estimator"]: row["loss"] for row in rows}
        losses = list(dict.fromkeys(loss_of[name] for name in private))
        styles: dict[str, dict[str, Any]] = {}
        for name in private:
            kind = losses.index(loss_of[name])
            i = sum(loss_of[other] == loss_of[name] for other in styles)
            styles[name] = {"color": f"C{i % 10}", "marker": _MARKERS[i % len(_MARKERS)]}
            if kind > 0:
                styles[name] |= {"linestyle": _LATER_LOSS, "fillstyle": "none"}
        for i, name in enumerate(others):
            styles[name] = {"color": "0.5", "linestyle": _DASHES[i % len(_DASHES)]}
        return styles

    def _add_legend(self, own_figure: bool) -> None:
        drawn = labelled(self.axes_)
        handles = {name: drawn[name] for name in self._styles() if name in drawn}
        if own_figure:
            legend_below(self.figure_, handles)
        else:
            self.axes_[-1].legend(handles.values(), handles.keys())


def _draw(
    axes: Any,
    title: str,
    metric: str,
    rows: list[Mapping[str, Any]],
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    rows = [row for row in rows if row[metric] is not None and row["epsilon"] != math.inf]
    for row in rows:
        # An AUC of one half ranks nothing and would only stretch the axis.
        if row["epsilon"] is None and (metric, row[metric]) != ("auc", 0.5):
            name = row["estimator"]
            axes.axhline(row[metric], label=name, linewidth=1.2, **styles[name])
    names = list(dict.fromkeys(row["estimator"] for row in rows if row["epsilon"] is not None))
    for position, name in enumerate(names):
        own = sorted(
            (row for row in rows if row["estimator"] == name), key=lambda row: row["epsilon"]
        )
        # Side by side, so that error bars do not hide one another.
        shift = 1.02 ** (position - (len(names) - 1) / 2)
        axes.errorbar(
            [row["epsilon"] * shift for row in own],
            [row[metric] for row in own],
            yerr=[row[f"{metric}_se"] or 0.0 for row in own],
            label=name,
            linewidth=1.5,
            markersize=5,
            capsize=3,
            **styles[name],
        )
    _limit(axes, [row[metric] for row in rows], metric)
    epsilons = sorted({row["epsilon"] for row in rows} - {None})
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("epsilon")
    axes.set_ylabel(title)
    plain(axes)


def _limit(axes: Any, scores: list[float], metric: str) -> None:
    """End the axis where what is far worse than the others begins."""
    sign = 1 if metric in LARGER_IS_BETTER else -1
    values = sign * np.array(scores)
    if not len(values):
        return
    best = values.max()
    reach = _REACH * np.median(best - values)
    if best - values.min() > reach > 0:
        axes.set_ylim(*sorted((sign * (best - reach), sign * (best + 0.15 * reach))))


_TITLES = {
    "accuracy": "accuracy, held-out public rows",
    "auc": "AUC, held-out public rows",
    "loss": "loss, held-out public rows",
}
_RECOMMENDED = "#c1440e"


class UtilityGraphDisplay:
    """Scores of simulated settings: one column per parameter, one row per score.

    Grey dots are the settings. A line joins the best ones for each value of the parameter, all
    others being chosen freely; the star is the recommended setting. Bars are standard errors of
    the difference from it: settings share their rows, so that this is what tells them apart.
    An axis ends at the median setting, or the worst line's best one, so that bad settings do not
    flatten the good.

    Parameters
    ----------
    title : str
    rows : list of mapping
        As from ``UtilityGraphResults.rows``.
    parameters : list of str
        A column for each.
    metrics : list of {"accuracy", "auc", "loss"}
        A row for each.
    by : str, optional
        Draw a line for each value of this parameter.

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of matplotlib Axes of shape (n_metrics, n_parameters)

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study.plots import UtilityGraphDisplay
    >>> from dpglm.study.utility import UtilityGraph
    >>> grid = {"max_iter": [10, 40], "step_schedule": [0.5, 2.0]}
    >>> graph = UtilityGraph(DPLogisticRegression(), grid, n_samples=1000, n_repeats=2)
    >>> results = graph.run(*make_census(500, random_state=0))
    >>> UtilityGraphDisplay.from_results(results).plot().axes_.shape
    (2, 2)
    """

    def __init__(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        parameters: Sequence[str],
        metrics: Sequence[str],
        by: str | None = None,
    ) -> None:
        self.title = title
        self.rows = rows
        self.parameters = parameters
        self.metrics = metrics
        self.by = by

    @classmethod
    def from_results(
        cls,
        results: Any,
        *,
        parameters: Iterable[str] | None = None,
        metrics: Iterable[str] = ("accuracy", "loss"),
        by: str | None = None,
    ) -> "UtilityGraphDisplay":
        """Prepare the figure of a utility graph.

        Parameters
        ----------
        results : UtilityGraphResults
        parameters : iterable of str, optional
            By default all that are not the same in every setting.
        metrics : iterable of {"accuracy", "auc", "loss"}
        by : str, optional
            Draw a line for each value of this parameter instead of a column.

        Returns
        -------
        UtilityGraphDisplay
            Not plotted yet.

        Raises
        ------
        ValueError
            If a parameter or a score is not among the results, or none is left to show.
        """
        rows, metrics = results.rows(), list(metrics)
        if parameters is None:
            parameters = [name for name in results.varied() if name != by]
        parameters = list(parameters)
        known = sorted({name for cell in results.cells for name in cell.params})
        if by is not None and by not in known:
            raise ValueError(f"by={by!r} must be among {known}.")
        for name in parameters:
            if name not in known:
                raise ValueError(f"parameters={parameters!r} must be among {known}.")
        for name in metrics:
            if name not in _TITLES:
                raise ValueError(f"metrics={metrics!r} must be among {list(_TITLES)}.")
        if not parameters or not metrics:
            raise ValueError("there is nothing to draw: name a parameter and a score at least.")
        return cls(results.headline(), rows, parameters, metrics, by)

    def plot(self, ax: Any = None) -> "UtilityGraphDisplay":
        """Draw the panels.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes, optional
            One per score and parameter, row by row; by default a new figure.

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
        shape, own_figure = (len(self.metrics), len(self.parameters)), ax is None
        if own_figure:
            _, ax = pyplot().subplots(
                *shape,
                figsize=(max(6.5, 3.0 * shape[1]), 2.9 * shape[0] + 0.9),
                layout="constrained",
                sharex="col",
                sharey="row",
                squeeze=False,
            )
            ax[0, 0].figure.suptitle(
                f"{self.title}\nbars: standard error of the difference from the recommended setting"
            )
        panels = np.asarray(ax).ravel()
        if panels.size != shape[0] * shape[1]:
            raise ValueError(
                f"ax holds {panels.size} axes; {shape[0] * shape[1]} are needed, one for each of "
                f"{', '.join(self.metrics)} and each of {', '.join(self.parameters)}."
            )
        self.axes_ = panels.reshape(shape)
        self.figure_ = panels[0].figure
        for line, metric in zip(self.axes_, self.metrics, strict=True):
            for axes, parameter in zip(line, self.parameters, strict=True):
                self._draw(axes, parameter, metric)
            line[0].set_ylabel(_TITLES[metric])
            for axes in line:
                axes.set_ylim(*self._limits(metric))
        for axes, parameter in zip(self.axes_[-1], self.parameters, strict=True):
            axes.set_xlabel(parameter)
        self._add_legend(own_figure)
        return self

    def _draw(self, axes: Any, parameter: str, metric: str) -> None:
        key = f"param_{parameter}"
        texts = [_text(value) for value in _in_order(row[key] for row in self.rows)]
        measured = [row for row in self.rows if row["error"] is None]
        lines = self._lines()
        for number, line in enumerate(lines):
            own = [row for row in measured if self._line_of(row) == line]
            # Beside one another, so that neither error bars nor dots hide what is below them.
            shift = 0.12 * (number - (len(lines) - 1) / 2)
            best = {}
            for x, text in enumerate(texts):
                here = [row for row in own if _text(row[key]) == text]
                if not here:
                    continue
                axes.plot(
                    x + shift + (np.linspace(-0.16, 0.16, len(here)) if len(here) > 1 else 0.0),
                    [row[metric] for row in here],
                    ".",
                    color="0.8",
                    markersize=4,
                    label="a setting",
                )
                best[x + shift] = (min if metric == "loss" else max)(
                    here, key=lambda row: row[metric]
                )
            axes.errorbar(
                list(best),
                [row[metric] for row in best.values()],
                yerr=[row[f"{metric}_gap_se"] or 0.0 for row in best.values()],
                color=f"C{number % 10}",
                marker="os^Dv"[number % 5],
                markersize=5,
                linewidth=1.5,
                capsize=3,
                label="the best" if line is None else f"the best with {self.by} = {line}",
            )
            for row in own:
                if row["recommended"]:
                    axes.plot(
                        texts.index(_text(row[key])) + shift,
                        row[metric],
                        "*",
                        color=_RECOMMENDED,
                        markeredgecolor="white",
                        markersize=15,
                        zorder=5,
                        label="recommended",
                    )
        axes.set_xticks(range(len(texts)), texts)
        axes.set_xlim(-0.5, len(texts) - 0.5)
        plain(axes)

    def _lines(self) -> list[str | None]:
        """Return the values that have a line of their own."""
        return list(dict.fromkeys(map(self._line_of, self.rows)))

    def _line_of(self, row: Mapping[str, Any]) -> str | None:
        return None if self.by is None else _text(row[f"param_{self.by}"])

    def _limits(self, metric: str) -> tuple[float, float]:
        sign = 1 if metric == "loss" else -1
        measured = [row for row in self.rows if row["error"] is None]
        scores = np.array([sign * row[metric] for row in measured])
        ends = [
            min(s for s, row in zip(scores, measured, strict=True) if self._line_of(row) == line)
            for line in {self._line_of(row) for row in measured}
        ]
        reach = max(np.median(scores), *ends, scores.min() + 1e-3) - scores.min()
        limits = scores.min() - 0.15 * reach, scores.min() + 1.08 * reach
        return min(sign * x for x in limits), max(sign * x for x in limits)

    def _add_legend(self, own_figure: bool) -> None:
        handles = labelled(self.axes_.ravel())
        if own_figure:
            legend_below(self.figure_, handles)
        else:
            self.axes_[-1, -1].legend(handles.values(), handles.keys())


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Return distinct values: names and objects as they come, then numbers as they rise."""
    distinct = list({_text(value): value for value in values}.values())
    numbers = [v for v in distinct if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [v for v in distinct if v not in numbers] + sorted(numbers)


def _text(value: Any) -> str:
    """Return the label of a value; the arguments of an object stand below its name."""
    return value_text(value).replace("(", "\n(", 1)


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
    >>> from dpglm.audit.report import audit_estimator
    >>> from dpglm.study.plots import AuditDisplay
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
            _draw_audit(axes, part, self.report.delta)
        return self


def _draw_audit(axes: Any, part: AuditPart, delta: float) -> None:
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
