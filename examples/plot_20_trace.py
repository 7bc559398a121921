"""
What a fit released
===================

Every iteration releases a gradient with noise, and `trace_` keeps it. The figure shows how long it
is beside the noise alone: once the two meet, there is nothing left to learn at this budget.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.study import FitTraceDisplay

X, y = make_census(20_000, random_state=0)
model = DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
print(model.privacy_)

# %%
figure, axes = plt.subplots(3, figsize=(5, 9), layout="constrained")
FitTraceDisplay.from_estimator(model).plot(ax=axes)
plt.show()
