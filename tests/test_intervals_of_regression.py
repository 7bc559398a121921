"""Standard errors and intervals of the three regressors."""

import math
from functools import partial
from operator import methodcaller

import numpy as np
import pytest
from numpy.testing import assert_allclose
from planted_bugs import most_moved, records_at_the_bounds
from strategies import RELATIONS
from tapes import record

from dpglm import DPGammaRegressor, DPLinearRegression, DPPoissonRegressor, seeded_noise
from dpglm.losses import Gamma, Poisson, Squared
from dpglm.privacy.vault import MAGNITUDE_POWERS, triangle
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")

ALL = [DPLinearRegression, DPPoissonRegressor, DPGammaRegressor]
COEF = np.array([0.3, -0.2, 0.1])


def drawn(Estimator, n, seed=0, weighted=True):
    """Rows that are not centered, targets, and weights or None."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1, 2, 3] + [0, 1, 5]
    weights = rng.uniform(0.1, 3, n) if weighted else None
    score, w = X @ COEF - 1, 1.0 if weights is None else weights
    if Estimator is DPLinearRegression:
        return X, score + (rng.exponential(size=n) - 1) / np.sqrt(w), weights
    if Estimator is DPPoissonRegressor:
        return X, rng.poisson(w * np.exp(score)) / w, weights
    return X, rng.gamma(2, np.exp(score) / 2), weights


def fitted(Estimator, table, epsilon=4.0, seed=0, **parameters):
    X, y, weights = table
    parameters = {"inference_fraction": 0.5, "max_weight": 3.0} | parameters
    with seeded_noise(seed):
        return Estimator(epsilon=epsilon, **parameters).fit(X, y, sample_weight=weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("Estimator", ALL)
def test_without_privacy_it_is_statsmodels(Estimator, weighted):
    sm = pytest.importorskip("statsmodels.api")
    table = X, y, weights = drawn(Estimator, 600, weighted=weighted)
    rows = sm.add_constant(X)
    if Estimator is DPLinearRegression:
        expected = sm.WLS(y, rows, weights=1.0 if weights is None else weights).fit()
    else:
        log = sm.families.links.Log()
        families = {DPPoissonRegressor: sm.families.Poisson, DPGammaRegressor: sm.families.Gamma}
        model = sm.GLM(y, rows, family=families[Estimator](log), var_weights=weights)
        expected = model.fit(scale="X2", tol=1e-14)
    model = fitted(Estimator, table, math.inf)
    found = model.inference()
    assert_allclose(found.params, expected.params, rtol=1e-9)
    assert_allclose(found.bse, expected.bse, rtol=1e-6)
    assert_allclose(found.cov_params(), expected.cov_params(), rtol=1e-5, atol=1e-12)
    assert_allclose([model.dispersion_, found.dispersion], expected.scale, rtol=2e-6)
    assert not found.bse_privacy.any()


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize("Estimator", ALL)
def test_an_estimate_is_of_newton_steps_on_what_was_released(Estimator, alpha):
    table = X, y, weights = drawn(Estimator, 4000)
    with record() as recorded:
        model = fitted(Estimator, table, 30.0, alpha=alpha)
    found, (ends, curvature, *gradients, squares) = model.trace_.debiased, recorded.releases[-9:]
    assert len(gradients) == 6
    target, n = model.trace_.target, model.trace_.n_summed
    unit = target.unit if Estimator is DPLinearRegression else 1.0
    basis, weights = found.basis / unit, weights / 3.0
    rows = np.column_stack([X, np.ones(len(X))]) @ basis
    loss = {DPLinearRegression: Squared, DPPoissonRegressor: Poisson, DPGammaRegressor: Gamma}
    loss = loss[Estimator]()
    t = (y - target.middle) / unit if unit != 1.0 else y / target.unit
    own = np.array(model.trace_.coef)
    own[-1] -= math.log(target.unit) if target.log_link else target.middle
    start = np.linalg.solve(basis, own / unit)
    residuals = weights * loss.derivative(rows @ start, t)
    powers = np.floor(np.log2(np.abs(residuals[residuals != 0])))
    counted = np.array([np.sum(powers == power) for power in MAGNITUDE_POWERS])
    assert_allclose(ends.exact.reshape(2, -1).sum(axis=0), counted, atol=1)
    one = gradients[0].sensitivity
    norms = np.square(rows).sum(axis=1)
    bound = 2 * model.trace_.whitening.effective_dimension
    a, most = np.minimum(1.0, bound / norms), one**2 / bound / (n / len(X))
    assert 10 < np.sum(a < 1) < 1000
    d = rows.shape[1]
    where, lengths = triangle(d)
    rho = loss.second_derivative(rows @ start)
    cut = np.minimum(a * weights * rho, bound * loss.counted_curvature / norms)
    exact = rows.T @ (cut[:, np.newaxis] * rows)
    assert_allclose(curvature.exact.ravel(), exact[where] * lengths, rtol=1e-6, atol=1e-6)
    noisy = np.zeros((d, d))
    noisy[where] = noisy.T[where] = curvature.answer.ravel() / lengths
    std = curvature.event.noise_multiplier * curvature.sensitivity
    values, vectors = np.linalg.eigh(noisy)
    assert values.min() > 2 * std * math.sqrt(2 * d) and found.seen.all()
    values = values + std**2 / 2 * (np.sum(1 / values) + 1 / values)
    likely = (vectors * values) @ vectors.T
    free = basis[:-1]
    strength = alpha / (target.unit if Estimator is DPPoissonRegressor else 1.0)
    penalty = n * strength * free.T @ free
    inverse, at, steps = np.linalg.inv(likely + penalty), start, []
    for gradient in gradients:
        exact = rows.T @ (a * weights * loss.derivative(rows @ at, t))
        assert_allclose(gradient.exact.ravel(), exact, rtol=1e-6, atol=0.03 * one)
        step = inverse @ (gradient.answer.ravel() + penalty @ at)
        steps.append(at - step)
        at = at - step / 2
    estimate = np.mean(steps[-3:], axis=0)
    assert_allclose(found.coef, target.original(basis @ estimate, True), rtol=1e-6)
    scores = rows @ estimate
    q = weights * loss.derivative(scores, t) ** 2 / loss.second_derivative(scores)
    assert_allclose(squares.exact.sum() * most, np.minimum(q, most).sum(), rtol=1e-3)
    assert np.mean(q > most) < 0.01
    dispersion = squares.answer.sum() * most / (len(X) - d)
    assert_allclose(found.curvature, dispersion * likely, rtol=1e-6)
    assert_allclose(found.inverse, inverse, rtol=1e-6)
    noise = gradients[0].event.noise_multiplier * one
    assert_allclose(found.noise_std, noise / math.sqrt(3), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("Estimator", [DPLinearRegression, DPPoissonRegressor])
def test_intervals_cover(Estimator):
    """Of 300 tables of skewed residuals, or of rates with exposures."""
    hits, bare = [], []
    for seed in range(300):
        table = drawn(Estimator, 5000, seed, weighted=Estimator is DPPoissonRegressor)
        found = fitted(Estimator, table, 4.0, seed).inference()
        away = np.abs(found.params - [-1, *COEF])
        # What is suppressed counts nowhere.
        hits.append(np.where(np.isnan(away), np.nan, away < 1.96 * found.bse))
        bare.append(away < 1.96 * found.bse_sampling)
    const, *slopes = np.nanmean(hits, axis=0)
    assert np.isfinite(hits).mean() > 0.95
    assert 0.93 <= np.mean(slopes) <= 0.965
    assert 0.92 <= const <= 0.975
    assert np.mean(bare) < 0.93


def test_intervals_of_rare_events_cover_where_the_descent_clips_them():
    """Its coefficient of a group is far too small; steps of Newton's length would go too far."""
    errors, hits = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = (rng.random((50_000, 2)) < [0.05, 0.5]).astype(float)
        y = rng.poisson(0.1 * np.exp(X @ [0.8, -0.3]))
        model = fitted(DPPoissonRegressor, (X, y, None), 2.0, seed, target_bounds=(0.0, 50.0))
        assert model.coef_[0] < 0.3
        low, high = model.inference().conf_int()[1]
        errors.append((low + high) / 2 - 0.8)
        hits.append(low < 0.8 < high)
    assert abs(np.mean(errors)) < 0.12 and np.mean(hits) > 0.8


def test_what_cannot_be_shown_is_refused_before_it_costs():
    X, y, _ = drawn(DPLinearRegression, 1000)
    for changes, words in (
        ({"epsilon": 0.1}, "too small for intervals of 4 columns"),
        ({"sampling_rate": 0.5}, "needs sampling_rate=1"),
        ({"preconditioner": "diagonal"}, "full preconditioner"),
    ):
        model = DPLinearRegression(inference_fraction=0.5).set_params(**changes)
        with pytest.raises(ValueError, match=words) as error:
            model.fit(X, y)
        assert not hasattr(error.value, "privacy_ledger")
    # n mu of 32 d^1.5: what is above it is not refused.
    enough = DPLinearRegression(inference_fraction=0.5)
    n = math.ceil(32 * 4**1.5 / enough.plan(10_000, 3).budget.mu)
    assert enough.plan(n, 3).last
    with pytest.raises(ValueError, match="too small"):
        enough.plan(n - 2, 3)
    model = DPLinearRegression(epsilon=8.0).fit(X, y)
    assert not hasattr(model, "dispersion_")
    with pytest.raises(ValueError, match=r"DPLinearRegression\(inference_fraction=0.5\)"):
        model.inference()


def test_means_and_ratios_are_on_the_scale_of_the_target():
    found = {E: fitted(E, drawn(E, 3000)).inference() for E in ALL}
    rows = drawn(DPLinearRegression, 5)[0]
    for Estimator, results in found.items():
        means = results.predict(rows)
        scores = np.column_stack([np.ones(5), rows]) @ results.params
        log = Estimator is not DPLinearRegression
        assert_allclose(means.value, np.exp(scores) if log else scores, rtol=1e-9)
        assert (means.low < means.value).all() and (means.value < means.high).all()
        assert f"Dispersion  {results.dispersion:.4g}" in str(results)
        assert f"Unit        {'log of the mean' if log else 'y'} per unit" in str(results)
        if log:
            ratios = results.ratios()
            assert_allclose(np.log(ratios.value), results.params, rtol=1e-9, atol=1e-12)
            ends = np.column_stack([ratios.low, ratios.high])
            assert_allclose(np.log(ends), results.conf_int(), rtol=1e-9, atol=1e-12)
            assert_allclose(ratios.std_error, ratios.value * results.bse, rtol=1e-9)
        else:
            with pytest.raises(ValueError, match="no ratios"):
                results.ratios()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("loss", [Squared(), Poisson(), Gamma()], ids=repr)
def test_questions_about_residuals(loss):
    """By their own weights, a null record nowhere, and the same by blocks and plain arithmetic."""
    X, y, weights = drawn(DPGammaRegressor, 200)
    X[:2], y[:2] = 1e200, 1e9
    coef = np.array([*COEF, -1.0])
    whole = Objective(X, y, loss, row_weights=weights / 3).weighed(2.0)
    rows = np.column_stack([X[2:], np.ones(198)])
    residuals = loss.derivative(rows @ coef, y[2:])
    squares = weights[2:] / 3 * residuals**2 / loss.second_derivative(rows @ coef)
    for basis in (np.eye(4), np.random.default_rng(0).normal(size=(4, 4))):
        at = np.linalg.solve(basis, coef)
        asked = whole.in_basis(basis).with_residuals((at, True))
        for bound in (0.1, 100.0):
            ask = methodcaller("target_sum", bound)
            assert ask(asked)[0] == pytest.approx(np.minimum(squares / bound, 1).sum(), abs=2e-4)
            assert asked.confirm(ask) == 0
        asked = whole.in_basis(basis).with_residuals((at, False))
        counts = asked.target_histogram(MAGNITUDE_POWERS).reshape(2, -1)
        assert counts.sum(axis=1) == pytest.approx([np.sum(residuals > 0), np.sum(residuals < 0)])
        sizes = np.log2(np.abs(weights[2:] / 3 * residuals))
        ends = 2 ** (MAGNITUDE_POWERS + 1.0)
        assert ends[counts.any(axis=0)].max() == 2 ** np.ceil(sizes.max())
        for objective in (asked, asked.reference):
            gradient = whole.in_basis(basis).gradient_sum(at, 1.0)
            assert_allclose(objective.gradient_sum(at, 1.0), gradient, rtol=1e-9, atol=1e-9)


def with_the_mean_of_all(original, objective, change):
    changed = original(objective, change)
    changed._residuals = changed._residuals - changed._residuals.mean()
    return changed


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("Estimator", ALL)
def test_a_record_moves_no_release_for_intervals_by_more_than_charged(
    Estimator, relation, monkeypatch
):
    pair = records_at_the_bounds(relation)
    # With two columns the budget is large enough under every relation.
    options = {"inference_fraction": 0.5, "fit_intercept": relation != "replace_one"}
    assert most_moved(Estimator, relation, *pair, target_bounds=(0, 4), **options) <= 1.0
    planted = partial(with_the_mean_of_all, Objective.with_residuals)
    monkeypatch.setattr(Objective, "with_residuals", lambda *given: planted(*given))
    assert most_moved(Estimator, relation, *pair, target_bounds=(0, 4), **options) > 1.0
