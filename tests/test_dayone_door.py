"""Day one: one door for input. Tables of (kind of input) x (place), each made of two lists."""

import datetime as dt
import io
import math
import os
import sys
import threading
import time
import traceback
import warnings
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import dask.array
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse
from sklearn import config_context
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from strategies import BASELINES, OURS
from tapes import record

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyCalculator,
    PrivacyOdometer,
    PublicBoundsScaler,
    make_census,
    private_train_test_split,
)
from dpglm.estimators.whitening import FullPreconditioner
from dpglm.losses import SmoothedHinge
from dpglm.privacy.attacks import attack_power
from dpglm.schedules import ExponentialDecay
from dpglm.schema import (
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    Schema,
    Target,
    TextColumn,
    load_schema,
)
from dpglm.schema.values import check_sparse
from dpglm.sources import ParquetSource, read_csv
from dpglm.sources.arrays import ArraySource
from dpglm.study import PrivacyReport
from dpglm.study.cli import main
from dpglm.sums.rows import rows_of
from dpglm.workflow import (
    PrivateCalibratedClassifier,
    PrivateKFold,
    PrivateSearchCV,
    PrivateThresholdClassifier,
    make_private_scorer,
    private_scores,
)

pytestmark = pytest.mark.filterwarnings("ignore")
N = 24
X, Y = np.random.default_rng(0).normal(size=(N, 3)), np.arange(N) % 2
PUBLIC = LogisticRegression().fit(X, Y)
USED = DPLogisticRegression(classes=[0, 1], max_iter=2).fit(X, Y)
with warnings.catch_warnings(action="ignore"):
    CALIBRATED = PrivateCalibratedClassifier(PUBLIC, epsilon=9.0).fit(X, Y)


def as_array(values):
    return np.array(values, dtype=object) if isinstance(values, list) else np.asanyarray(values)


class Stored:
    """A vector that is read slice by slice, as those of Zarr and HDF5 are."""

    def __init__(self, values):
        self._array = as_array(values)
        self.dtype, self.shape = self._array.dtype, self._array.shape

    def __getitem__(self, part):
        return self._array[part]


def of_dask(X, y):
    return [dask.array.from_array(a, chunks=(12, *a.shape[1:])) for a in map(as_array, (X, y))]


READERS = {
    "blocks": lambda X, y: ([(X[:12], y[:12]), (X[12:], y[12:])],),
    "source": lambda X, y: (ArraySource(as_array(X), y, block_rows=9),),
    "stored": lambda X, y: (ArraySource(as_array(X), Stored(y), block_rows=9),),
    "dask": of_dask,
}
MODELS = {
    "svm": partial(DPLinearSVM, max_iter=2),
    "agd": partial(DPAGDClassifier, max_iter=2),
    "baseline": BASELINES[0],
    "search": lambda **of: PrivateSearchCV(DPLogisticRegression(max_iter=2), {}, **of),
}
FITS = ["logistic", *MODELS, *READERS]
RELEASES = {
    "scores": lambda model, X, y: private_scores(model, X, y, epsilon=1.0),
    "scorer": lambda model, X, y: make_private_scorer("accuracy", epsilon=1.0)(model, X, y),
    "calibration": lambda model, X, y: PrivateCalibratedClassifier(model).fit(X, y),
    "threshold": lambda model, X, y: PrivateThresholdClassifier(model).fit(X, y),
}


def fit(place, X, y, **of):
    model = MODELS.get(place, partial(DPLogisticRegression, max_iter=2))(**of)
    return model.fit(*READERS.get(place, lambda *data: data)(X, y))


def refused(message, ask, *data, **of):
    """Expect a sentence of this package that quotes no record, before anything is released."""
    with record() as tape, pytest.raises((ValueError, TypeError), match=message) as failure:
        ask(*data, **of)
    error = failure.value
    assert type(error) in (ValueError, TypeError) and str(error).endswith(".")
    assert not tape.releases and not hasattr(error, "privacy_ledger")
    while error is not None:  # what hides behind it leaves the fit with it
        shown = "".join(traceback.format_exception(error, limit=0))
        assert "Smith" not in shown and "37.25" not in shown
        error = error.__context__


def one(value, others=(0, 1), dtype=object):
    return np.array([value if k == 5 else others[k % 2] for k in range(N)], dtype=dtype)


TEXTS, DAYS = ("a", "b"), (np.datetime64("2020-01-01"), np.datetime64("2020-01-02"))
MISSING = {
    **{f"{value!r} in objects": one(value) for value in (None, math.nan, pd.NA, pd.NaT)},
    **{f"{value!r} in texts": one(value, TEXTS) for value in (None, math.nan, pd.NA)},
    "Decimal": one(Decimal("NaN")),
    "NaT in objects": one(np.datetime64("NaT")),
    "NaT": one(np.datetime64("NaT"), DAYS, "M8[ns]"),
    "NaT in days": one(np.datetime64("NaT"), DAYS, "M8[D]"),
    "NaT of durations": one(np.timedelta64("NaT"), (1, 2), "m8[s]"),
    "NaN": one(math.nan, dtype=float),
    "float32": one(math.nan, dtype=np.float32),
    "nullable": pd.Series(one(pd.NA), dtype="Int64"),
    "nullable boolean": pd.Series(one(pd.NA, (True, False)), dtype="boolean"),
    "strings of pandas": pd.Series(one(None, TEXTS), dtype="string"),
    "categorical": pd.Series(one(None, TEXTS), dtype="category"),
    "polars": pl.Series(one(None).tolist()),
    "arrow": pa.array(one(None).tolist()),
    "StringDType": one(math.nan, TEXTS).astype(np.dtypes.StringDType(na_object=math.nan)),
    "list": one(None).tolist(),
    "list of texts": one(math.nan, TEXTS).tolist(),
}
LABELS = {kind: (y, "y has missing labels, the first in row 6;") for kind, y in MISSING.items()} | {
    "masked": (np.ma.masked_array(Y, Y == 2), "y is a masked array"),
    "infinite": (one(math.inf, dtype=float), "y has infinite labels, the first in row 6;"),
    "infinite in objects": (one(-math.inf), "y has infinite labels, the first in row 6;"),
    "several types": (one("a").tolist(), "labels of one type"),
    "bytes and texts": (one(b"a", TEXTS), "labels of one type"),
    "complex": (Y + 0j, "complex128"),
    "fields": (np.array([(k,) for k in Y], dtype=[("a", int)]), "has the type"),
    "two columns": (np.column_stack([Y, Y]), "shape|dimension"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_dayone_labels_that_are_none_are_refused_everywhere(kind):
    y, message = LABELS[kind]
    for place in FITS:
        refused(message, fit, place, X, y)
        refused(message, fit, place, X, y, classes=[0, 1])
    for release in RELEASES.values():
        refused(message, release, PUBLIC, X, y)
    for model in (USED, CALIBRATED):
        refused(message, model.score, X, y)
    refused(message, USED.score, *READERS["blocks"](X, y))
    group = DPLogisticRegression(max_contributions=2)
    refused(message.replace("y ", "groups ", 1), group.fit, X, Y, groups=y)
    refused("sample_weight", DPLogisticRegression().fit, X, Y, sample_weight=y)
    refused("sample_weight", USED.score, X, Y, sample_weight=y)


CLASSES = {
    **{f"{value!r}": [0, 1, value] for value in (None, math.nan, math.inf, pd.NA, pd.NaT)},
    **{f"{value!r} in texts": ["a", "b", value] for value in (None, math.nan, pd.NA)},
    "objects": np.array([0, 1, None], dtype=object),
    "dates": np.array([*DAYS, "NaT"], dtype="M8[D]"),
    "masked": np.ma.masked_array([0, 1, 2], [0, 0, 1]),
    "several types": [0, "a"],
    "bytes and texts": ["a", b"a"],
    "letters": "01",
    "a set": {0, 1},
}


@pytest.mark.parametrize("kind", CLASSES)
def test_dayone_a_label_set_has_no_missing_or_infinite_label(kind):
    for place in FITS:
        refused("^classes ", fit, place, X, Y, classes=CLASSES[kind])


D = [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
NOON = [dt.datetime(2020, 1, 1 + k, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))) for k in (0, 1)]
UTC = [moment.astimezone(dt.UTC) for moment in NOON]
UNITS = [np.array(D, dtype=f"M8[{unit}]") for unit in ("D", "h", "s", "ms", "us", "ns")]
SPELLINGS = [*UNITS, D, np.array(D, dtype=object), pd.to_datetime(D), pd.Series(D), pl.Series(D)]
MOMENTS = [NOON, UTC, pd.Series(NOON), pd.DatetimeIndex(UTC)]


@pytest.mark.parametrize("listed", [SPELLINGS[5], D, NOON])
def test_dayone_dates_are_compared_in_one_unit(listed):
    rows = np.where(Y == 1, 1.0, -1.0)[:, np.newaxis]
    aware = listed is NOON or listed is UTC
    for k, two in enumerate(MOMENTS if aware else SPELLINGS[listed is D :: 2]):
        y = [two[int(label)] for label in Y] if isinstance(two, list | pl.Series) else two[Y]
        for place in ("logistic", "search", *READERS)[k % 3 :: 3]:
            model = fit(place, rows, y, classes=listed)
            day = model.classes_.astype("M8[D]")
            assert (day == UNITS[0]).all() and model.classes_.dtype.kind == "M"
        model = DPLogisticRegression(classes=listed, epsilon=math.inf).fit(rows, y)
        blocks = READERS["blocks"](rows, y if isinstance(y, list) else np.asarray(y))
        assert model.score(rows, y) == model.score(*blocks) == 1
        exact = private_scores(model, rows, y, epsilon=math.inf, scores="accuracy")
        assert exact.accuracy.value == pytest.approx(1)
        for release in [*RELEASES.values()][k % 2 :: 2]:
            release(model, rows, y)


OBJECTS, VALUES = X.astype(object), np.full((N, 3), 37.25)
NAMES = np.full((N, 3), "Alice Smith", dtype=object)
DATED = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=N), "x": 1.0})


def objects_of(value):
    return np.array([value] * 3 * N, dtype=object).reshape(N, 3)


ROWS = {
    "masked": (np.ma.masked_array(X, X > 1), "X is a masked array"),
    "masked rows": ([np.ma.masked_array(row, row > 1) for row in X], "X is a masked array"),
    "NA in objects": (np.where(X > 1, pd.NA, OBJECTS), "Input X contains NaN"),
    "NaT in objects": (np.where(X > 1, pd.NaT, OBJECTS), "Input X contains NaN"),
    "None in objects": (np.where(X > 1, None, OBJECTS), "Input X contains NaN"),
    "a frame of NA": (pd.DataFrame(np.where(X > 1, pd.NA, OBJECTS)), "contains NaN"),
    "nullable": (pd.DataFrame(np.where(X > 1, np.nan, X)).convert_dtypes(), "contains NaN"),
    "infinite": (np.where(X > 1, np.inf, VALUES), "Input X contains infinity"),
    "huge numbers": (np.full((N, 3), 10**400, dtype=object), "must be a table of numbers"),
    "dates": (np.full((N, 3), DAYS[0]), "X holds dates or times"),
    "durations": (np.full((N, 3), np.timedelta64(1, "D")), "X holds dates or times"),
    "dates of pandas": (DATED, "X holds dates or times"),
    "dates of polars": (pl.from_pandas(DATED), "X holds dates or times"),
    "dates of arrow": (pa.Table.from_pandas(DATED), "X holds dates or times"),
    "python dates": (np.full((N, 3), D[0], dtype=object), "X holds dates or times"),
    "objects of times": (objects_of(np.datetime64("2020-01-01")), "X holds dates or times"),
    "objects of spans": (objects_of(np.timedelta64(3, "D")), "X holds dates or times"),
    "complex": (VALUES + 1j, "Complex data not supported"),
    "sparse complex": (sparse.csr_array(VALUES + 1j), "Complex data not supported"),
    "fields": (np.rec.fromarrays(X.T), "table of numbers|two dimensions"),
    "lazy": (pl.DataFrame(X).lazy(), r"give X.collect\(\)|dask array"),
    "text": (NAMES, "must be a table of numbers"),
    "strings": (NAMES.astype(str), "must be a table of numbers"),
    "a frame of text": (pd.DataFrame(NAMES), "must be a table of numbers"),
    "one dimension": (VALUES[:, 1], "X must have two dimensions|X of shape"),
    "lists of several lengths": ([[37.25], *VALUES[1:].tolist()], "must be a table of numbers"),
}


def refused_everywhere(message, rows, readers=READERS):
    for place in ("logistic", *MODELS, *readers):
        refused(message, fit, place, rows, Y)
    for ask in (USED.predict, USED.predict_proba, USED.decision_function):
        refused(message, ask, rows)
    refused(message, USED.score, rows, Y)


@pytest.mark.parametrize("kind", ROWS)
def test_dayone_rows_that_are_no_numbers_are_refused_everywhere(kind):
    rows, message = ROWS[kind]
    is_array = isinstance(rows, np.ndarray) and rows.ndim == 2
    refused_everywhere(message, rows, READERS if is_array else ("blocks",) * (kind != "lazy"))
    if kind != "sparse complex":
        refused(message, PublicBoundsScaler(-1, 1).fit, rows)
    if kind == "masked":
        for release in RELEASES.values():
            refused(message, release, PUBLIC, rows, Y)
        refused(message, CALIBRATED.predict_proba, rows)


def put(value, at=0.5):
    """Change one entry of a part, in the middle or at its end."""
    return lambda part: np.where(np.arange(len(part)) == int(at * (len(part) - 1)), value, part)


def moved(by):
    return lambda coords: (np.where(coords[0] == 3, by, coords[0]), coords[1])


# Matrices of which one part is wrong, as no constructor would let it be.
BROKEN = {
    "end beyond the data": ("csr", "indptr", put(10**6, 1)),
    "falling": ("csr", "indptr", put(2**30)),
    "falling to zero": ("csr", "indptr", put(0, 1)),
    "below zero": ("csr", "indptr", put(-5)),
    "column beyond": ("csr", "indices", put(10**6)),
    "column below zero": ("csr", "indices", put(-1)),
    "data too short": ("csr", "data", lambda data: data[:-5]),
    "columns": ("csc", "indptr", put(2**30)),
    "rows of columns": ("csc", "indices", put(2**30)),
    "blocks": ("bsr", "indices", put(2**30)),
    "end that 64 bits lose": ("csr", "indptr", lambda ends: put(2**64 - 1, 1)(ends.astype("u8"))),
    "columns that 64 bits lose": ("csc", "indptr", lambda ends: put(2**63, 1)(ends.astype("u8"))),
    "ends of blocks": ("bsr", "indptr", put(10**6, 1)),
    "blocks of nothing": ("bsr", "data", lambda data: data[..., :0]),
    "part of a block": ("bsr", "_shape", lambda shape: (N, 4)),
    "coordinates": ("coo", "coords", moved(2**30)),
    "coordinate below zero": ("coo", "coords", moved(-(2**30))),
    "diagonals": ("dia", "data", lambda data: data[:-1]),
    "one diagonal as a vector": (
        "dia",
        "__dict__",
        lambda d: d | {"data": d["data"][0], "offsets": d["offsets"][:1]},
    ),
    "diagonals that 32 bits lose": ("dia", "offsets", lambda k: k + 2**32 * (k > 0)),
    "lists": ("lil", "data", lambda data: data[:-1]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_dayone_a_broken_sparse_matrix_is_refused_everywhere(kind):
    form, part, change = BROKEN[kind]
    S, message = sparse.csr_array(X).asformat(form), "do not fit together"
    setattr(S, part, change(getattr(S, part)))
    refused_everywhere(message, S, ())
    for ask in (ArraySource, private_train_test_split):
        refused(message, ask, S, Y)
    for release in RELEASES.values():
        refused(message, release, PUBLIC, S, Y)
    refused(message, CALIBRATED.predict_proba, S)
    model = DPLogisticRegression(classes=[0, 1])
    refused(message, model.fit, [(S, Y)])
    part = dask.array.from_delayed(dask.delayed(S), X.shape, meta=sparse.csr_array((0, 3)))
    refused(message, model.fit, part, dask.array.from_array(Y, chunks=N))
    if S.format == "csr":
        refused(message, rows_of, S)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64, ">i4"])
def test_dayone_a_sound_sparse_matrix_is_taken_with_any_indices(form, dtype):
    S = sparse.csr_array(X * (X > 0)).asformat(form)
    for part in {"indices", "indptr"} & set(vars(S)):
        setattr(S, part, getattr(S, part).astype(dtype))
    check_sparse(S)
    check_sparse(sparse.csr_array((2, 3)).asformat(form))


KEPT = (np.float32(0.2), np.float16(0.2), np.longdouble(0.2), Fraction(1, 5))
WHOLE = (np.uint8(127), np.int8(127), np.uint64(127))
NUMBERS = {
    "epsilon": (lambda v: DPLogisticRegression(epsilon=v).plan(1000, 5), KEPT),
    "alpha": (lambda v: DPLogisticRegression(alpha=v).plan(1000, 5), KEPT),
    "fraction": (lambda v: planned(FullPreconditioner(budget_fraction=v)), KEPT),
    "selection": (lambda v: DPAGDClassifier(selection_fraction=v).plan(1000, 5), KEPT),
    "schedule": (lambda v: planned(None, step_schedule=ExponentialDecay(v, v)), KEPT),
    "half_width": (lambda v: SmoothedHinge(v).curvature, KEPT),
    "calculator": (lambda v: CALCULATOR.max_iter(**SPENT, noise_multiplier=v), KEPT),
    "test_size": (lambda v: private_train_test_split(np.arange(99), test_size=v)[1], KEPT),
    "n_features": (lambda v: DPLogisticRegression().plan(10_000, v), WHOLE),
    "n_classes": (lambda v: DPLinearSVM().plan(10_000, 5, v), WHOLE),
    "n_samples": (lambda v: DPAGDClassifier().plan(v, 5), WHOLE),
    "baseline": (lambda v: BASELINES[0]().plan(v, v), WHOLE),
    "max_iter": (lambda v: DPLogisticRegression(max_iter=v).plan(1000, 5), WHOLE),
    "estimate": (lambda v: DPLogisticRegression(**ADDED, n_samples_estimate=v).plan(9, 5), WHOLE),
    "n_splits": (lambda v: DPAGDClassifier(n_splits=v).plan(1000, 5), WHOLE),
    "search": (lambda v: PrivateSearchCV(DPLogisticRegression(), {}).plan(v, v), WHOLE),
    "key": (lambda v: private_train_test_split(np.arange(99), key=v)[1], WHOLE),
    "make_census": (lambda v: make_census(v, random_state=0)[0].sum(), WHOLE),
    "bounds": (lambda v: PublicBoundsScaler(0, v).fit_transform([[50], [100]]), WHOLE),
    "bounds of a column": (lambda v: NumericColumn("a", 0, v), WHOLE),
    "n_segments": (lambda v: NumericColumn("a", 0, 9, n_segments=v), (np.uint8(8), np.int64(8))),
    "words": (lambda v: TextColumn("a", v, missing=np.str_("none")), WHOLE),
    "attack": (lambda v: attack_power(LEDGER, v), KEPT),
}
LEDGER = DPLogisticRegression().plan(1000, 5).ledger
CALCULATOR, SPENT = PrivacyCalculator(), {"epsilon": 3.0, "delta": 1e-6}
ADDED = {"neighboring_relation": "add_or_remove_one"}
NO_NUMBERS = [10**400, -(10**5000), "1", True, np.bool_(True), 1j, np.array([0.5, 0.5]), math.nan]
NO_NUMBERS += [np.array("1"), np.timedelta64(1, "s"), np.ma.masked, pd.NA, pd.NaT, None]
NO_NUMBERS += [Decimal("NaN"), b"1", []]


SPELLED = {
    "booleans": (("true", "false"), [True, False]),
    "times": (("2020-01-01", "2020-01-02"), pd.to_datetime(["2020-01-01", "2020-01-02"])),
    "texts": (("2020-01-01 00:00:00", "2020-01-02"), pd.to_datetime(["2020-01-01", "2020-01-02"])),
}


@pytest.mark.parametrize("kind", SPELLED)
def test_dayone_categories_in_text_are_found_in_columns_of_another_type(kind):
    listed, values = SPELLED[kind]
    schema = Schema("t", [CategoricalColumn("c", listed)], Target("y", [0, 1]))
    assert np.array_equal(schema.transformer().transform(pd.DataFrame({"c": values})), np.eye(2))


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_dayone_rows_that_are_not_finite_are_refused_whatever_is_assumed(bad, message):
    rows, message = np.where(X > 1, bad, X), f"contains {message}"
    with config_context(assume_finite=True):
        for ask in (USED.predict, USED.predict_proba, PublicBoundsScaler(-1, 1).fit_transform):
            refused(message, ask, rows)
        refused(message, RELEASES["scores"], USED, rows, Y)
        for Model in (DPLogisticRegression, *BASELINES):
            refused(message, Model(classes=[0, 1]).fit, rows, Y)


def test_dayone_frames_in_blocks_have_the_columns_of_the_first():
    first, other = (pd.DataFrame(X, columns=list(names)) for names in ("abc", "bac"))
    for make in (lambda f: f, pl.from_pandas, pa.Table.from_pandas):
        refused("Block 1 .* order", USED.fit, [(make(first), Y), (make(other), Y)])
        assert USED.fit([(make(first), Y), (make(first), Y), (X, Y)])


@pytest.mark.parametrize(
    ("door", "names"),
    [
        (private_train_test_split, ["random_state", "stratify", "shuffle", "train_size", "tests"]),
        (PrivateKFold, ["random_state", "shuffle", "folds"]),
        (PrivacyOdometer, ["budget", "limit"]),
        (PublicBoundsScaler, ["feature_range", "clip", "copy"]),
    ],
)
def test_dayone_a_name_says_what_it_has_instead_of_what_others_have(door, names):
    for name in names:
        refused(f"Invalid parameter '{name}' for {door.__name__}: ", door, **{name: 1})


def planned(preconditioner, **of):
    return DPLogisticRegression(preconditioner=preconditioner, max_iter=5, **of).plan(1000, 5)


@pytest.mark.parametrize("name", NUMBERS)
def test_dayone_a_public_number_counts_the_same_in_any_type(name):
    ask, values = NUMBERS[name]
    for value in values:
        plain = float(value) if values is KEPT else int(value)
        assert repr(ask(value)) == repr(ask(plain)), type(value)


@pytest.mark.parametrize("model", [DPLogisticRegression, DPAGDClassifier, BASELINES[0]])
def test_dayone_a_public_number_that_is_none_is_refused_with_the_rule(model):
    known = {"epsilon", "delta", "alpha", "max_iter", "sampling_rate", "max_step", "step_growth"}
    for name in {*model().get_params()} & {*known, "n_splits", "inference_fraction"}:
        for value in NO_NUMBERS:
            rule = rf"^{name}=.{{1,60}} must be .*\.$"
            refused(rule, lambda n=name, v=value: model(**{n: v}).plan(1000, 5))
    for n in (10**400, 0, 1.5, "9", None, True, np.array(9)):
        refused(r"^n_samples=.{1,60} must be a whole number, 1 or more\.$", model().plan, n, 5)


SCHEMA = Schema(
    "people",
    [
        NumericColumn("a", 0, 10, n_segments=1, missing=0),
        CategoricalColumn("c", ["x", "é"], missing="indicator"),
        DateColumn("d", "2020-01-01", "2020-12-31", n_segments=1, missing="indicator"),
    ],
    Target("größe", ["klein", "groß"]),
)
TEXT = {"a": ["1", "2"], "c": ["x", "é"], "d": ["2020-02-01", "2020-03-01"],
        "größe": ["groß", "klein"]}  # fmt: skip
CSV = "a,c,d,größe\n1,x,2020-02-01,groß\n2,é,2020-03-01,klein\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_dayone_documents_are_read_with_a_byte_order_mark(encoding, tmp_path):
    (tmp_path / "s.json").write_text(SCHEMA.to_json(), encoding=encoding)
    assert load_schema(tmp_path / "s.json") == SCHEMA
    if encoding != "utf-16":
        (tmp_path / "t.csv").write_text(CSV, encoding=encoding)
        assert read_csv(tmp_path / "t.csv", SCHEMA).target.tolist() == TEXT["größe"]


@pytest.mark.parametrize("console", ["cp1252", "ascii"])
def test_dayone_commands_write_utf8_whatever_the_console_is(console, tmp_path, monkeypatch):
    def run(*arguments):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=console)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([*map(str, arguments)]) == 0
        stream.flush()
        return stream.buffer.getvalue()

    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(CSV + CSV.partition("\n")[2] * 40, encoding="utf-8")
    Path("s.json").write_bytes(SCHEMA.to_json().encode("utf-8-sig"))
    draft = run("schema", "t.csv", "--target", "größe", "--name", "été")
    assert Schema.from_json(draft).target.name == "größe"
    run("fit", "t.csv", "--schema", "s.json", "--epsilon", 1, "--output", "m.json")
    Path("m.json").write_bytes(Path("m.json").read_bytes().decode().encode("utf-8-sig"))
    assert "groß" in run("predict", "m.json", "t.csv", "--probabilities").decode()
    assert "No problem was found" in run("schema", "t.csv", "--check", "s.json").decode()
    run("report", "m.json", "--output", "r.html")


def test_dayone_long_lists_of_categories_take_time_in_proportion():
    names = [f"name {k}" for k in range(20_000)]
    schema = Schema("zip", [CategoricalColumn("c", names)], Target("t", names))
    table = {"c": np.array(names), "t": np.array(names)}
    begin = time.process_time()
    assert schema.check(pd.DataFrame(table)).endswith("No problem was found.")
    assert time.process_time() - begin < 2


UNFITTED = {
    **{model.__name__: model() for model in OURS},
    **{model.__name__: model() for model in BASELINES},
    "calibration": PrivateCalibratedClassifier(PUBLIC),
    "threshold": PrivateThresholdClassifier(PUBLIC),
    "search": PrivateSearchCV(DPLogisticRegression(), {}),
    "scaler": PublicBoundsScaler(),
}
METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function", "transform"]


@pytest.mark.parametrize("name", UNFITTED)
def test_dayone_whatever_is_asked_before_a_fit_says_so(name):
    model = UNFITTED[name]
    asked = [getattr(model, method) for method in METHODS if hasattr(model, method)]
    for ask in [*asked, PrivacyReport, *(
        [lambda X: model.score(X, Y), lambda X: private_scores(model, X, Y, epsilon=1.0)]
        * (name != "scaler")
    )]:  # fmt: skip
        with pytest.raises(NotFittedError):
            ask(X if ask in asked or ask.__name__ == "<lambda>" else model)
    for method in ("to_sklearn", "slim"):
        if hasattr(model, method):
            with pytest.raises(NotFittedError):
                getattr(model, method)()


class Pipe(io.StringIO):
    """A stream as a pipe has it."""

    def seekable(self):
        return False


FILES = {
    "sep=;": ("t.csv", "sep=;\n" + CSV.replace(",", ";"), "begins with sep="),
    "quoted sep": ("t.csv", '"sep=,"\n' + CSV, "begins with sep="),
    "utf-16": ("t.csv", CSV.encode("utf-16"), "is not a CSV file in UTF-8"),
    "no path": (None, None, "path=None must be the path"),
    "number": (3, None, "path=3 must be the path"),
    "stream": (io.StringIO(CSV), None, "must be the path of a file"),
    "null": ("a\0.csv", None, "null character"),
    "address": ("s3://bucket/t.csv", None, "an address"),
    "line of a file": ("t.csv\n", None, "spaces around"),
}


@pytest.mark.parametrize("kind", FILES)
def test_dayone_files_that_cannot_be_meant_are_refused(kind, tmp_path, monkeypatch):
    name, content, message = FILES[kind]
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(message, read_csv, name, SCHEMA)
    if content is None:
        refused(message, ParquetSource, name, SCHEMA)
        refused(message, load_schema, name)


def test_dayone_streams_and_folders_of_hive_are_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(CSV,))
    writer.start()
    refused("cannot be read twice", read_csv, tmp_path / "pipe", SCHEMA)
    writer.join()
    folder = tmp_path / "t" / "c=x"
    folder.mkdir(parents=True)
    parquet.write_table(pa.table(TEXT).drop_columns("c"), folder / "a.parquet")
    refused("no column 'c', .* into the files", ParquetSource, tmp_path / "t", SCHEMA)
    fields = np.array([(1, "x")], dtype=[("a", int), ("c", "U1")])
    encode = SCHEMA.transformer().fit_transform
    refused("the table is of type", encode, fields)
    refused("bytes that are no text", encode, TEXT | {"c": [b"x", b"\xe9"]})
    refused("lower is a masked array", PublicBoundsScaler(np.ma.zeros(3), 1).fit, X)
