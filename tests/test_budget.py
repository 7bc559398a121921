"""Budgets refuse bad values before anything is spent; the filter never admits too much."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import zcdp_epsilon
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.vault import PrivacyFilter


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


PRIVATE_COUNT = {"neighboring_relation": "add_or_remove_one"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon=0\.0 must be a number above 0"),
        ({"epsilon": "1"}, r"epsilon='1'"),
        ({"delta": 0.0}, r"delta=0\.0 must be a number above 0 and below 1"),
        ({"neighboring_relation": "swap"}, r"neighboring_relation='swap' is unknown; choose"),
        (PRIVATE_COUNT, r"n_samples_estimate=None: .* pass n_samples_estimate"),
        ({**PRIVATE_COUNT, "n_samples_estimate": 0}, r"n_samples_estimate=0 must be a whole"),
        ({**PRIVATE_COUNT, "n_samples_estimate": True}, r"n_samples_estimate=True must be"),
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


def test_what_rounding_admits_beyond_the_capacity_leaves_nothing():
    budget = PrivacyFilter(1.0)
    budget.spend(1.0 + 5e-13)
    assert budget.remaining == 0.0
    assert budget.admits(0.0) and not budget.admits(1e-12)


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, None, True, "1"])
def test_a_capacity_must_be_a_number_above_0(capacity):
    with pytest.raises(ValueError, match="capacity="):
        PrivacyFilter(capacity)


@pytest.mark.parametrize("cost", [-0.1, math.nan, None])
def test_a_cost_must_be_a_number_that_is_not_negative(cost):
    with pytest.raises(ValueError, match="A cost must be a number"):
        PrivacyFilter(1.0).spend(cost)
