"""A running total of what several fits on the same data have cost, kept in a file."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.budget import is_number
from dpglm.privacy.ledger import PrivacyLedger, rounded_up

_VARIABLE = "DPGLM_ODOMETER"
_HEADER = b'{"format": "dpglm odometer", "version": 1}\n'

# Of the environment variable; free again in a forked child, whoever held it.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


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
        Limit of the total, above 0. ``None`` records only.
    delta : float, default=1e-6
        At which the total is compared with the limit.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the file is not an odometer's.

    Notes
    -----
    The total is that of settings fixed before any result was seen. The file holds one JSON object
    per line and is only ever appended to, under a lock, synced to the disk before the fit goes on.
    A last line that is not finished belongs to a fit that released nothing; the next entry
    replaces it. If the file is deleted, replaced or emptied while a block is open, the next fit of
    the block raises an OSError.

    A fit within several blocks counts once in each of their files; fits in other threads count too.
    Blocks reach other processes by the environment variable ``DPGLM_ODOMETER``: those that joblib
    keeps for reuse are stopped when a block begins or ends, and those that were started before the
    block by other means do not know of it.

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
    This fit would bring the total to epsilon=1.455...
    """

    def __init__(
        self, path: str | os.PathLike[str], epsilon: float | None = None, delta: float = 1e-6
    ) -> None:
        if epsilon is not None and not (is_number(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon={epsilon!r} must be a number above 0, or None for no limit.")
        if not (is_number(delta) and 0 < delta < 1):
            raise ValueError(f"delta={delta!r} must be a number above 0 and below 1.")
        self.path = Path(path).resolve()
        self.epsilon = None if epsilon is None else float(epsilon)
        self.delta = float(delta)
        self._blocks: list[tuple[_Block, int]] = []
        self.ledgers()

    def ledgers(self) -> list[PrivacyLedger]:
        """Return the recorded costs, one ledger for each fit, in order."""
        try:
            with _locked(self.path, writing=False) as file:
                return _entries(file, self.path)[0]
        except FileNotFoundError:
            return []

    @property
    def total(self) -> PrivacyLedger | None:
        """The ledger of all fits so far; None before the first."""
        return sum(self.ledgers(), 0) or None

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
            If it cannot be written.
        """
        _charge([_Block(str(self.path), self.epsilon, self.delta)], ledger)

    def __enter__(self) -> "PrivacyOdometer":
        _make_folder(self.path.parent)
        with _locked(self.path) as file:
            _, end = _entries(file, self.path)
            if not end:
                end = _append(file, b"", 0, self.path)
            # Kept open, so that no other file is given the number of this one.
            handle = os.dup(file.fileno())
        block = _Block(str(self.path), self.epsilon, self.delta, _identity(os.fstat(handle)), end)
        self._blocks.append((block, handle))
        try:
            with _lock:
                _activate([*_active(), block])
            _stop_reusable_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        block, handle = self._blocks.pop()
        os.close(handle)
        # Blocks of other threads may have begun since, and go on.
        with _lock:
            blocks = _active()
            if block in blocks:
                blocks.remove(block)
            _activate(blocks)
        _stop_reusable_workers()

    def __str__(self) -> str:
        ledgers = self.ledgers()
        if not ledgers:
            return f"Nothing is recorded in {self.path}."
        limit = "" if self.epsilon is None else f" of {self.epsilon:g}"
        total = sum(ledgers, 0)
        return (
            f"{len(ledgers)} fit{'s' if len(ledgers) > 1 else ''} recorded in {self.path}: "
            f"epsilon={rounded_up(total.epsilon(self.delta))}{limit} at delta={self.delta:g} "
            f"under {total.neighboring_relation}."
        )

    def __repr__(self) -> str:
        return f"<PrivacyOdometer: {self}>"


def charge_odometers(ledger: PrivacyLedger) -> None:
    """Charge a fit to the odometers of all ``with`` blocks that it runs in, before it releases.

    One that does not fit into a block's limit, or whose file cannot be written, raises. Blocks
    around that one keep the entry: more is recorded than was released, never less.
    """
    blocks = _active()
    for path in dict.fromkeys(block.path for block in blocks):
        _charge([block for block in blocks if block.path == path], ledger)


@dataclass(frozen=True)
class _Block:
    """What a ``with`` block has fixed, and knows of its file: its identity and least length."""

    path: str
    epsilon: float | None
    delta: float
    file: tuple[int, int] | None = None
    length: int = 0

    def refuse_another_file(self, file: Any, end: int) -> None:
        found = _identity(os.fstat(file.fileno()))
        if self.file is not None and (found != self.file or end < self.length):
            raise OSError(
                f"{self.path} was deleted, replaced or emptied since its block began, and what it "
                "recorded is missing. Nothing was released; put it back and begin a new block."
            )

    def refuse_beyond_limit(self, total: PrivacyLedger, earlier: list[PrivacyLedger]) -> None:
        if self.epsilon is None:
            return
        epsilon = total.epsilon(self.delta)
        if not epsilon <= self.epsilon * (1 + 1e-9):
            spent = sum(earlier, 0).epsilon(self.delta) if earlier else 0.0
            raise BudgetExceededError(
                f"This fit would bring the total to epsilon={rounded_up(epsilon)} at "
                f"delta={self.delta:g}, beyond the limit of {self.epsilon:g}: {rounded_up(spent)} "
                f"is spent, as {self.path} records. Nothing was released; lower epsilon or stop."
            )


def _charge(blocks: list[_Block], ledger: PrivacyLedger) -> None:
    """Append a cost to the file of these blocks, within the limits of all of them."""
    path = Path(blocks[0].path)
    _make_folder(path.parent)
    with _locked(path) as file:
        earlier, end = _entries(file, path)
        total = sum([*earlier, ledger], 0)
        for block in blocks:
            block.refuse_another_file(file, end)
            block.refuse_beyond_limit(total, earlier)
        _append(file, json.dumps(ledger.to_dict()).encode() + b"\n", end, path)


def _append(file: Any, line: bytes, end: int, path: Path) -> int:
    """Write a line after the last finished one, sync it, and return where it ends."""
    if not end:
        # Before the header: a file that has one is known to survive a power failure.
        _sync_folder(path.parent)
        line = _HEADER + line
    # What follows the last finished line was never acted on.
    file.truncate(end)
    file.seek(end)
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())
    return end + len(line)


def _active() -> list[_Block]:
    entries = json.loads(os.environ.get(_VARIABLE) or "[]")
    return [_Block(**{**entry, "file": tuple(entry["file"])}) for entry in entries]


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
    try:
        import fcntl
    except ImportError as error:
        raise OSError("PrivacyOdometer needs file locks, which this system lacks.") from error

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | (os.O_CREAT if writing else 0), 0o600)

    while True:
        with open(path, "r+b" if writing else "rb", buffering=0, opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX if writing else fcntl.LOCK_SH)
            try:
                # Another file may have taken its place while this one was waited for.
                if path.exists() and _identity(path.stat()) == _identity(os.fstat(file.fileno())):
                    yield file
                    return
            finally:
                # Closing would not do where a child was forked meanwhile: it has the lock as well.
                fcntl.flock(file, fcntl.LOCK_UN)


def _entries(file: Any, path: Path) -> tuple[list[PrivacyLedger], int]:
    """Return the recorded ledgers, and where the last finished line ends."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    try:
        if not (content.startswith(_HEADER) or _HEADER.startswith(content)):
            raise ValueError(f"it begins with {content[:60]!r}")
        lines = content[len(_HEADER) : end].splitlines()
        return [PrivacyLedger.from_dict(json.loads(line)) for line in lines], end
    except ValueError as error:
        raise ValueError(f"{path} is not the file of a PrivacyOdometer: {error}.") from error


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
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
