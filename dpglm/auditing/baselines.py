"""Canaries for the published competitors, each with what its own design says of a canary."""

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from dpglm.auditing.canaries import claimed_mu, coin_flips, contained, prepared
from dpglm.auditing.statistics import CanaryScores
from dpglm.baselines.majority import CountPlan
from dpglm.baselines.newton import NewtonPlan
from dpglm.baselines.perturbation import PerturbationPlan
from dpglm.losses import Loss

__all__ = ["BASELINE_PLANS", "baseline_scores"]

BASELINE_PLANS = (PerturbationPlan, NewtonPlan, CountPlan)
_QUADRATURE_NODES = 61
_BISECTIONS = 100


def baseline_scores(
    estimator: Any,
    *,
    n_canaries: int = 500,
    container: str = "sparse",
    random_state: Any = None,
) -> CanaryScores:
    """Fit a baseline once on canaries, and score each of them.

    Parameters
    ----------
    estimator : estimator
        One that perturbs a minimiser or its objective, double-noise Newton, or private counts.
        Cloned; intercept and weights of classes are switched off, there are two classes, and
        Newton makes a single step.
    n_canaries : int, default=500
        There, or rows of zeros, under every relation.
    container : {"dense", "sparse"}, default="sparse"
    random_state : int, RandomState instance or None, default=None
        Of the coin flips.

    Returns
    -------
    CanaryScores

    Notes
    -----
    On its own axis and without an intercept each canary has a problem of its own. A minimiser w
    solves ``penalty w + b + R l'(R w) = 0`` with the tilt b: the score ``penalty w / std`` is
    standard normal without the canary, and has a mean and a variance that follow by quadrature over
    b with it. The first direction of Newton is ``A^-1 g`` with a diagonal A that is known. Counts
    have one class for each canary, and one more for those that are not there.
    """
    coins = coin_flips(n_canaries, random_state)
    estimator = prepared(
        estimator, classes=[0, 1], class_weight=None, max_iter=1, step=1.0, alpha=estimator.alpha
    )
    plan = estimator.plan(n_canaries, n_canaries)
    if isinstance(plan, CountPlan):
        return _count_scores(estimator, coins)
    row_norm = plan.facts.row_bound
    if isinstance(plan, NewtonPlan):
        estimator.set_params(alpha=0.0)
        row_norm = max(8 * plan.clip, plan.row_bound)
    y = np.ones(n_canaries, dtype=int)
    estimator.fit(*contained(row_norm * coins, y, container))
    if isinstance(plan, NewtonPlan):
        return _newton_scores(estimator, plan, coins)
    return _minimizer_scores(estimator, plan, coins)


def _minimizer_scores(estimator: Any, plan: PerturbationPlan, coins: np.ndarray) -> CanaryScores:
    trace, penalty = estimator.trace_, plan.penalty
    output_std = penalty * trace.output_std
    std = math.hypot(trace.tilt_std, output_std)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
    weights = weights / weights.sum()
    moved = penalty * _minimizers(
        estimator._loss(2), plan.bounds.row_bound, penalty, trace.tilt_std * nodes
    )
    mean = float(weights @ moved)
    variance = float(weights @ (moved - mean) ** 2) + output_std**2
    shift = mean / std
    return CanaryScores(
        scores=penalty * estimator.coef_[0] / std,
        present=coins,
        shift=shift,
        mu=claimed_mu(trace.events, float(norm.sf(shift / 2))),
        excess_variance=variance / std**2 - 1,
    )


def _minimizers(loss: Loss, row_norm: float, penalty: float, tilts: np.ndarray) -> np.ndarray:
    """Return the minimisers of one record's problem for several tilts, by bisection."""
    reach = (row_norm * loss.lipschitz + np.abs(tilts).max()) / penalty
    low, high = np.full(len(tilts), -reach), np.full(len(tilts), reach)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = row_norm * loss.derivative(row_norm * middle, np.ones(len(tilts)))
        falling = penalty * middle + tilts + slope < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return (low + high) / 2


def _newton_scores(estimator: Any, plan: NewtonPlan, coins: np.ndarray) -> CanaryScores:
    trace, n_samples = estimator.trace_, plan.facts.n_samples
    gradient_std, direction_std = trace.gradient_noise_std[0], trace.direction_noise_std[0]
    # n times the curvature along an axis, without its canary and with it.
    absent = n_samples * plan.ridge
    present = absent + plan.facts.curvature * plan.row_bound**2
    std = math.hypot(gradient_std / absent, direction_std)
    shift = plan.clip / present / std
    return CanaryScores(
        scores=estimator.coef_[0] / std,
        present=coins,
        shift=shift,
        mu=claimed_mu(trace.events, float(norm.sf(shift / 2))),
        excess_variance=math.hypot(gradient_std / present, direction_std) ** 2 / std**2 - 1,
    )


def _count_scores(estimator: Any, coins: np.ndarray) -> CanaryScores:
    nowhere = len(coins)
    estimator.set_params(classes=np.arange(nowhere + 1))
    y = np.where(coins, np.arange(nowhere), nowhere)
    estimator.fit(np.zeros((len(coins), 1)), y)
    std = estimator.plan(len(coins), 1, nowhere + 1).mechanism.noise_std(nowhere + 1)
    return CanaryScores(
        scores=estimator.trace_.counts[:nowhere] / std,
        present=coins,
        shift=1 / std,
        mu=claimed_mu(estimator.trace_.events, 0.5),
    )
