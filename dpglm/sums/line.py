"""A line of coefficients being searched: the scores of all rows along it, and sums of losses.

A step along ``coef - step * direction`` changes scores by ``-step`` times those of the direction,
so that an iteration of a line search need not read the data for the scores at its new coefficients.
Whether they may be carried is decided by coefficients, directions and steps alone, never by data.
"""

import numpy as np

from dpglm.kernels.arithmetic import LARGEST
from dpglm.kernels.joint_line_search import joint_line_losses, joint_scratch
from dpglm.kernels.line_search import advance, margin_line_losses, margin_scratch
from dpglm.kernels.threads import rows_per_chunk

__all__ = ["Line", "check_steps"]

# Scores are computed afresh once the way they were carried is so many times as long as the
# coefficients: until then they lose at most three digits.
_LONGEST_WAY = 1024.0
# Below this the score of a row with a finite norm is finite, and so are those on the way.
_LARGEST_NORM = 2.0**300


class Line:
    """Scores at some coefficients and of a direction; owned by one `Objective`, never shared.

    Arrays of the caller are copied: it may change them afterwards.

    Parameters
    ----------
    coef : array
        As given to `Objective.line_losses`.
    scores : array (K, padded rows)
        Scores of `coef`.
    """

    def __init__(self, coef: np.ndarray, scores: np.ndarray) -> None:
        self.scores = scores
        self.slopes = None
        self._coef = coef.copy()
        self._travelled = 0.0

    def turn(self, direction: np.ndarray, steps: np.ndarray, slopes: np.ndarray) -> None:
        """Search along another direction, whose scores are `slopes`."""
        self.slopes = slopes
        self._direction, self._steps = direction.copy(), steps.copy()

    def carry_to(self, coef: np.ndarray) -> bool:
        """Move the scores to `coef`, unless it is off the line or they would be too inaccurate."""
        if np.array_equal(coef, self._coef):
            return True
        for step in self._steps:
            if np.array_equal(coef, self._coef - step * self._direction):
                break
        else:
            return False
        length = _norm(coef)
        self._travelled += length + step * _norm(self._direction)
        if not self._travelled <= min(_LONGEST_WAY * length, _LARGEST_NORM):
            return False
        advance(self.scores.reshape(-1), self.slopes.reshape(-1), step)
        self._coef = coef.copy()
        return True

    def loss_sums(self, targets, loss, loss_clip, clip, run):
        """Sum the losses of all rows at each step; see `Objective.line_losses`.

        `targets` are the signed inverse norms of rows, their classes and the weights of classes;
        `run` shares chunks among threads.
        """
        signed, classes, weights = targets
        n_steps, n_rows = self._steps.size, signed.size
        spacing = float(self._steps[-1]) / max(1, n_steps - 1)
        chunk_rows = rows_per_chunk(n_rows, 1)
        partials = np.empty((-(-n_rows // chunk_rows), n_steps))
        capped = clip is not None
        clip = min(float(clip), LARGEST) if capped else LARGEST
        loss_clip = LARGEST if capped else min(float(loss_clip), LARGEST)
        reach = min(spacing * _norm(self._direction) * clip, LARGEST / n_steps)
        kind = (weights, loss.code, loss.curvature, chunk_rows)

        def add_losses(first, last):
            if classes is None:
                margin_line_losses(
                    self.scores[0], self.slopes[0], signed, spacing, capped, loss_clip, clip,
                    reach, *kind, first, last, *margin_scratch(n_steps), partials,
                )  # fmt: skip
            else:
                joint_line_losses(
                    self.scores, self.slopes, signed, classes, spacing, loss_clip, *kind, first,
                    last, *joint_scratch(len(self.scores)), partials,
                )  # fmt: skip

        run(add_losses, len(partials), self.scores.size * n_steps)
        return partials.sum(axis=0)


def check_steps(steps: np.ndarray) -> np.ndarray:
    """Return the steps of a line in float64; they must be equally spaced from 0."""
    steps = np.asarray(steps, dtype=np.float64)
    if steps.ndim != 1 or steps.size == 0 or steps[0] != 0 or not np.isfinite(steps).all():
        raise ValueError(f"steps must be a vector of finite numbers that starts at 0, got {steps}.")
    even = np.linspace(0.0, steps[-1], steps.size)
    if steps[-1] < 0 or not np.allclose(steps, even, rtol=1e-12, atol=0.0):
        raise ValueError(f"steps must be equally spaced and increasing, got {steps}.")
    return steps


def _norm(vector):
    with np.errstate(over="ignore"):
        return min(float(np.linalg.norm(vector)), LARGEST)
