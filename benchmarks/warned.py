"""Few records: do the fits warn that learned little, and only those?

Small samples of the tables of `curves.py`, straight lines and what a schema encodes by default,
five samples a cell. A cell has learned the part ``(AUC - .5) / (best - .5)``, AUC being that on
rows that were not sampled, and best that of all cells of the table.

    [DPGLM_DATA=folder] python benchmarks/warned.py [--tables ...] [--rows ...] [--epsilons ...]
"""

import argparse
import warnings
from itertools import pairwise

import numpy as np
from curves import FETCHED, MODELS, raw_tables, signs
from sklearn.metrics import roc_auc_score

from dpglm.exceptions import UtilityWarning

DELTA, SAMPLES, TESTED = 1e-6, 5, 5000
EDGES = [-1.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.01]


def fitted(Model, X, y, n_rows, sample):
    """Return the AUC of a fit of some rows on others, and whether it warned."""
    order = np.random.default_rng(100 + sample).permutation(len(y))
    train, test = order[:n_rows], order[n_rows : n_rows + TESTED]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = Model.fit(X[train], y[train]).decision_function(X[test])
    warned = any(warning.category is UtilityWarning for warning in caught)
    return roc_auc_score(y[test], scores), warned


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    known = [*FETCHED, "census", "unseen"]
    parser.add_argument("--tables", nargs="+", choices=known, default=known)
    parser.add_argument("--rows", nargs="+", type=int, default=[600, 1500, 3000])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.3, 0.7])
    arguments = parser.parse_args()
    cells = {}
    for name, rows, labels, schema in raw_tables(arguments.tables):
        y, best = signs(labels, schema), 0.5
        for form, metadata in {"lines": schema.additive(1), "default": schema}.items():
            X = np.asarray(metadata.transformer().fit_transform(rows))
            for model, Model in MODELS.items():
                for n in arguments.rows:
                    for epsilon in arguments.epsilons:
                        private = Model(epsilon=epsilon, delta=DELTA, classes=[0, 1])
                        cell = [fitted(private, X, y, n, sample) for sample in range(SAMPLES)]
                        cells[name, form, model, n, epsilon] = np.mean(cell, axis=0)
                        best = max(best, cells[name, form, model, n, epsilon][0])
        for key in [key for key in cells if key[0] == name]:
            cells[key][0] = (cells[key][0] - 0.5) / (best - 0.5)
        print(f"{name}: best AUC {best:.3f}", flush=True)
    print("\nPart of the fits that warn, by what was learned (number of cells)")
    print(f"{'':17}" + "".join(f"{f'< {high:g}':>12}" for high in EDGES[1:]))
    for form in ("lines", "default"):
        for model in MODELS:
            own = np.array([cell for key, cell in cells.items() if key[1:3] == (form, model)])
            within = [
                own[(low <= own[:, 0]) & (own[:, 0] < high), 1] for low, high in pairwise(EDGES)
            ]
            shown = (f"{part.mean():.2f} ({len(part)})" if len(part) else "-" for part in within)
            print(f"{form:8}{model:9}" + "".join(f"{text:>12}" for text in shown))


if __name__ == "__main__":
    main()
