"""What `fit` may be given: arrays in memory, or blocks of rows that are read in every pass."""

import copy
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from dpglm.blocks import BlockObjective
from dpglm.estimators.labels import encoded_target, resolved_classes
from dpglm.sources.arrays import ArraySource, is_sliceable
from dpglm.sources.base import Source
from dpglm.sources.distributed import dask_source
from dpglm.sources.iterables import IterableSource

if TYPE_CHECKING:
    from dpglm.objective import Objective

__all__ = ["MAPPED_BYTES", "Arrays", "SourceData", "as_source"]

# A memory map of more than this is read by blocks: from here on, numbers kept for each row count.
MAPPED_BYTES = 2**30


class Arrays:
    """Rows and labels in memory, validated."""

    def __init__(self, X: Any, y: np.ndarray) -> None:
        self._X, self._y = X, y
        self.shape = X.shape
        # Callbacks get copies: the clip rests on norms taken before the first iteration.
        self.copies = {"X": X.copy, "y": y.copy}

    def labels(self, classes: Any) -> np.ndarray:
        """Return the labels that occur."""
        return self._y

    def objective(
        self, estimator: Any, classes: np.ndarray, class_weight: np.ndarray | None
    ) -> "Objective":
        """Return the objective that the estimator makes of all rows."""
        target = encoded_target(self._y, classes)
        return estimator._objective(self._X, target, len(classes), class_weight)

    def check(self, objective: "Objective") -> None:
        """Do nothing: all rows were validated."""


class SourceData:
    """Rows and labels that are read block by block, in every pass; callbacks do not see them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape = (source.n_samples, source.n_features)
        self.copies = {"X": None, "y": None}

    def labels(self, classes: Any) -> np.ndarray:
        """Return the labels that occur; those declared, which each pass checks, if any are."""
        if classes is not None:
            return np.asarray(classes)
        # Each thrice: many distinct ones among few look like numbers, of which scikit-learn warns.
        return np.repeat(self._source.observed_labels(), 3)

    def objective(
        self, estimator: Any, classes: np.ndarray, class_weight: np.ndarray | None
    ) -> BlockObjective:
        """Return the sum of the objectives that the estimator makes of the blocks."""
        # The copy may travel to other machines: without the seed, and without callbacks.
        maker = copy.copy(estimator)
        maker.random_state = None
        vars(maker).pop("_skl_callbacks", None)
        make = partial(_objective_of_block, maker, classes, class_weight)
        model = make(np.zeros((1, self._source.n_features)), classes[:1])
        return BlockObjective(self._source.blocks(make), model)

    def check(self, objective: BlockObjective) -> None:
        """Validate all blocks, for fits whose passes do not reach all of them."""
        objective.check()


def _objective_of_block(estimator, classes, class_weight, X, y, n_threads=None):
    with np.errstate(all="ignore"):
        target = encoded_target(y, classes)
        index = target > 0 if len(classes) == 2 else np.minimum(target, len(classes) - 1)
        if not (classes[index.astype(int)] == y).all():
            resolved_classes(classes.tolist(), y)
        return estimator._objective(X, target, len(classes), class_weight, n_threads)


def as_source(X: Any, y: Any) -> Source | None:
    """Return the blocks that X and y stand for, or None if they are arrays in memory.

    Parameters
    ----------
    X, y : objects
        As given to ``fit``.

    Raises
    ------
    TypeError, ValueError
        If X stands for blocks that cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> as_source(np.eye(3), [0, 1, 1]) is None
    True
    >>> as_source([(np.eye(3), [0, 1, 1]), (np.eye(2, 3), [1, 0])], None).block_rows
    (3, 2)
    """
    if isinstance(X, Source):
        if y is not None:
            raise TypeError(f"{type(X).__name__} holds the labels; leave out y.")
        return X
    if isinstance(X, (str, os.PathLike)):
        raise TypeError(f"X={X!r} is a path; give ParquetSource(path, schema) for Parquet files.")
    if isinstance(X, np.memmap) and y is not None:
        return ArraySource(X, y) if X.nbytes > MAPPED_BYTES else None
    if type(X).__module__.partition(".")[0] == "dask":
        return dask_source(X, y)
    if isinstance(X, np.ndarray) or sparse.issparse(X) or hasattr(X, "iloc"):
        return None
    if y is None:
        return IterableSource(X) if isinstance(X, Iterable) and not is_sliceable(X) else None
    return ArraySource(X, y) if is_sliceable(X) and len(X.shape) == 2 else None
