"""Scores of a fitted model on private records, with noise that is charged and stated."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, is_regressor

from dpglm.checks import check_choice
from dpglm.exceptions import PrivacyWarning, UtilityWarning, advising, require
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.tables import Printed
from dpglm.workflow.releases import (
    EDGES,
    LOSS_BOUND,
    MIDDLES,
    VISIBLE,
    Deviance,
    Released,
    Z,
    deviances_of,
    fitted_classes,
    released_statistics,
)

_NEED_PROBABILITIES = ("log_loss", "calibration_curve")
_WHOSE = (
    "On records that no fit saw: the total is the larger of the two, if you assert that they are "
    "disjoint and that no record decided where another went; else the costs add up."
)
_ERRORS = ("mse", "mae")
_SINGLE = ("accuracy", "balanced_accuracy", "auc", "log_loss", "r2", "d2", *_ERRORS)


@dataclass(frozen=True)
class PrivateScore:
    """A score with noise; NaN if that hides it.

    At 95 percent ``interval`` is for the population, ``noise_interval`` for these very records.
    """

    value: Any
    interval: tuple[Any, Any]
    noise_interval: tuple[Any, Any]


def counts_with_noise(matrix: PrivateScore) -> list[list[str]]:
    """Return counts as text with the intervals of their noise."""
    cells = np.stack([matrix.value, *matrix.noise_interval], axis=-1)
    return [[f"{v:,.0f} ({low:,.0f} to {high:,.0f})" for v, low, high in row] for row in cells]


def _with_errors(
    value: Any, noise: Any, sampling: Any, quantile: float, low: float = 0.0, high: float = 1.0
) -> PrivateScore:
    """Return a score between two bounds, from the standard deviations of its two errors."""
    value, halves = np.clip(value, low, high), (Z * np.hypot(noise, sampling), quantile * noise)
    intervals = (_interval(value - half, value + half, low, high) for half in halves)
    return PrivateScore(_plain(value), *intervals)


def _interval(low: Any, high: Any, least: float, most: float) -> tuple[Any, Any]:
    """Return the ends of an interval within bounds; what is not known at all lies anywhere."""
    low, high = (
        np.where(np.isnan(end), bound, np.clip(end, least, most))
        for end, bound in ((low, least), (high, most))
    )
    return _plain(low), _plain(high)


def _plain(value: Any) -> Any:
    """Return a float, or an array that nobody can write to."""
    value = np.array(value, dtype=float)
    value.flags.writeable = False
    return value if value.ndim else float(value)


def proportion(share: Any, noise: Any, n: Any, quantile: float) -> PrivateScore:
    """Return a share of n records; its interval is Wilson's, which holds near 0 and 1 as well."""
    # The ends solve (share - p)^2 = z^2 (p (1 - p) / n + noise^2).
    score = _with_errors(share, noise, np.sqrt(share * (1 - share) / n), quantile)
    a, z = Z**2 / n, Z * np.asarray(noise)
    middle, low = share + a / 2, share**2 - z**2
    root = np.sqrt(np.maximum(middle**2 - (1 + a) * low, 0.0))
    ends = (middle - root) / (1 + a), (middle + root) / (1 + a)
    return replace(score, interval=_interval(*ends, 0.0, 1.0))


@dataclass(frozen=True)
class PrivateRocCurve:
    """Shares of each class at or above each threshold, a probability or value of a decision."""

    false_positive_rate: PrivateScore
    true_positive_rate: PrivateScore
    threshold: np.ndarray


@dataclass(frozen=True)
class PrivateCalibrationCurve:
    """Groups of records of similar prediction, and the share of each that is positive."""

    predicted: np.ndarray
    observed: PrivateScore
    n_records: np.ndarray


@dataclass(frozen=True, kw_only=True, repr=False)
class PrivateScores(Printed):
    """Scores of a fitted model that may be published; made by `private_scores`.

    Scores that were not asked for are None, and so are ``classes`` of a regressor. Rows of
    ``confusion_matrix`` are labels, by ``classes``; ROC curve and threshold are of ``pos_label``.
    At ``threshold`` the sum of both rates of error is least. ``privacy_`` is the cost of all scores
    together.
    """

    classes: np.ndarray | None
    n_records: int
    privacy_: PrivacyLedger
    pos_label: Any = None
    accuracy: PrivateScore | None = None
    balanced_accuracy: PrivateScore | None = None
    confusion_matrix: PrivateScore | None = None
    auc: PrivateScore | None = None
    log_loss: PrivateScore | None = None
    r2: PrivateScore | None = None
    d2: PrivateScore | None = None
    mse: PrivateScore | None = None
    mae: PrivateScore | None = None
    roc_curve: PrivateRocCurve | None = None
    calibration_curve: PrivateCalibrationCurve | None = None
    threshold: float | None = None

    def _blocks(self) -> Iterator[Any]:
        facts = {}
        if self.pos_label is not None:
            facts["positive class"] = str(self.pos_label)
        if self.threshold is not None:
            facts["threshold"] = f"{self.threshold:.4f}, of least error rates in sum"
        rows = [("95 % intervals", "value", "population", "these records")]
        for name, score in self._single():
            ends = (score.interval, score.noise_interval)
            form = ".6g" if name in _ERRORS else ".4f"
            spelled = (f"{a:{form}} to {b:{form}}" for a, b in ends)
            rows.append((name, f"{score.value:{form}}", *spelled))
        yield "", *([rows] if rows[1:] else []), *([facts] if facts else [])
        if (matrix := self.confusion_matrix) is not None:
            names = [str(label) for label in self.classes]
            cells = zip(names, counts_with_noise(matrix), strict=True)
            head = ("label", *(f"predicted {name}" for name in names))
            yield "Confusion matrix, with 95 % of the noise", [head, *((n, *c) for n, c in cells)]
        if (curve := self.calibration_curve) is not None:
            rows = [("predicted", "observed", "population", "records")]
            columns = curve.predicted, curve.observed.value, *curve.observed.interval
            for predicted, value, low, high, n in zip(*columns, curve.n_records, strict=True):
                ends = f"{low:.4f} to {high:.4f}"
                rows.append((f"{predicted:.4f}", f"{value:.4f}", ends, f"{n:.0f}"))
            yield "Calibration curve", rows if rows[1:] else "no group is above the noise level"
        yield "Privacy", self.privacy_, _WHOSE

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {score.value:.4f}" for name, score in self._single())
        return f"<PrivateScores of {self.n_records:,} records: {values or 'curves'}>"

    def _single(self) -> Iterator[tuple[str, PrivateScore]]:
        return ((n, score) for n in _SINGLE if (score := getattr(self, n)) is not None)

    def to_frame(self) -> Any:
        """Return the scores that are one number as a table, with their intervals; needs pandas."""
        pd = require("pandas", "data", "The to_frame of scores")
        rows = {n: (s.value, *s.interval, *s.noise_interval) for n, s in self._single()}
        columns = ["value", "low", "high", "noise_low", "noise_high"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


@advising
def private_scores(
    model: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike,
    *,
    epsilon: float,
    delta: float = 1e-6,
    neighboring_relation: str = "zero_out",
    n_samples_estimate: int | None = None,
    scores: Iterable[str] | None = None,
    pos_label: Any = None,
    target_bounds: tuple[float, float] | None = None,
) -> PrivateScores:
    """Return scores of a fitted model on private records, with noise, for publication.

    Parameters
    ----------
    model : classifier or regressor
        Fitted, of scikit-learn's interface, and taken as public: its own cost was charged.
    X : array-like of shape (n_samples, n_features)
        Records that no fit saw. A prediction that is no class is a wrong one.
    y : array-like of shape (n_samples,)
        Labels, among ``model.classes_``, which are in ascending order, or numbers.
    epsilon, delta, neighboring_relation, n_samples_estimate
        As in `DPLogisticRegression`, for all scores together.
    scores : iterable of str, default=None
        Any of ``"accuracy"``, ``"balanced_accuracy"``, ``"confusion_matrix"``, ``"log_loss"``, and
        for two classes ``"auc"``, ``"roc_curve"``, ``"calibration_curve"`` and ``"threshold"``.
        For a regressor any of ``"r2"``, ``"d2"``, ``"mse"`` and ``"mae"``; the second is by the
        deviance of a Poisson or gamma model, and else the first. A record's log loss counts up to
        4 nats. None takes all that the model allows. Fewer are more precise.
    pos_label : label, default=None
        The positive one of two classes; by default the schema's last label, or ``classes_[1]``.
    target_bounds : tuple of float, default=None
        Public range (low, high) of y for a regressor, by default its ``target_range_``. An error
        counts up to half the range, to which the noise is proportional.

    Returns
    -------
    PrivateScores
        Each score is a ``PrivateScore`` with ``value``, ``interval`` and ``noise_interval``.

    Raises
    ------
    ValueError
        For bad parameters, or scores that the model does not allow, before anything is released.

    Warns
    -----
    PrivacyWarning
        If noise is reproducible, or ``delta`` exceeds one over the number of records.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy for the scored records. All scores follow from
    a few statistics, each released once: `ScoreVault` has the proof. Where delta = 0 needs less
    noise, they are released together: ``dpglm.privacy.pure`` has the proof. A null record, whose
    squared norm overflows, adds nothing to any sum under ``"zero_out"``: in a share it is half
    right. Intervals hold for a random sample that no fit saw. The page on scores has the methods.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, make_census
    >>> from dpglm import private_scores, private_train_test_split
    >>> X, y = make_census(4000, random_state=0)
    >>> X, X_held, y, y_held = private_train_test_split(X, y)
    >>> model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X, y)
    >>> scores = private_scores(model, X_held, y_held, epsilon=1.0, scores=["accuracy", "auc"])
    >>> low, high = scores.accuracy.interval
    >>> 0.6 < low < scores.accuracy.value < high < 0.9
    True
    """
    budget = PrivacyBudget(epsilon, delta, neighboring_relation, n_samples_estimate)
    deviances = None
    if is_regressor(model):
        if pos_label is not None:
            raise ValueError(f"pos_label={pos_label!r} is for classifiers; leave it out.")
        deviances = deviances_of(model, target_bounds)
        known = {name: of[deviances["d2"].power > 0] for name, (_, *of) in _OF_NUMBERS.items()}
    elif target_bounds is not None:
        raise ValueError(f"target_bounds={target_bounds!r} is for regressors; leave it out.")
    else:
        several = len(fitted_classes(model)) > 2
        known = {name: of[several] for name, (_, *of) in _SCORES.items() if len(of) > several}
    if n_samples_estimate is not None:
        # With a private number of records, a record moves the pairs by an unbounded amount.
        known = {n: ("table",) if "pairs" in of else of for n, of in known.items()}
    chosen = _chosen(model, known, scores)
    needed = {statistic for name in chosen for statistic in known[name]}
    statistics = released_statistics(model, X, y, budget, needed, pos_label, deviances)
    # A score below the noise level becomes NaN, without a warning.
    with statistics as released, np.errstate(all="ignore"):
        found = {name: (_SCORES | _OF_NUMBERS)[name][0](released) for name in chosen}
        single = {name: found[name] for name in _SINGLE if name in found}
        if hidden := ", ".join(filter(lambda name: _is_hidden(name, single[name]), single)):
            warnings.warn(
                f"The noise of {hidden} is too large. Raise epsilon, ask for fewer "
                "scores, or use more records.",
                UtilityWarning,
                stacklevel=3,
            )
        return PrivateScores(
            classes=released.classes,
            n_records=released.n_records,
            privacy_=released.ledger,
            pos_label=released.pos_label,
            **found,
        )


def _is_hidden(name: str, score: Any) -> bool:
    """Return whether the noise of a score is too large, by released values."""
    most = max(score.value, 0.0) if name in _ERRORS else 0.5
    return not np.ptp(score.noise_interval) < most


def _chosen(model: Any, known: Iterable[str], scores: Iterable[str] | None) -> list[str]:
    """Return the scores that are asked for, or all that the model allows."""
    has_probabilities = hasattr(model, "predict_proba") or is_regressor(model)
    allowed = [n for n in known if has_probabilities or n not in _NEED_PROBABILITIES]
    if scores is None:
        return allowed
    chosen = [scores] if isinstance(scores, str) else list(scores)
    if not chosen or not set(chosen) <= set(allowed):
        without = "" if has_probabilities else " without predict_proba"
        raise ValueError(
            f"scores={scores!r} must be some of {allowed}: this is what a model of these classes"
            f"{without} allows."
        )
    return chosen


def _recalls(released: Released) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (n_classes, n_classes^2) of the cells of each class, all and right ones."""
    size = len(released.classes)
    rows = np.kron(np.eye(size), np.ones(size))
    return rows, rows * np.eye(size).ravel()


def _accuracy(released: Released) -> PrivateScore:
    rows, right = (weights.sum(axis=0) for weights in _recalls(released))
    return proportion(*released.cells.ratio(right, rows), released.quantile)


def _balanced_accuracy(released: Released) -> PrivateScore:
    rows, right = _recalls(released)
    recall, _, n = released.cells.ratio(right, rows)
    sampling = np.sqrt((recall * (1 - recall) / n).sum()) / len(n)
    noise = released.cells.std(((right - recall[:, None] * rows) / n[:, None]).mean(axis=0))
    return _with_errors(recall.mean(), noise, sampling, released.quantile)


def _confusion_matrix(released: Released) -> PrivateScore:
    size, n = len(released.classes), released.n_records
    order = -1 if released.positive == 0 else 1
    counts, noise = (
        each.reshape(size, size)[::order, ::order]
        for each in (released.cells.counts, released.cells.std(np.eye(size * size)))
    )
    share = np.clip(counts / n, 0.0, 1.0)
    sampling = np.sqrt(n * share * (1 - share))
    most = float(n) if released.is_exact else math.inf
    return _with_errors(counts, noise, sampling, released.quantile, 0.0, most)


def _auc(released: Released) -> PrivateScore:
    """Return the AUC of noisy pairs or the histogram, with the variance of Hanley & McNeil."""
    auc, noise, positive, negative = math.nan, math.nan, math.nan, math.nan
    if "pairs" in released.values:
        (_, row), n = _recalls(released)[0], released.n_records
        share, share_noise, _ = released.cells.ratio(row, np.ones_like(row))
        if VISIBLE * share_noise < share < 1 - VISIBLE * share_noise:
            positive, negative = n * share, n * (1 - share)
            pairs = positive * negative
            auc = min(max(0.5 + released.values["pairs"] / pairs, 0.0), 1.0)
            tilt = (auc - 0.5) * (negative - positive) / pairs
            noise = math.hypot(released.std["pairs"] / pairs, tilt * n * share_noise)
    elif released.table.has_visible_classes:
        (auc, noise), (negative, positive) = released.table.auc(), released.table.totals
    first, second = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
    variance = auc * (1 - auc) + (positive - 1) * first + (negative - 1) * second
    sampling = np.sqrt(np.maximum(variance / (positive * negative), 0.0))
    return _with_errors(auc, noise, sampling, released.quantile)


def _means(released: Released, *names: str) -> tuple[np.ndarray, float, Callable[[Any], float]]:
    """Return centred means, NaN below the noise level, of how many, and the noise of their sums."""
    n, noise_n = float(released.n_records), 0.0
    if not released.is_exact:
        n, noise_n = released.values["records"], released.std["records"]
        n = n if n > max(VISIBLE * noise_n, 1.0) else math.nan
    means, std = (
        np.array([of[name] for name in names]) / n for of in (released.values, released.std)
    )
    return means, n, lambda weights: math.hypot(*(weights * std), weights @ means * noise_n / n)


def _error(released: Released, name: str, square: str) -> PrivateScore:
    """Return a mean of losses, errors or their squares, by their sum and that of squares."""
    means, n, noise = _means(released, name, square)
    mean, second = np.clip(means + 0.5, 0.0, 1.0)
    if is_loss := name == "loss":
        # These squares are of twice the distance from the middle.
        unit, second = LOSS_BOUND, second / 4 + mean - 0.25
    else:
        unit = released.deviances["r2"].largest ** (1.0 if name == "squared" else 0.5)
    # A square that the noise may hide counts as the noise.
    hidden = noise(np.array([0.0, 0.25 if is_loss else 1.0]))
    variance = max(min(second - mean**2, mean - mean**2), hidden)
    errors = unit * noise(np.array([1.0, 0.0])), unit * np.sqrt(variance / n)
    return _with_errors(unit * mean, *errors, released.quantile, 0.0, unit)


def _explained(released: Released, name: str) -> PrivateScore:
    """Return the explained part of a deviance, with errors by the delta method."""
    of = released.deviances[name]
    (*_, square), n, noise = _means(released, *of.sums)
    left, total, slope, _ = of.ratio(released.values, n)
    # Noise of a quarter of the denominator is too much for a ratio.
    if not total > 4 * noise(np.array([0.0, 1.0, -slope, 0.0])):
        left = total = math.nan
    errors = noise(np.array([1.0, -left, left * slope, 0.0])) / total
    sampling = np.sqrt(max(square + 0.5, noise(np.array([0.0, 0.0, 0.0, 1.0]))) / n) / total
    return _with_errors(1 - left, errors, sampling, released.quantile, -math.inf, 1.0)


def _roc_curve(released: Released) -> PrivateRocCurve:
    table = released.table
    above = np.kron(np.eye(2)[:, None], np.tri(len(EDGES) + 1).T[1:])
    share, noise, n = table.ratio(above, table.classes[:, None])
    if not table.has_visible_classes:
        share, noise = share * math.nan, noise * math.nan
    rates = [proportion(share[i], noise[i], n[i], released.quantile) for i in range(2)]
    return PrivateRocCurve(*rates, threshold=_plain(released.on_scale(EDGES)))


def _calibration_curve(released: Released) -> PrivateCalibrationCurve:
    table, groups = released.table, released.table.groups()
    whole = np.tile(groups, 2)
    share, noise, n = table.ratio(whole * table.classes[1], whole)
    predicted = groups @ (expit(MIDDLES) * table.by_class.sum(axis=0)) / n
    return PrivateCalibrationCurve(
        _plain(predicted), proportion(share, noise, n, released.quantile), _plain(n)
    )


@dataclass(eq=False)
class PrivateScorer:
    """A scorer with the ``ledgers`` of its calls in this process; see `make_private_scorer`."""

    score: str
    settings: dict[str, Any]
    ledgers: list[PrivacyLedger] = field(default_factory=list, init=False, repr=False)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        try:
            scores = private_scores(estimator, X, y, scores=[self.score], **self.settings)
        except BaseException as error:
            if hasattr(error, "privacy_ledger"):
                self.ledgers.append(error.privacy_ledger)
            raise
        self.ledgers.append(scores.privacy_)
        value = getattr(scores, self.score).value
        return -value if self.score in ("log_loss", *_ERRORS) else value

    @property
    def privacy_(self) -> PrivacyLedger | None:
        """The cost of all calls in this process; None before the first, with a warning."""
        if not self.ledgers:
            warnings.warn(
                "No call in this process was charged. Calls in others (n_jobs) and of copies are "
                "not counted here: score inside a PrivacyOdometer, which has the total.",
                PrivacyWarning,
                stacklevel=2,
            )
        return sum(self.ledgers, 0) or None


def make_private_scorer(score: str, *, epsilon: float, **settings: Any) -> PrivateScorer:
    """Return a scorer with noise, for the ``scoring`` of scikit-learn. Each call costs epsilon.

    Folds must follow from public facts: ``cv=PrivateKFold(5)``, not the default.

    Parameters
    ----------
    score : {"accuracy", "balanced_accuracy", "auc", "log_loss", "r2", "d2", "mse", "mae"}
        Losses and errors are negated: larger is better.
    epsilon : float
        For each call, above 0.
    **settings
        ``delta``, ``neighboring_relation``, ``n_samples_estimate``, ``pos_label`` and
        ``target_bounds`` of `private_scores`.

    Returns
    -------
    PrivateScorer
        With the ``ledgers`` of its calls in this process, and their sum ``privacy_``.

    Raises
    ------
    ValueError
        For another score.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from dpglm import DPLogisticRegression, make_census
    >>> from dpglm.workflow import PrivateKFold, make_private_scorer
    >>> X, y = make_census(2000, random_state=0)
    >>> model = DPLogisticRegression(epsilon=1.0, classes=[0, 1], max_iter=5)
    >>> scorer = make_private_scorer("accuracy", epsilon=0.5)
    >>> cross_val_score(model, X, y, cv=PrivateKFold(4), scoring=scorer).shape
    (4,)
    >>> round(scorer.privacy_.epsilon(), 3)
    2.0
    """
    return PrivateScorer(check_choice("score", score, _SINGLE), {"epsilon": epsilon, **settings})


_OF_CELLS = (("right", "positive", "predicted"), ("right", "cells"))
# How each score is computed, and which statistics it needs of two classes, and of more.
_SCORES: dict[str, tuple] = {
    "accuracy": (_accuracy, ("right",), ("right",)),
    "balanced_accuracy": (_balanced_accuracy, *_OF_CELLS),
    "confusion_matrix": (_confusion_matrix, *_OF_CELLS),
    "auc": (_auc, ("positive", "pairs")),
    "log_loss": (partial(_error, name="loss", square="spread"), *[("loss", "spread")] * 2),
    "roc_curve": (_roc_curve, ("table",)),
    "calibration_curve": (_calibration_curve, ("table",)),
    "threshold": (
        lambda of: float(of.on_scale(of.table.best_edge(*(1 / of.table.totals)))),
        ("table",),
    ),
}
# The same of a linear model, and of one with a log link.
_R2, _D2 = Deviance(-1, 1, 0).sums, Deviance(0, 2, 1, 1).sums
_OF_NUMBERS: dict[str, tuple] = {
    "r2": (partial(_explained, name="r2"), _R2, _R2),
    "d2": (partial(_explained, name="d2"), _R2, _D2),
    "mse": (partial(_error, name="squared", square="fourth"), *[("squared", "fourth")] * 2),
    "mae": (partial(_error, name="absolute", square="squared"), *[("absolute", "squared")] * 2),
}
