"""Compare estimators over folds, budgets and repetitions."""

import hashlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import product
from os import PathLike
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline

from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.privacy.noise import seeded_noise
from dpglm.study.results import (
    CELL,
    ComparisonResults,
    append_record,
    cell_of,
    one_line,
    parameters_named,
    read_records,
)

_SECONDS_BETWEEN_LINES = 10.0


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
        Each finished fit is appended to this file as a line of JSON. Fits that it already holds are
        not run again, unless they raised.
    progress : bool, default=False
        Report progress on standard error.

    Returns
    -------
    ComparisonResults

    Raises
    ------
    ValueError
        If a parameter is out of range or `results_file` holds something else. An error in a fit
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
            cells.append((*table, *which, n_splits, seed, repeat, fold))
    known = {} if results_file is None else read_records(results_file)
    # A fit that raised is run again: its cause may be gone.
    records = {c: known[c] for c in cells if c in known and "error" not in known[c]}
    named = [dict(zip(CELL, cell, strict=True)) for cell in cells if cell not in records]
    calls = [(cell, estimators[cell["estimator"]], *tables[cell["dataset"]]) for cell in named]
    # Each record is on the disk before the next is waited for.
    for record in finished(_record, calls, earlier=len(records), n_jobs=n_jobs, progress=progress):
        if results_file is not None:
            append_record(results_file, record)
        records[cell_of(record)] = record
    return ComparisonResults([records[cell] for cell in cells])


def encoded(dataset: Any, intervals: int | None = None) -> tuple[Any, np.ndarray]:
    """Return the rows and labels of a dataset, as for `compare`, or with other segments."""
    if hasattr(dataset, "schema"):
        encoder = dataset.schema.additive(intervals).transformer()
        X, y = encoder.fit_transform(dataset.data), dataset.target
    else:
        X, y = dataset
    y = np.asarray(y)
    # Strings of fixed width are cheaper than objects to hash and to hand to other processes.
    return X, np.array(y.tolist()) if y.dtype == object else y


def finished(
    function: Callable, calls: Sequence[tuple], *, earlier: int = 0, n_jobs: Any, progress: bool
) -> Iterator[Any]:
    """Yield what a function returns for each call, from several processes, as it comes.

    Now and then progress is printed on standard error, which counts what was finished earlier.
    """
    total = earlier + len(calls)
    if progress and earlier:
        print(f"{earlier} of {total} fits were finished earlier", file=sys.stderr)
    run = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    start = last = time.monotonic()
    for done, outcome in enumerate(run(joblib.delayed(function)(*call) for call in calls), 1):
        yield outcome
        now = time.monotonic()
        if progress and now - last >= _SECONDS_BETWEEN_LINES:
            last, left = now, (now - start) / done * (len(calls) - done)
            spent, left = (timedelta(seconds=round(s)) for s in (now - start, left))
            text = f"{earlier + done} of {total} fits  {spent} elapsed, about {left} left"
            print(text, file=sys.stderr, flush=True)


def _record(cell: dict[str, Any], estimator: BaseEstimator, X: Any, y: np.ndarray) -> dict:
    """Return what names a fit, with what was measured and the warnings, or with the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if cell["seed"] is not None:
            warnings.filterwarnings("ignore", "seeded_noise makes", PrivacyWarning)
        try:
            outcome = _measured(estimator, cell, X, y)
        except Exception as error:
            return {**cell, "error": one_line(f"{type(error).__name__}: {error}")}
    messages = dict.fromkeys(one_line(f"{w.category.__name__}: {w.message}") for w in caught)
    return {**cell, **outcome, "warnings": list(messages)}


def _measured(estimator: BaseEstimator, cell: dict[str, Any], X: Any, y: np.ndarray) -> dict:
    """Fit a clone on all folds but one, and return its scores, time and guarantee."""
    seed = _seed_of(cell)
    budget = zip(_budget_names(estimator), (cell["epsilon"], cell["delta"]), strict=False)
    model = clone(estimator).set_params(**dict(budget))
    if seed is not None:
        model.set_params(**dict.fromkeys(parameters_named(model, "random_state"), seed))
    folds = KFold(cell["n_splits"], shuffle=True, random_state=cell["repeat"]).split(X)
    train, test = list(folds)[cell["fold"]]
    start = time.perf_counter()
    with seeded_noise(seed):
        model.fit(X[train], y[train])
    fit_seconds = time.perf_counter() - start

    ledger = getattr(model[-1] if isinstance(model, Pipeline) else model, "privacy_", None)
    trained, tested = (scores(model, X[rows], y[rows]) for rows in (train, test))
    return {
        "accuracy": tested["accuracy"],
        "auc": tested["auc"],
        "loss": "logistic" if hasattr(model, "predict_proba") else "hinge",
        "training_loss": trained["loss"],
        "test_loss": tested["loss"],
        "fit_seconds": fit_seconds,
        "ledger_epsilon": None if ledger is None else ledger.epsilon(cell["delta"]),
        "guarantee": None if ledger is None else str(ledger),
    }


def _seed_of(cell: dict[str, Any]) -> int | None:
    """Return a number of its own for each fit, which depends on no other fit or process."""
    if cell["seed"] is None:
        return None
    names = ("seed", "dataset", "estimator", "epsilon", "repeat", "fold")
    key = tuple(cell[name] for name in names)
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4])


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


def scores(model: BaseEstimator, X: Any, y: np.ndarray) -> dict[str, float]:
    """Return ``accuracy``, ``auc`` and ``loss`` of a fitted classifier, without noise."""
    margins, target = _margins(model, X, y)
    of_classes, loss = target > 0, Logistic()
    if margins.ndim > 1:
        of_classes, loss = np.eye(margins.shape[1])[target], Softmax()
    if not hasattr(model, "predict_proba"):
        loss = Hinge()
    return {
        "accuracy": float(np.mean(model.predict(X) == y)),
        "auc": float(roc_auc_score(of_classes, margins)),
        "loss": float(loss.value(margins, target).mean()),
    }


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
