"""The regressors: exact without noise, careful with every target, and private under each relation.

The numbers of ``VECTORS`` are of statsmodels 0.15, for 12 rows, with the intercept last.
"""

import math
import pickle

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from planted_bugs import most_moved, records_at_the_bounds, shift_of
from problems import STORAGES
from scipy import sparse
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score, r2_score
from strategies import RELATIONS, under
from tapes import record

from dpglm import (
    DPGammaRegressor,
    DPLinearRegression,
    DPPoissonRegressor,
    PrivacyOdometer,
    seeded_noise,
)
from dpglm.audit import audit_estimator
from dpglm.audit.designs import target_scores
from dpglm.estimators import defaults
from dpglm.losses import Gamma, Poisson, Squared
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")

REGRESSORS = {
    DPLinearRegression: (LinearRegression, 0),
    DPPoissonRegressor: (PoissonRegressor, 1),
    DPGammaRegressor: (GammaRegressor, 2),
}
LOSSES = [Squared(), Poisson(), Gamma()]
RNG = np.random.default_rng(0)
N = 400
X = RNG.uniform(-1, 1, size=(N, 3))
W = RNG.uniform(0.1, 2, N)
MEAN = np.exp(1.5 + X @ [0.5, -0.3, 0.1])
Y = {
    DPLinearRegression: 3 * np.log(MEAN) + RNG.exponential(size=N) - 4,
    DPPoissonRegressor: RNG.poisson(MEAN * W) / W,
    DPGammaRegressor: RNG.gamma(2, MEAN),
}
X_12 = np.array([
    [-0.29, -0.926], [-0.381, 0.371], [-0.54, -0.977], [0.0, 0.571], [0.561, -0.659],
    [-0.948, 0.584], [0.569, -0.84], [0.12, -0.983], [0.518, -0.78], [-0.907, -0.337],
    [0.972, 0.622], [-0.333, -0.098],
])  # fmt: skip
EXPOSURE = np.array([0.67, 0.97, 0.67, 0.86, 0.92, 0.37, 0.39, 0.8, 0.59, 0.63, 0.52, 0.88])
# Target, weights, unit, clip, theta, sum of clipped gradients, and the fit.
VECTORS = {
    DPLinearRegression: (
        [1.782, 1.084, 1.741, 1.448, 2.107, 0.135, 2.147, 2.331, 2.122, 0.915, 2.162, 0.845],
        None, 1.0, 0.7, [0.5, -0.2, 1.2],
        [-1.2914713747231699, 2.2843819294234122, -3.3544871141159973],
        [0.850073759275534, -0.4901945773264092, 1.4739205772026502],
    ),
    DPPoissonRegressor: (
        np.array([1.0, 0, 2, 1, 0, 0, 1, 3, 0, 0, 0, 1]) / EXPOSURE,
        EXPOSURE, 1.0882708585247882, 1.5, [0.4, -0.1, 0.2],
        [0.7498691755990706, 2.046756845272012, 3.2846299306845212],
        [-0.3088087990468489, -1.4380264032430898, -0.674665768581254],
    ),
    DPGammaRegressor: (
        [2.467, 3.152, 3.108, 3.132, 3.415, 1.604, 3.164, 2.228, 3.527, 1.617, 1.819, 0.902],
        None, 2.5112500000000004, 0.9, [0.4, -0.1, 0.2],
        [0.3760726804487844, -0.638467086230436, 2.3294887064479086],
        [0.22466739914437517, -0.13672667668574845, 0.8801134366247776],
    ),
}  # fmt: skip


def exact(Estimator, **changes):
    """An estimator that descends to the minimum, without noise and without clipping."""
    step = 1.0 if Estimator is DPLinearRegression else 0.7
    plain = {"preconditioner": None, "max_iter": 300, "momentum": 0.8, "averaging": None}
    return Estimator(**{"epsilon": math.inf, "step_schedule": step, **plain, **changes})


# --- Without noise: those of scikit-learn and statsmodels ---


@pytest.mark.parametrize("weights", [None, W])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_without_noise_the_fit_is_that_of_scikit_learn(Estimator, alpha, weights):
    for intercept in (True, False):
        options = {"fit_intercept": intercept}
        model = exact(Estimator, alpha=alpha, max_weight=4.0, **options)
        model.fit(X, Y[Estimator], sample_weight=weights)
        if Estimator is not DPLinearRegression:
            options |= {"alpha": alpha, "tol": 1e-10, "max_iter": 1000}
        Exact = REGRESSORS[Estimator][0]
        if Estimator is DPLinearRegression and alpha:
            Exact, options["alpha"] = Ridge, alpha * (N if weights is None else W.sum())
        other = Exact(**options).fit(X, Y[Estimator], sample_weight=weights)
        # The mean weight is rounded to multiples of 2^-20 a row, and the penalty with it.
        limits = {"abs": 2e-6 if alpha and weights is not None else 1e-8, "rel": 0}
        assert model.coef_ == pytest.approx(other.coef_, **limits)
        assert model.intercept_ == pytest.approx(float(other.intercept_), **limits)
        low, high = model.target_range_
        expected = np.clip(other.predict(X), low, high)
        assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("Estimator", VECTORS)
def test_vectors(Estimator):
    y, weights, unit, clip, theta, gradients, fit = VECTORS[Estimator]
    for store in (np.asarray, sparse.csr_array):
        loss = Estimator()._loss()
        means = None if weights is None else weights / weights.mean()
        options = {"row_weights": means, "max_weight": 2.0}
        objective = Objective(store(X_12), np.asarray(y), loss, **options)
        objective = objective.with_target(np.array([0.0, unit]))
        for asked in (objective, objective.reference):
            assert_allclose(asked.gradient_sum(np.array(theta), clip), gradients, rtol=1e-12)
    model = exact(Estimator, max_iter=3000, max_weight=1.0).fit(X_12, y, sample_weight=weights)
    assert_allclose([*model.coef_, model.intercept_], fit, atol=1e-8)


@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_units_of_target_and_exposure_are_those_of_the_coefficients(Estimator):
    """Exactly, for powers of two, and to rounding where the target is moved."""
    y, (_, power) = Y[Estimator], REGRESSORS[Estimator]

    def fitted(y, bounds=None, exposure=1):
        clipped = {"epsilon": math.inf, "clip_schedule": 0.5, "max_iter": 5}
        model = Estimator(**clipped, target_bounds=bounds, max_weight=2.0 * exposure)
        return model.fit(X, y, sample_weight=exposure * W)

    one, many = fitted(y), fitted(2.0**7 * y)
    assert_array_equal(many.coef_, one.coef_ * (1 if power else 2**7))
    moved = one.intercept_ + 7 * math.log(2) if power else 2**7 * one.intercept_
    assert many.intercept_ == pytest.approx(moved, rel=1e-12)
    assert many.target_range_ == tuple(2**7 * end for end in one.target_range_)
    assert_array_equal(fitted(y, exposure=2).coef_, one.coef_)
    if not power:
        one = exact(Estimator, target_bounds=(-5, 10), clip_schedule=0.5).fit(X, y)
        many = exact(Estimator, target_bounds=(98.75, 102.5), clip_schedule=0.5)
        many.fit(X, y / 4 + 100)
        assert_allclose(4 * many.coef_, one.coef_, rtol=1e-9)
        assert 4 * (many.intercept_ - 100) == pytest.approx(one.intercept_, rel=1e-9)


# --- The target: what is refused, and what is not ---

BAD = {
    "NaN": (np.where(np.arange(N) == 3, np.nan, 1.0), "finite numbers"),
    "infinite": (np.where(np.arange(N) == 3, np.inf, 1.0), "finite numbers"),
    "texts": (np.full(N, "1234.5"), "finite numbers"),
    "one too large": (np.array([10**400] * N, object), "finite numbers"),
    "complex": (np.full(N, 1234.5 + 1j), "Complex data"),
    "two columns": (np.full((N, 2), 1234.5), r"shape \(400, 2\)"),
    "too few": (np.full(N - 1, 1234.5), "inconsistent numbers of samples"),
    "masked": (np.ma.masked_array(np.ones(N), np.arange(N) == 3), "masked"),
    "none": (None, "requires y to be passed"),
}


@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_a_bad_target_is_refused_before_it_costs_and_in_a_sentence(Estimator, tmp_path):
    negative = {DPPoissonRegressor: (-1234.5, "of at least 0"), DPGammaRegressor: (0.0, "above 0")}
    bad = dict(BAD)
    if Estimator in negative:
        value, rule = negative[Estimator]
        bad["limits"] = np.where(np.arange(N) == 3, value, 1.0), rule
    path = tmp_path / "odometer.json"
    with PrivacyOdometer(path, epsilon=1.0, delta=1e-5) as odometer, record() as tape:
        for y, message in bad.values():
            model = Estimator()
            with pytest.raises((ValueError, TypeError), match=message) as info:
                model.fit(X, y)
            assert "1234.5" not in str(info.value) and "\n" not in str(info.value)
            assert not [name for name in vars(model) if name.endswith("_")]
            assert odometer.total is None
        for bounds in ((1, 0), (0,), (0, math.inf), (math.nan, 1), ("a", "b"), 3, (0, 1e91)):
            with pytest.raises(ValueError, match=r"target_bounds|the high end"):
                Estimator(target_bounds=bounds).fit(X, Y[Estimator])
        with pytest.raises(TypeError, match="groups"):
            Estimator().fit(X, Y[Estimator], groups=np.arange(N))
        for y, message in bad.values():
            if message == "finite numbers":
                with pytest.raises(ValueError, match=r"^Block 0 of the iterable: y .*"):
                    Estimator(epsilon=0.01).fit([(X[:9], y[:9]), (X[9:], y[9:])])
        assert not tape.releases


@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_scores_are_those_of_scikit_learn_for_all_ways_to_hand_over_rows(Estimator):
    y, (_, power) = Y[Estimator], REGRESSORS[Estimator]
    with seeded_noise(0):
        model = Estimator(epsilon=20.0).fit(X, y)
        coef = Estimator(max_iter=2).fit(X, y).coef_
    predicted = model.predict(X)
    expected = d2_tweedie_score(y, predicted, power=power) if power else r2_score(y, predicted)
    assert expected > 0.1
    for storage, store in STORAGES.items():
        rows, target = store(X, y)
        assert model.score(rows, target) == pytest.approx(expected, rel=1e-5), storage
        assert_allclose(np.hstack([model.predict(rows)]), predicted, rtol=1e-4, atol=1e-6)
        if power == 0 or storage == "sparse":
            with seeded_noise(0):
                again = Estimator(max_iter=2).fit(rows, target).coef_
            assert_allclose(again, coef, atol=1e-5)
            assert again.dtype == (np.float32 if storage == "single" else float)
    weights = {"sample_weight": W}
    of_rows = d2_tweedie_score if power else r2_score
    options = weights | ({"power": power} if power else {})
    assert model.score(X, y, **weights) == pytest.approx(of_rows(y, predicted, **options))
    with pytest.raises(TypeError, match="not for blocks"):
        model.score(*STORAGES["blocks"](X, y), **weights)
    for copied in (pickle.loads(pickle.dumps(model)), model.slim()):
        assert_array_equal(copied.predict(X), predicted)
    low, high = model.target_range_
    assert low <= model.predict(1e300 * X).min() <= model.predict(1e300 * X).max() <= high


@pytest.mark.skipif(not hasattr(DPLinearRegression, "set_callbacks"), reason="scikit-learn 1.8")
@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_callbacks_are_told_coefficients_in_the_units_of_the_target(Estimator):
    seen = []

    class Told:
        def __getattr__(self, name):
            return lambda *given, **named: None

        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            seen.append((*fitted_estimator.coef_, fitted_estimator.intercept_))

    # With too little budget for the last steps of the intercept.
    model = Estimator(epsilon=0.5, max_iter=3, averaging=None).set_callbacks(Told())
    model.fit(X, Y[Estimator])
    assert len({*seen}) == 3 and seen[-1] == (*model.coef_, model.intercept_)


@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_last_steps_are_taken_without_more_noise_whatever_the_slopes(unit):
    """In one direction of small slopes rounding would have needed more noise than the steps."""
    rows, y = unit * np.random.default_rng(0).normal(size=(3000, 3)), np.arange(3000) % 2
    model = DPLinearRegression(max_row_norm=4 * unit)
    with record() as tape, seeded_noise(0):
        model.fit(rows, y)
    plan = model.plan(*rows.shape)
    clip = defaults.INTERCEPT_CLIP * (plan.n_mu / defaults.SATURATION_SNR) ** (1 / 3)
    found = tape.releases[-len(plan.intercept) :]
    assert [r.event for r in found] == [r.event for r in plan.intercept]
    assert [r.sensitivity for r in found] == pytest.approx([clip] * len(found), rel=0.05)


def test_no_target_is_too_far_or_too_rare_for_a_fit():
    """The range is one that was seen, or [-1, 1]: rare numbers do not show, nor do zeros."""
    rare = np.where(np.arange(N) < 3, 1.0, 0.0)
    for y in (rare, 0 * rare, 1e-300 * rare, np.full(N, 1e300), np.where(rare, 1e300, -1e300)):
        model = DPLinearRegression(epsilon=100.0).fit(X, y)
        assert np.isfinite([*model.coef_, model.intercept_, *model.predict(X)]).all()
        target = model.trace_.target
        assert 0 < target.unit < math.inf and target.bounds[0] < target.bounds[1]
    # A unit of almost nothing would clip all that is not zero.
    assert DPPoissonRegressor(epsilon=1.0).fit(X, rare).target_range_ == (0.0, 1.0)


def test_middle_and_unit_are_the_mean_and_half_of_the_squares():
    """Without noise; with much noise the middle is in the range, and the unit a quarter of it."""
    y = np.where(np.arange(N) % 20, 1.0, 21.0) + 0.01 * W
    sizes = np.sort(abs(y - y.mean()))
    half = sizes[np.searchsorted(np.cumsum(sizes**2), 0.5 * (sizes**2).sum())]
    for Estimator, (_, power) in REGRESSORS.items():
        with record() as tape:
            target = exact(Estimator, max_iter=1).fit(X, y).trace_.target
        # The range that is seen is from 0 to 32, around 16.
        summed = np.clip((y - 16) / 16, -1, 1).sum()
        assert tape.releases[1].exact[0] == pytest.approx(summed, abs=N * 2.0**-20)
        assert target.middle == pytest.approx(y.mean(), rel=1e-5)
        size = target.residual * target.unit if power else target.unit
        assert 0.6 < size / (half / 1.54) < 1.6
        for seed in range(5):
            with seeded_noise(seed):
                model = Estimator(epsilon=0.02, max_iter=1, target_bounds=(0, 4))
                target = model.fit(X[:30], y[:30]).trace_.target
            assert 0 <= target.middle <= 4 and (power or target.unit == 1.0)


# --- Kernels: of any target, at any score, a record adds no more than the clip ---

NUMBERS = [0.0, 5e-324, 1e-300, 1.0, -1.0, 1e15, -1e15, 1e100, 1e300, -1e300]
SCORES = [0.0, -1000.0, 1000.0, -30.0, 30.0, 1e-300, 1e300, -1e300]


def derivative(loss, score, number):
    """The slope of a loss, from its definition, in long doubles."""
    score, number = np.longdouble(score), np.longdouble(number)
    if isinstance(loss, Squared):
        return score - number
    mean = np.exp(np.clip(score, -30, 30))
    return mean - number if isinstance(loss, Poisson) else 1 - number / mean


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_record_adds_its_clipped_gradient_whatever_its_target_and_score(
    loss, compiled, monkeypatch
):
    monkeypatch.setenv("DPGLM_KERNELS", "compiled" if compiled else "numpy")
    numbers, scores = (np.ravel(v) for v in np.meshgrid(NUMBERS, SCORES))
    for weight in (0.3, 0.0):
        for number, score in zip(numbers, scores, strict=True):
            bounded = min(max(number, -1e100), 1e100)
            slope = weight * derivative(loss, score, bounded)
            norm = math.hypot(3.0, 1.0)
            size = min(abs(slope) * norm, 0.7) / norm
            expected = float(np.sign(slope) * size) * np.array([3.0, 0.0, 1.0])
            coef, part = np.array([0.0, 0.0, score]), np.clip(weight * bounded, -1, 1)
            for store in (np.asarray, np.float32, sparse.csr_array)[: 3 if compiled else 1]:
                rows, pair = store(np.array([[3.0, 0.0], [5.0, 5.0]])), np.array([number, 7.0])
                objective = Objective(rows, pair, loss, row_weights=np.array([weight, 0.0]))
                assert_allclose(objective.gradient_sum(coef, 0.7), expected, rtol=1e-12)
                assert objective.target_sum(1.0) == pytest.approx(part, abs=2.0**-20)
                counts = objective.target_histogram(np.arange(-40, 40))
                assert counts.sum() == (abs(weight * bounded) > 2.0**-40)


def test_a_tenth_of_the_rows_far_from_all_others_leave_the_descent_stable():
    """Of an element whose large sizes are too rare to set its unit, so that whitening clips."""
    rng, n = np.random.default_rng(0), 10_000
    rows, far = rng.normal(size=(n, 12)), rng.choice([-1, 1], n) * 2 ** rng.uniform(4, 6, n)
    rows[:, 0] = np.where(rng.random(n) < 0.1, far, 1.0)
    y, found = rows[:, 0] / 64 + rows[:, 1] + 0.5 * rng.normal(size=n), []
    for seed in range(4):
        with seeded_noise(seed):
            found.append(DPLinearRegression(target_bounds=(-5, 5)).fit(rows, y))
    assert any(model.trace_.whitening.scales[0] == 1 for model in found)
    assert min(model.score(rows, y) for model in found) > 0.75


# --- Privacy ---


@st.composite
def neighbours(draw):
    """Two tables, with weights, whose last records differ: as a relation says, and by any size."""
    relation = draw(st.sampled_from(RELATIONS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 30))
    X, y = rng.normal(size=(n, 2)), np.abs(rng.normal(size=n)) * 10.0 ** rng.integers(-5, 6)
    weights = rng.uniform(0, 2, n)
    sizes = st.sampled_from([0.0, 5e-324, 1e-9, 0.3, 1.0, 30.0, 1e9, 1e100, 1e300])
    row = st.sampled_from([0.0, 1e-200, 0.1, 3.0, 1e30, 1e153])
    tables = []
    for _ in range(2):
        one = X.copy(), y.copy(), weights.copy()
        one[0][-1] = draw(row) * np.array([1.0, draw(st.sampled_from([1.0, -1.0]))])
        one[1][-1], one[2][-1] = draw(sizes), draw(st.sampled_from([0.0, 0.01, 1.0, 1e3]))
        tables.append(one)
    if relation == "zero_out":
        tables[1][0][-1] = 1e308
    if relation == "add_or_remove_one":
        tables[1] = tuple(array[:-1] for array in tables[1])
    return relation, tables


@settings(max_examples=30, deadline=None)
@given(neighbours(), st.sampled_from([*REGRESSORS]), st.booleans(), st.sampled_from([None, (0, 4)]))
def test_a_record_moves_no_release_by_more_than_charged(case, Estimator, intercept, bounds):
    relation, (one, other) = case
    changes = {"fit_intercept": intercept, "target_bounds": bounds}
    assert most_moved(Estimator, relation, one, other, **changes) <= 1.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_bounds_on_releases_are_reached(relation):
    """By targets at the ends of the range, in different bins; so no bound is larger than needed."""
    one, other = records_at_the_bounds(relation)
    assert 0.98 < most_moved(DPPoissonRegressor, relation, one, other, target_bounds=(0, 4)) <= 1


RANGES = [(-5, -1), (0, 10), (0, 1e20)]


@pytest.mark.parametrize(("Estimator", "bounds"), [*zip(REGRESSORS, RANGES, strict=True)])
@pytest.mark.parametrize("release", ["target sum", "target histogram"])
def test_a_target_in_any_public_range_shows_as_its_audit_predicts(Estimator, bounds, release):
    model = Estimator(epsilon=1e4, target_bounds=bounds, neighboring_relation="replace_one")
    found = target_scores(model, 30, release=release)
    moved = found.scores[found.present].mean() - found.scores[~found.present].mean()
    assert abs(moved - found.shift) < 2 < found.shift / 2


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("Estimator", REGRESSORS)
def test_audits_pass(Estimator, relation):
    model = Estimator(epsilon=6.0, inference_fraction=0.5, **under(relation, 5000))
    report = audit_estimator(model, n_fits=300)
    assert report.passed and {part.name for part in report.parts} >= {
        "target histogram", "target sum", "second moment", "gradients",
    }  # fmt: skip
    assert min(shift_of(part) for part in report.parts if part.name == "gradients") > 0.3


@pytest.mark.parametrize(("Estimator", "relation"), [*zip(REGRESSORS, RELATIONS, strict=True)])
def test_dp_accounting_confirms_the_cost_of_a_fit(Estimator, relation):
    bounds = None if Estimator is DPLinearRegression else (0, 30)
    model = Estimator(epsilon=2.0, target_bounds=bounds, **under(relation, N))
    ledger = model.fit(X, Y[Estimator], sample_weight=W).privacy_
    accountant = PLDAccountant(ledger.dp_accounting_relation, value_discretization_interval=8e-4)
    reached = accountant.compose(ledger.to_dp_event()).get_epsilon(1e-6)
    assert 0.995 <= reached / 2.0 <= 1.001
    assert ledger.n_releases == 2 + (bounds is None) + 1 + 2 + 24 + 6


def test_batches_of_rows_cost_what_they_should():
    model = DPLinearRegression(sampling_rate=0.3, target_bounds=(-10, 10), max_row_norm=2.0)
    ledger = model.fit(X, Y[DPLinearRegression]).privacy_
    accountant = PLDAccountant(ledger.dp_accounting_relation, value_discretization_interval=1e-3)
    assert accountant.compose(ledger.to_dp_event()).get_epsilon(1e-6) <= 1.001
