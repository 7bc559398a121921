"""The command line: output, files, exit codes, and the examples that share its runner."""

import importlib
import json
import os
import pkgutil
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.utils import Bunch

import dpglm
from dpglm import DPLogisticRegression, Schema
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.schema import CategoricalColumn, NumericColumn, Target
from dpglm.study import methods
from dpglm.study.cli import main
from dpglm.study.methods import AUDITED, COMPARED, METHODS, make_audited, make_estimator
from dpglm.study.results import Cell, ComparisonResults

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

QUICK = ["--n-samples", "300", "--max-iter", "3", "--folds", "2", "--delta", "1e-3"]
QUICK += ["--estimators", "logistic,majority", "--epsilons", "2,0.5", "--seed", "0"]
EXAMPLES = Path(__file__).parents[1] / "examples"


def compare(*arguments):
    return main(["compare", *QUICK, *map(str, arguments)])


def refused(capsys, *arguments):
    """The one line in which the program refuses its arguments."""
    with pytest.raises(SystemExit) as exit_:
        compare(*arguments)
    printed, message = capsys.readouterr()
    assert exit_.value.code == 2
    assert message.startswith("python -m dpglm") and "error: " in message
    assert printed == "" and message.count("\n") == 1
    return message


def test_a_run_prints_the_table_and_writes_its_files(capsys, tmp_path):
    output, table, figure = (tmp_path / "new" / name for name in ("o.jsonl", "t.json", "f.png"))
    assert compare("--output", output, "--json", table, "--plot", figure) == 0
    printed, notes = capsys.readouterr()
    assert printed.startswith("census: 300 rows x 99 features, 2-fold cross-validation")
    assert printed.splitlines()[3].split() == ["epsilon", "0.5", "epsilon", "2"]
    assert notes == ""
    rows = json.loads(table.read_text())["rows"]
    names, epsilons = ([row[key] for row in rows] for key in ("estimator", "epsilon"))
    assert names == ["logistic"] * 2 + ["majority"] * 2 and epsilons == [0.5, 2.0] * 2
    assert len(output.read_text().splitlines()) == 8
    assert figure.read_bytes().startswith(b"\x89PNG")

    assert compare("--output", output) == 0
    assert capsys.readouterr() == (printed, "8 of 8 fits were finished earlier\n")


def test_every_named_estimator_runs_and_spends_no_more_than_its_epsilon(capsys, tmp_path):
    table = tmp_path / "table.json"
    assert main(["compare", "--n-samples", "120", "--max-iter", "2", "--folds", "2", "--delta",
                 "0.001", "--estimators", "all", "--epsilons", "3", "--json", str(table)]
                ) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "failed" not in printed
    rows = {row["estimator"]: row for row in json.loads(table.read_text())["rows"]}
    assert list(rows) == list(COMPARED)
    for name, row in rows.items():
        kind = {"logistic": "logistic", "hinge": "svm"}[row["loss"]]
        assert kind in METHODS[name].losses, name
        assert (row["ledger_epsilon"] is None) == name.startswith("reference")
        assert (row["ledger_epsilon"] or 0.0) <= 3.0


def test_a_prototype_takes_the_parameters_that_it_has_and_stays_as_it_is():
    made = make_estimator("svm", epsilon=2.0, max_iter=10)
    assert repr(made) == "DPLinearSVM(epsilon=2.0, max_iter=10)"
    for parameters in ({"tilt": 1}, {}):
        assert repr(make_estimator("privgene", **parameters)) == "PrivGene()"


def test_every_estimator_of_the_package_is_audited_by_name_and_every_baseline_compared():
    """Found by walking the package, so that a new one cannot be left out."""
    for module in pkgutil.walk_packages(dpglm.__path__, "dpglm."):
        if module.name != "dpglm.__main__":
            importlib.import_module(module.name)

    def subclasses(cls):
        return {cls}.union(*(subclasses(c) for c in cls.__subclasses__()))

    found = subclasses(PrivateLinearClassifier) - {PrivateLinearClassifier}
    own = {c for c in found if c.__module__.startswith("dpglm.") and c.__name__[0] != "_"}
    assert own == {type(make_audited(name)[0]) for name in AUDITED}
    assert own <= {type(method.estimator) for method in METHODS.values()}


SELECTIONS = {
    "--quick": ["logistic", "agd", "objective-perturbation"],
    "--quick --loss svm": ["svm", "agd-svm", "objective-perturbation-svm"],
    "--quick --estimators svm,majority": ["svm", "majority"],
    "--estimators all --loss svm --quick": [n for n in COMPARED if "svm" in METHODS[n].losses],
    "--estimators logistic,agd-svm,reference --loss both": ["logistic", "agd-svm", "reference"],
    "": [n for n in COMPARED if METHODS[n].group != "more"],
    "--estimators newton,double-noise-newton": ["double-noise-newton"],
}


@pytest.mark.parametrize("options", SELECTIONS)
def test_losses_and_names_select_the_estimators(options, monkeypatch):
    chosen = {}

    def noted(tables, estimators, **parameters):
        chosen["names"] = list(estimators)
        chosen["epsilons"] = parameters["epsilons"]
        return ComparisonResults([])

    monkeypatch.setattr("dpglm.study.cli.compare", noted)
    size = ["--n-samples", "300", "--delta", "1e-3"]
    assert main(["compare", *size, *options.split()]) == 0
    assert chosen["names"] == SELECTIONS[options]
    assert chosen["epsilons"] == [0.1, 0.4, 1.0]


def test_several_datasets_have_a_table_and_a_figure_each(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(methods._FETCHERS, "bank", lambda folder: small_table("bank"))
    assert compare("--datasets", "census,bank", "--plot", tmp_path / "f.png",
                   "--html", tmp_path / "r.html", "--n-samples", "80") == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "census: 80 rows x 99 features" in printed and "bank: 80 rows x 2 features" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f-bank.png", "f-census.png",
                                                                "r.html"]  # fmt: skip
    page = (tmp_path / "r.html").read_text()
    assert page.count("<picture>") == 2 and "<h2>bank</h2>" in page


def small_table(name):
    """Return 120 rows with a number and a category, and their schema."""
    columns = [NumericColumn("age", 0, 100), CategoricalColumn("job", ["cook"])]
    schema = Schema(name, columns, Target("y", ["no", "yes"]))
    frame = pd.DataFrame({"age": np.arange(120.0), "job": ["cook", "smith"] * 60})
    return Bunch(data=frame, target=np.array(["no", "yes", "yes"] * 40), schema=schema)


def write_own_table(folder):
    table = small_table("staff")
    table.data.assign(paid=table.target).to_csv(folder / "staff.csv", index=False)
    (folder / "staff.json").write_text(table.schema.to_json())
    return ["--csv", folder / "staff.csv", "--schema", folder / "staff.json", "--n-samples", "100"]


def test_a_table_of_ones_own_is_encoded_by_its_schema(capsys, tmp_path):
    output = tmp_path / "o.jsonl"
    own = write_own_table(tmp_path)
    assert compare(*own, "--target", "paid", "--output", output) == 0
    assert capsys.readouterr().out.startswith("staff: 100 rows x 2 features")
    X, y = methods.load_tables([], csv=(own[1], own[3], "paid"))["staff"]
    np.testing.assert_allclose(X[:3], [[0, 1], [0.01, 0], [0.02, 1]])
    assert y[:3].tolist() == ["no", "yes", "yes"]


def test_an_interruption_says_how_to_resume_and_the_rerun_gives_the_same_table(
    capsys, monkeypatch, tmp_path
):
    """A fit that is finished is in the file before the next begins: a kill costs one fit."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert compare() == 0
    unbroken = capsys.readouterr().out
    assert not any(tmp_path.iterdir()), "a finished run leaves no file behind"
    fit, calls = DPLogisticRegression.fit, []

    def interrupted(self, X, y):
        calls.append(sum(len(path.read_text().splitlines()) for path in tmp_path.iterdir()))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(self, X, y)

    monkeypatch.setattr(DPLogisticRegression, "fit", interrupted)
    assert compare() == 130
    message = capsys.readouterr().err
    kept = message.split()[-1]
    assert message == f"Interrupted. To resume, run the same command with --output {kept}\n"
    assert len(Path(kept).read_text().splitlines()) == 4

    assert compare("--output", kept) == 0
    assert capsys.readouterr().out == unbroken
    assert calls[:3] == [0, 1, 4] and len(calls) == 3 + 2


@pytest.mark.slow
def test_a_run_killed_by_the_system_resumes_to_the_same_table_with_nothing_run_twice(
    capsys, tmp_path
):
    output = tmp_path / "o.jsonl"
    arguments = [*QUICK[:4], *QUICK[6:], "--folds", "12", "--output", str(output)]
    process = subprocess.Popen([sys.executable, "-m", "dpglm", "compare", *arguments],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    while process.poll() is None and (not output.exists() or output.stat().st_size < 3000):
        time.sleep(0.001)
    process.kill()
    process.wait()
    finished = output.read_text().count("\n")
    assert 0 < finished < 48
    assert main(["compare", *arguments]) == 0
    resumed = capsys.readouterr()
    assert resumed.err.startswith(f"{finished} of 48 fits were finished earlier\n")
    cells = [Cell.of(json.loads(line)) for line in output.read_text().splitlines()]
    assert len(cells) == len(set(cells)) == 48
    assert main(["compare", *arguments[:-2]]) == 0
    assert capsys.readouterr().out == resumed.out


def test_failed_fits_are_reported_and_the_exit_code_is_1(capsys, monkeypatch):
    def broken(self, X, y):
        raise ArithmeticError("no good")

    monkeypatch.setattr(DPLogisticRegression, "fit", broken)
    assert compare() == 1
    printed, notes = capsys.readouterr()
    assert "failed" in printed and "majority" in printed
    assert notes == "\n4 of 4 fits of logistic failed: ArithmeticError: no good\n"


BAD = {
    "--datasets iris": "argument --datasets: 'iris' is unknown; choose from census, adult, bank",
    "--datasets census,": "argument --datasets: '' is unknown; choose from census, adult, bank",
    "--estimators logistic,magic": "argument --estimators: 'magic' is unknown; choose from all, ",
    "--loss hinge": "argument --loss: 'hinge' is unknown; choose from both, logistic, svm",
    "--loss svm --estimators agd": "argument --loss: none of agd minimises svm",
    "--csv {here}/no.csv --schema {here}/no.json": "{here}/no.json cannot be read",
    "--csv {here}/notes.txt": "argument --csv: needs --schema",
    "--csv {here}/notes.txt --schema {here}/notes.txt": "argument --schema: the schema is not JSON",
    "--csv {here}/notes.txt --schema {here}/s.json": "argument --csv: {here}/notes.txt has no col",
    "--csv {here}/no.csv --schema {here}/s.json": "argument --csv: {here}/no.csv cannot be read",
    "--csv {here} --schema {here}/s.json": "argument --csv: {here} cannot be read (Is a directory)",
    "--csv {here}/notes.txt --datasets census": "argument --csv: not allowed with --datasets",
    "--schema {here}/s.json": "argument --schema: describes the table of --csv, which is not given",
    "--target y": "argument --target: describes the table of --csv, which is not given",
    "--epsilons 1,x": "argument --epsilons: 'x' is not a number",
    "--epsilons nan": "argument --epsilons: 'nan' is not a number",
    "--epsilons 1,0": "argument --epsilons: '1,0': every epsilon must be above 0",
    "--epsilons 1e-12 --delta 1e-12": "estimator logistic: epsilon=1e-12 with delta=1e-12 is too",
    "--delta 1": "argument --delta: '1' must be above 0 and below 1",
    "--folds 1": "argument --folds: '1' must be a whole number, 2 or more",
    "--folds 301": "argument --folds: 301 exceeds the 300 rows of census",
    "--repeats 0": "argument --repeats: '0' must be a whole number, 1 or more",
    "--n-samples many": "argument --n-samples: 'many' must be a whole number",
    "--max-iter 0": "argument --max-iter: '0' must be a whole number, 1 or more",
    "--seed -1": "argument --seed: '-1' must be a whole number, 0 or more",
    "--jobs 0": "argument --jobs: '0' must be a whole number, 1 or more",
    "--output {here}": "argument --output: {here} cannot be written (Is a directory)",
    "--output {here}/notes.txt": "argument --output: line 1 of {here}/notes.txt is not a cell",
    "--json {here}/notes.txt/t.json": "argument --json: {here}/notes.txt/t.json cannot be written",
    "--plot {here}/figure.doc": "argument --plot: {here}/figure.doc must end in one of",
    "--json a --plot a": "--plot, --json must name different files",
    "--html {here}/notes.txt/r.html": "argument --html: {here}/notes.txt/r.html cannot be written",
    "--what": "unrecognized arguments: --what",
}


@pytest.mark.parametrize("arguments", BAD)
def test_a_bad_argument_ends_with_code_2_and_one_clear_line(arguments, capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("My notes.\n")
    (tmp_path / "s.json").write_text(small_table("staff").schema.to_json())
    message = refused(capsys, *arguments.format(here=tmp_path).split())
    assert BAD[arguments].format(here=tmp_path) in message
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "s.json"}
    assert (tmp_path / "notes.txt").read_text() == "My notes.\n"


def test_a_dataset_that_cannot_be_found_is_a_bad_argument(capsys, monkeypatch):
    monkeypatch.delenv("DPGLM_DATA", raising=False)
    monkeypatch.setattr("dpglm.datasets.fetch_openml", lambda **_: os.stat("/no network"))
    message = refused(capsys, "--dataset", "adult")
    assert "argument --datasets: adult: " in message and "no network" in message


@pytest.mark.parametrize(
    ("missing", "arguments", "sentence"),
    [
        ("matplotlib.figure", "--plot f.png", "argument --plot: needs matplotlib"),
        ("matplotlib.figure", "--html f.html", "argument --html: needs matplotlib"),
        ("dp_accounting", "--estimators sgd-moments", "estimator sgd-moments: "),
    ],
)
def test_what_needs_another_package_is_refused_before_any_fit(
    missing, arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused(capsys, *arguments.split())
    assert sentence in message and 'pip install "dpglm[' in message


def test_the_module_is_the_program(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dpglm"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("dpglm", run_name="__main__")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == (
        "python -m dpglm: error: the following arguments are required: COMMAND\n"
    )


@pytest.mark.skipif("DPGLM_DATA" not in os.environ, reason="DPGLM_DATA names no folder of data")
@pytest.mark.parametrize(("name", "drawn"), [("adult", False), ("bank", True)])
def test_the_example_on_real_data_prints_the_default_estimator_and_writes_its_files(
    name, drawn, tmp_path, capsys, monkeypatch
):
    options = ["--quick", "--n-samples", "300", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [f"compare_{name}.py", *options])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    if not drawn:
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    runpy.run_path(str(EXAMPLES / f"compare_{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].startswith(f"{name}: ") and lines[0].endswith("delta 1e-08")
    (accuracy, *_) = (line.split()[1] for line in lines if "DPLogisticRegression()" in line)
    assert 0.2 < float(accuracy) < 0.95
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ([f"{name}.html", f"{name}.json", f"{name}.png"] if drawn else [f"{name}.json"])
    assert "failed" not in printed and ("No figure: " in printed) != drawn
    assert all(f"  {label}  " in printed for label in ("PrivGene", "SVM, output perturbation"))
