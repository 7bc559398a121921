"""Losses along a line against term-by-term oracles, their sensitivity, and the carried scores."""

import math
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from dpglm.kernels.arithmetic import EXACT, log
from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax
from dpglm.sums.objective import Objective

BINARY = [Logistic(), SmoothedHinge(0.3), SmoothedHinge(2.0), Hinge()]
JOINT = [(Softmax(), 2), (Softmax(), 5), (Logistic(), 3), (SmoothedHinge(), 3), (Hinge(), 4)]
CASES = [(loss, 1) for loss in BINARY] + JOINT
STEPS = np.linspace(0.0, 2.0, 21)
STORAGES = {"dense": lambda X: X, "column-major": np.asfortranarray, "csr": sparse.csr_array}
Extended = np.longdouble


def problem(n, d, n_outputs=1, seed=0, scale=1.0, fit_intercept=True):
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    target = rng.choice([-1.0, 1.0], n) if n_outputs == 1 else rng.integers(0, n_outputs, n)
    shape = (d + fit_intercept,) if n_outputs == 1 else (d + fit_intercept, n_outputs)
    direction = rng.normal(size=shape)
    return X, target, rng.normal(size=shape), direction / np.linalg.norm(direction)


def loss_at(loss, z):
    """Loss at minus the margin, in extended precision."""
    if isinstance(loss, Logistic):
        return max(z, Extended(0)) + np.log1p(np.exp(-abs(z)))
    half = Extended(getattr(loss, "half_width", 0.0))
    if z >= half - 1:
        return 1 + z
    return max(z + 1 + half, Extended(0)) ** 2 / (4 * half) if half > 0 else Extended(0)


def capped_loss_at(loss, z, weight, cap):
    """Weighted loss, and its tangent of slope `cap` where it is steeper."""
    if cap >= weight:
        return weight * loss_at(loss, z)
    share = Extended(cap) / Extended(weight)
    if isinstance(loss, Logistic):
        knee = np.log(share) - np.log1p(-share)
    else:
        half = Extended(getattr(loss, "half_width", 0.0))
        knee = 2 * half * share - half - 1
    return weight * loss_at(loss, min(z, knee)) + cap * max(z - knee, Extended(0))


def joint_loss(loss, scores, own):
    if isinstance(loss, Softmax):
        peak = scores.max()
        return peak - scores[own] + np.log(np.exp(scores - peak).sum())
    signs = np.where(np.arange(len(scores)) == own, -1, 1)
    return sum(loss_at(loss, z) for z in signs * scores)


def expected_terms(
    rows, target, loss, coef, direction, steps, *, weights, loss_clip=None, clip=None
):
    """Loss of each row at each step, shape (n, steps), from rows with their column of ones."""
    rows, coef, direction = (np.asarray(a, dtype=Extended) for a in (rows, coef, direction))
    terms = np.zeros((len(rows), len(steps)), dtype=Extended)
    norms = np.sqrt((rows**2).sum(axis=1))
    for i, j in np.ndindex(*terms.shape):
        scores = rows[i] @ (coef - Extended(steps[j]) * direction)
        if coef.ndim == 2:
            value = weights[target[i]] * joint_loss(loss, scores, target[i])
        elif clip is None:
            value = weights[int(target[i] > 0)] * loss_at(loss, -target[i] * scores)
        else:
            weight = Extended(weights[int(target[i] > 0)])
            value = capped_loss_at(loss, -target[i] * scores, weight, Extended(clip) / norms[i])
        terms[i, j] = value if clip is not None else min(value, loss_clip)
    return terms if clip is None else terms - terms[:, :1]


def augmented(X, fit_intercept=True):
    return np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scale", [0.3, 3.0, 300.0])
@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_clipped_losses_match_a_sum_term_by_term(loss, n_outputs, scale, storage):
    for seed, (n, d, dtype, fit_intercept) in enumerate(
        [(1, 1, np.float64, True), (30, 9, np.float32, True), (70, 5, np.float64, False)]
    ):
        X, target, coef, direction = problem(n, d, n_outputs, seed, scale, fit_intercept)
        X = X.astype(dtype)
        weights = np.random.default_rng(seed).uniform(0.2, 3.0, max(2, n_outputs))
        for class_weight in (weights, None):
            objective = Objective(
                STORAGES[storage](X), target, loss, n_outputs=n_outputs,
                fit_intercept=fit_intercept, class_weight=class_weight,
            )  # fmt: skip
            used = np.ones_like(weights) if class_weight is None else weights
            for loss_clip in (1e-3, 3.0, 50.0, math.inf):
                got = objective.line_losses(coef, direction, STEPS, loss_clip=loss_clip)
                terms = expected_terms(
                    augmented(X, fit_intercept), target, loss, coef, direction, STEPS,
                    weights=used, loss_clip=loss_clip,
                )  # fmt: skip
                expected = terms.sum(axis=0).astype(float)
                assert got.shape == STEPS.shape
                assert_allclose(got, expected, rtol=3e-13, atol=1e-13 * n)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scale", [0.3, 3.0, 300.0])
@pytest.mark.parametrize("loss", BINARY, ids=str)
def test_changes_of_capped_losses_match_a_sum_term_by_term(loss, scale, storage):
    for seed, (n, d) in enumerate([(1, 1), (30, 9), (300, 5)]):
        X, target, coef, direction = problem(n, d, 1, seed, scale)
        weights = np.array([0.7, 1.9])
        objective = Objective(STORAGES[storage](X), target, loss, class_weight=weights)
        for clip in (0.01, 1.0, 30.0, math.inf):
            got = objective.line_losses(coef, direction, STEPS, clip=clip)
            terms = expected_terms(
                augmented(X), target, loss, coef, direction, STEPS, weights=weights,
                clip=min(clip, 1e300),
            )  # fmt: skip
            size = np.abs(terms).sum(axis=0).astype(float)
            assert got[0] == 0.0
            assert (np.abs(got - terms.sum(axis=0).astype(float)) <= 1e-12 * (size + n)).all()


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge()], ids=str)
@pytest.mark.parametrize("in_basis", [False, True])
def test_changes_of_capped_losses_are_integrals_of_the_clipped_gradient(loss, in_basis):
    X, target, coef, direction = problem(200, 6, seed=4)
    objective = Objective(X, target, loss, class_weight=np.array([2.0, 0.5]))
    if in_basis:
        objective = objective.in_basis(np.random.default_rng(1).normal(size=(7, 7)))
    steps = np.linspace(0.0, 0.5, 3)
    for clip in (0.2, 1.0, 5.0):
        got = objective.line_losses(coef, direction, steps, clip=clip)
        # the midpoint rule: the slope is continuous and piecewise smooth
        width = steps[-1] / 4000
        slopes = [
            -objective.gradient_sum(coef - (k + 0.5) * width * direction, clip) @ direction
            for k in range(4000)
        ]
        integral = width * np.cumsum(slopes)[[1999, 3999]]
        assert_allclose(got[1:], integral, rtol=1e-5, atol=1e-5 * 200 * clip)


@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Hinge(), 1), (Softmax(), 3)])
def test_in_basis_equals_the_objective_of_the_multiplied_data(loss, n_outputs):
    X, target, coef, direction = problem(150, 5, n_outputs, seed=6)
    basis = np.random.default_rng(2).normal(size=(6, 6))
    rows = augmented(X) @ basis
    options = [{"loss_clip": 2.0}] + ([{"clip": 0.7}] if n_outputs == 1 else [])
    for make in STORAGES.values():
        plain = Objective(make(X), target, loss, n_outputs=n_outputs)
        multiplied = Objective(make(rows), target, loss, n_outputs=n_outputs, fit_intercept=False)
        for bounds in options:
            got = plain.in_basis(basis).line_losses(coef, direction, STEPS, **bounds)
            expected = multiplied.line_losses(coef, direction, STEPS, **bounds)
            assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("every", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("size", [3.0, 40.0, 150.0, 599.0])
def test_a_few_large_losses_among_many_small_ones_do_not_overflow(size, every):
    X = np.full((256, 1), -20.0)
    X[: 8 * every : every] = size
    X[1::100] = -size
    objective = Objective(X, -np.ones(256), Logistic(), fit_intercept=False)
    one, steps = np.ones(1), np.linspace(0.0, 1.0, 9)
    for bounds in ({"loss_clip": math.inf}, {"loss_clip": 100.0}, {"clip": 1.0}):
        terms = expected_terms(
            X, -np.ones(256), Logistic(), one, one, steps, weights=[1, 1], **bounds
        )
        got = objective.line_losses(one, one, steps, **bounds)
        assert_allclose(got, terms.sum(axis=0).astype(float), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_a_sum_does_not_depend_on_the_other_steps(loss, n_outputs, scale):
    X, target, coef, direction = problem(700, 4, n_outputs, seed=11, scale=scale)
    objective = Objective(X, target, loss, n_outputs=n_outputs)
    steps = np.linspace(0.0, 3.0, 76)
    options = [{"loss_clip": 2.0}, {"loss_clip": 200.0}] + [{"clip": 0.7}] * (n_outputs == 1)
    for bounds in options:
        every = objective.line_losses(coef, direction, steps, **bounds)
        for spacing in (3, 25, 75):
            some = objective.line_losses(coef, direction, steps[::spacing], **bounds)
            assert_allclose(every[::spacing], some, rtol=1e-12, atol=1e-9)
        alone = objective.line_losses(coef, direction, steps[:1], **bounds)
        assert_allclose(alone, every[:1], rtol=1e-13)


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_null_records_and_rows_that_overflow_add_exactly_zero(loss, n_outputs):
    X, target, coef, direction = problem(60, 4, n_outputs, seed=7)
    X[7] = [1e308, -1e308, 1e308, 1.0]
    X[21] = [1.4e154, 0.0, 0.0, 0.0]
    X[33] = 1e100
    steep = direction * 1e80
    kept = ~np.isin(np.arange(60), [7, 21])
    dropped = kept & (np.arange(60) != 33)
    options = [{"loss_clip": 2.0}] + ([{"clip": 0.7}] if n_outputs == 1 else [])
    for make in STORAGES.values():

        def losses(present, towards, bounds, make=make):
            objective = Objective(make(X), target, loss, n_outputs=n_outputs, present=present)
            return objective.line_losses(coef, towards, STEPS, **bounds)

        for bounds in options:
            assert_array_equal(losses(None, direction, bounds), losses(kept, direction, bounds))
            nobody = losses(np.zeros(60, dtype=bool), direction, bounds)
            assert_array_equal(nobody, np.zeros(21))
            # beyond 2^500 a margin counts as not finite
            assert_array_equal(losses(None, steep, bounds), losses(dropped, steep, bounds))


def test_a_class_of_zero_weight_adds_zero():
    X, target, coef, direction = problem(50, 4, seed=8)
    weights = np.array([0.0, 1.5])
    for loss in BINARY:
        everyone = Objective(X, target, loss, class_weight=weights)
        positive = Objective(X, target, loss, class_weight=weights, present=target > 0)
        for bounds in ({"loss_clip": 2.0}, {"clip": 0.7}):
            assert_allclose(
                everyone.line_losses(coef, direction, STEPS, **bounds),
                positive.line_losses(coef, direction, STEPS, **bounds),
                rtol=1e-13,
            )


def magnitudes():
    ordinary = st.floats(-100, 100, allow_subnormal=False)
    return st.one_of(ordinary, st.sampled_from([0.0, 5e-324, 1e-200, 1e7, -1e100, 1e154, -1.7e308]))


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


@settings(max_examples=300, deadline=None)
@given(lines())
def test_one_record_moves_every_sum_by_at_most_its_bound_and_all_in_one_direction(case):
    X, target, loss, n_outputs, coef, direction, steps, weights, bound, scales, i = case
    absent = np.arange(len(X)) != i
    for make in STORAGES.values():

        def objective(present, make=make):
            rows = Objective(
                make(X), target, loss, n_outputs=n_outputs, class_weight=weights, present=present
            )
            if scales is None:
                return rows
            return rows.in_basis(np.linspace(1.0, scales, len(coef)))

        with_row, without = objective(None), objective(absent)

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
    n = 2500
    rng = np.random.default_rng(9)
    X = rng.integers(-96, 97, size=(n, 1)) / 16.0
    target = rng.choice([-1.0, 1.0], n)
    coef, direction, steps = np.array([0.5]), np.array([1.0]), np.arange(9) / 4.0
    objective = Objective(X, target, loss, fit_intercept=False)
    got = objective.line_losses(coef, direction, steps, **bounds)
    with mpmath.workdps(40):
        for j, step in enumerate(steps):
            total = mpmath.mpf(0)
            for x, y in zip(X[:, 0], target, strict=True):
                total += _exact_term(loss, x, y, coef[0], step, **bounds)
            bound = bounds.get("loss_clip") or step
            error = abs(mpmath.mpf(float(got[j])) - total)
            assert error <= objective.line_rounding(n, bound)
    assert objective.line_rounding(n, 1.0) < 2e-9


def _exact_term(loss, x, y, coef, step, loss_clip=None, clip=None):
    def value(z):
        z = mpmath.mpf(z)
        if isinstance(loss, Logistic):
            return mpmath.log(1 + mpmath.exp(z))
        h = mpmath.mpf(loss.half_width)
        return max(1 - h + z, 0) + min(max(1 + h + z, 0), 2 * h) ** 2 / (4 * h)

    if x == 0:
        return 0
    if loss_clip is not None:
        return min(value(-y * x * (coef - step)), loss_clip)
    cap = mpmath.mpf(clip) / abs(x)
    knee = mpmath.inf
    if cap < 1:
        h = mpmath.mpf(getattr(loss, "half_width", 0))
        knee = mpmath.log(cap / (1 - cap)) if isinstance(loss, Logistic) else 2 * h * cap - h - 1

    def capped(z):
        return value(min(z, knee)) + cap * max(z - knee, 0)

    return capped(-y * x * (coef - step)) - capped(-y * x * coef)


def test_the_rounding_bound_grows_with_its_arguments_and_reads_only_the_public_count():
    X, target, *_ = problem(100, 9)
    small = Objective(X, target, Logistic())
    large = Objective(np.vstack([X] * 30), np.tile(target, 30), Logistic())
    for n in (10, 10**4, 5 * 10**6):
        assert small.line_rounding(n, 3.0) == large.line_rounding(n, 3.0)
        assert small.line_rounding(n, 3.0) < small.line_rounding(2 * n, 3.0)
        assert small.line_rounding(n, 3.0) < small.line_rounding(n, 6.0)
    weighted = Objective(X, target, Logistic(), class_weight=np.array([1.0, 1e3]))
    assert weighted.line_rounding(10, 1.0) > 100 * small.line_rounding(10, 1.0)
    stretched = small.in_basis(np.geomspace(1, 1e6, 10))
    assert stretched.line_rounding(10, 1.0) > 100 * small.line_rounding(10, 1.0)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_the_number_of_threads_does_not_change_a_bit(storage, n_outputs):
    X, target, coef, direction = problem(40_003, 21, n_outputs, seed=1)
    loss = Logistic() if n_outputs == 1 else Softmax()
    options = [{"loss_clip": 2.0}] + ([{"clip": 0.7}] if n_outputs == 1 else [])
    results = []
    for n_threads in (1, 2, 5):
        objective = Objective(
            STORAGES[storage](X), target, loss, n_outputs=n_outputs, n_threads=n_threads
        )
        losses = [objective.line_losses(coef, direction, STEPS, **bounds) for bounds in options]
        gradient = objective.gradient_sum(coef - STEPS[3] * direction, 0.8)
        results.append([*losses, gradient])
    for result in results[1:]:
        for got, expected in zip(result, results[0], strict=True):
            assert_array_equal(got, expected)


def fresh(X, target, loss, n_outputs, basis):
    objective = Objective(X, target, loss, n_outputs=n_outputs)
    return objective if basis is None else objective.in_basis(basis)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3)])
def test_results_do_not_depend_on_earlier_calls(loss, n_outputs, rotated, storage):
    X, target, coef, _ = problem(3000, 6, n_outputs, seed=3)
    rng = np.random.default_rng(4)
    basis = rng.normal(size=(7, 7)) if rotated else None
    X = STORAGES[storage](X)
    used = fresh(X, target, loss, n_outputs, basis)
    places = [coef, rng.normal(size=coef.shape)]
    for _ in range(150):
        coef = places[rng.integers(len(places))].copy()
        direction, steps = rng.normal(size=coef.shape), np.linspace(0, rng.uniform(0.1, 3.0), 11)
        new = fresh(X, target, loss, n_outputs, basis)
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


def test_an_iteration_reads_the_data_twice(monkeypatch):
    X, target, coef, direction = problem(500, 6, seed=3)
    objective = Objective(X, target, Logistic())
    scored, added = [], []
    rows = objective._rows
    score, add = rows.score_chunks, rows.add_chunks
    monkeypatch.setattr(rows, "score_chunks", lambda *a: (scored.append(1), score(*a)))

    def add_chunks(problem, *rest):
        added.append(problem[2] is None)
        add(problem, *rest)

    monkeypatch.setattr(rows, "add_chunks", add_chunks)
    objective.gradient_sum(coef, 1.0)
    objective.line_losses(coef, direction, STEPS, loss_clip=3.0)
    assert (len(scored), added) == (2, [True])
    for step in STEPS[[2, 0, 20]]:
        scored.clear(), added.clear()
        coef = coef - step * direction
        objective.gradient_sum(coef, 1.0)
        direction = np.random.default_rng(int(10 * step)).normal(size=7)
        objective.line_losses(coef, direction, STEPS, loss_clip=3.0)
        assert (len(scored), added) == (1, [False])


def test_a_copy_in_another_basis_does_not_share_the_scores():
    X, target, coef, direction = problem(300, 5, seed=5)
    plain = Objective(X, target, Logistic())
    plain.line_losses(coef, direction, STEPS, loss_clip=3.0)
    basis = np.random.default_rng(0).normal(size=(6, 6))
    rotated = plain.in_basis(basis)
    expected = Objective(X, target, Logistic()).in_basis(basis).gradient_sum(coef, 1.0)
    assert_array_equal(rotated.gradient_sum(coef, 1.0), expected)
    rotated.line_losses(coef, direction, STEPS, loss_clip=3.0)
    expected = Objective(X, target, Logistic()).gradient_sum(coef, 1.0)
    assert_allclose(plain.gradient_sum(coef, 1.0), expected, rtol=1e-13)


def test_two_threads_may_use_one_objective():
    X, target, *_ = problem(20_000, 6, seed=3)
    shared = Objective(X, target, Logistic(), n_threads=1)

    def search(objective, seed):
        rng, coef, results = np.random.default_rng(seed), np.zeros(7), []
        for _ in range(40):
            direction = objective.gradient_sum(coef, 1.0) * 1e-3
            results.append(objective.line_losses(coef, direction, STEPS, loss_clip=3.0))
            coef = coef - STEPS[rng.integers(21)] * direction
        return np.array(results)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(search, [shared, shared], [1, 2]))
    for seed, got in zip([1, 2], together, strict=True):
        alone = search(Objective(X, target, Logistic(), n_threads=1), seed)
        assert_allclose(got, alone, rtol=1e-11)


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
        ({"steps": np.array([0.1, 0.2])}, "starts at 0"),
        ({"steps": np.zeros(0)}, "starts at 0"),
        ({"steps": np.array([0.0, np.inf])}, "finite"),
        ({"steps": np.array([0.0, 0.1, 0.3])}, "equally spaced"),
        ({"steps": np.array([0.0, -0.1])}, "increasing"),
        ({"loss_clip": None}, "either loss_clip or clip"),
        ({"clip": 1.0}, "either loss_clip or clip"),
        ({"loss_clip": 0.0}, "loss_clip must be positive"),
        ({"loss_clip": math.nan}, "loss_clip must be positive"),
        ({"loss_clip": None, "clip": -1.0}, "clip must be positive"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    X, target, coef, direction = problem(4, 2)
    objective = Objective(X, target, Logistic())
    arguments = {"coef": coef, "direction": direction, "steps": STEPS, "loss_clip": 1.0} | change
    with pytest.raises(ValueError, match=message):
        objective.line_losses(**arguments)


def test_capped_slopes_are_for_one_output():
    X, target, coef, direction = problem(9, 2, 3)
    objective = Objective(X, target, Softmax(), n_outputs=3)
    with pytest.raises(ValueError, match="one output only"):
        objective.line_losses(coef, direction, STEPS, clip=1.0)


@njit(**EXACT)
def log_into(x, out):
    for i in range(x.size):
        out[i] = log(x[i])


def test_log_is_within_two_units_in_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 40_000)), rng.uniform(0.5, 2.0, 40_000)])
    out = np.empty_like(x)
    log_into(x, out)
    assert_allclose(out, np.log(x), rtol=4.5e-16)
    log_into(np.ones(1), out[:1])
    assert out[0] == 0.0
