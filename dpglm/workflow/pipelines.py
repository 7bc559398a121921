"""One walk over a pipeline: which steps read other people's rows, and what all fits cost."""

import math
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from numbers import Integral
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import ParameterSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from dpglm.estimators.base import Budgeted
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.odometer import is_package_object
from dpglm.workflow.scores import PrivateScorer
from dpglm.workflow.splits import PrivateKFold


@dataclass(frozen=True)
class Finding:
    """A step that the guarantee may not cover: it breaks, leaks, or is not known."""

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

    A class of scikit-learn that is not known to be harmless is taken to break the guarantee. The
    check begins with the pipeline.

    Parameters
    ----------
    estimator : estimator
        A pipeline, search or other meta-estimator, fitted or not, with all that it is made of.

    Returns
    -------
    list of Finding
        Printed, one a line; empty if every step is known to treat each row separately. Each has
        ``step``, ``reads``, ``instead`` and ``severity``, which may be ``"not known"``.

    Raises
    ------
    ValueError
        If it has no ``fit``.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from dpglm import DPLogisticRegression, PublicBoundsScaler, check_pipeline
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
    # Whether an estimator keeps the number of rows private: of records, or of a group.
    private_count = any(
        getattr(node, "neighboring_relation", None) == "add_or_remove_one"
        or getattr(node, "max_contributions", None) is not None
        for _, node in nodes
    )
    found = _Findings()
    for step, node in nodes:
        name, module = type(node).__name__, ".".join(type(node).__module__.split(".")[:2])
        for key in list(_facts(node)) or _facts_of_folds(node, private_count):
            severity, reads, instead = _known()["findings"][key]
            if key == "transformer":
                instead = _known()["instead"].get(module, instead)
            found.append(Finding(step or name, f"{name} {reads}", severity, instead))
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
    leak = GaussianEvent(0.0, purpose="what a step reads off all rows")
    events = (*ledger.events, *[(leak, 1)] * broken)
    return replace(ledger, events=events, assumptions=tuple(assumptions))


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "fit") and not isinstance(value, type)


def spends(value: Any) -> bool:
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
    if str(getattr(value, "dtype", "")) == "object":
        value = np.ravel(value).tolist()
    if hasattr(value, "dtypes") and hasattr(value, "items") and not isinstance(value, type):
        value = dict(value.items())  # of a data frame
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{step}__{name}".removeprefix("__"), inner
    elif isinstance(value, Sequence | Set | ValuesView) and not isinstance(value, str | bytes):
        for inner in value:
            if isinstance(inner, tuple) and len(inner) > 1 and isinstance(inner[0], str):
                # As in steps and transformers, which is no part of a nested name.
                outer = step.rpartition("__")[0]
                yield f"{outer}__{inner[0]}".removeprefix("__"), inner[1]
                yield step, inner[2:]
            else:
                yield step, inner


@cache
def _known() -> dict[str, Any]:
    """Return what is known of steps; `steps.toml` says what each entry is."""
    return tomllib.loads(files("dpglm").joinpath("workflow", "steps.toml").read_text("utf-8"))


def _is_harmless(step: Any) -> bool:
    """Return whether a class of scikit-learn treats each row separately, except for its parts."""
    known, name = _known(), type(step).__name__
    if name == "FrozenEstimator":
        return not check_pipeline(step.estimator)
    if name == "FunctionTransformer":
        return step.func is None or isinstance(step.func, np.ufunc)
    needed, excluded = (known[table].get(name, {}) for table in ("harmless_if", "harmless_unless"))
    if name in known["harmless"] or needed or excluded:
        return all(str(getattr(step, p)) in values for p, values in needed.items()) and not any(
            str(getattr(step, p)) in values for p, values in excluded.items()
        )
    # The tag of a predictor says only that it can predict before it was fitted.
    return hasattr(step, "transform") and not get_tags(step).requires_fit


def _facts(step: Any) -> Iterator[str]:
    """Yield what a step does with all rows, without those inside it: keys of findings."""
    name, module = type(step).__name__, type(step).__module__
    if hasattr(step, "fit_resample"):
        yield "fit_resample"
    elif is_package_object(step):
        if getattr(step, "epsilon", None) == math.inf:
            yield "all_noise_off"
    elif not module.startswith("sklearn."):
        if not isinstance(step, (Pipeline, FeatureUnion, ColumnTransformer)):
            yield "unknown_class"
    elif _is_harmless(step):
        yield from _facts_of_parameters(step)
    elif name in _known()["findings"]:
        yield name
    else:
        predicts = hasattr(step, "predict") and not hasattr(step, "transform")
        yield "predictor" if predicts else "transformer"


def _facts_of_parameters(step: Any) -> Iterator[str]:
    """Yield what parameters of a harmless class do nevertheless."""
    if not getattr(step, "keep_empty_features", True):
        yield "keep_empty_features"
    unknown, dropped = (getattr(step, name, None) for name in ("handle_unknown", "drop"))
    if unknown == "warn" or (dropped is not None and unknown != "error"):
        yield "handle_unknown"
    if getattr(step, "multilabel_", False):
        yield "multilabel"
    if isinstance(getattr(step, "vocabulary", None), Mapping):
        yield "vocabulary"
    if _warns_of_values(step):
        yield "func"
    inner = [*getattr(step, "transformers", ()), getattr(step, "remainder", ())]
    sparse = any(
        getattr(part, "sparse_output", type(part).__name__.endswith(("Vectorizer", "Hasher")))
        for _, part in parts_of(inner)
    )
    if sparse and getattr(step, "sparse_threshold", 0):
        # It is sparse itself by the number of zeros.
        yield "sparse_threshold"
    if any(vars(step).get(part, step) is None for part in ("estimator", "final_estimator")):
        yield "default_estimator"
    chosen = [getattr(step, "max_features", None)]
    chosen += [entry[2] for entry in getattr(step, "transformers", ())]
    if any(callable(c) and not isinstance(c, make_column_selector) for c in chosen):
        yield "chosen"


def _warns_of_values(step: Any) -> bool:
    """Return whether the function of a step fails, or numpy would warn, for some finite number."""
    func = getattr(step, "func", None)
    if func is None or (step.inverse_func and step.check_inverse):
        return func is not None
    try:
        with np.errstate(all="raise", under="ignore"):
            func(np.array([0.0, 1.0, 2.0, 1e300, 5e-324, -0.0, -1.0, -2.0, -1e300, -5e-324]))
    except Exception:
        return True
    return False


def _facts_of_folds(step: Any, private_count: bool) -> Iterator[str]:
    """Yield what its folds follow from, unless that is positions, or ids of a private number."""
    name, cv = type(step).__name__, getattr(step, "cv", "none")
    by_label = cv is None or isinstance(cv, Integral)
    if name == "BaggingClassifier" and private_count:
        yield "private_number"
    if by_label and (is_package_object(step) or (name == "ClassifierChain" and cv is None)):
        return  # which stratify nothing
    if by_label or type(cv).__name__.startswith(("Stratified", "Group")):
        yield "folds_by_label"
    elif isinstance(cv, PrivateKFold) or type(cv).__name__ in _known()["folds_by_position"]:
        if private_count and getattr(cv, "neighboring_relation", None) != "add_or_remove_one":
            yield "folds_of_private_number"
    elif not isinstance(cv, str):
        yield "folds"


def total_privacy(study: Any) -> PrivacyLedger:
    """Return one ledger for the private fits in a pipeline, ensemble, search of dpglm or list.

    A meta-estimator that was fitted twice has forgotten its first fits: use a `PrivacyOdometer`.

    Parameters
    ----------
    study : estimator, ledger, scores, results of ``cross_validate``, or a collection of them
        Fitted; ``cross_validate`` with ``return_estimator=True``.

    Returns
    -------
    PrivacyLedger
        The cost of all fits together. If a step breaks the guarantee, a warning says so, and the
        epsilon is ``inf``. Steps that only their author can judge are among its assumptions.

    Raises
    ------
    ValueError
        If there is no private fit, or fits are gone whose cost cannot be known.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from dpglm import DPLogisticRegression, PublicBoundsScaler, make_census, total_privacy
    >>> pipeline = make_pipeline(PublicBoundsScaler(0, 9), DPLogisticRegression(epsilon=1.0))
    >>> round(total_privacy(pipeline.fit(*make_census(1000, random_state=0))).epsilon(), 3)
    1.0
    """
    study = [*study] if isinstance(study, Iterator) else study
    count = _Count()
    total = sum((count.ledgers[each] for each in count.of(study).elements()), 0)
    if not total:
        raise ValueError(f"total_privacy found no private fit in {study!r:.80}.")
    total = stated(total, findings_of(study))
    assumed = [
        "no other fit was made to these records: one that a later fit replaced, or of which scores "
        "alone were kept, is not counted"
    ]
    if any(name == "score_time" for name, _ in inside(study)):
        assumed.append("the scores, which have no noise or are charged as well, are not released")
    kinds = (type(part).__name__ for _, part in parts_of(study))
    for name in filter(_known()["read_labels"].__contains__, kinds):
        assumed.append(f"the label set, which {name} reads off the labels, is public")
    return replace(total, assumptions=tuple(dict.fromkeys((*total.assumptions, *assumed))))


@dataclass
class _Count:
    """Counts how often each ledger is in a study, the same in two places once."""

    # Values are kept, so that no other object takes their places in memory.
    met: dict[int, tuple[Any, Counter[int]]] = field(default_factory=dict)
    ledgers: dict[int, PrivacyLedger] = field(default_factory=dict)

    def of(self, value: Any) -> Counter[int]:
        """Count the ledgers in a value."""
        if id(value) not in self.met:
            self.met[id(value)] = value, Counter()  # for what holds itself
            self.met[id(value)] = value, self._of(value)
        return self.met[id(value)][1]

    def any_of(self, values: Iterable[Any]) -> Counter[int]:
        counted: Counter[int] = Counter()
        for value in values:
            counted |= self.of(value)
        return counted

    def _of(self, value: Any) -> Counter[int]:
        if isinstance(value, PrivacyLedger):
            self.ledgers[id(value)] = value
            return Counter([id(value)])
        if isinstance(value, (type, ModuleType)):
            return Counter()
        slots = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
        own = {name: getattr(value, name, None) for name in slots if isinstance(name, str)}
        own |= getattr(value, "__dict__", {})
        names, given = ([part[i] for part in inside(value)] for i in (0, 1))
        if isinstance(own.get("privacy_"), PrivacyLedger):
            # This has all that it spent itself; what it was given may have cost as well.
            return self.any_of([*given, own["privacy_"]])
        name = type(value).__name__ if type(value).__module__.startswith("sklearn.") else ""
        if name in ("FeatureUnion", "Pipeline"):
            # A step in two places was fitted twice, and keeps the second ledger alone.
            steps = own.get("steps", own.get("transformer_list"))
            return sum((self.of(step[1]) for step in steps), Counter())
        if "score_time" in names and "estimator" not in names:
            raise ValueError("Fits are gone: call cross_validate with return_estimator=True.")
        if _is_estimator(value) and not isinstance(value, FrozenEstimator):
            # By folds both make predictions of fits that they do not keep.
            by_folds = name == "ClassifierChain" and value.cv is not None
            by_folds = by_folds or own.get("ensemble", True) is False
            keeps_all = name in _known()["keep_fits"] and not by_folds
            # Whether the class of another package was fitted, nobody knows.
            fitted = not (name or spends(value)) or any(key.endswith("_") for key in own)
            if fitted and not keeps_all and any(spends(part) for _, part in parts_of(value)):
                raise ValueError(
                    f"The fits inside of {type(value).__name__} cannot be known, because it does "
                    "not keep them all. Fit it in a PrivacyOdometer, whose total has all."
                )
        return self.any_of([*given, *own.values()])
