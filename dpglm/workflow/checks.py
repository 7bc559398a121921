"""One walk over a pipeline: which steps read other people's rows, and what all fits cost."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import ParameterGrid, ParameterSampler, check_cv
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from dpglm.estimators.base import Budgeted
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.gaussian import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.odometer import is_package_object
from dpglm.workflow.scores import PrivateScorer
from dpglm.workflow.splits import PrivateKFold


@dataclass(frozen=True)
class Finding:
    """A step of a pipeline that the guarantee of the fit does not cover, or may not.

    Attributes
    ----------
    step : str
        Its place, as nested parameters are named; the class of the whole.
    reads : str
        Its effect on other people's rows.
    severity : {"breaks", "leaks", "refused", "not known"}
        As on the page of sharp edges. ``"not known"``: only the author of the step can tell.
    instead : str
        Replacement.
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
        Printed, one a line; empty if every step is known to treat each row separately. A step of
        unknown behaviour is in the list, with the word ``"not known"``.

    Notes
    -----
    Classes of scikit-learn are known: one that is not known to be harmless with its parameters is
    taken to break the guarantee. The check does not cover what happened before the pipeline.

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
    return findings_of(estimator)


def findings_of(study: Any) -> list[Finding]:
    """Return the findings of an estimator, or of all estimators in a list or dictionary."""
    nodes = [(step, part) for step, part in parts_of(study) if _is_estimator(part)]
    # Whether an estimator keeps the number of rows private: of records, or of a person.
    private_count = any(
        getattr(node, "neighboring_relation", None) == _ADD
        or getattr(node, "max_contributions", None) is not None
        for _, node in nodes
    )
    found = _Findings()
    for step, node in nodes:
        place = step or type(node).__name__
        metadata = list(_facts(node)) or _fold_facts(node, private_count)
        found += [Finding(place, *fact) for fact in metadata]
    return found


def stated(
    ledger: PrivacyLedger, findings: Iterable[Finding], stacklevel: int = 3
) -> PrivacyLedger:
    """Return a ledger with what has to be assumed of findings, and warn of those that break it."""
    assumptions, broken = dict.fromkeys(ledger.assumptions), False
    for finding in dict.fromkeys(findings):
        said = f"nothing is released of what no number covers: {finding.reads}"
        if finding.severity == "not known":
            step = finding.step
            said = f"{step} treats each row by itself, and makes no private fit that is not counted"
        assumptions[said] = None
        if finding.severity == "breaks":
            warnings.warn(str(finding), PrivacyWarning, stacklevel=stacklevel)
            broken = True
    # A step that breaks the guarantee counts as a release without noise.
    events = (*ledger.events, *[(GaussianEvent(0.0), 1)] * broken)
    return replace(ledger, events=events, assumptions=tuple(assumptions))


_ADD = "add_or_remove_one"
_PRIVATE = "a private estimator, such as DPLogisticRegression"
_SEARCH = ("chooses by scores without noise", "PrivateSearchCV, or a search on public rows")
_CATEGORIES = ("reads the categories off all rows", "a Schema, or categories that are public")
_FEATURES = ("chooses features by scores without noise", "features chosen beforehand")

# Effect of a class of scikit-learn and its replacement, if its module does not determine them.
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

# Replacement of the other classes of a module.
_INSTEAD = {
    "sklearn.preprocessing": "Schema.transformer() or PublicBoundsScaler",
    "sklearn.impute": "SimpleImputer(strategy='constant', keep_empty_features=True), or the "
    "missing values of a Schema",
    "sklearn.feature_extraction": "HashingVectorizer, or a public vocabulary without idf",
    "sklearn.feature_selection": "features chosen beforehand",
}
_ON_PUBLIC_ROWS = "nothing, or a FrozenEstimator that was fitted on public rows"


# When a class of scikit-learn that has a fit treats each row separately, except for its parts:
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


def pays(value: Any) -> bool:
    """Return whether a fit or a call of this releases something from its rows and is charged."""
    return isinstance(value, (Budgeted, PrivateScorer))


def parts_of(value: Any, step: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a value and all that `inside` finds in it, with the names of their places."""
    yield step, value
    for place, inner in inside(value, step):
        yield from parts_of(inner, place)


def inside(value: Any, step: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an estimator, or the elements of a collection, with their places."""
    if _is_estimator(value):
        # A frozen object was fitted before, and is examined as a whole.
        closed = isinstance(value, FrozenEstimator) or not hasattr(value, "get_params")
        value = {} if closed else value.get_params(deep=False)
    if isinstance(value, ParameterSampler):
        value = value.param_distributions
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.ravel().tolist()
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{step}__{name}".removeprefix("__"), inner
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            if isinstance(inner, tuple) and len(inner) > 1 and isinstance(inner[0], str):
                # As in steps and transformers, which is no part of a nested name.
                outer = step.rpartition("__")[0]
                yield f"{outer}__{inner[0]}".removeprefix("__"), inner[1]
            else:
                yield step, inner


def _facts(estimator: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what an estimator does with all rows, without those inside it: parts of findings."""
    name = type(estimator).__name__
    if hasattr(estimator, "fit_resample"):
        instead = "all rows as they are, with a public class_weight"
        yield f"{name} draws, drops or makes rows by what others hold", "breaks", instead
    elif is_package_object(estimator):
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
    func = getattr(estimator, "func", None)
    if func is not None and (
        _complains(func) or (estimator.inverse_func and estimator.check_inverse)
    ):
        does = f"{name} warns if a value is outside of the domain of func or inverse_func"
        yield does, "leaks", "a function of all numbers, such as numpy.arctan, without inverse_func"
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


def _complains(func: Callable[[Any], Any]) -> bool:
    """Return whether a function fails, or numpy would warn, for some finite number."""
    try:
        with np.errstate(all="raise", under="ignore"):
            func(np.array([0.0, 1.0, 2.0, 1e300, 5e-324, -0.0, -1.0, -2.0, -1e300, -5e-324]))
    except Exception:
        return True
    return False


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
    if by_label and (is_package_object(estimator) or (name == "ClassifierChain" and cv is None)):
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


# Classes of scikit-learn that keep each fit they made in an attribute.
_KEEP_FITS = {
    "BaggingClassifier", "CalibratedClassifierCV", "ClassifierChain", "ColumnTransformer",
    "FixedThresholdClassifier", "MultiOutputClassifier", "OneVsOneClassifier",
    "OneVsRestClassifier", "OutputCodeClassifier", "SelectFromModel", "TransformedTargetRegressor",
    "VotingClassifier",
}  # fmt: skip
# Classes that fit the very steps that they were given.
_FIT_STEPS = {"FeatureUnion": "transformer_list", "Pipeline": "steps"}
_SEARCHES = {f"{kind}SearchCV" for kind in ("Grid", "Randomized", "HalvingGrid", "HalvingRandom")}
# Classes that read the label set off the rows, even if the fits inside them have `classes`.
_READ_LABELS = {"Bagging", "OneVsRest", "OutputCode", "Stacking", "Voting"}


def total_privacy(
    study: Any, n_samples: int | None = None, n_features: int | None = None, n_classes: int = 2
) -> PrivacyLedger:
    """Return one ledger for the private fits in a pipeline, search, ensemble or list.

    Parameters
    ----------
    study : estimator, ledger, scores, results of ``cross_validate``, or a collection of them
        A pipeline or search may be fitted or not; other meta-estimators must be. The results of
        ``cross_validate`` need ``return_estimator=True``. All that it holds counts, a parameter
        that was fitted beforehand too.
    n_samples, n_features : int, default=None
        Shape of all rows, ``*X.shape``, if fits must be planned: those of a pipeline that is not
        fitted, and those of a search, which keeps only one.
    n_classes : int, default=2

    Returns
    -------
    PrivacyLedger
        Of all fits together. If a step breaks the guarantee, a warning says so. The epsilon is then
        ``inf``, and the ledger says what the fits cost alone. Steps that only their author can
        judge are among its assumptions.

    Raises
    ------
    ValueError
        If there is no private fit, or fits are gone whose cost cannot be known.

    Notes
    -----
    A search of G candidates over k folds makes G k + 1 fits. All but the last are planned anew.
    No number covers the choice among them by scores without noise. A meta-estimator that was fitted
    twice has forgotten its first fits; a `PrivacyOdometer` counts them.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from dpglm import DPLogisticRegression, PublicBoundsScaler
    >>> from dpglm.workflow import total_privacy
    >>> pipeline = make_pipeline(PublicBoundsScaler(0, 9), DPLogisticRegression(epsilon=1.0))
    >>> round(total_privacy(pipeline, n_samples=10_000, n_features=20).epsilon(), 3)
    1.0
    """
    shape = None if n_samples is None or n_features is None else (n_samples, n_features, n_classes)
    count = _Count(shape)
    total = count.total(count.of(study))
    if total is None:
        raise ValueError(f"total_privacy found no private fit in {study!r:.80}.")
    total = stated(total, findings_of(study))
    assumptions = dict.fromkeys((*total.assumptions, *_assumed_of(study)))
    return replace(total, assumptions=tuple(assumptions))


def _assumed_of(study: Any) -> Iterator[str]:
    """Yield what has to be assumed of scores and of labels."""
    if isinstance(study, Mapping) and "score_time" in study:
        yield "the scores, which have no noise or are charged as well, are not released"
    for _, part in parts_of(study):
        if type(part).__name__.removesuffix("Classifier") in _READ_LABELS:
            yield f"the label set, which {type(part).__name__} reads off the labels, is public"


@dataclass
class _Count:
    """Counts how often each ledger is in a study, the same in two places once.

    All that was met is kept, so that no other object takes its place in memory.
    """

    shape: tuple[int, int, int] | None
    met: dict[Any, tuple[Any, Counter[int]]] = field(default_factory=dict)
    ledgers: dict[int, PrivacyLedger] = field(default_factory=dict)

    def total(self, counted: Counter[int]) -> Any:
        return sum((self.ledgers[each] for each in counted.elements()), 0) or None

    def any_of(self, values: Iterable[Any], made: bool) -> Counter[int]:
        counted: Counter[int] = Counter()
        for value in values:
            counted |= self.of(value, made)
        return counted

    def of(self, value: Any, made: bool = False) -> Counter[int]:
        """Count the ledgers in a value. If fits are `made`, a value without one was not fitted."""
        key = id(value), made
        if key not in self.met:
            self.met[key] = value, Counter()  # for what holds itself
            self.met[key] = value, self._of(value, made)
        return self.met[key][1]

    def _of(self, value: Any, made: bool) -> Counter[int]:
        if isinstance(value, PrivacyLedger):
            self.ledgers[id(value)] = value
            return Counter([id(value)])
        if isinstance(value, (type, ModuleType)):
            return Counter()
        own, given = getattr(value, "__dict__", {}), [inner for _, inner in inside(value)]
        if isinstance(own.get("privacy_"), PrivacyLedger):
            # This has all that it spent itself; what it was given may have cost as well.
            return self.any_of([*given, own["privacy_"]], True)
        name = type(value).__name__ if type(value).__module__.startswith("sklearn.") else ""
        if name in _FIT_STEPS:
            # A step in two places was fitted twice, and keeps the second ledger alone.
            steps = own[_FIT_STEPS[name]]
            return sum((self.of(step[1], made) for step in steps), Counter())
        if isinstance(value, Mapping) and "score_time" in value and "estimator" not in value:
            raise ValueError("Fits are gone: call cross_validate with return_estimator=True.")
        if not hasattr(value, "fit") or isinstance(value, FrozenEstimator):
            return self.any_of([*given, *own.values()], made or bool(own))
        fitted = any(attribute.endswith("_") for attribute in own)
        if made and not fitted:
            return self.any_of(given, True)
        is_search = name in _SEARCHES and not any(pays(p) for _, p in parts_of(value.scoring))
        if self.shape is None and (is_search or hasattr(value, "plan")):
            raise ValueError(
                "Fits must be planned, because they are not made yet, or a search did not keep "
                "them. Pass the shape of all rows, as in total_privacy(search, *X.shape)."
            )
        if is_search:
            return self._of_search(value, *self.shape)
        if hasattr(value, "plan"):
            return self.of(value.plan(*self.shape).ledger)
        # By folds both make predictions of fits that they do not keep.
        by_folds = name == "ClassifierChain" and value.cv is not None
        keeps_all = name in _KEEP_FITS and not (by_folds or own.get("ensemble", True) is False)
        if not (fitted and keeps_all) and any(pays(part) for _, part in parts_of(value)):
            raise ValueError(
                f"What was fitted inside of {type(value).__name__} cannot be known: it is not "
                "fitted yet, or forgets a fit. Fit it in a PrivacyOdometer, whose total has all."
            )
        return self.any_of(own.values(), True)

    def _of_search(self, search: Any, n_samples: int, *others: int) -> Counter[int]:
        """Count k fits for each candidate, and the last one on all rows."""
        fitted = hasattr(search, "cv_results_")
        if not fitted and isinstance(search.cv, Iterator):
            raise ValueError(
                f"cv={search.cv!r:.80} of {type(search).__name__} can be read once only, and "
                "counting its splits would leave none to fit on: pass list(cv)."
            )
        folds = search.n_splits_ if fitted else check_cv(search.cv).get_n_splits(range(n_samples))
        candidates = _candidates(search, n_samples)

        def planned(params: Mapping[str, Any], n_rows: int) -> Counter[int]:
            candidate = clone(search.estimator).set_params(**clone(params, safe=False))
            return replace(self, shape=(n_rows, *others)).of(candidate)

        counted = self.any_of([search.estimator], made=True)
        for params, n_rows in candidates * folds:
            counted |= planned(params, n_rows - n_rows // folds)
        if hasattr(search, "best_estimator_"):
            return counted | self.of(search.best_estimator_, True)
        if search.refit and not fitted:
            last = [planned(*candidate) for candidate in candidates]
            counted |= max(last, key=lambda each: self.total(each).epsilon() if each else 0.0)
        return counted


def _candidates(search: Any, n_samples: int) -> list[tuple[Mapping[str, Any], int]]:
    """Return the parameters of each candidate, and among how many rows its folds are made."""
    name, results = type(search).__name__, getattr(search, "cv_results_", None)
    if results is not None:
        by_rows = getattr(search, "resource", None) == "n_samples"
        sizes = results["n_resources"] if by_rows else [n_samples] * len(results["params"])
        return list(zip(results["params"], map(int, sizes), strict=True))
    if name == "GridSearchCV":
        drawn = ParameterGrid(search.param_grid)
    elif name == "RandomizedSearchCV" and isinstance(search.random_state, Integral):
        drawn = ParameterSampler(
            search.param_distributions, search.n_iter, random_state=search.random_state
        )
    else:
        raise ValueError(
            f"Which candidates {name} tries is not known before it is fitted: halving leaves out "
            "by scores, and RandomizedSearchCV draws anew unless random_state is a number."
        )
    return [(params, n_samples) for params in drawn]
