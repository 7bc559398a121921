"""
What many fits cost
===================

Fifty fits cost less than fifty times one. With exact Gaussian composition, epsilon grows about like
the square root of the number of fits while it is small.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression

n_fits = np.array([1, 2, 5, 10, 20, 35, 50])
figure, axes = plt.subplots(figsize=(4.6, 3.2))
for i, epsilon in enumerate((0.1, 0.3, 1.0)):
    one = DPLogisticRegression(epsilon=epsilon, delta=1e-6).plan(40_000, 51).ledger
    total = [sum([one] * (k - 1), start=one).epsilon(1e-6) for k in n_fits.tolist()]
    axes.plot(n_fits, total, marker="o", color=f"C{i}", label=f"fits of epsilon {epsilon:g}")
    axes.plot(n_fits, n_fits * epsilon, color=f"C{i}", linestyle=":")
axes.plot([], [], color="0.5", linestyle=":", label="number times epsilon")
axes.set(yscale="log", xlabel="number of fits", ylabel="epsilon of all fits")
axes.legend()
plt.show()
