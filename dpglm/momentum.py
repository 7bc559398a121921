"""Momentum: how released gradients become directions. Post-processing, so it costs no privacy."""

from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

__all__ = ["DebiasedMomentum", "HeavyBall", "Momentum", "check_momentum"]


class Momentum(BaseEstimator):
    """A rule that turns gradients into directions. Subclasses define ``direction``."""

    def direction(
        self, gradient: np.ndarray, velocity: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the direction of iteration ``t`` and the next velocity.

        Parameters
        ----------
        gradient : ndarray
        velocity : ndarray
            Zeros in the first iteration, then what the last call returned.
        t : int
            Iteration, from 1.

        Returns
        -------
        direction, velocity : ndarray
        """
        raise NotImplementedError(f"{type(self).__name__} must define direction.")


class HeavyBall(Momentum):
    """Heavy ball, ``m_t = c m_(t-1) + g_t`` (Polyak 1964; for private descent, Yu et al. 2018).

    Parameters
    ----------
    coefficient : float, default=0.6
        c in [0, 1); 0 is plain descent.

    Notes
    -----
    The effective step is 1/(1 - c) times the nominal one, and independent noise is amplified in
    variance by ``(1 - c^(2t)) / (1 - c^2)``: divide the step when comparing coefficients.

    Examples
    --------
    >>> HeavyBall(0.5).direction(np.array([1.0]), np.array([2.0]), t=2)
    (array([2.]), array([2.]))
    """

    def __init__(self, coefficient: float = 0.6) -> None:
        self.coefficient = coefficient

    def direction(
        self, gradient: np.ndarray, velocity: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray]:
        velocity = self.coefficient * velocity + gradient
        return velocity, velocity


class DebiasedMomentum(Momentum):
    """Moving average of the gradients, freed of its bias towards zero (Hong, Wang & Zhou 2022).

    Parameters
    ----------
    coefficient : float, default=0.9
        b in [0, 1); 0 is plain descent.

    Notes
    -----
    ``v_(t+1) = b v_t + (1 - b) g_t`` from v_1 = 0, with direction ``v_(t+1) / (1 - b^t)``: the
    average of the gradients so far, weighted by b to the power of their age.

    Examples
    --------
    >>> DebiasedMomentum(0.5).direction(np.array([1.0]), np.array([0.0]), t=1)
    (array([1.]), array([0.5]))
    """

    def __init__(self, coefficient: float = 0.9) -> None:
        self.coefficient = coefficient

    def direction(
        self, gradient: np.ndarray, velocity: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray]:
        velocity = self.coefficient * velocity + (1 - self.coefficient) * gradient
        return velocity / (1 - self.coefficient**t), velocity


def check_momentum(momentum: Any) -> Momentum:
    """Return the momentum that a parameter asks for.

    Parameters
    ----------
    momentum : None, float, {"heavy_ball", "debiased"} or Momentum
        None is plain descent, a number the coefficient of `HeavyBall`.

    Returns
    -------
    Momentum
        The very object where one was given.

    Raises
    ------
    ValueError, TypeError
        If it is none of these, or its coefficient lies outside [0, 1).

    Examples
    --------
    >>> check_momentum(0.7)
    HeavyBall(coefficient=0.7)
    >>> check_momentum(None)
    HeavyBall(coefficient=0.0)
    """
    choices = "Give None, a number in [0, 1), 'heavy_ball', 'debiased' or a Momentum object."
    if momentum is None:
        momentum = HeavyBall(0.0)
    elif isinstance(momentum, Real) and not isinstance(momentum, (bool, np.bool_)):
        momentum = HeavyBall(float(momentum))
    elif isinstance(momentum, str):
        if momentum not in ("heavy_ball", "debiased"):
            raise ValueError(f"momentum={momentum!r} is not the name of a momentum. {choices}")
        momentum = HeavyBall() if momentum == "heavy_ball" else DebiasedMomentum()
    elif not isinstance(momentum, Momentum):
        raise TypeError(f"momentum={momentum!r} is not a momentum. {choices}")
    coefficient = getattr(momentum, "coefficient", 0.0)
    if not isinstance(coefficient, Real) or not 0 <= coefficient < 1:
        raise ValueError(
            f"momentum={momentum!r} must have a coefficient in [0, 1), got {coefficient!r}."
        )
    return momentum
