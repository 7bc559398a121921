"""Callbacks see copies and released coefficients, and cannot stop a fit or leave with a model."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from dpglm import DPAGDClassifier, DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.exceptions import PrivacyWarning
from dpglm.workflow import PrivateSearchCV

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 and later has them")

X, Y = make_census(300, random_state=0)


class Recorder:
    """A callback that notes what it sees, and asks to stop at once."""

    def __init__(self):
        self.tasks, self.fitted = [], []

    def setup(self, estimator, context):
        self.tasks.append("setup")

    def teardown(self, estimator, context):
        self.tasks.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X, y):
        self.tasks.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
        self.tasks.append(f"end {context.task_name}")
        self.fitted.append(fitted_estimator.decision_function(X))
        return context.task_name == "iteration"


@pytest.mark.parametrize("preconditioner", [None, "diagonal", "full"])
@pytest.mark.parametrize(
    "model", [M(max_iter=3, averaging=None) for M in (DPLogisticRegression, DPAGDClassifier)]
)
def test_a_callback_sees_every_iteration_and_cannot_stop_the_fit(model, preconditioner):
    recorder, model = Recorder(), clone(model).set_params(preconditioner=preconditioner)
    with pytest.warns(PrivacyWarning, match="asked to stop the fit; the request is ignored"):
        model.set_callbacks(recorder).fit(X, Y)
    iteration = ["begin iteration", "end iteration"]
    assert recorder.tasks == ["setup", "begin fit", *iteration * 3, "end fit", "teardown"]
    assert model.n_iter_ == 3
    for scores in recorder.fitted[-2:]:
        assert (scores == model.decision_function(X)).all()


class Iterates(Recorder):
    """Notes the decisions as each iteration begins and ends, None where there is no estimator."""

    def on_fit_task_begin(self, estimator, context, *, X, fitted_estimator):
        if context.task_name == "iteration":
            self.note(X, fitted_estimator)

    on_fit_task_end = on_fit_task_begin

    def note(self, X, fitted_estimator):
        self.fitted.append(fitted_estimator and fitted_estimator.decision_function(X).tolist())


def test_an_iteration_begins_where_the_last_one_ended():
    DPLogisticRegression(max_iter=3).set_callbacks(recorder := Iterates()).fit(X, Y)
    begun, ended = recorder.fitted[::2], recorder.fitted[1::2]
    assert len(ended) == 3 and begun == [[0.0] * len(X), *ended[:-1]]


def test_an_iteration_in_which_no_step_helps_ends_without_an_iterate():
    model = DPAGDClassifier(epsilon=np.inf).set_callbacks(recorder := Iterates())
    model.fit(np.zeros_like(X), np.arange(len(X)) % 2)
    assert recorder.fitted == [[0.0] * len(X), None] and model.n_iter_ == 1


def test_callbacks_that_saw_a_fit_are_not_pickled():
    """They may have recorded scores without noise: not with the model, nor a clone, nor later."""
    model = DPLogisticRegression(max_iter=2).set_callbacks(Recorder())
    assert len(pickle.loads(pickle.dumps(model))._skl_callbacks) == 1
    with pytest.warns(PrivacyWarning, match="asked to stop"):
        model.fit(X, Y)
    for left in (model, clone(model)):
        assert pickle.loads(pickle.dumps(left))._skl_callbacks == []
    assert "callbacks" in model.privacy_.statement
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(X, np.nan), Y)
    assert b"Recorder" not in pickle.dumps(model)
    assert "callbacks" not in str(DPLogisticRegression(max_iter=2).fit(X, Y).privacy_)


@pytest.mark.parametrize("inside", [False, True])
def test_a_search_is_not_pickled_with_callbacks_that_saw_its_fits(inside):
    model = DPLogisticRegression(max_iter=2).set_callbacks(Recorder())
    estimator = Pipeline([("encode", "passthrough"), ("dp", model)]) if inside else model
    name = "dp__clip_schedule" if inside else "clip_schedule"
    with pytest.warns(PrivacyWarning, match="asked to stop"):
        search = PrivateSearchCV(estimator, {name: [0.1]}).fit(X, Y)
    assert b"Recorder" not in pickle.dumps(search)
    assert b"Recorder" not in pickle.dumps(model) and len(model._skl_callbacks) == 1


def test_a_callback_cannot_change_the_data_of_the_fit():
    before = X.copy()

    class Vandal(Recorder):
        def on_fit_task_end(self, estimator, context, *, X):
            X *= 1e6

    model = DPLogisticRegression(epsilon=np.inf, max_iter=3)
    edited = clone(model).set_callbacks(Vandal()).fit(X, Y)
    assert (before == X).all()
    assert (edited.coef_ == model.fit(X, Y).coef_).all()


def test_a_progress_bar_works():
    pytest.importorskip("rich")
    DPLogisticRegression(max_iter=3).set_callbacks(callback.ProgressBar()).fit(X, Y)
