"""Standard errors, intervals and tests of a private regression, for its reader.

Everything follows from what `dpglm.estimators.debiasing` released: it may be repeated at no cost.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from dpglm.checks import check_number
from dpglm.estimators.solvers import Debiased
from dpglm.exceptions import require
from dpglm.privacy.ledger import PrivacyLedger
from dpglm.schema.columns import CategoricalColumn, Column, DateColumn, Quantity
from dpglm.schema.encoder import blocks_of, encode
from dpglm.schema.table import Schema, positive_place
from dpglm.schema.values import as_listed, check_names, composed, distinct
from dpglm.tables import Printed

if TYPE_CHECKING:
    import pandas

__all__ = ["Estimates", "InferenceResults"]

# Part of an error or a coefficient: 0.95 intervals shifted by a quarter of an error cover in 0.943.
_LITTLE = 0.25


class _Link(NamedTuple):
    """The unit of scores, or "" for the target's, the name of means, means, and their slopes."""

    unit: str
    of_mean: str
    mean: Callable[[Any], Any]
    slope: Callable[[Any], Any]


_LINKS = {
    "logit": _Link("log-odds", "probability", expit, lambda p: p * (1 - p)),
    "log": _Link("log of the mean", "mean", np.exp, lambda mean: mean),
    "identity": _Link("", "mean", np.asarray, np.ones_like),
}


@dataclass(frozen=True, eq=False)
class Estimates(Printed):
    """Numbers with standard errors and intervals; NaN where they are suppressed.

    Attributes
    ----------
    names : list of str
    value : ndarray of shape (n,)
    std_error : ndarray of shape (n,)
        Due to the draw of the records and the noise together.
    sampling_error, privacy_error : ndarrays of shape (n,)
        The two parts, whose squares add up.
    low, high : ndarrays of shape (n,)
        The ends of the intervals.
    level : float
    suppression_reasons : list of str
        Why a number is suppressed, or an empty string.
    tested : bool
        Whether zero is a hypothesis, as for effects. For probabilities it is not, and z, P and the
        mark for noise are not printed.
    unit : str
        The unit of the numbers, such as ``"log-odds"``.
    metadata : dict of str to str
        Printed above the table.
    notes : list of str
        Printed below the table.
    """

    names: Sequence[str]
    value: np.ndarray
    std_error: np.ndarray
    sampling_error: np.ndarray
    privacy_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float
    suppression_reasons: Sequence[str]
    tested: bool = True
    unit: str = "log-odds"
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def zvalues(self) -> np.ndarray:
        """Values divided by their standard errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.value / self.std_error

    @property
    def pvalues(self) -> np.ndarray:
        """Two-sided p values of the hypothesis that a value is zero."""
        return 2 * norm.sf(np.abs(self.zvalues))

    @property
    def marks(self) -> list[str]:
        """``"noise"`` where an interval holds zero and is mostly noise, or ``"suppressed"``."""
        noisy = (self.low <= 0) & (self.high >= 0) & (self.privacy_error > self.sampling_error)
        marks = zip(self.suppression_reasons, noisy & self.tested, strict=True)
        return ["suppressed" if reason else "noise" * bool(mark) for reason, mark in marks]

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return the table by its columns."""
        tails = 50 * (1 - self.level), 50 * (1 + self.level)
        tests = {"z": self.zvalues, "P>|z|": self.pvalues} if self.tested else {}
        return {
            "coef": self.value,
            "std err": self.std_error,
            "sampling": self.sampling_error,
            "privacy": self.privacy_error,
            **tests,
            f"{tails[0]:.4g}%": self.low,
            f"{tails[1]:.4g}%": self.high,
            "mark": self.marks,
        }

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table as a DataFrame; needs pandas."""
        pd = require("pandas", "data", "A table of estimates")
        return pd.DataFrame(self.columns(), index=list(self.names))

    def _blocks(self) -> Iterable[Any]:
        columns = self.columns()
        rows = zip(self.names, *columns.values(), strict=True)
        cells = [["", *columns], *([name, *map(_text, row, columns)] for name, *row in rows)]
        reasons, shown = dict.fromkeys(filter(None, self.suppression_reasons)), [cells, *self.notes]
        if all(self.suppression_reasons):
            shown = ["All numbers are suppressed."]
        head = {**self.metadata, "Unit": self.unit}
        yield "", head, *shown, *(f"suppressed: {reason}" for reason in reasons)


def _text(cell: str | float, column: str) -> str:
    number = ".3f" if column == "P>|z|" else ".4g"
    return cell if isinstance(cell, str) else "" if math.isnan(cell) else format(cell, number)


@dataclass(frozen=True, eq=False, repr=False)
class InferenceResults(Printed):
    """Estimates, errors and tests of a released regression, for the population.

    Made by ``inference`` of `DPLogisticRegression` and the regressors. Everything follows from the
    releases: repeated calls, at any level, cost no privacy.

    Attributes
    ----------
    estimates : Estimates
        All of the attributes below, in one table.
    names : list of str
        The parameters: const, then those of the columns, in the order of the table.
    params, bse : ndarray of shape (n_parameters,)
        Estimates without the bias of clipping, and their standard errors; NaN if suppressed.
    bse_sampling, bse_privacy : ndarray of shape (n_parameters,)
        The parts of ``bse``, of the draw of the records and of the noise; their squares add up.
    zvalues, pvalues : ndarray of shape (n_parameters,)
    suppression_reasons : list of str
        Why a parameter is suppressed, or an empty string.
    level : float
        Level of the intervals.
    dispersion : float or None
        ``dispersion_`` of a regressor.
    reference_categories : dict of str to category
        With a schema: the category of each column that the others are compared with. Given as
        `references` to the inference of another fit, it makes the parameters the same.

    Notes
    -----
    The estimand is the minimiser of the expected loss (plus ``alpha / 2 ||coef||^2``) over the
    population: the true coefficients if the model is right. It is not ``coef_``, which shrinks
    and clips for better predictions. If the model is wrong, rows with large norms count less (see
    `debias`), and the sampling error is that of a right model. Without noise the results are those
    of statsmodels: ``OLS``, or ``GLM`` with ``scale="X2"``.
    """

    released: Debiased
    moment: np.ndarray
    feature_names: Sequence[str]
    fit_intercept: bool
    target: str
    privacy_: PrivacyLedger
    schema: Schema | None = None
    level: float = 0.95
    references: Mapping[str, Any] | None = None
    link: str = "logit"
    kind: str = "logistic"

    def __post_init__(self) -> None:
        level = check_number("level", self.level, above=0, at_most=1.0 - 1e-12)
        object.__setattr__(self, "level", level)
        given = {} if self.references is None else self.references
        if not isinstance(given, Mapping):
            raise ValueError(f"references={given!r} must be a dict, as {{'home': 'owned'}}.")
        columns = () if self.schema is None else self.schema.categorical
        listed = {column.name: column.categories for column in columns}
        given = {as_listed(name, listed): value for name, value in given.items()}
        given = {name: as_listed(value, listed.get(name, ())) for name, value in given.items()}
        object.__setattr__(self, "references", given)
        for name, value in given.items():
            if name not in listed:
                raise ValueError(
                    f"references: {name!r} must be a categorical column of inference(schema=...)."
                )
            if value not in listed[name]:
                raise ValueError(
                    f"references: {value!r} is no category of {name!r}; choose from "
                    f"{[*listed[name]]}."
                )

    @cached_property
    def _parameters(self) -> tuple[list[str], np.ndarray]:
        """Names of the parameters, and each as a combination of the coefficients, one a row."""
        if self.schema is None:
            names, vectors = list(self.feature_names), np.eye(len(self.moment))
            if self.fit_intercept:
                names, vectors = ["const", *names], np.roll(vectors, 1, axis=0)
            return names, vectors
        names, vectors = [], []
        const = np.zeros(len(self.moment))
        const[-1] = 1.0
        for column, place in self._places.values():
            baseline, found = _effects(column, self.reference_categories.get(column.name))
            const[place] = baseline
            for name, effect in found:
                vector = np.zeros(len(self.moment))
                vector[place] = effect
                names.append(name)
                vectors.append(vector)
        if self.fit_intercept:
            names, vectors = ["const", *names], [const, *vectors]
        return names, np.array(vectors)

    @cached_property
    def reference_categories(self) -> dict[str, Any]:
        """The category of each column that the others are compared with."""
        found, shares = {}, np.diag(self.moment)
        for name, (column, place) in self._places.items():
            if isinstance(column, CategoricalColumn):
                own = shares[place][: len(column.categories)]
                found[name] = column.categories[int(np.argmax(own >= own.max() / 2))]
        return found | dict(self.references)

    @cached_property
    def _places(self) -> dict[str, tuple[Column, slice]]:
        """Each column of the schema, in the order of the table, and where its block is."""
        return {} if self.schema is None else blocks_of(self.schema, len(self.feature_names), None)

    @cached_property
    def estimates(self) -> Estimates:
        """All parameters, with errors and intervals."""
        unit = f"{self._unit} per unit"
        if self.schema is not None:
            unit += ", of terms from bound to bound; categories against their reference"
        return replace(self._linear(*self._parameters), unit=unit)

    def _linear(self, names: Sequence[str], vectors: np.ndarray) -> Estimates:
        """Return estimates of combinations of the coefficients, one a row."""
        return self._estimates(names, vectors @ self.released.coef, vectors)

    def _estimates(
        self, names: Sequence[str], values: Any, vectors: np.ndarray, scores: Any = None
    ) -> Estimates:
        """Return estimates whose errors are those of combinations of the coefficients.

        An estimate is suppressed if its combination is. Means over rows are suppressed if a larger
        part of the rows' `scores` is suppressed than the error: their gradient would be wrong.
        """
        error, sampling, privacy, suppression_reasons = self._errors(vectors)
        hidden = [] if scores is None else [text for text in self._errors(scores)[3] if text]
        if hidden and len(hidden) > len(scores) * error.min():
            suppression_reasons = [refusal or hidden[0] for refusal in suppression_reasons]
        refused = np.array([*map(bool, suppression_reasons)])
        values, error, sampling, privacy = (
            np.where(refused, np.nan, x) for x in (values, error, sampling, privacy)
        )
        half = norm.isf((1 - self.level) / 2) * error
        ends = values - half, values + half
        return Estimates(
            names, values, error, sampling, privacy, *ends, self.level, suppression_reasons,
            unit=self._unit if scores is None else self._link.of_mean,
        )  # fmt: skip

    _link = property(lambda self: _LINKS[self.link])
    _unit = property(lambda self: self._link.unit or self.target)

    @property
    def dispersion(self) -> float | None:
        return None if self.link == "logit" else self.released.dispersion

    def _errors(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """Return standard errors of combinations, their two parts, and suppression reasons."""
        found = self.released
        white = vectors @ found.basis
        steps = white @ found.inverse
        sampling = np.sqrt(np.vecdot(steps @ found.curvature, steps))
        privacy = found.noise_std * np.linalg.norm(steps, axis=1)
        error = np.hypot(sampling, privacy)
        unseen = np.linalg.norm(white @ found.directions[:, ~found.seen], axis=1)
        hidden = unseen > _LITTLE * np.linalg.norm(white, axis=1)
        # As if the coefficients of columns that were left out were off by one.
        rare = np.linalg.norm(vectors[:, found.left_out], axis=1) > _LITTLE * error
        hidden_by = _NOTHING if found.left_out.all() else _RARE_COLUMN
        suppression_reasons = [
            _UNSEEN * bool(h) or hidden_by * bool(r) for r, h in zip(rare, hidden, strict=True)
        ]
        return error, sampling, privacy, suppression_reasons

    names = property(lambda self: self.estimates.names)
    params = property(lambda self: self.estimates.value)
    bse = property(lambda self: self.estimates.std_error)
    bse_sampling = property(lambda self: self.estimates.sampling_error)
    bse_privacy = property(lambda self: self.estimates.privacy_error)
    zvalues = property(lambda self: self.estimates.zvalues)
    pvalues = property(lambda self: self.estimates.pvalues)
    suppression_reasons = property(lambda self: self.estimates.suppression_reasons)

    def conf_int(self, alpha: float | None = None) -> np.ndarray:
        """Return the ends of the intervals (n_parameters, 2), of level ``1 - alpha`` if given."""
        if alpha is not None:
            alpha = check_number("alpha", alpha, advice="it is 1 - level", above=0, at_most=0.5)
        table = self.estimates if alpha is None else replace(self, level=1 - alpha).estimates
        return np.column_stack([table.low, table.high])

    def cov_params(self) -> np.ndarray:
        """Return the covariance of the parameters; NaN for suppressed ones."""
        found, vectors = self.released, self._parameters[1]
        refused = np.array([bool(text) for text in self.suppression_reasons])
        steps = vectors @ found.basis @ found.inverse
        inner = found.curvature + found.noise_std**2 * np.eye(len(found.curvature))
        covariance = steps @ inner @ steps.T
        covariance[refused] = covariance[:, refused] = np.nan
        return covariance

    def t_test(self, contrasts: Any) -> Estimates:
        """Return estimates of combinations of the parameters.

        Parameters
        ----------
        contrasts : dict of str to float, or list of these
            ``{"age": 10}`` is ten years of age. ``{"region_r02": 1, "region_r03": -1}`` compares
            two categories.
        """
        names, vectors = self._parameters
        rows = [contrasts] if isinstance(contrasts, Mapping) else contrasts
        if not (isinstance(rows, list) and rows and all(isinstance(r, Mapping) for r in rows)):
            raise ValueError(
                f"contrasts={contrasts!r} must be a dict of weights, as {{'age': 10}}, or a list."
            )
        weights = np.zeros((len(rows), len(names)))
        for k, row in enumerate(rows):
            for name, weight in row.items():
                name = as_listed(name, names)
                if name not in names:
                    these = f"these are: {', '.join(names)}; leave reference categories out"
                    raise ValueError(f"{name!r} is no parameter; {these}.")
                limits = {"above": -math.inf, "below": math.inf}
                weights[k, names.index(name)] = check_number(f"weight of {name}", weight, **limits)
        labels = [
            " + ".join(f"{w:g} {name}" for name, w in zip(names, row, strict=True) if w)
            for row in weights.tolist()
        ]
        return self._linear(labels, weights @ vectors)

    def standardized(self) -> Estimates:
        """Return the parameters but const, straight numbers per standard deviation of the rows.

        The deviations follow from the released moment. Without a schema numbers are per unit.
        """
        unit, steps = self.estimates.unit, {name: 1.0 for name in self.names if name != "const"}
        if self.schema is not None and self.fit_intercept:
            spread = np.sqrt(np.maximum(np.diag(self.moment) - self.moment[-1] ** 2, 0.0))
            for column, place in self._places.values():
                if isinstance(column, Quantity) and column.is_straight and spread[place.start]:
                    deviation = spread[place.start] * np.ptp(column.bounds)
                    steps[column.name] = float(f"{deviation:.2g}")
            unit = unit.replace("per unit", "per standard deviation")
        found = self.t_test([{name: step} for name, step in steps.items()])
        names = [name if x == 1 else f"{x:g} {name}" for name, x in steps.items()]
        return replace(found, names=names, unit=unit)

    def predict(self, rows: Any) -> Estimates:
        """Return the probability of the positive class, or the mean, for each row, with intervals.

        They are for the probability or mean itself, not for the label or number. Results about a
        row are as private as the row.

        Parameters
        ----------
        rows : data frame, or array of shape (n, n_features)
            Raw with a schema, else encoded.
        """
        encoded = self._encoded(rows)
        scores = self._linear([str(i) for i in range(len(encoded))], encoded)
        return self._transformed(scores, *self._link[1:])

    def ratios(self) -> Estimates:
        """Return the exponentials of the parameters: odds ratios, or with a log link rate ratios.

        That of const is the odds, or the mean, at the baseline.
        """
        if self.link == "identity":
            raise ValueError("A linear regression has no ratios: its parameters are differences.")
        return self._transformed(self.estimates, "ratio", np.exp, np.asarray)

    def _transformed(
        self, found: Estimates, unit: str, function: Callable[[Any], Any], slope: Any
    ) -> Estimates:
        """Return an increasing function of estimates, with its slope at its values."""
        value = function(found.value)
        errors = (found.std_error, found.sampling_error, found.privacy_error)
        return Estimates(
            found.names, value, *(slope(value) * e for e in errors), function(found.low),
            function(found.high), self.level, found.suppression_reasons, tested=False, unit=unit,
        )  # fmt: skip

    def risk_difference(self, rows: Any, column: str, value: Any, reference: Any) -> Estimates:
        """Return the change of the mean risk if all rows had one value of a column.

        The average marginal effect of a category, or of a number between two values.

        Parameters
        ----------
        rows : data frame, or array of shape (n, n_features)
            The reference population, public or released; raw with a schema, else encoded.
        column : str
        value, reference : values of the column
            The mean risk with the one, less that with the other.
        """
        known = self.feature_names if self.schema is None else self.schema.feature_names
        column = as_listed(column, known)
        if not isinstance(column, str) or column not in known:
            given = repr(column) if isinstance(column, str) else f"a {type(column).__name__}"
            raise ValueError(f"column={given} must be one of {[*known]}; rows come before it.")
        # Encoded unchanged first: wrong rows raise an error that names them.
        encoded, sides = self._encoded(rows), []
        for one in (value, reference):
            if self.schema is None:
                encoded[:, known.index(column)] = one
            else:
                _refuse_outside(self._places[column][0], one)
                own = zip(known, check_names(rows, known), strict=True)
                changed = {name: list(rows[its]) for name, its in own}
                changed[column] = [one] * len(changed[column])
                encoded = self._encoded(changed)
            # The mean risk, and its gradient in the coefficients.
            risk = self._link.mean(encoded @ self.released.coef)
            sides.append((risk.mean(), self._link.slope(risk) @ encoded / len(risk)))
        (p, gradient), (q, other) = sides
        name = f"{column}: {value} against {reference}"
        change = (gradient - other)[np.newaxis]
        # The gradient contains the difference of the scores of both sides.
        return self._estimates([name], np.array([p - q]), change, encoded)

    def shape_function(self, column: str) -> tuple[np.ndarray, Estimates]:
        """Return values of a column, and what each adds to the score, with intervals.

        The values are relative to the baseline of the summary: the term at its lower bound, the
        lowest ordinal, the reference category. Special values are no part of a baseline.

        Returns
        -------
        values : ndarray of shape (n,)
        added : Estimates
        """
        column = as_listed(column, self._places)
        if column not in self._places:
            raise ValueError(f"column={column!r} must be one of those of inference(schema=...).")
        described, place = self._places[column]
        if hasattr(described, "categories"):
            values = np.array(described.categories)
        elif isinstance(described, Quantity):
            values = np.clip(described.values_at(np.linspace(0.0, 1.0, 33)), *described.bounds)
            values = _in_the_table(described, np.union1d(values, described.special_numbers))
        else:
            raise ValueError(f"column={column!r} is a text, which has no shape.")
        block = encode([described], {column: described.numbers(values)})
        baseline, _ = _effects(described, self.reference_categories.get(column))
        vectors = np.zeros((len(values), len(self.moment)))
        vectors[:, place] = block - baseline
        return values, self._linear([_named(value) for value in values], vectors)

    def _encoded(self, rows: Any) -> np.ndarray:
        if self.schema is not None:
            rows = self.schema.transformer().fit_transform(rows)
        elif hasattr(rows, "columns") and {*rows.columns} == {*self.feature_names}:
            rows = rows[[*self.feature_names]]
        rows = np.array(rows, dtype=float)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(self.feature_names):
            raise ValueError(
                f"rows have shape {rows.shape}; give a row or more, of "
                f"{len(self.feature_names)} columns."
            )
        return np.column_stack([rows, np.ones(len(rows))]) if self.fit_intercept else rows

    def summary(self) -> Estimates:
        """Return the table of the parameters, which prints with what is needed to read it."""
        table, ledger = self.estimates, self.privacy_
        metadata = {
            "Model": f"{self.kind} regression of {self.target}",
            "Records": f"{self.released.n_records:,}",
            "Dispersion": "" if self.dispersion is None else f"{self.dispersion:.4g}",
            "Privacy": f"epsilon {ledger.epsilon():.4g}, delta {ledger.reporting_delta:g}",
            "Neighbours": ledger.neighboring_relation,
        }
        metadata = {name: text for name, text in metadata.items() if text}
        notes = [
            "std err: from the draw of the records (sampling) and the noise (privacy) together.",
            "noise: the interval holds zero, and most of its width is noise.",
        ]
        if self.schema is not None:
            against = ", ".join(f"{n} {value}" for n, value in self.reference_categories.items())
            numbers = [c for c in self.schema.encoded_columns if isinstance(c, Quantity)]
            curves = (
                "Piecewise-linear terms are compared from bound to bound: see shape_function(). "
                "Straight lines need n_segments=1 (schema.additive(1) sets it unless a column "
                "does), and no scale or special value. "
            ) * any(not column.is_straight for column in numbers)
            units = (
                "Numbers are per unit, dates per day, categories against the reference of their "
                f"column. {curves}const: numbers at their lower bounds, categories at their "
                "references. (missing) is compared with the same."
            )
            notes += [units, f"References: {against or 'none'}."]
        return replace(table, metadata=metadata, notes=notes)

    def _blocks(self) -> Iterable[Any]:
        return self.summary()._blocks()

    def __repr__(self) -> str:
        n_hidden = sum(map(bool, self.suppression_reasons))
        n = len(self.names)
        return f"<InferenceResults: {n} parameters, {n_hidden} of them suppressed>"


_NOTHING = "the noise is too large for this number of columns that are not rare"
_RARE_COLUMN = "left out of the model: too rare, or numbers too small (scale them), for this noise"
_UNSEEN = (
    "below the noise level: columns are collinear, separate the labels, or terms have too many "
    "segments for this noise (schema.additive(1) makes lines)"
)


def _effects(column: Column, reference: Any) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Return the encoded baseline of a column, and its parameters, each of encoded differences."""
    names = column.encoded_names
    if isinstance(column, CategoricalColumn):
        codes = np.eye(len(names))
        first = column.categories.index(reference)
        found = [(name, codes[k] - codes[first]) for k, name in enumerate(names) if k != first]
        return codes[first], found
    if not isinstance(column, Quantity):
        return np.zeros(len(names)), list(zip(names, np.eye(len(names)), strict=True))
    lower, upper = column.bounds
    # The piecewise-linear term itself, and not a special value at its end.
    inside = np.nextafter(column.bounds, column.bounds[::-1])
    at_ends = np.where(np.isin(column.bounds, column.special_numbers), inside, column.bounds)
    ends = encode([column], {column.name: at_ends})
    straight = column.is_straight
    name = column.name if straight else f"{column.name} ({_span(column)})"
    found = [(name, (ends[1] - ends[0]) / (upper - lower if straight else 1.0))]
    others = np.append(column.special_numbers, [np.nan] * (column.missing == "indicator"))
    blocks = encode([column], {column.name: others})
    found += zip(names[len(names) - len(others) :], blocks - ends[0], strict=True)
    return ends[0], found


def _in_the_table(column: Quantity, numbers: np.ndarray) -> np.ndarray:
    """Return numbers of a column as values of the table: days if it has dates."""
    is_date = isinstance(column, DateColumn)
    return np.unique(np.round(numbers)).astype("datetime64[D]") if is_date else numbers


def _named(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _span(column: Quantity) -> str:
    return " to ".join(map(_named, _in_the_table(column, np.array(column.bounds))))


def _refuse_outside(column: Column, value: Any) -> None:
    """Raise a ValueError if the schema does not allow a value, unless it is missing."""
    wrong, allowed = False, ""
    if hasattr(column, "categories"):
        wrong = composed(value) not in [*map(composed, column.categories)]
        allowed = f"choose from {[*column.categories]}"
    elif isinstance(column, Quantity):
        number = column.read(distinct([value], column.name))
        wrong = np.isinf(number) | column.is_outside(number)
        allowed = f"give one from {_span(column)}"
    if wrong:
        raise ValueError(f"{value!r} is no value of {column.name!r}; {allowed}.")


def inference_of(
    model: Any,
    level: float,
    schema: Schema | None,
    references: Mapping[str, Any] | None,
    pos_label: Any = None,
    kind: str = "logistic",
) -> InferenceResults:
    """Return the inference of a model that was fitted with an ``inference_fraction``."""
    check_is_fitted(model)
    if model.trace_.debiased is None:
        raise ValueError(
            "This fit has released nothing for intervals. Fit again with "
            f"{type(model).__name__}(inference_fraction=0.5), for example."
        )
    names = getattr(model, "feature_names_in_", None)
    if schema is not None:
        if schema.interactions is not None:
            raise ValueError(
                f"schema {schema.name!r} has interactions, whose coefficients answer no question "
                "about the table. For intervals, fit to rows of the schema without them."
            )
        blocks_of(schema, model.n_features_in_, names)
    if names is None:
        names = [f"x{k}" for k in range(1, model.n_features_in_ + 1)]
    label = "y" if schema is None else schema.target.name
    released, link = model.trace_.debiased, "logit"
    if (target := model.trace_.target) is not None:
        link = "log" if target.log_link else "identity"
    else:
        place = positive_place(model.classes_, pos_label, schema)
        label = f"{label} = {model.classes_[place]}"
        if place == 0:
            released = replace(released, coef=-released.coef)
    return InferenceResults(
        released, model.trace_.whitening.moment, [str(name) for name in names],
        bool(model.fit_intercept), label, model.privacy_, schema, level, references, link, kind,
    )  # fmt: skip
