"""Private linear classifiers on UCI Bank Marketing: accuracy, AUC and loss against epsilon.

Only .12 of the clients subscribe, so that accuracy says little and AUC and loss say more. Run
``python examples/compare_bank.py``, or with ``--quick`` for a first impression. The data come from
``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

import numpy as np
from _compare import run
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dpglm import DPLinearSVM, DPLogisticRegression, Geometric
from dpglm.datasets import fetch_bank

ESTIMATORS = {
    "DPLogisticRegression()": DPLogisticRegression(),
    "logistic, 30 iterations": DPLogisticRegression(max_iter=30),
    "logistic, 300 iterations": DPLogisticRegression(max_iter=300),
    "logistic, geometric noise": DPLogisticRegression(noise_schedule=Geometric(ratio=0.99)),
    "logistic, weighted average": DPLogisticRegression(averaging="t_weighted"),
    "logistic, without privacy": LogisticRegression(C=np.inf, max_iter=2000),
    "DPLinearSVM()": DPLinearSVM(),
    "SVM, wider parabola": DPLinearSVM(half_width=0.5),
    "SVM, without privacy": LinearSVC(loss="hinge", C=10.0, tol=0.1, max_iter=100_000),
    "majority": DummyClassifier(),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "bank", fetch_bank, ESTIMATORS)
