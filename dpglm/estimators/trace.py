"""What a fit released, in order."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpglm.privacy.ledger import Event

if TYPE_CHECKING:
    import pandas

    from dpglm.estimators.whitening import Whitening

__all__ = ["AdaptiveTrace", "FitTrace"]


@dataclass
class FitTrace:
    """Released values of a fit, safe to publish with the coefficients.

    Attributes
    ----------
    events : list of Event
        The event of each release, as the mechanism returned it.
    clip, noise_std, step : list of float
        Clip, standard deviation of the noise on the sum, and step size of each iteration; in the
        whitened space where there is one, and so is ``gradient_norm``.
    gradient_norm : list of float
        L2 norm of the NOISY mean gradient (penalty included) of each iteration.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).
    whitening : Whitening or None
        What a preconditioner released before the first iteration.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dpglm import DPLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> trace = DPLogisticRegression(max_iter=20).fit(X / X.max(axis=0), y).trace_
    >>> len(trace.events), len(trace.gradient_norm)
    (20, 20)
    """

    events: list[Event] = field(default_factory=list)
    clip: list[float] = field(default_factory=list)
    noise_std: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    coef: np.ndarray | None = None
    whitening: "Whitening | None" = None

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return len(self.events)

    def record(
        self, event: Event, *, clip: float, noise_std: float, step: float, gradient: np.ndarray
    ) -> None:
        """Append one iteration."""
        self.events.append(event)
        self.clip.append(float(clip))
        self.noise_std.append(float(noise_std))
        self.step.append(float(step))
        self.gradient_norm.append(float(np.linalg.norm(gradient)))

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per iteration.

        Raises
        ------
        ImportError
            Without pandas; ``pip install "dpglm[data]"``.
        """
        pd = _pandas()
        return pd.DataFrame(
            {
                "clip": self.clip,
                "noise_std": self.noise_std,
                "mu": [math.nan if event.mu is None else event.mu for event in self.events],
                "step": self.step,
                "gradient_norm": self.gradient_norm,
            },
            index=pd.RangeIndex(1, len(self.events) + 1, name="iteration"),
        )


@dataclass
class AdaptiveTrace:
    """Released values of an adaptive fit, one entry per release, in order.

    Attributes
    ----------
    events : list of Event
        The event of each release, as the mechanism returned it. Their composition is no bound on
        what the fit costs, because it was chosen on the way: the ledger states the whole budget.
    iteration : list of int
        To which iteration the release belongs, from 1; 0 for a second moment.
    release : list of {"second_moment", "gradient", "refinement", "selection"}
    cost, remaining : list of float
        What was charged for the release, and left of the budget after it, in the plan's unit.
    noise_scale : list of float
        Standard deviation of the noise on a sum; scale of the noise on the scores.
    step : list of float or None
        The step chosen by a selection, zero where no step seemed to help; None for sums.
    max_step : list of float
        The largest step on offer in that iteration; like ``step``, a distance in the whitened space
        where there is one.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).
    whitening : Whitening or None
        What a preconditioner released before the first iteration.

    Examples
    --------
    >>> from dpglm import DPAGDClassifier
    >>> from dpglm.datasets import make_census
    >>> trace = DPAGDClassifier().fit(*make_census(2000, random_state=0)).trace_
    >>> trace.release[:2], trace.n_iter >= 1
    (['gradient', 'selection'], True)
    """

    events: list[Event] = field(default_factory=list)
    iteration: list[int] = field(default_factory=list)
    release: list[str] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)
    noise_scale: list[float] = field(default_factory=list)
    step: list[float | None] = field(default_factory=list)
    max_step: list[float] = field(default_factory=list)
    coef: np.ndarray | None = None
    whitening: "Whitening | None" = None

    def record(
        self,
        event: Event,
        *,
        iteration: int,
        release: str,
        cost: float,
        remaining: float,
        noise_scale: float,
        max_step: float,
        step: float | None = None,
    ) -> None:
        """Append one release."""
        self.events.append(event)
        self.iteration.append(iteration)
        self.release.append(release)
        self.cost.append(float(cost))
        self.remaining.append(float(remaining))
        self.noise_scale.append(float(noise_scale))
        self.max_step.append(float(max_step))
        self.step.append(step)

    @property
    def n_iter(self) -> int:
        """Number of iterations begun; the last may have ended without a step."""
        return self.iteration[-1] if self.iteration else 0

    @property
    def accepted_steps(self) -> list[float]:
        """Steps that were taken, in order."""
        return [step for step in self.step if step]

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per release.

        Raises
        ------
        ImportError
            Without pandas; ``pip install "dpglm[data]"``.
        """
        pd = _pandas()
        return pd.DataFrame(
            {
                "iteration": self.iteration,
                "release": self.release,
                "cost": self.cost,
                "remaining": self.remaining,
                "noise_scale": self.noise_scale,
                "max_step": self.max_step,
                "step": pd.array(self.step, dtype="Float64"),
            },
            index=pd.RangeIndex(1, len(self.events) + 1, name="release_number"),
        )


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            'The to_frame of a trace needs pandas: pip install "dpglm[data]".'
        ) from error
    return pandas
