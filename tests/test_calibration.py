"""Mini-batches: whole schedules calibrated to the budget, as another accountant confirms."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpglm import DiagonalPreconditioner, DPLogisticRegression
from dpglm.privacy import calibration
from dpglm.privacy.calibration import (
    MOST_LEVELS,
    calibrated_multipliers,
    coarsened,
    crossing,
    longest_run,
)
from dpglm.privacy.composition import composed_delta, composed_epsilon
from dpglm.privacy.events import GaussianEvent, SampledGaussianEvent
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schedules import Schedule

X, Y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2


def ledger_of(*runs, delta=1e-6):
    return PrivacyLedger(runs, "zero_out", delta)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_levels_are_few_and_never_below_what_they_stand_for(multipliers):
    levels = coarsened(np.array(multipliers))
    assert len(np.unique(levels)) <= MOST_LEVELS
    assert len(set(multipliers)) > MOST_LEVELS or levels.tolist() == multipliers
    assert (levels >= multipliers).all()
    ratio = max(multipliers) / min(multipliers)
    assert (levels <= np.array(multipliers) * ratio ** (1 / MOST_LEVELS) * (1 + 1e-12)).all()


@pytest.mark.parametrize(("delta", "resolved"), [(8e-10, False), (1e-9, True)])
def test_delta_must_be_twice_the_rounding_error_of_the_composition(delta, resolved):
    """Resolved or not is said before what is released first, here too much, is looked at."""
    words = "cost all of epsilon" if resolved else "numerical accounting of 1000001"
    with pytest.raises(ValueError, match=words):
        calibrated_multipliers(np.ones(1_000_000), 0.1, 1.0, delta, [GaussianEvent(0.1)])


def test_what_was_calibrated_is_not_calibrated_again(monkeypatch):
    first = calibrated_multipliers(np.array([2.0, 1.0, 1.0]), 0.21, 1.0, 1e-6)
    assert first / first.min() == pytest.approx([2.0, 1.0, 1.0])
    monkeypatch.setattr(calibration, "composed_epsilon", lambda *_, **__: pytest.fail("again"))
    again = calibrated_multipliers(np.array([3.0, 6.0, 3.0]), 0.21, 1.0, 1e-6)
    assert again.tolist() == first[[1, 0, 2]].tolist()
    with pytest.raises(pytest.fail.Exception, match="again"):
        calibrated_multipliers(np.array([2.0, 1.0, 1.0]), 0.21, 1.1, 1e-6)


def test_what_is_released_first_is_paid_from_the_same_budget():
    first = GaussianEvent(8.0)
    alone = calibrated_multipliers(np.ones(100), 0.1, 1.0, 1e-6)
    after = calibrated_multipliers(np.ones(100), 0.1, 1.0, 1e-6, [first])
    assert (after > alone).all()
    events = [(first, 1), (SampledGaussianEvent(0.1, float(after[0])), 100)]
    assert 0.999 <= composed_epsilon(events, 1e-6) <= 1.0
    enough = 1.2 * composed_epsilon([(first, 1)], 1e-6)
    assert np.isfinite(calibrated_multipliers(np.ones(10), 0.1, enough, 1e-6, [first])).all()
    with pytest.raises(ValueError, match=r"cost all of epsilon=0\.1"):
        calibrated_multipliers(np.ones(100), 0.1, 0.1, 1e-6, [first])


def test_epsilon_two_neighbours_apart_is_found_where_numerical_errors_hide_it_later():
    """The computed delta never falls below the errors, and the factor grows."""
    events, delta = [(SampledGaussianEvent(1e-3, 20.0), 10_000)], 1e-11
    half = composed_epsilon(events, delta, 2) / 2
    assert (1 + math.exp(half)) * composed_delta(events, half) <= delta
    assert (1 + math.exp(1.0)) * composed_delta(events, 1.0) > delta


@pytest.mark.parametrize("noise_multiplier", [1e-95, 1e-3, 0.3])
@pytest.mark.parametrize("count", [1, 10**12])
def test_noise_too_small_to_matter_is_still_a_number(noise_multiplier, count):
    event = SampledGaussianEvent(0.01, noise_multiplier)
    epsilon = composed_epsilon([(event, count)], 1e-6)
    full = composed_epsilon([(GaussianEvent(noise_multiplier), count)], 1e-6)
    assert 1.0 < epsilon <= full * 1.01
    assert composed_delta([(event, count)], 0.5) > 1e-6


def test_the_order_of_events_changes_nothing():
    runs = [(SampledGaussianEvent(0.1, z), n) for z, n in ((3.0, 5), (4.0, 7), (3.0, 6))]
    merged = [(SampledGaussianEvent(0.1, z), n) for z, n in ((3.0, 11), (4.0, 7))]
    epsilons = {composed_epsilon(events, 1e-6) for events in (runs, runs[::-1], merged)}
    assert len(epsilons) == 1


@pytest.mark.parametrize("n_iter", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("delta", [1e-6, 1e-8, 1e-10, 1e-12])
def test_rounding_errors_of_the_composition_are_paid_for(n_iter, delta):
    """At rate 1 the exact epsilon is known; the Fourier transforms alone fall below it."""
    z = 0.3 * math.sqrt(n_iter)
    composed = composed_epsilon([(SampledGaussianEvent(1.0, z), n_iter)], delta)
    assert composed >= gdp_epsilon(math.sqrt(n_iter) / z, delta) * (1 - 1e-9)


class Meddling(Schedule):
    """Tries to change the plan through the metadata that it is shown."""

    def values(self, n_iter, metadata):
        object.__setattr__(metadata, "sampling_rate", 0.5)
        object.__setattr__(metadata, "n_samples", 1)
        for told in (metadata.clip, metadata.noise_std):
            if told is not None:
                told[:] = 1e-3
        return np.full(n_iter, 0.5)


@pytest.mark.parametrize("parameter", ["noise_schedule", "clip_schedule", "step_schedule"])
@pytest.mark.parametrize("sampling_rate", [0.1, 1.0])
@pytest.mark.parametrize("preconditioner", [None, "diagonal"])
def test_a_schedule_cannot_change_what_it_was_told(parameter, preconditioner, sampling_rate):
    plain = DPLogisticRegression(
        sampling_rate=sampling_rate, max_iter=5, preconditioner=preconditioner, noise_schedule=0.5,
        clip_schedule=0.5, step_schedule=0.5,
    )  # fmt: skip
    meddled = DPLogisticRegression(**{**plain.get_params(), parameter: Meddling()})
    expected, plan = plain.plan(*X.shape), meddled.plan(*X.shape)
    if preconditioner is not None:
        expected, plan = (
            expected.renewed(effective_dimension=3.0),
            plan.renewed(effective_dimension=3.0),
        )
    assert plan.ledger == expected.ledger
    assert plan.max_n_samples == len(X)
    assert plan.sampling_rate == sampling_rate
    for name in ("clip", "sensitivity", "noise_multiplier"):
        assert np.array_equal(getattr(plan, name), getattr(expected, name))
    assert meddled.fit(X, Y).privacy_ == expected.ledger


def test_the_rate_is_the_number_that_is_charged():
    for rate in (np.float32(0.3), Fraction(3, 10)):
        event = SampledGaussianEvent(rate, 3.0)
        assert type(event.sampling_rate) is float and event.sampling_rate == float(rate)
    ledger = DPLogisticRegression(sampling_rate=rate, max_iter=5).plan(1000, 5).ledger
    assert PrivacyLedger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


NEARLY_ALL = DiagonalPreconditioner(budget_fraction=0.9999999)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"sampling_rate": 1e-12}, "sampling_rate=1e-12 must be a number of at least 1e-09 and"),
        ({"sampling_rate": 0.1, "delta": 1e-15}, "delta=1e-15 is below .* set sampling_rate=1"),
        ({"sampling_rate": 0.1, "delta": 0.1, "max_iter": 1}, "probability 0.1 that a record"),
        ({"sampling_rate": 0.1, "preconditioner": NEARLY_ALL}, "Lower budget_fraction"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(parameters, words):
    with pytest.raises(ValueError, match=words):
        DPLogisticRegression(**parameters).fit(X, Y)


@pytest.mark.parametrize("guess", [-9.0, -0.5, 0.5, 9.0])
def test_a_crossing_is_found_from_either_side(guess):
    assert crossing(math.sinh, guess, 1e-9) == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize(
    ("budget", "guess"),
    [(29180586.489069115, 2629513166.953886), (5469246.484824341, 544418538.5356945), (1e8, 1e5)],
)
def test_a_run_is_as_long_as_can_be_wherever_the_search_ends(budget, guess):
    assert longest_run(float, budget, guess) == math.floor(budget)
