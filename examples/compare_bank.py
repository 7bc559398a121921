"""Private linear classifiers on UCI Bank Marketing: accuracy, AUC and loss against epsilon.

All estimators of this package beside the published methods, and the same models without privacy.
The two that draw mini-batches need dp-accounting (``pip install "dpglm[accounting]"``).
Only .12 of the clients subscribe, so that accuracy says little and AUC and loss say more. Run
``python examples/compare_bank.py``, or with ``--quick`` for a first impression. The data come from
``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
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
from dpglm.datasets import fetch_bank
from dpglm.schedules import ExponentialDecay

ESTIMATORS = {
    "DPLogisticRegression()": DPLogisticRegression(),
    "logistic, 30 iterations": DPLogisticRegression(max_iter=30),
    "logistic, 300 iterations": DPLogisticRegression(max_iter=300),
    "logistic, geometric noise": DPLogisticRegression(noise_schedule=ExponentialDecay(ratio=0.99)),
    "logistic, weighted average": DPLogisticRegression(averaging="t_weighted"),
    "DPAGDClassifier()": DPAGDClassifier(),
    "objective perturbation": ObjectivePerturbation(max_row_norm=2.0),
    "output perturbation": OutputPerturbation(max_row_norm=2.0),
    "approximate minima": ApproximateMinimaPerturbation(max_row_norm=2.0),
    "PrivGene": PrivGene(),
    "double-noise Newton": DoubleNoiseNewton(max_row_norm=2.5),
    "SGD, moments accountant": SGDMomentsAccountant(),
    "SGD, advanced composition": SGDAdvancedComposition(),
    "majority": MajorityClassifier(),
    "logistic, without privacy": LogisticRegression(C=np.inf, max_iter=2000),
    "DPLinearSVM()": DPLinearSVM(),
    "SVM, wider parabola": DPLinearSVM(half_width=0.5),
    "SVM, DPAGDClassifier": DPAGDClassifier(loss="smoothed_hinge"),
    "SVM, objective perturbation": ObjectivePerturbation(loss="smoothed_hinge", max_row_norm=2.0),
    "SVM, output perturbation": OutputPerturbation(loss="smoothed_hinge", max_row_norm=2.0),
    "SVM, approximate minima": ApproximateMinimaPerturbation(
        loss="smoothed_hinge", max_row_norm=2.0
    ),
    "SVM, PrivGene": PrivGene(loss="hinge"),
    "SVM, SGD, moments accountant": SGDMomentsAccountant(loss="hinge"),
    "SVM, SGD, advanced composition": SGDAdvancedComposition(loss="hinge"),
    "SVM, without privacy": LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "bank", fetch_bank, ESTIMATORS)
