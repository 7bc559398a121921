"""The plan of a fit: everything public, fixed before the data are touched."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpglm.checks import check_whole
from dpglm.exceptions import UtilityWarning, require
from dpglm.privacy.budget import CLIP_RANGE, LARGEST_NOISE_MULTIPLIER, PrivacyBudget
from dpglm.privacy.calibration import (
    calibrated_multipliers,
    check_batches,
    coarse_epsilon,
    coarsened,
    longest_run,
)
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.events import (
    Event,
    GaussianEvent,
    SampledGaussianEvent,
    check_sampling_rate,
    sampling_under,
)
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS, gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger, rounded_up, warn_of_guarantee
from dpglm.schedules import (
    HeavyBall,
    Momentum,
    PublicMetadata,
    Schedule,
    averaging_weights,
    schedule_values,
)
from dpglm.tables import Printed

# A plan lists every iteration.
MOST_ITERATIONS = 100_000
# Slope of the logistic loss, at a score of zero.
LOGISTIC_SLOPE = 0.5
# The sampler is exact up to here; a schedule that needs more wastes its noisiest iterations.
_LARGEST_SAMPLED = 1e12
# Least n mu over the root of the number of columns, at least 25: with less, fits learn little.
_LEAST_SIGNAL, _FEW_COLUMNS = 4, 25
# From here on most of the time of a fit of sparse rows goes into noise.
_MANY_COEFS = 2**16


def budget_too_small(n_mu: float, n_columns: int) -> str:
    """Return a warning that n mu is too small for this number of columns, or an empty string."""
    if n_mu >= _LEAST_SIGNAL * math.sqrt(max(n_columns, _FEW_COLUMNS)):
        return ""
    return (
        f"The budget is too small for the columns: n mu = {n_mu:.2g} for {n_columns} of them. Use "
        "more records, a larger epsilon or fewer columns."
    )


@dataclass(frozen=True)
class PlannedRelease:
    """A release of a plan beside the gradients of the descent, and its fraction of mu^2."""

    name: str
    purpose: str
    fraction: float
    noise_multiplier: float

    @property
    def event(self) -> GaussianEvent:
        """The cost."""
        return GaussianEvent(self.noise_multiplier, purpose=f"{self.name}, for {self.purpose}")


def planned_releases(
    mu: float, releases: Iterable[tuple[str, str, float]]
) -> tuple[PlannedRelease, ...]:
    """Return releases of a budget by their names, purposes and fractions of mu^2."""
    return tuple(PlannedRelease(*of, 1 / (mu * math.sqrt(of[-1]))) for of in releases)


def total_fraction(releases: Iterable[PlannedRelease]) -> float:
    """Return the fraction of mu^2 that releases cost together."""
    return sum(release.fraction for release in releases)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Printed):
    """The releases that a fit may make, and their cost: from public facts, before any data.

    Plans of a descent also have ``clip`` and ``clip_schedule``. Subclasses say what they release in
    ``_releases``, and more in ``_noise``.
    """

    metadata: PublicMetadata
    ledger: PrivacyLedger
    budget: PrivacyBudget
    # Before the descent the releases of the target (of labels a count, for weights), and those of a
    # preconditioner. After the descent those for a regression's intercept, and for intervals.
    counts: tuple[PlannedRelease, ...] = ()
    first: tuple[PlannedRelease, ...] = ()
    intercept: tuple[PlannedRelease, ...] = ()
    last: tuple[PlannedRelease, ...] = ()
    # The loss of the fit.
    loss: Any = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def sampling_rate(self) -> float:
        """Chance of each record to be in the batch of an iteration; 1 for all of them."""
        return self.metadata.sampling_rate

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is accounted for."""
        return self.budget.most_samples(self.metadata.n_samples)

    @property
    def n_mu(self) -> float:
        """n mu: records times their mean weight and the budget's mu, at a sensitivity of one."""
        return self.budget.n_mu(self.metadata.n_samples) * self.metadata.mean_weight

    @property
    def warning_message(self) -> str:
        """A warning from public numbers: of noise, of clipping, or of very many columns."""
        return self._cannot_learn or self._too_small or self._too_wide

    @property
    def _too_small(self) -> str:
        return budget_too_small(self.n_mu, self.metadata.n_features)

    @property
    def _cannot_learn(self) -> str:
        """A warning of schedules by which noise or clipping hides the gradients, or nothing."""
        # One for each iteration.
        multipliers = getattr(self, "_multipliers", np.zeros(1))
        if not multipliers.any():
            return ""
        # The largest gradient of a typical row, as far as it is known.
        known = self.metadata.max_row_norm
        longest = 1.0 if self.metadata.whitened else known or math.inf
        noise = multipliers * np.maximum(1.0, self.clip / longest)
        if noise.max() > noise.min() or self.clip.max() > longest:
            mean = math.sqrt(np.mean(noise**2) / len(noise)) * self.noise_per_multiplier
            if mean > 1:
                return (
                    f"Noise is {mean:.2g} times as long as gradients, even in the mean of all "
                    'iterations. Set clip_schedule="auto" and noise_schedule="auto".'
                )
        of_classes = known and not self.metadata.whitened and self.metadata.residual is None
        if of_classes and self.clip.max() < known / 2:
            return (
                f"Gradients of rows up to max_row_norm={known:g} are clipped to "
                f"{self.clip.max():.3g}, and the largest class alone may be predicted. Raise "
                "clip_schedule, or use a preconditioner."
            )
        return ""

    @property
    def _too_wide(self) -> str:
        """A warning of too many columns for intervals or for each gradient, or nothing."""
        frequent, most = getattr(self, "expected_columns", None) or (0, 0)
        if most < frequent:
            return (
                f"Expect {self.intervals_message}. Use straight lines (schema.additive(1)), a "
                "larger epsilon, more records or fewer columns, or inference_fraction=0."
            )
        n_coefs = self.metadata.n_features * self.metadata.n_outputs
        if n_coefs < _MANY_COEFS or not hasattr(self, "clip_schedule"):
            return ""
        return (
            f"The model has {n_coefs:,} coefficients. Each gradient gets noise on all of them, "
            "which takes long and hides small effects: hash to fewer columns, n_features=2**12."
        )

    def warn(self, stacklevel: int) -> None:
        """Warn, before anything is charged, if public numbers call for it."""
        n_samples = self.metadata.n_samples
        warn_of_guarantee(self.ledger.seeded, self.budget, n_samples, stacklevel + 1)
        if self._too_wide:
            warnings.warn(self._too_wide, UtilityWarning, stacklevel=stacklevel)
        # A release of all records before the gradients tells more of a small budget.
        shown = self.first and self.sampling_rate == 1 and self.metadata.residual is None
        text = self._cannot_learn or ("" if shown else self._too_small)
        if text and hasattr(self, "clip_schedule"):
            text = f"This fit has probably little to learn from. {text}"
            warnings.warn(text, UtilityWarning, stacklevel=stacklevel)

    def renewed(self, **known: float) -> Any:
        """Return the plan for more metadata, as releases show it.

        Clipping norms become ``sqrt(d)`` times their schedule, which may follow from the released
        dimension d (Dong, Roth & Su 2022, Theorem 4). Noise multipliers and costs do not change.
        """
        metadata, infinite = replace(self.metadata, **known), self.metadata.mu == math.inf
        if not hasattr(self, "clip_schedule"):
            return replace(self, metadata=metadata)
        unit = math.sqrt(metadata.effective_dimension or 1.0)
        metadata, n_iter = replace(metadata, clip=None, noise_std=None), len(self.clip)
        clip = unit * planned_clip(self.clip_schedule, n_iter, metadata, infinite=infinite)
        return replace(self, metadata=replace(metadata, clip=clip), clip=clip)

    @property
    def _before(self) -> str:
        found = [(r.name, r.purpose.removeprefix("the ")) for r in (*self.counts, *self.first)]
        return ", ".join(f"{name} ({what})" for name, what in found) + ", then " * bool(found)

    @property
    def statement(self) -> str:
        """The releases and their cost, in a sentence."""
        return f"{self._releases}: {self.ledger.statement} {self.warning_message}".rstrip()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.statement}>"

    def _blocks(self) -> Iterator[Any]:
        yield "", f"{self._releases[0].upper()}{self._releases[1:]}."
        yield "BUDGET", self._budget_facts()
        if facts := self._noise():
            if self.warning_message:
                facts["WARNING"] = self.warning_message
            if self.sampling_rate == 1:
                d = self.metadata.n_features
                signal = f"{self.n_mu / d:.4g} for all d = {d:,} columns"
                facts["signal per direction, n mu / d"] = signal
            yield "NOISE", facts

    def _budget_facts(self) -> dict[str, str]:
        ledger, n_samples = self.ledger, self.metadata.n_samples
        delta, relation = ledger.reporting_delta, ledger.neighboring_relation
        facts = {
            "epsilon": f"{self.budget.epsilon:.6g}",
            "delta": f"{delta:g} = {delta * n_samples:.2g} / {n_samples:,}",
            "neighbours": f"{relation}: {NEIGHBORING_RELATIONS[relation].meaning}",
        }
        if delta * n_samples > 1:
            facts["WARNING"] = (
                "delta exceeds one over the number of records: releasing a record outright at "
                "random would satisfy it. Lower delta."
            )
        if all(event.mu is not None for event, _ in ledger.events):
            facts["in other units"] = f"mu {ledger.mu():.4g} (GDP), rho {ledger.rho():.4g} (zCDP)"
        if relation != "replace_one":
            replaced = rounded_up(composed_epsilon(ledger.events, delta, 2))
            facts["the same run under replace_one"] = f"epsilon {replaced}"
        # At even odds the best guess is right half of the time, and half of the total variation
        # more.
        guess = 50 * (1 + ledger.delta(0.0))
        facts["in plain words"] = (
            "who has to tell from the result whether one record was used, at even odds, is right "
            f"with a probability of {guess:.1f}% at most, instead of 50%"
        )
        return facts

    def _noise(self) -> dict[str, str]:
        """Return the noise of the releases, by what they are."""
        return {}

    def _first_noise(self) -> dict[str, str]:
        """Return the noise of the releases before the gradients."""
        return {
            f"first, {release.name}": f"{percent(release.fraction)} of the budget, noise "
            f"multiplier {release.noise_multiplier:.4g}, for {release.purpose}"
            for release in (*self.counts, *self.first)
        }

    @property
    def noise_per_multiplier(self) -> float:
        """Relative norm of the noise on the mean gradient, for a noise multiplier of 1."""
        size = self.metadata.expected_batch_size
        return math.sqrt(self.metadata.n_released) * self.budget.sensitivity(1.0) / size


def percent(value: float) -> str:
    """Return a part of one as a percentage of three digits."""
    return f"{100 * value:.3g}%"


def of_clip(value: float) -> str:
    """Return the size of noise on a mean gradient, relative to the clipping norm."""
    return f"{percent(value)} of the clip" if value < 10 else f"{value:.3g} times the clip"


def label_counts_of(mu: float, metadata: PublicMetadata) -> tuple[PlannedRelease, ...]:
    """Return the count of labels of a fit with weights, or nothing."""
    count = "label count", "the weights of classes", metadata.count_fraction
    return planned_releases(mu, [count] * bool(metadata.count_fraction))


def assumptions_of(estimator: Any) -> tuple[str, ...]:
    """Return what the guarantee of a fit assumes, in words."""
    rows_of_a_record = "each row of X is one record"
    if estimator.max_contributions is not None:
        k = check_whole("max_contributions", estimator.max_contributions)
        rows_of_a_record = f"the rows of one group are one record, of which the first {k} count"
    assumptions = (
        f"{rows_of_a_record}, made from that record and public facts alone",
        "which rows the fit saw follows from public facts and each row's own identifier",
        "the parameters of the estimator were chosen without looking at the data",
        "the bounds of the target are public, if any were given"
        if estimator._target_limits is not None
        else "the label set is public"
        if estimator.classes is not None
        else "the label set, inferred from the data, is public",
    )
    if estimator.n_samples_estimate is not None:
        assumptions += ("the number of records is at most 16 n_samples_estimate",)
    if getattr(estimator, "_skl_callbacks", []):
        assumptions += ("what callbacks saw and recorded is not released",)
    return assumptions


def ledger_of(budget: PrivacyBudget, events: Iterable[Event]) -> PrivacyLedger:
    """Return the cost of releases under a budget's relation and at its delta."""
    return PrivacyLedger.from_events(
        events, neighboring_relation=budget.neighboring_relation, reporting_delta=budget.delta
    )


def planned_clip(
    clip_schedule: Schedule, n_iter: int, metadata: PublicMetadata, *, infinite: bool
) -> np.ndarray:
    """Return the clipping norms of a schedule (n_iter,), possibly infinite without noise."""
    if n_iter > MOST_ITERATIONS:
        raise ValueError(
            f"max_iter={n_iter!r} is above {MOST_ITERATIONS:,}: the plan lists every iteration."
        )
    clip = schedule_values(
        clip_schedule, n_iter, metadata, parameter="clip_schedule", allow_inf=infinite
    )
    if not infinite and not (clip.min() >= CLIP_RANGE[0] and clip.max() <= CLIP_RANGE[1]):
        raise ValueError(
            f"clip_schedule={clip_schedule!r} reaches {clip.min():g} to {clip.max():g}; "
            f"rescale the data for values from {CLIP_RANGE[0]:g} to {CLIP_RANGE[1]:g}."
        )
    return clip


def refuse_all_noise(preconditioner: Any, releases: tuple[PlannedRelease, ...]) -> None:
    """Raise a ValueError if a second moment, the last of these releases, would be pure noise."""
    if releases and releases[-1].noise_multiplier > LARGEST_NOISE_MULTIPLIER:
        raise ValueError(
            f"preconditioner={preconditioner!r} needs a noise_multiplier of "
            f"{releases[-1].noise_multiplier:.3g}, above {LARGEST_NOISE_MULTIPLIER:g}: its second "
            "moment would be all noise. Raise budget_fraction or epsilon, or set "
            "preconditioner=None."
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrivacyPlan(Plan):
    """The releases of a fit, their noise and their cost, from public facts alone.

    Made by ``plan`` of an estimator. ``ledger`` has the cost, ``metadata`` what schedules get.

    Parameters
    ----------
    counts, first, intercept, last : tuple of PlannedRelease
        The releases of the target (of labels, their count in a fit with weights), and those of a
        preconditioner. After the gradients, those for a regression's intercept and for intervals.
    clip, noise_multiplier, step, averaging : ndarray of shape (n_iter,)
        L2 bound on each record's gradient, noise over the sensitivity, step size, and weight of the
        iterate. Before a second moment the bound is in roots of the effective dimension.
    expected_columns : tuple of int, optional
        The number of columns that are probably not rare, intercept included, and the number for
        which the budget is large enough for intervals.
    target : ReleasedTarget, optional
        The released middle and unit of a regression's target.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> plan = DPLogisticRegression(epsilon=1.0, max_iter=50).plan(n_samples=10_000, n_features=8)
    >>> plan.n_iter, round(plan.ledger.epsilon(), 6)
    (50, 1.0)
    >>> [release.name for release in plan.first]
    ['magnitude histogram', 'second moment']
    """

    clip: np.ndarray
    noise_multiplier: np.ndarray
    step: np.ndarray
    momentum: Momentum
    averaging: np.ndarray
    clip_schedule: Schedule
    step_schedule: Schedule
    preconditioner: Any = None
    batches: str = "poisson"
    expected_columns: tuple[int, int] | None = None
    target: Any = None

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return len(self.clip)

    @property
    def _too_small(self) -> str:
        """A warning if budget or batches are too small for the columns, or an empty string."""
        if self.sampling_rate == 1 or not self.noise_multiplier.any():
            return super()._too_small
        # The mu that all records would need for as much noise.
        mu = math.sqrt(np.sum(self.noise_multiplier**-2.0)) / self.budget.sensitivity(1.0)
        size, d = self.metadata.expected_batch_size, self.metadata.n_features
        if not budget_too_small(size * mu, d):
            return ""
        return (
            f"Batches of {size:.3g} records are too small: n mu = {size * mu:.2g} for {d} columns. "
            "Use a larger sampling_rate or epsilon, more records or fewer columns."
        )

    @property
    def sensitivity(self) -> np.ndarray:
        """L2 sensitivity of the sum of clipped gradients of each iteration."""
        return self.budget.sensitivity(self.clip)

    def renewed(self, **known: float) -> "PrivacyPlan":
        # Noise and steps follow from the clipping norms.
        plan = super().renewed(**known)
        noise_std = _noise_std(self.noise_multiplier, plan.sensitivity)
        metadata = replace(plan.metadata, noise_std=noise_std)
        step = schedule_values(self.step_schedule, self.n_iter, metadata, parameter="step_schedule")
        return replace(plan, metadata=metadata, step=step)

    @property
    def _multipliers(self) -> np.ndarray:
        return self.noise_multiplier

    @property
    def first_multiplier(self) -> float:
        """The noise multiplier of the first gradient."""
        return float(self.noise_multiplier[0])

    @property
    def _releases(self) -> str:
        records = f"{self.metadata.n_samples:,} records"
        if self.sampling_rate < 1:
            about = "about " * (self.batches == "poisson")
            size = self.metadata.expected_batch_size
            records = f"random batches of {about}{size:,.6g} of {records}"
        ends = ((self.intercept, "the intercept"), (self.last, "intervals"))
        last = "".join(f", then releases for {what}" for releases, what in ends if releases)
        return f"{self._before}{self.n_iter:,} iterations over {records}{last}"

    def _noise(self) -> dict[str, str]:
        facts = self._first_noise()
        low, high = self.noise_multiplier.min(), self.noise_multiplier.max()
        multipliers = f"{low:.4g} each" if low == high else f"{low:.4g} to {high:.4g}"
        gradients = f"{self.n_iter:,} gradient{'s' if self.n_iter > 1 else ''}"
        facts[gradients] = f"noise multiplier {multipliers}, for the descent"
        each = math.sqrt(np.mean(self.noise_multiplier**2)) * self.noise_per_multiplier
        facts["noise on a mean gradient"] = (
            f"{of_clip(each)}, as a norm over {self.metadata.n_released:,} coordinates; "
            f"{percent(each / math.sqrt(self.n_iter))} on the mean of all iterations"
        )
        if self.intercept:
            share = f"{percent(total_fraction(self.intercept))} of the budget"
            facts["then, for the intercept"] = f"{share}, {len(self.intercept)} releases"
        if self.last:
            share = f"{percent(total_fraction(self.last))} of the budget"
            facts["last, for intervals"] = f"{share}, {len(self.last)} releases"
            if self.intervals_message not in self.warning_message:
                facts["expected"] = self.intervals_message
        if self.sampling_rate < 1:
            size = self.metadata.expected_batch_size
            spread = f" expected, give or take {math.sqrt(size * (1 - self.sampling_rate)):.3g}"
            facts["epochs"] = f"{self.n_iter * self.sampling_rate:.4g}"
            facts["records in a batch"] = f"{size:,.6g}{spread * (self.batches == 'poisson')}"
        return facts

    def to_frame(self) -> Any:
        """Return a table with a row for each iteration; needs pandas."""
        pd = require("pandas", "data", "The to_frame of a plan")
        columns = ("clip", "noise_multiplier", "step", "averaging")
        index = pd.RangeIndex(1, self.n_iter + 1, name="iteration")
        return pd.DataFrame({name: getattr(self, name) for name in columns}, index=index)

    @property
    def intervals_message(self) -> str:
        """How many columns can be expected to have intervals."""
        (frequent, most), d = self.expected_columns or (0, 0), self.metadata.n_features
        if most == d:
            return f"intervals of {d:,} columns, except rare ones"
        return (
            f"intervals of at most {most:,} of {d:,} columns, and of none if more are not rare "
            f"(probably {frequent:,})"
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
    preconditioner: Any = None,
    counts: tuple[PlannedRelease, ...] = (),
    first: tuple[PlannedRelease, ...] = (),
    intercept: tuple[PlannedRelease, ...] = (),
    last: tuple[PlannedRelease, ...] = (),
    noise_multiplier: float | None = None,
    batches: str = "poisson",
) -> PrivacyPlan:
    """Fix a whole run in advance and calibrate its noise to the budget exactly.

    Only the ratios of the values of the noise schedule matter. A given noise multiplier is that of
    the first iteration, and is not calibrated. ``"budget"`` is the most iterations it allows.

    With sensitivities D_t and a noise shape s_t the multipliers are
    ``z_t = sqrt(sum_i (D_i/s_i)^2) / (mu D_t/s_t)``, so that the standard deviations ``z_t D_t``
    are proportional to s_t and ``sum_t 1/z_t^2 = mu^2``. This mu is of the budget that the other
    releases leave. With mini-batches the z_t are rounded up to 12 distinct ones, and scaled until
    the privacy loss distribution of the whole run meets the budget.
    """
    longest = isinstance(n_iter, str) and n_iter == "budget"
    n_iter = 1 if longest else check_whole("max_iter", n_iter)
    check_sampling_rate(metadata.sampling_rate)
    sampling = "poisson"
    if metadata.sampling_rate < 1 or batches != "poisson":
        sampling = sampling_under(budget.neighboring_relation, batches)
    if batches == "without_replacement":
        size = max(1, round(metadata.expected_batch_size))
        metadata = replace(metadata, sampling_rate=size / metadata.n_samples)
        # A batch of all records costs as much as all records, below the bound of a batch.
        sampling = sampling if size < metadata.n_samples else "poisson"
    mu = budget.mu * math.sqrt(1 - total_fraction((*counts, *first, *intercept, *last)))
    metadata = replace(metadata, mu=mu, sampling_rate=float(metadata.sampling_rate))
    before = [release.event for release in (*counts, *first)]
    after = [release.event for release in (*intercept, *last)]
    others = [*before, *after]
    if longest:
        fixed = (noise_multiplier, clip_schedule, noise_schedule)
        n_iter = _longest_n_iter(budget, metadata, fixed, others, sampling)

    clip = planned_clip(clip_schedule, n_iter, metadata, infinite=mu == math.inf)
    metadata = replace(metadata, clip=clip)

    shape = schedule_values(noise_schedule, n_iter, metadata, parameter="noise_schedule")
    sensitivity = budget.sensitivity(clip)
    if noise_multiplier is not None:
        noise_multipliers = _fixed(noise_multiplier, sensitivity, shape, metadata.sampling_rate)
    elif metadata.sampling_rate < 1 and mu < math.inf:
        target = budget.epsilon, budget.delta
        noise_multipliers = calibrated_multipliers(
            shape / sensitivity, metadata.sampling_rate, *target, others, sampling
        )
    elif mu == math.inf:
        noise_multipliers = np.zeros(len(shape))
    else:
        # Standard deviations of this shape that cost mu.
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            relative_cost = sensitivity / shape
            relative_cost = relative_cost / relative_cost.max()
            total = math.sqrt(math.fsum(relative_cost**2))
            noise_multipliers = total / (mu * relative_cost)
    _check_affordable(noise_multipliers, budget)
    refuse_all_noise(preconditioner, first)
    metadata = replace(metadata, noise_std=_noise_std(noise_multipliers, sensitivity))

    step = schedule_values(step_schedule, n_iter, metadata, parameter="step_schedule")
    momentum = HeavyBall(0.0) if momentum is None else momentum
    gradients = [
        gradient_event(z, metadata.sampling_rate, sampling) for z in noise_multipliers.tolist()
    ]
    return PrivacyPlan(
        metadata=metadata,
        budget=budget,
        clip=clip,
        noise_multiplier=noise_multipliers,
        step=step,
        momentum=momentum,
        averaging=averaging_weights(averaging, n_iter),
        ledger=ledger_of(budget, [*before, *gradients, *after]),
        clip_schedule=clip_schedule,
        step_schedule=step_schedule,
        preconditioner=preconditioner,
        counts=counts,
        first=first,
        intercept=intercept,
        last=last,
        batches=batches,
    )


@lru_cache(typed=True)
def gradient_event(noise_multiplier: float, sampling_rate: float, sampling: str) -> Event:
    """Return the cost of the release of a noisy gradient, of a batch at a rate below 1."""
    purpose = "gradients, for the descent"
    if sampling_rate == 1:
        return GaussianEvent(noise_multiplier, purpose=purpose)
    return SampledGaussianEvent(sampling_rate, noise_multiplier, sampling, purpose=purpose)


def _fixed(
    noise_multiplier: float, sensitivity: np.ndarray, shape: np.ndarray, sampling_rate: float
) -> np.ndarray:
    """Return noise multipliers for standard deviations of this shape, starting with this one."""
    relative = shape / sensitivity
    multipliers = noise_multiplier * (relative / relative[0])
    return multipliers if sampling_rate == 1 else coarsened(multipliers)


def _longest_n_iter(
    budget: PrivacyBudget,
    metadata: PublicMetadata,
    fixed: tuple[float, Schedule, Schedule],
    others: list[Event],
    sampling: str,
) -> int:
    """Return the number of iterations with fixed noise that the budget allows beside others."""
    noise_multiplier, clip_schedule, noise_schedule = fixed
    given = f"noise_multiplier={noise_multiplier:g} with max_iter='budget'"

    def gradients(n_iter: int) -> list[tuple[Event, int]]:
        if n_iter > MOST_ITERATIONS:
            raise ValueError(
                f"{given} makes more than {MOST_ITERATIONS:,} iterations; lower noise_multiplier."
            )
        clip = planned_clip(clip_schedule, n_iter, metadata, infinite=False)
        known = replace(metadata, clip=clip)
        shape = schedule_values(noise_schedule, n_iter, known, parameter="noise_schedule")
        multipliers = _fixed(noise_multiplier, clip, shape, metadata.sampling_rate)
        _check_affordable(multipliers, budget)
        counts = sorted(Counter(multipliers.tolist()).items())
        rate = metadata.sampling_rate
        return [(SampledGaussianEvent(rate, z, sampling), n) for z, n in counts]

    def variance(n_iter: int) -> float:
        """Return the variance of the losses; with batches by the central limit theorem."""
        return math.fsum(n * event.loss_variance for event, n in gradients(n_iter))

    def events(n_iter: int) -> tuple[tuple[Event, int], ...]:
        return (*((event, 1) for event in others), *gradients(n_iter))

    def epsilon(n_iter: int) -> float:
        return coarse_epsilon(events(n_iter), budget.delta)

    # A little more, for noise that was calibrated to this number of iterations, and rounded.
    most = metadata.mu**2 * (1 + 1e-12)
    n_iter = longest_run(variance, most, max(most / variance(1), 1.0))
    if metadata.sampling_rate < 1:
        n_iter = longest_run(epsilon, budget.epsilon, max(n_iter, 1))
        check_batches(n_iter, metadata.sampling_rate, budget.delta, n_first=len(others))
        # As the ledger will compute it.
        while n_iter and composed_epsilon(events(n_iter), budget.delta) > budget.epsilon:
            n_iter -= math.ceil(n_iter / 1000)
    if n_iter == 0:
        raise ValueError(
            f"{given}: epsilon={budget.epsilon:g} with delta={budget.delta:g} is too small for one "
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
