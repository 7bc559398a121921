"""The estimators and baselines that a comparison knows by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.output_perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.estimators.agd import DPAGDClassifier
from dpglm.estimators.descent import DPLinearSVM, DPLogisticRegression
from dpglm.schedules import DecayingClip, DynamicNoise

__all__ = ["LOSSES", "METHODS", "Method", "make_estimator", "select"]

LOSSES = ("logistic", "svm")


@dataclass(frozen=True)
class Method:
    """An estimator with its settings.

    Parameters
    ----------
    estimator : estimator
        Prototype, to be cloned.
    text : str
        What it is, in a few words.
    losses : tuple of {"logistic", "svm"}
        What it minimises.
    group : {"default", "quick", "more"}
        When it is compared without being named: always; even if the comparison is to be quick;
        never.
    """

    estimator: BaseEstimator
    text: str
    losses: tuple[str, ...]
    group: str


def _both(name: str, text: str, logistic: Any, svm: Any, group: str) -> dict[str, Method]:
    """Return a method that can minimise either loss under two names."""
    return {
        name: Method(logistic, text, ("logistic",), group),
        f"{name}-svm": Method(svm, f"{text}; SVM", ("svm",), group),
    }


_SVM_OPTIMUM = LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000)

METHODS: dict[str, Method] = {
    "logistic": Method(DPLogisticRegression(), "DPLogisticRegression", ("logistic",), "quick"),
    "svm": Method(DPLinearSVM(), "DPLinearSVM", ("svm",), "quick"),
    **_both(
        "agd",
        "DPAGDClassifier",
        DPAGDClassifier(),
        DPAGDClassifier(loss="smoothed_hinge"),
        "quick",
    ),
    **_both(
        "objective-perturbation",
        "minimises a randomly tilted loss",
        ObjectivePerturbation(),
        ObjectivePerturbation(loss="smoothed_hinge"),
        "quick",
    ),
    **_both(
        "output-perturbation",
        "adds noise to the minimiser",
        OutputPerturbation(),
        OutputPerturbation(loss="smoothed_hinge"),
        "default",
    ),
    **_both(
        "approximate-minima",
        "tilts the loss and adds noise to an approximate minimiser",
        ApproximateMinimaPerturbation(),
        ApproximateMinimaPerturbation(loss="smoothed_hinge"),
        "default",
    ),
    **_both(
        "privgene",
        "searches genetically, with private selections",
        PrivGene(),
        PrivGene(loss="hinge"),
        "default",
    ),
    "double-noise-newton": Method(
        DoubleNoiseNewton(), "noisy Newton steps", ("logistic",), "default"
    ),
    "majority": Method(MajorityClassifier(), "noisy label counts alone", LOSSES, "default"),
    "reference": Method(
        LogisticRegression(C=np.inf, max_iter=2000),
        "logistic regression without privacy",
        ("logistic",),
        "default",
    ),
    "reference-svm": Method(_SVM_OPTIMUM, "linear SVM without privacy", ("svm",), "default"),
    **_both(
        "sgd-moments",
        "mini-batches, by privacy loss distributions",
        SGDMomentsAccountant(),
        SGDMomentsAccountant(loss="hinge"),
        "more",
    ),
    **_both(
        "sgd-advanced",
        "mini-batches, by advanced composition",
        SGDAdvancedComposition(),
        SGDAdvancedComposition(loss="hinge"),
        "more",
    ),
    "logistic-batches": Method(
        DPLogisticRegression(sampling_rate=0.1),
        "mini-batches of a tenth of the rows",
        ("logistic",),
        "more",
    ),
    "logistic-plain": Method(
        DPLogisticRegression(momentum=None, averaging=None),
        "without momentum and averaging",
        ("logistic",),
        "more",
    ),
    "svm-plain": Method(
        DPLinearSVM(momentum=None, averaging=None),
        "without momentum and averaging",
        ("svm",),
        "more",
    ),
    "logistic-unwhitened": Method(
        DPLogisticRegression(
            preconditioner=None, clip_schedule=2.0, step_schedule=1.0, momentum="heavy_ball"
        ),
        "without preconditioner, with fixed clip and step",
        ("logistic",),
        "more",
    ),
    "logistic-decaying-clip": Method(
        DPLogisticRegression(clip_schedule=DecayingClip(1.0)),
        "with a clip that decays to a half",
        ("logistic",),
        "more",
    ),
    "logistic-dynamic": Method(
        DPLogisticRegression(noise_schedule=DynamicNoise(decay=4.0)),
        "with noise that decays to a quarter",
        ("logistic",),
        "more",
    ),
}
"""What each name stands for, in the order of the tables."""


def select(
    names: Iterable[str] | None = None, *, losses: Iterable[str] | None = None, quick: bool = False
) -> list[str]:
    """Return the names of the methods to compare.

    Parameters
    ----------
    names : iterable of str, optional
        Among `METHODS`; ``"all"`` stands for every one. By default those of the default group.
    losses : iterable of {"logistic", "svm"}, optional
        Leave out the methods that minimise none of them.
    quick : bool, default=False
        Keep to the few of the quick group unless others are named.

    Returns
    -------
    list of str
        Without repetitions.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> from dpglm.study.methods import select
    >>> select(losses=["logistic"], quick=True)
    ['logistic', 'agd', 'objective-perturbation']
    >>> select(["reference", "svm"], losses=["svm"])
    ['svm']
    """
    groups = ("quick",) if quick else ("quick", "default")
    chosen: list[str] = []
    for name in [n for n, m in METHODS.items() if m.group in groups] if names is None else names:
        if name not in METHODS and name != "all":
            raise ValueError(f"{name!r} is unknown; choose from all, {', '.join(METHODS)}")
        chosen += METHODS if name == "all" else [name]
    kept = LOSSES if losses is None else tuple(losses)
    return [name for name in dict.fromkeys(chosen) if set(METHODS[name].losses) & set(kept)]


def make_estimator(name: str, **parameters: Any) -> BaseEstimator:
    """Return a new estimator with those of the parameters that it has.

    Examples
    --------
    >>> from dpglm.study.methods import make_estimator
    >>> make_estimator("svm", epsilon=2.0, max_iter=10)
    DPLinearSVM(epsilon=2.0, max_iter=10)
    >>> make_estimator("objective-perturbation", epsilon=2.0, max_iter=10)
    ObjectivePerturbation(epsilon=2.0)
    """
    estimator = clone(METHODS[name].estimator)
    known = estimator.get_params()
    return estimator.set_params(**{k: v for k, v in parameters.items() if k in known})
