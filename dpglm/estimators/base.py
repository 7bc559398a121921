"""What all estimators share: validation, the shell of a fit, prediction."""

import math
import warnings
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpglm.estimators.inputs import (
    Arrays,
    SourceData,
    as_source,
    n_outputs,
    resolved_class_weight,
    resolved_classes,
)
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.trace import FitTrace
from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Hinge, Logistic, Loss, Softmax
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import EntropySource, entropy_source
from dpglm.privacy.odometer import charge_odometers
from dpglm.schedules import PublicFacts

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = ["LogisticOrHingeMixin", "PrivateLinearClassifier", "ProbabilitiesMixin"]


class PrivateLinearClassifier(CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Base of the linear classifiers: everything but the loss, the plan and the training.

    Final classes spell out their constructor, which stores at least ``epsilon``, ``delta``,
    ``neighboring_relation``, ``n_ref``, ``alpha``, ``fit_intercept``, ``classes``,
    ``class_weight`` and ``random_state``.
    """

    def _loss(self, n_classes: int) -> Loss:
        """Return the loss for that many classes."""
        raise NotImplementedError

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PrivacyPlan:
        """Fix the run in advance."""
        raise NotImplementedError

    def _train(
        self,
        objective: "Objective",
        plan: PrivacyPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[FitTrace, PrivacyLedger]:
        """Return the trace, with the coefficients, and the ledger of what was released."""
        raise NotImplementedError

    def _penalty(self) -> float:
        """Return the penalty, checked."""
        if (
            isinstance(self.alpha, bool)
            or not isinstance(self.alpha, Real)
            or not (0 <= self.alpha < math.inf)
        ):
            raise ValueError(f"alpha={self.alpha!r} must be a finite number, 0 or above.")
        return float(self.alpha)

    def plan(self, n_samples: int, n_features: int, n_classes: int = 2) -> PrivacyPlan:
        """Return what a fit would release and spend, without any data.

        Parameters
        ----------
        n_samples : int
            Number of records; ignored for ``n_ref`` under ``"add_or_remove_one"``.
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
        for name, value, least in (
            ("n_samples", n_samples, 1),
            ("n_features", n_features, 1),
            ("n_classes", n_classes, 2),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number, {least} or more.")
        alpha = self._penalty()
        budget = PrivacyBudget(self.epsilon, self.delta, self.neighboring_relation, self.n_ref)
        facts = PublicFacts(
            n_samples=budget.public_n_samples(n_samples),
            n_features=n_features + bool(self.fit_intercept),
            n_outputs=n_outputs(n_classes),
            alpha=alpha,
            curvature=self._loss(n_classes).curvature,
        )
        assumptions = (
            "each row of X is one record, made from that record and public facts alone",
            "the parameters of the estimator were chosen without looking at the data",
            "the label set is public"
            if self.classes is not None
            else "the label set, inferred from the data, is public",
        )
        if self.n_ref is not None:
            assumptions += ("the number of records is at most 16 n_ref",)
        if getattr(self, "_skl_callbacks", []):
            assumptions += ("what callbacks saw and recorded is not released",)
        return self._plan(budget, facts, assumptions)

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> "PrivateLinearClassifier":
        """Fit with the guarantee that ``privacy_`` states.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features), or blocks of rows
            Blocks are read again in every pass over the data, and their rows are never all in
            memory: a Zarr array or HDF5 dataset of that shape, a `numpy.memmap` of more than
            1 GiB, a dask array or data frame, any re-iterable of ``(X, y)`` blocks, or a `Source`.
        y : array-like of shape (n_samples,), default=None
            Class labels: an array, or a dask array or series with one of dask. ``None`` if X is a
            `Source` or yields ``(X, y)`` blocks.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For bad parameters or data, before any noise is drawn; for blocks that change between
            two passes, when they do. If a fit fails after its first draw of noise, the
            estimator is left unfitted and the exception carries ``privacy_ledger``, the cost of
            the full plan.
        OSError
            If a block cannot be read; nothing is released from a part of the blocks.

        Warns
        -----
        PrivacyWarning
            If ``random_state`` is set, or ``delta`` exceeds one over the number of records.
        """
        self._forget()
        try:
            return self._fit(self._checked(X, y))
        except BaseException as error:
            # An interrupt may come once the fit is over.
            if "privacy_" in vars(self):
                vars(error).setdefault("privacy_ledger", self.privacy_)
            self._forget()
            raise

    def _checked(self, X: Any, y: Any) -> Arrays | SourceData:
        source = as_source(X, y)
        if source is None:
            # scikit-learn looks for NaN by a sum, whose overflow would warn for some data only.
            with np.errstate(all="ignore"):
                X, y = validate_data(
                    self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order=None
                )
            return Arrays(X, y)
        if type(self)._objective is not PrivateLinearClassifier._objective:
            raise TypeError(
                f"{type(self).__name__} needs all rows at once: give it arrays or a CSR matrix in "
                "memory, not blocks of rows."
            )
        validate_data(self, source.template, skip_check_array=True)
        return SourceData(source)

    def _fit(self, data: Arrays | SourceData) -> "PrivateLinearClassifier":
        labels = data.labels(self.classes)
        if self.classes is None:
            check_classification_targets(labels)
        self.classes_ = resolved_classes(self.classes, labels)
        n_classes = len(self.classes_)
        plan = self.plan(*data.shape, n_classes=n_classes)
        class_weight = resolved_class_weight(self.class_weight, self.classes_)
        with np.errstate(all="ignore"):
            objective = data.objective(self, self.classes_, class_weight)
            if getattr(plan, "sampling_rate", 1.0) < 1:
                data.check(objective)
        self._warn_of_weak_settings(plan)
        charge_odometers(plan.ledger)
        rng = entropy_source(self.random_state)
        finish_step, finish_fit = self._callback_hooks(data.copies, plan.n_iter)
        try:
            # Whether numpy complains would depend on the data. Steps that are too long overflow,
            # of which _set_coefficients warns once, in words.
            with np.errstate(all="ignore"):
                trace, ledger = self._train(objective, plan, rng, finish_step)
            self._set_coefficients(trace.coef)
            self.n_iter_, self.trace_, self.privacy_ = trace.n_iter, trace, ledger
            finish_fit()
        except BaseException as error:
            if rng.words_drawn or not plan.ledger.protects:
                error.privacy_ledger = plan.ledger  # type: ignore[attr-defined]
            raise
        return self

    def _objective(
        self,
        X: Any,
        target: np.ndarray,
        n_classes: int,
        class_weight: np.ndarray | None,
        n_threads: int | None = None,
    ) -> "Objective":
        """Return the holder of the private data, which answers with sums over rows only."""
        # numba is imported with the kernels, and takes a third of a second: only for a fit.
        from dpglm.sums.objective import Objective

        return Objective(
            X,
            target,
            self._loss(n_classes),
            n_outputs=n_outputs(n_classes),
            fit_intercept=bool(self.fit_intercept),
            class_weight=class_weight,
            n_threads=n_threads,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the callbacks behind once fitted: they may hold scores without noise."""
        state = super().__getstate__()
        if "coef_" in state:
            state = {name: value for name, value in state.items() if name != "_skl_callbacks"}
        return state

    def _set_coefficients(self, coef: np.ndarray) -> None:
        if not np.isfinite(coef).all():
            warnings.warn(
                "The coefficients diverged: lower step_schedule.", ConvergenceWarning, stacklevel=4
            )
        self.coef_, self.intercept_ = _split_intercept(coef, bool(self.fit_intercept))

    def _forget(self) -> None:
        # All at once: an interrupt in between would leave a part of a fit.
        self.__dict__ = {
            name: value
            for name, value in vars(self).items()
            if name[0] == "_" or not name.endswith("_")
        }

    def _warn_of_weak_settings(self, plan: PrivacyPlan) -> None:
        if self.random_state is not None:
            warnings.warn(
                "random_state makes the noise reproducible: whoever learns it can remove the "
                "noise. Use it for tests and public data, and leave random_state=None otherwise.",
                PrivacyWarning,
                stacklevel=5,
            )
        if self.delta > 1 / plan.facts.n_samples and self.epsilon < math.inf:
            warnings.warn(
                f"delta={self.delta:g} exceeds 1/n = {1 / plan.facts.n_samples:.3g}: releasing a "
                "record outright at random would satisfy it. Lower delta.",
                PrivacyWarning,
                stacklevel=5,
            )

    def _callback_hooks(
        self, copies: dict[str, Any], n_iter: int
    ) -> tuple[Callable[[int, np.ndarray], None], Callable[[], None]]:
        """Return what to call after each iteration and after the last: all use of callbacks.

        scikit-learn hands callbacks the raw data: they are trusted code. They get copies (made
        only for callbacks that ask), or None where the data are read in blocks. A request to stop
        is refused, because it may rest on scores without noise.
        """
        context = self._init_callback_context(max_subtasks=n_iter)
        context.call_on_fit_task_begin(estimator=self, **copies)
        refused = False

        def finish_step(t: int, coef: np.ndarray) -> None:
            nonlocal refused
            coef, intercept = _split_intercept(coef, bool(self.fit_intercept))
            iteration = context.subcontext(task_name="iteration")
            iteration.call_on_fit_task_begin(estimator=self, **copies)
            stop = iteration.call_on_fit_task_end(
                estimator=self,
                **copies,
                reconstruction_attributes={"coef_": coef, "intercept_": intercept},
            )
            if stop and not refused:
                refused = True
                warnings.warn(
                    "A callback asked to stop the fit; the request is ignored, because when to "
                    "stop may reveal what was computed from the data without noise.",
                    PrivacyWarning,
                    stacklevel=6,
                )

        def finish_fit() -> None:
            context.call_on_fit_task_end(
                estimator=self,
                **copies,
                reconstruction_attributes={"coef_": self.coef_, "intercept_": self.intercept_},
            )

        return finish_step, finish_fit

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores ``X @ coef_.T + intercept_``, of rows as they were fitted.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) for two classes (positive: ``classes_[1]``), else
        (n_samples, n_classes)
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        scores = safe_sparse_dot(self._as_fitted(X), self.coef_.T, dense_output=True)
        scores += self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _as_fitted(self, X: Any) -> Any:
        """Return rows changed as the fit changed its own; estimators that shorten them do."""
        return X

    def _class_scores(self, X: Any) -> np.ndarray:
        """Return a score per class, whose differences are the log-odds of a logistic model."""
        scores = self.decision_function(X)
        return np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the highest score for each row.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _split_intercept(coef: np.ndarray, fit_intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's ``coef_`` and ``intercept_`` of the solver's array, intercept last."""
    rows = coef.reshape(len(coef), -1).T
    if fit_intercept:
        return rows[:, :-1].copy(), rows[:, -1].copy()
    return rows.copy(), np.zeros(len(rows))


def _is_logistic(estimator: Any) -> bool:
    return getattr(estimator, "loss", "logistic") == "logistic"


class ProbabilitiesMixin:
    """Probabilities of the classes, unless there is a parameter ``loss`` for another one."""

    def _logits(self, X: Any) -> np.ndarray:
        """Return what the probabilities are the softmax of."""
        return self._class_scores(X)

    @available_if(_is_logistic)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class; with the logistic loss only.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), columns in the order of ``classes_``
        """
        return softmax(self._logits(X), axis=1)

    @available_if(_is_logistic)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class; with the logistic loss only.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), columns in the order of ``classes_``
        """
        return log_softmax(self._logits(X), axis=1)


class LogisticOrHingeMixin(ProbabilitiesMixin):
    """What follows from the parameter ``loss``, ``"logistic"`` unless an estimator stores it."""

    loss = "logistic"

    def _loss(self, n_classes: int) -> Loss:
        if self.loss == "logistic":
            return Logistic() if n_classes == 2 else Softmax()
        if self.loss == "hinge":
            return Hinge()
        raise ValueError(f"loss={self.loss!r} is unknown; choose 'logistic' or 'hinge'.")
