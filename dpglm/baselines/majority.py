"""The classifier that ignores the features: class frequencies, counted privately once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpglm.estimators.base import LogisticOrHingeMixin, PrivateLinearClassifier
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.mechanisms import GaussianSum
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts

__all__ = ["CountPlan", "CountTrace", "MajorityClassifier"]

# A class of which noise leaves less than half a record counts as half a record.
_LEAST_COUNT = 0.5


@dataclass(frozen=True)
class CountPlan:
    """One release: the number of records in each class.

    Parameters
    ----------
    facts : PublicFacts
    sensitivity : float
        L2 sensitivity of the counts under the neighbouring relation.
    noise_multiplier : float
    ledger : PrivacyLedger
    """

    facts: PublicFacts
    sensitivity: float
    noise_multiplier: float
    ledger: PrivacyLedger

    @property
    def n_iter(self) -> int:
        """One release is one iteration."""
        return 1

    @property
    def mechanism(self) -> GaussianSum:
        """The mechanism; counts are exact in floating point and need no slack."""
        return GaussianSum(self.sensitivity, self.noise_multiplier)

    def __str__(self) -> str:
        return f"one count of {self.facts.n_samples} records by class: {self.ledger}"

    def __repr__(self) -> str:
        return f"<CountPlan: {self}>"


@dataclass(frozen=True, eq=False)
class CountTrace:
    """What the fit released.

    Attributes
    ----------
    events : tuple of Event
    counts : ndarray of shape (n_classes,)
        The noisy counts.
    coef : ndarray
        The coefficients, in the solver's layout (intercept last).
    n_iter : int
    """

    events: tuple[GaussianEvent, ...]
    counts: np.ndarray
    coef: np.ndarray
    n_iter: int = 1


class _LabelCounts:
    """Holds the labels, and answers with the number of records in each class."""

    def __init__(
        self, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None = None
    ) -> None:
        self._index = (target > 0).astype(int) if n_classes == 2 else target
        self.class_weight = np.ones(n_classes) if class_weight is None else class_weight

    def counts(self) -> np.ndarray:
        """Return the counts. Private: they leave the library through a mechanism only."""
        return np.bincount(self._index, minlength=len(self.class_weight)).astype(float)


class MajorityClassifier(LogisticOrHingeMixin, PrivateLinearClassifier):
    """Differentially private classifier that always predicts the most frequent class.

    What any other classifier must beat. It releases the number of records in each class with
    noise once, and predicts these frequencies whatever the features are.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` counts without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        belongs to no class, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, by which its noisy count is multiplied.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws noise from the operating system. Anything else is for tests: the noise is
        then reproducible, and protects nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Zero.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Log-odds, or logarithms, of the noisy frequencies.
    n_iter_ : int
        Always 1.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : CountTrace
        The noisy counts.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy, by one `GaussianSum`. A record that appears
    or vanishes moves one count by 1; one that replaces another moves two of them, an L2
    sensitivity of ``sqrt(2)``. The rest is post-processing, the class weights included.

    Examples
    --------
    >>> from dpglm.baselines.majority import MajorityClassifier
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = MajorityClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> bool((model.predict(X) == (y.mean() > 0.5)).all())
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    alpha = 0.0
    fit_intercept = True

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> CountPlan:
        moved = math.sqrt(2) if budget.neighboring_relation == "replace_one" else 1.0
        noise_multiplier = 1 / budget.mu
        ledger = PrivacyLedger.from_events(
            [GaussianEvent(noise_multiplier)],
            neighboring_relation=budget.neighboring_relation,
            reporting_delta=budget.delta,
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )
        return CountPlan(facts, moved, noise_multiplier, ledger)

    def _objective(
        self, X: Any, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None
    ) -> Any:
        return _LabelCounts(target, n_classes, class_weight)

    def _train(
        self,
        objective: _LabelCounts,
        plan: CountPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[CountTrace, PrivacyLedger]:
        noisy, event = plan.mechanism.release(objective.counts(), rng)
        scores = np.log(np.maximum(noisy, _LEAST_COUNT) * objective.class_weight)
        intercept = scores if plan.facts.n_outputs > 1 else scores[1:] - scores[:1]
        coef = np.zeros((plan.facts.n_features, plan.facts.n_outputs))
        coef[-1] = intercept
        coef = coef if plan.facts.n_outputs > 1 else coef[:, 0]
        on_step(0, coef)
        return CountTrace((event,), noisy, coef), replace(plan.ledger, events=((event, 1),))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
