"""Conversions between (epsilon, delta) and Gaussian or concentrated privacy; costs of a choice."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfcx, erfinv, log_expit, log_ndtr, ndtri_exp, roots_legendre

__all__ = [
    "bounded_range_delta",
    "bounded_range_epsilon_from_mu",
    "bounded_range_epsilon_from_rho",
    "bounded_range_mu",
    "bounded_range_rho",
    "bun_steinke_epsilon",
    "bun_steinke_rho",
    "gaussian_rdp",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "pure_epsilon_from_mu",
    "pure_epsilon_from_rho",
    "pure_mu",
    "pure_rho",
    "rdp_epsilon",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]

_NODES, _WEIGHTS = roots_legendre(20)

# The loss given up on a calibrated budget (mu, rho) exceeds the one on a reported epsilon, so that
# calibrating to epsilon and converting back never reports more than epsilon.
_BUDGET_MARGIN = 1e-10
_EPSILON_MARGIN = 1e-12


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Logarithm of the smallest delta of a mu-GDP mechanism at epsilon.

    Parameters
    ----------
    mu, epsilon : float
        At least 0.

    Returns
    -------
    float
        ``log(delta)``; ``-inf`` only where delta is 0 or its logarithm overflows.

    Notes
    -----
    With a = mu/2 - epsilon/mu and b = a - mu, Balle & Wang (2018), Theorem 8:
    ``delta = Phi(a) - e^epsilon Phi(b)``. Since e^epsilon phi(b) = phi(a), this is
    ``delta = exp(-a^2/2)/2 * [erfcx(-a/sqrt 2) - erfcx(-b/sqrt 2)]`` for every a. The difference
    is taken directly where its terms are well apart, and otherwise as the integral of -erfcx',
    which is positive and does not cancel.

    Examples
    --------
    >>> round(gdp_log_delta(1.0, 8.0), 9)
    -33.243824133
    """
    mu, epsilon = _nonnegative("mu", mu), _nonnegative("epsilon", epsilon)
    if mu == 0 or epsilon == math.inf:
        return -math.inf
    if mu == math.inf:
        return 0.0
    a = mu / 2 - epsilon / mu
    start, width = -a / math.sqrt(2), mu / math.sqrt(2)
    if width >= 1 + start:
        return float(log_ndtr(a) + math.log1p(-erfcx(start + width) / erfcx(start)))
    if math.isinf(a * a):
        return -math.inf
    points = start + width * (_NODES + 1) / 2
    mean = float(_WEIGHTS @ _minus_erfcx_derivative(points)) / 2
    return -a * a / 2 - math.log(2) + math.log(width) + math.log(mean)


def gdp_delta(mu: float, epsilon: float) -> float:
    """Smallest delta of a mu-GDP mechanism at epsilon.

    The exponential of :func:`gdp_log_delta`; exact, an equivalence (Dong, Roth & Su 2022,
    Corollary 1). At epsilon = 0 it is the total variation distance erf(mu / (2 sqrt 2)).

    Parameters
    ----------
    mu, epsilon : float
        At least 0.

    Returns
    -------
    float

    Examples
    --------
    >>> round(gdp_delta(1.0, 1.0), 10)
    0.1269367375
    """
    return math.exp(gdp_log_delta(mu, epsilon))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of a mu-GDP mechanism at delta, rounded up.

    Root of :func:`gdp_log_delta` in epsilon.

    Parameters
    ----------
    mu, delta : float
        ``mu`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float
        0 where delta already covers the total variation distance.

    Examples
    --------
    >>> round(gdp_epsilon(1.0, 1e-5), 8)
    4.3771781
    """
    mu, delta = _nonnegative("mu", mu), _probability(delta)
    return _smallest_epsilon(gdp_log_delta, mu, delta)


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose mu-GDP mechanisms are all (epsilon, delta)-DP, rounded down.

    Root of :func:`gdp_log_delta` in log(mu); at epsilon = 0, 2 sqrt(2) erfinv(delta).

    Parameters
    ----------
    epsilon, delta : float
        ``epsilon`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float
        T Gaussian releases of noise multiplier ``sqrt(T) / mu`` are (epsilon, delta)-DP.

    Examples
    --------
    >>> round(gdp_mu(1.0, 1e-5), 9)
    0.268051123
    """
    epsilon, delta = _nonnegative("epsilon", epsilon), _probability(delta)
    return _largest_budget(gdp_log_delta, epsilon, delta)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Upper bound on delta of a rho-zCDP mechanism at epsilon.

    Parameters
    ----------
    rho, epsilon : float
        At least 0.

    Returns
    -------
    float

    Notes
    -----
    Canonne, Kamath & Steinke (2020), Corollary 13: ``delta = min over alpha > 1 of
    exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)``, whose minimum is the
    root of the increasing ``(2 alpha - 1) rho - epsilon + log(1 - 1/alpha)``.

    Examples
    --------
    >>> round(zcdp_delta(0.1, 1.0), 10)
    0.0089332458
    """
    return math.exp(_zcdp_log_delta(_nonnegative("rho", rho), _nonnegative("epsilon", epsilon)))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon of a rho-zCDP mechanism at delta, by Canonne, Kamath & Steinke, rounded up.

    Root in epsilon of :func:`zcdp_delta`; never above :func:`bun_steinke_epsilon`.

    Parameters
    ----------
    rho, delta : float
        ``rho`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(zcdp_epsilon(0.5, 1e-5), 6)
    4.728387
    """
    rho, delta = _nonnegative("rho", rho), _probability(delta)
    return _smallest_epsilon(_zcdp_log_delta, rho, delta)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Largest rho whose rho-zCDP mechanisms are (epsilon, delta)-DP by Canonne, Kamath & Steinke.

    Root in log(rho) of :func:`zcdp_delta`; never below :func:`bun_steinke_rho`.

    Parameters
    ----------
    epsilon, delta : float
        ``epsilon`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(zcdp_rho(1.0, 1e-5), 8)
    0.0305566
    """
    epsilon, delta = _nonnegative("epsilon", epsilon), _probability(delta)
    return _largest_budget(_zcdp_log_delta, epsilon, delta)


def bun_steinke_epsilon(rho: float, delta: float) -> float:
    """Epsilon of a rho-zCDP mechanism at delta, by the closed form of Bun & Steinke.

    Bun & Steinke (2016), Proposition 1.3: ``rho + 2 sqrt(rho log(1/delta))``. Looser than
    :func:`zcdp_epsilon`; used by most papers, hence kept for comparison.

    Parameters
    ----------
    rho, delta : float
        ``rho`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(bun_steinke_epsilon(0.5, 1e-5), 6)
    5.298526
    """
    rho, delta = _nonnegative("rho", rho), _probability(delta)
    if rho == 0:
        return 0.0
    return rho + 2 * math.sqrt(rho) * math.sqrt(-_log(delta))


def bun_steinke_rho(epsilon: float, delta: float) -> float:
    """Largest rho whose rho-zCDP mechanisms are (epsilon, delta)-DP by Bun & Steinke.

    ``(sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))^2``, the inverse of
    :func:`bun_steinke_epsilon`.

    Parameters
    ----------
    epsilon, delta : float
        ``epsilon`` at least 0, ``delta`` in [0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(bun_steinke_rho(1.0, 1e-5), 8)
    0.02081994
    """
    epsilon, delta = _nonnegative("epsilon", epsilon), _probability(delta)
    if epsilon == math.inf:
        return math.inf
    level = -_log(delta)
    root = epsilon / (math.sqrt(level + epsilon) + math.sqrt(level))
    return root * root * (1 - _BUDGET_MARGIN)


def gaussian_rdp(noise_multiplier: float, alpha: float) -> float:
    """Renyi divergence of order alpha of one Gaussian release.

    ``alpha / (2 noise_multiplier^2)`` (Mironov 2017, Corollary 3).

    Parameters
    ----------
    noise_multiplier, alpha : float
        Standard deviation over sensitivity, at least 0, and Renyi order, above 1.

    Returns
    -------
    float

    Examples
    --------
    >>> gaussian_rdp(4.0, 2.0)
    0.0625
    """
    z, alpha = _nonnegative("noise_multiplier", noise_multiplier), _renyi_order(alpha)
    if z == math.inf:
        return 0.0
    return alpha / 2 / z / z if z > 0 else math.inf


def rdp_epsilon(rdp: float, alpha: float, delta: float) -> float:
    """Epsilon at delta of a mechanism with a Renyi divergence bound at one order.

    Canonne, Kamath & Steinke (2020), Proposition 12: ``rdp + log(1 - 1/alpha)
    - (log(delta) + log(alpha)) / (alpha - 1)``, and never below 0.

    Parameters
    ----------
    rdp, alpha, delta : float
        Bound on the Renyi divergence, at least 0, of order ``alpha`` above 1; ``delta`` in [0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> round(rdp_epsilon(0.5, 10.0, 1e-6), 6)
    1.673853
    """
    rdp, alpha, delta = _nonnegative("rdp", rdp), _renyi_order(alpha), _probability(delta)
    if rdp == 0 or alpha == math.inf:
        return rdp
    return max(0.0, rdp + math.log1p(-1 / alpha) - (_log(delta) + math.log(alpha)) / (alpha - 1))


def _minus_erfcx_derivative(t: np.ndarray) -> np.ndarray:
    """2/sqrt(pi) - 2 t erfcx(t), by its asymptotic series where the two terms would cancel."""
    far = np.maximum(t, 10.0)
    series = np.ones_like(t)
    for odd in range(25, 1, -2):
        series = 1 - odd / (2 * far * far) * series
    return np.where(
        t < 10,
        2 / math.sqrt(math.pi) - 2 * t * erfcx(t),
        series / (math.sqrt(math.pi) * far * far),
    )


def _zcdp_log_delta(rho: float, epsilon: float) -> float:
    """Logarithm of :func:`zcdp_delta`, in t = alpha - 1."""
    if rho == 0 or epsilon == math.inf:
        return -math.inf
    # delta is then within exp(-690) of 1, and 1 is always a bound.
    if rho - epsilon > 690:
        return 0.0
    # More rho means more delta, and leaves room below overflow.
    rho = max(rho, (epsilon + 1) * 1e-300)

    def slope(log_t: float) -> float:
        t = math.exp(log_t)
        return (2 * t + 1) * rho - epsilon - math.log1p(1 / t)

    largest = math.log((epsilon + 1) / rho)
    t = math.exp(brentq(slope, -700.0, largest, xtol=1e-14, maxiter=1000))
    return min(0.0, t * ((t + 1) * rho - epsilon) - (t + 1) * math.log1p(1 / t) - math.log(t))


def _smallest_epsilon(
    log_delta: Callable[[float, float], float], budget: float, delta: float
) -> float:
    """Epsilon at which ``log_delta(budget, .)`` meets delta."""
    if math.exp(log_delta(budget, 0.0)) <= delta:
        return 0.0
    if delta == 0:
        return math.inf

    def excess(epsilon: float) -> float:
        return log_delta(budget, epsilon) - math.log(delta)

    bound = budget
    while excess(bound) > 0:
        bound *= 2
    if math.isinf(bound):
        return math.inf
    epsilon = brentq(excess, 0.0, bound, xtol=1e-300, maxiter=2000) if excess(0.0) > 0 else 0.0
    step = max(_EPSILON_MARGIN * epsilon, math.ulp(delta))
    while math.exp(log_delta(budget, epsilon + step)) > delta:
        step *= 2
    return epsilon + step


def _largest_budget(
    log_delta: Callable[[float, float], float], epsilon: float, delta: float
) -> float:
    """Budget at which ``log_delta(., epsilon)`` meets delta."""
    if epsilon == math.inf:
        return math.inf
    if delta == 0:
        return 0.0
    # A smaller epsilon is only stricter, and leaves room below overflow.
    epsilon = min(epsilon, 1e300)

    def excess(log_budget: float) -> float:
        return log_delta(math.exp(log_budget), epsilon) - math.log(delta)

    high = 0.0
    while excess(high) < 0:
        high += 1
    while excess(high - 1) > 0:
        high -= 1
    budget = math.exp(brentq(excess, high - 1, high, xtol=1e-15))
    step = max(_BUDGET_MARGIN * budget, math.ulp(budget))
    while math.exp(log_delta(smaller := max(budget - step, 0.0), epsilon)) > delta:
        step *= 2
    return smaller


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _checked(name: str, value: float, valid: Callable[[float], bool], rule: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not valid(number):
        raise ValueError(f"{name} must be {rule}, got {value!r}.")
    return number


def _nonnegative(name: str, value: float) -> float:
    return _checked(name, value, lambda x: x >= 0, "a number of at least 0 (inf is allowed)")


def _probability(value: float) -> float:
    rule = "a number in [0, 1), well below 1 / n_samples"
    return _checked("delta", value, lambda x: 0 <= x < 1, rule)


def _renyi_order(value: float) -> float:
    return _checked("alpha", value, lambda x: x > 1, "a Renyi order above 1")


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
