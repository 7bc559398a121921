"""Designs of audits: the canaries, and the scores that would give them away."""

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from dpglm.audit.canaries import claimed_mu, coin_flips, contained, prepared, saturating_norm
from dpglm.audit.statistics import CanaryScores
from dpglm.baselines.majority import CountPlan
from dpglm.baselines.newton import NewtonPlan
from dpglm.baselines.perturbation import PerturbationPlan
from dpglm.estimators.adaptive_plan import ACCOUNTANTS, AdaptivePlan
from dpglm.estimators.plan import PrivacyPlan, SecondMomentRelease
from dpglm.estimators.trace import AdaptiveTrace
from dpglm.estimators.whitening import DiagonalPreconditioner, Whitening
from dpglm.losses import Loss
from dpglm.schedules import PublicFacts, Schedule

__all__ = [
    "BASELINE_PLANS",
    "LARGEST_MARGIN",
    "STAGES",
    "CanaryDirections",
    "adaptive_scores",
    "baseline_scores",
    "books_balance",
    "canary_scores",
    "cross_moment_scores",
    "least_weight",
    "mixing_replaced",
    "release_weights",
    "second_moment_scores",
]


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
    >>> from dpglm.audit.report import audit_scores, canary_scores
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


BASELINE_PLANS = (PerturbationPlan, NewtonPlan, CountPlan)
_QUADRATURE_NODES = 61
_BISECTIONS = 100


def baseline_scores(
    estimator: Any,
    *,
    n_canaries: int = 500,
    container: str = "sparse",
    random_state: Any = None,
) -> CanaryScores:
    """Fit a baseline once on canaries, and score each of them.

    Parameters
    ----------
    estimator : estimator
        One that perturbs a minimiser or its objective, double-noise Newton, or private counts.
        Cloned; intercept and weights of classes are switched off, there are two classes, and
        Newton makes a single step.
    n_canaries : int, default=500
        There, or rows of zeros, under every relation.
    container : {"dense", "sparse"}, default="sparse"
    random_state : int, RandomState instance or None, default=None
        Of the coin flips.

    Returns
    -------
    CanaryScores

    Notes
    -----
    On its own axis and without an intercept each canary has a problem of its own. A minimiser w
    solves ``penalty w + b + R l'(R w) = 0`` with the tilt b: the score ``penalty w / std`` is
    standard normal without the canary, and has a mean and a variance that follow by quadrature over
    b with it. The first direction of Newton is ``A^-1 g`` with a diagonal A that is known. Counts
    have one class for each canary, and one more for those that are not there.
    """
    coins = coin_flips(n_canaries, random_state)
    estimator = prepared(
        estimator, classes=[0, 1], class_weight=None, max_iter=1, step=1.0, alpha=estimator.alpha
    )
    plan = estimator.plan(n_canaries, n_canaries)
    if isinstance(plan, CountPlan):
        return _count_scores(estimator, coins)
    row_norm = plan.facts.row_bound
    if isinstance(plan, NewtonPlan):
        estimator.set_params(alpha=0.0)
        row_norm = max(8 * plan.clip, plan.row_bound)
    y = np.ones(n_canaries, dtype=int)
    estimator.fit(*contained(row_norm * coins, y, container))
    if isinstance(plan, NewtonPlan):
        return _newton_scores(estimator, plan, coins)
    return _minimizer_scores(estimator, plan, coins)


def _minimizer_scores(estimator: Any, plan: PerturbationPlan, coins: np.ndarray) -> CanaryScores:
    trace, penalty = estimator.trace_, plan.penalty
    output_std = penalty * trace.output_std
    std = math.hypot(trace.tilt_std, output_std)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
    weights = weights / weights.sum()
    moved = penalty * _minimizers(
        estimator._loss(2), plan.bounds.row_bound, penalty, trace.tilt_std * nodes
    )
    mean = float(weights @ moved)
    variance = float(weights @ (moved - mean) ** 2) + output_std**2
    shift = mean / std
    return CanaryScores(
        scores=penalty * estimator.coef_[0] / std,
        present=coins,
        shift=shift,
        mu=claimed_mu(trace.events, float(norm.sf(shift / 2))),
        excess_variance=variance / std**2 - 1,
    )


def _minimizers(loss: Loss, row_norm: float, penalty: float, tilts: np.ndarray) -> np.ndarray:
    """Return the minimisers of one record's problem for several tilts, by bisection."""
    reach = (row_norm * loss.lipschitz + np.abs(tilts).max()) / penalty
    low, high = np.full(len(tilts), -reach), np.full(len(tilts), reach)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = row_norm * loss.derivative(row_norm * middle, np.ones(len(tilts)))
        falling = penalty * middle + tilts + slope < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return (low + high) / 2


def _newton_scores(estimator: Any, plan: NewtonPlan, coins: np.ndarray) -> CanaryScores:
    trace, n_samples = estimator.trace_, plan.facts.n_samples
    gradient_std, direction_std = trace.gradient_noise_std[0], trace.direction_noise_std[0]
    # n times the curvature along an axis, without its canary and with it.
    absent = n_samples * plan.ridge
    present = absent + plan.facts.curvature * plan.row_bound**2
    std = math.hypot(gradient_std / absent, direction_std)
    shift = plan.clip / present / std
    return CanaryScores(
        scores=estimator.coef_[0] / std,
        present=coins,
        shift=shift,
        mu=claimed_mu(trace.events, float(norm.sf(shift / 2))),
        excess_variance=math.hypot(gradient_std / present, direction_std) ** 2 / std**2 - 1,
    )


def _count_scores(estimator: Any, coins: np.ndarray) -> CanaryScores:
    nowhere = len(coins)
    estimator.set_params(classes=np.arange(nowhere + 1))
    y = np.where(coins, np.arange(nowhere), nowhere)
    estimator.fit(np.zeros((len(coins), 1)), y)
    std = estimator.plan(len(coins), 1, nowhere + 1).mechanism.noise_std(nowhere + 1)
    return CanaryScores(
        scores=estimator.trace_.counts[:nowhere] / std,
        present=coins,
        shift=1 / std,
        mu=claimed_mu(estimator.trace_.events, 0.5),
    )
