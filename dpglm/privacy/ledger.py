"""The ledger of one or more fits: what was released, and what that costs together."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.composition import (
    composed_delta,
    composed_epsilon,
    dp_event,
    pure_part,
    require_dp_accounting,
    unprotected,
)
from dpglm.privacy.events import (
    EVENTS,
    MOST_EQUAL,
    Event,
    FilterEvent,
    ParallelEvent,
    Runs,
    SampledGaussianEvent,
    composed_mu,
    composed_rho,
    counted,
    joined,
    run_lengths,
    single_releases,
)
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS, Relation, check_delta
from dpglm.tables import Printed

_VERSION = 1
# Otherwise settings could follow from earlier results.
FIXED_IN_ADVANCE = "number and costs of all fits were fixed before any result was seen"
_ONE_PART_EACH = "no record decides in which part of the records another one is"
ENTROPY = "the operating system's entropy, the source of the noise, is sound"


@dataclass(frozen=True, repr=False)
class PrivacyLedger(Printed):
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
    with ``mu^2 = sum_t 1/z_t^2`` (Dong, Roth & Su 2022). Epsilon follows from mu exactly (Balle &
    Wang 2018). Selections have bounds in GDP and in zCDP, and the smaller epsilon is reported.
    dp-accounting composes mini-batches, to an upper bound (Doroshenko et al. 2022).

    Examples
    --------
    >>> from dpglm import PrivacyLedger
    >>> from dpglm.privacy.events import GaussianEvent
    >>> ledger = PrivacyLedger.from_events([GaussianEvent(40.0)] * 100, reporting_delta=1e-6)
    >>> ledger.mu()
    0.25
    >>> round(ledger.epsilon(1e-6), 4)
    1.0607
    >>> round((ledger + ledger).epsilon(1e-6), 4), ledger.group(4).mu()
    (1.5436, 1.0)
    >>> PrivacyLedger.parallel(ledger, ledger).mu()
    0.25
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
        check_choice("neighboring_relation", self.neighboring_relation, NEIGHBORING_RELATIONS)
        # In a shorter type the square of a number of records could overflow.
        n_changed = check_whole("n_changed", self.n_changed, at_most=MOST_EQUAL)
        object.__setattr__(self, "n_changed", n_changed)
        delta = check_number("reporting_delta", self.reporting_delta, above=0, below=1)
        object.__setattr__(self, "reporting_delta", delta)
        runs = ((event, check_whole("count", n, at_most=MOST_EQUAL)) for event, n in self.events)
        object.__setattr__(self, "events", tuple(runs))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        for event, _ in self.events:
            if self.neighboring_relation not in event.relations:
                raise ValueError(
                    f"{event!r} is accounted for under {' and '.join(event.relations)}, not under "
                    f"{self.neighboring_relation!r}."
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

    def __getitem__(self, name: str) -> Any:
        raise TypeError(f"A ledger is no dict: take privacy_.{name}(), or privacy_.to_dict().")

    def __add__(self, other: "PrivacyLedger") -> "PrivacyLedger":
        """Compose: the cost of releasing both results about the same records.

        Raises a ValueError if the relations, the privacy units or the numbers of changed records
        differ. Also if both drew their noise from a seed, which the difference may cancel.
        """
        if not isinstance(other, PrivacyLedger):
            return NotImplemented
        return self._with(other, joined((*self.events, *other.events)), FIXED_IN_ADVANCE)

    def group(self, k: int) -> "PrivacyLedger":
        """Return the ledger of the same releases for data sets that differ in k records.

        This is the guarantee for a person with k rows after a fit without ``groups``: mu is k times
        as large and rho k^2 times. For mini-batches and tilted objectives epsilon is k times that
        of one record, at a delta ``(exp(k epsilon) - 1) / (exp(epsilon) - 1)`` times as large.

        Parameters
        ----------
        k : int
        """
        return replace(self, n_changed=self.n_changed * check_whole("k", k))

    def __deepcopy__(self, memo: Any) -> "PrivacyLedger":
        """Return the ledger itself, which is immutable: that of a copied model counts once."""
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

        Notes
        -----
        No record may decide in which part another is. Parts by position satisfy this rule where the
        number of records is public, and parts by a hash of an identifier under every relation. Then
        the profile is the largest of the parts' profiles (McSherry 2009, Theorem 4).
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
        """Return the mu of the whole's Gaussian trade-off; raise a ValueError if it has none."""
        return self.n_changed * composed_mu(self.events)

    def rho(self) -> float:
        """Return the whole's zero-concentrated privacy; raise a ValueError if it is unknown."""
        return self.n_changed**2 * composed_rho(self.events)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the least known epsilon at ``delta`` (default: ``reporting_delta``).

        Mini-batches need dp-accounting: ``pip install "dpglm[accounting]"``.
        """
        delta = self.reporting_delta if delta is None else check_delta(delta)
        return composed_epsilon(self.events, delta, self.n_changed)

    def delta(self, epsilon: float) -> float:
        """Return the least known delta at ``epsilon``; raises like `epsilon`."""
        epsilon = check_number("epsilon", epsilon, at_least=0)
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
        """
        require_dp_accounting()
        if self.n_changed > 1:
            raise ValueError(
                f"dp-accounting has no events for {self._changed}: export the ledger of one record."
            )
        from dp_accounting import ComposedDpEvent, SelfComposedDpEvent, ZCDpEvent

        exported = [(dp_event(event, self._relation), count) for event, count in self.events]
        if any(isinstance(event, ZCDpEvent) for event, _ in exported):
            # Only the RDP accountant takes these, and it does not double a Gaussian's sensitivity.
            for k, (event, count) in enumerate(self.events):
                if not isinstance(exported[k][0], ZCDpEvent):
                    exported[k] = ZCDpEvent(composed_rho([(event, 1)])), count
        return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in exported])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary; ``from_dict`` reads it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"assumptions": list(self.assumptions), "events": _written(self.events)}
        return {"version": _VERSION, **values}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrivacyLedger":
        """Return the ledger that ``to_dict`` wrote; raise a ValueError for anything else."""
        try:
            if data["version"] != _VERSION:
                raise ValueError(
                    f"A ledger of version {data['version']!r} cannot be read; this release "
                    f"of dpglm reads version {_VERSION}."
                )
            values = {field.name: data[field.name] for field in fields(cls)}
            if not isinstance(values["seeded"], bool):
                raise TypeError(f"seeded must be true or false, not {values['seeded']!r}")
            assumptions = values["assumptions"]
            if isinstance(assumptions, str) or not all(isinstance(a, str) for a in assumptions):
                raise TypeError(f"assumptions must be a list of strings, not {assumptions!r}")
            return cls(**{**values, "events": _read(values["events"])})
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"This is not a ledger written by PrivacyLedger.to_dict: {error!r}."
            ) from error

    @property
    def statement(self) -> str:
        """The guarantee with all that it rests on, in a sentence."""
        asserted = f"; you assert that {'; '.join(self._asserted)}" if self._asserted else ""
        return f"{self._guarantee}; {self._releases}{asserted}."

    @property
    def _asserted(self) -> tuple[str, ...]:
        return self.assumptions if self.seeded else (*self.assumptions, ENTROPY)

    @property
    def _guarantee(self) -> str:
        pure, others = pure_part(self.events)
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
        return guarantee

    def __repr__(self) -> str:
        return f"<PrivacyLedger: {self.statement}>"

    def _blocks(self) -> Iterable[Any]:
        asserted = ("You assert that", self._asserted) if self._asserted else ()
        yield "", f"{self._guarantee}.", f"{self._releases}.", *asserted

    def rows(self) -> list[tuple[str, ...]]:
        """Return a head, and a row for each kind of release: what for, and how often."""
        rows = [("released", "kind", "count", "parameters")]
        runs = (((event, event.purpose), n) for event, n in single_releases(self.events))
        for (event, purpose), count in counted(runs).items():
            numbers = (
                f"{name}={value if isinstance(value, str) else f'{value:.6g}'}"
                for name, value in _parameters(event).items()
            )
            rows.append((purpose, event.kind, str(count), ", ".join(numbers)))
        return rows

    def _with(self, other: "PrivacyLedger", events: Runs, assumption: str) -> "PrivacyLedger":
        """Return a ledger of these events under what both assume."""
        if self.neighboring_relation != other.neighboring_relation:
            raise ValueError(
                f"Ledgers under {self.neighboring_relation!r} and {other.neighboring_relation!r} "
                "do not compose; fit both under one neighboring_relation."
            )
        if (self.privacy_unit, self.n_changed) != (other.privacy_unit, other.n_changed):
            raise ValueError(
                f"Ledgers for {self._changed} and for {other._changed} do not compose. State both "
                "guarantees side by side: group(k) of a ledger of rows is that of k rows at once."
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
        n_filters, sampled = map(self._count_of, (FilterEvent, SampledGaussianEvent))
        n_fixed, parts = self.n_releases - n_filters, []
        if n_fixed or not n_filters:
            batches = f", {sampled} of them from random batches" if sampled else ""
            parts.append(f"{n_fixed} release{'s' if n_fixed != 1 else ''}{batches}")
        if n_filters:
            many = "s, each" if n_filters != 1 else ","
            parts.append(f"{n_filters} budget{many} charged in full whatever was spent of it")
        apart = any(isinstance(event, ParallelEvent) for event, _ in self.events)
        return " and ".join(parts) + (" (about parts of the records that share none)" * apart)

    def _count_of(self, event_type: type) -> int:
        return sum(n for event, n in single_releases(self.events) if isinstance(event, event_type))


def _written(runs: Runs) -> list[dict[str, Any]]:
    """Return runs as a document, which `_read` reads."""
    documents = []
    for event, count in runs:
        purpose = {"purpose": event.purpose} if event.purpose else {}
        documents.append({"kind": event.kind, "count": count, **purpose, **_parameters(event)})
    return documents


def _read(entries: Iterable[Mapping[str, Any]]) -> tuple[tuple[Event, int], ...]:
    runs = []
    for entry in entries:
        fields = dict(entry)
        event_type, count = EVENTS[fields.pop("kind")], fields.pop("count")
        if not isinstance(fields.get("purpose", ""), str):
            raise TypeError(f"purpose must be a string, not {fields['purpose']!r}")
        if "parts" in fields:
            fields["parts"] = [*map(_read, fields["parts"])]
        runs.append((event_type(**fields), count))
    return tuple(runs)


def _parameters(event: Event) -> dict[str, Any]:
    """Return the parameters of an event, by name: numbers, or the releases about each part."""
    if isinstance(event, ParallelEvent):
        return {"parts": [*map(_written, event.parts)]}
    numbers = vars(event).items()
    return {name: value for name, value in numbers if name != "purpose" and value is not None}


def rounded_up(value: float) -> str:
    """Return a cost with four digits that are never below it."""
    text = f"{value:.4g}"
    if float(text) >= value or not math.isfinite(value):
        return text
    return f"{float(text) + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"


# Ponomareva et al. (2023, "How to DP-fy ML") call 10 the end of reasonable guarantees. At 20 and
# delta 1e-6 an attacker is right in 95 of 100 cases.
MOST_EPSILON = 20.0


def warn_of_guarantee(seeded: bool, budget: Any, n_samples: float, stacklevel: int) -> None:
    """Warn if the guarantee is weak: noise with a seed, a large epsilon or delta."""
    weak = (
        "seeded_noise makes the noise reproducible: anyone with the seed can remove the noise. Use "
        "it for tests and public data only."
    )
    if seeded:
        warnings.warn(weak, PrivacyWarning, stacklevel=stacklevel)
    if MOST_EPSILON < budget.epsilon < math.inf:
        warnings.warn(
            f"epsilon={budget.epsilon:g} says little: above {MOST_EPSILON:g} whoever knows all "
            "other records can nearly always tell whether one was used. Choose 10 or less.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )
    if budget.delta > 1 / n_samples and budget.epsilon < math.inf:
        warnings.warn(
            f"delta={budget.delta:g} exceeds 1/n = {1 / n_samples:.3g}: releasing a record "
            "outright at random would satisfy it. Lower delta.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )
