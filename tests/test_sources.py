"""Fits on data that are read block by block: arrays by slices, files, iterables, failures."""

import os
import pickle
import signal
import stat
import threading
import traceback
from tempfile import TemporaryFile

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    DPPoissonRegressor,
    seeded_noise,
)
from dpglm.datasets import make_census
from dpglm.estimators import inputs
from dpglm.privacy import vault as vaults
from dpglm.privacy.noise import rounded_gaussian
from dpglm.schema import (
    CategoricalColumn,
    NumericColumn,
    Schema,
    Target,
    load_schema,
)
from dpglm.schema.values import floating
from dpglm.sources import base
from dpglm.sources.arrays import _MOST_LABELS, ArraySource, IterableSource
from dpglm.sources.base import read_ahead
from dpglm.sources.parquet import ParquetSource
from dpglm.sums.objective import Objective
from dpglm.sums.rows import DenseRows

N_ROWS, BLOCK = 1500, 400
ESTIMATORS = [
    DPLogisticRegression(max_iter=3),
    DPLogisticRegression(max_iter=3, sampling_rate=0.05, preconditioner=None),
    DPLinearSVM(max_iter=3, neighboring_relation="replace_one", preconditioner="diagonal"),
    DPAGDClassifier(max_iter=3, preconditioner="full"),
]


@pytest.fixture(scope="module")
def census():
    return make_census(N_ROWS, random_state=0)


class Slices:
    """As much of an array as Zarr and HDF5 have in common."""

    def __init__(self, array, chunks=None):
        self._array = array
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, chunks

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return self._array[rows]


class Blocks:
    """A user's object that yields blocks, again and again."""

    def __init__(self, X, y, rows=BLOCK):
        self.X, self.y, self.rows, self.passes = X, y, rows, 0

    def __iter__(self):
        self.passes += 1
        for start in range(0, len(self.y), self.rows):
            yield self.X[start : start + self.rows], self.y[start : start + self.rows]


def memory_map(tmp_path, X, offset=0):
    path = tmp_path / f"X{offset}.bin"
    path.write_bytes(b"\0" * offset + X.tobytes())
    return np.memmap(path, X.dtype, "r", offset, X.shape)


def fitted(estimator, *data):
    with seeded_noise(0):
        model = type(estimator)(**estimator.get_params()).fit(*data)
    return np.append(model.coef_, model.intercept_), model.privacy_


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_equal_blocks_give_equal_bits_and_the_ledger_of_memory(estimator, census, tmp_path):
    X, y = census
    coef, ledger = fitted(estimator, X, y)
    mapped = memory_map(tmp_path, X, offset=5000)
    sources = [
        (ArraySource(X, y, block_rows=BLOCK),),
        (ArraySource(mapped, y, block_rows=BLOCK),),
        (ArraySource(Slices(X), Slices(y), block_rows=BLOCK),),
        (Blocks(X, y),),
        (list(Blocks(X, y)),),
    ]
    found = [fitted(estimator, *source) for source in sources]
    first = found[0][0]
    assert all(np.array_equal(got, first) and charged == ledger for got, charged in found)
    if not isinstance(estimator, DPAGDClassifier):
        for other in (Blocks(sparse.csr_array(X), y), ArraySource(X, y), Blocks(X, y, rows=99)):
            assert_allclose(fitted(estimator, other)[0], coef, rtol=0, atol=1e-10)
        assert_allclose(first, coef, rtol=0, atol=1e-10)
        assert_array_equal(fitted(estimator, ArraySource(X, y))[0], coef)


PREDICTIONS = ["decision_function", "predict", "predict_proba", "predict_log_proba"]


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]], ids=len)
def test_predictions_of_blocks_are_those_of_memory(classes, census, tmp_path, monkeypatch):
    X, y = census
    model = DPLogisticRegression(max_iter=3, classes=classes).fit(X, y)
    mapped = memory_map(tmp_path, X)
    monkeypatch.setattr(inputs, "MAPPED_BYTES", X.nbytes - 1)
    unlabelled = [mapped, Slices(X)]
    labelled = [ArraySource(mapped, y, block_rows=BLOCK), Blocks(X, y), list(Blocks(X, y))]
    for name in PREDICTIONS:
        expected = getattr(model, name)(X)
        for given in unlabelled + labelled:
            assert_allclose(getattr(model, name)(given), expected, rtol=1e-12, atol=1e-14)
    expected = accuracy_score(y, model.predict(X))
    given = [(X, y), *((rows, y) for rows in unlabelled), *((source,) for source in labelled)]
    assert [model.score(*data) for data in given] == [expected] * len(given)
    assert_array_equal(model.predict([(0.0,) * X.shape[1]]), model.predict(X[:1] * 0))
    with pytest.raises(TypeError, match="Wrap a generator"):
        model.predict(iter(labelled[1]))


def test_float32_is_read_as_it_is_and_small_numbers_become_it(census, tmp_path):
    X, y = census
    mapped = ArraySource(memory_map(tmp_path, X.astype(np.float32)), y, block_rows=BLOCK)
    assert next(mapped.read([0]))[0].dtype == np.float32
    for stored, read in [
        (np.int8, np.float32), (np.bool_, np.float32), (np.float16, np.float32),
        (np.int32, np.float64), (np.float64, np.float64), (">f4", np.float32),
    ]:  # fmt: skip
        array = np.arange(6).reshape(3, 2).astype(stored)
        for rows in (floating(array), floating(np.asfortranarray(array))):
            assert rows.dtype == read and rows.flags.c_contiguous
            assert_array_equal(rows, array.astype(np.float64))


def test_parquet_equals_the_encoded_table(tmp_path, census):
    _, y = census
    X, _ = make_census(N_ROWS, random_state=0, as_frame=True)
    schema = load_schema("census")
    table = X.assign(**{schema.target.name: np.asarray(schema.target.labels)[y]}, unused=1)
    for i, first in enumerate(range(0, N_ROWS, 2 * BLOCK)):
        part = table.iloc[first : first + 2 * BLOCK]
        part.to_parquet(tmp_path / f"part-{i}.parquet", row_group_size=2 * BLOCK)
    encoded = schema.transformer().fit_transform(X)
    for sparse_output in (False, True):
        source = ParquetSource(tmp_path, schema, block_rows=BLOCK, sparse_output=sparse_output)
        assert source.block_rows == (400, 400, 400, 300)
        assert source.n_features == encoded.shape[1]
        rows, labels = zip(*source.read(range(4)), strict=True)
        dense = [part.toarray() if sparse_output else part for part in rows]
        assert_array_equal(np.vstack(dense), encoded)
        assert_array_equal(np.concatenate(labels), table[schema.target.name])
        source = pickle.loads(pickle.dumps(source))
        # a part of the blocks, from the middle of a row group
        (rows, _), (last, _) = source.read([1, 3])
        if sparse_output:
            # Blocks of the default size are no larger than they say, curves included.
            largest = ParquetSource(tmp_path, schema, sparse_output=True)._batch_rows
            assert 0.3 < largest * 12 * rows.nnz / rows.shape[0] / base.BLOCK_BYTES <= 1
        assert_array_equal((rows.toarray() if sparse_output else rows), encoded[400:800])
        assert last.shape[0] == 300
        for estimator in ESTIMATORS[: 1 if sparse_output else 2]:
            expected, ledger = fitted(estimator, Blocks(encoded, table[schema.target.name].values))
            got, charged = fitted(estimator, source)
            (assert_allclose if sparse_output else assert_array_equal)(got, expected)
            assert charged == ledger


def test_parquet_and_dask_give_a_regressor_the_same_coefficients_without_noise(tmp_path):
    rng, array = np.random.default_rng(0), pytest.importorskip("dask.array")
    table = pd.DataFrame({"age": rng.integers(18, 66, 600), "hours": rng.poisson(9, 600) / 4})
    table.to_parquet(tmp_path / "t.parquet")
    schema = Schema("wages", [NumericColumn("age", 18, 65)], Target("hours", lower=0, upper=50))
    X, y = np.asarray(schema.transformer().fit_transform(table)), table["hours"].to_numpy()
    parquet = ParquetSource(tmp_path / "t.parquet", schema, block_rows=77)
    dask = array.from_array(X, (150, -1)), array.from_array(y, 150)
    options = {"target_bounds": schema.target.bounds, "max_row_norm": schema.max_row_norm()}
    estimator = DPPoissonRegressor(epsilon=np.inf, max_iter=3, **options)
    expected, ledger = fitted(estimator, X, y)
    for source in ((parquet,), dask):
        got, charged = fitted(estimator, *source)
        assert_allclose(got, expected, rtol=1e-10, atol=0)
        assert charged == ledger


def test_of_a_number_in_an_iterable_few_values_are_kept():
    y = np.arange(3.0 * _MOST_LABELS)
    source = IterableSource(Blocks(np.zeros((len(y), 1)), y, rows=_MOST_LABELS))
    assert len(source._distinct) == 2 * _MOST_LABELS
    with pytest.raises(ValueError, match="more than 65536 labels; for a number, fit a regressor"):
        DPLogisticRegression().fit(source)


def test_a_cache_is_read_in_later_passes_and_leaves_nothing(tmp_path, census, monkeypatch):
    schema, files = census_files(tmp_path)
    options = {"block_rows": 130, "sparse_output": True}
    plain, folder = ParquetSource(tmp_path, schema, **options), tmp_path / "kept"
    folder.mkdir()
    cached = ParquetSource(files[0].parent, schema, **options, cache=folder)
    encoded, original, opened = [], ParquetSource._encoded, []
    monkeypatch.setattr(
        ParquetSource, "_encoded", lambda *given: encoded.append(given[0]) or original(*given)
    )

    def open_in(dir):
        opened.append(TemporaryFile(dir=dir))  # noqa: SIM115
        return opened[-1]

    monkeypatch.setattr(base, "TemporaryFile", open_in)
    estimator = clone(ESTIMATORS[0]).set_params(classes=schema.classes)
    expected, ledger = fitted(estimator, plain)
    got, charged = fitted(estimator, cached)
    assert_array_equal(got, expected)
    assert charged == ledger
    assert opened[-1].closed
    assert encoded.count(cached) == len(cached.block_rows) * len(opened)
    # also when a fit fails, in a pass or elsewhere
    for passes, error in ((0, ZeroDivisionError), (3, KeyboardInterrupt)):
        drawn = []

        def fail(*arguments, passes=passes, error=error, drawn=drawn):
            assert opened[-1].tell() > 0
            mode = os.fstat(opened[-1].fileno()).st_mode
            assert stat.S_IMODE(mode) == 0o600 and not list(folder.iterdir())
            drawn.append(arguments)
            if len(drawn) > passes:
                raise error
            return rounded_gaussian(*arguments)

        monkeypatch.setattr(vaults, "rounded_gaussian", fail)
        with pytest.raises(error):
            DPLogisticRegression(max_iter=5, classes=schema.classes).fit(cached)
        assert opened[-1].closed and not list(folder.iterdir())
    monkeypatch.undo()
    # One pass over them is not worth a file.
    cached.cache = tmp_path / "missing"
    model = DPLogisticRegression(max_iter=2, classes=schema.classes).fit(plain)
    assert model.score(cached) == model.score(plain)
    with pytest.raises(FileNotFoundError):
        DPLogisticRegression().fit(cached)


PEOPLE = Schema(
    "people",
    [NumericColumn("age", 0, 100, n_segments=1), CategoricalColumn("size", [1, 2])],
    Target("tall", ["no", "yes"]),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tall": ["no", "maybe"]}, "Block 0 .*a.parquet.*'tall' holds the label 'maybe'"),
        ({"age": ["12", "Alice Smith"]}, "Block 0 .*a.parquet.*'age' holds something that is not"),
    ],
)
def test_bad_values_in_parquet_are_named(change, message, tmp_path):
    table = pd.DataFrame({"age": [1.0, 2.0], "size": [1, 2], "tall": ["no", "yes"]} | change)
    table.to_parquet(tmp_path / "a.parquet")
    source = ParquetSource(tmp_path, PEOPLE)
    with pytest.raises(ValueError, match=message) as failure:
        DPLogisticRegression(max_iter=2).fit(source)
    shown = "".join(traceback.format_exception(failure.value, limit=0))
    assert "Alice" not in shown


def census_files(folder):
    X, y = make_census(600, random_state=0, as_frame=True)
    schema = load_schema("census")
    table = X.assign(**{schema.target.name: y})
    for i in range(2):
        table[300 * i : 300 * i + 300].to_parquet(folder / f"part-{i}.parquet")
    return schema, [folder / f"part-{i}.parquet" for i in range(2)]


@pytest.mark.parametrize("passes", [0, 3])
def test_a_file_truncated_between_two_passes_stops_the_fit(passes, tmp_path, monkeypatch):
    """What was released is charged; of the broken pass nothing is released."""
    schema, (_, second) = census_files(tmp_path)
    source = ParquetSource(tmp_path, schema)
    drawn, original, whole = [], vaults.rounded_gaussian, second.read_bytes()

    def count_and_truncate(*arguments):
        drawn.append(arguments)
        if len(drawn) == passes:
            second.write_bytes(whole[:-20])
        return original(*arguments)

    monkeypatch.setattr(vaults, "rounded_gaussian", count_and_truncate)
    if passes == 0:
        second.write_bytes(whole[:-20])
    model = DPLogisticRegression(max_iter=10, classes=schema.classes, preconditioner=None)
    with pytest.raises(
        OSError, match=r"^Block 1 \(part 0 of row group 0 of .*part-1.parquet\) could not be read: "
    ) as info:
        model.fit(source)
    assert len(drawn) == passes
    charged = getattr(info.value, "privacy_ledger", None)
    assert charged == (model.plan(600, 99).ledger if passes else None)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


@pytest.mark.parametrize("stored", ["file", "array", "iterable", "sparse"])
def test_rows_that_change_are_not_clipped_by_the_norms_that_they_had(stored, census, tmp_path):
    reason = "scikit-learn 1.9 and later has callbacks"
    callback = pytest.importorskip("sklearn.callback", reason=reason)
    X, y = census[0].copy(), census[1]
    source = {
        "file": lambda: ArraySource(memory_map(tmp_path, X), y, block_rows=BLOCK),
        "array": lambda: ArraySource(Slices(X), y, block_rows=BLOCK),
        "iterable": lambda: Blocks(X, y),
        "sparse": lambda: Blocks(sparse.csr_array(X), y),
    }[stored]()

    class Changes(callback.FitCallback):
        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(self, estimator, context):
            # one number in one row of the third block, longer by the least bit
            if stored == "file":
                np.memmap(source._X.filename, X.dtype, "r+", shape=X.shape)[900, 0] += 1e-15
            elif stored == "sparse":
                source.X.data[source.X.indptr[900]] *= 1 + 2**-52
            else:
                X[900, 0] += 1e-15

    for parameters in ({}, {"preconditioner": "diagonal"}, {"sampling_rate": 0.9}):
        model = DPLogisticRegression(max_iter=3, **parameters).set_callbacks(Changes())
        with pytest.raises(ValueError, match=r"^Block 2 .*: X has changed between two passes") as e:
            model.fit(source)
        assert e.value.privacy_ledger == model.plan(*X.shape).ledger
    # Without a basis norms are taken anew, and follow.
    DPLogisticRegression(max_iter=3, preconditioner=None).set_callbacks(Changes()).fit(source)


def test_a_row_that_grows_while_its_norm_is_taken_is_noticed(census, monkeypatch):
    X, y = census[0].copy(), census[1]
    original = DenseRows.invert_norms

    def then_grow(rows, *arguments):
        original(rows, *arguments)
        X[900, 0] += 1.0

    monkeypatch.setattr(DenseRows, "invert_norms", then_grow)
    # which may notice it first, by chance
    monkeypatch.setattr(vaults.Vault, "_compare", lambda *_: None)
    with pytest.raises(ValueError, match="X has changed between two passes"):
        DPLogisticRegression(max_iter=3).fit(ArraySource(Slices(X), y, block_rows=BLOCK))


def test_what_was_charged_is_told_whatever_happens_when_a_cache_is_closed(census, monkeypatch):
    source = ArraySource(Slices(census[0]), census[1], block_rows=BLOCK)
    source.cache = True
    original = base.kept_in_a_file

    class Interrupted:
        def __init__(self, source):
            self.kept = original(source)

        def __enter__(self):
            return self.kept.__enter__()

        def __exit__(self, *error):
            self.kept.__exit__(*error)
            raise KeyboardInterrupt

    monkeypatch.setattr(inputs, "kept_in_a_file", Interrupted)
    model = DPLogisticRegression(max_iter=3)
    with pytest.raises(KeyboardInterrupt) as e:
        model.fit(source)
    assert e.value.privacy_ledger == model.plan(*census[0].shape).ledger
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


def test_norms_of_blocks_beyond_the_most_are_taken_anew(census, monkeypatch):
    expected, _ = fitted(ESTIMATORS[0], Blocks(*census))
    asked, original = [], Objective.norms.fget
    monkeypatch.setattr(Objective, "norms", property(lambda o: asked.append(o) or original(o)))
    monkeypatch.setattr(base, "MOST_KEPT", 2 * BLOCK)
    assert_array_equal(fitted(ESTIMATORS[0], Blocks(*census))[0], expected)
    # Two blocks are not kept, and there is one basis.
    assert len(asked) == 2


def test_an_iterable_is_read_once_to_count_once_per_sum_and_once_to_check_the_kernels(census):
    blocks = Blocks(*census)
    DPLogisticRegression(max_iter=5, preconditioner=None).fit(blocks)
    assert blocks.passes == 1 + 5 + 1
    assert IterableSource(blocks).observed_labels().tolist() == [0, 1]


def test_an_iterable_may_use_its_memory_again(census):
    X, y = census

    class OneBuffer(Blocks):
        def __iter__(self):
            rows, labels = np.empty((BLOCK, X.shape[1])), np.empty(BLOCK, dtype=int)
            for some, of_them in super().__iter__():
                rows[: len(some)], labels[: len(some)] = some, of_them
                yield rows[: len(some)], labels[: len(some)]

    got, _ = fitted(ESTIMATORS[0], OneBuffer(X, y))
    assert_array_equal(got, fitted(ESTIMATORS[0], Blocks(X, y))[0])


def changing(first, then):
    """An iterable whose later passes differ from the first."""

    class Changing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(first if self.passes == 1 else then)

    return Changing()


BLOCKS = [(np.eye(3), [0, 1, 0]), (np.eye(3), [1, 1, 0])]


@pytest.mark.parametrize(
    ("then", "error", "message"),
    [
        (BLOCKS[:1], OSError, "Block 1 of the iterable could not be read: the data end before it"),
        ([BLOCKS[0], (np.eye(3)[:2], [0, 1])], ValueError, r"Block 1 .*shape \(2, 3\).*same"),
        ([BLOCKS[0], (np.eye(3), [0, 2, 1])], ValueError, "Block 1 .*y holds the label .*2"),
        ([BLOCKS[0], (np.full((3, 3), np.nan), [0, 1, 1])], ValueError, "Block 1 .*X contains NaN"),
    ],
)
def test_passes_that_differ_are_refused_before_any_noise(then, error, message, monkeypatch):
    monkeypatch.setattr(vaults, "rounded_gaussian", None)
    with pytest.raises(error, match=message) as info:
        DPLogisticRegression(max_iter=2).fit(changing(BLOCKS, then))
    assert not hasattr(info.value, "privacy_ledger")


def test_blocks_of_an_iterable_are_iterated_over_once_more_if_they_are_cached(census):
    blocks = Blocks(*census)
    expected, _ = fitted(ESTIMATORS[3], blocks)
    source = IterableSource(blocks)
    source.cache, blocks.passes = True, 0
    assert_array_equal(fitted(ESTIMATORS[3], source)[0], expected)
    assert blocks.passes == 1
    longer = IterableSource(changing(BLOCKS, [*BLOCKS, BLOCKS[0]]))
    longer.cache = True
    with pytest.raises(ValueError, match="More than 2 blocks"):
        DPLogisticRegression(max_iter=2).fit(longer)


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ((block for block in BLOCKS), TypeError, "can be iterated over again, got generator"),
        ([], ValueError, "iterable of blocks is empty"),
        ([(np.eye(3), [0, 1])], ValueError, r"Block 0 .*got \(3, 3\) and \(2,\)"),
        (
            [BLOCKS[0], (np.eye(3, 2), [0, 1, 1])],
            ValueError,
            r"Block 1 .*3\) .*got \(3, 2\)",
        ),
        ([BLOCKS[0], 7], OSError, "Block 1 of the iterable could not be read"),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(blocks, error, message):
    with pytest.raises(error, match=message):
        DPLogisticRegression(max_iter=2).fit(blocks)


@pytest.mark.parametrize("y", [np.zeros(2), Slices(np.zeros((3, 1)))])
def test_arrays_that_do_not_fit_together_are_refused(y):
    with pytest.raises(ValueError, match=r"y must have shape \(3,\)"):
        ArraySource(np.zeros((3, 2)), y)


def test_reading_ahead_keeps_order_errors_and_no_thread():
    started = []

    def items():
        for number in range(20):
            started.append(number)
            yield number
        raise KeyError("end")

    seen = []
    with pytest.raises(KeyError, match="end"):
        seen.extend(read_ahead(items()))
    assert started == list(range(20))
    started.clear()
    ahead = read_ahead(items())
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    ahead.close()
    # one in use, one ready, one being read: no memory is used again too early
    assert len(started) <= 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dpglm-read")]


def test_no_warning_of_a_reading_thread_reveals_the_data():
    largest = np.array([1e308])
    assert list(read_ahead(largest * factor for factor in (1.0, 100.0))) == [1e308, np.inf]


def test_an_interrupt_ends_a_read_that_hangs():
    freed, main = threading.Event(), threading.main_thread().ident

    def items():
        yield from [freed.wait(0.1)]
        signal.pthread_kill(main, signal.SIGINT)
        freed.wait(60)

    # A program that was started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        list(read_ahead(items()))
    signal.signal(signal.SIGINT, before)
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "dpglm-read"]
    assert reader.daemon
    freed.set()
    reader.join()


TABLE = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2


def test_random_batches_do_not_decide_whether_a_bad_block_is_found(monkeypatch):
    monkeypatch.setattr(vaults, "poisson_sample", lambda *_: pytest.fail("drew a batch"))
    X, y = TABLE[0].copy(), TABLE[1]
    X[127, 1] = np.nan
    model = DPLogisticRegression(
        epsilon=np.inf, sampling_rate=1e-3, max_iter=2, preconditioner=None, classes=[0, 1]
    )
    with pytest.raises(ValueError, match="Block 3 of the iterable"):
        model.fit(Blocks(X, y, rows=40))
