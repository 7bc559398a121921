"""The plan of an adaptive fit: what it may spend, on what, and by which accountant."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from dpglm.estimators.plan import SecondMomentRelease
from dpglm.privacy.accounting import (
    bounded_range_epsilon_from_mu,
    bounded_range_epsilon_from_rho,
    gdp_epsilon,
    pure_epsilon_from_mu,
    pure_epsilon_from_rho,
    zcdp_epsilon,
)
from dpglm.privacy.budget import (
    CLIP_RANGE,
    LARGEST_NOISE_MULTIPLIER,
    N_REF_FACTOR,
    PrivacyBudget,
    PrivacyFilter,
)
from dpglm.privacy.events import FilterEvent, GaussianEvent, LaplaceSelectionEvent, SelectionEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.mechanisms import ExponentialSelection, GaussianSum, LaplaceSelection
from dpglm.schedules import HeavyBall, Momentum, PublicFacts, Schedule, schedule_values

__all__ = [
    "ACCOUNTANTS",
    "SELECTIONS",
    "Accountant",
    "AdaptivePlan",
    "Division",
    "Selection",
    "automatic_splits",
    "make_adaptive_plan",
    "selection_epsilon",
]


@dataclass(frozen=True)
class Accountant:
    """A unit of costs: ``mu**2`` of Gaussian differential privacy, or ``rho`` of zCDP.

    Attributes
    ----------
    of_budget, of_event : callable
        What a budget holds, and what a release costs.
    noise_multiplier : callable
        Of the Gaussian sum that a cost buys.
    epsilon : callable
        Of a capacity, at a delta.
    event : callable
        The event of a filter of that capacity.
    """

    of_budget: Callable[[PrivacyBudget], float]
    of_event: Callable[[Any], float]
    noise_multiplier: Callable[[float], float]
    epsilon: Callable[[float, float], float]
    event: Callable[[float], FilterEvent]


ACCOUNTANTS = {
    "gdp": Accountant(
        of_budget=lambda budget: budget.mu**2,
        of_event=lambda event: event.mu**2,
        noise_multiplier=lambda cost: 1 / math.sqrt(cost),
        epsilon=lambda capacity, delta: gdp_epsilon(math.sqrt(capacity), delta),
        event=lambda capacity: FilterEvent(mu=math.sqrt(capacity)),
    ),
    "zcdp": Accountant(
        of_budget=lambda budget: budget.rho,
        of_event=lambda event: event.rho,
        noise_multiplier=lambda cost: 1 / math.sqrt(2 * cost),
        epsilon=zcdp_epsilon,
        event=lambda capacity: FilterEvent(rho=capacity),
    ),
}


@dataclass(frozen=True)
class Selection:
    """A mechanism of selection, its event, and the epsilon that a cost buys in each unit."""

    mechanism: type
    event: type
    epsilon_from: dict[str, Callable[[float], float]]


SELECTIONS = {
    "exponential": Selection(
        ExponentialSelection,
        SelectionEvent,
        {
            "gdp": lambda cost: bounded_range_epsilon_from_mu(math.sqrt(cost)),
            "zcdp": bounded_range_epsilon_from_rho,
        },
    ),
    "laplace": Selection(
        LaplaceSelection,
        LaplaceSelectionEvent,
        {"gdp": lambda cost: pure_epsilon_from_mu(math.sqrt(cost)), "zcdp": pure_epsilon_from_rho},
    ),
}


@dataclass(frozen=True)
class Division:
    """What the first iteration costs, as parts of a budget.

    Parameters
    ----------
    n_splits : float
        How many first iterations the budget that a second moment leaves would buy.
    selection_share : float or "published"
        Share of an iteration's cost that its selection takes.
    selection : {"exponential", "laplace"}
    moment_share : float
        Share of the whole budget that a second moment takes, 0 without one.
    """

    n_splits: float
    selection_share: float | str
    selection: str
    moment_share: float

    def costs(self, accountant: str, budget: PrivacyBudget) -> tuple[float, float]:
        """Return the cost of a gradient and of a selection, in the unit of the accountant."""
        unit = ACCOUNTANTS[accountant]
        if budget.epsilon == math.inf:
            return math.inf, math.inf
        if self.selection_share == "published":
            epsilon = budget.epsilon / (2 * self.n_splits)
            # Lee & Kifer (2018) take the Gaussian of Dwork & Roth (2014), Theorem A.1.
            classical = math.sqrt(2 * math.log(1.25 / budget.delta)) / epsilon
            mu_squared = classical**-2
            gradient = mu_squared if accountant == "gdp" else mu_squared / 2
            return gradient, unit.of_event(SELECTIONS[self.selection].event(epsilon))
        iteration = (1 - self.moment_share) * unit.of_budget(budget) / self.n_splits
        return (1 - self.selection_share) * iteration, self.selection_share * iteration

    def resolved_accountant(self, accountant: str, budget: PrivacyBudget) -> str:
        """GDP, if its filter admits all the releases that the zCDP filter was to pay for."""
        if accountant != "auto":
            return accountant
        if budget.epsilon == math.inf:
            return "gdp"
        gradient, choice = self.costs("zcdp", budget)
        moment = self.moment_share * budget.rho
        n_iter = (budget.rho - moment) / (gradient + choice)
        epsilon = selection_epsilon("zcdp", self.selection, choice)
        iterations = n_iter * (2 * gradient + SELECTIONS[self.selection].event(epsilon).mu ** 2)
        return "gdp" if 2 * moment + iterations <= budget.mu**2 else "zcdp"


def automatic_splits(budget: PrivacyBudget, n_samples: int) -> float:
    """Return ``n mu / 10`` between 10 and 200, with mu for a sensitivity of one clip."""
    if budget.epsilon == math.inf:
        return 1.0
    return min(max(n_samples * budget.mu / budget.sensitivity(10.0), 10.0), 200.0)


def selection_epsilon(accountant: str, selection: str, cost: float) -> float:
    """Return the epsilon of a selection that costs this much."""
    return math.inf if cost == math.inf else SELECTIONS[selection].epsilon_from[accountant](cost)


# Covers the rounding of a direction of length one, and of a step along it.
_LENGTH_SLACK = 1e-12
_SMALLEST_GRID = 2.0**-20


@dataclass(frozen=True, eq=False)
class AdaptivePlan:
    """What an adaptive fit may release, and what all of it costs at most.

    Made by `make_adaptive_plan` from public facts alone. Costs are in the accountant's unit:
    ``mu**2`` for ``"gdp"``, ``rho`` for ``"zcdp"``.

    Parameters
    ----------
    facts : PublicFacts
    budget : PrivacyBudget
    accountant : {"gdp", "zcdp"}
    capacity : float
        What the filter admits in total.
    gradient_cost, selection_cost : float
        Of the first gradient, and of every selection.
    budget_growth : float
        A refinement costs this times what the current gradient has cost.
    clip : ndarray of shape (n_iter,)
        L2 bound on each record's gradient.
    selection : {"exponential", "laplace"}
    loss_clip : float or None
        Bound on each record's loss in the scores; None scores differences of the loss whose
        gradient is the clipped gradient.
    n_steps : int
        Steps on offer besides zero.
    max_step : float
        The largest of them at first.
    step_update_every, step_growth : int and float
        After that many accepted steps ``max_step`` is the largest of them, increased by this share.
    step_shrink : float
        Factor on ``max_step`` whenever no step seems to help.
    momentum : Momentum
        How released gradients become directions.
    ledger : PrivacyLedger
        The whole budget.
    clip_schedule : Schedule
        Where ``clip`` came from.
    second_moment : SecondMomentRelease, optional
        What a preconditioner releases first. ``clip`` is then in units of the square root of the
        effective dimension that it will find: see `in_whitened_space`.
    """

    facts: PublicFacts
    budget: PrivacyBudget
    accountant: str
    capacity: float
    gradient_cost: float
    selection_cost: float
    budget_growth: float
    clip: np.ndarray
    selection: str
    loss_clip: float | None
    n_steps: int
    max_step: float
    step_update_every: int
    step_growth: float
    step_shrink: float
    momentum: Momentum
    ledger: PrivacyLedger
    clip_schedule: Schedule
    second_moment: SecondMomentRelease | None = None

    def __post_init__(self) -> None:
        self.clip.flags.writeable = False

    @property
    def n_iter(self) -> int:
        """The most iterations that are made."""
        return len(self.clip)

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        return self.facts.n_samples * (1 if self.budget.n_ref is None else N_REF_FACTOR)

    @property
    def exact(self) -> bool:
        """Whether nothing is noisy, because the budget is infinite."""
        return self.capacity == math.inf

    @property
    def selection_epsilon(self) -> float:
        """The epsilon of every selection."""
        return selection_epsilon(self.accountant, self.selection, self.selection_cost)

    @property
    def second_moment_cost(self) -> float:
        """What the release of the second moment costs, 0 without one."""
        if self.second_moment is None:
            return 0.0
        event = GaussianEvent(self.second_moment.noise_multiplier)
        return ACCOUNTANTS[self.accountant].of_event(event)

    def in_whitened_space(self, effective_dimension: float) -> "AdaptivePlan":
        """Return the plan of the iterations, once the second moment has been released.

        Parameters
        ----------
        effective_dimension : float
            A released value, which the schedule of clips is told.

        Returns
        -------
        AdaptivePlan

        Notes
        -----
        The clip is ``sqrt(effective_dimension)`` times its schedule, as in
        `PrivacyPlan.in_whitened_space`. Costs stay what they were. A record moves a score by at
        most ``loss_clip``, or ``max_step * clip`` with lengths in the whitened space: both hold in
        every basis.
        """
        facts = replace(self.facts, effective_dimension=effective_dimension, clip=None)
        relative_clip = schedule_values(
            self.clip_schedule, self.n_iter, facts, parameter="clip_schedule", allow_inf=self.exact
        )
        clip = math.sqrt(effective_dimension) * relative_clip
        return replace(self, facts=replace(facts, clip=clip), clip=clip)

    def filter(self) -> PrivacyFilter:
        """Return a fresh filter of the whole budget."""
        return PrivacyFilter(self.capacity)

    def noise_multiplier(self, cost: float) -> float:
        """Return the noise multiplier of a gradient that costs this much."""
        return 0.0 if self.exact else ACCOUNTANTS[self.accountant].noise_multiplier(cost)

    def refinement_cost(self, cost: float) -> float:
        """Return what it costs to refine a gradient that has cost this much."""
        return 0.0 if self.exact else self.budget_growth * cost

    @property
    def smallest_grid(self) -> float:
        """The ``max_step`` below which a fit without noise gives up."""
        return self.max_step * _SMALLEST_GRID if self.step_shrink < 1 else math.inf

    def gradient_mechanism(self, t: int, cost: float, rounding_slack: float) -> GaussianSum:
        """Return the mechanism of a gradient of iteration ``t``.

        Parameters
        ----------
        t : int
            Iteration, from 0.
        cost : float
        rounding_slack : float
            What floating-point summation can add to the sensitivity, relative to the clip.
        """
        clip = float(self.clip[t])
        return GaussianSum(
            sensitivity=self.budget.sensitivity(clip),
            noise_multiplier=self.noise_multiplier(cost),
            slack=0.0 if self.exact else rounding_slack * clip,
        )

    def loss_bound(self, t: int, max_step: float) -> float:
        """Return how much one record can contribute to a score in iteration ``t``."""
        if self.loss_clip is not None:
            return self.loss_clip
        return float(max_step * self.clip[t]) * (1 + _LENGTH_SLACK)

    def selection_mechanism(
        self, t: int, max_step: float, rounding: float
    ) -> ExponentialSelection | LaplaceSelection:
        """Return the mechanism that chooses a step in iteration ``t``.

        Parameters
        ----------
        t : int
            Iteration, from 0.
        max_step : float
            The largest step on offer.
        rounding : float
            Bound on the rounding error of a score; two scores of two data sets differ by up to
            four of them.
        """
        return SELECTIONS[self.selection].mechanism(
            score_range=self.budget.sensitivity(self.loss_bound(t, max_step)),
            epsilon=self.selection_epsilon,
            slack=0.0 if self.exact else 4 * rounding,
        )

    def next_max_step(self, max_step: float, accepted_steps: list[float]) -> float:
        """Return the largest step on offer after these have been accepted."""
        if len(accepted_steps) % self.step_update_every:
            return max_step
        return (1 + self.step_growth) * max(accepted_steps[-self.step_update_every :])

    def __str__(self) -> str:
        unit = {"gdp": "mu^2", "zcdp": "rho"}[self.accountant]
        first = "a first gradient costs"
        if self.second_moment is not None:
            first = f"a second moment costs {self.second_moment_cost:.4g}, a first gradient"
        return (
            f"at most {self.n_iter} iterations over {self.facts.n_samples} records; of {unit}="
            f"{self.capacity:.4g} {first} {self.gradient_cost:.4g} and every "
            f"selection {self.selection_cost:.4g}: {self.ledger}"
        )

    def __repr__(self) -> str:
        return f"<AdaptivePlan: {self}>"


def make_adaptive_plan(
    budget: PrivacyBudget,
    facts: PublicFacts,
    *,
    max_iter: int,
    clip_schedule: Schedule,
    n_splits: float | str,
    selection_share: float | str,
    budget_growth: float,
    selection: str,
    loss_clip: float | None,
    n_steps: int,
    max_step: float,
    step_update_every: int,
    step_growth: float,
    step_shrink: float = 1.0,
    momentum: Momentum | None = None,
    accountant: str = "auto",
    second_moment: SecondMomentRelease | None = None,
    assumptions: tuple[str, ...] = (),
    seeded: bool = False,
) -> AdaptivePlan:
    """Fix in advance everything about an adaptive fit but its course.

    Parameters
    ----------
    budget : PrivacyBudget
    facts : PublicFacts
    max_iter : int
        The most iterations that are made.
    clip_schedule : Schedule
    n_splits : float or "auto"
        How many iterations at the first cost the budget would buy, 1 or more. ``"auto"`` is
        ``n mu / 10`` between 10 and 200, with mu for a sensitivity of one clip: cheap iterations
        where noise is small beside the sum over the records, few where it is not.
    selection_share : float or "published"
        Share of an iteration's cost that its selection takes, above 0 and below 1.
        ``"published"`` is the split of Lee & Kifer (2018): epsilon over ``2 n_splits`` for each
        gradient, by the classical Gaussian mechanism, and as much for each selection.
    budget_growth, selection, loss_clip, n_steps, max_step
        As in `AdaptivePlan`.
    step_update_every, step_growth, step_shrink
        As in `AdaptivePlan`.
    momentum : Momentum, optional
        Plain gradients when omitted.
    accountant : {"auto", "gdp", "zcdp"}
        ``"auto"`` is ``"gdp"`` where it affords all that ``"zcdp"`` does, else ``"zcdp"``.
    second_moment : SecondMomentRelease, optional
        Released before the first iteration, for the share of the capacity that its preconditioner
        names; ``n_splits`` then counts parts of the rest.
    assumptions : tuple of str, default=()
        Facts taken as public, for the ledger.
    seeded : bool, default=False
        Whether a seed reproduces the noise, for the ledger.

    Returns
    -------
    AdaptivePlan

    Raises
    ------
    ValueError
        If a value is out of range, or the budget is too small for one gradient and one selection,
        or for the second moment.

    Notes
    -----
    A Gaussian sum is worth 10 to 30 percent more in GDP than in zCDP, an exponential mechanism 1.6
    times more in zCDP (before the conversion to epsilon and delta): which wins depends on the
    share of selections and on delta, all known in advance. Running both filters and keeping the
    better would not be valid.

    Examples
    --------
    >>> from dpglm.estimators.adaptive_plan import make_adaptive_plan
    >>> from dpglm.schedules import PublicFacts
    >>> from dpglm.privacy.budget import PrivacyBudget
    >>> from dpglm.schedules import Constant
    >>> plan = make_adaptive_plan(
    ...     PrivacyBudget(epsilon=1.0, delta=1e-8),
    ...     PublicFacts(n_samples=10_000, n_features=20),
    ...     max_iter=500, clip_schedule=Constant(3.0), n_splits=60, selection_share="published",
    ...     budget_growth=0.1, selection="laplace", loss_clip=3.0, n_steps=20, max_step=2.0,
    ...     step_update_every=10, step_growth=0.1, accountant="zcdp",
    ... )
    >>> print(f"{plan.gradient_cost:.3e} {plan.selection_cost:.3e}")
    9.312e-07 3.472e-05
    """
    _check_whole("max_iter", max_iter)
    _check_whole("n_steps", n_steps)
    _check_whole("step_update_every", step_update_every)
    if n_splits == "auto":
        n_splits = automatic_splits(budget, facts.n_samples)
    _check_real("n_splits", n_splits, 1.0, "'auto' or a finite number, 1 or more")
    if selection_share != "published":
        _check_real("selection_share", selection_share, 0.0, "above 0 and below 1, or 'published'")
        if not 0 < selection_share < 1:
            raise ValueError(
                f"selection_share={selection_share!r} must be above 0 and below 1, or 'published'."
            )
    _check_positive("budget_growth", budget_growth)
    _check_positive("max_step", max_step)
    _check_real("step_growth", step_growth, 0.0, "a finite number, 0 or above")
    _check_positive("step_shrink", step_shrink)
    if step_shrink > 1:
        raise ValueError(f"step_shrink={step_shrink!r} must be above 0 and at most 1.")
    if loss_clip is not None:
        _check_positive("loss_clip", loss_clip)
    elif facts.n_outputs > 1:
        raise ValueError(
            "loss_clip='range' scores steps for two classes only; with "
            f"{facts.n_outputs} classes give a number, or 'auto'."
        )
    if selection not in SELECTIONS:
        raise ValueError(f"selection={selection!r} is unknown; choose 'exponential' or 'laplace'.")
    if accountant not in ("auto", *ACCOUNTANTS):
        raise ValueError(f"accountant={accountant!r} is unknown; choose 'auto', 'gdp' or 'zcdp'.")

    infinite = budget.epsilon == math.inf
    clip = schedule_values(
        clip_schedule, max_iter, facts, parameter="clip_schedule", allow_inf=infinite
    )
    if not infinite and not (clip.min() >= CLIP_RANGE[0] and clip.max() <= CLIP_RANGE[1]):
        raise ValueError(
            f"clip_schedule={clip_schedule!r} reaches {clip.min():g} to {clip.max():g}; "
            f"rescale the data so that clips lie within {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}."
        )
    # A copy: what a schedule does to its array later must not change the plan.
    clip = clip.copy()
    mu = budget.mu if second_moment is None else second_moment.left_over(budget.mu)
    facts = replace(facts, mu=mu, clip=clip)
    moment_share = 0.0 if second_moment is None else second_moment.preconditioner.share
    division = Division(n_splits, selection_share, selection, moment_share)
    accountant = division.resolved_accountant(accountant, budget)
    capacity = ACCOUNTANTS[accountant].of_budget(budget)
    costs = division.costs(accountant, budget)
    if second_moment is not None and capacity < math.inf:
        noise_multiplier = ACCOUNTANTS[accountant].noise_multiplier(moment_share * capacity)
        second_moment = replace(second_moment, noise_multiplier=noise_multiplier)
    plan = AdaptivePlan(
        facts=facts,
        budget=budget,
        accountant=accountant,
        capacity=capacity,
        gradient_cost=costs[0],
        selection_cost=costs[1],
        budget_growth=float(budget_growth),
        clip=clip,
        selection=selection,
        loss_clip=None if loss_clip is None else float(loss_clip),
        n_steps=int(n_steps),
        max_step=float(max_step),
        step_update_every=int(step_update_every),
        step_growth=float(step_growth),
        step_shrink=float(step_shrink),
        momentum=HeavyBall(0.0) if momentum is None else momentum,
        ledger=PrivacyLedger.from_events(
            [ACCOUNTANTS[accountant].event(capacity)],
            neighboring_relation=budget.neighboring_relation,
            reporting_delta=budget.delta,
            assumptions=assumptions,
            seeded=seeded,
        ),
        clip_schedule=clip_schedule,
        second_moment=second_moment,
    )
    _check_affordable(plan, n_splits)
    return plan


def _check_affordable(plan: AdaptivePlan, n_splits: float) -> None:
    """Refuse a budget that buys no gradient and selection of any use."""
    if plan.exact:
        return
    budget = plan.budget
    if not plan.filter().admits(plan.second_moment_cost, plan.gradient_cost, plan.selection_cost):
        raise ValueError(
            f"epsilon={budget.epsilon:g} with n_splits={n_splits:g} and selection_share="
            "'published' asks for a gradient and a selection that cost more than the whole "
            "budget; raise n_splits, or give selection_share a number."
        )
    smallest = LARGEST_NOISE_MULTIPLIER**-1
    excess = max(plan.noise_multiplier(plan.gradient_cost), 1 / plan.selection_epsilon) * smallest
    if excess > 1:
        unit = ACCOUNTANTS[plan.accountant]
        enough = unit.epsilon(plan.capacity * excess**2, budget.delta)
        raise ValueError(
            f"epsilon={budget.epsilon:g} with delta={budget.delta:g} is too small for one gradient "
            f"and one selection, each 1/{n_splits:g} of the budget (n_splits): the noise would be "
            f"more than {LARGEST_NOISE_MULTIPLIER:g} times one record. epsilon={enough:.3g} would "
            "suffice; or raise delta, or lower n_splits."
        )
    if plan.second_moment is not None:
        plan.second_moment.refuse_all_noise()
        # The largest effective dimension that there can be.
        plan = plan.in_whitened_space(float(plan.facts.n_features))
    # Bad scales are refused here, not after a release.
    plan.gradient_mechanism(0, plan.gradient_cost, 0.0)
    plan.selection_mechanism(0, plan.max_step, 0.0)


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more.")


def _check_real(name: str, value: Any, least: float, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= value < math.inf:
        raise ValueError(f"{name}={value!r} must be {rule}.")


def _check_positive(name: str, value: Any) -> None:
    _check_real(name, value, math.ulp(0.0), "a finite number above 0")
