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
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

from dpglm.losses import Logistic, Loss, Softmax

__all__ = ["PenalizedLoss", "joint_lipschitz", "rounding_error"]

_UNIT_ROUNDOFF = 2.0**-53
_BLOCK_ROWS = 2048
_POLISHING_STEPS = 5


def joint_lipschitz(loss: Loss, n_outputs: int) -> float:
    """Bound on the norm of the derivative of one record's loss in all its scores.

    Parameters
    ----------
    loss : Loss
        Summed one-vs-rest over the outputs, unless it is `Softmax`.
    n_outputs : int

    Returns
    -------
    float
    """
    return loss.lipschitz * (1.0 if isinstance(loss, Softmax) else math.sqrt(n_outputs))


def rounding_error(
    n_samples: int, n_coefficients: int, lipschitz: float, smoothness: float, coef_norm: float
) -> float:
    """Bound on the rounding error of a gradient of `PenalizedLoss`, without penalty and tilt.

    Parameters
    ----------
    n_samples : int
        The public number of records, at least their actual number.
    n_coefficients : int
        Of all outputs.
    lipschitz, smoothness : float
        Bounds on the norms of a record's gradient and of its Hessian.
    coef_norm : float
        Norm of the coefficients, or more.

    Returns
    -------
    float

    Notes
    -----
    With u = 2^-53, B rows in a block and d coefficients: a score is within ``2 (d + 2) u ||x~||
    ||w||`` of the exact one, a slope of K outputs is accurate to a few K u, and a sum of n terms of
    at most L, taken by blocks, is within ``(B + n/B + 2 d) u n L``.
    """
    total = _BLOCK_ROWS + n_samples / _BLOCK_ROWS + 2 * n_coefficients + 64
    scores = 2 * (n_coefficients + 2) * smoothness * coef_norm
    return _UNIT_ROUNDOFF * n_samples * (total * lipschitz + scores)


class PenalizedLoss:
    """Holds shortened rows and labels, and answers with minimisers of their penalised loss.

    Parameters
    ----------
    X : ndarray or CSR of shape (n, n_features)
        Finite. Copied.
    target : array of shape (n,)
        -1 or +1 for one output, the index of the class for K outputs.
    loss : Loss
        With a finite curvature.
    n_outputs : int
    fit_intercept : bool
    row_bound : float
        Public bound on the norm of a row, intercept included. A row whose norm overflows
        contributes nothing.
    class_weight : array, optional
        Public weight of each class.
    present : bool array of shape (n,), optional
        False marks a null record, which contributes nothing.
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
        present: np.ndarray | None = None,
    ) -> None:
        self._rows, finite = _shortened(X, row_bound, fit_intercept)
        self._target, self._loss, self._n_outputs = target, loss, n_outputs
        classes = (target > 0).astype(int) if n_outputs == 1 else target
        weights = np.ones(max(2, n_outputs)) if class_weight is None else class_weight
        self._weight = (weights[classes] * finite * (1.0 if present is None else present))[:, None]
        largest = float(weights.max())
        self._lipschitz = largest * joint_lipschitz(loss, n_outputs) * row_bound
        self._smoothness = largest * loss.curvature * row_bound**2
        self._known: tuple[bytes, np.ndarray] | None = None

    @property
    def coef_shape(self) -> tuple[int, int]:
        """Columns, the intercept's last, and outputs."""
        return self._rows.shape[1], self._n_outputs

    def minimizer(
        self, penalty: float, tolerance: float, *, n_samples: int, tilt: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return coefficients within ``tolerance / penalty`` of the exact minimiser.

        Private: they leave the library through a mechanism only.

        Parameters
        ----------
        penalty : float
            Positive.
        tolerance : float
            Bound on the exact gradient of the minimised function at the result.
        n_samples : int
            The public number of records, at least their actual number.
        tilt : array of shape `coef_shape`, default=0.0

        Returns
        -------
        ndarray of shape `coef_shape`

        Raises
        ------
        RuntimeError
            If no such coefficients were found: nothing may be released then.

        Notes
        -----
        A trust-region Newton method with conjugate gradients, and plain Newton steps once its
        comparisons of function values drown in rounding errors. How long it takes depends on the
        data, and so does what an observer of the clock learns.
        """
        shape = self.coef_shape
        tilt = np.broadcast_to(tilt, shape).ravel()

        def value(coef: np.ndarray) -> float:
            return self.loss_sum(coef) + penalty / 2 * coef @ coef + tilt @ coef

        def gradient(coef: np.ndarray) -> np.ndarray:
            return self.gradient(coef, penalty, tilt)

        def curvature(coef: np.ndarray, direction: np.ndarray) -> np.ndarray:
            return self.hessian_product(coef, direction) + penalty * direction

        coef = minimize(
            value,
            np.zeros(tilt.size),
            method="trust-ncg",
            jac=gradient,
            hessp=curvature,
            options={"gtol": tolerance / 4, "maxiter": 1000},
        ).x
        for _ in range(_POLISHING_STEPS):
            slope = gradient(coef)
            norm, coef_norm = float(np.linalg.norm(slope)), float(np.linalg.norm(coef))
            error = rounding_error(
                n_samples, tilt.size, self._lipschitz, self._smoothness, coef_norm
            ) + 8 * _UNIT_ROUNDOFF * (tilt.size * norm + penalty * coef_norm + abs(tilt).sum())
            if norm + error <= tolerance:
                return coef.reshape(shape)
            hessian = LinearOperator(
                (tilt.size, tilt.size), lambda v, w=coef: curvature(w, v), dtype=np.float64
            )
            coef = coef - cg(hessian, slope, rtol=1e-3)[0]
        raise RuntimeError(
            f"The minimiser was not found to a gradient norm of {tolerance:.3g}, which the noise "
            "is calibrated to; nothing was released. Raise alpha, or check the scale of X against "
            "row_bound."
        )

    def loss_sum(self, coef: np.ndarray) -> float:
        """Return the weighted sum of the losses; coefficients are flat here and below."""
        losses = self._loss.value(self._as_loss_wants(self._scores(coef)), self._target)
        return float(losses @ self._weight[:, 0])

    def gradient_sum(self, coef: np.ndarray) -> np.ndarray:
        """Return the sum of the gradients of the losses, flat."""
        return self._moment(self._weight * self._slopes(coef)).ravel()

    def gradient(
        self, coef: np.ndarray, penalty: float, tilt: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """Return the gradient of the minimised function, flat; private like the sums above."""
        return self.gradient_sum(coef) + penalty * coef + tilt

    def hessian_product(self, coef: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the Hessian of the sum of the losses times a direction, flat."""
        slopes, moved = self._slopes(coef), self._rows @ direction.reshape(self.coef_shape)
        if isinstance(self._loss, Softmax):
            probability = slopes + (np.arange(self._n_outputs) == self._target[:, None])
            mean = (probability * moved).sum(axis=1, keepdims=True)
            change = probability * (moved - mean)
        elif isinstance(self._loss, Logistic):
            change = np.abs(slopes) * (1 - np.abs(slopes)) * moved
        else:
            inside = (slopes != 0) & (np.abs(slopes) != 1)
            change = self._loss.curvature * inside * moved
        return self._moment(self._weight * change).ravel()

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
        """Return ``sum_i x~_i factors_i'``, by blocks of rows to keep rounding errors small."""
        total = np.zeros(self.coef_shape)
        for start in range(0, len(factors), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            total += self._rows[block].T @ factors[block]
        return total


def _shortened(X: Any, row_bound: float, fit_intercept: bool) -> tuple[Any, np.ndarray]:
    """Return the rows with their intercept, and which of them have a finite norm.

    Features are scaled down a hair more than needed, so that rounding does not lengthen a row.
    """
    n_rows, n_features = X.shape
    squared = row_bound**2 - bool(fit_intercept)
    bound = math.sqrt(squared) * (1 - 4 * (n_features + 8) * _UNIT_ROUNDOFF)
    X = X.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if sparse.issparse(X):
            X = sparse.csr_array(X)
            X.sum_duplicates()
            norms = np.sqrt(X.multiply(X).sum(axis=1))
        else:
            norms = np.sqrt(np.einsum("ij,ij->i", X, X))
        finite = np.isfinite(norms)
        factors = np.where(finite, np.minimum(1.0, bound / norms), 0.0)[:, None]
    ones = np.ones((n_rows, 1))
    if sparse.issparse(X):
        X = sparse.csr_array(X.multiply(factors))
        return (sparse.hstack([X, ones], format="csr") if fit_intercept else X), finite
    return (np.hstack([X * factors, ones]) if fit_intercept else X * factors), finite
