"""Day one: the positive class, drafts, columns in files, one spelling of a text."""

import dataclasses
import datetime
import functools
import json
import re
import unicodedata
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from strategies import OURS, through_skops
from tapes import record

from dpglm import DPLogisticRegression, PrivateSearchCV, seeded_noise
from dpglm.exceptions import UtilityWarning
from dpglm.schema import (
    BooleanColumn,
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Schema,
    Target,
    TextColumn,
    load_schema,
)
from dpglm.study import ShapeDisplay, explain_local
from dpglm.study.models import fit_csv
from dpglm.workflow import PrivateThresholdClassifier, private_scores

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
PAIRS = [
    (("none", "claim"), LogisticRegression(), 0),
    ((False, True), LinearSVC(), 1),
    (("ete", "e\u0301te"), LogisticRegression(), 1),
]


@pytest.mark.parametrize(("pair", "model", "which"), PAIRS)
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
    assert scores.pos_label == pos and f"positive class  {pos}" in str(scores)
    tuned = PrivateThresholdClassifier(model, COSTS, **of).fit(X, y)
    predicted = tuned.predict(X)
    assert tuned.pos_label_ == pos
    assert_array_equal(predicted == pos, chance >= tuned.threshold_)
    assert np.mean(predicted == pos) > 0.8 > np.mean(model.predict(X) == pos)


PRIVATE = DPLogisticRegression(epsilon=50.0, classes=["none", "claim"])
PIPELINE = make_pipeline(people("none", "claim").transformer(), PRIVATE)
FITTED = sklearn.clone(PIPELINE).fit(TABLE, CLAIM)


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
@pytest.mark.parametrize("wrapper", [FrozenEstimator, lambda model: PrivateSearchCV(model, {})])
def test_dayone_the_last_label_of_the_schema_is_positive_everywhere(wrapper):
    rows = pd.DataFrame(TABLE)
    model = wrapper(FITTED if wrapper is FrozenEstimator else PIPELINE).fit(rows, CLAIM)
    assert model.classes_.tolist() == ["claim", "none"]
    tuned = PrivateThresholdClassifier(model, COSTS, epsilon=50.0).fit(rows, CLAIM)
    assert tuned.pos_label_ == "claim" and np.mean(tuned.predict(rows) == "claim") > 0.8


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
    assert_allclose(second.predict(X).value, 1 - named.predict(X).value)
    assert_array_equal(second.conf_int(), -named.conf_int()[:, ::-1])


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
def test_dayone_shapes_are_of_the_positive_class():
    model, rows = FITTED, {"a": X[:3, 0], "b": X[:3, 1]}
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
    "threshold": lambda model, p: PrivateThresholdClassifier(model, pos_label=p).fit(X, CLAIM),
    "shapes": lambda model, p: explain_local(model, TABLE, people(0, 1), pos_label=p),
    "display": lambda model, p: ShapeDisplay.from_estimator(model, people(0, 1), pos_label=p),
}


@pytest.mark.parametrize("place", PLACES)
def test_dayone_a_wrong_positive_class_is_refused_with_the_classes(place):
    model = LogisticRegression().fit(X, CLAIM)
    for wrong in ("Claim", True, np.nan, ["claim", "none"]):
        with record() as tape, pytest.raises(ValueError, match=r"pos_label=.*'claim', 'none'"):
            PLACES[place](model, wrong)
        assert not tape.releases


# Drafts

TODAY = datetime.date(2020, 2, 29)
TABLES = {
    "number": [1.5, None, 3.0],
    "whole": [1, None, 3],
    "flag": [True, None, False],
    "day": [TODAY, None, TODAY],
    "word": ["a", None, "b"],
    "size": ["s", None, "l"],
}
SIZES = ["s", "l"]
ORDERED = pd.Categorical(TABLES["size"], categories=SIZES, ordered=True)


FRAMES = {
    "objects": lambda: pd.DataFrame(TABLES, dtype=object).assign(size=ORDERED),
    "lists": lambda: TABLES | {"size": ORDERED},
    "polars": lambda: pl.DataFrame(TABLES, schema_overrides={"size": pl.Enum(SIZES)}),
    "arrow": lambda: pa.table(TABLES | {"size": pa.array(ORDERED)}),
}
PUBLIC = {
    "number": {"lower": 0, "upper": 4, "n_segments": 1},
    "whole": {"lower": 0, "upper": 4, "n_segments": 1},
    "flag": {},
    "day": {"first": "2020-02-28", "last": "2020-03-01", "n_segments": 1},
    "word": {"categories": ["a", "b"]},
    "size": {"categories": SIZES},
}


@pytest.mark.parametrize("container", FRAMES)
def test_dayone_a_draft_is_filled_in_and_loaded_with_all_kinds(container, tmp_path):
    frame = FRAMES[container]()
    draft = Schema.draft(frame)
    kinds = {"number": NumericColumn, "whole": NumericColumn, "flag": BooleanColumn}
    kinds |= {"day": DateColumn, "word": CategoricalColumn, "size": OrdinalColumn}
    assert {column.name: type(column) for column in draft.columns} == kinds
    assert draft.columns[5].categories == "FILL IN"  # of which pandas read some off the rows
    assert draft.columns[1].integer
    assert Schema.from_json(draft.to_json()) == draft and "2020" not in draft.to_json()
    document = draft.to_dict()
    for column in document["columns"]:
        assert {k for k, v in column.items() if v == "FILL IN"} <= set(PUBLIC[column["name"]])
        column |= PUBLIC[column["name"]] | {"missing": "indicator"}
    file = tmp_path / "filled.json"
    file.write_text(json.dumps(document | {"target": {"name": "y", "labels": [0, 1]}}))
    schema = load_schema(file)
    (line,) = schema.check(frame).splitlines()[1:]
    assert line.startswith("the table has no column 'y', which the schema names")


ASKED = {
    "code": ["zip", "ZIPCode", "branchCode"],
    "identifier": ["id", "customerID", "account number"],
    "phone": ["home_phone", "mobile no"],
    "year": ["birthYear", "yr_built"],
    "date": ["signup_date", "dob"],
    "coordinate": ["lat", "pickup_latitude", "gps_x"],
}
PLAIN = ["age", "paid", "valid", "grid", "years_of_school", "candidate", "latency", "telecom"]


def test_dayone_names_that_look_like_codes_are_asked_about_and_doubted():
    names = {name: what for what, several in ASKED.items() for name in several}
    names |= dict.fromkeys(PLAIN)
    doubts = "\n".join(Schema.draft({name: [1, 2] for name in names}).doubts)
    for name, what in names.items():
        asked = re.findall(rf"^column {re.escape(repr(name))}: is it an? (\w+)", doubts, re.M)
        assert asked == [what] * bool(what), (name, asked)
    target, columns = Target("y", [0, 1]), [NumericColumn(name, 0, 3000) for name in names]
    said = Schema("t", columns, target).check({name: [1] for name in names} | {"y": [1]})
    assert said.count("is it a") == sum(map(len, ASKED.values())) and said.endswith("was found.")
    fine = [NumericColumn("year", 1990, 2030), CategoricalColumn("zip", ["1"])]
    assert not Schema("t", fine, target).doubts


# Files

PUBLIC_OF = {
    NumericColumn: ([0, 9], 3, [2.0, 99, "9"], {"special_values": [0, 99]}),
    DateColumn: (["2020-01-01", TODAY], "2020-02-02", [TODAY, "2020-01-09"], {}),
    BooleanColumn: ([], True, [True, "false", 0], {}),
    OrdinalColumn: ([["s", "é", "l"]], "é", ["l", "e\u0301"], {}),
    CategoricalColumn: ([["a", "é"]], "é", ["a", "e\u0301"], {"handle_unknown": "indicator"}),
    TextColumn: ([8], "none", ["some words", "été"], {}),
}


def of_all_kinds():
    """Return a schema with every kind of column under every policy, and a table of it."""
    columns, table = [], {"y": ["no", "yes"] * 12}
    for kind, (public, constant, values, own) in PUBLIC_OF.items():
        for k, missing in enumerate((None, "indicator", constant)):
            columns.append(kind(f"{kind.__name__}{k}", *public, missing=missing, **own))
            table[columns[-1].name] = ([*values, *[None] * (k > 0)] * 24)[:24]
    return Schema("all", columns, Target("y", ["no", "yes"])), table


def fitted():
    """Return models with the rows that they are for: one of all kinds of columns is the first."""
    schema, table = of_all_kinds()
    encoder, y = schema.transformer(sparse_output=True), table["y"]
    model = DPLogisticRegression(max_iter=2, classes=["no", "yes"])
    found = [(make_pipeline(encoder, model).fit(table, y), table)]
    model = sklearn.clone(model).fit(X[:24], y)
    others = PrivateThresholdClassifier(model), PrivateSearchCV(model, {})
    return [*found, *((other.fit(X[:24], y), X[:24]) for other in others)]


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.UtilityWarning")
@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
def test_dayone_all_kinds_of_columns_survive_a_file():
    schema, table = of_all_kinds()
    loaded = through_skops(schema)
    assert loaded == schema and through_skops(schema.additive(2)) == schema.additive(2)
    encoded = [each.transformer().fit_transform(table) for each in (loaded, schema)]
    assert_array_equal(*encoded)
    for model, rows in fitted():
        loaded = through_skops(model)
        assert_array_equal(loaded.predict(rows), model.predict(rows))
        assert getattr(loaded, "privacy_", None) == getattr(model, "privacy_", None)


# Spellings

NFC, NFD = (functools.partial(unicodedata.normalize, form) for form in ("NFC", "NFD"))
FRENCH = Schema(
    "t",
    [CategoricalColumn("naïf", ["é", "u"], missing="é"), NumericColumn("âge", 0, 1, n_segments=1)],
    Target("réponse", ["bien", "bébé"]),
)


@functools.cache
def french():
    rows = {"naïf": np.where(HIGH, "é", "u"), "âge": X[:, 0]}
    y = np.where(X[:, 0] + X[:, 1] > 1, "bébé", "bien")
    model = DPLogisticRegression(epsilon=50.0, inference_fraction=0.5, classes=["bien", "bébé"])
    with warnings.catch_warnings(action="ignore"), seeded_noise(0):
        model.fit(FRENCH.transformer().fit_transform(rows), y)
    return model, model.inference(schema=FRENCH), rows


@pytest.mark.parametrize("form", [NFC, NFD])
def test_dayone_the_column_of_persons_is_no_feature_however_it_is_spelled(form, tmp_path):
    values = {"naïf": "u", "âge": 0.5, "réponse": ["bien", NFD("bébé")] * 4, "été": "p"}
    pd.DataFrame(values).rename(columns=NFD).to_csv(tmp_path / "t.csv", index=False)
    schema = dataclasses.replace(FRENCH, columns=[*FRENCH.columns, CategoricalColumn("été", ["p"])])
    options = {"epsilon": 9.0, "groups": form("été"), "max_contributions": 1}
    model = fit_csv(tmp_path / "t.csv", schema, "logistic", **options)
    assert [column["name"] for column in model["schema"]["columns"]] == ["naïf", "âge"]


SPELLED = {
    "references": lambda s: (
        french()[0].inference(schema=FRENCH, references={s("naïf"): s("é")}).names
    ),
    "risk": lambda s: french()[1].risk_difference(french()[2], s("naïf"), s("é"), "u").value,
    "positive class": lambda s: french()[0].inference(pos_label=s("bébé")).target,
    "shapes": lambda s: len(
        ShapeDisplay.from_estimator(french()[0], FRENCH, columns=[s("naïf")]).panels
    ),
    "constant": lambda s: repr(CategoricalColumn("x", ["é", "u"], missing=s("é"))),
    "target": lambda s: Schema.draft({"a": [1], "été": [1]}, target=s("été")).target,
}


@pytest.mark.parametrize("place", SPELLED)
def test_dayone_a_text_is_known_however_it_is_spelled(place):
    assert SPELLED[place](NFD) == SPELLED[place](NFC)


# Columns that a fit cannot learn from


def warned(fit):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit()
    return " ".join(str(each.message) for each in said if each.category is UtilityWarning)


RAW = {
    "years": (lambda rng, n: rng.integers(2015, 2026, n), True),
    "seconds": (lambda rng, n: 1.7e9 + 3e7 * rng.random(n), True),
    "one number": (lambda rng, n: np.full(n, 50.0), True),
    "ages": (lambda rng, n: rng.integers(20, 66, n), False),
    "amounts": (lambda rng, n: np.exp(rng.normal(10.0, 1.0, n)), False),
    "nearly all ones": (lambda rng, n: rng.random(n) < 0.97, False),
}


@pytest.mark.parametrize("Estimator", OURS)
def test_dayone_numbers_far_from_zero_are_warned_of(Estimator):
    rng = np.random.default_rng(0)
    rows = np.column_stack([make(rng, 20_000) for make, _ in RAW.values()])
    y = rng.random(20_000) < 0.5
    with seeded_noise(1):
        said = warned(lambda: Estimator(epsilon=5.0, classes=[False, True]).fit(rows, y))
    far = [k for k, (_, is_far) in enumerate(RAW.values()) if is_far]
    assert f"Columns {far} have large numbers that differ by little" in said


@pytest.mark.parametrize("Estimator", OURS)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_dayone_very_many_columns_are_warned_of_before_they_cost(Estimator, n_classes):
    wide, model = 2**16, Estimator(max_iter=1)
    text = "coefficients. Each gradient gets noise"
    for n_columns in (wide // 8, wide):
        plan = model.plan(10**6, n_columns, n_classes)
        is_wide = n_columns * (n_classes if n_classes > 2 else 1) >= wide
        assert (text in warned(lambda p=plan: p.warn(1))) == is_wide
        assert (text in plan.statement) == is_wide
