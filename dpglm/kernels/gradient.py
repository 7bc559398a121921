"""Scores, clipped gradient sums, norms, magnitudes and products of dense and of sparse rows.

Conventions
-----------
- Rows are read from memory once; dense ones by groups of 8. While the scores of a group are
  computed, the group before is added to the sum from the first level of cache.
- Passes run over `width` elements, the number of features rounded up to a whole vector. The
  elements beyond the end of a row are those of the next row. They are multiplied by a coefficient
  of zero or added to an unused part of the sum. The last rows are in `tail`, a zero-padded copy.
- The norms of rows in a basis P are those of their products with R, where ``P' = Q R``: a triangle,
  which saves half of the products.
- Sparse rows must be in canonical form: a column that is stored twice would make the norm wrong.
- Every row goes through the same instructions in every position, so that its contribution depends
  on no other row, to the last bit.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT, INNER, kept_on_disk
from dpglm.kernels.clip import block_coefficients, margin_coefficients
from dpglm.kernels.vectors import (
    LANES,
    add_across,
    at,
    lane,
    load,
    prefetch,
    put,
    spread,
    store,
    sum_each,
)

# Dense rows are taken by groups of this size, and a chunk is a whole number of groups.
ROW_GROUP = 8
# Rows kept in the padded tail: enough for the row before them to be read past its end.
TAIL_ROWS = 2 * ROW_GROUP
# The distance of prefetches, unless a group of rows is larger.
_AHEAD_BYTES = 8192  # speed only
# Sparse rows scored before they are added: they stay in the first level of cache.
BLOCK_ROWS = 256
# Rows whose products are added up together: they stay in the second level of cache.
PANEL_ROWS = 64

# For sparse rows a product and a sum are not contracted. Elements of the sum wait for the row
# before, and an addition alone takes less time than a contracted operation.
_APART = {**INNER, "fastmath": {"nsz"}}


@njit(**INNER)
def _ahead(rows, n_features):
    return max(_AHEAD_BYTES // rows.itemsize, ROW_GROUP * n_features)  # speed only


@njit(forceinline=True, **INNER)
def _score_and_add(data, scored, added, stride, width, weights, factors, total, ahead):
    """Return the scores of eight rows, while eight others are added to `total`.

    The rows begin at `scored` and at `added`, `stride` numbers apart, and have `width` numbers.
    Without `weights` (width,) nothing is scored, without `total` (width,) nothing added. `factors`
    multiply the eight rows. Eight times `width` numbers are prefetched from `ahead`, if any.
    """
    s1, s2, s3 = scored + stride, scored + 2 * stride, scored + 3 * stride
    s4, s5, s6 = scored + 4 * stride, scored + 5 * stride, scored + 6 * stride
    s7 = scored + 7 * stride
    a1, a2, a3 = added + stride, added + 2 * stride, added + 3 * stride
    a4, a5, a6 = added + 4 * stride, added + 5 * stride, added + 6 * stride
    a7 = added + 7 * stride
    f0, f1, f2, f3 = lane(factors, 0), lane(factors, 1), lane(factors, 2), lane(factors, 3)
    f4, f5, f6, f7 = lane(factors, 4), lane(factors, 5), lane(factors, 6), lane(factors, 7)
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = spread(0.0)
    for j in range(0, width, LANES):
        if ahead is not None:
            prefetch(data, ahead + LANES * j)  # speed only
        if weights is not None:
            w = load(weights, j)
            p0 += load(data, scored + j) * w
            p1 += load(data, s1 + j) * w
            p2 += load(data, s2 + j) * w
            p3 += load(data, s3 + j) * w
            p4 += load(data, s4 + j) * w
            p5 += load(data, s5 + j) * w
            p6 += load(data, s6 + j) * w
            p7 += load(data, s7 + j) * w
        if total is not None:
            # A tree rather than a chain: few additions wait for one another.
            t0 = load(data, added + j) * f0 + load(data, a4 + j) * f4
            t1 = load(data, a1 + j) * f1 + load(data, a5 + j) * f5
            t2 = load(data, a2 + j) * f2 + load(data, a6 + j) * f6
            t3 = load(data, a3 + j) * f3 + load(data, a7 + j) * f7
            store(total, j, load(total, j) + ((t0 + t1) + (t2 + t3)))
    return sum_each(p0, p1, p2, p3, p4, p5, p6, p7)


@njit(forceinline=True, **INNER)
def _score(data, start, stride, width, weights, ahead):
    """Only return the scores of eight rows."""
    return _score_and_add(data, start, start, stride, width, weights, spread(0.0), None, ahead)


@njit(forceinline=True, **INNER)
def _add(data, start, stride, width, factors, total, ahead):
    """Only add eight rows to `total`."""
    _score_and_add(data, start, start, stride, width, None, factors, total, ahead)


@njit(**INNER)
def _add_part(
    rows, stride, signed, known, skipped, coef, bias, clip, weights, row_weights, code, curvature,
    ahead, total,
):  # fmt: skip
    """Add the clipped gradients of consecutive rows to `total`; return the sum of coefficients."""
    width = coef.size
    coefficients = moved = spread(0.0)
    for i in range(0, signed.size, ROW_GROUP):
        here, next = i * stride, i * stride + ahead
        if known.size == 0:
            before = max(here - ROW_GROUP * stride, 0)
            scores = bias + _score_and_add(
                rows, here, before, stride, width, coef, coefficients, total, next
            )
        else:
            scores = load(known[0], skipped + i)
        coefficients = margin_coefficients(
            scores, load(signed, i), clip, weights, row_weights, i, code, curvature
        )
        moved += coefficients
        # The last group has none after it to be added along with.
        if known.size or i + ROW_GROUP == signed.size:
            _add(rows, here, stride, width, coefficients, total, next)
    return add_across(moved)


@njit(**INNER)
def _copy_group(rows, start, stride, width, ahead, group):
    """Copy eight rows to aligned vectors in float64: they are used 2 K times."""
    for j in range(0, width, LANES):
        prefetch(rows, start + ahead + LANES * j)  # speed only
        for i in range(ROW_GROUP):
            store(group, i * width + j, load(rows, start + i * stride + j))


@njit(**INNER)
def _add_part_jointly(
    rows, stride, signed, targets, known, skipped, coef, bias, clip, weights, row_weights, code,
    curvature, ahead, group, scores, total, intercepts,
):  # fmt: skip
    """Do the same for K outputs, one group of rows after the other."""
    n_outputs, width = coef.shape
    for i in range(0, signed.size, ROW_GROUP):
        _copy_group(rows, i * stride, stride, width, ahead, group)
        for k in range(n_outputs):
            if known.size == 0:
                own = bias[k] + _score(group, 0, width, width, coef[k], None)
            else:
                own = load(known[k], skipped + i)
            store(scores[k], 0, own)
        block_coefficients(
            scores, ROW_GROUP, signed, targets, i, clip, weights, row_weights, code, curvature,
            intercepts,
        )  # fmt: skip
        for k in range(n_outputs):
            _add(group, 0, width, width, load(scores[k], 0), total[k], None)


@kept_on_disk
@njit(**EXACT)
def dense_gradient(
    rows, tail, n_features, signed, targets, known, coef, bias, clip, weights, row_weights, code,
    curvature, chunk_rows, first, last, group, scores, partials, intercepts,
):  # fmt: skip
    """Write the clipped gradient sums of chunks [first, last) to `partials`, `intercepts`.

    rows : float array (n_rows * n_features,), the data, row after row
    tail : float array (TAIL_ROWS or fewer, times width), the last rows, each zero-padded
    signed : float array (padded rows,), inverse norms, with the sign of the label when there is one
        output; zero in the padding
    targets : int array (padded rows,), classes; None when there is one output
    known : float array (K, padded rows), the scores; empty if they must be computed
    coef, bias : float arrays (K, width), zero-padded, and (K,)
    clip : finite bound on the norm of a row's gradient
    weights, row_weights : of the classes, and of the rows, padded; None if all of these are 1
    code, curvature : of the loss
    group, scores : float arrays (8 * width,), best aligned to cache lines, and (K, 8), scratch
    partials, intercepts : float arrays (chunks, K, width), meaningless beyond n_features, and
        (chunks, K)
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
            # A chunk may begin in the data and end in the tail.
            if i < n_body:
                j = min(stop, n_body)
                part, stride = rows[i * n_features :], n_features
            else:
                j = stop
                part, stride = tail[(i - n_body) * width :], width
            own = row_weights
            if row_weights is not None:
                own = row_weights[i:j]
            if targets is None:
                intercepts[chunk, 0] += _add_part(
                    part, stride, signed[i:j], known, i, coef[0], bias[0], clip, weights, own,
                    code, curvature, ahead, partials[chunk, 0],
                )  # fmt: skip
            else:
                _add_part_jointly(
                    part, stride, signed[i:j], targets[i:j], known, i, coef, bias, clip, weights,
                    own, code, curvature, ahead, group, scores, partials[chunk],
                    intercepts[chunk],
                )  # fmt: skip
            i = j


@kept_on_disk
@njit(**EXACT)
def dense_scores(rows, tail, n_features, coef, bias, chunk_rows, first, last, scores):
    """Write the scores of the rows of chunks [first, last) to `scores` (K, padded rows)."""
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
            own = _score(part, here, stride, width, coef[k], here + ahead)
            store(scores[k], i, own + bias[k])


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
    data, columns, row_ends, signed, targets, known, coef, bias, clip, weights, row_weights, code,
    curvature, chunk_rows, first, last, scratch, partials, intercepts,
):  # fmt: skip
    """Write the clipped gradient sums of the chunks [first, last).

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
                    for p in range(0, n, LANES):
                        store(scratch[k], p, load(known[k], i + p))
            block_coefficients(
                scratch, n, signed, targets, i, clip, weights, row_weights, code, curvature,
                intercepts[chunk],
            )  # fmt: skip
            for k in range(n_outputs):
                coefficients = scratch[k, :n]
                _add_rows(data, columns, row_ends, i, coefficients, partials[chunk, k])


@kept_on_disk
@njit(**EXACT)
def sparse_scores(data, columns, row_ends, coef, bias, chunk_rows, first, last, scores):
    """Write the scores of the rows of chunks [first, last) to `scores` (K, padded rows)."""
    start, stop = first * chunk_rows, min(last * chunk_rows, row_ends.size - 1)
    for k in range(coef.shape[0]):
        for i in range(start, stop, BLOCK_ROWS):
            out = scores[k, i : min(i + BLOCK_ROWS, stop)]
            _score_rows(data, columns, row_ends, i, coef[k], bias[k], out)


@njit(forceinline=True, **INNER)
def _squares(data, start, stride, width, scales, ahead):
    """Return the squared norms of eight rows whose columns are multiplied by scales (width,)."""
    s1, s2, s3 = start + stride, start + 2 * stride, start + 3 * stride
    s4, s5, s6 = start + 4 * stride, start + 5 * stride, start + 6 * stride
    s7 = start + 7 * stride
    q0 = q1 = q2 = q3 = q4 = q5 = q6 = q7 = spread(0.0)
    for j in range(0, width, LANES):
        prefetch(data, ahead + LANES * j)  # speed only
        scale = load(scales, j)
        v0, v1 = load(data, start + j) * scale, load(data, s1 + j) * scale
        v2, v3 = load(data, s2 + j) * scale, load(data, s3 + j) * scale
        v4, v5 = load(data, s4 + j) * scale, load(data, s5 + j) * scale
        v6, v7 = load(data, s6 + j) * scale, load(data, s7 + j) * scale
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
def _image_squares(data, start, stride, first, n_features, images, panel, bias):
    """Return the squared norms of eight rows in eight coordinates, of columns from `first` on.

    The coordinates of columns begin at `panel`, eight numbers for each column.
    """
    s1, s2, s3 = start + stride, start + 2 * stride, start + 3 * stride
    s4, s5, s6 = start + 4 * stride, start + 5 * stride, start + 6 * stride
    s7 = start + 7 * stride
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = bias
    for j in range(first, n_features):
        image = load(images, panel + j * LANES)
        p0 += (1.0 * at(data, start + j)) * image
        p1 += (1.0 * at(data, s1 + j)) * image
        p2 += (1.0 * at(data, s2 + j)) * image
        p3 += (1.0 * at(data, s3 + j)) * image
        p4 += (1.0 * at(data, s4 + j)) * image
        p5 += (1.0 * at(data, s5 + j)) * image
        p6 += (1.0 * at(data, s6 + j)) * image
        p7 += (1.0 * at(data, s7 + j)) * image
    return sum_each(
        p0 * p0, p1 * p1, p2 * p2, p3 * p3, p4 * p4, p5 * p5, p6 * p6, p7 * p7
    )  # fmt: skip


@kept_on_disk
@njit(**EXACT)
def dense_squares(rows, tail, n_features, scales, images, bias, first, squares):
    """Write the squared norms of the rows from `first` on, whole groups of them, to `squares`.

    rows, tail, n_features : as in `dense_gradient`
    scales : float array (width,), zero-padded, by which columns are multiplied
    images : None, or instead of scales a float array (m * n_features,), each column in a basis, in
        groups of eight coordinates; coordinate k is zero before column k
    bias : float array (m,), the intercept in the basis
    """
    width = -(-n_features // LANES) * LANES
    n_rows = -(-rows.size // n_features // ROW_GROUP) * ROW_GROUP
    n_body = n_rows - tail.size // width
    ahead = _ahead(rows, n_features)
    for i in range(0, squares.size, ROW_GROUP):
        row = first + i
        if row < n_body:
            part, stride, here = rows, n_features, row * n_features
        else:
            part, stride, here = tail, width, (row - n_body) * width
        if images is None:
            store(squares, i, _squares(part, here, stride, width, scales, here + ahead))
        else:
            total = spread(0.0)
            for k in range(0, bias.size, LANES):
                prefetch(part, here + ahead + LANES * k)  # speed only
                total += _image_squares(
                    part, here, stride, k, n_features, images, k * n_features, load(bias, k)
                )
            store(squares, i, total)


@kept_on_disk
@njit(**{**EXACT, "fastmath": {"nsz"}})
def sparse_squares(data, columns, row_ends, scales, images, bias, first, image, squares):
    """Do the same for sparse rows, any number of them; `image` (m,) is scratch.

    Here `images` holds all coordinates of a column, and then those of the next: as the basis does.
    """
    end = at(row_ends, first)
    for i in range(squares.size):
        start, end = end, at(row_ends, first + i + 1)
        if images is None:
            total = 0.0
            for p in range(start, end):
                value = at(scales, at(columns, p)) * at(data, p)
                total += value * value
            squares[i] = total
        else:
            squares[i] = _sparse_image_square(data, columns, start, end, images, bias, image)


@njit(**INNER)
def _sparse_image_square(data, columns, start, end, images, bias, image):
    """Return the squared norm in a basis of the row of the numbers [start, end)."""
    for k in range(0, bias.size, LANES):
        store(image, k, load(bias, k))
    for p in range(start, end):
        value, column = 1.0 * at(data, p), at(columns, p)
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


@kept_on_disk
@njit(**EXACT)
def add_magnitudes(bits, stride, counted, mantissa, lowest, counts):
    """Count the elements of each column by sign and by the power of two below their size.

    bits : flat rows as integers, each `stride` numbers from the next
    counted : bool array (n_rows,)
    mantissa : number of its bits
    lowest : the power that is counted first, as floats are stored
    counts : float array (2 K, width); the last power counts all larger elements too
    """
    for i in range(counted.size):
        for j in range(stride if counted[i] else 0):
            k = _magnitude(bits[i * stride + j], mantissa, lowest, len(counts) // 2)
            if k >= 0:
                counts[k, j] += 1.0


@kept_on_disk
@njit(**EXACT)
def add_sparse_magnitudes(bits, columns, row_ends, counted, mantissa, lowest, counts):
    """Do the same for sparse rows, with `counts` of shape (width, 2 K)."""
    for i in range(counted.size):
        for p in range(row_ends[i], row_ends[i + 1] if counted[i] else row_ends[i]):
            k = _magnitude(bits[p], mantissa, lowest, counts.shape[1] // 2)
            if k >= 0:
                counts[columns[p], k] += 1.0


@njit(**INNER)
def _add_tile(scaled, own, others, n_rows, total, j, k):
    """Add the products of eight columns, row by row from `own` on, with eight from `others` on."""
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = spread(0.0)
    for i in range(0, n_rows * LANES, LANES):
        value, here = load(scaled, others + i), own + i
        p0 += at(scaled, here) * value
        p1 += at(scaled, here + 1) * value
        p2 += at(scaled, here + 2) * value
        p3 += at(scaled, here + 3) * value
        p4 += at(scaled, here + 4) * value
        p5 += at(scaled, here + 5) * value
        p6 += at(scaled, here + 6) * value
        p7 += at(scaled, here + 7) * value
    _add_vector(p0, total[j], k)
    _add_vector(p1, total[j + 1], k)
    _add_vector(p2, total[j + 2], k)
    _add_vector(p3, total[j + 3], k)
    _add_vector(p4, total[j + 4], k)
    _add_vector(p5, total[j + 5], k)
    _add_vector(p6, total[j + 6], k)
    _add_vector(p7, total[j + 7], k)


@njit(**INNER)
def _add_vector(values, total, k):
    store(total, k, load(total, k) + values)


@njit(**INNER)
def _copy_scaled(data, start, n_features, scale, fit_intercept, scaled, i):
    """Copy a row times a scale, eight columns for each panel, with its intercept and zeros."""
    for j in range(0, n_features, LANES):
        store(scaled, (j * PANEL_ROWS) + i * LANES, load(data, start + j) * scale)
    for j in range(n_features, scaled.size // PANEL_ROWS):
        value = scale if fit_intercept and j == n_features else 0.0
        scaled[j // LANES * LANES * PANEL_ROWS + i * LANES + j % LANES] = value


@kept_on_disk
@njit(**EXACT)
def dense_products(
    rows, tail, n_features, scale, fit_intercept, chunk_rows, scaled, partial, total
):  # fmt: skip
    """Add ``s_i^2 x~_i x~_i'`` to `total`: one chunk after the other, on its diagonal and above.

    scale : float array (padded rows,), zero in the padding
    scaled, partial : float arrays (PANEL_ROWS * width,) and (width, width), scratch
    total : float array (width, width)
    """
    width = total.shape[0]
    stride = -(-n_features // LANES) * LANES
    n_rows = scale.size
    n_body = n_rows - tail.size // stride
    for chunk in range(0, n_rows, chunk_rows):
        stop = min(chunk + chunk_rows, n_rows)
        partial[:] = 0.0
        for first in range(chunk, stop, PANEL_ROWS):
            n = min(PANEL_ROWS, stop - first)
            for i in range(n):
                row = first + i
                if row < n_body:
                    part, start = rows, row * n_features
                else:
                    part, start = tail, (row - n_body) * stride
                _copy_scaled(part, start, n_features, scale[row], fit_intercept, scaled, i)
            for j in range(0, width, LANES):
                for k in range(j, width, LANES):
                    _add_tile(scaled, j * PANEL_ROWS, k * PANEL_ROWS, n, partial, j, k)
        total += partial


@kept_on_disk
@njit(**{**EXACT, "fastmath": {"nsz"}})
def sparse_products(
    data, columns, row_ends, scale, fit_intercept, chunk_rows, partial, total
):  # fmt: skip
    """Do the same for sparse rows."""
    n_rows, n_columns = row_ends.size - 1, total.shape[0]
    cells = partial.reshape(-1)
    end = at(row_ends, 0)
    for chunk in range(0, n_rows, chunk_rows):
        partial[:] = 0.0
        for i in range(chunk, min(chunk + chunk_rows, n_rows)):
            start, end = end, at(row_ends, i + 1)
            for p in range(start, end):
                value, here = scale[i] * at(data, p), at(columns, p) * n_columns
                for q in range(p, end):
                    cell = here + at(columns, q)
                    put(cells, cell, at(cells, cell) + value * (scale[i] * at(data, q)))
                if fit_intercept:
                    cell = here + n_columns - 1
                    put(cells, cell, at(cells, cell) + value * scale[i])
            if fit_intercept:
                partial[-1, -1] += scale[i] * scale[i]
        total += partial


@kept_on_disk
@njit(**EXACT)
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
