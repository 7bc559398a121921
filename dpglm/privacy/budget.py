"""Privacy budgets, each for one neighbouring relation, and the limits of clipping norms."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS, gdp_mu

# When every iteration is noisier than this, no data set is large enough to learn anything.
LARGEST_NOISE_MULTIPLIER = 1e6
CLIP_RANGE = (1e-100, 1e100)
# When the number of records is private, rounding is bounded for 16 n_samples_estimate records.
ESTIMATE_FACTOR = 16
# The composed noise multipliers are rounded numbers: aim this much below the budget.
_SAFETY = 1e-9


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
        The data sets that must be indistinguishable. ``"zero_out"``: one record becomes a null
        record that contributes nothing, and the number of records is public. ``"replace_one"``: one
        record becomes any other; twice the noise. ``"add_or_remove_one"``: the number of records
        is private too, and ``n_samples_estimate`` replaces it.
    n_samples_estimate : int, optional
        A public number close to the number of records, chosen without looking at the data.
        Required by ``"add_or_remove_one"`` and meaningless otherwise.

    Raises
    ------
    ValueError
        If a parameter is out of range; nothing has been released then.

    Examples
    --------
    >>> from dpglm import PrivacyBudget
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> round(budget.mu, 6)
    0.236704
    >>> budget.sensitivity(clip=2.0)
    2.0
    """

    epsilon: float
    delta: float
    neighboring_relation: str = "zero_out"
    n_samples_estimate: int | None = None

    def __post_init__(self) -> None:
        advice = "use a typical budget such as 1.0, or inf for a fit without noise"
        epsilon = check_number("epsilon", self.epsilon, above=0, advice=advice)
        if epsilon < math.inf:
            check_number("epsilon", epsilon, at_most=1e150, advice=advice)
        advice = "choose it far below one over the number of records, such as 1e-6"
        delta = check_number("delta", self.delta, above=0, below=1, advice=advice)
        # Arithmetic in a shorter type would spend more than was asked for.
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        check_choice("neighboring_relation", self.neighboring_relation, NEIGHBORING_RELATIONS)
        estimate, is_private = self.n_samples_estimate, "add_or_remove_one"
        if self.neighboring_relation != is_private and estimate is not None:
            raise ValueError(
                f"n_samples_estimate={estimate!r} is only used with neighboring_relation="
                f"{is_private!r}; under {self.neighboring_relation!r} the number of records is "
                "public, so leave n_samples_estimate=None."
            )
        if self.neighboring_relation == is_private and estimate is None:
            raise ValueError(
                f"n_samples_estimate=None: neighboring_relation={is_private!r} keeps the number of "
                "records private, so pass n_samples_estimate, a public number close to it."
            )
        if estimate is not None:
            estimate = check_whole("n_samples_estimate", estimate)
            object.__setattr__(self, "n_samples_estimate", estimate)

    @cached_property
    def mu(self) -> float:
        """The Gaussian differential privacy parameter to calibrate to, rounded down by 1e-9."""
        return gdp_mu(self.epsilon, self.delta) * (1 - _SAFETY)

    @cached_property
    def rho(self) -> float:
        """The zero-concentrated parameter to calibrate to instead, rounded down by 1e-9."""
        from dpglm.privacy.events import zcdp_rho

        return zcdp_rho(self.epsilon, self.delta) * (1 - _SAFETY)

    def sensitivity(self, clip: Any) -> Any:
        """Return the L2 sensitivity of a sum of rows of norm at most ``clip``, a number or array.

        The sensitivity is ``clip``, or twice ``clip`` under replace-one, which takes a
        contribution and adds another. Theorem: clipped_moves (proofs/Vectors.v).
        """
        return NEIGHBORING_RELATIONS[self.neighboring_relation].sensitivity_factor * clip

    def n_mu(self, n_samples: int, left: float = 1.0) -> float:
        """Return n mu of what is left of mu^2: records times mu, at a sensitivity of one."""
        return n_samples * self.mu * math.sqrt(left) / self.sensitivity(1.0)

    def public_n_samples(self, n_samples: int) -> int:
        """Return the count to divide by: ``n_samples`` where it is public, else its estimate."""
        return n_samples if self.n_samples_estimate is None else int(self.n_samples_estimate)

    def most_samples(self, n_samples: int) -> int:
        """Return the public number of records up to which rounding errors are bounded."""
        factor = 1 if self.n_samples_estimate is None else ESTIMATE_FACTOR
        return factor * self.public_n_samples(n_samples)


def check_clip(name: str, value: Any) -> float:
    """Return a clipping norm, or another scale whose square has no more than rounding errors."""
    return check_number(name, value, at_least=CLIP_RANGE[0], at_most=CLIP_RANGE[1])
