"""Every estimator and every table that a command knows by name."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils import resample

from dpglm import baselines
from dpglm.datasets import fetch_table, make_census
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.estimators.regression import DPGammaRegressor, DPLinearRegression, DPPoissonRegressor
from dpglm.schedules import DecayingClip
from dpglm.study.comparison import encoded


@dataclass(frozen=True)
class Method:
    """An estimator with its settings: a prototype, and a short description.

    The group says when it is compared without being named: "default" always, "quick" also in a
    quick comparison, "more" never. The container holds the records of an audit.
    """

    estimator: BaseEstimator
    text: str = ""
    group: str = "default"
    container: str = "sparse"

    def with_parameters(self, **parameters: Any) -> BaseEstimator:
        """Return a new estimator with those parameters that it has, if it is private.

        None leaves the estimator's own default.
        """
        known = self.estimator.get_params()
        known = known if "epsilon" in known else ()
        own = {k: value for k, value in parameters.items() if k in known and value is not None}
        return clone(self.estimator).set_params(**own)


_LOGISTIC, _SMOOTH = DPLogisticRegression(), "smoothed_hinge"

# Prototype, description, group, and a kind of hinge if the method can minimise that as well, which
# is compared under a name with "-svm".
_COMPARED = {
    "logistic": (_LOGISTIC, "DPLogisticRegression", "quick"),
    "svm": (DPLinearSVM(), "DPLinearSVM"),
    "agd": (DPAGDClassifier(), "DPAGDClassifier", "quick", _SMOOTH),
    "objective-perturbation": (
        baselines.ObjectivePerturbation(), "minimises a randomly tilted loss", "quick", _SMOOTH,
    ),
    "output-perturbation": (
        baselines.DescentOutputPerturbation(), "adds noise to the end of a gradient descent",
        "default", _SMOOTH,
    ),
    "privgene": (
        baselines.PrivGene(), "searches genetically, with private selections", "default", "hinge",
    ),
    "majority": (baselines.MajorityClassifier(), "noisy label counts alone"),
    "reference": (
        LogisticRegression(C=np.inf, max_iter=2000), "logistic regression without privacy",
    ),
    "reference-svm": (
        LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000), "linear SVM without privacy",
    ),
    "sgd-moments": (
        baselines.SGDMomentsAccountant(), "mini-batches, by privacy loss distributions", "more",
        "hinge",
    ),
    "sgd-advanced": (
        baselines.SGDAdvancedComposition(), "mini-batches, by advanced composition", "more",
        "hinge",
    ),
}  # fmt: skip

METHODS: dict[str, Method] = {}
"""What is compared under each name, in the order of the tables."""

for _name, (_estimator, _text, *_rest) in _COMPARED.items():
    METHODS[_name] = Method(_estimator, _text, *_rest[:1])
    _variants, _slow = {_name: _estimator}, "more" if "more" in _rest else "default"
    # At a small epsilon the moments accountant admits no batch, so that is not one of "all".
    if hasattr(_estimator, "as_published") and _name != "sgd-moments":
        _variants[f"{_name}-published"] = _published = _estimator.as_published()
        METHODS[f"{_name}-published"] = Method(_published, f"{_text}; as published", _slow)
    for _hinge in _rest[1:]:
        for _key, _variant in _variants.items():
            _svm = clone(_variant).set_params(loss=_hinge)
            METHODS[f"{_key}-svm"] = Method(_svm, f"{METHODS[_key].text}; SVM", _slow)

REGRESSORS = {
    "linear": Method(DPLinearRegression(), "DPLinearRegression"),
    "poisson": Method(DPPoissonRegressor(), "DPPoissonRegressor"),
    "gamma": Method(DPGammaRegressor(), "DPGammaRegressor"),
}
"""The estimators of a number, which `dpglm.study.compare` does not know."""

PLANNED = {name: METHODS[name] for name in ("logistic", "svm", "agd")} | REGRESSORS
"""What the commands plan and fit under each name."""

AUDITED: dict[str, Method] = {
    "logistic": METHODS["logistic"],
    "logistic-softmax": Method(DPLogisticRegression(classes=[0, 1, 2, 3]), "with four classes"),
    "logistic-replace-one": Method(
        DPLogisticRegression(neighboring_relation="replace_one"), "under replace_one"
    ),
    "logistic-decaying-clip": Method(
        DPLogisticRegression(
            clip_schedule=DecayingClip(1.0), preconditioner=None, momentum="heavy_ball",
            averaging="uniform",
        ),
        "without preconditioner, with a clip that decays and a heavy ball",
    ),
    "logistic-batches": Method(
        DPLogisticRegression(sampling_rate=0.2, max_iter=40, preconditioner=None),
        "on random batches",
    ),
    "logistic-threads": Method(_LOGISTIC, "on dense rows, in two threads", container="dense"),
    "logistic-blocks": Method(_LOGISTIC, "on rows read block by block", container="blocks"),
    "logistic-dask": Method(_LOGISTIC, "on the partitions of a Dask array", container="dask"),
    "agd-plain": Method(DPAGDClassifier(preconditioner=None), "without preconditioner"),
    "sgd-moments": Method(baselines.SGDMomentsAccountant(max_iter=100), "in 100 iterations"),
    **{name: METHODS[name] for name in (
        "svm", "agd", "agd-published", "objective-perturbation", "output-perturbation",
        "privgene", "sgd-advanced", "majority",
    )},
}  # fmt: skip
"""What is audited under each name, in the order of the table."""


def select(names: Iterable[str] | None = None, *, quick: bool = False) -> list[str]:
    """Return the names of the methods to compare: by default those of a group, or all by "all"."""
    if names is not None:
        return [*METHODS] if "all" in names else [*names]
    groups = ("quick",) if quick else ("quick", "default")
    return [name for name, method in METHODS.items() if method.group in groups]


CENSUS_ROWS = 20_000
DATASETS = ("census", "adult", "bank", "kddcup99")

Table = tuple[Any, np.ndarray]
"""Encoded rows and their labels."""


def load_table(name: str, data_home: os.PathLike[str] | None, n_samples: int | None) -> Table:
    """Load and encode one of `DATASETS`: all rows, or as many as are asked for."""
    if name == "census":
        return drawn(make_census(n_samples or CENSUS_ROWS, random_state=0), n_samples)
    # With straight lines, as the papers have them.
    return drawn(encoded(fetch_table(name, data_home), 1), n_samples)


def drawn(table: Table, n_samples: int | None) -> Table:
    """Return `n_samples` rows of a table, which have more than one label."""
    X, y = table
    # The same rows every time, so that a run that was interrupted finds its finished fits again.
    if n_samples not in (None, len(y)):
        X, y = resample(X, y, replace=False, n_samples=n_samples, random_state=0)
    if len(np.unique(y)) < 2:
        raise ValueError(f"all {len(y)} rows have one label, so that there is nothing to learn.")
    return X, y
