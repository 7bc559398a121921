"""Data sets: fetched, or made up from a schema."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logsumexp, softmax
from sklearn.utils import Bunch, check_random_state

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.exceptions import advising, require
from dpglm.schema import Schema, load_schema
from dpglm.schema.columns import CategoricalColumn, Column, DateColumn, NumericColumn, TextColumn
from dpglm.schema.encoder import encode, encode_all
from dpglm.schema.table import plain_path
from dpglm.sources.csv import read_texts

__all__ = ["fetch_table", "make_census", "sample_from_schema"]

_STRATUM_SHARES = (0.30, 0.25, 0.18, 0.12, 0.10, 0.05)
_STRATUM_AGES = np.array([38.0, 28.0, 45.0, 52.0, 33.0, 66.0])
_STRATUM_HOURS = np.array([40.0, 32.0, 45.0, 42.0, 38.0, 20.0])
# Years of schooling of each category of "education", in the schema's order.
_SCHOOLING = np.array([12, 13, 16, 14, 18, 13, 11, 10, 9, 12, 8, 19, 20, 6, 4, 0], dtype=float)
_NUMERIC_COEF = np.array([2.0, 3.0, 3.0, 0.0, 20.0, 3.0])
_INTERCEPT = -5.18


@advising
def make_census(
    n_samples: int = 48842,
    *,
    random_state: int | np.random.RandomState | None = None,
    coef: bool = False,
    as_frame: bool = False,
) -> tuple[Any, ...]:
    """Draw an artificial census whose logistic optimum is known.

    The population is fixed: six strata of 8 categorical and 6 numeric columns. No files are needed.
    ``P(y = 1 | x) = 1 / (1 + exp(-(x @ w + b)))`` for the encoded row ``x``. 24 % of the labels are
    positive, and the optimum has accuracy 0.85 and loss 0.33.

    Parameters
    ----------
    n_samples : int, default=48842
    random_state : int, RandomState instance or None, default=None
    coef, as_frame : bool, default=False
        Also return the optimum; return raw columns as a DataFrame.

    Returns
    -------
    X : ndarray of shape (n_samples, 99), or DataFrame of shape (n_samples, 14)
        Encoded as ``load_schema("census").additive(1)`` encodes the raw frame, or raw.
    y : ndarray of shape (n_samples,), or Series
    coef : ndarray of shape (100,)
        The optimum, intercept last; only if ``coef=True``.

    Examples
    --------
    >>> X, y, coef = make_census(1000, random_state=0, coef=True)
    >>> X.shape, y.shape, coef.shape
    ((1000, 99), (1000,), (100,))
    """
    n_samples = check_whole("n_samples", n_samples)
    schema = load_schema("census")
    rng = check_random_state(random_state)
    # RandomState, unlike Generator, promises the same stream in every release of numpy.
    constants = np.random.RandomState(1994)
    stratum = rng.choice(len(_STRATUM_SHARES), size=n_samples, p=_STRATUM_SHARES)
    codes, blocks = {}, [_NUMERIC_COEF]
    for column in schema.categorical:
        n_categories = len(column.categories)
        strata = constants.standard_normal((len(_STRATUM_SHARES), n_categories))
        weight = np.exp(0.9 * strata) / np.arange(1, n_categories + 1) ** 2.4
        shares = weight / weight.sum(axis=1, keepdims=True)
        codes[column.name] = draw_rows(shares[stratum], rng)
        block = 0.9 * constants.standard_normal(n_categories)
        blocks.append(block - block.mean())
    w = np.concatenate(blocks)
    gain = np.exp(8.8 + rng.standard_normal(n_samples)) * (rng.random_sample(n_samples) < 0.08)
    loss = rng.normal(1900.0, 350.0, n_samples) * (rng.random_sample(n_samples) < 0.05)
    drawn = {
        "age": rng.normal(_STRATUM_AGES[stratum], 11.0).round(),
        "schooling": rng.normal(_SCHOOLING[codes["education"]], 0.5),
        "hours": rng.normal(_STRATUM_HOURS[stratum], 10.0).round(),
        "commute": rng.exponential(25.0, n_samples).round(),
        "capital_gain": gain.round(),
        "capital_loss": loss.round(),
    }
    numeric = {c.name: np.clip(drawn[c.name], c.lower, c.upper) for c in schema.numeric}
    X: Any = encode(schema.additive(1).encoded_columns, {**numeric, **codes})
    y: Any = (rng.random_sample(n_samples) < expit(X @ w + _INTERCEPT)).astype(np.int64)
    if as_frame:
        pd = _pandas()
        categorical = {
            c.name: pd.Categorical.from_codes(codes[c.name], categories=list(c.categories))
            for c in schema.categorical
        }
        X = pd.DataFrame({**numeric, **categorical})
        y = pd.Series(y, name=schema.target.name)
    return (X, y, np.append(w, _INTERCEPT)) if coef else (X, y)


def draw_rows(shares: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return a number for each row, drawn by the shares in it."""
    return (rng.random_sample((len(shares), 1)) > np.cumsum(shares, axis=1)[:, :-1]).sum(axis=1)


def _pandas() -> Any:
    return require("pandas", "data", "a raw table")


def fetch_table(name: str, data_home: str | os.PathLike[str] | None = None) -> Bunch:
    """Load a public table: UCI Adult, UCI Bank Marketing, or a tenth of KDD Cup 1999.

    Parameters
    ----------
    name : {"adult", "bank", "kddcup99"}
    data_home : path-like, default=None
        Folder with ``adult.data`` and ``adult.test``, ``bank-full.csv`` or
        ``kddcup.data_10_percent.gz``; else that of the environment variable ``DPGLM_DATA``; else
        scikit-learn downloads the table, with `data_home` as its cache.

    Returns
    -------
    Bunch
        ``data``, a DataFrame of float64 and categoricals; ``target``, a Series; ``schema``.

    Raises
    ------
    FileNotFoundError
        If the data are in neither folder and cannot be downloaded.

    Notes
    -----
    From the UCI Machine Learning Repository, CC BY 4.0; each schema has its source. Adult lacks the
    survey weight ``fnlwgt``. The duration of a call in Bank is known only once its outcome is. The
    defaults of the estimators were chosen with a look at Adult and Bank: for them a ledger's
    assumption of none is false.

    Examples
    --------
    >>> adult = fetch_table("adult")  # doctest: +SKIP
    >>> adult.schema.transformer().fit_transform(adult.data).shape  # doctest: +SKIP
    (48842, 122)
    """
    check_choice("name", name, _TABLES)
    schema = load_schema(name)
    names = [*schema.feature_names, schema.target.name]
    if name == "adult":
        # A column of the table but not of the schema, whose source says why.
        names.insert(2, "fnlwgt")
    frame = _found(name, names, data_home)
    categories = {column.name: column.categories for column in schema.categorical}
    categories[schema.target.name] = schema.target.labels
    typed = {}
    for column in names:
        if column not in frame:
            raise ValueError(f"column {column!r} of {name} is missing; check the source.")
        if column not in categories:
            typed[column] = frame[column].to_numpy(dtype=np.float64)
            continue
        unlisted = [v for v in frame[column].unique() if v not in categories[column]]
        if unlisted:
            raise ValueError(
                f"column {column!r} holds {unlisted[0]!r}, which its data dictionary does not "
                "list; check the source of the table."
            )
        typed[column] = _pandas().Categorical(frame[column], categories=[*categories[column]])
    data = _pandas().DataFrame(typed)
    return Bunch(target=data.pop(schema.target.name), data=data, schema=schema)


def _read_adult(folder: Path, names: list[str]) -> Any:
    # A line of adult.test starts with a bar, and its labels end with a full stop.
    options = {"header": None, "names": names, "keep_default_na": False}
    options |= {"skipinitialspace": True, "comment": "|"}
    parts = [_pandas().read_csv(folder / file, **options) for file in _TABLES["adult"][0]]
    frame = _pandas().concat(parts, ignore_index=True)
    return frame.assign(income=frame["income"].str.rstrip("."))


def _download_adult(data_home: Path | None, names: list[str]) -> Any:
    # Imported where it is used: with it `import dpglm` takes a tenth longer.
    fetch = import_module("sklearn.datasets").fetch_openml
    bunch = fetch(data_id=1590, as_frame=True, data_home=data_home)
    texts = bunch.data.select_dtypes(exclude="number").astype(object)
    return bunch.data.assign(**texts.fillna("?"), income=bunch.target)


def _download_bank(data_home: Path | None, names: list[str]) -> Any:
    # OpenML numbers the columns V1 to V16 in UCI's order, and the labels from 1.
    fetch = import_module("sklearn.datasets").fetch_openml
    bunch = fetch(data_id=1461, as_frame=True, data_home=data_home)
    columns = {f"V{i}": name for i, name in enumerate(names[:-1], start=1)}
    labels = bunch.target.astype(str).map({"1": "no", "2": "yes"})
    return bunch.data.rename(columns=columns).assign(y=labels)


def _read_kddcup99(folder: Path, names: list[str]) -> Any:
    file = folder / _TABLES["kddcup99"][0][0]
    frame = _pandas().read_csv(file, names=names, keep_default_na=False)
    return frame.assign(label=np.where(frame["label"] == "normal.", "normal", "attack"))


def _download_kddcup99(data_home: Path | None, names: list[str]) -> Any:
    fetch = import_module("sklearn.datasets").fetch_kddcup99
    bunch = fetch(as_frame=True, data_home=data_home)
    texts = {n: bunch.data[n].str.decode("ascii") for n in ("protocol_type", "service", "flag")}
    label = np.where(bunch.target == b"normal.", "normal", "attack")
    return bunch.data.assign(**texts, label=label)


# Files of a table, and how to read or download its columns.
_TABLES: dict[str, tuple] = {
    "adult": (("adult.data", "adult.test"), _read_adult, _download_adult),
    "bank": (
        ("bank-full.csv",), lambda folder, _: read_texts(folder / "bank-full.csv"), _download_bank,
    ),
    "kddcup99": (("kddcup.data_10_percent.gz",), _read_kddcup99, _download_kddcup99),
}  # fmt: skip


def _found(name: str, names: list[str], data_home: str | os.PathLike[str] | None) -> Any:
    """Read the files from the first folder that has them, or else download the table."""
    _pandas()
    files, read, download = _TABLES[name]
    folders = {"data_home": data_home, "DPGLM_DATA": os.environ.get("DPGLM_DATA")}
    folders = {k: plain_path(f, folder=True) for k, f in folders.items() if f is not None}
    for folder in folders.values():
        if all((folder / file).is_file() for file in files):
            return read(folder, names)
    try:
        return download(folders.get("data_home"), names)
    except OSError as error:
        where = {key: str(folder) for key, folder in folders.items()} or "any folder"
        raise FileNotFoundError(
            f"{' and '.join(files)} not found in {where}, and not downloaded ({error}); put the "
            "data into a folder and pass it as data_home, or set DPGLM_DATA to it."
        ) from error


_N_STRATA = 5


def sample_from_schema(
    schema: Schema,
    n_samples: int,
    *,
    signal: float = 2.0,
    class_shares: Sequence[float] | None = None,
    random_state: int | np.random.RandomState | None = None,
    as_frame: bool = False,
) -> tuple[Any, Any]:
    """Draw an artificial table that has the schema's columns and nothing else of the real one.

    Columns are correlated by five strata. The labels follow a multinomial logistic model, scaled to
    `signal` and shifted to `class_shares`, of straight lines unless the schema says otherwise.

    Parameters
    ----------
    schema : Schema
    n_samples : int
    signal : float, default=2.0
        Standard deviation of the log-odds: of two labels the best accuracy is 0.67 at 1, 0.87 at 4.
    class_shares : sequence of float, optional
        Expected share of each label, in the order of ``schema.classes``; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the population and the rows.
    as_frame : bool, default=False
        Return raw columns as a DataFrame, with pandas, and labels as a Series.

    Returns
    -------
    X : ndarray of shape (n_samples, n_columns), or DataFrame of raw columns
    y : ndarray of shape (n_samples,), or Series

    Examples
    --------
    >>> X, y = sample_from_schema(load_schema("bank"), 2000, random_state=0)
    >>> X.shape, y.shape
    ((2000, 100), (2000,))
    """
    n_samples = check_whole("n_samples", n_samples)
    signal = check_number("signal", signal, at_least=0, below=np.inf)
    n_classes = len(schema.classes)
    given = [1 / n_classes] * n_classes if class_shares is None else class_shares
    # A dict would have the shares by label.
    shares = np.array([] if isinstance(given, dict) else given, dtype=float)
    if shares.shape != (n_classes,) or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-9:
        raise ValueError(
            f"class_shares={class_shares!r} must be {n_classes} positive numbers that sum to 1, "
            "a list with one for each label, in the order of schema.classes."
        )
    rng = check_random_state(random_state)
    stratum = rng.choice(_N_STRATA, size=n_samples, p=rng.dirichlet(np.full(_N_STRATA, 3.0)))
    drawn = {c.name: _drawn_column(c, stratum, rng) for c in schema.encoded_columns}
    numbers = {name: encodable for name, (_, encodable) in drawn.items()}
    X: Any = encode_all(schema, numbers)
    straight = encode(schema.additive(1).encoded_columns, numbers)
    scores = straight @ rng.standard_normal((straight.shape[1], n_classes))
    # Log-odds are differences of two scores.
    spread = (scores - scores[:, [0]])[:, 1:].std(axis=0).mean()
    scores *= signal / spread if spread > 0 else 0.0
    y: Any = schema.classes[draw_rows(chances_with(scores, shares), rng)]
    if as_frame:
        X = _pandas().DataFrame({c.name: drawn[c.name][0] for c in schema.columns})
        y = _pandas().Series(y, name=schema.target.name)
    return X, y


def _drawn_column(
    column: Column, stratum: np.ndarray, rng: np.random.RandomState
) -> tuple[np.ndarray, Any]:
    """Return the values of a column, (n_samples,), and what the encoder takes for them."""
    if isinstance(column, CategoricalColumn):
        codes = _categories(len(column.categories), stratum, rng)
        return np.array(column.categories, dtype=object)[codes], codes
    if isinstance(column, TextColumn):
        words = np.array([f"word{k}" for k in range(column.n_features)], dtype=object)
        texts = words[_categories(column.n_features, stratum, rng)]
        return texts, column.numbers(texts).toarray()
    mean = np.clip(rng.beta(1.0, 2.0) + 0.08 * rng.standard_normal(_N_STRATA), 0.02, 0.98)
    concentration = 2.0 + rng.exponential(8.0)
    unit = rng.beta((mean * concentration)[stratum], ((1 - mean) * concentration)[stratum])
    lower, upper = column.bounds
    numbers = lower + unit * (upper - lower)
    if isinstance(column, NumericColumn):
        numbers = np.rint(numbers) if column.integer else numbers
        return numbers, numbers
    numbers = np.rint(numbers)
    if isinstance(column, DateColumn):
        return numbers.astype("datetime64[D]").astype("datetime64[s]"), numbers
    return np.array(column.categories, dtype=object)[numbers.astype(int)], numbers


def _categories(n_categories: int, stratum: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    order = 1.0 + rng.permutation(n_categories)
    weight = np.exp(0.7 * rng.standard_normal((_N_STRATA, n_categories))) / order**1.5
    return draw_rows((weight / weight.sum(axis=1, keepdims=True))[stratum], rng)


def chances_with(scores: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the softmax of scores (n, K), shifted so that each class has its share on average."""
    scores = scores - scores.mean(axis=0)

    def dual(shift: np.ndarray) -> tuple[float, np.ndarray]:
        value = logsumexp(scores + shift, axis=1).mean() - shares @ shift
        return value, softmax(scores + shift, axis=1).mean(axis=0) - shares

    # The gradient of this convex function is zero where the shares are right.
    shift = minimize(dual, np.log(shares), jac=True, method="BFGS").x
    return softmax(scores + shift, axis=1)
