"""Gradient descent with a private line search and an adaptive budget, as a classifier."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpglm.checks import is_auto
from dpglm.estimators.adaptive_plan import AdaptivePlan, make_adaptive_plan
from dpglm.estimators.base import WeightedClassifier
from dpglm.estimators.solvers import FitTrace, OnStep, adaptive_gradient_descent
from dpglm.estimators.whitening import Preconditioner, automatic_configuration, whiten
from dpglm.losses import NamedLossMixin
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.selection import ChoosingVault
from dpglm.privacy.vault import Vault
from dpglm.schedules import (
    Momentum,
    NamedSchedules,
    PublicMetadata,
    Schedule,
    averaging_weights,
    check_schedules,
)

# Parameters of noisy gradient descent.
_SHARED = ("clip_schedule", "momentum", "averaging", "preconditioner")

# Parameters that the plan checks and takes unchanged.
_AS_GIVEN = (
    "max_iter", "n_splits", "selection_fraction", "selection", "accountant", "n_steps", "max_step",
    "budget_growth", "step_update_every", "step_growth", "step_shrink",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class DPAGDClassifier(NamedLossMixin, NamedSchedules, WeightedClassifier):
    """Differentially private linear classifier that adapts its steps and its budget as it runs.

    Each iteration releases one noisy gradient and chooses privately how far to step along it. When
    no step seems to help, it buys a more precise gradient (Lee & Kifer 2018, corrected). The run is
    charged to a privacy filter, which ends it when the budget is too small for the next iteration.
    By default it chooses around the steps of `DPLogisticRegression`, in the same whitened space.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` takes the exact best step until none helps.
    delta, neighboring_relation, n_samples_estimate, alpha, fit_intercept, classes
        As in `DPLogisticRegression`.
    class_weight, max_weight, max_contributions, clip_schedule
        As in `DPLogisticRegression`.
    loss : {"logistic", "smoothed_hinge", "hinge"}, default="logistic"
        With more than two classes, the logistic loss is the cross entropy of the softmax, and hinge
        losses are summed one-vs-rest. ``"smoothed_hinge"`` is smooth within 0.5 of the margin 1.
    loss_clip : "auto", "range" or float, default="auto"
        Bound on one record's influence on the scores of the steps. ``"range"``, for two classes:
        scores are changes of the loss whose gradient is the clipped gradient. No record then moves
        a score by more than ``max_step`` times the clipping norm. A number: each record's loss is
        clipped to it, and each of its rows to the ``max_contributions``-th part. ``"auto"`` is
        ``"range"`` for two classes, and twice the loss of zero coefficients for more.
    n_splits : float or "auto", default="auto"
        Number of iterations affordable at the first cost, 1 or more; 40 if ``"auto"``.
    selection_fraction : float or "published", default=0.05
        Fraction of an iteration's cost for choosing the step. ``"published"`` is Lee & Kifer's
        split: ``epsilon / (2 n_splits)`` for the gradient and for the choice.
    budget_growth : float, default=0.25
        A refinement costs this times what the current gradient has cost.
    n_steps : int, default=20
        Steps on offer in addition to zero, equally spaced.
    max_step : "auto" or float, default="auto"
        The largest step on offer. ``"auto"`` is twice a public step on the released gradient: the
        step of `DPLogisticRegression`, larger for fewer iterations. The step taken is the grid
        point next to a mean of the public and the chosen step, weighted by the public noise. A
        number is the first largest step, as a distance between coefficients, and the chosen step is
        taken unchanged.
    step_update_every : int, default=5
        After this number of accepted steps the largest of them becomes the largest on offer...
    step_growth : float, default=0.2
        ... increased by this fraction. Both matter if ``max_step`` is a number.
    step_shrink : float, default=0.5
        Factor on the largest step whenever no step seems to help, 1 to keep it; for one iteration
        if ``max_step`` is ``"auto"``.
    momentum : str, float, momentum object or None, default="auto"
        How past directions enter the next, at no cost; ``None`` steps along the last gradient.
    averaging : {"auto", "uniform", "tail", "t_weighted"}, float or None, default="auto"
        Average of the accepted iterates that is returned; ``None`` is the last, as published.
    selection : {"exponential", "laplace", "permute_and_flip"}, default="exponential"
        Exponential mechanism, or report noisy max with Laplace noise, or with one-sided exponential
        noise, at four times the cost for the same epsilon.
    accountant : {"auto", "gdp", "zcdp", "bun_steinke"}, default="auto"
        Unit of the filter: Gaussian or zero-concentrated differential privacy. ``"auto"`` takes the
        one that allows more, before the data are read. ``"bun_steinke"`` is ``"zcdp"`` with the
        looser conversion of 2016.
    preconditioner : {"auto", "diagonal", "full"}, Preconditioner or None, default="auto"
        Descend in a whitened space, where steps are distances too.
    max_row_norm : float, default=None
        Public bound on the norm of a row, for the preconditioner.
    max_iter : int or "auto", default="auto"
        A cap; the filter may end the fit earlier. ``"auto"`` is ``n_splits``, and 1000 at most.

    Attributes
    ----------
    n_iter_ : int
        Iterations begun, decided by released values alone.
    trace_ : FitTrace
        Every release with its cost, the budget left, and the step chosen.
    classes_, coef_, intercept_, n_features_in_, feature_names_in_, privacy_
        As in `DPLogisticRegression`.

    Notes
    -----
    Everything that ``fit`` stores is (epsilon, delta)-differentially private under
    ``neighboring_relation``. Gradients are released with Gaussian noise for an L2 sensitivity of
    ``clip``. Steps are chosen by the exponential mechanism for a range of ``loss_clip``, or the
    largest step times ``clip``. Both double under ``"replace_one"``. A filter of fixed capacity
    adds all costs, also of a preconditioner (Gaussian privacy: Smith & Thakurta 2022; concentrated:
    Feldman & Zrnic 2021). ``privacy_`` is the whole budget, whatever the fit spent of it: the sum
    of the costs of the actual releases would not be a bound.

    Examples
    --------
    >>> from dpglm import DPAGDClassifier
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = DPAGDClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.7  # exact: a PrivacyWarning says so
    True
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    neighboring_relation: str = "zero_out"
    n_samples_estimate: int | None = None
    alpha: float = 0.0
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    max_weight: float = 10.0
    max_contributions: int | None = None
    loss: str = "logistic"
    clip_schedule: float | str | Schedule = "auto"
    loss_clip: float | str = "auto"
    n_splits: float | str = "auto"
    selection_fraction: float | str = 0.05
    budget_growth: float = 0.25
    n_steps: int = 20
    max_step: float | str = "auto"
    step_update_every: int = 5
    step_growth: float = 0.2
    step_shrink: float = 0.5
    momentum: float | str | Momentum | None = "auto"
    averaging: float | str | None = "auto"
    selection: str = "exponential"
    accountant: str = "auto"
    preconditioner: str | Preconditioner | None = "auto"
    max_row_norm: float | None = None
    max_iter: int | str = "auto"

    half_width: ClassVar[float] = 0.5
    _losses: ClassVar[tuple[str, ...]] = ("logistic", "smoothed_hinge", "hinge")
    _counts_weights: ClassVar[bool | None] = True
    _vault_type: ClassVar[type[Vault]] = ChoosingVault

    @classmethod
    def as_published(cls, **parameters: Any) -> "DPAGDClassifier":
        """Return Lee & Kifer's algorithm at their constants, with noise that is valid.

        Parameters
        ----------
        **parameters
            Take precedence over the published constants; at least ``epsilon`` is usually given.

        Returns
        -------
        DPAGDClassifier

        Notes
        -----
        Differences from the paper; docs/reproduction.md has what they change.

        - The budget is converted by the tighter bound of Canonne, Kamath & Steinke (2020);
          ``accountant="bun_steinke"`` is the paper's Eq. (5).
        - ``alpha=0.001`` and ``budget_growth=0.1`` are from the authors' program: the paper tunes
          the penalty and does not print it. The intercept is not penalised.
        - A step is chosen with Laplace noise. The exponential noise that the text recommends is
          ``selection="permute_and_flip"``. The program adds it with the wrong sign, and leaks about
          twenty times the epsilon it charges.
        - A release is charged before it is made; the pseudo-code makes it, and discards the last
          one if it was not covered.
        - Two gradients are averaged before they are normalised, as in Section 4; line 18 of
          Algorithm 2 averages with the normalised one.
        - ``n_steps=20`` steps are on offer in addition to zero, as in the program. There are no
          mini-batches.

        Examples
        --------
        >>> from dpglm import DPAGDClassifier
        >>> plan = DPAGDClassifier.as_published(epsilon=1.0).plan(48842, 123)
        >>> noise = 3.0 * plan.noise_multiplier(plan.gradient_cost) / 48842
        >>> round(noise * 124**0.5, 5)  # Table 1 of the paper
        0.50119
        """
        published = {
            "delta": 1e-8,
            "alpha": 1e-3,
            "clip_schedule": 3.0,
            "loss_clip": 3.0,
            "n_splits": 60,
            "selection_fraction": "published",
            "budget_growth": 0.1,
            "n_steps": 20,
            "max_step": 2.0,
            "step_update_every": 10,
            "step_growth": 0.1,
            "step_shrink": 1.0,
            "momentum": None,
            "averaging": None,
            "preconditioner": None,
            "max_iter": 1000,
            "selection": "laplace",
            "accountant": "zcdp",
        }
        return cls(**{**published, **parameters})

    def _resolved_loss_clip(self, n_outputs: int) -> float | str | None:
        if isinstance(self.loss_clip, str) and self.loss_clip in ("auto", "range"):
            if n_outputs == 1:
                return None
            if self.loss_clip == "auto":
                scores, target = np.zeros((1, n_outputs)), np.zeros(1, dtype=int)
                return 2 * float(self._loss(n_outputs).value(scores, target)[0])
            raise ValueError(
                f"loss_clip='range' is for two classes, and there are {n_outputs}: gradients "
                "clipped over all classes are not those of any loss. Use 'auto' or a number."
            )
        return self.loss_clip

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> AdaptivePlan:
        left = 1 - metadata.count_fraction
        n_mu = budget.n_mu(metadata.n_samples, left)
        as_given = {name: getattr(self, name) for name in _AS_GIVEN}
        given = {name: getattr(self, name) for name in _SHARED}
        if not is_auto(self.max_step):
            given["step_schedule"] = None
        run = automatic_configuration(n_mu, metadata.n_features, **given)
        if is_auto(self.max_step):
            # The public step is half of the largest on offer.
            as_given |= {"max_step": 2.0, "step_schedule": run["step_schedule"]}
        averaging_weights(run["averaging"], 1)
        preconditioner, first = run["preconditioner"], ()
        if preconditioner is not None:
            size = metadata.n_features, metadata.max_row_norm
            preconditioner, first = preconditioner.planned(budget.mu, left, n_mu, *size)
            metadata = replace(metadata, max_row_norm=None, whitened=True)
        return make_adaptive_plan(
            budget,
            metadata,
            loss_clip=self._resolved_loss_clip(metadata.n_outputs),
            averaging=run["averaging"],
            preconditioner=preconditioner,
            first=first,
            **check_schedules({name: run[name] for name in ("clip_schedule", "momentum")}),
            **as_given,
        )

    def _train(self, vault: ChoosingVault, plan: AdaptivePlan, on_step: OnStep) -> FitTrace:
        space = self._space(plan.metadata)
        trace = FitTrace(
            "iteration", "release", "cost", "remaining", "noise_scale", "max_step", "step"
        )
        if plan.first:
            plan, space, trace.whitening = whiten(vault, plan, space)
        trace.coef = adaptive_gradient_descent(vault, plan, space, trace, on_step)
        return trace
