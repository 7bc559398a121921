"""Whatever the memory layout of the input, the sums are those of its values."""

import numpy as np
import pytest
from scipy import sparse

from dpglm import DPLogisticRegression
from dpglm.kernels.vectors import at
from dpglm.losses import Logistic
from dpglm.sums.objective import Objective

RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(60, 5)) * (RNG.random((60, 5)) < 0.5)
TARGET = np.where(RNG.random(60) < 0.5, -1.0, 1.0)
PLAIN = sparse.csr_array(DENSE)


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
    matrix = PLAIN.copy()
    setattr(matrix, part, laid_out(getattr(PLAIN, part)))
    coef, expected = RNG.normal(size=6), Objective(PLAIN, TARGET, Logistic())
    got = Objective(matrix, TARGET, Logistic())
    assert np.array_equal(got.gradient_sum(coef, 0.1), expected.gradient_sum(coef, 0.1))
    fits = [
        DPLogisticRegression(max_iter=3, random_state=0).fit(X, TARGET) for X in (PLAIN, matrix)
    ]
    assert np.array_equal(fits[0].coef_, fits[1].coef_)


@pytest.mark.parametrize("X", [DENSE[::2], np.asfortranarray(DENSE)[:, ::2], DENSE[::-1, ::-1]])
def test_dense_arrays_that_are_not_contiguous(X):
    target, coef = TARGET[: len(X)], RNG.normal(size=X.shape[1] + 1)
    expected = Objective(np.ascontiguousarray(X), target, Logistic()).gradient_sum(coef, 0.1)
    assert Objective(X, target, Logistic()).gradient_sum(coef, 0.1) == pytest.approx(expected)


def test_no_kernel_is_compiled_for_arrays_that_are_not_contiguous():
    from numba import njit

    @njit
    def first(array):
        return at(array, 0)

    assert first(np.ones(3)) == 1.0
    with pytest.raises(Exception, match="contiguous arrays only"):
        first(np.ones(6)[::2])
