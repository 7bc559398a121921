"""Losses of a linear model, as functions of its scores.

Conventions
-----------
- One output: ``scores`` has shape (n,) and ``target`` is -1.0 or +1.0; the margin of a row is
  ``target * score``.
- A target of numbers has one output, and ``target`` is the number of each row.
- K outputs: ``scores`` has shape (n, K) and ``target`` is the index of the class, shape (n,).
  `Softmax` is the cross entropy. Margin losses are summed one-vs-rest, where the margin of output k
  is +score for the row's own class and -score for the others.
- ``value`` returns one loss per row and ``derivative`` its derivative with respect to the scores,
  with the shape of ``scores``. The gradient of row i in the coefficients is the outer product of
  the row and ``derivative[i]``.
- ``curvature`` is the largest second derivative in the scores; for softmax, the largest eigenvalue
  of the Hessian. A row x then has a gradient that is ``curvature * ||x||^2``-Lipschitz.
- ``lipschitz`` is the largest norm of the derivative for one output (for softmax, jointly).
- ``code`` names the loss to the compiled kernels. The set is closed: a custom loss could void the
  privacy guarantee.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpglm.checks import check_number

# Scores of the log link count as at most this in size: a rate is within a factor of 1e13 of 1.
LARGEST_EXPONENT = 30.0


class _MarginLoss:
    """A decreasing convex function of the margin with a slope in [-1, 0]."""

    lipschitz: ClassVar[float] = 1.0

    def value(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the loss of each row, shape (n,)."""
        losses = self._of_margin(_signs(scores, target) * scores)
        return losses if losses.ndim == 1 else losses.sum(axis=1)

    def derivative(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the derivative of each row's loss in its scores, with the shape of `scores`."""
        signs = _signs(scores, target)
        return signs * self._slope(signs * scores)

    def project(self, gradient: np.ndarray) -> np.ndarray:
        """Return the released gradient unchanged: it obeys no known linear constraint."""
        return gradient


@dataclass(frozen=True)
class Logistic(_MarginLoss):
    """Logistic loss, ``log(1 + exp(-margin))``."""

    code: ClassVar[int] = 0
    curvature: ClassVar[float] = 0.25

    def _of_margin(self, margin):
        return np.logaddexp(0.0, -margin)

    def _slope(self, margin):
        decay = np.exp(-np.abs(margin))
        return -np.where(margin >= 0, decay, 1.0) / (1.0 + decay)

    def second_derivative(self, scores: np.ndarray) -> np.ndarray:
        """Return the second derivative of each row's loss in its score, shape (n,)."""
        decay = np.exp(-np.abs(scores))
        return decay / (1.0 + decay) ** 2


@dataclass(frozen=True)
class SmoothedHinge(_MarginLoss):
    """Hinge loss with its corner replaced by a parabola (the Huber SVM loss).

    With h the `half_width`: ``(1 + h - margin)^2 / (4 h)`` for ``|1 - margin| <= h``, and the hinge
    loss for other margins. It is from Chaudhuri, Monteleoni and Sarwate, "Differentially private
    empirical risk minimization", JMLR 2011, Section 3.4.2.
    """

    half_width: float = 0.5
    code: ClassVar[int] = 1

    def __post_init__(self):
        advice = "use Hinge() for the loss without smoothing"
        limits = {"at_least": 1e-100, "at_most": 1e100, "advice": advice}
        half_width = check_number("half_width", self.half_width, **limits)
        object.__setattr__(self, "half_width", half_width)

    @property
    def curvature(self) -> float:
        """Largest second derivative, ``1 / (2 half_width)``."""
        return 0.5 / self.half_width

    def _of_margin(self, margin):
        h = self.half_width
        shortfall = np.clip(1.0 + h - margin, 0.0, 2.0 * h)
        return shortfall * (shortfall / (4.0 * h)) + np.maximum(1.0 - h - margin, 0.0)

    def _slope(self, margin):
        return -np.clip(0.5 + (1.0 - margin) * self.curvature, 0.0, 1.0)


@dataclass(frozen=True)
class Hinge(_MarginLoss):
    """Hinge loss, ``max(0, 1 - margin)``, with derivative 0 at the corner."""

    code: ClassVar[int] = 2
    curvature: ClassVar[float] = math.inf

    def _of_margin(self, margin):
        return np.maximum(1.0 - margin, 0.0)

    def _slope(self, margin):
        return np.where(margin < 1.0, -1.0, 0.0)


@dataclass(frozen=True)
class Softmax:
    """Cross entropy of the softmax of K scores."""

    code: ClassVar[int] = 3
    curvature: ClassVar[float] = 0.5
    lipschitz: ClassVar[float] = math.sqrt(2.0)

    def value(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the loss of each row, shape (n,)."""
        shifted = scores - scores.max(axis=1, keepdims=True)
        own = np.take_along_axis(shifted, target[:, np.newaxis], axis=1)[:, 0]
        return np.log(np.exp(shifted).sum(axis=1)) - own

    def derivative(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the derivative of each row's loss in its scores, with the shape of `scores`."""
        residual = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual /= residual.sum(axis=1, keepdims=True)
        own = target[:, np.newaxis]
        # minus the sum of the others, because p - 1 cancels when the row is well classified
        np.put_along_axis(residual, own, 0.0, axis=1)
        np.put_along_axis(residual, own, -residual.sum(axis=1, keepdims=True), axis=1)
        return residual

    def project(self, gradient: np.ndarray) -> np.ndarray:
        """Subtract the mean over classes from a released gradient of shape (d, K).

        Every row's gradient sums to zero over the classes, so this changes only the noise: (K-1)/K
        of its variance remains. This is post-processing and costs no privacy.
        """
        return gradient - gradient.mean(axis=1, keepdims=True)


class NumericLoss:
    """A convex loss of a number, whose slope has no bound; a gradient is clipped all the same."""

    lipschitz: ClassVar[float] = math.inf
    curvature: ClassVar[float] = math.inf
    # Second derivatives up to this, in units of the mean one, count in full for intervals.
    counted_curvature: ClassVar[float] = 1.0

    @staticmethod
    def mean(scores: np.ndarray) -> np.ndarray:
        """Return the means of the target at these scores: the inverse of the link."""
        return np.exp(np.clip(scores, -LARGEST_EXPONENT, LARGEST_EXPONENT))


@dataclass(frozen=True)
class Squared(NumericLoss):
    """Half the squared error, ``(score - number)^2 / 2``."""

    code: ClassVar[int] = 4
    curvature: ClassVar[float] = 1.0

    @staticmethod
    def mean(scores: np.ndarray) -> np.ndarray:
        return scores

    def derivative(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        return scores - target

    def second_derivative(self, scores: np.ndarray) -> np.ndarray:
        return np.ones_like(scores)


@dataclass(frozen=True)
class Poisson(NumericLoss):
    """Half the deviance of a Poisson count whose mean is ``exp(score)``, but for a constant."""

    code: ClassVar[int] = 5
    counted_curvature: ClassVar[float] = 4.0

    def derivative(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        return self.mean(scores) - target

    def second_derivative(self, scores: np.ndarray) -> np.ndarray:
        return self.mean(scores)


@dataclass(frozen=True)
class Gamma(NumericLoss):
    """Half the deviance of a gamma variable whose mean is ``exp(score)``, but for a constant."""

    code: ClassVar[int] = 6

    def derivative(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        return 1.0 - target / self.mean(scores)

    def second_derivative(self, scores: np.ndarray) -> np.ndarray:
        return np.ones_like(scores)  # expected, as in Fisher's scoring


Loss = Logistic | SmoothedHinge | Hinge | Softmax | Squared | Poisson | Gamma


def _signs(scores: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the sign of each score in its margin."""
    if scores.ndim == 1:
        return target
    return np.where(np.arange(scores.shape[1]) == target[:, np.newaxis], 1.0, -1.0)


class NamedLossMixin:
    """The loss that the parameter ``loss`` names, ``"logistic"`` unless an estimator stores it."""

    loss = "logistic"
    # The losses to choose from.
    _losses: tuple[str, ...] = ("logistic", "hinge")

    def _loss(self, n_classes: int) -> Loss:
        if self.loss not in self._losses:
            *others, last = map(repr, self._losses)
            raise ValueError(
                f"loss={self.loss!r} is unknown; choose {', '.join(others)} or {last}."
            )
        if self.loss == "logistic":
            return Logistic() if n_classes == 2 else Softmax()
        return Hinge() if self.loss == "hinge" else SmoothedHinge(self.half_width)
