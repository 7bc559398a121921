"""What published programs release, in the few lines that their guarantees depend on."""

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
    """A logistic regression of one feature without intercept, fitted as someone published it."""

    def __init__(self, epsilon=1.0, delta=0.0, data_norm=1.0, alpha=1.0):
        self.epsilon = epsilon
        self.delta = delta
        self.data_norm = data_norm
        self.alpha = alpha

    def fit(self, X, y):
        rng = self._generator()
        x, sign = X[:, 0], 2 * np.asarray(y) - 1
        tilt, penalty, output_std = self._noise(rng, len(x))

        def slope(w):
            return -(sign * x) @ expit(-sign * x * w) + penalty * w + tilt

        reach = (np.abs(x).sum() + abs(tilt) + 1) / penalty
        w = brentq(slope, -reach, reach, xtol=1e-300, rtol=1e-14)
        self.coef_ = np.array([[w + output_std * rng.normal()]])
        return self

    def _generator(self):
        return np.random.default_rng()


class ObjectivePerturbationOfDiffprivlib(_OneFeature):
    """diffprivlib 0.6.6: objective perturbation, with the curvature R/4 in place of R^2/4."""

    def curvature(self):
        return self.data_norm / 4

    def _noise(self, rng, n_samples):
        curvature = self.curvature()
        left = self.epsilon - 2 * math.log(1 + curvature / (0.5 * self.alpha))
        extra = 0.0
        if left <= 0:
            extra = curvature / math.expm1(self.epsilon / 4) - 0.5 * self.alpha
            left = self.epsilon / 2
        return rng.laplace(scale=2 * self.data_norm / left), self.alpha + extra, 0.0


class ObjectivePerturbationCorrected(ObjectivePerturbationOfDiffprivlib):
    """The same with the curvature of Chaudhuri, Monteleoni & Sarwate (2011)."""

    def curvature(self):
        return self.data_norm**2 / 4


class OutputPerturbationOfUnitLipschitz(_OneFeature):
    """Output perturbation with L = 1, whatever the norm of the rows."""

    lipschitz = 1.0

    def _noise(self, rng, n_samples):
        # The noise of a pure guarantee, in one dimension: Laplace of 2 L / (penalty epsilon).
        self._scale = 2 * self.lipschitz / (self.alpha * self.epsilon)
        return 0.0, self.alpha, 0.0

    def fit(self, X, y):
        super().fit(X, y)
        self.coef_ = self.coef_ + self._generator().laplace(scale=self._scale)
        return self


class OutputPerturbationCorrected(OutputPerturbationOfUnitLipschitz):
    """The same with a Lipschitz constant of the largest norm."""

    @property
    def lipschitz(self):
        return self.data_norm


class SeedOfOneByte(OutputPerturbationCorrected):
    """Noise of the right size from a generator that is seeded with one byte."""

    def _generator(self):
        return np.random.default_rng(int(np.random.default_rng().integers(256)))


class NoisyMinOfDPAGD(_Published):
    """DP-AGD, ``common/noisy_max.py``: the exponential noise has the sign of the losses.

    One choice among 21 weights of a constant, by their clipped losses; ``coef_`` is the choice.
    """

    sign = 1.0

    def __init__(self, epsilon=0.5, delta=0.0, clip=3.0):
        self.epsilon = epsilon
        self.delta = delta
        self.clip = clip

    def fit(self, X, y):
        # One record's losses at 21 candidates: the same but for one candidate, or all zero.
        losses = np.zeros(21)
        losses[1:] = self.clip * (X[0] != 0).any()
        noise = np.random.default_rng().exponential(self.clip / self.epsilon, size=21)
        # A tiny number that is different every time, as coefficients without ties would be.
        own = 1e-9 * np.random.default_rng().random()
        self.coef_ = np.array([[float(np.argmin(losses + self.sign * noise) == 0) + own]])
        return self


class NoisyMinCorrected(NoisyMinOfDPAGD):
    """The same with the noise subtracted from the losses."""

    sign = -1.0
