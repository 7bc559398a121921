"""Compare estimators over folds, budgets and repetitions."""

import hashlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import product
from os import PathLike
from typing import Any

import joblib
import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline

from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.privacy.noise import seeded_noise
from dpglm.study.results import Cell, ComparisonResults, ResultsFile, one_line, parameters_named

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def report_progress(total: int, earlier: int, *, enabled: bool) -> Iterator[Callable[[], None]]:
    """Yield what to call after each of `total` cells but the `earlier` ones; it shows progress."""
    if enabled and earlier:
        print(f"{earlier} of {total} fits were finished earlier", file=sys.stderr)
    if not enabled or earlier == total:
        yield lambda: None
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        from rich import progress
        from rich.console import Console

        bar, number = progress.BarColumn(bar_width=24), "{task.completed} of {task.total} fits "
        times = progress.TimeElapsedColumn(), "elapsed, about", progress.TimeRemainingColumn()
        # All fits count for the time that is left: one may take longer than rich looks back.
        options = {"console": Console(stderr=True), "transient": True, "speed_estimate_period": 1e9}
        with progress.Progress(bar, number, *times, "left", **options) as shown:
            yield partial(shown.advance, shown.add_task("", total=total, completed=earlier))
    else:
        done, start = earlier, time.monotonic()
        last = start

        def advance() -> None:
            """Count one more, and print a line now and then."""
            nonlocal done, last
            done, now = done + 1, time.monotonic()
            if now - last >= _SECONDS_BETWEEN_LINES:
                last, rate = now, (now - start) / (done - earlier)
                seconds = now - start, rate * (total - done)
                spent, left = (timedelta(seconds=round(s)) for s in seconds)
                text = f"{done} of {total} fits  {spent} elapsed, about {left} left"
                print(text, file=sys.stderr, flush=True)

        yield advance


def finished(
    function: Callable, calls: Sequence[tuple], *, earlier: int = 0, n_jobs: Any, progress: bool
) -> Iterator[Any]:
    """Yield what a function returns for each call, from several processes, as it comes."""
    parent = {"initializer": _follow, "initargs": (os.getpid(),)}
    run = Parallel(n_jobs=n_jobs, return_as="generator_unordered", **parent)
    with report_progress(len(calls) + earlier, earlier, enabled=progress) as advance:
        for outcome in run(delayed(function)(*call) for call in calls):
            yield outcome
            advance()


def _follow(parent: int) -> None:
    """Ignore interruptions in a worker, and end it when its parent process is gone."""
    if os.getpid() == parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def scores(model: BaseEstimator, X: Any, y: np.ndarray) -> dict[str, float]:
    """Return ``accuracy``, ``auc`` and ``loss`` of a fitted classifier, without noise."""
    margins, target = _margins(model, X, y)
    of_classes = target > 0 if margins.ndim == 1 else np.eye(margins.shape[1])[target]
    return {
        "accuracy": float(np.mean(model.predict(X) == y)),
        "auc": float(roc_auc_score(of_classes, margins)),
        "loss": _mean_loss(model, margins, target),
    }


def _kind_of_loss(model: BaseEstimator) -> str:
    return "logistic" if hasattr(model, "predict_proba") else "hinge"


def _mean_loss(model: BaseEstimator, margins: np.ndarray, target: np.ndarray) -> float:
    """Return the mean of the loss that suits a model, without regularisation."""
    logistic = Logistic() if margins.ndim == 1 else Softmax()
    loss = Hinge() if _kind_of_loss(model) == "hinge" else logistic
    return float(loss.value(margins, target).mean())


def _margins(model: BaseEstimator, X: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log-odds (n,) and signs, or for several classes scores (n, n_classes) and indices."""
    unknown = np.setdiff1d(y, model.classes_)
    if len(unknown):
        raise ValueError(
            f"the training fold lacks the label {unknown[0]!r}; use fewer folds, or name all "
            "labels in the estimator's classes."
        )
    if hasattr(model, "decision_function"):
        margins = model.decision_function(X)
    else:
        logs = model.predict_log_proba(X)
        margins = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
    index = np.searchsorted(model.classes_, y)
    return margins, np.where(index == 1, 1.0, -1.0) if len(model.classes_) == 2 else index


def compare(
    datasets: Mapping[str, Any],
    estimators: Mapping[str, BaseEstimator],
    *,
    epsilons: Iterable[float],
    delta: float = 1e-6,
    n_splits: int = 5,
    n_repeats: int = 1,
    seed: int | None = None,
    n_jobs: int | None = None,
    results_file: str | PathLike[str] | None = None,
    progress: bool = False,
) -> ComparisonResults:
    """Cross-validate estimators against one another on the same folds.

    The scores are computed from the data without noise: they may be published only if the data may.

    Parameters
    ----------
    datasets : mapping from str to (X, y) or Bunch
        Encoded rows (array or CSR) and labels. Or a Bunch of ``data``, ``target`` and ``schema``,
        which is encoded once with the public bounds of its schema.
    estimators : mapping from str to estimator
        Prototypes, cloned for each fit. If they, or a step of a pipeline, have the parameters
        ``epsilon`` and ``delta``, they are fitted once for each epsilon, the others once.
    epsilons : iterable of float
    delta : float, default=1e-6
    n_splits : int, default=5
        The folds of a repeat are ``KFold(n_splits, shuffle=True, random_state=repeat)``.
    n_repeats : int, default=1
    seed : int, optional
        Seeds the noise of each fit, and every ``random_state``, with a number of its own, so that
        the comparison can be repeated exactly. By default noise is fresh, and they stay the same.
    n_jobs : int, optional
        Number of processes, as in joblib.
    results_file : path-like, optional
        Each finished cell is appended to this file as a line of JSON. Cells that it already holds
        are not run again, unless they raised.
    progress : bool, default=False
        Report progress on standard error.

    Returns
    -------
    ComparisonResults

    Raises
    ------
    ValueError
        If a parameter is out of range or `results_file` holds something else. An error in a cell
        is recorded instead: see ``ComparisonResults.errors``.

    Notes
    -----
    ``training_loss`` and ``test_loss`` are means without regularisation. The loss is logistic (the
    cross entropy, for several classes) for estimators with ``predict_proba``, and the hinge
    for the others. For several classes, ``auc`` is the mean of the one-vs-rest areas.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import compare
    >>> from dpglm.datasets import make_census
    >>> census = {"census": make_census(1000, random_state=0)}
    >>> print(compare(census, {"private": DPLogisticRegression()}, epsilons=[1.0]))
    census: 1,000 rows x 99 features, 5-fold cross-validation, delta 1e-06
    mean ± standard error over the folds
    <BLANKLINE>
                    epsilon 1
    accuracy, test fold
      private  0... ±0...
    ...
    """
    budgets = [(epsilon, float(delta)) for epsilon in dict.fromkeys(map(float, epsilons))]
    if not budgets:
        raise ValueError("epsilons is empty; give at least one.")
    if n_repeats < 1:
        raise ValueError(f"n_repeats={n_repeats!r} must be 1 or more.")
    seed = None if seed is None else int(seed)
    tables = {name: encoded(dataset) for name, dataset in datasets.items()}
    own = [
        (name, _description(estimator), *budget)
        for name, estimator in estimators.items()
        # Without privacy the scores are those of one fit for all.
        for budget in (budgets if _budget_names(estimator) else [(None, None)])
    ]
    cells = []
    for dataset, (X, y) in tables.items():
        # Too many folds are refused here, before the first fit.
        next(KFold(n_splits, shuffle=True, random_state=0).split(X))
        table = (dataset, *X.shape, joblib.hash((X, y)))
        for repeat, fold, which in product(range(n_repeats), range(n_splits), own):
            cells.append(Cell(*table, *which, n_splits, repeat, fold, seed))
    file = None if results_file is None else ResultsFile(results_file)
    known = {} if file is None else file.read()
    # A cell that raised is run again: its cause may be gone.
    records = {c: known[c] for c in cells if c in known and "error" not in known[c]}
    calls = [
        (cell, estimators[cell.estimator], *tables[cell.dataset])
        for cell in cells
        if cell not in records
    ]
    options = {"earlier": len(records), "n_jobs": n_jobs, "progress": progress}
    # Each outcome is on the disk before the next is waited for.
    for cell, outcome in finished(_measure, calls, **options):
        if file is not None:
            file.append(cell, outcome)
        records[cell] = {**asdict(cell), **outcome}
    return ComparisonResults([records[cell] for cell in cells])


def encoded(dataset: Any, intervals: int | None = None) -> tuple[Any, np.ndarray]:
    """Return the rows and labels of a dataset, as for `compare`, or with other segments."""
    if hasattr(dataset, "schema"):
        encoder = dataset.schema.additive(intervals).transformer()
        X = encoder.fit_transform(dataset.data)
        y = dataset.target
    else:
        X, y = dataset
    y = np.asarray(y)
    # Strings of fixed width are cheaper than objects to hash and to hand to other processes.
    return X, np.array(y.tolist()) if y.dtype == object else y


def _measure(cell: Cell, estimator: BaseEstimator, X: Any, y: np.ndarray) -> tuple[Cell, dict]:
    """Return the cell with what was measured and the warnings, or with the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if cell.seed is not None:
            warnings.filterwarnings("ignore", "seeded_noise makes", PrivacyWarning)
        try:
            outcome = _measured(_configured(estimator, cell), cell, X, y)
        except Exception as error:
            return cell, {"error": one_line(f"{type(error).__name__}: {error}")}
    messages = dict.fromkeys(one_line(f"{w.category.__name__}: {w.message}") for w in caught)
    return cell, {**outcome, "warnings": list(messages)}


def _budget_names(estimator: BaseEstimator) -> tuple[str, ...]:
    """Return the full names of ``epsilon`` and ``delta``, if it has both."""
    deltas = parameters_named(estimator, "delta")
    prefixes = [name.removesuffix("epsilon") for name in parameters_named(estimator, "epsilon")]
    prefixes = [prefix for prefix in prefixes if prefix + "delta" in deltas]
    if len(prefixes) > 1:
        raise ValueError(
            f"{type(estimator).__name__} has several private steps ({', '.join(prefixes)}), and "
            "each would spend the whole budget; compare estimators with one."
        )
    return tuple(prefix + name for prefix in prefixes for name in ("epsilon", "delta"))


def _description(estimator: BaseEstimator) -> str:
    """Return the class and all parameters that a cell does not set, the same in every process."""
    set_by_cell = _budget_names(estimator)
    parameters = ", ".join(
        f"{name}={type(value).__name__ if hasattr(value, 'get_params') else repr(value)}"
        for name, value in sorted(estimator.get_params().items())
        if name not in set_by_cell
    )
    # Addresses of objects would tell the cells of two processes apart.
    text = one_line(f"{type(estimator).__name__}({parameters})")
    return re.sub(" at 0x[0-9a-fA-F]+", "", text)


def _configured(estimator: BaseEstimator, cell: Cell) -> BaseEstimator:
    budget = zip(_budget_names(estimator), (cell.epsilon, cell.delta), strict=False)
    model = clone(estimator).set_params(**dict(budget))
    if cell.seed is not None:
        names = parameters_named(model, "random_state")
        model.set_params(**dict.fromkeys(names, _seed_of(cell)))
    return model


def _seed_of(cell: Cell) -> int | None:
    """Return a number of its own for each cell, which depends on no other cell or process."""
    if cell.seed is None:
        return None
    key = (cell.seed, cell.dataset, cell.estimator, cell.epsilon, cell.repeat, cell.fold)
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4])


def _measured(model: BaseEstimator, cell: Cell, X: Any, y: np.ndarray) -> dict[str, Any]:
    folds = KFold(cell.n_splits, shuffle=True, random_state=cell.repeat).split(X)
    train, test = list(folds)[cell.fold]
    X_train, y_train, X_test, y_test = X[train], y[train], X[test], y[test]
    start = time.perf_counter()
    with seeded_noise(_seed_of(cell)):
        model.fit(X_train, y_train)
    fit_seconds = time.perf_counter() - start

    ledger = getattr(model[-1] if isinstance(model, Pipeline) else model, "privacy_", None)
    test = scores(model, X_test, y_test)
    return {
        **test,
        "loss": _kind_of_loss(model),
        "training_loss": _mean_loss(model, *_margins(model, X_train, y_train)),
        "test_loss": test["loss"],
        "fit_seconds": fit_seconds,
        "ledger_epsilon": None if ledger is None else ledger.epsilon(cell.delta),
        "guarantee": None if ledger is None else str(ledger),
    }
