"""Mini-batch SGD at a fixed noise level, for as long as a tight accountant allows."""

import math
from dataclasses import replace
from typing import Any

from dpglm.baselines.parameters import check_number, check_whole, is_auto
from dpglm.estimators.base import PrivateLinearClassifier
from dpglm.estimators.descent import NoisyDescentMixin
from dpglm.estimators.probabilities import LogisticOrHingeMixin
from dpglm.facts import PublicFacts
from dpglm.limits import CLIP_RANGE
from dpglm.plan import PrivacyPlan, make_plan
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import PoissonSampledEvent
from dpglm.schedules import Constant

__all__ = ["SGDMomentsAccountant", "batch_rate"]

_MOST_ITERATIONS = 20_000


def batch_rate(batch_size: float | str, n_samples: int) -> float:
    """Return the sampling rate that makes batches of an expected size.

    Parameters
    ----------
    batch_size : float or "auto"
        ``"auto"`` is the square root of the number of records plus 10, as in Lee & Kifer (2018).
    n_samples : int
        The public number of records.

    Returns
    -------
    float
        Above 0 and at most 1.

    Raises
    ------
    ValueError
        If the batch size is not a number above 0.

    Examples
    --------
    >>> batch_rate("auto", 10_000), batch_rate(50, 20)
    (0.011, 1.0)
    """
    if is_auto(batch_size):
        batch_size = math.isqrt(n_samples) + 10
    return min(check_number("batch_size", batch_size, 0.0, math.inf) / n_samples, 1.0)


class SGDMomentsAccountant(LogisticOrHingeMixin, NoisyDescentMixin, PrivateLinearClassifier):
    """Differentially private mini-batch SGD in the setting of the moments accountant.

    Small random batches, gradients clipped and made noisy with a noise multiplier of about 4, and
    as many steps as the budget allows (Abadi et al. 2016, "Deep learning with differential
    privacy", in the setting of Lee & Kifer 2018). Batches are Poisson samples and are accounted
    for as such, by privacy loss distributions rather than moments: the program of Lee & Kifer
    draws batches of a fixed size and charges for Poisson samples.

    Parameters
    ----------
    loss : {"logistic", "hinge"}, default="logistic"
        The logistic loss is the cross entropy of the softmax for more than two classes; the hinge
        loss is then summed one-vs-rest.
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` runs the same code without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing (the number of records is public), or added or removed.
        ``"replace_one"`` is refused, because it is not amplified by sampling.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    batch_size : float or "auto", default="auto"
        Expected number of records in a batch; ``"auto"`` is the square root of their number plus
        10.
    noise_multiplier : float, default=4.0
        What ``max_iter="auto"`` aims at. The noise is then calibrated to the budget exactly.
    clip : float, default=3.0
        Bound on the L2 norm of each record's gradient, intercept included, jointly over the
        classes.
    step : float, default=0.1
        Step size, on the mean gradient of a batch.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    max_iter : int or "auto", default="auto"
        Number of batches; ``"auto"`` is what the budget allows at ``noise_multiplier``, 20,000 at
        most.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in the clip.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws batches and noise from the operating system. Anything else is for tests:
        they are then reproducible, and protect nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Number of batches, fixed before the data are touched.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : FitTrace
        Released values of every iteration.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of every iterate, by one `PoissonSampledSum`
    per iteration; see `dpglm.solvers.noisy_sgd.noisy_stochastic_gradient_descent`. Needs
    dp-accounting: ``pip install "dpglm[accounting]"``.

    Examples
    --------
    >>> from dpglm.baselines.sgd_moments import SGDMomentsAccountant
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(2000, random_state=0)
    >>> model = SGDMomentsAccountant(max_iter=50, classes=[0, 1]).fit(X, y)
    >>> 0.999 < model.privacy_.epsilon(1e-6) <= 1.0
    True
    """

    def __init__(
        self,
        *,
        loss: str = "logistic",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        batch_size: Any = "auto",
        noise_multiplier: float = 4.0,
        clip: float = 3.0,
        step: float = 0.1,
        alpha: float = 0.0,
        max_iter: Any = "auto",
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.batch_size = batch_size
        self.noise_multiplier = noise_multiplier
        self.clip = clip
        self.step = step
        self.alpha = alpha
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PrivacyPlan:
        rate = batch_rate(self.batch_size, facts.n_samples)
        noise_multiplier = check_number("noise_multiplier", self.noise_multiplier, 0.0, 1e6)
        if is_auto(self.max_iter):
            # The losses of many small batches are nearly Gaussian: their variances add up to mu^2.
            one = PoissonSampledEvent(rate, noise_multiplier).loss_variance
            n_iter = max(round(min(budget.mu**2 / one, _MOST_ITERATIONS)), 1)
        else:
            n_iter = check_whole("max_iter", self.max_iter)
        return make_plan(
            budget,
            replace(facts, sampling_rate=rate),
            n_iter=n_iter,
            clip_schedule=Constant(check_number("clip", self.clip, *CLIP_RANGE)),
            noise_schedule=Constant(),
            step_schedule=Constant(check_number("step", self.step, 0.0, 1e50)),
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )
