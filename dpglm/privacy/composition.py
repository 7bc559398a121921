"""What events cost together: each way of composing them that they all allow, and the smallest."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from scipy.optimize import brentq

from dpglm.privacy.conversions import gdp_delta, gdp_epsilon, zcdp_delta, zcdp_epsilon
from dpglm.privacy.events import Relation

__all__ = [
    "Event",
    "composed_delta",
    "composed_epsilon",
    "composed_mu",
    "composed_pld",
    "composed_rho",
    "numerical_error",
    "pld_interval",
    "require_dp_accounting",
    "rho_of",
    "unprotected",
]

# Losses are rounded up to multiples of an interval, which adds up to a quarter of its square to the
# variance of each: this part of their standard deviation changes epsilon by about 1e-5.
_PART_OF_STD = 0.01
_WIDEST, _NARROWEST, _COARSEST = 1e-3, 1e-8, 0.1
_MOST_POINTS = 1e6


class Event(Protocol):
    """One release. Each kind of event knows its own cost.

    ``mu`` is the parameter of a Gaussian trade-off and ``rho`` the zero-concentrated privacy that
    it has, or None where that is not known (a rho of None beside a mu is ``mu**2 / 2``);
    ``noise_multiplier`` and the like are relative to the sensitivity under the ledger's relation.
    An event that has neither has a privacy loss distribution, `to_pld`, and also ``loss_variance``,
    the approximate variance of the loss, ``inf`` for a release without noise, and ``loss_reach``,
    about the largest loss that has to be represented; or it has an ``offset``, which it adds to
    every loss of another event, ``unshifted``.
    """

    kind: ClassVar[str]

    @property
    def mu(self) -> float | None: ...

    @property
    def rho(self) -> float | None: ...

    def to_dp_event(self, relation: Relation) -> Any: ...

    def to_pld(self, interval: float) -> Any: ...

    def parameters(self) -> dict[str, float]: ...


Runs = Sequence[tuple[Event, int]]


def composed_mu(events: Runs) -> float:
    """Return the parameter of the Gaussian trade-off of the whole; exact for Gaussian releases.

    Parameters
    ----------
    events : sequence of (Event, int)
        Releases and how many times each.

    Raises
    ------
    ValueError
        If an event has no Gaussian trade-off.
    """
    squares = []
    for event, count in events:
        if event.mu is None:
            raise ValueError(f"mu is undefined: {event!r} has no Gaussian trade-off.")
        squares.append(count * event.mu**2)
    return math.sqrt(math.fsum(squares))


def composed_rho(events: Runs) -> float:
    """Return the zero-concentrated privacy of the whole.

    Raises
    ------
    ValueError
        If that of an event is unknown.
    """
    return math.fsum(count * rho_of(event) for event, count in events)


def rho_of(event: Event) -> float:
    """Return the zero-concentrated privacy of one event, known from its trade-off at least."""
    if event.rho is not None:
        return event.rho
    if event.mu is None:
        raise ValueError(f"rho is undefined: {event!r} has no known zero-concentrated privacy.")
    return event.mu * event.mu / 2


def composed_delta(events: Runs, epsilon: float) -> float:
    """Return the least known delta of the whole at ``epsilon``."""
    if unprotected(events):
        return 1.0
    offset, events = _without_offsets(_resolved(events))
    epsilon -= offset
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * composed_delta(events, -epsilon)
    bounds = []
    if _all_have_mu(events):
        bounds.append(gdp_delta(composed_mu(events), epsilon))
    if _all_have_rho(events):
        bounds.append(zcdp_delta(composed_rho(events), epsilon))
    if not bounds:
        numerical, concentrated = _divided(events)
        bounds.append(
            _pld_delta(numerical, epsilon)
            if not concentrated
            else _inverse(lambda delta: composed_epsilon(events, delta), epsilon)
        )
    return min(bounds)


def composed_epsilon(
    events: Runs, delta: float, distance: int = 1, *, coarseness: float = 1
) -> float:
    """Return the least known epsilon of the whole at ``delta``.

    Parameters
    ----------
    events : sequence of (Event, int)
    delta : float
    distance : {1, 2}
        2 for data sets that are two neighbours apart.
    coarseness : float, default=1
        Distributions are computed so many times more coarsely: sooner, and somewhat larger.

    Notes
    -----
    Twice as far apart, mu doubles and rho quadruples (Dong, Roth & Su 2022, Theorem 3; Bun &
    Steinke 2016, Proposition 1.9). Otherwise ``delta_2(2 e) <= (1 + exp(e)) delta_1(e)``. What has
    only a zero-concentrated cost composes with what has only a privacy loss distribution by adding
    their epsilons, each at half of delta.
    """
    if unprotected(events):
        return math.inf
    offset, unshifted = _without_offsets(_resolved(events))
    if distance == 2 and (offset or not _all_have_rho(unshifted)):
        return _group_epsilon(lambda e: composed_delta(events, e), delta)
    events = unshifted
    bounds = []
    if _all_have_mu(events):
        bounds.append(gdp_epsilon(distance * composed_mu(events), delta))
    if _all_have_rho(events):
        bounds.append(zcdp_epsilon(distance**2 * composed_rho(events), delta))
    if not bounds:
        numerical, concentrated = _divided(events)
        part = delta / 2 if concentrated else delta
        bounds.append(_pld_epsilon(numerical, part, coarseness * pld_interval(numerical)))
        if concentrated:
            bounds[0] += zcdp_epsilon(composed_rho(concentrated), part)
    return offset + min(bounds)


def _all_have_mu(events: Runs) -> bool:
    return all(event.mu is not None for event, _ in events)


def _all_have_rho(events: Runs) -> bool:
    return all(event.mu is not None or event.rho is not None for event, _ in events)


def _without_offsets(events: Runs) -> tuple[float, Runs]:
    """Return what some events add to every privacy loss, and the events without it."""
    offsets = [(getattr(event, "offset", 0.0), count) for event, count in events]
    offset = math.fsum(value * count for value, count in offsets)
    return offset, tuple((getattr(event, "unshifted", event), count) for event, count in events)


def _resolved(events: Runs) -> Runs:
    """Return the events, sampled ones as full batches where a distribution would be too wide.

    Sampling never costs privacy, and so wide a loss protects nobody either way.
    """
    if pld_interval(events) <= _COARSEST:
        return events
    return tuple((getattr(event, "full_batch", event), count) for event, count in events)


def _divided(events: Runs) -> tuple[Runs, Runs]:
    """Return the events with a privacy loss distribution, and those with a rho alone."""
    concentrated = tuple(run for run in events if run[0].mu is None and run[0].rho is not None)
    return tuple(run for run in events if run not in concentrated), concentrated


def numerical_error(events: Runs) -> float:
    """Return what the numerical composition may understate delta by.

    Notes
    -----
    A distribution is composed with itself T times by raising its discrete Fourier transform to the
    power T, which multiplies each coefficient by 1 + e with e of about T units of roundoff. The
    error of a sum of probabilities is of the same order: at most a third of ``T 2^-53`` where it
    could be compared with the exact value, at sampling rate 1. Four times ``T 2^-53`` are added.
    """
    return 4 * sum(count for _, count in events) * 2.0**-53


def _pld_delta(events: Runs, epsilon: float) -> float:
    delta = float(composed_pld(events).get_delta_for_epsilon(epsilon))
    return min(1.0, delta + numerical_error(events))


def _pld_epsilon(events: Runs, delta: float, interval: float) -> float:
    left = delta - numerical_error(events)
    return (
        float(composed_pld(events, interval).get_epsilon_for_delta(left)) if left > 0 else math.inf
    )


def _inverse(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Return a delta, up to 1, at which a falling function of delta is at most `epsilon`."""
    low, high = math.log(1e-13), 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_at(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def _group_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """Return an epsilon two neighbours apart, from the delta at an epsilon one neighbour apart."""

    def excess(epsilon: float) -> float:
        log_factor = epsilon + math.log1p(math.exp(-epsilon))
        return math.log(max(delta_at(epsilon), 1e-300)) + log_factor - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    # From small steps on: delta has a floor, that of numerical errors, and may suffice only early.
    high = 1e-3
    while excess(high) > 0:
        high *= 2
        if high > 1e4:
            return math.inf
    return 2 * (brentq(excess, 0.0, high, xtol=1e-9) + 1e-9)


def unprotected(events: Runs) -> bool:
    """Return whether something was released without noise."""
    return any(math.isinf(_loss_variance(event)) for event, _ in events)


def _loss_variance(event: Any) -> float:
    if event.mu is None and event.rho is None:
        return event.loss_variance
    return 2 * rho_of(event)


def composed_pld(events: Runs, interval: float | None = None) -> Any:
    """Return dp_accounting's privacy loss distribution of the whole.

    Parameters
    ----------
    events : sequence of (Event, int)
        In any order, which changes nothing.
    interval : float, optional
        Spacing of the discretised losses, which are rounded up; by default that
        of `pld_interval`.

    Raises
    ------
    ImportError
        Without dp-accounting; ``pip install "dpglm[accounting]"``.
    ValueError
        If an event has no such distribution.
    """
    require_dp_accounting()
    counts: dict[Event, int] = {}
    for event, count in events:
        counts[event] = counts.get(event, 0) + count
    merged = tuple(sorted(counts.items(), key=repr))
    return _cached_pld(merged, pld_interval(merged) if interval is None else interval)


@lru_cache(maxsize=16)
def _cached_pld(events: tuple[tuple[Event, int], ...], interval: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import identity

    total = identity(interval)
    for event, count in events:
        total = total.compose(event.to_pld(interval).self_compose(count))
    return total


def pld_interval(events: Runs) -> float:
    """Return a spacing of losses that is fine for their sum, and affordable for each of them.

    The epsilon of the whole is then about 1e-5 above its exact value, relatively.
    """
    variance = math.fsum(_loss_variance(event) * count for event, count in events)
    whole = 12 * math.sqrt(variance) + variance / 2
    reach = max([whole, *(getattr(event, "loss_reach", 0.0) for event, _ in events)])
    fine = _PART_OF_STD * math.sqrt(variance / max(1, sum(count for _, count in events)))
    return max(min(max(fine, _NARROWEST), _WIDEST), reach / _MOST_POINTS)


def require_dp_accounting() -> None:
    """Raise an ImportError that names the extra, if dp-accounting is missing."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Privacy loss distributions, which mini-batches (sampling_rate below 1) and checks of "
            'a ledger need, come from dp-accounting: pip install "dpglm[accounting]".'
        ) from error
