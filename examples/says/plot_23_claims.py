"""
Rate ratios with intervals
==========================

A Poisson regression of the claims of 100,000 policies. The target is the rate, the exposure is the
weight. The intervals count the noise. Crosses are the true ratios.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPPoissonRegressor

rng, n = np.random.default_rng(0), 100_000
names = ["below 25", "above 75", "town", "garage", "new car"]
X = (rng.random((n, 5)) < [0.1, 0.1, 0.5, 0.4, 0.2]).astype(float)
exposure = rng.uniform(0.05, 1, n)
effects = np.array([0.6, 0.3, 0.2, -0.2, 0.0])
claims = rng.poisson(exposure * 0.1 * np.exp(X @ effects))
model = DPPoissonRegressor(epsilon=1.0, max_weight=1, inference_fraction=0.5)
model.fit(X, claims / exposure, sample_weight=exposure)
found = model.inference()
print(found.summary())

# Thick bars are due to the draw of the records alone.
estimates, places = found.params[1:], np.arange(5)
figure, axes = plt.subplots(figsize=(4.6, 3.2))
for errors, width in ((found.bse[1:], 1.5), (found.bse_sampling[1:], 5)):
    ends = np.exp([estimates - 1.96 * errors, estimates + 1.96 * errors])
    axes.hlines(places, *ends, lw=width, color="C0")
axes.plot(np.exp(estimates), places, "o", color="white", mec="C0", label="estimate")
axes.plot(np.exp(effects), places, "x", color="C5", mew=2, label="true ratio")
axes.axvline(1, color="0.5", lw=1)
axes.set_yticks(places, names)
axes.set(xscale="log", xlabel="rate ratio")
axes.set_xticks([0.75, 1, 1.5, 2], ["0.75", "1", "1.5", "2"])
axes.minorticks_off()
axes.invert_yaxis()
axes.legend()
plt.show()
