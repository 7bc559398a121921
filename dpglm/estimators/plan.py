"""The plan of a fit: everything public, fixed before the data are touched."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np

from dpglm.privacy.budget import CLIP_RANGE, LARGEST_NOISE_MULTIPLIER, PrivacyBudget, check_whole
from dpglm.privacy.calibration import (
    calibrated_multipliers,
    check_batches,
    coarse_epsilon,
    coarsened,
    longest_run,
)
from dpglm.privacy.events import sampled_event
from dpglm.privacy.gaussian import (
    GaussianEvent,
    PoissonSampledEvent,
    check_sampling_rate,
    gdp_epsilon,
)
from dpglm.privacy.ledger import Event, PrivacyLedger, composed_epsilon, html_rows, run_lengths
from dpglm.schedules import (
    HeavyBall,
    Momentum,
    PublicMetadata,
    Schedule,
    averaging_weights,
    schedule_values,
)

_MOST_ITERATIONS = 10_000_000
# The sampler is exact up to here; a schedule that needs more wastes its noisiest iterations.
_LARGEST_SAMPLED = 1e12
# Of n mu over the root of the number of columns, 25 at least: with less, fits mostly learn little.
_LEAST_SIGNAL, _FEW_COLUMNS = 4, 25
WHITENED_UNITS = (
    "; clip and noise are in units of the square root of the effective dimension that the second "
    "moment will show, and clip and step are shown for the largest it can be"
)


def budget_too_small(n_mu: float, n_columns: int) -> str:
    """Return a sentence that says that n mu is too little for so many columns, or nothing."""
    if n_mu >= _LEAST_SIGNAL * math.sqrt(max(n_columns, _FEW_COLUMNS)):
        return ""
    return (
        f"The budget cannot carry the columns: n mu = {n_mu:.2g} for {n_columns} of them. Use "
        "more records, a larger epsilon or fewer columns."
    )


PURPOSES = {
    "magnitude histogram": "units and middles of columns",
    "norm histogram": "unit of rows",
    "second moment": "correlations of features",
}


@dataclass(frozen=True)
class PreconditionerReleases:
    """The releases before the gradients: histograms of the units, if any, and the second moment.

    ``fractions`` has, in order, the fraction of each in the budget ``mu^2``, and mu is ``sqrt(2
    rho)`` under an accountant of rho. Rows are clipped to ``row_clipping_norm`` for the second
    moment, or to what a histogram of norms makes of it. ``n_mu`` is the number of records times mu,
    at a sensitivity of one. Rows may be ``centered`` at the middles of their columns.
    """

    preconditioner: Any
    row_clipping_norm: float
    mu: float
    n_mu: float
    fractions: dict[str, float]
    centered: bool = False

    @property
    def parts(self) -> list[tuple[str, float, GaussianEvent]]:
        """What is released, in order: its name, its fraction of the budget and its cost."""
        named = zip(self.fractions.items(), self.noise_multipliers, strict=True)
        return [
            (name, fraction, GaussianEvent(z, purpose=f"{name}, for the {PURPOSES[name]}"))
            for (name, fraction), z in named
        ]

    @property
    def noise_multipliers(self) -> list[float]:
        """Those of the releases, in order; the last is that of the second moment."""
        return [1 / (self.mu * math.sqrt(fraction)) for fraction in self.fractions.values()]

    @property
    def fraction(self) -> float:
        """That of all releases together."""
        return sum(self.fractions.values())

    @property
    def left_over(self) -> float:
        """The mu for the gradients."""
        return self.mu * math.sqrt(1 - self.fraction)

    @property
    def in_words(self) -> list[str]:
        """The releases, each with its purpose."""
        return [f"{name} ({PURPOSES[name]})" for name in self.fractions]

    def refuse_all_noise(self) -> None:
        """Raise a ValueError if the second moment would say nothing about any data."""
        *_, noise_multiplier = self.noise_multipliers
        if noise_multiplier > LARGEST_NOISE_MULTIPLIER:
            raise ValueError(
                f"preconditioner={self.preconditioner!r} needs a noise_multiplier of "
                f"{noise_multiplier:.3g}, above {LARGEST_NOISE_MULTIPLIER:g}: its second "
                "moment would be all noise. Raise budget_fraction or epsilon, or set "
                "preconditioner=None."
            )


@dataclass(frozen=True)
class InferenceReleases:
    """What is released after the descent, so that intervals can be computed: of a budget of ``mu``.

    In each round a few sums of gradients with twice the noise, a curvature, and a few sums of
    gradients. More than one round is for fits without noise, which go on until they have converged.
    """

    mu: float
    curvature_fraction: float
    n_initial_gradients: int
    n_gradients: int
    n_averaged: int
    n_rounds: int = 1

    @property
    def curvature_noise_multiplier(self) -> float:
        """That of the curvature."""
        return math.sqrt(self.n_rounds / self.curvature_fraction) / self.mu

    @property
    def noise_multiplier(self) -> float:
        """That of each gradient after the curvature."""
        weight = self.n_rounds * (self.n_gradients + self.n_initial_gradients / 4)
        return math.sqrt(weight / (1 - self.curvature_fraction)) / self.mu

    @property
    def initial_noise_multiplier(self) -> float:
        """That of each gradient before the curvature."""
        return 2 * self.noise_multiplier

    @property
    def events(self) -> list[GaussianEvent]:
        """What is released, in order."""
        gradients, curvature = "gradients, for intervals", "curvature of the loss, for intervals"
        one = [
            GaussianEvent(self.initial_noise_multiplier, purpose=gradients)
        ] * self.n_initial_gradients
        one += [GaussianEvent(self.curvature_noise_multiplier, purpose=curvature)]
        one += [GaussianEvent(self.noise_multiplier, purpose=gradients)] * self.n_gradients
        return one * self.n_rounds


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What a fit may release and what that costs: made from public facts, before any data."""

    metadata: PublicMetadata
    ledger: PrivacyLedger
    budget: PrivacyBudget

    @property
    def sampling_rate(self) -> float:
        """Chance of each record to be in the batch of an iteration; 1 for all of them."""
        return self.metadata.sampling_rate

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        return self.budget.most_samples(self.metadata.n_samples)

    @property
    def n_mu(self) -> float:
        """n mu: the number of records times the mu of the budget at a sensitivity of one."""
        return self.metadata.n_samples * self.budget.mu / self.budget.sensitivity(1.0)

    @property
    def warning_message(self) -> str:
        """A sentence, if the budget cannot carry the columns; of random batches it says nothing."""
        return (
            budget_too_small(self.n_mu, self.metadata.n_features) if self.sampling_rate == 1 else ""
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


def ledger_of(budget: PrivacyBudget, events: Iterable[Event]) -> PrivacyLedger:
    """Return what releases cost under a budget's relation and at its delta."""
    return PrivacyLedger.from_events(
        events, neighboring_relation=budget.neighboring_relation, reporting_delta=budget.delta
    )


def planned_clip(
    clip_schedule: Schedule, n_iter: int, metadata: PublicMetadata, *, infinite: bool
) -> np.ndarray:
    """Return the clips of a schedule (n_iter,), which may be infinite where nothing is noisy."""
    clip = schedule_values(
        clip_schedule, n_iter, metadata, parameter="clip_schedule", allow_inf=infinite
    )
    if not infinite and not (clip.min() >= CLIP_RANGE[0] and clip.max() <= CLIP_RANGE[1]):
        raise ValueError(
            f"clip_schedule={clip_schedule!r} reaches {clip.min():g} to {clip.max():g}; "
            f"rescale the data so that clips lie within {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}."
        )
    return clip


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DescentPlan(Plan):
    """What the plans of the two solvers have in common.

    ``clip`` bounds the L2 norm of each record's gradient in each iteration, an array (n_iter,).
    Before a second moment has been released it is in units of the square root of the effective
    dimension that it will find.
    """

    clip: np.ndarray
    momentum: Momentum
    clip_schedule: Schedule
    second_moment: PreconditionerReleases | None = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def n_iter(self) -> int:
        """Number of iterations, the most that there can be where the fit decides."""
        return len(self.clip)

    @property
    def sensitivity(self) -> np.ndarray:
        """L2 sensitivity of the sum of clipped gradients of each iteration."""
        return self.budget.sensitivity(self.clip)

    def in_whitened_space(self, effective_dimension: float) -> Any:
        """Return the plan of the gradients, once the second moment has been released.

        Clips become ``sqrt(d)`` times their schedule, which may follow from the released dimension
        d (Dong, Roth & Su 2022, Theorem 4); noise multipliers and costs stay what they were.
        """
        metadata = replace(
            self.metadata, effective_dimension=effective_dimension, clip=None, noise_std=None
        )
        infinite = metadata.mu == math.inf
        relative = planned_clip(self.clip_schedule, self.n_iter, metadata, infinite=infinite)
        clip = math.sqrt(effective_dimension) * relative
        return replace(self, metadata=replace(metadata, clip=clip), clip=clip)


class IterationCost(NamedTuple):
    """One iteration of a plan, counted from 1, and what all releases up to it have cost.

    The noise is that of each coordinate of the mean gradient; epsilon, at the delta of the ledger.
    """

    iteration: int
    clip: float
    step: float
    noise_multiplier: float
    noise_std: float
    epsilon: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrivacyPlan(DescentPlan):
    """What a fit will release, with how much noise, and what that costs.

    Made by ``plan`` of an estimator from public facts alone. Arrays have one entry per iteration.

    Parameters
    ----------
    metadata : PublicMetadata
        What the schedules were told.
    ledger : PrivacyLedger
        The cost of the whole plan.
    budget : PrivacyBudget
    clip : ndarray of shape (n_iter,)
        L2 bound on each record's gradient.
    noise_multiplier : ndarray of shape (n_iter,)
        Standard deviation of the noise over the sensitivity.
    step : ndarray of shape (n_iter,)
        Step size on the mean gradient.
    momentum : Momentum
        How gradients become directions.
    averaging : ndarray of shape (n_iter,)
        Weights of the iterates in the returned coefficients; they sum to 1.
    clip_schedule, step_schedule : Schedule
        Where ``clip`` and ``step`` came from.
    second_moment : PreconditionerReleases, optional
        What a preconditioner releases first. ``clip`` and ``sensitivity`` are then in units of the
        square root of the effective dimension that it will find: see `in_whitened_space`.
    batches : {"poisson", "without_replacement"}, default="poisson"
        How random batches are drawn.
    debiasing : InferenceReleases, optional
        What is released last, for intervals.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> plan = DPLogisticRegression(epsilon=1.0, max_iter=50).plan(n_samples=10_000, n_features=8)
    >>> plan.n_iter, round(plan.ledger.epsilon(), 6)
    (50, 1.0)
    """

    noise_multiplier: np.ndarray
    step: np.ndarray
    averaging: np.ndarray
    step_schedule: Schedule
    batches: str = "poisson"
    debiasing: InferenceReleases | None = None

    def in_whitened_space(self, effective_dimension: float) -> "PrivacyPlan":
        """Return the plan of the gradients, whose noise and steps follow from the clips."""
        white = super().in_whitened_space(effective_dimension)
        noise_std = _noise_std(self.noise_multiplier, white.sensitivity)
        metadata = replace(white.metadata, noise_std=noise_std)
        step = schedule_values(self.step_schedule, self.n_iter, metadata, parameter="step_schedule")
        return replace(white, metadata=metadata, step=step)

    def __str__(self) -> str:
        first = ""
        if self.second_moment is not None:
            first = f"{', '.join(self.second_moment.in_words)}, then "
        records = f"{self.metadata.n_samples} records"
        if self.sampling_rate < 1:
            about = "about " if self.batches == "poisson" else ""
            size = f"{self.metadata.expected_batch_size:.6g}"
            records = f"random batches of {about}{size} of {records}"
        iterations = f"{self.n_iter} iterations over {records}"
        last = "" if self.debiasing is None else ", then what intervals need"
        return f"{first}{iterations}{last}: {self.ledger} {self.warning_message}".rstrip()

    def epsilon_after(self, n_releases: int) -> float:
        """Return the cost of the first so many releases, a second moment among them.

        At the delta of the ledger; with mini-batches up to 0.1 percent too large before the last.
        """
        if n_releases == self.ledger.n_releases:
            return self.ledger.epsilon()
        releases = chain.from_iterable(repeat(event, n) for event, n in self.ledger.events)
        first = run_lengths(islice(releases, n_releases))
        return composed_epsilon(first, self.ledger.reporting_delta, coarseness=5)

    def milestones(self, n_milestones: int = 5) -> list[IterationCost]:
        """Return at most so many iterations, evenly spread from the first to the last."""
        first = 0 if self.second_moment is None else len(self.second_moment.parts)
        spread = np.linspace(0, self.n_iter - 1, min(n_milestones, self.n_iter))
        return [
            IterationCost(
                iteration=t + 1,
                clip=float(self.clip[t]),
                step=float(self.step[t]),
                noise_multiplier=float(self.noise_multiplier[t]),
                noise_std=float(self.metadata.noise_std[t]) / self.metadata.expected_batch_size,
                epsilon=self.epsilon_after(first + t + 1),
            )
            for t in spread.round().astype(int).tolist()
        ]

    def _repr_html_(self) -> str:
        rows = [[name.replace("_", " ") for name in IterationCost._fields]]
        rows += [[f"{value:.4g}" for value in row] for row in self.milestones(9)]
        unit = "" if self.second_moment is None else WHITENED_UNITS
        return (
            f"<p><b>Plan</b>: {escape(str(self))}</p><table><caption>noise std: of each coordinate "
            f"of the mean gradient; epsilon: spent so far{unit}</caption>{html_rows(rows)}</table>"
        )


def make_plan(
    budget: PrivacyBudget,
    metadata: PublicMetadata,
    *,
    n_iter: int | str,
    clip_schedule: Schedule,
    noise_schedule: Schedule,
    step_schedule: Schedule,
    momentum: Momentum | None = None,
    averaging: str | float | None = None,
    second_moment: PreconditionerReleases | None = None,
    noise_multiplier: float | None = None,
    batches: str = "poisson",
    debiasing: InferenceReleases | None = None,
) -> PrivacyPlan:
    """Fix a whole run in advance and calibrate its noise to the budget exactly.

    ``mu``, ``clip`` and ``noise_std`` of the metadata are filled in here, in that order, for the
    schedules that follow. Only the ratios of the values of the noise schedule matter. A noise
    multiplier that is given, that of the first iteration, is not calibrated; of ``"budget"``
    iterations there are then as many as the budget pays for.

    With sensitivities D_t and a noise shape s_t the multipliers are
    ``z_t = sqrt(sum_i (D_i/s_i)^2) / (mu D_t/s_t)``, so that the standard deviations ``z_t D_t``
    are proportional to s_t and ``sum_t 1/z_t^2 = mu^2``. A second moment with multiplier z leaves
    ``mu^2 - 1/z^2`` for that sum. With mini-batches (``facts.sampling_rate`` below 1) the
    multipliers ``z_t`` are rounded up to 12 distinct ones and scaled until the privacy loss
    distribution of the whole run meets the budget. What a debiasing costs was not given to the
    second moment.
    """
    longest = isinstance(n_iter, str) and n_iter == "budget"
    n_iter = 1 if longest else check_whole("max_iter", n_iter)
    if n_iter > _MOST_ITERATIONS:
        raise ValueError(
            f"max_iter={n_iter!r} is above {_MOST_ITERATIONS:,}: the plan lists every iteration."
        )
    check_sampling_rate(metadata.sampling_rate)
    kind = PoissonSampledEvent
    if metadata.sampling_rate < 1 or batches != "poisson":
        kind = sampled_event(budget.neighboring_relation, batches)
    if batches == "without_replacement":
        size = max(1, round(metadata.expected_batch_size))
        metadata = replace(metadata, sampling_rate=size / metadata.n_samples)
        # Of all records it costs what they do, which the bound of a batch is above.
        kind = kind if size < metadata.n_samples else PoissonSampledEvent
    mu = budget.mu if second_moment is None else second_moment.left_over
    metadata = replace(metadata, mu=mu, sampling_rate=float(metadata.sampling_rate))
    first = [] if second_moment is None else [event for _, _, event in second_moment.parts]
    last = [] if debiasing is None else debiasing.events
    others = [*first, *last]
    if longest:
        fixed = (noise_multiplier, clip_schedule, noise_schedule)
        n_iter = _longest_n_iter(budget, metadata, fixed, others, kind)

    clip = planned_clip(clip_schedule, n_iter, metadata, infinite=mu == math.inf)
    metadata = replace(metadata, clip=clip)

    shape = schedule_values(noise_schedule, n_iter, metadata, parameter="noise_schedule")
    sensitivity = budget.sensitivity(clip)
    if noise_multiplier is not None:
        noise_multipliers = _fixed(noise_multiplier, sensitivity, shape, metadata.sampling_rate)
    elif metadata.sampling_rate < 1 and mu < math.inf:
        noise_multipliers = calibrated_multipliers(
            shape / sensitivity, metadata.sampling_rate, budget.epsilon, budget.delta, others, kind
        )
    else:
        noise_multipliers = _calibrated(sensitivity, shape, mu)
    _check_affordable(noise_multipliers, budget)
    if second_moment is not None:
        second_moment.refuse_all_noise()
    metadata = replace(metadata, noise_std=_noise_std(noise_multipliers, sensitivity))

    step = schedule_values(step_schedule, n_iter, metadata, parameter="step_schedule")
    momentum = HeavyBall(0.0) if momentum is None else momentum
    gradients = [
        gradient_event(z, metadata.sampling_rate, kind) for z in noise_multipliers.tolist()
    ]
    return PrivacyPlan(
        metadata=metadata,
        budget=budget,
        clip=clip,
        noise_multiplier=noise_multipliers,
        step=step,
        momentum=momentum,
        averaging=averaging_weights(averaging, n_iter),
        ledger=ledger_of(budget, [*first, *gradients, *last]),
        clip_schedule=clip_schedule,
        step_schedule=step_schedule,
        second_moment=second_moment,
        batches=batches,
        debiasing=debiasing,
    )


@lru_cache(typed=True)
def gradient_event(
    noise_multiplier: float, sampling_rate: float, kind: type[PoissonSampledEvent]
) -> Event:
    """Return what the release of a noisy gradient costs, that of a batch being of this kind."""
    purpose = "gradients, for the descent"
    if sampling_rate == 1:
        return GaussianEvent(noise_multiplier, purpose=purpose)
    return kind(sampling_rate, noise_multiplier, purpose=purpose)


def _calibrated(sensitivity: np.ndarray, shape: np.ndarray, mu: float) -> np.ndarray:
    """Return the noise multipliers whose standard deviations have this shape and cost ``mu``."""
    if mu == math.inf:
        return np.zeros(len(shape))
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        relative_cost = sensitivity / shape
        relative_cost = relative_cost / relative_cost.max()
        total = math.sqrt(math.fsum(relative_cost**2))
        return total / (mu * relative_cost)


def _fixed(
    noise_multiplier: float, sensitivity: np.ndarray, shape: np.ndarray, sampling_rate: float
) -> np.ndarray:
    """Return the noise multipliers that begin with this one and have standard deviations so shaped.

    Those of batches are rounded up to a few distinct ones, whose distributions can be composed.
    """
    relative = shape / sensitivity
    multipliers = noise_multiplier * (relative / relative[0])
    return multipliers if sampling_rate == 1 else coarsened(multipliers)


def _longest_n_iter(
    budget: PrivacyBudget,
    metadata: PublicMetadata,
    fixed: tuple[float, Schedule, Schedule],
    first: list[Event],
    kind: type[PoissonSampledEvent],
) -> int:
    """Return how many iterations with fixed noise the budget pays for, after these releases."""
    noise_multiplier, clip_schedule, noise_schedule = fixed
    given = f"noise_multiplier={noise_multiplier:g} with max_iter='budget'"

    def gradients(n_iter: int) -> list[tuple[Event, int]]:
        if n_iter > _MOST_ITERATIONS:
            raise ValueError(
                f"{given} makes more than {_MOST_ITERATIONS:,} iterations; lower noise_multiplier."
            )
        clip = planned_clip(clip_schedule, n_iter, metadata, infinite=False)
        known = replace(metadata, clip=clip)
        shape = schedule_values(noise_schedule, n_iter, known, parameter="noise_schedule")
        multipliers = _fixed(noise_multiplier, clip, shape, metadata.sampling_rate)
        _check_affordable(multipliers, budget)
        counts = sorted(Counter(multipliers.tolist()).items())
        return [(kind(metadata.sampling_rate, z), n) for z, n in counts]

    def variance(n_iter: int) -> float:
        """Of the losses: exact in the full batch, and by the central limit theorem else."""
        return math.fsum(n * event.loss_variance for event, n in gradients(n_iter))

    def events(n_iter: int) -> tuple[tuple[Event, int], ...]:
        return (*((event, 1) for event in first), *gradients(n_iter))

    def epsilon(n_iter: int) -> float:
        return coarse_epsilon(events(n_iter), budget.delta)

    # A little more, for noise that was calibrated to so many iterations, and rounded.
    most = metadata.mu**2 * (1 + 1e-12)
    n_iter = longest_run(variance, most, max(most / variance(1), 1.0))
    if metadata.sampling_rate < 1:
        n_iter = longest_run(epsilon, budget.epsilon, max(n_iter, 1))
        check_batches(n_iter, metadata.sampling_rate, budget.delta, n_first=len(first))
        # As the ledger will compute it.
        while n_iter and composed_epsilon(events(n_iter), budget.delta) > budget.epsilon:
            n_iter -= math.ceil(n_iter / 1000)
    if n_iter == 0:
        raise ValueError(
            f"{given}: epsilon={budget.epsilon:g} with delta={budget.delta:g} does not pay for one "
            "iteration. Raise noise_multiplier, epsilon or delta."
        )
    return n_iter


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
