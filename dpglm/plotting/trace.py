"""The course of an adaptive fit, as a figure."""

from typing import Any

import numpy as np

from dpglm.plotting.axes import plain, pyplot

__all__ = ["FitTraceDisplay"]


class FitTraceDisplay:
    """The course of an adaptive fit: the budget as it is spent, and the steps it takes.

    Everything shown was released with noise; the figure costs no privacy.

    Parameters
    ----------
    trace : AdaptiveTrace
        The ``trace_`` of a fitted `DPAGDClassifier`.

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of matplotlib Axes
        The budget left after each release, and the step of each iteration.

    Examples
    --------
    >>> from dpglm import DPAGDClassifier
    >>> from dpglm.datasets import make_census
    >>> from dpglm.plotting.trace import FitTraceDisplay
    >>> model = DPAGDClassifier().fit(*make_census(2000, random_state=0))
    >>> display = FitTraceDisplay.from_estimator(model).plot()
    >>> [ax.get_xlabel() for ax in display.axes_]
    ['release', 'iteration']
    """

    def __init__(self, trace: Any) -> None:
        self.trace = trace

    @classmethod
    def from_estimator(cls, estimator: Any) -> "FitTraceDisplay":
        """Prepare the figure of a fitted estimator.

        Parameters
        ----------
        estimator : DPAGDClassifier

        Returns
        -------
        FitTraceDisplay
            Not plotted yet.

        Raises
        ------
        ValueError
            If it is not fitted, or its course was fixed in advance.
        """
        trace = getattr(estimator, "trace_", None)
        if not hasattr(trace, "remaining"):
            raise ValueError(f"{estimator!r} has no adaptive trace; pass a fitted DPAGDClassifier.")
        return cls(trace)

    def plot(self, ax: Any = None) -> "FitTraceDisplay":
        """Draw both panels.

        Parameters
        ----------
        ax : array of two matplotlib Axes, optional
            By default a new figure.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib; ``pip install "dpglm[plot]"``.
        """
        if ax is None:
            _, ax = pyplot().subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
        self.axes_ = np.asarray(ax).ravel()
        self.figure_ = self.axes_[0].figure
        trace, (budget, steps) = self.trace, self.axes_
        number = np.arange(1, len(trace.events) + 1)
        kinds = np.array(trace.release)
        remaining = np.array(trace.remaining)
        for kind, marker in (("gradient", "o"), ("refinement", "^"), ("selection", ".")):
            chosen = kinds == kind
            budget.plot(number[chosen], remaining[chosen], marker, label=kind, markersize=4)
        budget.set(xlabel="release", ylabel="budget left", ylim=(0, None))
        budget.legend(frameon=False)
        plain(budget)

        chosen = kinds == "selection"
        iteration = np.array(trace.iteration)[chosen]
        taken = np.array([step for step in trace.step if step is not None])
        steps.plot(iteration, np.array(trace.max_step)[chosen], color="0.7", label="on offer")
        steps.plot(iteration, taken, ".", label="chosen")
        steps.set(xlabel="iteration", ylabel="step", ylim=(0, None))
        steps.legend(frameon=False)
        plain(steps)
        return self
