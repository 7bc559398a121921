"""The rows of a data set and their labels; dense or sparse, behind the same few operations.

Nothing here leaves the library: `Objective` holds the rows and hands out sums over them.
"""

import numpy as np
from scipy import sparse

from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.bases import image_norms, row_norms
from dpglm.kernels.dense import TAIL_ROWS, VECTOR, dense_gradient, dense_scores, rows_per_block
from dpglm.kernels.sparse import BLOCK_ROWS, sparse_gradient, sparse_scores
from dpglm.kernels.threads import ROW_GROUP

__all__ = ["DenseRows", "SparseRows", "check_target", "inverse_norms", "padded_to_groups"]


class DenseRows:
    """Row-major array as the dense kernels want it."""

    def __init__(self, X):
        if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype not in (np.float64, np.float32):
            raise ValueError("X must be a float64 or float32 array with two dimensions, or CSR.")
        if not X.flags.c_contiguous:
            raise ValueError("X must be row-major; pass np.ascontiguousarray(X).")
        self.n_rows, self.n_features = X.shape
        self.n_values = X.size
        self._X = X
        self._flat = _read_only(X.reshape(-1))
        self.width = -(-self.n_features // VECTOR) * VECTOR
        padded = _padded(self.n_rows)
        n_body = max(0, padded - TAIL_ROWS)
        tail = np.zeros((padded - n_body, self.width), dtype=X.dtype)
        tail[: self.n_rows - n_body, : self.n_features] = X[n_body:]
        self._tail = _read_only(tail.reshape(-1))

    def block(self, start, stop):
        """Rows [start, stop) in float64."""
        return self._X[start:stop].astype(np.float64, copy=False)

    def taken(self, rows):
        """The rows of these numbers, copied."""
        return DenseRows(self._X[rows])

    def add_chunks(self, problem, chunks, sums):
        """Write the clipped gradient sums of some chunks; see `dense_gradient`."""
        known, n_outputs = problem[2], len(sums[1][0])
        known_output = known is not None and n_outputs == 1
        block_rows = rows_per_block(self.n_features, self._X.itemsize, known_output)
        scratch = np.empty((n_outputs + 3) * max(block_rows, TAIL_ROWS))
        data = (self._flat, self._tail, self.n_features)
        dense_gradient(*data, *problem, *chunks, block_rows, scratch, *sums)

    def score_chunks(self, features, bias, chunks, scores):
        """Write the scores of the rows of some chunks; see `dense_scores`."""
        block_rows = rows_per_block(self.n_features, self._X.itemsize)
        data = (self._flat, self._tail, self.n_features)
        dense_scores(*data, features, bias, *chunks, block_rows, scores)


class SparseRows:
    """Compressed sparse rows in canonical form."""

    def __init__(self, X):
        if X.format != "csr" or X.dtype not in (np.float64, np.float32):
            raise ValueError("A sparse X must be in CSR format, float64 or float32.")
        # a fresh object: its flags are computed from the indices, never inherited
        rows = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape, copy=False)
        if rows.nnz and not 0 <= rows.indices.min() <= rows.indices.max() < X.shape[1]:
            raise ValueError("The column indices of a sparse X must be within its shape.")
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        self.n_rows, self.n_features = rows.shape
        self.width = self.n_features
        self.n_values = rows.nnz
        self._X = rows
        self._arrays = tuple(
            _read_only(array) for array in (rows.data, _unsigned(rows.indices), rows.indptr)
        )

    def block(self, start, stop):
        """Rows [start, stop) in float64."""
        return self._X[start:stop].astype(np.float64, copy=False)

    def taken(self, rows):
        """The rows of these numbers, copied."""
        return SparseRows(self._X[rows])

    def add_chunks(self, problem, chunks, sums):
        """Write the clipped gradient sums of some chunks; see `sparse_gradient`."""
        scratch = np.empty((len(sums[1][0]) + 3) * BLOCK_ROWS)
        sparse_gradient(*self._arrays, *problem, *chunks, scratch, *sums)

    def score_chunks(self, features, bias, chunks, scores):
        """Write the scores of the rows of some chunks; see `sparse_scores`."""
        sparse_scores(*self._arrays, features, bias, *chunks, scores)


def inverse_norms(rows, fit_intercept, basis=None, least_stretch=0.0):
    """One over the norm of each ``x~``, or ``P' x~``, padded with zeros to whole groups.

    Zero for a row of zeros and for one whose norm overflows. With a basis P, a norm is at least
    `least_stretch` times that of ``x~``.
    """
    inverse = np.zeros(_padded(rows.n_rows))
    n_columns = rows.n_features + bool(fit_intercept)
    step = max(1, 2**20 // max(n_columns, 1 if basis is None else basis.shape[-1]))
    for start in range(0, rows.n_rows, step):
        block = rows.block(start, start + step)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            norms = row_norms(block)
            if fit_intercept:
                norms = np.hypot(norms, 1.0)
            if basis is not None:
                images = image_norms(block, basis, fit_intercept)
                norms = np.maximum(images, least_stretch * norms)
            finite = np.isfinite(norms)
            inverse[start : start + len(norms)] = np.where(
                finite & (norms > 0.0), np.minimum(1.0 / norms, LARGEST), 0.0
            )
        if not finite.all():
            _check_finite(block)
    return inverse


def check_target(target, n_rows, n_outputs):
    """Return the sign of each row, and its class if there are K outputs; padded with zeros."""
    target = np.asarray(target)
    if target.shape != (n_rows,):
        raise ValueError(f"target must have shape ({n_rows},), got {target.shape}.")
    signs = np.zeros(_padded(n_rows))
    if n_outputs == 1:
        if not (np.abs(target) == 1).all():
            raise ValueError("target must be -1 or +1 when there is one output.")
        signs[:n_rows] = target
        return signs, None
    if not ((target >= 0) & (target < n_outputs) & (target == np.floor(target))).all():
        raise ValueError(f"target must be the index of a class, from 0 to {n_outputs - 1}.")
    classes = np.zeros(len(signs), dtype=np.int32)
    signs[:n_rows], classes[:n_rows] = 1.0, target
    return signs, classes


def padded_to_groups(values):
    """Values of the rows, followed by zeros up to a whole number of groups."""
    padded = np.zeros(_padded(len(values)), dtype=values.dtype)
    padded[: len(values)] = values
    return padded


def _padded(n_rows):
    return -(-n_rows // ROW_GROUP) * ROW_GROUP


def _check_finite(rows):
    values = rows.data if sparse.issparse(rows) else rows
    if not np.isfinite(values).all():
        raise ValueError("X contains NaN or infinity; replace or drop such values first.")


def _read_only(array):
    """View that cannot be written: one compiled kernel then serves memory-mapped data as well."""
    view = array.view()
    view.flags.writeable = False
    return view


def _unsigned(indices):
    return indices.view(f"u{indices.itemsize}")
