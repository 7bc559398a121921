"""A search on private records: what it costs, how it chooses, what it refuses."""

import itertools
import math
from datetime import date

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import log_expit, ndtri_exp
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterSampler
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from strategies import under
from tapes import record, replay

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyBudget,
    PrivacyOdometer,
    seeded_noise,
)
from dpglm.audit.recorder import largest_ratio
from dpglm.baselines import ObjectivePerturbation, PrivGene
from dpglm.datasets import make_census
from dpglm.exceptions import BudgetExceededError, PrivacyWarning
from dpglm.privacy.events import ChoiceEvent, composed_mu, run_lengths
from dpglm.privacy.gaussian import gdp_mu
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import GaussianSum
from dpglm.schedules import ExponentialDecay
from dpglm.schema import DateColumn, Schema, Target, load_schema
from dpglm.workflow import PrivateSearchCV, check_pipeline, total_privacy
from dpglm.workflow.search import LabelledRows, SearchVault

X = np.random.default_rng(0).normal(size=(300, 3))
Y = (X[:, 0] > 0).astype(int)
MODEL = DPLogisticRegression(max_iter=2, preconditioner=None)
OF_GENES = {"estimator": PrivGene(), "param_grid": {}}
GRID = {"clip_schedule": [0.1, 1.0], "noise_schedule": ["constant", ExponentialDecay()]}


def search_of(**changes):
    given = {"estimator": MODEL, "param_grid": GRID, "classes": [0, 1], **changes}
    return PrivateSearchCV(**given)


@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_the_cost_is_that_of_the_parts_and_all_of_the_budget(epsilon):
    plan = search_of(epsilon=epsilon).plan(300, 3)
    choice = (-2 * ndtri_exp(log_expit(-plan.choice_epsilon / 2))) ** 2  # of bounded range
    fits, last = 4 * plan.candidate_mu**2, plan.final_mu**2
    assert plan.ledger.mu() == pytest.approx(math.sqrt(fits + choice + last), rel=1e-9)
    assert plan.ledger.mu() == pytest.approx(gdp_mu(epsilon, 1e-6), rel=1e-8)
    assert epsilon * (1 - 1e-6) < plan.ledger.epsilon() <= epsilon
    assert "4 candidates of" in str(plan)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_what_is_released_costs_what_was_planned_and_the_ledger_says(relation):
    search = search_of(**under(relation, 300))
    plan = search.plan(*X.shape)
    with record() as tape:
        search.fit(X, Y)
    assert search.privacy_ == search.plan_.ledger == plan.ledger
    purposes = {event.purpose for event, _ in plan.ledger.events}
    assert "choice of a candidate" in purposes
    events = [release.event for release in tape.releases]
    # In order: two gradients of each of four candidates, the choice, the last fit.
    fits = [composed_mu(run_lengths(events[i : i + 2])) for i in (0, 2, 4, 6, 9)]
    assert fits[:4] == pytest.approx([plan.candidate_mu] * 4, rel=1e-8)
    assert fits[4] == pytest.approx(plan.final_mu, rel=1e-8)
    assert events[8].epsilon == plan.choice_epsilon and len(events) == 11


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_a_record_moves_no_release_by_more_than_is_charged(relation):
    search, rng = search_of(**under(relation, 300)), np.random.default_rng(1)
    for i in (0, 1, 7):
        neighbour, labels = X.copy(), Y.copy()
        neighbour[i], labels[i] = 1e3 * rng.normal(size=3), 1 - Y[i]
        if relation == "add_or_remove_one":
            neighbour, labels = np.delete(X, i, axis=0), np.delete(Y, i)
        with record() as recorded:
            clone(search).fit(X, Y)
        with replay(recorded) as replayed:
            clone(search).fit(neighbour, labels)
        assert 0 < largest_ratio(recorded, replayed) <= 1


class Says:
    """A model that predicts what it is told."""

    def __init__(self, labels):
        self.labels = np.array(labels)

    def predict(self, rows):
        return self.labels[: len(rows)]


@pytest.mark.parametrize(
    ("relation", "most"), [("zero_out", 1), ("add_or_remove_one", 1), ("replace_one", 2)]
)
def test_the_range_of_counts_is_what_the_choice_is_charged_with(relation, most):
    rows = LabelledRows(np.zeros((1, 1)), np.array([1]))
    answers = itertools.product([0, 1], repeat=3)
    counts = [[rows.n_right(Says([label])) for label in answer] for answer in answers]
    pairs = itertools.product(counts, counts if relation == "replace_one" else [np.zeros(3)])
    assert max(np.ptp(np.subtract(one, other)) for one, other in pairs) == most
    with record() as tape:
        choose(rows, [Says([0]), Says([1]), None], **under(relation, 300))
    assert tape.releases[0].sensitivity == most
    assert tape.releases[0].exact.tolist() == [0, 1, 0]


def test_probabilities_count_by_their_squared_errors_and_move_a_sum_by_one_at_most():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 3
    model = DPLogisticRegression(classes=[0, 1, 2]).fit(X, y)
    errors = np.square(model.predict_proba(X) - np.eye(3)[y]).sum(axis=1) / 2
    rows = LabelledRows(X, y)
    assert rows.n_right(model, soft=True) == pytest.approx(40 - errors.sum(), abs=40 * 2**-20)
    assert rows.n_right(model) == np.sum(model.predict(X) == y)
    sure = DummyClassifier(strategy="constant", constant=1).fit(X, y)
    assert rows.n_right(sure, soft=True) == rows.n_right(sure) == 13
    bare = DPLinearSVM(classes=[0, 1, 2]).fit(X, y)
    with record() as tape:
        choose(rows, [model, sure, None])
        choose(rows, [model, bare])
    assert tape.releases[0].exact[0] == rows.n_right(model, soft=True)
    assert tape.releases[1].exact[0] == rows.n_right(model)


class Hostile:
    """Probabilities that may be anything, for some of the labels in any order."""

    def __init__(self, rng, labels):
        self.classes_ = rng.permutation(labels)[: rng.integers(1, 4)]
        odd = [np.nan, np.inf, -np.inf, -1.0, 1e200, 0.0, 1.0, 0.5]
        self._of_row = rng.choice([*odd, *rng.uniform(size=8)], (50, len(self.classes_)))

    def predict_proba(self, X):
        return self._of_row[X[:, 0].astype(int)]

    def predict(self, X):
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("labels", [["no", "maybe", "yes"], [0, 1, 2]])
def test_no_candidate_moves_a_sum_by_more_than_is_charged(soft, labels):
    rng = np.random.default_rng(0)
    for _ in range(60):
        models = [*(Hostile(rng, labels) for _ in range(3)), None]
        X, y = rng.integers(0, 50, (9, 1)).astype(float), rng.choice(labels, 9)
        one, less = (
            np.array([rows.n_right(model, soft) for model in models])
            for rows in (LabelledRows(X, y), LabelledRows(X[1:], y[1:]))
        )
        moved = one - less
        assert moved.min() >= 0 and moved.max() <= 1 and (moved * 2**20 % 1 == 0).all()


def choose(rows, models, epsilon=0.3, **relation):
    budget = PrivacyBudget(1.0, 1e-6, **relation)
    vault = SearchVault(rows, [(ChoiceEvent(epsilon), 1)], budget, entropy_source())
    return vault.choose_model(models, epsilon)


def test_an_odometer_is_charged_once_and_refuses_the_whole(tmp_path, monkeypatch):
    search = search_of()
    with PrivacyOdometer(tmp_path / "study", epsilon=1.2) as odometer:
        search.fit(X, Y)
        assert odometer.ledgers() == [search.privacy_]
        monkeypatch.setattr(GaussianSum, "release", lambda *_: pytest.fail("released"))
        with pytest.raises(BudgetExceededError, match=r"limit of 1\.2") as refused:
            search.fit(X, Y)
        assert not hasattr(refused.value, "privacy_ledger") and not hasattr(search, "privacy_")
        assert odometer.ledgers() == [search.plan(*X.shape).ledger]
    with pytest.raises(ValueError, match="NaN"), PrivacyOdometer(tmp_path / "other") as odometer:
        search.fit(np.full((300, 3), np.nan), Y)
    assert odometer.total is None


def fails_at(monkeypatch, *numbers):
    count, release = itertools.count(1), GaussianSum.release

    def failing(*given):
        if next(count) in numbers:
            raise FloatingPointError("overflow")
        return release(*given)

    monkeypatch.setattr(GaussianSum, "release", failing)


def test_a_candidate_that_fails_after_its_first_draw_predicts_nothing_right(monkeypatch):
    fails_at(monkeypatch, 4)
    with record() as tape:
        search = search_of().fit(X, Y)
    counts = tape.releases[-3].exact
    assert counts[1] == 0 and counts[[0, 2, 3]].all()
    assert search.privacy_ == search.plan(*X.shape).ledger


@pytest.mark.parametrize("number", [1, 3, 10])
def test_a_search_that_fails_says_what_it_cost_and_leaves_nothing(monkeypatch, number):
    search = search_of().fit(X, Y)
    fails_at(monkeypatch, number)
    with pytest.raises(FloatingPointError) as failed:
        search.fit(X, Y)
    assert getattr(failed.value, "privacy_ledger", None) == search.plan(*X.shape).ledger
    assert not [name for name in vars(search) if name.endswith("_")]


def test_the_best_of_the_candidates_is_found_where_the_budget_allows():
    always_one, plain = {0: 1e-9}, None
    grid = {"class_weight": [always_one, plain], "alpha": [0.0]}
    search = search_of(param_grid=grid, epsilon=20.0).fit(X, Y)
    assert search.best_params_ == {"class_weight": plain, "alpha": 0.0}
    assert search.best_index_ == 1 and search.cv_results_["chosen"].tolist() == [False, True]
    assert search.score(X, Y) == search.best_estimator_.score(X, Y) > 0.8
    assert search.classes_.tolist() == [0, 1] and search.n_features_in_ == 3
    assert [each["class_weight"] for each in search.cv_results_["params"]] == [always_one, plain]
    assert (search.predict(sparse.csr_array(X)) == search.predict(X)).all()


def test_a_pipeline_is_searched_with_nested_names_and_several_grids():
    rows, labels = make_census(120, random_state=0, as_frame=True)
    schema = load_schema("census")
    pipe = Pipeline([("encode", schema.transformer()), ("clf", MODEL)])
    grids = [
        {"clf__noise_schedule": [ExponentialDecay()], "clf__noise_schedule__ratio": [0.9, 0.99]},
        {"encode__sparse_output": [True], "clf": [DPLinearSVM(max_iter=2)]},
    ]
    search = search_of(estimator=pipe, param_grid=grids, classes=schema.classes).fit(rows, labels)
    ratios = [each.get("clf__noise_schedule__ratio") for each in search.cv_results_["params"]]
    assert ratios == [0.9, 0.99, None]
    assert search.plan_.n_candidates == 3 and search.predict(rows).shape == (120,)
    n_columns = len(schema.transformer().fit(rows).get_feature_names_out())
    assert search.privacy_ == search.plan(120, n_columns).ledger


def test_a_pipeline_is_searched_on_a_table_with_dates():
    rows = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=120)})
    days = DateColumn("day", date(2020, 1, 1), date(2020, 12, 31))
    schema = Schema("days", [days], Target("late", [0, 1]))
    pipe = Pipeline([("encode", schema.transformer()), ("clf", MODEL)])
    search = search_of(estimator=pipe, param_grid={"clf__alpha": [0.0, 0.1]}).fit(rows, Y[:120])
    assert search.predict(rows).shape == (120,)
    with pytest.raises(TypeError, match="not blocks"):
        search.fit([(X, Y)], None)


@pytest.mark.parametrize("brought", ["step", "setting", "drawn"])
def test_a_step_that_reads_other_peoples_rows_warns_and_has_no_guarantee(brought):
    pipe = Pipeline([("step", StandardScaler()), ("clf", MODEL)])
    grid = {"clf__clip_schedule": [0.1, 1.0]}
    if brought != "step":
        pipe.set_params(step="passthrough")
        grid = {"step": [StandardScaler(), FunctionTransformer(abs)]}
    if brought == "drawn":
        grid = ParameterSampler(grid, 2, random_state=0)
    search = search_of(estimator=pipe, param_grid=grid)
    with pytest.warns(PrivacyWarning, match="StandardScaler is fitted on all rows") as warned:
        search.fit(X, Y)
    assert {w.filename for w in warned} == {__file__} and search.privacy_.epsilon() == math.inf
    said = any(a.startswith("step treats each row by") for a in search.privacy_.assumptions)
    assert said == (brought != "step")
    with pytest.warns(PrivacyWarning, match="StandardScaler is fitted on all rows"):
        assert total_privacy(search).epsilon() == math.inf
    assert not check_pipeline(search_of())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"param_grid": {"epsilon": [1.0, 2.0]}}, "varies epsilon: the budget"),
        ({"param_grid": {"max_iter": [-1]}}, "'max_iter': -1} cannot be searched"),
        (OF_GENES, r"cannot be searched: .* mu=0\.\d+, .*PrivG"),
        # Its candidates cost no more than they may, and its last fit does.
        (
            {**OF_GENES, "param_grid": [{}] * 16, "delta": 1e-2, "epsilon": 0.6},
            r"mu=0\.3\d+, .* has 0\.2\d+ for it: PrivGene spends its epsilon by",
        ),
        ({"param_grid": []}, "has no setting"),
        ({"delta": 0.5}, "delta=0.5 alone is the cost of each fit of this search"),
        ({"estimator": ObjectivePerturbation(), "param_grid": {"alpha": [0.1]}}, "mu is undefined"),
        ({"estimator": DPAGDClassifier(accountant="zcdp"), "param_grid": {"n_steps": [5]}}, "mu"),
        ({"estimator": DPLogisticRegression(max_contributions=3)}, "belong together"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_released(changes, message):
    with record() as tape, pytest.raises(ValueError, match=message):
        search_of(**changes).fit(X, Y)
    assert not tape.releases


def test_one_seed_for_all_fits_other_estimators_and_blocks_of_rows_are_refused():
    with seeded_noise(0), pytest.raises(ValueError, match="same noise"):
        search_of().fit(X, Y)
    with pytest.raises(TypeError, match="estimators of dpglm"):
        search_of(estimator=LogisticRegression(), param_grid={"C": [1.0]}).fit(X, Y)
    with pytest.raises(TypeError, match="not blocks"):
        search_of().fit([(X, Y)], None)


@pytest.mark.slow
def test_the_checks_of_scikit_learn():
    search = PrivateSearchCV(DPLogisticRegression(), {"max_iter": [20, 30]}, epsilon=math.inf)
    check_estimator(search, on_skip=None)
