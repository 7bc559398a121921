"""Differentially private linear models for scikit-learn."""

from typing import TYPE_CHECKING

from dpglm.calculator import PrivacyCalculator
from dpglm.datasets import make_census
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.regression import DPGammaRegressor, DPLinearRegression, DPPoissonRegressor
from dpglm.estimators.whitening import DiagonalPreconditioner, FullPreconditioner
from dpglm.exceptions import absent
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import seeded_noise
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema import PublicBoundsScaler, Schema, load_schema
from dpglm.sources import read_csv

if TYPE_CHECKING:
    from dpglm.workflow import (
        PrivateSearchCV,
        check_pipeline,
        private_scores,
        private_train_test_split,
        total_privacy,
    )  # fmt: skip

__version__ = "0.1.0"

__all__ = [
    "DPAGDClassifier", "DPGammaRegressor", "DPLinearRegression", "DPLinearSVM",
    "DPLogisticRegression", "DPPoissonRegressor", "DiagonalPreconditioner",
    "FullPreconditioner", "PrivacyBudget", "PrivacyCalculator", "PrivacyLedger",
    "PrivacyOdometer", "PrivateSearchCV", "PublicBoundsScaler", "Schema", "__version__",
    "check_pipeline", "load_schema", "make_census", "private_scores",
    "private_train_test_split", "read_csv", "seeded_noise", "total_privacy",
]  # fmt: skip

__getattr__ = absent(__name__)


def __dir__() -> list[str]:
    """Return the names for completion, also of what is imported later."""
    return sorted({*globals(), *__all__})
