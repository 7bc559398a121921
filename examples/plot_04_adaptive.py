"""
DP-AGD spends its budget
========================

`DPAGDClassifier` decides as it runs: it pays for a gradient, then for a choice among steps along
it, and when no step seems to help, it pays more for a better gradient. Everything shown was
released with noise.
"""

import matplotlib.pyplot as plt

from dpglm import DPAGDClassifier
from dpglm.datasets import make_census
from dpglm.study import FitTraceDisplay, PlanDisplay

X, y = make_census(20_000, random_state=0)
published = DPAGDClassifier.as_published(epsilon=0.8, delta=1e-8, classes=[0, 1]).fit(X, y)

# %%
# With the constants of the paper (Lee & Kifer 2018), a choice costs far more than a gradient.
figure, axes = plt.subplots(2, figsize=(5, 7), layout="constrained")
FitTraceDisplay.from_estimator(published).plot(ax=axes)
axes[0].set_title("as published")
plt.show()

# %%
# By default choices are cheap, and gradients many.
model = DPAGDClassifier(epsilon=0.8, delta=1e-8, classes=[0, 1]).fit(X, y)
figure, axes = plt.subplots(2, figsize=(5, 7), layout="constrained")
FitTraceDisplay.from_estimator(model).plot(ax=axes)
axes[0].set_title("by default")
plt.show()

# %%
# What is known before any data is the course without refinements, each of which leaves fewer
# iterations.
figure, axes = plt.subplots(4, figsize=(5, 10), layout="constrained")
PlanDisplay.from_plan(model.plan(*X.shape)).plot(ax=axes)
plt.show()
