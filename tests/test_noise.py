"""The sampler: exact rounding, the law of its output, entropy that is never reused."""

import math
import os
import warnings

import mpmath
import numpy as np
import pytest
from scipy.stats import chisquare, kstest, norm

from dpglm.privacy import noise
from dpglm.privacy.noise import (
    entropy_source,
    grid_spacing,
    rounded_gaussian,
    rounded_laplace,
    uniform_below,
)


def test_rounds_the_exact_gaussian_of_each_word(vectors, scripted_entropy):
    for row in vectors("noise", "rounded_gaussian"):
        entropy = scripted_entropy([int(w, 16) for w in (row["word"], *row["extra_words"])])
        assert rounded_gaussian(1, float(row["scale"]), entropy)[0] == row["value"]
        assert entropy.words_drawn == row["words_used"]


@pytest.mark.parametrize("scale", [2.0**30, 1.9 * 2**30, 3.0])
def test_agrees_with_60_digit_arithmetic_on_random_and_extreme_words(scale, scripted_entropy):
    words = np.random.default_rng(5).integers(0, 2**64, 300, dtype=np.uint64).tolist()
    words += [0, 1, 2, 3, 40, 1001, 2**30 + 1, 2**64 - 1, 2**64 - 2]
    extra = [0x9E3779B97F4A7C15, 0xD1B54A32D192ED03]
    with mpmath.workdps(60):
        for word in words:
            tail, bits, left = word >> 1, 64, list(extra)
            entropy = scripted_entropy([word, *extra])
            value = int(rounded_gaussian(1, scale, entropy)[0])
            for used in left[: entropy.words_drawn - 1]:
                tail, bits = tail << 64 | used, bits + 64
            p = (mpmath.mpf(tail) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** bits
            low, high = ((abs(value) + h) / mpmath.mpf(scale) for h in (-0.5, 0.5))
            assert mpmath.erfc(high / mpmath.sqrt(2)) / 2 <= p
            assert value == 0 or p <= mpmath.erfc(low / mpmath.sqrt(2)) / 2
            assert value == 0 or (value < 0) == bool(word & 1)


def test_words_near_a_half_integer_are_decided_in_exact_arithmetic(scripted_entropy, monkeypatch):
    """Words whose quantile falls within 1e-7 of a rounding boundary, on both of its sides."""
    scale, boundary = 2.0**30, 12345678.5
    p = mpmath.erfc(mpmath.mpf(boundary) / scale / mpmath.sqrt(2)) / 2
    calls = []
    original = noise._round_with_more_bits
    monkeypatch.setattr(
        noise, "_round_with_more_bits", lambda *args: calls.append(args) or original(*args)
    )
    tail = int(p * mpmath.mpf(2) ** 64)
    step = int(mpmath.mpf(2) ** 64 * mpmath.npdf(boundary / scale) / scale * 1e-7)
    for offset, expected in ((step, 12345678), (-step, 12345679)):
        entropy = scripted_entropy([2 * (tail + offset), 1, 1])
        assert rounded_gaussian(1, scale, entropy)[0] == expected
    assert len(calls) == 2


def test_output_law_is_the_rounded_gaussian():
    draws = rounded_gaussian(400_000, 2.0**30, entropy_source(0))
    assert kstest(draws / 2.0**30, "norm").pvalue > 1e-4
    assert chisquare(np.bincount(draws & 15, minlength=16)).pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(len(draws))


def test_cell_probabilities_are_those_of_rounding_at_a_coarse_scale():
    draws = rounded_gaussian(200_000, 2.0, entropy_source(1))
    edges = (np.arange(-5, 6) + 0.5) / 2
    expected = np.diff(norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]))) * len(draws)
    observed = np.histogram(draws, np.concatenate([[-1e9], np.arange(-5, 6) + 0.5, [1e9]]))[0]
    assert chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("std", [1e-200, 1e-9, 0.5, 1.0, 1.5, 3e7, 1e200])
def test_grid_is_a_power_of_two_far_below_the_noise(std):
    grid = grid_spacing(std)
    assert math.frexp(grid)[0] == 0.5
    assert 2.0**30 <= std / grid < 2.0**31


def test_a_seed_reproduces_the_stream_and_the_system_does_not():
    assert (entropy_source(3).words(5) == entropy_source(3).words(5)).all()
    assert (entropy_source(3).words(5) != entropy_source(4).words(5)).any()
    assert (entropy_source().words(5) != entropy_source().words(5)).any()
    assert entropy_source(3).seeded and not entropy_source().seeded


def test_a_random_state_instance_is_consumed():
    state = np.random.RandomState(0)
    first = entropy_source(state).words(3)
    assert (entropy_source(state).words(3) != first).any()


def test_a_forked_child_draws_other_words_than_its_parent():
    entropy = entropy_source()
    entropy.words(4)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking a process that has threads; this child only writes.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.write(writer, entropy.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32), dtype=np.uint64)
    assert (theirs != entropy.words(4)).all()


def test_failing_entropy_raises_and_never_falls_back(monkeypatch):
    def fail(count):
        raise NotImplementedError("no entropy")

    monkeypatch.setattr(os, "urandom", fail)
    with pytest.raises(NotImplementedError, match="no entropy"):
        entropy_source().words(1)


@pytest.mark.parametrize("scale", [2.0**30, 1.9 * 2**30, 3.0])
def test_laplace_magnitudes_are_rounded_exactly(scale, scripted_entropy):
    words = np.random.default_rng(6).integers(0, 2**64, 300, dtype=np.uint64).tolist()
    words += [0, 1, 2, 3, 4, 5, 40, 1001, 2**64 - 1, 2**64 - 2]
    extra = [0x9E3779B97F4A7C15, 0xD1B54A32D192ED03]
    more = extra[0] | extra[1] << 64
    with mpmath.workdps(80):
        for word in words:
            tail = mpmath.mpf((word >> 1) << 128 | more) / mpmath.mpf(2) ** 191
            magnitude = int(mpmath.nint(-scale * mpmath.log(tail)))
            entropy = scripted_entropy([word, *extra])
            assert rounded_laplace(1, scale, entropy)[0] == (-magnitude if word & 1 else magnitude)


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
    if share * bound < 2**n_bits:
        entropy = scripted_entropy([2**64 - 1] * n_words + [0] * n_words)
        assert uniform_below(bound, entropy) == 0
        assert entropy.words_drawn == 2 * n_words
