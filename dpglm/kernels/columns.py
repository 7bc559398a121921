"""Scores and clipped gradient sums over dense column-major data, each number read from memory once.

Rows are taken by blocks of a few hundred, of which each column is one contiguous stretch, and which
stay in the second level of cache: adding columns gives the scores of a block, and products of its
columns with the coefficients of the rows its part of the gradient.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT, copy
from dpglm.kernels.cache import kept_on_disk
from dpglm.kernels.coefficients import block_coefficients
from dpglm.kernels.passes import add, score
from dpglm.kernels.vectors import LANES, load, spread, store

__all__ = ["column_gradient", "column_scores", "rows_per_block"]

# The second level of cache of any processor in use has room for it.
_BLOCK_BYTES = 2**18


@njit(**EXACT)
def _score_block(columns, start, stride, n_features, coef, bias, scores):
    """Scores of the rows that begin at `start` in the first column."""
    for p in range(0, scores.size, LANES):
        store(scores, p, spread(bias))
    for j in range(0, n_features, LANES):
        here, room = start + j * stride, (n_features - 1 - j) * stride
        add(columns, here, stride, room, scores.size, load(coef, j), scores, None)


@njit(**EXACT)
def _add_block(columns, start, stride, n_features, coefficients, total):
    """Add the products of columns with the coefficients of the rows to `total`."""
    for j in range(0, n_features, LANES):
        here, room = start + j * stride, (n_features - 1 - j) * stride
        products = score(columns, here, stride, room, coefficients.size, coefficients, None)
        store(total, j, load(total, j) + products)


@kept_on_disk
@njit(**EXACT)
def column_gradient(
    columns, tail, n_features, signed, targets, known, coef, bias, clip, weights, code, curvature,
    chunk_rows, first, last, block_rows, scratch, partials, intercepts,
):  # fmt: skip
    """Clipped gradient sums of the chunks [first, last).

    The arguments are those of `dense_gradient`, but for these:

    Parameters
    ----------
    columns : float array (n_features * n_rows,)
        The data, column after column.
    tail : float array (8 * n_features,), or empty
        The last rows, column after column, if they are not a whole group; zero-padded.
    block_rows : int
        See `rows_per_block`.
    scratch : float array (K, block_rows)
    """
    n_outputs = coef.shape[0]
    n_rows, n_body = signed.size, signed.size - tail.size // n_features
    length = columns.size // n_features
    for chunk in range(first, last):
        i = chunk * chunk_rows
        stop = min(i + chunk_rows, n_rows)
        partials[chunk] = 0.0
        intercepts[chunk] = 0.0
        while i < stop:
            if i < n_body:
                n = min(block_rows, min(stop, n_body) - i)
                part, start, stride = columns, i, length
            else:
                n = LANES
                part, start, stride = tail, 0, LANES
            for k in range(n_outputs):
                if known.size == 0:
                    _score_block(part, start, stride, n_features, coef[k], bias[k], scratch[k, :n])
                else:
                    copy(known[k, i:], scratch[k, :n])
            block_coefficients(
                scratch, n, signed, targets, i, clip, weights, code, curvature, intercepts[chunk]
            )
            for k in range(n_outputs):
                _add_block(part, start, stride, n_features, scratch[k, :n], partials[chunk, k])
            i += n


@kept_on_disk
@njit(**EXACT)
def column_scores(
    columns, tail, n_features, coef, bias, chunk_rows, first, last, block_rows, scores
):
    """Scores of the rows of the chunks [first, last), written to `scores` (K, padded rows).

    The other arguments are those of `column_gradient`.
    """
    n_rows, n_body = scores.shape[1], scores.shape[1] - tail.size // n_features
    length = columns.size // n_features
    i, stop = first * chunk_rows, min(last * chunk_rows, n_rows)
    while i < stop:
        if i < n_body:
            n = min(block_rows, min(stop, n_body) - i)
            part, start, stride = columns, i, length
        else:
            n = LANES
            part, start, stride = tail, 0, LANES
        for k in range(coef.shape[0]):
            _score_block(part, start, stride, n_features, coef[k], bias[k], scores[k, i : i + n])
        i += n


def rows_per_block(n_features: int, itemsize: int) -> int:
    """Rows whose columns are read for the scores and then again for the gradient."""
    return max(64, _BLOCK_BYTES // (n_features * itemsize) // LANES * LANES)
