"""Differentially private linear classifiers for scikit-learn."""

from dpglm.exceptions import BudgetExceededError, PrivacyWarning
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "PrivacyBudget",
    "PrivacyLedger",
    "PrivacyWarning",
    "__version__",
]
