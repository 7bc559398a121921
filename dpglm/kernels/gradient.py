"""Scores, clipped gradient sums, norms, magnitudes and products of dense and of sparse rows.

Conventions
-----------
- Rows are read from memory once; dense ones by groups of 8. While the scores of a group are
  computed, the group before is added to the sum from the first level of cache.
- Passes run over `width` elements, the number of features rounded up to a whole vector. The
  elements beyond the end of a row are those of the next row. They are multiplied by a coefficient
  of zero or added to an unused part of the sum. The last rows are in a zero-padded copy. So dense
  kernels take two tuples, `runs` of rows. A run is a flat array, the distance from one row to the
  next, the number of the first row and that after the last.
- The norms of rows in a basis P are those of their products with R, where ``P' = Q R``: a triangle,
  which saves half of the products.
- Sparse rows must be in canonical form: a column that is stored twice would make the norm wrong.
  Unsigned indices spare a test for negative ones.
- Every row goes through the same instructions in every position, so that its contribution depends
  on no other row, to the last bit.
"""

import numpy as np
from numba import njit

from dpglm.kernels.arithmetic import EXACT, INNER, kernel
from dpglm.kernels.clip import block_coefficients, single_coefficients
from dpglm.kernels.vectors import LANES, add_across, lane, load, prefetch, spread, store, sum_each

# Dense rows are taken by groups of this size, and a chunk is a whole number of groups.
ROW_GROUP = 8
# The distance of prefetches, unless a group of rows is larger.
_AHEAD_BYTES = 8192  # speed only
# Sparse rows scored before they are added: they stay in the first level of cache.
BLOCK_ROWS = 256

# For sparse rows a product and a sum are not contracted. Elements of the sum wait for the row
# before, and an addition alone takes less time than a contracted operation.
_APART = {"fastmath": {"nsz"}}


@njit(**INNER)
def _ahead(rows, stride):
    return max(_AHEAD_BYTES // rows.itemsize, ROW_GROUP * stride)  # speed only


@njit(forceinline=True, **INNER)
def _starts(start, stride):
    """Return where eight rows begin."""
    s1, s2 = start + stride, start + 2 * stride
    s4 = s2 + 2 * stride
    return start, s1, s2, s2 + stride, s4, s4 + stride, s4 + 2 * stride, s4 + 3 * stride


@njit(forceinline=True, **INNER)
def _score_and_add(
    data, scored, added, stride, width, weights, w, factors, total, t, ahead
):  # fmt: skip
    """Return the scores of eight rows, while eight others are added to `total`.

    The rows begin at `scored` and at `added`, `stride` numbers apart, and have `width` numbers.
    Without `weights`, of which those from `w` on are taken, nothing is scored. Without `total`,
    from `t` on, nothing is added. `factors` multiply the eight rows. Eight times `width` numbers
    are prefetched from `ahead`, if any.
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = _starts(scored, stride)
    a0, a1, a2, a3, a4, a5, a6, a7 = _starts(added, stride)
    f0, f1, f2, f3 = lane(factors, 0), lane(factors, 1), lane(factors, 2), lane(factors, 3)
    f4, f5, f6, f7 = lane(factors, 4), lane(factors, 5), lane(factors, 6), lane(factors, 7)
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = spread(0.0)
    for j in range(0, width, LANES):
        if ahead is not None:
            prefetch(data, ahead + LANES * j)  # speed only
        if weights is not None:
            weight = load(weights, w + j)
            p0 += load(data, s0 + j) * weight
            p1 += load(data, s1 + j) * weight
            p2 += load(data, s2 + j) * weight
            p3 += load(data, s3 + j) * weight
            p4 += load(data, s4 + j) * weight
            p5 += load(data, s5 + j) * weight
            p6 += load(data, s6 + j) * weight
            p7 += load(data, s7 + j) * weight
        if total is not None:
            # A tree rather than a chain: few additions wait for one another.
            t0 = load(data, a0 + j) * f0 + load(data, a4 + j) * f4
            t1 = load(data, a1 + j) * f1 + load(data, a5 + j) * f5
            t2 = load(data, a2 + j) * f2 + load(data, a6 + j) * f6
            t3 = load(data, a3 + j) * f3 + load(data, a7 + j) * f7
            store(total, t + j, load(total, t + j) + ((t0 + t1) + (t2 + t3)))
    return sum_each(p0, p1, p2, p3, p4, p5, p6, p7)


@njit(forceinline=True, **INNER)
def _score(data, start, stride, width, weights, w, ahead):
    """Return the scores of eight rows, and add none."""
    none = spread(0.0)
    return _score_and_add(data, start, start, stride, width, weights, w, none, None, 0, ahead)


@njit(forceinline=True, **INNER)
def _add(data, start, stride, width, factors, total, t, ahead):
    """Add eight rows to `total`, without scores."""
    _score_and_add(data, start, start, stride, width, None, 0, factors, total, t, ahead)


@njit(**INNER)
def _add_rows(
    rows, stride, begin, start, stop, signed, numbers, known, coef, bias, clip, weights,
    row_weights, code, curvature, total, t,
):  # fmt: skip
    """Add the clipped gradients of rows [start, stop); return the sum of their coefficients."""
    width, ahead = coef.size, _ahead(rows, stride)
    coefficients = moved = spread(0.0)
    for i in range(start, stop, ROW_GROUP):
        here = (i - begin) * stride
        if known is None:
            before = max(here - ROW_GROUP * stride, 0)
            scores = bias[0] + _score_and_add(
                rows, here, before, stride, width, coef, 0, coefficients, total, t, here + ahead
            )
        else:
            scores = load(known, i)
        coefficients = single_coefficients(
            scores, load(signed, i), numbers, clip, weights, row_weights, i, code, curvature
        )
        moved += coefficients
        # The last group has none after it to be added along with.
        if known is not None or i + ROW_GROUP == stop:
            _add(rows, here, stride, width, coefficients, total, t, here + ahead)
    return add_across(moved)


@njit(**INNER)
def _add_rows_jointly(
    rows, stride, begin, start, stop, signed, targets, known, coef, bias, clip, weights,
    row_weights, code, curvature, copied, scores, total, t, intercepts,
):  # fmt: skip
    """Do the same for K outputs, one block of rows after the other."""
    (n_outputs, width), (_, size), ahead = coef.shape, scores.shape, _ahead(rows, stride)
    for block in range(start, stop, size):
        n = min(size, stop - block)
        # Vectors of float64 that cross no line of the cache: they are read 2 K times.
        for i in range(n):
            here = (block + i - begin) * stride
            for j in range(0, width, LANES):
                prefetch(rows, here + ahead + j)  # speed only
                store(copied, i * width + j, load(rows, here + j))
        for i in range(0, n, ROW_GROUP):
            for k in range(n_outputs):
                if known is None:
                    own = _score(copied, i * width, width, width, coef, k * width, None) + bias[k]
                else:
                    own = load(known, k * signed.size + block + i)
                store(scores, k * size + i, own)
        block_coefficients(
            scores, n, signed, targets, None, block, clip, weights, row_weights, code, curvature,
            intercepts,
        )  # fmt: skip
        for i in range(0, n, ROW_GROUP):
            for k in range(n_outputs):
                own = load(scores, k * size + i)
                _add(copied, i * width, width, width, own, total, t + k * width, None)


@kernel(**EXACT)
def dense_gradient(
    runs, signed, targets, numbers, known, coef, bias, clip, weights, row_weights, code, curvature,
    chunk_rows, first, last, copied, scores, partials, intercepts,
):  # fmt: skip
    """Add the clipped gradients of chunks [first, last) to `partials`, `intercepts`.

    runs : as above; arrays are read to the end of a last row of `width`
    signed : float array (padded rows,), inverse norms, with the sign of the label when there is one
        output; zero in the padding
    targets : int array (padded rows,), classes; None when there is one output
    numbers : float array (padded rows,), a target of numbers; None for labels
    known : float array (K, padded rows), the scores; None if they must be computed
    coef, bias : float arrays (K, width), zero-padded, and (K,)
    clip : finite bound on the norm of a row's gradient
    weights, row_weights : of the classes, and of the rows, padded; None if all of these are 1
    code, curvature : of the loss
    copied, scores : float arrays (rows of a block, width) and (K, rows of a block), scratch; None
        when there is one output
    partials, intercepts : float arrays (chunks, K, width), meaningless beyond n_features, and
        (chunks, K)
    """
    for rows, stride, begin, end in runs:
        for chunk in range(first, last):
            start, stop = max(chunk * chunk_rows, begin), min((chunk + 1) * chunk_rows, end)
            if start >= stop:
                continue
            t = chunk * coef.size
            if targets is None:
                intercepts[chunk, 0] += _add_rows(
                    rows, stride, begin, start, stop, signed, numbers, known, coef, bias, clip,
                    weights, row_weights, code, curvature, partials, t,
                )  # fmt: skip
            else:
                _add_rows_jointly(
                    rows, stride, begin, start, stop, signed, targets, known, coef, bias, clip,
                    weights, row_weights, code, curvature, copied, scores, partials, t,
                    intercepts[chunk],
                )  # fmt: skip


@kernel(**EXACT)
def dense_scores(runs, coef, bias, first, last, scores):
    """Write the scores of the rows [first, last) to `scores` (K, padded rows)."""
    (n_outputs, width), n_rows = coef.shape, scores.shape[1]
    for rows, stride, begin, end in runs:
        ahead = _ahead(rows, stride)
        for i in range(max(first, begin), min(last, end), ROW_GROUP):
            here = (i - begin) * stride
            for k in range(n_outputs):
                own = _score(rows, here, stride, width, coef, k * width, here + ahead)
                store(scores, k * n_rows + i, own + bias[k])


@njit(**_APART)
def _score_sparse(data, columns, row_ends, first, coef, bias, scores):
    """Set ``scores[i] = row (first + i) . coef + bias``."""
    end = np.uintp(row_ends[first])
    for i in range(scores.size):
        start, end = end, np.uintp(row_ends[first + i + 1])
        score = bias
        for p in range(start, end):
            score += data[p] * coef[columns[p]]
        scores[i] = score


@njit(**_APART)
def _add_sparse(data, columns, row_ends, first, coefficients, total):
    """Add the sum of ``coefficients[i] * row (first + i)`` to `total`."""
    end = np.uintp(row_ends[first])
    for i in range(coefficients.size):
        start, end = end, np.uintp(row_ends[first + i + 1])
        coefficient = coefficients[i]
        for p in range(start, end):
            total[columns[p]] += coefficient * data[p]


@kernel(**EXACT)
def sparse_gradient(
    data, columns, row_ends, signed, targets, numbers, known, coef, bias, clip, weights,
    row_weights, code, curvature, chunk_rows, first, last, scratch, partials, intercepts,
):  # fmt: skip
    """Add the clipped gradients of the chunks [first, last).

    The arguments are those of `dense_gradient`, with the data in three arrays: stored values, their
    columns and where each row begins. `scratch` has shape (K, BLOCK_ROWS) and is finite.
    """
    n_outputs = coef.shape[0]
    for chunk in range(first, last):
        start = chunk * chunk_rows
        stop = min(start + chunk_rows, row_ends.size - 1)
        for i in range(start, stop, BLOCK_ROWS):
            n = min(BLOCK_ROWS, stop - i)
            for k in range(n_outputs):
                if known is None:
                    _score_sparse(data, columns, row_ends, i, coef[k], bias[k], scratch[k, :n])
                else:
                    scratch[k, :n] = known[k, i : i + n]
            block_coefficients(
                scratch, n, signed, targets, numbers, i, clip, weights, row_weights, code,
                curvature, intercepts[chunk],
            )  # fmt: skip
            for k in range(n_outputs):
                coefficients = scratch[k, :n]
                _add_sparse(data, columns, row_ends, i, coefficients, partials[chunk, k])


@kernel(**EXACT)
def sparse_scores(data, columns, row_ends, coef, bias, first, last, scores):
    """Write the scores of the rows [first, last) to `scores` (K, padded rows)."""
    last = min(last, row_ends.size - 1)
    for k in range(coef.shape[0]):
        _score_sparse(data, columns, row_ends, first, coef[k], bias[k], scores[k, first:last])


@njit(forceinline=True, **INNER)
def _squares(data, start, stride, width, scales, centre, ahead):
    """Return the squared norms of eight rows times scales (width,), less a centre (width,)."""
    s0, s1, s2, s3, s4, s5, s6, s7 = _starts(start, stride)
    q0 = q1 = q2 = q3 = q4 = q5 = q6 = q7 = spread(0.0)
    for j in range(0, width, LANES):
        prefetch(data, ahead + LANES * j)  # speed only
        scale, less = load(scales, j), load(centre, j)
        v0, v1 = load(data, s0 + j) * scale - less, load(data, s1 + j) * scale - less
        v2, v3 = load(data, s2 + j) * scale - less, load(data, s3 + j) * scale - less
        v4, v5 = load(data, s4 + j) * scale - less, load(data, s5 + j) * scale - less
        v6, v7 = load(data, s6 + j) * scale - less, load(data, s7 + j) * scale - less
        q0 += v0 * v0
        q1 += v1 * v1
        q2 += v2 * v2
        q3 += v3 * v3
        q4 += v4 * v4
        q5 += v5 * v5
        q6 += v6 * v6
        q7 += v7 * v7
    return sum_each(q0, q1, q2, q3, q4, q5, q6, q7)


@njit(forceinline=True, **INNER)
def _tile(data, start, stride, step, first, n, others, panel, tile):
    """Add the products of eight rows and eight columns to eight vectors, all `tile` at first.

    The numbers of a row, from number `first` to `n`, are `step` apart. The numbers of the columns
    begin at `panel`, eight after eight.
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = _starts(start, stride)
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = tile
    for i in range(first, n):
        other, j = load(others, panel + i * LANES), i * step
        p0 += (1.0 * data[np.uintp(s0 + j)]) * other
        p1 += (1.0 * data[np.uintp(s1 + j)]) * other
        p2 += (1.0 * data[np.uintp(s2 + j)]) * other
        p3 += (1.0 * data[np.uintp(s3 + j)]) * other
        p4 += (1.0 * data[np.uintp(s4 + j)]) * other
        p5 += (1.0 * data[np.uintp(s5 + j)]) * other
        p6 += (1.0 * data[np.uintp(s6 + j)]) * other
        p7 += (1.0 * data[np.uintp(s7 + j)]) * other
    return p0, p1, p2, p3, p4, p5, p6, p7


@kernel(**EXACT)
def dense_squares(runs, n_features, scales, images, bias, first, squares):
    """Write the squared norms of the rows from `first` on, whole groups of them, to `squares`.

    scales : float array (width,), zero-padded, by which columns are multiplied
    images : None, or instead of scales a float array (m * n_features,), each column in a basis, in
        groups of eight coordinates; coordinate k is zero before column k
    bias : float array (m,), the intercept in the basis; or else (width,), what columns are less
    """
    for rows, stride, begin, end in runs:
        ahead = _ahead(rows, stride)
        for i in range(max(first, begin), min(first + squares.size, end), ROW_GROUP):
            here = (i - begin) * stride
            if images is None:
                total = _squares(rows, here, stride, bias.size, scales, bias, here + ahead)
            else:
                total = spread(0.0)
                for k in range(0, bias.size, LANES):
                    prefetch(rows, here + ahead + LANES * k)  # speed only
                    own = load(bias, k)
                    p0, p1, p2, p3, p4, p5, p6, p7 = _tile(
                        rows, here, stride, 1, k, n_features, images, k * n_features, own
                    )
                    total += sum_each(
                        p0 * p0, p1 * p1, p2 * p2, p3 * p3, p4 * p4, p5 * p5, p6 * p6, p7 * p7
                    )  # fmt: skip
            store(squares, i - first, total)


@kernel(**_APART)
def sparse_squares(data, columns, row_ends, scales, images, bias, first, image, squares):
    """Do the same for sparse rows, any number of them; `image` (m,) is scratch.

    Here `images` holds all coordinates of a column, and then those of the next: as the basis does.
    Without images, the columns that are not stored must be added: the sum of the squares of `bias`.
    """
    for i in range(squares.size):
        start, end = np.uintp(row_ends[first + i]), np.uintp(row_ends[first + i + 1])
        if images is None:
            squares[i] = 0.0
            for p in range(start, end):
                less = bias[columns[p]]
                value = scales[columns[p]] * data[p] - less
                squares[i] += value * value - less * less
        else:
            squares[i] = _sparse_image_square(data, columns, start, end, images, bias, image)


@njit(**INNER)
def _sparse_image_square(data, columns, start, end, images, bias, image):
    """Return the squared norm in a basis of the row of the numbers [start, end)."""
    for k in range(0, bias.size, LANES):
        store(image, k, load(bias, k))
    for p in range(start, end):
        value, column = 1.0 * data[p], np.intp(columns[p])
        for k in range(0, min(column + 1, bias.size), LANES):
            own = load(images, column * bias.size + k)
            store(image, k, load(image, k) + value * own)
    total = spread(0.0)
    for k in range(0, bias.size, LANES):
        total += load(image, k) * load(image, k)
    return add_across(total)


@njit(**INNER)
def _magnitude(bits, mantissa, lowest, n_powers):
    """Return where a float with these bits is counted, negative ones later, or -1 if nowhere.

    Positive floats have the order of their bits. The bits less one, without the mantissa, are the
    same for all x with ``2^k < x <= 2^(k + 1)``.
    """
    size = bits & (2**63 - 1 if mantissa == 52 else 2**31 - 1)
    power = ((size - 1) >> mantissa) - lowest
    if power < 0:
        return -1
    return min(power, n_powers - 1) + (n_powers if bits < 0 else 0)


@kernel(**EXACT)
def add_magnitudes(bits, counted, mantissa, lowest, counts):
    """Count the elements of each column by sign and by the power of two below their size.

    bits : flat rows as integers
    counted : bool array (n_rows,)
    mantissa : number of its bits
    lowest : the power that is counted first, as floats are stored
    counts : float array (2 K, n_features); the last power counts all larger elements too
    """
    stride = counts.shape[1]
    for i in range(counted.size):
        for j in range(stride if counted[i] else 0):
            k = _magnitude(bits[i * stride + j], mantissa, lowest, len(counts) // 2)
            if k >= 0:
                counts[k, j] += 1.0


@kernel(**EXACT)
def add_sparse_magnitudes(bits, columns, row_ends, counted, mantissa, lowest, counts):
    """Do the same for sparse rows."""
    for i in range(counted.size):
        for p in range(row_ends[i], row_ends[i + 1] if counted[i] else row_ends[i]):
            k = _magnitude(bits[p], mantissa, lowest, len(counts) // 2)
            if k >= 0:
                counts[k, columns[p]] += 1.0


@kernel(**EXACT)
def dense_products(runs, n_features, scale, fit_intercept, first, last, panels, total):
    """Add ``s_i^2 x~_i x~_i'`` of the rows [first, last), on the diagonal and above.

    scale : float array (n_rows,)
    panels : float array (width * rows,), scratch: eight columns after eight, of some rows
    total : float array (width, width), meaningless beyond n_columns
    """
    width = len(total)
    most = panels.size // width
    for rows, stride, begin, end in runs:
        for start in range(max(first, begin), min(last, end), most):
            n = min(most, last - start, end - start)
            for i in range(n):
                here, own = (start + i - begin) * stride, scale[start + i]
                for j in range(0, n_features, LANES):
                    store(panels, j * most + i * LANES, load(rows, here + j) * own)
                if fit_intercept:
                    j = n_features % LANES
                    panels[(n_features - j) * most + i * LANES + j] = own
            for j in range(0, width, LANES):
                for k in range(j, width, LANES):
                    tile = _tile(
                        panels, j * most, 1, LANES, 0, n, panels, k * most, spread(0.0)
                    )  # fmt: skip
                    for i, values in enumerate(tile):
                        t = (j + i) * width + k
                        store(total, t, load(total, t) + values)


@kernel(**_APART)
def sparse_products(data, columns, row_ends, scale, fit_intercept, first, last, total):
    """Add ``s_i^2 x~_i x~_i'`` of the rows [first, last), on the diagonal and above.

    scale : float array (n_rows,)
    total : float array (n_columns, n_columns)
    """
    for i in range(first, last):
        end = np.uintp(row_ends[i + 1])
        for p in range(np.uintp(row_ends[i]), end):
            value, column = scale[i] * data[p], columns[p]
            for q in range(p, end):
                total[column, columns[q]] += value * (scale[i] * data[q])
            if fit_intercept:
                total[column, -1] += value * scale[i]
        if fit_intercept:
            total[-1, -1] += scale[i] * scale[i]


@kernel(**EXACT)
def fingerprints(words, factors, sums):
    """Write the sum of each run of words, of the size of `factors`, times these, modulo 2^64.

    words : uint32 array, the bits of any data
    factors : uint64 array
    sums : uint64 array, one number for each run, of which the last may be shorter
    """
    for i in range(sums.size):
        run = words[i * factors.size : (i + 1) * factors.size]
        total = factors[0] & 0
        for j in range(run.size):
            total += factors[j] * run[j]
        sums[i] = total
