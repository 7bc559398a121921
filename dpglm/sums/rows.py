"""The rows of a data set and their labels; dense or sparse, behind the same few operations.

Nothing here leaves the library: `Objective` holds the rows and hands out sums over them.
"""

from contextlib import nullcontext

import numpy as np
from scipy import sparse

from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.bases import SMALL_SQUARE, image_norms, one_blas_thread, row_norms
from dpglm.kernels.columns import column_gradient, column_scores, rows_per_block
from dpglm.kernels.dense import TAIL_ROWS, dense_gradient, dense_scores
from dpglm.kernels.norms import squared_norms
from dpglm.kernels.sparse import BLOCK_ROWS, sparse_gradient, sparse_scores
from dpglm.kernels.threads import ROW_GROUP

__all__ = ["check_target", "inverse_norms", "padded_to_groups", "rows_of", "without_duplicates"]

_CACHE_LINE = 64
_UNKNOWN = np.empty((0, 0))


def rows_of(X):
    """The rows of an array or a CSR matrix, which is not copied unless its rows are scattered."""
    if sparse.issparse(X):
        return SparseRows(X)
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype not in (np.float64, np.float32):
        raise ValueError("X must be a float64 or float32 array with two dimensions, or CSR.")
    if X.flags.f_contiguous and not X.flags.c_contiguous:
        return ColumnRows(X)
    return DenseRows(np.ascontiguousarray(X))


class DenseRows:
    """Row-major array as the dense kernels want it."""

    def __init__(self, X):
        self.n_rows, self.n_features = X.shape
        self.n_values = X.size
        self._X = X
        self.width = _padded(self.n_features)
        padded = _padded(self.n_rows)
        n_body = max(0, padded - TAIL_ROWS)
        tail = np.zeros((padded - n_body, self.width), dtype=X.dtype)
        tail[: self.n_rows - n_body, : self.n_features] = X[n_body:]
        self._data = (_read_only(X.reshape(-1)), _read_only(tail.reshape(-1)), self.n_features)

    def block(self, start, stop):
        """Rows [start, stop) in float64."""
        return self._X[start:stop].astype(np.float64, copy=False)

    def norms(self, start, stop):
        """Norms of the rows [start, stop)."""
        rows = self._X[start:stop]
        squares = np.empty(len(rows))
        squared_norms(_read_only(rows.reshape(-1)), self.n_features, squares)
        norms = np.sqrt(squares)
        small = np.flatnonzero(squares < SMALL_SQUARE)
        norms[small] = row_norms(rows[small].astype(np.float64))
        return norms

    def taken(self, rows):
        """The rows of these numbers, copied."""
        return DenseRows(self._X[rows])

    def add_chunks(self, problem, chunks, sums):
        """Write the clipped gradient sums of some chunks; see `dense_gradient`."""
        n_outputs = len(sums[1][0])
        # only the rows of several outputs are worth a copy
        group = _aligned(ROW_GROUP * self.width if n_outputs > 1 else 0)
        scratch = np.empty((n_outputs, ROW_GROUP))
        dense_gradient(*self._data, *_compiled(problem), *chunks, group, scratch, *sums)

    def score_chunks(self, features, bias, chunks, scores):
        """Write the scores of the rows of some chunks; see `dense_scores`."""
        dense_scores(*self._data, features, bias, *chunks, scores)


class ColumnRows:
    """Column-major array as the kernels for columns want it."""

    def __init__(self, X):
        self.n_rows, self.n_features = X.shape
        self.n_values = X.size
        self.width = _padded(self.n_features)
        self._X = X
        n_body = self.n_rows // ROW_GROUP * ROW_GROUP
        tail = np.zeros((self.n_features, _padded(self.n_rows) - n_body), dtype=X.dtype)
        tail[:, : self.n_rows - n_body] = X[n_body:].T
        self._data = (_read_only(X.T.reshape(-1)), _read_only(tail.reshape(-1)), self.n_features)
        self._block_rows = rows_per_block(self.n_features, X.itemsize)

    def block(self, start, stop):
        """Rows [start, stop) in float64."""
        return self._X[start:stop].astype(np.float64, copy=False)

    def norms(self, start, stop):
        """Norms of the rows [start, stop)."""
        rows = self._X[start:stop]
        squares = np.zeros(len(rows))
        for column in rows.T:
            squares += np.square(column, dtype=np.float64)
        norms = np.sqrt(squares)
        small = np.flatnonzero(squares < SMALL_SQUARE)
        norms[small] = row_norms(rows[small].astype(np.float64))
        return norms

    def taken(self, rows):
        """The rows of these numbers, copied."""
        return DenseRows(np.ascontiguousarray(self._X[rows]))

    def add_chunks(self, problem, chunks, sums):
        """Write the clipped gradient sums of some chunks; see `column_gradient`."""
        scratch = np.empty((len(sums[1][0]), self._block_rows))
        column_gradient(*self._data, *_compiled(problem), *chunks, self._block_rows, scratch, *sums)

    def score_chunks(self, features, bias, chunks, scores):
        """Write the scores of the rows of some chunks; see `column_scores`."""
        column_scores(*self._data, features, bias, *chunks, self._block_rows, scores)


class SparseRows:
    """Compressed sparse rows in canonical form."""

    def __init__(self, X):
        if X.format != "csr" or X.dtype not in (np.float64, np.float32):
            raise ValueError("A sparse X must be in CSR format, float64 or float32.")
        if X.nnz and not 0 <= X.indices.min() <= X.indices.max() < X.shape[1]:
            raise ValueError("The column indices of a sparse X must be within its shape.")
        rows = without_duplicates(X)
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

    def norms(self, start, stop):
        """Norms of the rows [start, stop)."""
        return row_norms(self.block(start, stop))

    def taken(self, rows):
        """The rows of these numbers, copied."""
        return SparseRows(self._X[rows])

    def add_chunks(self, problem, chunks, sums):
        """Write the clipped gradient sums of some chunks; see `sparse_gradient`."""
        scratch = np.zeros((len(sums[1][0]), BLOCK_ROWS))
        sparse_gradient(*self._arrays, *_compiled(problem), *chunks, scratch, *sums)

    def score_chunks(self, features, bias, chunks, scores):
        """Write the scores of the rows of some chunks; see `sparse_scores`."""
        sparse_scores(*self._arrays, features, bias, *chunks, scores)


def without_duplicates(X):
    """A CSR matrix in canonical form; a float64 copy of it unless it has that form already.

    Sums of finite entries that overflow become the largest number. The norm of such a row is
    infinite all the same, so that it contributes nothing.
    """
    # a fresh object: its flags are computed from the indices, never inherited
    arrays = tuple(np.ascontiguousarray(array) for array in (X.data, X.indices, X.indptr))
    rows = sparse.csr_array(arrays, shape=X.shape, copy=False)
    if rows.has_canonical_format:
        return rows
    finite = np.isfinite(rows.data).all()
    # sums in float32 would overflow to numbers whose norms are finite
    rows = rows.astype(np.float64)
    rows.sum_duplicates()
    if finite:
        np.nan_to_num(rows.data, copy=False)
    return rows


def inverse_norms(rows, fit_intercept, run, basis=None, least_stretch=0.0):
    """One over the norm of each ``x~``, or ``P' x~``, padded with zeros to whole groups.

    Zero for a row of zeros and for one whose norm overflows. With a basis P, a norm is at least
    `least_stretch` times that of ``x~``. `run` shares chunks among threads.
    """
    inverse = np.zeros(_padded(rows.n_rows))
    n_columns = rows.n_features + bool(fit_intercept)
    width = max(n_columns, 1 if basis is None else basis.shape[-1])
    step = max(1, 2**19 // width)

    def invert(first, last):
        for start in range(first * step, min(last * step, rows.n_rows), step):
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                norms = rows.norms(start, start + step)
                if fit_intercept:
                    norms = np.sqrt(norms * norms + 1.0)
                if basis is not None:
                    images = image_norms(rows.block(start, start + step), basis, fit_intercept)
                    norms = np.maximum(images, least_stretch * norms)
                finite = np.isfinite(norms)
                inverse[start : start + len(norms)] = np.where(
                    finite & (norms > 0.0), np.minimum(1.0 / norms, LARGEST), 0.0
                )
            if not finite.all():
                _check_finite(rows.block(start, start + step))

    with one_blas_thread() if basis is not None else nullcontext():
        run(invert, -(-rows.n_rows // step), rows.n_values * width)
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


def _padded(size):
    return -(-size // ROW_GROUP) * ROW_GROUP


def _compiled(problem):
    """Stand an empty array for scores that are not known: one kernel then serves both cases."""
    signed, targets, known, *rest = problem
    return signed, targets, _UNKNOWN if known is None else known, *rest


def _aligned(size):
    """Empty vector that begins with a cache line."""
    buffer = np.empty(size * 8 + _CACHE_LINE, dtype=np.uint8)
    start = -buffer.ctypes.data % _CACHE_LINE
    return buffer[start : start + size * 8].view(np.float64)


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
