"""The one-run audit passes on the library and fails on planted bugs."""

import numpy as np
import pytest
from scipy.stats import norm

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.audit import CanaryScores, audit_scores, canary_scores, release_weights
from dpglm.objective import Objective
from dpglm.privacy import mechanisms
from dpglm.privacy.conversions import gdp_epsilon
from dpglm.solvers import noisy_gd

DELTA = 1e-6
# mu = 1, twenty releases: the setting whose power the vectors state.
SETTING = {"epsilon": gdp_epsilon(1.0, DELTA), "delta": DELTA, "max_iter": 20}


def audit(estimator, random_state=0):
    return audit_scores(canary_scores(estimator, n_canaries=500, random_state=random_state))


def test_the_estimators_pass():
    for seed, estimator in enumerate(
        [
            DPLogisticRegression(**SETTING, clip_schedule=0.1),
            DPLinearSVM(**SETTING),
            DPLogisticRegression(**SETTING, neighboring_relation="replace_one"),
            DPLogisticRegression(**SETTING, neighboring_relation="add_or_remove_one", n_ref=400),
            DPLogisticRegression(**SETTING, momentum="heavy_ball", averaging="tail"),
            DPLogisticRegression(**SETTING, momentum="debiased", clip_schedule="decaying"),
            DPLogisticRegression(**SETTING, noise_schedule="geometric", averaging="uniform"),
            DPLogisticRegression(**SETTING, step_schedule="inverse_time", alpha=0.1),
        ]
    ):
        result = audit(estimator, seed)
        assert result.passed, (estimator, result.violations)
        assert result.shift > 0.5, "the canaries must show"


def half_noise(monkeypatch):
    original = mechanisms.rounded_gaussian
    monkeypatch.setattr(
        mechanisms, "rounded_gaussian", lambda size, scale, rng: original(size, scale / 2, rng)
    )


def no_noise(monkeypatch):
    monkeypatch.setattr(
        mechanisms, "rounded_gaussian", lambda size, scale, rng: np.zeros(size, dtype=np.int64)
    )


def reused_noise(monkeypatch):
    original, kept = mechanisms.rounded_gaussian, []

    def draw_once(size, scale, rng):
        kept[:] = kept or [original(size, scale, rng)]
        return kept[0]

    monkeypatch.setattr(mechanisms, "rounded_gaussian", draw_once)


def doubled_sensitivity(monkeypatch):
    original = Objective.gradient_sum
    monkeypatch.setattr(
        Objective, "gradient_sum", lambda self, coef, clip: 2 * original(self, coef, clip)
    )


def no_clip(monkeypatch):
    original = Objective.gradient_sum
    monkeypatch.setattr(
        Objective, "gradient_sum", lambda self, coef, clip: original(self, coef, np.inf)
    )


@pytest.mark.parametrize("bug", [half_noise, no_noise, reused_noise, doubled_sensitivity, no_clip])
def test_a_planted_bug_is_caught(bug, monkeypatch):
    bug(monkeypatch)
    assert not audit(DPLogisticRegression(**SETTING)).passed


def test_a_clip_that_forgets_replace_one_is_caught(monkeypatch):
    """Noise for a sensitivity of C where one record moves the sum by 2 C."""
    original = mechanisms.rounded_gaussian
    model = DPLogisticRegression(**SETTING, neighboring_relation="replace_one")
    monkeypatch.setattr(
        mechanisms, "rounded_gaussian", lambda size, scale, rng: original(size, scale / 2, rng)
    )
    assert not audit(model).passed


def test_limits_match_the_vectors(vectors):
    for row in vectors("audit", "audit_power"):
        half = row["canaries"] // 2
        present = np.repeat([True, False], half)
        scores = np.random.default_rng(0).normal(size=2 * half)
        result = audit_scores(CanaryScores(scores, present, 1.0, 1.0), false_alarm=row["alpha"])
        assert result.variance_limits == pytest.approx(row["var_ratio_accept"], rel=row["rtol"])
        assert result.shift_limit - 1.0 == pytest.approx(row["shift_tol"], rel=row["rtol"])


def test_mu_of_perfect_knowledge_of_the_rates_matches_the_vectors(vectors):
    """With very many canaries the lower bound approaches Phi^-1(TPR) - Phi^-1(FPR)."""
    for row in vectors("audit", "gdp_from_rates"):
        mu, n = row["mu"], 200_000
        assert norm.ppf(row["tpr"]) - norm.ppf(row["fpr"]) == pytest.approx(mu, rel=row["rtol"])
        quantiles = norm.ppf((np.arange(n) + 0.5) / n)
        scores = np.concatenate([quantiles, quantiles + mu])
        canaries = CanaryScores(scores, np.repeat([False, True], n), shift=mu, mu=mu)
        assert 0.97 * mu < audit_scores(canaries).mu_lower_bound < mu


def test_power_against_halved_noise_is_as_stated():
    rng = np.random.default_rng(0)
    caught = 0
    for _ in range(200):
        present = rng.random(500) < 0.5
        scores = rng.normal(size=500) / 2 + present
        caught += not audit_scores(CanaryScores(scores, present, 1.0, 1.0)).passed
    assert caught == 200


def test_a_fit_without_noise_claims_nothing_to_audit():
    with pytest.raises(ValueError, match="epsilon=inf claims nothing"):
        canary_scores(DPLogisticRegression(epsilon=np.inf))


def test_an_audit_needs_both_kinds_of_canaries():
    with pytest.raises(ValueError, match="two or more canaries present"):
        audit_scores(CanaryScores(np.zeros(5), np.ones(5, dtype=bool), 1.0, 1.0))


@pytest.mark.parametrize("momentum", [None, 0.6, "debiased"])
@pytest.mark.parametrize("averaging", [None, "uniform", "t_weighted"])
def test_release_weights_reproduce_the_solver(momentum, averaging):
    """The coefficients are minus the weighted sum of the released mean gradients."""
    model = DPLogisticRegression(momentum=momentum, averaging=averaging, max_iter=7)
    plan = model.plan(50, 2)
    released = np.random.default_rng(0).normal(size=(7, 3))

    class Replay:
        """Stands in for the data: 'releases' the given mean gradients."""

        coef_shape = (3,)
        loss = model._loss(2)
        step = 0

        def rounding_slack(self, n_samples):
            return 0.0

        def penalty_gradient(self, coef):
            return np.zeros(3)

        def gradient_sum(self, coef, clip):
            self.step += 1
            return 50 * released[self.step - 1]

    class Exact:
        def release(self, value, rng):
            return value, None

        def noise_std(self, size):
            return 0.0

    class WithoutNoise:
        def __getattr__(self, name):
            return getattr(plan, name)

        def mechanism(self, t, slack):
            return Exact()

    trace = noisy_gd.noisy_gradient_descent(Replay(), WithoutNoise(), rng=None)
    assert trace.coef == pytest.approx(-release_weights(plan) @ released, rel=1e-12)
