"""DP-AGD and its rivals on UCI Adult: accuracy and loss against epsilon.

All of them as Lee & Kifer (2018) ran them, beside this package's defaults. ``--more`` adds four
settings of the logistic regression that show what a default is worth. Those that draw mini-batches
need dp-accounting (``pip install "dpglm[accounting]"``).

Run ``python examples/compare_adult.py``, or with ``--quick`` for a first impression. The data come
from ``--data-home`` or the folder in ``DPGLM_DATA``, else from OpenML.
"""

from _compare import run

from dpglm import DPLogisticRegression
from dpglm.schedules import DecayingClip, DynamicNoise

MORE = {
    "logistic, plain descent": DPLogisticRegression(momentum=None, averaging=None),
    "logistic, not whitened": DPLogisticRegression(
        preconditioner=None, clip_schedule=2.0, step_schedule=1.0, momentum="heavy_ball"
    ),
    "logistic, decaying clip": DPLogisticRegression(clip_schedule=DecayingClip(1.0)),
    "logistic, dynamic noise": DPLogisticRegression(noise_schedule=DynamicNoise(decay=4.0)),
}

if __name__ == "__main__":
    run(__doc__.splitlines()[0], "adult", MORE)
