"""Private work inside of private work: never understated, never before it is charged, in silence.

An odometer is the oracle: it counts what is made, wherever that is.
"""

import itertools
import math
import pickle
import random
import re
import threading
import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_selection import RFE, SelectFromModel, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    KFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyLedger,
    PrivacyOdometer,
    PublicBoundsScaler,
)
from dpglm.baselines import MajorityClassifier, PrivGene
from dpglm.exceptions import BudgetExceededError, PrivacyWarning, UtilityWarning
from dpglm.privacy import odometer as odometers
from dpglm.privacy.vault import Vault
from dpglm.workflow import (
    PrivateCalibratedClassifier,
    PrivateSearchCV,
    PrivateThresholdClassifier,
    make_private_scorer,
    private_scores,
    total_privacy,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::dpglm.exceptions.PrivacyWarning", "ignore::dpglm.exceptions.UtilityWarning"
)
RNG = np.random.default_rng(0)
X = RNG.uniform(0.1, 1.0, size=(60, 3))
Y = (X[:, 0] + 0.2 * RNG.normal(size=60) > 0.55).astype(int)
SMALL = {"max_iter": 1, "delta": 1e-3, "preconditioner": None}
MODEL = DPLogisticRegression(classes=[0, 1], **SMALL)


@dataclass(slots=True)
class Record:
    model: object


def mu_of(ledger):
    """The mu of what has noise; what breaks the guarantee is said apart from it."""
    kept = tuple(run for run in ledger.events if run[0].mu < np.inf)
    return PrivacyLedger(kept, ledger.neighboring_relation, 1e-3).mu() if kept else 0.0


class Nesting:
    """Draws models within models; what has to be fitted beforehand is, and is counted as well."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shared = SelectFromModel(clone(MODEL).set_params(epsilon=0.3), max_features=2)

    def pick(self, *makers):
        return self.random.choice(makers)()

    def private(self):
        kind = self.random.choice([DPLogisticRegression, DPLinearSVM])
        return kind(epsilon=self.random.choice([0.5, 1.0, 8.0]), classes=[0, 1], **SMALL)

    def jobs(self):
        return {"n_jobs": self.random.choice([None, 2])}

    def fitted(self):
        return clone(self.private()).fit(X, Y)

    def step(self, depth):
        if depth == 0:
            return self.pick(
                lambda: PublicBoundsScaler(0, 1),
                lambda: "passthrough",
                lambda: SelectFromModel(self.private(), max_features=2),
                lambda: SelectFromModel(self.fitted(), prefit=True, max_features=2),
                lambda: SelectFromModel(FrozenEstimator(self.fitted()), max_features=2),
                lambda: self.shared,
            )

        def parts():
            return [(name, self.step(depth - 1)) for name in self.random.sample("abcd", 2)]

        return self.pick(
            lambda: FeatureUnion(parts(), **self.jobs()),
            lambda: ColumnTransformer([(n, s, [0, 1, 2]) for n, s in parts()], **self.jobs()),
            lambda: Pipeline(parts()),
            lambda: SelectFromModel(self.linear(), max_features=2),
        )

    def linear(self):
        return self.pick(self.private, lambda: LogisticRegression(max_iter=5))

    def search(self, depth):
        model = Pipeline([("step", self.step(depth)), ("model", self.private())])
        grid = {"model__alpha": [0.0, 0.1]}
        return PrivateSearchCV(model, grid, classes=[0, 1], epsilon=1.0, delta=1e-3)

    def classifier(self, depth):
        if depth == 0:
            return self.pick(
                self.private,
                self.linear,
                lambda: FrozenEstimator(self.fitted()),
                lambda: PrivateSearchCV(self.private(), {"alpha": [0.0, 0.1]}, delta=1e-3),
            )

        def base():
            return self.classifier(depth - 1)

        tuned = self.random.choice([PrivateCalibratedClassifier, PrivateThresholdClassifier])
        scoring = make_private_scorer("accuracy", epsilon=0.1, delta=1e-3)
        folds, jobs = KFold(2), self.jobs()
        return self.pick(
            lambda: make_pipeline(self.step(depth - 1), base()),
            lambda: make_pipeline(self.step(depth - 1), base()),
            lambda: self.search(depth - 1),
            lambda: VotingClassifier([("a", base()), ("b", base())], **jobs),
            lambda: BaggingClassifier(base(), 2, bootstrap=False, **jobs),
            lambda: OneVsRestClassifier(base(), **jobs),
            lambda: OneVsOneClassifier(base()),
            lambda: CalibratedClassifierCV(
                base(), cv=folds, ensemble=self.random.choice([True, False])
            ),
            lambda: StackingClassifier([("a", base()), ("b", base())], MODEL, cv=folds),
            lambda: FixedThresholdClassifier(base()),
            lambda: TunedThresholdClassifierCV(base(), cv=folds),
            lambda: tuned(clone(self.private()).fit(X, Y), epsilon=0.5, delta=1e-3),
            lambda: GridSearchCV(base(), {}, cv=folds, error_score="raise", **jobs),
            lambda: GridSearchCV(self.private(), {"alpha": [0.1]}, cv=folds, scoring=scoring),
            lambda: RFE(self.linear(), n_features_to_select=2),
            lambda: make_pipeline(
                SequentialFeatureSelector(self.linear(), n_features_to_select=2, cv=folds), base()
            ),
        )

    def validated(self, model):
        return cross_validate(model, X, Y, cv=KFold(2), return_estimator=True)

    def study(self):
        """Return what was fitted, in a list, a dictionary, as a pickled copy, or beside scores."""
        model = self.classifier(self.random.choice([1, 1, 2, 2, 3])).fit(X, Y)
        many = RNG.integers(0, 2, size=(60, 2))
        return self.pick(
            lambda: model,
            lambda: [model, (model, None)],
            lambda: {"first": model, "others": [self.fitted()]},
            lambda: pickle.loads(pickle.dumps(model)),
            lambda: [model, private_scores(model, X, Y, epsilon=0.5, delta=1e-3)],
            lambda: [model, self.fitted().privacy_],
            lambda: np.array([model, self.fitted()], dtype=object),
            lambda: deque([("model", self.fitted(), self.fitted()), model]),
            lambda: [Record(model), {"a": self.fitted()}.values()],
            lambda: pd.Series({"a": model, "b": self.fitted()}),
            lambda: [model, pd.DataFrame(self.validated(self.private()))],
            lambda: self.validated(self.private()) | {"more": model},
            lambda: [model, self.validated(GridSearchCV(self.private(), {}, cv=KFold(2)))],
            lambda: [model, MultiOutputClassifier(self.private()).fit(X, many)],
            lambda: [TransformedTargetRegressor(model, check_inverse=False).fit(X, Y)],
            lambda: [model, ClassifierChain(self.private()).fit(X, many)],
        )


def compared(seed, folder):
    """Draw a study; return what is stated over what was recorded, or what was said instead."""
    with PrivacyOdometer(folder / f"{seed}.jsonl") as odometer:
        try:
            with parallel_config("threading" if (seed + 1) % 20 else "loky"):
                study = Nesting(seed).study()
        except Exception as error:
            # Of two threads the other may fit on, and the next block would count that.
            for thread in [t for t in threading.enumerate() if "worker" in t.name]:
                thread.join()
            return type(error).__name__
    if not odometer.entries():
        return "nothing private"
    try:
        ledger = total_privacy(study)
    except ValueError as error:
        return str(error)
    return mu_of(ledger) / mu_of(odometer.total)


def never_understated(seeds, folder):
    found = {seed: compared(seed, folder) for seed in seeds}
    stated = {seed: ratio for seed, ratio in found.items() if isinstance(ratio, float)}
    assert not {seed: ratio for seed, ratio in stated.items() if ratio < 1 - 1e-9}
    # A test of what refuses everything would not fail: of most it states what they cost, exactly.
    assert len(stated) > len(found) / 4
    assert np.median([*stated.values()]) < 1 + 1e-9
    return found


def test_dayone_the_total_of_random_nestings_is_never_understated(tmp_path):
    never_understated([2, 5, 7, 11, 15, 17, 21, 37, 38, 41, 44, 59], tmp_path)


@pytest.mark.slow
def test_dayone_the_total_of_many_random_nestings_is_never_understated(tmp_path):
    never_understated(range(520), tmp_path)


def selected(model):
    return SelectFromModel(model, max_features=2)


SPENDS = DPLogisticRegression(classes=[0, 1], epsilon=20.0, **SMALL)
HELD = PrivateCalibratedClassifier(clone(SPENDS).fit(X, Y), epsilon=20.0, delta=1e-3)
PRIVATE_STEPS = [
    selected(SPENDS),
    FeatureUnion([("a", selected(SPENDS)), ("b", "passthrough")], n_jobs=2),
    ColumnTransformer([("a", make_pipeline(selected(SPENDS)), [0, 1])], n_jobs=2),
    selected(PrivateSearchCV(SPENDS, {}, classes=[0, 1])),
    selected(GridSearchCV(SPENDS, {}, cv=KFold(2))),
    selected(StackingClassifier([("a", SPENDS)], SPENDS, cv=KFold(2))),
    selected(TransformedTargetRegressor(SPENDS)),
    selected(HELD),
    selected(GridSearchCV(LogisticRegression(), {}, scoring=make_private_scorer("auc", epsilon=9))),
]


@pytest.mark.parametrize("is_setting", [False, True])
@pytest.mark.parametrize("step", PRIVATE_STEPS)
def test_dayone_a_step_that_fits_privately_is_refused_before_anything_runs(
    tmp_path, step, is_setting
):
    model = Pipeline([("step", "passthrough" if is_setting else step), ("model", MODEL)])
    grid = {"step": ["passthrough", step]} if is_setting else {}
    search = PrivateSearchCV(model, grid, classes=[0, 1])
    with PrivacyOdometer(tmp_path / "fits.jsonl") as odometer:
        for refused in (lambda: search.plan(60, 3), lambda: search.fit(X, Y)):
            with pytest.raises(ValueError, match="and a search charges for its last step"):
                refused()
    assert not odometer.entries()


class Hidden(TransformerMixin, BaseEstimator):
    """Somebody else's step, whose parameters do not show that it fits privately, and when."""

    def __init__(self, when):
        self.when = when

    def fit(self, X, y=None):
        self.fitted_ = True
        return self.transform(X) and self if self.when == "fit" else self

    def transform(self, X):
        return X if clone(MODEL).fit(np.asarray(X), Y[: len(X)]) else None

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X) if self.when == "fit" else X


@pytest.mark.parametrize("n_jobs", [None, 2])
@pytest.mark.parametrize("when", ["fit", "transform"])
def test_dayone_a_step_that_hides_its_private_fit_is_refused_when_it_makes_it(
    tmp_path, n_jobs, when
):
    steps = FeatureUnion([("a", Hidden(when)), ("b", "passthrough")], n_jobs=n_jobs)
    model = make_pipeline(steps, MODEL)
    with PrivacyOdometer(tmp_path / "fits.jsonl") as odometer:
        search = PrivateSearchCV(model, {"dplogisticregression__alpha": [0.0, 1.0]}, classes=[0, 1])
        with pytest.raises(BudgetExceededError, match="before it released anything") as refused:
            search.fit(X, Y)
        # One that fits when it predicts is met once the search was charged, with all it may cost.
        charged = [search.plan(60, 6).ledger] if when == "transform" else []
        assert odometer.ledgers() == charged
        assert [getattr(refused.value, "privacy_ledger", None)] == (charged or [None])
        if when == "transform":
            with parallel_config("sequential"):
                fitted = model.fit(X, Y)
            n_entries = len(odometer.entries())
            with pytest.raises(BudgetExceededError):
                private_scores(fitted, X, Y, epsilon=1.0)
            assert len(odometer.entries()) == n_entries


def test_dayone_one_step_in_two_places_was_fitted_twice(tmp_path):
    step = selected(SPENDS)
    inner = make_pipeline(FeatureUnion([("a", step), ("b", step)]))
    with PrivacyOdometer(tmp_path / "fits.jsonl") as odometer:
        pipeline = make_pipeline(FeatureUnion([("c", step), ("d", inner)]), MODEL).fit(X, Y)
    assert len(odometer.entries()) == 4
    for study in (pipeline, [pipeline, pipeline[0]], {"a": pipeline}):
        assert mu_of(total_privacy(study)) == pytest.approx(mu_of(odometer.total), rel=1e-9)


SQUARES = FunctionTransformer(np.square, inverse_func=np.sqrt)
WARNS = [
    SQUARES,
    FunctionTransformer(np.log),
    FeatureUnion([("a", SQUARES), ("b", FunctionTransformer(np.arcsin))], n_jobs=2),
]


@pytest.mark.parametrize("step", WARNS)
@pytest.mark.parametrize("value", [0.5, -0.5, -2.0])
def test_dayone_nothing_is_said_of_one_value(step, value, capfd):
    table = X.copy()
    table[7, 1] = value
    keep = FunctionTransformer(lambda Z: np.nan_to_num(Z))
    model = make_pipeline(step, keep, MODEL)
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", UtilityWarning)  # of what was released
        PrivateSearchCV(model, {}, classes=[0, 1], delta=1e-3).fit(table, Y)
        ignored = warnings.catch_warnings(action="ignore")
        with ignored, np.errstate(all="ignore"), parallel_config("sequential"):
            fitted = model.fit(table, Y)
        capfd.readouterr()
        private_scores(fitted, table, Y, epsilon=1.0, delta=1e-3)
        for tuned in (PrivateCalibratedClassifier, PrivateThresholdClassifier):
            tuned(fitted, epsilon=20.0, delta=1e-3).fit(table, Y)
    assert capfd.readouterr() == ("", "")


def test_dayone_the_error_of_a_step_quotes_no_row(tmp_path):
    encoder = OneHotEncoder(categories=[["a", "b"]], sparse_output=False)
    model = make_pipeline(encoder, MODEL)
    rows = np.array([["a"], ["b"]] * 30)
    fitted = clone(model).fit(rows, Y)
    rows[5] = "s"
    with PrivacyOdometer(tmp_path / "fits.jsonl") as odometer:
        for runs in (
            lambda: PrivateSearchCV(model, {}, classes=[0, 1]).fit(rows, Y),
            lambda: private_scores(fitted, rows, Y, epsilon=1.0),
            lambda: PrivateThresholdClassifier(fitted, epsilon=1.0).fit(rows, Y),
        ):
            with pytest.raises(ValueError) as failed:
                runs()
            assert str(failed.value) == (
                "OneHotEncoder failed with ValueError on private rows, and its message may quote "
                "one. Try it on public rows of the same form."
            )
            assert failed.value.__suppress_context__
    assert not odometer.entries()


def test_dayone_the_last_fit_of_a_search_still_warns_of_public_facts():
    weak = PrivateSearchCV(make_pipeline(SQUARES, MODEL), {}, classes=[0, 1], delta=0.1)
    with pytest.warns(PrivacyWarning, match="delta"):
        weak.fit(X, Y)


SVM, FITTED = DPLinearSVM(classes=[0, 1], **SMALL), clone(MODEL).fit(X, Y)
SEARCH = PrivateSearchCV(MODEL, {"alpha": [0.0, 0.1]}, classes=[0, 1], delta=1e-3)
FOLDS = KFold(2)
TOLD = "Scores of scikit-learn have no noise"


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(odometers, "_copies", itertools.count(1))
    odometers._said_once.clear()


def told(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    messages = [str(w.message) for w in caught if w.category is PrivacyWarning]
    return sum(message.startswith(TOLD) for message in messages)


REACHED = {
    "GridSearchCV": lambda: GridSearchCV(MODEL, {"alpha": [0.0]}, cv=FOLDS).fit(X, Y),
    "a scorer": lambda: GridSearchCV(MODEL, {}, cv=FOLDS, scoring="roc_auc").fit(X, Y),
    "cross_val_predict": lambda: cross_val_predict(MODEL, X, Y, cv=FOLDS),
    "a private search in folds": lambda: cross_val_predict(SEARCH, X, Y, cv=FOLDS),
    "permutation_importance": lambda: permutation_importance(FITTED, X, Y, n_repeats=1),
    "Stacking": lambda: StackingClassifier([("a", MODEL)], SVM, cv=FOLDS).fit(X, Y),
    "Bagging": lambda: BaggingClassifier(MODEL, 2).fit(X, Y),
    "SequentialFeatureSelector": lambda: SequentialFeatureSelector(
        MODEL, n_features_to_select=1, cv=FOLDS, scoring="roc_auc"
    ).fit(X, Y),
    # What joblib sends to two of its processes; tests of many nestings start real ones.
    "processes": lambda: [pickle.dumps(clone(MODEL)) for _ in range(2)],
    "processes that copy": lambda: [pickle.dumps(RFE(clone(MODEL))) for _ in range(2)],
}


@pytest.mark.parametrize("place", REACHED)
def test_dayone_scikit_learn_fits_and_scores_with_one_warning_a_process(place):
    assert told(REACHED[place]) == 1
    assert told(REACHED[place]) == 0


SCORED = [
    FITTED,
    clone(SVM),
    DPAGDClassifier(classes=[0, 1], max_iter=2),
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


def test_dayone_private_work_is_done_without_this_warning():
    def private():
        SEARCH.fit(X, Y)
        private_scores(FITTED, X, Y, epsilon=30.0, delta=1e-3)
        PrivateThresholdClassifier(FITTED, epsilon=30.0, delta=1e-3).fit(X, Y)
        pickle.loads(pickle.dumps([FITTED, SEARCH.best_estimator_, FITTED.slim()]))

    assert told(private) == 0
    # Nor does it make a fit fail where warnings are errors, which scikit-learn would score as NaN.
    with warnings.catch_warnings(action="error", category=PrivacyWarning):
        assert math.isfinite(cross_val_score(MODEL, X, Y, cv=FOLDS, scoring="roc_auc").mean())


INTERRUPTED = [
    lambda: clone(MODEL).fit(X, Y),
    lambda: DPAGDClassifier(classes=[0, 1], max_iter=2, delta=1e-3).fit(X, Y),
    lambda: MajorityClassifier(classes=[0, 1], delta=1e-3).fit(X, Y),
    lambda: clone(SEARCH).fit(X, Y),
    lambda: private_scores(FITTED, X, Y, epsilon=1.0, delta=1e-3),
    lambda: PrivateThresholdClassifier(FITTED, epsilon=1.0, delta=1e-3).fit(X, Y),
    lambda: GridSearchCV(MODEL, {}, cv=FOLDS).fit(X, Y),
]


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("run", INTERRUPTED)
def test_dayone_an_interrupt_says_what_was_spent_and_what_is_left(
    run, drawn, tmp_path, monkeypatch
):
    release, whole = Vault._release, run is INTERRUPTED[3]

    def interrupt(*given, **more):
        if drawn:
            release(*given, **more)
        raise KeyboardInterrupt

    with PrivacyOdometer(tmp_path / "study.db", epsilon=3.0) as study:
        monkeypatch.setattr(Vault, "_release", interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run()
        monkeypatch.undo()
        *spent, left = stopped.value.__notes__
        assert str(study.path) in left and left.startswith("Nothing") != bool(spent)
        # A search was charged as a whole: of it nobody asks whether its first fit had drawn.
        assert bool(spent) == hasattr(stopped.value, "privacy_ledger") == (drawn or whole)
        for said in spent:
            assert said.startswith(odometers.SPENT) and "epsilon=1 at delta=0.001" in said
        # What is said to be left is left, in a refusal as well.
        with pytest.raises(BudgetExceededError, match=r"epsilon=\S+ is left") as refused:
            DPLogisticRegression(classes=[0, 1], epsilon=2.9).fit(X, Y)
        said = [re.search("epsilon=([0-9.]+) is left", str(e)) for e in (left, refused.value)]
        assert said[0][1] == said[1][1] and float(said[0][1]) > 0.99 * study.remaining()
        DPLogisticRegression(classes=[0, 1], epsilon=float(said[0][1])).fit(X, Y)
