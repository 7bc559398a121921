"""What a fit is given: rows in arrays or in blocks, and their labels."""

import copy
import math
import os
from collections.abc import Iterable
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.utils import column_or_1d

from dpglm.sources.arrays import ArraySource, IterableSource, is_sliceable
from dpglm.sources.base import Source
from dpglm.sources.dask import dask_source
from dpglm.sums.blocks import BlockObjective

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = [
    "MAPPED_BYTES",
    "Arrays",
    "SourceData",
    "as_source",
    "encoded_target",
    "n_outputs",
    "resolved_class_weight",
    "resolved_classes",
]


def n_outputs(n_classes: int) -> int:
    return 1 if n_classes == 2 else n_classes


def resolved_classes(classes: Any, y: np.ndarray) -> np.ndarray:
    observed = np.unique(y)
    if classes is None:
        if len(observed) < 2:
            raise ValueError(
                f"y holds {len(observed)} class, and two or more are needed. If others exist, "
                "name them all in classes=, which also keeps the label set from leaking."
            )
        return observed
    declared = np.unique(column_or_1d(np.asarray(classes)))
    if len(declared) < 2 or len(declared) != len(np.asarray(classes)):
        raise ValueError(
            f"classes={classes!r} must name two or more distinct labels, each class once."
        )
    # Not by numpy, which would compare numbers with strings as strings.
    known = set(declared.tolist())
    unknown = [label for label in observed.tolist() if label not in known]
    if unknown:
        raise ValueError(
            f"y holds the label {unknown[0]!r}, which is not in classes={classes!r}; "
            "add it to classes or remove those rows."
        )
    return declared


def encoded_target(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if len(classes) == 2:
        return np.where(y == classes[1], 1.0, -1.0)
    return np.searchsorted(classes, y)


def resolved_class_weight(class_weight: Any, classes: np.ndarray) -> np.ndarray | None:
    if class_weight is None:
        return None
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight={class_weight!r} must be None or a dict from label to weight. "
            "('balanced' would read the label counts without noise.)"
        )
    known = set(classes.tolist())
    for label, weight in class_weight.items():
        if label not in known:
            raise ValueError(
                f"class_weight names the label {label!r}, which is not among the classes "
                f"{classes.tolist()}."
            )
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise ValueError(f"class_weight[{label!r}]={weight!r} must be a finite number above 0.")
    return np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])


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
