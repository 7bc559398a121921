"""Newton's method with noise on the gradient and noise on the direction."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpglm.baselines.newton import CurvatureSums, NewtonPlan, NewtonTrace, newton_descent
from dpglm.baselines.parameters import check_number, check_whole, is_auto
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.estimators.labels import n_outputs
from dpglm.estimators.probabilities import LogisticOrHingeMixin
from dpglm.facts import PublicFacts
from dpglm.limits import CLIP_RANGE, LARGEST_NOISE_MULTIPLIER
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.noise import EntropySource

__all__ = ["DoubleNoiseNewton"]

# Relative to the largest curvature of a record: without noise, enough to invert the mean.
_LEAST_RIDGE = 1e-6
# Something must be left for the gradients.
_LARGEST_SHARE = 1 - 1e-6


class DoubleNoiseNewton(LogisticOrHingeMixin, PrivateLinearClassifier):
    """Differentially private logistic regression by Newton's method with double noise.

    Each step releases a noisy gradient, and then the direction that the curvature makes of it,
    with noise in proportion to the length of that gradient (Ganesh, Haghifam, Steinke & Thakurta
    2023, "Faster differentially private convex optimization via second-order methods").

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` runs the same code without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    curvature : {"upper_bound", "hessian"}, default="upper_bound"
        Of each record's loss: that of the parabola above it, with which Newton's method descends
        from anywhere, or the second derivative. For more than two classes either is bounded by a
        multiple of the identity, so that all classes share one matrix.
    ridge : float or "auto", default="auto"
        Added to the mean curvature before it is inverted. ``"auto"`` is v times the larger of
        ``2 sqrt(d) r`` and ``sqrt(r)``, where ``r = 1 / (n mu)`` with mu that of one direction, v
        is the largest curvature of a record and d the number of coefficients: the noise is then
        shorter than the direction can be, and its own gradient than the one before.
    clip : float or "auto", default="auto"
        Bound on the L2 norm of each record's gradient, intercept included; ``"auto"`` is .6 of
        ``row_bound``.
    row_bound : float, default=3.0
        Bound on the L2 norm of each row in the curvature, intercept included, to which rows are
        clipped.
    direction_share : float, default=0.4
        Part of the budget mu^2 that is spent on directions, above 0 and below 1.
    step : float, default=1.0
        Step size, along the direction.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    max_iter : int, default=20
        Number of steps.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in the clip and in the row bound.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped; the largest
        weight raises the noise on the directions.
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
    trace_ : NewtonTrace
        Released values of every step.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy, by two Gaussian releases a step, whose
    multipliers are fixed before the data are touched. The sum of clipped gradients has an L2
    sensitivity of ``clip`` (twice that under ``"replace_one"``). Given the noisy mean gradient g,
    the direction ``A^-1 g`` has one of ``||g|| v / (ridge (n ridge + v))``, where v is the largest
    curvature times ``row_bound^2``: see `dpglm.baselines.newton.direction_sensitivity`, which holds
    for a ridge that is added, not for eigenvalues that are raised to it. Together they are mu-GDP
    with ``mu^2`` the sum of all ``1 / z^2`` (Dong, Roth & Su 2022, Theorem 4 and Corollary 2).

    Examples
    --------
    >>> from dpglm.baselines.double_noise_newton import DoubleNoiseNewton
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DoubleNoiseNewton(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.65
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        curvature: str = "upper_bound",
        ridge: Any = "auto",
        clip: Any = "auto",
        row_bound: float = 3.0,
        direction_share: float = 0.4,
        step: float = 1.0,
        alpha: float = 0.0,
        max_iter: int = 20,
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.curvature = curvature
        self.ridge = ridge
        self.clip = clip
        self.row_bound = row_bound
        self.direction_share = direction_share
        self.step = step
        self.alpha = alpha
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> NewtonPlan:
        n_iter = check_whole("max_iter", self.max_iter)
        if self.curvature not in ("upper_bound", "hessian"):
            raise ValueError(
                f"curvature={self.curvature!r} is unknown; choose 'upper_bound' or 'hessian'."
            )
        row_bound = check_number("row_bound", self.row_bound, 1e-50, 1e50)
        check_number("step", self.step, 0.0, 1e50)
        share = check_number("direction_share", self.direction_share, 0.0, _LARGEST_SHARE)
        clip = (
            0.6 * row_bound if is_auto(self.clip) else check_number("clip", self.clip, *CLIP_RANGE)
        )
        gradient_multiplier = math.sqrt(n_iter / (1 - share)) / budget.mu
        direction_multiplier = math.sqrt(n_iter / share) / budget.mu
        if max(gradient_multiplier, direction_multiplier) > LARGEST_NOISE_MULTIPLIER:
            raise ValueError(
                f"epsilon={budget.epsilon:g} with delta={budget.delta:g} is too small for "
                f"{n_iter} steps: their noise_multiplier would exceed "
                f"{LARGEST_NOISE_MULTIPLIER:g}. Raise epsilon or delta, or lower max_iter."
            )
        if is_auto(self.ridge):
            noise = direction_multiplier / facts.n_samples
            relative = max(2 * noise * math.sqrt(facts.n_released), math.sqrt(noise))
            ridge = facts.curvature * row_bound**2 * max(relative, _LEAST_RIDGE)
        else:
            ridge = check_number("ridge", self.ridge, 1e-50, 1e50)
        events = [GaussianEvent(gradient_multiplier), GaussianEvent(direction_multiplier)]
        return NewtonPlan(
            facts=facts,
            n_iter=n_iter,
            clip=clip,
            row_bound=row_bound,
            ridge=ridge,
            gradient_sensitivity=budget.sensitivity(clip),
            gradient_multiplier=gradient_multiplier,
            direction_multiplier=direction_multiplier,
            ledger=PrivacyLedger.from_events(
                events * n_iter,
                neighboring_relation=budget.neighboring_relation,
                reporting_delta=budget.delta,
                assumptions=assumptions,
                seeded=self.random_state is not None,
            ),
        )

    def _objective(
        self, X: Any, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None
    ) -> Any:
        return CurvatureSums(
            super()._objective(X, target, n_classes, class_weight),
            X,
            target,
            n_outputs=n_outputs(n_classes),
            fit_intercept=bool(self.fit_intercept),
            row_bound=float(self.row_bound),
            upper_bound=self.curvature == "upper_bound",
            class_weight=class_weight,
        )

    def _train(
        self,
        objective: CurvatureSums,
        plan: NewtonPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[NewtonTrace, PrivacyLedger]:
        trace = newton_descent(objective, plan, rng, self.step, on_step)
        return trace, replace(plan.ledger, events=run_lengths(trace.events))
