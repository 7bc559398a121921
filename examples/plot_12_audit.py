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
from dpglm.study import plot

model = DPLogisticRegression(epsilon=4.0, max_iter=5, preconditioner=None, clip_schedule=1.0)
draw = vault.rounded_gaussian


def half(size, scale, rng):
    return draw(size, scale / 2, rng)


sound = audit_estimator(model, n_canaries=1000)
with mock.patch.object(vault, "rounded_gaussian", half):
    broken = audit_estimator(model, n_canaries=1000)
print(broken)

# %%
# Histograms are what was seen, lines what the claim predicts.
figure, axes = plt.subplots(2, figsize=(5, 8), layout="constrained")
plot(sound, ax=axes[0])
plot(broken, ax=axes[1])
plt.show()
