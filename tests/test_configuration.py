"""The automatic configuration: what it may depend on, and that it is safe without tuning."""

import inspect
import math
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
)
from dpglm.datasets import make_census
from dpglm.estimators import defaults, descent, whitening
from dpglm.estimators.defaults import (
    CLIPPING_POWER,
    MAX_STEP,
    N_ITER,
    N_ITER_PLAIN,
    SATURATION_SNR,
    TOTAL_STEP_PER_SNR,
)
from dpglm.estimators.whitening import automatic_configuration, denoised_moment
from dpglm.losses import SmoothedHinge
from dpglm.schedules import (
    HINGE_CURVATURE,
    AutoClippingNorm,
    AutoStepSize,
    BiasCorrectedMomentum,
    Constant,
    HeavyBall,
    NesterovMomentum,
    PublicMetadata,
    averaging_weights,
)

ESTIMATORS = [DPLogisticRegression, DPLinearSVM]


def facts_of(dimension=None, curvature=0.25, n_columns=50):
    return PublicMetadata(
        n_samples=1000, n_features=n_columns, curvature=curvature, effective_dimension=dimension
    )


def auto_clip(n_mu):
    return AutoClippingNorm(n_mu, SATURATION_SNR, CLIPPING_POWER)


def auto_steps(n_mu, momentum):
    return AutoStepSize(n_mu, momentum, TOTAL_STEP_PER_SNR, MAX_STEP, CLIPPING_POWER)


N_MU = [0.01, 1.0, 10.0, 100.0, 1000.0, 1e4, 1e5, math.inf]


@pytest.mark.parametrize("momentum", [NesterovMomentum(), HeavyBall(0.0), HeavyBall(0.9)], ids=str)
def test_clip_and_step_grow_with_n_mu_up_to_a_limit(momentum):
    clips = [auto_clip(n_mu).values(4, facts_of(10.0)) for n_mu in N_MU]
    steps = [auto_steps(n_mu, momentum).values(24, facts_of(10.0)) for n_mu in N_MU]
    for values, largest in ((clips, 1.0), (steps, MAX_STEP)):
        assert all((each == each[0]).all() for each in values)
        first = [each[0] for each in values]
        assert first == sorted(first) and 0 < first[0] < first[3] < largest
        assert first[-2:] == [largest, largest]
    saturated = 10 * SATURATION_SNR
    assert auto_clip(saturated).values(1, facts_of(10.0)) == [1.0]
    assert auto_clip(saturated / 8).values(1, facts_of(10.0)) == pytest.approx(8**-CLIPPING_POWER)


def end_of_run(n_iter, n_mu, gradient, momentum):
    coef = velocity = average = np.zeros(1)
    for t, step in enumerate(auto_steps(n_mu, momentum).values(n_iter, facts_of(10.0))):
        direction, velocity = momentum.direction(gradient(coef), velocity, t + 1)
        coef = coef - step * direction
        average = average + averaging_weights("tail", n_iter)[t] * coef
    return average[0]


@pytest.mark.parametrize("momentum", [NesterovMomentum(), HeavyBall(0.0), HeavyBall(0.6)], ids=str)
@pytest.mark.parametrize("n_iter", [12, N_ITER, 99])
def test_the_total_step_is_the_same_in_any_number_of_iterations(n_iter, momentum):
    for n_mu in (1.0, 10.0, 40.0):
        end = end_of_run(n_iter, n_mu, lambda coef: -np.ones(1), momentum)
        assert end == pytest.approx(TOTAL_STEP_PER_SNR * n_mu / 10, rel=1e-9)


def test_the_run_comes_to_rest_where_the_loss_is_curved_most():
    # 1/4 is the largest curvature of the logistic loss in a white direction, and -1 its minimum.
    end = end_of_run(N_ITER, 1e9, lambda coef: 0.25 * (coef + 1), NesterovMomentum())
    assert end == pytest.approx(-1, abs=0.05)


def test_steeper_losses_take_shorter_steps_and_the_plain_hinge_is_stepped_like_its_smooth_form():
    step = auto_steps(300.0, NesterovMomentum())

    def first(curvature):
        return step.values(10, facts_of(10.0, curvature))[0]

    assert first(0.5) / first(0.25) == pytest.approx(2**-CLIPPING_POWER)
    default = SmoothedHinge(DPLinearSVM().half_width).curvature
    assert default == HINGE_CURVATURE
    assert first(default) == first(math.inf) < first(0.5)


def test_acceleration_is_for_whitened_features_and_for_automatic_steps():
    def run(**given):
        chosen = automatic_configuration(1e9, 50, **given)
        first = chosen["step_schedule"].values(N_ITER, facts_of(10.0))[0]
        return first, type(chosen["momentum"]), chosen["max_iter"]

    assert run() == (MAX_STEP, NesterovMomentum, N_ITER)
    assert run(momentum=0.3) == (MAX_STEP, HeavyBall, N_ITER)
    assert run(step_schedule=Constant(9.0)) == (9.0, BiasCorrectedMomentum, N_ITER)
    # Columns are correlated elsewhere: more iterations, and no acceleration, which diverges.
    for correlated in ({"preconditioner": None}, {"preconditioner": "diagonal"}):
        assert run(**correlated) == (MAX_STEP, HeavyBall, N_ITER_PLAIN)
    assert run(sampling_rate=0.1) == (MAX_STEP, HeavyBall, N_ITER_PLAIN)
    # Steps are for the momentum that they are taken with.
    little = {name: automatic_configuration(10.0, 50, momentum=name) for name in (None, "nesterov")}
    steps = [run["step_schedule"].values(N_ITER, facts_of(10.0))[0] for run in little.values()]
    assert steps[0] > 2 * steps[1]
    for Model in ESTIMATORS:
        assert Model().plan(1000, 50).n_iter == N_ITER
        assert Model(sampling_rate=0.1).plan(1000, 50).n_iter == N_ITER_PLAIN


@pytest.mark.parametrize("Estimator", [*ESTIMATORS, DPAGDClassifier])
def test_replacing_a_record_halves_n_mu(Estimator):
    zero_out = Estimator().plan(5000, 40)
    replace_one = Estimator(neighboring_relation="replace_one").plan(5000, 40)
    for of in (lambda plan: plan, lambda p: p.clip_schedule, lambda p: p.step_schedule):
        assert of(replace_one).n_mu == pytest.approx(of(zero_out).n_mu / 2, rel=1e-12)
    assert zero_out.clip_schedule.n_mu == pytest.approx(5000 * zero_out.budget.mu, rel=1e-9)


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


# --- The numbers of the rule ---


def test_the_default_rule_has_few_numbers():
    """Of fitted ones, above those by theory, and of those for a target, each with its reason."""
    source = inspect.getsource(defaults)
    number = r"^([A-Z_]+) = .*  # "
    fitted, others = source.split("# By theory or convention.")
    fitted = re.findall(number, fitted, re.M)
    assert 10 < len(fitted) <= 16
    assert len(re.findall(number, others.split("# A numeric target.")[1], re.M)) <= 10
    assert len(re.findall(number, source, re.M)) == source.count(" = ")
    used = "".join(inspect.getsource(module) for module in (whitening, descent, defaults))
    assert all(used.count(name) > 1 for name in fitted), "each is used"


# --- Safe without tuning ---


def test_the_defaults_learn_a_census_at_a_small_budget():
    X, y = make_census(random_state=0)
    model = DPLogisticRegression(epsilon=0.2, delta=1e-8, classes=[0, 1]).fit(X, y)
    assert model.score(X, y) > 0.835
