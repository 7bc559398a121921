"""
What the model says of each column
==================================

Each number adds a curve to the score, at no cost of privacy. The figure needs released
coefficients and the schema alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression, Schema
from dpglm.datasets import sample_from_schema
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
# Age matters at both ends, which no straight line can say.
# Where hardly anybody is, as at the highest incomes, a curve is mostly noise.
model = make_pipeline(
    schema.transformer(),
    DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]),
).fit(loans, default)
figure, axes = plt.subplots(4, figsize=(5, 11), sharey=True, layout="constrained")
ShapeDisplay.from_estimator(model).plot(ax=axes)
plt.show()

# %%
# Half of the budget buys intervals that count the noise. It would hide most of so fine a curve;
# four pieces can be told apart. Drawn is what each age adds, against the lowest.
schema = schema.additive(4)
model = DPLogisticRegression(
    epsilon=1.0, delta=1e-6, inference_fraction=0.5, preconditioner="full", classes=[0, 1]
)
model.fit(schema.transformer().fit_transform(loans), default)
found = model.inference(schema=schema)
ages, added = found.shape_function("age")
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
axes.plot(ages, added.value)
axes.fill_between(ages, added.low, added.high, alpha=0.3, linewidth=0)
axes.axhline(0, color="0.6", linewidth=1)
axes.set(xlabel="age", ylabel="added to the log-odds")
axes.set_title("with intervals at 95 percent, each age by itself")
axes.grid(alpha=0.25)
plt.show()

# %%
# By how much the risk of a default differs for an owner, all else equal, over rows that the schema
# allows:
rows, _ = sample_from_schema(schema, 2000, as_frame=True, random_state=0)
print(found.risk_difference(rows, "owner", True, False))
