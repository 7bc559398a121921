"""Web pages that need no other file."""

from collections.abc import Mapping
from contextlib import suppress
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from string import Template

from dpglm.study.plots import Display, pyplot

_PACKAGES = ("dpglm", "scikit-learn", "numpy", "scipy", "numba", "matplotlib", "dp-accounting")
_INK = "#123456"  # a colour of its own, for which that of the page is put


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
