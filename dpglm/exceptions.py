"""Warnings and errors of the package, and the checks of numbers that raise them."""

from numbers import Real
from typing import Any

import numpy as np

__all__ = ["BudgetExceededError", "PrivacyWarning", "check_number", "check_whole", "is_auto"]


class PrivacyWarning(UserWarning):
    """A setting is legal but weakens, or makes it harder to rely on, the stated guarantee."""


class BudgetExceededError(ValueError):
    """A release was asked for that the remaining privacy budget does not cover."""


def is_auto(value: Any) -> bool:
    """Return whether a parameter asks for the documented rule."""
    return isinstance(value, str) and value == "auto"


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """Return a number above ``low`` and at most ``high``, or raise a ValueError.

    Examples
    --------
    >>> check_number("clip", 2, 0.0, 10.0)
    2.0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not low < value <= high:
        raise ValueError(f"{name}={value!r} must be a number above {low:g} and at most {high:g}.")
    return float(value)


def check_whole(name: str, value: Any) -> int:
    """Return a whole number, 1 or more, or raise a ValueError.

    Examples
    --------
    >>> check_whole("max_iter", 20)
    20
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more.")
    return int(value)
