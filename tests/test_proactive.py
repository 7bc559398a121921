"""The closed form of proactive differential privacy: conditions, validity, looseness."""

import pytest

from dpglm import PrivacyCalculator

BASE = {"epsilon": 0.4, "delta": 1e-4, "n_samples": 10_000, "n_iter": 500, "sampling_rate": 0.02}


@pytest.fixture
def proactive(script):
    return script("proactive")


def exact_epsilon_and_noise_ratio(proactive, epsilon, delta, n_samples, n_iter, sampling_rate):
    """What the closed form costs by exact accounting, and its noise over what is needed."""
    run = {"delta": delta, "n_iter": n_iter, "sampling_rate": sampling_rate}
    noise, calculator = proactive.proactive_noise(epsilon, delta), PrivacyCalculator()
    needed = calculator.noise_multiplier(epsilon=epsilon, **run)
    return calculator.epsilon(noise_multiplier=noise, **run), noise / needed


@pytest.mark.slow
def test_noise_conditions_and_exact_epsilon_match_the_vectors(proactive, vectors):
    for row in vectors("planning", "proactive_dp"):
        run = dict(zip(BASE, (row[name] for name in ("eps", "delta", "N", "T", "q")), strict=True))
        assert row["T"] * row["q"] == pytest.approx(row["epochs_k"])
        assert proactive.proactive_noise(row["eps"], row["delta"]) == pytest.approx(
            row["sigma"], rel=1e-12
        )
        too_large = [f"epsilon={row['eps']:g} must be at most 1/2"] if row["eps"] > 0.5 else []
        assert proactive.broken_conditions(**run) == too_large
        # The vectors discretise the loss more coarsely, and so overstate the smallest epsilon most.
        exact, noise_ratio = exact_epsilon_and_noise_ratio(proactive, **run)
        assert exact == pytest.approx(row["pld_eps"], rel=2 * row["rtol_pld"])
        assert exact <= row["pld_eps"] * (1 + 1e-4)
        assert 0.34 < exact / row["eps"] < 0.54
        assert 1.6 < noise_ratio < 2.5
