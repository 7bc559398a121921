"""A few sums with one draw of noise: its law, and that the law hides a record."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chisquare

from dpglm.privacy.events import ChoiceEvent, GaussianEvent, PureEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.pure import BoxSums, box_noise, box_quantile, box_std
from dpglm.privacy.vault import grid_spacing


def ledger(*events):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6)


def log_law(points, scale):
    """Return the log-probabilities, up to a constant, that the rejection gives integer points."""
    size = points.shape[-1]
    t = size * scale
    magnitude = np.abs(points)
    zeros = (points == 0).sum(axis=-1) * math.log(2 / (math.exp(1 / (2 * t)) + 1))
    proposed = -magnitude.sum(axis=-1) / t + zeros
    gap = (magnitude.max(axis=-1) - magnitude.mean(axis=-1)) / scale
    return proposed - np.minimum(gap, 44.0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_noise_has_the_law_that_is_claimed(size):
    scale, n = 1.5, 800
    entropy = entropy_source()
    drawn = np.array([box_noise(size, scale, entropy) for _ in range(n)])
    points = np.array(list(itertools.product(range(-60 // size, 60 // size + 1), repeat=size)))
    law = np.exp(log_law(points, scale))
    law /= law.sum()
    largest, counted = np.abs(points).max(axis=1), np.abs(drawn).max(axis=1)
    last = 4 + 2 * size
    expected = np.bincount(np.minimum(largest, last), law) * n
    seen = np.bincount(np.minimum(counted, last), minlength=last + 1)
    assert chisquare(seen, expected).pvalue > 1e-5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_step_of_all_numbers_changes_a_probability_by_no_more_than_is_paid(size):
    """Far out, where exponents are cut, as well as at zeros."""
    scale = 1.5
    line = np.array([-200, -80, -9, -2, -1, 0, 1, 3, 40, 150])
    points = np.array(list(itertools.product(line, repeat=size)))
    for step in itertools.product((-1, 0, 1), repeat=size):
        changed = np.abs(log_law(points + np.array(step), scale) - log_law(points, scale))
        assert changed.max() <= 1.5 / scale + 1e-9


def test_what_is_released_has_the_spread_and_the_quantile_that_are_stated():
    """In units of the sensitivity over epsilon; half of the noise would be seen."""
    entropy, epsilon = entropy_source(), 0.25
    for size in (1, 2):
        mechanism, zeros = BoxSums(size, epsilon), np.zeros(size)
        drawn = np.array([mechanism.release(zeros, entropy) for _ in range(800)]) * epsilon
        assert drawn.std() == pytest.approx(box_std(size), rel=0.25)
        assert 0.015 < (np.abs(drawn) > box_quantile(size)).mean() < 0.09
    assert box_quantile(1, 0.5) == pytest.approx(math.log(2))


def test_what_is_released_is_on_its_grid_and_near_the_truth():
    mechanism = BoxSums(3, 0.5, slack=1e-9)
    values = np.array([1000.25, -3.5, 0.0])
    released = mechanism.release(values, entropy_source())
    assert (released % mechanism.grid == 0).all() and mechanism.grid == grid_spacing(1 / 0.5)
    assert np.abs(released - values).max() < 50 * mechanism.scale
    # All of the sensitivity, and the steps for snapping and for zeros.
    assert mechanism.scale >= (1 + 1e-9 + 2 * mechanism.grid) / 0.5
    assert (BoxSums(3, math.inf).release(values, entropy_source()) == values).all()
    with pytest.raises(FloatingPointError, match="nothing was released"):
        mechanism.release(values * math.nan, entropy_source())
    for bad in ((0, 1.0), (9, 1.0), (3, 0.0), (3, math.nan)):
        with pytest.raises(ValueError, match=r"from 1 to 8|epsilon="):
            BoxSums(*bad)


def test_few_pure_releases_cost_the_sum_of_their_epsilons():
    pure, gaussian = PureEvent(0.1), GaussianEvent(4.0)
    assert ledger(pure).epsilon(0.0) == ledger(pure).epsilon() == 0.1
    assert ledger(pure).delta(0.1) == 0.0 < ledger(pure).delta(0.09)
    both = ledger(pure, gaussian)
    assert both.epsilon() == pytest.approx(0.1 + ledger(gaussian).epsilon())
    assert both.delta(0.1 + ledger(gaussian).epsilon()) <= 1e-6
    # Many add up as Gaussian releases do, at a delta.
    assert ledger(*[pure] * 300).epsilon() < 10
    assert ledger(*[pure] * 300).epsilon(0.0) == pytest.approx(30.0)
    assert "implies epsilon=0.2 under replace_one" in ledger(pure).statement
    assert PrivacyLedger.from_dict(both.to_dict()) == both
    assert not ledger(PureEvent(math.inf)).protects
    # Of an epsilon whose square overflows as well.
    assert ledger(PureEvent(1e200)).epsilon(0.0) >= 1e200
    # Of two records apart twice the sum, at the same delta.
    apart = ledger(pure, pure).group(2)
    assert apart.epsilon(0.0) == pytest.approx(0.4) and apart.delta(0.41) == 0.0
    # Choices that are pure add up in the same way.
    for choice in (ChoiceEvent(0.1, "laplace"), ChoiceEvent(0.1, "permute_and_flip")):
        assert ledger(choice, choice).epsilon() == pytest.approx(0.2)
    delta = both.group(2).delta(0.2 + ledger(gaussian).group(2).epsilon())
    assert delta <= 1e-6 < both.group(2).delta(0.2)


def test_parts_of_the_records_cost_what_the_dearest_does_pure_or_not():
    fit, scores = ledger(GaussianEvent(4.7)), ledger(PureEvent(0.5))
    both = PrivacyLedger.parallel(fit, scores)
    assert both.epsilon() == max(fit.epsilon(), 0.5)
    assert both.delta(0.7) == fit.delta(0.7)
    alone = PrivacyLedger.parallel(scores, scores, ledger(PureEvent(0.4)))
    assert alone.epsilon(0.0) == 0.5 and alone.delta(0.5) == 0.0
    # Two records may be in two parts, and more is released about all of them.
    assert (alone + scores).epsilon(0.0) == 1.0
    assert alone.group(2).delta(alone.group(2).epsilon()) <= 1e-6
    assert PrivacyLedger.parallel(both, ledger(PureEvent(3.0))).epsilon(0.0) == math.inf
    # Where there are too many cases, the dearest mu of each stands for them.
    many = sum(PrivacyLedger.parallel(fit, ledger(PureEvent(0.1 * k))) for k in range(1, 12))
    assert fit.epsilon() < many.epsilon() <= ledger(GaussianEvent(1 / many.mu())).epsilon() + 1e-9
