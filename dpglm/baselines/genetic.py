"""Generations of private selections: their plan, the losses of the candidates, the loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.facts import PublicFacts
from dpglm.limits import N_REF_FACTOR
from dpglm.losses import Loss
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import SelectionEvent
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import EntropySource
from dpglm.privacy.selection import ExponentialSelection

__all__ = ["CandidateLosses", "GeneticPlan", "GeneticTrace", "evolve"]

_UNIT_ROUNDOFF = 2.0**-53
_BLOCK_ROWS = 2048


@dataclass(frozen=True, eq=False)
class GeneticPlan:
    """What a fit will choose, from how many candidates, and what that costs.

    Parameters
    ----------
    facts : PublicFacts
    budget : PrivacyBudget
    mutation : ndarray of shape (n_iter,)
        By how much one coefficient changes in each generation.
    feature_bound : float
        Bound on the magnitude of every feature, the intercept's one included.
    selection_epsilon : float
        Bounded range of each choice.
    ledger : PrivacyLedger
    """

    facts: PublicFacts
    budget: PrivacyBudget
    mutation: np.ndarray
    feature_bound: float
    selection_epsilon: float
    ledger: PrivacyLedger

    def __post_init__(self) -> None:
        self.mutation.flags.writeable = False

    @property
    def n_iter(self) -> int:
        """Number of generations, one choice each."""
        return len(self.mutation)

    @property
    def max_n_samples(self) -> int:
        """Number of records up to which floating-point rounding is paid for."""
        return self.facts.n_samples * (1 if self.budget.n_ref is None else N_REF_FACTOR)

    def mechanism(
        self, t: int, *, largest_weight: float = 1.0, rounding: float = 0.0
    ) -> ExponentialSelection:
        """Return the mechanism that chooses in generation ``t``.

        Parameters
        ----------
        t : int
            Generation, from 0.
        largest_weight : float, default=1.0
            Of a class.
        rounding : float, default=0.0
            Bound on the rounding error of a score; two scores of two data sets differ by up to
            four of them.
        """
        most = float(self.mutation[t]) * self.feature_bound * largest_weight
        return ExponentialSelection(
            score_range=self.budget.sensitivity(2 * most),
            epsilon=self.selection_epsilon,
            slack=0.0 if self.selection_epsilon == math.inf else 4 * rounding,
        )

    def __str__(self) -> str:
        return f"{self.n_iter} generations over {self.facts.n_samples} records: {self.ledger}"

    def __repr__(self) -> str:
        return f"<GeneticPlan: {self}>"


@dataclass
class GeneticTrace:
    """Released values of a fit, one entry per generation.

    Attributes
    ----------
    events : list of Event
    mutation : list of float
        The change of one coefficient, with its sign.
    column, output : list of int
        Which coefficient: its column (the intercept's is the last) and its output.
    noise_scale : list of float
        Scale of the noise on the scores.
    coef : ndarray or None
        The coefficients at the end, in the solver's layout (intercept last).
    """

    events: list[SelectionEvent] = field(default_factory=list)
    mutation: list[float] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    noise_scale: list[float] = field(default_factory=list)
    coef: np.ndarray | None = None

    @property
    def n_iter(self) -> int:
        """Number of generations."""
        return len(self.events)


class CandidateLosses:
    """Holds rows and labels, and answers with sums of changes of the loss.

    A class of weight 0, as `present` gives to a null record, adds exactly zero.
    """

    def __init__(
        self,
        X: Any,
        target: np.ndarray,
        loss: Loss,
        *,
        n_outputs: int,
        fit_intercept: bool,
        feature_bound: float,
        class_weight: np.ndarray | None = None,
        present: np.ndarray | None = None,
    ) -> None:
        rows = sparse.csr_array(X, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        rows.data = np.clip(rows.data, -feature_bound, feature_bound)
        if fit_intercept:
            rows = sparse.hstack([rows, np.ones((len(target), 1))], format="csr")
        self._rows, self._target, self._loss = rows, target, loss
        self._n_outputs = n_outputs
        class_index = (target > 0).astype(int) if n_outputs == 1 else target
        weights = np.ones(max(2, n_outputs)) if class_weight is None else class_weight
        self.largest_weight = float(weights.max())
        self._weight = weights[class_index] * (1.0 if present is None else present)
        self._bound = max(feature_bound, 1.0) if fit_intercept else feature_bound

    @property
    def coef_shape(self) -> tuple[int, int]:
        """Columns, the intercept last, and outputs."""
        return self._rows.shape[1], self._n_outputs

    def changes(self, coef: np.ndarray, mutation: float) -> np.ndarray:
        """Sums over rows of the change of the loss when one coefficient changes.

        Private: they leave the library through a mechanism only. A row adds at most ``mutation``
        times the feature bound and its weight, up or down: the slope of the loss in one score is
        at most 1. That holds to the last bit, because what it adds is clipped to it.

        Parameters
        ----------
        coef : array of shape `coef_shape`
        mutation : float
            Positive.

        Returns
        -------
        ndarray of shape (2, *coef_shape)
            For the coefficient raised, and lowered.
        """
        sums = np.zeros((2, *coef.shape))
        for start in range(0, self._rows.shape[0], _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            sums += self._block_changes(self._rows[block], block, coef, mutation)
        return sums

    def _block_changes(
        self, rows: sparse.csr_array, block: slice, coef: np.ndarray, mutation: float
    ) -> np.ndarray:
        # Only the values that are not zero change a score: one entry below for each of them.
        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        scores, target = self._scores(rows, coef), self._target[block]
        before, scores, target = self._loss.value(scores, target)[row], scores[row], target[row]
        weight = self._weight[block][row]
        most = mutation * self._bound * weight
        sums = np.empty((2, *coef.shape))
        for sign, out in ((1.0, sums[0]), (-1.0, sums[1])):
            for k in range(self._n_outputs):
                moved = scores.copy()
                moved.reshape(len(row), -1)[:, k] += sign * mutation * rows.data
                change = weight * (self._loss.value(moved, target) - before)
                change = np.clip(change, -most, most)
                out[:, k] = np.bincount(rows.indices, change, minlength=len(coef))
        return sums

    def _scores(self, rows: sparse.csr_array, coef: np.ndarray) -> np.ndarray:
        scores = rows @ coef
        return scores[:, 0] if self._n_outputs == 1 else scores

    def rounding(self, n_samples: int, coef: np.ndarray, mutation: float) -> float:
        """Bound on the rounding error of each of the sums of `changes`.

        Parameters
        ----------
        n_samples : int
            The public number of records, at least their actual number.
        coef : array of shape `coef_shape`
            Released.
        mutation : float

        Returns
        -------
        float
            The computed sum is within it of a sum of one function of each record.

        Notes
        -----
        With u = 2^-53, B rows in a block and b the feature bound: a score of d columns is within
        ``(d + 2) u b ||w||_1`` of the exact one; a loss, 1-Lipschitz in each score, within the sum
        of these and a few u of itself, which is at most ``K (2 + |scores|)``; and a sum of n terms
        is within ``(B + n / B) u n`` of its largest term.
        """
        n_columns, n_outputs = coef.shape
        sizes = self._bound * (np.abs(coef).sum() + mutation)
        term = 8 * (n_columns + 8) * n_outputs * (2 + sizes)
        total = (_BLOCK_ROWS + n_samples / _BLOCK_ROWS + 8) * mutation * self._bound
        return _UNIT_ROUNDOFF * n_samples * self.largest_weight * (term + total)


def evolve(
    losses: CandidateLosses,
    plan: GeneticPlan,
    rng: EntropySource,
    on_step: Callable[[int, np.ndarray], None],
    fit_intercept: bool,
) -> GeneticTrace:
    """Minimise the mean loss plus the L2 penalty by one private choice a generation.

    Parameters
    ----------
    losses : CandidateLosses
        Holds the private data; asked for changes of the total loss.
    plan : GeneticPlan
    rng : EntropySource
    on_step : callable
        Called as ``on_step(t, coef)`` after each generation with the present coefficients,
        released values.
    fit_intercept : bool
        Whether the last coefficient is an intercept, which is not penalised.

    Returns
    -------
    GeneticTrace

    Notes
    -----
    Guarantee: one `ExponentialSelection` per generation, of the epsilon that the plan fixed in
    advance; its range follows from the mutation, which is public.
    """
    trace = GeneticTrace()
    coef = np.zeros(losses.coef_shape)
    penalised = np.ones_like(coef)
    penalised[-1] -= fit_intercept
    signs = np.array([1.0, -1.0])[:, np.newaxis, np.newaxis]
    for t, mutation in enumerate(plan.mutation):
        # 1) Score each mutation by what it changes in the total loss and the penalty.
        change = signs * mutation
        penalty = plan.facts.n_samples * plan.facts.alpha * penalised * (coef + change / 2) * change
        scores = -(losses.changes(coef, mutation) + penalty)
        # 2) Choose one privately.
        rounding = losses.rounding(plan.max_n_samples, coef, mutation)
        rounding += 2 * _UNIT_ROUNDOFF * float(np.abs(penalty).max())
        mechanism = plan.mechanism(t, largest_weight=losses.largest_weight, rounding=rounding)
        chosen, event = mechanism.release(scores.ravel(), rng)
        # 3) It is the only parent of the next generation.
        sign, column, output = np.unravel_index(chosen, scores.shape)
        coef[column, output] += change[sign, 0, 0]

        trace.events.append(event)
        trace.mutation.append(float(change[sign, 0, 0]))
        trace.column.append(int(column))
        trace.output.append(int(output))
        trace.noise_scale.append(mechanism.scale)
        trace.coef = coef[:, 0].copy() if coef.shape[1] == 1 else coef.copy()
        on_step(t, trace.coef)
    return trace
