"""How well a classifier does on labelled rows: accuracy, area under the curve, mean loss."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score

from dpglm.losses import Hinge, Logistic, Softmax

__all__ = ["kind_of_loss", "mean_loss", "scores"]


def scores(model: BaseEstimator, X: Any, y: np.ndarray) -> dict[str, float]:
    """Return accuracy, area under the ROC curve and mean loss.

    Computed from the rows without noise: to be released only if the rows may be.

    Parameters
    ----------
    model : fitted classifier
    X : {array-like, CSR matrix} of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Labels among the model's ``classes_``.

    Returns
    -------
    dict
        ``accuracy``, ``auc`` (for several classes the mean of the one-vs-rest areas) and ``loss``,
        as from `mean_loss`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm.scores import scores
    >>> X, y = np.zeros((4, 1)), np.array([0, 0, 1, 1])
    >>> found = scores(DummyClassifier(strategy="prior").fit(X, y), X, y)
    >>> found["accuracy"], found["auc"], round(found["loss"], 4)
    (0.5, 0.5, 0.6931)
    """
    margins, target = _margins(model, X), _target(model, y)
    return {
        "accuracy": float(np.mean(model.predict(X) == y)),
        "auc": _auc(margins, target),
        "loss": _mean(kind_of_loss(model), margins, target),
    }


def kind_of_loss(model: BaseEstimator) -> str:
    """Return which loss suits a model: logistic if it gives probabilities, else hinge.

    Parameters
    ----------
    model : classifier

    Returns
    -------
    {"logistic", "hinge"}

    Examples
    --------
    >>> from dpglm import DPLinearSVM
    >>> from dpglm.scores import kind_of_loss
    >>> kind_of_loss(DPLinearSVM())
    'hinge'
    """
    return "logistic" if hasattr(model, "predict_proba") else "hinge"


def mean_loss(model: BaseEstimator, X: Any, y: np.ndarray) -> float:
    """Return the mean logistic or hinge loss, without regularisation.

    Parameters
    ----------
    model : fitted classifier
    X : {array-like, CSR matrix} of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Labels among the model's ``classes_``.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm.scores import mean_loss
    >>> X, y = np.zeros((4, 1)), np.array([0, 0, 1, 1])
    >>> round(mean_loss(DummyClassifier(strategy="prior").fit(X, y), X, y), 4)
    0.6931
    """
    return _mean(kind_of_loss(model), _margins(model, X), _target(model, y))


def _margins(model: BaseEstimator, X: Any) -> np.ndarray:
    """Return scores of shape (n,), the log-odds, for two classes and else (n, n_classes)."""
    if hasattr(model, "decision_function"):
        return model.decision_function(X)
    logs = model.predict_log_proba(X)
    return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs


def _target(model: BaseEstimator, y: np.ndarray) -> np.ndarray:
    """Encode labels as the losses take them: a sign for two classes, else an index."""
    unknown = np.setdiff1d(y, model.classes_)
    if len(unknown):
        raise ValueError(
            f"the training fold lacks the label {unknown[0]!r}; use fewer folds, or name all "
            "labels in the estimator's classes."
        )
    index = np.searchsorted(model.classes_, y)
    return np.where(index == 1, 1.0, -1.0) if len(model.classes_) == 2 else index


def _auc(margins: np.ndarray, target: np.ndarray) -> float:
    if margins.ndim == 1:
        return float(roc_auc_score(target > 0, margins))
    return float(roc_auc_score(np.eye(margins.shape[1])[target], margins))


def _mean(loss: str, margins: np.ndarray, target: np.ndarray) -> float:
    if loss == "hinge":
        return float(Hinge().value(margins, target).mean())
    return float((Logistic() if margins.ndim == 1 else Softmax()).value(margins, target).mean())
