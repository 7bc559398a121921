"""The classifier that ignores the features: class frequencies, counted privately once."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpglm.estimators.classification import PrivateLinearClassifier, resolved_class_weight
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.losses import NamedLossMixin
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.vault import Vault
from dpglm.schedules import PublicMetadata

# A class of which noise leaves less than half a record counts as half a record.
_LEAST_COUNT = 0.5


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CountPlan(Plan):
    """One release: the number of records in each class."""

    noise_multiplier: float
    n_iter: int = 1

    @property
    def _releases(self) -> str:
        return f"one count of {self.metadata.n_samples:,} records by class"


@dataclass(kw_only=True, eq=False, repr=False)
class MajorityClassifier(NamedLossMixin, PrivateLinearClassifier):
    """Differentially private classifier that always predicts the most frequent class.

    Any other estimator must beat it: it predicts the noisy class frequencies for all features.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes
        As in `DPLogisticRegression`.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class, by which its count is multiplied: ``"balanced"`` makes all equal.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Zero.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Log-odds, or logarithms, of the noisy frequencies.
    n_iter_ : int
        Always 1.
    trace_ : FitTrace
        The noisy counts.
    classes_, n_features_in_, feature_names_in_, privacy_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy, by one Gaussian release of the number of
    records in each class, of L2 sensitivity 1, or ``sqrt(2)`` under ``"replace_one"``.

    Examples
    --------
    >>> from dpglm.baselines import MajorityClassifier
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = MajorityClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> bool((model.predict(X) == (y.mean() > 0.5)).all())
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None

    # Not parameters of this one: there is nothing to penalise, and no other coefficient.
    alpha: ClassVar[float] = 0.0
    fit_intercept: ClassVar[bool] = True

    _counts_weights: ClassVar[bool | None] = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> CountPlan:
        noise_multiplier = 1 / budget.mu
        ledger = ledger_of(budget, [GaussianEvent(noise_multiplier, purpose="counts of labels")])
        return CountPlan(
            metadata=metadata, ledger=ledger, budget=budget, noise_multiplier=noise_multiplier
        )

    def _train(self, vault: Vault, plan: CountPlan, on_step: OnStep) -> FitTrace:
        counts = vault.label_counts(plan.noise_multiplier)
        least = np.maximum(counts, _LEAST_COUNT)
        scores = np.log(least * resolved_class_weight(self.class_weight, self.classes_, least))
        trace = FitTrace(counts=counts)
        trace.record(*vault.log)
        trace.coef = np.zeros(self._space(plan).shape)
        trace.coef[-1:] = scores if plan.metadata.n_outputs > 1 else scores[1:] - scores[:1]
        if on_step is not None:
            on_step(0, trace.coef)
        return trace
