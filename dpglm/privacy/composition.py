"""What events cost together: each way of composing them that they all allow, and the smallest."""

import math
from collections.abc import Sequence
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
    "pld_interval",
    "require_dp_accounting",
    "rho_of",
    "unprotected",
]

# Losses are rounded up to multiples of an interval, which adds up to a quarter of its square to the
# variance of each: this part of their standard deviation changes epsilon by about 1e-5.
_PART_OF_STD = 0.01
_WIDEST, _NARROWEST = 1e-3, 1e-8
_MOST_POINTS = 2e6


class Event(Protocol):
    """One release. Each kind of event knows its own cost.

    ``mu`` is the parameter of a Gaussian trade-off and ``rho`` the zero-concentrated privacy that
    it has, or None where that is not known (a rho of None beside a mu is ``mu**2 / 2``);
    ``noise_multiplier`` and the like are relative to the sensitivity under the ledger's relation.
    An event that has neither has a privacy loss distribution, `to_pld`, and also ``loss_variance``,
    the approximate variance of the loss: ``inf`` for a release without noise.
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
    return event.mu**2 / 2


def composed_delta(events: Runs, epsilon: float) -> float:
    """Return the least known delta of the whole at ``epsilon``."""
    if unprotected(events):
        return 1.0
    bounds = []
    if all(event.mu is not None for event, _ in events):
        bounds.append(gdp_delta(composed_mu(events), epsilon))
    if all(event.mu is not None or event.rho is not None for event, _ in events):
        bounds.append(zcdp_delta(composed_rho(events), epsilon))
    if not bounds:
        bounds.append(float(composed_pld(events).get_delta_for_epsilon(epsilon)))
    return min(bounds)


def composed_epsilon(events: Runs, delta: float, distance: int = 1) -> float:
    """Return the least known epsilon of the whole at ``delta``.

    Parameters
    ----------
    events : sequence of (Event, int)
    delta : float
    distance : {1, 2}
        2 for data sets that are two neighbours apart.

    Notes
    -----
    Twice as far apart, mu doubles and rho quadruples (Dong, Roth & Su 2022, Theorem 3; Bun &
    Steinke 2016, Proposition 1.9). Otherwise ``delta_2(2 e) <= (1 + exp(e)) delta_1(e)``.
    """
    if unprotected(events):
        return math.inf
    bounds = []
    if all(event.mu is not None for event, _ in events):
        bounds.append(gdp_epsilon(distance * composed_mu(events), delta))
    if all(event.mu is not None or event.rho is not None for event, _ in events):
        bounds.append(zcdp_epsilon(distance**2 * composed_rho(events), delta))
    if not bounds:
        bounds.append(_pld_epsilon(composed_pld(events), delta, distance))
    return min(bounds)


def _pld_epsilon(pld: Any, delta: float, distance: int) -> float:
    if distance == 1:
        return float(pld.get_epsilon_for_delta(delta))

    def excess(epsilon: float) -> float:
        log_factor = math.log1p(math.exp(min(epsilon, 700.0)))
        return math.log(max(pld.get_delta_for_epsilon(epsilon), 1e-300)) + log_factor - target

    target = math.log(delta)
    # The factor exceeds 2, and delta falls at most as fast as the smallest that a PLD resolves.
    low, high = 0.0, max(float(pld.get_epsilon_for_delta(delta / 2)), 1e-3)
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    if excess(low) <= 0:
        return 2 * low
    return 2 * brentq(excess, low, high, xtol=1e-9) * (1 + 1e-9)


def unprotected(events: Runs) -> bool:
    """Return whether something was released without noise."""
    return any(_loss_variance(event) == math.inf for event, _ in events)


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
    variances = [_loss_variance(event) for event, _ in events]
    variance = math.fsum(v * count for v, (_, count) in zip(variances, events, strict=True))
    largest = max(variances, default=0.0)
    fine = _PART_OF_STD * math.sqrt(variance / max(1, sum(count for _, count in events)))
    # A loss reaches some forty standard deviations beyond its mean, half of its variance.
    affordable = (largest + 40 * math.sqrt(largest)) / _MOST_POINTS
    return max(min(max(fine, _NARROWEST), _WIDEST), affordable)


def require_dp_accounting() -> None:
    """Raise an ImportError that names the extra, if dp-accounting is missing."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Privacy loss distributions, which mini-batches (sampling_rate below 1) and checks of "
            'a ledger need, come from dp-accounting: pip install "dpglm[accounting]".'
        ) from error
