"""Utility graphs: which settings do well, and where noise hurts least, from public rows alone."""

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import ge, itemgetter
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, check_X_y

from dpglm.calculator import ExpectedStandardErrors
from dpglm.checks import check_number, check_whole
from dpglm.datasets import chances_with, draw_rows
from dpglm.estimators.descent import NoisyDescentMixin
from dpglm.estimators.plan import PrivacyPlan
from dpglm.estimators.solvers import Coordinates
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.gaussian import gdp_epsilon, gdp_mu
from dpglm.privacy.noise import seeded_noise
from dpglm.schedules import DynamicNoise
from dpglm.schema import Schema
from dpglm.study import results
from dpglm.study.comparison import finished, scores
from dpglm.tables import text_table

# Most records that are fitted: if there are more, this number stands in for all.
_MOST_FITTED = 20_000
# Logarithms of the spread of scores: where all labels are alike, and where none is in doubt.
_FACTORS = -6.0, 8.0


@dataclass(frozen=True)
class UtilityCell:
    """One setting with its scores in each repeat, or with the reason why a fit failed.

    ``passes`` is how often each record is read on average, by all releases of a fit.
    """

    params: Mapping[str, Any]
    scores: Mapping[str, tuple[float, ...]]
    error: str | None = None
    passes: float | None = None

    @property
    def n_repeats(self) -> int:
        """Number of finished fits."""
        return len(next(iter(self.scores.values()), ()))


@dataclass(frozen=True, eq=False)
class UtilityGraphResults(results.ResultTable):
    """The scores of a grid of settings, from `UtilityGraph.run`.

    Parameters
    ----------
    estimator : estimator
        Unfitted; what the settings are applied to.
    cells : tuple of UtilityCell
        One per setting, in the order of the grid; at least one without an error.
    n_samples : int
        Number of records that the settings were tried for.

    Notes
    -----
    The recommended setting has the lowest mean rank. In each repeat all settings get the same
    rows. They are ranked by accuracy, by AUC and by loss, and the ranks are averaged. Settings of
    several budgets are ranked together; `at` looks at one.
    """

    estimator: BaseEstimator
    cells: tuple[UtilityCell, ...]
    n_samples: int

    @property
    def recommended_index(self) -> int:
        """Number of the recommended setting in ``cells``."""
        ranks = self._ranks()
        return min(ranks, key=lambda i: ranks[i].mean())

    @property
    def recommended_params(self) -> dict[str, Any]:
        """The recommended setting."""
        return dict(self.cells[self.recommended_index].params)

    def recommended_estimator(self) -> BaseEstimator:
        """Return a new, unfitted estimator at the recommended setting, for the private data."""
        return results.configured(self.estimator, self.recommended_params)

    @property
    def errors(self) -> list[UtilityCell]:
        """The settings that cannot be fitted."""
        return [cell for cell in self.cells if cell.error is not None]

    @property
    def epsilons(self) -> list[float]:
        """The budgets of the settings, as they rise; none without privacy."""
        return sorted({self._epsilon(cell) for cell in self.cells} - {None})

    def at(self, epsilon: float) -> "UtilityGraphResults":
        """Return the results at one of the budgets."""
        cells = tuple(cell for cell in self.cells if self._epsilon(cell) == epsilon)
        if not cells:
            raise ValueError(f"epsilon={epsilon!r} must be one of {self.epsilons}.")
        return replace(self, cells=cells)

    def frontier(self) -> list[dict[str, Any]]:
        """Return the rows that no other beats or equals in epsilon, accuracy and passes at once."""
        rows = [row for row in self.rows() if row["error"] is None]
        goals = [
            (-(row["epsilon"] or 0.0), row["accuracy"], -(row["passes"] or 0.0)) for row in rows
        ]
        return [
            row
            for row, own in zip(rows, goals, strict=True)
            if not any(o != own and all(map(ge, o, own)) for o in goals)
        ]

    def least_epsilon(self, *, accuracy: float, max_passes: float = math.inf) -> dict[str, Any]:
        """Return the setting that reaches an accuracy with the least epsilon.

        Parameters
        ----------
        accuracy : float
            Least mean accuracy over the repeats.
        max_passes : float, default=inf
            How often each record may be read.

        Raises
        ------
        ValueError
            If no setting does.
        """
        known = [
            (cell, row)
            for cell, row in zip(self.cells, self.rows(), strict=True)
            if row["error"] is None and (row["passes"] or 0.0) <= max_passes
        ]
        enough = [(cell, row) for cell, row in known if row["accuracy"] >= accuracy]
        if not enough:
            best = max((row["accuracy"] for _, row in known), default=math.nan)
            raise ValueError(
                f"no setting has accuracy={accuracy:g} within {max_passes:g} passes; the best has "
                f"{best:.4f}."
            )
        cell, _ = min(enough, key=lambda found: (found[1]["epsilon"] or 0.0, -found[1]["accuracy"]))
        return dict(cell.params)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per setting, in the order of the grid.

        Returns
        -------
        list of dict
            ``setting``, the parameters as text, and each parameter under ``param_`` and its name.
            ``epsilon`` and ``passes`` are None for estimators without. For each of `SCORES` and
            ``rank`` there is its mean over the repeats. Its standard error has ``_se`` in the name,
            that of the difference from the recommended setting ``_gap_se``. Then follow
            ``n_repeats``, ``recommended`` and ``error``. Means are None if there is an error, and
            standard errors after a single repeat.
        """
        best, ranks = self.recommended_index, self._ranks()
        measured = {i: {**self.cells[i].scores, "rank": rank} for i, rank in ranks.items()}
        rows = []
        for i, cell in enumerate(self.cells):
            row: dict[str, Any] = {"setting": results.setting_text(cell.params)}
            row |= {f"param_{name}": value for name, value in self._values(cell).items()}
            row |= {"epsilon": self._epsilon(cell), "passes": cell.passes}
            for name, best_values in measured[best].items():
                values = measured[i][name] if i in measured else ()
                gap = np.subtract(values, best_values[: len(values)])
                row[name], row[f"{name}_se"] = results.mean_and_error(values)
                row[f"{name}_gap_se"] = results.mean_and_error(gap)[1]
            row |= {"n_repeats": cell.n_repeats, "recommended": i == best, "error": cell.error}
            rows.append(row)
        return rows

    def headline(self) -> str:
        """Return the budget and the size of the simulation, in words."""
        values, n_settings = self.estimator.get_params(), len(self.cells)
        fits = _plural(self.cells[self.recommended_index].n_repeats, "fit")
        ends = dict.fromkeys(f"{epsilon:g}" for epsilon in self.epsilons[:1] + self.epsilons[-1:])
        budget = f"epsilon {' to '.join(ends)}, " if ends else ""
        deltas = results.parameters_named(self.estimator, "delta")
        budget += "".join(f"delta {values[full]:g}, " for full in deltas)
        return f"{budget}{self.n_samples:,} records: {n_settings} settings x {fits}"

    def table(self, n_best: int = 10) -> str:
        """Return a text table of the `n_best` settings, and of those that cannot be fitted."""
        measured = [row for row in self.rows() if row["error"] is None]
        best = sorted(measured, key=itemgetter("rank"))[:n_best]
        columns = [["rank", *(f"{row['rank']:.1f}" for row in best)]]
        for name, title in results.SCORES.items():
            columns.append([title, *(results.score_text(row, name) for row in best)])
        for name in self.varied():
            columns.append([name, *(results.value_text(row[f"param_{name}"]) for row in best)])
        lines = [self.headline(), *text_table(zip(*columns, strict=True), left=())]
        if len(measured) > n_best:
            lines.append(f"and {len(measured) - n_best} more")
        for error, n in Counter(cell.error for cell in self.errors).items():
            lines.append(f"{_plural(n, 'setting')} cannot be fitted: {error}")
        return "\n".join(lines)

    def varied(self) -> list[str]:
        """Return the names of the parameters that are not the same in all settings."""
        values = [self._values(cell) for cell in self.cells]
        return [n for n in values[0] if len({results.value_text(own[n]) for own in values}) > 1]

    def __repr__(self) -> str:
        return f"<UtilityGraphResults: {self.headline()}, recommended {self.recommended_params}>"

    def _values(self, cell: UtilityCell) -> dict[str, Any]:
        """Return the value of every parameter of the grid; what a setting leaves out included."""
        names = dict.fromkeys(name for other in self.cells for name in other.params)
        values = results.configured(self.estimator, cell.params).get_params()
        return {name: values.get(name, "") for name in names}

    def _epsilon(self, cell: UtilityCell) -> float | None:
        """Return the budget of a setting, the largest one of several estimators inside of it."""
        values = self.estimator.get_params() | dict(cell.params)
        names = results.parameters_named(self.estimator, "epsilon")
        return max((float(values[name]) for name in names), default=None)

    def _ranks(self) -> dict[int, np.ndarray]:
        """Return the rank of each setting that was fitted in each repeat, the mean over scores."""
        fitted = [i for i, cell in enumerate(self.cells) if cell.error is None]
        by_score = []
        for name in results.SCORES:
            scores = np.array([self.cells[i].scores[name] for i in fitted])
            # Losses rise, and scores fall, from rank 1 on.
            by_score.append(rankdata(scores if name == "loss" else -scores, axis=0))
        return dict(zip(fitted, np.mean(by_score, axis=0), strict=True))


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


# Possible errors of a setting; any other exception is a defect.
_REASONS = (ValueError, TypeError, ArithmeticError, ImportError, ConvergenceWarning)
_Split = tuple[np.ndarray, np.ndarray]
_BUDGET = re.compile("(^|__)(epsilon|delta|neighboring_relation|n_samples_estimate)$")


@dataclass(eq=False, repr=False)
class UtilityGraph:
    """Expected accuracy, AUC and loss of each setting of a private estimator, at given budgets.

    Every setting is fitted to PUBLIC rows, an artificial table or a public sample like the private
    one. The fits draw the noise that a fit to the private records would draw. No private record is
    read, so that the fit that follows costs its epsilon once, however large the grid was.

    Parameters
    ----------
    estimator : estimator
        A private classifier with its budget; cloned, never fitted.
    param_grid : dict or list of dict
        As in scikit-learn's ``ParameterGrid``; nested parameters as in ``noise_schedule__decay``.
    n_samples : int
        Number of records of the PRIVATE data to come, for which the noise is planned;
        ``n_samples_estimate`` under ``"add_or_remove_one"``.
    epsilons : sequence of float, optional
        Budgets at which every setting is tried; by default the estimator's own.
    n_repeats : int, default=5
        Fits of each setting, each with other rows and other noise.
    test_size : float, default=0.25
        Share of the public rows that scores are computed on.
    n_jobs : int, optional
        Number of processes, as in joblib.
    random_state : int, RandomState instance or None, default=None
        Seed of rows and noise, for a run that can be repeated exactly whatever `n_jobs` is. The
        recommended estimator does not get it.
    progress : bool, default=False
        Report progress on standard error.

    Notes
    -----
    The noise on the mean gradient of n records is ``z C / n``. To give it the size of the fit to
    come, each fit gets exactly n rows. These are n different ones if as many are left to fit on,
    else every one of m ``floor(n/m)`` or ``ceil(n/m)`` times. Fewer rows lower all held-out scores
    alike, unless m is within a few times the number of columns.

    In each repeat all settings share one split into rows to fit and rows to score, while their
    noise is independent. A setting that cannot be fitted, or diverges, is a row of the results
    with the reason. The workflow is that of van Dijk et al. (2024, "Proactive DP"), their
    objectives being accuracy, privacy and passes over the data.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import UtilityGraph
    >>> private = DPLogisticRegression(epsilon=1.0, delta=1e-6, preconditioner=None)
    >>> graph = UtilityGraph(private, {"max_iter": [1, 100]}, n_samples=30_000, n_repeats=2)
    >>> results = graph.run(*make_census(2000, random_state=0))
    >>> results.recommended_estimator().max_iter  # not fitted yet
    100
    """

    estimator: BaseEstimator
    param_grid: Mapping[str, Sequence] | Iterable[Mapping[str, Sequence]]
    _: KW_ONLY
    n_samples: int
    epsilons: Sequence[float] | None = None
    n_repeats: int = 5
    test_size: float = 0.25
    n_jobs: int | None = None
    random_state: Any = None
    progress: bool = False

    def run(self, X: Any, y: Any) -> UtilityGraphResults:
        """Simulate every setting on public rows.

        Parameters
        ----------
        X : {array-like, CSR matrix} of shape (n_rows, n_features)
            PUBLIC rows, encoded as the private ones will be. Never the private ones: the choice
            would depend on them, and that is charged nowhere.
        y : array-like of shape (n_rows,)
            Their labels.

        Returns
        -------
        UtilityGraphResults

        Raises
        ------
        ValueError
            If a parameter is out of range or unknown, or no setting at all can be fitted.
        """
        settings = self._settings()
        X, y = check_X_y(X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        rng = check_random_state(self.random_state)
        splits = self._splits(y, rng)
        # Drawn before the fits, so that their order and the number of processes change nothing.
        seeds = np.full((len(splits), len(settings)), None)
        if self.random_state is not None:
            seeds = rng.randint(2**31 - 1, size=seeds.shape).astype(object)
        calls = [
            ((repeat, i), self.estimator, settings[i], seed, X, y, splits[repeat])
            for (repeat, i), seed in np.ndenumerate(seeds)
        ]
        outcomes = np.full(seeds.shape, None)
        for place, outcome in finished(
            _simulated, calls, n_jobs=self.n_jobs, progress=self.progress
        ):
            outcomes[place] = outcome
        cells = tuple(map(_cell, settings, outcomes.T.tolist()))
        if all(cell.error is not None for cell in cells):
            raise ValueError(f"no setting of param_grid can be fitted: {cells[0].error}")
        return UtilityGraphResults(results.configured(self.estimator, {}), cells, self.n_samples)

    def _splits(self, y: np.ndarray, rng: np.random.RandomState) -> list[_Split]:
        """Return the rows to fit and those to score of each repeat, all labels among both."""
        splits = []
        for _ in range(self.n_repeats):
            train, test = resampled_split(len(y), self.n_samples, self.test_size, rng)
            for part, use in ((train, "fit"), (test, "score")):
                missing = np.setdiff1d(y, y[part])
                if len(missing):
                    raise ValueError(
                        f"none of the {len(part)} rows to {use} has the label {missing[0]!r}; give "
                        "more public rows of that label, or another test_size."
                    )
            splits.append((train, test))
        return splits

    def _settings(self) -> list[dict[str, Any]]:
        check_whole("n_samples", self.n_samples)
        check_whole("n_repeats", self.n_repeats)
        settings = list(ParameterGrid(self.param_grid))
        for setting in settings:
            for name in filter(_BUDGET.search, setting):
                raise ValueError(
                    f"param_grid varies {name}, which is part of the budget. Set it on the "
                    "estimator; for several epsilons, pass epsilons=[...]."
                )
            try:
                results.configured(self.estimator, setting)
            except AttributeError as error:
                text = results.setting_text(setting)
                raise ValueError(
                    f"param_grid has the setting {text}, and a nested parameter needs an object to "
                    "belong to, not a name or a number. List the objects, or split the grid."
                ) from error
        if self.epsilons is None:
            return settings
        names = results.parameters_named(self.estimator, "epsilon")
        if not names or not len(self.epsilons):
            raise ValueError(
                f"epsilons={self.epsilons!r} are for a private estimator, one or more."
            )
        return [dict.fromkeys(names, float(e)) | own for e in self.epsilons for own in settings]


def resampled_split(n_rows: int, n_samples: int, test_size: float, rng: Any) -> _Split:
    """Return the rows to fit on, (n_samples,), equally often or once more, and the rest."""
    check_number("test_size", test_size, above=0, below=1)
    if n_rows < 2:
        raise ValueError(f"X has {n_rows} row; two or more are needed, to fit and to score.")
    # `resize` repeats all of the shuffled rows, so that none comes twice before each came once.
    order = rng.permutation(n_rows)
    n_test = min(max(1, round(test_size * n_rows)), n_rows - 1)
    return np.resize(order[n_test:], n_samples), order[:n_test]


def _simulated(
    place: tuple, estimator: BaseEstimator, setting: dict, seed: int | None, X: Any, y: Any, split
) -> tuple:
    """Return the place, and the scores of one fit or why there are none."""
    (train, test), model = split, results.configured(estimator, setting)
    model.set_params(**dict.fromkeys(results.parameters_named(model, "random_state"), seed))
    with warnings.catch_warnings(), seeded_noise(seed):
        # Both are about the fit to come, which gives them again if it should.
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(X[train], y[train])
            found = scores(model, X[test], y[test])
            passes = _passes(model)
        except _REASONS as error:
            return place, results.one_line(str(error)) or type(error).__name__
    if not np.isfinite([*found.values()]).all():
        return place, "The scores are not finite: lower step_schedule."
    return place, found | {"passes": passes}


def _passes(model: BaseEstimator) -> float | None:
    """Return how often a fit read each record, on average: once for each release but of batches."""
    trace = getattr(model[-1] if isinstance(model, Pipeline) else model, "trace_", None)
    if trace is None:
        return None
    first = [] if trace.whitening is None else trace.whitening.events
    return float(sum(getattr(event, "sampling_rate", 1.0) for event in [*first, *trace.events]))


def _cell(params: dict[str, Any], outcomes: list[dict[str, Any] | str]) -> UtilityCell:
    # A setting that fails in one repeat fails: its scores in the others would be the lucky ones.
    for outcome in outcomes:
        if isinstance(outcome, str):
            return UtilityCell(params, {}, outcome)
    scores = {name: tuple(own[name] for own in outcomes) for name in results.SCORES}
    passes = [own["passes"] for own in outcomes]
    return UtilityCell(params, scores, None, None if None in passes else float(np.mean(passes)))


def noise_from_public(estimator: BaseEstimator, X: Any, y: Any, *, n_samples: int) -> DynamicNoise:
    """Learn the shape of the noise on PUBLIC rows: little where it reaches the end, else more.

    Parameters
    ----------
    estimator : DPLogisticRegression or DPLinearSVM
        With its budget and the settings of the run to come, which the shape is for; never fitted.
    X : array-like of shape (n_rows, n_features)
        PUBLIC rows, encoded as the private ones will be. Never the private ones.
    y : array-like of shape (n_rows,)
        Their labels.
    n_samples : int
        Number of records of the PRIVATE data to come, for which steps and clips are planned.

    Returns
    -------
    DynamicNoise
        For ``noise_schedule``; its ``influence`` is what was measured, ``tr(G_t' H G_t)`` below.

    Raises
    ------
    TypeError, ValueError
        For other estimators, and for the hinge, whose curvature is zero but at its corner.

    Notes
    -----
    Without noise, clipped as planned, a run on the public rows takes a path. Noise in iteration t
    moves the result of the run by G_t times the noise, to first order, through steps, momentum and
    averaging. G_t follows backwards from the second derivatives along the path. Let H be those at
    the end, near the minimum. The noise then raises the loss by ``tr(G_t' H G_t) / 2`` times the
    variance on average: the influence q_t of Hong, Wang & Zhou (2022), exact and not a bound. A
    preconditioner is first fitted to as many rows as there will be, with the noise of that. The
    time grows with the square of columns times classes.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import noise_from_public
    >>> model = DPLogisticRegression(epsilon=1.0)
    >>> noise = noise_from_public(model, *make_census(1000, random_state=0), n_samples=30_000)
    >>> len(noise.influence)
    24
    """
    if not isinstance(estimator, NoisyDescentMixin):
        raise TypeError(f"estimator={estimator!r} must be DPLogisticRegression or DPLinearSVM.")
    X, y = check_X_y(X, y)
    classes = np.unique(y if estimator.classes is None else estimator.classes)
    codes = np.searchsorted(classes, y)
    plan = estimator.plan(n_samples, X.shape[1], len(classes))
    if plan.metadata.curvature == math.inf:
        raise ValueError("a hinge loss has no curvature to measure; take the smoothed one.")
    space = estimator._space(plan.metadata)
    rows = np.column_stack([X, np.ones(len(X))]) if space.fit_intercept else X
    if plan.second_moment is not None:
        same = np.resize(np.arange(len(y)), n_samples)
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            found = clone(estimator).fit(X[same], y[same]).trace_.whitening
        plan = plan.in_whitened_space(found.effective_dimension)
        space = replace(space, basis=found.basis)
        rows = rows * found.basis if found.basis.ndim == 1 else rows @ found.basis
    weights = np.array([(estimator.class_weight or {}).get(c, 1.0) for c in classes])[codes]
    q = _influence(plan, space, rows, codes, weights)
    # No iteration gets more than a thousand times the noise of another.
    return DynamicNoise(influence=tuple(np.maximum(q, 1e-12 * q.max()).tolist()))


def _influence(
    plan: PrivacyPlan, space: Coordinates, rows: np.ndarray, codes: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return q_t (n_iter,) of rows (n, d) in the space of the descent; labels are 0, 1, ..."""
    (n, d), n_outputs = rows.shape, space.n_outputs
    size, lengths = d * n_outputs, np.linalg.norm(rows, axis=1)
    target = codes if n_outputs > 1 else 2.0 * codes - 1.0

    def slopes(scores: np.ndarray, clip: float) -> np.ndarray:
        """Return the derivatives (n, n_outputs) of the losses in their scores, clipped."""
        found = space.loss.derivative(scores.reshape(-1, *space.shape[1:]), target)
        found = weights[:, np.newaxis] * found.reshape(n, n_outputs)
        norms = np.linalg.norm(found, axis=1) * lengths
        return found * (np.minimum(norms, clip) / np.maximum(norms, 1e-300))[:, np.newaxis]

    penalty = np.column_stack([space.penalty_gradient(unit) for unit in np.eye(d)])
    penalty = plan.metadata.alpha * np.kron(penalty, np.eye(n_outputs))

    def gradient(coef: np.ndarray, clip: float) -> np.ndarray:
        total = rows.T @ slopes(rows @ coef.reshape(d, n_outputs), clip)
        return total.ravel() / n + penalty @ coef

    def jacobian(coef: np.ndarray, clip: float, width: float = 1e-4) -> np.ndarray:
        """Return the Jacobian of the gradient, (size, size), by differences of the slopes."""
        scores, found = rows @ coef.reshape(d, n_outputs), np.empty((d, n_outputs, d, n_outputs))
        for k, shift in enumerate(width * np.eye(n_outputs)):
            change = slopes(scores + shift, clip) - slopes(scores - shift, clip)
            for j, own in enumerate(change.T / (2 * width * n)):
                found[:, j, :, k] = (rows.T * own) @ rows
        return found.reshape(size, size) + penalty

    coef = velocity = average = np.zeros(size)
    path = []
    for t in range(plan.n_iter):
        path.append(coef)
        found = gradient(coef, plan.clip[t])
        direction, velocity = plan.momentum.direction(found, velocity, t + 1)
        coef = coef - plan.step[t] * direction
        average = average + plan.averaging[t] * coef

    end, q = jacobian(average, math.inf), np.empty(plan.n_iter)
    # How what is returned follows from the coefficients, the velocity and the gradient of t.
    of_coef = of_velocity = np.zeros((size, size))
    for t in reversed(range(plan.n_iter)):
        of_coef = of_coef + plan.averaging[t] * np.eye(size)
        by_gradient = plan.momentum.direction(1.0, 0.0, t + 1)
        by_velocity = plan.momentum.direction(0.0, 1.0, t + 1)
        of_gradient, of_velocity = (
            velocity * of_velocity - plan.step[t] * direction * of_coef
            for direction, velocity in (by_gradient, by_velocity)
        )
        noise = of_gradient
        if n_outputs > 1:
            noise = space.loss.project(noise.reshape(-1, n_outputs)).reshape(size, size)
        q[t] = np.vdot(noise, end @ noise)
        of_coef = of_coef + of_gradient @ jacobian(path[t], plan.clip[t])
    return q


class Accuracies(NamedTuple):
    """Accuracy with and without privacy, and the standard error of the difference."""

    private: float
    not_private: float
    standard_error: float


def simulated_accuracy(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    *,
    n_samples: int,
    accuracy: float,
    n_repeats: int = 5,
    random_state: Any = None,
) -> Accuracies:
    """Return what accuracy to expect of a private fit, and without privacy, from public rows.

    Parameters
    ----------
    estimator : estimator
        A linear classifier of this package with its budget; cloned, never fitted.
    X : array-like of shape (n_rows, n_features)
        PUBLIC rows, as for `UtilityGraph.run`: a sample, or those of `sample_from_schema`. About
        thirty for each column are enough. Rows of a schema do not show how separate the classes
        are: on KDD Cup 1999 privacy cost 0.8 to 3 points less than they predicted.
    y : array-like of shape (n_rows,)
        Their labels, of which each should be as frequent as in the private data.
    n_samples : int
        Number of records of the PRIVATE data to come.
    accuracy : float
        A guess of the best accuracy without privacy: above the share of the most frequent label.
    n_repeats : int, default=5
        Fits, each to labels of its own.
    random_state : int, RandomState instance or None, default=None
        Seed of labels and noise.

    Returns
    -------
    Accuracies

    Raises
    ------
    ValueError
        If a number is out of range, or no model of these rows has that accuracy.

    Notes
    -----
    The truth is taken to be a logistic model in the direction of one that is fitted to the rows.
    Its log-odds are scaled so that the best accuracy is `accuracy`. For each fit the rows are
    repeated to `n_samples`, with labels drawn anew, so that a small sample is not memorised.
    Accuracy is the expected one on the rows. If there are more than 20,000 records, 20,000 stand in
    for all, with a budget that gives them the same n mu.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> public = make_census(1000, random_state=0)
    >>> settings = {"n_samples": 5000, "accuracy": 0.85, "n_repeats": 2, "random_state": 0}
    >>> found = simulated_accuracy(DPLogisticRegression(epsilon=0.5), *public, **settings)
    >>> found.private < found.not_private < 0.85
    True
    """
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    chances, own, draws = _fits(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
    exact = LogisticRegression(C=np.inf, max_iter=1000)
    found = []
    for rows, labels, seed in draws:
        with warnings.catch_warnings(action="ignore"), seeded_noise(seed):
            predicted = [model.fit(X[rows], labels).predict(X) for model in (own, exact)]
        places = [np.searchsorted(own.classes, some) for some in predicted]
        found.append([chances[np.arange(len(y)), place].mean() for place in places])
    _, error = results.mean_and_error(np.diff(found)[:, 0])
    return Accuracies(*np.mean(found, axis=0).tolist(), error)


def simulated_errors(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    *,
    n_samples: int,
    accuracy: float,
    schema: Schema | None = None,
    n_repeats: int = 3,
    random_state: Any = None,
) -> tuple[list[str], ExpectedStandardErrors]:
    """Return the standard errors to expect of each parameter of a private fit, from public rows.

    Parameters
    ----------
    estimator : DPLogisticRegression
        With its budget and an ``inference_fraction``; cloned, never fitted.
    X, y, n_samples, accuracy, n_repeats, random_state
        As in `simulated_accuracy`.
    schema : Schema, optional
        Schema that encoded the rows, as for `DPLogisticRegression.inference`.

    Returns
    -------
    names : list of str
        Names of the parameters.
    errors : ExpectedStandardErrors
        Arrays of shape (n_parameters,), the medians of the fits; NaN for parameters that were
        suppressed in half of them or more.

    Raises
    ------
    ValueError
        As `simulated_accuracy`, and if the budget is too small for intervals.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> public = make_census(3000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=8.0, inference_fraction=0.5)
    >>> names, errors = simulated_errors(
    ...     model, *public, n_samples=30_000, accuracy=0.85, n_repeats=1, random_state=0,
    ...     schema=load_schema("census").additive(1))  # straight lines, as in that table
    >>> bool(0.1 < errors.width()[names.index("sex_female")] < 0.3)
    True
    """
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    _, own, draws = _fits(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
    found, references = defaultdict(list), None
    for rows, labels, seed in draws:
        with warnings.catch_warnings(action="ignore"), seeded_noise(seed):
            inference = own.fit(X[rows], labels).inference(schema=schema, references=references)
        table, references = inference.estimates, inference.reference_categories
        sampling = table.sampling_error * math.sqrt(len(rows) / n_samples)
        for name, *pair in zip(table.names, sampling, table.privacy_error, strict=True):
            found[name].append(pair)
    # A suppressed parameter has an infinite error.
    pairs = [np.median(np.nan_to_num(own, nan=np.inf), axis=0) for own in found.values()]
    sampling, privacy = np.where(np.isinf(pairs), np.nan, pairs).T
    return list(found), ExpectedStandardErrors(sampling, privacy, n_samples)


def _fits(
    estimator: BaseEstimator,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    accuracy: float,
    n_repeats: int,
    random_state: Any,
) -> tuple[np.ndarray, BaseEstimator, Iterator[tuple[np.ndarray, np.ndarray, int | None]]]:
    """Return the chances of the classes in each row, what to fit, and rows, labels and seeds."""
    check_whole("n_samples", n_samples)
    check_whole("n_repeats", n_repeats)
    rng = check_random_state(random_state)
    classes, chances = _truth(X, y, accuracy)
    n_fitted = min(n_samples, _MOST_FITTED)

    def draws() -> Iterator[tuple[np.ndarray, np.ndarray, int | None]]:
        for _ in range(n_repeats):
            rows = np.resize(rng.permutation(len(y)), n_fitted)
            labels = classes[draw_rows(chances[rows], rng)]
            yield rows, labels, None if random_state is None else rng.randint(2**31 - 1)

    own = _with_equal_signal(estimator, n_samples, n_fitted).set_params(classes=classes)
    return chances, own, draws()


def _truth(X: np.ndarray, y: np.ndarray, accuracy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and their chances in each row, such that the best accuracy is given."""
    fitted = LogisticRegression(C=10.0, max_iter=1000).fit(X, y)
    shares = np.array([np.mean(y == label) for label in fitted.classes_])
    scores = fitted.decision_function(X)
    scores = np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores
    scores = scores / max(scores.std(axis=0).max(), np.finfo(float).tiny)

    def excess(log_factor: float) -> float:
        return chances_with(np.exp(log_factor) * scores, shares).max(axis=1).mean() - accuracy

    if not excess(_FACTORS[0]) < 0 < excess(_FACTORS[1]):
        raise ValueError(
            f"accuracy={accuracy!r} must be above {shares.max():.4g}, the share of the most "
            "frequent label, and below what a model of these rows can reach."
        )
    factor = np.exp(brentq(excess, *_FACTORS, xtol=1e-3))
    return fitted.classes_, chances_with(factor * scores, shares)


def _with_equal_signal(estimator: BaseEstimator, n_samples: int, n_fitted: int) -> BaseEstimator:
    """Return an estimator for fewer records whose n mu is that of all of them."""
    own = clone(estimator)
    if own.n_samples_estimate is not None:
        n_samples = own.n_samples_estimate
        own.set_params(n_samples_estimate=n_fitted)
    if n_samples == n_fitted:
        return own
    mu = gdp_mu(own.epsilon, own.delta) * n_samples / n_fitted
    return own.set_params(epsilon=gdp_epsilon(mu, own.delta))
