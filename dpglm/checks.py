"""Checks of parameters; each returns the value, or raises a ValueError that states the rule."""

import math
import operator
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

_LIMITS = {
    "above": ("above", operator.gt),
    "at_least": ("of at least", operator.ge),
    "below": ("below", operator.lt),
    "at_most": ("at most", operator.le),
}


def is_number(value: object) -> bool:
    """Return whether a value is a real number: no boolean, not NaN, and a float can hold it."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def is_auto(value: Any) -> bool:
    """Return whether a parameter asks for the documented rule."""
    return isinstance(value, str) and value == "auto"


def check_number(name: str, value: Any, *, advice: str = "", **limits: float) -> float:
    """Return a number as a float, within limits: `above`, `at_least`, `below`, `at_most`."""
    # As a float, since a limit may overflow in a shorter type.
    number = float(value) if is_number(value) else math.nan
    if not all(_LIMITS[kind][1](number, limit) for kind, limit in limits.items()):
        rule = " and ".join(f"{_LIMITS[kind][0]} {x:g}" for kind, x in limits.items())
        rule = rule.replace("below inf", "finite")
        raise ValueError(f"{name}={value!r} must be a number {rule}{advice and f'; {advice}'}.")
    return number


def check_whole(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return a whole number within limits."""
    within = isinstance(value, Integral) and not isinstance(value, bool) and value >= at_least
    if not within or (at_most is not None and value > at_most):
        rule = f", {at_least} or more" if at_most is None else f" from {at_least} to {at_most}"
        raise ValueError(f"{name}={value!r} must be a whole number{rule}.")
    return int(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return a string that is among the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {list(choices)}.")
    return value
