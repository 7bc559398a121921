"""Certified minimisers: damped Newton steps that reach the tolerance whatever the data."""

import numpy as np
import pytest
from problems import holder_of, problem
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array
from scipy.special import expit

from dpglm.baselines import DescentOutputPerturbation, ObjectivePerturbation, records
from dpglm.baselines.records import PenalizedLoss, damped_step
from dpglm.losses import Logistic, SmoothedHinge

# Undamped Newton steps go round in circles, and no longer once any of the rows is zero.
CIRCLE = np.array([[-19, -31, -46], [12, -12, 6], [59, 3, 0], [4, -8, -19]], dtype=float)


def test_no_single_record_makes_a_fit_raise_as_one_does_without_damping(monkeypatch):
    model = ObjectivePerturbation(loss="smoothed_hinge", max_row_norm=10.0, fit_intercept=False)

    def minimised(X):
        rows = holder_of(model, X, np.array([-1.0, -1.0, 1.0, 1.0]))
        return rows.minimizer(4e-4, 1e-6, 4, np.zeros((3, 1)))

    minimised(CIRCLE)
    for row in range(4):
        minimised(np.where(np.arange(4)[:, np.newaxis] == row, 0.0, CIRCLE))

    def whole_step(gradient, coef, slope, step):
        return coef + step, gradient(coef + step)

    monkeypatch.setattr(records, "damped_step", whole_step)
    monkeypatch.setattr(records, "_MAX_STEPS", 1000)
    with pytest.raises(RuntimeError, match="nothing was released"):
        minimised(CIRCLE)


def test_the_least_penalty_that_is_not_refused_finds_the_minimiser():
    """At a hundred-millionth of the largest curvature of a record."""
    rng = np.random.default_rng(5)
    for half_width in (1e-8, 1e-6, 1e-4, 1e-2, 0.5):
        least = 1e-8 * 2.0**2 / (2 * half_width)
        settings = {"loss": "smoothed_hinge", "half_width": half_width, "classes": [0, 1]}
        settings |= {"max_row_norm": 2.0, "epsilon": 1e3}
        X, y = 100 * rng.normal(size=(7, 2)), rng.integers(2, size=7)
        model = ObjectivePerturbation(alpha=1.001 * least, **settings).fit(X, y)
        assert np.isfinite(model.coef_).all()
        refused = ObjectivePerturbation(alpha=0.999 * least, **settings)
        with pytest.raises(ValueError, match=r"for the .*Raise alpha to \S+ or") as planned:
            refused.plan(7, 2)
        # A fit says the same whatever the records: of a smaller penalty they decided it.
        with pytest.raises(ValueError) as fitted:
            refused.fit(X, y)
        assert str(fitted.value) == str(planned.value)


def random_objective(loss, n_outputs, form=np.asarray, d=4):
    X, target, *_ = problem(5000, d, n_outputs)
    settings = {"n_outputs": n_outputs, "fit_intercept": True, "max_row_norm": 3.0}
    return PenalizedLoss(form(X), target, loss, **settings)


LOSSES = [(Logistic(), 1), (Logistic(), 3), (SmoothedHinge(), 1)]


@pytest.mark.parametrize(("loss", "n_outputs"), LOSSES)
def test_the_hessian_is_the_derivative_of_the_gradient(loss, n_outputs):
    objective = random_objective(loss, n_outputs)
    coef = np.random.default_rng(1).normal(size=5 * n_outputs)
    hessian = objective.hessian(coef)
    products = [objective.hessian_product(coef, unit) for unit in np.eye(coef.size)]
    assert hessian == pytest.approx(np.array(products), rel=1e-10, abs=1e-9)
    numerical = approx_fprime(coef, objective.gradient_sum, 1e-6)
    assert hessian == pytest.approx(numerical, rel=1e-2, abs=3.0)
    same = random_objective(loss, n_outputs, csr_array).hessian(coef)
    assert hessian == pytest.approx(same, rel=1e-10, abs=1e-9)


@pytest.mark.parametrize(("loss", "n_outputs"), LOSSES)
def test_conjugate_gradients_find_the_same_minimiser(loss, n_outputs, monkeypatch):
    objective = random_objective(loss, n_outputs)
    given = 5.0, 1e-6, 5000, np.zeros(objective.coef_shape)
    exact = objective.minimizer(*given)
    monkeypatch.setattr(records, "_LARGEST_DENSE", 0)
    monkeypatch.delattr(PenalizedLoss, "hessian")
    iterated = objective.minimizer(*given)
    assert np.linalg.norm(exact - iterated) <= 2 * 1e-6 / 5.0


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


@pytest.mark.parametrize("Estimator", [ObjectivePerturbation, DescentOutputPerturbation])
def test_a_record_whose_duplicate_entries_overflow_contributes_nothing(Estimator):
    rows = np.repeat(np.arange(1, 31), 2)
    data, columns = np.where(rows == 7, 1.7e308, 0.3 * rows), np.zeros(60, dtype=int)
    X, y = csr_array((data, columns, np.arange(0, 61, 2)), shape=(30, 2)), np.arange(30) % 2
    settings = {"fit_intercept": True, "epsilon": 5.0, "classes": [0, 1]}
    model, sign = Estimator(**settings), y * 2.0 - 1.0
    assert np.isfinite(model.fit(X, y).coef_).all()
    kept, coef = np.arange(30) != 6, np.array([0.3, -0.2, 0.1])
    total = holder_of(model, X, sign).gradient_sum(coef)
    without = holder_of(model, X[kept], sign[kept]).gradient_sum(coef)
    assert total == pytest.approx(without, rel=1e-13)
    assert (X.data == data).all() and X.nnz == 60, "the caller's matrix is left as it was"


@pytest.mark.filterwarnings("ignore:The coefficients diverged")
def test_the_least_row_bound_that_is_not_refused_can_be_fitted():
    model = ObjectivePerturbation(max_row_norm=2e-100, fit_intercept=False, classes=[0, 1])
    assert np.isfinite(model.fit(np.eye(4), [0, 1, 0, 1]).coef_).all()
