"""What the holders of private data share: a public weight for each record, and sums by blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.estimators.inputs import resolved_class_weight
from dpglm.privacy.mechanisms import GaussianSum

__all__ = [
    "UNIT_ROUNDOFF",
    "Records",
    "largest_weight",
    "refuse_slack",
    "terms_of_a_sum",
    "with_intercept",
]

UNIT_ROUNDOFF = 2.0**-53
_BLOCK_ROWS = 2048
# More noise for rounding errors than this many times that for a record is not worth drawing, and
# `GaussianSum` refuses a few times as much, when the data have been touched already.
_LARGEST_SLACK = 256.0


def terms_of_a_sum(n_samples: int) -> float:
    """Return how many additions the error of a sum by blocks amounts to.

    With u = 2^-53 and B rows in a block, a sum of n terms is within ``(B + n / B) u n`` of its
    largest term.
    """
    return _BLOCK_ROWS + n_samples / _BLOCK_ROWS


def largest_weight(class_weight: Any, n_classes: int) -> float:
    """Return the largest weight of a class as a parameter says it; that of an unnamed one is 1."""
    if class_weight is None or not isinstance(class_weight, dict):
        return 1.0
    given = resolved_class_weight(class_weight, np.array(list(class_weight)))
    return float(max([*given, 1.0] if len(given) < n_classes else given))


def refuse_slack(mechanism: GaussianSum, advice: str) -> None:
    """Raise, before the data are touched, where rounding errors would need most of the noise."""
    if mechanism.noise_multiplier > 0 and mechanism.slack > _LARGEST_SLACK * mechanism.sensitivity:
        raise ValueError(
            f"Rounding errors would be hidden by {mechanism.slack / mechanism.sensitivity:.3g} "
            f"times the noise that hides a record. {advice}"
        )


def with_intercept(rows: Any) -> Any:
    """Append a column of ones to dense or CSR rows."""
    ones = np.ones((rows.shape[0], 1))
    if sparse.issparse(rows):
        return sparse.hstack([rows, ones], format="csr")
    return np.hstack([rows, ones])


class Records:
    """Holds the labels of private records; what it answers is private as well.

    ``target`` is -1 or +1 for one output, and the index of the class for K outputs;
    ``class_weight`` has one number for each class.
    """

    def __init__(
        self, target: np.ndarray, n_outputs: int, class_weight: np.ndarray | None = None
    ) -> None:
        self._target, self._n_outputs = target, n_outputs
        self._class = (target > 0).astype(int) if n_outputs == 1 else target
        self.class_weight = np.ones(max(2, n_outputs)) if class_weight is None else class_weight
        self._weight = self.class_weight[self._class]

    @property
    def n_rows(self) -> int:
        """Number of records; private where it is not public."""
        return len(self._target)

    @property
    def largest_weight(self) -> float:
        """The largest weight of a class, whether it has records or not."""
        return float(self.class_weight.max())

    def _sum(self, shape: tuple[int, ...], of_block: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Return a sum over all records, taken by blocks to keep rounding errors small."""
        total = np.zeros(shape)
        for start in range(0, len(self._target), _BLOCK_ROWS):
            total += of_block(slice(start, start + _BLOCK_ROWS))
        return total
