"""The runner: what it measures, what it keeps, and that it resumes."""

import itertools
import json
import math

import numpy as np
import pytest
from cells import cell_record
from joblib import parallel_config
from scipy.sparse import csr_array
from scipy.stats import sem
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_blobs
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, hinge_loss, log_loss, roc_auc_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import LinearSVC
from sklearn.utils import Bunch

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.schema import load_schema
from dpglm.study.comparison import ComparisonResults, append_record, cell_of, compare, read_records

CENSUS = make_census(400, random_state=0)
FITS = []


class Counted(DPLogisticRegression):
    """Notes its settings whenever it is fitted."""

    def fit(self, X, y):
        super().fit(X, y)
        FITS.append((self.max_iter, self.epsilon, self.privacy_.seeded, self.coef_.tobytes()))
        return self


class Broken(ClassifierMixin, BaseEstimator):
    """Cannot be fitted."""

    def fit(self, X, y):
        raise ArithmeticError("no\n  good")


ESTIMATORS = {"private": Counted(max_iter=4), "majority": DummyClassifier()}


def run(estimators=ESTIMATORS, data=CENSUS, **options):
    options = {"epsilons": [0.5, 2.0], "delta": 1e-3, "n_splits": 3, "seed": 7, **options}
    return compare({"census": data}, estimators, **options)


def untimed(results):
    """Return the records in a form that two equal runs share."""
    return [{**record, "fit_seconds": None} for record in results.records]


@pytest.fixture(autouse=True)
def no_fits():
    FITS.clear()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken") / "results.jsonl"
    return run(results_file=path), path.read_bytes()


# The file of a run that was killed: empty, inside a line, at the end of a line, inside the last.
@pytest.mark.parametrize("kept_lines", [0, 0.01, 3, 5.98, 8.999])
def test_a_killed_run_resumes_to_the_same_table_without_repeating_a_fit(
    unbroken, tmp_path, kept_lines
):
    results, content = unbroken
    lines = content.splitlines(keepends=True)
    whole = int(kept_lines)
    rest = lines[whole][: round(len(lines[whole]) * (kept_lines - whole))]
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines[:whole]) + rest)
    done = sum('"private"' in line.decode() for line in lines[:whole])

    resumed = run(results_file=path)
    assert untimed(resumed) == untimed(results)
    assert str(resumed) == str(results)
    assert len(FITS) == 6 - done
    # What has no privacy is run once, and not for each epsilon.
    references = [r["epsilon"] for r in results.records if r["estimator"] == "majority"]
    assert references == [None] * 3
    assert len(read_records(path)) == len(path.read_text().splitlines()) == 9

    again = run(results_file=path)
    assert again.records == resumed.records
    assert len(FITS) == 6 - done


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_two_workers_give_the_same_results_as_one(unbroken, tmp_path, backend):
    estimators = {"private": DPLogisticRegression(max_iter=4), "majority": DummyClassifier()}
    path = tmp_path / "results.jsonl"
    with parallel_config(backend):
        parallel = run(estimators, n_jobs=2, results_file=path)
    for one, other in zip(parallel.records, unbroken[0].records, strict=True):
        assert one["training_loss"] == other["training_loss"] and one["auc"] == other["auc"]
    assert len(read_records(path)) == 9


def test_cells_have_seeds_of_their_own_only_where_the_run_has_one():
    for seeds, n_different in (((7, 8), 12), ((7, 7), 6), ((None, None), 12)):
        FITS.clear()
        chance = {"chance": DummyClassifier(strategy="uniform"), "private": ESTIMATORS["private"]}
        records = [record for seed in seeds for record in run(chance, seed=seed).records]
        assert len(FITS) == 12 and len({coef for *_, coef in FITS}) == n_different
        assert {seeded for *_, seeded, _ in FITS} == {seeds[0] is not None}
        scores = [record["accuracy"] for record in records if record["estimator"] == "chance"]
        assert (scores[:3] == scores[3:]) == (n_different == 6)


@pytest.mark.slow
def test_whatever_determines_a_cell_tells_it_from_others(tmp_path):
    path = tmp_path / "results.jsonl"
    run(results_file=path)
    for count, variant in (
        (6, {"data": make_census(400, random_state=1)}),
        (6, {"estimators": {"private": Counted(max_iter=4, alpha=0.1)}}),
        (6, {"estimators": {"other": Counted(max_iter=4)}}),
        (6, {"delta": 1e-4}),
        (4, {"n_splits": 2}),
        (6, {"seed": 8}),
        # The cells of the first run are not repeated.
        (3 + 9, {"n_repeats": 2, "epsilons": [0.5, 2.0, 3.0]}),
    ):
        FITS.clear()
        run(results_file=path, **variant)
        assert len(FITS) == count, variant


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "model", [LogisticRegression(max_iter=500), LinearSVC(random_state=0), DummyClassifier()]
)
def test_metrics_agree_with_scikit_learn(model, n_classes):
    X, y = make_blobs(300, centers=n_classes, cluster_std=6.0, random_state=0)
    y = np.array(["c", "a", "b"])[y]
    measured = run({"model": model}, (X, y), n_repeats=2).records

    def loss(rows):
        if hasattr(model, "predict_proba"):
            return log_loss(y[rows], model.predict_proba(X[rows]))
        if n_classes == 2:
            return hinge_loss(y[rows], model.decision_function(X[rows]))
        sign = np.where(y[rows][:, None] == model.classes_, 1, -1)
        margin = sign * model.decision_function(X[rows])
        return np.maximum(0, 1 - margin).sum(axis=1).mean()

    folds = [KFold(3, shuffle=True, random_state=repeat).split(X) for repeat in range(2)]
    for record, (train, test) in zip(measured, itertools.chain(*folds), strict=True):
        model.fit(X[train], y[train])
        auc = 0.5
        assert record["accuracy"] == accuracy_score(y[test], model.predict(X[test]))
        assert record["training_loss"] == pytest.approx(loss(train), rel=1e-9)
        assert record["test_loss"] == pytest.approx(loss(test), rel=1e-9)
        if hasattr(model, "decision_function"):
            truth = y[test] if n_classes == 2 else y[test][:, None] == model.classes_
            auc = roc_auc_score(truth, model.decision_function(X[test]))
        assert record["auc"] == pytest.approx(auc, rel=1e-12)


def test_private_steps_of_pipelines_get_epsilon_and_delta_and_their_ledger_is_read():
    model = make_pipeline(Normalizer(), DPLinearSVM(max_iter=4))
    results = run({"piped": model, "plain": DPLinearSVM(max_iter=4)}, delta=1e-5)
    for record in results.records:
        assert 0.99 * record["epsilon"] < record["ledger_epsilon"] <= record["epsilon"]
        assert (record["delta"], record["loss"]) == (1e-5, "hinge")
    model = make_pipeline(DPLogisticRegression(), DPLinearSVM())
    with pytest.raises(ValueError, match="several private steps"):
        run({"model": model})


def test_an_error_is_recorded_reported_and_tried_again(tmp_path):
    path = tmp_path / "results.jsonl"
    estimators = {"broken": Broken(), **ESTIMATORS}
    results = run(estimators, results_file=path)
    assert [record["error"] for record in results.errors] == ["ArithmeticError: no good"] * 3
    assert sum("ArithmeticError" in line for line in path.read_text().splitlines()) == 3
    assert results.notes() == "3 of 3 fits of broken failed: ArithmeticError: no good"
    assert "3 of 3 fits of broken failed" in str(results)
    assert str(results).count(" failed") == 2 * 2 + 1
    assert len(json.loads(results.to_json())["errors"]) == 3
    row = results.rows()[0]
    assert (row["n_cells"], row["n_errors"], row["accuracy"]) == (0, 3, None)

    assert run(estimators, results_file=path).errors == results.errors
    assert len(FITS) == 6, "only what failed is run again"
    assert len(path.read_text().splitlines()) == 9 + 3 + 3


def test_rows_hold_means_and_standard_errors_over_folds_and_repeats():
    results = run(n_repeats=2)
    rows = {(row["estimator"], row["epsilon"]): row for row in results.rows()}
    assert list(rows) == [("private", 0.5), ("private", 2.0), ("majority", None)]
    for named, row in rows.items():
        own = [r["auc"] for r in results.records if (r["estimator"], r["epsilon"]) == named]
        assert row["n_cells"] == len(own) == 6
        assert row["auc"] == pytest.approx(np.mean(own), abs=1e-12)
        assert row["auc_se"] == pytest.approx(sem(own), abs=1e-12)
    assert list(results.to_frame()["n_repeats"]) == [2, 2, 2]


def test_numbers_that_json_lacks_survive_the_file_and_are_strings_in_the_table(tmp_path):
    path, record = tmp_path / "new folder" / "results.jsonl", cell_record(epsilon=math.inf)
    append_record(path, record)
    assert read_records(path) == {cell_of(record): record}
    written = json.loads(ComparisonResults([record]).to_json(), parse_constant=pytest.fail)
    assert written["rows"][0]["epsilon"] == "inf"


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "notes", "{}\n", "[1]\n", '{"dataset": 1}\n'])
def test_a_file_that_holds_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"line 1 of .*notes\.txt is not a fit of a comparison"):
        run(results_file=path)
    assert path.read_text() == content and not FITS


def test_a_bunch_is_encoded_by_its_schema_and_sparse_rows_give_the_same_scores(unbroken):
    frame, target = make_census(400, random_state=0, as_frame=True)
    bunch = Bunch(data=frame, target=target, schema=load_schema("census").additive(1))
    raw = run({"majority": DummyClassifier()}, bunch).records[0]
    assert raw["n_features"] == 99
    # Rows that carry their bound are fitted otherwise than a plain array of the same numbers.
    encoded = bunch.schema.transformer().fit_transform(frame)
    again = run({"majority": DummyClassifier()}, (encoded, target)).records[0]
    assert raw["fingerprint"] == again["fingerprint"] != unbroken[0].records[0]["fingerprint"]
    again = run({"majority": DummyClassifier()}, (np.asarray(encoded), target)).records[0]
    assert again["fingerprint"] == unbroken[0].records[0]["fingerprint"]
    X, y = CENSUS
    for dense, sparse in zip(unbroken[0].records, run(data=(csr_array(X), y)).records, strict=True):
        assert sparse["accuracy"] == dense["accuracy"]
        assert sparse["training_loss"] == pytest.approx(dense["training_loss"], rel=1e-9)


def test_bad_arguments_are_refused_before_any_fit():
    for options in ({"epsilons": []}, {"n_repeats": 0}, {"n_splits": 1}, {"n_splits": 500}):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name}(=| is empty)"):
            run(**options)
    assert not FITS
