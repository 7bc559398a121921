"""What published programs release, in the few lines that their guarantees depend on.

Each is fitted as it was published, or `corrected`.
"""

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
