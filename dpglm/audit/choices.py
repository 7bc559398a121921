"""Private choices: how often each candidate is chosen, against the law that is charged."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpglm.audit.canaries import prepared
from dpglm.audit.statistics import POWER
from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.privacy.events import NEIGHBORING_RELATIONS, LaplaceSelectionEvent

__all__ = ["ChoiceCounts", "ChoiceResult", "audit_choices", "choice_counts", "noisy_max_law"]

_QUADRATURE_POINTS = 40_001
# By how many nats the best of the candidates is to stand out.
_NATS = 4.0
_LARGEST_POWER = 1000.0


@dataclass(frozen=True, eq=False)
class ChoiceCounts:
    """How often each candidate was chosen in fits of the same data.

    Attributes
    ----------
    counts : ndarray of int, shape (n_candidates,)
    law : ndarray of shape (n_candidates,)
        The probabilities that the claim implies.
    epsilon : float
        What each choice is charged as.
    """

    counts: np.ndarray
    law: np.ndarray
    epsilon: float


@dataclass(frozen=True)
class ChoiceResult:
    """Outcome of the audit of a private choice.

    Attributes
    ----------
    epsilon_claimed, epsilon_lower_bound : float
        Of one choice; the bound is for choices with the weights of the claim, each raised to the
        same power.
    p_value : float
        Of the count that is furthest from the law of the claim, for all of them.
    violations : tuple of str
    caught_noise : float
        Noise below this part of what was charged is caught with probability .99.
    """

    epsilon_claimed: float
    epsilon_lower_bound: float
    p_value: float
    violations: tuple[str, ...]
    caught_noise: float

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.violations

    @property
    def power(self) -> str:
        """What the audit would have caught with probability .99, in words."""
        return f"noise below {self.caught_noise:.2f} times what was charged"

    def bounds(self, delta: float) -> tuple[float, float]:
        """Return the lower confidence bound on the epsilon of one choice, and the claim."""
        return self.epsilon_lower_bound, self.epsilon_claimed


def audit_choices(choices: ChoiceCounts, *, false_alarm: float = 1e-6) -> ChoiceResult:
    """Test how often each candidate was chosen against the law of the claim.

    Parameters
    ----------
    choices : ChoiceCounts
    false_alarm : float, default=1e-6
        Probability with which each of the two tests rejects a claim that holds.

    Returns
    -------
    ChoiceResult

    Notes
    -----
    Two tests, neither approximate. Binomial tails of each count, with Bonferroni's correction, see
    any other law. The mean logarithm of the law at the candidates chosen sees choices that
    follow the scores more closely than charged: if they have weights p^b, as they have with noise
    of 1/b times the charge, it rises with b, and gives a lower confidence bound on b by Chernoff's
    inequality.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.audit.choices import ChoiceCounts, audit_choices
    >>> law = np.array([0.1, 0.2, 0.7])
    >>> audit_choices(ChoiceCounts(np.array([103, 195, 702]), law, epsilon=1.0)).passed
    True
    >>> halved = ChoiceCounts(np.array([19, 74, 907]), law, epsilon=1.0)
    >>> audit_choices(halved).violations[0]
    'the choices do not have the law that was charged: p-value ...'
    """
    n_draws = int(choices.counts.sum())
    tails = binom.cdf(choices.counts, n_draws, choices.law)
    tails = np.minimum(tails, binom.sf(choices.counts - 1, n_draws, choices.law))
    p_value = min(1.0, 2 * len(tails) * float(tails.min()))
    violations = []
    if p_value < false_alarm:
        violations.append(
            f"the choices do not have the law that was charged: p-value {p_value:.2g}"
        )
    lowest = _least_power(choices, n_draws, -math.log(false_alarm))
    if lowest > 1:
        violations.append(
            f"the choices follow the scores too closely: epsilon is at least "
            f"{lowest * choices.epsilon:.3g}, and {choices.epsilon:.3g} was charged"
        )
    return ChoiceResult(
        epsilon_claimed=choices.epsilon,
        epsilon_lower_bound=lowest * choices.epsilon,
        p_value=p_value,
        violations=tuple(violations),
        caught_noise=1 / _caught_power(choices.law, n_draws, -math.log(false_alarm)),
    )


def _tempered(logs: np.ndarray, power: float) -> tuple[float, float, float]:
    """Return mean and variance of the log of a law under its weights raised to a power.

    And the logarithm of their sum.
    """
    exponents = power * (logs - logs.max())
    weights = np.exp(exponents)
    total = weights.sum()
    weights /= total
    mean = float(weights @ logs)
    return mean, float(weights @ np.square(logs - mean)), math.log(total) + power * logs.max()


def _divergence(logs: np.ndarray, power: float, other: float) -> float:
    """Return the Kullback-Leibler divergence of the law raised to two powers."""
    mean, _, log_sum = _tempered(logs, power)
    return (power - other) * mean - log_sum + _tempered(logs, other)[2]


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function passes zero, or the end of the interval that is nearer."""
    if rising(low) >= 0 or rising(high) <= 0:
        return low if rising(low) >= 0 else high
    return float(brentq(rising, low, high, xtol=1e-9))


def _least_power(choices: ChoiceCounts, n_draws: int, nats: float) -> float:
    """Return a lower confidence bound on the power to which the weights were raised.

    By Chernoff's bound: means as large as the one seen have a probability of at most
    ``exp(-n KL)`` under a smaller power.
    """
    logs = np.log(np.maximum(choices.law, 1e-300))
    mean = float(choices.counts @ logs / n_draws)
    power = _root(lambda power: _tempered(logs, power)[0] - mean, 0.0, _LARGEST_POWER)
    return _root(lambda other: nats - n_draws * _divergence(logs, power, other), 0.0, power)


def _caught_power(law: np.ndarray, n_draws: int, nats: float) -> float:
    """Return the power from which on weights are caught with probability `POWER`."""
    logs = np.log(np.maximum(law, 1e-300))
    limit = _root(lambda p: n_draws * _divergence(logs, p, 1.0) - nats, 1.0, _LARGEST_POWER)
    needed = _tempered(logs, limit)[0]

    def excess(power: float) -> float:
        mean, variance, _ = _tempered(logs, power)
        return mean - norm.ppf(POWER) * math.sqrt(variance / n_draws) - needed

    return _root(excess, limit, _LARGEST_POWER)


def noisy_max_law(scores: np.ndarray, scale: float) -> np.ndarray:
    """Return the probability of each score to be the largest after Laplace noise.

    Parameters
    ----------
    scores : ndarray
    scale : float

    Returns
    -------
    ndarray

    Examples
    --------
    >>> from dpglm.audit.choices import noisy_max_law
    >>> noisy_max_law(np.array([0.0, 0.0]), 1.0).round(6)
    array([0.5, 0.5])
    """
    u = (scores - scores.max()) / scale
    x = np.linspace(u.min() - 40, 40, _QUADRATURE_POINTS)[:, np.newaxis]
    density = np.exp(-np.abs(x - u)) / 2
    below = np.where(x < u, density, 1 - density)
    others = np.exp(np.log(below).sum(axis=1, keepdims=True) - np.log(below))
    law = (density * others).sum(axis=0)
    return law / law.sum()


def choice_counts(estimator: Any, *, n_fits: int = 1000) -> ChoiceCounts:
    """Fit an estimator many times on the same rows, and count its first choice.

    Parameters
    ----------
    estimator : DPAGDClassifier or PrivGene
        Cloned; two classes, no intercept, no penalty, no preconditioner, one iteration.
    n_fits : int, default=1000

    Returns
    -------
    ChoiceCounts

    Notes
    -----
    The rows are such that the scores are known: for a line search, equal rows of one feature, whose
    gradient is certain to point the right way; for PrivGene, different numbers of rows on four
    axes. By how much one record can move a score is worked out here, not read from the plan.
    """
    estimator = prepared(
        estimator,
        classes=[0, 1],
        class_weight=None,
        alpha=0.0,
        preconditioner=None,
        max_iter=1,
        step_shrink=1.0,
    )
    one_column = estimator.plan(100, 1)
    experiment = _line_search if isinstance(one_column, AdaptivePlan) else _mutations
    X, scores, score_range, chosen = experiment(estimator)
    y = np.ones(len(X), dtype=int)
    # The plan, which takes longer than such a fit, follows from public numbers: once is enough.
    estimator.plan = cache(estimator.plan)
    first = [chosen(estimator.fit(X, y).trace_) for _ in range(n_fits)]
    charged = estimator.trace_.events[-1]
    factor = NEIGHBORING_RELATIONS[estimator.neighboring_relation].sensitivity_factor
    scale = factor * score_range / charged.epsilon
    if isinstance(charged, LaplaceSelectionEvent):
        law = noisy_max_law(scores, scale)
    else:
        law = np.exp((scores - scores.max()) / scale)
        law /= law.sum()
    return ChoiceCounts(np.bincount(first, minlength=len(law)), law, charged.epsilon)


def _line_search(estimator: Any) -> tuple[np.ndarray, np.ndarray, float, Any]:
    factor = NEIGHBORING_RELATIONS[estimator.neighboring_relation].sensitivity_factor
    n_rows = 50
    for _ in range(20):
        plan = estimator.plan(n_rows, 1)
        needed = math.ceil(8 * factor * plan.noise_multiplier(plan.gradient_cost))
        if needed <= n_rows:
            break
        n_rows = needed
    clip, epsilon = float(plan.clip[0]), plan.selection_epsilon
    row_norm, loss = 8 * clip, estimator._loss(2)
    if plan.loss_clip is None:
        largest_margin, bound = 0.01, None
    else:
        largest_margin = min(1.0, 2 * _NATS * factor * plan.loss_clip / (n_rows * epsilon))
        bound = plan.loss_clip
    max_step = largest_margin / row_norm
    estimator.set_params(max_step=max_step)
    steps = np.linspace(0.0, max_step, plan.n_steps + 1)
    if bound is None:
        scores, bound = n_rows * clip * steps, clip * max_step
    else:
        losses = loss.value(row_norm * steps, np.ones(len(steps)))
        scores = -n_rows * np.minimum(losses, bound)

    def chosen(trace: Any) -> int:
        return round(trace.step[1] / max_step * plan.n_steps)

    return np.full((n_rows, 1), row_norm), scores, bound, chosen


def _mutations(estimator: Any) -> tuple[np.ndarray, np.ndarray, float, Any]:
    factor = NEIGHBORING_RELATIONS[estimator.neighboring_relation].sensitivity_factor
    plan = estimator.plan(100, 4)
    feature, mutation = plan.feature_bound, float(plan.mutation[0])
    rows_of_axis = np.array([0, 1, 2, 3]) * math.ceil(
        4 * _NATS * factor / plan.selection_epsilon / 3
    )
    X = np.repeat(feature * np.eye(4), rows_of_axis, axis=0)
    loss = estimator._loss(2)
    margins = mutation * feature * np.array([1.0, -1.0])
    gained = loss.value(np.zeros(1), np.ones(1)) - loss.value(margins, np.ones(2))
    scores = np.outer(gained, rows_of_axis).ravel()

    def chosen(trace: Any) -> int:
        return trace.column[0] + 4 * (trace.mutation[0] < 0)

    return X, scores, 2 * mutation * feature, chosen
