"""Inspect the releases of a fit: neighbouring sums must not differ by more than is charged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpglm.privacy.events import Event
from dpglm.privacy.vault import Vault


@dataclass(frozen=True)
class RecordedRelease:
    """A release on artificial data: its value without noise, and by how much a record moves it.

    The sensitivity is the L2 norm for a sum, rounding included, and the range for a choice.
    """

    event: Event
    exact: np.ndarray
    sensitivity: float
    answer: Any


class ReleaseRecorder:
    """A record of releases, or of answers to be given again. It has sums WITHOUT noise."""

    def __init__(self, answers: "ReleaseRecorder | None" = None) -> None:
        self.releases: list[RecordedRelease] = []
        self._answers = answers

    def note(self, event: Event, sensitivity: float, exact: np.ndarray, draw: Callable) -> Any:
        """Record a release; return its answer, or the answer to replay."""
        answer = draw(exact)
        if self._answers is not None:
            answer = self._answers.releases[len(self.releases)].answer
        self.releases.append(RecordedRelease(event, exact.copy(), sensitivity, answer))
        return answer


def noted(release: Callable, recorder: ReleaseRecorder) -> Callable:
    """Return the method of a vault by which all releases go, so that a recorder is told of each."""

    def _release(vault: Vault, event: Any, exact: Any, draw: Any, *, moves: float, **more: Any):
        def note(total: np.ndarray) -> Any:
            return recorder.note(event, moves, total, draw)

        return release(vault, event, exact, note, moves=moves, **more)

    return _release


@contextmanager
def record(estimator: Any, recorder: ReleaseRecorder | None = None) -> Iterator[ReleaseRecorder]:
    """Record all releases of the fits of an estimator in this block, before and after noise.

    With the same answers two fits take the same course, and their sums can be compared. The record
    has sums WITHOUT noise: record fits on artificial data only.

    Parameters
    ----------
    estimator : estimator
        This object, not its clones, gets a vault which records.
    recorder : ReleaseRecorder, optional
        The recorder to use in place of a new one. ``ReleaseRecorder(recorded)`` gives the answers
        of an earlier record again.

    Yields
    ------
    ReleaseRecorder
        To its ``releases`` each fit adds.
    """
    recorder = ReleaseRecorder() if recorder is None else recorder
    vault_type = type(estimator)._vault_type
    methods = {"_release": noted(vault_type._release, recorder)}
    estimator._vault_type = type("RecordedVault", (vault_type,), methods)
    try:
        yield recorder
    finally:
        del estimator._vault_type


def largest_ratio(recorded: ReleaseRecorder, replayed: ReleaseRecorder) -> float:
    """Return the most by which a release moved, relative to its sensitivity: at most 1.

    The records are of the same fits on two neighbouring tables; a ValueError is raised if number,
    order or costs of their releases differ. A move is the L2 distance of two sums, or the range of
    the difference of two vectors of scores.
    """
    tables = recorded.releases, replayed.releases
    stated = [[(r.event, r.sensitivity, r.exact.shape) for r in table] for table in tables]
    if stated[0] != stated[1]:
        raise ValueError("The two fits did not release the same, at the same cost.")
    moved = [(_moved(a, b), a.sensitivity) for a, b in zip(*tables, strict=True)]
    return max((by / most if by else 0.0 for by, most in moved), default=0.0)


def _moved(a: RecordedRelease, b: RecordedRelease) -> float:
    difference = a.exact - b.exact
    # A choice among scores ignores a common shift.
    if isinstance(a.answer, int | np.integer):
        return float(np.ptp(difference))
    return float(np.linalg.norm(difference))
