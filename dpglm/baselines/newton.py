"""Newton steps on a noisy gradient and a noisy direction."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, softmax

from dpglm.baselines.records import (
    UNIT_ROUNDOFF,
    Records,
    largest_weight,
    refuse_slack,
    terms_of_a_sum,
)
from dpglm.checks import check_choice, check_number, check_whole, is_auto
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.kernels import one_blas_thread
from dpglm.losses import Loss, NamedLossMixin, Softmax
from dpglm.privacy.budget import LARGEST_NOISE_MULTIPLIER, PrivacyBudget, check_clip
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.vault import GaussianSum, Vault, plain
from dpglm.schedules import PublicMetadata

# Below this margin the bound on the curvature equals its limit 1/4 in floating point.
_SMALL_MARGIN = 1e-4
# A direction whose gradient happens to be zero still needs a noise that can be drawn.
_LEAST_SENSITIVITY = 1e-200
# Relative to the largest curvature of a record: without noise, enough to invert the mean.
_LEAST_RIDGE = 1e-6
# Something must be left for the gradients.
_LARGEST_SHARE = 1 - 1e-6


def direction_sensitivity(record: float, ridge: float, n_samples: int) -> float:
    """Return the L2 sensitivity of ``A^-1 g`` per unit of ``||g||``, for a g that is given.

    It is ``record / (ridge (n ridge + record))`` under all three relations, where ``A = sum_i v_i
    v_i' / n + ridge I``, ``record`` is the largest ``||v||^2`` of a record, and n is public.

    Let B be the inverse of A without one record. With that record the inverse is ``B - M``, where
    ``M = B v v' B / (n + v' B v)`` is positive semidefinite, by Sherman & Morrison. ``B <= I /
    ridge`` implies ``||B v||^2 <= q / ridge`` for ``q = v' B v <= ||v||^2 / ridge``. So
    ``||M|| <= (q / ridge) / (n + q)``, which grows in q, up to the value above. A v along which B
    is ``1 / ridge`` attains it. If a record replaces another, the inverses differ by ``M - M'``.
    The norm is at most the larger of the two, both being positive semidefinite: a factor of 1.
    """
    return record / (ridge * (n_samples * ridge + record))


class CurvatureSums(Records):
    """Holds rows, and answers with sums of the curvatures of clipped rows."""

    def __init__(
        self, X: Any, target: np.ndarray, *, max_row_norm: float, upper_bound: bool, **options: Any
    ) -> None:
        super().__init__(X, target, **options)
        self._X, self._max_row_norm, self._upper_bound = X, max_row_norm, upper_bound

    def curvature(self, coef: np.ndarray) -> np.ndarray:
        """Sum over rows of ``a_i c_i x~_i x~_i'`` with each x~ clipped to the row bound.

        Coefficients have shape (n_columns,) or (n_columns, K), the sum (n_columns, n_columns).
        """

        def of_block(block: slice) -> np.ndarray:
            rows = self._clipped(self._X[block])
            weight = self._weight[block] * self._curvature_of_scores(rows @ coef)
            return rows.T @ (weight[:, np.newaxis] * rows)

        with one_blas_thread():
            return self._sum((len(coef),) * 2, of_block)

    def _clipped(self, X: Any) -> np.ndarray:
        """Return rows within the row bound; one whose norm overflows becomes zero."""
        X = X.astype(np.float64, copy=False)
        # Elements of one column, stored one by one, may add up to infinity.
        rows = self._with_intercept(np.nan_to_num(X.toarray()) if sparse.issparse(X) else X)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.square(rows).sum(axis=1))
        scale = self._max_row_norm / np.maximum(norms, self._max_row_norm)
        return rows * scale[:, np.newaxis]

    def _curvature_of_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return a bound on the curvature of each row's loss, in all directions of the scores."""
        if self._n_outputs == 1:
            return _logistic_bound(scores) if self._upper_bound else expit(scores) * expit(-scores)
        if self._upper_bound:
            return np.full(len(scores), Softmax.curvature)
        probability = softmax(scores, axis=1)
        return 2 * (probability * (1 - probability)).max(axis=1)


def _logistic_bound(scores: np.ndarray) -> np.ndarray:
    """Return ``tanh(s / 2) / (2 s)``, at most 1/4.

    The parabola of that curvature that touches the logistic loss at s is nowhere below it
    (Jaakkola & Jordan 2000).
    """
    size = np.abs(scores)
    large = np.maximum(size, _SMALL_MARGIN)
    return np.where(size < _SMALL_MARGIN, 0.25, np.tanh(large / 2) / (2 * large))


class NewtonVault(Vault):
    """A vault that also releases what the curvature makes of a gradient."""

    def __init__(self, sums: tuple[Any, CurvatureSums], *rest: Any) -> None:
        gradients, self._curvatures = sums
        super().__init__(gradients, *rest)

    def direction(
        self, coef: np.ndarray, gradient: np.ndarray, ridge: np.ndarray, plan: "NewtonPlan"
    ) -> np.ndarray:
        """Release ``A^-1 g`` for a gradient g, itself a released value.

        A is the mean curvature at `coef` plus the diagonal `ridge`, at least that of the plan.
        """
        shape = self._sums.coef_shape
        coef, gradient = plain(coef, shape), plain(gradient, shape)
        ridge = plain(ridge, shape[:1])
        if not ridge.min() >= plan.ridge:
            raise ValueError("The ridge of a direction must be that of the plan, or more.")
        rounding = plan.rounding(float(np.linalg.norm(coef)))
        mechanism = plan.direction_mechanism(float(np.linalg.norm(gradient)), rounding)

        def exact() -> np.ndarray:
            curvature = self._curvatures.curvature(coef) / plan.metadata.n_samples
            return cho_solve(cho_factor(curvature + np.diag(ridge)), gradient)

        return self._release_sum(mechanism, exact, coef.size)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NewtonPlan(Plan):
    """Releases of a fit in each of ``n_iter`` steps, their noise and their cost."""

    n_iter: int
    # L2 bounds on each record's gradient, and on each row in the curvature, intercept included.
    clip: float
    max_row_norm: float
    largest_weight: float
    # Added to the mean curvature.
    ridge: float
    # Standard deviations of the noise over the sensitivity.
    gradient_multiplier: float
    direction_multiplier: float

    def __post_init__(self) -> None:
        try:
            mechanism = self.direction_mechanism(1.0, self.rounding(coef_norm=0.0))
        except FloatingPointError as error:
            # An error of a parameter: no data have been touched yet.
            raise ValueError(str(error)) from error
        refuse_slack(mechanism, "Raise ridge.")

    def direction_mechanism(self, gradient_norm: float, rounding: float = 0.0) -> GaussianSum:
        """Return the mechanism of a direction ``A^-1 g``, for the norm of g, a released value.

        ``rounding`` bounds the spectral norm of the error of A, and must be below half the ridge.
        """
        record = self.largest_weight * self.metadata.curvature * self.max_row_norm**2
        per_unit = direction_sensitivity(record, self.ridge, self.metadata.n_samples)
        slack = 0.0
        if self.direction_multiplier > 0:
            if not rounding < self.ridge / 2:
                raise FloatingPointError(
                    f"ridge={self.ridge:g} is too small for rounding errors of {rounding:.3g}. "
                    "Raise ridge."
                )
            # An error E moves A^-1 g by ||A^-1|| ||E|| ||(A + E)^-1|| ||g|| at most, on each side.
            slack = 2 * rounding * gradient_norm / (self.ridge * (self.ridge - rounding))
        sensitivity = max(gradient_norm * per_unit, _LEAST_SENSITIVITY)
        return GaussianSum(sensitivity, self.direction_multiplier, slack)

    def rounding(self, coef_norm: float) -> float:
        """Bound the error of the mean curvature plus the ridge, in the spectral norm.

        Let u = 2^-53, with B rows in a block, R the row bound and v the largest curvature of a
        record. The mean of n terms of norm v is within ``(B + n / B) u v`` of the exact one. A
        clipped row is within ``(d + 14) u`` of its norm. The curvature of a score, whose slope is
        below 1/2, is within ``(d + 4) u R ||w||``. A solution by Cholesky factors is exact for a
        matrix within ``d (3 d + 4) u`` of its norm (Higham 2002, Theorem 10.4).
        """
        d, n_samples, n_public = (
            self.metadata.n_features,
            self.max_n_samples,
            self.metadata.n_samples,
        )
        record = self.largest_weight * self.max_row_norm**2
        length = self.max_row_norm * coef_norm
        terms = terms_of_a_sum(n_samples) + 2 * d + 40 + (d + 4) * length
        mean = terms * record * n_samples / n_public
        diagonal = self.ridge + self.metadata.alpha
        solution = d * (3 * d + 4) * (record * n_samples / n_public + diagonal)
        return UNIT_ROUNDOFF * (mean + solution)

    def __str__(self) -> str:
        steps = f"{self.n_iter} steps over {self.metadata.n_samples} records"
        return f"{steps}, one gradient and one direction each: {self.ledger}"


@dataclass(kw_only=True, eq=False, repr=False)
class DoubleNoiseNewton(NamedLossMixin, PrivateLinearClassifier):
    """Differentially private logistic regression by Newton's method with double noise.

    Each step releases a noisy gradient, and then the direction that the curvature makes of it. The
    noise of the direction is proportional to the norm of that gradient. The method is that of
    Ganesh, Haghifam, Steinke & Thakurta (2023), "Faster differentially private convex optimization
    via second-order methods".

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes, alpha
        As in `DPLogisticRegression`.
    curvature : {"upper_bound", "hessian"}, default="upper_bound"
        For each record's loss, the curvature of the parabola above it, with which Newton's method
        descends from anywhere, or the second derivative. For more than two classes either is
        bounded by a multiple of the identity, so that all classes share one matrix.
    ridge : float or "auto", default="auto"
        Added to the mean curvature before it is inverted. ``"auto"`` is v times the larger of
        ``2 sqrt(d) r`` and ``sqrt(r)``, where ``r = 1 / (n mu)`` with mu that of one direction.
        Here v is the largest curvature of a record and d the number of coefficients. The noise is
        then shorter than the direction can be, and its own gradient than the one before.
    clip : float or "auto", default="auto"
        Bound on the L2 norm of each record's gradient, intercept included; ``"auto"`` is 0.6 of
        ``max_row_norm``.
    max_row_norm : float, default=3.0
        Bound on the L2 norm of each row in the curvature, intercept included, to which rows are
        clipped.
    direction_fraction : float, default=0.4
        Part of the budget mu^2 that is spent on directions, above 0 and below 1.
    step : float, default=1.0
        Step size, along the direction.
    max_iter : int, default=20
        Number of steps.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in the clipping norm and in the row bound.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped; the largest
        weight raises the noise on the directions.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy, by two Gaussian releases a step, whose
    multipliers z are fixed in advance. They are mu-GDP with ``mu^2`` the sum of all ``1 / z^2``
    (Dong, Roth & Su 2022, Theorem 4 and Corollary 2). The sum of clipped gradients has an L2
    sensitivity of ``clip`` (twice that under ``"replace_one"``). Given the noisy mean gradient g,
    the direction ``A^-1 g`` has one of ``||g|| v / (ridge (n ridge + v))``. Here v is the largest
    curvature times ``max_row_norm^2``: see `dpglm.baselines.newton.direction_sensitivity`.

    Examples
    --------
    >>> from dpglm.baselines import DoubleNoiseNewton
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DoubleNoiseNewton(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.65
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    neighboring_relation: str = "zero_out"
    n_samples_estimate: int | None = None
    alpha: float = 0.0
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    curvature: str = "upper_bound"
    ridge: float | str = "auto"
    clip: float | str = "auto"
    max_row_norm: float = 3.0
    direction_fraction: float = 0.4
    step: float = 1.0
    max_iter: int = 20

    _vault_type: ClassVar[type[Vault]] = NewtonVault
    _reads_blocks: ClassVar[bool] = False

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> NewtonPlan:
        n_iter = check_whole("max_iter", self.max_iter)
        check_choice("curvature", self.curvature, ("upper_bound", "hessian"))
        max_row_norm = check_number("max_row_norm", self.max_row_norm, above=1e-50, at_most=1e50)
        check_number("step", self.step, above=0, at_most=1e50)
        share = check_number(
            "direction_fraction", self.direction_fraction, above=0, at_most=_LARGEST_SHARE
        )
        clip = 0.6 * max_row_norm if is_auto(self.clip) else self.clip
        clip = check_clip("clip", clip)
        gradient_multiplier = math.sqrt(n_iter / (1 - share)) / budget.mu
        direction_multiplier = math.sqrt(n_iter / share) / budget.mu
        if max(gradient_multiplier, direction_multiplier) > LARGEST_NOISE_MULTIPLIER:
            raise ValueError(
                f"epsilon={budget.epsilon:g} with delta={budget.delta:g} is too small for "
                f"{n_iter} steps: their noise_multiplier would exceed "
                f"{LARGEST_NOISE_MULTIPLIER:g}. Raise epsilon or delta, or lower max_iter."
            )
        if is_auto(self.ridge):
            noise = direction_multiplier / metadata.n_samples
            relative = max(2 * noise * math.sqrt(metadata.n_released), math.sqrt(noise))
            ridge = metadata.curvature * max_row_norm**2 * max(relative, _LEAST_RIDGE)
        else:
            ridge = check_number("ridge", self.ridge, above=1e-50, at_most=1e50)
        events = [
            GaussianEvent(gradient_multiplier, purpose="gradients"),
            GaussianEvent(direction_multiplier, purpose="Newton directions"),
        ]
        return NewtonPlan(
            metadata=metadata,
            budget=budget,
            n_iter=n_iter,
            clip=clip,
            max_row_norm=max_row_norm,
            largest_weight=largest_weight(self.class_weight, max(2, metadata.n_outputs)),
            ridge=ridge,
            gradient_multiplier=gradient_multiplier,
            direction_multiplier=direction_multiplier,
            ledger=ledger_of(budget, events * n_iter),
        )

    def _holder(
        self, X: Any, target: np.ndarray, loss: Loss, **options: Any
    ) -> tuple[Any, CurvatureSums]:
        upper_bound = self.curvature == "upper_bound"
        bounds = {"max_row_norm": float(self.max_row_norm), "upper_bound": upper_bound}
        gradients = super()._holder(X, target, loss, **options)
        return gradients, CurvatureSums(X, target, **bounds, **options)

    def _train(self, vault: NewtonVault, plan: NewtonPlan, on_step: OnStep) -> FitTrace:
        space, alpha = self._space(plan.metadata), plan.metadata.alpha
        coef = np.zeros(space.shape)
        penalised = space.penalty_gradient(np.ones(space.shape)).reshape(len(coef), -1)[:, 0]
        trace = FitTrace(
            "gradient_norm", "direction_norm", "gradient_noise_std", "direction_noise_std"
        )
        for t in range(plan.n_iter):
            # 1) Release the sum of clipped gradients.
            noisy_sum = vault.gradient_sum(coef, plan.clip, plan.gradient_multiplier)
            # 2) Divide by the public count and add the gradient of the penalty.
            gradient = space.loss.project(noisy_sum) / plan.metadata.n_samples
            gradient = gradient + alpha * space.penalty_gradient(coef)
            # 3) Release the direction that the curvature makes of this gradient.
            direction = vault.direction(coef, gradient, plan.ridge + alpha * penalised, plan)
            # 4) Step.
            coef = coef - self.step * direction

            releases = vault.log[-2:]
            trace.record(
                *releases,
                gradient_norm=float(np.linalg.norm(gradient)),
                direction_norm=float(np.linalg.norm(direction)),
                gradient_noise_std=releases[0].noise_scale,
                direction_noise_std=releases[1].noise_scale,
            )
            if on_step is not None:
                on_step(t, coef)
        trace.coef = coef
        return trace
