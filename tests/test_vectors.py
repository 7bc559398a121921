"""Vectors of eight numbers in the kernels against numpy, NaN and the largest numbers included."""

import math
import operator
import re

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from dpglm.kernels.arithmetic import EXACT, copy, exp, log
from dpglm.kernels.vectors import (
    LANES,
    add_across,
    at,
    lane,
    load,
    max_across,
    prefetch,
    put,
    spread,
    store,
    sum_each,
    where,
)

SPECIAL = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e308])
OPERATORS = {
    "add": (lambda a, b: a + b, np.add),
    "subtract": (lambda a, b: a - b, np.subtract),
    "multiply": (lambda a, b: a * b, np.multiply),
    "divide": (lambda a, b: a / b, np.divide),
    "copysign": (lambda a, b: math.copysign(a, b), np.copysign),
    # the second operand where either is NaN
    "min": (lambda a, b: min(a, b), lambda a, b: np.where(a < b, a, b)),
    "max": (lambda a, b: max(a, b), lambda a, b: np.where(a > b, a, b)),
}


def run_on_vectors(function, *arrays):
    """Apply a function of vectors to eight numbers of each array after the other."""
    function = njit(**EXACT)(function)

    if len(arrays) == 1:

        @njit(**EXACT)
        def run(a, out):
            for i in range(0, out.size, LANES):
                store(out, i, function(load(a, i)))
    else:

        @njit(**EXACT)
        def run(a, b, out):
            for i in range(0, out.size, LANES):
                store(out, i, function(load(a, i), load(b, i)))

    out = np.empty(len(arrays[0]))
    run(*arrays, out)
    return out


def pairs():
    left, right = np.meshgrid(SPECIAL, SPECIAL)
    return left.ravel(), right.ravel()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_act_on_each_number(name):
    function, oracle = OPERATORS[name]
    left, right = pairs()
    with np.errstate(all="ignore"):
        expected = oracle(left, right)
    got = run_on_vectors(function, left, right)
    assert_array_equal(got, expected)
    kept = ~np.isnan(expected)
    assert_array_equal(np.signbit(got[kept]), np.signbit(expected[kept]))


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.eq])
def test_comparisons_choose_and_nan_compares_false(compare):
    left, right = pairs()
    got = run_on_vectors(lambda a, b: where(compare(a, b), a, 7.0), left, right)
    assert_array_equal(got, np.where(compare(left, right), left, 7.0))


def test_a_number_stands_for_eight():
    got = run_on_vectors(lambda a: -abs(2.0 - a) * 3.0 + math.sqrt(spread(4.0)), SPECIAL)
    with np.errstate(all="ignore"):
        assert_array_equal(got, -np.abs(2.0 - SPECIAL) * 3.0 + 2.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_load_converts_and_lane_repeats(dtype):
    values = np.arange(-3, 21).astype(dtype)
    assert_array_equal(run_on_vectors(lambda a: a, values), values)
    repeated = run_on_vectors(lambda a: lane(a, 5), values)
    assert_array_equal(repeated, np.repeat(values[5::8], 8))


@njit(**EXACT)
def gather(rows, sums):
    store(
        sums, 0,
        sum_each(
            load(rows, 0), load(rows, 8), load(rows, 16), load(rows, 24), load(rows, 32),
            load(rows, 40), load(rows, 48), load(rows, 56),
        ),
    )  # fmt: skip
    for i in range(8):
        put(sums, 8 + i, add_across(load(rows, 8 * i)))
        put(sums, 16 + i, max_across(load(rows, 8 * i)))
    prefetch(rows, 10**6)


def test_sums_across_vectors_use_one_order_for_all():
    rows = np.random.default_rng(0).normal(size=(8, 8)) * 10.0 ** np.arange(8)
    sums = np.empty(24)
    gather(rows.ravel(), sums)
    halves = rows
    for _ in range(3):
        halves = halves[:, ::2] + halves[:, 1::2]
    assert_array_equal(sums[:8], halves[:, 0])
    assert_array_equal(sums[8:16], halves[:, 0])
    assert_array_equal(sums[16:], rows.max(axis=1))


@njit(**EXACT)
def move(source, start, target):
    store(target, start, load(source, start))


def test_vectors_begin_anywhere_in_memory():
    for start in range(9):
        target = np.zeros(17)
        move(np.arange(17.0), start, target)
        expected = np.zeros(17)
        expected[start : start + 8] = np.arange(start, start + 8)
        assert_array_equal(target, expected)


@pytest.mark.parametrize(("dtype", "n_lines"), [(np.float64, 8), (np.float32, 4)])
def test_each_cache_line_of_64_numbers_is_prefetched_once(dtype, n_lines):
    @njit(**EXACT)
    def fetch(array):
        prefetch(array, 0)

    fetch(np.zeros(64, dtype=dtype))
    (code,) = fetch.inspect_llvm().values()
    hint = r"call void @llvm\.prefetch\S*\(.*, (.*), (.*), (.*)\)"
    # for reading, to stay in every cache, of data
    assert re.findall(hint, code) == n_lines * [("i32 0", "i32 3", "i32 1")]
    further = re.findall(rf"getelementptr.*, i64 (\d+)\n.*{hint}", code)
    assert [int(place) for place, *_ in further] == list(range(64, 64 * n_lines, 64))


def test_copies_are_of_as_many_numbers_as_there_is_room_for():
    target = np.zeros(3)

    @njit(**EXACT)
    def run(source, target):
        copy(source, target)

    run(np.arange(5.0), target)
    assert_array_equal(target, [0.0, 1.0, 2.0])


@njit(**EXACT)
def scalars(values, index, out):
    for i in range(out.size):
        put(out, i, 2.0 * at(values, at(index, i)))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_single_numbers_are_read_and_written(dtype):
    index, out = np.array([3, 0, 2, 2], dtype=dtype), np.empty(4)
    scalars(np.arange(4.0) / 4, index, out)
    assert_array_equal(out, [1.5, 0.0, 1.0, 1.0])


@pytest.mark.parametrize("function", [exp, log], ids=["exp", "log"])
def test_functions_of_vectors_equal_those_of_numbers(function):
    x = np.random.default_rng(1).uniform(1e-3, 600.0, 80)

    @njit(**EXACT)
    def one_by_one(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    expected = np.empty_like(x)
    one_by_one(x, expected)
    assert_array_equal(run_on_vectors(lambda a: function(a), x), expected)
