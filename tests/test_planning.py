"""Planning: the number of iterations worth their noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpglm.planning import optimal_n_iter, public_constants
from dpglm.schedules import PublicFacts


def risk_bound(n_iter, kappa, noise_to_gap, is_dynamic):
    """gamma^T + sum q_t sigma_t^2 at R = 1; the sum is (sum sqrt q)^2 by Lemma 3.1, or T sum q."""
    gamma = 1 - 1 / kappa
    q = noise_to_gap * gamma ** np.arange(n_iter - 1.0, -1, -1)
    return gamma**n_iter + (np.sqrt(q).sum() ** 2 if is_dynamic else n_iter * q.sum())


def test_optimal_n_iter_matches_the_vectors(vectors):
    for row in vectors("schedules", "hong_T_star"):
        arguments = row["kappa"], row["alpha"]
        assert optimal_n_iter(*arguments) == max(1, row["T_dyn_exact_argmin"])
        found = optimal_n_iter(*arguments, dynamic=False)
        assert found == max(1, row["T_uniform_exact_argmin"])


@settings(max_examples=40, deadline=None)
@given(kappa=st.floats(1.01, 15), noise_to_gap=st.floats(-7, 0.5).map(lambda x: 10.0**x))
def test_optimal_n_iter_is_the_minimum_of_the_bound(kappa, noise_to_gap):
    for is_dynamic in (True, False):
        bounds = [risk_bound(t, kappa, noise_to_gap, is_dynamic) for t in range(1, 500)]
        best = bounds[optimal_n_iter(kappa, noise_to_gap, dynamic=is_dynamic) - 1]
        assert best <= min(bounds) * (1 + 1e-12)


def test_public_constants_match_the_vectors(vectors):
    (row,) = vectors("schedules", "hong_public_constants")
    facts = PublicFacts(
        row["N"],
        row["D"],
        alpha=row["lam"],
        curvature=0.25,
        row_bound=row["row_norm"],
        mu=math.sqrt(row["R"]),
    )
    expected = row["kappa"], row["alpha"]
    assert public_constants(facts) == pytest.approx(expected, rel=row["rtol"])
    explicit = replace(facts, row_bound=None, clip=np.array([1.0, 0.5]))
    found = public_constants(explicit, row_bound=1.0, gap=row["f0_gap_upper"])
    assert found == pytest.approx(expected, rel=row["rtol"])


def test_noise_to_gap_grows_with_clip_and_outputs():
    facts = PublicFacts(100, 5, alpha=0.1, curvature=0.25, row_bound=1.0, mu=0.5)
    kappa, noise = public_constants(facts)
    assert kappa == pytest.approx(3.5)
    assert public_constants(replace(facts, clip=np.full(3, 2.0)))[1] == pytest.approx(4 * noise)
    three = public_constants(replace(facts, n_outputs=3))[1]
    assert three == pytest.approx(3 * noise * math.log(2) / math.log(3))
    assert public_constants(facts, gap=1.0)[1] == pytest.approx(noise * math.log(2))


def test_a_contraction_in_one_step_needs_one_iteration():
    assert optimal_n_iter(1.0, 1e-9) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0.5, 1e-3), "kappa=0.5"),
        ((math.inf, 1e-3), "kappa=inf"),
        ((math.nan, 1e-3), "kappa=nan"),
        ((10.0, 0.0), "noise_to_gap=0.0"),
        ((10.0, math.inf), "noise_to_gap=inf"),
    ],
)
def test_bad_constants_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        optimal_n_iter(*arguments)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mu": None}, "mu=None"),
        ({"mu": math.inf}, "mu=inf"),
        ({"alpha": 0.0}, "positive alpha"),
        ({"row_bound": None}, "finite row_bound"),
        ({"curvature": math.inf}, "finite curvature"),
    ],
)
def test_missing_facts_are_asked_for(change, complaint):
    facts = PublicFacts(100, 5, alpha=0.1, curvature=0.25, row_bound=1.0, mu=0.5)
    with pytest.raises(ValueError, match=complaint):
        public_constants(replace(facts, **change))
