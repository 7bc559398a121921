"""
The odometer of a study
=======================

Inside of its block every fit is written to a file before its first release, and refused if it
would exceed the limit. The limit is the guarantee of the whole study, whatever is fitted next
because of earlier results.
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

# %%
# Four fits of 2.3 in sum have used less than that: Gaussian releases add up in mu squared.
display = plot(odometer)
display.figure_.set_size_inches(5, 3.6)
plt.show()
