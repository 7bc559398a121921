"""Estimators with a preconditioner: what they reach, and that they stay good citizens."""

import math
import pickle
import re
import tracemalloc
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV

from dpglm import (
    DecayingClip,
    DiagonalPreconditioner,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    seeded_noise,
)
from dpglm.datasets import make_census
from dpglm.estimators.whitening import centring, column_scales, row_scale
from dpglm.exceptions import UtilityWarning
from dpglm.privacy.vault import MAGNITUDES

BOTH = [DiagonalPreconditioner(), FullPreconditioner()]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_without_noise_it_reaches_the_optimum_of_the_original_problem(
    preconditioner, n_classes, fit_intercept
):
    """Features on scales from 1 to 1000, where plain descent gets nowhere."""
    rng = np.random.default_rng(0)
    n, alpha = 1500, 1e-3
    X = rng.normal(size=(n, 4)) * [1.0, 10.0, 100.0, 0.1]
    scores = np.column_stack([X / [1.0, 10.0, 100.0, 0.1] @ rng.normal(size=(4, n_classes))])
    y = (scores + rng.gumbel(size=scores.shape) + np.eye(n_classes)[0]).argmax(axis=1)
    exact = LogisticRegression(C=1 / (n * alpha), fit_intercept=fit_intercept, tol=1e-10)
    exact.set_params(solver="newton-cg", max_iter=1000).fit(X, y)
    model = DPLogisticRegression(
        epsilon=math.inf, preconditioner=clone(preconditioner).set_params(row_bound=1e4),
        alpha=alpha, fit_intercept=fit_intercept, clip_schedule=math.inf, step_schedule=2.0,
        momentum=0.6, averaging=None, max_iter=300,
    ).fit(X, y)  # fmt: skip
    assert_allclose(model.decision_function(X), exact.decision_function(X), atol=2e-3)
    relative = model.set_params(preconditioner=None).fit(X / 100, y).decision_function(X / 100)
    assert np.abs(relative - exact.decision_function(X)).max() > 0.1


@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
def test_a_strong_penalty_does_not_make_the_steps_unstable(Estimator, preconditioner):
    X, y = make_census(2000, random_state=0)
    model = Estimator(
        epsilon=math.inf, preconditioner=preconditioner, alpha=0.3, clip_schedule=math.inf,
        step_schedule=0.5, momentum=None, averaging=None, max_iter=300,
    )  # fmt: skip
    coef = model.fit(X, y).coef_
    assert np.abs(coef).max() < 1.0
    longer = model.set_params(max_iter=600).fit(X, y).coef_
    assert_allclose(longer, coef, atol=1e-3)


def test_it_beats_plain_descent_on_ill_conditioned_features():
    X, y = make_census(20_000, random_state=0)
    losses = {}
    for preconditioner in (None, "diagonal", "full"):
        model = DPLogisticRegression(
            epsilon=1.0, delta=1e-8, clip_schedule=2.0 if preconditioner is None else 0.5,
            momentum=None, preconditioner=preconditioner,
        )  # fmt: skip
        probability = model.fit(X, y).predict_proba(X)[np.arange(len(y)), y]
        losses[preconditioner] = -np.log(probability).mean()
    assert max(losses["diagonal"], losses["full"]) < losses[None] - 0.02


def test_a_wide_sparse_fit_takes_memory_in_proportion_to_the_columns():
    n, d = 2000, 5000
    rng = np.random.default_rng(0)
    X = sparse.random_array((n, d), density=0.002, format="csr", random_state=rng)
    y = rng.integers(0, 2, n)
    model = DPLogisticRegression(classes=[0, 1])
    assert isinstance(model.plan(n, d).second_moment.preconditioner, DiagonalPreconditioner)
    model.fit(X, y)
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # a dense block of 200 rows would take 8 MB, the matrix of the moment 200 MB
    assert peak < 6e6
    assert model.trace_.whitening.basis.shape == (d + 1,)


@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
@pytest.mark.parametrize("irrelevant", [0, 200])
@pytest.mark.parametrize("n_draws", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_with_more_columns_than_budget_the_defaults_do_no_harm(Estimator, irrelevant, n_draws):
    """500 records, 99 or 299 columns: within 2 points of the larger class, on average.

    The mean of 5 draws is more than 8 of its standard deviations above that.
    """
    gaps = []
    for seed in range(n_draws):
        X, y = make_census(2500, random_state=seed)
        X = np.hstack([X, np.random.default_rng(seed).random((2500, irrelevant))])
        model = Estimator(classes=[0, 1]).fit(X[:500], y[:500])
        majority = max(y[500:].mean(), 1 - y[500:].mean())
        gaps.append(model.score(X[500:], y[500:]) - majority)
    assert np.mean(gaps) > -0.02


def test_people_in_rare_categories_do_not_pay_for_the_noise():
    """Log loss of those in a category of fewer than 15 of 8,000 records: 1.11 times that without
    privacy, on average of many fits, and 1.50 times without the prior on coefficients.
    """
    X, y = make_census(28_000, random_state=0)
    X, new, y, labels = X[:8000], X[8000:], y[:8000], y[8000:]
    few = np.isin(X, [0.0, 1.0]).all(axis=0) & (X.sum(axis=0) < 15)
    rare = new[:, few].any(axis=1)

    def loss(model):
        return log_loss(labels[rare], model.predict_proba(new[rare])[:, 1])

    exact = loss(LogisticRegression(max_iter=1000).fit(X, y))
    model = DPLogisticRegression(epsilon=4.0, delta=1e-6, classes=[0, 1])
    assert rare.sum() > 200
    assert np.mean([loss(model.fit(X, y)) for _ in range(8)]) < 1.25 * exact


def test_a_category_that_never_occurs_is_within_its_standard_error_of_zero():
    """In 20 fits. That error is 4.0 without the prior on coefficients, and 1.1 with it."""
    X, y = make_census(8000, random_state=0)
    X = np.column_stack([X, np.zeros(8000)])
    model, noise = DPLogisticRegression(epsilon=4.0, delta=1e-6), np.random.RandomState(0)
    with seeded_noise(noise):
        found = [model.fit(X, y).coef_[0, -1] for _ in range(20)]
    assert np.abs(found).max() < 4.0


def test_the_trace_separates_the_moment_from_the_iterations():
    X, y = make_census(300, random_state=0)
    model = DPLogisticRegression(
        max_iter=4, preconditioner="full", clip_schedule=2.0
    ).fit(X, y)  # fmt: skip
    trace = model.trace_
    assert len(trace.events) == len(trace.to_frame()) == model.n_iter_ == 4
    first = model.plan(*X.shape).second_moment
    assert [event for *_, event in first.parts] == trace.whitening.events
    dimension = trace.whitening.effective_dimension
    assert trace.clip == pytest.approx([2.0 * math.sqrt(dimension)] * 4)
    plain = DPLogisticRegression(max_iter=2, preconditioner=None).fit(X, y)
    assert plain.trace_.whitening is None


def test_a_bad_parameter_is_refused_before_any_release():
    X, y = make_census(300, random_state=0)
    for bad, message in [
        ({"share": 0.0}, r"share=0\.0 must be a number above 0 and below 1"),
        ({"damping": -1.0}, r"damping=-1\.0 must be a number above 0"),
        ({"row_bound": 0.0}, r"row_bound=0\.0 must"),
        ({"share": 1e-30}, "share=1e-30.* would be all noise. Raise share or epsilon"),
    ]:
        for kind in (DiagonalPreconditioner, FullPreconditioner):
            model = DPLogisticRegression(preconditioner=kind(**bad))
            with pytest.raises(ValueError, match=message) as info:
                model.fit(X, y)
            assert not hasattr(info.value, "privacy_ledger")


@pytest.mark.parametrize(
    ("bad", "error"), [("whiten", ValueError), (0.5, TypeError), (DecayingClip(), TypeError)]
)
def test_an_unknown_preconditioner_is_refused_with_the_choices(bad, error):
    for Estimator in (DPLogisticRegression, DPAGDClassifier):
        with pytest.raises(error, match=r"preconditioner=.*Give None, 'auto', 'diagonal', 'full'"):
            Estimator(preconditioner=bad).plan(100, 5)


@pytest.mark.parametrize(
    "model", [DPLogisticRegression(max_iter=5), DPAGDClassifier()], ids=lambda m: type(m).__name__
)
def test_preconditioners_are_searched_pickled_and_shown(model):
    X, y = make_census(600, random_state=0)
    model = clone(model).set_params(preconditioner=FullPreconditioner(share=0.123)).fit(X, y)
    assert "0.123" in model._repr_html_()
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.trace_.whitening.basis, model.trace_.whitening.basis)
    grid = [
        {"preconditioner__share": [0.1, 0.3], "preconditioner__damping": [0.5]},
        {"preconditioner": [None, "diagonal", DiagonalPreconditioner(row_bound=2.0)]},
    ]
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 5 and model.preconditioner.share == 0.123


def people(n):
    """Age, income in dollars and calls; the label depends on all three."""
    rng = np.random.default_rng(0)
    columns = rng.uniform(18, 80, n), np.exp(rng.normal(10.5, 0.7, n)), rng.poisson(5, n)
    X = np.column_stack(columns)
    score = 0.04 * (X[:, 0] - 45) + 0.5 * (np.log(X[:, 1]) - 10.5) - 0.15 * (X[:, 2] - 5)
    return X, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)


DOLLARS, PAID = people(8000)
UNITS = np.array([100.0, 300_000.0, 20.0])
AS_THEY_ARE = DiagonalPreconditioner(row_bound=3.0)
OWN_INTERCEPT, ROWS_OF_ONE = np.eye(3)[:1].repeat(8000, axis=0), FullPreconditioner(row_bound=1.0)
HIDDEN, TOO_MANY = (
    "only column 1 can be seen: .* row_bound=3,",
    "The budget cannot carry the columns",
)


@pytest.mark.parametrize(
    ("X", "y", "changes", "says"),
    [
        (DOLLARS, PAID, {"preconditioner": FullPreconditioner(row_bound=3.0)}, HIDDEN),
        (DOLLARS, PAID, {"preconditioner": AS_THEY_ARE, "epsilon": 100.0}, HIDDEN),
        (DOLLARS, PAID, {"preconditioner": AS_THEY_ARE}, HIDDEN),
        (DOLLARS[:200], PAID[:200], {}, HIDDEN),
        (DOLLARS, PAID, {}, None),
        (DOLLARS, PAID, {"preconditioner": "diagonal"}, None),
        (make_census(500, random_state=0)[0], np.arange(500) % 2, {"epsilon": 0.1}, TOO_MANY),
        (np.eye(200, 2000), np.arange(200) % 2, {}, TOO_MANY),
        (np.eye(200, 2000), np.arange(200) % 2, {"fit_intercept": False}, TOO_MANY),
        (DOLLARS / UNITS, PAID, {"fit_intercept": False}, None),
        (OWN_INTERCEPT, PAID, {"fit_intercept": False, "preconditioner": ROWS_OF_ONE}, None),
        (DOLLARS / UNITS, PAID, {}, None),
        (DOLLARS / [1, 1000, 1], PAID, {}, None),
        (DOLLARS, PAID, {"epsilon": np.inf}, None),
        (*make_census(5000, random_state=0), {"epsilon": 0.3}, None),
    ],
)
def test_a_fit_that_can_hardly_learn_says_so_and_others_do_not(X, y, changes, says):
    for Estimator in (DPLogisticRegression, DPLinearSVM):
        model = Estimator(classes=[0, 1], max_iter=3, **changes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, y)
        found = [warning for warning in caught if warning.category is UtilityWarning]
        assert len(found) == (says is not None)
        assert ("cannot carry" in str(model.plan(*X.shape))) == (says is TOO_MANY)
        for warning in found:
            assert re.search(says, str(warning.message)) and warning.filename == __file__


def test_the_budget_carries_columns_from_four_times_their_root_on():
    model = DPLogisticRegression(epsilon=0.5)
    signal = model.plan(1000, 99).signal
    most = math.floor((signal / 4) ** 2)
    for n_columns, carried in ((most, True), (most + 1, False)):
        plan = model.plan(1000, n_columns - 1)
        assert plan.facts.n_features == n_columns
        assert (plan.words_of_warning == "") == carried
    per_record = model.plan(1000, 1).signal / 1000
    few, enough = math.floor(20 / per_record), math.ceil(20 / per_record)
    assert model.plan(few, 1).words_of_warning and not model.plan(enough, 1).words_of_warning


@pytest.mark.parametrize(
    "X",
    [
        DOLLARS,
        (DOLLARS - DOLLARS.mean(axis=0)) / DOLLARS.std(axis=0),
        DOLLARS / UNITS * [1e-2, 1.0, 1e-8],
    ],
)
@pytest.mark.parametrize("Estimator", [DPLogisticRegression, DPLinearSVM])
def test_any_units_train_as_well_as_public_ones(Estimator, X):
    """Ten of ten fits of each rank at .698 or more; in dollars as they are, at .35 to .65."""
    model = Estimator(classes=[0, 1])
    public, other = (
        roc_auc_score(PAID, clone(model).fit(rows, PAID).decision_function(rows))
        for rows in (DOLLARS / UNITS, X)
    )
    assert min(public, other) > 0.69 and abs(public - other) < 0.01


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("huge", [1e150, -1e308])
def test_small_columns_are_enlarged_whatever_one_record_holds(store, huge):
    small = np.random.default_rng(0).random((8000, 3)) * 1e-9
    y = (small[:, 0] > 5e-10).astype(int)
    coefs = []
    for value in (0.0, huge):
        small[5, 1] = small[7] = value
        with seeded_noise(1), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            model = DPLogisticRegression(classes=[0, 1]).fit(store(small), y)
        assert (model.trace_.whitening.scales[:3] == 2.0**26).all()
        coefs.append(model.coef_)
    assert_allclose(*coefs, atol=1e-3 * np.abs(coefs[0]).max())


def test_a_column_that_is_small_for_most_and_one_for_others_is_not_enlarged():
    """Its coefficient would be thousands, and the odds of those others far from the truth."""
    rng = np.random.default_rng(0)
    is_one = rng.random(2000) < 0.15
    column = np.where(is_one, 1.0, 1e-4 * rng.uniform(0.6, 1, 2000))
    X = np.column_stack([column, rng.random((2000, 3))])
    for seed in range(5):
        with seeded_noise(seed):
            model = DPLogisticRegression(epsilon=0.5, classes=[0, 1]).fit(X, is_one)
        assert (model.trace_.whitening.scales == 1).all()
        assert 1 < model.coef_[0, 0] < 100


def test_scales_follow_from_the_highest_magnitude_that_enough_records_have():
    counts, ones = np.zeros((9, MAGNITUDES.size)), 28  # those that are above 1 and at most 2
    counts[1, [ones + 2, ones + 5]], counts[2, ones + 7], counts[3, ones] = 300.0, 19.0, 21.0
    counts[4, ones + 3], counts[5, [0, 19]], counts[6, [19, 27]] = -500.0, 300.0, 21.0
    counts[7:, 19], counts[7, 27], counts[8, 27] = 500.0, 14.0, 15.0
    scales = [1.0, 2.0**-6, 1.0, 0.5, 1.0, 2.0**9, 1.0, 2.0**9, 2.0**9]
    assert column_scales(counts, 0.0, 1000).tolist() == scales
    # A twentieth of the records may be of usual size, which the noise hides.
    scales[3] = scales[8] = 1.0
    assert column_scales(counts, 35.5, 1000).tolist() == scales
    # Of 828 numbers of noise the largest is above 4.715 standard deviations in a case of 1000.
    for noise, scale in ((300 / 4.72, 2.0**-6), (300 / 4.71, 1.0)):
        assert column_scales(counts, noise, 1000)[1] == scale


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_magnitudes_cost_what_they_need_and_nothing_where_they_would_show_nothing(relation):
    def share(n_samples, preconditioner="auto", **changes):
        model = DPLogisticRegression(
            neighboring_relation=relation, preconditioner=preconditioner, **changes
        )
        plan = model.plan(n_samples, 10)
        assert plan.ledger.mu() == pytest.approx(plan.budget.mu, rel=1e-9)
        return plan.second_moment.shares.get("magnitudes", 0.0)

    # Half of the records under zero-out have the signal of all under replace-one.
    shares = [share(n // (1 + (relation == "zero_out"))) for n in (1000, 5000, 20_000, 10**6)]
    assert shares[:2] == [0.0, 0.03] and 0.03 > shares[2] > shares[3] == 0.003
    assert share(10**6, FullPreconditioner(row_bound=3.0)) == 0.0
    assert share(10**6, FullPreconditioner(share=0.99)) == pytest.approx(0.003)
    few = 6000 if relation == "replace_one" else 3000
    assert share(few, FullPreconditioner(share=0.99)) == 0.0 < share(few)
    assert share(10**6, FullPreconditioner(share=0.996)) == 0.0
    assert share(300, epsilon=math.inf) == 0.003


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_lengths_cost_what_they_need_where_magnitudes_would_show_nothing(relation):
    def shares(n_samples, preconditioner="auto", **changes):
        model = DPLogisticRegression(
            neighboring_relation=relation, preconditioner=preconditioner, **changes
        )
        plan = model.plan(n_samples, 500)
        assert plan.ledger.mu() == pytest.approx(plan.budget.mu, rel=1e-9)
        scales = "lengths", "magnitudes"
        return [item for item in plan.second_moment.shares.items() if item[0] in scales]

    few = (1 + (relation == "replace_one")) * np.array([26, 60, 500, 100_000])
    found = [shares(n) for n in few.tolist()]
    assert found[0] == [] and found[1] == [("lengths", 0.15)]
    assert found[2] == [("lengths", pytest.approx(0.00714, abs=1e-5))]
    assert found[3][0][0] == "magnitudes"
    assert shares(500, FullPreconditioner(row_bound=3.0)) == []
    assert shares(1000, FullPreconditioner(share=0.999)) == [("lengths", pytest.approx(0.0005))]
    assert shares(20, FullPreconditioner(share=0.999)) == []
    wide = DPLogisticRegression(epsilon=math.inf).plan(300, 2**16).second_moment
    assert wide.shares == {"lengths": 0.001, "second moment": 0.15}


def test_rows_are_centred_where_a_mean_can_be_seen():
    def shares(n_samples, Model=DPLogisticRegression, n_columns=100, **changes):
        plan = Model(**changes).plan(n_samples, n_columns)
        assert plan.ledger.mu() == pytest.approx(plan.budget.mu, rel=1e-9)
        assert sum(plan.second_moment.shares.values()) == pytest.approx(
            plan.second_moment.share + plan.second_moment.scale_share
        )
        return plan.second_moment.shares.get("row sum", 0.0)

    mu = DPLogisticRegression().plan(1000, 100).signal / 1000
    # From sqrt(d) = share^(1/2) n mu / 4 on.
    least = round(4 * math.sqrt(101 / 0.015) / mu)
    for Model in (DPLogisticRegression, DPLinearSVM):
        assert [shares(n, Model) for n in (least - 9, least + 9, 10**9)] == [0.0, 0.015, 0.015]
    others = {"inference_share": 0.5}, {"fit_intercept": False}, {"preconditioner": "diagonal"}
    assert [shares(5000, **change) for change in others] == [0.0] * 3
    # The noise of the intercept's sum, in parts of the records.
    bounds = (FullPreconditioner(row_bound=0.1225 * mu * 8000 / 4 + more) for more in (-2.0, 2.0))
    assert [shares(8000, preconditioner=bound) for bound in bounds] == [0.015, 0.0]


class SumOfRows:
    """A vault that answers with one sum."""

    def __init__(self, total, noise_std):
        self.total, self.log = np.array(total), [SimpleNamespace(noise_scale=noise_std)]

    def row_sum(self, row_bound, noise_multiplier):
        return self.total

    def change_basis(self, basis):
        self.basis = basis


@pytest.mark.parametrize(
    ("count", "noise", "divisor"),
    [
        (990, 10, 1000),
        (500, 10, 520),
        (500, 300, 1000),
        (-100, 10, 100),
        (50, 10, 100),
        (2000, 10, 1980),
    ],
)
def test_a_mean_is_over_all_records_where_noise_allows_it_and_never_over_few(count, noise, divisor):
    vault = SumOfRows([600.0, -30.0, count], noise)
    found = centring(vault, 1000, 3.0, 9.0)
    assert_allclose(found, [[1, 0, 0], [0, 1, 0], [-600 / divisor, 30 / divisor, 1]])
    assert found is vault.basis


def test_a_moment_around_a_mean_is_given_back_for_the_columns_as_they_are():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1.5, size=100) + 0.3 * rng.normal(size=(10_000, 100))
    y = (X[:, 0] > X[:, 0].mean()).astype(int)
    model = DPLogisticRegression(preconditioner=FullPreconditioner(row_bound=11.0))
    white = model.fit(X, y).trace_.whitening
    rows = np.column_stack([X, np.ones(len(X))])
    noise = white.noise_std / len(X)
    # Each is a sum of four numbers with that noise, or less, times means of up to 1.5.
    assert_allclose(white.moment, rows.T @ rows / len(X), atol=12 * noise)
    assert 12 * noise < 1.0, "less than by what a mean of the wrong sign moves it"
    released = [event.noise_multiplier for event in white.events]
    assert released == model.plan(10_000, 100).second_moment.noise_multipliers
    # Rows were clipped to two thirds of the bound that was given, whatever their units.
    assert noise * len(X) == pytest.approx((22 / 3) ** 2 * released[-1], rel=1e-3)


def test_rows_are_scaled_by_the_longest_length_that_many_have_and_by_what_n_mu_carries():
    def scaled(parts, noise, signal):
        counts = np.zeros(19)
        for upper, part in parts.items():
            counts[9 + round(math.log2(upper / 3.5))] = part
        return row_scale(counts, noise, signal)

    # Rows of 1 to three times that suit the bound of 3 as they are; shorter ones become as long.
    assert scaled({3.5: 1.0}, 0.0, 1e4) == (1.0, 3.0)
    assert scaled({1.75: 1.0}, 0.0, 1e4) == (2.0, 3.0)
    # Longer ones stay if n mu is seven times their square.
    assert scaled({14.0: 1.0}, 0.0, 7 * 14**2 + 1) == (1.0, math.sqrt(1 + 8 * 16))
    assert scaled({14.0: 1.0}, 0.0, 7 * 14**2 - 1) == (0.5, math.sqrt(1 + 8 * 4))
    assert scaled({14.0: 1.0}, 0.0, 80.0) == (0.125, math.sqrt(1 + 8 / 4))
    assert scaled({14.0: 1.0}, 0.0, math.inf) == (1.0, math.sqrt(1 + 8 * 16))
    # A tenth of the records is many, and sqrt(3.9^2 + 1) standard deviations of the noise are.
    assert scaled({3.5: 0.89, 14.0: 0.11}, 0.0, 100.0)[0] == 0.25
    assert scaled({3.5: 0.91, 14.0: 0.09}, 0.0, 100.0)[0] == 1.0
    assert scaled({3.5: 0.7, 14.0: 0.36}, 0.09, 100.0)[0] == 0.25
    assert scaled({3.5: 0.7, 14.0: 0.355}, 0.09, 100.0)[0] == 1.0
    # So far away, five powers of two, it takes 4.6 of them.
    assert scaled({3.5: 0.7, 112.0: 0.42}, 0.09, 100.0)[0] < 0.1
    assert scaled({3.5: 0.7, 112.0: 0.41}, 0.09, 100.0)[0] == 1.0
    # Where nothing stands out, what is far from usual is chance.
    assert scaled({3.5: 0.4, 224.0: 0.35}, 0.2, 100.0)[0] == 1.0
    assert scaled({0.4375: 0.45, 14.0: 0.303}, 0.17, 100.0)[0] == 0.25
    assert scaled({3.5: 0.2, 7.0: 0.4}, 0.2, 100.0)[0] == 0.5
    # Of two that may both be, the longer one: 13.2 - .5 is within 3 of 15.6, and 13.0 - .5 is not.
    assert scaled({3.5: 0.45, 14.0: 0.382}, 0.17, 100.0)[0] == 0.25
    assert scaled({3.5: 0.45, 14.0: 0.376}, 0.17, 100.0)[0] == 1.0
    # And rows are made longer only by what does.
    assert scaled({1.75: 0.6}, 0.2, 100.0)[0] == 1.0
    assert scaled({1.75: 0.8}, 0.2, 100.0)[0] == 2.0
    # Rows without a length tell nothing, whatever their number.
    assert row_scale(np.eye(19)[0] + 0.2 * np.eye(19)[9], 0.0, 1e4) == (1.0, 3.0)


def test_coefficients_that_are_no_numbers_for_odds_move_no_intercept():
    X, y = 10 * np.random.default_rng(0).normal(size=(300, 5)), np.arange(300) % 3 == 0
    model = DPLogisticRegression(epsilon=0.3, step_schedule=1e155, max_iter=2, classes=[0, 1])
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y.astype(int))
    assert model.trace_.whitening.scales[0] < 1 and np.isfinite(model.intercept_).all()


def test_rows_of_any_length_train_as_well_as_those_of_three():
    X, y = make_classification(4000, 300, n_informative=20, class_sep=2.0, random_state=0)
    X = 2.8 * X / np.linalg.norm(X, axis=1, keepdims=True)
    aucs = []
    # Twice as long is what n mu carries.
    for factor, scale in ((1.0, 1.0), (2.0**-7, 2.0**7), (2.0**7, 2.0**-6)):
        model = DPLogisticRegression(classes=[0, 1]).fit(factor * X, y)
        aucs.append(roc_auc_score(y, model.decision_function(factor * X)))
        scales = np.append(np.full(300, scale), 1.0)
        assert_array_equal(model.trace_.whitening.scales, scales)
    assert min(aucs) > max(aucs) - 0.03


@pytest.mark.parametrize(
    ("share", "epsilon", "far"),
    [(0.5, 0.05, 0), (0.1, 0.05, 0.5), (0.02, 0.05, 1), (0.2, 0.8, 0.5)],
)
def test_an_intercept_that_long_rows_hide_is_moved_to_where_its_slope_says(share, epsilon, far):
    """And stays where that may be noise; odds by 4 at most. The oracle has a finer law."""
    rng = np.random.default_rng(0)
    X = 3.0 * rng.normal(size=(6000, 100)) + 0.5
    y = (rng.random(6000) < share).astype(int)
    model = DPLogisticRegression(epsilon=epsilon, classes=[0, 1])
    with seeded_noise(1):
        trace = model.fit(X, y).trace_
    white = trace.whitening
    plan = model.plan(6000, 100).in_whitened_space(white.effective_dimension)
    assert white.scales[0] < 1
    # Coefficients as the descent left them.
    with seeded_noise(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpglm.estimators.descent.settle_intercept", lambda *_: None)
        left = clone(model).fit(X, y).trace_.coef
    assert_array_equal(left[:-1], trace.coef[:-1])
    shift = trace.coef[-1] - left[-1]

    moment = white.moment / min(1.0, max(white.moment[-1, -1], white.noise_std / 6000))
    c, P = left / white.scales, white.basis / white.scales[:, np.newaxis]
    spread = math.sqrt(max(c @ moment @ c - (moment[-1] @ c) ** 2, 0.0))
    odds = moment[-1] @ c + spread * norm.ppf((np.arange(9999) + 0.5) / 9999)
    # A clip cuts residuals to what it leaves of a row of mean length.
    cut = plan.clip[-1] / math.sqrt(max(1.0, np.trace(P.T @ moment @ P)))
    up, down = np.minimum(expit(odds), cut), np.minimum(1 - expit(odds), cut)

    def slope(shift):
        return np.mean(up - expit(odds + shift) * (up + down))

    weights = plan.averaging[:-1] / plan.averaging[:-1].sum()
    along = np.linalg.inv(white.basis)[:, -1]
    noise = np.linalg.norm(along) * math.hypot(*(weights * trace.noise_std[1:])) / 6000
    missing = along @ trace.slope / plan.averaging[:-1].sum() - slope(0.0)
    if far == 0:
        assert abs(missing) < 1.5 * noise and shift == 0
    elif far == 1:
        assert shift == pytest.approx(-math.log(4)) and missing > slope(-math.log(4)) - slope(0.0)
        # Weights change the unit of the slope.
        with seeded_noise(1):
            weighted = clone(model).set_params(class_weight={0: 1.0, 1: 1.0}).fit(X, y)
        assert_allclose(weighted.trace_.coef, left, rtol=1e-12)
    else:
        # Where the clip cuts much, a slope that seems too large is too small.
        assert 0.3 < (-shift if epsilon == 0.05 else shift) < 1.2
        wanted = slope(0.0) + missing * (1 - (1.5 * noise / missing) ** 2)
        assert slope(shift) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("size, long", [(0.4, False), (1.7, False), (400.0, True)])
def test_rows_as_long_as_the_budget_carries_are_not_said_to_hide_columns(size, long):
    """Of 120 records the intercept is hidden by noise, and the one column is not."""
    X = size * np.resize([-1.0, 1.0], (120, 1))
    model = DPLogisticRegression(classes=[0, 1])
    # Whether this or that is seen in one fit is chance.
    with seeded_noise(np.random.RandomState(0)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            model.fit(X, (X[:, 0] > 0).astype(int))
    assert "lengths" in model.plan(120, 1).second_moment.shares
    assert any("hides the others" in str(w.message) for w in caught) == long


def test_columns_that_were_scaled_are_those_of_the_table_again_in_the_model():
    """The penalty is on coefficients of dollars, and the basis of the trace is for them."""
    model = DPLogisticRegression(
        epsilon=math.inf, alpha=0.2, clip_schedule=math.inf, max_iter=400, step_schedule=0.5
    ).fit(DOLLARS, PAID)  # fmt: skip
    scales = model.trace_.whitening.scales
    assert scales.tolist() == [2.0**-7, 2.0**-18, 2.0**-4, 1.0]
    rows = np.column_stack([DOLLARS, np.ones(len(DOLLARS))]) @ model.trace_.whitening.basis
    assert_allclose(rows.T @ rows / len(rows), np.eye(4), atol=0.35)
    C = 1 / (0.2 * len(DOLLARS))
    exact = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10).fit(DOLLARS, PAID)
    assert_allclose(model.coef_[0] / exact.coef_[0], 1.0, rtol=0.02)
