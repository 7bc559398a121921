"""Designs of audits: for each kind of release, a fit on canaries and the scores of a fit.

Canaries are artificial records, each on a separate axis, present or absent by the flip of a coin.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.base import clone

from dpglm.audit.recorder import RecordedRelease, ReleaseRecorder, record
from dpglm.audit.statistics import CanaryScores
from dpglm.checks import check_choice, check_number
from dpglm.estimators.agd import AdaptivePlan
from dpglm.estimators.whitening import DiagonalPreconditioner
from dpglm.exceptions import require
from dpglm.losses import Loss, NumericLoss
from dpglm.privacy.composition import composed_delta, composed_epsilon
from dpglm.privacy.events import Event, composed_mu, run_lengths
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES, triangle

_N_BLOCKS = 3
# The ratio of row norms to the clipping norm; with `_STEP` every canary stays clipped to the end.
_ROW_OVER_CLIP = 1e20
_MAGNITUDES = "magnitude histogram"
_STEP = 1e-100
# The number of records for the check that a fit stores nothing but its releases.
_FEW = 20
# Targets beyond every clipping norm, on either side of the first prediction; and a public range.
_FAR, _RANGE = 1e6, (9e3, 1e4)
_NULL = 1e308
# Most baselines make one release: every canary on its own axis has a separate problem.
ONE_RELEASE = {"classes": [0, 1], "class_weight": None, "max_iter": 1}


def coin_flips(n_canaries: int) -> np.ndarray:
    """Return which canaries are present, shape (n_canaries,)."""
    return np.random.default_rng().integers(2, size=n_canaries).astype(bool)


def contained(lengths: np.ndarray, y: np.ndarray, container: str) -> tuple[Any, ...]:
    """Return the arguments of ``fit`` for rows of these norms (n_rows,), each on its own axis."""
    check_choice("container", container, ("dense", "sparse", "blocks", "dask"))
    X = sparse.diags_array(lengths, format="csr")
    X.eliminate_zeros()
    if container == "sparse":
        return X, y
    if container == "blocks":
        return ([(X[rows], y[rows]) for rows in np.array_split(np.arange(len(y)), _N_BLOCKS)],)
    if container == "dense":
        return X.toarray(), y
    dask = require("dask.array", "dask", "container='dask'")
    n_rows = -(-len(y) // _N_BLOCKS)
    return dask.from_array(X.toarray(), chunks=(n_rows, -1)), dask.from_array(y, chunks=n_rows)


def prepared(estimator: Any, **parameters: Any) -> Any:
    """Return a copy without intercept, with known labels and the parameters that it has."""
    estimator = clone(estimator)
    limits = {"above": 0, "below": np.inf, "advice": "inf claims nothing"}
    check_number("epsilon", estimator.epsilon, **limits)
    names = estimator.get_params(deep=False)
    classes = [0, 1] if names.get("classes") is None else names["classes"]
    common = {"fit_intercept": False, "classes": classes, "inference_fraction": 0.0}
    common |= {"noise_multiplier": None} if "max_iter" in parameters else {}
    return estimator.set_params(
        **{name: value for name, value in {**common, **parameters}.items() if name in names}
    )


def labels_of(estimator: Any) -> np.ndarray:
    """Return the labels of canaries; of a numeric target one below and one above predictions."""
    limits = estimator._target_limits
    if limits is None:
        return np.unique(estimator.classes)
    return np.array([1 / _FAR if limits else -_FAR, _FAR])


def planned(estimator: Any, n_records: int, n_columns: int) -> Any:
    """Return the plan of a fit on canaries."""
    labelled = estimator._target_limits is None
    return estimator.plan(n_records, n_columns, *[len(labels_of(estimator))] * labelled)


def first_of_rows(estimator: Any, X: Any, y: np.ndarray) -> RecordedRelease:
    """Fit on a table, and return the first release of its rows, after those of the target."""
    n_before = len(getattr(planned(estimator, *X.shape), "counts", ()))
    return releases_of(estimator, X, y)[n_before]


def releases_of(estimator: Any, *table: Any) -> list[RecordedRelease]:
    """Fit on a table, and return its releases."""
    with record(estimator) as recorded:
        fitted(estimator, *table)
    return recorded.releases


def fitted(estimator: Any, *table: Any) -> Any:
    """Fit on canaries; with groups, each is a group of `max_contributions` equal rows."""
    size = getattr(estimator, "max_contributions", None)
    if size is None:
        return estimator.fit(*table)
    X, y = table
    groups = np.repeat(np.arange(len(y)), size)
    return estimator.fit(X[groups], y[groups], groups=groups)


def _scored(
    coins: np.ndarray, scores: np.ndarray, shift: float, events: Sequence[Event], **more: Any
) -> CanaryScores:
    """Return the scores with the claim of these releases.

    If all releases have a Gaussian trade-off, the claim is that of their mu. Otherwise it is the mu
    of the true positive rate that they allow at the audit's false positive rate.
    """
    runs = run_lengths(events)
    if all(event.mu is not None for event in events):
        mu = composed_mu(runs)
    else:
        alarm_rate = float(norm.sf(shift / 2))
        epsilons = np.linspace(0.0, composed_epsilon(runs, alarm_rate / 1000), 200)
        hits = min(np.exp(e) * alarm_rate + composed_delta(runs, e) for e in epsilons)
        mu = float(norm.ppf(min(hits, 1.0)) - norm.ppf(alarm_rate))
    return CanaryScores(scores=scores, present=coins, shift=shift, mu=mu, **more)


def _scored_sum(
    coins: np.ndarray, release: RecordedRelease, sums: np.ndarray, size: float
) -> CanaryScores:
    """Return the scores by sums of one release, to which a present canary adds `size`."""
    std = release.sensitivity * release.event.noise_multiplier
    return _scored(coins, sums / std, size / std, [release.event])


def canary_scores(
    estimator: Any,
    n_canaries: int = 500,
    *,
    stage: str = "gradients",
    container: str = "dense",
) -> CanaryScores:
    """Fit an estimator that descends by noisy gradients once, and score each canary by releases.

    Each canary is a row on a separate axis, present or a null row; under ``"replace_one"`` a coin
    decides its label. Steps are so small that every canary's gradient stays clipped. The stage
    ``"gradients"`` comes after a second moment; ``"second_moment"`` is scored by its diagonal. A
    preconditioner is replaced by a diagonal one of the same share, which does not mix the canaries.

    Let a sum have the clipping norm C_t of a canary, with probability q, and noise s_t. With g the
    direction of its gradient, the score is ``sum_t (C_t / s_t) (g'sum_t / s_t) / S``, where ``S^2 =
    sum_t C_t^2 / s_t^2``. A present canary has mean ``q S`` and variance ``1 + q (1 - q) sum_t (C_t
    / s_t)^4 / S^2``. Under ``"replace_one"`` scores are divided by the root of such a variance.
    """
    coins = coin_flips(n_canaries)
    estimator, plan = _on_axes(estimator, n_canaries, stage)
    labels = labels_of(estimator)
    row_clipping_norm = plan.preconditioner.row_clipping_norm if plan.first else 0.0
    row_norm = _ROW_OVER_CLIP * max(n_canaries * float(plan.clip.max()), row_clipping_norm)
    flips = stage == "gradients" and estimator.neighboring_relation == "replace_one"
    label = labels[coins.astype(int)] if flips else np.full(n_canaries, labels[1])
    table = contained(row_norm * (coins | flips), label, container)
    if stage == "second_moment":
        # Weights of classes change neither moments nor histograms, but are counted first.
        n_before = 0 if estimator._target_limits is None else len(plan.counts)
        one = prepared(estimator, max_iter=1, class_weight=None)
        release = releases_of(one, *table)[n_before]
        return _scored_sum(coins, release, release.answer, row_clipping_norm**2)
    own, other = (_unit_slope(estimator._loss(len(labels)), labels, i) for i in (1, 0))
    # An absent canary with another label pulls in the opposite direction.
    pulls = _Pulls(own - flips * other, len(plan.counts) + len(plan.first))
    with record(estimator, pulls) as seen:
        fitted(estimator, *table)
    factor = NEIGHBORING_RELATIONS[estimator.neighboring_relation].sensitivity_factor
    violations = _imbalance(estimator, plan, seen.events)
    rows, y = np.eye(_FEW), np.resize(labels, _FEW)
    with record(estimator) as recorded:
        left = fitted(estimator, rows, y).coef_
    with record(estimator, ReleaseRecorder(recorded)):
        again = fitted(estimator, 0 * rows, y).coef_
    if not np.array_equal(left, again, equal_nan=True):
        violations = (*violations, "the coefficients follow from more than the releases")
    # Each sum contains a canary with this probability.
    rate = plan.sampling_rate
    clips = np.array([1 / (factor * event.noise_multiplier) for event in seen.sums])
    size = math.sqrt(math.fsum(clips**2))
    shift = rate * seen.moves * size
    scores = seen.pulls / (factor * size)
    excess = rate * (1 - rate) * math.fsum((seen.moves * clips**2 / size) ** 2)
    if flips:
        # Canaries of both labels, half as far from zero.
        std = math.sqrt(1 + excess / 4)
        scores, shift, excess = (scores + shift / 2) / std, shift / std, 0.0
    more = {"excess_variance": excess, "violations": violations}
    return _scored(coins, scores, shift, seen.sums, **more)


def _on_axes(estimator: Any, n_canaries: int, stage: str) -> tuple[Any, Any]:
    """Return a copy whose coefficients hardly move and that mixes no axes, and its plan."""
    estimator = prepared(estimator, step_schedule=_STEP, step=_STEP, max_step=_STEP)
    if stage == "gradients" and estimator._target_limits is not None:
        # In a whitened space the weights of large rows would hide their targets.
        estimator.set_params(preconditioner=None)
    plan = planned(estimator, n_canaries, n_canaries)
    if plan.first:
        # The same budget fraction, with a norm that does not change the units of columns.
        given = plan.preconditioner.get_params()
        estimator.set_params(preconditioner=DiagonalPreconditioner(**given))
        plan = planned(estimator, n_canaries, n_canaries)
    return estimator, plan


class _Pulls(ReleaseRecorder):
    """Adds up how far each canary pulled the sums of gradients; keeps none of the sums."""

    def __init__(self, change: np.ndarray, n_moments: int) -> None:
        super().__init__()
        self.moves = float(np.linalg.norm(change))
        self._direction, self._n_moments = change / self.moves, n_moments
        self.pulls: Any = 0.0
        self.events: list[Event] = []
        self.sums: list[Event] = []

    def note(self, event: Event, sensitivity: float, exact: np.ndarray, draw: Callable) -> Any:
        """Return the answer, having added its pulls times the clipping norm over the variance."""
        answer = draw(exact)
        self.events.append(event)
        # The answer of a choice is an index.
        if isinstance(answer, np.ndarray) and len(self.events) > self._n_moments:
            self.sums.append(event)
            pulls = answer.reshape(len(answer), -1) @ self._direction
            self.pulls = self.pulls + pulls / (sensitivity * event.noise_multiplier**2)
        return answer


def _unit_slope(loss: Loss, labels: np.ndarray, index: int) -> np.ndarray:
    """Return the direction of the slope of the loss at scores of zero, for a label."""
    if len(labels) == 2:
        number = labels[index] if isinstance(loss, NumericLoss) else 2.0 * index - 1
        return np.sign(loss.derivative(np.zeros(1), np.array([number])))
    slope = loss.derivative(np.zeros((1, len(labels))), np.array([index]))[0]
    return slope / np.linalg.norm(slope)


def _imbalance(estimator: Any, plan: Any, events: list[Event]) -> tuple[str, ...]:
    """Return the violations, in words, in the accounting of a fit with these releases."""
    if not isinstance(plan, AdaptivePlan):
        stated = [event for event, n in estimator.privacy_.events for _ in range(n)]
        return () if stated == events else ("the ledger states other releases than were made",)
    # An adaptive fit states the remaining budget after each release.
    remaining = estimator.trace_.remaining
    cost = np.cumsum([e.mu**2 if plan.accountant == "gdp" else e.rho for e in events])
    # Selections are inverted numerically, to about 1e-12.
    wrong = np.abs(plan.capacity - cost - remaining) > 1e-6 * plan.capacity
    if not wrong.any():
        return ()
    first = wrong.argmax()
    return (
        f"the accounting is wrong: releases up to the {first + 1}-th cost {cost[first]:.4g} of "
        f"{plan.capacity:.4g}, and {remaining[first]:.4g} is stated as remaining",
    )


def cross_moment_scores(estimator: Any, n_canaries: int) -> CanaryScores:
    """Fit a fully preconditioned estimator once, and score canaries by off-diagonal elements.

    Each canary is a row on the bisector of two separate axes. With norm R it adds ``R^2 / 2`` to
    the element of these axes, released times sqrt(2): a shift of at most ``mu / sqrt(2)``.
    """
    coins = coin_flips(n_canaries)
    estimator = prepared(estimator, max_iter=1, class_weight=None)
    preconditioner = planned(estimator, n_canaries, 2 * n_canaries).preconditioner
    row_clipping_norm = preconditioner.row_clipping_norm
    estimator.set_params(preconditioner=preconditioner)
    X = np.kron(np.diag(coins), [row_clipping_norm / math.sqrt(2)] * 2)
    release = first_of_rows(estimator, X, np.full(n_canaries, labels_of(estimator)[1]))
    (rows, columns), _ = triangle(2 * n_canaries)
    entries = release.answer[(rows % 2 == 0) & (columns == rows + 1)]
    return _scored_sum(coins, release, entries, row_clipping_norm**2 / math.sqrt(2))


def counted_shape(estimator: Any, counts: str) -> tuple[int, int] | None:
    """Return the shape of a table of which this histogram is released before the second moment.

    The result is None if no table is found.
    """
    fewest, widths = (
        (4 * MAGNITUDE_POWERS.size, (_FEW,)) if counts == _MAGNITUDES else (32, (_FEW, 256))
    )
    model = prepared(estimator, fit_intercept=False, class_weight=None)
    for n_rows, n_columns in product((fewest << doublings for doublings in range(11)), widths):
        plan = _with_rows(model, n_rows).plan(n_rows, n_columns)
        if any(release.name == counts for release in plan.first):
            return n_rows, n_columns
    return None


def _with_rows(estimator: Any, n_rows: int) -> Any:
    known = estimator.neighboring_relation != "add_or_remove_one"
    return estimator if known else estimator.set_params(n_samples_estimate=n_rows)


def counted_scores(estimator: Any, n_canaries: int, counts: str = _MAGNITUDES) -> CanaryScores:
    """Fit so often that every canary is in one fit, and score canaries by a histogram.

    Each canary of a fit has its own sign and size of elements in all columns, or its own norm.
    Under ``"replace_one"`` an absent one has another. Rows of zeros fill the table up.
    """
    coins, shape = coin_flips(n_canaries), counted_shape(estimator, counts)
    estimator = _with_rows(prepared(estimator, max_iter=1, class_weight=None), shape[0])
    swapped = estimator.neighboring_relation == "replace_one"
    sizes, n_entries = 1.5 * 2.0**MAGNITUDE_POWERS, _FEW
    sizes = np.concatenate([sizes, -sizes])
    if counts != _MAGNITUDES:
        sizes, n_entries = 0.75 * NORM_BIN_EDGES[1:], 1
    each, scores = len(sizes) // (1 + swapped), []
    for first in range(0, n_canaries, each):
        there = coins[first : first + each]
        own, other = np.arange(len(there)), np.arange(len(there)) + each
        X = np.zeros(shape)
        absent = sizes[other] if swapped else 0.0
        X[: len(there), :n_entries] = np.where(there, sizes[own], absent)[:, np.newaxis]
        release = first_of_rows(estimator, X, np.resize(labels_of(estimator), len(X)))
        found = release.answer[1:] if n_entries == 1 else release.answer.sum(axis=0)
        scores.append(found[own] - found[other] + n_entries if swapped else found[own])
    moved = math.sqrt(n_entries * (1 + swapped))
    return _scored_sum(coins, release, np.concatenate(scores) / moved, moved)


def target_scores(estimator: Any, n_canaries: int, release: str = "target sum") -> CanaryScores:
    """Fit once for each canary, and score canaries by the sum or the histogram of a target.

    A canary's target is at the upper end of the range, ``target_bounds`` or 9,000 to 10,000, and
    absent a null record, or under ``"replace_one"`` another number.
    """
    coins, summed = coin_flips(n_canaries), release == "target sum"
    low, high = (estimator.target_bounds if summed else None) or _RANGE
    own = {"target_bounds": (low, high) if summed else None, "preconditioner": None}
    estimator = _with_rows(prepared(estimator, max_iter=1, fit_intercept=True, **own), _FEW)
    swapped = estimator.neighboring_relation == "replace_one"
    place = [planned.name for planned in estimator.plan(_FEW, 1).counts].index(release)
    # A range for a gamma model may begin at zero, which is no target.
    absent, scores = np.nextafter(low, high) if summed else high / 8, []
    # The places of the powers of two below two numbers.
    own, other = np.searchsorted(2.0**MAGNITUDE_POWERS, [high, high / 8]) - 1
    X, y = np.full((_FEW, 1), _NULL), np.full(_FEW, absent)
    for there in coins:
        X[0], y[0] = 0.0 if there or swapped else _NULL, high if there else absent
        found = releases_of(estimator, X, y)[place]
        answer = found.answer.ravel()
        # Replaced, the record is at the other end, or in another bin.
        score = answer[0] if summed else answer[own] - swapped * answer[other]
        scores.append(float(score) + swapped)
    # The noise of a difference of two counts is larger.
    scale = 1.0 if summed or not swapped else math.sqrt(2)
    return _scored_sum(coins, found, np.array(scores) / scale, (1 + swapped) / scale)


def _fit_own_problems(estimator: Any, row_norm: float, coins: np.ndarray) -> Any:
    """Fit on present canaries, or rows of zeros, under every relation; return the trace."""
    label = np.ones(len(coins), dtype=int)
    return fitted(estimator, *contained(row_norm * coins, label, "sparse")).trace_


def minimizer_scores(estimator: Any, n_canaries: int) -> CanaryScores:
    """Fit an estimator that perturbs its objective once, and score each canary.

    A canary's minimiser w solves ``penalty w + b + R l'(R w) = 0`` with the tilt b. The score is
    ``penalty w / std``; quadrature over b gives its mean and variance with the canary.
    """
    coins = coin_flips(n_canaries)
    estimator = prepared(estimator, **ONE_RELEASE)
    plan = estimator.plan(n_canaries, n_canaries)
    trace = _fit_own_problems(estimator, plan.metadata.max_row_norm, coins)
    penalty, loss, row_norm = plan.penalty, estimator._loss(2), plan.metadata.max_row_norm
    tilt_std = plan.tilt.noise_std(estimator.coef_.size)
    output_std = penalty * plan.output.noise_std(estimator.coef_.size)
    std = math.hypot(tilt_std, output_std)
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    weights = weights / weights.sum()
    tilts, one = tilt_std * nodes, np.ones(1)

    def slope(w: float, tilt: float) -> float:
        return penalty * w + tilt + row_norm * loss.derivative(row_norm * w * one, one)[0]

    # The minimisers of one record's problem for these tilts.
    reach = (row_norm * loss.lipschitz + np.abs(tilts).max()) / penalty
    moved = penalty * np.array([brentq(slope, -reach, reach, args=(tilt,)) for tilt in tilts])
    mean = float(weights @ moved)
    variance = float(weights @ (moved - mean) ** 2) + output_std**2
    scores, excess = penalty * estimator.coef_[0] / std, variance / std**2 - 1
    return _scored(coins, scores, mean / std, trace.events, excess_variance=excess)


def iterate_scores(estimator: Any, n_canaries: int) -> CanaryScores:
    """Fit once with a perturbed last iterate, which is one number on the axis of each canary."""
    coins = coin_flips(n_canaries)
    estimator = prepared(estimator, classes=[0, 1], class_weight=None)
    plan = estimator.plan(n_canaries, n_canaries)
    row_norm, loss, end = plan.metadata.max_row_norm, estimator._loss(2), np.zeros(1)
    trace = _fit_own_problems(estimator, row_norm, coins)
    for _ in range(plan.n_steps):
        gradient = row_norm * loss.derivative(row_norm * end, np.ones(1))
        gradient = gradient / plan.metadata.n_samples + plan.metadata.alpha * end
        end = end - plan.step * gradient
    std = plan.output.noise_std(estimator.coef_.size)
    return _scored(coins, estimator.coef_[0] / std, float(end[0]) / std, trace.events)


def count_scores(estimator: Any, n_canaries: int) -> CanaryScores:
    """Fit private counts once, with a class for each canary and one for all absent ones."""
    coins = coin_flips(n_canaries)
    estimator = prepared(estimator, **ONE_RELEASE | {"classes": np.arange(n_canaries + 1)})
    y = np.where(coins, np.arange(n_canaries), n_canaries)
    release = releases_of(estimator, np.zeros((n_canaries, 1)), y)[0]
    return _scored_sum(coins, release, release.answer[:n_canaries], 1.0)
