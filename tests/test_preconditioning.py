"""Private whitening: its share of the budget, its noise, and the basis that follows."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from tapes import record

from dpglm import DiagonalPreconditioner, DPLinearSVM, DPLogisticRegression, FullPreconditioner
from dpglm.datasets import make_census
from dpglm.estimators import defaults, descent
from dpglm.estimators.solvers import Coordinates
from dpglm.estimators.whitening import (
    check_preconditioner,
    column_units,
    denoised_moment,
    row_unit,
    whiten,
)
from dpglm.losses import Logistic
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import GaussianSum, Vault
from dpglm.schedules import DecayingClip, ExponentialDecay, Schedule
from dpglm.sums.objective import Objective

BOTH = [DiagonalPreconditioner(), FullPreconditioner()]
SETTING = {"max_iter": 20, "clip_schedule": 0.5, "noise_schedule": 1.0, "step_schedule": 1.0}
PRIVATE_COUNT = {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 1000}


def plan_of(preconditioner, shape=(1000, 10), **changes):
    model = DPLogisticRegression(preconditioner=preconditioner, **{**SETTING, **changes})
    return model.plan(*shape)


@pytest.mark.parametrize("relation", [{}, {"neighboring_relation": "replace_one"}, PRIVATE_COUNT])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(("epsilon", "counts"), [(1.0, "norm"), (8.0, "magnitude")])
def test_all_releases_share_the_budget_exactly(preconditioner, relation, epsilon, counts):
    schedules = {"clip_schedule": DecayingClip(1.0), "noise_schedule": ExponentialDecay(1.0, 0.98)}
    plan = plan_of(preconditioner, **schedules, **relation, epsilon=epsilon)
    first, mu = plan.first, plan.budget.mu
    fractions = {f"{counts} histogram": defaults.UNITS_FRACTION, "second moment": 0.15}
    assert [(release.name, release.fraction) for release in first] == list(fractions.items())
    events = [event for event, count in plan.ledger.events for _ in range(count)]
    multipliers = [*(release.noise_multiplier for release in first), *plan.noise_multiplier]
    assert [e.noise_multiplier for e in events] == multipliers
    costs = [event.mu**2 / mu**2 for event in events]
    assert costs[:2] == pytest.approx(list(fractions.values()), rel=1e-12)
    left = 1 - sum(fractions.values())
    assert sum(costs[2:]) == pytest.approx(left, rel=1e-12)
    assert plan.metadata.mu == pytest.approx(mu * math.sqrt(left), rel=1e-12)
    assert plan.ledger.mu() == pytest.approx(mu, rel=1e-12)
    assert plan.ledger.epsilon() <= epsilon


class Recorder(Schedule):
    def __init__(self):
        self.told = []

    def values(self, n_iter, metadata):
        self.told.append(metadata)
        return np.full(n_iter, 2.0 if metadata.effective_dimension else 1.0)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_whitened_plan_follows_the_released_dimension_at_the_noise_fixed_in_advance(relation):
    clip, step = Recorder(), Recorder()
    shape = {"clip_schedule": clip, "step_schedule": step, "neighboring_relation": relation}
    plan = plan_of(FullPreconditioner(row_clipping_norm=defaults.ROW_NORM), **shape)
    whitened = plan.renewed(effective_dimension=16.0)
    assert_array_equal(whitened.noise_multiplier, plan.noise_multiplier)
    assert whitened.ledger == plan.ledger
    assert (whitened.clip == 8.0).all() and (plan.clip == 1.0).all()
    assert (whitened.sensitivity == (16.0 if relation == "replace_one" else 8.0)).all()
    assert_allclose(whitened.metadata.noise_std, plan.noise_multiplier * whitened.sensitivity)
    assert (whitened.step == 2.0).all() and (plan.step == 1.0).all()
    assert [metadata.effective_dimension for metadata in clip.told] == [None, 16.0]
    assert_array_equal(step.told[-1].clip, whitened.clip)
    assert plan.metadata.mu == pytest.approx(
        plan.budget.mu * math.sqrt(1 - defaults.MOMENT_FRACTION)
    )
    assert "second moment (correlations of features), then 20 iterations" in plan.statement


def whitening_of(objective, plan, seed=0):
    """What a fit would find, in the vault that it would open."""
    vault = Vault(objective, plan.ledger.events, plan.budget, entropy_source(seed))
    space = Coordinates(Logistic(), plan.metadata.n_features, 1, objective._fit_intercept)
    return whiten(vault, plan, space)[2]


def objective_of(X, fit_intercept=True):
    return Objective(X, np.ones(len(X)), Logistic(), fit_intercept=fit_intercept)


def nobody(*shape):
    """Null records: rows whose norm overflows."""
    return np.full(shape, 1e200)


def test_whitened_features_have_the_identity_as_their_second_moment():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(3000, 5)) @ rng.uniform(-1, 1, size=(5, 5))
    plan = plan_of(FullPreconditioner(row_clipping_norm=20.0), shape=X.shape, epsilon=math.inf)
    whitening = whitening_of(objective_of(X), plan)
    rows = np.column_stack([X, np.ones(3000)])
    assert_allclose(whitening.moment, rows.T @ rows / 3000, rtol=1e-12, atol=1e-12)
    # up to the least ridge, 400 times 2^-30
    again = (rows @ whitening.basis).T @ (rows @ whitening.basis) / 3000
    assert_allclose(again, np.eye(6), atol=1e-4)
    assert whitening.effective_dimension == pytest.approx(6.0, abs=1e-4)


def test_rounding_moves_the_basis_by_no_more_than_rounding():
    # All eigenvalues are equal, as those of columns that hide in the noise are: eigenvectors are
    # any, and with them would be the noise of a seeded fit on another processor.
    rng = np.random.default_rng(0)
    off = rng.standard_normal((6, 6))
    moments = np.eye(6), np.eye(6) + 1e-14 * (off + off.T)
    bases = [FullPreconditioner().whitened(m, 1e-3, np.ones(6))[0] for m in moments]
    assert_allclose(*bases, atol=1e-12)


@pytest.mark.filterwarnings("ignore::dpglm.exceptions.UtilityWarning")
@pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")
@pytest.mark.parametrize(
    ("epsilon", "unit"), [(1.0, 1.0), (1.0, 2.0**9), (20.0, 1.0), (200.0, 2.0**9)]
)
@pytest.mark.parametrize("Model", [DPLogisticRegression, DPLinearSVM])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
def test_the_basis_is_a_function_of_released_values_alone(
    preconditioner, Model, epsilon, unit, monkeypatch
):
    X = make_census(2000, random_state=0)[0] * unit
    curvature = 0.25 if Model is DPLogisticRegression else 1.0
    given = {"preconditioner": clone(preconditioner), "alpha": 0.01}
    model, spaces = Model(epsilon=epsilon, max_iter=1, **given), []
    descend = descent.noisy_gradient_descent
    monkeypatch.setattr(
        descent, "noisy_gradient_descent", lambda *a: spaces.append(a[2]) or descend(*a)
    )
    with record() as recorded:
        whitening = model.fit(X, np.arange(2000) % 2).trace_.whitening
    d, n_mu = X.shape[1] + 1, model.plan(*X.shape).n_mu
    counts, moment, _ = recorded.releases
    noises = [r.sensitivity * r.event.noise_multiplier / 2000 for r in recorded.releases]
    # 1) Units and middles.
    shift = np.eye(d)
    if epsilon == 1.0:
        scale, bound = row_unit(counts.answer / 2000, noises[0], n_mu)
        scales = np.append(np.full(d - 1, scale), 1.0)
    else:
        scales, middles = column_units(counts.answer, 2000 * noises[0], 2000)
        scales, bound = np.append(scales[:-1], 1.0), defaults.ROW_NORM
        shift[-1, :-1] = 0.0 if preconditioner.diagonal else -middles[:-1]
        assert np.abs(middles).max() > 0.3 and (unit == 1.0 or scales.min() <= 1 / unit)
    assert_array_equal(whitening.scales, scales)
    each = bound**2 * (math.sqrt(2) if model.neighboring_relation == "replace_one" else 1.0)
    assert moment.sensitivity == pytest.approx(each, rel=1e-6)
    # 2) The moment: the intercept's mean square is the part that clipping the rows has left.
    noise = whitening.noise_std / 2000
    kept = np.clip(whitening.moment.flat[-1], noise, 1.0)
    moment, noise = whitening.moment / kept, noise / kept
    penalty = np.append(0.01 / curvature * scales[:-1] ** 2, 0.0)
    # 3) The basis.
    if preconditioner.diagonal:
        positive = np.maximum(moment, 0)
        whole = positive + noise + penalty
        assert_allclose(whitening.basis / scales, whole**-0.5, rtol=1e-12)
        shown = moment / (np.abs(moment) + noise + penalty)
        # Where noise cancels in the sum of all, most columns hold nothing else.
        dimension, above = shown[shown > 0].sum(), shown.sum() + 2 * np.linalg.norm(shown)
        mostly_noise = dimension > defaults.MOSTLY_NOISE * max(above, 1.0)
        dimension = max(1.0, above if mostly_noise else dimension)
        assert spaces[0].prior is None
    else:
        positive = denoised_moment(shift.T @ moment @ shift, noise)
        whole = positive + noise * np.eye(d) + np.diag(penalty)
        basis = np.linalg.solve(shift, whitening.basis / scales[:, np.newaxis])
        # Rounding: errors of its square, by the inverse.
        assert_allclose(basis @ basis.T @ whole, np.eye(d), atol=1e-6)
        dimension = max(1.0, np.trace(np.linalg.solve(whole, positive)))
        strength, sizes = spaces[0].prior
        saturation = min(1.0, n_mu / dimension / defaults.SATURATION_SNR)
        expected = defaults.PRIOR_FRACTION * saturation * noise
        assert strength == pytest.approx(expected, rel=1e-6)
        assert_array_equal(sizes, np.append(defaults.CAUCHY_SCALE * scales[:-1], math.inf))
    assert whitening.effective_dimension == pytest.approx(dimension, rel=1e-6)


def test_the_effective_dimension_is_never_below_one():
    plan = plan_of(DiagonalPreconditioner(), shape=(1000, 1), fit_intercept=False)
    objective = objective_of(nobody(1000, 1), fit_intercept=False)
    for seed in range(10):
        whitening = whitening_of(objective, plan, seed)
        assert whitening.effective_dimension == 1.0 and whitening.basis > 0


def test_columns_of_nothing_but_noise_hardly_count():
    def dimensions(n_columns):
        X = np.zeros((1000, n_columns))
        X[:, :10] = 0.8
        plan = plan_of(DiagonalPreconditioner(), shape=X.shape, epsilon=5.0)
        return [whitening_of(objective_of(X), plan, s).effective_dimension for s in range(2)]

    wide, narrow = dimensions(10_000), dimensions(100)
    assert min(wide) >= 1 and max(wide) < 400
    assert min(narrow) > 20 and max(narrow) < 40


@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("relation", [{}, PRIVATE_COUNT])
def test_the_slack_of_the_summation_is_in_the_noise(preconditioner, relation):
    X = np.random.default_rng(0).normal(size=(1000, 10))
    bounded = type(preconditioner)(row_clipping_norm=defaults.ROW_NORM)
    plan, objective = (
        plan_of(bounded, fit_intercept=False, **relation),
        objective_of(X, fit_intercept=False),
    )
    whitening = whitening_of(objective, plan)
    (release,), size = plan.first, 10 if preconditioner.diagonal else 55
    noise_multiplier = release.noise_multiplier
    without = GaussianSum(defaults.ROW_NORM**2, noise_multiplier).noise_std(size)
    largest = 16_000 if relation else 1000
    slack = objective.moment_rounding(largest) * plan.preconditioner.row_clipping_norm**2
    assert slack > 0
    expected = without + noise_multiplier * slack
    assert whitening.noise_std == pytest.approx(expected, rel=1e-15)
    assert whitening.noise_std > without


def test_the_slack_of_a_moment_of_centered_rows_is_in_the_noise():
    plan = plan_of(FullPreconditioner(row_clipping_norm=defaults.ROW_NORM))
    objective = objective_of(np.random.default_rng(0).normal(size=(1000, 10)))
    vault = Vault(objective, plan.ledger.events, plan.budget, entropy_source(0))
    centre, multiplier = np.eye(11), plan.first[0].noise_multiplier
    centre[-1, :-1] = -0.5
    vault.change_basis(centre)
    vault.second_moment(3.0, multiplier, diagonal=False)
    slack = objective.in_basis(centre).moment_rounding(1000)
    assert slack > 2 * objective.moment_rounding(1000)
    expected = GaussianSum(9.0, multiplier).noise_std(66) + multiplier * slack * 9.0
    assert vault.log[-1].noise_scale == pytest.approx(expected, rel=1e-15)


def test_a_preconditioner_of_ones_own_is_refused():
    class Louder(DiagonalPreconditioner):
        def whitened(self, moment, noise, ridge):
            return super().whitened(1000 * moment, noise, ridge)

    with pytest.raises(TypeError, match="is not a preconditioner"):
        check_preconditioner(Louder())


def test_names_and_objects_mean_the_same():
    assert check_preconditioner(None) is None
    given = FullPreconditioner(budget_fraction=0.3)
    assert check_preconditioner(given) is given
    assert check_preconditioner("full").get_params() == FullPreconditioner().get_params()
    assert isinstance(check_preconditioner("diagonal"), DiagonalPreconditioner)
    model = clone(DPLogisticRegression(preconditioner=given))
    assert model.set_params(preconditioner__row_clipping_norm=0.5).preconditioner != given
    assert model.preconditioner.budget_fraction == 0.3 and given.row_clipping_norm is None


def test_dayone_ridges_sixteen_powers_of_ten_apart_leave_a_basis_that_whitens():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows, ridge = rng.normal(size=(3, 4)), 10.0 ** rng.permutation([-2.0, 0.0, 11.0, 16.0])
        moment = rows.T @ rows / 3
        basis, dimension = FullPreconditioner().whitened(moment, 0.02, ridge)
        whole = denoised_moment(moment, 0.02) + np.diag(ridge)
        assert_allclose(basis.T @ whole @ basis, np.eye(4), atol=1e-6)
        assert 0 <= dimension <= 4
