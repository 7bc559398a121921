"""The sampler: exact rounding, the law of its output, entropy that is never reused."""

import decimal
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri
from sklearn.metrics import roc_auc_score

from dpglm.privacy import noise
from dpglm.privacy.noise import (
    entropy_source,
    rounded_gaussian,
    rounded_laplace,
    seeded_noise,
    uniform_below,
)


def test_rounds_the_exact_gaussian_of_each_word(vectors, scripted_entropy):
    for row in vectors("noise", "rounded_gaussian"):
        entropy = scripted_entropy([int(w, 16) for w in (row["word"], *row["extra_words"])])
        assert rounded_gaussian(1, float(row["scale"]), entropy)[0] == row["value"]
        assert entropy.words_drawn == row["words_used"]


def check_gaussian(word, extra, scale, scripted_entropy):
    """The number returned is right whatever the bits that were not drawn; return the draws."""
    entropy = scripted_entropy([word, *extra])
    value = int(rounded_gaussian(1, scale, entropy)[0])
    tail, n_bits = word >> 1, 64
    for used in extra[: entropy.words_drawn - 1]:
        tail, n_bits = tail << 64 | used, n_bits + 64
    with mpmath.workdps(80):
        low, high = (mpmath.mpf(k) / mpmath.mpf(2) ** n_bits for k in (tail, tail + 1))
        near, far = ((abs(value) + h) / (mpmath.sqrt(2) * scale) for h in (-0.5, 0.5))
        assert mpmath.erfc(far) / 2 <= low
        assert value == 0 or high <= mpmath.erfc(near) / 2
    assert value == 0 or (value < 0) == bool(word & 1)
    return entropy.words_drawn


EXTREMES = [0] * 4, [2**64 - 1] * 4


@pytest.mark.parametrize("scale", [2.0**30, 1.9 * 2**30, 3.0])
def test_agrees_with_80_digit_arithmetic_on_words_of_all_sizes(scale, scripted_entropy):
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**64, 100, dtype=np.uint64)
    shifted = words >> rng.integers(0, 64, 100, dtype=np.uint64)
    extreme = [0, 1, 2, 3, 40, 1001, 2**30 + 1, 2**64 - 1, 2**64 - 2]
    for word in [*words.tolist(), *shifted.tolist(), *extreme]:
        check_gaussian(word, [0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], scale, scripted_entropy)
    for word in (2, 4, 6, 2**20, 2**31, 2**33, 2**40):
        for extra in EXTREMES:
            check_gaussian(word, extra, scale, scripted_entropy)


@pytest.mark.parametrize("scale", [2.0**30, 1.9 * 2**30, 2.0**40])
def test_words_next_to_a_half_integer_are_decided_in_exact_arithmetic(scale, scripted_entropy):
    """As close as there are to where the rounding changes, on both of its sides."""
    rng = np.random.default_rng(0)
    drawn = []
    for z in rng.exponential(size=15):
        boundary = math.floor(z * scale) + 0.5
        with mpmath.workdps(60):
            edge = int(mpmath.erfc(mpmath.mpf(boundary) / (scale * mpmath.sqrt(2))) * 2**63)
        for tail in range(edge - 1, edge + 2):
            for extra in EXTREMES:
                drawn.append(check_gaussian(2 * tail, extra, scale, scripted_entropy))
    assert min(drawn) >= 1 and max(drawn) == 2


@pytest.mark.parametrize("n_digits", [48, 96])
def test_tails_are_right_to_the_digits_of_the_context(n_digits):
    """As far out as draws are: a series that is cut short is wrong in the far tail alone."""
    for x in np.linspace(0, 14, 29):
        with decimal.localcontext(prec=n_digits), mpmath.workdps(n_digits + 60):
            found = mpmath.mpf(str(noise._upper_tail(decimal.Decimal(x))))
            exact = mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2)) / 2
            assert abs(found - exact) < mpmath.mpf(10) ** (3 - n_digits)


def test_few_draws_are_not_decided_by_doubles_but_all_that_an_error_could_change(monkeypatch):
    """The share that is documented, at the margin of 16 times the error of the quantiles."""
    calls = []
    original = noise._round_gaussian_with_more_bits
    monkeypatch.setattr(
        noise, "_round_gaussian_with_more_bits", lambda *args: calls.append(1) or original(*args)
    )
    rounded_gaussian(2_000_000, 2.0**30, entropy_source(0))
    assert len(calls) == pytest.approx(2_000_000 * 5.5e-5, rel=0.35)
    tails = 10.0 ** np.random.default_rng(0).uniform(-19, -0.31, 300)
    for tail in tails:
        z = -float(ndtri(tail))
        with mpmath.workdps(40):
            error = (mpmath.erfc(z / mpmath.sqrt(2)) / 2 - tail) / mpmath.npdf(z)
            assert abs(error) < 2.0**-50 * (1 + z)


def larger_takes_longer(n_draws=100_000):
    """The chance that of two draws the one that took longer is the larger one."""
    entropy, times, sizes = entropy_source(), np.empty(n_draws), np.empty(n_draws)
    for i in range(n_draws):
        start = time.perf_counter_ns()
        draw = rounded_gaussian(1, 2.0**30, entropy)
        times[i], sizes[i] = time.perf_counter_ns() - start, abs(draw[0])
    large = sizes > np.median(sizes)
    return roc_auc_score(large, times)


@pytest.mark.slow
def test_the_time_of_a_draw_does_not_tell_its_size():
    """Chance alone reaches 0.505 in one of 300 measurements; one series for each reaches 0.55."""
    assert min(larger_takes_longer() for _ in range(3)) <= 0.505


def test_a_seed_reproduces_the_stream_and_the_system_does_not():
    assert (entropy_source(3).words(5) == entropy_source(3).words(5)).all()
    assert (entropy_source(3).words(5) != entropy_source(4).words(5)).any()
    assert (entropy_source().words(5) != entropy_source().words(5)).any()
    assert entropy_source(3).seeded and not entropy_source().seeded


def test_a_seed_is_that_of_its_block_and_thread():
    def source():
        return entropy_source().seeded

    with ThreadPoolExecutor(1) as pool, seeded_noise(3):
        assert source() and not pool.submit(source).result()
        with seeded_noise(None):
            assert not source()
        with pytest.raises(ArithmeticError), seeded_noise(4):
            raise ArithmeticError
        assert (entropy_source().words(5) == entropy_source(3).words(5)).all()
        with pytest.raises(ValueError, match="cannot be used to seed"), seeded_noise("3"):
            pytest.fail("begun")
    assert not source()


def test_no_random_byte_is_thrown_away(monkeypatch):
    """What is drawn in two parts is what is drawn at once; 8 bytes are read for a word."""
    whole, parts = entropy_source(3).words(5), entropy_source(3)
    assert (np.concatenate([parts.words(2), parts.words(3)]) == whole).all()
    read = []
    original = os.urandom
    monkeypatch.setattr(noise, "os", os)
    monkeypatch.setattr(os, "urandom", lambda count: read.append(count) or original(count))
    system = entropy_source()
    assert len(system.words(5)) == 5 and read == [40]
    assert (system.words_drawn, parts.words_drawn) == (5, 5)


@pytest.mark.parametrize("scale", [2.0**30, 1.9 * 2**30, 3.0])
def test_laplace_magnitudes_are_rounded_exactly(scale, scripted_entropy):
    words = np.random.default_rng(6).integers(0, 2**64, 100, dtype=np.uint64).tolist()
    words += [0, 1, 2, 3, 4, 5, 40, 1001, 2**64 - 1, 2**64 - 2]
    words += [word >> shift for word, shift in zip(words, range(64), strict=False)]
    for extra in ([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], [0, 0], [2**64 - 1] * 2):
        more = extra[0] | extra[1] << 64
        with mpmath.workdps(80):
            for word in words:
                tail = mpmath.mpf(((word >> 1) << 128 | more) + 1) / mpmath.mpf(2) ** 191
                magnitude = int(mpmath.nint(-scale * mpmath.log(tail)))
                drawn = rounded_laplace(1, scale, scripted_entropy([word, *extra]))[0]
                assert drawn == (-magnitude if word & 1 else magnitude)


@pytest.mark.parametrize("bound", [1, 2, 7, 2**63, 2**64 - 1, 2**64, 10**30])
def test_bounded_integers_divide_the_range_of_the_words_evenly(bound, scripted_entropy):
    n_words = bound.bit_length() // 64 + 2
    n_bits = 64 * n_words
    share = 2**n_bits // bound
    for value in {0, bound // 3, bound - 1}:
        for number in (value * share, (value + 1) * share - 1):
            words = [number >> 64 * i & (2**64 - 1) for i in range(n_words)]
            entropy = scripted_entropy(words)
            assert uniform_below(bound, entropy) == value
            assert entropy.words_drawn == n_words
    for number in {min(share * bound, 2**n_bits - 1), 2**n_bits - 1}:
        if share * bound < 2**n_bits:
            words = [number >> 64 * i & (2**64 - 1) for i in range(n_words)]
            entropy = scripted_entropy([*words, *[0] * n_words])
            assert uniform_below(bound, entropy) == 0
            assert entropy.words_drawn == 2 * n_words
