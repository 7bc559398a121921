"""Private linear classifiers on UCI Adult: accuracy, AUC and loss against epsilon.

All estimators of this package beside the published methods, and the same models without privacy.
The two that draw mini-batches need dp-accounting (``pip install "dpglm[accounting]"``).

Run ``python examples/compare_adult.py``, or with ``--quick`` for a first impression. The data come
from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

import numpy as np
from _compare import run
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dpglm import DPAGDClassifier, DPLinearSVM, DPLogisticRegression
from dpglm.baselines.majority import MajorityClassifier
from dpglm.baselines.newton import DoubleNoiseNewton
from dpglm.baselines.objective_perturbation import (
    ApproximateMinimaPerturbation,
    ObjectivePerturbation,
)
from dpglm.baselines.perturbation import OutputPerturbation
from dpglm.baselines.privgene import PrivGene
from dpglm.baselines.sgd import SGDAdvancedComposition, SGDMomentsAccountant
from dpglm.datasets import fetch_adult
from dpglm.schedules import DecayingClip, DynamicNoise

ESTIMATORS = {
    "DPLogisticRegression()": DPLogisticRegression(),
    "logistic, plain descent": DPLogisticRegression(momentum=None, averaging=None),
    "logistic, not whitened": DPLogisticRegression(
        preconditioner=None, clip_schedule=2.0, step_schedule=1.0, momentum="heavy_ball"
    ),
    "logistic, decaying clip": DPLogisticRegression(clip_schedule=DecayingClip(1.0)),
    "logistic, dynamic noise": DPLogisticRegression(noise_schedule=DynamicNoise(decay=4.0)),
    "DPAGDClassifier()": DPAGDClassifier(),
    "objective perturbation": ObjectivePerturbation(),
    "output perturbation": OutputPerturbation(),
    "approximate minima": ApproximateMinimaPerturbation(),
    "PrivGene": PrivGene(),
    "double-noise Newton": DoubleNoiseNewton(),
    "SGD, moments accountant": SGDMomentsAccountant(),
    "SGD, advanced composition": SGDAdvancedComposition(),
    "majority": MajorityClassifier(),
    "logistic, without privacy": LogisticRegression(C=np.inf, max_iter=2000),
    "DPLinearSVM()": DPLinearSVM(),
    "SVM, plain descent": DPLinearSVM(momentum=None, averaging=None),
    "SVM, DPAGDClassifier": DPAGDClassifier(loss="smoothed_hinge"),
    "SVM, objective perturbation": ObjectivePerturbation(loss="smoothed_hinge"),
    "SVM, output perturbation": OutputPerturbation(loss="smoothed_hinge"),
    "SVM, approximate minima": ApproximateMinimaPerturbation(loss="smoothed_hinge"),
    "SVM, PrivGene": PrivGene(loss="hinge"),
    "SVM, SGD, moments accountant": SGDMomentsAccountant(loss="hinge"),
    "SVM, SGD, advanced composition": SGDAdvancedComposition(loss="hinge"),
    "SVM, without privacy": LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "adult", fetch_adult, ESTIMATORS)
