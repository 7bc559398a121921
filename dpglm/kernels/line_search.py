"""Losses of all rows at equally spaced steps along a line, from two numbers per row and output.

Scores are linear in the step: given those of the coefficients and of the direction, the data are no
longer needed.

Conventions
-----------
- A loss is an increasing function of ``z = -margin``; at step number j, ``z = start + j pace``.
- A row without influence is null, or has a norm or a margin that is not finite. Such a row has zero
  weight, start and pace, and adds exactly zero to every sum.
- Slopes are capped to sum losses whose gradients are the clipped ones. A loss is then extended by a
  straight line from its knee on, where its slope reaches ``clip / ||x||``.
- The sum of the losses of a row over K outputs, or its cross entropy, is clipped as a whole.
"""

import math

import numpy as np
from numba import njit

from dpglm.kernels.arithmetic import EXACT, INNER, LARGEST, SMALLEST, exp, kernel, log
from dpglm.kernels.vectors import LANES, add_across, load, spread, store, where

_LOGISTIC, _SOFTMAX = 0, 3
# Margins beyond this count as not finite: products with slopes and weights must not overflow.
_LARGEST_MARGIN = 2.0**500


@kernel(**EXACT)
def advance(scores, slopes, step):
    """Compute ``scores -= step * slopes`` in place."""
    for i in range(scores.size):
        scores[i] -= step * slopes[i]


@njit(**INNER)
def _softplus(z):
    """Return log(1 + exp(z)), the logistic loss."""
    return max(z, 0.0) + log(1.0 + exp(-abs(z)))


@njit(**INNER)
def _hinge(z, curved, knee, slope, shift):
    """Return the weighted hinge loss: a parabola up to the knee, then a line."""
    shortfall = max(z + shift, 0.0)
    bent = min(shortfall, knee)
    return curved * bent * bent + slope * (shortfall - bent)


@njit(**INNER)
def _parabola(curvature):
    """Return the coefficient and the width of the curved part of the hinge loss."""
    width = 1.0 / curvature
    return 0.5 * curvature if width > 0.0 else 0.0, width


@kernel(**EXACT)
def margin_line_losses(
    scores, slopes, signed, spacing, capped, loss_clip, clip, reach, weights, row_weights, code,
    curvature, chunk_rows, first, last, losses, partials,
):  # fmt: skip
    """Write the sums of the losses of one output over the chunks [first, last) to `partials`.

    scores, slopes : float arrays (padded rows,), of the coefficients and the direction to subtract
    signed : float array (padded rows,), inverse norms with the sign of the label; zero for a row
        without influence
    spacing : from one step to the next; the first is zero
    capped : whether to sum differences of losses with capped slopes, not clipped losses
    loss_clip : finite bound on the loss of a row times its weight, if not `capped`
    clip : finite bound on the norm of the gradient of a row, if `capped`
    reach : bound on the change of a row's capped loss from one step to the next; None where rows
        divide a clipping norm, and each is bounded by its own largest slope
    weights, row_weights : of the classes (2,), and of the rows, padded; None if all of these are 1
    code, curvature : of the loss
    losses : float array (steps, LANES), scratch
    partials : float array (chunks, steps)
    """
    n_steps = partials.shape[1]
    (quadratic, width), shift = _parabola(curvature), 1.0 + 0.5 / curvature
    for chunk in range(first, last):
        losses[:] = 0.0
        for i in range(chunk * chunk_rows, min((chunk + 1) * chunk_rows, signed.size), LANES):
            own = load(signed, i)
            weight = where(own > 0.0, weights[1], weights[0])
            if row_weights is not None:
                weight = weight * load(row_weights, i)
            score, change = load(scores, i), spacing * load(slopes, i)
            most = where(abs(own) > 0.0, abs(score) + (n_steps - 1.0) * abs(change), LARGEST)
            usable, sign = most <= _LARGEST_MARGIN, math.copysign(1.0, own)
            start, pace = where(usable, -sign * score, 0.0), where(usable, sign * change, 0.0)
            weight = where(usable, weight, 0.0)
            # The largest slope, and where it is reached.
            slope = min(weight, clip * abs(own)) if capped else weight
            if code == _LOGISTIC:
                odds = slope / (weight - slope)
                knee = where(slope < weight, log(max(odds, SMALLEST)), LARGEST)
            else:
                knee = where(weight > 0.0, width * (slope / weight), 0.0)
            base = spread(0.0)
            for j in range(n_steps):
                z = start + float(j) * pace
                if code == _LOGISTIC:
                    # Up to the knee, then a line.
                    loss = weight * _softplus(min(z, knee)) + slope * max(z - knee, 0.0)
                else:
                    loss = _hinge(z, quadratic * weight, knee, slope, shift)
                if capped:
                    base = loss if j == 0 else base
                    loss -= base
                low, high = -loss_clip, loss_clip
                if reach is None:  # known when this is compiled: other fits do not wait for it
                    change = slope * (float(j) * pace)
                    loss = min(max(loss, min(change, 0.0)), max(change, 0.0))
                else:
                    low = -j * reach if capped else 0.0
                    high = j * reach if capped else loss_clip
                store(losses, j * LANES, load(losses, j * LANES) + min(max(loss, low), high))
        for j in range(n_steps):
            partials[chunk, j] = add_across(load(losses, j * LANES))


@njit(forceinline=True, **INNER)
def _align(scores, slopes, i, classes, spacing, n_steps, softmax, start, pace):
    """Write z per output of eight rows: scores less that of the own class, or minus the margins.

    Return the sum over outputs of the largest scores. Rows in which it is not finite, or huge, are
    those without a finite margin: their z are zero.
    """
    n_outputs, n_rows = scores.shape
    own = own_change = reach = spread(0.0)
    for k in range(n_outputs):
        score, change = load(scores, k * n_rows + i), spacing * load(slopes, k * n_rows + i)
        reach += abs(score) + (n_steps - 1.0) * abs(change)
        own = where(classes == float(k), score, own)
        own_change = where(classes == float(k), change, own_change)
    for k in range(n_outputs):
        z, change = load(scores, k * n_rows + i), -(spacing * load(slopes, k * n_rows + i))
        if softmax:
            z, change = z - own, change + own_change
        else:
            sign = where(classes == float(k), -1.0, 1.0)
            z, change = sign * z, sign * change
        store(start, k * LANES, where(reach <= _LARGEST_MARGIN, z, 0.0))
        store(pace, k * LANES, where(reach <= _LARGEST_MARGIN, change, 0.0))
    return reach


@njit(**INNER)
def _joint_loss(start, pace, j, code, curvature):
    """Return log(sum over outputs of exp(z)) of eight rows, or the sum of their margin losses."""
    curved, knee = _parabola(curvature)
    peak, total = spread(0.0), spread(0.0)
    for k in range(0, start.size, LANES):
        peak = max(peak, load(start, k) + j * load(pace, k))
    for k in range(0, start.size, LANES):
        z = load(start, k) + j * load(pace, k)
        if code == _SOFTMAX:
            total += exp(z - peak)
        elif code == _LOGISTIC:
            total += _softplus(z)
        else:
            total += _hinge(z, curved, knee, 1.0, 1.0 + 0.5 / curvature)
    return peak + log(total) if code == _SOFTMAX else total


@kernel(**EXACT)
def joint_line_losses(
    scores, slopes, signed, targets, spacing, loss_clip, weights, row_weights, code, curvature,
    chunk_rows, first, last, start, pace, losses, partials,
):  # fmt: skip
    """Write the sums of the clipped losses of K outputs over the chunks [first, last).

    The arguments are those of `margin_line_losses`, with the classes of rows in `targets` and
    scores of shape (K, padded rows). `start`, `pace`, both (K, LANES), and `losses` (steps, LANES)
    are scratch.
    """
    n_outputs, n_steps = scores.shape[0], partials.shape[1]
    softmax = code == _SOFTMAX
    for chunk in range(first, last):
        losses[:] = 0.0
        for i in range(chunk * chunk_rows, min((chunk + 1) * chunk_rows, signed.size), LANES):
            classes, weight = load(targets, i), spread(0.0)
            reach = _align(scores, slopes, i, classes, spacing, n_steps, softmax, start, pace)
            for k in range(n_outputs):
                weight = where(classes == float(k), weights[k], weight)
            if row_weights is not None:
                weight = weight * load(row_weights, i)
            weight = where(reach <= _LARGEST_MARGIN, weight, 0.0)
            weight = where(load(signed, i) > 0.0, weight, 0.0)
            for j in range(n_steps):
                loss = weight * _joint_loss(start, pace, float(j), code, curvature)
                # A loss must not become negative by rounding: the range of the sum needs that.
                loss = min(max(loss, 0.0), loss_clip)
                store(losses, j * LANES, load(losses, j * LANES) + loss)
        for j in range(n_steps):
            partials[chunk, j] = add_across(load(losses, j * LANES))


def line_losses(
    scores, slopes, signed, targets, spacing, capped, loss_clip, clip, reach, weights, row_weights,
    code, curvature, chunk_rows, first, last, partials,
):  # fmt: skip
    """Write the sums of the losses over the chunks [first, last), for any number of outputs.

    The arguments are those of the two kernels, and the scores have shape (K, padded rows).
    """
    how = weights, row_weights, code, curvature, chunk_rows, first, last
    losses = aligned(partials.shape[1], LANES)
    if targets is None:
        margin_line_losses(
            scores[0], slopes[0], signed, spacing, capped, loss_clip, clip, reach, *how, losses,
            partials,
        )  # fmt: skip
    else:
        joint_line_losses(
            scores, slopes, signed, targets, spacing, loss_clip, *how,
            *aligned(2, len(scores), LANES), losses, partials,
        )  # fmt: skip


def aligned(*shape: int) -> np.ndarray:
    """Return an empty float64 array in which no vector crosses a line of the cache."""
    size = math.prod(shape)
    buffer = np.empty(size + LANES)
    start = -buffer.ctypes.data % 64 // buffer.itemsize
    return buffer[start : start + size].reshape(shape)
