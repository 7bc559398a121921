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

X, y = make_census(20_000, random_state=0)
budget = {"epsilon": 0.8, "delta": 1e-8, "classes": [0, 1]}
models = {
    "as published": DPAGDClassifier.as_published(**budget).fit(X, y),
    "by default": DPAGDClassifier(**budget).fit(X, y),
}

# %%
# With the constants of the paper (Lee & Kifer 2018), a choice costs far more than a gradient. By
# default choices are cheap, and gradients many.
figure, axes = plt.subplots(2, 2, figsize=(8, 5), layout="constrained", sharex="col")
for (left, right), (name, model) in zip(axes, models.items(), strict=True):
    trace = model.trace_.to_frame()
    for release, rows in trace.groupby("release", sort=False):
        left.plot(rows.index, rows["remaining"], ".", label=release.replace("_", " "))
        right.plot(rows.index, rows["step"], ".")
    left.set(title=name, ylabel="budget that is left", xlabel="release")
    right.set(title=name, ylabel="chosen step", xlabel="release")
axes[0, 0].legend(frameon=False)
plt.show()
