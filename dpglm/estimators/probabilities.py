"""Logistic or hinge loss, and probabilities where there are any."""

from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.utils.metaestimators import available_if

from dpglm.losses import Hinge, Logistic, Loss, Softmax

__all__ = ["LogisticOrHingeMixin", "ProbabilitiesMixin"]


def _is_logistic(estimator: Any) -> bool:
    return getattr(estimator, "loss", "logistic") == "logistic"


class ProbabilitiesMixin:
    """Probabilities of the classes, unless there is a parameter ``loss`` for another one."""

    def _logits(self, X: Any) -> np.ndarray:
        """Return what the probabilities are the softmax of."""
        return self._class_scores(X)

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
        """Return the logarithm of the probability of each class; with the logistic loss only.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), columns in the order of ``classes_``
        """
        return log_softmax(self._logits(X), axis=1)


class LogisticOrHingeMixin(ProbabilitiesMixin):
    """What follows from the parameter ``loss``, ``"logistic"`` unless an estimator stores it."""

    loss = "logistic"

    def _loss(self, n_classes: int) -> Loss:
        if self.loss == "logistic":
            return Logistic() if n_classes == 2 else Softmax()
        if self.loss == "hinge":
            return Hinge()
        raise ValueError(f"loss={self.loss!r} is unknown; choose 'logistic' or 'hinge'.")
