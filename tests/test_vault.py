"""The vault: nobody gets more out of it than was planned and paid for, whatever asks."""

import contextlib
import inspect
import math
import os
import warnings
from dataclasses import replace
from operator import methodcaller
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted_bugs import changed, not_clipped, unchecked, wrapped
from problems import STORAGES
from scipy.optimize import brentq
from scipy.sparse import csr_array
from sklearn.base import clone
from strategies import EVERY as OTHERS
from strategies import REGRESSORS, under
from tapes import Failing, on_tape, record, replay

from dpglm import DPAGDClassifier, DPLinearSVM, DPLogisticRegression, PrivacyOdometer, seeded_noise
from dpglm.audit import recorder
from dpglm.audit.recorder import ReleaseRecorder, largest_ratio
from dpglm.baselines import PrivGene, SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.exceptions import BudgetExceededError
from dpglm.losses import (
    Gamma,
    Hinge,
    Logistic,
    NumericLoss,
    Poisson,
    SmoothedHinge,
    Softmax,
    Squared,
)
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import (
    FilterEvent,
    GaussianEvent,
    ObjectivePerturbationEvent,
    SampledGaussianEvent,
)
from dpglm.privacy.gaussian import gdp_delta
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.selection import ChoosingVault
from dpglm.privacy.vault import (
    MAGNITUDE_POWERS,
    NORM_BIN_EDGES,
    PlannedReleases,
    PrivacyFilter,
    Release,
    Vault,
    plain,
)
from dpglm.schedules import ExponentialDecay
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")

N_ROWS, N_FEATURES = 60, 3
PLAIN = {"preconditioner": None, "clip_schedule": 1.0, "max_iter": 4, "classes": [0, 1]}


def table(n_classes=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES))
    return X, rng.permutation(np.arange(N_ROWS) % n_classes)


# --- Solvers that ask for more than was planned ---


def planted(solver, Estimator=DPLogisticRegression):
    """An estimator whose plan is honest, and whose solver is not."""

    class Planted(Estimator):
        def _train(self, vault, plan, on_step):
            return solver(vault, plan)

    return Planted


def refused(solver, error, message, Estimator=DPLogisticRegression, **parameters):
    """Fit with a solver whose question is refused before anything is released."""
    with record() as recorded, pytest.raises(error, match=message):
        planted(solver, Estimator)(**parameters).fit(*table())
    assert not recorded.releases


def asked(vault, plan, t, **changes):
    """Release what was planned for iteration t, or something else."""
    planned = {
        "clip": plan.clip[t],
        "noise_multiplier": plan.noise_multiplier[t],
        "sampling_rate": plan.sampling_rate,
    }
    return vault.gradient_sum(np.zeros(N_FEATURES + 1), **{**planned, **changes})


def asking(*requests):
    """A solver that asks for iterations, with a share of their noise and perhaps other batches."""

    def solver(vault, plan):
        for t, share, *rate in requests:
            changes = {"noise_multiplier": share * plan.noise_multiplier[t]}
            asked(vault, plan, t, **changes, **({"sampling_rate": rate[0]} if rate else {}))

    return solver


def with_a_moment_as_well(vault, plan):
    asked(vault, plan, 0)
    vault.second_moment(3.0, plan.noise_multiplier[0], diagonal=True)


ASKED_TOO_MUCH = {
    "twice": asking((0, 1), (0, 1)),
    "out of order": asking((1, 1)),
    "with less noise": asking((0, 1 - 1e-15)),
    "with half of the noise": asking((0, 0.5)),
    "without noise": asking((0, 0.0)),
    "with batches": asking((0, 1, 0.5)),
    "with a moment as well": with_a_moment_as_well,
    "for another iteration": asking((0, 1), (1, 1), (2, 1), (3, 1), (3, 1)),
}


@pytest.mark.parametrize("solver", ASKED_TOO_MUCH.values(), ids=ASKED_TOO_MUCH)
def test_a_solver_that_asks_for_anything_else_is_refused(solver):
    """Before a sum is computed, and after that it is refused everything."""
    seen = []

    def refused(vault, plan):
        with pytest.raises(BudgetExceededError, match="not what was planned"):
            solver(vault, plan)
        seen.append(vault.log.copy())
        for t in range(plan.n_iter):
            with pytest.raises(BudgetExceededError, match="None is next"):
                asked(vault, plan, t)
        assert vault.log == seen[0]
        raise BudgetExceededError("and gives up")

    model = planted(refused)(noise_schedule=ExponentialDecay(1.0, 0.9), **PLAIN)
    plan = model.plan(N_ROWS, N_FEATURES)
    with record() as recorded, pytest.raises(BudgetExceededError, match="gives up") as info:
        model.fit(*table())
    (log,) = seen
    assert len(recorded.releases) == len(log) <= plan.n_iter
    planned = [event for event, n in plan.ledger.events for _ in range(n)]
    assert [release.event for release in log] == planned[: len(log)]
    assert all("gradients" in release.event.purpose for release in log)
    assert (getattr(info.value, "privacy_ledger", None) == plan.ledger) == bool(log)
    assert not hasattr(model, "coef_")


def test_a_filter_refuses_what_does_not_fit_and_charges_nothing_for_it():
    def solver(vault, plan):
        zeros, clip = np.zeros(N_FEATURES + 1), plan.clip[0]
        enough = plan.noise_multiplier(plan.capacity * 0.6)
        vault.gradient_sum(zeros, clip, enough)
        spent, log = vault._allowance.spent, vault.log.copy()
        for refused in (
            lambda: vault.gradient_sum(zeros, clip, enough),
            lambda: vault.gradient_sum(zeros, clip, 0.0),
            lambda: vault.second_moment(3.0, enough, diagonal=False),
            lambda: vault.choose_step(
                zeros, zeros, np.linspace(0, 1, 3), np.zeros(3), "exponential", 1e6, clip, None
            ),
        ):
            with pytest.raises(BudgetExceededError, match="nothing was charged"):
                refused()
        # A batch has no cost in the unit of a filter.
        with pytest.raises((TypeError, ValueError)):
            vault.gradient_sum(zeros, clip, enough, sampling_rate=0.5)
        assert (vault._allowance.spent, vault.log) == (spent, log)
        vault.gradient_sum(zeros, clip, plan.noise_multiplier(plan.capacity * 0.39))
        raise ArithmeticError

    for accountant in ("gdp", "zcdp"):
        model = planted(solver, DPAGDClassifier)(classes=[0, 1], accountant=accountant)
        with record() as recorded, pytest.raises(ArithmeticError) as info:
            model.fit(*table())
        assert len(recorded.releases) == 2
        assert info.value.privacy_ledger == model.plan(N_ROWS, N_FEATURES).ledger


@pytest.mark.parametrize(
    "changes",
    [
        {"clip": 0.0}, {"clip": -1.0}, {"clip": math.nan}, {"clip": math.inf},
        {"clip": 1e-101},
        {"noise_multiplier": -1.0}, {"noise_multiplier": math.nan},
        {"sampling_rate": 0.0}, {"sampling_rate": 2.0}, {"sampling_rate": math.nan},
    ],
)  # fmt: skip
def test_senseless_numbers_release_nothing(changes):
    def solver(vault, plan):
        asked(vault, plan, 0, **changes)

    refused(solver, ValueError, None, **PLAIN)


def test_a_sum_of_another_size_than_its_noise_is_for_is_not_released(monkeypatch):
    unchecked(monkeypatch)
    changed("norm_histogram", lambda original, *given: np.append(original(*given), 0))(monkeypatch)

    def solver(vault, plan):
        vault.norm_histogram(plan.noise_multiplier[0])

    refused(solver, RuntimeError, "A sum has 20 numbers, not 19", **PLAIN)


@pytest.mark.parametrize(
    "change",
    [
        lambda vault: vault.change_basis(np.ones((N_FEATURES + 1, 1))),
        lambda vault: vault.scale_columns(np.ones(N_FEATURES + 1)),
        lambda vault: vault.weigh_rows(1.0),
    ],
)
def test_rows_are_counted_as_they_are_in_the_table(change):
    """In a basis of one column, magnitudes would still be counted of all three."""

    def solver(vault, plan):
        change(vault)
        for count in (vault.norm_histogram, vault.magnitude_histogram):
            with pytest.raises(ValueError, match="ask before they change"):
                count(plan.noise_multiplier[0])
        raise ArithmeticError

    refused(solver, ArithmeticError, None, **PLAIN)


def test_an_endless_bound_weighs_no_rows():
    """That of a null record would be no number, and the check of the kernels would tell so."""
    weigh = methodcaller("weigh_rows", math.inf)
    refused(lambda vault, plan: weigh(vault), ValueError, "bound=inf must be finite", **PLAIN)


def test_what_a_filter_admits_by_its_tolerance_is_compared_with_the_budget():
    budget = PrivacyBudget(1.0, 1e-6)
    largest = brentq(lambda mu: gdp_delta(mu, 1.0) - 1e-6, 0.1, 1.0, xtol=1e-15)
    sums = Objective(np.eye(4), np.ones(4), Logistic())
    with pytest.raises(ValueError, match="costs more than epsilon=1"):
        Vault(sums, [(FilterEvent(mu=largest * (1 - 2e-13)), 1)], budget, entropy_source(0))
    Vault(sums, [(FilterEvent(mu=largest * (1 - 3e-12)), 1)], budget, entropy_source(0))


def test_a_fork_cannot_spend_the_allowance_again(monkeypatch):
    def forked(vault, plan):
        monkeypatch.setattr(os, "getpid", lambda: -1)
        asked(vault, plan, 0)

    refused(forked, RuntimeError, "cannot be used in a fork", **PLAIN)


@pytest.mark.parametrize(
    ("z", "message"),
    [(0.5, "costs more"), (np.float16(6e4), None), (np.float16(1.0), "costs more")],
)
def test_what_gaussian_releases_cost_needs_no_ledger(z, message, monkeypatch):
    monkeypatch.setattr("dpglm.privacy.ledger.composed_delta", lambda *_: 0.0)
    monkeypatch.setattr("dpglm.privacy.ledger.composed_epsilon", lambda *_: 0.0)
    X, y = table()
    rows, budget = Objective(X, 2.0 * y - 1, Logistic()), PrivacyBudget(1.0, 1e-6)
    refused = pytest.raises(ValueError, match=message) if message else contextlib.nullcontext()
    with refused:
        Vault(rows, [(GaussianEvent(z), 1)], budget, entropy_source())


@pytest.mark.parametrize(
    ("direction", "steps", "message"),
    [
        ([1.1, 0.0, 0.0, 0.0], [0.0, 1.0], "norm of at most one"),
        ([math.nan, 0.0, 0.0, 0.0], [0.0, 1.0], "norm of at most one"),
        ([1.0, 0.0, 0.0, 0.0], [0.0, -1.0], "cannot be drawn"),
        ([1.0, 0.0, 0.0, 0.0], [0.0, 5.0, 1.0], "equally spaced"),
        ([1.0, 0.0, 0.0, 0.0], [0.0, math.nan], "cannot be drawn"),
    ],
)
def test_a_choice_whose_sensitivity_would_be_wrong_is_refused(direction, steps, message):
    def solver(vault, plan):
        penalty = np.zeros(len(steps))
        vault.choose_step(
            np.zeros(4), np.array(direction), np.array(steps), penalty, plan.selection,
            plan.selection_epsilon, plan.clip[0], plan.loss_clip,
        )  # fmt: skip

    refused(solver, ValueError, message, DPAGDClassifier, classes=[0, 1])


# --- What a vault shows ---


def test_nobody_can_change_or_watch_what_a_vault_has_checked():
    given = np.ones((2, 3)).view(np.matrix)
    kept = plain(given, (2, 3))
    assert type(kept) is np.ndarray and not np.shares_memory(kept, given)
    for shape in ((1, 3), (3, 3)):
        with pytest.raises(ValueError, match=r"asked with an array of shape \(2, 3\), not"):
            plain(given, shape)


def public_objects(root):
    """All that can be reached by names without an underscore, apart from code."""
    seen, queue = {}, [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type) or inspect.isroutine(item):
            continue
        seen[id(item)] = item
        if isinstance(item, (list, tuple)):
            queue.extend(item)
        elif isinstance(item, dict):
            queue.extend(item.values())
        elif not isinstance(item, (str, int, float, np.ndarray, type(None))):
            names = [name for name in dir(item) if not name.startswith("_")]
            # Only a filter has something that remains.
            queue.extend(getattr(item, name, None) for name in names)
    return list(seen.values())


SHOWN = (
    Vault, PlannedReleases, PrivacyFilter, Release, GaussianEvent, SampledGaussianEvent,
    FilterEvent, list, tuple, str, int, float, type(None),
)  # fmt: skip


@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPAGDClassifier])
def test_no_public_name_of_a_vault_leads_to_data_sums_or_entropy(Estimator):
    walked = []

    class Planted(Estimator):
        def _train(self, vault, plan, on_step):
            trace = super()._train(vault, plan, on_step)
            for item in public_objects(vault):
                assert isinstance(item, SHOWN) or type(item).__name__.endswith("Event"), item
                walked.append(type(item))
            return trace

    Planted(max_iter=3, classes=[0, 1]).fit(*table())
    assert {GaussianEvent, Release, list} <= set(walked)


def test_the_methods_of_a_vault_are_few_and_all_of_them_answer_with_noise():
    questions = {
        name: method
        for name, method in inspect.getmembers(ChoosingVault, inspect.isfunction)
        if not name.startswith("_")
    }
    asked = ["choose_step", "gradient_sum", "label_counts", "magnitude_histogram"]
    asked += ["norm_histogram", "second_moment", "target_histogram", "target_sum"]
    changes = ["ask_of_residuals", "change_basis", "change_target", "scale_columns"]
    changes += ["weigh_classes", "weigh_rows"]
    assert sorted(questions) == sorted(["admits", "check_unbroken", *changes, *asked])
    X, y = table()
    sums = Objective(X, 2.0 * y - 1, Logistic())
    zeros = np.zeros(N_FEATURES + 1)
    line = zeros, np.eye(N_FEATURES + 1)[0], np.linspace(0.0, 1.0, 40), np.zeros(40)

    def answers(seed):
        budget = PrivacyBudget(math.inf, 1e-6)
        vault = ChoosingVault(sums, [(FilterEvent(mu=100.0), 1)], budget, entropy_source(seed))
        return [
            vault.gradient_sum(zeros, 1.0, 2.0),
            vault.second_moment(3.0, 2.0, diagonal=False),
            vault.second_moment(3.0, 2.0, diagonal=True),
            vault.second_moment(3.0, 2.0, diagonal=False, coef=zeros),
            vault.magnitude_histogram(1.0).ravel(),
            vault.norm_histogram(1.0),
            vault.label_counts(1.0),
            vault.weigh_classes(np.ones(2)),
            vault.scale_columns(np.ones(N_FEATURES + 1)),
            vault.change_basis(np.eye(N_FEATURES + 1)),
            vault.weigh_rows(1.0),
            vault.choose_step(*line, "exponential", 1e-3, 1.0, None),
        ]

    with on_tape() as recorded:
        found = [answers(seed) for seed in range(5)]
    exact = [release.exact.ravel() for release in recorded.releases[:7]]
    for total, *noisy in zip(exact, *found, strict=False):
        assert len({tuple(answer) for answer in noisy}) == 5
        for answer in noisy:
            assert answer.shape == total.shape and (answer != total).all()
            assert not np.shares_memory(answer, total)
    assert {(*answers[-5:-1],) for answers in found} == {(None,) * 4}
    assert len({choice for *_, choice in found}) > 2


# --- Plans that are wrong ---


def cheaper(plan):
    events = tuple(
        (replace(event, noise_multiplier=event.noise_multiplier * 0.999), n)
        if hasattr(event, "noise_multiplier")
        else (FilterEvent(mu=event.mu and 1.001 * event.mu, rho=event.rho and 1.001 * event.rho), n)
        for event, n in plan.ledger.events
    )
    return replace(plan, ledger=replace(plan.ledger, events=events))


@pytest.mark.parametrize(
    "estimator",
    [
        DPLogisticRegression(**PLAIN),
        DPLinearSVM(max_iter=3, classes=[0, 1]),
        DPLogisticRegression(**PLAIN, sampling_rate=0.3, neighboring_relation="zero_out"),
        DPLogisticRegression(**PLAIN, neighboring_relation="replace_one"),
        DPAGDClassifier(accountant="gdp", classes=[0, 1]),
        DPAGDClassifier(accountant="zcdp", classes=[0, 1]),
    ],
    ids=["plain", "whitened", "batches", "replace one", "gdp", "zcdp"],
)
def test_a_plan_that_costs_more_than_the_budget_is_refused_before_anything_happens(
    estimator, tmp_path
):
    class Tampered(type(estimator)):
        def _plan(self, *given):
            return cheaper(super()._plan(*given))

    source = np.random.RandomState(17)
    model = Tampered(**estimator.get_params())
    with (
        PrivacyOdometer(tmp_path / "odometer") as odometer,
        record() as recorded,
        seeded_noise(source),
        pytest.raises(ValueError, match="costs more than epsilon=1") as info,
    ):
        model.fit(*table())
    assert not recorded.releases and not odometer.ledgers()
    assert not hasattr(info.value, "privacy_ledger")
    assert source.bytes(8) == np.random.RandomState(17).bytes(8)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_the_ledger_of_a_fit_that_stops_early_lists_all_that_was_planned():
    """When to stop may have followed from the answers: a sum over what happened is no bound."""

    class Lazy(DPLogisticRegression):
        def _train(self, vault, plan, on_step):
            names = ("clip", "noise_multiplier", "step", "averaging")
            short = {name: getattr(plan, name)[:2].copy() for name in names}
            return super()._train(vault, replace(plan, **short), on_step)

    with record() as recorded:
        model = Lazy(**PLAIN).fit(*table())
    plan = model.plan(N_ROWS, N_FEATURES)
    assert plan.ledger.n_releases == 4 and len(recorded.releases) == 2
    assert model.privacy_ == plan.ledger
    assert model.trace_.events == [release.event for release in recorded.releases]


# --- Neighbours: no release moves by more than its noise was drawn for ---

# What strategies has, with noise little enough and batches enough for a record to be seen.
EVERY = {
    **OTHERS,
    "batches": DPLogisticRegression(max_iter=8, sampling_rate=0.3),
    "intervals": DPLogisticRegression(epsilon=1e4, max_iter=2, inference_fraction=0.9),
    "adaptive": DPAGDClassifier(epsilon=4.0, max_iter=4, n_steps=5, preconditioner=None),
    "published": DPAGDClassifier.as_published(epsilon=4.0, max_iter=4),
    "moments": SGDMomentsAccountant(max_iter=8, batch_size=18),
    "advanced": SGDAdvancedComposition(max_iter=8, batch_size=18),
    "genetic": PrivGene(max_iter=3),
}
# Which release once.
ONE_RELEASE = {"output", "objective", "minima", "majority"}
# Its theorem is not about one record in place of another.
SAMPLED = {"advanced"}
# These count labels, or learn from two classes.
TWO_CLASSES = {"genetic", "intervals"}
EXTREMES = [
    [1e308, -1e308, 1e308], [1e154, 5e-324, -1.0], [1e3, 1e3, -1e3], [0.0, 0.0, 0.0],
    [5e-324, 0.0, -1e-200], [-3.0, 0.5, 2.0],
]  # fmt: skip
TARGETS = [1e300, 5e-324, 3.0, 0.5, 1e-200, 1e5]


def neighbours(relation, n_classes, null=1e308, name=None):
    """Yield two tables that differ by one record, of any size and label, or target of a name."""
    X, y = table(n_classes)
    y = y + 0.5 if name in REGRESSORS else y
    rows = np.arange(N_ROWS)
    for i, extreme in enumerate(EXTREMES):
        one, other, labels = X.copy(), X.copy(), y.copy()
        one[-1] = extreme
        if name in REGRESSORS:
            y[-1], labels[-1] = TARGETS[i] * (-1) ** (name == "linear"), TARGETS[i - 1]
        if relation == "zero_out":
            other[-1] = null
            yield (one, y), (other, labels)
        elif relation == "replace_one":
            other[-1] = EXTREMES[i - 1]
            if name not in REGRESSORS:
                labels[-1] = (y[-1] + 1) % n_classes
            yield (one, y), (other, labels)
        else:
            yield (one, y), (X[rows[:-1]], y[:-1])


def made(name, relation, n_classes=2):
    labels = {} if name in REGRESSORS else {"classes": list(range(n_classes))}
    return clone(EVERY[name]).set_params(**under(relation, N_ROWS), **labels)


def ratio_between(model, one, other, storage="rows", seed=0):
    with warnings.catch_warnings(), seeded_noise(seed):
        warnings.simplefilter("ignore")
        with record() as recorded:
            first = clone(model).fit(*STORAGES[storage](*one))
        with replay(recorded) as replayed:
            second = clone(model).fit(*STORAGES[storage](*other))
    assert recorded.releases and first.privacy_ == second.privacy_
    # The same answers, the same course: nothing but the sums depends on the record.
    assert np.array_equal(first.coef_, second.coef_)
    if not any(isinstance(event, FilterEvent) for event, _ in first.privacy_.events):
        # What tilts a loss is noise alone, of which a tape has nothing to tell.
        released = [
            event
            for event, n in first.privacy_.events
            for _ in range(n)
            if not isinstance(event, ObjectivePerturbationEvent)
        ]
        assert released == [release.event for release in recorded.releases]
    return largest_ratio(recorded, replayed)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("name", EVERY)
def test_no_release_moves_by_more_than_the_sensitivity_its_noise_is_for(name, relation):
    if relation == "replace_one" and name in SAMPLED:
        return
    model = made(name, relation)
    if name == "genetic":
        # It clips features one by one: only a row of zeros, without intercept, adds nothing.
        model.set_params(fit_intercept=False)
    null = 0.0 if name == "genetic" else 1e308
    # Every other record here, of which that is null is the other half.
    pairs = list(neighbours(relation, 2, null, name))[relation == "zero_out" :: 2]
    ratios = [ratio_between(model, *pair) for pair in pairs]
    assert max(ratios) <= 1.0
    # Counts of labels do not depend on a row, and what tilts the loss protects its minimiser.
    unmoved = {("majority", "zero_out")} | {
        (tilted, relation) for tilted in ("objective", "minima")
    }
    assert max(ratios) > 0.1 or (name, relation) in unmoved


# All of them, of which a few are quick enough for every run.
COMBINATIONS = [
    pytest.param(name, storage, relation, 3 if few else 1, marks=[] if few else pytest.mark.slow)
    for name in EVERY
    for storage in STORAGES
    if storage != "blocks" or EVERY[name]._reads_blocks
    for relation, few in (
        ("add_or_remove_one", name in {"full", "batches", "adaptive full"}),
        ("replace_one", False),
    )
    if relation != "replace_one" or name not in SAMPLED
]


@pytest.mark.parametrize(("name", "storage", "relation", "every"), COMBINATIONS)
def test_nor_in_any_storage(name, storage, relation, every):
    n_classes = 2 if name in TWO_CLASSES else 3
    model = made(name, relation, n_classes)
    for one, other in list(neighbours(relation, n_classes, name=name))[::every]:
        assert ratio_between(model, one, other, storage) <= 1.0


def test_two_fits_that_do_not_release_the_same_are_not_compared():
    X, y = table()
    tapes = []
    for n_iter in (2, 3):
        with record() as recorded:
            DPLogisticRegression(**{**PLAIN, "max_iter": n_iter}).fit(X, y)
        tapes.append(recorded)
    with pytest.raises(ValueError, match="did not release the same"):
        largest_ratio(*tapes)
    assert largest_ratio(ReleaseRecorder(), ReleaseRecorder()) == 0.0


def test_only_the_fits_of_an_estimator_in_its_block_are_recorded():
    model = DPLogisticRegression(**PLAIN)
    with recorder.record(model) as outer, recorder.record(clone(model)):
        clone(model).fit(*table())
        assert not outer.releases
        model.fit(*table())
    model.fit(*table())
    assert len(outer.releases) == 4 and vars(model).get("_vault_type") is None


# --- The kernels are checked against plain arithmetic ---


def twice_the_clip(original, objective, coef, clip, rows=None):
    return original(objective, coef, 2 * clip, rows)


def the_last_row_twice(original, objective, coef, clip, rows=None):
    total = original(objective, coef, clip, rows)
    if rows is None:
        last = objective._part(np.array([objective.n_rows - 1]))
        total = total + original(last, coef, clip)
    return total


def single_precision(original, *given):
    return original(*given).astype(np.float32).astype(np.float64)


def with_norms_too_small(patch):
    original = Objective._inverse_norms
    patch.setattr(Objective, "_inverse_norms", lambda *given: 1.01 * original(*given))


SUMS = [not_clipped, twice_the_clip, the_last_row_twice, single_precision]
WRONG = [with_norms_too_small, *(wrapped(Objective, "gradient_sum", change) for change in SUMS)]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_kernel_ends_the_fit_before_its_sum_is_released(bug, storage, monkeypatch):
    bug(monkeypatch)
    X, y = table()
    model = DPLogisticRegression(**{**PLAIN, "max_iter": 1, "clip_schedule": 0.1})
    with (
        record() as recorded,
        pytest.raises(RuntimeError, match="nothing more is released") as info,
    ):
        model.fit(*STORAGES[storage](X, y))
    assert not recorded.releases and not hasattr(info.value, "privacy_ledger")


def vault_of(n_classes=2, **options):
    """A vault of one planned release, which is compared for certain."""
    X, y = table(n_classes)
    target = 2.0 * y - 1 if n_classes == 2 else y
    loss = options.pop("loss", Logistic() if n_classes == 2 else Softmax())
    n_outputs = 1 if n_classes == 2 else n_classes
    sums = Objective(X, target, loss, n_outputs=n_outputs, **options)
    budget, events = PrivacyBudget(math.inf, 1e-6), [(GaussianEvent(2.0), 1)]
    return ChoosingVault(sums, events, budget, entropy_source())


ZEROS = np.zeros(N_FEATURES + 1)
LINE = ZEROS, np.eye(N_FEATURES + 1)[0], np.linspace(0.0, 1.0, 6), np.zeros(6), "exponential", 0.5
# A question to a vault, and the method of objectives that answers it.
ASKED = {
    "gradients": ("gradient_sum", lambda v: v.gradient_sum(ZEROS, 0.1, 2.0)),
    "moment": ("second_moment", lambda v: v.second_moment(1.0, 2.0, diagonal=False)),
    "diagonal": ("second_moment", lambda v: v.second_moment(1.0, 2.0, diagonal=True)),
    "curvature": ("second_moment", lambda v: v.second_moment(1.0, 2.0, diagonal=False, coef=ZEROS)),
    "magnitudes": ("magnitude_histogram", lambda v: v.magnitude_histogram(2.0)),
    "norms": ("norm_histogram", lambda v: v.norm_histogram(2.0)),
    "targets": ("target_histogram", lambda v: v.target_histogram(2.0)),
    "target sum": ("target_sum", lambda v: v.target_sum(3.0, 2.0)),
    "capped losses": ("line_losses", lambda v: v.choose_step(*LINE, 0.1, None)),
    "clipped losses": ("line_losses", lambda v: v.choose_step(*LINE, 0.1, 0.5)),
}


def one_value_moved(original, *given, **named):
    answer = original(*given, **named)
    place = max(answer.size - 2, 0)
    answer.flat[place] += 0.01 if answer.flat[place] % 1 else 1.0
    return answer


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("question", ASKED)
def test_a_wrong_answer_to_any_question_is_not_released(question, persons, monkeypatch):
    method, ask = ASKED[question]
    groups = {"groups": np.arange(N_ROWS) // 2, "max_contributions": 2} if persons else {}
    if question.startswith("target"):
        groups = {"loss": Squared()}
    charged = PlannedReleases.charge
    monkeypatch.setattr(PlannedReleases, "charge", lambda self, event: event)
    ask(vault_of(**groups))
    wrapped(Objective, method, one_value_moved)(monkeypatch)
    vault = vault_of(**groups)
    with pytest.raises(RuntimeError, match="nothing more is released"):
        ask(vault)
    assert not vault.log and not vault.has_drawn
    monkeypatch.setattr(PlannedReleases, "charge", charged)
    with pytest.raises(BudgetExceededError):
        ask(vault)


class Compared(list):
    """Notes which questions are compared after how many releases, and may find them wrong."""

    def __init__(self, patch, excess=0.0):
        super().__init__()
        self.excess = excess
        patch.setattr(Objective, "confirm", lambda *given: self.note(*given))

    def note(self, objective, ask, rows):
        assert 0 < len(rows) <= objective.n_rows and (np.diff(rows) == 1).all()
        self.append(str(ask).split("'")[1])
        return np.array(self.excess)


@pytest.mark.parametrize("name", ["plain", "full", "centered", "batches", "adaptive full"])
def test_any_release_may_be_the_one_that_is_compared(name, monkeypatch):
    """So that no kernel can be right in the first iteration only."""
    model, compared = made(name, "zero_out").set_params(max_iter=3), Compared(monkeypatch, 1.0)
    planned = range(model.plan(N_ROWS, N_FEATURES).ledger.n_releases)
    # In a plan the choice is the number of releases before; else 2 ** digits - 1 and more.
    choices = [0, 64, 96, 128, 144] if name == "adaptive full" else planned
    for n_before, choice in enumerate(choices):
        with monkeypatch.context() as patch:
            patch.setattr("dpglm.privacy.vault.secret_choice", lambda bound, c=choice: c % bound)
            with record() as recorded, pytest.raises(RuntimeError, match="kernels") as info:
                clone(model).fit(*table())
        assert len(recorded.releases) == n_before
        assert bool(recorded.releases) == hasattr(info.value, "privacy_ledger")
    assert name != "adaptive full" or {"line_losses", "gradient_sum"} < set(compared)


def test_of_an_adaptive_fit_any_of_127_releases_may_be(monkeypatch):
    monkeypatch.setattr("dpglm.privacy.vault.secret_choice", lambda bound: bound - 1)
    sums, budget = Objective(np.eye(4), np.ones(4), Logistic()), PrivacyBudget(1.0, 1e-6)
    assert Vault(sums, [(FilterEvent(mu=0.1), 1)], budget, entropy_source(0))._to_compare == 126


@pytest.mark.parametrize("name", sorted({*EVERY} - ONE_RELEASE - {"genetic"}))
def test_every_fit_is_compared_once(name, monkeypatch):
    compared = Compared(monkeypatch)
    X, y = table()
    made(name, "zero_out").fit(X, y + (name == "gamma"))
    assert len(compared) == 1


def test_a_fit_that_ends_early_is_compared_at_its_end(monkeypatch):
    compared = Compared(monkeypatch, 1.0)
    for _ in range(8):
        with pytest.raises(RuntimeError, match="kernels"):
            planted(asking((0, 1)))(**PLAIN).fit(*table())
    assert len(compared) == 8


# --- A vault that refused or failed ---


@pytest.mark.parametrize("name", EVERY)
def test_no_solver_can_go_on_once_a_release_has_failed(name):
    """Whatever it catches: there is no result, and no ledger as if all were well."""

    class Stubborn(type(EVERY[name])):
        def _train(self, vault, plan, on_step):
            with contextlib.suppress(MemoryError, BudgetExceededError):
                return super()._train(vault, plan, on_step)
            shape = self._space(plan).shape
            return SimpleNamespace(coef=np.zeros(shape), n_iter=1)

    model = Stubborn(**made(name, "zero_out").get_params(deep=False))
    X, y = table()
    # What a target needs comes before the solver is called.
    for number in (4, 5, 6) if name in REGRESSORS else (1, 2, 3):
        failing = Failing(MemoryError(), number)
        with on_tape(failing), pytest.raises(RuntimeError, match="refused or failed") as info:
            model.fit(X, y + (name == "gamma"))
        assert len(failing.events) == number - 1
        assert not [name for name in vars(model) if name.endswith("_") and name[0] != "_"]
        assert failing.events == [] or info.value.privacy_ledger
        if name in ONE_RELEASE:
            break


@pytest.mark.parametrize("change", ["scale_columns", "change_basis", "weigh_rows"])
def test_nor_once_rows_could_not_be_changed(change, monkeypatch):
    method = {"scale_columns": "scaled", "change_basis": "in_basis", "weigh_rows": "weighed"}
    monkeypatch.setattr(Objective, method[change], lambda *_: 1 / 0)

    def stubborn(vault, plan):
        argument = 1.0 if change == "weigh_rows" else np.ones(N_FEATURES + 1)
        with pytest.raises(ZeroDivisionError):
            getattr(vault, change)(argument)

    with pytest.raises(RuntimeError, match="refused or failed"):
        planted(stubborn)(**PLAIN).fit(*table())


@st.composite
def hard_problems(draw, group_sizes):
    """Rows from zero to overflow, of persons too, on the corner of the hinge, in any basis."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    single = draw(st.booleans())
    largest = 38 if single else 308
    X = rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0], size=(n, d))
    kind = draw(st.sampled_from(["whole", "normal", "scaled", "extreme"]))
    if kind == "normal":
        X = rng.normal(size=(n, d))
    elif kind == "scaled":
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-largest, largest, size=(n, 1))
    elif kind == "extreme":
        values = [0.0, 5e-324, 1e-200, 1e-160, 1.0, 1e100, 1e149, 1e151, 1e154, 1e200, 1e308]
        X = rng.choice(values, size=(n, d)) * rng.choice([-1, 1], size=(n, d))
    if single:
        X = np.clip(X, -3e38, 3e38).astype(np.float32)
    labelled = [Logistic(), Hinge(), SmoothedHinge(0.1), Softmax()]
    loss = draw(st.sampled_from([*labelled, Squared(), Poisson(), Gamma()]))
    numeric = isinstance(loss, NumericLoss)
    one = numeric or (not isinstance(loss, Softmax) and draw(st.booleans()))
    n_outputs = 1 if one else draw(st.integers(2, 4))
    target = rng.choice([-1.0, 1.0], n) if one else rng.integers(0, n_outputs, n)
    if numeric:
        target = rng.choice([0.0, 5e-324, 1e-200, 0.3, 1.0, 1e14, 1e300], n)
    weights = draw(st.sampled_from([None, 0.1, 3.0, 1e12, 1e300]))
    store = draw(st.sampled_from([np.asarray, np.asfortranarray, csr_array]))
    options = {
        "n_outputs": n_outputs,
        "fit_intercept": draw(st.booleans()),
        "class_weight": None if weights is None else weights ** rng.random(max(2, n_outputs)),
    }
    if numeric:
        options["row_weights"] = draw(st.sampled_from([0.0, 1e-320, 1.0])) ** rng.random(n)
    elif most := draw(st.sampled_from(group_sizes)):
        groups = rng.permutation(n) // most
        options |= {"groups": groups, "max_contributions": most, "max_weight": 1e6}
        options["row_weights"] = draw(st.sampled_from([0.0, 1e-200, 1e6])) ** rng.random(n)
    objective = Objective(store(X), target, loss, **options)
    if numeric:
        change = draw(st.sampled_from([(0.0, 1.0), (0.3, 0.1), (-1e90, 1e90), (1e14, 1e-20)]))
        objective = objective.with_target(np.array(change))
    length = objective.coef_shape[0]
    if draw(st.booleans()):
        scales = 2.0 ** rng.integers(-30, 30, length)
        scales[d:] = 1.0
        objective = objective.scaled(scales)
    basis = draw(st.sampled_from(["none", "scales", "full", "narrow"]))
    if basis == "scales":
        objective = objective.in_basis(10.0 ** rng.uniform(-6, 6, length))
    elif basis == "full":
        objective = objective.in_basis(rng.normal(size=(length, length)))
    elif basis == "narrow":
        objective = objective.in_basis(rng.normal(size=(length, max(1, length - 1))))
    if draw(st.booleans()):
        objective = objective.weighed(draw(st.sampled_from([1e-3, 1.0, 1e6])))
    whole = rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0], size=objective.coef_shape)
    coef = draw(
        st.sampled_from([whole, 0 * whole, rng.normal(size=whole.shape), 1e-300 * whole])
    ) * draw(st.sampled_from([1.0, 1.0, 1e-6, 1e6, 1e150, 1e300]))
    clip = draw(st.sampled_from([1e-100, 1e-6, 0.3, 1.0, 1e3, 1e100]))
    return objective, coef, clip, rng.random(objective.n_records) < 0.6


def questions(objective, coef, clip, rng):
    yield methodcaller("gradient_sum", coef, clip)
    yield methodcaller("label_counts")
    if objective._basis is None and objective._rows.scales is None:
        yield methodcaller("norm_histogram", NORM_BIN_EDGES)
        yield methodcaller("magnitude_histogram", MAGNITUDE_POWERS)
    if objective._basis is None:
        yield methodcaller("second_moment", clip, True)
    if objective._basis is None or objective._basis.ndim == 2:
        yield methodcaller("second_moment", clip, False)
        if hasattr(objective.loss, "second_derivative") and coef.ndim == 1:
            yield methodcaller("second_moment", clip, False, coef)
    if isinstance(objective.loss, NumericLoss):
        yield methodcaller("target_histogram", MAGNITUDE_POWERS)
        yield methodcaller("target_sum", clip)
        return
    direction = rng.normal(size=coef.shape)
    direction /= np.linalg.norm(direction)
    for longest in (1e-6, 1.0, 1e6):
        line = coef, direction, np.linspace(0.0, longest, 5)
        yield methodcaller("line_losses", *line, loss_clip=clip)
        if coef.ndim == 1:
            yield methodcaller("line_losses", *line, clip=clip)


def hold_kernels(problem):
    """A failure would tell of the data, and must not happen."""
    objective, coef, clip, some = problem
    with np.errstate(all="ignore"):
        for ask in questions(objective, coef, clip, np.random.default_rng(0)):
            assert objective.confirm(ask) == 0.0, ask
            if some.any():
                assert objective.confirm(ask, np.flatnonzero(some)) == 0.0, ask


HARD = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@settings(HARD, max_examples=60)
@given(hard_problems([0]))
def test_right_kernels_pass_on_all_data(problem):
    hold_kernels(problem)


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson(), Gamma()])
def test_right_kernels_pass_on_a_row_whose_norm_has_no_inverse(loss):
    X = np.array([[5e-324, 0.0], [1.0, 2.0]])
    objective = Objective(X, np.ones(2), loss, fit_intercept=False)
    hold_kernels((objective, np.ones(2), 3.0, np.array([True, False])))


@pytest.mark.slow
@HARD
@given(hard_problems([0, 2, 12]))
def test_and_with_weights_and_groups(problem):
    hold_kernels(problem)


@pytest.mark.parametrize("loss", [Hinge(), Softmax()])
def test_plain_arithmetic_rounds_a_row_by_itself_wherever_it_stands(loss, monkeypatch):
    """At a kink the slope follows from the last bit: one row less, and all others might move."""
    monkeypatch.setenv("DPGLM_KERNELS", "numpy")
    rng = np.random.default_rng(0)
    for d in np.repeat(range(2, 12), 8):
        row = rng.normal(size=d)
        coef = rng.normal(size=(d, 3) if isinstance(loss, Softmax) else d)
        if isinstance(loss, Hinge):
            coef /= row @ coef
        else:
            row = row * 1e17
            coef -= np.outer(row, row @ coef) / (row @ row)
        for n in range(2, 9):
            y = np.ones(n, dtype=int)
            options = {"fit_intercept": False, "n_outputs": coef[0].size}
            all_of_them = Objective(np.tile(row, (n, 1)), y, loss, **options)
            others = Objective(np.tile(row, (n - 1, 1)), y[1:], loss, **options)
            moved = all_of_them.gradient_sum(coef, 1.0) - others.gradient_sum(coef, 1.0)
            assert np.linalg.norm(moved) <= 1 + all_of_them.rounding_slack(n)


@pytest.mark.parametrize("name", ["plain", "full", "batches", "adaptive", "linear", "poisson"])
@seeded_noise(0)
def test_plain_arithmetic_gives_the_same_coefficients_to_rounding(name, monkeypatch):
    n_classes = 2 if name == "plain" else 3
    (X, y), model = table(n_classes), made(name, "zero_out", n_classes)
    compiled = clone(model).fit(X, y).coef_
    monkeypatch.setenv("DPGLM_KERNELS", "numpy")
    assert clone(model).fit(X, y).coef_ == pytest.approx(compiled, rel=1e-6, abs=1e-7)
