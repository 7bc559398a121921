"""A linear model of encoded rows, as what each column of the table adds to its score."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dpglm.estimators.regression import DPGammaRegressor, DPPoissonRegressor
from dpglm.exceptions import require
from dpglm.schema.columns import CategoricalColumn, Column, DateColumn, Quantity, TextColumn
from dpglm.schema.encoder import SchemaEncoder, blocks_of, encode
from dpglm.schema.interactions import InteractionFeatures
from dpglm.schema.table import Schema, positive_place
from dpglm.schema.values import as_listed, read_columns
from dpglm.study.plots import Display
from dpglm.workflow.releases import Z

# From bound to bound; all edges of a term are among them. And cells of a heat map along a number.
_N_POSITIONS, _N_CELLS = 257, 33
# Most categories to draw (those that add least and most), and most shapes.
_MOST_BARS, _MOST_SHAPES = 16, 60
# Curvature of clipped gradients: with 0.05 to 0.25, refits spread 0.9 to 1.1 times as predicted.
_CURVATURE = 0.1
_WITH_LOG_LINK = DPPoissonRegressor, DPGammaRegressor, PoissonRegressor, GammaRegressor
_BAND = {"color": "C0", "alpha": 0.25, "linewidth": 0, "label": "95 % of the noise"}
_MISSING = {"color": "C1", "linestyle": "--", "label": "a missing value"}


def _values(column: Column, n_positions: int) -> np.ndarray:
    """Return the numbers of a column's categories, or so many from bound to bound."""
    if hasattr(column, "categories"):
        return np.arange(len(column.categories))
    return column.values_at(np.linspace(0.0, 1.0, n_positions))


def _public(column: Column) -> np.ndarray:
    """Return the numbers that the schema allows: listed, special, or from bound to bound."""
    values = _values(column, _N_POSITIONS)
    return np.union1d(values, column.special_numbers) if isinstance(column, Quantity) else values


@dataclass(frozen=True)
class Term:
    """The term of a column in a score, or the part of interactions beyond the terms of columns.

    A function of what ``column.numbers`` returns, by name. It has mean zero over `public`, except
    over a grid of interactions. Free text has no such values, and is zero without a word.
    """

    name: str
    columns: tuple[Column, ...]
    encoded: Callable[[Mapping[str, Any]], Any]
    coef: np.ndarray
    # A factor of the covariance of the noise in `coef`, or its standard deviations, if known.
    noise: np.ndarray | None

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of raw columns."""
        return {column.name: column.numbers(raw[column.name]) for column in self.columns}

    def of(self, numbers: Mapping[str, Any]) -> np.ndarray:
        """Return what is added for each of the numbers, (n,)."""
        return self.encoded(numbers) @ self.coef - self.centre

    @property
    def grid(self) -> list[np.ndarray]:
        """The values of each column over which the term is drawn."""
        if len(self.columns) == 1:
            return [_public(self.columns[0])]
        return [_values(column, _N_CELLS) for column in self.columns]

    @cached_property
    def public(self) -> dict[str, np.ndarray]:
        """All combinations of these values."""
        every = np.meshgrid(*self.grid, indexing="ij")
        names = [column.name for column in self.columns]
        return dict(zip(names, map(np.ravel, every), strict=True))

    @cached_property
    def centre(self) -> float:
        if len(self.columns) > 1 or isinstance(self.columns[0], TextColumn):
            return 0.0
        return (self.encoded(self.public) @ self.coef).mean()

    @cached_property
    def noise_std(self) -> np.ndarray:
        """The standard deviation of the noise in the term of each of `public`; 0 if unknown."""
        rows = self.encoded(self.public)
        if self.noise is None:
            return np.zeros(rows.shape[0])
        if self.noise.ndim == 2:
            moved = rows @ self.noise
            return np.linalg.norm(moved - moved.mean(axis=0), axis=1)
        middle, variance = rows.mean(axis=0), self.noise**2
        total = rows**2 @ variance - rows @ (2 * middle * variance) + middle**2 @ variance
        return np.sqrt(np.maximum(total, 0.0))

    @property
    def noise_spread(self) -> float:
        """The spread of the noise over `public`; 0 if unknown."""
        return math.sqrt(np.mean(self.noise_std**2))

    @property
    def rank(self) -> float:
        """The spread over `public`, over that of the noise if it is known."""
        return self.of(self.public).std() / (self.noise_spread or 1.0)

    @property
    def exceptions(self) -> dict[str, float]:
        """The terms of values of a single column that are unknown or missing and have a code."""
        (column, *others), codes = self.columns, {}
        if others:
            return {}
        if isinstance(column, CategoricalColumn):
            codes["unknown"] = (
                len(column.categories) if column.handle_unknown == "indicator" else -1
            )
        if column.missing == "indicator":
            last = len(column.encoded_names) - 1
            codes["missing"] = np.nan if isinstance(column, Quantity) else last
        return {name: self.of({column.name: np.array([k])})[0] for name, k in codes.items()}


@dataclass(frozen=True)
class _Parts:
    """Features of interactions as parts of single columns, and what is left.

    On average over all that the schema allows of the other columns, a feature is a function of one
    column. The rest is zero on average over all columns but one.
    """

    features: InteractionFeatures
    columns: Mapping[str, tuple[Column, slice]]

    @cached_property
    def means(self) -> dict[str, np.ndarray]:
        """The mean factors (m,) of each column."""
        return {
            name: self._factors(name, _public(column)).mean(axis=0)
            for name, (column, _) in self.columns.items()
        }

    def _factors(self, name: str, numbers: Any) -> np.ndarray:
        column, own = self.columns[name]
        return self.features.factors(own, encode([column], {name: numbers}, sparse_output=True))

    def of(self, numbers: Mapping[str, Any]) -> np.ndarray:
        """Return the features (n, m), or (m,) of no columns; those not named are at their mean."""
        others = [mean for name, mean in self.means.items() if name not in numbers]
        own = [self._factors(*named) for named in numbers.items()]
        return self.features.of_factors(math.prod([*others, *own]))

    def beside(self, encoded: Any, numbers: Mapping[str, Any]) -> sparse.csr_array:
        """Return the encoded rows of a column, and its part of the features."""
        return sparse.hstack([encoded(numbers), self.of(numbers)], format="csr")

    def rest(self, chosen: list[int], numbers: Mapping[str, Any]) -> np.ndarray:
        """Return what is left of some features."""
        constant = self.of({})
        singles = sum(self.of(dict([named])) - constant for named in numbers.items())
        return (self.of(numbers) - singles - constant)[:, chosen]


def coefficient_noise(model: Any) -> np.ndarray | None:
    """Return a factor of the covariance of the noise in ``coef_`` or its std, None if unknown."""
    trace = getattr(model, "trace_", None)
    # In 40 refits of a linear regression the spread was 1.4 to 1.9 times as large as such a bound.
    if is_regressor(model) or not {"noise_std", "step", "n_summed"} <= vars(trace or model).keys():
        return None
    noise, n_iter = np.array(trace.noise_std) / trace.n_summed, len(trace.step)
    n_records = max(1, round(trace.n_summed / model.sampling_rate))
    plan = model.plan(n_records, model.n_features_in_, len(model.classes_))
    if plan.n_iter != n_iter or not noise.any():
        return None
    # Response of a quadratic loss to the noise of each iteration, by second moments from 0 to 1.
    moments = np.linspace(0.0, 1.0, 17)
    coef = velocity = average = np.zeros((n_iter, len(moments)))
    for t, step in enumerate(trace.step):
        gradient = _CURVATURE * moments * coef
        gradient[t] += noise[t]
        direction, velocity = plan.momentum.direction(gradient, velocity, t + 1)
        coef = coef - step * direction
        average = average + plan.averaging[t] * coef
    found = np.linalg.norm(average, axis=0)
    if trace.whitening is None:
        return np.full(len(trace.coef), found[0])
    basis, moment = trace.whitening.basis, trace.whitening.moment
    if basis.ndim == 1:
        return basis * np.interp(basis**2 * moment, moments, found)
    values, vectors = np.linalg.eigh(basis.T @ moment @ basis)
    return basis @ vectors * np.interp(values, moments, found)


def terms_of(
    estimator: Any, schema: Schema | None = None, pos_label: Any = None
) -> tuple[str, float, list[Term]]:
    """Return the name of a score, its value where all columns add zero, and their terms."""
    model, schema = _model_and_schema(estimator, schema)
    if not is_regressor(model):
        place = positive_place(model.classes_, pos_label, schema)
        is_odds = hasattr(model, "predict_proba") and len(model.classes_) == 2
        kind = "log-odds" if is_odds else "score"
        score = f"{kind} of {schema.target.name} = {model.classes_[place]}"
    elif pos_label is None:
        place = 1
        score = "logarithm of " * isinstance(model, _WITH_LOG_LINK) + schema.target.name
    else:
        raise ValueError(f"pos_label={pos_label!r} is for classes, and a number is predicted.")
    weights = np.atleast_2d(model.coef_)
    weights = np.column_stack([weights, np.broadcast_to(model.intercept_, len(weights))])
    weights = np.vstack([-weights, weights]) if len(weights) == 1 else weights
    *coef, intercept = weights[place]
    blocks = blocks_of(schema, len(coef), getattr(model, "feature_names_in_", None))
    coef, noise = np.array(coef), coefficient_noise(model)
    interactions, n_own = schema.interaction_features, len(coef) - schema.n_interactions
    able = {name: at for name, at in blocks.items() if not isinstance(at[0], TextColumn)}
    parts = interactions and _Parts(interactions, able)
    terms = []

    def add(name: str, columns: tuple[Column, ...], encoded: Any, at: np.ndarray) -> None:
        terms.append(Term(name, columns, encoded, coef[at], None if noise is None else noise[at]))

    for name, (column, own) in blocks.items():
        own, encoded = np.arange(own.start, own.stop), partial(encode, [column], sparse_output=True)
        if parts and name in able:
            own = np.append(own, np.arange(n_own, len(coef)))
            encoded = partial(parts.beside, encoded)
        add(name, (column,), encoded, own)
    intercept += sum(t.centre for t in terms)
    if parts:
        # Each column's term has it.
        intercept -= (len(able) - 1) * parts.of({}) @ coef[n_own:]
        for names, features in interactions.groups.items():
            # The brackets keep it apart from a column of that name.
            name = " x ".join(names) if len(names) == 2 else "(interactions)"
            rest = partial(parts.rest, features)
            add(name, tuple(able[n][0] for n in names), rest, n_own + np.array(features))
    return score, intercept, terms


def _model_and_schema(estimator: Any, schema: Schema | None) -> tuple[Any, Schema]:
    """Return a fitted linear model and the schema that encodes its rows."""
    steps = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else []
    if schema is None and len(steps) == 2 and isinstance(steps[0], SchemaEncoder):
        schema, estimator = steps[0].schema_, steps[1]
    elif schema is None or steps:
        raise ValueError(
            f"{estimator!r} does not say how its rows were encoded; give a pipeline of "
            "schema.transformer() and a model, or a model and schema=."
        )
    check_is_fitted(estimator)
    return estimator, schema


def explain_local(
    estimator: Any, rows: Any, schema: Schema | None = None, *, pos_label: Any = None
) -> Any:
    """Return what each column of a table adds to the scores of some rows.

    Pairs of columns with interactions follow, as "age x income", with what they add beyond the
    terms of the columns. With the intercept all add up to the ``decision_function`` of the positive
    class. For a number they add up to the prediction before it is cut, or with a log link to its
    logarithm. Each term is zero on average over the values that the schema allows. The terms of a
    row are as private as the row.

    Parameters
    ----------
    estimator : Pipeline or linear model
        ``make_pipeline(schema.transformer(), model)``, fitted, or the model alone.
    rows : data frame in memory or dictionary of arrays
        One raw row is ``frame.iloc[[0]]``.
    schema : Schema, optional
        Needed for a model alone.
    pos_label : label, optional
        Class of the score; needed for more than two. By default as in `private_scores`.

    Returns
    -------
    DataFrame of shape (n_samples, n_columns + 1)
        The columns of the schema, and "(intercept)".

    Raises
    ------
    ValueError
        If the model was not fitted to rows that the schema encodes, or the class is unknown.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> model = DPLogisticRegression().fit(*make_census(2000, random_state=0))
    >>> rows, _ = make_census(2, random_state=1, as_frame=True)
    >>> explain_local(model, rows, load_schema("census").additive(1)).shape
    (2, 15)
    """
    _, intercept, terms = terms_of(estimator, schema, pos_label)
    raw = read_columns(rows, dict.fromkeys(c.name for term in terms for c in term.columns))
    added = {term.name: term.of(term.read(raw)) for term in terms}
    pandas = require("pandas", "data", "explain_local")
    found = pandas.DataFrame(added, index=getattr(rows, "index", None))
    # The brackets keep it apart from a column of that name.
    return found.assign(**{"(intercept)": intercept})


class ShapeDisplay(Display):
    """Contribution of each column of a table to the score of a class, or to a predicted number.

    Each term is zero on average over the values that the schema allows. Pairs with interactions are
    heat maps of what they add beyond the terms of their columns; free text is not drawn. Terms are
    sorted by their standard deviation over what is drawn, divided by that of their noise if it is
    known. Bands, of classifiers only, hold 95 percent of the noise, as of a quadratic loss. It
    costs no privacy.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> from dpglm.study import ShapeDisplay
    >>> model = DPLogisticRegression().fit(*make_census(2000, random_state=0))
    >>> schema = load_schema("census").additive(1)  # straight lines, as in that table
    >>> display = ShapeDisplay.from_estimator(model, schema, columns=["age"])
    >>> [ax.get_title() for ax in display.plot().axes_]
    ['age']
    """

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        schema: Schema | None = None,
        *,
        columns: Iterable[str] | None = None,
        pos_label: Any = None,
    ) -> Self:
        """Prepare the figure of a fitted linear model.

        Parameters
        ----------
        estimator : Pipeline or linear model
            ``make_pipeline(schema.transformer(), model)``, fitted, or the model alone.
        schema : Schema, optional
            Needed for a model alone.
        columns : iterable of str, optional
            Columns to draw, and pairs, such as "age x income"; by default all. At most 60 are.
        pos_label : label, optional
            As in `explain_local`.
        """
        score, _, terms = terms_of(estimator, schema, pos_label)
        able = {
            t.name: t
            for t in terms
            if len(t.columns) <= 2 and not isinstance(t.columns[0], TextColumn)
        }
        known = [*able]
        chosen = known if columns is None else [as_listed(name, known) for name in columns]
        if not chosen or not set(chosen) <= set(known):
            raise ValueError(f"columns={chosen!r} must be some of {known}.")
        drawn = sorted((able[name] for name in chosen), key=lambda term: -term.rank)
        kept, n_left_out = drawn[:_MOST_SHAPES], len(drawn[_MOST_SHAPES:])
        added = [x for t in kept for x in (0.0, *t.of(t.public), *t.exceptions.values())]
        # Bands may be cut, but not the terms.
        half = max(Z * term.noise_std.max() for term in kept)
        margin = min(half, np.ptp(added) / 4) or 0.05
        limits = min(added) - margin, max(added) + margin
        panels = [partial(_draw, term=term, limits=limits) for term in kept]
        title = f"what each column adds to the {score}"
        note = "zero: the mean over all that the schema allows"
        return cls(
            f"{title}\n{note}" + f"; {n_left_out} more columns" * bool(n_left_out),
            (4.2, 3.0),
            panels,
            legend=[_BAND["label"], _MISSING["label"]],
        )


def _draw(axes: Any, term: Term, limits: tuple[float, float]) -> None:
    axes.set_title(term.name)
    if len(term.columns) == 2:
        _draw_surface(axes, term, max(map(abs, limits)))
        return
    axes.axhline(0.0, color="0.6", linewidth=1)
    draw = _draw_bars if isinstance(term.columns[0], CategoricalColumn) else _draw_line
    draw(axes, term)
    axes.set_ylim(limits)


def _draw_surface(axes: Any, term: Term, limit: float) -> None:
    """Draw a heat map; missing and special values have no place in it."""
    added = term.of(term.public).reshape([len(values) for values in term.grid])
    x, y = map(_on_axis, (axes.xaxis, axes.yaxis), term.columns, term.grid)
    colors = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "rasterized": True}
    image = axes.pcolormesh(x, y, added.T, shading="nearest", **colors)
    axes.figure.colorbar(image, ax=axes)
    noise = f", noise {term.noise_spread:.2g}" * bool(term.noise_spread)
    first, second = (column.name for column in term.columns)
    axes.set(title=f"{term.name}{noise}", xlabel=first, ylabel=second)
    axes.set_axisbelow(True)  # the grid


def _on_axis(axis: Any, column: Column, values: np.ndarray) -> np.ndarray:
    """Return where the values of a column are on an axis, and give it their scale and marks."""
    if hasattr(column, "categories"):
        _name_ticks(axis, [str(value) for value in column.categories])
        return values
    if isinstance(column, DateColumn):
        # Seconds, as a position between bounds may be within a day.
        return (86_400 * values).astype("datetime64[s]")
    if column.scale == "asinh":
        # Ticks of one digit at about equal distances; matplotlib's own overlap near zero.
        ticks = {float(f"{value:.1g}") for value in column.values_at(np.linspace(0.0, 1.0, 6))}
        getattr(axis.axes, f"set_{axis.axis_name}scale")("asinh", linear_width=column.linear_width)
        axis.set_ticks(sorted(ticks))
        axis.axes.minorticks_off()
    axis.set_major_formatter("{x:g}")
    return values


def _draw_line(axes: Any, term: Term) -> None:
    (column,), (values,), added = term.columns, term.grid, term.of(term.public)
    x, half = _on_axis(axes.xaxis, column, values), Z * term.noise_std
    special = np.isin(values, column.special_numbers)
    style = {"marker": "o", "linestyle": ":"} if hasattr(column, "categories") else {}
    # The term of a special value has nothing to do with those of its neighbours.
    axes.plot(x[~special], added[~special], **style)
    axes.plot(x[special], added[special], "o", color="C0")
    if half.any():
        axes.fill_between(x, added - half, added + half, where=~special, **_BAND)
        axes.errorbar(x[special], added[special], half[special], fmt="none", capsize=3)
    for value in term.exceptions.values():
        axes.axhline(value, **_MISSING)


def _draw_bars(axes: Any, term: Term) -> None:
    names, added = [*map(str, term.columns[0].categories)], term.of(term.public)
    half = Z * term.noise_std
    if len(names) > _MOST_BARS:
        order = np.argsort(added)
        chosen = np.sort([*order[: _MOST_BARS // 2], *order[-_MOST_BARS // 2 :]])
        axes.set_xlabel(f"{_MOST_BARS} of {len(names)}: those that add least and most")
        names, added, half = [names[k] for k in chosen], added[chosen], half[chosen]
    others = term.exceptions
    colors = ["C0"] * len(names) + ["C1"] * len(others)
    names += [f"({name})" for name in others]
    axes.bar(range(len(names)), [*added, *others.values()], color=colors, zorder=2)
    if half.any():
        places = range(len(added))
        axes.errorbar(places, added, half, fmt="none", ecolor="0.5", capsize=2, zorder=3)
    _name_ticks(axes.xaxis, names)


def _name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Label the ticks 0, 1, ..., upright if the names would not fit side by side."""
    short = [name if len(name) <= 18 else f"{name[:10]}…{name[-7:]}" for name in names]
    is_upright = axis.axis_name == "x" and sum(map(len, short)) + 2 * len(short) > 32
    step = 1 + len(short) // 20
    axis.set_ticks(range(0, len(short), step), short[::step], rotation=90 if is_upright else 0)
