"""Day one: arguments by habit, budgets that nobody counts, runs that cannot learn."""

import warnings
from itertools import product

import numpy as np
import pandas as pd
import pytest
from strategies import OURS

from dpglm import (
    DPAGDClassifier,
    DPLinearRegression,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyOdometer,
    PrivateSearchCV,
    PublicBoundsScaler,
    Schema,
    make_census,
    private_scores,
    seeded_noise,
)
from dpglm.baselines import MajorityClassifier, PrivGene
from dpglm.exceptions import PrivacyWarning, UtilityWarning
from dpglm.schedules import ExponentialDecay
from dpglm.schema import CategoricalColumn, Target
from dpglm.workflow import PrivateCalibratedClassifier

X, Y = make_census(300, random_state=0)
X = X[:, :12]
PERSONS = np.arange(300) // 2
QUICK = {"classes": [0, 1], "max_iter": 3, "epsilon": 8.0, "delta": 1e-3}
FITTED = DPLogisticRegression(**QUICK).fit(X, Y)

ESTIMATORS = [
    DPLogisticRegression(**QUICK),
    DPLinearSVM(**QUICK),
    DPAGDClassifier(**QUICK),
    PrivGene(),
    DPLinearRegression(),
    MajorityClassifier(),
    PrivateSearchCV(DPLogisticRegression(**QUICK), {"alpha": [0.0]}),
    PrivateCalibratedClassifier(FITTED),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_persons_by_position_are_no_weights(estimator):
    with pytest.raises(TypeError, match="fit takes X, y by position; by name: "):
        estimator.fit(X, Y, PERSONS)
    assert not hasattr(estimator, "privacy_")


CALLS = {
    "'verbose' for fit: a fit prints": lambda: DPLogisticRegression(**QUICK).fit(X, Y, verbose=1),
    "'alpha' for inference: .* level=0.95": lambda: FITTED.inference(alpha=0.05),
    r"take privacy_.epsilon\(\)": lambda: FITTED.privacy_["epsilon"],
    "epsilon=1e.300 must be a number at most": lambda: DPLinearSVM(epsilon=1e300).fit(X, Y),
    "lower={'a': 0} must be a finite number": lambda: PublicBoundsScaler({"a": 0}, {"a": 1}).fit(X),
    "schema is not JSON": lambda: Schema.from_json("[" * 100_000 + "]" * 100_000),
}


@pytest.mark.parametrize("text", CALLS)
def test_arguments_by_habit_are_answered(text):
    with pytest.raises((TypeError, ValueError), match=text):
        CALLS[text]()


def test_numbers_find_the_code_whose_zeros_they_lost_if_it_is_one():
    cases = (["01", "2"], [0, 1]), (["1", "01"], [0, -1]), (["01", "001"], [-1, -1])
    for categories, places in cases:
        schema = Schema("t", [CategoricalColumn("c", categories)], Target("y", [0, 1]))
        found = schema.transformer().fit_transform(pd.DataFrame({"c": [1, 2]}))
        assert [row.argmax() if row.any() else -1 for row in np.asarray(found)] == places


# --- Budgets that nobody counts ---


def test_a_large_limit_and_an_empty_file_are_warned_of(tmp_path):
    with pytest.warns(PrivacyWarning, match="epsilon=1000 says little") as said:
        PrivacyOdometer(tmp_path / "study.db", epsilon=1000.0)
    assert said[0].filename == __file__
    (tmp_path / "empty.db").touch()
    with pytest.warns(PrivacyWarning, match="empty.db is empty and begins anew"):
        PrivacyOdometer(tmp_path / "empty.db")


def test_a_fit_outside_of_the_block_of_an_odometer_is_warned_of(tmp_path):
    fits = (
        lambda: DPLogisticRegression(**QUICK).fit(X, Y),
        lambda: private_scores(FITTED, X, Y, epsilon=1.0, delta=1e-3, scores=["accuracy"]),
    )
    for fit in fits:
        odometer = PrivacyOdometer(tmp_path / "study.db", epsilon=20.0)
        with pytest.warns(PrivacyWarning, match="not recorded in .*study.db: fit in the") as said:
            fit()
        assert [each.filename for each in said] == [__file__]
        with odometer:
            fit()
        fit()


# --- Runs that cannot learn ---

CENSUS, RICH = make_census(2000, random_state=0)
HIDDEN = {
    "small budget": ({"epsilon": 1e-2, "preconditioner": None}, "n mu = "),
    "huge clip": ({"clip_schedule": 1e6}, "times as long as gradients, even in the mean"),
    "growing noise": ({"noise_schedule": ExponentialDecay(1.0, 1.5)}, "times as long"),
    "steps by name": (
        {"step_schedule": "convex", "max_row_norm": 4.0, "preconditioner": None},
        "up to max_row_norm=4 are clipped to 0.",
    ),
    "huge bound": ({"max_row_norm": 1e6}, "grows with the square of row_clipping_norm=1e"),
}


@pytest.mark.parametrize(
    ("Model", "name"),
    [
        (Model, name)
        for Model in OURS
        for name, (settings, _) in HIDDEN.items()
        if settings.keys() <= Model().get_params().keys()
    ],
)
def test_settings_that_hide_everything_are_warned_of(Model, name):
    """By the fit, as the plan prints it, unless only a release shows it."""
    settings, says = HIDDEN[name]
    model = Model(**{"classes": [0, 1], "epsilon": 4.0} | settings)
    with seeded_noise(0), pytest.warns(UtilityWarning, match=says) as said:
        model.fit(CENSUS, RICH)
    assert {each.filename for each in said} == {__file__}
    planned = model.plan(*CENSUS.shape).warning_message
    assert (says in planned) == (name != "huge bound")
    assert not Model(epsilon=4.0).plan(*CENSUS.shape).warning_message


def said_by(model, rows, labels, **options):
    with seeded_noise(0), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(rows, labels, **options)
    return " ".join(str(each.message) for each in said)


def test_weights_far_below_their_bound_and_codes_among_numbers_are_named_from_releases():
    model = DPLogisticRegression(epsilon=8.0)
    for (weight, is_low), width in product(((0.01, True), (10.0, False)), (3, None)):
        said = said_by(model, CENSUS[:, :width], RICH, sample_weight=np.full(2000, weight))
        assert ("Set max_weight to about" in said) == is_low
    rows = np.random.default_rng(0).normal(size=(2000, 3))
    for code, is_said in ((999_999.0, True), (9.0, False)):
        rows[:80, 0] = code
        said = said_by(model, rows, rows[:, 1] > 0)
        assert ("lost most numbers of columns [0]," in said) == is_said


def test_a_regression_warns_of_a_small_budget_before_its_charge(tmp_path):
    with PrivacyOdometer(tmp_path / "study.db") as odometer, warnings.catch_warnings():
        warnings.simplefilter("error", UtilityWarning)
        with pytest.raises(UtilityWarning, match="probably little to learn from"):
            DPLinearRegression(epsilon=0.01).fit(X, X[:, 0])
        warnings.simplefilter("ignore", UtilityWarning)
        fitted = DPLinearRegression().fit(X, X[:, 0], sample_weight=np.ones(len(X)))
    assert odometer.entries()[0].ledger.events == fitted.privacy_.events
    assert fitted.privacy_.events[0][0].purpose == "weight sum, for the mean weight"
