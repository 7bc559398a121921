"""Averages of the iterates: which of them the returned coefficients are made of."""

import math
from collections.abc import Callable
from numbers import Real

import numpy as np

__all__ = ["averaging_weights"]


def _last(n_iter: int) -> np.ndarray:
    return np.append(np.zeros(n_iter - 1), 1.0)


def _uniform(n_iter: int) -> np.ndarray:
    return np.full(n_iter, 1.0)


def _tail(n_iter: int, fraction: float = 0.5) -> np.ndarray:
    first = min(math.floor(n_iter * (1 - fraction)), n_iter - 1)
    return np.where(np.arange(n_iter) >= first, 1.0, 0.0)


def _t_weighted(n_iter: int) -> np.ndarray:
    return np.arange(2.0, n_iter + 2.0)


_AVERAGING: dict[str | None, Callable[[int], np.ndarray]] = {
    None: _last,
    "uniform": _uniform,
    "tail": _tail,
    "t_weighted": _t_weighted,
}


def averaging_weights(averaging: str | float | None, n_iter: int) -> np.ndarray:
    """Return the weights of the iterates after each step; averaging costs no privacy.

    Parameters
    ----------
    averaging : {None, "uniform", "tail", "t_weighted"} or float
        ``None``: the last iterate. ``"uniform"``: all alike, for convex losses. ``"tail"``: the
        last half. ``"t_weighted"``: proportional to the position t, counting the start as 1, for
        the steps ``2 / (alpha (t + 1))`` (Lacoste-Julien, Schmidt & Bach 2012). A number above 0
        and at most 1: that last part of the run.
    n_iter : int

    Returns
    -------
    ndarray of shape (n_iter,), summing to 1

    Examples
    --------
    >>> from dpglm.averaging import averaging_weights
    >>> averaging_weights("tail", 4)
    array([0. , 0. , 0.5, 0.5])
    """
    if isinstance(averaging, Real) and not isinstance(averaging, bool) and 0 < averaging <= 1:
        weights = _tail(n_iter, float(averaging))
    elif averaging is None or (isinstance(averaging, str) and averaging in _AVERAGING):
        weights = _AVERAGING[averaging](n_iter)
    else:
        raise ValueError(
            f"averaging={averaging!r} is unknown; choose None, 'uniform', 'tail', 't_weighted', or "
            "the fraction of the run to average."
        )
    return weights / weights.sum()
