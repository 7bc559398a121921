"""Utility of the baselines, beside what other programs of the same methods reached.

Protocol and tables as in ``utility.py``. The estimators get epsilon, delta and, where they take
one, a public bound on the norm of a row: 3 for adult, whose rows are that long, and 2 for bank.

    DPGLM_DATA=folder python benchmarks/baselines.py --peers peers.csv [--datasets adult bank]
        [--methods ...] [--epsilons ...] [--repeats 2] [--jobs 1] [--cells cells.jsonl]

The file of peers has one line per dataset, model, method and epsilon with the mean and standard
error of each metric. A cell is met if the mean here is no worse than the peer's by more than two
standard errors of the difference.
"""

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path

from utility import DELTA, EPSILONS, METRICS, load_tables

from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.study import compare

# Method here -> estimator, model, and the start of the names of its peers.
METHODS = {
    "ObjPert": (ObjectivePerturbation(), "logistic", "ObjPertRKW"),
    "Minimiser": (OutputPerturbation(), "logistic", "OutPert-fixL"),
    "Minimiser-svm": (OutputPerturbation(loss="smoothed_hinge"), "svm", "OutPert-fixL"),
    "AMP": (ApproximateMinimaPerturbation(), "logistic", "AMP-NT"),
    "PrivGene": (PrivGene(), "logistic", "PrivGene-fix"),
    "PrivGene-svm": (PrivGene(loss="hinge"), "svm", "PrivGene-fix"),
    "SGD-Adv": (SGDAdvancedComposition(), "logistic", "SGD-Adv"),
    "SGD-Adv-svm": (SGDAdvancedComposition(loss="hinge"), "svm", "SGD-Adv"),
    "SGD-MA": (SGDMomentsAccountant(), "logistic", "SGD-MA-rdp"),
    "SGD-MA-svm": (SGDMomentsAccountant(loss="hinge"), "svm", "SGD-MA-rdp"),
    "DoubleNoiseNewton": (DoubleNoiseNewton(), "logistic", "DoubleNoiseNewton"),
    "Majority": (MajorityClassifier(), "logistic", "Majority"),
}
ROW_BOUNDS = {"adult": 3.0, "bank": 2.0}


def read_peers(path):
    """Return the means and standard errors of each metric by dataset, model, method, epsilon."""
    peers = {}
    with open(path, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            key = line["dataset"], line["model"], line["method"], float(line["eps"])
            peers[key] = {
                metric: (float(line[metric]), float(line[f"{metric}_se"] or "nan"))
                for metric in METRICS
            }
    return peers


def best_peers(peers, dataset, model, prefix, epsilon):
    """Return for each metric the best of the peers whose name starts so: mean, error, name."""
    best = {}
    for (*where, name, at), values in peers.items():
        if where != [dataset, model] or at != epsilon or not name.startswith(prefix):
            continue
        for metric, (mean, error) in values.items():
            sign = 1 if METRICS[metric][2] else -1
            if metric not in best or sign * mean > sign * best[metric][0]:
                best[metric] = mean, error, name
    return best


def verdicts(rows, peers):
    """Return one record per cell and metric, with how many standard errors it is ahead."""
    records = []
    for row in rows:
        _, model, prefix = METHODS[row["estimator"]]
        best = best_peers(peers, row["dataset"], model, prefix, row["epsilon"])
        for key, (metric, _, larger) in METRICS.items():
            record = {
                "dataset": row["dataset"],
                "method": row["estimator"],
                "epsilon": row["epsilon"],
                "metric": metric,
                "mean": row[metric],
                "standard_error": row[f"{metric}_se"],
            }
            if key in best:
                peer, error, name = best[key]
                ahead = (row[metric] - peer) * (1 if larger else -1)
                spread = math.hypot(row[f"{metric}_se"], 0.0 if math.isnan(error) else error)
                record |= {"peer": peer, "peer_name": name, "z": ahead / spread}
            records.append(record)
    return records


def table(records):
    """Return the records as text, one line per dataset, method and metric."""
    groups = defaultdict(list)
    for record in records:
        groups[record["dataset"], record["method"], record["metric"]].append(record)
    lines = []
    for (dataset, method, metric), group in groups.items():
        cells = []
        for record in group:
            text = f"{record['mean']:.4f}"
            if "z" in record:
                text += f" ({record['peer']:.4f}, {record['z']:+.1f})"
            cells.append(f"{text:24}")
        lines.append(f"{dataset:6} {method:12} {metric:14}" + "".join(cells).rstrip())
    known = [record for record in records if "z" in record]
    if known:
        met = sum(record["z"] >= -2 for record in known)
        ahead = sum(record["z"] > 0 for record in known)
        lines.append(f"{met} of {len(known)} cells met within two standard errors, {ahead} ahead")
    return "\n".join(lines)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", help="CSV file with the values of other programs")
    parser.add_argument("--datasets", nargs="+", choices=ROW_BOUNDS, default=list(ROW_BOUNDS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cells", help="keep finished fits in files of this name, and resume")
    arguments = parser.parse_args()
    peers = read_peers(arguments.peers) if arguments.peers else {}
    rows = []
    for dataset, Xy in load_tables().items():
        if dataset not in arguments.datasets:
            continue
        estimators = {name: METHODS[name][0] for name in arguments.methods}
        for estimator in estimators.values():
            bounded = "row_bound" in estimator.get_params()
            estimator.set_params(
                classes=[0, 1], **({"row_bound": ROW_BOUNDS[dataset]} if bounded else {})
            )
        results = compare(
            {dataset: Xy},
            estimators,
            epsilons=arguments.epsilons,
            delta=DELTA,
            n_repeats=arguments.repeats,
            n_jobs=arguments.jobs,
            results_file=arguments.cells and Path(arguments.cells).with_suffix(f".{dataset}.jsonl"),
            progress=True,
        )
        rows += results.rows()
    print(table(verdicts(rows, peers)))


if __name__ == "__main__":
    main()
