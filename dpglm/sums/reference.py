"""The clipped sum in plain numpy: what the compiled kernels are held to.

Short enough to be read, and slower: the oracle of the tests, what every fit checks some rows of one
of its sums against, and what fits compute with where the environment says ``DPGLM_KERNELS=numpy``.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpglm.losses import Loss

_UNIT_ROUNDOFF = 2.0**-53
# The residuals of the kernels are right to within this, by the tests of their exponential.
_RESIDUAL_ERROR = 2.0**-45
# Beyond it squares and products may overflow in one order of operations and not in another.
_LARGE = 1e150
# The part of a norm by which two ways to compute it may differ.
_NORM_ERROR = 2.0**-20
# The square of a norm below this is too small to be accurate.
SMALL_SQUARE = 2.0**-900
# Sizes, relative to the bound that is divided, are taken to be within these.
_LEAST_SIZE, _LARGEST_SIZE = 2.0**-60, 2.0**60


def _times(basis: np.ndarray | None, array: np.ndarray, *, transpose: bool = False) -> np.ndarray:
    """P times an array, or its transpose times it; None is the identity, a vector a diagonal."""
    if basis is None:
        return array
    if basis.ndim == 1:
        return (basis * array.T).T
    return (basis.T if transpose else basis) @ array


def row_norms(rows: np.ndarray | sparse.csr_array) -> np.ndarray:
    """Norm of each row; small rows are scaled first, so that their squares do not underflow."""
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
    """Norm of each ``x~``, or ``P' x~``; sparse rows stay sparse if P is diagonal."""
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
    """Rows with each column multiplied."""
    if not sparse.issparse(rows):
        return rows * scales
    scaled = (rows.data * scales[rows.indices], rows.indices, rows.indptr)
    return sparse.csr_array(scaled, shape=rows.shape)


def parts_of_groups(sizes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the part of each row in its group (n,), in proportion to sizes relative to a bound.

    Whatever the sizes are, numbers or not: the parts are positive, depend on the rows of the group
    alone, and add up to one in each group, so that rows of which each is clipped to its part of a
    bound keep to it together. Where the sizes add up to no more than 1 none is above its part. A
    row alone has all of it, exactly.
    """
    usable = np.where(sizes > _LEAST_SIZE, np.minimum(sizes, _LARGEST_SIZE), _LEAST_SIZE)
    return usable / np.bincount(groups, usable)[groups]


@dataclass(frozen=True)
class Reference:
    """Rows and labels, and sums over them without any cleverness.

    ``x`` are rows of X in float64, dense or CSR; ``target`` is -1 or +1 for one output, and the
    class for several; ``inverse_norms`` are those that the kernels clip by, of ``x~`` or of
    ``P' x~`` in a basis P, zero for a row that adds nothing, and those of rows that divide a clip
    times their ``parts`` of it. ``weights`` are those of the classes, and ``row_weights`` those of
    the rows, or None.
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
        """Norms of the gradients (n,) at scores (n, K), over the clip; zero for a null row."""
        residuals = np.sqrt(np.square(self._residuals(scores)).sum(axis=1))
        return self._weight(scores) * residuals * self._norms / clip

    def excess(self, found: np.ndarray, coef: np.ndarray, clip: float, rounding: float) -> float:
        """Return by how much a sum that was found is farther from `gradient_sum` than it may be.

        `rounding` bounds what rounding did to it but for its scores, relative to the clip. Infinite
        if a row is longer than the kernels take it to be.

        Notes
        -----
        Both are within what rounding their scores, and adding their rows, does to either of the
        exact sum. So no right kernel fails on any data, and that none failed says nothing about
        them.
        """
        if not self._norms_hold():
            return math.inf
        w = self._original(coef)
        scores = self._scores(w)
        c = self._coefficients(scores, clip)
        difference = float(np.linalg.norm(found - self._added(c).reshape(coef.shape)))
        of_both = self._score_error(w, scores, clip)
        excess = difference - of_both - self._addition_error(c) - rounding * clip
        # What is not a number is no sum of clipped rows.
        return 0.0 if excess <= 0 else excess

    def _score_error(self, w: np.ndarray, scores: np.ndarray, clip: float) -> float:
        """Bound on how far two sums may be from one another because their scores are rounded.

        Notes
        -----
        Two computations of a score differ by less than ``4 (d + 4) u ||x_i|| ||w||``, which moves
        the residual of the row by some e_i; clipping is a projection, so that what the row adds
        moves by at most ``min(2 C, a_i e_i ||x_i||)``, where C is its part of the clip. A row so
        large that its square overflows in one order of operations and not in another may add
        anything up to C.
        """
        lengths = image_norms(self.x, None, self.fit_intercept)
        largest = float(np.linalg.norm(w))
        usual = (lengths < _LARGE) & (lengths * largest < _LARGE)
        shift = 4 * (len(w) + 4) * _UNIT_ROUNDOFF * largest * np.where(usual, lengths, 0.0)
        moved = np.where(usual, self._moved(scores, shift), math.inf)
        return float(np.minimum(2 * clip * self.parts, moved).sum())

    def _addition_error(self, c: np.ndarray) -> float:
        """Bound on what rounding does to the sum of the rows, given their coefficients.

        Notes
        -----
        Products and additions of n rows, in any order, and those with P' then move the sum by at
        most ``(n + d + 2) u || |P|' sum_i |c_i| |x~_i| ||`` (Higham, "Accuracy and stability of
        numerical algorithms", SIAM 2002, Section 3.5).
        """
        basis = None if self.basis is None else np.abs(self.basis)
        sizes = replace(self, x=abs(self.x), basis=basis)._added(np.abs(c))
        return (len(c) + self.x.shape[1] + 2) * _UNIT_ROUNDOFF * float(np.linalg.norm(sizes))

    def _norms_hold(self) -> bool:
        """Whether no row is longer than the kernels take it to be."""
        lengths = image_norms(self.x, self.basis, self.fit_intercept)
        usual = (self.inverse_norms > 0) & (lengths > 1 / _LARGE) & (lengths < _LARGE)
        taken = self.inverse_norms / self.parts
        return bool((taken[usual] * lengths[usual] <= 1 + _NORM_ERROR).all())

    def _original(self, coef: np.ndarray) -> np.ndarray:
        """Coefficients of the columns, shape (n_columns, K)."""
        return _times(self.basis, coef.reshape(len(coef), -1))

    def _scores(self, w: np.ndarray) -> np.ndarray:
        coef, intercept = (w[:-1], w[-1]) if self.fit_intercept else (w, 0.0)
        if sparse.issparse(self.x):
            return self.x @ coef + intercept
        # Row by row: a product of matrices may round a row by where it stands.
        return np.vecdot(self.x[:, np.newaxis, :], coef.T) + intercept

    def _added(self, c: np.ndarray) -> np.ndarray:
        """Sum of the rows ``P' x~`` times their coefficients, shape (length, K)."""
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
        """Derivative of the loss of each row in its scores (n, K)."""
        one = scores.shape[1] == 1
        residuals = self.loss.derivative(scores[:, 0] if one else scores, self.target)
        return residuals.reshape(scores.shape)

    def _coefficients(self, scores: np.ndarray, clip: float) -> np.ndarray:
        """c (n, K) with ``c_i = min(a_i, C / (||r_i|| ||x_i||)) r_i``: ``||c_i|| ||x_i|| <= C``."""
        residuals = self._residuals(scores)
        # By the largest entry first: the square of a small residual vanishes, and passes the clip.
        largest = np.abs(residuals).max(axis=1, keepdims=True)
        direction = residuals / np.where(largest > 0, largest, 1.0)
        size = np.sqrt(np.square(direction).sum(axis=1))
        # Without a clip that of a null row, inf times 0, is no number; it is not used.
        with np.errstate(invalid="ignore"):
            most = clip * self.inverse_norms
        length = np.minimum(self._weight(scores) * (largest[:, 0] * size), most)
        usable = (self.inverse_norms > 0) & np.isfinite(scores).all(axis=1) & (size > 0)
        scale = np.where(usable, length / np.where(size > 0, size, 1.0), 0.0)
        return np.where(usable[:, np.newaxis], direction * scale[:, np.newaxis], 0.0)

    def _moved(self, scores: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Bound on how far what each row adds moves when none of its scores moves by more."""
        if math.isfinite(self.loss.curvature):
            moved = self.loss.curvature * math.sqrt(scores.shape[1]) * shift
        else:
            # The derivative of a margin loss is monotone in the score.
            shift = shift[:, np.newaxis]
            ends = self._residuals(scores + shift) - self._residuals(scores - shift)
            moved = np.sqrt(np.square(ends).sum(axis=1))
        return self._weight(scores) * (moved + _RESIDUAL_ERROR) * self._norms
