"""From the scores of a block of rows to the coefficients of its rows in the clipped sum.

The gradient of row i is ``r_i x_i`` with ``r_i`` the derivative of the loss in the scores, times
the weight of the class; its norm is ``||r_i|| ||x_i||``, so that clipping it to C multiplies r_i by
``min(1, C / (||r_i|| ||x_i||))``. This is where the bound on a record's influence is enforced, for
dense and sparse rows alike. Each output depends on its own row only.

A row with a score that is not finite gets coefficient zero, and so does a row whose inverse norm
is zero (a null record, a row of zeros, a row whose norm overflows).
"""

import math

from numba import njit

from dpglm.kernels.arithmetic import EXACT, LARGEST, exp

__all__ = ["joint_coefficients", "margin_coefficients"]

_LOGISTIC, _SMOOTHED_HINGE, _SOFTMAX = 0, 1, 3
# Added to ||r||^2 so that it cannot vanish by underflow; the norm can only grow by it.
_TINY = 2.0**-1000


@njit(**EXACT)
def _steepness(margins, code, curvature):
    """Replace margins by minus the derivative of the loss, in [0, 1]."""
    if code == _LOGISTIC:
        for i in range(margins.size):
            margins[i] = 1.0 / (1.0 + exp(margins[i]))
    elif code == _SMOOTHED_HINGE:
        for i in range(margins.size):
            margins[i] = min(max(0.5 + (1.0 - margins[i]) * curvature, 0.0), 1.0)
    else:
        for i in range(margins.size):
            margins[i] = 1.0 if margins[i] < 1.0 else 0.0


@njit(**EXACT)
def margin_coefficients(scores, signed, work, clip, weights, code, curvature):
    """One output: replace scores by coefficients.

    `signed` is the label divided by the norm of the row; `work` is scratch of the same size.
    """
    negative, positive = weights[0], weights[1]
    for i in range(scores.size):
        work[i] = math.copysign(1.0, signed[i]) * scores[i]
    _steepness(work, code, curvature)
    for i in range(scores.size):
        weight = positive if signed[i] > 0.0 else negative
        size = min(weight * work[i], clip * abs(signed[i]))
        finite = abs(scores[i]) <= LARGEST
        scores[i] = -math.copysign(size, signed[i]) if finite else 0.0


@njit(**EXACT)
def joint_coefficients(scores, signed, targets, work, clip, weights, code, curvature):
    """K outputs: replace scores by coefficients under one clip for all of them.

    `scores` holds K runs of one score per row, `signed` the inverse norms of the rows, `targets`
    their classes; `work` is scratch for three numbers per row.
    """
    n_rows = signed.size
    n_outputs = scores.size // n_rows
    peak, total, square = work[:n_rows], work[n_rows : 2 * n_rows], work[2 * n_rows :]
    for i in range(n_rows):
        peak[i] = 0.0
        total[i] = 0.0
        square[i] = 0.0
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            # inf or NaN once any score of the row is not finite
            total[i] += abs(row[i]) * 2.0**-64
    for i in range(n_rows):
        finite = total[i] <= LARGEST
        peak[i] = 1.0 if finite else 0.0
    if code == _SOFTMAX:
        _softmax_residuals(scores, targets, total, square)
    else:
        _one_vs_rest_residuals(scores, targets, total, code, curvature)
    for i in range(n_rows):
        square[i] = 0.0
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            square[i] += row[i] * row[i]
    for i in range(n_rows):
        cap = clip * abs(signed[i])
        square[i] = min(weights[targets[i]], cap / math.sqrt(square[i] + _TINY))
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            row[i] = row[i] * square[i] if peak[i] > 0.0 else 0.0


@njit(**EXACT)
def _one_vs_rest_residuals(scores, targets, margins, code, curvature):
    """Replace scores by the derivative of the sum of K margin losses."""
    n_rows = margins.size
    for k in range(scores.size // n_rows):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(row.size):
            margins[i] = row[i] if targets[i] == k else -row[i]
        _steepness(margins, code, curvature)
        for i in range(row.size):
            row[i] = -margins[i] if targets[i] == k else margins[i]


@njit(**EXACT)
def _softmax_residuals(scores, targets, peak, total):
    """Replace scores by the derivative of the cross entropy, p - e_target."""
    n_rows = peak.size
    n_outputs = scores.size // n_rows
    for i in range(n_rows):
        peak[i] = -LARGEST
        total[i] = 0.0
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            peak[i] = max(peak[i], row[i])
    # `total` gathers the other classes only: p - 1 cancels when the row is well classified
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            row[i] = exp(row[i] - peak[i])
            total[i] += 0.0 if targets[i] == k else row[i]
    for i in range(n_rows):
        peak[i] = 0.0
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            peak[i] += row[i] if targets[i] == k else 0.0
    for i in range(n_rows):
        peak[i] = 1.0 / (peak[i] + total[i])
    for k in range(n_outputs):
        row = scores[k * n_rows : (k + 1) * n_rows]
        for i in range(n_rows):
            row[i] = (-total[i] if targets[i] == k else row[i]) * peak[i]
