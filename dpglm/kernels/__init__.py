"""Compiled sums over rows, and their threads: those that share rows, and those of numpy's products.

Own threads rather than numba's: its parallel layers abort when two Python threads use them at once
or when a process forks. Compiled code is not imported here.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread", "run_chunks"]

# The libraries behind numpy's products; a look-up takes milliseconds.
_libraries = cache(ThreadpoolController)


def run_chunks(
    task: Callable[[int, int], None], n_chunks: int, n_threads: int | None = None
) -> None:
    """Call ``task(first, last)`` on consecutive ranges that cover ``range(n_chunks)``.

    The calling thread takes the first range and pool threads the others; an error in any of them
    is raised once all have finished. By default there are as many threads as numba has:
    NUMBA_NUM_THREADS, or the limit of a joblib worker.
    """
    if n_threads is None:
        import numba

        n_threads = numba.config.NUMBA_NUM_THREADS
    n_threads = min(n_threads, n_chunks)
    bounds = [i * n_chunks // n_threads for i in range(n_threads + 1)]
    pending = []
    if n_threads > 1:
        pool = _pool(n_threads - 1, os.getpid())
        pending = [pool.submit(task, *chunks) for chunks in itertools.pairwise(bounds[1:])]
    try:
        task(bounds[0], bounds[1])
    finally:
        errors = [future.exception() for future in pending]
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool(n_workers: int, process: int) -> ThreadPoolExecutor:
    """Return the pool of a process: the threads of a parent do not survive a fork."""
    return ThreadPoolExecutor(n_workers, thread_name_prefix="dpglm")


def one_blas_thread():
    """Limit products and decompositions of a few hundred columns to one thread, in a context.

    More threads wait longer for each other than they save, a hundred times longer on a busy
    machine, and might change the last bits.
    """
    return _libraries().limit(limits=1, user_api="blas")
