"""Tapes for the tests: they note what fits release, answer for them, or fail in their place."""

import contextlib

import numpy as np

from dpglm.privacy.vault import ReleaseRecorder, tape


@contextlib.contextmanager
def on_tape(recorder=None):
    """Let the vaults that are opened in this block release onto a tape, a plain one by default."""
    recorder = ReleaseRecorder() if recorder is None else recorder
    before = tape.set(recorder)
    try:
        yield recorder
    finally:
        tape.reset(before)


class Noted(ReleaseRecorder):
    """Lists the events of releases, once their noise has been added."""

    def __init__(self):
        super().__init__()
        self.events = []

    def note(self, event, sensitivity, compute, draw):
        answer = draw(compute())
        self.events.append(event)
        return answer


class Failing(Noted):
    """Raises an error in place of the release of that number, counted from 1, or of all."""

    def __init__(self, error, number=None):
        super().__init__()
        self.error, self.number = error, number

    def note(self, event, sensitivity, compute, draw):
        if self.number in (None, len(self.events) + 1):
            raise self.error
        return super().note(event, sensitivity, compute, draw)


class Scripted(ReleaseRecorder):
    """Answers every choice by the next of a script, and every sum too if there is one for sums."""

    def __init__(self, choices, sums=None):
        super().__init__()
        self._choices, self._sums = iter(choices), None if sums is None else iter(sums)

    def note(self, event, sensitivity, compute, draw):
        answer = super().note(event, sensitivity, compute, draw)
        if isinstance(answer, np.ndarray):
            return answer if self._sums is None else next(self._sums)
        return next(self._choices)
