"""The releases of a fit for intervals, and the estimate that follows from them.

After the descent, a fraction of the budget is spent on one noisy curvature and a few noisy
gradients that are not clipped. A few Newton steps remove the bias of the coefficients. All noise is
known, and so is the covariance of the estimate.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from dpglm.checks import check_number, is_auto
from dpglm.estimators import defaults
from dpglm.estimators.plan import PlannedRelease, PrivacyPlan, planned_releases
from dpglm.estimators.solvers import Coordinates, Debiased, FitTrace
from dpglm.estimators.target import largest_residual
from dpglm.estimators.whitening import FullPreconditioner, check_preconditioner, unclipped_part
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.vault import Vault, moment_sensitivity
from dpglm.schedules import PublicMetadata

# Quantiles that represent a normal distribution.
_NORMAL = ndtri((np.arange(2000) + 0.5) / 2000)

_CURVATURE, _RESIDUALS = "curvature of the loss", "residual histogram"
_DISPERSION = "sum of squared residuals"

# The releases: name, value, unit and reason.
_CURVATURE_FRACTION = 0.3  # of mu^2: errors are flat from 0.15 to 0.5.
_N_APPROACHES = 3  # gradients before the curvature, to where it is about that of the truth.
_N_GRADIENTS = 8  # gradients after it: the estimate is a mean of steps from some of them.
_N_AVERAGED = 6  # the last of these: the first two still depend on the end of the descent.
_FULL_WEIGHT = 2.0  # times the mean squared norm of rows: few normal rows have larger norms.

# The columns in the model, and the directions that are above the noise level.
_LARGEST_NOISE = 1 / 25  # of n, its largest eigenvalue: a curvature of 0.1 is 2.5 times it.
_CLEAR_NOISE = 1 / 40  # of n: limit for rare columns, as they widen all intervals.
_SEEN = 2.0  # times the largest eigenvalue of noise: a step by it leaves at most half of an error.
_HIDDEN = 0.5  # of this eigenvalue: by theory, larger curvature is above the noise level.
_VISIBLE = 3.0  # sd of the noise of a mean square: exceeded by chance in 1 of 700.
_LARGEST_SWAY = 0.4  # log-odds: noise of one gradient in a typical row; steps are linear in less.
_ARRIVED = 0.9  # of the curvature: if less is left, the last steps still move the estimate.

# Numeric targets: fractions of mu^2 (errors are flat around them), and gradients.
_NUMERIC_FRACTIONS = {_RESIDUALS: 0.04, _CURVATURE: 0.25, "gradients": 0.65, _DISPERSION: 0.06}
_N_STEPS, _N_LATE = 6, 3  # the estimate is the mean of the last: the first forget the descent
_STEP_LENGTH = 0.5  # of Newton's: steps converge up to 4 times the released curvature, whole to 2.
_NUMERIC_NOISE = 1 / 4  # of n: a whitened curvature of 1 is 4 times the largest eigenvalue of noise

# Columns that are not rare, before any data.
_RAREST = 0.1  # their least mean square
_FREQUENT = 2.0  # of them, times the squared bound on row norms: 1 to 2.5 on 36 tables

# Without noise.
_N_ROUNDS = 20  # steps of Newton's method: converged from zero, unless labels are separated.
_ZERO = 1e-7  # log-loss of a record, or its curvature: smaller values count as none.


def debiasing_of(
    estimator: Any, budget: PrivacyBudget, metadata: PublicMetadata
) -> tuple[PlannedRelease, ...]:
    """Return the releases for intervals, after the descent.

    Raises a ValueError, from public numbers, if no interval would be valid.
    """
    share = check_number("inference_fraction", estimator.inference_fraction, above=0, at_most=0.95)
    given = estimator.preconditioner
    preconditioner = FullPreconditioner() if is_auto(given) else given
    unmet = {
        "two classes": metadata.n_outputs == 1,
        "class_weight=None, as weights change the estimand": estimator.class_weight is None,
        "max_contributions=None, as rows of one person depend on one another": (
            estimator.max_contributions is None
        ),
        "sampling_rate=1": estimator.sampling_rate == 1,
        f"a full preconditioner, and so at most {defaults.MAX_FULL_COLUMNS} columns": (
            metadata.n_features <= defaults.MAX_FULL_COLUMNS
            and isinstance(check_preconditioner(preconditioner), FullPreconditioner)
        ),
    }
    for needed, met in unmet.items():
        if not met:
            raise ValueError(
                f"inference_fraction={estimator.inference_fraction!r} needs {needed}. Use "
                "inference_fraction=0 for a fit without intervals."
            )
    if metadata.residual is None:
        releases, needed, limit = _class_releases(share, budget.mu), 2, _LARGEST_NOISE
    else:
        releases, needed = _numeric_releases(share, budget.mu), metadata.n_features
        limit = _NUMERIC_NOISE * Logistic.curvature / estimator._loss().counted_curvature
    if not _is_large_enough(needed, 1.0, releases, budget, metadata.n_samples, limit):
        raise ValueError(
            f"The budget is too small for intervals of {needed} columns or more: n mu = "
            f"{budget.n_mu(metadata.n_samples):.3g}. Use more records or a larger epsilon, or "
            "inference_fraction=0 for a fit without intervals."
        )
    return releases


def _class_releases(share: float, mu: float) -> tuple[PlannedRelease, ...]:
    """Return gradients of twice the noise, a curvature, gradients; without noise, many rounds."""
    exact = mu == math.inf
    n_rounds, n_approaches, n_gradients = (
        (_N_ROUNDS, 0, 1) if exact else (1, _N_APPROACHES, _N_GRADIENTS)
    )
    gradient = (1 - _CURVATURE_FRACTION) * share / n_rounds / (n_gradients + n_approaches / 4)
    fractions = gradient / 4, _CURVATURE_FRACTION * share / n_rounds, gradient
    names = zip(("gradients", _CURVATURE, "gradients"), fractions, strict=True)
    approach, first, then = planned_releases(mu, [(name, "intervals", of) for name, of in names])
    return (*[approach] * n_approaches, first, *[then] * n_gradients) * n_rounds


def _numeric_releases(share: float, mu: float) -> tuple[PlannedRelease, ...]:
    """Return residuals, a curvature, gradients and a dispersion; without noise, rounds first."""
    exact = mu == math.inf
    n_rounds, n_steps = (_N_ROUNDS, 1) if exact else (1, _N_STEPS)
    times = {"gradients": n_rounds * n_steps, _CURVATURE: n_rounds, _RESIDUALS: 1, _DISPERSION: 1}
    gradient, curvature, ends, dispersion = planned_releases(
        mu, [(name, "intervals", share * _NUMERIC_FRACTIONS[name] / n) for name, n in times.items()]
    )
    rounds = [curvature, *[gradient] * n_steps] * n_rounds
    return (*rounds, ends, dispersion) if exact else (ends, *rounds, dispersion)


def _squared_bound(n_columns: int, least: float) -> float:
    """Return the square of the norm up to which whitened rows count in full.

    Their squared norm is ``n_columns`` on average. Rows with the rarest column, of mean square
    `least`, add ``1 / least``.
    """
    return max(_FULL_WEIGHT * n_columns, n_columns + 1 / least)


def _is_large_enough(
    n_columns: int,
    least: float,
    releases: tuple[PlannedRelease, ...],
    budget: PrivacyBudget,
    n_samples: int,
    largest_noise: float = _LARGEST_NOISE,
) -> bool:
    """Return whether the budget is large enough for a curvature of d columns above the noise.

    The noise has eigenvalues up to ``std sqrt(2 d)``. A row of norm B adds at most ``B^2 / 4``.
    """
    curvature = next(release for release in releases if release.name == _CURVATURE)
    half = math.sqrt(_squared_bound(n_columns, least)) / 2
    sensitivity = moment_sensitivity(half, budget.neighboring_relation, n_columns)
    edge = curvature.noise_multiplier * sensitivity * math.sqrt(2 * n_columns)
    return edge <= largest_noise * n_samples


def expected_columns(
    releases: tuple[PlannedRelease, ...], budget: PrivacyBudget, metadata: PublicMetadata
) -> tuple[int, int]:
    """Return about how many columns are not rare, and for how many the budget is large enough.

    If these are fewer, all are suppressed: frequent columns cannot be left out.
    """
    n, d, norm = metadata.n_samples, metadata.n_features, metadata.max_row_norm
    if metadata.residual is not None:
        return d, d  # or the fit is refused
    enough = [k for k in range(1, d + 1) if _is_large_enough(k, _RAREST, releases, budget, n)]
    frequent = d if norm is None else max(2, math.floor(_FREQUENT * norm**2))
    return min(d, frequent), max(enough, default=0)


def debias(vault: Vault, plan: PrivacyPlan, space: Coordinates, trace: FitTrace) -> Debiased:
    """Release gradients and a curvature; return the estimate of a few Newton steps.

    Nothing is released, and all columns are left out, if the second moment shows that the curvature
    would not be above the noise level.

    Notes
    -----
    Row x_i has the label y_i, of chance p_i at coefficients v, and the weight ``a_i = min(1, (B /
    ||x_i||)^2)``. The curvature is ``H(v) = sum_i a_i p_i (1 - p_i) x_i x_i'``; the penalty, added
    to each, is left out here. The noise has the standard deviation s in a gradient, and s_H on the
    diagonal of a curvature.

    1. *Rows* are whitened anew, with as many columns as the budget allows. Weights depend on the
       row and not on its label. So ``sum_i a_i (p_i - y_i) x_i = 0`` has the same solution as
       without weights, if the model is right (Mallows' weights: Kunsch, Stefanski & Carroll 1989).
       Nothing is clipped: ``||a_i (p_i - y_i) x_i|| <= B`` and ``||a_i p_i (1 - p_i) x_i x_i'|| <=
       B^2 / 4``.
    2. *Approach.* The descent clips. Clipping drives the coefficients of rare categories to points
       where their curvature is far from that of the truth. A few steps of twice the noise, by the
       largest curvature n / 4 in all directions, lead to v_0.
    3. *Curvature.* ``G = H(v_0) + E`` is released, with noise E. Eigenvalues above twice the
       largest one of E are detected. Others are raised: to this limit for A, the inverse in
       steps, and to a quarter of it or more for L, the likely inverse. The expectation of ``(H +
       E)^-1``, about ``A - A E A + A E A E A``, is too large. So E[E A E] is added to G. It is
       ``(s_H^2 / 2) (tr(A) I + A)``, as E has s_H / sqrt(2) off the diagonal.
    4. *Steps.* Gradients g_1, ..., g_K give ``v_t = v_{t-1} - A g_t`` with ``(I - A H)^t`` times
       the first error: the noise E is forgotten as fast as the start.
    5. *Estimate.* Raised eigenvalues make steps safe but too small to converge. So the estimate is
       the mean of the last m of ``v_{t-1} - L g_t``. If L H is near the identity, its covariance is
       ``L H L + (s^2 / m) L L``: the sum in 1 has ``sum_i a_i^2 p_i (1 - p_i) x_i x_i'``, below H.
    6. *Suppression.* Results that depend on other directions than detected ones are suppressed, as
       L may be wrong there. All results are if the noise of one gradient is large in log-odds, or
       the curvature falls by a tenth or more. Steps have then not converged, as always with
       separated labels. This fall is over the last m steps in detected directions, and over all
       steps in others.

    H(v) is far from H(v_0) if the end of the descent is forgotten slowly, or columns predict the
    labels nearly perfectly. For normal whitened rows with the released second moment and mean (0
    without an intercept), the curvature is N(v) (`_normal_curvature`). So ``C G C'`` with ``C =
    N(v)^(1/2) N(v_0)^(-1/2)`` replaces G at v, and small eigenvalues are raised again. In detected
    directions, the part of ``v - v_0`` that noise explains is left out.
    """
    n = plan.metadata.n_samples
    chosen = _chosen_basis(plan, trace, space.fit_intercept)
    if chosen is None:
        d, nothing = space.n_columns, np.zeros((0, 0))
        left_out, seen = np.ones(d, dtype=bool), np.zeros(0, dtype=bool)
        basis = np.zeros((d, 0))
        return Debiased(n, trace.coef, left_out, basis, nothing, nothing, seen, nothing, 0.0)
    # 1) Leave out the other columns: mostly noise, they would bias correlated ones. Weigh the rows.
    basis, kept, squared_bound, rows = chosen
    k, bound = len(kept), math.sqrt(squared_bound)
    exact = bound == math.inf
    vault.change_basis(np.linalg.solve(space.basis, basis))
    if not exact:
        vault.weigh_rows(bound)
    space = replace(space, basis=basis)
    free = basis[:-1] if space.fit_intercept else basis
    penalty = n * plan.metadata.alpha * free.T @ free
    # The descent may end too far away for Newton's method; without noise it starts from zero.
    coef = np.zeros(k) if exact else np.linalg.solve(basis[kept], trace.coef[kept])
    steepest = n * Logistic.curvature
    approach = np.linalg.inv(steepest * np.eye(k) + penalty)
    released, variance = None, 0.0
    for release in plan.last:
        noise_multiplier = release.noise_multiplier
        if release.name == _CURVATURE:
            # 3) Release the curvature at v_0.
            noisy = vault.second_moment(bound / 2, noise_multiplier, diagonal=False, coef=coef)
            found = _without_noise(noisy, k, vault.log[-1].noise_scale, n)
            released, steps = _Curvature(*found, coef, variance, rows), []
            continue
        gradient = vault.gradient_sum(coef, bound, noise_multiplier)
        gradient = gradient + n * plan.metadata.alpha * space.penalty_gradient(coef)
        noise_std = vault.log[-1].noise_scale
        if released is None:
            # 2) Approach. The last step gives v_0 this noise, and later points have about as much.
            coef = coef - approach @ gradient
            variance = 2 * (noise_std / steepest) ** 2
        else:
            # 4) Make a Newton step.
            steps.append((coef, gradient))
            coef = coef - np.linalg.solve(released.for_steps(coef) + penalty, gradient)
    # 5) Average the last steps by the likely curvature.
    late = steps[-_N_AVERAGED:]
    ends = [v - np.linalg.solve(released.likely_at(v) + penalty, g) for v, g in late]
    coef = np.mean(ends, axis=0)
    curvature, seen, directions = released.likely_at(coef), released.seen, released.directions
    inverse = np.linalg.inv(curvature + penalty)
    # 6) Suppress all if one gradient's noise is large in a typical row, or steps still move much.
    left_out = np.ones(space.n_columns, dtype=bool)
    left_out[kept] = noise_std * np.linalg.norm(inverse @ directions[:, seen]) > _LARGEST_SWAY
    if exact:
        has_arrived = gradient @ inverse @ gradient < _ZERO * n
    else:
        # Each step adds at most this noise in a direction below the noise level.
        variance = len(steps) * (noise_std / (_SEEN * released.edge)) ** 2
        has_arrived = released.has_arrived(coef, late[0][0], variance)
    return Debiased(
        n_records=n,
        coef=space.original(coef),
        left_out=left_out,
        basis=basis,
        curvature=curvature,
        inverse=inverse,
        seen=seen & has_arrived,
        directions=directions,
        noise_std=noise_std / math.sqrt(len(late)),
    )


def debias_numbers(
    vault: Vault, plan: PrivacyPlan, space: Coordinates, trace: FitTrace
) -> Debiased:
    """Release residuals, a curvature and gradients of a numeric target; return the estimate.

    Notes
    -----
    Rows stay in the whitened space of the descent. Its weights times ``min(1, (B / ||x_i||)^2)``,
    a_i, do not depend on the target: see `debias`. A histogram of residuals r times weights w shows
    where they end, at K, and gradients are clipped to K B. Residuals that can be told from noise
    are not clipped, so that skewed ones move nothing. The curvature H is the sum of ``a_i w_i rho_i
    x_i x_i'``. Here rho is the expected second derivative: the mean for Poisson, else 1. The
    descent clips rare events, so that H may be far below the curvature of the truth. Half of
    Newton's steps forget the start, and the estimate is the mean of the ends of the last m.

    The dispersion phi is the sum of ``min(w r^2 / rho, K^2 / w~)`` over its degrees of freedom, for
    the mean weight w~. For L, the inverse of H plus penalty, the covariance is ``phi L H L + (s^2
    / m) L L``. Its first part is an upper bound, as ``a_i^2 <= a_i``. Results that depend on
    eigenvalues below `_SEEN` edges of the noise are suppressed.
    """
    metadata, d, exact = plan.metadata, space.n_columns, plan.budget.mu == math.inf
    n = metadata.n_samples * metadata.mean_weight
    dimension = trace.whitening.effective_dimension
    bound = math.inf if exact else math.sqrt(_FULL_WEIGHT * dimension)
    if not exact:
        vault.weigh_rows(bound)
    row_norm = bound * math.sqrt(space.loss.counted_curvature)
    free = space.basis[:-1] if space.fit_intercept else space.basis
    penalty = n * metadata.alpha * free.T @ free
    coef, most, ends = space.coordinates_of(trace.coef), math.inf, []
    for release in plan.last:
        noise_multiplier = release.noise_multiplier
        if release.name == _RESIDUALS:
            # Without noise squares themselves show where they end: none is then cut.
            vault.ask_of_residuals(coef, exact)
            counts, (low, high) = vault.target_histogram(noise_multiplier), plan.target.bounds
            largest = math.inf if exact else 4 * (high - low) / plan.target.unit
            most = largest_residual(counts, vault, largest) or 4 * metadata.residual
        elif release.name == _CURVATURE:
            noisy = vault.second_moment(row_norm, noise_multiplier, diagonal=False, coef=coef)
            found = _without_noise(noisy, d, vault.log[-1].noise_scale, n)
            curvature, _, seen, directions, _ = found
            inverse = np.linalg.inv(curvature + penalty)
        elif release.name == _DISPERSION:
            coef = np.mean(ends[-1 if exact else -_N_LATE :], axis=0)
            vault.ask_of_residuals(coef, True)
            # The histogram is of w r, and w r^2 is its square over w.
            most = most if exact else most**2 / metadata.mean_weight
            squares = vault.target_sum(most, noise_multiplier)
            squares = max(squares, most * vault.log[-1].noise_scale)
            dispersion = squares / max(1, metadata.n_samples - d)
        else:
            gradient = vault.gradient_sum(coef, most * bound, noise_multiplier)
            gradient = gradient + n * metadata.alpha * space.penalty_gradient(coef)
            noise_std = vault.log[-1].noise_scale / math.sqrt(1 if exact else _N_LATE)
            ends.append(coef - inverse @ gradient)
            coef = coef + (1.0 if exact else _STEP_LENGTH) * (ends[-1] - coef)
    return Debiased(
        n_records=metadata.n_samples,
        coef=space.original(coef),
        left_out=np.zeros(d, dtype=bool),
        basis=space.basis,
        curvature=dispersion * curvature,
        inverse=inverse,
        seen=seen,
        directions=directions,
        noise_std=noise_std,
        dispersion=dispersion,
    )


def _without_noise(
    noisy: np.ndarray, n_columns: int, noise_std: float, n_samples: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Return a curvature for steps, the likely one, what is detected, eigenvectors, and the edge.

    The edge is the largest eigenvalue of the noise. Values above `_SEEN` edges are detected, and
    get ``(s_H^2 / 2) (tr(A) + a)`` with a of A: see `debias`. Others are raised to this limit for
    steps, and to at least `_HIDDEN` edges in the likely curvature, which keeps errors finite.
    """
    edge = noise_std * math.sqrt(2 * n_columns)
    values, vectors = np.linalg.eigh(FullPreconditioner().moment(noisy, n_columns))
    least = max(_SEEN * edge, _ZERO * n_samples)
    seen, raised = values > least, np.maximum(values, least)
    raised = raised + noise_std**2 / 2 * (np.sum(1 / raised) + 1 / raised)
    likely = np.where(seen, raised, np.maximum(values, _HIDDEN / _SEEN * least))
    return *((vectors * one) @ vectors.T for one in (raised, likely)), seen, vectors, edge


class _NormalRows(NamedTuple):
    """Whitened rows as if they were normal: their mean (k,) and second moment (k, k)."""

    mean: np.ndarray
    moment: np.ndarray


class _Curvature(NamedTuple):
    """A curvature at `start` by `_without_noise`, and how it moves with coefficients.

    Noise alone makes displacements of mean square `variance` in each detected direction.
    """

    raised: np.ndarray
    likely: np.ndarray
    seen: np.ndarray
    directions: np.ndarray
    edge: float
    start: np.ndarray
    variance: float
    rows: _NormalRows

    def for_steps(self, coef: np.ndarray) -> np.ndarray:
        """Return the curvature that makes a step from these coefficients safe."""
        return self._moved(self.raised, coef, _SEEN)

    def likely_at(self, coef: np.ndarray) -> np.ndarray:
        """Return the likely curvature at these coefficients."""
        return self._moved(self.likely, coef, _HIDDEN)

    def _moved(self, curvature: np.ndarray, coef: np.ndarray, least: float) -> np.ndarray:
        """Return ``C G C'`` at these coefficients, with eigenvalues of at least `least` edges."""
        if self.edge == 0:
            return curvature
        roots = []
        for at, power in ((self._detected(coef), 0.5), (self.start, -0.5)):
            values, vectors = np.linalg.eigh(_normal_curvature(at, self.rows))
            roots.append((vectors * np.maximum(values, _ZERO) ** power) @ vectors.T)
        change = roots[0] @ roots[1]
        values, vectors = np.linalg.eigh(change @ curvature @ change.T)
        return (vectors * np.maximum(values, least * self.edge)) @ vectors.T

    def _displacement(self, coef: np.ndarray, seen: bool) -> np.ndarray:
        """Return the displacement from the start in the directions detected, or in the others."""
        those = self.directions[:, self.seen == seen]
        return those @ (those.T @ (coef - self.start))

    def _by_noise(self, coef: np.ndarray, seen: bool, variance: float) -> np.ndarray:
        """Return the part of this displacement that noise of a variance explains."""
        move, noise = self._displacement(coef, seen), np.sum(self.seen == seen) * variance
        return min(1.0, noise / max(move @ move, noise, 1e-300)) * move

    def _detected(self, coef: np.ndarray) -> np.ndarray:
        """Return coefficients without what noise explains of their detected displacement."""
        return coef - self._by_noise(coef, True, self.variance)

    def has_arrived(self, coef: np.ndarray, late: np.ndarray, variance: float) -> bool:
        """Return whether the curvature hardly falls from `late`, where the last steps begin.

        In directions that are not detected it is from the start, with this variance of noise each.
        """
        before = self._detected(late) - self._displacement(late, False)
        after = self._detected(coef) - self._by_noise(coef, False, variance)
        whole, left = (np.trace(_normal_curvature(at, self.rows)) for at in (before, after))
        return left > _ARRIVED * whole


def _normal_curvature(coef: np.ndarray, rows: _NormalRows) -> np.ndarray:
    """Return the mean of p (1 - p) z z', if rows z are normal with mean m and second moment S.

    Log-odds are then ``m'v + s t`` with a standard normal t. Rows with this t have the mean ``m
    + c t``, where ``s^2 = v'(S - m m')v`` and ``c = (S - m m') v / s``.
    """
    mean = rows.mean @ coef
    along = rows.moment @ coef - mean * rows.mean
    spread = math.sqrt(max(coef @ along, 0.0))
    along = along / spread if spread > 0 else along
    odds = mean + spread * _NORMAL
    weights = expit(odds) * expit(-odds)
    level, slope, square = (float(np.mean(weights * _NORMAL**power)) for power in range(3))
    sides = slope * np.outer(rows.mean, along)
    return level * rows.moment + sides + sides.T + (square - level) * np.outer(along, along)


def _chosen_basis(
    plan: PrivacyPlan, trace: FitTrace, intercept: bool
) -> tuple[np.ndarray, np.ndarray, float, _NormalRows] | None:
    """Return a basis that whitens some columns, these, the squared bound, and the rows in it.

    They are `_frequent_columns`, or all without noise. The result is None if there are none.
    """
    white, n = trace.whitening, plan.metadata.n_samples
    noise = white.noise_std / n
    left = unclipped_part(white.moment, noise) if intercept else 1.0
    moment, noise = white.moment / left, noise / left
    kept, least = np.arange(len(moment)), 1.0
    if noise > 0:
        shares = _shares(moment, noise) if intercept else np.diag(moment)
        if (frequent := _frequent_columns(np.diag(moment), shares, noise, plan)) is None:
            return None
        kept, least = frequent
    least_ridge = defaults.MIN_RIDGE * plan.preconditioner.row_clipping_norm**2
    ridge = np.full(len(kept), max(noise, least_ridge))
    own = moment[np.ix_(kept, kept)]
    inner, _ = FullPreconditioner().whitened(own, noise, ridge)
    values, vectors = np.linalg.eigh(own)
    # Collinear columns have a direction that no row is in: its eigenvalue is noise.
    clear = np.where(values > noise * math.sqrt(2 * len(kept)), values, 0.0)
    white_moment = inner.T @ (vectors * clear) @ vectors.T @ inner
    basis = np.zeros((len(moment), len(kept)))
    basis[kept] = inner
    bound = _squared_bound(len(kept), least) if noise > 0 else math.inf
    mean_row = inner.T @ moment[kept, -1] * intercept
    mean_row = mean_row / max(1.0, np.linalg.norm(mean_row))
    return (white.scales * basis.T).T, kept, bound, _NormalRows(mean_row, white_moment)


def _frequent_columns(
    masses: np.ndarray, shares: np.ndarray, noise: float, plan: PrivacyPlan
) -> tuple[np.ndarray, float] | None:
    """Return the most frequent columns, as many as the budget allows, and the least share of them.

    The mean squares of the others must be small; else the result is None.
    """
    n, d = plan.metadata.n_samples, len(masses)
    order, n_kept = np.argsort(-shares, kind="stable"), 0
    for largest in (_CLEAR_NOISE, _LARGEST_NOISE):
        for k in range(min(2, d), d + 1):
            last = order[k - 1]
            visible = masses[last] > _VISIBLE * noise
            if visible and _is_large_enough(k, shares[last], plan.last, plan.budget, n, largest):
                n_kept = k
        if n_kept and not (masses[order[n_kept:]] > defaults.DETECTED_FRACTION).any():
            return np.sort(order[:n_kept]), shares[order[n_kept - 1]]
    return None


def _shares(moment: np.ndarray, noise: float) -> np.ndarray:
    """Return lower bounds on the fractions of the records in which columns are not zero.

    If the last column is the intercept, ``E[x]^2 <= E[x^2] P(x is not 0)`` in any units. The mean
    square of elements within [-1, 1] is another lower bound.
    """
    masses = np.diag(moment)
    sums = np.maximum(np.abs(moment[-1]) - _VISIBLE * noise / math.sqrt(2), 0.0)
    least = np.square(sums) / np.maximum(masses + _VISIBLE * noise, noise)
    return np.where(masses > _VISIBLE * noise, np.maximum(masses, least), masses)
