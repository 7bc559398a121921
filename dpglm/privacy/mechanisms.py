"""Mechanisms: each turns a private sum into a released one, and names what that cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpglm.privacy.gaussian import GaussianEvent, PoissonSampledEvent
from dpglm.privacy.noise import EntropySource, poisson_sample, rounded_gaussian

__all__ = ["GaussianSum", "PoissonSampledSum", "grid_spacing"]

_GRID_BITS = 30

# Covers the rounding of the few operations that form the noise's standard deviation.
_ARITHMETIC_SLACK = 1e-12
# int64 holds the snapped sum plus any noise: |noise| is below 2**45 grid steps.
_LARGEST_STEP = 2.0**62
# Up to it the sampler's quantiles are right to within one grid step.
_LARGEST_SCALE = 2.0**40


def grid_spacing(std: float) -> float:
    """Return the power of two between ``std * 2**-31`` and ``std * 2**-30``.

    Released sums are multiples of this spacing, far finer than their noise.
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


@dataclass(frozen=True)
class GaussianSum:
    """Release a sum over records with Gaussian noise.

    ``sensitivity`` is the L2 sensitivity of the exact sum under the neighbouring relation of the
    fit, and ``slack`` what floating-point summation can add to it. ``noise_multiplier`` is the
    standard deviation of the noise over both; zero releases the sum itself, at infinite cost.

    Notes
    -----
    Guarantee: the released value is exactly ``1 / noise_multiplier``-GDP under any relation in
    which the computed sum moves by at most ``sensitivity + slack``. The sum is snapped to a grid
    of spacing g, a power of two near 2^-30 of the noise, and an exactly rounded Gaussian is
    added. The result equals an ideal Gaussian mechanism on the snapped sum, rounded to the grid;
    rounding is post-processing, and snapping d numbers adds at most ``g sqrt(d)`` to the
    sensitivity. g is fixed first, then the standard deviation is
    ``noise_multiplier * (sensitivity + g sqrt(d) + slack) * (1 + 1e-12)``, so the event's noise
    multiplier is exact.
    """

    sensitivity: float
    noise_multiplier: float
    slack: float = 0.0
    # What a release costs.
    event: GaussianEvent = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        std = self.noise_multiplier * self.sensitivity
        possible = 1e-250 < std < 1e250 and self.noise_multiplier > 0 and self.slack >= 0
        # Outside this range the grid, or the snapped sum, would leave the floating-point numbers.
        if self.noise_multiplier != 0 and not possible:
            raise ValueError(
                f"Noise of standard deviation noise_multiplier * sensitivity = {std!r} cannot be "
                "drawn; it must lie between 1e-250 and 1e250. Rescale the clip."
            )
        object.__setattr__(self, "event", GaussianEvent(self.noise_multiplier))

    @cached_property
    def grid(self) -> float:
        """Spacing of the released values, a power of two."""
        return grid_spacing(self.noise_multiplier * self.sensitivity)

    def noise_std(self, size: int) -> float:
        """Return the standard deviation drawn for a release of ``size`` numbers."""
        if self.noise_multiplier == 0:
            return 0.0
        effective_sensitivity = self.sensitivity + self.grid * math.sqrt(size) + self.slack
        return self.noise_multiplier * effective_sensitivity * (1 + _ARITHMETIC_SLACK)

    def check_drawable(self, size: int) -> None:
        """Raise a ValueError unless noise for so many numbers can be drawn exactly."""
        if self.noise_multiplier > 0 and not self.noise_std(size) / self.grid <= _LARGEST_SCALE:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier:g} is too large for a release of "
                f"{size} numbers with slack {self.slack:g}; nothing was released."
            )

    def release(self, value: np.ndarray, rng: EntropySource) -> tuple[np.ndarray, GaussianEvent]:
        """Return a float64 array of any shape with noise, multiples of ``grid``, and what it cost.

        An entry that is not finite raises a FloatingPointError; nothing is drawn or released then.
        """
        if self.noise_multiplier == 0:
            return value.copy(), self.event
        if not np.isfinite(value).all():
            raise FloatingPointError("The sum to release is not finite; nothing was released.")
        self.check_drawable(value.size)
        grid = self.grid
        with np.errstate(over="ignore"):
            steps = np.clip(value / grid, -_LARGEST_STEP, _LARGEST_STEP)
        noise = rounded_gaussian(value.size, self.noise_std(value.size) / grid, rng)
        return (np.rint(steps).astype(np.int64) + noise.reshape(value.shape)) * grid, self.event


@dataclass(frozen=True)
class PoissonSampledSum:
    """Release a noisy sum over a Poisson sample of the records, which it draws itself.

    Each record is in the sample with the chance ``sampling_rate``, independently of the others. The
    sensitivity of ``mechanism``, which adds the noise, is that of a sum over any set of records.

    Notes
    -----
    Guarantee: the pair of laws of `PoissonSampledEvent` dominates the release when a record
    appears or vanishes, because sample and noise are fresh and the sample stays here. Nothing
    about it may be released, its size included.
    """

    sampling_rate: float
    mechanism: GaussianSum

    def noise_std(self, size: int) -> float:
        """Return the standard deviation drawn for a release of ``size`` numbers."""
        return self.mechanism.noise_std(size)

    def release(
        self, sum_over: Callable[[np.ndarray], np.ndarray], n_rows: int, rng: EntropySource
    ) -> tuple[np.ndarray, PoissonSampledEvent]:
        """Return the noisy sum over a fresh sample, and what it cost.

        ``sum_over`` is given increasing row numbers and returns the exact sum over these rows.
        """
        rows = poisson_sample(n_rows, self.sampling_rate, rng)
        noisy, event = self.mechanism.release(sum_over(rows), rng)
        return noisy, PoissonSampledEvent(self.sampling_rate, event.noise_multiplier)
