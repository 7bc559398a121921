"""What a fit leaves besides its releases does not depend on the records.

Every vault is made to answer as if all sums were zero, with the noise of a seed. Two data sets of
one shape must then leave the same bits everywhere: attributes, pickles, representations, warnings,
log lines, output, exceptions, callbacks, entropy used. Whatever differs leaks past the vault.
"""

import io
import logging
import math
import pickle
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
from problems import STORAGES
from sklearn.base import clone
from strategies import ESTIMATORS, EVERY
from tapes import on_tape

from dpglm import DPLinearRegression, DPLogisticRegression, seeded_noise
from dpglm.audit.recorder import ReleaseRecorder
from dpglm.datasets import make_census
from dpglm.privacy import odometer
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES, GaussianSum
from dpglm.schema import load_schema
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore")

N_ROWS, N_FEATURES = 37, 3
IN_MEMORY = ["objective", "output", "genetic"]


class ReleaseError(RuntimeError):
    pass


class Zeros(ReleaseRecorder):
    """Makes vaults answer as if every sum were zero, and lists what they were asked.

    The mechanisms' own checks still see the real sum, and draw noise for it: whether they raise,
    and how much entropy they take, could depend on it.
    """

    def __init__(self, fail_at):
        super().__init__()
        self.asked, self.fail_at = [], fail_at

    def note(self, event, sensitivity, exact, draw):
        draw(exact)
        self.asked.append((event, sensitivity, exact.shape, exact.dtype))
        if len(self.asked) == self.fail_at:
            raise ReleaseError("the disk is on fire")
        return draw(np.zeros_like(exact))


class Short(Zeros):
    """Says first, by a histogram, that all elements or rows are small: they then become larger."""

    def note(self, event, sensitivity, exact, draw):
        answer = super().note(event, sensitivity, exact, draw)
        if len(self.asked) == 1:
            answer[:], answer[..., 1] = 0.0, N_ROWS
        return answer


# Whether scikit-learn has callbacks, as from version 1.9 on.
WATCHED = hasattr(DPLogisticRegression, "set_callbacks")


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


def left_behind(estimator, X, y, fail_at=0, tape=Zeros):
    """Return all that a fit leaves, apart from what a debugger could find in its frames."""
    left, lines, seen = {}, io.StringIO(), []
    handler = logging.StreamHandler(lines)
    # The compiler speaks when it meets a kernel for the first time, whatever the data.
    handler.addFilter(lambda record: not record.name.startswith("numba"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    odometer._said_once.set()  # the warning of exact scores comes once a process, whatever the data
    model = clone(estimator)
    if WATCHED:
        model.set_callbacks(Watcher(seen))
    source = np.random.RandomState(17)
    output = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(output),
        redirect_stderr(output),
        on_tape(tape(fail_at)) as zeros,
        seeded_noise(source),
    ):
        warnings.simplefilter("always")
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
        "next entropy": source.bytes(8),
        "log": lines.getvalue(),
        "output": output.getvalue(),
        "callbacks": seen,
        "releases": zeros.asked,
        "text": (repr(model), str(model)),
    }  # fmt: skip
    if hasattr(model, "privacy_"):
        left["ledger"] = (model.privacy_.statement, model.privacy_._repr_html_())
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
    # Of a number alone.
    yield "target", X, np.where(np.arange(N_ROWS) == 5, 1e300, 0.5 * y)


def assert_alike(found, expected, name):
    for what, value in expected.items():
        assert found.get(what) == value, f"{what} depends on the data: {name}"
    assert found.keys() == expected.keys(), name


def hunt(name, storage, n_classes=2, only=None, fail_at=0, tape=Zeros):
    model = clone(EVERY[name])
    if name in ESTIMATORS:
        model.set_params(classes=list(range(n_classes)))
    expected = None
    for data_set, X, y in data_sets():
        if n_classes == 3:
            y = np.where((y == 1) & (np.arange(N_ROWS) % 3 == 0), 2, y)
        if data_set == "target" and name in ESTIMATORS:
            break
        if expected is None or only is None or data_set in only:
            y = y + 5e-324 if name == "gamma" else y
            found = left_behind(model, *STORAGES[storage](X, y), fail_at, tape)
            expected = expected or found
            assert_alike(found, expected, data_set)
    return expected


WORST = {"denormal", "label", "one class", "opposed 1e308", "separable", "target"}


@pytest.mark.parametrize("name", EVERY)
def test_only_releases_depend_on_the_data(name):
    thorough = name in ("full", "adaptive")
    left = hunt(name, "rows", only=None if thorough else WORST)
    assert "error" not in left and left["releases"]
    assert left["next entropy"] != np.random.RandomState(17).bytes(8)
    assert (left["callbacks"] or not WATCHED) and left["warnings"]


@pytest.mark.parametrize("storage", ["columns", "single", "sparse", "blocks"])
@pytest.mark.parametrize("name", ["full", "adaptive", "linear"])
def test_only_releases_depend_on_the_data_however_they_are_stored(name, storage):
    hunt(name, storage, only={"denormal", "opposed 1e308", "target"})


@pytest.mark.slow
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", ["full", "private count", "centered"])
def test_only_releases_depend_on_the_data_where_rows_become_longer(name, storage):
    """And centered rows are moved. Of "mixed", one becomes so long that it has no norm."""
    left = hunt(name, storage, only={*WORST, "mixed"}, tape=Short)
    magnitudes, norms = (N_FEATURES + 1, 2 * MAGNITUDE_POWERS.size), (NORM_BIN_EDGES.size + 1,)
    first = magnitudes if name == "centered" else norms
    assert "error" not in left and left["releases"][0][2] == first


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", EVERY)
def test_only_releases_depend_on_the_data_in_all_combinations(name, storage, n_classes):
    if storage != "blocks" or name not in IN_MEMORY:
        left = hunt(name, storage, n_classes)
        assert "error" not in left


@pytest.mark.parametrize("form", ["straight", "default", "finest"])
def test_from_a_raw_table_on_only_releases_depend_on_the_data(form):
    """Of an encoder, its resolution and its warnings nothing does, and nothing of the fit after."""
    schema = load_schema("census")
    forms = {"straight": schema.additive(1), "finest": schema.additive(32)}
    schema = forms.get(form, schema)
    expected = None
    for seed in range(3):
        X, y = make_census(N_ROWS, random_state=seed, as_frame=True)
        if seed == 2:
            # Every row alike, and numbers far out of bounds.
            X = X.iloc[[0] * N_ROWS].assign(**{c.name: 1e9 for c in schema.numeric})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            encoder = schema.transformer()
            rows = encoder.fit_transform(X)
            rows = rows if form == "default" else np.asarray(rows)
        found = left_behind(ESTIMATORS["diagonal"], rows, np.asarray(y))
        found["encoder"] = pickle.dumps(encoder), repr(encoder), [str(w.message) for w in caught]
        expected = expected or found
        assert_alike(found, expected, f"table {seed}")
    # A plain array is measured first: so few records show lengths of rows, and nothing of the
    # magnitudes of hundreds of columns. Rows that carry their bound need neither.
    width = rows.shape[1] + 1
    first = {
        "straight": width * 2 * MAGNITUDE_POWERS.size,
        "default": width,
        "finest": NORM_BIN_EDGES.size + 1,
    }
    assert "error" not in expected
    assert len(expected["releases"]) == (5 if form == "default" else 6)
    assert math.prod(expected["releases"][0][2]) == first[form]


COUNTED = ["plain", "full", "adaptive", "output", "majority", "linear"]


@pytest.mark.parametrize(
    ("name", "storage"),
    [*((name, "rows") for name in COUNTED), ("full", "sparse"), ("adaptive", "blocks")],
)
def test_a_private_number_of_records_does_not_show(name, storage):
    private = {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 40}
    model = clone(EVERY[name]).set_params(**private)
    _, X, y = next(data_sets())
    expected = left_behind(model, *STORAGES[storage](X, y))
    for n_rows in (1, N_ROWS - 1, 4 * N_ROWS):
        rows = np.arange(n_rows) % N_ROWS
        found = left_behind(model, *STORAGES[storage](X[rows], y[rows]))
        assert_alike(found, expected, f"{n_rows} rows")


@pytest.mark.parametrize("name", ["full", "adaptive", "objective", "genetic", "gamma"])
def test_a_failing_release_tells_nothing_but_its_number(name):
    n_releases = len(hunt(name, "rows", only=())["releases"])
    for fail_at in {1, min(2, n_releases), n_releases}:
        left = hunt(name, "rows", 3, only=WORST, fail_at=fail_at)
        assert left["error"][:2] == (ReleaseError, "the disk is on fire")
        assert not [n for n in left["attributes"] if n.endswith("_") and n[0] != "_"]


LEAKS = {}


def planted(owner, name):
    """Put a function in the place of a method, which is its first argument."""

    def register(leak):
        original = getattr(owner, name)
        LEAKS[leak.__name__] = owner, name, lambda *args, **named: leak(original, *args, **named)
        return leak

    return register


@planted(Objective, "gradient_sum")
def warn_of_null_rows(gradient_sum, objective, coef, clip, rows=None):
    if not objective._signed[:N_ROWS].all():
        warnings.warn("some records contribute nothing", stacklevel=2)
    return gradient_sum(objective, coef, clip, rows)


@planted(Objective, "gradient_sum")
def log_the_exact_norm(gradient_sum, objective, coef, clip, rows=None):
    total = gradient_sum(objective, coef, clip, rows)
    logging.getLogger("dpglm").debug("norm %g", np.linalg.norm(total))
    return total


@planted(Objective, "rounding_slack")
def scale_the_noise_by_the_data(rounding_slack, objective, n_samples):
    largest = abs(objective.gradient_sum(np.zeros(4), 1.0)).max()
    return rounding_slack(objective, n_samples) + 1e-9 * largest


@planted(GaussianSum, "release")
def draw_more_entropy_for_large_sums(release, mechanism, value, rng):
    rng.words(1 + (np.abs(value).max() > 1))
    return release(mechanism, value, rng)


@planted(GaussianSum, "release")
def refuse_large_sums(release, mechanism, value, rng):
    if np.abs(value).max() > 4:
        raise OverflowError("the sum is large")
    return release(mechanism, value, rng)


@planted(DPLogisticRegression, "_train")
def keep_the_sums(train, model, vault, plan, on_step):
    model._sums_of_the_fit = vault._sums
    return train(model, vault, plan, on_step)


@planted(DPLogisticRegression, "_train")
def show_callbacks_the_exact_gradient(train, model, vault, plan, on_step):
    def exact(t, coef):
        on_step(t, coef + 1e-9 * vault._sums.gradient_sum(coef, 1.0))

    return train(model, vault, plan, exact)


@planted(DPLogisticRegression, "_train")
def stop_when_converged(train, model, vault, plan, on_step):
    trace = train(model, vault, plan, on_step)
    if np.linalg.norm(vault._sums.gradient_sum(trace.coef, 1.0)) < 5:
        for values in (trace.events, trace.clip, trace.noise_std, trace.mu, trace.step):
            values.pop()
        trace.gradient_norm.pop()
    return trace


@planted(DPLinearRegression, "_settled")
def take_the_unit_from_the_target(settled, model, vault, plan, data):
    plan = settled(model, vault, plan, data)
    vault.change_target(0.0, float(np.std(data.y)) + 1.0)
    return replace(plan, target=replace(plan.target, unit=float(np.std(data.y)) + 1.0))


@planted(DPLinearRegression, "_settled")
def take_the_range_from_the_target(settled, model, vault, plan, data):
    model.target_bounds = (float(data.y.min()) - 1.0, float(data.y.max()) + 1.0)
    return settled(model, vault, plan, data)


@pytest.mark.parametrize("leak", LEAKS)
def test_the_hunt_finds_a_planted_leak(leak, monkeypatch):
    if "callbacks" in leak and not WATCHED:
        pytest.skip("this version of scikit-learn has no callbacks")
    monkeypatch.setattr(*LEAKS[leak])
    with pytest.raises(AssertionError, match="depends on the data"):
        hunt("linear" if "target" in leak else "plain", "rows", only=WORST)
