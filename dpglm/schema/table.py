"""The schema of a table: written down once, drafted, checked, and read from JSON."""

import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cache, cached_property
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpglm.checks import check_whole
from dpglm.schema.columns import (
    FILL_IN,
    BooleanColumn,
    CategoricalColumn,
    Column,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Quantity,
    Target,
    TextColumn,
)
from dpglm.schema.encoder import SchemaEncoder
from dpglm.schema.interactions import InteractionFeatures, check_interactions, draw_features
from dpglm.schema.values import as_listed, composed, dtypes, read_columns
from dpglm.tables import Printed

_VERSION = 1
# Of all terms; a full second moment has at most 512.
_MOST_COLUMNS = 128
_CURVED = (NumericColumn, DateColumn)
# Number of terms of full height: with more terms, row norms would grow.
_HIGH_CURVES = 8
# Bounds at this distance span orders of magnitude.
_WIDE = 10_000
# Kinds of columns in a document, which may leave out the first two.
_KINDS = {
    "number": NumericColumn,
    "category": CategoricalColumn,
    "boolean": BooleanColumn,
    "date": DateColumn,
    "ordinal": OrdinalColumn,
    "text": TextColumn,
}


@dataclass(frozen=True)
class Schema(Printed):
    """Public description of a table: columns with bounds or categories, and the target.

    Parameters
    ----------
    name : str
    columns : sequence of columns
        The features, each of one of the kinds: `NumericColumn`, `BooleanColumn`, `DateColumn`,
        `OrdinalColumn`, `CategoricalColumn`, `TextColumn`. Others of the table are not used.
    target : Target
    source : str, default=""
        Origin of the bounds and categories. They are public only if it is not the rows.
    interactions : int or sequence of pairs of names, optional
        Number of smooth features of four random columns each, which follow the encoded columns.
        Or pairs of columns, with 16 features each. Free text has none.
    seed : int, default=0
        Public seed of these features.

    Notes
    -----
    :meth:`draft` begins a schema from a table. The norm of a row that :meth:`transformer` encodes
    is at most :meth:`max_row_norm`, whatever the rows hold.

    Examples
    --------
    >>> columns = [NumericColumn("age", 0, 100), CategoricalColumn("housing", ["yes", "no"])]
    >>> schema = Schema("people", columns, Target("income", ["low", "high"]))
    >>> schema.feature_names, round(schema.max_row_norm(), 4)
    (['age', 'housing'], 2.6926)
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    name: str
    columns: tuple[Column, ...]
    target: Target
    source: str = ""
    interactions: int | tuple[tuple[str, str], ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a schema has name={self.name!r}; give a non-empty string.")
        if not isinstance(self.source, str):
            raise ValueError(f"schema {self.name!r} has source={self.source!r}; give a string.")
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise ValueError(f"schema {self.name!r} has columns=[]; list at least one column.")
        twice = _first_repeated(map(composed, [*self.feature_names, self.target.name]))
        if twice is not None:
            raise ValueError(
                f"schema {self.name!r} names {twice!r} twice; give every column and the target a "
                "name of its own."
            )
        is_draft = any(part.to_fill_in for part in (*self.columns, self.target))
        encoded = [] if is_draft else self._said
        twice = _first_repeated(name for column in encoded for name in column.encoded_names)
        if twice is not None:
            raise ValueError(
                f"schema {self.name!r} has several encoded columns that would be called "
                f"{twice!r}; rename a column or a category."
            )
        check_whole("seed", self.seed, at_least=0)
        if self.interactions is not None:
            able = [c.name for c in self.columns if not isinstance(c, TextColumn)]
            chosen = check_interactions(self.interactions, able)
            object.__setattr__(self, "interactions", chosen)

    def _blocks(self) -> Iterator[Any]:
        rows = [("column", "kind", "")]
        for part in (*self.columns, self.target):
            facts = {k: v for k, v in _document(part).items() if k not in ("name", "kind")}
            said = "; ".join(f"{field} {_in_short(value)}" for field, value in facts.items())
            rows.append((part.name, "target" if part is self.target else _kind(part), said))
        source = f", from {self.source}" if self.source else ""
        yield "", f"Schema {self.name}: {len(self.columns)} columns{source}", rows
        if self.n_interactions:
            text = f"{self.n_interactions} features of several columns, drawn with seed {self.seed}"
            yield "", f"{text}."
        yield "", "check(table) counts, for you alone, values out of bounds and unknown categories."

    @property
    def numeric(self) -> tuple[NumericColumn, ...]:
        """The numeric columns, in order."""
        return tuple(c for c in self.columns if isinstance(c, NumericColumn))

    @property
    def categorical(self) -> tuple[CategoricalColumn, ...]:
        """The categorical columns, in order."""
        return tuple(c for c in self.columns if isinstance(c, CategoricalColumn))

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of the raw table, in order, without the target."""
        return [column.name for column in self.columns]

    @property
    def classes(self) -> np.ndarray:
        """The public label set in sorted order, as scikit-learn's ``classes_`` would hold it."""
        self.check_filled_in()
        if self.target.labels is None:
            raise ValueError(
                f"schema {self.name!r} has no classes: its target {self.target.name!r} is a "
                "number, for regressors such as DPLinearRegression."
            )
        return np.unique(self.target.labels)

    @property
    def encoded_columns(self) -> tuple[Column, ...]:
        """The columns in the order of their blocks in an encoded row."""
        self.check_filled_in()
        kinds = Quantity, CategoricalColumn, TextColumn
        return tuple(c for kind in kinds for c in self._said if isinstance(c, kind))

    @cached_property
    def _said(self) -> tuple[Column, ...]:
        """The columns, each with its number of segments; kept in copies and pickles."""
        said = all(column.n_segments for column in self.columns if isinstance(column, _CURVED))
        return self.columns if said else self.additive().columns

    @property
    def n_encoded(self) -> int:
        """Number of columns of an encoded row, without the intercept."""
        own = sum(len(column.encoded_names) for column in self.encoded_columns)
        return own + self.n_interactions

    @property
    def n_interactions(self) -> int:
        """Number of features of several columns."""
        return len(self.interaction_features.columns) if self.interaction_features else 0

    @property
    def interaction_features(self) -> InteractionFeatures | None:
        """The features of several columns, if the schema has interactions."""
        if self.interactions is None:
            return None
        return draw_features(self.encoded_columns, self.interactions, self.seed)

    def max_row_norm(self, fit_intercept: bool = True) -> float:
        """Return the largest L2 norm of an encoded row, with the 1 of an intercept or without."""
        squares = sum(column.squared_norm for column in self.encoded_columns)
        squares += self.interaction_features.squared_norm if self.interaction_features else 0.0
        return math.sqrt(squares + bool(fit_intercept))

    def additive(self, n_segments: int | None = None) -> Self:
        """Return the schema with the number of segments set for each number and date.

        A column that has ``n_segments`` keeps it.

        Parameters
        ----------
        n_segments : int, optional
            Number for each column, a power of two: 1 for straight lines. By default 8, halved until
            numbers and dates have at most 128 columns, as `transformer` encodes them.

        Notes
        -----
        Bounds 10,000 or more apart give the scale ``"asinh"``, with a thousandth of that distance
        as `linear_width`. More than eight terms get a smaller `height`.

        Examples
        --------
        >>> columns = [NumericColumn("age", 0, 100), NumericColumn("income", 0, 1_000_000)]
        >>> schema = Schema("people", columns, Target("paid", [0, 1]))
        >>> schema.additive().columns[1].scale, schema.n_encoded, schema.additive(1).n_encoded
        ('asinh', 16, 2)
        """
        self.check_filled_in()
        if n_segments is not None:
            return self._bent(check_whole("n_segments", n_segments))
        for n_segments in (8, 4, 2):
            finer = self._bent(n_segments)
            n_bent = sum(c.n_segments for c in finer.columns if isinstance(c, _CURVED))
            if n_bent <= _MOST_COLUMNS:
                return finer
        return self._bent(1)

    def _bent(self, n_segments: int) -> Self:
        """Return the schema with at most this number of segments in terms that set none."""
        columns = [_bent(c, n_segments) if isinstance(c, _CURVED) else c for c in self.columns]
        n_curves = sum(c.n_segments > 1 for c in columns if isinstance(c, _CURVED))
        if n_curves > _HIGH_CURVES:
            most = round(4.0 * math.sqrt(_HIGH_CURVES / n_curves), 2)
            for k, (column, own) in enumerate(zip(columns, self.columns, strict=True)):
                if column is not own and column.n_segments > 1:
                    columns[k] = replace(column, height=min(column.height, most))
        return replace(self, columns=columns)

    def transformer(self, sparse_output: bool = False, interactions: Any = None) -> SchemaEncoder:
        """Return the encoder of a raw table, to arrays or with `sparse_output` to CSR matrices.

        `interactions` replaces those of the schema, unless it is None.
        """
        return SchemaEncoder(self, sparse_output, interactions)

    @classmethod
    def draft(cls, frame: Any, target: str = FILL_IN, *, name: str = "table") -> Self:
        """Return a schema to be filled in, from the names and dtypes of a table alone.

        The types of values in lists and objects are read. A dtype may follow from values: compare
        kinds with the data dictionary before you publish a draft. Replace each ``"FILL IN"`` in the
        text of :meth:`to_json`.

        Parameters
        ----------
        frame : data frame or dictionary of arrays
        target : str, optional
            The column to predict.
        name : str, default="table"

        Examples
        --------
        >>> import numpy as np
        >>> table = {"age": np.array([25, 36]), "paid": np.array(["no", "yes"])}
        >>> Schema.draft(table, target="paid").columns[0]
        NumericColumn(name='age', lower='FILL IN', upper='FILL IN', integer=True)
        """
        found = dtypes(frame)
        target = as_listed(target, found)
        if target not in (FILL_IN, *found):
            raise ValueError(f"target={target!r} is no column of the table, which has {[*found]}.")
        dtype = found.pop(target, "")
        of_target = {"labels": [False, True] if dtype == "boolean" else FILL_IN}
        if dtype == "real":
            of_target = {"lower": FILL_IN, "upper": FILL_IN}
        columns = [_drafted(*column) for column in found.items()]
        return cls(name, columns, Target(target, **of_target))

    def check_filled_in(self) -> None:
        """Raise a ValueError that lists what must be filled in, if this is a draft."""
        parts = [*self.columns, self.target]
        todo = [f"{' and '.join(p.to_fill_in)} of {p.name!r}" for p in parts if p.to_fill_in]
        if todo:
            raise ValueError(
                f"schema {self.name!r} is a draft; fill in {', '.join(todo)}, from what is public "
                "about the columns and not from the rows."
            )

    def check(self, frame: Any) -> str:
        """Return all that does not fit between the schema and a table, one line each.

        It looks at the rows, so that its result is as private as they.

        Examples
        --------
        >>> schema = Schema("people", [NumericColumn("age", 0, 100)], Target("paid", [0, 1]))
        >>> print(schema.check({"age": [25, 250], "paid": [0, 2]}))
        Schema.check looked at the rows: what it says must not leave the room.
        column 'age': 1 of 2 values are outside the bounds, and are clipped.
        column 'paid' holds the label 2, first in row 2, which is not among the labels [0, 1] of the
        schema; list it there, or map it to one of them.
        """
        self.check_filled_in()
        lines = [line for each in (*self.columns, self.target) for line in _problems(each, frame)]
        head = "Schema.check looked at the rows: what it says must not leave the room."
        return "\n".join([head, *self.doubts, *(lines or ["No problem was found."])])

    @property
    def doubts(self) -> list[str]:
        """Questions about columns whose names look like those of codes, years or the like."""
        return [question for question in map(_doubt, self.columns) if question]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as a dictionary of plain Python values."""
        head = {"version": _VERSION, "name": self.name, "source": self.source}
        if self.interactions is not None:
            head |= {"interactions": _plain(self.interactions), "seed": self.seed}
        return head | {"columns": [*map(_document, self.columns)], "target": _document(self.target)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Build a schema from what `to_dict` returns; ``source`` may be left out."""
        known = _object(document, "the schema")
        version, columns = known.pop("version", None), known.get("columns")
        if version != _VERSION:
            raise ValueError(
                f"the schema has version={version!r}; set version={_VERSION}, or upgrade dpglm if "
                "a later release wrote it."
            )
        if not isinstance(columns, list | tuple):
            raise ValueError(f"the schema has columns={columns!r}; give a list.")
        target = _made(Target, _object(known.get("target"), "the target"), "the target")
        return _made(cls, known | {"columns": [*map(_column, columns)], "target": target}, "schema")

    def to_json(self) -> str:
        """Return the JSON form as a string."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build a schema from its JSON form; `load_schema` reads a file."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is not JSON: {error}; see Schema.to_json().") from error
        return cls.from_dict(document)


def _in_short(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return ", ".join(map(str, value[:5])) + f", ... ({len(value)} in all)" * (len(value) > 5)


def load_schema(name_or_path: str | os.PathLike[str]) -> Schema:
    """Return a schema of the package, or read one from a JSON file.

    Parameters
    ----------
    name_or_path : {"adult", "bank", "census", "kddcup99"} or path-like

    Returns
    -------
    Schema

    Examples
    --------
    >>> load_schema("adult").classes
    array(['<=50K', '>50K'], dtype='<U5')
    """
    folder = files("dpglm").joinpath("schemas")
    packaged = {file.name.removesuffix(".json"): file for file in folder.iterdir()}
    file = packaged.get(str(name_or_path)) or plain_path(name_or_path)
    if not (file.is_file() or "." in file.name):
        raise ValueError(
            f"{str(name_or_path)!r} is no packaged schema and no file; choose one of "
            f"{sorted(packaged)}, or name a file."
        )
    return Schema.from_json(file.read_bytes())


def positive_place(classes: Any, pos_label: Any = None, schema: Schema | None = None) -> int:
    """Return the place of `pos_label`, or of the last label of a schema, or of the second class."""
    listed = [*map(composed, np.asarray(classes).tolist())]
    if pos_label is None and len(listed) == 2:
        labels = [*map(composed, schema.target.labels or listed)] if schema else listed
        pos_label = labels[-1] if set(labels) == set(listed) else listed[1]
    if np.ndim(pos_label) or composed(pos_label) not in listed:
        raise ValueError(f"pos_label={pos_label!r} must be one of the classes {listed}.")
    return listed.index(composed(pos_label))


def _first_repeated(values: Iterable[Any]) -> Any:
    """Return the first value that occurs again, or None."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _drafted(name: str, dtype: str) -> Column:
    kinds = {"boolean": BooleanColumn(name), "date": DateColumn(name, FILL_IN, FILL_IN)}
    kinds |= {"text": CategoricalColumn(name, FILL_IN), "ordinal": OrdinalColumn(name, FILL_IN)}
    return kinds.get(dtype, NumericColumn(name, FILL_IN, FILL_IN, integer=dtype == "integer"))


@cache
def _of_drafts() -> dict[str, Any]:
    """Return the choices of fields, and what names of columns may look like."""
    return tomllib.loads(files("dpglm").joinpath("schema", "drafts.toml").read_text("utf-8"))


def field_choices() -> Iterator[str]:
    """Yield the kinds of columns with their fields, and the choices of each field, in a line."""
    for kind, of in _KINDS.items():
        yield f"{kind}: {', '.join(field.name for field in fields(of) if field.name != 'name')}"
    yield from map(": ".join, _of_drafts()["choices"].items())


def _doubt(column: Column) -> str:
    """Return a question about a column whose kind and name may not fit together, or nothing."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W\d_]+", " ", column.name)
    for what, of in _of_drafts()["names"].items():
        if re.search(rf"\b({of['words']})\b", words.lower()) and _kind(column) in of["kinds"]:
            if what == "a year" and not column.to_fill_in and column.lower >= 1000:
                return ""  # not an age, nor from the year 0
            return f"column {column.name!r}: is it {what}? {of['advice']}."
    return ""


def _kind(column: Column | Target) -> str:
    return next((kind for kind, of in _KINDS.items() if type(column) is of), "number")


def _bent(column: NumericColumn | DateColumn, n_segments: int) -> Column:
    """Return the column with as many segments as it can have, at most `n_segments`, or its own."""
    if column.n_segments is not None:
        return column
    lower, upper = column.bounds
    if column.integer:
        n_segments = min(n_segments, 2 ** math.floor(math.log2(max(1.0, upper - lower))))
    if n_segments == 1:
        return replace(column, n_segments=1)
    wide = isinstance(column, NumericColumn) and upper - lower >= _WIDE
    if wide and column.scale == "linear":
        column = replace(column, scale="asinh", linear_width=(upper - lower) / 1000)
    return replace(column, n_segments=n_segments)


def _problems(column: Column | Target, frame: Any) -> list[str]:
    """Return what does not fit between a column and its values."""
    lines = []
    try:
        raw = read_columns(frame, [column.name])[column.name]
        lines += [f"column {column.name!r}: {text}." for text in column.remarks(raw)]
        column.numbers(raw)
    except ValueError as error:
        lines.append(str(error))
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value.isoformat() if isinstance(value, date) else value


def _document(column: Column | Target) -> dict[str, Any]:
    metadata = {field: _plain(value) for field, value in column.metadata().items()}
    kind = _kind(column)
    is_plain = kind in ("number", "category")
    return metadata if is_plain else {"name": column.name, "kind": kind} | metadata


def _object(document: Any, what: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ValueError(f"{what} is {document!r}; give a JSON object.")
    return dict(document)


def _column(document: Any) -> Column:
    known = _object(document, "a column")
    kind = known.pop("kind", "category" if "categories" in known else "number")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"a column has kind={kind!r}; choose one of {list(_KINDS)}.")
    return _made(_KINDS[kind], known, "column")


def _made(make: Callable[..., Any], known: dict[str, Any], what: str) -> Any:
    """Return what a class makes of its fields, or raise an error that lists them."""
    try:
        signature(make).bind(**known)
    except TypeError as error:
        what, fields = f"{what} {known.get('name')!r}", [*signature(make).parameters]
        raise ValueError(f"{what}: {error}; the fields are {fields}.") from None
    return make(**known)


def plain_path(path: str | os.PathLike[str], *, folder: bool = False) -> Path:
    """Return a path with ``~`` and variables expanded; refuse one that cannot be meant."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path={path!r:.80} must be the path of a file, as a string or a Path.")
    given = os.fsdecode(path)
    meant = os.path.expandvars(os.path.expanduser(given))
    what = "file or folder" if folder else "file"
    # Unknown users and variables are left as they were.
    unclear = not meant or meant != meant.strip() or "\0" in meant or meant.startswith("~")
    if unclear or re.search(r"\$\w|\$\{|^%\w+%|^\w{2,}:/", meant):
        raise ValueError(
            f"path={given!r} is empty, an address, has a null character or spaces around it, or "
            f"names a user or a variable that is not known here. Name a {what}."
        )
    if not folder and (os.path.isdir(meant) or os.path.basename(meant) in ("", ".", "..")):
        raise ValueError(f"path={given!r} is a folder. Name a file.")
    return Path(meant)
