"""The rows of a data set, dense or sparse, behind the same few operations.

Nothing here leaves the library: `Objective` holds the rows and hands out sums over them.
"""

import copy
import hashlib

import numpy as np
from scipy import sparse

from dpglm.exceptions import ADVICE_ON_MISSING_VALUES
from dpglm.kernels import one_blas_thread
from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.gradient import (
    BLOCK_ROWS,
    ROW_GROUP,
    add_magnitudes,
    add_sparse_magnitudes,
    dense_gradient,
    dense_products,
    dense_scores,
    dense_squares,
    fingerprints,
    sparse_gradient,
    sparse_products,
    sparse_scores,
    sparse_squares,
)
from dpglm.kernels.line_search import aligned
from dpglm.schema.values import check_sparse, without_duplicates
from dpglm.sums.reference import SMALL_SQUARE, image_norms, scaled_columns

# Rows whose norms are taken at once, whole groups.
NORM_ROWS = 2**13
# Rows of a block for several outputs, and for products: they stay in the cache.
_JOINT_ROWS, _PANEL_ROWS = 32, 192  # speed only
# Rounding errors of products before the subtraction of a centre grow with its fourth power.
_LONGEST_CENTRE = 7.0
# Fixed numbers without a pattern, by which the words of 8 kB of rows are multiplied.
_FACTORS = np.frombuffer(hashlib.shake_128(b"dpglm").digest(2**14), dtype="<u8")


def rows_of(X):
    """Return the rows of an array or CSR matrix, copied unless its rows are contiguous."""
    if sparse.issparse(X):
        rows = SparseRows(X)
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype in (np.float64, np.float32):
        rows = DenseRows(np.ascontiguousarray(X))
    else:
        raise ValueError("X must be a float64 or float32 array with two dimensions, or CSR.")
    if min(X.shape) < 1:
        raise ValueError(f"X must have at least one row and one column, got shape {X.shape}.")
    return rows


class _Rows:
    """Rows of `n_values` numbers that are stored in `_X`, a float64 or float32 array or CSR matrix.

    With `scales` (n_features,), powers of two, the rows are those stored with their columns
    multiplied, and nothing is copied. The kernels read columns as stored: callers multiply
    coefficients and gradients. Products with powers of two are exact, so that sums round as those
    of a scaled copy do.
    """

    def __init__(self, X, n_values, width):
        self._X = X
        self.n_rows, self.n_features = X.shape
        self.n_values, self.width, self.scales = n_values, width, None

    def block(self, start, stop):
        """Return rows [start, stop) in float64."""
        rows = self._stored(start, stop)
        if self.scales is not None:
            rows = scaled_columns(rows, self.scales)
            # Only null records overflow: they count zero times, and zero times infinity is NaN.
            values = rows.data if sparse.issparse(rows) else rows
            np.clip(values, -LARGEST, LARGEST, out=values)
        return rows

    def _stored(self, start, stop):
        """Return rows [start, stop) in float64, their columns as stored."""
        return self._X[start:stop].astype(np.float64, copy=False)

    def _of_stored(self, basis):
        """Return a matrix, or its diagonal, for columns as stored."""
        if self.scales is None:
            return basis
        scales = np.append(self.scales, np.ones(len(basis) - self.n_features))
        return (scales * basis.T).T

    def fingerprint(self):
        """Return type, shape, and a number for each 8 kB as stored, to detect changed rows.

        Let a change of words be d, each less than 2^32 in size. With random factors ``sum_j
        factor_j d_j = 0`` modulo 2^64 has a probability of at most 2^-33. The factors are fixed and
        public, which matters only for changes that are made to pass.
        """
        X = self._X
        parts = [np.array([X.dtype.itemsize, *X.shape], dtype=np.uint64)]
        for array in (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,):
            words = _read_only(array).view(np.uint32)
            parts.append(np.empty(-(-words.size // _FACTORS.size), dtype=np.uint64))
            fingerprints(words, _FACTORS, parts[-1])
        return np.concatenate(parts)

    def taken(self, rows):
        """Copy the rows of these numbers."""
        return type(self)(self._X[rows]).scaled(self.scales)

    def scaled(self, scales):
        """Return the same rows with their columns as stored multiplied by powers of two."""
        rows = copy.copy(self)
        rows.scales = scales
        return rows

    def invert_norms(self, first, last, inverse, fit_intercept, basis=None, least=None):
        """Write one over the norm of each ``x~``, or ``P' x~``, zero if null, in some blocks.

        Blocks are of `NORM_ROWS`. In a matrix P column k is zero before row k. Norms in a basis are
        at least `least` (n,). They depend on their row to the last bit, but in a matrix only from
        2^-450 on.
        """
        for start in range(first * NORM_ROWS, last * NORM_ROWS, NORM_ROWS):
            stop = min(start + NORM_ROWS, self.n_rows)
            norms = self._norms(start, stop, fit_intercept, basis)
            norms = norms if least is None else np.maximum(norms, least[start:stop])
            # The inverse of a norm that is not finite, or zero, counts as zero: a null record.
            usable = (norms > 0.0) & (norms < np.inf)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                own = np.where(usable, np.minimum(1.0 / norms, LARGEST), 0.0)
            inverse[start:stop] = own

    def _norms(self, start, stop, fit_intercept, basis):
        """Return the norm of each row of [start, stop), infinite or NaN where squares overflow."""
        centre = near_centre(basis) if fit_intercept else None
        plain = basis is None or centre is not None
        stored = self._of_stored(np.ones(self.n_features) if plain else basis)
        with np.errstate(over="ignore", invalid="ignore"):
            if stored.ndim == 1:
                scales = _lengthened(stored[: self.n_features], self.width)
                less = np.zeros(1) if centre is None else centre
                squares = self._squares(start, stop, scales, None, _lengthened(less, self.width))
                if fit_intercept:
                    squares += 1.0 if plain else basis[-1] ** 2
            else:
                images = _lengthened(stored, padded(stored.shape[1]))
                bias = images[-1] if fit_intercept else np.zeros_like(images[-1])
                images = images[: self.n_features].reshape(-1)
                squares = self._squares(start, stop, bias, images, bias)
            norms = np.sqrt(squares)
            small = np.flatnonzero(squares < SMALL_SQUARE)
            if small.size:
                rows = self.taken(start + small).block(0, small.size)
                norms[small] = image_norms(rows, basis, fit_intercept)
        # Values that are not finite are found before there is a basis.
        if basis is None and not np.isfinite(squares).all():
            _check_finite(self._stored(start, stop))
        return norms

    def second_moment(self, scale, fit_intercept, diagonal, chunk_rows, basis=None):
        """Sum ``s_i^2 x~_i x~_i'`` over rows, or its diagonal, given a scale for each row.

        With a basis P, a matrix, the rows are ``P' x~``, and there is no diagonal. If P only
        centres the columns, at a near centre, P is applied after the sum, without loss of speed.
        """
        if (centre := near_centre(basis)) is not None:
            total = self.second_moment(scale, fit_intercept, diagonal, chunk_rows)
            centre = np.append(centre, 0.0)
            total = total - np.outer(centre, total[-1])
            return total - np.outer(total[:, -1], centre)
        add = self._squared_columns if diagonal else self._products
        stored = None if basis is None else self._of_stored(basis)
        total = 0.0
        for start in range(0, self.n_rows, chunk_rows):
            stop = min(start + chunk_rows, self.n_rows)
            total = total + add(start, stop, scale, fit_intercept, stored)
        if not diagonal:  # of which the kernels have added what is above the diagonal
            total = np.triu(total) + np.triu(total, 1).T
        return total if basis is not None else self._of_stored(self._of_stored(total).T)

    def _products(self, start, stop, scale, fit_intercept, basis):
        """Return the second moment of the rows ``s_i P' x~_i`` of [start, stop)."""
        with one_blas_thread():
            images = self._stored(start, stop) @ basis[: self.n_features]
            if fit_intercept:
                images += basis[-1]
            # The product of a row of scale zero may overflow.
            part = scale[start:stop, np.newaxis]
            images = np.where(part > 0.0, images, 0.0) * part
            return images.T @ images

    def magnitude_histogram(self, counted, powers):
        """Count the elements of each column in counted rows, shape (n_features, 2 n_powers).

        See `Objective.magnitude_histogram`.
        """
        counts = np.zeros((2 * len(powers), self.n_features))
        limits = np.finfo(self._X.dtype)
        lowest = int(powers[0]) + limits.maxexp - 1
        self._add_magnitudes(f"i{limits.bits // 8}", counted, limits.nmant, lowest, counts)
        return counts.T


class DenseRows(_Rows):
    """Row-major array as the dense kernels want it."""

    def __init__(self, X):
        super().__init__(X, X.size, padded(X.shape[1]))
        n_rows = padded(self.n_rows)
        # The last rows are copied, and padded with zeros: kernels read past the end of a row.
        n_body = max(0, n_rows - 2 * ROW_GROUP)
        tail = np.zeros((n_rows - n_body, self.width), dtype=X.dtype)
        tail[: self.n_rows - n_body, : self.n_features] = X[n_body:]
        body = (_read_only(X), self.n_features, 0, n_body)
        self._runs = body, (_read_only(tail), self.width, n_body, n_rows)

    def _squares(self, start, stop, scales, images, bias):
        squares = np.empty(padded(stop - start))
        if images is not None:
            # In groups of eight coordinates, so that memory is read in order.
            images = images.reshape(self.n_features, -1, ROW_GROUP).swapaxes(0, 1).reshape(-1)
        dense_squares(self._runs, self.n_features, scales, images, bias, start, squares)
        return squares[: stop - start]

    def _add_magnitudes(self, integers, *how):
        add_magnitudes(_read_only(self._X).view(integers), *how)

    def _products(self, start, stop, scale, fit_intercept, basis):
        if basis is not None:
            return super()._products(start, stop, scale, fit_intercept, basis)
        n_columns = self.n_features + fit_intercept
        upper = np.zeros(2 * (padded(n_columns),))
        panels = np.zeros(len(upper) * _PANEL_ROWS)
        where = start, stop, panels, upper
        dense_products(self._runs, self.n_features, scale, fit_intercept, *where)
        return upper[:n_columns, :n_columns]

    def _squared_columns(self, start, stop, scale, fit_intercept, _):
        scale = scale[start:stop]
        squares = np.square(self._X[start:stop] * scale[:, np.newaxis]).sum(axis=0)
        return np.append(squares, (scale**2).sum()) if fit_intercept else squares

    def add_chunks(self, problem, chunks, sums):
        """Add the clipped gradients of some chunks; see `dense_gradient`."""
        scratch, n_outputs = (None, None), len(sums[1][0])
        if n_outputs > 1:
            scratch = aligned(_JOINT_ROWS, self.width), aligned(n_outputs, _JOINT_ROWS)
        dense_gradient(self._runs, *problem, *chunks, *scratch, *sums)

    def score(self, *where):
        """Write the scores of a range of rows; see `dense_scores`."""
        dense_scores(self._runs, *where)


class SparseRows(_Rows):
    """Compressed sparse rows in canonical form."""

    def __init__(self, X):
        if X.format != "csr" or X.dtype not in (np.float64, np.float32):
            raise ValueError("A sparse X must be in CSR format, float64 or float32.")
        check_sparse(X)
        rows = without_duplicates(X)
        super().__init__(rows, rows.nnz, X.shape[1])
        columns = rows.indices.view(f"u{rows.indices.itemsize}")
        self._data = tuple(map(_read_only, (rows.data, columns, rows.indptr)))

    def _squares(self, start, stop, scales, images, bias):
        squares = np.empty(stop - start)
        sparse_squares(*self._data, scales, images, bias, start, np.empty_like(bias), squares)
        return squares if images is not None else squares + bias @ bias

    def _products(self, start, stop, scale, fit_intercept, basis):
        if basis is not None:
            return super()._products(start, stop, scale, fit_intercept, basis)
        upper = np.zeros(2 * (self.n_features + fit_intercept,))
        sparse_products(*self._data, scale, fit_intercept, start, stop, upper)
        return upper

    def _squared_columns(self, start, stop, scale, fit_intercept, _):
        rows, scale = self._stored(start, stop), scale[start:stop]
        squares = (rows.data * np.repeat(scale, np.diff(rows.indptr))) ** 2
        squares = np.bincount(rows.indices, squares, minlength=self.n_features)
        return np.append(squares, (scale**2).sum()) if fit_intercept else squares

    def _add_magnitudes(self, integers, *how):
        data, *where = self._data
        add_sparse_magnitudes(data.view(integers), *where, *how)

    def add_chunks(self, problem, chunks, sums):
        """Add the clipped gradients of some chunks; see `sparse_gradient`."""
        scratch = np.zeros((len(sums[1][0]), BLOCK_ROWS))
        sparse_gradient(*self._data, *problem, *chunks, scratch, *sums)

    def score(self, *where):
        """Write the scores of a range of rows; see `sparse_scores`."""
        sparse_scores(*self._data, *where)


def near_centre(basis):
    """Return c if ``P' x~`` is x~ less c times its last element and c near; else None."""
    if basis is None or basis.ndim != 2 or len(basis) != len(basis.T):
        return None
    only, centre = (basis[:-1] == np.eye(len(basis))[:-1]).all(), -basis[-1, :-1]
    near = only and basis[-1, -1] == 1 and np.linalg.norm(centre) <= _LONGEST_CENTRE
    return centre if near else None


def padded(size):
    """Return the least number of whole groups that hold so many rows, or numbers."""
    return -(-size // ROW_GROUP) * ROW_GROUP


def _lengthened(array, width):
    """Append zeros along the last axis."""
    longer = np.zeros((*array.shape[:-1], width))
    longer[..., : array.shape[-1]] = array
    return longer


def _check_finite(rows):
    values = rows.data if sparse.issparse(rows) else rows
    if not np.isfinite(values).all():
        found = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(f"Input X contains {found}. {ADVICE_ON_MISSING_VALUES}")


def _read_only(array):
    """Return a flat read-only view: one compiled kernel then serves memory-mapped data as well."""
    view = array.reshape(-1)
    view.flags.writeable = False
    return view
