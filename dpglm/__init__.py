"""Differentially private linear classifiers for scikit-learn."""

from dpglm.calculator import PrivacyCalculator
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.whitening import DiagonalPreconditioner, FullPreconditioner
from dpglm.exceptions import BudgetExceededError, PrivacyWarning, UtilityWarning
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import seeded_noise
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema import PublicBoundsScaler, Schema

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "DPAGDClassifier",
    "DPLinearSVM",
    "DPLogisticRegression",
    "DiagonalPreconditioner",
    "FullPreconditioner",
    "PrivacyBudget",
    "PrivacyCalculator",
    "PrivacyLedger",
    "PrivacyOdometer",
    "PrivacyPlan",
    "PrivacyWarning",
    "PublicBoundsScaler",
    "Schema",
    "UtilityWarning",
    "__version__",
    "seeded_noise",
]  # fmt: skip
