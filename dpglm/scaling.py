"""Scaling by bounds that are public, instead of by the range of the rows."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["PublicBoundsScaler"]


class PublicBoundsScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map public bounds to [0, 1] and clip what lies outside.

    Unlike scikit-learn's ``MinMaxScaler``, whose minimum and maximum are each one person's
    value, it never reads the range of the data: fitting checks the number of columns only.

    Parameters
    ----------
    lower, upper : float or array-like of shape (n_features,), default=0.0 and 1.0
        Public bounds, ``lower < upper``; a number stands for every column.

    Attributes
    ----------
    lower_, upper_ : ndarray of shape (n_features,)
        The bounds of each column.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the columns, if the input has names.

    Notes
    -----
    ``(min(max(x, lower), upper) - lower) / (upper - lower)`` in float64; rounding is monotone,
    so that the result never leaves [0, 1].

    Examples
    --------
    >>> from dpglm.scaling import PublicBoundsScaler
    >>> PublicBoundsScaler(lower=[0, 17], upper=[10, 90]).fit_transform([[5, 90], [-3, 17]])
    array([[0.5, 1. ],
           [0. , 0. ]])
    """

    def __init__(self, lower: Any = 0.0, upper: Any = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the bounds against the number of columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Only its number of columns and their names are used.
        y : None
            Ignored.

        Returns
        -------
        PublicBoundsScaler
            The scaler itself.

        Raises
        ------
        ValueError
            If a bound is not finite, has another length, or is not below its partner.
        """
        X = validate_data(self, X, dtype=np.float64)
        self.lower_ = self._bound("lower")
        self.upper_ = self._bound("upper")
        with np.errstate(over="ignore"):
            width = self.upper_ - self.lower_
        wrong = ~((width > 0) & np.isfinite(width))
        if wrong.any():
            j = int(np.argmax(wrong))
            raise ValueError(
                f"lower={self.lower_[j]} and upper={self.upper_[j]} in column {j}; give bounds "
                "with lower < upper and a finite difference."
            )
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Scale to [0, 1].

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Raw values.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Values in [0, 1].
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return (np.clip(X, self.lower_, self.upper_) - self.lower_) / (self.upper_ - self.lower_)

    def _bound(self, name: str) -> np.ndarray:
        value = getattr(self, name)
        bound = np.asarray(value, dtype=np.float64)
        if bound.shape not in ((), (self.n_features_in_,)):
            raise ValueError(
                f"{name} has shape {bound.shape} but X has {self.n_features_in_} columns; give "
                "one number, or one per column."
            )
        if not np.isfinite(bound).all():
            raise ValueError(f"{name}={value!r} is not finite; give finite public bounds.")
        return np.broadcast_to(bound, (self.n_features_in_,)).copy()
