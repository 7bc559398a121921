"""DP-AGD: the corrected algorithm step by step, its filter, its surface."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression

from dpglm import DPAGDClassifier
from dpglm.datasets import make_census
from dpglm.estimators.adaptive_plan import make_adaptive_plan
from dpglm.estimators.solvers import adaptive_gradient_descent
from dpglm.losses import Logistic
from dpglm.privacy import mechanisms
from dpglm.privacy import mechanisms as selection
from dpglm.privacy.accounting import bun_steinke_rho
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import FilterEvent, SelectionEvent
from dpglm.privacy.noise import entropy_source
from dpglm.schedules import Constant, HeavyBall, PublicFacts
from dpglm.sums.objective import Objective

SETTING = {
    "max_iter": 100,
    "clip_schedule": Constant(3.0),
    "n_splits": 20,
    "selection_share": 0.2,
    "budget_growth": 0.5,
    "selection": "exponential",
    "loss_clip": None,
    "n_steps": 4,
    "max_step": 2.0,
    "step_update_every": 3,
    "step_growth": 0.5,
}


def plan_for(epsilon=1.0, delta=1e-8, relation="zero_out", n_ref=None, alpha=0.0, **changes):
    return make_adaptive_plan(
        PrivacyBudget(epsilon, delta, relation, n_ref),
        PublicFacts(n_samples=100, n_features=2, alpha=alpha),
        **{**SETTING, **changes},
    )


class Recorder(Objective):
    """A small data set that notes what is asked of it."""

    def __init__(self):
        rng = np.random.default_rng(0)
        super().__init__(
            rng.normal(size=(100, 2)), rng.choice([-1.0, 1.0], 100), Logistic(), fit_intercept=False
        )
        self.lines = []

    def line_losses(self, coef, direction, steps, **bound):
        self.lines.append((coef.copy(), direction.copy(), steps.copy(), bound))
        return super().line_losses(coef, direction, steps, **bound)


@pytest.fixture
def scripted(monkeypatch):
    """Let a script say which step every selection takes, and each sum come without noise."""

    def install(indices, sums=None):
        script, seen = iter(indices), []

        def choose(self, scores, rng):
            seen.append((self, scores))
            return next(script), SelectionEvent(self.epsilon)

        monkeypatch.setattr(selection.ExponentialSelection, "release", choose)
        if sums is not None:
            values = iter(sums)
            original = mechanisms.GaussianSum.release

            def release(self, value, rng):
                return next(values), original(self, value, rng)[1]

            monkeypatch.setattr(mechanisms.GaussianSum, "release", release)
        return seen

    return install


def test_the_course_of_the_budget_matches_the_vectors(vectors, scripted):
    for row in vectors("selection", "dpagd_trace"):
        scripted([int(outcome) for outcome in row["outcomes"]])
        plan = replace(
            plan_for(),
            capacity=row["budget"],
            gradient_cost=row["cost_grad"],
            selection_cost=row["cost_select"],
            budget_growth=row["gamma"],
        )
        trace = adaptive_gradient_descent(Recorder(), plan, entropy_source(0))
        names = {"grad": "gradient", "select": "selection", "refine": "refinement"}
        expected = [event for event in row["events"] if event[0] != "stop"]
        assert trace.release == [names[kind] for kind, *_ in expected]
        assert trace.cost == pytest.approx([cost for _, cost, _ in expected], abs=row["atol"])
        assert trace.remaining == pytest.approx([left for *_, left in expected], abs=row["atol"])
        assert len(trace.accepted_steps) == row["steps"]
        last = max(i for i, name in enumerate(trace.release) if name == "gradient")
        assert sum(
            cost
            for cost, name in zip(trace.cost[last:], trace.release[last:], strict=True)
            if name != "selection"
        ) == pytest.approx(row["final_cost_grad"], abs=row["atol"])


def test_averaged_gradients_match_the_vectors(vectors, scripted):
    """Unnormalised sums, weighted by their precision; each noisy on its own."""
    for row in vectors("selection", "gradavg"):
        first, second = np.array([3.0, 0.0]), np.array([0.0, 4.0])
        scripted([0, 1], [first, second])
        plan = replace(
            plan_for(accountant="zcdp"),
            gradient_cost=row["rho_old"],
            selection_cost=1e-6,
            budget_growth=(row["rho_new"] - row["rho_old"]) / row["rho_old"],
            capacity=row["rho_new"] + 2.5e-6,
        )
        objective = Recorder()
        trace = adaptive_gradient_descent(objective, plan, entropy_source(0))
        assert trace.release == ["gradient", "selection", "refinement", "selection"]
        std = [scale for scale, name in zip(trace.noise_scale, trace.release, strict=True)
               if name != "selection"]  # fmt: skip
        assert std[0] ** 2 == pytest.approx(row["var_first"], rel=1e-7)
        assert std[1] ** 2 == pytest.approx(row["var_second"], rel=1e-7)
        weight = row["weight_first"]
        combined = weight * first + (1 - weight) * second
        assert objective.lines[1][1] == pytest.approx(combined / np.linalg.norm(combined))
        variance = weight**2 * std[0] ** 2 + (1 - weight) ** 2 * std[1] ** 2
        assert variance == pytest.approx(row["var_combined"], rel=1e-7)


def test_the_published_constants_match_the_vectors(vectors):
    for row in vectors("selection", "dpagd_paper_parameters"):
        epsilon, delta, rel = row["eps_tot"], row["delta_tot"], row["rtol"]
        model = DPAGDClassifier.as_published(epsilon=epsilon, delta=delta)
        plan = model.plan(48842, 108)
        assert model.n_splits == row["splits"]
        assert plan.gradient_cost == pytest.approx(row["rho_ng"], rel=rel)
        assert plan.selection_cost == pytest.approx(row["rho_nmax_pure"], rel=rel)
        assert plan.selection_epsilon == pytest.approx(row["eps_step"], rel=rel)
        assert plan.capacity == pytest.approx(row["rho_tot_cks"], rel=1e-8)
        assert bun_steinke_rho(epsilon, delta) == pytest.approx(
            row["rho_tot_bun_steinke"], rel=1e-8
        )
        plan = model.set_params(selection="exponential").plan(48842, 108)
        assert plan.selection_cost == pytest.approx(row["rho_nmax_exp_mech"], rel=rel)
        plan = model.set_params(accountant="gdp").plan(48842, 108)
        assert math.sqrt(plan.capacity) == pytest.approx(row["mu_tot"], rel=1e-8)
        assert plan.gradient_cost == pytest.approx(2 * row["rho_ng"], rel=rel)


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(0.02, 20.0),
    n_splits=st.floats(1.0, 30.0),
    share=st.floats(0.02, 0.95),
    growth=st.floats(0.05, 3.0),
    kind=st.sampled_from(["exponential", "laplace"]),
    accountant=st.sampled_from(["auto", "gdp", "zcdp"]),
    max_iter=st.sampled_from([3, 10_000]),
    seed=st.integers(0, 2**31),
)
def test_the_filter_is_never_exceeded_and_stops_when_the_next_iteration_does_not_fit(
    epsilon, n_splits, share, growth, kind, accountant, max_iter, seed
):
    plan = plan_for(
        epsilon,
        n_splits=n_splits,
        selection_share=share,
        budget_growth=growth,
        selection=kind,
        accountant=accountant,
        max_iter=max_iter,
    )
    trace = adaptive_gradient_descent(Recorder(), plan, entropy_source(seed))
    assert math.fsum(trace.cost) <= plan.capacity * (1 + 1e-12)
    left = plan.capacity - math.fsum(trace.cost)
    assert trace.remaining[-1] == pytest.approx(left, abs=1e-9 * plan.capacity)
    if len(trace.accepted_steps) == plan.n_iter:
        return
    start = max(i for i, name in enumerate(trace.release) if name == "gradient")
    gradient = math.fsum(
        cost
        for cost, name in zip(trace.cost[start:], trace.release[start:], strict=True)
        if name != "selection"
    )
    following = gradient if trace.step[-1] else growth * gradient
    assert left < following + plan.selection_cost


def test_a_gradient_without_a_selection_is_never_bought(scripted):
    scripted([1] * 100)
    plan = replace(plan_for(), capacity=1.0, gradient_cost=0.4, selection_cost=0.3)
    trace = adaptive_gradient_descent(Recorder(), plan, entropy_source(0))
    assert trace.release == ["gradient", "selection"] and trace.remaining[-1] == pytest.approx(0.3)


def test_the_last_accepted_iterate_is_returned(scripted):
    scripted([2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    iterates = []
    trace = adaptive_gradient_descent(
        Recorder(), plan_for(), entropy_source(0), on_step=lambda t, coef: iterates.append(coef)
    )
    assert len(iterates) == 2 and (trace.coef == iterates[-1]).all()
    assert trace.n_iter == 3 and trace.step[-1] == 0.0
    assert np.linalg.norm(iterates[0]) == pytest.approx(1.0)


def test_the_grid_follows_the_steps_and_shrinks_when_none_helps(scripted):
    scripted([1, 2, 1, 0, 4, 1, 1, *[0] * 40])
    trace = adaptive_gradient_descent(Recorder(), plan_for(step_shrink=0.5), entropy_source(0))
    steps = [step for step in trace.step if step is not None]
    # Three steps, the largest 1: the grid ends at 1.5; then half of it; then 1.5 times .75.
    assert steps[:7] == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.75, 0.1875, 0.1875])
    tops = [top for top, name in zip(trace.max_step, trace.release, strict=True)
            if name == "selection"]  # fmt: skip
    assert tops[:8] == pytest.approx([2, 2, 2, 1.5, 0.75, 0.75, 0.75, 1.125])


def test_iterations_are_counted_from_one(scripted):
    """In the trace, and for a momentum."""

    told = []

    class Counting(HeavyBall):
        def direction(self, gradient, velocity, t):
            told.append(t)
            return super().direction(gradient, velocity, t)

    scripted([1, 2, 0, 3, *[0] * 40])
    trace = adaptive_gradient_descent(
        Recorder(), plan_for(momentum=Counting(0.5)), entropy_source(0)
    )
    assert told[:4] == [1, 2, 3, 3]
    assert trace.iteration[:8] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert trace.release[4:8] == ["gradient", "selection", "refinement", "selection"]


def test_without_noise_the_finest_grid_is_2_to_the_minus_20_of_the_first(scripted):
    scripted([0] * 100)
    plan = plan_for(epsilon=math.inf, step_shrink=0.5)
    trace = adaptive_gradient_descent(Recorder(), plan, entropy_source(0))
    assert min(trace.max_step) == plan.max_step / 2**20


def test_who_is_told_of_each_iterate_is_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        adaptive_gradient_descent(Recorder(), plan_for(), entropy_source(0), print)


def test_a_gradient_of_zero_has_no_direction(scripted):
    """And none is invented by dividing by its length."""
    scripted([4, 4], [np.zeros(2), np.array([0.0, 1e-200])])
    objective = Recorder()
    plan = replace(plan_for(), capacity=1.0, gradient_cost=0.3, selection_cost=0.1)
    trace = adaptive_gradient_descent(objective, plan, entropy_source(0))
    assert [list(direction) for _, direction, *_ in objective.lines] == [[0.0, 0.0], [0.0, 1.0]]
    assert trace.coef.tolist() == [0.0, -2.0]


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_the_choice_of_a_step_pays_for_the_rounding_of_its_scores(alpha, scripted):
    """Of the sums of losses, and of adding up to n times a record's bound and the penalty."""
    seen = scripted([2, 3], [np.array([30.0, -50.0])] * 2)
    objective = Recorder()
    plan = replace(plan_for(alpha=alpha), capacity=1.0, gradient_cost=0.3, selection_cost=0.1)
    adaptive_gradient_descent(objective, plan, entropy_source(0))
    bound = 2.0 * 3.0
    for (mechanism, scores), (coef, direction, steps, _) in zip(seen, objective.lines, strict=True):
        after = coef - steps[:, None] * direction
        penalty = 100 * alpha / 2 * ((after**2).sum(axis=1) - coef @ coef)
        largest = 100 * bound + np.abs(penalty).max()
        assert np.abs(scores).max() < largest
        of_the_addition = mechanism.slack / 4 - objective.line_rounding(100, bound)
        assert of_the_addition == pytest.approx(2.0**-53 * largest, rel=1e-6, abs=0)


def test_the_penalty_is_in_the_direction_and_in_the_scores(scripted):
    """On a line, scores differ from minus n times the penalised mean loss by a constant."""
    alpha, first = 0.7, np.array([30.0, -50.0])
    seen = scripted([3, 1], [first, first])
    objective = Recorder()
    plan = replace(plan_for(alpha=alpha), capacity=1.0, gradient_cost=0.3, selection_cost=0.1)
    plan = replace(plan, clip=np.full(100, 50.0))
    adaptive_gradient_descent(objective, plan, entropy_source(0))
    coef, direction, steps, _ = objective.lines[1]
    expected = first / 100 + alpha * coef
    assert direction == pytest.approx(expected / np.linalg.norm(expected))
    rows, signs = objective._rows.block(0, 100), objective._signs[:100]
    totals = []
    for step in steps:
        w = coef - step * direction
        losses = np.logaddexp(0, -signs * (rows @ w))
        totals.append(losses.sum() + 100 * alpha / 2 * (w @ w))
    scores = seen[1][1]
    assert scores - scores[0] == pytest.approx(totals[0] - np.array(totals), abs=1e-9)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("loss_clip", [None, 1.5])
def test_no_record_moves_the_scores_by_more_than_the_range_that_is_charged(relation, loss_clip):
    """Over worst-case records, and tight: the range that is charged is reached to a fifth."""
    n_ref = 100 if relation == "add_or_remove_one" else None
    plan = plan_for(
        relation=relation, n_ref=n_ref, loss_clip=loss_clip, clip_schedule=Constant(0.4)
    )
    charged = plan.selection_mechanism(0, plan.max_step, 0.0).score_range
    steps = np.linspace(0, plan.max_step, 5)
    clip = 0.4 if loss_clip is None else None
    rng, direction = np.random.default_rng(0), np.array([0.6, -0.8])
    scores = []
    for scale in (0.1, 1.0, 30.0):
        for row in [*rng.normal(size=(40, 2)), direction, -direction]:
            objective = Objective(
                np.array([scale * row]), np.array([1.0]), Logistic(), fit_intercept=False
            )
            coef = rng.choice([0.0, 1.0]) * direction
            losses = objective.line_losses(coef, direction, steps, loss_clip=loss_clip, clip=clip)
            scores.append(-losses)
    scores = np.array(scores)
    alone = np.ptp(scores, axis=1).max()
    pairs = max(np.ptp(scores - other, axis=1).max() for other in scores)
    largest = pairs if relation == "replace_one" else alone
    assert 0.8 * charged < largest <= charged * (1 + 1e-9)


def test_gdp_is_chosen_where_selections_are_few_and_zcdp_where_they_are_many():
    for delta, last_gdp, first_zcdp in ((1e-8, 0.15, 0.3), (1e-5, 0.25, 0.4)):
        assert plan_for(delta=delta, selection_share=last_gdp).accountant == "gdp"
        assert plan_for(delta=delta, selection_share=first_zcdp).accountant == "zcdp"
    assert plan_for(accountant="gdp", selection_share=0.9).accountant == "gdp"


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
def test_the_ledger_states_the_filter_whatever_was_spent(accountant):
    X, y = make_census(500, random_state=0)
    model = DPAGDClassifier(epsilon=0.7, accountant=accountant, max_iter=2).fit(X, y)
    assert [type(event) for event, _ in model.privacy_.events] == [FilterEvent]
    assert model.privacy_ == model.plan(*X.shape).ledger
    assert model.privacy_.epsilon() == pytest.approx(0.7, rel=1e-6)
    assert model.privacy_.epsilon() <= 0.7
    assert model.trace_.remaining[-1] > 0


def test_every_draw_is_charged_once(monkeypatch):
    """Sums and choices drawn by the samplers, and the events in the trace, match one to one."""
    draws = []

    def spy(module, name):
        original = getattr(module, name)

        def call(*args):
            draws.append((name, args[1] if name == "rounded_gaussian" else None))
            return original(*args)

        monkeypatch.setattr(module, name, call)

    spy(mechanisms, "rounded_gaussian")
    spy(selection, "uniform_below")
    trace = DPAGDClassifier(epsilon=2.0, n_steps=1).fit(*make_census(300, random_state=0)).trace_
    kinds = {"rounded_gaussian": "gaussian", "uniform_below": "selection"}
    assert [kinds[name] for name, _ in draws] == [event.kind for event in trace.events]
    assert "refinement" in trace.release
    for (name, scale), event, noise in zip(draws, trace.events, trace.noise_scale, strict=True):
        if name == "rounded_gaussian":
            grid = mechanisms.grid_spacing(2.5 * event.noise_multiplier)
            assert scale * grid == pytest.approx(noise, rel=1e-12)
            assert noise == pytest.approx(2.5 * event.noise_multiplier, rel=1e-6)


def test_the_cost_of_every_event_is_what_the_filter_was_charged():
    for accountant in ("gdp", "zcdp"):
        model = DPAGDClassifier(epsilon=2.0, accountant=accountant)
        trace = model.fit(*make_census(300, random_state=0)).trace_
        for event, cost in zip(trace.events, trace.cost, strict=True):
            own = event.mu**2 if accountant == "gdp" else event.rho
            assert own == pytest.approx(cost, rel=1e-9)


def test_without_noise_the_exact_best_step_is_taken_until_none_helps():
    X, y = make_census(2000, random_state=0)
    model = DPAGDClassifier(epsilon=math.inf, clip_schedule=math.inf, alpha=0.05).fit(X, y)
    assert model.n_iter_ < 1000 and model.privacy_.rho() == math.inf
    exact = LogisticRegression(C=1 / (0.05 * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    objectives = [
        np.logaddexp(0, (1 - 2 * y) * m.decision_function(X)).mean() + 0.025 * (m.coef_**2).sum()
        for m in (model, exact)
    ]
    assert objectives[1] <= objectives[0] < objectives[1] + 1e-4
    assert len(model.trace_.accepted_steps) > 10
    plain = DPAGDClassifier(loss="hinge", epsilon=math.inf, step_shrink=1.0, momentum=None).fit(
        X, y
    )
    assert plain.trace_.release.count("refinement") == 0 and plain.trace_.step[-1] == 0.0


def test_a_clip_of_one_or_less_is_not_the_default():
    """On one-hot census data it makes the clipped gradient point away from the loss's own."""
    assert DPAGDClassifier().plan(1000, 100).clip.min() > 1


def test_sparse_rows_give_the_dense_result():
    X, y = make_census(400, random_state=0)
    dense = DPAGDClassifier(epsilon=math.inf, max_iter=10).fit(X, y)
    rows = DPAGDClassifier(epsilon=math.inf, max_iter=10).fit(csr_array(X), y)
    assert rows.coef_ == pytest.approx(dense.coef_, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "hinge"])
def test_several_classes_share_one_clip(loss):
    X, y = make_blobs(3000, centers=4, random_state=1)
    model = DPAGDClassifier(loss=loss, epsilon=4.0, max_step=0.5).fit(X / 10, y)
    assert model.coef_.shape == (4, 2) and model.score(X / 10, y) > 0.6
    gradients = [e for e, name in zip(model.trace_.events, model.trace_.release, strict=True)
                 if name == "gradient"]  # fmt: skip
    assert gradients[0].noise_multiplier > 1
    zero_loss = {"logistic": math.log(4), "smoothed_hinge": 4.0, "hinge": 4.0}[loss]
    assert model.plan(3000, 2, 4).loss_clip == pytest.approx(2 * zero_loss)
    with pytest.raises(ValueError, match="loss_clip='range' is for two classes, and there are 4"):
        model.set_params(loss_clip="range").fit(X, y)


def test_probabilities_come_with_the_logistic_loss_only():
    X, y = make_census(300, random_state=0)
    model = DPAGDClassifier().fit(X, y)
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(300))
    assert np.exp(model.predict_log_proba(X)) == pytest.approx(model.predict_proba(X))
    assert not hasattr(DPAGDClassifier(loss="hinge"), "predict_proba")
    X, y = make_blobs(300, centers=3, random_state=0)
    model = DPAGDClassifier().fit(X, y)
    assert np.exp(model.predict_log_proba(X)) == pytest.approx(model.predict_proba(X))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_splits": 0.5}, "n_splits=0.5 must be"),
        ({"n_splits": "many"}, "n_splits='many' must be"),
        ({"selection_share": 1.0}, "selection_share=1.0 must be above 0 and below 1"),
        ({"selection_share": 0}, "selection_share=0 must be"),
        ({"budget_growth": 0}, "budget_growth=0 must be"),
        ({"n_steps": 0}, "n_steps=0 must be"),
        ({"n_steps": 2.5}, "n_steps=2.5 must be"),
        ({"max_step": math.inf}, "max_step=inf must be"),
        ({"step_update_every": True}, "step_update_every=True must be"),
        ({"step_growth": -0.1}, "step_growth=-0.1 must be"),
        ({"step_shrink": 1.5}, "step_shrink=1.5 must be"),
        ({"momentum": 1.0}, "momentum"),
        ({"loss_clip": 0.0}, "loss_clip=0.0 must be"),
        ({"loss_clip": 1e300}, "cannot be drawn"),
        ({"clip_schedule": math.inf}, "clip_schedule"),
        ({"selection": "gumbel"}, "selection='gumbel' is unknown"),
        ({"accountant": "rdp"}, "accountant='rdp' is unknown"),
        ({"loss": "squared"}, "loss='squared' is unknown"),
        ({"max_iter": 0}, "max_iter=0 must be"),
        ({"selection_share": "published", "n_splits": 1, "epsilon": 1e4}, "raise n_splits"),
    ],
)
def test_bad_parameters_are_refused_in_a_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        DPAGDClassifier(**changes).plan(100, 3)


def test_a_budget_too_small_says_which_epsilon_suffices():
    for accountant in ("gdp", "zcdp"):
        model = DPAGDClassifier(epsilon=1e-7, delta=1e-8, accountant=accountant)
        with pytest.raises(ValueError, match="too small for one gradient and one selection") as no:
            model.plan(1000, 5)
        enough = float(str(no.value).split("epsilon=")[2].split(" ")[0])
        assert 1e-7 < enough < 1e-2
        model.set_params(epsilon=1.01 * enough).plan(1000, 5)
        with pytest.raises(ValueError, match="too small"):
            model.set_params(epsilon=enough / 2).plan(1000, 5)


def test_a_clip_array_that_changes_later_does_not_change_the_plan():
    class Sneaky(Constant):
        def values(self, n_iter, facts):
            self.array = np.full(n_iter, 2.0)
            return self.array

    schedule = Sneaky()
    plan = plan_for(clip_schedule=schedule)
    schedule.array[:] = 100.0
    assert plan.clip.max() == 2.0


def test_the_trace_becomes_a_frame():
    trace = DPAGDClassifier(epsilon=2.0).fit(*make_census(300, random_state=0)).trace_
    frame = trace.to_frame()
    assert list(frame["release"]) == trace.release and len(frame) == len(trace.events)
    assert frame["step"].isna().sum() == (frame["release"] != "selection").sum()
    assert (frame["remaining"].diff().dropna() < 0).all()


def test_rounding_is_paid_for_more_records_where_their_number_is_private():
    private = plan_for(relation="add_or_remove_one", n_ref=100)
    assert private.max_n_samples == 16 * plan_for().max_n_samples
