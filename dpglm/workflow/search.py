"""Search over settings on private records, whose whole cost is known before the first fit."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import utils
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpglm.estimators.base import Budgeted
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.inputs import (
    as_source,
    checked_target,
    resolved_classes,
    spelled,
    training_data,
)
from dpglm.estimators.plan import ledger_of
from dpglm.estimators.prediction import ExactScore
from dpglm.estimators.regression import PrivateRegressor
from dpglm.exceptions import UtilityWarning, advising
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import ChoiceEvent, FilterEvent
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger, rounded_up, warn_of_guarantee
from dpglm.privacy.noise import entropy_source
from dpglm.privacy.odometer import JointCharge
from dpglm.privacy.selection import ChoosingVault, ExponentialSelection
from dpglm.sources import Source
from dpglm.tables import Printed
from dpglm.workflow.pipelines import findings_of, parts_of, spends, stated
from dpglm.workflow.releases import counted_rows, steps_alone

# Fraction of mu^2 for the candidates and the choice, and of that for the choice.
_SEARCH_FRACTION, _CHOICE_FRACTION = 1 / 3, 0.1
_SET_BY_SEARCH = ("epsilon", "delta", "neighboring_relation", "n_samples_estimate", "classes")


class LabelledRows:
    """Holds private rows and their labels, and answers how many of them a model predicts.

    A row counts as 1 less its squared error. The error of `soft` predictions is the Brier score;
    that of a label is 0 or 1. That of a number is in units of the ``error_bound``, and at most 1.
    """

    def __init__(self, X: Any, y: np.ndarray, error_bound: float | None = None) -> None:
        self._X, self._y, self.n_records, self._bound = X, y, len(y), error_bound

    def n_right(self, model: Any, soft: bool = False) -> float:
        """Return the sum over counted rows; of a failed fit, None, 0."""
        if model is None:
            return 0.0
        with steps_alone():
            if self._bound is not None:
                error = np.square((model.predict(self._X) - self._y) / self._bound)
            elif soft:
                labels = self._y[:, np.newaxis] == model.classes_
                error = np.square(model.predict_proba(self._X) - labels).sum(axis=1) / 2
            else:
                error = 1.0 * (model.predict(self._X) != self._y)
            # In multiples of 2^-20 sums are exact.
            right = np.rint(np.clip(np.nan_to_num(1 - error), 0.0, 1.0) * 2**20) / 2**20
            return float(np.sum(right * counted_rows(model, self._X)))


class SearchVault(ChoosingVault):
    """A vault that releases which of some released models seems to be right most often."""

    def choose_model(self, models: Sequence[Any], epsilon: float) -> int:
        """Release the index of a model that predicts many labels, by the exponential mechanism.

        A record adds 0 to 1 to each sum. It moves one more than another by 1 at most, or by 2 if it
        is replaced. Sums are exact, as of multiples of 2^-20. It is assumed that the other rows do
        not change what is predicted for a row: rounding hardly does, as multiples are far coarser.
        """
        choice = ExponentialSelection(score_range=self._moved_clips, epsilon=float(epsilon))
        # Sums are compared only with their like.
        soft = all(hasattr(model, "predict_proba") for model in models if model is not None)
        sums = lambda: np.array([self._sums.n_right(model, soft) for model in models])  # noqa: E731
        return self._release_choice(choice, sums)


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchPlan(Printed):
    """Releases and cost of a search, the sum of which is ``ledger``, before any data."""

    n_candidates: int
    budget: PrivacyBudget
    candidate_mu: float
    final_mu: float
    choice_epsilon: float
    ledger: PrivacyLedger

    def _blocks(self) -> Iterable[Any]:
        each, last = (
            rounded_up(gdp_epsilon(mu, self.budget.delta))
            for mu in (self.candidate_mu, self.final_mu)
        )
        said = (
            f"{self.n_candidates} candidates of epsilon={each} each, compared with "
            f"epsilon={rounded_up(self.choice_epsilon)}, and a last fit of epsilon={last}."
        )
        return [("", said, self.ledger)]


def _of_best(name: str, returned: str) -> Any:
    """Return a method that asks the last fit, where that, or the estimator, has such a method."""

    def method(search: "PrivateSearchCV", X: Any) -> np.ndarray:
        return getattr(search._best, name)(X)

    method.__name__, method.__doc__ = name, f"Return {returned}"
    has_method = lambda s: hasattr(getattr(s, "best_estimator_", s.estimator), name)  # noqa: E731
    return available_if(has_method)(method)


@dataclass(eq=False, repr=False)
class PrivateSearchCV(Budgeted, ExactScore, MetaEstimatorMixin, BaseEstimator):
    """Search for the best setting of an estimator on private records, within one budget.

    Fits of all settings and a choice take a third of mu^2; a last fit takes the rest. Classifiers
    are chosen by Brier scores, or by right predictions if one has no probabilities. Regressors are
    chosen by squared errors, up to half the widest ``target_range_``. There are no folds: each
    would cost as much as one more candidate.

    Parameters
    ----------
    estimator : estimator
        One of this package with a Gaussian trade-off (no mini-batches, ``"zcdp"`` or `PrivGene`).
        Or a `Pipeline` that ends with one and changes each row separately.
    param_grid : dict, list of dict or ParameterSampler
        As in `GridSearchCV`, listed without looking at the data. More settings get less each.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public, and is for
        regressors.
    epsilon, delta, neighboring_relation, n_samples_estimate
        As in `DPLogisticRegression`, for the whole search.

    Attributes
    ----------
    best_estimator_ : estimator
        The last fit.
    best_params_ : dict
    best_index_ : int
    cv_results_ : dict
        ``params`` of all candidates, and which is ``chosen``. No scores: none was released.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    plan_ : SearchPlan
        Releases and cost of the search.
    privacy_ : PrivacyLedger
        Cost of everything that is released; ``inf`` if a step breaks the guarantee.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of the choice and of the last fit together. G
    fits of mu_c each, a choice of mu_s and a last fit of mu_f cost ``mu^2 = G mu_c^2 + mu_s^2 +
    mu_f^2``. The choice is by the exponential mechanism (Dong, Durfee & Rogers 2020).

    An odometer is charged once, before the first release. Steps run in one thread and in silence;
    one that fits privately is refused: pass a frozen fit of it.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, PrivateSearchCV, make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> search = PrivateSearchCV(
    ...     DPLogisticRegression(), {"clip_schedule": [0.1, 1.0]}, epsilon=1.0, classes=[0, 1]
    ... )
    >>> print(search.plan(*X.shape))
    2 candidates of epsilon=... each, compared with epsilon=..., and a last fit of epsilon=...
    >>> search = search.fit(X, y)
    >>> search.best_params_ in [{"clip_schedule": 0.1}, {"clip_schedule": 1.0}]
    True
    """

    estimator: BaseEstimator
    param_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    _: KW_ONLY
    classes: ArrayLike | None = None

    @advising
    def plan(self, n_samples: int, n_features: int, n_classes: int = 2) -> SearchPlan:
        """Return what a fit would release and spend, without any data.

        Parameters
        ----------
        n_samples : int
            Not read under ``"add_or_remove_one"``.
        n_features : int
            Number of columns that the last step of a pipeline is given.
        n_classes : int, default=2

        Raises
        ------
        ValueError
            If a parameter is out of range, or a setting cannot be fitted within its part.
        """
        settings = self._settings()
        return self._plan(settings, n_samples, [n_features] * len(settings), n_classes)

    @advising
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit all candidates, choose one and fit it, with the guarantee that ``privacy_`` states.

        Parameters
        ----------
        X : {array-like, CSR matrix, data frame} of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For bad parameters or data; after a release, with ``privacy_ledger``, the whole cost.
        BudgetExceededError
            If the whole search exceeds the limit of an odometer, before anything is released.
        """
        self._forget()
        in_blocks = isinstance(X, Source) or type(X).__module__.startswith("dask")
        # Earlier steps may take what a fit does not, such as dates.
        encoded = isinstance(self.estimator, Pipeline) and len(self.estimator) > 1
        if in_blocks or ((y is None or not encoded) and as_source(X, y) is not None):
            raise TypeError("PrivateSearchCV needs X and y in memory, not blocks of rows.")
        X, y = utils.indexable(X, y)
        settings = self._settings()
        # How many columns each is given; an error of a row must come before anything is charged.
        widths = [
            training_data(_private_step(model)[1], _encoded(model, X, y), y).shape[1]
            for model in map(self._configured, settings)
        ]
        y, classes = checked_target(_private_step(self.estimator)[1], y), None
        if not is_regressor(self):
            if self._declared() is None:
                check_classification_targets(y)
            classes = resolved_classes(self._declared(), y)
            y = spelled(y, classes)
        plan = self._plan(settings, len(y), widths, 2 if classes is None else len(classes))
        warn_of_guarantee(False, plan.budget, 1, stacklevel=4)  # its fits warn of delta
        with JointCharge(plan.ledger, self):
            found = self._search(plan, settings, classes, X, y)
        vars(self).update(found, plan_=plan, privacy_=plan.ledger)
        return self

    def _search(
        self, plan: SearchPlan, settings: list[dict], classes: Any, X: Any, y: np.ndarray
    ) -> dict[str, Any]:
        """Fit the candidates, choose one and fit it; return the fitted attributes."""
        own = {} if classes is None else {"classes": classes.tolist()}
        own["epsilon"] = self._epsilon_of(plan.candidate_mu)
        with warnings.catch_warnings():
            # That a candidate has learned little says nothing of the last fit.
            for kind in (UtilityWarning, ConvergenceWarning):
                warnings.simplefilter("ignore", kind)
            models = [_fitted(self._configured(setting, **own), X, y) for setting in settings]
        bound = None
        if classes is None:
            found = [_private_step(each)[1].target_range_ for each in models if each is not None]
            bound = max([(high - low) / 2 for low, high in found], default=1.0)
        event, rows = ChoiceEvent(plan.choice_epsilon), LabelledRows(X, y, bound)
        vault = SearchVault(rows, [(event, 1)], plan.budget, entropy_source())
        best = vault.choose_model(models, plan.choice_epsilon)
        vault.check_unbroken()
        results = {"params": settings, "chosen": np.arange(len(settings)) == best}
        own["epsilon"] = self._epsilon_of(plan.final_mu)
        return {
            "best_estimator_": _fit(self._configured(settings[best], **own), X, y),
            "best_index_": best,
            "best_params_": settings[best],
            "cv_results_": results,
        }

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the score of ``best_estimator_``, without noise: do not publish it."""
        return self._best.score(X, y, sample_weight)

    predict = _of_best("predict", "what ``best_estimator_`` predicts, shape (n_samples,).")
    predict_proba = _of_best("predict_proba", "its probabilities, shape (n_samples, n_classes).")
    predict_log_proba = _of_best("predict_log_proba", "the logarithm of its `predict_proba`.")
    decision_function = _of_best("decision_function", "its scores, one or (n_classes,) a row.")

    @property
    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @property
    def classes_(self) -> np.ndarray:
        """The label set, shape (n_classes,)."""
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features that `fit` was given."""
        return self.best_estimator_.n_features_in_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own = utils.get_tags(self.estimator)
        tags.input_tags.sparse, tags.estimator_type = own.input_tags.sparse, own.estimator_type
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        return tags

    def _settings(self) -> list[dict[str, Any]]:
        """Return the settings of all candidates, checked."""
        grid = self.param_grid
        settings = list(grid if isinstance(grid, ParameterSampler) else ParameterGrid(grid))
        if not settings:
            raise ValueError(f"param_grid={grid!r} has no setting: give one at least, or {{}}.")
        prefix, _ = _private_step(self.estimator)
        varied = {name for setting in settings for name in setting}
        for name in varied.intersection(prefix + fixed for fixed in _SET_BY_SEARCH):
            raise ValueError(
                f"param_grid varies {name}: the budget and the public facts are those of the "
                "whole search. Pass them to PrivateSearchCV."
            )
        return settings

    def _plan(
        self, settings: list[dict], n_samples: int, widths: list[int], n_classes: int
    ) -> SearchPlan:
        """Fix the costs of the whole, and see that every setting can be fitted within its part."""
        budget, n_candidates = self._budget(), len(settings)
        # 1) Divide mu^2.
        search_mu = budget.mu * math.sqrt(_SEARCH_FRACTION)
        final_mu = budget.mu * math.sqrt(1 - _SEARCH_FRACTION)
        candidate_mu = search_mu * math.sqrt(1 - _CHOICE_FRACTION) / math.sqrt(n_candidates)
        choice_epsilon = ChoiceEvent.epsilon_from_mu(search_mu * math.sqrt(_CHOICE_FRACTION))
        # 2) Charge each fit with all that it may cost, whichever setting it will have.
        fit = FilterEvent(mu=candidate_mu, purpose="fit of a candidate")
        choice = ChoiceEvent(choice_epsilon, purpose="choice of a candidate")
        last = FilterEvent(mu=final_mu, purpose="last fit")
        whole = ledger_of(budget, [*[fit] * n_candidates, choice, last])
        # 3) See that every setting can be fitted, and what that assumes.
        assumptions: dict[str, None] = {}
        for setting, width in zip(settings, widths, strict=True):
            for mu in (candidate_mu, final_mu):
                plan = self._plan_of(setting, mu, n_samples, width, n_classes)
                assumptions |= dict.fromkeys(plan.ledger.assumptions)
        whole = replace(whole, assumptions=(*assumptions, *whole.assumptions))
        models = [self._configured(setting) for setting in settings]
        return SearchPlan(
            n_candidates=n_candidates,
            budget=budget,
            candidate_mu=candidate_mu,
            final_mu=final_mu,
            choice_epsilon=choice_epsilon,
            ledger=stated(whole, findings_of(models), stacklevel=5),
        )

    def _plan_of(self, setting: dict, mu: float, n_samples: int, width: int, n_classes: int) -> Any:
        """Return the plan of one fit, which is charged in mu."""
        _, last = _private_step(self._configured(setting, epsilon=self._epsilon_of(mu)))
        try:
            shape = (n_samples, width, n_classes)[: 2 if is_regressor(last) else 3]
            plan = last.plan(*shape)
            if plan.ledger.seeded:
                raise ValueError(
                    "seeded_noise would give all fits the same noise, which cancels; leave it out."
                )
            if (cost := plan.ledger.mu()) > mu:
                raise ValueError(
                    f"it would cost mu={cost:.6g}, and a search, which adds up squares of mu, has "
                    f"{mu:.6g} for it: PrivGene spends its epsilon by zCDP."
                )
        except ValueError as error:
            raise ValueError(f"The setting {setting!r} cannot be searched: {error}") from error
        return plan

    def _declared(self) -> Any:
        return _private_step(self.estimator)[1].classes if self.classes is None else self.classes

    def _epsilon_of(self, mu: float) -> float:
        """Return the epsilon of a fit that costs this mu, at the delta of the search."""
        epsilon = gdp_epsilon(mu, self.delta)
        if not epsilon:
            raise ValueError(
                f"delta={self.delta:g} alone is the cost of each fit of this search; choose it far "
                "below one over the number of records, such as 1e-6."
            )
        return epsilon

    def _configured(self, setting: dict[str, Any], **own: Any) -> Any:
        """Return a copy of the estimator with this setting and parameters of its private step."""
        model = clone(self.estimator).set_params(**clone(setting, safe=False))
        declared = self._declared()
        known = {} if declared is None else {"classes": declared}
        own = asdict(self._budget()) | {"epsilon": 1.0} | known | own
        prefix, last = _private_step(model)
        for step, part in parts_of(model):
            if spends(part) and part is not last:
                raise ValueError(
                    f"{step} is a {type(part).__name__}, which fits privately, and a search "
                    "charges for its last step alone. Fit it before, and pass a FrozenEstimator."
                )
        return model.set_params(**{prefix + name: value for name, value in own.items()})


def _private_step(estimator: Any) -> tuple[str, Any]:
    """Return what names of parameters of the private estimator begin with, and the estimator."""
    prefix, last = "", estimator
    if isinstance(estimator, Pipeline):
        prefix, last = f"{estimator.steps[-1][0]}__", estimator.steps[-1][1]
    if not isinstance(last, (PrivateLinearClassifier, PrivateRegressor)):
        raise TypeError(
            "PrivateSearchCV searches over estimators of dpglm, or pipelines that end with one, "
            f"not {type(last).__name__}."
        )
    return prefix, last


def _encoded(model: Any, X: Any, y: Any) -> Any:
    """Fit the steps before the private estimator, and return what they make of the rows."""
    if isinstance(model, Pipeline) and len(model) > 1:
        steps = model[:-1]
        with steps_alone():
            X = steps.fit_transform(X, y)
        model.steps[:-1] = steps.steps
    return X


def _fit(model: Any, X: Any, y: np.ndarray) -> Any:
    """Fit a model; the private estimator warns of public facts, and its steps of nothing."""
    _private_step(model)[1].fit(_encoded(model, X, y), y)
    return model


def _fitted(model: Any, X: Any, y: np.ndarray) -> Any:
    """Return a fitted candidate, or None if the fit failed once it had drawn noise."""
    try:
        return _fit(model, X, y)
    except Exception as error:
        if not hasattr(error, "privacy_ledger"):
            raise
        return None
