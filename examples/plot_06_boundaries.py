"""
Thirty private boundaries
=========================

Each line is the boundary of one fit to the same four hundred points. Noise differs from fit to
fit, and that is what protects: nobody can tell from one line whether one point was there.

Thirty fits to the same records cost far more than one; these records are artificial.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

from dpglm import DPLogisticRegression

X, y = make_blobs(400, centers=[[-0.5, -0.3], [0.5, 0.3]], cluster_std=0.35, random_state=0)
x = np.array([-1.8, 1.8])

figure, panels = plt.subplots(3, figsize=(5, 11), layout="constrained")
for axes, epsilon in zip(panels, (0.3, 1.0, 5.0), strict=True):
    axes.scatter(*X.T, c=y, cmap="coolwarm", s=8, alpha=0.6)
    for _ in range(30):
        model = DPLogisticRegression(epsilon=epsilon, delta=1e-6, classes=[0, 1]).fit(X, y)
        (a, b), c = model.coef_[0], model.intercept_[0]
        axes.plot(x, -(a * x + c) / b, color="0.2", linewidth=0.8, alpha=0.5)
    axes.set(xlim=x, ylim=(-1.4, 1.4), title=f"epsilon {epsilon:g}")
plt.show()
