"""Weights of classes and rows: only ratios count, in each estimator and source, at known cost."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from strategies import BASELINES, OURS, RELATIONS, under

from dpglm import DPAGDClassifier, DPLogisticRegression, PrivateSearchCV, baselines, seeded_noise
from dpglm.audit.recorder import ReleaseRecorder, largest_ratio, record
from dpglm.losses import Logistic
from dpglm.schema import NumericColumn, Schema, Target
from dpglm.sources import ParquetSource
from dpglm.sums.objective import Objective

N = 600
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
# About one in six, and one of three classes that is rarer.
Y = (X[:, 0] + RNG.normal(size=N) > 1.3).astype(int)
THREE = Y + (X[:, 1] + RNG.normal(size=N) > 1.6)
PERSONS = np.arange(N) // 2
WEIGHTS = RNG.choice([0.0, 1.0, 2.0, 4.0], N)

SGD = [baselines.SGDMomentsAccountant, baselines.SGDAdvancedComposition]
OTHERS = [Model for Model in BASELINES if Model not in SGD]
SHORT = {
    DPAGDClassifier: {"n_splits": 4, "max_iter": 4},
    baselines.PrivGene: {"max_iter": 5},
    baselines.SGDMomentsAccountant: {"max_iter": 5},
    baselines.SGDAdvancedComposition: {"epsilon": 0.5},
}
SHORT |= {Model: {"max_iter": 4} for Model in OURS[:2]}


def model_of(Model, **more):
    return Model(**{"classes": [0, 1], "delta": 1e-4, **SHORT.get(Model, {}), **more})


def coef_of(model, *data, **of_rows):
    with seeded_noise(1):
        model.fit(*data, **of_rows)
    return np.column_stack([model.coef_, model.intercept_])


def parquet(folder):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(label=Y)
    frame.to_parquet(folder / "rows.parquet")
    columns = [NumericColumn(name, -5.0, 5.0) for name in "abcd"]
    return ParquetSource(folder / "rows.parquet", Schema("t", columns, Target("label", (0, 1))))


def dask(*_):
    da = pytest.importorskip("dask.array")
    return da.from_array(X, chunks=(200, 4)), da.from_array(Y, chunks=200)


SOURCES = {
    "rows": lambda _: (X, Y),
    "sparse": lambda _: (csr_array(X), Y),
    "blocks": lambda _: ([(X[:100], Y[:100]), (X[100:], Y[100:])],),
    "dask": dask,
    "parquet": lambda folder: (parquet(folder),),
}


SLOW = pytest.mark.slow
FAST = [DPLogisticRegression, *OTHERS, *(pytest.param(M, marks=SLOW) for M in (*OURS[1:], *SGD))]


@pytest.mark.parametrize("Model", FAST)
def test_only_ratios_of_class_weights_matter(Model):
    if Model in SGD:
        pytest.importorskip("dp_accounting")
    expected = coef_of(model_of(Model, class_weight={0: 0.2, 1: 1.0}), X, Y)
    for scale in (5.0, 500.0):
        weights = {0: 0.2 * scale, 1: scale}
        assert_allclose(coef_of(model_of(Model, class_weight=weights), X, Y), expected, rtol=1e-6)
    assert np.abs(coef_of(model_of(Model), X, Y) - expected).max() > 0.01


@pytest.mark.parametrize(
    ("Model", "source"),
    [
        pytest.param(M, source, marks=[SLOW] * (M is not OURS[i % 3] or source == "dask"))
        for (i, source), M in product(enumerate(SOURCES), OURS)
    ],
)
def test_every_source_has_the_same_weights_and_counts(Model, source, tmp_path):
    data = SOURCES[source](tmp_path)
    for weight in ({0: 1, 1: 5}, "balanced"):
        model = model_of(Model, class_weight=weight)
        plain, weighted = coef_of(model_of(Model), *data), coef_of(model, *data)
        assert np.abs(weighted - plain).max() > 0.05
        if source != "parquet":
            assert_allclose(weighted, coef_of(model, X, Y), rtol=1e-6)


@pytest.mark.parametrize("Model", OURS)
def test_the_penalty_and_the_bound_of_row_weights_are_divided_as_losses_are(Model):
    cases = [
        ({"class_weight": {0: 1, 1: 4}, "alpha": 0.4}, {}),
        ({"class_weight": {0: 0.25, 1: 1}, "alpha": 0.1}, {}),
    ]
    first, second = (coef_of(model_of(Model, **given), X, Y) for given, _ in cases)
    assert_allclose(first, second, rtol=1e-6)
    rows = [
        coef_of(model_of(Model, max_weight=most, alpha=most / 10), X, Y, sample_weight=weights)
        for most, weights in ((2.0, WEIGHTS), (0.25, WEIGHTS / 8), (2.0, np.minimum(WEIGHTS, 2)))
    ]
    assert_allclose(rows[1:], [rows[0]] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "weighted"), [(Y, True), *(pytest.param(y, False, marks=SLOW) for y in (Y, THREE))]
)
def test_without_noise_the_minimiser_is_that_of_scikit_learn(y, weighted):
    of_rows = {"sample_weight": np.maximum(WEIGHTS, 0.5)} if weighted else {}
    totals = np.bincount(y, of_rows.get("sample_weight"))
    for weight in ("balanced", {0: 1.0, 1: 5.0}, None)[: 3 if weighted else 2]:
        given = {"alpha": 0.05, "class_weight": weight, "max_weight": 4.0}
        run = {"max_iter": 300, "clip_schedule": math.inf, "averaging": None}
        model = DPLogisticRegression(epsilon=math.inf, **run, **given).fit(X, y, **of_rows)
        # scikit-learn before 1.7 balances counts of rows, and not their weights.
        known = dict(enumerate(totals.mean() / totals)) if weight == "balanced" else weight
        reference = LogisticRegression(C=1 / (N * 0.05), class_weight=known, tol=1e-10)
        assert_allclose(model.coef_, reference.fit(X, y, **of_rows).coef_, atol=2e-4)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("Model", [*OURS, *OTHERS])
def test_the_count_is_in_the_plan_and_the_ledger_within_epsilon(Model, relation):
    for epsilon, y in ((1.0, Y), (0.3, THREE), (8.0, Y)):
        given = {"epsilon": epsilon, **under(relation, N)}
        model = model_of(Model, classes=np.unique(y), class_weight="balanced", **given).fit(X, y)
        plan = model.plan(N, 4, len(model.classes_))
        assert model.privacy_ == plan.ledger
        assert model.privacy_.epsilon() == plan.ledger.epsilon() <= epsilon
        assert plan.ledger.epsilon() > (0.2 if "Approximate" in Model.__name__ else 0.95) * epsilon
        purposes = [event.purpose for event, _ in plan.ledger.events]
        if Model is DPAGDClassifier:
            assert model.trace_.release[0] == "label_count"
        elif Model is not baselines.MajorityClassifier:
            assert purposes[0] == "label count, for the weights of classes"


def neighbours(relation, y, groups):
    """Return the table with its last record null, with another label, or without it."""
    own = np.arange(N) == N - 1 if groups is None else groups == groups[-1]
    if relation == "replace_one":
        return X, np.where(own, 1 - y, y), groups
    if relation == "zero_out":
        return np.where(own[:, None], 1e308, X), y, groups
    return X[~own], y[~own], None if groups is None else groups[~own]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("groups", [None, PERSONS], ids=["rows", "persons"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_one_record_moves_the_count_by_what_is_charged(relation, groups, weights):
    own = {} if groups is None else {"max_contributions": 2}
    y, weights = np.where(np.arange(N) >= N - 2, 1, Y), None if weights is None else 1.0 * weights
    if weights is not None:
        weights[-2:] = 9.0  # above the bound, and cut
    for Model in OURS:
        given = {"class_weight": "balanced", "max_weight": 4.0, **own, **under(relation, N)}
        model = model_of(Model, **given)
        tapes = []
        for rows, labels, persons in ((X, y, groups), neighbours(relation, y, groups)):
            of_rows = {} if weights is None else {"sample_weight": weights[: len(rows)]}
            of_rows |= {} if groups is None else {"groups": persons}
            with record(model, ReleaseRecorder(*tapes)) as seen:
                model.fit(rows, labels, **of_rows)
            tapes.append(seen)
        first, second = (tape.releases[0] for tape in tapes)
        moved = np.linalg.norm(first.exact - second.exact)
        assert first.exact.shape == (2,) and first.sensitivity == pytest.approx(moved)
        assert moved == pytest.approx(math.sqrt(2) if relation == "replace_one" else 1.0)
        assert largest_ratio(*tapes) <= 1.0


def test_the_rows_of_a_person_share_one_count_of_any_labels():
    y = np.tile([0, 1], N // 2)
    given = {"groups": np.repeat(np.arange(N // 3), 3), "max_contributions": 3}
    weights = np.where(np.arange(N) < 300, 0.5, 7.0)
    for more, expected in (({}, [100.0, 100.0]), ({"row_weights": weights}, [75.0, 75.0])):
        found = Objective(X, 2.0 * y - 1, Logistic(), **given, **more)
        assert_allclose(found.label_counts(), expected, atol=1e-3)
        assert_allclose(found.reference.label_counts(), found.label_counts(), rtol=0)


@pytest.mark.parametrize("Model", [*OURS, *OTHERS])
def test_a_class_without_records_gets_a_weight_within_bounds(Model):
    for epsilon in (0.5, math.inf):
        model = model_of(Model, class_weight="balanced", classes=[0, 1, 2], epsilon=epsilon)
        assert np.abs(coef_of(model, X, Y)).max() < 1e3


def test_weights_of_classes_are_searched_and_counted_in_each_candidate():
    grid = {"class_weight": [None, {0: 1, 1: 5}, "balanced"]}
    for Model in (DPLogisticRegression, baselines.DescentOutputPerturbation):
        search = PrivateSearchCV(model_of(Model), grid, epsilon=3.0, classes=[0, 1]).fit(X, Y)
        assert search.privacy_.epsilon() <= 3.0
        assert search.best_params_ in [{"class_weight": w} for w in grid["class_weight"]]


def test_what_cannot_be_weighted_is_a_sentence_before_any_cost():
    for weight in ("equal", 3.0, [1, 5]):
        with pytest.raises(ValueError, match="must be None, 'balanced', or a dict"):
            DPLogisticRegression(class_weight=weight).plan(100, 3)
    for Model in (Model for Model in OTHERS if "Perturbation" in Model.__name__):
        with pytest.raises(ValueError, match="with class_weight='balanced': the noise would"):
            Model(class_weight="balanced", alpha=0.1).plan(100, 3)
