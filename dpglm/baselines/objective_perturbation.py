"""Objective perturbation: minimise a randomly tilted loss."""

import math
from typing import Any

from dpglm.baselines.perturbation import (
    PerturbationMixin,
    PerturbationPlan,
    RecordBounds,
    least_penalty,
    left_over,
    tilted_plan,
)
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.facts import PublicFacts
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.objective_perturbation_costs import curvature_ratio

__all__ = ["ObjectivePerturbation"]

# Part of mu^2 that pays for releasing an approximate minimiser instead of the exact one.
_OUTPUT_SHARE = 0.01
# A larger one would make the penalty smaller than `least_penalty`.
_LARGEST_OFFSET = 20.0


class ObjectivePerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Differentially private linear classifier that minimises a randomly tilted loss.

    A random linear term is added to the penalised loss, and its minimiser is released, with a
    little noise that covers how far a computer's minimiser is from the exact one (Chaudhuri,
    Monteleoni & Sarwate 2011; Kifer, Smith & Thakurta 2012; Iyengar et al. 2019).

    Parameters
    ----------
    loss : {"logistic", "smoothed_hinge"}, default="logistic"
        Summed one-vs-rest for more than two classes, with the budget split among them: the
        guarantee needs gradients of one fixed direction for each record, which the softmax has not.
    half_width : float, default=0.5
        Half the width of the parabola that smooths the hinge.
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` minimises without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    row_bound : float, default=None
        Bound on the L2 norm of a row, intercept included; the features of longer rows are
        shortened, in the fit and in predictions. It must be public: `Schema.row_bound` or prior
        knowledge, never the largest norm of the data. ``None`` means 3.
    alpha : float or "auto", default="auto"
        L2 penalty ``alpha / 2 * (||coef||^2 + intercept^2)`` on the mean loss; above 0, and the
        intercept is penalised like the rest. A small penalty costs part of epsilon, and ``"auto"``
        chooses one that costs between a fourteenth and a quarter of it, the more the larger epsilon
        and the number of records are beside the number of coefficients.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in ``row_bound``.
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
        Always 1: how many iterations the solver took depends on the data, and is not released.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : PerturbationTrace
        The noise that was drawn, and the events.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves. With lambda the
    penalty of the sum, L and beta bounds on a record's gradient and Hessian (largest row and class
    weight included) and b ~ N(0, sigma^2 I), the exact minimiser costs as much as a Gaussian
    release with noise multiplier ``sigma / L`` (``sigma / (2 L)`` under ``"replace_one"``), at
    ``epsilon - log(1 + beta/lambda)``: `dpglm.privacy.objective_perturbation_costs` has the proof.
    That charge alone would be unsound on a computer, whose rounded noise and unfinished
    minimisation show in the last bits (after Mironov 2012). Here a minimiser is accepted only if
    its gradient, with all rounding errors, is at most a tolerance tau fixed in advance, and noise
    for a distance of ``2 tau / lambda`` is added and charged. A fit that does not get there raises
    and releases nothing.

    The guarantee covers neither the time a fit takes nor the fact that it raised because the
    minimiser was not found: both depend on the data. No data are known for which it is not found;
    that there are none is tested on random configurations, not proved.

    Examples
    --------
    >>> from dpglm.baselines.objective_perturbation import ObjectivePerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = ObjectivePerturbation(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7
    True
    """

    def __init__(
        self,
        *,
        loss: str = "logistic",
        half_width: float = 0.5,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        row_bound: float | None = None,
        alpha: Any = "auto",
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.half_width = half_width
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.row_bound = row_bound
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PerturbationPlan:
        bounds, n_outputs = self._record_bounds(facts), facts.n_outputs
        split = math.sqrt((1 - _OUTPUT_SHARE) / n_outputs)
        # The offset grows with mu under replace-one; without an offset mu is at its largest.
        largest_mu = budget.mu * split
        penalty = facts.alpha * facts.n_samples
        if penalty == 0:
            penalty = _automatic_penalty(budget, facts, bounds, largest_mu)
        rest = left_over(budget, facts, bounds, penalty=penalty, mu=largest_mu, alpha=self.alpha)
        return tilted_plan(
            budget,
            facts,
            bounds,
            penalty=penalty,
            mu=rest * split,
            output_mu=rest * math.sqrt(_OUTPUT_SHARE),
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )


def _automatic_penalty(
    budget: PrivacyBudget, facts: PublicFacts, bounds: RecordBounds, mu: float
) -> float:
    """Return a penalty that costs part of epsilon: more of it where the noise is small."""
    least = least_penalty(facts, bounds)
    if budget.epsilon == math.inf:
        return least
    share = 0.1 * math.sqrt(facts.n_samples * budget.epsilon / facts.n_released / 55)
    offset = min(min(max(share, 0.07), 0.25) * budget.epsilon, _LARGEST_OFFSET)
    ratio = curvature_ratio(offset / facts.n_outputs, mu, budget.neighboring_relation)
    return max(bounds.curvature / ratio, least)
