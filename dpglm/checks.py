"""Checks of parameters, labels and rows; each returns the value, or raises a ValueError."""

import math
import operator
from collections.abc import Collection
from datetime import UTC, date, timedelta
from decimal import Decimal
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d

_LIMITS = {
    "above": ("above", operator.gt),
    "at_least": ("of at least", operator.ge),
    "below": ("below", operator.lt),
    "at_most": ("at most", operator.le),
}
# In characters, of a value that a message quotes.
_LONGEST = 60
# Labels in Python's types, and how arrays hold them. numpy's durations count as whole numbers.
_ARRAY_TYPES = {
    str: object,
    (timedelta, np.timedelta64): "m8[us]",
    (date, np.datetime64): "M8[us]",
    (bool, np.bool_, Real): None,
}
_NONE = ("NoneType", "NAType", "NaTType")
_ADVICE = "give these rows a label, or a class of their own, by a public rule"


def is_number(value: object) -> bool:
    """Return whether a value is a real number: no boolean, not NaN, and a float can hold it."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    except (OverflowError, TypeError):  # of a duration of numpy, which counts as whole
        return False


def is_auto(value: Any) -> bool:
    """Return whether a parameter asks for the documented rule."""
    return isinstance(value, str) and value == "auto"


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: None, NaN, NA, NaT, or a blank string."""
    if isinstance(value, str):
        return not value.strip()
    # The signalling NaN of decimals cannot be compared.
    no_number = getattr(value, "is_nan", bool)()
    return no_number or type(value).__name__ in _NONE or bool(value != value)


def _shown(value: Any) -> str:
    """Return how a message shows a value: by its type alone where it is long and may be data."""
    if type(value) is int and not is_number(value):
        return "<a whole number beyond those of floats>"
    is_short = isinstance(value, Number | str) or len(repr(value)) <= _LONGEST
    return repr(value) if is_short else f"<{type(value).__name__}>"


def check_number(name: str, value: Any, *, advice: str = "", **limits: float) -> float:
    """Return a number as a float, within limits: `above`, `at_least`, `below`, `at_most`."""
    # As a float, since a limit may overflow in a shorter type.
    number = float(value) if is_number(value) else math.nan
    within = all(_LIMITS[kind][1](number, limit) for kind, limit in limits.items())
    if math.isnan(number) or not within:
        rule = " and ".join(f"{_LIMITS[kind][0]} {x:g}" for kind, x in limits.items())
        rule = f"a number {rule}".rstrip().replace("below inf", "finite")
        raise ValueError(f"{name}={_shown(value)} must be {rule}{advice and f'; {advice}'}.")
    return number


def check_whole(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return a whole number within limits."""
    within = isinstance(value, Integral) and is_number(value) and value >= at_least
    if not within or (at_most is not None and value > at_most):
        rule = f", {at_least} or more" if at_most is None else f" from {at_least} to {at_most}"
        raise ValueError(f"{name}={_shown(value)} must be a whole number{rule}.")
    return int(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return a string that is among the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={_shown(value)} is unknown; choose one of {list(choices)}.")
    return value


def check_labels(name: str, values: Any, advice: str = _ADVICE) -> np.ndarray:
    """Return labels, groups or classes as a vector (n,) of one type, none missing or infinite.

    Times are in microseconds, whatever their unit, and in UTC if they have a time zone.
    """
    # From a list with one string, numpy would make strings of all values.
    array = values if hasattr(values, "__array__") else np.asarray(values, dtype=object)
    labels = check_vector(name, array)
    labels = labels.astype(object) if labels.dtype.kind == "T" else labels
    listed = labels.tolist() if labels.dtype == object else []
    lacking = np.array([not isinstance(v, str) and is_missing(v) for v in listed], dtype=bool)
    if labels.dtype.kind in "fmM":
        lacking = ~np.isfinite(labels)
    if lacking.any():
        row = int(np.argmax(lacking))
        word = "missing" if is_missing(labels[row]) else "infinite"
        raise ValueError(f"{name} has {word} labels, the first in row {row + 1}; {advice}.")
    kinds = {*map(_array_type, {*map(type, listed)})}
    if len(kinds) > 1:
        raise ValueError(f"{name} must hold labels of one type; turn them all into strings.")
    if kinds and not (kinds == {object} and array is values):
        listed = [
            v.astimezone(UTC).replace(tzinfo=None) if getattr(v, "tzinfo", None) else v
            for v in listed
        ]
        typed = np.array(listed, *(kinds - {object}))
        return labels if typed.dtype == object else check_labels(name, typed, advice)
    return labels.astype(f"{labels.dtype.kind}8[us]") if labels.dtype.kind in "mM" else labels


def _array_type(kind: type) -> Any:
    return next((a for types, a in _ARRAY_TYPES.items() if issubclass(kind, types)), kind)


def check_numbers(name: str, values: Any, **limits: float) -> np.ndarray:
    """Return one finite number for each row as a float64 vector (n,), each within the limits."""
    found = check_vector(name, values)
    numbers = np.full(1, math.nan)
    # Strings would be read as numbers, and dates counted from 1970.
    if found.dtype.kind in "biuf" or all(isinstance(v, Decimal) or is_number(v) for v in found):
        numbers = found.astype(np.float64)
    within = (_LIMITS[kind][1](numbers, x).all() for kind, x in limits.items())
    if not (np.isfinite(numbers).all() and all(within)):
        rule = "".join(f", {_LIMITS[kind][0]} {x:g}" for kind, x in limits.items())
        raise ValueError(f"{name} must hold finite numbers{rule}; fill or leave out other rows.")
    return numbers


def check_vector(name: str, values: Any) -> np.ndarray:
    """Return one value for each row as a vector (n,)."""
    check_unmasked(name, values)
    found = np.asarray(values)
    if found.dtype.kind in "cV":
        raise ValueError(f"Complex data not supported: {name} has the type {found.dtype}.")
    if found.ndim != 1 and found.shape[1:] != (1,):
        raise ValueError(f"{name} has shape {found.shape}; list one value per row or class.")
    return column_or_1d(found, warn=True)


def check_unmasked(name: str, values: Any) -> None:
    """Refuse a masked array."""
    if any(map(np.ma.isMaskedArray, [values, *(values if isinstance(values, list) else ())])):
        raise ValueError(f"{name} is a masked array, and its mask would be lost; fill it first.")


def check_rows(X: Any) -> None:
    """Refuse rows with masks, dates or times, which numpy would read as numbers."""
    check_unmasked("X", X)
    if type(X).__name__ == "LazyFrame":
        raise ValueError("X is a LazyFrame, which holds no rows yet; give X.collect().")
    dtypes = getattr(X, "dtypes", getattr(X, "dtype", None))
    dtypes = getattr(getattr(X, "schema", None), "types", dtypes)
    if isinstance(X, np.ndarray) and X.dtype == object:
        dtypes = {type(value).__name__ for value in X.flat}
    dtypes = dtypes if np.iterable(dtypes) else [dtypes]
    # As pandas, polars, pyarrow and numpy write them.
    if any(str(dtype).lower().startswith(("date", "time", "duration")) for dtype in dtypes):
        raise ValueError("X holds dates or times; encode them, as a Schema's transformer does.")
