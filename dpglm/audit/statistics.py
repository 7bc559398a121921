"""Tests of the scores of canaries, and the power of these tests."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainccinv, betaincinv, gammaincinv, ndtri

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
    evidence : CanaryScores or ChoiceCounts
        The data of the tests, and the claim.
    violations : tuple of str
        The violations, in words; empty if the audit passes.
    power : str
        The violations that the audit would have caught with probability 0.99, in words.
    lower_bound : float
        Clopper-Pearson bound on the mu of canaries, or bound on the epsilon of a private choice.
    caught_noise, caught_sensitivity : float
        Factors of the charged ones, beyond which they are caught with probability 0.99.
    """

    name: str = ""
    evidence: Any = field(repr=False)
    violations: tuple[str, ...]
    power: str
    lower_bound: float
    caught_noise: float
    caught_sensitivity: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations

    def bounds(self, delta: float) -> tuple[float, float]:
        """Return the lower confidence bound on epsilon, and the claim, both at ``delta``."""
        if not isinstance(self.evidence, CanaryScores):
            return self.lower_bound, self.evidence.epsilon
        return gdp_epsilon(self.lower_bound, delta), gdp_epsilon(self.evidence.mu, delta)


def audit_scores(canaries: CanaryScores, *, false_positive_rate: float = 1e-6) -> AuditResult:
    """Test the scores of canaries, of which some are present and some absent, against the claim.

    Canaries on separate axes are independent trials in one fit (Steinke, Nasr & Jagielski 2023).
    The variance of absent ones' scores is chi-squared. The difference in means is at most the
    predicted shift. A threshold midway gives ``mu >= Phi^-1(TPR) - Phi^-1(FPR)``. Each of the three
    tests rejects a claim that holds with the probability ``false_positive_rate``.
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
    # Clopper-Pearson limits of the rates of scores above a threshold.
    hits, alarms = (int((some > canaries.shift / 2).sum()) for some in (inside, outside))
    misses, rejections, level = len(inside) - hits, len(outside) - alarms, false_positive_rate / 2
    hit_rate = betaincinv(hits, misses + 1, level) if hits else 0.0
    alarm_rate = betainccinv(alarms + 1, rejections, level) if rejections else 1.0
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
        lower_bound=mu_lower_bound,
        caught_noise=caught_noise,
        caught_sensitivity=caught_sensitivity,
    )


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function passes zero, or the end of the interval that is nearer."""
    if rising(low) >= 0 or rising(high) <= 0:
        return low if rising(low) >= 0 else high
    return float(brentq(rising, low, high, xtol=1e-9))
