"""Compiled kernels on disk: dropped when any kernel's source is newer, and no need for them.

numba compares a compiled kernel with its own file only, not with those of the functions that it
calls. A correction of the clip must never be shadowed by a kernel compiled before it. And numba
raises where it cannot write, which would end a fit that has been charged.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numba
from numba.core.caching import FunctionCache
from numba.extending import is_jitted
from numba.misc.appdirs import AppDirs

__all__ = ["drop_stale_kernels", "kept_on_disk"]


def drop_stale_kernels(sources: Path, caches: list[Path]) -> list[Path]:
    """Delete what was compiled before the newest source was written.

    Parameters
    ----------
    sources : Path
        Folder of the kernels.
    caches : list of Path
        Folders with numba's files, searched in depth.

    Returns
    -------
    list of Path
        What was deleted. A folder that cannot be written is left alone.
    """
    newest = max(path.stat().st_mtime for path in sources.glob("*.py"))
    dropped = []
    for cache in caches:
        # Kernels before indices: a new index would refer to an old kernel of the same number.
        for path in sorted(cache.rglob("*.nb[ci]"), key=lambda path: path.suffix):
            # Another process may be at it too.
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < newest:
                    path.unlink()
                    dropped.append(path)
    return dropped


class _OptionalCache(FunctionCache):
    """A folder that is full, or that cannot be read, costs a compilation and no more."""

    def load_overload(self, *arguments):
        with contextlib.suppress(OSError):
            return super().load_overload(*arguments)

    def save_overload(self, *arguments):
        with contextlib.suppress(OSError):
            super().save_overload(*arguments)


def kept_on_disk(kernel: Callable) -> Callable:
    """Keep what a kernel compiles to, wherever numba finds a folder to write to.

    Parameters
    ----------
    kernel : callable
        What ``njit`` made; a function that is interpreted stays as it is.

    Returns
    -------
    callable
        The same kernel.
    """
    if is_jitted(kernel):
        with contextlib.suppress(RuntimeError):
            kernel._cache = _OptionalCache(kernel.py_func)
    return kernel


def _caches():
    """Where numba may have put the kernels: beside them, by choice, or in the user's cache."""
    yield _HERE / "__pycache__"
    for folder in (numba.config.CACHE_DIR, AppDirs("numba", appauthor=False).user_cache_dir):
        if folder:
            yield from Path(folder).glob(f"{_HERE.name}_*")


_HERE = Path(__file__).parent
drop_stale_kernels(_HERE, list(_caches()))
