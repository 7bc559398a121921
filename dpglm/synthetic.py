"""Artificial tables of a given shape, from a schema alone."""

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax
from sklearn.utils import check_random_state

from dpglm.census import encoded_codes
from dpglm.schema import Schema

__all__ = ["sample_from_schema"]

_N_STRATA = 5


def sample_from_schema(
    schema: Schema,
    n_samples: int,
    *,
    signal: float = 2.0,
    class_shares: Sequence[float] | None = None,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an artificial table that has the schema's columns and nothing else of the real one.

    Made from public facts alone, it stands in for private records where a setting has to be tried
    out: see `dpglm.utility_graph.UtilityGraph`.

    Parameters
    ----------
    schema : Schema
        Bounds, categories and labels.
    n_samples : int
        Number of rows.
    signal : float, default=2.0
        Standard deviation of the log-odds: how well the labels can be told. With two equally
        frequent labels, the best accuracy is about .67 at 1, .77 at 2 and .87 at 4.
    class_shares : sequence of float, optional
        Expected share of each label, in the order of ``schema.classes``; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the population and the rows: each seed is another population.

    Returns
    -------
    X : ndarray of shape (n_samples, n_columns)
        Encoded as by ``schema.transformer()``.
    y : ndarray of shape (n_samples,)
        Labels of the schema.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    A mixture of five strata, so that columns are correlated. Within each, frequencies of
    categories fall steeply, as they do in real tables, and numbers are Beta distributed between
    their bounds. The labels follow a multinomial logistic model with coefficients drawn from a
    normal distribution, scaled to `signal` and shifted to `class_shares`.

    Examples
    --------
    >>> from dpglm.schema import load_schema
    >>> from dpglm.synthetic import sample_from_schema
    >>> X, y = sample_from_schema(
    ...     load_schema("bank"), 2000, class_shares=[0.9, 0.1], random_state=0
    ... )
    >>> X.shape, y.shape
    ((2000, 51), (2000,))
    """
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples!r}; ask for at least one row.")
    if not 0 <= signal < np.inf:
        raise ValueError(f"signal={signal!r} must be a finite number, 0 or above.")
    shares = _checked_shares(class_shares, len(schema.classes))
    rng = check_random_state(random_state)
    stratum = rng.choice(_N_STRATA, size=n_samples, p=rng.dirichlet(np.full(_N_STRATA, 3.0)))
    numeric = {}
    for column in schema.numeric:
        mean = np.clip(rng.beta(1.0, 2.0) + 0.08 * rng.standard_normal(_N_STRATA), 0.02, 0.98)
        concentration = 2.0 + rng.exponential(8.0)
        unit = rng.beta((mean * concentration)[stratum], ((1 - mean) * concentration)[stratum])
        numeric[column.name] = column.lower + unit * (column.upper - column.lower)
    codes = [_categories(len(column.categories), stratum, rng) for column in schema.categorical]
    X = encoded_codes(schema, numeric, codes)
    y = schema.classes[_labels(X, signal, shares, rng)]
    return X, y


def _categories(n_categories: int, stratum: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    order = 1.0 + rng.permutation(n_categories)
    weight = np.exp(0.7 * rng.standard_normal((_N_STRATA, n_categories))) / order**1.5
    bounds = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)[stratum, :-1]
    return (rng.random_sample((len(stratum), 1)) > bounds).sum(axis=1)


def _labels(
    X: np.ndarray, signal: float, shares: np.ndarray, rng: np.random.RandomState
) -> np.ndarray:
    """Return the number of each row's class."""
    n_classes = len(shares)
    scores = X @ rng.standard_normal((X.shape[1], n_classes))
    # Log-odds are differences of two scores.
    odds = scores - scores[:, [0]]
    spread = odds[:, 1:].std(axis=0).mean()
    scores *= signal / spread if spread > 0 else 0.0
    scores -= scores.mean(axis=0)
    shift = np.log(shares)
    for _ in range(100):
        shift += np.log(shares / softmax(scores + shift, axis=1).mean(axis=0))
    bounds = np.cumsum(softmax(scores + shift, axis=1), axis=1)[:, :-1]
    return (rng.random_sample((len(X), 1)) > bounds).sum(axis=1)


def _checked_shares(class_shares: Sequence[float] | None, n_classes: int) -> np.ndarray:
    if class_shares is None:
        return np.full(n_classes, 1 / n_classes)
    shares = np.array(class_shares, dtype=float)
    if shares.shape != (n_classes,) or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-9:
        raise ValueError(
            f"class_shares={class_shares!r} must be {n_classes} positive numbers that sum to 1, "
            "one for each label of the schema."
        )
    return shares
