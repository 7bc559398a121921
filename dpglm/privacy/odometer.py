"""A running total of what several fits on the same data have cost, kept in a file."""

import copy
import errno
import json
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from dpglm.exceptions import BudgetExceededError, PrivacyWarning
from dpglm.privacy.budget import is_number
from dpglm.privacy.events import FilterEvent, PureEvent
from dpglm.privacy.gaussian import GaussianEvent, gdp_epsilon, gdp_mu
from dpglm.privacy.ledger import (
    PrivacyLedger,
    Runs,
    composed_epsilon,
    composed_mu,
    rounded_up,
    single_releases,
)

_VARIABLE = "DPGLM_ODOMETER"
_START = b'{"format": "dpglm odometer", "version": '
_LOCKED_BYTE = 2**40

# Of the environment variable; free again in a forked child, whoever held it.
_lock = threading.RLock()
# The blocks of this context, the innermost last; a forked child has none of its own.
_entered: ContextVar[tuple["_Entered", ...]] = ContextVar("entered", default=())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
    os.register_at_fork(after_in_child=lambda: _entered.set(()))


@dataclass(frozen=True)
class OdometerEntry:
    """What an odometer's file holds of one fit; all of it is public.

    Parameters
    ----------
    ledger : PrivacyLedger
        What was charged: the whole plan.
    time : str, default=None
        When, in UTC. ``None`` in a file of an earlier release, as all below.
    label : str, default=None
        As the block said.
    part : str, default=None
        Which part of the records it was about; ``None`` is all of them.
    estimator : str, default=None
        The name of its class.
    parameters : dict
        Its parameters; of an estimator, and of any object in a stranger's model, the class alone.
    """

    ledger: PrivacyLedger
    time: str | None = None
    label: str | None = None
    part: str | None = None
    estimator: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = {self.time, self.label, self.part, self.estimator} - {None}
        if not all(isinstance(text, str) for text in texts) or not isinstance(
            self.parameters, dict
        ):
            raise TypeError(f"{self!r} holds what is no text")


class PrivacyOdometer:
    """Record what every fit costs, and refuse to go beyond a limit.

    In a ``with`` block every fit of this package, in this process and in those it starts (a grid
    search with ``n_jobs=2``, say), first writes the cost of its whole plan to the file. What is
    recorded is never less than what was released, wherever a process dies.

    Parameters
    ----------
    path : path-like
        Kept from one script to the next: the total is that of all of them. Use one file for each
        data set, and always the same one.
    epsilon : float, default=None
        Limit of the total, above 0. ``None`` is that of the file, and records only if it has none.
    delta : float, default=None
        At which the total is compared with the limit. ``None`` is that of the file, or 1e-6.
    adaptive : bool, default=None
        Whether the settings of a fit may follow from the results of earlier ones. ``None`` is what
        the file says, or ``True``.
    label : str, default=None
        Kept with each fit of a block.

    Raises
    ------
    ValueError
        If a parameter is out of range or not what the file has, or more than the limit was used
        before the file had one, or the file is not an odometer's.

    Notes
    -----
    The first limit that a file is opened with stays, with its delta and its rule: one that was
    begun without takes it later, if its fits are within it. By default, with ``adaptive=True``, it
    is a filter: a fit is admitted while the sum of ``mu**2`` of all fits stays within that of the
    limit. All fits together then have the guarantee of the LIMIT, however the settings of each, or
    whether there is another, followed from the results of earlier ones (Smith & Thakurta 2022).
    What happens to be used is below it, and no guarantee. Mini-batches count as full batches there,
    and a fit without a Gaussian trade-off (objective perturbation, a zCDP filter) is refused. With
    ``adaptive=False`` the least known epsilon of the sum of all ledgers is compared with the limit,
    which holds if all settings were fixed before any result was seen.

    The file holds one JSON object per line and is only ever appended to, under a lock, synced to
    the disk before the fit goes on. A last line that is not finished belongs to a fit that released
    nothing; the next entry replaces it. If the file is deleted, replaced or emptied while a block
    is open, the next fit of the block raises an OSError.

    A fit within several blocks counts once in each of their files; fits in other threads count too.
    Blocks reach other processes by the environment variable ``DPGLM_ODOMETER``: those that joblib
    keeps for reuse are stopped when a block begins or ends, and those that were started before the
    block by other means do not know of it. The name of a file in that variable, as in
    ``DPGLM_ODOMETER=study.jsonl python study.py``, is a block around everything; it is relative to
    the working directory of the first fit.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dpglm import DPLogisticRegression, PrivacyOdometer
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(500, random_state=0)
    >>> path = Path(tempfile.mkdtemp()) / "study.jsonl"
    >>> with PrivacyOdometer(path, epsilon=1.2) as odometer:
    ...     model = DPLogisticRegression(epsilon=1.0, classes=[0, 1], max_iter=5).fit(X, y)
    ...     try:
    ...         model = model.fit(X, y)
    ...     except ValueError as error:
    ...         print(error)
    This would bring the total to epsilon=1.455...
    >>> f"{odometer.remaining():.3f}"
    '0.613'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        adaptive: bool | None = None,
        label: str | None = None,
    ) -> None:
        given = {"epsilon": epsilon, "delta": delta, "adaptive": adaptive}
        given = {name: value for name, value in given.items() if value is not None}
        terms = _Terms(**given)
        self._given = {name: getattr(terms, name) for name in given}
        self.path = Path(path).resolve()
        self.label = None if label is None else str(label)
        self._part: str | None = None
        self._blocks: list[_Entered] = []
        if self._read()[1] and epsilon is not None:
            with _locked(self.path) as file:
                self._begin(file)

    def _begin(self, file: Any) -> int:
        """Give a file what it begins with, and its limit, if it has none; return where it ends."""
        fixed, entries, end = _content(file, self.path)
        limit = _new_limit(fixed, _agreed(fixed, self._given, self.path, entries))
        return _append(file, b"", end, self.path, limit) if limit or not end else end

    def _read(self) -> "tuple[_Terms, list[OdometerEntry]]":
        """Return the terms and the entries of the file as it is now."""
        try:
            with _locked(self.path, writing=False) as file:
                fixed, entries, _ = _content(file, self.path)
        except FileNotFoundError:
            fixed, entries = {}, []
        return _agreed(fixed, self._given, self.path, entries), entries

    @property
    def epsilon(self) -> float | None:
        """The limit of the total, None for none."""
        return self._read()[0].epsilon

    @property
    def delta(self) -> float:
        """At which the total is compared with the limit."""
        return self._read()[0].delta

    @property
    def adaptive(self) -> bool:
        """Whether settings may follow from earlier results."""
        return self._read()[0].adaptive

    def entries(self) -> list[OdometerEntry]:
        """Return what was recorded, one entry for each fit, in order."""
        return self._read()[1]

    def ledgers(self) -> list[PrivacyLedger]:
        """Return the recorded costs, one ledger for each fit, in order."""
        return [entry.ledger for entry in self.entries()]

    @property
    def total(self) -> PrivacyLedger | None:
        """The ledger of all fits so far, those about parts in parallel; None before the first."""
        by_part: dict[str | None, list[PrivacyLedger]] = {None: []}
        for entry in self.entries():
            by_part.setdefault(entry.part, []).append(entry.ledger)
        whole, *parts = by_part.values()
        if parts:
            whole.append(PrivacyLedger.parallel(*map(sum, parts)))
        return sum(whole, 0) or None

    def used(self) -> float:
        """Return the epsilon at delta that is used of the limit; of a filter it is no guarantee."""
        terms, entries = self._read()
        return terms.used(entries)

    def course(self) -> list[float]:
        """Return what was used after each fit; of ``n`` fits, shape (n,)."""
        terms, entries = self._read()
        return [terms.used(entries[: n + 1]) for n in range(len(entries))]

    def remaining(self, delta: float | None = None) -> float:
        """Return the largest epsilon that one more full-batch fit may have, rounded down.

        One with Gaussian noise: choices (`PrivGene`) and pure scores have a larger mu for their
        epsilon. Within a block of a part, ask the odometer of the part: this is about all records,
        and no larger.

        Parameters
        ----------
        delta : float, default=None
            Of that fit; by default the delta of the limit.
        """
        terms, entries = self._read()
        if terms.epsilon is None or math.isinf(terms.epsilon):
            return math.inf
        low, high = 0.0, gdp_mu(terms.epsilon, terms.delta)
        while high - low > 1e-7 * high:
            mu = (low + high) / 2
            one = ((GaussianEvent(1 / mu), 1),)
            low, high = (mu, high) if terms.admit(entries, one, self._part) else (low, mu)
        return gdp_epsilon(low, terms.delta if delta is None else delta)

    def part(self, name: str) -> "PrivacyOdometer":
        """Return the odometer of a part of the records that shares none with any other part.

        Fits in its ``with`` blocks are about records of that part alone, and the total is that of
        the whole and of the part which cost most (parallel composition).

        Parameters
        ----------
        name : str

        Returns
        -------
        PrivacyOdometer
            Of the same file, with the same limit.

        Notes
        -----
        Which part a record is in must not depend on other records, and its neighbour must be in the
        same: by a hash of its own id, or by position where the number of records is public. Fits in
        other threads, and in processes that a block of a part starts, are charged to the whole,
        which is never too little; those in tasks of asyncio, and in its ``to_thread``, only once
        the block has ended.
        """
        odometer = copy.copy(self)
        odometer._part, odometer._blocks = str(name), []
        return odometer

    def charge(self, ledger: PrivacyLedger) -> None:
        """Record a cost, before anything is released for it.

        Parameters
        ----------
        ledger : PrivacyLedger
            Of the whole plan.

        Raises
        ------
        BudgetExceededError
            If the total would exceed the limit; nothing is recorded then.
        ValueError
            If the ledger cannot be added to those in the file, or the file is not an odometer's.
        OSError
            If it cannot be written, or is not that of a block that this is in.
        """
        block = _Block(str(self.path), self._given, self.label)
        around = [each for each in _active() if each.path == block.path]
        _charge([*around, block], OdometerEntry(ledger, _now(), self.label, self._part))

    def __enter__(self) -> "PrivacyOdometer":
        _make_folder(self.path.parent)
        with _locked(self.path) as file:
            end = self._begin(file)
            # Kept open, so that no other file is given the number of this one.
            handle = os.dup(file.fileno())
        block = _Block(str(self.path), self._given, self.label, _identity(os.fstat(handle)), end)
        begun = _Entered(block, handle, self._part)
        self._blocks.append(begun)
        try:
            _entered.set((*_entered.get(), begun))
            with _lock:
                _activate([*_active(), block])
            _stop_reusable_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        # That of this context, where the same part is entered in several threads.
        ended = ([each for each in self._blocks if each in _entered.get()] or self._blocks)[-1]
        self._blocks.remove(ended)
        block, ended.part = ended.block, None
        os.close(ended.handle)
        _entered.set(tuple(each for each in _entered.get() if each is not ended))
        # Blocks of other threads may have begun since, and go on.
        with _lock:
            blocks = _active()
            if block in blocks:
                blocks.remove(block)
            _activate(blocks)
        _stop_reusable_workers()

    def __str__(self) -> str:
        terms, entries = self._read()
        if not entries:
            return f"Nothing is recorded in {self.path}."
        used = rounded_up(terms.used(entries))
        at = f"at delta={terms.delta:g} under {entries[0].ledger.neighboring_relation}"
        fits = f"{len(entries)} fit{'s' if len(entries) > 1 else ''} recorded in {self.path}"
        if terms.is_filter:
            return (
                f"{fits}: budget used epsilon={used} of {terms.epsilon:g}; the guarantee is the "
                f"limit, epsilon={terms.epsilon:g} {at}, whatever followed from earlier results."
            )
        limit = "" if terms.epsilon is None else f" of {terms.epsilon:g}"
        return f"{fits}: epsilon={used}{limit} {at}, if all settings were fixed in advance."

    def __repr__(self) -> str:
        return f"<PrivacyOdometer: {self}>"


def charge_odometers(ledger: PrivacyLedger, estimator: Any = None, rows: Any = None) -> None:
    """Charge a fit to the odometers of all ``with`` blocks that it runs in, before it releases.

    One that does not fit into a block's limit, or whose file cannot be written, raises. Blocks
    around that one keep the entry: more is recorded than was released, never less. Where there is
    no block, a second fit to the same rows warns.
    """
    whole = _whole.get()
    if whole is not None:
        whole.refuse_more(ledger)
        if whole.is_charged:
            return
        ledger, estimator = whole.ledger, whole.estimator
    blocks = _active()
    if not blocks:
        _warn_of_second_fit(ledger, rows)
    parameters = public_parameters(estimator)
    name = None if estimator is None else type(estimator).__name__
    for path in dict.fromkeys(block.path for block in blocks):
        own = [block for block in blocks if block.path == path]
        # The part that fits of this context are charged to in the file; None is the whole.
        part = next((e.part for e in _entered.get()[::-1] if e.block.path == path), None)
        _charge(own, OdometerEntry(ledger, _now(), own[-1].label, part, name, parameters))
    if whole is not None:
        whole.is_charged = True


def public_parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator, if it has any, as JSON; of some the class alone.

    Those of this package are public, by what its ledgers assume, but for estimators and others'
    objects within them; a stranger's model may hold its training set.
    """
    given = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    scalar = str | int | float | bool | None

    def is_plain(value: Any) -> bool:
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(value, list | tuple | dict):
            return all(map(is_plain, value.values() if isinstance(value, dict) else value))
        ours = is_ours(value) and not hasattr(value, "fit")
        return ours or isinstance(value, scalar | np.generic)

    def shown(value: Any) -> Any:
        if isinstance(value, scalar):
            return value
        public = is_plain(value) and (is_ours(estimator) or is_ours(value))
        return repr(value) if public else type(value).__name__

    return {name: shown(value) for name, value in given.items()}


def is_ours(value: Any) -> bool:
    """Return whether this package made the class of a value."""
    return type(value).__module__.partition(".")[0] == "dpglm"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Whole:
    """Fits that are charged together, with this ledger, when the first is about to release.

    The ledger has a `FilterEvent` for each, in order: the mu that it may cost. Odometers record it
    beside the parameters of the estimator, the search: those of the blocks in which it began.
    """

    def __init__(self, ledger: PrivacyLedger, estimator: Any) -> None:
        self.ledger, self.estimator, self.is_charged = ledger, estimator, False
        self._blocks = _active()
        fits = (run for run in single_releases(ledger.events) if isinstance(run[0], FilterEvent))
        self._left = chain.from_iterable(repeat(event.mu, count) for event, count in fits)

    def refuse_more(self, ledger: PrivacyLedger) -> None:
        """Refuse a fit that is not of the whole, or costs more than what the whole has for it."""
        own, planned_for = (
            f"{each.neighboring_relation} for each {each.unit}" for each in (ledger, self.ledger)
        )
        if _active() != self._blocks:
            refused = "is within other blocks of a PrivacyOdometer than the search began in"
        elif own != planned_for:
            refused = f"under {own} was planned under {planned_for}"
        elif ledger.seeded != self.ledger.seeded:
            refused = f"was planned with{'' if self.ledger.seeded else 'out'} seeded_noise"
        elif not (mu := ledger.mu()) <= (planned := next(self._left, 0.0)):
            refused = f"of mu={mu:.6g} was planned with mu={planned:.6g} at most"
        else:
            return
        raise BudgetExceededError(f"A fit {refused}; it was refused before it released anything.")


_whole: ContextVar[Whole | None] = ContextVar("whole", default=None)


@contextmanager
def charged_as_one(ledger: PrivacyLedger, estimator: Any = None) -> Iterator[Whole]:
    """Charge the fits of this block together: see `Whole`."""
    whole = Whole(ledger, estimator)
    token = _whole.set(whole)
    try:
        yield whole
    finally:
        # For whoever still has the context in which the fits were charged: nothing is left.
        whole._left = iter(())
        _whole.reset(token)


# Rows that were fitted outside of all blocks, by where they are: the object that owns the memory,
# and the ledger of the first fit, None once there was a warning. An entry goes with its object.
_fitted: dict[Any, list[Any]] = {}


def _warn_of_second_fit(ledger: PrivacyLedger, rows: Any) -> None:
    """Warn once if the same rows, by their place in memory and not their values, are fitted again.

    Seeded noise has a warning of its own, and what has no noise has no guarantee to lose.
    """
    if ledger.seeded:
        return
    owner, place = rows, None
    if isinstance(rows, np.ndarray):
        place = rows.__array_interface__["data"][0], rows.shape, rows.strides
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
    key = id(owner), place
    try:
        gone = weakref.ref(owner, lambda _: _fitted.pop(key, None))
    except TypeError:  # a list, say, of which nobody can tell when it is gone
        return
    if key not in _fitted:
        _fitted[key] = [gone, ledger]
        return
    first = _fitted[key][1]
    if first is None or not ledger.protects:
        return
    _fitted[key][1] = None if first.protects else ledger
    if first.protects:
        warnings.warn(
            "These records were fitted before in this process, and the costs of all fits add up: "
            "privacy_ states this one alone. Fit inside a PrivacyOdometer, which keeps the total.",
            PrivacyWarning,
            stacklevel=7,
        )


@dataclass(frozen=True)
class _Terms:
    """The limit of a total, and the rule by which it is compared."""

    epsilon: float | None = None
    delta: float = 1e-6
    adaptive: bool = True

    def __post_init__(self) -> None:
        epsilon, delta = self.epsilon, self.delta
        if epsilon is not None and not (is_number(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon={epsilon!r} must be a number above 0, or None for no limit.")
        if not (is_number(delta) and 0 < delta < 1):
            raise ValueError(f"delta={delta!r} must be a number above 0 and below 1.")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r} must be True, False or None.")
        object.__setattr__(self, "epsilon", None if epsilon is None else float(epsilon))
        object.__setattr__(self, "delta", float(delta))

    @property
    def is_filter(self) -> bool:
        return self.adaptive and self.epsilon is not None

    def used(self, entries: list[OdometerEntry], more: Runs = (), part: str | None = None) -> float:
        """Return the epsilon that the limit is compared with, of whichever part (or this) most."""
        known = dict.fromkeys(entry.part for entry in entries if entry.part is not None)
        parts = [part] if part is not None else [*known] or [None]
        about = [[entry.ledger for entry in entries if entry.part in (None, p)] for p in parts]
        return max(self._used(ledgers, more) for ledgers in about)

    def _used(self, ledgers: list[PrivacyLedger], more: Runs) -> float:
        """Return that of all releases about one record.

        Of a filter it is that of the summed ``mu**2``, which may not be exchanged for a smaller
        bound of what happened: it is at most the limit where ``mu`` is at most that of the limit.
        """
        events = (*(run for ledger in ledgers for run in ledger.events), *more)
        if not events:
            return 0.0
        if not self.is_filter:
            return composed_epsilon(events, self.delta)
        try:
            mu = composed_mu([(getattr(event, "full_batch", event), n) for event, n in events])
        except ValueError as error:
            raise ValueError(
                f"{error} An odometer of settings that may follow from earlier results cannot "
                "count that; if all settings are fixed in advance, begin a file with "
                "adaptive=False."
            ) from error
        return gdp_epsilon(mu, self.delta)

    def admit(self, entries: list[OdometerEntry], more: Runs = (), part: str | None = None) -> bool:
        """Return whether releases, as `used` takes them, are within the limit."""
        assert self.epsilon is not None
        # Numerical compositions are rounded up, a filter leaves no room for that.
        limit = self.epsilon * (1 if self.is_filter else 1 + 1e-9)
        return self.used(entries, more, part) <= limit


def _agreed(
    fixed: dict[str, Any], given: dict[str, Any], path: Path, entries: list[OdometerEntry]
) -> _Terms:
    """Return the terms of a file, which nobody who opens it may change."""
    for name in fixed.keys() & given.keys():
        if given[name] != fixed[name]:
            raise ValueError(
                f"{name}={given[name]!r}, but {path} was begun with {name}={fixed[name]!r}: what a "
                f"study may spend is fixed before its first fit. Leave out {name}."
            )
    terms = _Terms(**{**given, **fixed})
    if not fixed and terms.epsilon is not None and not terms.admit(entries):
        raise ValueError(
            f"epsilon={terms.epsilon!r}, but {path} was begun without a limit, and its fits have "
            f"used {rounded_up(terms.used(entries))} at delta={terms.delta:g}. Give a larger "
            "limit, or none."
        )
    return terms


def _new_limit(fixed: dict[str, Any], terms: _Terms) -> dict[str, Any]:
    """Return what a file is to fix of these terms, if it has no limit and they have."""
    return {} if fixed or terms.epsilon is None else {"fixed": asdict(terms)}


@dataclass(frozen=True)
class _Block:
    """What a ``with`` block has fixed, and knows of its file: its identity and least length.

    That grows with what is charged in this process; blocks are the same at any.
    """

    path: str
    given: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    file: tuple[int, int] | None = None
    length: int = field(default=0, compare=False)

    def refuse_another_file(self, file: Any, end: int) -> None:
        found = _identity(os.fstat(file.fileno()))
        if self.file is not None and (found != self.file or end < self.length):
            raise OSError(
                f"{self.path} was deleted, replaced or emptied since its block began, and what it "
                "recorded is missing. Nothing was released; put it back and begin a new block."
            )

    def refuse_beyond_limit(
        self, fixed: dict[str, Any], earlier: list[OdometerEntry], entry: OdometerEntry
    ) -> None:
        terms = _agreed(fixed, self.given, Path(self.path), earlier)
        more = entry.ledger.events
        if terms.epsilon is None or terms.admit(earlier, more, entry.part):
            return
        epsilon, used = (terms.used(earlier, m, entry.part) for m in (more, ()))
        about = "" if entry.part is None else f" about part {entry.part!r}"
        pure = ""
        if terms.is_filter and {event.kind for event, _ in more} == {PureEvent.kind}:
            mu, spent = (gdp_mu(e, terms.delta) for e in (terms.epsilon, used))
            fits = PureEvent.epsilon_from_mu(math.sqrt(max(mu**2 - spent**2, 0.0)))
            pure = " What has a delta of 0 counts as the dearest Gaussian release that it can be: "
            pure += f"one of epsilon={math.floor(1e4 * fits) / 1e4:g} fits."
        raise BudgetExceededError(
            f"This would bring the total{about} to epsilon={rounded_up(epsilon)} at "
            f"delta={terms.delta:g}, beyond the limit of {terms.epsilon:g}: {rounded_up(used)} "
            f"is used, as {self.path} records. Nothing was released; lower epsilon or stop.{pure}"
        )


@dataclass(eq=False)
class _Entered:
    """A block as the context knows in which it began, and those that were copied from it.

    Its part is None, the whole, once it has ended, for contexts that go on.
    """

    block: _Block
    handle: int
    part: str | None


def _charge(blocks: list[_Block], entry: OdometerEntry) -> None:
    """Append an entry to the file of these blocks, within the limits of all of them."""
    if entry.ledger.n_changed > 1:
        raise ValueError(
            f"This ledger is for data sets that differ in {entry.ledger.n_changed} records; an "
            "odometer adds up costs of one record. Charge the ledger that group was called on."
        )
    path = Path(blocks[0].path)
    _make_folder(path.parent)
    with _locked(path) as file:
        fixed, earlier, end = _content(file, path)
        # Of one relation, and of one seed at most, in whatever parts.
        sum([*(each.ledger for each in earlier), entry.ledger], 0)
        for block in blocks:
            block.refuse_another_file(file, end)
            block.refuse_beyond_limit(fixed, earlier, entry)
        line = json.dumps({**vars(entry), "ledger": entry.ledger.to_dict()}).encode() + b"\n"
        limit = _new_limit(fixed, _agreed(fixed, blocks[-1].given, path, earlier))
        end = _append(file, line, end, path, limit)
    with _lock:
        known = _active()
        longer = [block for block in known if block.path == str(path) and block.file is not None]
        if longer:
            _activate([replace(b, length=max(b.length, end)) if b in longer else b for b in known])


def _append(file: Any, line: bytes, end: int, path: Path, limit: dict[str, Any]) -> int:
    """Write a line after the last finished one, sync it, and return where it ends.

    Before it goes a limit that the file has from now on: of a file that begins in its first line.
    """
    if not end:
        # Before the header: a file that has one is known to survive a power failure.
        _sync_folder(path.parent)
        line = json.dumps({**json.loads(_START + b"2}"), **limit}).encode() + b"\n" + line
    elif limit:
        line = json.dumps(limit).encode() + b"\n" + line
    # What follows the last finished line was never acted on.
    file.truncate(end)
    file.seek(end)
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())
    return end + len(line)


def _content(file: Any, path: Path) -> tuple[dict[str, Any], list[OdometerEntry], int]:
    """Return what a file fixes of its terms, its entries, and where the last finished line ends."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    try:
        if not (content.startswith((_START + b"1", _START + b"2")) or _START.startswith(content)):
            raise ValueError(f"it begins with {content[:60]!r}")
        header, *lines = map(json.loads, content[:end].splitlines() or [b"{}"])
        limits = [line for line in lines if line.keys() == {"fixed"}]
        fixed = next((line["fixed"] for line in (header, *limits) if "fixed" in line), {})
        _Terms(**fixed)
        return fixed, [_entry(line) for line in lines if line not in limits], end
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is not the file of a PrivacyOdometer: {error}.") from error


def _entry(line: dict[str, Any]) -> OdometerEntry:
    """Return the entry of a line; those of version 1 are ledgers."""
    if "ledger" not in line:
        return OdometerEntry(PrivacyLedger.from_dict(line))
    return OdometerEntry(**{**line, "ledger": PrivacyLedger.from_dict(line["ledger"])})


def _active() -> list[_Block]:
    with _lock:
        text = os.environ.get(_VARIABLE) or "[]"
        if not text.startswith("["):
            # The same file from now on, whatever the working directory is.
            text = os.environ[_VARIABLE] = str(Path(text).resolve())
            return [_Block(text)]
    try:
        entries = json.loads(text)
        if not all(os.path.isabs(entry["path"]) for entry in entries):
            raise ValueError("a path is relative")
        return [
            _Block(**{**entry, "file": entry["file"] and tuple(entry["file"])}) for entry in entries
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{_VARIABLE}={text[:60]!r} is neither a file nor what a PrivacyOdometer wrote; set it "
            "to the path of a file, or unset it."
        ) from error


def _activate(blocks: list[_Block]) -> None:
    os.environ[_VARIABLE] = json.dumps([asdict(block) for block in blocks])
    if not blocks:
        del os.environ[_VARIABLE]


def _stop_reusable_workers() -> None:
    """Stop joblib's processes: they keep the environment that they were started with."""
    from joblib.externals.loky import reusable_executor

    if getattr(reusable_executor, "_executor", None) is not None:
        reusable_executor.get_reusable_executor().shutdown(wait=True)


@contextmanager
def _locked(path: Path, writing: bool = True) -> Iterator[Any]:
    """Open a file, unbuffered, with a lock that ends with the process; to write, make it first."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | (os.O_CREAT if writing else 0), 0o600)

    while True:
        with open(path, "r+b" if writing else "rb", buffering=0, opener=opener) as file:
            unlock = _lock_file(file, writing)
            try:
                # Another file may have taken its place while this one was waited for.
                if path.exists() and _identity(path.stat()) == _identity(os.fstat(file.fileno())):
                    yield file
                    return
            finally:
                # Closing would not do where a child was forked meanwhile: it has the lock as well.
                unlock()


def _lock_file(file: Any, writing: bool) -> Callable[[], None]:
    """Wait for the lock of a file, alone with it or with other readers; return what gives it up."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if writing else fcntl.LOCK_SH)
        return lambda: fcntl.flock(file, fcntl.LOCK_UN)
    except ImportError:
        import msvcrt

    def lock(mode: int) -> None:
        # Nobody else can read what Windows locks: a byte far beyond the end.
        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), mode, 1)

    while True:
        try:
            lock(msvcrt.LK_NBLCK)
            return lambda: lock(msvcrt.LK_UNLCK)
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
            time.sleep(0.02)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each to survive a power failure."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make sure that a new file is still there after a power failure."""
    if os.name == "nt":  # which cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
