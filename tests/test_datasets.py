"""Tables are the same whichever source they come from; the census has the optimum it claims."""

import gzip
import os
import sys
import urllib.error

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal, assert_series_equal
from scipy.special import expit
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from dpglm import datasets
from dpglm.datasets import fetch_adult, fetch_bank, fetch_kddcup99, make_census
from dpglm.schema import load_schema

ADULT_DATA = [
    "44, Private, 90001, Masters, 14, Divorced, Sales, Unmarried, White, Female, 0, 0, 40, Cuba, "
    ">50K",
    "19, ?, 80002, HS-grad, 9, Never-married, ?, Own-child, Black, Male, 0, 1602, 20, ?, <=50K",
]
ADULT_TEST = [
    "|1x3 Cross validator",
    "61, State-gov, 70003, 10th, 6, Widowed, Other-service, Not-in-family, Other, Male, 99999, 0, "
    "99, Outlying-US(Guam-USVI-etc), >50K.",
]
BANK_CSV = """\
y,loan,age,job,marital,education,default,balance,housing,contact,day,month,duration,campaign,\
pdays,previous,poutcome
no,yes,33,admin.,single,tertiary,no,-12,yes,cellular,3,jan,77,2,-1,0,unknown
yes,no,71,retired,divorced,unknown,no,30000,no,telephone,30,oct,640,1,92,3,success
"""
KDD_ROWS = [
    [
        *["0", "tcp", "http", "SF", "215", "4507", *["0"] * 18, "0.25", *["0.00"] * 6],
        *["9", "255", *["1.00"] * 8, "normal."],
    ],
    [
        *["2", "icmp", "ecr_i", "S0", "1032", "0", *["1"] * 18, "0.75", *["0.50"] * 6],
        *["511", "3", *["0.00"] * 8, "smurf."],
    ],
]


@pytest.fixture(autouse=True)
def _no_folder_unless_asked(monkeypatch):
    """Keep the machine's own data out of the tests that say where theirs are."""
    monkeypatch.delenv("DPGLM_DATA", raising=False)


@pytest.fixture
def adult_folder(tmp_path):
    (tmp_path / "adult.data").write_text("\n".join(ADULT_DATA) + "\n\n")
    (tmp_path / "adult.test").write_text("\n".join(ADULT_TEST) + "\n\n")
    return tmp_path


@pytest.fixture
def bank_folder(tmp_path):
    (tmp_path / "bank-full.csv").write_text(BANK_CSV)
    return tmp_path


@pytest.fixture
def kddcup99_folder(tmp_path):
    text = "\n".join(",".join(row) for row in KDD_ROWS)
    (tmp_path / "kddcup.data_10_percent.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def _assert_same(one, other):
    assert_frame_equal(one.data, other.data, check_categorical=True)
    assert_series_equal(one.target, other.target)
    assert one.schema == other.schema


def test_adult_is_read_from_its_two_files(adult_folder):
    adult = fetch_adult(adult_folder)
    assert list(adult.data["age"]) == [44.0, 19.0, 61.0]
    assert list(adult.data["workclass"]) == ["Private", "?", "State-gov"]
    assert list(adult.data["native-country"]) == ["Cuba", "?", "Outlying-US(Guam-USVI-etc)"]
    assert list(adult.target) == [">50K", "<=50K", ">50K"]
    assert adult.target.name == "income"
    assert set(adult.data.columns) - set(adult.schema.feature_names) == {"fnlwgt"}
    for column in adult.schema.numeric:
        assert adult.data[column.name].dtype == np.float64
    for column in adult.schema.categorical:
        assert adult.data[column.name].dtype == pd.CategoricalDtype(list(column.categories))


def test_adult_from_openml_equals_adult_from_files(adult_folder, monkeypatch):
    raw = [line.split(", ") for line in [*ADULT_DATA, ADULT_TEST[1].rstrip(".")]]
    frame = pd.DataFrame(raw).replace("?", np.nan)
    frame.columns = [*fetch_adult(adult_folder).data.columns, "class"]
    numeric = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    frame = frame.astype({n: "int64" if n in numeric else "category" for n in frame.columns})

    def openml(*, data_id, as_frame, data_home):
        assert (data_id, as_frame) == (1590, True)
        return Bunch(data=frame.drop(columns="class"), target=frame["class"])

    monkeypatch.setattr(datasets, "fetch_openml", openml)
    _assert_same(fetch_adult(), fetch_adult(adult_folder))


def test_bank_is_read_by_name_with_either_separator(bank_folder):
    bank = fetch_bank(bank_folder)
    assert list(bank.data.columns) == bank.schema.feature_names
    assert list(bank.data["balance"]) == [-12.0, 30000.0]
    assert list(bank.data["poutcome"]) == ["unknown", "success"]
    assert list(bank.target) == ["no", "yes"]
    X, y = fetch_bank(bank_folder, return_X_y=True)
    assert_frame_equal(X, bank.data)
    assert_series_equal(y, bank.target)
    quoted = "\n".join(
        ";".join(f'"{value}"' for value in line.split(",")) for line in BANK_CSV.splitlines()
    )
    (bank_folder / "bank-full.csv").write_text(quoted)
    _assert_same(fetch_bank(bank_folder), bank)


def test_bank_from_openml_equals_bank_from_its_file(bank_folder, monkeypatch):
    columns = [
        [33, 71], ["admin.", "retired"], ["single", "divorced"], ["tertiary", "unknown"],
        ["no", "no"], [-12, 30000], ["yes", "no"], ["yes", "no"], ["cellular", "telephone"],
        [3, 30], ["jan", "oct"], [77, 640], [2, 1], [-1, 92], [0, 3], ["unknown", "success"],
    ]  # fmt: skip
    frame = pd.DataFrame(
        {
            f"V{i}": pd.Categorical(values) if isinstance(values[0], str) else values
            for i, values in enumerate(columns, start=1)
        }
    )
    target = pd.Series(pd.Categorical(["1", "2"]), name="Class")

    def openml(*, data_id, as_frame, data_home):
        assert (data_id, as_frame) == (1461, True)
        return Bunch(data=frame, target=target)

    monkeypatch.setattr(datasets, "fetch_openml", openml)
    _assert_same(fetch_bank(), fetch_bank(bank_folder))


def test_kddcup99_is_normal_against_the_rest(kddcup99_folder):
    kdd = fetch_kddcup99(kddcup99_folder)
    assert kdd.data.shape == (2, 41)
    assert list(kdd.data["service"]) == ["http", "ecr_i"]
    assert list(kdd.data["dst_host_count"]) == [9.0, 511.0]
    assert list(kdd.data["count"]) == [0.0, 1.0]
    assert list(kdd.data["serror_rate"]) == [0.25, 0.75]
    assert list(kdd.target) == ["normal", "attack"]


def test_kddcup99_from_scikit_learn_equals_kddcup99_from_its_file(kddcup99_folder, tmp_path):
    """scikit-learn's own fetcher reads a cache that is laid out as it lays it out itself."""
    rows = np.array(KDD_ROWS, dtype=object)
    rows[:, [1, 2, 3, 41]] = [[text.encode() for text in row] for row in rows[:, [1, 2, 3, 41]]]
    numeric = [j for j in range(41) if j not in (1, 2, 3)]
    rows[:, numeric] = rows[:, numeric].astype(float)
    cache = tmp_path / "cache" / "kddcup99_10-py3"
    cache.mkdir(parents=True)
    joblib.dump(rows[:, :41], cache / "samples")
    joblib.dump(rows[:, 41], cache / "targets")
    _assert_same(fetch_kddcup99(tmp_path / "cache"), fetch_kddcup99(kddcup99_folder))


def test_data_home_comes_before_the_environment(adult_folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    for file in ("adult.data", "adult.test"):
        (other / file).write_text(ADULT_DATA[1])
    monkeypatch.setenv("DPGLM_DATA", str(adult_folder))
    assert len(fetch_adult().data) == 3
    assert len(fetch_adult(other).data) == 2
    assert len(fetch_adult(tmp_path / "empty").data) == 3


def test_encoded_real_rows_respect_the_row_bound(adult_folder, bank_folder, kddcup99_folder):
    for fetch in (fetch_adult, fetch_bank, fetch_kddcup99):
        table = fetch(adult_folder)
        encoded = table.schema.transformer().fit_transform(table.data)
        norms = np.linalg.norm(encoded, axis=1)
        assert 1.0 < norms.max() <= table.schema.row_bound(fit_intercept=False)


@pytest.mark.parametrize(
    ("fetch", "file"),
    [
        (fetch_adult, "adult.data and adult.test"),
        (fetch_bank, "bank-full.csv"),
        (fetch_kddcup99, "kddcup.data_10_percent.gz"),
    ],
)
def test_missing_files_name_the_folders_looked_in(fetch, file, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"{file} not found in any folder"):
        fetch(download_if_missing=False)
    monkeypatch.setenv("DPGLM_DATA", str(tmp_path / "there"))
    with pytest.raises(FileNotFoundError, match=f"{file} not found in") as error:
        fetch(tmp_path / "here", download_if_missing=False)
    for folder in ("data_home", "here", "DPGLM_DATA", "there"):
        assert folder in str(error.value)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def openml(**_):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(datasets, "fetch_openml", openml)
    with pytest.raises(FileNotFoundError, match=r"no route.*put the data into a folder") as error:
        fetch_adult(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_half_of_adult_is_not_adult(adult_folder):
    (adult_folder / "adult.test").unlink()
    with pytest.raises(FileNotFoundError, match=r"a part of adult, but not adult\.test"):
        fetch_adult(adult_folder)


def test_a_table_that_is_not_the_documented_one_is_refused(bank_folder):
    path = bank_folder / "bank-full.csv"
    text = path.read_text()
    path.write_text(text.replace("retired", "astronaut"))
    with pytest.raises(ValueError, match="column 'job' holds 'astronaut'"):
        fetch_bank(bank_folder)
    path.write_text(text.replace("balance", "wealth"))
    with pytest.raises(ValueError, match="column 'balance' of bank is missing"):
        fetch_bank(bank_folder)
    path.write_text(text.replace("y,loan", "label,loan"))
    with pytest.raises(ValueError, match="column 'y' of bank is missing"):
        fetch_bank(bank_folder)


def test_without_pandas_the_census_works_and_the_rest_names_the_extra(bank_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert make_census(10, random_state=0)[0].shape == (10, 99)
    for call in (lambda: make_census(10, as_frame=True), lambda: fetch_bank(bank_folder)):
        with pytest.raises(ImportError, match=r'pip install "dpglm\[data\]"'):
            call()


REAL = os.environ.get("DPGLM_DATA")
needs_real_data = pytest.mark.skipif(
    not REAL or not os.path.isdir(REAL), reason="DPGLM_DATA names no folder with the real tables"
)
# Rows outside the public bounds, which are round numbers of the dictionary.
CLIPPED = {
    fetch_adult: {},
    fetch_bank: {"balance": 99, "duration": 107, "campaign": 4, "previous": 4},
    fetch_kddcup99: {
        "duration": 1866,
        "src_bytes": 150,
        "dst_bytes": 253,
        "num_compromised": 6,
        "su_attempted": 6,
        "num_root": 6,
    },
}


@needs_real_data
@pytest.mark.parametrize(
    ("fetch", "n_samples", "positives"),
    [(fetch_adult, 48842, 11687), (fetch_bank, 45211, 5289), (fetch_kddcup99, 494021, 97278)],
)
def test_real_rows_fit_their_dictionary(fetch, n_samples, positives):
    table = fetch(REAL)
    assert len(table.data) == len(table.target) == n_samples
    assert not table.data.isna().any(axis=None) and not table.target.isna().any()
    assert (table.target == table.schema.classes[1]).sum() == positives
    outside = {
        c.name: int((~table.data[c.name].between(c.lower, c.upper)).sum())
        for c in table.schema.numeric
    }
    assert {name: count for name, count in outside.items() if count} == CLIPPED[fetch]
    encoded = table.schema.transformer(sparse_output=True).fit_transform(table.data)
    n_numeric = len(table.schema.numeric)
    in_every_block = encoded[:, n_numeric:].sum(axis=1)
    assert (in_every_block == len(table.schema.categorical)).all()
    largest = np.sqrt(encoded.multiply(encoded).sum(axis=1).max())
    assert largest <= table.schema.row_bound(fit_intercept=False)


@pytest.fixture(scope="module")
def census():
    X, y, coef = make_census(100_000, random_state=7, coef=True)
    # Threads that wait for a busy core cost more than they bring.
    with threadpool_limits(1):
        yield np.column_stack([X, np.ones(len(X))]), y, coef


def test_census_frame_encodes_to_the_census_array():
    X, y = make_census(3000, random_state=3)
    frame, labels = make_census(3000, random_state=3, as_frame=True)
    schema = load_schema("census")
    assert list(frame.columns) == schema.feature_names
    assert_array_equal(schema.transformer().fit_transform(frame), X)
    assert_series_equal(labels, pd.Series(y, name="income"))
    assert X.dtype == np.float64 and X.flags.c_contiguous
    assert_array_equal(np.unique(y), schema.classes)


def test_census_rows_depend_on_the_seed_and_its_population_does_not():
    first, again, other = (make_census(500, random_state=s, coef=True) for s in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert_array_equal(a, b)
    assert not np.array_equal(first[0], other[0])
    assert_array_equal(first[2], other[2])
    shared = np.random.RandomState(1)
    assert_array_equal(make_census(500, random_state=shared)[0], first[0])
    assert not np.array_equal(make_census(500, random_state=shared)[0], first[0])


def test_census_is_sized_like_adult_by_default_and_never_empty():
    X, y = make_census(random_state=0)
    assert X.shape == (48842, 99) and y.shape == (48842,)
    with pytest.raises(ValueError, match="n_samples=0"):
        make_census(0)


def test_census_row_bound_is_never_exceeded(census):
    X, _, _ = census
    bound = load_schema("census").row_bound()
    assert 3.0 < np.linalg.norm(X, axis=1).max() <= bound
    assert X.min() == 0.0 and X.max() == 1.0


def test_census_gradient_vanishes_at_the_optimum(census):
    """The mean gradient at the optimum is zero up to sampling noise, in every direction."""
    X, y, coef = census
    p = expit(X @ coef)
    gradient = X.T @ (y - p)
    fisher = (X * (p * (1 - p))[:, None]).T @ X
    rank = np.linalg.matrix_rank(fisher, hermitian=True)
    score_statistic = gradient @ np.linalg.pinv(fisher, hermitian=True) @ gradient
    assert rank == 92
    assert chi2.ppf(1e-4, rank) < score_statistic < chi2.ppf(1 - 1e-4, rank)


def test_census_optimum_is_recovered_by_scikit_learn(census):
    X, y, coef = census
    fit = LogisticRegression(C=1e4, solver="newton-cholesky")
    fit.fit(np.ascontiguousarray(X[:, :-1]), y)
    found = np.append(fit.coef_, fit.intercept_)
    p = expit(X @ coef)
    fisher = (X * (p * (1 - p))[:, None]).T @ X
    error = np.sqrt(np.diag(np.linalg.pinv(fisher, hermitian=True)))
    assert np.abs((found - coef) / error).max() < 4.5
    assert np.abs(expit(X @ found) - p).mean() < 0.01
    assert np.mean((X @ found > 0) != (p > 0.5)) < 0.01


def test_census_coefficients_sum_to_zero_in_every_block():
    coef = make_census(1, coef=True)[2]
    start = 6
    for column in load_schema("census").categorical:
        block = coef[start : start + len(column.categories)]
        assert abs(block.sum()) < 1e-12 and block.any()
        start += len(column.categories)
    assert start == len(coef) - 1


def test_census_is_as_hard_as_adult(census):
    X, y, coef = census
    p = expit(X @ coef)
    assert abs(y.mean() - 0.24) < 0.005
    assert 0.845 < np.maximum(p, 1 - p).mean() < 0.86
    assert abs(np.mean((p > 0.5) == y) - np.maximum(p, 1 - p).mean()) < 0.004
    eigenvalues = np.linalg.eigvalsh(X.T @ X / len(X))
    on_range = eigenvalues[eigenvalues > 1e-12 * eigenvalues[-1]]
    assert len(on_range) == 92
    assert on_range[-1] / on_range[0] > 1e4
    frequencies = X[:, 6:-1].mean(axis=0)
    assert (frequencies < 1e-3).sum() >= 10 and frequencies.min() > 0
