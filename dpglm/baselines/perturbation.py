"""Perturbed minimisers, what their estimators share, and output perturbation of either kind."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit

from dpglm.baselines.records import (
    UNIT_ROUNDOFF,
    PenalizedLoss,
    Published,
    joint_lipschitz,
    refuse_slack,
    rounding_error,
    shortened,
)
from dpglm.checks import check_number, check_whole, is_auto
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.losses import Loss, NamedLossMixin
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget, check_clip
from dpglm.privacy.events import Event, ObjectivePerturbationEvent
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.vault import GaussianSum, Release, Vault
from dpglm.schedules import PublicMetadata

# The norm of a row of nine ones: an intercept and eight features of at most 1.
DEFAULT_MAX_ROW_NORM = 3.0
# Relative to the noise on the gradient, and to the largest gradient; rounding errors come on top.
_TOLERANCE = 1e-6
_TOLERANCE_OF_SUM = 1e-11
# Penalty of the mean loss over its curvature, below which no budget makes an automatic one go.
_LEAST_ALPHA = 1e-6
# The same for a penalty that is asked for. Below it, whether the minimiser is found may depend on a
# single record. Below about 1e-9 a few of 10,000 random tables failed, and none of 80,000 here.
_LEAST_FINDABLE_ALPHA = 1e-8
# Smaller row norms underflow when squared.
_MIN_ROW_NORM = 1e-100
_MOST_STEPS = 1000
# Largest standard deviation that the noise may give the score of a row with the largest norm.
_SCORE_STD = 1 / 3


@dataclass(frozen=True)
class Problem:
    """Public facts before a penalty is chosen; bounds hold for a record of weight 1."""

    budget: PrivacyBudget
    metadata: PublicMetadata
    # Largest norm of a row, intercept included.
    max_row_norm: float
    # Largest norm of the gradient and of the Hessian, for one output.
    lipschitz: float
    curvature: float
    # Largest norm of the gradient over all outputs, and loss at coefficients of zero.
    joint_lipschitz: float
    loss_at_zero: float

    @property
    def least_penalty(self) -> float:
        """The least penalty of the sum that is chosen automatically, whatever the budget."""
        return _LEAST_ALPHA * self.curvature * self.metadata.n_samples

    def attainable_tolerance(self, penalty: float, noise_std: float) -> float:
        """Return a gradient norm that a solver can reach, and prove to have reached.

        The penalty is that of the sum. The noise is that on the gradient: the error of the
        minimiser is negligible next to it. Rounding errors grow with the norm of the minimiser w of
        J. With the tilt b, ``(penalty/2) ||w||^2 <= J(0) - <b, w>`` and ``penalty ||w|| <= ||b|| +
        n L``.
        """
        n_samples = self.budget.most_samples(self.metadata.n_samples)
        size = self.metadata.n_released
        largest_sum = n_samples * self.joint_lipschitz
        tilt = noise_std * (math.sqrt(size) + 10)
        by_value = math.sqrt(2 * n_samples * self.loss_at_zero / penalty) + 2 * tilt / penalty
        longest = min(by_value, (tilt + largest_sum) / penalty)
        rounding = rounding_error(n_samples, size, self.joint_lipschitz, self.curvature, longest)
        return _TOLERANCE * noise_std + _TOLERANCE_OF_SUM * largest_sum + 2 * rounding

    def plan(self, penalty: float, events: list[Event], **released: Any) -> "PerturbationPlan":
        """Return the plan of these events, with the penalty and the row bound among its facts."""
        alpha = penalty / self.metadata.n_samples
        return PerturbationPlan(
            metadata=replace(self.metadata, alpha=alpha, max_row_norm=self.max_row_norm),
            ledger=ledger_of(self.budget, events),
            budget=self.budget,
            problem=self,
            penalty=penalty,
            **released,
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PerturbationPlan(Plan):
    """Objective and release of a fit, its noise and its cost."""

    problem: Problem
    # Penalty of the sum of the losses: ``metadata.alpha``, that of their mean, times the records.
    penalty: float
    # Largest gradient of the sum at the coefficients that stand for the minimiser,
    tolerance: float
    # and the mechanism that releases them.
    output: GaussianSum
    # The mechanism that draws the random linear term of the objective, and what the change of
    # variables costs for each output: see `dpglm.baselines.objective_perturbation`.
    tilt: GaussianSum | None = None
    offset: float = 0.0
    n_iter: int = 1

    def __post_init__(self) -> None:
        least = _LEAST_FINDABLE_ALPHA * self.problem.curvature
        alpha = self.penalty / self.metadata.n_samples
        if not alpha >= least * (1 - 1e-12):
            raise ValueError(
                f"alpha={alpha:g} is too small for the curvature of a record, "
                f"{self.problem.curvature:.3g}: that the minimiser is found could depend on the "
                f"data. Raise alpha to {least:.3g} or more, or set it to 'auto'."
            )
        refuse_slack(self.output, "Raise alpha.")

    @property
    def _releases(self) -> str:
        return f"one minimiser over {self.metadata.n_samples} records"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DescentOutputPlan(Plan):
    """Gradient steps of a fit, whose end is released, and the noise of that."""

    step: float
    n_steps: int
    clip: float
    output: GaussianSum
    n_iter: int = 1

    @property
    def _releases(self) -> str:
        steps = f"{self.n_steps} gradient steps over {self.metadata.n_samples} records"
        return f"the end of {steps}"


class MinimizerVault(Vault):
    """A vault that releases the minimiser of a penalised loss, tilted or not.

    Or else it releases the end of a fixed number of gradient steps.
    """

    def minimizer(self, plan: PerturbationPlan) -> np.ndarray:
        """Release coefficients within ``tolerance / penalty`` of the minimiser, with noise.

        For the sensitivity of the exact minimiser; or, where the plan has a random linear term that
        protects it, for the error of the solver. That term, charged once for each output, stays
        here: whoever knew it could read the gradient of the losses off the minimiser.
        """
        shape, tilt = self._sums.coef_shape, 0.0
        if plan.tilt is not None:
            event = ObjectivePerturbationEvent(plan.tilt.noise_multiplier, plan.offset)
            for _ in range(shape[1]):
                self._allowance.charge(event)
                self._n_released += 1
                self.log.append(Release(event, plan.tilt.noise_std(math.prod(shape))))
            with self._closed_by_errors():
                tilt = plan.tilt.release(np.zeros(shape), self._entropy)

        known = {"n_samples": plan.max_n_samples, "tilt": tilt}
        exact = partial(self._sums.minimizer, plan.penalty, plan.tolerance, **known)
        # A record moves a tilted minimiser by any distance: the tilt keeps its distribution close.
        moves = None if plan.tilt is None else math.inf
        return self._release_sum(plan.output, exact, math.prod(shape), moves=moves)

    def last_iterate(self, plan: DescentOutputPlan) -> np.ndarray:
        """Release the end of the planned gradient steps, which `descent_sensitivity` bounds."""
        steps = {"step": plan.step, "n_iter": plan.n_steps, "clip": plan.clip}
        metadata = plan.metadata
        exact = partial(self._sums.last_iterate, metadata.n_samples, alpha=metadata.alpha, **steps)
        return self._release_sum(plan.output, exact, math.prod(self._sums.coef_shape))


def noise_multiplier_of(mu: float) -> float:
    """Return ``1 / mu``, unless that is so large that nothing could be learned."""
    if mu < 1 / LARGEST_NOISE_MULTIPLIER:
        raise ValueError(
            f"epsilon and delta are too small: the noise would be {1 / mu:.3g} times what a "
            f"record adds, above {LARGEST_NOISE_MULTIPLIER:g}. Raise epsilon or delta."
        )
    return 0.0 if mu == math.inf else 1 / mu


@dataclass(kw_only=True, eq=False, repr=False)
class PerturbationMixin(Published, NamedLossMixin):
    """Loss, penalty, public constants and training of the perturbation estimators."""

    loss: str = "logistic"
    half_width: float = 0.5
    max_row_norm: float | None = None
    alpha: float | str = "auto"
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    accounting: str = "tight"

    # Whether the logistic loss of more than two classes is that of the softmax, not one-vs-rest.
    _multinomial: ClassVar[bool] = False

    _losses: ClassVar[tuple[str, ...]] = ("logistic", "smoothed_hinge")
    _vault_type: ClassVar[type[Vault]] = MinimizerVault
    _reads_blocks: ClassVar[bool] = False
    _shortens_rows: ClassVar[bool] = True

    def _loss(self, n_classes: int) -> Loss:
        return super()._loss(n_classes if self._multinomial else 2)

    def _penalty(self) -> float:
        """Return the penalty of the mean loss, or 0 where the plan is to choose it."""
        if is_auto(self.alpha):
            return 0.0
        if isinstance(self.alpha, str) or (penalty := super()._penalty()) == 0:
            raise ValueError(
                f"alpha={self.alpha!r} must be 'auto' or a finite number above 0: without a "
                "penalty one record can move the minimiser without bound."
            )
        return penalty

    def _max_row_norm(self) -> float:
        max_row_norm = DEFAULT_MAX_ROW_NORM if self.max_row_norm is None else self.max_row_norm
        least = 1.0 if self.fit_intercept else _MIN_ROW_NORM
        return check_number("max_row_norm", max_row_norm, above=least, at_most=1e50)

    def _mu(self, budget: PrivacyBudget) -> float:
        """Return mu of the budget, or at most that of the noise of Dwork & Roth's Theorem A.1."""
        if not self._is_published(budget):
            return budget.mu
        return min(budget.mu, budget.epsilon / math.sqrt(2 * math.log(1.25 / budget.delta)))

    def _problem(self, budget: PrivacyBudget, metadata: PublicMetadata) -> Problem:
        max_row_norm, n_classes = self._max_row_norm(), max(2, metadata.n_outputs)
        loss = self._loss(n_classes)
        if isinstance(self.class_weight, str) and metadata.alpha > 0:
            raise ValueError(
                f"alpha={self.alpha!r} with class_weight='balanced': the noise would follow from "
                "the counts of labels. Use alpha='auto' (or 0 for a descent), or a dict of weights."
            )
        scores = np.zeros((1, metadata.n_outputs) if metadata.n_outputs > 1 else 1)
        return Problem(
            budget=budget,
            metadata=metadata,
            max_row_norm=max_row_norm,
            lipschitz=loss.lipschitz * max_row_norm,
            curvature=loss.curvature * max_row_norm**2,
            joint_lipschitz=joint_lipschitz(loss, metadata.n_outputs) * max_row_norm,
            loss_at_zero=float(loss.value(scores, np.zeros(1, dtype=int))[0]),
        )

    def _holder(self, X: Any, target: np.ndarray, loss: Loss, **options: Any) -> PenalizedLoss:
        return PenalizedLoss(X, target, loss, max_row_norm=self._max_row_norm(), **options)

    def _train(self, vault: MinimizerVault, plan: Plan, on_step: OnStep) -> FitTrace:
        trace = self._released(vault, plan)
        trace.feature_bound = math.sqrt(plan.metadata.max_row_norm**2 - bool(self.fit_intercept))
        trace.output_std = vault.log[-1].noise_scale
        trace.record(*vault.log)
        if on_step is not None:
            on_step(0, trace.coef)
        return trace

    def _released(self, vault: MinimizerVault, plan: PerturbationPlan) -> FitTrace:
        """Return the coefficients of one release, and what it was made with."""
        trace = FitTrace(penalty=plan.penalty)
        trace.coef = vault.minimizer(plan)
        trace.tilt_std = 0.0 if plan.tilt is None else vault.log[0].noise_scale
        return trace

    def _as_fitted(self, X: Any) -> Any:
        return shortened(X, self.trace_.feature_bound)

    def _logits(self, X: Any) -> np.ndarray:
        """Return log-probabilities of one-vs-rest, which are divided by their sum, or scores."""
        scores = super()._logits(X)
        return log_expit(scores) if scores.shape[1] > 2 and not self._multinomial else scores


def minimizer_event(output: GaussianSum) -> Event:
    """Return the cost of the noise on a minimiser."""
    return replace(output.event, purpose="minimiser, with noise")


def minimizer_sensitivity(lipschitz: float, penalty: float, neighboring_relation: str) -> float:
    """Return the L2 sensitivity of the exact minimiser of a penalised sum of losses.

    It is ``L / lambda``, or twice that under ``"replace_one"``. L bounds the gradient norm of a
    record. The penalty ``lambda ||w||^2 / 2`` is added to the SUM, on every coordinate.

    At the minimiser w of one data set the gradient of the other's objective is at most L (2 L when
    a record replaces another). The other's objective is lambda-strongly convex, so its minimiser is
    within that over lambda of w (Chaudhuri, Monteleoni & Sarwate 2011, Corollary 8).
    """
    factor = NEIGHBORING_RELATIONS[neighboring_relation].sensitivity_factor
    return factor * lipschitz / penalty


@dataclass(kw_only=True, eq=False, repr=False)
class OutputPerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Differentially private linear classifier that adds noise to the minimiser of its loss.

    The penalty keeps every record from moving the minimiser far, and Gaussian noise covers that
    distance (Chaudhuri, Monteleoni & Sarwate 2011). `DescentOutputPerturbation` stops on the way.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes
        As in `DPLogisticRegression`.
    loss : {"logistic", "smoothed_hinge"}, default="logistic"
        The cross entropy of the softmax, or the hinge loss of one-vs-rest, for several classes.
    half_width, max_row_norm, alpha, fit_intercept, class_weight
        As in `ObjectivePerturbation`.
    accounting : {"tight", "published"}, default="tight"
        Exact Gaussian mechanism, or at least the noise of Dwork & Roth (2014), Theorem A.1.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    The noise is inversely proportional to ``alpha``; ``"auto"`` keeps the noise on the score of any
    row to a standard deviation of a third.

    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves, with the limits of
    `ObjectivePerturbation`. One Gaussian release has sensitivity ``(L + 2 tau) / lambda``, or ``(2
    L + 2 tau) / lambda`` under ``"replace_one"``. Lambda is the penalty of the sum, and L bounds a
    record's gradient (largest row and class weight included). The minimiser is known up to a
    gradient norm of tau, rounding errors included.

    Examples
    --------
    >>> from dpglm.baselines import OutputPerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = OutputPerturbation(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    _constants: ClassVar[dict[str, Any]] = {"accounting": "published"}
    _multinomial: ClassVar[bool] = True

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> PerturbationPlan:
        problem = self._problem(budget, metadata)
        mu = self._mu(budget)
        noise_std = budget.sensitivity(problem.joint_lipschitz) / mu
        penalty = metadata.alpha * metadata.n_samples
        if penalty == 0:
            penalty = max(noise_std * problem.max_row_norm / _SCORE_STD, problem.least_penalty)
        tolerance = problem.attainable_tolerance(penalty, noise_std)
        output = GaussianSum(
            minimizer_sensitivity(problem.joint_lipschitz, penalty, budget.neighboring_relation),
            noise_multiplier_of(mu),
            slack=2 * tolerance / penalty * (1 + 1e-9),
        )
        return problem.plan(penalty, [minimizer_event(output)], tolerance=tolerance, output=output)


def descent_sensitivity(
    clip: float, step: float, n_steps: int, alpha: float, n_samples: int, neighboring_relation: str
) -> float:
    """Return the L2 sensitivity of the end of gradient steps on clipped gradients and a penalty.

    It is ``step T C / n``, or with a penalty ``C (1 - (1 - step alpha)^T) / (alpha n)``, and twice
    that under ``"replace_one"``. T steps start at zero and descend the mean of gradients clipped to
    norm C, plus that of the penalty.

    Notes
    -----
    Each loss is convex, with a gradient of Lipschitz constant M. A gradient clipped to C is that of
    another such loss where it is a row times a number that grows with the score. Then ``w - step
    (grad(w) + alpha w)`` is a contraction by ``1 - step alpha``, for ``step <= 2 / (M + 2 alpha)``.
    Here ``grad`` is the mean, of Lipschitz constant at most M if at most n records are in it. A
    record moves the step from the same point by ``step C / n`` at most. The distances of two
    runs add up to the sum above (Zhang, Zheng, Mou & Wang 2017, without clipping).
    """
    factor = NEIGHBORING_RELATIONS[neighboring_relation].sensitivity_factor
    effective = float(n_steps)
    if alpha > 0:
        effective = -math.expm1(n_steps * math.log1p(-step * alpha)) / (step * alpha)
    return factor * step * effective * clip / n_samples


@dataclass(kw_only=True, eq=False, repr=False)
class DescentOutputPerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Differentially private linear classifier that adds noise to the end of a gradient descent.

    A fixed number of steps over all records, without noise. A record moves their end by little,
    because they are few and short. Gaussian noise covers that distance (Zhang, Zheng, Mou & Wang
    2017, "Efficient private ERM for smooth objectives").

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes
        As in `DPLogisticRegression`.
    loss : {"logistic", "smoothed_hinge"}, default="logistic"
        The cross entropy of the softmax, or the hinge loss of one-vs-rest, for several classes.
        The plain hinge is not smooth, and has no such bound.
    half_width, max_row_norm, fit_intercept, class_weight
        As in `ObjectivePerturbation`.
    clip : float, default=None
        Bound on the L2 norm of each record's gradient. ``None`` is the largest possible norm, which
        never clips. For more than two classes no smaller value is accepted, because the clipped
        gradient is then that of no convex loss.
    step : float or "auto", default="auto"
        Step size on the mean gradient, at most ``2 / (M + 2 alpha)``, with M the largest curvature
        of a record's loss along its row. ``"auto"`` is half of that.
    max_iter : int or "auto", default="auto"
        Number of steps. ``"auto"`` is as many, up to 1000, as keep the noise on the score of any
        row to a standard deviation of a third.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * (||coef||^2 + intercept^2)`` on the mean loss; the intercept is
        penalised like the rest.
    accounting : {"tight", "published"}, default="tight"
        As in `OutputPerturbation`.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves. It makes one
    Gaussian release. Its sensitivity is what `dpglm.baselines.perturbation.descent_sensitivity`
    proves, and what rounding may add to it. Under ``"add_or_remove_one"`` steps are short enough
    for 16 times ``n_samples_estimate`` records. No iterate but the last is released. The public
    quantities are those of `DPLogisticRegression`.

    Examples
    --------
    >>> from dpglm.baselines import DescentOutputPerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DescentOutputPerturbation(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    alpha: float = 0.0
    clip: float | None = None
    step: float | str = "auto"
    max_iter: int | str = "auto"

    _constants: ClassVar[dict[str, Any]] = {
        "accounting": "published", "alpha": 1e-4, "max_iter": 50,
    }  # fmt: skip
    _multinomial: ClassVar[bool] = True
    _penalty = PrivateLinearClassifier._penalty

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> DescentOutputPlan:
        problem = self._problem(budget, metadata)
        alpha, n_samples = metadata.alpha, metadata.n_samples
        clip, longest = math.inf, problem.joint_lipschitz
        if self.clip is not None:
            clip = check_clip("clip", self.clip)
            if metadata.n_outputs > 1 and clip < longest:
                raise ValueError(
                    f"clip={clip:g} is below {longest:.6g}, the largest gradient norm. Leave "
                    f"clip=None: with {metadata.n_outputs} classes a clipped gradient is that of "
                    "no convex loss, and the steps need not keep two runs together."
                )
            clip = clip if clip < longest else math.inf
        # How many records there may be for each that sums are divided by.
        excess = budget.most_samples(n_samples) / n_samples
        steepest = 2 / (excess * problem.curvature + 2 * alpha)
        step = steepest / 2 if is_auto(self.step) else self.step
        step = check_number("step", step, above=0, at_most=1e50)
        if step > steepest:
            raise ValueError(
                f"step={step:g} is above 2 / (M + 2 alpha) = {steepest:.6g}: a record could then "
                "move the coefficients by more than the noise covers. Lower step or max_row_norm."
            )
        relation, multiplier = budget.neighboring_relation, noise_multiplier_of(self._mu(budget))
        bound = min(clip, longest)
        if is_auto(self.max_iter):
            one = problem.max_row_norm * multiplier * budget.sensitivity(step * bound / n_samples)
            n_steps = max(1, int(min(_MOST_STEPS, _SCORE_STD / one if one else _MOST_STEPS)))
        else:
            n_steps = check_whole("max_iter", self.max_iter)
        slack = self._rounding(problem, step, n_steps, excess * bound)
        sensitivity = descent_sensitivity(bound, step, n_steps, alpha, n_samples, relation)
        output = GaussianSum(sensitivity, multiplier, slack)
        refuse_slack(output, "Lower max_iter, or raise clip.")
        return DescentOutputPlan(
            metadata=replace(metadata, max_row_norm=problem.max_row_norm),
            ledger=ledger_of(budget, [minimizer_event(output)]),
            budget=budget,
            step=step,
            n_steps=n_steps,
            clip=clip,
            output=output,
        )

    def _rounding(self, problem: Problem, step: float, n_steps: int, mean: float) -> float:
        """Bound what rounding moves two ends apart by, for mean gradients of this norm at most.

        A step adds an error, and the steps after it keep distances. The error of a gradient is
        doubled for the rounding of its clipping.
        """
        n_samples, size = problem.metadata.n_samples, problem.metadata.n_released
        longest = n_steps * step * mean
        constants = problem.joint_lipschitz, problem.curvature, longest
        most = problem.budget.most_samples(n_samples)
        gradient = 2 * rounding_error(most, size, *constants) / n_samples
        one = step * gradient + 8 * UNIT_ROUNDOFF * (longest + step * mean)
        return 2 * n_steps * one

    def _released(self, vault: MinimizerVault, plan: DescentOutputPlan) -> FitTrace:
        trace = FitTrace(step=plan.step, n_steps=plan.n_steps)
        trace.coef = vault.last_iterate(plan)
        return trace
