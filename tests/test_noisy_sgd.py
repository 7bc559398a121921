"""Mini-batch training: the algorithm, its batches, its ledger, and the audit of it."""

import numpy as np
import pytest

from dpglm import DPLogisticRegression, seeded_noise
from dpglm.audit.designs import canary_scores
from dpglm.privacy.noise import entropy_source, poisson_sample

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


def test_an_empty_batch_is_released_like_any_other():
    """As more than half of these are."""
    model = DPLogisticRegression(**SETTING, sampling_rate=0.2).fit(np.eye(2), [0, 1])
    assert model.n_iter_ == 40
    assert np.isfinite(model.coef_).all()


def test_the_law_that_the_audit_predicts_is_that_of_its_simulation():
    model = DPLogisticRegression(**SETTING, sampling_rate=0.2)
    canaries = canary_scores(model, n_canaries=1000)
    plan = model.plan(1000, 1000)
    weights, rng = plan.clip / plan.metadata.noise_std**2, np.random.default_rng(0)
    scale = np.sqrt(np.sum((weights * plan.metadata.noise_std) ** 2))
    batches = rng.random((200_000, plan.n_iter)) < 0.2
    moves = (batches * weights * plan.sensitivity).sum(axis=1) / scale
    assert moves.mean() == pytest.approx(canaries.shift, rel=5e-3)
    assert moves.var() == pytest.approx(canaries.excess_variance, rel=2e-2)
    inside = canaries.scores[canaries.present]
    assert inside.mean() == pytest.approx(canaries.shift, abs=5 * np.sqrt(2 / len(inside)))
