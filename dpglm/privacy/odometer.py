"""A running total of the costs of several fits on the same data, kept in a file."""

import copy
import hashlib
import json
import math
import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from dpglm.checks import check_number
from dpglm.exceptions import BudgetExceededError, KnownArguments, PrivacyWarning
from dpglm.privacy.composition import composed_epsilon
from dpglm.privacy.events import (
    FilterEvent,
    GaussianEvent,
    Runs,
    composed_mu,
    single_releases,
)
from dpglm.privacy.gaussian import gdp_epsilon, gdp_mu
from dpglm.privacy.ledger import PrivacyLedger, rounded_up, warn_of_guarantee
from dpglm.schema.table import plain_path
from dpglm.schema.values import composed
from dpglm.tables import Printed

FILE_START = b"SQLite format 3\0"
_VARIABLE = "DPGLM_ODOMETER"
SPENT = "Noise was drawn, and the whole plan counts as spent"
_VERSION = 2
# In seconds, for the lock of a file.
_PATIENCE = 60.0

# Guards the environment variable and all files. SQLite's locks belong to a process, not a thread,
# and a child that is forked while a database is open cannot use that database.
_lock = threading.RLock()
# Odometers with a limit whose block has not begun yet, by path.
_waiting: WeakValueDictionary[Path, "PrivacyOdometer"] = WeakValueDictionary()
# The blocks of this process that have begun and not ended.
_open: list["_Entered"] = []
# How many entries each file had in blocks of this process or those it was started in, by its mark.
_lengths: dict[str, int] = {}
# The marks of the files that the environment variable named when a fit was first charged to them.
_named: dict[str, str] = {}
# The blocks of this context, the innermost last; a forked child begins without blocks.
_entered: ContextVar[tuple["_Entered", ...]] = ContextVar("entered", default=())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
    os.register_at_fork(after_in_child=lambda: _entered.set(()))


@dataclass(frozen=True)
class OdometerRecord:
    """The public record of one charge in an odometer's file.

    Parameters
    ----------
    ledger : PrivacyLedger
        The cost that was charged: that of the whole plan.
    time : str
        Time in UTC.
    part : str, default=None
        The part of the records that the charge was about; ``None`` is all of them.
    estimator : str, default=None
        The class of the model that was fitted, after "scores of" if it was scored.
    """

    ledger: PrivacyLedger
    time: str
    part: str | None = None
    estimator: str | None = None


class PrivacyOdometer(KnownArguments, Printed):
    """Record what every fit costs, and refuse to go beyond a limit.

    In a ``with`` block every fit first writes the cost of its whole plan to the file. So do fits
    in processes that the block starts. The file never has less than was released.

    Parameters
    ----------
    path : path-like
        The file of one data set, kept from one script to the next. ``~`` and variables are
        expanded.
    epsilon : float, default=None
        Limit of the total, above 0. ``None`` is that of the file, or no limit if the file has none.
    delta : float, default=None
        At this delta the limit holds. ``None`` is that of the file, or 1e-6.
    adaptive : bool, default=None
        Whether the settings of a fit may follow from the results of earlier ones. ``None`` is the
        value of the file, or ``True``.

    Raises
    ------
    ValueError
        If a parameter is out of range, differs from that of the file, or is a new limit below the
        used part. If the file is damaged, of another program or of a later release.
    OSError
        If the file cannot be read or written, or was deleted or replaced since a block began.

    Notes
    -----
    *Limit.* The first limit of a file never changes, nor do its delta and its rule. The default is
    a filter: a fit is admitted while the sum of ``mu**2`` of all fits stays within that of the
    limit. All fits together then have the guarantee of the LIMIT, whatever followed from earlier
    results (Smith & Thakurta 2022). Mini-batches count as full batches, and a fit without a
    Gaussian trade-off is refused. With ``adaptive=False`` the least known epsilon of the sum of all
    ledgers is compared with the limit, and all settings must be fixed in advance.

    *Blocks.* A fit within several blocks counts once in each of their files, SQLite databases, and
    so do fits in other threads. Blocks reach other processes by ``DPGLM_ODOMETER``, but not those
    with another environment, or started before the block by other means than joblib. With
    ``DPGLM_ODOMETER=study.db python study.py`` the file is a block around everything.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dpglm import DPLogisticRegression, PrivacyOdometer
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(500, random_state=0)
    >>> path = Path(tempfile.mkdtemp()) / "study.db"
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
    ) -> None:
        given = {"epsilon": epsilon, "delta": delta, "adaptive": adaptive}
        given = {name: value for name, value in given.items() if value is not None}
        checked = _Total(**given)
        self._given = {name: getattr(checked, name) for name in given}
        self.path = plain_path(path).resolve()
        self._part: str | None = None
        if self.path.exists() and not self.path.stat().st_size:
            text = f"{self.path} is empty and begins anew: if it had records, restore a copy of it."
            warnings.warn(text, PrivacyWarning, stacklevel=2)
        if epsilon is not None:
            warn_of_guarantee(False, checked, 1, stacklevel=3)
            _waiting[self.path] = self
        if self._total().entries and epsilon is not None:
            with _opened(self.path) as file:
                file.write(file.total(**self._given))

    def _total(self) -> "_Total":
        """Return the limit and the entries that the file has now."""
        with _opened(self.path, writing=False) as file:
            return file.total(**self._given)

    @property
    def epsilon(self) -> float | None:
        """The limit of the total, None for none."""
        return self._total().epsilon

    @property
    def delta(self) -> float:
        """The delta at which the total is compared with the limit."""
        return self._total().delta

    @property
    def adaptive(self) -> bool:
        """Whether settings may follow from earlier results."""
        return self._total().adaptive

    def entries(self) -> list[OdometerRecord]:
        """Return the records of all charges, in order."""
        return [*self._total().entries]

    def ledgers(self) -> list[PrivacyLedger]:
        """Return the recorded costs, one ledger for each charge, in order."""
        return [entry.ledger for entry in self.entries()]

    @property
    def total(self) -> PrivacyLedger | None:
        """The ledger of all charges, those about parts in parallel; None before the first."""
        by_part: dict[str | None, list[PrivacyLedger]] = {None: []}
        for entry in self.entries():
            by_part.setdefault(entry.part, []).append(entry.ledger)
        whole, *parts = by_part.values()
        if parts:
            whole.append(PrivacyLedger.parallel(*map(sum, parts)))
        return sum(whole, 0) or None

    def used(self) -> float:
        """Return the epsilon at delta that was used so far; for a filter this is no guarantee."""
        return self._total().used()

    def cumulative_epsilon(self) -> list[float]:
        """Return the epsilon that was used after each of ``n`` charges, shape (n,)."""
        entries = (total := self._total()).entries
        return [replace(total, entries=entries[: n + 1]).used() for n in range(len(entries))]

    def remaining(self) -> float:
        """Return the largest epsilon that one more full-batch fit may have, rounded down.

        The fit has Gaussian noise: choices (`PrivGene`) and pure scores have a larger mu for their
        epsilon. In a block of a part, ask the part's odometer.
        """
        return self._total().remaining(self._part)

    def part(self, name: str) -> "PrivacyOdometer":
        """Return the odometer of a part of the records that shares none with any other part.

        Fits in its ``with`` blocks are about records of that part alone. The total is the cost for
        all records plus the cost of the most expensive part (parallel composition).

        Parameters
        ----------
        name : str

        Notes
        -----
        The part of a record must not depend on other records, and its neighbour must be in the same
        part. Use a hash of its id, or its position where the number of records is public. Fits in
        other threads and processes of a block are charged to all records, which is never too
        little.
        """
        odometer = copy.copy(self)
        odometer._part = composed(str(name)).strip()
        return odometer

    def charge(self, ledger: PrivacyLedger) -> None:
        """Record a cost, before anything is released for it.

        Parameters
        ----------
        ledger : PrivacyLedger
            The ledger of the whole plan.

        Raises
        ------
        BudgetExceededError
            If the total would exceed the limit; nothing is recorded then.
        """
        _waiting.pop(self.path, None)
        _charge(self.path, OdometerRecord(ledger, _now(), self._part), **self._given)

    def __enter__(self) -> "PrivacyOdometer":
        with _lock:
            _waiting.pop(self.path, None)
            blocks = _active()
            with _opened(self.path) as file:
                file.write(file.total(**self._given))
            block = _Block(str(self.path), file.mark)
            if block.mark not in {each.mark for each in blocks}:
                _lengths[file.mark] = len(file.lines)
            begun = _Entered(block, self, self._part)
            _open.append(begun)
            _entered.set((*_entered.get(), begun))
            _activate([*blocks, block])
        try:
            _stop_reusable_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            own = [each for each in _open if each.odometer is self]
            # If several threads have entered this odometer, end the block of this context.
            ended = ([each for each in own if each in _entered.get()] or own)[-1]
            _open.remove(ended)
            ended.part = None
            _entered.set(tuple(each for each in _entered.get() if each is not ended))
            # Blocks of other threads may have begun since, and go on.
            blocks = _in_environment()
            if ended.block in blocks:
                blocks.remove(ended.block)
                _activate(blocks)
        _stop_reusable_workers()

    def rows(self) -> list[tuple[str, ...]]:
        """Return a head, and a row for each charge: its epsilon, and what was used by then."""
        rows = [("charge", "time", "part", "estimator", "epsilon", "used")]
        # Another process may record a charge in between.
        charges = zip(self.entries(), self.cumulative_epsilon(), strict=False)
        for number, (charge, used) in enumerate(charges, 1):
            facts = charge.time[:16].replace("T", " "), charge.part or "-", charge.estimator or "-"
            costs = rounded_up(charge.ledger.epsilon(self.delta)), rounded_up(used)
            rows.append((str(number), *facts, *costs))
        return rows

    def _blocks(self) -> Iterator[Any]:
        yield "", self.statement
        if len(rows := self.rows()) > 1:
            yield "", rows
        if self.epsilon is not None:
            left = math.floor(1e4 * self.remaining()) / 1e4
            yield "", f"One more full-batch fit may have epsilon={left:g} at delta={self.delta:g}."

    @property
    def statement(self) -> str:
        """The used part of the limit, in a sentence."""
        total = self._total()
        if not total.entries:
            return f"Nothing is recorded in {self.path.name}."
        used, n = rounded_up(total.used()), len(total.entries)
        at = f"at delta={total.delta:g} under {total.entries[0].ledger.neighboring_relation}"
        charges = f"{n} charge{'s' if n > 1 else ''} recorded in {self.path.name}"
        if total.is_filter:
            return (
                f"{charges}: budget used epsilon={used} of {total.epsilon:g}; the guarantee is the "
                f"limit, epsilon={total.epsilon:g} {at}, whatever followed from earlier results."
            )
        limit = "" if total.epsilon is None else f" of {total.epsilon:g}"
        return f"{charges}: epsilon={used}{limit} {at}, if all settings were fixed in advance."

    def __repr__(self) -> str:
        return f"<PrivacyOdometer: {self.statement}>"


def charge_odometers(ledger: PrivacyLedger, estimator: Any = None, what: str = "") -> None:
    """Charge a plan to the odometers of all ``with`` blocks that it runs in, before it releases.

    If one of them refuses it, blocks around that one keep the entry: never less than was released.
    """
    joint = _joint.get()
    note_fit(estimator, stacklevel=8)
    if joint is not None:
        joint.refuse_more(ledger)
        if joint.is_charged:
            return
        ledger, estimator, what = joint.ledger, joint.estimator, ""
    blocks = _active()
    for path in [] if blocks else [*_waiting]:
        text = f"This fit is not recorded in {path}: fit in the with block of its PrivacyOdometer."
        warnings.warn(text, PrivacyWarning, stacklevel=6)
        _waiting.pop(path, None)
    name = None if estimator is None else f"{what}{type(estimator).__name__}"
    for path in dict.fromkeys(block.path for block in blocks):
        # The part that fits of this context are charged to in the file; None is the whole.
        part = next((e.part for e in _entered.get()[::-1] if e.block.path == path), None)
        _charge(Path(path), OdometerRecord(ledger, _now(), part, name))
    if joint is not None:
        joint.is_charged = True


def state_cost(error: BaseException, ledger: PrivacyLedger, released: bool = True) -> None:
    """Give an error of a charged plan its cost, and notes of that and of what is left."""
    joint = _joint.get()
    said = "Nothing was released, though the plan was charged. "
    if released:
        error.privacy_ledger, said = ledger, ""  # type: ignore[attr-defined]
    if joint is not None and joint.ledger is not ledger:
        return  # The error leaves the whole search, which has the whole cost.
    with suppress(Exception):  # A note must not hide the error.
        if released:
            spent = f"epsilon={rounded_up(ledger.epsilon())} at delta={ledger.reporting_delta:g}"
            error.add_note(f"{SPENT}: {spent} under {ledger.neighboring_relation}.")
        for block in _active():
            with _opened(Path(block.path), writing=False) as file:
                total = file.total()
            if total.epsilon is not None:
                error.add_note(f"{said}Of the limit in {block.path}, {total.left()}.")


def is_package_object(value: Any) -> bool:
    """Return whether this package made the class of a value."""
    return type(value).__module__.partition(".")[0] == "dpglm"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class JointCharge:
    """A block whose fits are charged together, when the first is about to release.

    The ledger has a `FilterEvent` for each fit, in order: the mu that the fit may cost.
    """

    def __init__(self, ledger: PrivacyLedger, estimator: Any = None) -> None:
        self.ledger, self.estimator, self.is_charged = ledger, estimator, False
        self._blocks = _active()
        note_fit(estimator, stacklevel=4)
        fits = (run for run in single_releases(ledger.events) if isinstance(run[0], FilterEvent))
        self._left = chain.from_iterable(repeat(event.mu, count) for event, count in fits)

    def __enter__(self) -> "JointCharge":
        self._token = _joint.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self.is_charged:
            state_cost(error, self.ledger)
        # A context copied in the block still has this charge: leave no fits in it.
        self._left = iter(())
        _joint.reset(self._token)

    def refuse_more(self, ledger: PrivacyLedger) -> None:
        """Refuse a fit that was not planned in the whole, or costs more than was planned."""
        own, planned_for = (
            f"{each.neighboring_relation} for each {each.privacy_unit}"
            for each in (ledger, self.ledger)
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


_joint: ContextVar[JointCharge | None] = ContextVar("joint", default=None)
_copies, _said_once = count(1), threading.Event()


def warn_of_exact_scores(stacklevel: int) -> None:
    """Say once a process, but not to private work, what scikit-learn's scores and fits cost."""
    if not _said_once.is_set() and _joint.get() is None:
        warnings.warn(
            "Scores of scikit-learn have no noise and are not private, and each fit of a search, "
            "of folds or of an ensemble costs its whole epsilon. On private records use "
            "PrivateSearchCV, private_scores and PrivateKFold; a PrivacyOdometer counts all fits.",
            PrivacyWarning,
            stacklevel=stacklevel + 1,
        )
        _said_once.set()


def note_fit(estimator: Any, stacklevel: int) -> None:
    """Count a fit if `count_copy` has not counted it and a meta-estimator, or `clone`, made it."""
    if getattr(estimator, "__dict__", {}).pop("_is_copy", False) and _joint.get() is None:
        count_copy(stacklevel + 1)


def count_copy(stacklevel: int) -> None:
    """Count a fit of a copy, here or in another process, and warn from the second on."""
    if next(_copies) > 1:
        with suppress(PrivacyWarning):  # as an error it would make a fit fail, and a score NaN
            warn_of_exact_scores(stacklevel + 1)


@dataclass(frozen=True)
class _Total:
    """The entries of a file, the limit of their total, and the rule that compares both."""

    epsilon: float | None = None
    delta: float = 1e-6
    adaptive: bool = True
    entries: Sequence[OdometerRecord] = ()

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            epsilon = check_number("epsilon", self.epsilon, above=0, advice="None is no limit")
            object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_number("delta", self.delta, above=0, below=1))
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r} must be True, False or None.")

    @property
    def is_filter(self) -> bool:
        return self.adaptive and self.epsilon is not None

    def used(self, more: Runs = (), part: str | None = None) -> float:
        """Return the epsilon to compare with the limit: of this part, or the largest of all."""
        known = dict.fromkeys(entry.part for entry in self.entries if entry.part is not None)
        parts = [part] if part is not None else [*known] or [None]
        about = [[e.ledger.events for e in self.entries if e.part in (None, p)] for p in parts]
        return max(self._epsilon([*chain.from_iterable(runs), *more]) for runs in about)

    def _epsilon(self, events: Runs) -> float:
        """Return the epsilon of all releases about one record, for a filter of their ``mu**2``."""
        if not events:
            return 0.0
        if not self.is_filter:
            return composed_epsilon(events, self.delta)
        try:
            return gdp_epsilon(composed_mu([(e.full_batch, n) for e, n in events]), self.delta)
        except ValueError as error:
            raise ValueError(
                f"{error} An odometer with adaptive=True needs one. If all settings are fixed in "
                "advance, begin a file with adaptive=False."
            ) from error

    def admits(self, more: Runs = (), part: str | None = None) -> bool:
        """Return whether these releases would be within the limit."""
        # Numerical compositions are rounded up; the capacity of a filter is exact.
        slack = 1 if self.is_filter else 1 + 1e-9
        return self.epsilon is None or self.used(more, part) <= self.epsilon * slack

    def remaining(self, part: str | None = None) -> float:
        """Return the largest epsilon of one more fit to this part, rounded down."""
        if self.epsilon is None or math.isinf(self.epsilon):
            return math.inf
        low, high = 0.0, gdp_mu(self.epsilon, self.delta)
        while high - low > 1e-7 * high:
            mu = (low + high) / 2
            admitted = self.admits([(GaussianEvent(1 / mu), 1)], part)
            low, high = (mu, high) if admitted else (low, mu)
        return gdp_epsilon(low, self.delta)

    def left(self, part: str | None = None) -> str:
        """Say what is left, rounded down, unless that takes long."""
        if not self.is_filter or math.isinf(self.epsilon):
            return "what is left is odometer.remaining()"
        epsilon = math.floor(1e4 * self.remaining(part)) / 1e4
        return f"epsilon={epsilon} is left for one more fit with Gaussian noise"


class _Block(NamedTuple):
    """A ``with`` block: its file, and the mark of the file when the block began."""

    path: str
    mark: str | None = None


@dataclass(eq=False)
class _Entered:
    """A block in the context where it began, and in copies of it, where it ends with part None."""

    block: _Block
    odometer: PrivacyOdometer
    part: str | None


def _charge(path: Path, entry: OdometerRecord, **given: Any) -> None:
    """Add an entry to a file, within its limit."""
    if entry.ledger.n_changed > 1:
        raise ValueError(
            f"This ledger is for data sets that differ in {entry.ledger.n_changed} records; an "
            "odometer adds up costs of one record. Charge the ledger that group was called on."
        )
    blocks = [block for block in _active() if block.path == str(path)]
    marks = {block.mark or _named.get(block.path) for block in blocks}
    with _opened(path) as file:
        if not marks <= {None, file.mark} or len(file.lines) < _lengths.get(file.mark, 0):
            raise OSError(
                f"{path} was deleted, replaced or emptied since its block began, and its records "
                "are missing. Nothing was released; put it back and begin a new block."
            )
        # Raises unless all ledgers have one relation, and at most one of them a seed.
        sum([*(each.ledger for each in file.entries), entry.ledger], 0)
        total, more, part = file.total(**given), entry.ledger.events, entry.part
        if not total.admits(more, part):
            raise BudgetExceededError(
                f"This would bring the total{'' if part is None else f' about part {part!r}'} to "
                f"epsilon={rounded_up(total.used(more, part))} at delta={total.delta:g}, beyond "
                f"the limit of {total.epsilon:g}: {rounded_up(total.used(part=part))} is used, as "
                f"{path} records. Nothing was released; {total.left(part)}."
            )
        file.write(total, entry)
    if None in marks:
        _named[str(path)] = file.mark
    if any(block.mark for block in blocks):
        with _lock:  # tell processes that start in the blocks how long the file is
            _activate(_in_environment())


@dataclass
class _File:
    """The content of a file, as one transaction sees it; a new file has an empty key."""

    path: Path
    database: sqlite3.Connection | None = None
    key: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, database: sqlite3.Connection) -> "_File":
        """Read and check the content; an empty file is a new one."""
        if not path.stat().st_size:
            return cls(path, database)
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise sqlite3.DatabaseError(f"it is of another program or release (version {version})")
        rows = database.execute("SELECT key, fixed, seal FROM study").fetchall()
        lines = [line for (line,) in database.execute("SELECT entry FROM entries ORDER BY number")]
        sealed = [seal == _seal(key, fixed, lines) for key, fixed, seal in rows]
        if sealed != [True]:
            raise sqlite3.DatabaseError("it was changed by another program")
        return cls(path, database, rows[0][0], json.loads(rows[0][1]), lines)

    @cached_property
    def entries(self) -> list[OdometerRecord]:
        """The records of all charges, in order."""
        return [
            OdometerRecord(**{**record, "ledger": PrivacyLedger.from_dict(record["ledger"])})
            for record in map(json.loads, self.lines)
        ]

    @property
    def mark(self) -> str:
        """Differs from the mark of any other file in its place, a copy too."""
        return f"{self.path.stat().st_ino}-{self.key}"

    def total(self, **given: Any) -> _Total:
        """Return the entries and their limit, which later users may not change."""
        for name in self.fixed.keys() & given.keys():
            if given[name] != self.fixed[name]:
                raise ValueError(
                    f"{name}={given[name]!r}, but {self.path} was begun with "
                    f"{name}={self.fixed[name]!r}: the limit of a study is fixed before its "
                    f"first fit. Leave out {name}."
                )
        total = _Total(**{**given, **self.fixed}, entries=self.entries)
        if not self.fixed and not total.admits():
            raise ValueError(
                f"epsilon={total.epsilon!r}, but {self.path} was begun without a limit, and its "
                f"charges come to {rounded_up(total.used())} at delta={total.delta:g}. Give a "
                "larger limit, or none."
            )
        return total

    def write(self, total: _Total, *entries: OdometerRecord) -> None:
        """Add entries, and the limit if it is the first; renew the seal of the file."""
        lines = [json.dumps({**vars(e), "ledger": e.ledger.to_dict()}) for e in entries]
        names = () if total.epsilon is None else ("epsilon", "delta", "adaptive")
        fixed = {name: getattr(total, name) for name in names}
        if self.key and fixed == self.fixed and not lines:
            return
        if not self.key:
            self.database.execute(f"PRAGMA user_version = {_VERSION}")
            self.database.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, entry TEXT)")
            self.database.execute("CREATE TABLE study (key TEXT, fixed TEXT, seal TEXT)")
            self.key = uuid4().hex
            self.database.execute("INSERT INTO study (key) VALUES (?)", [self.key])
        self.database.executemany("INSERT INTO entries (entry) VALUES (?)", zip(lines))
        self.fixed, self.lines = fixed, [*self.lines, *lines]
        sealed = json.dumps(fixed), _seal(self.key, json.dumps(fixed), self.lines)
        self.database.execute("UPDATE study SET fixed = ?, seal = ?", sealed)


def _seal(key: str, fixed: str, lines: list[str]) -> str:
    """Return a digest of the content of a file."""
    return hashlib.sha256(repr([key, fixed, *lines]).encode()).hexdigest()


@contextmanager
def _opened(path: Path, writing: bool = True) -> Iterator[_File]:
    """Read a file in one transaction, locked if the block will write; an exception undoes it."""
    with _lock:
        for folder in [each for each in path.parents if writing and not each.is_dir()][::-1]:
            folder.mkdir(exist_ok=True)
            if os.name != "nt":  # which cannot open a folder
                # Else a power failure could lose a new folder, and all that it holds.
                handle = os.open(folder.parent, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        if not path.exists():
            if not writing:
                yield _File(path)
                return
            path.touch(0o600)  # which its owner alone can read
        kind, name = "IMMEDIATE" if writing else "DEFERRED", f"{path.as_uri()}?mode=rw"
        try:
            connected = sqlite3.connect(name, _PATIENCE, isolation_level=None, uri=True)
            with closing(connected) as database:
                # EXTRA syncs the folder too: a power failure must not bring the journal back.
                database.execute("PRAGMA synchronous = EXTRA")
                database.execute(f"BEGIN {kind}")
                file = _File.read(path, database)
                yield file
                database.execute("COMMIT")
                if writing:
                    _lengths[file.mark] = max(len(file.lines), _lengths.get(file.mark, 0))
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise ValueError(
                    f"{path} is damaged, or not the file of a PrivacyOdometer: {error}. Restore a "
                    "copy of it, or name another file."
                ) from error
            raise OSError(
                f"{path} cannot be locked, read or written: {error}. Nothing was released; free "
                "the file, or keep it on a disk that can lock it."
            ) from error


def _in_environment() -> list[_Block]:
    """Return the blocks that the environment variable has, or a block of the file it names."""
    text = os.environ.get(_VARIABLE, "[]")
    try:
        if not text.startswith("["):
            # The same file from now on, whatever the working directory is.
            text = os.environ[_VARIABLE] = str(plain_path(text).resolve())
            return [_Block(text)]
        blocks = []
        for *block, length in json.loads(text):
            blocks.append(_Block(*block))
            _lengths[blocks[-1].mark] = max(length, _lengths.get(blocks[-1].mark, 0))
        if not all(os.path.isabs(block.path) for block in blocks):
            raise ValueError("a path is relative")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{_VARIABLE}={text[:60]!r} is neither a file nor written by a PrivacyOdometer "
            f"({error}); set it to the path of a file, or unset it."
        ) from error
    return blocks


def _active() -> list[_Block]:
    """Return the blocks that a fit is charged to; refuse to leave out an open block."""
    with _lock:
        blocks = _in_environment()
        for block in (*_inherited, *(each.block for each in _open)):
            if block not in blocks:
                raise ValueError(
                    f"{_VARIABLE} was cleared or changed within a block of the odometer "
                    f"{block.path}, which would miss this fit. Nothing was released; restore the "
                    "variable, or begin the block again."
                )
    return blocks


def _activate(blocks: list[_Block]) -> None:
    os.environ[_VARIABLE] = json.dumps([(*b, _lengths.get(b.mark, 0)) for b in blocks])
    if not blocks:
        del os.environ[_VARIABLE]


def _stop_reusable_workers() -> None:
    """Stop joblib's processes: they keep the environment that they were started with."""
    from joblib.externals.loky import reusable_executor

    if getattr(reusable_executor, "_executor", None) is not None:
        reusable_executor.get_reusable_executor().shutdown(wait=True)


# A process that was started within blocks runs in them to its end.
_inherited: list[_Block] = []
if os.environ.get(_VARIABLE, "").startswith("["):
    with suppress(ValueError):  # which the first fit will raise
        _inherited = _in_environment()
