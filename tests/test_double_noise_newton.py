"""Newton with double noise: the sensitivity of a direction, its law, the curvature, the budget."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from tapes import record

from dpglm.baselines import newton
from dpglm.baselines.newton import CurvatureSums, DoubleNoiseNewton, direction_sensitivity
from dpglm.datasets import make_census


def test_the_sensitivity_of_a_direction_matches_the_vectors(vectors):
    for row in vectors("newton", "direction_sensitivity"):
        value = direction_sensitivity(row["v_sq"], row["lam0"], row["n"])
        assert value == pytest.approx(row["direction_sensitivity_per_unit_grad"], rel=row["rtol"])


def inverse_shift(rows, others, ridge):
    """Spectral norm of the change of the inverse of ``sum v v' / n + ridge I``."""
    n, eye = len(rows), np.eye(rows.shape[1])
    first, second = (np.linalg.inv(a.T @ a / n + ridge * eye) for a in (rows, others))
    return np.linalg.norm(first - second, 2)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_no_neighbour_moves_a_direction_further_than_charged(relation):
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(1000):
        n, d = rng.integers(1, 12), rng.integers(1, 5)
        ridge, size = 10 ** rng.uniform(-3, 1), 10 ** rng.uniform(-2, 1)
        rows = rng.normal(size=(n, d)) * (rng.random((n, 1)) < rng.random())
        rows[0] = rng.normal(size=d)
        others = rows.copy()
        others[0] = 0.0 if relation == "zero_out" else rng.normal(size=d) * rng.integers(2)
        for table in (rows, others):
            norms = np.linalg.norm(table, axis=1, keepdims=True)
            table *= math.sqrt(size) / np.maximum(norms, math.sqrt(size))
        rows[0] *= math.sqrt(size) / np.linalg.norm(rows[0])
        ratio = inverse_shift(rows, others, ridge) / direction_sensitivity(size, ridge, n)
        largest = max(largest, ratio)
    assert 0.999 < largest <= 1 + 1e-9


def sums_of(X, target=None, *, n_outputs=1, **settings):
    target = np.ones(X.shape[0]) if target is None else target
    given = {"fit_intercept": True, "max_row_norm": 1.5, "upper_bound": False}
    return CurvatureSums(X, target, n_outputs=n_outputs, **{**given, **settings})


def clipped_rows(X, max_row_norm=1.5):
    rows = np.column_stack([X, np.ones(len(X))])
    return rows * np.minimum(1, max_row_norm / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_the_curvature_is_the_second_derivative_of_the_loss_on_clipped_rows(form):
    rng = np.random.default_rng(0)
    X, coef, y = rng.normal(size=(3000, 3)), rng.normal(size=4), rng.choice([-1.0, 1.0], size=3000)
    weights = np.array([2.0, 0.5])
    rows, a = clipped_rows(X), weights[(y > 0).astype(int)]

    def gradient(w):
        return rows.T @ (-a * y * expit(-y * (rows @ w)))

    step = 1e-5
    expected = [
        (gradient(coef + step * e) - gradient(coef - step * e)) / (2 * step) for e in np.eye(4)
    ]
    found = sums_of(form(X), y, class_weight=weights).curvature(coef)
    assert found == pytest.approx(np.array(expected), rel=1e-6, abs=1e-5)


def test_the_upper_bound_is_that_of_a_parabola_above_the_loss():
    scores = np.concatenate([np.linspace(-30, 30, 601), [1e-5, 1e-3, 1e-4, 800.0]])[:, np.newaxis]
    curvature = newton._logistic_bound(scores)
    elsewhere = np.linspace(-40, 40, 801)
    above = np.logaddexp(0, -scores) - expit(-scores) * (elsewhere - scores)
    above = above + curvature / 2 * (elsewhere - scores) ** 2
    assert (above >= np.logaddexp(0, -elsewhere) - 1e-9).all()
    assert (curvature <= 0.25).all() and (curvature >= expit(scores) * expit(-scores) - 1e-9).all()


@pytest.mark.parametrize("upper_bound", [False, True])
def test_the_multiple_of_the_identity_bounds_the_curvature_of_the_softmax(upper_bound):
    scores = 3 * np.random.default_rng(0).normal(size=(300, 4))
    holder = sums_of(np.zeros((300, 2)), np.zeros(300, int), n_outputs=4, upper_bound=upper_bound)
    bounds = holder._curvature_of_scores(scores)
    for p, bound in zip(softmax(scores, axis=1), bounds, strict=True):
        assert np.linalg.norm(np.diag(p) - np.outer(p, p), 2) <= bound * (1 + 1e-12) <= 0.5 + 1e-9


def test_records_without_weight_and_rows_that_overflow_add_exactly_nothing():
    X, target = np.array([[1.0, 2.0], [1e200, 1.0], [0.5, -0.5]]), np.array([-1.0, 1.0, 1.0])
    coef, alone = np.ones(3), np.array([[0.5, -0.5]])
    weighted = sums_of(X, target, class_weight=np.array([0.0, 1.0]))
    assert (weighted.curvature(coef) == sums_of(alone).curvature(coef)).all()
    # Finite entries of one column whose sum is not.
    entries = [1e308, 1e308, 1.0, 0.5, -0.5], [0, 0, 1, 0, 1], [0, 3, 5]
    assert (sums_of(csr_array(entries)).curvature(coef) == sums_of(alone).curvature(coef)).all()


def test_rounding_stays_within_its_bound():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 6))
    rows = clipped_rows(X).astype(np.longdouble)
    plan = DoubleNoiseNewton(max_row_norm=1.5, ridge=0.1).plan(*X.shape)
    for size in (0.1, 10.0, 1e3):
        coef = size * rng.normal(size=7)
        scores = rows @ coef.astype(np.longdouble)
        decay = np.exp(-np.abs(scores))
        exact = rows.T @ ((decay / (1 + decay) ** 2)[:, np.newaxis] * rows) / len(X)
        error = np.linalg.norm((sums_of(X).curvature(coef) / len(X) - exact).astype(float), 2)
        assert error <= plan.rounding(float(np.linalg.norm(coef))) < 1e-8


def test_the_noise_covers_rounding_or_the_step_is_refused():
    plan = DoubleNoiseNewton().plan(500, 3)
    exact, padded = plan.direction_mechanism(2.0), plan.direction_mechanism(2.0, rounding=1e-6)
    assert padded.slack == pytest.approx(2 * 1e-6 * 2.0 / plan.ridge**2, rel=1e-5)
    more = plan.direction_multiplier * padded.slack
    assert padded.noise_std(3) - exact.noise_std(3) == pytest.approx(more, rel=1e-6)
    with pytest.raises(FloatingPointError, match="too small for rounding errors"):
        plan.direction_mechanism(2.0, rounding=plan.ridge)
    assert plan.direction_mechanism(0.0).noise_std(3) > 0


@pytest.mark.parametrize(("curvature", "n_classes"), [("upper_bound", 3), ("hessian", 2)])
def test_without_noise_or_clip_it_reaches_the_optimum_of_scikit_learn(curvature, n_classes):
    X, y = make_census(3000, random_state=0)
    X = X[:, [0, 2, 5, 20]]
    y = y + (X[:, 0] > 0.6) if n_classes == 3 else y
    settings = {"max_row_norm": 10.0, "clip": 1e3, "alpha": 1e-2, "max_iter": 300}
    model = DoubleNoiseNewton(epsilon=math.inf, curvature=curvature, **settings).fit(X, y)
    reference = LogisticRegression(C=1 / (len(X) * 1e-2), tol=1e-10, max_iter=5000).fit(X, y)
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(X), abs=1e-4)


def test_both_releases_of_every_step_are_charged():
    model = DoubleNoiseNewton(epsilon=2.0, direction_fraction=0.25, classes=[0, 1])
    X, y = make_census(400, random_state=0)
    plan, ledger = model.plan(*X.shape), model.fit(X, y).privacy_
    assert ledger.events == plan.ledger.events and ledger.n_releases == 2 * plan.n_iter == 40
    per_step = plan.gradient_multiplier**-2 + plan.direction_multiplier**-2
    assert ledger.mu() == pytest.approx(math.sqrt(20 * per_step))
    assert plan.direction_multiplier**-2 == pytest.approx(0.25 * per_step)
    assert 2.0 * (1 - 1e-6) < ledger.epsilon() <= 2.0
    assert model.trace_.n_iter == model.n_iter_ == 20


def test_the_noise_of_a_fit_is_that_of_its_trace_and_of_the_formula():
    X, y = make_census(400, random_state=0)
    model = DoubleNoiseNewton(classes=[0, 1], class_weight={0: 1.0, 1: 2.0})
    with record() as tape:
        model.fit(X, y)
    plan, trace = model.plan(*X.shape), model.trace_
    drawn = [release.sensitivity * release.event.noise_multiplier for release in tape.releases]
    assert drawn[::2] == pytest.approx(trace.gradient_noise_std, rel=1e-6)
    assert drawn[1::2] == pytest.approx(trace.direction_noise_std, rel=1e-6)
    assert drawn[0] == pytest.approx(plan.gradient_multiplier * plan.clip, rel=1e-6)
    per_unit = direction_sensitivity(2 * 0.25 * 3.0**2, plan.ridge, 400)
    for norm, std in zip(trace.gradient_norm, drawn[1::2], strict=True):
        assert std == pytest.approx(plan.direction_multiplier * per_unit * norm, rel=1e-5)
