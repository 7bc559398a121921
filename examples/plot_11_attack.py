"""
What an attacker can do
=======================

Somebody knows every record but one and sees all that was released. The curves bound how often that
person can be right that the record was there, against how often a claim is wrong.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.privacy.attacks import attack_power, attack_success

rates = np.linspace(0, 1, 401)[1:-1]
figure, (power, success) = plt.subplots(2, figsize=(5, 8), layout="constrained")
for epsilon in (0.1, 0.5, 1.0, 3.0, 8.0):
    ledger = DPLogisticRegression(epsilon=epsilon, delta=1e-6).plan(40_000, 51).ledger
    power.plot(rates, attack_power(ledger, rates), label=f"epsilon {epsilon:g}")
power.plot([0, 1], [0, 1], color="0.6", linestyle="--", label="who saw nothing")
power.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
power.legend(frameon=False, loc="lower right")

# At even odds, and where only one in ten was there.
epsilons = np.geomspace(0.05, 20, 25)
ledgers = [DPLogisticRegression(epsilon=e, delta=1e-6).plan(40_000, 51).ledger for e in epsilons]
for prior in (0.5, 0.1):
    chance = [attack_success(ledger, prior) for ledger in ledgers]
    success.plot(epsilons, chance, label=f"one in {1 / prior:.0f} was there")
success.set(
    xscale="log", xlabel="epsilon (delta = 1e-6)", ylabel="chance to guess right", ylim=(0.45, 1)
)
success.legend(frameon=False)
for axes in (power, success):
    axes.grid(alpha=0.25)
plt.show()
