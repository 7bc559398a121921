"""End to end: what was drawn is what was charged, and another accountant agrees."""

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from dpglm import (
    Constant,
    DebiasedMomentum,
    DecayingClip,
    DPLinearSVM,
    DPLogisticRegression,
    DynamicNoise,
    Geometric,
    HeavyBall,
    Piecewise,
    Polynomial,
)
from dpglm.privacy import mechanisms, noise
from dpglm.privacy.events import PoissonSampledEvent


def random_configuration(seed, longest=300):
    rng = np.random.default_rng(seed)

    def choose(*options):
        return options[rng.integers(len(options))]

    relation = choose("zero_out", "replace_one", "add_or_remove_one")
    return choose(DPLogisticRegression, DPLinearSVM)(
        epsilon=float(np.exp(rng.uniform(np.log(0.05), np.log(8)))),
        delta=choose(1e-5, 1e-6, 1e-8),
        neighboring_relation=relation,
        n_ref=70 if relation == "add_or_remove_one" else None,
        noise_schedule=choose(
            "constant", Geometric(1, 0.97), Polynomial(3, 1, 2), DynamicNoise(decay=5.0),
            DynamicNoise(decay=3.0, momentum=0.5), Piecewise((2, 1), (0.4,)),
        ),
        clip_schedule=choose(0.5, DecayingClip(3.0), Geometric(2.0, 0.99), Constant(1.5)),
        momentum=choose(None, 0.6, HeavyBall(0.9), DebiasedMomentum(0.8)),
        averaging=choose(None, "uniform", "tail", "t_weighted"),
        preconditioner=None,
        max_iter=int(choose(1, longest, rng.integers(1, longest + 1))),
    )  # fmt: skip


LONG = [
    DPLogisticRegression(epsilon=0.5, max_iter=2000),
    DPLinearSVM(epsilon=4.0, max_iter=1000, noise_schedule=Piecewise((3, 2, 1), (0.2, 0.7))),
    DPLogisticRegression(epsilon=1.0, max_iter=310, noise_schedule=Geometric(1, 0.99)),
]


def fit_with_a_spy(estimator, monkeypatch, n_classes=2):
    """Fit on noise-free toy data; return the standard deviations drawn and the block sizes."""
    drawn = []
    original = noise.rounded_gaussian

    def spy(size, scale, entropy):
        drawn.append((size, scale))
        return original(size, scale, entropy)

    grids = []
    original_grid = mechanisms.grid_spacing
    monkeypatch.setattr(mechanisms, "rounded_gaussian", spy)
    monkeypatch.setattr(
        mechanisms, "grid_spacing", lambda std: grids.append(original_grid(std)) or grids[-1]
    )
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.arange(60) % n_classes
    estimator.fit(X, y)
    monkeypatch.undo()
    assert len(set(grids)) <= len(drawn)
    return estimator, drawn


@pytest.mark.parametrize("seed", range(50))
def test_every_draw_of_the_sampler_is_one_event_at_its_noise_multiplier(seed, monkeypatch):
    check_noise_drawn_against_ledger(*fit_with_a_spy(random_configuration(seed), monkeypatch))


@pytest.mark.parametrize("seed", range(10))
def test_dp_accounting_confirms_the_epsilon_of_short_runs(seed):
    check_epsilon_by_dp_accounting(random_configuration(seed, longest=20))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_dp_accounting_confirms_the_epsilon_asked_for(seed):
    check_epsilon_by_dp_accounting(random_configuration(seed))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", LONG, ids=lambda e: e.max_iter)
def test_dp_accounting_confirms_the_epsilon_of_long_runs(estimator):
    check_epsilon_by_dp_accounting(estimator)


def check_epsilon_by_dp_accounting(estimator):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    ledger = estimator.fit(X, y).privacy_
    accountant = PLDAccountant(ledger.dp_accounting_relation, value_discretization_interval=1e-5)
    reached = accountant.compose(ledger.to_dp_event()).get_epsilon(estimator.delta)
    assert 0.995 <= reached / estimator.epsilon <= 1.0005


def check_noise_drawn_against_ledger(estimator, drawn, n_outputs=1):
    """Match every call of the sampler with one event, recomputing its standard deviation."""
    events = [event for event, count in estimator.privacy_.events for _ in range(count)]
    plan = estimator.plan(60, 3, max(2, n_outputs))
    factor = 2.0 if estimator.neighboring_relation == "replace_one" else 1.0
    assert len(drawn) == len(events) == estimator.max_iter
    for (size, scale), event, clip in zip(drawn, events, plan.clip, strict=True):
        sensitivity = factor * clip
        grid = 2.0 ** (math.floor(math.log2(event.noise_multiplier * sensitivity)) - 30)
        effective = scale * grid / event.noise_multiplier
        rounded = sensitivity + grid * math.sqrt(size)
        assert size == 4 * n_outputs
        # Above the sensitivity of the snapped sum; by less than summation of 60 rows can add.
        assert rounded < effective < rounded * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
def test_one_joint_release_pays_for_all_classes(Estimator, relation, monkeypatch):
    model = Estimator(neighboring_relation=relation, max_iter=4, preconditioner=None)
    model, drawn = fit_with_a_spy(model, monkeypatch, n_classes=3)
    check_noise_drawn_against_ledger(model, drawn, n_outputs=3)
    assert model.privacy_.epsilon() == pytest.approx(1.0, rel=1e-6)


def test_the_plan_is_what_the_fit_spends():
    model = DPLogisticRegression(classes=[0, 1], clip_schedule="decaying", max_iter=9)
    ledger = model.plan(60, 3).ledger
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    assert model.fit(X, y).privacy_ == ledger


def test_two_fits_compose_to_the_epsilon_of_both():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    ledgers = [DPLogisticRegression(epsilon=e, max_iter=5).fit(X, y).privacy_ for e in (0.5, 1.0)]
    total = sum(ledgers)
    assert total.mu() == pytest.approx(math.hypot(*(ledger.mu() for ledger in ledgers)))
    assert 1.0 < total.epsilon(1e-6) < 1.5


@pytest.mark.parametrize("noise_multiplier", [0.6, 1.0, 5.0])
@pytest.mark.parametrize("sampling_rate", [0.001, 0.3, 1.0])
def test_variance_and_reach_follow_from_the_densities(sampling_rate, noise_multiplier):
    event = PoissonSampledEvent(sampling_rate, noise_multiplier)
    without, shifted = norm(0.0, noise_multiplier), norm(1.0, noise_multiplier)
    x = np.linspace(-12.0, 12.0, 20_001) * noise_multiplier + 0.5

    def excess(x):
        return sampling_rate * np.expm1(shifted.logpdf(x) - without.logpdf(x))

    chi_squared = np.trapezoid(without.pdf(x) * excess(x) ** 2, x)
    expected = min(chi_squared, 1 / noise_multiplier**2)
    assert event.loss_variance == pytest.approx(expected, rel=1e-6)
    furthest = np.log1p(excess(1.0 + 12.0 * noise_multiplier))
    assert event.loss_reach == pytest.approx(furthest, rel=1e-9)
