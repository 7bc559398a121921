"""
All records, or batches?
========================

A batch hides who was drawn, but each of its gradients has less signal. Here every rate pays for
the same number of looks at the records, four epochs: in the noise on a mean gradient over the
whole run, all records at a time are best.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import PrivacyCalculator

calculator, epochs = PrivacyCalculator(), 4
rates = np.array([0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
for epsilon in (0.3, 1.0, 3.0):
    noise = []
    for rate in rates.tolist():
        n_iter = round(epochs / rate)
        z = calculator.noise_multiplier(
            epsilon=epsilon, delta=1e-6, n_iter=n_iter, sampling_rate=rate
        )
        # Of the mean of all gradients: z / rate for each, over the square root of their number.
        noise.append(z / rate / np.sqrt(n_iter))
    axes.plot(rates, noise, marker="o", label=f"epsilon {epsilon:g}")
axes.set(xscale="log", ylim=(0, None), xlabel="sampling rate", ylabel="noise times n / clip")
axes.set_title("noise on the mean of all gradients, four epochs")
axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
axes.minorticks_off()
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
