"""Figures show what tables, traces and plans say."""

import math
import sys

import numpy as np
import pytest
from cells import cell_record

from dpglm import DPLogisticRegression
from dpglm.study import plot
from dpglm.study.comparison import ComparisonResults
from dpglm.study.plots import display_of
from dpglm.study.utility import UtilityCell, UtilityGraphResults
from dpglm.workflow import private_scores

plt = pytest.importorskip("matplotlib.pyplot")


def results(dataset="toy"):
    records = [
        cell_record(name, epsilon, fold, dataset, accuracy=first + rise * fold, loss=loss, auc=0.5)
        for name, epsilon, first, rise, loss in (
            ("logistic", 1.0, 0.7, 0.1, "logistic"),
            ("logistic", 0.1, 0.6, 0.1, "logistic"),
            ("logistic", math.inf, 0.8, 0.1, "logistic"),
            ("svm", 0.1, 0.65, 0.0, "hinge"),
            ("optimum", None, 0.9, 0.0, "logistic"),
        )
        for fold in range(2)
    ]
    return ComparisonResults(records)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def test_points_and_error_bars_are_means_and_standard_errors_at_finite_epsilons():
    display = plot(results())
    axes = display.axes_[0]
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
    # One that ranks nothing does not stretch the axis.
    assert "optimum" not in [line.get_label() for line in display.axes_[1].lines]
    svm = next(c for c in axes.containers if c.get_label() == "svm")[0]
    assert line.get_color() != svm.get_color() and line.get_marker() != svm.get_marker()


def test_each_kind_of_loss_has_a_panel_and_the_legend_names_everyone_once():
    display = plot(results())
    tested, trained = ["accuracy", "AUC"], ["logistic loss", "hinge loss"]
    titles = [f"{name}, test fold" for name in tested] + [f"{n}, training fold" for n in trained]
    assert [axes.get_ylabel() for axes in display.axes_] == titles
    drawn = [{c.get_label() for c in axes.containers} for axes in display.axes_]
    assert drawn[2:] == [{"logistic"}, {"svm"}]
    (legend,) = display.figure_.legends
    assert [text.get_text() for text in legend.get_texts()] == ["logistic", "svm", "optimum"]
    assert display.figure_.get_suptitle().startswith("toy: 1,234 rows x 3 features")


def test_it_draws_into_given_axes():
    figure, axes = plt.subplots()
    with pytest.raises(ValueError, match="ax holds 1 axes; 2 are needed, one per panel"):
        plot(results(), axes, metrics=["test_loss"])
    display = plot(results(), axes, metrics=["accuracy"])
    assert display.figure_ is figure and display.axes_[0] is axes
    assert len(axes.get_legend().get_texts()) == 3


def test_what_cannot_be_drawn_is_refused_in_words(monkeypatch):
    both = ComparisonResults([*results().records, *results("other").records])
    with pytest.raises(ValueError, match=r"dataset=None must be one of \['toy', 'other'\]"):
        plot(both)
    assert display_of(both, dataset="other").title.startswith("other: ")
    with pytest.raises(TypeError, match=r"found=3 has no figure; see dpglm.study.plot"):
        plot(3)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "dpglm\[plot\]"'):
        plot(results())


def utility():
    scores = {(10, 0.5): (0.81, 0.83), (10, 2.0): (0.71, 0.74), (40, 0.5): (0.61, 0.63)}
    scores[40, 2.0] = None
    cells = [
        UtilityCell(
            {"max_iter": max_iter, "step_schedule": step},
            {"accuracy": s, "auc": s, "loss": tuple(1 - x for x in s)} if s else {},
            None if s else "too long",
        )
        for (max_iter, step), s in scores.items()
    ]
    return UtilityGraphResults(DPLogisticRegression(epsilon=0.5), tuple(cells), n_samples=1000)


def lines_of(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def test_the_best_setting_of_each_value_has_its_error_and_the_recommended_one_a_star():
    display = plot(utility())
    assert [ax.get_xlabel() for ax in display.axes_] == ["max_iter", "step_schedule"]
    max_iter, step = display.axes_
    assert [t.get_text() for t in step.get_xticklabels()] == ["0.5", "2"]
    # Gaps to the recommended setting: .2 in both repeats, and .1 and .09.
    for axes, second, error in ((max_iter, 0.62, 0.0), (step, 0.725, 0.005)):
        ((line, _, (bars,)),) = axes.containers
        np.testing.assert_allclose(line.get_xydata(), [[0, 0.82], [1, second]])
        heights = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(heights, [[0.82, 0.82], [second - error, second + error]])
        (star,) = lines_of(axes, "recommended")
        np.testing.assert_allclose(star.get_xydata(), [[0, 0.82]])
        assert sum(len(dots.get_xdata()) for dots in lines_of(axes, "a setting")) == 3
    assert display.figure_.get_suptitle().startswith(utility().headline())
    (legend,) = display.figure_.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["a setting", "recommended", "the best"]


def test_a_parameter_can_have_a_line_for_each_value_instead_of_a_column():
    (axes,) = plot(utility(), by="step_schedule").axes_
    drawn = {c.get_label(): c[0].get_ydata(orig=False) for c in axes.containers}
    np.testing.assert_allclose(drawn["the best with step_schedule = 0.5"], [0.82, 0.62])
    np.testing.assert_allclose(drawn["the best with step_schedule = 2"], [0.725])
    low, high = axes.get_ylim()
    assert low < 0.72 and high > 0.83


def test_scores_are_drawn_with_their_intervals():
    X, y = np.random.default_rng(0).normal(size=(300, 3)), np.arange(300) % 2
    model = DPLogisticRegression(max_iter=3, classes=[0, 1]).fit(X, y)
    scores = private_scores(model, X, y, epsilon=2.0)
    roc, calibration, matrix = plot(scores).axes_
    rates = scores.roc_curve.true_positive_rate
    np.testing.assert_allclose(roc.lines[1].get_ydata()[1:-1], rates.value)
    (band,) = (patch for patch in roc.patches if patch.get_label() == "95 % intervals")
    assert set(rates.interval[0]) <= set(band.get_xy()[:, 1]) >= set(rates.interval[1])
    curve = calibration.containers[0][0]
    np.testing.assert_allclose(curve.get_ydata(), scores.calibration_curve.observed.value)
    drawn = [text.get_text().split("\n")[0] for text in matrix.texts]
    assert drawn == [f"{count:,.0f}" for count in scores.confusion_matrix.value.ravel()]
    few = private_scores(model, X, y, epsilon=2.0, scores=["accuracy", "confusion_matrix"])
    assert len(plot(few).axes_) == 1
    with pytest.raises(ValueError, match="scores has no curves and no matrix to draw"):
        plot(private_scores(model, X, y, epsilon=2.0, scores=["accuracy"]))
