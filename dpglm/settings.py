"""A setting of an estimator, one point of a grid: applied, and as text."""

from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator, clone

__all__ = ["configured", "setting_text", "value_text"]


def configured(estimator: BaseEstimator, params: Mapping[str, Any]) -> BaseEstimator:
    """Return an unfitted copy of an estimator at a setting, which it shares nothing with.

    Parameters
    ----------
    estimator : estimator
    params : mapping from str to object

    Returns
    -------
    estimator

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.settings import configured
    >>> configured(DPLogisticRegression(), {"max_iter": 10})
    DPLogisticRegression(max_iter=10)
    """
    own = {name: clone(value, safe=False) for name, value in params.items()}
    return clone(estimator).set_params(**own)


def value_text(value: Any) -> str:
    """Return the value of a parameter as short text.

    Examples
    --------
    >>> from dpglm.settings import value_text
    >>> value_text("auto"), value_text(0.25), value_text(None)
    ('auto', '0.25', 'None')
    """
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else " ".join(repr(value).split())


def setting_text(params: Mapping[str, Any]) -> str:
    """Return a setting on one line.

    Examples
    --------
    >>> from dpglm.settings import setting_text
    >>> setting_text({"max_iter": 10, "preconditioner": None})
    'max_iter=10, preconditioner=None'
    """
    return ", ".join(f"{name}={value_text(value)}" for name, value in params.items())
