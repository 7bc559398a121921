"""Estimators with a preconditioner: what they reach, and that they stay good citizens."""

import math
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.stats import norm, poisson
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from strategies import OURS

from dpglm import (
    DiagonalPreconditioner,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    seeded_noise,
)
from dpglm.datasets import make_census
from dpglm.estimators import defaults
from dpglm.estimators.whitening import column_units, row_unit
from dpglm.exceptions import UtilityWarning
from dpglm.losses import Logistic
from dpglm.privacy.vault import MAGNITUDE_POWERS, NORM_BIN_EDGES
from dpglm.sums.objective import Objective

BOTH = [DiagonalPreconditioner(), FullPreconditioner()]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_without_noise_it_reaches_the_optimum_of_the_original_problem(
    preconditioner, n_classes, fit_intercept
):
    rng = np.random.default_rng(0)
    n, alpha = 1500, 1e-3
    X = rng.normal(size=(n, 4)) * [1.0, 10.0, 100.0, 0.1]
    scores = np.column_stack([X / [1.0, 10.0, 100.0, 0.1] @ rng.normal(size=(4, n_classes))])
    y = (scores + rng.gumbel(size=scores.shape) + np.eye(n_classes)[0]).argmax(axis=1)
    exact = LogisticRegression(C=1 / (n * alpha), fit_intercept=fit_intercept, tol=1e-10)
    exact.set_params(solver="newton-cg", max_iter=1000).fit(X, y)
    model = DPLogisticRegression(
        epsilon=math.inf, preconditioner=clone(preconditioner).set_params(row_clipping_norm=1e4),
        alpha=alpha, fit_intercept=fit_intercept, clip_schedule=math.inf, step_schedule=2.0,
        momentum=0.6, averaging=None, max_iter=300,
    ).fit(X, y)  # fmt: skip
    assert_allclose(model.decision_function(X), exact.decision_function(X), atol=2e-3)
    relative = model.set_params(preconditioner=None).fit(X / 100, y).decision_function(X / 100)
    assert np.abs(relative - exact.decision_function(X)).max() > 0.1


def test_a_wide_sparse_fit_takes_memory_in_proportion_to_the_columns():
    n, d = 2000, 5000
    rng = np.random.default_rng(0)
    X = sparse.random_array((n, d), density=0.002, format="csr", random_state=rng)
    y = rng.integers(0, 2, n)
    model = DPLogisticRegression(classes=[0, 1])
    assert isinstance(model.plan(n, d).preconditioner, DiagonalPreconditioner)
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
def test_with_more_columns_than_budget_the_defaults_do_no_harm(Estimator, irrelevant):
    # The mean of 3 draws is more than 6 of its standard deviations above that.
    gaps = []
    for seed in range(3):
        X, y = make_census(2500, random_state=seed)
        X = np.hstack([X, np.random.default_rng(seed).random((2500, irrelevant))])
        model = Estimator(classes=[0, 1]).fit(X[:500], y[:500])
        majority = max(y[500:].mean(), 1 - y[500:].mean())
        gaps.append(model.score(X[500:], y[500:]) - majority)
    assert np.mean(gaps) > -0.02


def test_a_bad_parameter_is_refused_before_any_release():
    X, y = make_census(300, random_state=0)
    for bad, message in [
        ({"budget_fraction": 0.0}, r"budget_fraction=0\.0 must be a number above 0 and below 1"),
        ({"row_clipping_norm": 0.0}, r"row_clipping_norm=0\.0 must"),
        (
            {"budget_fraction": 1e-30},
            "budget_fraction=1e-30.* would be all noise. Raise budget_fraction or epsilon",
        ),
    ]:
        for kind in (DiagonalPreconditioner, FullPreconditioner):
            model = DPLogisticRegression(preconditioner=kind(**bad))
            with pytest.raises(ValueError, match=message) as info:
                model.fit(X, y)
            assert not hasattr(info.value, "privacy_ledger")


def people(n):
    """Age, income in dollars and calls; the label depends on all three."""
    rng = np.random.default_rng(0)
    columns = rng.uniform(18, 80, n), np.exp(rng.normal(10.5, 0.7, n)), rng.poisson(5, n)
    X = np.column_stack(columns)
    score = 0.04 * (X[:, 0] - 45) + 0.5 * (np.log(X[:, 1]) - 10.5) - 0.15 * (X[:, 2] - 5)
    return X, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)


DOLLARS, PAID = people(8000)
UNITS = np.array([100.0, 300_000.0, 20.0])
AS_THEY_ARE = DiagonalPreconditioner(row_clipping_norm=3.0)
OWN_INTERCEPT = np.eye(3)[:1].repeat(8000, axis=0)
ROWS_OF_ONE = FullPreconditioner(row_clipping_norm=1.0)
HIDDEN = r"Only column 1 of 4, .* row_clipping_norm=[0-9.]+\."
TOO_MANY = "The budget is too small for the columns"


@pytest.mark.parametrize(
    ("X", "y", "changes", "says"),
    [
        (DOLLARS, PAID, {"preconditioner": FullPreconditioner(row_clipping_norm=3.0)}, HIDDEN),
        (DOLLARS, PAID, {"preconditioner": AS_THEY_ARE, "epsilon": 100.0}, HIDDEN),
        (DOLLARS[:200], PAID[:200], {}, HIDDEN),
        (DOLLARS, PAID, {}, None),
        (DOLLARS, PAID, {"preconditioner": "diagonal"}, None),
        (make_census(500, random_state=0)[0], np.arange(500) % 2, {"epsilon": 0.1}, TOO_MANY),
        (np.eye(200, 2000), np.arange(200) % 2, {}, TOO_MANY),
        (DOLLARS / UNITS, PAID, {"fit_intercept": False}, None),
        (OWN_INTERCEPT, PAID, {"fit_intercept": False, "preconditioner": ROWS_OF_ONE}, None),
        (DOLLARS, PAID, {"epsilon": np.inf}, None),
        (*make_census(5000, random_state=0), {"epsilon": 0.3}, None),
    ],
)
def test_a_fit_that_can_hardly_learn_says_so_and_others_do_not(X, y, changes, says):
    for Estimator in (DPLogisticRegression, DPLinearSVM):
        model = Estimator(classes=[0, 1], max_iter=3, **changes)
        # One fit in a hundred has a false unit, by chance.
        with seeded_noise(0), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, y)
        found = [warning for warning in caught if warning.category is UtilityWarning]
        assert len(found) == (says is not None)
        assert ("too small" in repr(model.plan(*X.shape))) == (says is TOO_MANY)
        for warning in found:
            assert re.search(says, str(warning.message)) and warning.filename == __file__


def test_the_budget_carries_columns_from_four_times_their_root_on():
    model = DPLogisticRegression(epsilon=0.5)
    most = math.floor((model.plan(1000, 99).n_mu / 4) ** 2)
    for n_columns, carried in ((most, True), (most + 1, False)):
        plan = model.plan(1000, n_columns - 1)
        assert plan.metadata.n_features == n_columns
        assert (plan.warning_message == "") == carried
    per_record = model.plan(1000, 1).n_mu / 1000
    few, enough = math.floor(20 / per_record), math.ceil(20 / per_record)
    assert model.plan(few, 1).warning_message and not model.plan(enough, 1).warning_message


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
    # Ten of ten fits of each rank at .698 or more; in dollars as they are, at .35 to .65.
    model, noise = Estimator(classes=[0, 1]), np.random.RandomState(0)
    with seeded_noise(noise):
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
        assert (model.trace_.whitening.scales[:3] == 2.0**29).all()
        coefs.append(model.coef_)
    assert_allclose(*coefs, atol=1e-3 * np.abs(coefs[0]).max())


def units_of(X, noise=0.0):
    """Units and middles of columns of a table, from counts with Gaussian noise in parts of rows."""
    counts = Objective(X, np.ones(len(X)), Logistic(), fit_intercept=False).magnitude_histogram(
        MAGNITUDE_POWERS
    )
    counts = counts + len(X) * noise * np.random.default_rng(0).normal(size=counts.shape)
    return column_units(counts, noise * len(X), len(X))


RNG = np.random.default_rng(0)
UNIFORM = RNG.random(8000)
USUAL = {
    "one-hot": UNIFORM < 0.4,
    "rare": UNIFORM < 0.001,
    "hat": np.maximum(0.0, 1 - 4 * np.abs(UNIFORM - 0.4)),
    "in [0, 1]": UNIFORM,
    "in [-1, 1]": 2 * UNIFORM - 1,
    "small": UNIFORM / 8,
    "nothing": 0 * UNIFORM,
    "few of nothing": 1e6 * (UNIFORM < defaults.DETECTED_FRACTION / 2),
}
OTHERS = {
    "dollars": np.exp(RNG.normal(10.5, 0.7, 8000)),
    "debts": -np.exp(RNG.normal(10.5, 0.7, 8000)),
    "years": RNG.uniform(1950, 2020, 8000),
    "rates": 1e-4 * UNIFORM,
    "mixed signs": 300 * RNG.normal(size=8000),
    "days or -1": np.where(UNIFORM < 0.18, RNG.uniform(1, 871, 8000), -1.0),
    "spread out": np.exp(RNG.normal(0, 5, 8000)),
}


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_columns_of_usual_size_keep_their_units_and_others_get_them(noise):
    columns = np.column_stack([*USUAL.values(), *OTHERS.values()]).astype(float)
    scales, middles = units_of(columns, noise)
    assert (scales[: len(USUAL)] == 1).all()
    assert (np.frexp(scales)[0] == 0.5).all(), "powers of two"
    scaled = np.abs(columns * scales)[:, len(USUAL) :]
    assert ((scaled > 0.5) & (scaled <= 4)).mean(axis=0).min() > defaults.DETECTED_FRACTION
    assert (scaled > 1).mean(axis=0).max() < (0.06 if noise else 0.04)
    means, sizes = (columns * scales).mean(axis=0), np.abs(columns * scales).mean(axis=0)
    for name, *of_column in zip([*USUAL, *OTHERS], middles, means, sizes, strict=True):
        middle, mean, size = of_column
        # A size is a third more than 3/4 at most; ones are, and sums of many sizes hardly.
        near = 0.34 if name in ("one-hot", "years", "days or -1", "hat") else 0.1
        if name not in ("few of nothing", "spread out"):
            assert abs(middle - mean) < near * size + 0.02 + 3 * noise, name


def test_sizes_that_noise_may_show_by_chance_set_no_unit():
    n_columns, n, noise = 6, 1000, 60.0
    shape, size = (n_columns, 2 * MAGNITUDE_POWERS.size), n_columns * 2 * MAGNITUDE_POWERS.size
    assert (column_units(np.zeros(shape), noise, n)[0] == 1).all()
    assert (column_units(np.full(shape, -1e6), noise, n)[0] == 1).all()
    # Of all numbers, counts alone and pooled.
    for noise_std, width in ((noise, 1), (noise, defaults.POOLED_SIZES), (0.0, 1)):
        least = norm.isf(defaults.FALSE_UNIT_RATE / (2 * size)) * noise_std * math.sqrt(width)
        least = max(least, defaults.DETECTED_FRACTION * n)
        for k, share in ((40, 1 - 1e-9), (40, 1 + 1e-9), (MAGNITUDE_POWERS.size + 40, 1 + 1e-9)):
            counts = np.zeros(shape)
            counts[1, k : k + width] = share * least / width
            scales, middles = column_units(counts, noise_std, n)
            seen = share > 1
            assert scales[1] == (2.0 ** -(MAGNITUDE_POWERS[40] + 1) if seen else 1.0)
            # Sizes that are seen together only are in no middle.
            middle = (defaults.MIDDLE_OF_SIZES * share * least / n) * (seen and width == 1)
            assert middles[1] == pytest.approx(middle if k == 40 else -middle)
            assert (scales[[0, 2, 3, 4, 5]] == 1).all() and np.count_nonzero(middles) <= 1
    shown = [
        (column_units(np.random.default_rng(s).normal(0, noise, shape), noise, n)[0] != 1).any()
        for s in range(300)
    ]
    assert sum(shown) <= poisson.isf(1e-4, 300 * defaults.FALSE_UNIT_RATE)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("Model", OURS)
def test_what_is_released_first_follows_from_n_mu_and_the_number_of_columns(Model, relation):
    def first(n_samples, n_columns=10, preconditioner="auto", **changes):
        model = Model(neighboring_relation=relation, preconditioner=preconditioner, **changes)
        return model.plan(n_samples, n_columns)

    def fractions(*given, **changes):
        return [(r.name, r.fraction) for r in first(*given, **changes).first]

    moment = ("second moment", defaults.MOMENT_FRACTION)
    names = "magnitude histogram", "norm histogram"
    magnitudes, norms = ([(name, defaults.UNITS_FRACTION), moment] for name in names)
    per_record = first(1000).n_mu / 1000
    # From where the noise of the counts is MAX_COUNT_NOISE of the records.
    least = math.sqrt(11 / defaults.UNITS_FRACTION) / defaults.MAX_COUNT_NOISE / per_record
    assert fractions(math.floor(least)) == norms and fractions(math.ceil(least)) == magnitudes
    noise = first(math.ceil(least)).first[0].noise_multiplier * math.sqrt(11)
    noise *= 2 if relation == "replace_one" else 1  # what n_mu is per half of
    assert noise / math.ceil(least) == pytest.approx(defaults.MAX_COUNT_NOISE, rel=0.01)
    assert fractions(300, defaults.MAX_COUNTED_COLUMNS, epsilon=math.inf) == norms
    assert fractions(300, epsilon=math.inf) == magnitudes
    assert fractions(10**6, preconditioner=FullPreconditioner(row_clipping_norm=3.0)) == [moment]
    (_, share), (_, most) = fractions(
        10**6, preconditioner=FullPreconditioner(budget_fraction=0.99)
    )
    assert (share, most) == (pytest.approx(0.005), 0.99)


def test_a_moment_of_centered_rows_is_given_back_for_the_columns_as_they_are():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 0.9, size=20_000)[:, np.newaxis] + 0.05 * rng.normal(size=(20_000, 10))
    X[:, 5:] *= -1000
    y = (X[:, 0] > X[:, 0].mean()).astype(int)
    with seeded_noise(0):
        white = DPLogisticRegression(epsilon=8.0).fit(X, y).trace_.whitening
    assert white.scales.tolist() == [1.0] * 5 + [2.0**-10] * 5 + [1.0]
    rows, noise = np.column_stack([X, np.ones(len(X))]) * white.scales, white.noise_std / len(X)
    expected = defaults.ROW_NORM**2 * white.events[-1].noise_multiplier / len(X)
    assert noise == pytest.approx(expected, rel=1e-3)
    # Each is a sum of four numbers with that noise, or less, times means of up to 1.
    assert_allclose(white.moment, rows.T @ rows / len(X), atol=12 * noise)
    assert 12 * noise < 0.05, "less than by what a middle of the wrong sign moves it"
    assert white.moment[-1, -1] > 0.999 - 5 * noise, "centered rows are not clipped"


N_MUS = [1e-12, 0.1, 7.0, 80.0, 1e3, 1e4, 1e6, 1e12, math.inf]


def test_rows_are_scaled_by_the_largest_norm_that_many_have_and_by_what_n_mu_allows():
    def scaled(parts, noise, n_mu):
        counts = np.zeros(NORM_BIN_EDGES.size + 1)
        for upper, part in parts.items():
            counts[9 + round(math.log2(upper / 3.5))] = part
        unit, bound = row_unit(counts, noise, n_mu)
        assert 0 < unit < math.inf and 0 < bound < math.inf and math.frexp(unit)[0] == 0.5
        return unit, bound

    usual = (1.0, defaults.ROW_NORM)
    enough = 2 * defaults.N_MU_PER_SQUARED_NORM * 3.5**2
    # Usual rows stay as they are, and shorter ones become as long.
    assert scaled({3.5: 1.0}, 0.0, enough) == usual
    for shorter in (2.0, 16.0, 256.0):
        assert scaled({3.5 / shorter: 1.0}, 0.0, math.inf) == (shorter, defaults.ROW_NORM)
    # However large rows are, they become as long as n mu allows; more of it never shortens them.
    for upper in (3.5 / 4, 3.5, 14.0, 112.0, 3.5 * 2**9):
        found = [scaled({upper: 1.0}, 0.0, n_mu) for n_mu in N_MUS]
        assert found == sorted(found)
        for (unit, bound), n_mu in zip(found, N_MUS, strict=True):
            norm_of_rows = unit * upper
            assert defaults.N_MU_PER_SQUARED_NORM * norm_of_rows**2 <= n_mu
            # The clipping norm of centered rows grows with them, the intercept's one does not.
            features = (defaults.ROW_NORM**2 - 1) * (norm_of_rows / 3.5) ** 2
            assert bound == pytest.approx(math.sqrt(1 + features))
        assert found[-1][0] == max(1.0, 3.5 / upper)
        # A power of two more would be too much.
        longer = [unit for unit, _ in found if unit < found[-1][0]]
        for unit, n_mu in zip(longer, N_MUS, strict=False):
            assert defaults.N_MU_PER_SQUARED_NORM * (2 * unit * upper) ** 2 > n_mu
    # Parts that are seen: not by chance, and not too rare.
    by_chance = norm.isf(defaults.FALSE_NORM_RATE / NORM_BIN_EDGES.size) * 0.05
    for noise, least in ((0.05, by_chance), (0.0, defaults.DETECTED_FRACTION)):
        assert scaled({3.5: 0.7, 14.0: 1.01 * least}, noise, enough)[0] == 0.25
        assert scaled({3.5: 0.7, 14.0: 0.99 * least}, noise, enough)[0] == 1.0
    # Nothing is seen of rows without a norm, nor in noise: then they may be long.
    undetected = 1 / defaults.UNDETECTED_NORM
    assert row_unit(np.eye(NORM_BIN_EDGES.size + 1)[0], 0.0, enough) == (
        undetected,
        defaults.ROW_NORM,
    )
    assert scaled({3.5: 0.2, 7.0: 0.2}, 0.2, enough)[0] == undetected


@pytest.mark.parametrize("size, long", [(0.4, False), (1.7, False), (400.0, True)])
def test_rows_as_long_as_the_budget_carries_are_not_said_to_hide_columns(size, long):
    X = size * np.resize([-1.0, 1.0], (120, 1))
    model = DPLogisticRegression(classes=[0, 1])
    # Whether this or that is seen in one fit is chance.
    with seeded_noise(np.random.RandomState(0)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            model.fit(X, (X[:, 0] > 0).astype(int))
    assert model.plan(120, 1).first[0].name == "norm histogram"
    assert any("row norms far larger" in str(w.message) for w in caught) == long
