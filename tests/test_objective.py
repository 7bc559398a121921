"""The objective against row-by-row oracles: values, sensitivity, and sums equal to the last bit."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from dpglm.kernels.threads import rows_per_chunk
from dpglm.losses import Hinge, Logistic, SmoothedHinge, Softmax
from dpglm.sums.objective import Objective

VECTORS = json.loads((Path(__file__).parent / "data" / "gradients.json").read_text())
CASES = [
    (Logistic(), 1),
    (SmoothedHinge(0.3), 1),
    (Hinge(), 1),
    (Softmax(), 2),
    (Softmax(), 4),
    (SmoothedHinge(), 3),
    (Hinge(), 3),
]
SHAPES = [(1, 1), (2, 1), (9, 1), (5, 3), (8, 8), (16, 7), (17, 9), (33, 100), (5, 130), (2600, 5)]


def problem(n, d, n_outputs, fit_intercept=True, seed=0, density=0.6):
    rng = np.random.default_rng(seed)
    X = rng.normal(scale=2.0, size=(n, d)) * (rng.random((n, d)) < density)
    target = rng.choice([-1.0, 1.0], n) if n_outputs == 1 else rng.integers(0, n_outputs, n)
    columns = d + fit_intercept
    return X, target, rng.normal(size=columns if n_outputs == 1 else (columns, n_outputs))


def augmented(X, fit_intercept):
    return np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X


def row_gradients(rows, target, loss, coef, weights=None):
    """Gradient of each row, shape (n, columns) or (n, columns, K), one row at a time."""
    classes = target if coef.ndim == 2 else (target > 0).astype(int)
    weights = np.ones(classes.max() + 1) if weights is None else weights
    gradients = []
    for i in range(len(rows)):
        derivative = loss.derivative((rows[i] @ coef)[np.newaxis], target[i : i + 1])[0]
        gradients.append(weights[classes[i]] * np.multiply.outer(rows[i], derivative))
    return np.array(gradients)


def clipped_sum(gradients, clip):
    total = np.zeros(gradients.shape[1:])
    for gradient in gradients:
        norm = np.linalg.norm(gradient)
        total += gradient if norm <= clip else gradient * (clip / norm)
    return total


def storages(X):
    rows = sparse.csr_array(X)
    long = (rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64))
    return {
        "dense": X,
        "column-major": np.asfortranarray(X),
        "csr_array": rows,
        "csr_matrix": sparse.csr_matrix(X),
        "csr_array int64": sparse.csr_array(long, shape=X.shape),
    }


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_gradient_sum_matches_clipping_row_by_row(loss, n_outputs, fit_intercept):
    for seed, (n, d) in enumerate(SHAPES):
        X, target, coef = problem(n, d, n_outputs, fit_intercept, seed)
        weights = np.random.default_rng(seed).uniform(0.1, 3.0, max(2, n_outputs))
        for dtype in (np.float64, np.float32):
            stored = X.astype(dtype)
            rows = augmented(stored.astype(np.float64), fit_intercept)
            gradients = row_gradients(rows, target, loss, coef, weights)
            for clip in (0.3, 2.0, math.inf):
                expected = clipped_sum(gradients, clip)
                for storage in storages(stored).values():
                    objective = Objective(
                        storage, target, loss, n_outputs=n_outputs,
                        fit_intercept=fit_intercept, class_weight=weights,
                    )  # fmt: skip
                    assert objective.coef_shape == coef.shape
                    got = objective.gradient_sum(coef, clip)
                    assert got.dtype == np.float64
                    scale = max(1e-3, np.abs(expected).max())
                    assert_allclose(got, expected, rtol=0, atol=1e-12 * scale)


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


@pytest.mark.parametrize(("loss", "n_outputs"), CASES, ids=str)
def test_one_row_is_clipped_to_exactly_the_clip_jointly_over_outputs(loss, n_outputs):
    X, target, coef = problem(1, 6, n_outputs, seed=3, density=1.0)
    coef *= 0.01
    objective = Objective(X, target, loss, n_outputs=n_outputs)
    assert np.linalg.norm(objective.gradient_sum(coef, 0.05)) == pytest.approx(0.05, rel=1e-14)


@pytest.mark.parametrize("storage", ["dense", "column-major", "csr_array"])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_number_of_threads_does_not_change_a_bit(storage, n_outputs, dtype):
    X, target, coef = problem(40_003, 21, n_outputs, seed=1)
    stored = storages(X.astype(dtype))[storage]
    loss = Logistic() if n_outputs == 1 else Softmax()
    one, two, five = (
        Objective(stored, target, loss, n_outputs=n_outputs, n_threads=n).gradient_sum(coef, 0.7)
        for n in (1, 2, 5)
    )
    assert_array_equal(one, two)
    assert_array_equal(one, five)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("d", "order"), [(3, "C"), (21, "C"), (21, "F")])
def test_what_a_row_contributes_does_not_depend_on_where_it_stands(n_outputs, dtype, d, order):
    x, label, coef = problem(1, d, n_outputs, seed=2, density=1.0)
    n = 1061
    loss = Logistic() if n_outputs == 1 else Softmax()
    others = np.random.default_rng(0).normal(scale=1e3, size=(n, d))
    contributions = []
    for place in [*range(20), 500, 1023, 1024, *range(n - 20, n)]:
        X = others.copy()
        X[place] = x[0]
        objective = Objective(
            X.astype(dtype, order=order), np.repeat(label, n), loss, n_outputs=n_outputs,
            present=np.arange(n) == place,
        )  # fmt: skip
        contributions.append(objective.gradient_sum(coef, 1e9))
    for contribution in contributions:
        assert_array_equal(contribution, contributions[0])


def test_a_null_record_contributes_nothing_not_even_to_the_intercept():
    X, target, coef = problem(50, 4, 1)
    present = np.random.default_rng(0).random(50) < 0.5
    for storage in storages(X).values():
        masked = Objective(storage, target, Logistic(), present=present)
        kept = Objective(X[present], target[present], Logistic())
        got = masked.gradient_sum(coef, 0.8)
        assert_allclose(got, kept.gradient_sum(coef, 0.8), rtol=1e-12)
        nobody = Objective(storage, target, Logistic(), present=np.zeros(50, dtype=bool))
        assert_array_equal(nobody.gradient_sum(coef, math.inf), np.zeros(5))


def test_a_row_of_zeros_moves_the_intercept_only():
    X, y = np.zeros((3, 2)), np.ones(3)
    for storage in storages(X).values():
        with_intercept = Objective(storage, y, Logistic())
        assert_allclose(with_intercept.gradient_sum(np.zeros(3), math.inf), [0.0, 0.0, -1.5])
        without = Objective(storage, y, Logistic(), fit_intercept=False)
        assert_array_equal(without.gradient_sum(np.zeros(2), math.inf), np.zeros(2))


def magnitudes():
    ordinary = st.floats(-100, 100, allow_subnormal=False)
    extreme = st.sampled_from([0.0, 5e-324, -1e-310, 1e-200, 1e150, -1e154, 1e200, 1e308, -1.7e308])
    return st.one_of(ordinary, extreme)


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


@settings(max_examples=300, deadline=None)
@given(neighbors())
def test_one_record_moves_the_sum_by_at_most_the_clip(case):
    X, other, target, other_label, coef, loss, n_outputs, clip, weights, i = case
    replaced, relabelled = X.copy(), target.copy()
    replaced[i], relabelled[i] = other, other_label
    absent = np.arange(len(X)) != i
    for storage in (np.ascontiguousarray, np.asfortranarray, sparse.csr_array):

        def total(X, target, present=None, storage=storage):
            objective = Objective(
                storage(X), target, loss, n_outputs=n_outputs, class_weight=weights, present=present
            )
            total = objective.gradient_sum(coef, clip)
            assert np.isfinite(total).all()
            return total / clip, objective.rounding_slack(len(X))

        before, slack = total(X, target)
        nulled, _ = total(X, target, absent)
        after, _ = total(replaced, relabelled)
        assert np.linalg.norm(nulled - before) <= 1 + slack
        assert np.linalg.norm(after - before) <= 2 + 2 * slack


def exact_norm_squared(vector):
    return sum(Fraction(float(value)) ** 2 for value in np.ravel(vector))


@pytest.mark.parametrize("condition", [None, 1e3])
@pytest.mark.parametrize("data", ["equal", "alternating", "random"])
def test_rounding_stays_within_the_slack_in_exact_arithmetic(data, condition):
    n, d, clip = 1500, 3, 0.1
    rng = np.random.default_rng(7)
    X, target = np.tile([0.1, 0.7, 1.3], (n, 1)), np.ones(n)
    if data == "alternating":
        target[::2] = -1.0
        X[:, 0] *= rng.uniform(1, 1.1, n)
    elif data == "random":
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6, size=(n, 1))
    basis = np.eye(d + 1)
    if condition:
        left, right = (np.linalg.qr(rng.normal(size=(d + 1, d + 1)))[0] for _ in range(2))
        basis = left * np.geomspace(1.0, condition, d + 1) @ right

    def objective(X, target, present):
        plain = Objective(X, target, Hinge(), present=present)
        return plain.in_basis(basis) if condition else plain

    coef = np.zeros(d + 1)
    everyone = objective(X, target, None)
    total = everyone.gradient_sum(coef, clip)
    slack = Fraction(everyone.rounding_slack(n))
    # each record alone, on its own block of one row: what it contributes, itself within the slack
    alone = [
        objective(X[i : i + 1], target[i : i + 1], None).gradient_sum(coef, clip) for i in range(n)
    ]
    limit = Fraction(clip) * (1 + slack)
    assert all(exact_norm_squared(part) <= limit**2 for part in alone)
    exact = [sum(Fraction(float(part[j])) for part in alone) for j in range(d + 1)]
    error = sum((Fraction(float(total[j])) - exact[j]) ** 2 for j in range(d + 1))
    assert error <= (Fraction(clip) * slack / 2) ** 2
    for i in (0, n // 2, n - 1):
        without = objective(X, target, np.arange(n) != i).gradient_sum(coef, clip)
        change = [
            Fraction(float(a)) - Fraction(float(b)) for a, b in zip(total, without, strict=True)
        ]
        assert sum(value**2 for value in change) <= limit**2


def test_slack_has_its_stated_form_and_reads_only_the_public_count():
    X, target, _ = problem(100, 9, 1)
    small = Objective(X, target, Logistic())
    large = Objective(np.vstack([X] * 30), np.tile(target, 30), Logistic())
    for n in (10, 10**4, 5 * 10**6):
        assert small.rounding_slack(n) == large.rounding_slack(n)
        rows = rows_per_chunk(n, 10)
        at_least = 2 * (2 * 10 + (rows + n / rows + 2 * 10) * n) * 2.0**-53
        assert at_least <= small.rounding_slack(n) <= 1.1 * at_least + 1e-14
    stretched = small.in_basis(np.diag(np.geomspace(1, 1e3, 10)))
    assert stretched.rounding_slack(1000) >= 1e3 * small.rounding_slack(1000)


@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3), (Hinge(), 3)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_in_basis_equals_the_objective_of_the_multiplied_data(loss, n_outputs, fit_intercept):
    rng = np.random.default_rng(5)
    X, target, coef = problem(300, 6, n_outputs, fit_intercept)
    basis = rng.normal(size=(len(coef), len(coef)))
    coef = rng.normal(size=coef.shape)
    rows = augmented(X, fit_intercept) @ basis
    expected = clipped_sum(row_gradients(rows, target, loss, coef), 0.7)
    for storage in storages(X).values():
        plain = Objective(storage, target, loss, n_outputs=n_outputs, fit_intercept=fit_intercept)
        rotated = plain.in_basis(basis)
        assert rotated.coef_shape == coef.shape
        assert_allclose(rotated.gradient_sum(coef, 0.7), expected, rtol=1e-10, atol=1e-11)
        # one basis after another is their product
        half = plain.in_basis(basis @ basis).gradient_sum(coef, 0.7)
        assert_allclose(rotated.in_basis(basis).gradient_sum(coef, 0.7), half, rtol=1e-9, atol=1e-9)


def test_in_basis_with_fewer_directions_keeps_the_sensitivity():
    rng = np.random.default_rng(6)
    X, target, _ = problem(40, 6, 1, density=1.0)
    basis = np.linalg.qr(rng.normal(size=(7, 3)))[0]
    # half of the rows are outside the span of the basis, up to rounding
    outside = rng.normal(size=(20, 4)) @ np.linalg.svd(basis.T)[2][3:]
    X[:20] = outside[:, :-1] / outside[:, -1:]
    objective = Objective(X, target, Logistic()).in_basis(basis)
    assert objective.coef_shape == (3,)
    coef = rng.normal(size=3)
    rows = augmented(X, True) @ basis
    expected = clipped_sum(row_gradients(rows, target, Logistic(), coef), 0.5)
    assert_allclose(objective.gradient_sum(coef, 0.5), expected, rtol=1e-10, atol=1e-10)
    absent = np.arange(40) != 0
    without = Objective(X, target, Logistic(), present=absent).in_basis(basis)
    moved = np.linalg.norm(objective.gradient_sum(coef, 1e-30) - without.gradient_sum(coef, 1e-30))
    assert moved <= 1e-30 * (1 + objective.rounding_slack(40))


def test_penalty_gradient_ignores_the_intercept_in_every_basis():
    rng = np.random.default_rng(8)
    X, target, coef = problem(10, 4, 1)
    plain = Objective(X, target, Logistic())
    assert_array_equal(plain.penalty_gradient(coef), [*coef[:4], 0.0])
    basis = rng.normal(size=(5, 3))
    v, step = rng.normal(size=3), 1e-5

    def penalty(v):
        return 0.5 * np.sum((basis @ v)[:4] ** 2)

    slopes = [(penalty(v + step * e) - penalty(v - step * e)) / (2 * step) for e in np.eye(3)]
    assert_allclose(plain.in_basis(basis).penalty_gradient(v), slopes, rtol=1e-7)
    no_intercept = Objective(X, target, Logistic(), fit_intercept=False)
    assert_array_equal(no_intercept.penalty_gradient(coef[:4]), coef[:4])
    classes = Objective(X, np.zeros(10, dtype=int), Softmax(), n_outputs=2)
    assert_array_equal(classes.penalty_gradient(np.ones((5, 2)))[-1], [0.0, 0.0])


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_row_that_overflows_contributes_exactly_zero(n_outputs):
    X, target, coef = problem(20, 4, n_outputs)
    loss = Logistic() if n_outputs == 1 else Softmax()
    kept = np.arange(20) != 7
    for values in ([1e308, 1e308, -1e308, 1.0], [1.4e154, 0.0, 0.0, 0.0], [1e155, 0.0, 1.0, 0.0]):
        X[7] = values
        for storage in storages(X).values():
            all_rows = Objective(storage, target, loss, n_outputs=n_outputs)
            others = Objective(storage, target, loss, n_outputs=n_outputs, present=kept)
            assert_array_equal(all_rows.gradient_sum(coef, 1.0), others.gradient_sum(coef, 1.0))
    X[7] = [1e100, 0.0, 0.0, 0.0]
    steep = coef * 1e250
    for storage in storages(X).values():
        all_rows = Objective(storage, target, loss, n_outputs=n_outputs)
        others = Objective(storage, target, loss, n_outputs=n_outputs, present=kept)
        assert_array_equal(all_rows.gradient_sum(steep, 1.0), others.gradient_sum(steep, 1.0))


def test_denormal_rows_keep_their_direction_and_their_clip():
    X = np.array([[3e-310, 4e-310], [6e-200, 8e-200], [0.0, 5e-324]])
    for storage in storages(X).values():
        objective = Objective(storage, np.ones(3), Hinge(), fit_intercept=False)
        # far below the clip they contribute themselves
        assert_allclose(objective.gradient_sum(np.zeros(2), 1.0), -X.sum(axis=0), rtol=1e-12)
    unit = Objective(X[1:2], np.ones(1), Hinge(), fit_intercept=False)
    clipped = unit.gradient_sum(np.zeros(2), 1e-150)
    assert_allclose(clipped, -X[1], rtol=1e-12)


def test_csr_with_repeated_columns_is_clipped_by_the_norm_of_the_row_it_means():
    repeated = sparse.csr_array(
        (np.array([3.0, 1.0, 3.0]), np.array([0, 1, 0]), np.array([0, 3])), shape=(1, 2)
    )
    objective = Objective(repeated, np.ones(1), Hinge(), fit_intercept=False)
    gradient = objective.gradient_sum(np.zeros(2), 1.0)
    assert_allclose(gradient, -np.array([6.0, 1.0]) / math.sqrt(37.0), rtol=1e-14)
    assert repeated.nnz == 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_data_are_not_copied_and_may_be_read_only(order):
    X, target, coef = problem(4000, 30, 1)
    X = np.array(X, order=order)
    X.flags.writeable = False
    objective = Objective(X, target, Logistic())
    assert np.shares_memory(objective._rows._data[0], X)
    assert np.isfinite(objective.gradient_sum(coef, 1.0)).all()
    assert np.shares_memory(objective.in_basis(np.eye(31))._rows._data[0], X)


def test_scattered_rows_are_gathered():
    X, target, coef = problem(40, 8, 1)
    scattered = np.repeat(X, 2, axis=1)[:, ::2]
    expected = Objective(X, target, Logistic()).gradient_sum(coef, 1.0)
    assert_array_equal(Objective(scattered, target, Logistic()).gradient_sum(coef, 1.0), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((4, 2), dtype=int)}, "float64 or float32"),
        ({"X": np.array([[1.0, np.nan]] * 4)}, "NaN or infinity"),
        ({"X": sparse.csr_array(np.array([[1.0, np.inf]] * 4))}, "NaN or infinity"),
        ({"X": sparse.csc_array(np.ones((4, 2)))}, "CSR"),
        ({"X": np.ones((0, 2)), "target": np.ones(0)}, "at least one row"),
        ({"target": np.zeros(4)}, "-1 or \\+1"),
        ({"target": np.ones(3)}, "target must have shape"),
        ({"loss": Softmax()}, "number of classes"),
        ({"loss": Softmax(), "n_outputs": 3, "target": np.array([0, 1, 2, 3])}, "from 0 to 2"),
        ({"class_weight": np.ones(3)}, "class_weight must hold 2"),
        ({"class_weight": np.array([1.0, -1.0])}, "class_weight must hold 2"),
        ({"class_weight": np.array([1.0, 1e301])}, "class_weight must hold 2"),
        ({"present": np.ones(4)}, "bool array"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {"X": np.ones((4, 2)), "target": np.ones(4), "loss": Logistic()} | change
    X, target, loss = (arguments.pop(name) for name in ("X", "target", "loss"))
    with pytest.raises(ValueError, match=message):
        Objective(X, target, loss, **arguments)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, 1e-200])
def test_clip_must_be_positive(clip):
    X, target, coef = problem(4, 2, 1)
    with pytest.raises(ValueError, match="clip must be positive"):
        Objective(X, target, Logistic()).gradient_sum(coef, clip)


def test_shapes_of_coefficients_and_bases_are_checked():
    X, target, _ = problem(4, 2, 1)
    objective = Objective(X, target, Logistic())
    with pytest.raises(ValueError, match=r"coef must have shape \(3,\)"):
        objective.gradient_sum(np.zeros(2), 1.0)
    with pytest.raises(ValueError, match="3 rows"):
        objective.in_basis(np.eye(2))
    with pytest.raises(ValueError, match="must not be zero"):
        objective.in_basis(np.zeros((3, 2)))
