"""The kernels against their oracles on problems small enough to run without a compiler."""

import math

import numpy as np
import pytest
import test_line_search as lines
import test_objective as gradients
from numpy.testing import assert_allclose

from dpglm.kernels.bases import extreme_stretches
from dpglm.losses import Logistic, SmoothedHinge, Softmax
from dpglm.objective import Objective

# A block of 256 rows and a part of one; groups that are not full; one chunk and a part of one.
SIZES = [(9, 1), (27, 10), (300, 3)]


def assert_gradients_match(objective, rows, target, loss, coef, weights, clip, chosen=None):
    chosen = np.arange(len(rows)) if chosen is None else chosen
    terms = gradients.row_gradients(rows, target, loss, coef, weights)[chosen]
    expected = gradients.clipped_sum(terms, clip)
    got = objective.gradient_sum(coef, clip, *([chosen] if len(chosen) < len(rows) else []))
    assert_allclose(got, expected, rtol=0, atol=1e-12 * max(1e-3, np.abs(expected).max()))


@pytest.mark.parametrize(("loss", "n_outputs"), gradients.CASES, ids=str)
def test_clipped_sums_match_row_by_row(loss, n_outputs):
    for seed, (n, d) in enumerate(SIZES):
        X, target, coef = gradients.problem(n, d, n_outputs, True, seed)
        weights = np.array([0.7, 1.9, 0.4, 1.1])[: max(2, n_outputs)]
        rows = gradients.augmented(X, True)
        for storage in gradients.storages(X).values():
            objective = Objective(storage, target, loss, n_outputs=n_outputs, class_weight=weights)
            for clip in (0.3, math.inf):
                assert_gradients_match(objective, rows, target, loss, coef, weights, clip)
            some = np.arange(1, n, 3)
            assert_gradients_match(objective, rows, target, loss, coef, weights, 1.0, some)


@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3)], ids=str)
def test_several_chunks_are_summed_each_once(loss, n_outputs):
    X, target, coef = gradients.problem(2100, 2, n_outputs, False, 3)
    weights = np.ones(max(2, n_outputs))
    for storage in gradients.storages(X).values():
        objective = Objective(storage, target, loss, n_outputs=n_outputs, fit_intercept=False)
        assert_gradients_match(objective, X, target, loss, coef, weights, 1.0)


@pytest.mark.parametrize(("loss", "n_outputs"), [(Logistic(), 1), (Softmax(), 3)], ids=str)
def test_scores_that_a_line_search_left_give_the_same_gradient(loss, n_outputs):
    X, target, coef = gradients.problem(45, 5, n_outputs, True, 4)
    for storage in gradients.storages(X).values():
        searched, fresh = (Objective(storage, target, loss, n_outputs=n_outputs) for _ in range(2))
        direction = np.ones_like(coef) / 4
        searched.line_losses(coef, direction, np.linspace(0, 1, 3), loss_clip=5.0)
        for point in (coef, coef - 0.5 * direction):
            got, expected = (o.gradient_sum(point, 1.0) for o in (searched, fresh))
            assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_rows_of_any_size_move_the_sum_by_the_clip_at_most(n_outputs):
    loss = Logistic() if n_outputs == 1 else Softmax()
    X, target, coef = gradients.problem(20, 3, n_outputs, True, 5)
    X[3], X[8], X[13] = 1e308, 1e-300, [1e200, -1e200, 0.0]
    for storage in gradients.storages(X).values():
        whole = Objective(storage, target, loss, n_outputs=n_outputs)
        total = whole.gradient_sum(coef, 0.5)
        for i in (3, 8, 13, 14):
            rest = np.delete(np.arange(20), i)
            without = whole.gradient_sum(coef, 0.5, rest)
            assert np.linalg.norm(total - without) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("scale", [0.3, 300.0])
@pytest.mark.parametrize(("loss", "n_outputs"), lines.CASES, ids=str)
def test_losses_along_a_line_match_term_by_term(loss, n_outputs, scale):
    for n, n_steps in ((1, 1), (14, 12), (9, 60)):
        X, target, coef, direction = lines.problem(n, 4, n_outputs, n, scale)
        weights = np.array([0.7, 1.9, 0.4, 1.1, 0.8])[: max(2, n_outputs)]
        objective = Objective(X, target, loss, n_outputs=n_outputs, class_weight=weights)
        steps = np.linspace(0.0, 2.0, n_steps)
        bounds = [{"loss_clip": 1.0}, {"loss_clip": math.inf}]
        bounds += [{"clip": 0.5}, {"clip": 30.0}] if n_outputs == 1 else []
        for bound in bounds:
            got = objective.line_losses(coef, direction, steps, **bound)
            terms = lines.expected_terms(
                lines.augmented(X), target, loss, coef, direction, steps, weights=weights, **bound
            )
            size = np.abs(terms).sum(axis=0).astype(float)
            error = np.abs(got - terms.sum(axis=0).astype(float))
            assert (error <= 1e-12 * (size + n)).all()


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge()], ids=str)
def test_losses_of_several_blocks_are_summed_each_once(loss):
    X, target, coef, direction = lines.problem(1300, 1, 1, 6)
    objective = Objective(X, target, loss)
    steps = np.linspace(0.0, 1.0, 2)
    for bound in ({"loss_clip": 3.0}, {"clip": 0.6}):
        got = objective.line_losses(coef, direction, steps, **bound)
        terms = lines.expected_terms(
            lines.augmented(X), target, loss, coef, direction, steps, weights=[1.0, 1.0], **bound
        )
        assert_allclose(got, terms.sum(axis=0).astype(float), rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("steps", [np.linspace(0.0, 0.2, 5), np.linspace(0.0, 0.2, 9)], ids=len)
def test_losses_that_bend_a_little_gain_by_their_straight_parts(steps):
    rng = np.random.default_rng(8)
    X, target, one = rng.normal(scale=0.1, size=(30, 2)), np.ones(30), np.array([1.0, 0.0, 0.0])
    objective = Objective(X, -target, Logistic())
    for clip in (0.48, 0.5, 0.52):
        got = objective.line_losses(0.1 * one, -one, steps, clip=clip)
        terms = lines.expected_terms(
            lines.augmented(X), -target, Logistic(), 0.1 * one, -one, steps,
            weights=[1.0, 1.0], clip=clip,
        )  # fmt: skip
        assert_allclose(got, terms.sum(axis=0).astype(float), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_a_range_of_chunks_writes_the_scores_of_its_rows_alone(first):
    X, target, coef = gradients.problem(2100, 2, 1, True, 9)
    for storage in gradients.storages(X).values():
        objective = Objective(storage, target, Logistic())
        scores = np.full((1, objective._signed.size), 7.0)
        features, bias = objective._split(coef)
        objective._rows.score_chunks(features, bias, (1024, first, first + 1), scores)
        part = slice(1024 * first, 1024 * (first + 1))
        assert_allclose(scores[0, part], (gradients.augmented(X, True) @ coef)[part], rtol=1e-12)
        assert (np.delete(scores[0], np.arange(2100)[part]) == 7.0).all()


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_basis_of_any_scale_spans_what_it_spans(scale):
    got = extreme_stretches(scale * np.diag([2.0, 1.0, 3.0]))
    assert_allclose(got, (scale * math.sqrt(14.0), scale), rtol=1e-12)
    flat = extreme_stretches(scale * np.diag([2.0, 1e-13, 3.0]))
    assert_allclose(flat, (scale * math.sqrt(13.0), scale * 2.0 / 1024), rtol=1e-12)
