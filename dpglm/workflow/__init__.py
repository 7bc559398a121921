"""Private work around a fit: search, scores, calibration, splits, and one ledger for all of it."""

from dpglm.exceptions import absent
from dpglm.workflow.calibration import PrivateCalibratedClassifier, PrivateThresholdClassifier
from dpglm.workflow.pipelines import check_pipeline, total_privacy
from dpglm.workflow.scores import make_private_scorer, private_scores
from dpglm.workflow.search import PrivateSearchCV
from dpglm.workflow.splits import PrivateKFold, private_train_test_split

__all__ = [
    "PrivateCalibratedClassifier", "PrivateKFold", "PrivateSearchCV",
    "PrivateThresholdClassifier", "check_pipeline", "make_private_scorer", "private_scores",
    "private_train_test_split", "total_privacy",
]  # fmt: skip

__getattr__ = absent(__name__)
