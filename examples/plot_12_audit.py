"""
An audit that catches a bug
===========================

An audit fits to artificial records, canaries, that are there or not by the flip of a coin, and
compares their scores with what the ledger claims. Here half of the noise is lost on the way, as
happens when a mean is taken for a sum or a variance for a standard deviation.
"""

from unittest import mock

import matplotlib.pyplot as plt

from dpglm import DPLogisticRegression
from dpglm.audit import audit_estimator
from dpglm.privacy import vault

model = DPLogisticRegression(epsilon=4.0, max_iter=5, preconditioner=None, clip_schedule=1.0)
draw = vault.rounded_gaussian


def half(size, scale, rng):
    return draw(size, scale / 2, rng)


sound = audit_estimator(model, n_canaries=1000)
with mock.patch.object(vault, "rounded_gaussian", half):
    broken = audit_estimator(model, n_canaries=1000)
print(broken)

# %%
# In units of the noise that was claimed, each histogram should have a standard deviation of one.
figure, axes = plt.subplots(2, figsize=(5, 8), layout="constrained")
for ax, report in zip(axes, (sound, broken), strict=True):
    found = report.parts[-1].evidence
    for there in (False, True):
        label = "present" if there else "absent"
        ax.hist(found.scores[found.present == there], bins=40, alpha=0.4, label=label)
    ax.set(title=report.verdict.partition(":")[0], xlabel="score of a canary")
    ax.legend()
plt.show()
