"""The calculator: any four of five numbers give the fifth, on the private side."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpglm.calculator import PrivacyCalculator

dp_accounting = pytest.importorskip("dp_accounting")

CALCULATOR = PrivacyCalculator()
epsilons = st.floats(-3, 1.5).map(lambda x: 10.0**x)
deltas = st.floats(-12, -2).map(lambda x: 10.0**x)
counts = st.integers(1, 10**6)
SAMPLED = [
    {"delta": 1e-5, "noise_multiplier": 2.5, "n_iter": 1000, "sampling_rate": 0.01},
    {"delta": 1e-6, "noise_multiplier": 4.0, "n_iter": 300, "sampling_rate": 0.2},
    {"delta": 1e-7, "noise_multiplier": 20.0, "n_iter": 2000, "sampling_rate": 0.1},
]


# The number that a method finds, where it is not called like the method.
METHODS = {"max_iter": "n_iter"}


def without(run, name):
    return {key: value for key, value in run.items() if key != name}


def oracle(*, delta, noise_multiplier, n_iter, sampling_rate=1.0):
    """Epsilon by dp-accounting's own accountant."""
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    return accountant.compose(event, n_iter).get_epsilon(delta)


@pytest.mark.parametrize("run", SAMPLED)
def test_epsilon_matches_dp_accounting_with_and_without_sampling(run):
    assert CALCULATOR.epsilon(**run) == pytest.approx(oracle(**run), rel=0.01)
    full = {**run, "sampling_rate": 1.0, "noise_multiplier": 10 * run["noise_multiplier"]}
    assert CALCULATOR.epsilon(**full) == pytest.approx(oracle(**full), rel=1e-3)


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


@settings(max_examples=40, deadline=None)
@given(epsilon=epsilons, delta=deltas, sigma=st.floats(0.1, 1e4))
def test_max_iter_is_affordable_and_one_more_is_not(epsilon, delta, sigma):
    run = {"delta": delta, "noise_multiplier": sigma}
    n_iter = CALCULATOR.max_iter(epsilon=epsilon, **run)
    if n_iter:
        assert CALCULATOR.epsilon(n_iter=n_iter, **run) <= epsilon
    # Of very many iterations one more is lost in rounding.
    assert CALCULATOR.epsilon(n_iter=n_iter + 1, **run) > epsilon * (1 - 1e-9)


def test_sampled_max_iter_is_affordable_and_one_more_is_not():
    run = {"delta": 1e-6, "noise_multiplier": 6.0, "sampling_rate": 0.3}
    n_iter = CALCULATOR.max_iter(epsilon=1.0, **run)
    cost, next_cost = (CALCULATOR.epsilon(n_iter=n, **run) for n in (n_iter, n_iter + 1))
    assert n_iter > 10 and cost <= 1.0 < next_cost
    for rate in (1.0, 0.5):
        # The noise is too small for one.
        few = {"epsilon": 0.1, "delta": 1e-6, "noise_multiplier": 1.0, "sampling_rate": rate}
        assert CALCULATOR.max_iter(**few) == 0


@pytest.mark.parametrize("run", SAMPLED[:2])
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


@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_epsilon_grows_with_use_and_falls_with_noise(rate):
    run = {"delta": 1e-6, "noise_multiplier": 5.0, "n_iter": 100, "sampling_rate": rate}
    base = CALCULATOR.epsilon(**run)
    assert CALCULATOR.epsilon(**{**run, "n_iter": 101}) > base
    assert CALCULATOR.epsilon(**{**run, "noise_multiplier": 5.1}) < base
    assert CALCULATOR.epsilon(**{**run, "delta": 2e-6}) < base
    assert CALCULATOR.epsilon(**{**run, "sampling_rate": rate * 0.99}) < base


def test_the_relation_decides_on_sampling_alone():
    full = {"epsilon": 1.0, "delta": 1e-6, "n_iter": 50}
    replace, add = (PrivacyCalculator(r) for r in ("replace_one", "add_or_remove_one"))
    sigma = CALCULATOR.noise_multiplier(**full)
    assert replace.noise_multiplier(**full) == add.noise_multiplier(**full) == sigma
    assert replace.sampling_rate(**full, noise_multiplier=2 * sigma) == 1.0
    assert add.epsilon(**SAMPLED[0]) == CALCULATOR.epsilon(**SAMPLED[0])
    for method in ("epsilon", "delta", "noise_multiplier", "max_iter"):
        run = without({**SAMPLED[0], "epsilon": 1.0}, METHODS.get(method, method))
        with pytest.raises(ValueError, match=r"Mini-batches .*'replace_one'"):
            getattr(replace, method)(**run)
    with pytest.raises(ValueError, match=r"Mini-batches .*'replace_one'"):
        replace.sampling_rate(**full, noise_multiplier=sigma / 2)
    with pytest.raises(ValueError, match="neighboring_relation='swap' is unknown"):
        PrivacyCalculator("swap")


GOOD = {**without(SAMPLED[0], "sampling_rate"), "epsilon": 1.0, "sampling_rate": 1.0}


@pytest.mark.parametrize(
    ("name", "rule", "values"),
    [
        ("epsilon", "a finite number above 0", [0.0, math.inf, "1"]),
        ("delta", "above 0 and below 1", [0.0, 1.0, math.nan]),
        ("noise_multiplier", "a finite number above 0", [0.0, True]),
        ("noise_multiplier", "from 1e-100 to 1e100", [1e200]),
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
