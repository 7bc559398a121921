"""A search on private records against the defaults that nobody has to search.

Adult and BANK, encoded by their schemas with straight lines, epsilon 1 and delta 1e-6: accuracy on
a fifth of the records of a `PrivateSearchCV` over twelve noise schedules and clips, whose whole
cost is epsilon 1, beside the defaults at epsilon 1 and each candidate at epsilon 1 had it been
known beforehand. Means over repeats, each with another split, and standard errors of the
differences within a repeat.

    DPGLM_DATA=folder python benchmarks/search.py [--repeats 60] [--epsilon 1.0]
"""

import argparse

import numpy as np
from sklearn.model_selection import ParameterGrid, train_test_split

from dpglm import DPLogisticRegression
from dpglm.datasets import fetch_table
from dpglm.schedules import ExponentialDecay
from dpglm.workflow import PrivateSearchCV

GRID = {
    "noise_schedule": ["constant", ExponentialDecay(ratio=0.95), ExponentialDecay(ratio=1.05)],
    "clip_schedule": [0.1, 0.3, 1.0, 3.0],
}


def measured(name, epsilon, seed):
    """Return the accuracy of the defaults, of the search, and of each candidate by itself."""
    bunch = fetch_table(name)
    X = bunch.schema.additive(1).transformer().fit_transform(bunch.data)
    y = np.asarray(bunch.target)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=seed)
    metadata = {"epsilon": epsilon, "delta": 1e-6, "classes": list(bunch.schema.classes)}
    single = [{}, *ParameterGrid(GRID)]
    models = [DPLogisticRegression(**metadata, **setting) for setting in single]
    models.insert(1, PrivateSearchCV(DPLogisticRegression(), GRID, **metadata))
    return [model.fit(X_train, y_train).score(X_test, y_test) for model in models]


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=1.0)
    asked = parser.parse_args()
    print("| data | defaults | search | less the defaults | best candidate | worst candidate |")
    print("|---|---|---|---|---|---|")
    for name in ("adult", "bank"):
        scores = np.array([measured(name, asked.epsilon, seed) for seed in range(asked.repeats)])
        defaults, search, *candidates = scores.mean(axis=0)
        less = scores[:, 1] - scores[:, 0]
        error = less.std(ddof=1) / np.sqrt(len(less))
        print(
            f"| {name} | {defaults:.4f} | {search:.4f} | {less.mean():+.4f} ± {error:.4f} "
            f"| {max(candidates):.4f} | {min(candidates):.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
