"""Tapes for the tests: they note what fits release, answer for them, or fail in their place."""

import contextlib

import numpy as np
import pytest

from dpglm.audit.recorder import ReleaseRecorder, noted
from dpglm.privacy.vault import Vault

_RELEASE = Vault._release


@contextlib.contextmanager
def on_tape(recorder=None):
    """Let all vaults release onto a tape in this block, whoever opens them: a plain one if None.

    Only the innermost of several blocks records.
    """
    recorder = ReleaseRecorder() if recorder is None else recorder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vault, "_release", noted(_RELEASE, recorder))
        yield recorder


def record():
    return on_tape()


def replay(recorded):
    return on_tape(ReleaseRecorder(recorded))


class Noted(ReleaseRecorder):
    """Lists the events of releases, once their noise has been added."""

    def __init__(self):
        super().__init__()
        self.events = []

    def note(self, event, sensitivity, exact, draw):
        answer = draw(exact)
        self.events.append(event)
        return answer


class Failing(Noted):
    """Raises an error in place of the release of that number, counted from 1, or of all."""

    def __init__(self, error, number=None):
        super().__init__()
        self.error, self.number = error, number

    def note(self, event, sensitivity, exact, draw):
        if self.number in (None, len(self.events) + 1):
            raise self.error
        return super().note(event, sensitivity, exact, draw)


class Scripted(ReleaseRecorder):
    """Answers choices by a script while it lasts, and sums too if there is a script for them."""

    def __init__(self, choices, sums=None):
        super().__init__()
        self._choices, self._sums = iter(choices), None if sums is None else iter(sums)

    def note(self, event, sensitivity, exact, draw):
        answer = super().note(event, sensitivity, exact, draw)
        if isinstance(answer, np.ndarray):
            return answer if self._sums is None else next(self._sums)
        return next(self._choices, answer)
