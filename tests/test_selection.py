"""Private selection: exact laws, valid ranges, costs of the literature, honest events."""

import json
import math

import numpy as np
import pytest
from dp_accounting.dp_event import ComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from mpmath import mp

from dpglm.audit.choices import permute_and_flip_law
from dpglm.privacy import selection
from dpglm.privacy.composition import composed_pld
from dpglm.privacy.events import (
    ChoiceEvent,
    FilterEvent,
    GaussianEvent,
    pure_mu,
    zcdp_epsilon,
)
from dpglm.privacy.gaussian import gdp_epsilon, gdp_log_delta
from dpglm.privacy.ledger import PrivacyLedger, rounded_up
from dpglm.privacy.noise import entropy_source, rounded_laplace
from dpglm.privacy.selection import (
    SELECTIONS,
    ExponentialSelection,
    LaplaceSelection,
)


def ledger_of(events):
    return PrivacyLedger.from_events(events, reporting_delta=1e-6)


def law_of(mechanism, scores):
    """The exact probabilities of the exponential mechanism, from the integer weights it uses."""
    total, ticket, entropy = [], [0], entropy_source(0)

    def drawn(bound, entropy):
        total[:] = [bound]
        return ticket[0]

    def choice(number):
        ticket[0] = number
        return mechanism.release(scores, entropy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "uniform_below", drawn)
        choice(0)
        edges = [0]
        for j in range(len(scores)):
            low, high = 0, total[0]
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if choice(middle) > j else (middle + 1, high)
            edges.append(low)
    return np.array([int(w) / total[0] for w in np.diff(edges)], dtype=float)


def test_the_law_of_the_exponential_mechanism_matches_the_vectors(vectors):
    for row in vectors("selection", "selection_probabilities"):
        mechanism = ExponentialSelection(1.0, 1.0 / row["scale"])
        law = law_of(mechanism, np.array(row["utilities"]))
        assert law == pytest.approx(row["exponential_mechanism"], rel=row["rtol"])


def test_the_least_weight_is_that_of_the_exponent_minus_44():
    law = law_of(ExponentialSelection(1.0, 1.0), np.array([0.0, -1e9, -1e300]))
    assert law[1:] == pytest.approx(np.exp([-44.0, -44.0]), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 20.0])
def test_neighbouring_scores_keep_log_ratios_within_epsilon(epsilon):
    rng = np.random.default_rng(0)
    mechanism = ExponentialSelection(score_range=2.0, epsilon=epsilon)
    for spread in (0.1, 10.0, 1e3, 1e9):
        scores = rng.normal(size=4) * spread
        change = rng.uniform(-5, 5) + 2.0 * rng.integers(0, 2, 4)
        ratio = np.log(law_of(mechanism, scores) / law_of(mechanism, scores + change))
        assert np.ptp(ratio) <= epsilon + 1e-9


def test_costs_match_the_vectors(vectors):
    for row in vectors("selection", "selection_costs"):
        epsilon, rel = row["eps"], row["rtol"]
        pure, ranged = ChoiceEvent(epsilon, "laplace"), ChoiceEvent(epsilon)
        assert pure.rho == pytest.approx(row["zcdp_pure"], rel=rel)
        assert pure.mu == pure_mu(epsilon) == pytest.approx(row["gdp_mu_pure"], rel=rel)
        assert ranged.rho == pytest.approx(row["zcdp_bounded_range"], rel=rel)
        assert ranged.mu == pytest.approx(row["gdp_mu_bounded_range"], rel=rel)


def test_permute_and_flip_is_pure_and_of_no_bounded_range(vectors):
    scores, moved = np.array([0.0, -1.0, -0.5]), np.array([1.0, 0.0, 1.0])
    one, other = (np.log(permute_and_flip_law(q, 1.0)) for q in (scores, scores + moved))
    assert np.abs(one - other).max() <= 1.0 < np.ptp(one - other)
    noisy = [ChoiceEvent(1.0, how).mu for how in ("permute_and_flip", "laplace")]
    assert noisy[0] == noisy[1] > ChoiceEvent(1.0).mu
    for row in vectors("selection", "selection_probabilities"):
        law = permute_and_flip_law(np.array(row["utilities"]), row["scale"])
        assert law == pytest.approx(row["permute_and_flip"], rel=row["rtol"])


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.3, 0.99, 1.01, 5.0, 60.0])
def test_costs_invert(epsilon):
    for how in SELECTIONS:
        choice = ChoiceEvent(epsilon, how)
        assert choice.epsilon_from_mu(choice.mu, how) == pytest.approx(epsilon, rel=1e-12)
        assert choice.epsilon_from_rho(choice.rho, how) == pytest.approx(epsilon, rel=1e-12)
    assert ChoiceEvent.epsilon_from_mu(1.0) == 2 * ChoiceEvent.epsilon_from_mu(1.0, "laplace")


def bounded_range_delta(epsilon, at):
    """Dong, Durfee & Rogers (2020): the least delta of a bounded range, where |at| <= epsilon."""
    return np.expm1((at - epsilon) / 2) ** 2 / -math.expm1(-epsilon)


def test_the_profile_of_a_bounded_range_matches_the_vectors(vectors):
    for row in vectors("selection", "bounded_range_profile"):
        delta = bounded_range_delta(row["eps"], row["eps_prime"])
        assert delta == pytest.approx(row["delta"], rel=row["rtol"])


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_the_profile_lies_below_the_gaussian_one_and_above_every_two_point_pair(epsilon):
    at = np.linspace(-epsilon, epsilon, 41)[1:-1]
    delta = bounded_range_delta(epsilon, at)
    mu = ChoiceEvent(epsilon).mu
    gaussian = [
        math.exp(gdp_log_delta(mu, e))
        if e >= 0
        else 1 - math.exp(e) * (1 - math.exp(gdp_log_delta(mu, -e)))
        for e in at
    ]
    assert (delta <= np.array(gaussian) + 1e-12).all()
    t = np.linspace(-epsilon, 0, 2001)[1:-1, None]
    # Log-ratios t and t + epsilon: the two-point pairs of an epsilon-bounded range.
    q = -np.expm1(t) / (np.exp(t + epsilon) - np.exp(t))
    pairs = np.maximum(q * np.exp(t + epsilon) - q * np.exp(at), 0) + np.maximum(
        (1 - q) * np.exp(t) - (1 - q) * np.exp(at), 0
    )
    assert pairs.max(axis=0) == pytest.approx(delta, rel=1e-3, abs=1e-7)


def test_loss_distributions_lie_above_the_profile_and_compose():
    one = ledger_of([ChoiceEvent(0.5)])
    for at in (0.0, 0.1, 0.4):
        reached = composed_pld(one.events, 1e-3).get_delta_for_epsilon(at)
        assert reached > bounded_range_delta(0.5, at)
    many = ledger_of([ChoiceEvent(0.05)] * 400)
    reached = composed_pld(many.events, 1e-3).get_epsilon_for_delta(1e-6)
    assert reached == pytest.approx(gdp_epsilon(many.mu(), 1e-6), rel=1e-3)
    pure = ledger_of([ChoiceEvent(0.05, "laplace")] * 400)
    assert composed_pld(pure.events, 1e-3).get_epsilon_for_delta(1e-6) <= pure.epsilon() * 1.01
    mixed = ledger_of([GaussianEvent(10.0), ChoiceEvent(0.1)])
    reached = composed_pld(mixed.events, 1e-4).get_epsilon_for_delta(1e-6)
    assert gdp_epsilon(0.1, 1e-6) < reached <= mixed.epsilon() * 1.001


def test_a_ledger_reports_the_better_of_two_valid_bounds():
    many = ledger_of([ChoiceEvent(0.05)] * 400)
    assert many.epsilon() == zcdp_epsilon(many.rho(), 1e-6) < gdp_epsilon(many.mu(), 1e-6)
    few = ledger_of([GaussianEvent(10.0)] * 9 + [ChoiceEvent(0.05)])
    assert few.epsilon() == gdp_epsilon(few.mu(), 1e-6) < zcdp_epsilon(few.rho(), 1e-6)
    assert few.delta(few.epsilon()) <= 1e-6 and many.delta(many.epsilon()) <= 1e-6


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize(
    "events",
    [
        [FilterEvent(rho=0.02)] * 2,
        [ChoiceEvent(0.4)] * 2,
        [FilterEvent(rho=0.01), GaussianEvent(5.0), ChoiceEvent(0.1)],
    ],
    ids=["filters", "selections", "mixed"],
)
def test_dp_accounting_agrees_on_concentrated_events(events, relation):
    ledger = PrivacyLedger.from_events(events, reporting_delta=1e-6, neighboring_relation=relation)
    accountant = RdpAccountant(
        orders=np.linspace(1.01, 200, 20_000), neighboring_relation=ledger.dp_accounting_relation
    )
    assert isinstance(ledger.to_dp_event(), ComposedDpEvent)
    reached = accountant.compose(ledger.to_dp_event()).get_epsilon(1e-6)
    assert reached == pytest.approx(zcdp_epsilon(ledger.rho(), 1e-6), rel=1e-3)


@pytest.mark.parametrize("event", [FilterEvent(rho=0.02), FilterEvent(mu=0.2)])
def test_a_filter_says_that_the_whole_budget_is_charged(event):
    ledger = ledger_of([event])
    assert "; 1 budget, charged in full whatever was spent of it" in ledger.statement
    assert PrivacyLedger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
    double = FilterEvent(rho=0.08) if event.mu is None else FilterEvent(mu=0.4)
    implied = ledger_of([double]).epsilon()
    assert f"implies epsilon={rounded_up(implied)} under replace_one" in ledger.statement
    both = ledger + ledger_of([GaussianEvent(10.0)])
    assert "1 release and 1 budget, charged" in str(both)
    assert both.rho() == pytest.approx(0.025)


def test_a_concentrated_filter_has_neither_mu_nor_a_loss_distribution():
    ledger = ledger_of([FilterEvent(rho=0.02)])
    with pytest.raises(ValueError, match="mu is undefined"):
        ledger.mu()
    with pytest.raises(ValueError, match="no privacy loss distribution"):
        composed_pld(ledger.events, 1e-4)


@pytest.mark.parametrize("mechanism_type", SELECTIONS.values())
def test_edges(mechanism_type):
    rng = entropy_source(0)
    exact = mechanism_type(math.inf, math.inf)
    assert exact.release(np.array([0.0, 2.0, 2.0]), rng) == 1 and exact.scale == 0.0
    mechanism = mechanism_type(1.0, 1.0)
    for bad in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="nothing was released"):
            mechanism.release(np.array([0.0, bad]), rng)
    assert rng.words_drawn == 0
    assert mechanism.release(np.array([-1e300, 1e300]), rng) == 1
    for arguments in (
        (0.0, 1.0), (1e-250, 1.0), (1e250, 1.0), (math.nan, 1.0), (1.0, -1.0, -2.0),
        (1.0, 0.0), (1.0, 1e-10), (1.0, 1e-9), (1.0, 1.0, -0.5), (1.0, 1.0, math.nan),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="cannot be drawn"):
            mechanism_type(*arguments)
    assert mechanism_type(1e-240, 1e-3, 1e-240).scale == pytest.approx(2e-237, rel=1e-3)
    assert 6.0 < mechanism_type(score_range=2.0, epsilon=0.5, slack=1.0).scale < 6.0 * (1 + 1e-8)


def test_the_scale_has_what_rounding_can_take_and_little_more():
    exponential = ExponentialSelection(score_range=1.0, epsilon=1e-7)
    assert 7.5e-13 < 1e-7 - 1.0 / exponential.scale < 8.5e-13
    assert 1e-12 < ExponentialSelection(1.0, 1.0).scale - 1.0 < 3e-12
    laplace = LaplaceSelection(score_range=1.0, epsilon=0.01)
    assert 2 + 2.0**-10 < (0.01 * laplace.scale - 1.0) / laplace.grid < 3 + 2.0**-10


def test_laplace_rounding_is_correct_where_doubles_would_err(scripted_entropy):
    mp.dps = 60
    scale, fallbacks = 2.0**30, 0
    for k in range(300):
        half = mp.mpf(2_000_000_001 + 2 * k) / 2
        tail_bits = int(mp.exp(-half / scale) * 2**63)
        entropy = scripted_entropy([tail_bits << 1, 2**63, 2**62])
        (drawn,) = rounded_laplace(1, scale, entropy)
        fallbacks += entropy.words_drawn == 3
        more = (2**62 << 64 | 2**63) if entropy.words_drawn == 3 else 2**127
        tail = (mp.mpf(tail_bits) + mp.mpf(more + 1) / 2**128) / 2**63
        assert drawn == int(mp.nint(-mp.log(tail) * scale))
    assert fallbacks == 300
