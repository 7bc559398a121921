"""Private choices: how often each candidate is chosen, against the claimed distribution."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import roots_legendre
from scipy.stats import binom, norm

from dpglm.audit.designs import ONE_RELEASE, prepared, releases_of
from dpglm.audit.statistics import POWER, AuditResult, root
from dpglm.baselines import PrivGene
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS

# The advantage of the best candidate, in nats.
_NATS = 4.0
_LARGEST_POWER = 1000.0


@dataclass(frozen=True, eq=False)
class ChoiceCounts:
    """How often each candidate was chosen in fits of the same data, (n_candidates,).

    ``law`` has the probabilities that the claim implies, and epsilon is the charge for a choice.
    """

    counts: np.ndarray
    law: np.ndarray
    epsilon: float


def audit_choices(choices: ChoiceCounts, *, false_positive_rate: float = 1e-6) -> AuditResult:
    """Test how often each candidate was chosen against the claimed distribution.

    Binomial tails of each count, with Bonferroni's correction, detect any other distribution. Noise
    of 1/b times the charge raises the weights to the power b, which Chernoff's inequality bounds.
    Each of the two tests rejects a claim that holds with the probability ``false_positive_rate``.
    """
    n_draws = int(choices.counts.sum())
    tails = binom.cdf(choices.counts, n_draws, choices.law)
    tails = np.minimum(tails, binom.sf(choices.counts - 1, n_draws, choices.law))
    p_value = min(1.0, 2 * len(tails) * float(tails.min()))
    # Means at least as large as the observed one have a probability of at most ``exp(-n KL)`` under
    # a smaller power of the weights.
    nats, law = -math.log(false_positive_rate), choices.law
    mean = float(choices.counts @ np.log(np.maximum(law, 1e-300)) / n_draws)
    seen = root(lambda p: _Tempered(law, p).mean - mean, 0.0, _LARGEST_POWER)
    of_seen = _Tempered(law, seen)
    lowest = root(lambda p: nats - n_draws * of_seen.divergence(_Tempered(law, p)), 0.0, seen)
    found = {
        f"the choices do not have the charged distribution: p-value {p_value:.2g}": p_value
        < false_positive_rate,
        f"the choices follow the scores too closely: epsilon is at least "
        f"{lowest * choices.epsilon:.3g}, and {choices.epsilon:.3g} was charged": lowest > 1,
    }
    # Noise of what size is detected with probability `POWER`?
    claimed = _Tempered(law, 1.0)
    limit = root(
        lambda p: n_draws * _Tempered(law, p).divergence(claimed) - nats, 1.0, _LARGEST_POWER
    )
    needed, spread = _Tempered(law, limit).mean, float(norm.ppf(POWER)) / math.sqrt(n_draws)

    def excess(power: float) -> float:
        raised = _Tempered(law, power)
        return raised.mean - spread * math.sqrt(raised.variance) - needed

    caught_noise = 1 / root(excess, limit, _LARGEST_POWER)
    return AuditResult(
        evidence=choices,
        violations=tuple(text for text, wrong in found.items() if wrong),
        power=f"noise below {caught_noise:.2f} times what was charged",
        lower_bound=lowest * choices.epsilon,
        caught_noise=caught_noise,
    )


class _Tempered:
    """Weights raised to a power: moments of their logarithms, and the logarithm of their sum."""

    def __init__(self, law: np.ndarray, power: float) -> None:
        logs = np.log(np.maximum(law, 1e-300))
        weights = np.exp(power * (logs - logs.max()))
        total = weights.sum()
        weights /= total
        self.power, self.log_sum = power, math.log(total) + power * logs.max()
        self.mean = float(weights @ logs)
        self.variance = float(weights @ np.square(logs - self.mean))

    def divergence(self, other: "_Tempered") -> float:
        """Return the Kullback-Leibler divergence from the distribution of another power."""
        return (self.power - other.power) * self.mean - self.log_sum + other.log_sum


def noisy_max_distribution(scores: np.ndarray, scale: float) -> np.ndarray:
    """Return the probability of each score to be the largest after Laplace noise."""
    u = (scores - scores.max()) / scale
    x = np.linspace(u.min() - 40, 40, 40_001)[:, np.newaxis]
    density = np.exp(-np.abs(x - u)) / 2
    below = np.where(x < u, density, 1 - density)
    others = np.exp(np.log(below).sum(axis=1, keepdims=True) - np.log(below))
    law = (density * others).sum(axis=0)
    return law / law.sum()


def permute_and_flip_law(scores: np.ndarray, scale: float) -> np.ndarray:
    """Return the probability of each score to be the largest after one-sided exponential noise.

    With ``p_i = exp((score_i - largest) / scale)`` it is ``p_i`` times the integral over v in
    (0, 1) of ``prod_(j != i) (1 - p_j v)``, a polynomial: Gauss-Legendre quadrature is exact.
    """
    p = np.exp((scores - scores.max()) / scale)
    nodes, weights = roots_legendre(len(p))
    factors = 1 - np.outer((nodes + 1) / 2, p)
    return p * (weights / 2 @ (factors.prod(axis=1, keepdims=True) / factors))


def choice_counts(estimator: Any, *, n_fits: int = 1000) -> ChoiceCounts:
    """Fit `DPAGDClassifier` or `PrivGene` many times on the same rows; count its first choice.

    The rows are such that every fit has the same scores. The most by which one record can move a
    score is computed here, not read from the fit's declaration.
    """
    settings = {"alpha": 0.0, "preconditioner": None, "step_shrink": 1.0}
    estimator = prepared(estimator, **ONE_RELEASE, **settings)
    factor = NEIGHBORING_RELATIONS[estimator.neighboring_relation].sensitivity_factor
    experiment = _mutations if isinstance(estimator, PrivGene) else _line_search
    X, score_range = experiment(estimator, factor)
    y = np.ones(len(X), dtype=int)
    # The plan takes longer than such a fit, and follows from public numbers: compute it once.
    estimator.plan = cache(estimator.plan)
    fits = (releases_of(estimator, X, y) for _ in range(n_fits))
    choices = [next(r for r in fit if not isinstance(r.answer, np.ndarray)) for fit in fits]
    scores, charged = choices[0].exact, choices[0].event
    scale = factor * score_range / charged.epsilon
    if charged.mechanism == "laplace":
        law = noisy_max_distribution(scores, scale)
    elif charged.mechanism == "permute_and_flip":
        law = permute_and_flip_law(scores, scale)
    else:
        law = np.exp((scores - scores.max()) / scale)
        law /= law.sum()
    counts = np.bincount([choice.answer for choice in choices], minlength=len(law))
    return ChoiceCounts(counts, law, charged.epsilon)


def _line_search(estimator: Any, factor: float) -> tuple[np.ndarray, float]:
    """Return equal rows, enough for a noisy gradient of the right sign, and the score range.

    The range is the most by which a record can change a score, before the factor of the relation.
    """
    n_rows = 50
    for _ in range(20):
        plan = estimator.plan(n_rows, 1)
        needed = math.ceil(8 * factor * plan.noise_multiplier(plan.gradient_cost))
        if needed <= n_rows:
            break
        n_rows = needed
    clip, bound = float(plan.clip[0]), plan.loss_clip
    row_norm, largest_margin = 8 * clip, 0.01
    if bound is not None:
        # All losses together then fall by some `_NATS` times the scale of the noise.
        nats = 2 * _NATS * factor * bound / (n_rows * plan.selection_epsilon)
        largest_margin = min(1.0, nats)
    max_step = largest_margin / row_norm
    estimator.set_params(max_step=max_step)
    # If losses are not clipped, a loss changes by at most the clipping norm times the step size.
    return np.full((n_rows, 1), row_norm), clip * max_step if bound is None else bound


def _mutations(estimator: Any, factor: float) -> tuple[np.ndarray, float]:
    """Return rows on four axes, none on the first and equally many more on each of the next."""
    plan = estimator.plan(100, 4)
    rows_of_axis = np.arange(4) * math.ceil(4 * _NATS * factor / plan.selection_epsilon / 3)
    rows = np.repeat(plan.feature_bound * np.eye(4), rows_of_axis, axis=0)
    return rows, 2 * float(plan.mutation[0]) * plan.feature_bound
