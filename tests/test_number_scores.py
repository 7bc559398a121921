"""Scores of regressors on private records: what moves them, what they say, what is refused."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, RegressorMixin, clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from strategies import RELATIONS, under
from tapes import record, replay

from dpglm import DPLinearRegression, PrivacyBudget, seeded_noise
from dpglm.audit.recorder import largest_ratio
from dpglm.exceptions import UtilityWarning
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.noise import entropy_source
from dpglm.workflow import (
    PrivateCalibratedClassifier,
    PrivateSearchCV,
    PrivateThresholdClassifier,
    check_pipeline,
    make_private_scorer,
    private_scores,
    total_privacy,
)
from dpglm.workflow.releases import Deviance, ScoreVault, records_of_numbers

pytestmark = pytest.mark.filterwarnings("ignore")


class Says(RegressorMixin, BaseEstimator):
    """Predicts what stands in the first column of X."""

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X):
        return np.asarray(X)[:, 0]


# A record is a target and a prediction: the ends, the middle and the centre, and far outside.
KINDS = [*itertools.product((0.0, 1.0, 2.0, 4.0, 1e9), (0.0, 1.0, 2.0, 4.0, -1e300, math.nan))]
DEVIANCES = {"r2": Deviance(0.0, 4.0, 2.0), "d2": Deviance(0.0, 4.0, 1.0, 1)}
# What was released before the sums that rest on it: half of the largest.
BEFORE = dict.fromkeys(("squared", "deviance", "target", "variation", "null"), 0.0)
NAMES = [*BEFORE, "fourth", "absolute", "r2", "d2"]


def held(kinds):
    y, predicted = np.array(kinds).reshape(-1, 2).T
    records = records_of_numbers(Says(), predicted[:, None], y, DEVIANCES)
    records.released |= BEFORE
    return records


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_record_moves_a_sum_by_more_than_is_charged_and_some_do(name, relation):
    budget = PrivacyBudget(30.0, 1e-3, **under(relation, 4))
    vault = ScoreVault(held(KINDS[:3]), [(GaussianEvent(1.0), 9)], budget, entropy_source())
    alone = [held([kind]).total(name) for kind in KINDS]
    moved = np.ptp(alone) if relation == "replace_one" else np.abs(alone).max()
    assert moved / vault.sensitivity(name) == pytest.approx(1)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [1e-6, 0.1])
def test_neighbours_release_the_same_things_and_a_null_record_adds_nothing(relation, delta):
    """With pure noise and with Gaussian noise, and with any answers before the last sums."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 1)), rng.normal(size=50)
    X[0], y[0] = 1e5, -1e9
    settings = {"epsilon": 1.0, "delta": delta, "target_bounds": (-3, 3), **under(relation, 50)}
    with record() as one:
        private_scores(Says(), X, y, **settings)
    X[0], y[0] = {"zero_out": (1e300, 0), "replace_one": (3.0, 3.0)}.get(relation, (0, 0))
    rows = slice(relation == "add_or_remove_one", None)
    with replay(one) as two:
        private_scores(Says(), X[rows], y[rows], **settings)
    assert 0.5 < largest_ratio(one, two) <= 1


def design(kind, n, rng):
    """Return rows with the best prediction in the first column, a target, and a public range."""
    z = rng.normal(size=n)
    if kind == "linear":
        return z[:, None], z + rng.normal(size=n), (-8.0, 12.0)
    mean = np.exp(z - 0.5)
    y = 5 * mean * rng.gamma(2, 0.5, size=n) if kind == "gamma" else rng.poisson(5 * mean)
    return 5 * mean[:, None], y.astype(float), (0.01, 500.0) if kind == "gamma" else (0.0, 500.0)


MODELS = {"linear": LinearRegression(), "poisson": PoissonRegressor(), "gamma": GammaRegressor()}
POWERS = {"linear": 0, "poisson": 1, "gamma": 2}


@pytest.mark.parametrize("kind", MODELS)
def test_without_noise_scores_are_those_of_scikit_learn(kind):
    X, y, bounds = design(kind, 500, np.random.default_rng(0))
    steps = FunctionTransformer(np.cbrt), MODELS[kind]
    model = make_pipeline(*steps).fit(X, y)
    found = private_scores(FrozenEstimator(model), X, y, epsilon=math.inf, target_bounds=bounds)
    predicted = model.predict(X)
    expected = {
        "r2": metrics.r2_score(y, predicted),
        "d2": metrics.d2_tweedie_score(y, predicted, power=POWERS[kind]),
        "mse": metrics.mean_squared_error(y, predicted),
        "mae": metrics.mean_absolute_error(y, predicted),
    }
    frame = found.to_frame()
    assert frame["value"].to_dict() == pytest.approx(expected, rel=1e-9)
    assert found.classes is found.pos_label is None and "mae  " in str(found)
    scorer = make_private_scorer("mse", epsilon=math.inf, target_bounds=bounds)
    assert scorer(model, X, y) == -found.mse.value


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
@pytest.mark.parametrize("away", [-20.0, 30.0])
def test_a_deviance_is_right_where_the_intercept_is_far_from_all_means(kind, away):
    """Columns far from zero, and numbers below the range, which count as its end."""
    X, y, bounds = design(kind, 5000, np.random.default_rng(0))
    X, low = np.log(X) + away, 1.0 if kind == "gamma" else 0.0
    model = clone(MODELS[kind]).set_params(alpha=0, max_iter=5000).fit(X, y)
    settings = {"scores": "d2", "target_bounds": (low, bounds[1])}
    exact, found = (private_scores(model, X, y, epsilon=e, **settings).d2 for e in (math.inf, 4.0))
    at_ends, predicted = np.maximum(y, low), model.predict(X)
    expected = metrics.d2_tweedie_score(at_ends, predicted, power=POWERS[kind])
    assert exact.value == pytest.approx(expected, abs=0.005)
    assert expected > 0.3 and np.ptp(found.noise_interval) < 0.3


@pytest.mark.parametrize(
    ("kinds", "n_draws"), [(["poisson"], 30), pytest.param(MODELS, 300, marks=pytest.mark.slow)]
)
def test_intervals_hold_what_they_are_of(kinds, n_draws):
    """At their level: the scores of the population, and those of these records without noise."""
    rng, noise = np.random.default_rng(1), np.random.RandomState(1)
    for kind in kinds:
        X, y, bounds = design(kind, 100_000, rng)
        model = MODELS[kind].fit(np.log(X) if kind != "linear" else X, y)
        model = make_pipeline(FunctionTransformer(np.log if kind != "linear" else None), model)
        settings = {"target_bounds": bounds, "epsilon": math.inf}
        true, held = private_scores(model, X, y, **settings), []
        for _ in range(n_draws):
            rows = rng.integers(len(X), size=4000)
            here = private_scores(model, X[rows], y[rows], **settings)
            with seeded_noise(noise):
                found = private_scores(model, X[rows], y[rows], **settings | {"epsilon": 4.0})
            for name in ("r2", "d2", "mse", "mae"):
                score, of = (getattr(each, name) for each in (found, here))
                (low, high), (least, most) = score.interval, score.noise_interval
                held.append(low <= getattr(true, name).value <= high)
                held.append(least <= of.value <= most)
        level = np.reshape(held, (n_draws, 4, 2)).mean(axis=0)
        assert (stats.binom.sf(n_draws * (1 - level), n_draws, 0.05) > 1e-4).all(), (kind, level)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_search_over_regressors_chooses_by_squared_errors(relation):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=300)
    budget = {"epsilon": 60.0, **under(relation, 300)}
    model = DPLinearRegression(max_iter=4, target_bounds=(-4, 4))
    search = PrivateSearchCV(model, {"alpha": [1e4, 0.0]}, **budget)
    with record() as one:
        search.fit(X, y)
    assert search.best_params_ == {"alpha": 0.0} and search.score(X, y) > 0.5
    assert search.score(X, y, np.arange(300.0)) == search.best_estimator_.score(
        X, y, np.arange(300.0)
    )
    with pytest.raises(ValueError, match="pos_label=1 is for classifiers"):
        private_scores(search, X, y, epsilon=9.0, pos_label=1)
    assert is_regressor(search) and not hasattr(search, "classes_")
    assert total_privacy(search).events == search.privacy_.events and not check_pipeline(search)
    assert private_scores(search, X, y, epsilon=9.0, scores="r2").r2.value > 0.5
    X[0], y[0] = (1e300, 0.0) if relation == "zero_out" else (9.0, -1e9), -1e9
    rows = slice(relation == "add_or_remove_one", None)
    with replay(one) as two:
        clone(search).fit(X[rows], y[rows])
    assert 0 < largest_ratio(one, two) <= 1


BAD = {"text": ["a"] * 40, "NaN": [math.nan] * 40, "lists": [[1.0, 2.0]] * 40}


@pytest.mark.parametrize("kind", BAD)
def test_targets_that_are_no_numbers_end_in_a_sentence(kind):
    X, y = np.linspace(0, 1, 40)[:, None], np.linspace(0, 1, 40)
    model = LinearRegression().fit(X, y)
    search = PrivateSearchCV(DPLinearRegression(max_iter=2), {})
    score = lambda X, y: private_scores(model, X, y, epsilon=1.0, target_bounds=(0, 1))  # noqa: E731
    for ask in (score, search.fit):
        with record() as tape, pytest.raises(ValueError, match=r"^y .*\.$") as refused:
            ask(X, BAD[kind])
        assert not tape.releases and not hasattr(refused.value, "privacy_ledger")


def test_what_cannot_be_scored_is_refused_or_is_no_number():
    X, y = np.linspace(0, 1, 40)[:, None], np.linspace(0, 1, 40)
    model = LinearRegression().fit(X, y)
    with pytest.raises(ValueError, match="LinearRegression has no target_range_: give"):
        private_scores(model, X, y, epsilon=1.0)
    with pytest.raises(ValueError, match="low end of target_bounds"):
        private_scores(PoissonRegressor().fit(X, y), X, y, epsilon=1.0, target_bounds=(-1, 1))
    for tuned in (PrivateCalibratedClassifier, PrivateThresholdClassifier):
        with pytest.raises(TypeError, match="LinearRegression predicts numbers: pass a class"):
            tuned(model).fit(X, y)
    with pytest.warns(UtilityWarning, match="The noise of r2, d2, mse"):
        found = private_scores(model, X, y, epsilon=0.1, target_bounds=(0, 100))
    assert math.isnan(found.r2.value) and found.r2.interval == (-math.inf, 1.0)
