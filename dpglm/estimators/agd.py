"""Gradient descent with a private line search and an adaptive budget: the plan, the classifier."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpglm.checks import check_choice, check_number, check_whole, is_auto
from dpglm.estimators.classification import WeightedClassifier
from dpglm.estimators.plan import (
    Plan,
    label_counts_of,
    ledger_of,
    of_clip,
    planned_clip,
    refuse_all_noise,
    total_fraction,
)
from dpglm.estimators.solvers import FitTrace, OnStep, adaptive_gradient_descent
from dpglm.estimators.whitening import Preconditioner, automatic_configuration, whiten
from dpglm.losses import NamedLossMixin
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget, check_clip
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.events import ChoiceEvent, FilterEvent, bun_steinke_rho
from dpglm.privacy.selection import SELECTIONS, ChoosingVault
from dpglm.privacy.vault import Vault
from dpglm.schedules import (
    Momentum,
    NamedSchedules,
    PublicMetadata,
    Schedule,
    averaging_weights,
    check_schedules,
    schedule_values,
)

# The unit of costs is mu^2 for the first one, and rho for the others.
ACCOUNTANTS = ("gdp", "zcdp", "bun_steinke")
# Parameters of any descent, for which there is a default rule.
_OF_DESCENT = ("clip_schedule", "momentum", "averaging", "preconditioner")
# Numbers that the plan takes as they are given.
_WHOLE = ("n_steps", "step_update_every")
_LIMITS = {
    "budget_growth": {"above": 0, "below": math.inf},
    "step_growth": {"at_least": 0, "below": math.inf},
    "step_shrink": {"above": 0, "at_most": 1},
    "step_limit": {"above": 0, "at_most": math.inf},
}
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
    preconditioner: Any
    averaging: Any
    # Public steps on the gradient; ``max_step`` is then a multiple of them.
    step_schedule: Schedule | None
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
    step_limit: float

    @property
    def n_iter(self) -> int:
        """The largest possible number of iterations."""
        return len(self.clip)

    @property
    def exact(self) -> bool:
        """Whether nothing is noisy, because the budget is infinite."""
        return self.capacity == math.inf

    @property
    def first_cost(self) -> float:
        """The cost of the releases before the first gradient."""
        return self.capacity * sum(release.fraction for release in (*self.counts, *self.first))

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

    def next_max_step(self, accepted: list[float], max_step: float) -> float:
        """Return the largest step on offer after these accepted steps."""
        if self.step_schedule is not None:
            return self.max_step
        if len(accepted) % self.step_update_every:
            return max_step
        longest = max(accepted[-self.step_update_every :])
        return min((1 + self.step_growth) * longest, self.step_limit)

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
        n_samples = self.metadata.n_samples
        return f"{self._before}at most {self.n_iter:,} iterations over {n_samples:,} records"

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


def _refuse_too_little(plan: AdaptivePlan, n_splits: float) -> None:
    """Raise where the budget allows no useful gradient and selection."""
    budget = plan.budget
    if plan.exact:
        return
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


@dataclass(kw_only=True, eq=False, repr=False)
class DPAGDClassifier(NamedLossMixin, NamedSchedules, WeightedClassifier):
    """Differentially private linear classifier that adapts its steps and its budget as it runs.

    Each iteration releases one noisy gradient and chooses privately how far to step along it. When
    no step seems to help, it buys a more precise gradient (Lee & Kifer 2018, corrected). The run is
    charged to a privacy filter, which ends it when the budget is too small for the next iteration.
    By default it chooses around the steps of `DPLogisticRegression`, in the same whitened space.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` takes the exact best step until none helps.
    delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, classes
        As in `DPLogisticRegression`.
    class_weight, max_weight, max_contributions, clip_schedule
        As in `DPLogisticRegression`.
    loss : {"logistic", "smoothed_hinge", "hinge"}, default="logistic"
        With more than two classes, the logistic loss is the cross entropy of the softmax, and hinge
        losses are summed one-vs-rest. ``"smoothed_hinge"`` is smooth within 0.5 of the margin 1.
    loss_clip : "auto" or float, default="auto"
        Bound on one record's influence on the scores of the steps. A number: each record's loss is
        clipped to it, and each of its rows to the ``max_contributions``-th part. ``"auto"`` for two
        classes: scores are changes of the loss whose gradient is the clipped gradient. No record
        then moves a score by more than ``max_step`` times the clipping norm. For more classes
        ``"auto"`` is twice the loss of zero coefficients.
    n_splits : float or "auto", default="auto"
        Number of iterations affordable at the first cost, 1 or more; 40 if ``"auto"``.
    selection_fraction : float or "published", default=0.05
        Fraction of an iteration's cost for choosing the step. ``"published"`` is Lee & Kifer's
        split: ``epsilon / (2 n_splits)`` for the gradient and for the choice.
    budget_growth : float, default=0.25
        A refinement costs this times what the current gradient has cost.
    n_steps : int, default=20
        Steps on offer in addition to zero, equally spaced.
    max_step : "auto" or float, default="auto"
        The largest step on offer. ``"auto"`` is twice a public step on the released gradient: the
        step of `DPLogisticRegression`, larger for fewer iterations. The step taken is the grid
        point next to a mean of the public and the chosen step, weighted by the public noise. A
        number is the first largest step, as a distance between coefficients, and the chosen step is
        taken unchanged.
    step_update_every : int, default=5
        After this number of accepted steps the largest of them becomes the largest on offer...
    step_growth : float, default=0.2
        ... increased by this fraction. Both matter if ``max_step`` is a number.
    step_shrink : float, default=0.5
        Factor on the largest step whenever no step seems to help, 1 to keep it; for one iteration
        if ``max_step`` is ``"auto"``.
    step_limit : float, default=inf
        Bound on the largest step on offer after its first update; 2 in the program of Lee & Kifer.
    momentum : str, float, momentum object or None, default="auto"
        How past directions enter the next, at no cost; ``None`` steps along the last gradient.
    averaging : {"auto", "uniform", "tail", "t_weighted"}, float or None, default="auto"
        Average of the accepted iterates that is returned; ``None`` is the last, as published.
    selection : {"exponential", "laplace", "permute_and_flip"}, default="exponential"
        Exponential mechanism, or report noisy max with Laplace noise, or with one-sided exponential
        noise, at four times the cost for the same epsilon.
    accountant : {"auto", "gdp", "zcdp", "bun_steinke"}, default="auto"
        Unit of the filter: Gaussian or zero-concentrated differential privacy. ``"auto"`` takes the
        one that allows more, before the data are read. ``"bun_steinke"`` is ``"zcdp"`` with the
        looser conversion of 2016.
    preconditioner : {"auto", "diagonal", "full"}, Preconditioner or None, default="auto"
        Descend in a whitened space, where steps are distances too.
    max_row_norm : float, default=None
        Public bound on the norm of a row, for the preconditioner.
    max_iter : int or "auto", default="auto"
        A cap; the filter may end the fit earlier. ``"auto"`` is ``n_splits``, and 1000 at most.

    Attributes
    ----------
    n_iter_ : int
        Iterations begun, decided by released values alone.
    trace_ : FitTrace
        Every release with its cost, the budget left, and the step chosen.
    classes_, coef_, intercept_, n_features_in_, feature_names_in_, privacy_
        As in `DPLogisticRegression`.

    Notes
    -----
    Everything that ``fit`` stores is (epsilon, delta)-differentially private under
    ``neighboring_relation``. Gradients are released with Gaussian noise for an L2 sensitivity of
    ``clip``. Steps are chosen by the exponential mechanism for a range of ``loss_clip``, or the
    largest step times ``clip``. Both double under ``"replace_one"``. A filter of fixed capacity
    adds all costs, also of a preconditioner (Gaussian privacy: Smith & Thakurta 2022; concentrated:
    Feldman & Zrnic 2021). ``privacy_`` is the whole budget, whatever the fit spent of it: the sum
    of the costs of the actual releases would not be a bound.

    Examples
    --------
    >>> from dpglm import DPAGDClassifier
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPAGDClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7  # exact: a PrivacyWarning says so
    True
    """

    alpha: float = 0.0
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    max_weight: float = 10.0
    max_contributions: int | None = None
    loss: str = "logistic"
    clip_schedule: float | str | Schedule = "auto"
    loss_clip: float | str = "auto"
    n_splits: float | str = "auto"
    selection_fraction: float | str = 0.05
    budget_growth: float = 0.25
    n_steps: int = 20
    max_step: float | str = "auto"
    step_update_every: int = 5
    step_growth: float = 0.2
    step_shrink: float = 0.5
    step_limit: float = math.inf
    momentum: float | str | Momentum | None = "auto"
    averaging: float | str | None = "auto"
    selection: str = "exponential"
    accountant: str = "auto"
    preconditioner: str | Preconditioner | None = "auto"
    max_row_norm: float | None = None
    max_iter: int | str = "auto"

    half_width: ClassVar[float] = 0.5
    _losses: ClassVar[tuple[str, ...]] = ("logistic", "smoothed_hinge", "hinge")
    _counts_weights: ClassVar[bool | None] = True
    _vault_type: ClassVar[type[Vault]] = ChoosingVault

    @classmethod
    def as_published(cls, **parameters: Any) -> "DPAGDClassifier":
        """Return Lee & Kifer's algorithm at their constants, with noise that is valid.

        Parameters
        ----------
        **parameters
            Take precedence over the published constants; at least ``epsilon`` is usually given.

        Returns
        -------
        DPAGDClassifier

        Notes
        -----
        Differences from the paper and the authors' program; docs/reproduction.md measures them.

        - Conversion by Canonne, Kamath & Steinke (2020); ``accountant="bun_steinke"`` is Eq. (5).
        - Neighbours: ``"zero_out"``; the paper's are ``"add_or_remove_one"``.
        - ``alpha=0.001`` and ``budget_growth=0.1`` are from the program, which adds the penalty to
          the normalised direction and not to the scores. The intercept is not penalised.
        - A step is chosen with Laplace noise; the exponential noise of the text is
          ``selection="permute_and_flip"``. The program gives it the wrong sign, at about twenty
          times the epsilon, and takes the step before the chosen one.
        - A release is charged before it is made, and once; the program charges gradients twice.
        - A refinement is averaged with all releases before, then normalised. The pseudo-code omits
          the latter; the program forgets the refinement before.
        - 20 steps besides zero, as in the program, whose ``step_limit`` is 2. No mini-batches.

        Examples
        --------
        >>> from dpglm import DPAGDClassifier
        >>> plan = DPAGDClassifier.as_published(epsilon=1.0).plan(48842, 123)
        >>> noise = 3.0 * plan.noise_multiplier(plan.gradient_cost) / 48842
        >>> round(noise * 124**0.5, 5)  # Table 1 of the paper
        0.50119
        """
        published = {
            "delta": 1e-8,
            "alpha": 1e-3,
            "clip_schedule": 3.0,
            "loss_clip": 3.0,
            "n_splits": 60,
            "selection_fraction": "published",
            "budget_growth": 0.1,
            "n_steps": 20,
            "max_step": 2.0,
            "step_update_every": 10,
            "step_growth": 0.1,
            "step_shrink": 1.0,
            "momentum": None,
            "averaging": None,
            "preconditioner": None,
            "max_iter": 1000,
            "selection": "laplace",
            "accountant": "zcdp",
        }
        return cls(**{**published, **parameters})

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> AdaptivePlan:
        numbers = {k: check_number(k, getattr(self, k), **of) for k, of in _LIMITS.items()}
        numbers |= {name: check_whole(name, getattr(self, name)) for name in _WHOLE}
        n_splits = _AUTOMATIC_SPLITS if is_auto(self.n_splits) else self.n_splits
        limits = {"at_least": 1, "below": math.inf, "advice": "or 'auto'"}
        n_splits, fraction = check_number("n_splits", n_splits, **limits), self.selection_fraction
        if not isinstance(fraction, str) or fraction != "published":
            limits = {"above": 0, "below": 1, "advice": "or use 'published'"}
            fraction = check_number("selection_fraction", fraction, **limits)
        check_choice("selection", self.selection, SELECTIONS)
        check_choice("accountant", self.accountant, ("auto", *ACCOUNTANTS))
        max_iter = min(math.ceil(n_splits), 1000) if is_auto(self.max_iter) else self.max_iter
        n_iter = check_whole("max_iter", max_iter)

        left = 1 - metadata.count_fraction
        n_mu = budget.n_mu(metadata.n_samples, left)
        given = {name: getattr(self, name) for name in _OF_DESCENT}
        if is_auto(self.max_step):
            # The public step is half of the largest on offer.
            max_step = 2.0
            if budget.epsilon < math.inf:
                # The budget allows no more, and public steps have the same total for any number.
                n_iter = min(n_iter, math.ceil(n_splits))
        else:
            # Scores are as large as steps: beyond the limit no noise of their size could be drawn.
            max_step, given["step_schedule"] = check_clip("max_step", self.max_step), None
        run = automatic_configuration(n_mu, metadata.n_features, **given)
        run |= check_schedules({name: run[name] for name in ("clip_schedule", "momentum")})
        averaging_weights(run["averaging"], 1)
        counts, first = label_counts_of(budget.mu, metadata) if metadata.count_fraction else (), ()
        if run["preconditioner"] is not None:
            size = metadata.n_features, metadata.max_row_norm
            run["preconditioner"], first = run["preconditioner"].planned(
                budget.mu, left, n_mu, *size
            )
            metadata = replace(metadata, max_row_norm=None, whitened=True)
        infinite = budget.epsilon == math.inf
        clip = planned_clip(run["clip_schedule"], n_iter, metadata, infinite=infinite)

        left = 1 - total_fraction((*counts, *first))
        division, accountant = (n_splits, fraction, self.selection, left), self.accountant
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
            selection_epsilon=choice_epsilon(accountant, self.selection, selection_cost),
            clip=clip,
            selection=self.selection,
            loss_clip=self._loss_clip(metadata.n_outputs),
            max_step=max_step,
            counts=counts,
            first=first,
            **{name: run[name] for name in (*_OF_DESCENT, "step_schedule")},
            **numbers,
        )
        _refuse_too_little(plan, n_splits)
        return plan

    def _loss_clip(self, n_outputs: int) -> float | None:
        if not is_auto(self.loss_clip):
            return check_clip("loss_clip", self.loss_clip)
        if n_outputs == 1:
            return None
        scores, target = np.zeros((1, n_outputs)), np.zeros(1, dtype=int)
        return 2 * float(self._loss(n_outputs).value(scores, target)[0])

    def _train(self, vault: ChoosingVault, plan: AdaptivePlan, on_step: OnStep) -> FitTrace:
        space = self._space(plan)
        trace = FitTrace(
            "iteration", "release", "cost", "remaining", "noise_scale", "max_step", "step"
        )
        if plan.first:
            plan, space, trace.whitening = whiten(vault, plan, space)
        trace.coef = adaptive_gradient_descent(vault, plan, space, trace, on_step)
        return trace
