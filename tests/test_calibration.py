"""Mini-batches: whole schedules calibrated to the budget, as another accountant confirms."""

import math
import sys
from collections import Counter

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpglm import (
    DecayingClip,
    DiagonalPreconditioner,
    DPLinearSVM,
    DPLogisticRegression,
    DynamicNoise,
    Geometric,
    Piecewise,
    Polynomial,
)
from dpglm.privacy.calibration import MOST_LEVELS, calibrated_multipliers, coarsened
from dpglm.privacy.composition import composed_delta, composed_epsilon
from dpglm.privacy.events import GaussianEvent, PoissonSampledEvent
from dpglm.privacy.ledger import PrivacyLedger

X, Y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2


def ledger_of(*runs, delta=1e-6):
    return PrivacyLedger(runs, "zero_out", delta)


def test_epsilon_matches_the_vectors(vectors):
    for row in vectors("sampling", "poisson_gaussian_pld"):
        ledger = ledger_of((PoissonSampledEvent(row["q"], row["sigma"]), row["T"]))
        assert ledger.epsilon(row["delta"]) == pytest.approx(row["eps"], rel=row["rtol"])
        assert ledger.delta(row["eps"]) == pytest.approx(row["delta"], rel=20 * row["rtol"])


def random_configuration(seed):
    rng = np.random.default_rng(seed)

    def choose(*options):
        return options[rng.integers(len(options))]

    relation = choose("zero_out", "add_or_remove_one")
    return choose(DPLogisticRegression, DPLinearSVM)(
        epsilon=float(np.exp(rng.uniform(np.log(0.1), np.log(8)))),
        delta=choose(1e-5, 1e-6, 1e-8),
        neighboring_relation=relation,
        n_ref=180 if relation == "add_or_remove_one" else None,
        sampling_rate=float(10 ** rng.uniform(-2.5, -0.1)),
        noise_schedule=choose(
            "constant", Geometric(1, 0.99), Polynomial(3, 1, 2), DynamicNoise(decay=4.0),
            Piecewise((2, 1), (0.4,)),
        ),
        clip_schedule=choose(0.5, DecayingClip(3.0)),
        preconditioner=choose(None, DiagonalPreconditioner(0.1)),
        max_iter=int(rng.integers(1, 400)),
    )  # fmt: skip


def check_with_dp_accounting(estimator):
    """The ledger's epsilon is the accountant's, and calibration lands just below the target."""
    ledger = estimator.fit(X, Y).privacy_
    interval = 2e-5 if estimator.epsilon < 1 else 1e-4
    accountant = PLDAccountant(
        ledger.dp_accounting_relation, value_discretization_interval=interval
    )
    confirmed = accountant.compose(ledger.to_dp_event()).get_epsilon(estimator.delta)
    assert ledger.epsilon() == pytest.approx(confirmed, rel=1e-3)
    assert 0.999 <= ledger.epsilon() / estimator.epsilon <= 1.0
    assert ledger == estimator.plan(*X.shape).ledger


@pytest.mark.parametrize("seed", range(5))
def test_dp_accounting_confirms_calibrated_runs(seed):
    check_with_dp_accounting(random_configuration(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 35))
def test_dp_accounting_confirms_thirty_calibrated_runs(seed):
    check_with_dp_accounting(random_configuration(seed))


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_levels_are_few_and_never_below_what_they_stand_for(multipliers):
    levels = coarsened(np.array(multipliers))
    assert len(np.unique(levels)) <= MOST_LEVELS
    assert (levels >= multipliers).all()
    ratio = max(multipliers) / min(multipliers)
    assert (levels <= np.array(multipliers) * ratio ** (1 / MOST_LEVELS) * (1 + 1e-12)).all()


def test_the_noise_drawn_has_the_rounded_levels():
    model = DPLogisticRegression(
        sampling_rate=0.1, max_iter=60, clip_schedule=1.0, preconditioner=None,
        noise_schedule=Geometric(1, 0.98),
    )  # fmt: skip
    plan = model.plan(*X.shape)
    assert len(np.unique(plan.noise_multiplier)) == MOST_LEVELS
    assert plan.facts.noise_std == pytest.approx(plan.noise_multiplier * plan.sensitivity)
    trace = model.fit(X, Y).trace_
    drawn = [event.noise_multiplier for event in trace.events]
    assert drawn == plan.noise_multiplier.tolist()
    assert (np.diff(plan.noise_multiplier) <= 0).all()


def test_a_rate_of_nearly_one_costs_what_the_full_batch_costs():
    nearly = calibrated_multipliers(np.ones(50), 1 - 1e-9, 1.0, 1e-6)[0]
    whole = DPLogisticRegression(max_iter=50, preconditioner=None, clip_schedule=1.0)
    assert nearly == pytest.approx(whole.plan(100, 2).noise_multiplier[0], rel=1e-3)


def test_sampling_amplifies():
    rates = [1.0, 0.3, 0.1, 0.03, 0.01]
    epsilons = [ledger_of((PoissonSampledEvent(q, 5.0), 100)).epsilon() for q in rates]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] == pytest.approx(ledger_of((GaussianEvent(5.0), 100)).epsilon(), rel=1e-3)
    assert epsilons[-1] < 0.05 * epsilons[0]


def test_what_is_released_first_is_paid_from_the_same_budget():
    first = GaussianEvent(8.0)
    alone = calibrated_multipliers(np.ones(100), 0.1, 1.0, 1e-6)
    after = calibrated_multipliers(np.ones(100), 0.1, 1.0, 1e-6, [first])
    assert (after > alone).all()
    events = [(first, 1), (PoissonSampledEvent(0.1, float(after[0])), 100)]
    assert 0.999 <= composed_epsilon(events, 1e-6) <= 1.0
    with pytest.raises(ValueError, match=r"cost all of epsilon=0\.1"):
        calibrated_multipliers(np.ones(100), 0.1, 0.1, 1e-6, [first])


def test_epsilon_two_neighbours_apart_bounds_that_of_the_group():
    """For full batches the exact group privacy is that of twice the mu."""
    sampled = [(PoissonSampledEvent(1.0, 4.0), 20)]
    twice = composed_epsilon([(GaussianEvent(2.0), 20)], 1e-6)
    bound = composed_epsilon(sampled, 1e-6, 2)
    assert twice <= bound <= 1.2 * twice
    half = bound / 2
    assert (1 + math.exp(half)) * composed_delta(sampled, half) <= 1e-6 * (1 + 1e-6)


def test_the_order_of_events_changes_nothing():
    runs = [(PoissonSampledEvent(0.1, z), n) for z, n in ((3.0, 5), (4.0, 7), (3.0, 6))]
    assert composed_epsilon(runs, 1e-6) == composed_epsilon(runs[::-1], 1e-6)
    merged = Counter({3.0: 11, 4.0: 7})
    again = [(PoissonSampledEvent(0.1, z), n) for z, n in merged.items()]
    assert composed_epsilon(runs, 1e-6) == composed_epsilon(again, 1e-6)


def test_without_dp_accounting_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"sampling_rate below 1.*dpglm\[accounting\]"):
        DPLogisticRegression(sampling_rate=0.017).plan(1000, 5)
    assert DPLogisticRegression().plan(1000, 5).n_iter == 100


def test_no_trade_off_is_claimed_for_samples():
    ledger = ledger_of((PoissonSampledEvent(0.1, 3.0), 5))
    with pytest.raises(ValueError, match="mu is undefined"):
        ledger.mu()
    with pytest.raises(ValueError, match="rho is undefined"):
        ledger.rho()
    assert "5 of them from random batches" in str(ledger)
    assert PrivacyLedger.from_dict(ledger.to_dict()) == ledger


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate=0.0 must be a number above 0"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5 must be a number above 0"),
        ({"sampling_rate": "0.1"}, "sampling_rate='0.1' must be a number"),
        ({"sampling_rate": True}, "sampling_rate=True must be a number"),
        ({"sampling_rate": math.nan}, "sampling_rate=nan must be a number"),
        (
            {"sampling_rate": 0.1, "neighboring_relation": "replace_one"},
            "the amplification that is charged holds for a record that appears or vanishes",
        ),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(parameters, words):
    with pytest.raises(ValueError, match=words):
        DPLogisticRegression(**parameters).fit(X, Y)


def test_a_replace_one_ledger_holds_no_samples():
    with pytest.raises(ValueError, match="replace_one"):
        PrivacyLedger(((PoissonSampledEvent(0.1, 3.0), 5),), "replace_one", 1e-6)


def test_calibration_prints_nothing(capfd, caplog):
    DPLogisticRegression(sampling_rate=0.03, noise_schedule=Geometric(1, 0.9)).plan(1000, 5)
    captured = capfd.readouterr()
    assert (captured.out, captured.err, caplog.records) == ("", "", [])


def test_without_noise_nothing_is_protected():
    model = DPLogisticRegression(
        epsilon=math.inf, sampling_rate=0.5, max_iter=3, preconditioner=None, clip_schedule=math.inf
    )
    ledger = model.fit(X, Y).privacy_
    assert ledger.epsilon() == math.inf
    assert ledger.delta(1.0) == 1.0
    assert str(ledger).startswith("No privacy guarantee")
