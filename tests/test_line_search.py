"""Losses along a line against term-by-term oracles, their sensitivity, and the carried scores."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from problems import (
    BINARY,
    CASES,
    STEPS,
    line_bounds,
    line_terms,
    loss_for,
    magnitudes,
    nulled,
    problem,
)
from scipy import sparse

from dpglm.losses import Logistic, SmoothedHinge, Softmax
from dpglm.sums.objective import Objective

STORES = [np.asarray, sparse.csr_array]


@st.composite
def lines(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    loss, n_outputs = draw(st.sampled_from(CASES))
    X = draw(hnp.arrays(np.float64, (n, d), elements=magnitudes()))
    labels = st.sampled_from([-1.0, 1.0]) if n_outputs == 1 else st.integers(0, n_outputs - 1)
    target = np.array(draw(st.lists(labels, min_size=n, max_size=n)))
    shape = (d + 1,) if n_outputs == 1 else (d + 1, n_outputs)
    numbers = st.floats(-20, 20, allow_subnormal=False)
    coef, direction = (draw(hnp.arrays(np.float64, shape, elements=numbers)) for _ in range(2))
    steps = np.linspace(0.0, draw(st.sampled_from([1e-3, 2.0, 100.0])), draw(st.integers(1, 40)))
    weights = np.array(draw(st.lists(st.floats(0, 10), min_size=len(shape) + 0, max_size=2)))
    weights = np.resize(weights, max(2, n_outputs)) if len(weights) else None
    bound = draw(st.sampled_from([1e-3, 1.0, 3.0, 40.0, 1e6]))
    scales = draw(st.sampled_from([None, 1.0, 1e-3, 1e3]))
    i = draw(st.integers(0, n - 1))
    return X, target, loss, n_outputs, coef, direction, steps, weights, bound, scales, i


@settings(max_examples=80, deadline=None)
@given(lines())
def test_one_record_moves_every_sum_by_at_most_its_bound_and_all_in_one_direction(case):
    X, target, loss, n_outputs, coef, direction, steps, weights, bound, scales, i = case
    absent = np.arange(len(X)) == i
    for make in STORES:

        def objective(X, make=make):
            rows = Objective(make(X), target, loss, n_outputs=n_outputs, class_weight=weights)
            if scales is None:
                return rows
            return rows.in_basis(np.linspace(1.0, scales, len(coef)))

        with_row, without = objective(X), objective(nulled(X, absent))

        def change(with_row=with_row, without=without, **bounds):
            sums = [o.line_losses(coef, direction, steps, **bounds) for o in (with_row, without)]
            assert np.isfinite(sums).all()
            return sums[0] - sums[1]

        change_of_losses = change(loss_clip=bound)
        rounding = 2 * with_row.line_rounding(len(X), bound)
        assert (change_of_losses >= -rounding).all()
        assert (change_of_losses <= bound + rounding).all()
        if n_outputs == 1:
            reach = steps * np.linalg.norm(direction) * bound
            rounding = 2 * with_row.line_rounding(len(X), reach[-1])
            change_of_differences = change(clip=bound)
            assert (np.abs(change_of_differences) <= reach + rounding).all()
            # the range over the steps is the bound of the last step, not twice it
            assert np.ptp(change_of_differences) <= reach[-1] + 2 * rounding


@pytest.mark.parametrize("loss", BINARY, ids=str)
@pytest.mark.parametrize("towards", [-1.0, 1.0])
def test_the_bound_holds_where_rounding_alone_would_break_it(loss, towards):
    # a margin of 1e15 is rounded to 1/8: one that should move by 0.07 moves by 0.125
    objective = Objective(np.array([[1e8]]), -np.ones(1), loss, fit_intercept=False)
    steps = np.linspace(0.0, 1e-9, 11)
    changes = objective.line_losses(np.array([1e7]), np.array([towards]), steps, clip=1.0)
    assert (np.abs(changes) <= steps * (1 + 1e-12)).all()


@pytest.mark.parametrize("bounds", [{"loss_clip": 3.0}, {"clip": 1.0}], ids=str)
@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge()], ids=str)
def test_rounding_stays_within_the_bound(loss, bounds):
    """Scores here are exact, so that all of the error is that of the sum of losses."""
    n, rng = 2500, np.random.default_rng(9)
    X, target = rng.integers(-96, 97, size=(n, 1)) / 16.0, rng.choice([-1.0, 1.0], n)
    way = np.array([0.5]), np.array([1.0]), np.arange(9) / 4.0
    objective = Objective(X, target, loss, fit_intercept=False)
    # A row of zeros adds zero.
    X, target = X[X[:, 0] != 0], target[X[:, 0] != 0]
    exact = line_terms(X, target, loss, *way, weights=[1, 1], **bounds).sum(axis=0)
    for got, total, step in zip(objective.line_losses(*way, **bounds), exact, way[2], strict=True):
        assert abs(got - total) <= objective.line_rounding(n, bounds.get("loss_clip") or step)
    assert objective.line_rounding(n, 1.0) < 2e-9


def test_errors_do_not_grow_with_the_number_of_steps():
    """A progression begins anew after 28 steps, each of which adds two roundings of the odds."""
    X, target = np.array([[1.0], [-0.7]]), np.array([-1.0, 1.0])
    way = np.array([0.5]), np.array([1.0]), np.linspace(0.0, 3.0, 100_001)
    got = Objective(X, target, Logistic(), fit_intercept=False).line_losses(*way, loss_clip=20.0)
    exact = line_terms(X, target, Logistic(), *way, weights=[1, 1], loss_clip=20.0).sum(axis=0)
    assert np.abs(got - exact).max() <= len(X) * 28 * 2 * 2.0**-53


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_the_number_of_threads_does_not_change_a_bit(store, n_outputs):
    X, target, coef, direction = problem(40_003, 21, n_outputs, 1)
    rows, results = store(X), []
    for n_threads in (1, 2, 5):
        objective = Objective(
            rows, target, loss_for(n_outputs), n_outputs=n_outputs, n_threads=n_threads
        )
        results.append(objective.gradient_sum(coef, 0.7).tobytes())
        for bounds in line_bounds(n_outputs):
            results.append(objective.line_losses(coef, direction, STEPS, **bounds).tobytes())
        results.append(objective.gradient_sum(coef - STEPS[3] * direction, 0.8).tobytes())
    assert len(set(results)) == len(results) / 3


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_results_do_not_depend_on_earlier_calls(n_outputs, rotated, store):
    X, target, coef, _ = problem(3000, 6, n_outputs, 3)
    rng = np.random.default_rng(4)
    fresh, searched = (
        Objective(store(X), target, loss_for(n_outputs), n_outputs=n_outputs) for _ in range(2)
    )
    if rotated:
        # One that is made of another does not take over its scores.
        searched.line_losses(coef, coef, STEPS, loss_clip=2)
        basis = rng.normal(size=(7, 7))
        searched, fresh = searched.in_basis(basis), fresh.in_basis(basis)
        got, expected = (o.gradient_sum(coef, 0.7) for o in (searched, copy.copy(fresh)))
        assert_allclose(got, expected, rtol=1e-12)
    used, places = copy.copy(fresh), [coef, rng.normal(size=coef.shape)]
    for _ in range(60):
        coef = places[rng.integers(len(places))].copy()
        direction, steps = rng.normal(size=coef.shape), np.linspace(0, rng.uniform(0.1, 3.0), 11)
        new = copy.copy(fresh)
        if rng.random() < 0.5:
            got, expected = (o.gradient_sum(coef, 0.7) for o in (used, new))
        else:
            got, expected = (
                o.line_losses(coef, direction, steps, loss_clip=2) for o in (used, new)
            )
            places.append(coef - steps[rng.integers(11)] * direction)
            places = places[-3:]
            # what the caller does to its arrays afterwards is its own affair
            coef *= 2.0
            direction *= 3.0
            steps *= 0.5
        assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_carried_scores_stay_accurate_over_a_long_search():
    X, target, coef, _ = problem(400, 5, seed=5)
    objective = Objective(X, target, Logistic())
    rng = np.random.default_rng(1)
    home, away = coef, 1e9 * rng.normal(size=6)
    # far away and back: scores carried from there would have lost their last nine digits
    for k in range(500):
        direction = [coef - away, coef - home][k % 2] if k in (100, 101) else rng.normal(size=6)
        objective.line_losses(coef, direction, STEPS, loss_clip=3.0)
        coef = coef - STEPS[10 if k in (100, 101) else 1] * direction
        got = objective.gradient_sum(coef, 1.0)
        expected = Objective(X, target, Logistic()).gradient_sum(coef, 1.0)
        assert_allclose(got, expected, rtol=0, atol=1e-10 if k != 100 else 1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coef": np.zeros(2)}, "coef must have shape"),
        ({"direction": np.zeros(2)}, "direction must have shape"),
        *(
            ({"steps": np.array(steps)}, "equally spaced from 0")
            for steps in ([0.1, 0.2], [], [0.0, np.inf], [0.0, 0.1, 0.3], [0.0, -0.1], [-0.1, 0.0])
        ),
        ({"loss_clip": None}, "either loss_clip or clip"),
        ({"clip": 1.0}, "either loss_clip or clip"),
        ({"loss_clip": 0.0}, "loss_clip must be positive"),
        ({"loss_clip": math.nan}, "loss_clip must be positive"),
        ({"loss_clip": None, "clip": -1.0}, "clip must be positive"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    X, target, coef, direction = problem(4, 2)
    arguments = {"coef": coef, "direction": direction, "steps": STEPS, "loss_clip": 1.0} | change
    with pytest.raises(ValueError, match=message):
        Objective(X, target, Logistic()).line_losses(**arguments)
    X, target, coef, direction = problem(9, 2, 3)
    with pytest.raises(ValueError, match="one output only"):
        Objective(X, target, Softmax(), n_outputs=3).line_losses(coef, direction, STEPS, clip=1.0)
