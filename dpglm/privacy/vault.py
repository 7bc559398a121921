"""The vault (the trusted curator): the one holder of private data and of entropy.

A fit opens a vault with a budget and an allowance: the planned releases, in order, or the capacity
of a filter. Every method that answers from the data does four things in one body and in order.
The body charges the allowance, computes a sum over the records, adds noise for its sensitivity and
writes the log. Solvers and preconditioners get noisy values only, and `privacy_` states all that
the vault allowed. Except names and plans of baselines, arguments become plain numbers and fresh
arrays.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat, starmap
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from dpglm.checks import check_number
from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.budget import CLIP_RANGE, PrivacyBudget
from dpglm.privacy.gaussian import GaussianEvent, composed_gdp_delta
from dpglm.privacy.noise import (
    EntropySource,
    fixed_sample,
    poisson_sample,
    rounded_gaussian,
    secret_choice,
)

if TYPE_CHECKING:
    from dpglm.privacy.events import Event, Runs

# Rows on which every fit compares the kernels with plain arithmetic: at least 256, or 2^18 values.
_COMPARED_ROWS, _COMPARED_VALUES = 256, 2**18
# Covers the rounding of costs, and is counted where an allowance is compared with the budget.
_FILTER_TOLERANCE = 1e-12
_GRID_BITS = 30
# Powers of two between which the elements of a column are counted.
MAGNITUDE_POWERS = np.arange(-33, 64)
# Norms between which rows are counted; the usual norms 1, 2 and 3 are not near any of them.
NORM_BIN_EDGES = 3.5 * 2.0 ** np.arange(-9, 9)

# Covers the rounding of the few operations that form the noise's standard deviation.
_ARITHMETIC_SLACK = 1e-12
# int64 holds the snapped sum plus any noise: |noise| is below 2**45 grid steps.
_LARGEST_STEP = 2.0**62
# Up to this scale the sampler's quantiles are right to within one grid step.
_LARGEST_SCALE = 2.0**40


# Asks a holder of rows, or plain arithmetic in its place, for sums over the rows.
Question = Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Release:
    """A line of the log: the event of a release, the scale of its noise, the remaining budget."""

    event: "Event"
    noise_scale: float
    remaining: float | None = None


def moment_sensitivity(row_norm: float, neighboring_relation: str, n_columns: int) -> float:
    """Return the L2 sensitivity of the second moment of clipped rows, or of its diagonal.

    The sensitivity is ``row_norm^2``, or ``sqrt(2) row_norm^2`` under ``"replace_one"`` with two
    columns or more, the intercept included.

    Notes
    -----
    Theorems: second_moment_moves, single_moment_moves (proofs/Moments.v). In short:

    Let ``||x||, ||y|| <= R``. A record that appears or vanishes moves the sum by ``||x x'|| =
    ||x||^2 <= R^2``. When x replaces y, ``||x x' - y y'||^2 = ||x||^4 + ||y||^4 - 2 (x'y)^2 <=
    2 R^4``, with equality for orthogonal x and y of norm R; in one dimension ``|x^2 - y^2| <=
    R^2``. The diagonal is a part of the matrix, with equality for two axes.

    A record of several rows, which share R^2, adds ``A = sum_i x_i x_i'`` with ``||A|| <= tr A =
    sum_i ||x_i||^2 <= R^2``. And ``||A - B||^2 <= ||A||^2 + ||B||^2 <= 2 R^4``, since ``tr(A B) >=
    0`` for A and B without negative eigenvalues.
    """
    both = neighboring_relation == "replace_one" and n_columns > 1
    return (math.sqrt(2) if both else 1.0) * row_norm**2


def magnitude_sensitivity(neighboring_relation: str, n_columns: int) -> float:
    """Return the L2 sensitivity of the counts of elements of each column between powers of two.

    A record has one element in each column (one of its rows counts), so that each column counts the
    record at most once. A record that appears or vanishes moves d numbers by one; when another
    replaces it, 2 d numbers. Theorem: parts_move (proofs/Histograms.v).
    """
    return math.sqrt((2 if neighboring_relation == "replace_one" else 1) * n_columns)


def triangle(n_columns: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the indices of the upper triangle of a moment, and the weight of each element.

    The L2 norm is then that of the matrix. Theorem: triangle_norm (proofs/Moments.v).
    """
    rows, columns = np.triu_indices(n_columns)
    return (rows, columns), np.where(rows == columns, 1.0, math.sqrt(2))


def plain(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a fresh float64 array, which no caller can change after the check, or observe."""
    copied = np.array(array, dtype=np.float64, subok=False)
    if copied.shape != shape:
        raise ValueError(f"A vault was asked with an array of shape {copied.shape}, not {shape}.")
    return copied


def grid_spacing(std: float) -> float:
    """Return the power of two between ``std * 2**-31`` and ``std * 2**-30``.

    Released sums are multiples of this spacing, far finer than their noise.
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


@dataclass(frozen=True)
class GaussianSum:
    """Release a sum over records with Gaussian noise.

    ``sensitivity`` is the L2 sensitivity of the exact sum under the fit's neighbouring relation.
    ``slack`` bounds what floating-point summation adds to it. ``noise_multiplier`` is the standard
    deviation of the noise over both.

    Notes
    -----
    Theorem: release_mu (proofs/Vault.v). The release is exactly ``1 / noise_multiplier``-GDP where
    the computed sum moves by at most ``sensitivity + slack``. The sum is snapped to a grid of
    spacing g, a power of two near 2^-30 of the noise. For d numbers this adds at most ``g sqrt(d)``
    to the sensitivity. Then a Gaussian is added, rounded exactly: the result equals an ideal
    Gaussian mechanism on the snapped sum, rounded afterwards. Its standard deviation is
    ``noise_multiplier * (sensitivity + g sqrt(d) + slack) * (1 + 1e-12)``.

    =========================  ==================================
    edge case                  result
    =========================  ==================================
    noise multiplier 0         the sum itself, at infinite cost
    an element not finite      FloatingPointError, nothing drawn
    beyond 2^62 grid steps     clipped to them
    =========================  ==================================
    """

    sensitivity: float
    noise_multiplier: float
    slack: float = 0.0
    # The cost of a release.
    event: GaussianEvent = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        std = self.noise_multiplier * self.sensitivity
        possible = 1e-250 < std < 1e250 and self.noise_multiplier > 0 and self.slack >= 0
        # Outside this range the grid, or the snapped sum, would leave the floating-point numbers.
        if self.noise_multiplier != 0 and not possible:
            raise ValueError(
                f"Noise of standard deviation noise_multiplier * sensitivity = {std!r} cannot be "
                "drawn; it must lie between 1e-250 and 1e250. Rescale the clipping norm."
            )
        object.__setattr__(self, "event", GaussianEvent(self.noise_multiplier))

    @cached_property
    def grid(self) -> float:
        """Spacing of the released values, a power of two."""
        return grid_spacing(self.noise_multiplier * self.sensitivity)

    def noise_std(self, size: int) -> float:
        """Return the standard deviation drawn for a release of ``size`` numbers.

        ValueError if that cannot be drawn. Theorem: noise_std_covers (proofs/Float64.v).
        """
        if self.noise_multiplier == 0:
            return 0.0
        effective_sensitivity = self.sensitivity + self.grid * math.sqrt(size) + self.slack
        std = self.noise_multiplier * effective_sensitivity * (1 + _ARITHMETIC_SLACK)
        if not std / self.grid <= _LARGEST_SCALE:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier:g} is too large for a release of "
                f"{size} numbers with slack {self.slack:g}; nothing was released."
            )
        return std

    def release(self, value: np.ndarray, rng: EntropySource) -> np.ndarray:
        """Return a float64 array of any shape with noise, multiples of ``grid``."""
        if self.noise_multiplier == 0:
            return value.copy()
        if not np.isfinite(value).all():
            raise FloatingPointError("The sum to release is not finite; nothing was released.")
        grid, std = self.grid, self.noise_std(value.size)
        with np.errstate(over="ignore"):
            steps = np.clip(value / grid, -_LARGEST_STEP, _LARGEST_STEP)
        noise = rounded_gaussian(value.size, std / grid, rng)
        return (np.rint(steps).astype(np.int64) + noise.reshape(value.shape)) * grid


class PlannedReleases:
    """An allowance of releases that were fixed in advance: these events, in this order."""

    remaining, has_refused = None, False

    def __init__(self, events: "Runs") -> None:
        self._left: Iterator[Event] = chain.from_iterable(starmap(repeat, events))

    def refuse_all(self) -> None:
        """Refuse every later release."""
        self._left, self.has_refused = iter(()), True

    def charge(self, event: "Event") -> "Event":
        """Charge a release, BEFORE it is made; refuse one that is not next on the list.

        Return the event on the list, which has a purpose.
        """
        planned = next(self._left, None)
        if event != planned:
            self.refuse_all()
            raise BudgetExceededError(
                f"The release of {event!r} is not what was planned ({planned!r} is next); it was "
                "refused, and so is every later one."
            )
        return planned


class PrivacyFilter:
    """Admits releases while their summed cost stays within a capacity fixed in advance.

    The capacity is in the unit of the costs: ``mu**2`` for Gaussian differential privacy, or
    ``rho`` for zero-concentrated differential privacy.

    Notes
    -----
    Costs, and the decision to stop, may depend on anything released before. All releases together
    then have the guarantee of the CAPACITY (Smith & Thakurta 2022; Feldman & Zrnic 2021), and not
    of the costs that were spent. Theorem: filter_guarantee (proofs/Filter.v).
    """

    def __init__(self, capacity: float, unit: str = "gdp") -> None:
        self.capacity = check_number("capacity", capacity, above=0)
        self.unit, self.has_refused = unit, False
        self._costs: list[float] = []
        self._lock = threading.Lock()

    def refuse_all(self) -> None:
        """Refuse every later release."""
        self.capacity, self.has_refused = 0.0, True

    @property
    def spent(self) -> float:
        """The sum of the costs so far."""
        return math.fsum(self._costs)

    @property
    def remaining(self) -> float:
        """The capacity that remains, never negative."""
        return max(self.capacity - self.spent, 0.0)

    def admits(self, *costs: float) -> bool:
        """Return whether releases of these costs may be made, all of them."""
        asked = plain(costs, (len(costs),))
        if not (asked >= 0).all():
            raise ValueError(f"A cost must be a number, 0 or above, got {costs!r}.")
        return math.fsum([*self._costs, *asked]) <= self.capacity * (1 + _FILTER_TOLERANCE)

    def spend(self, cost: float) -> None:
        """Charge a release, BEFORE it is made.

        A release beyond the capacity raises a BudgetExceededError, and nothing is charged then.
        """
        with self._lock:
            if not self.admits(cost):
                self.has_refused = True
                raise BudgetExceededError(
                    f"A release of cost {cost:.6g} exceeds the remaining {self.remaining:.6g} of "
                    f"{self.capacity:.6g}; nothing was charged."
                )
            self._costs.append(float(cost))

    def charge(self, event: "Event") -> "Event":
        """Charge the cost of this release, BEFORE it is made."""
        self.spend(event.mu**2 if self.unit == "gdp" else event.rho)
        return event


def gradient_sums(X: Any, target: np.ndarray, loss: Any, **options: Any) -> Any:
    """Return the holder of rows in memory, which answers a vault with sums over them."""
    # numba is imported with the kernels, and takes a third of a second: only for a fit.
    from dpglm.sums.objective import Objective

    return Objective(X, target, loss, **options)


def block_sums(blocks: Any, model: Any) -> Any:
    """Return the holder of blocks of rows, each in a holder like the model, wherever it is."""
    from dpglm.sums.blocks import BlockObjective

    return BlockObjective(blocks, model)


class Vault:
    """Private data behind noise: a vault releases what its allowance permits, and nothing else.

    ``sums`` holds the rows and answers with exact sums over them; no other object may keep it. The
    ``events`` are those of the ledger that the fit will state: the releases in order, or the filter
    that they are charged to. They must cost no more than the ``budget``. Arguments of the methods
    must be public or follow from earlier releases; no other object in this package knows more.

    By how much a record moves a sum, in the L2 norm, for d columns (the intercept included):

    =======================  ==========  ====================
    release                  by at most  under "replace_one"
    =======================  ==========  ====================
    ``gradient_sum``         clip        2 clip
    ``second_moment``        row_norm^2  sqrt(2) row_norm^2
    ``magnitude_histogram``  sqrt(d)     sqrt(2 d)
    ``norm_histogram``       1           sqrt(2)
    ``label_counts``         1           sqrt(2)
    ``target_histogram``     1           sqrt(2)
    ``target_sum``           bound       2 bound
    =======================  ==========  ====================

    After ``ask_of_residuals`` the last two are of residuals.

    ==============================  ================================================
    edge case                       result
    ==============================  ================================================
    not next on the plan            BudgetExceededError, and refusal of all later
    an error while a sum is made    the error, and refusal of all later
    kernels that sum wrongly        RuntimeError, and refusal of all later
    a histogram of changed rows     ValueError
    a null record                   adds nothing to any sum
    ==============================  ================================================
    """

    def __init__(
        self, sums: Any, events: "Runs", budget: PrivacyBudget, entropy: EntropySource
    ) -> None:
        # Once: a plan that is read a second time may say something else.
        events = tuple((event, n) for event, n in events)
        _check_within_budget(events, budget)
        self._sums, self._budget, self._entropy = sums, budget, entropy
        self._n_records = sums.n_records
        self._most_samples = budget.most_samples(self._n_records)
        # How many times a clipping norm a record moves a sum: twice where another replaces it.
        self._moved_clips = budget.sensitivity(1.0)
        self._process = os.getpid()
        self._rounding: float | None = None
        self._changed = False
        # The solvers may read the log, and write to it: the ledger does not depend on the log.
        self.log: list[Release] = []
        self._n_released = 0
        # The last question that kernels were asked, and of whom, until one has been compared.
        self._asked: tuple[Any, Question, int] | None = None
        (event, n), *others = events
        self._allowance: PlannedReleases | PrivacyFilter
        if event.kind == "filter" and n == 1 and not others:
            unit = "zcdp" if event.mu is None else "gdp"
            self._allowance = PrivacyFilter(event.rho if event.mu is None else event.mu**2, unit)
            # How many releases there will be is not known: each number of binary digits up to 7 is
            # as likely as the others.
            digits, place = divmod(secret_choice(7 * 64), 64)
            self._to_compare: float = 2**digits - 1 + (place << digits) // 64
        else:
            self._allowance = PlannedReleases(events)
            self._to_compare = secret_choice(n + sum(count for _, count in others))

    def __reduce__(self) -> Any:
        """Refuse copies and pickles: a second vault would spend the allowance a second time."""
        raise TypeError("A vault cannot be copied: its allowance is for one.")

    def admits(self, *costs: float) -> bool:
        """Return whether a filter admits releases of these costs, all of them."""
        return self._allowance.admits(*costs)

    def gradient_sum(
        self,
        coef: np.ndarray,
        clip: float,
        noise_multiplier: float,
        sampling_rate: float = 1.0,
        batches: str = "poisson",
    ) -> np.ndarray:
        """Release the sum over the records of the gradients at `coef`, each clipped, with noise.

        With a sampling rate below 1 the sum is over a fresh batch. Each record is in the batch with
        that probability: independently or, under ``"replace_one"``, as one of a fixed number. The
        norm of a record's gradient is at most `clip`. Theorem: gradient_sum_mu (proofs/Vault.v).
        """
        clip, noise_multiplier = _checked_bound(clip), float(noise_multiplier)
        sampling_rate, coef = float(sampling_rate), plain(coef, self._sums.coef_shape)
        if self._rounding is None:
            self._rounding = self._sums.rounding_slack(self._most_samples)
        slack = self._rounding * clip if noise_multiplier else 0.0
        whole = sampling_rate == 1
        # A Poisson sample without the record is the same in both data sets. The noise is for the
        # distance of either end from the sum over that sample; rounding is counted at each end.
        ends = 1.0 if whole or batches == "without_replacement" else self._moved_clips
        mechanism = GaussianSum(self._moved_clips / ends * clip, ends * noise_multiplier, slack)

        event: Event = mechanism.event
        if not whole:
            from dpglm.privacy.events import SampledGaussianEvent, sampling_under

            sampling = sampling_under(self._budget.neighboring_relation, batches)
            event = SampledGaussianEvent(sampling_rate, noise_multiplier, sampling)
        draw = fixed_sample if batches == "without_replacement" else poisson_sample

        ask = methodcaller("gradient_sum", coef, clip)

        def exact() -> np.ndarray:
            # A fresh batch, which stays here, its size included: only then does sampling amplify.
            rows = None if whole else draw(self._n_records, sampling_rate, self._entropy)
            return self._sums.gradient_sum(coef, clip, rows)

        moves = ends * (mechanism.sensitivity + mechanism.slack)
        # Without a clipping norm a sum has no bound, nor has its rounding.
        compared = {"ask": ask} if clip < math.inf else {}
        return self._release_sum(mechanism, exact, coef.size, event=event, moves=moves, **compared)

    def second_moment(
        self,
        row_norm: float,
        noise_multiplier: float,
        *,
        diagonal: bool,
        coef: np.ndarray | None = None,
    ) -> np.ndarray:
        """Release the sum over the records of ``x~ x~'``, each x~ clipped, with noise.

        The diagonal, or the upper triangle with off-diagonal elements times sqrt(2). For the
        curvature at `coef` the root of the second derivative of its loss multiplies each x~ before.
        Theorems: second_moment_mu, second_moment_diagonal_mu (proofs/Vault.v).
        """
        row_norm, noise_multiplier = _checked_bound(row_norm), float(noise_multiplier)
        n_columns = self._sums.coef_shape[0]
        size = n_columns if diagonal else n_columns * (n_columns + 1) // 2
        slack = self._sums.moment_rounding(self._most_samples) * row_norm**2
        coef = None if coef is None else plain(coef, self._sums.coef_shape)
        sensitivity = moment_sensitivity(row_norm, self._budget.neighboring_relation, n_columns)
        ask = methodcaller("second_moment", row_norm, diagonal, coef)

        def exact() -> np.ndarray:
            total = ask(self._sums)
            if diagonal:
                return total
            where, weights = triangle(n_columns)
            return total[where] * weights

        mechanism = GaussianSum(sensitivity, noise_multiplier, slack)
        return self._release_sum(mechanism, exact, size, ask=ask)

    def magnitude_histogram(self, noise_multiplier: float) -> np.ndarray:
        """Release a histogram of the elements of each column by sign and size, with noise.

        Shape (n_columns, 2 MAGNITUDE_POWERS.size), the intercept without counts. An element has one
        sign and one size: one count of each column. Theorem: histogram_mu (proofs/Vault.v).
        """
        n_columns = self._sums.coef_shape[0]
        ask = methodcaller("magnitude_histogram", MAGNITUDE_POWERS)
        return self._histogram(ask, noise_multiplier, n_columns, 2 * MAGNITUDE_POWERS.size)

    def norm_histogram(self, noise_multiplier: float) -> np.ndarray:
        """Release a histogram of the norms of rows without the intercept, with noise.

        Shape (NORM_BIN_EDGES.size + 1,), from 0 on. Theorem: histogram_mu (proofs/Vault.v).
        """
        ask = methodcaller("norm_histogram", NORM_BIN_EDGES)
        return self._histogram(ask, noise_multiplier, 1, NORM_BIN_EDGES.size + 1)

    def label_counts(self, noise_multiplier: float) -> np.ndarray:
        """Release the sum of the weights of rows in each class, with noise: their number without.

        A row's weight is from 0 to 1, and the rows of a group add up to at most 1. So a record adds
        numbers of 0 or more, whose L2 norm is at most their sum, at most 1.
        Theorem: histogram_mu (proofs/Vault.v).
        """
        n_classes = max(2, math.prod(self._sums.coef_shape[1:]))
        return self._histogram(methodcaller("label_counts"), noise_multiplier, 1, n_classes)

    def target_histogram(self, noise_multiplier: float) -> np.ndarray:
        """Release a histogram of a numeric target by sign and size, times weights, with noise.

        Shape (2, MAGNITUDE_POWERS.size), zero in no bin. Theorem: histogram_mu (proofs/Vault.v).
        """
        ask, n_bins = methodcaller("target_histogram", MAGNITUDE_POWERS), 2 * MAGNITUDE_POWERS.size
        # Changes of rows are none of the target.
        moved = magnitude_sensitivity(self._budget.neighboring_relation, 1)
        mechanism = GaussianSum(moved, float(noise_multiplier))
        return self._release_sum(mechanism, lambda: ask(self._sums), n_bins, ask=ask).reshape(2, -1)

    def target_sum(self, bound: float, noise_multiplier: float) -> float:
        """Release the sum of a numeric target times weights, clipped to a size, with noise.

        In units of the bound, records add multiples of ``2^-20`` from -1 to 1, whose sums are
        exact. Theorem: target_sum_mu (proofs/Vault.v).
        """
        bound = _checked_bound(bound)
        ask = methodcaller("target_sum", bound)
        mechanism = GaussianSum(self._moved_clips, float(noise_multiplier))
        return bound * float(self._release_sum(mechanism, lambda: ask(self._sums), 1, ask=ask)[0])

    def change_target(self, middle: float, unit: float) -> None:
        """Replace a numeric target y by ``(y - middle) / unit`` for all later releases."""
        self._change("with_target", plain((middle, unit), (2,)), False)

    def ask_of_residuals(self, coef: np.ndarray, squared: bool) -> None:
        """Let later histograms and sums of a numeric target be of its residuals at `coef`.

        With `squared`, of the squares of Pearson's residuals. Each depends on its own record and on
        what was released, and a null record still adds nothing. So their histogram and sum move by
        no more than those of the target. Gradients do not change.
        """
        self._change("with_residuals", (plain(coef, self._sums.coef_shape), bool(squared)), False)

    def _histogram(
        self, ask: Question, noise_multiplier: float, n_columns: int, n_bins: int
    ) -> np.ndarray:
        """Release counts of the records, each of at most one in all bins of a column."""
        if self._changed:
            raise ValueError("A histogram is of the rows of the table: ask before they change.")
        sensitivity = magnitude_sensitivity(self._budget.neighboring_relation, n_columns)
        mechanism = GaussianSum(sensitivity, float(noise_multiplier))
        return self._release_sum(mechanism, lambda: ask(self._sums), n_columns * n_bins, ask=ask)

    def scale_columns(self, scales: np.ndarray) -> None:
        """Multiply the columns of each row by these powers of two, for all later releases."""
        self._change("scaled", plain(scales, self._sums.coef_shape[:1]))

    def change_basis(self, basis: np.ndarray) -> None:
        """Replace each row by ``P'`` times the row for all later releases and their clipping."""
        self._change("in_basis", plain(basis, np.shape(basis)))

    def weigh_rows(self, bound: float) -> None:
        """Weight each row with ``min(1, (bound / its norm)^2)`` for all later releases."""
        if not _checked_bound(bound) < math.inf:
            # An infinite bound times the inverse norm of a null record would be NaN.
            raise ValueError(f"bound={bound!r} must be finite.")
        self._change("weighed", float(bound))

    def weigh_classes(self, weights: np.ndarray) -> None:
        """Multiply the loss of each row by the weight of its class, from 0 to 1, from here on."""
        # A bound may rest on their limits.
        weights = np.clip(plain(weights, np.shape(weights)), 0.0, 1.0)
        self._change("with_class_weights", weights, False)

    def _change(self, method: str, argument: Any, of_rows: bool = True) -> None:
        with self._closed_by_errors():
            self._sums = getattr(self._sums, method)(argument)
        self._rounding, self._changed = None, self._changed or of_rows

    @property
    def has_drawn(self) -> bool:
        """Whether any noise, or any batch, has been drawn."""
        return self._entropy.words_drawn > 0

    def check_unbroken(self) -> None:
        """End a fit: compare the last sums, if none were, and raise an error if anything failed.

        Later steps may depend on a release that was refused or failed.
        """
        if self._allowance.has_refused:
            raise RuntimeError(
                "A release of this vault was refused or failed, and the caller went on: there is "
                "no result. Do not catch errors of the vault."
            )
        self._compare()

    def _release_sum(
        self,
        mechanism: GaussianSum,
        exact: Callable[[], np.ndarray],
        size: int,
        *,
        event: "Event | None" = None,
        moves: float | None = None,
        ask: Question | None = None,
    ) -> np.ndarray:
        """Release a sum that a record moves by at most the mechanism's sensitivity and slack."""

        def draw(total: np.ndarray) -> np.ndarray:
            if total.size != size:
                raise RuntimeError(f"A sum has {total.size} numbers, not {size}; not released.")
            return mechanism.release(total, self._entropy)

        return self._release(
            mechanism.event if event is None else event,
            exact,
            draw,
            moves=mechanism.sensitivity + mechanism.slack if moves is None else moves,
            noise_scale=mechanism.noise_std(size),
            ask=ask,
        )

    def _release(
        self,
        event: "Event",
        exact: Callable[[], np.ndarray],
        draw: Callable[[np.ndarray], Any],
        *,
        moves: float,
        noise_scale: float,
        ask: Question | None = None,
        n_steps: int = 1,
    ) -> Any:
        """Charge, compare, compute, add noise, and write the log: every release goes through here.

        ``exact`` computes the private value, which a record moves by at most ``moves``, and
        ``draw`` returns a noisy one. ``ask`` asks an object for the sums that kernels make for it,
        for each of `n_steps`: with more of them fewer rows are compared.
        """
        if os.getpid() != self._process:
            raise RuntimeError("A vault cannot be used in a fork: its allowance is for one.")
        event = self._allowance.charge(event)
        with self._closed_by_errors():
            if ask is not None and self._to_compare < math.inf:
                self._asked = self._sums, ask, n_steps
            if self._n_released >= self._to_compare:
                self._compare()
            answer = draw(exact())
        self._n_released += 1
        self.log.append(Release(event, noise_scale, self._allowance.remaining))
        return answer

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Refuse every later release after an error, which may depend on the data."""
        try:
            yield
        except BaseException:
            self._allowance.refuse_all()
            raise

    def _compare(self) -> None:
        """Compare the last answer of the kernels with plain arithmetic, on some rows, once."""
        if self._asked is None:
            return
        sums, ask, n_steps = self._asked
        n_records = self._n_records
        n_values = math.prod(sums.coef_shape) * n_steps
        size = min(n_records, max(_COMPARED_ROWS, _COMPARED_VALUES // n_values))
        first = secret_choice(n_records - size + 1)
        with np.errstate(all="ignore"):
            excess = sums.confirm(ask, np.arange(first, first + size))
        if not excess <= 0:
            self._allowance.refuse_all()
            raise RuntimeError(
                "The compiled kernels do not sum what they should, which must not happen with any "
                "data; nothing more is released, and there is no result. Remove the __pycache__ "
                "folders of dpglm, or set DPGLM_KERNELS=numpy, and fit again."
            )
        self._asked, self._to_compare = None, math.inf


def _checked_bound(bound: float) -> float:
    """Return a bound on norms; a smaller one times the inverse of a norm might round up."""
    bound = float(bound)
    if not bound >= CLIP_RANGE[0]:
        raise ValueError(f"A clipping norm of {bound!r} must be {CLIP_RANGE[0]:g} or more.")
    return bound


def _check_within_budget(events: "Runs", budget: PrivacyBudget) -> None:
    """Refuse an allowance that costs more than the budget.

    The closed form is used for Gaussian releases (Dong, Roth & Su 2022, Corollary 2; Balle & Wang
    2018, Theorem 8). For others, where that is not enough, the ledger's composition is used.
    """
    if not all(isinstance(n, int) and n > 0 for _, n in events):
        raise ValueError("The count of each event of a plan must be a positive integer.")
    if math.isinf(budget.epsilon):
        return
    # The tolerance of a filter beyond its capacity, for the rounding of costs, counts too.
    events = [(e, n * (1 + _FILTER_TOLERANCE) if e.kind == "filter" else n) for e, n in events]
    affordable = composed_gdp_delta(events, budget.epsilon) <= budget.delta
    if not affordable and any(event.kind != GaussianEvent.kind for event, _ in events):
        from dpglm.privacy.composition import composed_delta, composed_epsilon

        if all(event.mu is not None or event.rho is not None for event, _ in events):
            affordable = composed_delta(events, budget.epsilon) <= budget.delta
        else:
            affordable = composed_epsilon(events, budget.delta) <= budget.epsilon
    if not affordable:
        raise ValueError(
            f"The plan of this fit costs more than epsilon={budget.epsilon:g} at delta="
            f"{budget.delta:g}; nothing was released."
        )
