"""Labels and class weights: what the user passed, checked and encoded for the objective."""

import math
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d

__all__ = ["encoded_target", "n_outputs", "resolved_class_weight", "resolved_classes"]


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
