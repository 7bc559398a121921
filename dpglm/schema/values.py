"""Raw columns of any table as numpy arrays and distinct values, and encoded rows with a bound."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from scipy import sparse
from sklearn import config_context

from dpglm.checks import check_rows, check_unmasked, is_missing, is_number
from dpglm.exceptions import ADVICE_ON_MISSING_VALUES, require


class Distinct(NamedTuple):
    """Values that are not all numbers: each of them once, and which of them a row holds."""

    values: list[Any]
    rows: np.ndarray

    def map(self, function: Callable[[Any], float]) -> np.ndarray:
        """Return the number that a function gives for each row; inf where it fails."""

        def number(value: Any) -> float:
            try:
                return math.nan if is_missing(value) else function(value)
            except (TypeError, ValueError, OverflowError):
                return math.inf

        return np.array([number(value) for value in self.values], dtype=float)[self.rows]


# Key of the bound on the rows of a pandas data frame, stored with the names of its columns.
BOUND_KEY = "dpglm.max_row_norm"
# An array of numbers, booleans or moments in time, or anything else.
Raw = np.ndarray | Distinct


def is_dask(table: Any) -> bool:
    """Return whether Dask holds the table, in parts."""
    return type(table).__module__.partition(".")[0] == "dask"


def dtypes(table: Any) -> dict[str, str]:
    """Return what each column holds by its dtype."""
    if isinstance(table, Mapping):
        return {name: _dtype_of(values) for name, values in table.items()}
    frame = _frame(table._meta if is_dask(table) else table)
    columns = zip(frame.columns, frame.iter_columns(), strict=True)
    return {name: _dtype_of(series.to_native()) for name, series in columns}


def _dtype_of(values: Any) -> str:
    """Return what one column holds."""
    # For some dtypes narwhals looks at values: give it none.
    series, dtype = _as_series(values[:0]), getattr(values, "dtype", None)
    if (series is None and dtype is None) or (isinstance(dtype, np.dtype) and dtype.kind == "O"):
        types = {type(v) for v in values if isinstance(v, np.ndarray) or not is_missing(v)}
        of = {"boolean": (bool, np.bool_), "integer": Integral, "real": (Real, Decimal)}
        known = [*of.items(), ("date", date)] if types else []
        return next((k for k, own in known if all(issubclass(t, own) for t in types)), "text")
    if series is None:
        kinds = {"i": "integer", "u": "integer", "f": "real", "b": "boolean", "M": "date"}
        return kinds.get(dtype.kind, "text")
    if series.dtype.is_numeric():
        return "integer" if series.dtype.is_integer() else "real"
    if getattr(getattr(values, "type", None), "ordered", False):
        return "ordinal"  # a dictionary of Arrow
    # For pandas, narwhals' Enum is an ordered categorical dtype.
    kinds = {nw.Boolean: "boolean", nw.Date: "date", nw.Datetime: "date", nw.Enum: "ordinal"}
    return kinds.get(type(series.dtype), "text")


def composed(value: Any) -> Any:
    """Return a string as composed letters: an accented "é" may be one letter or two."""
    is_text = isinstance(value, str) and not value.isascii()
    return unicodedata.normalize("NFC", value) if is_text else value


def as_listed(value: Any, listed: Iterable[Any]) -> Any:
    """Return a string in the spelling of a list, if only Unicode forms differ; others unchanged."""
    if not isinstance(value, str):
        return value
    return next((own for own in listed if composed(own) == composed(value)), value)


def check_names(table: Any, names: Sequence[str]) -> list[str]:
    """Return what the table calls these columns, or raise an error that names all it has not."""
    is_named = isinstance(table, Mapping) or is_dask(table)
    found = list(table) if is_named else _frame(table).columns
    own = {composed(name): name for name in found} | {name: name for name in found}
    lacking = [name for name in names if composed(name) not in own]
    if lacking:
        one = "no column" if len(lacking) == 1 else "none of the columns"
        raise ValueError(
            f"the table has {one} {', '.join(map(repr, lacking))}, which the schema names; its "
            f"columns are {found}."
        )
    return [own.get(name, own[composed(name)]) for name in names]


def read_columns(table: Any, names: Sequence[str]) -> dict[str, Raw]:
    """Return some columns of a data frame or of a dictionary of arrays, of Dask in memory."""
    own = dict(zip(names, check_names(table, names), strict=True))
    table = table[[*own.values()]].compute() if is_dask(table) else table
    columns = table if isinstance(table, Mapping) else _frame(table)
    raw = {name: _read(columns[its], name) for name, its in own.items()}
    if len({len(r.rows if isinstance(r, Distinct) else r) for r in raw.values()}) > 1:
        raise ValueError("the columns of the table differ in length; give one value for each row.")
    return raw


def _read(values: Any, name: str) -> Raw:
    series = values if isinstance(values, nw.Series) else _as_series(values)
    if series is not None:
        return _from_series(series, name)
    check_unmasked(f"column {name!r}", values)
    # From a list with one string, numpy would make strings of all values.
    return _from_array(np.asarray(values, None if hasattr(values, "__array__") else object), name)


def _as_series(values: Any) -> Any:
    """Return a column of a dictionary as a data frame holds it, or None of arrays and lists."""
    library = type(values).__module__.partition(".")[0]
    if library not in ("pandas", "polars", "pyarrow"):
        return None
    if library == "pandas":
        values = require("pandas", "data", "A column of pandas").Series(values)
    elif not hasattr(values, "chunks") and library == "pyarrow":
        values = require("pyarrow", "data", "A column of Arrow").chunked_array([values])
    return nw.from_native(values, series_only=True)


def _frame(table: Any) -> Any:
    try:
        return nw.from_native(table, eager_only=True)
    except TypeError:
        raise TypeError(
            f"the table is of type {type(table).__name__}. Give a data frame in memory (pandas, "
            "polars, pyarrow), one of Dask, or a dictionary of arrays, so that columns have names."
        ) from None


def _from_series(series: Any, name: str) -> Raw:
    dtype, native = series.dtype, series.to_native()
    if isinstance(dtype, nw.Datetime) and dtype.time_zone:
        # The day is that of the clock on the wall.
        series = series.dt.replace_time_zone(None)
    elif series.implementation.is_pyarrow() and not (dtype.is_numeric() or dtype.is_temporal()):
        return _from_arrow(native, name)
    if isinstance(dtype, nw.Categorical | nw.Enum) and series.implementation.is_pandas_like():
        values, codes = _decoded(native.cat.categories.tolist(), name), native.cat.codes.to_numpy()
        return Distinct([*values, None], np.where(codes < 0, len(values), codes))
    if dtype.is_integer() and series.null_count():
        # As floats, the largest would be rounded because another row has none.
        return distinct(series.to_list(), name)
    return _from_array(series.to_numpy(), name)


def _from_arrow(column: Any, name: str) -> Distinct:
    """Return a column by its dictionary, which pyarrow makes much faster than Python."""
    try:
        encoded = column if hasattr(column.type, "index_type") else column.dictionary_encode()
    except NotImplementedError:
        return distinct(column.to_pylist(), name)
    encoded = encoded.unify_dictionaries()
    values = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    values = _decoded(values, name)
    # As int64: the number of the missing one, the last, may not fit into the type of the indices.
    parts = [c.indices.cast("int64").fill_null(len(values)).to_numpy() for c in encoded.chunks]
    return Distinct([*values, None], np.concatenate([np.empty(0, np.int64), *parts]))


def _from_array(values: np.ndarray, name: str) -> Raw:
    if values.ndim != 1:
        raise ValueError(f"column {name!r} has shape {values.shape}; give one value for each row.")
    if values.dtype.kind in "mM":
        # As whole numbers, which tolist returns for nanoseconds, they would lose their unit.
        values = values.astype(f"{values.dtype.kind}8[us]")
    return values if values.dtype.kind in "biufM" else distinct(values.tolist(), name)


def distinct(values: Iterable[Any], name: str) -> Distinct:
    """Return Python values, each of them once."""
    values = _decoded(list(values), name)
    # The result for a row must not depend on which of equal values came first. Values of several
    # types may be equal, as 1 and True are; values of other types may be spelled in several ways.
    types = {*map(type, values)} - {str, type(None)}
    try:
        if not types <= {bool, int, float}:
            keys = [(type(value), repr(value), hash(value)) for value in values]
        else:
            keys = [(type(value), value) for value in values] if types else values
        places = {key: k for k, key in enumerate(dict.fromkeys(keys))}
        rows = np.fromiter(map(places.__getitem__, keys), np.intp, len(keys))
    except TypeError:
        raise ValueError(
            f"column {name!r} holds lists, or other values that are several; give each a column."
        ) from None
    return Distinct([*dict(zip(keys, values, strict=True)).values()], rows)


def _decoded(values: list[Any], name: str) -> list[Any]:
    """Return values of which those in bytes are strings."""
    if bytes not in {*map(type, values)}:
        return values
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError:
        raise ValueError(
            f"column {name!r} holds bytes that are no text in UTF-8; decode them before."
        ) from None


def as_distinct(raw: Raw) -> Distinct:
    """Return a column as distinct values, whatever it holds."""
    if isinstance(raw, Distinct):
        return raw
    values, rows = np.unique(raw, return_inverse=True)
    return Distinct(values.tolist(), rows)


def value_at(raw: Raw, row: int) -> Any:
    """Return the value of a row."""
    return raw.values[raw.rows[row]] if isinstance(raw, Distinct) else raw[row].item()


def numbers(raw: Raw) -> np.ndarray:
    """Return float64 numbers, NaN where there is none and inf where there is something else."""
    if isinstance(raw, Distinct):
        return raw.map(float)
    with np.errstate(all="ignore"):
        return np.full(len(raw), np.inf) if raw.dtype.kind == "M" else raw.astype(np.float64)


def days(raw: Raw) -> np.ndarray:
    """Return whole days since 1970 of dates, datetimes or strings; NaN and inf as in `numbers`."""
    if isinstance(raw, Distinct):
        return raw.map(day)
    if raw.dtype.kind != "M":
        return np.where(np.isnan(numbers(raw)), np.nan, np.inf)
    return np.where(np.isnat(raw), np.nan, raw.astype("datetime64[D]").astype(np.float64))


def day(value: Any) -> float:
    """Return the days since 1970 of a date, a datetime, or a string that starts with YYYY-MM-DD."""
    return as_date(value).toordinal() - date(1970, 1, 1).toordinal()


def as_date(value: Any) -> date:
    """Return the date of a date, a datetime, or a string that starts with YYYY-MM-DD."""
    if isinstance(value, str):
        # It would read 20200131 and 2020-W05-5 as well, of which the first may be a number.
        if value.strip()[4:8:3] != "--":
            raise ValueError
        return date.fromisoformat(value.strip()[:10])
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[D]").item()
    if not isinstance(value, date):
        raise TypeError
    return date(value.year, value.month, value.day)


class Places:
    """Places in a public list, of True if written true or 1, and of 2 if written 2.0."""

    def __init__(self, listed: Sequence[Any]) -> None:
        self._listed = listed
        spelled = {text: k for k, value in enumerate(listed) for text in _spellings(value)}
        # A number has lost the zeros of a code such as 01, which may be that of one category alone.
        codes = [(int(v), k) for k, v in enumerate(listed) if isinstance(v, str) and v.isdecimal()]
        counts = Counter(number for number, _ in codes)
        self._codes = {number: k for number, k in codes if counts[number] == 1}
        self._places = spelled | {value: k for k, value in enumerate(listed)}

    def of(self, raw: Raw) -> np.ndarray:
        """Return the place of each row's value, -1 if it is not listed and NaN if missing."""
        raw = as_distinct(raw)
        return np.array([self._place(value) for value in raw.values], dtype=float)[raw.rows]

    def remarks(self, raw: Raw) -> Iterator[str]:
        """Yield which values are not listed, and which of those listed never occur."""
        places = self.of(raw)
        unlisted = np.flatnonzero(places < 0)
        if len(unlisted):
            yield (
                f"{len(unlisted)} of {len(places)} values are not listed, the first of them "
                f"{value_at(raw, unlisted[0])!r}; spell the categories as the table does"
            )
        occur = set(places.tolist())
        never = [value for k, value in enumerate(self._listed) if k not in occur]
        if never:
            yield f"these categories never occur: {never}"

    def _place(self, value: Any) -> float:
        value = value.strip() if isinstance(value, str) else value
        if value in self._places or is_missing(value):
            return self._places.get(value, math.nan)
        is_whole = isinstance(value, float | Decimal) and value == value // 1
        text = composed(str(int(value) if is_whole else value))
        of_number = self._codes.get(value, -1) if is_number(value) else -1
        return self._places.get(text.removesuffix(" 00:00:00"), of_number)


def _spellings(value: Any) -> set[Any]:
    if isinstance(value, str):
        other = f"{value}.0" if value.isdecimal() else composed(value).removesuffix(" 00:00:00")
        return {composed(value), value.title() if value in ("true", "false") else other}
    whole = str(int(value))
    truth = str(bool(value)) if value in (0, 1) else whole
    return {whole, f"{whole}.0", truth, truth.lower(), truth.upper()}


def validated(check: Callable[[], Any], X: Any) -> Any:
    """Return the result of scikit-learn's check of rows; no error quotes a value."""
    check_rows(X)
    try:
        # Rows that are not finite have no class, whatever scikit-learn is told to assume.
        with config_context(assume_finite=False):
            return check()
    except (TypeError, ValueError, OverflowError) as error:
        failed = error
    # Here no other error is being handled, which this one would keep.
    raise reworded_error(failed, X)


def reworded_error(error: Exception, X: Any) -> Exception:
    """Return what scikit-learn says of rows, or raise an error of ours, neither of which quotes."""
    if str(error).startswith("The feature names"):
        return error
    if isinstance(error, TypeError) and "a real number" in str(error) and not _has_na(X):
        # scikit-learn's own test asks for its words.
        return TypeError(f"X must be a table of numbers ({error}); encode anything else first.")
    shape = floating(X).shape
    if len(shape) != 2:
        return ValueError(
            f"X must have two dimensions, got shape {shape}. Reshape your data by X.reshape(-1, 1) "
            "if it has one feature, or X.reshape(1, -1) if it is one record."
        )
    # Its advice on missing values would leak.
    first, *_ = str(error).splitlines() or [""]
    known = first.startswith("Input X contains")
    return ValueError(f"{first} {ADVICE_ON_MISSING_VALUES}") if known else error


def _has_na(X: Any) -> bool:
    cells = np.asarray(X, dtype=object).ravel().tolist()
    return any(type(cell).__name__ in ("NAType", "NaTType") for cell in cells)


def check_sparse(X: Any) -> None:
    """Raise a ValueError if the parts of a sparse matrix do not fit: compiled code trusts them."""
    with suppress(ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
        if _is_sound(X):
            return
    raise ValueError(
        f"X is a sparse {X.format.upper()} matrix whose parts do not fit together. Its index "
        "arrays must be whole numbers within a shape of two dimensions; make the matrix anew."
    )


def _is_sound(X: Any) -> bool:
    """Return whether scipy takes the parts, and may: it casts indices, and leaves out checks."""
    may = X.ndim == 2
    if X.format == "lil":
        sizes = [*map(len, X.rows)]
        return len(sizes) == X.shape[0] and sizes == [*map(len, X.data)] and _is_sound(X.tocsr())
    if X.format in ("coo", "dok"):
        X = X.tocoo()
        indices = X.coords
        sparse.coo_array((X.data, indices), X.shape)
    elif X.format == "dia":
        indices = (X.offsets,)
        sparse.dia_array((X.data, X.offsets), X.shape)
        may &= X.data.ndim == 2 and ((X.offsets >= -X.shape[0]) & (X.offsets <= X.shape[1])).all()
    else:
        indices = X.indices, X.indptr
        getattr(sparse, f"{X.format}_array")((X.data, *indices), X.shape).check_format()
        may &= not any(map(int.__mod__, X.shape, getattr(X, "blocksize", (1, 1))))
        # An end of 64 bits without a sign would become a negative one, and no index be checked.
        may &= (X.indptr[1:] >= X.indptr[:-1]).all() and X.indptr[-1] <= len(X.indices)
    return bool(may) and all(each.dtype.kind in "iu" for each in indices)


def without_duplicates(X: Any) -> sparse.csr_array:
    """Return a CSR matrix in canonical form: a float64 copy unless it already is."""
    # A fresh object: its flags are computed from the indices, never inherited.
    arrays = tuple(np.ascontiguousarray(array) for array in (X.data, X.indices, X.indptr))
    rows = sparse.csr_array(arrays, shape=X.shape, copy=False)
    if rows.has_canonical_format:
        return rows
    finite = np.isfinite(rows.data).all()
    # Sums in float32 would overflow to numbers whose norms are finite.
    rows = rows.astype(np.float64)
    rows.sum_duplicates()
    if finite:
        # The norm of a row with such a sum is infinite all the same: it contributes nothing.
        np.nan_to_num(rows.data, copy=False)
    return rows


def row_norms(X: Any) -> np.ndarray:
    """Return the norms of the rows of a dense or sparse array, infinite where squares overflow."""
    X = X.astype(np.float64, copy=False)
    squares = X.multiply(X).sum(axis=1) if sparse.issparse(X) else np.einsum("ij,ij->i", X, X)
    return np.sqrt(squares)


def null_rows(X: Any) -> np.ndarray:
    """Return which rows (n,) are null records, which no release counts: their norm overflows."""
    with np.errstate(all="ignore"):
        return np.isinf(row_norms(without_duplicates(X.tocsr()) if sparse.issparse(X) else X))


def floating(rows: Any) -> np.ndarray | sparse.csr_array:
    """Return rows in float32 if that is exact, else float64, row-major or CSR; quote no value."""
    check_rows(rows)
    if sparse.issparse(rows):
        check_sparse(rows)
    array = rows
    # No error is being handled below, which would be kept with the rows that it quotes.
    with suppress(TypeError, ValueError, OverflowError):
        array = rows if sparse.issparse(rows) else np.asarray(rows)
        dtype = np.float32 if np.can_cast(array.dtype, np.float32) else np.float64
        if array.dtype.kind != "c":
            as_rows = sparse.csr_array if sparse.issparse(rows) else np.ascontiguousarray
            return as_rows(array, dtype=dtype)
    if getattr(getattr(array, "dtype", None), "kind", "") == "c":
        raise ValueError("Complex data not supported: X must hold real numbers.")
    if _has_na(rows):
        raise ValueError(f"Input X contains NaN. {ADVICE_ON_MISSING_VALUES}")
    raise ValueError(
        "X must be a table of numbers, as many in every row; encode anything else first, for "
        "example by the transformer of a Schema."
    )


class _Bounded:
    """Encoded rows with a bound on their norms, which picked rows alone keep."""

    max_row_norm: float | None = None

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)  # type: ignore[misc]
        found = np.asarray(found) if isinstance(found, np.ndarray) else found
        others = key[1:] if isinstance(key, tuple) else ()
        all_columns = all(k is ... or (isinstance(k, slice) and k == slice(None)) for k in others)
        return with_max_row_norm(found, self.max_row_norm) if all_columns else found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.max_row_norm = None
        super().__setitem__(key, value)  # type: ignore[misc]


class BoundedArray(_Bounded, np.ndarray):
    """Dense rows that carry a bound; arithmetic returns plain arrays."""

    def __reduce__(self) -> tuple[Any, ...]:
        return with_max_row_norm, (np.asarray(self), self.max_row_norm)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array)[()] if return_scalar else np.asarray(array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class BoundedCSR(_Bounded, sparse.csr_array):
    """Sparse rows that carry a bound."""


def with_max_row_norm(rows: Any, max_row_norm: Any) -> Any:
    """Return an array, a sparse matrix or a data frame that carries a bound, if one is given."""
    if not isinstance(max_row_norm, float) or getattr(rows, "ndim", 0) != 2:
        return rows
    if isinstance(rows, np.ndarray):
        rows = rows.view(BoundedArray)
    elif sparse.issparse(rows):
        rows = BoundedCSR(rows)
    if isinstance(rows, _Bounded):
        rows.max_row_norm = max_row_norm
    elif type(rows).__module__.partition(".")[0] == "pandas":
        rows.attrs[BOUND_KEY] = [max_row_norm, [*rows.columns]]
    return rows
