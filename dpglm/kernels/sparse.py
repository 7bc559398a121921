"""Scores and clipped gradient sums over compressed sparse rows, each row read from memory once.

The rows must be in canonical form: a column that is stored twice would make the norm wrong.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT, copy
from dpglm.kernels.coefficients import joint_coefficients, margin_coefficients

__all__ = ["BLOCK_ROWS", "sparse_gradient", "sparse_scores"]

BLOCK_ROWS = 256


@njit(**EXACT)
def _score_rows(data, columns, row_ends, first, coef, bias, scores):
    """scores[i] = row (first + i) . coef + bias"""
    for i in range(scores.size):
        low, high = row_ends[first + i], row_ends[first + i + 1]
        values, where = data[low:high], columns[low:high]
        score = bias
        for p in range(values.size):
            score += values[p] * coef[where[p]]
        scores[i] = score


@njit(**EXACT)
def _add_rows(data, columns, row_ends, first, coefficients, total):
    """total += sum of coefficients[i] * row (first + i)"""
    for i in range(coefficients.size):
        low, high = row_ends[first + i], row_ends[first + i + 1]
        values, where = data[low:high], columns[low:high]
        coefficient = coefficients[i]
        for p in range(values.size):
            total[where[p]] += coefficient * values[p]


@njit(cache=True, **EXACT)
def sparse_gradient(
    data, columns, row_ends, signed, targets, known, coef, bias, clip, weights, code, curvature,
    chunk_rows, first, last, scratch, partials, intercepts,
):  # fmt: skip
    """Clipped gradient sums of the chunks [first, last).

    The arguments are those of `dense_gradient`, with the data in three arrays: stored values, their
    columns (unsigned, which spares a test for negative indices) and where each row begins.
    `scratch` has room for K + 3 numbers for each of BLOCK_ROWS rows.
    """
    n_outputs = coef.shape[0]
    n_rows = row_ends.size - 1
    for chunk in range(first, last):
        start = chunk * chunk_rows
        stop = min(start + chunk_rows, n_rows)
        total, intercept = partials[chunk], intercepts[chunk]
        total[:] = 0.0
        intercept[:] = 0.0
        for i in range(start, stop, BLOCK_ROWS):
            n = min(BLOCK_ROWS, stop - i)
            caps = signed[i : i + n]
            scores, work = scratch[: n_outputs * n], scratch[n_outputs * n : (n_outputs + 3) * n]
            for k in range(n_outputs):
                out = scores[k * n : (k + 1) * n]
                if known is None:
                    _score_rows(data, columns, row_ends, i, coef[k], bias[k], out)
                else:
                    copy(known[k, i : i + n], out)
            if targets is None:
                margin_coefficients(scores, caps, work[:n], clip, weights, code, curvature)
            else:
                classes = targets[i : i + n]
                joint_coefficients(scores, caps, classes, work, clip, weights, code, curvature)
            for k in range(n_outputs):
                coefficients = scores[k * n : (k + 1) * n]
                _add_rows(data, columns, row_ends, i, coefficients, total[k])
                for p in range(n):
                    intercept[k] += coefficients[p]


@njit(cache=True, **EXACT)
def sparse_scores(data, columns, row_ends, coef, bias, chunk_rows, first, last, scores):
    """Scores of the rows of the chunks [first, last), written to `scores` (K, padded rows)."""
    n_rows = row_ends.size - 1
    start, stop = first * chunk_rows, min(last * chunk_rows, n_rows)
    for k in range(coef.shape[0]):
        for i in range(start, stop, BLOCK_ROWS):
            out = scores[k, i : min(i + BLOCK_ROWS, stop)]
            _score_rows(data, columns, row_ends, i, coef[k], bias[k], out)
