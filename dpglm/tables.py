"""Averages of a comparison as text."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["LARGER_IS_BETTER", "METRICS", "format_table", "headline", "panels", "score_text"]

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
    >>> from dpglm.tables import headline
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
    >>> from dpglm.tables import panels
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
    >>> from dpglm.tables import format_table
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
    >>> from dpglm.tables import score_text
    >>> score_text({"auc": 0.8, "auc_se": 0.01}, "auc")
    '0.8000 ±0.0100'
    """
    mean, error = row[metric], row[f"{metric}_se"]
    if mean is None:
        return "failed"
    decimals = 2 if metric == "fit_seconds" else 4
    return f"{mean:.{decimals}f}" + ("" if error is None else f" ±{error:.{decimals}f}")
