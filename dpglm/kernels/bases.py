"""Rows and coefficients in another basis P: products and norms.

A vector stands for a diagonal P, which is never formed, and None for the identity.
"""

from functools import cache

import numpy as np
from scipy import sparse
from threadpoolctl import ThreadpoolController

__all__ = [
    "SMALL_SQUARE",
    "extreme_stretches",
    "image_norms",
    "one_blas_thread",
    "row_norms",
    "times",
]

# The square of a norm below this is too small to be accurate.
SMALL_SQUARE = 2.0**-900

# Singular values of a basis below this fraction of the largest count as zero.
_RANK_TOLERANCE = 1e-12
# How much shorter than x~ a row may get in a basis that does not span every direction.
_MAX_SHORTENING = 2.0**10


def image_norms(rows, basis, fit_intercept):
    """Norm of each ``P' x~``; sparse rows stay sparse if P is diagonal."""
    if basis.ndim == 1:
        scales = basis[: rows.shape[1]]
        if sparse.issparse(rows):
            scaled = (rows.data * scales[rows.indices], rows.indices, rows.indptr)
            norms = row_norms(sparse.csr_array(scaled, shape=rows.shape))
        else:
            norms = row_norms(rows * scales)
        return np.hypot(norms, basis[-1]) if fit_intercept else norms
    images = rows @ basis[: rows.shape[1]]
    if fit_intercept:
        images += basis[-1]
    return row_norms(images)


def times(basis, array, *, transpose=False):
    """P times an array, or its transpose times it; None is the identity, a vector a diagonal."""
    if basis is None:
        return array
    if basis.ndim == 1:
        return (basis * array.T).T
    return (basis.T if transpose else basis) @ array


def extreme_stretches(basis):
    """Frobenius norm of a basis and how much it shortens a vector at most, as `in_basis` says."""
    if basis.ndim == 1:
        return basis.max(), basis.min()
    with one_blas_thread():
        stretches = np.linalg.svd(basis, compute_uv=False)
    stretches = stretches[stretches > _RANK_TOLERANCE * stretches.max(initial=0.0)]
    if stretches.size == 0:
        raise ValueError("basis must not be zero: it leaves no direction to move in.")
    least = stretches[-1]
    if stretches.size < len(basis):
        least /= _MAX_SHORTENING
    return np.linalg.norm(basis), least


def _squared_norms(rows):
    if sparse.issparse(rows):
        squares = sparse.csr_array((rows.data**2, rows.indices, rows.indptr), shape=rows.shape)
        return squares @ np.ones(rows.shape[1])
    return np.vecdot(rows, rows)


def row_norms(rows):
    """Norm of each row; small rows are scaled first, so that their squares do not underflow."""
    squares = _squared_norms(rows)
    norms = np.sqrt(squares)
    small = np.flatnonzero(squares < SMALL_SQUARE)
    if small.size:
        norms[small] = np.sqrt(_squared_norms(rows[small] * 2.0**600)) * 2.0**-600
    return norms


def one_blas_thread():
    """Context for products and decompositions of a few hundred columns.

    More threads would spend more time waiting for each other than they save, a hundredfold on a
    busy machine, and might change the last bits.
    """
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries():
    """The libraries behind numpy's products; to look them up takes milliseconds."""
    return ThreadpoolController()
