"""A running total of what several fits on the same data have cost, kept in a file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.ledger import PrivacyLedger, rounded_up

__all__ = ["PrivacyOdometer", "charge_odometers"]

_VARIABLE = "DPGLM_ODOMETER"
_HEADER = b'{"format": "dpglm odometer", "version": 1}\n'


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
    The total is that of settings fixed before any result was seen: `PrivacyLedger` says which
    assumptions it makes when ledgers add up. The file holds one JSON object per line and is only
    ever appended to, under a lock, with a sync to the disk before the fit goes on. A last line
    that is not finished belongs to a fit that released nothing; the next entry replaces it.

    The path reaches other processes by the environment variable ``DPGLM_ODOMETER``. Processes
    that joblib keeps for reuse are stopped when a block begins or ends, so that none misses it;
    processes started before the block by other means do not know of it. Fits in other threads
    are recorded too.

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
        if epsilon is not None and (isinstance(epsilon, bool) or not epsilon > 0):
            raise ValueError(f"epsilon={epsilon!r} must be a number above 0, or None for no limit.")
        if isinstance(delta, bool) or not 0 < delta < 1:
            raise ValueError(f"delta={delta!r} must be above 0 and below 1.")
        self.path = Path(path).absolute()
        self.epsilon = epsilon
        self.delta = delta
        self._outer: list[str | None] = []
        self.ledgers()

    def ledgers(self) -> list[PrivacyLedger]:
        """Return the recorded costs, one ledger for each fit, in order."""
        if not self.path.exists():
            return []
        with _locked(self.path) as file:
            return _entries(file, self.path)[0]

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
            If the ledger cannot be added to those in the file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path) as file:
            earlier, end = _entries(file, self.path)
            total = sum([*earlier, ledger], 0)
            if self.epsilon is not None:
                self._refuse_beyond_limit(total, earlier)
            # What follows the last finished line was never acted on.
            file.truncate(end)
            file.seek(end)
            file.write((b"" if end else _HEADER) + json.dumps(ledger.to_dict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if not end:
            _sync_folder(self.path.parent)

    def _refuse_beyond_limit(self, total: PrivacyLedger, earlier: list[PrivacyLedger]) -> None:
        epsilon = total.epsilon(self.delta)
        if not epsilon <= self.epsilon * (1 + 1e-9):
            spent = sum(earlier, 0).epsilon(self.delta) if earlier else 0.0
            raise BudgetExceededError(
                f"This fit would bring the total to epsilon={rounded_up(epsilon)} at "
                f"delta={self.delta:g}, beyond the limit of {self.epsilon:g}: {rounded_up(spent)} "
                f"is spent, as {self.path} records. Nothing was released; lower epsilon or stop."
            )

    def __enter__(self) -> "PrivacyOdometer":
        self._outer.append(os.environ.get(_VARIABLE))
        os.environ[_VARIABLE] = json.dumps([*_active(), [str(self.path), self.epsilon, self.delta]])
        _stop_reusable_workers()
        return self

    def __exit__(self, *error: object) -> None:
        outer = self._outer.pop()
        if outer is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = outer
        _stop_reusable_workers()

    def __str__(self) -> str:
        total = self.total
        if total is None:
            return f"Nothing is recorded in {self.path}."
        limit = "" if self.epsilon is None else f" of {self.epsilon:g}"
        n_fits = len(self.ledgers())
        return (
            f"{n_fits} fit{'s' if n_fits > 1 else ''} recorded in {self.path}: "
            f"epsilon={rounded_up(total.epsilon(self.delta))}{limit} at delta={self.delta:g} "
            f"under {total.neighboring_relation}."
        )

    def __repr__(self) -> str:
        return f"<PrivacyOdometer: {self}>"


def charge_odometers(ledger: PrivacyLedger) -> None:
    """Charge a fit to the odometers of all ``with`` blocks that it runs in.

    Parameters
    ----------
    ledger : PrivacyLedger
        Of the whole plan, before its first release.

    Raises
    ------
    BudgetExceededError
        If it does not fit into one of them. Those around it keep the entry: more is recorded
        than was released, never less.
    """
    for path, epsilon, delta in _active():
        PrivacyOdometer(path, epsilon, delta).charge(ledger)


def _active() -> list[list[Any]]:
    return json.loads(os.environ.get(_VARIABLE) or "[]")


def _stop_reusable_workers() -> None:
    """Stop joblib's processes: they keep the environment that they were started with."""
    from joblib.externals.loky import reusable_executor

    if getattr(reusable_executor, "_executor", None) is not None:
        reusable_executor.get_reusable_executor().shutdown(wait=True)


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    """Open a file for reading and writing, with a lock that ends with the process."""
    try:
        import fcntl
    except ImportError as error:
        raise OSError("PrivacyOdometer needs file locks, which this system lacks.") from error
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


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


def _sync_folder(folder: Path) -> None:
    """Make sure that a new file is still there after a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
