"""Differentially private linear classifiers for scikit-learn."""

import sys
from importlib import import_module
from typing import Any

from dpglm.calculator import PrivacyCalculator
from dpglm.datasets import make_census
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.regression import DPGammaRegressor, DPLinearRegression, DPPoissonRegressor
from dpglm.estimators.whitening import DiagonalPreconditioner, FullPreconditioner
from dpglm.exceptions import instead_of
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import seeded_noise
from dpglm.privacy.odometer import PrivacyOdometer
from dpglm.schema import PublicBoundsScaler, Schema, load_schema
from dpglm.sources import read_csv
from dpglm.workflow import (
    PrivateSearchCV,
    check_pipeline,
    private_scores,
    private_train_test_split,
    total_privacy,
)

__version__ = "0.1.0"

__all__ = [
    "DPAGDClassifier", "DPGammaRegressor", "DPLinearRegression", "DPLinearSVM",
    "DPLogisticRegression", "DPPoissonRegressor", "DiagonalPreconditioner",
    "FullPreconditioner", "PrivacyBudget", "PrivacyCalculator", "PrivacyLedger",
    "PrivacyOdometer", "PrivateSearchCV", "PublicBoundsScaler", "Schema", "__version__",
    "check_pipeline", "load_schema", "make_census", "private_scores",
    "private_train_test_split", "read_csv", "seeded_noise", "total_privacy",
]  # fmt: skip

_SUBMODULES = (
    "schema", "workflow", "study", "baselines", "schedules", "audit", "sources", "datasets",
    "exceptions",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a submodule, or say where a name is, or what there is instead of it."""
    if name in _SUBMODULES:
        return import_module(f"dpglm.{name}")
    instead = instead_of("names").get(name, "")
    if not instead and not name.startswith("_"):
        faces = (import_module(f"dpglm.{face}") for face in _SUBMODULES)
        instead = next((f"{face.__name__}.{name}" for face in faces if name in face.__all__), "")
    advice = f": use {instead}" if instead else ""
    # ``from dpglm import ...`` does not show the text of an AttributeError, and asks from here.
    if advice and sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
        raise ImportError(f"dpglm has no {name!r}{advice}.")
    raise AttributeError(f"module 'dpglm' has no attribute {name!r}{advice}.")
