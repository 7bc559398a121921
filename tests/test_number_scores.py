"""Scores of regressors on private records: what moves them, what they say, what is refused."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tapes import record, replay

from dpglm import PrivacyBudget, seeded_noise
from dpglm.audit.recorder import largest_ratio
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.noise import entropy_source
from dpglm.workflow import (
    private_scores,
)
from dpglm.workflow.releases import Deviance, ScoreVault, records_of_numbers

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]
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
    estimate = 4 if relation == "add_or_remove_one" else None
    budget = PrivacyBudget(30.0, 1e-3, relation, estimate)
    vault = ScoreVault(held(KINDS[:3]), [(GaussianEvent(1.0), 9)], budget, entropy_source())
    alone = [held([kind]).total(name) for kind in KINDS]
    moved = np.ptp(alone) if relation == "replace_one" else np.abs(alone).max()
    assert moved / vault.sensitivity(name) == pytest.approx(1)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [1e-6, 0.1])
def test_neighbours_release_the_same_things_and_a_null_record_adds_nothing(relation, delta):
    """With pure noise and with Gaussian noise, and with any answers before the last sums."""
    rng, estimate = np.random.default_rng(0), 50 if relation == "add_or_remove_one" else None
    X, y = rng.normal(size=(50, 1)), rng.normal(size=50)
    X[0], y[0] = 1e5, -1e9
    settings = {"epsilon": 1.0, "delta": delta, "neighboring_relation": relation}
    settings |= {"n_samples_estimate": estimate, "target_bounds": (-3, 3)}
    with record() as one:
        private_scores(Says(), X, y, **settings)
    X[0], y[0] = {"zero_out": (1e300, 0), "replace_one": (3.0, 3.0)}.get(relation, (0, 0))
    rows = slice(estimate and 1, None)
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
