"""Poisson samples: an exact law, and sums over the sampled rows alone."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from problems import loss_for, nulled, problem
from scipy import sparse
from scipy.stats import binom, chisquare, norm

from dpglm import DPLinearSVM, DPLogisticRegression
from dpglm.losses import Logistic
from dpglm.privacy import noise
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.composition import loss_distribution
from dpglm.privacy.events import SampledGaussianEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import entropy_source, fixed_sample, poisson_sample
from dpglm.privacy.vault import Vault, grid_spacing
from dpglm.sums.objective import Objective

REPLACED = ("poisson_replace_one", "without_replacement")


def batch_sizes(n_rows, rate, n_draws=5_000):
    entropy = entropy_source(0)
    return np.array([len(poisson_sample(n_rows, rate, entropy)) for _ in range(n_draws)])


def parts_of_a_batch(n_rows, rate, n_parts=20_000):
    """Sizes of equal parts of one large batch, which have the same law."""
    rows = poisson_sample(n_rows * n_parts, rate, entropy_source(0))
    return np.bincount(rows // n_rows, minlength=n_parts)


@pytest.mark.parametrize("drawn", [batch_sizes, parts_of_a_batch])
@pytest.mark.parametrize(("n_rows", "rate"), [(50, 0.3), (7, 0.99), (100_000, 1e-4), (20, 0.5)])
def test_batch_sizes_are_binomial(n_rows, rate, drawn):
    sizes = drawn(n_rows, rate)
    counts = np.arange(n_rows + 1)
    law = binom.pmf(counts, n_rows, rate)
    first, last = np.flatnonzero(len(sizes) * law >= 10)[[0, -1]]
    expected = np.concatenate([[law[:first].sum()], law[first : last + 1], [law[last + 1 :].sum()]])
    observed = np.concatenate(
        [
            [(sizes < first).sum()],
            np.bincount(sizes, minlength=n_rows + 1)[first : last + 1],
            [(sizes > last).sum()],
        ]
    )
    possible = expected > 0
    assert chisquare(observed[possible], expected[possible] * len(sizes)).pvalue > 5e-5


ONES = [2**64 - 1] * 1000


# Nearly, so that no skip at rate 1/2 is an integer before it is rounded.
NO_BITS, ALL_BITS = (2, 0), (2**64 - 2, 2**64 - 1)


def exact_skip(word, more, rate):
    with mpmath.workdps(80):
        tail = mpmath.mpf((word << 128 | more[1] << 64 | more[0]) + 1) / mpmath.mpf(2) ** 192
        return int(mpmath.log(tail) / mpmath.log1p(-mpmath.mpf(rate)))


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999])
def test_a_skip_is_exact_whatever_the_bits_that_were_not_drawn(rate, scripted_entropy):
    rng = np.random.default_rng(2)
    words = [*range(40), *(int(w) >> int(s) for w, s in zip(
        rng.integers(0, 2**64, 100, dtype=np.uint64), rng.integers(0, 64, 100), strict=True
    ))]  # fmt: skip
    for word in words:
        for more in (NO_BITS, ALL_BITS):
            source = scripted_entropy([word, *more])
            assert noise._skips(1, rate, source)[0] == exact_skip(word, more, rate)


@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.03, 0.7])
def test_a_skip_is_exact_next_to_an_integer(rate, scripted_entropy):
    drawn, lengths = 0, {math.ceil(x / rate) for x in np.linspace(0.3, 25.0, 60)}
    for length in lengths:
        with mpmath.workdps(80):
            edge = int(mpmath.mpf(2) ** 64 * mpmath.exp(length * mpmath.log1p(-mpmath.mpf(rate))))
        for word in (edge - 1, edge, edge + 1):
            for more in (NO_BITS, ALL_BITS):
                source = scripted_entropy([word, *more])
                assert noise._skips(1, rate, source)[0] == exact_skip(word, more, rate)
                drawn += source.words_drawn == 3
    assert drawn > 3 * len(lengths)


def test_one_batch_of_words_after_the_other_goes_on_where_the_last_one_ended(scripted_entropy):
    assert np.array_equal(poisson_sample(100, 0.01, scripted_entropy(ONES)), np.arange(100))


def test_of_no_rows_none_is_sampled():
    assert len(poisson_sample(0, 0.5, entropy_source(0))) == 0


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_sum_over_some_rows_is_that_of_a_data_set_of_those_rows(make, n_outputs):
    rng = np.random.default_rng(0)
    X, target, coef, _ = problem(500, 6, n_outputs)
    present, rows = rng.random(500) < 0.9, np.flatnonzero(rng.random(500) < 0.2)
    # Of a null record there is no trace, not even in the rounding.
    there = rows[present[rows]]
    whole, part = (
        Objective(make(some), labels, loss_for(n_outputs), n_outputs=n_outputs)
        for some, labels in ((nulled(X, ~present), target), (X[there], target[there]))
    )
    basis = rng.normal(size=(7, 7))
    for one, other in ((whole, part), (whole.in_basis(basis), part.in_basis(basis))):
        assert np.array_equal(one.gradient_sum(coef, 0.7, rows), other.gradient_sum(coef, 0.7))
    assert not whole.gradient_sum(coef, 0.7, rows[:0]).any()


@pytest.mark.parametrize(("rate", "z"), [(1.0, 2.0), (0.3, 0.7), (0.01, 5.0)])
def test_losses_reach_twelve_deviations_beyond_a_record_that_is_there(rate, z):
    x = 1 + 12 * z
    loss = math.log(1 - rate + rate * math.exp((2 * x - 1) / (2 * z * z)))
    assert SampledGaussianEvent(rate, z).loss_reach == pytest.approx(loss, rel=1e-12)


def test_batches_of_a_fixed_size_are_any_rows_with_the_same_chance(scripted_entropy):
    entropy, counts = entropy_source(0), {}
    for _ in range(4000):
        batch = tuple(fixed_sample(5, 2 / 5, entropy).tolist())
        counts[batch] = counts.get(batch, 0) + 1
    assert len(counts) == 10 and all(i < j for i, j in counts)
    assert chisquare(list(counts.values())).pvalue > 1e-6
    # Two equal words say nothing of who comes first: all are drawn again.
    source = scripted_entropy([7, 3, 7, 9, 4, 6])
    assert fixed_sample(3, 1 / 3, source).tolist() == [1] and not source.remaining
    for n_rows in (3, 7, 49, 1000):
        for size in range(1, n_rows, max(1, n_rows // 10)):
            assert len(fixed_sample(n_rows, size / n_rows, entropy)) == size
    assert len(fixed_sample(3, 0.5, entropy)) == 1, "never more than the rate that is charged"


def least_delta(x, y, q, s, epsilon):
    """Of the mixtures ``(1 - q) N(0) + q N(x)`` and with y, vectors of the plane, on a grid."""
    axis = np.linspace(-8 * s, 8 * s, 161)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    density = lambda at: norm.pdf(grid - at, scale=s).prod(axis=-1)  # noqa: E731
    p, other = ((1 - q) * density(np.zeros(2)) + q * density(at) for at in (x, y))
    return np.maximum(p - math.exp(epsilon) * other, 0).sum() * (axis[1] - axis[0]) ** 2


@pytest.mark.parametrize(("q", "s"), [(0.1, 1.0), pytest.param(0.6, 0.7, marks=pytest.mark.slow)])
def test_no_replacement_shows_more_than_that_of_one_end_by_the_other(q, s):
    pld = loss_distribution(SampledGaussianEvent(q, s / 2, "poisson_replace_one"), 1e-3)
    rng = np.random.default_rng(0)
    for epsilon in (0.0, 0.3, 1.5):
        bound = pld.get_delta_for_epsilon(epsilon)
        attained = least_delta(np.array([1.0, 0.0]), np.array([-1.0, 0.0]), q, s, epsilon)
        assert attained == pytest.approx(bound, rel=2e-3, abs=1e-6)
        for x, y in rng.normal(size=(4, 2, 2)):
            ends = x / max(1, np.linalg.norm(x)), y / max(1, np.linalg.norm(y))
            assert least_delta(*ends, q, s, epsilon) <= bound + 1e-6


def test_batches_of_a_fixed_size_show_no_more_than_is_charged(vectors):
    for row in vectors("sampling", "fixed_size_one_step"):
        event = SampledGaussianEvent(row["m"] / row["n"], row["z"] / 2, "without_replacement")
        delta = loss_distribution(event, 1e-3).get_delta_for_epsilon(row["eps"])
        assert row["worst"] <= delta + 1e-6
        if row["z"] > 1:
            continue
        as_poisson = SampledGaussianEvent(row["m"] / row["n"], row["z"] / 2, "poisson_replace_one")
        shown = loss_distribution(as_poisson, 1e-3).get_delta_for_epsilon(row["eps"])
        assert row["worst"] > shown + 1e-3, "the two ways to draw are not interchangeable"


@pytest.mark.parametrize("sampling", REPLACED)
def test_replacements_in_the_full_batch_are_gaussian(sampling):
    z = 3.0 * (1 if sampling == "poisson_replace_one" else 2)
    event, third = SampledGaussianEvent(1.0, z, sampling), SampledGaussianEvent(1.0, 3.0, sampling)
    assert event.loss_variance == pytest.approx(1 / 9)
    half = replace(event, sampling_rate=0.5)
    assert half.loss_variance == pytest.approx(math.sinh(1 / 36))
    whole = PrivacyLedger(((event, 5),), "replace_one", 1e-6)
    gaussian = PrivacyLedger(((third.full_batch, 5),), "replace_one", 1e-6)
    assert whole.epsilon() == pytest.approx(gaussian.epsilon(), rel=1e-3)


@pytest.mark.parametrize("sampling", REPLACED)
def test_both_ends_of_a_replacement_are_rounded(sampling):
    n_columns, z = 10_000, 1000.0
    sums = Objective(np.zeros((4, n_columns)), np.ones(4), Logistic(), fit_intercept=False)
    budget = PrivacyBudget(math.inf, 1e-6, "replace_one")
    vault = Vault(sums, ((SampledGaussianEvent(0.5, z, sampling), 1),), budget, entropy_source())
    batches = sampling.removesuffix("_replace_one")
    vault.gradient_sum(np.zeros(n_columns), 1.0, z, 0.5, batches)
    rounding = sums.rounding_slack(4) + grid_spacing(2 * z) * math.sqrt(n_columns)
    n_ends = {"poisson": 2, "without_replacement": 1}[batches]
    assert vault.log[0].noise_scale >= z * (2.0 + n_ends * rounding)


FIXED = {
    "neighboring_relation": "replace_one",
    "batches": "without_replacement",
    "preconditioner": None,
}


def test_a_fit_draws_batches_of_the_size_that_it_is_charged_for(monkeypatch):
    sizes = []
    original = Objective.gradient_sum

    def spy(self, coef, clip, rows=None):
        sizes.extend([] if rows is None else [len(np.unique(rows))])
        return original(self, coef, clip, rows)

    monkeypatch.setattr(Objective, "gradient_sum", spy)
    X, y = np.random.default_rng(0).normal(size=(70, 2)), np.arange(70) % 2
    model = DPLogisticRegression(sampling_rate=0.15, max_iter=4, epsilon=20.0, **FIXED).fit(X, y)
    ((event, n),) = model.privacy_.events
    assert (sizes, n, event.sampling_rate) == ([10] * 4, 4, 10 / 70)
    assert "random batches of 10 of 70 records" in model.plan(70, 2).statement
    assert model.privacy_.epsilon() <= 20.0


def test_batches_of_a_fixed_size_are_refused_under_other_relations():
    fixed = FIXED | {"neighboring_relation": "zero_out"}
    for rate in (0.2, 1.0):
        with pytest.raises(ValueError, match=r"is accounted for under .*'replace_one' only"):
            DPLinearSVM(**fixed, sampling_rate=rate).plan(100, 3)


@pytest.mark.parametrize("sampling", ["poisson", "poisson_replace_one", "without_replacement"])
@pytest.mark.parametrize("q", [1e-9, 1e-6, 0.01, 0.5, 1 - 1e-9, 1.0])
def test_the_distribution_of_a_batch_is_that_of_dp_accounting(q, sampling):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if sampling != "poisson":
        relation = NeighboringRelation.REPLACE_ONE
    for z in (0.05, 0.3, 1.0, 40.0):
        event = SampledGaussianEvent(q, z, sampling)
        interval = max(event.loss_reach / 300, 1e-6)
        found, expected = loss_distribution(event, interval), from_gaussian_mechanism(
            event.std, value_discretization_interval=interval, sampling_prob=q,
            neighboring_relation=relation,
        )  # fmt: skip
        for epsilon in (0.0, 1e-6, 0.1, 1.0, 30.0):
            delta = expected.get_delta_for_epsilon(epsilon)
            assert found.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-9, abs=1e-14)
