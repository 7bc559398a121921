"""The command ``audit``: one table, a verdict, an exit code; and the figure of a report."""

import numpy as np
import pytest
from planted_bugs import half_noise
from sklearn.base import BaseEstimator

from dpglm import DPAGDClassifier, DPLogisticRegression
from dpglm.audit.report import AuditReport, audit_estimator, audit_table
from dpglm.study import AuditDisplay
from dpglm.study.cli import main
from dpglm.study.methods import AUDITED

QUICK = ["--canaries", "300", "--fits", "100"]


def test_an_honest_estimator_passes_and_its_figure_is_written(capsys, tmp_path):
    path = tmp_path / "audit.png"
    plot = ["--plot", str(path)]
    assert main(["audit", "--estimator", "logistic-decaying-clip", *plot, *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["logistic-decaying-clip", "gradients"]
    assert any(line.endswith("nothing speaks against its claim of (5, 1e-06).") for line in lines)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_name_of_the_comparison_is_audited_under_its_own(capsys):
    assert main(["audit", "--estimator", "double-noise-newton", *QUICK]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("newton ")


def test_a_violation_is_the_exit_code_and_the_last_line(monkeypatch, capsys):
    half_noise(monkeypatch)
    assert main(["audit", "--estimator", "majority", *QUICK]) == 1
    out = capsys.readouterr().out
    assert "VIOLATED" in out.splitlines()[1]
    assert "majority VIOLATES its claim of (5, 1e-06): counts: the noise is not" in out


@pytest.mark.slow
def test_every_estimator_passes_in_one_table(capsys):
    assert main(["audit", "--all"]) == 0
    out = capsys.readouterr().out
    assert "VIOLATED" not in out and f"{len(AUDITED)} of {len(AUDITED)} audits passed" in out
    assert all(f"\n{name} " in f"\n{out}" for name in AUDITED)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--estimator", "nobody"], "argument --estimator: invalid choice: 'nobody'"),
        (["--epsilon", "inf"], "argument --epsilon: 'inf' must be above 0"),
        (["--epsilon", "0"], "argument --epsilon: '0' must be above 0"),
        (["--delta", "1"], "argument --delta: '1' must be above 0 and below 1"),
        (["--canaries", "7"], "argument --canaries: '7' must be a whole number, 100 or more"),
        (["--false-alarm", "x"], "argument --false-alarm: 'x' is not a number"),
        (["--all", "--estimator", "svm"], "not allowed with argument --all"),
        (["--all", "--plot", "a.png"], "argument --plot: draws one estimator"),
        (["--plot", "a.txt"], "argument --plot: a.txt must end in one of"),
        (["--plot", "/no/where/a.png"], "argument --plot: /no/where is no directory"),
        (["--epsilon", "1e-9"], "logistic: epsilon=1e-09 "),
    ],
)
def test_bad_arguments_are_errors_of_one_line(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["audit", *arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.startswith("python -m dpglm audit: error: ") and complaint in error
    assert error.count("\n") == 1


def test_the_display_has_a_panel_for_every_part_and_the_densities_of_the_claim():
    for estimator in (DPAGDClassifier(epsilon=5.0), DPLogisticRegression(max_iter=5)):
        report = audit_estimator(estimator, n_canaries=300, n_fits=100)
        display = AuditDisplay.from_report(report).plot()
        assert len(display.axes_) == len(report.parts)
        for axes, part in zip(display.axes_, report.parts, strict=True):
            assert axes.get_title().startswith(f"{part.name}: passed")
            assert len(axes.get_legend_handles_labels()[1]) in (2, 4)
        with pytest.raises(ValueError, match=r"axes; .* are needed"):
            AuditDisplay.from_report(report).plot(list(display.axes_) * 2)
    absent, present = (line.get_xydata() for line in display.axes_[-1].lines)
    shift = report.parts[-1].evidence.shift
    assert absent[absent[:, 1].argmax(), 0] == pytest.approx(0.0, abs=0.02)
    assert present[present[:, 1].argmax(), 0] == pytest.approx(shift, abs=0.02)
    assert absent[:, 1].max() == pytest.approx(1 / np.sqrt(2 * np.pi), rel=1e-3)


def test_the_figure_of_an_audit_from_outside_and_of_a_violation():
    class NoNoise(BaseEstimator):
        def __init__(self, epsilon=0.5):
            self.epsilon = epsilon

        def fit(self, X, y):
            self.coef_ = ((2 * y - 1) @ X)[np.newaxis]
            return self

    report = audit_estimator(NoNoise(), n_canaries=200, n_fits=100)
    assert isinstance(report, AuditReport) and not report.passed
    display = AuditDisplay.from_report(report).plot()
    assert all("VIOLATED" in axes.get_title() for axes in display.axes_)
    assert "VIOLATES ITS CLAIM" in display.figure_.get_suptitle()
    assert audit_table([report]).count("VIOLATED") == 2
    assert str(report).endswith(report.verdict)
