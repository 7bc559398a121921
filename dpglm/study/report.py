"""Web pages that need no other file, and a comparison as one of them."""

import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from string import Template

from dpglm.study.comparison import (
    METRICS,
    ComparisonResults,
    Row,
    epsilons_of,
    grouped,
    heading,
    score_rows,
)
from dpglm.study.plots import Display, display_of, pyplot
from dpglm.tables import html_table

_LEAD = (
    "Mean ± standard error over the folds. The scores were computed from the data without noise: "
    "they may be published only if the data may."
)
_ON_GUARANTEES = "What each fit said it released, and its cost, at the largest epsilon compared."
_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
_INK = "#123456"  # a colour of its own, for which that of the page is put


def html_report(results: ComparisonResults) -> str:
    """Return a comparison as an HTML document: figures, tables, guarantees, settings, versions.

    Parameters
    ----------
    results : ComparisonResults

    Returns
    -------
    str
        One file, in light or dark as its reader has it, with everything inside and without scripts.

    Raises
    ------
    ImportError
        Without matplotlib; ``pip install "dpglm[plot]"``.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import compare
    >>> from dpglm.study.report import html_report
    >>> census = {"census": make_census(1000, random_state=0)}
    >>> results = compare(census, {"logistic": DPLogisticRegression()}, epsilons=[0.5, 1.0])
    >>> "(epsilon=1, delta=1e-06)-differentially private" in html_report(results)
    True
    """
    rows, notes = results.rows(), results.notes().splitlines()
    sections = [_dataset(results, name) for name in results.datasets]
    guarantees = "\n".join(_guarantee(own) for own in grouped(rows, "estimator").values())
    sections.append(_section("Guarantees", f"<dl>\n{guarantees}\n</dl>", _ON_GUARANTEES))
    if notes:
        items = "".join(f"<li>{escape(line)}</li>" for line in notes)
        sections.append(_section("Warnings and failures", f"<ul>{items}</ul>"))
    settings = f"<dl class=facts>\n{facts(_settings(rows))}\n</dl>"
    sections.append(_section("Settings", settings))
    return page("Comparison of private classifiers", _LEAD, "\n".join(sections))


def page(title: str, lead: str, body: str) -> str:
    """Return an HTML document with everything inside."""
    template = files("dpglm").joinpath("templates", "page.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=escape(title), lead=escape(lead), body=body)


def facts(values: Mapping[str, str]) -> str:
    """Return the items of a list of names and what they are."""
    return "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value) or '-'}</dd>" for name, value in values.items()
    )


def figure(display: Display, alt: str, small: bool = False) -> str:
    """Return a figure in the ink of the page, whose numbers the tables below it hold."""
    plt, image = pyplot(), BytesIO()
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    theme = {**dict.fromkeys(inked, _INK), **dict.fromkeys(clear, "none"), "grid.color": _INK}
    # Without a date and with fixed identifiers the same results give the same page.
    with plt.rc_context({**theme, "svg.hashsalt": "dpglm"}):
        drawn = display.plot().figure_
        drawn.savefig(image, format="svg", metadata={"Date": None})
        plt.close(drawn)
    svg = image.getvalue().decode().partition("<svg")[2].replace(_INK, "currentColor")
    label = escape(f"{alt}; the tables below hold the same numbers")
    shape = " class=small" if small else ""
    return f'<figure{shape} role="img" aria-label="{label}">\n<svg{svg}</figure>'


def versions() -> dict[str, str]:
    """Return the versions of the packages that a fit, its accounting or a figure rest on."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _section(title: str, content: str, lead: str = "") -> str:
    lead = f'<p class="muted">{escape(lead)}</p>\n' if lead else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{lead}{content}\n</section>"


def _dataset(results: ComparisonResults, name: str) -> str:
    """Return the figure of a dataset and its tables."""
    display = display_of(results, dataset=name)
    display.title = ""
    epsilons = epsilons_of(results.rows(name)) or [None]
    head = ["estimator", *map(heading, epsilons)]
    tables = "\n".join(
        html_table([head, *score_rows(rows, metric, epsilons)], caption)
        for caption, metric, rows in results.panels(name, METRICS)
    )
    drawn = figure(display, f"Scores on {name} against epsilon")
    protocol = results.headline(name).split(": ", 1)[1]
    return _section(name, f"{drawn}\n<div class=tables>\n{tables}\n</div>", protocol)


def _guarantee(rows: list[Row]) -> str:
    """Return what the fits of an estimator said of themselves, and its parameters."""
    finite = [row for row in rows if row["guarantee"] and row["epsilon"] < math.inf]
    shown = max(finite or rows, key=lambda row: row["epsilon"] or 0.0)
    without = "No ledger: fitted without noise, or by an estimator that keeps none."
    sentence = shown["guarantee"] or (without if shown["n_cells"] else "Every fit failed.")
    return (
        f"<dt>{escape(shown['estimator'])}</dt><dd>{escape(sentence)}</dd>"
        f"<dd><code>{escape(shown['parameters'])}</code></dd>"
    )


def _settings(rows: list[Row]) -> dict[str, str]:
    """Return what a repetition needs that the tables do not say."""
    seeds = sorted({row["seed"] for row in rows} - {None})
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return {
        "seed": ", ".join(map(str, seeds)) or "none: the noise was fresh",
        "Python": f"{python}, {os.cpu_count()} processors",
        **versions(),
    }
