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
from dpglm.schedules import (
    BiasCorrectedMomentum,
    Constant,
    ConvexStep,
    DecayingClip,
    DynamicNoise,
    ExponentialDecay,
    HeavyBall,
    InverseTimeDecay,
    PiecewiseConstant,
    Polynomial,
    PublicMetadata,
    Schedule,
)
from dpglm.schema import PublicBoundsScaler, Schema

__version__ = "0.1.0"

__all__ = [
    "BiasCorrectedMomentum",
    "BudgetExceededError",
    "Constant",
    "ConvexStep",
    "DPAGDClassifier",
    "DPLinearSVM",
    "DPLogisticRegression",
    "DecayingClip",
    "DiagonalPreconditioner",
    "DynamicNoise",
    "ExponentialDecay",
    "FullPreconditioner",
    "HeavyBall",
    "InverseTimeDecay",
    "PiecewiseConstant",
    "Polynomial",
    "PrivacyBudget",
    "PrivacyCalculator",
    "PrivacyLedger",
    "PrivacyOdometer",
    "PrivacyPlan",
    "PrivacyWarning",
    "PublicBoundsScaler",
    "PublicMetadata",
    "Schedule",
    "Schema",
    "UtilityWarning",
    "__version__",
    "seeded_noise",
]  # fmt: skip
