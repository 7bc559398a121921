"""Sources of blocks: sliceable arrays, and iterables that can be read again."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.checks import check_labels
from dpglm.schema.values import check_sparse, with_max_row_norm
from dpglm.sources.base import LocalSource, distinct_labels, read_ahead, rows_of_a_block

# Labels to keep of an iterable; a target with more is a number.
_MOST_LABELS = 2**16


class ArraySource(LocalSource):
    """Consecutive rows of an array X with shape, dtype and slices, and of labels y."""

    def __init__(self, X: Any, y: Any, *, block_rows: int | None = None) -> None:
        if len(X.shape) != 2 or min(X.shape) < 1:
            raise ValueError(f"X must have two dimensions and no empty one, got shape {X.shape}.")
        is_stored = is_sliceable(y) and not isinstance(y, np.ndarray)
        self._labels = y if is_stored else check_labels("y", y)
        n_samples, self.n_features = map(int, X.shape)
        if tuple(self._labels.shape) != (n_samples,):
            raise ValueError(
                f"y must have shape ({n_samples},), like the rows of X, got {self._labels.shape}."
            )
        bound = getattr(X, "max_row_norm", None)
        self.template = with_max_row_norm(np.empty((0, self.n_features), dtype=X.dtype), bound)
        row_bytes = self.n_features * np.dtype(X.dtype).itemsize
        if sparse.issparse(X):
            check_sparse(X)
            X = X.tocsr()
            row_bytes = X.nnz / n_samples * (8 + X.dtype.itemsize)
        self._X = X
        rows = rows_of_a_block(block_rows, row_bytes)
        chunks = getattr(X, "chunks", None)
        if chunks and block_rows is None:
            # A chunk would be read again for each block that shares it.
            rows = max(1, round(rows / chunks[0])) * chunks[0]
        starts = range(0, n_samples, rows)
        self._slices = [slice(start, min(start + rows, n_samples)) for start in starts]
        self.block_rows = tuple(part.stop - part.start for part in self._slices)
        if is_stored:
            self.observed_labels()  # refuses those that are missing, before anything is charged

    def describe(self, block: int) -> str:
        part = self._slices[block]
        return f"Block {block} (rows {part.start} to {part.stop - 1} of X)"

    def observed_labels(self) -> np.ndarray:
        return distinct_labels(check_labels("y", self._labels[part]) for part in self._slices)

    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        for block in wanted:
            part = self._slices[block]
            rows = self._X[part]
            # The thread that reads ahead copies what a map has on disk: no sum waits for it.
            yield np.array(rows) if isinstance(rows, np.memmap) else rows, self._labels[part]


def is_sliceable(array: Any) -> bool:
    """Return whether an object has shape, dtype and slices that are arrays."""
    has = isinstance(getattr(array, "dtype", None), np.dtype) and hasattr(array, "__getitem__")
    return has and not hasattr(array, "iloc") and not sparse.issparse(array)


class IterableSource(LocalSource):
    """Blocks (X, y) that a user's object yields, anew and the same in every iteration."""

    def __init__(self, iterable: Iterable[tuple[Any, Any]]) -> None:
        if not isinstance(iterable, Iterable) or isinstance(iterable, Iterator):
            raise TypeError(
                "Blocks of (X, y) must come from an object that can be iterated over again, got "
                f"{type(iterable).__name__}. Wrap a generator in a class with an __iter__ method."
            )
        self._iterable, self._names = iterable, []
        rows, labels, bounds = [], [], []

        def noted(data: tuple[Any, Any]) -> tuple[Any, Any]:
            bounds.append(getattr(data[0], "max_row_norm", None))
            return data

        number, blocks = itertools.count(), map(noted, filter(_has_rows, iterable))
        first_pass = iter(lambda: self._next(next(number), blocks), None)
        for block, (X, y) in enumerate(read_ahead(first_pass)):
            self.n_features = X.shape[-1] if block == 0 else self.n_features
            if X.shape != (len(y), self.n_features) or y.ndim != 1 or self.n_features < 1:
                raise ValueError(
                    f"{self.describe(block)} must hold X of shape (rows, {self.n_features}) and y "
                    f"of shape (rows,), got {X.shape} and {y.shape}."
                )
            rows.append(X.shape[0])
            # A number has no more: each block would sort all before it again.
            if not labels or len(labels[0]) <= _MOST_LABELS:
                labels = [distinct_labels([*labels, y])]
        if not rows:
            raise ValueError("The iterable of blocks is empty; it must yield at least one (X, y).")
        self.block_rows, self._distinct = tuple(rows), labels[0]
        bound = max(bounds) if all(isinstance(bound, float) for bound in bounds) else None
        self.template = with_max_row_norm(np.empty((0, self.n_features)), bound)

    def describe(self, block: int) -> str:
        return f"Block {block} of the iterable"

    def observed_labels(self) -> np.ndarray:
        if len(self._distinct) > _MOST_LABELS:
            raise ValueError(
                f"y holds more than {_MOST_LABELS} labels; for a number, fit a regressor."
            )
        return self._distinct

    def _encoded(self, rows: Any, labels: Any) -> tuple[Any, np.ndarray]:
        # Copies: a user who fills one array again and again must not change rows being summed.
        names = [*getattr(rows, "column_names", getattr(rows, "columns", ()))]
        self._names = self._names or names
        if names not in ([], self._names):
            raise ValueError("the columns have other names or another order than in the first.")
        encoded, labels = super()._encoded(rows, labels)
        return encoded.copy(), labels.copy()

    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        wanted = set(wanted)
        for block, data in enumerate(filter(_has_rows, self._iterable)):
            # A block beyond the last must be yielded too: it is refused.
            if block in wanted or block >= len(self.block_rows):
                yield data


def _has_rows(data: tuple[Any, Any]) -> bool:
    X, y = data
    return len(y) > 0 or np.shape(X)[0] > 0
