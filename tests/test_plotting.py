"""The figure of a comparison shows what the table says."""

import math
import sys

import matplotlib
import numpy as np
import pytest

from dpglm import DPAGDClassifier
from dpglm.datasets import make_census
from dpglm.plotting import ComparisonDisplay, FitTraceDisplay
from dpglm.results import Cell, ComparisonResults

matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


def record(estimator, epsilon, fold, accuracy, loss, dataset="toy"):
    delta = None if epsilon is None else 1e-6
    cell = Cell(dataset, 100, 3, "4f2a", estimator, "", epsilon, delta, 2, 0, fold, None)
    scores = {"accuracy": accuracy, "auc": 0.5, "training_loss": 0.4 + fold, "test_loss": 0.5}
    outcome = {"loss": loss, "fit_seconds": 1.0, "ledger_epsilon": epsilon, "warnings": []}
    return {**vars(cell), **scores, **outcome}


def results(dataset="toy"):
    records = [
        record("logistic", epsilon, fold, accuracy + 0.1 * fold, "logistic", dataset)
        for epsilon, accuracy in ((1.0, 0.7), (0.1, 0.6), (math.inf, 0.8))
        for fold in range(2)
    ]
    records += [record("svm", 0.1, fold, 0.65, "hinge", dataset) for fold in range(2)]
    records += [record("optimum", None, fold, 0.9, "logistic", dataset) for fold in range(2)]
    return ComparisonResults(records)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_points_and_error_bars_are_means_and_standard_errors_at_finite_epsilons():
    axes = ComparisonDisplay.from_results(results()).plot().axes_[0]
    logistic = next(c for c in axes.containers if c.get_label() == "logistic")
    line, _, (bars,) = logistic
    np.testing.assert_allclose(line.get_xdata(orig=False), [0.1, 1.0], rtol=0.05)
    np.testing.assert_allclose(line.get_ydata(orig=False), [0.65, 0.75])
    heights = [segment[:, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(heights, [[0.6, 0.7], [0.7, 0.8]])
    assert axes.get_xscale() == "log"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.1", "1"]
    reference = next(line for line in axes.lines if line.get_label() == "optimum")
    assert list(reference.get_ydata()) == [0.9, 0.9]


def test_each_kind_of_loss_has_a_panel_and_the_legend_names_everyone_once():
    display = ComparisonDisplay.from_results(results())
    assert display.plot() is display
    assert [axes.get_ylabel() for axes in display.axes_] == [
        "accuracy, test fold",
        "AUC, test fold",
        "logistic loss, training fold",
        "hinge loss, training fold",
    ]
    drawn = [{c.get_label() for c in axes.containers} for axes in display.axes_]
    assert drawn[2:] == [{"logistic"}, {"svm"}]
    (legend,) = display.figure_.legends
    assert [text.get_text() for text in legend.get_texts()] == ["logistic", "svm", "optimum"]
    assert display.figure_.get_suptitle().startswith("toy: 100 rows x 3 features")


def test_long_names_stay_inside_the_figure():
    names = [f"an estimator with a long name, number {i}" for i in range(9)]
    records = [record(name, 1.0, fold, 0.5, "hinge") for name in names for fold in range(2)]
    figure = ComparisonDisplay.from_results(ComparisonResults(records)).plot().figure_
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1


def test_a_reference_that_ranks_nothing_does_not_stretch_the_axis():
    axes = ComparisonDisplay.from_results(results()).plot().axes_[1]
    assert "optimum" not in [line.get_label() for line in axes.lines]


def test_it_draws_into_given_axes_and_writes_a_file(tmp_path):
    figure, axes = plt.subplots()
    display = ComparisonDisplay.from_results(results(), metrics=["test_loss"])
    with pytest.raises(ValueError, match="ax holds 1 axes; 2 are needed"):
        display.plot(axes)
    display = ComparisonDisplay.from_results(results(), metrics=["accuracy"]).plot(axes)
    assert display.figure_ is figure and display.axes_[0] is axes
    assert len(axes.get_legend().get_texts()) == 3
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_dataset_must_be_named_where_there_are_several():
    both = ComparisonResults([*results().records, *results("other").records])
    with pytest.raises(ValueError, match=r"dataset=None must be one of \['toy', 'other'\]"):
        ComparisonDisplay.from_results(both)
    assert ComparisonDisplay.from_results(both, dataset="other").title.startswith("other: ")


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "dpglm\[plot\]"'):
        ComparisonDisplay.from_results(results()).plot()


def test_the_course_of_an_adaptive_fit_is_drawn_from_its_trace():
    model = DPAGDClassifier(epsilon=2.0).fit(*make_census(300, random_state=0))
    display = FitTraceDisplay.from_estimator(model).plot()
    budget, steps = display.axes_
    drawn = np.concatenate([line.get_xydata() for line in budget.get_lines()])
    drawn = drawn[np.argsort(drawn[:, 0])]
    assert drawn[:, 1] == pytest.approx(model.trace_.remaining)
    assert len(steps.get_lines()[1].get_ydata()) == model.trace_.release.count("selection")
    plt.close(display.figure_)
    _, axes = plt.subplots(2)
    assert (FitTraceDisplay.from_estimator(model).plot(axes).axes_ == axes).all()
    plt.close("all")


def test_a_trace_that_is_not_adaptive_is_refused():
    with pytest.raises(ValueError, match="pass a fitted DPAGDClassifier"):
        FitTraceDisplay.from_estimator(DPAGDClassifier())
