"""How an adaptive fit divides its budget between a second moment, gradients and selections."""

import math
from dataclasses import dataclass

from dpglm.privacy.accountants import ACCOUNTANTS, SELECTIONS
from dpglm.privacy.budget import PrivacyBudget

__all__ = ["Division", "automatic_splits", "selection_epsilon"]


@dataclass(frozen=True)
class Division:
    """What the first iteration costs, as parts of a budget.

    Parameters
    ----------
    n_splits : float
        How many first iterations the budget that a second moment leaves would buy.
    selection_share : float or "published"
        Share of an iteration's cost that its selection takes.
    selection : {"exponential", "laplace"}
    moment_share : float
        Share of the whole budget that a second moment takes, 0 without one.
    """

    n_splits: float
    selection_share: float | str
    selection: str
    moment_share: float

    def costs(self, accountant: str, budget: PrivacyBudget) -> tuple[float, float]:
        """Return the cost of a gradient and of a selection, in the unit of the accountant."""
        unit = ACCOUNTANTS[accountant]
        if budget.epsilon == math.inf:
            return math.inf, math.inf
        if self.selection_share == "published":
            epsilon = budget.epsilon / (2 * self.n_splits)
            # Lee & Kifer (2018) take the Gaussian of Dwork & Roth (2014), Theorem A.1.
            classical = math.sqrt(2 * math.log(1.25 / budget.delta)) / epsilon
            mu_squared = classical**-2
            gradient = mu_squared if accountant == "gdp" else mu_squared / 2
            return gradient, unit.of_event(SELECTIONS[self.selection].event(epsilon))
        iteration = (1 - self.moment_share) * unit.of_budget(budget) / self.n_splits
        return (1 - self.selection_share) * iteration, self.selection_share * iteration

    def resolved_accountant(self, accountant: str, budget: PrivacyBudget) -> str:
        """GDP, if its filter admits all the releases that the zCDP filter was to pay for."""
        if accountant != "auto":
            return accountant
        if budget.epsilon == math.inf:
            return "gdp"
        gradient, choice = self.costs("zcdp", budget)
        moment = self.moment_share * budget.rho
        n_iter = (budget.rho - moment) / (gradient + choice)
        epsilon = selection_epsilon("zcdp", self.selection, choice)
        iterations = n_iter * (2 * gradient + SELECTIONS[self.selection].event(epsilon).mu ** 2)
        return "gdp" if 2 * moment + iterations <= budget.mu**2 else "zcdp"


def automatic_splits(budget: PrivacyBudget, n_samples: int) -> float:
    """Return ``n mu / 10`` between 10 and 200, with mu for a sensitivity of one clip."""
    if budget.epsilon == math.inf:
        return 1.0
    return min(max(n_samples * budget.mu / budget.sensitivity(10.0), 10.0), 200.0)


def selection_epsilon(accountant: str, selection: str, cost: float) -> float:
    """Return the epsilon of a selection that costs this much."""
    return math.inf if cost == math.inf else SELECTIONS[selection].epsilon_from[accountant](cost)
