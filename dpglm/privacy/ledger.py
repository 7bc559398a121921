"""What was released: frozen events, and the ledger of them that is the guarantee."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from dpglm.privacy.baseline_events import ObjectivePerturbationEvent
from dpglm.privacy.composition import (
    Event,
    composed_delta,
    composed_epsilon,
    composed_mu,
    composed_pld,
    composed_rho,
    require_dp_accounting,
    rho_of,
    unprotected,
)
from dpglm.privacy.events import (
    NEIGHBORING_RELATIONS,
    SAMPLED_REPLACEMENT,
    FilterEvent,
    GaussianEvent,
    LaplaceSelectionEvent,
    PoissonSampledEvent,
    Relation,
    SelectionEvent,
)

__all__ = [
    "NEIGHBORING_RELATIONS",
    "Event",
    "GaussianEvent",
    "PrivacyLedger",
    "rounded_up",
    "run_lengths",
]

_FORMAT_VERSION = 1
_FIXED_IN_ADVANCE = "the settings of every fit were fixed before any result was seen"


_EVENT_TYPES = {
    event.kind: event
    for event in (
        GaussianEvent,
        PoissonSampledEvent,
        SelectionEvent,
        LaplaceSelectionEvent,
        ObjectivePerturbationEvent,
        FilterEvent,
    )
}


@dataclass(frozen=True, repr=False)
class PrivacyLedger:
    """The releases of one or more fits, and what they cost together.

    A value: immutable, comparable, picklable. ``a + b`` is the ledger of both.

    Parameters
    ----------
    events : tuple of (Event, int)
        Releases in order, run-length encoded.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}
        Which datasets the guarantee makes indistinguishable.
    reporting_delta : float
        The delta at which the ledger states its epsilon unless asked for another.
    assumptions : tuple of str, default=()
        Facts that the guarantee takes as public.
    seeded : bool, default=False
        Whether a seed reproduces the noise.

    Notes
    -----
    T Gaussian releases with noise multipliers z_t fixed in advance are together exactly mu-GDP
    with mu^2 = sum_t 1/z_t^2 (Dong, Roth & Su 2022, Corollary 2), and (epsilon, delta) follows
    from mu exactly (Balle & Wang 2018, Theorem 8). Selections have a Gaussian trade-off and a
    zero-concentrated cost, neither exact: both are composed, and the smaller epsilon is reported.
    With mini-batches the privacy loss distributions are composed numerically, by dp-accounting,
    rounded so that the result is an upper bound (Koskela, Jalko & Honkela 2020; Doroshenko et al.
    2022).

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

    def __post_init__(self) -> None:
        if self.neighboring_relation not in NEIGHBORING_RELATIONS:
            raise ValueError(
                f"neighboring_relation={self.neighboring_relation!r} is unknown; "
                f"choose one of {sorted(NEIGHBORING_RELATIONS)}."
            )
        if not 0 < self.reporting_delta < 1:
            raise ValueError(
                f"reporting_delta={self.reporting_delta!r} must be above 0 and below 1."
            )
        object.__setattr__(self, "events", tuple(self.events))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        for _, count in self.events:
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 2**53:
                raise ValueError(
                    f"An event's count must be a positive integer (at most 2^53), not {count!r}."
                )
        if self.neighboring_relation == "replace_one":
            for event, _ in self.events:
                if isinstance(event, PoissonSampledEvent):
                    raise ValueError(SAMPLED_REPLACEMENT)

    @classmethod
    def from_events(
        cls,
        events: Iterable[Event],
        *,
        reporting_delta: float,
        neighboring_relation: str = "zero_out",
        assumptions: tuple[str, ...] = (),
        seeded: bool = False,
    ) -> "PrivacyLedger":
        """Return the ledger of ``events``, in order."""
        return cls(run_lengths(events), neighboring_relation, reporting_delta, assumptions, seeded)

    def __add__(self, other: "PrivacyLedger") -> "PrivacyLedger":
        """Compose: the cost of releasing both results about the same records.

        Raises
        ------
        ValueError
            If the relations differ, or if both drew their noise from a seed: equal seeds give
            equal noise, which the difference of two releases cancels.
        """
        if not isinstance(other, PrivacyLedger):
            return NotImplemented
        if self.neighboring_relation != other.neighboring_relation:
            raise ValueError(
                f"Ledgers under {self.neighboring_relation!r} and {other.neighboring_relation!r} "
                "do not compose; fit both under one neighboring_relation."
            )
        if self.seeded and other.seeded:
            raise ValueError(
                "Both ledgers drew their noise from a seed (random_state), so the noise may "
                "coincide and cancel: their costs do not add up. Fit with random_state=None."
            )
        runs: list[tuple[Event, int]] = list(self.events)
        for event, count in other.events:
            if runs and runs[-1][0] == event:
                runs[-1] = (event, runs[-1][1] + count)
            else:
                runs.append((event, count))
        return PrivacyLedger(
            tuple(runs),
            self.neighboring_relation,
            min(self.reporting_delta, other.reporting_delta),
            tuple(dict.fromkeys((*self.assumptions, *other.assumptions, _FIXED_IN_ADVANCE))),
            self.seeded or other.seeded,
        )

    def __radd__(self, other: object) -> "PrivacyLedger":
        """Let ``sum(ledgers)`` start from 0."""
        return self if other == 0 else NotImplemented

    @property
    def n_releases(self) -> int:
        """Number of releases."""
        return sum(count for _, count in self.events)

    def mu(self) -> float:
        """Return the parameter of the Gaussian trade-off of the whole; exact for Gaussian releases.

        Raises
        ------
        ValueError
            If an event has no Gaussian trade-off.
        """
        return composed_mu(self.events)

    def rho(self) -> float:
        """Return the zero-concentrated privacy of the whole; ``mu**2 / 2`` of Gaussian releases.

        Raises
        ------
        ValueError
            If that of an event is unknown.
        """
        return composed_rho(self.events)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the least known epsilon at ``delta`` (default: ``reporting_delta``).

        Raises
        ------
        ImportError
            For mini-batches without dp-accounting; ``pip install "dpglm[accounting]"``.
        """
        return composed_epsilon(self.events, self.reporting_delta if delta is None else delta)

    def delta(self, epsilon: float) -> float:
        """Return the least known delta at ``epsilon``; raises like `epsilon`."""
        return composed_delta(self.events, epsilon)

    @property
    def protects(self) -> bool:
        """Whether every release had noise."""
        return not unprotected(self.events)

    @property
    def dp_accounting_relation(self) -> Any:
        """The ``dp_accounting.NeighboringRelation`` to build an accountant with."""
        require_dp_accounting()
        from dp_accounting import NeighboringRelation

        return NeighboringRelation[self._relation.dp_accounting_name]

    def to_dp_event(self) -> Any:
        """Return the ledger as a dp_accounting event, one run of releases each.

        Feed it to ``dp_accounting.pld.PLDAccountant(ledger.dp_accounting_relation)`` to check
        this package's accounting with another. A ledger with a selection or a zCDP filter is
        exported as zero-concentrated events, which only dp_accounting's RDP accountant takes.

        Raises
        ------
        ImportError
            Without dp-accounting; ``pip install "dpglm[accounting]"``.

        Examples
        --------
        >>> from dpglm.privacy.ledger import GaussianEvent, PrivacyLedger
        >>> ledger = PrivacyLedger.from_events([GaussianEvent(40.0)] * 100, reporting_delta=1e-6)
        >>> ledger.to_dp_event()
        ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=40.0),
        count=100)])
        """
        require_dp_accounting()
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
        """Return dp_accounting's privacy loss distribution of the whole, which it cannot build.

        For plans fixed in advance with many selections this is often tighter than `epsilon`.

        Parameters
        ----------
        interval : float, default=1e-4
            Spacing of the discretised losses; they are rounded up.

        Raises
        ------
        ImportError
            Without dp-accounting; ``pip install "dpglm[accounting]"``.
        ValueError
            If an event has no such distribution.
        """
        return composed_pld(self.events, interval)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary; ``from_dict`` reads it back."""
        return {
            "version": _FORMAT_VERSION,
            "neighboring_relation": self.neighboring_relation,
            "reporting_delta": self.reporting_delta,
            "assumptions": list(self.assumptions),
            "seeded": self.seeded,
            "events": [
                {"kind": event.kind, "count": count, **event.parameters()}
                for event, count in self.events
            ],
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
            if version != _FORMAT_VERSION:
                raise ValueError(
                    f"A ledger of version {version!r} cannot be read; this release of dpglm reads "
                    f"version {_FORMAT_VERSION}."
                )
            events = []
            for entry in data["events"]:
                fields = dict(entry)
                event_type = _EVENT_TYPES[fields.pop("kind")]
                count = fields.pop("count")
                events.append((event_type(**{k: _number(k, v) for k, v in fields.items()}), count))
            if not isinstance(data["seeded"], bool):
                raise TypeError(f"seeded must be true or false, not {data['seeded']!r}")
            assumptions = data["assumptions"]
            if isinstance(assumptions, str) or not all(isinstance(a, str) for a in assumptions):
                raise TypeError(f"assumptions must be a list of strings, not {assumptions!r}")
            return cls(
                tuple(events),
                data["neighboring_relation"],
                data["reporting_delta"],
                tuple(assumptions),
                data["seeded"],
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"This is not a ledger written by PrivacyLedger.to_dict: {error!r}."
            ) from error

    def __str__(self) -> str:
        if not self.protects:
            guarantee = "No privacy guarantee: the results were released without noise"
        else:
            delta = rounded_up(self.reporting_delta)
            guarantee = (
                f"(epsilon={rounded_up(self.epsilon())}, delta={delta})-differentially "
                f"private under {self.neighboring_relation} ({self._relation.meaning})"
            )
            if self.neighboring_relation != "replace_one":
                epsilon = composed_epsilon(self.events, self.reporting_delta, 2)
                if epsilon < math.inf:
                    guarantee += f", which implies epsilon={rounded_up(epsilon)} under replace_one"
            if self.seeded:
                guarantee = (
                    "No privacy guarantee against whoever knows, guesses or tries out the seed "
                    f"(random_state) of the noise; with fresh noise it would be {guarantee}"
                )
        assuming = f"; assuming that {self._assumed}" if self._assumed else ""
        return f"{guarantee}; {self._releases}{assuming}."

    def __repr__(self) -> str:
        return f"<PrivacyLedger: {self}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(event.kind)}</td><td>{count}</td><td>"
            + escape(", ".join(f"{k}={v:.6g}" for k, v in event.parameters().items()))
            + "</td></tr>"
            for event, count in self.events
        )
        return (
            f"<p><b>Privacy</b>: {escape(str(self))}</p>"
            "<details><summary>Releases</summary><table><thead><tr><th>kind</th><th>count</th>"
            f"<th>parameters</th></tr></thead><tbody>{rows}</tbody></table></details>"
        )

    @property
    def _relation(self) -> Relation:
        return NEIGHBORING_RELATIONS[self.neighboring_relation]

    @property
    def _releases(self) -> str:
        n_filters = sum(count for event, count in self.events if event.kind == FilterEvent.kind)
        parts = []
        if self.n_releases > n_filters or not n_filters:
            n_fixed = self.n_releases - n_filters
            sampled = sum(n for event, n in self.events if event.kind == PoissonSampledEvent.kind)
            batches = f", {sampled} of them from random batches" if sampled else ""
            parts.append(f"{n_fixed} release{'s' if n_fixed != 1 else ''}{batches}")
        if n_filters:
            parts.append(
                f"{n_filters} adaptive fit{'s' if n_filters != 1 else ''}, charged with the whole "
                "budget whatever was spent"
            )
        return " and ".join(parts)

    @property
    def _assumed(self) -> str:
        sound = "the operating system's entropy, the source of the noise, is sound"
        return "; ".join(self.assumptions if self.seeded else (*self.assumptions, sound))


def run_lengths(events: Iterable[Event]) -> tuple[tuple[Event, int], ...]:
    """Return events in order, each run of equal ones with its length.

    Examples
    --------
    >>> from dpglm.privacy.ledger import GaussianEvent, run_lengths
    >>> run_lengths([GaussianEvent(2.0), GaussianEvent(2.0)])
    ((GaussianEvent(noise_multiplier=2.0), 2),)
    """
    return tuple((event, sum(1 for _ in run)) for event, run in groupby(events))


def _number(name: str, value: Any) -> float:
    """Return a parameter of an event, read from a document, as a float."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and value.bit_length() > 1023):
        raise ValueError(f"{name}={value!r} must be a number.")
    return float(value)


def rounded_up(value: float) -> str:
    """Return a cost with four digits that are never below it.

    Examples
    --------
    >>> from dpglm.privacy.ledger import rounded_up
    >>> rounded_up(1.0), rounded_up(1.00041), rounded_up(2e-6)
    ('1', '1.001', '2e-06')
    """
    text = f"{value:.4g}"
    if float(text) >= value or not math.isfinite(value):
        return text
    return f"{float(text) + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"
