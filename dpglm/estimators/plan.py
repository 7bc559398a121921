"""The plan of a fit: everything public, fixed before the data are touched."""

import math
from dataclasses import astuple, dataclass, fields, replace
from html import escape
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from dpglm.privacy.accounting import gdp_epsilon
from dpglm.privacy.budget import CLIP_RANGE, LARGEST_NOISE_MULTIPLIER, N_REF_FACTOR, PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers
from dpglm.privacy.events import (
    NEIGHBORING_RELATIONS,
    SAMPLED_REPLACEMENT,
    GaussianEvent,
    PoissonSampledEvent,
    check_sampling_rate,
)
from dpglm.privacy.ledger import Event, PrivacyLedger, composed_epsilon, run_lengths
from dpglm.privacy.mechanisms import GaussianSum
from dpglm.schedules import (
    HeavyBall,
    Momentum,
    PublicFacts,
    Schedule,
    averaging_weights,
    schedule_values,
)

__all__ = ["PrivacyPlan", "SecondMomentRelease", "gradient_event", "make_plan"]


@dataclass(frozen=True)
class SecondMomentRelease:
    """The release of the features' second moment, which comes before the gradients.

    Parameters
    ----------
    preconditioner : Preconditioner
        What asked for it and will use it.
    row_bound : float
        Public bound that rows, intercept included, are clipped to.
    sensitivity : float
        L2 sensitivity of what is released under the neighbouring relation.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity.
    """

    preconditioner: Any
    row_bound: float
    sensitivity: float
    noise_multiplier: float

    def mechanism(self, rounding_slack: float) -> GaussianSum:
        """Return the mechanism; the slack is relative to the square of the row bound."""
        return GaussianSum(
            sensitivity=self.sensitivity,
            noise_multiplier=self.noise_multiplier,
            slack=rounding_slack * self.row_bound**2,
        )

    def refuse_all_noise(self) -> None:
        """Raise a ValueError if the release would say nothing about any data."""
        if self.noise_multiplier > LARGEST_NOISE_MULTIPLIER:
            raise ValueError(
                f"preconditioner={self.preconditioner!r} needs a noise_multiplier of "
                f"{self.noise_multiplier:.3g}, above {LARGEST_NOISE_MULTIPLIER:g}: its second "
                "moment would be all noise. Raise share or epsilon, or set preconditioner=None."
            )

    def left_over(self, mu: float) -> float:
        """Return the budget for the gradients, ``sqrt(mu^2 - 1/noise_multiplier^2)``."""
        if self.noise_multiplier == 0:
            return math.inf
        spent = 1 / self.noise_multiplier
        return math.sqrt((mu - spent) * (mu + spent))


_MOST_ITERATIONS = 10_000_000
# The sampler is exact up to here; a schedule that needs more wastes its noisiest iterations.
_LARGEST_SAMPLED = 1e12


@dataclass(frozen=True)
class Milestone:
    """One iteration of a plan, and what all releases up to it have cost.

    Attributes
    ----------
    iteration : int
        Counted from 1.
    clip, step, noise_multiplier : float
    noise_std : float
        Standard deviation of the noise in each coordinate of the mean gradient.
    epsilon : float
        Spent so far, at the delta of the ledger.
    """

    iteration: int
    clip: float
    step: float
    noise_multiplier: float
    noise_std: float
    epsilon: float


@dataclass(frozen=True, eq=False)
class PrivacyPlan:
    """What a fit will release, with how much noise, and what that costs.

    Made by `make_plan` from public facts alone. Arrays have one entry per iteration.

    Parameters
    ----------
    facts : PublicFacts
        What the schedules were told.
    clip : ndarray of shape (n_iter,)
        L2 bound on each record's gradient.
    sensitivity : ndarray of shape (n_iter,)
        L2 sensitivity of the sum of clipped gradients under the neighbouring relation.
    noise_multiplier : ndarray of shape (n_iter,)
        Standard deviation of the noise over the sensitivity.
    step : ndarray of shape (n_iter,)
        Step size on the mean gradient.
    momentum : Momentum
        How gradients become directions.
    averaging : ndarray of shape (n_iter,)
        Weights of the iterates in the returned coefficients; they sum to 1.
    ledger : PrivacyLedger
        The cost of the whole plan.
    clip_schedule, step_schedule : Schedule
        Where ``clip`` and ``step`` came from.
    second_moment : SecondMomentRelease, optional
        What a preconditioner releases first. ``clip`` and ``sensitivity`` are then in units of the
        square root of the effective dimension that it will find: see `in_whitened_space`.
    """

    facts: PublicFacts
    clip: np.ndarray
    sensitivity: np.ndarray
    noise_multiplier: np.ndarray
    step: np.ndarray
    momentum: Momentum
    averaging: np.ndarray
    ledger: PrivacyLedger
    clip_schedule: Schedule
    step_schedule: Schedule
    second_moment: SecondMomentRelease | None = None

    def __post_init__(self) -> None:
        for array in (self.clip, self.sensitivity, self.noise_multiplier, self.step):
            array.flags.writeable = False
        self.averaging.flags.writeable = False

    @property
    def n_iter(self) -> int:
        """Number of iterations, one release each."""
        return len(self.clip)

    def in_whitened_space(self, effective_dimension: float) -> "PrivacyPlan":
        """Return the plan of the gradients, once the second moment has been released.

        Parameters
        ----------
        effective_dimension : float
            A released value, which the schedules of clip and step are told.

        Returns
        -------
        PrivacyPlan

        Notes
        -----
        The clip is ``sqrt(effective_dimension)`` times its schedule: whitened rows are about that
        long. The noise multipliers stay what they were, so that the cost is the one fixed in
        advance; clip, sensitivity and step may depend on released values freely (Dong, Roth & Su
        2022, Theorem 4: adaptive composition).
        """
        n_iter, mu = self.n_iter, self.facts.mu
        facts = replace(
            self.facts, effective_dimension=effective_dimension, clip=None, noise_std=None
        )
        relative_clip = schedule_values(
            self.clip_schedule, n_iter, facts, parameter="clip_schedule", allow_inf=mu == math.inf
        )
        clip = math.sqrt(effective_dimension) * relative_clip
        relation = NEIGHBORING_RELATIONS[self.ledger.neighboring_relation]
        sensitivity = relation.sensitivity_factor * clip
        noise_std = _noise_std(self.noise_multiplier, sensitivity)
        facts = replace(facts, clip=clip, noise_std=noise_std)
        step = schedule_values(self.step_schedule, n_iter, facts, parameter="step_schedule")
        return replace(self, facts=facts, clip=clip, sensitivity=sensitivity, step=step)

    @property
    def sampling_rate(self) -> float:
        """Chance of each record to be in the batch of an iteration; 1 for all of them."""
        return self.facts.sampling_rate

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        private = self.ledger.neighboring_relation == "add_or_remove_one"
        return self.facts.n_samples * (N_REF_FACTOR if private else 1)

    def mechanism(self, t: int, rounding_slack: float) -> GaussianSum:
        """Return the mechanism of iteration ``t``.

        Parameters
        ----------
        t : int
            Iteration, from 0.
        rounding_slack : float
            What floating-point summation can add to the sensitivity, relative to the clip.
        """
        slack = rounding_slack * self.clip[t] if self.noise_multiplier[t] > 0 else 0.0
        return GaussianSum(
            sensitivity=float(self.sensitivity[t]),
            noise_multiplier=float(self.noise_multiplier[t]),
            slack=float(slack),
        )

    def __str__(self) -> str:
        first = "" if self.second_moment is None else "one second moment, then "
        records = f"{self.facts.n_samples} records"
        if self.sampling_rate < 1:
            records = f"random batches of about {self.facts.expected_batch_size:.6g} of {records}"
        iterations = f"{self.n_iter} iterations over {records}"
        return f"{first}{iterations}: {self.ledger}"

    def __repr__(self) -> str:
        return f"<PrivacyPlan: {self}>"

    def epsilon_after(self, n_releases: int) -> float:
        """Return the cost of the first so many releases, a second moment among them.

        Parameters
        ----------
        n_releases : int
            From 1 to ``ledger.n_releases``.

        Returns
        -------
        float
            At the delta of the ledger; with mini-batches up to 0.1 percent too large before the
            last release.
        """
        if n_releases == self.ledger.n_releases:
            return self.ledger.epsilon()
        releases = chain.from_iterable(repeat(event, n) for event, n in self.ledger.events)
        first = run_lengths(islice(releases, n_releases))
        return composed_epsilon(first, self.ledger.reporting_delta, coarseness=5)

    def milestones(self, n_milestones: int = 5) -> list[Milestone]:
        """Return some iterations, evenly spread from the first to the last.

        Parameters
        ----------
        n_milestones : int, default=5
            At most so many.

        Returns
        -------
        list of Milestone
        """
        first = self.ledger.n_releases - self.n_iter
        noise_std = _noise_std(self.noise_multiplier, self.sensitivity)
        spread = np.linspace(0, self.n_iter - 1, min(n_milestones, self.n_iter))
        return [
            Milestone(
                iteration=t + 1,
                clip=float(self.clip[t]),
                step=float(self.step[t]),
                noise_multiplier=float(self.noise_multiplier[t]),
                noise_std=float(noise_std[t]) / self.facts.expected_batch_size,
                epsilon=self.epsilon_after(first + t + 1),
            )
            for t in spread.round().astype(int).tolist()
        ]

    def _repr_html_(self) -> str:
        columns = [field.name.replace("_", " ") for field in fields(Milestone)]
        header = "".join(f"<th>{name}</th>" for name in columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{value:.4g}</td>" for value in astuple(row)) + "</tr>"
            for row in self.milestones(9)
        )
        unit = (
            "; clip and noise in units of the square root of the effective dimension that the "
            "second moment will show, clip and step for the largest that it can be"
            if self.second_moment is not None
            else ""
        )
        return (
            f"<p><b>Plan</b>: {escape(str(self))}</p><table><caption>noise std: of each coordinate "
            f"of the mean gradient; epsilon: spent so far{unit}</caption>"
            f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"
        )


def make_plan(
    budget: PrivacyBudget,
    facts: PublicFacts,
    *,
    n_iter: int,
    clip_schedule: Schedule,
    noise_schedule: Schedule,
    step_schedule: Schedule,
    momentum: Momentum | None = None,
    averaging: str | float | None = None,
    second_moment: SecondMomentRelease | None = None,
    assumptions: tuple[str, ...] = (),
    seeded: bool = False,
) -> PrivacyPlan:
    """Fix a whole run in advance and calibrate its noise to the budget exactly.

    Parameters
    ----------
    budget : PrivacyBudget
    facts : PublicFacts
        Sizes and constants known without looking at the data. ``mu``, ``clip`` and ``noise_std``
        are filled in here, in that order, for the schedules that follow.
    n_iter : int
        Number of iterations, at least 1.
    clip_schedule, noise_schedule, step_schedule : Schedule
        The noise schedule is a shape: only the ratios of its values matter.
    momentum : Momentum, optional
        Plain gradient descent when omitted.
    averaging : {None, "uniform", "tail", "t_weighted"} or float, default=None
        See `averaging_weights`.
    second_moment : SecondMomentRelease, optional
        Released before the gradients, which get the rest of the budget.
    assumptions : tuple of str, default=()
        Facts taken as public, for the ledger.
    seeded : bool, default=False
        Whether a seed reproduces the noise, for the ledger.

    Returns
    -------
    PrivacyPlan

    Raises
    ------
    ValueError
        If a value is out of range, or the budget is too small for that many iterations.

    Notes
    -----
    With sensitivities D_t and a noise shape s_t the multipliers are
    ``z_t = sqrt(sum_i (D_i/s_i)^2) / (mu D_t/s_t)``, so that the standard deviations ``z_t D_t``
    are proportional to s_t and ``sum_t 1/z_t^2 = mu^2``. A second moment with multiplier z leaves
    ``mu^2 - 1/z^2`` for that sum. With mini-batches (``facts.sampling_rate`` below 1) the
    multipliers ``z_t`` are rounded up to 12 distinct ones and scaled until the privacy loss
    distribution of the whole run meets the budget.

    Examples
    --------
    >>> from dpglm.estimators.plan import make_plan
    >>> from dpglm.privacy.budget import PrivacyBudget
    >>> from dpglm.schedules import Constant, DecayingClip, PublicFacts
    >>> plan = make_plan(
    ...     PrivacyBudget(epsilon=1.0, delta=1e-6),
    ...     PublicFacts(n_samples=10_000, n_features=20),
    ...     n_iter=100,
    ...     clip_schedule=DecayingClip(1.0),
    ...     noise_schedule=Constant(),
    ...     step_schedule=Constant(0.5),
    ... )
    >>> round(plan.ledger.epsilon(1e-6), 6)
    1.0
    >>> print(plan.noise_multiplier[[0, -1]].round(2))
    [29.99 59.67]
    """
    if isinstance(n_iter, bool) or not isinstance(n_iter, (int, np.integer)) or n_iter < 1:
        raise ValueError(f"max_iter={n_iter!r} must be a whole number, 1 or more.")
    if n_iter > _MOST_ITERATIONS:
        raise ValueError(
            f"max_iter={n_iter!r} is above {_MOST_ITERATIONS:,}: the plan lists every iteration."
        )
    check_sampling_rate(facts.sampling_rate)
    if facts.sampling_rate < 1 and budget.neighboring_relation == "replace_one":
        raise ValueError(SAMPLED_REPLACEMENT)
    mu = budget.mu if second_moment is None else second_moment.left_over(budget.mu)
    facts = replace(facts, mu=mu, sampling_rate=float(facts.sampling_rate))

    clip = schedule_values(
        clip_schedule, n_iter, facts, parameter="clip_schedule", allow_inf=mu == math.inf
    )
    if mu < math.inf and not (clip.min() >= CLIP_RANGE[0] and clip.max() <= CLIP_RANGE[1]):
        raise ValueError(
            f"clip_schedule={clip_schedule!r} reaches {clip.min():g} to {clip.max():g}; "
            f"rescale the data so that clips lie within {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}."
        )
    facts = replace(facts, clip=clip)

    shape = schedule_values(noise_schedule, n_iter, facts, parameter="noise_schedule")
    sensitivity = np.array([budget.sensitivity(c) for c in clip])
    first = [] if second_moment is None else [GaussianEvent(second_moment.noise_multiplier)]
    if facts.sampling_rate < 1 and mu < math.inf:
        noise_multiplier = calibrated_multipliers(
            shape / sensitivity, facts.sampling_rate, budget.epsilon, budget.delta, first
        )
    else:
        noise_multiplier = _calibrated(sensitivity, shape, mu)
    _check_affordable(noise_multiplier, budget)
    if second_moment is not None:
        second_moment.refuse_all_noise()
    noise_std = _noise_std(noise_multiplier, sensitivity)
    facts = replace(facts, clip=clip, noise_std=noise_std)

    step = schedule_values(step_schedule, n_iter, facts, parameter="step_schedule")
    ledger = PrivacyLedger.from_events(
        [*first, *(gradient_event(float(z), facts.sampling_rate) for z in noise_multiplier)],
        neighboring_relation=budget.neighboring_relation,
        reporting_delta=budget.delta,
        assumptions=assumptions,
        seeded=seeded,
    )
    return PrivacyPlan(
        facts=facts,
        clip=clip,
        sensitivity=sensitivity,
        noise_multiplier=noise_multiplier,
        step=step,
        momentum=HeavyBall(0.0) if momentum is None else momentum,
        averaging=averaging_weights(averaging, n_iter),
        ledger=ledger,
        clip_schedule=clip_schedule,
        step_schedule=step_schedule,
        second_moment=second_moment,
    )


def gradient_event(noise_multiplier: float, sampling_rate: float) -> Event:
    """Return what the release of a noisy gradient costs."""
    if sampling_rate == 1:
        return GaussianEvent(noise_multiplier)
    return PoissonSampledEvent(sampling_rate, noise_multiplier)


def _calibrated(sensitivity: np.ndarray, shape: np.ndarray, mu: float) -> np.ndarray:
    """Return the noise multipliers whose standard deviations have this shape and cost ``mu``."""
    if mu == math.inf:
        return np.zeros(len(shape))
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        relative_cost = sensitivity / shape
        relative_cost = relative_cost / relative_cost.max()
        total = math.sqrt(math.fsum(relative_cost**2))
        return total / (mu * relative_cost)


def _noise_std(noise_multiplier: np.ndarray, sensitivity: np.ndarray) -> np.ndarray:
    """Return the standard deviations; without noise the sensitivity may be infinite."""
    return noise_multiplier * sensitivity if noise_multiplier.any() else np.zeros(len(sensitivity))


def _check_affordable(noise_multiplier: np.ndarray, budget: PrivacyBudget) -> None:
    least, most = noise_multiplier.min(), noise_multiplier.max()
    if least > LARGEST_NOISE_MULTIPLIER:
        enough = gdp_epsilon(budget.mu * least / LARGEST_NOISE_MULTIPLIER, budget.delta)
        raise ValueError(
            f"epsilon={budget.epsilon:g} with delta={budget.delta:g} is too small for the "
            f"schedule: each of {len(noise_multiplier)} iterations needs a noise_multiplier of "
            f"{least:.3g} or more, above {LARGEST_NOISE_MULTIPLIER:g}. Raise epsilon to about "
            f"{enough:.3g}, raise delta, or lower max_iter."
        )
    if not most <= _LARGEST_SAMPLED:
        raise ValueError(
            f"noise_schedule and clip_schedule vary by too many orders of magnitude: noise "
            f"multipliers from {least:.3g} to {most:.3g}, above {_LARGEST_SAMPLED:g}. Narrow "
            "their range, or lower max_iter."
        )
