"""How the rows are stored: in little memory, and sparse ones whatever their form."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array

from dpglm.estimators.descent import DPLogisticRegression
from dpglm.losses import Logistic
from dpglm.sums.objective import Objective


def test_sparse_data_are_never_made_dense():
    n, d, per_row = 3000, 200_000, 5
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, d, (n, per_row)) // per_row * per_row + np.arange(per_row))
    data = (rng.normal(size=n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row))
    X, target = csr_array(data, shape=(n, d)), rng.choice([-1.0, 1.0], n)
    coef, steps = rng.normal(size=d + 1), np.linspace(0.0, 1.0, 5)
    Objective(X, target, Logistic()).line_losses(coef, coef, steps, clip=1.0)
    tracemalloc.start()
    plain = Objective(X, target, Logistic())
    for objective in (plain, plain.in_basis(np.linspace(1.0, 2.0, d + 1))):
        objective.gradient_sum(coef, 1.0)
        objective.line_losses(coef, coef, steps, clip=1.0)
    plain.second_moment(1.0, diagonal=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # a few vectors of d numbers, where all of the data would take 4.8 GB
    assert most < 20 * 8 * d


def with_duplicates(values, dtype):
    """Rows of three columns, the middle one of which is the sum of two stored entries."""
    columns, ends = np.tile([0, 1, 1, 2], len(values)), np.arange(0, 4 * len(values) + 1, 4)
    return csr_array((values.astype(dtype).ravel(), columns, ends), shape=(len(values), 3))


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_duplicate_entries_that_overflow_make_their_record_contribute_nothing(fit_intercept):
    rng = np.random.default_rng(0)
    values, target = rng.normal(size=(20, 4)), rng.choice([-1.0, 1.0], 20)
    coef, settings = rng.normal(size=3 + fit_intercept), {"fit_intercept": fit_intercept}
    values[7, 1:3] = 1.7e308
    X = with_duplicates(values, np.float64)
    objective = Objective(X, target, Logistic(), **settings)
    others = Objective(X, target, Logistic(), present=np.arange(20) != 7, **settings)
    assert_array_equal(objective.gradient_sum(coef, 1.0), others.gradient_sum(coef, 1.0))
    assert_array_equal(objective.second_moment(1.0, False), others.second_moment(1.0, False))
    assert_array_equal(objective.gradient_sum(coef, 1.0, rows=np.array([7])), np.zeros(coef.size))
    basis = np.linspace(1.0, 2.0, coef.size)
    assert_array_equal(
        objective.in_basis(basis).gradient_sum(coef, 1.0),
        others.in_basis(basis).gradient_sum(coef, 1.0),
    )
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
    with pytest.raises(ValueError, match="X contains NaN or infinity"):
        Objective(with_duplicates(values, np.float64), np.ones(5), Logistic())


def test_a_record_that_overflows_does_not_make_a_fit_raise():
    values = np.ones((40, 4))
    values[3, 1:3] = 1.7e308
    model = DPLogisticRegression(classes=[0, 1], max_iter=2)
    assert np.isfinite(
        model.fit(with_duplicates(values, np.float64), np.arange(40) % 2).coef_
    ).all()
