"""The releases behind scores, calibration and thresholds: noisy sums over scored records."""

import math
import traceback
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from joblib import parallel_config
from scipy.linalg import solve_triangular, toeplitz
from scipy.sparse import issparse
from scipy.special import expit, kl_div, ndtri
from scipy.stats import rankdata
from sklearn.base import is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted

from dpglm.checks import check_labels, check_numbers, check_unmasked
from dpglm.estimators.inputs import resolved_classes
from dpglm.estimators.plan import ledger_of
from dpglm.estimators.regression import DPGammaRegressor, DPPoissonRegressor
from dpglm.estimators.target import checked_bounds
from dpglm.privacy.budget import PrivacyBudget
from dpglm.privacy.events import GaussianEvent
from dpglm.privacy.ledger import PrivacyLedger, warn_of_guarantee
from dpglm.privacy.noise import entropy_source, noise_seed
from dpglm.privacy.odometer import JointCharge, charge_odometers, is_package_object, state_cost
from dpglm.privacy.pure import MOST_SUMS, BoxSums, box_quantile, box_std
from dpglm.privacy.vault import GaussianSum, Vault, magnitude_sensitivity
from dpglm.schema.table import Schema, positive_place
from dpglm.schema.values import check_sparse, composed, floating, null_rows

_UNIT_ROUNDOFF = 2.0**-53
# Between bins of log-odds, or of the decision function; zero is an edge.
EDGES = np.linspace(-8.0, 8.0, 63)
_N_BINS = len(EDGES) + 1
MIDDLES = np.append(EDGES, EDGES[-1] + (EDGES[1] - EDGES[0])) - (EDGES[1] - EDGES[0]) / 2
# Counts of pairs are exact in floating point up to here.
_MAX_RECORDS = 5 * 10**7
# A record's log loss counts up to this, in nats.
LOSS_BOUND = 4.0
# A class is too small to divide by if the std of its noise may exceed a fifth of it.
VISIBLE = 5.0
Z = float(ndtri(0.975))

# The purpose of each statistic in a ledger, and its weight. A weight is roughly the change of a
# score, times the number of records, by noise as large as the sensitivity.
STATISTICS = {
    "records": ("number of records", 1.0),
    "right": ("number of right predictions", 0.5),
    "positive": ("number of positive labels", 0.5),
    "predicted": ("number of predicted positives", 0.5),
    "pairs": ("pairs in the right order", 2.0),
    "loss": ("sum of losses", 1.0),
    "spread": ("sum of squared losses", 0.25),
    "cells": ("confusion matrix", 1.0),
    "table": ("histogram of predictions by label", 2.0),
    "squared": ("sum of squared errors", 0.5),
    "fourth": ("sum of fourth powers of errors", 0.25),
    "absolute": ("sum of absolute errors", 0.5),
    "deviance": ("sum of deviances", 0.5),
    "target": ("sum of the target", 0.5),
    "variation": ("sum of squares of the target", 0.5),
    "null": ("sum of deviances from one mean", 0.5),
    "r2": ("sum of squares for the interval of r2", 0.25),
    "d2": ("sum of squares for the interval of d2", 0.25),
}
# Sums that need the others first, and their part of a pure epsilon.
_LAST, _LAST_FRACTION = ("r2", "d2"), 0.25
_ASSUMPTIONS = (
    "each row of X is one record, and the model predicts it from that record alone",
    "the model, its label set, and what is asked were fixed without looking at these records",
)
_ASSUMED_OF_PRIVATE_NUMBER = (
    "the number of records is at most 16 n_samples_estimate",
    "the model's arithmetic for a record is the same wherever it stands in X",
)


def prefix_root(n_bins: int) -> np.ndarray:
    """Return the square root L, lower triangular, of the matrix that sums all bins up to each."""
    # L_ij = r_(i - j): the coefficients of (1 - x)^(-1/2), whose square is 1 / (1 - x).
    k = np.arange(1, n_bins)
    return toeplitz(np.cumprod([1.0, *((2 * k - 1) / (2 * k))]), np.zeros(n_bins))


@dataclass(frozen=True)
class Deviance:
    """A deviance by its power: 0 for squares, 1 for Poisson, 2 for gamma. All numbers are public.

    It is in units of ``largest``, that of an end of the range of the target from ``centre``, and at
    most 1.
    """

    low: float
    high: float
    centre: float
    power: int = 0

    @property
    def sums(self) -> tuple[str, str, str, str]:
        """The sums of deviances from predictions and the centre, of y, and for the interval."""
        if self.power:
            return "deviance", "null", "target", "d2"
        return "squared", "variation", "target", "r2"

    def _exact(self, y: Any, mean: Any) -> Any:
        if not self.power:
            return np.square(np.subtract(y, mean))
        return 2 * (kl_div(y, mean) if self.power == 1 else kl_div(1.0, np.divide(y, mean)))

    @cached_property
    def largest(self) -> float:
        """The unit; a gamma deviance of zero is infinite, and no unit."""
        ends = self._exact(np.array([self.low, self.high]), self.centre)
        return float(np.max(ends[np.isfinite(ends)]))

    def __call__(self, y: Any, mean: Any) -> Any:
        """Return deviances from 0 to 1; one that is no number is 1."""
        return np.clip(np.nan_to_num(self._exact(y, mean) / self.largest, nan=1.0), 0.0, 1.0)

    def ratio(self, values: Mapping[str, Any], n: float) -> tuple[float, float, float, float]:
        """Return the part of the deviance that is left, of how much, with a slope, and the mean.

        The deviance from the mean is that from the centre, less that of the mean from the centre.
        The slope is of the latter, in the mean between 0 and 1.
        """
        model, null, share = (0.5 + np.float64(values[name]) / n for name in self.sums[:3])
        mean = self.low + (self.high - self.low) * np.clip(share, 2.0**-20, 1.0)
        total = null - self._exact(mean, self.centre) / self.largest
        slope = 2 * (mean - self.centre)
        if self.power:
            slope = (
                2 * np.log(mean / self.centre) if self.power == 1 else slope / mean / self.centre
            )
        return model / total, total, slope * (self.high - self.low) / self.largest, mean


@dataclass(eq=False, repr=False)
class ScoredRecords:
    """Holds what a model says of each record, null ones not counted; its answers are private."""

    n_records: int
    n_counted: int
    # Of each counted record from 0 to 1, by the statistic that is their sum.
    numbers: dict[str, np.ndarray]
    n_classes: int = 0
    label: np.ndarray | None = None
    predicted: np.ndarray | None = None
    score: np.ndarray | None = None
    deviances: Mapping[str, Deviance] = field(default_factory=dict)
    # The statistics that were released before, with their noise.
    released: dict[str, Any] = field(default_factory=dict)

    def total(self, name: str) -> Any:
        """Return a statistic that `ScoreVault` has the sensitivity of."""
        if name in self.numbers:
            return math.fsum(self.numbers[name] - 0.5)
        if deviance := self.deviances.get(name):
            n = max(self.released.get("records", self.n_records), 1.0)
            with np.errstate(all="ignore"):
                left, _, _, mean = deviance.ratio(self.released, n)
            y = deviance.low + self.numbers["target"] * (deviance.high - deviance.low)
            moved = self.numbers[deviance.sums[0]] - left * deviance(y, mean)
            return math.fsum(np.clip(np.nan_to_num(moved, nan=1.0), -1.0, 1.0) ** 2 - 0.5)
        if name == "cells":
            return self._counts(self.n_classes, self.predicted, self.n_classes)
        if name == "table":
            bins = np.searchsorted(EDGES, self.score, side="right")
            return self._counts(2, bins, _N_BINS) @ prefix_root(_N_BINS).T
        if name == "pairs":
            positive = self.label == 1
            n_positive = int(positive.sum())
            above = rankdata(self.score)[positive].sum() - n_positive * (n_positive + 1) / 2
            return above - n_positive * (self.n_counted - n_positive) / 2
        return self.n_counted

    def _counts(self, n_rows: int, column: np.ndarray, n_columns: int) -> np.ndarray:
        """Return the number of records of each label in each column (n_rows, n_columns)."""
        flat = np.bincount(self.label * n_columns + column, minlength=n_rows * n_columns)
        return flat.reshape(n_rows, n_columns).astype(float)


class ScoreVault(Vault):
    """A vault that releases statistics of scored records, one by one or a few at once."""

    def sensitivity(self, name: str) -> float:
        """Return the most by which a record moves a statistic, in the L2 norm.

        Notes
        -----
        A null record adds zero. Sums are of numbers from 0 to 1, less 1/2: a record that vanishes
        moves them by 1/2 at most, a replaced one by 1; the number of records, by 1. Such numbers
        are 0 or 1, losses up to `LOSS_BOUND` and errors up to half the range, in units of these,
        and deviances in units of the largest. "r2" and "d2" are such sums too, whatever the
        released sums are that they follow from.

        "pairs" is a sum over pairs of a positive and a negative record, of 1/2, 0 or -1/2. A record
        that vanishes takes at most n - 1 pairs along, and one in its place brings as many: n - 1
        for both. "cells" are counts: a record moves one by 1, or two if replaced.

        "table" is ``L h`` for each of two classes, h the counts by bin (`prefix_root`). A record in
        bin j moves it by column j of L, whose norm is at most that of the first. A replaced one
        moves it by two, which have no negative elements. Theorems: noisy_sum_moves, centred_terms,
        pairs_move, noisy_table_moves (proofs/Scores.v).
        """
        relation = self._budget.neighboring_relation
        if name in ("cells", "table"):
            column = prefix_root(_N_BINS)[:, 0] if name == "table" else np.ones(1)
            return magnitude_sensitivity(relation, 1) * float(np.linalg.norm(column))
        half = 1.0 if name == "records" else 0.5
        if name == "pairs":
            if relation == "add_or_remove_one":
                raise ValueError("A record moves the pairs by as much as there are records.")
            half = max(self._n_records - 1, 1) / 2
        return self._budget.sensitivity(half)

    def noisy(self, name: str, noise_multiplier: float) -> np.ndarray:
        """Release a statistic with Gaussian noise, flat; `sensitivity` has the proof."""
        sensitivity = self.sensitivity(name)
        # Counts are exact. A sum of numbers is rounded once, by `math.fsum`, of n terms up to the
        # sensitivity. The table is a product of n_bins terms, of n together, for each class; the
        # norm of a vector adds sqrt(n_bins).
        in_roundoff = 8 * _N_BINS**1.5 if name == "table" else 2 * sensitivity
        slack = in_roundoff * _UNIT_ROUNDOFF * self._most_samples
        size = {"cells": self._sums.n_classes**2, "table": 2 * _N_BINS}.get(name, 1)
        mechanism = GaussianSum(sensitivity, float(noise_multiplier), slack)
        return self._release_sum(mechanism, lambda: np.ravel(self._sums.total(name)), size)

    def noisy_at_once(self, names: Sequence[str], epsilon: float) -> np.ndarray:
        """Release some sums with delta = 0, in units by which a record may move each of them."""
        sensitivity = np.array([self.sensitivity(name) for name in names])
        # The quotients are rounded too, which are up to n.
        slack = 4 * _UNIT_ROUNDOFF * self._most_samples
        mechanism = BoxSums(len(names), float(epsilon), slack)
        noisy = self._release(
            mechanism.event,
            lambda: np.array([self._sums.total(name) for name in names]) / sensitivity,
            lambda units: mechanism.release(units, self._entropy),
            moves=math.sqrt(len(names)) * (1 + slack),
            noise_scale=mechanism.scale,
        )
        return noisy * sensitivity


@contextmanager
def steps_alone() -> Iterator[None]:
    """Run models and steps on private rows in this thread, without warnings, releases or quotes."""
    with (
        np.errstate(all="ignore"),
        warnings.catch_warnings(action="ignore"),
        parallel_config(backend="sequential"),
        JointCharge(PrivacyLedger((), "zero_out", 0.5)),
    ):
        try:
            yield
        except Exception as error:
            met = [f.f_locals.get("self") for f, _ in traceback.walk_tb(error.__traceback__)]
            step = next((each for each in met[::-1] if hasattr(each, "fit")), None)
            if step is None or is_package_object(step):
                raise
            raise ValueError(
                f"{type(step).__name__} failed with {type(error).__name__} on private rows, and "
                "its message may quote one. Try it on public rows of the same form."
            ) from None


@contextmanager
def released_statistics(
    model: Any,
    X: Any,
    y: Any,
    budget: PrivacyBudget,
    needed: Container[str],
    pos_label: Any = None,
    deviances: Mapping[str, Deviance] | None = None,
) -> Iterator["Released"]:
    """Release the statistics ``needed``, charged; a later error has the ``privacy_ledger``."""
    names, classes, positive = [name for name in STATISTICS if name in needed], None, 1
    if deviances is None:
        classes, positive = fitted_classes(model), _positive_place(model, pos_label)
    with steps_alone():
        if deviances is None:
            records = records_of_labels(model, X, y, names, positive)
        else:
            records = records_of_numbers(model, X, y, deviances)
    n_records = budget.public_n_samples(records.n_records)
    if n_records > _MAX_RECORDS:
        raise ValueError(f"Scores are for up to {_MAX_RECORDS:,} records, not {n_records:,}.")
    # A sum is at most n times its sensitivity, one of the table 6 n times; a grid has 2^62 steps.
    if 2**30 < n_records * max(budget.epsilon, 6 * budget.mu) < math.inf:
        raise ValueError(
            f"epsilon={budget.epsilon:g} is too large for noise on sums of {n_records} records: "
            "take a smaller one, or epsilon=inf for no noise."
        )
    is_exact = budget.n_samples_estimate is None
    if not is_exact and names != ["table"]:
        names = ["records", *names]
    purposes, weights = zip(*(STATISTICS[name] for name in names), strict=True)
    # A budget without a limit has no noise.
    multipliers = np.sqrt(sum(weights) / np.array(weights)) / budget.mu
    events = [
        GaussianEvent(z, purpose=purpose) for z, purpose in zip(multipliers, purposes, strict=True)
    ]
    at_once = _at_once(names, weights, budget)
    if pure := bool(at_once):
        events = [
            replace(BoxSums(len(some), epsilon).event, purpose=" and ".join(of))
            for some, epsilon in at_once
            for of in [[STATISTICS[name][0] for name in some]]
        ]
    seeded = noise_seed.get() is not None
    assumptions = _ASSUMPTIONS + (() if is_exact else _ASSUMED_OF_PRIVATE_NUMBER)
    ledger = replace(ledger_of(budget, events), assumptions=assumptions, seeded=seeded)
    vault = ScoreVault(records, ledger.events, budget, entropy_source())
    values, std = records.released, dict[str, float]()
    del records  # nobody but the vault keeps them
    # A pure release has no delta.
    warn_of_guarantee(seeded, budget, 1 if pure else n_records, stacklevel=6)
    charge_odometers(ledger, model, "scores of ")
    try:
        for some, epsilon in at_once:
            found = vault.noisy_at_once(some, epsilon)
            values.update(zip(some, found.tolist(), strict=True))
            unit = vault.log[-1].noise_scale * box_std(len(some))
            std |= {name: unit * vault.sensitivity(name) for name in some}
        for name, z in () if pure else zip(names, multipliers, strict=True):
            found = vault.noisy(name, z)
            values[name] = found if found.size > 1 else found.item()
            std[name] = vault.log[-1].noise_scale
        vault.check_unbroken()
        yield Released(
            classes=classes,
            n_records=n_records,
            is_exact=is_exact,
            positive=positive,
            values=values,
            std=std,
            quantile=box_quantile(len(at_once[0][0])) / box_std(len(at_once[0][0])) if pure else Z,
            on_scale=expit if hasattr(model, "predict_proba") else np.asarray,
            ledger=ledger,
            deviances=deviances,
        )
    except BaseException as error:
        state_cost(error, ledger, vault.has_drawn or not ledger.protects)
        raise


def fitted_classes(model: Any) -> np.ndarray:
    """Return the label set of a fitted model."""
    check_is_fitted(model)
    if is_regressor(model):
        raise TypeError(f"{type(model).__name__} predicts numbers: pass a classifier.")
    if not hasattr(model, "classes_"):
        raise TypeError(f"{type(model).__name__} is no classifier: it has no classes_ to predict.")
    return check_labels("classes_", model.classes_)


def _positive_place(model: Any, pos_label: Any) -> int:
    """Return the place of the positive class of a fitted model, which may be behind a schema."""
    if len(classes := fitted_classes(model)) > 2:
        if pos_label is not None:
            raise ValueError(f"pos_label={pos_label!r} is for two classes; leave it out for more.")
        return 1
    parts = [model, *getattr(model, "get_params", dict)().values()]
    for frozen in [part.estimator for part in parts if isinstance(part, FrozenEstimator)]:
        parts += frozen.get_params().values()
    schema = next((part for part in parts if isinstance(part, Schema)), None)
    return positive_place(classes, pos_label, schema)


def _at_once(
    names: Sequence[str], weights: Sequence[float], budget: PrivacyBudget
) -> list[tuple[Sequence[str], float]]:
    """Return which sums to release at once with which epsilon, if their noise is the smaller."""
    last = [name for name in names if name in _LAST]
    first, part = names[: len(names) - len(last)], _LAST_FRACTION if last else 0.0
    whole = budget.epsilon * (1 - 1e-12 * bool(last))  # the sum of two parts may round up
    rounds = [(first, (1 - part) * whole), (last, part * whole)]
    rounds = rounds[: 1 + bool(last)]
    if max(len(some) for some, _ in rounds) > MOST_SUMS or {"cells", "table"} & set(names):
        return []
    pure = sum(
        (box_std(len(some)) / epsilon * STATISTICS[name][1]) ** 2
        for some, epsilon in rounds
        for name in some
    )
    # The least of a weighted sum of variances.
    return rounds if pure < (sum(weights) / budget.mu) ** 2 else []


def records_of_labels(
    model: Any, X: Any, y: Any, names: Sequence[str], positive: int
) -> ScoredRecords:
    """Return what the model says of each record that counts."""
    _check_table(X)
    classes = fitted_classes(model)
    y = check_labels("y", y)
    resolved_classes(classes.tolist(), y)  # refuses other labels
    if not np.array_equal(np.unique(classes), classes):
        raise ValueError(
            f"classes_={classes.tolist()!r} of the model must be in ascending order, as "
            "scikit-learn's are."
        )
    label, predicted = _indices(y, classes), _indices(model.predict(X), classes)
    counts, score, losses = counted_rows(model, X), np.zeros(len(y)), {}
    if "pairs" in names or "table" in names:
        score = ranking_score(model, X, positive)
    if "loss" in names:
        probability = _probabilities(model, X)
        check_consistent_length(y, probability)
        loss = -np.log(probability[np.arange(len(y)), label]) / LOSS_BOUND
        loss = np.clip(np.nan_to_num(loss, nan=1.0), 0.0, 1.0)
        losses = {"loss": loss, "spread": (2 * loss - 1) ** 2}
    check_consistent_length(y, predicted, score)
    # A prediction that is no class is a wrong one.
    predicted = np.where(predicted < 0, (label + 1) % len(classes), predicted)
    if positive == 0:
        label, predicted = 1 - label, 1 - predicted
    numbers = {"right": label == predicted, "positive": label == 1, "predicted": predicted == 1}
    return ScoredRecords(
        n_records=len(y),
        n_counted=int(counts.sum()),
        numbers={name: values[counts] for name, values in (numbers | losses).items()},
        n_classes=len(classes),
        label=label[counts],
        predicted=predicted[counts],
        score=score[counts],
    )


def deviances_of(model: Any, target_bounds: Any) -> dict[str, Deviance]:
    """Return the deviances of the scores of a fitted regressor, by public or released numbers."""
    check_is_fitted(model)
    last = model
    while isinstance(last, (Pipeline, FrozenEstimator)) or hasattr(last, "best_estimator_"):
        inner = last[-1] if isinstance(last, Pipeline) else getattr(last, "estimator", None)
        last = getattr(last, "best_estimator_", inner)
    power = isinstance(last, (DPPoissonRegressor, PoissonRegressor))
    power += 2 * isinstance(last, (DPGammaRegressor, GammaRegressor))
    bounds = getattr(last, "target_range_", None) if target_bounds is None else target_bounds
    if bounds is None:
        raise ValueError(
            f"Errors must be bounded, and {type(last).__name__} has no target_range_: give the "
            "public range of y as target_bounds=(low, high)."
        )
    low, high = checked_bounds(bounds, power > 0)
    found = {"r2": Deviance(low, high, (low + high) / 2)}
    if not power:
        return found | {"d2": found["r2"]}
    target = getattr(getattr(last, "trace_", None), "target", None)
    centre = float(np.exp(last.intercept_)) if target is None else target.middle
    # An intercept may be far from all means. For gamma, numbers are far from it on either side.
    centre = min(max(centre, high / 64), high / (8 if power > 1 else 1))
    return found | {"d2": Deviance(low, high, centre, power)}


def records_of_numbers(
    model: Any, X: Any, y: Any, deviances: Mapping[str, Deviance]
) -> ScoredRecords:
    """Return the errors of a regressor for each record that counts, in public units."""
    _check_table(X)
    of = deviances["d2"]
    limits: dict[str, float] = ({}, {"at_least": 0}, {"above": 0})[of.power]
    y, predicted = check_numbers("y", y, **limits), column_or_1d(model.predict(X))
    check_consistent_length(y, predicted)
    counts = counted_rows(model, X)
    y, predicted = y[counts], predicted[counts].astype(np.float64)
    inside = np.clip(y, of.low, of.high)
    squared = deviances["r2"](y, predicted)
    numbers = {
        "squared": squared,
        "fourth": squared**2,
        "absolute": np.sqrt(squared),
        "target": (inside - of.low) / (of.high - of.low),
        "variation": deviances["r2"](inside, deviances["r2"].centre),
        "deviance": of(inside, predicted),
        "null": of(inside, of.centre),
    }
    return ScoredRecords(len(counts), len(y), numbers, deviances=deviances)


def _check_table(X: Any) -> None:
    """Refuse rows that no model may be given."""
    check_unmasked("X", X)
    if issparse(X):
        check_sparse(X)


def _indices(labels: Any, classes: np.ndarray) -> np.ndarray:
    """Return the index of the class of each label (n,), -1 where it is none, whatever it is."""
    index = {composed(label): i for i, label in enumerate(classes.tolist())}
    # From a list with one string, numpy would make strings of all values.
    labels = labels if hasattr(labels, "__array__") else np.asarray(labels, dtype=object)
    labels = column_or_1d(labels)
    if labels.dtype.kind in "mM":
        labels = labels.astype(f"{labels.dtype.kind}8[us]")
    found = map(composed, labels.tolist())
    return np.array([index.get(label, -1) for label in found], dtype=int)


def counted_rows(model: Any, X: Any) -> np.ndarray:
    """Return which rows (n,) are no null records to a model, or to the last step of a pipeline."""
    inner = getattr(model, "best_estimator_", getattr(model, "estimator", None))
    fitted = hasattr(model, "best_estimator_") or isinstance(model, FrozenEstimator)
    if fitted or hasattr(inner, "classes_"):
        return counted_rows(inner, X)
    if isinstance(model, Pipeline) and len(model) > 1:
        return counted_rows(model[-1], model[:-1].transform(X))
    with suppress(ValueError):  # of a row that is no numbers, which must not speak for the others
        return ~null_rows(floating(X))
    return np.array([not _is_null(row) for row in np.asarray(X, dtype=object)])


def _is_null(row: Any) -> bool:
    with suppress(TypeError, ValueError, OverflowError):
        return bool(null_rows(np.array(row, dtype=np.float64).reshape(1, -1)))
    return False


def _probabilities(model: Any, X: Any) -> np.ndarray:
    """Return the probability of each class (n, n_classes), in double precision."""
    found = np.asarray(model.predict_proba(X), dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != len(model.classes_):
        raise ValueError(
            f"predict_proba must return a column for each of {len(model.classes_)} classes, not "
            f"arrays of shape {found.shape[1:]} for each record."
        )
    return found


def ranking_score(model: Any, X: Any, positive: int = 1) -> np.ndarray:
    """Return the log-odds of one of two classes, or the decision function; NaN is the lowest."""
    _check_table(X)
    with np.errstate(divide="ignore", invalid="ignore"):
        if hasattr(model, "predict_proba"):
            log = np.log(_probabilities(model, X))
            score = log[:, positive] - log[:, 1 - positive]
        else:
            score = column_or_1d(model.decision_function(X), dtype=np.float64)
            score = score if positive else -score
    return np.where(np.isnan(score), -math.inf, score)


@dataclass(frozen=True)
class Released:
    """The releases of a vault for scores, in which the positive class is the second: public."""

    classes: np.ndarray | None
    n_records: int
    is_exact: bool
    positive: int
    values: dict[str, Any]
    std: dict[str, float]  # of the noise in each
    quantile: float  # times this the noise exceeds std in one of twenty cases
    on_scale: Callable[[Any], Any]  # an edge of bins as a probability, if there are any
    ledger: PrivacyLedger
    deviances: Mapping[str, Deviance] | None = None

    @cached_property
    def pos_label(self) -> Any:
        """The positive one of two classes, or None."""
        two = self.classes is not None and len(self.classes) == 2
        return self.classes[self.positive] if two else None

    @cached_property
    def table(self) -> "NoisyTable":
        """The histogram of scores."""
        return NoisyTable(self.values["table"], self.std["table"])

    @cached_property
    def cells(self) -> "NoisyCounts":
        """The confusion matrix, flat, as far as what was released determines it."""
        size = len(self.classes)
        diagonal, ones = np.eye(size).ravel(), np.ones(size * size)
        row, column = np.divmod(np.arange(size * size), size)
        designs = {
            "records": ones,
            "right": diagonal - ones / 2,
            "positive": (row == 1) - ones / 2,
            "predicted": (column == 1) - ones / 2,
            "cells": np.eye(size * size),
            "exact": ones,
        }
        values = self.values | ({"exact": self.n_records} if self.is_exact else {})
        names = [name for name in designs if name in values]
        design = [np.atleast_2d(designs[name]) for name in names]
        # No noise of a number that is public stands for very little.
        std = [max(self.std.get(name, 0.0), 1e-3) for name in names]
        scale = np.repeat(std, [len(rows) for rows in design])
        solution = np.linalg.pinv(np.concatenate(design) / scale[:, None])
        released = np.concatenate([np.ravel(values[name]) for name in names])
        return NoisyCounts(solution @ (released / scale), solution)


@dataclass(frozen=True)
class NoisyCounts:
    """Noisy counts (n,), and the matrix that makes their noise of independent noise: public."""

    counts: np.ndarray
    noise: np.ndarray

    def std(self, weights: np.ndarray) -> Any:
        """Return the standard deviation of the noise of sums."""
        return np.linalg.norm(weights @ self.noise, axis=-1)

    def is_visible(self, weights: np.ndarray) -> Any:
        """Return whether sums are above the noise level, and of one record at least."""
        return weights @ self.counts >= np.maximum(VISIBLE * self.std(weights), 1.0)

    def ratio(self, part: np.ndarray, whole: np.ndarray) -> tuple[Any, Any, Any]:
        """Return shares, the std of their noise and what they are of; NaN below the noise level."""
        n = np.where(self.is_visible(whole), whole @ self.counts, math.nan)
        share = np.clip(part @ self.counts / n, 0.0, 1.0)
        return share, self.std(part - share[..., None] * whole) / n, n


class NoisyTable(NoisyCounts):
    """How many records of each of two classes are in which bin of scores, with noise: public."""

    def __init__(self, released: np.ndarray, std: float) -> None:
        root = prefix_root(released.size // 2)
        rising = [isotonic_regression(row) for row in released.reshape(2, -1) @ root.T]
        counts = np.diff(np.maximum(rising, 0.0), axis=1, prepend=0.0)
        spread = std * solve_triangular(root, np.eye(len(root)), lower=True)
        super().__init__(counts.ravel(), np.kron(np.eye(2), spread))

    @cached_property
    def by_class(self) -> np.ndarray:
        """The counts (2, n_bins)."""
        return self.counts.reshape(2, -1)

    @cached_property
    def totals(self) -> np.ndarray:
        """Number of records of each class (2,), one at least."""
        return np.maximum(self.by_class.sum(axis=1), 1.0)

    @cached_property
    def classes(self) -> np.ndarray:
        """Weights (2, 2 n_bins) that count the records of each class."""
        return np.repeat(np.eye(2), self.by_class.shape[1], axis=1)

    @cached_property
    def has_visible_classes(self) -> bool:
        """Whether both classes are above the noise level."""
        return bool(self.is_visible(self.classes).all())

    def auc(self) -> tuple[float, float]:
        """Return the area under the ROC curve, and the standard deviation of its noise."""
        (negative, positive), (negatives, positives) = self.totals, self.by_class
        below = np.cumsum(negatives) - negatives / 2
        above = positive - np.cumsum(positives) + positives / 2
        auc = float(positives @ below) / (positive * negative)
        weights = [(above / positive - auc) / negative, (below / negative - auc) / positive]
        return auc, self.std(np.ravel(weights))

    def groups(self) -> np.ndarray:
        """Return runs of bins (n_groups, n_bins), of a tenth of all records, above the noise."""
        whole, groups, start = self.by_class.sum(axis=0), [], 0
        for end in range(1, len(whole) + 1):
            inside = np.zeros(len(whole))
            inside[start:end] = 1.0
            enough = whole @ inside >= whole.sum() / 10
            if enough and self.is_visible(np.tile(inside, 2)):
                groups.append(inside)
                start = end
        if groups:
            groups[-1][start:] = 1.0
        return np.array(groups).reshape(-1, len(whole))

    def best_edge(self, false_positive: float, false_negative: float) -> float:
        """Return the edge, -inf and inf among them, that costs least by these counts."""
        negatives, positives = self.by_class
        false_positives = np.append(np.cumsum(negatives[::-1])[::-1], 0.0)
        false_negatives = np.append(0.0, np.cumsum(positives))
        cost = false_positive * false_positives + false_negative * false_negatives
        return float([-math.inf, *EDGES, math.inf][int(np.argmin(cost))])
