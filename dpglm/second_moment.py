"""The release of the features' second moment: what it adds to a plan."""

import math
from dataclasses import dataclass
from typing import Any

from dpglm.limits import LARGEST_NOISE_MULTIPLIER
from dpglm.privacy.mechanisms import GaussianSum

__all__ = ["SecondMomentRelease"]


@dataclass(frozen=True)
class SecondMomentRelease:
    """The release of the features' second moment, which comes before the gradients.

    Parameters
    ----------
    preconditioner : Preconditioner
        What asked for it and will use it.
    row_bound : float
        Public bound that rows, intercept included, are clipped to.
    sensitivity : float
        L2 sensitivity of what is released under the neighbouring relation.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity.
    """

    preconditioner: Any
    row_bound: float
    sensitivity: float
    noise_multiplier: float

    def mechanism(self, rounding_slack: float) -> GaussianSum:
        """Return the mechanism; the slack is relative to the square of the row bound."""
        return GaussianSum(
            sensitivity=self.sensitivity,
            noise_multiplier=self.noise_multiplier,
            slack=rounding_slack * self.row_bound**2,
        )

    def refuse_all_noise(self) -> None:
        """Raise a ValueError if the release would say nothing about any data."""
        if self.noise_multiplier > LARGEST_NOISE_MULTIPLIER:
            raise ValueError(
                f"preconditioner={self.preconditioner!r} needs a noise_multiplier of "
                f"{self.noise_multiplier:.3g}, above {LARGEST_NOISE_MULTIPLIER:g}: its second "
                "moment would be all noise. Raise share or epsilon, or set preconditioner=None."
            )

    def left_over(self, mu: float) -> float:
        """Return the budget for the gradients, ``sqrt(mu^2 - 1/noise_multiplier^2)``."""
        if self.noise_multiplier == 0:
            return math.inf
        spent = 1 / self.noise_multiplier
        return math.sqrt((mu - spent) * (mu + spent))
