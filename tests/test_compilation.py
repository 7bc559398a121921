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
from dpglm.kernels.arithmetic import _announce, kernel
from dpglm.losses import Logistic
from dpglm.sums.objective import Objective

FIT = """
import sys, warnings
import numpy as np
from joblib import Parallel, delayed
from dpglm import DPLogisticRegression, seeded_noise

def fit(job):
    warnings.simplefilter("ignore")
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = DPLogisticRegression(classes=[0, 1])
    with seeded_noise(0):
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


KERNEL = """
from dpglm.kernels.arithmetic import kernel
from dpglm.kernels.clip import clip

@kernel()
def clipped(x):
    return clip(x)
"""
CLIP = "from numba import njit\n@njit\ndef clip(x): return {}\n"
CLIPPED = """
from dpglm.kernels.kernel import clipped
print(clipped(3.0), sum(clipped.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_a_kernel_compiled_from_a_bug_is_not_used_once_the_source_is_corrected(tmp_path):
    kernels = tmp_path / "dpglm" / "kernels"
    kernels.mkdir(parents=True)
    # What the package itself imports, and its kernels to compile, take longer than all the rest.
    shutil.copy(Path(dpglm.__file__).parent / "kernels" / "arithmetic.py", kernels)
    (kernels / "kernel.py").write_text(KERNEL)

    def clipped(source):
        (kernels / "clip.py").write_text(CLIP.format(source))
        for path in kernels.iterdir():
            os.utime(path, (1e9, 1e9))
        environment = os.environ | {
            "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "caches"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        command = [sys.executable, "-P", "-c", CLIPPED]
        run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return run.stdout.split()

    assert clipped("x") == ["3.0", "0"]
    assert clipped("min(x, 1.0)") == ["1.0", "0"]
    assert clipped("min(x, 1.0)") == ["1.0", "1"]


def twice(x):
    return 2.0 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second = kernel()(twice), kernel()(twice)
    assert first(3.0) == second(3.0) == 6.0
    assert not first.stats.cache_hits and second.stats.cache_hits
    (folder,) = tmp_path.iterdir()
    return folder


def truncate(folder, suffix):
    (path,) = folder.glob(f"*.{suffix}")
    path.write_bytes(path.read_bytes()[:-9])


def replace_by_file(folder):
    shutil.rmtree(folder)
    folder.touch()


DAMAGES = {
    "folder": replace_by_file,
    "index": lambda folder: truncate(folder, "nbi"),
    "code": lambda folder: truncate(folder, "nbc"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_dayone_a_kernel_is_compiled_if_what_was_kept_is_damaged(folder, damage):
    again = kernel()(twice)
    DAMAGES[damage](folder)
    assert again(3.0) == 6.0 and not again.stats.cache_hits


@pytest.mark.parametrize("watched", [True, False])
def test_a_person_is_told_once_that_kernels_are_compiled(folder, monkeypatch, capsys, watched):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    _announce.cache_clear()
    kernel()(twice)(3.0)
    assert capsys.readouterr().err == "", "nothing was compiled"
    for argument in (3, 3.0 + 1j):
        kernel()(twice)(argument)
    printed = capsys.readouterr()
    assert printed.err.count("dpglm compiles its kernels") == watched and not printed.out


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
