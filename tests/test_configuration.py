"""The automatic configuration: what it may depend on, and that it is safe without tuning."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dpglm import (
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    PrivacyBudget,
    PublicFacts,
)
from dpglm.datasets import make_census
from dpglm.estimators.descent import automatic_configuration
from dpglm.estimators.whitening import denoised_moment
from dpglm.losses import SmoothedHinge
from dpglm.schedules import (
    Constant,
    SignalClip,
    SignalMomentum,
    SignalStep,
    averaging_weights,
    check_momentum,
    optimal_n_iter,
    public_constants,
)

ESTIMATORS = [DPLogisticRegression, DPLinearSVM]
AUTOMATIC = (
    "noise_schedule", "clip_schedule", "step_schedule", "momentum", "averaging", "preconditioner",
    "max_iter",
)  # fmt: skip


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_every_parameter_of_the_run_is_automatic_by_default_and_stays_so(Estimator):
    model = Estimator(classes=[0, 1]).fit(*make_census(300, random_state=0))
    parameters = model.get_params()
    assert {parameters[name] for name in AUTOMATIC} == {"auto"}
    named = {name: parameters[name] for name in AUTOMATIC}
    plan = Estimator(**named).plan(300, 9)
    assert plan.ledger == Estimator().plan(300, 9).ledger
    assert isinstance(plan.second_moment.preconditioner, FullPreconditioner)
    assert model.n_iter_ == plan.n_iter
    assert Estimator(**(named | {"max_iter": 7})).plan(300, 9).n_iter == 7


@pytest.mark.parametrize("Estimator", ESTIMATORS)
@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
def test_the_plan_of_the_defaults_needs_no_data_and_spends_the_whole_budget(Estimator, relation):
    n_ref = 400 if relation == "add_or_remove_one" else None
    model = Estimator(neighboring_relation=relation, n_ref=n_ref, classes=[0, 1])
    plan = model.plan(400, 99)
    assert plan.ledger.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    assert plan.ledger.n_releases == len(plan.second_moment.parts) + 22 == 2 + 22
    assert model.fit(*make_census(400, random_state=0)).privacy_ == plan.ledger


def facts_of(dimension=None, curvature=0.25, n_columns=50):
    return PublicFacts(
        n_samples=1000, n_features=n_columns, curvature=curvature, effective_dimension=dimension
    )


def test_clip_and_step_grow_with_the_signal_up_to_a_limit():
    clips = [SignalClip(s).values(4, facts_of(10.0))[0] for s in (10, 100, 1000, 10_000, math.inf)]
    steps = [SignalStep(s).values(20, facts_of(10.0))[0] for s in (1, 10, 100, 10_000, math.inf)]
    assert clips == sorted(clips) and steps == sorted(steps)
    assert clips[-1] == clips[-2] == 1.0 and steps[-1] == steps[-2] == 3.5
    assert clips[0] == pytest.approx((1 / 200) ** (1 / 3))
    # At least .8 from an snr of 12 on, a quarter of that at 3; .2 and less is below the other.
    least = [SignalClip(s, least=0.8).values(1, facts_of(10.0))[0] for s in (30, 60, 120, 1e9)]
    assert least == pytest.approx([(3 / 200) ** (1 / 3), 0.4, 0.8, 1.0])


def test_a_hinge_loss_has_a_larger_clip():
    clips = [
        np.unique(Model(epsilon=0.5).plan(10_000, 50).in_whitened_space(25.0).clip / 5.0)
        for Model in (DPLogisticRegression, DPLinearSVM)
    ]
    signal = DPLinearSVM(epsilon=0.5).plan(10_000, 50).signal
    assert clips == [pytest.approx((signal / 25 / 200) ** (1 / 3)), pytest.approx(0.75)]


def end_of_run(n_iter, signal, gradient):
    """Where the mean of the last half of the iterates is, given the gradient at each."""
    steps, facts = SignalStep(signal), facts_of(10.0)
    momentum = SignalMomentum(steps).settled(n_iter, facts)
    coef = velocity = average = np.zeros(1)
    for t, step in enumerate(steps.values(n_iter, facts)):
        direction, velocity = momentum.direction(gradient(coef), velocity, t + 1)
        coef = coef - step * direction
        average = average + averaging_weights("tail", n_iter)[t] * coef
    return average[0], momentum.coefficient


@pytest.mark.parametrize("signal", [10, 100, 300, 700])
@pytest.mark.parametrize("n_iter", [22, 40, 99, 400])
def test_the_way_is_the_same_in_any_number_of_steps_with_as_little_momentum_as_it_takes(
    n_iter, signal
):
    end, coefficient = end_of_run(n_iter, signal, lambda coef: -np.ones(1))
    assert end == pytest.approx(4.4 * (signal / 10) ** 0.75, rel=1e-9)
    first = SignalStep(signal).values(n_iter, facts_of(10.0))[0]
    assert (coefficient == 0) == (first < 3.5 - 1e-9) and 0 <= coefficient < 1


@pytest.mark.parametrize("n_iter", [22, 40, 100])
def test_the_run_comes_to_rest_where_the_loss_is_curved_most(n_iter):
    # 1/4 is the largest curvature of the logistic loss in a white direction, and -1 its minimum.
    end, coefficient = end_of_run(n_iter, 1e9, lambda coef: 0.25 * (coef + 1))
    assert end == pytest.approx(-1, abs=0.01)
    assert coefficient <= 1


def test_the_released_dimension_replaces_the_number_of_columns():
    for schedule in (SignalClip(300.0), SignalStep(300.0)):
        before, after = (schedule.values(30, facts_of(d)) for d in (None, 12.5))
        assert (after > before).all()
        assert_array_equal(before, schedule.values(30, facts_of(50.0)))


def test_steeper_losses_take_shorter_steps_and_the_plain_hinge_is_stepped_like_its_smooth_form():
    step = SignalStep(300.0)

    def first(curvature):
        return step.values(10, facts_of(10.0, curvature))[0]

    assert first(0.5) / first(0.25) == pytest.approx(2 ** (-1 / 3))
    default = SmoothedHinge(DPLinearSVM().half_width).curvature
    assert first(default) == first(math.inf) < first(0.5)
    values = step.values(10, facts_of(10.0))
    assert_allclose(np.diff(values), -values[0] / 20)


def test_steps_and_momentum_go_together_only_where_both_are_automatic():
    def run(**given):
        chosen = automatic_configuration(1e9, 50, **given)
        first = chosen["step_schedule"].values(22, facts_of(10.0))[0]
        return first, check_momentum(chosen["momentum"]).settled(22, facts_of(10.0)).coefficient

    assert run() == (3.5, 1.0)
    assert run(momentum=0.3) == (3.5, 0.3)
    assert run(step_schedule=Constant(9.0)) == (9.0, 0.5)
    # In a space that is not white: shorter steps, more of them.
    assert run(preconditioner=None)[0] == run(preconditioner="diagonal")[0] == 1.5
    assert automatic_configuration(10.0, 50, preconditioner=None)["max_iter"] == 100
    assert automatic_configuration(10.0, 50, sampling_rate=0.1)["max_iter"] == 100
    for Model in (DPLogisticRegression, DPLinearSVM):
        assert Model(sampling_rate=0.1).plan(1000, 50).n_iter == 100


def test_replacing_a_record_halves_the_signal():
    zero_out = DPLogisticRegression().plan(5000, 40)
    replace_one = DPLogisticRegression(neighboring_relation="replace_one").plan(5000, 40)
    assert replace_one.clip_schedule.signal == pytest.approx(zero_out.clip_schedule.signal / 2)
    signal = 5000 * zero_out.ledger.mu()
    assert zero_out.clip_schedule.signal == pytest.approx(signal, rel=1e-9)


def test_more_columns_get_more_iterations():
    numbers = [automatic_configuration(1e6, p)["max_iter"] for p in (1, 110, 252, 512, 513)]
    assert numbers == [22, 23, 34, 40, 100]


def test_wide_data_get_the_diagonal():
    def diagonal(n_columns):
        return automatic_configuration(1e6, n_columns)["preconditioner"].diagonal

    assert [diagonal(d) for d in (1, 512, 513, 10**5)] == [False, False, True, True]


# --- Denoising ---


def spiked(rng, d, noise, spikes):
    vectors = np.linalg.qr(rng.normal(size=(d, len(spikes))))[0]
    clean = (vectors * spikes) @ vectors.T
    matrix = rng.normal(scale=noise / math.sqrt(2), size=(d, d))
    matrix = np.triu(matrix, 1)
    return clean, clean + matrix + matrix.T + np.diag(rng.normal(scale=noise, size=d))


def test_directions_beyond_the_noise_are_kept_at_their_own_size():
    rng = np.random.default_rng(0)
    d, noise = 400, 0.05
    edge = noise * math.sqrt(2 * d)
    clean, noisy = spiked(rng, d, noise, np.array([4 * edge, 2 * edge]))
    values = np.linalg.eigvalsh(denoised_moment(noisy, noise))[-2:]
    assert_allclose(values, [2 * edge, 4 * edge], rtol=0.02)
    assert np.linalg.eigvalsh(noisy)[-2] > 1.05 * 2 * edge
    error = np.linalg.norm(denoised_moment(noisy, noise) - clean)
    assert error < np.linalg.norm(noisy - clean) / 2


def test_noise_alone_leaves_a_diagonal():
    _, noisy = spiked(np.random.default_rng(1), 300, 1.0, np.array([]))
    kept = denoised_moment(noisy, 1.05)
    assert_array_equal(kept, np.diag(np.maximum(np.diag(noisy), 0.0)))


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_the_denoised_moment_is_positive_semidefinite_and_scales_with_its_input(noise):
    rng = np.random.default_rng(2)
    _, noisy = spiked(rng, 30, noise, np.array([9.0, 1.0, 0.1]))
    kept = denoised_moment(noisy, noise)
    assert np.linalg.eigvalsh(kept)[0] > -1e-12
    assert_allclose(denoised_moment(7 * noisy, 7 * noise), 7 * kept, rtol=1e-9, atol=1e-9)
    if noise == 0.0:
        assert_allclose(kept, noisy, atol=1e-12)


# --- Shortened rows ---


@pytest.mark.parametrize("preconditioner", ["full", "diagonal"])
def test_the_intercept_tells_by_how_much_rows_were_shortened(preconditioner):
    """Rows of norm 30 under a row bound of 3: the whitened space has the scale of the rows."""
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], size=(20_000, 9)) * 10
    model = DPLogisticRegression(preconditioner=preconditioner, max_iter=1, epsilon=math.inf)
    basis = model.fit(X, np.arange(20_000) % 2).trace_.whitening.basis
    rows = np.column_stack([X, np.ones(20_000)])
    whitened = rows * basis if basis.ndim == 1 else rows @ basis
    assert np.mean(whitened**2) == pytest.approx(1.0, rel=1e-3)


# --- Safe without tuning ---


def test_the_defaults_learn_a_census_at_a_small_budget():
    """Most of what can be learned: .76 is the majority and .85 the optimum."""
    X, y = make_census(random_state=0)
    model = DPLogisticRegression(epsilon=0.2, delta=1e-8, classes=[0, 1]).fit(X, y)
    assert model.score(X, y) > 0.835


HONG = {
    "alpha": 1e-3, "row_bound": 1.0, "clip_schedule": 1.0, "delta": 1e-5, "fit_intercept": False,
    "preconditioner": None, "step_schedule": "smooth", "max_iter": "optimal",
}  # fmt: skip


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_length_noise_and_steps_of_hong_follow_from_public_numbers(relation):
    """Adult's size: kappa = 251; under replace_one the noise is twice as large."""
    model = DPLogisticRegression(**HONG, neighboring_relation=relation)
    budget = PrivacyBudget(1.0, 1e-5)
    facts = PublicFacts(48842, 124, alpha=1e-3, curvature=0.25, row_bound=1.0, mu=budget.mu)
    kappa, noise = public_constants(facts)
    noise *= 4 if relation == "replace_one" else 1
    for schedule in ("constant", "dynamic"):
        plan = model.set_params(noise_schedule=schedule).plan(48842, 124)
        dynamic = schedule == "dynamic"
        assert plan.n_iter == optimal_n_iter(kappa, noise, dynamic=dynamic)
        assert plan.step == pytest.approx(np.full(plan.n_iter, 1 / 0.251))
        ratios = plan.noise_multiplier[:-1] / plan.noise_multiplier[1:]
        assert ratios == pytest.approx((1 - 1 / kappa) ** (-0.25 * dynamic) * np.ones(len(ratios)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "max_iter='optimal' .* positive alpha, got 0.0"),
        ({"row_bound": None}, "max_iter='optimal' .* finite row_bound, got None"),
        ({"row_bound": -1.0}, "row_bound=-1.0 must be a number above 0"),
        ({"preconditioner": "full"}, "unknown after a preconditioner"),
        ({"epsilon": math.inf}, "mu=inf must be positive and finite"),
        ({"sampling_rate": 0.5}, "no sampling_rate"),
        ({"max_iter": "best"}, "max_iter='best' must be a whole number"),
        ({"max_iter": 5, "row_bound": None}, "step_schedule=.*finite row_bound, got None"),
        ({"max_iter": 5, "alpha": 0.0, "noise_schedule": "dynamic"}, r"DynamicNoise\(decay=4.0\)"),
    ],
)
def test_what_these_need_is_asked_for_before_any_data(change, message):
    with pytest.raises(ValueError, match=message):
        DPLogisticRegression(**{**HONG, **change}).plan(1000, 5)
