"""One pass over eight stretches of memory: scores of some while others are added to a sum.

In row-major data the stretches are rows and the weights of a score the coefficients of the model.
In column-major data they are columns, and the roles are exchanged: adding columns gives the scores
of a block of rows, and the score of a column is its entry in the gradient.
"""

from numba import njit

from dpglm.kernels.arithmetic import EXACT
from dpglm.kernels.vectors import LANES, lane, load, prefetch, spread, store, sum_each

__all__ = ["add", "score", "score_and_add"]


@njit(forceinline=True, **EXACT)
def score_and_add(data, scored, added, stride, room, width, weights, factors, total, ahead):
    """Return the scores of eight stretches, while eight others are added to `total`.

    Parameters
    ----------
    data : float array
    scored, added : int
        Where the first of the eight stretches begins that are scored, and added.
    stride : int
        From one stretch to the next.
    room : int, or None
        From the first to the last that exists, which stands for all that would come after it.
        None: all eight exist.
    width : int
        Length of a stretch, a multiple of eight.
    weights : float array (width,), or None
        Scores are products with it. None: nothing is scored.
    factors : vector
        What each of the eight is multiplied by before it is added.
    total : float array (width,), or None
        None: nothing is added.
    ahead : int, or None
        What is prefetched meanwhile: eight times `width` numbers from there on.

    Returns
    -------
    vector
    """
    if room is None:
        room = 7 * stride
    o1, o2, o3 = min(stride, room), min(2 * stride, room), min(3 * stride, room)
    o4, o5, o6 = min(4 * stride, room), min(5 * stride, room), min(6 * stride, room)
    o7 = min(7 * stride, room)
    s1, s2, s3, s4 = scored + o1, scored + o2, scored + o3, scored + o4
    s5, s6, s7 = scored + o5, scored + o6, scored + o7
    a1, a2, a3, a4 = added + o1, added + o2, added + o3, added + o4
    a5, a6, a7 = added + o5, added + o6, added + o7
    f0, f1, f2, f3 = lane(factors, 0), lane(factors, 1), lane(factors, 2), lane(factors, 3)
    f4, f5, f6, f7 = lane(factors, 4), lane(factors, 5), lane(factors, 6), lane(factors, 7)
    p0 = p1 = p2 = p3 = p4 = p5 = p6 = p7 = spread(0.0)
    for j in range(0, width, LANES):
        if ahead is not None:
            prefetch(data, ahead + LANES * j)
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
            t0 = load(data, added + j) * f0 + load(data, a4 + j) * f4
            t1 = load(data, a1 + j) * f1 + load(data, a5 + j) * f5
            t2 = load(data, a2 + j) * f2 + load(data, a6 + j) * f6
            t3 = load(data, a3 + j) * f3 + load(data, a7 + j) * f7
            store(total, j, load(total, j) + ((t0 + t1) + (t2 + t3)))
    return sum_each(p0, p1, p2, p3, p4, p5, p6, p7)


@njit(forceinline=True, **EXACT)
def score(data, start, stride, room, width, weights, ahead):
    """Only return the scores of eight stretches."""
    return score_and_add(data, start, start, stride, room, width, weights, spread(0.0), None, ahead)


@njit(forceinline=True, **EXACT)
def add(data, start, stride, room, width, factors, total, ahead):
    """Only add eight stretches to `total`."""
    score_and_add(data, start, start, stride, room, width, None, factors, total, ahead)
