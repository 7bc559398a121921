"""Bounds, from a ledger, on attacks that infer whether a record was there.

The attacker knows all other records and everything that was released. The attack must distinguish
two neighbouring data sets: with the record, and without it (or with another one, under
``"replace_one"``).
"""

import math
from contextlib import suppress

import numpy as np
from scipy.special import ndtr, ndtri

from dpglm.checks import check_number
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger

_N_LINES = 33  # speed only


def attack_success(ledger: PrivacyLedger, prior: float = 0.5) -> float:
    """Return the largest chance to guess right whether a record was there; 1 if noise has a seed.

    Let the prior p that it was there be at most 1/2, and e = log((1 - p) / p). An attack with true
    and false positive rates t and f is right with probability ``(1 - p) (1 - f) + p t =
    (1 - p) + p (t - exp(e) f)``, and ``t - exp(e) f`` is at most delta(e). Above 1/2 the two data
    sets change places.
    """
    prior = check_number("prior", prior, above=0, below=1)
    if ledger.seeded:
        return 1.0
    rarer = min(prior, 1 - prior)
    return (1 - rarer) + rarer * ledger.delta(math.log((1 - rarer) / rarer))


def attack_power(
    ledger: PrivacyLedger, false_positive_rate: float | np.ndarray
) -> float | np.ndarray:
    """Return the largest true positive rate of an attack with this one; 1 if noise has a seed.

    A Gaussian trade-off has the bound ``Phi(mu + Phi^-1(f))`` (Dong, Roth & Su 2022), exact for
    Gaussian releases. Other releases have the bounds ``delta(e) + exp(e) f`` and ``1 - exp(-e)
    (1 - f - delta(e))`` at every epsilon e. The result is the least of all bounds on a grid of e.
    """
    given = np.asarray(false_positive_rate, dtype=object)
    rates = [check_number("false_positive_rate", r, above=0, below=1) for r in given.ravel()]
    rate = np.reshape(rates, given.shape)
    bounds = [np.ones_like(rate)]
    if ledger.seeded or not ledger.protects:
        return bounds[0][()]
    with suppress(ValueError):
        bounds.append(ndtr(ledger.mu() + ndtri(rate)))
    if {event.kind for event, _ in ledger.events} != {GaussianEvent.kind}:
        for epsilon in np.linspace(0.0, min(ledger.epsilon(), 50.0), _N_LINES).tolist():
            delta = ledger.delta(epsilon)
            bounds.append(delta + math.exp(epsilon) * rate)
            bounds.append(1 - math.exp(-epsilon) * (1 - rate - delta))
    return np.min(bounds, axis=0)


def posterior(ledger: PrivacyLedger, prior: float, false_positive_rate: float) -> float:
    """Return the largest chance that a record was there, given that an attack says so.

    By Bayes' rule ``p t / (p t + (1 - p) f)``, with t the `attack_power` at f.
    """
    prior = check_number("prior", prior, above=0, below=1)
    right = prior * attack_power(ledger, false_positive_rate)
    return right / (right + (1 - prior) * false_positive_rate)
