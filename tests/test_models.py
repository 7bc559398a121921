"""The commands that draft a schema, fit a table and predict by what was fitted, and their file."""

import csv
import io
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from dpglm import DPLinearRegression, PrivacyLedger, PrivacyOdometer, Schema
from dpglm.schema import CategoricalColumn, NumericColumn, Target
from dpglm.sources import read_csv
from dpglm.study import compare, expected_errors
from dpglm.study.cli import main
from dpglm.study.models import read_model

COLUMNS = (
    NumericColumn("age", 0, 100),
    CategoricalColumn("job", ["cook", "baker"], handle_unknown="zeros"),
)
SCHEMA = Schema("staff", COLUMNS, Target("left", ["no", "yes", "soon"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("staff"), np.random.default_rng(0)
    columns = {"age": rng.integers(20, 60, 300), "job": rng.choice(["cook", "SECRET"], 300)}
    table = pd.DataFrame({**columns, "left": rng.choice(["no", "yes", "soon"], 300)})
    table.to_csv(folder / "t.csv", index=False)
    (folder / "s.json").write_text(SCHEMA.to_json())
    for name in ("logistic", "svm"):
        assert run(folder, "fit t.csv --schema s.json --epsilon 5 --delta 1e-3 --estimator", name,
                   "--odometer o.jsonl --output", f"{name}.json") == 0  # fmt: skip
    return folder


def run(folder, *arguments):
    words = " ".join(arguments).split()
    return main([str(folder / word) if "." in word and "-" not in word else word for word in words])


def refused(folder, capsys, *arguments):
    with pytest.raises(SystemExit):
        run(folder, *arguments)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_model_is_one_file_that_predicts_as_the_formula_says(folder, capsys):
    for name, options in (("logistic", "--probabilities"), ("svm", "")):
        assert run(folder, f"predict {name}.json t.csv {options}") == 0
        head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
        document = json.loads((folder / f"{name}.json").read_text())
        # How each number is encoded is in the file, and not left to the default where it is read.
        assert Schema.from_dict(document["schema"]).columns == SCHEMA.additive().columns
        X = SCHEMA.transformer().fit_transform(read_csv(folder / "t.csv", SCHEMA).data)
        scores = X @ np.array(document["coef"]).T + document["intercept"]
        classes = np.array(document["classes"])
        assert [row[0] for row in rows] == classes[scores.argmax(1)].tolist()
        assert document["classes"] == ["no", "soon", "yes"] and head[0] == "left"
        if options:
            shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            assert np.array(rows)[:, 1:].astype(float) == pytest.approx(shares, abs=1e-12)
            assert head[1:] == [f"chance of {name}" for name in classes]


def test_the_file_holds_the_ledger_that_the_odometer_was_charged_with(folder, capsys):
    written = [
        PrivacyLedger.from_dict(json.loads((folder / f"{name}.json").read_text())["ledger"])
        for name in ("logistic", "svm")
    ]
    odometer = PrivacyOdometer(folder / "o.jsonl")
    assert odometer.ledgers() == written and written[0].epsilon() == pytest.approx(5.0, rel=1e-6)
    _, model = read_model(folder / "svm.json")
    assert model.privacy_ == written[1]
    assert run(folder, "report svm.json o.jsonl") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Privacy report: DPLinearSVM") and "NOT among" not in printed


def test_a_draft_holds_no_value_and_a_check_says_that_it_does(folder, capsys):
    assert run(folder, "schema t.csv --target left") == 0
    text = capsys.readouterr().out
    draft = Schema.from_json(text)
    assert draft.feature_names == ["age", "job"] and draft.target.name == "left"
    assert "SECRET" not in text and "cook" not in text and not any(map(str.isdigit, text[18:]))
    assert run(folder, "schema t.csv --check s.json") == 1
    assert "must not leave the room" in capsys.readouterr().out
    right = SCHEMA.columns[0]
    fits = Schema("fits", [right], Target("left", ["no", "soon", "yes"]))
    (folder / "fits.json").write_text(fits.to_json())
    (folder / "fits.csv").write_text(f"{right.name},left\n30,no\n31,soon\n")
    assert run(folder, "schema fits.csv --check fits.json") == 0


@pytest.mark.filterwarnings("always")
def test_a_warning_is_a_line_without_our_code(folder, capsys):
    words = "fit t.csv --schema s.json --epsilon 5 --delta 1e-1 --output warned.json"
    assert run(folder, words) == 0
    printed = capsys.readouterr().err
    assert "PrivacyWarning: delta=0.1 exceeds 1/n = 0.00333" in printed and ".py" not in printed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "it is of version 2"),
        ({"coef": [[0.0, 1.0]]}, "do not fit its schema"),
        ({"ledger": {}}, "not a ledger"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_a_line(folder, capsys, change, why):
    document = json.loads((folder / "logistic.json").read_text())
    (folder / "wrong.json").write_text(json.dumps({**document, **change}))
    line = refused(folder, capsys, "predict wrong.json t.csv")
    assert "wrong.json is no model of dpglm fit" in line and why in line


def test_what_cannot_be_done_is_refused_before_anything_is_spent(folder, capsys):
    n_fits = len(PrivacyOdometer(folder / "o.jsonl").entries())
    fit = "fit t.csv --epsilon 5 --delta 1e-3 --odometer o.jsonl"
    (folder / "draft.json").write_text(SCHEMA.to_json().replace("100.0", '"FILL IN"'))
    (folder / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    wrong = {
        f"{fit} --schema draft.json --output m.json": "fill in upper of 'age'",
        # Before any row is read, here one that is none.
        "fit ragged.csv --epsilon 5 --schema draft.json --output m.json": "fill in upper of 'age'",
        f"{fit} --schema s.json --output none/m.json": "m.json cannot be opened",
        f"{fit} --schema s.json --output svm.json": "svm.json exists; give --overwrite",
        f"{fit} --schema s.json --limit 9 --output m.json": "begun without a limit",
        f"{fit} --schema s.json --groups id --output m.json": "belong together",
        "fit t.csv --epsilon 5 --schema s.json --limit 9 --output m.json": "which is not given",
        "fit t.csv --epsilon 5 --schema t.csv --output m.json": "--schema: the schema is not JSON",
        "predict s.json t.csv": "it has no 'format'",
        f"{fit} --schema s.json --relation add_or_remove_one --output m.json": "n_samples_estimate",
        "predict svm.json t.csv --probabilities": "has no probabilities",
    }
    for command, why in wrong.items():
        assert why in refused(folder, capsys, command)
    assert not (folder / "m.json").exists()
    assert len(PrivacyOdometer(folder / "o.jsonl").entries()) == n_fits


def test_persons_are_protected_by_a_column_that_is_no_feature(folder, capsys):
    table = pd.read_csv(folder / "t.csv").assign(age=[f"p{i // 3}" for i in range(300)])
    table.to_csv(folder / "p.csv", index=False)
    persons = (
        "fit p.csv --schema s.json --epsilon 5 --delta 1e-3 --groups age --max-contributions 2"
    )
    assert run(folder, f"{persons} --odometer p.jsonl --limit 6 --output p.json") == 0
    printed, message = capsys.readouterr()
    assert "group" in printed and message == ""
    schema, model = read_model(folder / "p.json")
    assert model.privacy_.privacy_unit == "group" and schema.feature_names == ["job"]
    odometer = PrivacyOdometer(folder / "p.jsonl")
    assert (odometer.epsilon, odometer.delta) == (6.0, 1e-3)
    assert "exists" in refused(folder, capsys, f"{persons} --odometer p.jsonl --output p.json")
    again = f"{persons} --odometer p.jsonl --overwrite --output p.json"
    assert "beyond the limit of 6" in refused(folder, capsys, again)
    table["age"] = table["age"].where(table.index > 3, "")
    table.to_csv(folder / "p.csv", index=False)
    assert "nobody's" in refused(folder, capsys, f"{persons} --output q.json")
    assert not (folder / "q.json").exists()


def test_a_number_is_fitted_predicted_planned_and_reported_by_name(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 60, 300), "job": rng.choice(["cook", "b"], 300)})
    wage = 2.0 * table["age"] + rng.gamma(2.0, size=300)
    table.assign(wage=wage).to_csv(tmp_path / "t.csv", index=False)
    pay = Schema("pay", COLUMNS, Target("wage", lower=1, upper=150))
    (tmp_path / "s.json").write_text(pay.to_json())
    (tmp_path / "l.json").write_text(
        Schema("l", COLUMNS[:1], Target("job", ["b", "cook"])).to_json()
    )
    fit = "fit t.csv --epsilon 5 --delta 1e-3 --schema s.json"
    for name in ("linear", "poisson", "gamma"):
        assert run(tmp_path, f"{fit} --estimator {name} --output {name}.json") == 0
        assert "the bounds of the target are public, if" in capsys.readouterr().out
        assert run(tmp_path, f"predict {name}.json t.csv") == 0
        (head,), *rows = csv.reader(io.StringIO(capsys.readouterr().out))
        document = json.loads((tmp_path / f"{name}.json").read_text())
        X = pay.transformer().fit_transform(table)
        means = X @ np.array(document["coef"]) + document["intercept"]
        means = np.clip(means if name == "linear" else np.exp(means), *document["range"])
        assert np.array(rows, dtype=float).ravel() == pytest.approx(means, rel=1e-12)
        assert head == "wage" and document["range"] == [1.0, 150.0]
        assert run(tmp_path, f"report {name}.json") == 0
        assert capsys.readouterr().out.startswith("Privacy report: DP")
        assert run(tmp_path, f"plan --n 5000 --epsilon 1 --features 3 --estimator {name}") == 0
        planned = capsys.readouterr().out
        assert "on 5,000 records, 3 features.\n" in planned and "the unit of residuals" in planned
    (tmp_path / "w.json").write_text(json.dumps({**document, "range": [2, 2]}))
    wrong = {
        f"{fit} --output m.json": "the target of schema 'pay' is a number; choose one of linear,",
        "fit t.csv --epsilon 5 --schema l.json --estimator gamma --output m.json": "of logistic,",
        f"{fit} --estimator linear --groups job --max-contributions 2 --output m.json": "single",
        "predict w.json t.csv": "its range [2, 2] is empty",
        "plan --n 9 --epsilon 1 --estimator linear --majority 1e-1": "--majority: linear predicts",
        "compare --csv t.csv --schema s.json": "its target 'wage' is a number, for regressors such",
    }
    for command, why in wrong.items():
        assert why in refused(tmp_path, capsys, command)
    assert not (tmp_path / "m.json").exists()


def test_comparisons_and_guesses_of_classifiers_refuse_a_regressor_in_a_sentence():
    model, table = DPLinearRegression(), (np.zeros((9, 1)), np.arange(9.0))
    refused = partial(pytest.raises, TypeError, match="is for classifiers, and DPLinearRegression")
    with refused():
        compare({"t": table}, {"own": model}, epsilons=[1.0])
    with refused():
        expected_errors(model, *table, n_samples=9, accuracy=0.9)
