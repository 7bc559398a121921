"""A comparison as a web page that needs no other file."""

import math
import os
import platform
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from string import Template
from typing import Any

from dpglm.study.plots import ComparisonDisplay, pyplot
from dpglm.study.results import LARGER_IS_BETTER, ComparisonResults, headline, score_text

__all__ = ["html_report"]

_METRICS = ("accuracy", "auc", "training_loss")
_MORE_METRICS = ("test_loss", "fit_seconds")
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
# Ink and grid of a figure.
_ON_LIGHT = ("#1d2430", "#98a2b3")
_ON_DARK = ("#e4e7ec", "#667085")
_LEAD = (
    "Mean ± standard error over the folds. The scores were computed from the data without noise: "
    "they may be published only if the data may."
)

Row = Mapping[str, Any]


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
    >>> from dpglm.study.comparison import compare
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study.report import html_report
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"logistic": DPLogisticRegression(max_iter=20)},
    ...     epsilons=[0.5, 1.0],
    ... )
    >>> page = html_report(results)
    >>> page.startswith("<!DOCTYPE html>"), "(epsilon=1, delta=1e-06)-differentially" in page
    (True, True)
    """
    template = files("dpglm").joinpath("templates", "report.html").read_text(encoding="utf-8")
    rows = results.rows()
    return Template(template).substitute(
        title=escape(title),
        lead=_LEAD,
        datasets="\n".join(_dataset(results, name) for name in results.datasets),
        guarantees="\n".join(_guarantee(own) for own in _grouped(rows, "estimator").values()),
        notes=_notes(results.notes()),
        settings=_facts(_settings(rows)),
    )


def _dataset(results: ComparisonResults, name: str) -> str:
    first, more = (
        "\n".join(
            _table(title, metric, rows) for title, metric, rows in results.panels(name, metrics)
        )
        for metrics in (_METRICS, _MORE_METRICS)
    )
    _, protocol = headline(results.rows(name)).split(": ", 1)
    return f"""<section>
<h2>{escape(name)}</h2>
<p class="muted">{escape(protocol)}</p>
{_figure(results, name)}
<div class="tables">
{first}
</div>
<details>
<summary>Loss on the test folds, time</summary>
<div class="tables">
{more}
</div>
</details>
</section>"""


def _figure(results: ComparisonResults, dataset: str) -> str:
    light, dark = (_drawn(results, dataset, *colors) for colors in (_ON_LIGHT, _ON_DARK))
    text = escape(f"Scores on {dataset} against epsilon; the tables below hold the same numbers")
    return f"""<figure>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="{dark}">
<img src="{light}" alt="{text}">
</picture>
</figure>"""


def _drawn(results: ComparisonResults, dataset: str, ink: str, grid: str) -> str:
    """Return the figure as the address of an SVG image with a transparent background."""
    plt = pyplot()
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    theme = {**dict.fromkeys(inked, ink), **dict.fromkeys(clear, "none"), "grid.color": grid}
    with plt.rc_context({**theme, "svg.hashsalt": "dpglm"}):
        display = ComparisonDisplay.from_results(results, dataset=dataset, metrics=_METRICS)
        display.title = ""
        figure = display.plot().figure_
        image = BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
        plt.close(figure)
    return f"data:image/svg+xml;base64,{b64encode(image.getvalue()).decode()}"


def _table(title: str, metric: str, rows: Iterable[Row]) -> str:
    """Return estimators down and epsilons across; without privacy, a value holds for all."""
    rows = list(rows)
    epsilons = sorted({row["epsilon"] for row in rows} - {None}) or [None]
    sign = 1 if metric in LARGER_IS_BETTER else -1
    best = {
        epsilon: max((sign * row[metric] for row in own if row[metric] is not None), default=None)
        for epsilon, own in _grouped(rows, "epsilon").items()
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
    for name, own in _grouped(rows, "estimator").items():
        at = {row["epsilon"]: row for row in own}
        cells = "".join(cell(at.get(epsilon, at.get(None))) for epsilon in epsilons)
        lines.append(
            f'<tr{" class=open" if None in at else ""}><th scope="row">{escape(name)}</th>'
            f"{cells}</tr>"
        )
    headings = ["estimator", *(_epsilon(epsilon) for epsilon in epsilons)]
    head = "".join(f'<th scope="col"><button type="button">{h}</button></th>' for h in headings)
    order = "descending" if sign == 1 else "ascending"
    body = "\n".join(lines)
    return f"""<div class="scroll">
<table data-first="{order}">
<caption>{escape(title)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _guarantee(rows: list[Row]) -> str:
    """Return what the fits of an estimator said of themselves, and its parameters."""
    fitted = [row for row in rows if row["n_cells"]] or rows
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
    epsilons = sorted({row["epsilon"] for row in rows} - {None})
    facts = {
        "epsilon": ", ".join(f"{epsilon:g}" for epsilon in epsilons),
        "delta": ", ".join(f"{delta:g}" for delta in sorted({r["delta"] for r in rows} - {None})),
        "folds": ", ".join(sorted({str(row["n_splits"]) for row in rows})),
        "repeats": ", ".join(sorted({str(row["n_repeats"]) for row in rows})),
        "seed": "none: the noise was fresh"
        if seeds == {None}
        else ", ".join(sorted(map(str, seeds))),
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors",
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v) or '-'}</dd>" for k, v in facts.items())


def _epsilon(epsilon: float | None) -> str:
    return "score" if epsilon is None else f"epsilon {epsilon:g}"


def _grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups
