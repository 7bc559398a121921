"""Private selection: mechanisms that choose by private scores, and a vault that uses them."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import methodcaller
from typing import Any, ClassVar

import numpy as np

from dpglm.privacy.events import ChoiceEvent
from dpglm.privacy.noise import EntropySource, rounded_laplace, uniform_below
from dpglm.privacy.vault import Vault, grid_spacing, plain

# Covers the rounding of weights (a few 2^-53 of exponents below 45) and of the scale itself.
_EXPONENT_ERROR = 1e-13
_SCALE_SLACK = 1e-12
# Weights are exact integers from 2^64 to 2^128, of relative precision 2^-53.
_WEIGHT_BITS = 128
_LEAST_EXPONENT = -44.0
# Noise is below 2^37 grid steps, so that a score this far below the largest never wins.
_LARGEST_SCORE = 2.0**40
# Covers the rounding of a direction of norm one, and of a step along it.
_LENGTH_SLACK = 1e-12
_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True)
class _Selection:
    """The parts that mechanisms share; ``epsilon=inf`` takes the largest score, at infinite cost.

    ``score_range`` bounds the largest change of a score less the least one, when one record changes
    under the neighbouring relation of the fit. ``slack`` is what rounding of the scores can add.
    """

    score_range: float
    epsilon: float
    slack: float = 0.0
    mechanism: ClassVar[str]

    def __post_init__(self) -> None:
        if self.epsilon == math.inf:
            return
        possible = self.epsilon > 1e-9 and self.slack >= 0
        if not (possible and 1e-250 < self._spread / self.epsilon < 1e250):
            raise ValueError(
                f"A choice with score_range={self.score_range!r} and epsilon={self.epsilon!r} "
                "cannot be drawn. The range over epsilon must lie between 1e-250 and 1e250, and "
                "epsilon above 1e-9."
            )

    @property
    def _spread(self) -> float:
        return self.score_range + self.slack

    @cached_property
    def event(self) -> ChoiceEvent:
        """The cost of a release."""
        return ChoiceEvent(self.epsilon, self.mechanism)

    def release(self, scores: np.ndarray, rng: EntropySource) -> int:
        """Return the index chosen among m finite scores, larger is better.

        A score that is not finite raises a FloatingPointError; nothing is drawn or released then.
        """
        if scores.ndim != 1:
            raise ValueError("Scores of a choice must be a vector.")
        if not np.isfinite(scores).all():
            raise FloatingPointError("A score to choose by is not finite; nothing was released.")
        if math.isinf(self.epsilon):
            return int(np.argmax(scores))
        return self._drawn(scores, rng)


@dataclass(frozen=True)
class ExponentialSelection(_Selection):
    """Choose an index with probability proportional to ``exp(score / scale)``.

    Notes
    -----
    Guarantee: the choice is epsilon-bounded-range, hence epsilon^2/8-zCDP (Dong, Durfee & Rogers
    2020; Cesar & Rogers 2021), with ``scale = (score_range + slack) / epsilon``. A sum of losses
    between 0 and L has a range of L when a record becomes null, and 2 L when it is replaced.

    The distribution is exact. Weights are integers, ``2^128 exp((score - largest) / scale)``, where
    exponents below -44 are raised to -44 (a contraction, which keeps the range). An exactly uniform
    integer below the sum of the weights decides. Floating-point error in an exponent is below
    1e-13, which the scale covers. The cumulative sums are not rounded.
    """

    mechanism: ClassVar[str] = "exponential"

    @property
    def scale(self) -> float:
        """Scale of the Gumbel noise whose largest noisy score has the same distribution."""
        if math.isinf(self.epsilon):
            return 0.0
        return self._spread * (1 + _SCALE_SLACK) / (self.epsilon - 8 * _EXPONENT_ERROR)

    def _drawn(self, scores: np.ndarray, rng: EntropySource) -> int:
        with np.errstate(over="ignore"):
            exponents = np.maximum((scores - scores.max()) / self.scale, _LEAST_EXPONENT)
        weights = [int(math.ldexp(math.exp(x), _WEIGHT_BITS)) for x in exponents]
        totals = list(accumulate(weights))
        return bisect_right(totals, uniform_below(totals[-1], rng))


@dataclass(frozen=True)
class LaplaceSelection(_Selection):
    """Add Laplace noise to every score and choose the largest (report noisy max).

    Notes
    -----
    Guarantee: the choice is epsilon-differentially private with noise of scale
    ``(score_range + slack) / epsilon``. Dwork & Roth (2014, Claim 3.9) show this for scores that a
    record only raises. The index of the largest score ignores a common shift, so changes within a
    window of that length suffice.

    Scores are snapped to a grid of about 2^-30 of the noise, which adds less than three grid steps
    to the range. The noise is an integer number of steps; the first of equals wins.
    """

    mechanism: ClassVar[str] = "laplace"

    @property
    def grid(self) -> float:
        """Spacing of the snapped scores, a power of two."""
        return grid_spacing(self._spread / self.epsilon)

    @property
    def scale(self) -> float:
        """Scale of the noise."""
        if math.isinf(self.epsilon):
            return 0.0
        scale = self._spread * (1 + _SCALE_SLACK) / self.epsilon
        return scale + 3 * self.grid / self.epsilon

    def _drawn(self, scores: np.ndarray, rng: EntropySource) -> int:
        noise = self._noise(len(scores), rng)
        # Relative to the largest, so that no step overflows.
        with np.errstate(over="ignore"):
            steps = np.maximum((scores - scores.max()) / self.grid, -_LARGEST_SCORE)
        return int(np.argmax(np.rint(steps).astype(np.int64) + noise))

    def _noise(self, size: int, rng: EntropySource) -> np.ndarray:
        """Draw numbers of steps on the grid (size,)."""
        return rounded_laplace(size, self.scale / self.grid, rng)


@dataclass(frozen=True)
class PermuteAndFlip(LaplaceSelection):
    """Add one-sided exponential noise to every score and choose the largest.

    The distribution is that of permute and flip (McKenna & Sheldon 2020; Ding et al. 2021).

    Notes
    -----
    Guarantee: the choice is epsilon-differentially private with noise of scale
    ``s = (score_range + slack) / epsilon``. Given the noise of the others, a candidate wins if its
    own noise exceeds some m, with probability ``min(1, exp(-m / s))``. Changes within a window of
    the range move m by at most the range, up or down. The magnitude of a rounded Laplace number is
    a rounded exponential one.
    """

    mechanism: ClassVar[str] = "permute_and_flip"

    def _noise(self, size: int, rng: EntropySource) -> np.ndarray:
        return np.abs(super()._noise(size, rng))


SELECTIONS = {
    choice.mechanism: choice for choice in (ExponentialSelection, LaplaceSelection, PermuteAndFlip)
}


class ChoosingVault(Vault):
    """A vault that also releases a private choice of a step size."""

    def choose_step(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        penalty: np.ndarray,
        mechanism: str,
        epsilon: float,
        clip: float,
        loss_clip: float | None,
    ) -> int:
        """Release a private choice of the point ``coef - step * direction`` with the least loss.

        The score of a step is minus the total loss after the step, less the public `penalty`.
        Losses are clipped to `loss_clip`. If `loss_clip` is None, they are changes of the loss
        whose gradient is the clipped gradient. A record then moves a score by at most the clipping
        norm times the length of the step. The changes by a record of several rows lie within a
        window of that length.
        """
        coef, direction = plain((coef, direction), (2, *self._sums.coef_shape))
        steps, penalty = np.array((steps, penalty), dtype=np.float64)
        epsilon, clip = float(epsilon), float(clip)
        if not np.linalg.norm(direction) <= 1 + _LENGTH_SLACK / 2:
            raise ValueError("direction must have a norm of at most one.")
        bound, slope_clip = loss_clip, None
        if loss_clip is None:
            bound, slope_clip = float(steps[-1] * clip) * (1 + _LENGTH_SLACK), clip
        rounding = self._sums.line_rounding(self._most_samples, bound)
        rounding += _UNIT_ROUNDOFF * (self._most_samples * bound + np.abs(penalty).max())
        choice = SELECTIONS[mechanism](
            score_range=self._moved_clips * bound,
            epsilon=epsilon,
            # Two scores of two data sets differ by up to four rounding errors.
            slack=0.0 if math.isinf(epsilon) else 4 * rounding,
        )

        bounds = {"loss_clip": loss_clip, "clip": slope_clip}
        ask = methodcaller("line_losses", coef, direction, steps, **bounds)
        # Without a bound on losses there is none on their rounding either.
        compared = {"ask": ask, "n_steps": steps.size} if bound < math.inf else {}
        return self._release_choice(choice, lambda: -(ask(self._sums) + penalty), **compared)

    def _release_choice(self, choice: Any, exact: Callable[[], np.ndarray], **compared: Any) -> int:
        """Release the index of a high score; a record changes scores by at most the range."""
        return self._release(
            choice.event,
            exact,
            lambda scores: choice.release(scores, self._entropy),
            moves=choice.score_range + choice.slack,
            noise_scale=choice.scale,
            **compared,
        )
