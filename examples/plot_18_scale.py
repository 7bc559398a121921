"""
Rows in memory, in a file, in blocks
====================================

A fit asks for sums over rows and nothing else, so it also reads tables that do not fit into
memory. The time of a fit grows in proportion to the rows, wherever they are.
"""

import tempfile
from pathlib import Path
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np

from dpglm import DPLogisticRegression
from dpglm.sources.arrays import ArraySource

rng = np.random.default_rng(0)
X = rng.normal(size=(400_000, 20)).astype(np.float32)
y = (X @ rng.normal(size=20) + rng.logistic(size=len(X)) > 0).astype(int)
path = Path(tempfile.mkdtemp()) / "rows.npy"
np.save(path, X)
mapped = np.load(path, mmap_mode="r")

sizes = [25_000, 50_000, 100_000, 200_000, 400_000]
ways = {
    "in memory": lambda n: (X[:n], y[:n]),
    "blocks of 20,000 rows of a file": lambda n: (
        ArraySource(mapped[:n], y[:n], block_rows=20_000),
    ),
}
model = DPLogisticRegression(epsilon=1.0, delta=1e-9, classes=[0, 1])
model.fit(X[:1000], y[:1000])  # compiles

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
for name, table in ways.items():
    seconds = []
    for n in sizes:
        rows, begin = table(n), perf_counter()
        model.fit(*rows)
        seconds.append(perf_counter() - begin)
    axes.plot(sizes, seconds, marker="o", label=name)
axes.set(xlim=0, ylim=0, xlabel="rows of 20 numbers", ylabel="seconds of a fit")
axes.set_xticks([0, 100_000, 200_000, 300_000, 400_000])
axes.grid(alpha=0.25)
axes.legend(frameon=False)
plt.show()
