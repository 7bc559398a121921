"""The plan: the whole schedule calibrated exactly, before any data."""

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from strategies import RELATIONS, under
from tapes import on_tape

from dpglm import DPLinearSVM, DPLogisticRegression, PrivacyCalculator
from dpglm.estimators.plan import make_plan
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import GaussianSum, Vault
from dpglm.schedules import (
    Constant,
    DecayingClip,
    DynamicNoise,
    ExponentialDecay,
    Polynomial,
    PublicMetadata,
    averaging_weights,
)
from dpglm.sums.objective import Objective

FACTS = PublicMetadata(n_samples=1000, n_features=11, n_outputs=1, alpha=0.01, curvature=0.25)


def plan_of(budget=None, metadata=FACTS, **changes):
    arguments = {
        "n_iter": 50,
        "clip_schedule": Constant(1.0),
        "noise_schedule": Constant(),
        "step_schedule": Constant(0.5),
        **changes,
    }
    return make_plan(budget or PrivacyBudget(1.0, 1e-6), metadata, **arguments)


def test_constant_noise_matches_the_vectors(vectors):
    for row in vectors("conversions", "calibrate_constant_noise"):
        budget = PrivacyBudget(row["eps"], row["delta"])
        z = plan_of(budget, n_iter=row["T"]).noise_multiplier
        assert z == pytest.approx(row["noise_multiplier_add_remove"], rel=2e-9)
        replace = PrivacyBudget(row["eps"], row["delta"], "replace_one")
        plan = plan_of(replace, n_iter=row["T"])
        noise_over_clip = plan.noise_multiplier * plan.sensitivity / plan.clip
        assert noise_over_clip == pytest.approx(row["noise_multiplier_replace_one"], rel=2e-9)


FIXED = {"preconditioner": None, "max_iter": "budget"}


def test_fixed_noise_lasts_longer_where_the_clip_falls():
    """By hand: at half of the clip an iteration costs a quarter, of 100 at the first price."""
    z = PrivacyCalculator().noise_multiplier(epsilon=1.0, delta=1e-6, n_iter=100)
    falling = np.sum((1 + np.arange(100) / 100) ** -2.0)
    for clip, n_iter in (
        (3.0, 100),
        (DecayingClip(3.0, horizon=100), 100 + math.floor(4 * (100 - falling))),
        (ExponentialDecay(8.0, 0.999, floor=7.9999), 100),
    ):
        model = DPLogisticRegression(noise_multiplier=z, clip_schedule=clip, **FIXED)
        plan = model.plan(1000, 5)
        assert (plan.n_iter, plan.noise_multiplier[0]) == (n_iter, z)
        assert plan.metadata.noise_std == pytest.approx(
            np.full(n_iter, plan.clip[0] * z), rel=1e-12
        )
        assert 0.98 < plan.ledger.epsilon() <= 1.0
    replaced = clone(model).set_params(neighboring_relation="replace_one").plan(1000, 5)
    assert (
        replaced.n_iter == 100 and replaced.metadata.noise_std[0] == 2 * plan.metadata.noise_std[0]
    )


def test_fixed_noise_pays_for_a_second_moment_first_and_takes_any_shape():
    white = DPLogisticRegression(max_iter="budget", noise_multiplier=40.0)
    plan = white.plan(20_000, 5)
    assert 1 < plan.n_iter < DPLogisticRegression(noise_multiplier=40.0, **FIXED).plan(1, 5).n_iter
    one_more = PrivacyLedger(
        (*plan.ledger.events, (GaussianEvent(40.0), 1)), "zero_out", reporting_delta=1e-6
    )
    assert plan.ledger.epsilon() <= 1.0 < one_more.epsilon()
    rising = clone(white).set_params(
        preconditioner=None, noise_schedule=ExponentialDecay(1.0, 1.001)
    )
    plan = rising.plan(100, 5)
    assert plan.noise_multiplier == pytest.approx(40.0 * 1.001 ** np.arange(plan.n_iter))


@pytest.mark.parametrize("rate", [0.99, 1.0])
def test_batches_of_all_records_cost_as_much_as_all_records(rate):
    model = DPLogisticRegression(neighboring_relation="replace_one", noise_multiplier=40.0, **FIXED)
    whole = model.plan(50, 3).ledger
    assert (
        model.set_params(batches="without_replacement", sampling_rate=rate).plan(50, 3).ledger
        == whole
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "z", "clip"), [(0.05, 1.5, 1.0), (0.2, 3.0, Polynomial(12.0, 6.0, horizon=5))]
)
def test_a_run_on_batches_is_as_long_as_an_accountant_finds(rate, z, clip):
    model = DPLinearSVM(
        sampling_rate=rate, noise_multiplier=z, clip_schedule=clip, delta=1e-5, **FIXED
    )
    plan = model.plan(1000, 5)
    events = [event for event, n in plan.ledger.events for _ in range(n)]
    spent = []
    for run in (events, [*events, *events[-1:] * math.ceil(plan.n_iter / 1000)]):
        ledger = PrivacyLedger.from_events(run, reporting_delta=1e-5)
        accountant = PLDAccountant(ledger.dp_accounting_relation)
        spent.append(accountant.compose(ledger.to_dp_event()).get_epsilon(1e-5))
    assert spent[0] <= 1.0 < spent[1]
    assert (plan.noise_multiplier >= z * plan.clip[0] / plan.clip * (1 - 1e-12)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_iter": "auto"}, "give max_iter='budget' and a noise_multiplier, or neither"),
        ({"noise_multiplier": None}, "give max_iter='budget' and a noise_multiplier, or neither"),
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0 must be a number above 0"),
        ({"noise_multiplier": 3.0}, "is too small for one iteration"),
        ({"noise_multiplier": 1e6}, "more than 100,000 iterations"),
        ({"epsilon": math.inf}, "needs a finite epsilon"),
        ({"clip_schedule": math.inf}, "gave inf in iteration 1"),
        (
            {"noise_multiplier": 50.0, "noise_schedule": ExponentialDecay(1.0, 1.1)},
            "too many orders",
        ),
    ],
)
def test_a_run_that_the_budget_cannot_decide_is_refused_in_words(changes, message):
    model = DPLogisticRegression(**{**FIXED, "noise_multiplier": 5.0, **changes})
    with pytest.raises(ValueError, match=message):
        model.plan(1000, 5)


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(0.05, 8),
    n_iter=st.integers(1, 300),
    clip=st.sampled_from([Constant(0.3), ExponentialDecay(5.0, 0.99), DecayingClip(2.0)]),
    noise=st.sampled_from([Constant(7.0), ExponentialDecay(1.0, 1.01), DynamicNoise(decay=4.0)]),
    relation=st.sampled_from(RELATIONS),
)
def test_the_ledger_spends_the_budget_and_never_more(epsilon, n_iter, clip, noise, relation):
    budget = PrivacyBudget(epsilon, 1e-7, **under(relation, 900))
    plan = plan_of(budget, n_iter=n_iter, clip_schedule=clip, noise_schedule=noise)
    reached = plan.ledger.epsilon(1e-7)
    assert epsilon * (1 - 1e-6) <= reached <= epsilon
    assert plan.ledger.n_releases == n_iter


def test_the_noise_schedule_shapes_the_standard_deviation_whatever_the_clip():
    plan = plan_of(clip_schedule=DecayingClip(3.0), noise_schedule=ExponentialDecay(1.0, 0.9))
    std = plan.noise_multiplier * plan.sensitivity
    assert std[1:] / std[:-1] == pytest.approx(0.9, rel=1e-12)
    assert std == pytest.approx(plan.metadata.noise_std, rel=1e-12)
    assert plan.clip[0] == 3.0 and plan.clip[-1] == pytest.approx(3.0 / 1.98)


def test_an_infinite_epsilon_draws_no_noise_and_needs_no_clip():
    plan = plan_of(PrivacyBudget(math.inf, 1e-6), clip_schedule=Constant(math.inf))
    assert (plan.noise_multiplier == 0).all() and (plan.metadata.noise_std == 0).all()
    assert plan.ledger.mu() == math.inf
    sums = Objective(np.eye(4, 10), np.ones(4), Logistic())
    vault = Vault(sums, plan.ledger.events, PrivacyBudget(math.inf, 1e-6), entropy_source(0))
    coef = np.zeros(11)
    total = vault.gradient_sum(coef, plan.clip[0], plan.noise_multiplier[0])
    assert (total == sums.gradient_sum(coef, math.inf)).all()
    assert vault.log[0].noise_scale == 0.0 and not vault.has_drawn


def test_a_release_has_the_sensitivity_and_multiplier_of_its_step_and_pays_for_rounding():
    budget = PrivacyBudget(1.0, 1e-6, "replace_one")
    plan = plan_of(budget, clip_schedule=ExponentialDecay(2.0, 0.5), n_iter=3)
    sums = Objective(np.eye(1000, 10), np.ones(1000), Logistic())
    slack = sums.rounding_slack(1000)
    with on_tape() as recorded:
        vault = Vault(sums, plan.ledger.events, budget, entropy_source(0))
        for clip, noise_multiplier in zip(plan.clip, plan.noise_multiplier, strict=True):
            vault.gradient_sum(np.zeros(11), clip, noise_multiplier)
    assert plan.sensitivity.tolist() == [4.0, 2.0, 1.0]
    for t, release in enumerate(recorded.releases):
        assert release.event.noise_multiplier == plan.noise_multiplier[t]
        charged = plan.sensitivity[t] + slack * plan.clip[t]
        assert release.sensitivity == pytest.approx(charged, rel=1e-15)
        assert release.sensitivity > plan.sensitivity[t]
        rounded = GaussianSum(plan.sensitivity[t], plan.noise_multiplier[t], slack * plan.clip[t])
        assert vault.log[t].noise_scale == rounded.noise_std(11)


def test_rounding_is_paid_for_more_records_than_a_private_number_can_hold():
    private = plan_of(PrivacyBudget(1.0, 1e-6, "add_or_remove_one", 1000))
    assert private.max_n_samples == 16_000
    assert plan_of().max_n_samples == 1000


def test_the_plan_cannot_be_changed():
    plan = plan_of()
    with pytest.raises(ValueError, match="read-only"):
        plan.noise_multiplier[0] = 1.0
    with pytest.raises(AttributeError):
        plan.clip = np.ones(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"clip_schedule": Constant(x)}, "clip_schedule=.* rescale") for x in (1e-200, 1e200)),
        *(({"n_iter": n}, "max_iter=") for n in (0, -1, 2.0, True, "5")),
        ({"n_iter": 10**9}, "above 100,000: the plan lists every iteration"),
        ({"noise_schedule": ExponentialDecay(1.0, 1e30), "n_iter": 10}, "too many orders of magn"),
        ({"noise_schedule": ExponentialDecay(1.0, 0.99), "n_iter": 5000}, "too many orders of m"),
    ],
)
def test_a_plan_that_no_fit_could_follow_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan_of(**changes)


def test_a_budget_too_small_for_the_schedule_says_which_epsilon_would_do():
    with pytest.raises(ValueError, match=r"epsilon=1e-09 .* too small .* Raise epsilon to") as info:
        plan_of(PrivacyBudget(1e-9, 1e-12), n_iter=1000)
    enough = float(str(info.value).split("Raise epsilon to about ")[1].split(",")[0])
    assert plan_of(PrivacyBudget(enough * 1.01, 1e-12), n_iter=1000).n_iter == 1000
    with pytest.raises(ValueError):
        plan_of(PrivacyBudget(enough * 0.95, 1e-12), n_iter=1000)


def test_averaging_weights_follow_their_definitions():
    assert averaging_weights(None, 4).tolist() == [0, 0, 0, 1]
    assert averaging_weights("tail", 5).tolist() == [0, 0, 1 / 3, 1 / 3, 1 / 3]
    assert averaging_weights(0.3, 10) == pytest.approx([0] * 7 + [1 / 3] * 3)
    assert averaging_weights(1.0, 4).tolist() == averaging_weights("uniform", 4).tolist()
    # The start counts as t = 1, and w_1 = 0 adds nothing: weights t = 2, 3, 4 remain.
    assert averaging_weights("t_weighted", 3) == pytest.approx([2 / 9, 3 / 9, 4 / 9])


@pytest.mark.parametrize("averaging", ["mean", 3, [1], 0.0, -0.5, True, np.nan])
def test_an_unknown_averaging_is_refused(averaging):
    with pytest.raises(ValueError, match=r"averaging=.* is unknown; choose None"):
        averaging_weights(averaging, 3)
