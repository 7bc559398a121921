"""The objective against row-by-row oracles: values, sensitivity, and sums equal to the last bit."""

import json
import math
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    CASES,
    STEPS,
    augmented,
    clipped_sum,
    line_bounds,
    line_terms,
    loss_for,
    magnitudes,
    nulled,
    problem,
    storages,
)
from scipy import sparse

from dpglm.estimators.solvers import Coordinates
from dpglm.losses import Hinge, Logistic, Softmax
from dpglm.sums.objective import Objective, rows_per_chunk
from dpglm.sums.reference import Tolerance

VECTORS = json.loads((Path(__file__).parent / "data" / "gradients.json").read_text())
SHAPES = [(1, 1), (2, 1), (8, 8), (17, 9), (33, 100), (5, 130), (1100, 5)]


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_sums_and_their_reference_match_clipping_row_by_row(loss, n_outputs):
    for seed, (n, d) in enumerate(SHAPES):
        weights = np.random.default_rng(seed).uniform(0.1, 3.0, max(2, n_outputs))
        fit_intercept = seed % 3 > 0
        X, target, coef, _ = problem(n, d, n_outputs, seed, fit_intercept=fit_intercept)
        X = X.astype(np.float32) if seed % 2 else X
        objectives = [
            Objective(
                storage, target, loss, n_outputs=n_outputs,
                fit_intercept=fit_intercept, class_weight=weights,
            )
            for storage in (X, sparse.csr_array(X))
        ]  # fmt: skip
        rows = augmented(X.astype(np.float64), fit_intercept)
        for clip in (0.3, 2.0, math.inf):
            total = clipped_sum(rows, target, loss, coef, clip, weights)
            scale = max(1e-3, np.abs(total).max())
            for sums in (*objectives, objectives[seed % 2].reference):
                got = sums.gradient_sum(coef, clip)
                assert got.dtype == np.float64 and got.shape == coef.shape
                assert_allclose(got, total, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_a_sum_may_miss_its_reference_by_what_rounding_can_do_and_no_more(loss, n_outputs):
    X, target, coef, _ = problem(1, 60, n_outputs, seed=3)
    reference, clip, u = Objective(X, target, loss, n_outputs=n_outputs).reference, 1.0, 2.0**-53
    right, norm = reference.gradient_sum(coef, clip), math.hypot(np.linalg.norm(X), 1.0)
    shift = 4 * (61 + 4) * u * norm * np.linalg.norm(coef)
    moved = loss.curvature * math.sqrt(n_outputs) * shift if loss.curvature < math.inf else 0.0
    most = min(loss.lipschitz, clip / norm) * math.sqrt(n_outputs)
    allowed = (moved + 2.0**-45) * norm + (1 + 60 + 2) * u * norm * most + 1e-10 * clip
    off = right.copy()
    off.flat[0] += 1e-9
    excess = np.linalg.norm(off - right) - allowed
    ask = methodcaller("gradient_sum", coef, clip)
    found = reference.excess(off, ask, SimpleNamespace(rounding_slack=lambda n: 1e-10))
    assert found == pytest.approx(excess, rel=0, abs=2e-15)
    assert reference.excess(right, ask, SimpleNamespace(rounding_slack=lambda n: 0.0)) == 0.0


def test_no_row_may_be_longer_than_the_kernels_take_it_to_be():
    reference = Objective(*problem(9, 3)[:2], Logistic()).reference
    last, ask = np.arange(9) == 8, methodcaller("gradient_sum", np.zeros(4), 1.0)
    exact = SimpleNamespace(rounding_slack=lambda n: 0.0)
    for factor, holds in ((1 + 2.0**-20.5, True), (1 + 2.0**-19.5, False), (1.9, False)):
        longer = np.where(last, factor, 1.0) * reference.inverse_norms
        taken = replace(reference, inverse_norms=longer)
        assert (taken.excess(ask(taken), ask, exact) == 0.0) == holds


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_kernels_and_plain_arithmetic_agree_on_any_part_of_the_rows(
    loss, n_outputs, store, monkeypatch
):
    X, target, coef, _ = problem(2600, 5, n_outputs)
    plain = Objective(store(X), target, loss, n_outputs=n_outputs)
    basis = np.random.default_rng(1).normal(size=(6, 6))
    for of in (None, np.linspace(0.5, 2.0, 6), basis, basis[:, :4]):
        objective = plain if of is None else plain.in_basis(of)
        coef = coef[: objective.coef_shape[0]]
        ask = methodcaller("gradient_sum", coef, 0.7)
        for rows in (range(2600), range(1), range(1300, 1700), range(2599, 2600)):
            assert objective.confirm(ask, np.array(rows)) == 0.0
        compiled = ask(objective)
        with monkeypatch.context() as patch:
            patch.setenv("DPGLM_KERNELS", "numpy")
            assert_allclose(ask(objective), compiled, atol=1e-9)


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_plain_losses_along_a_line_are_those_of_the_oracle(loss, n_outputs):
    X, target, coef, direction = problem(90, 3, n_outputs, scale=3.0)
    weights = np.array([2.0, 0.5, 1.0, 1.5, 0.7])[: max(2, n_outputs)]
    rows, here = np.vstack([X, np.full(3, 1e308)]), np.append(target, target[0])
    reference = Objective(rows, here, loss, n_outputs=n_outputs, class_weight=weights).reference
    for bound in line_bounds(n_outputs):
        line = coef, direction, STEPS
        expected = line_terms(augmented(X), target, loss, *line, weights=weights, **bound)
        with np.errstate(all="ignore"):
            found = reference.line_terms(*line, **bound)
        assert_allclose(found[:-1], expected.astype(float), rtol=1e-9, atol=1e-12)
        assert not found[-1].any(), "a null record"


def test_a_row_may_be_counted_on_either_side_of_a_bound_and_may_overflow_once():
    rows, groups = np.array([[1.0], [1.0], [5.0], [5.0]]), np.array([0, 0, 1, 1])
    plain = Objective(rows, np.ones(4), Logistic(), fit_intercept=False).reference
    ask = methodcaller("norm_histogram", np.array([1.0, 2.0]))
    assert plain.excess(np.array([0.0, 2.0, 2.0]), ask, None) == 0.0
    assert plain.excess(np.array([0.0, 4.0, 0.0]), ask, None) > 0.0
    no_rounding = SimpleNamespace(moment_rounding=float, rounding_slack=lambda n: 0.0)
    tolerance = Tolerance(replace(plain, x=1e200 * rows), no_rounding)
    of_two = {"groups": groups, "max_contributions": 2, "fit_intercept": False}
    persons = Objective(rows, np.ones(4), Logistic(), **of_two).reference
    persons = replace(persons, x=1e200 * rows, inverse_norms=1e-200 * persons.inverse_norms)
    with np.errstate(all="ignore"):
        moved = tolerance.second_moment(1.0, False, np.array([1e200]))
        of_persons = Tolerance(persons, no_rounding).gradient_sum(np.array([1e200]), 3.0)
    assert moved == pytest.approx(4 + 4 * 2.0)
    assert tolerance._units(3) == (4 + 3 + 2) * 2.0**-53
    assert of_persons == pytest.approx(2 * 2 * 3.0)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["kind"])
def test_published_vectors(vector):
    X = np.array([vector["x"]])
    if vector["kind"] == "softmax":
        objective = Objective(X, np.array([vector["y"]]), Softmax(), n_outputs=3)
        gradient = objective.gradient_sum(np.array(vector["W"]), math.inf)
        residual = np.array(vector["prob"]) - np.eye(3)[vector["y"]]
        assert_allclose(gradient, np.outer([*vector["x"], 1.0], residual), rtol=1e-12)
        assert np.linalg.norm(gradient) == pytest.approx(vector["grad_fro"], rel=vector["rtol"])
    else:
        objective = Objective(X, np.array([vector["y"]]), Logistic())
        coef = np.array(vector["w"])
        assert_allclose(objective.gradient_sum(coef, math.inf), vector["grad"], rtol=1e-12)
        assert_allclose(objective.gradient_sum(coef, vector["clip"]), vector["clipped"], rtol=1e-12)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [3, 21])
def test_what_a_row_contributes_does_not_depend_on_where_it_stands(n_outputs, dtype, d):
    x, label, coef, _ = problem(1, d, n_outputs, 2, density=1.0)
    n = 1061
    # The others are of a class without weight.
    labels = np.repeat(-label if n_outputs == 1 else (label + 1) % n_outputs, n)
    weights = np.zeros(max(2, n_outputs))
    weights[int(label[0] > 0) if n_outputs == 1 else label[0]] = 1.0
    X = np.random.default_rng(0).normal(scale=1e3, size=(n, d)).astype(dtype)
    contributions = []
    for place in [*range(20), 500, 1023, 1024, *range(n - 20, n)]:
        rows, target = X.copy(), labels.copy()
        rows[place], target[place] = x[0], label[0]
        objective = Objective(
            rows, target, loss_for(n_outputs), n_outputs=n_outputs, class_weight=weights
        )
        contributions.append(objective.gradient_sum(coef, 1e9))
    assert (np.array(contributions) == contributions[0]).all()


@st.composite
def neighbors(draw):
    n, d = draw(st.integers(1, 20)), draw(st.integers(1, 10))
    loss, n_outputs = draw(st.sampled_from(CASES))
    values = magnitudes()
    X = draw(hnp.arrays(np.float64, (n, d), elements=values))
    other = draw(hnp.arrays(np.float64, d, elements=values))
    labels = st.sampled_from([-1.0, 1.0]) if n_outputs == 1 else st.integers(0, n_outputs - 1)
    target = np.array(draw(st.lists(labels, min_size=n, max_size=n)))
    shape = (d + 1,) if n_outputs == 1 else (d + 1, n_outputs)
    coef = draw(hnp.arrays(np.float64, shape, elements=st.one_of(values, st.just(0.0))))
    clip = draw(st.sampled_from([2.0**-500, 1e-100, 0.1, 1.0, 1e10]))
    weights = draw(st.sampled_from([1e-3, 1.0, 50.0])) * np.ones(max(2, n_outputs))
    i = draw(st.integers(0, n - 1))
    return X, other, target, draw(labels), coef, loss, n_outputs, clip, weights, i


@settings(max_examples=80, deadline=None)
@given(neighbors(), st.sampled_from([np.asarray, sparse.csr_array]), st.none() | st.floats(-6, 6))
def test_one_record_moves_the_sum_by_at_most_the_clip(case, store, spread):
    X, other, target, other_label, coef, loss, n_outputs, clip, weights, i = case
    replaced, relabelled = X.copy(), target.copy()
    replaced[i], relabelled[i] = other, other_label

    def objective(rows, labels):
        plain = Objective(store(rows), labels, loss, n_outputs=n_outputs, class_weight=weights)
        return plain if spread is None else plain.in_basis(np.geomspace(1, 10**spread, len(coef)))

    null = nulled(X, np.arange(len(X)) == i)
    before, without, after = (
        objective(*table) for table in ((X, target), (null, target), (replaced, relabelled))
    )
    slack = before.rounding_slack(len(X))
    # As in a vault: whether numpy complains would depend on the data.
    with np.errstate(all="ignore"):
        before, without, after = (o.gradient_sum(coef, clip) for o in (before, without, after))
    assert np.isfinite([before, without, after]).all()
    assert np.linalg.norm((without - before) / clip) <= 1 + slack
    assert np.linalg.norm((after - before) / clip) <= 2 + 2 * slack


def test_slack_has_its_stated_form_and_reads_only_the_public_count():
    X, target, *_ = problem(100, 9)
    small = Objective(X, target, Logistic())
    large = Objective(np.vstack([X] * 30), np.tile(target, 30), Logistic())
    for n in (10, 10**4, 5 * 10**6):
        assert small.rounding_slack(n) == large.rounding_slack(n)
        rows = rows_per_chunk(n, 10)
        at_least = 2 * (2 * 10 + (rows + n / rows + 2 * 10) * n) * 2.0**-53
        assert at_least <= small.rounding_slack(n) <= 1.1 * at_least + 1e-14
        assert small.line_rounding(n, 3.0) == large.line_rounding(n, 3.0)
        assert small.line_rounding(n, 3.0) < small.line_rounding(2 * n, 3.0)
        assert small.line_rounding(n, 3.0) < small.line_rounding(n, 6.0)
    stretched = small.in_basis(np.geomspace(1, 1e6, 10))
    weighted = Objective(X, target, Logistic(), class_weight=np.array([1.0, 1e3]))
    assert stretched.rounding_slack(1000) >= 1e6 * small.rounding_slack(1000)
    for other in (stretched, weighted):
        assert other.line_rounding(10, 1.0) > 100 * small.line_rounding(10, 1.0)


@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3), (Hinge(), 3)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_in_basis_equals_the_objective_of_the_multiplied_data(loss, n_outputs, fit_intercept):
    rng = np.random.default_rng(5)
    X, target, coef, direction = problem(150, 6, n_outputs, fit_intercept=fit_intercept)
    matrix, scales = rng.normal(size=(len(coef), len(coef))), rng.uniform(0.5, 2.0, len(coef))
    for bases in ((matrix,), (scales,), (matrix, scales), (scales, matrix), (matrix, matrix)):
        rows = augmented(X, fit_intercept)
        for basis in bases:
            rows = rows @ (basis if basis.ndim == 2 else np.diag(basis))
        expected = clipped_sum(rows, target, loss, coef, 0.7)
        multiplied = Objective(rows, target, loss, n_outputs=n_outputs, fit_intercept=False)
        for storage in storages(X):
            rotated = Objective(
                storage, target, loss, n_outputs=n_outputs, fit_intercept=fit_intercept
            )
            for basis in bases:
                rotated = rotated.in_basis(basis)
            assert rotated.coef_shape == coef.shape
            assert_allclose(rotated.gradient_sum(coef, 0.7), expected, rtol=1e-9, atol=1e-9)
            for bounds in line_bounds(n_outputs):
                got, losses = (
                    o.line_losses(coef, direction, STEPS, **bounds) for o in (rotated, multiplied)
                )
                assert_allclose(got, losses, rtol=1e-9, atol=1e-9)


def test_rows_outside_of_the_span_of_a_basis_count_by_what_rounding_leaves_of_them():
    rng = np.random.default_rng(6)
    X, target, *_ = problem(40, 6, density=1.0)
    basis, coef = np.linalg.qr(rng.normal(size=(7, 3)))[0], rng.normal(size=3)
    outside = rng.normal(size=(20, 4)) @ np.linalg.svd(basis.T)[2][3:]
    X[:20] = outside[:, :-1] / outside[:, -1:]
    everyone, without = (
        Objective(rows, target, Logistic()).in_basis(basis)
        for rows in (X, nulled(X, np.arange(40) == 0))
    )
    moved = np.linalg.norm(everyone.gradient_sum(coef, 1e-30) - without.gradient_sum(coef, 1e-30))
    assert moved <= 1e-30 * (1 + everyone.rounding_slack(40))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [1, 7, 8, 21])
def test_no_row_is_longer_in_a_basis_than_its_norm_says_wherever_it_stands(d, dtype):
    rng = np.random.default_rng(d)
    n = 61
    X = (rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6)).astype(dtype)
    order = rng.permutation(n)
    for k in {1, (d + 1) // 2 or 1, d + 1, d + 9}:
        basis = rng.normal(size=(d + 1, k)) * 10.0 ** rng.uniform(-3, 3, size=k)
        lengths = np.linalg.norm(augmented(X.astype(float), True) @ basis, axis=1)
        for rows, moved in zip(storages(X), storages(X[order]), strict=True):
            inverse, of_moved = (
                Objective(stored, np.ones(n), Logistic()).in_basis(basis).norms[1][:n]
                for stored in (rows, moved)
            )
            assert (inverse * lengths <= 1 + 1e-9).all()
            if k > d:
                assert_allclose(inverse * lengths, 1.0, rtol=1e-6)
            assert_array_equal(of_moved, inverse[order])


@pytest.mark.parametrize(("alpha", "fit_intercept"), [(0.0, True), (0.7, True), (0.7, False)])
@pytest.mark.parametrize("prior", [None, (0.3, np.array([2.0, 0.5, 1e-3, 300.0, math.inf]))])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_penalty_and_prior_change_by_differences_of_what_they_are_in_every_basis(
    n_outputs, prior, alpha, fit_intercept
):
    rng = np.random.default_rng(9)
    plain = Coordinates(Logistic(), 5, n_outputs, fit_intercept=fit_intercept, prior=prior)

    def value(space, v):
        coef = space.original(v)
        strength, scale = prior or (0.0, np.ones(5))
        logarithms = np.log(1 + (coef.T / scale) ** 2).sum()
        penalized = coef[:-1] if fit_intercept else coef
        return alpha / 2 * (penalized**2).sum() + strength * logarithms

    for basis in (None, rng.normal(size=(5, 5)), rng.normal(size=(5, 4)), rng.uniform(0.5, 2.0, 5)):
        space = replace(plain, basis=basis)
        v, direction = rng.normal(size=(2, *space.shape))
        steps = np.array([0.0, 0.1, 1.0, 30.0])
        changes = space.regularization_changes(v, direction, steps, alpha)
        expected = [value(space, v - step * direction) - value(space, v) for step in steps]
        assert_allclose(changes, expected, rtol=1e-9, atol=1e-12)
        # Steps so small that values cannot tell them: the slope says it, to all its digits.
        slope = np.vdot(direction, np.zeros(space.shape) + space.regularization(v, alpha))
        for step in (1e-9, 1e-14):
            (change,) = space.regularization_changes(v, direction, np.array([step]), alpha)
            assert change == pytest.approx(-step * slope, rel=1e-5, abs=1e-25)
        h = 1e-5
        slopes = value(space, v + h * direction) - value(space, v - h * direction)
        assert slope == pytest.approx(slopes / (2 * h), rel=1e-5, abs=1e-9)


def test_denormal_rows_keep_their_direction_and_their_clip():
    X = np.array([[3e-310, 4e-310], [6e-200, 8e-200], [0.0, 5e-324]])
    for storage in storages(X):
        objective = Objective(storage, np.ones(3), Hinge(), fit_intercept=False)
        # far below the clip they contribute themselves
        assert_allclose(objective.gradient_sum(np.zeros(2), 1.0), -X.sum(axis=0), rtol=1e-12)
    unit = Objective(X[1:2], np.ones(1), Hinge(), fit_intercept=False)
    clipped = unit.gradient_sum(np.zeros(2), 1e-150)
    assert_allclose(clipped, -X[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((4, 2), dtype=int)}, "float64 or float32"),
        ({"X": np.array([[1.0, np.nan]] * 4)}, "contains (NaN|infinity)"),
        ({"X": sparse.csr_array(np.array([[1.0, np.inf]] * 4))}, "contains (NaN|infinity)"),
        ({"X": sparse.csc_array(np.ones((4, 2)))}, "CSR"),
        ({"target": np.zeros(4)}, "-1 or \\+1"),
        ({"loss": Softmax()}, "number of classes"),
        ({"loss": Softmax(), "n_outputs": 3, "target": np.array([0, 1, 2, 3])}, "from 0 to 2"),
        ({"class_weight": np.array([1.0, -1.0])}, "class_weight must hold 2"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {"X": np.ones((4, 2)), "target": np.ones(4), "loss": Logistic()} | change
    X, target, loss = (arguments.pop(name) for name in ("X", "target", "loss"))
    with pytest.raises(ValueError, match=message):
        Objective(X, target, loss, **arguments)


def test_bad_questions_are_refused():
    X, target, coef, _ = problem(4, 2)
    objective = Objective(X, target, Logistic())
    for clip in (0.0, -1.0, math.nan, 1e-200):
        with pytest.raises(ValueError, match="clip must be positive"):
            objective.gradient_sum(coef, clip)
    with pytest.raises(ValueError, match=r"coef must have shape \(3,\)"):
        objective.gradient_sum(np.zeros(2), 1.0)
    with pytest.raises(ValueError, match="3 rows"):
        objective.in_basis(np.eye(2))
    with pytest.raises(ValueError, match="must not be zero"):
        objective.in_basis(np.zeros((3, 2)))
