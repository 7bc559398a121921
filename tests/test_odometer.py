"""The odometer: never less than what was released, and never beyond its limit."""

import asyncio
import contextlib
import contextvars
import functools
import math
import multiprocessing
import os
import pickle
import re
import signal
import sqlite3
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from joblib import Parallel, delayed
from scipy.stats import norm
from sklearn.base import clone

from dpglm import (
    DPAGDClassifier,
    DPLogisticRegression,
    PrivacyLedger,
    PrivacyOdometer,
    seeded_noise,
)
from dpglm.exceptions import BudgetExceededError
from dpglm.privacy import odometer as odometer_module
from dpglm.privacy.composition import composed_pld
from dpglm.privacy.events import (
    FilterEvent,
    GaussianEvent,
    ObjectivePerturbationEvent,
    PureEvent,
    SampledGaussianEvent,
)
from dpglm.privacy.gaussian import gdp_epsilon, gdp_mu
from dpglm.privacy.odometer import JointCharge
from dpglm.privacy.vault import GaussianSum

X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
MODEL = DPLogisticRegression(epsilon=0.5, max_iter=5, classes=[0, 1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study" / "odometer.db"


@pytest.fixture
def nothing_is_released(monkeypatch):
    monkeypatch.setattr(GaussianSum, "release", lambda *_: pytest.fail("released"))


def test_the_total_is_the_sum_of_all_fits_and_outlives_the_block(path):
    with PrivacyOdometer(path) as odometer:
        assert odometer.total is None
        first = clone(MODEL).fit(X, Y).privacy_
        second = DPAGDClassifier(epsilon=0.3, classes=[0, 1]).fit(X, Y).privacy_
        assert odometer.ledgers() == [first, second]
        assert odometer.total == first + second
    clone(MODEL).fit(X, Y)
    assert PrivacyOdometer(path).total == first + second
    assert "2 charges recorded" in odometer.statement


def test_a_fit_beyond_the_limit_is_refused_before_anything_is_released(path, request):
    with PrivacyOdometer(path, epsilon=0.8) as odometer:
        model = clone(MODEL).fit(X, Y)
        recorded = path.read_bytes()
        request.getfixturevalue("nothing_is_released")
        with pytest.raises(BudgetExceededError, match=r"limit of 0\.4: 0 is used"):
            PrivacyOdometer(path.with_name("none"), epsilon=0.4).charge(model.privacy_)
        three = model.set_params(epsilon=0.7).plan(60, 3).ledger
        with pytest.raises(BudgetExceededError, match=r"bring the total to epsilon=0\.8.* 0\.5 is"):
            PrivacyOdometer(path).charge(three)
        for epsilon, message in ((0.6, r"beyond the limit of 0\.8"), (np.inf, "inf")):
            with pytest.raises(BudgetExceededError, match=message) as info:
                model.set_params(epsilon=epsilon).fit(X, Y)
            assert isinstance(info.value, ValueError)
            assert not hasattr(info.value, "privacy_ledger")
            assert not [name for name in vars(model) if name.endswith("_")]
    assert path.read_bytes() == recorded
    assert odometer.total.epsilon(1e-6) == pytest.approx(0.5)


@pytest.mark.slow
def test_it_reaches_the_worker_processes_of_a_search(path):
    started_before = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4)))
    with PrivacyOdometer(path) as odometer:
        (elsewhere,) = Parallel(n_jobs=2)([delayed(MODEL.fit)(X, Y)])
        assert not hasattr(MODEL, "coef_") and odometer.ledgers() == [elsewhere.privacy_]
    started_after = set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4)))
    assert not started_before & started_after


def charge_unread(path):
    """Charge an odometer that was made while its file was another."""
    odometer = PrivacyOdometer(path.with_name("none"))
    odometer.path = path
    odometer.charge(gaussian(0.1))


def test_dayone_a_damaged_database_is_refused_or_whole(path):
    odometer, rng = PrivacyOdometer(path, epsilon=3.0), np.random.default_rng(0)
    for epsilon in (0.5, 0.4, 0.3):
        odometer.charge(gaussian(epsilon))
    whole, known = path.read_bytes(), odometer.ledgers()
    assert known == [gaussian(0.5), gaussian(0.4), gaussian(0.3)]
    damaged = [whole[:cut] for cut in rng.integers(1, len(whole), 40)]
    for place in rng.integers(0, len(whole), 150):
        flipped = bytes([whole[place] ^ 1 << int(rng.integers(8))])
        damaged.append(whole[:place] + flipped + whole[place + 1 :])
    digits = [m.start() for m in re.finditer(rb"\d", whole)][::4]
    damaged += [whole[:k] + b"7" + whole[k + 1 :] for k in digits if whole[k : k + 1] != b"7"]
    n_refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert odometer.ledgers() == known and odometer.epsilon == 3.0
        except (ValueError, OSError) as error:
            assert str(path) in str(error)
            n_refused += 1
        assert path.read_bytes() == content
    assert n_refused > len(digits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("PRAGMA user_version = 4", "another program or release .version 4"),
        ("DROP TABLE entries", "is damaged, or not the file"),
        ("DELETE FROM entries WHERE number = 2", "damaged, .* it was changed by another program"),
        ("UPDATE study SET fixed = '{}'", "damaged, .* it was changed by another program"),
    ],
)
def test_dayone_a_database_of_another_make_is_refused_and_left_alone(path, change, message):
    odometer = PrivacyOdometer(path, epsilon=3.0)
    for _ in range(2):
        odometer.charge(gaussian(0.5))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(change)
        database.commit()
    content = path.read_bytes()
    for use in (odometer.ledgers, odometer.__enter__, lambda: charge_unread(path)):
        with pytest.raises(ValueError, match=message):
            use()
    assert path.read_bytes() == content


def test_the_cost_to_several_records_at_once_is_refused(path):
    odometer = PrivacyOdometer(path)
    with pytest.raises(ValueError, match="differ in 4 records; an odometer adds up costs of one"):
        odometer.charge(gaussian(0.5).group(4))
    odometer.charge(gaussian(0.5))
    assert odometer.ledgers() == [gaussian(0.5)]


def test_blocks_that_overlap_end_on_their_own(path, tmp_path):
    first, second = PrivacyOdometer(path), PrivacyOdometer(tmp_path / "second.db")
    first.__enter__()
    second.__enter__()
    clone(MODEL).fit(X, Y)
    first.__exit__()
    clone(MODEL).fit(X, Y)
    second.__exit__()
    clone(MODEL).fit(X, Y)
    assert (len(first.ledgers()), len(second.ledgers())) == (1, 2)


def test_a_fit_in_two_blocks_of_one_file_counts_once_within_the_limit_of_either(path):
    with PrivacyOdometer(path) as odometer, PrivacyOdometer(path, epsilon=0.9):
        clone(MODEL).fit(X, Y)
        with pytest.raises(BudgetExceededError, match=r"the limit of 0\.9"), odometer:
            clone(MODEL).set_params(epsilon=0.8).fit(X, Y)
    assert len(odometer.ledgers()) == 1


def remove(path):
    path.unlink()


def replace(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [remove, replace, empty])
@pytest.mark.parametrize("n_earlier", [0, 1])
def test_a_file_that_is_not_that_of_the_block_stops_the_next_fit(change, n_earlier, path, request):
    with PrivacyOdometer(path) as odometer:
        for _ in range(n_earlier):
            clone(MODEL).fit(X, Y)
    with odometer:
        change(path)
        request.getfixturevalue("nothing_is_released")
        for spend in (lambda: clone(MODEL).fit(X, Y), lambda: odometer.charge(gaussian(0.1))):
            with pytest.raises(OSError, match="deleted, replaced or emptied since its block began"):
                spend()


@pytest.mark.parametrize("nested", ["", "before", "after", "in a new process"])
def test_a_file_cut_back_to_where_its_block_began_stops_the_next_fit(nested, path, request):
    with PrivacyOdometer(path) as odometer:
        begun, nothing = path.read_bytes(), contextlib.nullcontext()
        with odometer if nested == "before" else nothing:
            clone(MODEL).fit(X, Y)
        path.write_bytes(begun)
        request.getfixturevalue("nothing_is_released")
        if nested == "in a new process":
            odometer_module._lengths.clear()
        for again in (odometer if nested == "after" else nothing, nothing):
            with again, pytest.raises(OSError, match="emptied since its block began"):
                clone(MODEL).fit(X, Y)
    assert "DPGLM_ODOMETER" not in os.environ


def test_a_file_is_the_same_by_any_of_its_names(path, tmp_path):
    link, relative = tmp_path / "link.db", os.path.relpath(path)
    link.symlink_to(path)
    with PrivacyOdometer(link) as odometer, PrivacyOdometer(relative):
        assert odometer.path == path
        clone(MODEL).fit(X, Y)
        link.unlink()
        link.symlink_to(tmp_path / "elsewhere")
        clone(MODEL).fit(X, Y)
    assert len(odometer.ledgers()) == 2 and not (tmp_path / "elsewhere").exists()


def test_dayone_a_charge_is_synced_before_the_fit_goes_on(path, monkeypatch):
    ran, connect = [], sqlite3.connect

    def traced(*arguments, **options):
        database = connect(*arguments, **options)
        database.set_trace_callback(ran.append)
        return database

    with PrivacyOdometer(path):
        monkeypatch.setattr(sqlite3, "connect", traced)
        monkeypatch.setattr(GaussianSum, "release", lambda *_: pytest.fail(" / ".join(ran)))
        with pytest.raises(pytest.fail.Exception, match=r"^PRAGMA synchronous = EXTRA / BEGIN IMM.*"
                           r"INSERT INTO entries.*/ UPDATE study.*/ COMMIT$"):  # fmt: skip
            clone(MODEL).fit(X, Y)


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot open a folder")
def test_new_folders_are_synced_with_the_folders_that_hold_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    with PrivacyOdometer(tmp_path / "a" / "b" / "study.db"):
        assert synced == [folder.stat().st_ino for folder in (tmp_path, tmp_path / "a")]


@pytest.mark.parametrize("fault", ["locked", "a folder is a file", "replaced while waited for"])
def test_dayone_a_file_that_cannot_be_locked_or_written_stops_the_fit(
    fault, path, monkeypatch, nothing_is_released
):
    monkeypatch.setattr(odometer_module, "_PATIENCE", 0.2)
    if fault == "a folder is a file":
        (path.parent).write_text("")
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            PrivacyOdometer(path).charge(gaussian(0.1))
        return
    with PrivacyOdometer(path) as odometer:
        copy, content = path.with_name("copy"), path.read_bytes()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        if fault == "replaced while waited for":
            copy.write_bytes(content)
            threading.Timer(0.1, os.replace, (copy, path)).start()
        with pytest.raises(OSError, match=r"cannot be locked.*Nothing was|was deleted, repl"):
            clone(MODEL).fit(X, Y)
        other.close()
    assert odometer.ledgers() == []


def ledger_of(*events, relation="zero_out"):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6, neighboring_relation=relation)


def gaussian(epsilon):
    return ledger_of(GaussianEvent(1 / gdp_mu(epsilon, 1e-6)))


def delta_of_a_choice(first, rivals, epsilon):
    """The delta of a Gaussian fit, and of that rival after it which its result makes the worse."""
    mu, x = first.mu(), np.linspace(-9, 9, 601)
    left = epsilon - (mu * mu / 2 + mu * x)
    order = np.argsort(np.abs(left))
    deltas = [
        composed_pld(rival.events, 1e-3).get_delta_for_epsilon(np.abs(left)[order])
        for rival in rivals
    ]
    deltas = [np.array(d)[np.argsort(order)] for d in deltas]
    # That of an epsilon below 0 follows from the other direction, which costs these the same.
    deltas = [np.where(left >= 0, d, 1 - np.exp(left) * (1 - d)) for d in deltas]
    return float(norm.pdf(x) @ np.max(deltas, axis=0) * (x[1] - x[0]))


def test_a_rival_that_is_chosen_by_the_first_result_breaks_the_sum_and_is_refused_by_the_filter(
    path,
):
    """Two rivals that each bring the sum to the limit: choosing between them goes beyond it."""
    pytest.importorskip("dp_accounting")
    first, rivals = gaussian(1.0), []
    # The multipliers are those that bring the sum to 1.5.
    for event in (GaussianEvent(3.99857), SampledGaussianEvent(1e-3, 0.478367)):
        rivals.append(ledger_of(event))
        fixed = PrivacyOdometer(path.with_name(event.kind), epsilon=1.5, adaptive=False)
        for ledger in (first, rivals[-1]):
            fixed.charge(ledger)
        assert fixed.used() == pytest.approx(1.5, rel=1e-4)
    assert delta_of_a_choice(first, rivals[:1], 1.5) == pytest.approx(1e-6, rel=0.01)
    assert delta_of_a_choice(first, rivals, 1.5) == pytest.approx(1.87e-6, rel=0.02)
    odometer = PrivacyOdometer(path, epsilon=1.5)
    odometer.charge(first)
    with pytest.raises(BudgetExceededError):
        odometer.charge(rivals[1])
    odometer.charge(rivals[0])


@pytest.mark.parametrize(
    "event", [ObjectivePerturbationEvent(9.0, 0.1), FilterEvent(rho=1e-4)], ids=["offset", "zcdp"]
)
def test_what_has_no_gaussian_trade_off_is_for_plans_fixed_in_advance(event, path):
    with pytest.raises(ValueError, match="begin a file with adaptive=False"):
        PrivacyOdometer(path, epsilon=2.0).charge(ledger_of(event))
    for fixed in ({"epsilon": 2.0, "adaptive": False}, {}):
        PrivacyOdometer(path.with_name(f"f{len(fixed)}"), **fixed).charge(ledger_of(event))


def test_mini_batches_count_as_full_batches_where_settings_may_follow_from_results(path):
    odometer = PrivacyOdometer(path, epsilon=50.0)
    odometer.charge(ledger_of(*[SampledGaussianEvent(0.01, 2.0)] * 9))
    assert odometer.used() == pytest.approx(gdp_epsilon(1.5, 1e-6))
    assert odometer.total.epsilon(1e-6) < 1


def test_what_a_file_was_begun_with_stays(path):
    with PrivacyOdometer(path, epsilon=0.8, delta=1e-5, adaptive=False):
        pass
    for other in ({"epsilon": 0.9}, {"epsilon": 0.7}, {"delta": 1e-6}, {"adaptive": True}):
        with pytest.raises(ValueError, match=r"was begun with .* fixed before its first fit"):
            PrivacyOdometer(path, **other)
    again = PrivacyOdometer(path, epsilon=0.8)
    assert (again.epsilon, again.delta, again.adaptive) == (0.8, 1e-5, False)
    late = PrivacyOdometer(path.with_name("late"), epsilon=1.0)
    with PrivacyOdometer(late.path, epsilon=3.0):
        pass
    with pytest.raises(ValueError, match=r"epsilon=1\.0, but .* with epsilon=3\.0"), late:
        pytest.fail("begun")
    for name, value in {"epsilon": 0.0, "delta": 1.0, "adaptive": "no"}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
            PrivacyOdometer(path, **{name: value})


def test_a_file_that_was_begun_without_a_limit_keeps_the_first_that_it_gets(path):
    with PrivacyOdometer(path) as odometer, odometer.part("north"):
        clone(MODEL).fit(X, Y)
    for other in ({"epsilon": 0.4}, {"epsilon": 0.5, "delta": 1e-7}):
        with pytest.raises(
            ValueError, match=r"begun without a limit, .* come to 0\.5.* Give a larger"
        ):
            PrivacyOdometer(path, **other)
    assert odometer.epsilon is None and "One more" not in str(odometer)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", odometer.rows()[1][1])
    limited = PrivacyOdometer(path, epsilon=0.8)
    assert "the guarantee is the limit, epsilon=0.8 at" in limited.statement
    assert odometer.statement == limited.statement and len(odometer.ledgers()) == 1
    for epsilon in (0.7, 3.0):
        with pytest.raises(ValueError, match=r"with epsilon=0\.8: the limit of a study is fixed"):
            PrivacyOdometer(path, epsilon=epsilon)
    with PrivacyOdometer(path), pytest.raises(BudgetExceededError, match=r"limit of 0\.8"):
        clone(MODEL).set_params(epsilon=0.7).fit(X, Y)
    for name, begin in (("block", PrivacyOdometer.__enter__), ("charge", charge_a_little)):
        early, late = (PrivacyOdometer(path.with_name(name), epsilon=e) for e in (None, 1.0))
        with early:
            begin(late)
        with pytest.raises(ValueError, match=r"begun with epsilon=1\.0"):
            PrivacyOdometer(early.path, epsilon=3.0)
        if begin is PrivacyOdometer.__enter__:
            late.__exit__()


def charge_a_little(odometer):
    odometer.charge(gaussian(0.1))


@pytest.mark.parametrize("adaptive", [True, False])
def test_what_remains_is_admitted_and_no_more(adaptive, path):
    for unlimited in ({}, {"epsilon": math.inf}):
        assert PrivacyOdometer(path, **unlimited).remaining() == math.inf
    odometer = PrivacyOdometer(path, epsilon=1.0, adaptive=adaptive)
    assert 0.99999 <= odometer.remaining() <= 1.0
    with odometer:
        clone(MODEL).fit(X, Y)
        left = odometer.remaining()
        with pytest.raises(BudgetExceededError):
            clone(MODEL).set_params(epsilon=1.0001 * left).fit(X, Y)
        clone(MODEL).set_params(epsilon=left).fit(X, Y)
        assert odometer.remaining() < 1e-3


def test_parts_cost_what_the_dearest_does_and_the_whole_adds_to_all(path):
    odometer = PrivacyOdometer(path, epsilon=1.0)
    north, south = odometer.part("north"), odometer.part("south")
    for part in (north, south):
        with odometer, part:
            clone(MODEL).set_params(epsilon=0.7).fit(X, Y)
    assert odometer.used() == pytest.approx(0.7) and odometer.total.epsilon(1e-6) <= 0.7
    with north, pytest.raises(BudgetExceededError, match=r"total about part 'north' .*: 0\.7 is"):
        clone(MODEL).set_params(epsilon=0.8).fit(X, Y)
    with odometer:
        clone(MODEL).set_params(epsilon=0.4).fit(X, Y)
    assert odometer.used() == pytest.approx(gdp_epsilon(math.hypot(*MUS[:2]), 1e-6))
    assert north.remaining() == odometer.remaining() < odometer.part("west").remaining()
    with south:
        clone(MODEL).set_params(epsilon=0.5).fit(X, Y)
    assert odometer.used() == pytest.approx(gdp_epsilon(math.hypot(*MUS), 1e-6))
    assert north.remaining() > odometer.remaining() == south.remaining()


def test_dayone_a_part_is_one_however_its_name_is_written(path):
    odometer = PrivacyOdometer(path)
    for name in ("caf\u00e9", "cafe\u0301", " caf\u00e9\n"):
        odometer.part(name).charge(gaussian(0.5))
    assert odometer.total.mu() == pytest.approx(gdp_mu(0.5, 1e-6) * 3**0.5)
    assert {entry.part for entry in odometer.entries()} == {"caf\u00e9"}


MUS = [gdp_mu(epsilon, 1e-6) for epsilon in (0.7, 0.4, 0.5)]


def test_the_total_of_parts_is_that_of_the_dearest_at_every_delta(path):
    odometer, pure, noisy = PrivacyOdometer(path), ledger_of(PureEvent(0.8)), gaussian(0.9)
    odometer.part("a").charge(pure)
    assert odometer.total.epsilon(1e-9) == pytest.approx(0.8)
    odometer.part("b").charge(noisy)
    assert noisy.epsilon(1e-3) < 0.6 and noisy.epsilon(1e-9) > 1
    for delta in (1e-3, 1e-6, 1e-9):
        dearest = max(pure.epsilon(delta), noisy.epsilon(delta))
        assert odometer.total.epsilon(delta) == pytest.approx(dearest)
    said = "no record decides in which part of the records another one is"
    assert said in odometer.total.statement
    odometer.charge(noisy)
    odometer.part("b").charge(noisy)
    assert odometer.total == noisy + PrivacyLedger.parallel(pure, noisy + noisy)


def test_a_part_is_that_of_one_thread_and_of_one_block(path, monkeypatch):
    odometer = PrivacyOdometer(path)
    with odometer.part("north"):
        thread = threading.Thread(target=clone(MODEL).fit, args=(X, Y))
        thread.start()
        thread.join()
        clone(MODEL).fit(X, Y)
        with odometer:
            clone(MODEL).fit(X, Y)
        clone(MODEL).fit(X, Y)
    # A block around everything, in which that of the part has ended.
    monkeypatch.setenv("DPGLM_ODOMETER", str(path))
    clone(MODEL).fit(X, Y)
    assert [entry.part for entry in odometer.entries()] == [None, "north", None, "north", None]


def test_a_task_that_outlives_the_block_of_its_part_is_charged_to_the_whole(path):
    odometer = PrivacyOdometer(path)

    async def fit():
        await asyncio.sleep(0)
        clone(MODEL).fit(X, Y)

    async def study():
        with odometer.part("north"):
            task, _ = asyncio.create_task(fit()), await asyncio.to_thread(clone(MODEL).fit, X, Y)
            late = asyncio.create_task(fit())
            assert task.done()
        with odometer.part("south"):
            await late

    asyncio.run(study())
    assert [entry.part for entry in odometer.entries()] == ["north", "north", None]


def test_a_forked_process_is_charged_to_the_whole(path):
    with PrivacyOdometer(path).part("north") as odometer:
        in_child(clone(MODEL).fit, X, Y).join()
    assert [entry.part for entry in odometer.entries()] == [None]


def test_parts_do_not_hide_relations_that_differ_or_seeds(path):
    odometer = PrivacyOdometer(path)
    with seeded_noise(0), odometer.part("north"):
        clone(MODEL).fit(X, Y)
    with odometer.part("south"):
        with seeded_noise(0), pytest.raises(ValueError, match="drew their noise from a seed"):
            clone(MODEL).fit(X, Y)
        with pytest.raises(ValueError, match="do not compose"):
            clone(MODEL).set_params(neighboring_relation="replace_one").fit(X, Y)


def test_a_fit_that_is_charged_with_others_is_under_their_blocks_relation_and_noise(path):
    whole = ledger_of(*[FilterEvent(mu=0.2)] * 2)
    with PrivacyOdometer(path) as odometer, JointCharge(whole):
        other = PrivacyOdometer(path.with_name("other"))
        with other, pytest.raises(BudgetExceededError, match="other blocks of a PrivacyOdometer"):
            clone(MODEL).fit(X, Y)
        with seeded_noise(0), pytest.raises(BudgetExceededError, match="planned without seeded"):
            clone(MODEL).fit(X, Y)
        replacing = clone(MODEL).set_params(neighboring_relation="replace_one")
        with pytest.raises(BudgetExceededError, match=r"replace_one .* planned under zero_out"):
            replacing.fit(X, Y)
        assert odometer.ledgers() == other.ledgers() == []
        for _ in range(2):
            clone(MODEL).fit(X, Y)
        assert odometer.ledgers() == [whole]


def test_nothing_is_charged_with_what_has_ended(path):
    with PrivacyOdometer(path) as odometer:
        with JointCharge(ledger_of(*[FilterEvent(mu=0.2)] * 3)):
            clone(MODEL).fit(X, Y)
            inside = contextvars.copy_context()
        with pytest.raises(BudgetExceededError, match="planned with mu=0 at most"):
            inside.run(clone(MODEL).fit, X, Y)
        assert len(odometer.ledgers()) == 1


def test_the_variable_may_name_a_file(path, monkeypatch):
    with PrivacyOdometer(path, epsilon=0.8):
        pass
    monkeypatch.setenv("DPGLM_ODOMETER", str(path))
    clone(MODEL).fit(X, Y)
    with pytest.raises(BudgetExceededError, match=r"limit of 0\.8"), PrivacyOdometer(path):
        clone(MODEL).set_params(epsilon=0.7).fit(X, Y)
    assert os.environ["DPGLM_ODOMETER"] and len(PrivacyOdometer(path).ledgers()) == 1
    for text in ("[1, 2", '[["study.db", null, 0]]'):
        monkeypatch.setenv("DPGLM_ODOMETER", text)
        with pytest.raises(ValueError, match=rf"{re.escape(text)}.* is neither a file nor"):
            clone(MODEL).fit(X, Y)


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_file_that_the_variable_names_cannot_begin_anew(lose, path, monkeypatch):
    with PrivacyOdometer(path, epsilon=0.8):
        pass
    monkeypatch.setenv("DPGLM_ODOMETER", str(path))
    clone(MODEL).fit(X, Y)
    lose(path)
    with pytest.raises(OSError, match="deleted, replaced or emptied"):
        clone(MODEL).fit(X, Y)


def test_a_relative_name_in_the_variable_stays_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DPGLM_ODOMETER", "study.db")
    for folder in (tmp_path, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        clone(MODEL).fit(X, Y)
    assert len(PrivacyOdometer(tmp_path / "study.db").ledgers()) == 2
    assert not any(folder.iterdir())


def in_child(task, *arguments):
    child = multiprocessing.get_context("fork").Process(target=task, args=arguments)
    child.start()
    return child


def fit_while_allowed(path, go):
    go.wait()
    for _ in range(5):
        with contextlib.suppress(BudgetExceededError):
            clone(MODEL).fit(X, Y)


def test_processes_at_once_stay_within_the_limit(path):
    fork = multiprocessing.get_context("fork")
    clone(MODEL).fit(X, Y)
    with PrivacyOdometer(path, epsilon=1.3) as odometer:
        go = fork.Event()
        children = [in_child(fit_while_allowed, path, go) for _ in range(3)]
        go.set()
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert odometer.total.epsilon(1e-6) <= 1.3
        with pytest.raises(BudgetExceededError):
            clone(MODEL).fit(X, Y)


def at_once(fit):
    fit()


def in_a_thread(fit):
    with ThreadPoolExecutor() as pool:
        pool.submit(fit).result()


def in_an_empty_context(fit):
    contextvars.Context().run(fit)


def in_a_forked_child(fit):
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(fit).result()


def in_a_task(fit):
    async def task():
        await asyncio.to_thread(fit)

    asyncio.run(task())


def in_a_worker(fit):
    Parallel(n_jobs=2)([delayed(fit)()])


def fit_without(variable):
    os.environ.pop("DPGLM_ODOMETER", None)
    if variable is not None:
        os.environ["DPGLM_ODOMETER"] = variable
    clone(MODEL).fit(X, Y)


PLACES = [in_a_thread, in_an_empty_context, in_a_forked_child, in_a_task]


@pytest.mark.parametrize(
    ("where", "variable"),
    [*((here, v) for v in ("[]", "elsewhere.db") for here in (at_once, in_a_thread)),
     *((where, None) for where in (at_once, *PLACES)),
     pytest.param(in_a_worker, None, marks=pytest.mark.slow)],
)  # fmt: skip
def test_dayone_a_block_that_the_environment_lost_stops_every_fit(
    where, variable, path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    fit = functools.partial(fit_without, variable)
    with PrivacyOdometer(path) as odometer, PrivacyOdometer(path.with_name("inner")) as inner:
        kept = os.environ["DPGLM_ODOMETER"]
        with pytest.raises(ValueError, match="cleared or changed within a block of the odometer"):
            where(fit)
        os.environ["DPGLM_ODOMETER"] = kept
        clone(MODEL).fit(X, Y)
    assert len(odometer.ledgers()) == len(inner.ledgers()) == 1
    assert not (tmp_path / "elsewhere.db").exists()


def test_dayone_blocks_end_though_the_environment_lost_them(path):
    with PrivacyOdometer(path) as odometer:
        os.environ.pop("DPGLM_ODOMETER")
        with pytest.raises(ValueError, match="cleared or changed"), PrivacyOdometer(path):
            pytest.fail("begun")
    clone(MODEL).fit(X, Y)
    with pickle.loads(pickle.dumps(odometer)) as again:
        clone(MODEL).fit(X, Y)
    assert len(again.ledgers()) == 1


def test_dayone_paths_are_as_a_shell_would_read_them(path, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("STUDY", str(home))
    monkeypatch.delenv("NOWHERE", raising=False)
    for number, name in enumerate(["~/s.db", "$STUDY/s.db", "${STUDY}/s.db", home / "s.db"]):
        PrivacyOdometer(name).charge(gaussian(0.1))
        monkeypatch.setenv("DPGLM_ODOMETER", str(name))
        clone(MODEL).fit(X, Y)
        monkeypatch.delenv("DPGLM_ODOMETER")
        assert len(PrivacyOdometer(home / "s.db").ledgers()) == 2 * number + 2
    for name in ("", " ", "${NOWHERE}/s", "~nobody-is-this/s", ".", home, "$STUDY", "%HOME%/s.db"):
        with pytest.raises(ValueError, match=r"^path=.*(is empty|not known here|is a folder)"):
            PrivacyOdometer(name)
        monkeypatch.setenv("DPGLM_ODOMETER", str(name))
        with pytest.raises(ValueError, match=r"DPGLM_ODOMETER=.*is neither a file nor"):
            clone(MODEL).fit(X, Y)
        monkeypatch.delenv("DPGLM_ODOMETER")
    assert not [*here.iterdir()]


def test_a_block_that_cannot_begin_is_not_begun(path, monkeypatch):
    def interrupt():
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(odometer_module, "_stop_reusable_workers", interrupt)
    odometer = PrivacyOdometer(path)
    with pytest.raises(KeyboardInterrupt), odometer:
        pytest.fail("begun")
    clone(MODEL).fit(X, Y)
    assert odometer.ledgers() == []


def fit_until_killed(path, released, fitted):
    """In a child: fit again and again, and tell of every release as it leaves its mechanism."""
    original = GaussianSum.release

    def telling(self, value, rng):
        noisy = original(self, value, rng)
        os.write(released, b".")
        return noisy

    GaussianSum.release = telling
    with PrivacyOdometer(path, epsilon=1e3).part("north"):
        while True:
            clone(MODEL).fit(X, Y)
            fitted.set()


def kill_at_random(path, number, n_kills, seed):
    with PrivacyOdometer(path, epsilon=1e3):  # begun, and the kernels loaded before the forks
        clone(MODEL).fit(X, Y)
    rng, n_released = np.random.default_rng(seed), 0
    fork = multiprocessing.get_context("fork")
    read, write = os.pipe()
    os.set_blocking(read, False)
    for kill in range(n_kills):
        fitted = fork.Event()
        child = fork.Process(target=fit_until_killed, args=(path, write, fitted))
        child.start()
        if kill % 2:
            fitted.wait()
        time.sleep(rng.uniform(0.001, 0.06))
        os.kill(child.pid, number)
        child.join()
        assert child.exitcode == -number
        with contextlib.suppress(BlockingIOError):
            n_released += len(os.read(read, 1 << 20))
        recorded = sum(ledger.n_releases for ledger in PrivacyOdometer(path).ledgers())
        assert recorded >= n_released
    # A journal that a kill left behind holds nothing that counts, and is as closed to others.
    left = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert {path.name} <= set(left) <= {path.name, f"{path.name}-journal"}
    assert set(left.values()) == {0o600}
    return n_released


@pytest.mark.parametrize(
    ("number", "n_kills", "least"),
    [
        (signal.SIGKILL, 10, 0),
        pytest.param(signal.SIGKILL, 200, 200, marks=pytest.mark.slow),
    ],
)
def test_kills_never_lose_a_release(path, number, n_kills, least):
    assert kill_at_random(path, number, n_kills, seed=0) > least
