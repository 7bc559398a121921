"""Objective and output perturbation: the law of their minimisers, the noise on them, the cost."""

import math

import numpy as np
import pytest
from problems import holder_of, problem
from scipy.sparse import csr_array
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression

from dpglm.baselines import DescentOutputPerturbation, objective_perturbation, records
from dpglm.baselines.objective_perturbation import ObjectivePerturbation
from dpglm.baselines.perturbation import descent_sensitivity
from dpglm.baselines.records import PenalizedLoss, joint_lipschitz, rounding_error
from dpglm.datasets import make_census
from dpglm.losses import Logistic, SmoothedHinge, Softmax
from dpglm.privacy.gaussian import gdp_epsilon


def under(relation, n_samples=1000):
    """The parameters of a relation."""
    estimate = n_samples if relation == "add_or_remove_one" else None
    return {"neighboring_relation": relation, "n_samples_estimate": estimate}


def minus_gradients(model, X, y, points, n_samples):
    """The tilts that make given values of the LAST coefficient minimisers, the others zero."""
    plan = model.plan(n_samples, X.shape[1])
    objective = holder_of(model, X, np.asarray(y, dtype=float))
    coef = np.zeros(objective.coef_shape[0])
    tilts = []
    for point in points:
        coef[-1] = point
        tilts.append(-objective.gradient(coef, plan.penalty)[-1])
    return np.array(tilts)


def least_delta(model, P, Q, points, n_samples, epsilon=None):
    """Lower bound of delta at the claimed epsilon: cells between the points are the events."""
    factor = math.exp(model.epsilon if epsilon is None else epsilon)
    std = model.plan(n_samples, P[0].shape[1]).tilt.noise_std(P[0].shape[1])
    edges = [minus_gradients(model, *D, points, n_samples) / std for D in (P, Q)]
    p, q = (np.abs(np.diff(ndtr(e))) for e in edges)
    return max(np.maximum(a - factor * b, 0).sum() for a, b in ((p, q), (q, p)))


def cost_of(ledger):
    """Epsilon of a ledger in closed form."""
    (tilted, n_outputs), (output, _) = ledger.events
    mu = math.sqrt(n_outputs * tilted.unshifted.mu**2 + output.mu**2)
    return n_outputs * tilted.offset + gdp_epsilon(mu, ledger.reporting_delta)


def away_from(bound, penalty):
    """Short rows that pull the minimiser away, and one long row that it gets wrong."""
    short = np.full(int(8000 * penalty / bound**2), -bound / 200)
    return np.append(short, bound)[:, np.newaxis], np.ones(len(short) + 1)


def case(name):
    """Model, two neighbouring data sets, and a grid of coefficients."""
    if name == "gradient":
        model = ObjectivePerturbation(
            epsilon=2.0, delta=1e-4, max_row_norm=3.5, alpha=20.0 / 1000, fit_intercept=False
        )
        X, y = away_from(3.5, 20.0)
        return model, (X, y), (X[:-1], y[:-1]), np.linspace(-40, 20, 800), 1000
    if name == "curvature":
        model = ObjectivePerturbation(
            epsilon=1.0, delta=1e-4, max_row_norm=100.0, fit_intercept=False
        )
        empty = np.zeros((0, 1)), np.zeros(0)
        return model, (np.full((1, 1), 100.0), np.ones(1)), empty, np.linspace(-0.6, 0.6, 3000), 50
    model = ObjectivePerturbation(epsilon=0.3, delta=1e-4, max_row_norm=1.1)
    X = np.zeros((2, 1))
    return model, (X, np.ones(2)), (X[:1], np.ones(1)), np.linspace(-40, 40, 4000), 50


@pytest.mark.parametrize("name", ["gradient", "curvature", "intercept"])
def test_the_claim_bounds_the_exact_densities_and_is_nearly_reached(name):
    model, P, Q, points, n = case(name)
    assert least_delta(model, P, Q, points, n) <= model.delta
    if name == "gradient":
        rest = model.epsilon - model.plan(n, 1).offset
        assert 0.5 * model.delta < least_delta(model, P, Q, points, n, rest) < 1.001 * model.delta


def test_a_minimiser_that_is_not_reached_releases_nothing(monkeypatch):
    X, y = make_census(300, random_state=0)
    model = ObjectivePerturbation(classes=[0, 1])
    monkeypatch.setattr(objective_perturbation, "attainable_tolerance", lambda *args: 1e-30)
    monkeypatch.setattr(records, "_MAX_STEPS", 30)
    with pytest.raises(RuntimeError, match="nothing was released") as info:
        model.fit(X, y)
    assert not hasattr(model, "coef_")
    # The tilt had been drawn by then.
    assert info.value.privacy_ledger == model.plan(*X.shape).ledger


@pytest.mark.parametrize(
    ("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3), (SmoothedHinge(), 3)]
)
def test_gradients_are_within_the_rounding_bound_of_extended_precision(loss, n_outputs):
    n, (X, target, coef, _) = 5000, problem(5000, 30, n_outputs)
    settings = {"n_outputs": n_outputs, "fit_intercept": True, "max_row_norm": 4.0}
    objective, coef = PenalizedLoss(X, target, loss, **settings), 3 * coef
    rows = objective._rows.astype(np.longdouble)
    slopes = loss.derivative(rows @ coef.astype(np.longdouble), target)
    exact = rows.T @ slopes.reshape(n, -1)
    error = np.linalg.norm((objective.gradient_sum(coef.ravel()) - exact.ravel()).astype(float))
    lipschitz, curvature = 4.0 * math.sqrt(n_outputs), loss.curvature * 16.0
    bound = rounding_error(n, coef.size, lipschitz, curvature, np.linalg.norm(coef))
    assert 0 < error < bound < 1e-7


def penalised_reference(X, y, alpha, class_weight=None):
    """scikit-learn's optimum with the intercept among the penalised columns."""
    settings = {"fit_intercept": False, "tol": 1e-12, "max_iter": 10_000}
    C = 1 / (len(X) * alpha)
    reference = LogisticRegression(C=C, class_weight=class_weight, **settings)
    return reference.fit(np.column_stack([X, np.ones(len(X))]), y).coef_[0]


@pytest.mark.parametrize(
    ("Estimator", "changes", "tolerance"),
    [
        (ObjectivePerturbation, {}, 1e-6),
        (ObjectivePerturbation, {"class_weight": {1: 3.0}}, 1e-6),
        (DescentOutputPerturbation, {"max_iter": 1500}, 1e-6),
    ],
)
def test_without_noise_it_is_the_optimum_with_a_penalised_intercept(Estimator, changes, tolerance):
    X, y = make_census(400, random_state=0)
    model = Estimator(epsilon=math.inf, alpha=0.05, max_row_norm=5.0, **changes).fit(X, y)
    expected = penalised_reference(X, y, 0.05, model.class_weight)
    assert np.append(model.coef_, model.intercept_) == pytest.approx(expected, abs=tolerance)
    assert not model.privacy_.protects


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("alpha", ["auto", 0.1])
def test_the_ledger_spends_what_was_asked_for(relation, alpha):
    plan = ObjectivePerturbation(**under(relation), alpha=alpha).plan(1000, 20)
    cost = cost_of(plan.ledger)
    assert cost == pytest.approx(plan.ledger.epsilon(), rel=1e-14) and cost <= 1.0
    assert plan.tilt.sensitivity == (6.0 if relation == "replace_one" else 3.0)
    # Under replace-one the offset is charged for a mu a little larger than it turns out to be.
    assert cost > (0.99 if relation == "replace_one" else 1 - 1e-6)


def test_rows_are_shortened_to_the_bound_and_overflowing_ones_left_out():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)) * 5, np.arange(60) % 2
    X[7], X[8] = [1e308, 1e308, -1e308], 0.0
    settings = {"epsilon": math.inf, "alpha": 0.1}
    model = ObjectivePerturbation(max_row_norm=2.0, **settings).fit(X, y)
    norms = np.linalg.norm(np.where(np.abs(X) > 1e300, 1.0, X), axis=1)
    short = X * np.minimum(1, math.sqrt(3) / np.maximum(norms, 1e-9))[:, None]
    kept = np.arange(60) != 7
    expected = penalised_reference(short[kept], y[kept], 0.1 * 60 / 59)
    assert np.append(model.coef_, model.intercept_) == pytest.approx(expected, abs=1e-7)
    scores = short[kept] @ expected[:-1] + expected[-1]
    assert model.decision_function(X[kept]) == pytest.approx(scores, abs=1e-6)
    assert model.decision_function(csr_array(X[kept])) == pytest.approx(scores, abs=1e-6)
    assert model.decision_function(X[[7]]) == pytest.approx(model.intercept_)
    settings = {"n_outputs": 1, "fit_intercept": False, "max_row_norm": 3.0}
    long = PenalizedLoss(1e2 * rng.normal(size=(500, 40)), np.ones(500), Logistic(), **settings)
    assert (np.linalg.norm(long._rows.astype(np.longdouble), axis=1) <= 3.0).all()


def test_the_number_of_records_is_not_read_where_it_is_private():
    model = ObjectivePerturbation(neighboring_relation="add_or_remove_one", n_samples_estimate=400)
    one, other = model.plan(300, 5), model.plan(500, 5)
    assert (one.penalty, one.tolerance) == (other.penalty, other.tolerance)
    assert one.tolerance > ObjectivePerturbation().plan(400, 5).tolerance, "there may be more"


@pytest.mark.parametrize("loss", [Logistic(), Softmax(), SmoothedHinge()])
def test_no_record_exceeds_the_joint_bound(loss):
    rng = np.random.default_rng(0)
    for n_outputs in (2, 3, 10):
        scores = rng.normal(size=(2000, n_outputs)) * 10 ** rng.uniform(-1, 2, (2000, 1))
        target = rng.integers(n_outputs, size=2000)
        norms = np.linalg.norm(loss.derivative(scores, target), axis=1)
        bound = joint_lipschitz(loss, n_outputs)
        assert 0.6 * bound < norms.max() <= bound * (1 + 1e-12)


def test_the_error_of_the_solver_is_the_sensitivity_of_the_release(monkeypatch):
    monkeypatch.setattr(objective_perturbation, "attainable_tolerance", lambda *args: 1.5)
    plan = ObjectivePerturbation(alpha=0.1).plan(100, 5)
    assert plan.tolerance == 1.5 and plan.penalty == pytest.approx(10.0)
    assert plan.output.sensitivity == pytest.approx(2 * 1.5 / plan.penalty, rel=1e-6)


def test_the_sensitivity_of_gradient_steps_is_that_of_the_vectors(vectors):
    for row in vectors("baselines", "descent_output_sensitivity"):
        for relation in ("zero_out", "replace_one"):
            given = row["C"], row["eta"], row["T"], row["lam"], row["n"], relation
            assert descent_sensitivity(*given) == pytest.approx(row[relation], rel=row["rtol"])


def test_no_neighbours_part_by_more_than_the_sensitivity_and_some_by_nearly_as_much():
    rng, ratios, loss = np.random.default_rng(0), [], SmoothedHinge(0.5)
    for _ in range(150):
        n, R = int(rng.integers(2, 12)), 10 ** rng.uniform(-1, 1)
        alpha = rng.choice([0.0, 10 ** rng.uniform(-3, 0)])
        n_iter, X = int(rng.integers(1, 40)), rng.normal(size=(n, 2)) * R
        y = rng.choice([-1.0, 1.0], size=n)
        settings = {"n_outputs": 1, "fit_intercept": False, "max_row_norm": R}
        step = 2 / (loss.curvature * R**2 + 2 * alpha)
        steps = {"step": step, "n_iter": n_iter, "alpha": alpha}
        neighbour = X.copy()
        neighbour[0] = 0.0
        ends = [
            PenalizedLoss(rows, y, loss, **settings).last_iterate(n, **steps)
            for rows in (X, neighbour)
        ]
        given = R * loss.lipschitz, step, n_iter, alpha, n, "zero_out"
        ratios.append(np.linalg.norm(ends[0] - ends[1]) / descent_sensitivity(*given))
    assert 0.99 < max(ratios) <= 1 + 1e-12


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
def test_gradient_steps_are_planned_and_charged_once(relation):
    model = DescentOutputPerturbation(**under(relation))
    plan = model.plan(1000, 5)
    ((event, n),) = plan.ledger.events
    assert (n, event) == (1, plan.output.event)
    assert plan.ledger.epsilon() == pytest.approx(1.0, rel=1e-6)
    steepest = 2 / (0.25 * 9.0 * (16 if model.n_samples_estimate else 1))
    assert plan.step == pytest.approx(steepest / 2)
    noise_on_a_score = 3.0 * plan.output.noise_multiplier * plan.output.sensitivity
    assert noise_on_a_score <= 1 / 3 and plan.output.slack < 1e-7
    assert noise_on_a_score > 0.3 or plan.n_steps == 1000
