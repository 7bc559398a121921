"""One ledger for everything that was fitted inside of a pipeline, a search or a study."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import ParameterGrid, ParameterSampler, check_cv

from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schema.encoder import SchemaEncoder
from dpglm.workflow.atoms import RELEASED
from dpglm.workflow.calibration import PrivateCalibratedClassifier, PrivateThresholdClassifier
from dpglm.workflow.checks import assumed_of, check_pipeline, parts_of, released_by, warn_of

# Where a class of scikit-learn keeps all that it fitted.
_HOLDS = {
    "BaggingClassifier": "estimators_",
    "CalibratedClassifierCV": "calibrated_classifiers_",
    "ColumnTransformer": "transformers_",
    "FeatureUnion": "transformer_list",
    "FixedThresholdClassifier": "estimator_",
    "FrozenEstimator": "estimator",
    "MultiOutputClassifier": "estimators_",
    "OneVsOneClassifier": "estimators_",
    "OneVsRestClassifier": "estimators_",
    "OutputCodeClassifier": "estimators_",
    "Pipeline": "steps",
    "SelectFromModel": "estimator_",
    "VotingClassifier": "estimators_",
    "_CalibratedClassifier": "estimator",
}
_HALVING = ("HalvingGridSearchCV", "HalvingRandomSearchCV")
_SEARCHES = ("GridSearchCV", "RandomizedSearchCV", *_HALVING)

# What plan() takes, or None where nobody said.
Shape = tuple[int, int, int] | None


# Classes of scikit-learn that do so although the fits inside them are told the label set.
_READS_LABELS = (
    "BaggingClassifier", "OneVsRestClassifier", "OutputCodeClassifier", "StackingClassifier",
    "VotingClassifier",
)  # fmt: skip


def privacy_of(
    study: Any, n_samples: int | None = None, n_features: int | None = None, n_classes: int = 2
) -> PrivacyLedger:
    """Return one ledger for all private fits inside of a pipeline, a search, an ensemble or a list.

    Parameters
    ----------
    study : estimator, ledger, results of ``cross_validate``, or a list of them
        A pipeline or search may be fitted or not; other meta-estimators must be. The results of
        ``cross_validate`` need ``return_estimator=True``.
    n_samples, n_features : int, default=None
        Shape of all rows, ``*X.shape``, where fits have to be planned: those of a pipeline that is
        not fitted, and those of a search, which keeps one of them only.
    n_classes : int, default=2

    Returns
    -------
    PrivacyLedger
        Of all fits together. Where a step breaks the guarantee, the ledger says that there is none,
        and what its fits would cost alone: its epsilon is ``inf``. What only the author of a step
        can tell is among its assumptions.

    Raises
    ------
    ValueError
        If there is no private fit, or fits are gone whose cost cannot be known.

    Warns
    -----
    PrivacyWarning
        For each step that breaks the guarantee, as `check_pipeline` finds them.

    Notes
    -----
    A search of G candidates over k folds makes G k + 1 fits. Each is planned anew with the
    parameters of its candidate and all but one k-th of the rows; the last is the one that is kept,
    or before the search that of the dearest candidate. No number covers the choice among them by
    scores without noise.

    A meta-estimator that was fitted twice has forgotten its first fits, and so has this: a
    `PrivacyOdometer` counts what is made, not what is left.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from dpglm import DPLogisticRegression, PublicBoundsScaler
    >>> from dpglm.workflow import privacy_of
    >>> pipeline = make_pipeline(PublicBoundsScaler(0, 9), DPLogisticRegression(epsilon=1.0))
    >>> round(privacy_of(pipeline, n_samples=10_000, n_features=20).epsilon(), 3)
    1.0
    """
    shape = None if n_samples is None or n_features is None else (n_samples, n_features, n_classes)
    ledgers = list(_ledgers(study, shape, set()))
    if not ledgers:
        raise ValueError(f"privacy_of found no private fit in {study!r:.80}.")
    total = sum(ledgers)
    findings = dict.fromkeys(
        finding for estimator in _estimators(study) for finding in check_pipeline(estimator)
    )
    warn_of(findings)
    assumptions = [*assumed_of(findings), *_assumed_of_parts(study)]
    if isinstance(study, Mapping):
        assumptions.append("the scores, which have no noise, are not released")
    return replace(
        total,
        events=(*total.events, *released_by(findings)),
        assumptions=tuple(dict.fromkeys((*total.assumptions, *assumptions))),
    )


def _estimators(study: Any) -> Iterator[Any]:
    """Yield the estimators of a study, each a whole."""
    if isinstance(study, Mapping):
        study = study["estimator"]
    if isinstance(study, (list, tuple)):
        for inner in study:
            yield from _estimators(inner)
    elif hasattr(study, "fit"):
        yield study


def _assumed_of_parts(study: Any) -> Iterator[str]:
    """Yield what has to be assumed of schemas with atoms, and of what takes labels off the rows."""
    for _, part in parts_of([*_estimators(study)]):
        if type(part).__name__ in _READS_LABELS:
            yield f"the label set, which {type(part).__name__} reads off the labels, is public"
        if isinstance(part, SchemaEncoder) and RELEASED in part.schema.source:
            name = part.schema.name
            yield f"the counts that showed the atoms of schema {name!r} are charged as well"


def _ledgers(study: Any, shape: Shape, seen: set[int]) -> Iterator[PrivacyLedger]:
    """Yield the ledger of each private fit, of those that are kept in two places once."""
    name, known = type(study).__name__, type(study).__module__.startswith("sklearn.")
    kept = getattr(study, "privacy_", None)
    if isinstance(study, PrivacyLedger):
        yield study
    elif isinstance(kept, PrivacyLedger):
        if id(kept) not in seen:
            seen.add(id(kept))
            if isinstance(study, (PrivateCalibratedClassifier, PrivateThresholdClassifier)):
                yield from _ledgers(study.estimator, shape, seen)
            yield kept
    elif isinstance(study, Mapping):
        if "estimator" not in study:
            raise ValueError("Fits are gone: call cross_validate with return_estimator=True.")
        yield from _ledgers(study["estimator"], shape, seen)
    elif isinstance(study, (list, tuple)):
        for inner in study:
            yield from _ledgers(inner, shape, seen)
    elif known and name in _SEARCHES:
        yield from _search_ledgers(study, shape)
    elif known and name in _HOLDS and hasattr(study, _HOLDS[name]) and not _forgets(study):
        yield from _ledgers(getattr(study, _HOLDS[name]), shape, seen)
    elif hasattr(study, "plan"):
        yield study.plan(*_needed(shape)).ledger
    elif any(hasattr(inner, "plan") for _, inner in parts_of(study)):
        raise ValueError(
            f"What was fitted inside of {name} cannot be known: it is not fitted yet, or does not "
            "keep all of its fits. Fit it in a PrivacyOdometer, whose total has every fit."
        )


def _forgets(study: Any) -> bool:
    """Return whether a calibration keeps one of its fits only."""
    one = getattr(study, "ensemble", "auto") is False
    return one and not isinstance(study.estimator, FrozenEstimator)


def _needed(shape: Shape) -> tuple[int, int, int]:
    if shape is None:
        raise ValueError(
            "Fits have to be planned, because they are not made yet, or a search did not keep "
            "them: pass the shape of all rows, as in privacy_of(search, *X.shape)."
        )
    return shape


def _search_ledgers(search: Any, shape: Shape) -> Iterator[PrivacyLedger]:
    """Yield the ledgers of k fits for each candidate, and of the last one on all rows."""
    n_samples, *others = _needed(shape)
    fitted = hasattr(search, "cv_results_")
    if not fitted and isinstance(search.cv, Iterator):
        raise ValueError(
            f"cv={search.cv!r:.80} of {type(search).__name__} can be read once only, and counting "
            "its splits would leave none to fit on: pass list(cv)."
        )
    candidates = _candidates(search, n_samples)
    n_splits = search.n_splits_ if fitted else check_cv(search.cv).get_n_splits(range(n_samples))

    def planned(params: Mapping[str, Any], n_rows: int) -> PrivacyLedger:
        candidate = clone(search.estimator).set_params(**clone(params, safe=False))
        fits = list(_ledgers(candidate, (n_rows, *others), set()))
        if not fits:
            raise ValueError(f"privacy_of found no private estimator in {candidate!r:.80}.")
        return sum(fits)

    for params, n_rows in candidates:
        yield from [planned(params, n_rows - n_rows // n_splits)] * n_splits
    if hasattr(search, "best_estimator_"):
        yield from _ledgers(search.best_estimator_, shape, set())
    elif search.refit and not fitted:
        last = [planned(params, n_samples) for params, _ in candidates]
        yield max(last, key=lambda ledger: ledger.epsilon(last[0].reporting_delta))


def _candidates(search: Any, n_samples: int) -> list[tuple[Mapping[str, Any], int]]:
    """Return the parameters of each candidate, and among how many rows its folds are made."""
    name = type(search).__name__
    if hasattr(search, "cv_results_"):
        results = search.cv_results_
        if name in _HALVING and search.resource == "n_samples":
            return list(zip(results["params"], map(int, results["n_resources"]), strict=True))
        return [(params, n_samples) for params in results["params"]]
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
