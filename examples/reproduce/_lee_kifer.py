"""What the scripts about Lee & Kifer (2018) share: data, methods, scores on the folds, claims."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _report import Report, comparison, mean_and_error
from sklearn.base import BaseEstimator
from sklearn.utils import resample

from dpglm import DPAGDClassifier
from dpglm.study import ComparisonResults, compare
from dpglm.study.methods import make_estimator

SOURCE = (
    "Lee & Kifer, Concentrated differentially private gradient descent with adaptive "
    "per-iteration privacy budget, KDD 2018"
)
DELTA = 1e-8
NOT_AT_HAND = "The paper's own numbers are not at hand: its claims are stated in words."

PUBLISHED, OURS = "DP-AGD, as published", "DP-AGD, our defaults"
NOT_PRIVATE, STATE_OF_THE_ART = "not private", "SGD-MA"
# What the paper calls prior algorithms, by our names for the methods.
PRIOR = {
    "ObjPert": "objective-perturbation",
    "OutPert": "output-perturbation",
    "PrivGene": "privgene",
    "SGD-Adv": "sgd-advanced",
}
# Accuracy in percent, loss as it is; factor, and whether larger is better.
METRICS = {"accuracy": (100.0, 1), "training_loss": (1.0, -1)}
# In which units gains are shown.
UNITS = {"accuracy": (1, " points"), "training_loss": (100, " hundredths")}
# "Close", "competitive" and "insensitive" mean no more than so many points of accuracy.
MARGIN = 1.0
WITHIN = f"no more than {MARGIN:g} point, or than the noise"


def sparse(bunch: Any) -> tuple[Any, np.ndarray]:
    """Return the rows of a dataset, encoded as a CSR matrix, and its labels."""
    X = bunch.schema.transformer(sparse_output=True).fit_transform(bunch.data)
    return X, np.array(bunch.target.tolist())


def drawn(X: Any, y: np.ndarray, n_samples: int | None) -> tuple[Any, np.ndarray]:
    """Return so many rows, the same ones every time; all of them without a number."""
    if n_samples is None or n_samples >= len(y):
        return X, y
    X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    return X, y


def methods(loss: str, classes: Iterable[Any], everything: bool) -> dict[str, BaseEstimator]:
    """Return the methods of the paper, corrected, and this package's own, for a loss."""
    suffix = "" if loss == "logistic" else "-svm"
    own = "DPLogisticRegression" if loss == "logistic" else "DPLinearSVM"
    names = {
        OURS: f"agd{suffix}",
        own: loss,
        **{name: f"{key}{suffix}" for name, key in PRIOR.items()},
        STATE_OF_THE_ART: f"sgd-moments{suffix}",
        NOT_PRIVATE: f"reference{suffix}",
    }
    if everything:
        names["AMP (2019)"] = f"approximate-minima{suffix}"
    if loss == "logistic":
        names["majority"] = "majority"
        if everything:
            names["double-noise Newton (2023)"] = "double-noise-newton"
    classes = list(classes)
    published = DPAGDClassifier.as_published(
        loss="logistic" if loss == "logistic" else "hinge", classes=classes
    )
    made = {name: make_estimator(key, classes=classes) for name, key in names.items()}
    return {PUBLISHED: published, **made}


def compared(
    name: str, data: Any, estimators: Mapping[str, Any], **options: Any
) -> ComparisonResults:
    """Compare, and end the script with the reasons if a fit failed."""
    results = compare({name: data}, estimators, delta=DELTA, **options)
    if results.errors:
        raise SystemExit(results.notes())
    return results


def folds(results: ComparisonResults, metric: str, epsilon: float) -> dict[str, np.ndarray]:
    """Return the scores of every estimator at an epsilon, in the order of repeats and folds.

    Those without privacy count at every epsilon.
    """
    values: dict[str, dict[tuple[int, int], float]] = {}
    for record in results.records:
        if record["epsilon"] in (epsilon, None):
            fold = record["repeat"], record["fold"]
            score = METRICS[metric][0] * record[metric]
            values.setdefault(record["estimator"], {})[fold] = score
    return {name: np.array([of[fold] for fold in sorted(of)]) for name, of in values.items()}


def claim_prior(
    report: Report, title: str, results: ComparisonResults, metric: str, epsilon: float
) -> None:
    """Add the claim that DP-AGD outperforms every prior algorithm, the best of them included."""
    factor, unit = UNITS[metric]
    factor *= METRICS[metric][1]
    scores = {name: factor * of for name, of in folds(results, metric, epsilon).items()}
    best = max(PRIOR, key=lambda name: scores[name].mean())
    ours, holds, remark = comparison(scores[PUBLISHED] - scores[best], unit)
    defaults, *_ = comparison(scores[OURS] - scores[best], unit)
    beaten = [name for name in PRIOR if comparison(scores[PUBLISHED] - scores[name])[1]]
    found = f"better than {' and '.join(beaten) or 'none'}; with our defaults {defaults}"
    report.claim(
        f"{title}, epsilon {epsilon:g}: DP-AGD outperforms the prior algorithms in "
        f"{metric.removeprefix('training_')}",
        paper="better than all",
        ours=f"{ours} against the best of them, {best}",
        holds=holds,
        remark=f"with our defaults {defaults}" if holds else f"{remark}; {found}",
    )


def matters(mean: float, error: float) -> bool:
    """Return whether a difference is beyond the noise and more than the margin."""
    return abs(mean) > max(MARGIN, 2 * error)


def claim_within(
    report: Report,
    claim: str,
    paper: str,
    results: ComparisonResults,
    other: str,
    epsilons: Iterable[float],
) -> None:
    """Add the claim that DP-AGD is not less accurate than another by more than the margin."""
    gaps = {}
    for epsilon in epsilons:
        scores = folds(results, "accuracy", epsilon)
        gaps[epsilon] = mean_and_error(scores[PUBLISHED] - scores[other])
    worst = min(gaps, key=lambda epsilon: gaps[epsilon][0])
    mean, error = gaps[worst]
    at = f" at epsilon {worst:g}" if len(gaps) > 1 else ""
    report.claim(
        claim,
        paper=paper,
        ours=f"{mean:+.2f} ±{error:.2f} points{at}",
        holds=mean > 0 or not matters(mean, error),
        remark="behind" if mean < 0 and matters(mean, error) else WITHIN,
    )


def claim_panel(
    report: Report,
    title: str,
    results: ComparisonResults,
    metrics: Iterable[str],
    epsilons: list[float],
) -> None:
    """Add what the paper says of DP-AGD in a panel: against others, the best, and the optimum."""
    for epsilon in dict.fromkeys((epsilons[0], epsilons[-1])):
        for metric in metrics:
            claim_prior(report, title, results, metric, epsilon)
    claim_within(
        report,
        f"{title}: DP-AGD is competitive with {STATE_OF_THE_ART}",
        "competitive with the state of the art",
        results,
        STATE_OF_THE_ART,
        epsilons,
    )
    claim_within(
        report,
        f"{title}: DP-AGD comes close to the optimum without privacy at epsilon {epsilons[-1]:g}",
        "close",
        results,
        NOT_PRIVATE,
        epsilons[-1:],
    )


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
    """Return what draws accuracy and loss against epsilon, one row of panels per comparison."""

    def drawing(plt: Any) -> Any:
        from dpglm.study import ComparisonDisplay

        fig, axes = plt.subplots(
            len(panels), 2, figsize=(10.5, 3.6 * len(panels)), layout="constrained", squeeze=False
        )
        for (title, results), row in zip(panels.items(), axes, strict=True):
            metrics = ("accuracy", "training_loss")
            ComparisonDisplay.from_results(results, metrics=metrics).plot(row)
            row[0].set_title(title, loc="left", fontsize=10)
            row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
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
