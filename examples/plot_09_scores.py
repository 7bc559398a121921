"""
ROC, calibration and confusion, with noise and intervals
========================================================

Scores on private records are releases too. `private_scores` answers with noise, says how sure each
number is, and what all of them cost.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.study import plot
from dpglm.workflow import private_scores, private_train_test_split

X, y = make_census(40_000, random_state=0)
X, X_held, y, y_held = private_train_test_split(X, y)
model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X, y)
scores = private_scores(model, X_held, y_held, epsilon=1.0)
print(scores)

# %%
# Bands are intervals at 95 percent for the population, noise included.
figure, axes = plt.subplots(3, figsize=(5, 12), layout="constrained")
plot(scores, ax=axes)
plt.show()
