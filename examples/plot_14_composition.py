"""
What many releases cost
=======================

Fifty fits do not cost fifty times one. Exact Gaussian composition grows about like the square root
of their number, as long as epsilon is small.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression

n_fits = np.array([1, 2, 5, 10, 20, 35, 50])
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
for i, epsilon in enumerate((0.1, 0.3, 1.0)):
    one = DPLogisticRegression(epsilon=epsilon, delta=1e-6).plan(40_000, 51).ledger
    total = [sum([one] * (k - 1), start=one).epsilon(1e-6) for k in n_fits.tolist()]
    axes.plot(n_fits, total, marker="o", color=f"C{i}", label=f"{epsilon:g} each, exactly")
    axes.plot(n_fits, n_fits * epsilon, color=f"C{i}", linestyle=":")
axes.set(yscale="log", xlabel="number of fits", ylabel="epsilon of all at delta = 1e-6")
axes.plot([], [], color="0.3", linestyle=":", label="number times epsilon")
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
