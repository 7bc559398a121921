"""Privacy conversions: exact values, the private side of every rounding, edge cases."""

import inspect
import math
import random

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf, erfinv

from dpglm.privacy.events import (
    FilterEvent,
    GaussianEvent,
    bun_steinke_rho,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from dpglm.privacy.gaussian import composed_gdp_delta, gdp_delta, gdp_epsilon, gdp_log_delta, gdp_mu

INF = math.inf
epsilons = st.floats(-9, 1.6).map(lambda x: 10.0**x) | st.just(0.0)
deltas = st.floats(-15, -0.3).map(lambda x: 10.0**x)
mus = st.floats(-9, 2).map(lambda x: 10.0**x)


def exact_log_delta(mu, epsilon):
    """log(Phi(a) - e^epsilon Phi(b)) with enough digits that nothing cancels."""
    with mpmath.workdps(120):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.erfc(-(mu / 2 - epsilon / mu) / mpmath.sqrt(2)) / 2
        lower = mpmath.erfc(-(-mu / 2 - epsilon / mu) / mpmath.sqrt(2)) / 2
        return mpmath.log(upper - mpmath.exp(epsilon) * lower)


def test_zcdp_matches_the_vectors(vectors):
    for row in vectors("conversions", "zcdp_eps"):
        rho, delta = row["rho"], row["delta"]
        assert zcdp_epsilon(rho, delta) == pytest.approx(row["eps_cks"], rel=1e-9)
        exact = row["eps_exact_if_gaussian"]
        assert gdp_epsilon(math.sqrt(2 * rho), delta) == pytest.approx(exact, rel=1e-9)
    for row in vectors("conversions", "zcdp_rho"):
        epsilon, delta = row["eps"], row["delta"]
        assert zcdp_rho(epsilon, delta) == pytest.approx(row["rho_cks"], rel=1e-9)
        assert bun_steinke_rho(epsilon, delta) == pytest.approx(row["rho_bun_steinke"], rel=1e-9)
    for row in vectors("conversions", "cks_delta"):
        assert zcdp_delta(row["rho"], row["eps"]) == pytest.approx(row["delta"], rel=1e-11)


def test_log_delta_is_accurate_from_the_centre_to_far_beyond_underflow():
    draw = random.Random(0)
    far = 0
    for _ in range(400):
        mu = 10 ** draw.uniform(-9, 2)
        epsilon = draw.uniform(0, 40) if draw.random() < 0.3 else mu * draw.uniform(0, 12 + mu)
        exact = exact_log_delta(mu, epsilon)
        assert abs(gdp_log_delta(mu, epsilon) - exact) < 2e-13 + 1e-15 * abs(exact)
        far += exact < -1e4
    assert 50 < far < 200


def test_conversions_are_private_in_exact_arithmetic_and_nearly_tight():
    draw = random.Random(1)
    for _ in range(60):
        epsilon, delta = 10 ** draw.uniform(-9, 1.5), 10 ** draw.uniform(-15, -1)
        mu = gdp_mu(epsilon, delta)
        assert exact_log_delta(mu, epsilon) <= mpmath.log(delta)
        assert exact_log_delta(mu * (1 + 1e-9), epsilon) > mpmath.log(delta)
        mu, delta = 10 ** draw.uniform(-3, 1), 10 ** draw.uniform(-12, -4)
        epsilon = gdp_epsilon(mu, delta)
        if epsilon > mu:
            assert exact_log_delta(mu, epsilon) <= mpmath.log(delta)
            assert exact_log_delta(mu, epsilon * (1 - 1e-11)) > mpmath.log(delta)


def test_epsilon_zero_is_the_total_variation_distance():
    for mu in np.logspace(-9, 2, 40):
        assert gdp_delta(mu, 0.0) == pytest.approx(erf(mu / math.sqrt(8)), rel=1e-14)
    for delta in np.logspace(-15, -0.1, 40):
        assert gdp_mu(0.0, delta) == pytest.approx(math.sqrt(8) * erfinv(delta), rel=2e-10)


@settings(max_examples=60, deadline=None)
@given(epsilon=epsilons, delta=deltas)
def test_calibration_never_exceeds_the_budget_and_wastes_nothing(epsilon, delta):
    mu, rho = gdp_mu(epsilon, delta), zcdp_rho(epsilon, delta)
    assert gdp_delta(mu, epsilon) <= delta < gdp_delta(mu * (1 + 1e-9), epsilon)
    assert zcdp_delta(rho, epsilon) <= delta < zcdp_delta(rho * (1 + 1e-9), epsilon)
    assert gdp_epsilon(mu, delta) <= epsilon
    assert zcdp_epsilon(rho, delta) <= epsilon


@settings(max_examples=60, deadline=None)
@given(mu=mus, delta=deltas)
def test_reported_epsilon_covers_the_mechanism_and_is_tight(mu, delta):
    for budget, to_delta, to_epsilon in (
        (mu, gdp_delta, gdp_epsilon),
        (mu * mu / 2, zcdp_delta, zcdp_epsilon),
    ):
        epsilon = to_epsilon(budget, delta)
        assert to_delta(budget, epsilon) <= delta
        # Where epsilon is small beside delta, delta hardly depends on it.
        if epsilon > 1e-3 * delta:
            assert to_delta(budget, epsilon * (1 - 1e-9)) > delta


def test_edge_cases():
    for to_epsilon in (gdp_epsilon, zcdp_epsilon):
        assert to_epsilon(0.0, 1e-6) == to_epsilon(0.0, 0.0) == 0.0
        assert to_epsilon(INF, 1e-6) == to_epsilon(1.0, 0.0) == to_epsilon(INF, 0.0) == INF
    for to_budget in (gdp_mu, zcdp_rho):
        assert to_budget(INF, 1e-6) == to_budget(INF, 0.0) == INF
        assert to_budget(1.0, 0.0) == to_budget(0.0, 0.0) == 0.0
    for to_delta in (gdp_delta, zcdp_delta):
        assert to_delta(0.0, 0.0) == to_delta(0.0, 1.0) == to_delta(1.0, INF) == 0.0
        assert to_delta(INF, INF) == 0.0
        assert to_delta(INF, 0.0) == to_delta(INF, 1.0) == to_delta(1e6, 1.0) == 1.0
    assert gdp_log_delta(0.0, 1.0) == gdp_log_delta(1e-160, 1.0) == -INF
    assert gdp_log_delta(INF, 1.0) == 0.0


SCALES = [10.0**exponent for exponent in range(-300, 301, 150)]
LARGE = [1e200, 1e305, 1.7e308]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilons", "budgets", "deltas"),
    [
        (SCALES, [math.sqrt(scale) for scale in SCALES], [1e-300, 1e-40, 0.999999]),
        (LARGE, LARGE, [1e-12, 0.1, 0.9]),
        ([0.0, 1e-300, 1.0], [1e-320, 1e-200, 1.0], [5e-324, 1e-310]),
        ([0.0, 1e-9, 1e-3, 1.0, 1e5], [], [1 - 2.0**-bits for bits in (30, 50, 52, 53)]),
    ],
    ids=["absurd scales", "the largest floats", "the least delta", "a delta of nearly 1"],
)
def test_whatever_rounding_decides_is_private(epsilons, budgets, deltas):
    for delta in deltas:
        for epsilon in epsilons:
            assert gdp_delta(gdp_mu(epsilon, delta), epsilon) <= delta
            assert zcdp_delta(zcdp_rho(epsilon, delta), epsilon) <= delta
        for budget in budgets:
            assert gdp_delta(budget, gdp_epsilon(budget, delta)) <= delta
            assert zcdp_delta(budget, zcdp_epsilon(budget, delta)) <= delta
            assert budget not in LARGE or gdp_epsilon(budget, delta) == INF


def test_delta_just_below_the_total_variation_distance_is_still_covered():
    for budget in np.logspace(-9, 0.5, 40):
        for to_epsilon, to_delta in ((gdp_epsilon, gdp_delta), (zcdp_epsilon, zcdp_delta)):
            delta = to_delta(budget, 0.0)
            for _ in range(4):
                epsilon = to_epsilon(budget, delta)
                assert to_delta(budget, epsilon) <= delta and epsilon < 1e-9
                delta = math.nextafter(delta, 0.0)


@pytest.mark.parametrize("rho", [1e-290, 1e-305, 5e-324])
def test_a_tiny_rho_costs_what_the_total_variation_distance_is(rho):
    assert math.sqrt(rho / 2) < zcdp_delta(rho, 0.0) < 1e-140
    assert zcdp_delta(rho, 1.0) == 0.0
    assert zcdp_delta(rho, zcdp_epsilon(rho, 1e-290)) <= 1e-290
    assert zcdp_rho(0.0, 1e-290) == 0.0 and zcdp_rho(0.0, 1e-140) ** 0.5 < 2e-140


ARGUMENTS = {**dict.fromkeys(("mu", "rho", "epsilon"), 1e-3), "delta": 1e-6}
CONVERSIONS = [
    gdp_delta, gdp_epsilon, gdp_log_delta, gdp_mu, zcdp_delta, zcdp_epsilon, zcdp_rho
]  # fmt: skip


@pytest.mark.parametrize("function", CONVERSIONS, ids=lambda f: f.__name__)
def test_a_bad_argument_is_named_in_a_sentence(function):
    names = list(inspect.signature(function).parameters)
    good = {argument: ARGUMENTS[argument] for argument in names}
    function(**good)
    for argument in names:
        bad = [math.nan, -1.0, None, "x"]
        bad += [1.0, 2.0] if argument == "delta" else []
        for value in bad:
            with pytest.raises(ValueError, match=f"^{argument}=.*{value}.* must be .*\\.$"):
                function(**{**good, argument: value})


def test_what_has_no_gaussian_trade_off_has_no_gaussian_delta():
    assert composed_gdp_delta([(GaussianEvent(2.0), 4)], 0.5) == gdp_delta(1.0, 0.5)
    assert composed_gdp_delta([(GaussianEvent(2.0), 4), (FilterEvent(rho=0.1), 1)], 0.5) == 1.0
