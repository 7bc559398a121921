"""All private sums in plain numpy: the specification of the compiled kernels.

The code is short and slow. It is an oracle of the tests, and every fit compares one of its releases
with this code, on some rows. Fits with ``DPGLM_KERNELS=numpy`` sum gradients by it alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.losses import Logistic, Loss

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


def sums_by_class(
    target: np.ndarray, weights: np.ndarray, groups: np.ndarray | None, n_classes: int
) -> np.ndarray:
    """Sum the weights of rows, up to 1, by class (n_classes,); `target` is a sign or a class.

    A row of a group of k counts a k-th of its weight. So a record adds numbers of 0 or more, whose
    sum is at most 1. Rounded down to multiples of 2^-20, sums of them have no rounding errors.
    """
    shares = np.minimum(weights, 1.0) / (1 if groups is None else np.bincount(groups)[groups])
    steps = np.floor(shares * 2.0**20)
    return np.bincount(np.maximum(target, 0).astype(int), steps, n_classes) * 2.0**-20


@dataclass(frozen=True)
class Reference:
    """Rows and labels, and the answers to all questions of a vault in plain arithmetic.

    ``x`` are rows of X in float64, dense or CSR; ``target`` is -1 or +1 for one output, and the
    class for several. It is +1 for a numeric target, which has ``numbers``. ``inverse_norms`` are
    those that the kernels clip by, of ``x~`` or of ``P' x~`` in a basis P; zero for a row that adds
    nothing. Questions about the target are of ``residuals_asked``, if any. For rows that divide a
    clipping norm they are multiplied by their ``parts`` of it. ``weights`` are those of the
    classes, and ``row_weights`` those of the rows, or None. ``groups`` are those of rows that will
    divide a clipping norm, up to ``group_size`` rows each, by the parts that ``divide`` returns.
    """

    x: np.ndarray | sparse.csr_array
    target: np.ndarray
    inverse_norms: np.ndarray
    loss: Loss
    weights: np.ndarray
    fit_intercept: bool
    basis: np.ndarray | None
    row_weights: np.ndarray | None = None
    numbers: np.ndarray | None = None
    residuals_asked: np.ndarray | None = None
    parts: np.ndarray | float = 1.0
    groups: np.ndarray | None = None
    group_size: int = 1
    divide: Callable[[np.ndarray, float], np.ndarray] | None = None

    def excess(self, found: np.ndarray, ask: Callable[[Any], np.ndarray], bounds: Any) -> float:
        """Return by how much an answer is farther from the plain one than rounding explains.

        ``ask`` asks an object the question, and `bounds` has the rounding bounds of the kernels.
        The result is infinite if a row norm exceeds that of the kernels. A right kernel passes on
        all data: passing reveals nothing about them.
        """
        if not self._norms_hold():
            return math.inf
        difference = found - ask(self)
        # Scale by the largest element: squares might overflow.
        largest = float(np.abs(difference).max()) or 1.0
        excess = largest * float(np.linalg.norm(difference / largest))
        excess -= ask(Tolerance(self, bounds))
        # NaN is not a sum of clipped rows: the comparison is false, and NaN is returned.
        return 0.0 if excess <= 0 else excess

    def gradient_sum(self, coef: np.ndarray, clip: float) -> np.ndarray:
        """Sum over rows of ``min(1, C / ||G_i||) G_i``, of the shape of the coefficients."""
        divided = self.divided(coef, clip)
        c = divided.coefficients(divided.scores(divided.original(coef)), clip)
        return divided.added(c).reshape(coef.shape)

    def second_moment(
        self, row_norm: float, diagonal: bool, coef: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum ``w_i x~_i x~_i'``, each ``sqrt(w_i) x~_i`` clipped to a norm; or its diagonal."""
        rows = self._with_ones(self._shrinkage(row_norm, coef))
        rows = rows if self.basis is None else rows @ self.basis
        if diagonal:
            return np.asarray((rows**2).sum(axis=0))
        moment = rows.T @ rows
        return moment.toarray() if sparse.issparse(moment) else moment

    def magnitude_histogram(self, powers: np.ndarray) -> np.ndarray:
        """Count the elements x of each column with ``2^k < x <= 2^(k + 1)``, and then those of -x.

        Shape (n_columns, 2 n_powers); the last power counts all larger elements too.
        """
        found = sparse.coo_array(self.x[self._counted()])
        mantissa, exponent = np.frexp(np.abs(found.data))
        # A power of two counts as the end of the bin below.
        bins = np.minimum(exponent - 1 - (mantissa == 0.5) - powers[0], len(powers) - 1)
        large = (found.data != 0) & (bins >= 0)
        counts = np.zeros((self.x.shape[1] + self.fit_intercept, 2 * len(powers)))
        places = bins + np.where(found.data < 0, len(powers), 0)
        np.add.at(counts, (found.col[large], places[large]), 1.0)
        return counts

    def norm_histogram(self, bounds: np.ndarray) -> np.ndarray:
        """Count the rows, without the intercept, whose norm is between consecutive bounds."""
        places = np.searchsorted(bounds, self.feature_norms())
        return np.bincount(places, minlength=bounds.size + 1).astype(np.float64)

    def label_counts(self) -> np.ndarray:
        """Sum the weights of the rows of each class, without those of classes."""
        weights = (self.inverse_norms > 0) * (1.0 if self.row_weights is None else self.row_weights)
        return sums_by_class(self.target, weights, self.groups, len(self.weights))

    def target_histogram(self, powers: np.ndarray) -> np.ndarray:
        """Count the numbers of a target, times weights, as `magnitude_histogram` does a column."""
        column = self._weighted_numbers()[:, np.newaxis]
        return replace(self, x=column, fit_intercept=False).magnitude_histogram(powers)

    def target_sum(self, bound: float) -> np.ndarray:
        """Sum the same numbers over a bound, within [-1, 1] and in multiples of 2^-20, exactly."""
        parts = np.clip(self._weighted_numbers()[self._counted()] / bound, -1.0, 1.0)
        return np.rint(parts * 2.0**20).sum(keepdims=True) * 2.0**-20

    def line_losses(self, *line: np.ndarray, **bound: float | None) -> np.ndarray:
        """Sum bounded losses at ``coef - step * direction``; see `Objective.line_losses`."""
        return self.line_terms(*line, **bound).sum(axis=0)

    def line_terms(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        *,
        loss_clip: float | None = None,
        clip: float | None = None,
    ) -> np.ndarray:
        """Return what each row adds at each step, shape (n, n_steps)."""
        start, slopes = (self.scores(self.original(v)) for v in (coef, direction))
        places = np.concatenate([start - step * slopes for step in steps])
        at_all, shape = self._repeated(len(steps)), (len(steps), len(start))
        if clip is None:
            terms = at_all._bounded_losses(places, loss_clip).reshape(shape)
        else:
            most = clip * self.divided(coef, clip).inverse_norms
            terms = at_all._capped_losses(places, np.tile(most, len(steps))).reshape(shape)
            terms = terms - terms[0]
        return np.where(self.inverse_norms > 0, np.nan_to_num(terms), 0.0).T

    def sizes(self, scores: np.ndarray, clip: float) -> np.ndarray:
        """Return the gradient norms (n,) at scores (n, K), over `clip`; zero for a null row."""
        residuals = np.sqrt(np.square(self.residuals(scores)).sum(axis=1))
        return self.weight(scores) * residuals * self.norms / clip

    def divided(self, coef: np.ndarray, clip: float) -> "Reference":
        """Return the rows with the part of each; NaN if they exceed one in some group."""
        if self.groups is None:
            return self
        parts = self.divide(coef, clip)
        if not (np.bincount(self.groups, parts) <= 1 + _NORM_ERROR).all():
            parts = np.full_like(parts, np.nan)
        return replace(self, inverse_norms=self.inverse_norms * parts, parts=parts, groups=None)

    def feature_norms(self) -> np.ndarray:
        """Return the norms of the rows that a histogram counts, without the intercept."""
        return row_norms(self.x)[self._counted()]

    def original(self, coef: np.ndarray) -> np.ndarray:
        """Return the coefficients of the original columns, shape (n_columns, K)."""
        return _times(self.basis, coef.reshape(len(coef), -1))

    def scores(self, w: np.ndarray) -> np.ndarray:
        """Return the scores (n, K) of the rows for coefficients of the original columns."""
        coef, intercept = (w[:-1], w[-1]) if self.fit_intercept else (w, 0.0)
        if sparse.issparse(self.x):
            return self.x @ coef + intercept
        # Row by row: a product of matrices may round a row by where it stands.
        return np.vecdot(self.x[:, np.newaxis, :], coef.T) + intercept

    def added(self, c: np.ndarray) -> np.ndarray:
        """Sum the rows ``P' x~`` times their coefficients, shape (length, K)."""
        total = self.x.T @ c
        if self.fit_intercept:
            total = np.vstack([total, c.sum(axis=0)])
        return _times(self.basis, total, transpose=True)

    def coefficients(self, scores: np.ndarray, clip: float) -> np.ndarray:
        """Return ``c_i = min(a_i, C / (||r_i|| ||x_i||)) r_i``, so ``||c_i|| ||x_i|| <= C``."""
        residuals = self.residuals(scores)
        # Scale by the largest element: a residual whose square underflows would not be clipped.
        largest = np.abs(residuals).max(axis=1, keepdims=True)
        direction = residuals / np.where(largest > 0, largest, 1.0)
        size = np.sqrt(np.square(direction).sum(axis=1))
        # Without clipping the bound of a null row, inf times 0, is NaN; it is not used.
        with np.errstate(invalid="ignore"):
            most = clip * self.inverse_norms
        length = np.minimum(self.weight(scores) * (largest[:, 0] * size), most)
        usable = (self.inverse_norms > 0) & np.isfinite(scores).all(axis=1) & (size > 0)
        scale = np.where(usable, length / np.where(size > 0, size, 1.0), 0.0)
        return np.where(usable[:, np.newaxis], direction * scale[:, np.newaxis], 0.0)

    def weight(self, scores: np.ndarray) -> np.ndarray:
        """Return the weight of each row, times that of its class."""
        weight = self.weights[np.maximum(self.target, 0).astype(int)]
        return weight if self.row_weights is None else weight * self.row_weights

    def _weighted_numbers(self) -> np.ndarray:
        if self.residuals_asked is not None:
            return self.residuals_asked
        return self.numbers if self.row_weights is None else self.numbers * self.row_weights

    def residuals(self, scores: np.ndarray) -> np.ndarray:
        """Return the derivative of the loss of each row in its scores (n, K)."""
        target = self.target if self.numbers is None else self.numbers
        return self.loss.derivative(_given(scores), target).reshape(scores.shape)

    @property
    def norms(self) -> np.ndarray:
        """The norms of rows that the kernels clip by; zero for a row that adds nothing."""
        inverse = np.maximum(self.inverse_norms / self.parts, 1 / _LARGE)
        return np.where(self.inverse_norms > 0, 1 / inverse, 0.0)

    def _repeated(self, times: int) -> "Reference":
        """Return labels and weights of all rows, again and again."""
        weights = None if self.row_weights is None else np.tile(self.row_weights, times)
        return replace(self, target=np.tile(self.target, times), row_weights=weights)

    def _bounded_losses(self, scores: np.ndarray, bound: float) -> np.ndarray:
        """Return ``min(a_i l_i, bound)``; rows of a group divide the bound by their number."""
        losses = self.weight(scores) * self.loss.value(_given(scores), self.target)
        return np.minimum(losses, bound / self.group_size)

    def _capped_losses(self, scores: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Return losses of one output whose slopes in the score are at most `most` (n,)."""
        weight, rising = self.weight(scores), -self.target * scores[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            knee = _knee(self.loss, np.minimum(most / weight, 1.0))
            beyond = most * np.maximum(rising - knee, 0.0)
        within = -self.target * np.minimum(rising, knee)
        return weight * self.loss.value(within, self.target) + beyond

    def _shrinkage(self, row_norm: float, coef: np.ndarray | None) -> np.ndarray:
        """Return by how much each row is scaled for a second moment; as `Objective` does it."""
        weights = 1.0 if self.row_weights is None else np.sqrt(self.row_weights)
        if coef is not None:
            scores = self.scores(self.original(coef))[:, 0]
            # A score that is NaN has no second derivative.
            weights = weights * np.sqrt(np.nan_to_num(self.loss.second_derivative(scores)))
        scale = np.minimum(weights, row_norm * self.inverse_norms)
        if self.groups is not None:
            usable = self.inverse_norms > 0
            sizes = np.divide(scale, self.inverse_norms, out=0 * scale, where=usable) / row_norm
            parts = parts_of_groups(sizes**2, self.groups)
            scale = np.minimum(scale, row_norm * np.sqrt(parts) * self.inverse_norms)
        return np.where(self.inverse_norms > 0, scale, 0.0)

    def _with_ones(self, scale: np.ndarray) -> np.ndarray | sparse.csr_array:
        """Return the rows ``x~``, with a column of ones for the intercept, times a scale each."""
        scale = scale[:, np.newaxis]
        ones = scale if self.fit_intercept else scale[:, :0]
        if sparse.issparse(self.x):
            return sparse.hstack([self.x.multiply(scale), ones], format="csr")
        return np.hstack([self.x * scale, ones])

    def _counted(self) -> np.ndarray:
        """Return the numbers of the rows that count: no null records, the first of each group."""
        rows = np.flatnonzero(self.inverse_norms > 0)
        if self.groups is None:
            return rows
        return rows[np.sort(np.unique(self.groups[rows], return_index=True)[1])]

    def _norms_hold(self) -> bool:
        """Return whether no row norm exceeds that of the kernels."""
        lengths = image_norms(self.x, self.basis, self.fit_intercept)
        usual = (self.inverse_norms > 0) & (lengths > 1 / _LARGE) & (lengths < _LARGE)
        taken = self.inverse_norms / self.parts
        return bool((taken[usual] * lengths[usual] <= 1 + _NORM_ERROR).all())


@dataclass(frozen=True)
class Tolerance:
    """How far two right answers to a question may be apart in the L2 norm.

    The methods are those of `Reference`; ``plain`` has the rows. ``bounds`` bounds the rounding
    of the kernels, except that of scores.
    """

    plain: Reference
    bounds: Any

    def gradient_sum(self, coef: np.ndarray, clip: float) -> float:
        """Bound the errors of scores, which move a row by 2 C at most, and those of additions.

        Clipping is a projection, and C is the part of a row of the clipping norm. If its residual
        moves by e_i, its clipped gradient moves by at most ``min(2 C, a_i e_i ||x_i||)``. Products
        and additions of n rows, in any order, move the sum by at most ``(n + d + 2) u || |P|' sum_i
        |c_i| |x~_i| ||`` (Higham, "Accuracy and stability of numerical algorithms", SIAM 2002).
        """
        plain = self.plain.divided(coef, clip)
        scores = plain.scores(plain.original(coef))
        shift = self._shift(coef)
        moved = np.where(shift < math.inf, self._moved(scores, shift), math.inf)
        of_scores = float(np.minimum(2 * clip * plain.parts, moved).sum())
        basis = None if plain.basis is None else np.abs(plain.basis)
        # Without a largest slope a weight of zero makes NaN, which fmin leaves out. A tiny norm
        # makes infinity, and zeros of the row would make NaN of that.
        most = np.fmin(plain.weight(scores) * plain.loss.lipschitz, clip * plain.inverse_norms)
        c = np.broadcast_to(np.nan_to_num(most)[:, np.newaxis], scores.shape)
        sizes = replace(plain, x=abs(plain.x), basis=basis).added(c)
        of_sum = self._units(plain.x.shape[1]) * float(np.linalg.norm(sizes))
        return of_scores + of_sum + self.bounds.rounding_slack(len(c)) * clip

    def second_moment(
        self, row_norm: float, diagonal: bool, coef: np.ndarray | None = None
    ) -> float:
        """Bound the same: a root of logistic curvature changes by half of its score's change."""
        n_rows, n_features = self.plain.x.shape
        rounding = self.bounds.moment_rounding(n_rows) + n_rows * self._units(n_features)
        shift = np.zeros(n_rows) if coef is None else self._shift(coef)
        return row_norm**2 * (rounding + float(np.minimum(2.0, 4 * shift).sum()))

    def magnitude_histogram(self, *question: Any) -> float:
        """Return zero: counts are exact, and numbers are rounded and summed in the same way."""
        return 0.0

    label_counts = target_histogram = target_sum = magnitude_histogram

    def norm_histogram(self, bounds: np.ndarray) -> float:
        """Count rows next to a bound, each on either side of it: two counts move by one."""
        squares = np.minimum(self.plain.feature_norms(), _LARGE)[:, np.newaxis] ** 2
        near = np.abs(squares - bounds**2) <= _NORM_ERROR * (1 + squares)
        return math.sqrt(2) * float(near.any(axis=1).sum())

    def line_losses(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        *,
        loss_clip: float | None = None,
        clip: float | None = None,
    ) -> float:
        """Bound the errors of scores times slopes, within what a row may add, and of sums."""
        plain, n_outputs = self.plain, direction.size // len(direction)
        reach = float(steps[-1])
        shift = 2 * n_outputs * (self._shift(coef) + self._shift(reach * direction))
        weight = plain.weight(np.empty((len(shift), n_outputs)))
        moved = np.where(weight > 0, weight * plain.loss.lipschitz * shift, 0.0)
        if clip is None:
            bound = loss_clip
            most = bound / plain.group_size
        else:
            bound = reach * float(np.linalg.norm(direction)) * clip
            most = 2 * bound * plain.divided(coef, clip).parts
            moved = np.fmin(moved, clip * plain.inverse_norms * shift)
        rounding = self.bounds.line_rounding(len(shift), bound)
        rounding += self._units(8) * len(shift) * bound
        return math.sqrt(len(steps)) * (float(np.fmin(most, moved).sum()) + rounding)

    def _units(self, n_features: int) -> float:
        """Return the relative error of a sum over the rows of products, in any order."""
        return (len(self.plain.target) + n_features + 2) * _UNIT_ROUNDOFF

    def _shift(self, coef: np.ndarray) -> np.ndarray:
        """Bound the distance of two computations of the scores of each row, (n,).

        The distance is less than ``4 (d + 4) u ||x_i|| ||w||``. It is infinite for a row whose
        square overflows in one order of operations and not in another: it may add anything.
        """
        w = self.plain.original(coef)
        lengths = image_norms(self.plain.x, None, self.plain.fit_intercept)
        largest = float(np.linalg.norm(w))
        usual = (lengths < _LARGE) & (lengths * largest < _LARGE)
        shift = 4 * (len(w) + 4) * _UNIT_ROUNDOFF * largest * np.where(usual, lengths, 0.0)
        return np.where(usual, shift, math.inf)

    def _moved(self, scores: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Bound how far the gradient of each row moves if its scores move by at most `shift`."""
        plain = self.plain
        shift = np.where(shift < math.inf, shift, 0.0)
        if math.isfinite(plain.loss.curvature):
            moved = plain.loss.curvature * math.sqrt(scores.shape[1]) * shift
        else:
            # The derivative of these losses is monotone in each score.
            shift = shift[:, np.newaxis]
            ends = plain.residuals(scores + shift) - plain.residuals(scores - shift)
            moved = np.sqrt(np.square(ends).sum(axis=1))
        size = 1.0 if plain.numbers is None else 1 + np.abs(plain.numbers) + np.abs(scores[:, 0])
        return plain.weight(scores) * (moved + _RESIDUAL_ERROR * size) * plain.norms


def _given(scores: np.ndarray) -> np.ndarray:
    """Return scores (n, K) as a loss wants them: (n,) for one output."""
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _knee(loss: Loss, share: np.ndarray) -> np.ndarray:
    """Return minus the margin at which the slope of a loss is this share of its largest slope."""
    if isinstance(loss, Logistic):
        return np.log(share) - np.log1p(-share)
    half = getattr(loss, "half_width", 0.0)
    return np.where(share < 1, half * (2 * share - 1) - 1, np.inf)
