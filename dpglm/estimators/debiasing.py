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
from dpglm.privacy.vault import Vault
from dpglm.schedules import PublicMetadata

# Quantiles that represent a normal distribution.
NORMAL = ndtri((np.arange(2000) + 0.5) / 2000)

_CURVATURE, _RESIDUALS = "curvature of the loss", "residual histogram"
_DISPERSION = "sum of squared residuals"

# The releases: name, value, unit and reason.
_CURVATURE_FRACTION = 0.3  # of mu^2: errors are flat from 0.15 to 0.5.
_N_APPROACHES = 3  # gradients before the curvature, to where it is about that of the truth.
_N_GRADIENTS = 8  # gradients after it: the estimate is a mean of steps from some of them.
N_AVERAGED = 6  # the last of these: the first two still depend on the end of the descent.
_FULL_WEIGHT = 2.0  # times the mean squared norm of rows: few normal rows have larger norms.

# The columns in the model, and the directions that are above the noise level.
_CARRIED_NOISE = 1 / 25  # of n, its largest eigenvalue: a curvature of 0.1 is 2.5 times it.
_CLEAR_NOISE = 1 / 40  # of n: limit for rare columns, as they widen all intervals.
_SEEN = 2.0  # times the largest eigenvalue of noise: a step by it leaves at most half of an error.
_HIDDEN = 0.5  # of this eigenvalue: by theory, larger curvature is above the noise level.
_VISIBLE = 3.0  # sd of the noise of a mean square: exceeded by chance in 1 of 700.
_LARGEST_SWAY = 0.4  # log-odds: noise of one gradient in a typical row; steps are linear in less.
_ARRIVED = 0.9  # of the curvature: if less is left, the last steps still move the estimate.

# Numeric targets: fractions of mu^2 (errors are flat around them), and gradients.
_NUMERIC_FRACTIONS = {_RESIDUALS: 0.04, _CURVATURE: 0.25, "gradients": 0.65, _DISPERSION: 0.06}
_N_STEPS, _N_LATE = 6, 3  # the estimate is the mean of the last: the first forget the descent
_NUMERIC_NOISE = 1 / 4  # of n: a whitened curvature of 1 is 4 times the largest eigenvalue of noise

# Columns that are not rare, before any data.
RAREST = 0.1  # their least mean square
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
        releases, needed, limit = _class_releases(share, budget.mu), 2, _CARRIED_NOISE
    else:
        releases, needed = _numeric_releases(share, budget.mu), metadata.n_features
        limit = _NUMERIC_NOISE * Logistic.curvature / estimator._loss().counted_curvature
    if not _carries(needed, 1.0, releases, budget, metadata.n_samples, limit):
        raise ValueError(
            f"The budget is too small for intervals of {needed} columns: n mu = "
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


def _curvature_of(releases: tuple[PlannedRelease, ...]) -> PlannedRelease:
    return next(release for release in releases if release.name == _CURVATURE)


def squared_bound(n_columns: int, least: float) -> float:
    """Return the square of the norm up to which whitened rows count in full.

    Their squared norm is ``n_columns`` on average. Rows with the rarest column, of mean square
    `least`, add ``1 / least``.
    """
    return max(_FULL_WEIGHT * n_columns, n_columns + 1 / least)


def _noise_edge(n_columns: int, squared_bound: float, multiplier: float, relation: str) -> float:
    """Return the largest eigenvalue of the noise of a curvature, ``std sqrt(2 d)``.

    A row adds a matrix of Frobenius norm ``bound^2 / 4``, so std is ``bound^2 / 4`` times the noise
    multiplier, and times sqrt(2) under ``"replace_one"``.
    """
    replaced = math.sqrt(2.0) if relation == "replace_one" else 1.0
    return replaced * squared_bound / 4 * multiplier * math.sqrt(2 * n_columns)


def _carries(
    n_columns: int,
    least: float,
    releases: tuple[PlannedRelease, ...],
    budget: PrivacyBudget,
    n_samples: int,
    largest_noise: float = _CARRIED_NOISE,
) -> bool:
    """Return whether the curvature of this number of columns will be above the noise level."""
    edge = _noise_edge(
        n_columns,
        squared_bound(n_columns, least),
        _curvature_of(releases).noise_multiplier,
        budget.neighboring_relation,
    )
    return edge <= largest_noise * n_samples


def expected_columns(
    releases: tuple[PlannedRelease, ...], budget: PrivacyBudget, metadata: PublicMetadata
) -> tuple[int, int]:
    """Return about how many columns are not rare, and how many the budget carries.

    If it carries fewer, all of them are suppressed: frequent columns cannot be left out.
    """
    n, d, norm = metadata.n_samples, metadata.n_features, metadata.max_row_norm
    if metadata.residual is not None:
        return d, d  # or the fit is refused
    carried = [k for k in range(1, d + 1) if _carries(k, RAREST, releases, budget, n)]
    frequent = d if norm is None else max(2, math.floor(_FREQUENT * norm**2))
    return min(d, frequent), max(carried, default=0)


def debias(vault: Vault, plan: PrivacyPlan, space: Coordinates, trace: FitTrace) -> Debiased:
    """Release gradients and a curvature; return the estimate of a few Newton steps.

    Nothing is released, and all columns are left out, if the second moment shows that the curvature
    would not be above the noise level.

    Notes
    -----
    Rows are whitened anew, with as many columns as the budget allows. Row i has the weight ``a_i =
    min(1, (B / ||x_i||)^2)``, which depends on the row and not on its label. If the model is right,
    ``sum_i a_i (p_i - y_i) x_i = 0`` has the same solution as without weights (Mallows' weights:
    Kunsch, Stefanski & Carroll 1989). Nothing is clipped: ``||a_i (p_i - y_i) x_i|| <= B`` and
    ``||a_i p_i (1 - p_i) x_i x_i'|| <= B^2 / 4``.

    The descent clips. Clipping drives the coefficients of rare categories to points where their
    curvature is far from that of the truth. So a few steps without clipping come first. They have
    twice the noise and one curvature for all directions (0 to n / 4 in whitened rows).

    G is the noisy curvature H + E, and A its inverse after small eigenvalues were raised. Gradients
    g_1, ..., g_K give ``v_t = v_{t-1} - A g_t`` with ``(I - A H)^t`` times the first error: the
    noise E is forgotten as fast as the start. Raised eigenvalues make steps safe but too small to
    converge. So the estimate is the mean of the last m of ``v_{t-1} - L g_t``, with L the inverse
    of the likely G. If L H is near the identity, the covariance of the estimate is ``L H L + (s^2 /
    m) L L``, with s the standard deviation of the noise of gradients. The covariance of the sum
    over i is ``sum_i a_i^2 p_i (1 - p_i) x_i x_i'``, below H. Results that depend on directions
    below the noise level are suppressed, as L may be wrong there. The noise would make A too large:
    ``(s_H^2 / 2) (tr(A) I + A)`` is added to G. This is E[E A E] for a symmetric E with s_H on its
    diagonal and s_H / sqrt(2) off the diagonal.

    H is the curvature at v_0, where it was released. H is far from the curvature at the estimate if
    the end of the descent is forgotten slowly, or columns predict the labels nearly perfectly. For
    normal whitened rows with the released second moment and mean (0 without an intercept), the
    curvature at v is N(v) (`_normal_curvature`). So ``C G C'`` with ``C = N(v)^(1/2)
    N(v_0)^(-1/2)`` replaces G, at each step and in L, and small eigenvalues are raised afterwards.
    In directions above the noise level, the part of ``v - v_0`` that noise explains is left out.

    All results are suppressed if the trace of N falls by a tenth or more up to the estimate. Steps
    have then not converged, as always with separated labels. The fall is over the last m steps in
    directions above the noise level, and over all steps in others.
    """
    relation, n = plan.budget.neighboring_relation, plan.metadata.n_samples
    chosen = _chosen_basis(plan, trace, space.fit_intercept)
    if chosen is None:
        d, nothing = space.n_columns, np.zeros((0, 0))
        left_out, seen = np.ones(d, dtype=bool), np.zeros(0, dtype=bool)
        basis = np.zeros((d, 0))
        return Debiased(n, trace.coef, left_out, basis, nothing, nothing, seen, nothing, 0.0)
    # Other columns are no part of the model: their coefficients are mostly noise, and would bias
    # those of correlated columns.
    basis, kept, squared_bound, rows = chosen
    k, bound = len(kept), math.sqrt(squared_bound)
    vault.change_basis(np.linalg.solve(space.basis, basis))
    space = replace(space, basis=basis)
    edge = 0.0
    if bound < math.inf:
        vault.weigh_rows(bound)
        noise_multiplier = _curvature_of(plan.last).noise_multiplier
        edge = _noise_edge(k, squared_bound, noise_multiplier, relation)
    free = basis[:-1] if space.fit_intercept else basis
    penalty = n * plan.metadata.alpha * free.T @ free
    # The descent may end too far away for Newton's method; without noise it starts from zero.
    coef = np.linalg.solve(basis[kept], trace.coef[kept]) if edge > 0 else np.zeros(k)
    steepest = n * Logistic.curvature
    approach = np.linalg.inv(steepest * np.eye(k) + penalty)

    def displacement(at: np.ndarray, which: np.ndarray) -> np.ndarray:
        return directions[:, which] @ (directions[:, which].T @ (at - start))

    def explained(move: np.ndarray, noise: float) -> np.ndarray:
        """Return the part of a move that is left out if noise alone has this mean square."""
        return min(1.0, noise / max(move @ move, noise, 1e-300)) * move

    def detected(at: np.ndarray) -> np.ndarray:
        """Return the point without the part of its detected displacement that noise explains."""
        noise_std = 2 * vault.log[-1].noise_scale / steepest
        return at - explained(displacement(at, seen), 2 * seen.sum() * noise_std**2)

    def moved_to(curvature: np.ndarray, least: float, at: np.ndarray) -> np.ndarray:
        if edge > 0:
            curvature = _moved(curvature, start, detected(at), rows, least * edge)
        return curvature + penalty

    start = None
    for release in plan.last:
        if release.name == _CURVATURE:
            start, steps = coef, []
            how = {"diagonal": False, "coef": coef}
            noisy = vault.second_moment(bound / 2, release.noise_multiplier, **how)
            moment = FullPreconditioner().moment(noisy, k)
            raised, curvature, seen, directions = _without_noise(moment, edge, _ZERO * n)
            continue
        gradient = vault.gradient_sum(coef, bound, release.noise_multiplier)
        gradient = gradient + n * plan.metadata.alpha * space.penalty_gradient(coef)
        if start is None:
            coef = coef - approach @ gradient
        else:
            steps.append((coef, gradient))
            coef = coef - np.linalg.solve(moved_to(raised, _SEEN, coef), gradient)
    noise_std, late = vault.log[-1].noise_scale, steps[-N_AVERAGED:]
    ends = [at - np.linalg.solve(moved_to(curvature, _HIDDEN, at), g) for at, g in late]
    coef = np.mean(ends, axis=0)
    curvature = moved_to(curvature, _HIDDEN, coef)
    inverse = np.linalg.inv(curvature)
    # The noise of one gradient in the log-odds of a typical row; if large, nothing is shown.
    sway = noise_std * np.linalg.norm(inverse @ directions[:, seen])
    if edge > 0:
        # Each step adds at most this noise in a direction below the noise level.
        step_variance = (noise_std / (_SEEN * edge)) ** 2
        noise = np.sum(~seen) * (len(steps) * step_variance)
        estimate = detected(coef) - explained(displacement(coef, ~seen), noise)
        # Before the last steps; where noise hides the direction, at the start.
        before = detected(late[0][0]) - displacement(late[0][0], ~seen)
        left, whole = (np.trace(_normal_curvature(at, rows)) for at in (estimate, before))
        seen = seen & (left > _ARRIVED * whole)
    else:
        # Newton's method has converged, unless labels are separated.
        seen = seen & (gradient @ inverse @ gradient < _ZERO * n)
    left_out = np.ones(space.n_columns, dtype=bool)
    left_out[kept] = sway > _LARGEST_SWAY
    return Debiased(
        n_records=n,
        coef=space.original(coef),
        left_out=left_out,
        basis=basis,
        curvature=curvature - penalty,
        inverse=inverse,
        seen=seen,
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
    x_i x_i'``. Here rho is the expected second derivative: the mean for Poisson, else 1. Newton
    steps with one H forget the start, and the estimate is the mean of the last m.

    The dispersion phi is the sum of ``min(w r^2 / rho, K^2)`` over its degrees of freedom, with K^2
    over the mean weight. For L, the inverse of H plus penalty, the covariance is ``phi L H L + (s^2
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
            edge = vault.log[-1].noise_scale * math.sqrt(2 * d)
            moment = FullPreconditioner().moment(noisy, d)
            curvature, _, seen, directions = _without_noise(moment, edge, _ZERO * n)
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
            coef = coef - inverse @ gradient
            ends.append(coef)
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
    moment: np.ndarray, edge: float, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the curvature for steps, the likely one, which directions show, and directions.

    Directions are the eigenvectors of the moment. Values above ``least``, `_SEEN` edges, show, with
    ``(s_H^2 / 2) (tr(A) + a)`` added: see `debias`. Others are raised to ``least`` for steps, and
    to at least `_HIDDEN` edges in the likely curvature, which keeps errors finite.
    """
    values, vectors = np.linalg.eigh(moment)
    least = max(_SEEN * edge, least)
    seen, raised = values > least, np.maximum(values, least)
    raised = raised + edge**2 / (4 * len(values)) * (np.sum(1 / raised) + 1 / raised)
    likely = np.where(seen, raised, np.maximum(values, _HIDDEN / _SEEN * least))
    return *((vectors * one) @ vectors.T for one in (raised, likely)), seen, vectors


class NormalRows(NamedTuple):
    """Whitened rows as if they were normal: their mean (k,) and second moment (k, k)."""

    mean: np.ndarray
    moment: np.ndarray


def normal_odds(mean: float, mean_square: float) -> np.ndarray:
    """Return quantiles of normal log-odds with these moments."""
    return mean + math.sqrt(max(mean_square - mean**2, 0.0)) * NORMAL


def _moved(
    curvature: np.ndarray, start: np.ndarray, end: np.ndarray, rows: NormalRows, least: float
) -> np.ndarray:
    """Return the curvature moved to the end, with eigenvalues of at least `least`."""
    roots = []
    for coef, power in ((end, 0.5), (start, -0.5)):
        values, vectors = np.linalg.eigh(_normal_curvature(coef, rows))
        roots.append((vectors * np.maximum(values, _ZERO) ** power) @ vectors.T)
    change = roots[0] @ roots[1]
    values, vectors = np.linalg.eigh(change @ curvature @ change.T)
    return (vectors * np.maximum(values, least)) @ vectors.T


def _normal_curvature(coef: np.ndarray, rows: NormalRows) -> np.ndarray:
    """Return the mean of p (1 - p) z z', if rows z are normal with mean m and second moment S.

    Log-odds are then ``m'v + s t`` with a standard normal t. Rows with this t have the mean ``m
    + c t``, where ``s^2 = v'(S - m m')v`` and ``c = (S - m m') v / s``.
    """
    mean = rows.mean @ coef
    along = rows.moment @ coef - mean * rows.mean
    spread = math.sqrt(max(coef @ along, 0.0))
    along = along / spread if spread > 0 else along
    odds = normal_odds(mean, mean**2 + spread**2)
    weights = expit(odds) * expit(-odds)
    level, slope, square = (float(np.mean(weights * NORMAL**power)) for power in range(3))
    sides = slope * np.outer(rows.mean, along)
    return level * rows.moment + sides + sides.T + (square - level) * np.outer(along, along)


def _chosen_basis(
    plan: PrivacyPlan, trace: FitTrace, intercept: bool
) -> tuple[np.ndarray, np.ndarray, float, NormalRows] | None:
    """Return a basis, its columns, the squared bound, and the distribution of rows.

    The columns are the most frequent ones, as many as the budget allows. The others must have small
    mean squares; else the result is None.
    """
    white = trace.whitening
    n, d = plan.metadata.n_samples, len(white.scales)
    noise = white.noise_std / n
    left = unclipped_part(white.moment, noise) if intercept else 1.0
    moment, noise = white.moment / left, noise / left
    masses, kept, least = np.diag(moment), np.arange(d), 1.0
    if noise > 0:
        shares = _shares(moment, noise) if intercept else masses
        order, n_kept = np.argsort(-shares, kind="stable"), 0
        for largest in (_CLEAR_NOISE, _CARRIED_NOISE):
            for k in range(min(2, d), d + 1):
                last = order[k - 1]
                visible = masses[last] > _VISIBLE * noise
                if visible and _carries(k, shares[last], plan.last, plan.budget, n, largest):
                    n_kept = k
            if n_kept and not (masses[order[n_kept:]] > defaults.DETECTED_FRACTION).any():
                break
        else:
            return None
        kept, least = np.sort(order[:n_kept]), shares[order[n_kept - 1]]
    ridge = np.full(len(kept), max(noise, 2.0**-30 * plan.preconditioner.row_clipping_norm**2))
    own = moment[np.ix_(kept, kept)]
    inner, _ = FullPreconditioner().whitened(own, noise, ridge)
    values, vectors = np.linalg.eigh(own)
    # Collinear columns have a direction that no row is in: its eigenvalue is noise.
    clear = np.where(values > noise * math.sqrt(2 * len(kept)), values, 0.0)
    white_moment = inner.T @ (vectors * clear) @ vectors.T @ inner
    basis = np.zeros((d, len(kept)))
    basis[kept] = inner
    bound = squared_bound(len(kept), least) if noise > 0 else math.inf
    mean_row = inner.T @ moment[kept, -1] * intercept
    mean_row = mean_row / max(1.0, np.linalg.norm(mean_row))
    return (white.scales * basis.T).T, kept, bound, NormalRows(mean_row, white_moment)


def _shares(moment: np.ndarray, noise: float) -> np.ndarray:
    """Return lower bounds on the fractions of the records in which columns are not zero.

    If the last column is the intercept, ``E[x]^2 <= E[x^2] P(x is not 0)`` in any units. The mean
    square of elements within [-1, 1] is another lower bound.
    """
    masses = np.diag(moment)
    sums = np.maximum(np.abs(moment[-1]) - _VISIBLE * noise / math.sqrt(2), 0.0)
    least = np.square(sums) / np.maximum(masses + _VISIBLE * noise, noise)
    return np.where(masses > _VISIBLE * noise, np.maximum(masses, least), masses)
