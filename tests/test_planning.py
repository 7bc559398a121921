"""Planning: iterations worth their noise, and bounds on what they reach."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dpglm.calculator import optimal_n_iter, public_constants, saturation_n_iter
from dpglm.schedules import LectureStep, PublicFacts


def risk_bound(n_iter, kappa, noise_to_gap, is_dynamic):
    """gamma^T + sum q_t sigma_t^2 at R = 1; the sum is (sum sqrt q)^2 by Lemma 3.1, or T sum q."""
    gamma = 1 - 1 / kappa
    q = noise_to_gap * gamma ** np.arange(n_iter - 1.0, -1, -1)
    return gamma**n_iter + (np.sqrt(q).sum() ** 2 if is_dynamic else n_iter * q.sum())


def test_optimal_n_iter_matches_the_vectors(vectors):
    for row in vectors("schedules", "hong_T_star"):
        arguments = row["kappa"], row["alpha"]
        assert optimal_n_iter(*arguments) == max(1, row["T_dyn_exact_argmin"])
        found = optimal_n_iter(*arguments, dynamic=False)
        assert found == max(1, row["T_uniform_exact_argmin"])


@settings(max_examples=40, deadline=None)
@given(kappa=st.floats(1.01, 15), noise_to_gap=st.floats(-7, 0.5).map(lambda x: 10.0**x))
def test_optimal_n_iter_is_the_minimum_of_the_bound(kappa, noise_to_gap):
    for is_dynamic in (True, False):
        bounds = [risk_bound(t, kappa, noise_to_gap, is_dynamic) for t in range(1, 500)]
        best = bounds[optimal_n_iter(kappa, noise_to_gap, dynamic=is_dynamic) - 1]
        assert best <= min(bounds) * (1 + 1e-12)


def test_public_constants_match_the_vectors(vectors):
    (row,) = vectors("schedules", "hong_public_constants")
    given = {"alpha": row["lam"], "row_bound": row["row_norm"], "mu": math.sqrt(row["R"])}
    facts = PublicFacts(row["N"], row["D"], curvature=0.25, **given)
    expected = row["kappa"], row["alpha"]
    assert public_constants(facts) == pytest.approx(expected, rel=row["rtol"])
    explicit = replace(facts, row_bound=1.0, clip=np.array([1.0, 0.5]))
    found = public_constants(explicit, gap=row["f0_gap_upper"])
    assert found == pytest.approx(expected, rel=row["rtol"])


def test_noise_to_gap_grows_with_clip_and_outputs():
    facts = PublicFacts(100, 5, alpha=0.1, curvature=0.25, row_bound=1.0, mu=0.5)
    kappa, noise = public_constants(facts)
    assert kappa == pytest.approx(3.5)
    assert public_constants(replace(facts, clip=np.full(3, 2.0)))[1] == pytest.approx(4 * noise)
    three = public_constants(replace(facts, n_outputs=3))[1]
    assert three == pytest.approx(3 * noise * math.log(2) / math.log(3))
    assert public_constants(facts, gap=1.0)[1] == pytest.approx(noise * math.log(2))


def test_overwhelming_noise_or_a_contraction_in_one_step_leaves_one_iteration():
    assert optimal_n_iter(1.0, 1e-9) == 1
    for kappa in (5.0, 1e20, 1e200):
        assert optimal_n_iter(kappa, 1.0) == optimal_n_iter(kappa, 1.0, dynamic=False) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0.5, 1e-3), "kappa=0.5"),
        ((math.inf, 1e-3), "kappa=inf"),
        ((math.nan, 1e-3), "kappa=nan"),
        ((10.0, 0.0), "noise_to_gap=0.0"),
        ((10.0, math.inf), "noise_to_gap=inf"),
    ],
)
def test_bad_constants_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        optimal_n_iter(*arguments)


SMOOTH = PublicFacts(2000, 6, alpha=0.01, curvature=0.25, row_bound=2.0, mu=0.5)
HINGE = replace(SMOOTH, curvature=math.inf)


def with_noise(facts, n_iter, clip=2.0):
    """Facts as a plan fills them in: constant noise of that many iterations for mu."""
    clip = np.full(n_iter, clip)
    return replace(facts, clip=clip, noise_std=clip * math.sqrt(n_iter) / facts.mu)


@pytest.mark.parametrize("distance", [0.3, 1.0, 20.0])
def test_lecture_steps_are_the_steepest_until_saturation_and_shrink_from_there(distance):
    last = saturation_n_iter(SMOOTH, distance=distance)
    steepest = 1 / SMOOTH.smoothness()

    def step(n_iter):
        return LectureStep(distance).values(n_iter, with_noise(SMOOTH, n_iter))[0]

    assert last > 1
    assert step(last - 1) == pytest.approx(steepest, rel=1e-12)
    assert steepest * (1 - 2 / last) < step(last + 1) < steepest


@pytest.mark.parametrize("facts", [SMOOTH, replace(SMOOTH, n_outputs=4, curvature=0.5)])
def test_the_bound_is_that_of_the_lecture_step_and_flat_beyond_saturation(facts, script):
    excess_loss_bound = script("lecture12").excess_loss_bound
    last = saturation_n_iter(facts)
    for n_iter in (1, 10, last, 10 * last):
        noise = facts.n_released * (with_noise(facts, n_iter).noise_std[0] / facts.n_samples) ** 2
        step = LectureStep().values(n_iter, with_noise(facts, n_iter))[0]
        expected = 1 / (2 * step * n_iter) + step * noise
        assert excess_loss_bound(facts, n_iter) == pytest.approx(expected, rel=1e-12)
    bounds = [excess_loss_bound(facts, n_iter) for n_iter in range(1, last)]
    assert (np.diff(bounds) < 0).all()
    floor = math.sqrt(2 * facts.n_released) * 2.0 / (facts.n_samples * facts.mu)
    assert excess_loss_bound(facts, last) == pytest.approx(floor, rel=1e-3)
    assert excess_loss_bound(facts, 100 * last) == pytest.approx(floor, rel=1e-12)


def test_a_hinge_saturates_where_noise_and_descent_have_equal_shares(script):
    excess_loss_bound = script("lecture12").excess_loss_bound
    last = saturation_n_iter(HINGE, distance=3.0)
    floor = 3.0 * math.sqrt(HINGE.n_released) * 2.0 / (HINGE.n_samples * HINGE.mu)
    assert last == math.ceil((HINGE.n_samples * HINGE.mu) ** 2 / HINGE.n_released)
    bound = excess_loss_bound(HINGE, last, distance=3.0)
    assert bound == pytest.approx(math.sqrt(2) * floor, rel=1e-3)
    assert excess_loss_bound(HINGE, 10**6 * last, distance=3.0) == pytest.approx(floor, rel=1e-5)
    step = LectureStep(3.0).values(last, with_noise(HINGE, last))[0]
    assert bound == pytest.approx(9.0 / (step * last), rel=1e-9)


def test_saturation_grows_with_data_budget_and_a_smaller_clip():
    twice = pytest.approx(2 * saturation_n_iter(SMOOTH), abs=1)
    for change in ({"n_samples": 4000}, {"mu": 1.0}, {"clip": np.ones(3)}):
        assert saturation_n_iter(replace(SMOOTH, **change)) == twice
    assert saturation_n_iter(SMOOTH, distance=2.0) == twice
    short = replace(HINGE, clip=np.full(3, 1.0))
    assert saturation_n_iter(short) == saturation_n_iter(HINGE)
    # Rows of norm 2 have no gradients of norm 4, but get the noise for them.
    long = saturation_n_iter(replace(HINGE, clip=np.full(3, 4.0)))
    assert long == pytest.approx(saturation_n_iter(HINGE) / 4, abs=1)


def test_noisy_descent_stays_below_the_bound(script):
    excess_loss_bound = script("lecture12").excess_loss_bound
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ [2.0, -1.0, 0.5] + 0.3 * rng.normal(size=400) > 0, 1.0, -1.0)

    def loss(coef):
        return np.mean(np.logaddexp(0, -y * (X @ coef))) + 0.005 * coef @ coef

    best = minimize(loss, np.zeros(3), tol=1e-12)
    distance = float(np.linalg.norm(best.x))
    facts = PublicFacts(400, 3, alpha=0.01, curvature=0.25, row_bound=1.0, mu=0.3)
    for n_iter in (10, saturation_n_iter(facts, distance=distance), 400):
        noisy = with_noise(facts, n_iter, clip=1.0)
        step = LectureStep(distance).values(n_iter, noisy)[0]
        excess = []
        for _ in range(40):
            coef, total = np.zeros(3), np.zeros(3)
            for _ in range(n_iter):
                slope = -y / (1 + np.exp(y * (X @ coef)))
                noise = noisy.noise_std[0] / 400 * rng.normal(size=3)
                coef = coef - step * (X.T @ slope / 400 + 0.01 * coef + noise)
                total += coef
            excess.append(loss(total / n_iter) - best.fun)
        assert 0 < np.mean(excess) < excess_loss_bound(facts, n_iter, distance=distance)


@pytest.mark.parametrize(
    ("functions", "change", "complaint"),
    [
        ([public_constants, saturation_n_iter], {"mu": None}, "mu=None"),
        ([public_constants, saturation_n_iter], {"mu": math.inf}, "mu=inf"),
        ([public_constants], {"alpha": 0.0}, "positive alpha"),
        ([public_constants], {"row_bound": None}, "finite row_bound"),
        ([public_constants], {"curvature": math.inf}, "finite curvature"),
        ([saturation_n_iter], {"row_bound": None}, "row_bound=None"),
        ([saturation_n_iter], {"row_bound": 0.0}, "row_bound=0.0"),
        ([saturation_n_iter], {"curvature": None}, "finite curvature"),
    ],
)
def test_missing_facts_are_asked_for(functions, change, complaint):
    for function in functions:
        with pytest.raises(ValueError, match=complaint):
            function(replace(SMOOTH, **change))
