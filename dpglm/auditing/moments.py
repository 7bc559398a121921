"""Canaries for the second moment that a preconditioner releases."""

import math
from typing import Any

import numpy as np

from dpglm.auditing.canaries import coin_flips, prepared
from dpglm.auditing.statistics import CanaryScores
from dpglm.preconditioning import Whitening

__all__ = ["cross_moment_scores", "second_moment_scores"]


def second_moment_scores(whitening: Whitening, plan: Any, coins: np.ndarray) -> CanaryScores:
    """Score canaries by their axes in the diagonal moment that was released.

    Parameters
    ----------
    whitening : Whitening
        Of a diagonal preconditioner; the first axes are those of the canaries.
    plan : PrivacyPlan or AdaptivePlan
    coins : ndarray of bool
        Which canaries are there.

    Returns
    -------
    CanaryScores
    """
    return CanaryScores(
        scores=whitening.moment[: len(coins)] * plan.facts.n_samples / whitening.noise_std,
        present=coins,
        shift=plan.second_moment.row_bound**2 / whitening.noise_std,
        mu=whitening.event.mu,
    )


def cross_moment_scores(
    estimator: Any, *, n_canaries: int = 200, random_state: Any = None
) -> CanaryScores:
    """Fit a fully preconditioned estimator once, and score canaries by entries off the diagonal.

    Parameters
    ----------
    estimator : estimator
        Whose plan releases a full second moment first.
    n_canaries : int, default=200
        Each is a row on the bisector of two axes of its own.
    random_state : int, RandomState instance or None, default=None
        Of the coin flips.

    Returns
    -------
    CanaryScores

    Notes
    -----
    A row of norm R on the bisector adds ``R^2 / 2`` to the entry of its two axes, whose noise has
    the variance ``s^2 / 2``: a shift of ``mu / sqrt(2)`` or less.
    """
    coins = coin_flips(n_canaries, random_state)
    estimator = prepared(estimator, max_iter=1)
    labels = np.unique(estimator.classes)
    plan = estimator.plan(n_canaries, 2 * n_canaries, len(labels))
    release = plan.second_moment
    X = np.kron(np.diag(coins), [release.row_bound / math.sqrt(2)] * 2)
    estimator.fit(X, np.full(n_canaries, labels[1]))
    whitening = estimator.trace_.whitening
    entries = whitening.moment[::2, 1::2].diagonal() * plan.facts.n_samples
    std = whitening.noise_std / math.sqrt(2)
    return CanaryScores(
        scores=entries / std,
        present=coins,
        shift=release.row_bound**2 / 2 / std,
        mu=whitening.event.mu,
    )
