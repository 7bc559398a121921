"""Canaries for noisy gradient descent on a plan that is fixed in advance."""

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from dpglm.auditing.canaries import (
    claimed_mu,
    coin_flips,
    contained,
    prepared,
    saturating_norm,
)
from dpglm.auditing.moments import second_moment_scores
from dpglm.auditing.statistics import CanaryScores
from dpglm.facts import PublicFacts
from dpglm.losses import Loss
from dpglm.plan import PrivacyPlan
from dpglm.preconditioning import DiagonalPreconditioner
from dpglm.schedules import Schedule
from dpglm.second_moment import SecondMomentRelease

__all__ = [
    "LARGEST_MARGIN",
    "STAGES",
    "CanaryDirections",
    "canary_scores",
    "least_weight",
    "mixing_replaced",
    "release_weights",
]

STAGES = ("second_moment", "gradients")
# The canaries' margins stay this small, so that the clip acts on all of them in every iteration.
LARGEST_MARGIN = 0.05


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


class CanaryDirections:
    """In which direction of its row of coefficients a canary pulls, and by how many clips.

    Parameters
    ----------
    loss : Loss
    n_classes : int
    flips : bool
        Whether an absent canary is one of another label, as opposed to a null record.

    Attributes
    ----------
    along : ndarray of shape (n_outputs,)
        Unit vector; minus its product with the coefficients is the score, before scaling.
    moves : float
        By how many clips a present canary differs from an absent one along it.
    """

    def __init__(self, loss: Loss, n_classes: int, flips: bool) -> None:
        present, absent = (_unit_slope(loss, n_classes, index) for index in (1, 0))
        change = present - absent if flips else present
        self.moves = float(np.linalg.norm(change))
        self.along = change / self.moves
        self._flips = flips

    def scores(self, coef: np.ndarray) -> np.ndarray:
        """Return minus the coefficients along the direction, one for each canary."""
        return -self.along @ coef

    def centre(self, shift: float) -> float:
        """Return what to add to scores so that absent canaries have a mean of zero."""
        return shift / 2 if self._flips else 0.0


def _unit_slope(loss: Loss, n_classes: int, index: int) -> np.ndarray:
    """Return the derivative of the loss at coefficients of zero, of length one."""
    if n_classes == 2:
        return np.sign(loss.derivative(np.zeros(1), np.array([2.0 * index - 1])))
    slope = loss.derivative(np.zeros((1, n_classes)), np.array([index]))[0]
    return slope / np.linalg.norm(slope)


def mixing_replaced(estimator: Any, release: SecondMomentRelease | None) -> None:
    """Replace a preconditioner that would mix the canaries by a diagonal one of the same share."""
    if release is not None and not release.preconditioner.diagonal:
        given = release.preconditioner
        same_share = DiagonalPreconditioner(given.share, row_bound=given.row_bound)
        estimator.set_params(preconditioner=same_share)


def canary_scores(
    estimator: Any,
    *,
    n_canaries: int = 500,
    stage: str = "gradients",
    container: str = "dense",
    random_state: Any = None,
) -> CanaryScores:
    """Fit a dpglm estimator once on canaries, and score each of them.

    Parameters
    ----------
    estimator : estimator with a PrivacyPlan
        `DPLogisticRegression`, `DPLinearSVM` or a mini-batch baseline. Cloned; its budget,
        relation, noise, clip, momentum, averaging, classes and weights of classes are kept. The
        intercept and the penalty are switched off, and the steps scaled down so that every canary's
        gradient stays clipped. A full preconditioner, which would mix the canaries, is replaced
        by a diagonal one with the same share of the budget.
    n_canaries : int, default=500
        Each is a row on an axis of its own. Under ``"replace_one"`` its label is a coin flip;
        otherwise the coin decides whether it is there or a null row.
    stage : {"gradients", "second_moment"}, default="gradients"
        What to score. The gradients are scored given the second moment that a preconditioner
        released before them, and the second moment by what it says of each axis, for canaries
        that are there or rows of zeros under every relation.
    container : {"dense", "sparse", "blocks", "dask"}, default="dense"
        How the rows are handed to ``fit``. 750 dense canaries are enough for two threads.
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

    For K classes -coef_i is a vector along ``p - e_y``, the unit slope of the loss at equal scores,
    and the score is its product with that. Two labels of the softmax are then less than 2 C apart.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import audit_scores, canary_scores
    >>> audit_scores(canary_scores(DPLogisticRegression(max_iter=20))).passed
    True
    >>> model = DPLogisticRegression(max_iter=20, preconditioner="diagonal", classes=range(4))
    >>> audit_scores(canary_scores(model, stage="second_moment")).passed
    True
    """
    coins = coin_flips(n_canaries, random_state)
    estimator = prepared(estimator)
    labels = np.unique(estimator.classes)
    shape = (n_canaries, n_canaries, len(labels))
    if not isinstance(estimator.plan(*shape), PrivacyPlan):
        raise ValueError(
            f"{type(estimator).__name__} fixes no plan in advance for canaries to test; "
            "use audit_estimator."
        )
    mixing_replaced(estimator, estimator.plan(*shape).second_moment)
    plan = estimator.plan(*shape)
    if stage not in STAGES or (plan.second_moment is None and stage != "gradients"):
        raise ValueError(f"stage={stage!r} is not a stage of {estimator!r}.")

    row_norm, shrink = _saturating(plan, n_canaries, least_weight(estimator))
    flips = estimator.neighboring_relation == "replace_one" and stage == "gradients"
    lengths = row_norm * (np.ones(n_canaries) if flips else coins)
    y = labels[coins.astype(int)] if flips else np.full(n_canaries, labels[1])
    _shrink_steps(estimator, plan, shrink)
    estimator.fit(*contained(lengths, y, container))
    if stage == "second_moment":
        return second_moment_scores(estimator.trace_.whitening, plan, coins)
    directions = CanaryDirections(estimator._loss(len(labels)), len(labels), flips)
    return _gradient_scores(estimator, estimator.plan(*shape), coins, directions)


def least_weight(estimator: Any) -> float:
    """Return the least weight of a class."""
    return min([1.0, *(estimator.class_weight or {}).values()])


def _shrink_steps(estimator: Any, plan: PrivacyPlan, shrink: float) -> None:
    # Only now the penalty, on which schedules may depend.
    estimator.set_params(alpha=0.0)
    if "step_schedule" in estimator.get_params(deep=False):
        estimator.set_params(
            clip_schedule=_Given(plan.clip),
            noise_schedule=_Given(plan.facts.noise_std),
            step_schedule=_Given(shrink * plan.step),
        )
    else:
        estimator.set_params(step=shrink * estimator.step)


def _saturating(plan: PrivacyPlan, n_canaries: int, least_weight: float) -> tuple[float, float]:
    """Return a norm of the canaries and a factor of the steps that keep every gradient clipped."""
    plans = [plan]
    if plan.second_moment is not None:
        plans = [plan.in_whitened_space(dimension) for dimension in (1.0, float(n_canaries))]
    row_norm, longest = saturating_norm(
        max(p.clip.max() for p in plans),
        plan.facts.n_samples,
        plan.second_moment,
        n_columns=n_canaries,
        least_weight=least_weight,
    )
    weights = release_weights(plan)
    reaches = (math.fsum(abs(weights) * p.clip) + 8 * _noise_scale(p, weights) for p in plans)
    reach = max(reaches) / plan.facts.expected_batch_size
    return row_norm, LARGEST_MARGIN / (reach * row_norm * longest)


def _noise_scale(plan: PrivacyPlan, weights: np.ndarray) -> float:
    return math.sqrt(math.fsum((weights * plan.facts.noise_std) ** 2))


def _gradient_scores(
    estimator: Any, plan: PrivacyPlan, coins: np.ndarray, directions: CanaryDirections
) -> CanaryScores:
    whitening, scale = estimator.trace_.whitening, 1.0
    if whitening is not None:
        plan, scale = plan.in_whitened_space(whitening.effective_dimension), whitening.basis
    weights = release_weights(plan)
    noise_scale = _noise_scale(plan, weights)
    scores = directions.scores(estimator.coef_ / scale)
    scores = scores * plan.facts.expected_batch_size / noise_scale
    rate, moves = plan.sampling_rate, directions.moves * weights * plan.clip / noise_scale
    shift = rate * math.fsum(moves)
    return CanaryScores(
        scores=scores + directions.centre(shift),
        present=coins,
        shift=shift,
        mu=claimed_mu(estimator.trace_.events, float(norm.sf(shift / 2))),
        excess_variance=rate * (1 - rate) * math.fsum(moves**2),
    )
