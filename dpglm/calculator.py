"""What a budget buys, before any data: noise, iterations, epochs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real

import numpy as np
from scipy.optimize import brentq

from dpglm.estimators.plan import gradient_event
from dpglm.privacy.accounting import gdp_mu
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers
from dpglm.privacy.events import (
    NEIGHBORING_RELATIONS,
    SAMPLED_REPLACEMENT,
    GaussianEvent,
    PoissonSampledEvent,
)
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schedules import PublicFacts

__all__ = [
    "Looseness",
    "PrivacyCalculator",
    "ProactiveSettings",
    "excess_loss_bound",
    "optimal_n_iter",
    "public_constants",
    "saturation_n_iter",
]


def public_constants(
    facts: PublicFacts, *, row_bound: float | None = None, gap: float | None = None
) -> tuple[float, float]:
    """Condition number and noise-to-gap ratio of Hong, Wang & Zhou (2022), from public facts.

    Parameters
    ----------
    facts : PublicFacts
        With alpha, curvature and mu, relative to the clip: half the budget's mu under
        ``"replace_one"``. ``facts.clip`` bounds the gradients where it is known.
    row_bound : float, optional
        Largest L2 norm of a row; by default that of the facts.
    gap : float, optional
        Bound on the objective at zero less its minimum; by default log(K), for K classes.

    Returns
    -------
    kappa, noise_to_gap : float
        ``kappa = M / alpha`` with ``M = curvature * row_bound^2 + alpha``, and
        ``d C^2 / (2 mu^2 M n^2 gap)`` with clip C and d released values.

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, alpha=1e-3, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> kappa, noise_to_gap = public_constants(facts)
    >>> print(f"{kappa:.0f} {noise_to_gap:.2e}")
    251 2.08e-06
    """
    kappa = facts.condition_number(row_bound)
    gap = math.log(max(2, facts.n_outputs)) if gap is None else gap
    noise = _noise_per_root_iteration(facts, row_bound) ** 2
    return kappa, noise / (2 * kappa * facts.alpha * gap)


def optimal_n_iter(kappa: float, noise_to_gap: float, *, dynamic: bool = True) -> int:
    """Number of iterations that minimises the excess risk bound of Hong, Wang & Zhou (2022).

    Parameters
    ----------
    kappa, noise_to_gap : float
        From `public_constants`.
    dynamic : bool, default=True
        For `DynamicNoise`; otherwise for constant noise.

    Returns
    -------
    int
        At least 1.

    Notes
    -----
    With gamma = 1 - 1/kappa and a = noise_to_gap the bound, relative to the gap, is
    ``gamma^T + a ((1 - gamma^(T/2)) / (1 - gamma^(1/2)))^2`` for dynamic noise and
    ``gamma^T + kappa a T (1 - gamma^T)`` for constant noise. Both have a single minimum in T.

    Examples
    --------
    >>> optimal_n_iter(100, 1e-6), optimal_n_iter(100, 1e-6, dynamic=False)
    (649, 455)
    """
    if not 1 <= kappa < math.inf:
        raise ValueError(f"kappa={kappa!r} must be a finite number, 1 or more.")
    if not 0 < noise_to_gap < math.inf:
        raise ValueError(f"noise_to_gap={noise_to_gap!r} must be positive and finite.")
    if kappa == 1:
        return 1
    log_gamma = math.log1p(-1 / kappa)
    gap = -math.expm1(log_gamma / 2)
    cost = kappa * noise_to_gap

    def dynamic_bound(t: int) -> float:
        return math.exp(log_gamma * t) + noise_to_gap * (math.expm1(log_gamma * t / 2) / gap) ** 2

    def constant_bound(t: int) -> float:
        return math.exp(log_gamma * t) - cost * t * math.expm1(log_gamma * t)

    def constant_slope(t: float) -> float:
        decayed = log_gamma * math.exp(log_gamma * t)
        return decayed * (1 - cost * t) - cost * math.expm1(log_gamma * t)

    if dynamic:
        bound, optimum = dynamic_bound, -2 * math.log1p(gap**2 / noise_to_gap) / log_gamma
    else:
        # From a cost of 1 on the first iteration is one too many already.
        optimum = _root_above_1(constant_slope, 1 / cost)
        bound = constant_bound
    return min(max(1, math.floor(optimum)), max(1, math.ceil(optimum)), key=bound)


def _root_above_1(rising: Callable[[float], float], high: float) -> float:
    """Return where a function turns positive between 1 and `high`, 1 if that is before."""
    if high <= 1 or rising(1.0) >= 0:
        return 1.0
    return math.exp(brentq(lambda log_t: rising(math.exp(log_t)), 0.0, math.log(high)))


def saturation_n_iter(
    facts: PublicFacts, *, distance: float = 1.0, row_bound: float | None = None
) -> int:
    """Number of iterations beyond which noise, not descent, limits noisy gradient descent.

    Parameters
    ----------
    facts : PublicFacts
        As for `public_constants`, without need of alpha.
    distance : float, default=1.0
        Guess of the distance B from the start, zero, to the optimum.
    row_bound : float, optional
        Largest L2 norm of a row; by default that of the facts.

    Returns
    -------
    int
        At least 1.

    Notes
    -----
    `excess_loss_bound` with the steps of `LectureStep` and the average of all iterates. For a
    smooth loss it falls until ``T = n beta B mu / (C sqrt(2 d))``, where the two terms of the step
    agree, and is constant from there on. For a hinge it falls for ever, but no lower than the value
    without the descent's share, and at ``T = (n mu L / C)^2 / d`` the shares are equal. That is
    also where they are for a strongly convex objective with steps of ``2 / (alpha (t + 1))``.

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> saturation_n_iter(facts)
    208
    """
    noise = _noise_per_root_iteration(facts, row_bound)
    if facts.curvature == math.inf:
        return max(1, math.ceil((_lipschitz(facts, row_bound) / noise) ** 2))
    return max(1, math.ceil(facts.smoothness(row_bound) * distance / (math.sqrt(2) * noise)))


def excess_loss_bound(
    facts: PublicFacts, n_iter: int, *, distance: float = 1.0, row_bound: float | None = None
) -> float:
    """Bound on the mean loss above its minimum after so many iterations of `LectureStep`.

    Parameters
    ----------
    facts : PublicFacts
        As for `saturation_n_iter`.
    n_iter : int
    distance : float, default=1.0
    row_bound : float, optional

    Returns
    -------
    float
        Of the average of all iterates, in expectation, while no gradient is clipped.

    Notes
    -----
    The noise of T iterations has the standard deviation ``s = C sqrt(T) / (mu n)`` in each of d
    coordinates of the mean gradient. Smooth loss, step eta: ``B^2/(2 eta T) + eta d s^2``. Hinge:
    ``B sqrt((L^2 + d s^2) / T)``, L the row bound or the clip if that is smaller (compare Bubeck
    2015, Theorems 6.3 and 3.2).

    Examples
    --------
    >>> facts = PublicFacts(48842, 124, curvature=0.25, row_bound=1.0, mu=0.268)
    >>> [round(excess_loss_bound(facts, n), 5) for n in (10, 100, 208, 500)]
    [0.01253, 0.00154, 0.0012, 0.0012]
    """
    squared_noise = n_iter * _noise_per_root_iteration(facts, row_bound) ** 2
    if facts.curvature == math.inf:
        slope = math.sqrt(_lipschitz(facts, row_bound) ** 2 + squared_noise)
        return distance * slope / math.sqrt(n_iter)
    quietest = distance / math.sqrt(2 * n_iter * squared_noise)
    step = min(1 / facts.smoothness(row_bound), quietest)
    return distance**2 / (2 * step * n_iter) + step * squared_noise


def _clip(facts: PublicFacts, row_bound: float | None) -> float:
    if facts.clip is not None:
        return float(np.max(facts.clip))
    clip = facts.row_bound if row_bound is None else row_bound
    if clip is None or not 0 < clip < math.inf:
        raise ValueError(f"row_bound={clip!r} must be positive and finite where no clip is given.")
    return clip


def _lipschitz(facts: PublicFacts, row_bound: float | None) -> float:
    row_bound = facts.row_bound if row_bound is None else row_bound
    return _clip(facts, row_bound) if row_bound is None else min(_clip(facts, row_bound), row_bound)


def _noise_per_root_iteration(facts: PublicFacts, row_bound: float | None) -> float:
    """Norm of the noise on the mean gradient, over the square root of the number of iterations."""
    if facts.mu is None or not 0 < facts.mu < math.inf:
        raise ValueError(f"mu={facts.mu!r} must be positive and finite.")
    return math.sqrt(facts.n_released) * _clip(facts, row_bound) / (facts.mu * facts.n_samples)


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


_LARGEST_EPSILON = 0.5
# n_iter and sampling_rate are rounded numbers; conditions that they meet exactly are met.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Looseness:
    """What a claimed guarantee costs by exact accounting, and what would have sufficed for it.

    Parameters
    ----------
    claimed_epsilon, exact_epsilon : float
        At the same noise.
    noise_multiplier, needed_noise_multiplier : float
        For the claimed epsilon.
    """

    claimed_epsilon: float
    exact_epsilon: float
    noise_multiplier: float
    needed_noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        """How many times more noise is drawn than needed; below 1 the claim is wrong."""
        return self.noise_multiplier / self.needed_noise_multiplier

    def __str__(self) -> str:
        verdict = (
            f"{self.noise_ratio:.2f} times the {self.needed_noise_multiplier:.4g} needed"
            if self.exact_epsilon <= self.claimed_epsilon
            else f"too small: {self.needed_noise_multiplier:.4g} is needed"
        )
        return (
            f"claimed epsilon {self.claimed_epsilon:.4g}, exact {self.exact_epsilon:.4g}; "
            f"noise_multiplier {self.noise_multiplier:.4g} is {verdict}"
        )


@dataclass(frozen=True)
class ProactiveSettings:
    """Mini-batch settings with the noise of van Dijk et al.'s closed form.

    For comparison only: the package calibrates by exact accounting, which needs less noise and no
    conditions (`PrivacyCalculator.noise_multiplier`).

    Parameters
    ----------
    epsilon, delta : float
    n_samples, n_iter : int
    sampling_rate : float
        ``n_iter * sampling_rate`` is the number of epochs.

    Notes
    -----
    van Dijk, Nguyen, Nguyen & Nguyen (ICML 2024): sampling N records in T rounds over k epochs with
    ``sigma = sqrt(2 (epsilon + log(1/delta)) / epsilon)``, which depends on neither T nor k, is
    (epsilon, delta)-private for epsilon below 1/2 and delta = 1/N if T is about ``2 k^2 / epsilon``
    or more and ``(2/e)^2 k^2 - 1/2 >= log N``. With full batches k = T, so the third condition
    needs T of at most ``epsilon / 2``, less than one round: vacuous. The exact figures here are for
    Poisson sampling, and hold under ``"zero_out"`` and ``"add_or_remove_one"``.

    Examples
    --------
    >>> from dpglm.calculator import ProactiveSettings
    >>> settings = ProactiveSettings.fewest_rounds(epsilon=0.4, n_samples=10_000, n_epochs=10)
    >>> settings.n_iter, round(settings.noise_multiplier, 3)
    (500, 6.932)
    >>> print(settings.looseness())
    claimed epsilon 0.4, exact 0.1708; noise_multiplier 6.932 is 2.07 times the 3.349 needed
    """

    epsilon: float
    delta: float
    n_samples: int
    n_iter: int
    sampling_rate: float

    @classmethod
    def fewest_rounds(
        cls, *, epsilon: float, n_samples: int, n_epochs: float
    ) -> "ProactiveSettings":
        """Return the settings that the paper recommends: as few rounds as its conditions allow.

        Parameters
        ----------
        epsilon : float
        n_samples : int
        n_epochs : float

        Returns
        -------
        ProactiveSettings

        Raises
        ------
        ValueError
            Naming the conditions that fail.
        """
        n_iter = math.ceil(2 * n_epochs**2 / epsilon * (1 - _ROUNDING))
        settings = cls(epsilon, 1 / n_samples, n_samples, n_iter, n_epochs / n_iter)
        settings.check()
        return settings

    @property
    def n_epochs(self) -> float:
        """How often each record is used, on average."""
        return self.n_iter * self.sampling_rate

    @property
    def noise_multiplier(self) -> float:
        """The closed form, whether or not its conditions hold."""
        return math.sqrt(2 * (self.epsilon + math.log(1 / self.delta)) / self.epsilon)

    @property
    def broken_conditions(self) -> tuple[str, ...]:
        """The conditions of the theorem that fail, as sentences without a full stop."""
        n_epochs, fewest = self.n_epochs, 2 * self.n_epochs**2 / self.epsilon
        covered = (2 / math.e) ** 2 * n_epochs**2 - 0.5
        broken = []
        if not self.epsilon < _LARGEST_EPSILON:
            broken.append(f"epsilon={self.epsilon:g} must be below 1/2")
        if not math.isclose(self.delta * self.n_samples, 1, rel_tol=_ROUNDING):
            broken.append(f"delta={self.delta:g} must be 1/n_samples = {1 / self.n_samples:.3g}")
        if self.sampling_rate == 1:
            broken.append(
                "full batches (sampling_rate=1) make as many epochs as iterations, which needs "
                f"n_iter of at most epsilon/2 = {self.epsilon / 2:g}: no run satisfies it"
            )
        elif self.n_iter < fewest * (1 - _ROUNDING):
            broken.append(
                f"n_iter={self.n_iter} must be at least 2 n_epochs^2 / epsilon = {fewest:.6g}"
            )
        if covered < math.log(self.n_samples) * (1 - _ROUNDING):
            broken.append(
                f"n_epochs={n_epochs:g} is too few: (2/e)^2 n_epochs^2 - 1/2 = {covered:.3g} must "
                f"reach log(n_samples) = {math.log(self.n_samples):.3g}"
            )
        return tuple(broken)

    def check(self) -> None:
        """Raise a ValueError that names the conditions that fail, if any do."""
        if self.broken_conditions:
            raise ValueError(
                f"The closed form does not apply: {'; '.join(self.broken_conditions)}."
            )

    def looseness(self) -> Looseness:
        """Compare the closed form with exact accounting, whether or not its conditions hold.

        Raises
        ------
        ImportError
            Without dp-accounting, for a sampling rate below 1.
        """
        calculator = PrivacyCalculator()
        run = {"delta": self.delta, "n_iter": self.n_iter, "sampling_rate": self.sampling_rate}
        return Looseness(
            claimed_epsilon=self.epsilon,
            exact_epsilon=calculator.epsilon(noise_multiplier=self.noise_multiplier, **run),
            noise_multiplier=self.noise_multiplier,
            needed_noise_multiplier=calculator.noise_multiplier(epsilon=self.epsilon, **run),
        )
