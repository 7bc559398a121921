"""Output perturbation: the distance of minimisers, and the noise that covers it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

from dpglm.baselines import perturbation, records
from dpglm.baselines.perturbation import (
    OutputPerturbation,
    PerturbationMixin,
    Problem,
    minimizer_sensitivity,
)
from dpglm.baselines.records import PenalizedLoss, joint_lipschitz
from dpglm.datasets import make_census
from dpglm.losses import Logistic, SmoothedHinge, Softmax
from dpglm.privacy.gaussian import GaussianEvent, gdp_mu

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]


def test_the_sensitivity_is_that_of_the_vectors(vectors):
    """There the penalty is that of the mean loss."""
    for row in vectors("baselines", "minimizer_sensitivity"):
        penalty = row["lam"] * row["n"]
        zero_out = minimizer_sensitivity(row["L"], penalty, "zero_out")
        assert zero_out == pytest.approx(row["sens_exact_min_zero_out"], rel=1e-12)
        assert zero_out == minimizer_sensitivity(row["L"], penalty, "add_or_remove_one")
        replaced = minimizer_sensitivity(row["L"], penalty, "replace_one")
        assert replaced == pytest.approx(row["sens_exact_min_replace"], rel=1e-12)


def pulled(bound, penalty):
    """Short rows that pull the minimiser away, and one long row that it gets wrong."""
    x = bound / 200
    n_short = int(40 * penalty / bound / x)
    short = np.full((n_short, 1), -x)
    return np.vstack([short, [[bound]]]), np.ones(n_short + 1)


def standardised_shift(model, X, y, other=None):
    """Distance between the minimisers with and without the last record, over the noise's std.

    With ``other`` the record is replaced. The output is one number with Gaussian noise, whose mean
    alone depends on the data: it is exactly shift-GDP for the two data sets.
    """
    n = len(X)
    plan = model.plan(n, X.shape[1])
    found = []
    neighbour = (X[:-1], y[:-1]) if other is None else (np.vstack([X[:-1], other[0]]), other[1])
    for rows, target in ((X, y), neighbour):
        objective = model._make_holder(rows, target, 2, None)
        found.append(objective.minimizer(plan.penalty, plan.tolerance, n_samples=n))
    return float(np.linalg.norm(found[0] - found[1])) / plan.output.noise_std(found[0].size)


def replaced(X, y):
    return X[-1:], np.append(y[:-1], -1.0)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_claim_bounds_the_shift_and_is_nearly_reached(relation):
    X, y = pulled(3.5, 20.0)
    model = OutputPerturbation(
        row_bound=3.5, alpha=20.0 / len(X), fit_intercept=False, neighboring_relation=relation
    )
    mu = gdp_mu(model.epsilon, model.delta)
    assert 0.8 * (1.0 if relation == "zero_out" else 0.5) * mu < standardised_shift(model, X, y)
    assert standardised_shift(model, X, y) <= mu
    if relation == "replace_one":
        assert standardised_shift(model, X, y, replaced(X, y)) <= mu


def test_random_neighbours_stay_within_the_claim_with_an_intercept():
    rng = np.random.default_rng(0)
    for _ in range(25):
        n = rng.integers(2, 30)
        X = rng.normal(size=(n, 3)) * 10 ** rng.uniform(-2, 1)
        y = rng.choice([-1.0, 1.0], n)
        model = OutputPerturbation(alpha=10 ** rng.uniform(-4, 1))
        assert standardised_shift(model, X, y) <= gdp_mu(1.0, 1e-6)


def wrong_lipschitz(change):
    def plant(monkeypatch):
        original = PerturbationMixin._problem

        def problem(self, budget, facts):
            bounds = original(self, budget, facts)
            return replace(bounds, joint_lipschitz=change(bounds.joint_lipschitz))

        monkeypatch.setattr(PerturbationMixin, "_problem", problem)

    return plant


def smaller_penalty(monkeypatch):
    original = PenalizedLoss.minimizer

    def minimizer(self, penalty, tolerance, *, n_samples, tilt=0.0):
        return original(self, penalty / 2, tolerance, n_samples=n_samples, tilt=tilt)

    monkeypatch.setattr(PenalizedLoss, "minimizer", minimizer)


BUGS = {
    "rows of norm 1": wrong_lipschitz(lambda lipschitz: 1.0),
    "half of the sensitivity": wrong_lipschitz(lambda lipschitz: lipschitz / 2),
    "half of the penalty": smaller_penalty,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught_by_the_shift(bug, monkeypatch):
    BUGS[bug](monkeypatch)
    X, y = pulled(3.5, 20.0)
    model = OutputPerturbation(row_bound=3.5, alpha=20.0 / len(X), fit_intercept=False)
    assert standardised_shift(model, X, y) > 1.5 * gdp_mu(1.0, 1e-6)


def test_replace_one_with_the_noise_of_zero_out_is_caught(monkeypatch):
    """Two opposite records, either of which the rest contradicts."""
    monkeypatch.setattr(perturbation, "minimizer_sensitivity", lambda L, p, relation: L / p)
    weights = {0: 1.0, 1: 1.0}
    X, y = np.array([[3.0], [3.0]]), np.array([1.0, 1.0])
    model = OutputPerturbation(
        neighboring_relation="replace_one", alpha=1e3, fit_intercept=False, class_weight=weights
    )
    halves = standardised_shift(model, X, y, replaced(X, y))
    # With a penalty so large every slope is a half: half of the sensitivity, and all of half of it.
    assert halves == pytest.approx(gdp_mu(1.0, 1e-6), rel=0.01)
    monkeypatch.undo()
    honest = standardised_shift(model, X, y, replaced(X, y))
    assert honest == pytest.approx(gdp_mu(1.0, 1e-6) / 2, rel=0.01)


def test_the_minimiser_is_released_with_the_charged_noise():
    """Without data it is zero."""
    d = 2000
    model = OutputPerturbation(alpha=1.0, fit_intercept=False).fit(np.zeros((2, d)), [0, 1])
    ((event, count),) = model.privacy_.events
    assert event == GaussianEvent(model.plan(2, d).output.noise_multiplier) and count == 1
    assert model.privacy_.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    std = 3.0 / 2.0 * event.noise_multiplier
    low, high = chi2.ppf([1e-6, 1 - 1e-6], d)
    assert low < (model.coef_**2).sum() / std**2 < high
    assert model.trace_.output_std == pytest.approx(std, rel=1e-5) and model.trace_.tilt_std == 0


def test_the_error_of_the_solver_adds_to_the_sensitivity(monkeypatch):
    monkeypatch.setattr(Problem, "attainable_tolerance", lambda *args: 1.5)
    plan = OutputPerturbation(alpha=0.1, row_bound=3.0).plan(100, 5)
    assert plan.tolerance == 1.5 and plan.max_n_samples == 100
    expected = plan.output.noise_multiplier * (3.0 + 2 * 1.5) / plan.penalty
    assert plan.output.noise_std(6) == pytest.approx(expected, rel=1e-6)


def test_a_minimiser_that_is_not_reached_releases_nothing(monkeypatch):
    monkeypatch.setattr(Problem, "attainable_tolerance", lambda *args: 1e-30)
    monkeypatch.setattr(records, "_MAX_STEPS", 30)
    X, y = make_census(300, random_state=0)
    with pytest.raises(RuntimeError, match="nothing was released") as info:
        OutputPerturbation().fit(X, y)
    assert not hasattr(info.value, "privacy_ledger"), "no noise was drawn"


def test_softmax_without_noise_is_the_multinomial_optimum():
    X, _ = make_census(1500, random_state=0)
    y = np.random.default_rng(0).integers(3, size=len(X)) * (X[:, 0] > 0.4)
    model = OutputPerturbation(epsilon=math.inf, alpha=1e-2, row_bound=10.0).fit(X, y)
    rows = np.column_stack([X, np.ones(len(X))])
    settings = {"fit_intercept": False, "tol": 1e-12, "max_iter": 10_000}
    reference = LogisticRegression(C=1 / (len(X) * 1e-2), **settings).fit(rows, y)
    found = np.column_stack([model.coef_, model.intercept_])
    assert found == pytest.approx(reference.coef_, abs=1e-5)
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(rows), abs=1e-5)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(), SmoothedHinge()])
def test_no_record_exceeds_the_joint_bound(loss):
    rng = np.random.default_rng(0)
    for n_outputs in (2, 3, 10):
        scores = rng.normal(size=(2000, n_outputs)) * 10 ** rng.uniform(-1, 2, (2000, 1))
        target = rng.integers(n_outputs, size=2000)
        norms = np.linalg.norm(loss.derivative(scores, target), axis=1)
        bound = joint_lipschitz(loss, n_outputs)
        assert 0.6 * bound < norms.max() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_automatic_penalty_keeps_the_noise_on_scores_small(relation):
    n_ref = 1000 if relation == "add_or_remove_one" else None
    model = OutputPerturbation(neighboring_relation=relation, n_ref=n_ref)
    plan = model.plan(1000, 20)
    assert plan.output.noise_std(21) * 3.0 == pytest.approx(1 / 3, rel=1e-4)
    assert plan.ledger.epsilon() == pytest.approx(1.0, rel=1e-6)
