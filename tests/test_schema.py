"""A schema is public, round-trips through JSON, and bounds every row it encodes."""

import functools
import json
import operator
import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from dpglm.schema import (
    CategoricalColumn,
    NumericColumn,
    PublicBoundsScaler,
    Schema,
    Target,
    load_schema,
)
from dpglm.schema.table import field_choices
from dpglm.schema.values import distinct


@pytest.fixture
def document():
    return {
        "version": 1,
        "name": "people",
        "source": "written by hand",
        "columns": [
            {"name": "job", "categories": ["cook", "baker", "?"]},
            {"name": "age", "lower": 18, "upper": 98},
            {"name": "rooms", "categories": [1, 2, 4]},
            {"name": "debt", "lower": -10.5, "upper": 0},
        ],
        "target": {"name": "rich", "labels": ["yes", "no"]},
    }


@pytest.fixture
def schema(document):
    return Schema.from_dict(document)


def test_json_values_are_plain_when_the_schema_was_built_from_numpy():
    schema = Schema(
        "counts",
        [NumericColumn("n", np.float32(0), np.int64(3)), CategoricalColumn("k", np.arange(3))],
        Target("y", np.array(["a", "b"])),
    )
    assert Schema.from_json(schema.to_json()) == schema
    assert json.loads(schema.to_json())["columns"][1]["categories"] == [0, 1, 2]


def test_public_facts_are_read_off_the_columns(schema, document):
    assert schema.to_dict() == document
    assert schema.feature_names == ["job", "age", "rooms", "debt"]
    assert_array_equal(schema.classes, ["no", "yes"])
    assert [c.name for c in schema.numeric] == ["age", "debt"]
    assert [c.name for c in schema.categorical] == ["job", "rooms"]
    assert schema.additive(1).max_row_norm() == np.sqrt(5)
    assert schema.additive(1).max_row_norm(fit_intercept=False) == 2.0


def test_packaged_schemas_have_the_published_shape_a_source_and_round_trip():
    shapes = {
        "adult": (5, 8, 102, ["<=50K", ">50K"]),
        "bank": (7, 9, 44, ["no", "yes"]),
        "census": (6, 8, 93, [0, 1]),
        "kddcup99": (38, 3, 84, ["attack", "normal"]),
    }
    for name, (n_numeric, n_categorical, n_categories, classes) in shapes.items():
        schema = load_schema(name)
        assert schema.name == name and schema.source
        assert Schema.from_json(schema.to_json()) == schema
        assert (len(schema.numeric), len(schema.categorical)) == (n_numeric, n_categorical)
        assert sum(len(c.categories) for c in schema.categorical) == n_categories
        assert schema.classes.tolist() == classes
    with pytest.raises(ValueError, match=r"'iris'.*'adult', 'bank', 'census', 'kddcup99'"):
        load_schema("iris")


MALFORMED = [
    (("version",), 2, "version=2"),
    (("name",), "", "name=''"),
    (("source",), 3, "source=3"),
    (("extra",), 1, "'people': got an unexpected keyword argument 'extra'; the fields are ['name'"),
    (("columns",), [], "columns=[]"),
    (("columns",), "age", "columns='age'"),
    (("columns", 0), "age", "a column is 'age'"),
    (("columns", 0), {"name": "job"}, "column 'job': missing a required argument: 'lower'"),
    (("columns", 1, "categories"), ["a"], "'age': got an unexpected keyword argument 'lower'"),
    (("columns", 1, "name"), "job", "names 'job' twice"),
    (("columns", 1, "name"), "rich", "names 'rich' twice"),
    (("columns", 1, "name"), 7, "name=7"),
    (("columns", 1, "lower"), 98, "'age' has lower=98.0 and upper=98.0"),
    (("columns", 0), {"name": "x", "lower": -1e308, "upper": 1e308}, "'x' has lower=-1e"),
    *(
        (("columns", 1, "upper"), value, f"'age' has upper={value!r}")
        for value in ("18", None, float("inf"), float("nan"), True)
    ),
    (("columns", 1, "upper"), 10**400, "'age' has upper=1000"),
    (("columns", 0, "categories"), [], "'job' has categories=[]"),
    (("columns", 0, "categories"), "cook", "'job' has categories='cook'"),
    (("columns", 0, "categories"), ["cook", 1], "'job' has categories=['cook', 1]"),
    (("columns", 0, "categories"), ["cook", "cook"], "'cook', 'cook']; list each value once"),
    (("columns", 2, "categories"), [2, 1], "'rooms' has categories=[2, 1]"),
    (("target",), "rich", "the target is 'rich'"),
    (("target", "lower"), 0, "lower=0 and upper=None; give labels, or lower and upper of a number"),
    (("target",), {"name": "rich", "lower": 0}, "'rich' has upper=None"),
    (("target",), {"name": "rich", "lower": 1, "upper": 1}, "'rich' has lower=1.0 and upper=1.0"),
    (("target", "labels"), ["yes"], "'rich' has labels=['yes']"),
    (("target", "labels"), ["yes", "yes"], "labels=['yes', 'yes']; list each value once"),
]


@pytest.mark.parametrize("of", [{"lower": 0, "upper": np.float32(9)}, {}], ids=str)
def test_a_target_may_be_a_number_whose_bounds_a_regressor_takes(of):
    schema = Schema("pay", [NumericColumn("age", 0, 9)], Target("wage", **of))
    assert schema == Schema.from_json(schema.to_json())
    assert re.search(r"wage +target(  lower 0; upper 9)?\n", str(schema))
    assert schema.target.bounds == ((0.0, 9.0) if "lower" in of else None)
    with pytest.raises(ValueError, match="no classes: its target 'wage' is a number, for regress"):
        schema.classes  # noqa: B018
    rows = {"age": [1, 2, 3], "wage": ["0", "9.5", "-3"]}
    assert schema.target.numbers(distinct(rows["wage"], "wage")).tolist() == [0, 9.5, -3]
    said = "column 'wage': 2 of 3 values are outside the bounds, where no prediction will be."
    assert (said in schema.check(rows)) == ("lower" in of)
    # A value of a record is not quoted, as the labels of all are.
    with pytest.raises(
        ValueError, match=r"'wage' holds something that is no finite.*in row 2; fill"
    ):
        schema.target.numbers(distinct([1, "inf", "SECRET"], "wage"))
    for numbers, asked in (([1.5, 2.5], ["lower", "upper"]), ([1, 2], ["labels"])):
        draft = Schema.draft({"age": [1, 2], "wage": np.array(numbers)}, target="wage")
        assert draft == Schema.from_json(draft.to_json()) and draft.target.to_fill_in == asked


def test_two_encoded_columns_never_have_one_name():
    clashing = [CategoricalColumn("a", ["b_c", "d"]), CategoricalColumn("a_b", ["c", "d"])]
    with pytest.raises(ValueError, match="several encoded columns that would be called 'a_b_c'"):
        Schema("clash", clashing, Target("y", [0, 1]))
    # Of columns as they are encoded, which is more than what they say.
    curves = [NumericColumn(name, 0, 9) for name in ("age", "age (part 1 of 1)")]
    with pytest.raises(ValueError, match="several encoded columns that would be called"):
        Schema("clash", curves, Target("y", [0, 1]))


@pytest.mark.parametrize(("path", "value", "says"), MALFORMED)
def test_malformed_schema_is_a_sentence_with_the_name_and_the_value(document, path, value, says):
    *parents, last = path
    functools.reduce(operator.getitem, parents, document)[last] = value
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        Schema.from_dict(document)
    assert str(error.value).endswith(".") and re.search("[;,] ", str(error.value))


def test_text_that_is_not_json_and_a_missing_file_are_told_apart(tmp_path):
    with pytest.raises(ValueError, match="not JSON"):
        Schema.from_json('{"version": 1,')
    with pytest.raises(ValueError, match="the schema is \\[\\]"):
        (tmp_path / "list.json").write_text("[]")
        load_schema(tmp_path / "list.json")
    with pytest.raises(FileNotFoundError):
        load_schema(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("estimator", "check"), [*estimator_checks_generator(PublicBoundsScaler())]
)
def test_scaler_is_a_scikit_learn_transformer(estimator, check):
    check(estimator)


def test_scaler_equals_min_max_scaling_when_the_range_is_the_bounds():
    X = np.random.default_rng(0).uniform(-3, 5, size=(50, 4))
    lower, upper = X.min(axis=0), X.max(axis=0)
    scaled = PublicBoundsScaler(lower, upper).fit(X[:1]).transform(X)
    np.testing.assert_allclose(scaled, MinMaxScaler().fit_transform(X), rtol=1e-12, atol=1e-15)


def test_scaler_never_leaves_the_unit_interval():
    rng = np.random.default_rng(1)
    lower = rng.normal(0, 1, 2000) * 10.0 ** rng.integers(-300, 290, 2000)
    upper = np.nextafter(lower, np.inf) + rng.exponential(1, 2000) * rng.integers(0, 2, 2000)
    X = np.vstack([lower, upper, np.full(2000, 1e300), np.full(2000, -1e300)])
    scaled = PublicBoundsScaler(lower, upper).fit_transform(X)
    assert_array_equal(scaled, np.repeat([[0.0], [1.0], [1.0], [0.0]], 2000, axis=1))


@pytest.mark.parametrize(
    ("lower", "upper", "says"),
    [
        ([0, 0, 0], 1, "lower=[0, 0, 0] must be a finite number, or one per column (2)"),
        (0, [1, np.nan], "upper=[1, nan] must be a finite number"),
        (0, [1, 0], "lower=0.0 and upper=0.0 in column 1"),
        (1, 0, "lower=1.0 and upper=0.0 in column 0"),
        (-1e308, 1e308, "finite difference"),
    ],
)
def test_scaler_refuses_bad_bounds(lower, upper, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        PublicBoundsScaler(lower, upper).fit(np.zeros((3, 2)))


def test_who_drafts_is_told_the_choices_of_every_field():
    told = dict(line.split(": ", 1) for line in field_choices())
    kinds = "number", "category", "boolean", "date", "ordinal", "text"
    assert {field for kind in kinds for field in told.pop(kind).split(", ")} == {
        field for fields in told for field in fields.split(" and ")
    }
