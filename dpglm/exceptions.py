"""Warnings and errors of the package."""

from importlib import import_module
from typing import Any

__all__ = ["BudgetExceededError", "PrivacyWarning", "UtilityWarning"]


class PrivacyWarning(UserWarning):
    """A setting is legal but weakens, or makes it harder to rely on, the stated guarantee."""


class UtilityWarning(UserWarning):
    """A fit is private but has probably learned little; known from released numbers alone."""


class BudgetExceededError(ValueError):
    """A release was asked for that the remaining privacy budget does not cover."""


def require(module: str, extra: str, what: str) -> Any:
    """Return an optional module, or raise an ImportError that names the extra it comes with."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(f'{what} needs {package}: pip install "dpglm[{extra}]".') from error


ADVICE_ON_MISSING_VALUES = (
    "Put a public constant in the place of such values, or let missing= of a Schema's columns say "
    "what they are: means of a column, and rows that are dropped, would tell of records."
)
