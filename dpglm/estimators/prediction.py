"""From released coefficients to scores, classes and probabilities: nothing here sees a fit."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from dpglm.checks import check_labels
from dpglm.estimators.callbacks import picklable_copy
from dpglm.estimators.inputs import Table, as_source, checked_weights, spelled
from dpglm.exceptions import Offered
from dpglm.privacy.odometer import count_copy, warn_of_exact_scores
from dpglm.schema.values import is_dask, validated
from dpglm.sources.base import Source
from dpglm.sources.dask import mapped


def _is_logistic(estimator: Any) -> bool:
    return getattr(estimator, "loss", "logistic") == "logistic"


def _with_logistic_loss(method: Callable) -> Offered:
    """Let a method be that of estimators with the logistic loss."""
    return Offered(
        "hinge losses have no probabilities; calibrate the scores with "
        "dpglm.workflow.PrivateCalibratedClassifier, or fit DPLogisticRegression",
        _is_logistic,
    )(method)


def _unlabelled_source(X: Any) -> Source | None:
    """Return the blocks of rows to predict, or None if the rows are in memory."""
    if len(shape := getattr(X, "shape", ())) == 2:
        return as_source(X, np.zeros(shape[0], dtype=np.int8))
    # A list may hold rows as well as blocks.
    if isinstance(X, Sequence) and not (X and isinstance(X[0], tuple) and np.ndim(X[0][0]) == 2):
        return None
    return as_source(X, None)


def by_blocks(method: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], Any]:
    """Let a method accept every input of `fit`, with blocks of rows one by one."""

    @wraps(method)
    def answer(self, X):
        source = None if is_dask(X) else _unlabelled_source(X)
        if source is None and not is_dask(X):
            return method(self, X)
        ask = getattr(picklable_copy(self), method.__name__)
        return mapped(ask, X) if source is None else np.concatenate(answers(ask, source))

    return answer


def answers(ask: Callable, source: Source, *, labelled: bool = False) -> list[Any]:
    """Return the results of an estimator's method for each block, with labels or without."""
    check_is_fitted(ask.__self__)
    validate_data(ask.__self__, source.template, reset=False, skip_check_array=True)
    # Blocks have no names of columns, which were compared here.
    vars(ask.__self__).pop("feature_names_in_", None)
    blocks = source.blocks(lambda X, y, **options: ask(X, y) if labelled else ask(X))
    return list(blocks.map(np.asarray))


class CountedCopies:
    """An estimator that warns, once a process, of fits of copies."""

    def _html_repr(self) -> str:
        """Return the diagram in a notebook, and what examines the pipeline around this."""
        name = type(self).__name__
        return super()._html_repr() + (
            f"<p>The guarantee of {name} holds if each row was made from one record: "
            "<code>check_pipeline(pipeline)</code> names the steps that read others.</p>"
        )

    def __sklearn_clone__(self) -> Any:
        copied = super().__sklearn_clone__()
        copied._is_copy = True
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; one that is not fitted will be fitted in another process."""
        state = super().__getstate__()
        if not any(name.endswith("_") for name in state):
            count_copy(stacklevel=2)
        return state


class ExactScore(CountedCopies, ClassifierMixin):
    """A classifier that warns, once a process, of scores without noise and of fits of copies."""

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; it has no noise: do not publish it for private records."""
        warn_of_exact_scores(stacklevel=2)
        return float(self._hits(X, y, sample_weight=sample_weight, normalize=True))

    def _hits(self, X: Any, y: Any, *, normalize: bool = False, sample_weight: Any = None) -> Any:
        predicted = self.predict(X)
        y = spelled(check_labels("y", y), self.classes_)
        weights = None if sample_weight is None else checked_weights(sample_weight, y)
        return accuracy_score(y, predicted, normalize=normalize, sample_weight=weights)


class LinearScores:
    """The scores of a fitted linear model, and a copy without its trace."""

    # Whether rows are clipped before they are scored, to a norm that the trace has.
    _shortens_rows: ClassVar[bool] = False

    def _scores(self, X: Table) -> np.ndarray:
        """Return ``X @ coef_.T + intercept_`` for rows, transformed as in the fit."""
        check_is_fitted(self)
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "reset": False}
        X = validated(lambda: validate_data(self, X, **checks), X)
        X = self._as_fitted(X)
        with np.errstate(all="ignore"):
            scores = safe_sparse_dot(X, np.atleast_2d(self.coef_).T, dense_output=True)
            scores += self.intercept_
            bound = np.finfo(scores.dtype).max / 4  # differences of two are numbers as well
            too_long = np.flatnonzero(~(np.abs(scores) <= bound).all(axis=1))
            if too_long.size:
                # All scores of a row divided by one number.
                small = X[too_long].astype(np.float64) * 2.0**-600
                found = safe_sparse_dot(small, np.atleast_2d(self.coef_).T, dense_output=True)
                largest = np.abs(found).max(axis=1, keepdims=True)
                found *= np.minimum(2.0**600, bound / largest)
                scores[too_long] = found + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _as_fitted(self, X: Any) -> Any:
        """Return rows transformed as in the fit; estimators that clip rows override this."""
        return X

    def _copied_to(self, model: Any) -> Any:
        """Return a model of scikit-learn that has got what was fitted here."""
        for name in ("classes_", "coef_", "intercept_", "n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(model, name, copy(getattr(self, name)))
        return model

    def slim(self) -> Self:
        """Return a copy for a small pickle: without ``trace_``, unless predictions need it.

        Coefficients, parameters and ledger are kept; only the course of the fit is lost.
        """
        check_is_fitted(self)
        small = copy(self)
        if not self._shortens_rows:
            vars(small).pop("trace_", None)
        return small


class LinearPredictions(ExactScore):
    """Scores, classes, and probabilities unless a parameter ``loss`` asks for another loss.

    They accept every input of `fit`, and ignore labels that come with the rows. Rows in blocks give
    arrays; rows of dask give a dask array, not computed yet.
    """

    @by_blocks
    def decision_function(self, X: Table) -> np.ndarray:
        """Return the scores ``X @ coef_.T + intercept_`` of rows, transformed as in the fit.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows

        Returns
        -------
        ndarray of shape (n_samples,) for two classes (positive: ``classes_[1]``), else
        (n_samples, n_classes)
        """
        return self._scores(X)

    def _logits(self, X: Any) -> np.ndarray:
        """Return a score per class; the probabilities are the softmax of the scores."""
        scores = self.decision_function(X)
        return np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores

    @by_blocks
    def predict(self, X: Table) -> np.ndarray:
        """Return the class with the highest score for each row, shape (n_samples,)."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]

    @_with_logistic_loss
    @by_blocks
    def predict_proba(self, X: Table) -> np.ndarray:
        """Return probabilities (n_samples, n_classes), in the order of ``classes_``.

        With the logistic loss only.
        """
        return softmax(self._logits(X), axis=1)

    @_with_logistic_loss
    @by_blocks
    def predict_log_proba(self, X: Table) -> np.ndarray:
        """Return the logarithm of `predict_proba`, finite where that rounds to 0."""
        return log_softmax(self._logits(X), axis=1)

    def score(
        self, X: Table, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy on rows, in any input of `fit`.

        The accuracy has no noise: do not publish it for private records. Rows in blocks have no
        `sample_weight`.
        """
        warn_of_exact_scores(stacklevel=2)
        source = as_source(X, y)
        if source is None:
            return float(self._hits(X, y, sample_weight=sample_weight, normalize=True))
        if sample_weight is not None:
            raise TypeError("sample_weight is for arrays in memory, not for blocks of rows.")
        hits = answers(picklable_copy(self)._hits, source, labelled=True)
        return float(sum(hits) / source.n_samples)

    def to_sklearn(self) -> Any:
        """Return a plain model of scikit-learn that predicts the same, and needs no dpglm.

        Scores and labels are exactly those of this estimator, and probabilities up to rounding.
        Parameters such as ``C`` are unrelated to the fit. The model has no ledger: publish
        ``privacy_.to_dict()`` with it.

        Returns
        -------
        LogisticRegression, or LinearSVC for another loss

        Raises
        ------
        ValueError
            If the estimator clips rows before it scores them, as the perturbation baselines do.
            No linear model does so.

        Examples
        --------
        >>> from dpglm import DPLogisticRegression
        >>> from dpglm.datasets import make_census
        >>> X, y = make_census(500, random_state=0)
        >>> model = DPLogisticRegression(classes=[0, 1]).fit(X, y)
        >>> bool((model.to_sklearn().predict(X) == model.predict(X)).all())
        True
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC

        check_is_fitted(self)
        if self._shortens_rows:
            raise ValueError(
                f"{type(self).__name__} clips rows to its max_row_norm before it scores them, "
                "which no model of scikit-learn does. Pickle the estimator, or slim()."
            )
        return self._copied_to(LogisticRegression() if _is_logistic(self) else LinearSVC())
