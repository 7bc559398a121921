"""Joint release of a few sums with delta = 0: the density of the noise depends on its maximum."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincc

from dpglm.privacy.events import PureEvent
from dpglm.privacy.noise import EntropySource, rounded_laplace, uniform_below
from dpglm.privacy.vault import grid_spacing

# A draw of d numbers takes d^d / d! tries: 416 for 8.
MOST_SUMS = 8
# Covers the rounding of an exponent below 44, and that of the probability to accept a draw.
_EXPONENT_ERROR = 1e-13
_SCALE_SLACK = 1e-12
# Probabilities of acceptance stay above 2^-64, so that truncation to 128 bits has no effect.
_WEIGHT_BITS = 128
_LARGEST_EXPONENT = 44.0
_LARGEST_STEP = 2.0**62


@dataclass(frozen=True)
class BoxSums:
    """Release d numbers, each of which a record moves by at most one, plus ``slack`` of rounding.

    ``epsilon=inf`` releases the numbers themselves.

    Notes
    -----
    Guarantee: epsilon-differential privacy, with delta = 0. The noise is that of Hardt & Talwar
    (2010, "On the geometry of differential privacy") for a box. Integers k on a grid have a
    probability proportional to ``exp(-max|k| / s)``. A record moves no snapped number by more than
    ``m = (1 + slack) / grid + 1`` grid steps. With ``s = (m + 1) / epsilon`` the probability of any
    answer changes by a factor of at most exp(epsilon); the additional step covers the zeros
    below. For one number this is Laplace noise. For d numbers the variance is ``(d + 1)(d + 2) /
    3``; d Laplace draws of epsilon / d each have ``2 d^2``.

    The noise is drawn by rejection. A draw of d rounded Laplace numbers of scale ``t = d s`` has a
    probability proportional to ``exp(-mean|k| / s)``, except for a factor ``2 / (exp(1 / 2t) + 1)``
    for each zero. This factor is above ``exp(-1 / 2t)``. A draw is kept with probability
    ``exp(-(max|k| - mean|k|) / s)``, which an exactly uniform integer decides. An exponent above 44
    counts as 44: minus the log-probability is then the smaller of ``max|k| / s`` and ``mean|k| / s
    + 44``, and neither moves by more than ``m / s``. The number of tries depends on no data. Each
    Laplace number has its exact distribution up to 2^-150 in total variation (`rounded_laplace`). A
    few thousand are drawn for an answer: the exact delta is below ``2^-130 (1 + exp(epsilon))``.
    """

    n_sums: int
    epsilon: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_sums <= MOST_SUMS:
            raise ValueError(f"n_sums={self.n_sums!r} must be from 1 to {MOST_SUMS}.")
        if not (self.epsilon > 1e-9 and 0 <= self.slack < 1):
            raise ValueError(f"epsilon={self.epsilon!r} must be a number above 1e-9.")

    @property
    def event(self) -> PureEvent:
        """The cost of a release."""
        return PureEvent(self.epsilon)

    @cached_property
    def grid(self) -> float:
        """Spacing of the released values, a power of two."""
        return grid_spacing(1 / self.epsilon)

    @property
    def scale(self) -> float:
        """Scale of the noise, for a sensitivity of one."""
        if math.isinf(self.epsilon):
            return 0.0
        moved = (1 + self.slack + 2 * self.grid) * (1 + _SCALE_SLACK)
        return moved / (self.epsilon - 8 * _EXPONENT_ERROR)

    def release(self, values: np.ndarray, rng: EntropySource) -> np.ndarray:
        """Return the numbers (d,) with noise; raise before a draw if one is not finite."""
        if math.isinf(self.epsilon):
            return values.copy()
        if not np.isfinite(values).all():
            raise FloatingPointError("A sum to release is not finite; nothing was released.")
        steps = np.clip(values / self.grid, -_LARGEST_STEP, _LARGEST_STEP)
        noise = box_noise(self.n_sums, self.scale / self.grid, rng)
        return (np.rint(steps).astype(np.int64) + noise) * self.grid


def box_noise(size: int, scale: float, entropy: EntropySource) -> np.ndarray:
    """Draw integers (size,) with a probability proportional to ``exp(-max|k| / scale)``."""
    while True:
        drawn = rounded_laplace(size, size * scale, entropy)
        exponent = (np.abs(drawn).max() - np.abs(drawn).mean()) / scale
        accepted = math.ldexp(math.exp(-min(exponent, _LARGEST_EXPONENT)), _WEIGHT_BITS)
        if uniform_below(2**_WEIGHT_BITS, entropy) < int(accepted):
            return drawn


def box_std(n_sums: int) -> float:
    """Return the standard deviation of one of d numbers, for a scale of one.

    The largest has a Gamma distribution of shape d. Together the numbers are a uniform point of a
    box whose half-width R has a Gamma distribution of shape d + 1: the variance is ``E[R^2] / 3``.
    """
    return math.sqrt((n_sums + 1) * (n_sums + 2) / 3)


def box_quantile(n_sums: int, level: float = 0.95) -> float:
    """Return the bound that one of d numbers exceeds in size with probability 1 - level.

    For a scale of one: ``P(|x| > t) = E[(1 - t / R)+]`` with R as in `box_std`.
    """

    def excess(t: float) -> float:
        exceeded = gammaincc(n_sums + 1, t) - t / n_sums * gammaincc(n_sums, t)
        return float(exceeded) - (1 - level)

    return brentq(excess, 0.0, 100.0 + 10 * n_sums)
