"""Newton steps on a noisy gradient and a noisy direction."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, softmax

from dpglm.estimators.base import LogisticOrHingeMixin, PrivateLinearClassifier
from dpglm.estimators.inputs import n_outputs
from dpglm.exceptions import check_number, check_whole, is_auto
from dpglm.kernels.bases import one_blas_thread
from dpglm.losses import Softmax
from dpglm.privacy.budget import CLIP_RANGE, LARGEST_NOISE_MULTIPLIER, N_REF_FACTOR, PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.mechanisms import GaussianSum
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = [
    "CurvatureSums",
    "DoubleNoiseNewton",
    "NewtonPlan",
    "NewtonTrace",
    "direction_sensitivity",
    "newton_descent",
]

_UNIT_ROUNDOFF = 2.0**-53
_BLOCK_ROWS = 2048
# Below this margin the bound on the curvature equals its limit 1/4 in floating point.
_SMALL_MARGIN = 1e-4
# A direction whose gradient happens to be zero still needs a noise that can be drawn.
_LEAST_SENSITIVITY = 1e-200


def direction_sensitivity(record: float, ridge: float, n_samples: int) -> float:
    """L2 sensitivity of ``A^-1 g`` per unit of ``||g||``, for a g that is given.

    Parameters
    ----------
    record : float
        Largest ``||v||^2`` of a record, where ``A = sum_i v_i v_i' / n + ridge I``.
    ridge : float
    n_samples : int
        The public n.

    Returns
    -------
    float
        ``record / (ridge (n ridge + record))``, the same under all three relations.

    Notes
    -----
    Let B be the inverse of A without one record. With that record the inverse is ``B - M``, where
    ``M = B v v' B / (n + v' B v)`` is positive semidefinite, by Sherman & Morrison. Since
    ``B <= I / ridge``, ``||B v||^2 <= q / ridge`` for ``q = v' B v <= ||v||^2 / ridge``, and
    ``||M|| <= (q / ridge) / (n + q)`` grows in q, up to the value above; a v along which B is
    ``1 / ridge`` attains it. When one record replaces another the inverses differ by ``M - M'``,
    whose norm is at most the larger of the two, both being positive semidefinite: a factor of 1.

    Examples
    --------
    >>> round(direction_sensitivity(0.25, 0.01, 1000), 9)
    2.43902439
    """
    return record / (ridge * (n_samples * ridge + record))


@dataclass(frozen=True, eq=False)
class NewtonPlan:
    """What a fit will release, with how much noise, and what that costs.

    Parameters
    ----------
    facts : PublicFacts
    n_iter : int
        Number of steps, two releases each.
    clip : float
        L2 bound on each record's gradient.
    row_bound : float
        L2 bound on each row in the curvature, intercept included.
    ridge : float
        Added to the mean curvature.
    gradient_sensitivity : float
        L2 sensitivity of the sum of clipped gradients under the neighbouring relation.
    gradient_multiplier, direction_multiplier : float
        Standard deviations of the noise over the sensitivity.
    ledger : PrivacyLedger
    """

    facts: PublicFacts
    n_iter: int
    clip: float
    row_bound: float
    ridge: float
    gradient_sensitivity: float
    gradient_multiplier: float
    direction_multiplier: float
    ledger: PrivacyLedger

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        private = self.ledger.neighboring_relation == "add_or_remove_one"
        return self.facts.n_samples * (N_REF_FACTOR if private else 1)

    def gradient_mechanism(self, rounding_slack: float) -> GaussianSum:
        """Return the mechanism of the gradients; the slack is relative to the clip."""
        slack = rounding_slack * self.clip if self.gradient_multiplier > 0 else 0.0
        return GaussianSum(self.gradient_sensitivity, self.gradient_multiplier, slack)

    def direction_mechanism(
        self, gradient_norm: float, *, largest_weight: float = 1.0, rounding: float = 0.0
    ) -> GaussianSum:
        """Return the mechanism of a direction ``A^-1 g``.

        Parameters
        ----------
        gradient_norm : float
            Of g, a released value.
        largest_weight : float, default=1.0
            Of a class.
        rounding : float, default=0.0
            Bound on the spectral norm of the error of A.

        Raises
        ------
        FloatingPointError
            If the ridge is within twice that bound.
        """
        if self.direction_multiplier > 0 and not rounding < self.ridge / 2:
            raise FloatingPointError(
                f"ridge={self.ridge:g} is too small beside rounding errors of {rounding:.3g}; "
                "nothing was released by this step. Raise ridge."
            )
        record = largest_weight * self.facts.curvature * self.row_bound**2
        per_unit = direction_sensitivity(record, self.ridge, self.facts.n_samples)
        slack = 0.0
        if self.direction_multiplier > 0:
            # An error E moves A^-1 g by ||A^-1|| ||E|| ||(A + E)^-1|| ||g|| at most, on each side.
            slack = 2 * rounding * gradient_norm / (self.ridge * (self.ridge - rounding))
        sensitivity = max(gradient_norm * per_unit, _LEAST_SENSITIVITY)
        return GaussianSum(sensitivity, self.direction_multiplier, slack)

    def __str__(self) -> str:
        return (
            f"{self.n_iter} steps over {self.facts.n_samples} records, one gradient and one "
            f"direction each: {self.ledger}"
        )

    def __repr__(self) -> str:
        return f"<NewtonPlan: {self}>"


@dataclass
class NewtonTrace:
    """Released values of a fit, one entry per step.

    Attributes
    ----------
    events : list of Event
        Of a gradient and a direction in turn.
    gradient_norm, direction_norm : list of float
        L2 norms of the noisy mean gradient (penalty included) and of the noisy direction.
    gradient_noise_std, direction_noise_std : list of float
        Standard deviations of the noise on the sum of gradients and on the direction.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).
    """

    events: list[GaussianEvent] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    direction_norm: list[float] = field(default_factory=list)
    gradient_noise_std: list[float] = field(default_factory=list)
    direction_noise_std: list[float] = field(default_factory=list)
    coef: np.ndarray | None = None

    @property
    def n_iter(self) -> int:
        """Number of steps."""
        return len(self.gradient_norm)


class CurvatureSums:
    """Holds the rows a second time, and answers with sums of curvatures of clipped rows."""

    def __init__(
        self,
        gradients: "Objective",
        X: Any,
        target: np.ndarray,
        *,
        n_outputs: int,
        fit_intercept: bool,
        row_bound: float,
        upper_bound: bool,
        class_weight: np.ndarray | None = None,
        present: np.ndarray | None = None,
    ) -> None:
        self.gradients, self._X = gradients, X
        self._fit_intercept, self._row_bound = fit_intercept, row_bound
        self._n_outputs, self._upper_bound = n_outputs, upper_bound
        class_index = (target > 0).astype(int) if n_outputs == 1 else target
        weights = np.ones(max(2, n_outputs)) if class_weight is None else class_weight
        self.largest_weight = float(weights.max())
        self._weight = weights[class_index] * (1.0 if present is None else present)

    def curvature(self, coef: np.ndarray) -> np.ndarray:
        """Sum over rows of ``a_i c_i x~_i x~_i'`` with each x~ clipped to the row bound.

        Private: it leaves the library within a direction only.

        Parameters
        ----------
        coef : array of shape (n_columns,) or (n_columns, K)

        Returns
        -------
        ndarray of shape (n_columns, n_columns)
        """
        total, n_rows = np.zeros((len(coef), len(coef))), len(self._weight)
        with one_blas_thread():
            for start in range(0, n_rows, _BLOCK_ROWS):
                block = slice(start, start + _BLOCK_ROWS)
                rows = self._clipped(self._X[block])
                weight = self._weight[block] * self._curvature_of_scores(rows @ coef)
                total += rows.T @ (weight[:, np.newaxis] * rows)
        return total

    def _clipped(self, X: Any) -> np.ndarray:
        """Return rows within the row bound; one whose norm overflows becomes zero."""
        rows = np.ones((X.shape[0], X.shape[1] + self._fit_intercept))
        rows[:, : X.shape[1]] = X.toarray() if sparse.issparse(X) else X
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.square(rows).sum(axis=1))
        scale = self._row_bound / np.maximum(norms, self._row_bound)
        return rows * scale[:, np.newaxis]

    def _curvature_of_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return a bound on the curvature of each row's loss, in all directions of the scores."""
        if self._n_outputs == 1:
            return _logistic_bound(scores) if self._upper_bound else expit(scores) * expit(-scores)
        if self._upper_bound:
            return np.full(len(scores), Softmax.curvature)
        probability = softmax(scores, axis=1)
        return 2 * (probability * (1 - probability)).max(axis=1)

    def rounding(self, n_samples: int, n_public: int, coef: np.ndarray, least: float) -> float:
        """Bound on the error of ``curvature / n_public + least I``, in the spectral norm.

        Parameters
        ----------
        n_samples : int
            At least the actual number of records.
        n_public : int
        coef : array
            Released.
        least : float
            What is added to the diagonal, at most.

        Notes
        -----
        With u = 2^-53, B rows in a block, R the row bound and v the largest curvature of a
        record: the mean of n terms of norm v is within ``(B + n / B) u v``; a clipped row within
        ``(d + 14) u`` of its norm; the curvature of a score, whose slope is below 1/2, within
        ``(d + 4) u R ||w||``. A solution by Cholesky factors is that of a matrix within
        ``d (3 d + 4) u`` of its norm (Higham 2002, Theorem 10.4).
        """
        d, blocks = len(coef), _BLOCK_ROWS + n_samples / _BLOCK_ROWS
        record = self.largest_weight * self._row_bound**2
        length = self._row_bound * float(np.linalg.norm(coef))
        mean = (blocks + 2 * d + 40 + (d + 4) * length) * record * n_samples / n_public
        solution = d * (3 * d + 4) * (record * n_samples / n_public + least)
        return _UNIT_ROUNDOFF * (mean + solution)


def newton_descent(
    sums: CurvatureSums,
    plan: NewtonPlan,
    rng: EntropySource,
    step: float,
    on_step: Callable[[int, np.ndarray], None],
) -> NewtonTrace:
    """Minimise the mean logistic loss plus the L2 penalty by noisy Newton steps.

    Parameters
    ----------
    sums : CurvatureSums
        Holds the private data; asked for clipped gradient sums and for curvatures.
    plan : NewtonPlan
    rng : EntropySource
    step : float
        Step size, along the direction.
    on_step : callable
        Called as ``on_step(t, coef)`` after each step with the current iterate, a released value.

    Returns
    -------
    NewtonTrace

    Notes
    -----
    Guarantee: two `GaussianSum` releases a step. The noise multipliers are fixed in advance; the
    sensitivity of a direction depends on the gradient before it, a released value (Dong, Roth &
    Su 2022, Theorem 4: adaptive composition). The rest is post-processing.
    """
    objective, n_samples, alpha = sums.gradients, plan.facts.n_samples, plan.facts.alpha
    gradients = plan.gradient_mechanism(objective.rounding_slack(plan.max_n_samples))
    coef, trace = np.zeros(objective.coef_shape), NewtonTrace()
    ridge = plan.ridge + alpha * objective.penalty_gradient(np.ones(objective.coef_shape))
    ridge = np.diag(ridge.reshape(len(ridge), -1)[:, 0])
    for t in range(plan.n_iter):
        # 1) Release the sum of clipped gradients.
        total = objective.gradient_sum(coef, plan.clip)
        noisy_total, first = gradients.release(total, rng)
        # 2) Divide by the public count and add the gradient of the penalty.
        gradient = objective.loss.project(noisy_total) / n_samples
        gradient += alpha * objective.penalty_gradient(coef)
        norm = float(np.linalg.norm(gradient))
        # 3) Release the direction that the curvature makes of this gradient.
        matrix = sums.curvature(coef) / n_samples + ridge
        rounding = sums.rounding(plan.max_n_samples, n_samples, coef, float(ridge.max()))
        directions = plan.direction_mechanism(
            norm, largest_weight=sums.largest_weight, rounding=rounding
        )
        direction, second = directions.release(cho_solve(cho_factor(matrix), gradient), rng)
        # 4) Step.
        coef = coef - step * direction

        trace.events += [first, second]
        trace.gradient_norm.append(norm)
        trace.direction_norm.append(float(np.linalg.norm(direction)))
        trace.gradient_noise_std.append(gradients.noise_std(total.size))
        trace.direction_noise_std.append(directions.noise_std(direction.size))
        on_step(t, coef)
    trace.coef = coef
    return trace


def _logistic_bound(scores: np.ndarray) -> np.ndarray:
    """Return ``tanh(s / 2) / (2 s)``, at most 1/4.

    The parabola of that curvature that touches the logistic loss at s is nowhere below it
    (Jaakkola & Jordan 2000).
    """
    size = np.abs(scores)
    large = np.maximum(size, _SMALL_MARGIN)
    return np.where(size < _SMALL_MARGIN, 0.25, np.tanh(large / 2) / (2 * large))


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
    >>> from dpglm.baselines.newton import DoubleNoiseNewton
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
