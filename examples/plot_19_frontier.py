"""
How much privacy a wanted accuracy needs
========================================

A utility graph with several budgets shows on public rows what each epsilon and each number of
passes over the records buys: points on a line are not beaten in privacy and accuracy at once.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.study import UtilityGraph, UtilityGraphDisplay

X, y = make_census(8_000, random_state=0)
graph = UtilityGraph(
    DPLogisticRegression(delta=1e-6, classes=[0, 1]),
    {"max_iter": [5, 10, 22]},
    n_samples=20_000,
    n_repeats=2,
    epsilons=[0.1, 0.2, 0.5, 1.0],
)
results = graph.run(X, y)
for row in results.frontier():
    print(f"epsilon {row['epsilon']}: accuracy {row['accuracy']:.3f} in {row['passes']:g} passes")

# %%
# The least epsilon that reaches an accuracy of .82:
print(results.least_epsilon(accuracy=0.82))
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
display = UtilityGraphDisplay.from_results(
    results, parameters=["epsilon"], metrics=["accuracy"], by="max_iter"
)
display.plot(ax=axes)
plt.show()
