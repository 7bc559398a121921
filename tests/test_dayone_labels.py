"""Day one: the positive class, drafts, columns in files, one spelling of a text."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from tapes import record

from dpglm import DPLogisticRegression, PrivateSearchCV, seeded_noise
from dpglm.schema import NumericColumn, Schema, Target
from dpglm.study import ShapeDisplay, explain_local
from dpglm.workflow import PrivateThresholdClassifier, make_private_scorer, private_scores

N = 400
RNG = np.random.default_rng(0)
X = RNG.random((N, 2))
HIGH = RNG.random(N) < 1 / (1 + np.exp(3 - 4 * X[:, 0]))
COSTS = {"false_positive": 1.0, "false_negative": 20.0}


# The positive class


def labelled(low, high):
    return np.where(HIGH, high, low)


def people(*labels):
    columns = [NumericColumn(name, 0, 1, n_segments=1) for name in "ab"]
    return Schema("people", columns, Target("y", labels))


TABLE, CLAIM = {"a": X[:, 0], "b": X[:, 1]}, labelled("none", "claim")
PAIRS = [("none", "claim"), (False, True), ("ete", "e\u0301te")]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("model", [LogisticRegression(), LinearSVC()])
@pytest.mark.parametrize("which", [0, 1])
def test_dayone_every_score_of_one_class_is_of_the_positive_one(pair, model, which):
    """Without noise, curves and thresholds are those of the class that is named."""
    y, pos = labelled(*pair), pair[which]
    model = model.fit(X, y)
    of = {"epsilon": np.inf, "pos_label": pos}
    scores = private_scores(model, X, y, **of)
    column = model.classes_.tolist().index(pos)
    if hasattr(model, "predict_proba"):
        chance = model.predict_proba(X)[:, column]
    else:
        chance = model.decision_function(X) * (1 if column else -1)
    curve = scores.roc_curve
    above = chance[:, None] >= curve.threshold
    assert_allclose(curve.true_positive_rate.value, above[y == pos].mean(axis=0), atol=1e-9)
    assert_allclose(curve.false_positive_rate.value, above[y != pos].mean(axis=0), atol=1e-9)
    assert_allclose(scores.confusion_matrix.value, confusion_matrix(y, model.predict(X)), atol=1e-9)
    if hasattr(model, "predict_proba"):
        groups = scores.calibration_curve
        share = groups.observed.value @ groups.n_records / N
        assert share == pytest.approx(np.mean(y == pos))
    assert scores.pos_label == pos and f"positive class: {pos}" in repr(scores)
    for score in ("accuracy", "auc"):
        exact = make_private_scorer(score, **of)(model, X, y)
        assert exact == pytest.approx(getattr(scores, score).value)
    tuned = PrivateThresholdClassifier(model, COSTS, **of).fit(X, y)
    predicted = tuned.predict(X)
    assert tuned.pos_label_ == pos
    assert_array_equal(predicted == pos, chance >= tuned.threshold_)
    assert np.mean(predicted == pos) > 0.8 > np.mean(model.predict(X) == pos)


PRIVATE = DPLogisticRegression(epsilon=50.0, classes=["none", "claim"])
PIPELINE = make_pipeline(people("none", "claim").transformer(), PRIVATE)
WRAPPERS = {
    "pipeline": lambda: PIPELINE,
    "frozen": lambda: FrozenEstimator(PIPELINE.fit(TABLE, CLAIM)),
    "search": lambda: PrivateSearchCV(PIPELINE, {}, classes=PRIVATE.classes, epsilon=50.0),
}


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_dayone_the_last_label_of_the_schema_is_positive_everywhere(wrapper):
    rows = pd.DataFrame(TABLE) if wrapper == "search" else TABLE
    model = WRAPPERS[wrapper]().fit(rows, CLAIM)
    assert model.classes_.tolist() == ["claim", "none"]
    assert private_scores(model, rows, CLAIM, epsilon=1.0).pos_label == "claim"
    tuned = PrivateThresholdClassifier(model, COSTS, epsilon=50.0).fit(rows, CLAIM)
    assert np.mean(tuned.predict(rows) == "claim") > 0.8


def inference(**options):
    model = sklearn.clone(PRIVATE).set_params(inference_fraction=0.5)
    with seeded_noise(0):
        model.fit(PIPELINE[:-1].fit_transform(TABLE), CLAIM)
    return model.inference(**options)


@pytest.mark.filterwarnings("ignore")
def test_dayone_coefficients_are_of_the_positive_class():
    schema = people("none", "claim")
    second, named = inference(), inference(pos_label="claim")
    of_schema = inference(schema=schema)
    assert_array_equal(second.params, -named.params)
    assert_array_equal(second.bse, named.bse)
    assert second.target == "y = none" and named.target == of_schema.target == "y = claim"
    assert "y = claim" in str(of_schema.summary()) and named.params[1] > 0 > second.params[1]
    assert_allclose(of_schema.params, named.params)
    assert_allclose(second.risk(X).value, 1 - named.risk(X).value)
    assert_array_equal(second.conf_int(), -named.conf_int()[:, ::-1])


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
def test_dayone_shapes_are_of_the_positive_class():
    model, rows = sklearn.clone(PIPELINE).fit(TABLE, CLAIM), {"a": X[:3, 0], "b": X[:3, 1]}
    added = explain_local(model, rows)
    assert_allclose(added.sum(axis=1), -model.decision_function(rows))
    assert_allclose(explain_local(model, rows, pos_label="none"), -added)
    figure = ShapeDisplay.from_estimator(model[-1], people("none", "claim")).plot().figure_
    assert "y = claim" in figure.get_suptitle()
    # A schema of other labels says nothing of these.
    added = explain_local(model[-1], rows, people(0, 1))
    assert_allclose(added.sum(axis=1), model.decision_function(rows))


PLACES = {
    "scores": lambda model, p: private_scores(model, X, CLAIM, epsilon=1.0, pos_label=p),
    "scorer": lambda model, p: make_private_scorer("auc", epsilon=1.0, pos_label=p)(
        model, X, CLAIM
    ),
    "threshold": lambda model, p: PrivateThresholdClassifier(model, pos_label=p).fit(X, CLAIM),
    "shapes": lambda model, p: explain_local(model, TABLE, people(0, 1), pos_label=p),
    "display": lambda model, p: ShapeDisplay.from_estimator(model, people(0, 1), pos_label=p),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", ["Claim", 1, True, np.nan, ["claim", "none"], ("claim",)])
def test_dayone_a_wrong_positive_class_is_refused_with_the_classes(place, wrong):
    model = LogisticRegression().fit(X, CLAIM)
    with record() as tape, pytest.raises(ValueError, match=r"pos_label=.*'claim', 'none'") as error:
        PLACES[place](model, wrong)
    assert not tape.releases and not hasattr(error.value, "privacy_ledger")


def test_dayone_more_than_two_classes_have_no_positive_one():
    y = np.arange(N) % 3
    model = LogisticRegression().fit(X, y)
    assert private_scores(model, X, y, epsilon=1.0).pos_label is None
    with pytest.raises(ValueError, match="pos_label=1 is for two classes"):
        private_scores(model, X, y, epsilon=1.0, pos_label=1)
