"""How much memory the sums take beside the data."""

import tracemalloc

import numpy as np
from scipy import sparse

from dpglm.losses import Logistic
from dpglm.objective import Objective


def test_sparse_data_are_never_made_dense():
    n, d, per_row = 3000, 200_000, 5
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, d, (n, per_row)) // per_row * per_row + np.arange(per_row))
    data = (rng.normal(size=n * per_row), columns.ravel(), np.arange(0, n * per_row + 1, per_row))
    X, target = sparse.csr_array(data, shape=(n, d)), rng.choice([-1.0, 1.0], n)
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
