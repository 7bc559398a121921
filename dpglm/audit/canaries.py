"""Canaries: artificial records on axes of their own, there or not by the flip of a coin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import norm
from sklearn.base import clone
from sklearn.utils import check_random_state

from dpglm.audit.statistics import CanaryScores
from dpglm.privacy.ledger import Event, composed_delta, composed_epsilon, composed_mu, run_lengths

__all__ = ["CONTAINERS", "coin_flips", "contained", "prepared", "scored"]

CONTAINERS = ("dense", "sparse", "blocks", "dask")
_N_BLOCKS = 3


def coin_flips(n_canaries: int, random_state: Any) -> np.ndarray:
    """Return which canaries are there, shape (n_canaries,)."""
    return check_random_state(random_state).randint(2, size=n_canaries).astype(bool)


def contained(lengths: np.ndarray, y: np.ndarray, container: str) -> tuple[Any, ...]:
    """Return what ``fit`` is given for rows of these lengths (n_rows,), each on its own axis."""
    if container not in CONTAINERS:
        raise ValueError(f"container={container!r} is unknown; choose one of {CONTAINERS}.")
    X = sparse.diags_array(lengths, format="csr")
    X.eliminate_zeros()
    if container == "sparse":
        return X, y
    if container == "blocks":
        return ([(X[rows], y[rows]) for rows in np.array_split(np.arange(len(y)), _N_BLOCKS)],)
    return (X.toarray(), y) if container == "dense" else _partitions(X.toarray(), y)


def _partitions(X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    try:
        from dask import array
    except ImportError as error:
        raise ImportError("container='dask' needs Dask: pip install \"dpglm[dask]\".") from error
    n_rows = -(-len(y) // _N_BLOCKS)
    return array.from_array(X, chunks=(n_rows, -1)), array.from_array(y, chunks=n_rows)


def prepared(estimator: Any, **parameters: Any) -> Any:
    """Return a copy for canaries: without intercept or seed, and with a known set of labels.

    Of the other parameters those are set that the estimator has.
    """
    estimator = clone(estimator)
    if not estimator.epsilon < np.inf:
        raise ValueError(f"epsilon={estimator.epsilon!r} claims nothing that could be audited.")
    names = estimator.get_params(deep=False)
    common = {"fit_intercept": False, "random_state": None}
    common["classes"] = [0, 1] if names.get("classes") is None else names["classes"]
    return estimator.set_params(
        **{name: value for name, value in {**common, **parameters}.items() if name in names}
    )


def scored(
    coins: np.ndarray, scores: np.ndarray, shift: float, events: Sequence[Event], **more: Any
) -> CanaryScores:
    """Return the scores with the claim of these releases."""
    mu = _claimed_mu(events, float(norm.sf(shift / 2)))
    return CanaryScores(scores=scores, present=coins, shift=shift, mu=mu, **more)


def _claimed_mu(events: Sequence[Event], alarm_rate: float) -> float:
    """Return the mu of the hit rate that these releases allow at this rate of false alarms.

    It is that of the Gaussian trade-off of the events, where they all have one.
    """
    runs = run_lengths(events)
    if all(event.mu is not None for event in events):
        return composed_mu(runs)
    epsilons = np.linspace(0.0, composed_epsilon(runs, alarm_rate / 1000), 200)
    hits = min(np.exp(e) * alarm_rate + composed_delta(runs, e) for e in epsilons)
    return float(norm.ppf(min(hits, 1.0)) - norm.ppf(alarm_rate))
