"""The releases of a numeric target: first a middle and a unit, and at the end an intercept.

The unit is the usual size of a residual. Gradients are clipped in this unit, as those of a
classifier are in that of its slopes. Clipping moves the intercept where residuals are skewed. So a
few noisy gradients of the intercept alone come after the descent, with a wider clipping norm.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dpglm.checks import check_number
from dpglm.estimators import defaults
from dpglm.estimators.plan import PlannedRelease, PrivacyPlan, planned_releases
from dpglm.estimators.solvers import Coordinates, ReleasedTarget
from dpglm.estimators.whitening import detection_threshold
from dpglm.losses import Poisson
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.vault import MAGNITUDE_POWERS, Vault
from dpglm.schedules import PublicMetadata

_WEIGHT, _RANGE = "weight sum", "target histogram"
_MIDDLE, _UNIT = "target sum", "residual histogram"
# Upper ends of the bins of a histogram.
_ENDS = 2.0 ** (MAGNITUDE_POWERS + 1)
# Half of the squares of a normal variable are below this number of standard deviations.
_HALF_OF_SQUARES = 1.54
# Other coordinates are scaled by this, so that the norm of a row is about that of its intercept.
_OF_OTHERS = 2.0**-6
_LARGEST_BOUND = 1e90


def checked_bounds(bounds: Any, log_link: bool) -> tuple[float, float] | None:
    """Return the public bounds of a target, or None."""
    if bounds is None:
        return None
    if np.shape(bounds) != (2,):
        raise ValueError(f"target_bounds={bounds!r} must be None or a pair (low, high).")
    least = 0.0 if log_link else -_LARGEST_BOUND
    low = check_number("the low end of target_bounds", bounds[0], at_least=least)
    return low, check_number("the high end", bounds[1], above=low, at_most=_LARGEST_BOUND)


def target_releases(
    estimator: Any, budget: PrivacyBudget, metadata: PublicMetadata
) -> tuple[tuple[PlannedRelease, ...], tuple[PlannedRelease, ...]]:
    """Return the releases of a target before those of the rows, and those of the intercept."""
    n_mu, intercept = budget.n_mu(metadata.n_samples), bool(estimator.fit_intercept)
    # With few records the mean is all that can be learned.
    middle = max((defaults.MIDDLE_NOISE * n_mu) ** -2, defaults.MIN_MIDDLE_FRACTION)
    histogram = defaults.UNITS_FRACTION
    planned = [
        (_WEIGHT, "the mean weight", metadata.count_fraction, metadata.count_fraction > 0),
        (_RANGE, "the range of the target", histogram, estimator.target_bounds is None),
        (_MIDDLE, "the middle of the target", min(middle, 0.5), intercept),
        (_UNIT, "the unit of residuals", histogram, True),
    ]
    n_steps = defaults.N_INTERCEPT * (intercept and n_mu >= defaults.MIN_INTERCEPT_N_MU)
    step = "gradient", "the intercept", defaults.INTERCEPT_FRACTION / defaults.N_INTERCEPT
    counts = planned_releases(budget.mu, [of for *of, needed in planned if needed])
    return counts, planned_releases(budget.mu, [step] * n_steps)


def settle_target(
    vault: Vault, plan: PrivacyPlan, bounds: tuple[float, float] | None, log_link: bool
) -> PrivacyPlan:
    """Release range, middle and unit of the target, rescale it, and return the plan that follows.

    With weights w, at most 1, all are of w y, and the mean of w comes first.
    """
    n, releases = plan.metadata.n_samples, {release.name: release for release in plan.counts}

    def noise(name: str) -> float:
        return releases[name].noise_multiplier

    # 1) The mean weight, from the sum of the weights: of labels, all rows have the second one.
    weight = 1.0
    if weighted := plan.metadata.count_fraction > 0:
        total = vault.label_counts(noise(_WEIGHT))[1]
        weight = min(1.0, max(total, 2 * vault.log[-1].noise_scale, 1.0) / n)
    # 2) The range: the largest sizes of either sign that enough records have.
    low, high = bounds or (0.0, 0.0)
    if bounds is None:
        above, below = _detected(vault.target_histogram(noise(_RANGE)), vault, n) > 0
        high, low = np.max(_ENDS * above), -np.max(_ENDS * below) * (not log_link)
        low, high = (float(low), float(high)) if low < high else (-1.0 + log_link, 1.0)
        bounds = low / weight, high / weight
    # 3) The middle: the mean, from the middle of the range. Without an intercept nothing moves.
    middle = float(log_link)
    if _MIDDLE in releases:
        start = 0.0 if weighted and _RANGE in releases else (low + high) / 2
        reach = max(high - start, start - low)
        vault.change_target(start, 1.0)
        mean = start + vault.target_sum(reach, noise(_MIDDLE)) / (n * weight)
        middle = min(max(mean, bounds[0]), bounds[1])
        # With a log link the middle is a unit, which noise must not make too small.
        least = reach * max(2 * vault.log[-1].noise_scale / n, 2.0**-20) / weight
        middle = min(max(middle, least), bounds[1]) if log_link else middle
        vault.change_target(middle - start, 1.0)
    elif log_link:
        vault.change_target(middle, 1.0)
    # 4) The unit: the usual size of a residual, by half of the squares.
    counts = _detected(vault.target_histogram(noise(_UNIT)), vault, n).sum(axis=0)
    size = _usual_size(np.where(4 * (high - low) >= _ENDS, counts, 0.0)) or (high - low) / 4
    unit, residual = size / weight, 1.0
    if log_link:
        unit, residual = middle, max(1.0, unit / middle)
    vault.change_target(-middle * log_link, unit)
    known = {"mean_weight": weight, "mean_row_weight": weight, "residual": residual}
    if isinstance(plan.loss, Poisson):
        # Its loss is in units of the target, and so is the penalty beside it.
        known["alpha"] = plan.metadata.alpha / unit
    target = ReleasedTarget(middle, unit, residual, bounds, log_link)
    return replace(plan.renewed(**known), target=target)


def largest_residual(counts: np.ndarray, vault: Vault, most: float) -> float:
    """Return a size, up to `most`, that none of the residuals that can be told from noise exceeds.

    It is thrice the usual size at least.
    """
    sizes = np.where(most >= _ENDS, _detected(counts, vault, 1, 0.0).sum(axis=0), 0.0)
    return max(3 * _usual_size(sizes), float(np.max(_ENDS * (sizes > 0))))


def _detected(
    counts: np.ndarray, vault: Vault, n_samples: int, least: float = defaults.DETECTED_TARGETS
) -> np.ndarray:
    """Return noisy counts over n, and zero for those that may be noise or are of few records."""
    by_chance = detection_threshold(counts.size, defaults.FALSE_NORM_RATE)
    threshold = max(vault.log[-1].noise_scale * by_chance, least * n_samples)
    return np.where(counts > threshold, counts / n_samples, 0.0)


def _usual_size(counts: np.ndarray) -> float:
    """Return the standard deviation of normal residuals with these counts by size, or 0.

    Half of the sum of their squares is below a known multiple of it. A mean square would be that of
    a few large ones.
    """
    squares = np.cumsum(counts * (defaults.MIDDLE_OF_SIZES * _ENDS) ** 2)
    if not squares[-1] > 0:
        return 0.0
    share = squares / squares[-1]
    k = int(np.argmax(share >= 0.5))
    before = share[k - 1] if k else 0.0
    within = (0.5 - before) / (share[k] - before)
    return float(_ENDS[k] / 2 * (1 + within)) / _HALF_OF_SQUARES


def settle_intercept(
    vault: Vault, plan: PrivacyPlan, space: Coordinates, coef: np.ndarray
) -> np.ndarray:
    """Return coefficients of columns with an intercept from a few noisy gradients of it alone.

    Rows z of the descent become ``(2^-6 z, 1)`` without the last z. All directions are kept, as
    rounding would else need more noise.
    """
    # The intercept alone, in the coordinates of the descent.
    own = space.coordinates_of(np.eye(len(coef), 1, 1 - len(coef)))
    change = np.full(len(coef), _OF_OTHERS)
    if space.basis is None or space.basis.ndim == 1:
        change[-1] = own[-1, 0]
    else:
        change = np.diag(change)
        change[:, -1:] = own
    vault.change_basis(change)
    changed = replace(space, basis=change)
    at = changed.coordinates_of(space.coordinates_of(coef[:, np.newaxis]))[:, 0]
    metadata, start, found = plan.metadata, at[-1], []
    signal = plan.n_mu / metadata.residual / defaults.SATURATION_SNR
    unit = metadata.residual * metadata.mean_weight
    n_summed = metadata.n_samples * metadata.mean_weight
    clip = defaults.INTERCEPT_CLIP * unit * signal**defaults.CLIPPING_POWER
    for release in plan.intercept:
        gradient = vault.gradient_sum(at, clip, release.noise_multiplier)[-1]
        at[-1] -= defaults.INTERCEPT_STEP * gradient / n_summed
        found.append(at[-1])
    if plan.last:
        # Intervals are of the rows of the descent.
        vault.change_basis(changed.coordinates_of(np.eye(len(coef))))
    return np.append(coef[:-1], coef[-1] + np.mean(found[len(found) // 2 :]) - start)
