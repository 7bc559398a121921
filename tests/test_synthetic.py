"""An artificial table has the shape that its schema states, and labels that can be told."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dpglm.datasets import sample_from_schema
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target, load_schema


@pytest.mark.parametrize("name", ["adult", "bank", "census", "kddcup99"])
def test_rows_respect_bounds_categories_and_the_row_bound(name):
    schema = load_schema(name)
    X, y = sample_from_schema(schema, 300, random_state=0)
    n_numeric = len(schema.numeric)
    assert X.shape == (300, n_numeric + sum(len(c.categories) for c in schema.categorical))
    assert X.min() >= 0 and X.max() <= 1
    assert np.isin(X[:, n_numeric:], (0, 1)).all()
    assert (X[:, n_numeric:].sum(axis=1) == len(schema.categorical)).all()
    assert np.hypot(np.linalg.norm(X, axis=1), 1).max() <= schema.row_bound() + 1e-12
    assert set(y) == set(schema.classes)


def test_it_is_encoded_as_the_transformer_encodes_the_raw_table():
    pd = pytest.importorskip("pandas")
    schema = load_schema("bank")
    X, _ = sample_from_schema(schema, 50, random_state=0)
    raw, columns = {}, iter(X.T)
    for column in schema.numeric:
        raw[column.name] = column.lower + next(columns) * (column.upper - column.lower)
    for column in schema.categorical:
        codes = np.argmax([next(columns) for _ in column.categories], axis=0)
        raw[column.name] = np.array(column.categories)[codes]
    frame = pd.DataFrame(raw)[schema.feature_names]
    np.testing.assert_allclose(schema.transformer().fit_transform(frame), X, atol=1e-12)


def test_labels_have_the_shares_asked_for():
    target = Target("size", ["large", "medium", "small"])
    columns = [NumericColumn("age", 0, 100), CategoricalColumn("housing", ["yes", "no"])]
    schema = Schema("people", columns, target)
    shares = [0.6, 0.3, 0.1]
    _, y = sample_from_schema(schema, 20_000, class_shares=shares, random_state=1)
    found = [np.mean(y == label) for label in schema.classes]
    np.testing.assert_allclose(found, shares, atol=4 * 0.5 / np.sqrt(20_000))


def test_more_signal_makes_labels_easier_to_tell():
    accuracy = []
    for signal in (0.0, 1.0, 4.0):
        X, y = sample_from_schema(load_schema("bank"), 6000, signal=signal, random_state=2)
        model = LogisticRegression(max_iter=500).fit(X[:4000], y[:4000])
        accuracy.append(model.score(X[4000:], y[4000:]))
    np.testing.assert_allclose(accuracy, [0.5, 0.67, 0.87], atol=0.04)


def test_a_seed_names_a_population():
    schema = load_schema("bank")
    first, again, other = (sample_from_schema(schema, 200, random_state=s) for s in (0, 0, 1))
    assert (first[0] == again[0]).all() and (first[1] == again[1]).all()
    assert abs(first[0].mean(axis=0) - other[0].mean(axis=0)).max() > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, "n_samples=0; ask for at least one row"),
        ({"signal": -1.0}, "signal=-1.0 must be a finite number"),
        ({"class_shares": [0.5, 0.6]}, "class_shares=.* must be 2 positive numbers that sum to 1"),
        ({"class_shares": [1.0]}, "must be 2 positive numbers"),
    ],
)
def test_a_bad_parameter_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        sample_from_schema(load_schema("bank"), **{"n_samples": 10, **options})
