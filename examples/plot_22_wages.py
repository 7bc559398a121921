"""
What bounds of columns are worth to a regression
================================================

Without bounds of columns the fit has to find their units. Years of birth are far from zero for
their spread, and the fit warns of them. Public bounds cost no privacy.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from dpglm import DPLinearRegression

rng, n = np.random.default_rng(0), 4_000


def draw(n):
    """Return artificial schooling, experience and year of birth, and wages."""
    schooling, experience = rng.integers(8, 21, n), rng.integers(0, 45, n)
    X = np.column_stack([schooling, experience, 2000 - experience - schooling])
    return X, 2 + 0.9 * schooling + 0.15 * experience + rng.gamma(2, 2.5, n)


low, high = np.array([0, 0, 1900]), np.array([20, 60, 2000])
X, wage = draw(n)
X_test, wage_test = draw(20_000)
bounded, bounded_test = ((rows - low) / (high - low) * 2 - 1 for rows in (X, X_test))

# %%
# Means of ten fits, with the standard deviation of one fit; dashed, least squares without privacy.
epsilons = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
cases = {
    "bounds of columns and wages": (bounded, bounded_test, {"max_row_norm": 2.0}),
    "bounds of wages": (X, X_test, {}),
}
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for label, (rows, rows_test, known) in cases.items():
    scores = np.array(
        [
            [
                r2_score(
                    wage_test,
                    DPLinearRegression(epsilon=epsilon, target_bounds=(0, 100), **known)
                    .fit(rows, wage)
                    .predict(rows_test),
                )
                for epsilon in epsilons
            ]
            for _ in range(10)
        ]
    )
    axes.errorbar(epsilons, scores.mean(axis=0), scores.std(axis=0), capsize=3, label=label)
axes.axhline(LinearRegression().fit(X, wage).score(X_test, wage_test), color="gray", ls="--")
axes.set(xscale="log", xlabel="epsilon", ylabel="R² on new rows", ylim=(-0.15, 0.65))
axes.set_xticks(epsilons, epsilons)
axes.minorticks_off()
axes.legend(loc="lower right")
plt.show()
