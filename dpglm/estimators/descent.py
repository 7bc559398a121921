"""Noisy gradient descent as estimators: logistic regression and the linear SVM."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from dpglm.checks import check_number, is_number
from dpglm.estimators.classification import WeightedClassifier
from dpglm.estimators.debiasing import debias, debias_numbers, debiasing_of, expected_columns
from dpglm.estimators.inference import InferenceResults, inference_of
from dpglm.estimators.plan import (
    PlannedRelease,
    PrivacyPlan,
    label_counts_of,
    make_plan,
    total_fraction,
)
from dpglm.estimators.solvers import FitTrace, OnStep, noisy_gradient_descent
from dpglm.estimators.target import settle_intercept
from dpglm.estimators.whitening import Preconditioner, automatic_configuration, whiten
from dpglm.exceptions import advising
from dpglm.losses import NamedLossMixin
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget
from dpglm.privacy.vault import Vault
from dpglm.schedules import Momentum, NamedSchedules, PublicMetadata, Schedule, check_schedules
from dpglm.schema import Schema

# Parameters of a run, in the order in which a plan needs them.
_RUN = (
    "noise_schedule", "clip_schedule", "step_schedule", "momentum", "averaging", "max_iter",
    "preconditioner", "sampling_rate",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class NoisyDescentMixin(NamedLossMixin, NamedSchedules):
    """Plan and training by noisy gradient descent, for estimators with these parameters."""

    alpha: float = 0.0
    fit_intercept: bool = True
    max_weight: float = 10.0
    noise_schedule: float | str | Schedule = "auto"
    clip_schedule: float | str | Schedule = "auto"
    step_schedule: float | str | Schedule = "auto"
    momentum: float | str | Momentum | None = "auto"
    averaging: float | str | None = "auto"
    preconditioner: str | Preconditioner | None = "auto"
    noise_multiplier: float | None = None
    max_iter: int | str = "auto"
    sampling_rate: float = 1.0
    batches: str = "poisson"
    max_row_norm: float | None = None

    _counts_weights: ClassVar[bool | None] = True
    inference_fraction: ClassVar[float] = 0.0  # of the budget, for intervals: one estimator's

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> PrivacyPlan:
        noise_multiplier = self._noise_multiplier()
        rate = check_number("sampling_rate", self.sampling_rate, above=0, at_most=1)
        without = is_number(self.inference_fraction) and self.inference_fraction == 0
        last = () if without else debiasing_of(self, budget, metadata)
        expected = expected_columns(last, budget, metadata) if last else None
        counts, intercept = self._target_releases(budget, metadata)
        left = 1 - total_fraction((*counts, *intercept, *last))
        n_mu = budget.n_mu(metadata.n_samples, left)
        given = {name: getattr(self, name) for name in _RUN} | {"sampling_rate": rate}
        chosen = automatic_configuration(n_mu, metadata.n_features, **given)
        preconditioner, first = chosen.pop("preconditioner"), ()
        metadata = replace(metadata, sampling_rate=rate)
        if preconditioner is not None:
            size = metadata.n_features, metadata.max_row_norm
            preconditioner, first = preconditioner.planned(budget.mu, left, n_mu, *size)
            metadata = replace(metadata, whitened=True, max_row_norm=None)
        averaging, n_iter = chosen.pop("averaging"), chosen.pop("max_iter")
        plan = make_plan(
            budget,
            metadata,
            n_iter=n_iter,
            averaging=averaging,
            **check_schedules(chosen),
            preconditioner=preconditioner,
            counts=counts,
            first=first,
            intercept=intercept,
            last=last,
            noise_multiplier=noise_multiplier,
            batches=self.batches,
        )
        return replace(plan, expected_columns=expected)

    def _target_releases(
        self, budget: PrivacyBudget, metadata: PublicMetadata
    ) -> tuple[tuple[PlannedRelease, ...], tuple[PlannedRelease, ...]]:
        """Return the releases of the target before the rows', and those for the intercept."""
        return (label_counts_of(budget.mu, metadata) if metadata.count_fraction else ()), ()

    def _noise_multiplier(self) -> float | None:
        """Return the checked noise multiplier if it determines the number of iterations."""
        longest = isinstance(self.max_iter, str) and self.max_iter == "budget"
        if longest != (self.noise_multiplier is not None):
            raise ValueError(
                f"max_iter={self.max_iter!r} with noise_multiplier={self.noise_multiplier!r}: give "
                "max_iter='budget' and a noise_multiplier, or neither. The budget determines "
                "either the number of iterations or their noise."
            )
        if not longest:
            return None
        if self.epsilon == math.inf:
            raise ValueError("max_iter='budget' needs a finite epsilon, which iterations use up.")
        limits = {"above": 0, "at_most": LARGEST_NOISE_MULTIPLIER}
        return check_number("noise_multiplier", self.noise_multiplier, **limits)

    def _train(self, vault: Vault, plan: PrivacyPlan, on_step: OnStep) -> FitTrace:
        space = self._space(plan)
        columns = "clip", "noise_std", "step", "gradient_norm"
        trace = FitTrace(*columns)
        if plan.first:
            plan, space, trace.whitening = whiten(vault, plan, space)
        trace.coef = noisy_gradient_descent(vault, plan, space, trace, on_step)
        if plan.intercept:
            trace.coef = settle_intercept(vault, plan, space, trace.coef)
        if plan.last:
            of_numbers = plan.metadata.residual is not None
            trace.debiased = (debias_numbers if of_numbers else debias)(vault, plan, space, trace)
        return trace


@dataclass(kw_only=True, eq=False, repr=False)
class _DescentClassifier(NoisyDescentMixin, WeightedClassifier):
    """The parameters that both classifiers have."""

    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    max_contributions: int | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogisticRegression(_DescentClassifier):
    """Differentially private logistic regression.

    Noisy gradient descent, on all records or on random batches, on the mean logistic loss (softmax
    for more than two classes). The noise of the whole run is calibrated to (epsilon, delta) before
    the data are read.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` runs the same code without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Data sets are neighbours if one record is replaced by a null record that contributes
        nothing, replaced by any other record, or added or removed. The number of records is public
        under the first two.
    n_samples_estimate : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in clipping.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers the set from y, and assumes that it is public.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class, public or, if ``"balanced"``, inverse to a noisy count of labels.
        Losses are divided by the largest weight, and the penalty with them, before gradients are
        clipped. A fit with weights spends 2 percent of the budget mu^2 on the count.
    max_weight : float, default=10.0
        Public bound on ``sample_weight``, at most 1e6, by which these weights are divided. Larger
        ones are clipped to it. Set it to the largest of yours: a bound 10 times as large has the
        noise of a tenth of the records.
    max_contributions : int, default=None
        Public number of rows that count for each privacy unit, such as a person. ``fit`` then
        needs ``groups``, a record is all rows of a unit, and ``n_samples_estimate`` is a number of
        units. ``None``: each row is a record.
    noise_schedule : float, str or Schedule, default="auto"
        Shape of the noise's standard deviation over the iterations, calibrated to the budget:
        ``"constant"``, ``"exponential"``, ``"polynomial"``, ``"piecewise_constant"``,
        ``"decaying"``, ``"inverse_time"`` or ``"dynamic"``. ``"auto"`` is constant.
    clip_schedule : float, str or Schedule, default="auto"
        Bound on the L2 norm of each record's gradient, intercept included, jointly over the
        classes. After a preconditioner its unit is the typical norm of a row. ``inf`` is allowed
        with ``epsilon=inf`` only. ``"auto"`` grows with the records and the budget, and falls with
        the released dimension (docs/defaults.md). The names are the first five of noise.
    step_schedule : float, str or Schedule, default="auto"
        Step sizes on the mean gradient. ``"auto"`` has equal steps, whose total grows with the
        same numbers as the clipping norm. The names are the first six of noise, ``"convex"`` and
        ``"smooth"``.
    momentum : str, float, momentum object or None, default="auto"
        ``"nesterov"``, ``"bias_corrected"`` or ``"heavy_ball"``, whose coefficient is 0.6; a number
        is the coefficient of a heavy ball. ``"auto"`` is `NesterovMomentum` on all records in a
        space that a `FullPreconditioner` whitens, and none otherwise. With a custom
        ``step_schedule`` it is ``BiasCorrectedMomentum(0.5)``.
    averaging : {"auto", "uniform", "tail", "t_weighted"}, float or None, default="auto"
        Average of the iterates that is returned. A number is the last part of the run, ``"tail"``
        and ``"auto"`` the last half, and ``None`` the last iterate. Costs no privacy.
    preconditioner : {"auto", "diagonal", "full"}, Preconditioner or None, default="auto"
        A `DiagonalPreconditioner` or `FullPreconditioner` spends a fraction of the budget on the
        second moment of the features. The descent is in a whitened space, where the unit of the
        clipping norm is the typical norm of a row. The penalty ``alpha`` is still on the original
        coefficients. ``"auto"`` is ``"full"`` for up to 512 columns and ``"diagonal"`` beyond.
        Without a ``max_row_norm``, columns of a size far from 1 are rescaled, and centered.
    noise_multiplier : float, default=None
        With ``max_iter="budget"``: the standard deviation of the noise over the sensitivity, in the
        first iteration. ``noise_schedule`` sets the others: iterations cost less as the clipping
        norm falls.
    max_iter : int, "auto" or "budget", default="auto"
        Number of iterations, each one release. ``"auto"`` is 24 of all records in a space that a
        `FullPreconditioner` whitens, and 87 otherwise. ``"budget"`` makes as many iterations as the
        budget allows at ``noise_multiplier``, counted before the data are read.
    sampling_rate : float, default=1.0
        Chance of each record to be in the batch of an iteration, independently of the others; 1
        uses all records every time. Below 1 the accounting needs dp-accounting (``pip install
        "dpglm[accounting]"``).
    batches : {"poisson", "without_replacement"}, default="poisson"
        ``"poisson"`` draws batches as above, with a private size. ``"without_replacement"``, under
        ``"replace_one"`` only, draws ``sampling_rate * n_samples`` records (rounded), every set
        with the same chance, and takes twice the noise.
    max_row_norm : float, default=None
        Largest L2 norm that a row can have, intercept included, a public fact
        (`Schema.max_row_norm`). ``None`` takes the bound of rows from ``schema.transformer()``, if
        they have one. It sets the clipping norm of a preconditioner; without one, ``"dynamic"``
        noise and ``"inverse_time"``, ``"convex"`` and ``"smooth"`` steps follow from it.
    inference_fraction : float, default=0.0
        Fraction of the budget mu^2 for `inference`, taken from that of predictions: 0.5 suits most
        uses. A few gradients and a curvature are released after the descent, for two classes and up
        to 512 columns.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted, and of the type of y, which is public, if this type holds all ``classes`` and is not
        float. Labels become floats if they may be missing.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        ``trace_.coef`` without the intercept, rounded to float32 if X is a float32 array.
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Always ``max_iter``: the end of the fit never depends on the data.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        The releases of the fit and their cost, with all assumptions. If public facts decide which
        records each fit uses, several fits cost ``first.privacy_ + second.privacy_``. A grid search
        that chooses by scores on private records is not covered: these scores have no noise.
    trace_ : FitTrace
        Released values of every iteration.

    Notes
    -----
    Everything that ``fit`` stores is (epsilon, delta)-differentially private under
    ``neighboring_relation``. A fit makes these releases, in this order, with Gaussian noise. With
    weights of classes or rows, a count of labels comes before them.

    1. with a preconditioner, but no ``max_row_norm``, a histogram: of the magnitudes of each column
       or, if the budget is too small, of row norms;
    2. with a preconditioner, one second moment of clipped rows;
    3. in each iteration, one sum of clipped gradients, of L2 sensitivity ``clip`` (``2 clip`` under
       ``"replace_one"``);
    4. with an ``inference_fraction``, eleven sums of gradients and one curvature of weighted rows.

    Composition is exact (Dong, Roth & Su 2022); with mini-batches it is an upper bound, tight to
    about 1e-4. Parameters, the number of features and the label set are assumed public, and so is
    the number of records except under ``"add_or_remove_one"``. If a fit fails after noise was
    drawn, the estimator stays unfitted. The exception has ``privacy_ledger``, the cost of the full
    plan.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7  # exact: a PrivacyWarning says so
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    inference_fraction: float = 0.0

    @advising
    def inference(
        self,
        level: float = 0.95,
        schema: Schema | None = None,
        references: Mapping[str, Any] | None = None,
        pos_label: Any = None,
    ) -> InferenceResults:
        """Return standard errors, intervals and tests of a fit with an ``inference_fraction``.

        It costs no more privacy, and may be repeated.

        Parameters
        ----------
        level : float, default=0.95
            Level of the intervals, above 0 and below 1.
        schema : Schema, optional
            The schema that encoded the rows. Parameters are then those of the table, in its units;
            without a schema, those of the columns of X. The schema must have the names of these
            columns, or as many columns if rows had no names.
        references : dict of str to category, optional
            Categorical columns of the schema, and the category that the others are compared with.
            By default the first one of the schema that is at least half as frequent as the most
            frequent one, by the released second moment.
        pos_label : label, optional
            Class whose log-odds the coefficients are of. By default the last label of the schema,
            or ``classes_[1]`` if there is none with these labels.

        Returns
        -------
        InferenceResults

        Raises
        ------
        ValueError
            If the fit had no ``inference_fraction``, if the schema has other columns than the
            model, or if `references` are not in the schema.

        Examples
        --------
        >>> import numpy as np
        >>> from dpglm import DPLogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.random((20_000, 2))
        >>> y = rng.random(20_000) < 1 / (1 + np.exp(1 - 2 * X[:, 0]))
        >>> model = DPLogisticRegression(epsilon=4.0, inference_fraction=0.5, classes=[False, True])
        >>> found = model.fit(X, y).inference()
        >>> low, high = found.conf_int()[1]
        >>> found.names, bool(1.5 < low < high < 2.5)
        (['const', 'x1', 'x2'], True)
        """
        return inference_of(self, level, schema, references, pos_label)


@dataclass(kw_only=True, eq=False, repr=False)
class DPLinearSVM(_DescentClassifier):
    """Differentially private linear support vector machine.

    Noisy gradient descent, on all records or on random batches, on the mean (smoothed) hinge loss.
    More than two classes are one-vs-rest, with joint clipping. The noise of the whole run is
    calibrated to (epsilon, delta) before the data are read.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, classes
        As in `DPLogisticRegression`.
    class_weight, max_weight, max_contributions, noise_schedule, clip_schedule, step_schedule
        As in `DPLogisticRegression`.
    momentum, averaging, preconditioner, noise_multiplier, max_iter, sampling_rate, batches
        As in `DPLogisticRegression`.
    max_row_norm
        As in `DPLogisticRegression`.
    loss : {"smoothed_hinge", "hinge"}, default="smoothed_hinge"
        The smoothed hinge replaces the corner by a parabola, which gradient descent prefers.
    half_width : float, default=0.1
        Half the width of the parabola, in units of the margin; used by ``"smoothed_hinge"`` only.
        Wider ones usually have more accuracy and AUC, and a higher hinge loss (see
        benchmarks/trials.md).

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    The guarantee is that of `DPLogisticRegression`.

    Examples
    --------
    >>> from dpglm import DPLinearSVM
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPLinearSVM(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7  # exact: a PrivacyWarning says so
    True
    """

    loss: str = "smoothed_hinge"
    half_width: float = 0.1

    _losses: ClassVar[tuple[str, ...]] = ("smoothed_hinge", "hinge")
