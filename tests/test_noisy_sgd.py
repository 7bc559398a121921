"""Mini-batch training: the algorithm, its batches, its ledger, and the audit of it."""

import numpy as np
import pytest

from dpglm import DPLinearSVM, DPLogisticRegression, seeded_noise
from dpglm.audit import audit_scores
from dpglm.audit.designs import canary_scores
from dpglm.datasets import make_census
from dpglm.privacy.noise import entropy_source, poisson_sample
from dpglm.schedules import DecayingClip
from dpglm.sums.objective import Objective

# Of one budget, so that the noise is calibrated once.
YU = {
    "epsilon": 12.0, "sampling_rate": 0.1, "max_iter": 5, "momentum": 0.6, "step_schedule": 0.5,
    "clip_schedule": DecayingClip(1.0), "noise_schedule": "constant", "averaging": None,
    "preconditioner": None,
}  # fmt: skip
SETTING = {"epsilon": 8.0, "max_iter": 40, "preconditioner": None, "clip_schedule": 1.0}


def test_without_noise_it_is_stochastic_gradient_descent_over_the_expected_batch_size():
    """Against a loop in numpy over the same samples; sums are divided by q n, not by their size."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), rng.integers(2, size=300)
    model = DPLogisticRegression(
        epsilon=np.inf, sampling_rate=0.2, max_iter=30, clip_schedule=np.inf, step_schedule=0.5,
        momentum=None, averaging=None, preconditioner=None, fit_intercept=False,
    )  # fmt: skip
    with seeded_noise(1):
        model.fit(X, y)
    entropy, coef = entropy_source(1), np.zeros(4)
    sizes = set()
    for _ in range(30):
        rows = poisson_sample(300, 0.2, entropy)
        sizes.add(len(rows))
        residual = 1 / (1 + np.exp(-X[rows] @ coef)) - y[rows]
        coef = coef - 0.5 * X[rows].T @ residual / (0.2 * 300)
    assert len(sizes) > 3
    assert model.coef_[0] == pytest.approx(coef, rel=1e-10)


@pytest.mark.slow
def test_the_algorithm_of_yu_et_al_is_one_constructor_call():
    X, y = make_census(4000, random_state=0)
    model = DPLogisticRegression(**YU, classes=[0, 1]).fit(X, y)
    plan = model.plan(*X.shape)
    t = np.arange(5)
    assert plan.clip == pytest.approx(1 / np.minimum(2, 1 + t / 5))
    assert np.ptp(plan.metadata.noise_std) == pytest.approx(0.0, abs=1e-12)
    assert (plan.momentum.coefficient, plan.averaging[-1]) == (0.6, 1.0)
    assert model.trace_.clip == plan.clip.tolist()
    assert model.trace_.to_frame()["mu"].isna().all()
    sampled = sum(count for event, count in model.privacy_.events if event.sampling_rate == 0.1)
    assert sampled == 5
    assert model.score(X, y) > 0.7


def test_batches_are_binomial_inside_a_fit(monkeypatch):
    sizes = []
    original = Objective.gradient_sum

    def spy(self, coef, clip, rows=None):
        sizes.extend([] if rows is None else [len(rows)])
        return original(self, coef, clip, rows)

    monkeypatch.setattr(Objective, "gradient_sum", spy)
    X, y = np.random.default_rng(0).normal(size=(1000, 2)), np.arange(1000) % 2
    model = DPLogisticRegression(epsilon=np.inf, sampling_rate=0.1, preconditioner=None)
    model.set_params(max_iter=400).fit(X, y)
    assert len(sizes) == 400
    assert abs(np.mean(sizes) - 100) < 5 * np.sqrt(90 / 400)
    assert 0.6 < np.var(sizes) / 90 < 1.5


def test_an_empty_batch_is_released_like_any_other():
    """As more than half of these are."""
    model = DPLogisticRegression(**SETTING, sampling_rate=0.2).fit(np.eye(2), [0, 1])
    assert model.n_iter_ == 40
    assert np.isfinite(model.coef_).all()


@pytest.mark.slow
def test_the_audit_passes_with_sampling_on():
    """Of the marginal law of a canary's score, which the notes of `canary_scores` derive.

    With weights w_t, sensitivity C_t and noise s_t, the score of canary i is ``sum_t w_t (b_it C_t
    + s_t N_it) / S`` with ``S^2 = sum_t w_t^2 s_t^2`` and b_it ~ Bernoulli(q) if it is present:
    mean ``q sum_t w_t C_t / S``, variance ``1 + q (1 - q) sum_t w_t^2 C_t^2 / S^2``; N(0, 1) if it
    is absent. The simulation below draws that law directly.
    """
    one_more = {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 400}
    models = [
        DPLogisticRegression(**SETTING, sampling_rate=0.2),
        DPLinearSVM(**SETTING, sampling_rate=0.5),
        DPLogisticRegression(**YU),
        DPLogisticRegression(epsilon=8.0, max_iter=40, sampling_rate=0.2),
        DPLogisticRegression(**SETTING, sampling_rate=0.2, **one_more),
    ]
    for seed, estimator in enumerate(models):
        result = audit_scores(canary_scores(estimator, n_canaries=1000, random_state=seed))
        assert result.passed, (estimator, result.violations)
        assert result.shift > 0.15, "the canaries must show"


def test_the_law_that_the_audit_predicts_is_that_of_its_simulation():
    model = DPLogisticRegression(**SETTING, sampling_rate=0.2)
    canaries = canary_scores(model, n_canaries=1000, random_state=0)
    plan = model.plan(1000, 1000)
    weights, rng = plan.clip / plan.metadata.noise_std**2, np.random.default_rng(0)
    scale = np.sqrt(np.sum((weights * plan.metadata.noise_std) ** 2))
    batches = rng.random((200_000, plan.n_iter)) < 0.2
    moves = (batches * weights * plan.sensitivity).sum(axis=1) / scale
    assert moves.mean() == pytest.approx(canaries.shift, rel=5e-3)
    assert moves.var() == pytest.approx(canaries.excess_variance, rel=2e-2)
    inside = canaries.scores[canaries.present]
    assert inside.mean() == pytest.approx(canaries.shift, abs=5 * np.sqrt(2 / len(inside)))
