"""The estimators are scikit-learn citizens: checks, pipelines, searches, callbacks."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_class_weight_classifiers, parametrize_with_checks

from dpglm import (
    DecayingClip,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    DynamicNoise,
    Geometric,
    PrivacyWarning,
)
from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.output_perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.datasets import make_census

NO_SIGNAL = (
    "The check trains on 50 rows of norm about 25 and wants the class weights to outvote them, "
    "which only the intercept can. Clipped to C, row i adds at most C / ||(x_i, 1)|| to the "
    "intercept's sum, so all rows of the heavy class together shift the whole run by at most "
    "mu sum_i 1 / ||(x_i, 1)|| = 0.34 standard deviations of its noise, whatever the clip, steps "
    "and iterations. Whitening may stretch the intercept against the features, but its mean "
    "square is 2 of a noise of 98, so by less than 3: the shift stays below one standard "
    "deviation, and at the default budget the sign of the intercept is near a coin flip."
)

TEN_TIMES_THE_SIGNAL = (
    "At a weight of 1,000 the noise gives the score of a row of norm 25 ten times the standard "
    "deviation of what 50 rows can add to the intercept."
)

# Each reason is proven in the tests of that baseline; None where no check fails.
BASELINES = {
    ObjectivePerturbation: TEN_TIMES_THE_SIGNAL,
    OutputPerturbation: TEN_TIMES_THE_SIGNAL,
    ApproximateMinimaPerturbation: TEN_TIMES_THE_SIGNAL,
    DoubleNoiseNewton: "With a weight of 1,000 a direction on 50 rows is almost all noise.",
    PrivGene: "Features of up to 60 count as 1 in the fit, and 1,000 choices are near coin flips.",
    SGDMomentsAccountant: "The intercept's signal is .4 standard deviations of its noise.",
    SGDAdvancedComposition: None,
    MajorityClassifier: None,
}


def expected_failed_checks(estimator):
    reason = BASELINES.get(type(estimator), NO_SIGNAL)
    return {} if reason is None else {"check_class_weight_classifiers": reason}


@parametrize_with_checks(
    [
        DPLogisticRegression(),
        DPLinearSVM(),
        DPAGDClassifier(),
        *(Baseline() for Baseline in BASELINES),
    ],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


def test_the_reason_for_the_one_expected_failure_holds():
    X, y = make_blobs(centers=2, random_state=0, cluster_std=20)
    X, _, y, _ = train_test_split(X, y, test_size=0.5, random_state=0)
    heavy = np.column_stack([X[y == 0], np.ones((y == 0).sum())])
    mu = DPLogisticRegression().plan(*X.shape).ledger.mu()
    shift = mu * (1 / np.linalg.norm(heavy, axis=1)).sum()
    assert shift == pytest.approx(0.34, abs=0.005)

    release = DPLogisticRegression().plan(*X.shape).second_moment
    noise = release.noise_multiplier * release.sensitivity
    norms = np.linalg.norm(np.column_stack([X, np.ones(len(X))]), axis=1)
    assert (np.minimum(1, release.row_bound / norms) ** 2).sum() < 2 < 98 < noise
    # Eigenvalues: the moment of 50 clipped rows and the noise's edge, over a ridge of the noise.
    largest = len(X) * release.row_bound**2 + noise * np.sqrt(2 * 3)
    stretch = np.sqrt((largest + noise) / noise)
    assert stretch < 3 and stretch * shift < 1


@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
def test_that_check_passes_once_the_budget_lets_the_signal_through(Estimator):
    check_class_weight_classifiers(Estimator.__name__, Estimator(epsilon=100.0))


GRID = [
    {"dp__noise_schedule": ["constant", DynamicNoise(decay=4.0)], "dp__momentum": [None, 0.6]},
    {"dp__noise_schedule": [Geometric()], "dp__noise_schedule__ratio": [0.95, 1.02]},
    {"dp__clip_schedule": [1.0, DecayingClip(2.0)], "dp__momentum": ["debiased"]},
]


def check_search(pipeline, X, y):
    search = GridSearchCV(pipeline, GRID, cv=2, n_jobs=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    best = search.best_estimator_[-1]
    assert best.privacy_.epsilon() <= best.epsilon
    return search


def test_grid_search_over_schedules_in_a_pipeline():
    X, y = make_census(1500, random_state=0)
    pipeline = Pipeline([("id", FunctionTransformer()), ("dp", DPLogisticRegression(max_iter=30))])
    search = check_search(pipeline, X, y)
    assert search.best_score_ > 0.7


def test_nested_parameters_of_a_schedule_do_not_leak_between_clones():
    model = DPLinearSVM(noise_schedule=Geometric(ratio=0.9))
    other = clone(model).set_params(noise_schedule__ratio=0.5)
    assert model.noise_schedule.ratio == 0.9 and other.noise_schedule.ratio == 0.5


@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
def test_a_fitted_estimator_survives_pickling(Estimator):
    X, y = make_census(500, random_state=0)
    model = Estimator(max_iter=5).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(X) == model.predict(X)).all()
    assert copy.privacy_ == model.privacy_


def test_html_representation_shows_the_parameters_and_nested_schedules():
    html = DPLogisticRegression(noise_schedule=Geometric(ratio=0.123))._repr_html_()
    assert "DPLogisticRegression" in html and "0.123" in html


def test_fitting_never_writes_to_a_parameter():
    X, y = make_census(300, random_state=0)
    model = DPLogisticRegression(max_iter=3)
    before = dict(model.get_params())
    model.fit(X, y)
    assert model.get_params() == before


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
        self.fitted.append(fitted_estimator.predict(X))
        return context.task_name == "iteration"


def test_a_callback_sees_every_iteration_and_cannot_stop_the_fit():
    X, y = make_census(300, random_state=0)
    recorder = Recorder()
    model = DPLogisticRegression(max_iter=3).set_callbacks(recorder)
    with pytest.warns(PrivacyWarning, match="asked to stop the fit; the request is ignored"):
        model.fit(X, y)
    iteration = ["begin iteration", "end iteration"]
    assert recorder.tasks == ["setup", "begin fit", *iteration * 3, "end fit", "teardown"]
    assert model.n_iter_ == 3 and model.privacy_.n_releases == 1 + 3
    assert (recorder.fitted[-1] == model.predict(X)).all()


def test_a_fitted_estimator_is_pickled_without_its_callbacks():
    """They may have recorded scores that were computed without noise."""
    X, y = make_census(300, random_state=0)
    model = DPLogisticRegression(max_iter=2).set_callbacks(Recorder())
    assert len(pickle.loads(pickle.dumps(model))._skl_callbacks) == 1
    with pytest.warns(PrivacyWarning, match="asked to stop"):
        model.fit(X, y)
    assert not hasattr(pickle.loads(pickle.dumps(model)), "_skl_callbacks")
    assert "callbacks" in str(model.privacy_)
    assert "callbacks" not in str(DPLogisticRegression(max_iter=2).fit(X, y).privacy_)


def test_a_callback_cannot_change_the_data_of_the_fit():
    X, y = make_census(300, random_state=0)
    before = X.copy()

    class Vandal(Recorder):
        def on_fit_task_end(self, estimator, context, *, X):
            X *= 1e6

    model = DPLogisticRegression(epsilon=np.inf, max_iter=3)
    edited = clone(model).set_callbacks(Vandal()).fit(X, y)
    assert (before == X).all()
    assert (edited.coef_ == model.fit(X, y).coef_).all()


def test_a_progress_bar_works():
    pytest.importorskip("rich")
    from sklearn.callback import ProgressBar

    X, y = make_census(300, random_state=0)
    DPLogisticRegression(max_iter=3).set_callbacks(ProgressBar()).fit(X, y)


@pytest.mark.parametrize("preconditioner", [None, "diagonal"])
def test_sparse_input_of_either_index_width_gives_the_dense_result(preconditioner):
    from scipy.sparse import csr_array

    X, y = make_census(400, random_state=0)
    settings = {"epsilon": np.inf, "max_iter": 20, "preconditioner": preconditioner}
    dense = DPLogisticRegression(**settings).fit(X, y)
    for dtype in (np.int32, np.int64):
        S = csr_array(X)
        S.indices, S.indptr = S.indices.astype(dtype), S.indptr.astype(dtype)
        model = DPLogisticRegression(**settings).fit(S, y)
        assert model.coef_ == pytest.approx(dense.coef_, rel=1e-9, abs=1e-12)
        assert model.decision_function(S) == pytest.approx(dense.decision_function(X), rel=1e-9)
