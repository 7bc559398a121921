"""PrivGene: an evolution whose every generation is one private choice."""

import math
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from dpglm.baselines.records import UNIT_ROUNDOFF, Published, Records, terms_of_a_sum
from dpglm.checks import check_number, check_whole, is_auto
from dpglm.estimators.classification import PrivateLinearClassifier
from dpglm.estimators.plan import Plan, ledger_of
from dpglm.estimators.solvers import FitTrace, OnStep
from dpglm.losses import Loss, NamedLossMixin
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import ChoiceEvent, bun_steinke_rho
from dpglm.privacy.selection import ChoosingVault, ExponentialSelection
from dpglm.privacy.vault import Vault, plain
from dpglm.schedules import PublicMetadata
from dpglm.schema.values import without_duplicates

_FEWEST_GENERATIONS = 20
# At the default decay a mutation is then a twentieth of the first.
_MOST_GENERATIONS = 100


class CandidateLosses(Records):
    """Holds rows, clipped to the feature bound, and answers with sums of changes of the loss."""

    def __init__(
        self, X: Any, target: np.ndarray, loss: Loss, *, feature_bound: float, **options: Any
    ) -> None:
        super().__init__(X, target, **options)
        rows = without_duplicates(sparse.csr_array(X)).astype(np.float64)
        rows.data = np.clip(rows.data, -feature_bound, feature_bound)
        self._rows, self._loss = self._with_intercept(rows), loss
        self._bound = max(feature_bound, 1.0) if self._fit_intercept else feature_bound

    def changes(self, coef: np.ndarray, mutation: float) -> np.ndarray:
        """Return sums over rows of the change of the loss when one coefficient changes.

        The result has shape (2, *coef.shape): for the coefficient raised by the mutation, and
        lowered. A row adds at most the mutation times the feature bound and its weight, up or down.
        The slope of the loss in one score is at most 1. The bound holds to the last bit, because
        each addend is clipped to it.
        """
        shape = (2, *coef.shape)
        return self._sum(shape, lambda block: self._block_changes(block, coef, mutation))

    def _block_changes(self, block: slice, coef: np.ndarray, mutation: float) -> np.ndarray:
        rows = self._rows[block]
        # Only the values that are not zero change a score: one entry below for each of them.
        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        scores, target = rows @ coef, self._target[block]
        scores = scores[:, 0] if self._n_outputs == 1 else scores
        before, scores, target = self._loss.value(scores, target)[row], scores[row], target[row]
        weight = self._weight[block][row]
        most = mutation * self._bound * weight
        sums = np.empty((2, *coef.shape))
        for sign, out in ((1.0, sums[0]), (-1.0, sums[1])):
            for k in range(self._n_outputs):
                moved = scores.copy()
                moved.reshape(len(row), self._n_outputs)[:, k] += sign * mutation * rows.data
                change = weight * (self._loss.value(moved, target) - before)
                change = np.clip(change, -most, most)
                out[:, k] = np.bincount(rows.indices, change, minlength=len(coef))
        return sums


class MutationVault(ChoosingVault):
    """A vault that releases which change of a single coefficient seems best."""

    def choose_mutation(self, t: int, coef: np.ndarray, plan: "GeneticPlan") -> int:
        """Release the index of a candidate of generation `t` with a small total loss.

        Candidates are as `CandidateLosses.changes` has them, raveled.
        """
        coef, mutation = plain(coef, np.shape(coef)), float(plan.mutation[t])
        mechanism = plan.mechanism(t, plan.rounding(np.abs(coef).sum(), mutation))
        return self._release_choice(mechanism, lambda: -self._sums.changes(coef, mutation).ravel())


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GeneticPlan(Plan):
    """Choices of a fit, one of the candidates of each generation, and their cost."""

    n_iter: int
    # By how much one coefficient changes, of shape (n_iter,).
    mutation: np.ndarray
    # On the magnitude of every feature, the intercept's one included.
    feature_bound: float
    # Bounded range of each choice.
    selection_epsilon: float

    def mechanism(self, t: int, rounding: float = 0.0) -> ExponentialSelection:
        """Return the mechanism that chooses in generation ``t``, from 0.

        Two scores of two data sets differ by up to four rounding errors of a score.
        """
        most = float(self.mutation[t]) * self.feature_bound
        return ExponentialSelection(
            score_range=self.budget.sensitivity(2 * most),
            epsilon=self.selection_epsilon,
            slack=0.0 if self.selection_epsilon == math.inf else 4 * rounding,
        )

    def rounding(self, coef_sum: float, mutation: float) -> float:
        """Bound the rounding error of each sum of changes, as a sum of functions of a record.

        ``coef_sum`` is that of the magnitudes of the coefficients, released values.

        With u = 2^-53, B rows in a block and b the feature bound: a score of d columns is within
        ``(d + 2) u b ||w||_1`` of the exact one. A loss is 1-Lipschitz in each score. Its error is
        the sum of those, plus a few u times the loss, which is at most ``K (2 + |scores|)``. A sum
        of n terms is within ``(B + n / B) u n`` times its largest term.
        """
        n_samples = self.max_n_samples
        sizes = self.feature_bound * (coef_sum + mutation)
        term = 8 * (self.metadata.n_features + 8) * self.metadata.n_outputs * (2 + sizes)
        total = (terms_of_a_sum(n_samples) + 8) * mutation * self.feature_bound
        return UNIT_ROUNDOFF * n_samples * (term + total)

    @property
    def _releases(self) -> str:
        return f"{self.n_iter} generations over {self.metadata.n_samples:,} records"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivGene(Published, NamedLossMixin, PrivateLinearClassifier):
    """Differentially private linear classifier fitted by a genetic algorithm.

    Each generation raises or lowers one coefficient: the candidates are all such changes of the
    present coefficients. The exponential mechanism chooses among them by their total loss (Zhang,
    Xiao, Yang, Zhang & Winslett 2013). This is the form of Lee & Kifer 2018: one parent and one
    mutation, which shrinks geometrically.

    Parameters
    ----------
    epsilon, delta, neighboring_relation, n_samples_estimate, classes
        As in `DPLogisticRegression`.
    loss : {"logistic", "hinge"}, default="logistic"
        The cross entropy of the softmax, or the hinge loss of one-vs-rest, for several classes.
    feature_bound : float, default=1.0
        Public bound on the magnitude of the features, to which they are clipped in the fit.
    mutation : float, default=0.5
        Change of a coefficient in the first generation.
    mutation_decay : float, default=0.97
        Factor on it from one generation to the next, above 0 and at most 1; 0.95 as published.
    max_iter : int or "auto", default="auto"
        Number of generations. ``"auto"`` is ``epsilon n / 800``, the authors' rule, between 20
        and 100.
    fit_intercept : bool, default=True
        Whether to append a column of ones.
    class_weight : dict, "balanced" or None, default=None
        As in `DPLogisticRegression`; only ``"balanced"`` needs a count of labels.
    accounting : {"tight", "published"}, default="tight"
        Sharpness of a choice: what the budget allows, or at most that of Lee & Kifer's program,
        whose number of generations is 1 or more.

    Attributes
    ----------
    trace_ : FitTrace
        The change that each generation chose.
    classes_, coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, privacy_
        As in `DPLogisticRegression`.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy. Features are at most b in magnitude, so a
    change of one coefficient by s changes one record's loss by at most ``s b``, either way. The
    scores have a range of ``2 s b`` (twice that under ``"replace_one"``). A choice of bounded
    range e is ``e^2/8``-zCDP (Cesar & Rogers 2021) and has a Gaussian trade-off. The fit takes the
    larger e that the two compositions admit. By zCDP its mu is up to 21 percent above that of a
    Gaussian release of its epsilon. It therefore needs more of a filter's limit
    (`PrivacyOdometer`), and `PrivateSearchCV` refuses it.

    Examples
    --------
    >>> from dpglm.baselines import PrivGene
    >>> from dpglm.datasets import make_census
    >>> X, y = make_census(5000, random_state=0)
    >>> model = PrivGene(epsilon=1.0, delta=1e-6, classes=[0, 1]).fit(X, y)
    >>> model.score(X, y) > 0.6  # exact: a PrivacyWarning says so
    True
    """

    loss: str = "logistic"
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | None = None
    feature_bound: float = 1.0
    mutation: float = 0.5
    mutation_decay: float = 0.97
    max_iter: int | str = "auto"
    accounting: str = "tight"

    # Not a parameter of this one.
    alpha: ClassVar[float] = 0.0

    _constants: ClassVar[dict[str, Any]] = {"accounting": "published", "mutation_decay": 0.95}
    _vault_type: ClassVar[type[Vault]] = MutationVault
    _reads_blocks: ClassVar[bool] = False

    def _plan(self, budget: PrivacyBudget, metadata: PublicMetadata) -> GeneticPlan:
        feature_bound = check_number("feature_bound", self.feature_bound, above=1e-50, at_most=1e50)
        mutation = check_number("mutation", self.mutation, above=1e-50, at_most=1e50)
        decay = check_number("mutation_decay", self.mutation_decay, above=0, at_most=1.0)
        published = self._is_published(budget)
        if is_auto(self.max_iter):
            suggested = min(budget.epsilon * metadata.n_samples / 800, _MOST_GENERATIONS)
            n_iter = max(round(suggested), 1 if published else _FEWEST_GENERATIONS)
        else:
            n_iter = check_whole("max_iter", self.max_iter)
        epsilon = math.inf
        if budget.epsilon < math.inf:
            # By the accountant that admits more.
            epsilon = max(
                ChoiceEvent.epsilon_from_rho(budget.rho / n_iter),
                ChoiceEvent.epsilon_from_mu(budget.mu / math.sqrt(n_iter)),
            )
        if published:
            # The classical mechanism, for twice the range that a change of a score has.
            rho = bun_steinke_rho(budget.epsilon, budget.delta)
            epsilon = min(epsilon, math.sqrt(rho / (2 * n_iter)))
        chosen = ChoiceEvent(epsilon, purpose="choice among mutations")
        plan = GeneticPlan(
            metadata=metadata,
            budget=budget,
            n_iter=n_iter,
            mutation=mutation * decay ** np.arange(float(n_iter)),
            feature_bound=max(feature_bound, float(bool(self.fit_intercept))),
            selection_epsilon=epsilon,
            ledger=ledger_of(budget, repeat(chosen, n_iter)),
        )
        # Refuses here, before the data are touched, what cannot be drawn: the largest coefficients
        # there can be, and the smallest mutation.
        plan.mechanism(0, plan.rounding(float(plan.mutation.sum()), mutation))
        plan.mechanism(n_iter - 1)
        return plan

    def _holder(self, X: Any, target: np.ndarray, loss: Loss, **options: Any) -> CandidateLosses:
        return CandidateLosses(X, target, loss, feature_bound=self.feature_bound, **options)

    def _train(self, vault: MutationVault, plan: GeneticPlan, on_step: OnStep) -> FitTrace:
        space = self._space(plan)
        trace = FitTrace("mutation", "column", "output", "noise_scale")
        coef = np.zeros((space.n_columns, space.n_outputs))
        for t, mutation in enumerate(plan.mutation.tolist()):
            # 1) Choose a coefficient to raise or to lower, privately, by the total loss.
            chosen = vault.choose_mutation(t, coef, plan)
            lowered, column, output = map(int, np.unravel_index(chosen, (2, *coef.shape)))
            # 2) It is the only parent of the next generation.
            change = -mutation if lowered else mutation
            coef[column, output] += change
            trace.record(vault.log[-1], mutation=change, column=column, output=output)
            trace.coef = coef.reshape(space.shape).copy()
            if on_step is not None:
                on_step(t, trace.coef)
        return trace
