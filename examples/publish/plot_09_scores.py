"""
ROC, calibration and confusion matrix
=====================================

A score on private records is a release too. `private_scores` adds noise, gives each number an
interval, and states the cost. Bands hold 95 percent, noise included.
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

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
plot(scores, ax=axes)
plt.show()
