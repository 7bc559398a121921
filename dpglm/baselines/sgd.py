"""Noisy SGD as published, by advanced composition and by the moments accountant."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import binom

from dpglm.baselines.records import Published
from dpglm.checks import check_number, check_whole, is_auto
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.descent import NoisyDescentMixin
from dpglm.estimators.plan import PrivacyPlan, label_counts_of, make_plan
from dpglm.losses import NamedLossMixin
from dpglm.privacy.budget import PrivacyBudget, check_clip
from dpglm.privacy.events import SampledGaussianEvent, sampling_under
from dpglm.schedules import Constant, PublicMetadata

_MOST_ITERATIONS = 20_000


def batch_rate(batch_size: float | str, n_samples: int) -> float:
    """Return the sampling rate that makes batches of an expected size, above 0 and at most 1.

    ``"auto"`` is the square root of the number of records plus 10, as in Lee & Kifer (2018).
    """
    if is_auto(batch_size):
        batch_size = math.isqrt(n_samples) + 10
    return min(check_number("batch_size", batch_size, above=0, at_most=math.inf) / n_samples, 1.0)


@dataclass(kw_only=True, eq=False, repr=False)
class _SmallBatches(Published, NamedLossMixin):
    """Common parts of both estimators: a constant clip and step, and batches by expected size."""

    loss: str = "logistic"
    alpha: float = 0.0
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    batch_size: int | str = "auto"
    clip: float = 3.0
    step: float = 0.1
    max_iter: int | str = "auto"

    _train = NoisyDescentMixin._train
    _counts_weights: ClassVar[bool | None] = True

    def _constant_plan(
        self,
        budget: PrivacyBudget,
        metadata: PublicMetadata,
        rate: float,
        n_iter: int,
        **noise: float,
    ) -> PrivacyPlan:
        """Return the plan of batches that are all alike, calibrated unless noise is given."""
        return make_plan(
            budget,
            replace(metadata, sampling_rate=rate),
            n_iter=n_iter,
            clip_schedule=Constant(check_clip("clip", self.clip)),
            noise_schedule=Constant(),
            step_schedule=Constant(check_number("step", self.step, above=0, at_most=1e50)),
            counts=label_counts_of(budget.mu, metadata),
            **noise,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class SGDMomentsAccountant(_SmallBatches, PrivateLinearClassifier):
    """Differentially private mini-batch SGD in the setting of the moments accountant.

    Small random batches, a noise multiplier of about 4, and as many steps as the budget allows. The
    method is that of Abadi et al. (2016, "Deep learning with differential privacy"), the setting
    that of Lee & Kifer 2018. Accounting is by privacy loss distributions rather than moments.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, classes
        As in `DPLogisticRegression`.
    class_weight : dict, "balanced" or None, default=None
        As in `DPLogisticRegression`.
    loss : {"logistic", "hinge"}, default="logistic"
        The cross entropy of the softmax, or the hinge loss of one-vs-rest, for several classes.
    batch_size : float or "auto", default="auto"
        Expected number of records in a batch; ``"auto"`` is the root of their number plus 10.
    clip : float, default=3.0
        Bound on the L2 norm of each record's gradient, intercept included, over all classes.
    step : float, default=0.1
        Step size, on the mean gradient of a batch.
    noise_multiplier : float, default=4.0
        Target of ``max_iter="auto"``. The noise is then calibrated to the budget exactly.
    max_iter : int or "auto", default="auto"
        Number of batches; ``"auto"`` is what the budget allows at ``noise_multiplier``, 20,000 at
        most.
    accounting : {"tight", "published"}, default="tight"
        By the privacy loss distribution, or by the moments accountant for `moments_batches` at
        ``noise_multiplier``, for ``"zero_out"`` and ``"add_or_remove_one"``.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of every iterate, by one sum over a fresh
    Poisson sample per iteration; see `dpglm.estimators.solvers.noisy_gradient_descent`. Needs
    dp-accounting: ``pip install "dpglm[accounting]"``.

    Examples
    --------
    >>> from dpglm.baselines import SGDMomentsAccountant
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(2000, random_state=0)
    >>> model = SGDMomentsAccountant(max_iter=50, classes=[0, 1]).fit(X, y)
    >>> 0.999 < model.privacy_.epsilon(1e-6) <= 1.0
    True
    """

    noise_multiplier: float = 4.0
    accounting: str = "tight"

    _constants: ClassVar[dict[str, Any]] = {"accounting": "published", "clip": 4.0, "step": 0.05}

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> PrivacyPlan:
        rate = batch_rate(self.batch_size, metadata.n_samples)
        target = check_number("noise_multiplier", self.noise_multiplier, above=0, at_most=1e6)
        if self._is_published(budget):
            refuse_replace_one(budget)
            counts = metadata.count_fraction * budget.mu**2
            n_iter = moments_batches(budget.epsilon, budget.delta, rate, target, counts)
            if not is_auto(self.max_iter):
                n_iter = min(n_iter, check_whole("max_iter", self.max_iter))
            return self._constant_plan(budget, metadata, rate, n_iter, noise_multiplier=target)
        if is_auto(self.max_iter):
            # The losses of many small batches are nearly Gaussian: their variances add up to mu^2.
            sampling = sampling_under(budget.neighboring_relation)
            one = SampledGaussianEvent(rate, target, sampling).loss_variance
            n_iter = max(round(min(budget.mu**2 / one, _MOST_ITERATIONS)), 1)
        else:
            n_iter = check_whole("max_iter", self.max_iter)
        return self._constant_plan(budget, metadata, rate, n_iter)


def moments_batches(
    epsilon: float, delta: float, sampling_rate: float, noise_multiplier: float, others: float = 0.0
) -> int:
    """Return how many batches the moments accountant of Abadi et al. (2016) admits, 20,000 at most.

    ``others`` is the squared mu of other releases. A moment is ``ln E (p/p_0)^a`` under p_0, for
    a from 2 to 33.
    """
    a, k = np.arange(2.0, 34.0)[:, np.newaxis], np.arange(34.0)
    with np.errstate(over="ignore"):
        excess = np.where(k <= a, np.expm1((k * k - k) / (2 * noise_multiplier**2)), 0.0)
    binomial = binom(a, k) * sampling_rate**k * (1 - sampling_rate) ** np.maximum(a - k, 0)
    moments, a = np.log1p((binomial * excess).sum(axis=1)), a[:, 0]
    most = np.max(((a - 1) * (epsilon - a * others / 2) + math.log(delta)) / moments)
    if most < 1:
        raise ValueError(
            f"epsilon={epsilon:g} with delta={delta:g} does not allow one batch: 32 moments state "
            f"no less than {-math.log(delta) / 32:.4g}. Raise epsilon, or use accounting='tight'."
        )
    return int(min(most, _MOST_ITERATIONS))


def refuse_replace_one(budget: PrivacyBudget) -> None:
    """Raise where a record is replaced, which neither theorem behind these batches is about."""
    if budget.neighboring_relation == "replace_one":
        raise ValueError(
            "neighboring_relation='replace_one': the theorem behind this noise is about a "
            "record that appears or vanishes. Use 'zero_out' or 'add_or_remove_one'."
        )


_MOST_BATCHES = 1000


def advanced_composition_multiplier(
    epsilon: float, delta: float, sampling_rate: float, n_iter: int
) -> float:
    """Return the noise multiplier of Bassily, Smith & Thakurta (2014) for ``n_iter`` batches.

    Raises a ValueError outside of the range in which the theorems behind it hold.
    With ``epsilon_0 = epsilon / (2 sqrt(2 T ln(2 / delta)))`` and ``delta_0 = delta / (2 T)`` for
    each of T releases it is ``sqrt(2 ln(1.25 / delta_0)) 2 q / epsilon_0``:

    - Sampled with probability q, an (e, delta_0) release costs ``ln(1 + q (exp(e) - 1)) <= 2 q e``
      if ``e <= 1``, so that e may be ``epsilon_0 / (2 q)``.
    - The classical Gaussian mechanism (Dwork & Roth 2014, Theorem A.1) needs ``e <= 1`` as well.
    - T releases compose to ``sqrt(2 T ln(2 / delta)) epsilon_0 + T epsilon_0 (exp(epsilon_0) - 1)``
      (Dwork & Roth 2014, Theorem 3.20). The first term is ``epsilon / 2``. Since ``exp(x) - 1 <=
      2 x`` for x up to 1, the second is at most ``epsilon^2 / (4 ln(2 / delta))``. This is below
      ``epsilon / 2`` if ``epsilon <= 2 ln(2 / delta)``.
    """
    one = epsilon / (2 * math.sqrt(2 * n_iter * math.log(2 / delta)))
    largest = 2 * math.log(2 / delta)
    if not epsilon <= largest:
        raise ValueError(
            f"epsilon={epsilon:g} is too large for the composition theorem, which needs at most "
            f"2 ln(2 / delta) = {largest:.3g}. Lower epsilon."
        )
    if not one <= min(2 * sampling_rate, 1.0):
        raise ValueError(
            f"max_iter={n_iter} leaves an epsilon of {one:.3g} to each batch, too large for the "
            f"theorems at a sampling rate of {sampling_rate:.3g}. Set max_iter to "
            f"{fewest_iterations(epsilon, delta, sampling_rate)} or more."
        )
    return math.sqrt(2 * math.log(2.5 * n_iter / delta)) * 2 * sampling_rate / one


def fewest_iterations(epsilon: float, delta: float, sampling_rate: float) -> int:
    """Return the least number of batches for which each has little enough of the budget."""
    ratio = epsilon / (2 * min(2 * sampling_rate, 1.0))
    return max(math.ceil(ratio**2 / (2 * math.log(2 / delta)) * (1 + 1e-12)), 1)


@dataclass(kw_only=True, eq=False, repr=False)
class SGDAdvancedComposition(_SmallBatches, PrivateLinearClassifier):
    """Differentially private mini-batch SGD with noise by advanced composition.

    Each batch gets an epsilon by the advanced composition theorem, amplified by sampling. Its noise
    follows from the classical Gaussian mechanism (Bassily, Smith & Thakurta 2014, "Private
    empirical risk minimization"). The setting is that of Lee & Kifer 2018. These constants are
    wasteful: the ledger states how much less than ``epsilon`` the noise really costs.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0 and at most ``2 ln(2 / delta)``. ``inf`` runs the same code
        without noise.
    neighboring_relation : {"zero_out", "add_or_remove_one"}, default="zero_out"
        Neighbouring data sets: one record replaced by a null record that contributes nothing
        (the number of records is public), or one record added or removed. The theorem
        does not cover ``"replace_one"``.
    loss, batch_size, clip, step
        As in `SGDMomentsAccountant`.
    delta, n_samples_estimate, alpha, fit_intercept, classes, class_weight
        As in `DPLogisticRegression`.
    max_iter : int or "auto", default="auto"
        Number of batches. ``"auto"`` is ``n epsilon / 500``, the rule of Lee & Kifer, 1,000 at
        most, and as many as the theorems need at least.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_, trace_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of every iterate; see
    `advanced_composition_multiplier` for the theorems and where they hold. The standard deviation
    on a sum is the multiplier times its sensitivity, ``clip``. The ledger needs dp-accounting
    (``pip install "dpglm[accounting]"``) to state its epsilon. A few hundred records teach it
    nothing, which scikit-learn's tag ``poor_score`` says.

    Examples
    --------
    >>> from dpglm.baselines import SGDAdvancedComposition
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = SGDAdvancedComposition(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.privacy_.epsilon(1e-6) < 0.5
    True
    """

    _constants: ClassVar[dict[str, Any]] = {"alpha": 1e-3}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> PrivacyPlan:
        refuse_replace_one(budget)
        rate = batch_rate(self.batch_size, metadata.n_samples)
        n_iter, noise = _MOST_BATCHES, 0.0
        if not is_auto(self.max_iter):
            n_iter = check_whole("max_iter", self.max_iter)
        elif budget.epsilon < math.inf:
            suggested = round(min(metadata.n_samples * budget.epsilon / 500, _MOST_BATCHES))
            n_iter = max(suggested, fewest_iterations(budget.epsilon, budget.delta, rate))
        if budget.epsilon < math.inf:
            target = (budget.epsilon, budget.delta)
            noise = advanced_composition_multiplier(*target, rate, n_iter)
        return self._constant_plan(budget, metadata, rate, n_iter, noise_multiplier=noise)
