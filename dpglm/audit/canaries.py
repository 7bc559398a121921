"""Canaries: artificial records on axes of their own, there or not by the flip of a coin."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import norm
from sklearn.base import clone
from sklearn.utils import check_random_state

from dpglm.estimators.plan import SecondMomentRelease
from dpglm.privacy.ledger import Event, composed_delta, composed_epsilon, composed_mu, run_lengths

__all__ = [
    "CONTAINERS",
    "Blocks",
    "claimed_mu",
    "coin_flips",
    "contained",
    "prepared",
    "saturating_norm",
]

CONTAINERS = ("dense", "sparse", "blocks", "dask")
# Row norm over clip: the gradient at margin zero is at least half of it, well above the clip.
_ROW_OVER_CLIP = 8.0
_N_BLOCKS = 3


class Blocks:
    """Rows and labels that can be read block by block, again and again."""

    def __init__(self, X: Any, y: np.ndarray) -> None:
        self._X, self._y = X, y

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        for rows in np.array_split(np.arange(len(self._y)), _N_BLOCKS):
            yield self._X[rows], self._y[rows]


def coin_flips(n_canaries: int, random_state: Any) -> np.ndarray:
    """Return which canaries are there.

    Examples
    --------
    >>> from dpglm.audit.canaries import coin_flips
    >>> coin_flips(5, random_state=0)
    array([False,  True,  True, False,  True])
    """
    return check_random_state(random_state).randint(2, size=n_canaries).astype(bool)


def contained(
    lengths: np.ndarray, y: np.ndarray, container: str, columns: np.ndarray | None = None
) -> tuple[Any, ...]:
    """Return what ``fit`` is given for rows of these lengths along axes.

    Parameters
    ----------
    lengths : ndarray of shape (n_rows,)
    y : ndarray of shape (n_rows,)
    container : {"dense", "sparse", "blocks", "dask"}
    columns : ndarray of int, shape (n_rows,), optional
        The axis of each row; by default each has its own.

    Returns
    -------
    tuple

    Raises
    ------
    ImportError
        Without Dask; ``pip install "dpglm[dask]"``.

    Examples
    --------
    >>> from dpglm.audit.canaries import contained
    >>> contained(np.array([2.0, 0.0]), np.array([0, 1]), "dense")
    (array([[2., 0.],
           [0., 0.]]), array([0, 1]))
    """
    if container not in CONTAINERS:
        raise ValueError(f"container={container!r} is unknown; choose one of {CONTAINERS}.")
    rows = np.arange(len(lengths))
    columns = rows if columns is None else columns
    X = sparse.csr_array((lengths, (rows, columns)), shape=(len(rows), columns.max() + 1))
    X.eliminate_zeros()
    if container == "sparse":
        return X, y
    if container == "blocks":
        return (Blocks(X, y),)
    return (X.toarray(), y) if container == "dense" else _partitions(X.toarray(), y)


def _partitions(X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    try:
        from dask import array
    except ImportError as error:
        raise ImportError("container='dask' needs Dask: pip install \"dpglm[dask]\".") from error
    n_rows = -(-len(y) // _N_BLOCKS)
    return array.from_array(X, chunks=(n_rows, -1)), array.from_array(y, chunks=n_rows)


def prepared(estimator: Any, **parameters: Any) -> Any:
    """Return a copy for canaries: without intercept, penalty or seed, of a known label set.

    Raises
    ------
    ValueError
        If the estimator claims no guarantee.
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


def saturating_norm(
    clip: float,
    n_samples: int,
    release: SecondMomentRelease | None,
    *,
    n_columns: int,
    copies: int = 1,
    least_weight: float = 1.0,
) -> tuple[float, float]:
    """Return a norm of canaries whose gradients are clipped, and the largest stretch by a basis.

    Parameters
    ----------
    clip : float
        The largest, in the whitened space where there is one.
    n_samples : int
    release : SecondMomentRelease or None
        Of a diagonal preconditioner.
    n_columns : int
    copies : int, default=1
        How many rows share an axis at most.
    least_weight : float, default=1.0
        Of a class.

    Notes
    -----
    The scale of a column is the inverse root of its mean square, which lies between the ridge and
    that of `copies` clipped rows, give or take ten standard deviations of the noise.
    """
    shortest, longest, least_norm = 1.0, 1.0, 0.0
    if release is not None:
        noise_std = release.mechanism(0.0).noise_std(n_columns)
        ridge = release.preconditioner.damping * noise_std / n_samples
        largest = (copies * release.row_bound**2 + 10 * noise_std) / n_samples + ridge
        shortest, longest, least_norm = largest**-0.5, ridge**-0.5, release.row_bound
    return max(_ROW_OVER_CLIP * clip / shortest / least_weight, least_norm), longest


def claimed_mu(events: Sequence[Event], alarm_rate: float) -> float:
    """Return the mu of the hit rate that these releases allow at this rate of false alarms.

    Parameters
    ----------
    events : sequence of Event
    alarm_rate : float

    Returns
    -------
    float
        That of the Gaussian trade-off of the events, where they all have one.
    """
    runs = run_lengths(events)
    if all(event.mu is not None for event in events):
        return composed_mu(runs)
    epsilons = np.linspace(0.0, composed_epsilon(runs, alarm_rate / 1000), 200)
    hits = min(np.exp(e) * alarm_rate + composed_delta(runs, e) for e in epsilons)
    return float(norm.ppf(min(hits, 1.0)) - norm.ppf(alarm_rate))
