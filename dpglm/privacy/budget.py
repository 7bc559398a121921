"""What may be spent: a budget fixed in advance, and a filter for adaptive spending."""

import math
from dataclasses import dataclass

from dpglm.exceptions import BudgetExceededError
from dpglm.privacy.accounting import gdp_mu, zcdp_rho
from dpglm.privacy.ledger import NEIGHBORING_RELATIONS

__all__ = [
    "CLIP_RANGE",
    "LARGEST_NOISE_MULTIPLIER",
    "N_REF_FACTOR",
    "PrivacyBudget",
    "PrivacyFilter",
]

# When every iteration is noisier than this, no data set is large enough to learn anything.
LARGEST_NOISE_MULTIPLIER = 1e6
# Rounding is bounded for so many times n_ref records, when their number is private.
N_REF_FACTOR = 16
CLIP_RANGE = (1e-100, 1e100)


# The composed noise multipliers are rounded numbers: aim this much below the budget.
_SAFETY = 1e-9
_FILTER_TOLERANCE = 1e-12


@dataclass(frozen=True)
class PrivacyBudget:
    """An (epsilon, delta) budget under one neighbouring relation.

    Parameters
    ----------
    epsilon : float
        Above 0; ``inf`` asks for no noise.
    delta : float
        Above 0 and below 1.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}
        Which datasets must be indistinguishable. ``"zero_out"``: one record becomes a null record
        that contributes nothing, and the number of records is public. ``"replace_one"``: one
        record becomes any other; twice the noise. ``"add_or_remove_one"``: the number of records
        is private too, and ``n_ref`` stands in for it.
    n_ref : int, optional
        A public number close to the number of records, chosen without looking at the data.
        Required by ``"add_or_remove_one"`` and meaningless otherwise.

    Raises
    ------
    ValueError
        If a parameter is out of range; nothing has been released then.

    Examples
    --------
    >>> from dpglm.privacy.budget import PrivacyBudget
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> round(budget.mu, 6)
    0.236704
    >>> budget.sensitivity(clip=2.0)
    2.0
    """

    epsilon: float
    delta: float
    neighboring_relation: str = "zero_out"
    n_ref: int | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.epsilon) or not self.epsilon > 0:
            raise ValueError(
                f"epsilon={self.epsilon!r} must be a number above 0; "
                "use a typical budget such as 1.0, or inf for a fit without noise."
            )
        if not _is_number(self.delta) or not 0 < self.delta < 1:
            raise ValueError(
                f"delta={self.delta!r} must be a number above 0 and below 1; "
                "choose it far below one over the number of records, such as 1e-6."
            )
        if self.neighboring_relation not in NEIGHBORING_RELATIONS:
            raise ValueError(
                f"neighboring_relation={self.neighboring_relation!r} is unknown; "
                f"choose one of {sorted(NEIGHBORING_RELATIONS)}."
            )
        if self.neighboring_relation == "add_or_remove_one":
            if self.n_ref is None:
                raise ValueError(
                    "n_ref=None: neighboring_relation='add_or_remove_one' keeps the number of "
                    "records private, so pass n_ref, a public number close to it."
                )
            if not _is_number(self.n_ref) or self.n_ref < 1 or self.n_ref != int(self.n_ref):
                raise ValueError(f"n_ref={self.n_ref!r} must be a whole number, 1 or more.")
        elif self.n_ref is not None:
            raise ValueError(
                f"n_ref={self.n_ref!r} is only used with neighboring_relation="
                f"'add_or_remove_one'; under {self.neighboring_relation!r} the number of records "
                "is public, so leave n_ref=None."
            )

    @property
    def mu(self) -> float:
        """The Gaussian differential privacy parameter to calibrate to, a hair on the safe side."""
        return gdp_mu(self.epsilon, self.delta) * (1 - _SAFETY)

    @property
    def rho(self) -> float:
        """The zero-concentrated parameter to calibrate to instead, likewise on the safe side."""
        return zcdp_rho(self.epsilon, self.delta) * (1 - _SAFETY)

    def sensitivity(self, clip: float) -> float:
        """Return the L2 sensitivity of a sum of rows of norm at most ``clip``.

        ``clip``, or twice that under replace-one: a record's old contribution leaves the sum and
        another enters it.
        """
        return NEIGHBORING_RELATIONS[self.neighboring_relation].sensitivity_factor * clip

    def public_n_samples(self, n_samples: int) -> int:
        """Return the count to divide by: ``n_samples`` where it is public, else ``n_ref``."""
        return n_samples if self.n_ref is None else int(self.n_ref)


class PrivacyFilter:
    """Admits releases while their summed cost stays within a capacity fixed in advance.

    Parameters
    ----------
    capacity : float
        The total, in the unit of the costs: ``mu**2`` for Gaussian differential privacy, or
        ``rho`` for zero-concentrated differential privacy.

    Notes
    -----
    The cost of a step, or the decision to stop, may depend on anything released before, never on
    unreleased data. Whatever was spent, the whole transcript then has the guarantee of the
    CAPACITY (Smith & Thakurta 2022 for Gaussian, Feldman & Zrnic 2021 for Renyi privacy); the sum
    of what happened to be spent is not a valid bound.

    Examples
    --------
    >>> from dpglm.privacy.budget import PrivacyFilter
    >>> budget = PrivacyFilter(capacity=1.0)
    >>> budget.spend(0.75)
    >>> budget.remaining
    0.25
    >>> budget.admits(0.5)
    False
    """

    def __init__(self, capacity: float) -> None:
        if not _is_number(capacity) or not capacity > 0:
            raise ValueError(f"capacity={capacity!r} must be a number above 0.")
        self.capacity = float(capacity)
        self._costs: list[float] = []

    @property
    def spent(self) -> float:
        """The sum of the costs so far."""
        return math.fsum(self._costs)

    @property
    def remaining(self) -> float:
        """What is left, never negative."""
        return max(self.capacity - self.spent, 0.0)

    def admits(self, *costs: float) -> bool:
        """Return whether releases of these costs may be made, all of them."""
        for cost in costs:
            if not _is_number(cost) or not cost >= 0:
                raise ValueError(f"cost={cost!r} must be a number, 0 or above.")
        return math.fsum([*self._costs, *costs]) <= self.capacity * (1 + _FILTER_TOLERANCE)

    def spend(self, cost: float) -> None:
        """Charge a release, BEFORE it is made.

        Raises
        ------
        BudgetExceededError
            If it does not fit; nothing is charged then.
        """
        if not self.admits(cost):
            raise BudgetExceededError(
                f"A release of cost {cost:.6g} exceeds the remaining {self.remaining:.6g} of "
                f"{self.capacity:.6g}; nothing was charged."
            )
        self._costs.append(float(cost))


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, (bool, str)) and not math.isnan(value)  # type: ignore[arg-type]
    except TypeError:
        return False
