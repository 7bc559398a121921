"""From released coefficients to scores, classes and probabilities: nothing here sees a fit."""

from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data


def _is_logistic(estimator: Any) -> bool:
    return getattr(estimator, "loss", "logistic") == "logistic"


class LinearPredictions:
    """Scores, classes, and probabilities unless a parameter ``loss`` asks for another loss."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores ``X @ coef_.T + intercept_``, of rows as they were fitted.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) for two classes (positive: ``classes_[1]``), else
        (n_samples, n_classes)
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        scores = safe_sparse_dot(self._as_fitted(X), self.coef_.T, dense_output=True)
        scores += self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _as_fitted(self, X: Any) -> Any:
        """Return rows changed as the fit changed its own; estimators that shorten them do."""
        return X

    def _logits(self, X: Any) -> np.ndarray:
        """Return a score per class, of which the probabilities are the softmax."""
        scores = self.decision_function(X)
        return np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the highest score for each row.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]

    @available_if(_is_logistic)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class; with the logistic loss only.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), columns in the order of ``classes_``
        """
        return softmax(self._logits(X), axis=1)

    @available_if(_is_logistic)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of `predict_proba`, finite where that rounds to 0."""
        return log_softmax(self._logits(X), axis=1)
