"""The datasets of Lee & Kifer (2018), Table 2: sizes and dimensions.

Run ``python examples/reproduce/lee_kifer_table2.py``; ``--quick`` leaves KDD Cup 1999 out, which
is the largest. The data come from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML
and scikit-learn. The authors' own files, which come with their program, are read where that folder
has them as ``bank-2018.dat``, ``ipums-br.dat`` and ``ipums-us.dat``.
"""

from typing import Any

import numpy as np
from _lee_kifer import FILES, SOURCE, authors_file, banded_adult, kddcup99
from _report import Report, printed, run

from dpglm.datasets import fetch_table


def claim(report: Report, name: str, table: Any, remark: str) -> None:
    """Add size and dimension, that of the column of ones included, beside the printed ones."""
    paper = printed(f"lee_kifer.table2.{name}")
    size, dimension = paper.value
    named = f"{name}: records x dimension", paper.text(f"{size:,} x {dimension}")
    if table is None:
        report.not_run(named[0], paper=named[1], why=remark)
        return
    ours = table[0].shape[0], table[0].shape[1] + 1
    report.claim(
        named[0],
        paper=named[1],
        ours="{:,} x {}".format(*ours),
        holds=ours == (size, dimension),
        remark=remark,
    )


def moved_ranges(bunches: dict[str, Any]) -> str:
    """Return what one record does to the ranges of the numeric columns."""
    moved, total, worst = 0, 0, (0.0, "")
    for bunch in bunches.values():
        names = [column.name for column in bunch.schema.numeric]
        values = np.sort(bunch.data[names].to_numpy(dtype=float), axis=0)
        width = values[-1] - values[0]
        # Without the record at one end, the range is shorter by so much.
        shift = np.maximum(values[1] - values[0], values[-1] - values[-2])
        shift = np.divide(shift, width, out=np.zeros_like(width), where=width > 0)
        moved, total = moved + int(np.count_nonzero(shift)), total + len(names)
        worst = max(worst, (float(shift.max()), names[int(shift.argmax())]))
    return (
        f"in {moved} of {total} numeric columns an end of the range is one record's; without it "
        f"that of {worst[1]} is {worst[0]:.0%} shorter. Schemas scale by public bounds "
        "(test_schema.py: test_transformer_does_not_depend_on_the_rows_it_was_fitted_on)"
    )


def reproduce(arguments) -> Report:
    home = arguments.data_home
    report = Report(
        "Datasets", f"{SOURCE}: Table 2. The dimension counts the column of ones of the intercept."
    )
    tables = {"Adult": banded_adult(home)} | {name: authors_file(name, home) for name in FILES}
    claim(
        report,
        "Adult",
        tables["Adult"],
        "the columns are ours, numbers in public bands; schema adult has 107",
    )
    for name, file in FILES.items():
        found = tables[name] is not None
        claim(
            report,
            name,
            tables[name],
            "the authors' file" if found else f"put the authors' file there as {file}",
        )
    if not arguments.quick:
        tables["KDDCup99"] = kddcup99(home, None)
        rows, columns = tables["KDDCup99"][0].shape
        why = f"fetchers have the 10 percent sample, {rows:,} x {columns + 1}"
        claim(report, "KDDCup99", None, why)
    fetched = {"Adult": fetch_table("adult", home), "BANK": fetch_table("bank", home)}
    if not arguments.quick:
        fetched["KDDCup99"] = fetch_table("kddcup99", home)
    report.program(
        "scaling of the features",
        does="by the observed range of each column, which is not charged",
        ours=moved_ranges(fetched),
    )
    rows = []
    for name, table in tables.items():
        if table is not None:
            X, y = table
            lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel() + 1)
            share = float(np.mean(y == np.unique(y)[1]))
            rows.append([name, f"{share:.1%}", float(np.median(lengths)), float(lengths.max())])
    report.table(
        "As encoded here; rows with the column of ones",
        ["", "second class", "row, median", "row, longest"],
        rows,
    )
    return report


def add_arguments(parser) -> None:
    parser.add_argument("--data-home", help="folder with the files of the datasets")


def main(argv=None) -> Report:
    return run(__doc__, reproduce, argv, add_arguments, has_figure=False)


if __name__ == "__main__":
    main()
