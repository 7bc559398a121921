"""Entropy, exact noise and exact samples: the only code that draws randomness for privacy."""

import decimal
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import erfc, ndtri
from sklearn.utils import check_random_state

# Quantiles of rounded arguments come out to within 2^-50 (1 + |z|), measured; 16 times wider.
_QUANTILE_ERROR = 2.0**-46
# SciPy computes quantiles of larger tails by another series.
_CENTRAL_TAIL = math.exp(-2)
# Precision of the decimal arithmetic, used where doubles do not decide.
_DIGITS = 70


class EntropySource:
    """Uniform 64-bit words, a count of those drawn, and whether a seed reproduces them.

    Without a seed they are the operating system's, never buffered: a forked child cannot repeat
    them. Anyone who knows the seed can subtract the noise.
    """

    def __init__(self, seed: int | np.random.RandomState | None = None) -> None:
        self.seeded, self.words_drawn = seed is not None, 0
        self._draw = check_random_state(seed).bytes if self.seeded else os.urandom

    def words(self, count: int) -> np.ndarray:
        """Return ``count`` fresh uniform words, uint64 of shape (count,)."""
        self.words_drawn += count
        return np.frombuffer(self._draw(8 * count), dtype=np.uint64, count=count)


# The seed of this thread's noise, for tests; a ledger states whether there is a seed.
noise_seed: ContextVar[Any] = ContextVar("noise_seed", default=None)


@contextmanager
def seeded_noise(seed: int | np.random.RandomState | None) -> Iterator[None]:
    """Make the noise of all fits in a ``with`` block reproducible: for tests and papers only.

    Anyone who knows, guesses or tries out the seed can subtract the noise. Each fit warns of the
    seed, and its ledger states the seed. No parameter of an estimator sets a seed: meta-estimators,
    which set every ``random_state``, cannot do so unasked.

    Parameters
    ----------
    seed : int, RandomState instance or None
        With an int each fit draws the same stream from its start; a RandomState is consumed by one
        fit after the other. With ``None`` noise is fresh, as outside of the block.

    Raises
    ------
    ValueError
        If the seed is none of these.

    Notes
    -----
    The block applies to one thread: fits in threads and processes that it starts (``n_jobs=2``)
    draw fresh noise, except in a fork. Copies of the context keep the seed, even after the block
    has ended: those of asyncio's tasks, and of its ``to_thread``.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, seeded_noise
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(500, random_state=0)
    >>> with seeded_noise(0):
    ...     first, second = (DPLogisticRegression(max_iter=5).fit(X, y) for _ in range(2))
    >>> (first.coef_ == second.coef_).all(), first.privacy_.seeded
    (np.True_, True)
    """
    if seed is not None:
        check_random_state(seed)
    token = noise_seed.set(seed)
    try:
        yield
    finally:
        noise_seed.reset(token)


def entropy_source(seed: int | np.random.RandomState | None = None) -> EntropySource:
    """Return the source of all noise of one fit: the operating system, unless there is a seed.

    Without a seed here, that of `seeded_noise` counts.
    """
    return EntropySource(noise_seed.get() if seed is None else seed)


def rounded_gaussian(size: int, scale: float, entropy: EntropySource) -> np.ndarray:
    """Draw integers distributed exactly as ``N(0, scale**2)`` rounded to the nearest integer.

    The scale, at least 1, is used as the exact number it stores; int64 of shape (size,).

    Notes
    -----
    Bit 0 of a word is the sign; the other 63 bits ``k`` place the tail probability in
    ``[k, k + 1) / 2**64``, whose quantile times ``scale`` is rounded. In the far tail and near
    half-integers decimal arithmetic decides, with more bits if needed. At a scale of 2^30 these are
    about 5e-5 of the draws. The distribution is therefore that of an exact Gaussian, rounded. No
    floating-point artefact of the sampler reaches a release (Mironov 2012, "On significance of the
    least significant bits for differential privacy").

    The time depends on no record, and does not tell how large a draw is: each takes the same steps.
    Decimal arithmetic takes longer, and up to a fifth less for small draws.
    """
    _check_quantiles()
    return _rounded_symmetric(
        size, scale, entropy, _gaussian_quantile, _round_gaussian_with_more_bits
    )


def _gaussian_quantile(half: np.ndarray) -> np.ndarray:
    """Return ``-ndtri(half)``, by both series for every draw: the time tells of none."""
    # One or zero, as numbers: truth values are converted by branches.
    inside = np.ceil(half - _CENTRAL_TAIL)
    outside = 1.0 - inside
    # The argument of the series that is not used is as random as that of the other.
    central, outer = ndtri(half + 0.25 * outside), ndtri(half - 0.75 * half * inside)
    return -(central * inside + outer * outside)


@cache
def _check_quantiles() -> None:
    """Raise an error, once per process, if SciPy's quantiles are less accurate than assumed.

    If a quantile z is off by e, its tail is off by less than ``(z + 1) e``, relatively. The tails
    come from another function.
    """
    tails = 2.0 ** -np.linspace(0.0, 63.0, 1000)
    z = -ndtri(tails / 2)
    off = np.abs(np.log(erfc(z / math.sqrt(2)) / tails))
    if not (off <= _QUANTILE_ERROR * (1 + z) ** 2).all():
        raise RuntimeError(
            "scipy.special.ndtri is less accurate here than exact noise needs; nothing was drawn. "
            "Install another release of SciPy."
        )


def uniform_below(bound: int, entropy: EntropySource) -> int:
    """Draw an integer uniformly from ``0, ..., bound - 1``, exactly.

    Notes
    -----
    A number with at least 64 more bits than ``bound`` is drawn. With probability below 2^-64 the
    number lies beyond the largest multiple of ``bound``, and is drawn again. Equal bits give nearly
    equal results for nearly equal bounds: a seeded choice does not depend on a score's last bit.
    """
    n_words = bound.bit_length() // 64 + 2
    share = 2 ** (64 * n_words) // bound
    while True:
        number = int.from_bytes(entropy.words(n_words).tobytes(), "little")
        if number < share * bound:
            return number // share


def poisson_sample(n_rows: int, rate: float, entropy: EntropySource) -> np.ndarray:
    """Draw a Poisson sample of row numbers, each row with probability ``rate`` independently.

    The rate lies between 1e-9 and 1 and is used as the exact number it stores. The length of the
    sample, Binomial(n_rows, rate), is private: never divide by it, never release it.

    Notes
    -----
    The number of rows skipped before the next one is ``floor(log(u) / log(1 - rate))`` with u
    uniform in (0, 1]. So the time grows with the sample and not with the rows. A 64-bit word places
    u. If floating-point error could move the quotient across an integer, 128 more bits are drawn
    and `_DIGITS` digits are computed. The distribution of a skip is within 2^-150 of the exact one
    in total variation.
    """
    if rate == 1:
        return np.arange(n_rows)
    expected = n_rows * rate  # speed only
    batch = math.ceil(expected + 4 * math.sqrt(expected) + 8)  # speed only
    rows: list[np.ndarray] = []
    last = -1
    while last < n_rows:
        # A skip beyond the end is cut short there, so that sums of skips stay small integers.
        skips = np.minimum(_skips(batch, rate, entropy), n_rows)
        rows.append(last + np.cumsum(skips + 1))
        last = int(rows[-1][-1])
    sample = np.concatenate(rows)
    return sample[: np.searchsorted(sample, n_rows)]


def fixed_sample(n_rows: int, rate: float, entropy: EntropySource) -> np.ndarray:
    """Draw ``rate * n_rows`` row numbers without replacement, rounded down.

    Every set of that size has the same probability: its rows have the smallest of independent
    words. If two words are equal, all are drawn again.
    """
    # The factor covers rounding: a rate that is a size over the number of rows gives that size.
    size = math.floor(rate * n_rows * (1 + 2.0**-50))
    while True:
        words = entropy.words(n_rows)
        order = np.argsort(words)
        if (np.diff(words[order]) > 0).all():
            return np.sort(order[:size])


def secret_choice(count: int) -> int:
    """Draw one of ``0, ..., count - 1``: the release to check."""
    return uniform_below(count, EntropySource())


def _skips(count: int, rate: float, entropy: EntropySource) -> np.ndarray:
    """Draw geometric numbers of failures before a success of probability `rate`."""
    words = entropy.words(count)
    middle = words.astype(np.float64) + 0.5
    scale = -1 / math.log1p(-rate)
    quotient = -np.log(middle * 2.0**-64) * scale
    undecided = np.abs(quotient - np.rint(quotient)) <= _error(scale, quotient, middle)
    skips = quotient.astype(np.int64)
    for i in np.flatnonzero(undecided | (words == 0)):
        with decimal.localcontext(prec=_DIGITS):
            log = _log_with_more_bits(int(words[i]), 64, entropy)
            skips[i] = int(log / (1 - decimal.Decimal(rate)).ln())
    return skips


def rounded_laplace(size: int, scale: float, entropy: EntropySource) -> np.ndarray:
    """Draw integers distributed as Laplace noise of scale ``scale``, rounded to the nearest.

    The scale, from 1 to 2^40, is used as the exact number it stores; int64 of shape (size,).

    Notes
    -----
    Bit 0 of a word is the sign; the other 63 bits place the tail probability u, and the magnitude
    is ``-scale log(u)``. If floating-point error could change its rounding, 128 more bits of u are
    drawn and `_DIGITS` digits of the logarithm are computed. The distribution is within 2^-150 of
    the exact one in total variation.
    """
    return _rounded_symmetric(
        size, scale, entropy, lambda half: -np.log(2 * half), _round_laplace_with_more_bits
    )


def _rounded_symmetric(
    size: int,
    scale: float,
    entropy: EntropySource,
    quantile: Callable[[np.ndarray], np.ndarray],
    round_with_more_bits: Callable[[int, float, EntropySource], int],
) -> np.ndarray:
    """Draw a sign, and round ``scale`` times the quantile of half a tail placed by 63 bits."""
    words = entropy.words(size)
    tail_bits = words >> np.uint64(1)
    middle = tail_bits.astype(np.float64) + 0.5
    magnitude = quantile(middle * 2.0**-64) * scale
    nearest = np.rint(magnitude)
    undecided = 0.5 - np.abs(magnitude - nearest) <= _error(scale, magnitude, middle)
    rounded = nearest.astype(np.int64)
    for i in undecided.nonzero()[0]:
        rounded[i] = round_with_more_bits(int(tail_bits[i]), scale, entropy)
    return np.where(words & np.uint64(1), -rounded, rounded)


def _error(scale: float, magnitude: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Bound the error of ``scale`` times a quantile that was taken in the middle of an interval.

    From k to k + 1 the logarithm of the tail is within ``log((k + 1/2) / k)`` of that in the
    middle. The derivative of the quantile in this logarithm is at most 1.26: a Gaussian's, ``(1 -
    Phi) / phi``, is largest at 0. The product is less than ``1 / (k + 1/2)`` if k > 0. For k = 0
    the bound is above twice the scale: at a scale of 1 or more such a draw decides no rounding.
    """
    return _QUANTILE_ERROR * (scale + magnitude) + scale / middle


def _log_with_more_bits(bits: int, n_bits: int, entropy: EntropySource) -> decimal.Decimal:
    """Return the logarithm of a uniform number in (0, 1] of these bits, and 128 more."""
    more = int.from_bytes(entropy.words(2).tobytes(), "little")
    return (decimal.Decimal((bits << 128 | more) + 1) / decimal.Decimal(2) ** (n_bits + 128)).ln()


def _round_laplace_with_more_bits(tail_bits: int, scale: float, entropy: EntropySource) -> int:
    with decimal.localcontext(prec=_DIGITS):
        magnitude = -_log_with_more_bits(tail_bits, 63, entropy) * decimal.Decimal(scale)
        return int(magnitude.to_integral_value())


def _round_gaussian_with_more_bits(tail_bits: int, scale: float, entropy: EntropySource) -> int:
    """Round ``scale`` times the quantile of a tail, with ever more bits until it is certain.

    An integer r is certain when the whole interval of the tail lies between the tails of the
    boundaries, ``Q((r + 1/2) / scale) < p <= Q((r - 1/2) / scale)``. A part of
    ``2^-n_bits`` of the tail, itself at least ``2^-n_bits``, is left out: above ``10^(-0.61
    n_bits)``. The error of Q is far below that.
    """
    n_bits = 64
    while True:
        with decimal.localcontext(prec=3 * n_bits // 4):
            unit = decimal.Decimal(2) ** n_bits
            low, high = decimal.Decimal(tail_bits) / unit, decimal.Decimal(tail_bits + 1) / unit
            slack = low / unit
            guess = round(-ndtri(float(low + high) / 2) * scale)
            # The tails beyond the half-integers around the guess, and beyond the next ones.
            tails = [
                _upper_tail((2 * (guess + i) - 3) / (2 * decimal.Decimal(scale))) for i in range(4)
            ]
            for i, (below, above) in enumerate(pairwise(tails)):
                if above + slack < low and high < below - slack:
                    return guess + i - 1
        tail_bits = tail_bits << 64 | int(entropy.words(1)[0])
        n_bits += 64


def _upper_tail(x: decimal.Decimal) -> decimal.Decimal:
    """Return 1 - Phi(x), absolutely to about the context's precision.

    By ``Phi(x) - 1/2 = phi(x) (x + x^3/3 + x^5/(3 5) + ...)``, whose terms have one sign, and of
    which as many are added for every x. For x below 14 the rest is below the precision.
    """
    precision, square = decimal.getcontext().prec, x * x
    term = total = x
    for odd in range(3, 12 * precision, 2):
        term *= square / odd
        total += term
    density = (-square / 2).exp() / (2 * _pi(precision)).sqrt()
    return decimal.Decimal(1) / 2 - density * total


@cache
def _pi(precision: int) -> decimal.Decimal:
    """Return pi to the context's precision, by the arithmetic-geometric mean (Salamin 1976)."""
    a, b = decimal.Decimal(1), 1 / decimal.Decimal(2).sqrt()
    t, power = 1 / decimal.Decimal(4), 1
    for _ in range(precision.bit_length()):
        a, b, previous = (a + b) / 2, (a * b).sqrt(), a
        t -= power * (previous - a) ** 2
        power *= 2
    return (a + b) ** 2 / (4 * t)
