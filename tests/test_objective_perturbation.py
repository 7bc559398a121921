"""Objective perturbation: the law of its minimisers, its noise, and the estimator."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, ndtr
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

from dpglm.audit import record
from dpglm.baselines import records
from dpglm.baselines.objective_perturbation import ObjectivePerturbation
from dpglm.baselines.perturbation import OutputPerturbation, PerturbationMixin, Problem
from dpglm.baselines.records import PenalizedLoss, rounding_error
from dpglm.datasets import make_census
from dpglm.losses import Logistic, SmoothedHinge, Softmax
from dpglm.privacy.gaussian import gdp_epsilon


def minus_gradients(model, X, y, points, n_samples):
    """The tilts that make given values of the LAST coefficient minimisers, the others zero."""
    plan = model.plan(n_samples, X.shape[1])
    objective = model._make_holder(X, np.asarray(y, dtype=float), 2, None)
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


def pulled(row_bound, penalty):
    """Short rows that pull the coefficient until a long row is wrong with certainty."""
    x = row_bound / 200
    n_short = int(40 * penalty / row_bound / x)
    X = np.vstack([np.full((n_short, 1), -x), [[row_bound]]])
    return (X, np.ones(len(X))), (X[:-1], np.ones(n_short))


def case(name):
    """Model, two neighbouring data sets, and a grid of coefficients."""
    if name == "gradient":
        model = ObjectivePerturbation(
            epsilon=2.0, delta=1e-4, row_bound=3.5, alpha=20.0 / 1000, fit_intercept=False
        )
        return model, *pulled(3.5, 20.0), np.linspace(-40, 20, 800), 1000
    if name == "curvature":
        model = ObjectivePerturbation(epsilon=1.0, delta=1e-4, row_bound=100.0, fit_intercept=False)
        empty = np.zeros((0, 1)), np.zeros(0)
        return model, (np.full((1, 1), 100.0), np.ones(1)), empty, np.linspace(-0.6, 0.6, 3000), 50
    model = ObjectivePerturbation(epsilon=0.3, delta=1e-4, row_bound=1.1)
    X = np.zeros((2, 1))
    return model, (X, np.ones(2)), (X[:1], np.ones(1)), np.linspace(-40, 40, 4000), 50


@pytest.mark.parametrize("name", ["gradient", "curvature", "intercept"])
def test_the_claim_bounds_the_exact_densities_and_is_nearly_reached(name):
    model, P, Q, points, n = case(name)
    assert least_delta(model, P, Q, points, n) <= model.delta
    if name == "gradient":
        rest = model.epsilon - model.plan(n, 1).offset
        assert 0.5 * model.delta < least_delta(model, P, Q, points, n, rest) < 1.001 * model.delta


WRONG_BOUNDS = {
    "rows of norm 1": ("gradient", lambda bounds: {"lipschitz": 1.0}),
    "half of the sensitivity": ("gradient", lambda bounds: {"lipschitz": bounds.lipschitz / 2}),
    "R / 4, not its square": ("curvature", lambda bounds: {"curvature": bounds.row_bound / 4}),
    "a free intercept": ("intercept", lambda bounds: {}),
}


@pytest.mark.parametrize("bug", WRONG_BOUNDS)
def test_a_planted_bug_is_caught_by_the_exact_densities(bug, monkeypatch):
    name, change = WRONG_BOUNDS[bug]
    original = PerturbationMixin._problem

    def problem(self, budget, facts):
        bounds = original(self, budget, facts)
        return replace(bounds, **change(bounds))

    def gradient(self, coef, penalty, tilt=0.0):
        return self.gradient_sum(coef) + penalty * np.append(coef[:-1], 0.0) + tilt

    monkeypatch.setattr(PerturbationMixin, "_problem", problem)
    if name == "intercept":
        monkeypatch.setattr(PenalizedLoss, "gradient", gradient)
    model, P, Q, points, n = case(name)
    assert least_delta(model, P, Q, points, n) > 2 * model.delta


def test_the_tilt_has_the_charged_noise():
    """Without data the minimiser is minus the tilt over the penalty."""
    d = 2000
    model = ObjectivePerturbation(alpha=1.0, fit_intercept=False, classes=[0, 1])
    plan = model.plan(2, d)
    model.fit(np.zeros((2, d)), [0, 1])
    assert plan.tilt.noise_multiplier == model.privacy_.events[0][0].noise_multiplier
    assert plan.tilt.noise_std(d) == pytest.approx(3.0 * plan.tilt.noise_multiplier, rel=1e-6)
    variance = (model.coef_**2).sum() * plan.penalty**2 / plan.tilt.noise_std(d) ** 2
    low, high = chi2.ppf([1e-6, 1 - 1e-6], d)
    assert low < variance < high


def test_the_approximate_minimiser_is_released_with_the_charged_noise():
    """It covers twice the distance from the exact one, the tilt's grid included, at little cost."""
    model = ObjectivePerturbation(alpha=0.1, classes=[0, 1])
    X, y = make_census(500, random_state=0)
    plan = model.plan(*X.shape)
    size = X.shape[1] + 1
    covered = 2 * plan.tolerance + plan.tilt.grid * math.sqrt(size)
    assert plan.output.sensitivity * plan.penalty == pytest.approx(covered, rel=1e-8)
    with record() as tape:
        model.fit(X, y)
    noise = np.append(model.coef_, model.intercept_) - tape.releases[-1].exact.ravel()
    std = plan.output.sensitivity * plan.output.noise_multiplier
    low, high = chi2.ppf([1e-6, 1 - 1e-6], size)
    assert low < (noise**2).sum() / std**2 < high
    assert model.trace_.output_std == plan.output.noise_std(size)
    tilt, output = (event for event, _ in plan.ledger.events)
    assert output.mu**2 / (output.mu**2 + tilt.unshifted.mu**2) == pytest.approx(0.01)


def test_a_minimiser_that_is_not_reached_releases_nothing(monkeypatch):
    X, y = make_census(300, random_state=0)
    model = ObjectivePerturbation(classes=[0, 1])
    monkeypatch.setattr(Problem, "attainable_tolerance", lambda *args: 1e-30)
    monkeypatch.setattr(records, "_MAX_STEPS", 30)
    with pytest.raises(RuntimeError, match="nothing was released") as info:
        model.fit(X, y)
    assert info.value.privacy_ledger == model.plan(*X.shape).ledger
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize(
    ("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3), (SmoothedHinge(), 3)]
)
def test_gradients_are_within_the_rounding_bound_of_extended_precision(loss, n_outputs):
    rng = np.random.default_rng(0)
    n, d = 5000, 30
    X = rng.normal(size=(n, d))
    target = rng.choice([-1.0, 1.0], n) if n_outputs == 1 else rng.integers(3, size=n)
    settings = {"n_outputs": n_outputs, "fit_intercept": True, "row_bound": 4.0}
    objective = PenalizedLoss(X, target, loss, **settings)
    coef = rng.normal(size=objective.coef_shape) * 3
    rows = objective._rows.astype(np.longdouble)
    slopes = loss.derivative((rows @ coef.astype(np.longdouble)).squeeze(), target)
    exact = rows.T @ slopes.reshape(n, -1)
    error = np.linalg.norm((objective.gradient_sum(coef.ravel()) - exact.ravel()).astype(float))
    bound = rounding_error(
        n, coef.size, 4.0 * math.sqrt(n_outputs), loss.curvature * 16.0, np.linalg.norm(coef)
    )
    assert 0 < error < bound < 1e-7


def penalised_reference(X, y, alpha, class_weight=None):
    """scikit-learn's optimum with the intercept among the penalised columns."""
    reference = LogisticRegression(
        C=1 / (len(X) * alpha), fit_intercept=False, tol=1e-12, max_iter=10_000,
        class_weight=class_weight,
    )  # fmt: skip
    return reference.fit(np.column_stack([X, np.ones(len(X))]), y).coef_[0]


@pytest.mark.parametrize("class_weight", [None, {1: 3.0}])
def test_without_noise_it_is_the_optimum_with_a_penalised_intercept(class_weight):
    X, y = make_census(2000, random_state=0)
    model = ObjectivePerturbation(
        epsilon=math.inf, alpha=1e-2, row_bound=10.0, class_weight=class_weight
    ).fit(X, y)
    expected = penalised_reference(X, y, 1e-2, class_weight)
    assert np.append(model.coef_, model.intercept_) == pytest.approx(expected, abs=1e-6)
    assert not model.privacy_.protects


@pytest.mark.parametrize("Estimator", [ObjectivePerturbation, OutputPerturbation])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_without_noise_neither_the_relation_nor_the_storage_matters(Estimator, dtype):
    X, y = make_census(300, random_state=0)
    model = Estimator(epsilon=math.inf, alpha=0.01)
    dense = model.fit(X.astype(dtype), y).coef_
    sparse = model.fit(csr_array(X.astype(dtype)), y).coef_
    assert sparse == pytest.approx(dense, abs=1e-7)
    other = Estimator(epsilon=math.inf, alpha=0.01, neighboring_relation="replace_one")
    assert (other.fit(X.astype(dtype), y).coef_ == dense).all()


def test_the_smoothed_hinge_is_minimised_one_versus_rest():
    X, _ = make_census(1000, random_state=0)
    y = np.random.default_rng(0).integers(3, size=len(X)) * (X[:, 0] > 0.4)
    settings = {"epsilon": math.inf, "alpha": 1e-2, "loss": "smoothed_hinge", "row_bound": 9.0}
    model = ObjectivePerturbation(**settings).fit(X, y)
    for k in range(3):
        alone = ObjectivePerturbation(**settings).fit(X, y == k)
        assert model.coef_[k] == pytest.approx(alone.coef_[0], abs=1e-6)
    assert not hasattr(model, "predict_proba")


def test_one_versus_rest_composes_the_budget_and_normalises_probabilities():
    X, y = make_census(1000, random_state=0)
    y = y + (X[:, 0] > 0.5)
    model = ObjectivePerturbation().fit(X, y)
    (tilted, count), (output, _) = model.privacy_.events
    assert count == 3
    mu = math.sqrt(3 * tilted.unshifted.mu**2 + output.mu**2)
    assert 3 * tilted.offset + gdp_epsilon(mu, 1e-6) == pytest.approx(1.0, rel=1e-6)
    probabilities = model.predict_proba(X)
    assert probabilities.sum(axis=1) == pytest.approx(1.0)
    odds = expit(model.decision_function(X))
    assert probabilities == pytest.approx(odds / odds.sum(axis=1, keepdims=True))
    assert (probabilities.argmax(axis=1) == model.predict(X)).all()


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("alpha", ["auto", 0.1])
def test_the_ledger_spends_what_was_asked_for(relation, alpha):
    n_ref = 1000 if relation == "add_or_remove_one" else None
    model = ObjectivePerturbation(neighboring_relation=relation, n_ref=n_ref, alpha=alpha)
    plan = model.plan(1000, 20)
    (tilted, _), (output, _) = plan.ledger.events
    cost = tilted.offset + gdp_epsilon(math.hypot(tilted.unshifted.mu, output.mu), 1e-6)
    assert cost == pytest.approx(plan.ledger.epsilon(), rel=1e-14) and cost <= 1.0
    assert plan.tilt.sensitivity == (6.0 if relation == "replace_one" else 3.0)
    # Under replace-one the offset is charged for a mu a little larger than it turns out to be.
    assert cost > (0.99 if relation == "replace_one" else 1 - 1e-6)


def test_rows_are_shortened_to_the_bound_and_overflowing_ones_left_out():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)) * 5, np.arange(60) % 2
    X[7], X[8] = [1e308, 1e308, -1e308], 0.0
    settings = {"epsilon": math.inf, "alpha": 0.1}
    model = ObjectivePerturbation(row_bound=2.0, **settings).fit(X, y)
    norms = np.linalg.norm(np.where(np.abs(X) > 1e300, 1.0, X), axis=1)
    short = X * np.minimum(1, math.sqrt(3) / np.maximum(norms, 1e-9))[:, None]
    kept = np.arange(60) != 7
    expected = penalised_reference(short[kept], y[kept], 0.1 * 60 / 59)
    assert np.append(model.coef_, model.intercept_) == pytest.approx(expected, abs=1e-7)
    scores = short[kept] @ expected[:-1] + expected[-1]
    assert model.decision_function(X[kept]) == pytest.approx(scores, abs=1e-6)
    assert model.decision_function(csr_array(X[kept])) == pytest.approx(scores, abs=1e-6)
    assert model.decision_function(X[[7]]) == pytest.approx(model.intercept_)
    rows = PenalizedLoss(
        rng.normal(size=(500, 40)) * 100, np.ones(500), Logistic(),
        n_outputs=1, fit_intercept=False, row_bound=3.0,
    )._rows.astype(np.longdouble)  # fmt: skip
    assert (np.sqrt((rows**2).sum(axis=1)) <= 3.0).all()


def test_a_record_without_weight_contributes_nothing():
    rng = np.random.default_rng(0)
    X, target = rng.normal(size=(20, 3)), rng.integers(2, size=20)
    target[4] = 2
    settings = {
        "n_outputs": 3, "fit_intercept": True, "row_bound": 3.0,
        "class_weight": np.array([1.0, 2.0, 0.0]),
    }  # fmt: skip
    kept = np.arange(20) != 4
    weightless = PenalizedLoss(X, target, Logistic(), **settings)
    without = PenalizedLoss(X[kept], target[kept], Logistic(), **settings)
    coef = rng.normal(size=12)
    assert weightless.gradient_sum(coef) == pytest.approx(without.gradient_sum(coef), rel=1e-13)
    assert weightless.hessian(coef) == pytest.approx(without.hessian(coef), rel=1e-13)


def test_the_number_of_records_is_not_read_where_it_is_private():
    model = ObjectivePerturbation(neighboring_relation="add_or_remove_one", n_ref=400)
    one, other = model.plan(300, 5), model.plan(500, 5)
    assert (one.penalty, one.tolerance) == (other.penalty, other.tolerance)


def test_the_largest_class_weight_multiplies_noise_and_penalty():
    plain = ObjectivePerturbation(class_weight={}).plan(1000, 10)
    heavy = ObjectivePerturbation(class_weight={1: 5.0}).plan(1000, 10)
    light = ObjectivePerturbation(class_weight={0: 0.5, 1: 0.25}).plan(1000, 10)
    assert heavy.tilt.sensitivity == 5 * plain.tilt.sensitivity
    assert light.tilt.sensitivity == 0.5 * plain.tilt.sensitivity
    assert heavy.penalty == pytest.approx(5 * plain.penalty)
