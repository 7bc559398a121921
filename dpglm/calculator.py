"""The noise, iterations and epochs of a budget, before any data."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpglm.checks import check_number, check_whole
from dpglm.estimators.plan import gradient_event
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers, crossing, longest_run
from dpglm.privacy.events import GaussianEvent, SampledGaussianEvent, sampling_under
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
        (epsilon,) = self._check(epsilon=epsilon)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, _ANY_DELTA).delta(epsilon)

    def noise_multiplier(
        self, *, epsilon: float, delta: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the least noise at which a run costs no more than epsilon."""
        epsilon, delta, n_iter, sampling_rate = self._check(
            epsilon=epsilon, delta=delta, n_iter=n_iter, sampling_rate=sampling_rate
        )
        if sampling_rate == 1:
            return math.sqrt(n_iter) / PrivacyBudget(epsilon, delta).mu
        sampling = sampling_under(self.neighboring_relation)
        run, target = (np.ones(n_iter), sampling_rate), (epsilon, delta)
        return float(calibrated_multipliers(*run, *target, sampling=sampling)[0])

    def max_iter(
        self, *, epsilon: float, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> int:
        """Return the most iterations that cost no more than epsilon; 0 if one costs more."""
        epsilon, delta = self._check(epsilon=epsilon, delta=delta)
        noise_multiplier, sampling_rate = self._check(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate
        )
        mu = gdp_mu(epsilon, delta)
        if sampling_rate == 1:
            return math.floor((mu * noise_multiplier) ** 2)

        def cost(n_iter: int) -> float:
            return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

        # The central limit theorem gives a close first guess.
        sampling = sampling_under(self.neighboring_relation)
        variance = SampledGaussianEvent(sampling_rate, noise_multiplier, sampling).loss_variance
        return longest_run(cost, epsilon, max(mu**2 / variance, 1.0))

    def sampling_rate(
        self, *, epsilon: float, delta: float, noise_multiplier: float, n_iter: int
    ) -> float:
        """Return the largest sampling rate, up to 1, at which a run costs no more than epsilon."""
        epsilon, delta = self._check(epsilon=epsilon, delta=delta)

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
        self._check(noise_multiplier=noise_multiplier, n_iter=n_iter, delta=delta)
        self._check(sampling_rate=sampling_rate)
        sampling = sampling_under(self.neighboring_relation)
        event = gradient_event(float(noise_multiplier), float(sampling_rate), sampling)
        return PrivacyLedger(((event, int(n_iter)),), self.neighboring_relation, float(delta))

    def _check(self, **numbers: float) -> list[Any]:
        """Return Python's numbers, and refuse those that are out of range."""
        limits, checked = {"delta": {"below": 1}, "sampling_rate": {"at_most": 1}}, []
        for name, value in numbers.items():
            if name == "n_iter":
                checked.append(check_whole(name, value))
                continue
            own = limits.get(name, {"below": math.inf})
            checked.append(check_number(name, value, above=0, **own))
            if name == "noise_multiplier":
                GaussianEvent(checked[-1])
        return checked
