"""Private whitening: descend in coordinates in which the features are uncorrelated.

A part of the budget is spent on a noisy second moment of the features, ``sum_i x~_i x~_i'`` or
its diagonal. A basis P follows, in which the second moment is near the identity, and the effective
dimension. Gradient descent then runs on ``P' x~`` with coefficients v, and ``P v`` are the
coefficients of x~.

If no bound on row norms is public, another part is first spent on the units and middles of the
columns. Else dollars would dominate all other columns, and rates would be below the noise level.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri
from sklearn.base import BaseEstimator

from dpglm.checks import check_number, is_auto
from dpglm.estimators import defaults
from dpglm.estimators.plan import Plan, PlannedRelease, budget_too_small, planned_releases
from dpglm.estimators.solvers import Coordinates, Whitening
from dpglm.exceptions import UtilityWarning
from dpglm.kernels import one_blas_thread
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES, Vault, triangle
from dpglm.schedules import (
    AutoClippingNorm,
    AutoStepSize,
    BiasCorrectedMomentum,
    HeavyBall,
    NesterovMomentum,
    check_schedules,
)

# The largest row norm in usual units. Each bin of the histogram is a factor of two.
_USUAL_NORM = NORM_BIN_EDGES[9]
# The warning detects columns at 4 standard deviations of the noise. If more than 5 columns are
# detected, as in sparse text, the budget is large enough.
_ABOVE_NOISE, _FEW = 4.0, 5
# Numbers above 8 are alike if the noise hides their variance, and it is below this part of the mean
# square. Yet the coefficient may show (benchmarks/trials.md, "Units").
_LARGE, _ALIKE = 1 / 8, 0.02
# Above 2^15, the most without a penalty, and below 2^26, a root of double precision.
_FAR_APART = 1e6
# Numbers that are this factor smaller than the unit of their column show no effect.
_LOST = 1000


def column_units(
    counts: np.ndarray, noise_std: float, n_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of the columns, powers of two, and the middles of the scaled columns.

    Noisy counts (n_columns, 2 n_powers) are of `Vault.magnitude_histogram`; a size is the upper end
    of a bin. The unit of a column is the largest size that enough elements have, of one sign, alone
    or together with the next two larger sizes. It is 1 for sizes of 1/16 to 1, or if none is found.
    The middle estimates the mean of the column: elements of sizes not detected alone count as zero.
    Warn of columns of which most elements are far smaller than their unit.
    """
    ends, noise = 2.0 ** (MAGNITUDE_POWERS + 1), noise_std / n_samples
    parts = counts.reshape(len(counts), 2, ends.size) / n_samples
    pooled = parts.copy()
    for beyond in range(1, defaults.POOLED_SIZES):
        pooled[..., :-beyond] += parts[..., beyond:]
    least = defaults.DETECTED_FRACTION
    by_chance = noise * detection_threshold(2 * counts.size, defaults.FALSE_UNIT_RATE)
    detected = parts > max(least, by_chance)
    together = pooled > max(least, by_chance * math.sqrt(defaults.POOLED_SIZES))
    found = (detected | together).any(axis=1)
    largest = ends[::-1][np.argmax(found[:, ::-1], axis=1)]
    usual = (largest > defaults.SMALLEST_USUAL_SIZE) & (largest <= 1) | ~found.any(axis=1)
    units = np.where(usual, 1.0, largest)
    above, below = np.where(detected, parts, 0.0).swapaxes(0, 1)
    lost = np.where(ends < largest[:, None] / _LOST, above + below, 0.0).sum(axis=1)
    if (codes := np.flatnonzero(lost > 1 / 2)).size:
        text = (
            f"This fit has probably lost most numbers of columns {codes.tolist()}, as a few are "
            f"over {_LOST} times as large. Clip at public bounds, as PublicBoundsScaler and Schema "
            "do, and give codes of missing values a column of their own."
        )
        warnings.warn(text, UtilityWarning, stacklevel=8)
    return 1 / units, defaults.MIDDLE_OF_SIZES * (above - below) @ ends / units


def row_unit(counts: np.ndarray, noise: float, n_mu: float) -> tuple[float, float]:
    """Return the power of two that rows are multiplied by, and the clipping norm of scaled rows.

    Counts are noisy fractions of the records with norms between consecutive `NORM_BIN_EDGES`. Small
    rows are enlarged to the usual norm, and norms above what n mu allows are reduced to that. The
    noise of a linear predictor grows with ``l sqrt(1 + l^2) / (n mu)`` for rows of norm l.
    """
    # The first bin has rows with norms close to zero, which no unit would make larger.
    counts, ends = counts[1:], np.append(NORM_BIN_EDGES[1:], 2 * NORM_BIN_EDGES[-1])
    powers = np.log2(ends / _USUAL_NORM)
    by_chance = noise * detection_threshold(counts.size, defaults.FALSE_NORM_RATE)
    common = np.flatnonzero(counts > max(defaults.DETECTED_FRACTION, by_chance))
    found = powers[common[-1]] if common.size else math.log2(defaults.UNDETECTED_NORM)
    allowed = np.floor(np.log2(np.sqrt(n_mu / defaults.N_MU_PER_SQUARED_NORM) / _USUAL_NORM))
    wanted = min(max(found, 0.0), allowed)
    return 2.0 ** (wanted - found), math.sqrt(1 + (defaults.ROW_NORM**2 - 1) * 4.0**wanted)


def detection_threshold(n_counts: int, rate: float) -> float:
    """Return the threshold that any of n standard normal numbers exceeds at most at this rate."""
    return -float(ndtri(rate / n_counts))


def denoised_moment(moment: np.ndarray, noise_std: float) -> np.ndarray:
    """Return the sum of the directions above the noise level and the rest of the diagonal.

    The moment (d, d) is symmetric, with independent Gaussian noise on its upper triangle, smaller
    by sqrt(2) off the diagonal. The result is positive semidefinite: without noise it is the
    positive part of the moment.

    Such noise has eigenvalues up to ``e = noise_std sqrt(2 d)``. A direction of variance
    ``v > e / 2`` appears with the eigenvalue ``v + e^2 / (4 v)`` (Benaych-Georges & Nadakuditi,
    Advances in Mathematics 2011, Section 3.1). So eigenvalues beyond e are solved for v, and the
    others are dropped. The rest of the diagonal, d numbers with much less noise, is added.
    """
    edge = noise_std * math.sqrt(2 * len(moment))
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[values > edge], vectors[:, values > edge]
    variances = (values + np.sqrt((values - edge) * (values + edge))) / 2
    directions = (vectors * variances) @ vectors.T
    rest = np.maximum(np.diag(moment) - np.diag(directions), 0.0)
    return directions + np.diag(rest)


def whiten(vault: Vault, plan: Plan, space: Coordinates) -> tuple[Any, Coordinates, Any]:
    """Release units and second moment; return plan, coordinates and whitening of the descent.

    From here on the vault answers in the whitened space. Everything else is post-processing: the
    ridge follows from the noise and the penalty, which are public.
    """
    preconditioner, metadata, intercept = plan.preconditioner, plan.metadata, space.fit_intercept
    n, row_clipping_norm = metadata.n_samples, preconditioner.row_clipping_norm
    left = 1 - sum(release.fraction for release in plan.last)
    n_mu = plan.budget.n_mu(n, left) * metadata.mean_weight
    *units, second_moment = plan.first
    by_norms = any(release.name == "norm histogram" for release in units)
    # 1) The units of columns, or of rows, and the middles of columns.
    scales, middles = np.ones(space.n_columns), np.zeros(space.n_columns)
    if by_norms:
        counts = vault.norm_histogram(units[0].noise_multiplier) / n
        unit, row_clipping_norm = row_unit(counts, vault.log[-1].noise_scale / n, n_mu)
        scales = unit * scales
    elif units:
        counts = vault.magnitude_histogram(units[0].noise_multiplier)
        scales, middles = column_units(counts, vault.log[-1].noise_scale, n)
    scales[-1] = 1.0 if intercept else scales[-1]
    if (scales != 1).any():
        vault.scale_columns(scales)
    center = None
    # Intervals of classifiers assume the same noise in all elements of the second moment.
    uneven = plan.last and metadata.residual is None
    if intercept and not preconditioner.diagonal and not uneven and middles.any():
        center = np.eye(space.n_columns)
        center[-1, :-1] = -middles[:-1]
        vault.change_basis(center)
    # 2) The second moment of clipped rows.
    noise_multiplier, diagonal = second_moment.noise_multiplier, preconditioner.diagonal
    # Rows times the roots of their weights, clipped as if the weights were one on average.
    norm, n = row_clipping_norm * math.sqrt(metadata.mean_row_weight), n * metadata.mean_row_weight
    noisy = vault.second_moment(norm, noise_multiplier, diagonal=diagonal)
    noise_std = vault.log[-1].noise_scale
    moment, noise = preconditioner.moment(noisy, space.n_columns) / n, noise_std / n
    kept = unclipped_part(moment, noise) if intercept else 1.0
    # 3) The ridge, the basis and the effective dimension.
    hidden, penalized = noise / kept, scales**2
    penalized[-1] *= not intercept
    least = max(hidden, defaults.MIN_RIDGE * row_clipping_norm**2)
    ridge = least + metadata.alpha / metadata.smoothness * penalized
    with one_blas_thread():
        basis, dimension = preconditioner.whitened(moment / kept, hidden, ridge)
    # Rows that a released unit did not make smaller are within the norm that the budget allows:
    # they cannot be too large. Without such a unit they can.
    large = intercept and (not by_norms or scales[0] < 1)
    # A regression has warned of a small budget before its first release.
    unsaid = n_mu if metadata.residual is None else math.inf
    _warn_if_little_is_detected(moment, noise, row_clipping_norm, unsaid, large)
    if metadata.residual is not None and noise_multiplier > 0:
        # The slope of a residual has no bound: rows count as much as the moment has seen of them.
        vault.weigh_rows(row_clipping_norm / math.sqrt(kept))
    vault.change_basis(basis)
    if center is not None:
        middles[-1] = 0.0
        moment = moment + np.outer(middles, moment[-1])
        moment = moment + np.outer(moment[:, -1], middles)
        basis[-1] -= middles @ basis
    if intercept and not diagonal:
        _warn_of_large_means(moment, noise, scales)
    basis = (scales * basis.T).T
    events = [line.event for line in vault.log[len(plan.counts) :]]
    whitening = Whitening(scales, moment, basis, max(1.0, dimension), noise_std, events)
    # 4) The prior, and the plan of the gradients.
    snr = n_mu / whitening.effective_dimension / (metadata.residual or 1.0)
    saturation = snr / defaults.SATURATION_SNR
    strength = defaults.PRIOR_FRACTION * min(1.0, saturation) * hidden
    if strength > 0 and not diagonal:
        sizes = defaults.CAUCHY_SCALE * scales
        sizes[-1] = math.inf if intercept else sizes[-1]
        space = replace(space, prior=(strength, sizes))
    plan = plan.renewed(effective_dimension=whitening.effective_dimension)
    return plan, replace(space, basis=basis), whitening


@dataclass(eq=False, repr=False)
class Preconditioner(BaseEstimator):
    """A rule that turns a noisy second moment into a basis; see its two subclasses."""

    budget_fraction: float = defaults.MOMENT_FRACTION
    row_clipping_norm: float | None = None

    # Whether the sums of the squares of the columns are enough. `moment` of a subclass makes the
    # moment of the released numbers. `whitened` returns the basis and the effective dimension.
    diagonal: ClassVar[bool]

    def planned(
        self, mu: float, left: float, n_mu: float, n_columns: int, max_norm: float | None = None
    ) -> tuple["Preconditioner", tuple[PlannedRelease, ...]]:
        """Return a copy with its clipping norm of rows, and its releases, before any data.

        They cost fractions of `left`, the part of mu^2 that others leave; `n_mu` is of that part.
        """
        norm = self.row_clipping_norm
        if norm is None:
            norm = min(defaults.ROW_NORM, math.inf if max_norm is None else max_norm)
            # Elements of at most 1 make no larger norm: these columns have other units.
            if max_norm is not None and max_norm > math.sqrt(n_columns):
                norm = max_norm
        fraction = check_number("budget_fraction", self.budget_fraction, above=0, below=1)
        norm = check_number("row_clipping_norm", norm, above=1e-50, below=1e50)
        planned = [("second moment", "the correlations of features", fraction)]
        if self.row_clipping_norm is None and max_norm is None:
            units = "magnitude histogram", "the units and middles of columns"
            # Histograms of all columns may be too noisy, or take too long.
            noise = math.sqrt(n_columns / defaults.UNITS_FRACTION) / n_mu
            if n_columns > defaults.MAX_COUNTED_COLUMNS or noise > defaults.MAX_COUNT_NOISE:
                units = "norm histogram", "the unit of rows"
            of_units = min(defaults.UNITS_FRACTION, (1 - fraction) / 2)
            planned.insert(0, (*units, of_units))
        planned = [(name, purpose, left * fraction) for name, purpose, fraction in planned]
        return type(self)(fraction, norm), planned_releases(mu, planned)


@dataclass(eq=False, repr=False)
class DiagonalPreconditioner(Preconditioner):
    """Scale each feature by a noisy estimate of its root mean square.

    Parameters
    ----------
    budget_fraction : float, default=0.15
        Fraction of the budget mu^2 spent on the release, above 0 and below 1.
    row_clipping_norm : float, default=None
        Clipping norm of rows, as in `FullPreconditioner`; columns are not centered.

    Notes
    -----
    Releases the sums of the squares a_j of the columns, in their units. With an intercept, a_j and
    the noise's standard deviation s are first divided by the part of the intercept's mean square
    that clipping has left. Then ``P_jj = (max(a_j, 0) / n + s / n + k_j)^(-1/2)``. Here k_j
    is 0 for the intercept. Else it is the penalty ``alpha``, in the unit of the column, over the
    smaller of 1 and the curvature. So the penalty is no steeper than the loss in any direction.

    The effective dimension is the sum of ``r_j = a_j / (|a_j| + s + n k_j)`` over the
    columns whose a_j is positive. Let b be the sum over all columns plus ``2 sqrt(sum_j r_j^2)``.
    Noise is as often below zero as above, so most columns are pure noise if the dimension exceeds
    ``12 max(b, 1)``. The dimension is then b.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> model = DPLogisticRegression(preconditioner=DiagonalPreconditioner(budget_fraction=0.2))
    >>> model.preconditioner
    DiagonalPreconditioner(budget_fraction=0.2)
    """

    diagonal: ClassVar[bool] = True

    def moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        return noisy

    def whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = np.maximum(moment, 0.0)
        shown = moment / (np.abs(moment) + ridge)
        # Noise is as often below zero as above, so it cancels in the sum of all columns.
        dimension, above = np.sum(np.maximum(shown, 0.0)), np.sum(shown) + 2 * np.linalg.norm(shown)
        if dimension > defaults.MOSTLY_NOISE * max(above, 1.0):
            dimension = above
        return 1 / np.sqrt(positive + ridge), float(dimension)


@dataclass(eq=False, repr=False)
class FullPreconditioner(Preconditioner):
    """Whiten the features by a noisy estimate of their second moment matrix.

    Parameters
    ----------
    budget_fraction : float, default=0.15
        Fraction of the budget mu^2 spent on the release, above 0 and below 1.
    row_clipping_norm : float, default=None
        Clipping norm of rows, intercept included, for this release only. It must be public:
        `Schema.max_row_norm` or prior knowledge, never the largest norm of the data. ``None`` means
        2. A public ``max_row_norm`` of the estimator takes its place if it is smaller, or so large
        that elements may exceed 1. If no norm is public, 3 percent of the budget are spent on the
        units first. A histogram of each of d columns counts elements between powers of two (L2
        sensitivity sqrt(d), and sqrt(2 d) under ``"replace_one"``). Columns are divided by their
        largest common size, and centered. If these counts have noise above 5 percent of the
        records, one histogram of row norms replaces them (L2 sensitivity 1, or sqrt(2)). All
        columns are then multiplied by one power of two.

    Notes
    -----
    Releases the upper triangle with its off-diagonal elements times sqrt(2): one vector whose L2
    norm is the Frobenius norm of the matrix. So the diagonal costs no more than it does alone. Let
    A be the part of the noisy mean above the noise level, plus the rest of the diagonal. Then
    ``P = U L^(-1/2) U'``, where ``U L U'`` is the eigendecomposition of ``A + (s / n) I + K``; s
    and the diagonal of K are as in `DiagonalPreconditioner`. Memory and time grow with the square
    and the cube of the number of columns. With an intercept, rows are first centered at the middles
    of the columns, if a histogram has shown them.

    Gradient descent then adds a weak Cauchy prior on the coefficients, which docs/defaults.md has.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> model = DPLogisticRegression(preconditioner=FullPreconditioner(row_clipping_norm=1.5))
    >>> model.preconditioner
    FullPreconditioner(row_clipping_norm=1.5)
    """

    diagonal: ClassVar[bool] = False

    def moment(self, noisy: np.ndarray, n_columns: int) -> np.ndarray:
        where, weights = triangle(n_columns)
        moment = np.empty((n_columns, n_columns))
        moment[where] = noisy / weights
        moment.T[where] = moment[where]
        return moment

    def whitened(
        self, moment: np.ndarray, noise: float, ridge: np.ndarray
    ) -> tuple[np.ndarray, float]:
        positive = denoised_moment(moment, noise)
        whole = positive + np.diag(ridge)
        # Penalties of columns far apart in size would leave the least eigenvalue to rounding.
        sizes = np.sqrt(np.diag(whole))
        sizes = sizes if sizes.max() > _FAR_APART * sizes.min() else np.ones(len(whole))
        values, vectors = np.linalg.eigh(whole / np.outer(sizes, sizes))
        # The symmetric basis is unique: rounding may turn eigenvectors, and with them the noise.
        basis = (vectors / np.sqrt(values)) @ vectors.T / sizes[:, np.newaxis]
        return basis, float(np.sum(basis * (positive @ basis)))


def check_preconditioner(preconditioner: Any) -> Preconditioner | None:
    """Return the preconditioner that a parameter asks for; an object is returned unchanged."""
    # A closed set: a subclass could release more than it is charged for.
    named = {"diagonal": DiagonalPreconditioner, "full": FullPreconditioner}
    if preconditioner is None or type(preconditioner) in named.values():
        return preconditioner
    if isinstance(preconditioner, str) and preconditioner in named:
        return named[preconditioner]()
    error = ValueError if isinstance(preconditioner, str) else TypeError
    raise error(
        f"preconditioner={preconditioner!r} is not a preconditioner. Give None, 'auto', "
        "'diagonal', 'full', or a DiagonalPreconditioner or FullPreconditioner object."
    )


def automatic_configuration(
    n_mu: float, n_columns: int, sampling_rate: float = 1.0, **given: Any
) -> dict[str, Any]:
    """Return the parameters of a run; the default rule sets ``"auto"`` and missing ones."""
    chosen = {name: value for name, value in given.items() if not is_auto(value)}
    default = "full" if n_columns <= defaults.MAX_FULL_COLUMNS else "diagonal"
    preconditioner = check_preconditioner(chosen.pop("preconditioner", default))
    # In other spaces columns are correlated, and acceleration diverges.
    whitened = isinstance(preconditioner, FullPreconditioner) and sampling_rate == 1
    momentum = NesterovMomentum() if whitened else HeavyBall(0.0)
    # Momentum that changes no total step suits custom step sizes.
    momentum = BiasCorrectedMomentum(0.5) if "step_schedule" in chosen else momentum
    if "momentum" in chosen:
        momentum = check_schedules({"momentum": chosen.pop("momentum")})["momentum"]
    power = defaults.CLIPPING_POWER
    return {
        "noise_schedule": "constant",
        "clip_schedule": AutoClippingNorm(n_mu, defaults.SATURATION_SNR, power),
        "step_schedule": AutoStepSize(
            n_mu, momentum, defaults.TOTAL_STEP_PER_SNR, defaults.MAX_STEP, power
        ),
        "momentum": momentum,
        "averaging": "tail",
        "max_iter": defaults.N_ITER if whitened else defaults.N_ITER_PLAIN,
        "preconditioner": preconditioner,
    } | chosen


def _warn_if_little_is_detected(
    moment: np.ndarray, noise: float, row_clipping_norm: float, n_mu: float, large: bool
) -> None:
    """Warn if the released moment shows few columns, and the budget or a row norm is the cause.

    The intercept is in every row. If another column is above the noise level and the intercept is
    not, rows are so `large` in that column that clipping left nothing else. If no column is, the
    given norm is far above the rows.
    """
    squares = moment if moment.ndim == 1 else np.diag(moment)
    found, n_columns = np.flatnonzero(squares > _ABOVE_NOISE * noise), len(squares)
    text = budget_too_small(n_mu, n_columns) if len(found) <= _FEW else ""
    alone = (
        len(found) == 1
        and found[0] < n_columns - 1
        and squares[found[0]] > row_clipping_norm**2 / 2
    )
    if not text and alone and large:
        text = (
            f"Only column {found[0]} of {n_columns}, intercept included, is above the noise level: "
            f"it makes row norms far larger than row_clipping_norm={row_clipping_norm:g}. "
            "Divide columns by public bounds, as PublicBoundsScaler and Schema do."
        )
    if not text and not len(found) and row_clipping_norm > defaults.ROW_NORM:
        text = (
            "No column is above the noise level of the second moment, which grows with the square "
            f"of row_clipping_norm={row_clipping_norm:g}. Give a max_row_norm near the rows'."
        )
    if text:
        text = f"This fit has probably learned little. {text}"
        warnings.warn(text, UtilityWarning, stacklevel=8)


def _warn_of_large_means(moment: np.ndarray, noise: float, scales: np.ndarray) -> None:
    """Warn if large numbers vary by less than the noise around their mean, as years do."""
    squares, means = np.diag(moment), moment[-1]
    own = squares - means * np.abs(means) / max(squares[-1], noise)
    # Two standard deviations of this difference.
    alike = (own < 4 * noise) & (own < _ALIKE * squares) & (squares > _ABOVE_NOISE * noise)
    found = np.flatnonzero(alike & (scales < _LARGE)).tolist()
    if found:
        text = (
            f"Columns {found} have large numbers that differ by little, so that their effects may "
            "be lost. Subtract a public middle, as PublicBoundsScaler and Schema do."
        )
        warnings.warn(text, UtilityWarning, stacklevel=8)


def unclipped_part(moment: np.ndarray, noise: float) -> float:
    """Return the part of the second moment that is left after rows were clipped.

    The intercept was one in every row before clipping, so its mean square is this part.
    """
    intercept = float(moment[-1] if moment.ndim == 1 else moment[-1, -1])
    return min(1.0, max(intercept, noise, defaults.MIN_UNCLIPPED))
