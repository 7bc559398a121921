"""Objective perturbation, and its variant for approximate minima."""

import math
from dataclasses import dataclass
from typing import Any

from dpglm.baselines.perturbation import (
    PerturbationMixin,
    PerturbationPlan,
    RecordBounds,
    curvature_ratio,
    least_penalty,
    left_over,
    tilted_plan,
)
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.privacy.budget import PrivacyBudget
from dpglm.schedules import PublicFacts

__all__ = [
    "ApproximateMinimaPerturbation",
    "ObjectivePerturbation",
    "PublishedParameters",
    "published_parameters",
]

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
    ``epsilon - log(1 + beta/lambda)``: `dpglm.baselines.perturbation` has the proof.
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


# Shares of epsilon and delta that pay for the noise on the minimiser, and of what is left of
# epsilon that pays for the tilt; the rest of it pays for the penalty.
_MINIMUM_SHARE = 0.01
_TILT_SHARE = 0.9


@dataclass(frozen=True)
class PublishedParameters:
    """Constants of one run, on the scale of sums over records.

    Parameters
    ----------
    penalty : float
        Of the sum of the losses.
    tilt_std, output_std : float
        Standard deviations of the random linear term, and of the noise on the minimiser.
    tolerance : float
        Norm of the gradient at which the solver may stop.
    """

    penalty: float
    tilt_std: float
    output_std: float
    tolerance: float


def published_parameters(
    epsilon: float,
    delta: float,
    *,
    smoothness: float,
    sensitivity: float,
    n_samples: int,
) -> PublishedParameters:
    """Return the constants of Iyengar et al. (2019), with the noise on the minimiser corrected.

    Parameters
    ----------
    epsilon, delta : float
    smoothness : float
        Bound beta on the Hessian of a record's loss. The authors' program takes the square of L,
        the bound on its gradient, which is four times as much for the logistic loss.
    sensitivity : float
        By how much a record changes the sum of the gradients; the authors take 2 L, of replacing
        one.
    n_samples : int

    Returns
    -------
    PublishedParameters

    Notes
    -----
    With ``e_out = .01 epsilon``, ``e_obj = .99 epsilon`` and ``e_p = .9 e_obj``, deltas split like
    the epsilons: ``penalty = 2 beta / (e_obj - e_p)``, ``tilt_std = sensitivity (1 + sqrt(2
    log(1/d_obj))) / e_p``, ``tolerance = 1/n`` and ``output_std = (2 tolerance / penalty) (1 +
    sqrt(2 log(1/d_out))) / e_out``. The authors leave out the 2 of the last: two approximate
    minimisers near the same exact one are up to twice their distance from it apart.

    Examples
    --------
    >>> parameters = published_parameters(
    ...     1.0, 1e-6, smoothness=1.0, sensitivity=2.0, n_samples=10_000
    ... )
    >>> round(parameters.penalty, 3), round(parameters.tilt_std, 3)
    (20.202, 14.048)
    """
    output_epsilon, output_delta = _MINIMUM_SHARE * epsilon, _MINIMUM_SHARE * delta
    rest = epsilon - output_epsilon
    tilt_epsilon = _TILT_SHARE * rest
    penalty = 2 * smoothness / (rest - tilt_epsilon)
    tolerance = 1 / n_samples
    return PublishedParameters(
        penalty=penalty,
        tilt_std=sensitivity * _classical_multiplier(delta - output_delta) / tilt_epsilon,
        output_std=2 * tolerance / penalty * _classical_multiplier(output_delta) / output_epsilon,
        tolerance=tolerance,
    )


def _classical_multiplier(delta: float) -> float:
    """Return the authors' noise multiplier of a Gaussian release at epsilon 1."""
    return 1 + math.sqrt(2 * math.log(1 / delta))


class ApproximateMinimaPerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Objective perturbation as published for approximate minimisers, without tuning.

    Iyengar, Near, Song, Thakkar, Thakurta & Wang (2019, "Towards practical differentially private
    convex optimization"): the noise in the objective, the penalty and the noise on the approximate
    minimiser follow from epsilon and delta by fixed constants. `ObjectivePerturbation` does the
    same with noise that is calibrated to what it costs, which is much less.

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
        intercept is penalised like the rest. ``"auto"`` is the authors' constant.
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
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves. It does not rest on
    the authors' proof: the ledger charges what `dpglm.baselines.perturbation` proves
    for the noise that is drawn, and its epsilon is therefore well below the one asked for; at
    epsilons above 10 or so the published noise is too small, and more is drawn. A
    minimiser is accepted only if its gradient, with all rounding errors, is within the tolerance
    that the noise on it covers; a fit that does not get there raises and releases nothing.

    The guarantee covers neither the time a fit takes nor the fact that it raised because the
    minimiser was not found: both depend on the data. No data are known for which it is not found;
    that there are none is tested on random configurations, not proved.

    Examples
    --------
    >>> from dpglm.baselines.objective_perturbation import ApproximateMinimaPerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = ApproximateMinimaPerturbation(epsilon=1.0, classes=[0, 1]).fit(X, y)
    >>> model.privacy_.epsilon() < 0.8
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
        sensitivity = budget.sensitivity(bounds.lipschitz)
        penalty, mu, output_mu = facts.alpha * facts.n_samples, math.inf, math.inf
        tolerance = 1 / facts.n_samples
        if budget.epsilon < math.inf:
            published = published_parameters(
                budget.epsilon / n_outputs,
                budget.delta / n_outputs,
                smoothness=bounds.curvature,
                sensitivity=sensitivity,
                n_samples=facts.n_samples,
            )
            penalty = penalty or published.penalty
            mu = sensitivity / published.tilt_std
            output_mu = 2 * published.tolerance / published.penalty / published.output_std
            rest = left_over(budget, facts, bounds, penalty=penalty, mu=mu, alpha=self.alpha)
            excess = max(1.0, math.sqrt(n_outputs * mu**2 + output_mu**2) / rest)
            mu, output_mu = mu / excess, output_mu / excess
        return tilted_plan(
            budget,
            facts,
            bounds,
            penalty=penalty or least_penalty(facts, bounds),
            mu=mu,
            output_mu=output_mu,
            least_tolerance=tolerance,
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )
