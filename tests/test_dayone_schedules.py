"""Day one: schedules by name, intervals before the budget, plans that answer at once."""

import re
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid
from strategies import OURS

from dpglm import DPLinearSVM, DPLogisticRegression, PrivacyOdometer
from dpglm.datasets import make_census
from dpglm.exceptions import UtilityWarning
from dpglm.privacy.noise import seeded_noise
from dpglm.schedules import NAMES
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target
from dpglm.workflow import private_scores

X, Y = make_census(300, random_state=0)
X = X[:, :12]


def short(Model, **parameters):
    return Model(classes=[0, 1], max_iter=3, epsilon=8.0, delta=1e-3, **parameters)


def words(plan):
    return " ".join(str(plan).split())


def settings_of(Model):
    """Return each name that a parameter of an estimator takes, as a setting."""
    names = ((parameter, name) for parameter, named in NAMES.items() for name in named)
    return [{parameter: name} for parameter, name in names if parameter in Model().get_params()]


# --- Schedules by name ---


@pytest.mark.parametrize("Model", OURS)
@pytest.mark.parametrize(
    ("preconditioner", "alpha"),
    [("auto", 0.0), (None, 1e-3), *(pytest.param(*given, marks=pytest.mark.slow) for given in (
        ("diagonal", 1e-3), (None, 0.0)))],
)  # fmt: skip
def test_every_name_works_without_further_facts(Model, preconditioner, alpha):
    space = {"preconditioner": preconditioner, "alpha": alpha}
    for setting in settings_of(Model):
        with seeded_noise(0):
            model = short(Model, **space, **setting).fit(X, Y)
        assert np.abs(model.coef_).max() < 1e3, setting


@pytest.mark.parametrize("name", NAMES["step_schedule"])
def test_steps_by_name_converge_without_noise(name):
    """The numbers that the names take are those of the whitened space: nothing diverges."""
    data = make_census(2000, random_state=0)
    for Model in (DPLogisticRegression, DPLinearSVM):
        exact = Model(epsilon=np.inf, classes=[0, 1], step_schedule=name).fit(*data)
        assert exact.score(*data) > 0.83


@pytest.mark.parametrize("Model", OURS)
def test_parameters_of_a_schedule_follow_its_name(Model):
    grid = {"clip_schedule": ["decaying", 0.5], "momentum": ["heavy_ball"]}
    grid = [grid | {"momentum__coefficient": [0.2, 0.4]}]
    if "noise_schedule" in Model().get_params():
        grid.append({"noise_schedule": ["dynamic"], "noise_schedule__decay": [2.0, 4.0]})
    found = GridSearchCV(short(Model), grid, cv=2, error_score="raise").fit(X, Y)
    assert len(found.cv_results_["params"]) == len(ParameterGrid(grid))
    named = Model(momentum="heavy_ball", clip_schedule=1.0).set_params(
        momentum__coefficient=0.2, clip_schedule__value=2.0
    )
    assert named.momentum.coefficient == 0.2 and named.clip_schedule.value == 2.0
    assert clone(named).momentum.coefficient == 0.2
    with pytest.raises(ValueError, match=r"clip_schedule='auto' has no parameters such as.*Set"):
        Model().set_params(clip_schedule__initial=2.0)
    with pytest.raises(ValueError, match="Invalid parameter 'height'"):
        named.set_params(clip_schedule__height=2.0)


def test_names_of_other_parameters_are_refused_before_they_cost_anything(tmp_path):
    names = {name for named in NAMES.values() for name in named}
    odometer = PrivacyOdometer(tmp_path / "odometer")
    with odometer:
        for parameter, named in NAMES.items():
            for name in names - {*named}:
                model = short(DPLogisticRegression, **{parameter: name})
                with pytest.raises(ValueError, match=f"{parameter}='{name}' is no .* one of"):
                    model.fit(X, Y)
    assert not odometer.entries()


def test_the_page_has_the_names_of_the_registry():
    page = (Path(__file__).parents[1] / "docs" / "schedules.md").read_text()
    rows = re.findall(r"^\| `\"(\w+)\"` \|.*\| (.*) \|$", page, re.M)
    for parameter, named in NAMES.items():
        short_name = parameter.removesuffix("_schedule")
        assert {name for name, where in rows if short_name in where} == {*named}


# --- Plans that answer at once ---

EXTREMES = {
    "tiny rate": {"sampling_rate": 1e-6},
    "small rate": {"sampling_rate": 1e-4, "preconditioner": None},
    "rate near 1": {"sampling_rate": 1 - 1e-12},
    "rate and shape": {"sampling_rate": 1e-3, "noise_schedule": "polynomial", "max_iter": 4},
    "tiny epsilon": {"epsilon": 1e-300},
    "many iterations": {"max_iter": 10**6},
    "budget": {"max_iter": "budget", "noise_multiplier": 1e4},
}
SLOW = {"small rate", "rate and shape"}


@pytest.mark.parametrize(
    ("name", "n_samples"),
    [
        pytest.param(name, n, marks=[pytest.mark.slow] * (n < 10**12 or name in SLOW))
        for name in EXTREMES
        for n in (10_000, 10**12)
    ],
)
def test_extreme_plans_are_fast_or_refused(name, n_samples):
    start = time.process_time()
    try:
        plan = DPLogisticRegression(**EXTREMES[name]).plan(n_samples, 20, 1000)
        assert 0.99 < plan.ledger.epsilon() <= 1.0
    except ValueError as refusal:
        assert re.search("epsilon=1e-300|100,000", str(refusal))
    assert time.process_time() - start < 3


# --- Intervals before the budget ---


def table_of(n, n_numbers, n_categories):
    """Return a schema of numbers and categories, and uniform rows of it with labels."""
    columns = [NumericColumn(f"x{i}", 0, 100) for i in range(n_numbers)]
    columns += [CategoricalColumn(f"c{i}", list("abcd")) for i in range(n_categories)]
    rng = np.random.default_rng(0)
    rows = {f"x{i}": rng.uniform(0, 100, n) for i in range(n_numbers)}
    rows |= {f"c{i}": rng.choice(list("abcd"), n) for i in range(n_categories)}
    y = (rng.random(n) < 1 / (1 + np.exp(1 - rows["x0"] / 50))).astype(int)
    return Schema("table", columns, Target("y", [0, 1])), rows, y


@pytest.mark.parametrize(
    ("n", "epsilon", "n_numbers", "n_categories"),
    [(12_000, 4.0, 3, 4), (12_000, 4.0, 12, 0), (30_000, 1.0, 5, 3)],
)
def test_intervals_that_cannot_be_expected_are_warned_of(n, epsilon, n_numbers, n_categories):
    """All are suppressed with curves, at half of the budget; lines are all shown."""
    schema, rows, y = table_of(n, n_numbers, n_categories)
    model = DPLogisticRegression(epsilon=epsilon, inference_fraction=0.5, classes=[0, 1])
    lines = schema.additive(1)
    match = r"none if more are not rare.*additive\(1\)"
    with pytest.warns(UtilityWarning, match=match), seeded_noise(0):
        curves = model.fit(schema.transformer().fit_transform(rows), y).inference(schema=schema)
    assert all(curves.suppression_reasons)
    with seeded_noise(0):
        fitted = model.fit(lines.transformer().fit_transform(rows), y)
    found = fitted.inference(schema=lines)
    plan = model.set_params(max_row_norm=lines.max_row_norm()).plan(n, lines.n_encoded)
    assert plan.expected_columns[1] == lines.n_encoded + 1
    assert f"intervals of {lines.n_encoded + 1} columns" in words(plan)
    assert sum(not reason for reason in found.suppression_reasons) >= 0.9 * len(found.names)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_plan_says_how_many_intervals_to_expect(relation):
    """More with more epsilon, up to all columns; a bound on rows tells how many are not rare."""
    settings = {"inference_fraction": 0.5, "neighboring_relation": relation}
    model, found = DPLogisticRegression(**settings), []
    for epsilon in (2.5, 4.0, 8.0, 100.0):
        plan = model.set_params(epsilon=epsilon).plan(20_000, 49)
        assert plan.expected_columns[0] == 50 and plan.intervals_message in words(plan)
        found.append(plan.expected_columns[1])
    assert found == sorted(found) and found[0] < 50 == found[-1]
    for norm in (2.0, 6.0):
        plan = model.set_params(epsilon=2.5, max_row_norm=norm).plan(20_000, 49)
        assert plan.expected_columns[0] == min(2 * norm**2, 50)
        assert ("none if more" in plan.warning_message) == (norm == 6)


# --- An epsilon that says little ---


@pytest.mark.parametrize("Model", OURS)
@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (1000.0, True), (np.inf, False)])
def test_an_epsilon_that_says_little_is_warned_of(Model, epsilon, warned):
    model = Model(epsilon=epsilon, delta=1e-3, classes=[0, 1], max_iter=2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(X, Y)
        private_scores(model, X, Y, epsilon=epsilon)
    said = [w for w in found if "says little" in str(w.message)]
    assert len(said) == 2 * warned and all(w.filename == __file__ for w in said)
