"""The tests that the scores of canaries are put through, and what these tests can see."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, chi2, norm

from dpglm.privacy.accounting import gdp_epsilon

__all__ = ["POWER", "AuditResult", "CanaryScores", "audit_scores"]

# What an audit is said to catch, it catches with this probability.
POWER = 0.99
_NO_EXCESS = 1e-9


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """What one fit says about each canary.

    Attributes
    ----------
    scores : ndarray of shape (n_canaries,)
        Standard normal for an absent canary if the claim holds, shifted up for a present one.
    present : ndarray of bool, shape (n_canaries,)
    shift : float
        The shift that the plan predicts for present canaries; at most ``mu``.
    mu : float
        The Gaussian differential privacy parameter claimed by the ledger; where the claim is not
        Gaussian, the one that allows the hit rate which the ledger allows at the alarm rate of
        the audit.
    excess_variance : float, default=0.0
        By how much the variance of a present canary's score exceeds 1: with mini-batches it is
        not in every one of them.
    """

    scores: np.ndarray
    present: np.ndarray
    shift: float
    mu: float
    excess_variance: float = 0.0


@dataclass(frozen=True)
class AuditResult:
    """Outcome of an audit of one noisy release, or of many that are added up.

    Attributes
    ----------
    mu_claimed : float
    mu_lower_bound : float
        Clopper-Pearson lower confidence bound on the true mu.
    variance : float
        Of the scores of absent canaries; 1 if the noise is as charged.
    variance_limits : tuple of float
        Outside of these the noise is not what was charged.
    shift : float
        Mean score of present canaries less that of absent ones.
    shift_limit : float
        Above this the sensitivity is larger than was charged.
    violations : tuple of str
        What was found, in words; empty if the audit passes.
    caught_noise : float
        Noise below this part of what was charged is caught with probability .99.
    caught_sensitivity : float
        So is a sensitivity of more than this times what was charged.
    """

    mu_claimed: float
    mu_lower_bound: float
    variance: float
    variance_limits: tuple[float, float]
    shift: float
    shift_limit: float
    violations: tuple[str, ...]
    caught_noise: float
    caught_sensitivity: float

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations

    @property
    def power(self) -> str:
        """What the audit would have caught with probability .99, in words."""
        return (
            f"noise below {self.caught_noise:.2f} or sensitivity above "
            f"{self.caught_sensitivity:.2f} times what was charged"
        )

    def bounds(self, delta: float) -> tuple[float, float]:
        """Return the lower confidence bound on epsilon at ``delta``, and the claim.

        Both are those of Gaussian releases of the two mu.
        """
        lower = gdp_epsilon(self.mu_lower_bound, delta) if self.mu_lower_bound > 0 else 0.0
        return lower, gdp_epsilon(self.mu_claimed, delta)


def audit_scores(canaries: CanaryScores, *, false_alarm: float = 1e-6) -> AuditResult:
    """Test the scores of canaries against the claim.

    Parameters
    ----------
    canaries : CanaryScores
        With at least two canaries present and two absent.
    false_alarm : float, default=1e-6
        Probability with which each of the three tests rejects a claim that holds.

    Returns
    -------
    AuditResult

    Notes
    -----
    Full-batch gradients of rows on different axes are disjoint, so one fit holds as many
    independent trials as canaries (after Steinke, Nasr & Jagielski 2023, "Privacy auditing with
    one (1) training run"). Three tests: the variance of the absent canaries' scores is
    chi-squared, two-sided (too small: noise is missing; too large: noise is used twice); the
    difference in means is at most the predicted shift; and the rates of guessing right by a
    threshold midway give ``mu >= Phi^-1(TPR) - Phi^-1(FPR)`` (Nasr et al. 2023) with
    Clopper-Pearson limits.

    These tests see releases with Gaussian noise. With 500 canaries at mu = 1 and false alarm 1e-6
    they catch halved noise or doubled sensitivity with probability above .999999, and miss noise
    that is 10 percent low. They see neither private choices nor what no canary comes near: row
    bounds, labels, traces, overflow.

    With k absent canaries, noise of f times what was charged is caught with probability .99 if
    ``f^2`` is below the ratio of the chi-squared quantiles at ``false_alarm / 2`` and .99, and a
    sensitivity of f times if the shift then exceeds its limit by 2.3 standard deviations.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.audit.report import CanaryScores, audit_scores
    >>> rng = np.random.default_rng(0)
    >>> present = rng.random(500) < 0.5
    >>> honest = CanaryScores(rng.normal(size=500) + present, present, shift=1.0, mu=1.0)
    >>> audit_scores(honest).passed
    True
    >>> audit_scores(honest).power
    'noise below 0.73 or sensitivity above 1.6... times what was charged'
    >>> leaky = CanaryScores(rng.normal(size=500) + 2 * present, present, shift=1.0, mu=1.0)
    >>> audit_scores(leaky).violations[0]
    'the canaries move the result further than charged: shift 1.9..., at most 1.4... expected'
    """
    inside = canaries.scores[canaries.present]
    outside = canaries.scores[~canaries.present]
    if min(len(inside), len(outside)) < 2:
        raise ValueError("An audit needs two or more canaries present, and two or more absent.")
    violations = []

    variance = float(outside.var(ddof=1))
    freedom = len(outside) - 1
    low, high = chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], freedom) / freedom
    if not low <= variance <= high:
        violations.append(
            f"the noise is not what was charged: variance {variance:.3g}, "
            f"between {low:.3g} and {high:.3g} expected"
        )

    shift = float(inside.mean() - outside.mean())
    spread = math.sqrt((1 + canaries.excess_variance) / len(inside) + 1 / len(outside))
    shift_limit = canaries.shift + norm.isf(false_alarm) * spread
    if not shift <= shift_limit:
        violations.append(
            "the canaries move the result further than charged: "
            f"shift {shift:.3g}, at most {shift_limit:.3g} expected"
        )

    if abs(canaries.excess_variance) < _NO_EXCESS and canaries.shift > canaries.mu * (1 + 1e-6):
        violations.append(
            f"the noise that was drawn is too little: a shift of {canaries.shift:.3g} follows from "
            f"it, and {canaries.mu:.3g} was claimed"
        )

    mu_lower_bound = _mu_lower_bound(inside, outside, canaries.shift / 2, false_alarm)
    if mu_lower_bound > canaries.mu:
        violations.append(f"mu is at least {mu_lower_bound:.3g}, and {canaries.mu:.3g} was claimed")
    return AuditResult(
        mu_claimed=canaries.mu,
        mu_lower_bound=mu_lower_bound,
        variance=variance,
        variance_limits=(float(low), float(high)),
        shift=shift,
        shift_limit=float(shift_limit),
        violations=tuple(violations),
        caught_noise=math.sqrt(low * freedom / chi2.ppf(POWER, freedom)),
        caught_sensitivity=float(shift_limit + norm.ppf(POWER) * spread) / canaries.shift,
    )


def _mu_lower_bound(
    inside: np.ndarray, outside: np.ndarray, threshold: float, false_alarm: float
) -> float:
    hits, alarms = int((inside > threshold).sum()), int((outside > threshold).sum())
    if hits == 0 or alarms == len(outside):
        return 0.0
    least_hit_rate = beta.ppf(false_alarm / 2, hits, len(inside) - hits + 1)
    most_alarm_rate = beta.isf(false_alarm / 2, alarms + 1, len(outside) - alarms)
    return max(float(norm.ppf(least_hit_rate) - norm.ppf(most_alarm_rate)), 0.0)
