"""total_privacy: what was fitted inside is counted once, and no guarantee stated where none is."""

import math

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    LeaveOneOut,
    RandomizedSearchCV,
    cross_validate,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyLedger,
    PrivacyOdometer,
    PrivacyWarning,
    PublicBoundsScaler,
)
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.workflow import total_privacy

DELTA = 1e-3
SMALL = {"max_iter": 1, "delta": DELTA, "preconditioner": None}
MODEL = DPLogisticRegression(classes=[0, 1], **SMALL)
ADAPTIVE = DPAGDClassifier(max_iter=1, delta=DELTA, classes=[0, 1])
X = np.random.default_rng(0).uniform(size=(60, 3))
y = np.arange(60) % 2


def cost(ledger):
    """The mu of what has noise."""
    kept = [(event, count) for event, count in ledger.events if event.mu < math.inf]
    return PrivacyLedger(tuple(kept), ledger.neighboring_relation, DELTA).mu()


def recorded(tmp_path, fit):
    """What an odometer counts of a fit: the oracle."""
    with PrivacyOdometer(tmp_path / "fits.jsonl") as odometer:
        fitted = fit()
    return fitted, odometer.total


def test_a_pipeline_costs_what_its_fit_costs_before_and_after():
    pipeline = make_pipeline(
        ColumnTransformer([("bounds", PublicBoundsScaler(), [0])], remainder="passthrough"),
        clone(MODEL),
    )
    before = total_privacy(pipeline, *X.shape)
    after = total_privacy(pipeline.fit(X, y))
    assert before == after == pipeline[-1].privacy_
    assert total_privacy([pipeline, pipeline]) == after  # one fit, in two places


GRID = {"dplogisticregression__epsilon": [0.5, 1.0], "dplogisticregression__clip_schedule": [1, 2]}


@pytest.mark.parametrize(
    "search",
    [
        GridSearchCV(make_pipeline(PublicBoundsScaler(), clone(MODEL)), GRID, cv=KFold(2)),
        GridSearchCV(make_pipeline(PublicBoundsScaler(), clone(MODEL)), GRID, cv=KFold(7)),
        RandomizedSearchCV(MODEL, {"epsilon": [0.5, 1.0, 2.0]}, n_iter=2, cv=KFold(2), refit=False),
        HalvingGridSearchCV(
            MODEL, {"alpha": [0.0, 1.0]}, cv=KFold(2), factor=2, resource="max_iter",
            max_resources=2,
        ),
        HalvingGridSearchCV(MODEL, {"alpha": [0.0, 1.0]}, cv=KFold(2), factor=2, min_resources=20),
        GridSearchCV(ADAPTIVE, {}, cv=LeaveOneOut()),
    ],
)  # fmt: skip
def test_a_search_costs_g_k_plus_one_fits_and_has_no_guarantee(tmp_path, search):
    rows = X[:9] if isinstance(search.cv, LeaveOneOut) else X
    with pytest.raises(ValueError, match="is known once it was fitted"):
        total_privacy(search, *rows.shape)
    _, total = recorded(tmp_path, lambda: search.fit(rows, y[: len(rows)]))
    with pytest.warns(PrivacyWarning, match="SearchCV chooses by scores without noise"):
        ledger = total_privacy(search, *rows.shape)
    assert cost(ledger) == pytest.approx(total.mu(), rel=1e-9)
    assert not ledger.protects and ledger.epsilon() == math.inf
    told = str(ledger)
    assert told.startswith("No privacy guarantee: the results were released without noise, ")
    alone = float(told.split("alone cost epsilon=")[1].split(" ")[0])
    assert alone == pytest.approx(gdp_epsilon(cost(ledger), DELTA), rel=2e-3)
    name = type(search).__name__
    assert f"nothing is released of what no number covers: {name} chooses" in told
    assert PrivacyLedger.from_dict(ledger.to_dict()) == ledger


@pytest.mark.parametrize(
    ("estimator", "n_fits"),
    [
        (VotingClassifier([("a", MODEL), ("b", make_pipeline(PublicBoundsScaler(), MODEL))]), 2),
        (BaggingClassifier(MODEL, 2, bootstrap=False), 2),
        (OneVsRestClassifier(MODEL), 3),
        (CalibratedClassifierCV(make_pipeline(PublicBoundsScaler(), MODEL), cv=KFold(2)), 2),
    ],
)
@pytest.mark.filterwarnings("ignore::dpglm.PrivacyWarning")
def test_every_fit_of_a_meta_estimator_is_counted_as_an_odometer_does(tmp_path, estimator, n_fits):
    fitted, total = recorded(tmp_path, lambda: estimator.fit(X, np.arange(60) % n_fits))
    ledger = total_privacy(fitted)
    assert cost(ledger) == pytest.approx(total.mu(), rel=1e-9)
    assert cost(ledger) == pytest.approx(math.sqrt(n_fits) * MODEL.plan(60, 3).ledger.mu())
    assert ledger.protects != isinstance(estimator, CalibratedClassifierCV)
    reads = f"the label set, which {type(estimator).__name__} reads off the labels, is public"
    assert (reads in ledger.assumptions) == ledger.protects


def test_folds_of_cross_validation_and_lists_of_fits_add_up():
    results = cross_validate(MODEL, X, y, cv=KFold(3), return_estimator=True)
    ledger = total_privacy(results)
    assert ledger.mu() == pytest.approx(math.sqrt(3) * MODEL.plan(40, 3).ledger.mu())
    said = "the scores, which have no noise or are charged as well, are not released"
    assert said in ledger.assumptions
    mixed = [results["estimator"][0], DPLinearSVM(**SMALL).fit(X, y), ledger]
    assert total_privacy(mixed).mu() == pytest.approx(math.sqrt(5) * MODEL.plan(60, 3).ledger.mu())
    with pytest.raises(ValueError, match="return_estimator=True"):
        total_privacy(cross_validate(MODEL, X, y, cv=KFold(2)))


def test_a_step_that_reads_other_rows_leaves_no_guarantee_and_an_unknown_one_is_asserted():
    with pytest.warns(PrivacyWarning, match=r"standardscaler \(breaks\)"):
        leaking = total_privacy(make_pipeline(StandardScaler(), MODEL), *X.shape)
    assert leaking.epsilon() == math.inf
    unknown = total_privacy(make_pipeline(FunctionTransformer(abs), MODEL), *X.shape)
    assert unknown.protects
    assert any(a.startswith("functiontransformer treats each row") for a in unknown.assumptions)


class FitsInside(ClassifierMixin, BaseEstimator):
    """A class of somebody else, whose parameters do not show what it fits."""

    def fit(self, X, y):
        self.inner_ = clone(MODEL).fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict(self, X):
        return self.inner_.predict(X)


def test_that_an_unknown_class_keeps_all_that_it_fits_is_an_assumption(tmp_path):
    voting = VotingClassifier([("a", FitsInside()), ("b", MODEL)])
    fitted, total = recorded(tmp_path, lambda: voting.fit(X, y))
    ledger = total_privacy(fitted)
    assert cost(ledger) == pytest.approx(total.mu(), rel=1e-9)
    assert any("a treats" in a and "no private fit" in a for a in ledger.assumptions)


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (LogisticRegression(), "no private fit"),
        ([], "no private fit"),
        (MODEL, "Pass the shape"),
        (GridSearchCV(MODEL, {}), "Pass the shape"),
        (VotingClassifier([("a", MODEL)]), "cannot be known"),
        (StackingClassifier([("a", MODEL)], MODEL, cv=KFold(2)), "cannot be known"),
        (CalibratedClassifierCV(MODEL, ensemble=False), "cannot be known"),
    ],
)
def test_what_cannot_be_known_is_said(study, words):
    with pytest.raises(ValueError, match=words):
        total_privacy(study)


def test_a_calibration_of_one_fit_is_known_only_where_that_fit_was_made_before():
    frozen = FrozenEstimator(clone(MODEL).fit(X, y))
    with pytest.warns(PrivacyWarning, match="calibrators"):
        one = total_privacy(CalibratedClassifierCV(frozen).fit(X, y))
    assert cost(one) == frozen.privacy_.mu()
    calibrated = CalibratedClassifierCV(MODEL, ensemble=False, cv=KFold(2)).fit(X, y)
    with pytest.raises(ValueError, match="cannot be known"):
        total_privacy(calibrated)
