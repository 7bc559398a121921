"""The input of a fit: rows in arrays or in blocks, and their labels."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import config_context
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dpglm.checks import (
    check_labels,
    check_number,
    check_numbers,
    check_rows,
    check_vector,
    check_whole,
)
from dpglm.estimators.callbacks import picklable_copy
from dpglm.privacy.vault import block_sums
from dpglm.schema.values import BOUND_KEY, check_sparse, composed, reworded_error
from dpglm.sources.arrays import ArraySource, IterableSource, is_sliceable
from dpglm.sources.base import Source, kept_in_a_file
from dpglm.sources.dask import dask_source

# Rows as `fit` takes them; those of dask, Zarr and HDF5 and data frames are like arrays.
Table = ArrayLike | sparse.sparray | sparse.spmatrix | Source | Iterable[tuple[Any, Any]]


def spelled(labels: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Return labels, groups or classes in the spelling of a list, if only Unicode forms differ."""
    if labels.dtype.kind not in "OU":
        return labels
    own = {composed(text): text for text in listed.tolist() if isinstance(text, str)}
    found = [own.get(composed(v), v) if isinstance(v, str) else v for v in labels.tolist()]
    return np.array(found, str if labels.dtype.kind == "U" else labels.dtype)


def resolved_classes(classes: Any, y: np.ndarray | None) -> np.ndarray:
    """Return the label set in order: the one declared, or the labels that occur, if they are known.

    It has the type of the labels, which is assumed public, if this type can hold it.
    """
    given = None if classes is None else check_labels("classes", classes, "list what may occur")
    observed = np.unique(given if y is None else y)
    observed = np.unique(spelled(observed, observed if given is None else given))
    if given is None:
        if len(observed) < 2:
            raise ValueError(
                f"y holds {len(observed)} class, and two or more are needed. If others exist, "
                "name them all in classes=, which also protects the label set."
            )
        return observed
    declared = np.unique(spelled(given, given))
    if len(declared) < 2 or len(declared) != len(given):
        raise ValueError(f"classes={classes!r} must list two or more labels, each class once.")
    # Not by numpy, which would compare numbers with strings as strings.
    known = set(declared.tolist())
    unknown = [label for label in observed.tolist() if label not in known]
    if unknown:
        raise ValueError(
            f"y holds the label {unknown[0]!r}, which is not in classes={classes!r}. List all "
            "labels there, or map others to these by a public rule, as a VotingClassifier does."
        )
    if observed.dtype.kind == "f":
        return declared
    as_observed = declared.astype(observed.dtype)
    return as_observed if as_observed.tolist() == declared.tolist() else declared


def encoded_target(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return -1 or +1 for two classes, else the index of the class; refuse other labels."""
    index = _indices(y, classes)
    if not (classes[index] == y).all():
        resolved_classes(classes.tolist(), y)
        index = _indices(spelled(y, classes), classes)
    return 2.0 * index - 1.0 if len(classes) == 2 else index


def _indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the index of each label, and that of another class for unknown labels."""
    if len(classes) == 2:
        return (y == classes[1]).astype(int)
    return np.minimum(np.searchsorted(classes, y), len(classes) - 1)


# Kernels can still multiply with the product of this and the weight of a class.
LARGEST_WEIGHT = 1e6
# A larger memory map is read by blocks: even a few numbers kept for each row would be many.
MAPPED_BYTES = 2**30


@dataclass(frozen=True)
class TrainingData:
    """The validated input of a fit: rows and labels in memory, or a source of blocks of both.

    A numeric target has no ``classes``. ``shape`` has the number of records and of columns. The
    bound on row norms is without an intercept. Options are weights or groups of the rows.
    """

    X: Any
    y: np.ndarray | None
    source: Source | None
    classes: np.ndarray | None
    shape: tuple[int, int]
    dtype: Any
    max_row_norm: float | None
    options: dict[str, Any] = field(default_factory=dict)

    def sums(self, estimator: Any, loss: Any, files: ExitStack) -> Any:
        """Return the holder of all rows that an estimator makes of them, or of each block."""
        if self.source is None:
            return _held(estimator, loss, self.classes, self.X, self.y, **self.options)
        make = partial(_held, picklable_copy(estimator), loss, self.classes)
        first = np.ones(1) if self.classes is None else self.classes[:1]
        model = make(np.zeros((1, self.shape[1])), first)
        cached = files.enter_context(kept_in_a_file(self.source)) if self.source.cache else None
        return block_sums((cached or self.source).blocks(make), model)


def _held(
    estimator: Any, loss: Any, classes: np.ndarray | None, X: Any, y: np.ndarray, **options: Any
) -> Any:
    """Return an estimator's holder of rows in memory, or of a block of them."""
    target = checked_target(estimator, y) if classes is None else encoded_target(y, classes)
    options["n_outputs"] = 1 if classes is None or len(classes) == 2 else len(classes)
    options["fit_intercept"] = bool(estimator.fit_intercept)
    return estimator._holder(X, target, loss, **options)


def public_max_row_norm(X: Any) -> float | None:
    """Return the bound on norms that rows have, without the 1 of an intercept, or None.

    The bound may be wrong, as pandas keeps ``attrs`` through arithmetic. No guarantee depends on
    the bound: rows are clipped to it.
    """
    frame = getattr(X, "_meta", X)  # of Dask
    if hasattr(frame, "columns"):
        bound, names = getattr(frame, "attrs", {}).get(BOUND_KEY, (None, None))
        bound = bound if names == [*frame.columns] else None
    else:
        bound = getattr(X, "max_row_norm", None)
    return bound if isinstance(bound, float) else None


def training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
) -> TrainingData:
    """Return the input of a fit, validated as scikit-learn does."""
    if (groups is None) != (estimator.max_contributions is None):
        raise ValueError(
            f"max_contributions={estimator.max_contributions!r} and groups belong together: the "
            "public number of rows of a group that count, and the group of each row. Give both to "
            "protect groups, or neither to protect rows."
        )
    source = as_source(X, y)
    if source is None:
        rows, labels = _validated(estimator, X, y, finite=groups is not None)
        options = _options_of_rows(estimator, rows, sample_weight, groups)
        # No bound is known for several rows that are one record.
        n_records, bound = rows.shape[0], public_max_row_norm(X)
        if groups is not None:
            n_records, bound = int(options["groups"].max()) + 1, None
            # A row is kept if it is among the first of its group, which alone decides that.
            order = np.argsort(options["groups"], kind="stable")
            grouped, rank = options["groups"][order], np.empty(len(order), dtype=np.int64)
            rank[order] = np.arange(len(order)) - np.searchsorted(grouped, grouped)
            kept = rank < options["max_contributions"]
            if not kept.all():
                rows, labels = rows[kept], labels[kept]
                options |= {
                    name: options[name][kept] for name in {"row_weights", "groups"} & {*options}
                }
        classes, shape = _label_set(estimator, labels, None), (n_records, rows.shape[1])
        return TrainingData(rows, labels, None, classes, shape, rows.dtype, bound, options)
    if sample_weight is not None or groups is not None:
        raise TypeError("sample_weight and groups are for rows in memory, not for blocks of rows.")
    if not estimator._reads_blocks:
        raise TypeError(
            f"{type(estimator).__name__} needs all rows at once: give it arrays or a CSR matrix in "
            "memory, not blocks of rows."
        )
    validate_data(estimator, source.template, skip_check_array=True)
    single = getattr(source.template, "dtype", None) == np.float32
    return TrainingData(
        X=None,
        y=None,
        source=source,
        classes=_label_set(estimator, None, source),
        shape=(source.n_samples, source.n_features),
        dtype=np.dtype(np.float32 if single else np.float64),
        max_row_norm=public_max_row_norm(source.template),
    )


def _validated(estimator: Any, X: Any, y: Any, *, finite: bool) -> tuple[Any, np.ndarray]:
    """Return rows as an array or CSR matrix, and labels.

    Estimators that read blocks find NaN by row norms, without another pass over the data.
    """
    y = None if y is None else checked_target(estimator, y)
    checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}
    checks["ensure_all_finite"] = finite or not estimator._reads_blocks
    try:
        # scikit-learn looks for NaN by a sum, whose overflow would warn for some data only.
        with config_context(assume_finite=False):
            return validate_data(estimator, X, y, **checks)
    except (TypeError, ValueError, OverflowError) as error:
        failed = error
    # Raised here, as it would keep an error that is being handled.
    raise reworded_error(failed, X)


def checked_target(estimator: Any, y: Any) -> np.ndarray:
    """Return labels, or numbers within the limits of an estimator that has a numeric target."""
    limits = estimator._target_limits
    return check_labels("y", y) if limits is None else check_numbers("y", y, **limits)


def _label_set(estimator: Any, y: np.ndarray | None, source: Source | None) -> np.ndarray | None:
    """Return the label set, which must contain the labels; each pass over blocks checks that.

    scikit-learn warns of few labels that are all distinct, so it sees those of blocks thrice.
    """
    if estimator._target_limits is not None:
        return None
    if estimator.classes is not None:
        return resolved_classes(estimator.classes, y)
    y = source.observed_labels() if y is None else y
    check_classification_targets(y if source is None else np.repeat(y, 3))
    return resolved_classes(None, y)


def _options_of_rows(estimator: Any, X: Any, sample_weight: Any, groups: Any) -> dict[str, Any]:
    """Return the weights and groups of rows, each with its public bound."""
    options: dict[str, Any] = {}
    if sample_weight is not None:
        limits = {"above": 0, "at_most": LARGEST_WEIGHT}
        largest = check_number("max_weight", estimator.max_weight, **limits)
        # Weights above the bound count as 1.
        options["row_weights"] = checked_weights(sample_weight, X) / largest
    if groups is not None:
        options["groups"] = group_numbers(groups, X)
        most = check_whole("max_contributions", estimator.max_contributions)
        options["max_contributions"] = most
    return options


def checked_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """Return the weight of each row as a float64."""
    weights = _of_each_row("sample_weight", sample_weight, X)
    numeric = weights.dtype.kind in "biuf"
    weights = weights.astype(np.float64) if numeric else weights
    if not numeric or not ((weights >= 0) & (weights < np.inf)).all():
        raise ValueError("sample_weight must hold finite numbers, 0 or above.")
    if not weights.any():
        raise ValueError("sample_weight is zero in every row: there is nothing to learn from.")
    return weights


def _of_each_row(name: str, values: Any, X: Any) -> np.ndarray:
    """Return one value for each row, or raise a ValueError."""
    values = check_vector(name, values)
    if len(values) != X.shape[0]:
        raise ValueError(f"{name} has {len(values)} values, and X {X.shape[0]} rows.")
    return values


def group_numbers(groups: Any, X: Any) -> np.ndarray:
    """Return the group of each row of X, as numbers from 0 (n_rows,)."""
    check_labels("groups", groups, "each row needs a person")
    # numpy would make floats of a list with large numbers and one below zero.
    groups = groups if hasattr(groups, "__array__") else np.asarray(groups, dtype=object)
    groups = _of_each_row("groups", groups, X)
    if groups.dtype.kind not in "OU":
        return np.unique(groups, return_inverse=True)[1]
    numbers: dict[Any, int] = {}
    names = map(composed, groups.tolist())
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


def as_source(X: Any, y: Any) -> Source | None:
    """Return X and y as blocks, or None if they are arrays in memory."""
    check_rows(X)
    if sparse.issparse(X):
        check_sparse(X)
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
