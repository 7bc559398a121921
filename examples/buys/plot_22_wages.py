"""
What public bounds buy in a regression
======================================

A regression without public bounds spends budget on the units of its columns. Years of birth are far
from zero and vary little, so a noisy unit costs much accuracy. Public bounds cost no privacy.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from dpglm import DPLinearRegression
from dpglm.exceptions import UtilityWarning

# A fit warns of columns whose unit it could not find. The figure shows such fits on purpose.
warnings.simplefilter("ignore", UtilityWarning)
rng = np.random.default_rng(0)


def draw(n):
    """Return artificial schooling, experience and year of birth, and wages."""
    schooling, experience = rng.integers(8, 21, n), rng.integers(0, 45, n)
    X = np.column_stack([schooling, experience, 2000 - experience - schooling])
    return X, 2 + 0.9 * schooling + 0.15 * experience + rng.gamma(2, 2.5, n)


low, high = np.array([0, 0, 1900]), np.array([20, 60, 2000])
X, wage = draw(4_000)
X_test, wage_test = draw(20_000)
bounded, bounded_test = ((rows - low) / (high - low) * 2 - 1 for rows in (X, X_test))

epsilons = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
cases = {
    "bounds of columns and wages": (bounded, bounded_test, {"max_row_norm": 2.0}),
    "bounds of wages": (X, X_test, {}),
}
figure, axes = plt.subplots(figsize=(4.6, 3.2))
for label, (rows, rows_test, known) in cases.items():
    scores = np.empty((10, len(epsilons)))
    for (i, j), _ in np.ndenumerate(scores):
        model = DPLinearRegression(epsilon=epsilons[j], target_bounds=(0, 100), **known)
        scores[i, j] = r2_score(wage_test, model.fit(rows, wage).predict(rows_test))
    # The mean of ten fits, and the standard deviation of one.
    axes.errorbar(
        epsilons, scores.mean(axis=0), scores.std(axis=0), marker="o", capsize=3, label=label
    )
reached = LinearRegression().fit(X, wage).score(X_test, wage_test)
axes.axhline(reached, color="0.5", linestyle="--", label="without privacy")
axes.set(xscale="log", xlabel="epsilon (delta = 1e-6)", ylabel="R² on fresh rows", ylim=(-0.2, 0.7))
axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
axes.minorticks_off()
axes.legend()
plt.show()
