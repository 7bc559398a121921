"""Inspect the releases of a fit: neighbouring sums must not differ by more than is charged."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from dpglm.privacy.vault import RecordedRelease, ReleaseRecorder, tape


def record() -> AbstractContextManager[ReleaseRecorder]:
    """Record all releases of the fits in this block, before and after noise.

    .. warning::
       The record has sums WITHOUT noise. Record fits on artificial data only, and keep no record of
       other data after its block.

    Returns
    -------
    context manager
        Context of a ReleaseRecorder, to whose ``releases`` each fit adds.

    Notes
    -----
    Fits that the block starts in other threads or processes are not recorded.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.audit import largest_ratio, record, replay
    >>> X, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2
    >>> neighbour = X.copy()
    >>> neighbour[7] = 1e308  # a row that overflows contributes nothing
    >>> model = DPLogisticRegression(max_iter=5, classes=[0, 1])
    >>> with record() as recorded:
    ...     model = model.fit(X, y)
    >>> with replay(recorded) as replayed:
    ...     model = model.fit(neighbour, y)
    >>> 0.5 < largest_ratio(recorded, replayed) <= 1.0
    True
    """
    return onto(ReleaseRecorder())


def replay(answers: ReleaseRecorder) -> AbstractContextManager[ReleaseRecorder]:
    """Record all releases of the fits in this block, with the answers of another record.

    With the same answers both fits take the same course, and their sums can be compared.

    Parameters
    ----------
    answers : ReleaseRecorder
        Record of the same fits on a neighbouring table.

    Returns
    -------
    context manager
        Context of a ReleaseRecorder: exact values of this table, and the answers of the other. The
        warning of `record` holds.
    """
    return onto(ReleaseRecorder(answers))


def largest_ratio(recorded: ReleaseRecorder, replayed: ReleaseRecorder) -> float:
    """Return the most by which a release moved, relative to its sensitivity: at most 1.

    Parameters
    ----------
    recorded, replayed : ReleaseRecorder
        Records of the same fits on two neighbouring tables.

    Returns
    -------
    float
        The largest ratio of a move to the sensitivity that the fit declared. The move is the L2
        distance of two sums, or the range of the difference of two vectors of scores.

    Raises
    ------
    ValueError
        If the number, order or costs of the releases differ: only the sums may depend on a record.
    """
    tables = recorded.releases, replayed.releases
    if [*map(_public, tables[0])] != [*map(_public, tables[1])]:
        raise ValueError("The two fits did not release the same, at the same cost.")
    moved = [(_moved(a, b), a.sensitivity) for a, b in zip(*tables, strict=True)]
    return max((by / most if by else 0.0 for by, most in moved), default=0.0)


@contextmanager
def onto(recorder: ReleaseRecorder) -> Iterator[ReleaseRecorder]:
    """Record the releases of the fits in this block with a recorder of any kind."""
    before = tape.set(recorder)
    try:
        yield recorder
    finally:
        tape.reset(before)


def _public(release: RecordedRelease) -> tuple:
    """Return the parts of a release that must not depend on a record."""
    return release.event, release.sensitivity, release.exact.shape


def _moved(a: RecordedRelease, b: RecordedRelease) -> float:
    difference = a.exact - b.exact
    # A choice among scores ignores a common shift.
    if isinstance(a.answer, int | np.integer):
        return float(np.ptp(difference))
    return float(np.linalg.norm(difference))
