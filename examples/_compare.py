"""The command line and the output that the comparisons on real data share."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sklearn.utils import resample

from dpglm.datasets import fetch_table
from dpglm.study import plot
from dpglm.study.comparison import compare, encoded


def run(description: str, name: str, estimators: Mapping[str, Any]) -> None:
    """Compare estimators on a dataset; print the table, write JSON, a figure and a report."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="2 folds and epsilon 1 only")
    parser.add_argument("--n-samples", type=int, help="draw so many rows; default: all")
    parser.add_argument("--data-home", help="folder with the files of the data set")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, help="makes the noise reproducible")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--results", type=Path, default=Path("results"), help="output folder")
    arguments = parser.parse_args()

    unfinished = arguments.results / f"{name}.jsonl"
    X, y = encoded(fetch_table(name, arguments.data_home), intervals=1)
    if arguments.n_samples is not None:
        X, y = resample(X, y, replace=False, n_samples=arguments.n_samples, random_state=0)
    results = compare(
        {name: (X, y)},
        estimators,
        epsilons=[1.0] if arguments.quick else [0.1, 0.4, 1.0],
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
        display = plot(results)
    except ImportError as error:
        print(f"No figure: {error}")
    else:
        display.figure_.savefig(arguments.results / f"{name}.png", dpi=150)
    print(f"\nWritten to {arguments.results}/{name}.*")
