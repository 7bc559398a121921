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
- The logistic loss costs neither exponential nor logarithm: ``exp(z)`` at consecutive steps is a
  geometric progression, and the sum over rows of ``log(1 + exp(z))`` is the logarithm of a product.
  If a block's progression or product might overflow, the block is summed term by term instead.
"""

import math

import numpy as np
from numba import njit

from dpglm.kernels.arithmetic import EXACT, FAST, INNER, LARGEST, SMALLEST, exp, kernel, log
from dpglm.kernels.vectors import LANES, add_across, load, max_across, spread, store, where

_BLOCK_ROWS = 256
_LOGISTIC, _SOFTMAX = 0, 3
# Margins beyond this count as not finite: products with slopes and weights must not overflow.
_LARGEST_MARGIN = 2.0**500
# The progression is used for |z| below this, and restarted after 28 steps, four times seven.
_LARGEST_EXPONENT = 600.0
_RESTART = 28
# Bound on the logarithm of a product in each of the eight numbers of a vector. The 32 factors of a
# block, all above 1, may have a mean loss of 21.
_LARGEST_LOG = 700.0
_LOG_2 = math.log(2.0)


# Shape of the memory for the rows of a block; and the number of products in addition to one for
# each step, because steps are computed seven at a time.
MARGIN_SCRATCH, MORE_STEPS = (9, _BLOCK_ROWS), 6


@kernel(**EXACT)
def advance(scores, slopes, step):
    """Compute ``scores -= step * slopes`` in place."""
    for i in range(scores.size):
        scores[i] -= step * slopes[i]


@njit(**INNER)
def _softplus(z):
    """Return log(1 + exp(z)), the logistic loss."""
    return max(z, 0.0) + log(1.0 + exp(-abs(z)))


@njit(**INNER)
def _logistic(z, curved, knee, slope):
    """Return the weighted logistic loss up to the knee, then a line."""
    return curved * _softplus(min(z, knee)) + slope * max(z - knee, 0.0)


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
    scores, slopes, signed, spacing, last, capped, clip, weights, row_weights, begin, largest,
    code, curvature, start, pace, weight, slope, curved, knee, ceiling,
):  # fmt: skip
    """Write z at the first step and its change per step, the weight and largest slope of rows.

    Losses become lines at their knees. Logistic losses that are not capped become lines at their
    bound: `largest`, for either class. With weights of rows, of which those from `begin` on belong
    to the block, they are clipped afterwards. `ceiling` is ``exp(knee)``.
    """
    quadratic, width = _parabola(curvature)
    for i in range(0, start.size, LANES):
        own = load(signed, i)
        positive = own > 0.0
        heavy = where(positive, weights[1], weights[0])
        if row_weights is not None:
            heavy = heavy * load(row_weights, begin + i)
        steepest = min(heavy, clip * abs(own)) if capped else heavy
        score, change = load(scores, i), spacing * load(slopes, i)
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
                loss = _logistic(z, load(curved, i), bent, straight)
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
def _multiply_seven(power, ratio, ceiling, products, first):
    """Multiply over rows at seven consecutive steps; `power` moves on by seven steps."""
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = spread(1.0)
    for i in range(0, power.size, LANES):
        e, r, top = load(power, i), load(ratio, i), load(ceiling, i)
        p0 += p0 * min(e, top)
        e *= r
        p1 += p1 * min(e, top)
        e *= r
        p2 += p2 * min(e, top)
        e *= r
        p3 += p3 * min(e, top)
        e *= r
        p4 += p4 * min(e, top)
        e *= r
        p5 += p5 * min(e, top)
        e *= r
        p6 += p6 * min(e, top)
        store(power, i, e * r)
    store(products, first, p0)
    store(products, first + 1 * LANES, p1)
    store(products, first + 2 * LANES, p2)
    store(products, first + 3 * LANES, p3)
    store(products, first + 4 * LANES, p4)
    store(products, first + 5 * LANES, p5)
    store(products, first + 6 * LANES, p6)


@njit(forceinline=True, **INNER)
def _begin(start, pace, weight, which, step, power, ratio):
    """Write exp(z) at a step for rows of one weight, zero for the others; and exp(pace)."""
    for i in range(0, start.size, LANES):
        change = load(pace, i)
        z = load(start, i) + step * change
        store(power, i, where(load(weight, i) == which, exp(z), 0.0))
        store(ratio, i, exp(change))


@njit(forceinline=True, **INNER)
def _add_products(start, pace, weight, which, ceiling, capped, power, ratio, products, sums):
    """Add `which` times the logistic losses of the rows of that weight, up to their ceilings."""
    n_steps = sums.size
    for begin in range(0, n_steps, _RESTART):
        _begin(start, pace, weight, which, float(begin), power, ratio)
        for j in range(begin, min(begin + _RESTART, n_steps), 7):
            _multiply_seven(power, ratio, ceiling, products, j * LANES)
    for j in range(n_steps):
        store(products, j * LANES, log(load(products, j * LANES)))
    reference = load(products, 0) if capped else spread(0.0)
    for j in range(n_steps):
        sums[j] += which * add_across(load(products, j * LANES) - reference)


@njit(**INNER)
def _add_lines(start, pace, knee, slope, sums):
    """Add the increase of the straight parts of capped losses since the first step."""
    for j in range(0, sums.size, 4):
        g0 = g1 = g2 = g3 = spread(0.0)
        for i in range(0, start.size, LANES):
            first, change = load(start, i), load(pace, i)
            bend, steep = load(knee, i), load(slope, i)
            base = max(first, bend)
            g0 += steep * (max(first + float(j) * change, bend) - base)
            g1 += steep * (max(first + (j + 1.0) * change, bend) - base)
            g2 += steep * (max(first + (j + 2.0) * change, bend) - base)
            g3 += steep * (max(first + (j + 3.0) * change, bend) - base)
        gains = (add_across(g0), add_across(g1), add_across(g2), add_across(g3))
        for k in range(min(4, sums.size - j)):
            sums[j + k] += gains[k]


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
    scratch, products : float arrays `MARGIN_SCRATCH` and (steps + MORE_STEPS, LANES)
    partials : float array (chunks, steps)
    """
    n_steps = partials.shape[1]
    shift = 1.0 + 0.5 / curvature
    largest = (_largest_logistic(loss_clip, weights[0]), _largest_logistic(loss_clip, weights[1]))
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, _BLOCK_ROWS):
            n = min(_BLOCK_ROWS, stop - i)
            start, pace = scratch[0, :n], scratch[1, :n]
            weight, slope = scratch[2, :n], scratch[3, :n]
            curved, knee, ceiling = scratch[4, :n], scratch[5, :n], scratch[6, :n]
            first_work, second_work = scratch[7, :n], scratch[8, :n]
            _describe(
                scores[i:], slopes[i:], signed[i:], spacing, n_steps - 1, capped, clip, weights,
                row_weights, i, largest, code, curvature, start, pace, weight, slope, curved, knee,
                ceiling,
            )  # fmt: skip
            fast = bent = False
            if code == _LOGISTIC:
                fast, bent = _limits(start, pace, knee, n_steps - 1.0)
                # A product is over rows of one weight.
                fast = fast and row_weights is None
                curved = weight
            if not fast:
                # Hinge losses, weighted rows, and products that might overflow.
                _add_terms(
                    start, pace, curved, knee, slope, shift, code, capped, loss_clip, reach,
                    first_work, sums,
                )  # fmt: skip
                continue
            # The weight multiplies the logarithm of a product.
            for k in range(1 if weights[0] == weights[1] else 2):
                if weights[k] > 0.0:
                    _add_products(
                        start, pace, weight, weights[k], ceiling, capped, first_work, second_work,
                        products, sums,
                    )  # fmt: skip
            if capped and bent:
                _add_lines(start, pace, knee, slope, sums)


def joint_scratch(n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory for the rows of a block, and for their scores."""
    return np.empty((3, _BLOCK_ROWS)), np.empty((2, n_outputs, _BLOCK_ROWS))


@njit(**FAST)
def _add_clipped(losses, weight, loss_clip):
    total = 0.0
    for i in range(losses.size):
        # A loss must not become negative by rounding: the range of the sum depends on that.
        total += min(max(weight[i] * losses[i], 0.0), loss_clip)
    return total


@njit(**INNER)
def _align(scores, slopes, targets, spacing, softmax, usable, start, pace):
    """Write z per output and row: scores less that of the own class, or minus the margins."""
    n = usable.size
    for k in range(scores.shape[0]):
        for i in range(n):
            own = targets[i]
            z, change = scores[k, i], -slopes[k, i]
            if softmax:
                z -= scores[own, i]
                change += slopes[own, i]
            elif own == k:
                z, change = -z, -change
            start[k, i] = z if usable[i] > 0.0 else 0.0
            pace[k, i] = spacing * change if usable[i] > 0.0 else 0.0


@njit(**INNER)
def _softmax_losses(start, pace, j, peak, total):
    """Write log(sum over outputs of exp(z)) to `total`."""
    n = peak.size
    peak[:] = 0.0
    total[:] = 0.0
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        for i in range(n):
            peak[i] = max(peak[i], z[i] + j * change[i])
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        for i in range(n):
            total[i] += exp(z[i] + j * change[i] - peak[i])
    for i in range(n):
        total[i] = peak[i] + log(total[i])


@njit(**INNER)
def _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total):
    """Write the sum over outputs of the margin losses to `total`."""
    n = total.size
    total[:] = 0.0
    for k in range(len(start)):
        z, change = start[k, :n], pace[k, :n]
        if code == _LOGISTIC:
            for i in range(n):
                total[i] += _softplus(z[i] + j * change[i])
        else:
            for i in range(n):
                total[i] += _hinge(z[i] + j * change[i], curved, knee, 1.0, shift)


@njit(**INNER)
def _progress(power, ratio, softmax, total):
    """Write the losses to `total`, given exp(z), which moves on by one step."""
    n = total.size
    total[:] = 0.0 if softmax else 1.0
    for k in range(len(power)):
        e, r = power[k, :n], ratio[k, :n]
        for i in range(n):
            total[i] = total[i] + e[i] if softmax else total[i] * (1.0 + e[i])
            e[i] *= r[i]
    for i in range(n):
        total[i] = log(total[i])


@kernel(**EXACT)
def joint_line_losses(
    scores, slopes, signed, targets, spacing, loss_clip, weights, row_weights, code, curvature,
    chunk_rows, first, last, scratch, lines, partials,
):  # fmt: skip
    """Write the sums of the clipped losses of K outputs over the chunks [first, last).

    The arguments are those of `margin_line_losses`, with the classes of rows in `targets`, scores
    of shape (K, padded rows), and `scratch` and `lines` from `joint_scratch`.
    """
    n_outputs, n_steps = scores.shape[0], partials.shape[1]
    softmax = code == _SOFTMAX
    shift = 1.0 + 0.5 / curvature
    curved, knee = _parabola(curvature)
    # Neither a sum over outputs of exp(z) nor a product of 1 + exp(z) overflows up to there.
    tame = _LARGEST_EXPONENT - n_outputs * _LOG_2
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, _BLOCK_ROWS):
            n = min(_BLOCK_ROWS, stop - i)
            weight, total, peak = scratch[0, :n], scratch[1, :n], scratch[2, :n]
            start, pace = lines[0], lines[1]
            classes = targets[i:]
            total[:] = 0.0
            for k in range(n_outputs):
                for p in range(n):
                    change = (n_steps - 1) * spacing * slopes[k, i + p]
                    total[p] += abs(scores[k, i + p]) + abs(change)
            fast = (softmax or code == _LOGISTIC) and n_steps <= _RESTART
            for p in range(n):
                usable = total[p] <= _LARGEST_MARGIN and signed[i + p] > 0.0
                weight[p] = weights[classes[p]] if usable else 0.0
                if row_weights is not None:
                    weight[p] *= row_weights[i + p]
                fast = fast and (total[p] <= tame or not usable)
            _align(scores[:, i:], slopes[:, i:], classes, spacing, softmax, weight, start, pace)
            if fast:
                for k in range(n_outputs):
                    for p in range(n):
                        start[k, p] = exp(start[k, p])
                        pace[k, p] = exp(pace[k, p])
            for j in range(n_steps):
                if fast:
                    _progress(start, pace, softmax, total)
                elif softmax:
                    _softmax_losses(start, pace, j, peak, total)
                else:
                    _one_vs_rest_losses(start, pace, j, curved, knee, shift, code, total)
                sums[j] += _add_clipped(total, weight, loss_clip)
