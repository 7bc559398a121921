"""The audits pass on the library, and fail on bugs that are planted in it.

The bugs are those of the table ``BUGS`` in `planted_bugs`, with the program that had one where one
did.
"""

import warnings
from functools import partial

import numpy as np
import planted_bugs
import pytest
from planted_bugs import BUGS, shift_of
from strategies import RELATIONS, under

from dpglm import DPLinearSVM, DPLogisticRegression, FullPreconditioner, seeded_noise
from dpglm.audit import audit_estimator
from dpglm.audit.choices import ChoiceCounts, audit_choices
from dpglm.audit.designs import canary_scores
from dpglm.audit.statistics import audit_scores
from dpglm.baselines import MajorityClassifier
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.schedules import DecayingClip

DELTA = 1e-6
SETTING = {
    "epsilon": gdp_epsilon(1.0, DELTA), "delta": DELTA, "max_iter": 10, "preconditioner": None,
}  # fmt: skip
AUDITED = [bug for bug in BUGS if bug.audit]
CLAIMED = [bug for bug in BUGS if bug.claim]


def named(bug):
    return bug.name


@pytest.mark.parametrize("container", ["dense", "sparse", "blocks"])
def test_every_way_to_hand_over_the_rows_passes(container):
    model = DPLogisticRegression(**SETTING)
    result = audit_scores(canary_scores(model, n_canaries=1000, container=container))
    assert result.passed, result.violations
    assert shift_of(result) > 0.3, "the canaries must show"


@pytest.mark.parametrize("audit", [planted_bugs.moments, planted_bugs.whitened])
@pytest.mark.parametrize(
    "changes",
    [
        {"container": "dense"},
        under("replace_one"),
        under("add_or_remove_one", 400),
        {"momentum": None, "averaging": "uniform", "clip_schedule": DecayingClip(1.0)},
        {"preconditioner": FullPreconditioner(budget_fraction=0.5)},
        {"Estimator": DPLinearSVM},
    ],
    ids=str,
)
def test_each_stage_of_a_preconditioned_fit_passes(audit, changes):
    result = audit(**changes)
    assert result.passed, result.violations
    assert result.evidence.mu == pytest.approx(1.0, rel=1e-6)
    assert shift_of(result) > 0.3, "the canaries must show"


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_averaged_gradients_and_choices_of_adaptive_descent_pass(relation):
    averaged = planted_bugs.refined(**under(relation, 5000))
    # With half of the fits the power is below what is asked for in one run of a hundred.
    chosen = planted_bugs.choices(n_fits=2 * planted_bugs.N_FITS, **under(relation, 5000))
    for result in (averaged, chosen):
        assert result.passed, result.violations
    assert shift_of(averaged) > 0.7, "the canaries must show"
    assert chosen.lower_bound > 0.5 * chosen.evidence.epsilon, "the choices must show"


# A sixth of them here, and all with their power in the slow run.
@pytest.mark.parametrize("bug", AUDITED[::6], ids=named)
def test_a_planted_bug_is_caught_by_an_audit(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.audit().violations


@pytest.mark.parametrize("bug", CLAIMED, ids=named)
def test_what_audits_cannot_see_is_caught_by_a_property(bug, monkeypatch):
    assert bug.claim()
    bug.plant(monkeypatch)
    assert not bug.claim()


def test_the_table_has_the_bugs_of_published_systems():
    assert len(AUDITED) >= 25 and len({bug.name for bug in BUGS}) == len(BUGS)
    assert sum(bool(bug.system) for bug in BUGS) >= 6


def power_of_choices(audit, n_runs=400):
    """The choices of many fits, drawn from again and again."""
    many = planted_bugs.counted(*audit.args, n_fits=1500, **audit.keywords)
    seen, rng, caught = many.counts / many.counts.sum(), np.random.default_rng(0), 0
    for _ in range(n_runs):
        counts = rng.multinomial(planted_bugs.N_FITS, seen)
        caught += not audit_choices(ChoiceCounts(counts, many.law, many.epsilon)).passed
    return caught / n_runs


@pytest.mark.slow
@pytest.mark.parametrize("bug", AUDITED, ids=named)
def test_the_power_of_every_audit_is_above_99_percent(bug, monkeypatch):
    bug.plant(monkeypatch)
    if bug.audit.__class__ is partial and bug.audit.func is planted_bugs.choices:
        assert power_of_choices(bug.audit) > 0.99
    else:
        assert all(bug.audit().violations for _ in range(60))


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(b, id=b.name, marks=[pytest.mark.slow] * (i % 16 > 0))
        for i, b in enumerate(AUDITED)
    ],
)
def test_no_audit_of_the_table_raises_a_false_alarm(bug):
    result = bug.audit()
    assert result.passed, result.violations


def test_audits_draw_fresh_noise_within_seeded_noise():
    """The same noise in each of several fits would count as that of one."""
    with seeded_noise(0), warnings.catch_warnings():
        warnings.filterwarnings("error", "seeded_noise makes", PrivacyWarning)
        assert audit_estimator(MajorityClassifier(epsilon=5.0)).passed
