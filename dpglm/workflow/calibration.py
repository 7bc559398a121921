"""Calibration and thresholds of a fitted classifier, from one noisy table of held-out records."""

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpglm.checks import check_choice, check_number
from dpglm.estimators.base import Budgeted
from dpglm.estimators.prediction import ExactScore
from dpglm.exceptions import UtilityWarning, advising
from dpglm.schema.table import positive_place
from dpglm.workflow.releases import (
    MIDDLES,
    Released,
    fitted_classes,
    ranking_score,
    released_statistics,
)


@dataclass(eq=False, repr=False)
class _OnNoisyTable(Budgeted, ExactScore, MetaEstimatorMixin, BaseEstimator):
    """A fitted classifier of two classes, with attributes that ``_learned`` finds in a table."""

    estimator: BaseEstimator
    _: KW_ONLY

    @advising
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from held-out records; the estimator, which is fitted already, is not changed.

        X is (n_samples, n_features), and y (n_samples,). Bad parameters or labels are a ValueError
        before anything is released.
        """
        self._forget()
        self._check()
        classes = fitted_classes(self.estimator)
        if len(classes) != 2:
            raise ValueError(f"{type(self).__name__} is for two classes, not {len(classes)}.")
        of = {"pos_label": getattr(self, "pos_label", classes[1])}
        statistics = released_statistics(self.estimator, X, y, self._budget(), ["table"], **of)
        with statistics as released:
            # All at once: an interrupt in between would leave a part of a fit.
            learned = self._learned(released)
            vars(self).update(learned, classes_=classes, privacy_=released.ledger)
            if not released.table.has_visible_classes:
                warnings.warn(
                    "A class may be below the noise level: use more records or a larger epsilon.",
                    UtilityWarning,
                    stacklevel=3,
                )
        return self

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the estimator was fitted to."""
        return self.estimator.n_features_in_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


@dataclass(eq=False, repr=False)
class PrivateCalibratedClassifier(_OnNoisyTable):
    """Private counterpart of `CalibratedClassifierCV(FrozenEstimator(estimator))`.

    It maps log-odds to what noisy counts of held-out records by label, in 64 bins, say. Guarantee:
    (epsilon, delta)-differential privacy for the held-out records (`ScoreVault`).

    Parameters
    ----------
    estimator : classifier
        Fitted, and taken as public; bare, or in scikit-learn's `FrozenEstimator`.
    method : {"sigmoid", "isotonic"}, default="sigmoid"
        A line through the log-odds (Platt), or any rising map, which takes more records.
    epsilon, delta, neighboring_relation, n_samples_estimate
        As in `DPLogisticRegression`.

    Attributes
    ----------
    calibrator_ : LogisticRegression or IsotonicRegression
        The map, from log-odds (between -8 and 8) to a probability of ``classes_[1]``.
    classes_ : ndarray of shape (2,)
    privacy_ : PrivacyLedger
        Cost of `fit`. On records that no fit saw, the total is the larger of both ledgers.

    Examples
    --------
    >>> from dpglm import DPLinearSVM, make_census, private_train_test_split
    >>> from dpglm.workflow import PrivateCalibratedClassifier
    >>> X, y = make_census(8000, random_state=0)
    >>> X, X_held, y, y_held = private_train_test_split(X, y)
    >>> svm = DPLinearSVM(epsilon=1.0, classes=[0, 1], max_iter=10).fit(X, y)
    >>> model = PrivateCalibratedClassifier(svm, epsilon=1.0).fit(X_held, y_held)
    >>> model.predict_proba(X_held).shape
    (2000, 2)
    """

    method: str = "sigmoid"

    def _check(self) -> None:
        check_choice("method", self.method, ("sigmoid", "isotonic"))

    def _learned(self, released: Released) -> dict[str, Any]:
        table, size = released.table, released.table.counts.size
        # Records that the noise can stand for, as the bin's own probability has them.
        added = max(table.std(np.eye(1, size, size - 1)).item(), 1e-3)
        n = table.by_class.sum(axis=0) + added
        share = (table.by_class[1] + added * expit(MIDDLES)) / n
        if self.method == "isotonic":
            rising = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            return {"calibrator_": rising.fit(MIDDLES, share, sample_weight=n)}
        # Each bin twice, once for each class.
        rows, label = np.tile(MIDDLES, 2)[:, None], np.repeat([0, 1], len(MIDDLES))
        weight = np.concatenate([n * (1 - share), n * share])
        model = LogisticRegression(C=np.inf).fit(rows, label, sample_weight=weight)
        return {"calibrator_": model}

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the calibrated probability of each class (n_samples, 2)."""
        check_is_fitted(self)
        score = np.clip(ranking_score(self.estimator, X), -8.0, 8.0)
        if self.method == "sigmoid":
            return self.calibrator_.predict_proba(score[:, None])
        positive = self.calibrator_.predict(score)
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of the larger probability (n_samples,)."""
        positive = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[positive.astype(int)]


@dataclass(eq=False, repr=False)
class PrivateThresholdClassifier(_OnNoisyTable):
    """Private counterpart of `TunedThresholdClassifierCV` for a classifier that is fitted already.

    The threshold is an edge of a bin of `PrivateCalibratedClassifier`.

    Parameters
    ----------
    estimator : classifier
        As in `PrivateCalibratedClassifier`.
    criterion : "balanced_accuracy" or dict, default="balanced_accuracy"
        The score to maximise, or the cost of an error of either kind, as ``{"false_positive": 1.0,
        "false_negative": 5.0}``; equal costs maximise the accuracy.
    pos_label : label, default=None
        The positive class, as in `private_scores`. A false negative is one that is not predicted.
    epsilon, delta, neighboring_relation, n_samples_estimate
        As in `DPLogisticRegression`.

    Attributes
    ----------
    pos_label_ : label
        The positive class.
    threshold_ : float
        A probability of this class, or a value of its decision function. Its score is not stated,
        because the noise favours it: use `private_scores` on other records.
    classes_, privacy_
        As in `PrivateCalibratedClassifier`.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, make_census, private_train_test_split
    >>> from dpglm.workflow import PrivateThresholdClassifier
    >>> X, y = make_census(8000, random_state=0)
    >>> X, X_held, y, y_held = private_train_test_split(X, y)
    >>> model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X, y)
    >>> PrivateThresholdClassifier(model).fit(X_held, y_held).threshold_ < 0.5
    True
    """

    criterion: str | Mapping[str, float] = "balanced_accuracy"
    _: KW_ONLY
    pos_label: Any = None

    def _check(self) -> None:
        kinds = ("false_positive", "false_negative")
        if isinstance(self.criterion, dict) and set(self.criterion) == set(kinds):
            for name in kinds:
                check_number(f"criterion[{name!r}]", self.criterion[name], above=0, at_most=1e9)
        elif self.criterion != "balanced_accuracy":
            raise ValueError(
                f"criterion={self.criterion!r} must be 'balanced_accuracy', or a dict of the costs "
                "of a 'false_positive' and of a 'false_negative'."
            )

    def _learned(self, released: Released) -> dict[str, Any]:
        costs = 1 / released.table.totals  # classes count alike
        if self.criterion != "balanced_accuracy":
            costs = self.criterion["false_positive"], self.criterion["false_negative"]
        threshold = float(released.on_scale(released.table.best_edge(*costs)))
        return {"threshold_": threshold, "pos_label_": released.pos_label}

    def predict(self, X: Any) -> np.ndarray:
        """Return the positive class from the threshold on, else the other (n_samples,)."""
        check_is_fitted(self)
        positive = positive_place(self.classes_, self.pos_label_)
        score = ranking_score(self.estimator, X, positive)
        if hasattr(self.estimator, "predict_proba"):
            score = expit(score)
        return self.classes_[np.where(score >= self.threshold_, positive, 1 - positive)]

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the estimator's own probabilities (n_samples, 2)."""
        check_is_fitted(self)
        return self.estimator.predict_proba(X)

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))
    def decision_function(self, X: Any) -> np.ndarray:
        """Return the estimator's own decision function (n_samples,)."""
        check_is_fitted(self)
        return self.estimator.decision_function(X)
