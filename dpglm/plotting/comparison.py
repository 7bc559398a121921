"""Scores against epsilon, as a figure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dpglm.plotting.axes import labelled, legend_below, plain, pyplot
from dpglm.tables import LARGER_IS_BETTER

__all__ = ["ComparisonDisplay"]

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
    >>> from dpglm.comparison import compare
    >>> from dpglm.datasets import make_census
    >>> from dpglm.plotting.comparison import ComparisonDisplay
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
