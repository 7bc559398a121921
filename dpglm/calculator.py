"""The noise, iterations, epochs, accuracy and intervals of a budget, before any data."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri

from dpglm.checks import check_number, check_whole
from dpglm.estimators.debiasing import NORMAL, squared_bound
from dpglm.estimators.plan import PrivacyPlan, gradient_event
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers, crossing, longest_run
from dpglm.privacy.events import sampled_event
from dpglm.privacy.gaussian import GaussianEvent, gdp_mu
from dpglm.privacy.ledger import PrivacyLedger

__all__ = ["ExpectedStandardErrors", "PrivacyCalculator", "expected_accuracy", "expected_errors"]

# A ledger needs a reporting delta, even if it is not used.
_ANY_DELTA = 1e-6
# Tolerance of searches, and largest absolute log-odds.
_TOLERANCE, _LARGEST_ODDS = 1e-6, 1e4


@dataclass(frozen=True)
class PrivacyCalculator:
    """Five numbers fix the privacy of a run of equal steps: any four of them give the fifth.

    Each method is named after its result and takes the other four. Nothing here reads data, so
    calls cost no privacy.

    Parameters
    ----------
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        The data sets that must be indistinguishable.

    Raises
    ------
    ValueError
        In each method, if a number is out of range.

    Notes
    -----
    ``noise_multiplier`` is the standard deviation of the noise over the sensitivity of the sum:
    the clipping norm, doubled under ``"replace_one"``. ``sampling_rate`` is the probability of each
    record to enter an iteration; a run makes ``n_iter * sampling_rate`` epochs.

    T full-batch steps of noise multiplier z are exactly ``sqrt(T)/z``-GDP (Dong, Roth & Su 2022,
    Corollary 2); dp-accounting composes batches numerically. Results are rounded to the private
    side: none costs more than the given epsilon.

    Examples
    --------
    >>> from dpglm import PrivacyCalculator
    >>> calculator = PrivacyCalculator()
    >>> sigma = calculator.noise_multiplier(epsilon=1.0, delta=1e-6, n_iter=100)
    >>> round(sigma, 3)
    42.247
    >>> calculator.max_iter(epsilon=1.0, delta=1e-6, noise_multiplier=sigma)
    100
    """

    neighboring_relation: str = "zero_out"

    def __post_init__(self) -> None:
        # Refuses an unknown relation.
        PrivacyLedger((), self.neighboring_relation, _ANY_DELTA)

    def epsilon(
        self, *, delta: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the epsilon of a run."""
        self._check(delta=delta)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

    def delta(
        self, *, epsilon: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the delta at which a run has this epsilon."""
        self._check(epsilon=epsilon)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, _ANY_DELTA).delta(epsilon)

    def noise_multiplier(
        self, *, epsilon: float, delta: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the least noise at which a run costs no more than epsilon."""
        self._check(epsilon=epsilon, delta=delta, n_iter=n_iter, sampling_rate=sampling_rate)
        if sampling_rate == 1:
            return math.sqrt(n_iter) / PrivacyBudget(epsilon, delta).mu
        target, kind = (epsilon, delta), sampled_event(self.neighboring_relation)
        return float(calibrated_multipliers(np.ones(n_iter), sampling_rate, *target, kind=kind)[0])

    def max_iter(
        self, *, epsilon: float, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> int:
        """Return the most iterations that cost no more than epsilon; 0 if one costs more."""
        self._check(epsilon=epsilon, delta=delta)
        self._check(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
        mu = gdp_mu(epsilon, delta)
        if sampling_rate == 1:
            return math.floor((mu * noise_multiplier) ** 2)

        def cost(n_iter: int) -> float:
            return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

        # The central limit theorem gives a close first guess.
        kind = sampled_event(self.neighboring_relation)
        variance = kind(sampling_rate, noise_multiplier).loss_variance
        return longest_run(cost, epsilon, max(mu**2 / variance, 1.0))

    def sampling_rate(
        self, *, epsilon: float, delta: float, noise_multiplier: float, n_iter: int
    ) -> float:
        """Return the largest sampling rate, up to 1, at which a run costs no more than epsilon."""
        self._check(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, n_iter=n_iter)

        def excess(log_rate: float) -> float:
            # Positive above the limit, and finite at an epsilon of zero.
            spent = self._ledger(noise_multiplier, n_iter, math.exp(log_rate), delta).epsilon()
            return math.log(max(spent, 1e-9 * epsilon) / epsilon)

        if excess(0.0) <= 0:
            return 1.0
        variance = n_iter * GaussianEvent(noise_multiplier).mu ** 2
        guess = math.log(gdp_mu(epsilon, delta)) - math.log(variance) / 2
        log_rate = crossing(excess, guess, _TOLERANCE)
        # The search may end on either side of the limit; this moves to the private side.
        while excess(log_rate) > 0:
            log_rate -= _TOLERANCE
        return math.exp(log_rate)

    def _ledger(
        self, noise_multiplier: float, n_iter: int, sampling_rate: float, delta: float
    ) -> PrivacyLedger:
        self._check(noise_multiplier=noise_multiplier, n_iter=n_iter, sampling_rate=sampling_rate)
        kind = sampled_event(self.neighboring_relation)
        event = gradient_event(float(noise_multiplier), float(sampling_rate), kind)
        return PrivacyLedger(((event, int(n_iter)),), self.neighboring_relation, float(delta))

    def _check(self, **numbers: float) -> None:
        """Refuse numbers that are out of range."""
        for name, value in numbers.items():
            if name == "n_iter":
                check_whole(name, value)
            elif name == "sampling_rate":
                check_number(name, value, above=0, at_most=1)
            elif name == "noise_multiplier":
                check_number(name, value, above=0, below=math.inf)
                GaussianEvent(value)
            else:
                check_number(name, value, above=0, below=1 if name == "delta" else math.inf)


def expected_accuracy(plan: PrivacyPlan, *, accuracy: float, majority: float = 0.5) -> float:
    """Return the expected accuracy of a planned fit, from theory.

    Parameters
    ----------
    plan : PrivacyPlan
        A plan of `DPLogisticRegression` for two classes, with the default `FullPreconditioner`.
    accuracy : float
        A guess of the accuracy without privacy.
    majority : float, default=0.5
        A guess of the fraction of the more frequent label, below `accuracy`. The result is no
        lower.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the plan is another, or unless ``0.5 <= majority < accuracy < 1``.

    Notes
    -----
    The model has d whitened columns of equal weight, rows of norm sqrt(d), and normal log-odds with
    the `accuracy` and `majority`. A clipping norm of ``c sqrt(d)`` then clips residuals at c. So
    the iterates are known except for noise: slope and intercept follow the mean gradient at the
    steps of the plan. In every other direction, noise decays with the mean curvature. The average
    has noise of standard deviation s in each column, which adds ``s sqrt(d)`` to a score. The
    accuracy is that of the sign.

    The model ignores noise in the basis, and columns below the noise level. On real tables its
    error was up to 0.8 points, and 7 with skewed columns (see the page on planning).
    `dpglm.study.simulated_accuracy` needs public rows and is more exact.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> plan = DPLogisticRegression(epsilon=0.1).plan(n_samples=39_000, n_features=107)
    >>> round(expected_accuracy(plan, accuracy=0.852, majority=0.76), 3)
    0.839
    """
    if (
        not isinstance(plan, PrivacyPlan)
        or plan.metadata.curvature != Logistic.curvature
        or plan.metadata.n_outputs > 1
        or plan.second_moment is None
        or plan.second_moment.preconditioner.diagonal
    ):
        raise ValueError(
            "Theory gives the expected accuracy of DPLogisticRegression with a full "
            "preconditioner and two classes only; simulate others on public rows."
        )
    chance = _chances(accuracy, majority)
    d = plan.metadata.n_features
    white = plan.in_whitened_space(d)
    design = np.column_stack([NORMAL, np.ones_like(NORMAL)])
    # The slope, the intercept, and the weight of each iteration's noise in a coefficient.
    coef = velocity = average = np.zeros(2 + white.n_iter)
    for t, clip in enumerate(white.clip / math.sqrt(d)):
        predicted = expit(design @ coef[:2])
        wrong = chance * np.maximum(predicted - 1, -clip)
        wrong += (1 - chance) * np.minimum(predicted, clip)
        unclipped = chance * (1 - predicted < clip) + (1 - chance) * (predicted < clip)
        curvature = np.mean(predicted * (1 - predicted) * unclipped)
        gradient = np.append(design.T @ wrong / len(design), curvature * coef[2:])
        gradient[2 + t] += 1.0
        direction, velocity = white.momentum.direction(gradient, velocity, t + 1)
        coef = coef - white.step[t] * direction
        average = average + white.averaging[t] * coef
    noise = (
        np.linalg.norm(average[2:] * white.metadata.noise_std) / white.metadata.expected_batch_size
    )
    # Without noise the sign is certain.
    score = design @ average[:2] / max(noise * math.sqrt(d), 1e-300)
    right = chance * ndtr(score) + (1 - chance) * ndtr(-score)
    return max(majority, float(np.mean(right)))


class ExpectedStandardErrors(NamedTuple):
    """Expected standard errors of coefficients: numbers, or arrays of them.

    Attributes
    ----------
    sampling, privacy : float or ndarray
        The errors due to the draw of the records and to the noise; NaN if suppressed.
    n_samples : int
        Number of records.
    """

    sampling: Any
    privacy: Any
    n_samples: int

    def width(self, level: float = 0.95) -> Any:
        """Return the widths of intervals."""
        return 2 * ndtri((1 + level) / 2) * np.hypot(self.sampling, self.privacy)

    def n_samples_for(self, width: float, level: float = 0.95) -> Any:
        """Return the number of records for intervals of this width, with the same budget.

        The first error falls with the root of this number, the second in proportion to it.
        """
        wanted = np.square(width / (2 * ndtri((1 + level) / 2)))
        first = self.n_samples * np.square(self.sampling)
        second = np.square(self.n_samples * self.privacy)
        return (first + np.sqrt(np.square(first) + 4 * second * wanted)) / (2 * wanted)


def expected_errors(
    plan: PrivacyPlan,
    *,
    accuracy: float,
    majority: float = 0.5,
    spread: float = 0.3,
    rarest: float = 0.1,
) -> ExpectedStandardErrors:
    """Return the expected standard errors of a coefficient, from theory.

    Parameters
    ----------
    plan : PrivacyPlan
        A plan of `DPLogisticRegression` with an ``inference_fraction``.
    accuracy, majority : float
        As in `expected_accuracy`.
    spread : float, default=0.3
        Standard deviation of the column given the others: 0.29 for uniform numbers in [0, 1],
        ``sqrt(s (1 - s))`` for a fraction s of ones.
    rarest : float, default=0.1
        The least mean square of all columns, which are in [0, 1]: for a category its frequency.

    Returns
    -------
    ExpectedStandardErrors

    Raises
    ------
    ValueError
        If the plan has no ``inference_fraction``, or `expected_accuracy` would refuse the guesses.

    Notes
    -----
    All columns are assumed to be in the model, and as correlated as `spread` implies.
    `dpglm.study.simulated_errors` needs public rows, and gives the errors of each parameter.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> plan = DPLogisticRegression(epsilon=1.0, inference_fraction=0.5).plan(40_000, 10)
    >>> errors = expected_errors(plan, accuracy=0.8)
    >>> bool(0.2 < errors.width() < 0.4)
    True
    """
    if not isinstance(plan, PrivacyPlan) or plan.debiasing is None:
        raise ValueError(
            "Intervals need DPLogisticRegression with an inference_fraction; plan with 0.5, say."
        )
    chance = _chances(accuracy, majority)
    n, release = plan.metadata.n_samples, plan.debiasing
    information = n * float(np.mean(chance * (1 - chance)))
    noise = release.noise_multiplier * plan.budget.sensitivity(1.0) / math.sqrt(release.n_averaged)
    noise *= math.sqrt(squared_bound(plan.metadata.n_features, rarest)) / information
    return ExpectedStandardErrors(1 / math.sqrt(information) / spread, noise / spread, n)


def _chances(accuracy: float, majority: float) -> np.ndarray:
    """Return chances of the more frequent label, with normal log-odds, for these numbers."""
    if not 0.5 <= majority < accuracy < 1:
        raise ValueError(
            f"accuracy={accuracy!r} must be below 1, and above majority={majority!r}, which is 0.5 "
            "or more: it is the accuracy of always predicting the more frequent label."
        )

    def chances(spread: float) -> np.ndarray:
        def excess(mean: float) -> float:
            return float(np.mean(expit(mean + spread * NORMAL))) - majority

        return expit(brentq(excess, -_LARGEST_ODDS, _LARGEST_ODDS) + spread * NORMAL)

    def gain(spread: float) -> float:
        chance = chances(spread)
        return float(np.mean(np.maximum(chance, 1 - chance))) - accuracy

    return chances(brentq(gain, _TOLERANCE, _LARGEST_ODDS / 4))
