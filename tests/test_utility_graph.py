"""A utility graph simulates the run to come, on public rows, and recommends what is good there."""

import math

import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse, stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.schedules import ExponentialDecay
from dpglm.study import plot
from dpglm.study.utility import (
    UtilityCell,
    UtilityGraph,
    UtilityGraphResults,
    expected_accuracy,
    resampled_split,
)

X, Y = make_census(400, random_state=0)
FITS = []


class Watched(DPLogisticRegression):
    """Keeps every fit, for a look at what it was given and what it drew."""

    def fit(self, X, y):
        FITS.append((X, self))
        return super().fit(X, y)


@pytest.fixture
def fits():
    FITS.clear()
    yield FITS
    FITS.clear()


def graph(estimator=None, grid=None, **options):
    estimator = estimator or DPLogisticRegression(max_iter=5)
    return UtilityGraph(
        estimator, grid or {"max_iter": [2, 5]}, **{"n_samples": 600, "n_repeats": 2, **options}
    )


def results(*cells):
    """Return results with these scores: (accuracies, AUCs, losses) of each setting."""
    named = [dict(zip(("accuracy", "auc", "loss"), map(tuple, c), strict=True)) for c in cells]
    settings = tuple(UtilityCell({"max_iter": i + 1}, scores) for i, scores in enumerate(named))
    return UtilityGraphResults(DPLogisticRegression(), settings, n_samples=1000)


def test_without_noise_a_cell_holds_the_scores_of_a_direct_fit():
    estimator = DPLogisticRegression(epsilon=math.inf, clip_schedule=0.7, step_schedule=1.0)
    found = graph(estimator, n_repeats=1, random_state=3).run(X, Y)
    train, test = resampled_split(Y, 600, np.random.RandomState(3))
    for cell in found.cells:
        model = DPLogisticRegression(**{**estimator.get_params(), **cell.params})
        model.fit(X[train], Y[train])
        probability = model.predict_proba(X[test])[:, 1]
        assert cell.scores["accuracy"] == (accuracy_score(Y[test], model.predict(X[test])),)
        assert cell.scores["auc"] == pytest.approx((roc_auc_score(Y[test], probability),))
        assert cell.scores["loss"] == pytest.approx((log_loss(Y[test], probability),))


@pytest.mark.parametrize("n_samples", [90, 700])
def test_each_fit_gets_n_rows_and_the_noise_of_the_plan_for_n_records(fits, n_samples):
    estimator = Watched(preconditioner=None, max_iter=3, clip_schedule=0.5, step_schedule=1.0)
    graph(estimator, {"step_schedule": [0.5, 1.0]}, n_samples=n_samples).run(X, Y)
    plan = estimator.plan(n_samples, X.shape[1])
    assert len(fits) == 4
    for rows, model in fits:
        assert len(rows) == n_samples
        assert model.trace_.noise_std == pytest.approx(plan.noise_multiplier * plan.sensitivity)
        # Of the 300 rows to fit on, none is used more often than another by more than one.
        counts = np.unique(rows, axis=0, return_counts=True)[1]
        assert len(counts) >= 0.95 * min(n_samples, 300)


def test_rows_are_repeated_alike_and_never_both_fitted_and_scored():
    rng = np.random.RandomState(0)
    for n_rows, n_samples in ((10, 3), (40, 100), (41, 31), (1000, 750)):
        train, test = resampled_split(np.arange(n_rows) % 2, n_samples, rng)
        pool = np.setdiff1d(np.arange(n_rows), test)
        counts = np.bincount(train, minlength=n_rows)[pool]
        assert len(train) == n_samples == counts.sum()
        assert counts.max() - counts.min() <= 1
        assert not np.isin(train, test).any()
        assert len(test) == math.ceil(0.25 * n_rows)


def test_the_recommended_estimator_is_unfitted_new_and_at_the_recommended_setting():
    estimator = DPLogisticRegression(epsilon=2.0, max_iter=4)
    grid = {"noise_schedule": [ExponentialDecay(1.0, 0.5)], "noise_schedule__ratio": [0.9, 1.0]}
    before = repr(estimator)
    found = graph(estimator, grid, random_state=1).run(X, Y)
    first, second = found.recommended_estimator(), found.recommended_estimator()
    assert not hasattr(first, "coef_") and not hasattr(estimator, "coef_")
    assert first.noise_schedule is not second.noise_schedule
    assert first.noise_schedule.ratio == found.recommended_params["noise_schedule__ratio"]
    assert (first.epsilon, first.max_iter) == (2.0, 4)
    assert repr(estimator) == before, "the prototype is left alone"
    first.noise_schedule.ratio = 0.1
    estimator.set_params(epsilon=99.0)
    third = found.recommended_estimator()
    assert third.noise_schedule.ratio != 0.1 and third.epsilon == 2.0


def test_a_setting_that_cannot_be_fitted_is_a_row_with_the_reason():
    grid = [
        {"clip_schedule": [-1.0, 0.5], "max_iter": [2]},
        {"preconditioner": ["no such"]},
        {"step_schedule": [1e200], "alpha": [1.0], "preconditioner": [None]},
    ]
    found = graph(grid=grid).run(X, Y)
    negative, none, unknown, diverged = (row["error"] for row in found.rows())
    assert none is None and "every value is positive" in negative
    assert "preconditioner='no such' is not a preconditioner" in unknown
    assert "The coefficients diverged: lower step_schedule." in diverged
    assert found.recommended_params == {"clip_schedule": 0.5, "max_iter": 2}
    assert found.rows()[0]["accuracy"] is found.rows()[0]["rank"] is None
    assert str(found).count("1 setting cannot be fitted: ") == 3
    with pytest.raises(ValueError, match=r"no setting of param_grid can be fitted: .*positive"):
        graph(grid={"clip_schedule": [-1.0]}).run(X, Y)


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_with_a_seed_neither_the_order_of_the_fits_nor_workers_change_anything(
    monkeypatch, backend
):
    def backwards(**_):
        return lambda tasks: (task(*args) for task, args, _ in reversed(list(tasks)))

    forwards = graph(random_state=7).run(X, Y)
    with parallel_config(backend):
        assert graph(random_state=7, n_jobs=2).run(X, Y).cells == forwards.cells
    assert graph(random_state=8).run(X, Y).cells != forwards.cells
    monkeypatch.setattr("joblib.Parallel", backwards)
    assert graph(random_state=7).run(X, Y).cells == forwards.cells


def test_settings_share_their_rows_and_not_their_noise():
    same = {"alpha": [0.0, 1e-300]}
    exact = DPLogisticRegression(epsilon=math.inf, max_iter=3)
    first, second = graph(exact, same, n_repeats=3).run(X, Y).cells
    assert first.scores == second.scores
    assert len(set(first.scores["loss"])) == 3
    first, second = graph(DPLogisticRegression(max_iter=3), same, random_state=0).run(X, Y).cells
    assert not set(first.scores["loss"]) & set(second.scores["loss"])


def test_what_is_good_in_all_respects_is_recommended():
    found = results(
        # The most accurate but with a bad loss, good in every respect, the lowest loss alone.
        ([0.84, 0.85], [0.80, 0.81], [0.90, 0.91]),
        ([0.83, 0.84], [0.88, 0.89], [0.41, 0.42]),
        ([0.79, 0.80], [0.87, 0.88], [0.40, 0.41]),
    )
    assert found.recommended_params == {"max_iter": 2}
    assert [row["rank"] for row in found.rows()] == pytest.approx([7 / 3, 5 / 3, 2])
    assert [row["recommended"] for row in found.rows()] == [False, True, False]


def test_standard_errors_are_those_of_a_mean_and_ranks_know_no_easy_repeats():
    accuracy = [0.7, 0.74, 0.81]
    found = results((accuracy, accuracy, accuracy), ([0.5] * 3, [0.5] * 3, [0.9] * 3)).rows()
    assert found[0]["accuracy"] == pytest.approx(0.75)
    assert found[0]["accuracy_se"] == pytest.approx(stats.sem(accuracy))
    assert found[1]["accuracy_se"] == 0.0
    assert found[1]["accuracy_gap_se"] == pytest.approx(stats.sem(accuracy))
    together = results((accuracy,) * 3, (np.subtract(accuracy, 0.1),) * 3).rows()
    assert together[1]["accuracy_gap_se"] == pytest.approx(0.0, abs=1e-12)
    assert results(([0.7], [0.7], [0.7])).rows()[0]["accuracy_se"] is None
    rng = np.random.RandomState(0)
    cells, luck = rng.uniform(0.6, 0.7, (5, 3, 4)), rng.uniform(0.0, 0.3, (1, 3, 4))
    for plain, shifted in zip(results(*cells).rows(), results(*cells + luck).rows(), strict=True):
        assert plain["rank"] == shifted["rank"]
        assert plain["rank_gap_se"] == shifted["rank_gap_se"]


def test_the_table_and_the_frame_hold_every_setting_the_best_first():
    good = [0.5 + 0.01 * i for i in range(12)]
    found = results(*(([x] * 2, [x] * 2, [1.4 - x] * 2) for x in good))
    lines = str(found).splitlines()
    assert lines[0] == "epsilon 1, delta 1e-06, 1,000 records: 12 settings x 2 fits"
    assert lines[1].split() == ["rank", "accuracy", "AUC", "loss", "max_iter"]
    best = "1.0 0.6100 ±0.0000 0.6100 ±0.0000 0.7900 ±0.0000 12"
    assert " ".join(lines[2].split()) == best
    assert lines[-1] == "  and 2 more" and len(lines) == 13
    frame = pytest.importorskip("pandas").DataFrame(found.rows())
    assert found.to_frame().equals(frame)
    assert list(frame["param_max_iter"]) == list(range(1, 13))


def test_batches_classes_sparse_rows_pipelines_and_models_without_privacy_can_be_simulated():
    pytest.importorskip("dp_accounting")
    rows, labels = sparse.csr_array(X), np.where(X[:, 0] > 0.4, 2, Y)
    pipeline = make_pipeline(FunctionTransformer(accept_sparse=True), DPLinearSVM(max_iter=3))
    batches = {"sampling_rate": [0.5], "preconditioner": [None], "max_iter": [3]}
    for estimator, grid, target in (
        (DPLogisticRegression(), batches, Y),
        (DPLogisticRegression(), {"max_iter": [3]}, labels),
        (pipeline, {"dplinearsvm__max_iter": [2, 3]}, labels),
    ):
        found = graph(estimator, grid).run(rows, target)
        assert found.headline().startswith("epsilon 1, delta 1e-06, 600 records: ")
        assert not any(row["error"] for row in found.rows())
        assert 0 <= found.rows()[0]["accuracy"] <= 1
    beside = graph(LogisticRegression(max_iter=300), {"C": [0.01, 1.0]}).run(X, Y)
    assert beside.headline() == "600 records: 2 settings x 2 fits"


def test_every_setting_is_tried_at_every_budget(fits):
    pytest.importorskip("dp_accounting")
    estimator = Watched(delta=1e-5, max_iter=2, preconditioner=None)
    found = graph(estimator, {"sampling_rate": [0.5, 1.0], "epsilon": [2.0, 0.5]}).run(X, Y)
    spent = {(m.epsilon, m.sampling_rate): m.privacy_.epsilon(1e-5) for _, m in fits}
    assert spent.keys() == {(e, rate) for e in (2.0, 0.5) for rate in (0.5, 1.0)}
    assert all(cost == pytest.approx(epsilon, rel=1e-3) for (epsilon, _), cost in spent.items())
    assert found.epsilons == [0.5, 2.0] and found.varied() == ["epsilon", "sampling_rate"]
    assert found.headline().startswith("epsilon 0.5 to 2, delta 1e-05, 600 records: 4 settings")
    assert [row["passes"] for row in found.rows()] == [1.0, 2.0, 1.0, 2.0]
    one = found.at(0.5)
    assert one.epsilons == [0.5] and [c.params["sampling_rate"] for c in one.cells] == [0.5, 1.0]
    assert one.recommended_estimator().epsilon == 0.5
    pytest.importorskip("matplotlib")
    (axes,) = plot(found, by="sampling_rate").axes_
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "0.5"]
    with pytest.raises(ValueError, match=r"epsilon=1 must be one of \[0.5, 2.0\]"):
        found.at(1)


def priced(*cells):
    found = [
        UtilityCell({"epsilon": e, "max_iter": i}, dict.fromkeys(("accuracy", "auc", "loss"), (a,)),
                    None, p)
        for i, (e, a, p) in enumerate(cells)
    ]  # fmt: skip
    return UtilityGraphResults(DPLogisticRegression(), tuple(found), n_samples=1000)


def test_the_frontier_and_the_least_epsilon_are_those_of_a_search_by_hand():
    found = priced(
        (1, 0.8, 20), (1, 0.8, 10), (1, 0.7, 10), (0.5, 0.75, 30), (2, 0.9, 40), (2, 0.7, 5)
    )
    on_it = [row["param_max_iter"] for row in found.frontier()]
    assert on_it == [1, 3, 4, 5]
    assert found.least_epsilon(accuracy=0.75) == {"epsilon": 0.5, "max_iter": 3}
    assert found.least_epsilon(accuracy=0.85)["max_iter"] == 4
    with pytest.raises(ValueError, match=r"no setting has accuracy=0.95; the best has 0\.9000"):
        found.least_epsilon(accuracy=0.95)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"max_itr": [1]}}, "Invalid parameter 'max_itr'"),
        ({"grid": {"noise_schedule__ratio": [1.0]}}, "no parameters such as noise_sch"),
        ({"n_samples": 1}, "no setting of param_grid can be fitted: .*class"),
    ],
)
def test_a_bad_parameter_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        graph(**options).run(X, Y)


def test_a_simulated_accuracy_is_below_the_guess_by_the_noise_and_by_the_sample():
    public = make_census(1500, random_state=1)
    settings = {"n_samples": 3000, "accuracy": 0.85, "n_repeats": 2, "random_state": 0}
    found = expected_accuracy(DPLogisticRegression(epsilon=0.3), *public, **settings)
    assert found == expected_accuracy(DPLogisticRegression(epsilon=0.3), *public, **settings)
    assert 0.70 < found.private < found.not_private - 0.01 and 0.82 < found.not_private < 0.85
    assert 0 < found.standard_error < 0.03
    exact = expected_accuracy(DPLogisticRegression(epsilon=math.inf), *public, **settings)
    assert abs(exact.private - exact.not_private) < 0.012


def test_a_simulation_of_many_records_has_the_signal_of_all_of_them(fits):
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    y[:10] = 1
    settings = {"n_samples": 80_000, "accuracy": 0.8, "n_repeats": 1}
    related = {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 100_000}
    for given, n in (({}, 80_000), (related, 100_000)):
        expected_accuracy(Watched(epsilon=0.2, max_iter=2, **given), X, y, **settings)
        rows, model = fits[-1]
        assert len(rows) == 20_000 and model.n_samples_estimate == (20_000 if given else None)
        whole = DPLogisticRegression(epsilon=0.2, **given).plan(n, 2)
        assert model.plan(20_000, 2).n_mu == pytest.approx(whole.n_mu, rel=1e-6)


def test_labels_of_several_classes_are_simulated_and_an_accuracy_out_of_reach_is_refused():
    y = np.array(list("abc"))[np.minimum(2, Y + (X[:, 0] > 0.35))]
    settings = {"n_samples": 400, "n_repeats": 1}
    found = expected_accuracy(DPLinearSVM(max_iter=3), X, y, accuracy=0.8, **settings)
    assert 0.2 < found.private <= 0.8 and math.isnan(found.standard_error)
    share = max(np.mean(y == label) for label in "abc")
    with pytest.raises(ValueError, match=f"must be above {share:.4g}, the share of the most freq"):
        expected_accuracy(DPLogisticRegression(), X, y, accuracy=share - 0.01, **settings)
