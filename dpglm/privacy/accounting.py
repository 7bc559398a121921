"""Events as dp-accounting, which is optional, knows them: its own event, and a distribution."""

import math
from typing import Any

import numpy as np

from dpglm.exceptions import require
from dpglm.privacy.events import (
    ChoiceEvent,
    Event,
    GaussianEvent,
    ObjectivePerturbationEvent,
    PureEvent,
    SampledGaussianEvent,
)
from dpglm.privacy.gaussian import Relation


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
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import common, pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    def gaussian(noise_multiplier: float, **sampling: Any) -> Any:
        return pld.from_gaussian_mechanism(
            noise_multiplier, value_discretization_interval=interval, **sampling
        )

    if isinstance(event, GaussianEvent):
        return gaussian(event.noise_multiplier)
    if isinstance(event, SampledGaussianEvent):
        sampling = {"sampling_prob": event.sampling_rate}
        if event.sampling != "poisson":
            sampling["neighboring_relation"] = NeighboringRelation.REPLACE_ONE
        return gaussian(event.std, **sampling)
    if isinstance(event, ObjectivePerturbationEvent):
        at = {math.ceil(event.offset / interval): 1.0}
        shift = pld.PrivacyLossDistribution(pld_pmf.SparsePLDPmf(at, interval, 0.0, True))
        return gaussian(event.noise_multiplier).compose(shift)
    if event.is_pure:
        parameters = common.DifferentialPrivacyParameters(event.epsilon, 0.0)
        return pld.from_privacy_parameters(parameters, interval)
    if isinstance(event, ChoiceEvent):
        last = math.ceil(event.epsilon / interval)
        deltas = bounded_range_delta(event.epsilon, interval * np.arange(-last, last + 1.0))
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
        return pld.PrivacyLossDistribution(pmf)
    if event.mu is None:
        raise ValueError(f"{event!r} has no privacy loss distribution, as it has no mu.")
    return gaussian(1 / event.mu)


def bounded_range_delta(epsilon: float, at: float | np.ndarray) -> float | np.ndarray:
    """Return the least delta, at epsilon' = ``at``, of all epsilon-bounded-range mechanisms.

    ``(1 - e^((epsilon' - epsilon) / 2))^2 / (1 - e^-epsilon)`` for ``|epsilon'| <= epsilon``
    (Dong, Durfee & Rogers 2020, "Optimal differential privacy composition for exponential
    mechanisms"); 0 above that, and ``1 - e^epsilon'`` below.
    """
    inside = np.clip(at, -epsilon, epsilon)
    delta = np.expm1((inside - epsilon) / 2) ** 2 / -math.expm1(-epsilon)
    delta = np.where(np.asarray(at) < -epsilon, -np.expm1(np.minimum(at, 0.0)), delta)
    return delta if delta.ndim else float(delta)
