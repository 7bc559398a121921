"""The noise, iterations, epochs, accuracy and intervals of a budget, before any data."""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state, check_X_y

from dpglm.checks import check_number, check_whole
from dpglm.datasets import chances_with, draw_rows
from dpglm.estimators.debiasing import N_AVERAGED, NORMAL, squared_bound
from dpglm.estimators.plan import PrivacyPlan, gradient_event
from dpglm.losses import Logistic
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.calibration import calibrated_multipliers, crossing, longest_run
from dpglm.privacy.events import GaussianEvent, SampledGaussianEvent, sampling_under
from dpglm.privacy.gaussian import gdp_epsilon, gdp_mu
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.privacy.noise import seeded_noise
from dpglm.tables import Printed

# A ledger needs a reporting delta, even if it is not used.
_ANY_DELTA = 1e-6
# Tolerance of searches, and largest absolute log-odds.
_TOLERANCE, _LARGEST_ODDS = 1e-6, 1e4
# Most records that are fitted: if there are more, this number represents all.
_MOST_FITTED = 20_000
# Logarithms of the spread of scores: where all labels are alike, and where none is in doubt.
_FACTORS = -6.0, 8.0


@dataclass(frozen=True)
class PrivacyCalculator:
    """Five numbers fix the privacy of a run of equal steps: any four of them give the fifth.

    Each method is named after its result and takes the other four. Nothing here reads data, so
    calls cost no privacy.

    Parameters
    ----------
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        The data sets that must be indistinguishable.

    Raises
    ------
    ValueError
        In each method, if a number is out of range.

    Notes
    -----
    ``noise_multiplier`` is the standard deviation of the noise over the sensitivity of the sum:
    the clipping norm, doubled under ``"replace_one"``. ``sampling_rate`` is the probability of each
    record to enter an iteration; a run makes ``n_iter * sampling_rate`` epochs.

    Examples
    --------
    >>> from dpglm import PrivacyCalculator
    >>> calculator = PrivacyCalculator()
    >>> sigma = calculator.noise_multiplier(epsilon=1.0, delta=1e-6, n_iter=100)
    >>> round(sigma, 3)
    42.247
    >>> calculator.max_iter(epsilon=1.0, delta=1e-6, noise_multiplier=sigma)
    100
    """

    neighboring_relation: str = "zero_out"

    def __post_init__(self) -> None:
        # Refuses an unknown relation.
        PrivacyLedger((), self.neighboring_relation, _ANY_DELTA)

    def epsilon(
        self, *, delta: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the epsilon of a run."""
        return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

    def delta(
        self, *, epsilon: float, noise_multiplier: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the delta at which a run has this epsilon."""
        (epsilon,) = self._check(epsilon=epsilon)
        return self._ledger(noise_multiplier, n_iter, sampling_rate, _ANY_DELTA).delta(epsilon)

    def noise_multiplier(
        self, *, epsilon: float, delta: float, n_iter: int, sampling_rate: float = 1.0
    ) -> float:
        """Return the least noise at which a run costs no more than epsilon."""
        epsilon, delta, n_iter, sampling_rate = self._check(
            epsilon=epsilon, delta=delta, n_iter=n_iter, sampling_rate=sampling_rate
        )
        if sampling_rate == 1:
            return math.sqrt(n_iter) / PrivacyBudget(epsilon, delta).mu
        sampling = sampling_under(self.neighboring_relation)
        run, target = (np.ones(n_iter), sampling_rate), (epsilon, delta)
        return float(calibrated_multipliers(*run, *target, sampling=sampling)[0])

    def max_iter(
        self, *, epsilon: float, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> int:
        """Return the most iterations that cost no more than epsilon; 0 if one costs more."""
        epsilon, delta = self._check(epsilon=epsilon, delta=delta)
        noise_multiplier, sampling_rate = self._check(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate
        )
        mu = gdp_mu(epsilon, delta)
        if sampling_rate == 1:
            return math.floor((mu * noise_multiplier) ** 2)

        def cost(n_iter: int) -> float:
            return self._ledger(noise_multiplier, n_iter, sampling_rate, delta).epsilon()

        # The central limit theorem gives a close first guess.
        sampling = sampling_under(self.neighboring_relation)
        variance = SampledGaussianEvent(sampling_rate, noise_multiplier, sampling).loss_variance
        return longest_run(cost, epsilon, max(mu**2 / variance, 1.0))

    def sampling_rate(
        self, *, epsilon: float, delta: float, noise_multiplier: float, n_iter: int
    ) -> float:
        """Return the largest sampling rate, up to 1, at which a run costs no more than epsilon."""
        epsilon, delta = self._check(epsilon=epsilon, delta=delta)

        def excess(log_rate: float) -> float:
            # Positive above the limit, and finite at an epsilon of zero.
            spent = self._ledger(noise_multiplier, n_iter, math.exp(log_rate), delta).epsilon()
            return math.log(max(spent, 1e-9 * epsilon) / epsilon)

        if excess(0.0) <= 0:
            return 1.0
        variance = n_iter * GaussianEvent(noise_multiplier).mu ** 2
        guess = math.log(gdp_mu(epsilon, delta)) - math.log(variance) / 2
        log_rate = crossing(excess, guess, _TOLERANCE)
        # The search may end on either side of the limit; this moves to the private side.
        while excess(log_rate) > 0:
            log_rate -= _TOLERANCE
        return math.exp(log_rate)

    def _ledger(
        self, noise_multiplier: float, n_iter: int, sampling_rate: float, delta: float
    ) -> PrivacyLedger:
        self._check(noise_multiplier=noise_multiplier, n_iter=n_iter, delta=delta)
        self._check(sampling_rate=sampling_rate)
        sampling = sampling_under(self.neighboring_relation)
        event = gradient_event(float(noise_multiplier), float(sampling_rate), sampling)
        return PrivacyLedger(((event, int(n_iter)),), self.neighboring_relation, float(delta))

    def _check(self, **numbers: float) -> list[Any]:
        """Return Python's numbers, and refuse those that are out of range."""
        limits, checked = {"delta": {"below": 1}, "sampling_rate": {"at_most": 1}}, []
        for name, value in numbers.items():
            if name == "n_iter":
                checked.append(check_whole(name, value))
                continue
            own = limits.get(name, {"below": math.inf})
            checked.append(check_number(name, value, above=0, **own))
            if name == "noise_multiplier":
                GaussianEvent(checked[-1])
        return checked


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

    Numbers, or arrays with the names of their parameters; NaN for what will be suppressed.
    """

    sampling: Any
    privacy: Any
    n_samples: int
    names: list[str] | None = None

    def _blocks(self) -> Iterator[Any]:
        rows = [("of a coefficient", "width of 0.95", "sampling", "privacy")]
        columns = np.atleast_1d(self.width(), self.sampling, self.privacy)
        for name, *numbers in zip(self.names or [""] * len(columns[0]), *columns, strict=True):
            rows.append((name, *(f"{number:.3g}" for number in numbers)))
        yield f"Expected standard errors for {self.n_samples:,} records", rows

    def width(self, level: float = 0.95) -> Any:
        """Return the widths of intervals."""
        return 2 * ndtri((1 + level) / 2) * np.hypot(self.sampling, self.privacy)

    def n_samples_for(self, width: float, level: float = 0.95) -> Any:
        """Return the number of records for intervals of this width, with the same budget.

        The first error falls with the root of this number, the second in proportion to it.
        """
        wanted = np.square(width / (2 * ndtri((1 + level) / 2)))
        first = self.n_samples * np.square(self.sampling)
        second = np.square(self.n_samples * self.privacy)
        return (first + np.sqrt(np.square(first) + 4 * second * wanted)) / (2 * wanted)


def expected_accuracy(
    estimator: BaseEstimator,
    X: Any = None,
    y: Any = None,
    *,
    n_samples: int,
    accuracy: float,
    n_features: int | None = None,
    majority: float = 0.5,
    n_repeats: int = 5,
    random_state: Any = None,
) -> ExpectedAccuracy:
    """Return the accuracy to expect of a private fit, by simulation or by theory.

    Parameters
    ----------
    estimator : estimator
        A linear classifier of this package with its budget; cloned, never fitted. Theory is for
        `DPLogisticRegression` with two classes and `FullPreconditioner`.
    X : array-like of shape (n_rows, n_features), optional
        PUBLIC rows, as for `UtilityGraph.run`: a sample, or those of `sample_from_schema`. About
        thirty for each column are enough. Without them, the answer is that of theory.
    y : array-like of shape (n_rows,), optional
        Their labels, of which each should be as frequent as in the private data.
    n_samples : int
        Number of records of the PRIVATE data to come.
    accuracy : float
        A guess of the best accuracy without privacy: above the share of the most frequent label.
    n_features : int, optional
        Number of encoded columns; theory needs it.
    majority : float, default=0.5
        For theory, a guess of the share of the more frequent label.
    n_repeats : int, default=5
        Simulated fits, each to labels of its own.
    random_state : int, RandomState instance or None, default=None
        Seed of labels and noise.

    Returns
    -------
    ExpectedAccuracy
        By theory ``not_private`` is the guess, and ``standard_error`` is 0.

    Raises
    ------
    ValueError
        If a number is out of range, no model of the rows has that accuracy, or there is no theory.

    Notes
    -----
    Each simulated fit gets the rows repeated to `n_samples`, or to 20,000 with the same n mu. Its
    labels are drawn anew by a model of that accuracy. Theory takes columns to be white, as large as
    their bounds, and above the noise. The page on planning has the errors.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import expected_accuracy
    >>> model = DPLogisticRegression(epsilon=0.1)
    >>> guess = {"n_samples": 39_000, "accuracy": 0.852}
    >>> round(expected_accuracy(model, n_features=107, majority=0.76, **guess).private, 3)
    0.839
    """
    refuse_regressors("expected_accuracy", estimator)
    if X is None:
        plan = _plan_of_two_classes(estimator, n_samples, n_features)
        return ExpectedAccuracy(_accuracy_in_theory(plan, accuracy, majority), accuracy, 0.0)
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    exact, found = LogisticRegression(C=np.inf, max_iter=1000), []
    fits = _simulated(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
    for own, rows, labels, chances in fits:
        with warnings.catch_warnings(action="ignore"):
            predicted = own.predict(X), exact.fit(X[rows], labels).predict(X)
        places = [np.searchsorted(own.classes, some) for some in predicted]
        found.append([chances[np.arange(len(y)), place].mean() for place in places])
    error = np.std(np.diff(found), ddof=1) / math.sqrt(n_repeats) if n_repeats > 1 else math.nan
    return ExpectedAccuracy(*np.mean(found, axis=0).tolist(), float(error))


def expected_errors(
    estimator: BaseEstimator,
    X: Any = None,
    y: Any = None,
    *,
    n_samples: int,
    accuracy: float,
    schema: Any = None,
    n_features: int | None = None,
    majority: float = 0.5,
    spread: float = 0.3,
    rarest: float = 0.1,
    n_repeats: int = 3,
    random_state: Any = None,
) -> ExpectedStandardErrors:
    """Return the standard errors to expect of coefficients, by simulation or by theory.

    Parameters
    ----------
    estimator : DPLogisticRegression
        With its budget and an ``inference_fraction``; cloned, never fitted.
    X, y, n_samples, accuracy, n_features, majority, random_state
        As in `expected_accuracy`.
    schema : Schema, optional
        Schema that encoded the rows, as for `DPLogisticRegression.inference`.
    spread : float, default=0.3
        For theory, the standard deviation of the column given the others: 0.29 for uniform numbers
        in [0, 1], ``sqrt(s (1 - s))`` for a fraction s of ones.
    rarest : float, default=0.1
        For theory, the least mean square of all columns, which are in [0, 1]: for a category its
        frequency. All columns are taken to be in the model, as correlated as `spread` implies.
    n_repeats : int, default=3
        Simulated fits.

    Returns
    -------
    ExpectedStandardErrors
        By simulation, arrays of the medians of the fits: NaN for parameters that were suppressed
        in half of them or more.

    Raises
    ------
    ValueError
        As `expected_accuracy`, and if the budget is too small for intervals.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.study import expected_errors
    >>> model = DPLogisticRegression(epsilon=1.0, inference_fraction=0.5)
    >>> errors = expected_errors(model, n_samples=40_000, n_features=10, accuracy=0.8)
    >>> bool(0.2 < errors.width() < 0.4)
    True
    """
    refuse_regressors("expected_errors", estimator)
    if not getattr(estimator, "inference_fraction", 0.0):
        raise ValueError(
            "Intervals need DPLogisticRegression with an inference_fraction; plan with 0.5, say."
        )
    if X is None:
        plan = _plan_of_two_classes(estimator, n_samples, n_features)
        chance, n = _chances(accuracy, majority), plan.metadata.n_samples
        information = n * float(np.mean(chance * (1 - chance)))
        noise = plan.last[-1].noise_multiplier * plan.budget.sensitivity(1.0) / information
        noise *= math.sqrt(squared_bound(plan.metadata.n_features, rarest) / N_AVERAGED)
        return ExpectedStandardErrors(1 / math.sqrt(information) / spread, noise / spread, n)
    X, y = check_X_y(X, y, dtype=[np.float64, np.float32])
    found, references = defaultdict(list), None
    fits = _simulated(estimator, X, y, n_samples, accuracy, n_repeats, random_state)
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
    return ExpectedStandardErrors(sampling, privacy, n_samples, list(found))


def refuse_regressors(what: str, *estimators: Any) -> None:
    """Raise a TypeError if a number is predicted, where labels are needed."""
    for estimator in filter(is_regressor, estimators):
        raise TypeError(
            f"{what} is for classifiers, and {type(estimator).__name__} predicts a number; ask "
            "dpglm.private_scores how well, or its plan() at what cost."
        )


def _plan_of_two_classes(
    estimator: BaseEstimator, n_samples: int, n_features: int | None
) -> PrivacyPlan:
    """Return the plan of an estimator that the theory is about, or refuse it."""
    if n_features is None:
        raise ValueError("n_features=None: give the number of columns, or public rows X and y.")
    n_classes = 2 if estimator.classes is None else len(estimator.classes)
    plan = estimator.plan(n_samples, n_features, n_classes)
    if (
        not isinstance(plan, PrivacyPlan)
        or plan.metadata.curvature != Logistic.curvature
        or plan.metadata.n_outputs > 1
        or plan.preconditioner is None
        or plan.preconditioner.diagonal
    ):
        raise ValueError(
            "There is a theory of DPLogisticRegression with a full preconditioner and two classes "
            "only; simulate others on public rows X and y."
        )
    return plan


def _accuracy_in_theory(plan: PrivacyPlan, accuracy: float, majority: float) -> float:
    chance = _chances(accuracy, majority)
    d = plan.metadata.n_features
    white = plan.renewed(effective_dimension=d)
    design = np.column_stack([NORMAL, np.ones_like(NORMAL)])
    # The slope, the intercept, and the weight of each iteration's noise in a coefficient.
    coef = velocity = average = np.zeros(2 + white.n_iter)
    for t, clip in enumerate(white.clip / math.sqrt(d)):
        predicted = expit(design @ coef[:2])
        wrong = chance * np.maximum(predicted - 1, -clip)
        wrong += (1 - chance) * np.minimum(predicted, clip)
        unclipped = chance * (1 - predicted < clip) + (1 - chance) * (predicted < clip)
        curvature = np.mean(predicted * (1 - predicted) * unclipped)
        gradient = np.append(design.T @ wrong / len(design), curvature * coef[2:])
        gradient[2 + t] += 1.0
        direction, velocity = white.momentum.direction(gradient, velocity, t + 1)
        coef = coef - white.step[t] * direction
        average = average + white.averaging[t] * coef
    noise = np.linalg.norm(average[2:] * white.metadata.noise_std)
    noise /= white.metadata.expected_batch_size
    # Without noise the sign is certain.
    score = design @ average[:2] / max(noise * math.sqrt(d), 1e-300)
    right = chance * ndtr(score) + (1 - chance) * ndtr(-score)
    return max(majority, float(np.mean(right)))


def _chances(accuracy: float, majority: float) -> np.ndarray:
    """Return chances of the more frequent label, with normal log-odds, for these numbers."""
    if not 0.5 <= majority < accuracy < 1:
        raise ValueError(
            f"accuracy={accuracy!r} must be below 1, and above majority={majority!r}, which is 0.5 "
            "or more: it is the accuracy of always predicting the more frequent label."
        )

    def chances(spread: float) -> np.ndarray:
        def excess(mean: float) -> float:
            return float(np.mean(expit(mean + spread * NORMAL))) - majority

        return expit(brentq(excess, -_LARGEST_ODDS, _LARGEST_ODDS) + spread * NORMAL)

    def gain(spread: float) -> float:
        chance = chances(spread)
        return float(np.mean(np.maximum(chance, 1 - chance))) - accuracy

    return chances(brentq(gain, _TOLERANCE, _LARGEST_ODDS / 4))


def _simulated(
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
