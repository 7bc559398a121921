"""The fixed division of rows into chunks, and the threads that share the chunks.

The chunks depend on the shape of the problem alone. Each has its own partial sum and the partial
sums are added in the order of the chunks, so that the number of threads never changes a bit of the
result; and summing in chunks bounds the rounding error of the sum.

Own threads rather than numba's: its parallel layers abort when two Python threads use them at once
or when a process forks.
"""

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba

__all__ = ["ROW_GROUP", "default_n_threads", "rows_per_chunk", "run_chunks"]

# The dense kernels take rows by groups of this size, and a chunk is a whole number of groups.
ROW_GROUP = 8

_MIN_ROWS = 1024
_MAX_PARTIAL_VALUES = 2**22

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def default_n_threads() -> int:
    """Threads numba may use: follows NUMBA_NUM_THREADS and the limits of joblib's workers."""
    return numba.config.NUMBA_NUM_THREADS


def rows_per_chunk(n_rows: int, n_values: int) -> int:
    """Rows in a chunk when each partial sum holds `n_values` numbers.

    About sqrt(n_rows), which minimises the rounding error of the sum, but enough rows to pay for
    the chunk and its partial sum, and few enough chunks for the partial sums to stay small (32 MB
    in all).
    """
    most = n_rows * n_values // _MAX_PARTIAL_VALUES
    rows = max(_MIN_ROWS, math.isqrt(n_rows), n_values // 4, most)
    return -(-rows // ROW_GROUP) * ROW_GROUP


def run_chunks(task: Callable[[int, int], None], n_chunks: int, n_threads: int) -> None:
    """Call ``task(first, last)`` on consecutive ranges that cover ``range(n_chunks)``.

    The calling thread takes the first range and pool threads the others; an error in any of them
    is raised once all have finished.
    """
    n_threads = min(n_threads, n_chunks)
    bounds = [i * n_chunks // n_threads for i in range(n_threads + 1)]
    pending = []
    if n_threads > 1:
        pool = _pool(n_threads - 1)
        pending = [pool.submit(task, *chunks) for chunks in itertools.pairwise(bounds[1:])]
    try:
        task(bounds[0], bounds[1])
    finally:
        errors = [future.exception() for future in pending]
    for error in errors:
        if error is not None:
            raise error


def _pool(n_workers: int) -> ThreadPoolExecutor:
    """Pool of this process: the threads of a parent do not survive a fork."""
    key = (os.getpid(), n_workers)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(n_workers, thread_name_prefix="dpglm")
    return _pools[key]
