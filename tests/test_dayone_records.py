"""Day one: people under two names, null records, vaults that refused."""

import contextlib
import math
import unicodedata
from functools import partial

import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from strategies import BASELINES, ESTIMATORS, RELATIONS, under
from tapes import record, replay

from dpglm import DPLinearSVM, DPLogisticRegression, seeded_noise
from dpglm.audit.recorder import largest_ratio
from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import Vault
from dpglm.schema.values import null_rows
from dpglm.sources.arrays import ArraySource
from dpglm.sums.objective import Objective
from dpglm.sums.rows import rows_of
from dpglm.workflow import (
    PrivateCalibratedClassifier,
    PrivateKFold,
    PrivateSearchCV,
    PrivateThresholdClassifier,
    private_scores,
    private_train_test_split,
)

N = 24
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 3)), np.arange(N) % 2
PUBLIC = LogisticRegression().fit(X, Y)
NFC, NFD = (partial(unicodedata.normalize, form) for form in ("NFC", "NFD"))


# Names


def test_dayone_one_person_has_one_name_however_it_is_spelled():
    names = np.array([f"é{k // 2}" for k in range(N)])
    mixed = np.array([NFD(name) if k % 2 else name for k, name in enumerate(names)], dtype=object)
    model = DPLogisticRegression(max_contributions=2, max_iter=3, classes=[0, 1])
    for spelled in (mixed, mixed.astype(str)):
        ratios = []
        for groups in (names, spelled):
            with record() as tape, seeded_noise(0):
                model.fit(X, Y, groups=groups)
            ratios.append([release.exact for release in tape.releases])
        for a, b in zip(*ratios, strict=True):
            assert_array_equal(a, b)
        assert_array_equal(
            private_train_test_split(X, ids=spelled)[1], private_train_test_split(X, ids=names)[1]
        )
        folds = PrivateKFold(3, neighboring_relation="add_or_remove_one")
        for (_, one), (_, other) in zip(
            folds.split(X, groups=spelled), folds.split(X, groups=names), strict=True
        ):
            assert_array_equal(one, other)


@pytest.mark.parametrize("forms", [(NFC, NFD), (NFD, NFC)])
@pytest.mark.parametrize("kind", [str, object])
def test_dayone_a_label_is_one_class_however_it_is_spelled(forms, kind):
    ours, theirs = forms
    listed = [ours("été"), "ici"]
    texts = np.where(Y == 1, "ici", theirs("été")).astype(object)
    texts[0] = ours("été")  # both spellings in one column
    texts = texts.astype(kind)
    weight = {theirs("été"): 0.5, "ici": 1.0}
    model = DPLogisticRegression(max_iter=3, classes=listed, class_weight=weight)
    blocks = [(X[:9], texts[:9]), (X[9:], texts[9:])]
    for rows in ((X, texts), (blocks,), (ArraySource(X, texts, block_rows=7),)):
        with seeded_noise(0):
            fitted = model.fit(*rows)
        ici = fitted.classes_.tolist().index("ici")
        with seeded_noise(0):
            number = {1 - ici: 0.5, ici: 1.0}
            plain = DPLogisticRegression(max_iter=3, classes=[0, 1], class_weight=number)
            expected = plain.fit(X, np.where(Y == 1, ici, 1 - ici))
        assert sorted(fitted.classes_.tolist()) == sorted(listed)
        np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-6)
        assert fitted.score(X, texts) == fitted.score(X, np.where(Y == 1, "ici", ours("été")))
        exact = private_scores(fitted, X, texts, epsilon=math.inf, scores="accuracy").accuracy.value
        assert exact == pytest.approx(fitted.score(X, texts))
    assert DPLogisticRegression(max_iter=2).fit(X, texts).classes_.size == 2
    with pytest.raises(ValueError, match="each class once"):
        DPLogisticRegression(classes=[NFC("é"), NFD("é")]).fit(X, texts)


# Null records

EXTREME = [1e308, -1e308, 1e200, 1e154, 5e-324, 1e-300, 0.0, 1.0, -3.0]
rows_of_one = st.lists(st.sampled_from(EXTREME), min_size=3, max_size=3)


def releases_of(model, relation):
    """Return what is asked of records, by name: each is a function of rows and labels."""
    budget = {"epsilon": 5.0, **under(relation, N)}

    def fitting(estimator):
        estimator = sklearn.clone(estimator).set_params(**under(relation, N))
        return lambda *data: sklearn.clone(estimator).fit(*data)

    fits = {
        name: fitting(estimator)
        for name, estimator in ESTIMATORS.items()
        if name in ("plain", "diagonal", "genetic", "majority", "objective", "output")
    }
    grid = {"clip_schedule": [0.1, 1.0]}
    search = PrivateSearchCV(DPLogisticRegression(max_iter=2), grid, classes=[0, 1], **budget)
    return fits | {
        "scores": partial(private_scores, model, **budget),
        "accuracy": partial(private_scores, model, **budget, scores="accuracy"),
        "loss": partial(private_scores, model, **budget, scores="log_loss"),
        "calibration": lambda *data: PrivateCalibratedClassifier(model, **budget).fit(*data),
        "threshold": lambda *data: PrivateThresholdClassifier(model, **budget).fit(*data),
        "search": lambda *data: sklearn.clone(search).fit(*data),
    }


NULL = [1e308, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("relation", RELATIONS)
@given(first=rows_of_one, second=rows_of_one, labels=st.tuples(*[st.integers(0, 1)] * 2))
@settings(max_examples=2, deadline=None)
def test_dayone_no_release_moves_by_more_than_its_sensitivity_with_extreme_rows(
    relation, first, second, labels
):
    """Under zero_out a null record is a row that overflows, with any label, to every release."""
    pipeline = make_pipeline(FunctionTransformer(), PUBLIC)
    ours, theirs = (X.copy(), Y.copy()), (X.copy(), Y.copy())
    ours[0][5], ours[1][5] = first, labels[0]
    theirs[0][5], theirs[1][5] = NULL if relation == "zero_out" else second, labels[1]
    if relation == "add_or_remove_one":
        theirs = tuple(np.delete(array, 5, axis=0) for array in ours)
    for model in (PUBLIC, pipeline):
        for name, ask in releases_of(model, relation).items():
            if model is pipeline and name not in ("scores", "calibration"):
                continue
            with record() as recorded:
                ask(*ours)
            with replay(recorded) as replayed:
                ask(*theirs)
            assert recorded.releases
            assert largest_ratio(recorded, replayed) <= 1 + 1e-9, name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weight", [None, "balanced"])
def test_dayone_the_label_of_a_null_record_changes_no_release(weight):
    rows, labels = X.copy(), Y.copy()
    rows[5], labels[5] = NULL, 1 - Y[5]
    asked = releases_of(PUBLIC, "zero_out")
    if weight:
        search = PrivateSearchCV(DPLogisticRegression(max_iter=2, class_weight=weight), {})
        models = search, *(kind(class_weight=weight) for kind in [DPLinearSVM, *BASELINES])
        asked = {type(model).__name__: model.fit for model in models}
    for name, ask in asked.items():
        # Of batches too, which a seed draws alike.
        seed = seeded_noise(0) if name.startswith("SGD") else contextlib.nullcontext()
        with seed, record() as recorded:
            ask(rows, Y)
        seed = seeded_noise(0) if name.startswith("SGD") else contextlib.nullcontext()
        with seed, replay(recorded) as replayed:
            ask(rows, labels)
        assert recorded.releases and largest_ratio(recorded, replayed) == 0, name


@given(st.lists(rows_of_one, min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_dayone_null_rows_are_those_of_the_kernels_in_any_form(rows):
    rows = np.array(rows)
    inverse = np.empty(len(rows))
    rows_of(rows).invert_norms(0, 1, inverse, True)
    expected = inverse == 0
    for form in (rows, sparse.csr_array(rows), sparse.csc_array(rows)):
        assert_array_equal(null_rows(form), expected)


def test_dayone_what_a_model_admits_counts_and_infinity_does_not():
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [1e200, 0.0], [1.0, 1.0]])
    assert_array_equal(null_rows(rows), [False, True, True, False])
    assert not null_rows(np.float32([[3e38]])).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_dayone_scores_that_overflow_are_finite_and_in_order(n_classes, dtype):
    y = np.arange(N) % n_classes
    model = DPLogisticRegression(epsilon=20.0, max_iter=5, classes=range(n_classes))
    model.fit(np.array(X, dtype=dtype), y)
    huge = np.finfo(dtype).max * np.array([[1, 0, 0], [-1, 0, 0], [1, 1, -1], [0.9, -1, 0.5]])
    huge = huge.astype(dtype)
    for form in (huge, sparse.csr_array(huge)):
        scores, share = model.decision_function(form), model.predict_proba(form)
        exact = (huge.astype(np.longdouble) @ model.coef_.T.astype(np.longdouble)).squeeze()
        assert np.isfinite(scores).all() and np.isfinite(model.predict_log_proba(form)).all()
        assert_array_equal(np.argsort(scores, axis=-1), np.argsort(exact, axis=-1)) if (
            n_classes > 2
        ) else assert_array_equal(np.sign(scores), np.sign(exact))
        assert_array_equal(share.max(axis=1), 1.0)
        assert_array_equal(model.classes_[share.argmax(axis=1)], model.predict(form))


# Vaults and words


class Twofold:
    """Runs that are cheap when they are read for the first time, and dear from then on."""

    def __init__(self):
        self.reads = 0

    def __iter__(self):
        self.reads += 1
        yield GaussianEvent(20.0 if self.reads == 1 else 0.1), 1


@pytest.mark.parametrize("events", [Twofold(), iter([(GaussianEvent(20.0), 1)])])
def test_dayone_a_vault_reads_its_plan_once(events):
    rows = Objective(X, 2.0 * Y - 1, Logistic())
    vault = Vault(rows, events, PrivacyBudget(1.0, 1e-6), entropy_source(0))
    vault.gradient_sum(np.zeros(4), 1.0, 20.0)


SEEDED = {
    "scores": lambda: private_scores(PUBLIC, X, Y, epsilon=1.0, delta=1e-3),
    "calibration": lambda: PrivateCalibratedClassifier(PUBLIC).fit(X, Y),
    "threshold": lambda: PrivateThresholdClassifier(PUBLIC).fit(X, Y),
    "fit": lambda: DPLogisticRegression(max_iter=2).fit(X, Y),
}


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.UtilityWarning")
@pytest.mark.parametrize("release", SEEDED)
def test_dayone_a_seed_is_warned_of_by_every_release(release):
    with seeded_noise(0), pytest.warns(PrivacyWarning, match="seeded_noise makes"):
        SEEDED[release]()
