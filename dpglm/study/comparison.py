"""Compare estimators over folds, budgets and repetitions: the fits, their file and their table."""

import hashlib
import json
import math
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline

from dpglm.checks import check_whole
from dpglm.exceptions import PrivacyWarning, require
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.privacy.noise import seeded_noise
from dpglm.schema.table import plain_path
from dpglm.tables import Printed

METRICS = {
    "accuracy": "accuracy, test fold",
    "auc": "AUC, test fold",
    "training_loss": "{loss} loss, training fold",
    "test_loss": "{loss} loss, test fold",
    "fit_seconds": "seconds per fit",
}
"""What is measured in each cell, with its title."""

SCORES = {"accuracy": "accuracy", "auc": "AUC", "loss": "loss"}
"""What a utility graph measures of each fit, with its title; a lower loss is better."""

GAINS = ("accuracy", "auc")
"""The metrics that are better if they are larger."""

MAIN_METRICS = ("accuracy", "auc", "training_loss")

_SECONDS_BETWEEN_LINES = 10.0
_SCORES_ABREAST = 3  # fit into 80 columns with names of up to 30

Row = Mapping[str, Any]
"""Averages with what they are averages of, by name."""


class ResultTable(Printed):
    """Results that ``rows()`` averages to one dictionary each."""

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame."""
        what = f"{type(self).__name__}.to_frame"
        return require("pandas", "data", what).DataFrame(self.rows())


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean of some values and its standard error, None where they are too few."""
    n = len(values)
    # Steps that are far too long can end in losses whose squares overflow.
    with np.errstate(over="ignore"):
        mean = float(np.mean(values)) if n else None
        error = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else None
    return mean, error


def epsilons_of(rows: Iterable[Row]) -> list[float]:
    """Return the epsilons of some rows as they rise; rows without privacy have none."""
    return sorted({row["epsilon"] for row in rows} - {None})


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """Return the rows under each value of one of their values, in order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def score_text(row: Row, metric: str) -> str:
    """Return a mean with its standard error, if any."""
    mean, error = row[metric], row[f"{metric}_se"]
    if mean is None:
        return "failed"
    decimals = 2 if metric == "fit_seconds" else 4
    return f"{mean:.{decimals}f}" + ("" if error is None else f" ±{error:.{decimals}f}")


def configured(estimator: BaseEstimator, params: Mapping[str, Any]) -> BaseEstimator:
    """Return an unfitted copy of an estimator at a setting, which it shares nothing with."""
    own = {name: clone(value, safe=False) for name, value in params.items()}
    return clone(estimator).set_params(**own)


def parameters_named(estimator: BaseEstimator, name: str) -> list[str]:
    """Return the full names of a parameter, of the estimator's own and of those inside of it."""
    return [full for full in estimator.get_params() if full.split("__")[-1] == name]


def refuse_regressors(what: str, *estimators: Any) -> None:
    """Raise a TypeError if a number is predicted, where labels are needed."""
    for estimator in filter(is_regressor, estimators):
        raise TypeError(
            f"{what} is for classifiers, and {type(estimator).__name__} predicts a number; ask "
            "dpglm.private_scores how well, or its plan() at what cost."
        )


def one_line(text: str) -> str:
    """Return a text with single spaces between its words."""
    return " ".join(text.split())


def value_text(value: Any) -> str:
    """Return the value of a parameter as short text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else one_line(repr(value))


def setting_text(params: Mapping[str, Any]) -> str:
    """Return a setting on one line."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in params.items())


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON; the numbers that JSON lacks become "inf", "-inf" and "nan"."""
    strict = json.loads(json.dumps(value), parse_constant=lambda number: str(float(number)))
    return json.dumps(strict, indent=indent, ensure_ascii=False, allow_nan=False)


CELL = (
    "dataset", "n_samples", "n_features", "fingerprint", "estimator", "parameters", "epsilon",
    "delta", "n_splits", "seed", "repeat", "fold",
)  # fmt: skip
"""What names a fit of a comparison, and determines its outcome; None without privacy."""

_FOREIGN = "line {} of {} is not a fit of a comparison; name another file or delete this one."


def cell_of(record: Row) -> tuple:
    """Return the values that name a fit."""
    return tuple(record[name] for name in CELL)


def read_records(path: str | os.PathLike[str]) -> dict[tuple, dict[str, Any]]:
    """Return the record of each fit in a file, a line of JSON each; of several, the last.

    An unfinished last line is removed. Anything else but records is a ValueError.
    """
    path = plain_path(path)
    if not path.exists():
        return {}
    *lines, unfinished = path.read_bytes().split(b"\n")
    # Someone else's file is left alone, and so must not be taken for an unfinished line.
    if unfinished[:10] != b'{"dataset"'[: len(unfinished)]:
        raise ValueError(_FOREIGN.format(len(lines) + 1, path))
    records = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            records[cell_of(record)] = record
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(_FOREIGN.format(number, path)) from error
    if unfinished:
        os.truncate(path, path.stat().st_size - len(unfinished))
    return records


def append_record(path: str | os.PathLike[str], record: Row) -> None:
    """Add a record to a file: the fields of a cell, and its measurements or its error."""
    path = plain_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


@dataclass(frozen=True, repr=False)
class ComparisonResults(ResultTable):
    """The fits of a comparison, from `compare`.

    Printed, they are a table for each dataset, in blocks of three epsilons: estimators down,
    epsilons across, mean ± standard error. Without privacy there is one value for every epsilon.

    Attributes
    ----------
    records : sequence of mapping
        One per fit: what names it, and ``error`` or the measurements. These are ``accuracy``,
        ``auc``, ``loss`` ("logistic" or "hinge"), ``training_loss``, ``test_loss``,
        ``fit_seconds``, ``ledger_epsilon`` and ``warnings``.
    """

    records: Sequence[Row]

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets, in order."""
        return list(dict.fromkeys(record["dataset"] for record in self.records))

    @property
    def errors(self) -> list[Row]:
        """The records of the fits that raised."""
        return [record for record in self.records if "error" in record]

    def rows(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """Average over folds and repeats, for one dataset or all.

        There is one dictionary per dataset, estimator and epsilon, with the fields that its fits
        share. The number ``n_cells`` leaves out the ``n_errors`` that raised. Each metric has its
        mean under its name, None if every fit raised, and its standard error under the name with
        ``_se``. ``loss`` and the largest ``ledger_epsilon`` follow.
        """
        groups: dict[tuple, list[Row]] = {}
        for record in self.records:
            if dataset in (None, record["dataset"]):
                # Fits that differ in nothing but the fold and the repeat are averaged.
                groups.setdefault(cell_of(record)[:-2], []).append(record)
        return [_averaged(records) for records in groups.values()]

    def panels(self, dataset: str, metrics: Iterable[str] = MAIN_METRICS) -> list[tuple]:
        """Return title, metric and rows of what can share an axis: losses once for each kind."""
        rows, found = self.rows(dataset), []
        for metric in metrics:
            title = METRICS[metric]
            losses = dict.fromkeys(row["loss"] for row in rows if row["loss"])
            for loss in losses if "{loss}" in title else [None]:
                own = [row for row in rows if loss in (None, row["loss"])]
                found.append((title.format(loss=loss), metric, own))
        return found

    def headline(self, dataset: str) -> str:
        """Return a dataset's name and size, the protocol and the delta, in words."""
        rows = self.rows(dataset)
        first, deltas = rows[0], sorted({row["delta"] for row in rows} - {None})
        repeats = f" x {first['n_repeats']}" if first["n_repeats"] > 1 else ""
        return (
            f"{dataset}: {first['n_samples']:,} rows x {first['n_features']} features, "
            f"{first['n_splits']}-fold cross-validation{repeats}"
            + "".join(f", delta {delta:g}" for delta in deltas)
        )

    def _blocks(self) -> Iterator[Sequence[Any]]:
        for name in self.datasets:
            panels, epsilons = self.panels(name), epsilons_of(self.rows(name)) or [None]
            starts = range(0, len(epsilons), _SCORES_ABREAST)
            tables = [_block(panels, epsilons[i : i + _SCORES_ABREAST]) for i in starts]
            yield self.headline(name), "mean ± standard error over the folds", *tables
        if notes := self.notes():
            yield "Notes", notes.splitlines()

    def to_json(self) -> str:
        """Return the averages and the errors as a JSON object; infinity and NaN are strings."""
        errors = [dict(record) for record in self.errors]
        return strict_json({"rows": self.rows(), "errors": errors}, indent=2) + "\n"

    def notes(self) -> str:
        """Return a line for each distinct error and warning, with the number of fits."""
        counts: Counter[tuple[str, str]] = Counter()
        for record in self.records:
            messages = [f"warned: {message}" for message in record.get("warnings", ())]
            if "error" in record:
                messages = [f"failed: {record['error']}"]
            counts.update((record["estimator"], message) for message in messages)
        n_fits = Counter(record["estimator"] for record in self.records)
        return "\n".join(
            f"{count} of {n_fits[name]} fits of {name} {message}"
            for (name, message), count in counts.items()
        )

    def __repr__(self) -> str:
        return f"<ComparisonResults: {len(self.records)} fits, {len(self.errors)} of them failed>"


def _averaged(records: list[Row]) -> dict[str, Any]:
    """Return the means of some fits, with the fields that they share."""
    measured = [record for record in records if "error" not in record]
    first = measured[0] if measured else {}
    row = {name: records[0][name] for name in CELL[:-2]}
    row["n_repeats"] = len({record["repeat"] for record in records})
    row["n_cells"], row["n_errors"] = len(measured), len(records) - len(measured)
    row["loss"] = first.get("loss")
    for metric in METRICS:
        row[metric], row[f"{metric}_se"] = mean_and_error([own[metric] for own in measured])
    spent = [record["ledger_epsilon"] for record in measured]
    row["ledger_epsilon"] = max(spent) if spent and None not in spent else None
    return row


def _block(panels: Iterable[tuple], epsilons: Sequence[float | None]) -> list[list[str]]:
    """Return the scores at some epsilons, under the title of each metric."""
    heads = ("score" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in epsilons)
    lines = [["", *heads]]
    for title, metric, rows in panels:
        lines.append([title, *[""] * len(epsilons)])
        for name, own in grouped(rows, "estimator").items():
            # Without privacy one score is for all.
            at = {row["epsilon"]: score_text(row, metric) for row in own}
            lines.append([f"  {name}", *(at.get(key, at.get(None, "")) for key in epsilons)])
    return lines


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
    results_file: str | os.PathLike[str] | None = None,
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
    >>> results = compare(census, {"private": DPLogisticRegression()}, epsilons=[1.0])
    >>> results.headline("census")
    'census: 1,000 rows x 99 features, 5-fold cross-validation, delta 1e-06'
    """
    refuse_regressors("compare", *estimators.values())
    budgets = [(epsilon, float(delta)) for epsilon in dict.fromkeys(map(float, epsilons))]
    if not budgets:
        raise ValueError("epsilons is empty; give at least one.")
    check_whole("n_repeats", n_repeats)
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
        warnings.filterwarnings("ignore", "Scores of scikit-learn have", PrivacyWarning)
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
    seed = cell["seed"]
    budget = zip(_budget_names(estimator), (cell["epsilon"], cell["delta"]), strict=False)
    model = clone(estimator).set_params(**dict(budget))
    if seed is not None:
        # A number of its own for each fit, which depends on no other fit or process.
        names = ("seed", "dataset", "estimator", "epsilon", "repeat", "fold")
        key = repr(tuple(cell[name] for name in names))
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])
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
    }


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
    unknown = np.setdiff1d(y, model.classes_)
    if len(unknown):
        raise ValueError(
            f"the training fold lacks the label {unknown[0]!r}; use fewer folds, or name all "
            "labels in the estimator's classes."
        )
    # Log-odds (n,) and signs, or for several classes scores (n, n_classes) and indices.
    if hasattr(model, "decision_function"):
        margins = model.decision_function(X)
    else:
        logs = model.predict_log_proba(X)
        margins = logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs
    target = np.searchsorted(model.classes_, y)
    target = np.where(target == 1, 1.0, -1.0) if len(model.classes_) == 2 else target
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
