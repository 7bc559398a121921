"""The base of all estimators: validation, the shell of a fit, prediction."""

import math
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from dpglm.checks import check_number, check_whole
from dpglm.estimators.callbacks import Callbacks, with_callbacks
from dpglm.estimators.inputs import Table, training_data
from dpglm.estimators.plan import Plan, plan_with_weights, weigh
from dpglm.estimators.prediction import LinearPredictions
from dpglm.estimators.solvers import Coordinates
from dpglm.exceptions import KnownParameters
from dpglm.losses import Loss
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.noise import entropy_source, noise_seed
from dpglm.privacy.odometer import charge_odometers, state_cost
from dpglm.privacy.vault import Vault, gradient_sums
from dpglm.schedules import PublicMetadata

# Scores of larger coefficients are meaningless; float32 holds up to 3e38.
_DIVERGED = 1e30
# Next to a larger penalty, a double loses the curvature of the intercept, which has no penalty.
LARGEST_PENALTY = 1e12


class Budgeted(KnownParameters):
    """An object that spends a budget: epsilon, delta, a neighbouring relation, an estimate of n."""

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


class PrivateLinearClassifier(Budgeted, LinearPredictions, Callbacks, BaseEstimator):
    """Base of the linear classifiers: everything but the loss, the plan and the training.

    Subclasses have the parameters of a budget, ``alpha``, ``fit_intercept``, ``classes`` and
    ``class_weight``. They define three methods. `_loss` returns the loss for a number of classes.
    `_plan` fixes the run in advance, from a budget and public facts. `_train` asks the vault for
    releases and returns their trace, with the coefficients.
    """

    # Number of rows that count for a privacy unit; None if each row is a record.
    max_contributions: ClassVar[int | None] = None
    _vault_type: ClassVar[type[Vault]] = Vault
    _reads_blocks: ClassVar[bool] = True
    _learns_little: ClassVar[bool] = False
    # Whether a fit with weights counts labels; None for "balanced" only.
    _counts_weights: ClassVar[bool | None] = None

    def _penalty(self) -> float:
        return check_number("alpha", self.alpha, at_least=0, at_most=LARGEST_PENALTY)

    def plan(self, n_samples: int, n_features: int, n_classes: int = 2) -> Plan:
        """Return the releases of a fit and their cost, without any data.

        A fit takes a public bound on row norms from rows of a schema, if ``max_row_norm`` is None,
        and then releases no histogram. Give ``max_row_norm`` for the plan of such a fit. A fit with
        ``sample_weight`` counts labels first, as the plan does with a ``class_weight``.

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
        Plan

        Raises
        ------
        ValueError
            If a parameter is out of range, or the budget is too small for the schedule.
        """
        return self._planned(n_samples, n_features, n_classes)

    def _planned(self, n_samples: int, n_features: int, n_classes: int, data: Any = None) -> Plan:
        """Return the plan of a fit; its data may have weights, and a public bound on row norms."""
        n_samples = check_whole("n_samples", n_samples)
        n_features = check_whole("n_features", n_features)
        n_classes = check_whole("n_classes", n_classes, at_least=2)
        if not isinstance(self.fit_intercept, (bool, np.bool_)):
            raise ValueError(f"fit_intercept={self.fit_intercept!r} must be True or False.")
        alpha, max_row_norm = self._penalty(), getattr(self, "max_row_norm", None)
        if max_row_norm is not None:
            max_row_norm = check_number("max_row_norm", max_row_norm, above=0, at_most=1e50)
        elif data is not None and data.max_row_norm is not None:
            max_row_norm = math.hypot(data.max_row_norm, bool(self.fit_intercept))
        budget, assumptions = self._budget(), self._assumptions()
        metadata = PublicMetadata(
            n_samples=budget.public_n_samples(n_samples),
            n_features=n_features + bool(self.fit_intercept),
            n_outputs=1 if n_classes == 2 else n_classes,
            alpha=alpha,
            curvature=self._loss(n_classes).curvature,
            max_row_norm=max_row_norm,
        )
        if self.class_weight is None and (data is None or "row_weights" not in data.options):
            plan = self._plan(budget, metadata)
        else:
            plan = plan_with_weights(self, budget, metadata, data)
        relation, seeded = plan.ledger.neighboring_relation, noise_seed.get() is not None
        if plan.budget != budget or relation != budget.neighboring_relation:
            raise RuntimeError(f"{plan!r} is not a plan for {budget}; nothing was released.")
        unit = "row" if self.max_contributions is None else "group"
        stated = replace(plan.ledger, assumptions=assumptions, seeded=seeded, privacy_unit=unit)
        return replace(plan, ledger=stated)

    def _assumptions(self) -> tuple[str, ...]:
        """Return what the guarantee assumes, in words."""
        rows_of_a_record = "each row of X is one record"
        if self.max_contributions is not None:
            k = check_whole("max_contributions", self.max_contributions)
            rows_of_a_record = f"the rows of one group are one record, of which the first {k} count"
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
        return assumptions

    @with_callbacks
    def fit(self, X: Table, y: ArrayLike | None = None) -> Self:
        """Fit with the guarantee that ``privacy_`` states.

        Input, errors and warnings are those of `DPLogisticRegression.fit`.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
        y : array-like of shape (n_samples,), default=None

        Returns
        -------
        self
        """
        return self._fit(X, y)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Validate, plan, hand the rows to a vault, charge, train, and set attributes."""
        self._forget()
        training = False
        try:
            # Warnings of numpy would depend on the data. Steps that are too large overflow.
            with ExitStack() as files, np.errstate(all="ignore"):
                # 1) Validate the input, and infer what is assumed public.
                data = training_data(self, X, y, sample_weight, groups)
                self.classes_ = data.classes
                # 2) Plan all releases. A norm is public, as a parameter is: rows are clipped to it.
                intercept = bool(self.fit_intercept)
                plan = self._planned(*data.shape, len(data.classes), data)
                # 3) Give the rows to a vault; nobody else keeps their sums.
                sums = data.sums(self, files)
                if plan.metadata.sampling_rate < 1 and data.source is not None:
                    sums.check()  # random batches do not reach all blocks
                events, entropy = plan.ledger.events, entropy_source()
                vault = self._vault_type(sums, events, plan.budget, entropy)
                del sums, entropy
                # 4) Charge odometers before the first release.
                plan.warn(stacklevel=6)
                charge_odometers(plan.ledger, self)
                # 5) Train on releases alone.
                attributes = partial(_fitted_attributes, fit_intercept=intercept, dtype=data.dtype)
                on_step = finish = None
                if getattr(self, "_skl_callbacks", []):
                    told = plan.n_iter, self._space(plan.metadata).shape, data.copies, attributes
                    on_step, finish = self._reports(*told)
                training = True
                if self.class_weight is not None or plan.counts:
                    plan = weigh(vault, plan, self.class_weight, data)
                trace = self._train(vault, plan, on_step)
                vault.check_unbroken()
                # 6) Set what follows from the releases.
                released = {"n_iter_": trace.n_iter, "trace_": trace, "privacy_": plan.ledger}
                vars(self).update(attributes(trace.coef), **released)
                if not (np.abs(trace.coef) < _DIVERGED).all():
                    text = "The coefficients diverged: lower step_schedule."
                    warnings.warn(text, ConvergenceWarning, stacklevel=5)
                if finish is not None:
                    finish()
        except BaseException as error:
            # Also an interrupt after the end. An error may have the ledger of another fit.
            self._forget()
            if training:
                state_cost(error, plan.ledger, vault.has_drawn or not plan.ledger.protects)
            raise
        return self

    def _holder(self, X: Any, target: np.ndarray, loss: Loss, **options: Any) -> Any:
        """Return the holder of rows, or of a block of them, for the vault only."""
        return gradient_sums(X, target, loss, **options)

    def _space(self, metadata: PublicMetadata) -> Coordinates:
        loss = self._loss(max(2, metadata.n_outputs))
        return Coordinates(loss, metadata.n_features, metadata.n_outputs, bool(self.fit_intercept))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.poor_score = self._learns_little
        tags.non_deterministic = noise_seed.get() is None
        return tags


class WeightedClassifier(PrivateLinearClassifier):
    """A classifier that is fitted with weights of rows, or with groups of rows.

    It has the parameters ``max_weight`` and ``max_contributions``.
    """

    @with_callbacks
    def fit(
        self,
        X: Table,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
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
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, 0 or above, each made from its own record and public facts. They are divided by
            ``max_weight``, and by their noisy mean. Gradients and rows of the second moment are
            weighted and then clipped, so weights do not change the sensitivity. Not for blocks of
            rows.
        groups : array-like of shape (n_samples,), default=None
            The person of each row. The first ``max_contributions`` rows of a group count, and are
            clipped together. Not for blocks of rows.

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
            any. With an intercept, if the release shows large numbers that differ by little. The
            warning depends on the release alone. Before, of 65,536 coefficients or more.

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
        return self._fit(X, y, sample_weight, groups)


def _fitted_attributes(coef: np.ndarray, fit_intercept: bool, dtype: Any) -> dict[str, np.ndarray]:
    """Return scikit-learn's ``coef_`` and ``intercept_`` of the solver's array, intercept last."""
    with np.errstate(over="ignore"):  # float32 of what was released as float64
        rows = coef.reshape(len(coef), -1).T.astype(dtype)
    if fit_intercept:
        return {"coef_": rows[:, :-1].copy(), "intercept_": rows[:, -1].copy()}
    return {"coef_": rows, "intercept_": np.zeros(len(rows), dtype)}
