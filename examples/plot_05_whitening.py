"""
What whitening sees through the noise
=====================================

A noisy second moment of the features, around their noisy mean, comes before the descent. Directions
that stand out from its noise are kept, the others get the ridge: descent then runs where all
directions are about equally steep. What is drawn is the second moment that both releases make up.

The exact eigenvalues are not released; they are shown because these rows are artificial.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census

X, y = make_census(20_000, random_state=0)
rows = np.hstack([X, np.ones((len(X), 1))])
exact = np.linalg.eigvalsh(rows.T @ rows / len(X))[::-1]

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
axes.plot(range(1, len(exact) + 1), exact, color="0.3", linestyle="--", label="exact")
for epsilon in (0.1, 1.0, 10.0):
    model = DPLogisticRegression(epsilon=epsilon, classes=[0, 1]).fit(X, y)
    whitening = model.trace_.whitening
    values = np.linalg.eigvalsh(whitening.moment)[::-1]
    label = f"epsilon {epsilon:g}: d = {whitening.effective_dimension:.0f}"
    axes.plot(range(1, len(values) + 1), values, label=label)
axes.set(yscale="log", ylim=(1e-4, 10), xlabel="direction", ylabel="mean square along it")
axes.set_title("the second moment, as releases tell it")
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
