"""The odometer: never less than what was released, and never beyond its limit."""

import contextlib
import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dpglm import BudgetExceededError, DPAGDClassifier, DPLogisticRegression, PrivacyOdometer
from dpglm.privacy.mechanisms import GaussianSum

X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
MODEL = DPLogisticRegression(epsilon=0.5, max_iter=5, classes=[0, 1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study" / "odometer.jsonl"


def test_the_total_is_the_sum_of_all_fits_and_outlives_the_block(path):
    with PrivacyOdometer(path) as odometer:
        assert odometer.total is None
        first = clone(MODEL).fit(X, Y).privacy_
        second = DPAGDClassifier(epsilon=0.3, classes=[0, 1]).fit(X, Y).privacy_
        assert odometer.ledgers() == [first, second]
        assert odometer.total == first + second
    clone(MODEL).fit(X, Y)
    assert PrivacyOdometer(path).total == first + second
    assert "2 fits recorded" in str(odometer)


def test_a_fit_beyond_the_limit_is_refused_before_anything_is_released(path, monkeypatch):
    with PrivacyOdometer(path, epsilon=0.8) as odometer:
        model = clone(MODEL).fit(X, Y)
        recorded = path.read_bytes()
        monkeypatch.setattr(GaussianSum, "release", lambda *_: pytest.fail("released"))
        with pytest.raises(BudgetExceededError, match=r"bring the total to epsilon=0\.7.* 0\.5 is"):
            PrivacyOdometer(path, epsilon=0.7).charge(model.privacy_)
        with pytest.raises(BudgetExceededError, match=r"beyond the limit of 0\.8"):
            clone(MODEL).set_params(epsilon=0.6).fit(X, Y)
    assert path.read_bytes() == recorded
    assert odometer.total.epsilon(1e-6) == pytest.approx(0.5)


def test_an_unlimited_fit_is_refused_under_a_limit(path):
    with PrivacyOdometer(path, epsilon=100.0), pytest.raises(BudgetExceededError, match="inf"):
        clone(MODEL).set_params(epsilon=np.inf).fit(X, Y)


def test_it_reaches_the_processes_of_a_grid_search(path):
    grid = {"step_schedule": [0.1, 0.5]}
    started_before = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4)))
    with PrivacyOdometer(path) as odometer:
        GridSearchCV(MODEL, grid, cv=2, n_jobs=2).fit(X, Y)
        assert len(odometer.ledgers()) == 2 * 2 + 1
    started_after = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4)))
    assert not started_before & started_after


def test_a_fit_in_nested_blocks_counts_in_both(path, tmp_path):
    inner = tmp_path / "inner.jsonl"
    with PrivacyOdometer(path) as whole:
        with PrivacyOdometer(inner) as part:
            clone(MODEL).fit(X, Y)
        clone(MODEL).fit(X, Y)
    assert (len(whole.ledgers()), len(part.ledgers())) == (2, 1)


def test_an_unfinished_line_is_ignored_and_replaced(path):
    with PrivacyOdometer(path) as odometer:
        clone(MODEL).fit(X, Y)
        whole = path.read_bytes()
        for cut in range(1, 60):
            path.write_bytes(whole[:-cut])
            assert odometer.ledgers() == []
        clone(MODEL).fit(X, Y)
    assert len(path.read_bytes().splitlines()) == 2
    path.write_bytes(whole[:10])
    assert odometer.ledgers() == []


@pytest.mark.parametrize(
    "content", ["my diary", "[1, 2]\n", '{"format": "dpglm odometer", "version": 2}\n']
)
def test_a_foreign_file_is_refused_and_left_alone(tmp_path, content):
    foreign = tmp_path / "notes.txt"
    foreign.write_text(content)
    with pytest.raises(ValueError, match=r"is not the file of a PrivacyOdometer: it begins with"):
        PrivacyOdometer(foreign)
    assert foreign.read_text() == content


def test_a_damaged_entry_is_an_error_and_not_a_smaller_total(path):
    with PrivacyOdometer(path) as odometer:
        clone(MODEL).fit(X, Y)
        clone(MODEL).fit(X, Y)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
        with pytest.raises(ValueError, match="is not the file of a PrivacyOdometer"):
            clone(MODEL).fit(X, Y)
    assert odometer.path == path


def test_costs_that_do_not_add_up_are_refused(path):
    with PrivacyOdometer(path):
        clone(MODEL).fit(X, Y)
        with pytest.raises(ValueError, match="do not compose"):
            clone(MODEL).set_params(neighboring_relation="replace_one").fit(X, Y)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": True}, "epsilon=True"),
        ({"delta": 1.0}, "de"),
    ],
)
def test_bad_parameters(path, parameters, words):
    with pytest.raises(ValueError, match=words):
        PrivacyOdometer(path, **parameters)


def fit_until_killed(path, released):
    """In a child: fit again and again, and tell of every release as it leaves its mechanism."""
    original = GaussianSum.release

    def telling(self, value, rng):
        noisy = original(self, value, rng)
        os.write(released, b".")
        return noisy

    GaussianSum.release = telling
    with PrivacyOdometer(path):
        while True:
            clone(MODEL).fit(X, Y)


def kill_at_random(path, n_kills, seed):
    clone(MODEL).fit(X, Y)  # so that the kernels are loaded before the forks
    rng, n_released = np.random.default_rng(seed), 0
    fork = multiprocessing.get_context("fork")
    read, write = os.pipe()
    os.set_blocking(read, False)
    for _ in range(n_kills):
        child = fork.Process(target=fit_until_killed, args=(path, write))
        child.start()
        time.sleep(rng.uniform(0.001, 0.06))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with contextlib.suppress(BlockingIOError):
            n_released += len(os.read(read, 1 << 20))
        recorded = sum(ledger.n_releases for ledger in PrivacyOdometer(path).ledgers())
        assert recorded >= n_released
    return n_released


def test_kills_never_lose_a_release(path):
    assert kill_at_random(path, 10, seed=0) > 0


@pytest.mark.slow
def test_two_hundred_kills_never_lose_a_release(path):
    assert kill_at_random(path, 200, seed=1) > 200
    for line in path.read_bytes().splitlines():
        json.loads(line)
