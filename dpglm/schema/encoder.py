"""Features computed from public facts: fitting them reads names of columns and no row."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpglm.checks import check_unmasked
from dpglm.exceptions import KnownArguments
from dpglm.schema.columns import Column, TextColumn
from dpglm.schema.values import check_names, is_dask, read_columns, validated, with_max_row_norm


class _RowEncoder(TransformerMixin, BaseEstimator):
    """Encode rows; scikit-learn wraps this class, so that `set_output` gives data frames."""

    def transform(self, X: Any) -> Any:
        if is_dask(X):
            encoder = SchemaEncoder(self.schema_).set_output(transform="pandas")
            return X.map_partitions(encoder.transform, meta=encoder.transform(X._meta))
        raw, schema = read_columns(X, self.schema.feature_names), self.schema_
        numbers = {c.name: c.numbers(raw[c.name]) for c in schema.encoded_columns}
        return encode_all(schema, numbers, self.sparse_output)


@dataclass(eq=False, repr=False)
class SchemaEncoder(_RowEncoder):
    """Encode a raw table by its schema: ``schema.transformer()`` returns one.

    Fitting reads the names of the columns alone, and what a row becomes depends on no other row.

    Parameters
    ----------
    schema : Schema
    sparse_output : bool, default=False
        Return a CSR matrix instead of an array.
    interactions : int or sequence of pairs of names, optional
        Takes the place of the schema's.

    Attributes
    ----------
    schema_ : Schema
        The schema with these interactions.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    Notes
    -----
    Columns with an order come first, then categories, free text and interactions. Encoded rows, and
    rows picked from them, carry `Schema.max_row_norm` to the estimator of the same pipeline.

    Examples
    --------
    >>> from dpglm.schema import BooleanColumn, NumericColumn, Schema, Target
    >>> columns = [BooleanColumn("member"), NumericColumn("age", 0, 100, missing="indicator")]
    >>> schema = Schema("people", columns, Target("paid", [0, 1]))
    >>> encoder = schema.additive(1).transformer()  # straight lines
    >>> encoder.fit_transform({"age": [25, None], "member": [True, False], "id": ["a", "b"]})
    array([[1.  , 0.25, 0.  ],
           [0.  , 0.5 , 1.  ]])
    >>> encoder.get_feature_names_out().tolist()
    ['member', 'age', 'age (missing)']
    """

    schema: Any
    sparse_output: bool = False
    interactions: Any = None

    @property
    def schema_(self) -> Any:
        own = self.interactions is None
        return self.schema if own else replace(self.schema, interactions=self.interactions)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that X has the columns of the schema, which is no draft; rows are not read."""
        self.schema_.check_filled_in()
        names = self.schema.feature_names
        check_names(X, names)
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def transform(self, X: Any) -> Any:
        """Return the encoded rows of a data frame or of a dictionary of arrays.

        Returns
        -------
        ndarray, csr_array or Dask data frame of shape (n_samples, n_encoded)

        Raises
        ------
        ValueError
            If a value is none that its column may hold. The error names the row, never the value.
        """
        # After scikit-learn's wrapper, which makes a data frame if `set_output` asked for one.
        rows = super().transform(X)
        return with_max_row_norm(rows, self.schema_.max_row_norm(fit_intercept=False))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the encoded columns."""
        parts = [*self.schema_.encoded_columns, self.schema_.interaction_features]
        names = [name for part in parts if part for name in part.encoded_names]
        return np.array(names, dtype=object)


def encode_all(schema: Any, numbers: Mapping[str, Any], sparse_output: bool = False) -> Any:
    """Return the encoded rows of a schema, with its interactions."""
    columns, interactions = schema.encoded_columns, schema.interaction_features
    if interactions is None:
        return encode(columns, numbers, sparse_output)
    rows = encode(columns, numbers, sparse_output=True)
    features = interactions.of(rows)
    if sparse_output:
        return sparse.hstack([rows, features], format="csr")
    return np.hstack([rows.toarray(), features])


def encode(
    columns: Sequence[Column], numbers: Mapping[str, Any], sparse_output: bool = False
) -> np.ndarray | sparse.csr_array:
    """Return the encoded rows of the results of ``Column.numbers``, free text last."""
    texts = [sparse.csr_array(numbers[c.name]) for c in columns if isinstance(c, TextColumn)]
    # The values of each row that may differ from zero, and their columns, -1 for none.
    values, places, width = [], [], 0
    for column in columns[: len(columns) - len(texts)]:
        block, where = column.entries(numbers[column.name])
        values.append(block)
        places.append(np.where(where < 0, -1, where + width))
        width += len(column.encoded_names)
    n_rows = numbers[columns[0].name].shape[0]
    entries = np.hstack([np.empty((n_rows, 0)), *values])
    at = np.hstack([np.empty((n_rows, 0), dtype=np.int32), *places])
    stored = (entries != 0) & (at >= 0)
    # CSR: the values of a row are in the order of their columns.
    ends = np.append(0, np.cumsum(np.count_nonzero(stored, axis=1)))
    ends = ends.astype(np.int32) if ends[-1] < 2**31 else ends
    rows = sparse.csr_array((entries[stored], at[stored], ends), shape=(n_rows, width))
    rows = sparse.hstack([rows, *texts], format="csr") if texts else rows
    return rows if sparse_output else rows.toarray()


def blocks_of(
    schema: Any, n_columns: int, names: Sequence[str] | None
) -> dict[str, tuple[Column, slice]]:
    """Return each column of a table and where its block is; a model must have these columns."""
    columns, encoded = schema.encoded_columns, schema.transformer().get_feature_names_out().tolist()
    if n_columns != len(encoded) or (names is not None and list(names) != encoded):
        raise ValueError(
            f"the columns of the model ({n_columns}) are not those that schema {schema.name!r} "
            f"encodes ({len(encoded)}), in their order; give the schema that encoded its rows."
        )
    ends = np.cumsum([0, *(len(column.encoded_names) for column in columns)]).tolist()
    blocks = {c.name: (c, slice(*at)) for c, at in zip(columns, pairwise(ends), strict=True)}
    return {name: blocks[name] for name in schema.feature_names}


@dataclass(eq=False, repr=False)
class PublicBoundsScaler(KnownArguments, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map public bounds to [0, 1] and clip what lies outside.

    Unlike scikit-learn's ``MinMaxScaler`` it never reads the range of the rows.

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

    Examples
    --------
    >>> PublicBoundsScaler(lower=[0, 17], upper=[10, 90]).fit_transform([[5, 90], [-3, 17]])
    array([[0.5, 1. ],
           [0. , 0. ]])
    """

    lower: Any = 0.0
    upper: Any = 1.0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the bounds against the number of columns of X; its rows are not used.

        Raises
        ------
        ValueError
            If a bound is not finite, has another length, or is not below its partner.
        """
        X = self._checked(X)
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
        X = self._checked(X, reset=False)
        # Rounding is monotone: the result never leaves [0, 1].
        return (np.clip(X, self.lower_, self.upper_) - self.lower_) / (self.upper_ - self.lower_)

    def _checked(self, X: Any, **changes: Any) -> np.ndarray:
        return validated(lambda: validate_data(self, X, dtype=np.float64, **changes), X)

    def _bound(self, name: str) -> np.ndarray:
        value, n = getattr(self, name), self.n_features_in_
        check_unmasked(name, value)
        bound = np.array(np.nan)
        with suppress(TypeError, ValueError, OverflowError):
            bound = np.asarray(value, dtype=np.float64)
        if bound.shape not in ((), (n,)) or not np.isfinite(bound).all():
            raise ValueError(f"{name}={value!r} must be a finite number, or one per column ({n}).")
        return np.broadcast_to(bound, (n,)).copy()
