"""Whatever the command line refuses, it refuses with code 2 and in one clear line."""

import os
import sys

import pytest

from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target
from dpglm.study.cli import main

QUICK = "compare --n-samples 300 --max-iter 3 --folds 2 --delta 1e-3 --seed 0"
QUICK += " --estimators logistic majority --epsilons 0.5 2"
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


COMPARE = {
    "--datasets iris": "argument --datasets: invalid choice: 'iris' (choose from",
    "--csv {here}/notes.txt --schema {here}/no.json": "{here}/no.json cannot be opened",
    "--csv {here}/notes.txt --schema {here}/notes.txt": "argument --schema: the schema is not JSON",
    "--csv {here}/notes.txt --schema {here}/s.json": "argument --csv: the table has none",
    "--csv {here}/no.csv --schema {here}/s.json": "argument --csv: [Errno 2] No such file",
    "--epsilons 1 x": "argument --epsilons: could not convert string to float: 'x'",
    "--n-samples 0": "argument --n-samples: '0' must be a whole number, 1 or more",
    "--folds 301": "n_splits=301 greater than the number of samples: n_samples=300",
    "--output {here}/notes.txt": "line 1 of {here}/notes.txt is not a fit of",
    "--json {here}/notes.txt/t.json": "argument --json: {here}/notes.txt/t.json cannot be opened",
    "--plot {here}/figure.doc": "argument --plot: {here}/figure.doc must end in one of",
    "--what": "unrecognized arguments: --what",
}
PLAN = {
    "": "the following arguments are required: --n",
    "--n 9 --epsilon inf": "argument --epsilon: 'inf' must be finite",
    "--n 1.5 --epsilon 1": "argument --n: '1.5' must be a whole number, 1 or more",
    "--n 9 --epsilon 1 --accuracy 0.9": "--accuracy needs --schema",
    "--n 9 --epsilon 1 --estimator tree": "argument --estimator: invalid choice: 'tree'",
    "--n 9 --epsilon 1e-9 --preconditioner none": "epsilon=1e-09 with delta=1e-06 is too small",
    "--n 9 --epsilon 1 --estimator agd --sampling-rate 0.5": "--sampling-rate: agd searches along",
}
AUDIT = {
    "--epsilon 1e-9": "logistic: epsilon=1e-09 ",
    "--canaries 0": "argument --canaries: '0' must",
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
        ("dp_accounting", "plan", "--n 777 --epsilon 0.77 --sampling-rate 0.3", "dp-accounting"),
    ],
)
def test_what_needs_another_package_is_refused_before_any_work(
    missing, command, arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused(capsys, command, arguments)
    assert sentence in message and 'pip install "dpglm[' in message
