"""
Accuracy against epsilon
========================

The default classifiers lie between the majority class and a fit without privacy. The rows are an
artificial census. Bars are standard errors over five folds.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.study import compare

X, y = make_census(20_000, random_state=0)
models = {
    "DPLogisticRegression": DPLogisticRegression(classes=[0, 1]),
    "DPLinearSVM": DPLinearSVM(classes=[0, 1]),
    "without privacy": LogisticRegression(max_iter=1000),
}
results = compare({"census": (X, y)}, models, epsilons=[0.05, 0.1, 0.2, 0.5, 1, 2])

figure, axes = plt.subplots(figsize=(4.6, 3.2))
for name, fits in results.to_frame().groupby("estimator", sort=False):
    if fits["epsilon"].isna().all():
        axes.axhline(fits["accuracy"].mean(), color="0.5", linestyle="--", label=name)
        continue
    mean = fits.groupby("epsilon")["accuracy"].agg(["mean", "sem"])
    axes.errorbar(mean.index, mean["mean"], mean["sem"], marker="o", capsize=3, label=name)
axes.axhline(np.bincount(y).max() / len(y), color="0.5", linestyle=":", label="majority class")
axes.set(xscale="log", xlabel="epsilon (delta = 1e-6)", ylabel="accuracy on held-out rows")
axes.set_xticks(mean.index, [f"{epsilon:g}" for epsilon in mean.index])
axes.minorticks_off()
axes.set_title("20,000 records")
axes.legend()
plt.show()
