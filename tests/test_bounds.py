"""The row bound of a schema reaches the estimator of the same pipeline, and nothing else does."""

import io
import math
import pickle
from itertools import product
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer
from strategies import OURS

from dpglm import DiagonalPreconditioner, DPLinearSVM, DPLogisticRegression, FullPreconditioner
from dpglm.datasets import make_census
from dpglm.estimators.defaults import ROW_NORM
from dpglm.estimators.inputs import public_max_row_norm
from dpglm.privacy.vault import Vault
from dpglm.schema import load_schema
from dpglm.schema.values import with_max_row_norm
from dpglm.sources import ParquetSource
from dpglm.sources.arrays import ArraySource
from dpglm.workflow import PrivateSearchCV

SCHEMA = load_schema("census")
BOUND = SCHEMA.max_row_norm(fit_intercept=False)
TABLE, Y = make_census(1200, random_state=0, as_frame=True)
ENCODED = SCHEMA.transformer().fit_transform(TABLE)


def encoded(form, table=TABLE):
    encoder = SCHEMA.transformer(sparse_output=form == "sparse")
    if form == "pandas":
        encoder.set_output(transform="pandas")
    if form == "dask":
        dd = pytest.importorskip("dask.dataframe")
        table = dd.from_pandas(table, npartitions=2)
    return encoder.fit_transform(table)


@pytest.fixture
def asked(monkeypatch):
    """What vaults are asked for before the gradients, and the bounds of their second moments."""
    asked = []

    def noted(name, original):
        def method(self, *arguments, **options):
            asked.append((name, arguments[0] if name == "second_moment" else None))
            return original(self, *arguments, **options)

        return method

    for name in ("magnitude_histogram", "norm_histogram", "second_moment"):
        monkeypatch.setattr(Vault, name, noted(name, getattr(Vault, name)))
    return asked


def names(asked):
    return [name for name, _ in asked]


FORMS = [*product(OURS, ["dense", "sparse", "pandas"]), (DPLogisticRegression, "dask")]


@pytest.mark.parametrize(("Model", "form"), FORMS)
def test_in_a_pipeline_the_estimator_pays_for_no_units(asked, Model, form):
    X, y = encoded(form), Y
    if form == "dask":
        import dask.dataframe as dd

        y = dd.from_pandas(Y, npartitions=2)
    known = Model(classes=[0, 1], max_iter=3).fit(X, y)
    assert names(asked) == ["second_moment"]
    bound = SCHEMA.max_row_norm()
    of_rows = SimpleNamespace(options={}, max_row_norm=math.sqrt(bound**2 - 1))
    plan = known._planned(1200, SCHEMA.n_encoded, 2, of_rows)
    assert plan.preconditioner.row_clipping_norm == asked[0][1] == ROW_NORM < bound
    # As if it had been given by hand, and unlike a plain array.
    plan = Model(classes=[0, 1], max_iter=3, max_row_norm=bound).plan(1200, SCHEMA.n_encoded)
    assert known.privacy_.events == plan.ledger.events
    asked.clear()
    unknown = Model(classes=[0, 1], max_iter=3).fit(np.asarray(ENCODED), Y)
    assert names(asked)[0] in ("magnitude_histogram", "norm_histogram") and len(asked) == 2
    assert unknown.privacy_.epsilon() == pytest.approx(known.privacy_.epsilon(), rel=1e-9)


def test_a_pipeline_search_and_cross_validation_need_no_word(asked):
    plain, few, y = DPLogisticRegression(classes=[0, 1], max_iter=2), TABLE[:300], Y[:300]
    for encoder in (SCHEMA.transformer(), SCHEMA.transformer().set_output(transform="pandas")):
        pipeline = make_pipeline(encoder, plain)
        clone(pipeline).fit(few, y)
        cross_validate(pipeline, few, y, cv=2)
        settings = {"dplogisticregression__alpha": [0.0, 0.1]}
        GridSearchCV(pipeline, settings, cv=2).fit(few, y)
        PrivateSearchCV(pipeline, settings, classes=[0, 1]).fit(few, y)
        rows = encoder.fit_transform(few)
        cross_validate(plain, rows, y, cv=2, n_jobs=1)
        GridSearchCV(plain, {"alpha": [0.0, 0.1]}, cv=2).fit(rows, y)
        PrivateSearchCV(plain, {"alpha": [0.0, 0.1]}, classes=[0, 1]).fit(rows, y)
    assert len(asked) == 2 * (1 + 2 + 5 + 3 + 2 + 5 + 3)
    assert set(names(asked)) == {"second_moment"}


def test_blocks_carry_the_bound_by_their_source(asked, tmp_path):
    TABLE.assign(**{Y.name: Y}).to_parquet(tmp_path / "rows.parquet")

    class Blocks:
        def __init__(self, scales):
            self.scales = scales

        def __iter__(self):
            for start, scale in zip((0, 600), self.scales, strict=True):
                X = SCHEMA.transformer().fit_transform(TABLE[start : start + 600])
                yield (X if scale == 1 else scale * X), Y[start : start + 600].to_numpy()

    model = DPLogisticRegression(classes=[0, 1], max_iter=2)
    for known in (
        ParquetSource(tmp_path, SCHEMA),
        ParquetSource(tmp_path, SCHEMA, sparse_output=True),
        ArraySource(ENCODED, Y.to_numpy(), block_rows=500),
        Blocks([1, 1]),
    ):
        assert model.fit(known) is model and names(asked) == ["second_moment"]
        asked.clear()
    for unknown in (ArraySource(2 * ENCODED, Y.to_numpy()), Blocks([1, 2])):
        model.fit(unknown)
        assert names(asked)[0] in ("magnitude_histogram", "norm_histogram")
        asked.clear()


def test_what_a_user_says_comes_first(asked):
    def bound(**parameters):
        asked.clear()
        DPLinearSVM(classes=[0, 1], max_iter=1, fit_intercept=False, **parameters).fit(ENCODED, Y)
        ((name, found),) = asked
        assert name == "second_moment"
        return found

    assert bound() == bound(preconditioner=DiagonalPreconditioner()) == ROW_NORM < BOUND
    # Rows are clipped to what is less, or to what shows that columns are in other units.
    assert bound(max_row_norm=1.5) == 1.5 and bound(max_row_norm=100.0) == 100.0
    assert bound(preconditioner=FullPreconditioner(row_clipping_norm=3.0), max_row_norm=2.0) == 3.0
    # The plan has the same parameter, and without a preconditioner the schedules have the bound.
    plan = DPLogisticRegression(max_row_norm=SCHEMA.max_row_norm()).plan(1200, SCHEMA.n_encoded)
    assert plan.preconditioner.row_clipping_norm == ROW_NORM
    assert plan.ledger.events == DPLogisticRegression().fit(ENCODED, Y).privacy_.events
    smooth = {"preconditioner": None, "step_schedule": "smooth", "alpha": 0.1, "max_iter": 3}
    DPLogisticRegression(classes=[0, 1], **smooth).fit(ENCODED, Y)


def test_weighted_rows_have_the_bound_and_persons_of_several_rows_have_none(asked):
    model = DPLogisticRegression(classes=[0, 1], max_iter=1)
    model.fit(ENCODED, Y, sample_weight=np.ones(1200))
    assert names(asked) == ["second_moment"]
    asked.clear()
    model = clone(model).set_params(max_contributions=2)
    model.fit(ENCODED, Y, groups=np.arange(1200) // 2)
    assert names(asked)[0] in ("magnitude_histogram", "norm_histogram")


def file_of(rows):
    file = io.BytesIO()
    joblib.dump(rows, file)
    file.seek(0)
    return joblib.load(file)


ROWS = np.arange(1200)
KEPT = {
    "slice": lambda X: X[3:900:2],
    "numbers": lambda X: X[[5, 1, 5]],
    "sklearn": lambda X: X[ROWS[:50], ...],
    "mask": lambda X: X[ROWS % 3 == 0],
    "none": lambda X: X[:0],
    "pickle": lambda X: pickle.loads(pickle.dumps(X)),
    "joblib": file_of,
}


@pytest.mark.parametrize("how", KEPT)
def test_rows_that_are_picked_or_copied_keep_the_bound(how):
    found = KEPT[how](ENCODED)
    assert public_max_row_norm(found) == BOUND
    assert_array_equal(np.asarray(found), KEPT[how](np.asarray(ENCODED)))
    frame = encoded("pandas")
    assert public_max_row_norm(KEPT[how](encoded("sparse"))) == BOUND
    picked = {"slice": frame.iloc[3:9], "mask": frame[ROWS % 3 == 0], "sklearn": frame.take([4, 1])}
    found = picked[how] if how in picked else KEPT[how](frame) if "c" in how else frame
    assert public_max_row_norm(found) == BOUND


LOST = {
    "times": lambda X: 2 * X,
    "ufunc": np.exp,
    "columns": lambda X: X[:, :4],
    "all columns in another order": lambda X: X[..., ::-1],
    "one": lambda X: X[0],
    "more dimensions": lambda X: X[None],
    "transposed": lambda X: X.T,
    "beside": lambda X: np.hstack([X, X]),
    "float32": lambda X: X.astype(np.float32),
    "union": lambda _: make_union(*2 * [SCHEMA.transformer()]).fit_transform(TABLE),
    "another step": lambda _: make_pipeline(
        SCHEMA.transformer(), FunctionTransformer(lambda X: X * 9)
    ).fit_transform(TABLE),
}


@pytest.mark.parametrize("how", LOST)
def test_whatever_else_is_made_of_rows_has_no_bound(how):
    assert public_max_row_norm(LOST[how](ENCODED)) is None
    if how in ("times", "columns", "transposed", "float32"):
        assert public_max_row_norm(LOST[how](encoded("sparse"))) is None


def test_rows_that_are_changed_in_place_have_no_bound():
    for change in ("X[:] = 9", "X[0, 0] = 9", "X[:, 1] *= 9", "X *= 2", "X += X"):
        names = {"X": ENCODED.copy()}
        exec(change, names)
        assert public_max_row_norm(names["X"]) is None, change


def test_frames_of_other_columns_have_no_bound_and_neither_has_what_only_looks_like_one():
    frame = encoded("pandas")
    assert public_max_row_norm(frame.drop(columns="age")) is None
    assert public_max_row_norm(frame.rename(columns={"age": "years"})) is None
    assert public_max_row_norm(frame.assign(more=1e9)) is None
    assert public_max_row_norm(pd.DataFrame({"max_row_norm": [1.0]})) is None
    assert public_max_row_norm(TABLE) is None
    for other in ("9", None, [1.0]):
        rows = with_max_row_norm(np.zeros((2, 2)), 1.0)
        rows.max_row_norm = other
        assert public_max_row_norm(rows) is None


def test_encoded_rows_are_arrays_in_all_else():
    assert repr(ENCODED[:2]) == repr(np.asarray(ENCODED)[:2])
    assert type(ENCODED + 1) is type(ENCODED[:, 0]) is type(ENCODED[0]) is np.ndarray
    assert type(ENCODED[0, 0]) is type(ENCODED.sum()) is np.float64
    assert type(with_max_row_norm(np.zeros((2, 2)), None)) is np.ndarray
    assert (np.linalg.norm(ENCODED, axis=1) <= public_max_row_norm(ENCODED)).all()
    assert SCHEMA.max_row_norm() == pytest.approx(math.hypot(BOUND, 1))
