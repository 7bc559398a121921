"""The kernels against their oracles on problems small enough to run without a compiler."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    CASES,
    assert_losses_match,
    augmented,
    clipped_sum,
    line_bounds,
    nulled,
    problem,
    storages,
)
from scipy import sparse
from threadpoolctl import threadpool_info, threadpool_limits

from dpglm.kernels import one_blas_thread
from dpglm.kernels.gradient import fingerprints
from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax
from dpglm.sums import objective as sums
from dpglm.sums.objective import Objective, extreme_singular_values
from dpglm.sums.reference import image_norms, row_norms
from dpglm.sums.rows import DenseRows

ONE_OR_SEVERAL = [(Logistic(), 1), (SmoothedHinge(), 1), (Softmax(), 3), (Hinge(), 2)]


@pytest.fixture(autouse=True)
def fresh_memory_holds_no_numbers(monkeypatch):
    """Whatever is read before it is written spoils the result."""
    empty = np.empty

    def spoilt(*arguments, **options):
        array = empty(*arguments, **options)
        if array.dtype == np.float64:
            array.fill(np.nan)
        elif array.dtype == np.uint8:
            array.fill(255)
        return array

    monkeypatch.setattr(np, "empty", spoilt)


@pytest.fixture
def chunks_of_24_rows(monkeypatch):
    """Chunks that begin at any group of rows, not at powers of two alone."""
    monkeypatch.setattr(sums, "rows_per_chunk", lambda n_rows, n_values: 24)


def class_weights(n_outputs):
    return np.array([1.9, 0.7, 0.4, 1.1, 0.8])[: max(2, n_outputs)]


def assert_gradients_match(objective, rows, target, loss, coef, weights, clip, chosen=None):
    some = slice(None) if chosen is None else chosen
    expected = clipped_sum(rows[some], target[some], loss, coef, clip, weights)
    got = objective.gradient_sum(coef, clip, chosen)
    assert_allclose(got, expected, rtol=0, atol=1e-12 * max(1e-3, np.abs(expected).max()))


@pytest.mark.parametrize(("loss", "n_outputs"), ONE_OR_SEVERAL, ids=str)
def test_every_chunk_is_summed_once(chunks_of_24_rows, loss, n_outputs):
    weights, steps = class_weights(n_outputs), np.linspace(0.0, 0.5, 3)
    for n, d in ((75, 3), (69, 10)):
        X, target, coef, direction = problem(n, d, n_outputs)
        single = X.astype(np.float32)
        X = single.astype(np.float64)
        rows = augmented(X)
        objectives = [
            Objective(storage, target, loss, n_outputs=n_outputs, class_weight=weights)
            for storage in (*storages(X), single)
        ]
        for bound in line_bounds(n_outputs, 1.0, 0.6):
            for known in (False, True):
                for objective in objectives:
                    assert (objective._line is not None) == known
                    assert_gradients_match(objective, rows, target, loss, coef, weights, 1.0)
                for objective in objectives:
                    assert_losses_match(
                        objective, rows, target, loss, coef, direction, steps, weights, **bound
                    )
            for objective in objectives:
                objective._line = None


def test_a_sum_is_that_of_its_chunks_to_the_last_bit(chunks_of_24_rows):
    X, target, coef, _ = problem(75, 3, scale=1e3)
    chunks = [slice(start, start + 24) for start in range(0, 75, 24)]
    whole, *parts = (
        Objective(X[rows], target[rows], Logistic()).gradient_sum(coef, 1e9)
        for rows in (slice(None), *chunks)
    )
    assert_array_equal(whole, np.sum(parts, axis=0))


def test_a_fingerprint_tells_every_word_of_every_run():
    words, factors = np.arange(1, 20, dtype=np.uint32), np.arange(3, 17, 2, dtype=np.uint64)
    sums = np.zeros(3, dtype=np.uint64)
    fingerprints(words, factors, sums)
    runs = [words[start : start + 7].astype(np.uint64) for start in (0, 7, 14)]
    assert sums.tolist() == [int(factors[: run.size] @ run) for run in runs]


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_nothing_of_a_null_record_is_seen(loss, n_outputs):
    X, target, coef, direction = problem(12, 3, n_outputs)
    present, way = np.arange(12) != 5, (coef, direction, np.linspace(0.0, 1.0, 3))
    kept = Objective(X[present], target[present], loss, n_outputs=n_outputs)
    gradient, losses = kept.gradient_sum(coef, 1.0), kept.line_losses(*way, loss_clip=2.0)
    sums = []
    for values, label in ((1e155, target[5]), (-1e200, target[0]), (1e300, target[1])):
        X[5], target[5] = values, label
        for storage in storages(X):
            objective = Objective(storage, target, loss, n_outputs=n_outputs)
            sums.append(objective.gradient_sum(coef, 1.0))
            assert_allclose(sums[-1], gradient, rtol=1e-12, atol=1e-12)
            got = objective.line_losses(*way, loss_clip=2.0)
            assert_allclose(got, losses, rtol=1e-12)
    for place in range(3):
        assert_array_equal(sums[place::3], [sums[place]] * 3)
    nobody = Objective(nulled(X, np.ones(12, dtype=bool)), target, loss, n_outputs=n_outputs)
    assert_array_equal(nobody.gradient_sum(coef, math.inf), np.zeros(coef.shape))


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_a_row_with_any_score_that_is_not_finite_contributes_exactly_zero(loss, n_outputs):
    X, target, *_ = problem(12, 2, n_outputs, 1, fit_intercept=False)
    for signs in ([1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]):
        X[5] = 1e100
        for output in range(n_outputs):
            coef = np.zeros((2, n_outputs))
            coef[:, output] = 1e250 * np.array(signs)
            coef = coef.reshape(2) if n_outputs == 1 else coef
            everyone, others = (
                Objective(rows, target, loss, n_outputs=n_outputs, fit_intercept=False)
                for rows in (X, nulled(X, np.arange(12) == 5))
            )
            got, expected = (o.gradient_sum(coef, 1.0) for o in (everyone, others))
            assert_array_equal(got, expected)
            for way in ((coef, 0 * coef), (0 * coef, coef)):
                for bound in line_bounds(n_outputs, 2.0, 1.0):
                    got, expected = (
                        o.line_losses(*way, np.linspace(0.0, 1.0, 3), **bound)
                        for o in (everyone, others)
                    )
                    assert_array_equal(got, expected)


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_scores_of_any_finite_size_count(loss, n_outputs):
    X, weights = np.array([[1e100], [-1e100], [1e-200]]), np.ones(max(2, n_outputs))
    target = np.array([1.0, -1.0, 1.0]) if n_outputs == 1 else np.array([0, 1, 1])
    for size in (1e208, -1e208, 1e50):
        coef = np.full((1,) if n_outputs == 1 else (1, n_outputs), size)
        objective = Objective(X, target, loss, n_outputs=n_outputs, fit_intercept=False)
        with np.errstate(over="ignore"):
            assert_gradients_match(objective, X, target, loss, coef, weights, 0.7)


@pytest.mark.parametrize("scale", [0.3, 300.0])
@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_losses_along_a_line_match_term_by_term(loss, n_outputs, scale):
    for n, n_steps in [(1, 1), (5, 6), (14, 13), (9, 60)] + [(300, 2)] * (scale < 1):
        X, target, coef, direction = problem(n, 4, n_outputs, n, scale=scale)
        weights = class_weights(n_outputs)[:: 1 if n > 5 else -1]
        storage = X if n < 300 else sparse.csr_array(X)
        objective = Objective(storage, target, loss, n_outputs=n_outputs, class_weight=weights)
        steps = np.linspace(0.0, 2.0, n_steps)
        for bound in line_bounds(n_outputs, 1.0, 0.5) + line_bounds(n_outputs, math.inf, 30.0):
            assert_losses_match(
                objective, augmented(X), target, loss, coef, direction, steps, weights,
                **bound,
            )  # fmt: skip


@pytest.mark.parametrize("steps", [np.linspace(0.0, 0.2, 5), np.linspace(0.0, 0.2, 9)], ids=len)
def test_losses_that_bend_a_little_gain_by_their_straight_parts(steps):
    rng = np.random.default_rng(8)
    X, target, one = rng.normal(scale=0.1, size=(30, 2)), np.ones(30), np.array([1.0, 0.0, 0.0])
    objective = Objective(X, -target, Logistic())
    for clip in (0.48, 0.5, 0.52):
        assert_losses_match(
            objective, augmented(X), -target, Logistic(), 0.1 * one, -one, steps,
            [1.0, 1.0], clip=clip,
        )  # fmt: skip


# First numbers of one of the eight in each vector, where z begins, and how far it goes.
LARGE = {
    "two large, many small": ([590.0, 109.9, 3.0, *[1e-9] * 29], 1.0, 1e-3),
    "large in the end": ([-300.0] * 3, 1.0, 2.0),
    "from above": ([2000.0], 1.0, 2.0),
    "from below": ([-2000.0], 1.0, 2.0),
    "small, then large": ([-400.0] * 2, 0.0, 1.0),
}


@pytest.mark.parametrize("values", LARGE.values(), ids=LARGE)
def test_products_that_would_overflow_are_avoided(values):
    values, begin, length = values
    X = np.full((32, 8), -20.0)
    X[: len(values), 0] = values
    for sign, weights in ((-1.0, np.ones(2)), (1.0, class_weights(1))):
        rows, target = -sign * X.reshape(256, 1), np.full(256, sign)
        objective = Objective(rows, target, Logistic(), fit_intercept=False, class_weight=weights)
        for bound in ({"loss_clip": math.inf}, {"loss_clip": 3.0}, {"clip": 1.0}):
            assert_losses_match(
                objective, rows, target, Logistic(), np.array([begin]), np.ones(1),
                np.linspace(0.0, length, 3), weights, **bound,
            )  # fmt: skip


@pytest.mark.parametrize("size", [0.1, 70.0, 150.0, 320.0, 1000.0])
@pytest.mark.parametrize("loss", [Logistic(), Softmax()], ids=str)
def test_products_over_outputs_that_would_overflow_are_avoided(loss, size):
    X, target, weights = np.array([[size]]), np.array([1]), np.ones(5)
    objective = Objective(X, target, loss, n_outputs=5, fit_intercept=False)
    signs = np.array([[1.0, -1.0, 1.0, 1.0, 1.0]])
    for begin, direction in (
        (signs, signs),
        (0 * signs, signs),
        (0 * signs, -signs),
        (-signs, 1.0),
    ):
        for bound in ({"loss_clip": math.inf}, {"loss_clip": 5.0}):
            assert_losses_match(
                objective, X, target, loss, begin, direction * np.ones((1, 5)),
                np.linspace(0.0, 2.0, 3), weights, **bound,
            )  # fmt: skip


# Of the scores of one row in units of 2^500: the first, and their change along the line.
INSIDE = [(1.0, 0.0), (-1.0, 0.0), (0.5, 0.5), (0.0, -1.0), (-0.25, -0.75)]
OUTSIDE = [(1.0 + 2.0**-52, 0.0), (0.5, 0.6), (-0.6, -0.5), (0.0, 1.01), (0.0, -1.5), (-3.0, 0.0)]


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_a_row_counts_unless_a_margin_on_the_line_is_beyond_2_to_the_500(loss, n_outputs):
    X = 2.0**-100 * np.array([[1.0], [3.0], [2.0**500], [-1.0]])
    target = np.array([1.0, -1.0, -1.0, 1.0]) if n_outputs == 1 else np.array([0, 1, 1, 0])
    weights, steps = class_weights(n_outputs), np.linspace(0.0, 1.0, 6)
    for first, change in INSIDE + OUTSIDE:
        coef, direction = np.zeros((2, 1, n_outputs))
        coef[0, 0], direction[0, 0] = 2.0**100 * first, -(2.0**100) * change
        if n_outputs == 1:
            coef, direction = coef[0], direction[0]
        counted = np.array([True, True, (first, change) in INSIDE, True])
        everyone, some = (
            Objective(
                rows, target, loss, n_outputs=n_outputs, fit_intercept=False, class_weight=weights
            )
            for rows in (X, nulled(X, ~counted))
        )
        assert_losses_match(
            everyone, X[counted], target[counted], loss, coef, direction, steps, weights,
            loss_clip=3.0,
        )  # fmt: skip
        if n_outputs == 1:
            got, expected = (
                o.line_losses(coef, direction, steps, clip=1.0) for o in (everyone, some)
            )
            assert_array_equal(got, expected)


@pytest.mark.parametrize("n_features", [1, 2, 7, 8, 9])
def test_the_last_rows_are_copied_so_that_those_before_can_be_read_past_their_end(n_features):
    def left_to_read(n_rows):
        rows = DenseRows(np.zeros((n_rows, n_features)))
        (*_, n_body), _ = rows._runs
        return (n_rows - n_body) * n_features

    least = min(left_to_read(n_rows) for n_rows in range(300, 320))
    past_the_end = -n_features % 8
    assert least >= past_the_end
    if n_features == 1:
        assert least - 8 * n_features < past_the_end, "a group fewer would do"


def test_norms_of_rows_of_any_size_are_accurate():
    sizes = np.array([0.0, 1e-310, 1e-200, 2.0**-451, 2.0**-449, 1e-100, 1.0, 1e150])
    X = sizes[:, np.newaxis] * np.array([3.0, 4.0, 12.0])
    scales = np.array([1.0, 2.0, 0.5])
    expected = [math.hypot(*row) for row in X]
    scaled = np.array([math.hypot(*row) for row in X * scales])
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    for rows in (X, sparse.csr_array(X)):
        assert_allclose(row_norms(rows), expected, rtol=1e-13)
        assert_allclose(image_norms(rows, scales, False), scaled, rtol=1e-13)
        with_intercept = image_norms(rows, np.append(scales, 1e-200), True)
        assert_allclose(with_intercept, np.hypot(scaled, 1e-200), rtol=1e-13)
        assert_allclose(image_norms(rows, rotation, False)[2:], expected[2:], rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_basis_of_any_scale_spans_what_it_spans(scale):
    got = extreme_singular_values(scale * np.diag([2.0, 1.0, 3.0]))
    assert_allclose(got, (scale * math.sqrt(14.0), scale), rtol=1e-12)
    flat = extreme_singular_values(scale * np.diag([2.0, 1e-13, 3.0]))
    assert_allclose(flat, (scale * math.sqrt(13.0), scale * 2.0 / 1024), rtol=1e-12)
    with pytest.raises(ValueError, match="must not be zero"):
        extreme_singular_values(np.zeros((3, 2)))


def test_products_with_a_basis_use_one_thread():
    with threadpool_limits(limits=2, user_api="blas"), one_blas_thread():
        libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    assert libraries and all(library["num_threads"] == 1 for library in libraries)
