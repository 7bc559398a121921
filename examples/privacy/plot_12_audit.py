"""
An audit that catches a bug
===========================

An audit fits to canaries: artificial records, present or absent by the flip of a coin. Their scores
must have the noise that the ledger states. Below, a planted bug loses half of the noise.
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

# In units of the stated noise, each histogram should have a standard deviation of one.
figure, panels = plt.subplots(2, figsize=(4.6, 3.6), sharex=True)
for axes, report in zip(panels, (sound, broken), strict=True):
    found = report.parts[-1].evidence
    for present in (False, True):
        label = "present" if present else "absent"
        axes.hist(found.scores[found.present == present], bins=40, alpha=0.5, label=label)
    axes.set_title(report.verdict.partition(":")[0])
panels[0].legend()
panels[1].set_xlabel("score of a canary")
plt.show()
