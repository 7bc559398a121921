"""The second moment of the features, its sensitivity, and columns that are scaled by it."""

import math
from fractions import Fraction
from operator import methodcaller

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    augmented,
    exact,
    exact_norm_squared,
    magnitudes,
    nulled,
    storages,
    with_long_indices,
)
from scipy import sparse
from tapes import on_tape

from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import (
    MAGNITUDE_POWERS,
    NORM_BIN_EDGES,
    Vault,
    magnitude_sensitivity,
    moment_sensitivity,
)
from dpglm.sums.objective import Objective, rows_per_chunk


def objective_of(X, **options):
    return Objective(X, np.ones(X.shape[0]), Logistic(), **options)


def moment_row_by_row(X, bound, fit_intercept):
    rows = augmented(X, fit_intercept)
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for row in rows:
        norm = np.linalg.norm(row)
        total += np.outer(row, row) * min(1.0, bound / norm if norm else 1.0) ** 2
    return total


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2600, 5), (40, 130)])
def test_the_second_moment_matches_clipping_row_by_row(shape, fit_intercept):
    rng = np.random.default_rng(shape)
    X = rng.normal(size=shape) * (rng.random(shape) < 0.5) * rng.exponential(size=(shape[0], 1))
    for dtype in (np.float64, np.float32):
        for bound in (0.3, 1.7, 1e3):
            rows = X.astype(dtype).astype(float)
            expected = moment_row_by_row(rows, bound, fit_intercept)
            for storage in (*storages(X.astype(dtype)), with_long_indices(X.astype(dtype))):
                objective = objective_of(storage, fit_intercept=fit_intercept)
                full = objective.second_moment(bound, diagonal=False)
                diagonal = objective.second_moment(bound, diagonal=True)
                assert full.dtype == diagonal.dtype == np.float64
                assert_array_equal(full, full.T)
                assert_allclose(full, expected, rtol=1e-12, atol=1e-12)
                assert_allclose(diagonal, np.diag(expected), rtol=1e-12, atol=1e-12)


def test_rows_that_overflow_leave_no_trace_in_the_moment():
    X = np.random.default_rng(0).normal(size=(30, 4))
    present = np.arange(30) % 3 != 0
    X[::3] = [1e308, 1e200, -1e308, 0.0]
    for diagonal in (True, False):
        kept = objective_of(X[present]).second_moment(2.0, diagonal)
        for some, null in zip(storages(X), storages(nulled(X, ~present)), strict=True):
            masked = objective_of(null).second_moment(2.0, diagonal)
            assert_allclose(masked, kept, rtol=1e-13, atol=1e-13)
            assert_array_equal(objective_of(some).second_moment(2.0, diagonal), masked)
    nobody = objective_of(nulled(X, np.ones(30, dtype=bool)))
    assert not nobody.second_moment(2.0, diagonal=False).any()


@st.composite
def neighbors(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    X = draw(hnp.arrays(np.float64, (n, d), elements=magnitudes(10.0)))
    other = draw(hnp.arrays(np.float64, d, elements=magnitudes(10.0)))
    bound = draw(st.sampled_from([1e-3, 0.5, 2.0, 1e4]))
    return X, other, bound, draw(st.integers(0, n - 1)), draw(st.booleans())


UNITS = 2.0 ** -np.array([0, 3, 17, 63])


@pytest.mark.parametrize("powers", [UNITS, 1 / UNITS])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_over_scaled_columns_are_those_of_a_scaled_table(dtype, fit_intercept, powers):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 4)) * (rng.random((300, 4)) < 0.7)
    table, target = table.astype(dtype).astype(np.float64), rng.choice([-1.0, 1.0], 300)
    table[7] = 0.0
    coef, direction, basis = rng.normal(size=4), np.eye(4)[0], rng.normal(size=(4, 4))
    if fit_intercept:
        coef, direction, basis = np.append(coef, 0.3), np.eye(5)[1], rng.normal(size=(5, 5))
    scales = np.append(powers, 1.0) if fit_intercept else powers
    # If its columns are large, coefficients are small.
    large = table / powers
    some, steps = np.array([3, 8, 40, 299]), np.linspace(0.0, 1.0, 4)
    plain = Objective(table, target, Logistic(), fit_intercept=fit_intercept)
    for stored in storages(large.astype(dtype)):
        scaled = Objective(stored, target, Logistic(), fit_intercept=fit_intercept).scaled(scales)
        for one, other in ((scaled, plain), (scaled.in_basis(basis), plain.in_basis(basis))):
            for rows in (None, some):
                sums = (o.gradient_sum(coef, 0.7, rows) for o in (one, other))
                assert_allclose(*sums, rtol=1e-12, atol=1e-12)
            ask = methodcaller("gradient_sum", coef, 0.7)
            assert one.confirm(ask) == one.confirm(ask, some) == 0.0
            losses = (o.line_losses(coef, direction, steps, loss_clip=2.0) for o in (one, other))
            assert_allclose(*losses, rtol=1e-12)
            assert one.rounding_slack(300) == pytest.approx(other.rounding_slack(300))
        for diagonal in (True, False):
            moments = (o.second_moment(1.5, diagonal) for o in (scaled, plain))
            assert_allclose(*moments, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("norm", "scales"),
    [
        (1.5e154, [2.0**-30, 0.5, 1.0]),
        (1e160, [2.0**-30, 0.5, 1.0]),
        (1e153, [64.0, 64.0, 1.0]),
    ],
    ids=["was null", "was null by far", "becomes null"],
)
def test_a_row_without_a_norm_before_or_after_columns_are_scaled_is_null(norm, scales, store):
    basis, ask = np.random.default_rng(0).normal(size=(3, 3)), np.ones(3)
    with_null, alone = (
        Objective(store(np.array(rows)), np.ones(len(rows)), Logistic()).scaled(np.array(scales))
        for rows in ([[1.0, 1.0], [norm, 1.0]], [[1.0, 1.0]])
    )
    moments = (o.second_moment(9.0, diagonal=False) for o in (with_null, alone))
    assert_array_equal(*moments)
    for one, other in ((with_null, alone), (with_null.in_basis(basis), alone.in_basis(basis))):
        for rows in (None, np.array([0, 1])):
            got = one.gradient_sum(ask, 0.5, rows)
            assert_array_equal(got, other.gradient_sum(ask, 0.5))
        with np.errstate(all="ignore"):
            assert one.confirm(methodcaller("gradient_sum", ask, 0.5)) == 0.0


def test_what_is_no_scale_basis_or_moment_of_one_is_refused():
    plain, half = objective_of(np.ones((4, 2))), np.array([0.5, 0.5, 1.0])
    for scales in (0.7 * half, np.append(0.7 * half[:2], 1.0), np.ones(3) / 2, 4 * half, half[:2]):
        with pytest.raises(ValueError, match=r"powers of two|Only columns"):
            plain.scaled(scales)
    for changed in (plain.in_basis(np.ones(3)), plain.scaled(half)):
        with pytest.raises(ValueError, match="once, before any basis"):
            changed.scaled(half)
    for scales in ([1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, np.inf, 1.0], [1.0]):
        with pytest.raises(ValueError, match="basis must"):
            plain.in_basis(np.array(scales))
    for basis, diagonal in ((np.ones(3), False), (np.ones(3), True), (np.eye(3), True)):
        with pytest.raises(ValueError, match="in a basis needs a matrix"):
            plain.in_basis(basis).second_moment(1.0, diagonal=diagonal)


def histograms_of(X, powers):
    """Count the elements of columns by sign and size with numpy, those of null records not."""
    edges = np.concatenate([[-np.inf], -(2.0 ** powers[::-1]), [0.0]])
    with np.errstate(over="ignore"):
        X = X[np.isfinite(np.square(X.astype(float)).sum(axis=1))].astype(float)
    signed = ([np.histogram(-s * x[s * x > 0], edges)[0][-2::-1] for s in (1, -1)] for x in X.T)
    return [np.concatenate(both) for both in signed]


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 8), (333, 19), (1130, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_magnitudes_are_those_of_numpy_at_every_power_of_two_and_next_to_it(dtype, shape):
    around, limits = (2.0 ** np.arange(-40, 70)).astype(dtype), np.finfo(dtype)
    around = [around, np.nextafter(around, dtype(0)), np.nextafter(around, dtype(1e30))]
    ends = [limits.smallest_subnormal, limits.smallest_normal, 0.0, 1e30, 1e36, limits.max]
    values = np.concatenate([*around, np.array(ends, dtype=dtype)])
    rng = np.random.default_rng(0)
    values = np.resize(rng.permutation(np.concatenate([values, -values])), shape)
    spread = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-40, 70, shape)
    usual = np.where(rng.random(shape) < 0.3, 0.0, rng.choice([-0.7, 1.0, 1 / 32], shape))
    for X in (values, spread.astype(dtype), usual.astype(dtype)):
        for powers in (MAGNITUDE_POWERS, np.arange(3), np.array([-1])):
            for storage in (*storages(X), with_long_indices(X)):
                counts = objective_of(storage).magnitude_histogram(powers)
                assert_array_equal(counts[:-1], histograms_of(X, powers))
                assert not counts[-1].any()


@settings(max_examples=100, deadline=None)
@given(neighbors(), st.sampled_from(["zero_out", "replace_one"]), st.booleans())
def test_one_record_moves_counts_by_at_most_their_sensitivity(case, relation, csr):
    X, other, _, i, fit_intercept = case
    changed = nulled(X, np.arange(len(X)) == i)
    if relation == "replace_one":
        changed = X.copy()
        changed[i] = other
    store = sparse.csr_array if csr else np.asarray
    both = [objective_of(store(rows), fit_intercept=fit_intercept) for rows in (X, changed)]
    n_columns = both[0].coef_shape[0]
    moved = np.subtract(*(one.magnitude_histogram(MAGNITUDE_POWERS) for one in both))
    assert np.linalg.norm(moved) <= magnitude_sensitivity(relation, n_columns)
    moved = np.subtract(*(one.norm_histogram(NORM_BIN_EDGES) for one in both))
    assert np.linalg.norm(moved) <= magnitude_sensitivity(relation, 1)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_lengths_count_each_row_once_and_no_null_record(fit_intercept):
    # 3.4 and 3.6 are on two sides of a bound; of a zero row the intercept alone is there.
    norms = np.array([3.4, 3.6, 0.0, 1e-9, 1.0, 1.0, 3.5 * 2.0**8, 1e4, 1e150])
    X = np.outer(norms, [0.6, 0.8])
    expected = np.zeros(NORM_BIN_EDGES.size + 1)
    np.add.at(expected, np.searchsorted(NORM_BIN_EDGES, np.where(norms == 896, 895, norms)), 1.0)
    expected[0] -= not fit_intercept
    X[6] *= 895 / 896
    null = np.vstack([X, [[1e200, 3.0]]])
    for storage in (*storages(X), *storages(null)):
        objective = objective_of(storage, fit_intercept=fit_intercept)
        assert_array_equal(objective.norm_histogram(NORM_BIN_EDGES), expected)


@pytest.mark.parametrize("another", [-9.0, 9.0, 1e-3, -1e100])
def test_a_record_moves_histograms_by_their_whole_sensitivity(another):
    null, one, other = (
        objective_of(np.full((1, 3), x), fit_intercept=False) for x in (0.0, 1.0, another)
    )
    for counts, width in (("magnitude_histogram", 3), ("norm_histogram", 1)):
        a, b, c = (
            getattr(o, counts)(MAGNITUDE_POWERS if width > 1 else NORM_BIN_EDGES)
            for o in (null, one, other)
        )
        assert np.linalg.norm(b - a) == magnitude_sensitivity("zero_out", width)
        assert np.linalg.norm(b - c) == magnitude_sensitivity("replace_one", width)


def recorded(objective, bound, diagonal, relation="zero_out", n_samples_estimate=None):
    """What a vault adds its noise to, and the sensitivity that it is for, rounding included."""
    budget = PrivacyBudget(math.inf, 1e-6, relation, n_samples_estimate)
    with on_tape() as tape:
        vault = Vault(objective, [(GaussianEvent(1.0), 1)], budget, entropy_source(0))
        vault.second_moment(bound, 1.0, diagonal=diagonal)
    return tape.releases[0]


@settings(max_examples=60, deadline=None)
@given(neighbors(), st.booleans(), st.booleans())
def test_one_record_moves_what_is_released_by_at_most_the_sensitivity(case, diagonal, csr):
    X, other, bound, i, fit_intercept = case
    replaced = X.copy()
    replaced[i] = other
    store = sparse.csr_array if csr else np.asarray

    def assert_close(relation, *tables, n_samples_estimate=None):
        one, other = (
            recorded(
                objective_of(store(rows), fit_intercept=fit_intercept),
                bound, diagonal, relation, n_samples_estimate,
            )
            for rows in tables
        )  # fmt: skip
        assert np.isfinite(one.exact).all() and one.sensitivity == other.sensitivity
        assert np.linalg.norm(one.exact - other.exact) <= one.sensitivity

    assert_close("zero_out", X, nulled(X, np.arange(len(X)) == i))
    assert_close("replace_one", X, replaced)
    if len(X) > 1:
        assert_close("add_or_remove_one", X, np.delete(X, i, axis=0), n_samples_estimate=len(X))


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_sensitivity_is_attained(diagonal):
    bound = 3.0
    first, second = 7.0 * (np.eye(2) if diagonal else np.array([[0.6, 0.8], [-0.8, 0.6]]))

    def moment(row):
        objective = objective_of(row[np.newaxis], fit_intercept=False)
        return recorded(objective, bound, diagonal).exact

    apart = np.linalg.norm(moment(first) - moment(second))
    assert apart == pytest.approx(moment_sensitivity(bound, "replace_one", 2), rel=1e-14)
    alone = np.linalg.norm(moment(first))
    assert alone == pytest.approx(moment_sensitivity(bound, "zero_out", 2), rel=1e-14)
    line = moment(np.array([8.0])) - moment(np.array([0.0]))
    assert abs(line) == pytest.approx(moment_sensitivity(bound, "replace_one", 1))


@pytest.mark.parametrize("diagonal", [True, False])
def test_rounding_stays_within_the_slack_in_exact_arithmetic(diagonal):
    n, bound = 2600, 0.3
    assert n > rows_per_chunk(n, 1), "more than one chunk"
    rng = np.random.default_rng(1)
    # The same few rows again and again: what each releases is needed once.
    few = rng.normal(size=(20, 3)) * 10.0 ** rng.uniform(-3, 3, size=(20, 1))
    everyone = objective_of(np.resize(few, (n, 3)))
    slack = Fraction(everyone.moment_rounding(n)) * Fraction(bound) ** 2
    alone = (objective_of(row[np.newaxis]) for row in few)
    parts = [exact(recorded(objective, bound, diagonal).exact) for objective in alone]
    limit = Fraction(bound) ** 2 + slack
    assert all(exact_norm_squared(part) <= limit**2 for part in parts)
    total = recorded(everyone, bound, diagonal).exact
    error = np.subtract(exact(total), np.sum(parts, axis=0) * (n // 20))
    # half of the slack for each of two neighboring sums
    assert exact_norm_squared(error) <= (slack / 2) ** 2
    assert slack < Fraction(1, 10**6)


def test_rounding_in_a_basis_stays_within_the_slack_for_every_row():
    n, bound = 2600, 0.3
    rng = np.random.default_rng(1)
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    # Rows along the direction that is shortened most, where rounding is longest beside them.
    few = np.tile((turn[:, -1] / turn[-1, -1])[:3], (20, 1)) * (1 + 1e-9 * rng.random((20, 1)))
    basis = turn * np.geomspace(1e7, 1.0, 4)

    def moment(rows):
        return objective_of(rows).in_basis(basis).second_moment(bound, False)

    slack = objective_of(few).in_basis(basis).moment_rounding(n) * bound**2
    alone = sum(moment(row[np.newaxis]) for row in few) * (n // 20)
    assert np.linalg.norm(moment(np.resize(few, (n, 3))) - alone) <= slack / 2
    assert slack < 1e-3


@pytest.mark.parametrize("away", [0.6, 10.0, 100.0])
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_a_moment_around_a_mean_is_that_of_shifted_rows_within_the_slack(store, away):
    n, bound, center = 2600, 1.5, away * np.array([9.0, -2.0, 0.5])
    few = center + np.random.default_rng(1).normal(size=(20, 3))
    shift = np.eye(4)
    shift[-1, :-1] = -center

    def moment(rows):
        return objective_of(store(rows)).in_basis(shift).second_moment(bound, False)

    slack = objective_of(few).in_basis(shift).moment_rounding(n) * bound**2
    whole, alone = moment(np.resize(few, (n, 3))), [moment(row[np.newaxis]) for row in few]
    images = np.column_stack([few - center, np.ones(20)])
    images *= np.minimum(1, bound / np.linalg.norm(images, axis=1))[:, np.newaxis]
    assert_allclose(whole, n // 20 * images.T @ images, rtol=1e-7, atol=1e-7 * away)
    assert np.linalg.norm(whole - n // 20 * sum(alone)) <= slack / 2
    assert all(np.linalg.norm(one) <= bound**2 + slack for one in alone)
    assert slack < 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_norms_around_a_near_mean_are_accurate_for_rows_at_the_mean_too(store, dtype):
    center, shift = np.array([6.0, 0.0, -3.0]), np.eye(4)
    shift[-1, :-1] = -center
    rows = np.vstack([center, 0 * center, center + np.random.default_rng(1).normal(size=(20, 3))])
    around = objective_of(store(rows.astype(dtype))).in_basis(shift)
    moment = around.second_moment(1e-3, False)
    assert_allclose(np.trace(moment), len(rows) * 1e-6, rtol=1e-12)
