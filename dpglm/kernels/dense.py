"""Scores and clipped gradient sums over dense row-major data, each row read from memory once.

Conventions
-----------
- Rows are taken by groups of 8 and blocks of groups small enough to stay in cache: scores, then
  coefficients, then their weighted sum. Meanwhile the next block is asked for, because the sum
  alone would leave the memory idle.
- Inner loops run over `width` elements, the number of features rounded up to a whole vector, so
  that no element is handled outside vector code. What lies beyond the end of a row is the start of
  the next one, multiplied by a coefficient of zero or added to a part of the sum that is dropped.
  The last rows have nothing after them: they come in `tail`, a zero-padded copy.
- Every row goes through the same instructions wherever it stands, so that its contribution depends
  on no other row, to the last bit.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from dpglm.kernels.arithmetic import FAST, copy
from dpglm.kernels.coefficients import joint_coefficients, margin_coefficients
from dpglm.kernels.threads import ROW_GROUP

__all__ = ["TAIL_ROWS", "VECTOR", "dense_gradient", "dense_scores", "rows_per_block"]

VECTOR = 8
# Rows kept in the padded tail: enough for the row before them to be read past its end.
TAIL_ROWS = 2 * ROW_GROUP

_LINE_BYTES = 64
# A block and the next, which is prefetched meanwhile, share the first level of cache.
_BLOCK_BYTES = 16384
# With one output and known scores nothing is read twice: long blocks, prefetched just ahead.
_KNOWN_ROWS = 256
_KNOWN_AHEAD_BYTES = 4096


def _address(context, builder, signature, arguments):
    data = make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def _at(_, array, index):
    """``array[index]`` without the tests for a negative index, which would block vector code."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature, arguments))

    return array.dtype(array, types.int64), generate


@intrinsic
def _prefetch(_, array, index):
    """Start to load the cache line of ``array[index]``; an index past the end is harmless."""

    def generate(context, builder, signature, arguments):
        byte = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        address = builder.bitcast(_address(context, builder, signature, arguments), byte)
        read, keep_in_every_cache, of_data = flag(0), flag(3), flag(1)
        builder.call(hint, [address, read, keep_in_every_cache, of_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@njit(**FAST)
def _score_rows(rows, stride, coef, bias, scores, ahead, lines):
    """scores[i] = rows[i] . coef + bias, and prefetch some `lines` per group"""
    width = (coef.size >> 3) << 3
    for i in range(0, scores.size, 8):
        r0 = i * stride
        r1, r2, r3 = r0 + stride, r0 + 2 * stride, r0 + 3 * stride
        r4, r5, r6, r7 = r0 + 4 * stride, r1 + 4 * stride, r2 + 4 * stride, r3 + 4 * stride
        for line in range(lines):
            _prefetch(rows, r0 + ahead + line * (_LINE_BYTES // rows.itemsize))
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(width):
            v = _at(coef, j)
            s0 += _at(rows, r0 + j) * v
            s1 += _at(rows, r1 + j) * v
            s2 += _at(rows, r2 + j) * v
            s3 += _at(rows, r3 + j) * v
            s4 += _at(rows, r4 + j) * v
            s5 += _at(rows, r5 + j) * v
            s6 += _at(rows, r6 + j) * v
            s7 += _at(rows, r7 + j) * v
        out = scores[i : i + 8]
        out[0], out[1], out[2], out[3] = s0 + bias, s1 + bias, s2 + bias, s3 + bias
        out[4], out[5], out[6], out[7] = s4 + bias, s5 + bias, s6 + bias, s7 + bias


@njit(**FAST)
def _add_rows(rows, stride, coefficients, total, ahead, lines):
    """total += sum of coefficients[i] * rows[i], and prefetch some `lines` per group"""
    width = (total.size >> 3) << 3
    sums = total[:width]
    for i in range(0, coefficients.size, 8):
        r0 = i * stride
        r1, r2, r3 = r0 + stride, r0 + 2 * stride, r0 + 3 * stride
        r4, r5, r6, r7 = r0 + 4 * stride, r1 + 4 * stride, r2 + 4 * stride, r3 + 4 * stride
        for line in range(lines):
            _prefetch(rows, r0 + ahead + line * (_LINE_BYTES // rows.itemsize))
        c = coefficients[i : i + 8]
        c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
        c4, c5, c6, c7 = c[4], c[5], c[6], c[7]
        for j in range(width):
            low = (_at(rows, r0 + j) * c0 + _at(rows, r1 + j) * c1) + (
                _at(rows, r2 + j) * c2 + _at(rows, r3 + j) * c3
            )
            high = (_at(rows, r4 + j) * c4 + _at(rows, r5 + j) * c5) + (
                _at(rows, r6 + j) * c6 + _at(rows, r7 + j) * c7
            )
            sums[j] += low + high


@njit(**FAST)
def _add_part(
    rows, stride, signed, targets, known, skipped, coef, bias, clip, weights, code, curvature,
    block_rows, scratch, total, intercepts,
):  # fmt: skip
    """Add the clipped gradients of consecutive rows to `total` and `intercepts`, block by block."""
    n_outputs = coef.shape[0]
    lines = ROW_GROUP * stride * rows.itemsize // _LINE_BYTES + 1
    # a quarter of the prefetching while scoring, a half for float32, whose sum is done sooner
    early = lines // (rows.itemsize // 2) if known is None else 0
    for first in range(0, signed.size, block_rows):
        n = min(block_rows, signed.size - first)
        block = rows[first * stride :]
        ahead = n * stride
        if known is not None and n_outputs == 1:
            ahead = _KNOWN_AHEAD_BYTES // rows.itemsize
        caps = signed[first : first + n]
        scores, work = scratch[: n_outputs * n], scratch[n_outputs * n : (n_outputs + 3) * n]
        for k in range(n_outputs):
            if known is None:
                _score_rows(
                    block, stride, coef[k], bias[k], scores[k * n : (k + 1) * n],
                    ahead, early if k == 0 else 0,
                )  # fmt: skip
            else:
                copy(known[k, skipped + first : skipped + first + n], scores[k * n : (k + 1) * n])
        if targets is None:
            margin_coefficients(scores, caps, work[:n], clip, weights, code, curvature)
        else:
            classes = targets[first : first + n]
            joint_coefficients(scores, caps, classes, work, clip, weights, code, curvature)
        ahead += early * (_LINE_BYTES // rows.itemsize)
        for k in range(n_outputs):
            coefficients = scores[k * n : (k + 1) * n]
            _add_rows(block, stride, coefficients, total[k], ahead, lines - early if k == 0 else 0)
            moved = 0.0
            for i in range(n):
                moved += coefficients[i]
            intercepts[k] += moved


@njit(cache=True, **FAST)
def dense_gradient(
    rows, tail, n_features, signed, targets, known, coef, bias, clip, weights, code, curvature,
    chunk_rows, first, last, block_rows, scratch, partials, intercepts,
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
    known : float array (K, padded rows), or None
        The scores, which then need not be computed.
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
    block_rows : int
        See `rows_per_block`.
    scratch : float array
        At least K + 3 numbers for each of max(block_rows, TAIL_ROWS) rows.
    partials : float array (chunks, K, width), written
        What lies beyond n_features is meaningless.
    intercepts : float array (chunks, K), written
    """
    width = coef.shape[1]
    n_rows = signed.size
    n_body = n_rows - tail.size // width
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
            _add_part(
                part, stride, signed[i:j], None if targets is None else targets[i:j], known, i,
                coef, bias, clip, weights, code, curvature, block_rows, scratch, partials[chunk],
                intercepts[chunk],
            )  # fmt: skip
            i = j


@njit(cache=True, **FAST)
def dense_scores(
    rows, tail, n_features, coef, bias, chunk_rows, first, last, block_rows, scores
):  # fmt: skip
    """Scores of the rows of the chunks [first, last), written to `scores` (K, padded rows).

    The other arguments are those of `dense_gradient`.
    """
    n_outputs, width = coef.shape
    n_rows = scores.shape[1]
    n_body = n_rows - tail.size // width
    for chunk in range(first, last):
        i = chunk * chunk_rows
        stop = min(i + chunk_rows, n_rows)
        while i < stop:
            if i < n_body:
                j = min(stop, n_body, i + block_rows)
                part, stride = rows[i * n_features :], n_features
            else:
                j = stop
                part, stride = tail[(i - n_body) * width :], width
            for k in range(n_outputs):
                _score_rows(part, stride, coef[k], bias[k], scores[k, i:j], 0, 0)
            i = j


def rows_per_block(n_features: int, itemsize: int, known_output: bool = False) -> int:
    """Rows that are scored before they are added, a whole number of groups."""
    if known_output:
        return _KNOWN_ROWS
    return max(1, _BLOCK_BYTES // (n_features * itemsize) // ROW_GROUP) * ROW_GROUP
