"""Approximate minima perturbation: published constants, corrected, and what they really cost."""

import math

import numpy as np
import pytest

from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
    jacobian_offset,
    published_parameters,
)
from dpglm.baselines.records import PenalizedLoss
from dpglm.datasets import make_census
from dpglm.losses import Logistic
from dpglm.privacy.gaussian import gdp_epsilon

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]


def cost_of(ledger):
    """Epsilon of a ledger in closed form."""
    (tilted, n_outputs), (output, _) = ledger.events
    mu = math.sqrt(n_outputs * tilted.unshifted.mu**2 + output.mu**2)
    return n_outputs * tilted.offset + gdp_epsilon(mu, ledger.reporting_delta)


def test_constants_are_the_published_ones_with_twice_the_noise_on_the_minimiser(vectors):
    """The vectors are on the scale of the mean loss, with L^2 for the smoothness."""
    for row in vectors("baselines", "approximate_minima_parameters"):
        n, lipschitz = row["n"], row["L"]
        bounds = {"smoothness": lipschitz**2, "sensitivity": 2 * lipschitz}
        parameters = published_parameters(row["eps"], row["delta"], **bounds, n_samples=n)
        assert parameters.penalty / n == pytest.approx(row["Lambda_over_n"], rel=1e-9)
        assert parameters.tilt_std / n == pytest.approx(row["std_obj"], rel=1e-9)
        assert parameters.tolerance / n == pytest.approx(row["gamma"], rel=1e-9)
        assert parameters.output_std == pytest.approx(2 * row["std_out"], rel=1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_ledger_never_exceeds_the_budget(relation, epsilon, n_classes):
    n_ref = 2000 if relation == "add_or_remove_one" else None
    model = ApproximateMinimaPerturbation(
        epsilon=epsilon, neighboring_relation=relation, n_ref=n_ref
    )
    plan = model.plan(2000, 10, n_classes=n_classes)
    assert 0.1 * epsilon < cost_of(plan.ledger) < 0.9 * epsilon
    factor = 2 if relation == "replace_one" else 1
    assert plan.tilt.sensitivity == factor * 3.0


def test_the_fit_draws_what_the_plan_says():
    X, y = make_census(800, random_state=0)
    model = ApproximateMinimaPerturbation(epsilon=2.0).fit(X, y)
    plan = model.plan(*X.shape)
    size = X.shape[1] + 1
    expected = published_parameters(2.0, 1e-6, smoothness=9.0 / 4, sensitivity=3.0, n_samples=800)
    assert model.trace_.penalty == pytest.approx(expected.penalty)
    assert model.trace_.tilt_std == pytest.approx(expected.tilt_std, rel=1e-6)
    assert model.trace_.output_std == pytest.approx(expected.output_std, rel=1e-4)
    assert model.privacy_ == plan.ledger
    assert model.trace_.output_std == plan.output.noise_std(size)


def test_the_noise_on_the_minimiser_covers_both_ends_of_the_tolerance():
    """Minimisers that pass the check of the solver may lie on opposite sides of the exact one."""
    plan = ApproximateMinimaPerturbation(alpha=0.1, fit_intercept=False).plan(1000, 1)
    objective = PenalizedLoss(
        np.zeros((1, 1)), np.ones(1), Logistic(), n_outputs=1, fit_intercept=False, row_bound=3.0
    )
    ends = np.array([-1.0, 1.0]) * plan.tolerance / plan.penalty
    for end in ends:
        slope = objective.gradient(np.array([end]), plan.penalty)
        assert np.linalg.norm(slope) <= plan.tolerance * (1 + 1e-12)
    covered = plan.output.noise_std(1) / plan.output.noise_multiplier
    assert ends[1] - ends[0] <= covered < 1.01 * (ends[1] - ends[0])


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_where_the_published_noise_is_too_small_more_is_drawn(relation):
    model = ApproximateMinimaPerturbation(epsilon=100.0, neighboring_relation=relation)
    plan = model.plan(1000, 5)
    published = published_parameters(
        100.0, 1e-6, smoothness=2.25, sensitivity=plan.tilt.sensitivity, n_samples=1000
    )
    assert plan.tilt.noise_std(6) > 1.1 * published.tilt_std
    # Under replace-one the offset is charged for the published mu, which is larger.
    assert (99.0 if relation == "zero_out" else 70.0) < cost_of(plan.ledger) <= 100.0


def test_a_given_penalty_is_that_of_the_sum_and_its_offset_is_charged():
    plan = ApproximateMinimaPerturbation(alpha=1.0).plan(1000, 5)
    assert plan.penalty == 1000.0
    assert plan.offset == pytest.approx(jacobian_offset(2.25 / 1000, 1.0, "zero_out"))


def test_without_a_budget_it_is_the_penalised_optimum():
    X, y = make_census(500, random_state=0)
    settings = {"epsilon": math.inf, "alpha": 0.01}
    approximate = ApproximateMinimaPerturbation(**settings).fit(X, y)
    exact = ObjectivePerturbation(**settings).fit(X, y)
    # Its solver may stop at a gradient of 1 / n.
    assert approximate.coef_ == pytest.approx(exact.coef_, abs=1 / 500 / 5)
    assert not approximate.privacy_.protects


def test_more_than_two_classes_split_the_budget():
    X, y = make_census(800, random_state=0)
    model = ApproximateMinimaPerturbation(epsilon=20.0).fit(X, y + (X[:, 0] > 0.5))
    assert model.privacy_.events[0][1] == 3
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
