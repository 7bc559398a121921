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
- The logistic loss costs neither exponential nor logarithm. At consecutive steps ``exp(z)`` is a
  geometric progression, and the sum over rows of ``log(1 + exp(z))`` is the logarithm of a product.
  If a block's progression or product might overflow, the block is summed term by term instead.
"""

import math

import numpy as np
from numba import njit

from dpglm.kernels.arithmetic import EXACT, INNER, LARGEST, SMALLEST, exp, kernel, log
from dpglm.kernels.vectors import LANES, add_across, load, max_across, spread, store, where

BLOCK_ROWS = 256
_LOGISTIC, _SOFTMAX = 0, 3
# Margins beyond this count as not finite: products with slopes and weights must not overflow.
_LARGEST_MARGIN = 2.0**500
# The progression is used for |z| below this, and restarted after 28 steps.
_LARGEST_EXPONENT = 600.0
_RESTART = 28
# Bound on the logarithm of a product in each of the eight numbers of a vector. The 32 factors of a
# block, all above 1, may have a mean loss of 21.
_LARGEST_LOG = 700.0
_LOG_2 = math.log(2.0)


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


@njit(**INNER)
def _largest_logistic(loss_clip, weight):
    """Return the z at which a weighted logistic loss reaches its bound, and exp(z)."""
    most = min(loss_clip / weight, LARGEST)
    odds = exp(most) - 1.0
    return log(max(odds, most)), odds


@njit(forceinline=True, **INNER)
def _describe(
    scores, slopes, signed, spacing, last, capped, clip, weights, row_weights, begin, end, largest,
    code, curvature, start, pace, weight, slope, curved, knee, ceiling,
):  # fmt: skip
    """Write z at the first step and its change per step, the weight and largest slope of a block.

    Losses become lines at their knees. Logistic losses that are not capped become lines at their
    bound: `largest`, for either class. With weights of rows they are clipped afterwards. `ceiling`
    is ``exp(knee)``.
    """
    quadratic, width = _parabola(curvature)
    for i in range(0, end - begin, LANES):
        own = load(signed, begin + i)
        positive = own > 0.0
        heavy = where(positive, weights[1], weights[0])
        if row_weights is not None:
            heavy = heavy * load(row_weights, begin + i)
        steepest = min(heavy, clip * abs(own)) if capped else heavy
        score, change = load(scores, begin + i), spacing * load(slopes, begin + i)
        reach = where(abs(own) > 0.0, abs(score) + float(last) * abs(change), LARGEST)
        usable = reach <= _LARGEST_MARGIN
        sign = math.copysign(1.0, own)
        heavy, steepest = where(usable, heavy, 0.0), where(usable, steepest, 0.0)
        store(start, i, where(usable, -sign * score, 0.0))
        store(pace, i, where(usable, sign * change, 0.0))
        store(weight, i, heavy)
        store(slope, i, steepest)
        if code != _LOGISTIC:
            store(curved, i, quadratic * heavy)
            store(knee, i, where(heavy > 0.0, width * (steepest / heavy), 0.0))
        elif capped:
            odds = steepest / (heavy - steepest)
            bends = steepest < heavy
            store(knee, i, where(bends, log(max(odds, SMALLEST)), LARGEST))
            store(ceiling, i, where(bends, odds, LARGEST))
        elif row_weights is not None:
            store(knee, i, spread(LARGEST))
        else:
            store(knee, i, where(positive, largest[1][0], largest[0][0]))
            store(ceiling, i, where(positive, largest[1][1], largest[0][1]))


@njit(**INNER)
def _add_terms(
    start, pace, curved, knee, slope, shift, code, capped, loss_clip, reach, base, sums
):  # fmt: skip
    """Add the losses of a block of rows at each step to `sums`, term by term."""
    for j in range(sums.size):
        low, high = -loss_clip, loss_clip
        if reach is not None:
            low = -j * reach if capped else 0.0
            high = j * reach if capped else loss_clip
        total = spread(0.0)
        for i in range(0, start.size, LANES):
            z = load(start, i) + float(j) * load(pace, i)
            bent, straight = load(knee, i), load(slope, i)
            if code == _LOGISTIC:
                loss = load(curved, i) * _softplus(min(z, bent)) + straight * max(z - bent, 0.0)
            else:
                loss = _hinge(z, load(curved, i), bent, straight, shift)
            if capped and j == 0:
                # Step 0 adds nothing: the bounds of its terms are zero.
                store(base, i, loss)
            elif capped:
                loss -= load(base, i)
            if reach is None:  # known when this is compiled: other fits do not wait for it
                change = straight * (float(j) * load(pace, i))
                loss = min(max(loss, min(change, 0.0)), max(change, 0.0))
            total += min(max(loss, low), high)
        sums[j] += add_across(total)


@njit(forceinline=True, **INNER)
def _odds(start, pace, weight, which, ceiling, i, step):
    """Return exp(z) of eight rows at a step, zero for other weights, its ratio and its ceiling."""
    change = load(pace, i)
    power = exp(load(start, i) + step * change)
    return where(load(weight, i) == which, power, 0.0), exp(change), load(ceiling, i)


@njit(forceinline=True, **INNER)
def _add_products(start, pace, weight, which, ceiling, capped, products, sums):
    """Add `which` times the logistic losses of the rows of that weight, up to their ceilings."""
    for j in range(0, sums.size * LANES, LANES):
        store(products, j, spread(1.0))
    for begin in range(0, sums.size, _RESTART):
        end = min(begin + _RESTART, sums.size)
        for i in range(0, start.size, 4 * LANES):
            o0, r0, t0 = _odds(start, pace, weight, which, ceiling, i, float(begin))
            o1, r1, t1 = _odds(start, pace, weight, which, ceiling, i + LANES, float(begin))
            o2, r2, t2 = _odds(start, pace, weight, which, ceiling, i + 2 * LANES, float(begin))
            o3, r3, t3 = _odds(start, pace, weight, which, ceiling, i + 3 * LANES, float(begin))
            for j in range(begin * LANES, end * LANES, LANES):
                product = load(products, j)
                product += product * min(o0, t0)
                product += product * min(o1, t1)
                product += product * min(o2, t2)
                store(products, j, product + product * min(o3, t3))
                o0, o1, o2, o3 = o0 * r0, o1 * r1, o2 * r2, o3 * r3
    reference = log(load(products, 0)) if capped else spread(0.0)
    for j in range(sums.size):
        sums[j] += which * add_across(log(load(products, j * LANES)) - reference)


@njit(**INNER)
def _add_lines(start, pace, knee, slope, sums):
    """Add the increase of the straight parts of capped losses since the first step."""
    for j in range(0, sums.size, 4):
        g0 = g1 = g2 = g3 = spread(0.0)
        for i in range(0, start.size, LANES):
            z, change, bend, steep = load(start, i), load(pace, i), load(knee, i), load(slope, i)
            base = max(z, bend)
            g0 += steep * (max(z + float(j) * change, bend) - base)
            g1 += steep * (max(z + (j + 1.0) * change, bend) - base)
            g2 += steep * (max(z + (j + 2.0) * change, bend) - base)
            g3 += steep * (max(z + (j + 3.0) * change, bend) - base)
        for k, gain in enumerate((g0, g1, g2, g3)):
            if j + k < sums.size:
                sums[j + k] += add_across(gain)


@njit(forceinline=True, **INNER)
def _limits(start, pace, knee, last):
    """Return whether the products of a block cannot overflow, and if any row passes its knee."""
    widest = furthest = logarithm = spread(0.0)
    for i in range(0, start.size, LANES):
        z, change, bend = load(start, i), last * load(pace, i), load(knee, i)
        widest = max(widest, abs(z) + abs(change))
        top = max(z, z + change)
        logarithm += max(min(top, bend), 0.0) + _LOG_2
        furthest = max(furthest, top - bend)
    tame = max_across(widest) <= _LARGEST_EXPONENT and max_across(logarithm) <= _LARGEST_LOG
    return tame, max_across(furthest) > 0.0


@kernel(**EXACT)
def margin_line_losses(
    scores, slopes, signed, spacing, capped, loss_clip, clip, reach, weights, row_weights, code,
    curvature, chunk_rows, first, last, scratch, products, partials,
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
    scratch, products : float arrays (8, BLOCK_ROWS) and (steps, LANES)
    partials : float array (chunks, steps)
    """
    n_steps = partials.shape[1]
    shift = 1.0 + 0.5 / curvature
    largest = (_largest_logistic(loss_clip, weights[0]), _largest_logistic(loss_clip, weights[1]))
    start, pace, weight, slope = scratch[0], scratch[1], scratch[2], scratch[3]
    curved, knee, ceiling, base = scratch[4], scratch[5], scratch[6], scratch[7]
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, BLOCK_ROWS):
            end = min(i + BLOCK_ROWS, stop)
            # Rows beyond the end add nothing.
            scratch[:, end - i :] = 0.0
            _describe(
                scores, slopes, signed, spacing, n_steps - 1, capped, clip, weights, row_weights, i,
                end, largest, code, curvature, start, pace, weight, slope, curved, knee, ceiling,
            )  # fmt: skip
            fast = bent = False
            if code == _LOGISTIC:
                fast, bent = _limits(start, pace, knee, n_steps - 1.0)
                # A product is over rows of one weight.
                fast = fast and row_weights is None
            if not fast:
                # Hinge losses, weighted rows, and products that might overflow.
                _add_terms(
                    start, pace, weight if code == _LOGISTIC else curved, knee, slope, shift, code,
                    capped, loss_clip, reach, base, sums,
                )  # fmt: skip
                continue
            # The weight multiplies the logarithm of a product.
            for k in range(1 if weights[0] == weights[1] else 2):
                if weights[k] > 0.0:
                    _add_products(start, pace, weight, weights[k], ceiling, capped, products, sums)
            if capped and bent:
                _add_lines(start, pace, knee, slope, sums)


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
def _softmax_loss(start, pace, j):
    """Return log(sum over outputs of exp(z)) of eight rows."""
    peak, total = spread(0.0), spread(0.0)
    for k in range(0, start.size, LANES):
        peak = max(peak, load(start, k) + j * load(pace, k))
    for k in range(0, start.size, LANES):
        total += exp(load(start, k) + j * load(pace, k) - peak)
    return peak + log(total)


@njit(**INNER)
def _one_vs_rest_loss(start, pace, j, code, curvature):
    """Return the sum over outputs of the margin losses of eight rows."""
    curved, knee = _parabola(curvature)
    total = spread(0.0)
    for k in range(0, start.size, LANES):
        z = load(start, k) + j * load(pace, k)
        if code == _LOGISTIC:
            total += _softplus(z)
        else:
            total += _hinge(z, curved, knee, 1.0, 1.0 + 0.5 / curvature)
    return total


@njit(**INNER)
def _progress(power, ratio, softmax):
    """Return the losses of eight rows, given exp(z), which moves on by one step."""
    total = spread(0.0 if softmax else 1.0)
    for k in range(0, power.size, LANES):
        odds = load(power, k)
        total = total + odds if softmax else total + total * odds
        store(power, k, odds * load(ratio, k))
    return log(total)


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
    # Neither a sum over outputs of exp(z) nor a product of 1 + exp(z) overflows up to there.
    tame = _LARGEST_EXPONENT - n_outputs * _LOG_2
    progresses = (softmax or code == _LOGISTIC) and n_steps <= _RESTART
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
            fast = progresses and max_across(where(weight > 0.0, reach, 0.0)) <= tame
            if fast:
                for k in range(0, start.size, LANES):
                    store(start, k, exp(load(start, k)))
                    store(pace, k, exp(load(pace, k)))
            for j in range(n_steps):
                if fast:
                    loss = _progress(start, pace, softmax)
                elif softmax:
                    loss = _softmax_loss(start, pace, float(j))
                else:
                    loss = _one_vs_rest_loss(start, pace, float(j), code, curvature)
                # A loss must not become negative by rounding: the range of the sum needs that.
                loss = min(max(weight * loss, 0.0), loss_clip)
                store(losses, j * LANES, load(losses, j * LANES) + loss)
        for j in range(n_steps):
            partials[chunk, j] = add_across(load(losses, j * LANES))


def aligned(*shape: int) -> np.ndarray:
    """Return an empty float64 array in which no vector crosses a line of the cache."""
    size = math.prod(shape)
    buffer = np.empty(size + LANES)
    start = -buffer.ctypes.data % 64 // buffer.itemsize
    return buffer[start : start + size].reshape(shape)
