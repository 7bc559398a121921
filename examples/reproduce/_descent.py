"""Many simulated runs of a plan at once, on small problems whose optimum is known exactly.

A problem is a mean loss over a few distinct rows, each of which stands for a share of the records:
its objective and its optimum are the same for every number of records n, and n enters through the
noise alone. Schedules, calibration, momentum and averaging are those of the package.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import root

from dpglm.estimators.plan import PrivacyPlan
from dpglm.losses import Loss


@dataclass(frozen=True, eq=False)
class Problem:
    """``sum_i share_i loss(target_i, x_i @ coef) + alpha / 2 ||coef||^2``, without intercept."""

    X: np.ndarray
    target: np.ndarray
    share: np.ndarray
    loss: Loss
    alpha: float = 0.0

    def value(self, coef: np.ndarray) -> np.ndarray:
        """Objective of each row of ``coef``."""
        scores = coef @ self.X.T
        losses = self.loss.value(scores.ravel(), np.tile(self.target, len(coef)))
        penalty = self.alpha / 2 * np.square(coef).sum(axis=1)
        return losses.reshape(scores.shape) @ self.share + penalty

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Gradient at each row of ``coef``."""
        scores = coef @ self.X.T
        slopes = self.loss.derivative(scores.ravel(), np.tile(self.target, len(coef)))
        return (slopes.reshape(scores.shape) * self.share) @ self.X + self.alpha * coef

    def stationary_point(self) -> np.ndarray:
        """Return where the gradient of a smooth problem vanishes, to rounding error."""
        start = np.zeros(self.X.shape[1])
        return root(lambda coef: self.gradient(coef[None])[0], start, tol=1e-14).x


def descend(
    problem: Problem,
    plan: PrivacyPlan,
    noise: Callable[[int], np.ndarray],
    n_runs: int,
) -> np.ndarray:
    """Return the coefficients that independent runs end with, one run per row.

    ``noise(t)`` is added to the mean gradients of iteration t = 0, 1, ..., one row per run. Rows
    must not be longer than the clip: nothing is clipped here.
    """
    coef = np.zeros((n_runs, problem.X.shape[1]))
    velocity, average = np.zeros_like(coef), np.zeros_like(coef)
    for t in range(plan.n_iter):
        gradient = problem.gradient(coef) + noise(t)
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        coef = coef - plan.step[t] * direction
        average += plan.averaging[t] * coef
    return average


def excess_risk(
    problem: Problem,
    minimum: float,
    plan: PrivacyPlan,
    rng: np.random.Generator,
    n_runs: int,
) -> np.ndarray:
    """Return what each of many private runs of a plan ends above the minimum."""
    shape = n_runs, problem.X.shape[1]
    noise_std = plan.metadata.noise_std / plan.metadata.n_samples
    coef = descend(problem, plan, lambda t: noise_std[t] * rng.standard_normal(shape), n_runs)
    return problem.value(coef) - minimum
