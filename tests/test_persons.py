"""Weights of rows, and several rows of one person: a record is what the guarantee speaks of."""

import math
import warnings
from operator import methodcaller

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, STEPS, augmented, line_terms, problem
from scipy.sparse import csr_array
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import PredefinedSplit, cross_validate
from sklearn.utils.estimator_checks import _check_sample_weight_equivalence
from strategies import OURS, under
from tapes import record, replay

from dpglm import DPLogisticRegression, FullPreconditioner, baselines, seeded_noise
from dpglm.audit.recorder import largest_ratio
from dpglm.exceptions import PrivacyWarning
from dpglm.losses import Hinge, Logistic
from dpglm.sums.objective import Objective
from dpglm.sums.reference import parts_of_groups

N, D, SIZE = 240, 4, 3
RNG = np.random.default_rng(0)
X, _, _, _ = problem(N, D, density=0.9)
Y = (X[:, 0] + 0.3 * RNG.normal(size=N) > 0).astype(int)
WEIGHTS = RNG.choice([0.0, 0.3, 1.0, 2.5], N)
# Of one row, two or three, and not in order.
PERSONS = RNG.permutation(np.concatenate([np.arange(60), np.arange(100), np.arange(80)]))


def objective_of(case, *, rows=X, weights=WEIGHTS, groups=PERSONS, seed=0, **more):
    """An objective of `rows`, and target, coefficients and direction of a case."""
    loss, n_outputs = case
    _, target, coef, direction = problem(N, D, n_outputs, seed)
    more = {"row_weights": weights, "max_weight": 10.0, "n_outputs": n_outputs, **more}
    of_groups = {} if groups is None else {"groups": groups, "max_contributions": SIZE}
    return Objective(rows, target, loss, **more, **of_groups), target, coef, direction


def persons_sum(gradients, groups, clip):
    """Sum over persons of their rows' sum, shrunk until the norms of these add up to the clip."""
    total = 0.0
    for person in np.unique(groups):
        own = gradients[groups == person]
        size = np.linalg.norm(own.reshape(len(own), -1), axis=1).sum()
        total = total + own.sum(axis=0) * min(1.0, clip / max(size, 1e-300))
    return total


# Kernels are compiled anew for rows with weights: other cases than one take their time.
SLOW = pytest.mark.slow
WEIGHTED = [(case, None if i else WEIGHTS) for i, case in enumerate(CASES)]
WEIGHTED += [pytest.param(case, WEIGHTS, marks=SLOW) for case in CASES[1:]]


@pytest.mark.parametrize(("case", "weights"), WEIGHTED)
@pytest.mark.parametrize("store", [np.asarray, pytest.param(csr_array, marks=SLOW)])
def test_sums_of_gradients_are_those_of_weighted_rows_clipped_person_by_person(
    case, weights, store
):
    for groups in (PERSONS, None):
        objective, target, coef, _ = objective_of(
            case, rows=store(X), weights=weights, groups=groups
        )
        rows = augmented(X)
        slopes = objective.loss.derivative(rows @ coef, target).reshape(N, -1)
        gradients = rows[:, :, None] * slopes[:, None, :]
        gradients = gradients if weights is None else weights[:, None, None] * gradients
        alone = np.arange(N) if groups is None else groups
        for clip in (0.3, 3.0, math.inf):
            expected = persons_sum(gradients, alone, clip).reshape(coef.shape)
            assert_allclose(objective.gradient_sum(coef, clip), expected, rtol=1e-9, atol=1e-9)
            if clip < math.inf:
                assert objective.confirm(methodcaller("gradient_sum", coef, clip)) == 0.0
                assert (
                    objective.confirm(methodcaller("gradient_sum", coef, clip), np.arange(20, 50))
                    == 0.0
                )


def test_second_moments_are_of_weighted_rows_and_a_person_counts_as_one_row():
    objective = objective_of(CASES[0])[0]
    rows = np.sqrt(WEIGHTS)[:, None] * augmented(X)
    rows = rows * np.minimum(1, 2.0 / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    squares = np.bincount(PERSONS, (rows**2).sum(axis=1))
    rows = rows * np.minimum(1, 2.0 / np.sqrt(np.maximum(squares, 1e-300)))[PERSONS, None]
    assert_allclose(objective.second_moment(2.0, diagonal=False), rows.T @ rows, rtol=1e-9)


def test_magnitudes_count_the_first_row_of_a_person_that_is_there():
    rows = np.array([[3.0], [100.0], [1e200], [-5.0], [9.0], [2.0]])
    groups, weights = np.array([0, 0, 1, 1, 2, 2]), np.array([1.0, 1, 1, 1, 0, 1])
    given = {"row_weights": weights, "groups": groups, "max_contributions": 2}
    objective = Objective(rows, np.ones(6), Logistic(), fit_intercept=False, **given)
    assert_array_equal(objective.magnitude_histogram(np.arange(4))[0], [1, 1, 0, 0, 0, 0, 1, 0])
    assert_array_equal(objective.norm_histogram(np.array([2.5, 4.0, 8.0])), [1, 1, 1, 0])


@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(c, marks=SLOW) for c in CASES[1:])])
def test_losses_along_a_line_are_those_of_weighted_rows(case):
    objective, target, coef, direction = objective_of(case, groups=None)
    classes = target if coef.ndim == 2 else (target > 0).astype(int)
    bounds = [{"loss_clip": 0.7}] + [{"clip": 0.5}] * (coef.ndim == 1)
    for bound in bounds:
        expected = 0.0
        for weight in np.unique(WEIGHTS[WEIGHTS > 0]):
            own = weight == WEIGHTS
            given = (augmented(X)[own], classes[own] if coef.ndim == 2 else target[own])
            weights = np.full(max(2, coef.size), weight)
            terms = line_terms(
                *given, objective.loss, coef, direction, STEPS, weights=weights, **bound
            )
            expected = expected + terms.sum(axis=0).astype(float)
        got = objective.line_losses(coef, direction, STEPS, **bound)
        assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_along_a_line_of_persons_are_those_of_plain_arithmetic(case):
    objective, _, coef, direction = objective_of(case)
    for bound in [{"loss_clip": 0.7}] + [{"clip": 0.5}] * (coef.ndim == 1):
        line = methodcaller("line_losses", coef, direction, STEPS, **bound)
        with np.errstate(all="ignore"):
            plain = line(objective.reference)
        assert_allclose(line(objective), plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_person_moves_scores_of_steps_within_the_range_that_is_charged(case):
    most = 0.0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = X * 10.0 ** rng.uniform(-2, 3, N)[:, None]
        gone = np.where((PERSONS == 7)[:, None], 1e200, rows)
        (one, _, coef, direction), (other, *_) = (
            objective_of(case, rows=table, weights=None, seed=seed) for table in (rows, gone)
        )
        bounds = [({"loss_clip": 0.7}, 0.7)]
        bounds += [({"clip": 0.5}, 0.5 * STEPS[-1])] * (coef.ndim == 1)
        for bound, largest in bounds:
            moved = one.line_losses(coef, direction, STEPS, **bound)
            moved = moved - other.line_losses(coef, direction, STEPS, **bound)
            spread = np.ptp(moved) if "clip" in bound else np.abs(moved).max()
            most = max(most, spread / largest)
    assert 0.3 < most <= 1 + 1e-9


def test_rounding_moves_no_row_of_a_person_beyond_its_part():
    most, k, own = 0.0, 9, np.arange(18) < 9
    for seed in range(1000, 1040):
        rng = np.random.default_rng(seed)
        rows, target = rng.normal(size=(18, 3)) * 10.0 ** rng.uniform(5, 10), np.ones(18)
        target[rng.random(18) < 0.5] = -1.0
        steps, clip = np.linspace(0, 10.0 ** rng.uniform(-11, -9), 21), 10.0 ** rng.uniform(-1, 1)
        coef, direction = 1e6 * rng.normal(size=3), np.array([0.0, 0.6, 0.8])
        more = {"row_weights": np.full(18, 1e-6), "max_weight": 1e-6, "max_contributions": k}
        one, other = (
            Objective(
                table, target, Hinge(), fit_intercept=False, groups=np.arange(18) // k, **more
            )
            for table in (rows, np.where(own[:, None], 1e308, rows))
        )
        moved = one.line_losses(coef, direction, steps, clip=clip)
        moved = moved - other.line_losses(coef, direction, steps, clip=clip)
        bound = clip * steps[-1]
        most = max(most, np.ptp(moved) / (bound + 4 * one.line_rounding(2, bound)))
    assert 0.3 < most <= 1.0


@pytest.mark.parametrize("bound", ["rounding_slack", "moment_rounding", "line_rounding"])
def test_rounding_is_planned_for_every_row_of_a_person_and_for_its_part(bound):
    more = (1.0,) if bound == "line_rounding" else ()
    rows, persons = (
        getattr(objective_of(CASES[0], weights=None, groups=groups)[0], bound)
        for groups in (None, PERSONS)
    )
    # Parts add up to one but for k + 2 units of rounding.
    assert persons(10, *more) - rows(10 * SIZE, *more) >= (SIZE + 2) * 2.0**-53


def test_parts_of_a_bound_add_up_to_one_whatever_the_sizes_are():
    sizes = np.array([np.nan, np.inf, 0.0, -1.0, 1e300, 5e-324, 0.2, 0.7, 3.0, np.nan])
    groups = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 4])
    parts = parts_of_groups(sizes, groups)
    assert (parts > 0).all() and (np.bincount(groups, parts) <= 1 + 1e-15).all()
    assert (parts[-2:] == 1.0).all(), "a row alone has all of it"
    assert_allclose(parts[6:8], [2 / 9, 7 / 9])


def quietly(model, *given, **of_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return model.fit(*given, **of_rows)


def of_persons(Estimator, relation="zero_out", **more):
    more = {"max_iter": 3, "delta": 1e-3, "classes": [0, 1], "max_contributions": SIZE, **more}
    return Estimator(**under(relation), **more)


def a_person_apart(relation, table):
    """The same table with one person nulled, replaced by one of fewer rows, or removed."""
    rows, y, weights, groups = (array.copy() for array in table)
    own = groups == 7
    assert own.sum() == SIZE
    if relation == "add_or_remove_one":
        return rows[~own], y[~own], weights[~own], groups[~own]
    rows[own] = 1e308 if relation == "zero_out" else -3.0 * rows[own][::-1]
    weights[own] = 4.0
    kept = np.arange(N) != (np.flatnonzero(own)[-1] if relation == "replace_one" else N)
    return rows[kept], y[kept], weights[kept], groups[kept]


def ratio_of_persons(model, table, neighbour):
    tapes = []
    for given, recorder in ((table, record), (neighbour, lambda: replay(tapes[0]))):
        rows, y, weights, groups = given
        with recorder() as seen:
            quietly(model, rows, y, sample_weight=weights, groups=groups)
        tapes.append(seen)
    return largest_ratio(*tapes)


def large_table():
    """One person's rows are long, and point to one side."""
    rows, weights = X.copy(), WEIGHTS.copy()
    own = PERSONS == 7
    rows[own], weights[own] = 40.0 + X[own], 9.0
    return rows, Y, weights, PERSONS


@pytest.mark.parametrize("relation", ["zero_out", "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("Estimator", OURS)
def test_no_release_moves_by_more_than_a_person_is_charged_for(Estimator, relation):
    table = large_table()
    for more in ({}, {"preconditioner": None, "clip_schedule": 0.5}):
        model = of_persons(Estimator, relation, **more)
        ratio = ratio_of_persons(model, table, a_person_apart(relation, table))
        assert 0.3 < ratio <= 1.0


@seeded_noise(0)
def test_persons_are_drawn_into_batches_with_all_their_rows():
    # Of one seed, so that both draw the same persons; without noise nothing need be composed.
    sampled = {"sampling_rate": 0.4, "epsilon": math.inf}
    model = of_persons(DPLogisticRegression, preconditioner=None, clip_schedule=0.5, **sampled)
    table = large_table()
    assert 0.3 < ratio_of_persons(model, table, a_person_apart("zero_out", table)) <= 1.0


@pytest.mark.parametrize("Estimator", OURS)
@pytest.mark.parametrize("labels", [Y, np.arange(N) % 3], ids=["two", "three"])
@seeded_noise(0)
def test_persons_of_one_row_are_rows_to_the_last_bit(Estimator, labels):
    shared = {"max_iter": 3, "delta": 1e-3}
    rows = quietly(Estimator(**shared), X, labels)
    persons = quietly(Estimator(**shared, max_contributions=1), X, labels, groups=np.arange(N))
    assert_array_equal(rows.coef_, persons.coef_)
    assert rows.privacy_.events == persons.privacy_.events
    assert rows.privacy_.privacy_unit == "row" and persons.privacy_.privacy_unit == "group"


@pytest.mark.parametrize(
    "preconditioner", [None, FullPreconditioner(row_clipping_norm=1e6)], ids=str
)
@pytest.mark.parametrize("store", [None, csr_array])
def test_a_weight_of_two_is_two_rows(preconditioner, store):
    model = DPLogisticRegression(
        epsilon=math.inf, clip_schedule=math.inf, preconditioner=preconditioner, max_iter=10,
        max_weight=8.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        _check_sample_weight_equivalence("DPLogisticRegression", model, store)


def test_the_first_rows_of_a_person_count_and_no_others():
    groups = np.repeat(np.arange(80), 3)
    model = DPLogisticRegression(epsilon=math.inf, max_iter=3, max_contributions=2)
    changed = X.copy()
    changed[2::3] = 7.0
    coef = model.fit(X, Y, sample_weight=WEIGHTS, groups=groups).coef_
    again = model.fit(changed, Y, sample_weight=WEIGHTS, groups=groups.astype(str)).coef_
    assert np.abs(coef - again).max() < 1e-9
    changed[1] = 7.0
    assert np.abs(coef - model.fit(changed, Y, groups=groups).coef_).max() > 1e-3


def test_numbers_of_records_are_numbers_of_persons():
    # A fit warns of a delta above one over the number of records: .01 for persons, .004 for rows.
    model = of_persons(DPLogisticRegression, delta=0.008)
    fitted = model.fit(X, Y, groups=PERSONS)
    assert fitted.privacy_ == model.plan(100, D).ledger
    assert "the rows of one group are one record, of which the first 3 count" in str(
        fitted.privacy_
    )


TWO = {"max_contributions": 2}
BAD = [
    ({"groups": PERSONS}, {}, "belong together"),
    ({}, TWO, "belong together"),
    ({"groups": PERSONS}, {"max_contributions": 0}, "max_contributions=0 must be a whole number"),
    # numpy would make 'nan' of the missing, '1' of 1 and one float of two large numbers.
    ({"groups": [str(i) if i % 2 else int(i) for i in PERSONS]}, TWO, "one type"),
    ({"sample_weight": np.full(N, 2, np.longdouble) ** 9999}, {}, "finite numbers"),
    ({"sample_weight": WEIGHTS[:9]}, {}, "9 values, and X 240 rows"),
    ({"sample_weight": -WEIGHTS}, {}, "0 or above"),
    ({"sample_weight": WEIGHTS * np.nan}, {}, "finite numbers"),
    ({"sample_weight": WEIGHTS * 0.0}, {}, "zero in every row"),
    ({"sample_weight": WEIGHTS}, {"max_weight": 0.0}, "max_weight=0.0 must be a number above 0"),
]


@pytest.mark.parametrize(("of_rows", "parameters", "message"), BAD)
def test_what_cannot_be_is_refused_before_anything_is_released(of_rows, parameters, message):
    with pytest.raises(ValueError, match=message) as refused:
        DPLogisticRegression(max_iter=2, **parameters).fit(X, Y, **of_rows)
    assert not hasattr(refused.value, "privacy_ledger")


@pytest.mark.parametrize(
    "make", [list, pl.Series, pd.Series, pa.array], ids=lambda make: make.__name__
)
def test_large_numbers_of_persons_stay_apart(make):
    persons = [2**62 + i for i in PERSONS.tolist()]
    if make is list:
        persons = [-1 if i == 2**62 else 2 * i for i in persons]
    model = DPLogisticRegression(epsilon=math.inf, max_iter=2, max_contributions=SIZE)
    expected = model.fit(X, Y, groups=PERSONS).coef_
    assert_array_equal(model.fit(X, Y, groups=make(persons)).coef_, expected)


def test_blocks_of_rows_and_baselines_know_nothing_of_weights_and_persons():
    blocks = [(X[:100], Y[:100]), (X[100:], Y[100:])]
    weights, persons = {"sample_weight": WEIGHTS}, {"groups": PERSONS}
    for more, of_rows in (({}, weights), ({"max_contributions": 2}, persons)):
        with pytest.raises(TypeError, match="not for blocks of rows"):
            DPLogisticRegression(**more).fit(blocks, **of_rows)
    with pytest.raises(TypeError, match="sample_weight"):
        baselines.MajorityClassifier().fit(X, Y, **weights)


def test_metadata_is_routed_as_in_scikit_learn():
    with sklearn.config_context(enable_metadata_routing=True):
        model = of_persons(DPLogisticRegression).set_fit_request(sample_weight=True, groups=True)
        given = {"sample_weight": WEIGHTS, "groups": PERSONS}
        scored = cross_validate(
            model.set_score_request(sample_weight=False), X, Y, params=given,
            cv=PredefinedSplit(PERSONS % 2),  # a person's own number decides, whatever others have
            return_estimator=True,
        )  # fmt: skip
    for fitted in scored["estimator"]:
        assert fitted.privacy_.epsilon() == pytest.approx(model.plan(50, D).ledger.epsilon())


def test_a_record_that_bagging_draws_twice_is_clipped_once():
    model = DPLogisticRegression(max_iter=2, delta=1e-3, classes=[0, 1], preconditioner=None)
    bagging = BaggingClassifier(model, 2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        with record() as recorded:
            bagging.fit(30 * X, Y)
        times = np.bincount(bagging.estimators_samples_[0])
        null = np.where((np.arange(N) == times.argmax())[:, None], 1e308, 30 * X)
        with replay(recorded) as replayed:
            bagging.fit(null, Y)
    assert times.max() > 2 and 0.9 < largest_ratio(recorded, replayed) <= 1.0
