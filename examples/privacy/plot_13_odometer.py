"""
The odometer of a study
=======================

An odometer writes the cost of every fit to a file before its first release. It refuses a fit that
would exceed the limit. The limit is the guarantee of the whole study.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from dpglm import DPLinearSVM, DPLogisticRegression, PrivacyOdometer
from dpglm.datasets import make_census
from dpglm.exceptions import BudgetExceededError
from dpglm.study import plot

X, y = make_census(5_000, random_state=0)
models = [
    DPLogisticRegression(epsilon=0.5, classes=[0, 1]),
    DPLinearSVM(epsilon=0.5, classes=[0, 1]),
    DPLogisticRegression(epsilon=1.0, alpha=1e-4, classes=[0, 1]),
    DPLogisticRegression(epsilon=0.3, classes=[0, 1]),
    DPLinearSVM(epsilon=2.0, classes=[0, 1]),
]
with PrivacyOdometer(Path(tempfile.mkdtemp()) / "study.db", epsilon=2.0) as odometer:
    for model in models:
        try:
            model.fit(X, y)
        except BudgetExceededError as error:
            print(error)
print(odometer)
print(f"One more fit may have epsilon {odometer.remaining():.3f}.")

# Four fits with a sum of 2.3 used less: Gaussian releases add up in mu squared.
figure, axes = plt.subplots(figsize=(4.6, 3.2))
plot(odometer, ax=axes)
plt.show()
