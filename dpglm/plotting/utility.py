"""Expected utility over the parameters of a run, as a figure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpglm.plotting.axes import labelled, legend_below, plain, pyplot
from dpglm.settings import value_text

__all__ = ["UtilityGraphDisplay"]

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
    >>> from dpglm.plotting.utility import UtilityGraphDisplay
    >>> from dpglm.utility_graph import UtilityGraph
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
