"""Blocks that are bad, empty or complex: what stops a fit, and when."""

import traceback

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpglm import DPLogisticRegression
from dpglm.privacy import vault as vaults


def blocks(bad=None):
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(40, 3)), np.arange(40) % 2) for _ in range(5)]
    if bad is not None:
        made[3][0][7, 1] = bad
    return made


def test_random_batches_do_not_decide_whether_a_bad_block_is_found(monkeypatch):
    monkeypatch.setattr(vaults, "poisson_sample", lambda *_: pytest.fail("drew a batch"))
    model = DPLogisticRegression(
        epsilon=np.inf, sampling_rate=1e-3, max_iter=2, preconditioner=None, classes=[0, 1]
    )
    with pytest.raises(ValueError, match="Block 3 of the iterable"):
        model.fit(blocks(bad=np.nan))


def test_a_block_without_rows_is_skipped():
    model = DPLogisticRegression(max_iter=3, random_state=0, classes=[0, 1])
    given = blocks()
    empty = (np.empty((0, 3)), np.empty(0, dtype=int))
    with_empty = [empty, *given[:2], empty, *given[2:], empty]
    expected, got = (
        DPLogisticRegression(**model.get_params()).fit(data).coef_ for data in (given, with_empty)
    )
    assert np.array_equal(expected, got)


def test_complex_blocks_are_refused():
    with pytest.raises(ValueError, match="Complex data not supported"):
        DPLogisticRegression().fit([(X + 1j, y) for X, y in blocks()])


NAMES = np.array([["12", "Alice Smith"], ["3", "4"]], dtype=object)
VALUES = np.array([[12.5, 37.25], [3.0, 4.0]])
LABELS = np.array([0, 1])
QUOTED = {
    "text": (NAMES, LABELS),
    "strings": (NAMES.astype(str), LABELS),
    "table": (pd.DataFrame(NAMES), LABELS),
    "lists": (NAMES.tolist(), LABELS),
    "blocks of text": ([(NAMES, LABELS)], None),
    "complex": (VALUES + 1j, LABELS),
    "sparse complex": (sparse.csr_array(VALUES + 1j), LABELS),
    "one dimension": (VALUES[:, 1], LABELS),
    "a row too long": ([[12.5, 37.25], [37.25]], LABELS),
    "infinite": (np.array([[37.25, np.inf], [3.0, 4.0]]), LABELS),
}


@pytest.mark.parametrize(("X", "y"), QUOTED.values(), ids=QUOTED)
def test_no_error_quotes_the_features_of_a_record(X, y):
    with pytest.raises(ValueError, match=r"\bX\b") as failure:
        DPLogisticRegression(classes=[0, 1]).fit(X, y)
    shown = "".join(traceback.format_exception(failure.value, limit=0))
    assert "Smith" not in shown and "37.25" not in shown
