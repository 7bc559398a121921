"""The joint cost of releases: their epsilon at a delta, by whichever bound is the smallest.

The end of the file is what dp-accounting, which is optional, knows of events.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain, combinations_with_replacement
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dpglm.exceptions import require
from dpglm.privacy.events import (
    Event,
    GaussianEvent,
    ObjectivePerturbationEvent,
    ParallelEvent,
    PureEvent,
    Runs,
    SampledGaussianEvent,
    composed_mu,
    composed_rho,
    counted,
    have_rho,
    zcdp_delta,
    zcdp_epsilon,
)
from dpglm.privacy.gaussian import Relation, gdp_delta, gdp_epsilon

# Losses are rounded up to multiples of an interval, which adds to the variance of each at most a
# quarter of the interval's square. This part of their standard deviation changes epsilon by 1e-5.
_PART_OF_STD = 0.01
_COARSEST = 0.1
_WIDEST, _NARROWEST = 1e-3, 1e-8  # speed only
_POINTS, _POINTS_PER_RELEASE, _MOST_POINTS = 1e5, 40, 1e6  # speed only
_MOST_CASES = 64  # speed only


def composed_delta(events: Runs, epsilon: float, distance: int = 1) -> float:
    """Return the least known delta of the whole at ``epsilon``, for data sets at a distance.

    See `composed_epsilon` for a distance of k records. There delta is also at most ``delta_1(e / k)
    (exp(e) - 1) / (exp(e / k) - 1)``.
    """
    if unprotected(events):
        return 1.0
    first, *worlds = _of_each_record(events)
    if worlds and distance == 1:
        return max(composed_delta(runs, epsilon) for runs in (first, *worlds))
    events = events if worlds else first
    pure, others = pure_part(events)
    if 0 < distance * pure <= epsilon:
        added = composed_delta(others, epsilon - distance * pure, distance)
        return min(added, _composed_delta(events, epsilon, distance)) if added else 0.0
    return _composed_delta(events, epsilon, distance)


def pure_part(events: Runs) -> tuple[float, Runs]:
    """Return the summed epsilons of pure releases, and the others.

    An (epsilon_1, 0)-private release and an (epsilon_2, delta)-private one are together
    (epsilon_1 + epsilon_2, delta)-private: less than by their trade-offs if epsilon_1 is small.
    """
    pure = math.fsum(count * event.epsilon for event, count in events if event.is_pure)
    return pure, tuple(run for run in events if not run[0].is_pure)


def _composed_delta(events: Runs, epsilon: float, distance: int) -> float:
    offset, unshifted = _simplified(events)
    closed_form, by_steps = have_rho(unshifted), 1.0
    if distance > 1:
        log_delta = math.log(max(composed_delta(events, epsilon / distance), 1e-300))
        by_steps = math.exp(min(0.0, log_delta + _log_steps(epsilon / distance, distance)))
        if offset or not closed_form:
            return by_steps
    events, epsilon = unshifted, epsilon - offset
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * composed_delta(events, -epsilon)
    if closed_form:
        delta = min(by_steps, zcdp_delta(distance**2 * composed_rho(events), epsilon))
        if all(event.mu is not None for event, _ in events):
            delta = min(delta, gdp_delta(distance * composed_mu(events), epsilon))
        return delta
    numerical, concentrated = _divided(events)
    if concentrated:
        return _inverse(lambda delta: composed_epsilon(events, delta), epsilon)
    delta = float(composed_pld(numerical).get_delta_for_epsilon(epsilon))
    return min(1.0, delta + numerical_error(numerical))


def composed_epsilon(
    events: Runs, delta: float, distance: int = 1, *, coarseness: float = 1
) -> float:
    """Return the least known epsilon of the whole at ``delta``, for data sets at a distance.

    Distributions are computed `coarseness` times more coarsely: sooner, and somewhat larger.

    At a distance of k records, mu is k times as large (Dong, Roth & Su 2022, Theorem 3). Rho
    is k^2 times as large (Bun & Steinke 2016, Proposition 1.9). Otherwise ``delta_k(k e) <=
    delta_1(e) (exp(k e) - 1) / (exp(e) - 1)``, the sum of ``exp(j e)`` over k steps from record to
    record. Epsilons of events with a zero-concentrated cost alone are added, at half of delta.
    """
    if unprotected(events):
        return math.inf
    first, *worlds = _of_each_record(events)
    if worlds and distance == 1:
        return max(composed_epsilon(r, delta, coarseness=coarseness) for r in (first, *worlds))
    events = events if worlds else first
    whole = _composed_epsilon(events, delta, distance, coarseness=coarseness)
    pure, others = pure_part(events)
    if not pure:
        return whole
    rest = composed_epsilon(others, delta, distance, coarseness=coarseness)
    return min(whole, distance * pure + rest)


def _composed_epsilon(events: Runs, delta: float, distance: int, *, coarseness: float) -> float:
    offset, unshifted = _simplified(events)
    closed_form = have_rho(unshifted)
    if distance > 1 and (offset or not closed_form):
        return _group_epsilon(lambda e: composed_delta(events, e), delta, distance)
    if closed_form:
        epsilon = zcdp_epsilon(distance**2 * composed_rho(unshifted), delta)
        if all(event.mu is not None for event, _ in unshifted):
            epsilon = min(epsilon, gdp_epsilon(distance * composed_mu(unshifted), delta))
        return offset + epsilon
    numerical, concentrated = _divided(unshifted)
    part = delta / 2 if concentrated else delta
    left = part - numerical_error(numerical)
    if left <= 0:
        return math.inf
    pld = composed_pld(numerical, coarseness * pld_interval(numerical))
    epsilon = float(pld.get_epsilon_for_delta(left))
    return offset + (epsilon + zcdp_epsilon(composed_rho(concentrated), part))


def _of_each_record(events: Runs) -> list[Runs]:
    """Return all that may be about one record, which is in one part of each parallel event.

    Parts with a mu are separate cases only if cases are few: a part may have a pure release, which
    may count by its epsilon. Otherwise the largest mu holds for all of them.
    """
    parallel = [run for run in events if isinstance(run[0], ParallelEvent)]
    few = math.prod(math.comb(len(e.parts) + n - 1, n) for e, n in parallel) <= _MOST_CASES
    for event, count in parallel:
        if event.mu is None or few:
            at = events.index((event, count))
            taken = combinations_with_replacement(dict.fromkeys(event.parts), count)
            worlds = ((*events[:at], *chain(*parts), *events[at + 1 :]) for parts in taken)
            return [runs for world in worlds for runs in _of_each_record(world)]
    return [events]


def _simplified(events: Runs) -> tuple[float, Runs]:
    """Return the sum of all offsets, and the events that have the rest of the cost.

    Mini-batches count as full batches, which cost more, where a distribution would be too wide.
    """
    if pld_interval(events) > _COARSEST:
        events = [(event.full_batch, count) for event, count in events]
    tilted = [run for run in events if isinstance(run[0], ObjectivePerturbationEvent)]
    offset = math.fsum(count * event.offset for event, count in tilted)
    return offset, tuple((e.unshifted if (e, n) in tilted else e, n) for e, n in events)


def _divided(events: Runs) -> tuple[Runs, Runs]:
    """Return the events with a privacy loss distribution, and those with a rho alone."""
    concentrated = tuple(run for run in events if run[0].mu is None and run[0].rho is not None)
    return tuple(run for run in events if run not in concentrated), concentrated


def numerical_error(events: Runs) -> float:
    """Return the most by which numerical composition understates delta: ``4 T 2^-53``, T events.

    The power T of a discrete Fourier transform multiplies each coefficient by 1 + e, with e of
    about T units of roundoff. At sampling rate 1 the known error is at most a third of ``T 2^-53``.
    """
    return 4 * sum(count for _, count in events) * 2.0**-53


def _inverse(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Return a delta, up to 1, at which a falling function of delta is at most `epsilon`."""
    low, high = -690.0, 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_at(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def _log_steps(epsilon: float, distance: int) -> float:
    """Return the logarithm of ``sum_j exp(j epsilon)`` over j below the distance."""
    steps = math.expm1(-distance * epsilon) / math.expm1(-epsilon) if epsilon else distance
    return (distance - 1) * epsilon + math.log(steps)


def _group_epsilon(delta_at: Callable[[float], float], delta: float, distance: int) -> float:
    """Return an epsilon at a distance in records, from the deltas at a distance of one."""

    def excess(epsilon: float) -> float:
        log_factor = _log_steps(epsilon, distance)
        return math.log(max(delta_at(epsilon), 1e-300)) + log_factor - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    # Begin with small epsilons: numerical errors bound delta below, so large ones may not suffice.
    high = 1e-3
    while excess(high) > 0:
        high *= 2
        if high > 1e4:
            return math.inf
    return distance * (brentq(excess, 0.0, high, xtol=1e-9) + 1e-9)


def unprotected(events: Runs) -> bool:
    """Return whether something was released without noise."""
    return any(math.isinf(event.loss_variance) for event, _ in events)


def composed_pld(events: Runs, interval: float | None = None) -> Any:
    """Return dp_accounting's privacy loss distribution of the whole."""
    require_dp_accounting()
    merged = tuple(sorted(counted(events).items(), key=repr))
    return _cached_pld(merged, pld_interval(merged) if interval is None else interval)


@lru_cache(maxsize=16)
def _cached_pld(events: tuple[tuple[Event, int], ...], interval: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import identity

    total = identity(interval)
    for event, count in events:
        total = total.compose(loss_distribution(event, interval).self_compose(count))
    return total


def pld_interval(events: Runs) -> float:
    """Return a spacing of losses that is fine for their sum, and not too fine for each of them.

    The epsilon of the whole is then about 1e-5 above its exact value, relatively.
    """
    variance = math.fsum(event.loss_variance * count for event, count in events)
    whole = 12 * math.sqrt(variance) + variance / 2  # speed only
    reach = max([whole, *(event.loss_reach for event, _ in events)])
    n_releases = max(1, sum(count for _, count in events))
    fine = _PART_OF_STD * math.sqrt(variance / n_releases)
    # Few releases from small batches: nearly all of the mass is near zero, and is rounded little.
    most_points = min(max(_POINTS, _POINTS_PER_RELEASE * n_releases), _MOST_POINTS)
    return max(min(max(fine, _NARROWEST), _WIDEST), reach / most_points)


def require_dp_accounting() -> Any:
    """Return dp_accounting, or raise an ImportError that names the extra if it is missing."""
    what = "The accounting of mini-batches (sampling_rate below 1), or a check of a ledger,"
    return require("dp_accounting", "accounting", what)


def dp_event(event: Event, relation: Relation) -> Any:
    """Return the dp_accounting event; only its RDP accountant knows zero-concentrated events.

    dp_accounting divides a standard deviation by the contribution of ONE record, and doubles the
    sensitivity itself under replace-one. Our noise multipliers divide by the sensitivity.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, ZCDpEvent

    if isinstance(event, GaussianEvent):
        return GaussianDpEvent(event.noise_multiplier * relation.sensitivity_factor)
    if isinstance(event, SampledGaussianEvent):
        return PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.std))
    if isinstance(event, ObjectivePerturbationEvent):
        return ZCDpEvent(event.unshifted.rho, event.offset)
    if event.mu is not None and not isinstance(event, PureEvent):
        return GaussianDpEvent(relation.sensitivity_factor / event.mu)
    if event.known_rho is None:
        raise ValueError("dp_accounting has no event for parts with neither a mu nor a rho.")
    return ZCDpEvent(event.known_rho)


def loss_distribution(event: Event, interval: float) -> Any:
    """Return dp_accounting's privacy loss distribution of an event, losses rounded up."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    gaussian = partial(pld.from_gaussian_mechanism, value_discretization_interval=interval)
    if isinstance(event, GaussianEvent):
        return gaussian(event.noise_multiplier)
    if isinstance(event, SampledGaussianEvent):
        return _sampled_distribution(event, interval)
    if event.is_pure:
        parameters = common.DifferentialPrivacyParameters(event.epsilon, 0.0)
        return pld.from_privacy_parameters(parameters, interval)
    if event.mu is None:
        raise ValueError(f"{event!r} has no privacy loss distribution, as it has no mu.")
    return gaussian(1 / event.mu)


def _sampled_distribution(event: SampledGaussianEvent, interval: float) -> Any:
    """Return dp_accounting's distribution of a batch, with its inverse losses all at once.

    ``from_gaussian_mechanism`` has them one by one, which takes a second for 100,000 losses.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms

    kinds, q, variance = mechanisms.AdjacencyType, event.sampling_rate, event.std**2
    log_rest = np.log1p(-q) if q < 1 else -math.inf

    def of_full_batch(losses: np.ndarray) -> np.ndarray:
        """Return ``log(1 + (exp(losses) - 1) / q)``."""
        grown = np.maximum(-np.expm1(log_rest - losses), 0.0)
        return losses + np.log(grown) - math.log(q)

    def inverse(losses: np.ndarray, kind: Any) -> np.ndarray:
        if kind == kinds.REMOVE:
            return -0.5 - variance * of_full_batch(losses)
        if kind == kinds.ADD:
            return 0.5 + variance * of_full_batch(-losses)
        halves = np.abs(losses) / 2
        log_sinh = halves + np.log(-np.expm1(-2 * halves) / 2)
        log_sinh += 0.5 / variance + log_rest - math.log(q)
        arcsinh = np.logaddexp(log_sinh, np.logaddexp(0.0, 2 * log_sinh) / 2)
        return -variance * (np.sign(losses) * arcsinh + losses / 2)

    found = []
    for kind in (kinds.REMOVE, kinds.ADD) if event.sampling == "poisson" else (kinds.REPLACE,):
        loss = mechanisms.GaussianPrivacyLoss(event.std, sampling_prob=q, adjacency_type=kind)
        ends = loss.connect_dots_bounds()
        low = math.floor(ends.epsilon_lower / interval)
        high = math.ceil(ends.epsilon_upper / interval)
        losses = interval * np.arange(low, high + 1)
        with np.errstate(all="ignore"):
            at = inverse(losses, kind)
            deltas = loss.mu_upper_cdf(at) - np.exp(losses + loss.mu_lower_log_cdf(at))
        connect = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap
        found.append(connect(interval, low, high, np.clip(deltas, 0.0, 1.0)))
    return pld.PrivacyLossDistribution(*found)
