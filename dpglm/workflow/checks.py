"""Which steps of a pipeline read other people's rows, found from parameters without any data."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import ParameterSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.gaussian import GaussianEvent
from dpglm.privacy.odometer import is_ours
from dpglm.workflow.splits import PrivateKFold


@dataclass(frozen=True)
class Finding:
    """A step of a pipeline that the guarantee of the fit does not cover, or may not.

    Attributes
    ----------
    step : str
        Its place, as nested parameters are named; the class of the whole.
    reads : str
        What it does with other people's rows.
    severity : {"breaks", "leaks", "refused", "not known"}
        As on the page of sharp edges. ``"not known"`` is a step of which only its author can tell.
    instead : str
        What to use in its place.
    """

    step: str
    reads: str
    severity: str
    instead: str

    def __str__(self) -> str:
        return f"{self.step} ({self.severity}): {self.reads}. Instead: {self.instead}."


class _Findings(list[Finding]):
    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "No step reads other people's rows."


def check_pipeline(estimator: Any) -> list[Finding]:
    """Return the steps that read other people's rows, with what to use instead.

    A guarantee holds if each row of X was made from one record and public facts. Steps of a
    pipeline are fitted on all rows, and a private estimator behind them cannot see that.

    Parameters
    ----------
    estimator : estimator
        A pipeline, search or other meta-estimator, fitted or not. All that it is made of is looked
        at, candidates of a search included; no data are.

    Returns
    -------
    list of Finding
        Printed, one a line; empty if every step is known to treat each row by itself. A step of
        which that is not known is in the list, with the word ``"not known"``.

    Raises
    ------
    ValueError
        If it is no estimator.

    Notes
    -----
    Classes of scikit-learn are known: one that is not known to be harmless with its parameters is
    taken to break the guarantee. What the rows were made from before the pipeline cannot be seen.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from dpglm import DPLogisticRegression, PublicBoundsScaler
    >>> from dpglm.workflow import check_pipeline
    >>> print(check_pipeline(make_pipeline(StandardScaler(), DPLogisticRegression())))
    standardscaler (breaks): StandardScaler is fitted on all rows. Instead: Schema.transformer() or
    PublicBoundsScaler.
    >>> check_pipeline(make_pipeline(PublicBoundsScaler(0, 9), DPLogisticRegression()))
    []
    """
    if not _is_estimator(estimator):
        raise ValueError(f"check_pipeline needs an estimator, and {estimator!r:.80} has no fit.")
    nodes = list(parts_of(estimator))
    # Whether an estimator keeps the number of rows private: of records, or of a person.
    private_count = any(
        getattr(node, "neighboring_relation", None) == _ADD
        or getattr(node, "max_group_size", None) is not None
        for _, node in nodes
    )
    found = _Findings()
    for step, node in nodes:
        place = step or type(node).__name__
        facts = list(_facts(node)) or _fold_facts(node, private_count)
        found += [Finding(place, *fact) for fact in facts]
    return found


def warn_of(findings: Iterable[Finding], stacklevel: int = 3) -> None:
    """Warn of what breaks, for whoever holds a whole pipeline when it is fitted or priced."""
    for finding in findings:
        if finding.severity == "breaks":
            warnings.warn(str(finding), PrivacyWarning, stacklevel=stacklevel)


def assumed_of(findings: Iterable[Finding]) -> list[str]:
    """Return what has to be assumed of each finding, for a ledger."""
    return [
        f"{finding.step} treats each row by itself, and makes no private fit that is not counted"
        if finding.severity == "not known"
        else f"nothing is released of what no number covers: {finding.reads}"
        for finding in findings
    ]


def released_by(findings: Iterable[Finding]) -> list[tuple[GaussianEvent, int]]:
    """Return what steps that break the guarantee add to a ledger: a release without noise."""
    broken = any(finding.severity == "breaks" for finding in findings)
    return [(GaussianEvent(0.0), 1)] * broken


_ADD = "add_or_remove_one"
_PRIVATE = "a private estimator, such as DPLogisticRegression"
_SEARCH = ("chooses by scores without noise", "PrivateSearchCV, or a search on public rows")
_CATEGORIES = ("reads the categories off all rows", "a Schema, or categories that are public")
_FEATURES = ("chooses features by scores without noise", "features chosen beforehand")

# What a class of scikit-learn does, and what to use instead, where its module does not tell.
_WORDS = {
    "GridSearchCV": _SEARCH,
    "RandomizedSearchCV": _SEARCH,
    "HalvingGridSearchCV": _SEARCH,
    "HalvingRandomSearchCV": _SEARCH,
    "OneHotEncoder": _CATEGORIES,
    "OrdinalEncoder": _CATEGORIES,
    "RFECV": _FEATURES,
    "SequentialFeatureSelector": _FEATURES,
    "CalibratedClassifierCV": ("fits calibrators without noise", "PrivateCalibratedClassifier"),
    "TunedThresholdClassifierCV": (
        "chooses the threshold by scores without noise",
        "PrivateThresholdClassifier",
    ),
    "BaggingClassifier": ("draws records twice, so that a row is more than one", "bootstrap=False"),
    "OneVsOneClassifier": (
        "takes the number of records of two classes as public",
        "one fit, which releases all classes jointly",
    ),
    "SelfTrainingClassifier": (
        "makes public how many records are labelled in each round",
        "one fit on the records with a label",
    ),
    "FunctionTransformer": (
        "calls a function on all rows",
        "this, if the function treats each row by itself",
    ),
    "FrozenEstimator": ("was fitted before", "this, if it was fitted on public rows"),
}

# What to use instead of the other classes of a module.
_INSTEAD = {
    "sklearn.preprocessing": "Schema.transformer() or PublicBoundsScaler",
    "sklearn.impute": "SimpleImputer(strategy='constant', keep_empty_features=True), or the "
    "missing values of a Schema",
    "sklearn.feature_extraction": "HashingVectorizer, or a public vocabulary without idf",
    "sklearn.feature_selection": "features chosen beforehand",
}
_ON_PUBLIC_ROWS = "nothing, or a FrozenEstimator that was fitted on public rows"


# When a class of scikit-learn that has a fit treats each row by itself, but for what is inside it:
# always,
_ALWAYS_HARMLESS = (
    "Pipeline", "FeatureUnion", "ColumnTransformer", "VotingClassifier", "OneVsRestClassifier",
    "OutputCodeClassifier", "MultiOutputClassifier", "ClassifierChain", "SelectFromModel", "RFE",
    "FixedThresholdClassifier", "PolynomialFeatures", "SkewedChi2Sampler", "PolynomialCountSketch",
    "StackingClassifier",
)  # fmt: skip
# or with some parameters.
_HARMLESS: dict[str, Callable[[Any], bool]] = dict.fromkeys(_ALWAYS_HARMLESS, lambda e: True) | {
    "BaggingClassifier": lambda e: not e.bootstrap,
    "CountVectorizer": lambda e: e.vocabulary is not None,
    "FrozenEstimator": lambda e: not check_pipeline(e.estimator),
    "FunctionTransformer": lambda e: e.func is None or isinstance(e.func, np.ufunc),
    "GaussianRandomProjection": lambda e: e.n_components != "auto",
    "MissingIndicator": lambda e: e.features == "all",
    "MultiLabelBinarizer": lambda e: e.classes is not None,
    "OneHotEncoder": lambda e: _lists_categories(e),
    "OrdinalEncoder": lambda e: _lists_categories(e),
    "RBFSampler": lambda e: e.gamma != "scale",
    "SimpleImputer": lambda e: e.strategy == "constant" and not e.add_indicator,
    "SparseRandomProjection": lambda e: e.n_components != "auto",
    "SplineTransformer": lambda e: not isinstance(e.knots, str),
    "TfidfTransformer": lambda e: not e.use_idf,
    "TfidfVectorizer": lambda e: e.vocabulary is not None and not e.use_idf,
}

# Cross-validators whose folds follow from positions and the number of records.
_BY_POSITION = {
    "KFold", "LeaveOneOut", "LeavePOut", "PredefinedSplit", "RepeatedKFold", "ShuffleSplit",
    "TimeSeriesSplit",
}  # fmt: skip


def _lists_categories(encoder: Any) -> bool:
    rare = (encoder.min_frequency, encoder.max_categories)
    return not isinstance(encoder.categories, str) and rare == (None, None)


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "fit") and not isinstance(value, type)


def parts_of(value: Any, step: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all that has a fit in a value and in its parameters, with the names of their places."""
    if _is_estimator(value):
        yield step, value
        # What is frozen was fitted elsewhere, and is looked at as a whole.
        closed = isinstance(value, FrozenEstimator) or not hasattr(value, "get_params")
        value = {} if closed else value.get_params(deep=False)
    if isinstance(value, ParameterSampler):
        value = value.param_distributions
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from parts_of(inner, f"{step}__{name}".removeprefix("__"))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            named = isinstance(inner, tuple) and len(inner) > 1 and isinstance(inner[0], str)
            if named:  # as in steps and transformers, which is no part of a nested name
                outer = step.rpartition("__")[0]
                yield from parts_of(inner[1], f"{outer}__{inner[0]}".removeprefix("__"))
            else:
                yield from parts_of(inner, step)


def _facts(estimator: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what an estimator does with all rows, without those inside it: parts of findings."""
    name = type(estimator).__name__
    if hasattr(estimator, "fit_resample"):
        instead = "all rows as they are, with a public class_weight"
        yield f"{name} draws, drops or makes rows by what others hold", "breaks", instead
    elif is_ours(estimator):
        if getattr(estimator, "epsilon", None) == math.inf:
            yield "epsilon=inf fits without noise", "breaks", "a finite epsilon"
        if isinstance(getattr(estimator, "class_weight", None), str):
            yield "class_weight='balanced' counts the labels", "refused", "a dict of public weights"
    elif type(estimator).__module__.startswith("sklearn."):
        yield from _known_facts(estimator, name)
    elif not isinstance(estimator, (Pipeline, FeatureUnion, ColumnTransformer)):
        instead = "this, if it treats each row by itself"
        yield f"{name} is no class of scikit-learn or dpglm", "not known", instead


def _known_facts(estimator: Any, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield those of a class of scikit-learn."""
    if not _HARMLESS.get(name, _is_stateless)(estimator):
        severity = "not known" if name in ("FunctionTransformer", "FrozenEstimator") else "breaks"
        does, instead = _WORDS.get(name) or _words_of_its_module(estimator)
        yield f"{name} {does}", severity, instead
        return
    if not getattr(estimator, "keep_empty_features", True):
        does = f"{name} drops a column that is empty in all rows"
        yield does, "leaks", "keep_empty_features=True"
    unknown, dropped = (getattr(estimator, name, None) for name in ("handle_unknown", "drop"))
    if unknown == "warn" or (dropped is not None and unknown != "error"):
        does = f"{name} warns if a row holds a category that is not listed"
        yield does, "leaks", "handle_unknown='ignore', without drop"
    if getattr(estimator, "multilabel_", False):
        does = f"{name} fits nothing to a label that all rows share"
        yield does, "breaks", "MultiOutputClassifier"
    if callable(getattr(estimator, "max_features", None)):
        yield f"{name} calls a function on all rows", "not known", "a number"
    inner = [*getattr(estimator, "transformers", ()), getattr(estimator, "remainder", ())]
    mixed = [part for _, part in parts_of(inner)] if hasattr(estimator, "sparse_threshold") else []
    if any(map(_may_be_sparse, mixed)) and estimator.sparse_threshold:
        does = f"{name} says by sparse_output_ how many entries are zero"
        yield does, "leaks", "sparse_threshold=0"
    for part in ("estimator", "final_estimator"):
        if part in vars(estimator) and vars(estimator)[part] is None:
            yield f"the default {part} of {name} is not private", "breaks", _PRIVATE
    columns = [entry[2] for entry in getattr(estimator, "transformers", ())]
    if any(callable(c) and not isinstance(c, make_column_selector) for c in columns):
        does = f"{name} calls a function on all rows to choose columns"
        yield does, "not known", "the names of the columns"


def _is_stateless(estimator: Any) -> bool:
    """Return whether a class of scikit-learn transforms each row without having seen others."""
    # The tag of a predictor says only that it can predict before it was fitted.
    return hasattr(estimator, "transform") and not get_tags(estimator).requires_fit


def _may_be_sparse(step: Any) -> bool:
    """Return whether a step of scikit-learn returns a sparse matrix."""
    is_text = type(step).__name__.endswith(("Vectorizer", "Hasher"))
    return getattr(step, "sparse_output", getattr(step, "sparse", is_text))


def _words_of_its_module(estimator: Any) -> tuple[str, str]:
    if hasattr(estimator, "predict") and not hasattr(estimator, "transform"):
        return "is fitted on all rows without noise", _PRIVATE
    module = ".".join(type(estimator).__module__.split(".")[:2])
    return "is fitted on all rows", _INSTEAD.get(module, _ON_PUBLIC_ROWS)


def _fold_facts(estimator: Any, private_count: bool) -> Iterator[tuple[str, str, str]]:
    """Yield what its folds follow from, unless that is positions, or identifiers if need be.

    `private_count`: whether an estimator that it works with keeps the number of rows private.
    """
    name, cv = type(estimator).__name__, getattr(estimator, "cv", "none")
    folds = type(cv).__name__
    by_label = cv is None or isinstance(cv, Integral)
    if name == "BaggingClassifier" and private_count:
        does = f"{name} keeps the number of rows, which is private, and draws by it"
        yield does, "breaks", "one fit, or a relation with a public number of rows"
    if by_label and (is_ours(estimator) or (name == "ClassifierChain" and cv is None)):
        return  # which stratify nothing
    if by_label or folds.startswith(("Stratified", "Group")):
        yield f"{name} takes folds that follow labels or groups", "breaks", "cv=PrivateKFold()"
    elif isinstance(cv, PrivateKFold) or folds in _BY_POSITION:
        if private_count and getattr(cv, "neighboring_relation", None) != _ADD:
            does = f"{name} takes folds by position where the number of rows is private"
            yield does, "breaks", f"PrivateKFold(neighboring_relation={_ADD!r}), and groups"
    elif not isinstance(cv, str):
        instead = "this, if each row's fold follows from public facts and its own identifier"
        yield f"{name} takes folds from {folds}", "not known", instead
