"""The calculator: the fifth of five numbers."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpglm.calculator import PrivacyCalculator
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
        ("epsilon", "a number (above 0|finite)", [0.0, math.inf, "1"]),
        ("delta", "above 0 and below 1", [0.0, 1.0, math.nan]),
        ("noise_multiplier", "of at least 1e-100 and at most 1e.100", [1e200, True]),
        ("n_iter", "a whole number, 1 or more", [0, 1.5, True]),
        ("sampling_rate", "at least 1e-09 and at most 1", [0.0, 1.1]),
    ],
)
def test_bad_numbers_are_refused_by_name(name, rule, values):
    # A delta at an epsilon of zero, or of infinity, is one.
    for method in ("epsilon", *["delta"] * (name != "epsilon"), "noise_multiplier", "max_iter"):
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
