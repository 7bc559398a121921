"""The joint cost of releases, and the ledger that states this cost."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import chain, combinations_with_replacement, groupby
from typing import Any, ClassVar, get_args

from scipy.optimize import brentq

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.exceptions import require
from dpglm.privacy.events import (
    FilterEvent,
    LaplaceSelectionEvent,
    ObjectivePerturbationEvent,
    PermuteAndFlipEvent,
    PoissonSampledReplaceOneEvent,
    PureEvent,
    SampledWithoutReplacementEvent,
    SelectionEvent,
    zcdp_delta,
    zcdp_epsilon,
)
from dpglm.privacy.gaussian import (
    NEIGHBORING_RELATIONS,
    GaussianEvent,
    PoissonSampledEvent,
    Relation,
    composed_gdp_delta,
    gdp_delta,
    gdp_epsilon,
)
from dpglm.tables import html_table

# Losses are rounded up to multiples of an interval, which adds to the variance of each at most a
# quarter of the interval's square. This part of their standard deviation changes epsilon by 1e-5.
_PART_OF_STD = 0.01
_COARSEST = 0.1
_WIDEST, _NARROWEST = 1e-3, 1e-8  # speed only
_MOST_POINTS = 1e6  # speed only
_MOST_CASES = 64  # speed only


@dataclass(frozen=True)
class ParallelEvent:
    """Releases about parts of the records that share none, one sequence of runs for each part.

    A record is in one part, whatever the others are: a neighbour changes the releases of that part
    alone. The whole costs as much as the most expensive part.
    """

    parts: tuple[tuple[tuple["Event", int], ...], ...]
    kind: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(map(tuple, self.parts)))
        if not self.parts or not all(self.parts):
            raise ValueError("A ParallelEvent takes one part or more, each of one release or more.")
        for part in self.parts:
            _check_counts(part)

    @property
    def mu(self) -> float | None:
        """The largest parameter of a part's Gaussian trade-off, where all parts have one."""
        known = all(event.mu is not None for part in self.parts for event, _ in part)
        return max(map(composed_mu, self.parts)) if known else None

    @property
    def rho(self) -> float | None:
        """The largest zero-concentrated privacy of a part, where that of all parts is known."""
        return max(map(composed_rho, self.parts)) if all(map(_all_have_rho, self.parts)) else None

    @property
    def loss_variance(self) -> float:
        """The largest approximate variance of the privacy loss of a part."""
        return max(math.fsum(n * _loss_variance(event) for event, n in part) for part in self.parts)

    def to_dp_event(self, relation: Relation) -> Any:
        """Return the dp_accounting event of the most expensive part."""
        if self.mu is not None:
            return FilterEvent(mu=self.mu).to_dp_event(relation)
        if self.rho is not None:
            return FilterEvent(rho=self.rho).to_dp_event(relation)
        raise ValueError("dp_accounting has no event for parts with neither a mu nor a rho.")

    def to_pld(self, interval: float) -> Any:
        """Return the privacy loss distribution of the most expensive part, by its mu."""
        if self.mu is None:
            raise ValueError("With a part without a mu there is no privacy loss distribution.")
        return FilterEvent(mu=self.mu).to_pld(interval)


# One release, or those about parts of the records. Each kind of event knows its own cost: ``mu`` is
# the parameter of a Gaussian trade-off and ``rho`` the zero-concentrated privacy, or None if
# unknown. With a mu, a rho of None means ``mu**2 / 2``. An event without either has a privacy loss
# distribution, ``to_pld``, with ``loss_variance`` and ``loss_reach``. They are the approximate
# variance of the loss (``inf`` without noise) and about the largest loss to represent. Otherwise
# the event has an ``offset``, added to every loss of another event, ``unshifted``; or the event has
# ``parts``, each of other events.
Event = (
    GaussianEvent
    | PoissonSampledEvent
    | PoissonSampledReplaceOneEvent
    | SampledWithoutReplacementEvent
    | SelectionEvent
    | PureEvent
    | LaplaceSelectionEvent
    | PermuteAndFlipEvent
    | ObjectivePerturbationEvent
    | FilterEvent
    | ParallelEvent
)
Runs = Sequence[tuple[Event, int]]


def _check_counts(runs: Runs) -> None:
    for _, count in runs:
        check_whole("count", count, at_most=2**53)


def composed_mu(events: Runs) -> float:
    """Return the parameter of the Gaussian trade-off of the whole; exact for Gaussian releases."""
    squares = []
    for event, count in events:
        if event.mu is None:
            raise ValueError(f"mu is undefined: {event!r} has no Gaussian trade-off.")
        squares.append(count * event.mu**2)
    return math.sqrt(math.fsum(squares))


def composed_rho(events: Runs) -> float:
    """Return the zero-concentrated privacy of the whole."""
    return math.fsum(count * rho_of(event) for event, count in events)


def rho_of(event: Event) -> float:
    """Return the zero-concentrated privacy of one event, which may follow from its trade-off."""
    if event.rho is not None:
        return event.rho
    if event.mu is None:
        raise ValueError(f"rho is undefined: {event!r} has no known zero-concentrated privacy.")
    return event.mu * event.mu / 2


def composed_delta(events: Runs, epsilon: float, distance: int = 1) -> float:
    """Return the least known delta of the whole at ``epsilon``, for data sets at a distance.

    See `composed_epsilon` for a distance of k records. Otherwise delta is the smaller of 1 and
    ``delta_1(e / k) (exp(e) - 1) / (exp(e / k) - 1)``.
    """
    if unprotected(events):
        return 1.0
    first, *worlds = _of_each_record(events)
    if worlds and distance == 1:
        return max(composed_delta(runs, epsilon) for runs in (first, *worlds))
    events = events if worlds else first
    pure, others = _pure_part(events)
    if 0 < distance * pure <= epsilon:
        added = composed_delta(others, epsilon - distance * pure, distance)
        return min(added, _composed_delta(events, epsilon, distance)) if added else 0.0
    return _composed_delta(events, epsilon, distance)


def _pure_part(events: Runs) -> tuple[float, Runs]:
    """Return the summed epsilons of pure releases, and the others.

    An (epsilon_1, 0)-private release and an (epsilon_2, delta)-private one are together
    (epsilon_1 + epsilon_2, delta)-private: less than by their trade-offs if epsilon_1 is small.
    """
    pure = [(event, count) for event, count in events if isinstance(event, PureEvent)]
    others = tuple(run for run in events if run not in pure)
    return math.fsum(count * event.epsilon for event, count in pure), others


def _composed_delta(events: Runs, epsilon: float, distance: int) -> float:
    if distance > 1:
        return _group_delta(events, epsilon, distance)
    offset, events = _simplified(events)
    epsilon -= offset
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * composed_delta(events, -epsilon)
    if _all_have_rho(events):
        delta = zcdp_delta(composed_rho(events), epsilon)
        return min(delta, composed_gdp_delta(events, epsilon))
    numerical, concentrated = _divided(events)
    if concentrated:
        return _inverse(lambda delta: composed_epsilon(events, delta), epsilon)
    delta = float(composed_pld(numerical).get_delta_for_epsilon(epsilon))
    return min(1.0, delta + numerical_error(numerical))


def composed_epsilon(
    events: Runs, delta: float, distance: int = 1, *, coarseness: float = 1
) -> float:
    """Return the least known epsilon of the whole at ``delta``, for data sets at a distance.

    Distributions are computed `coarseness` times more coarsely: sooner, and somewhat larger.

    At a distance of k records, mu is k times as large and rho k^2 times (Dong, Roth & Su 2022,
    Theorem 3; Bun & Steinke 2016, Proposition 1.9). Otherwise ``delta_k(k e) <= delta_1(e) (exp(k
    e) - 1) / (exp(e) - 1)``, the sum of ``exp(j e)`` over k steps from record to record. Some
    events have only a zero-concentrated cost, others only a privacy loss distribution. The epsilons
    of both kinds are added, each at half of delta.
    """
    if unprotected(events):
        return math.inf
    first, *worlds = _of_each_record(events)
    if worlds and distance == 1:
        return max(composed_epsilon(r, delta, coarseness=coarseness) for r in (first, *worlds))
    events = events if worlds else first
    whole = _composed_epsilon(events, delta, distance, coarseness=coarseness)
    if worlds and _all_have_rho(events):
        # Each of the steps from record to record is in one of the cases.
        whole = min(whole, _group_epsilon(lambda e: composed_delta(events, e), delta, distance))
    pure, others = _pure_part(events)
    if not pure:
        return whole
    rest = composed_epsilon(others, delta, distance, coarseness=coarseness)
    return min(whole, distance * pure + rest)


def _composed_epsilon(events: Runs, delta: float, distance: int, *, coarseness: float) -> float:
    offset, unshifted = _simplified(events)
    closed_form = _all_have_rho(unshifted)
    if distance > 1 and (offset or not closed_form):
        return _group_epsilon(lambda e: composed_delta(events, e), delta, distance)
    if closed_form:
        epsilon = zcdp_epsilon(distance**2 * composed_rho(unshifted), delta)
        if all(event.mu is not None for event, _ in unshifted):
            epsilon = min(epsilon, gdp_epsilon(distance * composed_mu(unshifted), delta))
        return offset + epsilon
    numerical, concentrated = _divided(unshifted)
    part = delta / 2 if concentrated else delta
    left = part - numerical_error(numerical)
    if left <= 0:
        return math.inf
    pld = composed_pld(numerical, coarseness * pld_interval(numerical))
    epsilon = float(pld.get_epsilon_for_delta(left))
    return offset + (epsilon + zcdp_epsilon(composed_rho(concentrated), part))


def _of_each_record(events: Runs) -> list[Runs]:
    """Return all that may be about one record, which is in one part of each parallel event.

    Parts with a mu are separate cases only if one has a pure release, which may count by its
    epsilon, and if there are few cases. Otherwise the largest mu holds for all of them.
    """
    parallel = [run for run in events if isinstance(run[0], ParallelEvent)]
    few = math.prod(math.comb(len(e.parts) + n - 1, n) for e, n in parallel) <= _MOST_CASES
    for at, (event, count) in enumerate(events):
        if (event, count) not in parallel:
            continue
        if event.mu is None or (few and _holds_pure(event)):
            taken = combinations_with_replacement(dict.fromkeys(event.parts), count)
            others = events[:at], events[at + 1 :]
            worlds = ((*others[0], *chain.from_iterable(parts), *others[1]) for parts in taken)
            return [runs for world in worlds for runs in _of_each_record(world)]
    return [events]


def _holds_pure(event: Event) -> bool:
    inner = [run[0] for part in getattr(event, "parts", ()) for run in part]
    return any(isinstance(each, PureEvent) or _holds_pure(each) for each in inner)


def _all_have_rho(events: Runs) -> bool:
    return all(event.mu is not None or event.rho is not None for event, _ in events)


def _simplified(events: Runs) -> tuple[float, Runs]:
    """Return the sum of all offsets, and the events that have the rest of the cost.

    Mini-batches count as full batches, which cost more, where a distribution would be too wide.
    """
    if pld_interval(events) > _COARSEST:
        events = [(getattr(event, "full_batch", event), count) for event, count in events]
    offset = math.fsum(count * getattr(event, "offset", 0.0) for event, count in events)
    return offset, tuple((getattr(event, "unshifted", event), count) for event, count in events)


def _divided(events: Runs) -> tuple[Runs, Runs]:
    """Return the events with a privacy loss distribution, and those with a rho alone."""
    concentrated = tuple(run for run in events if run[0].mu is None and run[0].rho is not None)
    return tuple(run for run in events if run not in concentrated), concentrated


def numerical_error(events: Runs) -> float:
    """Return the most by which numerical composition understates delta: ``4 T 2^-53``, T events.

    The power T of a discrete Fourier transform multiplies each coefficient by 1 + e, with e of
    about T units of roundoff. The error of a sum of probabilities is of the same order. At sampling
    rate 1, where the exact value is known, the error is at most a third of ``T 2^-53``.
    """
    return 4 * sum(count for _, count in events) * 2.0**-53


def _inverse(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Return a delta, up to 1, at which a falling function of delta is at most `epsilon`."""
    low, high = math.log(1e-13), 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_at(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def _group_delta(events: Runs, epsilon: float, distance: int) -> float:
    """Return a delta at a distance in records; see `composed_delta`."""
    part = epsilon / distance
    log_delta = math.log(max(composed_delta(events, part), 1e-300))
    delta = math.exp(min(0.0, log_delta + _log_steps(part, distance)))
    offset, unshifted = _simplified(events)
    if offset == 0 and _all_have_rho(unshifted):
        delta = min(delta, zcdp_delta(distance**2 * composed_rho(unshifted), epsilon))
        if all(event.mu is not None for event, _ in unshifted):
            delta = min(delta, gdp_delta(distance * composed_mu(unshifted), epsilon))
    return delta


def _log_steps(epsilon: float, distance: int) -> float:
    """Return the logarithm of ``sum_j exp(j epsilon)`` over j below the distance."""
    if epsilon == 0:
        return math.log(distance)
    falling = math.expm1(-distance * epsilon) / math.expm1(-epsilon)
    return (distance - 1) * epsilon + math.log(falling)


def _group_epsilon(delta_at: Callable[[float], float], delta: float, distance: int) -> float:
    """Return an epsilon at a distance in records, from the deltas at a distance of one."""

    def excess(epsilon: float) -> float:
        log_factor = _log_steps(epsilon, distance)
        return math.log(max(delta_at(epsilon), 1e-300)) + log_factor - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    # Begin with small epsilons: numerical errors bound delta below, so large ones may not suffice.
    high = 1e-3
    while excess(high) > 0:
        high *= 2
        if high > 1e4:
            return math.inf
    return distance * (brentq(excess, 0.0, high, xtol=1e-9) + 1e-9)


def unprotected(events: Runs) -> bool:
    """Return whether something was released without noise."""
    return any(math.isinf(_loss_variance(event)) for event, _ in events)


def _loss_variance(event: Any) -> float:
    if event.mu is None and event.rho is None:
        return event.loss_variance
    return 2 * rho_of(event)


def composed_pld(events: Runs, interval: float | None = None) -> Any:
    """Return dp_accounting's privacy loss distribution of the whole."""
    require_dp_accounting()
    merged = tuple(sorted(counted(events).items(), key=repr))
    return _cached_pld(merged, pld_interval(merged) if interval is None else interval)


@lru_cache(maxsize=16)
def _cached_pld(events: tuple[tuple[Event, int], ...], interval: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import identity

    total = identity(interval)
    for event, count in events:
        total = total.compose(event.to_pld(interval).self_compose(count))
    return total


def pld_interval(events: Runs) -> float:
    """Return a spacing of losses that is fine for their sum, and not too fine for each of them.

    The epsilon of the whole is then about 1e-5 above its exact value, relatively.
    """
    variance = math.fsum(_loss_variance(event) * count for event, count in events)
    whole = 12 * math.sqrt(variance) + variance / 2  # speed only
    reach = max([whole, *(getattr(event, "loss_reach", 0.0) for event, _ in events)])
    fine = _PART_OF_STD * math.sqrt(variance / max(1, sum(count for _, count in events)))
    return max(min(max(fine, _NARROWEST), _WIDEST), reach / _MOST_POINTS)


def require_dp_accounting() -> Any:
    """Return dp_accounting, or raise an ImportError that names the extra if it is missing."""
    what = "The accounting of mini-batches (sampling_rate below 1), or a check of a ledger,"
    return require("dp_accounting", "accounting", what)


# Otherwise settings could follow from earlier results.
FIXED_IN_ADVANCE = "number and costs of all fits were fixed before any result was seen"
_ONE_PART_EACH = "no record decides in which part of the records another one is"
ENTROPY = "the operating system's entropy, the source of the noise, is sound"

_EVENT_TYPES = {event_type.kind: event_type for event_type in get_args(Event)}


@dataclass(frozen=True, repr=False)
class PrivacyLedger:
    """The releases of one or more fits, and what they cost together.

    A value: immutable, comparable, picklable. ``a + b`` is the ledger of both.

    Parameters
    ----------
    events : tuple of (Event, int)
        Releases in order, run-length encoded.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}
        The data sets that the guarantee makes indistinguishable.
    reporting_delta : float
        The delta at which the ledger states its epsilon unless asked for another.
    assumptions : tuple of str, default=()
        Conditions of the guarantee that no code can check: the user asserts them.
    seeded : bool, default=False
        Whether a seed reproduces the noise.
    privacy_unit : {"row", "group"}, default="row"
        One record: a row, or all rows of one group (of a person, say).
    n_changed : int, default=1
        The number of records in which indistinguishable data sets differ: see `group`.

    Notes
    -----
    T Gaussian releases with noise multipliers z_t fixed in advance are together exactly mu-GDP
    with ``mu^2 = sum_t 1/z_t^2`` (Dong, Roth & Su 2022, Corollary 2). Then (epsilon, delta) follows
    from mu exactly (Balle & Wang 2018, Theorem 8). Selections have bounds in GDP and in zCDP: both
    are composed, and the smaller epsilon is reported. The privacy loss distributions of
    mini-batches are composed by dp-accounting, to an upper bound (Koskela, Jalko & Honkela 2020;
    Doroshenko et al. 2022).

    Examples
    --------
    >>> from dpglm.privacy.ledger import GaussianEvent, PrivacyLedger
    >>> ledger = PrivacyLedger.from_events([GaussianEvent(40.0)] * 100, reporting_delta=1e-6)
    >>> ledger.mu()
    0.25
    >>> round(ledger.epsilon(1e-6), 4)
    1.0607
    >>> round((ledger + ledger).epsilon(1e-6), 4)
    1.5436
    """

    events: tuple[tuple[Event, int], ...]
    neighboring_relation: str
    reporting_delta: float
    assumptions: tuple[str, ...] = ()
    seeded: bool = False
    privacy_unit: str = "row"
    n_changed: int = 1

    def __post_init__(self) -> None:
        check_choice("privacy_unit", self.privacy_unit, ("row", "group"))
        check_whole("n_changed", self.n_changed)
        check_choice("neighboring_relation", self.neighboring_relation, NEIGHBORING_RELATIONS)
        check_number("reporting_delta", self.reporting_delta, above=0, below=1)
        object.__setattr__(self, "events", tuple(self.events))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        _check_counts(self.events)
        for event, _ in single_releases(self.events):
            relations = getattr(event, "relations", NEIGHBORING_RELATIONS)
            if self.neighboring_relation not in relations:
                raise ValueError(
                    f"A release of kind {event.kind!r} is accounted for under "
                    f"{' and '.join(relations)}, not under {self.neighboring_relation!r}."
                )

    @classmethod
    def from_events(
        cls,
        events: Iterable[Event],
        *,
        reporting_delta: float,
        neighboring_relation: str = "zero_out",
        **metadata: Any,
    ) -> "PrivacyLedger":
        """Return the ledger of ``events``, in order."""
        return cls(run_lengths(events), neighboring_relation, reporting_delta, **metadata)

    def __add__(self, other: "PrivacyLedger") -> "PrivacyLedger":
        """Compose: the cost of releasing both results about the same records.

        Raises
        ------
        ValueError
            If the relations, the privacy units or the numbers of changed records differ. Also if
            both drew their noise from a seed: equal seeds give equal noise, which the difference of
            two releases cancels.
        """
        if not isinstance(other, PrivacyLedger):
            return NotImplemented
        return self._with(other, _joined((*self.events, *other.events)), FIXED_IN_ADVANCE)

    def group(self, k: int) -> "PrivacyLedger":
        """Return the ledger of the same releases for data sets that differ in k records.

        This is the guarantee for a person with k rows after a fit without ``groups``. Under the
        same relation, mu is k times as large and rho k^2 times. For mini-batches and tilted
        objectives epsilon is k times that of one record, at a delta ``(exp(k epsilon) - 1) /
        (exp(epsilon) - 1)`` times as large.

        Parameters
        ----------
        k : int

        Returns
        -------
        PrivacyLedger

        Examples
        --------
        >>> from dpglm.privacy.ledger import GaussianEvent, PrivacyLedger
        >>> ledger = PrivacyLedger.from_events([GaussianEvent(40.0)] * 100, reporting_delta=1e-6)
        >>> ledger.group(4).mu()
        1.0
        """
        return replace(self, n_changed=self.n_changed * check_whole("k", k))

    def __deepcopy__(self, memo: Any) -> "PrivacyLedger":
        """Return the ledger itself, which is immutable."""
        return self

    def __radd__(self, other: object) -> "PrivacyLedger":
        """Let ``sum(ledgers)`` start from 0."""
        return self if other == 0 else NotImplemented

    @classmethod
    def parallel(cls, first: "PrivacyLedger", *others: "PrivacyLedger") -> "PrivacyLedger":
        """Return the cost of results about disjoint parts of the records: the largest of all.

        Parameters
        ----------
        first, *others : PrivacyLedger
            One for each part. If a part has several, give their sum.

        Raises
        ------
        ValueError
            If the relations differ, or if two drew their noise from a seed.

        Notes
        -----
        A neighbour must change one part only: no record may decide in which part another is. Parts
        by position satisfy this rule where the number of records is public. Parts by a keyed hash
        of an identifier that a record keeps satisfy the rule under every relation. Then the profile
        is the largest of the parts' profiles (McSherry 2009, Theorem 4), and so is a Gaussian mu.

        Examples
        --------
        >>> from dpglm.privacy.ledger import GaussianEvent, PrivacyLedger
        >>> north = PrivacyLedger.from_events([GaussianEvent(5.0)], reporting_delta=1e-6)
        >>> south = PrivacyLedger.from_events([GaussianEvent(4.0)] * 2, reporting_delta=1e-6)
        >>> PrivacyLedger.parallel(north, south).mu() == south.mu()
        True
        """
        total, parts = first, (first.events, *(other.events for other in others))
        for other in others:
            total = total._with(other, (), _ONE_PART_EACH)
        return replace(total, events=((ParallelEvent(parts), 1),))

    @property
    def n_releases(self) -> int:
        """Number of releases."""
        return sum(count for _, count in single_releases(self.events))

    def mu(self) -> float:
        """Return the parameter of the Gaussian trade-off of the whole; exact for Gaussian releases.

        Raises a ValueError if an event has no Gaussian trade-off.
        """
        return self.n_changed * composed_mu(self.events)

    def rho(self) -> float:
        """Return the zero-concentrated privacy of the whole; ``mu**2 / 2`` of Gaussian releases.

        Raises a ValueError if that of an event is unknown.
        """
        return self.n_changed**2 * composed_rho(self.events)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the least known epsilon at ``delta`` (default: ``reporting_delta``).

        Raises
        ------
        ImportError
            For mini-batches without dp-accounting; ``pip install "dpglm[accounting]"``.
        """
        delta = self.reporting_delta if delta is None else delta
        return composed_epsilon(self.events, delta, self.n_changed)

    def delta(self, epsilon: float) -> float:
        """Return the least known delta at ``epsilon``; raises like `epsilon`."""
        return composed_delta(self.events, epsilon, self.n_changed)

    @property
    def protects(self) -> bool:
        """Whether every release had noise."""
        return not unprotected(self.events)

    @property
    def dp_accounting_relation(self) -> Any:
        """The ``dp_accounting.NeighboringRelation`` to build an accountant with."""
        return require_dp_accounting().NeighboringRelation[self._relation.dp_accounting_name]

    def to_dp_event(self) -> Any:
        """Return the ledger as a dp_accounting event, one run of releases each.

        For ``dp_accounting.pld.PLDAccountant(ledger.dp_accounting_relation)``. One with a selection
        or a zCDP filter becomes zero-concentrated events, which only the RDP accountant takes.
        Raises an ImportError without dp-accounting; ``pip install "dpglm[accounting]"``.

        Examples
        --------
        >>> from dpglm.privacy.ledger import GaussianEvent, PrivacyLedger
        >>> ledger = PrivacyLedger.from_events([GaussianEvent(40.0)] * 100, reporting_delta=1e-6)
        >>> ledger.to_dp_event()
        ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=40.0),
        count=100)])
        """
        require_dp_accounting()
        self._refuse_groups()
        from dp_accounting import ComposedDpEvent, SelfComposedDpEvent, ZCDpEvent

        exported = [(event.to_dp_event(self._relation), count) for event, count in self.events]
        if any(isinstance(event, ZCDpEvent) for event, _ in exported):
            # Only the RDP accountant takes these, and it does not double a Gaussian's sensitivity.
            exported = [
                (out if isinstance(out, ZCDpEvent) else ZCDpEvent(rho_of(event)), count)
                for (out, count), (event, _) in zip(exported, self.events, strict=True)
            ]
        return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in exported])

    def to_pld(self, interval: float = 1e-4) -> Any:
        """Return the privacy loss distribution of the whole, which dp_accounting cannot build.

        With many selections this distribution is often tighter than `epsilon`.

        Parameters
        ----------
        interval : float, default=1e-4
            Spacing of the discretised losses; they are rounded up.

        Raises
        ------
        ImportError
            Without dp-accounting; ``pip install "dpglm[accounting]"``.
        ValueError
            If an event has no such distribution, or the ledger is that of several records.
        """
        self._refuse_groups()
        return composed_pld(self.events, interval)

    def _refuse_groups(self) -> None:
        if self.n_changed > 1:
            raise ValueError(
                f"dp-accounting has no events for {self._changed}: export the ledger of one record."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary; ``from_dict`` reads it back."""
        # An older dpglm, which reads version 1 only, would take this for the guarantee of one row.
        of_one_row = (self.privacy_unit, self.n_changed) == ("row", 1)
        metadata = (
            {} if of_one_row else {"privacy_unit": self.privacy_unit, "n_changed": self.n_changed}
        )
        return {
            "version": 1 if of_one_row else 2,
            "neighboring_relation": self.neighboring_relation,
            "reporting_delta": self.reporting_delta,
            "assumptions": list(self.assumptions),
            "seeded": self.seeded,
            **metadata,
            "events": _written(self.events),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrivacyLedger":
        """Return the ledger that ``to_dict`` wrote.

        Raises
        ------
        ValueError
            If the version is unknown or the content is not a ledger's.
        """
        try:
            version = data["version"]
            if version not in (1, 2):
                raise ValueError(
                    f"A ledger of version {version!r} cannot be read; this release of dpglm reads "
                    "versions 1 and 2."
                )
            events = _read(data["events"])
            if not isinstance(data["seeded"], bool):
                raise TypeError(f"seeded must be true or false, not {data['seeded']!r}")
            assumptions = data["assumptions"]
            if isinstance(assumptions, str) or not all(isinstance(a, str) for a in assumptions):
                raise TypeError(f"assumptions must be a list of strings, not {assumptions!r}")
            required = ("neighboring_relation", "reporting_delta", "assumptions", "seeded")
            metadata = {name: data[name] for name in required}
            metadata |= {name: data[name] for name in ("privacy_unit", "n_changed") if name in data}
            return cls(events, **metadata)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"This is not a ledger written by PrivacyLedger.to_dict: {error!r}."
            ) from error

    def __str__(self) -> str:
        pure, others = _pure_part(self.events)
        is_pure = pure > 0 and not others and self.n_changed * pure <= self.epsilon() < math.inf
        delta = "0" if is_pure else rounded_up(self.reporting_delta)
        if not self.protects:
            guarantee = "No privacy guarantee: the results were released without noise"
            noisy = tuple(run for run in self.events if not unprotected([run]))
            if noisy:
                epsilon = rounded_up(composed_epsilon(noisy, self.reporting_delta))
                guarantee += f", and noisy releases alone cost epsilon={epsilon} at delta={delta}"
        else:
            guarantee = (
                f"(epsilon={rounded_up(self.epsilon())}, delta={delta})-differentially "
                f"private under {self.neighboring_relation} ({self._relation.meaning})"
            )
            if self.n_changed > 1:
                guarantee += f", for {self._changed} at once"
            if self.neighboring_relation != "replace_one":
                epsilon = composed_epsilon(self.events, self.reporting_delta, 2 * self.n_changed)
                if epsilon < math.inf:
                    guarantee += f", which implies epsilon={rounded_up(epsilon)} under replace_one"
            if self.seeded:
                guarantee = (
                    "No privacy guarantee against whoever knows, guesses or tries out the seed "
                    f"(seeded_noise) of the noise; with fresh noise it would be {guarantee}"
                )
        assumed = "; ".join(self.assumptions if self.seeded else (*self.assumptions, ENTROPY))
        asserting = f"; you assert that {assumed}" if assumed else ""
        return f"{guarantee}; {self._releases}{asserting}."

    def __repr__(self) -> str:
        return f"<PrivacyLedger: {self}>"

    def _repr_html_(self) -> str:
        rows = [("released", "kind", "count", "parameters")]
        for event, count in single_releases(self.events):
            numbers = ", ".join(f"{k}={v:.6g}" for k, v in _parameters(event).items())
            rows.append((purpose_of(event), event.kind, str(count), numbers))
        return (
            f"<p><b>Privacy</b>: {escape(str(self))}</p>"
            f"<details><summary>Releases</summary>{html_table(rows)}</details>"
        )

    def _with(self, other: "PrivacyLedger", events: Runs, assumption: str) -> "PrivacyLedger":
        """Return a ledger of these events under what both assume."""
        if self.neighboring_relation != other.neighboring_relation:
            raise ValueError(
                f"Ledgers under {self.neighboring_relation!r} and {other.neighboring_relation!r} "
                "do not compose; fit both under one neighboring_relation."
            )
        if (self.privacy_unit, self.n_changed) != (other.privacy_unit, other.n_changed):
            raise ValueError(
                f"Ledgers for {self._changed} and for {other._changed} do not compose. Add ledgers "
                "of the same privacy_unit and n_changed."
            )
        if self.seeded and other.seeded:
            raise ValueError(
                "Both ledgers drew their noise from a seed (seeded_noise), so the noise may "
                "coincide and cancel: their costs do not add up. Fit with fresh noise."
            )
        return replace(
            self,
            events=events,
            reporting_delta=min(self.reporting_delta, other.reporting_delta),
            assumptions=dict.fromkeys((*self.assumptions, *other.assumptions, assumption)),
            seeded=self.seeded or other.seeded,
        )

    @property
    def _changed(self) -> str:
        return f"{self.n_changed} {self.privacy_unit}{'s' if self.n_changed > 1 else ''}"

    @property
    def _relation(self) -> Relation:
        return NEIGHBORING_RELATIONS[self.neighboring_relation]

    @property
    def _releases(self) -> str:
        n_filters = self._count_of(FilterEvent)
        parts = []
        if self.n_releases > n_filters or not n_filters:
            n_fixed = self.n_releases - n_filters
            sampled = self._count_of(PoissonSampledEvent)
            batches = f", {sampled} of them from random batches" if sampled else ""
            parts.append(f"{n_fixed} release{'s' if n_fixed != 1 else ''}{batches}")
        if n_filters:
            parts.append(
                f"{n_filters} adaptive fit{'s' if n_filters != 1 else ''}, charged with the whole "
                "budget whatever was spent"
            )
        apart = any(isinstance(event, ParallelEvent) for event, _ in self.events)
        return " and ".join(parts) + (" (about parts of the records that share none)" * apart)

    def _count_of(self, event_type: type) -> int:
        return sum(n for event, n in single_releases(self.events) if isinstance(event, event_type))


def run_lengths(events: Iterable[Event]) -> tuple[tuple[Event, int], ...]:
    """Return events in order, each run of equal ones with its length."""
    return _joined((event, 1) for event in events)


def _joined(runs: Iterable[tuple[Event, int]]) -> tuple[tuple[Event, int], ...]:
    """Return runs in order; consecutive runs of equal events of one purpose become one."""
    by_event = groupby(runs, lambda run: (run[0], purpose_of(run[0])))
    return tuple((event, sum(n for _, n in same)) for (event, _), same in by_event)


def purpose_of(event: Event) -> str:
    """Return what was released, in words, or an empty string if that is not known."""
    return getattr(event, "purpose", "")


def counted(runs: Iterable[tuple[Event, int]]) -> Counter[Event]:
    """Return the total count of each event."""
    counts: Counter[Event] = Counter()
    for event, count in runs:
        counts[event] += count
    return counts


def single_releases(runs: Runs) -> Iterator[tuple[Event, int]]:
    """Yield runs, with each parallel event replaced by the runs of its parts."""
    for event, count in runs:
        if isinstance(event, ParallelEvent):
            for single, n in chain.from_iterable(map(single_releases, event.parts)):
                yield single, n * count
        else:
            yield event, count


def _written(runs: Runs) -> list[dict[str, Any]]:
    """Return runs as a document, which `_read` reads."""
    documents = []
    for event, count in runs:
        purpose = {"purpose": purpose_of(event)} if purpose_of(event) else {}
        documents.append({"kind": event.kind, "count": count, **purpose, **_parameters(event)})
    return documents


def _read(entries: Iterable[Mapping[str, Any]]) -> tuple[tuple[Event, int], ...]:
    runs = []
    for entry in entries:
        fields = dict(entry)
        event_type, count = _EVENT_TYPES[fields.pop("kind")], fields.pop("count")
        purpose = {"purpose": fields.pop("purpose")} if "purpose" in fields else {}
        given = {k: [*map(_read, v)] if k == "parts" else _number(k, v) for k, v in fields.items()}
        runs.append((event_type(**given, **purpose), count))
    return tuple(runs)


def _parameters(event: Event) -> dict[str, Any]:
    """Return the parameters of an event, by name: numbers, or the releases about each part."""
    if isinstance(event, ParallelEvent):
        return {"parts": [*map(_written, event.parts)]}
    numbers = vars(event).items()
    return {name: value for name, value in numbers if name != "purpose" and value is not None}


def _number(name: str, value: Any) -> float:
    """Return a parameter of an event, read from a document, as a float."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and value.bit_length() > 1023):
        raise ValueError(f"{name}={value!r} must be a number.")
    return float(value)


def rounded_up(value: float) -> str:
    """Return a cost with four digits that are never below it."""
    text = f"{value:.4g}"
    if float(text) >= value or not math.isfinite(value):
        return text
    return f"{float(text) + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"
