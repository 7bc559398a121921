"""What holds for every legal configuration, and for every illegal one."""

import math
import pickle

import numpy as np
import pytest
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.base import clone

from dpglm import DPAGDClassifier, DPLogisticRegression, seeded_noise
from dpglm.privacy import noise

pytestmark = [
    pytest.mark.filterwarnings("ignore:delta=:dpglm.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:seeded_noise:dpglm.exceptions.PrivacyWarning"),
]
few = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def same(a, b):
    return str(clone(a).get_params()) == str(clone(b).get_params())


@few
@given(strategies.estimators(), strategies.data())
def test_any_legal_configuration_fits_within_its_budget(estimator, data):
    X, y = data
    plan = estimator.plan(*X.shape, n_classes=len(set(y)))
    model = estimator.fit(X, y)

    assert model.privacy_.events == plan.ledger.events
    assert model.privacy_.epsilon(model.delta) <= model.epsilon
    assert model.privacy_.neighboring_relation == model.neighboring_relation
    if isinstance(model, DPAGDClassifier):
        assert min(model.trace_.remaining, default=0.0) >= 0
        assert model.n_iter_ <= model.max_iter
    else:
        assert model.n_iter_ == model.max_iter == len(model.trace_.noise_std)
        assert min(model.trace_.noise_std) > 0

    for released in (model.coef_, model.intercept_, model.decision_function(X / np.abs(X).max())):
        assert np.isfinite(released).all()
    assert set(model.predict(X)) <= set(y)


@settings(few, max_examples=15)
@given(strategies.estimators(), strategies.data())
def test_clones_and_pickles_are_the_same_estimator(estimator, data):
    X, y = data
    assert same(estimator, pickle.loads(pickle.dumps(estimator)))
    with seeded_noise(0):
        model = estimator.fit(X, y)
        again = clone(model)
        assert same(model, again) and not hasattr(again, "coef_")
        assert_array_equal(again.fit(X, y).coef_, model.coef_)
    restored = pickle.loads(pickle.dumps(model))
    assert restored.privacy_ == model.privacy_
    assert_array_equal(restored.predict(X), model.predict(X))


@few
@given(strategies.estimators(), strategies.data(), strategies.illegal_parameters())
def test_any_illegal_value_is_refused_before_noise_is_drawn(estimator, data, illegal):
    name, value = illegal
    estimator.set_params(**{name: value})
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise.EntropySource, "words", lambda self, count: drawn.append(count))
        with pytest.raises(ValueError, match=r"\w"):
            estimator.fit(*data)
    assert not drawn
    assert not [key for key in vars(estimator) if key.endswith("_")]


@few
@given(strategies.budgets(), st.integers(1, 500))
def test_a_smaller_budget_never_means_less_noise(budget, n_iter):
    settings_ = {**budget, "max_iter": n_iter, "preconditioner": None, "clip_schedule": 1.0}
    plans = [
        DPLogisticRegression(**{**settings_, "epsilon": factor * budget["epsilon"]}).plan(50, 3)
        for factor in (0.5, 1.0)
    ]
    assert plans[0].noise_multiplier[0] > plans[1].noise_multiplier[0]
    assert math.isclose(plans[1].ledger.epsilon(budget["delta"]), budget["epsilon"], rel_tol=1e-6)
