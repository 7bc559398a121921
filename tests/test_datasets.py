"""Tables, real, artificial or one's own: the same from every source, and as their schema says."""

import gzip
import os
import re
import sys

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

from dpglm.datasets import fetch_table, make_census, sample_from_schema
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target, load_schema
from dpglm.sources import read_csv
from dpglm.sources.csv import read_untyped

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
def folder(tmp_path):
    (tmp_path / "adult.data").write_text("\n".join(ADULT_DATA) + "\n\n")
    (tmp_path / "adult.test").write_text("\n".join(ADULT_TEST) + "\n\n")
    (tmp_path / "bank-full.csv").write_text(BANK_CSV)
    rows = "\n".join(",".join(row) for row in KDD_ROWS)
    (tmp_path / "kddcup.data_10_percent.gz").write_bytes(gzip.compress(rows.encode()))
    return tmp_path


@pytest.fixture
def openml(monkeypatch):
    """Let OpenML answer with a table under an identifier."""

    def answer(number, data, target):
        def fetch(*, data_id, as_frame, data_home):
            assert (data_id, as_frame) == (number, True)
            return Bunch(data=data, target=target)

        monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)

    return answer


def _assert_same(one, other):
    assert_frame_equal(one.data, other.data, check_categorical=True)
    assert_series_equal(one.target, other.target)
    assert one.schema == other.schema


def test_adult_is_read_from_its_two_files(folder):
    adult = fetch_table("adult", folder)
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


def test_adult_from_openml_equals_adult_from_files(folder, openml):
    raw = [line.split(", ") for line in [*ADULT_DATA, ADULT_TEST[1].rstrip(".")]]
    frame = pd.DataFrame(raw).replace("?", np.nan)
    frame.columns = [*fetch_table("adult", folder).data.columns, "class"]
    numeric = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    frame = frame.astype({n: "int64" if n in numeric else "category" for n in frame.columns})

    openml(1590, frame.drop(columns="class"), frame["class"])
    _assert_same(fetch_table("adult"), fetch_table("adult", folder))


def test_bank_is_read_by_name_with_either_separator(folder):
    bank = fetch_table("bank", folder)
    assert list(bank.data.columns) == bank.schema.feature_names
    assert list(bank.data["balance"]) == [-12.0, 30000.0]
    assert list(bank.data["poutcome"]) == ["unknown", "success"]
    assert list(bank.target) == ["no", "yes"]
    quoted = re.sub("[^,\n]+", r'"\g<0>"', BANK_CSV).replace(",", ";")
    (folder / "bank-full.csv").write_text(quoted)
    _assert_same(fetch_table("bank", folder), bank)


def test_bank_from_openml_equals_bank_from_its_file(folder, openml):
    bank = fetch_table("bank", folder)
    numeric = {column.name for column in bank.schema.numeric}
    frame = bank.data.astype({n: "int64" if n in numeric else str for n in bank.data})
    frame = frame.astype(dict.fromkeys(set(bank.data) - numeric, "category"))
    frame.columns = [f"V{i}" for i in range(1, 17)]
    openml(1461, frame, pd.Series(pd.Categorical(["1", "2"]), name="Class"))
    _assert_same(fetch_table("bank"), bank)


def test_kddcup99_is_normal_against_the_rest(folder):
    kdd = fetch_table("kddcup99", folder)
    assert kdd.data.shape == (2, 41)
    assert list(kdd.data["service"]) == ["http", "ecr_i"]
    assert list(kdd.data["dst_host_count"]) == [9.0, 511.0]
    assert list(kdd.data["count"]) == [0.0, 1.0]
    assert list(kdd.data["serror_rate"]) == [0.25, 0.75]
    assert list(kdd.target) == ["normal", "attack"]


def test_kddcup99_from_scikit_learn_equals_kddcup99_from_its_file(folder, tmp_path):
    rows = np.array(KDD_ROWS, dtype=object)
    rows[:, [1, 2, 3, 41]] = [[text.encode() for text in row] for row in rows[:, [1, 2, 3, 41]]]
    numeric = [j for j in range(41) if j not in (1, 2, 3)]
    rows[:, numeric] = rows[:, numeric].astype(float)
    cache = tmp_path / "cache" / "kddcup99_10-py3"
    cache.mkdir(parents=True)
    joblib.dump(rows[:, :41], cache / "samples")
    joblib.dump(rows[:, 41], cache / "targets")
    _assert_same(fetch_table("kddcup99", tmp_path / "cache"), fetch_table("kddcup99", folder))


def test_without_files_and_a_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: os.stat("/no route"))
    with pytest.raises(FileNotFoundError, match=r"bank-full\.csv not found in any folder"):
        fetch_table("bank")
    monkeypatch.setenv("DPGLM_DATA", str(tmp_path / "there"))
    where = r"adult.data and adult.test not found in .*data_home.*here.*DPGLM_DATA.*there"
    with pytest.raises(FileNotFoundError, match=rf"{where}.*no route.*put the data into a folder"):
        fetch_table("adult", tmp_path / "here")


def test_a_table_that_is_not_the_documented_one_is_refused(folder):
    for old, new, sentence in (
        ("retired", "astronaut", "column 'job' holds 'astronaut'"),
        ("balance", "wealth", "column 'balance' of bank is missing"),
        ("y,loan", "label,loan", "column 'y' of bank is missing"),
    ):
        (folder / "bank-full.csv").write_text(BANK_CSV.replace(old, new))
        with pytest.raises(ValueError, match=sentence):
            fetch_table("bank", folder)


def test_without_pandas_the_census_works_and_the_rest_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert make_census(10, random_state=0)[0].shape == (10, 99)
    for call in (lambda: make_census(10, as_frame=True), lambda: fetch_table("bank", folder)):
        with pytest.raises(ImportError, match=r'pip install "dpglm\[data\]"'):
            call()


def test_census_frame_encodes_to_the_census_array():
    X, y = make_census(3000, random_state=3)
    frame, labels = make_census(3000, random_state=3, as_frame=True)
    schema = load_schema("census")
    assert list(frame.columns) == schema.feature_names
    assert_array_equal(schema.additive(1).transformer().fit_transform(frame), X)
    assert_series_equal(labels, pd.Series(y, name="income"))
    assert X.dtype == np.float64 and X.flags.c_contiguous
    assert_array_equal(np.unique(y), schema.classes)


def test_census_gradient_vanishes_at_the_optimum():
    X, y, coef = make_census(100_000, random_state=7, coef=True)
    X = np.column_stack([X, np.ones(len(X))])
    p = expit(X @ coef)
    with threadpool_limits(1):  # threads that wait for a busy core cost more than they bring
        gradient, fisher = X.T @ (y - p), (X * (p * (1 - p))[:, None]).T @ X
    rank = np.linalg.matrix_rank(fisher, hermitian=True)
    score_statistic = gradient @ np.linalg.pinv(fisher, hermitian=True) @ gradient
    assert rank == 92
    assert chi2.ppf(1e-4, rank) < score_statistic < chi2.ppf(1 - 1e-4, rank)


def test_labels_have_the_shares_asked_for():
    target = Target("size", ["large", "medium", "small"])
    columns = [NumericColumn("age", 0, 100), CategoricalColumn("housing", ["yes", "no"])]
    schema = Schema("people", columns, target)
    shares = [0.6, 0.3, 0.1]
    _, y = sample_from_schema(schema, 20_000, class_shares=shares, random_state=1)
    found = [np.mean(y == label) for label in schema.classes]
    np.testing.assert_allclose(found, shares, atol=4 * 0.5 / np.sqrt(20_000))


def test_more_signal_makes_labels_easier_to_tell():
    accuracy = []
    for signal in (0.0, 1.0, 4.0):
        X, y = sample_from_schema(load_schema("bank"), 6000, signal=signal, random_state=2)
        model = LogisticRegression(max_iter=500).fit(X[:4000], y[:4000])
        accuracy.append(model.score(X[4000:], y[4000:]))
    np.testing.assert_allclose(accuracy, [0.5, 0.67, 0.87], atol=0.04)


def test_shares_of_classes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="must be 2 positive numbers that sum to 1"):
        sample_from_schema(load_schema("bank"), 10, class_shares=[0.5, 0.6])


STAFF = Schema(
    "staff",
    [
        NumericColumn("age", 0, 100),
        CategoricalColumn("grade", [1, 2]),
        CategoricalColumn("full time", [False, True]),
        CategoricalColumn("job", ["cook", "NA"]),
    ],
    Target("paid", [0, 1]),
)
ROWS = ["36,1,True,cook,1", "250,2.0,false,NA,0", " 7.5,9,,smith,0"]


def table(tmp_path, rows=ROWS, header="age,grade,full time,job,paid"):
    path = tmp_path / "staff.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return read_csv(path, STAFF)


WRONG = {
    "no column 'job', which the schema names": {"header": "age,grade,full time,work,paid"},
    "no column 'paid'": {"header": "age,grade,full time,job,wage"},
    "has several columns 'age'; rename all but one": {"header": "age,age,grade,full time,job,paid"},
    "no rows below its header": {"rows": []},
    "'age' holds something that is not a finite number .* the first in row 2": {
        "rows": [ROWS[0], "old,1,True,cook,1"]
    },
    r"'paid' holds the label '2', first in row 2, which is not among the labels \[0, 1\]": {
        "rows": [ROWS[0], "3,1,True,cook,2"]
    },
    "'job' holds none of the categories": {"rows": ["3,1,True,Cook,1"]},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_does_not_fit_the_schema_is_refused_in_words(tmp_path, sentence):
    with pytest.raises(ValueError, match=sentence):
        table(tmp_path, **WRONG[sentence])


@pytest.mark.parametrize("content", [b"", b"\n1,2\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "staff.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a CSV file|none of the columns 'age'"):
        read_csv(path, STAFF)


@pytest.mark.parametrize(
    "line",
    [
        "36,1,True,cook,1,",  # one field more: pandas would shift all rows
        "36,5,1,True,cook,1",
        "36,1,True,cook",
        '"36,1,True,cook,1',  # a quote that swallows the lines up to the next one
        '36,1,True,"cook,1',
        '36,1,True,"co"ok,1',
        "36,1,True,co\rok,1",
        "36,1,True,cook,1\r37,2,False,NA,0",  # two records to whom a return ends a line
        '36,1,True,"co\nok",1',
        "",
        ",,,,,,,,",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_no_line_of_a_file_decides_how_others_are_read(tmp_path, line, place):
    rows = [*ROWS, '7,2,false,"smith",1']
    rows[place] = line
    with pytest.raises(ValueError, match=rf"line {place + 2}, is not one record") as caught:
        table(tmp_path, rows)
    assert caught.value.__suppress_context__ and "cook" not in str(caught.value)


def test_a_draft_reads_as_many_records_as_a_file_has(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a,b\n1,"x\ry"\n2,z\n')
    frame = read_untyped(tmp_path / "t.csv")
    assert frame["a"].tolist() == [1, 2] and frame["b"].tolist() == ["x\ry", "z"]


def test_fields_may_be_quoted_and_lines_end_as_on_windows(tmp_path):
    path = tmp_path / "staff.csv"
    rows = ['"36",1,True,"cook",1', '8,"2",False, "smith, or ""so""",0']
    path.write_bytes("\r\n".join(["age,grade,full time,job,paid", *rows]).encode())
    bunch = read_csv(path, STAFF)
    assert bunch.data["job"].tolist() == ["cook", 'smith, or "so"']
    assert bunch.target.tolist() == [1, 0]
