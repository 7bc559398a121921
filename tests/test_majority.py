"""The constant classifier: exact counts, one honest release, frequencies as probabilities."""

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from dpglm.audit import record
from dpglm.baselines.majority import MajorityClassifier
from dpglm.datasets import make_census


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


@pytest.mark.parametrize(
    ("relation", "most"), [("zero_out", 1), ("replace_one", 2), ("add_or_remove_one", 1)]
)
@pytest.mark.parametrize("epsilon", [0.05, 20.0])
def test_one_release_spends_the_budget_and_covers_the_counts_that_a_record_moves(
    relation, most, epsilon
):
    n_ref = 400 if relation == "add_or_remove_one" else None
    model = MajorityClassifier(epsilon=epsilon, neighboring_relation=relation, n_ref=n_ref)
    with record() as tape:
        model.set_params(classes=range(4)).fit(np.zeros((500, 3)), np.arange(500) % 4)
    (release,) = tape.releases
    assert release.exact.tolist() == [125] * 4
    assert release.sensitivity == pytest.approx(math.sqrt(most))
    assert model.privacy_.events == model.plan(500, 3).ledger.events == ((release.event, 1),)
    assert model.privacy_.epsilon() == pytest.approx(epsilon, rel=1e-6)
    assert model.privacy_.epsilon() <= epsilon


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
