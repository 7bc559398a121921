"""Scores and clipped gradient sums over dense row-major data, each row read from memory once.

Conventions
-----------
- Rows are taken by groups of 8. While the scores of a group are computed, the group before, whose
  coefficients are known by then, is added to the sum: as fast as memory delivers the one and the
  first level of cache the other. What comes next is prefetched meanwhile.
- Passes run over `width` elements, the number of features rounded up to a whole vector. What lies
  beyond the end of a row is the start of the next one, multiplied by a coefficient of zero or added
  to a part of the sum that is dropped. The last rows have nothing after them: they come in `tail`,
  a zero-padded copy.
- Every row goes through the same instructions wherever it stands, so that its contribution depends
  on no other row, to the last bit.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT
from dpglm.kernels.cache import kept_on_disk
from dpglm.kernels.coefficients import block_coefficients, margin_coefficients
from dpglm.kernels.passes import add, score, score_and_add
from dpglm.kernels.threads import ROW_GROUP
from dpglm.kernels.vectors import LANES, add_across, load, prefetch, spread, store

__all__ = ["TAIL_ROWS", "dense_gradient", "dense_scores"]

# Rows kept in the padded tail: enough for the row before them to be read past its end.
TAIL_ROWS = 2 * ROW_GROUP

# Prefetched so far ahead, or by a group of rows if that is more.
_AHEAD_BYTES = 8192


@njit(**EXACT)
def _ahead(rows, n_features):
    return max(_AHEAD_BYTES // rows.itemsize, ROW_GROUP * n_features)


@njit(**EXACT)
def _add_part(
    rows, stride, signed, known, skipped, coef, bias, clip, weights, code, curvature, ahead, total
):
    """Add the clipped gradients of consecutive rows to `total`; return the sum of coefficients."""
    width = coef.size
    coefficients = moved = spread(0.0)
    for i in range(0, signed.size, ROW_GROUP):
        here, next = i * stride, i * stride + ahead
        if known.size == 0:
            before = max(here - ROW_GROUP * stride, 0)
            scores = bias + score_and_add(
                rows, here, before, stride, None, width, coef, coefficients, total, next
            )
        else:
            scores = load(known[0], skipped + i)
        coefficients = margin_coefficients(scores, load(signed, i), clip, weights, code, curvature)
        moved += coefficients
        if known.size or i + ROW_GROUP == signed.size:
            add(rows, here, stride, None, width, coefficients, total, next)
    return add_across(moved)


@njit(**EXACT)
def _copy_group(rows, start, stride, width, ahead, group):
    """Copy eight rows to where vectors are aligned, and in float64: they are used 2 K times."""
    for j in range(0, width, LANES):
        prefetch(rows, start + ahead + LANES * j)
        for i in range(ROW_GROUP):
            store(group, i * width + j, load(rows, start + i * stride + j))


@njit(**EXACT)
def _add_part_jointly(
    rows, stride, signed, targets, known, skipped, coef, bias, clip, weights, code, curvature,
    ahead, group, scores, total, intercepts,
):  # fmt: skip
    """The same for K outputs, one group of rows after the other."""
    n_outputs, width = coef.shape
    for i in range(0, signed.size, ROW_GROUP):
        _copy_group(rows, i * stride, stride, width, ahead, group)
        for k in range(n_outputs):
            if known.size == 0:
                own = bias[k] + score(group, 0, width, None, width, coef[k], None)
            else:
                own = load(known[k], skipped + i)
            store(scores[k], 0, own)
        block_coefficients(
            scores, ROW_GROUP, signed, targets, i, clip, weights, code, curvature, intercepts
        )
        for k in range(n_outputs):
            add(group, 0, width, None, width, load(scores[k], 0), total[k], None)


@kept_on_disk
@njit(**EXACT)
def dense_gradient(
    rows, tail, n_features, signed, targets, known, coef, bias, clip, weights, code, curvature,
    chunk_rows, first, last, group, scores, partials, intercepts,
):  # fmt: skip
    """Clipped gradient sums of the chunks [first, last).

    Parameters
    ----------
    rows : float array (n_rows * n_features,)
        The data, row after row.
    tail : float array (TAIL_ROWS or fewer, times width)
        The last rows, each zero-padded.
    n_features : int
    signed : float array (padded rows,)
        Inverse norms, with the sign of the label when there is one output; zero in the padding.
    targets : int array (padded rows,), or None
        Classes; None when there is one output, which then has a kernel to itself.
    known : float array (K, padded rows), or empty
        The scores, if they need not be computed.
    coef : float array (K, width)
        Zero-padded.
    bias : float array (K,)
    clip : float
        Finite bound on the norm of a row's gradient.
    weights : float array
        Weight of each class.
    code, curvature
        Of the loss.
    chunk_rows, first, last : int
    group : float array (8 * width,)
        Scratch, used when there are K outputs; best aligned to cache lines.
    scores : float array (K, 8)
        Scratch.
    partials : float array (chunks, K, width), written
        What lies beyond n_features is meaningless.
    intercepts : float array (chunks, K), written
    """
    width = coef.shape[1]
    n_rows = signed.size
    n_body = n_rows - tail.size // width
    ahead = _ahead(rows, n_features)
    for chunk in range(first, last):
        i = chunk * chunk_rows
        stop = min(i + chunk_rows, n_rows)
        partials[chunk] = 0.0
        intercepts[chunk] = 0.0
        while i < stop:
            if i < n_body:
                j = min(stop, n_body)
                part, stride = rows[i * n_features :], n_features
            else:
                j = stop
                part, stride = tail[(i - n_body) * width :], width
            if targets is None:
                intercepts[chunk, 0] += _add_part(
                    part, stride, signed[i:j], known, i, coef[0], bias[0], clip, weights, code,
                    curvature, ahead, partials[chunk, 0],
                )  # fmt: skip
            else:
                _add_part_jointly(
                    part, stride, signed[i:j], targets[i:j], known, i, coef, bias, clip, weights,
                    code, curvature, ahead, group, scores, partials[chunk], intercepts[chunk],
                )  # fmt: skip
            i = j


@kept_on_disk
@njit(**EXACT)
def dense_scores(rows, tail, n_features, coef, bias, chunk_rows, first, last, scores):
    """Scores of the rows of the chunks [first, last), written to `scores` (K, padded rows).

    The other arguments are those of `dense_gradient`.
    """
    n_outputs, width = coef.shape
    n_rows = scores.shape[1]
    n_body = n_rows - tail.size // width
    ahead = _ahead(rows, n_features)
    for i in range(first * chunk_rows, min(last * chunk_rows, n_rows), ROW_GROUP):
        if i < n_body:
            part, stride, here = rows, n_features, i * n_features
        else:
            part, stride, here = tail, width, (i - n_body) * width
        for k in range(n_outputs):
            own = score(part, here, stride, None, width, coef[k], here + ahead)
            store(scores[k], i, own + bias[k])
