"""
Choose a run before touching the data
=====================================

How many iterations, which clip and step? A utility graph answers by simulation on public rows,
with the noise that the private fit will draw, and recommends one setting. No privacy is spent on
the choice.

Here the public rows are an artificial table made from the schema of the private one.
"""

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.datasets import sample_from_schema
from dpglm.schema import load_schema
from dpglm.study import UtilityGraph, plot

N_PRIVATE = 20_000  # public, or a public guess
GRID = {"max_iter": [10, 20, 40], "clip_schedule": [0.25, 0.5, 1.0], "step_schedule": [1.0, 3.0]}

# %%
# The table has the columns, bounds and categories of the schema; a tenth of its labels are
# "yes", which is what the bank would say of such campaigns beforehand.
schema = load_schema("bank")
X, y = sample_from_schema(schema, 8_000, class_shares=[0.9, 0.1], random_state=0)

# %%
# Each setting is fitted a few times at the budget that the private fit will have.
model = DPLogisticRegression(epsilon=0.5, delta=1e-6, preconditioner="full", classes=schema.classes)
results = UtilityGraph(model, GRID, n_samples=N_PRIVATE, n_repeats=3).run(X, y)
print(results)

# %%
# Grey dots are the settings, lines the best ones for each value, and the star what is recommended.
figure, axes = plt.subplots(3, figsize=(5, 10), layout="constrained")
plot(results, ax=axes)
plt.show()

# %%
# The recommended estimator is ready for the private records, and says what it will do to them.
print(results.recommended_estimator().plan(N_PRIVATE, X.shape[1]))
