"""Checks of parameters; each returns the value, or raises a ValueError that states the rule."""

import math
import operator
from collections.abc import Collection
from numbers import Integral, Number, Real
from typing import Any

_LIMITS = {
    "above": ("above", operator.gt),
    "at_least": ("of at least", operator.ge),
    "below": ("below", operator.lt),
    "at_most": ("at most", operator.le),
}
# In characters, of a value that a message quotes.
_LONGEST = 60


def is_number(value: object) -> bool:
    """Return whether a value is a real number: no boolean, not NaN, and a float can hold it."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def is_auto(value: Any) -> bool:
    """Return whether a parameter asks for the documented rule."""
    return isinstance(value, str) and value == "auto"


def _shown(value: Any) -> str:
    """Return how a message shows a value: by its type alone where it is long and may be data."""
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
    within = isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least
    if not within or (at_most is not None and value > at_most):
        rule = f", {at_least} or more" if at_most is None else f" from {at_least} to {at_most}"
        raise ValueError(f"{name}={_shown(value)} must be a whole number{rule}.")
    return int(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return a string that is among the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={_shown(value)} is unknown; choose one of {list(choices)}.")
    return value
