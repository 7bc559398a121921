"""The event of objective perturbation, which is not a Gaussian release but close to one."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpglm.privacy.events import GaussianEvent, Relation

__all__ = ["ObjectivePerturbationEvent"]


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
        `dpglm.privacy.objective_perturbation_costs.jacobian_offset`.

    Notes
    -----
    The profile is that of a Gaussian release of the same multiplier, at ``epsilon - offset``: no
    Gaussian trade-off and no zero-concentrated privacy without offset.

    Examples
    --------
    >>> from dpglm.privacy.baseline_events import ObjectivePerturbationEvent
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
