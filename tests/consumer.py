"""What a user writes, for mypy: .ci/run checks it against the installed package.

Each ``type: ignore`` is an error that must be found: mypy complains of one that is not needed.
"""

import numpy as np
from scipy.sparse import csr_array

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    PrivacyBudget,
    PrivacyLedger,
    PrivateSearchCV,
    load_schema,
    make_census,
    private_scores,
)
from dpglm.estimators.plan import Plan
from dpglm.schedules import DecayingClip, HeavyBall
from dpglm.sources.arrays import ArraySource
from dpglm.workflow import PrivateThresholdClassifier

X, y = np.eye(4), [0, 1, 0, 1]

model: DPLogisticRegression = DPLogisticRegression(
    epsilon=1, clip_schedule=DecayingClip(2.0), step_schedule=0.5, noise_schedule="constant",
    momentum=HeavyBall(0.5), averaging=None,
    preconditioner=FullPreconditioner(row_clipping_norm=2.0),
    max_iter=5, classes=["no", "yes"], class_weight={"no": 1.0},
).fit(X, y, sample_weight=[1, 1, 2, 1])  # fmt: skip
svm: DPLinearSVM = DPLinearSVM(momentum=None).fit(csr_array(X), y)
agd: DPAGDClassifier = DPAGDClassifier(loss_clip="auto", max_step=2).fit(ArraySource(X, y))
plan: Plan = model.plan(1000, 8)
ledger: PrivacyLedger = model.privacy_ + svm.privacy_
spent: float = ledger.epsilon(1e-6)
labels: np.ndarray = model.predict(X)
right: float = model.score(X, y)
max_row_norm: float = load_schema("schema.json").max_row_norm()
PrivateSearchCV(model, {"max_iter": [5, 10]}, epsilon=2.0)
PrivateThresholdClassifier(model, criterion={"false_positive": 1.0, "false_negative": 2.0})
print(private_scores(model, X, y, epsilon=1.0).accuracy, make_census(100, random_state=0))

DPLogisticRegression(epsilon="1")  # type: ignore[arg-type]
DPLogisticRegression(clip_schedule=[1.0, 2.0])  # type: ignore[arg-type]
DPLinearSVM(preconditioner=0.5)  # type: ignore[arg-type]
DPAGDClassifier(max_iter=None)  # type: ignore[arg-type]
PrivacyBudget(1.0, 1e-6, n_samples_estimate="many")  # type: ignore[arg-type]
private_scores(model, X, y)  # type: ignore[call-arg]
model.plan("1000", 8)  # type: ignore[arg-type]
