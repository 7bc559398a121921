"""
Schedules side by side
======================

A noise schedule is a shape. The plan scales the whole of it to the budget, so that these four cost
exactly the same: who wants less noise late has more of it early. Below, a grid search tries
schedules by name, on public rows.
"""

import matplotlib.pyplot as plt
from sklearn.model_selection import GridSearchCV

from dpglm import DPLogisticRegression, make_census
from dpglm.schedules import DynamicNoise, ExponentialDecay

shapes = {
    "constant": "constant",
    "ExponentialDecay(ratio=0.97)": ExponentialDecay(ratio=0.97),
    "DynamicNoise(decay=4)": DynamicNoise(decay=4.0),
    "ExponentialDecay(ratio=1.03)": ExponentialDecay(ratio=1.03),
}
figure, (noise, cost) = plt.subplots(2, figsize=(5, 7), sharex=True, layout="constrained")
for name, shape in shapes.items():
    model = DPLogisticRegression(
        epsilon=1.0, noise_schedule=shape, max_iter=60, preconditioner=None
    )
    plan = model.plan(n_samples=40_000, n_features=51)
    noise.plot(range(1, 61), plan.noise_multiplier, label=name)
    cost.plot(range(1, 61), [plan.epsilon_after(k) for k in range(1, 61)])
noise.set(yscale="log", ylabel="noise multiplier", title="the noise of each iteration")
cost.set(xlabel="iteration", ylabel="epsilon so far", title="and what has been spent after it")
for axes in (noise, cost):
    axes.grid(alpha=0.25)
figure.legend(loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# Names in a grid
# ---------------
#
# Each name works on the defaults, and takes nested parameters. The rows are artificial: on private
# ones each fit would cost its epsilon, and the scores are exact (`PrivateSearchCV` pays once).

X, y = make_census(4000, random_state=0)
names = ["constant", "decaying", "inverse_time"]
grid = [
    {"noise_schedule": ["constant", "dynamic"], "step_schedule": ["auto", "convex", "smooth"]},
    {"noise_schedule": ["dynamic"], "noise_schedule__decay": [2.0, 4.0]},
    {"clip_schedule": names[:2], "step_schedule": names},
]
search = GridSearchCV(DPLogisticRegression(classes=[0, 1]), grid, cv=3).fit(X, y)
results = search.cv_results_
for score, params in zip(results["mean_test_score"], results["params"], strict=True):
    print(f"{score:.3f}  {params}")
