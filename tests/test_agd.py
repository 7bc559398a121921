"""DP-AGD: the corrected algorithm step by step, its filter, its surface."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from tapes import Scripted, on_tape, record

from dpglm import DPAGDClassifier, DPLogisticRegression, FullPreconditioner, seeded_noise
from dpglm.datasets import make_census
from dpglm.estimators.agd import choice_epsilon, filter_of
from dpglm.estimators.defaults import MOMENT_FRACTION, UNITS_FRACTION
from dpglm.estimators.solvers import Coordinates, FitTrace, adaptive_gradient_descent
from dpglm.estimators.whitening import row_unit
from dpglm.losses import Logistic
from dpglm.privacy.events import FilterEvent
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.selection import SELECTIONS, ChoosingVault
from dpglm.privacy.vault import GaussianSum, grid_spacing
from dpglm.schedules import Constant, NesterovMomentum
from dpglm.sums.objective import Objective

SETTING = {
    "max_iter": 100, "clip_schedule": Constant(3.0), "n_splits": 20, "selection_fraction": 0.2,
    "budget_growth": 0.5, "n_steps": 4, "max_step": 2.0, "step_update_every": 3,
    "step_growth": 0.5, "step_shrink": 1.0, "delta": 1e-8, "fit_intercept": False,
    "momentum": None, "averaging": None, "preconditioner": None,
}  # fmt: skip


def plan_for(step_schedule=None, **changes):
    plan = DPAGDClassifier(**{**SETTING, **changes}).plan(100, 2)
    return replace(plan, step_schedule=step_schedule)


class Recorder(Objective):
    """A small data set that notes what is asked of it."""

    def __init__(self):
        rng = np.random.default_rng(0)
        super().__init__(
            rng.normal(size=(100, 2)), rng.choice([-1.0, 1.0], 100), Logistic(), fit_intercept=False
        )
        self.lines = []

    def line_losses(self, coef, direction, steps, **bound):
        if self.n_records == 100:  # not of some rows, for a comparison
            self.lines.append((coef.copy(), direction.copy(), steps.copy(), bound))
        return super().line_losses(coef, direction, steps, **bound)

    def confirm(self, ask, rows=None):
        """Compare nothing: which release is compared is random, and would be noted twice."""
        return np.array(0.0)


def with_costs(plan, capacity, gradient_cost, selection_cost, **changes):
    return replace(
        plan,
        capacity=capacity,
        gradient_cost=gradient_cost,
        selection_cost=selection_cost,
        selection_epsilon=choice_epsilon(plan.accountant, plan.selection, selection_cost),
        ledger=replace(plan.ledger, events=((filter_of(plan.accountant, capacity), 1),)),
        **changes,
    )


def descend(plan, sums=None, seed=0, on_step=lambda t, coef: None):
    """Run the solver on a vault that is opened as a fit would, whatever its filter admits."""
    budget = replace(plan.budget, epsilon=math.inf)
    sums = Recorder() if sums is None else sums
    vault = ChoosingVault(sums, plan.ledger.events, budget, entropy_source(seed))
    trace = FitTrace("iteration", "release", "cost", "remaining", "noise_scale", "max_step", "step")
    space = Coordinates(Logistic(), 2, 1, fit_intercept=False)
    trace.coef = adaptive_gradient_descent(vault, plan, space, trace, on_step)
    return trace


def cost_of_last_gradient(trace):
    last = max(i for i, name in enumerate(trace.release) if name == "gradient")
    spent = zip(trace.cost[last:], trace.release[last:], strict=True)
    return math.fsum(cost for cost, name in spent if name != "selection")


def test_the_course_of_the_budget_matches_the_vectors(vectors):
    for row in vectors("selection", "dpagd_trace"):
        plan = with_costs(
            plan_for(),
            capacity=row["budget"],
            gradient_cost=row["cost_grad"],
            selection_cost=row["cost_select"],
            budget_growth=row["gamma"],
        )
        with on_tape(Scripted([int(outcome) for outcome in row["outcomes"]])):
            trace = descend(plan)
        names = {"grad": "gradient", "select": "selection", "refine": "refinement"}
        expected = [event for event in row["events"] if event[0] != "stop"]
        assert trace.release == [names[kind] for kind, *_ in expected]
        assert trace.cost == pytest.approx([cost for _, cost, _ in expected], abs=row["atol"])
        assert trace.remaining == pytest.approx([left for *_, left in expected], abs=row["atol"])
        assert len(trace.accepted_steps) == row["steps"]
        final = pytest.approx(row["final_cost_grad"], abs=row["atol"])
        assert cost_of_last_gradient(trace) == final


def test_averaged_gradients_match_the_vectors(vectors):
    for row in vectors("selection", "gradavg"):
        first, second = np.array([3.0, 0.0]), np.array([0.0, 4.0])
        plan = with_costs(
            plan_for(accountant="zcdp"),
            gradient_cost=row["rho_old"],
            selection_cost=1e-6,
            budget_growth=(row["rho_new"] - row["rho_old"]) / row["rho_old"],
            capacity=row["rho_new"] + 2.5e-6,
        )
        objective = Recorder()
        with on_tape(Scripted([0, 1], [first, second])):
            trace = descend(plan, objective)
        assert trace.release == ["gradient", "selection", "refinement", "selection"]
        std = trace.noise_scale[::2]
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
        plan = model.set_params(selection="exponential").plan(48842, 108)
        assert plan.selection_cost == pytest.approx(row["rho_nmax_exp_mech"], rel=rel)
        plan = model.set_params(accountant="gdp").plan(48842, 108)
        assert math.sqrt(plan.capacity) == pytest.approx(row["mu_tot"], rel=1e-8)
        assert plan.gradient_cost == pytest.approx(2 * row["rho_ng"], rel=rel)
        # Eq. (5) of the paper, which buys less of the same unit.
        eq_5 = model.set_params(accountant="bun_steinke", selection="laplace").plan(48842, 108)
        log = math.log(1 / delta)
        spent = eq_5.capacity + 2 * math.sqrt(eq_5.capacity * log)
        assert spent == pytest.approx(epsilon, rel=1e-9)
        assert eq_5.gradient_cost == pytest.approx(row["rho_ng"], rel=rel)
        assert eq_5.ledger.epsilon(delta) < epsilon


SETTINGS = {
    "epsilon": st.floats(0.02, 20.0),
    "n_splits": st.floats(1.0, 30.0),
    "selection_fraction": st.floats(0.02, 0.95),
    "budget_growth": st.floats(0.05, 3.0),
    "selection": st.sampled_from(["exponential", "laplace", "permute_and_flip"]),
    "accountant": st.sampled_from(["auto", "gdp", "zcdp", "bun_steinke"]),
    "max_iter": st.sampled_from([3, 10_000, "auto"]),
    "step_schedule": st.sampled_from([None, Constant(100.0)]),
    "averaging": st.sampled_from([None, "tail"]),
}


@settings(max_examples=30, deadline=None)
@given(changes=st.fixed_dictionaries(SETTINGS), seed=st.integers(0, 2**31))
def test_the_filter_is_never_exceeded_and_stops_when_the_next_iteration_does_not_fit(changes, seed):
    plan = plan_for(**changes)
    trace = descend(plan, seed=seed)
    assert math.fsum(trace.cost) <= plan.capacity * (1 + 1e-12)
    left = plan.capacity - math.fsum(trace.cost)
    assert trace.remaining[-1] == pytest.approx(left, abs=1e-9 * plan.capacity)
    if len(trace.accepted_steps) == plan.n_iter:
        return
    gradient = cost_of_last_gradient(trace)
    following = gradient if trace.step[-1] else plan.budget_growth * gradient
    assert left < following + plan.selection_cost


@pytest.mark.parametrize(
    ("averaging", "outcomes", "n_averaged"), [(None, [2, 1], 1), ("tail", [2, 1, 3, 1], 2)]
)
def test_the_last_accepted_iterate_or_the_average_is_returned(averaging, outcomes, n_averaged):
    iterates = []
    with on_tape(Scripted([*outcomes, *[0] * 40])):
        plan = plan_for(averaging=averaging)
        trace = descend(plan, on_step=lambda t, coef: iterates.append(coef))
    assert len(iterates) == len(outcomes)
    assert trace.n_iter == len(outcomes) + 1 and trace.step[-1] == 0.0
    assert trace.coef == pytest.approx(np.mean(iterates[-n_averaged:], axis=0), rel=1e-15)
    assert np.linalg.norm(iterates[0]) == pytest.approx(1.0)


def test_by_default_steps_are_around_those_of_logistic_regression():
    for n_samples in (200, 5000):
        plan = DPAGDClassifier().plan(n_samples, 20).renewed(effective_dimension=7.0)
        other = DPLogisticRegression(max_iter=plan.n_iter).plan(n_samples, 20)
        other = other.renewed(effective_dimension=7.0)
        assert plan.clip.tolist() == other.clip.tolist()
        assert type(plan.momentum) is type(other.momentum) is NesterovMomentum
        offered = [plan.max_step_length(t, plan.max_step, 0.3) for t in range(plan.n_iter)]
        assert offered == pytest.approx(2 * 0.3 * other.step)


def test_a_choice_counts_by_how_far_its_noise_lets_steps_be_told_apart():
    plan = DPAGDClassifier().plan(5000, 20)
    assert plan.shrink_to_default(2, 1.0, scale=0.0) == 2
    assert plan.shrink_to_default(2, 1.0, scale=1e12) == 10
    # 5000 / 8 is what is at stake, of which the noise is a quarter.
    assert plan.shrink_to_default(2, 1.0, scale=5000 / 32) == 6
    # None helps is believed where it could have been seen; the gradient is refined.
    assert (
        plan.shrink_to_default(0, 1.0, scale=5000 / 33)
        == 0
        < plan.shrink_to_default(0, 1.0, scale=5000 / 31)
    )
    assert DPAGDClassifier(max_step=1.0).plan(5000, 20).shrink_to_default(2, 1.0, 1e12) == 2


def test_a_gradient_of_zero_still_has_a_grid():
    plan = plan_for(step_schedule=Constant(1.0))
    with on_tape(Scripted([4] * 100, [np.zeros(2)] * 100)):
        trace = descend(plan)
    assert min(trace.max_step) > 0 and trace.coef.tolist() == [0.0, 0.0]


def test_the_grid_follows_the_steps_and_shrinks_when_none_helps():
    with on_tape(Scripted([1, 2, 1, 0, 4, 1, 1, *[0] * 40])):
        trace = descend(plan_for(step_shrink=0.5))
    steps = [step for step in trace.step if step is not None]
    # Three steps, the largest 1: the grid ends at 1.5; then half of it; then 1.5 times .75.
    assert steps[:7] == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.75, 0.1875, 0.1875])
    tops = trace.to_frame().query("release == 'selection'")["max_step"].tolist()
    assert tops[:8] == pytest.approx([2, 2, 2, 1.5, 0.75, 0.75, 0.75, 1.125])


def test_without_noise_the_finest_grid_is_2_to_the_minus_20_of_the_first():
    plan = plan_for(epsilon=math.inf, step_shrink=0.5)
    with on_tape(Scripted([0] * 100)):
        trace = descend(plan)
    assert min(trace.max_step) == plan.max_step / 2**20


def test_a_gradient_of_zero_has_no_direction():
    objective = Recorder()
    with on_tape(Scripted([4, 4], [np.zeros(2), np.array([0.0, 1e-200])])):
        trace = descend(with_costs(plan_for(), 1.0, 0.3, 0.1), objective)
    assert [list(direction) for _, direction, *_ in objective.lines] == [[0.0, 0.0], [0.0, 1.0]]
    assert trace.coef.tolist() == [0.0, -2.0]


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_the_choice_of_a_step_pays_for_the_rounding_of_its_scores(alpha):
    objective, plan = Recorder(), with_costs(plan_for(alpha=alpha), 1.0, 0.3, 0.1)
    with on_tape(Scripted([2, 3], [np.array([30.0, -50.0])] * 2)) as recorded:
        descend(plan, objective)
    # A direction may be that much longer than one.
    bound = 2.0 * 3.0 * (1 + 1e-12)
    choices = recorded.releases[1::2]
    for release, (coef, direction, steps, _) in zip(choices, objective.lines, strict=True):
        after = coef - steps[:, None] * direction
        penalty = 100 * alpha / 2 * ((after**2).sum(axis=1) - coef @ coef)
        largest = 100 * bound + np.abs(penalty).max()
        assert np.abs(release.exact).max() < largest
        slack = 4 * (objective.line_rounding(100, bound) + 2.0**-53 * largest)
        assert 4 * 2.0**-53 * largest > 2e-13
        assert release.sensitivity == pytest.approx(bound + slack, rel=0, abs=4e-15)


def test_the_penalty_is_in_the_direction_and_in_the_scores():
    alpha, first = 0.7, np.array([30.0, -50.0])
    objective = Recorder()
    plan = with_costs(plan_for(alpha=alpha), 1.0, 0.3, 0.1, clip=np.full(100, 50.0))
    with on_tape(Scripted([3, 1], [first, first])) as recorded:
        descend(plan, objective)
    coef, direction, steps, _ = objective.lines[1]
    expected = first / 100 + alpha * coef
    assert direction == pytest.approx(expected / np.linalg.norm(expected))
    rows, signs = objective._rows.block(0, 100), objective._signs[:100]
    totals = []
    for step in steps:
        w = coef - step * direction
        losses = np.logaddexp(0, -signs * (rows @ w))
        totals.append(losses.sum() + 100 * alpha / 2 * (w @ w))
    scores = recorded.releases[3].exact
    assert scores - scores[0] == pytest.approx(totals[0] - np.array(totals), abs=1e-9)


def test_gdp_is_chosen_where_selections_are_few_and_zcdp_where_they_are_many():
    for delta, last_gdp, first_zcdp in ((1e-8, 0.15, 0.3), (1e-5, 0.25, 0.4)):
        assert plan_for(delta=delta, selection_fraction=last_gdp).accountant == "gdp"
        assert plan_for(delta=delta, selection_fraction=first_zcdp).accountant == "zcdp"
    assert plan_for(accountant="gdp", selection_fraction=0.9).accountant == "gdp"
    moment = DPAGDClassifier(delta=1e-8, selection_fraction=0.3)
    assert moment.plan(1000, 5).accountant == "zcdp"
    moment.set_params(preconditioner=FullPreconditioner(budget_fraction=0.6))
    assert moment.plan(1000, 5).accountant == "gdp"
    assert moment.set_params(selection_fraction=0.9).plan(1000, 5).accountant == "zcdp"


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
@pytest.mark.parametrize("preconditioner", [None, "diagonal", "full"])
def test_every_draw_is_charged_once_at_its_cost_and_first_the_moment(
    draws, preconditioner, accountant, relation
):
    model = DPAGDClassifier(
        epsilon=2.0, n_steps=1, preconditioner=preconditioner, accountant=accountant,
        clip_schedule=2.5, n_splits=10, max_step=2.0, neighboring_relation=relation,
    )  # fmt: skip
    with seeded_noise(1), record() as tape:  # such that there is a refinement
        model.fit(*make_census(300, random_state=0))
        plan = model.plan(300, model.n_features_in_)
    trace, n_first = model.trace_, 0 if preconditioner is None else 2
    clip, length = (2.5, 1.0) if relation == "zero_out" else (5.0, math.sqrt(2))
    assert [type(event) for event, _ in model.privacy_.events] == [FilterEvent]
    assert model.privacy_ == plan.ledger and model.privacy_.epsilon() <= 2.0
    assert model.privacy_.epsilon() == pytest.approx(2.0, rel=1e-6)
    assert [kind for kind, *_ in draws] == [event.kind for event in trace.events]
    spent = plan.capacity - trace.remaining[-1]
    assert spent == pytest.approx(math.fsum(trace.cost), abs=1e-9 * plan.capacity)
    assert "refinement" in trace.release and trace.iteration[n_first] == 1
    first = ["norm_histogram", "second_moment"][:n_first]
    assert [name for name in trace.release if name in ("norm_histogram", "second_moment")] == first
    assert trace.release[:n_first] == first
    sensitivity = {"norm_histogram": length}
    if n_first:
        assert trace.iteration[:2] == [0, 0]
        shares = [cost / plan.capacity for cost in trace.cost[:2]]
        assert shares == pytest.approx([UNITS_FRACTION, MOMENT_FRACTION], rel=1e-12)
        clip *= math.sqrt(trace.whitening.effective_dimension)
        # As the released counts make it.
        one = tape.releases[0]
        std = one.event.noise_multiplier * one.sensitivity / 300
        max_row_norm = row_unit(one.answer / 300, std, plan.n_mu)[1]
        sensitivity["second_moment"] = length * max_row_norm**2
    for event, cost in zip(trace.events, trace.cost, strict=True):
        own = event.mu**2 if accountant == "gdp" else event.rho
        assert own == pytest.approx(cost, rel=1e-9)
    for (kind, *_, scale), event, release, noise in zip(
        draws, trace.events, trace.release, trace.noise_scale, strict=True
    ):
        if kind == "gaussian":
            expected = event.noise_multiplier * sensitivity.get(release, clip)
            assert scale * grid_spacing(expected) == pytest.approx(noise, rel=1e-12)
            assert noise == pytest.approx(expected, rel=1e-6)


def penalised_loss(model, X, y, alpha=0.0):
    losses = np.logaddexp(0, (1 - 2 * y) * model.decision_function(X))
    return losses.mean() + alpha / 2 * (model.coef_**2).sum()


@pytest.mark.slow
def test_without_noise_the_exact_best_step_is_taken_until_none_helps():
    X, y = make_census(1000, random_state=0)
    model = DPAGDClassifier(
        epsilon=math.inf, clip_schedule=math.inf, alpha=0.05, max_iter=1000, max_step=2.0,
        averaging=None, momentum="heavy_ball", preconditioner=None,
    ).fit(X, y)  # fmt: skip
    assert model.n_iter_ < 1000 and model.privacy_.rho() == math.inf
    exact = LogisticRegression(C=1 / (0.05 * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    least = penalised_loss(exact, X, y, 0.05)
    assert least - 1e-12 < penalised_loss(model, X, y, 0.05) < least + 1e-4
    assert len(model.trace_.accepted_steps) > 10
    for preconditioner in ("diagonal", "full"):
        model.set_params(momentum=None, preconditioner=preconditioner).fit(X, y)
        assert penalised_loss(model, X, y, 0.05) == pytest.approx(least, abs=1e-10)
    model = DPAGDClassifier(epsilon=math.inf, alpha=0.05).fit(X, y)
    assert penalised_loss(model, X, y, 0.05) < least + 1e-3 and model.n_iter_ <= 40
    plain = model.set_params(
        loss="hinge", alpha=0.0, step_shrink=1.0, momentum=None, max_step=2.0, max_iter=1000,
        preconditioner=None,
    )  # fmt: skip
    assert plain.fit(X, y).trace_.release.count("refinement") == 0 and plain.trace_.step[-1] == 0.0


@pytest.mark.parametrize("preconditioner", [None, "diagonal", "full"])
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "hinge"])
def test_several_classes_share_one_clip_and_one_moment(loss, preconditioner):
    X, y = make_blobs(1000, centers=4, random_state=1)
    shape = {"max_step": 0.5} if preconditioner is None else {"clip_schedule": 1.0}
    model = DPAGDClassifier(loss=loss, epsilon=4.0, preconditioner=preconditioner, **shape)
    model.fit(X / 10, y)
    assert model.coef_.shape == (4, 2) and model.score(X / 10, y) > 0.6
    releases = model.trace_.release
    assert releases.count("second_moment") == (preconditioner is not None)
    assert model.trace_.events[releases.index("gradient")].noise_multiplier > 1
    zero_loss = {"logistic": math.log(4), "smoothed_hinge": 4.0, "hinge": 4.0}[loss]
    if preconditioner is None:
        assert model.plan(1000, 2, 4).loss_clip == pytest.approx(2 * zero_loss)


BAD_NUMBERS = {"n_splits": 0.5, "n_steps": 0, "max_step": math.inf, "step_update_every": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: value}, f"{name}={value} must be") for name, value in BAD_NUMBERS.items()),
        ({"selection": "mean"}, "selection='mean' is unknown"),
        ({"loss_clip": 1e300}, r"loss_clip=1e\+300 must be a number of at least 1e-100"),
        ({"max_step": 1e-300}, "max_step=1e-300 must be a number of at least 1e-100"),
        ({"selection_fraction": "published", "n_splits": 1, "epsilon": 1e4}, "Raise n_splits"),
    ],
)
def test_bad_parameters_are_refused_in_a_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        DPAGDClassifier(**changes).plan(100, 3)


@pytest.mark.parametrize("preconditioner", [None, "full"])
@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
def test_a_budget_too_small_says_which_epsilon_suffices(accountant, preconditioner):
    model = DPAGDClassifier(
        epsilon=1e-7, delta=1e-8, accountant=accountant, preconditioner=preconditioner
    )
    with pytest.raises(ValueError, match="too small for one gradient and one selection") as no:
        model.plan(1000, 5)
    enough = float(str(no.value).split("epsilon=")[2].split(" ")[0])
    assert 1e-7 < enough < 1e-2
    model.set_params(epsilon=1.01 * enough).plan(1000, 5)
    with pytest.raises(ValueError, match="too small"):
        clone(model).set_params(epsilon=enough / 2).plan(1000, 5)
    with pytest.raises(ValueError, match="too small"):
        model.set_params(preconditioner=FullPreconditioner(budget_fraction=0.5)).plan(1000, 5)
    model.set_params(epsilon=1.0, preconditioner=FullPreconditioner(budget_fraction=1e-30))
    with pytest.raises(ValueError, match="would be all noise"):
        model.plan(1000, 5)


def test_a_moment_that_leaves_nothing_for_the_published_constants_is_refused():
    published = DPAGDClassifier.as_published(n_splits=6.0)
    assert published.plan(1000, 5).gradient_cost > 0
    with pytest.raises(ValueError, match=r"cost more than the whole budget\. Raise n_splits"):
        published.set_params(preconditioner=FullPreconditioner(budget_fraction=0.9)).plan(1000, 5)


# --- In a whitened space ---


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("changes", [{}, {"n_splits": 1.0}, {"selection": "laplace"}])
def test_the_iterations_get_what_the_moment_leaves(accountant, share, changes):
    X, y = make_census(400, random_state=0)
    parameters = {"n_splits": 12.0, "selection_fraction": 0.3} | changes
    model = DPAGDClassifier(
        preconditioner=FullPreconditioner(budget_fraction=share, row_clipping_norm=3.0),
        accountant=accountant,
        **parameters,
    ).fit(X, y)
    plan, trace = model.plan(*X.shape), model.trace_
    first = (1 - share) * plan.capacity / parameters["n_splits"]
    assert trace.cost[1] + trace.cost[2] == pytest.approx(first, rel=1e-9)
    assert trace.cost[2] == pytest.approx(0.3 * first, rel=1e-9)
    assert plan.n_affordable == parameters["n_splits"]
    assert plan.ledger == model.set_params(preconditioner=None).plan(*X.shape).ledger


def test_rounding_in_the_basis_is_paid_for():
    X, y = make_census(300, random_state=0)
    with on_tape() as recorded:
        full = FullPreconditioner(row_clipping_norm=3.0)
        model = DPAGDClassifier(preconditioner=full, clip_schedule=2.5).fit(X, y)
    clip = 2.5 * math.sqrt(model.trace_.whitening.effective_dimension)
    objective = Objective(X, 2.0 * y - 1, Logistic())
    slack = objective.in_basis(model.trace_.whitening.basis).rounding_slack(300)
    assert slack > 2 * objective.rounding_slack(300)
    assert recorded.releases[1].sensitivity == pytest.approx(clip * (1 + slack), rel=slack / 1e4)


@pytest.mark.parametrize("preconditioner", ["full", None])
@pytest.mark.parametrize("scale", [1e-100, 0.99e100])
def test_noise_for_the_largest_and_smallest_scales_can_be_drawn(scale, preconditioner):
    for epsilon, loss_clip in ((0.01, "auto"), (1e4, scale)):
        model = DPAGDClassifier(
            epsilon=epsilon, clip_schedule=scale, max_step=scale, loss_clip=loss_clip,
            preconditioner=preconditioner, neighboring_relation="replace_one",
        )  # fmt: skip
        plan = model.plan(10**9, 99)
        for dimension in (1.0, 100.0) if preconditioner else ():
            plan = plan.renewed(effective_dimension=dimension)
        clip = float(plan.clip[0])
        GaussianSum(2 * clip, plan.noise_multiplier(plan.gradient_cost))
        moved = (
            plan.max_step_length(0, plan.max_step, 1e300) * clip
            if plan.loss_clip is None
            else loss_clip
        )
        SELECTIONS[plan.selection](2 * moved, plan.selection_epsilon)
