"""Objective perturbation, and the proof of what it costs.

Conventions
-----------
The coefficients w are the exact minimiser of ``sum_i l_i(w) + (lambda/2) ||w||^2 + b'w`` with
b ~ N(0, sigma^2 I). The penalty is on every coordinate. Each l_i is a convex function of ``x_i'w``
whose slope keeps its sign, as those of logistic and hinge losses do. L bounds the norm of
a record's gradient, and beta its largest second derivative, ``curvature ||x||^2``.

Guarantee: ``P(A) <= Phi(Phi^-1(e^offset Q(A)) + mu)`` for every event A and the distributions P, Q
of two neighbours, either way round. Here ``mu`` is the sensitivity (L, or 2 L under replace-one)
over sigma. The change of variables from b to w adds at most ``offset`` to the privacy loss. So
N(mu, 1) and ``e^-offset N(0, 1)``, with the rest of its mass where the first has none, dominate
(P, Q). Such pairs compose by products: the squares of mu add up, and the offsets do (Zhu, Dong &
Wang 2022, "Optimal accounting of differential privacy via characteristic function").

Notes
-----
The map from w to ``b(w) = -sum_i grad l_i(w) - lambda w`` is one to one, so w has the density
``phi(b(w)) det H(w)``, H being the Hessian.

*One record more.* P has the record x and Q has not. Its gradient is ``t sigma u`` with u fixed, of
norm 1, and ``0 <= t(w) <= s = L/sigma``. Under P the loss is ``t Z + t^2/2 + log det(H_P/H_Q)``
with ``Z = u'b/sigma`` standard normal and ``0 <= log det = log(1 + l'' x'H_Q^-1 x) <= xi =
log(1 + beta/lambda)``. It is convex in t, hence at most ``max(0, s Z + s^2/2) + xi``. The loss of Q
against P, under Q, is at most ``max(0, s Z + s^2/2)``. With d the profile of N(s, 1) against
N(0, 1): ``delta_PQ(e) <= d(e - xi)`` for e >= xi, and ``delta_QP(e) <= d(e)`` for e >= 0. So
``delta_PQ(-e) = 1 - e^-e (1 - delta_QP(e)) <= d(-e)``, and in between ``delta_PQ(e) <= d(0)``: the
first bound holds for all e. It holds for delta_QP as well, because ``1 - d(e) = e^(e/2) g(e)`` with
g even and falling in abs(e). At -e < 0 the claim is ``g(e + xi) <= g(e - xi)`` if e >= xi, and
``e^((e - xi)/2) g(e + xi) <= g(0)`` otherwise. Minimising ``e^e Q(A) + d(e - xi)`` over e gives the
guarantee. For slopes of either sign, abs(Z) in place of Z doubles the delta (Redberg, Koskela &
Wang 2023, "Improving the privacy and practicality of objective perturbation for differentially
private linear learners").

*One record for another.* Let the weight theta of x grow from 0 to 1 while that of x' falls from 1.
With p = ``P_theta(A)`` and ``z = Phi^-1(p)``, ``dp/dtheta <= 2 s phi(z) + j min(p, 1 - p)`` where
``j = beta / (lambda + min(theta, 1 - theta) beta)``. The ratio ``m = Phi/phi`` is log-convex, so
that ``Phi(Phi^-1(e^xi(theta) Q(A)) + 2 s theta)`` grows as fast if ``xi' = j m(0) / m(-2 s)``, and
``xi(1) = 2 log(1 + beta / (2 lambda)) / erfcx(sqrt(2) s)``.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.special import erfcx, log_expit

from dpglm.baselines.perturbation import PerturbationMixin, noise_multiplier_of
from dpglm.baselines.records import joint_lipschitz, rounding_error
from dpglm.checks import is_auto
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.losses import Loss
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import ObjectivePerturbationEvent
from dpglm.privacy.vault import GaussianSum, Release, Vault
from dpglm.schedules import PublicMetadata

# Part of mu^2 that is spent on releasing an approximate minimiser instead of the exact one.
_OUTPUT_SHARE = 0.01
# A larger one would make the penalty smaller than the least automatic one.
_LARGEST_OFFSET = 20.0
# Relative to the noise on the gradient, and to the largest gradient; rounding errors come on top.
_TOLERANCE = 1e-6
_TOLERANCE_OF_SUM = 1e-11
# Penalty of the mean loss over its curvature, below which no budget makes an automatic one go.
_LEAST_ALPHA = 1e-6
# The same for a penalty that is asked for. Below it, whether the minimiser is found may depend on a
# single record. Below about 1e-9 a few of 10,000 random tables failed, and none of 80,000 here.
_LEAST_FINDABLE_ALPHA = 1e-8


def jacobian_offset(ratio: float, mu: float, neighboring_relation: str) -> float:
    """Return the offset of one objective perturbation, for beta over lambda and mu, or more.

    It is ``log(1 + ratio)``, or ``2 log(1 + ratio/2) / erfcx(mu / sqrt 2)`` under replace-one. Any
    finite number will do without noise.
    """
    if neighboring_relation != "replace_one" or mu == math.inf:
        return math.log1p(ratio)
    return 2 * math.log1p(ratio / 2) / float(erfcx(mu / math.sqrt(2)))


def curvature_ratio(offset: float, mu: float, neighboring_relation: str) -> float:
    """Return the largest ``beta / lambda`` with this offset, the inverse of `jacobian_offset`."""
    if neighboring_relation != "replace_one":
        return math.expm1(offset)
    return 2 * math.expm1(offset * float(erfcx(mu / math.sqrt(2))) / 2)


def attainable_tolerance(
    loss: Loss, metadata: PublicMetadata, n_samples: int, penalty: float, noise_std: float
) -> float:
    """Return a gradient norm that a solver can reach, and prove to have reached.

    The penalty is that of the sum. The noise is that on the gradient: the error of the minimiser is
    negligible next to it. Rounding errors grow with the norm of the minimiser w of J. With the tilt
    b, ``(penalty/2) ||w||^2 <= J(0) - <b, w>`` and ``penalty ||w|| <= ||b|| + n L``.
    """
    size, row_norm = metadata.n_released, metadata.max_row_norm
    lipschitz = joint_lipschitz(loss, metadata.n_outputs) * row_norm
    loss_at_zero = metadata.n_outputs * float(loss.value(np.zeros(1), np.ones(1))[0])
    tilt = noise_std * (math.sqrt(size) + 10)
    by_value = math.sqrt(2 * n_samples * loss_at_zero / penalty) + 2 * tilt / penalty
    longest = min(by_value, (tilt + n_samples * lipschitz) / penalty)
    rounding = rounding_error(n_samples, size, lipschitz, loss.curvature * row_norm**2, longest)
    return _TOLERANCE * noise_std + _TOLERANCE_OF_SUM * n_samples * lipschitz + 2 * rounding


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PerturbationPlan(Plan):
    """Objective and release of a fit, its noise and its cost."""

    # Penalty of the sum of the losses: ``metadata.alpha``, that of their mean, times the records.
    penalty: float
    # The mechanism that draws the random linear term of the objective, and what the change of
    # variables costs for each output.
    tilt: GaussianSum
    offset: float
    # Largest gradient of the sum at the coefficients that stand for the minimiser,
    tolerance: float
    # and the mechanism that releases them.
    output: GaussianSum
    n_iter: int = 1

    @property
    def _releases(self) -> str:
        return f"one minimiser over {self.metadata.n_samples:,} records"


class MinimizerVault(Vault):
    """A vault that releases the minimiser of a randomly tilted objective."""

    def release_coef(self, plan: PerturbationPlan) -> np.ndarray:
        """Release coefficients within ``tolerance / penalty`` of the minimiser, with noise.

        The noise is for the error of the solver. The random linear term protects the minimiser. It
        is charged once for each output, and stays here: whoever knew it could read the gradient of
        the losses off the minimiser.
        """
        shape = self._sums.coef_shape
        event = ObjectivePerturbationEvent(plan.tilt.noise_multiplier, plan.offset)
        for _ in range(shape[1]):
            self._allowance.charge(event)
            self._n_released += 1
            self.log.append(Release(event, plan.tilt.noise_std(math.prod(shape))))
        with self._closed_by_errors():
            tilt = plan.tilt.release(np.zeros(shape), self._entropy)
        exact = partial(
            self._sums.minimizer, plan.penalty, plan.tolerance, plan.max_n_samples, tilt
        )
        # A record moves a tilted minimiser by any distance: the tilt keeps its distribution close.
        return self._release_sum(plan.output, exact, math.prod(shape), moves=math.inf)


@dataclass(kw_only=True, eq=False, repr=False)
class ObjectivePerturbation(PerturbationMixin, PrivateLinearClassifier):
    """Differentially private linear classifier that minimises a randomly tilted loss.

    A random linear term is added to the penalised loss, and its minimiser is released (Chaudhuri,
    Monteleoni & Sarwate 2011; Kifer, Smith & Thakurta 2012). A little noise covers the distance of
    a computer's minimiser from the exact one (Iyengar et al. 2019).

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes
        As in `DPLogisticRegression`.
    loss : {"logistic", "smoothed_hinge"}, default="logistic"
        Summed one-vs-rest for more than two classes, with the budget split among them. The
        guarantee needs gradients of one fixed direction for each record, which the softmax lacks.
    half_width : float, default=0.5
        Half the width of the parabola that smooths the hinge.
    max_row_norm : float, default=None
        Bound on the L2 norm of a row, intercept included. The features of rows with larger norm are
        clipped, in the fit and in predictions. It must be public: `Schema.max_row_norm` or prior
        knowledge, never the largest norm of the data. ``None`` means 3.
    alpha : float or "auto", default="auto"
        L2 penalty ``alpha / 2 * (||coef||^2 + intercept^2)`` on the mean loss; above 0, and the
        intercept is penalised like the rest. The notes say what ``"auto"`` is.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in ``max_row_norm``.
    class_weight : dict, "balanced" or None, default=None
        As in `DPLogisticRegression`; only ``"balanced"`` needs a count of labels, and then
        ``alpha="auto"``.
    accounting : {"tight", "published"}, default="tight"
        Noise by the exact profile, or at least that of Kifer, Smith & Thakurta (2012), who also add
        ``2 beta / epsilon`` to the penalty of the sum.

    Attributes
    ----------
    n_iter_ : int
        Always 1, the number of releases: that of the steps of a solver may depend on the data.
    classes_, coef_, intercept_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    A small penalty costs part of epsilon. ``alpha="auto"`` chooses one that costs between a
    fourteenth and a quarter of it. This part grows with epsilon and with the number of records, and
    shrinks with the number of coefficients.

    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves. Lambda is the
    penalty of the sum, and b ~ N(0, sigma^2 I). L and beta bound a record's gradient and Hessian
    (largest row and class weight included). The exact minimiser costs as much as a Gaussian
    release with noise multiplier ``sigma / L`` (``sigma / (2 L)`` under ``"replace_one"``), at
    ``epsilon - log(1 + beta/lambda)``: `dpglm.baselines.objective_perturbation` has the proof.
    A computer's rounded noise and unfinished minimisation show in the last bits (after Mironov
    2012). So a minimiser is accepted only if its gradient, with all rounding errors, is at most a
    tolerance tau fixed in advance. Noise for a distance of ``2 tau / lambda`` is added and
    charged. A fit that does not get there raises and releases nothing.

    The guarantee covers neither the time a fit takes nor the error that the minimiser was not
    found: both depend on the data. The least penalty allowed is 1e-8 of a record's curvature. No
    data that were tried led to that error; that none do is not proved.

    Examples
    --------
    >>> from dpglm.baselines import ObjectivePerturbation
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = ObjectivePerturbation(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7  # exact: a PrivacyWarning says so
    True
    """

    # Rows of norm 1 and a column of ones.
    _constants: ClassVar[dict[str, Any]] = {
        "accounting": "published", "alpha": 1e-3, "max_row_norm": math.sqrt(2),
    }  # fmt: skip

    alpha: float | str = "auto"

    _vault_type: ClassVar[type[Vault]] = MinimizerVault

    def _loss(self, n_classes: int) -> Loss:
        return super()._loss(2)

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

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> PerturbationPlan:
        """Return the plan: the penalty, what it costs, and two mechanisms for the rest.

        Two approximate minimisers within ``tolerance / penalty`` of the same exact one differ by up
        to twice that. The tilt is drawn on a grid. An ideal Gaussian differs from it by half the
        spacing in each coordinate, which counts as an error of the gradient.
        """
        loss, row_norm, n_outputs = self._loss(2), self._max_row_norm(), metadata.n_outputs
        metadata, curvature = replace(metadata, max_row_norm=row_norm), loss.curvature * row_norm**2
        least_penalty = _LEAST_ALPHA * curvature * metadata.n_samples
        split = math.sqrt((1 - _OUTPUT_SHARE) / n_outputs)
        # The offset grows with mu under replace-one; without an offset mu is at its largest.
        largest_mu, relation = budget.mu * split, budget.neighboring_relation
        penalty = metadata.alpha * metadata.n_samples
        published = self._is_published(budget)
        if published:
            penalty = max(penalty + 2 * curvature / budget.epsilon, least_penalty)
        elif penalty == 0:
            ratio = _automatic_ratio(budget, metadata, largest_mu)
            penalty = max(curvature / ratio, least_penalty)
        offset = n_outputs * jacobian_offset(curvature / penalty, largest_mu, relation)
        if not offset < budget.epsilon:
            raise ValueError(
                f"alpha={self.alpha!r} is too small for epsilon={budget.epsilon:g}: changing the "
                f"variables costs {offset:.3g} of it. Raise alpha (or set it to 'auto') or epsilon."
            )
        least = _LEAST_FINDABLE_ALPHA * curvature
        if not penalty / metadata.n_samples >= least * (1 - 1e-12):
            raise ValueError(
                f"alpha={self.alpha!r} is too small for the curvature of a record, "
                f"{curvature:.3g}: that the minimiser is found could depend on the data. Raise "
                f"alpha to {least:.3g} or more, or set it to 'auto'."
            )
        # What the changes of variables leave.
        rest = replace(budget, epsilon=budget.epsilon - offset).mu
        mu = rest * split
        if published:
            log = math.log(2 / budget.delta)
            mu = min(mu, budget.epsilon / math.sqrt(8 * log + 4 * budget.epsilon))

        sensitivity, size = budget.sensitivity(loss.lipschitz * row_norm), metadata.n_released
        tilt = GaussianSum(sensitivity, noise_multiplier_of(mu))
        most, noise_std = budget.most_samples(metadata.n_samples), tilt.noise_std(size)
        tolerance = attainable_tolerance(loss, metadata, most, penalty, noise_std)
        grid = tilt.grid if tilt.noise_multiplier > 0 else 0.0
        error = (tolerance + grid * math.sqrt(size) / 2) * (1 + 1e-9)
        output_multiplier = noise_multiplier_of(rest * math.sqrt(_OUTPUT_SHARE))
        output = GaussianSum(2 * error / penalty, output_multiplier)
        offset = jacobian_offset(curvature / penalty, mu, relation)
        purpose = "minimiser of a tilted objective"
        tilted = ObjectivePerturbationEvent(tilt.noise_multiplier, offset, purpose=purpose)
        released = replace(output.event, purpose="minimiser, with noise")
        return PerturbationPlan(
            metadata=replace(metadata, alpha=penalty / metadata.n_samples),
            ledger=ledger_of(budget, [*[tilted] * n_outputs, released]),
            budget=budget,
            penalty=penalty,
            tilt=tilt,
            offset=offset,
            tolerance=tolerance,
            output=output,
        )

    def _logits(self, X: Any) -> np.ndarray:
        """Return log-probabilities of one-vs-rest, which are divided by their sum, or scores."""
        scores = super()._logits(X)
        return log_expit(scores) if scores.shape[1] > 2 else scores


def _automatic_ratio(budget: PrivacyBudget, metadata: PublicMetadata, mu: float) -> float:
    """Return ``beta / lambda`` that costs part of epsilon: more of it where the noise is small."""
    if budget.epsilon == math.inf:
        return math.inf
    share = 0.1 * math.sqrt(metadata.n_samples * budget.epsilon / metadata.n_released / 55)
    offset = min(min(max(share, 0.07), 0.25) * budget.epsilon, _LARGEST_OFFSET)
    return curvature_ratio(offset / metadata.n_outputs, mu, budget.neighboring_relation)
