"""Straight lines and curves, with the default estimators: `Schema.additive` on raw tables.

Adult, BANK and KDD Cup 99 (50,000 of its rows) from the folder ``DPGLM_DATA``, each by its packaged
schema, and an artificial census whose true model has straight lines only; with ``--tables unseen``
(``pip install ".[benchmarks]"``) those of ``unseen.py``. The default is what a schema encodes that
says nothing; the other curves are as fine as the signal of the plan allows. The same folds and
settings for all, so that differences are paired.
Delta 1e-8; accuracy, AUC and loss of held-out rows.

    DPGLM_DATA=folder python benchmarks/curves.py [--repeats 2] [--jobs 1] [--cells cells.jsonl]
        [--tables adult bank] [--models logistic] [--ebm ebm.jsonl] [--output ebm.json]

With ``--ebm``, logistic regression is also compared with DP-EBM (Nori et al., 2021), the additive
model of InterpretML, on Adult and BANK: with its defaults, and with the best of `ebm_settings`,
chosen for each cell by the very scores of the test folds that are reported. It gets the same rows,
folds, epsilon and delta, and the public bounds and kinds of the columns. Its fits are kept in that
file, so that the other side can be run again alone.
"""

import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
from peers import boosting

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import fetch_table, make_census
from dpglm.schema import load_schema
from dpglm.study import compare
from dpglm.study.comparison import mean_and_error, setting_text

DELTA = 1e-8
EPSILONS = (0.05, 0.2, 0.8, 1.6)
MODELS = {"logistic": DPLogisticRegression, "svm": DPLinearSVM}
METRICS = {"accuracy": 1, "auc": 1, "test_loss": -1}
FETCHED = ("adult", "bank", "kddcup99")
EBM_TABLES = ("adult", "bank")


def raw_tables(names):
    """Yield name, raw rows, labels and schema."""
    for name in [name for name in FETCHED if name in names]:
        bunch = fetch_table(name)
        few = np.random.default_rng(0).permutation(len(bunch.data))[:50_000]
        yield name, bunch.data.iloc[few], np.asarray(bunch.target)[few], bunch.schema
    if "census" in names:
        yield "census", *make_census(20_000, random_state=1, as_frame=True), load_schema("census")
    if "unseen" in names:
        from unseen import unseen_tables

        yield from unseen_tables()


def signs(labels, schema):
    """Return labels as 0 and 1."""
    return (np.asarray(labels) == schema.classes[1]).astype(int)


def finest(schema, n_mu):
    """Return the finest curves, of 2 to 32 pieces, that leave an n mu of 8 to each column."""
    coarsest, *finer = (schema.additive(2**level) for level in range(1, 6))
    return next((each for each in finer[::-1] if 8 * each.n_encoded <= n_mu), coarsest)


def forms(tables, epsilon):
    """Yield each table in each form, with the estimators for it."""
    models = {name: Model(classes=[0, 1]) for name, Model in MODELS.items()}
    for name, rows, labels, schema in tables:
        y = signs(labels, schema)
        # Of five folds four are trained on.
        plan = DPLogisticRegression(epsilon=epsilon, delta=DELTA).plan(len(y) * 4 // 5, 1)
        finer = finest(schema, plan.n_mu)
        known = {"lines": schema.additive(1), "default": schema, "curves": finer}
        for form, metadata in known.items():
            yield {f"{name}, {form}": (metadata.transformer().fit_transform(rows), y)}, models


def differences(records, base="lines", form="curves"):
    """Yield dataset, model, epsilon, metric, both means, the difference and its standard error."""
    found = defaultdict(dict)
    for record in records:
        name, _, of = record["dataset"].partition(", ")
        key = name, record["estimator"], record["epsilon"]
        found[key][of, record["repeat"], record["fold"]] = record
    for key, cells in found.items():
        folds = [cell[1:] for cell in cells if cell[0] == base and (form, *cell[1:]) in cells]
        if not folds:
            continue
        for metric, sign in METRICS.items():
            before, after = (
                np.array([cells[of, *fold][metric] for fold in folds]) for of in (base, form)
            )
            change = mean_and_error(sign * (after - before))
            yield *key, metric, before.mean(), mean_and_error(after), change


def ebm_settings():
    """Yield whether wide columns are on the scale of curves, the form of categories, parameters."""

    def setting(bins, rate, **others):
        # What it moves by is rounds times rate; the noise of that hardly depends on the rounds.
        fixed = {"max_rounds": 50, "max_leaves": 6, "max_bins": bins, "learning_rate": rate}
        return fixed | others

    yield False, "nominal", {}
    yield True, "nominal", {}
    for bins, rate in product((6, 12, 24, 48, 96), (0.05, 0.2, 0.8)):
        yield True, "nominal", setting(bins, rate)
        # More signal carries more bins and longer steps; the rest of the grid is left out.
        if bins == 24 or (bins < 24 and rate < 0.8) or (bins > 24 and rate > 0.2):
            yield False, "nominal", setting(bins, rate)
    # Of the largest epsilons the best are at the corner of that grid, and so it goes on there.
    for is_curved, bins in product((False, True), (48, 96)):
        yield is_curved, "nominal", setting(bins, 1.6)
    yield True, "nominal", setting(48, 3.2)
    for bins, rate in ((12, 0.2), (48, 0.8), (48, 1.6)):
        yield True, "ordinal", setting(bins, rate)
        yield True, "nominal", setting(bins, rate, max_leaves=12)
        yield True, "nominal", setting(bins, rate, bin_budget_frac=0.3)
    yield True, "nominal", setting(48, 0.8, composition="classic")


def boosted(raw, file, **options):
    """Return the records of DP-EBM, by default and at each setting, on the raw columns."""
    found = []
    for (name, rows, labels, schema), is_curved in product(raw, (False, True)):
        estimators = {}
        for is_own, form, setting in ebm_settings():
            if is_own == is_curved:
                X, model = boosting(rows, schema, is_curved, form)
                text = setting_text(setting) or "defaults"
                estimators[f"{form}, {text}"] = model(**setting)
        results = compare(
            {f"{name}, {'asinh' if is_curved else 'linear'}": (X, signs(labels, schema))},
            estimators,
            epsilons=EPSILONS,
            delta=DELTA,
            results_file=file,
            progress=True,
            **options,
        )
        if results.notes():
            print(results.notes())
        found += results.records
    return found


def scores(records):
    """Return the scores of all folds, in order, for each dataset, estimator and epsilon."""
    found = defaultdict(lambda: defaultdict(list))
    for record in records:
        for metric in METRICS:
            key = record["dataset"], record["estimator"], record["epsilon"]
            found[key][metric].append(record[metric])
    return found


def against_ebm(ours, boosted):
    """Yield a record for each table, epsilon and metric: ours beside the defaults and the best."""
    peers = scores(boosted)
    for (dataset, estimator, epsilon), own in scores(ours).items():
        table, _, form = dataset.partition(", ")
        known = [key for key in peers if key[0].startswith(f"{table}, ") and key[2] == epsilon]
        if estimator != "logistic" or not known:
            continue
        for metric, sign in METRICS.items():
            best = max(known, key=lambda key: sign * np.mean(peers[key][metric]))
            gains = sign * np.subtract(own[metric], peers[best][metric])
            record = {
                "table": table, "form": form, "epsilon": epsilon, "metric": metric,
                "fits": len(gains), "settings": len(known), "setting": f"{best[0]}, {best[1]}",
                "won": bool(gains.mean() > 0),
            }  # fmt: skip
            default = f"{table}, linear", "nominal, defaults", epsilon
            for name, values in (
                ("ours", own[metric]), ("best", peers[best][metric]), ("gain", gains),
                ("defaults", peers[default][metric]),
            ):  # fmt: skip
                record[name], record[f"{name}_error"] = mean_and_error(values)
            yield record


def print_against(records):
    """Print the comparison with DP-EBM, and how many cells are won."""
    print("table form      epsilon metric       logistic          DP-EBM  its best           gain")
    for record in records:
        print(
            "{table:6}{form:7}{epsilon:8g} {metric:10}{ours:8.4f} ± {ours_error:.4f}"
            "{defaults:10.4f}{best:10.4f} ± {best_error:.4f}{gain:+9.4f} ± {gain_error:.4f}"
            "  {setting}".format(**record)
        )
    for form in dict.fromkeys(record["form"] for record in records):
        own = [record for record in records if record["form"] == form]
        sure = sum(record["gain"] > 2 * record["gain_error"] for record in own)
        print(
            f"{form}: {sum(record['won'] for record in own)} of {len(own)} cells won against the "
            f"best DP-EBM, {sure} by more than two standard errors of the paired difference."
        )


def print_differences(rows, base, form):
    """Print what a form changes against another, and in how many cells it is better."""
    print(f"{'table':10}{'model':10}{'epsilon':>8} {'metric':10}{base:>8}{form:>17}  better by")
    for name, model, epsilon, metric, before, (after, spread), (change, error) in rows:
        print(
            f"{name:10}{model:10}{epsilon:8g} {metric:10}{before:8.4f}{after:8.4f} ± {spread:.4f}"
            f"  {change:+.4f} ± {error:.4f}"
        )
    better = sum(change > 0 for *_, (change, _) in rows)
    worse = sum(change < -2 * error for *_, (change, error) in rows)
    print(
        f"{form} are better than {base} in {better} of {len(rows)} cells by the mean, and worse by "
        f"more than two standard errors in {worse}."
    )


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    tables = [*FETCHED, "census"]
    parser.add_argument("--tables", nargs="+", choices=[*tables, "unseen"], default=tables)
    parser.add_argument("--ebm", help="compare with DP-EBM too, and keep its fits in this file")
    parser.add_argument("--output", help="write that comparison as JSON to this file")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cells", help="keep finished fits in this file, and resume from it")
    arguments = parser.parse_args()
    raw, records = list(raw_tables(arguments.tables)), []
    for epsilon in EPSILONS:
        for tables, models in forms(raw, epsilon):
            records += compare(
                tables,
                {name: models[name] for name in arguments.models},
                epsilons=[epsilon],
                delta=DELTA,
                n_repeats=arguments.repeats,
                n_jobs=arguments.jobs,
                results_file=arguments.cells and f"{arguments.cells}-{epsilon:g}",
                progress=True,
            ).records
    for base, form in (
        ("lines", "default"),
        ("default", "curves"),
        ("lines", "curves"),
    ):
        print_differences(list(differences(records, base, form)), base, form)
    if arguments.ebm:
        known = [table for table in raw if table[0] in EBM_TABLES]
        peers = boosted(known, arguments.ebm, n_repeats=arguments.repeats, n_jobs=arguments.jobs)
        against = list(against_ebm(records, peers))
        print_against(against)
        if arguments.output:
            Path(arguments.output).write_text(json.dumps(against, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
