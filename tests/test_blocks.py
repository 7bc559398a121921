"""Sums over blocks: the same numbers, the same noise, the same bounds as in memory."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from problems import exact, exact_norm_squared, line_bounds, problem
from scipy import sparse

from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES
from dpglm.sources.arrays import ArraySource
from dpglm.sums.blocks import BlockObjective, compensated_sum
from dpglm.sums.objective import Objective, _chain, rows_per_chunk

CASES = [(Logistic(), 1), (SmoothedHinge(0.5), 1), (Softmax(), 3), (Hinge(), 3)]
N_ROWS, N_FEATURES = 1500, 7


def table(n_outputs=1):
    X, y, coef, direction = problem(N_ROWS, N_FEATURES, n_outputs)
    return X * np.resize([0.1, 1.0, 10.0], (N_ROWS, 1)), y, coef, direction


def objectives(X, y, loss, n_outputs, block_rows):
    def make(X, y, **options):
        return Objective(X, y, loss, n_outputs=n_outputs, **options)

    model = make(np.zeros((1, N_FEATURES)), y[:1])
    source = ArraySource(X, y, block_rows=block_rows)
    return make(X, y), BlockObjective(source.blocks(make), model)


class Answering:
    """One block, or several that are the same, which is asked so many times."""

    def __init__(self, objective, block_rows=(N_ROWS,), n_answers=1):
        self.objective, self.block_rows, self.n_answers = objective, block_rows, n_answers

    def map(self, task, *arguments, each=None):
        for _ in range(self.n_answers):
            yield task(self.objective, *arguments)


@pytest.mark.parametrize(("loss", "n_outputs"), CASES)
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_every_sum_over_blocks_is_the_sum_over_all_rows(loss, n_outputs, storage):
    X, y, coef, direction = table(n_outputs)
    whole, blocks = objectives(storage(X), y, loss, n_outputs, block_rows=400)
    rng = np.random.default_rng(1)
    basis = rng.normal(size=(N_FEATURES + 1, N_FEATURES + 1))
    scales = rng.uniform(0.5, 2.0, size=N_FEATURES + 1)
    powers = np.append(2.0 ** -np.arange(N_FEATURES), 1.0)
    assert_array_equal(
        blocks.magnitude_histogram(MAGNITUDE_POWERS), whole.magnitude_histogram(MAGNITUDE_POWERS)
    )
    assert_array_equal(blocks.norm_histogram(NORM_BIN_EDGES), whole.norm_histogram(NORM_BIN_EDGES))
    steps = np.linspace(0.0, 1.0, 5)
    for transform in (
        lambda objective: objective,
        lambda objective: objective.in_basis(basis),
        lambda objective: objective.in_basis(scales).in_basis(basis),
        lambda objective: objective.scaled(powers),
        lambda objective: objective.scaled(powers).in_basis(basis),
    ):
        one, many = transform(whole), transform(blocks)
        assert many.coef_shape == one.coef_shape
        assert many.loss is loss and many.n_records == N_ROWS
        for clip in (0.5, math.inf):
            expected = one.gradient_sum(coef, clip)
            assert_allclose(many.gradient_sum(coef, clip), expected, rtol=1e-11, atol=1e-9)
        for bounds in line_bounds(n_outputs, 2.0, 0.5):
            expected = one.line_losses(coef, direction, steps, **bounds)
            got = many.line_losses(coef, direction, steps, **bounds)
            assert_allclose(got, expected, rtol=1e-11)
        if n_outputs == 1 and isinstance(loss, Logistic):
            one, many = one.weighed(2.0), many.weighed(2.0)
            if not isinstance(one.stretches[0], np.ndarray):
                expected = one.second_moment(1.0, False, coef)
                assert_allclose(many.second_moment(1.0, False, coef), expected, rtol=1e-11)
        for n in (100, 10**7):
            assert many.rounding_slack(n) == one.rounding_slack(n)
            assert many.line_rounding(n, 3.0) == one.line_rounding(n, 3.0)
            assert many.moment_rounding(n) == one.moment_rounding(n)
    for diagonal in (True, False):
        expected = whole.second_moment(2.0, diagonal)
        assert_allclose(blocks.second_moment(2.0, diagonal), expected, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("block_rows", [3, 333, N_ROWS, 10 * N_ROWS])
def test_a_sum_over_some_rows_reads_their_blocks_only(block_rows):
    X, y, coef, _ = table()
    whole, blocks = objectives(X, y, Logistic(), 1, block_rows)
    rng = np.random.default_rng(2)
    for count in (0, 1, 40, N_ROWS):
        rows = np.sort(rng.choice(N_ROWS, count, replace=False))
        expected = whole.gradient_sum(coef, 1.0, rows)
        assert_allclose(blocks.gradient_sum(coef, 1.0, rows), expected, rtol=1e-11, atol=1e-12)
    for outside in ([-1], [N_ROWS]):
        with pytest.raises(ValueError, match=f"rows must lie from 0 to {N_ROWS - 1}"):
            blocks.gradient_sum(coef, 1.0, np.array(outside))
    read = []
    source = ArraySource(X, y, block_rows=500)
    original = source._read
    source._read = lambda wanted: (read.extend(wanted), original(wanted))[1]
    some = BlockObjective(source.blocks(lambda X, y: Objective(X, y, Logistic())), whole)
    some.gradient_sum(coef, 1.0, np.array([3, 499, 1200]))
    assert read == [0, 2]


def test_an_answer_does_not_depend_on_the_questions_before():
    """Objectives that are kept, on a worker, answer like those that are made anew."""
    X, y, coef, direction = table()
    kept = Objective(X, y, Logistic())
    objective = BlockObjective(Answering(kept), kept)
    objective.line_losses(coef, direction, np.linspace(0.0, 1.0, 3), clip=1.0)
    after = objective.gradient_sum(coef - direction, 1.0)
    assert_array_equal(after, Objective(X, y, Logistic()).gradient_sum(coef - direction, 1.0))
    assert kept._line is None


@pytest.mark.parametrize("answered", [2, 4])
def test_the_sum_of_some_blocks_is_never_taken_for_the_whole(answered):
    X, y, coef, _ = table()
    one = Objective(X, y, Logistic())
    with pytest.raises(RuntimeError, match=f"{answered} blocks answered instead of 3"):
        BlockObjective(Answering(one, (1, 1, 1), answered), one).gradient_sum(coef, 1.0)


def test_bad_questions_are_refused_before_anything_is_read():
    X, y, coef, _ = table()
    source = ArraySource(X, y)
    source._read = None
    model = Objective(np.zeros((1, N_FEATURES)), y[:1], Logistic())
    blocks = BlockObjective(source.blocks(None), model)
    with pytest.raises(ValueError, match="coef must have shape"):
        blocks.gradient_sum(coef[1:], 1.0)
    with pytest.raises(ValueError, match="8 rows"):
        blocks.in_basis(np.eye(3))


values = st.floats(-1e100, 1e100) | st.sampled_from([1e300, -1e300, 5e-324, 1.0, 2.0**53])


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=values))
def test_compensated_sums_are_within_their_bound_in_exact_arithmetic(parts):
    total = compensated_sum((2,), parts, len(parts))
    m, u = len(parts), Fraction(1, 2**53)
    for j in range(2):
        terms = exact(parts[:, j])
        bound = u * abs(sum(terms)) + (m * u) ** 2 * sum(map(abs, terms)) * Fraction(11, 10)
        assert abs(Fraction(float(total[j])) - sum(terms)) <= bound


def test_sums_that_overflow_stay_infinite():
    parts = [np.array([1e308, 1.0]), np.array([1e308, 1.0])]
    with np.errstate(all="ignore"):
        assert_array_equal(compensated_sum((2,), parts, 2), [np.inf, 2.0])


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 10**6))
def test_a_chain_is_longer_for_more_rows(n, m, n_values):
    few, many = sorted((n, m))
    assert _chain(few, n_values) <= _chain(many, n_values) * (1 + 1e-12)
    rows = rows_per_chunk(n, n_values)
    assert _chain(n, n_values) >= (rows + n / rows + 2 + n**2 / 2**53) * (1 - 1e-12)


def test_rounding_of_many_blocks_stays_within_the_slack_in_exact_arithmetic():
    n, clip = 1500, 0.1
    X, y = np.tile(np.resize([0.1, 0.7, 1.3], N_FEATURES), (n, 1)), np.ones(n)
    _, blocks = objectives(X, y, Hinge(), 1, block_rows=1)
    coef = np.zeros(N_FEATURES + 1)
    one = Objective(X[:1], y[:1], Hinge()).gradient_sum(coef, clip)
    total = blocks.gradient_sum(coef, clip)
    error = exact_norm_squared(np.subtract(exact(total), n * np.array(exact(one))))
    assert error <= (Fraction(blocks.rounding_slack(n)) / 2 * Fraction(clip)) ** 2
    # one rounding of each entry at the end, where a chain of 1500 additions would make hundreds
    assert error <= (2 * Fraction(1, 2**53) * n * Fraction(clip)) ** 2
