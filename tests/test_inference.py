"""Standard errors and intervals of a private logistic regression."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import linalg, sparse
from scipy.special import expit
from sklearn.base import clone
from tapes import record

from dpglm import DiagonalPreconditioner, DPLinearSVM, DPLogisticRegression, seeded_noise
from dpglm.losses import Logistic
from dpglm.privacy.vault import triangle
from dpglm.schema import (
    BooleanColumn,
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Schema,
    Target,
)
from dpglm.study import plot
from dpglm.study.utility import ExpectedStandardErrors, expected_errors
from dpglm.sums.objective import Objective

pytestmark = pytest.mark.filterwarnings("ignore::dpglm.exceptions.PrivacyWarning")

COEF = np.array([1.0, -0.5, 0.0, 0.3])
SCHEMA = Schema(
    "people",
    [
        NumericColumn("age", 20, 70),
        CategoricalColumn("home", ["owned", "rented", "boat"]),
        BooleanColumn("member"),
    ],
    Target("paid", [0, 1]),
).additive(1)


MANY = Schema(
    "many",
    [
        NumericColumn("age", 18, 95),
        DateColumn("hired", "2020-02-28", "2022-12-31"),
        OrdinalColumn("grade", ["low", "mid", "high"]),
        BooleanColumn("member"),
        CategoricalColumn("open", [False, True]),
        NumericColumn("pay", 0, 100_000, scale="asinh", missing="indicator"),
    ],
    Target("paid", [0, 1]),
)


def drawn(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    return X, (rng.random(n) < expit(X @ COEF[:-1] + COEF[-1])).astype(int)


def people(n, seed=0):
    """A raw table, labels, and the coefficients of age, rented and member."""
    rng = np.random.default_rng(seed)
    frame = {
        "age": rng.uniform(20, 70, n),
        "home": rng.choice(["owned", "rented", "boat"], n, p=[0.6, 0.398, 0.002]),
        "member": rng.random(n) < 0.5,
    }
    odds = 0.02 * (frame["age"] - 20) - 0.5 * (frame["home"] == "rented") + 0.4 * frame["member"]
    return frame, (rng.random(n) < expit(odds - 0.3)).astype(int), [0.02, -0.5, 0.4]


def fitted(X, y, epsilon=8.0, seed=0, max_iter=4, **parameters):
    model = DPLogisticRegression(
        epsilon=epsilon, inference_fraction=0.5, max_iter=max_iter, classes=[0, 1], **parameters
    )
    with seeded_noise(seed):
        return model.fit(X, y)


def maximum_likelihood(X, y, alpha=0.0):
    """The oracle: Newton's method in plain numpy; coefficients, const first, and curvature."""
    rows, coef = np.column_stack([np.ones(len(X)), X]), np.zeros(X.shape[1] + 1)
    penalty = len(X) * alpha * np.diag([0.0, *np.ones(X.shape[1])])
    for _ in range(30):
        p = expit(rows @ coef)
        curvature = rows.T @ ((p * (1 - p))[:, np.newaxis] * rows)
        coef = coef - np.linalg.solve(curvature + penalty, rows.T @ (p - y) + penalty @ coef)
    return coef, curvature, penalty


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_without_privacy_it_is_maximum_likelihood(alpha):
    X, y = drawn(500)
    found = fitted(X, y, math.inf, alpha=alpha).inference()
    coef, curvature, penalty = maximum_likelihood(X, y, alpha)
    inverse = np.linalg.inv(curvature + penalty)
    assert found.names == ["const", "x1", "x2", "x3"]
    assert_allclose(found.params, coef, rtol=1e-9)
    assert_allclose(found.cov_params(), inverse @ curvature @ inverse, rtol=1e-8)
    assert not found.bse_privacy.any()


@pytest.mark.slow
def test_without_privacy_it_is_statsmodels():
    discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
    X, y = drawn(2000)
    found = fitted(X, y, math.inf).inference()
    result = discrete.Logit(y, np.column_stack([np.ones(len(X)), X])).fit(disp=0)
    for name in ("params", "bse", "pvalues"):
        assert_allclose(getattr(found, name), getattr(result, name), rtol=1e-8)
    assert_allclose(found.zvalues, result.tvalues, rtol=1e-8)
    for alpha in (0.05, 0.2):
        assert_allclose(found.conf_int(alpha), result.conf_int(alpha), rtol=1e-8)
    assert_allclose(found.cov_params(), result.cov_params(), rtol=1e-8)
    ours, theirs = found.t_test({"x1": 1.0, "x2": -2.0}), result.t_test([0.0, 1.0, -2.0, 0.0])
    assert_allclose(ours.value, theirs.effect, rtol=1e-8)
    assert_allclose(ours.std_error, theirs.sd[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "epsilon", "relation"), [(4000, 4.0, "zero_out"), (9000, 2.0, "replace_one")]
)
def test_intervals_cover_and_those_without_the_noise_do_not(n, epsilon, relation):
    hits, bare = [], []
    for seed in range(80):
        model = fitted(*drawn(n, seed), epsilon, seed, neighboring_relation=relation)
        found = model.inference()
        away = np.abs(found.params - np.roll(COEF, 1))
        hits.append(away < 1.96 * found.bse)
        bare.append(away < 1.96 * found.bse_sampling)
    assert abs(np.mean(hits) - 0.95) < 0.04
    assert np.mean(bare) < np.mean(hits)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_curvature_of_weighed_rows_is_that_of_plain_numpy(storage):
    X, y = drawn(300)
    rng = np.random.default_rng(1)
    basis, coef = rng.normal(size=(4, 4)), rng.normal(size=4)
    objective = Objective(storage(X), 2.0 * y - 1, Logistic()).in_basis(basis).weighed(2.0)
    rows = np.column_stack([X, np.ones(len(X))]) @ basis
    weights = np.minimum(1.0, 4.0 / np.square(rows).sum(axis=1))
    assert 0.2 < np.mean(weights < 1) < 0.9
    p = expit(rows @ coef)
    weighed = weights * p * (1 - p)
    for max_row_norm in (1.0, 0.3):
        # Weighed by the vault or not: nothing adds more than the bound.
        clipped = np.minimum(weighed, max_row_norm**2 / np.square(rows).sum(axis=1))
        assert (clipped < weighed).any() == (max_row_norm < 1)
        expected = rows.T @ (clipped[:, np.newaxis] * rows)
        assert_allclose(objective.second_moment(max_row_norm, False, coef), expected, rtol=1e-10)
    assert_allclose(objective.gradient_sum(coef, 2.0), rows.T @ (weights * (p - y)), rtol=1e-8)


def normal_curvature(v, mean_row, moment):
    """The mean of p (1 - p) z z' of normal rows z, by quadrature along v."""
    covariance = moment - np.outer(mean_row, mean_row)
    spread = math.sqrt(v @ covariance @ v)
    along = covariance @ v / spread
    nodes, masses = np.polynomial.hermite_e.hermegauss(80)
    p = expit(mean_row @ v + spread * nodes)
    masses = masses / masses.sum() * p * (1 - p)
    means = mean_row + np.outer(nodes, along)
    others = masses.sum() * (covariance - np.outer(along, along))
    return others + means.T @ (masses[:, np.newaxis] * means)


@pytest.mark.parametrize(
    "relation, width", [("zero_out", None), ("replace_one", None), ("zero_out", 0.005)]
)
def test_an_estimate_is_of_newton_steps_on_what_was_released(relation, width):
    X, y = drawn(2000)
    if width is not None:
        # A direction that is hardly seen: steps are safe there, the estimate by what is seen.
        X[:, 2] = X[:, 1] + width * X[:, 2]
        X = np.column_stack([X, np.random.default_rng(1).normal(size=(2000, 8))])
    X[:100] *= 8.0
    d = X.shape[1] + 1
    with record() as recorded:
        model = fitted(X, y, 300.0, neighboring_relation=relation)
    found, releases = model.trace_.debiased, recorded.releases[-12:]
    approach, curvature, gradients = releases[:3], releases[3], releases[4:]
    assert_allclose(approach[0].event.noise_multiplier, 2 * gradients[0].event.noise_multiplier)
    one = gradients[0].sensitivity / (2.0 if relation == "replace_one" else 1.0)
    rows = np.column_stack([X, np.ones(len(X))]) @ found.basis
    weights = np.minimum(1.0, one**2 / np.square(rows).sum(axis=1))
    assert 10 < np.sum(weights < 1) < 1000 and not found.left_out.any()
    assert np.sum(~found.seen) == (width is not None)
    at, steps = np.linalg.solve(found.basis, model.trace_.coef), []
    for gradient in approach:
        exact = rows.T @ (weights * (expit(rows @ at) - y))
        assert_allclose(gradient.exact, exact, rtol=1e-6, atol=1e-6)
        at = at - gradient.answer / (0.25 * len(X))
    p = expit(rows @ at)
    where, lengths = triangle(d)
    exact = rows.T @ ((weights * p * (1 - p))[:, np.newaxis] * rows)
    assert_allclose(curvature.exact, exact[where] * lengths, rtol=1e-6, atol=1e-6)
    noisy = np.zeros((d, d))
    noisy[where] = noisy.T[where] = curvature.answer / lengths
    # By how much the inverse of a noisy matrix is too large on average.
    std = curvature.event.noise_multiplier * curvature.sensitivity
    values, vectors = np.linalg.eigh(noisy)
    edge = std * math.sqrt(2 * d)
    raised = np.maximum(values, 2 * edge)
    raised += std**2 / 2 * (np.sum(1 / raised) + 1 / raised)
    likely = np.where(values > 2 * edge, raised, np.maximum(values, edge / 2))
    safe, likely = ((vectors * one) @ vectors.T for one in (raised, likely))
    noise = gradients[0].event.noise_multiplier * gradients[0].sensitivity
    white, start, seen = model.trace_.whitening, at, vectors[:, values > 2 * edge]
    moment = white.moment / white.moment[-1, -1]
    mean_row = found.basis.T @ (moment[:, -1] / white.scales)
    white_noise = white.noise_std / len(X) / white.moment[-1, -1]
    unscaled = (found.basis.T / white.scales).T
    sizes, axes = np.linalg.eigh(moment)
    clear = np.where(sizes > white_noise * math.sqrt(2 * d), sizes, 0.0)
    law = mean_row, unscaled.T @ (axes * clear) @ axes.T @ unscaled

    def moved(curvature, least, v):
        """The curvature at v, from that at the start, if whitened rows are normal."""
        move = seen @ (seen.T @ (v - start))
        by_chance = 2 * seen.shape[1] * (2 * noise / (0.25 * len(X))) ** 2
        end = v - min(1.0, by_chance / (move @ move) if move.any() else 1.0) * move
        # Without a floor there is no inverse where columns are collinear.
        there = [normal_curvature(one, *law) + 1e-7 * np.eye(d) for one in (end, start)]
        roots = [linalg.sqrtm(one) for one in there]
        change = roots[0] @ np.linalg.inv(roots[1])
        low, turned = np.linalg.eigh(change @ curvature @ change.T)
        return (turned * np.maximum(low, least * edge)) @ turned.T

    for gradient in gradients:
        exact = rows.T @ (weights * (expit(rows @ at) - y))
        assert_allclose(gradient.exact, exact, rtol=1e-3, atol=1e-3)
        steps.append((at, gradient.answer))
        at = at - np.linalg.solve(moved(safe, 2.0, at), gradient.answer)
    ends = [v - np.linalg.solve(moved(likely, 0.5, v), g) for v, g in steps[-6:]]
    estimate = np.mean(ends, axis=0)
    assert_allclose(found.curvature, moved(likely, 0.5, estimate), rtol=1e-3, atol=0.1)
    assert_allclose(found.inverse @ found.curvature, np.eye(d), atol=1e-9)
    assert_allclose(found.coef, found.basis @ estimate, rtol=1e-4)
    assert_allclose(found.noise_std, noise / math.sqrt(6), rtol=1e-6)


def test_errors_of_a_rare_category_are_those_at_the_truth_and_not_where_the_clip_leads():
    rng = np.random.default_rng(0)
    codes = rng.choice(3, 20_000, p=[0.6, 0.38, 0.02])
    X, odds = np.eye(3)[codes], np.array([0.3, -0.2, -1.0])
    y = (rng.random(len(X)) < expit(odds[codes])).astype(int)
    models = [fitted(X, y, 20.0, seed, 24) for seed in range(5)]
    rare = np.array([-1.0, 0.0, 1.0, 0.0])
    assert all(rare @ model.trace_.coef < -1.3 - 0.5 for model in models)  # log-odds
    tests = [model.inference().t_test({"x3": 1.0, "x1": -1.0}) for model in models]
    p, n = expit(odds), np.bincount(codes)
    exact = math.sqrt(sum(1 / (n[k] * p[k] * (1 - p[k])) for k in (0, 2)))
    # That of one fit is up to 1.2 times as large.
    assert_allclose(np.mean([found.sampling_error for found in tests]), exact, rtol=0.1)
    assert all(abs(found.value[0] + 1.3) < 3 * found.std_error[0] for found in tests)


def test_intervals_are_around_the_truth_where_a_column_nearly_tells_the_label():
    away = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.random((40_000, 2))
        y = (rng.random(len(X)) < expit(35 * X[:, 0] - 17.5)).astype(int)
        found = fitted(X, y, 8.0, seed, "auto").inference()
        assert not any(found.suppression_reasons)
        away.append((found.params[1] - 35) / found.bse[1])
    assert abs(np.mean(away)) < 1.5 and np.abs(away).max() < 4


def test_where_noise_hides_the_way_to_steep_slopes_nothing_is_said_of_others():
    rng = np.random.default_rng(0)
    X = 0.9 * rng.normal(size=(40_000, 5))
    y = (rng.random(len(X)) < expit(X @ [7.0, -5.0, 0.0, 3.0, -7.0])).astype(int)
    for epsilon, hidden in ((1.0, True), (8.0, False)):
        suppression_reasons = fitted(X, y, epsilon, 0, "auto").inference().suppression_reasons
        assert [bool(text) for text in suppression_reasons] == [hidden] * 6


def test_a_column_may_be_in_any_units_that_its_sum_stands_out_in():
    X, y = drawn(20_000)
    X[:, 0] = np.random.default_rng(1).random(len(X))
    found, small = (fitted(X * [unit, 1.0, 1.0], y).inference() for unit in (1.0, 0.1))
    assert small.suppression_reasons == [""] * 4
    assert_allclose(0.1 * small.bse, found.bse * [0.1, 1.0, 0.1, 0.1], rtol=0.03)
    # An indicator is as rare as it is.
    X[:, 0] = np.arange(len(X)) < 10
    assert fitted(X, y).inference().suppression_reasons[1]


def test_the_budget_holds_all_of_it_and_is_shared_as_asked():
    model = DPLogisticRegression(epsilon=2.0, inference_fraction=0.4, max_iter=5)
    plan = model.plan(10_000, 5)
    assert abs(plan.ledger.epsilon() - 2.0) < 1e-6
    spent = sum(release.event.mu**2 for release in plan.last)
    assert abs(spent / plan.budget.mu**2 - 0.4) < 1e-6
    assert "intervals" in plan.statement
    without = clone(model).set_params(inference_fraction=0.0).plan(10_000, 5)
    assert not without.last and without.ledger.n_releases == plan.ledger.n_releases - 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class_weight": {0: 1.0, 1: 2.0}}, "class_weight"),
        ({"max_contributions": 2}, r"max_contributions=None.*\. Use inference_fraction=0 for a f"),
        ({"sampling_rate": 0.1}, "sampling_rate=1"),
        ({"preconditioner": DiagonalPreconditioner()}, "full preconditioner"),
        ({"inference_fraction": 1.0}, "inference_fraction"),
        ({"epsilon": 0.01}, "too small for intervals"),
        ({"classes": [0, 1, 2]}, "two classes"),
    ],
)
def test_what_no_interval_is_valid_for_is_refused_before_the_fit(changes, words):
    model = DPLogisticRegression(inference_fraction=0.5).set_params(**changes)
    with pytest.raises(ValueError, match=words):
        model.plan(5000, 10, n_classes=len(model.classes or [0, 1]))


def test_weights_of_rows_and_fits_without_a_fraction_are_refused():
    X, y = drawn(200)
    with pytest.raises(ValueError, match="sample_weight"):
        DPLogisticRegression(inference_fraction=0.5).fit(X, y, sample_weight=np.ones(200))
    with pytest.raises(ValueError, match="inference_fraction"):
        DPLogisticRegression(max_iter=2).fit(X, y).inference()
    assert not hasattr(DPLinearSVM, "inference")


def test_rows_of_a_frame_are_taken_by_the_names_of_their_columns():
    pd = pytest.importorskip("pandas")
    X, y = drawn(3000)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    found, turned = fitted(frame, y).inference(), frame[["c", "a", "b"]][:20]
    assert_allclose(found.predict(turned).value, found.predict(X[:20]).value)
    effects = [found.risk_difference(rows, "b", 1.0, 0.0).value for rows in (turned, X[:20])]
    assert_allclose(*effects)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_single_column_without_intercept_has_an_interval(relation):
    X, y = drawn(3000)
    model = fitted(X[:, :1], y, fit_intercept=False, neighboring_relation=relation)
    found, exact = model.inference(), fitted(X[:, :1], y, math.inf, fit_intercept=False)
    assert found.suppression_reasons == [""]
    assert abs(found.params - exact.inference().params) < 4 * found.bse_privacy
    # One record in place of another moves a single square by no more than one that vanishes.
    model.set_params(epsilon=1.0)
    assert model.plan(1350, 1).expected_columns == (1, 1)


@pytest.mark.parametrize(
    ("n", "epsilon", "relation", "words"),
    [
        (400, 1.6, "zero_out", "too large for this number of columns"),
        (5000, 0.1, "zero_out", "too large for this number of columns"),
        (5000, 0.1, "replace_one", "The budget is too small for intervals"),
        (5000, 0.6, "replace_one", "too large for this number of columns"),
    ],
)
@pytest.mark.filterwarnings("ignore:Expect intervals:dpglm.exceptions.UtilityWarning")
def test_where_coverage_was_not_to_be_had_all_is_refused(n, epsilon, relation, words):
    X, y = drawn(n)
    X = np.column_stack([X, np.random.default_rng(1).normal(size=(n, 2))])
    try:
        found = fitted(X, y, epsilon, neighboring_relation=relation).inference().suppression_reasons
    except ValueError as error:
        found = [str(error)]
    assert all(words in text for text in found)


def test_collinear_columns_are_refused_and_what_they_share_is_not():
    X, y = drawn(3000)
    found = fitted(np.column_stack([X, X[:, 0]]), y, 50.0).inference()
    assert [bool(text) for text in found.suppression_reasons] == [False, True, False, False, True]
    both = found.t_test({"x1": 0.5, "x4": 0.5})
    assert both.suppression_reasons == [""]
    assert abs(2 * both.value[0] - 1.0) < 5 * both.std_error[0] * 2


def test_parameters_are_those_of_the_table_and_what_is_rare_is_suppressed():
    frame, y, truth = people(8000)
    # As a plain array, of which units are found: only then a rare column is left out.
    X = np.asarray(SCHEMA.transformer().fit_transform(frame))
    found = fitted(X, y, 8.0).inference(schema=SCHEMA)
    assert found.names == ["const", "age", "home_rented", "home_boat", "member"]
    kept = [1, 2, 4]
    assert "left out of the model" in found.suppression_reasons[3]
    assert not any(found.suppression_reasons[j] for j in kept)
    assert (np.abs(found.params[kept] - truth) < 4 * found.bse[kept]).all()
    # The same in other units: ten years, from the columns in [0, 1].
    ten = found.t_test({"age": 10.0})
    assert_allclose(ten.value, 10 * found.params[1])
    assert_allclose(ten.std_error, 10 * found.bse[1])
    with pytest.raises(ValueError, match="no parameter"):
        found.t_test({"agee": 1.0})

    values, added = found.shape_function("age")
    assert_allclose(added.value, found.params[1] * (values - 20), rtol=1e-9, atol=1e-12)
    reasons = found.shape_function("home")[1].suppression_reasons
    assert reasons[2] and not reasons[1]

    # A risk difference, and its error by finite differences of the coefficients.
    rows = {name: list(column[:50]) for name, column in frame.items()}
    rows["home"] = ["owned"] * 50
    effect = found.risk_difference(rows, "member", True, False)
    sides = []
    for member in (True, False):
        encoded = SCHEMA.transformer().fit_transform({**rows, "member": [member] * 50})
        sides.append(np.column_stack([encoded, np.ones(50)]))
    coef = found.released.coef

    def difference(at):
        return expit(sides[0] @ at).mean() - expit(sides[1] @ at).mean()

    gradient = [(difference(coef + h) - difference(coef - h)) / 2e-5 for h in 1e-5 * np.eye(6)]
    steps = gradient @ found.released.basis @ found.released.inverse
    assert_allclose(effect.value, difference(coef))
    assert_allclose(
        effect.privacy_error, found.released.noise_std * np.linalg.norm(steps), rtol=1e-6
    )
    p = found.predict(rows)
    given = np.array([not text for text in p.suppression_reasons])
    assert given.mean() > 0.5 and np.isnan(p.value[~given]).all()
    inside = (p.low > 0) & (p.low < p.value) & (p.value < p.high) & (p.high < 1)
    assert inside[given].all()


def test_categories_are_compared_with_the_first_common_one_or_the_one_that_is_asked_for():
    frame, y, _ = people(4000)
    for home, first in (("owned", "rented"), ("boat", "owned")):
        # Where the first two are about as frequent, and where the first is rare.
        swapped = [{home: first, first: home}.get(value, value) for value in frame["home"]]
        X = SCHEMA.transformer().fit_transform({**frame, "home": swapped})
        model = fitted(X, y, 20.0)
        found = model.inference(schema=SCHEMA)
        reference = "owned" if home == "owned" else "rented"
        assert f"home_{reference}" not in found.names and len(found.names) == 5
        assert f"References: home {reference}." in str(found.summary())
        assert found.reference_categories == {"home": reference}
    asked = model.inference(schema=SCHEMA, references={"home": "boat"})
    assert asked.names == ["const", "age", "home_owned", "home_rented", "member"]
    pair = {"home_boat": 1.0}, {"home_boat": 1.0, "home_owned": -1.0}
    assert_allclose(asked.params[2], -found.t_test(pair[1]).value[0])
    assert_allclose(asked.shape_function("home")[1].value[2], 0.0)
    for wrong, words in (
        ({"home": "tent"}, "'tent' is no category of 'home'; choose from .'owned'"),
        ({"age": 20}, "'age' must be a categorical column"),
        # It has categories, which are not compared with a reference.
        ({"member": True}, "'member' must be a categorical column"),
        ({"hom": "boat"}, "'hom' must be a categorical column"),
        ("boat", "references='boat' must be a dict"),
    ):
        with pytest.raises(ValueError, match=words):
            model.inference(schema=SCHEMA, references=wrong)
    with pytest.raises(ValueError, match="must be a categorical column"):
        model.inference(references={"home": "boat"})


def test_a_schema_must_have_the_names_of_the_columns_that_were_fitted():
    pd = pytest.importorskip("pandas")
    frame, y, _ = people(400)
    encoder = SCHEMA.transformer()
    X = pd.DataFrame(encoder.fit_transform(frame), columns=encoder.get_feature_names_out())
    assert len(fitted(X, y, math.inf).inference(schema=SCHEMA).names) == 5
    for other in (X[X.columns[::-1]], X.rename(columns={"member": "guest"})):
        with pytest.raises(ValueError, match="not those that schema 'people' encodes"):
            fitted(other, y, math.inf).inference(schema=SCHEMA)


def test_labels_that_columns_separate_are_refused_with_and_without_privacy():
    X = np.random.default_rng(0).random((20_000, 2))
    for epsilon in (2.0, 8.0, math.inf):
        found = fitted(X, (X[:, 0] > 0.5).astype(int), epsilon, 0, "auto").inference()
        assert all("separate the labels" in text for text in found.suppression_reasons)
        for hidden in (found.params, found.conf_int(), found.predict(X[:2]).value):
            assert np.isnan(hidden).all()
    # In one category, all labels are the same; that says nothing of the others.
    X, y = drawn(500)
    rare = np.arange(500) < 20
    y[rare] = 1
    found = fitted(np.column_stack([X, rare]), y, math.inf).inference()
    assert [bool(text) for text in found.suppression_reasons] == [False, False, False, False, True]
    kept, _, _ = maximum_likelihood(X[~rare], y[~rare])
    assert_allclose(found.params[:4], kept, rtol=1e-4)


def test_errors_add_up_and_levels_and_covariance_agree():
    X, y = drawn(3000)
    model = fitted(X, y)
    found = model.inference()
    assert len(repr(model.trace_.debiased)) < 100
    assert_allclose(np.hypot(found.bse_sampling, found.bse_privacy), found.bse)
    assert_allclose(np.sqrt(np.diag(found.cov_params())), found.bse)
    assert_allclose(found.conf_int(0.2), model.inference(level=0.8).conf_int())
    assert (found.conf_int(0.01)[:, 0] < found.conf_int()[:, 0]).all()
    with pytest.raises(ValueError, match="level"):
        model.inference(level=1.0)


def test_records_for_a_width_are_those_that_have_it():
    pair, names = (np.array([0.1, 0.02, np.nan]), np.array([0.05, 0.2, np.nan])), list("abc")
    errors = ExpectedStandardErrors(names, *pair, 4000)
    needed = errors.n_samples_for(0.1, level=0.9)
    sampling = errors.sampling * np.sqrt(4000 / needed)
    privacy = errors.privacy * 4000 / needed
    assert_allclose(ExpectedStandardErrors(names, sampling, privacy, 1).width(0.9)[:2], 0.1)
    assert np.isnan(needed[2])


def test_widths_are_expected_from_public_rows(monkeypatch):
    X, y = drawn(9000)
    X = np.column_stack([X, np.arange(len(X)) % 400 == 0])
    public, private = (X[:2000], y[:2000]), (X[2000:], y[2000:])
    found = fitted(*private, 4.0).inference()
    model = DPLogisticRegression(epsilon=4.0, inference_fraction=0.5, max_iter=4)
    accuracy = np.mean((X[:, :3] @ COEF[:-1] + COEF[-1] > 0) == y)
    guess = {"n_samples": 7000, "accuracy": accuracy, "n_repeats": 2, "random_state": 0}
    errors = expected_errors(model, *public, **guess)
    assert errors.names == found.names
    hidden = [*map(bool, found.suppression_reasons)]
    assert np.isnan(errors.width()).tolist() == [False] * 4 + [True] == hidden
    assert_allclose(errors.width()[:4], np.diff(found.conf_int())[:4, 0], rtol=0.2)
    # Of many records, few stand in for all; sampling errors are those of all.
    monkeypatch.setattr("dpglm.study.utility._MOST_FITTED", 3000)
    few = expected_errors(model, *public, **guess)
    assert_allclose(few.width()[:4], errors.width()[:4], rtol=0.15)
    with pytest.raises(ValueError, match="inference_fraction"):
        expected_errors(clone(model).set_params(inference_fraction=0.0), *public, **guess)


def test_the_table_prints_as_text_html_and_a_frame():
    frame, y, _ = people(8000)
    found = fitted(SCHEMA.transformer().fit_transform(frame), y, 8.0).inference(schema=SCHEMA)
    summary = found.summary()
    text = str(summary)
    assert all(x in text for x in ("8,000", "epsilon 8", "zero_out", "home_boat", "log-odds"))
    assert max(map(len, text.splitlines())) <= 100
    table = summary.to_frame()
    assert list(table.index) == found.names and table.loc["home_boat", "mark"] == "suppressed"
    assert_allclose(table["std err"], found.bse)
    n_rows = len(summary.metadata) + 2 + len(found.names)  # with the unit and the head
    assert summary._repr_html_().count("<tr>") == n_rows
    assert len(repr(found)) < 100
    axes = plot(found.estimates).axes_[0]
    drawn_names = [label.get_text() for label in axes.get_yticklabels()]
    reasons = zip(found.names, found.suppression_reasons, strict=True)
    assert drawn_names == [n for n, text in reasons if not text and n != "const"]
    assert "suppressed" in axes.get_xlabel()


def test_what_is_hidden_is_printed_with_its_reason():
    X, y = drawn(3000)
    X[:, 2] *= np.arange(3000) % 300 == 0
    found = fitted(X, y).inference()
    assert any(found.suppression_reasons)
    text = str(found.predict(X[:2]))
    assert "\nsuppressed: " in text
    two = replace(found.estimates, suppression_reasons=["one", "", "another", "one"])
    assert str(two).endswith("suppressed: one\nsuppressed: another")
    none = replace(found.estimates, suppression_reasons=["one"] * len(found.names))
    assert str(none) == "Unit  log-odds per unit\nAll numbers are suppressed.\nsuppressed: one"
    for level in (0.9, 95):
        with pytest.raises(ValueError, match=f"alpha={level} .* at most 0.5; it is 1 - level"):
            found.conf_int(level)


def test_mean_risks_are_hidden_where_the_scores_of_their_rows_are():
    X, y = drawn(3000)
    # Two columns that make up the constant: neither is known, the effect of x3 is.
    share = np.random.default_rng(1).random(3000) < 0.5
    rows = np.column_stack([X, share, ~share])
    found = fitted(rows, y).inference()
    assert found.suppression_reasons[0] and not found.suppression_reasons[3]
    public = np.column_stack([X[:50], np.ones((50, 2))])
    difference, again = (found.risk_difference(r, "x3", 1.0, 0.0) for r in (public, rows[:50]))
    assert difference.suppression_reasons == [found.suppression_reasons[0]]
    assert np.isnan([difference.value, difference.low, difference.std_error]).all()
    # Of rows as there are, the score is known all the same.
    assert again.suppression_reasons == [""] and again.std_error > 0.001
    # Rows whose unknown scores cancel in the mean are unknown; few of many do not matter.
    rare = np.column_stack([X, np.random.default_rng(2).random(3000) < 0.0005])
    found = fitted(rare, y).inference()
    assert found.suppression_reasons[4]
    pairs = np.column_stack([np.repeat(X[:25], 2, axis=0), np.tile([5.0, -5.0], 25)])
    assert found.risk_difference(pairs, "x1", 1.0, 0.0).suppression_reasons[0]
    for value, reference in ((0.0, 1.0), (1.0, 0.0)):
        assert found.risk_difference(public[:, :4], "x4", value, reference).suppression_reasons[0]
    pairs = np.column_stack([X, np.arange(3000) < 2])
    assert found.risk_difference(pairs, "x1", 1.0, 0.0).suppression_reasons == [""]


def test_a_risk_difference_refuses_a_category_that_is_not_listed():
    frame, y, _ = people(2000)
    found = fitted(SCHEMA.transformer().fit_transform(frame), y, math.inf).inference(schema=SCHEMA)
    with pytest.raises(ValueError, match=r"'Boat' is no value of 'home'; choose from .'owned'"):
        found.risk_difference(frame, "home", "Boat", "owned")
    with pytest.raises(TypeError, match="Give a data frame"):
        found.risk_difference(SCHEMA.transformer().fit_transform(frame), "home", "boat", "owned")
    with pytest.raises(ValueError, match="leave reference categories out"):
        found.t_test({"home_owned": 1.0})


def test_what_is_no_contrast_is_refused_in_words():
    frame, y, _ = people(400)
    found = fitted(SCHEMA.transformer().fit_transform(frame), y, math.inf).inference(schema=SCHEMA)
    for wrong in ("age", [], ["age"], None, [0.0, 1.0], np.eye(5)):
        with pytest.raises(ValueError, match=r"(?s)contrasts=.* must be a dict of weights"):
            found.t_test(wrong)
    for weight in ("x", math.nan, math.inf):
        with pytest.raises(ValueError, match=r"weight of age=.* must be a number"):
            found.t_test([{"age": weight}])


def test_a_risk_is_of_a_row_or_more_and_of_a_column_that_is_named():
    X, y = drawn(500)
    found = fitted(X, y).inference()
    for call in (lambda rows: found.risk_difference(rows, "x1", 1.0, 0.0), found.predict):
        with pytest.raises(ValueError, match=r"rows have shape \(0, 3\); give a row or more, of 3"):
            call(X[:0])
    pd = pytest.importorskip("pandas")
    for swapped in (X, pd.DataFrame(X)):
        with pytest.raises(ValueError, match=r"column=a .* must be one of .'x1'.*rows come before"):
            found.risk_difference("x1", swapped, 1.0, 0.0)


@pytest.fixture(scope="module")
def many():
    """A raw table of several kinds of columns, and the inference of it by each schema."""
    rng, n = np.random.default_rng(0), 3000
    table = {
        "age": rng.uniform(18, 95, n),
        "hired": np.datetime64("2020-02-28") + rng.integers(0, 1000, n),
        "grade": rng.choice(["low", "mid", "high"], n),
        "member": rng.random(n) < 0.5,
        "open": rng.random(n) < 0.5,
        "pay": np.where(rng.random(n) < 0.2, np.nan, rng.exponential(20_000, n)),
    }
    y = (rng.random(n) < 0.3 + 0.4 * table["member"]).astype(int)

    def inference(schema, **options):
        X = schema.transformer().fit_transform(table)
        return fitted(X, y, math.inf, **options).inference(schema=schema)

    return table, inference


def test_values_are_those_of_the_table(many):
    table, inference = many
    schema = MANY.additive(4)
    found = inference(schema)
    assert "hired (2020-02-28 to 2022-12-31)" in found.names and "pay (0 to 100000)" in found.names
    days, added = found.shape_function("hired")
    assert days.dtype == "datetime64[D]" and added.names == days.astype(str).tolist()
    assert added.names[::32] == ["2020-02-28", "2022-12-31"]
    rows = {name: [values[1]] * len(days) for name, values in table.items()} | {"hired": days}
    X = schema.transformer().fit_transform(rows)
    assert_allclose(added.value, (X - X[0]) @ found.released.coef[:-1], atol=1e-12)
    for name, kept in (("grade", ["low", "mid", "high"]), ("member", [False, True])):
        values, added = found.shape_function(name)
        assert values.tolist() == kept and added.names == [*map(str, kept)]
        step = found.params[found.names.index(name)]
        assert_allclose(added.value, step * np.arange(len(kept)), atol=1e-12)
    assert found.shape_function("pay")[1].names[-2:] == ["68287.75", "100000"]


def test_special_values_are_compared_with_the_lower_end_of_the_curve(many):
    special = {"age": [0, 95], "pay": [0, 200_000]}
    columns = [replace(c, special_values=special.get(c.name, ())) for c in MANY.numeric]
    schema = replace(MANY, columns=[*columns, BooleanColumn("member")]).additive(4)
    turn = np.arange(3000) % 8
    pay = np.sinh(np.random.default_rng(0).uniform(0, np.arcsinh(100_000), 3000))
    table = many[0] | {
        "age": np.where(turn < 6, many[0]["age"], np.where(turn == 6, 0, 95)),
        "pay": np.choose(turn, [0, 200_000, np.nan, *[pay] * 5]),
    }
    X = schema.transformer().fit_transform(table)
    y = (np.arange(3000) % 7 < 3).astype(int)
    found = fitted(X, y, math.inf).inference(schema=schema)
    coef = dict(
        zip(schema.transformer().get_feature_names_out(), found.released.coef, strict=False)
    )
    value = dict(zip(found.names, found.params, strict=True))
    for name in ("age = 0", "age = 95", "pay = 0", "pay = 200000", "pay (missing)"):
        column = name.split()[0]
        # The curve at its lower end, where all hats are zero.
        lower = -2 * coef[column]
        assert value[name] == pytest.approx(coef[name] - lower)
    assert value["age (18 to 95)"] == pytest.approx(4 * coef["age"])
    ages, added = found.shape_function("age")
    assert ages[0] == 0 and ages[-1] == 95 and len(added.value) == 34
    # The same baseline as in the summary: the curve at 18, and not the special value below it.
    assert added.value[[0, -1]] == pytest.approx([value["age = 0"], value["age = 95"]])
    assert added.value[ages == 18] == pytest.approx(0, abs=1e-9)
    assert found.risk_difference(table, "age", 0, 95).names == ["age: 0 against 95"]
    with pytest.raises(ValueError, match="1 is no value of 'age'; give one from 18 to 95"):
        found.risk_difference(table, "age", 1, 95)


def test_a_risk_difference_refuses_a_date_out_of_range_and_compares_what_is_missing(many):
    table, inference = many
    found = inference(MANY.additive(1))
    with pytest.raises(ValueError, match=r"'2030-01-01' .* from 2020-02-28 to 2022-12-31"):
        found.risk_difference(table, "hired", "2030-01-01", "2021-01-01")
    found = found.risk_difference(table, "pay", None, 5)
    assert found.names == ["pay: None against 5"] and found.value != 0
