"""Private linear classifiers on UCI Bank Marketing: accuracy, AUC and loss against epsilon.

All estimators of this package beside the published methods, the same models without privacy, and
other numbers of iterations, noise and averages. Those that draw mini-batches need dp-accounting
(``pip install "dpglm[accounting]"``). Only 0.12 of the clients subscribe, so that accuracy says
little and AUC and loss say more.

Run ``python examples/compare_bank.py``, or with ``--quick`` for a first impression. The data come
from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

from _compare import run

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.schedules import ExponentialDecay
from dpglm.study.methods import METHODS

# Rows of this table are shorter than the methods that clip them take by default.
ROW_NORMS = {
    "objective-perturbation": 2.0,
    "output-perturbation": 2.0,
}
OWN = {
    name: {"max_row_norm": ROW_NORMS[name.removesuffix("-svm")]}
    for name in METHODS
    if name.removesuffix("-svm") in ROW_NORMS
}
ESTIMATORS = {
    **{name: method.with_parameters(**OWN.get(name, {})) for name, method in METHODS.items()},
    "logistic, 30 iterations": DPLogisticRegression(max_iter=30),
    "logistic, 300 iterations": DPLogisticRegression(max_iter=300),
    "logistic, geometric noise": DPLogisticRegression(noise_schedule=ExponentialDecay(ratio=0.99)),
    "logistic, weighted average": DPLogisticRegression(averaging="t_weighted"),
    "svm, wider parabola": DPLinearSVM(half_width=0.5),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "bank", ESTIMATORS)
