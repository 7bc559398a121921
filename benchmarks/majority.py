"""Rare classes: are the default estimators ever below the majority?

Tables with 80 to 99 % of the rows in one class: `make_classification` as it is, and rows of the
artificial census, of Adult, BANK and KDD Cup 99 (those in the folder ``DPGLM_DATA``), drawn such
that one class is rare, with straight lines, as a schema encodes them by default, and with curves as
fine as the signal of the plan allows. Delta 1e-8. A cell fails if the mean accuracy of its test
folds is below the share of the largest class by more than .002.

    [DPGLM_DATA=folder] python benchmarks/majority.py [--repeats 4] [--rows 2000 14000]
        [--shares ...] [--epsilons ...] [--tables ...] [--jobs 1] [--cells cells.jsonl]
"""

import argparse
from functools import cache

import numpy as np
from curves import DELTA, MODELS, finest, signs
from sklearn.datasets import make_classification

from dpglm.datasets import fetch_table, make_census
from dpglm.schema import load_schema
from dpglm.study import compare

ALLOWED = 0.002
WIDTHS = (10, 50, 150)

# Name -> where the rows are from, and which class is rare.
RAW = {
    "census": ("census", 1),
    "adult": ("adult", 1),
    "bank": ("bank", 1),
    "kdd-normal": ("kddcup99", 1),
    "kdd-attack": ("kddcup99", 0),
}


@cache
def loaded(name):
    """Return raw rows, labels and schema."""
    if name == "census":
        return *make_census(60_000, random_state=1, as_frame=True), load_schema("census")
    bunch = fetch_table(name)
    return bunch.data, bunch.target, bunch.schema


def drawn(name, rare, n_rows, share):
    """Return `n_rows` raw rows of a table, of which `share` are not of the rare class."""
    rows, labels, schema = loaded(name)
    labels, rng = np.asarray(labels), np.random.default_rng(0)
    is_rare = labels == schema.classes[rare]
    n_rare = round(n_rows * (1 - share))
    kept = np.concatenate([
        rng.permutation(np.flatnonzero(which))[:count]
        for which, count in ((is_rare, n_rare), (~is_rare, n_rows - n_rare))
    ])  # fmt: skip
    return rows.iloc[kept], labels[kept], schema


def tables(names, n_rows, shares, epsilon):
    """Yield a name, encoded rows and labels of each table."""
    for n in n_rows:
        for share in shares:
            for d in WIDTHS if "artificial" in names else ():
                informative = min(d // 2, 20)
                yield (
                    f"artificial {n} x {d} {share:g}",
                    make_classification(
                        n, d, n_informative=informative, weights=[share], random_state=0
                    ),
                )
            for name in [name for name in RAW if name in names]:
                rows, labels, schema = drawn(*RAW[name], n, share)
                # Of five folds four are trained on.
                plan = MODELS["logistic"](epsilon=epsilon, delta=DELTA).plan(n * 4 // 5, 1)
                curves = finest(schema, plan.n_mu)
                forms = {"lines": schema.additive(1), "default": schema, "curves": curves}
                for form, metadata in forms.items():
                    X = metadata.transformer().fit_transform(rows)
                    yield f"{name} {n} {share:g}, {form}", (X, signs(labels, schema))


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    known = ["artificial", *RAW]
    parser.add_argument("--tables", nargs="+", choices=known, default=known)
    parser.add_argument("--rows", nargs="+", type=int, default=[2_000, 14_000])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.8, 0.86, 0.9, 0.95, 0.99])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.05, 0.2, 1.0])
    parser.add_argument("--repeats", type=int, default=4, help="of five folds each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cells", help="keep finished fits in this file, and resume from it")
    arguments = parser.parse_args()
    n_cells = n_failed = 0
    for epsilon in arguments.epsilons:
        for name, (X, y) in tables(arguments.tables, arguments.rows, arguments.shares, epsilon):
            majority = max(np.mean(y), 1 - np.mean(y))
            results = compare(
                {name: (X, y)},
                {model: Model(classes=[0, 1]) for model, Model in MODELS.items()},
                epsilons=[epsilon],
                delta=DELTA,
                n_repeats=arguments.repeats,
                n_jobs=arguments.jobs,
                results_file=arguments.cells,
            )
            for row in results.rows():
                own = [r for r in results.records if r["estimator"] == row["estimator"]]
                warned = sum("probably learned little" in str(r["warnings"]) for r in own)
                failed = row["accuracy"] < majority - ALLOWED
                n_cells, n_failed = n_cells + 1, n_failed + failed
                print(
                    f"{name:32}{row['estimator']:10}{epsilon:5g}  majority {majority:.4f}  "
                    f"accuracy {row['accuracy']:.4f} ± {row['accuracy_se']:.4f}  "
                    f"AUC {row['auc']:.3f}  warned {warned / len(own):4.0%}"
                    f"{'  FAILS' if failed else ''}",
                    flush=True,
                )
    print(f"{n_failed} of {n_cells} cells are below the majority by more than {ALLOWED:g}.")


if __name__ == "__main__":
    main()
