"""The two solvers, noisy gradient descent and DP-AGD, as the papers write them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.trace import AdaptiveTrace, FitTrace
from dpglm.privacy.ledger import Event
from dpglm.privacy.mechanisms import PoissonSampledSum
from dpglm.privacy.noise import EntropySource

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = [
    "adaptive_gradient_descent",
    "gradient_descent",
    "noisy_gradient_descent",
    "noisy_stochastic_gradient_descent",
]

Release = Callable[[int, np.ndarray], tuple[np.ndarray, Event, float]]


def gradient_descent(
    objective: "Objective",
    plan: PrivacyPlan,
    release: Release,
    on_step: Callable[[int, np.ndarray], None] | None = None,
) -> FitTrace:
    """Descend by a plan, from zero.

    Parameters
    ----------
    objective : Objective
        Asked for its penalty and the shape of its coefficients only, neither of them private.
    plan : PrivacyPlan
        Step, momentum and averaging of every iteration.
    release : callable
        Called as ``release(t, coef)``, returns the noisy sum of clipped gradients at ``coef``, the
        event that pays for it, and the standard deviation of its noise.
    on_step : callable, optional
        Called as ``on_step(t, coef)`` after each iteration with the current iterate, a released
        value.

    Returns
    -------
    FitTrace
        With the averaged coefficients in ``coef``.

    Notes
    -----
    Everything here is post-processing of what ``release`` returns: division by the public expected
    number of records in the sum, the penalty, momentum (Yu et al. 2021: heavy ball; Hong, Wang &
    Zhou 2022: debiased) and averaging.
    """
    n_summed, alpha = plan.facts.expected_batch_size, plan.facts.alpha
    coef = np.zeros(objective.coef_shape)
    velocity, average = np.zeros_like(coef), np.zeros_like(coef)
    trace = FitTrace()
    for t in range(plan.n_iter):
        # 1) Release the sum of the per-example gradients, each clipped, with noise.
        noisy_total, event, noise_std = release(t, coef)
        # 2) Divide by the public count and add the gradient of the penalty.
        gradient = objective.loss.project(noisy_total) / n_summed
        gradient += alpha * objective.penalty_gradient(coef)
        # 3) Accumulate momentum.
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        # 4) Step, and average the iterates.
        coef = coef - plan.step[t] * direction
        average += plan.averaging[t] * coef

        trace.record(
            event, clip=plan.clip[t], noise_std=noise_std, step=plan.step[t], gradient=gradient
        )
        if on_step is not None:
            on_step(t, coef)
    trace.coef = average
    return trace


def noisy_gradient_descent(
    objective: "Objective",
    plan: PrivacyPlan,
    rng: EntropySource,
    *,
    on_step: Callable[[int, np.ndarray], None] | None = None,
) -> FitTrace:
    """Minimise the mean loss plus the L2 penalty from noisy sums of clipped gradients.

    Parameters
    ----------
    objective : Objective
        Holds the private data; asked for nothing but clipped gradient sums.
    plan : PrivacyPlan
        Clip, noise, step, momentum and averaging of every iteration.
    rng : EntropySource
    on_step : callable, optional
        Called as ``on_step(t, coef)`` after each iteration with the current iterate, a released
        value.

    Returns
    -------
    FitTrace
        With the averaged coefficients in ``coef``.

    Notes
    -----
    Guarantee: one `GaussianSum` release per iteration, of sensitivity ``plan.sensitivity[t]``
    under the relation of ``plan.ledger``; the noise multipliers are fixed before the data are
    touched, so the whole trajectory is exactly mu-GDP with ``mu^2 = sum_t 1/z_t^2`` (Dong, Roth &
    Su 2022, Corollary 2). The rest is post-processing: see `gradient_descent`.
    """
    rounding_slack = objective.rounding_slack(plan.max_n_samples)

    def release(t: int, coef: np.ndarray) -> tuple[np.ndarray, Event, float]:
        # 1) Sum the per-example gradients, each clipped.
        total = objective.gradient_sum(coef, plan.clip[t])
        # 2) Release the sum with noise.
        mechanism = plan.mechanism(t, rounding_slack)
        return *mechanism.release(total, rng), mechanism.noise_std(total.size)

    return gradient_descent(objective, plan, release, on_step)


def noisy_stochastic_gradient_descent(
    objective: "Objective",
    plan: PrivacyPlan,
    rng: EntropySource,
    *,
    on_step: Callable[[int, np.ndarray], None] | None = None,
) -> FitTrace:
    """Minimise the mean loss plus the L2 penalty from noisy sums over random batches.

    Parameters
    ----------
    objective : Objective
        Holds the private data; asked for nothing but clipped gradient sums.
    plan : PrivacyPlan
        Clip, noise, step, momentum and averaging of every iteration, and the sampling rate.
    rng : EntropySource
        Of the batches and of the noise.
    on_step : callable, optional
        Called as ``on_step(t, coef)`` after each iteration with the current iterate, a released
        value.

    Returns
    -------
    FitTrace
        With the averaged coefficients in ``coef``.

    Notes
    -----
    Guarantee: one `PoissonSampledSum` release per iteration, in which each record is present with
    probability ``plan.sampling_rate``, of sensitivity ``plan.sensitivity[t]``; multipliers and
    rate are fixed before the data are touched, so the whole trajectory costs what the composed
    privacy loss distributions of ``plan.ledger`` say (Abadi et al. 2016; Zhu, Dong & Wang 2022).
    The sum is divided by the public expected size of a batch: its actual size is private, and
    Algorithm 1 of Yu et al. (2021), which divides by it, releases more than it is charged for.
    The rest is post-processing: see `gradient_descent`.
    """
    rounding_slack = objective.rounding_slack(plan.max_n_samples)

    def release(t: int, coef: np.ndarray) -> tuple[np.ndarray, Event, float]:
        mechanism = PoissonSampledSum(plan.sampling_rate, plan.mechanism(t, rounding_slack))
        # 1) Sample records, each on its own, and sum their gradients, each clipped.
        # 2) Release the sum with noise.
        noisy_total, event = mechanism.release(
            lambda rows: objective.gradient_sum(coef, plan.clip[t], rows), objective.n_rows, rng
        )
        return noisy_total, event, mechanism.noise_std(noisy_total.size)

    return gradient_descent(objective, plan, release, on_step)


_UNIT_ROUNDOFF = 2.0**-53


def adaptive_gradient_descent(
    objective: "Objective",
    plan: AdaptivePlan,
    rng: EntropySource,
    *,
    on_step: Callable[[int, np.ndarray], None] | None = None,
) -> AdaptiveTrace:
    """Minimise the mean loss plus the L2 penalty, choosing privately how far to step.

    Parameters
    ----------
    objective : Objective
        Holds the private data; asked for clipped gradient sums and for losses along a line.
    plan : AdaptivePlan
        Budget, first costs, clip and grid of steps.
    rng : EntropySource
    on_step : callable, optional
        Called as ``on_step(t, coef)`` after each iteration with the current iterate, a released
        value; in the original space.

    Returns
    -------
    AdaptiveTrace
        With the last accepted iterate in ``coef``, in the original space.

    Notes
    -----
    DP-AGD of Lee & Kifer (2018), "Concentrated differentially private gradient descent with
    adaptive per-iteration privacy budget", Algorithm 1, corrected: the penalty enters the direction
    before it is normalised and enters the scores, and gradients are averaged before they are
    normalised, with precisions for weights. Momentum (none in the paper) averages directions over
    iterations; it uses released gradients only and costs nothing. With a second moment in the plan,
    all of this happens in the space that it whitens.

    Guarantee: each release is charged to the filter of ``plan`` before the data are touched, and
    is made only if it fits. Whatever course the fit takes, everything it releases together has the
    guarantee of the filter's capacity (Smith & Thakurta 2022; Feldman & Zrnic 2021), which
    is what ``plan.ledger`` states. Costs, directions, grids and the decision to stop depend on
    released values only.
    """
    releases = _PaidReleases(objective, plan, rng)
    trace = releases.trace
    if plan.second_moment is not None:
        releases.whiten()
    cost, max_step = plan.gradient_cost, plan.max_step
    coef = velocity = np.zeros(objective.coef_shape)
    for t in range(plan.n_iter):
        # 1) Stop, before touching the data, unless a gradient and a choice of step can be paid.
        if not releases.budget.admits(cost, plan.selection_cost):
            break
        # 2) Release the sum of clipped gradients.
        total = releases.gradient_sum(t, coef, cost, max_step, "gradient")
        while True:
            # 3) Add the gradient of the penalty and past gradients; only then normalise.
            direction, next_velocity = releases.direction(t, coef, total, velocity)
            # 4) Choose a step among 0, ..., max_step by its noisy loss.
            step = releases.step(t, coef, direction, max_step)
            extra = plan.refinement_cost(cost)
            if step > 0 or not releases.may_refine(extra, max_step):
                break
            # 5) None seems to help: pay for a more precise gradient, averaged with the first, and
            # look closer by.
            max_step *= plan.step_shrink
            fresh = releases.gradient_sum(t, coef, extra, max_step, "refinement")
            total = total + extra / (cost + extra) * (fresh - total)
            cost += extra
        if step == 0:
            break
        # 6) Step; the next gradient is as precise, and the grid follows the steps taken.
        coef, velocity = coef - step * direction, next_velocity
        max_step = plan.next_max_step(max_step, trace.accepted_steps)
        if on_step is not None:
            on_step(t, releases.original(coef))
    trace.coef = releases.original(coef)
    return trace


class _PaidReleases:
    """What the solver may ask of the data: each answer is charged, made noisy and recorded."""

    def __init__(self, objective: "Objective", plan: AdaptivePlan, rng: EntropySource) -> None:
        self._objective, self._plan, self._rng = objective, plan, rng
        self._rounding_slack = objective.rounding_slack(plan.max_n_samples)
        self.budget, self.trace = plan.filter(), AdaptiveTrace()

    def whiten(self) -> None:
        """Release the second moment, and answer in the space that it whitens from here on."""
        plan = self._plan
        self.budget.spend(plan.second_moment_cost)
        whitening = plan.second_moment.preconditioner.whiten(self._objective, plan, self._rng)
        self.trace.record(
            whitening.event,
            iteration=0,
            release="second_moment",
            cost=plan.second_moment_cost,
            remaining=self.budget.remaining,
            noise_scale=whitening.noise_std,
            max_step=plan.max_step,
        )
        self.trace.whitening = whitening
        self._plan = plan.in_whitened_space(whitening.effective_dimension)
        self._objective = self._objective.in_basis(whitening.basis)
        self._rounding_slack = self._objective.rounding_slack(plan.max_n_samples)

    def original(self, coef: np.ndarray) -> np.ndarray:
        """Return the coefficients of the original columns."""
        whitening = self.trace.whitening
        return coef if whitening is None else whitening.original(coef)

    def may_refine(self, cost: float, max_step: float) -> bool:
        """Whether another gradient and choice can be paid; without noise, whether they may help."""
        if self._plan.exact:
            return max_step > self._plan.smallest_grid
        return self.budget.admits(cost, self._plan.selection_cost)

    def gradient_sum(
        self, t: int, coef: np.ndarray, cost: float, max_step: float, release: str
    ) -> np.ndarray:
        """Release the sum of clipped gradients."""
        mechanism = self._plan.gradient_mechanism(t, cost, self._rounding_slack)
        self.budget.spend(cost)
        total = self._objective.gradient_sum(coef, self._plan.clip[t])
        noisy_total, event = mechanism.release(total, self._rng)
        self.trace.record(
            event,
            iteration=t + 1,
            release=release,
            cost=cost,
            remaining=self.budget.remaining,
            noise_scale=mechanism.noise_std(total.size),
            max_step=max_step,
        )
        return noisy_total

    def direction(
        self, t: int, coef: np.ndarray, noisy_total: np.ndarray, velocity: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the direction, of length one, and the next velocity; costs nothing."""
        facts = self._plan.facts
        gradient = self._objective.loss.project(noisy_total) / facts.n_samples
        gradient += facts.alpha * self._objective.penalty_gradient(coef)
        direction, velocity = self._plan.momentum.direction(gradient, velocity, t + 1)
        # By the largest entry first: squares could overflow, or vanish.
        largest = np.abs(direction).max()
        if largest > 0:
            direction = direction / largest
            direction = direction / np.linalg.norm(direction)
        return direction, velocity

    def step(self, t: int, coef: np.ndarray, direction: np.ndarray, max_step: float) -> float:
        """Choose a step along minus the direction, by the total loss after it."""
        plan, objective = self._plan, self._objective
        steps = np.linspace(0.0, max_step, plan.n_steps + 1)
        penalty = self._penalty_changes(coef, direction, steps)
        n_samples, bound = plan.max_n_samples, plan.loss_bound(t, max_step)
        rounding = objective.line_rounding(n_samples, bound)
        rounding += _UNIT_ROUNDOFF * (n_samples * bound + np.abs(penalty).max())
        mechanism = plan.selection_mechanism(t, max_step, rounding)
        self.budget.spend(plan.selection_cost)
        clip = plan.clip[t] if plan.loss_clip is None else None
        losses = objective.line_losses(coef, direction, steps, loss_clip=plan.loss_clip, clip=clip)
        chosen, event = mechanism.release(-(losses + penalty), self._rng)
        self.trace.record(
            event,
            iteration=t + 1,
            release="selection",
            cost=plan.selection_cost,
            remaining=self.budget.remaining,
            noise_scale=mechanism.scale,
            max_step=max_step,
            step=float(steps[chosen]),
        )
        return float(steps[chosen])

    def _penalty_changes(
        self, coef: np.ndarray, direction: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """Change of the penalty along the line, times the number of records."""
        slope = np.vdot(direction, self._objective.penalty_gradient(coef))
        curvature = np.vdot(direction, self._objective.penalty_gradient(direction))
        weight = self._plan.facts.alpha * self._plan.facts.n_samples
        return weight * steps * (steps * curvature / 2 - slope)
