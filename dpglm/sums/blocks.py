"""An objective over blocks of rows that are never all in memory, or not on one machine.

Each question is put to the objective of every block and the answers are added, in the order of the
blocks. Solvers and mechanisms see no difference: a sum over rows is a sum over blocks.
"""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from dpglm.losses import Loss
    from dpglm.sums.objective import Objective

__all__ = ["BlockObjective", "Blocks", "compensated_sum"]


class Blocks(Protocol):
    """The objectives of blocks of rows, wherever they are.

    Attributes
    ----------
    block_rows : sequence of int
        Number of rows of each block.
    """

    block_rows: Sequence[int]

    def map(
        self, task: Callable, *arguments: Any, each: Sequence[Any] | None = None
    ) -> Iterator[np.ndarray]:
        """Yield ``task(objective, *arguments)`` for each block, in the order of the blocks.

        Parameters
        ----------
        task : callable
            It can be pickled, and does not change the objective it is given.
        *arguments
            The same for every block.
        each : sequence, optional
            One more argument for each block; a block whose argument is None is left out.

        Raises
        ------
        Exception
            If any block fails: there is no result that stands for some of the blocks only.
        """

    def in_basis(self, basis: np.ndarray, stretches: tuple[float, float]) -> "Blocks":
        """Return the same blocks, each objective `in_basis`, of known stretches."""


class BlockObjective:
    """The sums of an `Objective`, over blocks.

    Every answer is the sum of the answers of the blocks, added in their order with compensation:
    the same blocks give the same bits, wherever they come from and wherever they are summed.

    Parameters
    ----------
    blocks : Blocks
        The objectives that hold the data.
    model : Objective
        One like those of the blocks, of a single row of zeros: it knows everything that does not
        depend on the data.

    Notes
    -----
    The bounds on rounding are those of one `Objective` of all rows, so that the noise is the same:
    the number of blocks, which they must not depend on, may follow from a private number of
    records. Let s_1, ..., s_m be the computed sums of blocks of n_1, ..., n_m rows, n in all, and
    u = 2^-53. Each s_j is within n_j times a chain length of its exact sum, and the chain length
    never falls with the number of rows: together they are within the bound for n rows. Compensated
    addition of the s_j adds ``u |sum_j s_j| + (m u)^2 sum_j |s_j|`` to first order (Ogita, Rump &
    Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 2005, Proposition 4.5): at most
    ``(2 + n^2 u) u n`` times what a record contributes, whatever m is.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.sums.blocks import BlockObjective
    >>> from dpglm.losses import Hinge
    >>> from dpglm.sums.objective import Objective
    >>> from dpglm.sources.arrays import ArraySource
    >>> def make(X, y):
    ...     return Objective(X, y, Hinge(), fit_intercept=False)
    >>> source = ArraySource(np.eye(3), np.ones(3), block_rows=2)
    >>> objective = BlockObjective(source.blocks(make), make(np.zeros((1, 3)), np.ones(1)))
    >>> objective.gradient_sum(np.zeros(3), clip=0.5)
    array([-0.5, -0.5, -0.5])
    """

    def __init__(self, blocks: Blocks, model: "Objective") -> None:
        self._blocks = blocks
        self._model = model
        self._first_rows = np.concatenate([[0], np.cumsum(blocks.block_rows, dtype=np.int64)])

    @property
    def loss(self) -> "Loss":
        """The loss."""
        return self._model.loss

    @property
    def coef_shape(self) -> tuple[int, ...]:
        """Shape of the coefficients, and of what `gradient_sum` returns."""
        return self._model.coef_shape

    @property
    def n_rows(self) -> int:
        """Number of rows; private where the number of records is."""
        return int(self._first_rows[-1])

    def gradient_sum(
        self, coef: np.ndarray, clip: float, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Sum over rows of the clipped gradients; see `Objective.gradient_sum`.

        Blocks without any of the given `rows`, numbers from 0 in rising order, need not be read.
        """
        each = None if rows is None else self._by_block(np.asarray(rows))
        return self._total("gradient_sum", coef, clip, each=each)

    def check(self) -> None:
        """Read every block once: a bad one then stops a fit before anything is released.

        Random batches do not reach all blocks, and which they reach is private.
        """
        for _ in self._blocks.map(_nothing):
            pass

    def second_moment(self, row_bound: float, diagonal: bool) -> np.ndarray:
        """Sum over rows of the products of their columns; see `Objective.second_moment`."""
        return self._total("second_moment", row_bound, diagonal)

    def line_losses(
        self,
        coef: np.ndarray,
        direction: np.ndarray,
        steps: np.ndarray,
        *,
        loss_clip: float | None = None,
        clip: float | None = None,
    ) -> np.ndarray:
        """Sums of losses along a line; see `Objective.line_losses`.

        No scores are kept: each call computes those at `coef` afresh.
        """
        return self._total("line_losses", coef, direction, steps, loss_clip=loss_clip, clip=clip)

    def in_basis(self, basis: np.ndarray) -> "BlockObjective":
        """Return the same objective in other coefficients; see `Objective.in_basis`."""
        model = self._model.in_basis(basis)
        return BlockObjective(self._blocks.in_basis(basis, model.stretches), model)

    def penalty_gradient(self, coef: np.ndarray) -> np.ndarray:
        """Gradient of the penalty; see `Objective.penalty_gradient`."""
        return self._model.penalty_gradient(coef)

    def rounding_slack(self, n_samples: int) -> float:
        """Bound on what rounding adds to the sensitivity of `gradient_sum`, over the clip."""
        return self._model.rounding_slack(n_samples)

    def line_rounding(self, n_samples: int, bound: float) -> float:
        """Bound on the rounding error of each of the sums of `line_losses`."""
        return self._model.line_rounding(n_samples, bound)

    def moment_rounding(self, n_samples: int) -> float:
        """Bound on what rounding adds to the sensitivity of `second_moment`, over its square."""
        return self._model.moment_rounding(n_samples)

    def _total(self, question, *arguments, each=None, **named):
        # The answer of a single row of zeros has the right shape, and its arguments were checked.
        shape = _answer(self._model, *arguments, question=question, **named).shape
        task = partial(_answer, question=question, **named)
        n_answers = len(self._blocks.block_rows)
        if each is not None:
            n_answers = sum(argument is not None for argument in each)
        with contextlib.closing(self._blocks.map(task, *arguments, each=each)) as answers:
            return compensated_sum(shape, answers, n_answers)

    def _by_block(self, rows):
        """Numbers within each block of the rows that it holds, None where it holds none."""
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
    """Add arrays in the order given, with the rounding errors of the additions.

    Parameters
    ----------
    shape : tuple of int
    parts : iterable of ndarray
    n_parts : int
        How many there must be.

    Returns
    -------
    ndarray of that shape

    Raises
    ------
    RuntimeError
        If there are fewer or more: the sum of some blocks is not the sum of the data.

    Examples
    --------
    >>> import numpy as np
    >>> parts = [np.array([1.0]), np.array([1e100]), np.array([1.0]), np.array([-1e100])]
    >>> compensated_sum((1,), parts, 4)
    array([2.])
    """
    total, error, count = np.zeros(shape), np.zeros(shape), 0
    for part in parts:
        larger = total + part
        added = larger - total
        error += (total - (larger - added)) + (part - added)
        total, count = larger, count + 1
    if count != n_parts:
        raise RuntimeError(f"{count} blocks answered instead of {n_parts}; nothing was released.")
    corrected = total + error
    # Without a clip a sum may overflow, and its error then is not a number.
    return np.where(np.isfinite(corrected), corrected, total)


def _nothing(objective):
    return np.zeros(())


def _answer(objective, *arguments, question, **named):
    """Put a question to a copy: what an objective remembers must not change a later answer."""
    return getattr(copy.copy(objective), question)(*arguments, **named)
