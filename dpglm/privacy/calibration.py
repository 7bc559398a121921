"""Calibration of mini-batch noise: the scale at which a schedule costs a given budget."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np
from scipy.optimize import brentq

from dpglm.privacy.composition import composed_epsilon, numerical_error
from dpglm.privacy.events import Event, SampledGaussianEvent
from dpglm.privacy.gaussian import gdp_mu

MOST_LEVELS = 12
_TOLERANCE = 1e-4
# Tolerance of the logarithm of a number of iterations.
_CLOSE = 1e-6
# The search for the scale rounds losses to intervals five times wider than those of a ledger.
_COARSENESS = 5
# Below this, tails that the distributions cut off (1e-15 for each that is composed) would matter.
_LEAST_DELTA = 1e-13
_MOST_FIRST = 0.999


def calibrated_multipliers(
    shape: np.ndarray,
    sampling_rate: float,
    epsilon: float,
    delta: float,
    first: Sequence[Event] = (),
    sampling: str = "poisson",
) -> np.ndarray:
    """Return the noise multipliers of this shape with which a sampled run costs the budget."""
    levels = coarsened(np.asarray(shape, dtype=np.float64))
    levels = levels / levels.min()
    counts = tuple(sorted(Counter(levels.tolist()).items()))
    log_scale = _log_scale(counts, sampling_rate, epsilon, delta, tuple(first), sampling)
    return math.exp(log_scale) * levels


# A plan and its fit, or the fits of a search over step sizes, ask the same.
@lru_cache(maxsize=64, typed=True)
def _log_scale(
    counts: tuple[tuple[float, int], ...],
    sampling_rate: float,
    epsilon: float,
    delta: float,
    first: tuple[Event, ...],
    sampling: str,
) -> float:
    """Return the least log scale at which counted levels cost the budget, to about 5e-4."""

    def events(log_scale: float) -> tuple[tuple[Event, int], ...]:
        scale = math.exp(log_scale)
        sampled = ((SampledGaussianEvent(sampling_rate, scale * z, sampling), n) for z, n in counts)
        return (*((event, 1) for event in first), *sampled)

    check_batches(sum(n for _, n in counts), sampling_rate, delta, n_first=len(first))
    alone = [(event, 1) for event in first]
    if first and composed_epsilon(alone, delta) > _MOST_FIRST * epsilon:
        raise ValueError(
            f"The releases before the mini-batches cost all of epsilon={epsilon:g}. Lower "
            "budget_fraction, or set preconditioner=None."
        )

    def left(log_scale: float) -> float:
        spent = composed_epsilon(events(log_scale), delta, coarseness=_COARSENESS)
        return -math.log(max(spent, 1e-9) / epsilon)

    # The central limit theorem gives a close first guess: the losses' variance is about mu^2.
    target = 2 * math.log(gdp_mu(epsilon, delta))

    def excess(log_scale: float) -> float:
        sampled = [run for run in events(log_scale) if isinstance(run[0], SampledGaussianEvent)]
        return math.log(math.fsum(n * event.loss_variance for event, n in sampled)) - target

    log_scale = crossing(left, brentq(excess, -40.0, 60.0), _TOLERANCE)
    while composed_epsilon(events(log_scale), delta) > epsilon:
        log_scale += _TOLERANCE
    return log_scale


def check_batches(n_iter: int, sampling_rate: float, delta: float, *, n_first: int) -> None:
    """Refuse mini-batches, after `n_first` releases, whose cost has no meaning or no digits."""
    least = _LEAST_DELTA + 2 * numerical_error([(None, n_first + n_iter)])
    if delta < least:
        raise ValueError(
            f"delta={delta:g} is below {least:.2g}, which is what the numerical accounting of "
            f"{n_first + n_iter} releases resolves; raise delta, or set sampling_rate=1."
        )
    in_a_batch = -math.expm1(n_iter * math.log1p(-sampling_rate))
    if delta >= in_a_batch:
        raise ValueError(
            f"delta={delta:g} is no less than the probability {in_a_batch:.3g} that a record is "
            "ever in a batch. The fit would need no noise: lower delta."
        )


def longest_run(cost: Callable[[int], float], budget: float, guess: float) -> int:
    """Return how many iterations cost no more than the budget, one more being too many."""

    @cache
    def excess(n_iter: int) -> float:
        return math.log(max(cost(n_iter), 1e-9 * budget) / budget)

    def n_iter_of(log_n_iter: float) -> int:
        return max(round(math.exp(log_n_iter)), 1)

    if excess(1) > 0:
        return 0
    n_iter = n_iter_of(crossing(lambda x: excess(n_iter_of(x)), math.log(guess), _CLOSE))
    while excess(n_iter) > 0:
        n_iter -= 1
    while excess(n_iter + 1) <= 0:
        n_iter += 1
    return n_iter


# A plan and its fit ask the same.
@lru_cache(maxsize=64, typed=True)
def coarse_epsilon(events: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return what releases cost, overstated by about 2e-4 of it."""
    return composed_epsilon(events, delta, coarseness=_COARSENESS)


def crossing(excess: Callable[[float], float], guess: float, tolerance: float) -> float:
    """Return where a function turns positive, within the tolerance, searched from a guess."""
    low = high = guess
    step = 0.05  # speed only
    while excess(low) > 0:
        low, high = low - step, low
        step *= 2  # speed only
    while excess(high) < 0:
        low, high = high, high + step  # speed only
        step *= 2  # speed only
    return brentq(excess, low, high, xtol=tolerance)


def coarsened(multipliers: np.ndarray) -> np.ndarray:
    """Return multipliers rounded up to at most `MOST_LEVELS` ones, each the largest of a bin."""
    if len(np.unique(multipliers)) <= MOST_LEVELS:
        return multipliers
    logs = np.log(multipliers)
    width = (logs.max() - logs.min()) / MOST_LEVELS
    bins = np.minimum(((logs - logs.min()) / width).astype(int), MOST_LEVELS - 1)
    largest = np.zeros(MOST_LEVELS)
    np.maximum.at(largest, bins, multipliers)
    return largest[bins]
