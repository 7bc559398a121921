"""Figures of a plan and of the trace of a fit."""

from typing import Any

import numpy as np

from dpglm.estimators.plan import PrivacyPlan
from dpglm.study.plots import plain, pyplot

__all__ = ["FitTraceDisplay", "PlanDisplay", "cumulative_epsilon"]

_MOST_POINTS = 100
# Each of them is a numerical composition where the accounting has no closed form.
_MOST_COMPOSED_POINTS = 8


def cumulative_epsilon(plan: PrivacyPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return what a plan has cost after some of its releases, at the delta of its ledger.

    Parameters
    ----------
    plan : PrivacyPlan

    Returns
    -------
    n_releases : ndarray
        Rising numbers of releases, a second moment among them; the last is all.
    epsilon : ndarray
        Cost of the first so many.

    Notes
    -----
    Exact after each of up to 100 releases for a plan of Gaussian releases, from ``mu^2``, their
    sum of ``1/z^2``. With mini-batches after 8 of them, by numerical composition.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.plots_of_fits import cumulative_epsilon
    >>> plan = DPLogisticRegression(epsilon=1.0, max_iter=4, preconditioner=None).plan(1000, 5)
    >>> n_releases, epsilon = cumulative_epsilon(plan)
    >>> n_releases, epsilon.round(3)
    (array([1, 2, 3, 4]), array([0.475, 0.689, 0.857, 1.   ]))
    """
    ledger = plan.ledger
    events = [event for event, count in ledger.events for _ in range(count)]
    costs = [event.mu**2 for event in events if event.mu is not None]
    gaussian = len(costs) == len(events)
    n_points = min(len(events), _MOST_POINTS if gaussian else _MOST_COMPOSED_POINTS)
    n_releases = np.unique(np.linspace(1, len(events), n_points).round().astype(int))
    epsilon = [plan.epsilon_after(int(k)) for k in n_releases]
    return n_releases, np.array(epsilon)


class PlanDisplay:
    """Noise, clip, step and cumulative cost of a run that is fixed in advance.

    Nothing of it depends on data, so that it can be looked at, and published, before a fit.

    Parameters
    ----------
    plan : PrivacyPlan

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : ndarray of four matplotlib Axes
        Clip, noise, step and cost.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study.plots_of_fits import PlanDisplay
    >>> plan = DPLogisticRegression(epsilon=1.0).plan(n_samples=40_000, n_features=100)
    >>> display = PlanDisplay.from_plan(plan).plot()
    >>> [ax.get_title() for ax in display.axes_]
    ['clip', 'noise on the sum of gradients', 'step size', 'cost so far']
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        self.plan = plan

    @classmethod
    def from_plan(cls, plan: PrivacyPlan) -> "PlanDisplay":
        """Prepare the figure of a plan.

        Parameters
        ----------
        plan : PrivacyPlan
            As from ``estimator.plan(n_samples, n_features)``.

        Returns
        -------
        PlanDisplay
            Not plotted yet.

        Raises
        ------
        ValueError
            If the course of the run is not fixed in advance.
        """
        if not isinstance(plan, PrivacyPlan):
            raise ValueError(
                f"{plan!r} does not fix its steps in advance; draw a fit with FitTraceDisplay."
            )
        return cls(plan)

    def plot(self, ax: Any = None) -> "PlanDisplay":
        """Draw the four panels.

        Parameters
        ----------
        ax : array of four matplotlib Axes, optional
            By default a new figure.

        Returns
        -------
        self

        Raises
        ------
        ImportError
            Without matplotlib; ``pip install "dpglm[plot]"``.
        ValueError
            If there are not four axes.
        """
        if ax is None:
            figure, ax = pyplot().subplots(2, 2, figsize=(9.0, 5.6), layout="constrained")
            figure.suptitle(self._title())
        self.axes_ = np.asarray(ax).ravel()
        if len(self.axes_) != 4:
            raise ValueError(f"ax holds {len(self.axes_)} axes; four are needed.")
        self.figure_ = self.axes_[0].figure
        plan, (clip, noise, step, cost) = self.plan, self.axes_
        unit = " / sqrt(d)" if plan.second_moment is not None else ""
        _draw(clip, "clip", f"L2 norm{unit}", plan.clip)
        std = plan.noise_multiplier * np.where(plan.noise_multiplier > 0, plan.sensitivity, 0.0)
        _draw(noise, "noise on the sum of gradients", f"standard deviation{unit}", std)
        _draw(step, "step size", "on the mean gradient", plan.step)
        self._draw_cost(cost)
        return self

    def _title(self) -> str:
        plan, ledger = self.plan, self.plan.ledger
        epsilon = ledger.epsilon(ledger.reporting_delta)
        batches = f", sampling rate {plan.sampling_rate:g}" if plan.sampling_rate < 1 else ""
        title = (
            f"epsilon {epsilon:.4g}, delta {ledger.reporting_delta:g}, "
            f"{plan.facts.n_samples:,} records, {plan.n_iter} iterations{batches}"
        )
        if plan.second_moment is not None:
            d = plan.facts.n_features
            title += f"\nbefore d, the effective dimension, is released: drawn for d = {d}"
        return title

    def _draw_cost(self, axes: Any) -> None:
        axes.set_title("cost so far")
        axes.set_xlabel("release")
        axes.set_ylabel(f"epsilon at delta {self.plan.ledger.reporting_delta:g}")
        plain(axes)
        if not self.plan.noise_multiplier.any():
            axes.text(0.5, 0.5, "no noise, no guarantee", ha="center", transform=axes.transAxes)
            return
        n_releases, epsilon = cumulative_epsilon(self.plan)
        marker = "o" if len(n_releases) <= _MOST_COMPOSED_POINTS else None
        axes.plot(n_releases, epsilon, marker=marker, markersize=4, color="C3")
        axes.set_ylim(0, 1.08 * epsilon[-1])
        axes.axhline(epsilon[-1], color="0.6", linewidth=1, linestyle=":")
        if self.plan.second_moment is not None:
            axes.plot(1, epsilon[0], "s", color="C3", label="the second moment")
            axes.legend(loc="lower right", frameon=False)
        self._add_shares(axes)

    def _add_shares(self, axes: Any) -> None:
        """Add an axis for mu^2, of which releases have shares that add up."""
        runs = self.plan.ledger.events
        costs = [count * event.mu**2 for event, count in runs if event.mu is not None]
        if len(costs) < len(runs):
            return
        counts, shares = np.cumsum([count for _, count in runs]), np.cumsum(costs)
        right = axes.twinx()
        right.plot([0, *counts], [0, *shares / shares[-1]], color="0.5", linestyle="--")
        right.set_ylim(0, 1.08)
        right.set_ylabel("share of mu² (dashed)")
        right.spines["top"].set_visible(False)


def _draw(axes: Any, title: str, unit: str, values: np.ndarray) -> None:
    axes.plot(np.arange(1, len(values) + 1), values)
    axes.set(title=title, xlabel="iteration", ylabel=unit)
    finite = values[np.isfinite(values)]
    axes.set_ylim(0, 1.08 * finite.max() if len(finite) and finite.max() > 0 else 1.0)
    plain(axes)


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
    >>> from dpglm.study.plots_of_fits import FitTraceDisplay
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
