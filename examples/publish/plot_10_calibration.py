"""
Calibrate on held-out records
=============================

An SVM has scores and no probabilities. `PrivateCalibratedClassifier` counts held-out records by
score and label with noise. Its map turns scores into probabilities.

The figure counts artificial rows without noise.
"""

import matplotlib.pyplot as plt
from scipy.special import expit
from sklearn.calibration import CalibrationDisplay

from dpglm import DPLinearSVM
from dpglm.datasets import make_census
from dpglm.workflow import PrivateCalibratedClassifier

X, y = make_census(30_000, random_state=0)
fresh, truth = make_census(30_000, random_state=1)
svm = DPLinearSVM(epsilon=1.0, classes=[0, 1]).fit(X[:20_000], y[:20_000])
calibrated = PrivateCalibratedClassifier(svm, epsilon=1.0).fit(X[20_000:], y[20_000:])

figure, axes = plt.subplots(figsize=(4.6, 3.6))
for name, probability in {
    "scores taken for log-odds": expit(svm.decision_function(fresh)),
    "calibrated": calibrated.predict_proba(fresh)[:, 1],
}.items():
    CalibrationDisplay.from_predictions(truth, probability, n_bins=12, name=name, ax=axes)
axes.set(xlabel="predicted probability", ylabel="share of positive labels")
plt.show()
