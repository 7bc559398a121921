"""However rows are stored: little memory, and the sums are those of their values."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import nulled, problem
from scipy.sparse import csr_array

from dpglm import DPLogisticRegression, seeded_noise
from dpglm.losses import Hinge, Logistic
from dpglm.sums.objective import Objective


def test_sparse_data_are_never_made_dense():
    n, d, per_row = 600, 200_000, 5
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, d, (n, per_row)) // per_row * per_row + np.arange(per_row))
    data = (rng.normal(size=n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row))
    X, target = csr_array(data, shape=(n, d)), rng.choice([-1.0, 1.0], n)
    coef, steps = rng.normal(size=d + 1), np.linspace(0.0, 1.0, 5)
    # Whatever a first call loads is not of the data.
    loaded = Objective(X, target, Logistic())
    loaded.gradient_sum(coef, 1.0)
    loaded.line_losses(coef, coef, steps, clip=1.0)
    tracemalloc.start()
    plain = Objective(X, target, Logistic())
    for objective in (plain, plain.in_basis(np.linspace(1.0, 2.0, d + 1))):
        objective.gradient_sum(coef, 1.0)
        objective.line_losses(coef, coef, steps, clip=1.0)
    plain.second_moment(1.0, diagonal=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # a few vectors of d numbers, where all of the data would take 1 GB
    assert most < 20 * 8 * d


def with_duplicates(values, dtype):
    """Rows of three columns, the middle one of which is the sum of two stored entries."""
    columns, ends = np.tile([0, 1, 1, 2], len(values)), np.arange(0, 4 * len(values) + 1, 4)
    return csr_array((values.astype(dtype).ravel(), columns, ends), shape=(len(values), 3))


def test_duplicate_entries_are_clipped_by_the_norm_of_the_row_they_mean():
    X = with_duplicates(np.array([[6.0, 0.5, 0.5, 0.0]]), np.float64)
    gradient = Objective(X, np.ones(1), Hinge(), fit_intercept=False).gradient_sum(np.zeros(3), 1.0)
    assert_allclose(gradient, -np.array([6.0, 1.0, 0.0]) / np.sqrt(37.0), rtol=1e-14)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_duplicate_entries_that_overflow_make_their_record_contribute_nothing(fit_intercept):
    rng = np.random.default_rng(0)
    values, target = rng.normal(size=(20, 4)), rng.choice([-1.0, 1.0], 20)
    coef = rng.normal(size=3 + fit_intercept)
    values[7, 1:3] = 1.7e308
    X = with_duplicates(values, np.float64)
    objective, others = (
        Objective(rows, target, Logistic(), fit_intercept=fit_intercept)
        for rows in (X, with_duplicates(nulled(values, np.arange(20) == 7), np.float64))
    )
    assert_array_equal(objective.gradient_sum(coef, 1.0), others.gradient_sum(coef, 1.0))
    assert_array_equal(objective.second_moment(1.0, False), others.second_moment(1.0, False))
    assert_array_equal(objective.gradient_sum(coef, 1.0, rows=np.array([7])), np.zeros(coef.size))
    basis = np.linspace(1.0, 2.0, coef.size)
    got, expected = (o.in_basis(basis).gradient_sum(coef, 1.0) for o in (objective, others))
    assert_array_equal(got, expected)
    assert X.nnz == 80 and (X.data == values.ravel()).all(), "the caller's matrix is left as it was"


def test_duplicate_entries_in_single_precision_are_summed_in_double_precision():
    values = np.full((2, 4), 3e38)
    X = with_duplicates(values, np.float32)
    first, second = X.data[:2].astype(np.float64)
    dense = np.full((2, 1), 1.0) * [first, 2 * second, first]
    coef, target = np.zeros(4), np.ones(2)
    found = Objective(X, target, Logistic()).gradient_sum(coef, 1.0)
    assert_array_equal(found, Objective(dense, target, Logistic()).gradient_sum(coef, 1.0))


def test_duplicate_entries_do_not_hide_infinite_ones():
    values = np.ones((5, 4))
    values[2, 1] = np.inf
    with pytest.raises(ValueError, match="Input X contains infinity"):
        Objective(with_duplicates(values, np.float64), np.ones(5), Logistic())


DENSE, TARGET, COEF, _ = problem(60, 5, density=0.5)
SPARSE = csr_array(DENSE)


def strided(values):
    """The same numbers, every other one of an array whose other numbers are huge."""
    table = np.full((len(values), 2), np.iinfo(np.int32).max, dtype=values.dtype)
    table[:, 0] = values
    return table[:, 0]


def field_of_records(values):
    records = np.zeros(len(values), dtype=[("other", "i1"), ("value", values.dtype)])
    records["value"] = values
    return records["value"]


@pytest.mark.parametrize("laid_out", [strided, field_of_records])
@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_sparse_arrays_that_are_not_contiguous(laid_out, part):
    matrix = SPARSE.copy()
    setattr(matrix, part, laid_out(getattr(SPARSE, part)))
    got, expected = (Objective(X, TARGET, Logistic()) for X in (matrix, SPARSE))
    assert_array_equal(got.gradient_sum(COEF, 0.1), expected.gradient_sum(COEF, 0.1))
    with seeded_noise(0):
        got, expected = (DPLogisticRegression(max_iter=3).fit(X, TARGET) for X in (matrix, SPARSE))
    assert_array_equal(got.coef_, expected.coef_)


@pytest.mark.parametrize(
    "X",
    [DENSE[::2], np.asfortranarray(DENSE), np.repeat(DENSE, 2, axis=1)[:, ::2], DENSE[::-1, ::-1]],
    ids=["every other row", "columns", "every other column", "backwards"],
)
def test_dense_arrays_that_are_not_contiguous_are_copied_once(X):
    target = TARGET[: len(X)]
    plain, copied = (Objective(rows, target, Logistic()) for rows in (np.ascontiguousarray(X), X))
    assert_array_equal(copied.gradient_sum(COEF, 0.1), plain.gradient_sum(COEF, 0.1))
    assert_array_equal(copied.second_moment(1.0, False), plain.second_moment(1.0, False))
    assert not np.shares_memory(copied._rows._X, X)
    assert np.shares_memory(copied.in_basis(np.eye(6))._rows._X, copied._rows._X)


def test_data_are_not_copied_and_may_be_read_only():
    X = DENSE.copy()
    X.flags.writeable = False
    objective = Objective(X, TARGET, Logistic())
    assert np.isfinite(objective.gradient_sum(COEF, 1.0)).all()
    for rows in (objective, objective.in_basis(np.eye(6))):
        assert np.shares_memory(rows._rows._X, X)
