"""What an attacker can tell: against scipy, other oracles, and simulated best attacks."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from dpglm.privacy.attacks import attack_power, attack_success, posterior
from dpglm.privacy.events import (
    ChoiceEvent,
    FilterEvent,
    GaussianEvent,
    PureEvent,
    SampledGaussianEvent,
)
from dpglm.privacy.ledger import PrivacyLedger

PRIORS = 0.5, 0.1, 0.01, 0.9
RATES = 1e-4, 0.01, 0.1, 0.5


def ledger(*events):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6)


def of_mu(mu):
    return ledger(*[GaussianEvent(2 / mu)] * 4)


@pytest.mark.parametrize("mu", [0.02, 0.3, 1.0, 4.0])
def test_a_gaussian_trade_off_gives_the_power_and_success_of_the_likelihood_ratio_test(mu):
    """The best guess between N(0, 1) and N(mu, 1), its threshold found by scipy."""
    for prior in PRIORS:

        def wrong(threshold, prior=prior):
            return prior * norm.cdf(threshold - mu) + (1 - prior) * norm.sf(threshold)

        grid = np.linspace(-60 / mu, 60 / mu, 2001)
        start = grid[np.argmin(wrong(grid))]
        step = 60 / mu / 1000
        best = minimize_scalar(
            wrong, bounds=(start - step, start + step), method="bounded", options={"xatol": 1e-10}
        )
        assert attack_success(of_mu(mu), prior) == pytest.approx(1 - best.fun, abs=1e-9)
    assert attack_success(of_mu(mu)) == pytest.approx(norm.cdf(mu / 2), rel=1e-12)
    for rate in RATES:
        power = norm.sf(norm.isf(rate) - mu)
        assert attack_power(of_mu(mu), rate) == pytest.approx(power, rel=1e-12)
        expected = 0.1 * power / (0.1 * power + 0.9 * rate)
        assert posterior(of_mu(mu), 0.1, rate) == pytest.approx(expected, rel=1e-12)


def test_a_simulated_attack_does_as_well_as_is_stated_and_no_better():
    mu, n = 1.5, 400_000
    rng = np.random.default_rng(0)
    there = rng.random(n) < 0.2
    seen = mu * there + rng.standard_normal(n)
    says = seen > mu / 2 + np.log(0.8 / 0.2) / mu
    stated = attack_success(of_mu(mu), 0.2)
    assert (says == there).mean() == pytest.approx(stated, abs=4 * np.sqrt(0.25 / n))
    assert there[seen > norm.isf(0.05)].mean() == pytest.approx(
        posterior(of_mu(mu), 0.2, 0.05), abs=0.01
    )


def test_without_a_gaussian_trade_off_the_bounds_of_all_epsilons_are_used():
    pytest.importorskip("dp_accounting")
    sampled = ledger(*[SampledGaussianEvent(1.0, 8.0)] * 16)  # all records: a Gaussian of mu = 1/2
    assert attack_success(sampled) == pytest.approx(norm.cdf(0.25), abs=1e-4)
    for rate in RATES:
        exact = norm.sf(norm.isf(rate) - 0.5)
        assert exact <= attack_power(sampled, rate) < 1.02 * exact + 1e-3
    thinned = ledger(*[SampledGaussianEvent(0.1, 8.0)] * 16)
    assert attack_power(thinned, 0.01) < attack_power(sampled, 0.01)


def test_no_noise_protects_from_nobody_and_no_number_beyond_0_and_1_is_taken():
    bare = ledger(GaussianEvent(0.0))
    assert attack_success(bare, 0.1) == attack_power(bare, 0.01) == 1.0
    assert attack_success(ledger(FilterEvent(mu=0.5))) == pytest.approx(norm.cdf(0.25), rel=1e-12)
    assert 0.01 < attack_power(ledger(ChoiceEvent(1.0)), 0.01) < 0.05
    # The exact trade-offs of pure privacy, and of nothing.
    pure, rates = ledger(PureEvent(1.0)), np.array([0.01, 0.5])
    assert attack_power(pure, rates) == pytest.approx([0.01 * np.e, 1 - 0.5 / np.e], rel=1e-12)
    assert attack_power(replace(pure, seeded=True), rates).tolist() == [1.0, 1.0]
    for value in (0.0, 1.0, -0.5, np.nan):
        with pytest.raises(ValueError, match="must be a number above 0 and below 1"):
            attack_success(bare, value)
        with pytest.raises(ValueError, match="false_positive_rate="):
            attack_power(bare, value)
