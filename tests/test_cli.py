"""The command line: output, files, exit codes, and the examples that share its runner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpglm import DPLogisticRegression
from dpglm.cli import main

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

QUICK = ["--n-samples", "300", "--max-iter", "3", "--folds", "2", "--delta", "1e-3"]
QUICK += ["--estimators", "logistic,majority", "--epsilons", "2,0.5", "--seed", "0"]
EXAMPLES = Path(__file__).parents[1] / "examples"


def compare(*arguments):
    return main(["compare", *QUICK, *map(str, arguments)])


def test_a_run_prints_the_table_and_writes_its_files(capsys, tmp_path):
    output, table, figure = (tmp_path / "new" / name for name in ("o.jsonl", "t.json", "f.png"))
    assert compare("--output", output, "--json", table, "--plot", figure) == 0
    printed, notes = capsys.readouterr()
    assert printed.startswith("census: 300 rows x 99 features, 2-fold cross-validation")
    assert printed.splitlines()[3].split() == ["epsilon", "0.5", "epsilon", "2"]
    assert notes == ""
    assert [
        (row["estimator"], row["epsilon"]) for row in json.loads(table.read_text())["rows"]
    ] == [
        ("logistic", 0.5),
        ("logistic", 2.0),
        ("majority", None),
    ]
    assert len(output.read_text().splitlines()) == 6
    assert figure.read_bytes().startswith(b"\x89PNG")

    assert compare("--output", output) == 0
    assert capsys.readouterr() == (printed, "6 of 6 fits were finished earlier\n")


def test_every_named_estimator_runs(capsys):
    assert main(["compare", "--n-samples", "60", "--max-iter", "2", "--folds", "2",
                 "--delta", "0.001", "--estimators", "logistic,logistic-plain,logistic-unwhitened,"
                 "agd,logistic-decaying-clip,logistic-dynamic,svm,svm-plain,reference,reference-svm,"
                 "majority", "--epsilons", "9"]) == 0  # fmt: skip
    assert "failed" not in capsys.readouterr().out


def test_an_interruption_says_how_to_resume_and_the_rerun_gives_the_same_table(
    capsys, monkeypatch, tmp_path
):
    assert compare() == 0
    unbroken = capsys.readouterr().out
    fit, calls = DPLogisticRegression.fit, []

    def interrupted(self, X, y):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(self, X, y)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(DPLogisticRegression, "fit", interrupted)
    assert compare() == 130
    message = capsys.readouterr().err
    kept = message.split()[-1]
    assert message == f"Interrupted. To resume, run the same command with --output {kept}\n"
    assert len(Path(kept).read_text().splitlines()) == 3

    assert compare("--output", kept) == 0
    assert capsys.readouterr().out == unbroken
    assert len(calls) == 3 + 2


def test_a_finished_run_leaves_no_file_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert compare() == 0
    assert not any(tmp_path.iterdir())


def test_failed_fits_are_reported_and_the_exit_code_is_1(capsys, monkeypatch):
    def broken(self, X, y):
        raise ArithmeticError("no good")

    monkeypatch.setattr(DPLogisticRegression, "fit", broken)
    assert compare() == 1
    printed, notes = capsys.readouterr()
    assert "failed" in printed and "majority" in printed
    assert notes == "\n4 of 4 fits of logistic failed: ArithmeticError: no good\n"


BAD = {
    "--dataset iris": "argument --dataset: invalid choice: 'iris'",
    "--estimators logistic,magic": "'magic' is unknown; choose from logistic, logistic-plain",
    "--epsilons 1,x": "argument --epsilons: 'x' is not a number",
    "--epsilons nan": "argument --epsilons: 'nan' is not a number",
    "--epsilons 1,0": "argument --epsilons: '1,0': every epsilon must be above 0",
    "--epsilons 1e-12 --delta 1e-12": "estimator logistic: epsilon=1e-12 with delta=1e-12 is too",
    "--delta 1": "argument --delta: '1' must be above 0 and below 1",
    "--folds 1": "argument --folds: '1' must be a whole number, 2 or more",
    "--folds 301": "argument --folds: 301 exceeds the 300 rows",
    "--repeats 0": "argument --repeats: '0' must be a whole number, 1 or more",
    "--n-samples many": "argument --n-samples: 'many' must be a whole number",
    "--max-iter 0": "argument --max-iter: '0' must be a whole number, 1 or more",
    "--seed -1": "argument --seed: '-1' must be a whole number, 0 or more",
    "--jobs 0": "argument --jobs: '0' must be a whole number, 1 or more",
    "--output {here}": "argument --output: {here} cannot be written (Is a directory)",
    "--output {here}/notes.txt": "argument --output: line 1 of {here}/notes.txt is not a cell",
    "--json {here}/notes.txt/t.json": "argument --json: {here}/notes.txt/t.json cannot be written",
    "--plot {here}/figure.doc": "argument --plot: {here}/figure.doc must end in one of",
    "--json a --plot a": "--json, --plot must name different files",
    "--what": "unrecognized arguments: --what",
}


@pytest.mark.parametrize("arguments", BAD)
def test_a_bad_argument_ends_with_code_2_and_one_clear_line(arguments, capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("My notes.\n")
    with pytest.raises(SystemExit) as exit_:
        compare(*arguments.format(here=tmp_path).split())
    printed, message = capsys.readouterr()
    assert exit_.value.code == 2
    assert message.startswith("python -m dpglm") and "error: " in message
    assert BAD[arguments].format(here=tmp_path) in message
    assert printed == "" and message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "My notes.\n"


def test_a_dataset_that_cannot_be_found_is_a_bad_argument(capsys, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.delenv("DPGLM_DATA", raising=False)
    monkeypatch.setattr("dpglm.datasets.fetch_openml", offline)
    with pytest.raises(SystemExit) as exit_:
        compare("--dataset", "adult")
    message = capsys.readouterr().err
    assert exit_.value.code == 2
    assert "argument --dataset: " in message and "no network" in message
    assert message.count("\n") == 1


def test_a_plot_without_matplotlib_is_refused_before_any_fit(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit):
        compare("--plot", tmp_path / "figure.png")
    assert 'pip install "dpglm[plot]"' in capsys.readouterr().err


def test_the_module_is_the_program():
    process = subprocess.run(
        [sys.executable, "-m", "dpglm"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stderr == (
        "python -m dpglm: error: the following arguments are required: COMMAND\n"
    )


@pytest.mark.skipif("DPGLM_DATA" not in os.environ, reason="DPGLM_DATA names no folder of data")
@pytest.mark.parametrize("name", ["adult", "bank"])
def test_the_example_on_real_data_prints_the_default_estimator_and_writes_its_files(name, tmp_path):
    options = ["--quick", "--n-samples", "3000", "--results", tmp_path]
    process = subprocess.run(
        [sys.executable, EXAMPLES / f"compare_{name}.py", *options],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    lines = process.stdout.splitlines()
    assert lines[0].startswith(f"{name}: ") and lines[0].endswith("delta 1e-08")
    (accuracy, *_) = (line.split()[1] for line in lines if "DPLogisticRegression()" in line)
    assert 0.7 < float(accuracy) < 0.95
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.json", f"{name}.png"]
