"""Warnings and errors of the package, and the checks that raise them."""

from importlib import import_module
from numbers import Real
from typing import Any

import numpy as np

__all__ = [
    "BudgetExceededError",
    "PrivacyWarning",
    "UtilityWarning",
    "check_number",
    "check_whole",
    "is_auto",
    "require",
]


class PrivacyWarning(UserWarning):
    """A setting is legal but weakens, or makes it harder to rely on, the stated guarantee."""


class UtilityWarning(UserWarning):
    """A fit is private but has probably learned little; known from released numbers alone."""


class BudgetExceededError(ValueError):
    """A release was asked for that the remaining privacy budget does not cover."""


def is_auto(value: Any) -> bool:
    """Return whether a parameter asks for the documented rule."""
    return isinstance(value, str) and value == "auto"


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """Return a number above ``low`` and at most ``high``, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low < value <= high:
        raise ValueError(f"{name}={value!r} must be a number above {low:g} and at most {high:g}.")
    return float(value)


def check_whole(name: str, value: Any) -> int:
    """Return a whole number, 1 or more, or raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more.")
    return int(value)


def require(module: str, extra: str, what: str) -> Any:
    """Return an optional module, or raise an ImportError that names the extra it comes with."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f'{what} needs {package}: pip install "dpglm[{extra}]".') from error
