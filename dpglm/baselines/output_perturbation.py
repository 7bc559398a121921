"""Output perturbation: minimise a strongly convex loss, and add noise to the minimiser."""

from dataclasses import replace
from typing import Any

from dpglm.baselines.perturbation import (
    PerturbationMixin,
    PerturbationPlan,
    attainable_tolerance,
    least_penalty,
    most_samples,
    noise_multiplier_of,
)
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import NEIGHBORING_RELATIONS, GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.mechanisms import GaussianSum
from dpglm.schedules import PublicFacts

__all__ = ["OutputPerturbation", "minimizer_sensitivity"]

# The standard deviation that the noise may give the score of the longest row.
_SCORE_STD = 1 / 3


def minimizer_sensitivity(lipschitz: float, penalty: float, neighboring_relation: str) -> float:
    """L2 sensitivity of the exact minimiser of a penalised sum of losses.

    Parameters
    ----------
    lipschitz : float
        Bound L on the norm of a record's gradient.
    penalty : float
        Coefficient lambda of ``||w||^2 / 2`` beside the SUM, on every coordinate.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}

    Returns
    -------
    float
        ``L / lambda``, or twice that under ``"replace_one"``.

    Notes
    -----
    At the minimiser w of one data set the gradient of the other's objective is at most L (2 L when
    a record replaces another), and the other's objective is lambda-strongly convex: its minimiser
    is within that over lambda of w (Chaudhuri, Monteleoni & Sarwate 2011, Corollary 8).

    Examples
    --------
    >>> minimizer_sensitivity(1.0, 10.0, "replace_one")
    0.2
    """
    factor = NEIGHBORING_RELATIONS[neighboring_relation].sensitivity_factor
    return factor * lipschitz / penalty


class OutputPerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Differentially private linear classifier that adds noise to the minimiser of its loss.

    The penalty keeps every record from moving the minimiser far, and Gaussian noise covers that
    distance (Chaudhuri, Monteleoni & Sarwate 2011).

    Parameters
    ----------
    loss : {"logistic", "smoothed_hinge"}, default="logistic"
        The logistic loss is the cross entropy of the softmax for more than two classes; the hinge
        loss is then summed one-vs-rest.
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
        intercept is penalised like the rest. The noise is inversely proportional to it. ``"auto"``
        keeps the noise on the score of any row to a standard deviation of a third.
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
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves: one Gaussian
    release of sensitivity ``(L + 2 tau) / lambda``, or ``(2 L + 2 tau) / lambda`` under
    ``"replace_one"``, with lambda the penalty of the sum, L a bound on a record's gradient (largest
    row and class weight included), and tau the gradient norm, rounding errors included, to which
    the minimiser is known. A fit that does not get there raises and releases nothing. Analyses that
    bound L by 1 for rows that are longer, or leave the intercept unpenalised, claim too much.

    The guarantee covers neither the time a fit takes nor the fact that it raised because the
    minimiser was not found: both depend on the data. No data are known for which it is not found;
    that there are none is tested on random configurations, not proved.

    Examples
    --------
    >>> from dpglm.baselines.output_perturbation import OutputPerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = OutputPerturbation(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    _multinomial = True

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
        bounds, relation = self._record_bounds(facts), budget.neighboring_relation
        noise_std = budget.sensitivity(bounds.joint_lipschitz) / budget.mu
        penalty = facts.alpha * facts.n_samples
        if penalty == 0:
            enough = noise_std * bounds.row_bound / _SCORE_STD
            penalty = max(enough, least_penalty(facts, bounds))
        tolerance = attainable_tolerance(
            facts, bounds, penalty, noise_std, most_samples(facts, relation)
        )
        multiplier = noise_multiplier_of(budget.mu)
        return PerturbationPlan(
            facts=replace(facts, alpha=penalty / facts.n_samples, row_bound=bounds.row_bound),
            bounds=bounds,
            penalty=penalty,
            tolerance=tolerance,
            output=GaussianSum(
                minimizer_sensitivity(bounds.joint_lipschitz, penalty, relation),
                multiplier,
                slack=2 * tolerance / penalty * (1 + 1e-9),
            ),
            ledger=PrivacyLedger.from_events(
                [GaussianEvent(multiplier)],
                neighboring_relation=relation,
                reporting_delta=budget.delta,
                assumptions=assumptions,
                seeded=self.random_state is not None,
            ),
        )
