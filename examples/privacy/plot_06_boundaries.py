"""
Thirty private boundaries
=========================

Each line is the boundary of one fit to the same 400 points. The noise differs from fit to fit, so
one line does not show whether one point was there.

Thirty fits to the same records cost far more than one. These records are artificial.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

from dpglm import DPLogisticRegression

X, y = make_blobs(400, centers=[[-0.5, -0.3], [0.5, 0.3]], cluster_std=0.35, random_state=0)
x = np.array([-1.8, 1.8])

figure, panels = plt.subplots(1, 3, figsize=(7, 2.8), sharey=True)
for axes, epsilon in zip(panels, (0.3, 1.0, 5.0), strict=True):
    for label, color in ((0, "C0"), (1, "C1")):
        axes.scatter(*X[y == label].T, color=color, s=8, alpha=0.6)
    for _ in range(30):
        model = DPLogisticRegression(epsilon=epsilon, delta=1e-6, classes=[0, 1]).fit(X, y)
        (a, b), c = model.coef_[0], model.intercept_[0]
        axes.plot(x, -(a * x + c) / b, color="0.5", linewidth=1, alpha=0.7)
    axes.set(xlim=x, ylim=(-1.4, 1.4), xticks=[], yticks=[])
    axes.set_title(f"epsilon {epsilon:g}", fontsize=15)
plt.show()
