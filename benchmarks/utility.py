"""Utility of the default estimators: dataset x model x epsilon x metric, cell by cell.

The estimators get epsilon and delta and nothing else. Given the best values that other programs
reached (tuned as they like), the table marks the cells that the defaults win on the mean.

Protocol: delta 1e-8; five folds, shuffled anew in each repeat; accuracy and AUC on the test fold,
mean logistic or plain hinge loss without regularisation on the training fold.

- adult: UCI Adult, all 48,842 rows, six numeric columns scaled to [0, 1] by their observed range
  and eight categorical ones one-hot over the observed categories (108 columns).
- bank: ``bank-2018.dat``, 45,211 rows of 32 numeric columns and a label, scaled alike. Left out if
  the file is not in the folder.

Scaling by the observed range leaks; it is here because the values to compare with were measured so.

    DPGLM_DATA=folder python benchmarks/utility.py --peers peers.json [--quick] [--repeats 5]
        [--jobs 1] [--cells cells.jsonl] [--output utility.json] [--figure utility.png]

The file of peers is ``{"valid": {dataset: {model: {epsilon: {"acc": [value, name], "auc": ...,
"obj": ...}}}}}``. It may have ``"reference": {dataset: {model: {"NonPrivate": {"acc": value,
...}}}}`` too. Without a file the table stands alone.
"""

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.datasets import fetch_table
from dpglm.study import compare

DELTA = 1e-8
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
QUICK_EPSILONS = (0.05, 0.2, 1.6)
MODELS = {"logistic": DPLogisticRegression, "svm": DPLinearSVM}
# Name in a file of peers -> name in a comparison, title, whether larger is better.
METRICS = {
    "acc": ("accuracy", "accuracy", True),
    "auc": ("auc", "AUC", True),
    "obj": ("training_loss", "training loss", False),
}


def scaled(columns):
    """Scale columns to [0, 1] by their observed range."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    return (columns - low) / np.where(high > low, high - low, 1.0)


def load_adult():
    """Return the rows and labels of Adult in the encoding of the protocol."""
    adult = fetch_table("adult")
    frame, target = adult.data, adult.target
    numeric = frame.select_dtypes("number")
    codes = [
        frame[name].to_numpy()[:, np.newaxis] == np.unique(frame[name].to_numpy())
        for name in frame.columns.difference(numeric.columns, sort=False)
    ]
    X = np.column_stack([scaled(numeric.to_numpy(dtype=float)), *codes]).astype(float)
    return X, (target == ">50K").to_numpy().astype(int)


def load_bank(path):
    """Return the rows and labels of the 2018 encoding of Bank Marketing."""
    table = np.loadtxt(path)
    return np.ascontiguousarray(scaled(table[:, :-1])), (table[:, -1] > 0).astype(int)


def load_tables():
    """Return the tables whose files are there."""
    tables = {"adult": load_adult()}
    bank = Path(os.environ.get("DPGLM_DATA", "."), "bank-2018.dat")
    if bank.is_file():
        tables["bank"] = load_bank(bank)
    return tables


def outcomes(rows, peers):
    """Return one record per dataset, model, epsilon and metric, beside the best peer if known."""
    best = peers.get("valid", {})
    reference = peers.get("reference", {})
    records = []
    for row in rows:
        dataset, model, epsilon = row["dataset"], row["estimator"], row["epsilon"]
        cell = best.get(dataset, {}).get(model, {}).get(f"{epsilon:g}", {})
        limit = reference.get(dataset, {}).get(model, {}).get("NonPrivate", {})
        for key, (metric, _, larger) in METRICS.items():
            record = {
                "dataset": dataset,
                "model": model,
                "epsilon": epsilon,
                "metric": metric,
                "mean": row[metric],
                "standard_error": row[f"{metric}_se"],
                "n_fits": row["n_cells"],
                "ledger_epsilon": row["ledger_epsilon"],
                "not_private": limit.get(key),
            }
            if key in cell:
                peer, name = cell[key]
                gain = (row[metric] - peer) / peer * (1 if larger else -1)
                record |= {"peer": peer, "peer_name": name, "gain": gain, "won": gain > 0}
            records.append(record)
    return records


def table(records):
    """Return the records as text: one line per dataset, model and metric, with the cells won."""
    lines, groups = [], defaultdict(list)
    for record in records:
        groups[record["dataset"], record["model"], record["metric"]].append(record)
    epsilons = list(dict.fromkeys(record["epsilon"] for record in records))
    lines.append(f"{'epsilon':33}" + "".join(f"{epsilon:<26g}" for epsilon in epsilons))
    for (dataset, model, metric), group in groups.items():
        cells = []
        for record in group:
            text = f"{record['mean']:.4f} ±{record['standard_error']:.4f}"
            if "won" in record:
                text += f" {'+' if record['won'] else '-'}{100 * abs(record['gain']):.1f}%"
            cells.append(f"{text:26}")
        lines.append(f"{dataset:8}{model:10}{metric:15}" + "".join(cells).rstrip())
    for dataset in dict.fromkeys(record["dataset"] for record in records):
        known = [r for r in records if r["dataset"] == dataset and "won" in r]
        if known:
            worst = min(known, key=lambda record: record["gain"])
            lines.append(
                f"{dataset}: {sum(record['won'] for record in known)} of {len(known)} cells won; "
                f"least gain {100 * worst['gain']:+.2f} % ({worst['model']}, epsilon "
                f"{worst['epsilon']:g}, {worst['metric']})"
            )
    return "\n".join(lines)


def draw(records, path):
    """Draw every metric over epsilon: the defaults, the best peers, the optimum without privacy."""
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys((r["dataset"], r["model"]) for r in records))
    figure = Figure(figsize=(11, 2.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(METRICS), squeeze=False)
    for (dataset, model), line in zip(rows, axes, strict=True):
        for (metric, title, _), ax in zip(METRICS.values(), line, strict=True):
            keys = (dataset, model, metric)
            group = [r for r in records if (r["dataset"], r["model"], r["metric"]) == keys]
            epsilons = [r["epsilon"] for r in group]
            errors = [r["standard_error"] for r in group]
            ax.errorbar(epsilons, [r["mean"] for r in group], errors, marker="o", label="defaults")
            if "peer" in group[0]:
                peers = [r["peer"] for r in group]
                ax.plot(epsilons, peers, "kx", label="best of the tuned peers")
            if group[0]["not_private"] is not None:
                ax.axhline(group[0]["not_private"], color="0.6", label="not private")
            ax.set(xscale="log", xlabel="epsilon", title=f"{dataset}, {model}: {title}")
            ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            ax.minorticks_off()
    axes[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", help="JSON file with the best values of other programs")
    parser.add_argument("--quick", action="store_true", help="three epsilons, one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cells", help="keep finished fits in this file, and resume from it")
    parser.add_argument("--output", help="write the table as JSON to this file")
    parser.add_argument("--figure", help="draw the table into this file")
    arguments = parser.parse_args()
    peers = json.loads(Path(arguments.peers).read_text("utf-8")) if arguments.peers else {}
    results = compare(
        load_tables(),
        {name: Model(classes=[0, 1]) for name, Model in MODELS.items()},
        epsilons=QUICK_EPSILONS if arguments.quick else EPSILONS,
        delta=DELTA,
        n_repeats=1 if arguments.quick else arguments.repeats,
        n_jobs=arguments.jobs,
        results_file=arguments.cells,
        progress=True,
    )
    records = outcomes(results.rows(), peers)
    print(table(records))
    if results.notes():
        print(results.notes())
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(records, indent=1) + "\n", "utf-8")
    if arguments.figure:
        draw(records, arguments.figure)


if __name__ == "__main__":
    main()
