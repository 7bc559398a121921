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


@pytest.mark.parametrize("folds", [2, 7])
def test_a_search_costs_g_k_plus_one_fits_and_has_no_guarantee(tmp_path, folds):
    pipeline = make_pipeline(PublicBoundsScaler(), clone(MODEL))
    search = GridSearchCV(pipeline, GRID, cv=KFold(folds))
    with pytest.warns(PrivacyWarning, match="GridSearchCV chooses by scores without noise"):
        before = total_privacy(search, *X.shape)
    _, total = recorded(tmp_path, lambda: search.fit(X, y))
    with pytest.warns(PrivacyWarning, match="PrivateSearchCV"):
        after = total_privacy(search, *X.shape)
    assert cost(after) == pytest.approx(total.mu(), rel=1e-9)
    # Before, the last fit is that of the dearest candidate.
    mu = {e: clone(MODEL).set_params(epsilon=e).plan(*X.shape).ledger.mu() for e in (0.5, 1.0)}
    expected = 2 * folds * (mu[0.5] ** 2 + mu[1.0] ** 2) + mu[1.0] ** 2
    assert cost(before) == pytest.approx(math.sqrt(expected), rel=1e-9)
    for ledger in (before, after):
        assert not ledger.protects and ledger.epsilon() == math.inf
        told = str(ledger)
        assert told.startswith("No privacy guarantee: the results were released without noise, ")
        alone = float(told.split("alone cost epsilon=")[1].split(" ")[0])
        assert alone == pytest.approx(gdp_epsilon(cost(ledger), DELTA), rel=2e-3)
        assert "nothing is released of what no number covers: GridSearchCV chooses" in told
        assert PrivacyLedger.from_dict(ledger.to_dict()) == ledger


def test_searches_by_chance_or_by_halving(tmp_path):
    drawn = RandomizedSearchCV(MODEL, {"epsilon": [0.5, 1.0, 2.0]}, n_iter=2, cv=KFold(2))
    with pytest.raises(ValueError, match="draws anew"):
        total_privacy(drawn, *X.shape)
    drawn.set_params(random_state=3, refit=False)
    with pytest.warns(PrivacyWarning):
        before = total_privacy(drawn, *X.shape)
    _, total = recorded(tmp_path, lambda: drawn.fit(X, y))
    assert cost(before) == pytest.approx(total.mu(), rel=1e-9)

    for resource in ({"resource": "max_iter", "max_resources": 2}, {"min_resources": 20}):
        halving = HalvingGridSearchCV(MODEL, {"alpha": [0.0, 1.0]}, cv=KFold(2), factor=2)
        halving.set_params(**resource)
        with pytest.raises(ValueError, match="halving leaves out"):
            total_privacy(halving, *X.shape)
        path = tmp_path / str(len(resource))
        path.mkdir()
        _, total = recorded(path, lambda halving=halving: halving.fit(X, y))
        with pytest.warns(PrivacyWarning, match="HalvingGridSearchCV"):
            assert cost(total_privacy(halving, *X.shape)) == pytest.approx(total.mu(), rel=1e-9)


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


def test_splits_that_can_be_read_once_are_left_for_the_fit():
    splits = KFold(2).split(X)
    search = GridSearchCV(MODEL, {"clip_schedule": [0.1]}, cv=splits)
    with pytest.raises(ValueError, match=r"pass list\(cv\)"):
        total_privacy(search, *X.shape)
    assert len(list(splits)) == 2


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


def test_leaving_one_out_and_adaptive_fits_are_planned():
    search = GridSearchCV(DPAGDClassifier(max_iter=1, delta=DELTA), {}, cv=LeaveOneOut())
    with pytest.warns(PrivacyWarning):
        assert total_privacy(search, 9, 3).n_releases == 9 + 1 + 1
