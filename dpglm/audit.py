"""One-run audit: many canaries in one fit show whether its noise is what the ledger charged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, chi2, norm
from sklearn.base import clone
from sklearn.utils import check_random_state

from dpglm.plan import PrivacyPlan
from dpglm.preconditioning import DiagonalPreconditioner
from dpglm.privacy.composition import Event, composed_delta, composed_epsilon, composed_mu
from dpglm.privacy.ledger import run_lengths
from dpglm.schedules import PublicFacts, Schedule

__all__ = ["AuditResult", "CanaryScores", "audit_scores", "canary_scores", "release_weights"]

# The canaries' margins stay this small, so that the clip acts on all of them in every iteration.
_LARGEST_MARGIN = 0.05
# Row norm over clip: the gradient at margin zero is half of it, well above the clip.
_ROW_OVER_CLIP = 8.0


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
        The Gaussian differential privacy parameter claimed by the ledger; with mini-batches, the
        one that allows the hit rate which the ledger allows at the alarm rate of the audit.
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
    """Outcome of an audit.

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
    """

    mu_claimed: float
    mu_lower_bound: float
    variance: float
    variance_limits: tuple[float, float]
    shift: float
    shift_limit: float
    violations: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations


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

    The audit sees Gaussian releases of clipped gradients. With 500 canaries at mu = 1 and false
    alarm 1e-6 it catches halved noise or doubled sensitivity with probability above .999999, and
    misses noise that is 10 percent low. It does not see selections, the off-diagonal part of a
    second moment, row bounds, labels, traces or overflow.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.audit import CanaryScores, audit_scores
    >>> rng = np.random.default_rng(0)
    >>> present = rng.random(500) < 0.5
    >>> honest = CanaryScores(rng.normal(size=500) + present, present, shift=1.0, mu=1.0)
    >>> audit_scores(honest).passed
    True
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
    if shift > shift_limit:
        violations.append(
            "the canaries move the result further than charged: "
            f"shift {shift:.3g}, at most {shift_limit:.3g} expected"
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


def release_weights(plan: PrivacyPlan) -> np.ndarray:
    """Return the weight of each noisy mean gradient in minus the returned coefficients.

    Momentum, steps and averaging are linear, so pushing unit impulses through them gives the
    weights. The penalty is taken to be zero.

    Parameters
    ----------
    plan : PrivacyPlan

    Returns
    -------
    ndarray of shape (n_iter,)
    """
    impulses = np.eye(plan.n_iter)
    position, velocity, average = np.zeros((3, plan.n_iter))
    for t in range(plan.n_iter):
        direction, velocity = plan.momentum.direction(impulses[t], velocity, t + 1)
        position = position + plan.step[t] * direction
        average = average + plan.averaging[t] * position
    return average


class _Given(Schedule):
    """Values worked out beforehand."""

    def __init__(self, given: np.ndarray) -> None:
        self.given = given

    def values(self, n_iter: int, facts: PublicFacts) -> np.ndarray:
        return self.given


def canary_scores(
    estimator: Any,
    *,
    n_canaries: int = 500,
    stage: str = "gradients",
    random_state: Any = None,
) -> CanaryScores:
    """Fit a dpglm estimator once on canaries, and score each of them.

    Parameters
    ----------
    estimator : DPLogisticRegression or DPLinearSVM
        Cloned; its budget, relation, noise, clip, momentum and averaging are kept. The intercept
        and the penalty are switched off, and the steps scaled down so that every canary's
        gradient stays clipped. A full preconditioner, which would mix the canaries, is replaced
        by a diagonal one with the same share of the budget.
    n_canaries : int, default=500
        Each is a row on an axis of its own. Under ``"replace_one"`` its label is a coin flip;
        otherwise the coin decides whether it is there or a null row.
    stage : {"gradients", "second_moment"}, default="gradients"
        What to score. The gradients are scored given the second moment that a preconditioner
        released before them, and the second moment by what it says of each axis, for canaries
        that are there or rows of zeros under every relation.
    random_state : int, RandomState instance or None, default=None
        Of the coin flips, not of the noise.

    Returns
    -------
    CanaryScores
        With the claim of that stage.

    Notes
    -----
    The weighted noisy gradients make up the coefficients, ``-coef_i = sum_t w_t (b_it C_t g_i +
    s_t N_it) / (q n)`` with weights w_t of `release_weights`, and the score divides by ``S =
    sqrt(sum_t w_t^2 s_t^2)``. In the full batch (q = 1) every b_it is 1. With mini-batches they are
    Bernoulli(q): a present canary has mean ``q sum_t w_t C_t / S`` and variance ``1 + q (1 - q)
    sum_t w_t^2 C_t^2 / S^2``, an absent one still 1. The audit checks this marginal law: not that
    samples are independent of one another, nor the gain from an adversary's seeing every iterate.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import audit_scores, canary_scores
    >>> audit_scores(canary_scores(DPLogisticRegression(max_iter=20))).passed
    True
    >>> model = DPLogisticRegression(max_iter=20, preconditioner="diagonal")
    >>> audit_scores(canary_scores(model, stage="second_moment")).passed
    True
    """
    coins = check_random_state(random_state).randint(2, size=n_canaries).astype(bool)
    estimator = clone(estimator).set_params(fit_intercept=False, classes=[0, 1])
    if estimator.epsilon == math.inf:
        raise ValueError(f"epsilon={estimator.epsilon!r} claims nothing that could be audited.")
    if not isinstance(estimator.plan(n_canaries, n_canaries), PrivacyPlan):
        raise ValueError(
            f"{type(estimator).__name__} fixes no plan in advance for canaries to test."
        )
    release = estimator.plan(n_canaries, n_canaries).second_moment
    if release is not None and not release.preconditioner.diagonal:
        given = release.preconditioner
        same_share = DiagonalPreconditioner(given.share, row_bound=given.row_bound)
        estimator.set_params(preconditioner=same_share)
    if stage not in ("gradients", "second_moment") or (release is None and stage != "gradients"):
        raise ValueError(f"stage={stage!r} is not a stage of {estimator!r}.")

    plan = estimator.plan(n_canaries, n_canaries)
    row_norm, shrink = _saturating(plan, n_canaries)
    flips = estimator.neighboring_relation == "replace_one" and stage == "gradients"
    X = row_norm * np.diag(np.ones(n_canaries) if flips else coins.astype(float))
    y = coins.astype(int) if flips else np.ones(n_canaries, dtype=int)
    estimator.set_params(
        alpha=0.0,
        clip_schedule=_Given(plan.clip),
        noise_schedule=_Given(plan.facts.noise_std),
        step_schedule=_Given(shrink * plan.step),
    ).fit(X, y)
    if stage == "second_moment":
        return _second_moment_scores(estimator, coins)
    return _gradient_scores(estimator, coins, flips)


def _saturating(plan: PrivacyPlan, n_canaries: int) -> tuple[float, float]:
    """Return a norm of the canaries and a factor of the steps that keep every gradient clipped."""
    n_samples, release = plan.facts.n_samples, plan.second_moment
    plans, shortest, longest, least_norm = [plan], 1.0, 1.0, 0.0
    if release is not None:
        # a scale is the inverse root of a mean square, which is between the ridge and the largest
        noise_std = release.mechanism(0.0).noise_std(n_canaries)
        ridge = release.preconditioner.damping * noise_std / n_samples
        largest = (release.row_bound**2 + 10 * noise_std) / n_samples + ridge
        plans = [plan.in_whitened_space(dimension) for dimension in (1.0, float(n_canaries))]
        shortest, longest, least_norm = largest**-0.5, ridge**-0.5, release.row_bound
    clip = max(p.clip.max() for p in plans)
    row_norm = max(_ROW_OVER_CLIP * clip / shortest, least_norm)
    weights = release_weights(plan)
    reaches = (math.fsum(abs(weights) * p.clip) + 8 * _noise_scale(p, weights) for p in plans)
    reach = max(reaches) / plan.facts.expected_batch_size
    return row_norm, _LARGEST_MARGIN / (reach * row_norm * longest)


def _noise_scale(plan: PrivacyPlan, weights: np.ndarray) -> float:
    return math.sqrt(math.fsum((weights * plan.facts.noise_std) ** 2))


def _gradient_scores(estimator: Any, coins: np.ndarray, flips: bool) -> CanaryScores:
    plan, whitening = estimator.plan(len(coins), len(coins)), estimator.trace_.whitening
    scale = 1.0
    if whitening is not None:
        plan, scale = plan.in_whitened_space(whitening.effective_dimension), whitening.basis
    weights = release_weights(plan)
    noise_scale = _noise_scale(plan, weights)
    scores = estimator.coef_[0] / scale * plan.facts.expected_batch_size / noise_scale
    rate, moves = plan.sampling_rate, weights * plan.sensitivity / noise_scale
    shift = rate * math.fsum(moves)
    return CanaryScores(
        scores=scores + shift / 2 if flips else scores,
        present=coins,
        shift=shift,
        mu=_claimed_mu(estimator.trace_.events, float(norm.sf(shift / 2))),
        excess_variance=rate * (1 - rate) * math.fsum(moves**2),
    )


def _claimed_mu(events: Sequence[Event], alarm_rate: float) -> float:
    """Return the mu of the hit rate that these releases allow at this rate of false alarms."""
    runs = run_lengths(events)
    if all(event.mu is not None for event in events):
        return composed_mu(runs)
    epsilons = np.linspace(0.0, composed_epsilon(runs, alarm_rate / 1000), 200)
    hits = min(math.exp(e) * alarm_rate + composed_delta(runs, e) for e in epsilons)
    return float(norm.ppf(min(hits, 1.0)) - norm.ppf(alarm_rate))


def _second_moment_scores(estimator: Any, coins: np.ndarray) -> CanaryScores:
    plan, whitening = estimator.plan(len(coins), len(coins)), estimator.trace_.whitening
    return CanaryScores(
        scores=whitening.moment * plan.facts.n_samples / whitening.noise_std,
        present=coins,
        shift=plan.second_moment.row_bound**2 / whitening.noise_std,
        mu=whitening.event.mu,
    )
