"""The base of all estimators: validation, the shell of a fit, prediction."""

import math
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from dpglm.checks import check_number, check_whole
from dpglm.estimators.callbacks import Callbacks
from dpglm.estimators.inputs import training_data
from dpglm.estimators.plan import Plan, assumptions_of
from dpglm.estimators.prediction import LinearScores
from dpglm.estimators.solvers import Coordinates
from dpglm.exceptions import KnownParameters
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.noise import entropy_source, noise_seed
from dpglm.privacy.odometer import charge_odometers, state_cost
from dpglm.privacy.vault import Vault, gradient_sums
from dpglm.schedules import PublicMetadata

# Scores of larger coefficients are meaningless; float32 holds up to 3e38.
_DIVERGED = 1e30
# Next to a larger penalty, a double loses the curvature of the intercept, which has no penalty.
LARGEST_PENALTY = 1e12


@dataclass(kw_only=True, eq=False, repr=False)
class Budgeted(KnownParameters):
    """An object that spends a budget: epsilon, delta, a neighbouring relation, an estimate of n."""

    epsilon: float = 1.0
    delta: float = 1e-6
    neighboring_relation: str = "zero_out"
    n_samples_estimate: int | None = None

    def _budget(self) -> PrivacyBudget:
        n = self.n_samples_estimate
        return PrivacyBudget(self.epsilon, self.delta, self.neighboring_relation, n)

    def _forget(self) -> None:
        # All at once: an interrupt in between would leave a part of a fit.
        self.__dict__ = {k: v for k, v in vars(self).items() if k[0] == "_" or k[-1] != "_"}


class PrivateLinearModel(Budgeted, LinearScores, Callbacks, BaseEstimator):
    """Base of the linear models: everything but the loss, the plan and the training.

    Subclasses have ``alpha`` and ``fit_intercept``, and define `_loss`, `_plan`, `_plan_for` for
    input that may have weights, and two methods that ask a vault. `_settled` returns the plan that
    follows from releases of the target, and `_train` the trace, with the coefficients.
    """

    # Number of rows that count for a privacy unit; None if each row is a record.
    max_contributions: ClassVar[int | None] = None
    _vault_type: ClassVar[type[Vault]] = Vault
    _reads_blocks: ClassVar[bool] = True
    # The limits of a numeric target; None if the target has labels.
    _target_limits: ClassVar[dict[str, float] | None] = None

    def _penalty(self) -> float:
        return check_number("alpha", self.alpha, at_least=0, at_most=LARGEST_PENALTY)

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
        budget, loss, assumptions = self._budget(), self._loss(n_classes), assumptions_of(self)
        metadata = PublicMetadata(
            n_samples=budget.public_n_samples(n_samples),
            n_features=n_features + bool(self.fit_intercept),
            n_outputs=1 if n_classes == 2 else n_classes,
            alpha=alpha,
            curvature=loss.curvature,
            max_row_norm=max_row_norm,
        )
        plan = self._plan_for(budget, metadata, data)
        relation, seeded = plan.ledger.neighboring_relation, noise_seed.get() is not None
        if plan.budget != budget or relation != budget.neighboring_relation:
            raise RuntimeError(f"{plan!r} is not a plan for {budget}; nothing was released.")
        unit = "row" if self.max_contributions is None else "group"
        stated = replace(plan.ledger, assumptions=assumptions, seeded=seeded, privacy_unit=unit)
        return replace(plan, ledger=stated, loss=loss)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Validate, plan, hand the rows to a vault, charge, train, and set attributes."""
        self._forget()
        training = False
        try:
            # Warnings of numpy would depend on the data. Steps that are too large overflow.
            with ExitStack() as files, np.errstate(all="ignore"):
                # 1) Validate the input, and infer what is assumed public.
                data = training_data(self, X, y, sample_weight, groups)
                n_classes = 2
                if data.classes is not None:
                    self.classes_, n_classes = data.classes, len(data.classes)
                # 2) Plan all releases. A norm is public, as a parameter is: rows are clipped to it.
                plan = self._planned(*data.shape, n_classes, data)
                # 3) Give the rows to a vault; nobody else keeps their sums.
                sums = data.sums(self, plan.loss, files)
                if plan.metadata.sampling_rate < 1 and data.source is not None:
                    sums.check()  # random batches do not reach all blocks
                events, entropy = plan.ledger.events, entropy_source()
                vault = self._vault_type(sums, events, plan.budget, entropy)
                del sums, entropy
                # 4) Charge odometers before the first release.
                plan.warn(stacklevel=6)
                charge_odometers(plan.ledger, self)
                # 5) Train on releases alone.
                attributes = partial(self._fitted_attributes, dtype=data.dtype)
                on_step = finish = None
                if getattr(self, "_skl_callbacks", []):
                    told = plan.n_iter, self._space(plan).shape, data.X, data.y, attributes
                    on_step, finish = self._reports(*told)
                training = True
                if plan.counts or self.class_weight is not None:
                    plan = self._settled(vault, plan, data)
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

    # Makes the holder of rows, or of a block of them, for the vault only.
    _holder: ClassVar[Any] = staticmethod(gradient_sums)

    def _space(self, plan: Plan) -> Coordinates:
        known = plan.metadata
        intercept = bool(self.fit_intercept)
        return Coordinates(plan.loss, known.n_features, known.n_outputs, intercept)

    def _fitted_attributes(self, coef: np.ndarray, dtype: Any) -> dict[str, Any]:
        """Return scikit-learn's ``coef_`` and ``intercept_`` of the solver's array."""
        with np.errstate(over="ignore"):  # float32 of what was released as float64
            rows = coef.reshape(len(coef), -1).T.astype(dtype)
        if self.fit_intercept:
            return {"coef_": rows[:, :-1].copy(), "intercept_": rows[:, -1].copy()}
        return {"coef_": rows, "intercept_": np.zeros(len(rows), dtype)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = noise_seed.get() is None
        return tags
