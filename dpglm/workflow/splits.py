"""Splits in which one record decides where it goes itself, and no other."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import utils
from sklearn.model_selection import BaseCrossValidator

from dpglm.checks import check_choice, check_number, check_whole
from dpglm.exceptions import KnownArguments, advising
from dpglm.privacy.gaussian import NEIGHBORING_RELATIONS
from dpglm.schema.values import check_sparse, composed

# A place is 48 bits of a hash, which is exact when multiplied by a number of folds.
_PLACES = 2**48


@advising
def private_train_test_split(
    *arrays: Any,
    test_size: float = 0.25,
    ids: ArrayLike | None = None,
    key: int | str | bytes = 0,
    neighboring_relation: str = "zero_out",
) -> list[Any]:
    """Split arrays into training and test parts so that one record changes one part at most.

    Like scikit-learn's ``train_test_split``, but neither labels nor contents of rows decide.
    Releases from different parts cost the largest of their costs. Under ``"add_or_remove_one"`` the
    number of rows of a part is private: fit with ``n_samples_estimate`` times its share.

    Parameters
    ----------
    *arrays : sequence of array-like of shape (n_samples, ...)
        Arrays, data frames, sparse matrices and lists, of equal length.
    test_size : float, default=0.25
        Share of the test part, above 0 and below 1.
    ids : array-like of shape (n_samples,), default=None
        Identifier of the record of each row: whole numbers, strings or bytes, made from nothing
        that the row says. Required by ``"add_or_remove_one"``, and if several rows are one record;
        under the other relations they count as public.
    key : int, str or bytes, default=0
        Chooses the split, and may be public. To split a part again by `ids`, take another key.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        The relation of the estimators.

    Returns
    -------
    list of length 2 * len(arrays)
        ``X_train, X_test, y_train, y_test`` for X and y, rows in their old order.

    Raises
    ------
    ValueError
        For bad parameters, or if a part has no rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dpglm import private_train_test_split
    >>> X, y = np.eye(8), np.arange(8)
    >>> X_train, X_test, y_train, y_test = private_train_test_split(X, y, key="study 1")
    >>> y_test
    array([3, 7])
    """
    share = check_number("test_size", test_size, above=0, below=1)
    if not arrays:
        raise ValueError(
            "private_train_test_split needs at least one array: private_train_test_split(X, y)."
        )
    for array in filter(sparse.issparse, arrays):
        check_sparse(array)
    *arrays, ids = utils.indexable(*arrays, ids)
    n_rows = utils.validation._num_samples(arrays[0])
    places, whole = _places(n_rows, ids, key, neighboring_relation, b"split")
    in_test = places < share * whole
    if in_test.all() or not in_test.any():
        raise ValueError(
            "One part of the split has no rows: there are too few, or they are a part of a split "
            "by the same key. Take another key."
        )
    parts = [np.flatnonzero(~in_test), np.flatnonzero(in_test)]
    return [utils._safe_indexing(array, part) for array in arrays for part in parts]


@dataclass(eq=False, repr=False)
class PrivateKFold(KnownArguments, BaseCrossValidator):
    """Folds of which one record changes one: what k fits on them cost is the sum of their ledgers.

    Under ``"add_or_remove_one"`` pass identifiers as `groups` to ``split``: the `ids` of
    `private_train_test_split`, and fit with ``n_samples_estimate`` times ``1 - 1 / n_splits``. With
    metadata routing on, say ``model.set_fit_request(groups=False)``, or ``True`` with groups. Never
    stratified: one label would move other records.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, 2 or more.
    neighboring_relation : {"zero_out", "replace_one", "add_or_remove_one"}, default="zero_out"
        The relation of the estimators.
    key : int, str or bytes, default=0
        As in `private_train_test_split`, whose parts may be split into folds by the same key.

    Examples
    --------
    >>> from dpglm.workflow import PrivateKFold
    >>> folds = PrivateKFold(2, neighboring_relation="add_or_remove_one", key=2)
    >>> [test.tolist() for _, test in folds.split(range(4), groups=["ann", "ben", "cy", "ann"])]
    [[1, 2], [0, 3]]
    """

    n_splits: int = 5
    _: KW_ONLY
    neighboring_relation: str = "zero_out"
    key: int | str | bytes = 0

    # Meta-estimators with metadata routing hand over the groups that they are given.
    __metadata_request__split: ClassVar = {"groups": True}

    def _iter_test_masks(
        self, X: Any = None, y: Any = None, groups: Any = None
    ) -> Iterator[np.ndarray]:
        n_splits = self.get_n_splits()
        n_rows = utils.validation._num_samples(X)
        places, whole = _places(n_rows, groups, self.key, self.neighboring_relation, b"folds")
        fold_of = places * n_splits // whole
        if len(np.unique(fold_of)) < n_splits:
            raise ValueError(
                f"One of {n_splits} folds has no rows: there are too few, or they are a fold of "
                "the same key. Lower n_splits, or take another key."
            )
        for fold in range(n_splits):
            yield fold_of == fold

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds, checked."""
        return check_whole("n_splits", self.n_splits, at_least=2, at_most=2**15 - 1)


def _places(
    n_rows: int, ids: Any, key: int | str | bytes, relation: str, use: bytes
) -> tuple[np.ndarray, int]:
    """Return a place of each row, and how many places there are; parts are intervals of places.

    Without `ids` the places are positions in the order of their hashes, which are public. With
    `ids` each place is a hash of the row's own, so that no other row moves it.
    """
    check_choice("neighboring_relation", relation, NEIGHBORING_RELATIONS)
    if isinstance(key, bool) or not isinstance(key, (Integral, str, bytes)):
        raise ValueError(f"key={key!r} must be a whole number, a string or bytes.")
    if len(secret := _bytes(key)) > 64:
        raise ValueError(f"key has {len(secret)} bytes; it may have 64 at most.")
    keyed = blake2b(digest_size=6, key=secret, person=use)

    def place_of(name: Any) -> int:
        own = keyed.copy()
        own.update(_bytes(name))
        return int.from_bytes(own.digest(), "big")

    if ids is not None:
        # One by one: an array of them all would turn numbers into text for the sake of one row.
        names = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        # For dates, tolist returns numbers in a unit that other rows may decide.
        dated = getattr(getattr(ids, "dtype", None), "kind", "") in ("m", "M")
        # A timedelta of numpy counts as a whole number.
        dated = dated or any(isinstance(name, (bool, np.timedelta64)) for name in names)
        named = all(isinstance(name, (Integral, str, bytes)) for name in names)
        if len(names) != n_rows or dated or not named:
            raise ValueError(
                "ids must be one whole number, string or bytes for each row: none missing, no date "
                "and no truth value. Turn others into strings, each separately."
            )
        return np.array([place_of(name) for name in names], dtype=np.int64), _PLACES
    if relation == "add_or_remove_one":
        raise ValueError(
            "Under add_or_remove_one a split by position breaks the guarantee, because one record "
            "more moves others. Pass the identifier of each record (ids= of "
            "private_train_test_split, groups= of PrivateKFold and of what uses it)."
        )
    places = np.empty(n_rows, dtype=np.int64)
    places[np.argsort([place_of(i) for i in range(n_rows)], kind="stable")] = np.arange(n_rows)
    return places, n_rows


def _bytes(name: int | str | bytes) -> bytes:
    return name if isinstance(name, bytes) else composed(str(name)).encode()
