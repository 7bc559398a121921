"""The input of a fit: rows in arrays or in blocks, and their labels."""

import copy
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import config_context
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dpglm.checks import check_number, check_whole
from dpglm.privacy.vault import block_sums
from dpglm.schema.values import BOUND_KEY, check_sparse, composed, is_missing, reworded_error
from dpglm.sources.arrays import ArraySource, IterableSource, is_sliceable
from dpglm.sources.base import Source, kept_in_a_file
from dpglm.sources.dask import dask_source

# Rows as `fit` takes them; those of dask, Zarr and HDF5 and data frames are like arrays.
Table = ArrayLike | sparse.sparray | sparse.spmatrix | Source | Iterable[tuple[Any, Any]]


def spelled(labels: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Return labels, groups or classes in the spelling of a list, if only Unicode forms differ.

    Others stay unchanged. If the list has two spellings of one label, the last one is used.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "OUT":
        return labels
    own = {composed(text): text for text in listed.tolist() if isinstance(text, str)}
    found = [own.get(composed(v), v) if isinstance(v, str) else v for v in labels.tolist()]
    kind = str if labels.dtype.kind == "U" else labels.dtype
    return np.fromiter(found, object, len(found)).astype(kind)


def resolved_classes(classes: Any, y: np.ndarray) -> np.ndarray:
    """Return the label set in order: the one declared, or the labels that occur.

    It has the type of the labels, which is assumed public, if this type can hold it. Labels become
    floats if their type has missing values; declared classes keep their type.
    """
    observed = np.unique(y)
    observed = np.unique(spelled(observed, observed if classes is None else np.asarray(classes)))
    if classes is None:
        if len(observed) < 2:
            raise ValueError(
                f"y holds {len(observed)} class, and two or more are needed. If others exist, "
                "name them all in classes=, which also protects the label set."
            )
        return observed
    given = np.asarray(classes)
    listed = given.tolist() if given.ndim == 1 and given.dtype == object else []
    plain = {type(label.item() if isinstance(label, np.generic) else label) for label in listed}
    if len(plain) > 1:
        raise ValueError(f"classes={classes!r} must list labels of one type, none of them missing.")
    declared = np.unique(spelled(given, given))
    if given.ndim != 1 or len(declared) < 2 or len(declared) != len(given):
        raise ValueError(
            f"classes={classes!r} must list two or more distinct labels, each class once."
        )
    # Not by numpy, which would compare numbers with strings as strings.
    known = set(declared.tolist())
    unknown = [label for label in observed.tolist() if label not in known]
    if unknown:
        raise ValueError(
            f"y holds the label {unknown[0]!r}, which is not in classes={classes!r}. List all "
            "labels there, or map others to these by a public rule. Within a VotingClassifier, or "
            "another estimator that numbers the labels, list its numbers."
        )
    if observed.dtype.kind == "f":
        return declared
    as_observed = declared.astype(observed.dtype)
    return as_observed if as_observed.tolist() == declared.tolist() else declared


def encoded_target(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return -1 or +1 for two classes, else the index of the class."""
    if len(classes) == 2:
        return np.where(y == classes[1], 1.0, -1.0)
    return np.searchsorted(classes, y)


def resolved_class_weight(class_weight: Any, classes: np.ndarray) -> np.ndarray | None:
    """Return the weight of each class, 1 where none is given."""
    if class_weight is None:
        return None
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight={class_weight!r} must be None or a dict from label to weight. "
            "('balanced' would read the label counts without noise.)"
        )
    known = dict.fromkeys(map(composed, classes.tolist()))
    for label, weight in class_weight.items():
        if known.get(composed(label), 0.0) is not None:
            raise ValueError(
                f"class_weight names the label {label!r}, which is not among the classes "
                f"{classes.tolist()}, or names it twice."
            )
        check_number(f"class_weight[{label!r}]", weight, above=0, at_most=LARGEST_WEIGHT)
        known[composed(label)] = float(weight)
    return np.array([1.0 if weight is None else weight for weight in known.values()])


# Kernels can still multiply with the product of this and the weight of a class.
LARGEST_WEIGHT = 1e6
# A larger memory map is read by blocks: even a few numbers kept for each row would be many.
MAPPED_BYTES = 2**30


class Arrays(ExitStack):
    """Validated rows and labels in memory, with weights or groups of rows.

    ``given`` is the original input, ``dtype`` the type of coefficients, and ``max_row_norm`` the
    bound on row norms, without an intercept, if the rows have one.
    """

    def __init__(self, X: Any, y: np.ndarray, given: Any, **of_rows: Any) -> None:
        super().__init__()
        self._X, self._y, self.given, self._of_rows = X, y, given, of_rows
        groups = of_rows.get("groups")
        self.shape = (X.shape[0] if groups is None else int(groups.max()) + 1, X.shape[1])
        self.dtype = X.dtype
        # No bound is known for several rows that are one record.
        self.max_row_norm = public_max_row_norm(given) if groups is None else None
        # Callbacks get copies: the clip rests on norms taken before the first iteration.
        self.copies = {"X": X.copy, "y": y.copy}

    def classes(self, declared: Any) -> np.ndarray:
        """Return the label set, which must contain the labels."""
        if declared is None:
            check_classification_targets(self._y)
        return resolved_classes(declared, self._y)

    def sums(self, estimator: Any, classes: np.ndarray) -> Any:
        """Return the holder that the estimator makes of all rows, for its vault."""
        class_weight = resolved_class_weight(estimator.class_weight, classes)
        target = encoded_target(spelled(self._y, classes), classes)
        return estimator._make_holder(self._X, target, len(classes), class_weight, **self._of_rows)


class SourceData(ExitStack):
    """Rows and labels that are read block by block, in every pass; callbacks do not see them."""

    def __init__(self, source: Source, given: Any) -> None:
        super().__init__()
        self._source, self.given = source, given
        self.max_row_norm = public_max_row_norm(source.template)
        self.shape = (source.n_samples, source.n_features)
        single = getattr(source.template, "dtype", None) == np.float32
        self.dtype = np.dtype(np.float32 if single else np.float64)
        self.copies = {"X": None, "y": None}

    def classes(self, declared: Any) -> np.ndarray:
        """Return the label set; each pass checks labels against a declared one."""
        if declared is not None:
            return resolved_classes(declared, np.asarray(declared))
        observed = self._source.observed_labels()
        # Each three times: scikit-learn warns of few labels that are all distinct.
        check_classification_targets(np.repeat(observed, 3))
        return resolved_classes(None, observed)

    def sums(self, estimator: Any, classes: np.ndarray) -> Any:
        """Return the holder of all blocks; the estimator makes one for each block."""
        class_weight = resolved_class_weight(estimator.class_weight, classes)
        make = partial(_objective_of_block, picklable_copy(estimator), classes, class_weight)
        model = make(np.zeros((1, self._source.n_features)), classes[:1])
        source: Any = self._source
        if source.cache:
            source = self.enter_context(kept_in_a_file(source))
        return block_sums(source.blocks(make), model)


def picklable_copy(estimator: Any) -> Any:
    """Return a copy without callbacks, to be sent to other machines."""
    copied = copy.copy(estimator)
    vars(copied).pop("_skl_callbacks", None)
    return copied


def _objective_of_block(estimator, classes, class_weight, X, y, **options):
    with np.errstate(all="ignore"):
        target = encoded_target(y, classes)
        index = target > 0 if len(classes) == 2 else np.minimum(target, len(classes) - 1)
        if not (classes[index.astype(int)] == y).all():
            resolved_classes(classes.tolist(), y)
            target = encoded_target(spelled(y, classes), classes)
        return estimator._make_holder(X, target, len(classes), class_weight, **options)


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


def table_of(
    estimator: Any, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None
) -> Arrays | SourceData:
    """Return the input of a fit, validated as scikit-learn does."""
    if (groups is None) != (estimator.max_contributions is None):
        raise ValueError(
            f"max_contributions={estimator.max_contributions!r} and groups belong together: "
            "groups has the person of each row, and max_contributions is the public number of "
            "rows of one person that count. Give both to protect persons, or neither to protect "
            "rows."
        )
    source = as_source(X, y)
    if source is None:
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}
        # Estimators that read blocks find NaN by row norms, without another pass over the data.
        # With groups all rows are checked first, as only the first rows of a person are kept.
        checks["ensure_all_finite"] = not estimator._reads_blocks or groups is not None
        _check_labels(y)
        check_no_dates(X)
        failed = None
        try:
            # scikit-learn looks for NaN by a sum, whose overflow would warn for some data only.
            with np.errstate(all="ignore"), config_context(assume_finite=False):
                rows, y = validate_data(estimator, X, y, **checks)
        except (TypeError, ValueError) as error:
            failed = error
        if failed is not None:  # raised here, as it would keep an error that is being handled
            raise reworded_error(failed, X)
        return _with_facts_of_rows(estimator, rows, y, X, sample_weight, groups)
    if sample_weight is not None or groups is not None:
        raise TypeError(
            "sample_weight and groups are for arrays or a CSR matrix in memory, not for blocks of "
            "rows."
        )
    if not estimator._reads_blocks:
        raise TypeError(
            f"{type(estimator).__name__} needs all rows at once: give it arrays or a CSR matrix in "
            "memory, not blocks of rows."
        )
    validate_data(estimator, source.template, skip_check_array=True)
    return SourceData(source, X)


def _check_labels(y: Any) -> None:
    """Raise a ValueError that names y if a label is missing; scikit-learn's does not name y."""
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "fO":
        return
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
    else:
        found = (not isinstance(label, str) and is_missing(label) for label in labels.tolist())
        missing = np.fromiter(found, dtype=bool, count=len(labels))
    if missing.any():
        raise ValueError(
            f"y has missing labels, the first in row {int(np.argmax(missing)) + 1}; give these "
            "rows a label, or a class of their own, by a public rule."
        )


def check_no_dates(X: Any) -> None:
    """Raise a ValueError if columns hold dates or times, which would be read as numbers."""
    schema = getattr(X, "schema", None)
    dtypes = getattr(schema, "types", getattr(X, "dtypes", getattr(X, "dtype", None)))
    dtypes = dtypes if np.iterable(dtypes) else [dtypes]
    # As pandas, polars, pyarrow and numpy write them.
    if any(str(dtype).lower().startswith(("date", "time", "duration")) for dtype in dtypes):
        raise ValueError(
            "X holds dates or times; encode them first, for example by the transformer of a Schema."
        )


def _with_facts_of_rows(estimator, X, y, given, sample_weight, groups):
    of_rows, bounds = {}, {}
    if sample_weight is not None:
        weights = _of_each_row("sample_weight", sample_weight, X)
        numeric = weights.dtype.kind in "biuf"
        with np.errstate(all="ignore"):  # of what float64 cannot hold
            weights = weights.astype(np.float64) if numeric else weights
        if not numeric or not ((weights >= 0) & (weights < np.inf)).all():
            raise ValueError("sample_weight must hold finite numbers, 0 or above.")
        if not weights.any():
            raise ValueError("sample_weight is zero in every row: there is nothing to learn from.")
        most = check_number("max_weight", estimator.max_weight, above=0, at_most=LARGEST_WEIGHT)
        of_rows["row_weights"], bounds["max_weight"] = weights, most
    if groups is not None:
        groups = group_numbers(groups, X)
        most = check_whole("max_contributions", estimator.max_contributions)
        of_rows["groups"], bounds["max_contributions"] = groups, most
        kept = _among_first(groups, most)
        if not kept.all():
            X, y = X[kept], y[kept]
            of_rows = {name: values[kept] for name, values in of_rows.items()}
    return Arrays(X, y, given, **of_rows, **bounds)


def _of_each_row(name, values, X):
    if np.ma.isMaskedArray(values):
        raise ValueError(f"{name} is a masked array, and its mask would be lost; fill it first.")
    shape = np.asarray(values).shape
    if shape[1:] != (1,) and len(shape) != 1:
        # scikit-learn's error would be about y.
        raise ValueError(f"{name} has shape {shape}; give one value for each row.")
    values = column_or_1d(values)
    if len(values) != X.shape[0]:
        raise ValueError(f"{name} has {len(values)} values, and X {X.shape[0]} rows.")
    return values


def group_numbers(groups: Any, X: Any) -> np.ndarray:
    """Return the group of each row of X, as numbers from 0 (n_rows,)."""
    # From a list, numpy would make strings of strings, numbers and NaN.
    groups = groups if hasattr(groups, "dtype") else np.asarray(groups, dtype=object)
    groups = _of_each_row("groups", groups, X)
    try:
        groups = spelled(groups, groups)
        names, numbers = np.unique(groups, return_inverse=True)
        usable = bool((names == names).all())  # NaN and NaT are not equal to themselves
        if groups.dtype == object:
            # Without a total order, equal values may stay apart after sorting.
            usable &= len(set(names.tolist())) == len(names) and len(set(map(type, groups))) == 1
    except (TypeError, ArithmeticError):  # None, pandas.NA and Decimal("NaN") have no order
        usable = False
    if not usable:
        raise ValueError(
            "groups must be of one type, without missing values: each row needs a person."
        )
    return numbers


def _among_first(groups, most):
    """Return whether each row is among the first of its group, which alone decides that."""
    order = np.argsort(groups, kind="stable")
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.searchsorted(groups[order], groups[order])
    return rank < most


def as_source(X: Any, y: Any) -> Source | None:
    """Return X and y as blocks, or None if they are arrays in memory."""
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


def unlabelled_source(X: Any) -> Source | None:
    """Return the blocks of rows to predict, or None if the rows are in memory."""
    if len(shape := getattr(X, "shape", ())) == 2:
        return as_source(X, np.zeros(shape[0], dtype=np.int8))
    # A list may hold rows as well as blocks.
    if isinstance(X, Sequence) and not (X and isinstance(X[0], tuple) and np.ndim(X[0][0]) == 2):
        return None
    return as_source(X, None)
