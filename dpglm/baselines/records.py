"""Holders of private records: what all of them share, and certified minimisers of a loss."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from dpglm.checks import check_choice
from dpglm.kernels import one_blas_thread
from dpglm.losses import Logistic, Loss, Softmax
from dpglm.privacy.budget import PrivacyBudget
from dpglm.schema.values import null_rows, row_norms, without_duplicates

UNIT_ROUNDOFF = 2.0**-53
_BLOCK_ROWS = 2048
_MAX_STEPS = 10_000
_MAX_HALVINGS = 40
# Most coefficients with an exact Newton step; conjugate gradients find it beyond.
_LARGEST_DENSE = 500
# Part of the decrease that the slope promises, which a step must bring at least.
_LEAST_DECREASE = 0.1


def terms_of_a_sum(n_samples: int) -> float:
    """Return ``B + n / B``: a sum by blocks of B is within that times ``2^-53 n`` largest terms."""
    return _BLOCK_ROWS + n_samples / _BLOCK_ROWS


class Published:
    """An estimator that Lee & Kifer (2018) compared with, by default with the noise known today."""

    # Of the paper, and where it prints none, of the authors' program.
    _constants: ClassVar[dict[str, Any]] = {}

    @classmethod
    def as_published(cls, **parameters: Any) -> Self:
        """Return the method with the constants and the noise that Lee & Kifer (2018) gave it.

        Where that noise would not be valid, it is the noise that is.

        Parameters
        ----------
        **parameters
            Take precedence over the published constants; at least ``epsilon`` is usually given.

        Returns
        -------
        estimator

        Examples
        --------
        >>> from dpglm.baselines import PrivGene
        >>> PrivGene.as_published(epsilon=0.4).mutation_decay
        0.95
        """
        return cls(**{"delta": 1e-8, **cls._constants, **parameters})

    def _is_published(self, budget: PrivacyBudget) -> bool:
        check_choice("accounting", self.accounting, ("tight", "published"))
        return self.accounting == "published" and budget.epsilon < math.inf


class Records:
    """Holds the labels of private records; what it answers is private as well.

    ``X`` are their rows, which only say here which records count: null ones have weight zero.
    ``target`` is -1 or +1 for one output, and the index of the class for K outputs;
    ``class_weight`` has one number for each class.
    """

    def __init__(
        self,
        X: Any,
        target: np.ndarray,
        *,
        n_outputs: int,
        fit_intercept: bool,
        class_weight: np.ndarray | None = None,
    ) -> None:
        self._target, self._n_outputs, self._fit_intercept = target, n_outputs, fit_intercept
        self.n_records, self.coef_shape = len(target), (X.shape[1] + fit_intercept, n_outputs)
        self._class = (target > 0).astype(int) if n_outputs == 1 else target
        self.class_weight = np.ones(max(2, n_outputs)) if class_weight is None else class_weight
        self._counts = ~null_rows(X)

    @property
    def _weight(self) -> np.ndarray:
        """The weight of each record, zero for a null one."""
        return self.class_weight[self._class] * self._counts

    def label_counts(self) -> np.ndarray:
        """Return the number of records in each class, without null records."""
        return np.bincount(self._class, self._counts, len(self.class_weight))

    def with_class_weights(self, class_weight: np.ndarray) -> Any:
        """Return the same records with these weights of classes, which bounds take as up to 1."""
        weighted = copy.copy(self)
        weighted.class_weight = class_weight
        return weighted

    def confirm(self, ask: Any, rows: np.ndarray) -> np.ndarray:
        """Return zero: these sums are plain arithmetic."""
        return np.zeros(())

    def _with_intercept(self, rows: Any) -> Any:
        """Append a column of ones to dense or CSR rows, where there is an intercept."""
        if not self._fit_intercept:
            return rows
        ones = np.ones((rows.shape[0], 1))
        if sparse.issparse(rows):
            return sparse.hstack([rows, ones], format="csr")
        return np.hstack([rows, ones])

    def _sum(self, shape: tuple[int, ...], of_block: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Return a sum over all records, taken by blocks to keep rounding errors small."""
        total = np.zeros(shape)
        for start in range(0, self.n_records, _BLOCK_ROWS):
            total += of_block(slice(start, start + _BLOCK_ROWS))
        return total


def joint_lipschitz(loss: Loss, n_outputs: int) -> float:
    """Bound the norm of the derivative of one record's loss in all its scores."""
    return loss.lipschitz * (1.0 if isinstance(loss, Softmax) else math.sqrt(n_outputs))


def rounding_error(
    n_samples: int, n_coefficients: int, lipschitz: float, smoothness: float, coef_norm: float
) -> float:
    """Bound the rounding error of `PenalizedLoss.gradient_sum` over `n_samples` records.

    ``lipschitz`` and ``smoothness`` bound the norms of a record's gradient and of its Hessian.

    With u = 2^-53, B rows in a block and d coefficients: a score is within ``2 (d + 2) u ||x~||
    ||w||`` of the exact one. A slope of K outputs is accurate to a few K u. A sum of n terms of at
    most L, taken by blocks, is within ``(B + n/B + 2 d) u n L``.
    """
    total = terms_of_a_sum(n_samples) + 2 * n_coefficients + 64
    scores = 2 * (n_coefficients + 2) * smoothness * coef_norm
    return UNIT_ROUNDOFF * n_samples * (total * lipschitz + scores)


class PenalizedLoss(Records):
    """Holds rows and labels, and answers with certified minimisers of their penalised loss.

    With ``w`` of shape (n_columns, n_outputs), the intercept last, the function is ``sum_i a_i
    l_i(w) + (penalty / 2) ||w||^2 + <tilt, w>``. The intercept is penalised too, so that each
    record moves the exact minimiser by a bounded distance. Coefficients of a sum below are flat.

    X is a finite array or CSR matrix of shape (n, n_features). The features of rows ``x~ = [x, 1]``
    are clipped to the norm ``max_row_norm``; a row whose norm overflows contributes nothing.
    """

    def __init__(
        self, X: Any, target: np.ndarray, loss: Loss, *, max_row_norm: float, **options: Any
    ) -> None:
        super().__init__(X, target, **options)
        rows = shortened(X, math.sqrt(max_row_norm**2 - bool(self._fit_intercept)))
        self._rows, self._loss = self._with_intercept(rows), loss
        self._lipschitz = joint_lipschitz(loss, self._n_outputs) * max_row_norm
        self._smoothness = loss.curvature * max_row_norm**2
        self._known = b"", np.empty(0)

    def minimizer(
        self, penalty: float, tolerance: float, n_samples: int, tilt: np.ndarray
    ) -> np.ndarray:
        """Return coefficients within ``tolerance / penalty`` of the exact minimiser.

        The exact gradient there is at most ``tolerance``, for up to ``n_samples`` records. Raises
        a RuntimeError if no such coefficients were found: nothing may be released then.

        Newton's method from zero, damped by `damped_step`, converges for all data in exact
        arithmetic, because the Hessian is bounded on both sides. How many steps it takes depends on
        the data; that a public number is enough in floating point is tested, not proved.
        """
        tilt = tilt.ravel()
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
            "max_row_norm."
        )

    def last_iterate(self, n_samples: int, *, step: float, n_iter: int, alpha: float) -> np.ndarray:
        """Return the end of `n_iter` gradient steps from zero, on the sum over `n_samples`."""
        coef = np.zeros(math.prod(self.coef_shape))
        with one_blas_thread():
            for _ in range(n_iter):
                coef = coef - step * (self.gradient_sum(coef) / n_samples + alpha * coef)
        return coef.reshape(self.coef_shape)

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
        return self._moment(self._weight[:, None] * self._slopes(coef)).ravel()

    def gradient(self, coef: np.ndarray, penalty: float, tilt: Any = 0.0) -> np.ndarray:
        """Return the gradient of the minimised function, flat."""
        return self.gradient_sum(coef) + penalty * coef + tilt

    def hessian_product(self, coef: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the Hessian of the sum of the losses times a direction, flat."""
        moved = self._rows @ direction.reshape(self.coef_shape)
        return self._moment(self._weight[:, None] * (self._curvatures(coef) * moved)).ravel()

    def hessian(self, coef: np.ndarray) -> np.ndarray:
        """Return the Hessian of the sum of the losses, a square matrix."""
        n_columns, n_outputs = self.coef_shape
        curvatures = self._weight[:, None] * self._curvatures(coef)
        blocks = np.zeros((n_columns, n_outputs, n_columns, n_outputs))
        for k in range(n_outputs):
            blocks[:, k, :, k] = self._second_moment(curvatures[:, [k]])
        return blocks.reshape(n_columns * n_outputs, -1)

    def _slopes(self, coef: np.ndarray) -> np.ndarray:
        """Return the derivative of each row's loss in its scores; the last ones are kept."""
        if self._known[0] != coef.tobytes():
            scores = self._rows @ coef.reshape(self.coef_shape)
            scores = scores[:, 0] if self._n_outputs == 1 else scores
            slopes = self._loss.derivative(scores, self._target).reshape(-1, self._n_outputs)
            self._known = coef.tobytes(), slopes
        return self._known[1]

    def _curvatures(self, coef: np.ndarray) -> np.ndarray:
        """Return the second derivative of each row's margin losses in their scores."""
        slopes = np.abs(self._slopes(coef))
        if isinstance(self._loss, Logistic):
            return slopes * (1 - slopes)
        return self._loss.curvature * ((slopes != 0) & (slopes != 1))

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
    gradient: Callable, coef: np.ndarray, slope: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the end of a step that decreases a convex function, and the gradient there.

    ``slope`` is the ``gradient`` at ``coef``; the step is halved until its end is low enough.

    A convex function changes along a step by at most the mean of the slopes in its middle and at
    its end. Armijo's rule is applied to this bound: differences of function values drown in
    rounding errors much earlier. If the rule fails, the end with the smallest gradient is taken.
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


def shortened(X: Any, feature_bound: float) -> Any:
    """Return rows in double precision, clipped to a norm; a null record becomes zero."""
    # A hair less, so that rounding does not lengthen rows.
    bound = feature_bound * (1 - 4 * (X.shape[1] + 8) * UNIT_ROUNDOFF)
    X = (without_duplicates(X) if sparse.issparse(X) else X).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factors = np.minimum(1.0, bound / row_norms(X))[:, None]
    return sparse.csr_array(X.multiply(factors)) if sparse.issparse(X) else X * factors
