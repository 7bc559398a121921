"""The one holder of private data: it answers with sums over rows, and with nothing else.

Conventions
-----------
- A row is ``x~ = [x, 1]`` with an intercept and ``x`` without; n_columns is its length and the
  intercept is the last coefficient. Coefficients have shape (n_columns,) for one output and
  (n_columns, K) for K outputs.
- ``gradient_sum`` is ``sum_i min(1, C / ||G_i||) G_i`` with ``G_i = a_i x~_i r_i'``, where r_i is
  the derivative of the loss in the scores of row i and a_i the weight of its class. For K outputs
  ``||G_i|| = a_i ||x~_i|| ||r_i||`` is the Frobenius norm: there is one clip for all of them.
- A null record counts in n and contributes nothing to any sum, the intercept's column included.
- A row whose norm or score is not finite contributes exactly zero. A finite row gets there when the
  sum of its squares overflows, that is from a norm of about 1.3e154.
- float32 data are read as they are; coefficients and sums are always float64.
- Sums are bitwise the same for every number of threads.
"""

import copy

import numpy as np
from scipy import sparse

from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.dense import TAIL_ROWS, VECTOR, dense_gradient, rows_per_block
from dpglm.kernels.sparse import BLOCK_ROWS, sparse_gradient
from dpglm.kernels.threads import ROW_GROUP, default_n_threads, rows_per_chunk, run_chunks
from dpglm.losses import Loss, Softmax

__all__ = ["Objective"]

# A smaller clip times the inverse norm of a large row is no longer a normal number.
_MIN_CLIP = 2.0**-500
# Numbers read per pass below which a second thread costs more than it saves.
_MIN_THREADED_WORK = 2**19
_UNIT_ROUNDOFF = 2.0**-53
# Singular values of a basis below this fraction of the largest count as zero.
_RANK_TOLERANCE = 1e-12
# How much shorter than x~ a row may get in a basis that does not span every direction.
_MAX_SHORTENING = 2.0**10


class Objective:
    """Sums over the rows of a data set of the gradients of a loss of a linear model.

    Parameters
    ----------
    X : ndarray or scipy CSR of shape (n, n_features), float64 or float32
        Row-major and finite. Never copied (except CSR with repeated columns, which are summed).
    target : array of shape (n,)
        -1 or +1 for one output, the index of the class for K outputs.
    loss : Loss
    n_outputs : int, default=1
        The number of classes K >= 2 for `Softmax` or one-vs-rest; 1 for a binary margin loss.
    fit_intercept : bool, default=True
    class_weight : array, optional
        Public weight of each class (for one output: of -1, then of +1). It multiplies the gradient
        before the clip.
    present : bool array of shape (n,), optional
        False marks a null record.
    n_threads : int, optional
        Default: what numba may use. It never changes the result.

    Raises
    ------
    ValueError
        If an argument has the wrong shape, type or value.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.losses import Logistic
    >>> X = np.array([[3.0, 4.0], [0.0, 1.0]])
    >>> objective = Objective(X, np.array([1.0, -1.0]), Logistic(), fit_intercept=False)
    >>> objective.gradient_sum(np.zeros(2), clip=1.0)
    array([-0.6, -0.3])
    """

    def __init__(
        self,
        X: np.ndarray | sparse.csr_array | sparse.csr_matrix,
        target: np.ndarray,
        loss: Loss,
        *,
        n_outputs: int = 1,
        fit_intercept: bool = True,
        class_weight: np.ndarray | None = None,
        present: np.ndarray | None = None,
        n_threads: int | None = None,
    ) -> None:
        self._rows = _SparseRows(X) if sparse.issparse(X) else _DenseRows(X)
        n_rows, n_features = X.shape
        if min(X.shape) < 1:
            raise ValueError(f"X must have at least one row and one column, got shape {X.shape}.")
        if n_outputs < (2 if isinstance(loss, Softmax) else 1):
            raise ValueError(
                f"n_outputs={n_outputs!r} does not suit {loss!r}; give it the number of classes."
            )
        self.loss = loss
        self._n_outputs = n_outputs
        self._fit_intercept = fit_intercept
        self._n_columns = n_features + bool(fit_intercept)
        self._n_threads = default_n_threads() if n_threads is None else n_threads
        self._weights = _check_weights(class_weight, max(2, n_outputs))
        self._signs, self._targets = _check_target(target, n_rows, n_outputs)
        if present is not None:
            if present.shape != (n_rows,) or present.dtype != np.bool_:
                raise ValueError(f"present must be a bool array of shape ({n_rows},) or None.")
            self._signs = np.where(present, self._signs, 0.0)
        self._basis = None
        self._condition = 1.0
        self._signed = self._signed_inverse_norms(None, 0.0)

    @property
    def coef_shape(self) -> tuple[int, ...]:
        """Shape of the coefficients, and of what `gradient_sum` returns."""
        length = self._n_columns if self._basis is None else self._basis.shape[1]
        return (length,) if self._n_outputs == 1 else (length, self._n_outputs)

    def gradient_sum(self, coef: np.ndarray, clip: float) -> np.ndarray:
        """Sum over rows of the gradients, each clipped to an L2 norm of at most `clip`.

        Private: it leaves the library through a mechanism only.

        Parameters
        ----------
        coef : array of shape `coef_shape`
        clip : float
            Positive; ``inf`` for no clipping.

        Returns
        -------
        ndarray of shape `coef_shape`
        """
        if not clip >= _MIN_CLIP:
            raise ValueError(f"clip must be positive (at least {_MIN_CLIP:.0e}), got {clip!r}.")
        coef = np.asarray(coef, dtype=np.float64)
        if coef.shape != self.coef_shape:
            raise ValueError(f"coef must have shape {self.coef_shape}, got {coef.shape}.")
        coef = coef.reshape(len(coef), self._n_outputs)
        if self._basis is not None:
            coef = self._basis @ coef
        chunk_rows = rows_per_chunk(self._rows.n_rows, self._n_columns * self._n_outputs)
        n_chunks = -(-self._rows.n_rows // chunk_rows)
        n_features = self._rows.n_features
        features = np.zeros((self._n_outputs, self._rows.width))
        features[:, :n_features] = coef[:n_features].T
        bias = coef[-1].copy() if self._fit_intercept else np.zeros(self._n_outputs)
        partials = np.empty((n_chunks, *features.shape))
        intercepts = np.empty((n_chunks, self._n_outputs))
        clip = min(float(clip), LARGEST)
        loss = (self.loss.code, self.loss.curvature)

        def add_chunks(first, last):
            self._rows.add_chunks(
                (self._signed, self._targets, features, bias, clip, self._weights, *loss),
                (chunk_rows, first, last),
                (partials, intercepts),
            )

        work = self._rows.n_values * self._n_outputs
        run_chunks(add_chunks, n_chunks, self._n_threads if work >= _MIN_THREADED_WORK else 1)
        gradient = np.empty((self._n_columns, self._n_outputs))
        gradient[:n_features] = partials[:, :, :n_features].sum(axis=0).T
        if self._fit_intercept:
            gradient[-1] = intercepts.sum(axis=0)
        if self._basis is not None:
            gradient = self._basis.T @ gradient
        return gradient.reshape(self.coef_shape)

    def in_basis(self, basis: np.ndarray) -> "Objective":
        """Return the same objective in coefficients v, where the present ones are ``basis @ v``.

        Rows become ``P' x~`` and their norms, which decide the clip, are those of ``P' x~``. The
        data are shared, and multiplied by P block by block, for the norms only: the margins need
        ``P v`` and the gradient is P' times a sum in the original columns.

        A P that does not span every direction may shorten a row at will, and rounding errors would
        then be large beside its clipped gradient. Such a row is clipped as if its norm had been
        reduced by no more than a factor of 1024 below the least stretch of P.

        Parameters
        ----------
        basis : array of shape (coef_shape[0], k)

        Returns
        -------
        Objective
        """
        basis = np.asarray(basis, dtype=np.float64)
        length = self.coef_shape[0]
        if basis.ndim != 2 or basis.shape[0] != length or not np.isfinite(basis).all():
            raise ValueError(
                f"basis must be a finite matrix with {length} rows, got shape {basis.shape}."
            )
        if self._basis is not None:
            basis = self._basis @ basis
        stretches = np.linalg.svd(basis, compute_uv=False)
        stretches = stretches[stretches > _RANK_TOLERANCE * stretches.max(initial=0.0)]
        if stretches.size == 0:
            raise ValueError("basis must not be zero: it leaves no direction to move in.")
        least = stretches[-1]
        if stretches.size < self._n_columns:
            least /= _MAX_SHORTENING
        rotated = copy.copy(self)
        rotated._basis = basis
        rotated._condition = float(np.linalg.norm(basis) / least)
        rotated._signed = rotated._signed_inverse_norms(basis, least)
        return rotated

    def penalty_gradient(self, coef: np.ndarray) -> np.ndarray:
        """Gradient of half the squared norm of the original coefficients without the intercept.

        In a basis P it is ``P' D P v`` with D the identity but for a zero at the intercept. It
        does not depend on the data.
        """
        original = coef if self._basis is None else self._basis @ coef
        if self._fit_intercept:
            original = np.array(original, dtype=np.float64)
            original[-1] = 0.0
        return original if self._basis is None else self._basis.T @ original

    def rounding_slack(self, n_samples: int) -> float:
        """Bound on what rounding adds to the sensitivity of `gradient_sum`, relative to the clip.

        Parameters
        ----------
        n_samples : int
            The public number of records (not read from the data), at least their actual number.

        Returns
        -------
        float
            The sensitivity is at most the exact one plus this times the clip.

        Notes
        -----
        With u = 2^-53, B rows in a chunk, d columns, K outputs and kappa the condition number of
        the basis (Frobenius norm over least stretch; 1 without a basis): a clipped gradient has a
        norm of at most ``(1 + 2 (d + K + 2) kappa u) C``, and the computed sum of n of them is
        within ``kappa (B + n / B + 2 d) u n C`` of the exact one. Both count twice, once for each
        of two neighboring data sets. Summing by chunks, as opposed to one long chain, is what
        keeps the second small (Casacuberta et al., "Widespread underestimation of sensitivity in
        differentially private libraries", CCS 2022).
        """
        rows = rows_per_chunk(n_samples, self._n_columns * self._n_outputs)
        norm = 2 * (self._n_columns + self._n_outputs + 2)
        total = (rows + n_samples / rows + 2 * self._n_columns) * n_samples
        return 2 * self._condition * (norm + total) * _UNIT_ROUNDOFF

    def _signed_inverse_norms(self, basis: np.ndarray | None, least_stretch: float) -> np.ndarray:
        """Sign over norm of each row; 0 for a row that contributes nothing."""
        padded = -(-self._rows.n_rows // ROW_GROUP) * ROW_GROUP
        signed = np.zeros(padded)
        step = max(1, 2**20 // max(self._n_columns, 1 if basis is None else basis.shape[1]))
        for start in range(0, self._rows.n_rows, step):
            rows = self._rows.block(start, start + step)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                norms = _row_norms(rows)
                if self._fit_intercept:
                    norms = np.hypot(norms, 1.0)
                if basis is not None:
                    images = rows @ basis[: rows.shape[1]]
                    if self._fit_intercept:
                        images += basis[-1]
                    norms = np.maximum(_row_norms(images), least_stretch * norms)
                finite = np.isfinite(norms)
                usable = finite & (norms > 0.0)
                inverse = np.where(usable, np.minimum(1.0 / norms, LARGEST), 0.0)
            if not finite.all():
                _check_finite(rows)
            stop = start + rows.shape[0]
            signed[start:stop] = self._signs[start:stop] * inverse
        return signed


class _DenseRows:
    """Row-major array as the dense kernel wants it."""

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
        padded = -(-self.n_rows // ROW_GROUP) * ROW_GROUP
        n_body = max(0, padded - TAIL_ROWS)
        tail = np.zeros((padded - n_body, self.width), dtype=X.dtype)
        tail[: self.n_rows - n_body, : self.n_features] = X[n_body:]
        self._tail = _read_only(tail.reshape(-1))

    def block(self, start, stop):
        return self._X[start:stop].astype(np.float64, copy=False)

    def add_chunks(self, problem, chunks, sums):
        block_rows = rows_per_block(self.n_features, self._X.itemsize)
        scratch = np.empty((len(problem[2]) + 3) * max(block_rows, TAIL_ROWS))
        data = (self._flat, self._tail, self.n_features)
        dense_gradient(*data, *problem, *chunks, block_rows, scratch, *sums)


class _SparseRows:
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
        return self._X[start:stop].astype(np.float64, copy=False)

    def add_chunks(self, problem, chunks, sums):
        scratch = np.empty((len(problem[2]) + 3) * BLOCK_ROWS)
        sparse_gradient(*self._arrays, *problem, *chunks, scratch, *sums)


def _read_only(array):
    """View that cannot be written: one compiled kernel then serves memory-mapped data as well."""
    view = array.view()
    view.flags.writeable = False
    return view


def _unsigned(indices):
    return indices.view(f"u{indices.itemsize}")


def _squared_norms(rows):
    if sparse.issparse(rows):
        squares = sparse.csr_array((rows.data**2, rows.indices, rows.indptr), shape=rows.shape)
        return squares @ np.ones(rows.shape[1])
    return np.vecdot(rows, rows)


def _row_norms(rows):
    """Norm of each row; small rows are scaled first, so that their squares do not underflow."""
    squares = _squared_norms(rows)
    norms = np.sqrt(squares)
    small = np.flatnonzero(squares < 2.0**-900)
    if small.size:
        norms[small] = np.sqrt(_squared_norms(rows[small] * 2.0**600)) * 2.0**-600
    return norms


def _check_finite(rows):
    values = rows.data if sparse.issparse(rows) else rows
    if not np.isfinite(values).all():
        raise ValueError("X contains NaN or infinity; replace or drop such values first.")


def _check_weights(class_weight, n_classes):
    if class_weight is None:
        return np.ones(n_classes)
    weights = np.array(class_weight, dtype=np.float64)
    if weights.shape != (n_classes,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            f"class_weight must hold {n_classes} finite non-negative numbers, one per class, "
            f"got {class_weight!r}."
        )
    return weights


def _check_target(target, n_rows, n_outputs):
    """Return the sign of each row, and its class if there are K outputs."""
    target = np.asarray(target)
    if target.shape != (n_rows,):
        raise ValueError(f"target must have shape ({n_rows},), got {target.shape}.")
    n_padded = -(-n_rows // ROW_GROUP) * ROW_GROUP
    if n_outputs == 1:
        if not (np.abs(target) == 1).all():
            raise ValueError("target must be -1 or +1 when there is one output.")
        return target.astype(np.float64), None
    if not ((target >= 0) & (target < n_outputs) & (target == np.floor(target))).all():
        raise ValueError(f"target must be the index of a class, from 0 to {n_outputs - 1}.")
    classes = np.zeros(n_padded, dtype=np.int32)
    classes[:n_rows] = target
    return np.ones(n_rows), classes
