"""``python -m dpglm compare``: cross-validate estimators and print the table."""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils import resample

from dpglm.commands.options import at_least, between_0_and_1, number
from dpglm.comparison import compare, encoded
from dpglm.datasets import fetch_adult, fetch_bank, fetch_kddcup99, make_census
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.logistic import DPLogisticRegression
from dpglm.estimators.svm import DPLinearSVM
from dpglm.plotting.comparison import ComparisonDisplay
from dpglm.results import ComparisonResults, ResultsFile
from dpglm.schedules import DecayingClip, DynamicNoise

__all__ = ["add_parser"]

_FETCHERS = {"adult": fetch_adult, "bank": fetch_bank, "kddcup99": fetch_kddcup99}
_CENSUS_ROWS = 20_000

# What each name stands for, and how to make it from the options of all private estimators.
_ESTIMATORS: dict[str, tuple[str, Callable[..., BaseEstimator]]] = {
    "logistic": ("DPLogisticRegression with its defaults", DPLogisticRegression),
    "logistic-plain": (
        "without momentum and averaging",
        partial(DPLogisticRegression, momentum=None, averaging=None),
    ),
    "logistic-unwhitened": (
        "without preconditioner, with fixed clip and step",
        partial(
            DPLogisticRegression,
            preconditioner=None,
            clip_schedule=2.0,
            step_schedule=1.0,
            momentum="heavy_ball",
        ),
    ),
    "logistic-decaying-clip": (
        "with a clip that decays to a half",
        partial(DPLogisticRegression, clip_schedule=DecayingClip(1.0)),
    ),
    "logistic-dynamic": (
        "with noise that decays to a quarter",
        partial(DPLogisticRegression, noise_schedule=DynamicNoise(decay=4.0)),
    ),
    "svm": ("DPLinearSVM with its defaults", DPLinearSVM),
    "svm-plain": (
        "without momentum and averaging",
        partial(DPLinearSVM, momentum=None, averaging=None),
    ),
    "agd": ("DPAGDClassifier, logistic, with its defaults", DPAGDClassifier),
}
_REFERENCES: dict[str, tuple[str, BaseEstimator]] = {
    "reference": (
        "logistic regression without privacy",
        LogisticRegression(C=np.inf, max_iter=2000),
    ),
    "reference-svm": (
        "linear SVM without privacy",
        LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000),
    ),
    "majority": ("the most frequent label for every row", DummyClassifier()),
}
_LEFT_OUT = ("logistic-plain", "svm-plain")


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-parsers."""
    named = {**_ESTIMATORS, **_REFERENCES}
    names = "\n".join(f"  {name:<24}{text}" for name, (text, _) in named.items())
    parser = commands.add_parser(
        "compare",
        help="cross-validate private estimators against one another",
        description="Cross-validate private estimators against one another, and against the same "
        "models without privacy.",
        epilog=f"estimators:\n{names}\n\n"
        "The scores are computed without noise: publish them only if the data are public.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "--dataset",
        choices=["census", *_FETCHERS],
        default="census",
        help="default: census, an artificial one that needs no files",
    )
    parser.add_argument(
        "--estimators",
        type=_names,
        default=[name for name in named if name not in _LEFT_OUT],
        metavar="NAME,...",
        help=f"see below; default: all but {' and '.join(_LEFT_OUT)}",
    )
    for option, kind, default, metavar, text in (
        ("--epsilons", _epsilons, "0.1,0.4,1", "E,...", "default: %(default)s"),
        ("--delta", between_0_and_1, 1e-6, "D", "default: %(default)s"),
        ("--folds", at_least(2), 5, "K", "default: %(default)s"),
        ("--repeats", at_least(1), 1, "R", "default: %(default)s"),
        ("--n-samples", at_least(4), None, "N", f"default: {_CENSUS_ROWS} of census, else all"),
        ("--max-iter", at_least(1), None, "T", "of private estimators; default: their own"),
        ("--seed", at_least(0), None, "S", "makes the noise reproducible; default: fresh noise"),
        ("--jobs", at_least(1), 1, "J", "number of processes; default: %(default)s"),
        ("--output", Path, None, "FILE.jsonl", "keep finished fits here and do not repeat them"),
        ("--json", Path, None, "FILE.json", "write the table as JSON"),
        ("--plot", Path, None, "FILE.png", "draw the table"),
        (
            "--data-home",
            Path,
            None,
            "FOLDER",
            "with the files of adult, bank or kddcup99; "
            "default: $DPGLM_DATA, else scikit-learn downloads them",
        ),
    ):
        parser.add_argument(option, type=kind, default=default, metavar=metavar, help=text)


def _run(arguments: argparse.Namespace) -> int:
    error = arguments.parser.error
    _check_files(arguments)
    try:
        X, y = _load(arguments)
    except (ValueError, OSError, ImportError) as problem:
        error(f"argument --dataset: {problem}")
    estimators = _make_estimators(arguments, X.shape, n_classes=len(np.unique(y)))

    # Without --output the finished fits are kept all the same, in case of an interruption.
    temporary = None
    if arguments.output is None:
        handle, temporary = tempfile.mkstemp(prefix="dpglm-compare-", suffix=".jsonl")
        os.close(handle)
    output = arguments.output or temporary
    try:
        results = compare(
            {arguments.dataset: (X, y)},
            estimators,
            epsilons=arguments.epsilons,
            delta=arguments.delta,
            n_splits=arguments.folds,
            n_repeats=arguments.repeats,
            seed=arguments.seed,
            n_jobs=arguments.jobs,
            results_file=output,
            progress=True,
        )
    except KeyboardInterrupt:
        print(
            f"Interrupted. To resume, run the same command with --output {output}",
            file=sys.stderr,
        )
        return 130
    if temporary is not None:
        os.unlink(temporary)
    _write(results, arguments)
    return 1 if results.errors else 0


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse, before any work, files that could not be written after it."""
    error = arguments.parser.error
    paths = {option: getattr(arguments, option) for option in ("output", "json", "plot")}
    paths = {option: path for option, path in paths.items() if path is not None}
    if len(set(paths.values())) < len(paths):
        error(f"{', '.join(f'--{option}' for option in paths)} must name different files")
    for option, path in paths.items():
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "ab").close()
        except OSError as problem:
            error(f"argument --{option}: {path} cannot be written ({problem.strerror})")
        if not existed:
            path.unlink()
    if arguments.output is not None:
        try:
            ResultsFile(arguments.output).read()
        except ValueError as problem:
            error(f"argument --output: {problem}")
    if arguments.plot is not None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            error('argument --plot: needs matplotlib: pip install "dpglm[plot]"')
        suffixes = sorted(Figure().canvas.get_supported_filetypes())
        if arguments.plot.suffix[1:] not in suffixes:
            error(f"argument --plot: {arguments.plot} must end in one of {', '.join(suffixes)}")


def _load(arguments: argparse.Namespace) -> tuple[Any, np.ndarray]:
    if arguments.dataset == "census":
        X, y = make_census(arguments.n_samples or _CENSUS_ROWS, random_state=0)
    else:
        X, y = encoded(_FETCHERS[arguments.dataset](arguments.data_home))
    n_samples = arguments.n_samples or len(y)
    if n_samples > len(y):
        arguments.parser.error(
            f"argument --n-samples: {arguments.dataset} has {len(y)} rows, fewer than {n_samples}"
        )
    if n_samples < len(y):
        X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    if arguments.folds > n_samples:
        arguments.parser.error(f"argument --folds: {arguments.folds} exceeds the {n_samples} rows")
    return X, y


def _make_estimators(
    arguments: argparse.Namespace, shape: tuple[int, int], n_classes: int
) -> dict[str, BaseEstimator]:
    options = {"delta": arguments.delta}
    if arguments.max_iter is not None:
        options["max_iter"] = arguments.max_iter
    n_training = shape[0] - math.ceil(shape[0] / arguments.folds)
    estimators: dict[str, BaseEstimator] = {}
    for name in arguments.estimators:
        if name in _REFERENCES:
            estimators[name] = _REFERENCES[name][1]
            continue
        for epsilon in arguments.epsilons:
            estimators[name] = _ESTIMATORS[name][1](epsilon=epsilon, **options)
            try:
                estimators[name].plan(n_training, shape[1], n_classes)
            except ValueError as problem:
                arguments.parser.error(f"estimator {name}: {problem}")
    return estimators


def _write(results: ComparisonResults, arguments: argparse.Namespace) -> None:
    print(results.table())
    if results.notes():
        print(f"\n{results.notes()}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(results.to_json(), encoding="utf-8")
    if arguments.plot is not None:
        display = ComparisonDisplay.from_results(results).plot()
        display.figure_.savefig(arguments.plot, dpi=150)


def _names(text: str) -> list[str]:
    known = [*_ESTIMATORS, *_REFERENCES]
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose from {', '.join(known)}")
    return names


def _epsilons(text: str) -> list[float]:
    epsilons = sorted({number(part) for part in text.split(",")})
    if not epsilons[0] > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every epsilon must be above 0")
    return epsilons
