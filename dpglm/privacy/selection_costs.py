"""What a private selection costs: pure and bounded-range privacy in the Gaussian and zCDP units.

Conventions
-----------
epsilon is the parameter of one selection. *Pure*: epsilon-differential privacy, as of report noisy
max. *Bounded range*: one record moves the log-probabilities of the outcomes by amounts that lie
within epsilon of one another, as the exponential mechanism's; then epsilon counts half in GDP and
a quarter in zCDP.
"""

import math

import numpy as np
from scipy.special import erf, erfinv, log_expit, log_ndtr, ndtri_exp

__all__ = [
    "bounded_range_delta",
    "bounded_range_epsilon_from_mu",
    "bounded_range_epsilon_from_rho",
    "bounded_range_mu",
    "bounded_range_rho",
    "pure_epsilon_from_mu",
    "pure_epsilon_from_rho",
    "pure_mu",
    "pure_rho",
]


def pure_mu(epsilon: float) -> float:
    """Least mu such that every epsilon-DP mechanism is mu-GDP, ``2 Phi^-1(1 / (1 + e^-epsilon))``.

    Tight for randomised response (Liu et al. 2022, "Identification, amplification and measurement:
    a bridge to Gaussian differential privacy").

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float

    Examples
    --------
    >>> round(pure_mu(1.0), 9)
    1.232035385
    """
    if epsilon < 1:
        return math.sqrt(8) * float(erfinv(math.tanh(epsilon / 2)))
    return -2 * float(ndtri_exp(log_expit(-epsilon)))


def pure_epsilon_from_mu(mu: float) -> float:
    """Epsilon whose `pure_mu` is ``mu``: the log-odds of ``Phi(mu / 2)``.

    Parameters
    ----------
    mu : float
        At least 0.

    Returns
    -------
    float

    Examples
    --------
    >>> round(pure_epsilon_from_mu(pure_mu(0.01)), 12)
    0.01
    """
    if mu < 1:
        return 2 * math.atanh(float(erf(mu / math.sqrt(8))))
    return float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))


def pure_rho(epsilon: float) -> float:
    """zCDP of an epsilon-DP mechanism, ``epsilon^2 / 2`` (Bun & Steinke 2016, Proposition 1.4).

    Parameters
    ----------
    epsilon : float

    Returns
    -------
    float

    Examples
    --------
    >>> pure_rho(0.5)
    0.125
    """
    return epsilon**2 / 2


def pure_epsilon_from_rho(rho: float) -> float:
    """Epsilon whose `pure_rho` is ``rho``.

    Parameters
    ----------
    rho : float

    Returns
    -------
    float

    Examples
    --------
    >>> pure_epsilon_from_rho(0.125)
    0.5
    """
    return math.sqrt(2 * rho)


def bounded_range_mu(epsilon: float) -> float:
    """Least mu of all epsilon-bounded-range mechanisms, ``2 Phi^-1(1 / (1 + e^(-epsilon/2)))``.

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float

    Notes
    -----
    The profile of `bounded_range_delta` is that of the logistic laws centred at 0 and epsilon. With
    ``h = logit(Phi)``, whose slope is symmetric and grows away from 0, a shift of mu moves h by at
    least ``2 h(mu / 2)``, which is epsilon at this mu.

    Examples
    --------
    >>> round(bounded_range_mu(1.0), 9)
    0.623892592
    """
    return pure_mu(epsilon / 2)


def bounded_range_epsilon_from_mu(mu: float) -> float:
    """Epsilon whose `bounded_range_mu` is ``mu``.

    Parameters
    ----------
    mu : float

    Returns
    -------
    float

    Examples
    --------
    >>> round(bounded_range_epsilon_from_mu(0.6238925920985082), 12)
    1.0
    """
    return 2 * pure_epsilon_from_mu(mu)


def bounded_range_rho(epsilon: float) -> float:
    """zCDP of an epsilon-bounded-range mechanism, ``epsilon^2 / 8``.

    Cesar & Rogers (2021), "Bounding, concentrating, and truncating".

    Parameters
    ----------
    epsilon : float

    Returns
    -------
    float

    Examples
    --------
    >>> bounded_range_rho(1.0)
    0.125
    """
    return epsilon * epsilon / 8


def bounded_range_epsilon_from_rho(rho: float) -> float:
    """Epsilon whose `bounded_range_rho` is ``rho``.

    Parameters
    ----------
    rho : float

    Returns
    -------
    float

    Examples
    --------
    >>> bounded_range_epsilon_from_rho(0.125)
    1.0
    """
    return math.sqrt(8 * rho)


def bounded_range_delta(epsilon: float, at: float | np.ndarray) -> float | np.ndarray:
    """Least delta, at epsilon' = ``at``, of all epsilon-bounded-range mechanisms.

    Parameters
    ----------
    epsilon : float
        Above 0.
    at : float or ndarray
        Of either sign.

    Returns
    -------
    float or ndarray

    Notes
    -----
    ``(1 - e^((epsilon' - epsilon) / 2))^2 / (1 - e^-epsilon)`` for ``|epsilon'| <= epsilon``
    (Dong, Durfee & Rogers 2020, "Optimal differential privacy composition for exponential
    mechanisms"); 0 above that, and ``1 - e^epsilon'`` below.

    Examples
    --------
    >>> round(bounded_range_delta(1.0, 0.0), 9)
    0.244918662
    """
    inside = np.clip(at, -epsilon, epsilon)
    delta = np.expm1((inside - epsilon) / 2) ** 2 / -math.expm1(-epsilon)
    delta = np.where(np.asarray(at) < -epsilon, -np.expm1(np.minimum(at, 0.0)), delta)
    return delta if delta.ndim else float(delta)
