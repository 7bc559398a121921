"""Data on the workers of a dask.distributed cluster: the same bits, only sums, lost workers."""

import contextlib
import functools
import itertools
import multiprocessing.forkserver
import operator
import os
import signal

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from planted_bugs import half_noise

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    seeded_noise,
)
from dpglm.audit import audit_estimator
from dpglm.losses import Hinge
from dpglm.sources.dask import ComputedSource, dask_source
from dpglm.sums.objective import Objective

SIZES = (700, 300, 1, 1100, 400)
BOUNDS = np.cumsum((0, *SIZES))
# What workers import, which takes them longer than all that they are asked here.
IMPORTED = ["dask.array", "dask.dataframe", "distributed", "dpglm.audit", "dpglm.sources.dask"]


@pytest.fixture(scope="session")
def client():
    multiprocessing.set_forkserver_preload(IMPORTED)
    multiprocessing.forkserver.ensure_running()
    with (
        # Closing may look for a worker that a test has killed (dask/distributed, issue 5407).
        contextlib.suppress(KeyError),
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        # A port of its own, for two processes of tests may each have a cluster.
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address="localhost:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def no_client(monkeypatch):
    def none():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", none)


@pytest.fixture(scope="module")
def three_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(BOUNDS[-1], 6)) * [1, 2, 1, 0.1, 1, 1]
    return X, np.array(["a", "b", "c"])[(X @ rng.normal(size=(6, 3))).argmax(axis=1)]


@pytest.fixture(scope="module")
def two_classes(three_classes):
    X, y = three_classes
    return X, (y == "a").astype(int)


def blocks(X, y):
    """The rows in blocks as large as the partitions, read in this process."""
    return [(X[start:stop], y[start:stop]) for start, stop in itertools.pairwise(BOUNDS)]


def partitioned(X, y):
    return da.from_array(X, chunks=(SIZES, 6)), da.from_array(y, chunks=(SIZES,))


def regression(**parameters):
    return DPLogisticRegression(**{"max_iter": 6, "preconditioner": None, **parameters})


@pytest.fixture(autouse=True)
def seeded():
    with seeded_noise(0):
        yield


def everything(model):
    """What a fit ends with, to compare bit for bit."""
    numbers = (model.coef_, model.intercept_, model.classes_)
    return *(array.tolist() for array in numbers), model.privacy_.to_dict()


@pytest.fixture(scope="module")
def expected(two_classes):
    """What the regression of two classes ends with in this process."""
    with seeded_noise(0):
        return everything(regression().fit(blocks(*two_classes)))


@pytest.mark.parametrize(
    ("model", "n_classes"),
    [
        (regression(preconditioner=FullPreconditioner(row_clipping_norm=4.0)), 2),
        (regression(sampling_rate=0.002, epsilon=np.inf), 2),
        (DPLinearSVM(epsilon=9.0, max_iter=4, preconditioner="diagonal"), 3),
        (DPAGDClassifier(epsilon=9.0, max_iter=4), 3),
    ],
    ids=["whitened", "sampled", "svm", "agd"],
)
def test_workers_give_the_bits_of_blocks_read_here(
    client, three_classes, two_classes, model, n_classes
):
    X, y = two_classes if n_classes == 2 else three_classes
    expected = everything(model.fit(blocks(X, y)))
    assert everything(model.fit(*partitioned(X, y))) == expected
    if isinstance(model, DPLinearSVM):
        assert model.trace_.whitening.scales.min() < 1, "columns are scaled on the workers too"


def frames(X, y):
    """Data frames whose partitions are those of the arrays; one of them is empty."""
    table = pd.DataFrame(X, columns=list("uvwxyz")).assign(label=y)
    parts = [table.iloc[a:b] for a, b in itertools.pairwise(BOUNDS)]
    parts.insert(2, table.iloc[:0])
    frame = dd.from_delayed([dask.delayed(part) for part in parts], meta=table.iloc[:0])
    return frame.drop(columns="label"), frame["label"]


@pytest.mark.parametrize(
    "given",
    [
        frames,
        lambda X, y: tuple(frame.to_dask_array() for frame in frames(X, y)),
        lambda X, y: (partitioned(X, y)[0].rechunk({1: 4}), partitioned(X, y)[1]),
    ],
    ids=["frames", "unknown lengths", "divided columns"],
)
def test_any_partitioned_table_is_taken(client, two_classes, given, expected):
    X, y = given(*two_classes)
    model = regression().fit(X, y)
    assert everything(model) == expected
    if hasattr(X, "columns"):
        assert model.feature_names_in_.tolist() == list("uvwxyz")
    assert model.n_features_in_ == 6


def test_predictions_are_dask_arrays_that_are_computed_when_asked_for(no_client, three_classes):
    X, y = three_classes
    with dask.config.set(scheduler="synchronous"):
        for X_, y_ in (partitioned(X, y), frames(X, y)):
            model = regression(max_iter=1).fit(X_, y_)
            table = pd.DataFrame(X, columns=list("uvwxyz")) if hasattr(X_, "columns") else X
            for name in ("predict_proba", "predict", "decision_function"):
                found, expected = getattr(model, name)(X_), getattr(model, name)(table)
                assert isinstance(found, da.Array) and found.dtype == expected.dtype
                assert found.shape[1:] == expected.shape[1:]
                (assert_array_equal if name == "predict" else assert_allclose)(
                    found.compute(), expected
                )
            assert model.score(X_, y_) == model.score(table, y)


def test_without_a_client_partitions_are_computed_here(two_classes, no_client, expected):
    with dask.config.set(scheduler="synchronous"):
        X, y = frames(*two_classes)
        assert isinstance(dask_source(X, y), ComputedSource)
        model = regression().fit(X, y)
    assert everything(model) == expected
    assert model.feature_names_in_.tolist() == list("uvwxyz")


def test_only_sums_come_back(client, three_classes, monkeypatch):
    received, gather = [], distributed.Client._gather

    async def spy(self, *args, **kwargs):
        results = await gather(self, *args, **kwargs)
        received.extend(results)
        return results

    monkeypatch.setattr(distributed.Client, "_gather", spy)
    regression(max_iter=4).fit(*partitioned(*three_classes))
    n = len(SIZES)
    for labels, (_, y) in zip(received[:n], blocks(*three_classes), strict=True):
        assert labels.tolist() == np.unique(y).tolist()
    assert received[n : 2 * n] == list(SIZES)
    sums = [total for total in received[2 * n :] if total.shape]
    assert len(sums) == 4 * n and {total.shape for total in sums} == {(7, 3)}
    checks = [total for total in received[2 * n :] if not total.shape]
    assert 1 <= len(checks) <= n and set(map(float, checks)) == {0.0}


def test_the_seed_does_not_travel(client, two_classes, monkeypatch):
    sent, submit, seed = [], distributed.Client.submit, 1_234_567_890

    def spy(self, *args, make=None, **kwargs):
        sent.append(cloudpickle.dumps(make))
        return submit(self, *args, make=make, **kwargs)

    monkeypatch.setattr(distributed.Client, "submit", spy)
    with seeded_noise(seed):
        regression().fit(*partitioned(*two_classes))
    (make,) = sent
    assert b"DPLogisticRegression" in make and seed.to_bytes(4, "little") not in make


def test_rows_of_a_file_that_changes_are_clipped_by_their_norms(client, tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, np.ones((100, 3)))
    X = da.from_delayed(dask.delayed(np.load)(path, mmap_mode="r"), shape=(100, 3), dtype=float)
    make = functools.partial(Objective, loss=Hinge(), fit_intercept=False)
    held = dask_source(X, da.ones(100, chunks=100)).blocks(make)
    ask = operator.methodcaller("gradient_sum", np.zeros(3), 1e-3)
    (before,) = held.map(ask)
    np.load(path, mmap_mode="r+")[7] = 1e9
    (after,) = held.map(ask)
    assert_array_equal(after, before)


def test_a_client_that_does_not_wait_is_refused(two_classes, monkeypatch):
    class Asynchronous:
        asynchronous = True

    monkeypatch.setattr(distributed, "default_client", Asynchronous)
    with pytest.raises(ValueError, match="without asynchronous=True"):
        regression().fit(*partitioned(*two_classes))


def wrong_tables(X, y):
    """Data with something wrong, and what the error must say."""
    bad_X, bad_y = X.copy(), y.copy()
    bad_X[1500, 3], bad_y[10] = np.nan, 7
    (good_X, good_y), (frame, labels) = partitioned(X, y), frames(X, y)
    fewer = frame[frame.u != X[0, 0]]
    yield partitioned(bad_X, y), "Partition 3 of X and y: Input X contains NaN"
    yield partitioned(X, bad_y), "Partition 0 of X and y: y holds the label .*7"
    yield (frame.assign(u="text"), labels), "Partition 0 of X and y: X must be a table of numbers"
    yield (good_X, good_y.rechunk(1000)), "X has 5 partitions and y has 3"
    yield (good_X, good_y[::-1].rechunk((SIZES[::-1],))), "Partition 0 .*: X has .* and y has "
    words = good_y.map_blocks(lambda part: part.astype(str) if len(part) == SIZES[1] else part)
    yield (good_X, words), "y must hold labels of one type; turn them all into strings"
    single = good_y.map_blocks(lambda part: part[0] if len(part) == SIZES[1] else part)
    yield (good_X, single), r"Partition 1 of X and y: y has shape \(\); list one value per row"
    yield (fewer, labels), r"Partition 0 of X and y.*\b699\b.*\b700\b"
    yield (frame.partitions[2], labels.partitions[2]), "all their partitions are empty"
    yield (good_X, y), "y must be a dask array or series"
    yield (good_X[:, 0], good_y), "X must be a dask array or data frame"


def test_bad_data_give_one_sentence(no_client, two_classes):
    for data, message in wrong_tables(*two_classes):
        with pytest.raises(ValueError, match=message) as failure:
            regression(classes=[0, 1]).fit(*data)
        assert not hasattr(failure.value, "privacy_ledger")


def test_the_audit_passes_on_workers_and_sees_half_of_the_noise(client, monkeypatch):
    model = DPLogisticRegression(epsilon=5.0, max_iter=10)
    report = audit_estimator(model, n_canaries=500, container="dask")
    assert report.passed and len(report.parts) == 5, report.verdict
    half_noise(monkeypatch)
    assert not audit_estimator(model, n_canaries=500, container="dask").passed


@pytest.fixture
def kill_workers(client, monkeypatch, request):
    """Kill workers that hold rows while the tasks of the fifth pass over the data are under way.

    Two passes come before the first iteration: one for lengths and one for labels.
    """
    fetch, fetched, killed = distributed.Client.gather, [], []

    def kill_then_fetch(self, futures, *args, **kwargs):
        fetched.append(futures)
        if len(fetched) == 5:
            held = client.has_what()
            rows = {at: sum("_Rows" in str(key) for key in keys) for at, keys in held.items()}
            processes = client.run(os.getpid)
            most_rows_last = sorted(rows, key=rows.get)
            killed.extend(processes[at] for at in most_rows_last[-request.param :])
            for process in killed:
                os.kill(process, signal.SIGKILL)
        return fetch(self, futures, *args, **kwargs)

    monkeypatch.setattr(distributed.Client, "gather", kill_then_fetch)
    yield
    client.wait_for_workers(2, timeout=60)
    assert len(killed) == request.param
    assert not set(killed) & set(client.run(os.getpid).values())


@pytest.mark.parametrize("kill_workers", [1], indirect=True)
def test_a_killed_worker_changes_nothing(client, two_classes, kill_workers):
    model = DPAGDClassifier(
        epsilon=9.0, max_iter=6, preconditioner=FullPreconditioner(row_clipping_norm=4.0)
    )
    expected = everything(model.fit(blocks(*two_classes)))
    assert everything(model.fit(*partitioned(*two_classes))) == expected


def read_once(blocks, folder):
    def read(number, rows):
        (folder / str(number)).touch(exist_ok=False)
        return rows

    return [dask.delayed(read)(number, rows) for number, rows in enumerate(blocks)]


# Both workers: one alone may hold nothing that the other has not copied.
@pytest.mark.parametrize("kill_workers", [2], indirect=True)
def test_a_partition_that_is_lost_for_good_is_named_and_what_was_released_is_charged(
    client, two_classes, kill_workers, tmp_path
):
    X, y = two_classes
    parts = zip(read_once([rows for rows, _ in blocks(X, y)], tmp_path), SIZES, strict=True)
    table = da.concatenate([da.from_delayed(part, (n, 6), dtype=float) for part, n in parts])
    # Whether Dask first tells of the loss, or of the failure to make up for it, is a race.
    message = "(failed: FileExists|was lost with its worker)"
    model = regression()
    with pytest.raises(RuntimeError, match=rf"^Partition \d of X and y {message}") as failure:
        model.fit(table, partitioned(X, y)[1])
    assert failure.value.privacy_ledger.epsilon(1e-6) == pytest.approx(1.0)
    assert not hasattr(model, "coef_")
