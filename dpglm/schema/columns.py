"""The kinds of columns: what is public about each, and how its raw values become numbers."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from dpglm.checks import is_missing, is_number
from dpglm.schema.values import (
    Distinct,
    Places,
    Raw,
    as_date,
    as_distinct,
    as_listed,
    composed,
    day,
    days,
    distinct,
    numbers,
    value_at,
)

# The placeholder of a draft: a person replaces it by what is public.
FILL_IN = "FILL IN"
_MOST_INTERVALS = 256


def _number(value: Any) -> float | None:
    """Return a finite number as a float, and None of anything else."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def _date(value: Any) -> date | None:
    """Return a date, a datetime or a string as a date, and None of anything else."""
    try:
        return as_date(value)
    except (TypeError, ValueError):
        return None


class _Described:
    """Public fields, checked; those that are not the defaults are shown and written."""

    _what: ClassVar[str] = "column"

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.metadata().items())
        return f"{type(self).__name__}({inner})"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                f"a {self._what} has name={self.name!r}; give a non-empty string. Columns of a "
                "table need names that are strings: see frame.rename(columns=str)."
            )
        for field, value in [*vars(self).items()]:
            if isinstance(value, np.number | np.bool_ | np.str_):
                self._set(field, value.item())
        if not self.to_fill_in:
            self._check()

    def metadata(self) -> dict[str, Any]:
        """Return the fields that have no default, or another value."""
        own = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        # Compare representations: 1 and True are equal.
        return {k: v for k, (v, d) in own.items() if d is MISSING or repr(v) != repr(d)}

    @property
    def to_fill_in(self) -> list[str]:
        """The fields of a draft that a person has to fill in."""
        return [k for k, v in self.metadata().items() if isinstance(v, str) and v == FILL_IN]

    def _set(self, field: str, value: Any) -> None:
        # A frozen dataclass can be set in this way only.
        object.__setattr__(self, field, value)

    def _demand(self, is_right: bool, fields: str, advice: str) -> None:
        if not is_right:
            found = " and ".join(f"{name}={getattr(self, name)!r}" for name in fields.split())
            raise ValueError(f"{self._what} {self.name!r} has {found}; {advice}.")

    def _choose(self, field: str, *choices: Any) -> None:
        value = getattr(self, field)
        known = isinstance(value, (str, bool)) and value in choices
        self._demand(known, field, f"choose one of {list(choices)}")

    def _convert(self, field: str, convert: Callable[[Any], Any], advice: str) -> None:
        """Replace a field by what a function returns of it, unless that is None."""
        value = convert(getattr(self, field))
        self._demand(value is not None, field, advice)
        self._set(field, value)

    def _list(self, field: str) -> list[Any]:
        """Return the elements of a field that must be a list, as Python's own types."""
        given = getattr(self, field)
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        self._demand(is_list, field, "give a list")
        values = [v.item() if isinstance(v, np.generic) else v for v in given]
        self._set(field, values)
        return values

    def _choices(self, field: str, least: int = 1, in_order: bool = True) -> None:
        """Make a field a tuple of distinct str, int or bool of one type."""
        values = self._list(field)
        types = {type(value) for value in values}
        alike = len(types) == 1 and types <= {str, int, bool}
        self._demand(alike, field, "list values that are all strings, all integers or all booleans")
        bare = types != {str} or all(value == value.strip() for value in values)
        self._demand(bare, field, "leave out spaces around strings, which do not count in a table")
        once = len({*map(composed, values)}) == len(values)
        self._demand(once, field, "list each value once")
        rising = isinstance(values[0], str) or values == sorted(values)
        self._demand(rising or not in_order, field, "list numbers in rising order")
        self._demand(len(values) >= least, field, "list at least two")
        self._set(field, tuple(values))

    def _refuse(self, wrong: np.ndarray, text: str, advice: str = "") -> None:
        """Raise an error if a row is wrong, without its value, which is that of a record."""
        if wrong.any():
            row = int(np.argmax(wrong)) + 1
            raise ValueError(f"column {self.name!r} {text}, the first in row {row}{advice}.")


class Column(_Described):
    """A kind of column; subclasses say how its raw values become `numbers`, and those a block."""

    # The largest squared norm of a row of its block.
    squared_norm: float = 1.0

    def remarks(self, raw: Raw) -> Iterator[str]:
        """Yield what a person who may see the rows should know of them."""
        return self._places.remarks(raw)

    @cached_property
    def _places(self) -> Places:
        return Places(self.categories)

    @property
    def has_constant(self) -> bool:
        """Whether a public constant stands for missing values."""
        return self.missing is not None and repr(self.missing) != "'indicator'"

    @property
    def _indicator(self) -> list[str]:
        # The brackets keep it apart from a category of that name.
        return [f"{self.name} (missing)"] * (self.missing == "indicator")

    def _check_missing(self, is_right: bool, what: str) -> None:
        right = is_right or not self.has_constant
        self._demand(right, "missing", f"give None, 'indicator' or {what}")

    def _check_category(self) -> None:
        self._set("missing", as_listed(self.missing, self.categories))
        self._check_missing(repr(self.missing) in map(repr, self.categories), "a category")

    def _refuse_missing(self, missing: np.ndarray, also: str = "") -> None:
        advice = (
            "; say in the schema what they are: missing='indicator' gives them a column of their "
            "own, missing=<a public constant> puts that in their place"
        )
        self._refuse(missing & (self.missing is None), f"has missing values{also}", advice)

    def _exact(self, raw: Raw) -> Distinct:
        """Return distinct values, none of which may be a whole number that was rounded."""
        raw = as_distinct(raw)
        large = [isinstance(v, float) and 2**53 <= abs(v) < math.inf for v in raw.values]
        advice = "; give strings, or whole numbers (Int64 in pandas) that were never floats"
        rounded = np.array(large, dtype=bool)[raw.rows]
        self._refuse(rounded, "holds floats of 2^53 or more, whose digits may be lost", advice)
        return raw


class Quantity(Column):
    """A column with public `bounds`; `read` returns numbers, NaN of missing and inf of others."""

    integer, scale, linear_width, out_of_bounds, n_segments = True, "linear", 1.0, "clip", 1
    height, special_values = 4.0, ()
    _also_missing = ""

    def numbers(self, raw: Raw) -> np.ndarray:
        """Return float64 numbers; NaN only where missing values have an indicator."""
        values = self.read(raw)
        if self.out_of_bounds == "missing":
            values[self.is_outside(values)] = np.nan
        advice = "; give the column the kind of what it holds, or map its values by a public rule"
        self._refuse(np.isinf(values), f"holds something that is not {self._kind}", advice)
        missing = np.isnan(values)
        self._refuse_missing(missing, self._also_missing)
        if self.has_constant:
            values[missing] = self.read(distinct([self.missing], self.name))
        return values

    def position(self, values: np.ndarray) -> np.ndarray:
        """Return where numbers are between the bounds, in [0, 1], and NaN where they are NaN."""
        lower, upper = self._scaled(np.array(self.bounds))
        # Rounding is monotone, so that the result never leaves [0, 1].
        return (self._scaled(np.clip(values, *self.bounds)) - lower) / (upper - lower)

    def values_at(self, position: np.ndarray) -> np.ndarray:
        """Return the numbers at positions between the bounds."""
        lower, upper = self._scaled(np.array(self.bounds))
        values = lower + position * (upper - lower)
        return np.sinh(values) * self.linear_width if self.scale == "asinh" else values

    def entries(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the possibly nonzero values of a row's block and their columns, (n, k) each.

        Notes
        -----
        With one segment the value is the position u. With 2^L segments, the first value is
        ``u - 1/2``. Each level l < L adds one, the hat function of height ``2^(-l-1)`` over the
        part that contains u, of 2^l equal ones. All values are multiplied by `height`. Ridge and
        noise shrink the finer levels more.

        A special or missing value has a 1 in its own column and zeros in the others; a straight
        line is at 1/2 there.
        """
        position, special = self.position(numbers), self._special_place(numbers)
        missing = np.isnan(position)
        alone = missing | (special >= 0)
        values, places = self._curve(position)
        values = [np.where(alone, 0.5 * (self.n_parts == 1), value) for value in values]
        values.append(alone.astype(float))
        places.append(np.where(missing, len(self.encoded_names) - 1, self.n_parts + special))
        return np.column_stack(values), np.column_stack(places).astype(np.int32)

    def _curve(self, position: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if self.n_parts == 1:
            return [position], [np.zeros(len(position))]
        u = np.nan_to_num(position)
        values, places = [self.height * (u - 0.5)], [np.zeros(len(u))]
        for level in range(self.n_parts.bit_length() - 1):
            parts = 2**level
            part = np.minimum(np.floor(u * parts), parts - 1)
            values.append(self.height * (0.5 - np.abs(u * parts - part - 0.5)) / parts)
            places.append(part + parts)
        return values, places

    @cached_property
    def special_numbers(self) -> np.ndarray:
        """The special values as `read` returns them."""
        return self.read(distinct(self.special_values, self.name))

    def _special_place(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of the special values each number is, counted from 0, and -1 for none."""
        special = self.special_numbers
        if not len(special):
            return np.full(len(numbers), -1)
        # A number beyond a bound is that bound, which may be special, unless it is so itself.
        meant = np.where(self.is_outside(numbers), np.clip(numbers, *self.bounds), numbers)
        place = np.minimum(np.searchsorted(special, meant), len(special) - 1)
        return np.where(special[place] == meant, place, -1)

    @property
    def n_parts(self) -> int:
        """Number of segments of the term, and of its encoded columns."""
        return 1 if self.n_segments is None else self.n_segments

    @property
    def is_straight(self) -> bool:
        """Whether the score is a straight line in the numbers themselves."""
        return self.n_parts == 1 and self.scale == "linear" and not self.special_values

    def remarks(self, raw: Raw) -> Iterator[str]:
        values = self.read(raw)
        values = values[np.isfinite(values)]
        out_of_bounds = int(self.is_outside(values).sum())
        if out_of_bounds:
            done = "clipped" if self.out_of_bounds == "clip" else "treated as missing"
            yield f"{out_of_bounds} of {len(values)} values are outside the bounds, and are {done}"
        if self.integer and (values != np.floor(values)).any():
            yield "some values are not whole numbers, although integer=True"

    @property
    def encoded_names(self) -> list[str]:
        levels = [2**level for level in range(self.n_parts.bit_length() - 1)]
        hats = [f"{self.name} (part {k + 1} of {parts})" for parts in levels for k in range(parts)]
        shown = (f"{v:.15g}" if isinstance(v, float) else str(v) for v in self.special_values)
        special = [f"{self.name} = {value}" for value in shown]
        return [self.name, *hats, *special, *self._indicator]

    @property
    def squared_norm(self) -> float:
        """The largest squared norm of a row of the block.

        Notes
        -----
        With one segment, u^2 <= 1. Else, over the squared height and with a = abs(u - 1/2) <= 1/2,
        the first value and that of level 0 give ``a^2 + (1/2 - a)^2``: convex, and 1/4 at both
        ends. A row has one value of each level l, at most 2^(-l-1). A special or missing value
        gives a 1 instead, and 1/2 more on a straight line.
        """
        levels = range(self.n_parts.bit_length() - 1)
        curve = self.height**2 / 4 * sum(4.0**-level for level in levels) if levels else 1.0
        alone = bool(self.special_values) or self.missing == "indicator"
        return max(curve, alone * (1.0 if levels else 1.25))

    def _check_term(self, as_value: Callable[[Any], Any], what: str) -> None:
        """Check the fields that numbers and days share; a function returns a value or None."""
        n = self.n_parts
        is_power = type(n) is int and 1 <= n <= _MOST_INTERVALS and n & (n - 1) == 0
        self._demand(is_power, "n_segments", f"give a power of two from 1 to {_MOST_INTERVALS}")
        self._convert("height", _number, "give a finite public number")
        self._demand(0 < self.height <= 1e6, "height", "give a number above 0 and at most 1e6")
        self._choose("out_of_bounds", "clip", "missing")
        special = tuple(map(as_value, self._list("special_values")))
        self._demand(None not in special, "special_values", f"list each as a {what}")
        self._set("special_values", special)
        rising = all(a < b for a, b in pairwise(special))
        self._demand(rising, "special_values", "list distinct values in rising order")
        if self.has_constant:
            constant = as_value(self.missing)
            right = f"a {what} within the bounds or a special value"
            self._check_missing(constant is not None, right)
            self._set("missing", constant)
            outside = self.is_outside(self.read(distinct([constant], self.name)))
            self._check_missing(not outside.any(), right)

    def is_outside(self, values: np.ndarray) -> np.ndarray:
        """Return which finite numbers are neither between the bounds nor special values."""
        lower, upper = self.bounds
        beyond = np.isfinite(values) & ((values < lower) | (values > upper))
        return beyond & ~np.isin(values, self.special_numbers)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        # Only of bounds that are refused for it.
        with np.errstate(over="ignore"):
            return np.arcsinh(values / self.linear_width) if self.scale == "asinh" else values


@dataclass(frozen=True, repr=False)
class NumericColumn(Quantity):
    """A number with finite public bounds.

    Parameters
    ----------
    name : str
    lower, upper : float
    scale : {"linear", "asinh"}, default="linear"
        The inverse hyperbolic sine suits amounts over orders of magnitude.
    linear_width : float, default=1.0
        Magnitude up to which that scale is nearly linear.
    integer : bool, default=False
        Whether all values are whole numbers.
    missing : None, "indicator" or float
        Treatment of missing values: an error, a column of their own, or a public constant.
    out_of_bounds : {"clip", "missing"}, default="clip"
        Treatment of values outside the bounds: the nearest bound, or missing (codes such as -999).
    n_segments : int, optional
        Number of encoded columns of a piecewise-linear term, a power of two up to 256; 1 for a
        straight line in the score. By default a schema chooses (`Schema.additive`).
    height : float, default=4.0
        Factor of the columns of two or more segments. A larger one gives rows larger norms.
    special_values : sequence of float, default=()
        Public numbers in rising order whose meaning is not their size, such as a zero that means
        none, or a code outside of the bounds. Each has a column of its own.

    Examples
    --------
    >>> NumericColumn("age", 17, 90)
    NumericColumn(name='age', lower=17.0, upper=90.0)
    >>> NumericColumn("gain", 0, 50_000, n_segments=2, special_values=[0, 99_999]).encoded_names
    ['gain', 'gain (part 1 of 1)', 'gain = 0', 'gain = 99999']
    """

    name: str
    lower: float
    upper: float
    _: KW_ONLY
    scale: str = "linear"
    linear_width: float = 1.0
    integer: bool = False
    missing: Any = None
    out_of_bounds: str = "clip"
    n_segments: int | None = None
    height: float = 4.0
    special_values: tuple[float, ...] = ()
    _kind = "a finite number (written 1234.5, if it is text)"

    def _check(self) -> None:
        for field in ("lower", "upper", "linear_width"):
            self._convert(field, _number, "give a finite public number")
        self._choose("scale", "linear", "asinh")
        self._demand(self.linear_width > 0, "linear_width", "give a number above 0")
        lower, upper = self._scaled(np.array(self.bounds))
        apart = self.upper - self.lower < math.inf and 0 < upper - lower < math.inf
        advice = "give bounds with lower < upper, and another distance in units"
        self._demand(apart, "lower upper scale linear_width", advice)
        self._choose("integer", False, True)
        self._check_term(_number, "finite number")

    @property
    def bounds(self) -> tuple[float, float]:
        return self.lower, self.upper

    def read(self, raw: Raw) -> np.ndarray:
        return numbers(raw)


@dataclass(frozen=True, repr=False)
class DateColumn(Quantity):
    """A day between two public days, encoded as a number of days would be.

    Raw values are dates, datetimes (their day counts) or strings that start with YYYY-MM-DD.

    Parameters
    ----------
    name : str
    first, last : date or str
        As a string: YYYY-MM-DD.
    missing, out_of_bounds, n_segments, height, special_values
        As of a `NumericColumn`, with days for numbers.

    Examples
    --------
    >>> column = DateColumn("hired", "2001-01-01", "2020-12-31", n_segments=1, missing="indicator")
    >>> column.encoded_names
    ['hired', 'hired (missing)']
    """

    name: str
    first: date
    last: date
    _: KW_ONLY
    missing: Any = None
    out_of_bounds: str = "clip"
    n_segments: int | None = None
    height: float = 4.0
    special_values: tuple[date, ...] = ()
    _kind = "a date (written YYYY-MM-DD, if it is text)"

    def _check(self) -> None:
        for field in ("first", "last"):
            self._convert(field, _date, "give a public day as YYYY-MM-DD")
        self._demand(self.first < self.last, "first last", "give days with first < last")
        self._check_term(_date, "public day (YYYY-MM-DD)")

    @property
    def bounds(self) -> tuple[float, float]:
        return day(self.first), day(self.last)

    def read(self, raw: Raw) -> np.ndarray:
        return days(raw)


class _Ranked(Quantity):
    """A value out of the public list `categories`, in order, encoded as its rank would be."""

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, len(self.categories) - 1.0

    def read(self, raw: Raw) -> np.ndarray:
        ranks = self._places.of(self._exact(raw))
        return np.where(ranks < 0, self._unlisted, ranks)


@dataclass(frozen=True, repr=False)
class BooleanColumn(_Ranked):
    """True or false, encoded as 1 and 0.

    Raw values are booleans, the numbers 0 and 1, or strings such as True, true, TRUE and 1.

    Parameters
    ----------
    name : str
    missing : None, "indicator" or bool
        As of a `NumericColumn`.

    Examples
    --------
    >>> BooleanColumn("member", missing=False)
    BooleanColumn(name='member', missing=False)
    """

    name: str
    _: KW_ONLY
    missing: Any = None
    _kind, _unlisted = "true or false", np.inf
    categories = (False, True)

    def _check(self) -> None:
        self._check_missing(isinstance(self.missing, bool), "True or False")


@dataclass(frozen=True, repr=False)
class OrdinalColumn(_Ranked):
    """A category out of a public list whose order means something, encoded as its rank would be.

    Parameters
    ----------
    name : str
    categories : sequence of str or int
        At least two distinct values, the lowest first.
    missing : None, "indicator" or a category
        As of a `NumericColumn`. A value that is not listed counts as missing.

    Examples
    --------
    >>> OrdinalColumn("size", ["small", "medium", "large"])
    OrdinalColumn(name='size', categories=('small', 'medium', 'large'))
    """

    name: str
    categories: tuple[str, ...] | tuple[int, ...]
    _: KW_ONLY
    missing: Any = None
    _kind, _unlisted = "one of the categories", np.nan
    _also_missing = ", or values that are not listed"

    def _check(self) -> None:
        self._choices("categories", least=2, in_order=False)
        self._check_category()

    remarks = Column.remarks


@dataclass(frozen=True, repr=False)
class CategoricalColumn(Column):
    """A category out of a public list, encoded as a 1 in a block of zeros.

    Parameters
    ----------
    name : str
    categories : sequence of str, int or bool
        Distinct values in the order of the encoded columns; numbers in rising order.
    handle_unknown : {"zeros", "indicator"}, default="zeros"
        How a value that is not listed is encoded: as zeros, or as a 1 in a column of its own.
    missing : None, "indicator" or a category
        As of a `NumericColumn`; by default a missing value counts as one that is not listed.

    Examples
    --------
    >>> CategoricalColumn("housing", ["yes", "no"])
    CategoricalColumn(name='housing', categories=('yes', 'no'))
    """

    name: str
    categories: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...]
    _: KW_ONLY
    handle_unknown: str = "zeros"
    missing: Any = None

    def _check(self) -> None:
        self._choices("categories")
        self._choose("handle_unknown", "zeros", "indicator")
        self._check_category()

    def places(self, raw: Raw) -> np.ndarray:
        """Return the number of each category, -1 if it is not listed and NaN if it is missing."""
        return self._places.of(self._exact(raw))

    def numbers(self, raw: Raw) -> np.ndarray:
        """Return the number of each value's column in the block, -1 for zeros."""
        places = self.places(raw)
        handle_unknown = len(self.categories) if self.handle_unknown == "indicator" else -1
        missing = handle_unknown if self.missing is None else len(self.encoded_names) - 1
        if self.has_constant:
            missing = self.categories.index(self.missing)
        places[places < 0] = handle_unknown
        return np.where(np.isnan(places), missing, places).astype(np.intp)

    def entries(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the 1 of each row, and in which column of the block it is, -1 for none."""
        return np.ones((len(numbers), 1)), numbers[:, np.newaxis].astype(np.int32)

    @property
    def encoded_names(self) -> list[str]:
        listed = [f"{self.name}_{category}" for category in self.categories]
        handle_unknown = [f"{self.name} (unknown)"] * (self.handle_unknown == "indicator")
        return [*listed, *handle_unknown, *self._indicator]


@dataclass(frozen=True, repr=False)
class TextColumn(Column):
    """Words, hashed to a public number of columns by scikit-learn's ``HashingVectorizer``.

    Parameters
    ----------
    name : str
    n_features : int
        Number of encoded columns. Words share one by chance.
    missing : None, "indicator" or str
        As of a `NumericColumn`; a constant is a string.

    Notes
    -----
    A word has two letters or digits at least. A row's block has norm 1, or 0 without a word.

    Examples
    --------
    >>> len(TextColumn("note", n_features=64).encoded_names)
    64
    """

    name: str
    n_features: int
    _: KW_ONLY
    missing: Any = None

    def _check(self) -> None:
        is_count = type(self.n_features) is int and 1 <= self.n_features <= 2**20
        self._demand(is_count, "n_features", "give a whole number from 1 to 2**20")
        is_text = isinstance(self.missing, str) and bool(self.missing.strip())
        self._check_missing(is_text, "a text")

    def remarks(self, raw: Raw) -> Iterator[str]:
        return iter(())

    def numbers(self, raw: Raw) -> sparse.csr_array:
        """Return the block in CSR."""
        raw = self._exact(raw)
        # One more string, because a table without rows has none.
        values = [*raw.values, None]
        missing = np.array([is_missing(value) for value in values])
        self._refuse_missing(missing[raw.rows])
        constant = self.missing if self.has_constant else ""
        texts = [constant if is_missing(value) else str(value) for value in values]
        block = self._hashed(texts)
        if self.missing == "indicator":
            block = sparse.hstack([block, missing[:, np.newaxis]], format="csr")
        return sparse.csr_array(block[raw.rows])

    def _hashed(self, texts: list[str]) -> sparse.csr_matrix:
        from sklearn.feature_extraction.text import HashingVectorizer  # slow to import

        block = HashingVectorizer(n_features=self.n_features).transform(map(composed, texts))
        block.eliminate_zeros()  # of words that cancel
        return block

    @property
    def encoded_names(self) -> list[str]:
        return [*(f"{self.name}_{k}" for k in range(self.n_features)), *self._indicator]


@dataclass(frozen=True, repr=False)
class Target(_Described):
    """The column to predict: labels out of a public list, or a number.

    Parameters
    ----------
    name : str
    labels : sequence of str, int or bool, optional
        Two distinct ones at least, numbers in rising order; of two, the last is the positive one.
    lower, upper : float, optional
        In place of labels, the public range of a number: the ``target_bounds`` of a regressor.
        Values outside stay as they are. Without labels and range, the target is any number.

    Examples
    --------
    >>> Target("insurance", ["none", "claim"])
    Target(name='insurance', labels=('none', 'claim'))
    >>> Target("wage", lower=0, upper=500).bounds, Target("price").bounds
    ((0.0, 500.0), None)
    """

    name: str
    labels: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...] | None = None
    _: KW_ONLY
    lower: float | None = None
    upper: float | None = None

    _what = "target"

    def _check(self) -> None:
        has_bounds = self.lower is not None or self.upper is not None
        one_of = "give labels, or lower and upper of a number"
        self._demand(self.labels is None or not has_bounds, "labels lower upper", one_of)
        if self.labels is not None:
            self._choices("labels", least=2)
        elif has_bounds:
            for field in ("lower", "upper"):
                self._convert(field, _number, "give a finite public number")
            self._demand(self.lower < self.upper, "lower upper", "give bounds with lower < upper")

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The public range of a number, as the ``target_bounds`` of a regressor; or None."""
        return None if self.lower is None else (self.lower, self.upper)

    def remarks(self, raw: Raw) -> Iterator[str]:
        if self.bounds:
            values, (lower, upper) = numbers(raw), self.bounds
            outside = int(((values < lower) | (values > upper)).sum())
            told = "values are outside the bounds, where no prediction will be"
            yield from [f"{outside} of {len(values)} {told}"] * bool(outside)

    def numbers(self, raw: Raw) -> np.ndarray:
        """Return the finite numbers of raw values, or their labels, all of which are listed."""
        if self.labels is None:
            values, advice = numbers(raw), "; fill or leave out such rows by a public rule"
            self._refuse(~np.isfinite(values), "holds something that is no finite number", advice)
            return values
        places = Places(self.labels).of(raw)
        unlisted = ~(places >= 0)
        if unlisted.any():
            row = int(np.argmax(unlisted))
            advice = "list it there, or map it to one of them"
            if np.isnan(places[row]):
                advice = "give such rows a label, or a class of their own, by a public rule"
            raise ValueError(
                f"column {self.name!r} holds the label {value_at(raw, row)!r}, first in row "
                f"{row + 1}, which is not among the labels {list(self.labels)} of the schema; "
                f"{advice}."
            )
        return np.array(self.labels)[places.astype(np.intp)]
