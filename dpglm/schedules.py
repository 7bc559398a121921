"""Schedules of a run, fixed in advance: clipping norm, noise, step size, momentum, averaging.

Iterations are t = 1..T unless a docstring counts from 0. A noise schedule shapes the standard
deviation of the noise on the SUM of clipped gradients; the plan rescales it to the budget. A step
size multiplies the MEAN gradient: ``coef <- coef - step * (noisy_sum / n_samples + alpha * coef)``.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, clone

from dpglm.checks import check_number, is_auto, is_number

__all__ = [
    "BiasCorrectedMomentum", "ConvexStep", "DecayingClip", "DynamicNoise",
    "ExponentialDecay", "HeavyBall", "InverseTimeDecay", "NesterovMomentum", "PiecewiseConstant",
    "Polynomial", "PublicMetadata", "Schedule",
]  # fmt: skip


_positive = partial(check_number, above=0, below=math.inf)
# If no penalty makes one certain: losses of typical records are curved between a tenth and all of
# the largest curvature.
_CONDITION_NUMBER = 10.0


@dataclass(frozen=True, eq=False)
class PublicMetadata:
    """The public metadata that a schedule may use; None is not yet known.

    Parameters
    ----------
    n_samples, n_features, n_outputs : int
        Number of records (its public estimate if private), and of columns with the intercept.
        Columns of the coefficients: 1 for two classes, K for K classes.
    alpha, curvature, max_row_norm : float, optional
        L2 penalty, and largest second derivative of the loss in the score (inf for the hinge).
        ``max_row_norm`` is the largest L2 norm of a row, intercept included. None stands for
        ``sqrt(n_features)``: rows of numbers within [-1, 1].
    mu, clip, noise_std : float and two ndarrays of shape (n_iter,), optional
        Gaussian differential privacy budget of the gradients, with mini-batches that of the same
        epsilon and delta. Clipping norms, and standard deviations of the noise on the sum of
        gradients. A plan sets them in this order.
    effective_dimension : float, optional
        Number of feature directions above the noise level, as a preconditioner released.
    sampling_rate : float, default=1.0
        Chance of each record to be in the batch of an iteration.
    whitened : bool, default=False
        Whether a preconditioner gives rows a mean square of about 1 in each direction. The loss,
        penalty included, is then no more curved than ``curvature``, or 1 if this is larger.
    count_fraction : float, default=0.0
        With weights: fraction of the budget mu^2 for a count of labels.
    mean_weight, mean_row_weight : float, default=1.0
        Mean weight of a record over the largest, by this count, and without weights of classes.
    slope : float, default=1.0
        With weights: slope of the loss at zero coefficients, over that of the logistic loss.
    residual : float, optional
        Usual size of a residual of a numeric target, over the unit of the scores.

    Examples
    --------
    >>> PublicMetadata(n_samples=1000, n_features=11, n_outputs=3).n_released
    33
    """

    n_samples: int
    n_features: int
    n_outputs: int = 1
    alpha: float = 0.0
    curvature: float | None = None
    max_row_norm: float | None = None
    mu: float | None = None
    clip: np.ndarray | None = field(default=None, repr=False)
    noise_std: np.ndarray | None = field(default=None, repr=False)
    effective_dimension: float | None = None
    sampling_rate: float = 1.0
    whitened: bool = False
    count_fraction: float = 0.0
    mean_weight: float = 1.0
    mean_row_weight: float = 1.0
    slope: float = 1.0
    residual: float | None = None

    @property
    def expected_batch_size(self) -> float:
        """Public expected sum of weights in a batch, the divisor of sums of gradients."""
        return self.n_samples * self.sampling_rate * self.mean_weight

    @property
    def n_released(self) -> int:
        """Number of values in one released gradient."""
        return self.n_features * self.n_outputs

    @property
    def smoothness(self) -> float:
        """Smoothness of the objective, ``curvature * max_row_norm^2 + alpha``.

        In a whitened space it is the curvature alone, and 1 at most.
        """
        if self.whitened:
            return min(1.0, self.curvature or 1.0)
        advice = "choose a smooth loss, not the hinge"
        curvature = _positive("curvature", self.curvature, advice=advice)
        return curvature * self._squared_norm + self.alpha

    @property
    def strong_convexity(self) -> float:
        """The penalty; without one, and in a whitened space, a tenth of the smoothness."""
        if self.alpha > 0 and not self.whitened:
            return self.alpha
        curvature = min(1.0, self.curvature or 1.0)
        return curvature * (1.0 if self.whitened else self._squared_norm) / _CONDITION_NUMBER

    @property
    def condition_number(self) -> float:
        """Smoothness over strong convexity: 10 without a penalty, and in a whitened space."""
        if self.alpha > 0 and not self.whitened:
            return self.smoothness / self.alpha
        return _CONDITION_NUMBER

    @property
    def _squared_norm(self) -> float:
        if self.max_row_norm is None:
            return float(self.n_features)
        return _positive("max_row_norm", self.max_row_norm) ** 2


class Schedule(BaseEstimator):
    """One positive value per iteration. Subclasses define ``values(n_iter, metadata)``."""

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        """Return the values of a whole run, an array of shape (n_iter,)."""
        raise NotImplementedError(f"{type(self).__name__} must define values(n_iter, metadata).")


@dataclass(eq=False, repr=False)
class Constant(Schedule):
    """The same value in every iteration, what a number stands for."""

    value: float = 1.0

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        return np.full(n_iter, float(self.value))


@dataclass(eq=False, repr=False)
class ExponentialDecay(Schedule):
    """Exponential decay ``initial * ratio^t``, t = 0, 1, ... (Yu, Liu, Pu, Gursoy & Truex 2019).

    Parameters
    ----------
    initial, ratio : float, default=1.0 and 0.99
    floor : float, default=0.0
        Lower limit of the values.

    Examples
    --------
    >>> ExponentialDecay(1.0, 0.5).values(3, PublicMetadata(1000, 10))
    array([1.  , 0.5 , 0.25])
    """

    initial: float = 1.0
    ratio: float = 0.99
    floor: float = 0.0

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        return np.maximum(self.initial * float(self.ratio) ** np.arange(n_iter), self.floor)


@dataclass(eq=False, repr=False)
class Polynomial(Schedule):
    """Polynomial decay, ``final + (initial - final) * (1 - t/(T - 1))^power`` for t = 0..T-1.

    Yu, Liu, Pu, Gursoy & Truex (2019), with its end at ``final``.

    Parameters
    ----------
    initial, final, power : float, default=1.0, 0.1 and 1.0
    horizon : int, optional
        First iteration, counted from 0, at ``final``; by default the last.

    Examples
    --------
    >>> Polynomial(1.0, 0.5, power=2.0).values(3, PublicMetadata(1000, 10))
    array([1.   , 0.625, 0.5  ])
    """

    initial: float = 1.0
    final: float = 0.1
    power: float = 1.0
    horizon: int | None = None

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        # A single iteration has the initial value.
        horizon = max(n_iter - 1, 1) if self.horizon is None else self.horizon
        _positive("horizon", horizon)
        remaining = 1 - np.minimum(np.arange(n_iter) / horizon, 1.0)
        return self.final + (self.initial - self.final) * remaining**self.power


@dataclass(eq=False, repr=False)
class PiecewiseConstant(Schedule):
    """Step decay: constant levels over fractions of the run (Yu, Liu, Pu, Gursoy & Truex 2019).

    Parameters
    ----------
    levels : sequence of float, default=(1.0, 0.5)
    boundaries : sequence of float, default=(0.5,)
        Increasing fractions in (0, 1) of the run at which the next level starts; one fewer than
        the levels.

    Examples
    --------
    >>> PiecewiseConstant((4.0, 2.0, 1.0), (0.5, 0.75)).values(8, PublicMetadata(1000, 10))
    array([4., 4., 4., 4., 2., 2., 1., 1.])
    """

    levels: Sequence = (1.0, 0.5)
    boundaries: Sequence = (0.5,)

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        levels, boundaries = np.array(self.levels, float), np.array(self.boundaries, float)
        edges = np.concatenate([[0.0], boundaries, [1.0]])
        if not (np.diff(edges) > 0).all() or len(levels) != len(boundaries) + 1:
            raise ValueError("boundaries must increase within (0, 1) and be one fewer than levels.")
        return levels[np.searchsorted(boundaries, np.arange(n_iter) / n_iter, side="right")]


@dataclass(eq=False, repr=False)
class DynamicNoise(Schedule):
    """Noise that is optimal for a contracting descent: large early, small late.

    Parameters
    ----------
    decay : float, optional
        First over last standard deviation of plain descent; sets ``gamma = decay^(-4/(T - 1))``.
        By default gamma = 1 - 1/kappa. Without a preconditioner, and with a penalty, ``kappa =
        (curvature * max_row_norm^2 + alpha) / alpha``, which is usually pessimistic; else it is 10.
    momentum : float, default=0.0
        Coefficient of `BiasCorrectedMomentum` to be optimal for.
    influence : array-like of shape (n_iter,), optional
        Part of an error in each iteration that reaches the end, in any unit. It replaces the
        other parameters.

    Notes
    -----
    Hong, Wang & Zhou (2022, Theorem 3.4); the page on schedules has the formulas. If mu or the
    clipping norms are unknown or infinite, they count as 1.

    Examples
    --------
    >>> DynamicNoise(decay=4.0).values(3, PublicMetadata(1000, 10)).round(3)
    array([4.583, 2.291, 1.146])
    """

    decay: float | None = None
    momentum: float = 0.0
    influence: Sequence | None = None

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        check_number("momentum", self.momentum, at_least=0, below=1)
        half_log_q = self._log_weights(n_iter, metadata) / 2
        # In logarithms: weights of long runs leave the range of floating point.
        known = metadata.clip is not None and np.isfinite(metadata.clip).all()
        log_clip = np.log(metadata.clip) if known else np.zeros(n_iter)
        log_budget = 2 * math.log(metadata.mu) if metadata.mu and metadata.mu < math.inf else 0.0
        total = logsumexp(log_clip + half_log_q)
        return np.exp((total + log_clip - half_log_q - log_budget) / 2)

    def _log_weights(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        """Return log q_t, given or by ``q_t = gamma q_(t+1) + momentum^(2(T-t))``, q_T = 1."""
        if self.influence is not None:
            q = np.array(self.influence, dtype=np.float64)
            if q.shape != (n_iter,) or not (q > 0).all():
                raise ValueError(f"influence must be {n_iter} positive numbers, one per iteration.")
            return np.log(q)
        if self.decay is not None:
            log_gamma = -4 * math.log(_positive("decay", self.decay)) / max(n_iter - 1, 1)
        else:
            log_gamma = np.log1p(-1 / metadata.condition_number)
        log_echo = 2 * math.log(self.momentum) if self.momentum else -math.inf
        log_q = np.zeros(n_iter)
        for k in range(1, n_iter):
            log_q[-1 - k] = np.logaddexp(log_gamma + log_q[-k], k * log_echo)
        return log_q


@dataclass(eq=False, repr=False)
class DecayingClip(Schedule):
    """Clipping norm ``initial / min(2, 1 + t/horizon)``, t from 0 (Yu et al. 2018).

    Parameters
    ----------
    initial : float, default=1.0
    horizon : int, optional
        Iteration that reaches one half; by default the length of the run.

    Examples
    --------
    >>> DecayingClip(1.0, horizon=2).values(4, PublicMetadata(1000, 10)).round(3)
    array([1.   , 0.667, 0.5  , 0.5  ])
    """

    initial: float = 1.0
    horizon: int | None = None

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        horizon = _positive("horizon", n_iter if self.horizon is None else self.horizon)
        return self.initial / np.minimum(2.0, 1 + np.arange(n_iter) / horizon)


@dataclass(eq=False, repr=False)
class InverseTimeDecay(Schedule):
    """Steps ``numerator / (alpha (t + offset))`` for a strongly convex loss, t from 1.

    Parameters
    ----------
    alpha : float, optional
        Strong convexity. By default the L2 penalty. Without one, and after a preconditioner, a
        tenth of the smoothness of the loss (of ``max_row_norm`` or, unknown, numbers in [-1, 1]).
    numerator, offset : float, default=2.0 and 1.0
        By default for t-weighted averaging (Lacoste-Julien et al. 2012); 1 and 0 for uniform.

    Notes
    -----
    The loss ends at most ``2 G^2 / (alpha (T + 1))`` above the least, with G^2 the mean squared
    norm of a noisy gradient. With 1 and 0 it is ``G^2 (1 + log T) / (2 alpha T)``. The page on
    schedules has the proof.

    Examples
    --------
    >>> InverseTimeDecay(alpha=0.5).values(3, PublicMetadata(1000, 10))
    array([2.        , 1.33333333, 1.        ])
    """

    alpha: float | None = None
    numerator: float = 2.0
    offset: float = 1.0

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        alpha = metadata.strong_convexity if self.alpha is None else self.alpha
        _positive("alpha", alpha, advice="it divides the step sizes")
        return self.numerator / (alpha * (np.arange(1, n_iter + 1) + self.offset))


@dataclass(eq=False, repr=False)
class ConvexStep(Schedule):
    """Constant step size that balances descent and noise; combine it with uniform averaging.

    Parameters
    ----------
    distance : float, default=1.0
        Guess of the distance B from the start, zero, to the optimum. ``inf``, by name
        ``"smooth"``, is the step 1/beta of a smooth loss for any noise (Hong, Wang & Zhou).

    Notes
    -----
    The step ``min{1/beta, n B / (sigma sqrt(2 d T))}`` minimises a bound on the mean loss (Bubeck
    2015, Theorem 6.3). Here beta is the smoothness, and sigma^2 the mean square of the noise in d
    coordinates. For a hinge it is ``B / (G sqrt(T))``, with G the norm of a noisy subgradient.

    Examples
    --------
    >>> noise_std = np.full(50, 80.0)
    >>> metadata = PublicMetadata(1000, 10, curvature=0.25, max_row_norm=1.0, noise_std=noise_std)
    >>> ConvexStep().values(50, metadata)[0].round(4)
    np.float64(0.3953)
    """

    distance: float = 1.0

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        smooth = metadata.curvature != math.inf
        if not (0 < self.distance < math.inf or (self.distance == math.inf and smooth)):
            raise ValueError(
                f"distance={self.distance!r} must be positive, and finite for a hinge loss."
            )
        if metadata.noise_std is None:
            raise ValueError("it needs the noise of the plan; use it as step_schedule.")
        noise = math.sqrt(metadata.n_released * np.mean(np.square(metadata.noise_std)))
        noise /= metadata.expected_batch_size
        if not smooth:
            bounds = [np.max(x) for x in (metadata.max_row_norm, metadata.clip) if x is not None]
            if not bounds or not 0 < min(bounds) < math.inf:
                raise ValueError("for a hinge loss it needs a finite clip or a max_row_norm.")
            slope = math.hypot(min(bounds), noise)
            return np.full(n_iter, self.distance / (slope * math.sqrt(n_iter)))
        # The largest step that descends, and the step with as much noise as gain.
        steepest = 1 / metadata.smoothness
        quietest = self.distance / (noise * math.sqrt(2 * n_iter)) if noise > 0 else math.inf
        return np.full(n_iter, min(steepest, quietest))


# The largest second derivatives of the logistic loss and of the default smoothed hinge. The hinge,
# which has none, counts as the smoothed hinge.
LOGISTIC_CURVATURE, HINGE_CURVATURE = 0.25, 5.0
# That of a log link has no limit: with this one, steps are stable where the mean is three times as
# large.
LOG_LINK_CURVATURE = 20.0


def _snr(n_mu: float, metadata: PublicMetadata) -> float:
    """Return n mu over the effective dimension, or over the number of columns before a release.

    With weights, n is the sum of the weights over the largest one. Noise is in units of a residual.
    """
    dimension = metadata.effective_dimension or metadata.n_features
    return n_mu * metadata.mean_weight / dimension / (metadata.residual or 1.0)


@dataclass(eq=False, repr=False)
class AutoClippingNorm(Schedule):
    """Clipping norm of the default rule, ``min(1, (snr / saturation)^power)`` in every iteration.

    With weights the norm is multiplied by the slope of the loss: clipping the heaviest class alone
    would undo its weight. Residuals of a numeric target have no largest size, nor has the norm.
    """

    n_mu: float
    saturation: float
    power: float

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        relative = (_snr(self.n_mu, metadata) / self.saturation) ** self.power
        if metadata.residual is not None:
            return np.full(n_iter, metadata.residual * metadata.mean_weight * relative)
        return np.full(n_iter, metadata.slope * min(1.0, relative))


@dataclass(eq=False, repr=False)
class AutoStepSize(Schedule):
    """Step sizes of the default rule, small enough to converge, whose total grows with the snr.

    A step is ``min(largest, per_snr snr / D) (1/4 / curvature)^power``, with D the
    `Momentum.displacement` of all iterations, so that their number does not matter.
    """

    n_mu: float
    momentum: "Momentum"
    per_snr: float
    largest: float
    power: float

    def values(self, n_iter: int, metadata: PublicMetadata) -> np.ndarray:
        total = self.per_snr * _snr(self.n_mu, metadata)
        step = min(self.largest, total / self.momentum.displacement(n_iter))
        limit = HINGE_CURVATURE if metadata.residual is None else LOG_LINK_CURVATURE
        curvature = min(metadata.curvature or LOGISTIC_CURVATURE, limit)
        return np.full(n_iter, step * (LOGISTIC_CURVATURE / curvature) ** self.power)


def schedule_values(
    schedule: Schedule,
    n_iter: int,
    metadata: PublicMetadata,
    *,
    parameter: str,
    allow_inf: bool = False,
) -> np.ndarray:
    """Return the values of a schedule, checked: one positive number per iteration."""
    # Spelled out for an error alone: scikit-learn takes its time to print an estimator.
    given = partial("{}={!r}".format, parameter, schedule)
    try:
        with np.errstate(all="ignore"):
            # A copy: a schedule that changes its metadata must not change the plan.
            values = np.array(schedule.values(n_iter, deepcopy(metadata)), dtype=np.float64)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{given()} cannot be used: {error}") from error
    if values.shape != (n_iter,):
        raise ValueError(f"{given()} gave shape {values.shape}; it must give {n_iter} values.")
    legal = (values > 0) & (np.isfinite(values) | allow_inf)
    if not legal.all():
        t = int(np.argmin(legal))
        raise ValueError(
            f"{given()} gave {values[t]} in iteration {t + 1} of {n_iter}; choose parameters for "
            f"which every value is positive{'' if allow_inf else ' and finite'}."
        )
    return values


_TwoArrays = tuple[np.ndarray, np.ndarray]


class Momentum(BaseEstimator):
    """A rule that turns gradients into directions. Subclasses define ``direction``."""

    def direction(self, gradient: np.ndarray, velocity: np.ndarray, t: int) -> _TwoArrays:
        """Return the direction of iteration ``t``, from 1, and the next velocity.

        The velocity is zeros in the first iteration, then what the last call returned.
        """
        raise NotImplementedError(f"{type(self).__name__} must define direction.")

    def displacement(self, n_iter: int) -> float:
        """Return the move of the mean of the last half of the iterates if all gradients are 1."""
        coef = velocity = np.zeros(1)
        total, weights, gradient = 0.0, averaging_weights("tail", n_iter), np.ones(1)
        for t in range(n_iter):
            direction, velocity = self.direction(gradient, velocity, t + 1)
            coef = coef + direction
            total += weights[t] * float(coef[0])
        return total


@dataclass(eq=False, repr=False)
class HeavyBall(Momentum):
    """Heavy ball, ``m_t = c m_(t-1) + g_t`` (Polyak 1964; in private descent, Yu et al. 2018).

    Parameters
    ----------
    coefficient : float, default=0.6
        c in [0, 1); 0 is plain descent.

    Examples
    --------
    >>> HeavyBall(0.5).direction(np.array([1.0]), np.array([2.0]), t=2)
    (array([2.]), array([2.]))
    """

    coefficient: float = 0.6

    def direction(self, gradient: np.ndarray, velocity: np.ndarray, t: int) -> _TwoArrays:
        velocity = self.coefficient * velocity + gradient
        return velocity, velocity


@dataclass(eq=False, repr=False)
class BiasCorrectedMomentum(Momentum):
    """Moving average of the gradients, without its bias towards zero (Hong, Wang & Zhou 2022).

    Parameters
    ----------
    coefficient : float, default=0.9
        b in [0, 1); 0 is plain descent.

    Notes
    -----
    ``v_(t+1) = b v_t + (1 - b) g_t`` from v_1 = 0, with direction ``v_(t+1) / (1 - b^t)``.

    Examples
    --------
    >>> BiasCorrectedMomentum(0.5).direction(np.array([1.0]), np.array([0.0]), t=1)
    (array([1.]), array([0.5]))
    """

    coefficient: float = 0.9

    def direction(self, gradient: np.ndarray, velocity: np.ndarray, t: int) -> _TwoArrays:
        velocity = self.coefficient * velocity + (1 - self.coefficient) * gradient
        return velocity / (1 - self.coefficient**t), velocity


@dataclass(eq=False, repr=False)
class NesterovMomentum(Momentum):
    """Nesterov's acceleration, at the point where gradients are taken (Nesterov 1983).

    Notes
    -----
    ``v_t = (t - 1) / (t + 2) v_(t-1) + g_t``, with direction ``g_t + t / (t + 3) v_t``.

    Examples
    --------
    >>> NesterovMomentum().direction(np.array([1.0]), np.array([0.0]), t=1)
    (array([1.25]), array([1.]))
    """

    def direction(self, gradient: np.ndarray, velocity: np.ndarray, t: int) -> _TwoArrays:
        velocity = (t - 1) / (t + 2) * velocity + gradient
        return gradient + t / (t + 3) * velocity, velocity


_SHAPES = {
    "constant": Constant,
    "exponential": ExponentialDecay,
    "polynomial": Polynomial,
    "piecewise_constant": PiecewiseConstant,
    "decaying": DecayingClip,
}

# The names that each parameter takes.
NAMES: dict[str, dict[str, Any]] = {
    "noise_schedule": _SHAPES | {"inverse_time": InverseTimeDecay, "dynamic": DynamicNoise},
    "clip_schedule": _SHAPES,
    "step_schedule": {
        **_SHAPES,
        "inverse_time": InverseTimeDecay,
        "convex": ConvexStep,
        "smooth": partial(ConvexStep, distance=math.inf),
    },
    "momentum": {
        "heavy_ball": HeavyBall,
        "bias_corrected": BiasCorrectedMomentum,
        "nesterov": NesterovMomentum,
    },
}


def check_schedules(given: dict[str, Any]) -> dict[str, Any]:
    """Return the schedule that each parameter stands for: a number, a name or an object."""
    return {name: _chosen(name, value) for name, value in given.items()}


def _chosen(parameter: str, value: Any) -> Any:
    """Return the schedule of a parameter; of momentum a number is a heavy ball, None plain."""
    kind, of_number, named = Schedule, Constant, NAMES[parameter]
    if parameter == "momentum":
        kind, of_number = Momentum, HeavyBall
        value = 0.0 if value is None else value
    if isinstance(value, str) and value in named:
        return named[value]()
    if is_number(value):
        value = of_number(float(value))
    if not isinstance(value, kind):
        raise (ValueError if isinstance(value, (str, float)) else TypeError)(
            f"{parameter}={value!r} is no {kind.__name__.lower()}. Give a number, one of "
            f"{', '.join(map(repr, named))}, or a {kind.__name__} object."
        )
    # Arithmetic in a shorter type would overflow or round.
    narrow = {k: v.item() for k, v in value.get_params().items() if isinstance(v, np.number)}
    value = clone(value).set_params(**narrow) if narrow else value
    if kind is Momentum and hasattr(value, "coefficient"):
        name = f"momentum={value!r}: coefficient"
        check_number(name, value.coefficient, at_least=0, below=1)
    return value


class NamedSchedules:
    """An estimator whose schedules are given as numbers, names or objects."""

    def set_params(self, **params: Any) -> Any:
        """Set parameters, as scikit-learn's estimators do, and return the estimator.

        A schedule that was given by its name has parameters too: ``noise_schedule="dynamic"`` and
        ``noise_schedule__decay=4.0``.
        """
        for name in {key.partition("__")[0] for key in params if "__" in key} & {*NAMES}:
            value = params.get(name, getattr(self, name, None))
            nested = next(key for key in params if key.startswith(f"{name}__"))
            if value is None or is_auto(value):
                raise ValueError(
                    f"{name}={value!r} has no parameters such as {nested}. "
                    f"Set {name} too, to one of {', '.join(map(repr, NAMES[name]))} or an object."
                )
            params[name] = _chosen(name, value)
        return super().set_params(**params)  # type: ignore[misc]


def averaging_weights(averaging: str | float | None, n_iter: int) -> np.ndarray:
    """Return the weights of the iterates after each step, of shape (n_iter,) and summing to 1.

    ``"tail"`` is the last half, and a number is this last part of the run. ``"t_weighted"`` is
    proportional to the position t, counting the start as 1, for `InverseTimeDecay`.
    """
    t = np.arange(n_iter)

    def tail(fraction: float) -> np.ndarray:
        return t >= min(math.floor(n_iter * (1 - fraction)), n_iter - 1)

    named = {None: t == n_iter - 1, "uniform": t >= 0, "tail": tail(0.5), "t_weighted": t + 2.0}
    if averaging is None or (isinstance(averaging, str) and averaging in named):
        weights = named[averaging]
    elif is_number(averaging) and 0 < averaging <= 1:
        weights = tail(float(averaging))
    else:
        raise ValueError(
            f"averaging={averaging!r} is unknown; choose None, 'uniform', 'tail', 't_weighted', or "
            "the fraction of the run to average."
        )
    return weights / weights.sum()
