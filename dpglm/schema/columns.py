"""The kinds of columns: what is public about each, and how its raw values become numbers."""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from datetime import date
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from dpglm.schema.values import Distinct, Listed, Raw, as_date, days, distinct, is_missing, numbers

# What a draft holds where a person has to say what is public.
FILL_IN = "FILL IN"


class _Public:
    """Fields with public facts; only what differs from the defaults is shown and written."""

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.facts().items())
        return f"{type(self).__name__}({inner})"

    def __post_init__(self) -> None:
        kind = "target" if isinstance(self, Target) else "column"
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a {kind} has name={self.name!r}; give a non-empty string.")
        if not self.to_fill_in:
            self._check()

    def facts(self) -> dict[str, Any]:
        """Return the fields that have no default, or another value."""
        values = {field: getattr(self, field.name) for field in fields(self)}
        # By their texts: 1 and True are equal.
        return {
            f.name: value
            for f, value in values.items()
            if f.default is MISSING or repr(value) != repr(f.default)
        }

    @property
    def to_fill_in(self) -> list[str]:
        """The fields of a draft that a person has to fill in."""
        return [f.name for f in fields(self) if _is_open(getattr(self, f.name))]

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            # A frozen dataclass can be set in this way only.
            object.__setattr__(self, name, value)

    def _refuse(self, wrong: np.ndarray, text: str) -> None:
        """Raise an error if a row is wrong, without its value, which is that of a record."""
        if wrong.any():
            raise ValueError(f"column {self.name!r} {text.format(row=int(np.argmax(wrong)) + 1)}")


class Column(_Public):
    """A kind of column: its public facts, its encoded columns and their largest norm."""

    name: str
    missing: Any
    _policies: ClassVar[tuple] = (None, "indicator")

    def numbers(self, raw: Raw) -> Any:
        """Return raw values as the encoder wants them, once what is missing is dealt with."""
        raise NotImplementedError

    def remarks(self, raw: Raw) -> Iterator[str]:
        """Yield what a person who may see the rows should know of them."""
        raise NotImplementedError

    @property
    def encoded_names(self) -> list[str]:
        """Names of the columns of its block."""
        raise NotImplementedError

    @property
    def squared_norm(self) -> float:
        """The largest squared norm of a row of its block."""
        raise NotImplementedError

    def _fill(self, gone: np.ndarray) -> None:
        """Raise an error if values are missing and no policy says what that means."""
        if self.missing is None:
            self._refuse(
                gone,
                "has missing values, the first in row {row}; say in the schema what they are: "
                "missing='indicator' gives them a column of their own, missing=<a public "
                "constant> puts that in their place.",
            )

    def _check_missing(self, is_constant: bool, what: str) -> None:
        if self.missing not in self._policies and not is_constant:
            raise ValueError(
                f"column {self.name!r} has missing={self.missing!r}; give None, 'indicator' or "
                f"{what}."
            )


class Quantity(Column):
    """A column that has an order, and public bounds in some unit."""

    integer = True
    scale = "linear"
    outside = "clip"
    _kind: ClassVar[str]

    @property
    def bounds(self) -> tuple[float, float]:
        """The public bounds of what `numbers` returns."""
        raise NotImplementedError

    def position(self, values: np.ndarray) -> np.ndarray:
        """Return where numbers are between the bounds, in [0, 1], and NaN where they are NaN."""
        lower, upper = self._scaled(np.array(self.bounds))
        # Rounding is monotone, so that the result never leaves [0, 1].
        return (np.clip(self._scaled(values), lower, upper) - lower) / (upper - lower)

    def numbers(self, raw: Raw) -> np.ndarray:
        """Return float64 numbers; NaN only where missing values have an indicator."""
        values = self._within(self._read(raw))
        self._refuse(
            np.isinf(values), f"holds something that is not {self._kind}, first in row {{row}}."
        )
        gone = np.isnan(values)
        self._fill(gone)
        if self.missing not in self._policies:
            values[gone] = self._constant
        return values

    def remarks(self, raw: Raw) -> Iterator[str]:
        values = self._read(raw)
        values = values[np.isfinite(values)]
        lower, upper = self.bounds
        outside = int(((values < lower) | (values > upper)).sum())
        if outside:
            done = "clipped" if self.outside == "clip" else "treated as missing"
            yield f"{outside} of {len(values)} values are outside the bounds, and are {done}"
        if self.integer and (values != np.floor(values)).any():
            yield "some values are not whole numbers, although integer=True"

    @property
    def encoded_names(self) -> list[str]:
        return [self.name] + [f"{self.name} (missing)"] * (self.missing == "indicator")

    @property
    def squared_norm(self) -> float:
        # Where a value is missing its number is at 1/2, beside the 1 of the indicator.
        return 1.25 if self.missing == "indicator" else 1.0

    def _read(self, raw: Raw) -> np.ndarray:
        """Return a number for each value, NaN for those missing and inf for what is none."""
        raise NotImplementedError

    @property
    def _constant(self) -> float:
        return self._within(self._read(distinct([self.missing], self.name)))[0]

    def _within(self, values: np.ndarray) -> np.ndarray:
        lower, upper = self.bounds
        if self.outside == "missing":
            values[np.isfinite(values) & ((values < lower) | (values > upper))] = np.nan
        return values

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        return np.arcsinh(values) if self.scale == "asinh" else values


@dataclass(frozen=True, repr=False)
class NumericColumn(Quantity):
    """A number with finite public bounds.

    Parameters
    ----------
    name : str
    lower, upper : float
    scale : {"linear", "asinh"}, default="linear"
        The inverse hyperbolic sine suits amounts over orders of magnitude: it is linear near 0
        and a logarithm far from it.
    integer : bool, default=False
        Whether all values are whole numbers.
    missing : None, "indicator" or float
        What a missing value means: an error, a column of its own (the number is then in the middle
        of its column), or a public constant between the bounds.
    outside : {"clip", "missing"}, default="clip"
        What a value outside the bounds means: the nearest bound, or a missing value, for codes
        such as -999.

    Examples
    --------
    >>> NumericColumn("age", 17, 90)
    NumericColumn(name='age', lower=17.0, upper=90.0)
    """

    name: str
    lower: float
    upper: float
    _: KW_ONLY
    scale: str = "linear"
    integer: bool = False
    missing: Any = None
    outside: str = "clip"
    _kind = "a finite number"

    def _check(self) -> None:
        self._set(**{k: _finite(self.name, k, getattr(self, k)) for k in ("lower", "upper")})
        if not 0 < self.upper - self.lower < math.inf:
            raise ValueError(
                f"column {self.name!r} has lower={self.lower} and upper={self.upper}; give bounds "
                "with lower < upper and a finite difference."
            )
        if not np.diff(self._scaled(np.array(self.bounds)))[0] > 0:
            raise ValueError(
                f"column {self.name!r} has lower={self.lower} and upper={self.upper}, which are "
                f"one on the scale {self.scale!r}; give bounds further apart."
            )
        _choice(self, "scale", ("linear", "asinh"))
        _choice(self, "integer", (False, True))
        _choice(self, "outside", ("clip", "missing"))
        if self.missing not in self._policies:
            self._set(missing=_finite(self.name, "missing", self.missing))
            inside = self.lower <= self.missing <= self.upper
            self._check_missing(inside, "a number within the bounds")

    @property
    def bounds(self) -> tuple[float, float]:
        return self.lower, self.upper

    def _read(self, raw: Raw) -> np.ndarray:
        return numbers(raw)


@dataclass(frozen=True, repr=False)
class DateColumn(Quantity):
    """A day between two public days, encoded as a number of days would be.

    Raw values are dates, moments (of which the day counts) or texts that start with YYYY-MM-DD.

    Parameters
    ----------
    name : str
    first, last : date or str
        As text: YYYY-MM-DD.
    missing, outside
        As of a `NumericColumn`; a constant is a day between the two.

    Examples
    --------
    >>> DateColumn("hired", "2001-01-01", "2020-12-31", missing="indicator").encoded_names
    ['hired', 'hired (missing)']
    """

    name: str
    first: date
    last: date
    _: KW_ONLY
    missing: Any = None
    outside: str = "clip"
    _kind = "a date (written YYYY-MM-DD, if it is text)"

    def _check(self) -> None:
        given = ["first", "last", *(["missing"] * (self.missing not in self._policies))]
        self._set(**{k: _day(self.name, k, getattr(self, k)) for k in given})
        if not self.first < self.last:
            raise ValueError(
                f"column {self.name!r} has first={self.first} and last={self.last}; give days with "
                "first < last."
            )
        _choice(self, "outside", ("clip", "missing"))
        if "missing" in given:
            inside = self.first <= self.missing <= self.last
            self._check_missing(inside, "a day from first to last")

    @property
    def bounds(self) -> tuple[float, float]:
        return tuple(days(distinct([self.first, self.last], self.name)))

    def _read(self, raw: Raw) -> np.ndarray:
        return days(raw)


class _Ranked(Quantity):
    """A value out of a public list in order, encoded as its rank would be."""

    @cached_property
    def _list(self) -> Listed:
        return Listed(self._values)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, len(self._values) - 1.0

    def _read(self, raw: Raw) -> np.ndarray:
        ranks = self._list.places(raw)
        return np.where(ranks < 0, np.inf, ranks)


@dataclass(frozen=True, repr=False)
class BooleanColumn(_Ranked):
    """True or false, encoded as 1 and 0.

    Raw values are booleans, the numbers 0 and 1, or texts such as True, true, TRUE and 1.

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
    _kind = "true or false"
    _values = (False, True)

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

    _kind = "one of the categories"

    def _check(self) -> None:
        self._set(categories=_listed(self.name, "categories", self.categories, ranked=True))
        if len(self.categories) < 2:
            raise ValueError(
                f"column {self.name!r} has categories={list(self.categories)}; list at least two."
            )
        self._check_missing(self.missing in self.categories, "one of the categories")

    @property
    def _values(self) -> tuple:
        return self.categories

    def _read(self, raw: Raw) -> np.ndarray:
        ranks = self._list.places(raw)
        return np.where(ranks < 0, np.nan, ranks)

    def remarks(self, raw: Raw) -> Iterator[str]:
        yield from _remarks_on_list(self._list, self.categories, raw)


@dataclass(frozen=True, repr=False)
class CategoricalColumn(Column):
    """A category out of a public list, encoded as a 1 in a block of zeros.

    Parameters
    ----------
    name : str
    categories : sequence of str, int or bool
        Distinct values in the order of the encoded columns; numbers in rising order.
    unknown : {"zeros", "indicator"}, default="zeros"
        How a value that is not listed is encoded: as zeros, or as a 1 in a column of its own.
    missing : None, "indicator" or a category
        A missing value is encoded as one that is not listed, in a column of its own, or as the
        category given.

    Examples
    --------
    >>> CategoricalColumn("housing", ["yes", "no"])
    CategoricalColumn(name='housing', categories=('yes', 'no'))
    """

    name: str
    categories: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...]
    _: KW_ONLY
    unknown: str = "zeros"
    missing: Any = None

    def _check(self) -> None:
        self._set(categories=_listed(self.name, "categories", self.categories))
        _choice(self, "unknown", ("zeros", "indicator"))
        self._check_missing(self.missing in self.categories, "one of the categories")

    @cached_property
    def _list(self) -> Listed:
        return Listed(self.categories)

    def places(self, raw: Raw) -> np.ndarray:
        """Return the number of each category, -1 if it is not listed and NaN if it is missing."""
        return self._list.places(raw)

    def numbers(self, raw: Raw) -> np.ndarray:
        """Return for each value the number of its column in the block, -1 for zeros."""
        places, n_listed = self.places(raw), len(self.categories)
        unknown = n_listed if self.unknown == "indicator" else -1
        missing = {None: unknown, "indicator": len(self.encoded_names) - 1}
        if self.missing not in missing:
            missing[self.missing] = self.categories.index(self.missing)
        places[places < 0] = unknown
        places[np.isnan(places)] = missing[self.missing]
        return places.astype(np.intp)

    def remarks(self, raw: Raw) -> Iterator[str]:
        yield from _remarks_on_list(self._list, self.categories, raw)

    @property
    def encoded_names(self) -> list[str]:
        # The brackets keep them apart from a category of that name.
        own = [w for w in ("unknown", "missing") if getattr(self, w) == "indicator"]
        return [f"{self.name}_{c}" for c in self.categories] + [f"{self.name} ({w})" for w in own]

    @property
    def squared_norm(self) -> float:
        return 1.0


@dataclass(frozen=True, repr=False)
class TextColumn(Column):
    """Words, hashed to a public number of columns by scikit-learn's ``HashingVectorizer``.

    Parameters
    ----------
    name : str
    buckets : int
        Number of encoded columns. Words share one by chance.
    missing : None, "indicator" or str
        As of a `NumericColumn`; a constant is a text.

    Notes
    -----
    The counts of words are divided by their L2 norm, so that of a row's block is at most 1.

    Examples
    --------
    >>> len(TextColumn("note", buckets=64).encoded_names)
    64
    """

    name: str
    buckets: int
    _: KW_ONLY
    missing: Any = None

    def _check(self) -> None:
        if type(self.buckets) is not int or not 1 <= self.buckets <= 2**24:
            raise ValueError(
                f"column {self.name!r} has buckets={self.buckets!r}; give a whole number, from 1 "
                "to 2**24."
            )
        self._check_missing(isinstance(self.missing, str) and self.missing.strip(), "a text")

    def numbers(self, raw: Raw) -> Any:
        """Return the block in CSR."""
        if not isinstance(raw, Distinct):
            raw = distinct(raw.tolist(), self.name)
        self._fill(np.isnan(raw.map(lambda value: 0.0)))
        in_place = "" if self.missing in self._policies else self.missing
        texts = [in_place if is_missing(value) else str(value) for value in raw.values]
        words = HashingVectorizer(n_features=self.buckets)
        # One more text, as there may be none, for a table without rows.
        block = words.transform([*texts, ""])
        if self.missing == "indicator":
            gone = np.array([[is_missing(value)] for value in [*raw.values, None]], dtype=float)
            block = sparse.hstack([block, gone], format="csr")
        return sparse.csr_array(block[raw.rows])

    def remarks(self, raw: Raw) -> Iterator[str]:
        yield from ()

    @property
    def encoded_names(self) -> list[str]:
        names = [f"{self.name}_{bucket}" for bucket in range(self.buckets)]
        return names + [f"{self.name} (missing)"] * (self.missing == "indicator")

    @property
    def squared_norm(self) -> float:
        return 1.0


@dataclass(frozen=True, repr=False)
class Target(_Public):
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

    def _check(self) -> None:
        self._set(labels=_listed(self.name, "labels", self.labels))
        if len(self.labels) < 2:
            raise ValueError(f"{self.name!r} has labels={list(self.labels)}; list at least two.")

    def read(self, raw: Raw) -> np.ndarray:
        """Return the labels of raw values, which must be among those listed."""
        places = Listed(self.labels).places(raw)
        unlisted = ~(places >= 0)
        if unlisted.any():
            row = int(np.argmax(unlisted))
            found = raw.values[raw.rows[row]] if isinstance(raw, Distinct) else raw[row].item()
            raise ValueError(
                f"column {self.name!r} holds the label {found!r}, first in row {row + 1}, which is "
                f"not among the labels {list(self.labels)} of the schema."
            )
        return np.array(self.labels)[places.astype(np.intp)]

    def remarks(self, raw: Raw) -> Iterator[str]:
        yield from ()


def _remarks_on_list(listed: Listed, categories: tuple, raw: Raw) -> Iterator[str]:
    """Yield which values are not listed, and which of those listed never occur."""
    places = listed.places(raw)
    if (places < 0).any():
        rows = np.flatnonzero(places < 0)
        values = raw.values[raw.rows[rows[0]]] if isinstance(raw, Distinct) else raw[rows[0]].item()
        yield (
            f"{len(rows)} of {len(places)} values are not listed, the first of them {values!r}; "
            "spell the categories as the table does"
        )
    never = [value for k, value in enumerate(categories) if not (places == k).any()]
    if never:
        yield f"these categories never occur: {never}"


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and value == FILL_IN


def _choice(column: Column, field: str, choices: tuple) -> None:
    value = getattr(column, field)
    if not isinstance(value, (str, bool)) or value not in choices:
        raise ValueError(
            f"column {column.name!r} has {field}={value!r}; choose one of {list(choices)}."
        )


def _day(name: str, field: str, value: Any) -> date:
    try:
        return as_date(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"column {name!r} has {field}={value!r}; give a public day as YYYY-MM-DD."
        ) from None


def _finite(name: str, field: str, value: Any) -> float:
    number = value.item() if isinstance(value, np.generic) else value
    # Not isinstance: True is an int. Integers too large for a float are refused by the comparison.
    if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:
        raise ValueError(f"column {name!r} has {field}={value!r}; give a finite public number.")
    return float(number)


def _listed(name: str, field: str, values: Any, *, ranked: bool = False) -> tuple:
    """Return the values as a tuple of distinct str, int or bool of one type."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name!r} has {field}={values!r}; give a list.")
    values = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    types = {type(v) for v in values}
    if len(types) != 1 or not types <= {str, int, bool}:
        raise ValueError(
            f"{name!r} has {field}={list(values)}; list values that are all strings, all integers "
            "or all booleans."
        )
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{name!r} has {value!r} twice in {field}; list every value once.")
    if not ranked and not isinstance(values[0], str) and list(values) != sorted(values):
        raise ValueError(f"{name!r} has {field}={list(values)}; list numbers in rising order.")
    return values
