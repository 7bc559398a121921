"""A table of one's own: read by its schema, and refused in words."""

import numpy as np
import pytest

from dpglm.datasets import read_csv
from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target
from dpglm.study.comparison import encoded

SCHEMA = Schema(
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


def table(tmp_path, rows=ROWS, header="age,grade,full time,job,paid", **options):
    path = tmp_path / "staff.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return read_csv(path, SCHEMA, **options)


@pytest.mark.parametrize("separator", [",", ";"])
def test_bounds_clip_categories_are_recognised_and_others_are_zeros(tmp_path, separator):
    rows = [row.replace(",", separator) for row in ROWS]
    header = separator.join(["age", "grade", "full time", "job", "paid"])
    X, y = encoded(table(tmp_path, rows, header))
    first, second = [0.36, 1, 0, 0, 1, 1, 0], [1.0, 0, 1, 1, 0, 0, 1]
    np.testing.assert_allclose(X, [first, second, [0.075, 0, 0, 0, 0, 0, 0]])
    assert y.tolist() == [1, 0, 0]


def test_columns_may_stand_in_any_order_beside_others_and_the_target_be_renamed(tmp_path):
    header = "id,wage,job,full time,grade,age"
    bunch = table(tmp_path, ["a,1,cook,True,2,50", "b,0,NA,False,1,20"], header, target="wage")
    assert bunch.schema.target == Target("wage", [0, 1])
    assert bunch.target.tolist() == [1, 0]
    assert encoded(bunch)[0][:, 0].tolist() == [0.5, 0.2]


WRONG = {
    "no column 'job'; its header names": {"header": "age,grade,full time,work,paid"},
    "no column 'wage'": {"target": "wage"},
    "names 'age' twice": {"target": "age"},
    "no rows below its header": {"rows": []},
    r"row 2 has age='old'; give a finite number": {"rows": [ROWS[0], "old,1,True,cook,1"]},
    r"row 1 has age=''": {"rows": [",1,True,cook,1"]},
    r"row 2 of .*staff.csv has paid='2'; the labels of": {"rows": [ROWS[0], "3,1,True,cook,2"]},
    "'job' starts with 'Cook' and holds none of the categories": {"rows": ["3,1,True,Cook,1"]},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_does_not_fit_the_schema_is_refused_in_words(tmp_path, sentence):
    with pytest.raises(ValueError, match=sentence):
        table(tmp_path, **WRONG[sentence])


@pytest.mark.parametrize("content", [b"", b'a,b\n"unfinished', b"\xff\xfe\x00"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "staff.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a CSV file|can't decode"):
        read_csv(path, SCHEMA)
