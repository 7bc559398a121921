"""What objective perturbation costs: a Gaussian trade-off, shifted by what the Jacobian adds.

Conventions
-----------
The coefficients w are the exact minimiser of ``sum_i l_i(w) + (lambda/2) ||w||^2 + b'w`` with
b ~ N(0, sigma^2 I). The penalty is on every coordinate, and each l_i is a convex function of
``x_i'w`` whose slope keeps its sign, as those of logistic and hinge losses do. L bounds the norm of
a record's gradient, and beta its largest second derivative, ``curvature ||x||^2``.

- ``mu`` is the sensitivity, L or 2 L under replace-one, over sigma.
- ``offset`` bounds what the change of variables from b to w adds to the privacy loss.

Formal guarantee: ``P(A) <= Phi(Phi^-1(e^offset Q(A)) + mu)`` for the laws P, Q of two neighbours,
either way round, and every event A. So the profile of a composition with other releases is
`shifted_delta` of the root of the sum of the squared mu and of the sum of the offsets.

It says that a pair of laws dominates (P, Q): N(mu, 1), and ``e^-offset N(0, 1)`` with the rest of
its mass on an atom that the first law misses. Dominating pairs compose by products (Zhu, Dong &
Wang 2022, "Optimal accounting of differential privacy via characteristic function"), and the
privacy loss of this one is that of the Gaussian pair, shifted by the offset.

Notes
-----
The map from w to ``b(w) = -sum_i grad l_i(w) - lambda w`` is one to one, so w has the density
``phi(b(w)) det H(w)``, H being the Hessian.

*One record more.* P has the record x and Q has not. Its gradient is ``t sigma u`` with u fixed, of
norm 1, and ``0 <= t(w) <= s = L/sigma``. Under P the loss is ``t Z + t^2/2 + log det(H_P/H_Q)``
with ``Z = u'b/sigma`` standard normal and ``0 <= log det = log(1 + l'' x'H_Q^-1 x) <= xi =
log(1 + beta/lambda)``. It is convex in t, hence at most ``max(0, s Z + s^2/2) + xi``; that of Q
against P, under Q, is at most ``max(0, s Z + s^2/2)``. With d the profile of N(s, 1) against
N(0, 1): ``delta_PQ(e) <= d(e - xi)`` for e >= xi, and ``delta_QP(e) <= d(e)`` for e >= 0, so that
``delta_PQ(-e) = 1 - e^-e (1 - delta_QP(e)) <= d(-e)``, and in between ``delta_PQ(e) <= d(0)``: the
first bound holds for all e. It holds for delta_QP as well. For ``1 - d(e) = e^(e/2) g(e)`` with g
even and falling in abs(e), so that at -e < 0 the claim is ``g(e + xi) <= g(e - xi)`` if e >= xi,
and ``e^((e - xi)/2) g(e + xi) <= g(0)`` otherwise. Minimising ``e^e Q(A) + d(e - xi)`` over e gives
the guarantee. Redberg, Koskela & Wang (2023, "Improving the privacy and practicality of objective
perturbation for differentially private linear learners") have abs(Z) in place of Z, hence twice
the delta, for slopes of either sign.

*One record for another.* Let the weight theta of x grow from 0 to 1 while that of x' falls from 1.
With p = ``P_theta(A)`` and ``z = Phi^-1(p)``, ``dp/dtheta <= 2 s phi(z) + j min(p, 1 - p)`` where
``j = beta / (lambda + min(theta, 1 - theta) beta)``. The ratio ``m = Phi/phi`` is log-convex, so
that ``Phi(Phi^-1(e^xi(theta) Q(A)) + 2 s theta)`` grows as fast if ``xi' = j m(0) / m(-2 s)``, and
``xi(1) = 2 log(1 + beta / (2 lambda)) / erfcx(sqrt(2) s)``.
"""

import math

from scipy.special import erfcx

from dpglm.privacy.conversions import gdp_delta, gdp_epsilon

__all__ = [
    "curvature_ratio",
    "jacobian_offset",
    "shifted_delta",
    "shifted_epsilon",
    "shifted_rdp",
]


def jacobian_offset(ratio: float, mu: float, neighboring_relation: str) -> float:
    """Return the offset of one objective perturbation.

    Parameters
    ----------
    ratio : float
        Largest second derivative of a record's loss over the penalty, ``beta / lambda``.
    mu : float
        Sensitivity of the gradient over the standard deviation of b, or more.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}

    Returns
    -------
    float
        ``log(1 + ratio)``, or ``2 log(1 + ratio/2) / erfcx(mu / sqrt 2)`` under replace-one.

    Examples
    --------
    >>> from dpglm.privacy.objective_perturbation_costs import jacobian_offset
    >>> round(jacobian_offset(0.1, 0.2, "zero_out"), 6)
    0.09531
    >>> round(jacobian_offset(0.1, 0.2, "replace_one"), 6)
    0.113666
    """
    if neighboring_relation != "replace_one":
        return math.log1p(ratio)
    return 2 * math.log1p(ratio / 2) / float(erfcx(mu / math.sqrt(2)))


def curvature_ratio(offset: float, mu: float, neighboring_relation: str) -> float:
    """Return the largest ``beta / lambda`` with this offset, the inverse of `jacobian_offset`.

    Parameters
    ----------
    offset, mu : float
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}

    Returns
    -------
    float

    Examples
    --------
    >>> from dpglm.privacy.objective_perturbation_costs import curvature_ratio, jacobian_offset
    >>> round(jacobian_offset(curvature_ratio(0.3, 1.0, "replace_one"), 1.0, "replace_one"), 12)
    0.3
    """
    if neighboring_relation != "replace_one":
        return math.expm1(offset)
    return 2 * math.expm1(offset * float(erfcx(mu / math.sqrt(2))) / 2)


def shifted_delta(mu: float, offset: float, epsilon: float) -> float:
    """Return the delta at ``epsilon`` of a Gaussian trade-off shifted by ``offset``.

    Parameters
    ----------
    mu, offset, epsilon : float
        At least 0.

    Returns
    -------
    float
        That of mu-GDP at ``epsilon - offset``, which may be negative.

    Examples
    --------
    >>> from dpglm.privacy.objective_perturbation_costs import shifted_delta
    >>> round(shifted_delta(1.0, 0.5, 1.5), 10)
    0.1269367375
    """
    rest = epsilon - offset
    if rest >= 0:
        return gdp_delta(mu, rest)
    return -math.expm1(rest) + math.exp(rest) * gdp_delta(mu, -rest)


def shifted_epsilon(mu: float, offset: float, delta: float) -> float:
    """Return an epsilon at ``delta`` of a Gaussian trade-off shifted by ``offset``.

    Parameters
    ----------
    mu, offset, delta : float

    Returns
    -------
    float
        The offset and the epsilon of mu-GDP; the least one unless delta is above the total
        variation distance of the latter.

    Examples
    --------
    >>> from dpglm.privacy.objective_perturbation_costs import shifted_epsilon
    >>> round(shifted_epsilon(0.2, 0.1, 1e-6), 6)
    0.934118
    """
    return offset + gdp_epsilon(mu, delta)


def shifted_rdp(mu: float, offset: float, alpha: float) -> float:
    """Return the Renyi divergence of order ``alpha``, ``offset + alpha mu^2 / 2``.

    Parameters
    ----------
    mu, offset, alpha : float
        The order is above 1.

    Returns
    -------
    float

    Notes
    -----
    ``E_Q (p/q)^alpha`` is the integral over c > 0 of ``alpha (alpha - 1) c^(alpha - 2) E_Q (p/q -
    c)_+``, and the last factor is at most what it is for N(mu, 1) and ``e^-offset N(0, 1)``. That
    is (offset, mu^2/2)-zCDP in the sense of Bun & Steinke (2016).

    Examples
    --------
    >>> from dpglm.privacy.objective_perturbation_costs import shifted_rdp
    >>> shifted_rdp(0.5, 0.25, 2.0)
    0.5
    """
    return offset + alpha * mu**2 / 2
