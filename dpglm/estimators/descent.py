"""Noisy gradient descent as estimators: logistic regression and the linear SVM."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpglm.estimators.base import PrivateLinearClassifier, ProbabilitiesMixin
from dpglm.estimators.configuration import automatic_configuration, resolved
from dpglm.estimators.plan import PrivacyPlan, make_plan
from dpglm.estimators.solvers import noisy_gradient_descent, noisy_stochastic_gradient_descent
from dpglm.estimators.trace import FitTrace
from dpglm.estimators.whitening import check_preconditioner
from dpglm.losses import Hinge, Logistic, Loss, SmoothedHinge, Softmax
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts, check_momentum, check_schedule

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

__all__ = ["DPLinearSVM", "DPLogisticRegression", "NoisyDescentMixin"]


class NoisyDescentMixin:
    """Plan and training of estimators with schedules, momentum, mini-batches, preconditioning."""

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> PrivacyPlan:
        chosen = self._configuration(budget, facts)
        schedules = {
            name: check_schedule(chosen[name], parameter=name)
            for name in ("clip_schedule", "noise_schedule", "step_schedule")
        }
        preconditioner = check_preconditioner(chosen["preconditioner"])
        return make_plan(
            budget,
            replace(facts, sampling_rate=self.sampling_rate),
            n_iter=chosen["max_iter"],
            **schedules,
            momentum=check_momentum(chosen["momentum"]),
            averaging=chosen["averaging"],
            second_moment=preconditioner
            and preconditioner.release_plan(budget, n_columns=facts.n_features),
            assumptions=assumptions,
            seeded=self.random_state is not None,
        )

    def _configuration(self, budget: PrivacyBudget, facts: PublicFacts) -> dict[str, Any]:
        """Return the parameters of the run, each ``"auto"`` among them replaced by its value."""
        mu = budget.mu / budget.sensitivity(1.0)
        automatic = automatic_configuration(facts.n_samples, facts.n_features, mu)
        return {
            name: resolved(getattr(self, name), value) for name, value in vars(automatic).items()
        }

    def _train(
        self,
        objective: "Objective",
        plan: PrivacyPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[FitTrace, PrivacyLedger]:
        descend = (
            noisy_gradient_descent if plan.sampling_rate == 1 else noisy_stochastic_gradient_descent
        )
        if plan.second_moment is None:
            trace = descend(objective, plan, rng, on_step=on_step)
            events = trace.events
        else:
            whitening = plan.second_moment.preconditioner.whiten(objective, plan, rng)
            trace = descend(
                objective.in_basis(whitening.basis),
                plan.in_whitened_space(whitening.effective_dimension),
                rng,
                on_step=lambda t, coef: on_step(t, whitening.original(coef)),
            )
            trace.whitening, trace.coef = whitening, whitening.original(trace.coef)
            events = [whitening.event, *trace.events]
        return trace, replace(plan.ledger, events=run_lengths(events))


class DPLogisticRegression(ProbabilitiesMixin, NoisyDescentMixin, PrivateLinearClassifier):
    """Differentially private logistic regression.

    Noisy gradient descent, on all records or on random batches, on the mean logistic loss (softmax
    for more than two classes), with the noise of the whole run calibrated to (epsilon, delta)
    before the data are touched.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` runs the same code without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    noise_schedule : float, str or Schedule, default="auto"
        Shape of the noise's standard deviation over the iterations; the whole of it is calibrated
        to the budget. ``"auto"`` is constant.
    clip_schedule : float, str or Schedule, default="auto"
        Bound on the L2 norm of each record's gradient, intercept included, jointly over the
        classes; after a preconditioner, in units of the typical length of a row. ``inf`` is
        allowed with ``epsilon=inf`` only. ``"auto"`` grows with the records, the budget and the
        inverse of the released dimension: `dpglm.estimators.configuration.SignalClip`.
    step_schedule : float, str or Schedule, default="auto"
        Step sizes on the mean gradient. ``"auto"`` follows the same numbers as the clip:
        `dpglm.estimators.configuration.SignalStep`.
    momentum : {"auto", "heavy_ball", "debiased"}, float, momentum object or None, default="auto"
        A number is the coefficient of a heavy ball; ``"heavy_ball"`` means .6, and ``"auto"``
        ``DebiasedMomentum(0.5)``.
    averaging : {"auto", "uniform", "tail", "t_weighted"}, float or None, default="auto"
        Which average of the iterates is returned: a number is the last part of the run, ``"tail"``
        and ``"auto"`` the last half, and ``None`` the last iterate. Costs no privacy.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    preconditioner : {"auto", "diagonal", "full"}, Preconditioner or None, default="auto"
        A `DiagonalPreconditioner` or `FullPreconditioner` spends a share of the budget on the
        second moment of the features and descends in a whitened space, where the clip is in units
        of the typical length of a row. ``alpha`` keeps its meaning, on the original coefficients.
        ``"auto"`` is ``"full"`` for up to 512 columns and ``"diagonal"`` beyond; rows should then
        have a norm of about 3 or less, else pass a preconditioner with their ``row_bound``.
    max_iter : int or "auto", default="auto"
        Number of iterations, each one release; ``"auto"`` is 100.
    sampling_rate : float, default=1.0
        Chance of each record to be in the batch of an iteration, independently of the others; 1
        uses all records every time. Below 1 the accounting needs dp-accounting (``pip install
        "dpglm[accounting]"``), and ``"replace_one"`` is refused: sampling does not amplify it.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in the clip.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws noise from the operating system. Anything else is for tests: the noise is
        then reproducible, and protects nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Always ``max_iter``: when to stop never depends on the data.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : FitTrace
        Released values of every iteration.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves, for data sets that
    are neighbours under ``neighboring_relation``. Each iteration releases one sum of clipped
    gradients, of L2 sensitivity ``clip`` (twice that under ``"replace_one"``), with Gaussian
    noise, and a preconditioner releases one second moment before them; the composition is exact
    (Dong, Roth & Su 2022), or with mini-batches an upper bound tight to about 1e-4. Parameters,
    the number of features and the label set are taken to be public, and so is the number of
    records except under ``"add_or_remove_one"``. Bad input raises before any noise is drawn; a fit
    that fails later leaves the estimator unfitted, and the exception carries ``privacy_ledger``,
    the cost of the full plan. A record whose norm overflows double precision contributes nothing.

    Several fits on the same records add up, those of a grid search included:
    ``first.privacy_ + second.privacy_``.

    The algorithm of Yu et al. (2021) is ``DPLogisticRegression(sampling_rate=0.05, max_iter=300,
    momentum=0.6, clip_schedule=DecayingClip(1.0), noise_schedule="constant", step_schedule=0.5,
    averaging=None, preconditioner=None)``, with sums divided by the public expected batch size.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7
    True
    >>> round(model.privacy_.epsilon(1e-6), 6)
    1.0
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        noise_schedule: Any = "auto",
        clip_schedule: Any = "auto",
        step_schedule: Any = "auto",
        momentum: Any = "auto",
        averaging: Any = "auto",
        preconditioner: Any = "auto",
        alpha: float = 0.0,
        max_iter: Any = "auto",
        sampling_rate: float = 1.0,
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.noise_schedule = noise_schedule
        self.clip_schedule = clip_schedule
        self.step_schedule = step_schedule
        self.momentum = momentum
        self.averaging = averaging
        self.preconditioner = preconditioner
        self.alpha = alpha
        self.max_iter = max_iter
        self.sampling_rate = sampling_rate
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _loss(self, n_classes: int) -> Loss:
        return Logistic() if n_classes == 2 else Softmax()


class DPLinearSVM(NoisyDescentMixin, PrivateLinearClassifier):
    """Differentially private linear support vector machine.

    Noisy gradient descent, on all records or on random batches, on the mean (smoothed) hinge loss,
    one-vs-rest with one joint clip for more than two classes, with the noise of the whole run
    calibrated to (epsilon, delta) before the data are touched.

    Parameters
    ----------
    loss : {"smoothed_hinge", "hinge"}, default="smoothed_hinge"
        The smoothed hinge replaces the corner by a parabola, which gradient descent prefers.
    half_width : float, default=0.1
        Half the width of the parabola, in units of the margin; used by ``"smoothed_hinge"`` only.
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` runs the same code without noise.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    noise_schedule : float, str or Schedule, default="auto"
        Shape of the noise's standard deviation over the iterations; the whole of it is calibrated
        to the budget. ``"auto"`` is constant.
    clip_schedule : float, str or Schedule, default="auto"
        Bound on the L2 norm of each record's gradient, intercept included, jointly over the
        classes; after a preconditioner, in units of the typical length of a row. ``inf`` is
        allowed with ``epsilon=inf`` only. ``"auto"`` grows with the records, the budget and the
        inverse of the released dimension: `dpglm.estimators.configuration.SignalClip`.
    step_schedule : float, str or Schedule, default="auto"
        Step sizes on the mean gradient. ``"auto"`` follows the same numbers as the clip:
        `dpglm.estimators.configuration.SignalStep`.
    momentum : {"auto", "heavy_ball", "debiased"}, float, momentum object or None, default="auto"
        A number is the coefficient of a heavy ball; ``"heavy_ball"`` means .6, and ``"auto"``
        ``DebiasedMomentum(0.5)``.
    averaging : {"auto", "uniform", "tail", "t_weighted"}, float or None, default="auto"
        Which average of the iterates is returned: a number is the last part of the run, ``"tail"``
        and ``"auto"`` the last half, and ``None`` the last iterate. Costs no privacy.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    preconditioner : {"auto", "diagonal", "full"}, Preconditioner or None, default="auto"
        A `DiagonalPreconditioner` or `FullPreconditioner` spends a share of the budget on the
        second moment of the features and descends in a whitened space, where the clip is in units
        of the typical length of a row. ``alpha`` keeps its meaning, on the original coefficients.
        ``"auto"`` is ``"full"`` for up to 512 columns and ``"diagonal"`` beyond; rows should then
        have a norm of about 3 or less, else pass a preconditioner with their ``row_bound``.
    max_iter : int or "auto", default="auto"
        Number of iterations, each one release; ``"auto"`` is 100.
    sampling_rate : float, default=1.0
        Chance of each record to be in the batch of an iteration, independently of the others; 1
        uses all records every time. Below 1 the accounting needs dp-accounting (``pip install
        "dpglm[accounting]"``), and ``"replace_one"`` is refused: sampling does not amplify it.
    fit_intercept : bool, default=True
        Whether to append a column of ones, which counts in the clip.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class, applied to the gradients before they are clipped.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws noise from the operating system. Anything else is for tests: the noise is
        then reproducible, and protects nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Always ``max_iter``: when to stop never depends on the data.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : FitTrace
        Released values of every iteration.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy of everything a fit leaves, for data sets that
    are neighbours under ``neighboring_relation``. Each iteration releases one sum of clipped
    gradients, of L2 sensitivity ``clip`` (twice that under ``"replace_one"``), with Gaussian
    noise, and a preconditioner releases one second moment before them; the composition is exact
    (Dong, Roth & Su 2022). Parameters, the number of features and
    the label set are taken to be public, and so is the number of records except under
    ``"add_or_remove_one"``. Bad input raises before any noise is drawn; a fit that fails later
    leaves the estimator unfitted, and the exception carries ``privacy_ledger``, the cost of the
    full plan. A record whose norm overflows double precision contributes nothing.

    Several fits on the same records add up, those of a grid search included:
    ``first.privacy_ + second.privacy_``.

    Examples
    --------
    >>> from dpglm import DPLinearSVM
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPLinearSVM(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7
    True
    """

    def __init__(
        self,
        *,
        loss: str = "smoothed_hinge",
        half_width: float = 0.1,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        neighboring_relation: str = "zero_out",
        n_ref: int | None = None,
        noise_schedule: Any = "auto",
        clip_schedule: Any = "auto",
        step_schedule: Any = "auto",
        momentum: Any = "auto",
        averaging: Any = "auto",
        preconditioner: Any = "auto",
        alpha: float = 0.0,
        max_iter: Any = "auto",
        sampling_rate: float = 1.0,
        fit_intercept: bool = True,
        classes: Any = None,
        class_weight: dict | None = None,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.half_width = half_width
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.n_ref = n_ref
        self.noise_schedule = noise_schedule
        self.clip_schedule = clip_schedule
        self.step_schedule = step_schedule
        self.momentum = momentum
        self.averaging = averaging
        self.preconditioner = preconditioner
        self.alpha = alpha
        self.max_iter = max_iter
        self.sampling_rate = sampling_rate
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _loss(self, n_classes: int) -> Loss:
        if self.loss == "hinge":
            return Hinge()
        if self.loss == "smoothed_hinge":
            return SmoothedHinge(self.half_width)
        raise ValueError(f"loss={self.loss!r} is unknown; choose 'smoothed_hinge' or 'hinge'.")
