"""Generalized linear models of a number by noisy gradient descent: linear, Poisson, gamma."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.utils.validation import check_is_fitted

from dpglm.checks import check_numbers
from dpglm.estimators.base import PrivateLinearModel
from dpglm.estimators.callbacks import picklable_copy, with_callbacks
from dpglm.estimators.defaults import COUNT_FRACTION
from dpglm.estimators.descent import NoisyDescentMixin
from dpglm.estimators.inference import InferenceResults, inference_of
from dpglm.estimators.inputs import Table, as_source, checked_weights
from dpglm.estimators.plan import PlannedRelease, PrivacyPlan
from dpglm.estimators.prediction import CountedCopies, answers, by_blocks
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.estimators.target import checked_bounds, settle_target, target_releases
from dpglm.exceptions import advising
from dpglm.losses import Gamma, NumericLoss, Poisson, Squared
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.odometer import warn_of_exact_scores
from dpglm.privacy.vault import Vault
from dpglm.schedules import PublicMetadata
from dpglm.schema import Schema


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(NoisyDescentMixin, CountedCopies, RegressorMixin, PrivateLinearModel):
    """Base of the regressors: a target of numbers, its releases, predictions and scores."""

    target_bounds: tuple[float, float] | None = None
    inference_fraction: float = 0.0

    classes = class_weight = None  # of classifiers
    # The loss, the name, and the power of the variance in the mean.
    _of_numbers: ClassVar[NumericLoss]
    _kind: ClassVar[str]
    _power: ClassVar[int]

    def _loss(self, n_classes: int = 2) -> NumericLoss:
        return self._of_numbers

    @property
    def _has_log_link(self) -> bool:
        return self._power > 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._has_log_link
        # The check fits 200 records, at epsilon 1 often no better than their mean.
        tags.regressor_tags.poor_score = True
        return tags

    def plan(self, n_samples: int, n_features: int) -> PrivacyPlan:
        """Return the releases of a fit and their cost, without any data.

        A fit with ``sample_weight`` releases the sum of the weights too. Rows of a schema have a
        public bound on their norms: give ``max_row_norm`` for the plan of such a fit.

        Parameters
        ----------
        n_samples : int
            Number of records. Under ``"add_or_remove_one"`` it is ignored for
            ``n_samples_estimate``.
        n_features : int
            Number of columns of X.

        Returns
        -------
        PrivacyPlan
        """
        return self._planned(n_samples, n_features, 2)

    def _plan_for(self, budget: PrivacyBudget, metadata: PublicMetadata, data: Any) -> PrivacyPlan:
        fraction = COUNT_FRACTION * (data is not None and "row_weights" in data.options)
        return self._plan(budget, replace(metadata, residual=1.0, count_fraction=fraction))

    def _target_releases(
        self, budget: PrivacyBudget, metadata: PublicMetadata
    ) -> tuple[tuple[PlannedRelease, ...], tuple[PlannedRelease, ...]]:
        checked_bounds(self.target_bounds, self._has_log_link)
        return target_releases(self, budget, metadata)

    def _settled(self, vault: Vault, plan: PrivacyPlan, data: Any) -> PrivacyPlan:
        bounds = checked_bounds(self.target_bounds, self._has_log_link)
        return settle_target(vault, plan, bounds, self._has_log_link)

    def _train(self, vault: Vault, plan: PrivacyPlan, on_step: OnStep) -> FitTrace:
        target, intercept = plan.target, bool(self.fit_intercept)
        if on_step is not None:
            tell = on_step

            def on_step(t: int, coef: np.ndarray) -> None:
                tell(t, target.original(coef, intercept))

        trace = super()._train(vault, plan, on_step)
        trace.target, trace.coef = target, target.original(trace.coef, intercept)
        self.target_range_ = target.bounds
        if (found := trace.debiased) is not None:
            weight = self.max_weight if plan.metadata.count_fraction > 0 else 1.0
            trace.debiased = replace(
                found,
                coef=target.original(found.coef, intercept),
                basis=(1.0 if self._has_log_link else target.unit) * found.basis,
                dispersion=found.dispersion * weight * target.unit ** (2 - self._power),
            )
        return trace

    @property
    def dispersion_(self) -> float:
        """Released variance of a record of weight 1, over 1, the mean or its square."""
        return self.trace_.debiased.dispersion

    def _fitted_attributes(self, coef: np.ndarray, dtype: Any) -> dict[str, Any]:
        found = super()._fitted_attributes(coef, dtype)
        return {"coef_": found["coef_"][0], "intercept_": found["intercept_"][0]}

    @with_callbacks
    def fit(
        self, X: Table, y: ArrayLike | None = None, *, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit with the guarantee that ``privacy_`` states.

        Input, errors and warnings are those of `DPLogisticRegression.fit`, without ``groups``.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
        y : array-like of shape (n_samples,), default=None
            Finite numbers: 0 or above for `DPPoissonRegressor`, above 0 for `DPGammaRegressor`.
            ``None`` if X is a `Source` or yields ``(X, y)`` blocks.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, 0 or above, each made from its own record and public facts: the exposure, if y
            is a rate. They are divided by ``max_weight``. Not for blocks of rows.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight)

    @advising
    def inference(
        self,
        level: float = 0.95,
        schema: Schema | None = None,
        references: Mapping[str, Any] | None = None,
    ) -> InferenceResults:
        """Return standard errors, intervals and tests of a fit with an ``inference_fraction``.

        It costs no more privacy, and may be repeated. Errors are those of a variance that is the
        released ``dispersion_`` times 1 (linear), the mean (Poisson) or its square (gamma).

        Parameters
        ----------
        level, schema, references
            As in `DPLogisticRegression.inference`.

        Returns
        -------
        InferenceResults

        Raises
        ------
        ValueError
            As in `DPLogisticRegression.inference`.

        Examples
        --------
        >>> import numpy as np
        >>> from dpglm import DPLinearRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 2))
        >>> y = 3 + X @ [2.0, 0.0] + rng.normal(size=20_000)
        >>> found = DPLinearRegression(epsilon=4.0, inference_fraction=0.5).fit(X, y).inference()
        >>> low, high = found.conf_int()[1]
        >>> found.names, bool(1.8 < low < high < 2.2)
        (['const', 'x1', 'x2'], True)
        """
        return inference_of(self, level, schema, references, kind=self._kind)

    @by_blocks
    def predict(self, X: Table) -> np.ndarray:
        """Return the mean of the target for each row, shape (n_samples,), within ``target_range_``.

        It accepts every input of `fit`, and ignores a target that comes with the rows.
        """
        with np.errstate(over="ignore"):
            scores = self._scores(X)
            means = np.exp(scores) if self._has_log_link else scores
        return np.clip(means, *self._limits)

    @property
    def _limits(self) -> tuple[float, float]:
        """The least and the largest prediction: a mean of zero would exclude other numbers."""
        low, high = self.target_range_
        return max(low, 1e-30) if self._has_log_link else low, high

    def score(
        self, X: Table, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R^2, or with a log link D^2 of the deviance, on rows in any input of `fit`.

        The score has no noise: do not publish it for private records. Rows in blocks have no
        `sample_weight`.
        """
        warn_of_exact_scores(stacklevel=2)
        source = as_source(X, y)
        if source is None:
            y, predicted = check_numbers("y", y, **self._target_limits), self.predict(X)
        elif sample_weight is not None:
            raise TypeError("sample_weight is for arrays in memory, not for blocks of rows.")
        else:
            y, predicted = np.hstack(answers(picklable_copy(self)._beside, source, labelled=True))
        weights = None if sample_weight is None else checked_weights(sample_weight, y)
        if not self._has_log_link:
            return float(r2_score(y, predicted, sample_weight=weights))
        return float(d2_tweedie_score(y, predicted, sample_weight=weights, power=self._power))

    def to_sklearn(self) -> Any:
        """Return a plain model of scikit-learn with these coefficients, which needs no dpglm.

        Its predictions are not cut to ``target_range_``, and parameters such as its ``alpha`` are
        unrelated to the fit. Publish ``privacy_.to_dict()`` with it.

        Returns
        -------
        LinearRegression, PoissonRegressor or GammaRegressor

        Examples
        --------
        >>> import numpy as np
        >>> from dpglm import DPLinearRegression
        >>> X = np.random.default_rng(0).uniform(size=(1000, 2))
        >>> model = DPLinearRegression(target_bounds=(0, 2)).fit(X, X.sum(axis=1))
        >>> plain = model.to_sklearn()
        >>> bool((np.clip(plain.predict(X), 0, 2) == model.predict(X)).all())
        True
        """
        check_is_fitted(self)
        model = (LinearRegression, PoissonRegressor, GammaRegressor)[self._power]()
        # Some row, since predictions of the last two need more than coefficients.
        model.fit(np.zeros((1, self.n_features_in_)), np.ones(1))
        return self._copied_to(model)

    def _beside(self, X: Any, y: Any) -> np.ndarray:
        """Return the target of a block, and what is predicted (2, n_rows)."""
        return np.stack([check_numbers("y", y, **self._target_limits), self.predict(X)])


@dataclass(kw_only=True, eq=False, repr=False)
class DPLinearRegression(PrivateRegressor):
    """Differentially private linear regression.

    Noisy gradient descent on the mean squared error, in units that are released first. The noise of
    the whole run is calibrated to (epsilon, delta) before the data are read.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, fit_intercept, max_weight
        As in `DPLogisticRegression`.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on half the mean squared error. The intercept is never
        penalised.
    target_bounds : tuple of float, default=None
        Public range (low, high) of y, which need not be known. The range clips predictions, and y
        where its mean is released. ``None`` releases a
        histogram of y. Bounds help most with few records.
    noise_schedule, clip_schedule, step_schedule, momentum, averaging, preconditioner
        As in `DPLogisticRegression`. The unit of the clipping norm is the usual size of a residual
        times that of a row, and has no largest value.
    noise_multiplier, max_iter, sampling_rate, batches, max_row_norm, inference_fraction
        As in `DPLogisticRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    target_range_ : tuple of float
        The range of predictions: ``target_bounds``, or powers of two that the histogram showed.
    dispersion_ : float
        With an ``inference_fraction``: the residual variance. With a log link, Pearson's statistic
        over its degrees of freedom.
    n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`. ``trace_.target`` has middle and unit of the target.

    Notes
    -----
    Everything that ``fit`` stores is (epsilon, delta)-differentially private under
    ``neighboring_relation``. A fit makes these releases, in this order, with Gaussian noise:

    1. with weights, their sum, of L2 sensitivity 1 over the largest weight;
    2. without ``target_bounds``, a histogram of y by sign and power of two, of sensitivity 1
       (sqrt(2) under ``"replace_one"``);
    3. with an intercept, the sum of y, cut to the range, of sensitivity half the range (the range);
    4. a histogram of y around its mean, as in 2;
    5. those of `DPLogisticRegression`: histogram, second moment, sums of clipped gradients;
    6. from n mu = 60 on, six sums of clipped gradients of the intercept alone;
    7. with an ``inference_fraction``, a histogram of residuals as in 2, one curvature of weighted
       rows, six sums of gradients, and one of squared residuals.

    A row of weight w counts as w y in 2 to 4, and a null record nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(10_000, 3))
    >>> y = X @ [2.0, 0.0, -1.0] + 5 + rng.normal(size=10_000)
    >>> model = DPLinearRegression(epsilon=1.0).fit(X, y)
    >>> bool(np.abs(model.coef_ - [2, 0, -1]).max() < 0.2), model.score(X, y) > 0.8
    (True, True)
    """

    _of_numbers: ClassVar[NumericLoss] = Squared()
    _kind: ClassVar[str] = "linear"
    _power: ClassVar[int] = 0
    _target_limits: ClassVar[dict[str, float]] = {}


@dataclass(kw_only=True, eq=False, repr=False)
class DPPoissonRegressor(PrivateRegressor):
    """Differentially private Poisson regression, with a log link.

    The mean of y is ``exp(X @ coef_ + intercept_)``, and noisy gradient descent is on half the mean
    deviance. For counts over exposures give the rate, ``count / exposure``, as y, and the exposure
    as ``sample_weight``, with ``max_weight`` a public bound on exposures.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, max_weight
        As in `DPLinearRegression`.
    target_bounds, noise_schedule, clip_schedule, step_schedule, momentum, averaging
        As in `DPLinearRegression`.
    preconditioner, noise_multiplier, max_iter, sampling_rate, batches, max_row_norm
        As in `DPLinearRegression`.
    inference_fraction
        As in `DPLinearRegression`.

    Attributes
    ----------
    coef_, intercept_, target_range_, dispersion_, n_iter_, n_features_in_, feature_names_in_
        As in `DPLinearRegression`.
    privacy_, trace_
        As in `DPLinearRegression`.

    Notes
    -----
    The guarantee and the releases are those of `DPLinearRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPPoissonRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, exposure = rng.normal(size=(10_000, 2)), rng.uniform(0.2, 1, size=10_000)
    >>> counts = rng.poisson(exposure * np.exp(X @ [0.5, -0.3]))
    >>> model = DPPoissonRegressor(epsilon=1.0, max_weight=1)
    >>> model = model.fit(X, counts / exposure, sample_weight=exposure)
    >>> bool(np.abs(model.coef_ - [0.5, -0.3]).max() < 0.2)
    True
    """

    _of_numbers: ClassVar[NumericLoss] = Poisson()
    _kind: ClassVar[str] = "Poisson"
    _power: ClassVar[int] = 1
    _target_limits: ClassVar[dict[str, float]] = {"at_least": 0}


@dataclass(kw_only=True, eq=False, repr=False)
class DPGammaRegressor(PrivateRegressor):
    """Differentially private gamma regression, with a log link, for positive amounts.

    The mean of y is ``exp(X @ coef_ + intercept_)``, and noisy gradient descent is on half the mean
    deviance.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, max_weight
        As in `DPLinearRegression`.
    target_bounds, noise_schedule, clip_schedule, step_schedule, momentum, averaging
        As in `DPLinearRegression`.
    preconditioner, noise_multiplier, max_iter, sampling_rate, batches, max_row_norm
        As in `DPLinearRegression`.
    inference_fraction
        As in `DPLinearRegression`.

    Attributes
    ----------
    coef_, intercept_, target_range_, dispersion_, n_iter_, n_features_in_, feature_names_in_
        As in `DPLinearRegression`.
    privacy_, trace_
        As in `DPLinearRegression`.

    Notes
    -----
    The guarantee and the releases are those of `DPLinearRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import DPGammaRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(10_000, 2))
    >>> y = rng.gamma(2, np.exp(X @ [0.5, -0.3]))
    >>> model = DPGammaRegressor(epsilon=1.0).fit(X, y)
    >>> bool(np.abs(model.coef_ - [0.5, -0.3]).max() < 0.2)
    True
    """

    _of_numbers: ClassVar[NumericLoss] = Gamma()
    _kind: ClassVar[str] = "gamma"
    _power: ClassVar[int] = 2
    _target_limits: ClassVar[dict[str, float]] = {"above": 0}
