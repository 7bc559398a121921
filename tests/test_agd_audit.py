"""The averaged gradients, the choices and the books of adaptive descent, and bugs in them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import diags_array
from scipy.stats import chisquare, norm

from dpglm import DPAGDClassifier
from dpglm.audit.report import CanaryScores, audit_scores
from dpglm.datasets import make_census
from dpglm.estimators import solvers as agd
from dpglm.estimators.adaptive_plan import make_adaptive_plan
from dpglm.losses import Logistic
from dpglm.privacy import mechanisms
from dpglm.privacy import mechanisms as selection
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import SelectionEvent
from dpglm.privacy.noise import entropy_source
from dpglm.schedules import Constant, PublicFacts
from dpglm.sums.objective import Objective

DELTA = 1e-6


def half_noise(monkeypatch):
    original = mechanisms.rounded_gaussian
    monkeypatch.setattr(
        mechanisms, "rounded_gaussian", lambda size, scale, rng: original(size, scale / 2, rng)
    )


def agd_plan(relation, **changes):
    """Half of mu = 1 for the first gradient, half for one refinement, almost nothing to choose."""
    plan = make_adaptive_plan(
        PrivacyBudget(5.0, DELTA, relation, 5000 if relation == "add_or_remove_one" else None),
        PublicFacts(n_samples=5000, n_features=5000),
        max_iter=10,
        clip_schedule=Constant(0.1),
        n_splits=2,
        selection_share=0.2,
        budget_growth=1.0,
        selection="exponential",
        loss_clip=None,
        n_steps=2,
        max_step=0.01,
        step_update_every=10,
        step_growth=0.1,
        accountant="gdp",
    )
    costs = {"capacity": 1.002, "gradient_cost": 0.5, "selection_cost": 1e-3}
    return replace(plan, **{**costs, **changes})


def agd_audit(monkeypatch, relation, seed=0):
    """Score canaries by the direction of a refined gradient, as seen through ``on_step``."""
    script = iter([0, 1])
    monkeypatch.setattr(
        selection.ExponentialSelection,
        "release",
        lambda self, scores, rng: (next(script), SelectionEvent(self.epsilon)),
    )
    plan, clip, n = agd_plan(relation), 0.1, 5000
    coins = np.random.default_rng(seed).random(n) < 0.5
    flips = relation == "replace_one"
    X = diags_array(8 * clip * (np.ones(n) if flips else coins.astype(float))).tocsr()
    target = np.where(coins, 1.0, -1.0) if flips else np.ones(n)
    objective = Objective(X, target, Logistic(), fit_intercept=False)
    iterates = []
    trace = agd.adaptive_gradient_descent(
        objective, plan, entropy_source(), on_step=lambda t, coef: iterates.append(coef)
    )
    assert trace.release == ["gradient", "selection", "refinement", "selection"]
    std = plan.budget.sensitivity(clip)  # what a precision of mu^2 = 1 leaves
    length = np.sqrt((n if flips else coins.sum()) * clip**2 + n * std**2)
    scores = iterates[0] / trace.step[-1] * length / std
    shift = plan.budget.sensitivity(clip) / std
    return audit_scores(CanaryScores(scores + flips * shift / 2, coins, shift, mu=1.0))


RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_averaged_gradients_of_agd_pass(relation, monkeypatch):
    result = agd_audit(monkeypatch, relation)
    assert result.passed, result.violations
    assert result.shift > 0.8, "the canaries must show"


def reused_gradient(monkeypatch):
    """A refinement that returns the first release again adds no precision."""
    original, kept = mechanisms.GaussianSum.release, []

    def release(self, value, rng):
        kept[:] = kept or [original(self, value, rng)[0]]
        return kept[0], original(self, value, rng)[1]

    monkeypatch.setattr(mechanisms.GaussianSum, "release", release)


def doubled_gradient(monkeypatch):
    original = Objective.gradient_sum
    monkeypatch.setattr(
        Objective, "gradient_sum", lambda self, coef, clip: 2 * original(self, coef, clip)
    )


@pytest.mark.parametrize("bug", [half_noise, reused_gradient, doubled_gradient])
def test_a_planted_bug_in_the_gradients_of_agd_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    assert not agd_audit(monkeypatch, "zero_out").passed


def p_value_of_choices(relation, n_draws):
    """Chi-squared test of the solver's own mechanism against a law worked out on its own."""
    plan = agd_plan(relation, selection_cost=0.09)
    mechanism = plan.selection_mechanism(0, plan.max_step, 0.0)
    epsilon = 2 * np.log(norm.cdf(0.15) / norm.cdf(-0.15))
    bound = 0.01 * 0.1 * (2 if relation == "replace_one" else 1)
    scores = np.array([0.0, 0.5, 2.0, 4.0]) * bound / epsilon
    law = np.exp(scores * epsilon / bound)
    rng = entropy_source()
    draws = [mechanism.release(scores, rng)[0] for _ in range(n_draws)]
    return chisquare(np.bincount(draws, minlength=4), law / law.sum() * n_draws).pvalue


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_choices_of_agd_have_the_law_that_is_charged(relation):
    assert p_value_of_choices(relation, 200_000) > 1e-6


def test_halved_noise_on_the_choices_is_caught(monkeypatch):
    original = selection.ExponentialSelection.scale.fget
    monkeypatch.setattr(
        selection.ExponentialSelection, "scale", property(lambda self: original(self) / 2)
    )
    assert p_value_of_choices("zero_out", 20_000) < 1e-6


def test_a_range_that_is_not_doubled_under_replace_one_is_caught(monkeypatch):
    monkeypatch.setattr(PrivacyBudget, "sensitivity", lambda self, clip: clip)
    assert p_value_of_choices("replace_one", 20_000) < 1e-6


def agd_books(monkeypatch):
    """Return what the noise that was drawn costs, and what the filter was charged."""
    costs = []
    gaussian, uniform = mechanisms.rounded_gaussian, selection.uniform_below

    def draw_gaussian(size, scale, rng):
        std = scale * mechanisms.grid_spacing(2.5 * mechanism[-1].noise_multiplier)
        costs.append((2.5 / std) ** 2)
        return gaussian(size, scale, rng)

    def draw_uniform(bound, rng):
        costs.append(plan.selection_cost)
        return uniform(bound, rng)

    mechanism = []
    original = mechanisms.GaussianSum.release

    def release(self, value, rng):
        mechanism.append(self)
        return original(self, value, rng)

    monkeypatch.setattr(mechanisms.GaussianSum, "release", release)
    monkeypatch.setattr(mechanisms, "rounded_gaussian", draw_gaussian)
    monkeypatch.setattr(selection, "uniform_below", draw_uniform)
    model = DPAGDClassifier(epsilon=3.0, n_steps=1, accountant="gdp", clip_schedule=2.5)
    X, y = make_census(300, random_state=0)
    plan = model.plan(*X.shape)
    trace = model.fit(X, y).trace_
    assert "refinement" in trace.release
    return np.sum(costs), plan.capacity - trace.remaining[-1]


def test_the_books_of_agd_balance(monkeypatch):
    drawn, charged = agd_books(monkeypatch)
    assert drawn == pytest.approx(charged, rel=1e-6)


def test_a_refinement_that_is_not_charged_is_caught(monkeypatch):
    original = agd._PaidReleases.gradient_sum

    def gradient_sum(self, t, coef, cost, max_step, release):
        noisy_total = original(self, t, coef, cost, max_step, release)
        if release == "refinement":
            self.budget._costs.pop()
        return noisy_total

    monkeypatch.setattr(agd._PaidReleases, "gradient_sum", gradient_sum)
    drawn, charged = agd_books(monkeypatch)
    assert drawn > 1.01 * charged
