"""Gradient descent on released gradients, wherever they come from."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpglm.plan import PrivacyPlan
from dpglm.privacy.composition import Event
from dpglm.trace import FitTrace

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["gradient_descent"]

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
