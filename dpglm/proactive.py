"""The closed form of proactive differential privacy, with its conditions and its looseness."""

import math
from dataclasses import dataclass

from dpglm.calculator import PrivacyCalculator

__all__ = ["Looseness", "ProactiveSettings"]

_LARGEST_EPSILON = 0.5
# n_iter and sampling_rate are rounded numbers; conditions that they meet exactly are met.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Looseness:
    """What a claimed guarantee costs by exact accounting, and what would have sufficed for it.

    Parameters
    ----------
    claimed_epsilon, exact_epsilon : float
        At the same noise.
    noise_multiplier, needed_noise_multiplier : float
        For the claimed epsilon.
    """

    claimed_epsilon: float
    exact_epsilon: float
    noise_multiplier: float
    needed_noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        """How many times more noise is drawn than needed; below 1 the claim is wrong."""
        return self.noise_multiplier / self.needed_noise_multiplier

    def __str__(self) -> str:
        verdict = (
            f"{self.noise_ratio:.2f} times the {self.needed_noise_multiplier:.4g} needed"
            if self.exact_epsilon <= self.claimed_epsilon
            else f"too small: {self.needed_noise_multiplier:.4g} is needed"
        )
        return (
            f"claimed epsilon {self.claimed_epsilon:.4g}, exact {self.exact_epsilon:.4g}; "
            f"noise_multiplier {self.noise_multiplier:.4g} is {verdict}"
        )


@dataclass(frozen=True)
class ProactiveSettings:
    """Mini-batch settings with the noise of van Dijk et al.'s closed form.

    For comparison only: the package calibrates by exact accounting, which needs less noise and no
    conditions (`PrivacyCalculator.noise_multiplier`).

    Parameters
    ----------
    epsilon, delta : float
    n_samples, n_iter : int
    sampling_rate : float
        ``n_iter * sampling_rate`` is the number of epochs.

    Notes
    -----
    van Dijk, Nguyen, Nguyen & Nguyen (ICML 2024): sampling N records in T rounds over k epochs with
    ``sigma = sqrt(2 (epsilon + log(1/delta)) / epsilon)``, which depends on neither T nor k, is
    (epsilon, delta)-private for epsilon below 1/2 and delta = 1/N if T is about ``2 k^2 / epsilon``
    or more and ``(2/e)^2 k^2 - 1/2 >= log N``. With full batches k = T, so the third condition
    needs T of at most ``epsilon / 2``, less than one round: vacuous. The exact figures here are for
    Poisson sampling, and hold under ``"zero_out"`` and ``"add_or_remove_one"``.

    Examples
    --------
    >>> from dpglm.proactive import ProactiveSettings
    >>> settings = ProactiveSettings.fewest_rounds(epsilon=0.4, n_samples=10_000, n_epochs=10)
    >>> settings.n_iter, round(settings.noise_multiplier, 3)
    (500, 6.932)
    >>> print(settings.looseness())
    claimed epsilon 0.4, exact 0.1708; noise_multiplier 6.932 is 2.07 times the 3.349 needed
    """

    epsilon: float
    delta: float
    n_samples: int
    n_iter: int
    sampling_rate: float

    @classmethod
    def fewest_rounds(
        cls, *, epsilon: float, n_samples: int, n_epochs: float
    ) -> "ProactiveSettings":
        """Return the settings that the paper recommends: as few rounds as its conditions allow.

        Parameters
        ----------
        epsilon : float
        n_samples : int
        n_epochs : float

        Returns
        -------
        ProactiveSettings

        Raises
        ------
        ValueError
            Naming the conditions that fail.
        """
        n_iter = math.ceil(2 * n_epochs**2 / epsilon * (1 - _TOLERANCE))
        settings = cls(epsilon, 1 / n_samples, n_samples, n_iter, n_epochs / n_iter)
        settings.check()
        return settings

    @property
    def n_epochs(self) -> float:
        """How often each record is used, on average."""
        return self.n_iter * self.sampling_rate

    @property
    def noise_multiplier(self) -> float:
        """The closed form, whether or not its conditions hold."""
        return math.sqrt(2 * (self.epsilon + math.log(1 / self.delta)) / self.epsilon)

    @property
    def broken_conditions(self) -> tuple[str, ...]:
        """The conditions of the theorem that fail, as sentences without a full stop."""
        n_epochs, fewest = self.n_epochs, 2 * self.n_epochs**2 / self.epsilon
        covered = (2 / math.e) ** 2 * n_epochs**2 - 0.5
        broken = []
        if not self.epsilon < _LARGEST_EPSILON:
            broken.append(f"epsilon={self.epsilon:g} must be below 1/2")
        if not math.isclose(self.delta * self.n_samples, 1, rel_tol=_TOLERANCE):
            broken.append(f"delta={self.delta:g} must be 1/n_samples = {1 / self.n_samples:.3g}")
        if self.sampling_rate == 1:
            broken.append(
                "full batches (sampling_rate=1) make as many epochs as iterations, which needs "
                f"n_iter of at most epsilon/2 = {self.epsilon / 2:g}: no run satisfies it"
            )
        elif self.n_iter < fewest * (1 - _TOLERANCE):
            broken.append(
                f"n_iter={self.n_iter} must be at least 2 n_epochs^2 / epsilon = {fewest:.6g}"
            )
        if covered < math.log(self.n_samples) * (1 - _TOLERANCE):
            broken.append(
                f"n_epochs={n_epochs:g} is too few: (2/e)^2 n_epochs^2 - 1/2 = {covered:.3g} must "
                f"reach log(n_samples) = {math.log(self.n_samples):.3g}"
            )
        return tuple(broken)

    def check(self) -> None:
        """Raise a ValueError that names the conditions that fail, if any do."""
        if self.broken_conditions:
            raise ValueError(
                f"The closed form does not apply: {'; '.join(self.broken_conditions)}."
            )

    def looseness(self) -> Looseness:
        """Compare the closed form with exact accounting, whether or not its conditions hold.

        Raises
        ------
        ImportError
            Without dp-accounting, for a sampling rate below 1.
        """
        calculator = PrivacyCalculator()
        run = {"delta": self.delta, "n_iter": self.n_iter, "sampling_rate": self.sampling_rate}
        return Looseness(
            claimed_epsilon=self.epsilon,
            exact_epsilon=calculator.epsilon(noise_multiplier=self.noise_multiplier, **run),
            noise_multiplier=self.noise_multiplier,
            needed_noise_multiplier=calculator.noise_multiplier(epsilon=self.epsilon, **run),
        )
