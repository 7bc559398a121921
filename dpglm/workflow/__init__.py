"""Private work around a fit: search, scores, calibration, splits, and one ledger for all of it."""

from dpglm.workflow.search import PrivateSearchCV

__all__ = ["PrivateSearchCV"]
