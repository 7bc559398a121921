"""The audit of a preconditioned fit, stage by stage, and bugs planted in either stage."""

import math

import planted_bugs
import pytest

from dpglm import (
    DecayingClip,
    DiagonalPreconditioner,
    DPLinearSVM,
    DPLogisticRegression,
    FullPreconditioner,
)
from dpglm.audit import audit_scores, canary_scores
from dpglm.privacy import vault as vaults
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.sums.objective import Objective

DELTA = 1e-6
# mu = sqrt 2, half of mu^2 for the moment and half for twenty gradients: mu = 1 in each stage
SETTING = {
    "epsilon": gdp_epsilon(math.sqrt(2), DELTA),
    "delta": DELTA,
    "max_iter": 20,
    "preconditioner": DiagonalPreconditioner(share=0.5, row_bound=2.0),
    "clip_schedule": 0.5,
}


def audit(stage, Estimator=DPLogisticRegression, container="sparse", **changes):
    model = Estimator(**{**SETTING, **changes})
    return audit_scores(
        canary_scores(model, n_canaries=2000, stage=stage, container=container, random_state=0)
    )


@pytest.mark.parametrize("stage", ["second_moment", "gradients"])
@pytest.mark.parametrize(
    "changes",
    [
        {"container": "dense"},
        {"neighboring_relation": "replace_one"},
        {"neighboring_relation": "add_or_remove_one", "n_ref": 400},
        {"momentum": None, "averaging": "uniform", "clip_schedule": DecayingClip(1.0)},
        {"preconditioner": FullPreconditioner(share=0.5)},
        {"Estimator": DPLinearSVM},
    ],
    ids=str,
)
def test_the_audit_passes_in_each_stage(stage, changes):
    result = audit(stage, **changes)
    assert result.passed, result.violations
    assert result.mu_claimed == pytest.approx(1.0, rel=1e-6)
    assert result.shift > 0.3, "the canaries must show"


def halved_noise(monkeypatch, stage):
    """Halve the noise of the first draw of a fit, or of all the others."""
    original, draws = vaults.rounded_gaussian, []

    def draw(size, scale, rng):
        draws.append(size)
        halved = (len(draws) == 1) == (stage == "second_moment")
        return original(size, scale / 2 if halved else scale, rng)

    monkeypatch.setattr(vaults, "rounded_gaussian", draw)


def unclipped_rows(monkeypatch, stage):
    if stage == "gradients":
        planted_bugs.changed_sum(planted_bugs.not_clipped)(monkeypatch)
        return
    original = Objective.second_moment
    monkeypatch.setattr(Objective, "second_moment", lambda *given: 2 * original(*given))


@pytest.mark.parametrize("bug", [halved_noise, unclipped_rows])
@pytest.mark.parametrize("stage", ["second_moment", "gradients"])
def test_a_bug_planted_in_one_stage_is_caught_in_that_stage(bug, stage, monkeypatch):
    bug(monkeypatch, stage)
    assert not audit(stage).passed


def test_only_a_preconditioned_fit_has_a_second_moment_to_audit():
    with pytest.raises(ValueError, match="is not a stage of"):
        audit("second_moment", preconditioner=None)
    with pytest.raises(ValueError, match="is not a stage of"):
        audit("third_moment")
