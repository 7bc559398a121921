"""Columns as tables have them: one schema, one behaviour, whatever holds the table."""

import copy
import datetime
import json
import math
import pickle
import re
import unicodedata
import zoneinfo
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression
from dpglm.datasets import sample_from_schema
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
from dpglm.schema.encoder import SchemaEncoder
from dpglm.sources import read_csv
from dpglm.sources.parquet import ParquetSource

D = datetime.date
TARGET = Target("paid", ["no", "yes"])


# A week from the first to the last day.
FIRST, LAST = D(2020, 1, 1), D(2020, 1, 9)


def hashed(*texts):
    return HashingVectorizer(n_features=8).transform(texts).toarray()


KINDS = [
    (NumericColumn("x", 0, 4), [1.0, 4.0, -7.5], [[0.25], [1], [0]]),
    (NumericColumn("x", 0, 4, integer=True), [1, 4, 700], [[0.25], [1], [1]]),
    (NumericColumn("x", 0, np.sinh(4), scale="asinh"), [np.sinh(1), 0.0, 1e9], [[0.25], [0], [1]]),
    (NumericColumn("x", 0, 4, missing="indicator", out_of_bounds="missing"),
     [1.0, None, -999.0], [[0.25, 0], [0.5, 1], [0.5, 1]]),
    (NumericColumn("x", 0, 4, missing=3), [1, None, 4], [[0.25], [0.75], [1]]),
    (NumericColumn("x", 0, 4, n_segments=4, height=4),
     [1.0, 4.0, 2.5, -9.0], [[-1, 1, 1, 0], [2, 0, 0, 0], [0.5, 1.5, 0, 0.5], [-2, 0, 0, 0]]),
    (NumericColumn("x", 0, 40, scale="asinh", linear_width=0.5, n_segments=2, missing="indicator"),
     [0.5 * np.sinh(np.arcsinh(80) / 2), None], [[0, 2, 0], [0, 0, 1]]),
    # A special value may lie outside of the bounds, and a number beyond one is that bound.
    (NumericColumn("x", -100, 300, special_values=[-999, 0.5, 300], missing="indicator"),
     [60.0, 1e9, -999, 0.5, None, -998, 300],
     [[0.4, 0, 0, 0, 0], [0.5, 0, 0, 1, 0], [0.5, 1, 0, 0, 0], [0.5, 0, 1, 0, 0],
      [0.5, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0.5, 0, 0, 1, 0]]),
    (NumericColumn(
        "x", 0, 4, n_segments=2, special_values=[0, 9], out_of_bounds="missing", missing=9.0),
     [0, 1, 4, 5, 9, None],
     [[0, 0, 1, 0], [-1, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]),
    (DateColumn("x", FIRST, LAST, n_segments=2, special_values=["1900-01-01", FIRST]),
     [D(2020, 1, 7), D(1900, 1, 1), FIRST, D(1999, 1, 1), D(1900, 1, 2)],
     [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]),
    (BooleanColumn("x"), [True, False, True], [[1], [0], [1]]),
    (BooleanColumn("x", missing="indicator"), [True, None], [[1, 0], [0.5, 1]]),
    (BooleanColumn("x", missing=True), [False, None], [[0], [1]]),
    (DateColumn("x", FIRST, LAST), [D(2020, 1, 3), D(1999, 1, 1)], [[0.25], [0]]),
    (DateColumn("x", FIRST, LAST, missing=D(2020, 1, 5), out_of_bounds="missing"),
     [None, D(2038, 1, 1)], [[0.5], [0.5]]),
    (OrdinalColumn("x", ["low", "mid", "high"]), ["mid", "high"], [[0.5], [1]]),
    (OrdinalColumn("x", [3, 1, 2], missing="indicator"),
     [1, 7, None], [[0.5, 0], [0.5, 1], [0.5, 1]]),
    (CategoricalColumn("x", ["a", "b"]), ["b", "c", None, "a"], [[0, 1], [0, 0], [0, 0], [1, 0]]),
    (CategoricalColumn("x", ["a", "b"], handle_unknown="indicator", missing="indicator"),
     ["b", "c", None], [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    (CategoricalColumn("x", ["a", "b"], missing="b"), ["a", None], [[1, 0], [0, 1]]),
    (CategoricalColumn("x", [1, 2]), [2, 3, None], [[0, 1], [0, 0], [0, 0]]),
    (CategoricalColumn("x", [False, True]), [True, None, False], [[0, 1], [0, 0], [1, 0]]),
    (CategoricalColumn("x", ["1", "2"]), [2, 1, 1], [[0, 1], [1, 0], [1, 0]]),
    (CategoricalColumn("x", ["1", "2"]), [Decimal("2.0"), None], [[0, 1], [0, 0]]),
    (TextColumn("x", 8, missing="indicator"), ["big red", None, "big"],
     np.column_stack([hashed("big red", "", "big"), [0, 1, 0]])),
    *((TextColumn("x", 8, missing=missing), ["big red", "big"], hashed("big red", "big"))
      for missing in (None, "none")),
]  # fmt: skip


def as_pandas_nullable(raw):
    with np.errstate(invalid="ignore"):  # pandas before 3 casts infinite numbers, and compares
        return pd.DataFrame(raw).convert_dtypes()


def as_dask(raw):
    import dask.dataframe as dd

    return dd.from_pandas(pd.DataFrame(raw), npartitions=2)


def by_column(function):
    return lambda raw: {name: function(values) for name, values in raw.items()}


in_bytes = by_column(lambda values: [v.encode() if isinstance(v, str) else v for v in values])


CONTAINERS = {
    "dict": by_column(partial(np.array, dtype=object)),
    "lists": dict,
    "pandas": pd.DataFrame,
    "pandas objects": partial(pd.DataFrame, dtype=object),
    "pandas nullable": as_pandas_nullable,
    "pandas categorical": lambda raw: pd.DataFrame(raw | {"x": pd.Categorical(raw["x"])}),
    "pandas arrow": lambda raw: pa.table(raw).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "arrow chunks": lambda raw: pa.concat_tables([pa.table(raw)[:1], pa.table(raw)[1:]]),
    "arrow dictionary": lambda raw: pa.table(
        by_column(lambda values: pa.array(values).dictionary_encode())(raw)
    ),
    "dask": as_dask,
    "dayone bytes": in_bytes,
    "dayone bytes of pandas": lambda raw: pd.DataFrame(in_bytes(raw)),
    "dayone bytes in categories": lambda raw: pd.DataFrame(in_bytes(raw)).astype("category"),
    "dayone bytes of polars": lambda raw: pl.DataFrame(in_bytes(raw)),
    "dayone bytes of arrow": lambda raw: pa.table(in_bytes(raw)),
}


def in_containers(*names):
    """Run a test with its table in each of some containers."""
    functions = [CONTAINERS[name] for name in names]
    return pytest.mark.parametrize("container", functions, ids=names)


def with_target(raw):
    return {"x": raw, "paid": ["yes", "no", "no", "yes", "yes", "no", "no"][: len(raw)]}


def from_csv(raw, schema, folder):
    pd.DataFrame(with_target(raw), dtype=object).to_csv(folder / "t.csv", index=False)
    bunch = read_csv(folder / "t.csv", schema)
    return schema.transformer().fit_transform(bunch.data)


def from_parquet(raw, schema, folder, table=with_target):
    pa.parquet.write_table(pa.table(table(raw)), folder / "t.parquet")
    ((rows, labels),) = ParquetSource(folder / "t.parquet", schema).read([0])
    assert labels.tolist() == with_target(raw)["paid"]
    return rows


def dayone_bytes_from_parquet(raw, schema, folder):
    return from_parquet(raw, schema, folder, lambda raw: in_bytes(with_target(raw)))


def from_container(name):
    def encoded(raw, schema, folder):
        rows = schema.transformer().fit_transform(CONTAINERS[name](with_target(raw)))
        return rows.compute().to_numpy() if name == "dask" else rows

    encoded.__name__ = name
    return encoded


READERS = [from_csv, from_parquet, dayone_bytes_from_parquet, *map(from_container, CONTAINERS)]
in_every_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)


@in_every_reader
def test_every_kind_is_encoded_alike_from_every_container(reader, tmp_path):
    for column, raw, encoded in KINDS:
        schema = Schema("one", [column], TARGET).additive(1)
        rows, longest = reader(raw, schema, tmp_path), schema.max_row_norm(fit_intercept=False)
        assert_allclose(rows, encoded, rtol=0, atol=1e-15, err_msg=repr(column))
        assert rows.dtype == np.float64 and rows.shape == (len(raw), schema.n_encoded)
        assert (np.linalg.norm(rows, axis=1) <= longest + 1e-15).all()


SECRET = "Alice Smith"
REFUSED = [
    (NumericColumn("x", 0, 4), [1.0, None], "missing values, the first in row 2; say in the"),
    (NumericColumn("x", 0, 4), ["1", SECRET], r"\(written 1234.5, if .* row 2"),
    (NumericColumn("x", 0, 4), [1.0, np.inf], "not a finite number .* the first in row 2"),
    (NumericColumn("x", 0, 1e30), [D(2020, 1, 1) - D(2019, 1, 1)], "not a finite number"),
    (BooleanColumn("x"), ["true", SECRET], "not true or false, the first in row 2"),
    (DateColumn("x", FIRST, LAST), ["2020-01-05", SECRET], "not a date .* the first in row 2"),
    (DateColumn("x", FIRST, LAST), [20200105], "not a date .* the first in row 1"),
    (DateColumn("x", FIRST, LAST), [D(2020, 1, 5), None], "missing values, the first in row 2"),
    (OrdinalColumn("x", ["a", "b"]), ["a", SECRET], "not listed, the first in row 2"),
    (TextColumn("x", 4), ["a", " "], "missing values, the first in row 2"),
]


@in_every_reader
def test_what_cannot_be_encoded_is_refused_alike_and_not_quoted(reader, tmp_path):
    for column, raw, says in REFUSED:
        if reader.__name__ == "dask":
            # It counts from the start of a partition.
            says = says.replace("row 2", "row 1")
        with pytest.raises(ValueError, match=f"column 'x' .*{says}") as error:
            reader(raw, Schema("one", [column], TARGET), tmp_path)
        assert SECRET not in "".join(map(str, (error.value, error.value.__cause__)))
        assert not re.search(r"\b(drop|mean|imput|remove)", str(error.value))


NINE = Schema(
    "staff",
    [
        NumericColumn("age", 17, 90, integer=True),
        CategoricalColumn(
            "job", ["cook", "baker"], handle_unknown="indicator", missing="indicator"
        ),
        NumericColumn(
            "income", 0, 1e7, scale="asinh", missing="indicator", out_of_bounds="missing"
        ),
        DateColumn("hired", "2000-01-01", "2025-12-31", missing="2010-06-30"),
        BooleanColumn("member", missing=False),
        TextColumn("note", 16, missing="indicator"),
        OrdinalColumn("grade", ["low", "mid", "high"], missing="indicator"),
        CategoricalColumn("floor", [1, 2, 3]),
        NumericColumn("score", -1.5, 1.5, missing=0),
    ],
    TARGET,
)
STRAIGHT = NINE.additive(1)
RAW = {
    "age": [30, 91, 17],
    "job": ["cook", None, "smith"],
    "income": [None, 50000.0, 1e9],
    "hired": [D(2001, 2, 3), None, D(2024, 12, 31)],
    "member": [True, None, False],
    "note": ["likes tea", None, "tea tea"],
    "grade": ["mid", "top", None],
    "floor": [1, 9, None],
    "score": [None, 0.5, -9.0],
    "paid": ["yes", "no", "no"],
}


def rows_of(**columns):
    return st.fixed_dictionaries(columns)


NUMBERS = st.none() | st.integers(-(2**60), 2**60) | st.floats(allow_infinity=False)
TEXTS = st.none() | st.text(max_size=8) | st.sampled_from(["cook", "baker", "mid", "high", "1"])
ROWS = st.lists(
    rows_of(
        age=st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False),
        job=TEXTS,
        income=NUMBERS,
        hired=st.none() | st.dates() | st.datetimes(),
        member=st.sampled_from([True, False, None, 0, 1, "true", "FALSE", "1.0"]),
        note=TEXTS,
        grade=TEXTS,
        floor=NUMBERS.filter(lambda v: not isinstance(v, float) or abs(v) < 2**53)
        | TEXTS
        | st.booleans(),
        score=NUMBERS,
    ),
    min_size=1,
    max_size=6,
)


def table_of(rows):
    return {name: [row[name] for row in rows] for name in NINE.feature_names}


def with_special(schema):
    income, hired = [-1, 0, 1, 5, 10_000_000], [FIRST, "9999-12-31"]
    special = {"income": income, "hired": hired, "age": [90], "score": [-2, 0.5]}
    columns = [
        replace(c, special_values=special[c.name]) if c.name in special else c
        for c in schema.columns
    ]
    return replace(schema, columns=columns)


FORMS = [STRAIGHT, NINE, with_special(STRAIGHT), with_special(NINE.additive(32))]


@pytest.mark.parametrize("schema", FORMS, ids=["lines", "curves", "special", "both"])
@settings(max_examples=12, deadline=None)
@given(ROWS)
def test_no_row_is_longer_than_the_bound_or_depends_on_another(schema, rows):
    encoder = schema.transformer()
    encoded = encoder.fit_transform(table_of(rows))
    assert np.isfinite(encoded).all() and encoded.shape[1] == schema.n_encoded
    squares = (encoded**2).sum(axis=1)
    assert squares.max() <= schema.max_row_norm(fit_intercept=False) ** 2 + 1e-9
    for row, expected in zip(rows, encoded, strict=True):
        assert_array_equal(encoder.transform(table_of([row]))[0], expected)
    in_csr = schema.transformer(sparse_output=True).transform(table_of(rows))
    assert in_csr.format == "csr" and (in_csr.data != 0).all()
    assert_array_equal(in_csr.toarray(), encoded)


def fits_on_rows(encoder):
    """Whether what a row becomes depends on the rows that the encoder was fitted on."""
    first, second = (pd.DataFrame(RAW).iloc[part] for part in ([0], [1, 2]))
    one, other = (clone(encoder).fit(rows).transform(first) for rows in (first, second))
    return one.shape != other.shape or (one != other).any()


class RangeOfTheRows(SchemaEncoder):
    """A planted bug: bounds that the first fit takes from the rows."""

    def fit(self, X, y=None):
        age = NumericColumn("age", X["age"].min() - 1, X["age"].max() + 1)
        self.schema = Schema("staff", [age, *NINE.columns[1:]], TARGET)
        return super().fit(X)


def test_fitting_learns_nothing_from_rows_and_an_encoder_that_does_is_caught():
    assert not fits_on_rows(NINE.transformer())
    assert fits_on_rows(RangeOfTheRows(NINE))

    class Unreadable(dict):
        def __getitem__(self, name):
            raise AssertionError("a row was read")

    encoder = NINE.transformer().fit(Unreadable.fromkeys(NINE.feature_names))
    assert encoder.n_features_in_ == 9


def test_an_encoder_keeps_nothing_of_the_rows_that_it_has_encoded():
    left = []
    for rows in ([0], [1, 2]):
        encoder = Schema.from_json(NINE.to_json()).transformer()
        encoder.fit_transform(pd.DataFrame(RAW).iloc[rows])
        # Older versions of scikit-learn number the objects of a page.
        page = re.sub("id-[0-9]+", "", encoder._repr_html_())
        left.append((pickle.dumps(encoder), repr(encoder), page))
    assert left[0] == left[1]


def test_the_longest_rows_reach_the_bound():
    row = {"age": 90, "job": None, "income": None, "hired": D(2025, 12, 31), "member": True}
    row |= {"note": "tea", "grade": None, "floor": 2, "score": 1.5}
    (encoded,) = STRAIGHT.transformer().transform(table_of([row]))
    bound = STRAIGHT.max_row_norm(fit_intercept=False)
    assert np.linalg.norm(encoded) == pytest.approx(bound, abs=1e-12)
    # Many curves are lower than the 1 of an indicator.
    many = [NumericColumn(f"x{k}", 0, 1, missing="indicator") for k in range(40)]
    many = Schema("many", many, TARGET)
    (encoded,) = many.transformer().transform({name: [None] for name in many.feature_names})
    assert np.linalg.norm(encoded) == pytest.approx(
        many.max_row_norm(fit_intercept=False), abs=1e-12
    )


@pytest.mark.parametrize("intervals", [2, 8, 32])
def test_a_curve_is_straight_between_its_edges_and_free_at_them(intervals):
    column = NumericColumn("x", -1, 3, n_segments=intervals)
    x = np.linspace(-1, 3, 301)
    at_edges = np.random.default_rng(0).normal(size=intervals + 1)
    wanted = np.interp(x, np.linspace(-1, 3, intervals + 1), at_edges)
    block = Schema("one", [column], TARGET).transformer().fit_transform({"x": x})
    design = np.column_stack([block, np.ones(len(x))])
    assert np.linalg.matrix_rank(design) == intervals + 1
    coef = np.linalg.lstsq(design, wanted, rcond=None)[0]
    assert_allclose(design @ coef, wanted, atol=1e-9)
    stored = np.count_nonzero(block, axis=1)
    assert stored.max() <= 1 + np.log2(intervals), "few numbers, so that CSR stays small"


@pytest.mark.parametrize("name", ["adult", "bank", "census", "kddcup99"])
def test_curves_have_as_many_edges_as_public_facts_allow(name):
    schema = load_schema(name)
    curves, n_default = schema.additive(32), 2 if name == "kddcup99" else 8
    assert schema.additive() == schema.additive(n_default)
    assert schema.encoded_columns == schema.additive().encoded_columns
    assert curves.feature_names == schema.feature_names and curves.target == schema.target
    for before, column in zip(schema.numeric, curves.numeric, strict=True):
        apart = before.upper - before.lower
        assert before.n_segments is None
        assert not before.integer or column.n_segments <= max(1, apart)
        assert (column.scale == "asinh") == (apart >= 10_000)
    # 32 curves are half as high as 8.
    heights = {column.height for column in curves.numeric if column.n_segments > 1}
    assert heights == {2.0 if name == "kddcup99" else 4.0}
    assert name != "kddcup99" or curves.max_row_norm() < 12
    raised = replace(schema, columns=[replace(schema.numeric[0], height=5.0)])
    assert raised.additive(2).columns[0].height == 5.0
    assert [c.n_segments for c in schema.additive(2).numeric if c.name == "age"] in ([], [2])
    with pytest.raises(ValueError, match="n_segments=3; give a power of two"):
        schema.additive(3)
    assert Schema.from_json(curves.to_json()) == curves


def test_a_column_that_says_its_intervals_stays_as_it_is():
    many = [NumericColumn(f"fee {k}", 0, 5000, special_values=[0]) for k in range(20)]
    said = replace(many[0], n_segments=16)
    own = Schema("people", [said, *many[1:]], TARGET)
    for form in (own, own.additive(8), own.additive(32)):
        assert form.encoded_columns[0] == said and form.encoded_columns[1] != many[1]
        assert {c.special_values for c in form.encoded_columns} == {(0,)}
    assert own.additive(8).additive(1) == own.additive(8)


@pytest.mark.parametrize(
    ("count", "intervals"),
    [(1, 8), (16, 8), (17, 4), (32, 4), (33, 2), (64, 2), (65, 1), (300, 1)],
)
def test_many_numbers_have_fewer_intervals(count, intervals):
    columns = [NumericColumn(f"fee {k}", 0, 5000 if k < 3 else 9.5) for k in range(count)]
    found = Schema("people", columns, TARGET)
    assert {c.n_segments for c in found.encoded_columns} == {intervals}
    assert found.n_encoded == count * intervals


def test_special_values_are_in_the_file_and_a_check_knows_them():
    columns = [
        NumericColumn("gain", 0, 50_000, special_values=[-1, 0, 99_999], integer=True),
        DateColumn("hired", FIRST, LAST, special_values=["9999-12-31"]),
    ]
    schema = Schema("people", columns, TARGET)
    assert schema.to_dict()["columns"][0]["special_values"] == [-1, 0, 99_999]
    assert schema.to_dict()["columns"][1]["special_values"] == ["9999-12-31"]
    assert Schema.from_json(schema.to_json()) == schema
    table = {"gain": [-1, 0, 5, 60_000], "hired": [D(9999, 12, 31), D(1999, 1, 1)] * 2}
    lines = schema.check(table | {"paid": ["yes"] * 4}).splitlines()[1:]
    assert lines == [
        "column 'gain': 1 of 4 values are outside the bounds, and are clipped.",
        "column 'hired': 2 of 4 values are outside the bounds, and are clipped.",
    ]


def test_names_types_and_copies_of_the_encoder():
    encoder = NINE.transformer().set_output(transform="pandas")
    names = encoder.get_feature_names_out().tolist()
    assert len(names) == len(set(names)) == NINE.n_encoded
    hats = [f" (part {k + 1} of {parts})" for parts in (1, 2, 4) for k in range(parts)]
    age, income, hired = (
        [name, *(name + hat for hat in hats)] for name in ("age", "income", "hired")
    )
    start = [*age, *income, "income (missing)", *hired, "member", "grade", "grade (missing)"]
    assert names[: len(start) + 1] == [*start, "score"]
    straight = STRAIGHT.transformer().get_feature_names_out().tolist()
    assert straight == [n for n in names if " (part " not in n]
    frame = pd.DataFrame(RAW, index=[7, 8, 9])
    encoded = encoder.fit_transform(frame)
    assert list(encoded.columns) == names and list(encoded.index) == [7, 8, 9]
    for again in (clone(encoder), pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert again.get_params()["schema"] == NINE
        assert_array_equal(again.transform(pl.DataFrame(RAW)), encoded)
    other = NINE.transformer().set_output(transform="polars").fit_transform(pa.table(RAW))
    assert isinstance(other, pl.DataFrame) and other.columns == names
    model = make_pipeline(encoder, DPLogisticRegression(max_iter=2, classes=["no", "yes"]))
    fitted = model.fit(frame, RAW["paid"])[-1]
    assert fitted.feature_names_in_.tolist() == names
    assert NINE.transformer().transform(frame[:0]).shape == (0, NINE.n_encoded)


def test_an_artificial_table_has_all_kinds():
    X, y = sample_from_schema(NINE, 50, random_state=0)
    assert X.shape == (50, NINE.n_encoded) and set(y) == {"no", "yes"}
    assert (np.linalg.norm(X, axis=1) <= NINE.max_row_norm(fit_intercept=False)).all()
    frame, labels = sample_from_schema(NINE, 50, random_state=0, as_frame=True)
    assert list(frame) == NINE.feature_names and labels.name == NINE.target.name
    assert_array_equal(NINE.transformer().fit_transform(frame), X)
    assert_array_equal(labels, y)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"age": [1]}, "the table has none of the columns 'job', 'income'"),
        ({**RAW, "age": [1]}, "differ in length"),
        ({**RAW, "age": [[1, 2]] * 3}, r"'age' has shape \(3, 2\)"),
        ({**RAW, "age": np.ma.masked_array([1, 2, 3], [0, 1, 0])}, "'age' is a masked array"),
    ],
)
def test_a_table_of_another_form_is_refused(table, says):
    with pytest.raises(ValueError, match="unique column names"):
        Schema.draft(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match=says):
        NINE.transformer().transform(table)


def test_spaces_around_texts_do_not_count_in_any_table(tmp_path):
    schema = Schema("s", [CategoricalColumn("job", ["cook", "baker"])], Target("y", [0, 1]))
    path = tmp_path / "s.csv"
    path.write_text("job,y\n cook,0\nbaker ,1\n")
    tables = [read_csv(path, schema).data, pd.read_csv(path), {"job": [" cook", "baker "]}]
    for table in tables:
        assert_array_equal(schema.transformer().fit_transform(table), np.eye(2))


@in_every_reader
def test_accents_may_be_spelled_in_either_way_in_any_table(reader, tmp_path):
    forms = ("NFC", "NFD") if READERS.index(reader) % 2 else ("NFD", "NFC")
    ours, theirs = (partial(unicodedata.normalize, form) for form in forms)
    texts = [*map(theirs, ["été chaud", "élan vital"])]
    for kind, width in ((CategoricalColumn, 2), (OrdinalColumn, 1), (TextColumn, 8)):
        listed = 8 if width == 8 else [*map(ours, ["élan vital", "été chaud"])]
        schema = Schema("s", [kind(ours("x"), listed)], TARGET).additive(1)
        same = reader([*map(ours, texts)], schema, tmp_path)
        assert_array_equal(reader(texts, schema, tmp_path), same)
        assert same.shape == (2, width) and not np.array_equal(*same)


@in_containers("dict", "lists", "pandas", "polars", "arrow", "dask")
def test_names_may_be_spelled_in_either_way(container, tmp_path):
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        ours, theirs = (unicodedata.normalize(f, "âge") for f in (form, other))
        schema = Schema("s", [NumericColumn(ours, 0, 100)], TARGET).additive(1)
        raw = {"paid": ["no", "yes"], theirs: [50, 100]}
        encoded = schema.transformer().fit_transform(container(raw))
        assert np.asarray(encoded).tolist() == [[0.5], [1.0]]
        assert schema.check(container(raw)).endswith("No problem was found.")
        pd.DataFrame(raw).to_csv(tmp_path / "t.csv", index=False)
        pa.parquet.write_table(pa.table(raw), tmp_path / "t.parquet")
        assert read_csv(tmp_path / "t.csv", schema).data[ours].tolist() == [50, 100]
        ((rows, _),) = ParquetSource(tmp_path / "t.parquet", schema).read([0])
        assert rows.tolist() == [[0.5], [1.0]]
    # Where a table has both, each is itself.
    both = {unicodedata.normalize(f, "âge"): [value] for f, value in (("NFC", 50), ("NFD", 100))}
    assert schema.transformer().fit_transform(both).tolist() == [[both[ours][0] / 100]]


def test_one_and_true_are_two_texts_but_one_number():
    raw = np.array([True, 1, "1", "true"], dtype=object)
    for categories, expected in (
        (["True", "1"], [[1, 0], [0, 1], [0, 1], [0, 0]]),
        ([1], [[1]] * 4),
    ):
        encoder = Schema("one", [CategoricalColumn("x", categories)], TARGET).transformer()
        assert_array_equal(encoder.transform({"x": raw}), expected)
        assert_array_equal(encoder.transform({"x": raw[::-1]}), expected[::-1])


@in_containers("pandas", "pandas arrow", "polars", "arrow")
def test_the_day_of_a_moment_is_that_of_the_clock_on_the_wall(container):
    zone = zoneinfo.ZoneInfo("America/New_York")
    table = container({"x": [datetime.datetime(2020, 1, 3, 23, tzinfo=zone)]})
    encoder = Schema("one", [DateColumn("x", FIRST, LAST, n_segments=1)], TARGET).transformer()
    in_utc = container({"x": [datetime.datetime(2020, 1, 4, 4, tzinfo=datetime.UTC)]})
    if container is not pl.DataFrame:
        # Polars turns what Python hands it into UTC.
        assert_array_equal(encoder.transform(table), [[0.25]])
    else:
        local = table.select(pl.col("x").dt.convert_time_zone("America/New_York"))
        assert_array_equal(encoder.transform(local), [[0.25]])
    assert_array_equal(encoder.transform(in_utc), [[0.375]])


@in_containers("dict", "pandas", "polars", "arrow")
@pytest.mark.parametrize(
    "column",
    [
        CategoricalColumn("x", [2**53 + 1]),
        OrdinalColumn("x", [1, 2**53 + 1], missing="indicator"),
        TextColumn("x", 8, missing="indicator"),
    ],
)
def test_a_whole_number_that_a_float_may_have_rounded_is_no_category(column, container):
    schema = Schema("s", [column], Target("y", [0, 1]))
    with pytest.raises(ValueError, match=r"'x' holds floats of 2\^53 or more.*row 2; give strings"):
        schema.transformer().fit_transform(container({"x": [None, float(2**53 + 1)]}))
    for large in (2.0**60, -(2.0**53)):
        assert "floats of 2^53 or more" in schema.check({"x": [large, None], "y": [0, 1]})
    for exact in ([None, 2.0**53 - 1], [None, "9007199254740993"]):
        assert schema.transformer().fit_transform(container({"x": exact})).shape[0] == 2


def test_a_dictionary_may_use_all_numbers_of_its_index_type():
    names = [f"c{k}" for k in range(128)]
    indices = pa.array([*range(128), None], pa.int8())
    table = pa.table({"x": pa.DictionaryArray.from_arrays(indices, names)})
    encoder = Schema("one", [CategoricalColumn("x", names)], TARGET).transformer()
    assert_array_equal(encoder.transform(table), np.eye(129)[:, :128])


@in_containers("lists", "pandas", "polars", "arrow")
def test_a_column_of_lists_is_refused(container):
    schema = Schema("one", [CategoricalColumn("x", ["a"])], TARGET)
    with pytest.raises(ValueError, match="'x' holds lists, or other values that are several"):
        schema.transformer().transform(container({"x": [["a", "b"], ["c"]]}))


@pytest.mark.parametrize("table", [np.zeros((3, 9)), pl.LazyFrame(RAW), [[1]], 7])
def test_what_has_no_columns_in_memory_is_refused(table):
    for call in (NINE.transformer().fit, NINE.transformer().transform, Schema.draft):
        with pytest.raises(TypeError, match="Give a data frame in memory"):
            call(table)


def test_the_document_of_all_kinds_round_trips(tmp_path):
    document = json.loads(NINE.to_json())
    assert document["version"] == 1
    assert document["columns"][0] == {"name": "age", "lower": 17, "upper": 90, "integer": True}
    assert document["columns"][3] == {
        "name": "hired", "kind": "date", "first": "2000-01-01", "last": "2025-12-31",
        "missing": "2010-06-30",
    }  # fmt: skip
    file = tmp_path / "s.json"
    file.write_text(NINE.to_json(), encoding="utf-8")
    for read in (load_schema(file), load_schema(str(file))):
        assert read == NINE and hash(read) == hash(NINE) and read.to_json() == NINE.to_json()
    assert eval(repr(NINE.columns), {**globals(), "datetime": datetime}) == NINE.columns


number = partial(NumericColumn, "x", lower=0, upper=9)
period = partial(DateColumn, "x", first=FIRST, last=LAST)
letter = partial(CategoricalColumn, "x", ["a", "b"])
WRONG = [
    (number, {"scale": "log"}, "scale='log'"),
    (number, {"linear_width": 1e-300, "scale": "asinh", "upper": 1e10}, "linear_width=1e-300"),
    (period, {"height": 0.0}, "height=0.0; give a number above 0"),
    (number, {"special_values": [1, math.inf]}, "list each as a finite number"),
    (number, {"special_values": [2, 1]}, "distinct values in rising order"),
    (number, {"special_values": 2}, "give a list"),
    (period, {"special_values": ["1.1.1900"]}, "list each as a public day"),
    (number, {"missing": 10}, "missing=10"),
    (period, {"missing": "indicater"}, "'indicater'; give None, 'indicator'"),
    (period, {"last": "2019-01-01"}, "(2020, 1, 1) and last="),
    (BooleanColumn, {"name": "x", "missing": 1}, "missing=1"),
    (OrdinalColumn, {"name": "x", "categories": ["a"]}, "list at least two"),
    (letter, {"missing": "c"}, "missing='c'"),
    (CategoricalColumn, {"name": "x", "categories": ["a ", "b"]}, "leave out spaces around"),
    (TextColumn, {"name": "x", "n_features": 8, "missing": " "}, "missing=' '"),
]


@pytest.mark.parametrize(("kind", "options", "says"), WRONG)
def test_a_wrong_fact_is_named_with_its_column(kind, options, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        kind(**options)
    assert "'x'" in str(error.value) and "; " in str(error.value)


def test_a_draft_cannot_be_used_before_it_is_filled_in():
    raw = {"age": [1, 2], "member": [True, False], "pay": [0.5, 1.5], "job": ["a", "b"]}
    table = pd.DataFrame(raw | {"hired": [pd.Timestamp(2020, 1, 1)] * 2, "paid": ["no", "yes"]})
    draft = Schema.draft(table, target="paid", name="staff")
    assert draft == Schema.from_json(draft.to_json())
    says = (
        "schema 'staff' is a draft; fill in lower and upper of 'age', lower and upper of 'pay', "
        "categories of 'job', first and last of 'hired', labels of 'paid', from what is public"
    )
    uses = [lambda: draft.transformer().fit(table), lambda: draft.transformer().transform(table)]
    uses += [draft.max_row_norm, lambda: draft.n_encoded, lambda: draft.classes]
    uses += [lambda: draft.check(table), lambda: ParquetSource("none", draft)]
    for use in uses:
        with pytest.raises(ValueError, match=says):
            use()
    with pytest.raises(ValueError, match="target='wage' is no column"):
        Schema.draft(table, target="wage")


@pytest.mark.parametrize(
    "column",
    [
        partial(pd.array, dtype="Int64"), partial(pd.array, dtype="int64[pyarrow]"), pa.array,
        lambda values: pa.chunked_array([values]), partial(pl.Series, "n"), pd.Categorical,
        partial(pd.Categorical, ordered=True),
    ],
)  # fmt: skip
def test_one_missing_value_changes_neither_a_draft_nor_another_row(column):
    whole, gap = column([1, 2**53 + 1, 3]), column([1, 2**53 + 1, None])
    assert Schema.draft({"n": whole}) == Schema.draft({"n": gap})
    schema = Schema("n", [CategoricalColumn("n", [1, 2**53 + 1])], TARGET)
    frames = [pd.DataFrame({"n": gap})] if isinstance(gap, pd.Categorical) else []
    for table in ({"n": gap}, *frames):
        assert_array_equal(schema.transformer().fit_transform(table)[:2], np.eye(2))


@pytest.mark.parametrize(
    ("kind", "equal"),
    [
        (CategoricalColumn("c", ["1.10", "2.50"]), [Decimal("1.10"), Decimal("1.1")]),
        (TextColumn("c", 8), [Decimal("1.10"), Decimal("1.1")]),
        (DateColumn("c", "2020-01-01", "2020-01-03"), [
            datetime.datetime(2020, 1, 1, 20, tzinfo=datetime.UTC),
            datetime.datetime(2020, 1, 2, 5, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo")),
        ]),
    ],
)  # fmt: skip
def test_how_one_row_is_spelled_changes_no_other(kind, equal):
    first, other = equal
    assert first == other
    schema = Schema("c", [kind], TARGET)
    for container in (dict, pd.DataFrame):
        encoded = [
            schema.transformer().fit_transform(container({"c": [one, first, other, one]}))
            for one in equal
        ]
        assert_array_equal(encoded[0][1:3], encoded[1][1:3])
        assert_array_equal(encoded[0][0], encoded[0][1])
        assert_array_equal(encoded[1][0], encoded[1][2])


def test_a_draft_needs_no_rows():
    frame = pd.DataFrame(RAW).astype({"hired": "datetime64[s]"}).convert_dtypes()
    assert Schema.draft(frame) == Schema.draft(frame[:0]) == Schema.draft(frame[::-1])
    assert Schema.draft(frame).target.to_fill_in == ["name", "labels"]
    with pytest.raises(ValueError, match=r"name=0; .* names that are strings: see frame.rename"):
        Schema.draft(pd.DataFrame([[1, 2]]))


def test_check_tells_all_at_once_and_says_that_it_read_rows():
    table = {k: v for k, v in RAW.items() if k != "note"}
    table |= {"age": [17.5, None, 91.0], "paid": ["yes", "no", "maybe"]}
    said = NINE.check(table)
    head, *lines = said.splitlines()
    assert "looked at the rows" in head and "must not leave the room" in head
    for line in (
        "column 'age': 1 of 2 values are outside the bounds, and are clipped.",
        "column 'age': some values are not whole numbers, although integer=True.",
        "column 'age' has missing values, the first in row 2",
        "column 'job': 1 of 3 values are not listed, the first of them 'smith'",
        "column 'job': these categories never occur: ['baker'].",
        "the table has no column 'note', which the schema names",
        "column 'grade': 1 of 3 values are not listed, the first of them 'top'",
        "column 'paid' holds the label 'maybe', first in row 3",
    ):
        assert [line for said in lines if said.startswith(line)] == [line], line
    one = Schema("one", [BooleanColumn("member")], TARGET)
    assert one.check(pl.DataFrame(RAW)[:1]).endswith("room.\nNo problem was found.")
    known = {name: values for name, values in RAW.items() if name != "note"}
    assert NINE.check(as_dask(known)) == NINE.check(pd.DataFrame(known))
    assert "No problem" not in one.check(RAW)
    said = one.check({"member": [True], "paid": [None]})
    assert "list it there" not in said and "give such rows a label" in said
