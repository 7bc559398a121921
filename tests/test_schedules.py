"""Schedules: formulas, optimality, positivity, and sentences for bad input."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone

from dpglm.schedules import (
    Constant,
    ConvexStep,
    DecayingClip,
    DynamicNoise,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstant,
    Polynomial,
    PublicMetadata,
    Schedule,
    check_schedules,
    schedule_values,
)

FACTS = PublicMetadata(
    n_samples=1000,
    n_features=11,
    n_outputs=3,
    alpha=0.01,
    curvature=0.25,
    max_row_norm=2.0,
    mu=0.3,
    noise_std=np.array([60.0, 80.0]),
)


def decay_of(gamma, n_iter):
    return gamma ** (-(n_iter - 1) / 4)


def weights_of_late_error(gamma, momentum, n_iter):
    """q_t of Hong et al. by their quotient, not by a recursion."""
    k = np.arange(n_iter, 0, -1)
    return (momentum ** (2 * k) - gamma**k) / (momentum**2 - gamma)


def test_clips_of_yu_et_al_come_to_rest_at_one_half():
    linear = Polynomial(12.0, 6.0, horizon=500).values(2000, FACTS)
    assert linear == pytest.approx(np.maximum(12.0 - 6.0 * np.arange(2000) / 500, 6.0))
    shrinking = ExponentialDecay(8.0, 0.999, floor=4.0).values(2000, FACTS)
    assert shrinking[:2] == pytest.approx([8.0, 7.992]) and shrinking[-1] == 4.0
    assert np.flatnonzero(shrinking == 4.0)[0] == math.ceil(math.log(0.5) / math.log(0.999))
    with pytest.raises(ValueError, match="horizon=0 must be a number above 0"):
        Polynomial(horizon=0).values(3, FACTS)


@pytest.mark.parametrize("section", ["hong_gd_schedule", "hong_momentum_schedule"])
def test_dynamic_noise_matches_the_vectors(section, vectors):
    for row in vectors("schedules", section):
        metadata = replace(FACTS, mu=math.sqrt(row["R"]))
        decay = decay_of(row["gamma"], row["T"])
        sigma = DynamicNoise(decay, momentum=row.get("beta", 0.0)).values(row["T"], metadata)
        assert sigma == pytest.approx(row["sigma"], rel=row["rtol"])


def test_dynamic_noise_takes_gamma_from_public_constants(vectors):
    (row,) = vectors("schedules", "hong_public_constants")
    metadata = replace(FACTS, alpha=row["lam"], max_row_norm=row["row_norm"])
    found = DynamicNoise().values(40, metadata)
    assert found == pytest.approx(DynamicNoise(decay_of(row["gamma"], 40)).values(40, metadata))
    assert found[0] / found[1] == pytest.approx(row["gamma"] ** -0.25, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    n_iter=st.integers(1, 400),
    decay=st.floats(0.1, 100),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    mu=st.floats(0.01, 5),
    ratio=st.floats(0.95, 1.02),
)
def test_dynamic_noise_spends_mu_squared_exactly(n_iter, decay, momentum, mu, ratio):
    schedule = DynamicNoise(decay, momentum)
    clip = ExponentialDecay(3.0, ratio).values(n_iter, FACTS)
    sigma = schedule.values(n_iter, replace(FACTS, mu=mu, clip=clip))
    assert math.fsum(clip**2 / sigma**2) == pytest.approx(mu**2, rel=1e-12)
    sigma = schedule.values(n_iter, replace(FACTS, mu=mu))
    assert math.fsum(1 / sigma**2) == pytest.approx(mu**2, rel=1e-12)
    for unknown in (None, math.inf):
        sigma = schedule.values(n_iter, replace(FACTS, mu=unknown))
        assert math.fsum(1 / sigma**2) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("clip", [np.ones(5), np.array([3.0, 2.0, 1.0, 0.5, 0.4])])
def test_dynamic_noise_is_optimal_among_all_allocations(momentum, clip):
    gamma, mu = 0.6, 0.4
    q = weights_of_late_error(gamma, momentum, 5) if momentum else gamma ** np.arange(4, -1, -1)
    sigma = DynamicNoise(decay_of(gamma, 5), momentum).values(5, replace(FACTS, mu=mu, clip=clip))

    def cost(logits):
        share = np.exp(logits) / np.exp(logits).sum()
        return float(np.sum(q * clip**2 / (mu**2 * share)))

    best = minimize(cost, np.zeros(5), options={"gtol": 1e-9})
    assert np.sum(q * sigma**2) == pytest.approx(best.fun, rel=1e-8)
    best_sigma = clip / (mu * np.sqrt(np.exp(best.x) / np.exp(best.x).sum()))
    assert sigma == pytest.approx(best_sigma, rel=1e-3)


def test_dynamic_noise_survives_a_run_longer_than_float_exponents():
    metadata = replace(FACTS, mu=1.0)
    values = schedule_values(DynamicNoise(1e100), 3000, metadata, parameter="noise_schedule")
    assert values[0] / values[-1] == pytest.approx(1e100, rel=1e-9)


def test_dynamic_noise_takes_an_influence_that_was_measured():
    gamma, n_iter = 0.9, 30
    q = gamma ** np.arange(n_iter - 1.0, -1, -1)
    metadata = replace(FACTS, mu=0.4, clip=np.linspace(2.0, 1.0, n_iter))
    predicted = DynamicNoise(decay_of(gamma, n_iter)).values(n_iter, metadata)
    assert DynamicNoise(influence=7 * q).values(n_iter, metadata) == pytest.approx(predicted)
    for bad in (q[1:], -q, 0 * q):
        with pytest.raises(ValueError, match="influence must be 30 positive numbers"):
            DynamicNoise(influence=bad).values(n_iter, metadata)


def test_the_smooth_step_is_one_over_the_smoothness():
    smooth = check_schedules({"step_schedule": "smooth"})["step_schedule"]
    assert schedule_values(smooth, 2, FACTS, parameter="p") == pytest.approx([1 / 1.01] * 2)
    with pytest.raises(ValueError, match="finite for a hinge loss"):
        schedule_values(smooth, 2, replace(FACTS, curvature=math.inf), parameter="p")


def test_decaying_clip_matches_the_vectors(vectors):
    for row in vectors("schedules", "yu_decaying_clip"):
        horizon, initial = row["T"], row["C"]
        clip = DecayingClip(initial, horizon).values(3 * horizon, FACTS)
        assert clip[:4] == pytest.approx(row["C_t_first"], rel=1e-14)
        assert clip[horizon:] == pytest.approx(row["C_t_at_T"], rel=1e-14)
        assert DecayingClip(initial).values(horizon, FACTS) == pytest.approx(clip[:horizon])
        cost = np.cumsum((clip / initial) ** 2)
        assert cost[horizon - 1] / horizon == pytest.approx(row["budget_used_after_T_steps"])
        affordable = np.sum(cost <= horizon * (1 + 1e-12))
        assert affordable == row["total_steps_until_budget_exhausted"]


def test_shapes_follow_their_formulas():
    assert ExponentialDecay(2.0, 0.9).values(4, FACTS) == pytest.approx([2, 1.8, 1.62, 1.458])
    assert Polynomial(1.0, 0.2).values(5, FACTS) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert Polynomial(1.0, 0.2, 2.0).values(1, FACTS) == pytest.approx([1.0])
    assert PiecewiseConstant().values(5, FACTS) == pytest.approx([1, 1, 1, 0.5, 0.5])
    assert PiecewiseConstant([3], []).values(3, FACTS) == pytest.approx([3, 3, 3])
    assert InverseTimeDecay().values(3, FACTS) == pytest.approx([100, 200 / 3, 50])
    assert InverseTimeDecay(4.0).values(2, FACTS) == pytest.approx([0.25, 1 / 6])
    assert InverseTimeDecay(4.0, 1, 0).values(3, FACTS) == pytest.approx([1 / 4, 1 / 8, 1 / 12])


def test_lecture_step_minimises_its_bound_on_the_sum_scale():
    n, d, n_iter, distance = 1000, 33, 50, 4.0
    sigma = math.sqrt((60.0**2 + 80.0**2) / 2)
    for max_row_norm, noise in [(2.0, 1.0), (0.1, 1.0), (2.0, 50.0)]:
        beta = 0.25 * max_row_norm**2 + 0.01
        noise_std = FACTS.noise_std * noise
        metadata = replace(FACTS, noise_std=noise_std, max_row_norm=max_row_norm)
        eta = np.logspace(-9, math.log10(1 / (n * beta)), 200_001)
        bound = distance**2 / (2 * eta * n_iter) + eta * d * (sigma * noise) ** 2
        step = ConvexStep(distance).values(n_iter, metadata)
        assert step == pytest.approx(n * eta[np.argmin(bound)], rel=1e-4)
        assert len(step) == n_iter
    quiet = replace(FACTS, noise_std=np.zeros(50))
    assert ConvexStep().values(50, quiet) == pytest.approx(1 / (0.25 * 4 + 0.01))


def test_lecture_step_for_a_hinge_minimises_the_subgradient_bound():
    hinge = replace(FACTS, curvature=math.inf, clip=np.array([0.7, 0.5]))
    sigma2 = (60.0**2 + 80.0**2) / 2
    for metadata, slope in [(hinge, 0.7), (replace(hinge, clip=None), 2.0)]:
        slope2 = (1000 * slope) ** 2 + 33 * sigma2
        eta = np.logspace(-6, 0, 200_001)
        best = eta[np.argmin(9.0 / (2 * eta * 20) + eta * slope2 / 2)]
        assert ConvexStep(3.0).values(20, metadata) == pytest.approx(1000 * best, rel=1e-4)
    quiet = replace(hinge, noise_std=np.zeros(2))
    assert ConvexStep().values(4, quiet) == pytest.approx(1 / (0.7 * 2))


positive = st.floats(1e-3, 1e3)
schedules = st.one_of(
    st.builds(Constant, positive),
    st.builds(ExponentialDecay, positive, st.floats(0.8, 1.2)),
    st.builds(Polynomial, positive, positive, st.floats(0.1, 5)),
    st.builds(PiecewiseConstant, st.tuples(positive, positive), st.tuples(st.floats(0.01, 0.99))),
    st.builds(DynamicNoise, st.floats(0.1, 1e3), st.floats(0, 0.99)),
    st.builds(DynamicNoise, momentum=st.floats(0, 0.99)),
    st.builds(DecayingClip, positive, st.none() | st.integers(1, 500)),
    st.builds(InverseTimeDecay, st.none() | positive),
    st.builds(ConvexStep, positive),
)


@settings(max_examples=200, deadline=None)
@given(schedule=schedules, n_iter=st.integers(1, 500))
def test_values_are_positive_and_the_same_for_a_clone(schedule, n_iter):
    values = schedule_values(schedule, n_iter, FACTS, parameter="any")
    assert values.shape == (n_iter,) and (values > 0).all() and np.isfinite(values).all()
    again = schedule_values(clone(schedule), n_iter, FACTS, parameter="any")
    assert (values == again).all()


def test_a_parameter_may_be_a_number_a_name_or_an_object():
    chosen = check_schedules({"clip_schedule": 2, "step_schedule": np.float32(0.5)})
    assert chosen["clip_schedule"].value == 2.0 and chosen["step_schedule"].value == 0.5
    named = {"noise_schedule": "dynamic", "clip_schedule": "decaying", "step_schedule": "convex"}
    kinds = [type(schedule) for schedule in check_schedules(named).values()]
    assert kinds == [DynamicNoise, DecayingClip, ConvexStep]
    schedule = ExponentialDecay()
    assert check_schedules({"clip_schedule": schedule})["clip_schedule"] is schedule


@pytest.mark.parametrize(
    ("value", "error"),
    [("cosine", ValueError), ("convex", ValueError), (None, TypeError), (True, TypeError),
     ([1.0], TypeError), (ExponentialDecay, TypeError)],
)  # fmt: skip
def test_what_is_no_schedule_is_refused_with_the_choices(value, error):
    with pytest.raises(error, match=r"^clip_schedule=.*'constant'.*'decaying', or a Schedule"):
        check_schedules({"clip_schedule": value})


class Given(Schedule):
    """A user's schedule."""

    def __init__(self, result=None):
        self.result = result

    def values(self, n_iter, metadata):
        return self.result


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        (Constant(0.0), "gave 0.0 in iteration 1 of 4"),
        (ExponentialDecay(1.0, 1e200), "gave inf in iteration 3 of 4"),
        (PiecewiseConstant((1.0, 2.0), (0.7, 0.5)), "boundaries must increase"),
        (PiecewiseConstant((1.0,), (0.5,)), "one fewer than levels"),
        (DynamicNoise(decay=0.0), r"decay=0\.0 must be a number above 0"),
        (ConvexStep(distance=0.0), r"distance=0\.0 must be positive"),
        (Given(np.ones(3)), r"gave shape \(3,\); it must give 4 values"),
        (Given(None), "gave nan|gave shape"),
        (Schedule(), "must define values"),
    ],
)
def test_bad_values_are_refused_by_a_sentence_that_names_the_parameter(schedule, complaint):
    error = NotImplementedError if type(schedule) is Schedule else ValueError
    with pytest.raises(error, match=complaint) as caught:
        schedule_values(schedule, 4, FACTS, parameter="noise_schedule")
    if error is ValueError:
        assert str(caught.value).startswith(f"noise_schedule={schedule!r} ")


@pytest.mark.parametrize(
    ("schedule", "metadata", "complaint"),
    [
        (DynamicNoise(), replace(FACTS, curvature=math.inf), "curvature=inf must"),
        (ConvexStep(), replace(FACTS, noise_std=None), "use it as step_schedule"),
        (ConvexStep(), replace(FACTS, curvature=math.inf, max_row_norm=None), "a finite clip or"),
    ],
)
def test_missing_public_facts_are_asked_for(schedule, metadata, complaint):
    with pytest.raises(ValueError, match=complaint):
        schedule_values(schedule, 4, metadata, parameter="step_schedule")


def test_infinite_values_are_legal_only_where_allowed():
    values = schedule_values(Constant(math.inf), 3, FACTS, parameter="clip", allow_inf=True)
    assert (values == math.inf).all()
    for bad in (math.nan, 0.0, -math.inf):
        with pytest.raises(ValueError, match="every value is positive"):
            schedule_values(Constant(bad), 3, FACTS, parameter="clip", allow_inf=True)
