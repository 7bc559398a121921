"""Every estimator and every table that a command knows by name."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils import resample

from dpglm import baselines
from dpglm.datasets import fetch_adult, fetch_bank, fetch_kddcup99, make_census
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.schedules import DecayingClip, DynamicNoise
from dpglm.schema import Schema, load_schema
from dpglm.sources import read_csv
from dpglm.study.comparison import encoded

LOSSES = ("logistic", "svm")


@dataclass(frozen=True)
class Method:
    """An estimator with its settings: a prototype, a short description, and its loss.

    The group says when it is compared without being named: "default" always, "quick" also in a
    quick comparison, "more" never. The container holds the records of an audit.
    """

    estimator: BaseEstimator
    text: str = ""
    losses: tuple[str, ...] = ("logistic",)
    group: str = "default"
    container: str = "sparse"

    def with_parameters(self, **parameters: Any) -> BaseEstimator:
        """Return a new estimator with those of the parameters that it has."""
        estimator = clone(self.estimator)
        known = estimator.get_params()
        return estimator.set_params(**{k: v for k, v in parameters.items() if k in known})


def _both(
    name: str,
    text: str,
    logistic: BaseEstimator,
    group: str = "default",
    svm_loss: str = "smoothed_hinge",
) -> dict[str, Method]:
    """Return a method that can minimise either loss under two names."""
    svm = clone(logistic).set_params(loss=svm_loss)
    return {
        name: Method(logistic, text, ("logistic",), group),
        f"{name}-svm": Method(svm, f"{text}; SVM", ("svm",), group),
    }


def _variant(text: str, **parameters: Any) -> Method:
    """Return the logistic regression with other settings, to be compared only if it is named."""
    return Method(DPLogisticRegression(**parameters), text, group="more")


_LOGISTIC, _SVM, _AGD = DPLogisticRegression(), DPLinearSVM(), DPAGDClassifier()
_TILTED, _MINIMA = baselines.ObjectivePerturbation(), baselines.ApproximateMinimaPerturbation()
_ADVANCED, _MOMENTS = baselines.SGDAdvancedComposition(), baselines.SGDMomentsAccountant()
_GENETIC, _NEWTON = baselines.PrivGene(), baselines.DoubleNoiseNewton()
_OUTPUT, _DESCENT = baselines.OutputPerturbation(), baselines.DescentOutputPerturbation()
_OPTIMUM = LogisticRegression(C=np.inf, max_iter=2000)
_SVM_OPTIMUM = LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000)
_PLAIN, _PLAINLY = {"momentum": None, "averaging": None}, "without momentum and averaging"
_UNWHITENED = {"preconditioner": None, "clip_schedule": 2.0, "step_schedule": 1.0}

METHODS: dict[str, Method] = {
    "logistic": Method(_LOGISTIC, "DPLogisticRegression", group="quick"),
    "svm": Method(_SVM, "DPLinearSVM", ("svm",), "quick"),
    **_both("agd", "DPAGDClassifier", _AGD, "quick"),
    **_both("objective-perturbation", "minimises a randomly tilted loss", _TILTED, "quick"),
    **_both("output-perturbation", "adds noise to the minimiser", _OUTPUT),
    **_both("descent-output", "adds noise to the end of a gradient descent", _DESCENT, "more"),
    **_both(
        "approximate-minima", "tilts the loss and adds noise to an approximate minimiser", _MINIMA
    ),
    **_both(
        "privgene", "searches genetically, with private selections", _GENETIC, svm_loss="hinge"
    ),
    "double-noise-newton": Method(_NEWTON, "noisy Newton steps"),
    "majority": Method(baselines.MajorityClassifier(), "noisy label counts alone", LOSSES),
    "reference": Method(_OPTIMUM, "logistic regression without privacy"),
    "reference-svm": Method(_SVM_OPTIMUM, "linear SVM without privacy", ("svm",)),
    **_both(
        "sgd-moments", "mini-batches, by privacy loss distributions", _MOMENTS, "more", "hinge"
    ),
    **_both("sgd-advanced", "mini-batches, by advanced composition", _ADVANCED, "more", "hinge"),
    # Variants of the two estimators that show what a setting is worth.
    "logistic-batches": _variant("mini-batches of a tenth of the rows", sampling_rate=0.1),
    "logistic-plain": _variant(_PLAINLY, **_PLAIN),
    "svm-plain": Method(DPLinearSVM(**_PLAIN), _PLAINLY, ("svm",), "more"),
    "logistic-unwhitened": _variant(
        "without preconditioner, with fixed clip and step", **_UNWHITENED, momentum="heavy_ball"
    ),
    "logistic-decaying-clip": _variant(
        "with a clip that decays to a half", clip_schedule=DecayingClip(1.0)
    ),
    "logistic-dynamic": _variant(
        "with noise that decays to a quarter", noise_schedule=DynamicNoise(decay=4.0)
    ),
}
"""What is compared under each name, in the order of the tables."""

AUDITED: dict[str, Method] = {
    "logistic": Method(_LOGISTIC),
    "logistic-softmax": _variant("with four classes", classes=[0, 1, 2, 3]),
    "logistic-replace-one": _variant("under replace_one", neighboring_relation="replace_one"),
    "logistic-decaying-clip": _variant(
        "without preconditioner, with a clip that decays and a heavy ball",
        clip_schedule=DecayingClip(1.0),
        preconditioner=None,
        momentum="heavy_ball",
        averaging="uniform",
    ),
    "logistic-batches": _variant(
        "on random batches", sampling_rate=0.2, max_iter=40, preconditioner=None
    ),
    "logistic-threads": Method(_LOGISTIC, "on dense rows, in two threads", container="dense"),
    "logistic-blocks": Method(_LOGISTIC, "on rows read block by block", container="blocks"),
    "logistic-dask": Method(_LOGISTIC, "on the partitions of a Dask array", container="dask"),
    "svm": Method(_SVM),
    "agd": Method(_AGD),
    "agd-plain": Method(DPAGDClassifier(preconditioner=None), "without preconditioner"),
    "agd-published": Method(DPAGDClassifier.as_published(), "with the constants of Lee & Kifer"),
    "objective-perturbation": Method(_TILTED),
    "output-perturbation": Method(_OUTPUT),
    "descent-output": Method(_DESCENT),
    "approximate-minima": Method(_MINIMA),
    "double-noise-newton": Method(_NEWTON),
    "privgene": Method(_GENETIC),
    "sgd-moments": Method(baselines.SGDMomentsAccountant(max_iter=100)),
    "sgd-advanced": Method(_ADVANCED),
    "majority": Method(baselines.MajorityClassifier()),
}
"""What is audited under each name, in the order of the table."""

COMPARED = tuple(METHODS)
PLANNED = ["logistic", "svm", "agd"]


def select(
    names: Iterable[str] | None = None, *, losses: Iterable[str] | None = None, quick: bool = False
) -> list[str]:
    """Return the names of the methods to compare, without repetitions.

    `names` are among `COMPARED`, or ``"all"``; by default those of the group "default", or those of
    "quick" for the logistic loss. Methods that minimise none of the `losses`, or ``"both"``, are
    left out.
    """
    if names is None:
        groups = ("quick",) if quick else ("quick", "default")
        names = [name for name in COMPARED if METHODS[name].group in groups]
        losses = losses or (["logistic"] if quick else None)
    chosen: list[str] = []
    for name in names:
        chosen += COMPARED if name == "all" else [name]
    kept = LOSSES if losses is None or "both" in losses else losses
    return [name for name in dict.fromkeys(chosen) if set(METHODS[name].losses) & set(kept)]


def make_estimator(name: str, **parameters: Any) -> BaseEstimator:
    """Return a new estimator with those of the parameters that it has."""
    return METHODS[name].with_parameters(**parameters)


CENSUS_ROWS = 20_000
_FETCHERS = {"adult": fetch_adult, "bank": fetch_bank, "kddcup99": fetch_kddcup99}
DATASETS = ("census", *_FETCHERS)

Table = tuple[Any, np.ndarray]
"""Encoded rows and their labels."""


def load_tables(
    names: Iterable[str],
    *,
    csv: tuple[os.PathLike[str], os.PathLike[str], str | None] | None = None,
    data_home: os.PathLike[str] | None = None,
    n_samples: int | None = None,
    n_splits: int = 2,
) -> dict[str, Table]:
    """Load tables among `DATASETS`, or one from a file, and encode them with public bounds.

    `csv` holds the path of a table, that of its schema and the column of the labels. By default
    all rows are drawn, but `CENSUS_ROWS` of the census. Errors name the option at fault.
    """
    if csv is None:
        loaded = {name: _dataset(name, data_home, n_samples) for name in names}
    else:
        path, schema_path, target = csv
        schema = read_schema(schema_path)
        with _blamed("csv", path):
            loaded = {schema.name: encoded(read_csv(path, schema, target=target))}
    return {name: _rows(name, table, n_samples, n_splits) for name, table in loaded.items()}


def read_schema(path: os.PathLike[str], option: str = "schema") -> Schema:
    """Read a schema from JSON, or from YAML by the name of the file; errors name the option."""
    with _blamed(option, path):
        return load_schema(path)


@contextmanager
def _blamed(option: str, path: os.PathLike[str] | None = None) -> Iterator[None]:
    """Raise what is wrong as a ValueError that names the option."""
    try:
        yield
    except (ValueError, OSError, ImportError) as problem:
        reason = str(problem)
        if path is not None and isinstance(problem, OSError):
            reason = f"{path} cannot be read ({problem.strerror})"
        raise ValueError(f"argument --{option}: {reason}") from problem


def _dataset(name: str, data_home: os.PathLike[str] | None, n_samples: int | None) -> Table:
    if name == "census":
        return make_census(n_samples or CENSUS_ROWS, random_state=0)
    with _blamed(f"datasets: {name}"):
        # With straight lines, as the papers have them.
        return encoded(_FETCHERS[name](data_home), 1)


def _rows(name: str, table: Table, n_samples: int | None, n_splits: int) -> Table:
    X, y = table
    if n_samples is not None and n_samples > len(y):
        raise ValueError(f"argument --n-samples: {name} has {len(y)} rows, fewer than {n_samples}")
    # The same rows every time, so that a run that was interrupted finds its finished fits again.
    if n_samples is not None and n_samples < len(y):
        X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    if n_splits > len(y):
        raise ValueError(f"argument --folds: {n_splits} exceeds the {len(y)} rows of {name}")
    if len(np.unique(y)) < 2:
        raise ValueError(f"all rows of {name} have the label {y[0]!r}; there is nothing to learn")
    return X, y
