"""Tables of averaged results, and those of a comparison."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dpglm.exceptions import require
from dpglm.schema.table import plain_path

METRICS = {
    "accuracy": "accuracy, test fold",
    "auc": "AUC, test fold",
    "training_loss": "{loss} loss, training fold",
    "test_loss": "{loss} loss, test fold",
    "fit_seconds": "seconds per fit",
}
"""What is measured in each cell, with its title."""

SCORES = {"accuracy": "accuracy", "auc": "AUC", "loss": "loss"}
"""What a utility graph measures of each fit, with its title; a lower loss is better."""

GAINS = ("accuracy", "auc")
"""The metrics that are better if they are larger."""

MAIN_METRICS = ("accuracy", "auc", "training_loss")

_WIDTH = 100

Row = Mapping[str, Any]
"""Averages with what they are averages of, by name."""


class ResultTable:
    """Results, averaged by ``rows()`` to one dictionary each, and printed by ``table()``."""

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame."""
        what = f"{type(self).__name__}.to_frame"
        return require("pandas", "data", what).DataFrame(self.rows())

    def __str__(self) -> str:
        return self.table()


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean of some values and its standard error, None where they are too few."""
    n = len(values)
    # Steps that are far too long can end in losses whose squares overflow.
    with np.errstate(over="ignore"):
        mean = float(np.mean(values)) if n else None
        error = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else None
    return mean, error


def epsilons_of(rows: Iterable[Row]) -> list[float]:
    """Return the epsilons of some rows as they rise; rows without privacy have none."""
    return sorted({row["epsilon"] for row in rows} - {None})


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """Return the rows under each value of one of their values, in order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def score_text(row: Row, metric: str) -> str:
    """Return a mean with its standard error, if any."""
    mean, error = row[metric], row[f"{metric}_se"]
    if mean is None:
        return "failed"
    decimals = 2 if metric == "fit_seconds" else 4
    return f"{mean:.{decimals}f}" + ("" if error is None else f" ±{error:.{decimals}f}")


def configured(estimator: BaseEstimator, params: Mapping[str, Any]) -> BaseEstimator:
    """Return an unfitted copy of an estimator at a setting, which it shares nothing with."""
    own = {name: clone(value, safe=False) for name, value in params.items()}
    return clone(estimator).set_params(**own)


def parameters_named(estimator: BaseEstimator, name: str) -> list[str]:
    """Return the full names of a parameter, of the estimator's own and of those inside of it."""
    return [full for full in estimator.get_params() if full.split("__")[-1] == name]


def one_line(text: str) -> str:
    """Return a text with single spaces between its words."""
    return " ".join(text.split())


def value_text(value: Any) -> str:
    """Return the value of a parameter as short text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else one_line(repr(value))


def setting_text(params: Mapping[str, Any]) -> str:
    """Return a setting on one line."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in params.items())


@dataclass(frozen=True)
class Cell:
    """One fit of a comparison, named by everything that determines its outcome.

    The sizes are those of the encoded table, of which the fingerprint is a hash. `parameters` has
    the class and the parameters that the cell does not set; epsilon and delta are None without
    privacy. The seed is that of the whole comparison.
    """

    dataset: str
    n_samples: int
    n_features: int
    fingerprint: str
    estimator: str
    parameters: str
    epsilon: float | None
    delta: float | None
    n_splits: int
    repeat: int
    fold: int
    seed: int | None

    @classmethod
    def of(cls, record: Row) -> "Cell":
        """Return the cell that a record is about."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})


# Strings that stay strings, even if they spell a number that JSON lacks.
_NOT_NUMBERS = ("dataset", "fingerprint", "estimator", "parameters", "loss", "guarantee", "error")
_FOREIGN = "line {} of {} is not a cell of a comparison; name another file or delete this one."


class ResultsFile:
    """Finished cells in a file, a line of JSON each; an unfinished last line counts for nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = plain_path(path)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """Return the fields and the outcome of each cell together; of several records, the last.

        An unfinished last line is removed. Anything else but finished cells is a ValueError.
        """
        if not self.path.exists():
            return {}
        *lines, unfinished = self.path.read_bytes().split(b"\n")
        # Someone else's file is left alone, and so must not be taken for an unfinished line.
        if unfinished[:10] != b'{"dataset"'[: len(unfinished)]:
            raise ValueError(_FOREIGN.format(len(lines) + 1, self.path))
        records = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                texts = {k: v for k, v in record.items() if isinstance(v, str)}
                record |= {k: float(v) for k, v in texts.items() if k not in _NOT_NUMBERS}
                records[Cell.of(record)] = record
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(_FOREIGN.format(number, self.path)) from error
        if unfinished:
            os.truncate(self.path, self.path.stat().st_size - len(unfinished))
        return records

    def append(self, cell: Cell, outcome: Mapping[str, Any]) -> None:
        """Add a finished cell and what was measured, or ``{"error": message}``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write(strict_json({**asdict(cell), **outcome}).encode() + b"\n")


@dataclass(frozen=True, repr=False)
class ComparisonResults(ResultTable):
    """The finished cells of a comparison; printed, they are `table` and `notes`.

    Parameters
    ----------
    records : sequence of mapping
        One per cell: the fields of a `Cell`, and ``error`` or the measurements. These are
        ``accuracy``, ``auc``, ``loss`` ("logistic" or "hinge"), ``training_loss``, ``test_loss``,
        ``fit_seconds``, ``ledger_epsilon`` and ``warnings``.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import compare
    >>> from dpglm.datasets import make_census
    >>> census = {"census": make_census(1000, random_state=0)}
    >>> results = compare(census, {"logistic": DPLogisticRegression()}, epsilons=[0.5, 1.0])
    >>> [(row["epsilon"], row["n_cells"]) for row in results.rows()]
    [(0.5, 5), (1.0, 5)]
    """

    records: Sequence[Row]

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, in order."""
        return list(dict.fromkeys(record["dataset"] for record in self.records))

    @property
    def errors(self) -> list[Row]:
        """The records of the cells that raised."""
        return [record for record in self.records if "error" in record]

    def rows(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """Average over folds and repeats, for one dataset or all.

        Returns
        -------
        list of dict
            One per dataset, estimator and epsilon, with the fields that its cells share. The number
            ``n_cells`` leaves out the ``n_errors`` that raised. Each metric has its mean under its
            name, and its standard error under the name with ``_se`` (None for a single cell).
            ``loss``, the largest ``ledger_epsilon`` and the first fit's ``guarantee`` follow. The
            metrics are None if every cell raised.
        """
        groups: dict[Cell, list[Row]] = {}
        for record in self.records:
            if dataset in (None, record["dataset"]):
                # Cells that differ in nothing but the fold and the repeat are averaged.
                group = replace(Cell.of(record), repeat=0, fold=0)
                groups.setdefault(group, []).append(record)
        return [_averaged(group, records) for group, records in groups.items()]

    def panels(self, dataset: str, metrics: Iterable[str] = MAIN_METRICS) -> list[tuple]:
        """Return title, metric and rows of what can share an axis: losses once for each kind."""
        rows, found = self.rows(dataset), []
        for metric in metrics:
            title = METRICS[metric]
            losses = dict.fromkeys(row["loss"] for row in rows if row["loss"])
            for loss in losses if "{loss}" in title else [None]:
                own = [row for row in rows if loss in (None, row["loss"])]
                found.append((title.format(loss=loss), metric, own))
        return found

    def headline(self, dataset: str) -> str:
        """Return a dataset's name and size, the protocol and the delta, in words."""
        rows = self.rows(dataset)
        first, deltas = rows[0], sorted({row["delta"] for row in rows} - {None})
        repeats = f" x {first['n_repeats']}" if first["n_repeats"] > 1 else ""
        return (
            f"{dataset}: {first['n_samples']:,} rows x {first['n_features']} features, "
            f"{first['n_splits']}-fold cross-validation{repeats}"
            + "".join(f", delta {delta:g}" for delta in deltas)
        )

    def table(self, metrics: Iterable[str] = MAIN_METRICS) -> str:
        """Return a plain-text table: estimators down, epsilons across, mean ± standard error.

        Parameters
        ----------
        metrics : iterable of {"accuracy", "auc", "training_loss", "test_loss", "fit_seconds"}

        Returns
        -------
        str
            One table per dataset, 100 columns wide or less. A value that spans all epsilons is
            that of an estimator without privacy.
        """
        metrics = tuple(metrics)
        return "\n\n".join(self._table(name, metrics) for name in self.datasets)

    def _table(self, dataset: str, metrics: Sequence[str]) -> str:
        """Return the table of one dataset, in as many blocks as the width asks for."""
        rows, panels = self.rows(dataset), self.panels(dataset, metrics)
        epsilons = epsilons_of(rows)
        name_width = 4 + max(len(row["estimator"]) for row in rows)
        texts = [f"epsilon {epsilon:g}" for epsilon in epsilons]
        texts += [score_text(row, metric) for _, metric, own in panels for row in own]
        width = 2 + max(map(len, texts))
        n_blocks = math.ceil(len(epsilons) / max(1, (_WIDTH - name_width) // width))

        lines = [self.headline(dataset), "mean ± standard error over the folds"]
        for block in np.array_split(np.array(epsilons), max(1, n_blocks)):
            header = "".join(f"epsilon {epsilon:g}".rjust(width) for epsilon in block)
            lines += ["", " " * name_width + header]
            for title, metric, own in panels:
                lines.append(title)
                for name, group in grouped(own, "estimator").items():
                    cells = {row["epsilon"]: score_text(row, metric) for row in group}
                    lines.append(f"  {name}".ljust(name_width) + _line(cells, block, width))
        return "\n".join(line.rstrip() for line in lines)

    def to_json(self) -> str:
        """Return the averages and the errors as a JSON object with the lists ``rows``, ``errors``.

        Numbers that JSON lacks are the strings "inf", "-inf" and "nan".
        """
        errors = [dict(record) for record in self.errors]
        return strict_json({"rows": self.rows(), "errors": errors}, indent=2) + "\n"

    def notes(self) -> str:
        """Return a line for each distinct error and warning, with the number of fits."""
        counts: Counter[tuple[str, str]] = Counter()
        for record in self.records:
            messages = [f"warned: {message}" for message in record.get("warnings", ())]
            if "error" in record:
                messages = [f"failed: {record['error']}"]
            counts.update((record["estimator"], message) for message in messages)
        n_fits = Counter(record["estimator"] for record in self.records)
        return "\n".join(
            f"{count} of {n_fits[name]} fits of {name} {message}"
            for (name, message), count in counts.items()
        )

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.table(), self.notes()) if part)

    def __repr__(self) -> str:
        return f"<ComparisonResults: {len(self.records)} cells, {len(self.errors)} of them errors>"


def _line(cells: Mapping[float | None, str], block: np.ndarray, width: int) -> str:
    """Return the values of one estimator; without privacy, one value spans all epsilons."""
    if None not in cells:
        return "".join(cells.get(epsilon, "").rjust(width) for epsilon in block)
    if len(block) < 2:
        return cells[None].rjust(width)
    return "  " + f" {cells[None]} ".center(len(block) * width - 2, "-")


def _averaged(group: Cell, records: list[Row]) -> dict[str, Any]:
    measured = [record for record in records if "error" not in record]
    first = measured[0] if measured else {}
    row = {k: v for k, v in asdict(group).items() if k not in ("repeat", "fold")}
    row["n_repeats"] = len({record["repeat"] for record in records})
    row["n_cells"] = len(measured)
    row["n_errors"] = len(records) - len(measured)
    row["loss"] = first.get("loss")
    for metric in METRICS:
        row[metric], row[f"{metric}_se"] = mean_and_error([own[metric] for own in measured])
    spent = [record["ledger_epsilon"] for record in measured]
    row["ledger_epsilon"] = max(spent) if spent and None not in spent else None
    row["guarantee"] = first.get("guarantee")
    return row


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON; the numbers that JSON lacks become "inf", "-inf" and "nan"."""
    strict = json.loads(json.dumps(value), parse_constant=lambda number: str(float(number)))
    return json.dumps(strict, indent=indent, ensure_ascii=False, allow_nan=False)
