"""Events beyond Gaussian sums: choices, other batches, filters, tilted objectives; their costs.

The epsilon of a choice is *pure*, epsilon-differential privacy, as of report noisy max; or a
*bounded range*, as of the exponential mechanism. Under a bounded range one record moves the
log-probabilities of the outcomes by amounts that lie within epsilon of one another. Such an epsilon
counts half in GDP and a quarter in zCDP.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfinv, log_expit, log_ndtr, ndtri_exp

from dpglm.checks import check_number
from dpglm.privacy.gaussian import (
    GaussianEvent,
    PoissonSampledEvent,
    Relation,
    check_delta,
    largest_budget,
    smallest_epsilon,
)


@dataclass(frozen=True)
class _ChoiceEvent:
    """One choice of some epsilon; ``inf`` is without noise."""

    epsilon: float
    # A choice costs as much as a pure mechanism with this part of its epsilon.
    pure_share: ClassVar[float]

    def __post_init__(self) -> None:
        # In a shorter type the square of epsilon could underflow.
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, above=0))

    @property
    def mu(self) -> float:
        """Parameter of the best Gaussian trade-off below that of all such choices."""
        return pure_mu(self.pure_share * self.epsilon)

    @property
    def rho(self) -> float:
        """Zero-concentrated privacy of all such choices."""
        pure = self.pure_share * self.epsilon
        return pure * pure / 2

    @classmethod
    def epsilon_from_mu(cls, mu: float) -> float:
        """Return the epsilon of a choice of this mu: the log-odds of ``Phi(mu / 2)``, pure."""
        if mu < 1:
            pure = 2 * math.atanh(float(erf(mu / math.sqrt(8))))
        else:
            pure = float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
        return pure / cls.pure_share

    @classmethod
    def epsilon_from_rho(cls, rho: float) -> float:
        """Return the epsilon of a choice of this rho."""
        return math.sqrt(2 * rho) / cls.pure_share

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event; its RDP accountant knows it, its PLD accountant not."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(self.rho)


class SelectionEvent(_ChoiceEvent):
    """One choice by the exponential mechanism, of bounded range epsilon; ``inf`` is without noise.

    Notes
    -----
    ``2 Phi^-1(1 / (1 + e^(-epsilon/2)))``-GDP and ``epsilon^2 / 8``-zCDP (Cesar & Rogers 2021,
    "Bounding, concentrating, and truncating"); neither implies the other.

    The profile of `bounded_range_delta` is that of the logistic distributions centred at 0 and
    epsilon. Let ``h = logit(Phi)``, whose slope is symmetric and grows away from 0. A shift of mu
    moves h by at least ``2 h(mu / 2)``, which is epsilon at this mu.
    """

    kind: ClassVar[str] = "selection"
    pure_share: ClassVar[float] = 0.5

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of the profile `bounded_range_delta`."""
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        last = math.ceil(self.epsilon / interval)
        deltas = bounded_range_delta(self.epsilon, interval * np.arange(-last, last + 1.0))
        return PrivacyLossDistribution(
            create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
        )


class PureEvent(_ChoiceEvent):
    """One release of any kind that is epsilon-private with delta = 0.

    Notes
    -----
    ``2 Phi^-1(1 / (1 + e^-epsilon))``-GDP (Liu et al. 2022, "Identification, amplification and
    measurement: a bridge to Gaussian differential privacy"), tight for randomised response.
    ``epsilon^2 / 2``-zCDP (Bun & Steinke 2016, Proposition 1.4). A few releases cost less by the
    sum of their epsilons, which `dpglm.privacy.ledger` uses where that sum is smaller.
    """

    kind: ClassVar[str] = "pure"
    pure_share: ClassVar[float] = 1.0

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of all epsilon-DP mechanisms."""
        from dp_accounting.pld.common import DifferentialPrivacyParameters
        from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters

        return from_privacy_parameters(DifferentialPrivacyParameters(self.epsilon, 0.0), interval)


class LaplaceSelectionEvent(PureEvent):
    """One choice by report noisy max with Laplace noise, which is epsilon-private."""

    kind: ClassVar[str] = "laplace_selection"


class PermuteAndFlipEvent(PureEvent):
    """One choice by report noisy max with one-sided exponential noise, which is epsilon-private.

    The choice is not of bounded range epsilon, and counts as much as any pure mechanism.
    """

    kind: ClassVar[str] = "permute_and_flip"


class PoissonSampledReplaceOneEvent(PoissonSampledEvent):
    """One release with Gaussian noise of a sum over a Poisson sample, where records are replaced.

    Notes
    -----
    Let a record add x to the sum, and the one in its place y, with ``||x||, ||y|| <= C``. Let N(x)
    be a Gaussian of standard deviation s around x. The pair of data sets that is easiest to
    distinguish is ``(1 - q) N(0) + q N(C)`` and ``(1 - q) N(0) + q N(-C)`` on a line.

    Fix which other records are in the sample; joint convexity extends the bound to all samples. An
    answer in S then has ``P(S) - a P'(S) = (1 - q)(1 - a) p + q p_x - a q p_y`` for every a > 0,
    with p, p_x, p_y the probabilities of S under N(0), N(x) and N(y). By Neyman and Pearson ``p_x
    <= Phi(t + C/s)`` and ``p_y >= Phi(t - C/s)`` for ``p = Phi(t)``: the half-lines of that pair
    attain both at once. A pair that dominates at every a does so in adaptive compositions too (Zhu,
    Dong & Wang 2022). dp-accounting composes the loss of the pair.

    The sensitivity is 2 C, so that the noise multiplier is ``s / (2 C)``.
    """

    kind: ClassVar[str] = "poisson_sampled_replacement"
    relations: ClassVar[tuple[str, ...]] = ("replace_one",)
    # Noise multipliers in the distance of either end of the pair.
    _ends: ClassVar[float] = 2.0

    @property
    def loss_variance(self) -> float:
        """Approximate variance of the privacy loss, about ``4 q^2 sinh(1/s^2)`` for C = 1."""
        if self.noise_multiplier == 0:
            return math.inf
        variance = (self._ends * self.noise_multiplier) ** -2.0
        return min(4 * variance, 4 * self.sampling_rate**2 * math.sinh(min(variance, 700.0)))

    @property
    def loss_reach(self) -> float:
        """Loss where the noise is twelve standard deviations beyond an end of the pair."""
        q, s = self.sampling_rate, self._ends * self.noise_multiplier
        up, down = (24 / s + 1 / s**2) / 2, (24 / s + 3 / s**2) / 2
        reach = up + math.log(q + (1 - q) * math.exp(-up))
        return reach - math.log((1 - q) + q * math.exp(-down)) if q < 1 else up + down

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event, for its PLD accountant under REPLACE_ONE."""
        ends = PoissonSampledEvent(self.sampling_rate, self._ends * self.noise_multiplier)
        return ends.to_dp_event(relation)

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of the pair."""
        from dp_accounting import NeighboringRelation

        end = GaussianEvent(self._ends * self.noise_multiplier)
        sampling = {"neighboring_relation": NeighboringRelation.REPLACE_ONE}
        return end.to_pld(interval, sampling_prob=self.sampling_rate, **sampling)


class SampledWithoutReplacementEvent(PoissonSampledReplaceOneEvent):
    """The same of a sum over m of n records, drawn without replacement; the rate is ``m / n``.

    Notes
    -----
    A batch with the record is a batch without it in which the record replaced a random member,
    which added g. Given these, P is ``(1 - q) N(0) + q N(x - g)`` and P' is ``(1 - q) N(0) + q N(y
    - g)``, up to a common shift. Neither end is further away than 2 C: the bound is that of
    `PoissonSampledReplaceOneEvent` for twice the clipping norm. The bound is not attained. If all
    others pull the other way, the pair has the ends 2 C and 0. Its epsilon was 4 to 51 percent
    smaller in the cases tried. In all of them dp-accounting's RDP of such samples, for the same
    doubled clipping norm, is above this bound.
    """

    kind: ClassVar[str] = "fixed_size_sampled"
    _ends: ClassVar[float] = 1.0


def sampled_event(neighboring_relation: str, batches: str = "poisson") -> type[PoissonSampledEvent]:
    """Return the type of event of a release over a random batch under a relation."""
    if batches not in ("poisson", "without_replacement"):
        raise ValueError(f"batches={batches!r} must be 'poisson' or 'without_replacement'.")
    if neighboring_relation == "replace_one":
        return (
            SampledWithoutReplacementEvent
            if batches == "without_replacement"
            else PoissonSampledReplaceOneEvent
        )
    if batches == "without_replacement":
        raise ValueError(
            f"batches={batches!r} is accounted for under neighboring_relation='replace_one' only, "
            f"not under {neighboring_relation!r}. Use batches='poisson'."
        )
    return PoissonSampledEvent


@dataclass(frozen=True)
class FilterEvent:
    """Everything that an adaptive fit was ALLOWED to spend, whatever it did spend.

    The capacity is either the parameter mu of the Gaussian trade-off of the whole transcript, or
    its zero-concentrated privacy rho. Costs were chosen while the fit ran: only the capacity is a
    bound (`dpglm.privacy.vault.PrivacyFilter`).
    """

    mu: float | None = None
    rho: float | None = None
    kind: ClassVar[str] = "filter"

    def __post_init__(self) -> None:
        given = [value for value in (self.mu, self.rho) if value is not None]
        if len(given) != 1 or not given[0] > 0:
            raise ValueError(
                f"FilterEvent takes either mu or rho, a number above 0, got mu={self.mu!r} and "
                f"rho={self.rho!r}."
            )

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event of the capacity."""
        from dp_accounting import GaussianDpEvent, ZCDpEvent

        if self.mu is None:
            return ZCDpEvent(self.rho)
        # Under replace-one dp_accounting doubles the sensitivity, which the capacity has in it.
        return GaussianDpEvent(relation.sensitivity_factor / self.mu)

    def to_pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of the Gaussian of the same trade-off."""
        if self.mu is None:
            raise ValueError(
                "A zCDP filter bounds Renyi divergences only and has no privacy loss distribution."
            )
        return GaussianEvent(1 / self.mu).to_pld(interval)


@dataclass(frozen=True)
class ObjectivePerturbationEvent:
    """The exact minimiser of one randomly tilted objective.

    The noise multiplier is the standard deviation of the tilt over the sensitivity of the gradient.
    The offset bounds what the change of variables from the tilt to the minimiser adds to the
    privacy loss (`dpglm.baselines.objective_perturbation.jacobian_offset`). The profile is that of
    a Gaussian release of the same multiplier, at ``epsilon - offset``.
    """

    noise_multiplier: float
    offset: float
    kind: ClassVar[str] = "objective_perturbation"
    mu: ClassVar[None] = None
    rho: ClassVar[None] = None

    def __post_init__(self) -> None:
        GaussianEvent(self.noise_multiplier)
        check_number("offset", self.offset, at_least=0, below=math.inf)

    @property
    def unshifted(self) -> GaussianEvent:
        """The event that has the rest of the cost."""
        return GaussianEvent(self.noise_multiplier)

    @property
    def loss_variance(self) -> float:
        """Variance of the privacy loss of `unshifted`, ``1 / noise_multiplier^2``."""
        return self.unshifted.mu**2

    @property
    def loss_reach(self) -> float:
        """About the largest privacy loss that a distribution of it has to represent."""
        return self.offset + 12 * self.unshifted.mu + self.unshifted.rho

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event; its RDP accountant knows it, its PLD accountant not."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(self.unshifted.rho, self.offset)

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of `unshifted`, plus the offset."""
        from dp_accounting.pld.pld_pmf import SparsePLDPmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        shift = SparsePLDPmf({math.ceil(self.offset / interval): 1.0}, interval, 0.0, True)
        return self.unshifted.to_pld(interval).compose(PrivacyLossDistribution(shift))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Bound delta of a rho-zCDP mechanism at epsilon from above.

    Notes
    -----
    Canonne, Kamath & Steinke (2020), Corollary 13: ``delta = min over alpha > 1 of
    exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)``, whose minimum is the
    root of the increasing ``(2 alpha - 1) rho - epsilon + log(1 - 1/alpha)``.
    """
    rho = check_number("rho", rho, at_least=0)
    return math.exp(_zcdp_log_delta(rho, check_number("epsilon", epsilon, at_least=0)))


@lru_cache
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon of a rho-zCDP mechanism at delta, rounded up.

    Root in epsilon of :func:`zcdp_delta`; never above that of Bun & Steinke (2016).
    """
    rho = check_number("rho", rho, at_least=0)
    return smallest_epsilon(_zcdp_log_delta, rho, check_delta(delta))


@lru_cache
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose rho-zCDP mechanisms are (epsilon, delta)-DP.

    Root in log(rho) of :func:`zcdp_delta`; never below that of Bun & Steinke (2016).
    """
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
    """Logarithm of :func:`zcdp_delta`, in t = alpha - 1."""
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


def bounded_range_delta(epsilon: float, at: float | np.ndarray) -> float | np.ndarray:
    """Return the least delta, at epsilon' = ``at``, of all epsilon-bounded-range mechanisms.

    Notes
    -----
    ``(1 - e^((epsilon' - epsilon) / 2))^2 / (1 - e^-epsilon)`` for ``|epsilon'| <= epsilon``
    (Dong, Durfee & Rogers 2020, "Optimal differential privacy composition for exponential
    mechanisms"); 0 above that, and ``1 - e^epsilon'`` below.
    """
    inside = np.clip(at, -epsilon, epsilon)
    delta = np.expm1((inside - epsilon) / 2) ** 2 / -math.expm1(-epsilon)
    delta = np.where(np.asarray(at) < -epsilon, -np.expm1(np.minimum(at, 0.0)), delta)
    return delta if delta.ndim else float(delta)
