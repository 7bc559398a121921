"""Newton with double noise: the sensitivity of a direction, its law, the curvature, the budget."""

import math

import numpy as np
import pytest
from planted_bugs import half_noise
from scipy.sparse import csr_array
from scipy.special import expit, softmax
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_class_weight_classifiers

from dpglm.audit import CanaryScores, audit_scores
from dpglm.baselines import newton
from dpglm.baselines.newton import CurvatureSums, DoubleNoiseNewton, direction_sensitivity
from dpglm.datasets import make_census
from dpglm.privacy import vault as vaults
from dpglm.privacy.gaussian import gdp_epsilon
from dpglm.privacy.noise import entropy_source

RELATIONS = ["zero_out", "replace_one", "add_or_remove_one"]
DELTA = 1e-6


def n_ref(relation, n_samples):
    return n_samples if relation == "add_or_remove_one" else None


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
    for _ in range(3000):
        n, d = rng.integers(1, 12), rng.integers(1, 5)
        ridge, record = 10 ** rng.uniform(-3, 1), 10 ** rng.uniform(-2, 1)
        rows = rng.normal(size=(n, d)) * (rng.random((n, 1)) < rng.random())
        rows[0] = rng.normal(size=d)
        others = rows.copy()
        others[0] = 0.0 if relation == "zero_out" else rng.normal(size=d) * rng.integers(2)
        for table in (rows, others):
            norms = np.linalg.norm(table, axis=1, keepdims=True)
            table *= math.sqrt(record) / np.maximum(norms, math.sqrt(record))
        rows[0] *= math.sqrt(record) / np.linalg.norm(rows[0])
        ratio = inverse_shift(rows, others, ridge) / direction_sensitivity(record, ridge, n)
        largest = max(largest, ratio)
    assert 0.999 < largest <= 1 + 1e-9


def sums_of(X, target=None, *, n_outputs=1, **settings):
    target = np.ones(X.shape[0]) if target is None else target
    given = {"fit_intercept": True, "row_bound": 1.5, "upper_bound": False}
    return CurvatureSums(None, X, target, n_outputs=n_outputs, **{**given, **settings})


def clipped_rows(X, row_bound=1.5):
    rows = np.column_stack([X, np.ones(len(X))])
    return rows * np.minimum(1, row_bound / np.linalg.norm(rows, axis=1, keepdims=True))


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


def test_rounding_stays_within_its_bound():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 6))
    rows = clipped_rows(X).astype(np.longdouble)
    plan = DoubleNoiseNewton(row_bound=1.5, ridge=0.1).plan(*X.shape)
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
    assert padded.noise_std(3) - exact.noise_std(3) == pytest.approx(
        plan.direction_multiplier * padded.slack, rel=1e-6
    )
    with pytest.raises(FloatingPointError, match="too small beside rounding errors"):
        plan.direction_mechanism(2.0, rounding=plan.ridge)
    assert plan.direction_mechanism(0.0).noise_std(3) > 0


@pytest.mark.parametrize(
    "parameters", [{"ridge": 1e-15}, {"alpha": 1e300}, {"class_weight": {0: 1e30}}]
)
def test_a_ridge_that_rounding_hides_is_refused_before_the_data_are_touched(parameters):
    with pytest.raises(ValueError, match="too small beside rounding errors"):
        DoubleNoiseNewton(**parameters).plan(500, 3)


def test_rounding_that_no_noise_covers_is_refused_before_the_data_are_touched():
    model = DoubleNoiseNewton(clip=1e49, ridge=1e-49, row_bound=1e-40)
    with pytest.raises(ValueError, match=r"times the noise that hides a record\. Raise ridge"):
        model.plan(4, 1)


@pytest.mark.parametrize("curvature", ["upper_bound", "hessian"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_noise_or_clip_it_reaches_the_optimum_of_scikit_learn(curvature, n_classes):
    X, y = make_census(3000, random_state=0)
    X = X[:, [0, 2, 5, 20]]
    y = y + (X[:, 0] > 0.6) if n_classes == 3 else y
    model = DoubleNoiseNewton(
        epsilon=math.inf, curvature=curvature, row_bound=10.0, clip=1e3, alpha=1e-2, max_iter=300
    ).fit(X, y)
    reference = LogisticRegression(C=1 / (len(X) * 1e-2), tol=1e-10, max_iter=5000).fit(X, y)
    assert model.predict_proba(X) == pytest.approx(reference.predict_proba(X), abs=1e-4)


@pytest.mark.parametrize("relation", RELATIONS)
def test_both_releases_of_every_step_are_charged(relation):
    model = DoubleNoiseNewton(
        epsilon=2.0, neighboring_relation=relation, n_ref=n_ref(relation, 400), direction_share=0.25
    )
    X, y = make_census(400, random_state=0)
    plan = model.plan(*X.shape)
    ledger = model.set_params(classes=[0, 1]).fit(X, y).privacy_
    assert ledger.events == plan.ledger.events and ledger.n_releases == 2 * plan.n_iter == 40
    per_step = plan.gradient_multiplier**-2 + plan.direction_multiplier**-2
    assert ledger.mu() == pytest.approx(math.sqrt(20 * per_step))
    assert plan.direction_multiplier**-2 == pytest.approx(0.25 * per_step)
    assert ledger.epsilon(DELTA) == pytest.approx(2.0, rel=1e-6) and ledger.epsilon(DELTA) <= 2.0
    assert model.trace_.n_iter == model.n_iter_ == 20


def noise_drawn(monkeypatch):
    """Standard deviations that a fit draws, in order."""
    drawn, original = [], vaults.GaussianSum.release

    def release(self, value, rng):
        drawn.append(self.noise_std(value.size))
        return original(self, value, rng)

    monkeypatch.setattr(vaults.GaussianSum, "release", release)
    return drawn


def test_the_noise_of_a_fit_is_that_of_its_trace_and_of_the_formula(monkeypatch):
    drawn = noise_drawn(monkeypatch)
    X, y = make_census(400, random_state=0)
    model = DoubleNoiseNewton(classes=[0, 1], class_weight={0: 1.0, 1: 2.0}).fit(X, y)
    plan, trace = model.plan(*X.shape), model.trace_
    assert drawn[::2] == trace.gradient_noise_std and drawn[1::2] == trace.direction_noise_std
    assert drawn[0] == pytest.approx(plan.gradient_multiplier * plan.clip, rel=1e-6)
    per_unit = direction_sensitivity(2 * 0.25 * 3.0**2, plan.ridge, 400)
    for norm, std in zip(trace.gradient_norm, drawn[1::2], strict=True):
        assert std == pytest.approx(plan.direction_multiplier * per_unit * norm, rel=1e-5)


def gradient_audit(relation, seed=0):
    """Score the canaries of one fit by its first gradient, read off the release."""
    m, flips, clip = 500, relation == "replace_one", 0.1
    coins = np.random.default_rng(seed).random(m) < 0.5
    model = DoubleNoiseNewton(
        epsilon=gdp_epsilon(2.0, DELTA), neighboring_relation=relation, n_ref=n_ref(relation, m),
        clip=clip, max_iter=1, direction_share=0.75, fit_intercept=False, classes=[0, 1],
    )  # fmt: skip
    X = np.diag(np.ones(m) if flips else coins.astype(float))
    released, original = [], vaults.GaussianSum.release

    def release(self, value, rng):
        noisy, event = original(self, value, rng)
        released.append(noisy)
        return noisy, event

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vaults.GaussianSum, "release", release)
        model.fit(X, coins.astype(int) if flips else np.ones(m, dtype=int))
    plan = model.plan(m, m)
    scores = -released[0] / (plan.gradient_multiplier * plan.budget.sensitivity(clip))
    mu = 1 / plan.gradient_multiplier
    assert mu == pytest.approx(1.0, rel=1e-6)
    return audit_scores(CanaryScores(scores + flips * mu / 2, coins, shift=mu, mu=mu))


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_one_run_audit_of_the_gradients_passes(relation):
    result = gradient_audit(relation)
    assert result.passed, result.violations
    assert result.shift > 0.5, "the canaries must show"


def test_half_the_noise_on_the_gradients_is_caught(monkeypatch):
    half_noise(monkeypatch)
    assert not gradient_audit("zero_out").passed


def direction_audit(relation, seed=0):
    """Score one record on one feature by many directions of the same gradient.

    In one dimension a record moves the direction by the whole sensitivity if all others are null,
    so that the shift is mu. Under replace-one it becomes null, which is the worst it can do.
    """
    model = DoubleNoiseNewton(
        epsilon=gdp_epsilon(math.sqrt(2), DELTA), neighboring_relation=relation,
        n_ref=n_ref(relation, 3), direction_share=0.5, max_iter=1, row_bound=2.0, ridge=0.4,
        fit_intercept=False,
    )  # fmt: skip
    plan, gradient, coef = model.plan(3, 1), np.array([0.7]), np.zeros(1)
    coins = np.random.default_rng(seed).random(500) < 0.5
    X, rng, released = np.array([[5.0], [0.0], [0.0]]), entropy_source(), []
    for present in coins:
        sums = sums_of(X[0 if present else 1 :], fit_intercept=False, row_bound=2.0)
        direction = gradient / (sums.curvature(coef)[0, 0] / 3 + plan.ridge)
        released.append(plan.direction_mechanism(0.7).release(direction, rng)[0][0])
    std = plan.direction_mechanism(0.7).noise_std(1)
    scores = (0.7 / plan.ridge - np.array(released)) / std
    mu = 1 / plan.direction_multiplier
    assert mu == pytest.approx(1.0, rel=1e-6)
    return audit_scores(CanaryScores(scores, coins, shift=mu, mu=mu))


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_audit_of_the_directions_passes(relation):
    result = direction_audit(relation)
    assert result.passed, result.violations
    assert result.shift > 0.5, "the record must show"


def test_half_the_noise_on_the_directions_is_caught(monkeypatch):
    half_noise(monkeypatch)
    assert not direction_audit("zero_out").passed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda record, ridge, n: record / (ridge * (n * ridge + record)) / 2,
        lambda record, ridge, n: record / (n * ridge + record),
        lambda record, ridge, n: record / 4 / (ridge * (n * ridge + record / 4)),
    ],
)
def test_a_wrong_sensitivity_of_the_directions_is_caught(monkeypatch, wrong):
    """Half of it, a forgotten 1 / ridge, a row bound taken for the square of a half."""
    monkeypatch.setattr(newton, "direction_sensitivity", wrong)
    assert not direction_audit("zero_out").passed


def test_rows_that_are_not_clipped_are_caught(monkeypatch):
    monkeypatch.setattr(CurvatureSums, "_clipped", lambda self, X: X)
    assert not direction_audit("zero_out").passed


def test_it_learns_more_with_more_budget():
    X, y = make_census(6000, random_state=1)
    scores = [
        np.mean([DoubleNoiseNewton(epsilon=e).fit(X, y).score(X, y) for _ in range(2)])
        for e in (0.01, 0.5, 30.0)
    ]
    assert scores[0] < scores[1] < scores[2]


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("curvature", "exact", "curvature='exact' is unknown"),
        ("ridge", 0.0, "ridge=0.0 must be a number above"),
        ("clip", math.inf, "clip=inf must be a number above"),
        ("row_bound", "auto", "row_bound='auto' must be a number above"),
        ("direction_share", 1.0, "direction_share=1.0 must be a number above 0"),
        ("step", -1, "step=-1 must be a number above 0"),
        ("max_iter", 0, "max_iter=0 must be a whole number"),
        ("epsilon", 1e-12, "epsilon=1e-12 .* is too small for 20 steps"),
    ],
)
def test_bad_parameters_are_refused_before_the_data_are_touched(parameter, value, message):
    model = DoubleNoiseNewton(delta=1e-12).set_params(**{parameter: value})
    with pytest.raises(ValueError, match=message):
        model.plan(100, 3)


def test_blocks_of_rows_are_refused_in_words():
    with pytest.raises(TypeError, match="DoubleNoiseNewton needs all rows at once"):
        DoubleNoiseNewton(classes=[0, 1]).fit([(np.zeros((3, 1)), [0, 1, 1])])


def test_the_reason_for_the_one_expected_failure_holds():
    """With 50 rows, 1,000 steps and a weight of 1,000, every direction is almost all noise."""
    X, y = make_blobs(centers=2, random_state=0, cluster_std=20)
    X, _, _, _ = train_test_split(X, y, test_size=0.5, random_state=0)
    plan = DoubleNoiseNewton(max_iter=1000, class_weight={0: 1000.0}).plan(*X.shape)
    longest = 1 / plan.ridge
    assert plan.direction_mechanism(1.0).noise_std(3) > 50 * longest
    check_class_weight_classifiers("DoubleNoiseNewton", DoubleNoiseNewton(epsilon=math.inf))
