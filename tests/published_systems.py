"""What published programs release, in the few lines that their guarantees depend on.

Each is fitted as it was published, or `corrected`.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.base import BaseEstimator


class _Published(BaseEstimator):
    """Made for thousands of fits, each of a clone: that of scikit-learn takes longer than a fit."""

    def __sklearn_clone__(self):
        return type(self)(**vars(self))


class _OneFeature(_Published):
    """A logistic regression of one feature without intercept."""

    def __init__(self, epsilon=1.0, delta=0.0, data_norm=1.0, alpha=1.0, corrected=False):
        self.epsilon = epsilon
        self.delta = delta
        self.data_norm = data_norm
        self.alpha = alpha
        self.corrected = corrected

    def fit(self, X, y):
        rng = self._generator()
        x, sign = X[:, 0], 2 * np.asarray(y) - 1
        tilt, penalty, output = self._noise(rng)

        def slope(w):
            return -(sign * x) @ expit(-sign * x * w) + penalty * w + tilt

        reach = (np.abs(x).sum() + abs(tilt) + 1) / penalty
        w = brentq(slope, -reach, reach, xtol=1e-300, rtol=1e-14)
        self.coef_ = np.array([[w + output]])
        return self

    def _generator(self):
        return np.random.default_rng()


class ObjectivePerturbationOfDiffprivlib(_OneFeature):
    """diffprivlib 0.6.6: objective perturbation, with the curvature R/4 in place of R^2/4.

    That is the curvature of Chaudhuri, Monteleoni & Sarwate (2011).
    """

    def _noise(self, rng):
        curvature = self.data_norm ** (2 if self.corrected else 1) / 4
        left = self.epsilon - 2 * math.log(1 + curvature / (0.5 * self.alpha))
        extra = 0.0
        if left <= 0:
            extra = curvature / math.expm1(self.epsilon / 4) - 0.5 * self.alpha
            left = self.epsilon / 2
        return rng.laplace(scale=2 * self.data_norm / left), self.alpha + extra, 0.0


class OutputPerturbationOfUnitLipschitz(_OneFeature):
    """Output perturbation with L = 1, whatever the norm of the rows."""

    def _noise(self, rng):
        # The noise of a pure guarantee, in one dimension: Laplace of 2 L / (penalty epsilon).
        lipschitz = self.data_norm if self.corrected else 1.0
        return 0.0, self.alpha, rng.laplace(scale=2 * lipschitz / (self.alpha * self.epsilon))


class SeedOfOneByte(OutputPerturbationOfUnitLipschitz):
    """Noise of the right size for rows of norm 1, from a generator seeded with one byte."""

    def _generator(self):
        fresh = np.random.default_rng()
        return fresh if self.corrected else np.random.default_rng(int(fresh.integers(256)))


class NoisyMinOfDPAGD(_Published):
    """DP-AGD, ``common/noisy_max.py``: exponential noise is added to losses, not subtracted.

    One choice among 21 weights of a constant, by their clipped losses; ``coef_`` is the choice.
    """

    def __init__(self, epsilon=0.5, delta=0.0, clip=3.0, corrected=False):
        self.epsilon = epsilon
        self.delta = delta
        self.clip = clip
        self.corrected = corrected

    def fit(self, X, y):
        # One record's losses at 21 candidates: the same but for one candidate, or all zero.
        losses = np.zeros(21)
        losses[1:] = self.clip * (X[0] != 0).any()
        noise = np.random.default_rng().exponential(self.clip / self.epsilon, size=21)
        noisy = losses - noise if self.corrected else losses + noise
        # A tiny number that is different every time, as coefficients without ties would be.
        own = 1e-9 * np.random.default_rng().random()
        self.coef_ = np.array([[float(np.argmin(noisy) == 0) + own]])
        return self
