"""Second moments of rows, dense or sparse, that are clipped first: plain matrix products.

Each row is scaled before anything is multiplied. A scale of zero thereby removes a row of any
finite size, where zero times an overflowing square would not be a number.
"""

from collections.abc import Callable

import numpy as np
from scipy import sparse

from dpglm.kernels.bases import one_blas_thread
from dpglm.kernels.threads import rows_per_chunk

__all__ = ["second_moment"]


def second_moment(
    block: Callable[[int, int], np.ndarray | sparse.csr_array],
    inverse_norms: np.ndarray,
    row_bound: float,
    fit_intercept: bool,
    diagonal: bool,
) -> np.ndarray:
    """Return the sum over rows of ``x~ x~'``, each x~ clipped, or its diagonal.

    Parameters
    ----------
    block : callable
        ``block(start, stop)`` gives those rows in float64, dense or CSR.
    inverse_norms : ndarray of shape (n,)
        Of the rows x~; zero for a row that contributes nothing.
    row_bound : float
        Norm to clip to.
    fit_intercept : bool
        Whether ``x~ = [x, 1]``.
    diagonal : bool

    Returns
    -------
    ndarray of shape (n_columns,) or (n_columns, n_columns)

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[3.0, 4.0]])
    >>> second_moment(lambda start, stop: rows, np.array([0.2]), 1.0, False, diagonal=True)
    array([0.36, 0.64])
    """
    with np.errstate(over="ignore"):
        shrinkage = np.minimum(1.0, row_bound * inverse_norms)
    scale = np.where(inverse_norms > 0.0, shrinkage, 0.0)
    n_rows = len(scale)
    step = rows_per_chunk(n_rows, 1)
    total = 0.0
    with one_blas_thread():
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            total = total + _moment(block(start, stop), scale[start:stop], fit_intercept, diagonal)
    return total


def _moment(rows, scale, fit_intercept, diagonal):
    """Sum over the rows of a block of ``s_i^2 x~_i x~_i'``, or its diagonal."""
    if sparse.issparse(rows):
        data = rows.data * np.repeat(scale, np.diff(rows.indptr))
        scaled = sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
        if fit_intercept:
            scaled = sparse.hstack([scaled, sparse.csr_array(scale[:, np.newaxis])], format="csr")
        if diagonal:
            return np.bincount(scaled.indices, scaled.data**2, minlength=scaled.shape[1])
        return (scaled.T @ scaled).toarray()
    scaled = np.empty((len(rows), rows.shape[1] + fit_intercept))
    np.multiply(rows, scale[:, np.newaxis], out=scaled[:, : rows.shape[1]])
    if fit_intercept:
        scaled[:, -1] = scale
    return np.square(scaled, out=scaled).sum(axis=0) if diagonal else scaled.T @ scaled
