"""
A plan, before any data
=======================

Clip, noise and step of every iteration, and what they cost, follow from public numbers. A plan can
be looked at, and published, before the first record is read.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.study import PlanDisplay

plan = DPLogisticRegression(epsilon=1.0, delta=1e-6).plan(n_samples=40_000, n_features=51)
print(plan)

# %%
# Units of columns come first, then the sum of the rows and their second moment around the mean,
# which take 15 percent of the budget. Twenty-two equal gradients share the rest: epsilon grows like
# the square root of what was released.
figure, axes = plt.subplots(4, figsize=(5, 10), layout="constrained")
PlanDisplay.from_plan(plan).plot(ax=axes)
plt.show()
