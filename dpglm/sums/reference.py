"""The clipped sum in plain numpy: the specification of the compiled kernels.

The code is short and slow. It is the oracle of the tests, and every fit checks some rows of one of
its sums against this code. Fits with ``DPGLM_KERNELS=numpy`` in the environment use it alone.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpglm.losses import Loss

_UNIT_ROUNDOFF = 2.0**-53
# Error of the kernels' residuals, by the tests of their exponential.
_RESIDUAL_ERROR = 2.0**-45
# Beyond this, squares and products may overflow in one order of operations and not in another.
_LARGE = 1e150
# The part of a norm by which two ways to compute it may differ.
_NORM_ERROR = 2.0**-20
# The square of a norm below this is too small to be accurate.
SMALL_SQUARE = 2.0**-900
# Sizes, relative to the bound that is divided, are taken to be within these.
_LEAST_SIZE, _LARGEST_SIZE = 2.0**-60, 2.0**60


def _times(basis: np.ndarray | None, array: np.ndarray, *, transpose: bool = False) -> np.ndarray:
    """Return P or P' times an array; a P of None is the identity, a vector a diagonal."""
    if basis is None:
        return array
    if basis.ndim == 1:
        return (basis * array.T).T
    return (basis.T if transpose else basis) @ array


def row_norms(rows: np.ndarray | sparse.csr_array) -> np.ndarray:
    """Return the norm of each row; small rows are first scaled, against underflow of squares."""
    squares = _squared_norms(rows)
    norms = np.sqrt(squares)
    small = np.flatnonzero(squares < SMALL_SQUARE)
    if small.size:
        norms[small] = np.sqrt(_squared_norms(rows[small] * 2.0**600)) * 2.0**-600
    return norms


def _squared_norms(rows):
    if not sparse.issparse(rows):
        return np.vecdot(rows, rows)
    # As if all values were in one column: their squares are added without a vector of all columns.
    squares = (rows.data**2, np.zeros_like(rows.indices), rows.indptr)
    return sparse.csr_array(squares, shape=(rows.shape[0], 1)) @ np.ones(1)


def image_norms(
    rows: np.ndarray | sparse.csr_array, basis: np.ndarray | None, fit_intercept: bool
) -> np.ndarray:
    """Return the norm of each ``x~``, or ``P' x~``; sparse rows stay sparse if P is diagonal."""
    if basis is None:
        return np.hypot(row_norms(rows), float(fit_intercept))
    if basis.ndim == 1:
        norms = row_norms(scaled_columns(rows, basis[: rows.shape[1]]))
        return np.hypot(norms, basis[-1]) if fit_intercept else norms
    images = rows @ basis[: rows.shape[1]]
    if fit_intercept:
        images += basis[-1]
    return row_norms(images)


def scaled_columns(rows, scales):
    """Multiply each column by its scale."""
    if not sparse.issparse(rows):
        return rows * scales
    scaled = (rows.data * scales[rows.indices], rows.indices, rows.indptr)
    return sparse.csr_array(scaled, shape=rows.shape)


def parts_of_groups(sizes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the part of each row in its group (n,), in proportion to sizes relative to a bound.

    For all sizes, NaN included, the parts are positive and depend on the rows of the group alone.
    They add up to one in each group: rows that are each clipped to their part of a bound are
    together within the bound. If the sizes add up to at most 1, none is above its part. The part
    of a single row is exactly one.
    """
    usable = np.where(sizes > _LEAST_SIZE, np.minimum(sizes, _LARGEST_SIZE), _LEAST_SIZE)
    return usable / np.bincount(groups, usable)[groups]


@dataclass(frozen=True)
class Reference:
    """Rows and labels, and sums over them in plain arithmetic.

    ``x`` are rows of X in float64, dense or CSR; ``target`` is -1 or +1 for one output, and the
    class for several. ``inverse_norms`` are those that the kernels clip by, of ``x~`` or of
    ``P' x~`` in a basis P; zero for a row that adds nothing. For rows that divide a clipping norm
    they are multiplied by their ``parts`` of it. ``weights`` are those of the classes, and
    ``row_weights`` those of the rows, or None.
    """

    x: np.ndarray | sparse.csr_array
    target: np.ndarray
    inverse_norms: np.ndarray
    loss: Loss
    weights: np.ndarray
    fit_intercept: bool
    basis: np.ndarray | None
    row_weights: np.ndarray | None = None
    parts: np.ndarray | float = 1.0

    def gradient_sum(self, coef: np.ndarray, clip: float) -> np.ndarray:
        """Sum over rows of ``min(1, C / ||G_i||) G_i``, of the shape of the coefficients."""
        c = self._coefficients(self._scores(self._original(coef)), clip)
        return self._added(c).reshape(coef.shape)

    def sizes(self, scores: np.ndarray, clip: float) -> np.ndarray:
        """Return the gradient norms (n,) at scores (n, K), over `clip`; zero for a null row."""
        residuals = np.sqrt(np.square(self._residuals(scores)).sum(axis=1))
        return self._weight(scores) * residuals * self._norms / clip

    def excess(self, found: np.ndarray, coef: np.ndarray, clip: float, rounding: float) -> float:
        """Return by how much a found sum is farther from `gradient_sum` than rounding explains.

        `rounding` bounds the rounding errors of the found sum except those of its scores, relative
        to the clipping norm. The result is infinite if a row norm exceeds that of the kernels.

        Notes
        -----
        Both sums differ from the exact sum by at most the errors of rounded scores and of added
        rows. So a right kernel passes on all data, and passing reveals nothing about the data.
        """
        if not self._norms_hold():
            return math.inf
        w = self._original(coef)
        scores = self._scores(w)
        c = self._coefficients(scores, clip)
        difference = float(np.linalg.norm(found - self._added(c).reshape(coef.shape)))
        of_both = self._score_error(w, scores, clip)
        excess = difference - of_both - self._addition_error(c) - rounding * clip
        # NaN is not a sum of clipped rows: the comparison is false, and NaN is returned.
        return 0.0 if excess <= 0 else excess

    def _score_error(self, w: np.ndarray, scores: np.ndarray, clip: float) -> float:
        """Bound the distance of two sums that is due to the rounding of their scores.

        Notes
        -----
        Two computations of a score differ by less than ``4 (d + 4) u ||x_i|| ||w||``, which moves
        the residual of the row by some e_i. Clipping is a projection: the clipped gradient of the
        row moves by at most ``min(2 C, a_i e_i ||x_i||)``, where C is its part of the clipping
        norm. A row whose square overflows in one order of operations and not in another may add
        anything up to C.
        """
        lengths = image_norms(self.x, None, self.fit_intercept)
        largest = float(np.linalg.norm(w))
        usual = (lengths < _LARGE) & (lengths * largest < _LARGE)
        shift = 4 * (len(w) + 4) * _UNIT_ROUNDOFF * largest * np.where(usual, lengths, 0.0)
        moved = np.where(usual, self._moved(scores, shift), math.inf)
        return float(np.minimum(2 * clip * self.parts, moved).sum())

    def _addition_error(self, c: np.ndarray) -> float:
        """Bound the rounding error of the sum of the rows, given their coefficients.

        Notes
        -----
        The products and additions of n rows, in any order, then those with P', move the sum by at
        most ``(n + d + 2) u || |P|' sum_i |c_i| |x~_i| ||``. See Higham, "Accuracy and stability of
        numerical algorithms", SIAM 2002, Section 3.5.
        """
        basis = None if self.basis is None else np.abs(self.basis)
        sizes = replace(self, x=abs(self.x), basis=basis)._added(np.abs(c))
        return (len(c) + self.x.shape[1] + 2) * _UNIT_ROUNDOFF * float(np.linalg.norm(sizes))

    def _norms_hold(self) -> bool:
        """Return whether no row norm exceeds that of the kernels."""
        lengths = image_norms(self.x, self.basis, self.fit_intercept)
        usual = (self.inverse_norms > 0) & (lengths > 1 / _LARGE) & (lengths < _LARGE)
        taken = self.inverse_norms / self.parts
        return bool((taken[usual] * lengths[usual] <= 1 + _NORM_ERROR).all())

    def _original(self, coef: np.ndarray) -> np.ndarray:
        """Return the coefficients of the original columns, shape (n_columns, K)."""
        return _times(self.basis, coef.reshape(len(coef), -1))

    def _scores(self, w: np.ndarray) -> np.ndarray:
        coef, intercept = (w[:-1], w[-1]) if self.fit_intercept else (w, 0.0)
        if sparse.issparse(self.x):
            return self.x @ coef + intercept
        # Row by row: a product of matrices may round a row by where it stands.
        return np.vecdot(self.x[:, np.newaxis, :], coef.T) + intercept

    def _added(self, c: np.ndarray) -> np.ndarray:
        """Sum the rows ``P' x~`` times their coefficients, shape (length, K)."""
        total = self.x.T @ c
        if self.fit_intercept:
            total = np.vstack([total, c.sum(axis=0)])
        return _times(self.basis, total, transpose=True)

    @property
    def _norms(self) -> np.ndarray:
        inverse = np.maximum(self.inverse_norms / self.parts, 1 / _LARGE)
        return np.where(self.inverse_norms > 0, 1 / inverse, 0.0)

    def _weight(self, scores: np.ndarray) -> np.ndarray:
        one = scores.shape[1] == 1
        weight = self.weights[(self.target > 0).astype(int) if one else self.target]
        return weight if self.row_weights is None else weight * self.row_weights

    def _residuals(self, scores: np.ndarray) -> np.ndarray:
        """Return the derivative of the loss of each row in its scores (n, K)."""
        one = scores.shape[1] == 1
        residuals = self.loss.derivative(scores[:, 0] if one else scores, self.target)
        return residuals.reshape(scores.shape)

    def _coefficients(self, scores: np.ndarray, clip: float) -> np.ndarray:
        """Return ``c_i = min(a_i, C / (||r_i|| ||x_i||)) r_i``, so ``||c_i|| ||x_i|| <= C``."""
        residuals = self._residuals(scores)
        # Scale by the largest element: a residual whose square underflows would not be clipped.
        largest = np.abs(residuals).max(axis=1, keepdims=True)
        direction = residuals / np.where(largest > 0, largest, 1.0)
        size = np.sqrt(np.square(direction).sum(axis=1))
        # Without clipping the bound of a null row, inf times 0, is NaN; it is not used.
        with np.errstate(invalid="ignore"):
            most = clip * self.inverse_norms
        length = np.minimum(self._weight(scores) * (largest[:, 0] * size), most)
        usable = (self.inverse_norms > 0) & np.isfinite(scores).all(axis=1) & (size > 0)
        scale = np.where(usable, length / np.where(size > 0, size, 1.0), 0.0)
        return np.where(usable[:, np.newaxis], direction * scale[:, np.newaxis], 0.0)

    def _moved(self, scores: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Bound how far the gradient of each row moves if its scores move by at most `shift`."""
        if math.isfinite(self.loss.curvature):
            moved = self.loss.curvature * math.sqrt(scores.shape[1]) * shift
        else:
            # The derivative of a margin loss is monotone in the score.
            shift = shift[:, np.newaxis]
            ends = self._residuals(scores + shift) - self._residuals(scores - shift)
            moved = np.sqrt(np.square(ends).sum(axis=1))
        return self._weight(scores) * (moved + _RESIDUAL_ERROR) * self._norms
