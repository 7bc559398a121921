"""Gaussian releases: which data sets they make indistinguishable, and what they cost together.

Conventions of the conversions, here and in `dpglm.privacy.events`
------------------------------------------------------------------
``mu`` and ``rho`` already refer to a neighbouring relation. A Gaussian release with noise
multiplier z is ``1/z``-GDP and ``1/(2 z^2)``-zCDP. At ``mu = 0`` epsilon and delta are 0; at ``mu =
inf`` epsilon is inf, and delta 1 at a finite epsilon. ``epsilon = inf`` is no constraint. ``delta =
0`` gives epsilon inf and mu 0, since a Gaussian has no pure privacy. The same holds for rho.

The inverses are rounded to the private side: as evaluated here, ``gdp_delta(gdp_mu(epsilon, delta),
epsilon) <= delta`` and ``gdp_delta(mu, gdp_epsilon(mu, delta)) <= delta``; the same holds for zCDP.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, roots_legendre

from dpglm.checks import check_number

_NODES, _WEIGHTS = roots_legendre(20)  # speed only

# The margin of a calibrated budget (mu, rho) exceeds that of a reported epsilon. Calibration to
# epsilon and conversion back then never report more than epsilon.
_BUDGET_MARGIN = 1e-10
_EPSILON_MARGIN = 1e-12


@dataclass(frozen=True)
class Relation:
    """One neighbouring relation: its meaning, its factor, and its name in dp_accounting."""

    meaning: str
    sensitivity_factor: float
    dp_accounting_name: str


NEIGHBORING_RELATIONS: Mapping[str, Relation] = {
    "zero_out": Relation(
        "one record is replaced by a null record that contributes nothing; "
        "the number of records is public",
        1.0,
        "REPLACE_SPECIAL",
    ),
    "replace_one": Relation(
        "one record is replaced by any other; the number of records is public", 2.0, "REPLACE_ONE"
    ),
    "add_or_remove_one": Relation(
        "one record is added or removed; the number of records is private, its estimate public",
        1.0,
        "ADD_OR_REMOVE_ONE",
    ),
}


@dataclass(frozen=True)
class Event:
    """One release, or those about parts of the records, and what it costs.

    ``mu`` is the parameter of its Gaussian trade-off, and ``rho`` its zero-concentrated privacy;
    None is unknown. With a mu, a rho of None means ``mu**2 / 2``. An event with neither has a
    privacy loss distribution. Its purpose says what was released, and changes no cost.
    """

    purpose: str = field(default="", compare=False, repr=False, kw_only=True)
    kind: ClassVar[str]
    relations: ClassVar[tuple[str, ...]] = tuple(NEIGHBORING_RELATIONS)
    is_pure: ClassVar[bool] = False
    # About the largest loss that a distribution has to represent, where the sum's is too small.
    loss_reach = 0.0
    mu = None
    rho = None

    @property
    def known_rho(self) -> float | None:
        """The zero-concentrated privacy, which may follow from the trade-off."""
        return self.mu * self.mu / 2 if self.rho is None and self.mu is not None else self.rho

    @property
    def loss_variance(self) -> float:
        """The approximate variance of the privacy loss; ``inf`` without noise."""
        return 2 * self.known_rho

    @property
    def full_batch(self) -> "Event":
        """The same release of a sum over all records, which costs at least as much."""
        return self


@dataclass(frozen=True)
class GaussianEvent(Event):
    """One release with Gaussian noise.

    The noise multiplier is the standard deviation of the noise over the sensitivity of the sum
    under the ledger's neighbouring relation, rounding included. Zero means no noise.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", check_noise(self.noise_multiplier))

    @property
    def mu(self) -> float:
        """Parameter of the Gaussian trade-off, ``1 / noise_multiplier``."""
        return math.inf if self.noise_multiplier == 0 else 1.0 / self.noise_multiplier

    @property
    def rho(self) -> float:
        """Zero-concentrated differential privacy, ``mu**2 / 2``."""
        return self.mu**2 / 2


def check_noise(noise_multiplier: Any) -> float:
    """Return a noise multiplier whose square does not underflow; 0 is no noise."""
    least = 0.0 if noise_multiplier == 0 else 1e-100
    advice = "it is the noise's standard deviation over the sensitivity, or 0 for no noise"
    limits = {"at_least": least, "at_most": 1e100}
    return check_number("noise_multiplier", noise_multiplier, **limits, advice=advice)


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return the logarithm of the smallest delta of a mu-GDP mechanism at epsilon.

    With a = mu/2 - epsilon/mu and b = a - mu, Balle & Wang (2018), Theorem 8:
    ``delta = Phi(a) - e^epsilon Phi(b)``. Since e^epsilon phi(b) = phi(a), this is
    ``delta = exp(-a^2/2)/2 * [erfcx(-a/sqrt 2) - erfcx(-b/sqrt 2)]`` for every a. The difference
    is taken directly where its terms are well apart, and otherwise as the integral of -erfcx',
    which is positive and does not cancel.
    """
    mu, epsilon = check_number("mu", mu, at_least=0), check_number("epsilon", epsilon, at_least=0)
    if mu == 0 or math.isinf(epsilon):
        return -math.inf
    if math.isinf(mu):
        return 0.0
    a = mu / 2 - epsilon / mu
    start, width = -a / math.sqrt(2), mu / math.sqrt(2)
    if width >= 1 + start:
        return float(log_ndtr(a) + math.log1p(-erfcx(start + width) / erfcx(start)))
    if math.isinf(a * a):
        return -math.inf
    points = start + width * (_NODES + 1) / 2
    mean = float(_WEIGHTS @ _minus_erfcx_derivative(points)) / 2
    return -a * a / 2 - math.log(2) + math.log(width) + math.log(mean)


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta of a mu-GDP mechanism at epsilon (Dong, Roth & Su 2022)."""
    return math.exp(gdp_log_delta(mu, epsilon))


def composed_gdp_delta(events: Sequence[tuple[Any, int]], epsilon: float) -> float:
    """Return the smallest delta of counted releases, or 1 if a trade-off is not Gaussian.

    They are together mu-GDP with ``mu^2 = sum mu_i^2`` (Dong, Roth & Su 2022, Corollary 2).
    """
    if any(event.mu is None for event, _ in events):
        return 1.0
    return gdp_delta(math.sqrt(math.fsum(n * event.mu**2 for event, n in events)), epsilon)


@lru_cache
def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a mu-GDP mechanism at delta, rounded up."""
    return smallest_epsilon(gdp_log_delta, check_number("mu", mu, at_least=0), check_delta(delta))


@lru_cache
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose mu-GDP mechanisms are all (epsilon, delta)-DP, rounded down."""
    epsilon = check_number("epsilon", epsilon, at_least=0)
    return largest_budget(gdp_log_delta, epsilon, check_delta(delta))


def smallest_epsilon(
    log_delta: Callable[[float, float], float], budget: float, delta: float
) -> float:
    """Return the epsilon at which ``log_delta(budget, .)`` meets delta."""
    if math.exp(log_delta(budget, 0.0)) <= delta:
        return 0.0
    if delta == 0:
        return math.inf

    def excess(epsilon: float) -> float:
        return log_delta(budget, epsilon) - math.log(delta)

    bound = budget
    while excess(bound) > 0:
        bound *= 2
    if math.isinf(bound):
        return math.inf
    epsilon = brentq(excess, 0.0, bound, xtol=1e-300, maxiter=2000) if excess(0.0) > 0 else 0.0
    step = max(_EPSILON_MARGIN * epsilon, math.ulp(delta))
    while math.exp(log_delta(budget, epsilon + step)) > delta:
        step *= 2
    return epsilon + step


def largest_budget(
    log_delta: Callable[[float, float], float], epsilon: float, delta: float
) -> float:
    """Return the budget at which ``log_delta(., epsilon)`` meets delta."""
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    # A smaller epsilon is only stricter, and prevents overflow.
    epsilon = min(epsilon, 1e300)

    def excess(log_budget: float) -> float:
        return log_delta(math.exp(log_budget), epsilon) - math.log(delta)

    high = 0.0
    while excess(high) < 0:
        high += 1
    while excess(high - 1) > 0:
        high -= 1
    low = high - 1  # speed only
    budget = math.exp(brentq(excess, low, high, xtol=1e-15))
    step = max(_BUDGET_MARGIN * budget, math.ulp(budget))
    while math.exp(log_delta(smaller := max(budget - step, 0.0), epsilon)) > delta:
        step *= 2  # speed only
    return smaller


def _minus_erfcx_derivative(t: np.ndarray) -> np.ndarray:
    """Return 2/sqrt(pi) - 2 t erfcx(t), by its asymptotic series where the terms would cancel."""
    far = np.maximum(t, 10.0)
    series = np.ones_like(t)
    for odd in range(25, 1, -2):
        series = 1 - odd / (2 * far * far) * series
    return np.where(
        t < 10, 2 / math.sqrt(math.pi) - 2 * t * erfcx(t), series / (math.sqrt(math.pi) * far * far)
    )


def check_delta(delta: Any) -> float:
    """Return a delta, which may be 0."""
    advice = "it should be well below 1 / n_samples"
    return check_number("delta", delta, at_least=0, below=1, advice=advice)
