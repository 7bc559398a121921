"""Full-batch noisy gradient descent."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpglm.plan import PrivacyPlan
from dpglm.privacy.noise import EntropySource
from dpglm.trace import FitTrace

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["noisy_gradient_descent"]


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
    Su 2022, Corollary 2). Division by the public number of records, the penalty, momentum (Yu et
    al.: heavy ball; Hong, Wang & Zhou 2022: debiased) and averaging are post-processing.
    """
    n_samples, alpha = plan.facts.n_samples, plan.facts.alpha
    rounding_slack = objective.rounding_slack(plan.max_n_samples)
    coef = np.zeros(objective.coef_shape)
    velocity, average = np.zeros_like(coef), np.zeros_like(coef)
    trace = FitTrace()
    for t in range(plan.n_iter):
        # 1) Sum the per-example gradients, each clipped.
        total = objective.gradient_sum(coef, plan.clip[t])
        # 2) Release the sum with noise.
        mechanism = plan.mechanism(t, rounding_slack)
        noisy_total, event = mechanism.release(total, rng)
        # 3) Divide by the public count and add the gradient of the penalty.
        gradient = objective.loss.project(noisy_total) / n_samples
        gradient += alpha * objective.penalty_gradient(coef)
        # 4) Accumulate momentum.
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        # 5) Step, and average the iterates.
        coef = coef - plan.step[t] * direction
        average += plan.averaging[t] * coef

        noise_std = mechanism.noise_std(total.size)
        trace.record(
            event, clip=plan.clip[t], noise_std=noise_std, step=plan.step[t], gradient=gradient
        )
        if on_step is not None:
            on_step(t, coef)
    trace.coef = average
    return trace
