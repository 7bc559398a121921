"""Audits that know nothing of an estimator but ``fit``, ``coef_`` and its claim."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, binom
from sklearn.base import clone

from dpglm.audit.canaries import coin_flips

__all__ = ["BlackBoxResult", "audit_guesses", "audit_pair", "epsilon_of_guesses"]

_LARGEST_EPSILON = 100.0
_DELTAS = 100.0


@dataclass(frozen=True)
class BlackBoxResult:
    """Outcome of an audit from outside.

    Attributes
    ----------
    epsilon_claimed, epsilon_lower_bound : float
        At the delta of the claim.
    largest_epsilon : float
        The largest lower bound that the audit can give, if nothing is noisy.
    violations : tuple of str
    present, absent : ndarray
        The scores that were compared.
    """

    epsilon_claimed: float
    epsilon_lower_bound: float
    largest_epsilon: float
    violations: tuple[str, ...]
    present: np.ndarray
    absent: np.ndarray

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations

    @property
    def power(self) -> str:
        """What the audit would have caught, in words."""
        if self.largest_epsilon <= self.epsilon_claimed:
            return "nothing: no result could contradict so large an epsilon"
        return f"at most an epsilon of {self.largest_epsilon:.3g}, that of no noise at all"

    def bounds(self, delta: float) -> tuple[float, float]:
        """Return the lower confidence bound on epsilon, and the claim."""
        return self.epsilon_lower_bound, self.epsilon_claimed


def epsilon_of_guesses(
    n_canaries: int, n_guesses: int, n_correct: int, delta: float, false_alarm: float
) -> float:
    """Lower confidence bound on epsilon from guesses which canaries were there.

    Parameters
    ----------
    n_canaries, n_guesses, n_correct : int
        One need not guess for every canary.
    delta : float
    false_alarm : float

    Returns
    -------
    float

    Notes
    -----
    Steinke, Nasr & Jagielski (2023), Theorem 5.2: in one run of an (epsilon, delta)-differentially
    private algorithm on fair coins, the number of correct guesses exceeds v with probability at
    most that of a binomial with chance ``e^epsilon / (1 + e^epsilon)``, plus ``2 m delta alpha``
    with alpha the largest ``P(v > binomial >= v - i) / i``. Canaries need not be independent.

    Examples
    --------
    >>> from dpglm.audit.outside import epsilon_of_guesses
    >>> round(epsilon_of_guesses(1000, 1000, 1000, 0.0, 1e-6), 2)
    4.28
    """

    def p_value(epsilon: float) -> float:
        chance = 1 / (1 + math.exp(-epsilon))
        below = binom.pmf(n_correct - np.arange(1, n_correct + 1), n_guesses, chance)
        alpha = (np.cumsum(below) / np.arange(1, n_correct + 1)).max() if n_correct else 0.0
        return float(binom.sf(n_correct - 1, n_guesses, chance) + 2 * n_canaries * delta * alpha)

    if p_value(0.0) >= false_alarm:
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) < false_alarm else (low, middle)
    return low


def audit_guesses(
    estimator: Any,
    *,
    epsilon: float,
    delta: float,
    n_canaries: int = 500,
    row_norm: float = 1.0,
    false_alarm: float = 1e-6,
    random_state: Any = None,
) -> BlackBoxResult:
    """Fit once on canaries, guess which were there by their coefficients, and count.

    Parameters
    ----------
    estimator : estimator with ``fit`` and ``coef_``
    epsilon, delta : float
        The claim.
    n_canaries : int, default=500
        Rows on axes of their own, of both labels in turn; a coin makes each a row of zeros.
    row_norm : float, default=1.0
    false_alarm : float, default=1e-6
        Raised to 100 delta: an algorithm may reveal any one record with probability delta.
    random_state : int, RandomState instance or None, default=None
        Of the coin flips.

    Returns
    -------
    BlackBoxResult

    Notes
    -----
    The quarter with the largest coefficients (times the sign of their label) is guessed to be
    there, the quarter with the smallest not to be; see `epsilon_of_guesses`.
    """
    coins = coin_flips(n_canaries, random_state)
    false_alarm = max(false_alarm, _DELTAS * delta)
    y = np.arange(n_canaries) % 2
    coef = _fitted(estimator, np.diag(row_norm * coins), y)
    scores = (2 * y - 1) * coef.reshape(-1, n_canaries)[-1]
    quarter = n_canaries // 4
    order = np.argsort(scores, kind="stable")
    correct = int(coins[order[-quarter:]].sum() + (~coins[order[:quarter]]).sum())
    counted = (n_canaries, 2 * quarter)
    bound = epsilon_of_guesses(*counted, correct, delta, false_alarm)
    return BlackBoxResult(
        epsilon_claimed=epsilon,
        epsilon_lower_bound=bound,
        largest_epsilon=epsilon_of_guesses(*counted, 2 * quarter, delta, false_alarm),
        violations=_too_large(bound, epsilon),
        present=scores[coins],
        absent=scores[~coins],
    )


def audit_pair(
    estimator: Any,
    *,
    epsilon: float,
    delta: float,
    n_fits: int = 1000,
    row_norm: float = 1.0,
    n_features: int = 1,
    false_alarm: float = 1e-6,
) -> BlackBoxResult:
    """Fit many times on two data sets that differ in one record, and tell them apart.

    Parameters
    ----------
    estimator : estimator with ``fit`` and ``coef_``
    epsilon, delta : float
        The claim.
    n_fits : int, default=1000
        On each of the two.
    row_norm : float, default=1.0
        Of the record that one of them has; it is a row of zeros in the other.
    n_features : int, default=1
    false_alarm : float, default=1e-6

    Returns
    -------
    BlackBoxResult

    Notes
    -----
    The first half of the fits chooses a score and a threshold: the coefficients along the
    difference of their means, or minus their size. The second half gives Clopper-Pearson limits
    on the rates of hits and false alarms, and ``epsilon >= log((TPR - delta) / FPR)``, in either
    direction. Besides, no two fits of the same data may have equal coefficients: with noise that
    is any good they have not.
    """
    X = np.zeros((2, n_features))
    X[0] = row_norm / math.sqrt(n_features)
    y = np.array([1, 0])
    worlds = [
        np.array([_fitted(estimator, rows, y).ravel() for _ in range(n_fits)])
        for rows in (X, np.zeros_like(X))
    ]
    half = n_fits // 2
    limit = false_alarm / 4
    score, threshold, larger = _best_event([world[:half] for world in worlds], delta, limit)
    scores = [score(world[half:]) for world in worlds]
    rates = [_hits(values, threshold, larger) for values in scores]
    bound = _epsilon_of_rates(rates, n_fits - half, delta, limit)
    violations = list(_too_large(bound, epsilon))
    repeated = max(n_fits - len(np.unique(world, axis=0)) for world in worlds)
    if repeated:
        violations.append(
            f"the noise repeats itself: {repeated} of {n_fits} fits gave coefficients that "
            "another had given"
        )
    return BlackBoxResult(
        epsilon_claimed=epsilon,
        epsilon_lower_bound=bound,
        largest_epsilon=_epsilon_of_rates([n_fits - half, 0], n_fits - half, delta, limit),
        violations=tuple(violations),
        present=scores[0],
        absent=scores[1],
    )


def _fitted(estimator: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    estimator = clone(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, y)
    return np.asarray(estimator.coef_, dtype=float)


def _too_large(bound: float, epsilon: float) -> tuple[str, ...]:
    if bound <= epsilon:
        return ()
    return (f"epsilon is at least {bound:.3g}, and {epsilon:.3g} was claimed",)


def _best_event(
    worlds: list[np.ndarray], delta: float, limit: float
) -> tuple[Callable[[np.ndarray], np.ndarray], float, bool]:
    """Return the score, the threshold and the side of it that tell two samples apart best."""
    along = worlds[0].mean(axis=0) - worlds[1].mean(axis=0)
    best = (-1.0, None, 0.0, True)
    for score in (lambda coef: coef @ along, lambda coef: -np.linalg.norm(coef, axis=1)):
        values = [score(world) for world in worlds]
        for threshold in np.quantile(np.concatenate(values), np.linspace(0.01, 0.99, 99)):
            for larger in (True, False):
                rates = [_hits(own, threshold, larger) for own in values]
                bound = _epsilon_of_rates(rates, len(worlds[0]), delta, limit)
                if bound > best[0]:
                    best = (bound, score, float(threshold), larger)
    return best[1:]


def _hits(values: np.ndarray, threshold: float, larger: bool) -> int:
    return int(((values > threshold) == larger).sum())


def _epsilon_of_rates(hits: list[int], n_fits: int, delta: float, limit: float) -> float:
    """Return the larger of the bounds from either order of the two data sets."""
    bounds = [0.0]
    for often, rarely in (hits, hits[::-1]):
        if often == 0:
            continue
        least = beta.ppf(limit, often, n_fits - often + 1)
        most = beta.isf(limit, rarely + 1, n_fits - rarely) if rarely < n_fits else 1.0
        if least > delta:
            bounds.append(math.log((least - delta) / most))
    return max(bounds)
