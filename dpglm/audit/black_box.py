"""Audits that use only ``fit`` and ``coef_`` of an estimator, and its claim."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom
from sklearn.base import clone

from dpglm.audit.statistics import AuditResult, largest_rate, root, smallest_rate

_LARGEST_EPSILON = 100.0
_DELTAS = 100.0


@dataclass(frozen=True, eq=False)
class TwoSamples:
    """Scores, of any unit, where a record was present and where it was absent."""

    present: np.ndarray
    absent: np.ndarray


def epsilon_of_guesses(
    n_canaries: int, n_guesses: int, n_correct: int, delta: float, false_positive_rate: float
) -> float:
    """Return a lower confidence bound on epsilon from guesses which canaries were there.

    Steinke, Nasr & Jagielski (2023), Theorem 5.2, for one run of an (epsilon, delta)-differentially
    private algorithm on fair coins. Let B be binomial with probability ``e^epsilon / (1 +
    e^epsilon)``. At least v guesses of m canaries are correct with probability at most ``P(B >= v)
    + 2 m delta alpha``, with alpha the largest ``P(v > B >= v - i) / i``. Canaries need not be
    independent, and some may have no guess.
    """

    def p_value(epsilon: float) -> float:
        chance = 1 / (1 + math.exp(-epsilon))
        below = binom.pmf(n_correct - np.arange(1, n_correct + 1), n_guesses, chance)
        alpha = (np.cumsum(below) / np.arange(1, n_correct + 1)).max() if n_correct else 0.0
        return float(binom.sf(n_correct - 1, n_guesses, chance) + 2 * n_canaries * delta * alpha)

    return root(lambda epsilon: p_value(epsilon) - false_positive_rate, 0.0, _LARGEST_EPSILON)


@dataclass(frozen=True, eq=False)
class BlackBoxAudit:
    """An estimator, its claim, the norm of the rows, and how often a test may be wrong."""

    estimator: Any
    epsilon: float
    delta: float
    row_norm: float = 1.0
    false_positive_rate: float = 1e-6

    def guesses(self, coins: np.ndarray) -> AuditResult:
        """Fit once on canaries, guess which were there by their coefficients, and count.

        Canaries alternate between both labels; a coin may make each a row of zeros. The quarter
        with the largest coefficients (times the sign of their label) is guessed to be present, the
        quarter with the smallest absent. The false positive rate is at least 100 delta: an
        algorithm may reveal any one record with probability delta.
        """
        n_canaries = len(coins)
        false_positive_rate = max(self.false_positive_rate, _DELTAS * self.delta)
        y = np.arange(n_canaries) % 2
        coef = self._fitted(np.diag(self.row_norm * coins), y)
        scores = (2 * y - 1) * coef.reshape(-1, n_canaries)[-1]
        quarter = n_canaries // 4
        order = np.argsort(scores, kind="stable")
        correct = int(coins[order[-quarter:]].sum() + (~coins[order[:quarter]]).sum())
        bounds = [
            epsilon_of_guesses(n_canaries, 2 * quarter, right, self.delta, false_positive_rate)
            for right in (correct, 2 * quarter)
        ]
        seen = TwoSamples(present=scores[coins], absent=scores[~coins])
        return self._part("guesses from one fit", seen, *bounds)

    def pair(self, n_fits: int) -> AuditResult:
        """Fit many times on two data sets that differ in one record, and distinguish them.

        The record is a row of zeros in one of them. The first half of the fits chooses a score and
        a threshold: the coefficients along the difference of their means, or minus their norm. The
        second half gives Clopper-Pearson limits on the true and false positive rates, and
        ``epsilon >= log((TPR - delta) / FPR)``, in either direction. In addition, no two fits of
        the same data may have equal coefficients.
        """
        X, y = np.array([[self.row_norm], [0.0]]), np.array([1, 0])
        worlds = [
            np.array([self._fitted(rows, y).ravel() for _ in range(n_fits)])
            for rows in (X, np.zeros_like(X))
        ]
        half = n_fits // 2
        # Two directions, two limits each.
        limits = (self.delta, self.false_positive_rate / 4)
        score, threshold, larger = _best_event([world[:half] for world in worlds], *limits)
        scores = [score(world[half:]) for world in worlds]
        hits = [_hits(values, threshold, larger) for values in scores]
        seen_and_most = (hits, [n_fits - half, 0])
        bounds = [_epsilon_of_rates(counts, n_fits - half, *limits) for counts in seen_and_most]
        repeated = max(n_fits - len(np.unique(world, axis=0)) for world in worlds)
        noise_repeats = (
            f"the noise repeats itself: {repeated} of {n_fits} fits gave coefficients that another "
            "had given"
        )
        also, seen = [noise_repeats] if repeated else [], TwoSamples(*scores)
        return self._part("two data sets, many fits", seen, *bounds, also)

    def _fitted(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        estimator = clone(self.estimator)
        with warnings.catch_warnings(action="ignore"):
            estimator.fit(X, y)
        return np.asarray(estimator.coef_, dtype=float)

    def _part(
        self, name: str, seen: TwoSamples, shown: float, largest: float, also: Sequence[str] = ()
    ) -> AuditResult:
        """Return the outcome, given the bound that was found and the bound without any noise."""
        too_large = f"epsilon is at least {shown:.3g}, and {self.epsilon:.3g} was claimed"
        power = f"at most an epsilon of {largest:.3g}, that of no noise at all"
        if largest <= self.epsilon:
            power = "nothing: no result could contradict so large an epsilon"
        violations = (*([too_large] if shown > self.epsilon else []), *also)
        bounds = {"epsilon_claimed": self.epsilon, "epsilon_lower_bound": shown}
        found = {"violations": violations, "power": power, **bounds}
        return AuditResult(name=name, evidence=seen, **found)


def _best_event(
    worlds: list[np.ndarray], delta: float, limit: float
) -> tuple[Callable[[np.ndarray], np.ndarray], float, bool]:
    """Return the score, the threshold and its side that distinguish two samples best."""
    along = worlds[0].mean(axis=0) - worlds[1].mean(axis=0)
    best = (-1.0, None, 0.0, True)
    for score in (lambda coef: coef @ along, lambda coef: -np.linalg.norm(coef, axis=1)):
        values = [score(world) for world in worlds]
        for threshold in np.quantile(np.concatenate(values), np.linspace(0.01, 0.99, 99)):
            for larger in (True, False):
                hits = [_hits(own, threshold, larger) for own in values]
                bound = _epsilon_of_rates(hits, len(worlds[0]), delta, limit)
                if bound > best[0]:
                    best = (bound, score, float(threshold), larger)
    return best[1:]


def _hits(values: np.ndarray, threshold: float, larger: bool) -> int:
    return int(((values > threshold) == larger).sum())


def _epsilon_of_rates(hits: list[int], n_fits: int, delta: float, limit: float) -> float:
    """Return the larger of the bounds from either order of the two data sets."""
    bounds = [0.0]
    for often, rarely in (hits, hits[::-1]):
        least = smallest_rate(often, n_fits, limit)
        if least > delta:
            bounds.append(math.log((least - delta) / largest_rate(rarely, n_fits, limit)))
    return max(bounds)
