"""A linear model of encoded rows, as what each column of the table adds to its score."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dpglm.schema.columns import CategoricalColumn, Column, Quantity, TextColumn
from dpglm.schema.encoder import SchemaEncoder, blocks_of, encode
from dpglm.schema.table import Schema
from dpglm.schema.values import read_columns

# From bound to bound; all edges of a term are among them.
_N_POSITIONS = 257


@dataclass(frozen=True)
class Term:
    """The term of one column in a score: a function of its values, of mean zero over `public`."""

    column: Column
    coef: np.ndarray

    def of(self, numbers: Any) -> np.ndarray:
        """Return what is added for each of what ``column.numbers`` returns, (n,)."""
        return self._product(numbers) - self.centre

    @cached_property
    def public(self) -> Any:
        """The values that the schema allows: all that are listed, special, or from bound to bound.

        For free text these are single words: one of each bucket, with either sign of the hash.
        """
        if isinstance(self.column, TextColumn):
            words = sparse.eye_array(self.column.n_features, len(self.coef), format="csr")
            return sparse.vstack([words, -words], format="csr")
        if hasattr(self.column, "categories"):
            return np.arange(len(self.column.categories))
        values = self.column.values_at(np.linspace(0.0, 1.0, _N_POSITIONS))
        return np.union1d(values, self.column.special_numbers)

    @cached_property
    def centre(self) -> float:
        return self._product(self.public).mean()

    @property
    def spread(self) -> float:
        """The standard deviation over `public`, by which columns are ranked."""
        return self.of(self.public).std()

    @property
    def exceptions(self) -> dict[str, float]:
        """The terms of values that are unknown or missing, if they have a code."""
        column, last, codes = self.column, len(self.coef) - 1, {}
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

    def _product(self, numbers: Any) -> np.ndarray:
        return encode([self.column], {self.column.name: numbers}, sparse_output=True) @ self.coef


def terms_of(
    estimator: Any, schema: Schema | None = None, class_: Any = None
) -> tuple[str, float, list[Term]]:
    """Return the name of a score, its value where all columns add zero, and their terms."""
    model, schema = _parts(estimator, schema)
    class_, (*coef, intercept) = _score(model, class_)
    blocks = blocks_of(schema, len(coef), getattr(model, "feature_names_in_", None))
    terms = [Term(column, np.array(coef[place])) for column, place in blocks.values()]
    intercept += sum(term.centre for term in terms)
    return f"{schema.target.name} = {class_}", intercept, terms


def _parts(estimator: Any, schema: Schema | None) -> tuple[Any, Schema]:
    """Return a fitted linear model and the schema that encodes its rows."""
    steps = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else []
    if schema is None and len(steps) == 2 and isinstance(steps[0], SchemaEncoder):
        schema, estimator = steps[0].schema, steps[1]
    elif schema is None or steps:
        raise ValueError(
            f"{estimator!r} does not say how its rows were encoded; give a pipeline of "
            "schema.transformer() and a model, or a model and schema=."
        )
    check_is_fitted(estimator)
    return estimator, schema


def _score(model: Any, class_: Any) -> tuple[Any, np.ndarray]:
    """Return a class, and the coefficients of its score with the intercept as the last."""
    classes, coef = model.classes_.tolist(), np.atleast_2d(model.coef_)
    if class_ is None and len(classes) == 2:
        class_ = classes[1]
    if class_ not in classes:
        raise ValueError(f"class_={class_!r} must be one of {classes}.")
    weights = np.column_stack([coef, np.broadcast_to(model.intercept_, len(coef))])
    weights = np.vstack([-weights, weights]) if len(weights) == 1 else weights
    return class_, weights[classes.index(class_)]


def explain_local(
    estimator: Any, rows: Any, schema: Schema | None = None, *, class_: Any = None
) -> dict[str, np.ndarray] | Any:
    """Return what each column of a table adds to the scores of some rows.

    The terms of a row, with that of the intercept, add up to its ``decision_function``. They are
    the values of the lines and bars of a `ShapeDisplay`.

    Parameters
    ----------
    estimator : Pipeline or linear classifier
        ``make_pipeline(schema.transformer(), model)``, fitted, or the model alone.
    rows : data frame in memory or dictionary of arrays
        One raw row is ``frame.iloc[[0]]``.
    schema : Schema, optional
        Needed for a model alone.
    class_ : label, optional
        Class of the score; needed for more than two. With two, by default the second.

    Returns
    -------
    DataFrame of shape (n_samples, n_columns + 1)
        The columns of the schema, and "(intercept)"; without pandas a dictionary of arrays.

    Raises
    ------
    ValueError
        If the model was not fitted to rows that the schema encodes, or the class is unknown.

    Notes
    -----
    Each term is zero on average over the values that the schema allows in its column, all of which
    count alike. These are the listed categories, or 257 values at equal distances from bound to
    bound, on the scale of the column. The intercept holds the means of the terms.

    The model was released and can be shown; the terms of a row are as private as the row.
    An estimator that clips rows to a bound (some baselines do) scores those otherwise.

    Examples
    --------
    >>> from dpglm import DPLogisticRegression, Schema
    >>> from dpglm.schema import BooleanColumn, NumericColumn, Target
    >>> columns = [NumericColumn("age", 0, 100), BooleanColumn("member")]
    >>> schema = Schema("people", columns, Target("paid", ["no", "yes"]))
    >>> people = {"age": list(range(100)), "member": [True, False] * 50}
    >>> model = DPLogisticRegression(epsilon=5.0, classes=schema.classes)
    >>> model = model.fit(schema.transformer().fit_transform(people), ["no", "yes"] * 50)
    >>> terms = explain_local(model, {"age": [50, 20], "member": [True, False]}, schema)
    >>> terms.columns.tolist(), terms.shape
    (['age', 'member', '(intercept)'], (2, 3))
    """
    _, intercept, terms = terms_of(estimator, schema, class_)
    raw = read_columns(rows, [term.column.name for term in terms])
    added = {t.column.name: t.of(t.column.numbers(raw[t.column.name])) for t in terms}
    # The brackets keep it apart from a column of that name.
    added["(intercept)"] = np.full(len(added[terms[0].column.name]), intercept)
    try:
        import pandas as pd
    except ImportError:
        return added
    return pd.DataFrame(added, index=rows.index if isinstance(rows, pd.DataFrame) else None)
