"""Values and derivatives of the losses against scikit-learn, finite differences and limits."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn._loss.loss import HalfBinomialLoss, HalfMultinomialLoss

from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax

MARGIN_LOSSES = [Logistic(), SmoothedHinge(), SmoothedHinge(half_width=0.1), Hinge()]


def test_logistic_matches_half_binomial_loss():
    scores = np.concatenate([np.linspace(-30, 30, 121), [-700.0, 700.0]])
    for sign in (-1.0, 1.0):
        y_true = np.full_like(scores, (sign + 1) / 2)
        loss, gradient = HalfBinomialLoss().loss_gradient(y_true, scores)
        target = np.full_like(scores, sign)
        assert_allclose(Logistic().value(scores, target), loss, rtol=1e-13, atol=1e-16)
        assert_allclose(Logistic().derivative(scores, target), gradient, rtol=1e-13)


def test_softmax_matches_half_multinomial_loss():
    rng = np.random.default_rng(1)
    scores = rng.normal(scale=5.0, size=(100, 4))
    target = rng.integers(0, 4, size=100)
    oracle = HalfMultinomialLoss(n_classes=4)
    loss, gradient = oracle.loss_gradient(target.astype(float), scores)
    assert_allclose(Softmax().value(scores, target), loss, rtol=1e-12, atol=1e-14)
    assert_allclose(Softmax().derivative(scores, target), gradient, rtol=1e-12, atol=1e-15)


def test_softmax_keeps_the_small_residual_of_a_well_classified_row():
    residual = Softmax().derivative(np.array([[100.0, 0.0, 0.0]]), np.array([0]))
    assert_allclose(residual[0], math.exp(-100.0) * np.array([-2.0, 1.0, 1.0]), rtol=1e-13)


@pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=repr)
def test_derivative_is_the_slope_of_the_value(loss):
    scores = np.random.default_rng(0).normal(scale=3.0, size=200)
    scores = scores[np.abs(np.abs(scores) - 1.0) > 1e-3]
    target = np.random.default_rng(2).choice([-1.0, 1.0], size=scores.size)
    step = 1e-6
    slope = (loss.value(scores + step, target) - loss.value(scores - step, target)) / (2 * step)
    assert_allclose(loss.derivative(scores, target), slope, atol=2e-5)


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(0.5), SmoothedHinge(0.05), Softmax()])
def test_curvature_and_lipschitz_constant_bound_the_derivative_and_are_reached(loss):
    rng = np.random.default_rng(3)
    if isinstance(loss, Softmax):
        scores = np.concatenate([rng.normal(scale=4.0, size=(500, 2)), [[0.0, 0.0], [-60.0, 60.0]]])
        target = np.zeros(len(scores), dtype=int)
        shift = 1e-4 * np.array([1.0, -1.0]) / math.sqrt(2)
    else:
        scores = np.concatenate([rng.normal(scale=4.0, size=500), [0.0, 1.0, -60.0]])
        target = np.ones(len(scores))
        shift = 1e-4
    derivative = loss.derivative(scores, target)
    change = np.abs(loss.derivative(scores + shift, target) - derivative)
    norms, changes = (
        np.linalg.norm(values.reshape(len(scores), -1), axis=1) for values in (derivative, change)
    )
    assert norms.max() == pytest.approx(loss.lipschitz, rel=1e-9)
    assert changes.max() / 1e-4 <= loss.curvature * (1 + 1e-9)
    assert changes.max() / 1e-4 >= loss.curvature * (1 - 1e-3)


@pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=repr)
def test_one_vs_rest_is_the_sum_of_binary_losses(loss):
    rng = np.random.default_rng(4)
    scores, target = rng.normal(size=(50, 3)), rng.integers(0, 3, size=50)
    signs = [np.where(target == k, 1.0, -1.0) for k in range(3)]
    total = sum(loss.value(scores[:, k], signs[k]) for k in range(3))
    assert_allclose(loss.value(scores, target), total)
    parts = [loss.derivative(scores[:, k], signs[k]) for k in range(3)]
    assert_allclose(loss.derivative(scores, target), np.stack(parts, axis=1))


@pytest.mark.parametrize("loss", [*MARGIN_LOSSES, Softmax()], ids=repr)
def test_extreme_scores_give_finite_derivatives(loss):
    if isinstance(loss, Softmax):
        scores, target = np.array([[1e300, -1e300], [-1e300, 1e300]]), np.array([0, 0])
    else:
        scores, target = np.array([1e300, -1e300]), np.ones(2)
    with np.errstate(under="ignore"):
        assert np.isfinite(loss.derivative(scores, target)).all()
        assert np.isfinite(loss.value(scores, target)).all()


def test_projection_removes_the_mean_over_classes_and_keeps_a_softmax_gradient():
    rng = np.random.default_rng(5)
    residual = Softmax().derivative(rng.normal(size=(20, 3)), rng.integers(0, 3, size=20))
    gradient = rng.normal(size=(20, 7)).T @ residual
    assert_allclose(Softmax().project(gradient), gradient, atol=1e-14)
    noise = rng.normal(size=(100_000, 3))
    assert Softmax().project(noise).var() == pytest.approx(2 / 3, rel=0.02)
    assert Hinge().project(noise) is noise


def test_losses_are_comparable_and_have_distinct_codes():
    assert SmoothedHinge(0.2) == SmoothedHinge(0.2) != SmoothedHinge(0.3)
    assert len({loss.code for loss in (Logistic, SmoothedHinge, Hinge, Softmax)}) == 4
    assert Hinge().curvature == math.inf


@pytest.mark.parametrize("half_width", [0.0, -1.0, math.inf, math.nan])
def test_half_width_must_be_positive_and_finite(half_width):
    with pytest.raises(ValueError, match=r"half_width=.* must be a number of at least 1e-100"):
        SmoothedHinge(half_width)
