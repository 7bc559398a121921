"""The tables of a comparison, loaded by name or from a CSV file, and encoded."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.utils import resample

from dpglm.datasets import fetch_adult, fetch_bank, fetch_kddcup99, make_census, read_csv
from dpglm.schema import Schema
from dpglm.study.comparison import encoded

__all__ = ["CENSUS_ROWS", "DATASETS", "Table", "load_tables"]

CENSUS_ROWS = 20_000
_FETCHERS: dict[str, Callable[..., Any]] = {
    "adult": fetch_adult,
    "bank": fetch_bank,
    "kddcup99": fetch_kddcup99,
}
DATASETS = ("census", *_FETCHERS)

Table = tuple[Any, np.ndarray]
"""Encoded rows and their labels."""


def load_tables(
    names: Iterable[str],
    *,
    csv: tuple[os.PathLike[str], os.PathLike[str], str | None] | None = None,
    data_home: os.PathLike[str] | None = None,
    n_samples: int | None = None,
    n_splits: int = 2,
) -> dict[str, Table]:
    """Load tables and encode them with public bounds.

    Parameters
    ----------
    names : iterable of str
        Among `DATASETS`; not used with a CSV file.
    csv : (path of the table, path of its schema, column of the labels or None), optional
    data_home : path-like, optional
        Folder with the files of the datasets.
    n_samples : int, optional
        Draw so many rows of each, the same ones every time; by default `CENSUS_ROWS` of the census
        and all of the others.
    n_splits : int, default=2
        Number of folds that each must allow.

    Returns
    -------
    dict from str to (X, y)

    Raises
    ------
    ValueError, OSError, ImportError
        With a sentence that names the option at fault, if a table cannot be loaded or is too
        small.

    Examples
    --------
    >>> from dpglm.study.cli_data import load_tables
    >>> X, y = load_tables(["census"], n_samples=100)["census"]
    >>> X.shape
    (100, 99)
    """
    if csv is not None:
        loaded = _own_table(*csv)
    else:
        loaded = {name: _dataset(name, data_home, n_samples) for name in names}
    return {name: _rows(name, table, n_samples, n_splits) for name, table in loaded.items()}


def _own_table(
    path: os.PathLike[str], schema: os.PathLike[str], target: str | None
) -> dict[str, Table]:
    try:
        described = Schema.from_json(schema)
    except (ValueError, OSError) as problem:
        raise ValueError(f"argument --schema: {_reason(schema, problem)}") from problem
    try:
        return {described.name: encoded(read_csv(path, described, target=target))}
    except (ValueError, OSError, ImportError) as problem:
        raise ValueError(f"argument --csv: {_reason(path, problem)}") from problem


def _reason(path: os.PathLike[str], problem: Exception) -> str:
    if isinstance(problem, OSError):
        return f"{path} cannot be read ({problem.strerror})"
    return str(problem)


def _dataset(name: str, data_home: os.PathLike[str] | None, n_samples: int | None) -> Table:
    if name == "census":
        return make_census(n_samples or CENSUS_ROWS, random_state=0)
    try:
        return encoded(_FETCHERS[name](data_home))
    except (ValueError, OSError, ImportError) as problem:
        raise ValueError(f"argument --datasets: {name}: {problem}") from problem


def _rows(name: str, table: Table, n_samples: int | None, n_splits: int) -> Table:
    X, y = table
    if n_samples is not None and n_samples > len(y):
        raise ValueError(f"argument --n-samples: {name} has {len(y)} rows, fewer than {n_samples}")
    if n_samples is not None and n_samples < len(y):
        X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    if n_splits > len(y):
        raise ValueError(f"argument --folds: {n_splits} exceeds the {len(y)} rows of {name}")
    if len(np.unique(y)) < 2:
        raise ValueError(f"all rows of {name} have the label {y[0]!r}; there is nothing to learn")
    return X, y
