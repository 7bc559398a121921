"""Events of a ledger: what was released, and what each release costs alone.

A Gaussian release over all records, `GaussianEvent`, is defined beside its conversions. The
conversions of zero-concentrated and of pure privacy are below.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, ClassVar

from scipy.optimize import brentq
from scipy.special import erf, erfinv, log_expit, log_ndtr, ndtri_exp

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.privacy.gaussian import (
    NEIGHBORING_RELATIONS,
    Event,
    GaussianEvent,
    check_delta,
    check_noise,
    largest_budget,
    smallest_epsilon,
)

# Events in order, equal ones in a row counted.
Runs = Sequence[tuple[Event, int]]
MOST_EQUAL = 2**53  # which is exact as a float

_SAMPLINGS = ("poisson", "poisson_replace_one", "without_replacement")
# The epsilon of a choice over that of a pure mechanism that costs as much.
_RANGE_PER_PURE = {"exponential": 2, "laplace": 1, "permute_and_flip": 1}


@dataclass(frozen=True)
class SampledGaussianEvent(Event):
    """One release with Gaussian noise of a sum over a random batch of the records.

    A ``"poisson"`` sample holds each record with probability `sampling_rate`, independently of the
    others; a neighbour lacks a record, or (``"poisson_replace_one"``) has another one. A sample
    ``"without_replacement"`` has a fixed number of records. The noise multiplier is that of a sum
    over all records. No Gaussian trade-off is useful. Instead dp-accounting composes the loss of
    the pair of distributions that is the easiest to distinguish, if the sample is not known.

    Notes
    -----
    *Poisson.* In units of the sensitivity, the release is N(0, z^2) without the record, and ``(1 -
    q) N(0, z^2) + q N(1, z^2)`` with it (Mironov, Talwar & Zhang 2019).

    *Poisson, where records are replaced.* Let a record add x to the sum, and the one in its place
    y, with ``||x||, ||y|| <= C``. Let N(x) be a Gaussian of standard deviation s around x. The pair
    is ``(1 - q) N(0) + q N(C)`` and ``(1 - q) N(0) + q N(-C)`` on a line. Fix which other records
    are in the sample; joint convexity extends the bound to all samples. An answer in S then has
    ``P(S) - a P'(S) = (1 - q)(1 - a) p + q p_x - a q p_y`` for every a > 0, with p, p_x, p_y the
    probabilities of S under N(0), N(x) and N(y). By Neyman and Pearson ``p_x <= Phi(t + C/s)`` and
    ``p_y >= Phi(t - C/s)`` for ``p = Phi(t)``: the half-lines of that pair attain both at once. A
    pair that dominates at every a does so in adaptive compositions too (Zhu, Dong & Wang 2022). The
    sensitivity is 2 C, so that the noise multiplier is ``s / (2 C)``.

    *Without replacement.* The rate is q = m / n. A batch with the record is a batch without it in
    which the record replaced a random member, which added g. Given these, P is ``(1 - q) N(0) + q
    N(x - g)`` and P' is ``(1 - q) N(0) + q N(y - g)``, up to a common shift. Neither end is further
    away than 2 C: the bound is that of the last paragraph for twice the clipping norm.
    """

    sampling_rate: float
    noise_multiplier: float
    sampling: str = "poisson"
    kind: ClassVar[str] = "sampled_gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_rate", check_sampling_rate(self.sampling_rate))
        object.__setattr__(self, "noise_multiplier", check_noise(self.noise_multiplier))
        check_choice("sampling", self.sampling, _SAMPLINGS)

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations under which the cost is known."""
        poisson = self.sampling == "poisson"
        return ("zero_out", "add_or_remove_one") if poisson else ("replace_one",)

    @property
    def std(self) -> float:
        """Standard deviation of the noise, where an end of the pair is at a distance of one."""
        return self.noise_multiplier * (2 if self.sampling == "poisson_replace_one" else 1)

    @property
    def loss_variance(self) -> float:
        """``q^2 (exp(1/s^2) - 1)``, with two ends ``4 q^2 sinh(1/s^2)``; or that of all records."""
        if self.noise_multiplier == 0:
            return math.inf
        variance = 1 / self.std**2
        exponent = min(variance, 700.0)
        if self.sampling == "poisson":
            return min(variance, self.sampling_rate**2 * math.expm1(exponent))
        return min(4 * variance, 4 * self.sampling_rate**2 * math.sinh(exponent))

    @property
    def loss_reach(self) -> float:
        """Loss where the noise is twelve standard deviations beyond an end of the pair."""
        q, s = self.sampling_rate, self.std
        up, down = (24 / s + 1 / s**2) / 2, (24 / s + 3 / s**2) / 2
        # The logarithm of 1 + q (e^up - 1), which could overflow.
        reach = up + math.log(q + (1 - q) * math.exp(-up))
        if self.sampling == "poisson":
            return reach
        return reach + (down if q == 1 else -math.log((1 - q) + q * math.exp(-down)))

    @property
    def full_batch(self) -> GaussianEvent:
        """The same release of a sum over all records, which costs at least as much."""
        return GaussianEvent(self.noise_multiplier)


def check_sampling_rate(sampling_rate: Any) -> float:
    """Return the probability of a record to be in a batch."""
    advice = "it is the probability of each record to be in a batch"
    limits = {"at_least": 1e-9, "at_most": 1}
    return check_number("sampling_rate", sampling_rate, **limits, advice=advice)


def sampling_under(neighboring_relation: str, batches: str = "poisson") -> str:
    """Return the sampling of the events of random batches under a relation."""
    check_choice("batches", batches, ("poisson", "without_replacement"))
    if batches == "poisson":
        return "poisson_replace_one" if neighboring_relation == "replace_one" else "poisson"
    if neighboring_relation != "replace_one":
        raise ValueError(
            f"batches={batches!r} is accounted for under neighboring_relation='replace_one' only, "
            f"not under {neighboring_relation!r}. Use batches='poisson'."
        )
    return batches


@dataclass(frozen=True)
class PureEvent(Event):
    """One release of any kind that is epsilon-private with delta = 0; ``inf`` is without noise.

    Notes
    -----
    ``2 Phi^-1(1 / (1 + e^-epsilon))``-GDP (Liu et al. 2022, "Identification, amplification and
    measurement: a bridge to Gaussian differential privacy"), tight for randomised response.
    ``epsilon^2 / 2``-zCDP (Bun & Steinke 2016, Proposition 1.4). A few releases cost less by the
    sum of their epsilons, which a composition uses where that sum is smaller.
    """

    epsilon: float
    kind: ClassVar[str] = "pure"
    is_pure = True

    def __post_init__(self) -> None:
        # In a shorter type the square of epsilon could underflow.
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, above=0))

    @property
    def _pure_epsilon(self) -> float:
        """The epsilon of a pure mechanism that costs as much."""
        return self.epsilon

    @property
    def mu(self) -> float:
        """Parameter of the best Gaussian trade-off below that of all such releases."""
        return pure_mu(self._pure_epsilon)

    @property
    def rho(self) -> float:
        """Zero-concentrated privacy of all such releases."""
        return self._pure_epsilon * self._pure_epsilon / 2


@dataclass(frozen=True)
class ChoiceEvent(PureEvent):
    """One private choice of an index; ``inf`` is without noise.

    Report noisy max, with Laplace noise (``"laplace"``) or one-sided exponential noise
    (``"permute_and_flip"``), is a pure mechanism and no more. The epsilon of ``"exponential"`` is a
    *bounded range*: one record moves the log-probabilities of the outcomes by amounts that lie
    within epsilon of one another. Such an epsilon counts half in GDP and a quarter in zCDP.

    Notes
    -----
    The exponential mechanism is ``2 Phi^-1(1 / (1 + e^(-epsilon/2)))``-GDP and ``epsilon^2 /
    8``-zCDP (Cesar & Rogers 2021, "Bounding, concentrating, and truncating"); neither implies the
    other. Its profile is that of the logistic distributions centred at 0 and epsilon. Let ``h =
    logit(Phi)``, whose slope is symmetric and grows away from 0. A shift of mu moves h by at least
    ``2 h(mu / 2)``, epsilon at this mu.
    """

    mechanism: str = "exponential"
    kind: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mechanism", self.mechanism, _RANGE_PER_PURE)

    @property
    def is_pure(self) -> bool:
        """Whether the epsilon counts as that of any pure mechanism."""
        return self.mechanism != "exponential"

    @property
    def _pure_epsilon(self) -> float:
        return self.epsilon / _RANGE_PER_PURE[self.mechanism]

    @staticmethod
    def epsilon_from_mu(mu: float, mechanism: str = "exponential") -> float:
        """Return the epsilon of a choice of this mu."""
        return _RANGE_PER_PURE[mechanism] * pure_epsilon(mu)

    @staticmethod
    def epsilon_from_rho(rho: float, mechanism: str = "exponential") -> float:
        """Return the epsilon of a choice of this rho."""
        return _RANGE_PER_PURE[mechanism] * math.sqrt(2 * rho)


@dataclass(frozen=True)
class FilterEvent(Event):
    """Everything that an adaptive fit was ALLOWED to spend, whatever it did spend.

    The capacity is either the parameter mu of the Gaussian trade-off of the whole transcript, or
    its zero-concentrated privacy rho. Costs were chosen while the fit ran: only the capacity is a
    bound (`dpglm.privacy.vault.PrivacyFilter`).
    """

    mu: float | None = None
    rho: float | None = None
    kind: ClassVar[str] = "filter"

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.rho is None):
            raise ValueError(
                f"FilterEvent takes either mu or rho, got mu={self.mu!r} and rho={self.rho!r}."
            )
        unit = "mu" if self.rho is None else "rho"
        object.__setattr__(self, unit, check_number(unit, getattr(self, unit), above=0))


@dataclass(frozen=True)
class ObjectivePerturbationEvent(Event):
    """The exact minimiser of one randomly tilted objective.

    The noise multiplier is the standard deviation of the tilt over the sensitivity of the gradient.
    The offset bounds what the change of variables from the tilt to the minimiser adds to the
    privacy loss (`dpglm.baselines.objective_perturbation.jacobian_offset`). The profile is that of
    a Gaussian release of the same multiplier, at ``epsilon - offset``.
    """

    noise_multiplier: float
    offset: float
    kind: ClassVar[str] = "objective_perturbation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", check_noise(self.noise_multiplier))
        offset = check_number("offset", self.offset, at_least=0, below=math.inf)
        object.__setattr__(self, "offset", offset)

    @property
    def unshifted(self) -> GaussianEvent:
        """The event that has the rest of the cost."""
        return GaussianEvent(self.noise_multiplier)

    @property
    def loss_variance(self) -> float:
        """Variance of the privacy loss of `unshifted`, ``1 / noise_multiplier^2``."""
        return self.unshifted.mu**2


@dataclass(frozen=True)
class ParallelEvent(Event):
    """Releases about parts of the records that share none, one sequence of runs for each part.

    A record is in one part, whatever the others are: a neighbour changes the releases of that part
    alone. The whole costs as much as the most expensive part.
    """

    parts: tuple[tuple[tuple[Event, int], ...], ...]
    kind: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        # Counts of a shorter type could overflow where they are added up.
        parts = (
            tuple((event, check_whole("count", n, at_most=MOST_EQUAL)) for event, n in part)
            for part in self.parts
        )
        object.__setattr__(self, "parts", tuple(parts))
        if not self.parts or not all(self.parts):
            raise ValueError("A ParallelEvent takes one part or more, each of one release or more.")

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations under which the cost of all releases is known."""
        inner = [set(event.relations) for part in self.parts for event, _ in part]
        return tuple(set(NEIGHBORING_RELATIONS).intersection(*inner))

    @property
    def mu(self) -> float | None:
        """The largest parameter of a part's Gaussian trade-off, where all parts have one."""
        known = all(event.mu is not None for part in self.parts for event, _ in part)
        return max(map(composed_mu, self.parts)) if known else None

    @property
    def rho(self) -> float | None:
        """The largest zero-concentrated privacy of a part, where that of all parts is known."""
        return max(map(composed_rho, self.parts)) if all(map(have_rho, self.parts)) else None

    @property
    def loss_variance(self) -> float:
        """The largest approximate variance of the privacy loss of a part."""
        return max(math.fsum(n * event.loss_variance for event, n in part) for part in self.parts)


_KINDS: tuple[type[Event], ...] = (
    GaussianEvent, SampledGaussianEvent, PureEvent, ChoiceEvent, FilterEvent,
    ObjectivePerturbationEvent, ParallelEvent,
)  # fmt: skip
EVENTS = {kind.kind: kind for kind in _KINDS}


def run_lengths(events: Iterable[Event]) -> tuple[tuple[Event, int], ...]:
    """Return events in order, each run of equal ones with its length."""
    return joined((event, 1) for event in events)


def joined(runs: Iterable[tuple[Event, int]]) -> tuple[tuple[Event, int], ...]:
    """Return runs in order; consecutive runs of equal events of one purpose become one."""
    by_event = groupby(runs, lambda run: (run[0], run[0].purpose))
    return tuple((event, sum(n for _, n in same)) for (event, _), same in by_event)


def counted(runs: Iterable[tuple[Any, int]]) -> Counter[Any]:
    """Return the total count of each event."""
    counts: Counter[Any] = Counter()
    for event, count in runs:
        counts[event] += count
    return counts


def single_releases(runs: Runs) -> Iterator[tuple[Event, int]]:
    """Yield runs, with each parallel event replaced by the runs of its parts."""
    for event, count in runs:
        if isinstance(event, ParallelEvent):
            for single, n in chain.from_iterable(map(single_releases, event.parts)):
                yield single, n * count
        else:
            yield event, count


def have_rho(events: Runs) -> bool:
    """Return whether the zero-concentrated privacy of all events is known."""
    return all(event.known_rho is not None for event, _ in events)


def composed_mu(events: Runs) -> float:
    """Return the parameter of the Gaussian trade-off of the whole; exact for Gaussian releases."""
    for event, _ in events:
        if event.mu is None:
            raise ValueError(f"mu is undefined: {event!r} has no Gaussian trade-off.")
    return math.sqrt(math.fsum(count * event.mu**2 for event, count in events))


def composed_rho(events: Runs) -> float:
    """Return the zero-concentrated privacy of the whole."""
    for event, _ in events:
        if event.known_rho is None:
            raise ValueError(f"rho is undefined: {event!r} has no known zero-concentrated privacy.")
    return math.fsum(count * event.known_rho for event, count in events)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Bound delta of a rho-zCDP mechanism at epsilon from above.

    Canonne, Kamath & Steinke (2020), Corollary 13: ``delta = min over alpha > 1 of
    exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)``, whose minimum is the
    root of the increasing ``(2 alpha - 1) rho - epsilon + log(1 - 1/alpha)``.
    """
    rho = check_number("rho", rho, at_least=0)
    return math.exp(_zcdp_log_delta(rho, check_number("epsilon", epsilon, at_least=0)))


@lru_cache
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon of a rho-zCDP mechanism at delta, rounded up."""
    rho = check_number("rho", rho, at_least=0)
    return smallest_epsilon(_zcdp_log_delta, rho, check_delta(delta))


@lru_cache
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose rho-zCDP mechanisms are (epsilon, delta)-DP."""
    epsilon = check_number("epsilon", epsilon, at_least=0)
    return largest_budget(_zcdp_log_delta, epsilon, check_delta(delta))


def bun_steinke_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho with ``rho + 2 sqrt(rho ln(1 / delta)) <= epsilon``.

    The bound of Bun & Steinke (2016). A difference of roots would lose digits at a small epsilon.
    """
    log = -math.log(check_delta(delta))
    epsilon = check_number("epsilon", epsilon, at_least=0)
    if math.isinf(epsilon):
        return math.inf
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


def _zcdp_log_delta(rho: float, epsilon: float) -> float:
    """Return the logarithm of :func:`zcdp_delta`, in t = alpha - 1."""
    if rho == 0 or math.isinf(epsilon):
        return -math.inf
    # delta is then within exp(-690) of 1, and 1 is always a bound.
    if rho - epsilon > 690:  # speed only
        return 0.0
    # A larger rho has a larger delta, and prevents overflow.
    rho = max(rho, epsilon * 1e-300, 1e-300)

    def slope(log_t: float) -> float:
        t = math.exp(log_t)
        return (2 * t + 1) * rho - epsilon - math.log1p(1 / t)

    largest = math.log((epsilon + 1) / rho)
    least = -700.0  # speed only
    t = math.exp(brentq(slope, least, largest, xtol=1e-14, maxiter=1000))
    return min(0.0, t * ((t + 1) * rho - epsilon) - (t + 1) * math.log1p(1 / t) - math.log(t))


def pure_mu(epsilon: float) -> float:
    """Return the least mu such that every epsilon-DP mechanism is mu-GDP: see `PureEvent`."""
    if epsilon < 1:
        return math.sqrt(8) * float(erfinv(math.tanh(epsilon / 2)))
    return -2 * float(ndtri_exp(log_expit(-epsilon)))


def pure_epsilon(mu: float) -> float:
    """Return the epsilon whose `pure_mu` is this: the log-odds of ``Phi(mu / 2)``."""
    if mu < 1:
        return 2 * math.atanh(float(erf(mu / math.sqrt(8))))
    return float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
