"""A privacy calculator: noise, iterations, sampling rate, epsilon or delta from the other four."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real

import numpy as np
from scipy.optimize import brentq

from dpglm.plan import gradient_event
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers
from dpglm.privacy.conversions import gdp_mu
from dpglm.privacy.events import (
    NEIGHBORING_RELATIONS,
    SAMPLED_REPLACEMENT,
    GaussianEvent,
    PoissonSampledEvent,
)
from dpglm.privacy.ledger import PrivacyLedger

__all__ = ["PrivacyCalculator"]

# A ledger wants a delta to report at, whatever it is asked for later.
_ANY_DELTA = 1e-6
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class PrivacyCalculator:
    """Five numbers fix the privacy of a run of equal steps: any four of them give the fifth.

    Each method is named after what it returns and takes the other four. Nothing here reads data,
    so asking costs no privacy.

    Parameters
    ----------
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which data sets must be indistinguishable.

    Notes
    -----
    ``noise_multiplier`` is the standard deviation of the noise over the sensitivity of the sum:
    the clip, or twice the clip under ``"replace_one"``. ``n_iter`` counts iterations; they make
    ``n_iter * sampling_rate`` epochs.

    Without sampling the answers are closed forms: T steps of noise multiplier z are together
    exactly ``sqrt(T)/z``-GDP (Dong, Roth & Su 2022, Corollary 2). With Poisson sampling they are
    those of the ledger, which composes privacy loss distributions with dp-accounting. Either way
    they are rounded to the private side: `noise_multiplier`, `max_iter` and `sampling_rate` never
    cost more than the epsilon asked for.

    Examples
    --------
    >>> from dpglm.calculator import PrivacyCalculator
    >>> calculator = PrivacyCalculator()
    >>> sigma = calculator.noise_multiplier(epsilon=1.0, delta=1e-6, n_iter=100)
    >>> round(sigma, 3)
    42.247
    >>> calculator.max_iter(epsilon=1.0, delta=1e-6, noise_multiplier=sigma)
    100
    """

    neighboring_relation: str = "zero_out"

    def __post_init__(self) -> None:
        if self.neighboring_relation not in NEIGHBORING_RELATIONS:
            raise ValueError(
                f"neighboring_relation={self.neighboring_relation!r} is unknown; "
                f"choose one of {sorted(NEIGHBORING_RELATIONS)}."
            )

    def epsilon(
        self, *, delta: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the epsilon that such a run costs.

        Parameters
        ----------
        delta, noise_multiplier : float
        n_iter : int
        sampling_rate : float, default=1.0
            Probability with which each record enters an iteration; 1 is the full batch.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If a number is out of range, or sampling is asked for under ``"replace_one"``.

        Examples
        --------
        >>> from dpglm.calculator import PrivacyCalculator
        >>> cost = PrivacyCalculator().epsilon(delta=1e-6, noise_multiplier=40.0, n_iter=100)
        >>> round(cost, 4)
        1.0607
        """
        _check_between("delta", delta, 1.0)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

    def delta(
        self, *, epsilon: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the delta at which such a run has this epsilon.

        Parameters
        ----------
        epsilon, noise_multiplier : float
        n_iter : int
        sampling_rate : float, default=1.0

        Returns
        -------
        float

        Raises
        ------
        ValueError
            As for `epsilon`.

        Examples
        --------
        >>> from dpglm.calculator import PrivacyCalculator
        >>> delta = PrivacyCalculator().delta(epsilon=1.0, noise_multiplier=40.0, n_iter=100)
        >>> print(f"{delta:.2e}")
        2.92e-06
        """
        _check_between("epsilon", epsilon)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, _ANY_DELTA).delta(epsilon)

    def noise_multiplier(
        self, *, epsilon: float, delta: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the least noise at which such a run costs no more than epsilon.

        Parameters
        ----------
        epsilon, delta : float
        n_iter : int
        sampling_rate : float, default=1.0

        Returns
        -------
        float

        Raises
        ------
        ValueError
            As for `epsilon`.

        Examples
        --------
        >>> from dpglm.calculator import PrivacyCalculator
        >>> sigma = PrivacyCalculator().noise_multiplier(epsilon=0.5, delta=1e-6, n_iter=100)
        >>> round(sigma, 3)
        80.576
        """
        self._check(epsilon=epsilon, delta=delta, n_iter=n_iter, sampling_rate=sampling_rate)
        if sampling_rate == 1:
            return math.sqrt(n_iter) / PrivacyBudget(epsilon, delta).mu
        return float(calibrated_multipliers(np.ones(n_iter), sampling_rate, epsilon, delta)[0])

    def max_iter(
        self, *, epsilon: float, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> int:
        """Return how many iterations cost no more than epsilon.

        Parameters
        ----------
        epsilon, delta, noise_multiplier : float
        sampling_rate : float, default=1.0

        Returns
        -------
        int
            0 where the noise is too small for a single one.

        Raises
        ------
        ValueError
            As for `epsilon`.

        Examples
        --------
        >>> from dpglm.calculator import PrivacyCalculator
        >>> PrivacyCalculator().max_iter(epsilon=2.0, delta=1e-6, noise_multiplier=40.0)
        321
        """
        self._check(
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
        )
        mu = gdp_mu(epsilon, delta)
        if sampling_rate == 1:
            return math.floor((mu * noise_multiplier) ** 2)

        @cache
        def excess(n_iter: int) -> float:
            ledger = self._ledger(noise_multiplier, n_iter, sampling_rate, delta)
            return _log_ratio(ledger.epsilon(), epsilon)

        if excess(1) > 0:
            return 0
        variance = PoissonSampledEvent(sampling_rate, noise_multiplier).loss_variance
        log_n_iter = _crossing(lambda x: excess(round(math.exp(x))), math.log(mu**2 / variance))
        n_iter = round(math.exp(log_n_iter))
        while excess(n_iter) > 0:
            n_iter -= 1
        while excess(n_iter + 1) <= 0:
            n_iter += 1
        return n_iter

    def sampling_rate(
        self, *, epsilon: float, delta: float, noise_multiplier: float, n_iter: int
    ) -> float:
        """Return the largest sampling rate at which such a run costs no more than epsilon.

        Parameters
        ----------
        epsilon, delta, noise_multiplier : float
        n_iter : int

        Returns
        -------
        float
            1 where the full batch is affordable.

        Raises
        ------
        ValueError
            As for `epsilon`.

        Examples
        --------
        >>> from dpglm.calculator import PrivacyCalculator
        >>> calculator = PrivacyCalculator()
        >>> run = {"epsilon": 1.0, "delta": 1e-6, "noise_multiplier": 4.0, "n_iter": 100}
        >>> print(f"{calculator.sampling_rate(**run):.4f}")
        0.0891
        """
        self._check(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, n_iter=n_iter)

        def excess(log_rate: float) -> float:
            ledger = self._ledger(noise_multiplier, n_iter, math.exp(log_rate), delta)
            return _log_ratio(ledger.epsilon(), epsilon)

        if excess(0.0) <= 0:
            return 1.0
        variance = n_iter * PoissonSampledEvent(1.0, noise_multiplier).loss_variance
        log_rate = _crossing(excess, math.log(gdp_mu(epsilon, delta)) - math.log(variance) / 2)
        while excess(log_rate) > 0:
            log_rate -= _TOLERANCE
        return math.exp(log_rate)

    def _ledger(
        self, noise_multiplier: float, n_iter: int, sampling_rate: float, delta: float
    ) -> PrivacyLedger:
        self._check(noise_multiplier=noise_multiplier, n_iter=n_iter, sampling_rate=sampling_rate)
        event = gradient_event(float(noise_multiplier), float(sampling_rate))
        return PrivacyLedger(((event, int(n_iter)),), self.neighboring_relation, float(delta))

    def _check(self, **numbers: float) -> None:
        for name, value in numbers.items():
            if name == "n_iter":
                _check_whole(name, value)
            elif name == "sampling_rate":
                _check_between(name, value, 1.0, closed=True)
                if value < 1 and self.neighboring_relation == "replace_one":
                    raise ValueError(SAMPLED_REPLACEMENT)
            else:
                _check_between(name, value, 1.0 if name == "delta" else math.inf)
                if name == "noise_multiplier":
                    GaussianEvent(float(value))


def _log_ratio(epsilon: float, limit: float) -> float:
    """Return a logarithm that is positive above the limit and finite at an epsilon of zero."""
    return math.log(max(epsilon, 1e-9 * limit) / limit)


def _crossing(excess: Callable[[float], float], guess: float) -> float:
    """Return where an increasing function of a logarithm crosses zero, searched from a guess.

    Near it, within 1e-6: callers step to the safe side.
    """
    low = high = guess
    step = 0.05
    while excess(low) > 0:
        low, high, step = low - step, low, 2 * step
    while excess(high) <= 0:
        low, high, step = high, high + step, 2 * step
    return brentq(excess, low, high, xtol=_TOLERANCE)


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more.")


def _check_between(
    name: str, value: object, most: float = math.inf, *, closed: bool = False
) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and (0 < value < most or (closed and value == most)):
        return
    rule = {
        math.inf: "must be a finite number above 0.",
        1.0: f"must be a number above 0 and {'at most' if closed else 'below'} 1.",
    }[most]
    raise ValueError(f"{name}={value!r} {rule}")
