"""The estimators: the non-private limit, labels, bad input, odd data, failure."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from dpglm import DPLinearSVM, DPLogisticRegression, seeded_noise
from dpglm.datasets import make_census
from dpglm.estimators.solvers import FitTrace
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy import vault as vaults
from dpglm.schedules import HeavyBall
from dpglm.schema import PublicBoundsScaler
from dpglm.sources.arrays import ArraySource

ESTIMATORS = [DPLogisticRegression, DPLinearSVM]
NO_NOISE = {
    "epsilon": math.inf, "clip_schedule": math.inf, "averaging": None, "preconditioner": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def census():
    return make_census(3000, random_state=0)


REACHES_THE_OPTIMUM = {
    **NO_NOISE, "alpha": 1e-2, "momentum": HeavyBall(0.95), "step_schedule": 0.3, "max_iter": 1500,
}  # fmt: skip


@pytest.mark.parametrize("class_weight", [pytest.param(None, marks=pytest.mark.slow), {1: 3.0}])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_noise_or_clip_heavy_ball_reaches_the_optimum_of_scikit_learn(
    n_classes, class_weight, census
):
    X = census[0][:1000]
    y = census[1][:1000] if n_classes == 2 else np.random.default_rng(0).integers(3, size=1000)
    if n_classes == 3:
        y[X[:, 0] > 0.5] = 2
    model = DPLogisticRegression(**REACHES_THE_OPTIMUM, class_weight=class_weight).fit(X, y)
    reference = LogisticRegression(
        C=1 / (len(X) * 1e-2), class_weight=class_weight, tol=1e-10, max_iter=10_000
    ).fit(X, y)
    assert model.coef_.shape == (1 if n_classes == 2 else 3, X.shape[1])
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(X), abs=1e-4)
    assert model.predict_log_proba(X) == pytest.approx(reference.predict_log_proba(X), abs=1e-3)


def test_smoothed_svm_minimises_its_objective(census):
    from scipy.optimize import minimize

    X, y = census[0][:, :8], 2.0 * census[1] - 1
    h, alpha = 0.5, 1e-2

    def objective(w):
        short = np.clip(1 + h - y * (X @ w[:-1] + w[-1]), 0, None)
        loss = np.where(short <= 2 * h, short**2 / (4 * h), short - h)
        return loss.mean() + alpha / 2 * w[:-1] @ w[:-1]

    best = minimize(objective, np.zeros(9), method="L-BFGS-B", tol=1e-14).fun
    model = DPLinearSVM(
        **NO_NOISE, half_width=h, alpha=alpha, momentum=HeavyBall(0.9), step_schedule=0.3,
        max_iter=2000,
    ).fit(X, y)  # fmt: skip
    assert objective(np.append(model.coef_[0], model.intercept_)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "labels", [("no", "yes"), (False, True), (-1, 1), (0, 1, 2), ("b", "a", "c", "d"), (7.0, 3.0)]
)
def test_any_labels_are_predicted_as_given(Estimator, labels):
    rng = np.random.default_rng(0)
    index = rng.integers(len(labels), size=300)
    X = np.eye(len(labels))[index] * 3 + rng.normal(size=(300, len(labels))) / 10
    y = np.array(labels)[index]
    model = Estimator(epsilon=50.0).fit(X, y)
    assert model.classes_.tolist() == sorted(labels)
    assert model.predict(X).dtype == y.dtype
    assert model.score(X, y) > 0.95


@pytest.mark.parametrize(
    ("labels", "declared"),
    [
        (np.array([0, 1], dtype=np.int8), [0, 1]),
        (np.array(["no", "yes"], dtype=object), ["no", "yes"]),
        (np.array([False, True]), [0, 1]),
        (np.array([0.0, 1.0]), [1.0, 0.0]),
    ],
)
def test_a_declared_label_set_has_the_type_of_the_labels(labels, declared):
    X, y = np.eye(6), np.resize(labels, 6)
    inferred = DPLogisticRegression(max_iter=2).fit(X, y).classes_
    model = DPLogisticRegression(max_iter=2, classes=declared).fit(X, y)
    assert model.classes_.dtype == inferred.dtype == model.predict(X).dtype
    assert model.classes_.tolist() == inferred.tolist()


@pytest.mark.parametrize(
    ("labels", "declared"), [(["no", "no"], ["no", "yes"]), (np.int8([0, 1]), [0, 1, 1000])]
)
def test_labels_that_would_not_fit_into_that_type_keep_their_own(labels, declared):
    model = DPLogisticRegression(max_iter=2, classes=declared).fit(np.eye(2), labels)
    assert model.classes_.tolist() == declared


@pytest.mark.parametrize("container", [np.asarray, csr_array, ArraySource])
def test_float32_rows_give_float32_coefficients_which_round_what_was_released(container, census):
    X, y = census[0].astype(np.float32), census[1]
    data = (container(X, y),) if container is ArraySource else (container(X), y)
    model = DPLogisticRegression(max_iter=3).fit(*data)
    released = model.trace_.coef
    assert model.coef_.dtype == model.intercept_.dtype == np.float32
    assert released.dtype == np.float64
    assert (np.append(model.coef_, model.intercept_) == released.astype(np.float32)).all()
    scores = X @ released[:-1] + released[-1]
    assert model.decision_function(X) == pytest.approx(scores, rel=1e-4, abs=1e-5)


def test_the_ledger_says_whether_the_label_set_was_inferred(census):
    X, y = census
    assert "inferred" in str(DPLogisticRegression(max_iter=2).fit(X, y).privacy_)
    declared = DPLogisticRegression(max_iter=2, classes=[0, 1]).fit(X, y)
    assert "inferred" not in declared.privacy_.statement


def test_a_seed_warns_reproduces_and_is_on_the_ledger(census):
    X, y = census
    model = DPLogisticRegression(max_iter=5)
    with seeded_noise(3):
        with pytest.warns(PrivacyWarning, match="seeded_noise makes the noise reproducible"):
            first = clone(model).fit(X, y)
        second = clone(model).fit(X, y)
    fresh = [clone(model).fit(X, y) for _ in range(2)]
    assert (first.coef_ == second.coef_).all() and first.privacy_.seeded
    assert (fresh[0].coef_ != fresh[1].coef_).all() and not fresh[0].privacy_.seeded
    with pytest.raises(ValueError, match="may coincide"):
        first.privacy_ + second.privacy_


BAD_PARAMETERS = [
    ({"alpha": 1e50}, r"alpha=1e\+50 must be a number of at least 0 and at most 1e\+12"),
    ({"classes": [0, 1, 1]}, r"classes=\[0, 1, 1\] must list"),
    ({"classes": [0, 2]}, r"label .*1.*, which is not in classes=\[0, 2\]"),
    ({"fit_intercept": "no"}, "fit_intercept='no' must be True or False"),
    ({"class_weight": {5: 1.0}}, "class_weight names the label 5"),
    ({"class_weight": {0: 1e300}}, r"class_weight\[0\]=1e\+300 must be .* at most 1e\+06"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS)
def test_bad_parameters_are_sentences_raised_before_any_noise(parameters, message, monkeypatch):
    X, y = np.eye(6), [0, 1] * 3
    model = DPLogisticRegression(max_iter=2).fit(X, y).set_params(**parameters)
    monkeypatch.setattr(vaults, "rounded_gaussian", lambda *_: pytest.fail("noise was drawn"))
    with pytest.raises(ValueError, match=message) as info:
        model.fit(X, y)
    assert not hasattr(info.value, "privacy_ledger")
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_no_floating_point_setting_of_the_caller_reveals_the_data():
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    X[3], X[5] = 1e-200, 1e308
    with np.errstate(all="raise"):
        assert DPLogisticRegression(max_iter=3).fit(X, y).n_iter_ == 3


@pytest.mark.parametrize(("value", "found"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_missing_values_are_refused_without_advice_that_breaks_the_guarantee(value, found):
    X = np.eye(6)
    X[0, 0] = value
    for data in ((X, [0, 1] * 3), (ArraySource(X, [0, 1] * 3),)):
        with pytest.raises(ValueError, match=f"contains .*{found}.* public constant") as info:
            DPLogisticRegression(classes=[0, 1]).fit(*data)
        assert "imputer" not in str(info.value) and "drop samples" not in str(info.value)
    with pytest.raises(ValueError, match=r"contains .* public constant"):
        # Of the first person two rows count, and this is the third.
        DPLogisticRegression(max_contributions=2).fit(
            X[::-1], [0, 1] * 3, groups=[1, 2, 3, 4, 1, 1]
        )
    model = DPLogisticRegression(classes=[0, 1], max_iter=1).fit(np.eye(6), [0, 1] * 3)
    scaler = PublicBoundsScaler().fit(np.eye(6))
    for ask in (model.predict, model.predict_proba, scaler.fit, scaler.transform):
        with pytest.raises(ValueError, match=f"contains .*{found}.* public constant") as info:
            ask(X)
        assert "imputer" not in str(info.value)


def test_labels_of_a_type_with_gaps_are_predicted_as_declared():
    for dtype, classes in (("boolean", [False, True]), ("Int64", [0, 1])):
        y = pd.Series([0, 1] * 20).astype(dtype)
        model = DPLogisticRegression(classes=classes, max_iter=2).fit(np.eye(40), y)
        assert [*map(type, model.predict(np.eye(40)[:2]).tolist())] == [type(classes[0])] * 2


def test_steps_that_diverge_warn(census):
    X, y = census
    with pytest.warns(ConvergenceWarning, match="diverged"):
        DPLogisticRegression(step_schedule=1e200, max_iter=3).fit(X, y)


def test_a_trace_counts_iterations_where_there_is_one_release_and_where_there_are_many():
    single = FitTrace(output_std=0.5)
    assert (single.n_iter, single.output_std, len(single.to_frame())) == (1, 0.5, 0)
    adaptive = FitTrace("iteration", "step")
    assert (adaptive.n_iter, adaptive.to_frame().index.name) == (0, "release_number")
    for iteration, step in ((1, None), (1, 0.5), (2, None), (3, 0.0)):
        adaptive.record(iteration=iteration, step=step)
    assert (adaptive.n_iter, adaptive.accepted_steps) == (3, [0.5])
    assert adaptive.to_frame()["step"].isna().tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 3), "n_samples=0"), ((5, 2.0), r"n_features=2\.0"), ((5, 3, 1), "n_classes=1")],
)
def test_a_plan_checks_its_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        DPLogisticRegression().plan(*arguments)
