"""What the reproduction scripts share: reports of claims, as text and as Markdown.

A script builds a `Report` in a function of its parsed arguments and hands it to `run`, which adds
the options that all scripts have:

    def reproduce(arguments):
        report = Report("Their figure 1", "Authors (year), section")
        paper = printed("yu.variance_at_0.9")
        report.claim("noise is amplified", paper=paper, ours="5.29 ±0.01", holds=5.29 > paper.value)
        return report

    def main(argv=None):
        return run(__doc__, reproduce, argv)

A claim is half a sentence of the source, decided by a test that can come out either way: it holds,
or it does not. A slip is what the source prints wrongly, if a test shows so. What was not run says
why. What we find besides is a table or a note, and what the authors' program does goes to
`Report.program`.
"""

import argparse
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dpglm.study.comparison import ComparisonResults

_WIDTH = 100
_COLUMNS = ("claim", "paper", "ours", "verdict")
# Share of the width of each column of the table of claims.
_SHARES = (0.31, 0.20, 0.26, 0.23)
HOLDS, FAILS, SLIP, NOT_RUN = VERDICTS = ("holds", "does not", "slip", "not run")
_PRINTED = json.loads(Path(__file__).with_name("printed.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Printed:
    """A figure or formula of a source, where it stands, and the setting it is for."""

    value: Any
    place: str
    setting: str = ""

    def __str__(self) -> str:
        return self.text(f"{self.value:,}" if isinstance(self.value, int) else str(self.value))

    def text(self, shown: str) -> str:
        """Return the value as shown, with its place."""
        return f"{shown} ({self.place})"


def printed(key: str) -> Printed:
    """Return what ``printed.json`` has by that key: source, dot, name."""
    return Printed(*_PRINTED[key])


@dataclass(frozen=True)
class Claim:
    """What a source prints, what we find, and the verdict; ``main`` ones are on the page."""

    claim: str
    paper: str
    ours: str
    verdict: str
    remark: str = ""
    main: bool = False

    @property
    def judged(self) -> str:
        """The verdict, with a remark if there is one."""
        return f"{self.verdict}: {self.remark}" if self.remark else self.verdict


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
    returns the figure. Where ``other_data`` says what stands in for the source's data, claims
    about them are not run.
    """

    title: str
    source: str
    claims: list[Claim] = field(default_factory=list)
    parts: list[Table | str] = field(default_factory=list)
    drawing: Callable[[Any], Any] | None = None
    more_drawings: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    other_data: str = ""
    _program: list[tuple[str, str, str]] = field(default_factory=list, init=False)

    def claim(
        self,
        claim: str,
        *,
        paper: str | Printed,
        ours: str,
        holds: bool,
        remark: str = "",
        main: bool = False,
    ) -> None:
        """Add a claim and whether it holds, with a short remark for the table."""
        verdict = HOLDS if holds else FAILS
        if self.other_data:
            verdict, remark = NOT_RUN, self.other_data
        self.claims.append(Claim(claim, str(paper), ours, verdict, remark, main))

    def slip(
        self,
        claim: str,
        *,
        paper: str | Printed,
        ours: str,
        wrong: bool,
        remark: str = "",
        main: bool = False,
    ) -> None:
        """Add what a source prints, which is a slip if it is shown to be wrong."""
        verdict = SLIP if wrong else HOLDS
        self.claims.append(Claim(claim, str(paper), ours, verdict, remark, main))

    def not_run(self, claim: str, *, paper: str | Printed, why: str, main: bool = False) -> None:
        """Add a claim that was not tried, and why."""
        self.claims.append(Claim(claim, str(paper), "", NOT_RUN, why, main))

    def program(self, part: str, *, does: str, ours: str) -> None:
        """Add what a part of the authors' program does otherwise than the source says."""
        self._program.append((part, does, ours))

    @property
    def headline(self) -> str:
        """How many of the printed claims have each verdict."""
        verdicts = [claim.verdict for claim in self.claims]
        return ", ".join(f"{verdicts.count(word)} {word}" for word in VERDICTS) + "."

    @property
    def body(self) -> list[Table | str]:
        """The authors' program, and the measurements."""
        columns = ("part", "what it does", "here")
        program = [Table("The authors' program", columns, self._program)] if self._program else []
        return [*program, *self.parts]

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table of measurements; floats are shown with four digits."""
        self.parts.append(Table(title, columns, [[_text(cell) for cell in row] for row in rows]))

    def note(self, text: str) -> None:
        """Add a paragraph below the tables so far."""
        self.parts.append(" ".join(text.split()))

    def __str__(self) -> str:
        lines = [self.title, "=" * len(self.title), *textwrap.wrap(self.source, _WIDTH), ""]
        claims = [(c.claim, c.paper, c.ours, c.judged) for c in self.claims]
        lines += [self.headline, "", *_wrapped_table(_COLUMNS, claims, _SHARES)]
        for part in self.body:
            lines.append("")
            lines += textwrap.wrap(part, _WIDTH) if isinstance(part, str) else _table_as_text(part)
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def markdown(self, level: int = 2) -> str:
        """Return the report as Markdown, its title a heading of that level."""
        claims = [("* " * c.main + c.claim, c.paper, c.ours, c.judged) for c in self.claims]
        blocks = [f"{'#' * level} {self.title}", self.source, self.headline]
        blocks.append(markdown_table(_COLUMNS, claims))
        for part in self.body:
            if isinstance(part, str):
                blocks.append(_escaped(part))
            else:
                blocks += [f"{_escaped(part.title)}:", markdown_table(part.columns, part.rows)]
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
        draw(report.drawing, arguments.figure)
    return report


def draw(drawing: Callable[[Any], Any], path: Path, dpi: int = 150) -> None:
    """Write a figure to a file."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure = drawing(plt)
    figure.savefig(path, dpi=dpi)
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


def _wrapped_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], shares: Sequence[float]
) -> list[str]:
    """Return lines of a table whose cells are wrapped to shares of the width."""
    widths = [round(share * _WIDTH) - 2 for share in shares]
    lines = [_row(columns, widths), "-" * _WIDTH]
    for row in rows:
        cells = [textwrap.wrap(cell, w) for cell, w in zip(row, widths, strict=True)]
        lines += [_row(line, widths) for line in zip_longest(*cells, fillvalue="")]
        lines.append("")
    return lines[:-1]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _table_as_text(table: Table) -> list[str]:
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = textwrap.wrap(table.title, _WIDTH)
    if sum(widths) + 2 * len(widths) > _WIDTH + 20:
        n_columns = len(columns)
        return lines + _wrapped_table(table.columns, table.rows, [1 / n_columns] * n_columns)
    first, *others = widths
    for cells in (table.columns, *table.rows):
        numbers = (cell.rjust(width) for cell, width in zip(cells[1:], others, strict=True))
        lines.append("  " + "  ".join([cells[0].ljust(first), *numbers]))
    return lines


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
