"""Around a private fit: who scores or multiplies it is told so, once a process."""

import itertools
import math
import pickle
import re
import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, SequentialFeatureSelector
from sklearn.inspection import permutation_importance
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    learning_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline

from dpglm import (
    BudgetExceededError,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyOdometer,
    PrivacyWarning,
    PrivateSearchCV,
    PublicBoundsScaler,
    private_scores,
    total_privacy,
)
from dpglm.baselines import MajorityClassifier, ObjectivePerturbation, PrivGene
from dpglm.privacy import odometer
from dpglm.privacy.odometer import SPENT
from dpglm.privacy.vault import Vault
from dpglm.workflow import PrivateCalibratedClassifier, PrivateThresholdClassifier

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(120, 3))
Y = (X[:, 0] > 0).astype(int)
MANY = np.column_stack([Y, Y])
FAST = {"classes": [0, 1], "max_iter": 1, "delta": 1e-3, "preconditioner": None}
MODEL, SVM = DPLogisticRegression(**FAST), DPLinearSVM(**FAST)
FITTED = clone(MODEL).fit(X, Y)
SEARCH = PrivateSearchCV(MODEL, {"alpha": [0.0, 0.1]}, classes=[0, 1], delta=1e-3)
FOLDS = KFold(2)
TOLD = "Scores of scikit-learn have no noise"


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(odometer, "_copies", itertools.count(1))
    odometer._said_once.clear()


def told(run):
    """Return how often a run warns of exact scores and of the fits of copies."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    messages = [str(w.message) for w in caught if w.category is PrivacyWarning]
    return sum(message.startswith(TOLD) for message in messages)


REACHED = {
    "GridSearchCV": lambda: GridSearchCV(MODEL, {"alpha": [0.0]}, cv=FOLDS).fit(X, Y),
    "a scorer": lambda: GridSearchCV(MODEL, {}, cv=FOLDS, scoring="roc_auc").fit(X, Y),
    "a pipeline": lambda: cross_val_score(
        make_pipeline(PublicBoundsScaler(-1, 1), MODEL), X, Y, cv=FOLDS, scoring="accuracy"
    ),
    "HalvingGridSearchCV": lambda: HalvingGridSearchCV(
        MODEL, {"alpha": [0.0, 0.1]}, cv=FOLDS, scoring="neg_log_loss"
    ).fit(X, Y),
    "cross_val_predict": lambda: cross_val_predict(MODEL, X, Y, cv=FOLDS),
    "a private search in folds": lambda: cross_val_predict(SEARCH, X, Y, cv=FOLDS),
    "learning_curve": lambda: learning_curve(MODEL, X, Y, cv=FOLDS, scoring="f1"),
    "permutation_importance": lambda: permutation_importance(FITTED, X, Y, n_repeats=1),
    "Stacking": lambda: StackingClassifier([("a", MODEL)], SVM, cv=FOLDS).fit(X, Y),
    "Voting": lambda: VotingClassifier([("a", MODEL), ("b", SVM)]).fit(X, Y),
    "Bagging": lambda: BaggingClassifier(MODEL, 2).fit(X, Y),
    "Calibrated": lambda: CalibratedClassifierCV(MODEL, cv=FOLDS).fit(X, Y),
    "OneVsRest": lambda: OneVsRestClassifier(MODEL).fit(X, MANY),
    "MultiOutput": lambda: MultiOutputClassifier(MODEL).fit(X, MANY),
    "RFE": lambda: RFE(MODEL, n_features_to_select=1).fit(X, Y),
    "SequentialFeatureSelector": lambda: SequentialFeatureSelector(
        MODEL, n_features_to_select=1, cv=FOLDS, scoring="roc_auc"
    ).fit(X, Y),
    # What joblib sends to two of its processes; tests of many nestings start real ones.
    "processes": lambda: [pickle.dumps(clone(MODEL)) for _ in range(2)],
    "processes that copy": lambda: [pickle.dumps(BaggingClassifier(MODEL)) for _ in range(2)],
}


@pytest.mark.parametrize("place", REACHED)
def test_dayone_scikit_learn_fits_and_scores_with_one_warning_a_process(place):
    assert told(REACHED[place]) == 1
    assert told(REACHED[place]) == 0


SCORED = [
    FITTED,
    clone(SVM),
    DPAGDClassifier(classes=[0, 1], max_iter=2),
    MajorityClassifier(classes=[0, 1]),
    ObjectivePerturbation(classes=[0, 1]),
    PrivGene(classes=[0, 1], max_iter=2),
    SEARCH,
    make_pipeline(PublicBoundsScaler(-1, 1), MODEL),
    PrivateCalibratedClassifier(FITTED, epsilon=30.0, delta=1e-3),
    PrivateThresholdClassifier(FITTED, epsilon=30.0, delta=1e-3),
]


@pytest.mark.parametrize("model", SCORED, ids=lambda model: type(model).__name__)
def test_dayone_a_score_says_once_that_it_is_exact(model):
    # Of one fit nothing is said, nor of what is asked of it.
    assert told(lambda: model.fit(X, Y).predict(X)) == 0
    with warnings.catch_warnings(action="error"):
        for _ in range(2):  # an error each time: what a test finds is not of the order of tests
            with pytest.raises(PrivacyWarning, match="private_scores and PrivateKFold"):
                model.score(X, Y)
    assert told(lambda: [model.score(X, Y), model.score(X, Y)]) == 1


def test_dayone_rows_in_blocks_are_scored_with_the_same_word():
    model = clone(MODEL)
    assert told(lambda: model.fit([(X, Y)])) == 0
    assert told(lambda: model.score([(X[:60], Y[:60]), (X[60:], Y[60:])])) == 1


@pytest.mark.skipif(not hasattr(BaseEstimator, "_html_repr"), reason="needs scikit-learn 1.7")
def test_dayone_a_diagram_in_a_notebook_names_the_check_of_pipelines():
    for model in (MODEL, SEARCH, PrivateThresholdClassifier(FITTED)):
        assert "check_pipeline(pipeline)" in model._repr_mimebundle_()["text/html"]


def test_dayone_a_search_that_was_changed_after_its_fit_has_no_total():
    search = GridSearchCV(clone(MODEL), {"alpha": [0.0]}, cv=FOLDS).fit(X, Y)
    search.estimator.set_params(epsilon=0.01)
    with pytest.raises(ValueError, match="was changed after its fit"):
        total_privacy(search, *X.shape)


def test_dayone_private_work_is_done_without_this_warning():
    def private():
        SEARCH.fit(X, Y)
        private_scores(FITTED, X, Y, epsilon=30.0, delta=1e-3)
        PrivateThresholdClassifier(FITTED, epsilon=30.0, delta=1e-3).fit(X, Y)
        pickle.loads(pickle.dumps([FITTED, SEARCH.best_estimator_, FITTED.slim()]))

    assert told(private) == 0
    with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
        assert math.isfinite(cross_val_score(MODEL, X, Y, cv=FOLDS).mean())


INTERRUPTED = [
    lambda: clone(MODEL).fit(X, Y),
    lambda: DPAGDClassifier(classes=[0, 1], max_iter=2, delta=1e-3).fit(X, Y),
    lambda: MajorityClassifier(classes=[0, 1], delta=1e-3).fit(X, Y),
    lambda: clone(SEARCH).fit(X, Y),
    lambda: private_scores(FITTED, X, Y, epsilon=1.0, delta=1e-3),
    lambda: PrivateThresholdClassifier(FITTED, epsilon=1.0, delta=1e-3).fit(X, Y),
    lambda: GridSearchCV(MODEL, {}, cv=FOLDS).fit(X, Y),
]


@pytest.mark.parametrize("run", INTERRUPTED)
def test_dayone_an_interrupt_says_what_was_spent_and_what_is_left(run, tmp_path, monkeypatch):
    release = Vault._release

    def interrupt(*given, **more):
        release(*given, **more)
        raise KeyboardInterrupt

    with PrivacyOdometer(tmp_path / "study.db", epsilon=3.0) as study:
        monkeypatch.setattr(Vault, "_release", interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run()
        monkeypatch.undo()
        spent, left = stopped.value.__notes__
        assert spent.startswith(SPENT) and "epsilon=1 at delta=0.001" in spent
        assert str(study.path) in left
        # What is said to be left is left, in a refusal as well.
        with pytest.raises(BudgetExceededError, match=r"epsilon=\S+ is left") as refused:
            DPLogisticRegression(classes=[0, 1], epsilon=2.9).fit(X, Y)
        said = [re.search("epsilon=([0-9.]+) is left", str(e)) for e in (left, refused.value)]
        assert said[0][1] == said[1][1] and float(said[0][1]) > 0.99 * study.remaining()
        DPLogisticRegression(classes=[0, 1], epsilon=float(said[0][1])).fit(X, Y)
