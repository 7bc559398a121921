"""Private work around a fit: search, scores, calibration, splits, and one ledger for all of it."""

from dpglm.workflow.checks import Finding, check_pipeline
from dpglm.workflow.search import PrivateSearchCV
from dpglm.workflow.splits import PrivateKFold, private_split
from dpglm.workflow.totals import privacy_of

__all__ = [
    "Finding", "PrivateKFold", "PrivateSearchCV", "check_pipeline", "privacy_of", "private_split",
]  # fmt: skip
