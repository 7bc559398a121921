"""Web pages that need no other file, and a comparison as one of them."""

import math
import os
import platform
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from string import Template

from dpglm.study.plots import Display, display_of, pyplot
from dpglm.study.results import GAINS, ComparisonResults, Row, epsilons_of, grouped, score_text

_LEAD = (
    "Mean ± standard error over the folds. The scores were computed from the data without noise: "
    "they may be published only if the data may."
)
_MORE_METRICS = ("test_loss", "fit_seconds")
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
# Ink and grid of a figure.
_ON_LIGHT = ("#1d2430", "#98a2b3")
_ON_DARK = ("#e4e7ec", "#667085")


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
    >>> census = {"census": make_census(1000, random_state=0)}
    >>> results = compare(census, {"logistic": DPLogisticRegression()}, epsilons=[0.5, 1.0])
    >>> "(epsilon=1, delta=1e-06)-differentially private" in html_report(results)
    True
    """
    rows = results.rows()
    notes = "".join(f"<li>{escape(line)}</li>" for line in results.notes().splitlines())
    body = filled(
        "comparison",
        datasets="\n".join(_dataset(results, name) for name in results.datasets),
        guarantees="\n".join(_guarantee(own) for own in grouped(rows, "estimator").values()),
        notes=notes and f"<section>\n<h2>Warnings and failures</h2>\n<ul>{notes}</ul>\n</section>",
        settings=facts(_settings(rows)),
    )
    return page(title, _LEAD, body)


def page(title: str, lead: str, body: str) -> str:
    """Return an HTML document with everything inside."""
    return filled("page", title=escape(title), lead=escape(lead), body=body) + "\n"


def filled(template: str, **texts: str) -> str:
    """Return a template of the package with HTML in the place of its names."""
    path = files("dpglm").joinpath("templates", f"{template}.html")
    return Template(path.read_text(encoding="utf-8").rstrip("\n")).substitute(texts)


def facts(values: Mapping[str, str]) -> str:
    """Return the items of a list of names and what they are."""
    return "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value) or '-'}</dd>" for name, value in values.items()
    )


def _dataset(results: ComparisonResults, name: str) -> str:
    tables, more_tables = (
        "\n".join(_table(*panel) for panel in panels)
        for panels in (results.panels(name), results.panels(name, _MORE_METRICS))
    )
    display = display_of(results, dataset=name)
    display.title = ""
    return filled(
        "dataset",
        name=escape(name),
        protocol=escape(results.headline(name).split(": ", 1)[1]),
        figure=figure(display, f"Scores on {name} against epsilon"),
        tables=tables,
        more_tables=more_tables,
    )


def figure(display: Display, alt: str, small: bool = False) -> str:
    """Return a figure in light and dark, whose numbers the tables below it hold."""
    return filled(
        "figure",
        small=" class=small" if small else "",
        light=_drawn(display, *_ON_LIGHT),
        dark=_drawn(display, *_ON_DARK),
        alt=escape(f"{alt}; the tables below hold the same numbers"),
    )


def _drawn(display: Display, ink: str, grid: str) -> str:
    """Return a figure as the address of an SVG image with a transparent background."""
    plt = pyplot()
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    theme = {**dict.fromkeys(inked, ink), **dict.fromkeys(clear, "none"), "grid.color": grid}
    # Without a date and with fixed identifiers the same results give the same page.
    with plt.rc_context({**theme, "svg.hashsalt": "dpglm"}):
        drawn = display.plot().figure_
        image = BytesIO()
        drawn.savefig(image, format="svg", metadata={"Date": None})
        plt.close(drawn)
    return f"data:image/svg+xml;base64,{b64encode(image.getvalue()).decode()}"


def _table(title: str, metric: str, rows: list[Row]) -> str:
    """Return estimators down and epsilons across; without privacy, a value holds for all."""
    epsilons = epsilons_of(rows) or [None]
    larger, best = metric in GAINS, {}
    for row in rows:
        if None not in (row["epsilon"], row[metric]):
            rival = best.get(row["epsilon"], row[metric])
            best[row["epsilon"]] = (max if larger else min)(rival, row[metric])

    def cell(row: Row | None) -> str:
        if row is None or row[metric] is None:
            return "<td>failed</td>" if row else "<td></td>"
        mean, _, error = score_text(row, metric).partition(" ")
        mark = " class=best" if best.get(row["epsilon"]) == row[metric] else ""
        error = f" <small>{error}</small>" if error else ""
        return f'<td{mark} data-value="{row[metric]!r}">{mean}{error}</td>'

    lines = []
    for name, own in grouped(rows, "estimator").items():
        at = {row["epsilon"]: row for row in own}
        cells = "".join(cell(at.get(epsilon, at.get(None))) for epsilon in epsilons)
        mark = " class=open" if None in at else ""
        lines.append(f'<tr{mark}><th scope="row">{escape(name)}</th>{cells}</tr>')
    headings = ["score" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in epsilons]
    head = "".join(
        f'<th scope="col"><button type="button">{heading}</button></th>'
        for heading in ("estimator", *headings)
    )
    order = "descending" if larger else "ascending"
    return filled("table", order=order, title=escape(title), head=head, body="\n".join(lines))


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


def _settings(rows: list[Row]) -> dict[str, str]:
    def distinct(name: str, form: str = "") -> str:
        values = sorted({row[name] for row in rows} - {None})
        return ", ".join(format(value, form) for value in values)

    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    settings = {
        "epsilon": distinct("epsilon", "g"),
        "delta": distinct("delta", "g"),
        "folds": distinct("n_splits"),
        "repeats": distinct("n_repeats"),
        "seed": distinct("seed") or "none: the noise was fresh",
        "Python": f"{python}, {os.cpu_count()} processors",
    }
    return settings | versions()


def versions() -> dict[str, str]:
    """Return the versions of the packages that a fit, its accounting or a figure rest on."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
