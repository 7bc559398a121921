"""A model is shown as the sum that it is: terms of rows, curves and bars say the same numbers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpglm import DPLinearRegression, DPLogisticRegression, DPPoissonRegressor, seeded_noise
from dpglm.schema import (
    BooleanColumn,
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Schema,
    Target,
    TextColumn,
)
from dpglm.study import ShapeDisplay, explain_local
from dpglm.study.shapes import terms_of

plt = pytest.importorskip("matplotlib.pyplot")

TOWNS = [f"town {k}" for k in range(40)]
STAFF = Schema(
    "staff",
    [
        TextColumn("note", 8, missing="indicator"),
        CategoricalColumn(
            "job", ["cook", "baker"], handle_unknown="indicator", missing="indicator"
        ),
        CategoricalColumn("town", TOWNS),
        NumericColumn("age", 17, 90, integer=True),
        NumericColumn("debt", -1e4, 1e6, scale="asinh", linear_width=50.0, missing="indicator"),
        NumericColumn("score", -1.5, 1.5, missing=0, out_of_bounds="missing"),
        DateColumn("hired", "2000-01-01", "2025-12-31", missing="indicator"),
        BooleanColumn("member", missing="indicator"),
        OrdinalColumn("grade", ["low", "mid", "high"]),
    ],
    Target("left", ["no", "yes"]),
)
LINEAR = STAFF.additive(1)
SCHEMAS = [LINEAR, STAFF.additive(8)]


def table(n=240):
    rng = np.random.default_rng(0)
    hired = np.datetime64("1999-06-01") + rng.integers(0, 9900, n)
    columns = {
        "note": rng.choice(["likes tea", "tea", None], n),
        "job": rng.choice(["cook", "baker", "smith", None], n),
        "town": rng.choice([*TOWNS, "elsewhere"], n),
        "age": rng.integers(10, 99, n),
        "debt": np.where(rng.random(n) < 0.2, np.nan, np.sinh(rng.normal(0, 6, n))),
        "score": rng.normal(0, 1, n),
        "hired": np.where(rng.random(n) < 0.2, np.datetime64("NaT", "D"), hired),
        "member": rng.choice([True, False, None], n),
        "grade": rng.choice(["low", "mid", "high"], n),
    }
    return pd.DataFrame(columns, index=range(7, n + 7))


ROWS = table()


@seeded_noise(0)
def fitted(schema, labels=("no", "yes")):
    model = DPLogisticRegression(epsilon=3.0, max_iter=10, classes=labels)
    pipeline = make_pipeline(schema.transformer(), model)
    return pipeline.fit(ROWS, np.resize(labels, len(ROWS)))


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("schema", SCHEMAS, ids=["lines", "curves"])
def test_terms_of_all_kinds_of_columns_add_up_to_the_score(schema):
    model = fitted(schema)
    terms, score = explain_local(model, ROWS), model.decision_function(ROWS)
    assert_allclose(terms.sum(axis=1), score, rtol=1e-12, atol=1e-13)
    assert terms.columns.tolist() == [*schema.feature_names, "(intercept)"]
    assert terms.index.equals(ROWS.index) and (terms.std()[:-1] > 1e-3).all()
    assert_allclose(explain_local(model, ROWS, pos_label="no"), -terms)
    assert_allclose(explain_local(model[-1], pl.from_pandas(ROWS[:9]), schema), terms[:9])
    # A term is a function of one column.
    other = ROWS.assign(age=30)
    assert (explain_local(model, other).drop(columns="age") == terms.drop(columns="age")).all(
        axis=None
    )


def test_each_of_several_classes_has_its_own_terms():
    model = fitted(SCHEMAS[1], (1, 2, 3))
    for k, scores in enumerate(model.decision_function(ROWS).T, start=1):
        terms = explain_local(model, ROWS, pos_label=k)
        assert_allclose(terms.sum(axis=1), scores, rtol=1e-12, atol=1e-13)
    display = ShapeDisplay.from_estimator(model, pos_label=2).plot()
    assert "of left = 2\n" in display.figure_.get_suptitle()
    with pytest.raises(ValueError, match=r"pos_label=None must be one of the classes \[1, 2, 3\]"):
        explain_local(model, ROWS)


def panels(model, **options):
    display = ShapeDisplay.from_estimator(model, **options).plot()
    return {axes.get_title(): axes for axes in display.axes_}


def tick_names(axes):
    return [text.get_text() for text in axes.get_xticklabels()]


def shown(axes, column):
    """Return raw values of a column, and what a panel shows for them."""
    if isinstance(column, CategoricalColumn):
        bars = dict(zip(tick_names(axes), axes.patches, strict=True))
        names = [name for name in column.categories if name in bars]
        return names, [bars[name].get_height() for name in names]
    x, y = axes.lines[1].get_data(orig=False)
    if isinstance(column, DateColumn):
        return (86_400 * x).astype("datetime64[s]"), y
    is_number = isinstance(column, NumericColumn)
    return x if is_number else np.take(column.categories, x.astype(int)), y


@pytest.mark.parametrize("schema", SCHEMAS, ids=["lines", "curves"])
def test_curves_points_and_bars_are_the_terms_in_the_units_of_the_table(schema):
    model = fitted(schema)
    drawn, terms = panels(model), explain_local(model, ROWS)
    assert set(drawn) == set(schema.feature_names[1:])
    for column in schema.columns[1:]:
        values, found = shown(drawn[column.name], column)
        rows = ROWS.iloc[np.zeros(len(values), dtype=int)].assign(**{column.name: values})
        # Raw dates are whole days.
        near = 1e-2 if isinstance(column, DateColumn) else 1e-9
        assert_allclose(explain_local(model, rows)[column.name], found, rtol=0, atol=near)
        assert len(values) == 257 or hasattr(column, "categories")
    missing = ROWS.isna()
    for name in ("debt", "hired", "member"):
        (line,) = [line for line in drawn[name].lines if line.get_label() == "a missing value"]
        assert_allclose(line.get_ydata()[0], terms[name][missing[name]], atol=1e-12)
    job, unknown = drawn["job"], ROWS["job"] == "smith"
    assert tick_names(job) == ["cook", "baker", "(unknown)", "(missing)"]
    heights = [bar.get_height() for bar in job.patches]
    assert_allclose(heights[2], terms["job"][unknown])
    assert_allclose(heights[3], terms["job"][missing["job"]])
    assert_allclose(drawn["town"].patches[-1].get_height(), terms["town"][ROWS.town == "elsewhere"])


@pytest.mark.parametrize("schema", SCHEMAS, ids=["lines", "curves"])
def test_special_values_are_points_beside_the_curve(schema):
    special = {"debt": [-1e4, 0, 2e6], "hired": ["1900-01-01", "2000-01-01"]}
    columns = [
        replace(c, special_values=special[c.name]) if c.name in special else c
        for c in schema.columns
    ]
    schema = replace(schema, columns=columns)
    days = pd.to_datetime(special["hired"]).append(pd.DatetimeIndex(ROWS["hired"]))
    rows = ROWS.assign(debt=np.resize([-1e4, 0, 2e6, 90.0], 240), hired=days[:240].to_numpy())
    model = make_pipeline(schema.transformer(), DPLogisticRegression(epsilon=9, classes=[0, 1]))
    with seeded_noise(0):
        model.fit(rows, np.resize([0, 0, 1, 1, 0], 240))
    terms, drawn = explain_local(model, rows), panels(model)
    assert_allclose(terms.sum(axis=1), model.decision_function(rows), rtol=1e-12, atol=1e-13)
    for name in special:
        column = schema.columns[schema.feature_names.index(name)]
        curve, points = drawn[name].lines[1:3]
        n = len(column.special_values)
        assert len(curve.get_xdata()) >= 255 and len(points.get_xdata()) == n
        assert_allclose(points.get_ydata(), terms[name][:n], atol=1e-12)
        # Each is a column by itself, and no end of the curve.
        assert abs(points.get_ydata()[0] - curve.get_ydata()[0]) > 0.01
    assert_allclose(drawn["debt"].lines[2].get_xdata(), special["debt"])


def test_each_is_zero_on_average_and_those_furthest_above_the_noise_come_first():
    model = fitted(SCHEMAS[1])
    display = ShapeDisplay.from_estimator(model, columns=["grade", "age", "job", "hired"]).plot()
    for axes in display.axes_:
        bars = [bar.get_height() for bar in axes.patches][:2]
        assert abs(np.mean(bars or axes.lines[1].get_ydata())) < 1e-12
    ranks = {term.name: term.rank for term in terms_of(model)[2][1:]}
    ranks = [ranks[axes.get_title()] for axes in display.axes_]
    assert ranks == sorted(ranks, reverse=True) and ranks[0] > 1.2 * ranks[-1] > 0


def test_of_many_categories_those_that_add_least_and_most_are_drawn():
    model = fitted(LINEAR)
    axes = panels(model, columns=["town"])["town"]
    towns = ROWS[:40].assign(town=TOWNS)
    added = explain_local(model, towns)["town"].set_axis(TOWNS).sort_values()
    *names, last = tick_names(axes)
    assert last == "(unknown)" and set(names) == {*added.index[:8], *added.index[-8:]}
    assert names == [town for town in TOWNS if town in names]
    assert axes.get_xlabel() == "16 of 40: those that add least and most"


def test_of_many_columns_those_with_the_largest_spread_are_drawn():
    columns = [NumericColumn(f"x{i}", 0, 1) for i in range(70)]
    schema = Schema("wide", columns, Target("y", [0, 1])).additive(1)
    model = DPLogisticRegression(classes=[0, 1])
    model.classes_, model.coef_, model.intercept_ = np.array([0, 1]), np.ones((1, 70)), np.zeros(1)
    model.coef_[0, :10] = 0.1
    display = ShapeDisplay.from_estimator(model, schema)
    drawn = [panel.keywords["term"].name for panel in display.panels]
    assert set(drawn) == {f"x{i}" for i in range(10, 70)}
    assert display.title.endswith("; 10 more columns")


def test_it_draws_into_given_axes():
    model = fitted(LINEAR)
    _, axes = plt.subplots(2)
    display = ShapeDisplay.from_estimator(model, columns=["age", "debt"])
    assert set(display.plot(axes).axes_) == set(axes)
    assert axes[0].get_ylim() == axes[1].get_ylim()
    texts = [text.get_text() for text in axes[-1].get_legend().get_texts()]
    assert texts == ["95 % of the noise", "a missing value"]


@pytest.mark.parametrize("Model", [DPLinearRegression, DPPoissonRegressor, PoissonRegressor])
def test_terms_of_a_number_add_up_to_it_or_to_its_logarithm(Model):
    schema = replace(LINEAR, target=Target("wage"))
    wage = np.abs(ROWS["score"]) + 1
    model = make_pipeline(schema.transformer(), Model()).fit(ROWS, wage)
    terms = explain_local(model, ROWS)
    *_, last = model
    scores = schema.transformer().fit_transform(ROWS) @ last.coef_ + last.intercept_
    has_log = Model is not DPLinearRegression
    assert_allclose(terms.sum(axis=1), scores, rtol=1e-9)
    display = ShapeDisplay.from_estimator(model, columns=["age"])
    assert ("adds to the logarithm of wage" if has_log else "adds to the wage") in display.title
    with pytest.raises(ValueError, match="pos_label=1 is for classes, and a number is predicted"):
        explain_local(model, ROWS, pos_label=1)


def test_what_cannot_be_taken_apart_is_refused_in_words():
    model = fitted(LINEAR)
    scaled = make_pipeline(LINEAR.transformer(), StandardScaler(), model[-1])
    for estimator, schema, message in (
        (model[-1], None, "does not say how its rows were encoded; give a pipeline of"),
        (model, LINEAR, "or a model and schema="),
        (scaled, None, "does not say how its rows were encoded"),
        (model[-1], SCHEMAS[1], r"model \(62\) are not those that schema 'staff' encodes \(90\)"),
    ):
        with pytest.raises(ValueError, match=message):
            explain_local(estimator, ROWS, schema)
        with pytest.raises(ValueError, match=message):
            ShapeDisplay.from_estimator(estimator, schema)
    with pytest.raises(ValueError, match=r"pos_label='maybe' must be one of .*\['no', 'yes'\]"):
        explain_local(model, ROWS, pos_label="maybe")
    for columns in (["age", "height"], []):
        with pytest.raises(ValueError, match="must be some of"):
            ShapeDisplay.from_estimator(model, columns=columns)
    with pytest.raises(NotFittedError):
        explain_local(DPLogisticRegression(), ROWS, LINEAR)


def test_a_schema_of_the_same_width_and_other_names_is_refused():
    model = DPLogisticRegression(max_iter=2, classes=["no", "yes"])
    encoder = LINEAR.transformer().set_output(transform="pandas")
    pipeline = make_pipeline(encoder, model).fit(ROWS, np.resize(["no", "yes"], len(ROWS)))
    assert len(explain_local(pipeline, ROWS)) == len(ROWS)
    turned = Schema("staff", LINEAR.columns[::-1], LINEAR.target)
    assert turned.n_encoded == LINEAR.n_encoded
    with pytest.raises(ValueError, match="give the schema that encoded its rows"):
        explain_local(pipeline[-1], ROWS, turned)
