"""The calculator: the fifth of five numbers, and how many iterations are worth their noise."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.calculator import PrivacyCalculator, expected_accuracy
from dpglm.privacy.events import SampledGaussianEvent
from dpglm.privacy.ledger import PrivacyLedger

pytest.importorskip("dp_accounting")

CALCULATOR = PrivacyCalculator()
epsilons = st.floats(-3, 1.5).map(lambda x: 10.0**x)
deltas = st.floats(-12, -2).map(lambda x: 10.0**x)
counts = st.integers(1, 10**6)
SAMPLED = [
    {"delta": 1e-5, "noise_multiplier": 2.5, "n_iter": 1000, "sampling_rate": 0.01},
    {"delta": 1e-6, "noise_multiplier": 4.0, "n_iter": 300, "sampling_rate": 0.2},
]


# The number that a method finds, where it is not called like the method.
METHODS = {"max_iter": "n_iter"}


def without(run, name):
    return {key: value for key, value in run.items() if key != name}


@settings(max_examples=40, deadline=None)
@given(epsilon=epsilons, delta=deltas, n_iter=counts)
def test_full_batch_answers_are_inverses_of_one_another(epsilon, delta, n_iter):
    budget = {"epsilon": epsilon, "delta": delta}
    sigma = CALCULATOR.noise_multiplier(**budget, n_iter=n_iter)
    run = {"noise_multiplier": sigma, "n_iter": n_iter}
    assert CALCULATOR.epsilon(delta=delta, **run) <= epsilon
    assert CALCULATOR.epsilon(delta=delta, **run) == pytest.approx(epsilon, rel=1e-6)
    assert CALCULATOR.delta(epsilon=epsilon, **run) <= delta
    assert CALCULATOR.delta(epsilon=epsilon, **run) == pytest.approx(delta, rel=1e-4)
    assert CALCULATOR.max_iter(**budget, noise_multiplier=sigma) == n_iter
    assert CALCULATOR.sampling_rate(**budget, **run) == 1.0


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_noise_that_is_too_small_for_one_iteration_affords_none(rate):
    few = {"epsilon": 0.1, "delta": 1e-6, "noise_multiplier": 1.0, "sampling_rate": rate}
    assert CALCULATOR.max_iter(**few) == 0


@pytest.mark.parametrize("run", [pytest.param(SAMPLED[0], marks=pytest.mark.slow), SAMPLED[1]])
def test_sampled_answers_are_inverses_of_one_another(run):
    epsilon = CALCULATOR.epsilon(**run)
    delta = CALCULATOR.delta(epsilon=epsilon, **without(run, "delta"))
    assert delta == pytest.approx(run["delta"], rel=1e-6)

    sigma = CALCULATOR.noise_multiplier(epsilon=epsilon, **without(run, "noise_multiplier"))
    assert sigma == pytest.approx(run["noise_multiplier"], rel=2e-3)
    assert 0.999 * epsilon <= CALCULATOR.epsilon(**{**run, "noise_multiplier": sigma}) <= epsilon

    assert CALCULATOR.max_iter(epsilon=epsilon, **without(run, "n_iter")) == run["n_iter"]

    rate = CALCULATOR.sampling_rate(epsilon=epsilon, **without(run, "sampling_rate"))
    assert rate == pytest.approx(run["sampling_rate"], rel=1e-5)
    assert CALCULATOR.epsilon(**{**run, "sampling_rate": rate}) <= epsilon


def test_the_relation_decides_on_sampling_alone():
    full = {"epsilon": 1.0, "delta": 1e-6, "n_iter": 50}
    replace, add = (PrivacyCalculator(r) for r in ("replace_one", "add_or_remove_one"))
    sigma = CALCULATOR.noise_multiplier(**full)
    assert replace.noise_multiplier(**full) == add.noise_multiplier(**full) == sigma
    assert replace.sampling_rate(**full, noise_multiplier=2 * sigma) == 1.0
    assert add.epsilon(**SAMPLED[0]) == CALCULATOR.epsilon(**SAMPLED[0])
    # At the same noise over a sensitivity of twice the clip, hiding a change is cheaper.
    assert replace.epsilon(**SAMPLED[0]) < CALCULATOR.epsilon(**SAMPLED[0])
    run = {**SAMPLED[0], "noise_multiplier": SAMPLED[0]["noise_multiplier"] / 2}
    batch = run["sampling_rate"], run["noise_multiplier"], "poisson_replace_one"
    events = ((SampledGaussianEvent(*batch), run["n_iter"]),)
    ledger = PrivacyLedger(events, "replace_one", run["delta"])
    assert replace.epsilon(**run) == ledger.epsilon() > CALCULATOR.epsilon(**SAMPLED[0])
    assert replace.max_iter(epsilon=ledger.epsilon(), **without(run, "n_iter")) == run["n_iter"]
    with pytest.raises(ValueError, match="neighboring_relation='swap' is unknown"):
        PrivacyCalculator("swap")


GOOD = {**without(SAMPLED[0], "sampling_rate"), "epsilon": 1.0, "sampling_rate": 1.0}


@pytest.mark.parametrize(
    ("name", "rule", "values"),
    [
        ("epsilon", "a number above 0 and finite", [0.0, math.inf, "1"]),
        ("delta", "above 0 and below 1", [0.0, 1.0, math.nan]),
        ("noise_multiplier", "a number above 0 and finite", [0.0, True]),
        ("noise_multiplier", "of at least 1e-100 and at most 1e.100", [1e200]),
        ("n_iter", "a whole number, 1 or more", [0, 1.5, True]),
        ("sampling_rate", "above 0 and at most 1", [0.0, 1.1]),
    ],
)
def test_bad_numbers_are_refused_by_name(name, rule, values):
    for method in ("epsilon", "delta", "noise_multiplier", "max_iter"):
        unknown = METHODS.get(method, method)
        for value in values * (name != unknown):
            with pytest.raises(ValueError, match=f"^{name}=.*{rule}"):
                getattr(CALCULATOR, method)(**without({**GOOD, name: value}, unknown))


def test_only_sampling_needs_dp_accounting(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    run = {"epsilon": 1.01, "delta": 1e-6, "n_iter": 101}
    sigma = CALCULATOR.noise_multiplier(**run)
    assert CALCULATOR.max_iter(**without(run, "n_iter"), noise_multiplier=sigma) == 101
    with pytest.raises(ImportError, match=r'pip install "dpglm\[accounting\]"'):
        CALCULATOR.noise_multiplier(**run, sampling_rate=0.1)


def expected(
    Model=DPLogisticRegression,
    n_samples=10_000,
    n_features=20,
    accuracy=0.82,
    majority=0.6,
    **given,
):
    model = Model(**{"epsilon": 0.5, **given})
    size = {"n_samples": n_samples, "n_features": n_features}
    return expected_accuracy(model, **size, accuracy=accuracy, majority=majority).private


def test_the_expected_accuracy_grows_with_the_budget_and_the_records_up_to_the_guess():
    for found in (
        [expected(epsilon=epsilon) for epsilon in (0.01, 0.1, 0.3, 1.0, math.inf)],
        [expected(n_samples=n) for n in (300, 3000, 10_000, 10**6)],
        [expected(n_features=d) for d in (300, 100, 20, 5)],
    ):
        assert found == sorted(found) and found[0] >= 0.6 and 0.815 < found[-1] <= 0.82 + 1e-9
    # As much noise on a mean gradient, as much accuracy.
    halves = [expected(neighboring_relation=r, n_samples=n) for r, n in
              (("zero_out", 4000), ("replace_one", 8000))]  # fmt: skip
    assert halves[0] == pytest.approx(halves[1], abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "n_samples", "shift", "given"),
    [
        (0.1, 2000, 0.0, {}),
        (0.2, 2000, 0.0, {"step_schedule": 7.0, "clip_schedule": 0.8, "max_iter": 15}),
        (0.1, 2000, 1.0, {"step_schedule": 2.0, "clip_schedule": 0.1, "max_iter": 8}),
    ],
)
def test_the_expected_accuracy_is_that_of_descents_in_white_columns(
    epsilon, n_samples, shift, given
):
    """The oracle runs the plan in all columns, clips row by row and draws the noise."""
    rng, d = np.random.default_rng(0), 13
    plan = DPLogisticRegression(epsilon=epsilon, **given).plan(n_samples, d - 1)
    white = plan.renewed(effective_dimension=d)
    X = rng.normal(size=(3000, d))
    # The last column is the intercept.
    X[:, -1] = 1.0
    odds = shift + 2.0 * X[:, 0]
    found = []
    for _ in range(20):
        coef = velocity = average = np.zeros(d)
        for t in range(white.n_iter):
            total = np.zeros(d)
            for label, share in ((1, expit(odds)), (0, expit(-odds))):
                gradient = (expit(X @ coef) - label)[:, np.newaxis] * X
                length = np.linalg.norm(gradient, axis=1)
                total += (share * np.minimum(1, white.clip[t] / length)) @ gradient / len(X)
            total += rng.normal(size=d) * white.metadata.noise_std[t] / n_samples
            direction, velocity = white.momentum.direction(total, velocity, t + 1)
            coef = coef - white.step[t] * direction
            average = average + white.averaging[t] * coef
        found.append(np.mean(expit(np.where(X @ average > 0, odds, -odds))))
    majority = np.mean(expit(odds))
    guess = {"accuracy": np.mean(expit(abs(odds))), "majority": max(majority, 1 - majority)}
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert error < 0.005
    # The rows of the oracle have 3,000 lengths; those of the theory are all alike.
    answer = expected(epsilon=epsilon, n_samples=n_samples, n_features=d - 1, **guess, **given)
    assert answer == pytest.approx(np.mean(found), abs=3 * error + 0.003)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preconditioner": None}, "of DPLogisticRegression with a full"),
        ({"classes": range(3)}, "two classes only"),
        ({"Model": DPLinearSVM}, "simulate others"),
        ({"n_features": None}, "n_features=None: give the number of columns, or public rows"),
        ({"accuracy": 0.6, "majority": 0.7}, "above majority=0.7, which is 0.5 or more"),
        ({"accuracy": 1.0}, "accuracy=1.0 must be below 1"),
        ({"majority": 0.4}, "majority=0.4"),
    ],
)
def test_what_has_no_expected_accuracy_is_refused_in_words(given, message):
    with pytest.raises(ValueError, match=message):
        expected(**given)
