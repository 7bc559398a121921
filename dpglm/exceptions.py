"""Warnings and errors of the package."""

__all__ = ["BudgetExceededError", "PrivacyWarning"]


class PrivacyWarning(UserWarning):
    """A setting is legal but weakens, or makes it harder to rely on, the stated guarantee."""


class BudgetExceededError(ValueError):
    """A release was asked for that the remaining privacy budget does not cover."""
