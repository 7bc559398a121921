"""What a fit leaves besides its releases does not depend on the records.

Every mechanism is made to answer as if all sums were zero, with the noise of a seed. Two data sets
of one shape must then leave the same bits everywhere: attributes, pickles, representations,
warnings, log lines, output, exceptions, callbacks, entropy used. Whatever differs leaks past the
mechanisms.
"""

import io
import logging
import pickle
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpglm import (
    DiagonalPreconditioner,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
)
from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.output_perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.privacy.mechanisms import ExponentialSelection, GaussianSum, LaplaceSelection
from dpglm.privacy.noise import entropy_source
from dpglm.sources.arrays import ArraySource
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore")

N_ROWS, N_FEATURES = 37, 3
BLOCKWISE = {
    "logistic": DPLogisticRegression(max_iter=6),
    "diagonal": DPLogisticRegression(max_iter=4, preconditioner=DiagonalPreconditioner()),
    "full": DPLinearSVM(max_iter=4, preconditioner=FullPreconditioner()),
    "batches": DPLogisticRegression(max_iter=4, sampling_rate=0.3),
    "private count": DPLinearSVM(
        max_iter=4, neighboring_relation="add_or_remove_one", n_ref=40, fit_intercept=False
    ),
    "adaptive": DPAGDClassifier(max_iter=6),
    "adaptive full": DPAGDClassifier(
        max_iter=3, preconditioner="full", neighboring_relation="replace_one"
    ),
    "published": DPAGDClassifier.as_published(epsilon=1.0, max_iter=4, loss_clip=3.0),
    "batches, moments": SGDMomentsAccountant(max_iter=4),
    "batches, advanced": SGDAdvancedComposition(max_iter=4),
}
IN_MEMORY = {
    "objective": ObjectivePerturbation(),
    "output": OutputPerturbation(),
    "minima": ApproximateMinimaPerturbation(),
    "newton": DoubleNoiseNewton(max_iter=3),
    "genetic": PrivGene(max_iter=6),
    "majority": MajorityClassifier(),
}


class ReleaseError(RuntimeError):
    pass


@pytest.fixture
def releases(monkeypatch):
    """Make mechanisms answer as if every sum were zero, and list how they were called.

    Their own checks of the sum still see the real one: whether they raise could depend on it.
    """
    calls = []
    for mechanism in (GaussianSum, ExponentialSelection, LaplaceSelection):

        def release(self, value, rng, original=mechanism.release):
            rehearsal = entropy_source(0)
            original(self, value, rehearsal)
            calls.append((repr(self), value.shape, value.dtype, rehearsal.words_drawn))
            if len(calls) == calls_until_failure[0]:
                raise ReleaseError("the disk is on fire")
            return original(self, np.zeros_like(value), rng)

        monkeypatch.setattr(mechanism, "release", release)
    calls_until_failure = [0]
    return calls, calls_until_failure


class Watcher:
    """A callback that notes whatever it is told, apart from the copies of the data."""

    def __init__(self, seen):
        self.seen = seen

    def setup(self, estimator, context):
        self.seen.append(("setup", context.task_name, context.max_subtasks))

    def teardown(self, estimator, context):
        self.seen.append(("teardown", vars(estimator).keys() >= {"coef_"}))

    def on_fit_task_begin(self, estimator, context):
        self.seen.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        left = {name: pickle.dumps(value) for name, value in fitted(fitted_estimator).items()}
        self.seen.append(("end", context.task_name, context.task_id, left))
        return False


def fitted(model):
    return {n: value for n, value in vars(model).items() if n.endswith("_") and n[0] != "_"}


def left_behind(estimator, X, y, releases, fail_at=0):
    """Return all that a fit leaves, apart from what a debugger could find in its frames."""
    calls, calls_until_failure = releases
    calls.clear()
    calls_until_failure[0] = fail_at
    left, lines, seen = {}, io.StringIO(), []
    handler = logging.StreamHandler(lines)
    # The compiler speaks when it meets a kernel for the first time, whatever the data.
    handler.addFilter(lambda record: not record.name.startswith("numba"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    model = pickle.loads(pickle.dumps(estimator))
    model.set_callbacks(Watcher(seen))
    source = entropy_source(17)
    model.random_state = 17
    output = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(output),
        redirect_stderr(output),
        pytest.MonkeyPatch.context() as patch,
    ):
        warnings.simplefilter("always")
        patch.setattr("dpglm.estimators.base.entropy_source", lambda state: source)
        try:
            model.fit(X, y)
        except Exception as error:
            ledger = getattr(error, "privacy_ledger", None)
            left["error"] = (
                type(error), str(error), str(error.__cause__), str(error.__context__), repr(ledger),
                sorted(vars(error)),
            )  # fmt: skip
    root.removeHandler(handler)
    root.setLevel(level)
    left |= {
        "attributes": {name: pickle.dumps(value) for name, value in vars(model).items()
                       if name != "_skl_callbacks"},
        "warnings": [(w.category, str(w.message), w.lineno) for w in caught],
        "words": source.words_drawn,
        "log": lines.getvalue(),
        "output": output.getvalue(),
        "callbacks": seen,
        "releases": list(calls),
        "text": (repr(model), str(model)),
    }  # fmt: skip
    if hasattr(model, "privacy_"):
        left["ledger"] = (str(model.privacy_), model.privacy_._repr_html_())
        left["trace"] = repr(model.trace_)
        left["pickle"] = pickle.dumps(model)
        if hasattr(model.trace_, "to_frame"):
            left["frame"] = model.trace_.to_frame().to_csv()
    return left


def data_sets():
    """Pairs (name, rows, labels) of one shape: neighbours of the first, and worse."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(N_ROWS, N_FEATURES)), np.arange(N_ROWS) % 2
    yield "base", X, y
    for name, row in {
        "zeros": 0.0,
        "1e308": [1e308, -1e308, 1e308],
        "largest": np.finfo(float).max,
        "1e160": 1e160,
        "1e15": [1e15, 1e15, -1e15],
        "denormal": 5e-324,
        "1e-200": [1e-200, 0.0, -1e-200],
        "mixed": [1e154, 5e-324, -1.0],
        "another": [-3.0, 0.5, 2.0],
    }.items():
        changed = X.copy()
        changed[5] = row
        yield name, changed, y
    flipped = y.copy()
    flipped[5] = 1 - flipped[5]
    yield "label", X, flipped
    order = rng.permutation(N_ROWS)
    yield "order", X[order], y[order]
    yield "equal rows", np.ones_like(X), y
    yield "empty data", np.zeros_like(X), y
    yield "one class", X, np.zeros_like(y)
    yield "other class", X, np.ones_like(y)
    yield "all 1e308", np.full_like(X, 1e308), y
    yield "opposed 1e308", np.where(rng.normal(size=X.shape) > 0, 1e308, -1e308), y
    yield "all denormal", np.full_like(X, 5e-324), y
    yield "separable", X + 1e6 * (2 * y[:, np.newaxis] - 1), y


def assert_alike(found, expected, name):
    for what, value in expected.items():
        assert found.get(what) == value, f"{what} depends on the data: {name}"
    assert found.keys() == expected.keys(), name


STORAGES = {
    "rows": lambda X, y: (X, y),
    "columns": lambda X, y: (np.asfortranarray(X), y),
    "single": lambda X, y: (np.clip(X, -3e38, 3e38).astype(np.float32), y),
    "sparse": lambda X, y: (csr_array(X), y),
    "blocks": lambda X, y: (ArraySource(X, y, block_rows=8), None),
}


def every_one(name):
    return True


def hunt(estimator, storage, releases, n_classes=2, keep=every_one, fail_at=0):
    model = pickle.loads(pickle.dumps(estimator)).set_params(classes=list(range(n_classes)))
    expected = None
    for name, X, y in data_sets():
        if n_classes == 3:
            y = np.where((y == 1) & (np.arange(N_ROWS) % 3 == 0), 2, y)
        if expected is None or keep(name):
            found = left_behind(model, *STORAGES[storage](X, y), releases, fail_at)
            expected = expected or found
            assert_alike(found, expected, name)
    return expected


ALL = {**BLOCKWISE, **IN_MEMORY}
WORST = {"denormal", "label", "one class", "opposed 1e308", "separable"}


@pytest.mark.parametrize("name", ALL)
def test_only_releases_depend_on_the_data(name, releases):
    thorough = name in ("full", "adaptive", "newton")
    keep = every_one if thorough else WORST.__contains__
    left = hunt(ALL[name], "rows", releases, keep=keep)
    assert "error" not in left and left["releases"] and left["words"] > 0
    assert left["callbacks"] and left["warnings"]


@pytest.mark.parametrize("storage", ["columns", "single", "sparse", "blocks"])
@pytest.mark.parametrize("name", ["full", "adaptive"])
def test_only_releases_depend_on_the_data_however_they_are_stored(name, storage, releases):
    hunt(ALL[name], storage, releases, keep=WORST.__contains__)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", ALL)
def test_only_releases_depend_on_the_data_in_all_combinations(name, storage, n_classes, releases):
    if storage != "blocks" or name in BLOCKWISE:
        left = hunt(ALL[name], storage, releases, n_classes)
        assert "error" not in left


@pytest.mark.parametrize("storage", ["rows", "sparse", "blocks"])
@pytest.mark.parametrize("name", ["logistic", "full", "adaptive", "output", "newton", "majority"])
def test_a_private_number_of_records_does_not_show(name, storage, releases):
    if storage == "blocks" and name in IN_MEMORY:
        return
    private = {"neighboring_relation": "add_or_remove_one", "n_ref": 40, "classes": [0, 1]}
    model = pickle.loads(pickle.dumps(ALL[name])).set_params(**private)
    _, X, y = next(data_sets())
    expected = left_behind(model, *STORAGES[storage](X, y), releases)
    for n_rows in (1, N_ROWS - 1, 4 * N_ROWS):
        rows = np.arange(n_rows) % N_ROWS
        found = left_behind(model, *STORAGES[storage](X[rows], y[rows]), releases)
        assert_alike(found, expected, f"{n_rows} rows")


@pytest.mark.parametrize("name", ["full", "adaptive", "objective", "newton", "genetic"])
def test_a_failing_release_tells_nothing_but_its_number(name, releases):
    n_releases = len(hunt(ALL[name], "rows", releases, keep=lambda _: False)["releases"])
    for fail_at in {1, 2, n_releases}:
        left = hunt(ALL[name], "rows", releases, 3, keep=WORST.__contains__, fail_at=fail_at)
        assert left["error"][:2] == (ReleaseError, "the disk is on fire")
        assert not [n for n in left["attributes"] if n.endswith("_") and n[0] != "_"]


def warn_of_null_rows(patch):
    original = Objective.gradient_sum

    def gradient_sum(self, coef, clip):
        if not self._signed[:N_ROWS].all():
            warnings.warn("some records contribute nothing", stacklevel=2)
        return original(self, coef, clip)

    patch.setattr(Objective, "gradient_sum", gradient_sum)


def log_the_exact_norm(patch):
    original = Objective.gradient_sum

    def gradient_sum(self, coef, clip):
        total = original(self, coef, clip)
        logging.getLogger("dpglm").debug("norm %g", np.linalg.norm(total))
        return total

    patch.setattr(Objective, "gradient_sum", gradient_sum)


def keep_the_objective(patch):
    original = DPLogisticRegression._train

    def train(self, objective, *arguments):
        self._objective_of_the_fit = objective
        return original(self, objective, *arguments)

    patch.setattr(DPLogisticRegression, "_train", train)


def scale_the_noise_by_the_data(patch):
    original = Objective.rounding_slack

    def rounding_slack(self, n_samples):
        return original(self, n_samples) + 1e-9 * abs(self.gradient_sum(np.zeros(4), 1.0)).max()

    patch.setattr(Objective, "rounding_slack", rounding_slack)


def draw_more_entropy_for_large_sums(patch):
    original = GaussianSum.release

    def release(self, value, rng):
        rng.words(1 + (np.abs(value).max() > 1))
        return original(self, value, rng)

    patch.setattr(GaussianSum, "release", release)


def refuse_large_sums(patch):
    original = GaussianSum.release

    def release(self, value, rng):
        if np.abs(value).max() > 4:
            raise OverflowError("the sum is large")
        return original(self, value, rng)

    patch.setattr(GaussianSum, "release", release)


def show_callbacks_the_exact_gradient(patch):
    original = DPLogisticRegression._train

    def train(self, objective, plan, rng, on_step):
        def exact(t, coef):
            on_step(t, coef + 1e-9 * objective.gradient_sum(coef, 1.0))

        return original(self, objective, plan, rng, exact)

    patch.setattr(DPLogisticRegression, "_train", train)


def stop_when_converged(patch):
    original = DPLogisticRegression._train

    def train(self, objective, plan, rng, on_step):
        trace, ledger = original(self, objective, plan, rng, on_step)
        if np.linalg.norm(objective.gradient_sum(trace.coef, 1.0)) < 5:
            for values in (trace.events, trace.clip, trace.noise_std, trace.step):
                values.pop()
            trace.gradient_norm.pop()
        return trace, ledger

    patch.setattr(DPLogisticRegression, "_train", train)


@pytest.mark.parametrize(
    "leak",
    [
        warn_of_null_rows,
        log_the_exact_norm,
        keep_the_objective,
        scale_the_noise_by_the_data,
        draw_more_entropy_for_large_sums,
        refuse_large_sums,
        show_callbacks_the_exact_gradient,
        stop_when_converged,
    ],
)
def test_the_hunt_finds_a_planted_leak(leak, request, monkeypatch):
    leak(monkeypatch)
    releases = request.getfixturevalue("releases")
    with pytest.raises(AssertionError, match="depends on the data"):
        hunt(ALL["logistic"].set_params(preconditioner=None), "rows", releases)
