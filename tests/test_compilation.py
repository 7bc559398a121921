"""Kernels are compiled on first use: several processes at once, forks, and folders of all kinds."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import dpglm
from dpglm.kernels import cache
from dpglm.kernels.cache import drop_stale_kernels, kept_on_disk
from dpglm.losses import Logistic
from dpglm.sums.objective import Objective

FIT = """
import sys, warnings
import numpy as np
from joblib import Parallel, delayed
from dpglm import DPLogisticRegression

def fit(job):
    warnings.simplefilter("ignore")
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = DPLogisticRegression(classes=[0, 1], random_state=0)
    return model.fit(X, (X[:, 0] > 0).astype(int)).coef_[0]

n_jobs = int(sys.argv[1])
coefs = Parallel(n_jobs=n_jobs)(delayed(fit)(job) for job in range(n_jobs))
assert all(np.array_equal(coef, coefs[0]) for coef in coefs)
print(*(coef.hex() for coef in coefs[0]))
"""


def fit_in_new_process(n_jobs=1, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-P", "-c", FIT, str(n_jobs)]
    environment = kept | {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout


@pytest.mark.slow
def test_processes_that_compile_at_once_agree_with_one_that_loads_what_they_compiled(tmp_path):
    together = fit_in_new_process(n_jobs=4, NUMBA_CACHE_DIR=tmp_path)
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert compiled
    assert fit_in_new_process(NUMBA_CACHE_DIR=tmp_path) == together
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == compiled


@pytest.fixture
def read_only_install(tmp_path):
    """The package where no kernel can be kept; permissions would not stop the superuser."""
    package = tmp_path / "site" / "dpglm"
    shutil.copytree(
        Path(dpglm.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "kernels" / "__pycache__").touch()
    return package.parent


@pytest.mark.slow
@pytest.mark.parametrize("has_home", [True, False])
def test_a_folder_that_cannot_be_written_is_no_obstacle(read_only_install, tmp_path, has_home):
    home = tmp_path / "home"
    if has_home:
        home.mkdir()
    else:
        home.touch()
    coef = fit_in_new_process(
        PYTHONPATH=read_only_install, HOME=home, XDG_CACHE_HOME=home / "cache",
        PYTHONDONTWRITEBYTECODE=1,
    )  # fmt: skip
    assert coef == fit_in_new_process()
    assert bool(list(tmp_path.rglob("*.nbc"))) == has_home


def test_kernels_compiled_before_the_newest_source_are_dropped(tmp_path):
    """numba itself looks at the file of a kernel only, not at those of what the kernel calls."""
    sources, folder = tmp_path / "kernels", tmp_path / "cache" / "kernels_0"
    sources.mkdir()
    folder.mkdir(parents=True)
    old, same, new = (folder / f"{name}.nbi" for name in ("old", "same", "new"))
    # A new index would refer to a kernel of its number, however old.
    kernel, early = new.with_suffix(".1.nbc"), sources / "norms.py"
    ages = {early: 300, kernel: 200, old: 200, sources / "clip.py": 100, same: 100, new: 0}
    for path, age in ages.items():
        path.write_text("")
        os.utime(path, (1e9 - age, 1e9 - age))
    assert drop_stale_kernels(sources, [tmp_path / "none", tmp_path / "cache"]) == [kernel, old]
    assert new.exists() and same.exists() and not old.exists() and not kernel.exists()


def twice(x):
    return 2.0 * x


def test_kernels_are_looked_for_where_numba_puts_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "chosen"))
    monkeypatch.setattr(cache, "_HERE", Path(__file__).parent)
    chosen = Path(kept_on_disk(numba.njit(twice))._cache.cache_path)
    home = tmp_path / "home" / "numba" / chosen.name
    for folder in (chosen, home, chosen.with_name("others_0")):
        folder.mkdir(parents=True, exist_ok=True)
    assert chosen.is_relative_to(tmp_path / "chosen")
    assert list(cache._caches()) == [Path(__file__).parent / "__pycache__", chosen, home]
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert Path(kept_on_disk(numba.njit(twice))._cache.cache_path) in cache._caches()


def test_what_was_compiled_is_loaded_unless_the_folder_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second, third = (kept_on_disk(numba.njit(twice)) for _ in range(3))
    assert first(3.0) == second(3.0) == 6.0
    assert not first.stats.cache_hits and second.stats.cache_hits
    (folder,) = tmp_path.iterdir()
    shutil.rmtree(folder)
    folder.touch()
    assert third(3.0) == 6.0 and not third.stats.cache_hits


def test_a_function_that_nothing_can_be_kept_of_stays_as_it_is():
    assert kept_on_disk(len) is len
    names = {}
    exec("def half(x):\n    return 0.5 * x", names)
    kernel = numba.njit(names["half"])
    assert kept_on_disk(kernel) is kernel
    assert kernel(3.0) == 1.5


def gradient_of(objective, queue):
    queue.put(objective.gradient_sum(np.full(61, 0.1), 1.0))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_use_computes_the_same_with_threads_of_its_own():
    X = np.random.default_rng(0).normal(size=(20_000, 60))
    objective = Objective(X, np.ones(20_000), Logistic(), n_threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    gradient_of(objective, queue)
    expected = queue.get()
    child = context.Process(target=gradient_of, args=(objective, queue), daemon=True)
    child.start()
    assert_array_equal(queue.get(), expected)
    child.join(timeout=20)
    assert child.exitcode == 0
