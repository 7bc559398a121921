"""Compare estimators over folds, budgets and repetitions."""

import hashlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
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
from dpglm.study.results import Cell, ComparisonResults, ResultsFile

__all__ = ["compare", "encoded", "kind_of_loss", "mean_loss", "report_progress", "scores"]

_SECONDS_BETWEEN_LINES = 10.0


def report_progress(
    total: int, finished: int, *, enabled: bool
) -> AbstractContextManager[Callable[[], None]]:
    """Return a context manager that yields the function to call after each cell.

    On a terminal with rich installed it is a progress bar with the time left, otherwise a line
    every ten seconds.

    Parameters
    ----------
    total : int
        Number of cells.
    finished : int
        How many were finished earlier.
    enabled : bool
        Stay silent if False.

    Returns
    -------
    context manager of a function without arguments

    Examples
    --------
    >>> from dpglm.study.comparison import report_progress
    >>> with report_progress(2, 0, enabled=False) as advance:
    ...     advance()
    """
    if not enabled:
        return nullcontext(_nothing)
    if finished:
        print(f"{finished} of {total} fits were finished earlier", file=sys.stderr)
    if finished == total:
        return nullcontext(_nothing)
    if sys.stderr.isatty():
        try:
            import rich  # noqa: F401
        except ImportError:
            pass
        else:
            return _bar(total, finished)
    return _lines(total, finished)


def _nothing() -> None:
    pass


@contextmanager
def _bar(total: int, finished: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            new = int(task.completed) - finished
            return Text(_times(task.elapsed or 0.0, new, total - finished))

    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.completed} of {task.total} fits"),
        Times(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, completed=finished)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(total: int, finished: int) -> Iterator[Callable[[], None]]:
    start = last = time.monotonic()
    new = 0

    def advance() -> None:
        nonlocal last, new
        new += 1
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            times = _times(now - start, new, total - finished)
            print(f"{finished + new} of {total} fits  {times}", file=sys.stderr, flush=True)

    yield advance


def _times(elapsed: float, new: int, pending: int) -> str:
    text = f"{timedelta(seconds=round(elapsed))} elapsed"
    if new == 0:
        return text
    return f"{text}, about {timedelta(seconds=round(elapsed / new * (pending - new)))} left"


def scores(model: BaseEstimator, X: Any, y: np.ndarray) -> dict[str, float]:
    """Return accuracy, area under the ROC curve and mean loss.

    Computed from the rows without noise: to be released only if the rows may be.

    Parameters
    ----------
    model : fitted classifier
    X : {array-like, CSR matrix} of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Labels among the model's ``classes_``.

    Returns
    -------
    dict
        ``accuracy``, ``auc`` (for several classes the mean of the one-vs-rest areas) and ``loss``,
        as from `mean_loss`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm.study.comparison import scores
    >>> X, y = np.zeros((4, 1)), np.array([0, 0, 1, 1])
    >>> found = scores(DummyClassifier(strategy="prior").fit(X, y), X, y)
    >>> found["accuracy"], found["auc"], round(found["loss"], 4)
    (0.5, 0.5, 0.6931)
    """
    margins, target = _margins(model, X), _target(model, y)
    return {
        "accuracy": float(np.mean(model.predict(X) == y)),
        "auc": _auc(margins, target),
        "loss": _mean(kind_of_loss(model), margins, target),
    }


def kind_of_loss(model: BaseEstimator) -> str:
    """Return which loss suits a model: logistic if it gives probabilities, else hinge.

    Parameters
    ----------
    model : classifier

    Returns
    -------
    {"logistic", "hinge"}

    Examples
    --------
    >>> from dpglm import DPLinearSVM
    >>> from dpglm.study.comparison import kind_of_loss
    >>> kind_of_loss(DPLinearSVM())
    'hinge'
    """
    return "logistic" if hasattr(model, "predict_proba") else "hinge"


def mean_loss(model: BaseEstimator, X: Any, y: np.ndarray) -> float:
    """Return the mean logistic or hinge loss, without regularisation.

    Parameters
    ----------
    model : fitted classifier
    X : {array-like, CSR matrix} of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Labels among the model's ``classes_``.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.dummy import DummyClassifier
    >>> from dpglm.study.comparison import mean_loss
    >>> X, y = np.zeros((4, 1)), np.array([0, 0, 1, 1])
    >>> round(mean_loss(DummyClassifier(strategy="prior").fit(X, y), X, y), 4)
    0.6931
    """
    return _mean(kind_of_loss(model), _margins(model, X), _target(model, y))


def _margins(model: BaseEstimator, X: Any) -> np.ndarray:
    """Return scores of shape (n,), the log-odds, for two classes and else (n, n_classes)."""
    if hasattr(model, "decision_function"):
        return model.decision_function(X)
    logs = model.predict_log_proba(X)
    return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs


def _target(model: BaseEstimator, y: np.ndarray) -> np.ndarray:
    """Encode labels as the losses take them: a sign for two classes, else an index."""
    unknown = np.setdiff1d(y, model.classes_)
    if len(unknown):
        raise ValueError(
            f"the training fold lacks the label {unknown[0]!r}; use fewer folds, or name all "
            "labels in the estimator's classes."
        )
    index = np.searchsorted(model.classes_, y)
    return np.where(index == 1, 1.0, -1.0) if len(model.classes_) == 2 else index


def _auc(margins: np.ndarray, target: np.ndarray) -> float:
    if margins.ndim == 1:
        return float(roc_auc_score(target > 0, margins))
    return float(roc_auc_score(np.eye(margins.shape[1])[target], margins))


def _mean(loss: str, margins: np.ndarray, target: np.ndarray) -> float:
    if loss == "hinge":
        return float(Hinge().value(margins, target).mean())
    return float((Logistic() if margins.ndim == 1 else Softmax()).value(margins, target).mean())


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

    The scores are computed from the data without noise: they may be published only if the data
    may.

    Parameters
    ----------
    datasets : mapping from str to (X, y) or Bunch
        Encoded rows (array or CSR) and labels; or a Bunch of ``data``, ``target`` and ``schema``,
        which is encoded once with the public bounds of its schema.
    estimators : mapping from str to estimator
        Prototypes, cloned for each fit. Those with the parameters ``epsilon`` and ``delta`` (their
        own, or of a step of a pipeline) are fitted once for each epsilon, the others once.
    epsilons : iterable of float
    delta : float, default=1e-6
    n_splits : int, default=5
        The folds of a repeat are ``KFold(n_splits, shuffle=True, random_state=repeat)``.
    n_repeats : int, default=1
    seed : int, optional
        Every ``random_state`` of an estimator is set to a number that depends on this seed and on
        the cell, so that the comparison can be repeated exactly. By default they stay as they
        are, and private noise comes from the operating system.
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
    ``training_loss`` and ``test_loss`` are means without regularisation: of the logistic loss (the
    cross entropy, for several classes) for estimators with ``predict_proba``, of the hinge loss
    for the others. For several classes, ``auc`` is the mean of the one-vs-rest areas.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.comparison import compare
    >>> from dpglm.datasets import make_census
    >>> results = compare(
    ...     {"census": make_census(1000, random_state=0)},
    ...     {"private": DPLogisticRegression(), "not private": LogisticRegression(max_iter=1000)},
    ...     epsilons=[1.0],
    ... )
    >>> print(results)
    census: 1,000 rows x 99 features, 5-fold cross-validation, delta 1e-06
    mean ± standard error over the folds
    <BLANKLINE>
                        epsilon 1
    accuracy, test fold
      private      0... ±0...
      not private  0... ±0...
    ...
    """
    tables = {name: encoded(dataset) for name, dataset in datasets.items()}
    cells = list(
        _cells(tables, estimators, _distinct(epsilons), float(delta), n_splits, n_repeats, seed)
    )
    file = None if results_file is None else ResultsFile(results_file)
    records = {}
    if file is not None:
        known = file.read()
        records = {c: known[c] for c in cells if c in known and "error" not in known[c]}
        file.drop_unfinished_line()
    run = Parallel(
        n_jobs=n_jobs,
        return_as="generator_unordered",
        initializer=_follow,
        initargs=(os.getpid(),),
    )
    outcomes = run(
        delayed(_measure)(cell, estimators[cell.estimator], *tables[cell.dataset])
        for cell in cells
        if cell not in records
    )
    with report_progress(len(cells), len(records), enabled=progress) as advance:
        for cell, outcome in outcomes:
            if file is not None:
                file.append(cell, outcome)
            records[cell] = {**asdict(cell), **outcome}
            advance()
    return ComparisonResults([records[cell] for cell in cells])


def encoded(dataset: Any) -> tuple[Any, np.ndarray]:
    """Return the rows and labels of a dataset, encoded with public bounds.

    Parameters
    ----------
    dataset : (X, y) or Bunch
        As for `compare`.

    Returns
    -------
    X : ndarray or CSR matrix
    y : ndarray

    Examples
    --------
    >>> from dpglm.study.comparison import encoded
    >>> from dpglm.datasets import make_census
    >>> X, y = encoded(make_census(100, random_state=0))
    >>> X.shape, y.shape
    ((100, 99), (100,))
    """
    if hasattr(dataset, "schema"):
        X, y = dataset.schema.transformer().fit_transform(dataset.data), dataset.target
    else:
        X, y = dataset
    y = np.asarray(y)
    # Strings of fixed width are cheaper than objects to hash and to hand to other processes.
    return X, np.array(y.tolist()) if y.dtype == object else y


def _distinct(epsilons: Iterable[float]) -> list[float]:
    distinct = list(dict.fromkeys(float(epsilon) for epsilon in epsilons))
    if not distinct:
        raise ValueError("epsilons is empty; give at least one.")
    return distinct


def _cells(
    tables: Mapping[str, tuple[Any, np.ndarray]],
    estimators: Mapping[str, BaseEstimator],
    epsilons: list[float],
    delta: float,
    n_splits: int,
    n_repeats: int,
    seed: int | None,
) -> Iterator[Cell]:
    if n_repeats < 1:
        raise ValueError(f"n_repeats={n_repeats!r} must be 1 or more.")
    for dataset, (X, y) in tables.items():
        next(KFold(n_splits, shuffle=True, random_state=0).split(X))
        fingerprint = joblib.hash((X, y))
        for repeat in range(n_repeats):
            for fold in range(n_splits):
                for name, estimator in estimators.items():
                    private = _privacy_prefix(estimator) is not None
                    for epsilon in epsilons if private else [None]:
                        yield Cell(
                            dataset=dataset,
                            n_samples=X.shape[0],
                            n_features=X.shape[1],
                            fingerprint=fingerprint,
                            estimator=name,
                            parameters=_description(estimator),
                            epsilon=epsilon,
                            delta=delta if private else None,
                            n_splits=n_splits,
                            repeat=repeat,
                            fold=fold,
                            seed=None if seed is None else int(seed),
                        )


def _measure(
    cell: Cell, estimator: BaseEstimator, X: Any, y: np.ndarray
) -> tuple[Cell, dict[str, Any]]:
    """Return the cell with what was measured and the warnings, or with the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if cell.seed is not None:
            warnings.filterwarnings("ignore", "random_state makes", PrivacyWarning)
        try:
            outcome = _measured(_configured(estimator, cell), cell, X, y)
        except Exception as error:
            return cell, {"error": _one_line(f"{type(error).__name__}: {error}")}
    messages = dict.fromkeys(_one_line(f"{w.category.__name__}: {w.message}") for w in caught)
    return cell, {**outcome, "warnings": list(messages)}


def _follow(parent: int) -> None:
    """In a worker, leave interruptions to the process that started it, and end when it is gone."""
    if os.getpid() == parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _privacy_prefix(estimator: BaseEstimator) -> str | None:
    """Return what precedes ``epsilon`` and ``delta`` in the names of the parameters, if any."""
    names = estimator.get_params()
    prefixes = [
        name.removesuffix("epsilon")
        for name in names
        if re.search("(^|__)epsilon$", name) and name.removesuffix("epsilon") + "delta" in names
    ]
    if len(prefixes) > 1:
        raise ValueError(
            f"{type(estimator).__name__} has several private steps ({', '.join(prefixes)}), and "
            "each would spend the whole budget; compare estimators with one."
        )
    return prefixes[0] if prefixes else None


def _description(estimator: BaseEstimator) -> str:
    """Return the class and all parameters that a cell does not set, the same in every process."""
    prefix = _privacy_prefix(estimator)
    set_by_cell = () if prefix is None else (prefix + "epsilon", prefix + "delta")
    parameters = ", ".join(
        f"{name}={type(value).__name__ if hasattr(value, 'get_params') else repr(value)}"
        for name, value in sorted(estimator.get_params().items())
        if name not in set_by_cell
    )
    text = _one_line(f"{type(estimator).__name__}({parameters})")
    return re.sub(" at 0x[0-9a-fA-F]+", "", text)


def _configured(estimator: BaseEstimator, cell: Cell) -> BaseEstimator:
    model = clone(estimator)
    prefix = _privacy_prefix(model)
    if prefix is not None:
        model.set_params(**{prefix + "epsilon": cell.epsilon, prefix + "delta": cell.delta})
    if cell.seed is not None:
        key = (cell.seed, cell.dataset, cell.estimator, cell.epsilon, cell.repeat, cell.fold)
        random_state = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4])
        names = [name for name in model.get_params() if re.search("(^|__)random_state$", name)]
        model.set_params(**dict.fromkeys(names, random_state))
    return model


def _measured(model: BaseEstimator, cell: Cell, X: Any, y: np.ndarray) -> dict[str, Any]:
    folds = KFold(cell.n_splits, shuffle=True, random_state=cell.repeat).split(X)
    train, test = list(folds)[cell.fold]
    X_train, y_train, X_test, y_test = X[train], y[train], X[test], y[test]
    start = time.perf_counter()
    model.fit(X_train, y_train)
    fit_seconds = time.perf_counter() - start

    ledger = getattr(model[-1] if isinstance(model, Pipeline) else model, "privacy_", None)
    test = scores(model, X_test, y_test)
    return {
        "accuracy": test["accuracy"],
        "auc": test["auc"],
        "loss": kind_of_loss(model),
        "training_loss": mean_loss(model, X_train, y_train),
        "test_loss": test["loss"],
        "fit_seconds": fit_seconds,
        "ledger_epsilon": None if ledger is None else ledger.epsilon(cell.delta),
        "guarantee": None if ledger is None else str(ledger),
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())
