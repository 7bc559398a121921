"""The statistics of an audit: limits, bounds, false alarms, and the power that it states."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, laplace, norm
from sklearn.linear_model import LogisticRegression

from dpglm import DPAGDClassifier
from dpglm.audit import audit_estimator
from dpglm.audit.choices import ChoiceCounts, audit_choices, noisy_max_distribution
from dpglm.audit.statistics import CanaryScores, audit_scores


def simulated(rng, n=500, noise=1.0, sensitivity=1.0, mu=1.0):
    present = np.arange(n) < n // 2
    scores = noise * rng.normal(size=n) + sensitivity * mu * present
    return CanaryScores(scores, present, mu, mu)


def test_limits_match_the_vectors(vectors):
    for row in vectors("audit", "audit_power"):
        half, (low, high) = row["canaries"] // 2, row["var_ratio_accept"]
        absent = norm.ppf((np.arange(half) + 0.5) / half)
        absent /= absent.std(ddof=1)
        for within in (1 - row["rtol"], 1 + row["rtol"]):
            shifted = absent + 1 + within * row["shift_tol"], absent
            noisy = [(absent, absent * math.sqrt(v)) for v in (low / within, high * within)]
            for worlds in (shifted, *noisy):
                canaries = CanaryScores(np.ravel(worlds), np.arange(2 * half) < half, 1.0, 1.0)
                result = audit_scores(canaries, false_positive_rate=row["alpha"])
                assert result.passed is (within < 1)


def test_mu_of_perfect_knowledge_of_the_rates_matches_the_vectors(vectors):
    """With very many canaries the lower bound approaches Phi^-1(TPR) - Phi^-1(FPR)."""
    for row in vectors("audit", "gdp_from_rates"):
        mu, n = row["mu"], 200_000
        assert norm.ppf(row["tpr"]) - norm.ppf(row["fpr"]) == pytest.approx(mu, rel=row["rtol"])
        quantiles = norm.ppf((np.arange(n) + 0.5) / n)
        scores = np.concatenate([quantiles, quantiles + mu])
        canaries = CanaryScores(scores, np.repeat([False, True], n), shift=mu, mu=mu)
        assert 0.97 * mu < audit_scores(canaries).lower_bound < mu


def test_false_alarms_are_as_rare_as_stated():
    rng, alarms = np.random.default_rng(0), np.zeros(3)
    for _ in range(1500):
        violations = audit_scores(simulated(rng, n=100), false_positive_rate=0.01).violations
        for place, words in enumerate(("the noise is not", "further than", "mu is at least")):
            alarms[place] += any(words in text for text in violations)
    assert binom.ppf(1e-4, 1500, 0.01) <= alarms[0] <= binom.isf(1e-4, 1500, 0.01)
    assert (alarms[1:] <= binom.isf(1e-4, 1500, 0.01)).all()


@pytest.mark.parametrize("n", [200, 1000])
def test_what_is_said_to_be_caught_is_caught_with_that_power(n):
    rng = np.random.default_rng(1)
    stated = audit_scores(simulated(rng, n))
    for changes in ({"noise": stated.caught_noise}, {"sensitivity": stated.caught_sensitivity}):
        caught = sum(not audit_scores(simulated(rng, n, **changes)).passed for _ in range(600))
        assert binom.ppf(1e-4, 600, 0.985) <= caught <= binom.isf(1e-4, 600, 0.9965)
    honest = audit_scores(simulated(rng, n))
    assert honest.passed and honest.power == stated.power


def test_choices_are_caught_with_the_power_that_is_stated():
    rng, law = np.random.default_rng(0), np.exp(0.4 * np.arange(21.0))
    law /= law.sum()
    stated = audit_choices(ChoiceCounts(rng.multinomial(500, law), law, 2.0))
    sharper = law ** (1 / stated.caught_noise)
    sharper /= sharper.sum()
    results = [
        audit_choices(ChoiceCounts(rng.multinomial(500, sharper), law, 2.0)) for _ in range(200)
    ]
    assert np.mean([not result.passed for result in results]) > 0.97
    bounds = [result.lower_bound for result in results]
    assert np.median(bounds) > 2.0 and max(bounds) <= 2.0 / stated.caught_noise


def test_a_lower_bound_on_the_epsilon_of_choices_is_below_it():
    rng, law = np.random.default_rng(0), np.array([0.05, 0.15, 0.8])
    above = 0
    for _ in range(200):
        result = audit_choices(
            ChoiceCounts(rng.multinomial(200, law), law, 1.0), false_positive_rate=0.05
        )
        above += result.lower_bound > 1.0
    assert above <= binom.isf(1e-4, 200, 0.05)


def test_the_law_of_a_noisy_maximum_is_that_of_an_integral():
    scores = np.array([0.0, 0.7, -1.3, 0.7])
    for index, probability in enumerate(noisy_max_distribution(scores, 0.5)):
        others = np.delete(scores, index)

        def density(x, index=index, others=others):
            return laplace.pdf(x, scores[index], 0.5) * laplace.cdf(x, others, 0.5).prod()

        exact = quad(density, -10, 10, points=sorted(scores), limit=500)[0]
        assert probability == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (DPAGDClassifier(epsilon=np.inf), "epsilon=inf must.* inf claims nothing"),
        (LogisticRegression(), "of dpglm, not LogisticRegression"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_words(estimator, message):
    with pytest.raises((TypeError, ValueError), match=message):
        audit_estimator(estimator)


def test_an_audit_needs_both_kinds_of_canaries():
    with pytest.raises(ValueError, match="at least two present"):
        audit_scores(CanaryScores(np.zeros(5), np.ones(5, dtype=bool), 1.0, 1.0))


def test_scores_that_are_not_numbers_are_a_violation():
    present = np.arange(10) < 5
    assert not audit_scores(CanaryScores(np.full(10, np.nan), present, 1.0, 1.0)).passed
