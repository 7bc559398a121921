"""
How much privacy an accuracy needs
==================================

A utility graph shows on public rows which accuracy each epsilon allows. The private rows are not
read. `least_epsilon` names the smallest budget for a target.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.study import UtilityGraph

X, y = make_census(40_000, random_state=0)
graph = UtilityGraph(
    DPLogisticRegression(delta=1e-6, classes=[0, 1]),
    {"max_iter": [5, 10, 22], "epsilon": [0.05, 0.1, 0.3, 1.0]},
    n_samples=20_000,
    n_repeats=3,
)
results = graph.run(X, y)
print(results.least_epsilon(accuracy=0.82))

frame = results.to_frame().sort_values("epsilon")
figure, axes = plt.subplots(figsize=(4.6, 3.2))
for n_iter, rows in frame.groupby("param_max_iter"):
    axes.plot(rows["epsilon"], rows["accuracy"], marker="o", label=f"{n_iter} iterations")
axes.axhline(0.82, color="0.5", linestyle=":", label="target")
axes.set(xscale="log", xlabel="epsilon (delta = 1e-6)", ylabel="accuracy on public rows")
axes.set_xticks([0.05, 0.1, 0.3, 1.0], ["0.05", "0.1", "0.3", "1"])
axes.minorticks_off()
axes.legend()
plt.show()
