"""Losses of K outputs at equally spaced steps along a line, from two numbers per row and output.

The sum of losses of a row over its outputs, or its cross entropy, is clipped as a whole. As with
one output, ``exp(z)`` at consecutive steps is a geometric progression unless it might overflow.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT, FAST, LARGEST, exp, log
from dpglm.kernels.cache import kept_on_disk
from dpglm.kernels.line_search import (
    BLOCK_ROWS,
    LARGEST_EXPONENT,
    LARGEST_MARGIN,
    LOG_2,
    LOGISTIC,
    RESTART,
    hinge,
    logistic,
    parabola,
)

__all__ = ["joint_line_losses"]

_SOFTMAX = 3


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
            start[k * n + i] = z if usable[i] > 0.0 else 0.0
            pace[k * n + i] = spacing * change if usable[i] > 0.0 else 0.0


@njit(**EXACT)
def _softmax_losses(start, pace, j, peak, total):
    """Write log(sum over outputs of exp(z)) to `total`."""
    n = peak.size
    peak[:] = 0.0
    total[:] = 0.0
    for k in range(start.size // n):
        z, change = start[k * n : (k + 1) * n], pace[k * n : (k + 1) * n]
        for i in range(n):
            peak[i] = max(peak[i], z[i] + j * change[i])
    for k in range(start.size // n):
        z, change = start[k * n : (k + 1) * n], pace[k * n : (k + 1) * n]
        for i in range(n):
            total[i] += exp(z[i] + j * change[i] - peak[i])
    for i in range(n):
        total[i] = peak[i] + log(total[i])


@njit(**EXACT)
def _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total):
    """Write the sum over outputs of the margin losses to `total`."""
    n = total.size
    total[:] = 0.0
    for k in range(start.size // n):
        z, change = start[k * n : (k + 1) * n], pace[k * n : (k + 1) * n]
        if code == LOGISTIC:
            for i in range(n):
                total[i] += logistic(z[i] + j * change[i], 1.0, LARGEST, 0.0)
        else:
            for i in range(n):
                total[i] += hinge(z[i] + j * change[i], curved, knee, 1.0, shift)


@njit(**EXACT)
def _tame(start, pace, last, total):
    """Whether exp(z) of no row can overflow, nor a product or sum of them over outputs."""
    n = total.size
    total[:] = 0.0
    for k in range(start.size // n):
        z, change = start[k * n : (k + 1) * n], pace[k * n : (k + 1) * n]
        for i in range(n):
            total[i] += abs(z[i]) + last * abs(change[i]) + LOG_2
    largest = 0.0
    for i in range(n):
        largest = max(largest, total[i])
    return largest <= LARGEST_EXPONENT


@njit(**EXACT)
def _progress(power, ratio, softmax, total):
    """Write the losses to `total`, given exp(z), which moves on by one step."""
    n = total.size
    total[:] = 0.0 if softmax else 1.0
    for k in range(power.size // n):
        e, r = power[k * n : (k + 1) * n], ratio[k * n : (k + 1) * n]
        for i in range(n):
            total[i] = total[i] + e[i] if softmax else total[i] * (1.0 + e[i])
            e[i] *= r[i]
    for i in range(n):
        total[i] = log(total[i])


@kept_on_disk
@njit(**EXACT)
def joint_line_losses(
    scores, slopes, signed, targets, spacing, loss_clip, weights, code, curvature,
    chunk_rows, first, last, scratch, partials,
):  # fmt: skip
    """Sums of the clipped losses of K outputs over the chunks [first, last).

    The arguments are those of `margin_line_losses`, with the classes of rows in `targets` and
    scores of shape (K, padded rows).
    """
    n_outputs, n_steps = scores.shape[0], partials.shape[1]
    size = BLOCK_ROWS
    softmax = code == _SOFTMAX
    shift = 1.0 + 0.5 / curvature
    curved, knee = parabola(curvature)
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, size):
            n = min(size, stop - i)
            weight, total = scratch[:n], scratch[size : size + n]
            peak, rest = scratch[2 * size : 2 * size + n], scratch[3 * size :]
            start, pace = rest[: n_outputs * n], rest[n_outputs * n : 2 * n_outputs * n]
            classes = targets[i : i + n]
            total[:] = 0.0
            for k in range(n_outputs):
                for p in range(n):
                    change = (n_steps - 1) * spacing * slopes[k, i + p]
                    total[p] += abs(scores[k, i + p]) + abs(change)
            for p in range(n):
                usable = total[p] <= LARGEST_MARGIN and signed[i + p] > 0.0
                weight[p] = weights[classes[p]] if usable else 0.0
            _align(
                scores[:, i : i + n], slopes[:, i : i + n], classes, spacing, softmax, weight,
                start, pace,
            )  # fmt: skip
            fast = (softmax or code == LOGISTIC) and n_steps <= RESTART
            if fast:
                fast = _tame(start, pace, n_steps - 1, total)
            if fast:
                for p in range(start.size):
                    start[p] = exp(start[p])
                    pace[p] = exp(pace[p])
            for j in range(n_steps):
                if fast:
                    _progress(start, pace, softmax, total)
                elif softmax:
                    _softmax_losses(start, pace, j, peak, total)
                else:
                    _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total)
                sums[j] += _add_clipped(total, weight, loss_clip)
