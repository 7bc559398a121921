"""Differentially private linear classifiers for scikit-learn."""

from dpglm.calculator import PrivacyCalculator
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.logistic import DPLogisticRegression
from dpglm.estimators.svm import DPLinearSVM
from dpglm.exceptions import BudgetExceededError, PrivacyWarning
from dpglm.momentum import DebiasedMomentum, HeavyBall
from dpglm.odometer import PrivacyOdometer
from dpglm.plan import PrivacyPlan
from dpglm.preconditioning import DiagonalPreconditioner, FullPreconditioner
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.scaling import PublicBoundsScaler
from dpglm.schedules import (
    Constant,
    DecayingClip,
    DynamicNoise,
    Geometric,
    InverseTime,
    LectureStep,
    Piecewise,
    Polynomial,
    PublicFacts,
    Schedule,
)
from dpglm.schema import Schema

__version__ = "0.1.0"

__all__ = [
    "BudgetExceededError",
    "Constant",
    "DPAGDClassifier",
    "DPLinearSVM",
    "DPLogisticRegression",
    "DebiasedMomentum",
    "DecayingClip",
    "DiagonalPreconditioner",
    "DynamicNoise",
    "FullPreconditioner",
    "Geometric",
    "HeavyBall",
    "InverseTime",
    "LectureStep",
    "Piecewise",
    "Polynomial",
    "PrivacyBudget",
    "PrivacyCalculator",
    "PrivacyLedger",
    "PrivacyOdometer",
    "PrivacyPlan",
    "PrivacyWarning",
    "PublicBoundsScaler",
    "PublicFacts",
    "Schedule",
    "Schema",
    "__version__",
]
