"""The averaged gradients, the choices and the books of adaptive descent, and bugs in them."""

import numpy as np
import planted_bugs
import pytest

from dpglm import DPAGDClassifier
from dpglm.audit import audit_choices, audit_scores, canary_scores, choice_counts
from dpglm.datasets import make_census
from dpglm.estimators import solvers
from dpglm.privacy import selection
from dpglm.privacy import vault as vaults
from dpglm.privacy.events import SelectionEvent

RELATIONS = [
    {"neighboring_relation": "zero_out"},
    {"neighboring_relation": "replace_one"},
    {"neighboring_relation": "add_or_remove_one", "n_ref": 5000},
]


def averaged_gradients(monkeypatch, **relation):
    """Audit a fit that refines its first gradient, because its first choice is no step."""
    original, releases = selection.ExponentialSelection.release, []

    def release(self, scores, rng):
        releases.append(self)
        if len(releases) == 1:
            return 0, SelectionEvent(self.epsilon)
        return original(self, scores, rng)

    monkeypatch.setattr(selection.ExponentialSelection, "release", release)
    # One gradient, one refinement of the same cost, and no budget for more.
    model = DPAGDClassifier(
        **planted_bugs.ADAPTIVE | {"n_splits": 2.0, "selection_share": 0.01},
        preconditioner=None, budget_growth=0.9, n_steps=2, **relation,
    )  # fmt: skip
    return audit_scores(canary_scores(model, n_canaries=2000, container="sparse"))


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_the_averaged_gradients_of_agd_pass(relation, monkeypatch):
    result = averaged_gradients(monkeypatch, **relation)
    assert result.passed, result.violations
    assert result.shift > 0.7, "the canaries must show"


def reused_gradient(monkeypatch):
    """A refinement that returns the first release again adds no precision."""
    original, kept = vaults.GaussianSum.release, []

    def release(self, value, rng):
        kept[:] = kept if kept and len(kept[0]) == len(value) else [original(self, value, rng)[0]]
        return kept[0], original(self, value, rng)[1]

    monkeypatch.setattr(vaults.GaussianSum, "release", release)


@pytest.mark.parametrize(
    "plant",
    [
        planted_bugs.scaled_noise(0.5),
        reused_gradient,
        planted_bugs.changed_sum(planted_bugs.doubled),
    ],
)
def test_a_planted_bug_in_the_averaged_gradients_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    assert not averaged_gradients(monkeypatch).passed


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_the_choices_of_agd_have_the_law_that_is_charged(relation):
    counts = choice_counts(DPAGDClassifier(epsilon=3.0, **relation), n_fits=500)
    result = audit_choices(counts)
    assert result.passed, result.violations
    assert result.epsilon_lower_bound > 0.6 * result.epsilon_claimed, "the choices must show"


def agd_books(monkeypatch):
    """Return what the noise that was drawn costs, and what the filter was charged."""
    costs = []
    gaussian, uniform = vaults.rounded_gaussian, selection.uniform_below

    def draw_gaussian(size, scale, rng):
        std = scale * vaults.grid_spacing(2.5 * mechanism[-1].noise_multiplier)
        costs.append((2.5 / std) ** 2)
        return gaussian(size, scale, rng)

    def draw_uniform(bound, rng):
        costs.append(plan.selection_cost)
        return uniform(bound, rng)

    mechanism = []
    original = vaults.GaussianSum.release

    def release(self, value, rng):
        mechanism.append(self)
        return original(self, value, rng)

    monkeypatch.setattr(vaults.GaussianSum, "release", release)
    monkeypatch.setattr(vaults, "rounded_gaussian", draw_gaussian)
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
    original = solvers.note

    def note(trace, vault, iteration, release, *rest):
        if release == "refinement":
            vault._allowance._costs.pop()
        original(trace, vault, iteration, release, *rest)

    monkeypatch.setattr(solvers, "note", note)
    drawn, charged = agd_books(monkeypatch)
    assert drawn > 1.01 * charged
