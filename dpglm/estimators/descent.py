"""Training by full-batch noisy gradient descent on a plan that is fixed in advance."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpglm.momentum import check_momentum
from dpglm.plan import PrivacyPlan, make_plan
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts, check_schedule
from dpglm.solvers.noisy_gd import noisy_gradient_descent
from dpglm.trace import FitTrace

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["NoisyDescentMixin"]


class NoisyDescentMixin:
    """Plan and training of estimators with schedules, momentum and averaging."""

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PrivacyPlan:
        return make_plan(
            budget,
            facts,
            n_iter=self.max_iter,
            clip_schedule=check_schedule(self.clip_schedule, parameter="clip_schedule"),
            noise_schedule=check_schedule(self.noise_schedule, parameter="noise_schedule"),
            step_schedule=check_schedule(self.step_schedule, parameter="step_schedule"),
            momentum=check_momentum(self.momentum),
            averaging=self.averaging,
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )

    def _train(
        self,
        objective: "Objective",
        plan: PrivacyPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[FitTrace, PrivacyLedger]:
        trace = noisy_gradient_descent(objective, plan, rng, on_step=on_step)
        return trace, replace(plan.ledger, events=run_lengths(trace.events))
