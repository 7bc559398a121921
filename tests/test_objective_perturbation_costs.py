"""What objective perturbation costs: exact densities, published figures, composition."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.special import expit
from scipy.stats import norm

from dpglm.baselines.objective_perturbation import curvature_ratio, jacobian_offset
from dpglm.privacy.composition import dp_event
from dpglm.privacy.events import GaussianEvent, ObjectivePerturbationEvent
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS, gdp_delta, gdp_epsilon
from dpglm.privacy.ledger import PrivacyLedger


def shifted_delta(mu, offset, epsilon):
    """The delta of mu-GDP at ``epsilon - offset``, which may be negative."""
    rest = epsilon - offset
    if rest >= 0:
        return gdp_delta(mu, rest)
    return -math.expm1(rest) + math.exp(rest) * gdp_delta(mu, -rest)


def shifted_rdp(mu, offset, alpha):
    """The Renyi divergence of that profile.

    ``E_Q (p/q)^alpha`` is the integral over c > 0 of ``alpha (alpha - 1) c^(alpha - 2) E_Q (p/q -
    c)_+``, and the last factor is at most what it is for N(mu, 1) and ``e^-offset N(0, 1)``.
    """
    return offset + alpha * mu**2 / 2


def logistic_law(data, penalty, w):
    """Minus the gradient without tilt, and the Hessian, of the 1-D logistic objective."""
    x, y, a = data
    margins = np.outer(w, y * x)
    slope = expit(-margins) @ (a * y * x) - penalty * w
    return slope, (expit(margins) * expit(-margins)) @ (a * x * x) + penalty


def exact_deltas(P, Q, penalty, std, epsilons):
    """Profile of the exact minimisers by the change of variables and quadrature over the tilt."""
    z = np.linspace(-9, 9, 401)
    weights = norm.pdf(z) * (z[1] - z[0])
    reach = (np.abs(P[0] * P[2]).sum() + 9.5 * std) / penalty
    low, high = np.full(len(z), -reach), np.full(len(z), reach)
    for _ in range(45):
        middle = (low + high) / 2
        above = logistic_law(P, penalty, middle)[0] > z * std
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    (b_p, h_p), (b_q, h_q) = (logistic_law(D, penalty, (low + high) / 2) for D in (P, Q))
    loss = (b_q**2 - b_p**2) / (2 * std**2) + np.log(h_p / h_q)
    return [float(weights @ np.maximum(-np.expm1(np.minimum(e - loss, 0)), 0)) for e in epsilons]


def random_neighbours(rng):
    """A record of the largest norm beside up to a dozen others, of all weights and lengths."""
    n, bound = rng.integers(0, 12), 10 ** rng.uniform(-0.5, 1.5)
    x = rng.uniform(-bound, bound, n) * rng.choice([1, 0.01], n)
    y = rng.choice([-1.0, 1.0], n)
    a = rng.choice([1, 30.0, 1e4], n) * rng.random(n)

    def joined(x1, y1):
        return np.append(x, x1), np.append(y, y1), np.append(a, 1.0)

    other = joined(bound * rng.choice([1, -1, 0.1]), rng.choice([-1.0, 1.0]))
    return bound, (x, y, a), joined(bound, 1.0), other


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_profile_is_never_below_that_of_exact_densities(relation):
    rng = np.random.default_rng(0)
    closest = 0.0
    for _ in range(30):
        bound, without, with_record, replaced = random_neighbours(rng)
        penalty = 10 ** rng.uniform(-2, 2) * bound**2 / 4
        s = 10 ** rng.uniform(-1.5, 0.8)
        other = without if relation == "zero_out" else replaced
        mu = s * NEIGHBORING_RELATIONS[relation].sensitivity_factor
        offset = jacobian_offset(bound**2 / 4 / penalty, mu, relation)
        epsilons = [0.0, offset / 2, offset, offset + mu / 3, offset + mu, -offset / 2, -2 * mu]
        for P, Q in ((with_record, other), (other, with_record)):
            exact = exact_deltas(P, Q, penalty, bound / s, epsilons)
            for epsilon, delta in zip(epsilons, exact, strict=True):
                claimed = shifted_delta(mu, offset, epsilon)
                assert delta <= claimed * (1 + 1e-5) + 1e-7
                if epsilon > 0 and 1e-6 < claimed < 0.5:
                    closest = max(closest, delta / claimed)
    assert closest > 0.5, "the cases must come near the bound"


@pytest.mark.parametrize("relation", NEIGHBORING_RELATIONS)
def test_curvature_ratio_inverts_the_offset(relation):
    for offset, mu in itertools.product((1e-8, 0.1, 3.0, 20.0), (1e-3, 0.3, 4.0)):
        ratio = curvature_ratio(offset, mu, relation)
        assert jacobian_offset(ratio, mu, relation) == pytest.approx(offset, rel=1e-12)


def test_a_ledger_composes_events_in_closed_form():
    events = [ObjectivePerturbationEvent(4.4, 0.1)] * 3 + [GaussianEvent(40.0)]
    ledger = PrivacyLedger.from_events(events, reporting_delta=1e-6)
    mu = math.sqrt(3 / 4.4**2 + 1 / 40**2)
    assert ledger.protects
    assert ledger.epsilon() == pytest.approx(0.3 + gdp_epsilon(mu, 1e-6), rel=1e-12)
    for epsilon in (0.0, 0.15, 0.3, 1.5, 2.5):
        expected = shifted_delta(mu, 0.3, epsilon)
        assert ledger.delta(epsilon) == pytest.approx(expected, rel=1e-12)
    for unit in ("mu", "rho"):
        with pytest.raises(ValueError, match=f"{unit} is undefined"):
            getattr(ledger, unit)()


def test_the_event_is_concentrated_privacy_to_dp_accounting():
    event = ObjectivePerturbationEvent(4.0, 0.1)
    exported = dp_event(event, NEIGHBORING_RELATIONS["zero_out"])
    accountant = RdpAccountant([2.0]).compose(exported)
    assert accountant._rdp[0] == pytest.approx(shifted_rdp(0.25, 0.1, 2.0))


def test_an_event_without_noise_protects_nobody():
    silent = PrivacyLedger.from_events([ObjectivePerturbationEvent(0.0, 0.1)], reporting_delta=1e-6)
    assert not silent.protects
    assert ObjectivePerturbationEvent(4.0, 0.0).loss_variance == 1 / 16
