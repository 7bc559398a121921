"""A table of one's own: a CSV file, described by a schema."""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from dpglm.census import import_pandas
from dpglm.schema import CategoricalColumn, NumericColumn, Schema

__all__ = ["read_csv"]


def read_csv(path: str | os.PathLike[str], schema: Schema, *, target: str | None = None) -> Bunch:
    """Read the columns of a schema from a CSV file with a header.

    Parameters
    ----------
    path : path-like
        Separated by commas, or by semicolons if the header has one. Columns that the schema does
        not list are ignored.
    schema : Schema
        Public bounds, categories and labels.
    target : str, optional
        Column of the labels; by default the one that the schema names.

    Returns
    -------
    Bunch
        ``data`` (a DataFrame), ``target`` (an array) and ``schema``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file lacks a column or has no rows, a number is no number, or a label is not among
        those of the schema. A category that the schema does not list is encoded as zeros.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dpglm.csv_table import read_csv
    >>> from dpglm.schema import NumericColumn, Schema, Target
    >>> schema = Schema("people", [NumericColumn("age", 0, 100)], Target("rich", ["no", "yes"]))
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "people.csv")
    ...     _ = path.write_text("name,age,rich\\nAda,36,yes\\nAl,41,no\\n")
    ...     people = read_csv(path, schema)
    >>> people.data["age"].tolist(), people.target.tolist()
    ([36.0, 41.0], ['yes', 'no'])
    """
    if target is not None:
        schema = replace(schema, target=replace(schema.target, name=target))
    pd = import_pandas()
    with open(path, encoding="utf-8-sig") as lines:
        separator = ";" if ";" in lines.readline() else ","
    try:
        frame = pd.read_csv(
            path, sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path} is not a CSV file with a header: {error}.") from error
    missing = [name for name in (*schema.feature_names, schema.target.name) if name not in frame]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; its header names {list(frame)}.")
    if frame.empty:
        raise ValueError(f"{path} has no rows below its header.")
    data = pd.DataFrame({column.name: _values(frame, column) for column in schema.columns})
    labels = _spelled(frame[schema.target.name], schema.target.labels)
    for row, label in enumerate(labels):
        if label is None:
            raise ValueError(
                f"row {row + 1} of {path} has {schema.target.name}="
                f"{frame[schema.target.name][row]!r}; the labels of the schema are "
                f"{list(schema.target.labels)}."
            )
    return Bunch(data=data, target=np.array(labels), schema=schema)


def _values(frame: Any, column: NumericColumn | CategoricalColumn) -> Any:
    """Return a column as numbers, or as categories of the schema and None for any other."""
    texts = frame[column.name]
    if isinstance(column, CategoricalColumn):
        categories = _spelled(texts, column.categories)
        if all(category is None for category in categories):
            raise ValueError(
                f"column {column.name!r} starts with {texts[0]!r} and holds none of the categories "
                f"of the schema, {list(column.categories)}; spell them as the file does."
            )
        return np.array(categories, dtype=object)
    numbers = import_pandas().to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    (bad,) = np.nonzero(~np.isfinite(numbers))
    if len(bad):
        raise ValueError(
            f"row {bad[0] + 1} has {column.name}={texts[bad[0]]!r}; give a finite number."
        )
    return numbers


def _spelled(texts: Iterable[str], values: tuple) -> list[Any]:
    """Return which of the public values each text spells, None where none."""
    known = {str(value): value for value in values}
    if isinstance(values[0], bool):
        known |= {str(value).lower(): value for value in values}
    elif isinstance(values[0], int):
        known |= {f"{value}.0": value for value in values}
    return [known.get(text.strip()) for text in texts]
