"""Planning a run before any data are touched: how many iterations are worth their noise."""

import math

import numpy as np
from scipy.optimize import brentq

from dpglm.schedules import PublicFacts

__all__ = ["optimal_n_iter", "public_constants"]


def public_constants(
    facts: PublicFacts, *, row_bound: float | None = None, gap: float | None = None
) -> tuple[float, float]:
    """Condition number and noise-to-gap ratio of Hong, Wang & Zhou (2022), from public facts.

    Parameters
    ----------
    facts : PublicFacts
        With alpha, curvature and mu; ``facts.clip`` bounds the gradients where it is known.
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
    if facts.mu is None or not 0 < facts.mu < math.inf:
        raise ValueError(f"mu={facts.mu!r} must be positive and finite.")
    kappa = facts.condition_number(row_bound)
    clip = facts.row_bound if row_bound is None else row_bound
    if facts.clip is not None:
        clip = float(np.max(facts.clip))
    gap = math.log(max(2, facts.n_outputs)) if gap is None else gap
    noise = facts.n_released * (clip / (facts.mu * facts.n_samples)) ** 2
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
        bound, optimum = constant_bound, brentq(constant_slope, 0.0, 1 / cost)
    return min(max(1, math.floor(optimum)), max(1, math.ceil(optimum)), key=bound)
