"""An objective over blocks of rows that are never all in memory, or not on one machine.

Each call goes to the objective of every block and the results are added, in the order of the
blocks. Solvers and mechanisms see no difference: a sum over rows is a sum over blocks.
"""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective


class Blocks(Protocol):
    """The objectives of blocks of rows, wherever they are, with the numbers of these rows."""

    block_rows: Sequence[int]

    def map(
        self, task: Callable, *arguments: Any, each: Sequence[Any] | None = None
    ) -> Iterator[np.ndarray]:
        """Yield ``task(objective, *arguments)`` for each block, in the order of the blocks.

        `task` can be pickled, and does not change the objective. `each` holds one more argument for
        each block; a block whose argument is None is left out. If any block fails, this raises:
        there is no result that stands for some of the blocks only.
        """

    def changed(self, method: str, *arguments: Any) -> "Blocks":
        """Return the same blocks, of objectives that this method of theirs returns."""


class BlockObjective:
    """The sums of an `Objective`, over blocks.

    Every result is the sum of those of the blocks, added in their order with compensation. So the
    same blocks give the same bits, wherever they are. `model` is an objective like those of the
    blocks, with a single row of zeros, which returns what does not depend on the data. Methods
    without a description do what those of `Objective` do.

    Notes
    -----
    The bounds on rounding are those of one `Objective` of all rows. The number of blocks may follow
    from a private number of records, and the noise must not depend on it. Let s_1, ..., s_m be the
    computed sums of blocks of n_1, ..., n_m rows, n in all, and u = 2^-53. Each s_j is within n_j
    times a chain length of its exact sum. The chain length never falls with the number of rows:
    together the s_j are within the bound for n rows. Compensated addition of the s_j adds ``u
    |sum_j s_j| + (m u)^2 sum_j |s_j|`` to first order (Ogita, Rump & Oishi, "Accurate sum and dot
    product", SIAM J. Sci. Comput. 2005, Proposition 4.5). For every m this is at most ``(2 + n^2 u)
    u n`` times a record's contribution.
    """

    def __init__(self, blocks: Blocks, model: "Objective") -> None:
        self._blocks = blocks
        self._model = model
        self._first_rows = np.concatenate([[0], np.cumsum(blocks.block_rows, dtype=np.int64)])
        self.n_records = int(self._first_rows[-1])
        self.loss, self.coef_shape = model.loss, model.coef_shape
        self.rounding_slack, self.line_rounding = model.rounding_slack, model.line_rounding
        self.moment_rounding = model.moment_rounding

    def _total(self, question, *arguments, each=None, **named):
        # The result for a single row of zeros has the right shape, and its arguments were checked.
        shape = _answer(self._model, *arguments, question=question, **named).shape
        task = partial(_answer, question=question, **named)
        n_answers = len(self._blocks.block_rows)
        if each is not None:
            n_answers = sum(argument is not None for argument in each)
        with contextlib.closing(self._blocks.map(task, *arguments, each=each)) as answers:
            return compensated_sum(shape, answers, n_answers)

    def _changed(self, method, argument):
        model = getattr(self._model, method)(argument)
        known = [model.stretches] if method == "in_basis" else []
        return BlockObjective(self._blocks.changed(method, argument, *known), model)

    second_moment = partialmethod(_total, "second_moment")
    # No scores are kept: each call computes those at the coefficients afresh.
    line_losses = partialmethod(_total, "line_losses")
    magnitude_histogram = partialmethod(_total, "magnitude_histogram")
    norm_histogram = partialmethod(_total, "norm_histogram")
    label_counts = partialmethod(_total, "label_counts")
    target_histogram = partialmethod(_total, "target_histogram")
    target_sum = partialmethod(_total, "target_sum")
    with_class_weights = partialmethod(_changed, "with_class_weights")
    with_target = partialmethod(_changed, "with_target")
    with_residuals = partialmethod(_changed, "with_residuals")
    scaled = partialmethod(_changed, "scaled")
    in_basis = partialmethod(_changed, "in_basis")
    weighed = partialmethod(_changed, "weighed")

    def gradient_sum(
        self, coef: np.ndarray, clip: float, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum over rows of the clipped gradients; see `Objective.gradient_sum`.

        Blocks without any of the given `rows`, numbers from 0 in rising order, need not be read.
        """
        each = None if rows is None else self._by_block(np.asarray(rows))
        return self._total("gradient_sum", coef, clip, each=each)

    def confirm(self, ask: Callable[[Any], np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Compare the kernels with the plain arithmetic; see `Objective.confirm`."""
        return self._total("confirm", ask, each=self._by_block(rows))

    def check(self) -> None:
        """Read every block once: a bad one then stops a fit before anything is released.

        Random batches do not reach all blocks, and the blocks that they reach are private.
        """
        for _ in self._blocks.map(type):
            pass

    def _by_block(self, rows):
        """Return the row numbers within each block, None for a block without any of the rows."""
        bounds = np.searchsorted(rows, self._first_rows)
        if bounds[0] > 0 or bounds[-1] < len(rows):
            raise ValueError(f"rows must lie from 0 to {self._first_rows[-1] - 1}.")
        return [
            rows[low:high] - first if high > low else None
            for low, high, first in zip(bounds[:-1], bounds[1:], self._first_rows, strict=False)
        ]


def compensated_sum(
    shape: tuple[int, ...], parts: Iterable[np.ndarray], n_parts: int
) -> np.ndarray:
    """Add arrays of a shape in the order given, with the rounding errors of the additions.

    Raises an error unless there are `n_parts`: the sum of some blocks is not that of the data.
    """
    total, error, count = np.zeros(shape), np.zeros(shape), 0
    for part in parts:
        # Two-sum: the exact rounding error of the addition.
        larger = total + part
        added = larger - total
        error += (total - (larger - added)) + (part - added)
        total, count = larger, count + 1
    if count != n_parts:
        raise RuntimeError(f"{count} blocks answered instead of {n_parts}; nothing was released.")
    corrected = total + error
    # Without clipping a sum may overflow, and its error is then NaN.
    return np.where(np.isfinite(corrected), corrected, total)


def _answer(objective, *arguments, question, **named):
    """Call a method of a copy: the state of an objective must not change a later result."""
    return getattr(copy.copy(objective), question)(*arguments, **named)
