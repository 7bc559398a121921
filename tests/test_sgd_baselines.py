"""Mini-batch SGD with historical noise, and with the noise that a tight accountant allows."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from planted_bugs import half_noise
from scipy.sparse import diags_array
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_class_weight_classifiers

from dpglm.audit import CanaryScores, audit_scores
from dpglm.baselines.sgd import (
    SGDAdvancedComposition,
    SGDMomentsAccountant,
    advanced_composition_multiplier,
    batch_rate,
    fewest_iterations,
)
from dpglm.datasets import make_census
from dpglm.privacy import vault as vaults
from dpglm.privacy.gaussian import PoissonSampledEvent
from dpglm.sums.objective import Objective

ESTIMATORS = [SGDAdvancedComposition, SGDMomentsAccountant]
DELTA = 1e-6


def rdp_epsilon(ledger, delta):
    """Another accountant's epsilon of the sampled releases of a ledger."""
    accountant = RdpAccountant(
        orders=np.concatenate([np.linspace(1.1, 60, 300), 2 ** np.arange(6, 14.0)])
    )
    for event, count in ledger.events:
        assert isinstance(event, PoissonSampledEvent)
        sampled = PoissonSampledDpEvent(
            event.sampling_rate, GaussianDpEvent(event.noise_multiplier)
        )
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


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
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
    with pytest.raises(ValueError, match=f"set max_iter to {few} or more"):
        advanced_composition_multiplier(1.6, 1e-8, 0.005, few - 1)
    with pytest.raises(ValueError, match="too large for the composition theorem"):
        advanced_composition_multiplier(40.0, 1e-8, 1.0, 10**6)
    with pytest.raises(ValueError, match="set max_iter to"):
        SGDAdvancedComposition(epsilon=5.0, max_iter=1).plan(40_000, 5)


def test_the_rules_for_batches_and_iterations():
    assert batch_rate("auto", 40_000) == 210 / 40_000 and batch_rate(500, 100) == 1.0
    assert SGDAdvancedComposition(epsilon=0.4).plan(40_000, 5).n_iter == 32
    assert SGDAdvancedComposition(epsilon=4.0).plan(10**7, 5).n_iter >= 1000
    assert SGDMomentsAccountant(max_iter=30).plan(1000, 5).n_iter == 30


@pytest.mark.parametrize(("epsilon", "noise_multiplier"), [(0.1, 4.0), (1.0, 2.0)])
def test_the_run_is_as_long_as_the_budget_allows_at_the_noise(epsilon, noise_multiplier):
    model = SGDMomentsAccountant(epsilon=epsilon, noise_multiplier=noise_multiplier)
    plan = model.plan(20_000, 5)
    assert plan.noise_multiplier[0] == pytest.approx(noise_multiplier, rel=0.15)
    assert plan.ledger.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert plan.ledger.epsilon(DELTA) <= epsilon
    assert 0.999 < rdp_epsilon(plan.ledger, DELTA) / epsilon < 2.5


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_a_fit_releases_what_its_plan_says(Estimator, relation, monkeypatch):
    drawn, original = [], vaults.GaussianSum.release

    def release(self, value, rng):
        drawn.append((self.sensitivity, self.noise_std(value.size)))
        return original(self, value, rng)

    monkeypatch.setattr(vaults.GaussianSum, "release", release)
    X, y = make_census(500, random_state=0)
    model = Estimator(
        neighboring_relation=relation, n_ref=400 if relation == "add_or_remove_one" else None,
        classes=[0, 1], max_iter=12, clip=2.0,
    )  # fmt: skip
    plan = model.plan(*X.shape)
    model.fit(X, y)
    ((event, count),) = model.privacy_.events
    assert model.privacy_.events == plan.ledger.events and count == model.n_iter_ == 12
    assert event.sampling_rate == batch_rate("auto", plan.facts.n_samples)
    for sensitivity, std in drawn:
        assert sensitivity == 2.0
        assert std == pytest.approx(2.0 * event.noise_multiplier, rel=1e-6)


def audit(Estimator, seed=0):
    """Canaries on axes of their own, moved so little that every gradient stays clipped.

    Checks the variance of absent canaries and the shift of present ones, not mu: the ledger of
    sampled releases claims none.
    """
    m, clip, step, n_iter = 20_000, 0.1, 1e-6, 64
    coins = np.random.default_rng(seed).random(m) < 0.5
    model = Estimator(
        epsilon=60.0 if Estimator is SGDMomentsAccountant else 28.0, batch_size=m / 2, clip=clip,
        step=step, max_iter=n_iter, fit_intercept=False, classes=[0, 1],
    )  # fmt: skip
    model.fit(diags_array(coins.astype(float)).tocsr(), np.ones(m, dtype=int))
    ((event, _),) = model.privacy_.events
    rate, z = event.sampling_rate, event.noise_multiplier
    # One release moves a coefficient by step / (q m) times a clipped gradient, or its noise.
    scores = model.coef_[0] * rate * m / (step * math.sqrt(n_iter) * z * clip)
    return audit_scores(
        CanaryScores(
            scores, coins, shift=rate * math.sqrt(n_iter) / z, mu=math.inf,
            excess_variance=rate * (1 - rate) / z**2,
        )
    )  # fmt: skip


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_the_one_run_audit_passes(Estimator):
    result = audit(Estimator)
    assert result.passed, result.violations
    assert result.shift > 0.1, "the canaries must show"


def every_record_in_every_batch(monkeypatch):
    original = Objective.gradient_sum
    monkeypatch.setattr(
        Objective, "gradient_sum", lambda self, coef, clip, rows=None: original(self, coef, clip)
    )


@pytest.mark.parametrize("bug", [half_noise, every_record_in_every_batch])
@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_a_planted_bug_is_caught(Estimator, bug, monkeypatch):
    bug(monkeypatch)
    assert not audit(Estimator).passed


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_replacement_is_refused(Estimator):
    with pytest.raises(ValueError, match="'replace_one'"):
        Estimator(neighboring_relation="replace_one").plan(1000, 3)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_more_budget_teaches_more(Estimator):
    X, y = make_census(4000, random_state=0)
    some = 0.5 if Estimator is SGDMomentsAccountant else 5.0
    losses = [
        log_loss(y, Estimator(epsilon=e, max_iter=300, step=0.5).fit(X, y).predict_proba(X))
        for e in (0.05, some, math.inf)
    ]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_the_hinge_loss_has_no_probabilities(Estimator):
    X, y = make_census(500, random_state=0)
    model = Estimator(loss="hinge", epsilon=math.inf, max_iter=50).fit(X, y)
    assert not hasattr(model, "predict_proba") and model.score(X, y) > 0.7
    with pytest.raises(ValueError, match="loss='square' is unknown"):
        Estimator(loss="square").plan(100, 3)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("batch_size", 0, "batch_size=0 must be a number above 0"),
        ("clip", -1.0, "clip=-1.0 must be a number above"),
        ("step", 0.0, "step=0.0 must be a number above 0"),
        ("max_iter", 0, "max_iter=0 must be a whole number"),
        ("epsilon", 1e-9, "too small"),
    ],
)
def test_bad_parameters_are_refused_before_the_data_are_touched(
    Estimator, parameter, value, message
):
    settings = {"delta": 1e-12, "max_iter": 5, parameter: value}
    with pytest.raises(ValueError, match=message):
        Estimator(**settings).plan(100, 3)


def test_why_a_few_hundred_records_teach_advanced_composition_nothing():
    """On 300 records (the tag's) the noise on each mean gradient is as long as all may be."""
    plan = SGDAdvancedComposition(fit_intercept=False).plan(300, 2)
    noise = plan.facts.noise_std[0] * math.sqrt(2) / plan.facts.expected_batch_size
    assert plan.n_iter == 1 and noise > 0.5 * plan.clip[0]
    assert SGDAdvancedComposition().__sklearn_tags__().classifier_tags.poor_score


def test_the_reason_for_the_one_expected_failure_holds():
    """Clipped to C, row i adds at most C / ||(x_i, 1)|| to the intercept's sum when sampled."""
    X, y = make_blobs(centers=2, random_state=0, cluster_std=20)
    X, _, y, _ = train_test_split(X, y, test_size=0.5, random_state=0)
    heavy = np.column_stack([X[y == 0], np.ones((y == 0).sum())])
    model = SGDMomentsAccountant(max_iter=1000)
    plan = model.plan(*X.shape)
    signal = plan.sampling_rate * math.sqrt(1000) * (1 / np.linalg.norm(heavy, axis=1)).sum()
    assert signal / plan.noise_multiplier[0] < 0.4
    with pytest.raises(AssertionError):
        check_class_weight_classifiers("SGDMomentsAccountant", clone(model))
    check_class_weight_classifiers(
        "SGDMomentsAccountant", clone(model).set_params(epsilon=math.inf, step=1.0)
    )
