"""Clipping: from the scores of eight rows to the coefficients of those rows in the clipped sum.

The gradient of row i is ``r_i x_i``, where ``r_i`` is the derivative of the loss in the scores,
times the weights of class and row. Its norm is ``||r_i|| ||x_i||``: clipping to C multiplies
r_i by ``min(1, C / (||r_i|| ||x_i||))``. This code bounds the influence of a record, for dense and
sparse rows alike, and the vault compares it with `dpglm.sums.reference`. Each output depends on its
own row only. ``signed`` are the inverse norms of rows, with the sign of the label.

A row with a score that is not finite gets coefficient zero. So does a row whose inverse norm is
zero: a row of zeros, or a row whose norm overflows.
"""

import math

from numba import njit

from dpglm.kernels.arithmetic import INNER, LARGEST, SMALLEST, exp
from dpglm.kernels.vectors import LANES, add_across, load, spread, store, where

_LOGISTIC, _SMOOTHED_HINGE, _SOFTMAX, _SQUARED, _POISSON = 0, 1, 3, 4, 5
_LARGEST_EXPONENT = 30.0  # as in dpglm.losses


@njit(forceinline=True, **INNER)
def _steepness(margins, code, curvature):
    """Return minus the derivative of the loss, in [0, 1]."""
    if code == _LOGISTIC:
        return 1.0 / (1.0 + exp(margins))
    if code == _SMOOTHED_HINGE:
        return min(max(0.5 + (1.0 - margins) * curvature, 0.0), 1.0)
    return where(margins < 1.0, 1.0, 0.0)


@njit(forceinline=True, **INNER)
def _residual(scores, numbers, code):
    """Return the derivative of a loss of numbers; an exponent beyond 30 counts as 30."""
    if code == _SQUARED:
        return scores - numbers
    power = exp(min(max(scores, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
    return power - numbers if code == _POISSON else 1.0 - numbers / power


@njit(forceinline=True, **INNER)
def single_coefficients(
    scores, signed, numbers, clip, weights, row_weights, first, code, curvature
):  # fmt: skip
    """Return the coefficients of one output, given scores and signed inverse norms.

    The weights of the eight rows, and their numbers, are those from `first` on. Weights are None if
    all are 1, and `numbers` are None if the target has labels.
    """
    if numbers is None:
        sign = math.copysign(1.0, signed)
        slope = -sign * _steepness(sign * scores, code, curvature)
    else:
        slope = _residual(scores, load(numbers, first), code)
    weight = where(signed > 0.0, weights[1], weights[0])
    if row_weights is not None:
        weight = weight * load(row_weights, first)
    # Clipping: the coefficient times the norm of the row is at most `clip`, for every loss.
    size = min(abs(weight * slope), clip * abs(signed))
    # Comparisons with NaN are false: a score of NaN gives zero, as an infinite one does.
    return where(abs(scores) <= LARGEST, math.copysign(size, slope), 0.0)


@njit(**INNER)
def block_coefficients(
    scores, n_rows, signed, targets, numbers, first, clip, weights, row_weights, code, curvature,
    intercepts,
):  # fmt: skip
    """Replace the scores (K, n_rows or more) of a block by coefficients, and add those up.

    `signed`, `targets` and `row_weights` are those of all rows; the block begins at row `first`.
    With one output `targets` is None, `numbers` is None for labels, and `row_weights` if all are 1.
    Blocks are padded to whole vectors with finite numbers.
    """
    for i in range(0, n_rows, LANES):
        own = load(signed, first + i)
        if targets is None:
            found = load(scores, i)
            found = single_coefficients(
                found, own, numbers, clip, weights, row_weights, first + i, code, curvature
            )
            store(scores, i, found)
        else:
            classes = load(targets, first + i)
            _joint_coefficients(
                scores, i, own, classes, clip, weights, row_weights, first + i, code, curvature
            )
        for k in range(len(scores)):
            intercepts[k] += add_across(load(scores, k * scores.shape[1] + i))


@njit(**INNER)
def _joint_coefficients(
    scores, start, signed, classes, clip, weights, row_weights, first, code, curvature
):
    """Replace scores (K, rows) of eight rows, from `start` on, by jointly clipped coefficients.

    `classes` are those of the eight rows, and `signed` their inverse norms.
    """
    n_outputs, n_rows = scores.shape
    finite = spread(1.0)
    for at in range(start, scores.size, n_rows):
        finite = where(abs(load(scores, at)) <= LARGEST, finite, 0.0)
    if code == _SOFTMAX:
        _softmax_residuals(scores, start, classes)
    else:
        for k in range(n_outputs):
            at, sign = start + k * n_rows, where(classes == float(k), 1.0, -1.0)
            store(scores, at, -sign * _steepness(sign * load(scores, at), code, curvature))
    # ||r||^2 must not underflow to zero; the addition can only increase the norm.
    square, weight = spread(SMALLEST), spread(0.0)
    for k in range(n_outputs):
        residual = load(scores, start + k * n_rows)
        square += residual * residual
        weight += where(classes == float(k), weights[k], 0.0)
    if row_weights is not None:
        weight = weight * load(row_weights, first)
    # Clipping: the norm of the row times that of all its coefficients is at most `clip`.
    scale = min(weight, clip * abs(signed) / math.sqrt(square))
    for at in range(start, scores.size, n_rows):
        store(scores, at, where(finite > 0.0, load(scores, at) * scale, 0.0))


@njit(**INNER)
def _softmax_residuals(scores, start, classes):
    """Replace scores by the derivative of the cross entropy, p - e_target."""
    n_outputs, n_rows = scores.shape
    peak = spread(-LARGEST)
    for at in range(start, scores.size, n_rows):
        peak = max(peak, load(scores, at))
    # The sum of the others, because p - 1 cancels when the row is well classified.
    total, others = spread(0.0), spread(0.0)
    for k in range(n_outputs):
        at = start + k * n_rows
        power = exp(load(scores, at) - peak)
        store(scores, at, power)
        total += power
        others += where(classes == float(k), 0.0, power)
    scale = 1.0 / total
    for k in range(n_outputs):
        at = start + k * n_rows
        residual = where(classes == float(k), -others, load(scores, at))
        store(scores, at, residual * scale)
