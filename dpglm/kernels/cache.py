"""Compiled kernels on disk: dropped when any kernel's source is newer.

numba compares a compiled kernel with its own file only, not with those of the functions that it
calls. A correction of the clip must never be shadowed by a kernel compiled before it.
"""

import contextlib
from pathlib import Path

import numba
from numba.core.caching import FunctionCache
from numba.misc.appdirs import AppDirs

__all__ = ["caching_is_possible", "drop_stale_kernels"]


def drop_stale_kernels(sources: Path, caches: list[Path]) -> list[Path]:
    """Delete the indices of compiled kernels that are older than the newest source.

    Parameters
    ----------
    sources : Path
        Folder of the kernels.
    caches : list of Path
        Folders with numba's index files, searched in depth.

    Returns
    -------
    list of Path
        What was deleted. A folder that cannot be written is left alone.
    """
    newest = max(path.stat().st_mtime for path in sources.glob("*.py"))
    dropped = []
    for cache in caches:
        for index in cache.rglob("*.nbi"):
            # Another process may be at it too.
            with contextlib.suppress(OSError):
                if index.stat().st_mtime < newest:
                    index.unlink()
                    dropped.append(index)
    return dropped


def caching_is_possible() -> bool:
    """Whether numba finds a folder to write to; it refuses to decorate a cached kernel if not."""
    try:
        FunctionCache(caching_is_possible)
    except RuntimeError:
        return False
    return True


def _caches():
    """Where numba may have put the kernels: beside them, by choice, or in the user's cache."""
    yield _HERE / "__pycache__"
    for folder in (numba.config.CACHE_DIR, AppDirs("numba", appauthor=False).user_cache_dir):
        if folder:
            yield from Path(folder).glob(f"{_HERE.name}_*")


_HERE = Path(__file__).parent
drop_stale_kernels(_HERE, list(_caches()))
