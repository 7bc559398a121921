"""First-day habits from other libraries, and how results print, in a terminal and a notebook."""

import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import dpglm
from dpglm import DPLinearSVM, DPLogisticRegression, PrivateSearchCV, baselines
from dpglm.exceptions import NAMES, PARAMETERS
from dpglm.workflow import PrivateCalibratedClassifier

ESTIMATORS = [
    DPLogisticRegression, DPLinearSVM, dpglm.DPAGDClassifier, PrivateSearchCV,
    PrivateCalibratedClassifier, *(getattr(baselines, name) for name in baselines.__all__),
]  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_dayone_parameters_of_other_libraries_are_answered_by_what_there_is(estimator):
    known = [*inspect.signature(estimator).parameters]
    search = estimator in (PrivateSearchCV, PrivateCalibratedClassifier)
    given = {"estimator": DPLogisticRegression()} if search else {}
    given |= {"param_grid": {}} if estimator is PrivateSearchCV else {}
    model = estimator(**given)
    for name in [*PARAMETERS, "eps"]:
        if name not in known:
            sentence = PARAMETERS.get(name, "its parameters are ")
            with pytest.raises(TypeError, match=f"Invalid parameter '{name}' for ") as built:
                estimator(**given, **{name: 1})
            with pytest.raises(ValueError, match=f"Invalid parameter '{name}' for ") as set_:
                model.set_params(**{name: 1})
            assert sentence in str(built.value) and sentence in str(set_.value)
    if not search:
        with pytest.raises(TypeError, match="by name: "):
            estimator(1.0)
    # scikit-learn and copies read the constructor itself.
    assert known == [*inspect.signature(estimator.__init__).parameters][1:]
    for same in (clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(same) == repr(model)


def test_dayone_the_same_is_said_in_grids_and_pipelines():
    X, y = np.eye(10), [0, 1] * 5
    for search in (GridSearchCV, PrivateSearchCV):
        with pytest.raises(ValueError, match=r"Invalid parameter 'C' .* alpha, as 1 / "):
            search(DPLogisticRegression(), {"C": [1.0]}).fit(X, y)
    with pytest.raises(ValueError, match="'tol' for DPLinearSVM: how long a run is"):
        make_pipeline(DPLinearSVM()).set_params(dplinearsvm__tol=1e-3)


def test_dayone_methods_that_are_not_here_say_what_is():
    search = PrivateSearchCV(DPLogisticRegression(), {})
    for model, name, instead in (
        (DPLinearSVM(), "predict_proba", "PrivateCalibratedClassifier"),
        (DPLinearSVM(), "predict_log_proba", "PrivateCalibratedClassifier"),
        (DPLogisticRegression(), "partial_fit", "blocks"),
        (search, "best_score_", "private_scores"),
    ):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=f"has no {name}: .*{instead}"):
            getattr(model, name)


def test_dayone_names_of_other_libraries_are_answered_by_those_of_this():
    for name, instead in NAMES.items():
        with pytest.raises(ImportError, match=f"no '{name}': use "):
            exec(f"from dpglm import {name}")
        whole = f"dpglm.{instead.split()[0].strip(',')}".replace("dpglm.dpglm", "dpglm").split(".")
        found = importlib.import_module("dpglm")
        for part in whole[1:]:
            found = getattr(found, part)
    with pytest.raises(ImportError, match=r"use dpglm\.study\.plot"):
        from dpglm import plot  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing_like_it'"):
        from dpglm import nothing_like_it  # noqa: F401
    assert not hasattr(dpglm, "nothing_like_it") and dpglm.study.plot
