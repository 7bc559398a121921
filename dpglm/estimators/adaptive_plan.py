"""The plan of an adaptive fit: its budget, its possible releases, and its accountant."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpglm.checks import check_choice, check_number, check_whole, is_auto
from dpglm.estimators.plan import (
    Plan,
    PlannedRelease,
    label_counts_of,
    ledger_of,
    of_clip,
    planned_clip,
    refuse_all_noise,
)
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget, check_clip
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.events import ChoiceEvent, FilterEvent, bun_steinke_rho
from dpglm.privacy.selection import SELECTIONS
from dpglm.schedules import HeavyBall, Momentum, PublicMetadata, Schedule, schedule_values

# The unit of costs is mu^2 for the first one, and rho for the others.
ACCOUNTANTS = ("gdp", "zcdp", "bun_steinke")
_SMALLEST_GRID = 2.0**-20
# Tolerance for rounding errors in the number of affordable iterations.
_ROUNDING = 1e-9
_AUTOMATIC_SPLITS = 40.0
# Limits of the norm of a direction, if the norm determines the grid.
_LENGTHS = (1e-50, 1e50)
# Scores distinguish steps once the possible gain is this multiple of the scale of their noise.
_TELLING = 4.0


def filter_of(accountant: str, cost: float) -> FilterEvent:
    """Return the event of a filter with this capacity, or of releases with this cost."""
    capacity = {"mu": math.sqrt(cost)} if accountant == "gdp" else {"rho": cost}
    return FilterEvent(**capacity, purpose="all releases of the adaptive fit")


def choice_epsilon(accountant: str, selection: str, cost: float) -> float:
    """Return the epsilon of a choice with this cost."""
    if accountant == "gdp":
        return ChoiceEvent.epsilon_from_mu(math.sqrt(cost), selection)
    return ChoiceEvent.epsilon_from_rho(cost, selection)


def _capacity(accountant: str, budget: PrivacyBudget) -> float:
    if accountant == "gdp":
        return budget.mu**2
    if accountant == "zcdp":
        return budget.rho
    # As in 2018: the same unit, by a looser conversion of epsilon and delta.
    return min(budget.rho, bun_steinke_rho(budget.epsilon, budget.delta))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AdaptivePlan(Plan):
    """The releases that an adaptive fit may make, and their largest total cost.

    Made by ``plan`` of `DPAGDClassifier`, which documents the parameters without a comment here.
    """

    # As in `PrivacyPlan`.
    clip: np.ndarray
    momentum: Momentum
    clip_schedule: Schedule
    preconditioner: Any = None
    averaging: Any = None
    # Public steps on the gradient; ``max_step`` is then a multiple of them.
    step_schedule: Schedule | None = None
    # The accountant of costs, and the total that the filter admits.
    accountant: str
    capacity: float
    # The costs of the first gradient, and of every selection.
    gradient_cost: float
    selection_cost: float
    selection_epsilon: float
    budget_growth: float
    selection: str
    # None scores differences of the loss whose gradient is the clipped gradient.
    loss_clip: float | None
    n_steps: int
    max_step: float
    step_update_every: int
    step_growth: float
    step_shrink: float

    @property
    def n_iter(self) -> int:
        """The largest possible number of iterations."""
        return len(self.clip)

    @property
    def exact(self) -> bool:
        """Whether nothing is noisy, because the budget is infinite."""
        return self.capacity == math.inf

    @property
    def unit(self) -> str:
        """The unit of costs, in words."""
        return "mu^2" if self.accountant == "gdp" else "rho"

    @property
    def first_cost(self) -> float:
        """The cost of the releases before the first gradient."""
        return sum(self.capacity * release.fraction for release in (*self.counts, *self.first))

    @property
    def n_affordable(self) -> int:
        """Number of iterations that the budget allows if no gradient is refined."""
        if self.exact:
            return self.n_iter
        left = self.capacity - self.first_cost
        n_iter = math.floor(left / (self.gradient_cost + self.selection_cost) * (1 + _ROUNDING))
        return min(n_iter, self.n_iter)

    def noise_multiplier(self, cost: float) -> float:
        """Return the noise multiplier of a gradient that costs this much."""
        mu_squared = cost if self.accountant == "gdp" else 2 * cost
        return 0.0 if self.exact else 1 / math.sqrt(mu_squared)

    def may_refine(self, cost: float, max_step: float, admits: Callable[..., bool]) -> bool:
        """Return whether the budget allows a refinement, or without noise, whether it may help."""
        if not self.exact:
            return admits(cost, self.selection_cost)
        return self.step_shrink < 1 and max_step > self.max_step * _SMALLEST_GRID

    @cached_property
    def _steps(self) -> np.ndarray:
        """The public steps, of shape (n_iter,)."""
        return schedule_values(self.step_schedule, self.n_iter, self.metadata, parameter="max_step")

    def max_step_length(self, t: int, max_step: float, length: float) -> float:
        """Return the largest distance on offer along a direction of this norm."""
        if self.step_schedule is None:
            return max_step
        return max_step * float(self._steps[t]) * min(max(length, _LENGTHS[0]), _LENGTHS[1])

    def shrink_to_default(self, chosen: int, reach: float, scale: float) -> int:
        """Return the step to take if this one was chosen, by scores with noise of this scale.

        In a whitened space the mean loss has a curvature of at most ``c``, so the possible gain is
        about ``n c reach^2 / 2``. The larger the noise relative to this gain, the nearer the step
        is to the public step, half of `reach`. The step is zero, which asks for a refinement, if
        zero was chosen and the noise is small enough to trust the choice.
        """
        if self.step_schedule is None:
            return chosen
        n = self.metadata.n_samples * self.metadata.mean_weight
        gain = n * min(1.0, self.metadata.curvature or 1.0) * reach**2 / 2
        weight = gain / (gain + _TELLING * scale)
        if chosen == 0 and weight >= 0.5:
            return 0
        # A step on the grid.
        return max(1, round(weight * chosen + (1 - weight) * self.n_steps / 2))

    @property
    def first_multiplier(self) -> float:
        """The noise multiplier of the first gradient."""
        return self.noise_multiplier(self.gradient_cost)

    @property
    def _multipliers(self) -> np.ndarray:
        return np.full(len(self.clip), self.first_multiplier)

    @property
    def _releases(self) -> str:
        first = "a first gradient costs"
        if before := (*self.counts, *self.first):
            costs = [f"a {r.name} costs {self.capacity * r.fraction:.4g}" for r in before]
            first = f"{', '.join(costs)}, a first gradient"
        return (
            f"at most {self.n_iter} iterations over {self.metadata.n_samples} records; of "
            f"{self.unit}={self.capacity:.4g} {first} "
            f"{self.gradient_cost:.4g} and every selection {self.selection_cost:.4g}"
        )

    def _noise(self) -> dict[str, str]:
        each = of_clip(self.first_multiplier * self.noise_per_multiplier)
        return self._first_noise() | {
            "a gradient, at first": f"noise multiplier {self.first_multiplier:.4g}, "
            f"clip {self.clip[0]:.4g}",
            "a choice of a step": f"epsilon {self.selection_epsilon:.4g}",
            "affords at most": f"{self.n_affordable:,} iterations (max_iter is {self.n_iter:,}); "
            "each refinement of a gradient, where no step seems to help, leaves fewer",
            "noise on a mean gradient": f"{each}, as a norm over {self.metadata.n_released:,} "
            "coordinates",
        }


def make_adaptive_plan(
    budget: PrivacyBudget,
    metadata: PublicMetadata,
    *,
    max_iter: int | str,
    clip_schedule: Schedule,
    n_splits: float | str,
    selection_fraction: float | str,
    selection: str,
    loss_clip: float | None,
    accountant: str = "auto",
    momentum: Momentum | None = None,
    preconditioner: Any = None,
    first: tuple[PlannedRelease, ...] = (),
    averaging: str | float | None = None,
    step_schedule: Schedule | None = None,
    **numbers: float,
) -> AdaptivePlan:
    """Fix an adaptive fit in advance, except for its course; see `DPAGDClassifier`.

    ``n_splits`` counts parts of the capacity that the first releases leave.
    """
    numbers = {name: _checked(name, value) for name, value in numbers.items()}
    if loss_clip is not None:
        loss_clip = check_clip("loss_clip", loss_clip)
    n_splits = _AUTOMATIC_SPLITS if is_auto(n_splits) else n_splits
    n_splits, selection_fraction = _checked_division(n_splits, selection_fraction)
    check_choice("selection", selection, SELECTIONS)
    check_choice("accountant", accountant, ("auto", *ACCOUNTANTS))
    max_iter = min(math.ceil(n_splits), 1000) if is_auto(max_iter) else max_iter
    n_iter = check_whole("max_iter", max_iter)
    if step_schedule is not None and budget.epsilon < math.inf:
        # The budget allows no more, and public steps have the same total for any number.
        n_iter = min(n_iter, math.ceil(n_splits))

    clip = planned_clip(clip_schedule, n_iter, metadata, infinite=budget.epsilon == math.inf)
    counts = label_counts_of(budget.mu, metadata) if metadata.count_fraction else ()
    left = 1 - sum(release.fraction for release in (*counts, *first))
    division = n_splits, selection_fraction, selection, left
    accountant = _better_accountant(budget, *division) if is_auto(accountant) else accountant
    capacity = _capacity(accountant, budget)
    gradient_cost, selection_cost = _first_costs(accountant, budget, *division)
    mu = math.sqrt(capacity if accountant == "gdp" else 2 * capacity)
    counts, first = (
        tuple(replace(r, noise_multiplier=1 / (mu * math.sqrt(r.fraction))) for r in releases)
        for releases in (counts, first)
    )
    plan = AdaptivePlan(
        metadata=replace(metadata, mu=budget.mu * math.sqrt(left), clip=clip),
        ledger=ledger_of(budget, [filter_of(accountant, capacity)]),
        budget=budget,
        accountant=accountant,
        capacity=capacity,
        gradient_cost=gradient_cost,
        selection_cost=selection_cost,
        selection_epsilon=choice_epsilon(accountant, selection, selection_cost),
        clip=clip,
        selection=selection,
        loss_clip=loss_clip,
        momentum=HeavyBall(0.0) if momentum is None else momentum,
        clip_schedule=clip_schedule,
        averaging=averaging,
        step_schedule=step_schedule,
        preconditioner=preconditioner,
        counts=counts,
        first=first,
        **numbers,
    )
    _check_affordable(plan, n_splits)
    return plan


def _first_costs(
    accountant: str,
    budget: PrivacyBudget,
    n_splits: float,
    selection_fraction: float | str,
    selection: str,
    left: float,
) -> tuple[float, float]:
    """Return the costs of a gradient and of a selection: one of `n_splits` parts of what is left.

    ``"published"``: Lee & Kifer (2018) use the Gaussian of Dwork & Roth (2014), Theorem A.1.
    """
    if budget.epsilon == math.inf:
        return math.inf, math.inf
    if selection_fraction == "published":
        epsilon = budget.epsilon / (2 * n_splits)
        mu_squared = (math.sqrt(2 * math.log(1.25 / budget.delta)) / epsilon) ** -2
        choice = ChoiceEvent(epsilon, selection)
        if accountant == "gdp":
            return mu_squared, choice.mu**2
        return mu_squared / 2, choice.rho
    iteration = left * _capacity(accountant, budget) / n_splits
    return (1 - selection_fraction) * iteration, selection_fraction * iteration


def _better_accountant(
    budget: PrivacyBudget, n_splits: float, fraction: float | str, selection: str, left: float
) -> str:
    """Return GDP if its filter admits as many unrefined iterations as the zCDP filter would.

    This depends on the fraction of selections and on delta, all known in advance. Many cheap
    refinements (a small ``budget_growth``) spend more on selections, which cost more under GDP.
    zCDP might then allow more. Running both filters and keeping the better would not be valid.
    """
    if budget.epsilon == math.inf:
        return "gdp"
    gradient, choice = _first_costs("zcdp", budget, n_splits, fraction, selection, left)
    n_iter = left * budget.rho / (gradient + choice)
    chosen = ChoiceEvent(choice_epsilon("zcdp", selection, choice), selection)
    first = 2 * (1 - left) * budget.rho
    return "gdp" if first + n_iter * (2 * gradient + chosen.mu**2) <= budget.mu**2 else "zcdp"


def _check_affordable(plan: AdaptivePlan, n_splits: float) -> None:
    """Refuse a budget that allows no useful gradient and selection."""
    if plan.exact:
        return
    budget = plan.budget
    if plan.first_cost + plan.gradient_cost + plan.selection_cost > plan.capacity * (1 + 1e-12):
        raise ValueError(
            f"epsilon={budget.epsilon:g} with n_splits={n_splits:g} and selection_fraction="
            "'published': one gradient and one selection cost more than the whole budget. Raise "
            "n_splits, or give selection_fraction a number."
        )
    noise = max(plan.noise_multiplier(plan.gradient_cost), 1 / plan.selection_epsilon)
    excess = noise / LARGEST_NOISE_MULTIPLIER
    if excess > 1:
        event = filter_of(plan.accountant, plan.capacity * excess**2)
        enough = composed_epsilon([(event, 1)], budget.delta)
        raise ValueError(
            f"epsilon={budget.epsilon:g} with delta={budget.delta:g} and n_splits={n_splits:g} is "
            "too small for one gradient and one selection: the noise would exceed "
            f"{LARGEST_NOISE_MULTIPLIER:g} times one record. Use epsilon={enough:.3g} or more, "
            "raise delta, or lower n_splits."
        )
    refuse_all_noise(plan.preconditioner, plan.first)


def _checked_division(n_splits: Any, fraction: Any) -> tuple[float, float | str]:
    n_splits = check_number("n_splits", n_splits, at_least=1, below=math.inf, advice="or 'auto'")
    if not isinstance(fraction, str) or fraction != "published":
        limits = {"above": 0, "below": 1, "advice": "or use 'published'"}
        fraction = check_number("selection_fraction", fraction, **limits)
    return n_splits, fraction


def _checked(name: str, value: Any) -> float:
    if name in ("n_steps", "step_update_every"):
        return check_whole(name, value)
    if name == "step_growth":
        return check_number(name, value, at_least=0, below=math.inf)
    if name == "step_shrink":
        return check_number(name, value, above=0, at_most=1)
    if name == "max_step":
        # Scores are as large as steps: beyond the limit no noise of their size could be drawn.
        return check_clip(name, value)
    return check_number(name, value, above=0, below=math.inf)
