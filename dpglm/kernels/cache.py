"""Compiled kernels on disk: dropped when any kernel's source is newer.

numba compares a compiled kernel with its own file only, not with those of the functions that it
calls. A correction of the clip must never be shadowed by a kernel compiled before it.
"""

import contextlib
from pathlib import Path

import numba

__all__ = ["drop_stale_kernels"]


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


_HERE = Path(__file__).parent
drop_stale_kernels(_HERE, [_HERE / "__pycache__"])
if numba.config.CACHE_DIR:
    drop_stale_kernels(_HERE, list(Path(numba.config.CACHE_DIR).glob(f"{_HERE.name}_*")))
