"""The pieces of the kernels: vectors, exponential, logarithm, coefficients, chunks and threads."""

import numba
import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal

from dpglm.kernels import run_chunks
from dpglm.kernels.arithmetic import EXACT, exp, log
from dpglm.kernels.clip import single_coefficients
from dpglm.kernels.vectors import LANES, load, store
from dpglm.sums.objective import rows_per_chunk


@njit(**EXACT)
def functions(x, out):
    for i in range(0, x.size, LANES):
        numbers = load(x, i)
        store(out[0], i, exp(numbers))
        store(out[1], i, log(numbers))
    for i in range(x.size):
        out[2, i], out[3, i] = exp(x[i]), log(x[i])


def exp_and_log(x):
    """Both of each number, which are the same bits by vectors as one by one."""
    padded = np.concatenate([x, np.ones(-x.size % LANES)])
    out = np.empty((4, padded.size))
    functions(padded, out)
    assert_array_equal(out[:2], out[2:])
    return out[:2, : x.size]


@pytest.mark.slow
def test_exp_and_log_are_within_two_units_in_the_last_place():
    rng = np.random.default_rng(0)
    small, any_size = rng.uniform(-1, 1, 4000), rng.uniform(-708, 709, 4000)
    x = np.concatenate([small, any_size, [-708.0, 0.0, -0.0, 709.0]])
    assert_allclose(exp_and_log(x)[0], np.exp(x.astype(np.longdouble)), rtol=4.5e-16)
    x = np.concatenate([np.exp(any_size), 1.25 + 0.75 * small])
    assert_allclose(exp_and_log(x)[1], np.log(x.astype(np.longdouble)), rtol=4.5e-16)
    assert exp_and_log(np.zeros(1))[0] == 1.0 and exp_and_log(np.ones(1))[1] == 0.0


def test_exp_is_clamped_to_positive_finite_values():
    values = exp_and_log(np.array([-np.inf, -1e300, -708.0, 709.0, 1e300, np.inf]))[0]
    assert (values > 0).all() and np.isfinite(values).all()
    assert_array_equal(values[:3], values[2])
    assert_array_equal(values[3:], values[3])


@njit(**EXACT)
def coefficients_of(scores, signed, clip, weights, code, curvature):
    for i in range(0, scores.size, LANES):
        sized = single_coefficients(
            load(scores, i), load(signed, i), None, clip, weights, None, 0, code, curvature
        )
        store(scores, i, sized)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_coefficient_never_exceeds_the_cap_of_its_row(code):
    rng = np.random.default_rng(2)
    special = [np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, -0.0, 1.0]
    scores = np.concatenate([rng.normal(scale=10.0, size=303), special])
    signed = rng.normal(size=scores.size) * 10.0 ** rng.uniform(-150, 150, size=scores.size)
    signed[::7] = 0.0
    for clip in (2.0**-500, 1.0, np.finfo(float).max):
        got = scores.copy()
        coefficients_of(got, signed, clip, np.ones(2), code, 1.0)
        with np.errstate(over="ignore"):
            assert (np.abs(got) <= clip * np.abs(signed)).all()
        assert (got[::7] == 0).all()
        assert (got[~np.isfinite(scores)] == 0).all()
        assert (got * signed <= 0).all()


@pytest.mark.parametrize("n_rows", [1, 7, 1024, 10**6, 5 * 10**6])
def test_chunks_are_whole_groups_whose_partial_sums_stay_small(n_rows):
    for n_values in (1, 101, 4801, 12_001, 10**6):
        rows = rows_per_chunk(n_rows, n_values)
        assert rows >= 1024 and rows % 8 == 0
        assert -(-n_rows // rows) * n_values <= 2**22 + 2 * n_values


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 17, 50])
def test_every_chunk_is_run_once_and_they_are_shared_evenly(n_threads):
    ranges = []
    run_chunks(lambda first, last: ranges.append((first, last)), 17, n_threads)
    assert len(ranges) == min(17, n_threads)
    assert sorted(i for first, last in ranges for i in range(first, last)) == list(range(17))
    lengths = [last - first for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_any_thread_is_raised_after_all_have_finished(failing):
    finished = []

    def task(first, last):
        if (first > 0) == failing:
            raise RuntimeError("planted")
        finished.append(first)

    with pytest.raises(RuntimeError, match="planted"):
        run_chunks(task, 2, 2)
    assert len(finished) == 1


def test_the_default_follows_numba(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 3)
    ranges = []
    run_chunks(lambda first, last: ranges.append((first, last)), 9)
    assert sorted(ranges) == [(0, 3), (3, 6), (6, 9)]
