"""A comparison as a figure, and as a web page that needs no other file."""

import math
import os
import platform
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from operator import itemgetter
from string import Template
from typing import Any

import numpy as np

from dpglm.study.plots import Display, Layout, plain, pyplot
from dpglm.study.results import (
    LARGER_IS_BETTER,
    MAIN_METRICS,
    ComparisonResults,
    Row,
    epsilons_of,
    grouped,
    score_text,
)

__all__ = ["ComparisonDisplay", "html_report"]

_MARKERS = "osD^vP*X"
_DASHES = ("--", ":", "-.")
_LATER_LOSS = (0, (5, 1.5))
# How many times as far from the best as the median an axis reaches.
_REACH = 6.0


@dataclass(eq=False, repr=False)
class ComparisonDisplay(Display):
    """Scores of estimators against epsilon, one panel per metric, with error bars.

    Estimators without privacy are horizontal lines. Where two kinds of loss are compared, the
    second has dashed lines, in the colors of the first. What is far worse than the others may lie
    outside the view. Make it with `from_results`.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import ComparisonDisplay, compare
    >>> from dpglm.datasets import make_census
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"logistic": DPLogisticRegression(max_iter=20), "majority": DummyClassifier()},
    ...     epsilons=[0.5, 1.0],
    ... )
    >>> display = ComparisonDisplay.from_results(results).plot()
    >>> [ax.get_ylabel() for ax in display.axes_]
    ['accuracy, test fold', 'AUC, test fold', 'logistic loss, training fold']
    """

    title: str
    panels: list[tuple[str, str, list[Mapping[str, Any]]]]

    @classmethod
    def from_results(
        cls,
        results: Any,
        *,
        dataset: str | None = None,
        metrics: Iterable[str] = MAIN_METRICS,
    ) -> "ComparisonDisplay":
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
        titles = ", ".join(title for title, *_ in self.panels)
        return Layout(
            self.title, size, (n,), n_columns, f"{n} are needed, one for each of {titles}"
        )

    def _draw_panels(self, own_figure: bool) -> None:
        styles = self._styles()
        for axes, (title, metric, rows) in zip(self.axes_, self.panels, strict=True):
            _draw(axes, title, metric, rows, styles)
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


def _draw(
    axes: Any, title: str, metric: str, rows: list[Row], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    rows = [row for row in rows if row[metric] is not None and row["epsilon"] != math.inf]
    for row in rows:
        # An AUC of one half ranks nothing and would only stretch the axis.
        if row["epsilon"] is None and (metric, row[metric]) != ("auc", 0.5):
            name = row["estimator"]
            axes.axhline(row[metric], label=name, linewidth=1.2, **styles[name])
    groups = grouped([row for row in rows if row["epsilon"] is not None], "estimator")
    for position, (name, group) in enumerate(groups.items()):
        own = sorted(group, key=itemgetter("epsilon"))
        # Side by side, so that error bars do not hide one another.
        shift = 1.02 ** (position - (len(groups) - 1) / 2)
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
    epsilons = epsilons_of(rows)
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set(xlabel="epsilon", ylabel=title)
    plain(axes)


def _limit(axes: Any, scores: list[float], metric: str) -> None:
    """End the axis where what is far worse than the others begins."""
    # From here on larger is better.
    sign = 1 if metric in LARGER_IS_BETTER else -1
    values = sign * np.array(scores)
    if not len(values):
        return
    best = values.max()
    reach = _REACH * np.median(best - values)
    if best - values.min() > reach > 0:
        axes.set_ylim(*sorted((sign * (best - reach), sign * (best + 0.15 * reach))))


_MORE_METRICS = ("test_loss", "fit_seconds")
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
# Ink and grid of a figure.
_ON_LIGHT = ("#1d2430", "#98a2b3")
_ON_DARK = ("#e4e7ec", "#667085")
_LEAD = (
    "Mean ± standard error over the folds. The scores were computed from the data without noise: "
    "they may be published only if the data may."
)


def html_report(
    results: ComparisonResults, *, title: str = "Comparison of private classifiers"
) -> str:
    """Return a comparison as an HTML document: figures, tables, guarantees, settings, versions.

    Parameters
    ----------
    results : ComparisonResults
    title : str, default="Comparison of private classifiers"

    Returns
    -------
    str
        One file in light and dark, with everything inside, tables that sort at a click included.

    Raises
    ------
    ImportError
        Without matplotlib; ``pip install "dpglm[plot]"``.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import compare, html_report
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"logistic": DPLogisticRegression(max_iter=20)},
    ...     epsilons=[0.5, 1.0],
    ... )
    >>> page = html_report(results)
    >>> page.startswith("<!DOCTYPE html>"), "(epsilon=1, delta=1e-06)-differentially" in page
    (True, True)
    """
    rows = results.rows()
    page = _filled(
        "report",
        title=escape(title),
        lead=_LEAD,
        datasets="\n".join(_dataset(results, name) for name in results.datasets),
        guarantees="\n".join(_guarantee(own) for own in grouped(rows, "estimator").values()),
        notes=_notes(results.notes()),
        settings="\n".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value) or '-'}</dd>"
            for name, value in _settings(rows).items()
        ),
    )
    return f"{page}\n"


def _filled(template: str, **texts: str) -> str:
    """Return a template of the package with HTML in the place of its names."""
    path = files("dpglm").joinpath("templates", f"{template}.html")
    return Template(path.read_text(encoding="utf-8").rstrip("\n")).substitute(texts)


def _dataset(results: ComparisonResults, name: str) -> str:
    tables, more_tables = (
        "\n".join(_table(*panel) for panel in results.panels(name, metrics))
        for metrics in (MAIN_METRICS, _MORE_METRICS)
    )
    return _filled(
        "dataset",
        name=escape(name),
        protocol=escape(results.headline(name).split(": ", 1)[1]),
        light=_drawn(results, name, *_ON_LIGHT),
        dark=_drawn(results, name, *_ON_DARK),
        tables=tables,
        more_tables=more_tables,
    )


def _drawn(results: ComparisonResults, dataset: str, ink: str, grid: str) -> str:
    """Return the figure as the address of an SVG image with a transparent background."""
    plt = pyplot()
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    theme = {**dict.fromkeys(inked, ink), **dict.fromkeys(clear, "none"), "grid.color": grid}
    # Without a date and with fixed identifiers the same results give the same page.
    with plt.rc_context({**theme, "svg.hashsalt": "dpglm"}):
        display = ComparisonDisplay.from_results(results, dataset=dataset, metrics=MAIN_METRICS)
        display.title = ""
        figure = display.plot().figure_
        image = BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
        plt.close(figure)
    return f"data:image/svg+xml;base64,{b64encode(image.getvalue()).decode()}"


def _table(title: str, metric: str, rows: list[Row]) -> str:
    """Return estimators down and epsilons across; without privacy, a value holds for all."""
    epsilons = epsilons_of(rows) or [None]
    sign = 1 if metric in LARGER_IS_BETTER else -1
    best = {
        epsilon: max((sign * row[metric] for row in own if row[metric] is not None), default=None)
        for epsilon, own in grouped(rows, "epsilon").items()
        if epsilon is not None
    }

    def cell(row: Row | None) -> str:
        if row is None or row[metric] is None:
            return "<td>failed</td>" if row else "<td></td>"
        mean, _, error = score_text(row, metric).partition(" ")
        is_best = row["epsilon"] is not None and sign * row[metric] == best[row["epsilon"]]
        return (
            f'<td{" class=best" if is_best else ""} data-value="{row[metric]!r}">{mean}'
            + (f" <small>{error}</small>" if error else "")
            + "</td>"
        )

    lines = []
    for name, own in grouped(rows, "estimator").items():
        at = {row["epsilon"]: row for row in own}
        cells = "".join(cell(at.get(epsilon, at.get(None))) for epsilon in epsilons)
        lines.append(
            f'<tr{" class=open" if None in at else ""}><th scope="row">{escape(name)}</th>'
            f"{cells}</tr>"
        )
    headings = ["score" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in epsilons]
    headings.insert(0, "estimator")
    head = "".join(f'<th scope="col"><button type="button">{h}</button></th>' for h in headings)
    order = "descending" if sign == 1 else "ascending"
    return _filled("table", order=order, title=escape(title), head=head, body="\n".join(lines))


def _guarantee(rows: list[Row]) -> str:
    """Return what the fits of an estimator said of themselves, and its parameters."""
    fitted = [row for row in rows if row["n_cells"]] or rows
    # The guarantee shown is that of the largest finite epsilon.
    finite = [row for row in fitted if row["epsilon"] not in (None, math.inf)] or fitted
    row = max(finite, key=lambda row: row["epsilon"] or 0.0)
    if not row["n_cells"]:
        sentence = "Every fit failed."
    elif row["epsilon"] is None:
        sentence = "No privacy: fitted without noise."
    else:
        sentence = row["guarantee"] or "Its fits kept no ledger."
    return (
        f"<dt>{escape(row['estimator'])}</dt><dd>{escape(sentence)}</dd>"
        f"<dd><code>{escape(row['parameters'])}</code></dd>"
    )


def _notes(notes: str) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in notes.splitlines())
    return f"<section>\n<h2>Warnings and failures</h2>\n<ul>{items}</ul>\n</section>"


def _settings(rows: list[Row]) -> dict[str, str]:
    seeds = {row["seed"] for row in rows}
    fresh = "none: the noise was fresh"
    facts = {
        "epsilon": ", ".join(f"{epsilon:g}" for epsilon in epsilons_of(rows)),
        "delta": ", ".join(f"{delta:g}" for delta in sorted({r["delta"] for r in rows} - {None})),
        "folds": ", ".join(sorted({str(row["n_splits"]) for row in rows})),
        "repeats": ", ".join(sorted({str(row["n_repeats"]) for row in rows})),
        "seed": fresh if seeds == {None} else ", ".join(sorted(map(str, seeds))),
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors",
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts
