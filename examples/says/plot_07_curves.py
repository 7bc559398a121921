"""
What each column adds to the score
==================================

Each number enters the model as a piecewise-linear term, at no privacy cost. The figure needs the
released coefficients and the schema only. Bands hold 95 percent of the noise.

Age matters at both ends, which no straight line can show.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression, Schema
from dpglm.schema import BooleanColumn, CategoricalColumn, NumericColumn, Target
from dpglm.study import ShapeDisplay

purposes = ["car", "home", "study"]
schema = Schema(
    "loans",
    [
        NumericColumn("age", 18, 90, integer=True),
        NumericColumn("income", 5_000, 200_000, scale="asinh"),
        BooleanColumn("owner"),
        CategoricalColumn("purpose", purposes),
    ],
    Target("default", [0, 1]),
)
rng, n = np.random.default_rng(0), 30_000
loans = {
    "age": rng.integers(18, 91, n),
    "income": np.exp(rng.normal(10.5, 0.8, n)).clip(5_000, 200_000),
    "owner": rng.random(n) < 0.4,
    "purpose": rng.choice(purposes, n),
}
score = 2.5 * ((loans["age"] - 50) / 30) ** 2 - np.log1p(loans["income"] / 20_000)
score += 0.8 * (loans["purpose"] == "study") - 0.7 * loans["owner"]
default = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)

model = make_pipeline(
    schema.transformer(),
    DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]),
).fit(loans, default)
figure, axes = plt.subplots(2, 2, figsize=(7, 4.6), sharey=True)
ShapeDisplay.from_estimator(model).plot(ax=axes)
plt.show()
