"""Certified minimisers: damped Newton steps that reach the tolerance whatever the data."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array
from scipy.special import expit
from threadpoolctl import threadpool_limits

from dpglm.baselines import records
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.perturbation import OutputPerturbation
from dpglm.baselines.records import PenalizedLoss, damped_step
from dpglm.losses import Logistic, SmoothedHinge, Softmax

PERTURBATIONS = [ObjectivePerturbation, OutputPerturbation, ApproximateMinimaPerturbation]
# Undamped Newton steps go round in circles, and no longer once any of the rows is zero.
CIRCLE = np.array([[-19, -31, -46], [12, -12, 6], [59, 3, 0], [4, -8, -19]], dtype=float)


def fit_circle(X):
    model = OutputPerturbation(
        loss="smoothed_hinge", row_bound=10.0, alpha=1e-4, fit_intercept=False, classes=[0, 1],
        epsilon=1.0, delta=1e-5,
    )  # fmt: skip
    return model.fit(X, [0, 0, 1, 1])


def test_no_single_record_makes_a_fit_raise():
    fit_circle(CIRCLE)
    for row in range(4):
        X = CIRCLE.copy()
        X[row] = 0.0
        fit_circle(X)


def test_without_damping_a_record_decides_whether_a_fit_raises(monkeypatch):
    def whole_step(gradient, coef, slope, step):
        return coef + step, gradient(coef + step)

    monkeypatch.setattr(records, "damped_step", whole_step)
    monkeypatch.setattr(records, "_MAX_STEPS", 1000)
    with pytest.raises(RuntimeError, match="nothing was released"):
        fit_circle(CIRCLE)


def random_estimator(rng, n_classes):
    Estimator = PERTURBATIONS[rng.integers(3)]
    return Estimator(
        loss=["logistic", "smoothed_hinge"][rng.integers(2)],
        half_width=10 ** rng.uniform(-4, 0),
        epsilon=10 ** rng.uniform(-1, 3),
        delta=1e-5,
        row_bound=10 ** rng.uniform(0.1, 2.8),
        alpha="auto" if rng.random() < 0.3 else 10 ** rng.uniform(-6, 0),
        classes=list(range(n_classes)),
        fit_intercept=bool(rng.integers(2)),
    )


def test_no_random_configuration_makes_a_fit_raise():
    rng = np.random.default_rng(3)
    n_fits = 0
    while n_fits < 60:
        n, d, n_classes = int(10 ** rng.uniform(0.5, 2)), rng.integers(1, 5), rng.choice([2, 2, 3])
        X = rng.normal(size=(n, d)) * 10 ** rng.uniform(-1, 3)
        model, y = random_estimator(rng, n_classes), rng.integers(n_classes, size=n)
        try:
            model.plan(n, d, n_classes=n_classes)
        except ValueError:
            continue  # a penalty that costs more than the budget
        assert np.isfinite(model.fit(X, y).coef_).all()
        n_fits += 1


# With so small a penalty a fit of these records found no minimiser in 10,000 steps, and one without
# the third found it at once: the error would have told one table from the other.
TELLING = np.array(
    [1357.23343222, 730.55343441, 102.95251735, -468.48018936, -843.28330807, -317.35470468,
     -336.34320715]
)[:, np.newaxis]  # fmt: skip


@pytest.mark.parametrize("null", [None, 2])
def test_a_penalty_with_which_one_record_decided_whether_a_fit_raises_is_refused(null):
    X, y = TELLING.copy(), [0, 0, 1, 1, 1, 1, 1]
    if null is not None:
        X[null] = 0.0
    model = OutputPerturbation(
        loss="smoothed_hinge", half_width=0.00040129825368134076, row_bound=2.7596786881566278,
        alpha=7.197254319810499e-10, epsilon=2.9573244784678914, fit_intercept=False,
        classes=[0, 1],
    )  # fmt: skip
    with pytest.raises(ValueError, match="too small beside the curvature of a record") as refused:
        model.plan(*X.shape)
    with pytest.raises(ValueError, match=r"alpha=7\.19725e-10 is too small") as info:
        model.fit(X, y)
    assert str(info.value) == str(refused.value)


@pytest.mark.parametrize("Estimator", PERTURBATIONS)
def test_the_least_penalty_that_is_not_refused_finds_the_minimiser(Estimator):
    """At a ten-billionth of the largest curvature of a record."""
    rng = np.random.default_rng(5)
    for half_width in (1e-4, 1e-2, 0.5):
        least = 1e-10 * 2.0**2 / (2 * half_width)
        settings = {
            "loss": "smoothed_hinge", "half_width": half_width, "row_bound": 2.0, "epsilon": 1e3,
            "classes": [0, 1],
        }  # fmt: skip
        X, y = 100 * rng.normal(size=(7, 2)), rng.integers(2, size=7)
        model = Estimator(alpha=1.001 * least, **settings).fit(X, y)
        assert np.isfinite(model.coef_).all()
        with pytest.raises(ValueError, match=r"Raise alpha to \S+ or more"):
            Estimator(alpha=0.999 * least, **settings).plan(7, 2)


def random_objective(loss, n_outputs, sparse=False):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 4)) * (rng.random((5000, 4)) < 0.7)
    target = rng.choice([-1.0, 1.0], 5000) if n_outputs == 1 else rng.integers(3, size=5000)
    return PenalizedLoss(
        csr_array(X) if sparse else X, target, loss,
        n_outputs=n_outputs, fit_intercept=True, row_bound=3.0,
    )  # fmt: skip


LOSSES = [(Logistic(), 1), (Logistic(), 3), (Softmax(), 3), (SmoothedHinge(), 1)]


@pytest.mark.parametrize(("loss", "n_outputs"), LOSSES)
def test_the_hessian_is_the_derivative_of_the_gradient(loss, n_outputs):
    objective = random_objective(loss, n_outputs)
    coef = np.random.default_rng(1).normal(size=5 * n_outputs)
    hessian = objective.hessian(coef)
    products = [objective.hessian_product(coef, unit) for unit in np.eye(coef.size)]
    assert hessian == pytest.approx(np.array(products), rel=1e-10, abs=1e-9)
    numerical = approx_fprime(coef, objective.gradient_sum, 1e-6)
    assert hessian == pytest.approx(numerical, rel=1e-2, abs=3.0)
    same = random_objective(loss, n_outputs, sparse=True).hessian(coef)
    assert hessian == pytest.approx(same, rel=1e-10, abs=1e-9)


@pytest.mark.parametrize(("loss", "n_outputs"), LOSSES)
def test_conjugate_gradients_find_the_same_minimiser(loss, n_outputs, monkeypatch):
    objective = random_objective(loss, n_outputs)
    exact = objective.minimizer(5.0, 1e-6, n_samples=5000)
    monkeypatch.setattr(records, "_LARGEST_DENSE", 0)
    monkeypatch.delattr(PenalizedLoss, "hessian")
    iterated = objective.minimizer(5.0, 1e-6, n_samples=5000)
    assert np.linalg.norm(exact - iterated) <= 2 * 1e-6 / 5.0


def test_more_threads_of_the_matrix_products_change_no_bit():
    """More of them wait for each other, and order the sums in another way."""
    rng = np.random.default_rng(0)
    X, target = rng.normal(size=(3000, 40)), rng.choice([-1.0, 1.0], 3000)
    objective = PenalizedLoss(
        X, target, Logistic(), n_outputs=1, fit_intercept=True, row_bound=2.0
    )  # fmt: skip
    minimisers = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            minimisers.append(objective.minimizer(5.0, 1e-6, n_samples=3000))
    assert (minimisers[0] == minimisers[1]).all()


def test_a_damped_step_decreases_a_convex_function():
    def value(x):
        return np.abs(x).sum() + np.logaddexp(0.0, 30 * x).sum()

    def gradient(x):
        return np.sign(x) + 30 * expit(30 * x)

    rng = np.random.default_rng(0)
    for _ in range(200):
        start = rng.normal(size=3)
        step = -gradient(start) * 10 ** rng.uniform(-3, 1, 3)
        end, slope = damped_step(gradient, start, gradient(start), step)
        assert (slope == gradient(end)).all()
        share = ((end - start) / step)[0]
        assert end == pytest.approx(start + share * step)
        assert value(end) <= value(start) + 0.1 * share * (gradient(start) @ step) + 1e-9


def test_where_slopes_drown_the_smallest_gradient_is_taken():
    """A gradient that grows along a step by which a convex function would fall."""
    ends = []

    def gradient(x):
        ends.append(x)
        return np.ones(1) * (0.5 + abs(x - 0.25))

    end, slope = damped_step(gradient, np.zeros(1), np.array([-1.0]), np.ones(1))
    assert end == 0.25 and slope == 0.5
    assert len(ends) == records._MAX_HALVINGS + 1


@pytest.mark.parametrize("Estimator", PERTURBATIONS)
def test_a_record_whose_duplicate_entries_overflow_contributes_nothing(Estimator):
    rows = np.repeat(np.arange(1, 31), 2)
    data, columns = np.where(rows == 7, 1.7e308, 0.3 * rows), np.zeros(60, dtype=int)
    X, y = csr_array((data, columns, np.arange(0, 61, 2)), shape=(30, 2)), np.arange(30) % 2
    settings = {"fit_intercept": True, "epsilon": 5.0, "classes": [0, 1], "random_state": 0}
    with_overflow = Estimator(**settings).fit(X, y)
    objective = Estimator(**settings)._make_holder(X, y * 2.0 - 1.0, 2, None)
    kept = np.arange(30) != 6
    without = Estimator(**settings)._make_holder(X[kept], (y * 2.0 - 1.0)[kept], 2, None)
    coef = np.array([0.3, -0.2, 0.1])
    assert objective.gradient_sum(coef) == pytest.approx(without.gradient_sum(coef), rel=1e-13)
    assert np.isfinite(with_overflow.coef_).all()
    assert (X.data == data).all() and X.nnz == 60, "the caller's matrix is left as it was"


def test_a_row_bound_whose_square_underflows_is_refused():
    X, y = np.eye(4), [0, 1, 0, 1]
    settings = {"fit_intercept": False, "classes": [0, 1]}
    with pytest.raises(ValueError, match="row_bound=1e-161 must be a number above 1e-100"):
        OutputPerturbation(row_bound=1e-161, **settings).fit(X, y)
    for Estimator in PERTURBATIONS:
        model = Estimator(row_bound=2e-100, **settings).fit(X, y)
        assert np.isfinite(model.coef_).all()
