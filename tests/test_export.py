"""A fitted model elsewhere: scikit-learn, ONNX, skops, a small pickle, and on a screen."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix
from sklearn.base import is_regressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from strategies import through_skops

import dpglm
from dpglm import (
    DPAGDClassifier,
    DPGammaRegressor,
    DPLinearRegression,
    DPLinearSVM,
    DPLogisticRegression,
    DPPoissonRegressor,
    baselines,
)
from dpglm.datasets import make_census
from dpglm.schedules import ExponentialDecay, HeavyBall
from dpglm.schema import load_schema

X, Y = make_census(400, random_state=0)
SEVERAL = np.array(["a", "b", "c"])[Y + (X[:, 0] > 0.3)]
MODELS = {
    DPLogisticRegression: {"max_iter": 3},
    DPLinearSVM: {"max_iter": 3},
    DPAGDClassifier: {"max_iter": 3},
}


@pytest.fixture(scope="module", params=[np.array([-1, 1])[Y], SEVERAL], ids=["+-", "abc"])
def models(request):
    return [Model(**given).fit(X, request.param) for Model, given in MODELS.items()]


def test_a_model_of_sklearn_scores_to_the_last_bit(models):
    for model in models:
        plain = model.to_sklearn()
        kind = LogisticRegression if hasattr(model, "predict_proba") else LinearSVC
        assert type(plain) is kind
        for rows in (X, X.astype(np.float32), csr_matrix(X)):
            assert (plain.decision_function(rows) == model.decision_function(rows)).all()
            assert (plain.predict(rows) == model.predict(rows)).all()
        if kind is LogisticRegression:
            chances = plain.predict_proba(X), model.predict_proba(X)
            np.testing.assert_allclose(*chances, rtol=0, atol=1e-15)
        plain.coef_ += 1.0
        assert (plain.coef_ != model.coef_).all()


def test_what_shortens_rows_is_no_model_of_sklearn_but_its_small_copy_shortens_them_too():
    model = baselines.ObjectivePerturbation(max_row_norm=1.5).fit(X, Y)
    with pytest.raises(ValueError, match="ObjectivePerturbation clips rows to its max_row_norm"):
        model.to_sklearn()
    assert (model.slim().predict(X) == model.predict(X)).all()


def test_every_estimator_that_changes_rows_says_that_it_shortens_them():
    estimators = [*MODELS, *(getattr(baselines, name) for name in baselines.__all__)]
    for Model in estimators:
        own = Model._as_fitted is not DPLogisticRegression._as_fitted
        assert Model._shortens_rows == own


def test_a_slim_copy_is_small_and_has_all_but_the_trace(models):
    for model in models:
        small = model.slim()
        again = pickle.loads(pickle.dumps(small))
        assert len(pickle.dumps(small)) < 10_000 and hasattr(model, "trace_")
        assert set(vars(model)) - set(vars(again)) == {"trace_"}
        assert (again.predict(X) == model.predict(X)).all() and again.privacy_ == model.privacy_


def onnx_outputs(model, rows):
    skl2onnx = pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    options = None if is_regressor(model) else {"zipmap": False}
    file = skl2onnx.to_onnx(model, rows[:1], options=options).SerializeToString()
    return runtime.InferenceSession(file).run(None, {"X": rows})


def test_onnx_predicts_the_same(models):
    for model in models:
        if hasattr(model, "predict_proba"):
            labels, chances = onnx_outputs(model.to_sklearn(), X)
            assert (labels == model.predict(X)).all()
            np.testing.assert_allclose(chances, model.predict_proba(X), rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_skops_needs_no_other_types_for_any_estimator():
    frame, y = make_census(300, random_state=0, as_frame=True)
    settings = {"noise_schedule": ExponentialDecay(ratio=0.9), "momentum": HeavyBall(0.5)}
    diagonal = dpglm.DiagonalPreconditioner()
    models = [DPLogisticRegression(max_iter=2, preconditioner=diagonal, **settings)]
    models += [DPAGDClassifier(), DPAGDClassifier.as_published()]
    models += [DPLinearSVM(sampling_rate=0.1, max_iter=2)]
    models += [getattr(baselines, name)() for name in baselines.__all__]
    for model in models:
        pipeline = make_pipeline(load_schema("census").transformer(), model).fit(frame, y)
        again = through_skops(pipeline)
        assert (again.predict(frame) == pipeline.predict(frame)).all()
        assert again[-1].privacy_ == model.privacy_


@pytest.mark.parametrize("Model", [DPLinearRegression, DPPoissonRegressor, DPGammaRegressor])
def test_a_regressor_predicts_the_same_elsewhere_within_its_range(Model):
    model = Model(target_bounds=(1.0, 1.5), max_iter=3).fit(X, np.clip(np.exp(X[:, 0]), 1, 2))
    within, far = model.predict(X), np.vstack([100 * X[:5], -100 * X[:5]])
    plain = model.to_sklearn()
    assert type(plain).__name__ == Model.__name__.replace("DP", "")
    for rows in (X, csr_matrix(X)):
        assert_allclose(np.clip(plain.predict(rows), 1.0, 1.5), within, rtol=1e-14)
    assert np.ptp(plain.predict(far)) > 0.5 >= np.ptp(model.predict(far))
    assert (pickle.loads(pickle.dumps(model.slim())).predict(X) == within).all()
    again = through_skops(model)
    assert (again.predict(X) == within).all() and again.trace_.target == model.trace_.target
    (found,) = onnx_outputs(plain, X)
    assert_allclose(found.ravel(), plain.predict(X), rtol=1e-12)


def test_what_users_print_fits_on_a_screen():
    # 31 columns of a matrix are few enough for numpy to print all of its entries.
    model, plan = DPLogisticRegression(max_iter=60).fit(X[:, :30], Y), DPAGDClassifier().plan(9, 30)
    for one in (model, model.trace_, model.trace_.whitening, model.privacy_, plan, plan.budget):
        text = repr(one)
        assert len(text) <= 1920 and text.count("\n") < 24, text
        assert " object at 0x" not in text
        assert type(one).__name__ in text
