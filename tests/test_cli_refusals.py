"""Whatever the command line refuses, it refuses with code 2 and in one clear line."""

import os
import sys

import pytest

from dpglm import DPLogisticRegression
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target
from dpglm.study.cli import main

QUICK = "compare --n-samples 300 --max-iter 3 --folds 2 --delta 1e-3 --seed 0"
QUICK += " --estimators logistic,majority --epsilons 2,0.5"
SCHEMA = Schema(
    "staff",
    [NumericColumn("age", 0, 100), CategoricalColumn("job", ["cook"])],
    Target("y", ["no", "yes"]),
)


def refused(capsys, command, arguments):
    given = QUICK if command == "compare" else command
    with pytest.raises(SystemExit) as exit_:
        main([*given.split(), *arguments.split()])
    printed, message = capsys.readouterr()
    assert exit_.value.code == 2
    assert message.startswith((f"python -m dpglm {command}: error: ", "python -m dpglm: error: "))
    assert printed == "" and message.count("\n") == 1
    return message


def whole(cases):
    """What is said of options with too small a number, by the least they take."""
    options = (case.split() for case in cases.split(", "))
    return {
        f"--{name} {value}": f"argument --{name}: '{value}' must be a whole number, {least} or more"
        for name, value, least in options
    }


COMPARE = {
    "--datasets iris": "argument --datasets: 'iris' is unknown; choose from census, adult, bank",
    "--estimators logistic,magic": "argument --estimators: 'magic' is unknown; choose from all, ",
    "--csv {here}/notes.txt --schema {here}/no.json": "{here}/no.json cannot be opened",
    "--csv {here}/notes.txt --schema {here}/notes.txt": "argument --schema: the schema is not JSON",
    "--csv {here}/notes.txt --schema {here}/s.json": "argument --csv: {here}/notes.txt has no col",
    "--csv {here}/no.csv --schema {here}/s.json": "argument --csv: {here}/no.csv cannot be opened",
    "--epsilons 1,x": "argument --epsilons: 'x' is not a number",
    "--epsilons 1e-12 --delta 1e-12": "estimator logistic: epsilon=1e-12 with delta=1e-12 is too",
    "--delta 1": "argument --delta: '1' must be above 0 and below 1",
    "--folds 301": "n_splits=301 greater than the number of samples: n_samples=300",
    **whole("folds 1 2, repeats 0 1, max-iter 0 1, seed -1 0, jobs 0 1"),
    "--output {here}/notes.txt": "line 1 of {here}/notes.txt is not a fit of",
    "--json {here}/notes.txt/t.json": "argument --json: {here}/notes.txt/t.json cannot be opened",
    "--plot {here}/figure.doc": "argument --plot: {here}/figure.doc must end in one of",
    "--json a.png --plot a.png": "--plot, --json must name different files",
    "--what": "unrecognized arguments: --what",
}
PLAN = {
    "": "the following arguments are required: --n",
    "--n 9 --epsilon 0": "argument --epsilon: '0' must be above 0, from 1e-100 to 1e100",
    **whole("n 0 1, features 0 1, classes 1 2, n-iter 0 1"),
    "--n 9 --epsilon 1 --n-iter 100001": "--n-iter: '100001' must be a whole number, 1 or more, at",
    "--n 9 --epsilon 1 --sampling-rate 2": "argument --sampling-rate: '2' must be above 0 and at",
    "--n 9 --epsilon 1 --estimator tree": "argument --estimator: invalid choice: 'tree'",
    "--n 9 --epsilon 1e-9 --preconditioner none": "epsilon=1e-09 with delta=1e-06 is too small",
    "--n 9 --epsilon 1 --estimator agd --sampling-rate 0.5": "--sampling-rate: agd searches along",
}
AUDIT = {
    "--estimator nobody": "argument --estimator: invalid choice: 'nobody'",
    "--delta 1": "argument --delta: '1' must be above 0 and below 1",
    **whole("canaries 7 100"),
    "--all --estimator svm": "not allowed with argument --all",
    "--epsilon 1e-9": "logistic: epsilon=1e-09 ",
}
ODOMETER = {"{here}/none": "none does not exist", "{here}/notes.txt": "or not the file of"}
COMMANDS = {"compare": COMPARE, "plan": PLAN, "audit": AUDIT, "odometer": ODOMETER}
BAD = [(command, *case) for command, table in COMMANDS.items() for case in table.items()]


@pytest.mark.parametrize(("command", "arguments", "sentence"), BAD)
def test_a_bad_argument_ends_with_code_2_and_one_clear_line(
    command, arguments, sentence, capsys, tmp_path
):
    (tmp_path / "notes.txt").write_text("My notes.\n")
    (tmp_path / "s.json").write_text(SCHEMA.to_json())
    message = refused(capsys, command, arguments.format(here=tmp_path))
    assert sentence.format(here=tmp_path) in message
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "s.json"}
    assert (tmp_path / "notes.txt").read_text() == "My notes.\n"


def test_a_dataset_that_cannot_be_found_is_a_bad_argument(capsys, monkeypatch):
    monkeypatch.delenv("DPGLM_DATA", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: os.stat("/no network"))
    message = refused(capsys, "compare", "--dataset adult")
    assert "argument --datasets: adult: " in message and "no network" in message


@pytest.mark.parametrize(
    ("missing", "command", "arguments", "sentence"),
    [
        ("matplotlib.figure", "compare", "--plot f.png", "argument --plot: it needs matplotlib"),
        ("dp_accounting", "compare", "--estimators sgd-moments", "estimator sgd-moments: "),
        ("dp_accounting", "plan", "--n 777 --epsilon 0.77 --sampling-rate 0.3", "dp-accounting"),
    ],
)
def test_what_needs_another_package_is_refused_before_any_work(
    missing, command, arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused(capsys, command, arguments)
    assert sentence in message and 'pip install "dpglm[' in message


def test_numbers_beyond_the_accountant_are_refused(capsys, monkeypatch):
    def overflowing(self, n_samples, n_features, n_classes):
        raise OverflowError("math range error")

    monkeypatch.setattr(DPLogisticRegression, "plan", overflowing)
    message = refused(capsys, "plan", "--n 9 --epsilon 1")
    assert "too extreme to be accounted for (math range error)" in message
