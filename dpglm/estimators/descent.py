"""Training by noisy gradient descent on a plan that is fixed in advance."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpglm.configuration import automatic_configuration, resolved
from dpglm.facts import PublicFacts
from dpglm.momentum import check_momentum
from dpglm.plan import PrivacyPlan, make_plan
from dpglm.preconditioning import check_preconditioner
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import check_schedule
from dpglm.solvers.noisy_gd import noisy_gradient_descent
from dpglm.solvers.noisy_sgd import noisy_stochastic_gradient_descent
from dpglm.trace import FitTrace

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["NoisyDescentMixin"]


class NoisyDescentMixin:
    """Plan and training of estimators with schedules, momentum, mini-batches, preconditioning."""

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PrivacyPlan:
        chosen = self._configuration(budget, facts)
        schedules = {
            name: check_schedule(chosen[name], parameter=name)
            for name in ("clip_schedule", "noise_schedule", "step_schedule")
        }
        preconditioner = check_preconditioner(chosen["preconditioner"])
        return make_plan(
            budget,
            replace(facts, sampling_rate=self.sampling_rate),
            n_iter=chosen["max_iter"],
            **schedules,
            momentum=check_momentum(chosen["momentum"]),
            averaging=chosen["averaging"],
            second_moment=preconditioner
            and preconditioner.release_plan(budget, n_columns=facts.n_features),
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )

    def _configuration(self, budget: PrivacyBudget, facts: PublicFacts) -> dict[str, Any]:
        """Return the parameters of the run, each ``"auto"`` among them replaced by its value."""
        mu = budget.mu / budget.sensitivity(1.0)
        automatic = automatic_configuration(facts.n_samples, facts.n_features, mu)
        return {
            name: resolved(getattr(self, name), value) for name, value in vars(automatic).items()
        }

    def _train(
        self,
        objective: "Objective",
        plan: PrivacyPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[FitTrace, PrivacyLedger]:
        descend = (
            noisy_gradient_descent if plan.sampling_rate == 1 else noisy_stochastic_gradient_descent
        )
        if plan.second_moment is None:
            trace = descend(objective, plan, rng, on_step=on_step)
            events = trace.events
        else:
            whitening = plan.second_moment.preconditioner.whiten(objective, plan, rng)
            trace = descend(
                objective.in_basis(whitening.basis),
                plan.in_whitened_space(whitening.effective_dimension),
                rng,
                on_step=lambda t, coef: on_step(t, whitening.original(coef)),
            )
            trace.whitening, trace.coef = whitening, whitening.original(trace.coef)
            events = [whitening.event, *trace.events]
        return trace, replace(plan.ledger, events=run_lengths(events))
