"""The ledger: exact composition, agreement with dp_accounting, honest words, safe files."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dpglm.privacy.composition import (
    composed_delta,
    composed_epsilon,
    composed_pld,
    numerical_error,
)
from dpglm.privacy.events import (
    ChoiceEvent,
    FilterEvent,
    GaussianEvent,
    ObjectivePerturbationEvent,
    ParallelEvent,
    PureEvent,
    SampledGaussianEvent,
    zcdp_epsilon,
)
from dpglm.privacy.gaussian import gdp_delta, gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger, rounded_up

DELTA = 1e-6
SOME = [GaussianEvent(20.0)] * 3 + [GaussianEvent(30.0)] * 2


def ledger_of(events, **kwargs):
    return PrivacyLedger.from_events(events, reporting_delta=DELTA, **kwargs)


def test_composition_matches_the_vectors(vectors):
    for row in vectors("conversions", "composition_gdp"):
        z = row["noise_multipliers"]
        multipliers = [z["value"]] * z["repeat"] if isinstance(z, dict) else z
        ledger = ledger_of([GaussianEvent(m) for m in multipliers])
        assert ledger.mu() == pytest.approx(row["mu"], rel=row["rtol"])
        assert ledger.epsilon(row["delta"]) == pytest.approx(row["eps"], rel=row["rtol"])
        assert ledger.delta(row["eps"]) == pytest.approx(row["delta"], rel=1e-7)
        zcdp = zcdp_epsilon(ledger.rho(), row["delta"])
        assert zcdp == pytest.approx(row["eps_zcdp_cks"], rel=1e-9)


@pytest.mark.parametrize(
    "events",
    [SOME, [FilterEvent(mu=0.3)], [ParallelEvent([[(SOME[0], 30)], [(SOME[3], 1)]]), *SOME]],
    ids=["sums", "filter", "parts"],
)
@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
def test_dp_accounting_agrees_under_each_relation(relation, events):
    """It doubles the sensitivity under replace-one by itself: its noise is over the clip."""
    ledger = ledger_of(events, neighboring_relation=relation)
    accountant = PLDAccountant(ledger.dp_accounting_relation, value_discretization_interval=4e-4)
    reached = accountant.compose(ledger.to_dp_event()).get_epsilon(DELTA)
    assert reached == pytest.approx(ledger.epsilon(DELTA), rel=2e-3)
    assert composed_pld(ledger.events, 1e-4).get_epsilon_for_delta(DELTA) == pytest.approx(
        reached, rel=1e-3
    )


def test_parts_that_share_no_record_cost_what_the_dearest_does():
    north, south, all_records = (ledger_of([GaussianEvent(z)] * 2) for z in (8.0, 5.0, 9.0))
    both = PrivacyLedger.parallel(north, south)
    assert (both.mu(), both.rho(), both.epsilon()) == (south.mu(), south.rho(), south.epsilon())
    assert PrivacyLedger.parallel(both, all_records).mu() == south.mu()
    together = (south + all_records).epsilon()
    assert (both + all_records).epsilon() == pytest.approx(together, rel=1e-12)
    assert both.n_releases == 4 and "parts of the records that share none" in str(both)


def test_parts_are_refused_as_their_sum_is():
    sampled = [SampledGaussianEvent(0.01, 1.0)]
    for event in (ParallelEvent([[(sampled[0], 1)]]), *sampled):
        with pytest.raises(ValueError, match="not under 'replace_one'"):
            ledger_of([event], neighboring_relation="replace_one")
    one, other = ledger_of(SOME), ledger_of(SOME, neighboring_relation="replace_one")
    with pytest.raises(ValueError, match="do not compose"):
        PrivacyLedger.parallel(one, other)
    seeded = ledger_of(SOME, seeded=True)
    with pytest.raises(ValueError, match="coincide"):
        PrivacyLedger.parallel(one, seeded, seeded)
    bare = PrivacyLedger.parallel(one, ledger_of([GaussianEvent(0.0)]))
    assert not bare.protects and bare.epsilon() == math.inf
    for parts in ([], [()]):
        with pytest.raises(ValueError, match="one part or more"):
            ParallelEvent(parts)


@pytest.mark.parametrize("count", [0, -1, 1e-9, True, "x"])
def test_counts_of_a_part_are_checked_as_those_of_the_whole(count):
    """A release that counts -1 times would pay for another."""
    event = GaussianEvent(1.0)
    with pytest.raises(ValueError, match=r"count=.* must be a whole number from 1"):
        ParallelEvent((((event, 1), (event, count)),))
    document = PrivacyLedger.parallel(ledger_of([event])).to_dict()
    releases = document["events"][0]["parts"][0]
    releases.append({**releases[0], "count": count})
    with pytest.raises(ValueError, match=r"count=.* must be a whole number from 1"):
        PrivacyLedger.from_dict(document)


def test_what_no_event_of_dp_accounting_stands_for_is_not_exported():
    mixed = ledger_of([SampledGaussianEvent(0.01, 1.0), ChoiceEvent(0.5)])
    for ask, unit in ((mixed.to_dp_event, "rho"), (mixed.rho, "rho"), (mixed.mu, "mu")):
        with pytest.raises(ValueError, match=f"{unit} is undefined: SampledGaussianEvent"):
            ask()


def test_numbers_of_a_short_type_do_not_overflow():
    """In eight bits 16 squared is 0, and twice 100 is negative: the cost would be too small."""
    short, event = np.int8(100), SampledGaussianEvent(0.01, 2.0)
    parts = (((event, 100), (event, 100)),)
    of_parts = PrivacyLedger.from_events([ParallelEvent(parts)], reporting_delta=DELTA)
    few = ledger_of([GaussianEvent(40.0), ChoiceEvent(0.1)])
    for ledger, same in (
        (replace(of_parts, events=[(ParallelEvent([[(event, short)] * 2]), 1)]), of_parts),
        (replace(few, n_changed=np.int8(16)), few.group(16)),
        (replace(few, reporting_delta=np.float16(0.01)), None),
    ):
        same = same or replace(few, reporting_delta=float(np.float16(0.01)))
        assert ledger.epsilon() == same.epsilon()
        assert json.dumps(ledger.to_dict()) == json.dumps(same.to_dict())


@pytest.mark.parametrize("n_changed", [1, 2])
@pytest.mark.parametrize(
    "event", [SampledGaussianEvent(0.1, 1.0), ObjectivePerturbationEvent(5.0, 0.1), PureEvent(0.1)]
)
def test_a_cost_is_asked_at_a_number_within_its_limits(event, n_changed):
    ledger = ledger_of([event], n_changed=n_changed)
    for delta in (math.nan, -1e-3, 1.0, True, "1e-6"):
        with pytest.raises(ValueError, match="delta="):
            ledger.epsilon(delta)
    for epsilon in (math.nan, -1.0, True, "1", None):
        with pytest.raises(ValueError, match="epsilon="):
            ledger.delta(epsilon)


def test_sum_composes_and_joins_equal_runs():
    ledger = ledger_of(SOME)
    assert (ledger + ledger).mu() == pytest.approx(math.sqrt(2) * ledger.mu(), rel=1e-15)
    assert (ledger_of(SOME[:2]) + ledger_of(SOME[2:])).events == ledger.events
    assert (ledger_of(SOME[:4]) + ledger_of(SOME[4:])).events == ledger.events
    assert PrivacyLedger(list(ledger.events), "zero_out", DELTA) == ledger
    assert (sum([ledger, ledger, ledger])).n_releases == 15


def test_sum_keeps_every_assumption_and_the_stricter_delta():
    a = ledger_of(SOME, assumptions=("a", "b"))
    b = PrivacyLedger.from_events(SOME, reporting_delta=1e-8, assumptions=("b", "c"), seeded=True)
    assert (a + b).assumptions[:3] == ("a", "b", "c")
    assert "fixed before any result was seen" in (a + b).assumptions[3]
    assert (a + b).reporting_delta == 1e-8
    assert (a + b).seeded


def test_seeded_noise_does_not_compose_with_seeded_noise():
    seeded, fresh = ledger_of(SOME, seeded=True), ledger_of(SOME)
    with pytest.raises(ValueError, match="may coincide"):
        seeded + seeded
    with pytest.raises(ValueError, match="may coincide"):
        (seeded + fresh) + seeded
    assert (seeded + fresh).n_releases == 10


@pytest.mark.parametrize(
    ("events", "delta"),
    [
        ([(PureEvent(0.1), 1)], "delta=0)"),
        ([(PureEvent(0.1), 400)], "delta=1e-05)"),  # by their trade-offs they cost less
        ([(PureEvent(0.1), 1), (GaussianEvent(20.0), 1)], "delta=1e-05)"),
    ],
)
def test_the_sentence_has_no_delta_where_none_is_needed(events, delta):
    ledger = PrivacyLedger(tuple(events), neighboring_relation="replace_one", reporting_delta=1e-5)
    assert f"{delta}" in ledger.statement and ("delta=0" in ledger.statement) == delta.startswith(
        "delta=0"
    )


def test_relations_do_not_mix():
    zeroed, replaced = ledger_of(SOME), ledger_of(SOME, neighboring_relation="replace_one")
    for one, other in ((zeroed, replaced), (replaced, zeroed)):
        with pytest.raises(ValueError, match=r"'(zero_out|replace_one)' and '.+' do not compose"):
            one + other
    with pytest.raises(TypeError):
        ledger_of(SOME) + 1


def test_dictionary_round_trip_through_json():
    ledger = ledger_of(SOME, neighboring_relation="replace_one", assumptions=("x",), seeded=True)
    text = json.dumps(ledger.to_dict())
    assert json.loads(text)["version"] == 1
    assert PrivacyLedger.from_dict(json.loads(text)) == ledger
    fresh = replace(ledger, seeded=False)
    apart = PrivacyLedger.parallel(PrivacyLedger.parallel(ledger, fresh) + fresh, fresh)
    persons = ledger_of(SOME, privacy_unit="group").group(2)
    for ledger in (apart, persons):
        assert PrivacyLedger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version 3 cannot be read"),
        ({"events": [{"kind": "laplace", "count": 1}]}, "not a ledger"),
        ({"events": [{"kind": "gaussian", "count": 0, "noise_multiplier": 1.0}]}, "count=0 must"),
        (
            {"events": [{"kind": "filter", "count": 2**53 + 1, "mu": 1.0}]},
            "from 1 to 9007199254740992",
        ),
        ({"events": [{"kind": "choice", "count": 1, "epsilon": 10**400}]}, "must be a number"),
        ({"assumptions": "abc"}, "list of strings"),
        ({"seeded": "false"}, "seeded must be true or false"),
    ],
)
def test_malformed_dictionaries_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PrivacyLedger.from_dict({**ledger_of(SOME).to_dict(), **change})
    with pytest.raises(ValueError, match="not a ledger"):
        PrivacyLedger.from_dict({"version": 1})


def test_the_sentence_states_cost_relation_and_assumptions():
    text = ledger_of(SOME, assumptions=("the label set is public",)).statement
    ledger = ledger_of(SOME)
    assert f"(epsilon={rounded_up(ledger.epsilon())}, delta=1e-06)-differentially private" in text
    assert "zero_out" in text and "the number of records is public" in text
    assert "; you assert that the label set is public; " in text and "operating system" in text
    # A null record at most doubles mu when it stands between two records.
    doubled = ledger_of([GaussianEvent(e.noise_multiplier / 2) for e in SOME])
    assert f"implies epsilon={rounded_up(doubled.epsilon())} under replace_one" in text
    text = ledger_of(SOME, neighboring_relation="replace_one").statement
    assert "implies" not in text and "zero_out" not in text
    text = ledger_of(SOME, neighboring_relation="add_or_remove_one").statement
    assert "the number of records is private, its estimate public" in text


def test_the_sentence_warns_of_a_seed_and_of_missing_noise():
    seeded = ledger_of(SOME, seeded=True).statement
    assert seeded.startswith("No privacy guarantee against whoever knows, guesses or tries out")
    assert "operating system" not in seeded
    assert ledger_of([GaussianEvent(0.0)]).statement.startswith("No privacy guarantee")


def test_no_noise_costs_everything_and_no_release_nothing():
    assert ledger_of([GaussianEvent(0.0)]).mu() == math.inf
    for event in (GaussianEvent(0.0), SampledGaussianEvent(0.5, 0.0)):
        assert ledger_of([event]).epsilon() == math.inf and ledger_of([event]).delta(5.0) == 1.0
    assert ledger_of([]).mu() == 0.0 and ledger_of([]).epsilon() == 0.0


def test_without_dp_accounting_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    ledger = ledger_of([GaussianEvent(1.0)])
    assert ledger.statement
    for call in (ledger.to_dp_event, lambda: ledger.dp_accounting_relation):
        with pytest.raises(ImportError, match=r'pip install "dpglm\[accounting\]"'):
            call()


@pytest.mark.parametrize("value", [1.0, 1.0004, 0.99996, 3.0001e-7, 1e-300, 12345.6, 9.9996, 0.0])
def test_a_printed_cost_is_never_below_the_cost(value):
    assert value <= float(rounded_up(value)) <= value * 1.0011


BEYOND = (-0.5, math.nan, False, "0.1", None)
PARAMETERS = {
    "noise_multiplier": (GaussianEvent, [1e-100, 0.5, 1e100, 0], [0.99e-100, 1.01e100, math.inf]),
    "sampling_rate": (
        lambda rate: SampledGaussianEvent(rate, 1.0),
        [1e-9, 0.5, 1],
        [0.0, 0.99e-9, 1 + 1e-12],
    ),
    "epsilon": (ChoiceEvent, [1e-300, 0.5, math.inf], [0.0]),
    "offset": (lambda offset: ObjectivePerturbationEvent(1.0, offset), [0, 0.5], [math.inf]),
    "mu": (lambda mu: FilterEvent(mu=mu), [1e-300, 0.5], [0.0]),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_events_are_numbers_within_their_limits(name):
    make, good, bad = PARAMETERS[name]
    for value in good:
        assert getattr(make(value), name) == value
    for value in (*bad, *BEYOND):
        with pytest.raises(ValueError, match=f"{name}="):
            make(value)
    with pytest.raises(ValueError, match="noise_multiplier="):
        SampledGaussianEvent(0.5, -1.0)
    with pytest.raises(ValueError, match="is unknown; choose one of"):
        ChoiceEvent(1.0, "gumbel")


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_samples_hide_a_record_that_appears_but_not_one_that_changes(relation):
    sampled = [SampledGaussianEvent(0.1, 3.0)]
    assert ledger_of(sampled, neighboring_relation=relation).n_releases == 1
    with pytest.raises(
        ValueError, match="accounted for under zero_out and add_or_remove_one, not under"
    ):
        ledger_of(sampled, neighboring_relation="replace_one")
    for event in (
        SampledGaussianEvent(0.1, 3.0, "poisson_replace_one"),
        SampledGaussianEvent(0.1, 3.0, "without_replacement"),
    ):
        replaced = ledger_of([event], neighboring_relation="replace_one")
        assert "1 of them from random batches" in str(replaced)
        assert PrivacyLedger.from_dict(replaced.to_dict()) == replaced
        with pytest.raises(ValueError, match="accounted for under replace_one, not under"):
            ledger_of([event], neighboring_relation=relation)


@pytest.mark.parametrize(("noise_multiplier", "count"), [(1.0, 1), (3.0, 5), (20.0, 100)])
def test_numerical_composition_is_hardly_above_the_exact_cost(noise_multiplier, count):
    mu = math.sqrt(count) / noise_multiplier
    reached = composed_pld([(GaussianEvent(noise_multiplier), count)]).get_epsilon_for_delta(DELTA)
    assert 1 - 1e-9 < reached / gdp_epsilon(mu, DELTA) < 1 + 3e-5


def test_a_delta_is_never_above_1():
    assert 0.999 < composed_delta([(SampledGaussianEvent(1.0, 0.5), 100)], 0.0) <= 1.0
    few = [(SampledGaussianEvent(0.1, 3.0), 5)]
    allowed = composed_delta(few, 0.5) - composed_pld(few).get_delta_for_epsilon(0.5)
    assert allowed == pytest.approx(numerical_error(few), rel=1e-3) and allowed > 0
    hopeless = [(SampledGaussianEvent(0.1, 3.0), 1), (FilterEvent(rho=50.0), 1)]
    assert 0.9 < composed_delta(hopeless, 1e-3) <= 1.0


def test_the_delta_of_distributions_and_concentrated_privacy_is_the_least_that_suffices():
    mixed = [(SampledGaussianEvent(0.1, 1.0), 20), (FilterEvent(rho=0.02), 1)]
    delta = composed_delta(mixed, 1.5)
    assert composed_epsilon(mixed, delta) <= 1.5 < composed_epsilon(mixed, delta * (1 - 1e-4))
    halves = [composed_epsilon([run], DELTA / 2) for run in mixed]
    assert composed_epsilon(mixed, DELTA) == pytest.approx(math.fsum(halves), rel=1e-12)


def test_what_delta_covers_costs_nothing_two_neighbours_apart_either():
    rare = [(SampledGaussianEvent(1e-3, 50.0), 1)]
    free = 2 * composed_delta(rare, 0.0)
    assert composed_epsilon(rare, 1.01 * free, 2) == 0.0 < composed_epsilon(rare, 0.99 * free, 2)
    hopeless = [ObjectivePerturbationEvent(0.005, 0.1)]
    assert composed_epsilon([(*hopeless, 1)], DELTA, 2) == math.inf
    assert "implies" not in ledger_of(hopeless).statement


KINDS = {
    "gaussian": GaussianEvent(40.0),
    "batches": SampledGaussianEvent(0.1, 8.0),
    "tilt": ObjectivePerturbationEvent(8.0, 0.02),
    "choice": ChoiceEvent(0.05),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_what_k_records_cost_is_no_more_than_k_steps_from_record_to_record(kind, k):
    ledger = ledger_of([KINDS[kind]] * 3)
    group = ledger.group(k)
    assert group.delta(group.epsilon()) <= DELTA * (1 + 1e-3)
    # Each step multiplies what was lost before by e^epsilon.
    steps = sum(math.exp(j * 0.2) for j in range(k)) * ledger.delta(0.2)
    assert group.delta(k * 0.2) <= min(1.0, steps) * (1 + 1e-6)
    assert PrivacyLedger.from_dict(json.loads(json.dumps(group.to_dict()))) == group
    assert (f"for {k} rows at once" in str(group)) == (k > 1)


def test_k_records_of_gaussian_releases_have_k_times_the_mu():
    mu, delta, k = 0.2680511232, 1e-5, 4
    group = ledger_of([GaussianEvent(1 / mu)]).group(2).group(2)
    assert group.mu() == pytest.approx(k * mu) and group.rho() == pytest.approx(8 * mu**2)
    assert group.epsilon(delta) == pytest.approx(4.7460800369088885, rel=1e-9)
    with pytest.raises(ValueError, match="4 rows: export the ledger of one record"):
        group.to_dp_event()


def test_the_rule_for_k_records_without_a_trade_off_is_taken_at_its_best():
    mu, delta, k = 0.2680511232, 1e-5, 4
    # An offset leaves no other rule.
    generic = ledger_of([ObjectivePerturbationEvent(1 / mu, 1e-12)]).group(k)
    allowed = [
        k * epsilon
        for epsilon in (j / 2000 for j in range(1, 4000))
        if gdp_delta(mu, epsilon) * math.expm1(k * epsilon) / math.expm1(epsilon) <= delta
    ]
    assert generic.epsilon(delta) == pytest.approx(min(allowed), rel=1e-3)
    # 4.989 is what 200 values of delta find.
    assert generic.epsilon(delta) < 4.989445745963938


def test_ledgers_of_rows_of_groups_and_of_several_records_do_not_add_up():
    ledger = ledger_of(SOME)
    for other, unit in (
        (ledger.group(2), "2 rows"),
        (ledger_of(SOME, privacy_unit="group"), ""),
    ):
        with pytest.raises(ValueError, match=f"for 1 row and for {unit}.* do not compose"):
            ledger + other
        assert (other + other).epsilon() > other.epsilon()
    for wrong in (
        {"privacy_unit": "person"},
        {"n_changed": 0},
        {"n_changed": 2.0},
        {"n_changed": 10**400},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            PrivacyLedger((), "zero_out", DELTA, **wrong)
    with pytest.raises(ValueError, match=r"k=1\.5 must be a whole number"):
        ledger.group(1.5)
