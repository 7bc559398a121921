"""
What the model says of each column
==================================

With `Schema.additive()` each number adds a curve to the score instead of a straight line, at no
cost of privacy. The figure needs released coefficients and the schema alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression, Schema
from dpglm.schema import BooleanColumn, CategoricalColumn, NumericColumn, Target
from dpglm.study import ShapeDisplay

schema = Schema(
    "loans",
    [
        NumericColumn("age", 18, 90, integer=True),
        NumericColumn("income", 5_000, 200_000, scale="asinh"),
        BooleanColumn("owner"),
        CategoricalColumn("purpose", ["car", "house", "study", "other"]),
    ],
    Target("default", [0, 1]),
)
rng, n = np.random.default_rng(0), 30_000
loans = {
    "age": rng.integers(18, 91, n),
    "income": np.exp(rng.normal(10.5, 0.8, n)).clip(5_000, 200_000),
    "owner": rng.random(n) < 0.4,
    "purpose": rng.choice(["car", "house", "study", "other"], n),
}
score = 2.5 * ((loans["age"] - 50) / 30) ** 2 - np.log1p(loans["income"] / 20_000)
score += 0.8 * (loans["purpose"] == "study") - 0.7 * loans["owner"]
default = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)

# %%
# Age matters at both ends, which no straight line can say. Where hardly anybody is, as at the
# highest incomes, a curve is mostly noise.
plan = DPLogisticRegression(epsilon=1.0, delta=1e-6).plan(n, 4)
model = make_pipeline(
    schema.additive(signal=plan.signal).transformer(),
    DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]),
).fit(loans, default)
figure, axes = plt.subplots(4, figsize=(5, 11), sharey=True, layout="constrained")
ShapeDisplay.from_estimator(model).plot(ax=axes)
plt.show()
