"""
Coefficients with intervals
===========================

Intervals of a private fit must count the noise. Half of the budget (`inference_fraction`) measures
that noise here. The thick part of a bar is due to the draw of the records alone.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.schema import load_schema
from dpglm.study import plot

table, income = make_census(40_000, as_frame=True, random_state=0)
schema = load_schema("census")
chosen = ("age", "schooling", "hours", "commute", "employment", "sex")
schema = replace(schema, columns=[c for c in schema.columns if c.name in chosen])
schema = schema.additive(1)  # straight lines: numbers have one coefficient each
model = make_pipeline(
    schema.transformer(),
    DPLogisticRegression(
        epsilon=1.0, inference_fraction=0.5, preconditioner="full", classes=schema.classes
    ),
).fit(table[schema.feature_names], income)
found = model[-1].inference(schema=schema)
print(found.summary())

# Effects of ten years of age, five of schooling, and so on.
steps = [{"age": 10}, {"schooling": 5}, {"hours": 10}, {"commute": 60}]
steps += [{name: 1} for name in found.names[5:]]
figure, axes = plt.subplots(figsize=(5.2, 3.6))
plot(found.t_test(steps), ax=axes)
plt.show()
