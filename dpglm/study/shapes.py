"""A linear model of encoded rows, as what each column of the table adds to its score."""

import math
from collections.abc import Iterable, Mapping, Sequence
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
from dpglm.schema.columns import (
    CategoricalColumn,
    Column,
    DateColumn,
    NumericColumn,
    Quantity,
    TextColumn,
)
from dpglm.schema.encoder import SchemaEncoder, blocks_of, encode
from dpglm.schema.interactions import InteractionFeatures
from dpglm.schema.table import Schema, positive_place
from dpglm.schema.values import as_listed, read_columns
from dpglm.study.plots import Display
from dpglm.workflow.releases import Z

# From bound to bound; all edges of a term are among them.
_N_POSITIONS = 257
# Cells of a heat map along a number, and marks of an axis.
_N_CELLS, _MOST_MARKS = 33, 5
# Most categories to draw (those that add least and most), and most shapes.
_MOST_BARS, _MOST_SHAPES = 16, 60
# Curvature of clipped gradients: with 0.05 to 0.25, refits spread 0.9 to 1.1 times as predicted.
_CURVATURE = 0.1
_WITH_LOG_LINK = DPPoissonRegressor, DPGammaRegressor, PoissonRegressor, GammaRegressor
_BAND = {"color": "C0", "alpha": 0.25, "linewidth": 0, "label": "95 % of the noise"}
_MISSING = {"color": "C1", "linestyle": "--", "label": "a missing value"}


@dataclass(frozen=True)
class Term:
    """The term of one column in a score: a function of its values, of mean zero over `public`."""

    column: Column
    coef: np.ndarray
    # A factor of the covariance of the noise in `coef`, or its standard deviations, if known.
    noise: np.ndarray | None = None
    parts: "_Parts | None" = None

    @property
    def name(self) -> str:
        return self.column.name

    def read(self, raw: Mapping[str, Any]) -> Any:
        """Return the numbers of raw columns."""
        return self.column.numbers(raw[self.column.name])

    def of(self, numbers: Any) -> np.ndarray:
        """Return what is added for each of what ``column.numbers`` returns, (n,)."""
        return self._encoded(numbers) @ self.coef - self.centre

    @cached_property
    def public(self) -> Any:
        """The values that the schema allows: listed, special, or from bound to bound."""
        if isinstance(self.column, TextColumn):
            # Single words: one of each bucket, with either sign of the hash.
            size = self.column.n_features, len(self.column.encoded_names)
            words = sparse.eye_array(*size, format="csr")
            return sparse.vstack([words, -words], format="csr")
        if hasattr(self.column, "categories"):
            return np.arange(len(self.column.categories))
        values = self.column.values_at(np.linspace(0.0, 1.0, _N_POSITIONS))
        return np.union1d(values, self.column.special_numbers)

    @cached_property
    def centre(self) -> float:
        return (self._encoded(self.public) @ self.coef).mean()

    @cached_property
    def noise_std(self) -> np.ndarray:
        """The standard deviation of the noise in the term of each of `public`; 0 if unknown."""
        rows = self._encoded(self.public)
        if self.noise is None:
            return np.zeros(rows.shape[0])
        if self.noise.ndim == 2:
            moved = rows @ self.noise
            return np.linalg.norm(moved - moved.mean(axis=0), axis=1)
        middle, variance = rows.mean(axis=0), self.noise**2
        total = rows**2 @ variance - rows @ (2 * middle * variance) + middle**2 @ variance
        return np.sqrt(np.maximum(total, 0.0))

    @property
    def rank(self) -> float:
        """The spread over `public`, over that of the noise if it is known."""
        noise = math.sqrt(np.mean(self.noise_std**2))
        return self.of(self.public).std() / (noise or 1.0)

    @property
    def exceptions(self) -> dict[str, float]:
        """The terms of values that are unknown or missing, if they have a code."""
        column, last, codes = self.column, len(self.column.encoded_names) - 1, {}
        if isinstance(column, CategoricalColumn):
            codes["unknown"] = (
                len(column.categories) if column.handle_unknown == "indicator" else -1
            )
        if column.missing == "indicator":
            codes["missing"] = np.nan if isinstance(column, Quantity) else last
        if isinstance(column, TextColumn):
            blocks = sparse.eye_array(last + 1, format="csr")
            return {name: self.of(blocks[[k]])[0] for name, k in codes.items()}
        return {name: self.of(np.array([k]))[0] for name, k in codes.items()}

    def _encoded(self, numbers: Any) -> Any:
        rows = encode([self.column], {self.column.name: numbers}, sparse_output=True)
        if self.parts is None or isinstance(self.column, TextColumn):
            return rows
        return sparse.hstack([rows, self.parts.of({self.name: numbers})], format="csr")


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
        publics = {name: Term(c, np.empty(0)).public for name, (c, _) in self.columns.items()}
        return {name: self._factors(name, public).mean(axis=0) for name, public in publics.items()}

    def _factors(self, name: str, numbers: Any) -> np.ndarray:
        column, own = self.columns[name]
        return self.features.factors(own, encode([column], {name: numbers}, sparse_output=True))

    def of(self, numbers: Mapping[str, Any]) -> np.ndarray:
        """Return the features (n, m), or (m,) of no columns; those not named are at their mean."""
        others = [mean for name, mean in self.means.items() if name not in numbers]
        own = [self._factors(*named) for named in numbers.items()]
        return self.features.of_factors(math.prod([*others, *own]))

    def rest(self, numbers: Mapping[str, Any]) -> np.ndarray:
        """Return what is left of these columns (n, m)."""
        constant = self.of({})
        singles = sum(self.of(dict([named])) - constant for named in numbers.items())
        return self.of(numbers) - singles - constant


@dataclass(frozen=True)
class InteractionTerm(Term):
    """The part of interactions in a score, beyond the terms of the columns."""

    columns: tuple[Column, ...] = ()
    features: Any = None
    centre = 0.0

    @property
    def name(self) -> str:
        # The brackets keep it apart from a column of that name.
        pair = " x ".join(column.name for column in self.columns)
        return pair if len(self.columns) == 2 else "(interactions)"

    def read(self, raw: Mapping[str, Any]) -> Any:
        return {column.name: column.numbers(raw[column.name]) for column in self.columns}

    @property
    def grid(self) -> list[np.ndarray]:
        """Values of each column from bound to bound, or its categories."""
        at = np.linspace(0.0, 1.0, _N_CELLS)
        return [
            np.arange(len(c.categories)) if hasattr(c, "categories") else c.values_at(at)
            for c in self.columns
        ]

    @property
    def public(self) -> Any:
        """All combinations of these values."""
        drawn = [values.ravel() for values in np.meshgrid(*self.grid, indexing="ij")]
        return {column.name: values for column, values in zip(self.columns, drawn, strict=True)}

    def _encoded(self, numbers: Any) -> Any:
        return self.parts.rest(numbers)[:, self.features]


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
    model, schema = _parts(estimator, schema)
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
    interactions = schema.interaction_features
    able = {name: at for name, at in blocks.items() if not isinstance(at[0], TextColumn)}
    parts = interactions and _Parts(interactions, able)
    n_own = len(coef) - schema.n_interactions

    def term(kind: Any, at: np.ndarray, *args: Any) -> Term:
        return kind(args[0], coef[at], None if noise is None else noise[at], parts, *args[1:])

    starts = {name: n_own if name in able else len(coef) for name in blocks}
    terms = [
        term(Term, np.r_[own, starts[name] : len(coef)], c) for name, (c, own) in blocks.items()
    ]
    intercept += sum(t.centre for t in terms)
    if parts:
        # Each column's term has it.
        intercept -= (len(able) - 1) * parts.of({}) @ coef[n_own:]
        for names, features in interactions.groups.items():
            columns = tuple(blocks[name][0] for name in names)
            at = n_own + np.array(features)
            terms.append(term(InteractionTerm, at, columns[0], columns, features))
    return score, intercept, terms


def _parts(estimator: Any, schema: Schema | None) -> tuple[Any, Schema]:
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
) -> dict[str, np.ndarray] | Any:
    """Return what each column of a table adds to the scores of some rows.

    Pairs of columns with interactions follow, as "age x income", with what they add beyond the
    terms of the columns. With the intercept all add up to the ``decision_function`` of the positive
    class. For a number they add up to the prediction before it is cut, in its units. With a log
    link they are factors, whose product is the prediction. Each term is zero on average over the
    values that the schema allows. The terms of a row are as private as the row.

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
        The columns of the schema, and "(intercept)"; without pandas a dictionary of arrays.

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
    raw = read_columns(rows, dict.fromkeys(term.column.name for term in terms))
    added = {term.name: term.of(term.read(raw)) for term in terms}
    # The brackets keep it apart from a column of that name.
    added["(intercept)"] = np.full(len(added[terms[0].column.name]), intercept)
    if isinstance(_parts(estimator, schema)[0], _WITH_LOG_LINK):
        added = {name: np.exp(values) for name, values in added.items()}
    try:
        import pandas as pd
    except ImportError:
        return added
    return pd.DataFrame(added, index=rows.index if isinstance(rows, pd.DataFrame) else None)


class ShapeDisplay(Display):
    """Contribution of each column of a table to the score of a class, or to a predicted number.

    Each term is zero on average over the values that the schema allows. Terms are sorted by their
    standard deviation over these, divided by that of their noise if it is known. Bands, of
    classifiers only, hold 95 percent of the noise, as of a quadratic loss. It costs no privacy.

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
            Columns to draw; by default all, or the first 60.
        pos_label : label, optional
            As in `explain_local`.
        """
        score, _, terms = terms_of(estimator, schema, pos_label)
        terms = [term for term in terms if not isinstance(term, InteractionTerm)]
        known = [term.column.name for term in terms]
        chosen = known if columns is None else [as_listed(name, known) for name in columns]
        if not chosen or not set(chosen) <= set(known):
            raise ValueError(f"columns={chosen!r} must be some of {known}.")
        drawn = sorted((t for t in terms if t.column.name in chosen), key=lambda t: -t.rank)
        kept = drawn[:_MOST_SHAPES] if columns is None else drawn
        n_columns, n_left_out = min(len(kept), 3), len(drawn) - len(kept)
        added = [x for t in kept for x in (0.0, *t.of(t.public), *t.exceptions.values())]
        # Bands may be cut, but not the terms.
        half = max(0.0, *(Z * term.noise_std.max() for term in kept))
        margin = min(half, (max(added) - min(added)) / 4) or 0.05
        limits = min(added) - margin, max(added) + margin
        # The first panel of each row has the label of all.
        labels = ["" if k % n_columns else "added" for k in range(len(kept))]
        panels = [
            partial(_draw, term=term, limits=limits, label=label)
            for term, label in zip(kept, labels, strict=True)
        ]
        order = "order: the spread over it"
        if all(term.noise_std.any() for term in kept):
            order = "order: the spread over the noise"
        title = (
            f"what each column adds to the {score}\n"
            f"zero: the mean over all that the schema allows; {order}"
        )
        return cls(
            f"{title}; {n_left_out} more columns" if n_left_out else title,
            (max(6.8, 4.2 * n_columns), 3.0 * math.ceil(len(kept) / n_columns) + 0.8),
            panels,
            n_columns,
            legend=[_BAND["label"], _MISSING["label"]],
            share_y=True,
        )


class InteractionDisplay(Display):
    """Heat maps of pairs of columns: their part in a score, beyond the terms of the columns.

    A surface is zero on average over either column. Pairs are sorted by their standard deviation
    over what is drawn, divided by that of the noise if it is known. Make it with `from_estimator`,
    draw it with ``plot``. Missing and special values are not drawn. It costs no privacy.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> from dpglm.study import InteractionDisplay
    >>> pairs = [("age", "hours"), ("age", "education")]
    >>> encoder = load_schema("census").transformer(interactions=pairs)
    >>> X, y = make_census(2000, random_state=0, as_frame=True)
    >>> model = make_pipeline(encoder, DPLogisticRegression(classes=[0, 1])).fit(X, y)
    >>> len(InteractionDisplay.from_estimator(model).plot().axes_)
    2
    """

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        schema: Schema | None = None,
        *,
        pos_label: Any = None,
    ) -> Self:
        """Prepare the figure of a fitted linear model with interactions of pairs.

        Parameters
        ----------
        estimator : Pipeline or linear model
        schema : Schema, optional
        pos_label : label, optional
            As in `ShapeDisplay`.
        """
        score, _, terms = terms_of(estimator, schema, pos_label)
        found = [t for t in terms if isinstance(t, InteractionTerm) and len(t.columns) == 2]
        if not found:
            raise ValueError("This model has no interactions of pairs: see Schema.transformer.")
        kept = sorted(found, key=lambda term: -term.rank)[:_MOST_SHAPES]
        limit = max(float(np.abs(term.of(term.public)).max()) for term in kept)
        panels = [partial(_draw_surface, term=term, limit=limit) for term in kept]
        n_columns = min(len(kept), 3)
        size = max(6.8, 4.2 * n_columns), 3.4 * math.ceil(len(kept) / n_columns) + 0.8
        title = f"what pairs of columns add to the {score}"
        return cls(title, size, panels, n_columns)


def _draw_surface(axes: Any, term: InteractionTerm, limit: float) -> None:
    shape = [len(values) for values in term.grid]
    added = term.of(term.public).reshape(shape)
    image = axes.pcolormesh(added.T, cmap="PuOr_r", vmin=-limit, vmax=limit, rasterized=True)
    axes.figure.colorbar(image, ax=axes)
    noise = math.sqrt(np.mean(term.noise_std**2))
    axes.set(
        title=f"spread {added.std():.2g}" + f", noise {noise:.2g}" * bool(noise),
        xlabel=term.columns[0].name,
        ylabel=term.columns[1].name,
    )
    for axis, column, values in zip((axes.xaxis, axes.yaxis), term.columns, term.grid, strict=True):
        places, names = _marks(column, values)
        axis.set_ticks(places, names)
    axes.tick_params("x", rotation=20)
    axes.set_axisbelow(True)  # the grid


def _marks(column: Column, values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return where the axis of a heat map has marks, in cells, and their names."""
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MOST_MARKS)).astype(int))
    if hasattr(column, "categories"):
        names = [_short(str(column.categories[k])) for k in places]
    elif isinstance(column, DateColumn):
        names = [str(day) for day in values[places].astype("datetime64[D]")]
    else:
        names = [_short_number(float(f"{value:.3g}")) for value in values[places]]
    return places + 0.5, names


def _draw(axes: Any, term: Term, limits: tuple[float, float], label: str) -> None:
    axes.axhline(0.0, color="0.6", linewidth=1)
    draw = _draw_bars if isinstance(term.column, CategoricalColumn) else _draw_line
    draw(axes, term)
    axes.set(title=term.column.name, ylabel=label, ylim=limits)


def _draw_line(axes: Any, term: Term) -> None:
    column, x, added, style = term.column, term.public, term.of(term.public), {}
    half = Z * term.noise_std
    special = np.zeros(len(added), dtype=bool)
    if isinstance(column, Quantity):
        special = np.isin(x, column.special_numbers)
    if isinstance(column, TextColumn):
        order, style = np.argsort(added), {"marker": "."}
        x, added, half = np.arange(len(added)), added[order], half[order]
        axes.set(xlabel=f"single words, in {column.n_features} buckets, of either sign", xticks=[])
    elif isinstance(column, DateColumn):
        # Seconds, as a position between bounds may be within a day.
        x = (86_400 * x).astype("datetime64[s]")
    elif isinstance(column, NumericColumn):
        if column.scale == "asinh":
            # Ticks of one digit at about equal distances; matplotlib's own overlap near zero.
            ticks = {float(f"{value:.1g}") for value in column.values_at(np.linspace(0.0, 1.0, 6))}
            axes.set_xscale("asinh", linear_width=column.linear_width)
            axes.set_xticks(sorted(ticks))
            axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda x, _: _short_number(x))
    else:
        style = {"marker": "o", "linestyle": ":"}
        _name_ticks(axes, [str(value) for value in column.categories])
    # The term of a special value has nothing to do with those of its neighbours.
    axes.plot(x[~special], added[~special], **style)
    axes.plot(x[special], added[special], "o", color="C0")
    if half.any():
        axes.fill_between(x, added - half, added + half, where=~special, **_BAND)
        axes.errorbar(x[special], added[special], half[special], fmt="none", capsize=3)
    if isinstance(column, DateColumn):
        dates = require("matplotlib.dates", "plot", "Plotting")
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
    for value in term.exceptions.values():
        axes.axhline(value, **_MISSING)


def _draw_bars(axes: Any, term: Term) -> None:
    names, added = [*map(str, term.column.categories)], term.of(term.public)
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
    _name_ticks(axes, names)


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:10]}…{name[-7:]}"


def _short_number(value: float) -> str:
    large = require("matplotlib.ticker", "plot", "Plotting").EngFormatter(sep="")
    return f"{value:g}" if abs(value) < 10_000 else large(value)


def _name_ticks(axes: Any, names: Sequence[str]) -> None:
    """Label the ticks 0, 1, ..., upright if the names would not fit side by side."""
    short = [*map(_short, names)]
    is_upright = sum(map(len, short)) + 2 * len(short) > 36
    axes.set_xticks(range(len(short)), short, rotation=90 if is_upright else 0)
    axes.set_xlim(-0.6, len(short) - 0.4)
