"""The pieces of the kernels: exponential, coefficients, chunks and threads."""

import itertools
import multiprocessing
import threading

import mpmath
import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal

from dpglm.kernels import threads
from dpglm.kernels.arithmetic import EXACT, exp
from dpglm.kernels.coefficients import margin_coefficients
from dpglm.kernels.threads import default_n_threads, rows_per_chunk, run_chunks
from dpglm.kernels.vectors import LANES, load, store


@njit(**EXACT)
def exp_into(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


def kernel_exp(x):
    out = np.empty_like(x)
    exp_into(x, out)
    return out


def test_exp_is_within_two_units_in_the_last_place():
    rng = np.random.default_rng(0)
    ends = [-708.0, 0.0, -0.0, 709.0]
    x = np.concatenate([rng.uniform(-708, 709, 40_000), rng.uniform(-1, 1, 40_000), ends])
    assert np.abs(kernel_exp(x) / np.exp(x) - 1).max() <= 4.5e-16
    assert kernel_exp(np.zeros(1))[0] == 1.0


def test_exp_agrees_with_many_digits_of_mpmath():
    x = np.random.default_rng(1).uniform(-40, 40, 400)
    with mpmath.workdps(40):
        errors = [
            abs(mpmath.mpf(float(value)) / mpmath.exp(mpmath.mpf(float(at))) - 1)
            for at, value in zip(x, kernel_exp(x), strict=True)
        ]
    assert max(errors) <= 1.5 * 2.0**-52


def test_exp_is_clamped_to_positive_finite_values():
    values = kernel_exp(np.array([-np.inf, -1e300, -708.0, 709.0, 1e300, np.inf]))
    assert (values > 0).all() and np.isfinite(values).all()
    assert_array_equal(values[:3], values[2])
    assert_array_equal(values[3:], values[3])


@njit(**EXACT)
def coefficients_of(scores, signed, clip, weights, code, curvature):
    for i in range(0, scores.size, LANES):
        sized = margin_coefficients(
            load(scores, i), load(signed, i), clip, weights, code, curvature
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
def test_chunks_are_the_fewest_groups_for_which_the_partial_sums_stay_small(n_rows):
    def large_enough(rows, n_values):
        return (
            rows >= 1024
            and (rows + 1) ** 2 > n_rows
            and 4 * (rows + 1) > n_values
            and (rows + 1) * 2**22 > n_rows * n_values
        )

    for n_values in (1, 101, 4801, 12_001, 10**6):
        rows = rows_per_chunk(n_rows, n_values)
        assert rows % 8 == 0
        assert large_enough(rows, n_values) and not large_enough(rows - 8, n_values)
        assert -(-n_rows // rows) * n_values <= 2**22 + 2 * n_values


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 50])
def test_every_chunk_is_run_once(n_threads):
    seen = []
    run_chunks(lambda first, last: seen.extend(range(first, last)), 17, n_threads)
    assert sorted(seen) == list(range(17))


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 17, 50])
def test_chunks_are_shared_evenly(n_threads):
    ranges = []
    run_chunks(lambda first, last: ranges.append((first, last)), 17, n_threads)
    assert len(ranges) == min(17, n_threads)
    lengths = [last - first for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert all(a[1] == b[0] for a, b in itertools.pairwise(sorted(ranges)))


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


def _report_sum(queue):
    results = np.zeros(8)
    run_chunks(lambda first, last: results.__setitem__(slice(first, last), 1.0), 8, 2)
    queue.put(results.sum())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_work_in_a_forked_child_of_a_process_that_used_them():
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    _report_sum(queue)
    assert queue.get() == 8.0
    child = context.Process(target=_report_sum, args=(queue,), daemon=True)
    child.start()
    child.join(timeout=20)
    assert child.exitcode == 0
    assert queue.get() == 8.0


def test_two_python_threads_can_share_the_pool():
    results = np.zeros((2, 64))

    def use(which):
        for _ in range(50):
            run_chunks(lambda a, b: results[which, a:b].__iadd__(1.0), 64, 2)

    users = [threading.Thread(target=use, args=(which,)) for which in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join(timeout=20)
    assert_allclose(results, 50.0)


def test_python_threads_that_share_the_pool_have_no_more_workers_than_one(monkeypatch):
    monkeypatch.setattr(threads, "_pools", {})
    first_works, second_waits, workers = threading.Event(), threading.Event(), set()

    def work_of_first(chunk, _):
        if chunk:
            workers.add(threading.get_ident())
            first_works.set()
            second_waits.wait(timeout=20)

    def work_of_second(chunk, _):
        if chunk:
            workers.add(threading.get_ident())
        else:
            # the other half has been handed to the pool
            second_waits.set()

    first = threading.Thread(target=run_chunks, args=(work_of_first, 2, 2))
    first.start()
    assert first_works.wait(timeout=20)
    run_chunks(work_of_second, 2, 2)
    first.join(timeout=20)
    assert len(workers) == 1


def test_the_default_follows_numba(monkeypatch):
    monkeypatch.setattr(threads.numba.config, "NUMBA_NUM_THREADS", 3)
    assert default_n_threads() == 3
