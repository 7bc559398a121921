"""Fixtures shared by the tests."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

# Before numpy is imported: two processes of tests would wait for the threads of one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest

# A tolerance is what a test says: pytest would add 1e-12 to it, which passes any delta below that.
type(pytest.approx(0.0)).DEFAULT_ABSOLUTE_TOLERANCE = 0.0

# No tests: a user's program for the type checker, and a plugin.
collect_ignore = ["consumer.py", "borrowed.py"]

DATA = Path(__file__).parent / "data"
REPRODUCTIONS = Path(__file__).parent.parent / "examples" / "reproduce"
# Of baselines the daily run has the fits, audits and leak hunt that all estimators go through.
SELDOM = ["baselines", "perturbation", "privgene", "sgd_baselines",
          "reproduce", "utility_graph"]  # fmt: skip


class SameNoise:
    """Let tests draw the same noise in each run, so that none fails by chance.

    The samplers read a stream that depends on the name of the module, the fixture or the test
    alone. DPGLM_TEST_NOISE, any text, gives all other noise: what tests claim has to hold for it.
    """

    genuine = staticmethod(np.random.default_rng)

    def begin(self, name):
        from dpglm.privacy import noise

        name = os.environ.get("DPGLM_TEST_NOISE", "") + name
        self.stream = self.genuine(list(name.encode()))
        noise.os = SimpleNamespace(urandom=lambda count: self.stream.bytes(count))
        np.random.default_rng = self.default_rng
        np.random.seed(self.stream.integers(2**32))

    def default_rng(self, seed=None):
        return self.stream.spawn(1)[0] if seed is None else self.genuine(seed)

    def pytest_collectstart(self, collector):
        if isinstance(collector, pytest.Module):
            self.begin(collector.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.begin(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """Begin for a fixture that several tests share, whichever of them asks first."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.stream, np.random.get_state()
        self.begin(f"{fixturedef.baseid} {request.fixturename} {request.param_index}")
        result = yield
        self.stream = before[0]
        np.random.set_state(before[1])
        return result


def pytest_configure(config):
    config.pluginmanager.register(SameNoise())


def pytest_sessionstart(session):
    """Take the same examples every time; a process that only hands out tests takes none."""
    if session.config.getoption("dist", "no") == "no":
        from hypothesis import settings

        settings.register_profile("fixed", derandomize=True)
        settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave to the slow run what needs a cluster, what only baselines have, and simulations."""
    for item in items:
        if "client" in getattr(item, "fixturenames", ()) or item.path.stem[5:] in SELDOM:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def vectors():
    """Return a reader of the expected values under tests/data: ``vectors(file, section)``."""

    def read(file, section):
        return json.loads((DATA / f"{file}.json").read_text())[section]["rows"]

    return read


class ScriptedEntropy:
    """Hands out given 64-bit words, in order."""

    seeded = True

    def __init__(self, words):
        self.remaining = list(words)
        self.words_drawn = 0

    def words(self, count):
        self.words_drawn += count
        drawn, self.remaining = self.remaining[:count], self.remaining[count:]
        return np.array(drawn, dtype=np.uint64)


scripted_entropy = pytest.fixture(lambda: ScriptedEntropy)


@pytest.fixture
def draws(monkeypatch):
    """List what releases ask of the samplers: the kind of their event, the size, the scale."""
    from dpglm.privacy import selection
    from dpglm.privacy import vault as vaults

    drawn = []

    def note(module, name, kind):
        original = getattr(module, name)

        def sampler(*arguments):
            drawn.append((kind, *arguments[:-1]))
            return original(*arguments)

        monkeypatch.setattr(module, name, sampler)

    note(vaults, "rounded_gaussian", "gaussian")
    note(selection, "uniform_below", "choice")
    note(selection, "rounded_laplace", "choice")
    return drawn


@pytest.fixture
def script(monkeypatch):
    """Import a script of the reproductions as it is when run from its own folder."""
    pytest.importorskip("dp_accounting")
    monkeypatch.syspath_prepend(str(REPRODUCTIONS))

    def load(name):
        for module in [m for m in sys.modules if (REPRODUCTIONS / f"{m}.py").exists()]:
            monkeypatch.delitem(sys.modules, module)
        return importlib.import_module(name)

    return load
