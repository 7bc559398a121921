"""PrivGene: an evolution whose every generation is one private choice."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpglm.estimators.base import LogisticOrHingeMixin, PrivateLinearClassifier
from dpglm.estimators.inputs import n_outputs
from dpglm.exceptions import check_number, check_whole, is_auto
from dpglm.losses import Loss
from dpglm.privacy.accounting import bounded_range_epsilon_from_mu, bounded_range_epsilon_from_rho
from dpglm.privacy.budget import N_REF_FACTOR, PrivacyBudget
from dpglm.privacy.events import SelectionEvent
from dpglm.privacy.ledger import PrivacyLedger, run_lengths
from dpglm.privacy.mechanisms import ExponentialSelection
from dpglm.privacy.noise import EntropySource
from dpglm.schedules import PublicFacts

__all__ = ["CandidateLosses", "GeneticPlan", "GeneticTrace", "PrivGene", "evolve"]

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


_FEWEST_GENERATIONS = 20
# At the default decay a mutation is then a twentieth of the first.
_MOST_GENERATIONS = 100


class PrivGene(LogisticOrHingeMixin, PrivateLinearClassifier):
    """Differentially private linear classifier fitted by a genetic algorithm.

    Each generation raises or lowers one coefficient: the candidates are all such changes of the
    present coefficients, and the exponential mechanism chooses among them by their total loss
    (Zhang, Xiao, Yang, Zhang & Winslett 2013, in the form of Lee & Kifer 2018: one parent and one
    mutation, which shrinks geometrically).

    Parameters
    ----------
    loss : {"logistic", "hinge"}, default="logistic"
        The logistic loss is the cross entropy of the softmax for more than two classes; the hinge
        loss is then summed one-vs-rest.
    epsilon : float, default=1.0
        Privacy loss bound, above 0. ``inf`` takes the best candidate of every generation.
    delta : float, default=1e-6
        Probability scale of a larger loss, above 0 and below 1; choose it well below one over the
        number of records.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        Which datasets are made indistinguishable: one record replaced by a null record that
        contributes nothing, replaced by any other record, or added or removed. The number of
        records is public under the first two.
    n_ref : int, default=None
        Public stand-in for the number of records; required by ``"add_or_remove_one"`` only.
    feature_bound : float, default=1.0
        Public bound on the magnitude of the features, to which they are clipped in the fit.
    mutation : float, default=0.5
        Change of a coefficient in the first generation.
    mutation_decay : float, default=0.97
        Factor on it from one generation to the next, above 0 and at most 1; 0.95 as published.
    alpha : float, default=0.0
        L2 penalty ``alpha / 2 * ||coef||^2`` on the mean loss; scikit-learn's ``1 / (n C)``. The
        intercept is never penalised.
    max_iter : int or "auto", default="auto"
        Number of generations. ``"auto"`` is ``epsilon n / 800``, the authors' rule, between 20
        and 100.
    fit_intercept : bool, default=True
        Whether to append a column of ones.
    classes : array-like of shape (n_classes,), default=None
        The public label set. ``None`` infers it from y, which assumes that it is public.
    class_weight : dict, default=None
        Public weight of each class; the largest weight multiplies the noise.
    random_state : int, RandomState instance or None, default=None
        ``None`` draws noise from the operating system. Anything else is for tests: the noise is
        then reproducible, and protects nobody from a reader who knows the seed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int
        Always ``max_iter``.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only where X has column names that are all strings.
    privacy_ : PrivacyLedger
        What the fit released and what it cost, with all assumptions.
    trace_ : GeneticTrace
        The change that each generation chose.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy. When features are at most b in magnitude, a
    change of one coefficient by s changes one record's loss by at most ``s b``, either way: the
    scores have a range of ``2 s b`` (twice that under ``"replace_one"``), which is what the
    authors' enhanced exponential mechanism exploits. A choice of bounded range e is
    ``e^2/8``-zCDP (Cesar & Rogers 2021) and has a Gaussian trade-off: e is what the better of the
    two compositions admits. The authors add up e, and Lee & Kifer charge ``e^2/2``.

    Examples
    --------
    >>> from dpglm.baselines.privgene import PrivGene
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = PrivGene(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.6
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
        feature_bound: float = 1.0,
        mutation: float = 0.5,
        mutation_decay: float = 0.97,
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
        self.feature_bound = feature_bound
        self.mutation = mutation
        self.mutation_decay = mutation_decay
        self.alpha = alpha
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.random_state = random_state

    def _plan(
        self, budget: PrivacyBudget, facts: PublicFacts, assumptions: tuple[str, ...]
    ) -> GeneticPlan:
        feature_bound = check_number("feature_bound", self.feature_bound, 1e-50, 1e50)
        mutation = check_number("mutation", self.mutation, 1e-50, 1e50)
        decay = check_number("mutation_decay", self.mutation_decay, 0.0, 1.0)
        if is_auto(self.max_iter):
            suggested = min(budget.epsilon * facts.n_samples / 800, _MOST_GENERATIONS)
            n_iter = max(round(suggested), _FEWEST_GENERATIONS)
        else:
            n_iter = check_whole("max_iter", self.max_iter)
        epsilon = _selection_epsilon(budget, n_iter)
        plan = GeneticPlan(
            facts=facts,
            budget=budget,
            mutation=mutation * decay ** np.arange(float(n_iter)),
            feature_bound=max(feature_bound, float(bool(self.fit_intercept))),
            selection_epsilon=epsilon,
            ledger=PrivacyLedger(
                ((SelectionEvent(epsilon), n_iter),),
                budget.neighboring_relation,
                budget.delta,
                assumptions,
                seeded=self.random_state is not None,
            ),
        )
        # Refuses here, before the data are touched, what cannot be drawn.
        plan.mechanism(0)
        plan.mechanism(n_iter - 1)
        return plan

    def _objective(
        self, X: Any, target: np.ndarray, n_classes: int, class_weight: np.ndarray | None
    ) -> Any:
        return CandidateLosses(
            X,
            target,
            self._loss(n_classes),
            n_outputs=n_outputs(n_classes),
            fit_intercept=bool(self.fit_intercept),
            feature_bound=self.feature_bound,
            class_weight=class_weight,
        )

    def _train(
        self,
        objective: CandidateLosses,
        plan: GeneticPlan,
        rng: EntropySource,
        on_step: Callable[[int, np.ndarray], None],
    ) -> tuple[GeneticTrace, PrivacyLedger]:
        trace = evolve(objective, plan, rng, on_step, bool(self.fit_intercept))
        return trace, replace(plan.ledger, events=run_lengths(trace.events))


def _selection_epsilon(budget: PrivacyBudget, n_iter: int) -> float:
    """Return the bounded range of each of ``n_iter`` choices, by the accountant that admits more.

    Which one does follows from public numbers alone.
    """
    if budget.epsilon == math.inf:
        return math.inf
    return max(
        bounded_range_epsilon_from_rho(budget.rho / n_iter),
        bounded_range_epsilon_from_mu(budget.mu / math.sqrt(n_iter)),
    )
