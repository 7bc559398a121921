"""Curves against straight lines: `Schema.additive` on raw tables, with the default estimators.

Adult, BANK and KDD Cup 99 (50,000 of its rows) from the folder ``DPGLM_DATA``, each by its packaged
schema, and an artificial census whose true model has straight lines only. Curves are as fine as the
signal of the plan allows. The same folds and settings for both, so that differences are paired.
Delta 1e-8; accuracy, AUC and loss of held-out rows.

    DPGLM_DATA=folder python benchmarks/curves.py [--repeats 2] [--jobs 1] [--cells cells.jsonl]
"""

import argparse
import math
from collections import defaultdict

import numpy as np

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import fetch_adult, fetch_bank, fetch_kddcup99, make_census
from dpglm.schema import load_schema
from dpglm.study import compare

DELTA = 1e-8
EPSILONS = (0.05, 0.2, 0.8, 1.6)
MODELS = {"logistic": DPLogisticRegression, "svm": DPLinearSVM}
METRICS = {"accuracy": 1, "auc": 1, "test_loss": -1}


def raw_tables():
    """Yield name, raw rows, labels and schema."""
    for fetch in (fetch_adult, fetch_bank, fetch_kddcup99):
        bunch = fetch()
        few = np.random.default_rng(0).permutation(len(bunch.data))[:50_000]
        yield bunch.schema.name, bunch.data.iloc[few], np.asarray(bunch.target)[few], bunch.schema
    yield "census", *make_census(20_000, random_state=1, as_frame=True), load_schema("census")


def encoded(raw, epsilon):
    """Return each table twice."""
    tables = {}
    for name, rows, labels, schema in raw:
        y = (np.asarray(labels) == schema.classes[1]).astype(int)
        # Of five folds four are trained on.
        plan = DPLogisticRegression(epsilon=epsilon, delta=DELTA).plan(len(y) * 4 // 5, 1)
        for form, facts in (("lines", schema), ("curves", schema.additive(signal=plan.signal))):
            tables[f"{name}, {form}"] = facts.transformer().fit_transform(rows), y
    return tables


def differences(records):
    """Yield dataset, model, epsilon, metric, both means, the difference and its standard error."""
    found = defaultdict(dict)
    for record in records:
        name, _, form = record["dataset"].partition(", ")
        key = name, record["estimator"], record["epsilon"]
        found[key][form, record["repeat"], record["fold"]] = record
    for key, cells in found.items():
        folds = [cell[1:] for cell in cells if cell[0] == "lines"]
        for metric, sign in METRICS.items():
            lines, curves = (
                np.array([cells[form, *fold][metric] for fold in folds])
                for form in ("lines", "curves")
            )
            change = sign * (curves - lines)
            error = change.std(ddof=1) / math.sqrt(len(change))
            yield *key, metric, lines.mean(), curves.mean(), change.mean(), error


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cells", help="keep finished fits in this file, and resume from it")
    arguments = parser.parse_args()
    raw, records = list(raw_tables()), []
    for epsilon in EPSILONS:
        records += compare(
            encoded(raw, epsilon),
            {name: Model(classes=[0, 1]) for name, Model in MODELS.items()},
            epsilons=[epsilon],
            delta=DELTA,
            n_repeats=arguments.repeats,
            n_jobs=arguments.jobs,
            results_file=arguments.cells and f"{arguments.cells}-{epsilon:g}",
            progress=True,
        ).records
    rows = list(differences(records))
    print(
        f"{'table':10}{'model':10}{'epsilon':>8} {'metric':10}{'lines':>8}{'curves':>8}  better by"
    )
    for name, model, epsilon, metric, lines, curves, change, error in rows:
        print(
            f"{name:10}{model:10}{epsilon:8g} {metric:10}{lines:8.4f}{curves:8.4f}"
            f"  {change:+.4f} ± {error:.4f}"
        )
    better = sum(change > 0 for *_, change, _ in rows)
    worse = sum(change < -2 * error for *_, change, error in rows)
    print(
        f"Curves are better in {better} of {len(rows)} cells by the mean, and worse by more than "
        f"two standard errors in {worse}."
    )


if __name__ == "__main__":
    main()
