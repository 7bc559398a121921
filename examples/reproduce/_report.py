"""What the reproduction scripts share: reports of claims, as text and as Markdown.

A script builds a `Report` in a function of its parsed arguments and hands it to `run`, which adds
the options that all scripts have:

    def reproduce(arguments):
        report = Report("Their figure 1", "Authors (year), section")
        report.claim("noise is amplified", paper="1.56", ours="1.55 ±0.01", holds=True)
        return report

    def main(argv=None):
        return run(__doc__, reproduce, argv)
"""

import argparse
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpglm.study import ComparisonResults

_WIDTH = 100
_COLUMNS = ("claim", "paper", "ours", "holds")
# Share of the width of each column of the table of claims.
_SHARES = (0.31, 0.20, 0.26, 0.23)


@dataclass(frozen=True)
class Claim:
    """What a paper says, what we find, and whether the two agree."""

    claim: str
    paper: str
    ours: str
    holds: bool
    remark: str = ""
    why: str = ""

    @property
    def verdict(self) -> str:
        """ "holds" or "does not hold", with the reason or a remark."""
        word = "holds" if self.holds else "does not hold"
        return f"{word}: {self.remark}" if self.remark else word


@dataclass(frozen=True)
class Table:
    """Measured values, already formatted."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Report:
    """The claims of one table or figure of a paper, and the measurements behind the verdicts.

    ``drawing`` draws the figure, where there is one: it is called with matplotlib's pyplot and
    returns the figure.
    """

    title: str
    source: str
    claims: list[Claim] = field(default_factory=list)
    parts: list[Table | str] = field(default_factory=list)
    drawing: Callable[[Any], Any] | None = None

    def claim(
        self, claim: str, *, paper: str, ours: str, holds: bool, remark: str = "", why: str = ""
    ) -> None:
        """Add a claim, with a short remark for the table.

        ``why`` is the reason that the claim does not hold for, if it does not; several claims may
        share it. Without it the remark is the reason, and there must be one.
        """
        if not holds and not (remark or why):
            raise ValueError(f"say why this does not hold: {claim!r}")
        self.claims.append(Claim(claim, paper, ours, bool(holds), remark, "" if holds else why))

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Why claims do not hold, each reason with its claims."""
        reasons: dict[str, list[str]] = {}
        for claim in self.claims:
            if not claim.holds:
                reasons.setdefault(claim.why or claim.remark, []).append(claim.claim)
        return reasons

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table of measurements; floats are shown with four digits."""
        self.parts.append(Table(title, columns, [[_text(cell) for cell in row] for row in rows]))

    def note(self, text: str) -> None:
        """Add a paragraph below the tables so far."""
        self.parts.append(" ".join(text.split()))

    def __str__(self) -> str:
        lines = [self.title, "=" * len(self.title), *textwrap.wrap(self.source, _WIDTH), ""]
        lines += _claims_as_text(self.claims)
        for why in dict.fromkeys(claim.why for claim in self.claims if claim.why):
            about = "; ".join(self.reasons[why])
            lines += ["", *textwrap.wrap(f"Why not ({about}): {why}.", _WIDTH)]
        for part in self.parts:
            lines.append("")
            lines += textwrap.wrap(part, _WIDTH) if isinstance(part, str) else _table_as_text(part)
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def markdown(self, level: int = 2) -> str:
        """Return the report as Markdown, its title a heading of that level."""
        claims = [(c.claim, c.paper, c.ours, c.verdict) for c in self.claims]
        blocks = [f"{'#' * level} {self.title}", self.source]
        if self.reasons:
            held, items = sum(claim.holds for claim in self.claims), []
            blocks.append(f"{held} of {len(claims)} claims hold. What does not, and why:")
            for why, about in self.reasons.items():
                names = "; ".join(f"*{_escaped(name)}*" for name in about)
                items.append(f"- {names}: {_escaped(why)}.")
            blocks.append("\n".join(items))
        else:
            blocks.append(f"All {len(claims)} claims hold.")
        blocks.append(_markdown_table(_COLUMNS, claims))
        for part in self.parts:
            if isinstance(part, str):
                blocks.append(_escaped(part))
            else:
                blocks += [f"{_escaped(part.title)}:", _markdown_table(part.columns, part.rows)]
        return "\n\n".join(blocks) + "\n"


def run(
    description: str,
    reproduce: Callable[[argparse.Namespace], Report],
    argv: Sequence[str] | None = None,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    has_figure: bool = True,
) -> Report:
    """Parse the command line, print the report, write what was asked for, return the report."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a first impression, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of data and noise; default 0")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there too")
    if has_figure:
        parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the figure there")
    if add_arguments is not None:
        add_arguments(parser)
    arguments = parser.parse_args(argv)
    report = reproduce(arguments)
    print(report)
    if arguments.markdown is not None:
        arguments.markdown.write_text(report.markdown(), encoding="utf-8")
    if has_figure and arguments.figure is not None:
        draw(report, arguments.figure)
    return report


def draw(report: Report, path: Path) -> None:
    """Write the figure of a report to a file."""
    if report.drawing is None:
        raise SystemExit(f"--figure: {report.title!r} has tables only.")
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure = report.drawing(plt)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def mean_and_error(values: Any) -> tuple[float, float]:
    """Return the mean of independent values and its standard error."""
    values = np.asarray(values, dtype=float)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def accuracies(results: ComparisonResults, epsilon: float) -> dict[str, np.ndarray]:
    """Return the accuracy in percent of every estimator, in the order of repeats and folds."""
    folds: dict[str, dict[tuple[int, int], float]] = {}
    for record in results.records:
        if record["epsilon"] == epsilon:
            fold = record["repeat"], record["fold"]
            folds.setdefault(record["estimator"], {})[fold] = 100 * record["accuracy"]
    return {name: np.array([of[fold] for fold in sorted(of)]) for name, of in folds.items()}


def comparison(gain: Any, unit: str = "") -> tuple[str, bool, str]:
    """Return text, verdict and remark of a claimed gain, decided by two standard errors."""
    mean, error = mean_and_error(gain)
    ours = f"{mean:+.2f} ±{error:.2f}{unit}"
    if mean > 2 * error:
        return ours, True, ""
    return ours, False, "the opposite" if mean < -2 * error else "no difference beyond the noise"


def _text(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _claims_as_text(claims: Sequence[Claim]) -> list[str]:
    widths = [round(share * _WIDTH) - 2 for share in _SHARES]
    lines = [_row(_COLUMNS, widths), "-" * _WIDTH]
    for claim in claims:
        cells = (claim.claim, claim.paper, claim.ours, claim.verdict)
        wrapped = [textwrap.wrap(cell, w) for cell, w in zip(cells, widths, strict=True)]
        height = max(map(len, wrapped))
        padded = [cell + [""] * (height - len(cell)) for cell in wrapped]
        lines += [_row(line, widths) for line in zip(*padded, strict=True)]
        lines.append("")
    return lines[:-1]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _table_as_text(table: Table) -> list[str]:
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    first, *others = widths
    lines = textwrap.wrap(table.title, _WIDTH)
    for cells in (table.columns, *table.rows):
        numbers = (cell.rjust(width) for cell, width in zip(cells[1:], others, strict=True))
        lines.append("  " + "  ".join([cells[0].ljust(first), *numbers]))
    return lines


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
