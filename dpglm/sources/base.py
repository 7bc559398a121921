"""Sources of data: blocks of rows and labels, read ahead by a thread in every pass."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from queue import Empty, Queue
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from dpglm.checks import check_labels, check_whole
from dpglm.schema.table import plain_path
from dpglm.schema.values import floating

if TYPE_CHECKING:
    from dpglm.sums.blocks import Blocks
    from dpglm.sums.objective import Objective

# Long enough for the pauses between blocks not to matter, short enough to stay in cache.
BLOCK_BYTES = 2**23
# Most rows whose norms are kept, 8 bytes of each: a limit on memory.
MOST_KEPT = 2**26

_END = object()


class Source(ABC):
    """Rows and labels in blocks, in a fixed order."""

    n_features: int
    block_rows: tuple[int, ...]  # the number of rows of each
    cache: Any = None  # as of `ParquetSource`

    @property
    def n_samples(self) -> int:
        """Number of rows of all blocks."""
        return sum(self.block_rows)

    @cached_property
    def template(self) -> Any:
        """X without its rows; subclasses set it where columns have names."""
        return np.empty((0, self.n_features))

    @abstractmethod
    def observed_labels(self) -> np.ndarray:
        """Return the sorted distinct labels, which may need a pass over them."""

    @abstractmethod
    def blocks(self, make: Callable[[Any, np.ndarray], "Objective"]) -> "Blocks":
        """Return the objectives that `make` makes of the rows and labels of each block."""


class LocalSource(Source):
    """Blocks that are read here, one after the other."""

    @abstractmethod
    def describe(self, block: int) -> str:
        """Return what to call a block in an error."""

    @abstractmethod
    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield some blocks, in rising order."""

    def _next(self, block: int, blocks: Iterator[Any]) -> tuple[Any, np.ndarray] | None:
        """Return what `_read` yields for a block, `_encoded`, or None at the end of the data."""
        try:
            data = next(blocks, _END)
            if data is _END:
                return None
            rows, labels = data
        except Exception as error:
            raise OSError(f"{self.describe(block)} could not be read: {error}") from error
        try:
            return self._encoded(rows, labels)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self.describe(block)}: {error}") from error

    def _encoded(self, rows: Any, labels: Any) -> tuple[Any, np.ndarray]:
        """Return what `_read` yields as the objective wants it."""
        return floating(rows), check_labels("y", labels)

    def blocks(self, make: Callable[[Any, np.ndarray], "Objective"]) -> "Blocks":
        return _LocalBlocks(self, make)

    def read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the rows and labels of blocks in rising order, of the shapes of the first pass."""
        blocks = self._read(wanted)
        for block in wanted:
            data = self._next(block, blocks)
            if data is None:
                raise OSError(f"{self.describe(block)} could not be read: the data end before it")
            rows, labels = data
            expected = (self.block_rows[block], self.n_features)
            if rows.shape != expected or labels.shape != expected[:1]:
                raise ValueError(
                    f"{self.describe(block)} has rows of shape {rows.shape} and labels of shape "
                    f"{labels.shape} instead of {expected} and {expected[:1]}; every pass must "
                    "yield the same blocks."
                )
            yield rows, labels
        if next(blocks, None) is not None:
            raise ValueError(
                f"More than {len(self.block_rows)} blocks were read; every pass must yield the "
                "same blocks."
            )


class CachedBlocks:
    """Blocks of a source that are read and encoded once, then read from a file."""

    def __init__(self, source: LocalSource, file: BinaryIO) -> None:
        self.describe, self.block_rows, self._read = source.describe, source.block_rows, source.read
        self._file, self._places = file, dict[int, int]()

    blocks = LocalSource.blocks

    def read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the rows and labels of blocks in rising order; see `LocalSource.read`."""
        missing = [block for block in wanted if block not in self._places]
        fresh = self._read(missing)
        for block in wanted:
            if block in self._places:
                self._file.seek(self._places[block])
                yield pickle.load(self._file)
            else:
                data, place = next(fresh), self._file.seek(0, 2)
                pickle.dump(data, self._file, protocol=5)
                self._file.flush()  # a full disk is an error of the pass that fills it
                self._places[block] = place
                yield data
        if missing:
            next(fresh, None)  # by which it refuses to have one more


@contextmanager
def kept_in_a_file(source: LocalSource) -> Iterator[CachedBlocks]:
    """Keep the blocks of a source in a file without a name that no end of the process leaves."""
    folder = None if source.cache is True else plain_path(source.cache, folder=True)
    with TemporaryFile(dir=folder) as file:
        try:
            yield CachedBlocks(source, file)
        finally:
            # Data that the disk did not take are not needed any more.
            with suppress(OSError):
                file.close()


class _LocalBlocks:
    """Objectives made anew in each pass; the first `n_kept` refuse rows that differ from then."""

    def __init__(self, source: LocalSource | CachedBlocks, make: Callable, n_kept=0) -> None:
        self._source, self._make, self._n_kept = source, make, n_kept
        self._norms: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.block_rows = source.block_rows

    def map(self, task, *arguments, each=None):
        wanted = range(len(self.block_rows))
        if each is not None:
            wanted = [block for block in wanted if each[block] is not None]
        with closing(read_ahead(self._source.read(wanted))) as data:
            for block, (rows, labels) in zip(wanted, data, strict=True):
                kept = {"norms": self._norms.get(block, ())} if block < self._n_kept else {}
                try:
                    objective = self._make(rows, labels, **kept)
                except ValueError as error:
                    raise ValueError(f"{self._source.describe(block)}: {error}") from error
                if kept and block not in self._norms:
                    self._norms[block] = objective.norms
                own = () if each is None else (each[block],)
                yield task(objective, *arguments, *own)

    def changed(self, method, *arguments):
        make = partial(make_changed, self._make, method, arguments)
        n_kept = np.searchsorted(np.cumsum(self.block_rows), MOST_KEPT, side="right")
        return _LocalBlocks(self._source, make, int(n_kept))


def make_changed(make, method, arguments, rows, labels, **options):
    """Return the result of a method of what `make` makes of a block."""
    return getattr(make(rows, labels, **options), method)(*arguments)


def read_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield what an iterator yields and raise what it raises, running it ahead in a thread."""
    # One that is ready and one that is being read, beside that in use.
    found, is_over = Queue[Any](1), Event()

    def read() -> None:
        # A thread starts with numpy's own settings, and a warning would depend on the data.
        with np.errstate(all="ignore"):
            try:
                for item in items:
                    found.put(item)
                    if is_over.is_set():
                        return
                found.put(_END)
            except BaseException as error:
                found.put(error)

    # A daemon: a read that hangs must not keep a program from its end.
    thread, patience = Thread(target=read, name="dpglm-read", daemon=True), None
    thread.start()
    try:
        while (item := found.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item
    except KeyboardInterrupt:
        patience = 1.0  # in seconds
        raise
    finally:
        is_over.set()
        with suppress(Empty):
            found.get_nowait()
        # The next pass must not run into this one: an iterable may fill one array for both.
        thread.join(patience)


def rows_of_a_block(asked: Any, bytes_per_row: float) -> int:
    """Return the rows of a block: the number asked for, checked, or those of `BLOCK_BYTES`."""
    if asked is None:
        return max(1, int(BLOCK_BYTES / max(bytes_per_row, 1)))
    return check_whole("block_rows", asked)


def distinct_labels(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sorted distinct values of some arrays; refuse strings beside numbers."""
    found = [np.unique(part) for part in parts]
    is_mixed = len({part.dtype.kind in "OU" for part in found}) > 1
    return np.unique(check_labels("y", np.concatenate(found, dtype=object if is_mixed else None)))
