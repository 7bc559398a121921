"""DP-AGD in a whitened space: every release is charged, and the result is in the original one."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpglm import DPAGDClassifier, FullPreconditioner
from dpglm.datasets import make_census
from dpglm.estimators.adaptive_plan import AdaptivePlan
from dpglm.losses import Logistic
from dpglm.privacy import mechanisms
from dpglm.privacy import mechanisms as selection
from dpglm.privacy.budget import PrivacyFilter
from dpglm.privacy.events import FilterEvent
from dpglm.schedules import Schedule
from dpglm.sums.objective import Objective

NAMES = ["diagonal", "full"]


def penalised_loss(model, X, y, alpha=0.0):
    losses = np.logaddexp(0, (1 - 2 * y) * model.decision_function(X))
    return losses.mean() + alpha / 2 * (model.coef_**2).sum()


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
@pytest.mark.parametrize("preconditioner", NAMES)
def test_every_draw_is_charged_once_and_first_the_moment(monkeypatch, preconditioner, accountant):
    draws = []

    def spy(module, name):
        original = getattr(module, name)

        def call(*args):
            draws.append((name, args[1] if name == "rounded_gaussian" else None))
            return original(*args)

        monkeypatch.setattr(module, name, call)

    spy(mechanisms, "rounded_gaussian")
    spy(selection, "uniform_below")
    model = DPAGDClassifier(
        epsilon=2.0, n_steps=1, preconditioner=preconditioner, accountant=accountant
    ).fit(*make_census(300, random_state=0))
    trace, plan = model.trace_, model.plan(300, model.n_features_in_)
    kinds = {"rounded_gaussian": "gaussian", "uniform_below": "selection"}
    assert [kinds[name] for name, _ in draws] == [event.kind for event in trace.events]
    assert trace.release[0] == "second_moment" and trace.release.count("second_moment") == 1
    assert trace.iteration[:2] == [0, 1] and "refinement" in trace.release
    assert trace.cost[0] == pytest.approx(0.15 * plan.capacity, rel=1e-12)
    for event, cost in zip(trace.events, trace.cost, strict=True):
        own = event.mu**2 if accountant == "gdp" else event.rho
        assert own == pytest.approx(cost, rel=1e-9)
    bounds = {"second_moment": 9.0}
    clip = 2.5 * math.sqrt(trace.whitening.effective_dimension)
    for (name, scale), event, release, noise in zip(
        draws, trace.events, trace.release, trace.noise_scale, strict=True
    ):
        if name == "rounded_gaussian":
            expected = bounds.get(release, clip) * event.noise_multiplier
            assert noise == pytest.approx(expected, rel=1e-6)
            assert scale * mechanisms.grid_spacing(expected) == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("changes", [{}, {"n_splits": 1.0}, {"selection": "laplace"}])
def test_the_filter_is_never_exceeded_and_the_iterations_get_the_rest(accountant, share, changes):
    X, y = make_census(400, random_state=0)
    parameters = {"n_splits": 12.0, "selection_share": 0.3} | changes
    model = DPAGDClassifier(
        preconditioner=FullPreconditioner(share=share), accountant=accountant, **parameters
    ).fit(X, y)
    plan, trace = model.plan(*X.shape), model.trace_
    assert math.fsum(trace.cost) <= plan.capacity * (1 + 1e-12)
    first = (1 - share) * plan.capacity / parameters["n_splits"]
    assert trace.cost[1] + trace.cost[2] == pytest.approx(first, rel=1e-9)
    assert trace.cost[2] == pytest.approx(0.3 * first, rel=1e-9)
    left = plan.capacity - math.fsum(trace.cost)
    assert trace.remaining[-1] == pytest.approx(left, abs=1e-9 * plan.capacity)
    assert [type(event) for event, _ in model.privacy_.events] == [FilterEvent]
    assert model.privacy_ == plan.ledger == clone(model).set_params(
        preconditioner=None
    ).plan(*X.shape).ledger  # fmt: skip


def test_each_cost_is_charged_before_the_data_are_touched(monkeypatch):
    order = []

    def log(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            order.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    log(PrivacyFilter, "spend")
    for name in ("second_moment", "gradient_sum", "line_losses"):
        log(Objective, name)
    DPAGDClassifier(preconditioner="full").fit(*make_census(300, random_state=0))
    assert order[:6] == [
        "spend", "second_moment", "spend", "gradient_sum", "spend", "line_losses"
    ]  # fmt: skip
    assert set(order[::2]) == {"spend"} and "spend" not in order[1::2]


def test_a_budget_too_small_for_moment_gradient_and_selection_is_refused_in_advance():
    for accountant in ("gdp", "zcdp"):
        model = DPAGDClassifier(
            epsilon=1e-7, delta=1e-8, accountant=accountant, preconditioner="full"
        )
        with pytest.raises(ValueError, match="too small for one gradient and one selection") as no:
            model.plan(1000, 5)
        enough = float(str(no.value).split("epsilon=")[2].split(" ")[0])
        model.set_params(epsilon=1.01 * enough).plan(1000, 5)
        model.set_params(preconditioner=FullPreconditioner(share=0.5))
        with pytest.raises(ValueError, match="too small"):
            model.plan(1000, 5)
        model.set_params(epsilon=1.0, preconditioner=FullPreconditioner(share=1e-30))
        with pytest.raises(ValueError, match="would be all noise"):
            model.plan(1000, 5)
    published = DPAGDClassifier.as_published(
        n_splits=6.0, preconditioner=FullPreconditioner(share=0.9)
    )
    assert published.set_params(preconditioner=None).plan(1000, 5).gradient_cost > 0
    with pytest.raises(ValueError, match="cost more than the whole budget; raise n_splits"):
        published.set_params(preconditioner=FullPreconditioner(share=0.9)).plan(1000, 5)


def test_zcdp_is_chosen_where_gdp_would_not_afford_its_moment_and_iterations():
    plain = DPAGDClassifier(delta=1e-8, selection_share=0.3)
    assert plain.plan(1000, 5).accountant == "zcdp"
    moment = clone(plain).set_params(preconditioner=FullPreconditioner(share=0.6))
    assert moment.plan(1000, 5).accountant == "gdp"
    assert moment.set_params(selection_share=0.9).plan(1000, 5).accountant == "zcdp"


@pytest.mark.parametrize("preconditioner", NAMES)
def test_without_noise_it_gets_further_than_plain_descent(preconditioner):
    X, y = make_census(3000, random_state=0)
    plain = DPAGDClassifier(epsilon=math.inf, clip_schedule=math.inf, max_iter=40)
    white = clone(plain).set_params(preconditioner=preconditioner)
    assert penalised_loss(white.fit(X, y), X, y) < penalised_loss(plain.fit(X, y), X, y) - 0.005


@pytest.mark.parametrize("preconditioner", NAMES)
def test_without_noise_it_reaches_the_optimum_of_the_original_penalty(preconditioner):
    X, y = make_census(2000, random_state=0)
    alpha = 0.05
    model = DPAGDClassifier(
        epsilon=math.inf,
        clip_schedule=math.inf,
        alpha=alpha,
        momentum=None,
        preconditioner=preconditioner,
    ).fit(X, y)
    exact = LogisticRegression(C=1 / (alpha * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    least = penalised_loss(exact, X, y, alpha)
    assert penalised_loss(model, X, y, alpha) == pytest.approx(least, abs=1e-10)


@pytest.mark.parametrize("loss_clip", [None, 1.5])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_no_record_moves_scores_or_sums_by_more_than_is_charged_in_any_basis(loss_clip, relation):
    """Over worst-case records in a skewed basis, and tight: what is charged is nearly reached."""
    changes = {"loss_clip": "auto" if loss_clip is None else loss_clip}
    plan = DPAGDClassifier(
        neighboring_relation=relation, fit_intercept=False, clip_schedule=0.4,
        preconditioner="full", **changes,
    ).plan(100, 2).in_whitened_space(2.0)  # fmt: skip
    clip = 0.4 * math.sqrt(2)
    assert plan.clip == pytest.approx(np.full(plan.n_iter, clip))
    charged = plan.selection_mechanism(0, plan.max_step, 0.0).score_range
    charged_sum = plan.gradient_mechanism(0, plan.gradient_cost, 0.0).sensitivity
    basis = np.array([[3.0, 1.0], [-0.5, 0.2]])
    steps = np.linspace(0, plan.max_step, 5)
    bound = {"clip": clip} if loss_clip is None else {"loss_clip": loss_clip}
    rng, direction = np.random.default_rng(0), np.array([0.6, -0.8])
    along = np.linalg.solve(basis.T, direction)
    scores, sums = [], []
    for scale in (0.1, 1.0, 30.0):
        for row in [*rng.normal(size=(40, 2)), along, -along]:
            objective = Objective(
                np.array([scale * row]), np.array([1.0]), Logistic(), fit_intercept=False
            ).in_basis(basis)
            coef = rng.choice([0.0, 1.0]) * direction
            sums.append(objective.gradient_sum(coef, clip))
            scores.append(-objective.line_losses(coef, direction, steps, **bound))
    scores, sums = np.array(scores), np.array(sums)
    if relation == "replace_one":
        largest = max(np.ptp(scores - other, axis=1).max() for other in scores)
        farthest = max(np.linalg.norm(sums - other, axis=1).max() for other in sums)
    else:
        largest = np.ptp(scores, axis=1).max()
        farthest = np.linalg.norm(sums, axis=1).max()
    assert 0.8 * charged < largest <= charged * (1 + 1e-9)
    assert 0.8 * charged_sum < farthest <= charged_sum * (1 + 1e-9)


def test_replace_one_doubles_the_clips_and_takes_the_moment_s_own_factor():
    X, y = make_census(300, random_state=0)
    model = DPAGDClassifier(neighboring_relation="replace_one", preconditioner="full").fit(X, y)
    trace = model.trace_
    moment = trace.noise_scale[0] / trace.events[0].noise_multiplier
    assert moment == pytest.approx(math.sqrt(2) * 9.0, rel=1e-6)
    clip = 2.5 * math.sqrt(trace.whitening.effective_dimension)
    gradient = trace.noise_scale[1] / trace.events[1].noise_multiplier
    assert gradient == pytest.approx(2 * clip, rel=1e-6)


def test_the_schedule_of_clips_is_told_the_effective_dimension():
    class Told(Schedule):
        def values(self, n_iter, facts):
            return np.full(n_iter, 1.0 if facts.effective_dimension is None else 3.0)

    plan = DPAGDClassifier(clip_schedule=Told(), preconditioner="full").plan(100, 9)
    assert plan.clip.max() == 1.0
    assert plan.facts.mu**2 == pytest.approx(0.85 * plan.budget.mu**2)
    white = plan.in_whitened_space(4.0)
    assert set(white.clip) == set(white.facts.clip) == {6.0}
    for name in ("capacity", "gradient_cost", "selection_cost", "second_moment_cost", "ledger"):
        assert getattr(white, name) == getattr(plan, name)
    assert "a second moment costs" in str(plan)


def test_rounding_in_the_basis_is_paid_for(monkeypatch):
    slacks, original = [], AdaptivePlan.gradient_mechanism

    def note(self, t, cost, rounding_slack):
        slacks.append(rounding_slack)
        return original(self, t, cost, rounding_slack)

    X, y = make_census(300, random_state=0)
    monkeypatch.setattr(AdaptivePlan, "gradient_mechanism", note)
    model = DPAGDClassifier(preconditioner="full").fit(X, y)
    objective = Objective(X, 2.0 * y - 1, Logistic())
    basis = model.trace_.whitening.basis
    assert slacks[-1] == objective.in_basis(basis).rounding_slack(300)
    assert slacks[-1] > 2 * objective.rounding_slack(300)


def test_scales_that_only_whitening_makes_too_large_are_refused_in_advance():
    model = DPAGDClassifier(clip_schedule=1e100)
    widest = 1e150 * model.plan(300, 99).selection_epsilon
    model.set_params(max_step=widest / 3).plan(300, 99)
    with pytest.raises(ValueError, match="cannot be drawn"):
        model.set_params(preconditioner="full").plan(300, 99)


def test_callbacks_are_handed_coefficients_of_the_original_columns():
    class Last:
        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, *, X, y):
            pass

        def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
            if context.task_name == "iteration":
                self.scores = fitted_estimator.decision_function(X)

    X, y = make_census(300, random_state=0)
    for preconditioner in NAMES:
        last = Last()
        model = DPAGDClassifier(epsilon=5.0, preconditioner=preconditioner)
        model.set_callbacks(last).fit(X, y)
        assert_array_equal(last.scores, model.decision_function(X))


@pytest.mark.parametrize("preconditioner", NAMES)
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "hinge"])
def test_several_classes_share_one_moment(loss, preconditioner):
    X, y = make_blobs(3000, centers=4, random_state=1)
    model = DPAGDClassifier(
        loss=loss, epsilon=4.0, clip_schedule=1.0, preconditioner=preconditioner
    ).fit(X / 10, y)
    assert model.coef_.shape == (4, 2) and model.score(X / 10, y) > 0.6
    assert model.trace_.release.count("second_moment") == 1


def test_it_can_be_cloned_searched_and_shown():
    X, y = make_census(600, random_state=0)
    model = DPAGDClassifier(preconditioner=FullPreconditioner(share=0.123))
    assert clone(model).get_params()["preconditioner__share"] == 0.123
    grid = {"preconditioner__share": [0.1, 0.3], "preconditioner__row_bound": [2.0]}
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_estimator_.preconditioner.row_bound == 2.0
    choices = {"preconditioner": [None, *NAMES]}
    assert len(GridSearchCV(model, choices, cv=2, error_score="raise").fit(X, y).cv_results_) > 3
    frame = model.fit(X, y).trace_.to_frame()
    assert frame["release"].iloc[0] == "second_moment" and frame["step"].isna().iloc[0]


def test_an_unknown_preconditioner_is_refused():
    for bad, error in [("whiten", ValueError), ("auto", ValueError), (0.5, TypeError)]:
        with pytest.raises(error, match=r"preconditioner=.*Give .*'diagonal', 'full'"):
            DPAGDClassifier(preconditioner=bad).plan(100, 5)


def expected_failed_checks(estimator):
    return {
        "check_class_weight_classifiers": "The default budget is too small for its 50 rows; see "
        "test_the_reason_for_the_one_expected_failure_holds."
    }


@parametrize_with_checks(
    [DPAGDClassifier(preconditioner="full")], expected_failed_checks=expected_failed_checks
)
def test_scikit_learn_check(estimator, check):
    check(estimator)
