"""Each design of canaries predicts what canaries do: an audit is only as good as that."""

import numpy as np
import pytest
from sklearn.base import clone
from strategies import under

from dpglm import (
    DPAGDClassifier,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
    baselines,
)
from dpglm.audit import audit_estimator
from dpglm.audit.choices import audit_choices, choice_counts
from dpglm.audit.designs import canary_scores, counted_scores, cross_moment_scores

RELATIONS = [{}, under("replace_one"), under("add_or_remove_one", 700)]
N_CANARIES = 2000
FEW = {"n_splits": 10, "selection_fraction": 0.1}
pytestmark = pytest.mark.slow
# Of standard deviations: one false alarm in a million such tests.
FAR = 5.0


def check_prediction(canaries):
    inside = canaries.scores[canaries.present]
    outside = canaries.scores[~canaries.present]
    variance = 1 + canaries.excess_variance
    shift = inside.mean() - outside.mean()
    spread = np.sqrt(variance / len(inside) + 1 / len(outside))
    assert abs(shift - canaries.shift) < FAR * spread + 0.02 * canaries.shift
    assert abs(outside.mean()) < FAR / np.sqrt(len(outside)) + 0.02 * canaries.shift
    for arm, expected in ((outside, 1.0), (inside, variance)):
        assert abs(arm.var() / expected - 1) < FAR * np.sqrt(2 / len(arm)) + 0.04
    assert canaries.shift > 0.1, "the canaries must show"
    assert canaries.shift <= canaries.mu * (1 + 1e-6)


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@pytest.mark.parametrize(
    "model",
    [
        DPLogisticRegression(epsilon=6.0, max_iter=10, classes=[0, 1, 2, 3], preconditioner=None),
        DPLinearSVM(epsilon=6.0, max_iter=10, classes=[0, 1, 2]),
        DPAGDClassifier(epsilon=6.0),
        DPAGDClassifier(
            epsilon=6.0, classes=[0, 1, 2], loss="smoothed_hinge", momentum="bias_corrected"
        ),
        DPAGDClassifier(epsilon=6.0, classes=[0, 1, 2, 3], n_splits=8, budget_growth=2.0),
        DPAGDClassifier.as_published(epsilon=20.0),
        baselines.SGDMomentsAccountant(epsilon=9.0, max_iter=30, batch_size=900),
    ],
    ids=str,
)
def test_gradients_do_what_their_design_predicts(model, relation):
    if isinstance(model, baselines.SGDMomentsAccountant) and relation:
        return
    canaries = canary_scores(
        clone(model).set_params(**relation), n_canaries=N_CANARIES, container="sparse"
    )
    assert not canaries.violations
    check_prediction(canaries)


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@pytest.mark.parametrize(
    "model",
    [
        baselines.MajorityClassifier(epsilon=4.0),
        baselines.DescentOutputPerturbation(epsilon=6.0, alpha=0.1, max_iter=30),
        baselines.ObjectivePerturbation(epsilon=9.0, alpha=0.003, max_row_norm=4.0),
    ],
    ids=str,
)
def test_baselines_do_what_their_designs_predict(model, relation):
    relation = relation | (
        {"n_samples_estimate": 800} if relation.get("n_samples_estimate") else {}
    )
    model = clone(model).set_params(**relation)
    check_prediction(audit_estimator(model, n_canaries=N_CANARIES).parts[0].evidence)


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_entries_off_the_diagonal_and_histograms_do_what_their_design_predicts(relation):
    for model in (
        DPLogisticRegression(epsilon=20.0, preconditioner=FullPreconditioner(0.8), **relation),
        DPAGDClassifier(epsilon=20.0, preconditioner=FullPreconditioner(0.8), **relation),
    ):
        check_prediction(cross_moment_scores(model, n_canaries=250))
        for counts in ("magnitude histogram", "norm histogram"):
            check_prediction(counted_scores(model, n_canaries=800, counts=counts))


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@pytest.mark.parametrize(
    "model",
    [
        DPAGDClassifier(epsilon=3.0, selection="laplace", loss_clip=1.0, loss="hinge", **FEW),
        DPAGDClassifier.as_published(epsilon=1.0),
        DPAGDClassifier.as_published(epsilon=1.0, selection="permute_and_flip"),
        baselines.PrivGene(epsilon=1.0, loss="hinge", feature_bound=4.0, mutation=0.2),
    ],
    ids=str,
)
def test_choices_have_the_law_that_their_design_predicts(model, relation):
    counts = choice_counts(clone(model).set_params(**relation), n_fits=400)
    result = audit_choices(counts)
    assert result.passed, result.violations
    assert (counts.law > 0.02).sum() >= 2 and counts.law.max() < 0.95, "the choices must show"
    assert 0.2 < result.lower_bound / counts.epsilon < 1
