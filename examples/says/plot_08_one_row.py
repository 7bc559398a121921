"""
Why this row got this score
===========================

`explain_local` splits the score of a row into what each column adds. The model is released and may
be shown. An explanation of a row is as private as the row.
"""

import matplotlib.pyplot as plt
from sklearn.pipeline import make_pipeline

from dpglm import DPLogisticRegression
from dpglm.datasets import make_census
from dpglm.schema import load_schema
from dpglm.study import explain_local

table, labels = make_census(20_000, as_frame=True, random_state=0)
schema = load_schema("census")
model = make_pipeline(
    schema.transformer(), DPLogisticRegression(epsilon=1.0, classes=schema.classes)
).fit(table, labels)

row = table.iloc[[3]].round(1)
terms = explain_local(model, row).iloc[0].drop("(intercept)")
terms = terms[terms.abs().sort_values().index]

figure, axes = plt.subplots(figsize=(5.2, 3.6))
names = [f"{name} = {row[name].iloc[0]}" for name in terms.index]
axes.barh(names, terms, color=["C5" if term < 0 else "C0" for term in terms])
axes.axvline(0, color="0.5", linewidth=1)
axes.set(xlabel="added to the log-odds")
axes.set_title(f"probability {model.predict_proba(row)[0, 1]:.2f}")
axes.grid(axis="y", visible=False)
plt.show()
