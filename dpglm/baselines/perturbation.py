"""What objective, output and approximate-minima perturbation share."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import erfcx, log_expit

from dpglm.baselines.minimizer import (
    PenalizedLoss,
    joint_lipschitz,
    rounding_error,
    shortened,
)
from dpglm.estimators.base import ProbabilitiesMixin
from dpglm.estimators.inputs import n_outputs, resolved_class_weight
from dpglm.estimators.whitening import DEFAULT_ROW_BOUND
from dpglm.exceptions import check_number, is_auto
from dpglm.losses import Logistic, Loss, SmoothedHinge, Softmax
from dpglm.privacy.accounting import gdp_delta, gdp_epsilon
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, N_REF_FACTOR, PrivacyBudget
from dpglm.privacy.events import GaussianEvent, ObjectivePerturbationEvent
from dpglm.privacy.ledger import Event, PrivacyLedger, run_lengths
from dpglm.privacy.mechanisms import GaussianSum
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts

__all__ = [
    "PerturbationMixin",
    "PerturbationPlan",
    "PerturbationTrace",
    "RecordBounds",
    "attainable_tolerance",
    "curvature_ratio",
    "jacobian_offset",
    "least_penalty",
    "left_over",
    "most_samples",
    "noise_multiplier_of",
    "shifted_delta",
    "shifted_epsilon",
    "shifted_rdp",
    "tilted_plan",
]


def jacobian_offset(ratio: float, mu: float, neighboring_relation: str) -> float:
    """Return the offset of one objective perturbation.

    Parameters
    ----------
    ratio : float
        Largest second derivative of a record's loss over the penalty, ``beta / lambda``.
    mu : float
        Sensitivity of the gradient over the standard deviation of b, or more.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}

    Returns
    -------
    float
        ``log(1 + ratio)``, or ``2 log(1 + ratio/2) / erfcx(mu / sqrt 2)`` under replace-one.

    Examples
    --------
    >>> from dpglm.baselines.perturbation import jacobian_offset
    >>> round(jacobian_offset(0.1, 0.2, "zero_out"), 6)
    0.09531
    >>> round(jacobian_offset(0.1, 0.2, "replace_one"), 6)
    0.113666
    """
    if neighboring_relation != "replace_one":
        return math.log1p(ratio)
    return 2 * math.log1p(ratio / 2) / float(erfcx(mu / math.sqrt(2)))


def curvature_ratio(offset: float, mu: float, neighboring_relation: str) -> float:
    """Return the largest ``beta / lambda`` with this offset, the inverse of `jacobian_offset`.

    Parameters
    ----------
    offset, mu : float
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}

    Returns
    -------
    float

    Examples
    --------
    >>> from dpglm.baselines.perturbation import curvature_ratio, jacobian_offset
    >>> round(jacobian_offset(curvature_ratio(0.3, 1.0, "replace_one"), 1.0, "replace_one"), 12)
    0.3
    """
    if neighboring_relation != "replace_one":
        return math.expm1(offset)
    return 2 * math.expm1(offset * float(erfcx(mu / math.sqrt(2))) / 2)


def shifted_delta(mu: float, offset: float, epsilon: float) -> float:
    """Return the delta at ``epsilon`` of a Gaussian trade-off shifted by ``offset``.

    Parameters
    ----------
    mu, offset, epsilon : float
        At least 0.

    Returns
    -------
    float
        That of mu-GDP at ``epsilon - offset``, which may be negative.

    Examples
    --------
    >>> from dpglm.baselines.perturbation import shifted_delta
    >>> round(shifted_delta(1.0, 0.5, 1.5), 10)
    0.1269367375
    """
    rest = epsilon - offset
    if rest >= 0:
        return gdp_delta(mu, rest)
    return -math.expm1(rest) + math.exp(rest) * gdp_delta(mu, -rest)


def shifted_epsilon(mu: float, offset: float, delta: float) -> float:
    """Return an epsilon at ``delta`` of a Gaussian trade-off shifted by ``offset``.

    Parameters
    ----------
    mu, offset, delta : float

    Returns
    -------
    float
        The offset and the epsilon of mu-GDP; the least one unless delta is above the total
        variation distance of the latter.

    Examples
    --------
    >>> from dpglm.baselines.perturbation import shifted_epsilon
    >>> round(shifted_epsilon(0.2, 0.1, 1e-6), 6)
    0.934118
    """
    return offset + gdp_epsilon(mu, delta)


def shifted_rdp(mu: float, offset: float, alpha: float) -> float:
    """Return the Renyi divergence of order ``alpha``, ``offset + alpha mu^2 / 2``.

    Parameters
    ----------
    mu, offset, alpha : float
        The order is above 1.

    Returns
    -------
    float

    Notes
    -----
    ``E_Q (p/q)^alpha`` is the integral over c > 0 of ``alpha (alpha - 1) c^(alpha - 2) E_Q (p/q -
    c)_+``, and the last factor is at most what it is for N(mu, 1) and ``e^-offset N(0, 1)``. That
    is (offset, mu^2/2)-zCDP in the sense of Bun & Steinke (2016).

    Examples
    --------
    >>> from dpglm.baselines.perturbation import shifted_rdp
    >>> shifted_rdp(0.5, 0.25, 2.0)
    0.5
    """
    return offset + alpha * mu**2 / 2


# Relative to the noise on the gradient, and to the largest gradient; rounding errors come on top.
_TOLERANCE = 1e-6
_TOLERANCE_OF_SUM = 1e-11
# Penalty of the mean loss over its curvature, below which no budget makes an automatic one go.
_LEAST_ALPHA = 1e-6
# The squares of shorter rows underflow.
_LEAST_ROW_BOUND = 1e-100


@dataclass(frozen=True)
class RecordBounds:
    """What one record can add to a sum of losses: public constants.

    Parameters
    ----------
    row_bound : float
        Largest norm of a row, intercept included.
    lipschitz, curvature : float
        Largest norm of its gradient, and of its Hessian, for one output.
    joint_lipschitz : float
        Largest norm of its gradient over all outputs.
    loss_at_zero : float
        Its largest loss at coefficients of zero.
    """

    row_bound: float
    lipschitz: float
    curvature: float
    joint_lipschitz: float
    loss_at_zero: float


@dataclass(frozen=True, eq=False)
class PerturbationPlan:
    """What a fit will minimise and release, with how much noise, and what that costs.

    Parameters
    ----------
    facts : PublicFacts
        With the penalty of the mean loss in ``alpha``.
    bounds : RecordBounds
    penalty : float
        That of the sum of the losses, ``alpha`` times the number of records.
    tolerance : float
        Largest gradient of the sum at the coefficients that stand for the minimiser.
    output : GaussianSum
        The mechanism that releases them.
    ledger : PrivacyLedger
    tilt : GaussianSum, optional
        The mechanism that draws the random linear term of the objective.
    offset : float, default=0.0
        Cost of the change of variables, for each output: see
        `dpglm.baselines.perturbation`.
    """

    facts: PublicFacts
    bounds: RecordBounds
    penalty: float
    tolerance: float
    output: GaussianSum
    ledger: PrivacyLedger
    tilt: GaussianSum | None = None
    offset: float = 0.0
    n_iter: int = field(default=1, init=False)

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        return most_samples(self.facts, self.ledger.neighboring_relation)

    def __str__(self) -> str:
        return f"one minimiser over {self.facts.n_samples} records: {self.ledger}"


@dataclass
class PerturbationTrace:
    """Released values of a fit.

    Attributes
    ----------
    events : list of Event
    penalty : float
        That of the sum of the losses.
    feature_bound : float
        Norm to which the features of longer rows are shortened, in the fit and in predictions.
    tilt_std, output_std : float
        Standard deviation of the noise in the objective, and on its minimiser.
    coef : ndarray or None
        The released coefficients, in the solver's layout (intercept last).
    """

    events: list[Event] = field(default_factory=list)
    penalty: float = 0.0
    feature_bound: float = math.inf
    tilt_std: float = 0.0
    output_std: float = 0.0
    coef: np.ndarray | None = None
    n_iter: int = field(default=1, init=False)


def most_samples(facts: PublicFacts, neighboring_relation: str) -> int:
    """Return up to how many records rounding errors are bounded for."""
    private = neighboring_relation == "add_or_remove_one"
    return facts.n_samples * (N_REF_FACTOR if private else 1)


def least_penalty(facts: PublicFacts, bounds: RecordBounds) -> float:
    """Return the least penalty of the sum that is chosen automatically, whatever the budget."""
    return _LEAST_ALPHA * bounds.curvature * facts.n_samples


def attainable_tolerance(
    facts: PublicFacts, bounds: RecordBounds, penalty: float, noise_std: float, n_samples: int
) -> float:
    """Return a gradient norm that a solver can reach, and prove to have reached.

    Parameters
    ----------
    facts : PublicFacts
    bounds : RecordBounds
    penalty : float
        Of the sum of the losses.
    noise_std : float
        Of the noise on the gradient; beside it the error of the minimiser is negligible.
    n_samples : int
        The public number of records, or more.

    Returns
    -------
    float

    Notes
    -----
    Rounding errors grow with the norm of the minimiser w of J. With the tilt b, ``(penalty/2)
    ||w||^2 <= J(0) - <b, w>``, and ``penalty ||w|| <= ||b|| + n L``.
    """
    tilt = noise_std * (math.sqrt(facts.n_released) + 10)
    by_value = math.sqrt(2 * n_samples * bounds.loss_at_zero / penalty) + 2 * tilt / penalty
    by_slope = (tilt + n_samples * bounds.joint_lipschitz) / penalty
    rounding = rounding_error(
        n_samples,
        facts.n_released,
        bounds.joint_lipschitz,
        bounds.curvature,
        min(by_value, by_slope),
    )
    largest_sum = n_samples * bounds.joint_lipschitz
    return _TOLERANCE * noise_std + _TOLERANCE_OF_SUM * largest_sum + 2 * rounding


def left_over(
    budget: PrivacyBudget,
    facts: PublicFacts,
    bounds: RecordBounds,
    *,
    penalty: float,
    mu: float,
    alpha: Any,
) -> float:
    """Return what is left of a budget's mu for noise, once the changes of variables are paid.

    Parameters
    ----------
    budget : PrivacyBudget
    facts : PublicFacts
    bounds : RecordBounds
    penalty : float
        Of the sum of the losses.
    mu : float
        Sensitivity of one output's gradient over the standard deviation of the tilt, or more.
    alpha : object
        The parameter, for the message.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If nothing is left.
    """
    relation = budget.neighboring_relation
    offset = facts.n_outputs * _offset(bounds, penalty, mu, relation)
    if not offset < budget.epsilon:
        raise ValueError(
            f"alpha={alpha!r} is too small for epsilon={budget.epsilon:g}: changing the variables "
            f"costs {offset:.3g} of it. Raise alpha (or set it to 'auto') or epsilon."
        )
    return replace(budget, epsilon=budget.epsilon - offset).mu


def tilted_plan(
    budget: PrivacyBudget,
    facts: PublicFacts,
    bounds: RecordBounds,
    *,
    penalty: float,
    mu: float,
    output_mu: float,
    least_tolerance: float = 0.0,
    assumptions: tuple[str, ...],
    seeded: bool,
) -> PerturbationPlan:
    """Return the plan of a fit that tilts its objective and releases the approximate minimiser.

    Parameters
    ----------
    budget : PrivacyBudget
        Its relation is used, and not its size.
    facts : PublicFacts
    bounds : RecordBounds
    penalty : float
        Of the sum of the losses, above 0.
    mu : float
        Sensitivity of one output's gradient over the standard deviation of the tilt.
    output_mu : float
        Gaussian cost of releasing the approximate minimiser once the exact one is known.
    least_tolerance : float, default=0.0
        The solver may stop at a gradient of this norm.
    assumptions : tuple of str
    seeded : bool

    Returns
    -------
    PerturbationPlan

    Notes
    -----
    Two approximate minimisers within ``tolerance / penalty`` of the same exact one differ by up to
    twice that. The tilt is drawn on a grid; an ideal Gaussian differs from it by half the spacing
    in each coordinate, which counts as an error of the gradient.
    """
    relation = budget.neighboring_relation
    tilt = GaussianSum(budget.sensitivity(bounds.lipschitz), noise_multiplier_of(mu))
    size = facts.n_released
    n_samples = most_samples(facts, relation)
    attainable = attainable_tolerance(facts, bounds, penalty, tilt.noise_std(size), n_samples)
    tolerance = max(attainable, least_tolerance)
    grid = tilt.grid if tilt.noise_multiplier > 0 else 0.0
    error = (tolerance + grid * math.sqrt(size) / 2) * (1 + 1e-9)
    output = GaussianSum(2 * error / penalty, noise_multiplier_of(output_mu))
    offset = _offset(bounds, penalty, mu, relation)
    events: list[Event] = [ObjectivePerturbationEvent(tilt.noise_multiplier, offset)]
    return PerturbationPlan(
        facts=replace(facts, alpha=penalty / facts.n_samples, row_bound=bounds.row_bound),
        bounds=bounds,
        penalty=penalty,
        tolerance=tolerance,
        output=output,
        ledger=PrivacyLedger.from_events(
            events * facts.n_outputs + [GaussianEvent(output.noise_multiplier)],
            neighboring_relation=relation,
            reporting_delta=budget.delta,
            assumptions=assumptions,
            seeded=seeded,
        ),
        tilt=tilt,
        offset=offset,
    )


def _offset(bounds: RecordBounds, penalty: float, mu: float, neighboring_relation: str) -> float:
    """Return the cost of one change of variables; any finite number will do without noise."""
    ratio = bounds.curvature / penalty
    return jacobian_offset(ratio, 0.0 if mu == math.inf else mu, neighboring_relation)


def noise_multiplier_of(mu: float) -> float:
    """Return ``1 / mu``, unless that is so large that nothing could be learned."""
    if mu < 1 / LARGEST_NOISE_MULTIPLIER:
        raise ValueError(
            f"epsilon and delta are too small: the noise would be {1 / mu:.3g} times what a "
            f"record adds, above {LARGEST_NOISE_MULTIPLIER:g}. Raise epsilon or delta."
        )
    return 0.0 if mu == math.inf else 1 / mu


class PerturbationMixin(ProbabilitiesMixin):
    """Loss, penalty, public constants and training of the perturbation estimators.

    They store ``loss``, ``half_width`` and ``row_bound`` beside the parameters that all linear
    classifiers have, and define ``_plan``.
    """

    # Whether the logistic loss of more than two classes is that of the softmax, not one-vs-rest.
    _multinomial = False

    def _loss(self, n_classes: int) -> Loss:
        if self.loss == "logistic":
            return Softmax() if self._multinomial and n_classes > 2 else Logistic()
        if self.loss == "smoothed_hinge":
            return SmoothedHinge(self.half_width)
        raise ValueError(f"loss={self.loss!r} is unknown; choose 'logistic' or 'smoothed_hinge'.")

    def _penalty(self) -> float:
        """Return the penalty of the mean loss, or 0 where the plan is to choose it."""
        if is_auto(self.alpha):
            return 0.0
        if isinstance(self.alpha, str) or self.alpha == 0:
            raise ValueError(
                f"alpha={self.alpha!r} must be 'auto' or a finite number above 0: without a "
                "penalty one record can move the minimiser without bound."
            )
        return super()._penalty()

    def _record_bounds(self, facts: PublicFacts) -> RecordBounds:
        row_bound = DEFAULT_ROW_BOUND if self.row_bound is None else self.row_bound
        least = 1.0 if self.fit_intercept else _LEAST_ROW_BOUND
        row_bound = check_number("row_bound", row_bound, least, 1e50)
        n_classes = max(2, facts.n_outputs)
        loss = self._loss(n_classes)
        weight = self._largest_weight(n_classes)
        scores = np.zeros((1, facts.n_outputs) if facts.n_outputs > 1 else 1)
        return RecordBounds(
            row_bound=row_bound,
            lipschitz=weight * loss.lipschitz * row_bound,
            curvature=weight * loss.curvature * row_bound**2,
            joint_lipschitz=weight * joint_lipschitz(loss, facts.n_outputs) * row_bound,
            loss_at_zero=weight * float(loss.value(scores, np.zeros(1, dtype=int))[0]),
        )

    def _largest_weight(self, n_classes: int) -> float:
        """Return the largest weight of a class; that of a class without one is 1."""
        if self.class_weight is None or not isinstance(self.class_weight, dict):
            return 1.0
        given = resolved_class_weight(self.class_weight, np.array(list(self.class_weight)))
        return float(max([*given, 1.0] if len(given) < n_classes else given))

    def _objective(
        self, X: Any, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None
    ) -> PenalizedLoss:
        return PenalizedLoss(
            X,
            target,
            self._loss(n_classes),
            n_outputs=n_outputs(n_classes),
            fit_intercept=bool(self.fit_intercept),
            row_bound=DEFAULT_ROW_BOUND if self.row_bound is None else float(self.row_bound),
            class_weight=class_weight,
        )

    def _train(
        self,
        objective: PenalizedLoss,
        plan: PerturbationPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[PerturbationTrace, PrivacyLedger]:
        trace = PerturbationTrace(penalty=plan.penalty, feature_bound=objective.feature_bound)
        shape, tilt = objective.coef_shape, 0.0
        if plan.tilt is not None:
            tilt, event = plan.tilt.release(np.zeros(shape), rng)
            tilted = ObjectivePerturbationEvent(event.noise_multiplier, plan.offset)
            trace.events += [tilted] * shape[1]
            trace.tilt_std = plan.tilt.noise_std(math.prod(shape))
        minimizer = objective.minimizer(
            plan.penalty, plan.tolerance, n_samples=plan.max_n_samples, tilt=tilt
        )
        trace.coef, event = plan.output.release(minimizer, rng)
        trace.events.append(event)
        trace.output_std = plan.output.noise_std(minimizer.size)
        on_step(0, trace.coef)
        return trace, replace(plan.ledger, events=run_lengths(trace.events))

    def _as_fitted(self, X: Any) -> Any:
        return shortened(X, self.trace_.feature_bound)[0]

    def _logits(self, X: Any) -> np.ndarray:
        """Return log-probabilities of one-vs-rest, which are divided by their sum, or scores."""
        scores = self._class_scores(X)
        return log_expit(scores) if scores.shape[1] > 2 and not self._multinomial else scores
