"""Mini-batch SGD with historical noise, and with the noise that a tight accountant allows."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from dpglm.baselines.sgd import (
    SGDAdvancedComposition,
    SGDMomentsAccountant,
    advanced_composition_multiplier,
    batch_rate,
    fewest_iterations,
)

DELTA = 1e-6


def rdp_epsilon(ledger, delta):
    """Another accountant's epsilon of the sampled releases of a ledger."""
    accountant = RdpAccountant([*np.linspace(1.1, 60, 100), *2 ** np.arange(6, 14.0)])
    for event, count in ledger.events:
        gaussian = GaussianDpEvent(event.noise_multiplier)
        sampled = PoissonSampledDpEvent(event.sampling_rate, gaussian)
        accountant.compose(SelfComposedDpEvent(sampled, count))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("n_iter", [1, 40, 3000])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-8), (1.6, 1e-8), (0.5, 1e-5)])
def test_the_historical_noise_is_that_of_the_theorems(n_iter, epsilon, delta):
    """Step by step: sampling, the classical Gaussian, advanced composition."""
    rate = min(max(0.01, epsilon / math.sqrt(n_iter)), 1.0)
    z = advanced_composition_multiplier(epsilon, delta, rate, n_iter)
    delta_0 = delta / (2 * n_iter)
    one = math.sqrt(2 * math.log(1.25 / delta_0)) / z  # the classical epsilon of one batch
    assert one <= 1
    sampled = math.log1p(rate * math.expm1(one))
    total = sampled * math.sqrt(2 * n_iter * math.log(2 / delta))
    total += n_iter * sampled * math.expm1(sampled)
    assert 0.2 * epsilon < total <= epsilon
    assert n_iter * rate * delta_0 + delta / 2 <= delta


@pytest.mark.parametrize("epsilon", [0.05, 8.0])
@pytest.mark.parametrize(("n_samples", "n_iter"), [(300, 1), (300, 500), (40_000, 150)])
def test_the_historical_noise_costs_less_than_was_asked_for(epsilon, n_samples, n_iter):
    """By privacy loss distributions, and by Renyi divergences as another accountant sees them."""
    model = SGDAdvancedComposition(epsilon=epsilon)
    rate = batch_rate("auto", n_samples)
    n_iter = max(n_iter, fewest_iterations(epsilon, DELTA, rate))
    ledger = model.set_params(max_iter=n_iter).plan(n_samples, 5).ledger
    assert 0 < ledger.epsilon(DELTA) < 0.5 * epsilon
    assert rdp_epsilon(ledger, DELTA) < 0.5 * epsilon


def test_outside_of_their_range_the_theorems_are_not_applied():
    few = fewest_iterations(1.6, 1e-8, 0.005)
    assert advanced_composition_multiplier(1.6, 1e-8, 0.005, few) > 0
    with pytest.raises(ValueError, match=f"Set max_iter to {few} or more"):
        advanced_composition_multiplier(1.6, 1e-8, 0.005, few - 1)
    with pytest.raises(ValueError, match="too large for the composition theorem"):
        advanced_composition_multiplier(40.0, 1e-8, 1.0, 10**6)
    with pytest.raises(ValueError, match="Set max_iter to"):
        SGDAdvancedComposition(epsilon=5.0, max_iter=1).plan(40_000, 5)


@pytest.mark.parametrize(("epsilon", "noise_multiplier"), [(0.1, 4.0), (1.0, 2.0)])
def test_the_run_is_as_long_as_the_budget_allows_at_the_noise(epsilon, noise_multiplier):
    model = SGDMomentsAccountant(epsilon=epsilon, noise_multiplier=noise_multiplier)
    plan = model.plan(20_000, 5)
    assert plan.noise_multiplier[0] == pytest.approx(noise_multiplier, rel=0.15)
    assert plan.ledger.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert plan.ledger.epsilon(DELTA) <= epsilon
    assert 0.999 < rdp_epsilon(plan.ledger, DELTA) / epsilon < 2.5
