"""Day one: one door for input. Tables of (kind of input) x (place), each made of two lists."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from strategies import BASELINES
from tapes import record

from dpglm import DPAGDClassifier, DPLinearSVM, DPLogisticRegression, PublicBoundsScaler
from dpglm.sources.arrays import ArraySource
from dpglm.workflow import (
    PrivateCalibratedClassifier,
    PrivateSearchCV,
    PrivateThresholdClassifier,
    make_private_scorer,
    private_scores,
)

pytestmark = pytest.mark.filterwarnings("ignore")
N = 24
X, Y = np.random.default_rng(0).normal(size=(N, 3)), np.arange(N) % 2
PUBLIC = LogisticRegression().fit(X, Y)


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
    array = pytest.importorskip("dask.array")
    return [array.from_array(a, chunks=(12, *a.shape[1:])) for a in map(as_array, (X, y))]


READERS = {
    "blocks": lambda X, y: ([(X[:12], y[:12]), (X[12:], y[12:])],),
    "source": lambda X, y: (ArraySource(as_array(X), y, block_rows=9),),
    "stored": lambda X, y: (ArraySource(as_array(X), Stored(y), block_rows=9),),
    "dask": of_dask,
}
MODELS = {
    "svm": DPLinearSVM,
    "agd": DPAGDClassifier,
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
    model = MODELS.get(place, DPLogisticRegression)(**of)
    return model.fit(*READERS.get(place, lambda *data: data)(X, y))


def refused(message, ask, *data, **of):
    """Expect a sentence of this package, before anything is released."""
    with record() as tape, pytest.raises((ValueError, TypeError), match=message) as error:
        ask(*data, **of)
    assert type(error.value) in (ValueError, TypeError) and str(error.value).endswith(".")
    assert not tape.releases and not hasattr(error.value, "privacy_ledger")


def one(value, others=(0, 1), dtype=object):
    """Labels of which the sixth is something else."""
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
    used = DPLogisticRegression(classes=[0, 1], max_iter=2).fit(X, Y)
    for place in FITS:
        refused(message, fit, place, X, y)
        refused(message, fit, place, X, y, classes=[0, 1])
    for release in RELEASES.values():
        refused(message, release, PUBLIC, X, y)
    refused(message, used.score, X, y)
    refused(message, used.score, *READERS["blocks"](X, y))
    group = DPLogisticRegression(max_contributions=2)
    refused(message.replace("y ", "groups ", 1), group.fit, X, Y, groups=y)


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
    for two in MOMENTS if aware else SPELLINGS:
        y = [two[int(k)] for k in Y] if isinstance(two, list | pl.Series) else two[Y]
        for place in FITS:
            model = fit(place, rows, y, classes=listed)
            day = model.classes_.astype("M8[D]")
            assert (day == UNITS[0]).all() and model.classes_.dtype.kind == "M"
        model = DPLogisticRegression(classes=listed, epsilon=math.inf).fit(rows, y)
        blocks = READERS["blocks"](rows, y if isinstance(y, list) else np.asarray(y))
        assert model.score(rows, y) == model.score(*blocks) == 1
        exact = private_scores(model, rows, y, epsilon=math.inf, scores="accuracy")
        assert exact.accuracy.value == pytest.approx(1)
        for release in RELEASES.values():
            release(model, rows, y)


OBJECTS = X.astype(object)
ROWS = {
    "masked": (np.ma.masked_array(X, X > 1), "X is a masked array"),
    "NA in objects": (np.where(X > 1, pd.NA, OBJECTS), "Input X contains NaN"),
    "NaT in objects": (np.where(X > 1, pd.NaT, OBJECTS), "Input X contains NaN"),
    "None in objects": (np.where(X > 1, None, OBJECTS), "Input X contains NaN"),
    "a frame of NA": (pd.DataFrame(np.where(X > 1, pd.NA, OBJECTS)), "contains NaN"),
    "nullable": (pd.DataFrame(np.where(X > 1, np.nan, X)).convert_dtypes(), "contains NaN"),
    "huge numbers": (np.full((N, 3), 10**400, dtype=object), "must be a table of numbers"),
    "dates": (np.full((N, 3), DAYS[0]), "X holds dates or times"),
    "durations": (np.full((N, 3), np.timedelta64(1, "D")), "X holds dates or times"),
    "python dates": (np.full((N, 3), D[0], dtype=object), "must be a table of numbers"),
    "complex": (X + 0j, "Complex data not supported"),
    "fields": (np.rec.fromarrays(X.T), "structured array|two dimensions"),
    "lazy": (pl.DataFrame(X).lazy(), r"give X.collect\(\)|dask array"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_dayone_rows_that_are_no_numbers_are_refused_everywhere(kind):
    rows, message = ROWS[kind]
    used = DPLogisticRegression(classes=[0, 1], max_iter=2).fit(X, Y)
    for place in FITS:
        if kind != "lazy" or place not in ("search", *READERS):
            refused(message, fit, place, rows, Y)
    for ask in (used.predict, used.predict_proba, used.decision_function):
        refused(message, ask, rows)
    refused(message, used.score, rows, Y)
    refused(message, PublicBoundsScaler(-1, 1).fit, rows)
    if kind == "masked":
        calibrated = PrivateCalibratedClassifier(PUBLIC, epsilon=9.0).fit(X, Y)
        for release in RELEASES.values():
            refused(message, release, PUBLIC, rows, Y)
        refused(message, calibrated.predict_proba, rows)
