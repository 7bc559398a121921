"""Events: what one release costs under a neighbouring relation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from dpglm.privacy.accounting import (
    bounded_range_delta,
    bounded_range_mu,
    bounded_range_rho,
    pure_mu,
    pure_rho,
)

__all__ = [
    "NEIGHBORING_RELATIONS",
    "SAMPLED_REPLACEMENT",
    "FilterEvent",
    "GaussianEvent",
    "LaplaceSelectionEvent",
    "ObjectivePerturbationEvent",
    "PoissonSampledEvent",
    "Relation",
    "SelectionEvent",
    "check_sampling_rate",
]


@dataclass(frozen=True)
class Relation:
    """What one neighbouring relation means, in words and to dp_accounting."""

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
        "one record is replaced by any other; the number of records is public",
        2.0,
        "REPLACE_ONE",
    ),
    "add_or_remove_one": Relation(
        "one record is added or removed; the number of records is private and n_ref is public",
        1.0,
        "ADD_OR_REMOVE_ONE",
    ),
}


SAMPLED_REPLACEMENT = (
    "Mini-batches (sampling_rate below 1) are not accounted for under "
    "neighboring_relation='replace_one': each record is sampled on its own, which hides whether "
    "one is there, and the amplification that is charged holds for a record that appears or "
    "vanishes. Use 'zero_out' or 'add_or_remove_one', or sampling_rate=1."
)


@dataclass(frozen=True)
class GaussianEvent:
    """One release with Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity of the sum under the ledger's
        neighbouring relation, rounding and summation slack included. Zero means no noise.

    Examples
    --------
    >>> from dpglm.privacy.events import GaussianEvent
    >>> GaussianEvent(4.0).mu
    0.25
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        z = self.noise_multiplier
        if isinstance(z, bool) or not (z == 0 or 1e-100 <= z <= 1e100):
            raise ValueError(
                f"noise_multiplier={z!r} must be zero or a number from 1e-100 to 1e100; "
                "pass the noise's standard deviation over the sensitivity."
            )

    @property
    def mu(self) -> float:
        """Parameter of the Gaussian trade-off, ``1 / noise_multiplier``."""
        return math.inf if self.noise_multiplier == 0 else 1.0 / self.noise_multiplier

    @property
    def rho(self) -> float:
        """Zero-concentrated differential privacy, ``mu**2 / 2``."""
        return self.mu**2 / 2

    def parameters(self) -> dict[str, float]:
        """Return the fields by name."""
        return {"noise_multiplier": self.noise_multiplier}

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event.

        dp_accounting divides the standard deviation by the contribution of ONE record and doubles
        the sensitivity itself under replace-one; this class divides by the sensitivity.
        """
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(self.noise_multiplier * relation.sensitivity_factor)

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of the release."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        return from_gaussian_mechanism(
            self.noise_multiplier, value_discretization_interval=interval
        )


@dataclass(frozen=True)
class PoissonSampledEvent:
    """One release with Gaussian noise of a sum over a Poisson sample of the records.

    Parameters
    ----------
    sampling_rate : float
        Chance with which each record is in the sample, independently; above 0 and at most 1.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity of the sum, as in `GaussianEvent`.

    Notes
    -----
    Whoever does not know which records were sampled sees the law N(0, z^2) or the mixture
    ``(1 - q) N(0, z^2) + q N(1, z^2)`` in units of the sensitivity, depending on whether a record
    is there (Mironov, Talwar & Zhang 2019). It has no useful Gaussian trade-off: its privacy loss
    distribution is composed instead.

    Examples
    --------
    >>> from dpglm.privacy.events import PoissonSampledEvent
    >>> PoissonSampledEvent(sampling_rate=0.01, noise_multiplier=1.0)
    PoissonSampledEvent(sampling_rate=0.01, noise_multiplier=1.0)
    """

    sampling_rate: float
    noise_multiplier: float
    kind: ClassVar[str] = "poisson_sampled"
    mu: ClassVar[None] = None
    rho: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_sampling_rate(self.sampling_rate)
        object.__setattr__(self, "sampling_rate", float(self.sampling_rate))
        GaussianEvent(self.noise_multiplier)

    @property
    def loss_variance(self) -> float:
        """Approximate variance of the privacy loss, ``q^2 (exp(1/z^2) - 1)`` and 1/z^2 at most."""
        if self.noise_multiplier == 0:
            return math.inf
        variance = 1 / self.noise_multiplier**2
        return min(variance, self.sampling_rate**2 * math.expm1(min(variance, 700.0)))

    @property
    def full_batch(self) -> GaussianEvent:
        """The same release of a sum over all records, which costs at least as much."""
        return GaussianEvent(self.noise_multiplier)

    @property
    def loss_reach(self) -> float:
        """Loss where the noise is twelve standard deviations beyond a record that is there."""
        q, z = self.sampling_rate, self.noise_multiplier
        reach = (24 / z + 1 / z**2) / 2
        # The logarithm of 1 + q (e^reach - 1), which could overflow.
        return reach + math.log(q + (1 - q) * math.exp(-reach))

    def parameters(self) -> dict[str, float]:
        """Return the fields by name."""
        return {"sampling_rate": self.sampling_rate, "noise_multiplier": self.noise_multiplier}

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event."""
        from dp_accounting import GaussianDpEvent
        from dp_accounting import PoissonSampledDpEvent as Sampled

        return Sampled(self.sampling_rate, GaussianDpEvent(self.noise_multiplier))

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distributions, of appearing and of vanishing."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        return from_gaussian_mechanism(
            self.noise_multiplier,
            sampling_prob=self.sampling_rate,
            value_discretization_interval=interval,
        )


@dataclass(frozen=True)
class SelectionEvent:
    """One choice by the exponential mechanism.

    Parameters
    ----------
    epsilon : float
        Bounded range of the choice under the ledger's neighbouring relation, above 0; ``inf`` for
        a choice without noise.

    Notes
    -----
    ``2 Phi^-1(1 / (1 + e^(-epsilon/2)))``-GDP and ``epsilon^2 / 8``-zCDP. Neither implies the
    other: which is better depends on what the choice is composed with.

    Examples
    --------
    >>> from dpglm.privacy.events import SelectionEvent
    >>> SelectionEvent(1.0).rho
    0.125
    """

    epsilon: float
    kind: ClassVar[str] = "selection"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    @property
    def mu(self) -> float:
        """Parameter of the best Gaussian trade-off below that of the choice."""
        return bounded_range_mu(self.epsilon)

    @property
    def rho(self) -> float:
        """Zero-concentrated differential privacy of the choice."""
        return bounded_range_rho(self.epsilon)

    def parameters(self) -> dict[str, float]:
        """Return the fields by name."""
        return {"epsilon": self.epsilon}

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event; its RDP accountant knows it, its PLD accountant not."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(self.rho)

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of the dominating pair.

        The pair of logistic laws at distance epsilon, of the profile `bounded_range_delta`.
        """
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        last = math.ceil(self.epsilon / interval)
        deltas = bounded_range_delta(self.epsilon, interval * np.arange(-last, last + 1.0))
        return PrivacyLossDistribution(
            create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
        )


@dataclass(frozen=True)
class LaplaceSelectionEvent:
    """One choice by report noisy max with Laplace noise.

    Parameters
    ----------
    epsilon : float
        Differential privacy of the choice under the ledger's neighbouring relation, above 0;
        ``inf`` for a choice without noise.

    Examples
    --------
    >>> from dpglm.privacy.events import LaplaceSelectionEvent
    >>> LaplaceSelectionEvent(1.0).rho
    0.5
    """

    epsilon: float
    kind: ClassVar[str] = "laplace_selection"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    @property
    def mu(self) -> float:
        """Parameter of the best Gaussian trade-off below that of the choice."""
        return pure_mu(self.epsilon)

    @property
    def rho(self) -> float:
        """Zero-concentrated differential privacy of the choice."""
        return pure_rho(self.epsilon)

    def parameters(self) -> dict[str, float]:
        """Return the fields by name."""
        return {"epsilon": self.epsilon}

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event; its RDP accountant knows it, its PLD accountant not."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(self.rho)

    def to_pld(self, interval: float) -> Any:
        """Return dp_accounting's privacy loss distribution of all epsilon-DP mechanisms."""
        from dp_accounting.pld.common import DifferentialPrivacyParameters
        from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters

        return from_privacy_parameters(DifferentialPrivacyParameters(self.epsilon, 0.0), interval)


@dataclass(frozen=True)
class FilterEvent:
    """Everything that an adaptive fit was ALLOWED to spend, whatever it did spend.

    Give exactly one of the two parameters.

    Parameters
    ----------
    mu : float, optional
        Parameter of the Gaussian trade-off of the whole transcript.
    rho : float, optional
        Its zero-concentrated differential privacy.

    Notes
    -----
    Costs were chosen while the fit ran, so a composition of the releases that happened is not a
    bound; the capacity of the filter is (`dpglm.privacy.budget.PrivacyFilter`).

    Examples
    --------
    >>> from dpglm.privacy.events import FilterEvent
    >>> FilterEvent(mu=0.5)
    FilterEvent(mu=0.5, rho=None)
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

    def parameters(self) -> dict[str, float]:
        """Return the field that was given, by name."""
        return {"mu": self.mu} if self.rho is None else {"rho": self.rho}

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event of the capacity.

        Under replace-one dp_accounting doubles a Gaussian's sensitivity by itself, which the
        capacity has already in it.
        """
        from dp_accounting import GaussianDpEvent, ZCDpEvent

        if self.mu is None:
            return ZCDpEvent(self.rho)
        return GaussianDpEvent(relation.sensitivity_factor / self.mu)

    def to_pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of the Gaussian of the same trade-off."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        if self.mu is None:
            raise ValueError(
                "A zCDP filter bounds Renyi divergences only and has no privacy loss distribution."
            )
        return from_gaussian_mechanism(1 / self.mu, value_discretization_interval=interval)


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon!r} must be a number above 0.")


def check_sampling_rate(sampling_rate: Any) -> None:
    """Raise a ValueError unless it can be the chance of a record to be in a batch."""
    number = isinstance(sampling_rate, Real) and not isinstance(sampling_rate, bool)
    if not number or not 1e-9 <= sampling_rate <= 1:
        raise ValueError(
            f"sampling_rate={sampling_rate!r} must be a number from 1e-9 to 1: the chance of each "
            "record to be in a batch."
        )


@dataclass(frozen=True)
class ObjectivePerturbationEvent:
    """The exact minimiser of one randomly tilted objective.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the tilt over the sensitivity of the gradient under the ledger's
        neighbouring relation. Zero means no noise.
    offset : float
        What the change of variables from the tilt to the minimiser can add to the privacy loss:
        `dpglm.baselines.perturbation.jacobian_offset`.

    Notes
    -----
    The profile is that of a Gaussian release of the same multiplier, at ``epsilon - offset``: no
    Gaussian trade-off and no zero-concentrated privacy without offset.

    Examples
    --------
    >>> from dpglm.privacy.events import ObjectivePerturbationEvent
    >>> ObjectivePerturbationEvent(noise_multiplier=4.0, offset=0.1).unshifted
    GaussianEvent(noise_multiplier=4.0)
    """

    noise_multiplier: float
    offset: float
    kind: ClassVar[str] = "objective_perturbation"
    mu: ClassVar[None] = None
    rho: ClassVar[None] = None

    def __post_init__(self) -> None:
        GaussianEvent(self.noise_multiplier)
        if isinstance(self.offset, bool) or not 0 <= self.offset < math.inf:
            raise ValueError(f"offset={self.offset!r} must be a finite number, 0 or above.")

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

    def parameters(self) -> dict[str, float]:
        """Return the fields by name."""
        return {"noise_multiplier": self.noise_multiplier, "offset": self.offset}

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
