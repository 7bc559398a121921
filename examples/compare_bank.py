"""DP-AGD and its rivals on UCI Bank Marketing: accuracy and loss against epsilon.

All of them as Lee & Kifer (2018) ran them, beside this package's defaults. ``--more`` adds other
numbers of iterations, noise and averages. Those that draw mini-batches need dp-accounting (``pip
install "dpglm[accounting]"``). Only 0.12 of the clients subscribe, so that accuracy says little and
AUC and loss say more.

Run ``python examples/compare_bank.py``, or with ``--quick`` for a first impression. The data come
from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

from _compare import run

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.schedules import ExponentialDecay

MORE = {
    "logistic, 30 iterations": DPLogisticRegression(max_iter=30),
    "logistic, 300 iterations": DPLogisticRegression(max_iter=300),
    "logistic, geometric noise": DPLogisticRegression(noise_schedule=ExponentialDecay(ratio=0.99)),
    "logistic, weighted average": DPLogisticRegression(averaging="t_weighted"),
    "svm, wider parabola": DPLinearSVM(half_width=0.5),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "bank", MORE)
