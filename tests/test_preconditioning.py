"""Private whitening: its share of the budget, its noise, and the basis that follows."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from dpglm import (
    DecayingClip,
    DiagonalPreconditioner,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    Geometric,
    Schedule,
    seeded_noise,
)
from dpglm.audit import record
from dpglm.datasets import make_census
from dpglm.estimators import descent
from dpglm.estimators.solvers import Space
from dpglm.estimators.whitening import (
    DEFAULT_ROW_BOUND,
    check_preconditioner,
    denoised_moment,
    unit_sizes,
    whiten,
)
from dpglm.losses import Logistic
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import GaussianSum, Vault
from dpglm.sums.objective import Objective

BOTH = [DiagonalPreconditioner(), FullPreconditioner()]
SETTING = {"max_iter": 20, "clip_schedule": 0.5, "noise_schedule": 1.0, "step_schedule": 1.0}
PRIVATE_COUNT = {"neighboring_relation": "add_or_remove_one", "n_ref": 1000}


def plan_of(preconditioner, shape=(1000, 10), **changes):
    model = DPLogisticRegression(preconditioner=preconditioner, **{**SETTING, **changes})
    return model.plan(*shape)


@pytest.mark.parametrize("relation", [{}, {"neighboring_relation": "replace_one"}, PRIVATE_COUNT])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
def test_moment_and_gradients_share_the_budget_exactly(preconditioner, relation):
    schedules = {"clip_schedule": DecayingClip(1.0), "noise_schedule": Geometric(1.0, 0.98)}
    plan = plan_of(preconditioner, **schedules, **relation)
    budget = plan.budget
    events = [event for event, count in plan.ledger.events for _ in range(count)]
    multipliers = plan.second_moment.noise_multipliers
    assert len(multipliers) == (2 if preconditioner.diagonal else 3)
    assert [e.noise_multiplier for e in events] == multipliers + plan.noise_multiplier.tolist()
    lengths, *moments = events[: len(multipliers)]
    spent = sum(event.mu**2 for event in moments)
    assert spent == pytest.approx(preconditioner.share * budget.mu**2, rel=1e-12)
    scale_share = plan.second_moment.scale_share
    assert lengths.mu**2 == pytest.approx(scale_share * budget.mu**2, rel=1e-12)
    assert plan.ledger.mu() == pytest.approx(budget.mu, rel=1e-12)
    assert plan.ledger.epsilon() <= 1.0


class Recorder(Schedule):
    def __init__(self):
        self.told = []

    def values(self, n_iter, facts):
        self.told.append(facts)
        return np.full(n_iter, 2.0 if facts.effective_dimension else 1.0)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_whitened_plan_follows_the_released_dimension_at_the_noise_fixed_in_advance(relation):
    clip, step = Recorder(), Recorder()
    shape = {"clip_schedule": clip, "step_schedule": step, "neighboring_relation": relation}
    plan = plan_of(FullPreconditioner(row_bound=DEFAULT_ROW_BOUND), **shape)
    whitened = plan.in_whitened_space(16.0)
    assert_array_equal(whitened.noise_multiplier, plan.noise_multiplier)
    assert whitened.ledger == plan.ledger
    assert (whitened.clip == 8.0).all() and (plan.clip == 1.0).all()
    assert (whitened.sensitivity == (16.0 if relation == "replace_one" else 8.0)).all()
    assert_allclose(whitened.facts.noise_std, plan.noise_multiplier * whitened.sensitivity)
    assert (whitened.step == 2.0).all() and (plan.step == 1.0).all()
    assert [facts.effective_dimension for facts in clip.told] == [None, 16.0]
    assert_array_equal(step.told[-1].clip, whitened.clip)
    assert plan.facts.mu == pytest.approx(plan.budget.mu * math.sqrt(0.85))
    assert "one second moment, then 20 iterations" in str(plan)


def whitening_of(objective, plan, seed=0):
    """What a fit would find, in the vault that it would open."""
    vault = Vault(objective, plan.ledger.events, plan.budget, entropy_source(seed))
    space = Space(Logistic(), plan.facts.n_features, 1, objective._fit_intercept)
    return whiten(vault, plan, space)[2]


def objective_of(X, fit_intercept=True):
    return Objective(X, np.ones(len(X)), Logistic(), fit_intercept=fit_intercept)


def nobody(*shape):
    """Null records: rows whose norm overflows."""
    return np.full(shape, 1e200)


def test_off_diagonal_entries_get_half_of_the_variance():
    plan = plan_of(FullPreconditioner(row_bound=1.0), shape=(100, 39))
    whitening = whitening_of(objective_of(nobody(100, 39)), plan)
    noise = whitening.moment * 100 / whitening.noise_std
    assert noise[np.triu_indices(40, 1)].std() == pytest.approx(math.sqrt(0.5), rel=0.08)
    assert np.diag(noise).std() == pytest.approx(1.0, rel=0.35)


def test_whitened_features_have_the_identity_as_their_second_moment():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(3000, 5)) @ rng.uniform(-1, 1, size=(5, 5))
    plan = plan_of(FullPreconditioner(row_bound=20.0), shape=X.shape, epsilon=math.inf)
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


@pytest.mark.filterwarnings("ignore::dpglm.PrivacyWarning")
@pytest.mark.parametrize("epsilon", [1.0, 20.0, 200.0])
@pytest.mark.parametrize("Model", [DPLogisticRegression, DPLinearSVM])
@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
def test_the_basis_is_a_function_of_released_values_alone(
    preconditioner, Model, epsilon, monkeypatch
):
    """Recomputed from the noisy moment and the noise's standard deviation."""
    X = make_census(2000, random_state=0)[0]
    curvature = 0.25 if Model is DPLogisticRegression else 1.0
    given = {"preconditioner": clone(preconditioner).set_params(damping=1.5), "alpha": 0.01}
    model, spaces = Model(epsilon=epsilon, max_iter=1, **given), []
    descend = descent.noisy_gradient_descent
    monkeypatch.setattr(
        descent, "noisy_gradient_descent", lambda *a: spaces.append(a[2]) or descend(*a)
    )
    # Seeded, as in one fit of 1000 noise alone looks like a magnitude, and a column is scaled.
    with record() as recorded, seeded_noise(0):
        whitening = model.fit(X, np.arange(2000) % 2).trace_.whitening
    d = X.shape[1] + 1
    shift, ridge, signal = np.eye(d), 1.5, model.plan(*X.shape).signal
    if not preconditioner.diagonal:
        *sums, count = recorded.releases[-3].answer
        noise = 2 * recorded.releases[-3].sensitivity * recorded.releases[-3].event.noise_multiplier
        count = np.clip(2000, count - noise, count + noise)
        shift[-1, :-1] = -np.array(sums) / max(count, 200)
        most = 5.5 * curvature**0.5
        ridge = 1.5 * max(1.0, min(most, 7.7 * d**1.5 / signal))
        assert (ridge == 1.5 * most, ridge == 1.5) == (epsilon < 2, epsilon > 100)
    penalty = np.append(np.full(d - 1, 0.01 / curvature), 0.0)
    noise = whitening.noise_std / 2000
    # the intercept's mean square is the part of the moment that clipping the rows has left
    kept = np.clip(whitening.moment.flat[-1], noise, 1.0)
    moment, noise = shift.T @ whitening.moment @ shift / kept, noise / kept
    if preconditioner.diagonal:
        positive = np.maximum(moment, 0)
        whole = positive + ridge * noise + penalty
        assert_allclose(whitening.basis, whole**-0.5, rtol=1e-12)
        dimension = (positive / whole).sum()
    else:
        positive = denoised_moment(moment, noise)
        whole = positive + ridge * noise * np.eye(d) + np.diag(penalty)
        basis = np.linalg.solve(shift, whitening.basis)
        inverse = basis @ basis.T
        # Rounding, where noise has made the mean large: errors of its square, by the inverse.
        assert_allclose(inverse @ whole, np.eye(d), atol=1e-6)
        dimension = np.trace(np.linalg.solve(whole, positive))
        strength = 0.045 / curvature * 1.5 * most * noise * max(0.0, 1 - 40 * dimension / signal)
        assert (spaces[0].prior or [0.0])[0] == pytest.approx(strength, rel=1e-6)
        assert strength > 0 or epsilon < 2
    assert whitening.effective_dimension == pytest.approx(dimension, rel=1e-6)


def test_small_numbers_are_told_from_rare_ones_by_their_mean():
    rng = np.random.default_rng(0)
    rare, common, small = rng.random((3, 20_000)) < [[0.001], [0.3], [0.5]]
    X = np.column_stack([rare, common, small / 20, np.ones(20_000)]).astype(float)
    exact = X.T @ X / 20_000
    assert_allclose(unit_sizes(exact, 1e-9), [1.0, 1.0, 0.05, 1.0], rtol=1e-3)
    # where neither rare nor small can be seen by their mean squares
    assert_allclose(unit_sizes(exact, 0.003), [1.0, 1.0, 0.17, 1.0], atol=0.01)
    assert_allclose(unit_sizes(exact, 10.0), 1.0)


def test_the_effective_dimension_is_never_below_one():
    """One column of nothing but noise, which is negative for some seeds."""
    plan = plan_of(DiagonalPreconditioner(), shape=(1000, 1), fit_intercept=False)
    objective = objective_of(nobody(1000, 1), fit_intercept=False)
    for seed in range(10):
        whitening = whitening_of(objective, plan, seed)
        assert whitening.effective_dimension == 1.0 and whitening.basis > 0


def test_columns_of_nothing_but_noise_hardly_count():
    """Of 20,000 of them a fifth would, as the positive ones alone say; so they do in few."""

    def dimensions(n_columns):
        X = np.zeros((1000, n_columns))
        X[:, :10] = 0.8
        plan = plan_of(DiagonalPreconditioner(), shape=X.shape, epsilon=5.0)
        return [whitening_of(objective_of(X), plan, s).effective_dimension for s in range(3)]

    wide, narrow = dimensions(20_000), dimensions(100)
    assert min(wide) >= 1 and max(wide) < 400
    assert min(narrow) > 20 and max(narrow) < 40


@pytest.mark.parametrize("preconditioner", BOTH, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("relation", [{}, PRIVATE_COUNT])
def test_the_slack_of_the_summation_is_in_the_noise(preconditioner, relation):
    """With a private number of records, for far more of them than the public stand-in."""
    X = np.random.default_rng(0).normal(size=(1000, 10))
    bounded = type(preconditioner)(row_bound=DEFAULT_ROW_BOUND)
    plan, objective = (
        plan_of(bounded, fit_intercept=False, **relation),
        objective_of(X, fit_intercept=False),
    )
    whitening = whitening_of(objective, plan)
    release, size = plan.second_moment, 10 if preconditioner.diagonal else 55
    (noise_multiplier,) = release.noise_multipliers
    without = GaussianSum(DEFAULT_ROW_BOUND**2, noise_multiplier).noise_std(size)
    largest = 16_000 if relation else 1000
    slack = objective.moment_rounding(largest) * release.row_bound**2
    assert slack > 0
    expected = without + noise_multiplier * slack
    assert whitening.noise_std == pytest.approx(expected, rel=1e-15)
    assert whitening.noise_std > without


def test_the_slack_of_a_sum_around_a_mean_is_in_the_noise():
    plan = plan_of(FullPreconditioner(row_bound=DEFAULT_ROW_BOUND))
    objective = objective_of(np.random.default_rng(0).normal(size=(1000, 10)))
    vault = Vault(objective, plan.ledger.events, plan.budget, entropy_source(0))
    centre, (first, second) = np.eye(11), plan.second_moment.noise_multipliers
    centre[-1, :-1] = -0.5
    vault.row_sum(DEFAULT_ROW_BOUND, first)
    vault.change_basis(centre)
    vault.second_moment(2.0, second, diagonal=False)
    slack = objective.in_basis(centre).moment_rounding(1000)
    assert slack > 2 * objective.moment_rounding(1000)
    expected = GaussianSum(4.0, second).noise_std(66) + second * slack * 4.0
    assert vault.log[-1].noise_scale == pytest.approx(expected, rel=1e-15)


def test_a_preconditioner_of_ones_own_is_refused():
    class Louder(DiagonalPreconditioner):
        def whitened(self, moment, noise, ridge):
            return super().whitened(1000 * moment, noise, ridge)

    with pytest.raises(TypeError, match="is not a preconditioner"):
        check_preconditioner(Louder())


def test_names_and_objects_mean_the_same():
    assert check_preconditioner(None) is None
    given = FullPreconditioner(share=0.3)
    assert check_preconditioner(given) is given
    assert check_preconditioner("full").get_params() == FullPreconditioner().get_params()
    assert isinstance(check_preconditioner("diagonal"), DiagonalPreconditioner)
