"""CSV files whose lines are records: no line decides how others are read."""

import csv
import io
import os
from collections.abc import Sequence
from typing import Any

from sklearn.utils import Bunch

from dpglm.exceptions import require
from dpglm.schema.columns import CategoricalColumn, NumericColumn
from dpglm.schema.table import Schema, load_schema, plain_path
from dpglm.schema.values import check_names, distinct


def read_csv(path: str | os.PathLike[str], schema: Schema | str | os.PathLike[str]) -> Bunch:
    """Read the columns of a schema from a CSV file with a header.

    Parameters
    ----------
    path : path-like
        In UTF-8, a record a line, separated by commas, or by semicolons if the header has one.
    schema : Schema, or a name or path as in `load_schema`

    Returns
    -------
    Bunch
        ``data`` (a DataFrame), ``target`` (an array) and ``schema``.

    Raises
    ------
    ValueError
        If the file lacks a column or rows, a line is not one record, or a value cannot be encoded.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dpglm.schema import NumericColumn, Schema, Target
    >>> schema = Schema("people", [NumericColumn("age", 0, 100)], Target("rich", ["no", "yes"]))
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "people.csv")
    ...     _ = path.write_text("name,age,rich\\nAda,36,yes\\nAl,41,no\\n")
    ...     people = read_csv(path, schema)
    >>> people.data["age"].tolist(), people.target.tolist()
    ([36.0, 41.0], ['yes', 'no'])
    """
    schema = schema if isinstance(schema, Schema) else load_schema(schema)
    frame = read_texts(path, [*schema.feature_names, schema.target.name])
    labels = frame.pop(schema.target.name)
    for column in schema.columns:
        raw = distinct(frame[column.name], column.name)
        numbers = column.numbers(raw)
        if isinstance(column, NumericColumn):
            frame[column.name] = numbers
        elif isinstance(column, CategoricalColumn) and not (column.places(raw) >= 0).any():
            raise ValueError(
                f"column {column.name!r} holds none of the categories of the schema, "
                f"{list(column.categories)}; spell them as the file does."
            )
    found = schema.target.numbers(distinct(labels, schema.target.name))
    return Bunch(data=frame, target=found, schema=schema)


def read_texts(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Any:
    """Return columns of a CSV file as strings; no contents of a line may shift or join another."""
    head, rows, known = [], [], {}
    with open(plain_path(path), encoding="utf-8-sig", newline="\n") as lines:
        try:
            if not lines.seekable():
                raise ValueError(f"{path} cannot be read twice; save the table in a file.")
            first = lines.readline()
            if first.strip('"').lower().startswith("sep="):
                raise ValueError(f"{path} begins with sep=, for spreadsheets; remove that line.")
            separator = ";" if ";" in first else ","
            lines.seek(0)
            reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
            head = [name.strip() for name in next(reader, [])]
            names = head if names is None else names
            own = check_names(dict.fromkeys(head), names)
            twice = [name for name in own if head.count(name) > 1]
            if twice:
                raise ValueError(f"{path} has several columns {twice[0]!r}; rename all but one.")
            wanted = [*map(head.index, own)]
            for row in reader:
                if len(row) != len(head) or reader.line_num != len(rows) + 2:
                    raise csv.Error
                # Most strings occur many times: keep one object of each.
                rows.append([known.setdefault(t, t) for t in (row[k].strip() for k in wanted)])
        except UnicodeDecodeError:
            raise ValueError(
                f"{path} is not a CSV file in UTF-8. For Parquet use dpglm.sources.ParquetSource, "
                "or read the table with pandas."
            ) from None
        except csv.Error:
            raise ValueError(
                f"{path}, line {len(rows) + 2 if head else 1}, is not one record with as many "
                "fields as the header. Quote fields that hold a separator or a double quote, and "
                "leave out empty lines, newlines within fields and fields longer than "
                f"{csv.field_size_limit():,}."
            ) from None
    if not rows:
        raise ValueError(f"{path} has no rows below its header.")
    pandas = require("pandas", "data", "A CSV file")
    return pandas.DataFrame(rows, columns=[*names], dtype=str)


def read_untyped(path: str | os.PathLike[str]) -> Any:
    """Return a CSV file as a DataFrame, of the types that pandas guesses from the values."""
    texts = read_texts(path).to_csv(index=False, quoting=csv.QUOTE_ALL)
    return require("pandas", "data", "A CSV file").read_csv(io.StringIO(texts))
