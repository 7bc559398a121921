"""
How many records a budget needs
===============================

Accuracy depends on n mu, the number of records times the mu of the budget. All records share the
noise of a fit, so twice the records allow about half the epsilon.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.exceptions import UtilityWarning

# A fit warns where n mu is small. The figure shows such fits on purpose.
warnings.simplefilter("ignore", UtilityWarning)

fresh, truth = make_census(50_000, random_state=99)
figure, axes = plt.subplots(figsize=(4.6, 3.2))
for n in (1_000, 4_000, 16_000, 64_000):
    X, y = make_census(n, random_state=0)
    n_mu, accuracy = [], []
    for epsilon in (0.1, 0.3, 1.0, 3.0):
        model = DPLogisticRegression(epsilon=epsilon, delta=1e-6, classes=[0, 1])
        n_mu.append(model.plan(*X.shape).n_mu)
        accuracy.append([np.mean(model.fit(X, y).predict(fresh) == truth) for _ in range(4)])
    mean, error = np.mean(accuracy, axis=1), np.std(accuracy, axis=1, ddof=1) / 2
    axes.errorbar(n_mu, mean, error, marker="o", capsize=3, label=f"{n:,} records")
axes.axhline(np.mean(truth == 0), color="0.5", linestyle=":", label="majority class")
axes.set(xscale="log", xlabel="n mu", ylabel="accuracy on fresh rows")
axes.set_title("epsilon 0.1, 0.3, 1 and 3")
axes.legend()
plt.show()
