"""Tests of the scores of canaries, or of coefficients alone, and the power of these tests."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainccinv, betaincinv, gammaincinv, ndtri
from sklearn.base import clone

from dpglm.privacy.gaussian import gdp_epsilon

# Quantiles are from scipy.special: for a single one scipy.stats takes twenty times as long.

# The probability with which an audit catches a violation of the stated size.
POWER = 0.99


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """The scores of the canaries of one fit, (n_canaries,), and which of them are present.

    If the claim holds, an absent canary has a standard normal score. That of a present one is
    shifted up by `shift`, which follows from the plan, and has `excess_variance` in addition.
    ``mu`` is the claim. ``violations`` need no statistics.
    """

    scores: np.ndarray = field(repr=False)
    present: np.ndarray = field(repr=False)
    shift: float
    mu: float
    excess_variance: float = 0.0
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditResult:
    """Outcome of the audit of one kind of release.

    Attributes
    ----------
    name : str
        The kind of release.
    evidence : CanaryScores, ChoiceCounts, or scores with a record and without it
        The data of the tests.
    violations : tuple of str
        The violations, in words; empty if the audit passes.
    power : str
        The violations that the audit would have caught with probability 0.99, in words.
    mu_claimed, mu_lower_bound : float
        The claim, and a Clopper-Pearson bound; NaN, with the next two, but for canaries' scores.
    caught_sensitivity, caught_noise : float
        Factors of the charged ones, beyond which they are caught with probability 0.99.
    epsilon_claimed, epsilon_lower_bound : float
        The same bounds for a private choice, or for an audit by coefficients; NaN for canaries.
    """

    name: str = ""
    evidence: Any = field(repr=False)
    violations: tuple[str, ...]
    power: str
    mu_claimed: float = math.nan
    mu_lower_bound: float = math.nan
    caught_sensitivity: float = math.nan
    caught_noise: float = math.nan
    epsilon_claimed: float = math.nan
    epsilon_lower_bound: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations

    def bounds(self, delta: float) -> tuple[float, float]:
        """Return the lower confidence bound on epsilon, and the claim, both at ``delta``."""
        if math.isnan(self.mu_claimed):
            return self.epsilon_lower_bound, self.epsilon_claimed
        lower = gdp_epsilon(self.mu_lower_bound, delta) if self.mu_lower_bound > 0 else 0.0
        return lower, gdp_epsilon(self.mu_claimed, delta)


def audit_scores(canaries: CanaryScores, *, false_positive_rate: float = 1e-6) -> AuditResult:
    """Test the scores of canaries against the claim.

    Parameters
    ----------
    canaries : CanaryScores
        With at least two canaries present and two absent.
    false_positive_rate : float, default=1e-6
        Probability with which each of the three tests rejects a claim that holds.

    Returns
    -------
    AuditResult

    Notes
    -----
    Canaries on separate axes are independent trials in one fit (Steinke, Nasr & Jagielski 2023).
    The variance of absent ones' scores is chi-squared. The difference in means is at most the
    predicted shift. A threshold midway gives ``mu >= Phi^-1(TPR) - Phi^-1(FPR)``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.audit.statistics import CanaryScores, audit_scores
    >>> rng = np.random.default_rng(0)
    >>> present = rng.random(500) < 0.5
    >>> leaky = CanaryScores(rng.normal(size=500) + 2 * present, present, shift=1.0, mu=1.0)
    >>> audit_scores(leaky).violations[0]
    'the canaries move the result further than charged: shift 1.9..., at most 1.4... expected'
    """
    inside = canaries.scores[canaries.present]
    outside = canaries.scores[~canaries.present]
    if min(len(inside), len(outside)) < 2:
        raise ValueError("An audit needs at least two present and at least two absent canaries.")
    freedom = len(outside) - 1
    variance = float(outside.var(ddof=1))
    low, high, likely = (
        float(2 * gammaincinv(freedom / 2, p) / freedom)
        for p in (false_positive_rate / 2, 1 - false_positive_rate / 2, POWER)
    )
    shift = float(inside.mean() - outside.mean())
    spread = math.sqrt((1 + canaries.excess_variance) / len(inside) + 1 / len(outside))
    shift_limit = float(canaries.shift - ndtri(false_positive_rate) * spread)
    hits, alarms = (int((some > canaries.shift / 2).sum()) for some in (inside, outside))
    hit_rate = smallest_rate(hits, len(inside), false_positive_rate / 2)
    alarm_rate = largest_rate(alarms, len(outside), false_positive_rate / 2)
    mu_lower_bound = max(float(ndtri(hit_rate) - ndtri(alarm_rate)), 0.0)
    # Scores without excess variance are Gaussian: compare their shift with the claim.
    gaussian = abs(canaries.excess_variance) < 1e-9
    # With these comparisons a score of NaN is a violation.
    found = {
        f"the noise is not what was charged: variance {variance:.3g}, "
        f"between {low:.3g} and {high:.3g} expected": not low <= variance <= high,
        "the canaries move the result further than charged: "
        f"shift {shift:.3g}, at most {shift_limit:.3g} expected": not shift <= shift_limit,
        f"the noise that was drawn is too little: a shift of {canaries.shift:.3g} follows from "
        f"it, and {canaries.mu:.3g} was claimed": gaussian
        and canaries.shift > canaries.mu * (1 + 1e-6),
        f"mu is at least {mu_lower_bound:.3g}, and {canaries.mu:.3g} was claimed": mu_lower_bound
        > canaries.mu,
    }
    # With probability POWER the audit catches noise and sensitivity of these sizes.
    caught_noise = math.sqrt(low / likely)
    caught_sensitivity = float(shift_limit + ndtri(POWER) * spread) / canaries.shift
    return AuditResult(
        evidence=canaries,
        violations=(*(text for text, wrong in found.items() if wrong), *canaries.violations),
        power=f"noise below {caught_noise:.2f} or sensitivity above {caught_sensitivity:.2f} "
        "times what was charged",
        mu_claimed=canaries.mu,
        mu_lower_bound=mu_lower_bound,
        caught_sensitivity=caught_sensitivity,
        caught_noise=caught_noise,
    )


def smallest_rate(count: int, n_trials: int, level: float) -> float:
    """Return the lower Clopper-Pearson limit of a rate, too large with probability `level`."""
    return float(betaincinv(count, n_trials - count + 1, level)) if count else 0.0


def largest_rate(count: int, n_trials: int, level: float) -> float:
    """Return the upper Clopper-Pearson limit of a rate, too small with probability `level`."""
    return float(betainccinv(count + 1, n_trials - count, level)) if count < n_trials else 1.0


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function passes zero, or the end of the interval that is nearer."""
    if rising(low) >= 0 or rising(high) <= 0:
        return low if rising(low) >= 0 else high
    return float(brentq(rising, low, high, xtol=1e-9))


# --- An audit that uses only ``fit`` and ``coef_`` of an estimator, and its claim ---


def audit_pair(
    estimator: Any,
    epsilon: float,
    delta: float,
    *,
    n_fits: int,
    row_norm: float = 1.0,
    false_positive_rate: float = 1e-6,
) -> AuditResult:
    """Fit many times on two data sets that differ in one record, and distinguish them.

    The first half of the fits chooses a score and a threshold: the coefficients along the
    difference of their means, or minus their norm. The second half gives Clopper-Pearson limits on
    the true and false positive rates, and ``epsilon >= log((TPR - delta) / FPR)``, in either
    direction. In addition, no two fits of the same data may have equal coefficients.
    """
    X, y = np.array([[row_norm], [0.0]]), np.array([1, 0])
    with warnings.catch_warnings(action="ignore"):
        worlds = [
            np.array([np.ravel(clone(estimator).fit(rows, y).coef_) for _ in range(n_fits)], float)
            for rows in (X, np.zeros_like(X))
        ]
    half = n_fits // 2
    # Two directions, two limits each.
    limits = (delta, false_positive_rate / 4)
    score, threshold, larger = _best_event([world[:half] for world in worlds], *limits)
    scores = [score(world[half:]) for world in worlds]
    hits = [_hits(values, threshold, larger) for values in scores]
    shown, most = (
        _epsilon_of_rates(counts, n_fits - half, *limits) for counts in (hits, [n_fits - half, 0])
    )
    repeated = max(n_fits - len(np.unique(world, axis=0)) for world in worlds)
    found = {
        f"epsilon is at least {shown:.3g}, and {epsilon:.3g} was claimed": shown > epsilon,
        f"the noise repeats itself: {repeated} of {n_fits} fits gave coefficients that another "
        "had given": repeated > 0,
    }
    power = f"at most an epsilon of {most:.3g}, that of no noise at all"
    if most <= epsilon:
        power = "nothing: no result could contradict so large an epsilon"
    return AuditResult(
        name="two data sets, many fits",
        evidence=scores,
        violations=tuple(text for text, wrong in found.items() if wrong),
        power=power,
        epsilon_claimed=epsilon,
        epsilon_lower_bound=shown,
    )


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
