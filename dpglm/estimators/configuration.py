"""Automatic configuration: a run that needs no tuning, from public and released numbers alone.

Every tuning run on the data would cost privacy, so the parameters follow from the signal-to-noise
ratio ``snr = n mu / d``: n records, a budget of mu (Gaussian differential privacy) and d directions
that have to share it. The evidence for the constants is in docs/defaults.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpglm.estimators.whitening import DiagonalPreconditioner, FullPreconditioner, Preconditioner
from dpglm.schedules import DebiasedMomentum, PublicFacts, Schedule

__all__ = [
    "AutomaticConfiguration",
    "SignalClip",
    "SignalStep",
    "automatic_configuration",
    "resolved",
]

# From here on the matrix would cost more time than the descent.
_WIDEST_FULL = 512
# Curvature of the default smoothed hinge; the plain hinge, which has none, is stepped like it.
_STEEPEST = 5.0


@dataclass(frozen=True)
class AutomaticConfiguration:
    """What ``"auto"`` means for each parameter of an estimator."""

    noise_schedule: Any
    clip_schedule: Any
    step_schedule: Any
    momentum: Any
    averaging: Any
    max_iter: int
    preconditioner: Preconditioner | None


class SignalClip(Schedule):
    """Clip that grows with the signal, ``min(1, (snr / saturation)^(1/3))``.

    In a whitened space the clip is in units of the typical length of a row.

    Parameters
    ----------
    signal : float
        Number of records times the budget mu per unit of clip.
    saturation : float, default=200.0
        The snr from which rows are no longer shortened on average.

    Notes
    -----
    ``snr = signal / d``, where d is the effective dimension once a preconditioner has released it,
    and the number of columns before that or without one. A smaller clip lowers the noise in
    proportion, at the price of a bias that does not depend on the noise.

    Examples
    --------
    >>> facts = PublicFacts(n_samples=10_000, n_features=40, effective_dimension=25.0)
    >>> SignalClip(signal=1000.0, saturation=320.0).values(2, facts)
    array([0.5, 0.5])
    """

    def __init__(self, signal: float, saturation: float = 200.0) -> None:
        self.signal = signal
        self.saturation = saturation

    def values(self, n_iter: int, facts: PublicFacts) -> np.ndarray:
        return np.full(n_iter, min(1.0, (_snr(self.signal, facts) / self.saturation) ** (1 / 3)))


class SignalStep(Schedule):
    """Step that grows with the signal and falls by half over the run.

    Parameters
    ----------
    signal : float
        Number of records times the budget mu per unit of clip.
    scale : float, default=0.08
    largest : float, default=5.0

    Notes
    -----
    ``min(largest, scale snr^(3/4)) (1/4 / curvature)^(1/3) (1 - t / (2 T))`` for t = 0..T-1, with
    snr as in `SignalClip`. Without noise, whitened features allow steps of up to about
    ``2 / curvature``, and ``1/4`` is the curvature of the logistic loss. The less signal, the
    shorter the way from zero: an early stop that needs no look at the data.

    Examples
    --------
    >>> facts = PublicFacts(n_samples=10_000, n_features=40, curvature=0.25)
    >>> SignalStep(signal=640.0).values(2, facts)
    array([0.64, 0.48])
    """

    def __init__(self, signal: float, scale: float = 0.08, largest: float = 5.0) -> None:
        self.signal = signal
        self.scale = scale
        self.largest = largest

    def values(self, n_iter: int, facts: PublicFacts) -> np.ndarray:
        longest = min(self.largest, self.scale * _snr(self.signal, facts) ** 0.75)
        curvature = min(facts.curvature or 0.25, _STEEPEST)
        return longest * (0.25 / curvature) ** (1 / 3) * (1 - np.arange(n_iter) / (2 * n_iter))


def _snr(signal: float, facts: PublicFacts) -> float:
    return signal / (facts.effective_dimension or facts.n_features)


def automatic_configuration(n_samples: int, n_columns: int, mu: float) -> AutomaticConfiguration:
    """Return the configuration of a run from public numbers.

    Parameters
    ----------
    n_samples : int
        Public number of records.
    n_columns : int
        Length of a row, intercept included.
    mu : float
        Gaussian differential privacy budget per unit of clip: half of the budget's mu under
        ``"replace_one"``.

    Returns
    -------
    AutomaticConfiguration

    Examples
    --------
    >>> from dpglm.estimators.configuration import automatic_configuration
    >>> automatic_configuration(40_000, 100, mu=0.2).preconditioner
    FullPreconditioner()
    """
    signal = n_samples * mu if mu < math.inf else math.inf
    full = n_columns <= _WIDEST_FULL
    return AutomaticConfiguration(
        noise_schedule="constant",
        clip_schedule=SignalClip(signal),
        step_schedule=SignalStep(signal),
        momentum=DebiasedMomentum(0.5),
        averaging="tail",
        max_iter=100,
        preconditioner=FullPreconditioner() if full else DiagonalPreconditioner(),
    )


def resolved(parameter: Any, automatic: Any) -> Any:
    """Return a parameter, or its automatic value if it is ``"auto"``.

    Examples
    --------
    >>> from dpglm.estimators.configuration import resolved
    >>> resolved("auto", 80), resolved(100, 80)
    (80, 100)
    """
    return automatic if isinstance(parameter, str) and parameter == "auto" else parameter
