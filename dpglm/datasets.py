"""Real tables with their public schemas, and an artificial census with a known optimum.

A real table is read from the folder ``data_home`` if its files are there, else from the folder in
the environment variable ``DPGLM_DATA``, else scikit-learn's fetcher downloads it (``data_home`` is
then its cache). Whatever the source, the columns, their order and the spelling of categories and
labels are the same; numbers are float64, categories and labels pandas categoricals over the
public lists. Raw tables need pandas.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import fetch_kddcup99 as _sklearn_kddcup99
from sklearn.datasets import fetch_openml
from sklearn.utils import Bunch

from dpglm.census import import_pandas, make_census
from dpglm.schema import Schema, load_schema

__all__ = ["fetch_adult", "fetch_bank", "fetch_kddcup99", "make_census"]


def fetch_adult(
    data_home: str | os.PathLike[str] | None = None,
    *,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Load UCI Adult: does a person of the 1994 US census earn more than 50,000 dollars?

    Parameters
    ----------
    data_home : path-like, default=None
        Folder with ``adult.data`` and ``adult.test``; else ``DPGLM_DATA``, else OpenML 1590.
    download_if_missing : bool, default=True
        If False, raise an error instead of asking scikit-learn.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``data``, a DataFrame of 48,842 rows (training rows first) and 14 raw columns, ``"?"``
        where a value is unknown; ``target``, a Series of ``"<=50K"`` and ``">50K"``; ``schema``,
        which leaves the survey weight ``fnlwgt`` out.

    Raises
    ------
    FileNotFoundError
        If the data are in neither folder and cannot be downloaded.

    Notes
    -----
    Ron Kohavi and Barry Becker, UCI Machine Learning Repository, CC BY 4.0.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dpglm.datasets import fetch_adult
    >>> row = "30,Private,77000,Masters,14,Divorced,Sales,Unmarried,Other,Male,0,0,40,Cuba,>50K"
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("adult.data", "adult.test"):
    ...         _ = Path(folder, name).write_text(row)
    ...     adult = fetch_adult(folder)
    >>> adult.data.shape
    (2, 14)
    >>> adult.schema.transformer().fit_transform(adult.data).shape
    (2, 107)
    """
    pd = import_pandas()
    schema = load_schema("adult")
    files = ("adult.data", "adult.test")
    # The survey weight is a column of the table but not of the schema, whose source says why.
    names = [*schema.feature_names[:2], "fnlwgt", *schema.feature_names[2:]]

    def read(folder: Path) -> Any:
        # A line of adult.test starts with a bar, and its labels end with a full stop.
        parts = [
            pd.read_csv(
                folder / file,
                header=None,
                names=[*names, "income"],
                skipinitialspace=True,
                comment="|",
                keep_default_na=False,
            )
            for file in files
        ]
        frame = pd.concat(parts, ignore_index=True)
        return frame.assign(income=frame["income"].str.rstrip("."))

    def download() -> Any:
        bunch = fetch_openml(data_id=1590, as_frame=True, data_home=data_home)
        unknown = {c.name: "?" for c in schema.categorical}
        frame = bunch.data.astype(dict.fromkeys(unknown, object)).fillna(unknown)
        return frame.assign(income=bunch.target)

    frame = _load("adult", files, data_home, read, download, download_if_missing)
    return _bunch(schema, frame, names, return_X_y)


def fetch_bank(
    data_home: str | os.PathLike[str] | None = None,
    *,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Load UCI Bank Marketing: does a client who was called subscribe to a term deposit?

    Parameters
    ----------
    data_home : path-like, default=None
        Folder with ``bank-full.csv`` (comma or semicolon separated, with a header, columns in
        any order); else ``DPGLM_DATA``, else OpenML 1461.
    download_if_missing : bool, default=True
        If False, raise an error instead of asking scikit-learn.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``data``, a DataFrame of 45,211 rows and 16 raw columns in UCI's order; ``target``, a
        Series of ``"no"`` and ``"yes"``; ``schema``.

    Raises
    ------
    FileNotFoundError
        If the data are in neither folder and cannot be downloaded.

    Notes
    -----
    Moro, Cortez and Rita (2014), "A data-driven approach to predict the success of bank
    telemarketing", Decision Support Systems 62; UCI Machine Learning Repository, CC BY 4.0. The
    duration of the call is known only once its outcome is: keep it for benchmarks, drop it for a
    realistic model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dpglm.datasets import fetch_bank
    >>> header = "age,job,marital,education,default,balance,housing,loan,contact,day,month,"
    >>> header += "duration,campaign,pdays,previous,poutcome,y"
    >>> row = "41,services,single,primary,no,90,yes,no,cellular,7,jun,120,1,-1,0,unknown,yes"
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "bank-full.csv").write_text(f"{header}\\n{row}")
    ...     X, y = fetch_bank(folder, return_X_y=True)
    >>> list(X.columns[:3]), list(y)
    (['age', 'job', 'marital'], ['yes'])
    """
    pd = import_pandas()
    schema = load_schema("bank")
    file = "bank-full.csv"

    def read(folder: Path) -> Any:
        path = folder / file
        with path.open(encoding="utf-8") as lines:
            separator = ";" if ";" in lines.readline() else ","
        return pd.read_csv(path, sep=separator, keep_default_na=False)

    def download() -> Any:
        # OpenML numbers the columns V1 to V16 in UCI's order, and the labels from 1.
        bunch = fetch_openml(data_id=1461, as_frame=True, data_home=data_home)
        columns = {f"V{i}": name for i, name in enumerate(schema.feature_names, start=1)}
        labels = bunch.target.astype(str).map({"1": "no", "2": "yes"})
        return bunch.data.rename(columns=columns).assign(y=labels)

    frame = _load("bank", [file], data_home, read, download, download_if_missing)
    return _bunch(schema, frame, schema.feature_names, return_X_y)


def fetch_kddcup99(
    data_home: str | os.PathLike[str] | None = None,
    *,
    download_if_missing: bool = True,
    return_X_y: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Load the 10 percent sample of KDD Cup 1999: is a network connection normal or an attack?

    Parameters
    ----------
    data_home : path-like, default=None
        Folder with ``kddcup.data_10_percent.gz``; else ``DPGLM_DATA``, else scikit-learn's
        ``fetch_kddcup99``.
    download_if_missing : bool, default=True
        If False, raise an error instead of asking scikit-learn.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``data``, a DataFrame of 494,021 rows and 41 raw columns; ``target``, a Series of
        ``"attack"`` and ``"normal"``; ``schema``.

    Raises
    ------
    FileNotFoundError
        If the data are in neither folder and cannot be downloaded.

    Notes
    -----
    Stolfo, Fan, Lee, Prodromidis and Chan (1999), UCI Machine Learning Repository, CC BY 4.0.

    Examples
    --------
    >>> import gzip
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dpglm.datasets import fetch_kddcup99
    >>> row = "0,tcp,http,SF," + "0," * 37 + "smurf."
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "kddcup.data_10_percent.gz")
    ...     _ = path.write_bytes(gzip.compress(row.encode()))
    ...     X, y = fetch_kddcup99(folder, return_X_y=True)
    >>> X.shape, list(y)
    ((1, 41), ['attack'])
    """
    pd = import_pandas()
    schema = load_schema("kddcup99")
    file = "kddcup.data_10_percent.gz"

    def read(folder: Path) -> Any:
        names = [*schema.feature_names, "label"]
        return pd.read_csv(folder / file, header=None, names=names, keep_default_na=False)

    def download() -> Any:
        bunch = _sklearn_kddcup99(as_frame=True, data_home=data_home)
        columns = {name: bunch.data[name] for name in ("protocol_type", "service", "flag")}
        columns["label"] = bunch.target
        return bunch.data.assign(**{n: text.str.decode("ascii") for n, text in columns.items()})

    frame = _load("kddcup99", [file], data_home, read, download, download_if_missing)
    frame["label"] = (frame["label"] == "normal.").map({True: "normal", False: "attack"})
    return _bunch(schema, frame, schema.feature_names, return_X_y)


def _load(
    name: str,
    file_names: Sequence[str],
    data_home: str | os.PathLike[str] | None,
    read: Callable[[Path], Any],
    download: Callable[[], Any],
    download_if_missing: bool,
) -> Any:
    """Read the files from the first folder that has them, or else download."""
    candidates = {"data_home": data_home, "DPGLM_DATA": os.environ.get("DPGLM_DATA")}
    folders = {key: Path(folder).expanduser() for key, folder in candidates.items() if folder}
    for folder in folders.values():
        missing = [file for file in file_names if not (folder / file).is_file()]
        if not missing:
            return read(folder)
        if len(missing) < len(file_names):
            raise FileNotFoundError(
                f"{folder} holds a part of {name}, but not {' and '.join(missing)}; add the rest."
            )
    looked_in = " or ".join(f"{key}={str(folder)!r}" for key, folder in folders.items())
    sentence = (
        f"{' and '.join(file_names)} not found in "
        f"{looked_in or 'any folder, as data_home is None and DPGLM_DATA is not set'}"
    )
    advice = "put the data into a folder and pass it as data_home, or set DPGLM_DATA to it."
    if not download_if_missing:
        raise FileNotFoundError(f"{sentence}, with download_if_missing=False; {advice}")
    try:
        return download()
    except OSError as error:
        raise FileNotFoundError(f"{sentence}, and not downloaded ({error}); {advice}") from error


def _bunch(
    schema: Schema, frame: Any, names: Sequence[str], return_X_y: bool
) -> Bunch | tuple[Any, Any]:
    """Give a table the same columns, types and spellings whichever source it came from."""
    pd = import_pandas()
    categories = {column.name: column.categories for column in schema.categorical}
    categories[schema.target.name] = schema.target.labels
    typed = {}
    for name in [*names, schema.target.name]:
        if name not in frame:
            raise ValueError(f"column {name!r} of {schema.name} is missing; check the source.")
        if name in categories:
            typed[name] = _categorical(frame[name], categories[name])
        else:
            typed[name] = frame[name].to_numpy(dtype=np.float64)
    data = pd.DataFrame(typed)
    target = data.pop(schema.target.name)
    return (data, target) if return_X_y else Bunch(data=data, target=target, schema=schema)


def _categorical(values: Any, categories: Sequence[Any]) -> Any:
    unlisted = [value for value in values.unique() if value not in categories]
    if unlisted:
        raise ValueError(
            f"column {values.name!r} holds {unlisted[0]!r}, which its data dictionary does not "
            "list; check the source of the table."
        )
    return import_pandas().Categorical(values, categories=list(categories))
