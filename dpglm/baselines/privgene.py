"""Model fitting by a genetic algorithm whose selections are private (PrivGene)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpglm.baselines.genetic import CandidateLosses, GeneticPlan, GeneticTrace, evolve
from dpglm.baselines.parameters import check_number, check_whole, is_auto
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.estimators.labels import n_outputs
from dpglm.estimators.probabilities import LogisticOrHingeMixin
from dpglm.facts import PublicFacts
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import SelectionEvent
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.noise import EntropySource
from dpglm.privacy.selection_costs import (
    bounded_range_epsilon_from_mu,
    bounded_range_epsilon_from_rho,
)

__all__ = ["PrivGene"]

_FEWEST_GENERATIONS = 20
# At the default decay a mutation is then a twentieth of the first.
_MOST_GENERATIONS = 100


class PrivGene(LogisticOrHingeMixin, PrivateLinearClassifier):
    """Differentially private linear classifier fitted by a genetic algorithm.

    Each generation raises or lowers one coefficient: the candidates are all such changes of the
    present coefficients, and the exponential mechanism chooses among them by their total loss
    (Zhang, Xiao, Yang, Zhang & Winslett 2013, in the form of Lee & Kifer 2018: one parent and one
    mutation, which shrinks geometrically).

    Parameters
    ----------
    loss : {"logistic", "hinge"}, default="logistic"
        The logistic loss is the cross entropy of the softmax for more than two classes; the hinge
        loss is then summed one-vs-rest.
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` takes the best candidate of every generation.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    feature_bound : float, default=1.0
        Public bound on the magnitude of the features, to which they are clipped in the fit.
    mutation : float, default=0.5
        Change of a coefficient in the first generation.
    mutation_decay : float, default=0.97
        Factor on it from one generation to the next, above 0 and at most 1; 0.95 as published.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    max_iter : int or "auto", default="auto"
        Number of generations. ``"auto"`` is ``epsilon n / 800``, the authors' rule, between 20
        and 100.
    fit_intercept : bool, default=True
        Whether to append a column of ones.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class; the largest weight multiplies the noise.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws noise from the operating system. Anything else is for tests: the noise is
        then reproducible, and protects nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Always ``max_iter``.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : GeneticTrace
        The change that each generation chose.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy. When features are at most b in magnitude, a
    change of one coefficient by s changes one record's loss by at most ``s b``, either way: the
    scores have a range of ``2 s b`` (twice that under ``"replace_one"``), which is what the
    authors' enhanced exponential mechanism exploits. A choice of bounded range e is
    ``e^2/8``-zCDP (Cesar & Rogers 2021) and has a Gaussian trade-off: e is what the better of the
    two compositions admits. The authors add up e, and Lee & Kifer charge ``e^2/2``.

    Examples
    --------
    >>> from dpglm.baselines.privgene import PrivGene
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = PrivGene(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.6
    True
    """

    def __init__(
        self,
        *,
        loss: str = "logistic",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        feature_bound: float = 1.0,
        mutation: float = 0.5,
        mutation_decay: float = 0.97,
        alpha: float = 0.0,
        max_iter: Any = "auto",
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.feature_bound = feature_bound
        self.mutation = mutation
        self.mutation_decay = mutation_decay
        self.alpha = alpha
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> GeneticPlan:
        feature_bound = check_number("feature_bound", self.feature_bound, 1e-50, 1e50)
        mutation = check_number("mutation", self.mutation, 1e-50, 1e50)
        decay = check_number("mutation_decay", self.mutation_decay, 0.0, 1.0)
        if is_auto(self.max_iter):
            suggested = min(budget.epsilon * facts.n_samples / 800, _MOST_GENERATIONS)
            n_iter = max(round(suggested), _FEWEST_GENERATIONS)
        else:
            n_iter = check_whole("max_iter", self.max_iter)
        epsilon = _selection_epsilon(budget, n_iter)
        plan = GeneticPlan(
            facts=facts,
            budget=budget,
            mutation=mutation * decay ** np.arange(float(n_iter)),
            feature_bound=max(feature_bound, float(bool(self.fit_intercept))),
            selection_epsilon=epsilon,
            ledger=PrivacyLedger(
                ((SelectionEvent(epsilon), n_iter),),
                budget.neighboring_relation,
                budget.delta,
                assumptions,
                seeded=self.random_state is not None,
            ),
        )
        # Refuses here, before the data are touched, what cannot be drawn.
        plan.mechanism(0)
        plan.mechanism(n_iter - 1)
        return plan

    def _objective(
        self, X: Any, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None
    ) -> Any:
        return CandidateLosses(
            X,
            target,
            self._loss(n_classes),
            n_outputs=n_outputs(n_classes),
            fit_intercept=bool(self.fit_intercept),
            feature_bound=self.feature_bound,
            class_weight=class_weight,
        )

    def _train(
        self,
        objective: CandidateLosses,
        plan: GeneticPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[GeneticTrace, PrivacyLedger]:
        trace = evolve(objective, plan, rng, on_step, bool(self.fit_intercept))
        return trace, replace(plan.ledger, events=run_lengths(trace.events))


def _selection_epsilon(budget: PrivacyBudget, n_iter: int) -> float:
    """Return the bounded range of each of ``n_iter`` choices, by the accountant that admits more.

    Which one does follows from public numbers alone.
    """
    if budget.epsilon == math.inf:
        return math.inf
    return max(
        bounded_range_epsilon_from_rho(budget.rho / n_iter),
        bounded_range_epsilon_from_mu(budget.mu / math.sqrt(n_iter)),
    )
