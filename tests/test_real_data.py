"""Adult and BANK, where the folder that DPGLM_DATA names holds them."""

import os

import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline

from dpglm import DecayingClip, DPLogisticRegression, Geometric
from dpglm.datasets import fetch_adult

needs_data = pytest.mark.skipif(
    not os.path.isdir(os.environ.get("DPGLM_DATA", "")),
    reason="DPGLM_DATA does not name a folder with the data sets",
)


@pytest.fixture(scope="module")
def adult():
    return fetch_adult()


def pipeline_for(adult, **parameters):
    model = DPLogisticRegression(delta=1e-8, classes=adult.schema.classes, **parameters)
    return Pipeline([("encode", adult.schema.transformer()), ("dp", model)])


@needs_data
def test_grid_search_over_schedules_in_a_pipeline_on_adult(adult):
    grid = [
        {"dp__noise_schedule": ["constant", "geometric"], "dp__momentum": [None, 0.6]},
        {"dp__noise_schedule": [Geometric()], "dp__noise_schedule__ratio": [0.98, 1.02]},
        {"dp__clip_schedule": [1.0, DecayingClip(2.0)]},
    ]
    rows = adult.data.index < 6000
    search = GridSearchCV(pipeline_for(adult), grid, cv=2, n_jobs=2, error_score="raise")
    search.fit(adult.data[rows], adult.target[rows])
    assert len(search.cv_results_["params"]) == 8
    assert search.best_score_ > 0.76
    assert search.best_estimator_["dp"].privacy_.epsilon() <= 1.0


@needs_data
def test_default_accuracy_on_adult_at_epsilon_1(adult):
    scores = cross_val_score(pipeline_for(adult, epsilon=1.0), adult.data, adult.target, cv=5)
    assert scores.mean() >= 0.82
