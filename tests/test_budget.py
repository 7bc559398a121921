"""Budgets refuse bad values before anything is spent; the filter never admits too much."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent, SampledGaussianEvent, zcdp_epsilon
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.vault import PlannedReleases, PrivacyFilter


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_either_unit_spends_the_budget_from_below(epsilon):
    budget = PrivacyBudget(epsilon, 1e-6)
    for reached in (gdp_epsilon(budget.mu, 1e-6), zcdp_epsilon(budget.rho, 1e-6)):
        assert epsilon * (1 - 1e-7) < reached <= epsilon


@pytest.mark.parametrize(
    ("relation", "n_samples_estimate", "expected"),
    [("zero_out", None, 1.5), ("replace_one", None, 3.0), ("add_or_remove_one", 90, 1.5)],
)
def test_sensitivity_of_a_clipped_sum_per_relation(relation, n_samples_estimate, expected):
    assert PrivacyBudget(1.0, 1e-6, relation, n_samples_estimate).sensitivity(1.5) == expected


def test_only_add_or_remove_one_hides_the_number_of_records():
    assert PrivacyBudget(1.0, 1e-6).public_n_samples(123) == 123
    assert PrivacyBudget(1.0, 1e-6, "add_or_remove_one", 100).public_n_samples(123) == 100
    assert PrivacyBudget(1.0, 1e-6, "add_or_remove_one", 1).most_samples(123) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon=0\.0 must be a number above 0"),
        ({"epsilon": "1"}, r"epsilon='1'"),
        ({"delta": 0.0}, r"delta=0\.0 must be a number above 0 and below 1"),
        ({"neighboring_relation": "swap"}, r"neighboring_relation='swap' is unknown; choose"),
        (
            {"neighboring_relation": "add_or_remove_one"},
            r"n_samples_estimate=None: .* pass n_samples_estimate",
        ),
        (
            {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": 0},
            r"n_samples_estimate=0 must be a whole",
        ),
        (
            {"neighboring_relation": "add_or_remove_one", "n_samples_estimate": True},
            r"n_samples_estimate=True must be",
        ),
        ({"n_samples_estimate": 10}, r"n_samples_estimate=10 is only used with"),
    ],
)
def test_bad_budgets_are_sentences_that_name_the_parameter_and_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrivacyBudget(**{"epsilon": 1.0, "delta": 1e-6, **arguments})


@given(capacity=st.floats(1e-6, 1e3), costs=st.lists(st.floats(0, 1e3), max_size=60))
def test_the_filter_never_admits_more_than_its_capacity(capacity, costs):
    budget, admitted = PrivacyFilter(capacity), []
    for cost in costs:
        if budget.admits(cost):
            budget.spend(cost)
            admitted.append(cost)
        else:
            assert math.fsum([*admitted, cost]) > capacity
            with pytest.raises(BudgetExceededError):
                budget.spend(cost)
    assert budget.spent == math.fsum(admitted)
    assert budget.spent <= capacity * (1 + 1e-12)
    assert 0 <= budget.remaining <= capacity


def test_the_filter_admits_exact_thirds_in_full():
    budget = PrivacyFilter(0.3)
    for _ in range(3):
        budget.spend(0.1)
    assert not budget.admits(1e-9)


def test_what_rounding_admits_beyond_the_capacity_leaves_nothing():
    budget = PrivacyFilter(1.0)
    budget.spend(1.0 + 5e-13)
    assert budget.remaining == 0.0
    assert budget.admits(0.0) and not budget.admits(1e-12)


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, None, True, "1"])
def test_a_capacity_must_be_a_number_above_0(capacity):
    with pytest.raises(ValueError, match="capacity="):
        PrivacyFilter(capacity)


def test_a_refused_release_charges_nothing_and_says_what_is_left():
    budget = PrivacyFilter(1.0)
    budget.spend(0.75)
    with pytest.raises(BudgetExceededError, match=r"cost 0\.5 exceeds the remaining 0\.25 of 1"):
        budget.spend(0.5)
    assert budget.spent == 0.75


@pytest.mark.parametrize("cost", [-0.1, math.nan, None])
def test_a_cost_must_be_a_number_that_is_not_negative(cost):
    with pytest.raises(ValueError, match="A cost must be a number"):
        PrivacyFilter(1.0).spend(cost)


LOUD, QUIET = GaussianEvent(1.0), GaussianEvent(9.0)
ALMOST = GaussianEvent(math.nextafter(1.0, 0.0))


def charged(allowance, *events):
    for event in events:
        allowance.charge(event)


def test_planned_releases_are_admitted_once_each_and_in_order():
    allowance = PlannedReleases([(LOUD, 1), (QUIET, 2)])
    charged(allowance, LOUD, QUIET, QUIET)
    with pytest.raises(BudgetExceededError, match="None is next"):
        charged(allowance, QUIET)


@pytest.mark.parametrize(
    "events",
    [(QUIET,), (LOUD, LOUD), (LOUD, QUIET, LOUD), (ALMOST,), (SampledGaussianEvent(1.0, 1.0),)],
)
def test_what_was_not_planned_is_refused_and_so_is_everything_after_it(events):
    allowance = PlannedReleases([(LOUD, 1), (QUIET, 2)])
    charged(allowance, *events[:-1])
    with pytest.raises(BudgetExceededError, match="not what was planned"):
        charged(allowance, events[-1])
    for event in (LOUD, QUIET):
        with pytest.raises(BudgetExceededError, match="not what was planned"):
            charged(allowance, event)


@pytest.mark.parametrize(("unit", "cost"), [("gdp", 0.25), ("zcdp", 0.125)])
def test_a_filter_charges_an_event_by_its_unit(unit, cost):
    budget = PrivacyFilter(1.0, unit)
    budget.charge(GaussianEvent(2.0))
    assert budget.spent == cost
