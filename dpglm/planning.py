"""Planning a run before any data are touched: how many iterations are worth their noise."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from dpglm.schedules import PublicFacts

__all__ = ["excess_loss_bound", "optimal_n_iter", "public_constants", "saturation_n_iter"]


def public_constants(
    facts: PublicFacts, *, row_bound: float | None = None, gap: float | None = None
) -> tuple[float, float]:
    """Condition number and noise-to-gap ratio of Hong, Wang & Zhou (2022), from public facts.

    Parameters
    ----------
    facts : PublicFacts
        With alpha, curvature and mu, relative to the clip: half the budget's mu under
        ``"replace_one"``. ``facts.clip`` bounds the gradients where it is known.
    row_bound : float, optional
        Largest L2 norm of a row; by default that of the facts.
    gap : float, optional
        Bound on the objective at zero less its minimum; by default log(K), for K classes.

    Returns
    -------
    kappa, noise_to_gap : float
        ``kappa = M / alpha`` with ``M = curvature * row_bound^2 + alpha``, and
        ``d C^2 / (2 mu^2 M n^2 gap)`` with clip C and d released values.

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, alpha=1e-3, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> kappa, noise_to_gap = public_constants(facts)
    >>> print(f"{kappa:.0f} {noise_to_gap:.2e}")
    251 2.08e-06
    """
    kappa = facts.condition_number(row_bound)
    gap = math.log(max(2, facts.n_outputs)) if gap is None else gap
    noise = _noise_per_root_iteration(facts, row_bound) ** 2
    return kappa, noise / (2 * kappa * facts.alpha * gap)


def optimal_n_iter(kappa: float, noise_to_gap: float, *, dynamic: bool = True) -> int:
    """Number of iterations that minimises the excess risk bound of Hong, Wang & Zhou (2022).

    Parameters
    ----------
    kappa, noise_to_gap : float
        From `public_constants`.
    dynamic : bool, default=True
        For `DynamicNoise`; otherwise for constant noise.

    Returns
    -------
    int
        At least 1.

    Notes
    -----
    With gamma = 1 - 1/kappa and a = noise_to_gap the bound, relative to the gap, is
    ``gamma^T + a ((1 - gamma^(T/2)) / (1 - gamma^(1/2)))^2`` for dynamic noise and
    ``gamma^T + kappa a T (1 - gamma^T)`` for constant noise. Both have a single minimum in T.

    Examples
    --------
    >>> optimal_n_iter(100, 1e-6), optimal_n_iter(100, 1e-6, dynamic=False)
    (649, 455)
    """
    if not 1 <= kappa < math.inf:
        raise ValueError(f"kappa={kappa!r} must be a finite number, 1 or more.")
    if not 0 < noise_to_gap < math.inf:
        raise ValueError(f"noise_to_gap={noise_to_gap!r} must be positive and finite.")
    if kappa == 1:
        return 1
    log_gamma = math.log1p(-1 / kappa)
    gap = -math.expm1(log_gamma / 2)
    cost = kappa * noise_to_gap

    def dynamic_bound(t: int) -> float:
        return math.exp(log_gamma * t) + noise_to_gap * (math.expm1(log_gamma * t / 2) / gap) ** 2

    def constant_bound(t: int) -> float:
        return math.exp(log_gamma * t) - cost * t * math.expm1(log_gamma * t)

    def constant_slope(t: float) -> float:
        decayed = log_gamma * math.exp(log_gamma * t)
        return decayed * (1 - cost * t) - cost * math.expm1(log_gamma * t)

    if dynamic:
        bound, optimum = dynamic_bound, -2 * math.log1p(gap**2 / noise_to_gap) / log_gamma
    else:
        # From a cost of 1 on the first iteration is one too many already.
        optimum = _root_above_1(constant_slope, 1 / cost)
        bound = constant_bound
    return min(max(1, math.floor(optimum)), max(1, math.ceil(optimum)), key=bound)


def _root_above_1(rising: Callable[[float], float], high: float) -> float:
    """Return where a function turns positive between 1 and `high`, 1 if that is before."""
    if high <= 1 or rising(1.0) >= 0:
        return 1.0
    return math.exp(brentq(lambda log_t: rising(math.exp(log_t)), 0.0, math.log(high)))


def saturation_n_iter(
    facts: PublicFacts, *, distance: float = 1.0, row_bound: float | None = None
) -> int:
    """Number of iterations beyond which noise, not descent, limits noisy gradient descent.

    Parameters
    ----------
    facts : PublicFacts
        As for `public_constants`, without need of alpha.
    distance : float, default=1.0
        Guess of the distance B from the start, zero, to the optimum.
    row_bound : float, optional
        Largest L2 norm of a row; by default that of the facts.

    Returns
    -------
    int
        At least 1.

    Notes
    -----
    `excess_loss_bound` with the steps of `LectureStep` and the average of all iterates. For a
    smooth loss it falls until ``T = n beta B mu / (C sqrt(2 d))``, where the two terms of the step
    agree, and is constant from there on. For a hinge it falls for ever, but no lower than the value
    without the descent's share, and at ``T = (n mu L / C)^2 / d`` the shares are equal. That is
    also where they are for a strongly convex objective with steps of ``2 / (alpha (t + 1))``.

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> saturation_n_iter(facts)
    208
    """
    noise = _noise_per_root_iteration(facts, row_bound)
    if facts.curvature == math.inf:
        return max(1, math.ceil((_lipschitz(facts, row_bound) / noise) ** 2))
    return max(1, math.ceil(facts.smoothness(row_bound) * distance / (math.sqrt(2) * noise)))


def excess_loss_bound(
    facts: PublicFacts, n_iter: int, *, distance: float = 1.0, row_bound: float | None = None
) -> float:
    """Bound on the mean loss above its minimum after so many iterations of `LectureStep`.

    Parameters
    ----------
    facts : PublicFacts
        As for `saturation_n_iter`.
    n_iter : int
    distance : float, default=1.0
    row_bound : float, optional

    Returns
    -------
    float
        Of the average of all iterates, in expectation, while no gradient is clipped.

    Notes
    -----
    The noise of T iterations has the standard deviation ``s = C sqrt(T) / (mu n)`` in each of d
    coordinates of the mean gradient. Smooth loss, step eta: ``B^2/(2 eta T) + eta d s^2``. Hinge:
    ``B sqrt((L^2 + d s^2) / T)``, L the row bound or the clip if that is smaller (compare Bubeck
    2015, Theorems 6.3 and 3.2).

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> [round(excess_loss_bound(facts, n), 5) for n in (10, 100, 208, 500)]
    [0.01253, 0.00154, 0.0012, 0.0012]
    """
    squared_noise = n_iter * _noise_per_root_iteration(facts, row_bound) ** 2
    if facts.curvature == math.inf:
        slope = math.sqrt(_lipschitz(facts, row_bound) ** 2 + squared_noise)
        return distance * slope / math.sqrt(n_iter)
    quietest = distance / math.sqrt(2 * n_iter * squared_noise)
    step = min(1 / facts.smoothness(row_bound), quietest)
    return distance**2 / (2 * step * n_iter) + step * squared_noise


def _clip(facts: PublicFacts, row_bound: float | None) -> float:
    if facts.clip is not None:
        return float(np.max(facts.clip))
    clip = facts.row_bound if row_bound is None else row_bound
    if clip is None or not 0 < clip < math.inf:
        raise ValueError(f"row_bound={clip!r} must be positive and finite where no clip is given.")
    return clip


def _lipschitz(facts: PublicFacts, row_bound: float | None) -> float:
    row_bound = facts.row_bound if row_bound is None else row_bound
    return _clip(facts, row_bound) if row_bound is None else min(_clip(facts, row_bound), row_bound)


def _noise_per_root_iteration(facts: PublicFacts, row_bound: float | None) -> float:
    """Norm of the noise on the mean gradient, over the square root of the number of iterations."""
    if facts.mu is None or not 0 < facts.mu < math.inf:
        raise ValueError(f"mu={facts.mu!r} must be positive and finite.")
    return math.sqrt(facts.n_released) * _clip(facts, row_bound) / (facts.mu * facts.n_samples)
