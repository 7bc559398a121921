"""
What an attacker can do
=======================

The attacker knows every record but one, and sees all that was released. Each line bounds how often
the attacker detects that record, for each rate of false claims.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.privacy.attacks import attack_power, attack_success

rates = np.linspace(0, 1, 401)[1:-1]
figure, axes = plt.subplots(figsize=(4.6, 3.6))
for epsilon in (0.1, 0.5, 1.0, 3.0, 8.0):
    ledger = DPLogisticRegression(epsilon=epsilon, delta=1e-6).plan(40_000, 51).ledger
    axes.plot(rates, attack_power(ledger, rates), label=f"epsilon {epsilon:g}")
    success = attack_success(ledger, 0.5)
    print(f"epsilon {epsilon:<3}: right in at most {success:.1%} of cases, where half were there")
axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", label="guess")
axes.set(xlabel="false positive rate", ylabel="true positive rate")
axes.legend()
plt.show()
