"""An artificial census: one-hot, ill-conditioned, offline, with a known logistic optimum."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.utils import check_random_state

from dpglm.schema import CategoricalColumn, PublicBoundsScaler, Schema, load_schema

__all__ = ["encoded_codes", "import_pandas", "make_census"]

_STRATUM_SHARES = (0.30, 0.25, 0.18, 0.12, 0.10, 0.05)
_STRATUM_AGES = np.array([38.0, 28.0, 45.0, 52.0, 33.0, 66.0])
_STRATUM_HOURS = np.array([40.0, 32.0, 45.0, 42.0, 38.0, 20.0])
# Years of schooling of each category of "education", in the schema's order.
_SCHOOLING = np.array([12, 13, 16, 14, 18, 13, 11, 10, 9, 12, 8, 19, 20, 6, 4, 0], dtype=float)
_NUMERIC_COEF = np.array([2.0, 3.0, 3.0, 0.0, 20.0, 3.0])
_INTERCEPT = -5.18


def make_census(
    n_samples: int = 48842,
    *,
    random_state: int | np.random.RandomState | None = None,
    coef: bool = False,
    as_frame: bool = False,
) -> tuple[Any, ...]:
    """Draw an artificial census whose logistic optimum is known.

    The population is fixed: six strata, each with its own frequencies for 8 categorical columns
    (skewed, with rare categories) and its own location for some of 6 numeric ones, top-coded at
    the schema's bounds. It needs no files, no network and, unless ``as_frame=True``, no pandas.

    Parameters
    ----------
    n_samples : int, default=48842
        Number of rows; the default is the size of Adult.
    random_state : int, RandomState instance or None, default=None
        Seed of the rows and labels, not of the population.
    coef : bool, default=False
        Also return the population optimum.
    as_frame : bool, default=False
        Return the raw columns as a DataFrame and the labels as a Series.

    Returns
    -------
    X : ndarray of shape (n_samples, 99), or DataFrame of shape (n_samples, 14)
        The rows, encoded as ``load_schema("census").transformer()`` encodes the raw frame, or raw.
    y : ndarray of shape (n_samples,), or Series
        Labels 0 and 1.
    coef : ndarray of shape (100,)
        The optimum, intercept last; only if ``coef=True``.

    Raises
    ------
    ValueError
        If ``n_samples`` is below 1.

    Notes
    -----
    ``P(y = 1 | x) = 1 / (1 + exp(-(x @ w + b)))`` for the encoded row ``x``, so that ``(w, b)``
    minimises the expected logistic loss. Adding a constant to one categorical block of ``w`` and
    taking it from ``b`` changes nothing; the returned ``w`` sums to zero in every block, which is
    the minimiser of smallest norm and so the limit of a vanishing L2 penalty.

    Modelled on Adult in size, shape and difficulty: .24 of the labels are 1, the optimum has
    accuracy .85 and loss .33, and the second moment of the encoded rows has condition number
    4e4 on its range.

    Examples
    --------
    >>> from dpglm.datasets import make_census
    >>> X, y, coef = make_census(1000, random_state=0, coef=True)
    >>> X.shape, y.shape, coef.shape
    ((1000, 99), (1000,), (100,))
    """
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}; ask for at least one row.")
    schema = load_schema("census")
    rng = check_random_state(random_state)
    frequencies, w = _population(schema.categorical)

    stratum = rng.choice(len(_STRATUM_SHARES), size=n_samples, p=_STRATUM_SHARES)
    codes = [
        (rng.random_sample((n_samples, 1)) > np.cumsum(table, axis=1)[stratum, :-1]).sum(axis=1)
        for table in frequencies
    ]
    education = codes[[c.name for c in schema.categorical].index("education")]
    gain = np.exp(8.8 + rng.standard_normal(n_samples)) * (rng.random_sample(n_samples) < 0.08)
    loss = rng.normal(1900.0, 350.0, n_samples) * (rng.random_sample(n_samples) < 0.05)
    drawn = {
        "age": rng.normal(_STRATUM_AGES[stratum], 11.0).round(),
        "schooling": rng.normal(_SCHOOLING[education], 0.5),
        "hours": rng.normal(_STRATUM_HOURS[stratum], 10.0).round(),
        "commute": rng.exponential(25.0, n_samples).round(),
        "capital_gain": gain.round(),
        "capital_loss": loss.round(),
    }
    numeric = {c.name: np.clip(drawn[c.name], c.lower, c.upper) for c in schema.numeric}
    X: Any = encoded_codes(schema, numeric, codes)
    y: Any = (rng.random_sample(n_samples) < expit(X @ w + _INTERCEPT)).astype(np.int64)
    if as_frame:
        pd = import_pandas()
        categorical = {
            column.name: pd.Categorical.from_codes(code, categories=list(column.categories))
            for column, code in zip(schema.categorical, codes, strict=True)
        }
        X = pd.DataFrame({**numeric, **categorical})
        y = pd.Series(y, name=schema.target.name)
    return (X, y, np.append(w, _INTERCEPT)) if coef else (X, y)


def _population(
    columns: Sequence[CategoricalColumn],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return each column's frequencies, one row per stratum, and the coefficients."""
    # RandomState, unlike Generator, promises the same stream in every release of numpy.
    constants = np.random.RandomState(1994)
    frequencies, blocks = [], [_NUMERIC_COEF]
    for column in columns:
        n_categories = len(column.categories)
        strata = constants.standard_normal((len(_STRATUM_SHARES), n_categories))
        weight = np.exp(0.9 * strata) / np.arange(1, n_categories + 1) ** 2.4
        frequencies.append(weight / weight.sum(axis=1, keepdims=True))
        block = 0.9 * constants.standard_normal(n_categories)
        blocks.append(block - block.mean())
    return frequencies, np.concatenate(blocks)


def encoded_codes(
    schema: Schema, numeric: Mapping[str, np.ndarray], codes: Sequence[np.ndarray]
) -> np.ndarray:
    """Return what the schema's transformer returns for the raw frame.

    Parameters
    ----------
    schema : Schema
    numeric : mapping from str to ndarray of shape (n_samples,)
        The numeric columns, in the schema's order.
    codes : sequence of integer ndarrays of shape (n_samples,)
        For each categorical column the number of the category.

    Returns
    -------
    ndarray of shape (n_samples, n_encoded_columns)

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm.census import encoded_codes
    >>> from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target
    >>> columns = [NumericColumn("age", 0, 100), CategoricalColumn("housing", ["yes", "no"])]
    >>> schema = Schema("people", columns, Target("income", ["low", "high"]))
    >>> encoded_codes(schema, {"age": np.array([25.0, 50.0])}, [np.array([1, 0])])
    array([[0.25, 0.  , 1.  ],
           [0.5 , 1.  , 0.  ]])
    """
    sizes = [len(c.categories) for c in schema.categorical]
    n_samples = len(next(iter([*numeric.values(), *codes])))
    n_numeric = len(schema.numeric)
    X = np.zeros((n_samples, n_numeric + sum(sizes)))
    if schema.numeric:
        scaler = PublicBoundsScaler(
            [c.lower for c in schema.numeric], [c.upper for c in schema.numeric]
        )
        X[:, :n_numeric] = scaler.fit_transform(np.column_stack([*numeric.values()]))
    offsets = n_numeric + np.cumsum([0, *sizes])
    for code, offset in zip(codes, offsets[:-1], strict=True):
        X[np.arange(n_samples), code + offset] = 1.0
    return X


def import_pandas() -> Any:
    """Return pandas, or raise an ImportError that names the extra."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            'raw tables are pandas frames and pandas is not installed; pip install "dpglm[data]".'
        ) from error
    return pandas
