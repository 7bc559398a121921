"""Private linear classifiers on UCI Adult: accuracy, AUC and loss against epsilon.

Run ``python examples/compare_adult.py``, or with ``--quick`` for a first impression. The data come
from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

import numpy as np
from _compare import run
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dpglm import (
    DecayingClip,
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    DynamicNoise,
)
from dpglm.datasets import fetch_adult

ESTIMATORS = {
    "DPLogisticRegression()": DPLogisticRegression(),
    "logistic, plain descent": DPLogisticRegression(momentum=None, averaging=None),
    "logistic, not whitened": DPLogisticRegression(
        preconditioner=None, clip_schedule=2.0, step_schedule=1.0, momentum="heavy_ball"
    ),
    "logistic, decaying clip": DPLogisticRegression(clip_schedule=DecayingClip(1.0)),
    "logistic, dynamic noise": DPLogisticRegression(noise_schedule=DynamicNoise(decay=4.0)),
    "logistic, without privacy": LogisticRegression(C=np.inf, max_iter=2000),
    "DPAGDClassifier()": DPAGDClassifier(),
    "DPLinearSVM()": DPLinearSVM(),
    "SVM, plain descent": DPLinearSVM(momentum=None, averaging=None),
    "SVM, without privacy": LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000),
    "majority": DummyClassifier(),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "adult", fetch_adult, ESTIMATORS)
