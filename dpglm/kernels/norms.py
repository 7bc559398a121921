"""Squared norms of dense rows, read as they are stored."""

from numba import njit

from dpglm.kernels.arithmetic import FAST
from dpglm.kernels.cache import kept_on_disk

__all__ = ["squared_norms"]


@kept_on_disk
@njit(**FAST)
def squared_norms(values, n_features, squares):
    """squares[i] = squared norm of row i, in float64.

    Parameters
    ----------
    values : float array (n_rows * n_features,)
        Row after row.
    n_features : int
    squares : float64 array (n_rows,), written
        Infinite where a sum overflows.
    """
    for i in range(squares.size):
        row = values[i * n_features : (i + 1) * n_features]
        total = 0.0
        for j in range(row.size):
            value = 1.0 * row[j]
            total += value * value
        squares[i] = total
