"""Losses of all rows at equally spaced steps along a line, from two numbers per row.

Scores are linear in the step: given the scores of the coefficients and those of the direction, the
data themselves are not needed any more. Dense and sparse rows are alike here.

Conventions
-----------
- A loss is an increasing function of ``z = -margin``; at step number j, ``z = start + j pace``.
- A row without influence (null, or with a norm or a margin that is not finite) has zero weight,
  start and pace, and adds exactly zero to every sum.
- Slopes are capped when the losses to sum are those whose gradients are the clipped ones: a loss is
  then extended by a straight line from its knee on, where its slope reaches ``clip / ||x||``.

Notes
-----
The logistic loss costs neither exponential nor logarithm: ``exp(z)`` at consecutive steps is a
geometric progression, and the sum over rows of ``log(1 + exp(z))`` is the logarithm of a product.
A block of rows whose product might overflow is summed term by term instead.
"""

import math

from numba import njit

from dpglm.kernels.arithmetic import EXACT, FAST, LARGEST, exp, log

__all__ = [
    "BLOCK_ROWS",
    "LARGEST_EXPONENT",
    "LARGEST_MARGIN",
    "LOGISTIC",
    "LOG_2",
    "RESTART",
    "advance",
    "hinge",
    "line_scratch",
    "logistic",
    "margin_line_losses",
    "parabola",
]

BLOCK_ROWS = 256
LOGISTIC = 0
# Margins beyond it count as not finite: products with slopes and weights must not overflow.
LARGEST_MARGIN = 2.0**500
# The progression is used for |z| below this, and restarted after so many steps.
LARGEST_EXPONENT = 600.0
RESTART = 28
# Factors are scaled by 1/8 to centre the range of the product, which is above exp(-532): 256 rows
# have room for exp(700), so that a mean loss of 4.8 is not yet too much.
_SCALE = 0.125
_LOG_SCALE = math.log(_SCALE)
_LARGEST_LOG = 700.0
LOG_2 = math.log(2.0)


def line_scratch(n_outputs: int, n_steps: int) -> int:
    """Numbers of scratch that the kernels need."""
    return (9 + 2 * n_outputs) * BLOCK_ROWS + n_steps


@njit(cache=True, **EXACT)
def advance(scores, slopes, step):
    """scores -= step * slopes"""
    for i in range(scores.size):
        scores[i] -= step * slopes[i]


@njit(**EXACT)
def logistic(z, curved, knee, slope):
    """Weighted logistic loss up to the knee, then a line."""
    bent = min(z, knee)
    softplus = max(bent, 0.0) + log(1.0 + exp(-abs(bent)))
    return curved * softplus + slope * max(z - knee, 0.0)


@njit(**EXACT)
def hinge(z, curved, knee, slope, shift):
    """Weighted hinge loss: a parabola up to the knee, then a line."""
    shortfall = max(z + shift, 0.0)
    bent = min(shortfall, knee)
    return curved * bent * bent + slope * (shortfall - bent)


@njit(**EXACT)
def _describe(
    scores, slopes, signed, spacing, last, capped, clip, weights, start, pace, weight, slope
):  # fmt: skip
    """Write z at the first step, its change per step, and the weight and largest slope of rows."""
    negative, positive = weights[0], weights[1]
    for i in range(scores.size):
        sign = math.copysign(1.0, signed[i])
        own = positive if signed[i] > 0.0 else negative
        steepest = min(own, clip * abs(signed[i])) if capped else own
        change = spacing * slopes[i]
        usable = abs(scores[i]) + last * abs(change) <= LARGEST_MARGIN
        usable = usable and abs(signed[i]) > 0.0
        start[i] = -sign * scores[i] if usable else 0.0
        pace[i] = sign * change if usable else 0.0
        weight[i] = own if usable else 0.0
        slope[i] = steepest if usable else 0.0


@njit(**EXACT)
def _bend_logistic(weight, slope, curved, knee, ceiling):
    """Where logistic losses become lines; `ceiling` is ``1 + exp(knee)``, scaled."""
    for i in range(weight.size):
        odds = slope[i] / (weight[i] - slope[i])
        bends = slope[i] < weight[i]
        curved[i] = weight[i]
        knee[i] = log(min(max(odds, 1e-300), 1e300)) if bends else LARGEST
        ceiling[i] = _SCALE * (1.0 + odds) if bends else LARGEST


@njit(**EXACT)
def _largest_logistic(loss_clip, weight):
    """Where a weighted logistic loss reaches the clip, and the ceiling there."""
    most = min(loss_clip / weight, LARGEST) if weight > 0.0 else LARGEST
    growth = exp(min(most, _LARGEST_LOG))
    return log(max(growth - 1.0, most)) if most < 32.0 else most, _SCALE * growth


@njit(**EXACT)
def _clip_logistic(signed, loss_clip, weights, weight, slope, curved, knee, ceiling):
    """Logistic losses that reach the clip go on as lines of slope zero."""
    negative_knee, negative_ceiling = _largest_logistic(loss_clip, weights[0])
    positive_knee, positive_ceiling = _largest_logistic(loss_clip, weights[1])
    for i in range(weight.size):
        curved[i] = weight[i]
        slope[i] = 0.0
        knee[i] = positive_knee if signed[i] > 0.0 else negative_knee
        ceiling[i] = positive_ceiling if signed[i] > 0.0 else negative_ceiling


@njit(**EXACT)
def parabola(curvature):
    """Coefficient and width of the curved part of the hinge loss."""
    width = 1.0 / curvature
    return 0.5 * curvature if width > 0.0 else 0.0, width


@njit(**EXACT)
def _bend_hinge(weight, slope, curvature, curved, knee):
    """Where hinge losses, smoothed or not, become lines."""
    quadratic, width = parabola(curvature)
    for i in range(weight.size):
        curved[i] = quadratic * weight[i]
        knee[i] = width * (slope[i] / weight[i]) if weight[i] > 0.0 else 0.0


@njit(**FAST)
def _add_terms(
    start, pace, curved, knee, slope, shift, code, capped, loss_clip, reach, base, sums
):  # fmt: skip
    """Add the losses of a block of rows at each step to `sums`, term by term."""
    for i in range(start.size):
        if code == LOGISTIC:
            base[i] = logistic(start[i], curved[i], knee[i], slope[i]) if capped else 0.0
        else:
            base[i] = hinge(start[i], curved[i], knee[i], slope[i], shift) if capped else 0.0
    for j in range(sums.size):
        low = -j * reach if capped else 0.0
        high = j * reach if capped else loss_clip
        total = 0.0
        if code == LOGISTIC:
            for i in range(start.size):
                term = logistic(start[i] + j * pace[i], curved[i], knee[i], slope[i]) - base[i]
                total += min(max(term, low), high)
        else:
            for i in range(start.size):
                term = hinge(start[i] + j * pace[i], curved[i], knee[i], slope[i], shift) - base[i]
                total += min(max(term, low), high)
        sums[j] += total


@njit(**FAST)
def _multiply_seven(power, ratio, ceiling, products):
    """Products over rows at seven consecutive steps; `power` moves on by seven steps."""
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = 1.0
    for i in range(power.size):
        e, r, top = power[i], ratio[i], ceiling[i]
        p0 *= min(_SCALE + e, top)
        e *= r
        p1 *= min(_SCALE + e, top)
        e *= r
        p2 *= min(_SCALE + e, top)
        e *= r
        p3 *= min(_SCALE + e, top)
        e *= r
        p4 *= min(_SCALE + e, top)
        e *= r
        p5 *= min(_SCALE + e, top)
        e *= r
        p6 *= min(_SCALE + e, top)
        power[i] = e * r
    products[0], products[1], products[2], products[3] = p0, p1, p2, p3
    products[4], products[5], products[6] = p4, p5, p6


@njit(**FAST)
def _multiply_one(power, ratio, ceiling):
    product = 1.0
    for i in range(power.size):
        product *= min(_SCALE + power[i], ceiling[i])
        power[i] *= ratio[i]
    return product


@njit(**EXACT)
def _begin(start, pace, weight, which, step, power, ratio):
    """Scaled exp(z) at a step for rows of one weight, zero for the others; exp(pace)."""
    for i in range(start.size):
        ratio[i] = exp(pace[i])
        power[i] = _SCALE * exp(start[i] + step * pace[i]) if weight[i] == which else 0.0


@njit(**EXACT)
def _add_products(start, pace, weight, which, ceiling, capped, power, ratio, products, sums):
    """Add `which` times the logistic losses of the rows of that weight, up to their ceilings."""
    n_steps = sums.size
    for begin in range(0, n_steps, RESTART):
        _begin(start, pace, weight, which, begin, power, ratio)
        stop = min(begin + RESTART, n_steps)
        j = begin
        while j + 7 <= stop:
            _multiply_seven(power, ratio, ceiling, products[j : j + 7])
            j += 7
        while j < stop:
            products[j] = _multiply_one(power, ratio, ceiling)
            j += 1
    for j in range(n_steps):
        products[j] = log(products[j])
    reference = products[0] if capped else start.size * _LOG_SCALE
    for j in range(n_steps):
        sums[j] += which * (products[j] - reference)


@njit(**FAST)
def _add_lines(start, pace, knee, slope, sums):
    """Add what the straight parts of capped losses have gained since the first step."""
    for j in range(sums.size):
        total = 0.0
        for i in range(start.size):
            gain = max(start[i] + j * pace[i], knee[i]) - max(start[i], knee[i])
            total += slope[i] * gain
        sums[j] += total


@njit(**FAST)
def _limits(start, pace, knee, last):
    """Of a block: rows of large |z|, bound on the log of any product of them, rows that bend."""
    wild = 0.0
    logarithm = 0.0
    beyond = 0.0
    for i in range(start.size):
        end = start[i] + last * pace[i]
        top = max(start[i], end)
        wild += 1.0 if abs(start[i]) + last * abs(pace[i]) > LARGEST_EXPONENT else 0.0
        # small factors must not make up for large ones, which may be multiplied first
        logarithm += max(max(min(top, knee[i]), 0.0) + (LOG_2 + _LOG_SCALE), 0.0)
        beyond += 1.0 if top > knee[i] else 0.0
    return wild, logarithm, beyond


@njit(cache=True, **EXACT)
def margin_line_losses(
    scores, slopes, signed, spacing, capped, loss_clip, clip, reach, weights, code, curvature,
    chunk_rows, first, last, scratch, partials,
):  # fmt: skip
    """Sums of the losses of one output over the chunks [first, last).

    Parameters
    ----------
    scores, slopes : float array (padded rows,)
        Scores of the coefficients and of the direction, which is subtracted.
    signed : float array (padded rows,)
        Inverse norms with the sign of the label; zero for a row without influence.
    spacing : float
        From one step to the next; the first is zero.
    capped : bool
        Sum differences of losses with capped slopes, not clipped losses.
    loss_clip : float
        Finite bound on the loss of a row times its weight, if not `capped`.
    clip : float
        Finite bound on the norm of the gradient of a row, if `capped`.
    reach : float
        Bound on the change of a row's capped loss from one step to the next.
    weights : float array (2,)
    code, curvature
        Of the loss.
    chunk_rows, first, last : int
    scratch : float array
        See `line_scratch`.
    partials : float array (chunks, steps), written
    """
    size = BLOCK_ROWS
    n_steps = partials.shape[1]
    products = scratch[9 * size : 9 * size + n_steps]
    shift = 1.0 + 0.5 / curvature
    for chunk in range(first, last):
        sums = partials[chunk]
        sums[:] = 0.0
        stop = min((chunk + 1) * chunk_rows, signed.size)
        for i in range(chunk * chunk_rows, stop, size):
            n = min(size, stop - i)
            start, pace = scratch[:n], scratch[size : size + n]
            weight, slope = scratch[2 * size : 2 * size + n], scratch[3 * size : 3 * size + n]
            curved, knee = scratch[4 * size : 4 * size + n], scratch[5 * size : 5 * size + n]
            ceiling = scratch[6 * size : 6 * size + n]
            first_work, second_work = (
                scratch[7 * size : 7 * size + n],
                scratch[8 * size : 8 * size + n],
            )
            _describe(
                scores[i : i + n], slopes[i : i + n], signed[i : i + n], spacing, n_steps - 1,
                capped, clip, weights, start, pace, weight, slope,
            )  # fmt: skip
            fast = code == LOGISTIC
            if fast:
                if capped:
                    _bend_logistic(weight, slope, curved, knee, ceiling)
                else:
                    _clip_logistic(
                        signed[i : i + n], loss_clip, weights, weight, slope, curved, knee, ceiling
                    )
                wild, logarithm, beyond = _limits(start, pace, knee, n_steps - 1)
                fast = wild == 0.0 and logarithm <= _LARGEST_LOG
            else:
                _bend_hinge(weight, slope, curvature, curved, knee)
            if not fast:
                _add_terms(
                    start, pace, curved, knee, slope, shift, code, capped, loss_clip, reach,
                    first_work, sums,
                )  # fmt: skip
                continue
            for k in range(1 if weights[0] == weights[1] else 2):
                if weights[k] > 0.0:
                    _add_products(
                        start, pace, weight, weights[k], ceiling, capped, first_work, second_work,
                        products, sums,
                    )  # fmt: skip
            if capped and beyond > 0.0:
                _add_lines(start, pace, knee, slope, sums)
