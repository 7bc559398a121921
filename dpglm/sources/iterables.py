"""Blocks of rows and labels from anything that can be iterated over again and again."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpglm.sources.base import LocalSource, read_ahead

__all__ = ["IterableSource"]


class IterableSource(LocalSource):
    """Blocks that a user's object yields.

    Parameters
    ----------
    iterable : iterable of (X, y)
        Every iteration starts anew and yields the same blocks in the same order: arrays or CSR
        matrices X of shape (rows, n_features) with their labels y. Blocks without rows are
        skipped, and not counted. It is iterated in a thread.

    Raises
    ------
    TypeError
        If it can be iterated over only once, as a generator can.
    ValueError
        If it yields no blocks, or blocks that do not fit together.

    Notes
    -----
    A first pass counts rows and labels, so a fit of T iterations makes T + 1 passes or more.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPLogisticRegression
    >>> class Blocks:
    ...     def __iter__(self):
    ...         for seed in range(3):
    ...             rng = np.random.default_rng(seed)
    ...             X = rng.normal(size=(50, 2))
    ...             yield X, (X[:, 0] > 0).astype(int)
    >>> DPLogisticRegression(max_iter=5).fit(Blocks()).n_features_in_
    2
    """

    def __init__(self, iterable: Iterable[tuple[Any, Any]]) -> None:
        if not isinstance(iterable, Iterable) or isinstance(iterable, Iterator):
            raise TypeError(
                f"Blocks of (X, y) must come from an object that can be iterated over again, got "
                f"{type(iterable).__name__}; wrap a generator in a class with an __iter__ method."
            )
        self._iterable = iterable
        rows, distinct = [], []
        for block, (X, y) in enumerate(read_ahead(self._first_pass())):
            if X.ndim != 2 or y.shape != X.shape[:1] or X.shape[1] < 1:
                raise ValueError(
                    f"{self.describe(block)} must hold X of shape (rows, n_features) and y of "
                    f"shape (rows,), got {X.shape} and {y.shape}."
                )
            self.n_features = X.shape[1] if block == 0 else self.n_features
            if X.shape[1] != self.n_features:
                raise ValueError(
                    f"{self.describe(block)} has {X.shape[1]} features, and the first has "
                    f"{self.n_features}."
                )
            rows.append(X.shape[0])
            distinct = [np.unique(np.concatenate([*distinct, y]))]
        if not rows:
            raise ValueError("The iterable of blocks is empty; it must yield (X, y) at least once.")
        self.block_rows = tuple(rows)
        self._distinct = distinct[0]

    def describe(self, block: int) -> str:
        return f"Block {block} of the iterable"

    def observed_labels(self) -> np.ndarray:
        return self._distinct

    def _encoded(self, rows: Any, labels: Any) -> tuple[Any, np.ndarray]:
        # Copies: a user who fills one array again and again must not change rows being summed.
        encoded, labels = super()._encoded(rows, labels)
        return encoded.copy(), labels.copy()

    def _first_pass(self):
        """Yield the blocks as long as there are any; nothing is known of them yet."""
        blocks = iter(self._iterable)
        for block in range(2**63):
            try:
                X, y = next(blocks)
            except StopIteration:
                return
            except Exception as error:
                raise OSError(f"{self.describe(block)} could not be read: {error}") from error
            X, y = self._converted(block, X, y)
            if len(y) or X.ndim != 2 or X.shape[0]:
                yield X, y

    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        wanted = set(wanted)
        filled = filter(_has_rows, self._iterable)
        for block, data in enumerate(filled):
            if block in wanted or block >= len(self.block_rows):
                yield data


def _has_rows(data: tuple[Any, Any]) -> bool:
    X, y = data
    return len(y) > 0 or np.shape(X)[0] > 0
