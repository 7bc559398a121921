"""What the scripts about Lee & Kifer (2018) share: data, methods, scores on the folds, claims."""

import math
import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _report import Report, mean_and_error
from scipy import sparse
from sklearn.datasets import fetch_kddcup99 as fetch_raw_kddcup99
from sklearn.utils import resample

from dpglm import DPAGDClassifier, baselines
from dpglm.datasets import fetch_table
from dpglm.schema import CategoricalColumn, Schema
from dpglm.study.comparison import ComparisonResults, compare, read_records
from dpglm.study.methods import METHODS

SOURCE = (
    "Lee & Kifer, Concentrated differentially private gradient descent with adaptive "
    "per-iteration privacy budget, KDD 2018"
)
DELTA = 1e-8

PUBLISHED, OURS = "DP-AGD", "DP-AGD, our defaults"
WIDER = "DP-AGD, gamma 0.3"
NOT_PRIVATE, MAJORITY, STATE_OF_THE_ART = "not private", "majority", "SGD-MA"
RIVALS = {
    "ObjPert": baselines.ObjectivePerturbation,
    "OutPert": baselines.DescentOutputPerturbation,
    "PrivGene": baselines.PrivGene,
    "SGD-Adv": baselines.SGDAdvancedComposition,
    STATE_OF_THE_ART: baselines.SGDMomentsAccountant,
}
# Those that need a smooth loss.
SMOOTH = ("ObjPert", "OutPert")
# Accuracy in percent, loss as it is; factor, and whether larger is better.
METRICS = {"accuracy": (100.0, 1), "training_loss": (1.0, -1)}
# "Competitive" and "little impact" mean no more than so many points of accuracy.
MARGIN = 1.0
WITHIN = f"no more than {MARGIN:g} point, or than the noise"
LOSSES = {"logistic": "logistic regression", "svm": "SVM"}

# Adult in the paper has 124 dimensions: the 123 binary columns in which it is often distributed,
# and one of ones. Those are cut at quantiles of the data; these at round numbers.
BANDS = {
    "age": [25, 35, 45, 55],
    "fnlwgt": [100_000, 150_000, 200_000, 250_000],
    "education-num": [9, 10, 11, 13],
    "capital-gain": [1],
    "capital-loss": [1],
    "hours-per-week": [35, 40, 41, 50],
}
# The files of the authors, by the names they have in the data folder.
FILES = {"BANK": "bank-2018.dat", "IPUMS-BR": "ipums-br.dat", "IPUMS-US": "ipums-us.dat"}
DENIAL_OF_SERVICE = ["back.", "land.", "neptune.", "pod.", "smurf.", "teardrop."]


def encoded(bunch: Any) -> tuple[Any, np.ndarray]:
    """Return the rows of a dataset, encoded with straight lines as a CSR matrix, and its labels."""
    encoder = bunch.schema.additive(1).transformer(sparse_output=True)
    X = encoder.fit_transform(bunch.data)
    return X, np.array(bunch.target.tolist())


def banded_adult(data_home: str | None) -> tuple[Any, np.ndarray]:
    """Return Adult in 123 columns of zeros and ones, cut at public numbers, and its labels.

    What is unknown is all zeros in its block. The survey weight ``fnlwgt`` was computed from other
    people's records too, so that these columns are for comparing with the paper only.
    """
    bunch = fetch_table("adult", data_home)
    columns, data = [], bunch.data.copy()
    for column in bunch.schema.categorical:
        known = [category for category in column.categories if category != "?"]
        columns.append(CategoricalColumn(column.name, known))
        data[column.name] = data[column.name].astype(object).where(data[column.name] != "?", "")
    for name, edges in BANDS.items():
        columns.append(CategoricalColumn(name, [str(k) for k in range(len(edges) + 1)]))
        data[name] = np.searchsorted(edges, data[name], side="right").astype(str)
    schema = Schema("adult in bands", columns, bunch.schema.target)
    return encoded(type(bunch)(data=data, target=bunch.target, schema=schema))


def authors_file(name: str, data_home: str | None) -> tuple[Any, np.ndarray] | None:
    """Return a dataset as the authors distribute it, or None where its file is not at hand.

    Numbers separated by spaces, the label last. Columns are scaled to [0, 1] by their ranges, as
    in the paper: these tables are public, and a private one would need bounds known beforehand.
    """
    path = found(FILES[name], data_home)
    if path is None:
        return None
    table = np.loadtxt(path)
    X = table[:, :-1] - table[:, :-1].min(axis=0)
    return sparse.csr_matrix(X / np.maximum(X.max(axis=0), 1e-300)), table[:, -1]


def found(file: str, data_home: str | None) -> Path | None:
    """Return where a file is, in the folder given or in that of ``DPGLM_DATA``."""
    folders = [Path(home) for home in (data_home, os.environ.get("DPGLM_DATA")) if home]
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


def kddcup99(data_home: str | None, n_samples: int | None) -> tuple[Any, np.ndarray]:
    """Return so many rows of KDD Cup 1999, labelled as in the paper: an attack on the service?"""
    bunch = fetch_table("kddcup99", data_home)
    labels = _labels_of_kddcup99(data_home)
    y = np.isin(labels, DENIAL_OF_SERVICE).astype(int)
    if not ((labels == "normal.") == (np.array(bunch.target.tolist()) == "normal")).all():
        raise SystemExit("The labels of KDD Cup 1999 are not those of its rows; check the files.")
    return drawn(encoded(bunch)[0], y, n_samples)


def _labels_of_kddcup99(data_home: str | None) -> np.ndarray:
    import pandas as pd

    path = found("kddcup.data_10_percent.gz", data_home)
    if path is None:
        return fetch_raw_kddcup99(data_home=data_home).target.astype("S").astype(str)
    return pd.read_csv(path, header=None, usecols=[41])[41].to_numpy(dtype=str)


def drawn(X: Any, y: np.ndarray, n_samples: int | None) -> tuple[Any, np.ndarray]:
    """Return so many rows, the same ones every time; all of them without a number."""
    if n_samples is None or n_samples >= len(y):
        return X, y
    X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    return X, y


def least_of_moments(delta: float) -> float:
    """Return the epsilon below which 32 moments, those of the authors' program, state nothing."""
    return math.log(1 / delta) / 32


def methods(loss: str, classes: Iterable[Any]) -> dict[str, Any]:
    """Return the methods of the paper as it ran them, and this package's DP-AGD, for a loss."""
    svm, classes = loss == "svm", list(classes)
    hinge, smooth = ("hinge", "smoothed_hinge") if svm else ("logistic", "logistic")
    found = {
        PUBLISHED: DPAGDClassifier.as_published(loss=hinge, classes=classes),
    }
    if not svm:
        found[WIDER] = DPAGDClassifier.as_published(classes=classes, budget_growth=0.3)
        found[MAJORITY] = baselines.MajorityClassifier(classes=classes)
    for name, rival in RIVALS.items():
        own = smooth if name in SMOOTH else hinge
        found[name] = rival.as_published(loss=own, classes=classes)
    found[OURS] = DPAGDClassifier(loss=smooth, classes=classes)
    found[NOT_PRIVATE] = METHODS["reference-svm" if svm else "reference"].estimator
    return found


def compared(
    name: str,
    data: Any,
    estimators: Mapping[str, Any],
    epsilons: Iterable[float],
    finished: bool = False,
    **options: Any,
) -> ComparisonResults:
    """Compare, and end the script with the reasons if a fit failed.

    SGD-MA joins where the moments accountant states so small an epsilon. With ``finished`` nothing
    is fitted that the file of results has not.
    """
    options, records = {"delta": DELTA, **options}, []
    if finished:
        known = read_records(options["results_file"]).values()
        of_table = [
            r for r in known if r["dataset"] == name and r["n_splits"] == options["n_splits"]
        ]
        wanted = {*epsilons, None}
        return ComparisonResults(
            [r for r in of_table if r["estimator"] in estimators and r["epsilon"] in wanted]
        )
    least = least_of_moments(options["delta"])
    small = [epsilon for epsilon in epsilons if epsilon <= least]
    large = [epsilon for epsilon in epsilons if epsilon > least]
    for group in (small, large):
        chosen = {
            key: estimator
            for key, estimator in estimators.items()
            if not (
                (key == NOT_PRIVATE and records) or (key == STATE_OF_THE_ART and group is small)
            )
        }
        if group:
            results = compare({name: data}, chosen, epsilons=group, **options)
            if results.errors:
                raise SystemExit(results.notes())
            records += results.records
    return ComparisonResults(records)


def folds(results: ComparisonResults, metric: str, epsilon: float) -> dict[str, np.ndarray]:
    """Return the scores of every estimator at an epsilon, in the order of repeats and folds.

    Those without privacy count at every epsilon. Folds that one of them lacks are left out.
    """
    values: dict[str, dict[tuple[int, int], float]] = {}
    for record in results.records:
        if record["epsilon"] in (epsilon, None):
            fold = record["repeat"], record["fold"]
            score = METRICS[metric][0] * record[metric]
            values.setdefault(record["estimator"], {})[fold] = score
    common = sorted(set.intersection(*map(set, values.values()))) if values else []
    return {name: np.array([of[fold] for fold in common]) for name, of in values.items()}


def gain(scores: Mapping[str, np.ndarray], name: str, others: Iterable[str]) -> tuple:
    """Return the best of others, and the mean and error of the gain over it, fold by fold."""
    best = max((other for other in others if other in scores), key=lambda o: scores[o].mean())
    return best, *mean_and_error(scores[name] - scores[best])


def matters(mean: float, error: float) -> bool:
    """Return whether a difference is beyond the noise and more than the margin."""
    return abs(mean) > max(MARGIN, 2 * error)


def in_range(results: ComparisonResults, epsilons: list[float]) -> tuple[list[float], str]:
    """Return where DP-AGD is the most accurate or competitive, and by how much."""
    near, parts = [], []
    for epsilon in epsilons:
        best, mean, error = gain(folds(results, "accuracy", epsilon), PUBLISHED, RIVALS)
        if mean > 0 or not matters(mean, error):
            near.append(epsilon)
        parts.append(f"{epsilon:g}: {mean:+.2f} ±{error:.2f} ({best})")
    return near, "; ".join(parts)


def measured(results: ComparisonResults, epsilons: list[float]) -> list[float]:
    """Return the epsilons at which at least two folds are finished."""
    scores = {epsilon: folds(results, "accuracy", epsilon) for epsilon in epsilons}
    return [e for e, of in scores.items() if PUBLISHED in of and len(of[PUBLISHED]) > 1]


def listed(epsilons: Iterable[float]) -> str:
    """Return epsilons as text."""
    return ", ".join(f"{epsilon:g}" for epsilon in epsilons) or "no epsilon"


def add_tables(
    report: Report, panels: Mapping[str, ComparisonResults], epsilons: list[float]
) -> None:
    """Add the accuracy and the loss of every panel."""
    for title, results in panels.items():
        add_table(
            report, f"{title}: accuracy in percent, test folds", results, "accuracy", epsilons
        )
        loss = "logistic" if "logistic" in title else "hinge"
        add_table(
            report, f"{title}: {loss} loss, training folds", results, "training_loss", epsilons
        )


def add_table(
    report: Report, title: str, results: ComparisonResults, metric: str, epsilons: Iterable[float]
) -> None:
    """Add the means and standard errors of every method."""
    columns = [folds(results, metric, epsilon) for epsilon in epsilons]
    digits = 2 if metric == "accuracy" else 4

    def text(values: np.ndarray) -> str:
        mean, error = mean_and_error(values)
        return f"{mean:.{digits}f} ±{error:.{digits}f}"

    report.table(
        title,
        ["method", *(f"epsilon {epsilon:g}" for epsilon in epsilons)],
        ([name, *(text(column[name]) for column in columns)] for name in columns[0]),
    )


def figure(panels: Mapping[str, ComparisonResults]) -> Callable[[Any], Any]:
    """Return what draws accuracy above loss against epsilon, a column for each comparison."""

    def drawing(plt: Any) -> Any:
        from dpglm.study import plot

        size = 3.6 * len(panels) + 0.4, 6.4
        fig, axes = plt.subplots(
            2, len(panels), figsize=size, layout="constrained", squeeze=False, sharex=True
        )
        for (title, results), column in zip(panels.items(), axes.T, strict=True):
            plot(results, ax=column, metrics=("accuracy", "training_loss"))
            handles, labels = column[0].get_legend_handles_labels()
            column[1].get_legend().remove()
            column[0].set(title=title, xlabel="")
        n_columns = min(5, 1 + 2 * len(panels))
        fig.legend(handles, labels, loc="outside lower center", ncols=n_columns, frameon=False)
        return fig

    return drawing


def add_run_arguments(parser: ArgumentParser) -> None:
    """Add the options of the scripts that run a comparison."""
    parser.add_argument("--full", action="store_true", help="everything, in hours")
    parser.add_argument("--data-home", help="folder with the files of the data")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep finished fits there, and resume from it"
    )
    parser.add_argument("--finished", action="store_true", help="take those, and fit no more")
