"""The noise, iterations and epochs of a budget, before any data."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpglm.checks import check_number, check_whole
from dpglm.estimators.plan import gradient_event
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers, crossing, longest_run
from dpglm.privacy.events import GaussianEvent, check_sampling_rate, sampling_under
from dpglm.privacy.gaussian import gdp_mu
from dpglm.privacy.ledger import PrivacyLedger

# A ledger needs a reporting delta, even if it is not used.
_ANY_DELTA = 1e-6
_TOLERANCE = 1e-6


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
        return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

    def delta(
        self, *, epsilon: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the delta at which a run has this epsilon."""
        return self._ledger(noise_multiplier, n_iter, sampling_rate, _ANY_DELTA).delta(epsilon)

    def noise_multiplier(
        self, *, epsilon: float, delta: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the least noise at which a run costs no more than epsilon."""
        budget, n_iter = _budget(epsilon, delta), check_whole("n_iter", n_iter)
        sampling_rate = check_sampling_rate(sampling_rate)
        if sampling_rate == 1:
            return math.sqrt(n_iter) / budget.mu
        sampling = sampling_under(self.neighboring_relation)
        run, target = (np.ones(n_iter), sampling_rate), (budget.epsilon, budget.delta)
        return float(calibrated_multipliers(*run, *target, sampling=sampling)[0])

    def max_iter(
        self, *, epsilon: float, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> int:
        """Return the most iterations that cost no more than epsilon; 0 if one costs more."""
        budget, event = _budget(epsilon, delta), self._event(noise_multiplier, sampling_rate)
        if isinstance(event, GaussianEvent):
            return math.floor((gdp_mu(budget.epsilon, budget.delta) * event.noise_multiplier) ** 2)

        def cost(n_iter: int) -> float:
            return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

        # The central limit theorem gives a close first guess.
        guess = gdp_mu(budget.epsilon, budget.delta) ** 2 / event.loss_variance
        return longest_run(cost, budget.epsilon, max(guess, 1.0))

    def sampling_rate(
        self, *, epsilon: float, delta: float, noise_multiplier: float, n_iter: int
    ) -> float:
        """Return the largest sampling rate, up to 1, at which a run costs no more than epsilon."""
        budget = _budget(epsilon, delta)
        epsilon, delta = budget.epsilon, budget.delta

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

    def _event(self, noise_multiplier: float, sampling_rate: float) -> Any:
        sampling = sampling_under(self.neighboring_relation)
        return gradient_event(noise_multiplier, sampling_rate, sampling)

    def _ledger(
        self, noise_multiplier: float, n_iter: int, sampling_rate: float, delta: float
    ) -> PrivacyLedger:
        run = self._event(noise_multiplier, sampling_rate), check_whole("n_iter", n_iter)
        check_number("delta", delta, above=0, below=1)
        return PrivacyLedger((run,), self.neighboring_relation, delta)


def _budget(epsilon: float, delta: float) -> PrivacyBudget:
    """Return a finite budget, in Python's numbers."""
    check_number("epsilon", epsilon, below=math.inf)
    return PrivacyBudget(epsilon, delta)
