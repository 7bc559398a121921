"""What a fit to come may reach, and which settings do well, simulated on public rows alone."""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import ge, itemgetter
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, check_X_y

from dpglm.checks import check_whole
from dpglm.datasets import chances_with, draw_rows
from dpglm.exceptions import PrivacyWarning
from dpglm.privacy.gaussian import gdp_epsilon, gdp_mu
from dpglm.privacy.noise import seeded_noise
from dpglm.study.comparison import (
    GAINS,
    SCORES,
    ResultTable,
    configured,
    finished,
    mean_and_error,
    one_line,
    parameters_named,
    refuse_regressors,
    score_text,
    scores,
    setting_text,
    value_text,
)
from dpglm.tables import Printed

# Possible errors of a setting; any other exception is a defect.
_REASONS = (ValueError, TypeError, ArithmeticError, ImportError, ConvergenceWarning)
_MOST_SHOWN = 10
# Share of the public rows that scores are computed on.
_TEST_SHARE = 0.25
# Most records that an expectation fits: if there are more, this number represents all.
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


@dataclass(frozen=True, eq=False)
class UtilityGraphResults(ResultTable):
    """The scores of a grid of settings, from `UtilityGraph.run`; printed, those of the ten best.

    The recommended setting has the lowest mean rank: in each repeat settings are ranked by
    accuracy, by AUC and by loss. Several budgets are ranked together; `at` looks at one.
    """

    estimator: BaseEstimator
    cells: tuple[UtilityCell, ...]
    n_samples: int

    @property
    def recommended_params(self) -> dict[str, Any]:
        """The recommended setting."""
        return dict(self.cells[_best(self._measured())].params)

    def recommended_estimator(self) -> BaseEstimator:
        """Return a new, unfitted estimator at the recommended setting, for the private data."""
        return configured(self.estimator, self.recommended_params)

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

    def least_epsilon(self, *, accuracy: float) -> dict[str, Any]:
        """Return the setting that reaches a mean accuracy with the least epsilon.

        A ValueError is raised if no setting does.
        """
        known = [
            (row["accuracy"], row["epsilon"] or 0.0, cell.params)
            for cell, row in zip(self.cells, self.rows(), strict=True)
            if row["error"] is None
        ]
        enough = [found for found in known if found[0] >= accuracy]
        if not enough:
            best = max(found for found, *_ in known)
            raise ValueError(f"no setting has accuracy={accuracy:g}; the best has {best:.4f}.")
        return dict(min(enough, key=lambda found: (found[1], -found[0]))[2])

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per setting, in the order of the grid.

        Parameters are under ``param_`` and their names. Means over the repeats are ``accuracy``,
        ``auc``, ``loss`` and ``rank``, with standard errors under ``_se``. Under ``_gap_se`` are
        those of the difference from the recommended setting.
        """
        measured = self._measured()
        best, rows = measured[_best(measured)], []
        for cell, own in zip(self.cells, measured, strict=True):
            row: dict[str, Any] = {"setting": setting_text(cell.params)}
            row |= {f"param_{name}": value for name, value in self._values(cell).items()}
            row |= {"epsilon": self._epsilon(cell), "passes": cell.passes}
            for name, best_values in best.items():
                values = own.get(name, ())
                gap = np.subtract(values, best_values[: len(values)])
                row[name], row[f"{name}_se"] = mean_and_error(values)
                row[f"{name}_gap_se"] = mean_and_error(gap)[1]
            row |= {"n_repeats": len(own.get("rank", ())), "recommended": own is best}
            rows.append(row | {"error": cell.error})
        return rows

    def headline(self) -> str:
        """Return the budget and the size of the simulation, in words."""
        values, measured = self.estimator.get_params(), self._measured()
        fits = _plural(len(measured[_best(measured)]["rank"]), "fit")
        ends = dict.fromkeys(f"{epsilon:g}" for epsilon in self.epsilons[:1] + self.epsilons[-1:])
        budget = f"epsilon {' to '.join(ends)}, " if ends else ""
        deltas = parameters_named(self.estimator, "delta")
        budget += "".join(f"delta {values[full]:g}, " for full in deltas)
        return f"{budget}{self.n_samples:,} records: {len(self.cells)} settings x {fits}"

    def _blocks(self) -> Iterator[Sequence[Any]]:
        measured, names = [row for row in self.rows() if row["error"] is None], self.varied()
        table = [["rank", *SCORES.values(), *names]]
        for row in sorted(measured, key=itemgetter("rank"))[:_MOST_SHOWN]:
            scores = [score_text(row, name) for name in SCORES]
            values = [value_text(row[f"param_{name}"]) for name in names]
            table.append([f"{row['rank']:.1f}", *scores, *values])
        others, errors = len(measured) - _MOST_SHOWN, Counter(cell.error for cell in self.cells)
        notes = [f"and {others} more"] * (others > 0)
        for error, n in errors.items():
            if error is not None:
                notes.append(f"{_plural(n, 'setting')} cannot be fitted: {error}")
        yield self.headline(), table, *notes

    def varied(self) -> list[str]:
        """Return the names of the parameters that are not the same in all settings."""
        values = [self._values(cell) for cell in self.cells]
        return [n for n in values[0] if len({value_text(own[n]) for own in values}) > 1]

    def __repr__(self) -> str:
        return f"<UtilityGraphResults: {self.headline()}, recommended {self.recommended_params}>"

    def _values(self, cell: UtilityCell) -> dict[str, Any]:
        """Return the value of every parameter of the grid; what a setting leaves out included."""
        names = dict.fromkeys(name for other in self.cells for name in other.params)
        values = configured(self.estimator, cell.params).get_params()
        return {name: values.get(name, "") for name in names}

    def _epsilon(self, cell: UtilityCell) -> float | None:
        """Return the budget of a setting, the largest one of several estimators inside of it."""
        values = self.estimator.get_params() | dict(cell.params)
        names = parameters_named(self.estimator, "epsilon")
        return max((float(values[name]) for name in names), default=None)

    def _measured(self) -> list[dict[str, Sequence[float]]]:
        """Return scores and the mean rank over them, in each repeat; none for settings with errors.

        Rank 1 has the lowest loss, or the highest score.
        """
        measured = [dict(cell.scores) for cell in self.cells]
        fitted = [own for own in measured if own]
        by_score = []
        for name in SCORES:
            sign = -1 if name in GAINS else 1
            by_score.append(rankdata([np.multiply(sign, own[name]) for own in fitted], axis=0))
        for own, ranks in zip(fitted, np.mean(by_score, axis=0), strict=True):
            own["rank"] = ranks
        return measured


def _best(measured: Sequence[Mapping[str, Sequence[float]]]) -> int:
    """Return the number of the setting of the lowest mean rank."""
    return min(range(len(measured)), key=lambda i: np.mean(measured[i].get("rank", math.inf)))


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


@dataclass(eq=False, repr=False)
class UtilityGraph:
    """Expected accuracy, AUC and loss of each setting of a private estimator, at given budgets.

    Every setting is fitted to PUBLIC rows, an artificial table or a public sample. The noise is
    that of a fit to the private records. No private record is read: the fit that follows costs its
    epsilon once, however large the grid was.

    Parameters
    ----------
    estimator : estimator
        A private classifier with its budget; cloned, never fitted.
    param_grid : dict or list of dict
        As in scikit-learn's ``ParameterGrid``; nested parameters as in ``noise_schedule__decay``.
        Several budgets are values of ``epsilon``.
    n_samples : int
        Number of records of the PRIVATE data to come, for which the noise is planned;
        ``n_samples_estimate`` under ``"add_or_remove_one"``.
    n_repeats : int, default=5
        Fits of each setting, each with other noise and another quarter of the rows to score.
    n_jobs : int, optional
        Number of processes, as in joblib.
    random_state : int, RandomState instance or None, default=None
        Seed of rows and noise, whatever `n_jobs` is. The recommended estimator does not get it.
    progress : bool, default=False
        Report progress on standard error.

    Notes
    -----
    Each fit gets exactly n rows: n different ones, or every one of m ``floor(n/m)`` or
    ``ceil(n/m)`` times. In each repeat all settings share one split into rows to fit and to score.
    One that cannot be fitted, or diverges, is a row of the results with the reason.

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
    n_repeats: int = 5
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
        refuse_regressors("UtilityGraph", self.estimator)
        check_whole("n_samples", self.n_samples)
        check_whole("n_repeats", self.n_repeats)
        settings = list(ParameterGrid(self.param_grid))
        for setting in settings:
            configured(self.estimator, setting)  # refuses what is unknown
        X, y = check_X_y(X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        rng = check_random_state(self.random_state)
        splits = [resampled_split(y, self.n_samples, rng) for _ in range(self.n_repeats)]
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
        return UtilityGraphResults(configured(self.estimator, {}), cells, self.n_samples)


def resampled_split(y: np.ndarray, n_samples: int, rng: Any) -> tuple:
    """Return the rows to fit on, (n_samples,), equally often or once more, and the rest."""
    rows = np.arange(len(y))
    train, test = train_test_split(rows, test_size=_TEST_SHARE, random_state=rng, stratify=y)
    # `resize` repeats all of the shuffled rows, so that none comes twice before each came once.
    return np.resize(train, n_samples), test


def _simulated(
    place: tuple, estimator: BaseEstimator, setting: dict, seed: int | None, X: Any, y: Any, split
) -> tuple:
    """Return the place, and the scores of one fit or why there are none."""
    (train, test), model = split, configured(estimator, setting)
    model.set_params(**dict.fromkeys(parameters_named(model, "random_state"), seed))
    with warnings.catch_warnings(), seeded_noise(seed):
        # Both are about the fit to come, which gives them again if it should.
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(X[train], y[train])
            found = scores(model, X[test], y[test])
        except _REASONS as error:
            return place, one_line(str(error)) or type(error).__name__
    if not np.isfinite([*found.values()]).all():
        return place, "The scores are not finite: lower step_schedule."
    found["passes"] = None
    trace = getattr(model[-1] if isinstance(model, Pipeline) else model, "trace_", None)
    if trace is not None:
        # Each release reads all records, but for those of batches.
        first = [] if trace.whitening is None else trace.whitening.events
        events = [*first, *trace.events]
        found["passes"] = float(sum(getattr(event, "sampling_rate", 1.0) for event in events))
    return place, found


def _cell(params: dict[str, Any], outcomes: list[dict[str, Any] | str]) -> UtilityCell:
    # A setting that fails in one repeat fails: its scores in the others would be the lucky ones.
    for outcome in outcomes:
        if isinstance(outcome, str):
            return UtilityCell(params, {}, outcome)
    scores = {name: tuple(own[name] for own in outcomes) for name in SCORES}
    passes = [own["passes"] for own in outcomes]
    return UtilityCell(params, scores, None, None if None in passes else float(np.mean(passes)))


@dataclass(frozen=True)
class ExpectedAccuracy(Printed):
    """Accuracy with and without privacy, and the standard error of the difference."""

    private: float
    not_private: float
    standard_error: float

    def _blocks(self) -> Iterator[Any]:
        facts = {name.replace("_", " "): f"{value:.4f}" for name, value in vars(self).items()}
        yield "Expected accuracy", facts


@dataclass(frozen=True, eq=False)
class ExpectedStandardErrors(Printed):
    """Standard errors of coefficients due to the draw of the records, and to the noise.

    Arrays with the names of their parameters; NaN for what will be suppressed.
    """

    names: list[str]
    sampling: np.ndarray
    privacy: np.ndarray
    n_samples: int

    def _blocks(self) -> Iterator[Any]:
        rows = [("of a coefficient", "width of 0.95", "sampling", "privacy")]
        columns = self.width(), self.sampling, self.privacy
        for name, *numbers in zip(self.names, *columns, strict=True):
            rows.append((name, *(f"{number:.3g}" for number in numbers)))
        yield f"Expected standard errors for {self.n_samples:,} records", rows

    def width(self, level: float = 0.95) -> np.ndarray:
        """Return the widths of intervals."""
        return 2 * ndtri((1 + level) / 2) * np.hypot(self.sampling, self.privacy)

    def n_samples_for(self, width: float, level: float = 0.95) -> np.ndarray:
        """Return the number of records for intervals of this width, with the same budget.

        The first error falls with the root of this number, the second in proportion to it.
        """
        wanted = np.square(width / (2 * ndtri((1 + level) / 2)))
        first = self.n_samples * np.square(self.sampling)
        second = np.square(self.n_samples * self.privacy)
        return (first + np.sqrt(np.square(first) + 4 * second * wanted)) / (2 * wanted)


def expected_accuracy(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    *,
    n_samples: int,
    accuracy: float,
    n_repeats: int = 5,
    random_state: Any = None,
) -> ExpectedAccuracy:
    """Return the accuracy to expect of a private fit, simulated on public rows.

    Parameters
    ----------
    estimator : estimator
        A linear classifier of this package with its budget; cloned, never fitted.
    X : array-like of shape (n_rows, n_features)
        PUBLIC rows, as for `UtilityGraph.run`: a sample, or those of `sample_from_schema`. About
        thirty for each column are enough.
    y : array-like of shape (n_rows,)
        Their labels, of which each should be as frequent as in the private data.
    n_samples : int
        Number of records of the PRIVATE data to come.
    accuracy : float
        A guess of the best accuracy without privacy: above the share of the most frequent label.
    n_repeats : int, default=5
        Simulated fits, each to labels of its own.
    random_state : int, RandomState instance or None, default=None
        Seed of labels and noise.

    Returns
    -------
    ExpectedAccuracy

    Raises
    ------
    ValueError
        If a number is out of range, or no model of the rows has that accuracy.

    Notes
    -----
    Each fit gets the rows repeated to `n_samples`, or to 20,000 with the same n mu. Its labels are
    drawn anew by a model of that accuracy. The page on planning has the errors.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.study import expected_accuracy
    >>> guess = {"n_samples": 10_000, "accuracy": 0.85, "n_repeats": 2, "random_state": 0}
    >>> public = make_census(3000, random_state=0)
    >>> found = expected_accuracy(DPLogisticRegression(epsilon=0.2), *public, **guess)
    >>> found.private < found.not_private
    True
    """
    refuse_regressors("expected_accuracy", estimator)
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    exact, found = LogisticRegression(C=np.inf, max_iter=1000), []
    fits = _fits_to_guesses(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
    for own, rows, labels, chances in fits:
        with warnings.catch_warnings(action="ignore"):
            predicted = own.predict(X), exact.fit(X[rows], labels).predict(X)
        places = [np.searchsorted(own.classes, some) for some in predicted]
        found.append([chances[np.arange(len(y)), place].mean() for place in places])
    error = np.std(np.diff(found), ddof=1) / math.sqrt(n_repeats) if n_repeats > 1 else math.nan
    return ExpectedAccuracy(*np.mean(found, axis=0).tolist(), float(error))


def expected_errors(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    *,
    n_samples: int,
    accuracy: float,
    schema: Any = None,
    n_repeats: int = 3,
    random_state: Any = None,
) -> ExpectedStandardErrors:
    """Return the standard errors to expect of coefficients, simulated on public rows.

    Parameters
    ----------
    estimator : DPLogisticRegression
        With its budget and an ``inference_fraction``; cloned, never fitted.
    X, y, n_samples, accuracy, random_state
        As in `expected_accuracy`.
    schema : Schema, optional
        Schema that encoded the rows, as for `DPLogisticRegression.inference`.
    n_repeats : int, default=3
        Simulated fits.

    Returns
    -------
    ExpectedStandardErrors
        Medians of the fits: NaN for parameters that were suppressed in half of them or more.

    Raises
    ------
    ValueError
        As `expected_accuracy`, and if the budget is too small for intervals.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import expected_errors
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> model = DPLogisticRegression(epsilon=4.0, inference_fraction=0.5)
    >>> errors = expected_errors(model, X, X[:, 0] > 0, n_samples=40_000, accuracy=0.8)
    >>> errors.width().shape  # with the intercept
    (4,)
    """
    refuse_regressors("expected_errors", estimator)
    if not getattr(estimator, "inference_fraction", 0.0):
        raise ValueError(
            "Intervals need DPLogisticRegression with an inference_fraction; plan with 0.5, say."
        )
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    found, references = defaultdict(list), None
    fits = _fits_to_guesses(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
    for own, rows, _, _ in fits:
        with warnings.catch_warnings(action="ignore"):
            inference = own.inference(schema=schema, references=references)
        table, references = inference.estimates, inference.reference_categories
        sampling = table.sampling_error * math.sqrt(len(rows) / n_samples)
        for name, *pair in zip(table.names, sampling, table.privacy_error, strict=True):
            found[name].append(pair)
    # A suppressed parameter has an infinite error.
    pairs = [np.median(np.nan_to_num(each, nan=np.inf), axis=0) for each in found.values()]
    sampling, privacy = np.where(np.isinf(pairs), np.nan, pairs).T
    return ExpectedStandardErrors(list(found), sampling, privacy, n_samples)


def _fits_to_guesses(
    estimator: BaseEstimator,
    X: np.ndarray,
    y: np.ndarray,
    n_samples: int,
    accuracy: float,
    n_repeats: int,
    random_state: Any,
) -> Iterator[tuple[BaseEstimator, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield a private fit with its rows and labels, and the chances of the classes in each row."""
    n_samples = check_whole("n_samples", n_samples)
    n_repeats = check_whole("n_repeats", n_repeats)
    rng = check_random_state(random_state)
    # Classes and their chances in each row, such that the best accuracy is given.
    fitted = LogisticRegression(C=10.0, max_iter=1000).fit(X, y)
    classes, shares = fitted.classes_, np.array([np.mean(y == c) for c in fitted.classes_])
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
    chances = chances_with(np.exp(brentq(excess, *_FACTORS, xtol=1e-3)) * scores, shares)
    n_fitted = min(n_samples, _MOST_FITTED)
    own = clone(estimator).set_params(classes=classes)
    if own.n_samples_estimate is not None:
        n_samples = own.n_samples_estimate
        own.set_params(n_samples_estimate=n_fitted)
    if n_samples != n_fitted:
        # Fewer records get the n mu of all of them.
        mu = gdp_mu(own.epsilon, own.delta) * n_samples / n_fitted
        own.set_params(epsilon=gdp_epsilon(mu, own.delta))
    for _ in range(n_repeats):
        rows = np.resize(rng.permutation(len(y)), n_fitted)
        labels = classes[draw_rows(chances[rows], rng)]
        seed = None if random_state is None else rng.randint(2**31 - 1)
        with warnings.catch_warnings(action="ignore"), seeded_noise(seed):
            own.fit(X[rows], labels)
        yield own, rows, labels, chances
