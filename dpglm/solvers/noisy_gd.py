"""Full-batch noisy gradient descent."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpglm.plan import PrivacyPlan
from dpglm.privacy.composition import Event
from dpglm.privacy.noise import EntropySource
from dpglm.solvers.descent import gradient_descent
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
