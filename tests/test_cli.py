"""The command line: output, files, exit codes, and the examples that share its runner."""

import importlib
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from planted_bugs import half_noise
from sklearn.utils import Bunch

import dpglm
from dpglm import DPLogisticRegression, PrivacyOdometer, Schema
from dpglm.datasets import make_census
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.schema import CategoricalColumn, NumericColumn, Target
from dpglm.study import methods, plot
from dpglm.study.cli import main
from dpglm.study.comparison import ComparisonResults
from dpglm.study.methods import AUDITED, METHODS

pytest.importorskip("matplotlib")

QUICK = ["--n-samples", "300", "--max-iter", "3", "--folds", "2", "--delta", "1e-3"]
QUICK += ["--estimators", "logistic", "majority", "--epsilons", "0.5", "2", "--seed", "0"]


def compare(*arguments):
    return main(["compare", *QUICK, *map(str, arguments)])


def test_a_run_prints_the_table_and_writes_its_files(capsys, tmp_path):
    output, table, figure = (tmp_path / name for name in ("o.jsonl", "t.json", "f.png"))
    assert compare("--output", output, "--json", table, "--plot", figure) == 0
    printed, notes = capsys.readouterr()
    assert printed.startswith("census: 300 rows x 99 features, 2-fold cross-validation")
    assert printed.splitlines()[2].split() == ["epsilon", "0.5", "epsilon", "2"]
    assert all("elapsed" in line for line in notes.splitlines())
    assert "- 2 of 4 fits of logistic warned: UtilityWarning: This fit has" in printed
    rows = json.loads(table.read_text())["rows"]
    expected = [(name, epsilon) for name in ("logistic", "majority") for epsilon in (0.5, 2.0)]
    assert [(row["estimator"], row["epsilon"]) for row in rows] == expected
    assert len(output.read_text().splitlines()) == 8
    assert figure.read_bytes().startswith(b"\x89PNG")

    assert compare("--output", output) == 0
    assert capsys.readouterr() == (printed, "8 of 8 fits were finished earlier\n")


@pytest.mark.slow
def test_every_named_estimator_runs_and_spends_no_more_than_its_epsilon(capsys, tmp_path):
    table = tmp_path / "table.json"
    size = ["--n-samples", "120", "--max-iter", "2", "--estimators", "all", "--epsilons", "3"]
    assert compare(*size, "--json", table) == 0
    assert "failed" not in capsys.readouterr().out
    rows = {row["estimator"]: row for row in json.loads(table.read_text())["rows"]}
    assert list(rows) == list(METHODS)
    for name, row in rows.items():
        assert row["loss"] == ("hinge" if name.endswith("svm") else "logistic"), name
        assert (row["ledger_epsilon"] is None) == name.startswith("reference")
        assert (row["ledger_epsilon"] or 0.0) <= 3.0


def test_every_estimator_of_the_package_is_audited_by_name_and_every_baseline_compared():
    for module in pkgutil.walk_packages(dpglm.__path__, "dpglm."):
        if module.name != "dpglm.__main__":
            importlib.import_module(module.name)

    def subclasses(cls):
        return {cls}.union(*(subclasses(c) for c in cls.__subclasses__()))

    found = {c for c in subclasses(PrivateLinearClassifier) if c.__name__[0] != "_"}
    own = {c for c in found if c.__module__.startswith("dpglm.")}
    own = {c for c in own if c.__module__ != "dpglm.estimators.classification"}
    assert own == {type(method.estimator) for method in AUDITED.values()}
    assert own <= {type(method.estimator) for method in METHODS.values()}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--quick", ["logistic", "agd", "objective-perturbation"]),
        ("--quick --estimators svm majority", ["svm", "majority"]),
        ("--estimators all", [*METHODS]),
        ("", [n for n in METHODS if METHODS[n].group != "more"]),
        ("--estimators privgene privgene", ["privgene"]),
    ],
)
def test_groups_and_names_select_the_estimators(options, names, monkeypatch):
    def noted(tables, estimators, **parameters):
        assert (list(estimators), parameters["epsilons"]) == (names, [0.1, 0.4, 1.0])
        # Without privacy nothing of what is asked for changes.
        assert all(m.max_iter != 7 for n, m in estimators.items() if n.startswith("reference"))
        return ComparisonResults([])

    monkeypatch.setattr("dpglm.study.cli.compare", noted)
    small = ["--n-samples", "300", "--delta", "1e-3", "--max-iter", "7"]
    assert main(["compare", *small, *options.split()]) == 0


@pytest.mark.slow
def test_several_datasets_have_a_table_and_a_figure_each(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(methods, "fetch_table", lambda name, folder: small_table(name))
    figure = ["--plot", tmp_path / "f.png"]
    assert compare("--datasets", "census", "bank", "--n-samples", "80", *figure) == 0
    printed = capsys.readouterr().out
    assert "census: 80 rows x 99 features" in printed and "bank: 80 rows x 2 features" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"f-bank.png", "f-census.png"}


def small_table(name):
    columns = [NumericColumn("age", 0, 100), CategoricalColumn("job", ["cook"])]
    schema = Schema(name, columns, Target("paid", ["no", "yes"]))
    frame = pd.DataFrame({"age": np.arange(120.0), "job": ["cook", "smith"] * 60})
    return Bunch(data=frame, target=np.array(["no", "yes", "yes"] * 40), schema=schema)


def test_a_table_of_ones_own_is_encoded_by_its_schema(capsys, tmp_path):
    table, csv, schema = small_table("staff"), tmp_path / "staff.csv", tmp_path / "staff.json"
    table.data.assign(paid=table.target).to_csv(csv, index=False)
    schema.write_text(table.schema.to_json())
    own = ["--csv", csv, "--schema", schema]
    assert compare(*own, "--n-samples", "100", "--output", tmp_path / "o.jsonl") == 0
    said = capsys.readouterr()
    assert said.out.startswith("staff: 100 rows x 9 features")
    assert said.err.endswith("have no noise: publish them only if the table may be.\n")
    with pytest.raises(SystemExit):
        compare(*own, "--n-samples", "121")
    assert "argument --csv: Cannot sample 121" in capsys.readouterr().err


def test_an_interrupted_run_is_resumed_to_the_same_table(capsys, monkeypatch, tmp_path):
    assert compare() == 0
    unbroken, kept = capsys.readouterr().out, tmp_path / "o.jsonl"
    fit, calls = DPLogisticRegression.fit, []

    def interrupted(self, X, y):
        calls.append(len(kept.read_text().splitlines()) if kept.exists() else 0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(self, X, y)

    monkeypatch.setattr(DPLogisticRegression, "fit", interrupted)
    assert compare("--output", kept) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert len(kept.read_text().splitlines()) == 4
    assert compare("--output", kept) == 0
    assert capsys.readouterr().out == unbroken
    assert calls[:3] == [0, 1, 4] and len(calls) == 3 + 2


def test_failed_fits_are_reported_and_the_exit_code_is_1(capsys, monkeypatch):
    def broken(self, X, y):
        raise ArithmeticError("no good")

    monkeypatch.setattr(DPLogisticRegression, "fit", broken)
    assert compare() == 1
    assert "- 4 of 4 fits of logistic failed: ArithmeticError: no good" in capsys.readouterr().out


def test_the_module_is_the_program(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "dpglm.__main__", raising=False)  # others import it
    for program, name in (("dpglm/__main__.py", "python -m dpglm"), ("bin/dpglm", "dpglm")):
        monkeypatch.setattr(sys, "argv", [program])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_module("dpglm", run_name="__main__")
        message = f"{name}: error: the following arguments are required: COMMAND\n"
        assert (exit_.value.code, capsys.readouterr().err) == (2, message)


FEW = ["--canaries", "300", "--fits", "100"]


def test_an_honest_estimator_passes_and_a_violation_is_the_exit_code(monkeypatch, capsys):
    assert main(["audit", "--estimator", "logistic-decaying-clip", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["logistic-decaying-clip", "gradients"]
    assert any(line.endswith("nothing speaks against its claim of (5, 1e-06).") for line in lines)
    half_noise(monkeypatch)
    assert main(["audit", "--estimator", "majority", *FEW]) == 1
    out = capsys.readouterr().out
    assert "VIOLATED" in out.splitlines()[1]
    assert "majority VIOLATES its claim of (5, 1e-06): counts: the noise is not" in out


def test_audits_whose_library_is_missing_are_listed_and_the_others_printed(monkeypatch, capsys):
    chosen = {name: AUDITED[name] for name in ("majority", "logistic-batches", "logistic-dask")}
    monkeypatch.setattr("dpglm.study.cli.AUDITED", chosen)
    missing = ("dask", "dp_accounting")
    for module in [*missing, *(m for m in sys.modules if m.startswith(missing))]:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["audit", "--all", *FEW]) == 0
    out = capsys.readouterr().out
    for name, extra in (("batches", "accounting"), ("dask", "dask")):
        assert re.search(rf'logistic-{name} was not run: .*pip install "dpglm\[{extra}\]"', out)
    assert re.search(r"\nmajority .*passed", out)
    assert re.search(r"\n1 of 1 audits passed, 2 were not run\.\n$", out)
    with pytest.raises(SystemExit, match="2"):
        main(["audit", "--estimator", "logistic-dask", *FEW])


@pytest.mark.slow
def test_every_estimator_passes_in_one_table(capsys):
    assert main(["audit", "--all"]) == 0
    out = capsys.readouterr().out
    assert "VIOLATED" not in out and f"{len(AUDITED)} of {len(AUDITED)} audits passed" in out
    assert all(f"\n{name} " in f"\n{out}" for name in AUDITED)


def test_the_odometer_of_a_study_is_printed_and_drawn(capsys, tmp_path):
    path, figure = tmp_path / "study.jsonl", tmp_path / "study.png"
    with PrivacyOdometer(path, epsilon=2.0) as odometer, odometer.part("north"):
        DPLogisticRegression(epsilon=0.5, max_iter=2).fit(*make_census(200, random_state=0))
    odometer.charge(DPLogisticRegression(epsilon=1.0).plan(200, 5).ledger)
    assert main(["odometer", str(path), "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    total, (header, first, second, left) = out[: out.index("charge ")], out.splitlines()[-4:]
    assert header.split() == ["charge", "time", "part", "estimator", "epsilon", "used"]
    assert first.split()[3:] == ["north", "DPLogisticRegression", "0.5", "0.5"]
    assert float(second.split()[-1]) == pytest.approx(odometer.used(), rel=1e-3)
    assert " ".join(total.split()) == odometer.statement
    assert left.startswith("One more full-batch fit may have epsilon=1.574 at delta=1e-06.")
    assert figure.read_bytes().startswith(b"\x89PNG")
    used, limit = plot(odometer).axes_[0].get_lines()
    assert used.get_ydata()[0] == 0 and set(limit.get_ydata()) == {2.0}


def test_a_comparison_charges_the_odometer_that_it_is_given(capsys, tmp_path):
    path = tmp_path / "study.jsonl"
    options = ["--n-samples", "200", "--max-iter", "2", "--folds", "2", "--epsilons", "1"]
    options += ["--estimators", "logistic", "--odometer", str(path)]
    assert main(["compare", *options]) == 0
    entries = PrivacyOdometer(path).entries()
    assert [entry.estimator for entry in entries] == ["DPLogisticRegression"] * 2
    path.unlink()
    with PrivacyOdometer(path, epsilon=1.2):
        pass
    assert main(["compare", *options]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 fits" in out and "beyond the limit of 1.2" in out
    # What cannot work is refused before what can is charged.
    refused = ["--estimators", "majority", "sgd-advanced", "--epsilons", "1e-6"]
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *options, *refused])
    assert "error: estimator sgd-advanced: epsilon=1e-06 with" in capsys.readouterr().err
    assert len(PrivacyOdometer(path).entries()) == 1


def test_the_version_and_whole_numbers_with_an_exponent(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"dpglm {dpglm.__version__}\n"
    plans = []
    for n in ("1e5", "100000"):
        assert main(["plan", "--n", n, "--epsilon", "1"]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1] and "100,000" in plans[0]


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_the_program_quietly(unbuffered):
    run = subprocess.Popen(
        [sys.executable, "-m", "dpglm", "plan", "--n", "48842", "--epsilon", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    run.stdout.close()
    assert (run.stderr.read(), run.wait()) == (b"", 141)
    run.stderr.close()
