"""Certified minimisers of a penalised loss: how far from the exact one they are is proved.

Conventions
-----------
Everything is on the scale of sums over records. With ``w`` of shape (n_columns, n_outputs), the
intercept last, the minimised function is ``sum_i a_i l_i(w) + (penalty / 2) ||w||^2 + <tilt, w>``:
the penalty is on every coordinate, the intercept's included, so that each record moves the exact
minimiser by a bounded distance. Rows ``x~ = [x, 1]`` have a norm of at most ``row_bound``: the
features of longer ones are shortened.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from dpglm.baselines.records import UNIT_ROUNDOFF, Records, terms_of_a_sum, with_intercept
from dpglm.kernels.runtime import one_blas_thread
from dpglm.losses import Logistic, Loss, Softmax

__all__ = ["PenalizedLoss", "damped_step", "joint_lipschitz", "rounding_error", "shortened"]

_MAX_STEPS = 10_000
_MAX_HALVINGS = 40
# Up to so many coefficients a Newton step is exact; conjugate gradients find it beyond.
_LARGEST_DENSE = 500
# Part of the decrease that the slope promises, which a step must bring at least.
_LEAST_DECREASE = 0.1


def joint_lipschitz(loss: Loss, n_outputs: int) -> float:
    """Bound on the norm of the derivative of one record's loss in all its scores."""
    return loss.lipschitz * (1.0 if isinstance(loss, Softmax) else math.sqrt(n_outputs))


def rounding_error(
    n_samples: int, n_coefficients: int, lipschitz: float, smoothness: float, coef_norm: float
) -> float:
    """Bound on the rounding error of a gradient of `PenalizedLoss`, without penalty and tilt.

    ``lipschitz`` and ``smoothness`` bound the norms of a record's gradient and of its Hessian, and
    ``n_samples`` the number of records.

    Notes
    -----
    With u = 2^-53, B rows in a block and d coefficients: a score is within ``2 (d + 2) u ||x~||
    ||w||`` of the exact one, a slope of K outputs is accurate to a few K u, and a sum of n terms of
    at most L, taken by blocks, is within ``(B + n/B + 2 d) u n L``.
    """
    total = terms_of_a_sum(n_samples) + 2 * n_coefficients + 64
    scores = 2 * (n_coefficients + 2) * smoothness * coef_norm
    return UNIT_ROUNDOFF * n_samples * (total * lipschitz + scores)


class PenalizedLoss(Records):
    """Holds shortened rows and labels, and answers with minimisers of their penalised loss.

    X is a finite array or CSR matrix of shape (n, n_features), and is copied; the curvature of the
    loss is finite. A row whose norm overflows contributes nothing. Coefficients of a sum below are
    flat.
    """

    def __init__(
        self,
        X: Any,
        target: np.ndarray,
        loss: Loss,
        *,
        n_outputs: int,
        fit_intercept: bool,
        row_bound: float,
        class_weight: np.ndarray | None = None,
    ) -> None:
        super().__init__(target, n_outputs, class_weight)
        self.feature_bound = math.sqrt(row_bound**2 - bool(fit_intercept))
        rows, finite = shortened(X, self.feature_bound)
        self._rows, self._loss = with_intercept(rows) if fit_intercept else rows, loss
        self._weight = (self._weight * finite)[:, None]
        self._lipschitz = self.largest_weight * joint_lipschitz(loss, n_outputs) * row_bound
        self._smoothness = self.largest_weight * loss.curvature * row_bound**2
        self._known: tuple[bytes, np.ndarray] | None = None

    @property
    def coef_shape(self) -> tuple[int, int]:
        """Columns, the intercept's last, and outputs."""
        return self._rows.shape[1], self._n_outputs

    def minimizer(
        self, penalty: float, tolerance: float, *, n_samples: int, tilt: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return coefficients within ``tolerance / penalty`` of the exact minimiser.

        The exact gradient there is at most ``tolerance``, for up to ``n_samples`` records. Raises
        a RuntimeError if no such coefficients were found: nothing may be released then.

        Notes
        -----
        Newton's method from zero, damped by `damped_step`. In exact arithmetic it converges for all
        data, because the Hessian is bounded on both sides; how many steps it takes depends on the
        data, and so does what an observer of the clock learns. That a public number of them is
        enough in floating point is tested, not proved.
        """
        tilt = np.broadcast_to(tilt, self.coef_shape).ravel()
        gradient = partial(self.gradient, penalty=penalty, tilt=tilt)
        with one_blas_thread():
            coef = np.zeros(tilt.size)
            slope = gradient(coef)
            for _ in range(_MAX_STEPS):
                # 1) Accept coefficients whose gradient is small, whatever was lost to rounding.
                norm, coef_norm = float(np.linalg.norm(slope)), float(np.linalg.norm(coef))
                error = rounding_error(
                    n_samples, tilt.size, self._lipschitz, self._smoothness, coef_norm
                ) + 8 * UNIT_ROUNDOFF * (tilt.size * norm + penalty * coef_norm + abs(tilt).sum())
                if norm + error <= tolerance:
                    return coef.reshape(self.coef_shape)
                # 2) Take a Newton step, or the part of it that decreases the function.
                step = self._newton_step(coef, slope, penalty)
                coef, slope = damped_step(gradient, coef, slope, step)
        raise RuntimeError(
            f"The minimiser was not found to a gradient norm of {tolerance:.3g}, which the noise "
            "is calibrated to; nothing was released. Raise alpha, or check the scale of X against "
            "row_bound."
        )

    def _newton_step(self, coef: np.ndarray, slope: np.ndarray, penalty: float) -> np.ndarray:
        """Return minus the inverse Hessian of the minimised function times its gradient."""
        if coef.size <= _LARGEST_DENSE:
            values, vectors = np.linalg.eigh(self.hessian(coef))
            # Rounding alone makes an eigenvalue of the losses negative.
            return -vectors @ (vectors.T @ slope / (np.maximum(values, 0.0) + penalty))
        hessian = LinearOperator(
            (coef.size, coef.size),
            lambda v: self.hessian_product(coef, v) + penalty * v,
            dtype=np.float64,
        )
        return -cg(hessian, slope, rtol=1e-3)[0]

    def gradient_sum(self, coef: np.ndarray) -> np.ndarray:
        """Return the sum of the gradients of the losses, flat."""
        return self._moment(self._weight * self._slopes(coef)).ravel()

    def gradient(
        self, coef: np.ndarray, penalty: float, tilt: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return the gradient of the minimised function, flat."""
        return self.gradient_sum(coef) + penalty * coef + tilt

    def hessian_product(self, coef: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the Hessian of the sum of the losses times a direction, flat."""
        moved = self._rows @ direction.reshape(self.coef_shape)
        return self._moment(self._weight * self._changes(self._slopes(coef), moved)).ravel()

    def hessian(self, coef: np.ndarray) -> np.ndarray:
        """Return the Hessian of the sum of the losses, a square matrix."""
        n_columns, n_outputs = self.coef_shape
        slopes = self._slopes(coef)
        blocks = np.zeros((n_columns, n_outputs, n_columns, n_outputs))
        for j, one_output in enumerate(np.eye(n_outputs)):
            changes = self._weight * self._changes(slopes, one_output)
            for k in np.flatnonzero(changes.any(axis=0)):
                blocks[:, k, :, j] = self._second_moment(changes[:, [k]])
        return blocks.reshape(n_columns * n_outputs, -1)

    def _changes(self, slopes: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Return the derivatives of the slopes of all rows when their scores move."""
        if isinstance(self._loss, Softmax):
            probability = slopes + (np.arange(self._n_outputs) == self._target[:, None])
            return probability * (moved - (probability * moved).sum(axis=1, keepdims=True))
        if isinstance(self._loss, Logistic):
            return np.abs(slopes) * (1 - np.abs(slopes)) * moved
        inside = (slopes != 0) & (np.abs(slopes) != 1)
        return self._loss.curvature * inside * moved

    def _scores(self, coef: np.ndarray) -> np.ndarray:
        """Scores of all rows, those of the last coefficients kept."""
        if self._known is None or self._known[0] != coef.tobytes():
            self._known = coef.tobytes(), self._rows @ coef.reshape(self.coef_shape)
        return self._known[1]

    def _slopes(self, coef: np.ndarray) -> np.ndarray:
        slopes = self._loss.derivative(self._as_loss_wants(self._scores(coef)), self._target)
        return slopes.reshape(-1, self._n_outputs)

    def _as_loss_wants(self, scores: np.ndarray) -> np.ndarray:
        return scores[:, 0] if self._n_outputs == 1 else scores

    def _moment(self, factors: np.ndarray) -> np.ndarray:
        """Return ``sum_i x~_i factors_i'``."""
        return self._sum(self.coef_shape, lambda block: self._rows[block].T @ factors[block])

    def _second_moment(self, factors: np.ndarray) -> np.ndarray:
        """Return ``sum_i factors_i x~_i x~_i'``."""

        def of_block(block: slice) -> np.ndarray:
            rows = self._rows[block]
            if sparse.issparse(rows):
                return (rows.T @ sparse.csr_array(rows.multiply(factors[block]))).toarray()
            return rows.T @ (rows * factors[block])

        return self._sum((self._rows.shape[1],) * 2, of_block)


def damped_step(
    gradient: Callable[[np.ndarray], np.ndarray],
    coef: np.ndarray,
    slope: np.ndarray,
    step: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the end of a step that decreases a convex function, and the gradient there.

    ``gradient`` is that of the function, ``slope`` its value at ``coef``; the step is halved until
    its end is low enough.

    Notes
    -----
    A convex function changes along a step by at most the mean of the slopes in its middle and at
    its end. Armijo's rule is asked of that bound, since differences of function values drown in
    rounding errors long before the gradient does. Should this drown too, the end with the smallest
    gradient is taken.
    """
    enough = 2 * _LEAST_DECREASE * (slope @ step)
    end = best = coef + step, gradient(coef + step)
    for _ in range(_MAX_HALVINGS):
        step = step / 2
        middle = coef + step, gradient(coef + step)
        if (middle[1] + end[1]) @ (2 * step) <= enough:
            return end
        end, enough = middle, enough / 2
        best = min(best, end, key=lambda found: np.linalg.norm(found[1]))
    return best


def shortened(X: Any, feature_bound: float) -> tuple[Any, np.ndarray]:
    """Shorten rows that are longer than a bound, without their intercept.

    Returns the rows, in double precision, and where their norm is finite. Long rows are scaled down
    a hair more than needed, so that rounding does not lengthen them; a row whose norm overflows
    becomes zero.
    """
    bound = feature_bound * (1 - 4 * (X.shape[1] + 8) * UNIT_ROUNDOFF)
    if sparse.issparse(X):
        # numba is imported with the rows, which dense predictions do without.
        from dpglm.sums.rows import without_duplicates

        X = without_duplicates(X)
    X = X.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if sparse.issparse(X):
            norms = np.sqrt(X.multiply(X).sum(axis=1))
        else:
            norms = np.sqrt(np.einsum("ij,ij->i", X, X))
        finite = np.isfinite(norms)
        factors = np.where(finite, np.minimum(1.0, bound / norms), 0.0)[:, None]
    return (sparse.csr_array(X.multiply(factors)) if sparse.issparse(X) else X * factors), finite
