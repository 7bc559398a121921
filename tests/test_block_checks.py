"""Blocks that are bad, empty or complex: what stops a fit, and when."""

import numpy as np
import pytest

from dpglm import DPLogisticRegression
from dpglm.privacy.mechanisms import PoissonSampledSum


def blocks(bad=None):
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(40, 3)), np.arange(40) % 2) for _ in range(5)]
    if bad is not None:
        made[3][0][7, 1] = bad
    return made


def test_random_batches_do_not_decide_whether_a_bad_block_is_found(monkeypatch):
    monkeypatch.setattr(PoissonSampledSum, "release", lambda *_: pytest.fail("released"))
    model = DPLogisticRegression(
        sampling_rate=1e-3, max_iter=2, preconditioner=None, classes=[0, 1]
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
