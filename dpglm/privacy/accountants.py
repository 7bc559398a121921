"""The two units of an adaptive budget, and what a cost in either buys."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.conversions import gdp_epsilon, zcdp_epsilon
from dpglm.privacy.events import FilterEvent, LaplaceSelectionEvent, SelectionEvent
from dpglm.privacy.selection import ExponentialSelection, LaplaceSelection
from dpglm.privacy.selection_costs import (
    bounded_range_epsilon_from_mu,
    bounded_range_epsilon_from_rho,
    pure_epsilon_from_mu,
    pure_epsilon_from_rho,
)

__all__ = ["ACCOUNTANTS", "SELECTIONS", "Accountant", "Selection"]


@dataclass(frozen=True)
class Accountant:
    """A unit of costs: ``mu**2`` of Gaussian differential privacy, or ``rho`` of zCDP.

    Attributes
    ----------
    of_budget, of_event : callable
        What a budget holds, and what a release costs.
    noise_multiplier : callable
        Of the Gaussian sum that a cost buys.
    epsilon : callable
        Of a capacity, at a delta.
    event : callable
        The event of a filter of that capacity.
    """

    of_budget: Callable[[PrivacyBudget], float]
    of_event: Callable[[Any], float]
    noise_multiplier: Callable[[float], float]
    epsilon: Callable[[float, float], float]
    event: Callable[[float], FilterEvent]


ACCOUNTANTS = {
    "gdp": Accountant(
        of_budget=lambda budget: budget.mu**2,
        of_event=lambda event: event.mu**2,
        noise_multiplier=lambda cost: 1 / math.sqrt(cost),
        epsilon=lambda capacity, delta: gdp_epsilon(math.sqrt(capacity), delta),
        event=lambda capacity: FilterEvent(mu=math.sqrt(capacity)),
    ),
    "zcdp": Accountant(
        of_budget=lambda budget: budget.rho,
        of_event=lambda event: event.rho,
        noise_multiplier=lambda cost: 1 / math.sqrt(2 * cost),
        epsilon=zcdp_epsilon,
        event=lambda capacity: FilterEvent(rho=capacity),
    ),
}


@dataclass(frozen=True)
class Selection:
    """A mechanism of selection, its event, and the epsilon that a cost buys in each unit."""

    mechanism: type
    event: type
    epsilon_from: dict[str, Callable[[float], float]]


SELECTIONS = {
    "exponential": Selection(
        ExponentialSelection,
        SelectionEvent,
        {
            "gdp": lambda cost: bounded_range_epsilon_from_mu(math.sqrt(cost)),
            "zcdp": bounded_range_epsilon_from_rho,
        },
    ),
    "laplace": Selection(
        LaplaceSelection,
        LaplaceSelectionEvent,
        {"gdp": lambda cost: pure_epsilon_from_mu(math.sqrt(cost)), "zcdp": pure_epsilon_from_rho},
    ),
}
