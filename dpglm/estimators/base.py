"""The base of all estimators: validation, the shell of a fit, prediction."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from dpglm.checks import check_number, check_whole
from dpglm.estimators.callbacks import Callbacks, with_callbacks
from dpglm.estimators.docs import extended
from dpglm.estimators.inputs import Arrays, SourceData, Table, table_of
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.prediction import LinearPredictions
from dpglm.estimators.solvers import Coordinates
from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Loss
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.noise import entropy_source, noise_seed
from dpglm.privacy.odometer import charge_odometers
from dpglm.privacy.vault import Vault, gradient_sums
from dpglm.schedules import PublicMetadata

# Scores of larger coefficients are meaningless; float32 holds up to 3e38.
_DIVERGED = 1e30
# Next to a larger penalty, a double loses the curvature of the intercept, which has no penalty.
LARGEST_PENALTY = 1e12


@dataclass(kw_only=True, eq=False, repr=False)
class Budgeted:
    """The budget of `fit`, and the data sets that it makes indistinguishable.

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
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    neighboring_relation: str = "zero_out"
    n_samples_estimate: int | None = None

    def _budget(self) -> PrivacyBudget:
        n = self.n_samples_estimate
        return PrivacyBudget(self.epsilon, self.delta, self.neighboring_relation, n)

    def _forget(self) -> None:
        # All at once: an interrupt in between would leave a part of a fit.
        self.__dict__ = {
            name: value
            for name, value in vars(self).items()
            if name[0] == "_" or not name.endswith("_")
        }


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearClassifier(Budgeted, LinearPredictions, Callbacks, BaseEstimator):
    """Base of the linear classifiers: everything but the loss, the plan and the training.

    Parameters
    ----------
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in clipping.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers the set from y, and assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped.

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
        records each fit uses, several fits on the same records cost
        ``first.privacy_ + second.privacy_``. A grid search that chooses by scores on private
        records is not covered: these scores have no noise.
    trace_ : FitTrace
        Released values of every iteration.
    """

    alpha: float | str = 0.0
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None

    # Number of rows of one person that count; None if each row is a record.
    max_contributions: ClassVar[int | None] = None
    _vault_type: ClassVar[type[Vault]] = Vault
    _reads_blocks: ClassVar[bool] = True
    _learns_little: ClassVar[bool] = False

    # Subclasses define three methods. `_loss` returns the loss for a number of classes. `_plan`
    # fixes the run in advance, from a budget and public facts. `_train` asks the vault for releases
    # and returns their trace, with the coefficients.

    def _penalty(self) -> float:
        return check_number("alpha", self.alpha, at_least=0, at_most=LARGEST_PENALTY)

    def plan(self, n_samples: int, n_features: int, n_classes: int = 2) -> PrivacyPlan:
        """Return the releases of a fit and their cost, without any data.

        Parameters
        ----------
        n_samples : int
            Number of records, of groups if ``max_contributions`` is given. Under
            ``"add_or_remove_one"`` it is ignored for ``n_samples_estimate``.
        n_features : int
            Number of columns of X.
        n_classes : int, default=2

        Returns
        -------
        PrivacyPlan

        Raises
        ------
        ValueError
            If a parameter is out of range, or the budget is too small for the schedule.
        """
        return self._planned(n_samples, n_features, n_classes)

    def _planned(
        self, n_samples: int, n_features: int, n_classes: int, max_row_norm: float | None = None
    ) -> PrivacyPlan:
        """Return the plan of a fit, whose rows may have a bound on their norms."""
        check_whole("n_samples", n_samples)
        check_whole("n_features", n_features)
        check_whole("n_classes", n_classes, at_least=2)
        if not isinstance(self.fit_intercept, (bool, np.bool_)):
            raise ValueError(f"fit_intercept={self.fit_intercept!r} must be True or False.")
        alpha, given = self._penalty(), getattr(self, "max_row_norm", None)
        if given is not None:
            check_number("max_row_norm", given, above=0, at_most=1e50)
        rows_of_a_record = "each row of X is one record"
        if self.max_contributions is not None:
            k = check_whole("max_contributions", self.max_contributions)
            rows_of_a_record = f"the rows of one group are one record, of which the first {k} count"
        budget = self._budget()
        metadata = PublicMetadata(
            n_samples=budget.public_n_samples(n_samples),
            n_features=n_features + bool(self.fit_intercept),
            n_outputs=1 if n_classes == 2 else n_classes,
            alpha=alpha,
            curvature=self._loss(n_classes).curvature,
            max_row_norm=max_row_norm if given is None else given,
        )
        assumptions = (
            f"{rows_of_a_record}, made from that record and public facts alone",
            "which rows the fit saw follows from public facts and each row's own identifier",
            "the parameters of the estimator were chosen without looking at the data",
            "the label set is public"
            if self.classes is not None
            else "the label set, inferred from the data, is public",
        )
        if self.n_samples_estimate is not None:
            assumptions += ("the number of records is at most 16 n_samples_estimate",)
        if getattr(self, "_skl_callbacks", []):
            assumptions += ("what callbacks saw and recorded is not released",)
        plan = self._plan(budget, metadata)
        relation, seeded = plan.ledger.neighboring_relation, noise_seed.get() is not None
        if plan.budget != budget or relation != budget.neighboring_relation:
            raise RuntimeError(f"{plan!r} is not a plan for {budget}; nothing was released.")
        unit = "row" if self.max_contributions is None else "group"
        stated = replace(plan.ledger, assumptions=assumptions, seeded=seeded, privacy_unit=unit)
        return replace(plan, ledger=stated)

    @with_callbacks
    def fit(self, X: Table, y: ArrayLike | None = None) -> Self:
        """Fit with the guarantee that ``privacy_`` states.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
            Blocks are read again in every pass over the data, and their rows are never all in
            memory. Blocks are a Zarr array, HDF5 dataset, `numpy.memmap` of more than 1 GiB, dask
            array or data frame, any re-iterable of ``(X, y)``, or a `Source`.
        y : array-like of shape (n_samples,), default=None
            Class labels: an array, or with dask a dask array or series. ``None`` if X is a
            `Source` or yields ``(X, y)`` blocks.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For bad parameters or data, before any noise is drawn; for blocks that change between
            two passes, when they do. If a fit fails after its first draw of noise, the estimator
            stays unfitted. The exception then has ``privacy_ledger``, the cost of the full plan.
        OSError
            If a block cannot be read; nothing is released from a part of the blocks.

        Warns
        -----
        PrivacyWarning
            If `seeded_noise` makes the noise reproducible, or ``delta`` exceeds one over the
            number of records.
        UtilityWarning
            If the budget is too small for the columns and a preconditioner's release shows hardly
            any; with an intercept, if it shows only one. The warning depends on the release alone.
        """
        return self._fit_table(X, y)

    def _fit_table(self, X: Any, y: Any, **of_rows: Any) -> Self:
        self._forget()
        try:
            with table_of(self, X, y, **of_rows) as data:
                return self._fit(data)
        except BaseException as error:
            # An interrupt may come after the fit has ended or failed. An error may have the ledger
            # of another fit, which a callback or the data made.
            if "privacy_" in vars(self):
                error.privacy_ledger = self.privacy_  # type: ignore[attr-defined]
            self._forget()
            raise

    def _fit(self, data: Arrays | SourceData) -> Self:
        self.classes_ = data.classes(self.classes)
        # The bound is public, as a parameter is. No guarantee depends on it: rows are clipped.
        bound = data.max_row_norm and math.hypot(data.max_row_norm, bool(self.fit_intercept))
        plan = self._planned(*data.shape, len(self.classes_), bound)
        with np.errstate(all="ignore"):
            sums = data.sums(self, self.classes_)
            if plan.metadata.sampling_rate < 1 and isinstance(data, SourceData):
                sums.check()  # random batches do not reach all blocks
        entropy = entropy_source()
        vault = self._vault_type(sums, plan.ledger.events, plan.budget, entropy)
        del sums, entropy  # nobody but the vault keeps them
        warn_of_seed(plan.ledger.seeded, stacklevel=6)
        warn_of_delta(plan.budget, plan.metadata.n_samples, stacklevel=6)
        charge_odometers(plan.ledger, self, data.given)
        finish_step = finish_fit = None
        if getattr(self, "_skl_callbacks", []):
            shape, intercept = self._space(plan.metadata).shape, bool(self.fit_intercept)
            attributes = partial(_fitted_attributes, fit_intercept=intercept, dtype=data.dtype)
            finish_step, finish_fit = self._reports(plan.n_iter, shape, data.copies, attributes)
        try:
            # Warnings of numpy would depend on the data. Steps that are too large overflow, and
            # _set_coefficients warns once.
            with np.errstate(all="ignore"):
                trace = self._train(vault, plan, finish_step)
            vault.check_unbroken()
            self._set_coefficients(trace.coef, data.dtype)
            self.n_iter_, self.trace_ = trace.n_iter, trace
            self.privacy_ = plan.ledger
            if finish_fit is not None:
                finish_fit()
        except BaseException:
            if vault.has_drawn or not plan.ledger.protects:
                self.privacy_ = plan.ledger  # for the error that will leave the fit
            raise
        return self

    def _make_holder(
        self,
        X: Any,
        target: np.ndarray,
        n_classes: int,
        class_weight: np.ndarray | None,
        **options: Any,
    ) -> Any:
        """Return the holder of the private data, for the vault only."""
        return self._holder(
            X,
            target,
            self._loss(n_classes),
            n_outputs=1 if n_classes == 2 else n_classes,
            fit_intercept=bool(self.fit_intercept),
            class_weight=class_weight,
            **options,
        )

    def _holder(self, X: Any, target: np.ndarray, loss: Loss, **options: Any) -> Any:
        """Return the object that gives this estimator's vault sums over the rows."""
        return gradient_sums(X, target, loss, **options)

    def _space(self, metadata: PublicMetadata) -> Coordinates:
        loss = self._loss(max(2, metadata.n_outputs))
        return Coordinates(loss, metadata.n_features, metadata.n_outputs, bool(self.fit_intercept))

    def _set_coefficients(self, coef: np.ndarray, dtype: Any) -> None:
        vars(self).update(_fitted_attributes(coef, bool(self.fit_intercept), dtype))
        if not (np.abs(coef) < _DIVERGED).all():
            warnings.warn(
                "The coefficients diverged: lower step_schedule.", ConvergenceWarning, stacklevel=5
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.poor_score = self._learns_little
        tags.non_deterministic = noise_seed.get() is None
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PersonsMixin:
    """Fit with weights of rows, and with several rows of one person.

    Parameters
    ----------
    max_weight : float, default=10.0
        Public bound on ``sample_weight``, at most 1e6; larger weights are clipped to it.
    max_contributions : int, default=None
        Public number of rows of one person that count. ``fit`` then needs ``groups``, a record is
        all rows of one person, and numbers of records (``n_samples_estimate`` too) are numbers of
        persons. ``None``: each row is a record.
    """

    max_weight: float = 10.0
    max_contributions: int | None = None

    inference_fraction: ClassVar[float] = 0.0

    @extended(PrivateLinearClassifier.fit)
    @with_callbacks
    def fit(
        self,
        X: Table,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit as `PrivateLinearClassifier.fit` does, with weights or with several rows per person.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, 0 or above, each made from its own record and public facts. Best near 1: sums
            are divided by the number of records, never by the sum of weights. Gradients and rows of
            the second moment are weighted and then clipped, so weights do not change the
            sensitivity. Not for blocks of rows.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, with ``max_contributions``: the first ``max_contributions`` rows
            of each person count, and are clipped together. Not for blocks of rows.

        Examples
        --------
        >>> import numpy as np
        >>> from dpglm import DPLogisticRegression
        >>> from dpglm.datasets import make_census
        >>> X, y = make_census(4000, random_state=0)
        >>> persons = np.arange(4000) // 2
        >>> model = DPLogisticRegression(max_contributions=2, classes=[0, 1])
        >>> print(model.fit(X, y, groups=persons).privacy_.privacy_unit)
        group
        """
        if sample_weight is not None and self.inference_fraction:
            raise ValueError("sample_weight needs inference_fraction=0.")
        return self._fit_table(X, y, sample_weight=sample_weight, groups=groups)


def warn_of_seed(seeded: bool, stacklevel: int) -> None:
    """Warn if the noise of the next release follows from a seed."""
    if seeded:
        warnings.warn(
            "seeded_noise makes the noise reproducible: anyone with the seed can remove the "
            "noise. Use it for tests and public data only.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )


def warn_of_delta(budget: PrivacyBudget, n_samples: int, stacklevel: int) -> None:
    """Warn if delta would allow to release one of the records outright."""
    if budget.delta > 1 / n_samples and budget.epsilon < math.inf:
        warnings.warn(
            f"delta={budget.delta:g} exceeds 1/n = {1 / n_samples:.3g}: releasing a record "
            "outright at random would satisfy it. Lower delta.",
            PrivacyWarning,
            stacklevel=stacklevel,
        )


def _fitted_attributes(coef: np.ndarray, fit_intercept: bool, dtype: Any) -> dict[str, np.ndarray]:
    """Return scikit-learn's ``coef_`` and ``intercept_`` of the solver's array, intercept last."""
    with np.errstate(over="ignore"):  # float32 of what was released as float64
        rows = coef.reshape(len(coef), -1).T.astype(dtype)
    if fit_intercept:
        return {"coef_": rows[:, :-1].copy(), "intercept_": rows[:, -1].copy()}
    return {"coef_": rows, "intercept_": np.zeros(len(rows), dtype)}
