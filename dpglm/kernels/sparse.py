"""Scores and clipped gradient sums over compressed sparse rows, each row read from memory once.

The rows must be in canonical form: a column that is stored twice would make the norm wrong.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT, copy
from dpglm.kernels.cache import kept_on_disk
from dpglm.kernels.coefficients import block_coefficients
from dpglm.kernels.vectors import at, put

__all__ = ["BLOCK_ROWS", "sparse_gradient", "sparse_scores"]

# Rows that are scored before they are added: they stay in the first level of cache meanwhile.
BLOCK_ROWS = 256

# A product and a sum are not contracted here: what matters is how long a number of the sum has to
# wait for the row before, and a sum alone takes less time than both at once.
_APART = {**EXACT, "fastmath": {"nsz"}}


@njit(**_APART)
def _score_rows(data, columns, row_ends, first, coef, bias, scores):
    """scores[i] = row (first + i) . coef + bias"""
    end = at(row_ends, first)
    for i in range(scores.size):
        start, end = end, at(row_ends, first + i + 1)
        score = bias
        for p in range(start, end):
            score += at(data, p) * at(coef, at(columns, p))
        put(scores, i, score)


@njit(**_APART)
def _add_rows(data, columns, row_ends, first, coefficients, total):
    """total += sum of coefficients[i] * row (first + i)"""
    end = at(row_ends, first)
    for i in range(coefficients.size):
        start, end = end, at(row_ends, first + i + 1)
        coefficient = at(coefficients, i)
        for p in range(start, end):
            column = at(columns, p)
            put(total, column, at(total, column) + coefficient * at(data, p))


@kept_on_disk
@njit(**EXACT)
def sparse_gradient(
    data, columns, row_ends, signed, targets, known, coef, bias, clip, weights, code, curvature,
    chunk_rows, first, last, scratch, partials, intercepts,
):  # fmt: skip
    """Clipped gradient sums of the chunks [first, last).

    The arguments are those of `dense_gradient`, with the data in three arrays: stored values, their
    columns and where each row begins. `scratch` has shape (K, BLOCK_ROWS) and is finite.
    """
    n_outputs = coef.shape[0]
    n_rows = row_ends.size - 1
    for chunk in range(first, last):
        start = chunk * chunk_rows
        stop = min(start + chunk_rows, n_rows)
        partials[chunk] = 0.0
        intercepts[chunk] = 0.0
        for i in range(start, stop, BLOCK_ROWS):
            n = min(BLOCK_ROWS, stop - i)
            for k in range(n_outputs):
                if known.size == 0:
                    _score_rows(data, columns, row_ends, i, coef[k], bias[k], scratch[k, :n])
                else:
                    copy(known[k, i:], scratch[k, :n])
            block_coefficients(
                scratch, n, signed, targets, i, clip, weights, code, curvature, intercepts[chunk]
            )
            for k in range(n_outputs):
                coefficients = scratch[k, :n]
                _add_rows(data, columns, row_ends, i, coefficients, partials[chunk, k])


@kept_on_disk
@njit(**EXACT)
def sparse_scores(data, columns, row_ends, coef, bias, chunk_rows, first, last, scores):
    """Scores of the rows of the chunks [first, last), written to `scores` (K, padded rows)."""
    start, stop = first * chunk_rows, min(last * chunk_rows, row_ends.size - 1)
    for k in range(coef.shape[0]):
        for i in range(start, stop, BLOCK_ROWS):
            out = scores[k, i : min(i + BLOCK_ROWS, stop)]
            _score_rows(data, columns, row_ends, i, coef[k], bias[k], out)
