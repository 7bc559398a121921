"""Losses of K outputs at equally spaced steps along a line, from two numbers per row and output.

The sum of losses of a row over its outputs, or its cross entropy, is clipped as a whole. As with
one output, ``exp(z)`` at consecutive steps is a geometric progression unless it might overflow.
"""

import numpy as np
from numba import njit

from dpglm.kernels.arithmetic import EXACT, FAST, exp, log
from dpglm.kernels.cache import kept_on_disk
from dpglm.kernels.line_search import (
    BLOCK_ROWS,
    LARGEST_EXPONENT,
    LARGEST_MARGIN,
    LOG_2,
    LOGISTIC,
    RESTART,
    hinge,
    parabola,
    softplus,
)

__all__ = ["joint_line_losses", "joint_scratch"]

_SOFTMAX = 3


def joint_scratch(n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory for what belongs to the rows of a block, and to their scores."""
    return np.empty((3, BLOCK_ROWS)), np.empty((2, n_outputs, BLOCK_ROWS))


@njit(**FAST)
def _add_clipped(losses, weight, loss_clip):
    total = 0.0
    for i in range(losses.size):
        # A loss is never negative; rounding must not make it so, since the range rests on it.
        total += min(max(weight[i] * losses[i], 0.0), loss_clip)
    return total


@njit(**EXACT)
def _align(scores, slopes, targets, spacing, softmax, usable, start, pace):
    """Write z per output and row: scores less that of the own class, or minus the margins."""
    n = usable.size
    for k in range(scores.shape[0]):
        for i in range(n):
            own = targets[i]
            z, change = scores[k, i], -slopes[k, i]
            if softmax:
                z -= scores[own, i]
                change += slopes[own, i]
            elif own == k:
                z, change = -z, -change
            start[k, i] = z if usable[i] > 0.0 else 0.0
            pace[k, i] = spacing * change if usable[i] > 0.0 else 0.0


@njit(**EXACT)
def _softmax_losses(start, pace, j, peak, total):
    """Write log(sum over outputs of exp(z)) to `total`."""
    n = peak.size
    peak[:] = 0.0
    total[:] = 0.0
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        for i in range(n):
            peak[i] = max(peak[i], z[i] + j * change[i])
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        for i in range(n):
            total[i] += exp(z[i] + j * change[i] - peak[i])
    for i in range(n):
        total[i] = peak[i] + log(total[i])


@njit(**EXACT)
def _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total):
    """Write the sum over outputs of the margin losses to `total`."""
    n = total.size
    total[:] = 0.0
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        if code == LOGISTIC:
            for i in range(n):
                total[i] += softplus(z[i] + j * change[i])
        else:
            for i in range(n):
                total[i] += hinge(z[i] + j * change[i], curved, knee, 1.0, shift)


@njit(**EXACT)
def _progress(power, ratio, softmax, total):
    """Write the losses to `total`, given exp(z), which moves on by one step."""
    n = total.size
    total[:] = 0.0 if softmax else 1.0
    for k in range(len(power)):
        e, r = power[k, :n], ratio[k, :n]
        for i in range(n):
            total[i] = total[i] + e[i] if softmax else total[i] * (1.0 + e[i])
            e[i] *= r[i]
    for i in range(n):
        total[i] = log(total[i])


@kept_on_disk
@njit(**EXACT)
def joint_line_losses(
    scores, slopes, signed, targets, spacing, loss_clip, weights, code, curvature,
    chunk_rows, first, last, scratch, lines, partials,
):  # fmt: skip
    """Sums of the clipped losses of K outputs over the chunks [first, last).

    The arguments are those of `margin_line_losses`, with the classes of rows in `targets`, scores
    of shape (K, padded rows), and `scratch` and `lines` from `joint_scratch`.
    """
    n_outputs, n_steps = scores.shape[0], partials.shape[1]
    softmax = code == _SOFTMAX
    shift = 1.0 + 0.5 / curvature
    curved, knee = parabola(curvature)
    # neither a sum over outputs of exp(z) nor a product of 1 + exp(z) overflows up to there
    tame = LARGEST_EXPONENT - n_outputs * LOG_2
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, BLOCK_ROWS):
            n = min(BLOCK_ROWS, stop - i)
            weight, total, peak = scratch[0, :n], scratch[1, :n], scratch[2, :n]
            start, pace = lines[0], lines[1]
            classes = targets[i:]
            total[:] = 0.0
            for k in range(n_outputs):
                for p in range(n):
                    change = (n_steps - 1) * spacing * slopes[k, i + p]
                    total[p] += abs(scores[k, i + p]) + abs(change)
            fast = (softmax or code == LOGISTIC) and n_steps <= RESTART
            for p in range(n):
                usable = total[p] <= LARGEST_MARGIN and signed[i + p] > 0.0
                weight[p] = weights[classes[p]] if usable else 0.0
                fast = fast and (total[p] <= tame or not usable)
            _align(scores[:, i:], slopes[:, i:], classes, spacing, softmax, weight, start, pace)
            if fast:
                for k in range(n_outputs):
                    for p in range(n):
                        start[k, p] = exp(start[k, p])
                        pace[k, p] = exp(pace[k, p])
            for j in range(n_steps):
                if fast:
                    _progress(start, pace, softmax, total)
                elif softmax:
                    _softmax_losses(start, pace, j, peak, total)
                else:
                    _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total)
                sums[j] += _add_clipped(total, weight, loss_clip)
