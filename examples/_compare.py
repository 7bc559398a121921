"""The methods, the command line and the output that the comparisons on real data share.

The methods are those of Figure 2 of Lee & Kifer (2018), "Concentrated differentially private
gradient descent with adaptive per-iteration privacy budget", as they ran them, and the estimators
of this package at their defaults. ``--loss svm`` is Figure 3.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sklearn.utils import resample

from dpglm import DPAGDClassifier
from dpglm.baselines import SGDMomentsAccountant
from dpglm.datasets import fetch_table
from dpglm.study import plot
from dpglm.study.comparison import compare, encoded
from dpglm.study.methods import METHODS

EPSILONS = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
# By the names of the paper; the others are this package's.
PUBLISHED = {
    "ObjPert (2018)": "objective-perturbation-published",
    "OutPert (2018)": "output-perturbation-published",
    "PrivGene (2018)": "privgene-published",
    "SGD-Adv (2018)": "sgd-advanced-published",
}


def methods(svm: bool) -> dict[str, Any]:
    """Return the estimators of Figure 2, or of Figure 3, by name."""
    suffix = "-svm" if svm else ""
    loss = "hinge" if svm else "logistic"
    found = {"DP-AGD (2018)": DPAGDClassifier.as_published(loss=loss)}
    found |= {name: METHODS[key + suffix].estimator for name, key in PUBLISHED.items()}
    # It has no fit below epsilon 0.58: the table says so.
    found["SGD-MA (2018)"] = SGDMomentsAccountant.as_published(loss=loss)
    own = {"DPAGDClassifier": f"agd{suffix}"}
    own |= {"DPLinearSVM": "svm"} if svm else {"DPLogisticRegression": "logistic"}
    own |= {"majority": "majority", "not private": f"reference{suffix}"}
    return found | {name: METHODS[key].estimator for name, key in own.items()}


def run(description: str, name: str, more: Mapping[str, Any]) -> None:
    """Compare estimators on a dataset; print the table, write JSON and a figure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="8,000 rows, 2 folds, 3 epsilons")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--loss", choices=["logistic", "svm"], default="logistic")
    parser.add_argument("--more", action="store_true", help="settings of this package besides")
    parser.add_argument("--n-samples", type=int, help="draw so many rows; default: all")
    parser.add_argument("--data-home", help="folder with the files of the data set")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, help="makes the noise reproducible")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--results", type=Path, default=Path("results"), help="output folder")
    arguments = parser.parse_args()

    unfinished = arguments.results / f"{name}.jsonl"
    X, y = encoded(fetch_table(name, arguments.data_home), intervals=1)
    n_samples = arguments.n_samples or (8000 if arguments.quick else None)
    if n_samples is not None:
        X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    results = compare(
        {name: (X, y)},
        methods(arguments.loss == "svm") | (more if arguments.more else {}),
        epsilons=[0.1, 0.4, 1.6] if arguments.quick else arguments.epsilons,
        delta=1e-8,
        n_splits=2 if arguments.quick else 5,
        n_repeats=arguments.repeats,
        seed=arguments.seed,
        n_jobs=arguments.jobs,
        results_file=unfinished,
        progress=True,
    )
    print(results)
    (arguments.results / f"{name}.json").write_text(results.to_json(), encoding="utf-8")
    # It lets an interrupted run resume; the next run should draw its noise anew.
    unfinished.unlink()
    try:
        display = plot(results, metrics=("accuracy", "training_loss"))
    except ImportError as error:
        print(f"No figure: {error}")
    else:
        display.figure_.savefig(arguments.results / f"{name}.png", dpi=150)
    print(f"\nWritten to {arguments.results}/{name}.*")
