"""PrivGene: the scores are losses, their range is what is charged, and it learns."""

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.sparse import csr_array
from scipy.special import logsumexp

from dpglm.baselines.privgene import CandidateLosses, PrivGene
from dpglm.datasets import make_census
from dpglm.losses import Hinge, Logistic, Softmax

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]
DELTA = 1e-6


def total_loss(loss, X, index, coef, weights):
    """Weighted sums of losses, written out anew."""
    scores = X @ coef
    if coef.shape[1] == 1:
        margins = (2 * index - 1) * scores[:, 0]
        values = np.logaddexp(0, -margins) if loss == "logistic" else np.maximum(0, 1 - margins)
    elif loss == "logistic":
        values = logsumexp(scores, axis=1) - scores[np.arange(len(index)), index]
    else:
        signs = 2 * np.eye(coef.shape[1])[index] - 1
        values = np.maximum(0, 1 - signs * scores).sum(axis=1)
    return weights[index] @ values


def losses_of(X, index, loss="logistic", n_classes=2, **settings):
    one = n_classes == 2
    losses = {"logistic": Logistic() if one else Softmax(), "hinge": Hinge()}
    given = {"n_outputs": 1 if one else n_classes, "fit_intercept": True, "feature_bound": 1.0}
    return CandidateLosses(
        X, np.where(index, 1.0, -1.0) if one else index, losses[loss], **{**given, **settings}
    )


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("form", [np.asarray, csr_array, lambda X: X.astype(np.float32)])
def test_a_score_is_the_change_of_the_total_loss(loss, n_classes, form):
    rng = np.random.default_rng(0)
    X = np.round(rng.uniform(-1, 1, size=(1000, 4)), 3) * (rng.random((1000, 4)) < 0.6)
    index, weights = rng.integers(n_classes, size=1000), np.array([0.5, 2.0, 1.0])[:n_classes]
    coef = rng.normal(size=(5, 1 if n_classes == 2 else n_classes))
    holder = losses_of(form(X), index, loss, n_classes, class_weight=weights)
    changes = holder.changes(coef, 0.3)
    stored = form(X).toarray() if form is csr_array else form(X).astype(float)
    rows = np.column_stack([stored, np.ones(1000)])
    for sign, per_sign in zip((1, -1), changes, strict=True):
        for place in np.ndindex(coef.shape):
            moved = coef.copy()
            moved[place] += sign * 0.3
            expected = total_loss(loss, rows, index, moved, weights)
            expected -= total_loss(loss, rows, index, coef, weights)
            assert per_sign[place] == pytest.approx(expected, rel=1e-9, abs=1e-7)


def law(scores, scale):
    return scores.ravel() / scale - logsumexp(scores.ravel() / scale)


def largest_range(relation):
    """Range of the log-probabilities over worst-case neighbours, and the range that is charged.

    With coefficients of 60 every row at the bound is right or wrong with certainty.
    """
    rng, n, d = np.random.default_rng(0), 40, 3
    n_samples_estimate = n if relation == "add_or_remove_one" else None
    plan = PrivGene(
        neighboring_relation=relation, n_samples_estimate=n_samples_estimate, max_iter=3
    ).plan(n, d)
    scale, coef = plan.mechanism(0).scale, np.full((d + 1, 1), 60.0)
    X, y = rng.choice([-1.0, 1.0], size=(n, d)), rng.integers(2, size=n)

    def law_with(row, label):
        holder = losses_of(np.vstack([X, row]), np.append(y, label))
        return law(-holder.changes(coef, plan.mutation[0]), scale)

    rows = ([1.0] * d, [-1.0] * d, [1.0, -1.0, 1.0])
    others = laws = [law_with(row, label) for row in rows for label in (0, 1)]
    if relation != "replace_one":
        others = [law(-losses_of(X, y).changes(coef, plan.mutation[0]), scale)]
    found = max(np.ptp(one - other) for one in laws for other in others)
    return found, plan.ledger.events[0][0].epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbour_moves_a_choice_further_than_charged(relation):
    found, charged = largest_range(relation)
    assert 0.99 * charged < found <= charged


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("max_iter", [1, 20, 300])
def test_all_choices_together_cost_the_budget(epsilon, max_iter):
    """At most the budget by the ledger, by zCDP at epsilon^2 / 8 each, and by RDP elsewhere."""
    ledger = PrivGene(epsilon=epsilon, max_iter=max_iter).plan(1000, 5).ledger
    assert ledger.n_releases == max_iter
    assert ledger.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert ledger.epsilon(DELTA) <= epsilon
    choice = ledger.events[0][0].epsilon
    assert ledger.rho() == pytest.approx(max_iter * choice**2 / 8)
    if max_iter == 300:
        accountant = RdpAccountant(orders=np.linspace(1.01, 400, 20_000))
        reached = accountant.compose(ledger.to_dp_event()).get_epsilon(DELTA)
        assert reached == pytest.approx(epsilon, rel=2e-3)


def test_a_fit_makes_the_choices_of_its_plan():
    X, y = make_census(600, random_state=0)
    model = PrivGene(classes=[0, 1], max_iter=7)
    plan = model.plan(*X.shape)
    model.fit(X, y)
    assert model.privacy_.events == plan.ledger.events and model.n_iter_ == 7
    assert np.abs(model.trace_.mutation) == pytest.approx(plan.mutation)
    rebuilt = np.zeros(X.shape[1] + 1)
    np.add.at(rebuilt, model.trace_.column, model.trace_.mutation)
    assert rebuilt == pytest.approx(np.append(model.coef_, model.intercept_))
    assert set(model.trace_.output) == {0}


def test_rounding_stays_within_its_bound():
    """Against changes of the loss in extended precision."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, size=(20_000, 4)), rng.integers(2, size=20_000)
    plan, signs = PrivGene().plan(*X.shape), (2 * y - 1).astype(np.longdouble)
    rows = signs[:, np.newaxis] * np.column_stack([X, np.ones(len(X))])
    for size in (0.1, 10.0, 1e4):
        coef = size * rng.normal(size=(5, 1))
        changes = losses_of(X, y).changes(coef, 0.3)[..., 0]
        margins = rows @ coef.astype(np.longdouble)
        exact = [
            (np.logaddexp(0, -margins - move * rows) - np.logaddexp(0, -margins)).sum(axis=0)
            for move in (0.3, -0.3)
        ]
        assert np.abs(changes - exact).max() <= plan.rounding(np.abs(coef).sum(), 0.3) < 1e-3


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]])
def test_rows_of_zeros_alone_are_rows_like_others(classes):
    """Whether all rows are zeros is as private as they are."""
    model = PrivGene(classes=classes, max_iter=2, fit_intercept=False)
    assert model.fit(np.zeros((8, 3)), np.resize(classes, 8)).n_iter_ == 2
