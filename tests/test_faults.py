"""Whatever interrupts a fit: all that was released is charged, and no half-fitted model is left."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dpglm
from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyOdometer,
)
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import ObjectivePerturbation
from dpglm.privacy.mechanisms import ExponentialSelection, GaussianSum

X, Y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2
ESTIMATORS = {
    "plain": DPLogisticRegression(max_iter=3, classes=[0, 1], preconditioner=None),
    "whitened": DPLinearSVM(max_iter=2, classes=[0, 1], preconditioner="full"),
    "batches": DPLogisticRegression(max_iter=2, classes=[0, 1], sampling_rate=0.25),
    "adaptive": DPAGDClassifier(max_iter=2, classes=[0, 1]),
    "newton": DoubleNoiseNewton(max_iter=2, classes=[0, 1]),
    "objective": ObjectivePerturbation(classes=[0, 1]),
}
PACKAGE = str(Path(dpglm.__file__).parent)


@pytest.fixture
def released(monkeypatch):
    """List the events of all releases, as they leave their mechanisms."""
    events = []
    for mechanism in (GaussianSum, ExponentialSelection):

        def release(self, value, rng, original=mechanism.release):
            noisy, event = original(self, value, rng)
            events.append(event)
            return noisy, event

        monkeypatch.setattr(mechanism, "release", release)
    return events


def fit_through(fault, model, released):
    """Fit; return the error, if any, having checked that it tells of all that was released."""
    released.clear()
    error = None
    try:
        with fault:
            model.fit(X, Y)
    except BaseException as caught:
        error = caught
    fitted = [name for name in vars(model) if name.endswith("_") and name[0] != "_"]
    if fitted:
        assert {"coef_", "intercept_", "classes_", "trace_", "n_iter_", "privacy_"} <= {*fitted}
    else:
        ledger = getattr(error, "privacy_ledger", None)
        assert not released or ledger == model.plan(*X.shape).ledger
    return error


class FailingCall:
    """Raise an error where a numbered call of a function of the package begins."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def __enter__(self):
        sys.setprofile(self.profile)

    def profile(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.count += 1
            if self.count == self.number:
                raise MemoryError(frame.f_code.co_qualname)

    def __exit__(self, *error):
        sys.setprofile(None)


def run_out_of_memory(name, stride, released):
    fault, counter = contextlib.nullcontext(), FailingCall(0)
    for warm_up in (fault, counter):
        assert fit_through(warm_up, clone(ESTIMATORS[name]), released) is None
    reached = set()
    for number in range(1, counter.count, stride):
        model = clone(ESTIMATORS[name])
        error = fit_through(FailingCall(number), model, released)
        assert error is None or isinstance(error, MemoryError)
        reached.add(len(released))
    assert {0, 1, 2} & reached == {0, 1, 2} or name == "objective"
    assert fit_through(fault, model, released) is None


# Where a generator is closed, Python itself drops the planted error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["plain", "whitened", "adaptive", "newton", "objective"])
def test_running_out_of_memory(name, released):
    run_out_of_memory(name, 31, released)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_running_out_of_memory_in_any_call_of_the_package(name, released):
    run_out_of_memory(name, {"batches": 17, "adaptive": 2}.get(name, 1), released)


class InterruptAfter:
    """Raise KeyboardInterrupt where a method of the package has just returned."""

    def __init__(self, method):
        self.method = method

    def __enter__(self):
        sys.setprofile(self.profile)

    def profile(self, frame, event, argument):
        ours = frame.f_code.co_filename.startswith(PACKAGE)
        if ours and (event, frame.f_code.co_name) == ("return", self.method):
            raise KeyboardInterrupt

    def __exit__(self, *error):
        sys.setprofile(None)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("method", ["_train", "_set_coefficients", "_fit"])
def test_an_interrupt_once_all_is_released(method, name, released):
    model = clone(ESTIMATORS[name])
    error = fit_through(InterruptAfter(method), model, released)
    assert isinstance(error, KeyboardInterrupt) and released
    assert not [name for name in vars(model) if name.endswith("_")]


class Alarm:
    """Raise KeyboardInterrupt after a while."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def interrupt_at_random(name, n_times, released):
    model, rng = clone(ESTIMATORS[name]).fit(X, Y), np.random.default_rng(0)
    start = time.perf_counter()
    model.fit(X, Y)
    longest = 1.2 * (time.perf_counter() - start)
    errors = [
        fit_through(Alarm(rng.uniform(1e-5, longest)), model, released) for _ in range(n_times)
    ]
    assert KeyboardInterrupt in map(type, errors)
    assert fit_through(contextlib.nullcontext(), model, released) is None


# Where an interrupt strikes another package's garbage-collection hook, Python can only report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["plain", "adaptive"])
def test_interrupts_at_random_moments(name, released):
    interrupt_at_random(name, 25, released)


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_many_interrupts_at_random_moments(name, released):
    interrupt_at_random(name, 200, released)


def test_data_that_are_refused_leave_nothing_behind():
    pd = pytest.importorskip("pandas")
    model = clone(ESTIMATORS["plain"]).fit(pd.DataFrame(X, columns=list("abc")), Y)
    for bad in (np.nan, np.inf, "a word"):
        table = pd.DataFrame(X, columns=list("abc")).astype(object)
        table.loc[3, "b"] = bad
        with pytest.raises(ValueError) as info:
            model.fit(table, Y)
        assert not hasattr(info.value, "privacy_ledger")
        assert not [name for name in vars(model) if name.endswith("_")]


class RaisingCallback:
    def __init__(self, hook, count):
        self.hook, self.count = hook, count

    def _called(self, hook):
        if hook == self.hook:
            self.count -= 1
            if self.count == 0:
                raise RuntimeError("the callback failed")

    def setup(self, estimator, context):
        self._called("setup")

    def teardown(self, estimator, context):
        self._called("teardown")

    def on_fit_task_begin(self, estimator, context):
        self._called("begin")

    def on_fit_task_end(self, estimator, context):
        self._called("end")


@pytest.mark.parametrize("name", ["plain", "whitened", "adaptive"])
@pytest.mark.parametrize(
    ("hook", "count"),
    [("setup", 1), ("begin", 1), ("begin", 2), ("end", 1), ("end", 2), ("end", 3), ("teardown", 1)],
)
def test_a_callback_that_fails(hook, count, name, released):
    model = clone(ESTIMATORS[name]).set_params(epsilon=50.0)
    model.set_callbacks(RaisingCallback(hook, count))
    error = fit_through(contextlib.nullcontext(), model, released)
    assert isinstance(error, RuntimeError)
    assert ("coef_" in vars(model)) == (hook == "teardown")
    model.set_callbacks()
    assert fit_through(contextlib.nullcontext(), model, released) is None


def fit_for_ever(path, started):
    with PrivacyOdometer(path):
        while True:
            clone(ESTIMATORS["adaptive"]).fit(X, Y)
            started.set()


def test_sigterm_ends_the_process_and_leaves_a_readable_record(tmp_path):
    clone(ESTIMATORS["adaptive"]).fit(X, Y)
    fork, rng = multiprocessing.get_context("fork"), np.random.default_rng(0)
    path, n_recorded = tmp_path / "study", 0
    for _ in range(8):
        started = fork.Event()
        child = fork.Process(target=fit_for_ever, args=(path, started))
        child.start()
        started.wait()
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGTERM)
        child.join()
        assert child.exitcode == -signal.SIGTERM
        ledgers = PrivacyOdometer(path).ledgers()
        assert len(ledgers) > n_recorded
        n_recorded = len(ledgers)
    assert os.listdir(tmp_path) == ["study"]


class Doomed(DPLogisticRegression):
    """Its process is killed in the middle of its second fit."""

    def _train(self, objective, plan, rng, on_step):
        def killed(t, coef):
            marker = Path(os.environ["DPGLM_TEST_MARKER"])
            if t == 1 and marker.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            marker.touch()

        return super()._train(objective, plan, rng, killed)


@pytest.mark.slow
def test_a_killed_worker_of_a_grid_search(tmp_path, monkeypatch):
    monkeypatch.setenv("DPGLM_TEST_MARKER", str(tmp_path / "marker"))
    model = Doomed(max_iter=3, classes=[0, 1])
    search = GridSearchCV(model, {"epsilon": [0.5, 1.0]}, cv=2, n_jobs=2, refit=False)
    with PrivacyOdometer(tmp_path / "study") as odometer:
        with pytest.raises(TerminatedWorkerError):
            search.fit(X, Y)
        n_recorded = len(odometer.ledgers())
        assert n_recorded >= 1
        assert not hasattr(search, "cv_results_")
        search.set_params(estimator=ESTIMATORS["plain"]).fit(X, Y)
        assert len(odometer.ledgers()) == n_recorded + 4
    assert Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(3)) == [0, 1, 2]


ON_A_FULL_DISK = """
import resource, sys
import numpy as np
from dpglm import DPLogisticRegression
from dpglm.privacy.mechanisms import GaussianSum

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
released, original = [], GaussianSum.release

def release(self, value, rng):
    noisy, event = original(self, value, rng)
    released.append(event)
    return noisy, event

GaussianSum.release = release
model = DPLogisticRegression(max_iter=2, classes=[0, 1]).fit(np.eye(20), np.arange(20) % 2)
print("fitted", model.n_iter_, model.privacy_.n_releases == len(released))
"""


@pytest.mark.slow
def test_a_full_disk_under_the_compiled_kernels(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK], env=environment, capture_output=True, text=True
    )
    assert found.stdout == "fitted 2 True\n", found.stderr
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_a_process_killed_while_it_compiles_leaves_usable_kernels(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    fit = (
        "import numpy as np; from dpglm import DPLogisticRegression as L; "
        "print(L(max_iter=2, classes=[0, 1]).fit(np.eye(20), np.arange(20) % 2).n_iter_)"
    )
    for seconds in (3, 6, 9):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", fit], env=environment, capture_output=True, timeout=seconds
            )
    found = subprocess.run(
        [sys.executable, "-c", fit], env=environment, capture_output=True, text=True
    )
    assert found.stdout == "2\n", found.stderr
