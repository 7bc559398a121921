"""Momentum: the recursions of the papers, and what they do to signal and noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.base import clone

from dpglm.schedules import (
    BiasCorrectedMomentum,
    HeavyBall,
    Momentum,
    NesterovMomentum,
    check_schedules,
)


def check_momentum(value):
    return check_schedules({"momentum": value})["momentum"]


def last_direction(momentum, gradients):
    velocity = np.zeros_like(gradients[0])
    for t, gradient in enumerate(gradients, start=1):
        direction, velocity = momentum.direction(gradient, velocity, t)
    return direction


@given(coefficient=st.floats(0, 0.99), n_iter=st.integers(1, 60))
def test_responses_are_the_closed_forms(coefficient, n_iter):
    age = np.arange(n_iter - 1, -1, -1)
    weights = coefficient**age
    heavy_ball = last_direction(HeavyBall(coefficient), np.eye(n_iter))
    assert heavy_ball == pytest.approx(weights, rel=1e-9)
    debiased = last_direction(BiasCorrectedMomentum(coefficient), np.eye(n_iter))
    assert debiased == pytest.approx(weights / weights.sum(), rel=1e-9)


@pytest.mark.parametrize("n_iter", [1, 2, 3, 50])
def test_nesterov_is_the_form_with_two_sequences_at_its_extrapolated_points(n_iter):
    """``x_t = y_t - s f'(y_t)`` and ``y_(t+1) = x_t + (t - 1) / (t + 2) (x_t - x_(t-1))``."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    hessian, slope = (turn * np.geomspace(1e-3, 1.0, 5)) @ turn.T, rng.normal(size=5)
    coef = velocity = x = y = np.zeros(5)
    for t in range(1, n_iter + 1):
        before, x = x, y - 0.9 * (hessian @ y - slope)
        # Here extrapolated points are the iterates, so that it is theirs that is next.
        y = x + t / (t + 3) * (x - before)
        gradient = hessian @ coef - slope
        direction, velocity = NesterovMomentum().direction(gradient, velocity, t)
        coef = coef - 0.9 * direction
        assert_allclose(coef, y, rtol=1e-9, atol=1e-12)


def test_a_parameter_may_be_none_a_number_a_name_or_an_object():
    assert check_momentum(None).coefficient == 0.0
    for number in (0.7, np.float32(0.5)):
        momentum = check_momentum(number)
        assert type(momentum) is HeavyBall and momentum.coefficient == pytest.approx(number)
    assert check_momentum("heavy_ball").get_params() == {"coefficient": 0.6}
    assert type(check_momentum("nesterov")) is NesterovMomentum
    debiased = check_momentum("bias_corrected")
    assert type(debiased) is BiasCorrectedMomentum and debiased.coefficient == 0.9
    assert check_momentum(debiased) is debiased
    assert clone(debiased).set_params(coefficient=0.3).coefficient == 0.3

    class Sign(Momentum):
        def direction(self, gradient, velocity, t):
            return np.sign(gradient), velocity

    own = Sign()
    assert check_momentum(own) is own
    with pytest.raises(NotImplementedError, match="Momentum must define direction"):
        Momentum().direction(np.ones(1), np.zeros(1), 1)


@pytest.mark.parametrize(
    ("value", "error", "complaint"),
    [
        ("nag", ValueError, "is no momentum. .*'heavy_ball', 'bias_corrected', 'nesterov'"),
        (True, TypeError, "is no momentum"),
        ([0.5], TypeError, "is no momentum"),
        (HeavyBall, TypeError, "is no momentum"),
        (1.0, ValueError, r"coefficient=1\.0 must be a number"),
        (float("nan"), ValueError, "is no momentum"),
        (HeavyBall(1.5), ValueError, r"coefficient=1\.5 must"),
        (BiasCorrectedMomentum("x"), ValueError, "coefficient='x' must"),
    ],
)
def test_what_is_no_momentum_is_refused_by_a_sentence(value, error, complaint):
    with pytest.raises(error, match=f"^momentum=.*{complaint}"):
        check_momentum(value)
