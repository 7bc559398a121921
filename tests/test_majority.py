"""The constant classifier: exact counts, one honest release, frequencies as probabilities."""

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from dpglm.audit import CanaryScores, audit_scores, record
from dpglm.baselines import majority
from dpglm.baselines.majority import MajorityClassifier
from dpglm.datasets import make_census
from dpglm.privacy import vault as vaults
from dpglm.privacy.gaussian import gdp_epsilon

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]
DELTA = 1e-6


@pytest.mark.parametrize("labels", [(0, 1), ("a", "b", "c")])
def test_without_noise_it_is_the_prior_of_scikit_learn(labels):
    rng = np.random.default_rng(0)
    y = np.array(labels)[np.minimum(rng.geometric(0.6, size=200) - 1, len(labels) - 1)]
    X = rng.normal(size=(200, 3))
    model = MajorityClassifier(epsilon=math.inf).fit(X, y)
    reference = DummyClassifier(strategy="prior").fit(X, y)
    assert (model.predict(X) == reference.predict(X)).all()
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(X), rel=1e-12)
    assert model.predict_log_proba(X) == pytest.approx(np.log(model.predict_proba(X)))
    assert not model.coef_.any() and model.coef_.shape[1] == 3


def test_it_predicts_the_majority_of_a_census_at_a_small_budget():
    X, y = make_census(4000, random_state=0)
    model = MajorityClassifier(epsilon=0.05, delta=1e-8, classes=[0, 1]).fit(X, y)
    assert model.score(X, y) == max(y.mean(), 1 - y.mean())


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_the_ledger_charges_one_gaussian_release_for_the_whole_budget(relation, epsilon):
    n_ref = 400 if relation == "add_or_remove_one" else None
    model = MajorityClassifier(epsilon=epsilon, neighboring_relation=relation, n_ref=n_ref)
    X, y = make_census(500, random_state=0)
    planned = model.plan(*X.shape).ledger
    ledger = model.set_params(classes=[0, 1]).fit(X, y).privacy_
    assert ledger.events == planned.events and ledger.n_releases == 1
    assert ledger.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert ledger.epsilon(DELTA) <= epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbour_moves_the_counts_further_than_charged(relation):
    """All pairs of classes, none included, by brute force."""
    n_ref = 400 if relation == "add_or_remove_one" else None
    model = MajorityClassifier(neighboring_relation=relation, n_ref=n_ref, classes=range(4))
    with record() as tape:
        model.fit(np.zeros((500, 3)), np.arange(500) % 4)
    (release,) = tape.releases
    assert release.exact.tolist() == [125] * 4
    rows = np.vstack([np.eye(4), np.zeros(4)])
    pairs = [(a, b) for a in rows for b in rows]
    if relation != "replace_one":
        pairs = [(a, b) for a, b in pairs if not a.any() or not b.any()]
    assert max(np.linalg.norm(a - b) for a, b in pairs) == pytest.approx(release.sensitivity)


def counts_audit(relation, seed=0):
    """One fit, one canary per class (or per pair of classes under replace-one)."""
    flips, m = relation == "replace_one", 2000
    coins = np.random.default_rng(seed).random(m) < 0.5
    y = 2 * np.arange(m) + coins if flips else np.flatnonzero(coins)
    model = MajorityClassifier(
        epsilon=gdp_epsilon(1.0, DELTA),
        neighboring_relation=relation,
        n_ref=m if relation == "add_or_remove_one" else None,
        classes=np.arange(2 * m if flips else m),
    ).fit(np.zeros((len(y), 1)), y)
    z = model.privacy_.events[0][0].noise_multiplier
    counts = model.trace_.counts
    if flips:
        scores = (counts[1::2] - counts[::2]) / (z * math.sqrt(2) * math.sqrt(2)) + 0.5 / z
    else:
        scores = counts / z
    return audit_scores(CanaryScores(scores, coins, shift=1 / z, mu=model.privacy_.mu()))


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_one_run_audit_passes(relation):
    result = counts_audit(relation)
    assert result.passed, result.violations
    assert result.shift > 0.4, "the canaries must show"


def test_a_release_with_half_the_noise_is_caught(monkeypatch):
    original = vaults.rounded_gaussian
    monkeypatch.setattr(
        vaults, "rounded_gaussian", lambda size, scale, rng: original(size, scale / 2, rng)
    )
    assert not counts_audit("zero_out").passed


def test_a_replacement_that_is_charged_like_a_removal_is_caught(monkeypatch):
    monkeypatch.setattr(majority, "count_sensitivity", lambda relation: 1.0)
    assert not counts_audit("replace_one").passed


def test_class_weights_multiply_the_noisy_counts():
    X, y = np.zeros((300, 2)), np.repeat([0, 1], [200, 100])
    model = MajorityClassifier(epsilon=math.inf, class_weight={1: 3.0}).fit(X, y)
    assert model.predict_proba(X[:1]) == pytest.approx(np.array([[0.4, 0.6]]))
    assert model.trace_.counts.tolist() == [200, 100]


def test_a_count_that_noise_makes_negative_still_gives_probabilities():
    X = np.zeros((5, 1))
    for _ in range(20):
        model = MajorityClassifier(epsilon=0.01, delta=1e-3, classes=[0, 1, 2]).fit(X, [0] * 5)
        assert np.isfinite(model.intercept_).all()
        assert model.predict_proba(X[:1]).sum() == pytest.approx(1.0)


def test_blocks_of_rows_are_refused_in_words():
    with pytest.raises(TypeError, match="MajorityClassifier needs all rows at once"):
        MajorityClassifier(classes=[0, 1]).fit([(np.zeros((3, 1)), [0, 1, 1])])
