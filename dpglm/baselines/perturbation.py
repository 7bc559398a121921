"""What the perturbation baselines share, and the one that perturbs the end of a descent."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpglm.baselines.records import (
    UNIT_ROUNDOFF,
    PenalizedLoss,
    Published,
    joint_lipschitz,
    rounding_error,
    shortened,
)
from dpglm.checks import check_number, check_whole, is_auto
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.losses import Loss, NamedLossMixin
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.privacy.vault import GaussianSum, Vault
from dpglm.schedules import PublicMetadata

# The norm of a row of nine ones: an intercept and eight features of at most 1.
_DEFAULT_MAX_ROW_NORM = 3.0
# Smaller row norms underflow when squared.
_MIN_ROW_NORM = 1e-100
_MOST_STEPS = 1000
# Largest standard deviation that the noise may give the score of a row with the largest norm.
_SCORE_STD = 1 / 3


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
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    accounting: str = "tight"

    _losses: ClassVar[tuple[str, ...]] = ("logistic", "smoothed_hinge")
    _reads_blocks: ClassVar[bool] = False
    _shortens_rows: ClassVar[bool] = True

    def _max_row_norm(self) -> float:
        max_row_norm = _DEFAULT_MAX_ROW_NORM if self.max_row_norm is None else self.max_row_norm
        least = 1.0 if self.fit_intercept else _MIN_ROW_NORM
        return check_number("max_row_norm", max_row_norm, above=least, at_most=1e50)

    def _penalty(self) -> float:
        penalty, weights = super()._penalty(), self.class_weight
        if penalty > 0 and isinstance(weights, str) and weights == "balanced":
            raise ValueError(
                f"alpha={self.alpha!r} with class_weight='balanced': the noise would follow from "
                "the counts of labels. Use alpha='auto' (or 0 for a descent), or a dict of weights."
            )
        return penalty

    def _holder(self, X: Any, target: np.ndarray, loss: Loss, **options: Any) -> PenalizedLoss:
        return PenalizedLoss(X, target, loss, max_row_norm=self._max_row_norm(), **options)

    def _train(self, vault: Vault, plan: Plan, on_step: OnStep) -> FitTrace:
        trace = FitTrace()
        trace.coef = vault.release_coef(plan)
        trace.feature_bound = math.sqrt(plan.metadata.max_row_norm**2 - bool(self.fit_intercept))
        trace.record(*vault.log)
        if on_step is not None:
            on_step(0, trace.coef)
        return trace

    def _as_fitted(self, X: Any) -> Any:
        return shortened(X, self.trace_.feature_bound)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DescentOutputPlan(Plan):
    """Gradient steps of a fit, whose end is released, and the noise of that."""

    step: float
    n_steps: int
    output: GaussianSum
    n_iter: int = 1

    @property
    def _releases(self) -> str:
        steps = f"{self.n_steps} gradient steps over {self.metadata.n_samples:,} records"
        return f"the end of {steps}"


class DescentVault(Vault):
    """A vault that releases the end of a fixed number of gradient steps."""

    def release_coef(self, plan: DescentOutputPlan) -> np.ndarray:
        """Release the end of the planned gradient steps, which `descent_sensitivity` bounds."""
        known, steps = plan.metadata, {"step": plan.step, "n_iter": plan.n_steps}
        exact = partial(self._sums.last_iterate, known.n_samples, alpha=known.alpha, **steps)
        return self._release_sum(plan.output, exact, math.prod(self._sums.coef_shape))


def descent_sensitivity(
    lipschitz: float,
    step: float,
    n_steps: int,
    alpha: float,
    n_samples: int,
    neighboring_relation: str,
) -> float:
    """Return the L2 sensitivity of the end of gradient steps on a mean of losses and a penalty.

    It is ``step T L / n``, or with a penalty ``L (1 - (1 - step alpha)^T) / (alpha n)``, and twice
    that under ``"replace_one"``. T steps start at zero and descend the mean of losses with
    gradients of norm L at most, plus that of the penalty.

    Notes
    -----
    Each loss is convex, with a gradient of Lipschitz constant M. Then ``w - step (grad(w) + alpha
    w)`` is a contraction by ``1 - step alpha``, for ``step <= 2 / (M + 2 alpha)``. Here ``grad`` is
    the mean, of Lipschitz constant at most M if at most n records are in it. A record moves the
    step from the same point by ``step L / n`` at most. The distances of two runs add up to the sum
    above (Zhang, Zheng, Mou & Wang 2017).
    """
    factor = NEIGHBORING_RELATIONS[neighboring_relation].sensitivity_factor
    effective = float(n_steps)
    if alpha > 0:
        effective = -math.expm1(n_steps * math.log1p(-step * alpha)) / (step * alpha)
    return factor * step * effective * lipschitz / n_samples


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
    max_iter : int or "auto", default="auto"
        Number of steps. ``"auto"`` is as many, up to 1000, as keep the noise on the score of any
        row to a standard deviation of a third.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * (||coef||^2 + intercept^2)`` on the mean loss; the intercept is
        penalised like the rest.
    accounting : {"tight", "published"}, default="tight"
        Exact Gaussian mechanism, or at least the noise of Dwork & Roth (2014), Theorem A.1.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    The step size on the mean gradient is ``1 / (M + 2 alpha)``, with M the largest curvature of a
    record's loss along its row.

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
    max_iter: int | str = "auto"

    _constants: ClassVar[dict[str, Any]] = {
        "accounting": "published", "alpha": 1e-4, "max_iter": 50,
    }  # fmt: skip
    _vault_type: ClassVar[type[Vault]] = DescentVault

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> DescentOutputPlan:
        alpha, n_samples, row_norm = metadata.alpha, metadata.n_samples, self._max_row_norm()
        loss = self._loss(max(2, metadata.n_outputs))
        longest = joint_lipschitz(loss, metadata.n_outputs) * row_norm
        curvature = loss.curvature * row_norm**2
        # How many records there may be for each that sums are divided by.
        most = budget.most_samples(n_samples)
        excess = most / n_samples
        # Half of the longest for which `descent_sensitivity` holds.
        step, mu = 1 / (excess * curvature + 2 * alpha), budget.mu
        if self._is_published(budget):
            # The noise of Dwork & Roth's Theorem A.1.
            mu = min(mu, budget.epsilon / math.sqrt(2 * math.log(1.25 / budget.delta)))
        multiplier = noise_multiplier_of(mu)
        if is_auto(self.max_iter):
            one = row_norm * multiplier * budget.sensitivity(step * longest / n_samples)
            n_steps = max(1, int(min(_MOST_STEPS, _SCORE_STD / one if one else _MOST_STEPS)))
        else:
            n_steps = check_whole("max_iter", self.max_iter)
        relation = budget.neighboring_relation
        sensitivity = descent_sensitivity(longest, step, n_steps, alpha, n_samples, relation)
        # Two ends are apart by what rounding does to each: a step adds an error, and the steps
        # after it keep distances.
        furthest = n_steps * step * excess * longest
        of_sum = rounding_error(most, metadata.n_released, longest, curvature, furthest)
        of_step = 8 * UNIT_ROUNDOFF * (furthest + step * excess * longest)
        slack = 2 * n_steps * (step * 2 * of_sum / n_samples + of_step)
        output = GaussianSum(sensitivity, multiplier, slack)
        output.noise_std(metadata.n_released)  # refuses here, before the data are touched
        return DescentOutputPlan(
            metadata=replace(metadata, max_row_norm=row_norm),
            ledger=ledger_of(budget, [replace(output.event, purpose="minimiser, with noise")]),
            budget=budget,
            step=step,
            n_steps=n_steps,
            output=output,
        )
