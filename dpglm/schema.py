"""Public facts about the columns of a table, and features scaled by them.

Scaling by the range of the rows, or encoding the categories that happen to occur in them, spends
privacy that nobody accounts for. A `Schema` states both in advance, from a data dictionary.
"""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = [
    "CategoricalColumn", "NumericColumn", "PublicBoundsScaler", "Schema", "Target", "load_schema",
]  # fmt: skip


class PublicBoundsScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map public bounds to [0, 1] and clip what lies outside.

    Unlike scikit-learn's ``MinMaxScaler``, whose minimum and maximum are each one person's
    value, it never reads the range of the data: fitting checks the number of columns only.

    Parameters
    ----------
    lower, upper : float or array-like of shape (n_features,), default=0.0 and 1.0
        Public bounds, ``lower < upper``; a number stands for every column.

    Attributes
    ----------
    lower_, upper_ : ndarray of shape (n_features,)
        The bounds of each column.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        If the input has names.

    Notes
    -----
    Rounding is monotone, so that the result never leaves [0, 1].

    Examples
    --------
    >>> PublicBoundsScaler(lower=[0, 17], upper=[10, 90]).fit_transform([[5, 90], [-3, 17]])
    array([[0.5, 1. ],
           [0. , 0. ]])
    """

    def __init__(self, lower: Any = 0.0, upper: Any = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the bounds against the number of columns of X, whose rows are not used.

        Raises
        ------
        ValueError
            If a bound is not finite, has another length, or is not below its partner.
        """
        X = validate_data(self, X, dtype=np.float64)
        self.lower_ = self._bound("lower")
        self.upper_ = self._bound("upper")
        # Bounds like -1e308 and 1e308 are finite, and their difference is not.
        with np.errstate(over="ignore"):
            width = self.upper_ - self.lower_
        wrong = ~((width > 0) & np.isfinite(width))
        if wrong.any():
            j = int(np.argmax(wrong))
            raise ValueError(
                f"lower={self.lower_[j]} and upper={self.upper_[j]} in column {j}; give bounds "
                "with lower < upper and a finite difference."
            )
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return raw values of shape (n_samples, n_features) scaled to [0, 1]."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return (np.clip(X, self.lower_, self.upper_) - self.lower_) / (self.upper_ - self.lower_)

    def _bound(self, name: str) -> np.ndarray:
        value = getattr(self, name)
        bound = np.asarray(value, dtype=np.float64)
        if bound.shape not in ((), (self.n_features_in_,)):
            raise ValueError(
                f"{name} has shape {bound.shape} but X has {self.n_features_in_} columns; give "
                "one number, or one per column."
            )
        if not np.isfinite(bound).all():
            raise ValueError(f"{name}={value!r} is not finite; give finite public bounds.")
        return np.broadcast_to(bound, (self.n_features_in_,)).copy()


_VERSION = 1


@dataclass(frozen=True)
class NumericColumn:
    """A number with finite public bounds, to which values outside are clipped.

    Parameters
    ----------
    name : str
    lower, upper : float

    Examples
    --------
    >>> NumericColumn("age", 17, 90)
    NumericColumn(name='age', lower=17.0, upper=90.0)
    """

    name: str
    lower: float
    upper: float

    def __post_init__(self) -> None:
        # A frozen dataclass can be set in this way only.
        _check_name(self.name, "column")
        for bound in ("lower", "upper"):
            object.__setattr__(self, bound, _finite(self.name, bound, getattr(self, bound)))
        if not 0 < self.upper - self.lower < math.inf:
            raise ValueError(
                f"column {self.name!r} has lower={self.lower} and upper={self.upper}; give bounds "
                "with lower < upper and a finite difference."
            )


@dataclass(frozen=True)
class CategoricalColumn:
    """A category out of a public list; any other value is encoded as zeros.

    Parameters
    ----------
    name : str
    categories : sequence of str, int or bool
        Distinct values in the order of the encoded columns; numbers in rising order.

    Examples
    --------
    >>> CategoricalColumn("housing", ["yes", "no"])
    CategoricalColumn(name='housing', categories=('yes', 'no'))
    """

    name: str
    categories: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...]

    def __post_init__(self) -> None:
        _check_name(self.name, "column")
        categories = _distinct(self.name, "categories", self.categories)
        object.__setattr__(self, "categories", categories)


@dataclass(frozen=True)
class Target:
    """The label column and its public label set.

    Parameters
    ----------
    name : str
    labels : sequence of str, int or bool
        At least two distinct labels; numbers in rising order.

    Examples
    --------
    >>> Target("income", [">50K", "<=50K"])
    Target(name='income', labels=('>50K', '<=50K'))
    """

    name: str
    labels: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...]

    def __post_init__(self) -> None:
        _check_name(self.name, "target")
        labels = _distinct(self.name, "labels", self.labels)
        if len(labels) < 2:
            raise ValueError(f"{self.name!r} has labels={list(labels)}; list at least two.")
        object.__setattr__(self, "labels", labels)


@dataclass(frozen=True)
class Schema:
    """Public description of a table: columns with bounds or categories, and the label set.

    Parameters
    ----------
    name : str
    columns : sequence of NumericColumn or CategoricalColumn
        The features. A column of the table that is not listed is not used.
    target : Target
    source : str, default=""
        Where the bounds and categories come from. They are public only if this is not the rows.

    Notes
    -----
    A row encoded by :meth:`transformer` has every numeric entry in [0, 1] and at most one 1 in
    each categorical block: whatever the rows hold, its norm is at most :meth:`row_bound`.

    The JSON form is one object::

        {"version": 1, "name": "...", "source": "...",
         "columns": [{"name": "age", "lower": 17, "upper": 90},
                     {"name": "sex", "categories": ["Female", "Male"]}],
         "target": {"name": "income", "labels": ["<=50K", ">50K"]}}

    Examples
    --------
    >>> columns = [NumericColumn("age", 0, 100), CategoricalColumn("housing", ["yes", "no"])]
    >>> schema = Schema("people", columns, Target("income", ["low", "high"]))
    >>> schema.feature_names, round(schema.row_bound(), 4)
    (['age', 'housing'], 1.7321)
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    name: str
    columns: tuple[NumericColumn | CategoricalColumn, ...]
    target: Target
    source: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name, "schema")
        if not isinstance(self.source, str):
            raise ValueError(f"schema {self.name!r} has source={self.source!r}; give a string.")
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise ValueError(f"schema {self.name!r} has columns=[]; list at least one column.")
        names = [*self.feature_names, self.target.name]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"schema {self.name!r} names {name!r} twice; give every column and the "
                    "target a name of its own."
                )

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
        return np.unique(self.target.labels)

    @property
    def n_encoded(self) -> int:
        """Number of columns of an encoded row, without the intercept."""
        return len(self.numeric) + sum(len(c.categories) for c in self.categorical)

    def row_bound(self, fit_intercept: bool = True) -> float:
        """Return the largest L2 norm of an encoded row, ``sqrt(n_columns + 1)`` with intercept."""
        return math.sqrt(len(self.columns) + bool(fit_intercept))

    def transformer(self, sparse_output: bool = False) -> ColumnTransformer:
        """Return the encoder of a raw table: numeric columns first, then one block per category.

        Fitting it reads the names of the columns and nothing of the rows. It returns an array, or
        with `sparse_output` a CSR matrix, unless the schema has no categories.
        """
        # With its categories given, an encoder learns nothing from the rows it is fitted on.
        encoder = OneHotEncoder(
            categories=[list(c.categories) for c in self.categorical],
            handle_unknown="ignore",
            sparse_output=sparse_output,
        )
        return ColumnTransformer(
            [
                ("numeric", self._scaler(), [c.name for c in self.numeric]),
                ("categorical", encoder, [c.name for c in self.categorical]),
            ],
            sparse_threshold=float(sparse_output),
            verbose_feature_names_out=False,
        )

    def encode(
        self,
        numeric: Sequence[np.ndarray],
        codes: Sequence[np.ndarray],
        sparse_output: bool = False,
    ) -> np.ndarray | sparse.csr_array:
        """Return what the transformer returns, without a frame.

        `numeric` and `codes` hold an array of shape (n_rows,) for each numeric and each
        categorical column: its values, and the numbers of its categories, -1 for any other.
        """
        n_rows, n_numeric = len([*numeric, *codes][0]), len(self.numeric)
        # Row by row the entries that are not zero: all numbers, and a 1 for each known category.
        values = np.ones((n_rows, len(self.columns)))
        columns = np.empty(values.shape, dtype=np.int32)
        known = np.ones(values.shape, dtype=bool)
        if numeric:
            values[:, :n_numeric] = self._scaler().fit_transform(np.column_stack(numeric))
            columns[:, :n_numeric] = np.arange(n_numeric)
        if codes:
            sizes = [len(column.categories) for column in self.categorical]
            table = np.column_stack(codes)
            known[:, n_numeric:] = table >= 0
            columns[:, n_numeric:] = table + n_numeric + np.cumsum([0, *sizes[:-1]])
        ends = np.append(0, np.cumsum(known.sum(axis=1)))
        shape = (n_rows, self.n_encoded)
        rows = sparse.csr_array((values[known], columns[known], ends), shape=shape)
        return rows if sparse_output else rows.toarray()

    def _scaler(self) -> PublicBoundsScaler:
        return PublicBoundsScaler([c.lower for c in self.numeric], [c.upper for c in self.numeric])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as a dictionary of plain Python values."""
        head = {"version": _VERSION, "name": self.name, "source": self.source}
        return head | {"columns": [*map(_plain, self.columns)], "target": _plain(self.target)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Build a schema from what `to_dict` returns; ``source`` may be left out."""
        if isinstance(document, Mapping) and document.get("version") != _VERSION:
            raise ValueError(
                f"the schema has version={document.get('version')!r}; set version={_VERSION}, or "
                "upgrade dpglm if a later release wrote it."
            )
        required = {"version", "name", "columns", "target"}
        fields = _fields(document, "the schema", required, {"source"})
        if not isinstance(fields["columns"], list | tuple):
            raise ValueError(f"the schema has columns={fields['columns']!r}; give a list.")
        target = _fields(fields["target"], "the target", {"name", "labels"})
        return cls(
            name=fields["name"],
            columns=tuple(_column(column) for column in fields["columns"]),
            target=Target(target["name"], target["labels"]),
            source=fields.get("source", ""),
        )

    def to_json(self) -> str:
        """Return the JSON form as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, path_or_text: str | os.PathLike[str]) -> Self:
        """Read a schema from a JSON file, or from text that starts with ``{``."""
        is_text = isinstance(path_or_text, str) and path_or_text.lstrip().startswith("{")
        text = path_or_text if is_text else Path(path_or_text).read_text(encoding="utf-8")
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the schema is not JSON: {error}; see Schema.to_json().") from error
        return cls.from_dict(document)


def load_schema(name: str) -> Schema:
    """Return a schema of the package, with the bounds and categories of a data dictionary.

    Parameters
    ----------
    name : {"adult", "bank", "census", "kddcup99"}

    Examples
    --------
    >>> load_schema("adult").classes
    array(['<=50K', '>50K'], dtype='<U5')
    """
    folder = files("dpglm").joinpath("schemas")
    known = sorted(f.name.removesuffix(".json") for f in folder.iterdir())
    if name not in known:
        raise ValueError(f"name={name!r} is no packaged schema; choose one of {known}.")
    return Schema.from_json(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))


def _plain(column: NumericColumn | CategoricalColumn | Target) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(column).items()}


def _column(document: Any) -> NumericColumn | CategoricalColumn:
    if isinstance(document, Mapping) and "categories" in document:
        return CategoricalColumn(**_fields(document, "a column", {"name", "categories"}))
    return NumericColumn(**_fields(document, "a column", {"name", "lower", "upper"}))


def _fields(
    document: Any, what: str, required: set[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the document as a dictionary that has every required field and no unknown one."""
    if not isinstance(document, Mapping):
        raise ValueError(
            f"{what} is {document!r}; give a JSON object with the fields {sorted(required)}."
        )
    what = f"{what} {document['name']!r}" if "name" in document else what
    missing, unknown = required - document.keys(), document.keys() - required - set(optional)
    for verb, fields in (("lacks", missing), ("has the unknown", unknown)):
        if fields:
            raise ValueError(
                f"{what} {verb} fields {sorted(map(str, fields))}; give {sorted(required)}."
            )
    return dict(document)


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a {what} has name={name!r}; give a non-empty string.")


def _finite(name: str, bound: str, value: Any) -> float:
    number = value.item() if isinstance(value, np.generic) else value
    # Not isinstance: True is an int. Integers too large for a float are refused by the comparison.
    if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:
        raise ValueError(f"column {name!r} has {bound}={value!r}; give a finite public number.")
    return float(number)


def _distinct(name: str, what: str, values: Any) -> tuple:
    """Return the values as a tuple of distinct str, int or bool of one type."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name!r} has {what}={values!r}; give a list.")
    values = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    types = {type(v) for v in values}
    if len(types) != 1 or not types <= {str, int, bool}:
        raise ValueError(
            f"{name!r} has {what}={list(values)}; list values that are all strings, all integers "
            "or all booleans."
        )
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{name!r} has {value!r} twice in {what}; list every value once.")
    # scikit-learn's encoder wants numbers sorted, and texts in any order.
    if not isinstance(values[0], str) and list(values) != sorted(values):
        raise ValueError(f"{name!r} has {what}={list(values)}; list numbers in rising order.")
    return values
