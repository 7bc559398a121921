"""Results of a comparison, and their tables."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone

if TYPE_CHECKING:
    import pandas

__all__ = [
    "LARGER_IS_BETTER",
    "METRICS",
    "Cell",
    "ComparisonResults",
    "ResultsFile",
    "configured",
    "format_table",
    "headline",
    "panels",
    "score_text",
    "setting_text",
    "value_text",
]

METRICS = {
    "accuracy": "accuracy, test fold",
    "auc": "AUC, test fold",
    "training_loss": "{loss} loss, training fold",
    "test_loss": "{loss} loss, test fold",
    "fit_seconds": "seconds per fit",
}
"""What is measured in each cell, with its title."""

LARGER_IS_BETTER = ("accuracy", "auc")
"""The metrics that are better if they are larger."""

_WIDTH = 100

Row = Mapping[str, Any]


def headline(rows: Sequence[Row]) -> str:
    """Return a dataset's name and size, the protocol and the delta, in words.

    Parameters
    ----------
    rows : sequence of mapping
        As from ``ComparisonResults.rows``, of one dataset.

    Returns
    -------
    str

    Examples
    --------
    >>> from dpglm.study.results import headline
    >>> row = {"dataset": "toy", "n_samples": 1000, "n_features": 3, "n_splits": 5}
    >>> headline([{**row, "n_repeats": 2, "delta": 1e-6}])
    'toy: 1,000 rows x 3 features, 5-fold cross-validation x 2, delta 1e-06'
    """
    first = rows[0]
    repeats = f" x {first['n_repeats']}" if first["n_repeats"] > 1 else ""
    deltas = sorted({row["delta"] for row in rows} - {None})
    return (
        f"{first['dataset']}: {first['n_samples']:,} rows x {first['n_features']} features, "
        f"{first['n_splits']}-fold cross-validation{repeats}"
        + "".join(f", delta {delta:g}" for delta in deltas)
    )


def panels(rows: Sequence[Row], metrics: Iterable[str]) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield the title, metric and rows of what can be compared: one panel per kind of loss.

    Parameters
    ----------
    rows : sequence of mapping
        As from ``ComparisonResults.rows``, of one dataset.
    metrics : iterable of str
        Keys of `METRICS`.

    Yields
    ------
    title, metric : str
    rows : list of mapping

    Examples
    --------
    >>> from dpglm.study.results import panels
    >>> rows = [{"loss": "logistic"}, {"loss": "hinge"}]
    >>> [(title, len(shown)) for title, _, shown in panels(rows, ["auc", "test_loss"])]
    [('AUC, test fold', 2), ('logistic loss, test fold', 1), ('hinge loss, test fold', 1)]
    """
    for metric in metrics:
        title = METRICS[metric]
        if "{loss}" not in title:
            yield title, metric, list(rows)
            continue
        for loss in dict.fromkeys(row["loss"] for row in rows if row["loss"]):
            yield title.format(loss=loss), metric, [row for row in rows if row["loss"] == loss]


def format_table(rows: Sequence[Row], metrics: Iterable[str]) -> str:
    """Return estimators down and epsilons across, in as many blocks as the width asks for.

    Parameters
    ----------
    rows : sequence of mapping
        As from ``ComparisonResults.rows``, of one dataset.
    metrics : iterable of str
        Keys of `METRICS`.

    Returns
    -------
    str

    Examples
    --------
    >>> from dpglm.study.results import format_table
    >>> protocol = {"dataset": "toy", "n_samples": 1000, "n_features": 3, "n_splits": 5}
    >>> protocol |= {"n_repeats": 1, "loss": "hinge", "delta": 1e-6, "estimator": "svm"}
    >>> rows = [{**protocol, "epsilon": 1.0, "auc": 0.8, "auc_se": 0.01}]
    >>> print(format_table(rows, ["auc"]))
    toy: 1,000 rows x 3 features, 5-fold cross-validation, delta 1e-06
    mean ± standard error over the folds
    <BLANKLINE>
                 epsilon 1
    AUC, test fold
      svm   0.8000 ±0.0100
    """
    sections = [
        (title, {(row["estimator"], row["epsilon"]): score_text(row, metric) for row in shown})
        for title, metric, shown in panels(rows, metrics)
    ]
    epsilons = sorted({row["epsilon"] for row in rows} - {None})
    name_width = 4 + max(len(row["estimator"]) for row in rows)
    texts = [f"epsilon {epsilon:g}" for epsilon in epsilons]
    texts += [text for _, cells in sections for text in cells.values()]
    column_width = 2 + max(map(len, texts))
    n_blocks = math.ceil(len(epsilons) / max(1, (_WIDTH - name_width) // column_width))

    lines = [headline(rows), "mean ± standard error over the folds"]
    for block in np.array_split(np.array(epsilons), max(1, n_blocks)):
        header = "".join(f"epsilon {epsilon:g}".rjust(column_width) for epsilon in block)
        lines += ["", " " * name_width + header]
        for title, cells in sections:
            lines.append(title)
            for name in dict.fromkeys(name for name, _ in cells):
                values = _line(name, cells, block, column_width)
                lines.append(f"  {name}".ljust(name_width) + values)
    return "\n".join(line.rstrip() for line in lines)


def _line(
    name: str, cells: Mapping[tuple[str, Any], str], block: np.ndarray, column_width: int
) -> str:
    """Return the values of one estimator; without privacy, one value spans all epsilons."""
    if (name, None) in cells and len(block) < 2:
        return cells[name, None].rjust(column_width)
    if (name, None) in cells:
        return "  " + f" {cells[name, None]} ".center(len(block) * column_width - 2, "-")
    return "".join(cells.get((name, epsilon), "").rjust(column_width) for epsilon in block)


def score_text(row: Row, metric: str) -> str:
    """Return a mean with its standard error, if any.

    Examples
    --------
    >>> from dpglm.study.results import score_text
    >>> score_text({"auc": 0.8, "auc_se": 0.01}, "auc")
    '0.8000 ±0.0100'
    """
    mean, error = row[metric], row[f"{metric}_se"]
    if mean is None:
        return "failed"
    decimals = 2 if metric == "fit_seconds" else 4
    return f"{mean:.{decimals}f}" + ("" if error is None else f" ±{error:.{decimals}f}")


def configured(estimator: BaseEstimator, params: Mapping[str, Any]) -> BaseEstimator:
    """Return an unfitted copy of an estimator at a setting, which it shares nothing with.

    Parameters
    ----------
    estimator : estimator
    params : mapping from str to object

    Returns
    -------
    estimator

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.results import configured
    >>> configured(DPLogisticRegression(), {"max_iter": 10})
    DPLogisticRegression(max_iter=10)
    """
    own = {name: clone(value, safe=False) for name, value in params.items()}
    return clone(estimator).set_params(**own)


def value_text(value: Any) -> str:
    """Return the value of a parameter as short text.

    Examples
    --------
    >>> from dpglm.study.results import value_text
    >>> value_text("auto"), value_text(0.25), value_text(None)
    ('auto', '0.25', 'None')
    """
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else " ".join(repr(value).split())


def setting_text(params: Mapping[str, Any]) -> str:
    """Return a setting on one line.

    Examples
    --------
    >>> from dpglm.study.results import setting_text
    >>> setting_text({"max_iter": 10, "preconditioner": None})
    'max_iter=10, preconditioner=None'
    """
    return ", ".join(f"{name}={value_text(value)}" for name, value in params.items())


@dataclass(frozen=True)
class Cell:
    """One fit of a comparison, named by everything that determines its outcome.

    Parameters
    ----------
    dataset : str
        Name given to the table.
    n_samples, n_features : int
        Shape of the encoded table, all folds together.
    fingerprint : str
        Hash of the encoded table and its labels.
    estimator : str
        Name given to the estimator.
    parameters : str
        The estimator's class and parameters, without those that the cell sets.
    epsilon, delta : float or None
        The privacy asked for; None for an estimator without privacy.
    n_splits, repeat, fold : int
        Test fold `fold` of ``KFold(n_splits, shuffle=True, random_state=repeat)``.
    seed : int or None
        Seed of the whole comparison; None where the noise comes from the operating system.
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
    def of(cls, record: Mapping[str, Any]) -> "Cell":
        """Return the cell that a record is about."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})


class ResultsFile:
    """Finished cells in a file, one line of JSON each, in the order in which they finished.

    A process that is killed while it writes leaves at most an unfinished last line, which counts
    for nothing.

    Parameters
    ----------
    path : path-like
        Created, with its folder, by the first `append`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from dpglm.study.results import Cell, ResultsFile
    >>> cell = Cell("toy", 100, 3, "4f2a", "svm", "DPLinearSVM()", 1.0, 1e-6, 5, 0, 0, None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = ResultsFile(pathlib.Path(folder, "results.jsonl"))
    ...     file.append(cell, {"accuracy": 0.75})
    ...     records = file.read()
    >>> records[cell]["accuracy"]
    0.75
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """Return the record of each cell; of several, the last.

        Returns
        -------
        dict from Cell to dict
            The fields of the cell and of its outcome together.

        Raises
        ------
        ValueError
            If the file holds anything but finished cells and an unfinished last line.
        """
        if not self.path.exists():
            return {}
        # The unfinished line may end inside a character.
        *lines, unfinished = self.path.read_text("utf-8", errors="replace").split("\n")
        if unfinished[:10] != '{"dataset"'[: len(unfinished)]:
            raise self._foreign(len(lines) + 1)
        records = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = _decoded(json.loads(line))
                records[Cell.of(record)] = record
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise self._foreign(number) from error
        return records

    def append(self, cell: Cell, outcome: Mapping[str, Any]) -> None:
        """Add a finished cell.

        Parameters
        ----------
        cell : Cell
        outcome : mapping
            What was measured, or ``{"error": message}``.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write(_json({**asdict(cell), **outcome}).encode() + b"\n")

    def drop_unfinished_line(self) -> None:
        """Remove what a killed process left after the last end of line."""
        if self.path.exists():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def _foreign(self, number: int) -> ValueError:
        return ValueError(
            f"line {number} of {self.path} is not a cell of a comparison; name another file or "
            "delete this one."
        )


@dataclass(frozen=True, repr=False)
class ComparisonResults:
    """The finished cells of a comparison; printed, they are `table` and `notes`.

    Parameters
    ----------
    records : sequence of mapping
        One per cell: the fields of a `Cell`, and either what was measured (``accuracy``, ``auc``,
        ``loss`` ("logistic" or "hinge"), ``training_loss``, ``test_loss``, ``fit_seconds``,
        ``ledger_epsilon`` and ``warnings``) or ``error``.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.comparison import compare
    >>> from dpglm.datasets import make_census
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"logistic": DPLogisticRegression(max_iter=20)},
    ...     epsilons=[0.5, 1.0],
    ... )
    >>> [(row["epsilon"], row["n_cells"]) for row in results.rows()]
    [(0.5, 5), (1.0, 5)]
    """

    records: Sequence[Mapping[str, Any]]

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, in order."""
        return list(dict.fromkeys(record["dataset"] for record in self.records))

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """The records of the cells that raised."""
        return [record for record in self.records if "error" in record]

    def rows(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """Average over folds and repeats.

        Parameters
        ----------
        dataset : str, optional
            Keep one dataset only.

        Returns
        -------
        list of dict
            One per dataset, estimator and epsilon: the fields that its cells share, their number
            ``n_cells`` without the ``n_errors`` that raised, ``loss``, the mean of each metric
            under its name and its standard error under the name with ``_se`` (None for a single
            cell), the largest ``ledger_epsilon``, and the ``guarantee`` that the first fit stated.
            The metrics are None if every cell raised.
        """
        groups: dict[Cell, list[Mapping[str, Any]]] = {}
        for record in self.records:
            if dataset in (None, record["dataset"]):
                group = replace(Cell.of(record), repeat=0, fold=0)
                groups.setdefault(group, []).append(record)
        return [_averaged(group, records) for group, records in groups.items()]

    def panels(
        self, dataset: str, metrics: Iterable[str]
    ) -> list[tuple[str, str, list[Mapping[str, Any]]]]:
        """Return what can share an axis: each metric, a loss metric once per kind of loss.

        Parameters
        ----------
        dataset : str
        metrics : iterable of {"accuracy", "auc", "training_loss", "test_loss", "fit_seconds"}

        Returns
        -------
        list of (title, metric, rows)
        """
        return list(panels(self.rows(dataset), metrics))

    def headline(self, dataset: str) -> str:
        """Return a dataset's name and size, the protocol and the delta, in words."""
        return headline(self.rows(dataset))

    def table(self, metrics: Iterable[str] = ("accuracy", "auc", "training_loss")) -> str:
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
        return "\n\n".join(format_table(self.rows(name), metrics) for name in self.datasets)

    def to_frame(self) -> "pandas.DataFrame":
        """Return `rows` as a frame.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            Without pandas; ``pip install "dpglm[data]"``.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                'ComparisonResults.to_frame needs pandas: pip install "dpglm[data]".'
            ) from error
        return pd.DataFrame(self.rows())

    def to_json(self) -> str:
        """Return the averages and the errors as a JSON document.

        Returns
        -------
        str
            An object with the lists ``rows`` and ``errors``; numbers that JSON lacks are the
            strings "inf", "-inf" and "nan".
        """
        errors = [dict(record) for record in self.errors]
        return _json({"rows": self.rows(), "errors": errors}, indent=2) + "\n"

    def notes(self) -> str:
        """Return a line for each distinct error and warning, with the number of fits.

        Returns
        -------
        str
            Empty if there are none.
        """
        counts = Counter(
            (record["estimator"], kind, message)
            for record in self.records
            for kind, message in _messages(record)
        )
        return "\n".join(
            f"{count} of {self._n_fits(name)} fits of {name} {kind}: {message}"
            for (name, kind, message), count in counts.items()
        )

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.table(), self.notes()) if part)

    def __repr__(self) -> str:
        return f"<ComparisonResults: {len(self.records)} cells, {len(self.errors)} of them errors>"

    def _n_fits(self, estimator: str) -> int:
        return sum(record["estimator"] == estimator for record in self.records)


def _messages(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in record:
        return [("failed", record["error"])]
    return [("warned", message) for message in record["warnings"]]


def _averaged(group: Cell, records: list[Mapping[str, Any]]) -> dict[str, Any]:
    row = {k: v for k, v in asdict(group).items() if k not in ("repeat", "fold")}
    measured = [record for record in records if "error" not in record]
    row["n_repeats"] = len({record["repeat"] for record in records})
    row["n_cells"] = len(measured)
    row["n_errors"] = len(records) - len(measured)
    row["loss"] = measured[0]["loss"] if measured else None
    for metric in METRICS:
        values = [record[metric] for record in measured]
        row[metric] = float(np.mean(values)) if values else None
        row[f"{metric}_se"] = (
            float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
        )
    spent = [record["ledger_epsilon"] for record in measured]
    row["ledger_epsilon"] = max(spent) if spent and None not in spent else None
    row["guarantee"] = measured[0].get("guarantee") if measured else None
    return row


def _json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON; the numbers that JSON lacks become "inf", "-inf" and "nan"."""
    return json.dumps(_encoded(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _encoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_encoded(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_NOT_NUMBERS = ("dataset", "fingerprint", "estimator", "parameters", "loss", "guarantee", "error")


def _decoded(record: dict[str, Any]) -> dict[str, Any]:
    return {
        k: float(v) if isinstance(v, str) and k not in _NOT_NUMBERS else v
        for k, v in record.items()
    }
