"""
How many records a budget needs
===============================

Noise is drawn once and shared by all records, so that what counts is n mu, the number of records
times the signal of the budget. Lines of equal n mu are lines of about equal accuracy.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.exceptions import UtilityWarning

# Where n mu is small a fit warns that it has learned little: that is what the figure shows.
warnings.simplefilter("ignore", UtilityWarning)

fresh, truth = make_census(50_000, random_state=99)
figure, axes = plt.subplots(figsize=(5, 4.4), layout="constrained")
for n in (1_000, 4_000, 16_000, 64_000):
    X, y = make_census(n, random_state=0)
    signal, accuracy = [], []
    for epsilon in (0.1, 0.3, 1.0, 3.0):
        model = DPLogisticRegression(epsilon=epsilon, delta=1e-6, classes=[0, 1])
        signal.append(model.plan(*X.shape).n_mu)
        accuracy.append([np.mean(model.fit(X, y).predict(fresh) == truth) for _ in range(4)])
    mean, error = np.mean(accuracy, axis=1), np.std(accuracy, axis=1, ddof=1) / 2
    axes.errorbar(signal, mean, error, marker="o", capsize=3, label=f"{n:,} records")
axes.axhline(np.mean(truth == 0), color="0.6", linestyle=":", label="majority")
axes.set(xscale="log", xlabel="n mu", ylabel="accuracy on fresh rows")
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
