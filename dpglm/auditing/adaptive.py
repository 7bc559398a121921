"""Canaries for adaptive gradient descent, whose course is not known in advance."""

import math
from typing import Any

import numpy as np

from dpglm.adaptive_plan import AdaptivePlan
from dpglm.auditing.canaries import coin_flips, contained, prepared, saturating_norm
from dpglm.auditing.descent import (
    LARGEST_MARGIN,
    CanaryDirections,
    least_weight,
    mixing_replaced,
)
from dpglm.auditing.moments import second_moment_scores
from dpglm.auditing.statistics import CanaryScores
from dpglm.privacy.accountants import ACCOUNTANTS
from dpglm.trace import AdaptiveTrace

__all__ = ["adaptive_scores", "books_balance"]

# Rows of one label on an axis of their own, whose gradients dominate the length of a direction.
_RULER_ROWS = 4000


def adaptive_scores(
    estimator: Any,
    *,
    n_canaries: int = 500,
    stage: str = "gradients",
    container: str = "sparse",
    random_state: Any = None,
) -> tuple[CanaryScores, tuple[str, ...]]:
    """Fit an adaptive estimator once on canaries and a ruler, and score each canary.

    Parameters
    ----------
    estimator : DPAGDClassifier
        Cloned; intercept and penalty are switched off, and steps scaled down. A full
        preconditioner is replaced by a diagonal one, as in `canary_scores`.
    n_canaries : int, default=500
    stage : {"gradients", "second_moment"}, default="gradients"
    container : {"dense", "sparse", "blocks", "dask"}, default="sparse"
    random_state : int, RandomState instance or None, default=None
        Of the coin flips.

    Returns
    -------
    canaries : CanaryScores
        With the claim of the releases that show in the coefficients.
    complaints : tuple of str
        What is wrong with the books, as from `books_balance`.

    Notes
    -----
    Directions have length one, which the 4000 rows of the ruler, all on one axis, make known to a
    percent or so: with h the response of the momentum, ``L_t^2 = (M sum_s h_ts C_s)^2 + k (sum_s
    h_ts C_s)^2 + d sum_s h_ts^2 s_s^2`` for M rows of the ruler, k canaries and d columns. The
    coefficients are ``-sum_t a_t (sum_s h_ts G_s) / L_t`` with the steps a_t and noisy sums G_s, so
    the weight of each sum is known; gradients that were refined have the noise of their average,
    weighted by precision. Steps are a choice of the fit, but the ruler makes it, not the canaries.
    """
    coins = coin_flips(n_canaries, random_state)
    estimator = prepared(estimator, alpha=0.0, step_growth=0.0)
    labels = np.unique(estimator.classes)
    shape = (n_canaries + _RULER_ROWS, n_canaries + 1, len(labels))
    mixing_replaced(estimator, estimator.plan(*shape).second_moment)
    plan = estimator.plan(*shape)
    if stage != "gradients" and plan.second_moment is None:
        raise ValueError(f"stage={stage!r} is not a stage of {estimator!r}.")

    clips = [plan.clip]
    if plan.second_moment is not None:
        clips = [plan.in_whitened_space(d).clip for d in (1.0, float(n_canaries + 1))]
    row_norm, longest = saturating_norm(
        max(clip.max() for clip in clips),
        plan.facts.n_samples,
        plan.second_moment,
        n_columns=n_canaries + 1,
        copies=_RULER_ROWS,
        least_weight=least_weight(estimator),
    )
    # Costs never fall, so that this many iterations exhaust the budget.
    most = min(plan.n_iter, plan.capacity / (plan.gradient_cost + plan.selection_cost))
    estimator.set_params(max_step=LARGEST_MARGIN / (most * row_norm * longest))
    flips = estimator.neighboring_relation == "replace_one" and stage == "gradients"
    rows = np.r_[np.arange(n_canaries), np.full(_RULER_ROWS, n_canaries)]
    lengths = row_norm * np.r_[np.ones(n_canaries) if flips else coins, np.ones(_RULER_ROWS)]
    index = np.r_[coins if flips else np.ones(n_canaries), np.ones(_RULER_ROWS)].astype(int)
    estimator.fit(*contained(lengths, labels[index], container, columns=rows))

    trace, plan = estimator.trace_, estimator.plan(*shape)
    complaints = books_balance(trace, plan)
    if stage == "second_moment":
        return second_moment_scores(trace.whitening, plan, coins), complaints
    scale = 1.0
    if trace.whitening is not None:
        plan = plan.in_whitened_space(trace.whitening.effective_dimension)
        scale = trace.whitening.basis
    directions = CanaryDirections(estimator._loss(len(labels)), len(labels), flips)
    scores = directions.scores(estimator.coef_ / scale)[:n_canaries]
    n_present = n_canaries if flips else int(coins.sum())
    weights, noise_var, cost = _course(trace, plan, n_present)
    noise_scale = math.sqrt(math.fsum(weights**2 * noise_var))
    shift = directions.moves * math.fsum(weights * plan.clip[: len(weights)]) / noise_scale
    canaries = CanaryScores(
        scores=scores / noise_scale + directions.centre(shift),
        present=coins,
        shift=shift,
        mu=math.sqrt(cost if plan.accountant == "gdp" else 2 * cost),
    )
    return canaries, complaints


def _course(
    trace: AdaptiveTrace, plan: AdaptivePlan, n_present: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the weight and the noise of each sum of gradients, and what all of them cost."""
    columns = (trace.iteration, trace.release, trace.noise_scale, trace.cost, trace.step)
    releases = list(zip(*columns, strict=True))
    sums = [r for r in releases if r[1] in ("gradient", "refinement")]
    steps = {t: step for t, kind, _, _, step in releases if kind == "selection" and step}
    if not steps:
        raise ValueError(
            "The fit on canaries took no step, so that it shows nothing of its gradients; audit "
            "a larger epsilon."
        )
    taken = np.array([steps[t] for t in sorted(steps)])
    precision = np.zeros(len(taken))
    for t, _, std, _, _ in sums:
        if t <= len(taken):
            precision[t - 1] += std**-2
    impulses, velocity = np.eye(len(taken)), np.zeros(len(taken))
    weights, clip = np.zeros(len(taken)), plan.clip[: len(taken)]
    for t, step in enumerate(taken):
        response, velocity = plan.momentum.direction(impulses[t], velocity, t + 1)
        pull = float(response @ clip)
        noise = plan.facts.n_released * float(response**2 @ (1 / precision))
        length = math.sqrt((_RULER_ROWS * pull) ** 2 + n_present * pull**2 + noise)
        weights += step * response / length
    cost = math.fsum(cost for t, _, _, cost, _ in sums if t <= len(taken))
    return weights, 1 / precision, cost


def books_balance(trace: AdaptiveTrace, plan: AdaptivePlan) -> tuple[str, ...]:
    """Check every entry of the books of an adaptive fit against the noise that was drawn.

    Parameters
    ----------
    trace : AdaptiveTrace
    plan : AdaptivePlan

    Returns
    -------
    tuple of str
        What does not balance, in words.
    """
    spent = 0.0
    for entry, (event, left) in enumerate(zip(trace.events, trace.remaining, strict=True), 1):
        spent += ACCOUNTANTS[plan.accountant].of_event(event)
        # Selections are inverted numerically, to about 1e-12.
        if abs(plan.capacity - spent - left) > 1e-6 * plan.capacity:
            return (
                f"the books do not balance: releases up to the {entry}-th cost {spent:.4g} of "
                f"{plan.capacity:.4g}, and {left:.4g} is said to be left",
            )
    return ()
