"""Mini-batch SGD with historical noise, and with the noise that a tight accountant allows."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from dpglm.baselines import (
    DescentOutputPerturbation,
    ObjectivePerturbation,
    PrivGene,
)
from dpglm.baselines.sgd import (
    SGDAdvancedComposition,
    SGDMomentsAccountant,
    advanced_composition_multiplier,
    batch_rate,
    fewest_iterations,
    moments_batches,
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


PUBLISHED = [
    ObjectivePerturbation, DescentOutputPerturbation, PrivGene,
    SGDMomentsAccountant, SGDAdvancedComposition,
]  # fmt: skip


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("cls", PUBLISHED)
def test_the_published_noise_is_valid_and_more_than_is_needed(cls, relation):
    n_ref = 40_000 if relation == "add_or_remove_one" else None
    model = cls.as_published(neighboring_relation=relation, n_samples_estimate=n_ref)
    if relation == "replace_one" and "SGD" in cls.__name__:
        with pytest.raises(ValueError, match="appears or vanishes"):
            model.plan(40_000, 5)
        return
    for epsilon in (0.05, 0.8, 4.0):
        if cls is SGDMomentsAccountant and epsilon < 0.8:
            with pytest.raises(ValueError, match=r"no less than 0\.5756"):
                model.set_params(epsilon=epsilon).plan(40_000, 5)
            continue
        plan = model.set_params(epsilon=epsilon, delta=1e-8).plan(40_000, 5)
        assert plan.ledger.epsilon(1e-8) <= epsilon


def test_the_published_noise_is_that_of_the_formulas():
    epsilon, delta, n = 0.4, 1e-8, 40_000
    zeta = math.sqrt(2)
    plan = ObjectivePerturbation.as_published(epsilon=epsilon).plan(n, 5)
    sigma = zeta * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
    assert plan.tilt.noise_std(6) == pytest.approx(sigma, rel=1e-6)
    assert plan.penalty == pytest.approx(1e-3 * n + 2 * zeta**2 / 4 / epsilon)
    classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    plan = DescentOutputPerturbation.as_published(epsilon=epsilon).plan(n, 5)
    assert plan.output.noise_multiplier == pytest.approx(classical, rel=1e-6)
    plan = PrivGene.as_published(epsilon=epsilon).plan(n, 5)
    assert plan.n_iter == 20
    # The program draws by exp(e score / (4 s)), at e = sqrt(2 rho / T) and rho by Eq. (5).
    rho = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2
    scale = 4 * plan.mutation[0] / math.sqrt(2 * rho / 20)
    assert plan.mechanism(0).scale == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(("rate", "noise"), [(0.005, 4.0), (0.3, 2.0), (1.0, 5.0)])
def test_the_moments_are_those_of_another_accountant(rate, noise):
    dp = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp").RdpAccountant(range(2, 34))
    rdp.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)))
    moments = np.arange(1, 33) * rdp._rdp
    others = 0.01 * np.arange(1, 33) * np.arange(2, 34) / 2
    admitted = (np.arange(1, 33) * 8.0 + math.log(1e-8) - others) / moments
    expected = min(int(admitted.max()), 20_000)
    assert moments_batches(8.0, 1e-8, rate, noise, 0.01) == expected > 1
