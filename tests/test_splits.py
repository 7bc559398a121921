"""One record of a table is one record of one part: the offered splits, and what others do."""

import numpy as np
import polars
import pytest
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_validate,
    train_test_split,
)
from strategies import RELATIONS

from dpglm.privacy.vault import moment_sensitivity
from dpglm.workflow import PrivateKFold, private_train_test_split

N = 40
BOUND = 3.0


def table():
    """Rows with a label as their last column, and identifiers that no other row's facts touch."""
    X, y = make_classification(N, 5, random_state=0)
    return np.column_stack([X, y]), np.array([f"person {i}" for i in range(N)])


def neighbours(relation):
    """The table, and all tables one record away; a label changes wherever a relation lets it."""
    rows, ids = table()
    for i in range(N):
        other, other_ids = rows.copy(), ids
        if relation == "add_or_remove_one":
            other, other_ids = np.delete(rows, i, 0), np.delete(ids, i)
        elif relation == "zero_out":
            other[i] = 0
        else:
            other[i], other[i, -1] = -7 * rows[i], 1 - rows[i, -1]
        yield (rows, ids), (other, other_ids)


def moment(part):
    """The exact second moment that a fit on this part would release, of clipped rows."""
    # A null record has no intercept either.
    rows = np.column_stack([part, part.any(axis=1)])
    rows = rows * (BOUND / np.maximum(BOUND, np.linalg.norm(rows, axis=1)))[:, None]
    return rows.T @ rows


def charges(split, relation):
    """Return the largest move of each part's second moment, in sensitivities, and of all."""
    worst = []
    for one, other in neighbours(relation):
        pairs = zip(split(*one), split(*other), strict=True)
        worst.append([np.linalg.norm(moment(a) - moment(b)) for a, b in pairs])
    return np.array(worst) / moment_sensitivity(BOUND, relation, 7)


def training_folds(folds, uses_ids=False):
    def split(rows, ids):
        groups = {"groups": ids} if uses_ids else {}
        return [rows[train] for train, _ in folds.split(rows, rows[:, -1], **groups)]

    return split


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_of_the_table_is_one_record_of_one_part(relation):
    by_id = relation == "add_or_remove_one"

    def split(rows, ids):
        return private_train_test_split(
            rows, ids=ids if by_id else None, neighboring_relation=relation
        )

    moved = charges(split, relation)
    assert moved.max() <= 1 + 1e-12
    assert np.count_nonzero(moved, axis=1).tolist() == [1] * N
    # In the other relations identifiers may decide as well, of persons with several rows.
    moved = charges(lambda rows, ids: private_train_test_split(rows, ids=ids), "zero_out")
    assert moved.max() <= 1 + 1e-12 and np.count_nonzero(moved, axis=1).max() == 1


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_of_the_table_is_one_record_of_every_training_fold_but_one(relation):
    folds = PrivateKFold(4, neighboring_relation=relation)
    moved = charges(training_folds(folds, relation == "add_or_remove_one"), relation)
    assert moved.max() <= 1 + 1e-12
    assert np.count_nonzero(moved, axis=1).tolist() == [3] * N


def stratified(rows, ids):
    return train_test_split(rows, stratify=rows[:, -1], random_state=0)


@pytest.mark.parametrize(
    ("split", "relation"),
    [
        (stratified, "replace_one"),
        (training_folds(KFold(4)), "add_or_remove_one"),
        # By content: a record that is replaced may move, and takes a place in both parts.
        (
            lambda rows, ids: private_train_test_split(
                rows, ids=[row.tobytes() for row in rows], key=1
            ),
            "replace_one",
        ),
    ],
)
def test_splits_by_labels_contents_or_a_private_count_move_more_than_is_charged(split, relation):
    moved = charges(split, relation)
    n_parts = moved.shape[1]
    # A replaced record that moves is within what is charged for each part, but in both of them.
    assert moved.max() > 1.2 or np.count_nonzero(moved, axis=1).max() > max(1, n_parts - 1)


def test_sizes_are_those_of_scikit_learn_by_position_and_expected_ones_by_identifier():
    for n, share in ((10, 0.25), (97, 0.1), (1000, 0.5)):
        train, test = private_train_test_split(np.arange(n), test_size=share)
        reference = train_test_split(np.arange(n), test_size=share)
        assert [len(train), len(test)] == [len(part) for part in reference]
        assert sorted([*train, *test]) == list(range(n)) and (np.diff(train) > 0).all()
    sizes = [len(test) for _, test in PrivateKFold(7).split(np.empty(100))]
    assert sum(sizes) == 100 and max(sizes) - min(sizes) == 1
    shares = [
        len(private_train_test_split(range(4000), ids=range(4000), key=key, test_size=0.2)[1])
        / 4000
        for key in range(20)
    ]
    # 20 of 20 within 4.5 standard errors of .0063, by chance but for one in 7,000.
    assert np.abs(np.array(shares) - 0.2).max() < 4.5 * np.sqrt(0.16 / 4000)


def test_a_row_goes_where_its_own_identifier_says_however_it_is_kept():
    ids = list(range(50))
    kept = {"ids": ids, "neighboring_relation": "add_or_remove_one"}
    _, expected = private_train_test_split(ids, **kept)
    for other in (np.array(ids), np.array(ids, np.int32), np.array(ids).astype(str), range(50)):
        assert private_train_test_split(ids, **(kept | {"ids": other}))[1] == expected
    mixed = [*ids[:-1], "the last"]
    assert set(private_train_test_split(ids, **(kept | {"ids": mixed}))[1]) - {49} == set(
        expected
    ) - {49}
    assert private_train_test_split(ids, **(kept | {"ids": polars.Series(ids)}))[1] == expected
    # Several rows of a person stay together, and folds do not repeat a split by the same key.
    twice = ids + ids
    train, test = private_train_test_split(twice, **(kept | {"ids": twice}))
    assert not set(train) & set(test)
    folds = PrivateKFold(3, neighboring_relation="add_or_remove_one")
    assert len(list(folds.split(train, groups=train))) == 3


def test_keys_choose_the_split_and_no_row_is_looked_at():
    X = np.random.default_rng(0).normal(size=(40, 3))
    splits = {tuple(private_train_test_split(range(40), key=key)[1]) for key in (0, 1, "0x", b"y")}
    assert len(splits) == 4
    assert (
        private_train_test_split(range(40), key=1)[1]
        == private_train_test_split(range(40), key="1")[1]
    )
    _, test, _, places = private_train_test_split(X, range(40))
    np.testing.assert_array_equal(test, X[list(places)])
    frame = polars.DataFrame({"a": range(40)})
    _, of_frame, _, of_sparse = private_train_test_split(frame, sparse.csr_array(X))
    assert of_frame["a"].to_list() == list(places)
    np.testing.assert_array_equal(of_sparse.toarray(), test)


def test_folds_work_in_scikit_learn_with_and_without_groups():
    X, y = np.zeros((60, 1)), np.arange(60) % 2
    assert len(cross_validate(DummyClassifier(), X, y, cv=PrivateKFold(3))["test_score"]) == 3
    folds = PrivateKFold(2, neighboring_relation="add_or_remove_one")
    search = GridSearchCV(DummyClassifier(), {"constant": [None]}, cv=folds, refit=False)
    with pytest.raises(ValueError, match="Pass the identifier of each record"):
        search.fit(X, y)
    assert search.fit(X, y, groups=np.arange(60)).n_splits_ == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"test_size": 1.0}, "above 0 and below 1"),
        ({"neighboring_relation": "bounded"}, "choose one of"),
        ({"neighboring_relation": "add_or_remove_one"}, "one record more moves others"),
        ({"key": 1.5}, "key=1.5 must be"),
        ({"key": "x" * 65}, "64 at most"),
        ({"ids": np.arange(8.0)}, "Turn others into strings"),
        ({"ids": np.arange(8).astype("datetime64[ns]")}, "no date"),
        ({"ids": [True, *range(7)]}, "no truth value"),
        ({"ids": ["a"] * 7 + [None]}, "none missing"),
        ({"ids": ["a"] * 7}, "inconsistent numbers"),
        ({"ids": ["a"] * 8}, "no rows"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(arguments, words):
    with pytest.raises(ValueError, match=words):
        private_train_test_split(np.arange(8), **arguments)


def test_folds_are_refused_in_words():
    for n_splits in (1, 2.0, True, 2**15):
        with pytest.raises(ValueError, match="whole number from 2"):
            PrivateKFold(n_splits).get_n_splits()
    with pytest.raises(ValueError, match="Lower n_splits"):
        list(PrivateKFold(9).split(np.empty(8)))
    with pytest.raises(ValueError, match="at least one array"):
        private_train_test_split()
