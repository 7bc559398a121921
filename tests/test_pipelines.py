"""Pipelines: what reads other people's rows (docs/sharp_edges.md), and one ledger for all fits."""

import contextlib
import itertools
import math
from copy import deepcopy

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, SparseCoder
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import RFE, RFECV, SelectFromModel, SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import PolynomialCountSketch, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingRandomSearchCV,
    KFold,
    RandomizedSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_validate,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils import all_estimators

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    PrivacyLedger,
    PublicBoundsScaler,
)
from dpglm.exceptions import PrivacyWarning
from dpglm.schema import NumericColumn, Schema, Target
from dpglm.workflow import PrivateKFold, check_pipeline, total_privacy

PRIVATE = DPLogisticRegression(classes=[0, 1])
COUNTED = DPLogisticRegression(neighboring_relation="add_or_remove_one", n_samples_estimate=100)
SCHEMA = Schema("people", [NumericColumn("age", 0, 100)], Target("paid", [0, 1]))


class Sampler(BaseEstimator):
    def fit(self, X, y=None):
        return self

    def fit_resample(self, X, y):
        return X, y


class Unknown(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


# What leaks, and the places where a finding must be, in nested names.
LEAKING = [
    *[
        (make_pipeline(step, PRIVATE), [type(step).__name__.lower()])
        for step in (
            StandardScaler(with_mean=False, with_std=False), MinMaxScaler(), KBinsDiscretizer(),
            PCA(2),
            SimpleImputer(strategy="mean"), SimpleImputer(strategy="constant", add_indicator=True),
            TfidfVectorizer(), TfidfVectorizer(vocabulary=["a"]), TfidfTransformer(),
            CountVectorizer(), TargetEncoder(), SelectKBest(), OneHotEncoder(), OrdinalEncoder(),
            OneHotEncoder(categories=[["a"]], min_frequency=2), QuantileTransformer(),
            PowerTransformer(), SplineTransformer(), RFECV(PRIVATE, cv=KFold(3)), Sampler(),
            RBFSampler(gamma="scale"), MissingIndicator(), GaussianRandomProjection(),
        )
    ],
    *((step, [type(step).__name__]) for step in (
        GridSearchCV(PRIVATE, {}, cv=KFold(2)), RandomizedSearchCV(PRIVATE, {}, cv=PrivateKFold()),
        HalvingRandomSearchCV(PRIVATE, {}, cv=KFold(2)), BaggingClassifier(PRIVATE),
        CalibratedClassifierCV(PRIVATE, cv=KFold(2)), TunedThresholdClassifierCV(PRIVATE, cv=0.2),
        BaggingClassifier(bootstrap=False), BaggingClassifier(COUNTED, bootstrap=False),
        ClassifierChain(PRIVATE, cv=5), AdaBoostClassifier(PRIVATE), OneVsOneClassifier(PRIVATE),
        OneVsRestClassifier(PRIVATE).fit(np.eye(4), [[0, 0], [1, 0], [0, 1], [1, 0]]),
        SelfTrainingClassifier(PRIVATE), DPAGDClassifier(epsilon=math.inf),
        *(StackingClassifier([("a", one)], other, cv=folds) for one, other, folds in (
            (PRIVATE, None, KFold(2)), (PRIVATE, DPLinearSVM(), None),
            (PRIVATE, DPLinearSVM(), StratifiedKFold(3)), (COUNTED, COUNTED, KFold(3)),
            (DPLogisticRegression(max_contributions=2), PRIVATE, KFold(3)),
        )),
    )),
    (make_pipeline(Normalizer(), LogisticRegression()), ["logisticregression"]),
    (VotingClassifier([("a", PRIVATE), ("b", LogisticRegression())]), ["b"]),
    (make_pipeline(ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(), Normalizer()), ["age"]),
        ("words", OneHotEncoder(), ["job"]), ("bounds", PublicBoundsScaler(), ["pay"]),
    ], remainder=StandardScaler(), sparse_threshold=0), PRIVATE), [
        "columntransformer__numbers__simpleimputer", "columntransformer__remainder",
        "columntransformer__words",
    ]),
    (make_pipeline(FeatureUnion([("a", PCA()), ("b", Binarizer())]), PRIVATE),
     ["featureunion__a"]),
    (GridSearchCV(make_pipeline(PublicBoundsScaler(), PRIVATE),
                  {"publicboundsscaler": [PublicBoundsScaler(), MinMaxScaler()]}, cv=KFold(2)),
     ["GridSearchCV", "param_grid__publicboundsscaler"]),
]  # fmt: skip

SAFE = [
    *[
        make_pipeline(step, PRIVATE)
        for step in (
            SCHEMA.transformer(), PublicBoundsScaler(0, 9), Normalizer(), Binarizer(),
            PolynomialFeatures(), HashingVectorizer(), OneHotEncoder(categories=[["a", "b"]]),
            OrdinalEncoder(categories=[["a", "b"]]), CountVectorizer(vocabulary=["a", "b"]),
            TfidfVectorizer(vocabulary=["a", "b"], use_idf=False), FunctionTransformer(),
            SimpleImputer(strategy="constant", keep_empty_features=True),
            MissingIndicator(features="all"), FunctionTransformer(np.arctan),
            SplineTransformer(knots=np.array([[0.0], [1.0], [2.0]])), RBFSampler(gamma=0.5),
            GaussianRandomProjection(4),
            SparseCoder(np.eye(4)), TfidfTransformer(use_idf=False), PolynomialCountSketch(),
            SelectFromModel(DPLinearSVM()), RFE(PRIVATE, n_features_to_select=2), "passthrough",
        )
    ],
    PRIVATE, COUNTED, DPAGDClassifier(), DPLogisticRegression(class_weight={0: 1.0, 1: 2.0}),
    OneVsRestClassifier(PRIVATE), MultiOutputClassifier(PRIVATE), ClassifierChain(PRIVATE),
    BaggingClassifier(PRIVATE, bootstrap=False), FixedThresholdClassifier(FrozenEstimator(PRIVATE)),
    VotingClassifier([("a", PRIVATE), ("b", make_pipeline(Normalizer(), DPLinearSVM()))]),
    StackingClassifier([("a", PRIVATE)], DPLinearSVM(), cv=KFold(3)),
    StackingClassifier(
        [("a", COUNTED)], COUNTED, cv=PrivateKFold(neighboring_relation="add_or_remove_one")
    ),
    make_pipeline(ColumnTransformer([
        ("numbers", FeatureUnion([("a", Normalizer()), ("b", "drop")]), ["age"]),
        ("words", OneHotEncoder(categories=[["x"]]), make_column_selector("word")),
    ], remainder="drop", sparse_threshold=0), PRIVATE),
]  # fmt: skip

NOT_KNOWN = [
    FunctionTransformer(lambda X: X - X.mean(axis=0)),
    Unknown(),
    CountVectorizer(vocabulary={"red": 0}),
    FrozenEstimator(make_pipeline(StandardScaler(), PRIVATE)),
    ColumnTransformer([("a", Normalizer(), lambda X: [0])]),
    SelectFromModel(PRIVATE, max_features=lambda X: 1),
    StackingClassifier([("a", PRIVATE)], DPLinearSVM(), cv=[([0, 1], [2, 3])]),
]


@pytest.mark.parametrize(("estimator", "places"), LEAKING)
def test_what_leaks_is_found_where_it_is(estimator, places):
    found = check_pipeline(estimator)
    assert sorted(finding.step for finding in found) == sorted(places)
    assert {finding.severity for finding in found} <= {"breaks", "refused"}
    assert str(found).count("Instead: ") == len(places)


@pytest.mark.parametrize("estimator", SAFE)
def test_what_is_safe_is_not_found(estimator):
    assert check_pipeline(estimator) == []
    assert str(check_pipeline(estimator)) == "No step reads other people's rows."


@pytest.mark.parametrize("step", NOT_KNOWN)
def test_what_only_its_author_can_tell_has_a_word_of_its_own(step):
    found = check_pipeline(make_pipeline(step, PRIVATE))
    assert [finding.severity for finding in found] == ["not known"]


@pytest.mark.parametrize(
    ("step", "instead"),
    [
        (SimpleImputer(strategy="constant"), "keep_empty_features=True"),
        (OneHotEncoder(categories=[["a"]], handle_unknown="warn"), "without drop"),
        (OneHotEncoder(categories=[["a"]], handle_unknown="ignore", drop="first"), "without drop"),
        (ColumnTransformer([("a", OneHotEncoder(categories=[["a"]]), [0])]), "sparse_threshold=0"),
        (ColumnTransformer([], remainder=HashingVectorizer()), "sparse_threshold=0"),
    ],
)
def test_what_tells_something_of_the_rows_beside_the_fit_leaks(step, instead):
    (finding,) = check_pipeline(make_pipeline(step, PRIVATE))
    assert finding.severity == "leaks" and finding.instead.endswith(instead)


# For which of these numbers numpy itself warns is the oracle.
NUMBERS = [-1e300, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 1e300]


@pytest.mark.parametrize(
    "name", [n for n, f in vars(np).items() if isinstance(f, np.ufunc) and f.nin == f.nout == 1]
)
def test_dayone_a_function_of_which_numpy_warns_for_some_value_is_named(name):
    func, warns = getattr(np, name), False
    for number in NUMBERS:
        # Not by the filters of warnings, which threads of other tests may change.
        with np.errstate(all="raise", under="ignore"):
            try:
                func(np.array([number]))
            except (FloatingPointError, TypeError):
                warns = True
    found = check_pipeline(make_pipeline(FunctionTransformer(func), PRIVATE))
    assert [finding.severity for finding in found] == ["leaks"] * warns
    if not warns:
        checked = FunctionTransformer(func, inverse_func=np.sqrt)
        assert [f.severity for f in check_pipeline(checked)] == ["leaks"]
        assert not check_pipeline(checked.set_params(check_inverse=False))


def test_only_an_estimator_is_looked_at():
    with pytest.raises(ValueError, match="has no fit"):
        check_pipeline("a pipeline")
    with pytest.raises(ValueError, match="has no fit"):
        check_pipeline(StandardScaler)


def moves_another_row(transformer):
    """Whether the first row becomes another once the last row is another: what nobody may do."""
    X = np.random.default_rng(0).integers(1, 5, size=(30, 4)).astype(float)
    results = []
    for last in (1.0, 40.0):
        X[-1] = last
        if "random_state" in transformer.get_params():
            transformer.set_params(random_state=0)
        row = transformer.fit(X, np.arange(30) % 2).transform(X[:1])
        results.append(row.toarray() if sparse.issparse(row) else np.asarray(row))
    return results[0].shape != results[1].shape or not np.allclose(*results)


def variants(transformer):
    """The transformer, and with every other word or truth value that a parameter can have."""
    yield transformer
    for name, allowed in getattr(transformer, "_parameter_constraints", {}).items():
        for kind in allowed if isinstance(allowed, list) else []:
            options = (True, False) if kind == "boolean" else getattr(kind, "options", ())
            for option in options:
                yield clone(transformer).set_params(**{name: option})


@pytest.mark.slow
def test_no_class_of_scikit_learn_that_reads_other_rows_is_taken_for_harmless():
    assert moves_another_row(StandardScaler()) and moves_another_row(PCA(2))
    assert moves_another_row(RBFSampler(gamma="scale"))
    bases = [pipeline[0] for pipeline in SAFE[:20]]  # the rest add noise
    for _, cls in all_estimators(type_filter="transformer"):
        with contextlib.suppress(TypeError):  # what needs other transformers
            bases.append(cls())
    tried = set()
    for variant in itertools.chain.from_iterable(map(variants, bases)):
        # What takes text, images or listed values fails on this table, and is left out.
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            if not check_pipeline(variant):
                assert not moves_another_row(variant), variant
                tried.add(type(variant).__name__)
    assert {
        *("AdditiveChi2Sampler", "Binarizer", "FunctionTransformer", "GaussianRandomProjection"),
        *("MissingIndicator", "Normalizer", "PolynomialCountSketch", "PolynomialFeatures"),
        *("PublicBoundsScaler", "RBFSampler", "SimpleImputer", "SparseCoder"),
        *("SkewedChi2Sampler", "TfidfTransformer"),
    } <= tried


# Totals: what was fitted inside is counted once, and no guarantee stated where none is.

DELTA = 1e-3
SMALL = {"max_iter": 1, "delta": DELTA, "preconditioner": None}
MODEL = DPLogisticRegression(classes=[0, 1], **SMALL)
X = np.random.default_rng(0).uniform(size=(60, 3))
y = np.arange(60) % 2


def test_a_pipeline_costs_what_its_fit_costs():
    pipeline = make_pipeline(
        ColumnTransformer([("bounds", PublicBoundsScaler(), [0])], remainder="passthrough"),
        clone(MODEL),
    )
    ledger = total_privacy(pipeline.fit(X, y))
    assert ledger.events == pipeline[-1].privacy_.events
    # One fit, in two places.
    assert total_privacy([pipeline, pipeline]) == total_privacy(iter([pipeline])) == ledger
    assert total_privacy([pipeline, deepcopy(pipeline)]) == ledger


def test_of_folds_the_scores_are_not_covered_and_the_fits_must_be_there():
    results = cross_validate(MODEL, X, y, cv=KFold(3), return_estimator=True)
    said = "the scores, which have no noise or are charged as well, are not released"
    assert said in total_privacy(results).assumptions
    with pytest.raises(ValueError, match="return_estimator=True"):
        total_privacy([MODEL, {"score_time": results["score_time"]}])


def test_a_step_that_reads_other_rows_leaves_no_guarantee_and_an_unknown_one_is_asserted():
    leaking, unknown = (
        make_pipeline(step, clone(MODEL)).fit(X, y)
        for step in (StandardScaler(), FunctionTransformer(abs))
    )
    with pytest.warns(PrivacyWarning, match=r"standardscaler \(breaks\)"):
        ledger = total_privacy(leaking)
    assert not ledger.protects and ledger.epsilon() == math.inf
    told = ledger.statement
    assert told.startswith("No privacy guarantee: the results were released without noise, ")
    assert float(told.split("alone cost epsilon=")[1].split(" ")[0]) == pytest.approx(1.0)
    assert "nothing is released of what no number covers: StandardScaler is fitted" in told
    assert PrivacyLedger.from_dict(ledger.to_dict()) == ledger
    ledger = total_privacy(unknown)
    said = "functiontransformer treats each row by itself, and makes no private fit that is not"
    assert ledger.protects and any(a.startswith(said) for a in ledger.assumptions)


def test_a_label_set_that_a_meta_estimator_reads_is_assumed_to_be_public():
    ledger = total_privacy(VotingClassifier([("a", MODEL), ("b", MODEL)]).fit(X, y))
    reads = "the label set, which VotingClassifier reads off the labels, is public"
    assert reads in ledger.assumptions and ledger.protects


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (LogisticRegression(), "no private fit"),
        ([], "no private fit"),
        (MODEL, "no private fit"),
        (GridSearchCV(MODEL, {}, cv=KFold(2)).fit(X, y), "GridSearchCV cannot be known"),
        (StackingClassifier([("a", MODEL)], MODEL, cv=KFold(2)).fit(X, y), "cannot be known"),
        (CalibratedClassifierCV(MODEL, cv=KFold(2), ensemble=False).fit(X, y), "cannot be known"),
    ],
)
def test_what_cannot_be_known_is_said(study, words):
    with pytest.raises(ValueError, match=words):
        total_privacy(study)
