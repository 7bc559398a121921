"""Interactions: random features of several columns, from the schema alone."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import gamma, kv
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression, seeded_noise
from dpglm.schema import (
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Schema,
    Target,
    TextColumn,
)
from dpglm.schema.interactions import InteractionFeatures, draw_features
from dpglm.study import ShapeDisplay, explain_local
from dpglm.study.shapes import terms_of

SCHEMA = Schema(
    "staff",
    [
        NumericColumn("age", 18, 70, special_values=[65], missing="indicator"),
        NumericColumn("wage", 0, 1e6, n_segments=1),
        DateColumn("hired", "2001-01-01", "2020-12-31"),
        OrdinalColumn("grade", ["low", "middle", "high"]),
        CategoricalColumn("team", ["a", "b"], handle_unknown="indicator", missing="indicator"),
        TextColumn("note", n_features=4),
    ],
    Target("left", [0, 1]),
)
PAIRS = [("wage", "age"), ("team", "hired")]


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    team = rng.choice(np.array(["a", "b", "other", None], dtype=object), n)
    return pd.DataFrame({
        "age": rng.choice([19.5, 30, 65, 400, np.nan], n),
        "wage": rng.uniform(-1e5, 2e6, n),
        "hired": rng.choice(["1990-05-05", "2010-05-05", "2020-12-31"], n),
        "grade": rng.choice(["low", "middle", "high"], n),
        "team": team,
        "note": rng.choice(["late again", "none at all", "?"], n),
    })  # fmt: skip


@pytest.mark.parametrize("interactions", [7, PAIRS])
def test_a_schema_with_interactions_is_encoded_and_written(interactions):
    schema = replace(SCHEMA, interactions=interactions, seed=3)
    found = schema.transformer().fit_transform(rows())
    own = SCHEMA.transformer().fit_transform(rows())
    m = 7 if interactions == 7 else 32
    assert found.shape[1] == schema.n_encoded == SCHEMA.n_encoded + m
    np.testing.assert_array_equal(found[:, :-m], own)
    assert len({*schema.transformer().get_feature_names_out()}) == found.shape[1]
    norms = np.linalg.norm(np.asarray(found), axis=1)
    assert norms.max() <= schema.max_row_norm(fit_intercept=False) == found.max_row_norm
    assert schema.max_row_norm() == pytest.approx(np.sqrt(SCHEMA.max_row_norm() ** 2 + 2))
    again = Schema.from_json(schema.to_json())
    assert again == schema
    for encoder in (again.transformer(), SCHEMA.transformer(interactions=interactions)):
        others = encoder.fit_transform(rows())
        assert np.array_equal(others, found) == (encoder.schema_.seed == 3)


def test_no_row_of_features_is_longer_than_the_bound():
    one = sparse.csr_array([[1.0]])
    for m in range(1, 600):
        # All cosines are 1.
        features = InteractionFeatures([("age",)] * m, np.zeros((1, m)), np.zeros(m))
        assert np.square(features.of(one).astype(float)).sum() <= features.squared_norm


def test_features_are_drawn_once_and_are_in_no_pickle():
    zips = CategoricalColumn("zip", [*range(5000)])
    schema = Schema("s", [zips, NumericColumn("x", 0, 1)], Target("y", [0, 1]))
    table = {"zip": [3, 4], "x": [0.1, 0.7]}
    encoder = schema.transformer(True, interactions=16)
    found = encoder.fit_transform(table)
    before = draw_features.cache_info().misses
    encoder.transform(table)
    assert draw_features.cache_info().misses == before
    written = pickle.dumps((encoder, replace(schema, interactions=16)))
    assert len(written) < 8 * 5000 * 16 / 4
    draw_features.cache_clear()
    again = pickle.loads(written)[0].transform(table)
    np.testing.assert_array_equal(again.toarray(), found.toarray())


def a_row_is_encoded_alike_among_others():
    encoder = SCHEMA.transformer(interactions=9)
    one, other = rows(), rows(seed=1)
    other.iloc[0] = one.iloc[0]
    found = [encoder.fit_transform(table)[0] for table in (one, other.iloc[:20])]
    np.testing.assert_array_equal(*found)


def test_features_follow_from_no_row():
    a_row_is_encoded_alike_among_others()
    dense = SCHEMA.transformer(interactions=9).fit_transform(rows())
    sparse_rows = SCHEMA.transformer(True, interactions=9).fit_transform(rows())
    np.testing.assert_array_equal(sparse_rows.toarray(), dense)


def waves_by_the_spread_of_the_rows(features, table):
    return replace(features, weights=features.weights / table.toarray().std()), table


def phases_by_the_number_of_rows(features, table):
    return replace(features, phases=features.phases + table.shape[0]), table


def rows_less_their_mean(features, table):
    return features, table - sparse.csr_array(table.toarray() * 0 + table.mean())


@pytest.mark.parametrize(
    "leak", [waves_by_the_spread_of_the_rows, phases_by_the_number_of_rows, rows_less_their_mean]
)
def test_features_that_follow_from_rows_are_found(leak, monkeypatch):
    own = InteractionFeatures.of
    monkeypatch.setattr(
        InteractionFeatures, "of", lambda features, table: own(*leak(features, table))
    )
    with pytest.raises(AssertionError, match="not equal"):
        a_row_is_encoded_alike_among_others()


def test_features_have_the_kernel_of_students_t():
    columns = [NumericColumn("x", 0, 10, n_segments=1), NumericColumn("z", -1, 1)]
    schema = Schema("two", columns, Target("y", [0, 1]), interactions=40_000)
    found = schema.transformer().fit_transform({"x": [2.0, 3.0], "z": [0.1, -0.1]})
    features = np.asarray(found)[:, -40_000:]
    # Twice the frequency times the distance between the bounds.
    distances = np.sqrt(2) * 2 * 2.0 * np.array([0.1, 0.1])
    kernel = np.prod(distances * kv(1, distances) / gamma(1))
    assert features[0] @ features[1] == pytest.approx(kernel, abs=0.02)
    assert features[0] @ features[0] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("interactions", [6, PAIRS])
def test_terms_add_up_and_are_zero_on_average(interactions):
    model = make_pipeline(
        SCHEMA.transformer(interactions=interactions), DPLogisticRegression(classes=[0, 1])
    )
    y = np.arange(60) % 2
    with seeded_noise(0):
        model.fit(rows(), y)
    added = explain_local(model, rows())
    np.testing.assert_allclose(added.sum(axis=1), model.decision_function(rows()), atol=1e-6)
    terms = [term for term in terms_of(model)[2] if len(term.columns) > 1]
    assert [t.name for t in terms] == (
        ["(interactions)"] if interactions == 6 else ["age x wage", "hired x team"]
    )


def test_surfaces_are_what_averages_over_all_rows_leave():
    columns = [
        CategoricalColumn("c", ["p", "q", "r"]), OrdinalColumn("o", ["low", "middle", "high"]),
        NumericColumn("x", 0, 1, n_segments=2, special_values=[0.3]),
    ]  # fmt: skip
    schema = Schema("s", columns, Target("y", [0, 1]), interactions=[("x", "c"), ("c", "o")])
    rng = np.random.default_rng(0)
    X = schema.transformer().fit_transform({"c": ["p"], "o": ["low"], "x": [0.5]})
    model = DPLogisticRegression(classes=[0, 1])
    with seeded_noise(0):
        model.fit(np.repeat(X, 100, axis=0), np.arange(100) % 2)
    model.coef_ = rng.normal(size=model.coef_.shape)
    own = {t.name: t.public[t.name] for t in terms_of(model, schema)[2][:3]}
    product = pd.MultiIndex.from_product([["p", "q", "r"], ["low", "middle", "high"], own["x"]])
    table = product.to_frame(index=False, name=["c", "o", "x"])
    table["score"] = model.decision_function(schema.transformer().fit_transform(table))
    found = explain_local(model, table, schema)
    mean = table["score"].mean()
    averages = {k: table.groupby(k)["score"].transform("mean") for k in ("c", "o", "x")}
    assert found["(intercept)"].to_numpy() == pytest.approx(mean, abs=1e-5)
    for name, average in averages.items():
        np.testing.assert_allclose(found[name], average - mean, atol=1e-5)
    for a, b in (("x", "c"), ("o", "c")):
        both = table.groupby([a, b])["score"].transform("mean")
        np.testing.assert_allclose(
            found[f"{a} x {b}"], both - averages[a] - averages[b] + mean, atol=1e-5
        )


def test_interactions_are_learned_without_another_release():
    rng = np.random.default_rng(0)
    x, z = rng.uniform(0, 1, (2, 6000))
    y = ((x > 0.5) != (z > 0.5)).astype(int)
    columns = [NumericColumn("x", 0, 1), NumericColumn("z", 0, 1), NumericColumn("w", 0, 1)]
    schema = Schema("xor", columns, Target("y", [0, 1]))
    table = pd.DataFrame({"x": x, "z": z, "w": rng.uniform(0, 1, 6000)})
    found, ledgers = [], []
    for interactions in (None, 64, [("x", "z")]):
        model = make_pipeline(
            schema.transformer(interactions=interactions),
            DPLogisticRegression(epsilon=2.0, classes=[0, 1]),
        )
        with seeded_noise(0):
            model.fit(table[:4000], y[:4000])
        found.append(roc_auc_score(y[4000:], model.decision_function(table[4000:])))
        ledgers.append(model[-1].privacy_)
    assert found[0] < 0.6 and min(found[1:]) > 0.9
    assert len({ledger.epsilon() for ledger in ledgers}) == 1
    assert len({len(ledger.events) for ledger in ledgers}) == 1
    pair, x = ShapeDisplay.from_estimator(model, columns=["x", "x x z"]).plot().axes_[:2]
    assert x.get_title() == "x" and pair.get_title().startswith("x x z, noise ")
    assert (pair.get_xlabel(), pair.get_ylabel()) == ("x", "z")


@pytest.mark.parametrize(
    ("interactions", "said"),
    [
        (0, "interactions=0"),
        (2**16 + 1, "from 1 to 65536"),
        (True, "interactions=True"),
        ("age", "interactions='age'"),
        ({("age", "wage")}, "list of distinct pairs"),
        ([5], "pairs of two of"),
        ([("age", "age")], "pairs of two of"),
        ([("age", "note")], "pairs of two of"),
        ([], "distinct pairs"),
        ([("age", "wage"), ("wage", "age")], "distinct pairs"),
    ],
)
def test_what_cannot_be_meant_is_refused(interactions, said):
    with pytest.raises(ValueError, match=said):
        replace(SCHEMA, interactions=interactions)
    with pytest.raises(ValueError, match=said):
        SCHEMA.transformer(interactions=interactions).fit(rows())


def test_one_column_has_no_interactions_and_intervals_are_refused():
    with pytest.raises(ValueError, match="pairs of two of"):
        Schema("one", [NumericColumn("x", 0, 1)], Target("y", [0, 1]), interactions=4)
    schema = replace(SCHEMA, interactions=4)
    model = DPLogisticRegression(classes=[0, 1], inference_fraction=0.5, epsilon=50)
    with seeded_noise(0):
        X = schema.transformer().fit_transform(rows(3000))
        model.fit(X, np.arange(3000) % 2)
    with pytest.raises(ValueError, match="has interactions, whose coefficients"):
        model.inference(schema=schema)


def test_a_column_is_not_called_like_a_pair():
    columns = [NumericColumn(name, 0, 1) for name in ("a", "b", "a x b")]
    with pytest.raises(ValueError, match="a column has such a name"):
        Schema("s", columns, Target("y", [0, 1]), interactions=[("b", "a")])
