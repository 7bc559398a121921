"""GaussianSum: the noise drawn is the noise charged, on a grid, for any finite sum."""

import math

import numpy as np
import pytest
from scipy.stats import kstest

from dpglm.privacy.noise import entropy_source
from dpglm.privacy.vault import GaussianSum


def test_effective_sensitivity_follows_the_rounding_of_the_sum(vectors):
    for row in vectors("noise", "grid_inflation"):
        mechanism = GaussianSum(sensitivity=row["C"], noise_multiplier=row["sigma"] / row["C"])
        effective = mechanism.noise_std(row["d"]) / mechanism.noise_multiplier
        # The vector's grid is sigma 2^-30 itself; ours is the power of two just below it.
        assert row["C"] < effective <= row["sensitivity"] * (1 + 2e-12)
        exact = (row["C"] + mechanism.grid * math.sqrt(row["d"])) * (1 + 1e-12)
        assert effective == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize("huge", [1e300, -1e300, 1e19])
def test_a_huge_sum_is_clamped_rather_than_overflowing(huge):
    noisy = GaussianSum(1e-9, 1.0).release(np.array([huge, 0.0]), entropy_source(0))
    assert np.isfinite(noisy).all()
    assert np.sign(noisy[0]) == np.sign(huge)
    assert abs(noisy[0]) > 1e-9 * 2.0**29


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_nearly_2_to_the_62_grid_steps_is_not_clamped(sign):
    mechanism = GaussianSum(sensitivity=1.0, noise_multiplier=1.0)
    large = sign * 0.999 * 2.0**62 * mechanism.grid
    noisy = mechanism.release(np.array([large]), entropy_source(0))
    assert abs(noisy[0] - large) < 8.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sum_that_is_not_finite_is_refused_before_any_noise_is_drawn(bad):
    rng = entropy_source(0)
    with pytest.raises(FloatingPointError, match="nothing was released"):
        GaussianSum(1.0, 1.0).release(np.array([0.0, bad]), rng)
    assert rng.words_drawn == 0


def test_no_noise_releases_the_sum_itself_and_says_so():
    rng, value = entropy_source(0), np.array([1.0, math.pi])
    exact = GaussianSum(math.inf, 0.0)
    noisy = exact.release(value, rng)
    assert (noisy == value).all() and noisy is not value
    assert exact.event.mu == math.inf and rng.words_drawn == 0
    assert GaussianSum(1.0, 0.0).noise_std(3) == GaussianSum(math.inf, 0.0).noise_std(3) == 0.0


@pytest.mark.parametrize(
    "sensitivity", [0.0, 1e-300, 1e-250, 1e250, 1e300, math.inf, math.nan, -1.0]
)
def test_noise_outside_the_floating_point_range_is_refused(sensitivity):
    with pytest.raises(ValueError, match="between 1e-250 and 1e250"):
        GaussianSum(sensitivity, 1.0)


@pytest.mark.parametrize("arguments", [(-1.0, -0.5), (1.0, 0.5, -0.5), (1.0, 0.5, math.nan)])
def test_no_factor_of_the_noise_is_negative(arguments):
    with pytest.raises(ValueError, match="cannot be drawn"):
        GaussianSum(*arguments)
    assert GaussianSum(1.0, 0.25).noise_std(1) < GaussianSum(1.0, 0.5).noise_std(1)


def test_the_widest_noise_that_is_drawn_still_has_its_law():
    """Slack of 2^10 sensitivities makes it so many times wider than the grid is meant for."""
    mechanism = GaussianSum(1.0, 1.0, slack=0.99 * 2.0**10)
    noisy = mechanism.release(np.zeros(5000), entropy_source(0))
    assert kstest(noisy / mechanism.noise_std(5000), "norm").pvalue > 1e-4
    rng = entropy_source(0)
    for beyond in (GaussianSum(1.0, 1.0, slack=1.01 * 2.0**10), GaussianSum(1.0, 1e20)):
        with pytest.raises(ValueError, match=r"too large .* nothing was released"):
            beyond.release(np.zeros(500), rng)
    assert rng.words_drawn == 0
