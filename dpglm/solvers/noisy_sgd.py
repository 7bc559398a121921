"""Noisy stochastic gradient descent on Poisson samples."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpglm.plan import PrivacyPlan
from dpglm.privacy.composition import Event
from dpglm.privacy.mechanisms import PoissonSampledSum
from dpglm.privacy.noise import EntropySource
from dpglm.solvers.descent import gradient_descent
from dpglm.trace import FitTrace

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["noisy_stochastic_gradient_descent"]


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
