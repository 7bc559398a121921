"""The two solvers, noisy gradient descent and DP-AGD, as the papers write them.

They ask a vault for noisy sums and choices. Everything else here is post-processing: division by
public numbers, penalty, momentum, steps and averages. Nothing here can release more than the vault
allows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpglm.estimators.plan import PrivacyPlan
from dpglm.exceptions import require
from dpglm.losses import Loss
from dpglm.privacy.vault import Release
from dpglm.schedules import averaging_weights

if TYPE_CHECKING:
    import pandas

    from dpglm.privacy.events import Event
    from dpglm.privacy.selection import ChoosingVault
    from dpglm.privacy.vault import Vault


@dataclass(frozen=True, eq=False)
class Whitening:
    """The releases of a preconditioner, and their post-processing.

    ``scales`` are the powers of two that columns were multiplied by first. ``moment`` is the noisy
    mean second moment of the scaled and clipped rows, not centered. ``basis`` is P for the columns
    of the table. Both are matrices, or their diagonals. ``noise_std`` is that on the sum. The
    effective dimension is the trace of the whitened second moment, 1 or more.
    """

    scales: np.ndarray = field(repr=False)
    moment: np.ndarray = field(repr=False)
    basis: np.ndarray = field(repr=False)
    effective_dimension: float
    noise_std: float
    events: "list[Event]"


@dataclass(frozen=True, eq=False)
class Debiased:
    """The releases after the descent, for intervals, and their post-processing.

    All but ``coef`` and ``left_out`` (n_columns,) are in k coordinates v; ``basis @ v`` are
    coefficients. ``curvature`` is that of the loss, its noise removed, times the dispersion: the
    variance of a sum of gradients. ``inverse`` is that of the same without the dispersion, plus the
    penalty. ``directions`` are eigenvectors of the curvature, and ``seen`` says which are above the
    noise level. ``noise_std`` is that of the mean of the gradients of the estimate.
    """

    n_records: int
    coef: np.ndarray = field(repr=False)
    left_out: np.ndarray = field(repr=False)
    basis: np.ndarray = field(repr=False)
    curvature: np.ndarray = field(repr=False)
    inverse: np.ndarray = field(repr=False)
    seen: np.ndarray = field(repr=False)
    directions: np.ndarray = field(repr=False)
    noise_std: float
    dispersion: float = 1.0


@dataclass(frozen=True)
class ReleasedTarget:
    """The middle and the unit of a numeric target, as released.

    The descent had ``(y - middle) / unit``, or ``y / unit`` with a log link. ``residual`` is the
    usual size of a residual over the unit, 1 without a log link. ``bounds`` is the range of
    predictions: public, or what the histogram showed.
    """

    middle: float
    unit: float
    residual: float
    bounds: tuple[float, float]
    log_link: bool

    def original(self, coef: np.ndarray, fit_intercept: bool) -> np.ndarray:
        """Return coefficients, the intercept last, for y in its own units."""
        coef = np.array(coef) if self.log_link else self.unit * coef
        if fit_intercept:
            coef[-1] += math.log(self.unit) if self.log_link else self.middle
        return coef


class FitTrace:
    """Released values of a fit, safe to publish with the coefficients.

    A table with one row for each iteration or, for an adaptive fit, each release. Its columns,
    which depend on the estimator, are attributes: lists of equal length.

    Attributes
    ----------
    clip, noise_std, step, gradient_norm : list of float
        Gradient descent: clipping norm, standard deviation of the noise on the sum, step size, and
        norm of the noisy mean gradient. After a preconditioner all are of the whitened space.
    n_summed : float
        Public number of records, of a batch on average, that the sums were divided by.
    iteration, release : list
        `DPAGDClassifier`: the iteration of a release, from 1, or 0 for a preconditioner's, and its
        name.
    cost, remaining : list of float
        The charge of the release, and the budget left after it, in the plan's unit.
    noise_scale : list of float
        Standard deviation of the noise on a sum; scale of the noise on the scores.
    max_step, step : list of float
        The largest step on offer, and the step after a selection: zero if none seemed to help, None
        for sums. Distances in the whitened space, if any.
    events : list of Event
        The costs of the rows. In an adaptive fit they do not bound the total; the ledger does.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).
    whitening, debiased : Whitening and Debiased, or None
        The releases before the first iteration, and those after the last one.
    target : ReleasedTarget or None
        The middle and the unit of a numeric target.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dpglm import DPLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> trace = DPLogisticRegression(max_iter=20).fit(X / X.max(axis=0), y).trace_
    >>> len(trace.events), len(trace.gradient_norm)
    (20, 20)
    """

    def __init__(self, *columns: str, **single: Any) -> None:
        self._columns = columns
        # Attributes in addition to the columns, for a fit with a single release.
        vars(self).update({name: [] for name in columns} | single)
        self.events: list[Event] = []
        self.coef: np.ndarray | None = None
        self.whitening: Whitening | None = None
        self.debiased: Debiased | None = None
        self.target: ReleasedTarget | None = None

    def record(self, *releases: Release, **released: Any) -> None:
        """Append a row: a value for each column, by default the release's, and the costs."""
        self.events += [release.event for release in releases]
        for name in self._columns:
            own = released[name] if name in released else getattr(releases[-1], name)
            getattr(self, name).append(own)

    @property
    def n_iter(self) -> int:
        """Number of iterations begun; the last of an adaptive fit may have ended without a step."""
        if "iteration" in self._columns:
            return self.iteration[-1] if self.iteration else 0
        return len(getattr(self, self._columns[0])) if self._columns else 1

    def __repr__(self) -> str:
        columns = f": {', '.join(self._columns)}" if self._columns else ""
        return f"<FitTrace of {self.n_iter} iterations{columns}>"

    @property
    def accepted_steps(self) -> list[float]:
        """Steps that were taken, in order."""
        return [step for step in self.step if step]

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table; needs pandas."""
        pd = require("pandas", "data", "The to_frame of a trace")
        columns = {name: getattr(self, name) for name in self._columns}
        if "noise_std" in columns:
            columns["mu"] = [math.nan if e.mu is None else e.mu for e in self.events]
        name = "release_number" if "iteration" in columns else "iteration"
        n_rows = len(getattr(self, self._columns[0])) if self._columns else 0
        return pd.DataFrame(columns, index=pd.RangeIndex(1, n_rows + 1, name=name))


# Called after each iteration with the iterate in the original coordinates, a released value.
OnStep = Callable[[int, np.ndarray], None] | None


@dataclass(frozen=True)
class Coordinates:
    """The public facts of a solver's problem: loss, penalty, and coordinates.

    Coefficients are those of the columns, the intercept last, or v with ``P v`` those. They have
    shape (n_columns,), or (n_columns, K) for K outputs. A prior has a strength and scales.
    """

    loss: Loss
    n_columns: int
    n_outputs: int
    fit_intercept: bool
    basis: np.ndarray | None = None
    prior: tuple[float, np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coefficients, and of a gradient."""
        length = self.n_columns if self.basis is None else self.basis.shape[-1]
        return (length,) if self.n_outputs == 1 else (length, self.n_outputs)

    def original(self, coef: np.ndarray) -> np.ndarray:
        """Return the coefficients of the columns, ``P v``."""
        if self.basis is None:
            return coef
        return (self.basis * coef.T).T if self.basis.ndim == 1 else self.basis @ coef

    def coordinates_of(self, coef: np.ndarray) -> np.ndarray:
        """Return v with ``P v`` these coefficients of the columns, one set in each column."""
        if self.basis is None:
            return coef
        if self.basis.ndim == 1:
            return coef / self.basis[:, np.newaxis]
        return np.linalg.solve(self.basis, coef)

    def projected(self, noisy_sum: np.ndarray) -> np.ndarray:
        """Return a released sum of gradients without pure noise: see `Softmax.project`."""
        return noisy_sum if self.n_outputs == 1 else self.loss.project(noisy_sum)

    def penalty_gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return the gradient of half the squared norm of the coefficients without the intercept.

        In a basis P this is ``P' D P v``, D the identity with a zero at the intercept.
        """
        original = np.array(self.original(coef), dtype=np.float64)
        if self.fit_intercept:
            original[-1] = 0.0
        return self._pulled_back(original)

    def _pulled_back(self, slope: np.ndarray) -> np.ndarray:
        """Return a slope in coefficients of columns as one in the coordinates, ``P' slope``."""
        if self.basis is None or self.basis.ndim == 1:
            return self.original(slope)
        return self.basis.T @ slope

    def regularization(self, coef: np.ndarray, alpha: float) -> np.ndarray | float:
        """Return the gradient of the penalty, and of a prior if there is one.

        The Cauchy prior, the sum over the columns of ``strength log(1 + (c / scale)^2)``, shrinks
        small coefficients to zero, and hardly moves large ones.
        """
        total = alpha * self.penalty_gradient(coef) if alpha > 0 else 0.0
        if self.prior is None:
            return total
        strength, scale = self.prior
        sizes = self.original(coef).T / scale
        return total + self._pulled_back((2 * strength * sizes / (1 + sizes**2) / scale).T)

    def regularization_changes(
        self, coef: np.ndarray, direction: np.ndarray, steps: np.ndarray, alpha: float
    ) -> np.ndarray:
        """Return the changes of penalty and prior from `coef` to ``coef - step * direction``."""
        slope = np.vdot(direction, self.penalty_gradient(coef))
        curvature = np.vdot(direction, self.penalty_gradient(direction))
        changes = alpha * steps * (steps * curvature / 2 - slope)
        if self.prior is None:
            return changes
        strength, scale = self.prior
        start, move = (self.original(v).T / scale for v in (coef, direction))
        moves = np.multiply.outer(steps, move)
        # This is ``log((1 + b^2) / (1 + a^2))`` with b = a - m, without cancellation.
        grown = np.log1p(moves * (moves - 2 * start) / (1 + start**2))
        return changes + strength * grown.reshape(len(steps), -1).sum(axis=1)


def noisy_gradient_descent(
    vault: "Vault", plan: PrivacyPlan, space: Coordinates, trace: FitTrace, on_step: OnStep
) -> np.ndarray:
    """Minimise the mean loss plus the L2 penalty from noisy sums of clipped gradients.

    Full-batch noisy gradient descent, or noisy SGD at a sampling rate below 1: the chance of each
    record to be in a batch. Sums are divided by the public expected size of a batch, because the
    actual size is private. Algorithm 1 of Yu et al. (2018) divides by the actual size, and releases
    more than it is charged for. Returns the average of the iterates, as coefficients of the
    columns.

    Notes
    -----
    Symbols of Algorithm 1 of Hong et al. (2022): theta_t ``coef``, N ``n_summed``, C_t
    ``plan.clip``, sigma_t ``plan.noise_multiplier``, eta_t ``plan.step``. The plan did lines
    2 to 4. Yu et al.: m_t is ``velocity``, and c is in ``plan.momentum``. Lecture 12: gamma is
    ``rate``.
    """
    alpha, rate = plan.metadata.alpha, plan.metadata.sampling_rate
    trace.n_summed = n_summed = plan.metadata.n_samples * rate * plan.metadata.mean_weight
    coef = velocity = average = np.zeros(space.shape)
    for t, noise_multiplier in enumerate(plan.noise_multiplier):
        # 1) Release the sum of the gradients (of a random batch), each clipped, with noise.
        noisy_sum = vault.gradient_sum(coef, plan.clip[t], noise_multiplier, rate, plan.batches)
        # 2) Divide by the public number of records; add the gradients of the penalty and the prior.
        gradient = space.projected(noisy_sum) / n_summed + space.regularization(coef, alpha)
        # 3) Accumulate momentum.
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        # 4) Step, and average the iterates.
        coef = coef - plan.step[t] * direction
        average = average + plan.averaging[t] * coef

        release = vault.log[-1]
        trace.record(
            release,
            clip=float(plan.clip[t]),
            noise_std=release.noise_scale,
            step=float(plan.step[t]),
            gradient_norm=float(np.linalg.norm(gradient)),
        )
        if on_step is not None:
            on_step(t, space.original(coef))
    return space.original(average)


def adaptive_gradient_descent(
    vault: "ChoosingVault",
    plan: Any,
    space: Coordinates,
    trace: FitTrace,
    on_step: OnStep,
) -> np.ndarray:
    """Minimise the mean loss plus the L2 penalty, choosing privately how far to step.

    Returns the average of the accepted iterates that the plan asks for, as coefficients of the
    columns.

    Notes
    -----
    DP-AGD of Lee & Kifer (2018), "Concentrated differentially private gradient descent with
    adaptive per-iteration privacy budget", Algorithm 2, with two corrections. The penalty enters
    the scores, and the direction before it is normalised. Gradients are averaged before they are
    normalised, weighted by their precisions.

    ===============  ===================================  ==========
    Symbol           Name                                 Lines
    ===============  ===================================  ==========
    rho_ng, rho_max  ``cost``, ``plan.selection_cost``    6, 10, 19
    g, S             ``total``, ``fresh``                 4, 5, 18
    g~ (of norm 1)   ``direction``                        7, 18
    Phi, i           ``steps``, ``chosen``                9, 11
    w                ``coef``                             13
    gamma rho_ng     ``extra``                            17
    alpha_max        ``max_step``                         footnote 1
    ===============  ===================================  ==========

    The defaults add what is the identity in ``as_published``: momentum, averages of the iterates,
    and a grid around public steps (``max_step_length``, ``shrink_to_default``).

    The vault charges each release to the plan's filter before it reads the data, and releases only
    if the filter admits the cost. So all releases together have the guarantee of the filter's
    capacity, for any course of the fit (Smith & Thakurta 2022; Feldman & Zrnic 2021).
    Costs, directions, grids and the decision to stop depend on released values only.
    """
    for line, planned in zip(vault.log, (*plan.counts, *plan.first), strict=True):
        row = {"release": planned.name.replace(" ", "_"), "cost": planned.fraction * plan.capacity}
        trace.record(line, **row, iteration=0, max_step=plan.max_step, step=None)
    n_summed, alpha = plan.metadata.n_samples * plan.metadata.mean_weight, plan.metadata.alpha
    cost, max_step = plan.gradient_cost, plan.max_step
    noise_multiplier = plan.noise_multiplier(cost)
    coef = velocity = np.zeros(space.shape)
    iterates = []
    for t, clip in enumerate(plan.clip):
        # 1) Stop, before reading the data, unless the budget allows a gradient and a selection.
        if not vault.admits(cost, plan.selection_cost):
            break
        # 2) Release the sum of clipped gradients.
        total = vault.gradient_sum(coef, clip, noise_multiplier)
        release, price = "gradient", cost
        while True:
            # 3) Add the gradients of penalty and prior, and past ones; only then normalise.
            gradient = space.projected(total) / n_summed + space.regularization(coef, alpha)
            direction, next_velocity = plan.momentum.direction(gradient, velocity, t + 1)
            reach = plan.max_step_length(t, max_step, float(np.linalg.norm(direction)))
            row = {"iteration": t + 1, "max_step": reach}
            trace.record(vault.log[-1], **row, release=release, cost=price, step=None)
            direction = normalised(direction)
            # 4) Choose a step among 0, ..., reach by its noisy loss.
            steps = np.linspace(0.0, reach, plan.n_steps + 1)
            penalty = n_summed * space.regularization_changes(coef, direction, steps, alpha)
            chosen = vault.choose_step(
                coef, direction, steps, penalty, plan.selection, plan.selection_epsilon, clip,
                plan.loss_clip,
            )  # fmt: skip
            step = float(steps[plan.shrink_to_default(chosen, reach, vault.log[-1].noise_scale)])
            row |= {"release": "selection", "cost": plan.selection_cost, "step": step}
            trace.record(vault.log[-1], **row)
            if step > 0:
                break
            # 5) None seems to help: buy a more precise gradient, averaged with the first, and
            # try smaller steps.
            extra = 0.0 if plan.exact else plan.budget_growth * cost
            if not plan.may_refine(extra, max_step, vault.admits):
                break
            max_step *= plan.step_shrink
            fresh = vault.gradient_sum(coef, clip, plan.noise_multiplier(extra))
            release, price = "refinement", extra
            total = total + extra / (cost + extra) * (fresh - total)
            cost += extra
            noise_multiplier = plan.noise_multiplier(cost)
        if step == 0:
            break
        # 6) Step; the next gradient is as precise.
        coef, velocity = coef - step * direction, next_velocity
        iterates.append(coef)
        # 7) The grid follows the public steps, or from time to time the steps taken.
        max_step = plan.next_max_step(trace.accepted_steps, max_step)
        if on_step is not None:
            on_step(t, space.original(coef))
    if iterates:
        coef = np.tensordot(averaging_weights(plan.averaging, len(iterates)), iterates, 1)
    return space.original(coef)


def normalised(direction: np.ndarray) -> np.ndarray:
    """Return a vector of norm one, or zero; the largest value is divided first against overflow."""
    largest = np.abs(direction).max()
    if largest == 0:
        return direction
    direction = direction / largest
    return direction / np.linalg.norm(direction)
