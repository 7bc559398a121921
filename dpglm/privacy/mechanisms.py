"""Mechanisms: each turns a private value into a released one, and names what that cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpglm.privacy.events import (
    GaussianEvent,
    LaplaceSelectionEvent,
    PoissonSampledEvent,
    SelectionEvent,
)
from dpglm.privacy.noise import (
    EntropySource,
    grid_spacing,
    poisson_sample,
    rounded_gaussian,
    rounded_laplace,
    uniform_below,
)

__all__ = ["ExponentialSelection", "GaussianSum", "LaplaceSelection", "PoissonSampledSum"]

# Covers the rounding of the few operations that form the noise's standard deviation.
_ARITHMETIC_SLACK = 1e-12
# int64 holds the snapped sum plus any noise: |noise| is below 2**45 grid steps.
_LARGEST_STEP = 2.0**62
# Up to it the sampler's quantiles are right to within one grid step.
_LARGEST_SCALE = 2.0**40


@dataclass(frozen=True)
class GaussianSum:
    """Release a sum over records with Gaussian noise.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of the exact sum under the neighbouring relation of the fit.
    noise_multiplier : float
        Standard deviation of the noise over the effective sensitivity. Zero releases the sum
        itself, at infinite cost.
    slack : float, default=0.0
        How much floating-point summation can add to the sensitivity.

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

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.privacy.mechanisms import GaussianSum
    >>> from dpglm.privacy.noise import entropy_source
    >>> mechanism = GaussianSum(sensitivity=1.0, noise_multiplier=2.0)
    >>> noisy, event = mechanism.release(np.array([10.0, -3.0]), entropy_source(0))
    >>> noisy.shape, event
    ((2,), GaussianEvent(noise_multiplier=2.0))
    """

    sensitivity: float
    noise_multiplier: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        if self.noise_multiplier == 0:
            return
        std = self.noise_multiplier * self.sensitivity
        # Outside this range the grid, or the snapped sum, would leave the floating-point numbers.
        if not (1e-250 < std < 1e250 and self.noise_multiplier > 0 and self.slack >= 0):
            raise ValueError(
                f"Noise of standard deviation noise_multiplier * sensitivity = {std!r} cannot be "
                "drawn; it must lie between 1e-250 and 1e250. Rescale the clip."
            )

    @property
    def grid(self) -> float:
        """Spacing of the released values, a power of two."""
        return grid_spacing(self.noise_multiplier * self.sensitivity)

    def noise_std(self, size: int) -> float:
        """Return the standard deviation drawn for a release of ``size`` numbers."""
        if self.noise_multiplier == 0:
            return 0.0
        effective_sensitivity = self.sensitivity + self.grid * math.sqrt(size) + self.slack
        return self.noise_multiplier * effective_sensitivity * (1 + _ARITHMETIC_SLACK)

    def release(self, value: np.ndarray, rng: EntropySource) -> tuple[np.ndarray, GaussianEvent]:
        """Return the noisy value, and the event that pays for it.

        Parameters
        ----------
        value : ndarray of float64
            The exact sum, finite, of any shape.
        rng : EntropySource

        Returns
        -------
        noisy : ndarray of the same shape, multiples of ``grid``
        event : GaussianEvent

        Raises
        ------
        FloatingPointError
            If the sum is not finite; nothing is drawn or released then.
        """
        event = GaussianEvent(self.noise_multiplier)
        if self.noise_multiplier == 0:
            return value.copy(), event
        if not np.isfinite(value).all():
            raise FloatingPointError("The sum to release is not finite; nothing was released.")
        with np.errstate(over="ignore"):
            steps = np.clip(value / self.grid, -_LARGEST_STEP, _LARGEST_STEP)
        scale = self.noise_std(value.size) / self.grid
        if not scale <= _LARGEST_SCALE:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier:g} is too large for a release of "
                f"{value.size} numbers with slack {self.slack:g}; nothing was released."
            )
        noise = rounded_gaussian(value.size, scale, rng).reshape(value.shape)
        return (np.rint(steps).astype(np.int64) + noise) * self.grid, event


@dataclass(frozen=True)
class PoissonSampledSum:
    """Release a noisy sum over a Poisson sample of the records, which it draws itself.

    Parameters
    ----------
    sampling_rate : float
        Chance of each record, independently of the others.
    mechanism : GaussianSum
        Adds the noise; its sensitivity is that of a sum over any set of records.

    Notes
    -----
    Guarantee: the pair of laws of `PoissonSampledEvent` dominates the release when a record
    appears or vanishes, because sample and noise are fresh and the sample stays here. Nothing
    about it may be released, its size included.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.privacy.mechanisms import GaussianSum, PoissonSampledSum
    >>> from dpglm.privacy.noise import entropy_source
    >>> values = np.linspace(0.0, 1.0, 1000)
    >>> mechanism = PoissonSampledSum(0.1, GaussianSum(sensitivity=1.0, noise_multiplier=2.0))
    >>> noisy, event = mechanism.release(
    ...     lambda rows: values[rows].sum(keepdims=True), len(values), entropy_source()
    ... )
    >>> event
    PoissonSampledEvent(sampling_rate=0.1, noise_multiplier=2.0)
    """

    sampling_rate: float
    mechanism: GaussianSum

    def noise_std(self, size: int) -> float:
        """Return the standard deviation drawn for a release of ``size`` numbers."""
        return self.mechanism.noise_std(size)

    def release(
        self, sum_over: Callable[[np.ndarray], np.ndarray], n_rows: int, rng: EntropySource
    ) -> tuple[np.ndarray, PoissonSampledEvent]:
        """Return the noisy sum over a fresh sample, and the event that pays for it.

        Parameters
        ----------
        sum_over : callable
            Given increasing row numbers, returns the exact sum over these rows.
        n_rows : int
        rng : EntropySource
            Of the sample and of the noise.

        Returns
        -------
        noisy : ndarray
        event : PoissonSampledEvent
        """
        rows = poisson_sample(n_rows, self.sampling_rate, rng)
        noisy, event = self.mechanism.release(sum_over(rows), rng)
        return noisy, PoissonSampledEvent(self.sampling_rate, event.noise_multiplier)


# Covers the rounding of weights (a few 2^-53 of exponents below 45) and of the scale itself.
_EXPONENT_ERROR = 1e-13
_SCALE_SLACK = 1e-12
# Weights stay above 2^64 and below 2^128: exact integers, of relative precision 2^-53.
_WEIGHT_BITS = 128
_LEAST_EXPONENT = -44.0
# Noise is below 2^37 grid steps, so a score this far below the largest never wins.
_LARGEST_SCORE = 2.0**40


@dataclass(frozen=True)
class ExponentialSelection:
    """Choose an index with probability proportional to ``exp(score / scale)``.

    Parameters
    ----------
    score_range : float
        Most by which the change of one record can move one score more than another, under the
        neighbouring relation of the fit: the difference of the largest and the least change.
    epsilon : float
        Bounded range of the choice, above 1e-9. ``inf`` takes the largest score (the first of
        equals), at infinite cost.
    slack : float, default=0.0
        How much the rounding of the scores can add to the range.

    Notes
    -----
    Guarantee: the choice is epsilon-bounded-range, hence epsilon^2/8-zCDP (Dong, Durfee & Rogers
    2020; Cesar & Rogers 2021), with ``scale = (score_range + slack) / epsilon``. A score that one
    record moves in one direction only (a sum of losses between 0 and L, when a record becomes
    null) has a range of L; when one record replaces another the range is 2 L.

    The law is exact: weights are integers, ``2^128 exp((score - largest) / scale)`` with exponents
    below -44 raised to -44 (a contraction, which keeps the range), and an exactly uniform integer
    below their sum decides. Floating-point error in an exponent is below 1e-13, and the scale has
    that much spare; no probability is lost to the rounding of a cumulative sum.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.privacy.noise import entropy_source
    >>> from dpglm.privacy.mechanisms import ExponentialSelection
    >>> mechanism = ExponentialSelection(score_range=1.0, epsilon=2.0)
    >>> mechanism.release(np.array([0.0, 90.0, 1.0]), entropy_source(0))
    (1, SelectionEvent(epsilon=2.0))
    """

    score_range: float
    epsilon: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        _check_scale(self)

    @property
    def scale(self) -> float:
        """Scale of the Gumbel noise whose largest noisy score has the same law."""
        return _scale(self, self.epsilon - 8 * _EXPONENT_ERROR)

    def release(self, scores: np.ndarray, rng: EntropySource) -> tuple[int, SelectionEvent]:
        """Return the index chosen, and the event that pays for it.

        Parameters
        ----------
        scores : ndarray of float64, shape (m,)
            Finite; larger is better.
        rng : EntropySource

        Returns
        -------
        index : int
        event : SelectionEvent

        Raises
        ------
        FloatingPointError
            If a score is not finite; nothing is drawn or released then.
        """
        event = SelectionEvent(self.epsilon)
        _check_finite(scores)
        if self.epsilon == math.inf:
            return int(np.argmax(scores)), event
        with np.errstate(over="ignore"):
            exponents = np.maximum((scores - scores.max()) / self.scale, _LEAST_EXPONENT)
        weights = [int(math.ldexp(math.exp(x), _WEIGHT_BITS)) for x in exponents]
        ticket = uniform_below(sum(weights), rng)
        index = 0
        while ticket >= weights[index]:
            ticket -= weights[index]
            index += 1
        return index, event


@dataclass(frozen=True)
class LaplaceSelection:
    """Add Laplace noise to every score and choose the largest (report noisy max).

    Parameters
    ----------
    score_range : float
        As in `ExponentialSelection`.
    epsilon : float
        Differential privacy of the choice, above 1e-9; ``inf`` takes the largest score.
    slack : float, default=0.0
        How much the rounding of the scores can add to the range.

    Notes
    -----
    Guarantee: the choice is epsilon-differentially private with noise of scale
    ``(score_range + slack) / epsilon`` (Dwork & Roth 2014, Claim 3.9, for scores that a record
    only raises; the index of the largest ignores a common shift, so changes within a window of
    that length suffice). At the same epsilon it costs four times the exponential mechanism in
    zCDP; it is the choice of Lee & Kifer (2018).

    Scores are snapped to a grid of about 2^-30 of the noise, which adds less than three steps to
    the range, and the noise is an integer number of steps; the first of equals wins.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.privacy.noise import entropy_source
    >>> from dpglm.privacy.mechanisms import LaplaceSelection
    >>> mechanism = LaplaceSelection(score_range=1.0, epsilon=2.0)
    >>> mechanism.release(np.array([0.0, 90.0, 1.0]), entropy_source(0))
    (1, LaplaceSelectionEvent(epsilon=2.0))
    """

    score_range: float
    epsilon: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        _check_scale(self)

    @property
    def grid(self) -> float:
        """Spacing of the snapped scores, a power of two."""
        return grid_spacing((self.score_range + self.slack) / self.epsilon)

    @property
    def scale(self) -> float:
        """Scale of the noise."""
        if self.epsilon == math.inf:
            return 0.0
        return _scale(self, self.epsilon) + 3 * self.grid / self.epsilon

    def release(self, scores: np.ndarray, rng: EntropySource) -> tuple[int, LaplaceSelectionEvent]:
        """Return the index chosen, and the event that pays for it.

        Parameters
        ----------
        scores : ndarray of float64, shape (m,)
            Finite; larger is better.
        rng : EntropySource

        Returns
        -------
        index : int
        event : LaplaceSelectionEvent

        Raises
        ------
        FloatingPointError
            If a score is not finite; nothing is drawn or released then.
        """
        event = LaplaceSelectionEvent(self.epsilon)
        _check_finite(scores)
        if self.epsilon == math.inf:
            return int(np.argmax(scores)), event
        noise = rounded_laplace(len(scores), self.scale / self.grid, rng)
        # Relative to the largest, so that no step overflows.
        with np.errstate(over="ignore"):
            steps = np.maximum((scores - scores.max()) / self.grid, -_LARGEST_SCORE)
        return int(np.argmax(np.rint(steps).astype(np.int64) + noise)), event


def _check_scale(mechanism: ExponentialSelection | LaplaceSelection) -> None:
    if mechanism.epsilon == math.inf:
        return
    spread = mechanism.score_range + mechanism.slack
    possible = mechanism.epsilon > 1e-9 and mechanism.slack >= 0
    if not (possible and 1e-250 < spread / mechanism.epsilon < 1e250):
        raise ValueError(
            f"A choice with score_range={mechanism.score_range!r} and epsilon="
            f"{mechanism.epsilon!r} cannot be drawn: the range over epsilon must lie between "
            "1e-250 and 1e250, and epsilon above 1e-9."
        )


def _scale(mechanism: ExponentialSelection | LaplaceSelection, epsilon: float) -> float:
    if epsilon == math.inf:
        return 0.0
    return (mechanism.score_range + mechanism.slack) * (1 + _SCALE_SLACK) / epsilon


def _check_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise FloatingPointError("A score to choose by is not finite; nothing was released.")
