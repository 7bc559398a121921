"""What a fit released, iteration by iteration."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpglm.privacy.ledger import Event

if TYPE_CHECKING:
    import pandas

__all__ = ["FitTrace"]


@dataclass
class FitTrace:
    """Released values of a fit, safe to publish with the coefficients.

    Attributes
    ----------
    events : list of Event
        The event of each release, as the mechanism returned it.
    clip, noise_std, step : list of float
        Clip, standard deviation of the noise on the sum, and step size of each iteration.
    gradient_norm : list of float
        L2 norm of the NOISY mean gradient (penalty included) of each iteration.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).

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
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                'FitTrace.to_frame needs pandas: pip install "dpglm[data]".'
            ) from error
        return pd.DataFrame(
            {
                "clip": self.clip,
                "noise_std": self.noise_std,
                "mu": [event.mu for event in self.events],
                "step": self.step,
                "gradient_norm": self.gradient_norm,
            },
            index=pd.RangeIndex(1, len(self.events) + 1, name="iteration"),
        )
