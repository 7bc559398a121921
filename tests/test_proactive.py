"""The closed form of proactive differential privacy: conditions, validity, looseness."""

import math
from dataclasses import replace

import pytest

from dpglm.calculator import Looseness, ProactiveSettings

pytest.importorskip("dp_accounting")


def settings_of(row):
    return ProactiveSettings(row["eps"], row["delta"], row["N"], row["T"], row["q"])


def test_noise_conditions_and_exact_epsilon_match_the_vectors(vectors):
    for row in vectors("planning", "proactive_dp"):
        proactive = settings_of(row)
        assert proactive.n_epochs == pytest.approx(row["epochs_k"])
        assert proactive.noise_multiplier == pytest.approx(row["sigma"], rel=1e-12)
        too_large = [c for c in proactive.broken_conditions if c.startswith("epsilon=")]
        assert list(proactive.broken_conditions) == too_large
        assert bool(too_large) == (row["eps"] >= 0.5)
        # The vectors discretise the loss more coarsely, and so overstate the smallest epsilon most.
        looseness = proactive.looseness()
        exact = looseness.exact_epsilon
        assert exact == pytest.approx(row["pld_eps"], rel=2 * row["rtol_pld"])
        assert exact <= row["pld_eps"] * (1 + 1e-4)
        assert 0.34 < exact / row["eps"] < 0.54
        assert 1.6 < looseness.noise_ratio < 2.5


@pytest.mark.parametrize(
    ("epsilon", "n_samples", "n_epochs"),
    [(0.49, 1000, 4), (0.1, 10_000, 5), (0.4, 50_000, 25), (0.05, 300, 8), (0.3, 10**6, 10)],
)
def test_within_its_conditions_the_closed_form_is_valid_and_loose(epsilon, n_samples, n_epochs):
    proactive = ProactiveSettings.fewest_rounds(
        epsilon=epsilon, n_samples=n_samples, n_epochs=n_epochs
    )
    assert proactive.broken_conditions == ()
    looseness = proactive.looseness()
    assert looseness.exact_epsilon < 0.6 * epsilon
    assert looseness.noise_ratio > 1.6
    assert looseness.noise_ratio == pytest.approx(
        looseness.noise_multiplier / looseness.needed_noise_multiplier
    )
    assert "times the" in str(looseness)


def test_fewest_rounds_are_the_fewest():
    proactive = ProactiveSettings.fewest_rounds(epsilon=0.4, n_samples=10_000, n_epochs=10.5)
    assert proactive.n_iter == math.ceil(2 * 10.5**2 / 0.4)
    assert proactive.n_epochs == pytest.approx(10.5)
    n_iter = proactive.n_iter - 1
    one_less = replace(proactive, n_iter=n_iter, sampling_rate=10.5 / n_iter)
    assert one_less.broken_conditions == (
        "n_iter=551 must be at least 2 n_epochs^2 / epsilon = 551.25",
    )


BASE = ProactiveSettings(0.4, 1e-4, 10_000, 500, 0.02)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"epsilon": 0.5}, "epsilon=0.5 must be below 1/2"),
        ({"delta": 1e-5}, "delta=1e-05 must be 1/n_samples = 0.0001"),
        ({"n_iter": 400, "sampling_rate": 0.025}, "n_iter=400 must be at least"),
        ({"n_iter": 2000, "sampling_rate": 0.002}, "n_epochs=4 is too few: .*8.16 must reach"),
    ],
)
def test_each_condition_that_fails_is_named_alone(change, complaint):
    assert BASE.broken_conditions == ()
    BASE.check()
    changed = replace(BASE, **change)
    assert len(changed.broken_conditions) == 1
    with pytest.raises(ValueError, match=f"The closed form does not apply: {complaint}"):
        changed.check()


def test_too_few_epochs_are_refused_with_the_fewest_rounds_too():
    with pytest.raises(ValueError, match="n_epochs=2 is too few"):
        ProactiveSettings.fewest_rounds(epsilon=0.4, n_samples=10_000, n_epochs=2)


@pytest.mark.parametrize("n_iter", [1, 10, 100, 10_000])
def test_no_full_batch_run_meets_the_conditions(n_iter):
    full = replace(BASE, n_iter=n_iter, sampling_rate=1.0)
    assert any("full batches" in condition for condition in full.broken_conditions)


@pytest.mark.parametrize(("n_iter", "exact"), [(10, 1.73), (100, 6.74)])
def test_with_full_batches_its_noise_does_not_suffice(n_iter, exact):
    full = ProactiveSettings(0.5, 1e-4, 10_000, n_iter, 1.0)
    looseness = full.looseness()
    assert looseness.exact_epsilon == pytest.approx(exact, abs=0.005)
    assert looseness.noise_ratio < 1
    assert "is too small" in str(looseness)


def test_looseness_reads_as_a_sentence():
    assert str(Looseness(0.5, 0.25, 6.0, 3.0)) == (
        "claimed epsilon 0.5, exact 0.25; noise_multiplier 6 is 2.00 times the 3 needed"
    )
