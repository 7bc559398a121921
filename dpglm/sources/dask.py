"""Data that Dask holds: workers keep the rows, and only sums come back; see docs/scale.md."""

import itertools
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from dpglm.checks import check_labels
from dpglm.schema.values import floating
from dpglm.sources.base import LocalSource, Source, distinct_labels, make_changed

if TYPE_CHECKING:
    from dpglm.sums.objective import Objective

# Sums fetched at a time: all at once could fill the memory, where each is a large matrix.
_FETCHED_TOGETHER = 16


def dask_source(X: Any, y: Any) -> Source:
    """Return the source of a dask array or data frame and its labels, partitioned alike."""
    template, pairs = _template(X), _pairs(X, y)
    client = _client()
    if client is None:
        return ComputedSource(template, pairs)
    return ClusterSource(template, pairs, client)


def mapped(function: Callable[[Any], np.ndarray], X: Any) -> Any:
    """Return a dask array of what a function makes of the rows of each partition, not computed."""
    import dask
    from dask import array

    _template(X)
    example = function(X._meta_nonempty if hasattr(X, "columns") else np.zeros((1, X.shape[1])))
    X = X if hasattr(X, "columns") else X.rechunk({1: -1})
    nothing = example[:0]
    # Partitions without rows are not asked.
    ask = dask.delayed(lambda part: function(part) if part.shape[0] else nothing, pure=False)
    n_rows = X.chunks[0] if hasattr(X, "chunks") else (math.nan,) * X.npartitions
    parts = zip(_partitions(X), n_rows, strict=True)
    answers = [((n, *example.shape[1:]), ask(part)) for part, n in parts]
    return array.concatenate([array.from_delayed(a, s, dtype=example.dtype) for s, a in answers])


class ComputedSource(LocalSource):
    """Partitions (X, y) that are computed in this process, one by one, anew in every pass."""

    def __init__(self, template: Any, pairs: list[tuple[Any, Any]]) -> None:
        self.template, self.n_features = template, template.shape[1]
        self._pairs, self._numbers = pairs, range(len(pairs))
        blocks = self._read(self._numbers)
        labels = [self._next(number, blocks)[1] for number in self._numbers]
        self._numbers = [number for number, y in enumerate(labels) if len(y)]
        self.block_rows = _block_rows([len(y) for y in labels])
        self._distinct = distinct_labels(labels)

    def describe(self, block: int) -> str:
        return _name(self._numbers[block])

    def observed_labels(self) -> np.ndarray:
        return self._distinct

    def _encoded(self, rows: Any, labels: Any) -> tuple[Any, np.ndarray]:
        held = _Rows(rows, labels)
        return held.X, held.y

    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        import dask

        for block in wanted:
            yield dask.compute(*self._pairs[self._numbers[block]])


class ClusterSource(Source):
    """Partitions on the workers of a cluster, and the one way to ask about them."""

    def __init__(self, template: Any, pairs: list[tuple[Any, Any]], client: Any) -> None:
        import dask

        self.template, self.n_features = template, template.shape[1]
        self._client = client
        rows = dask.delayed(_Rows, pure=False)
        self._partitions = dict(enumerate(client.compute([rows(*pair) for pair in pairs])))
        self._numbers = itertools.count()

    @cached_property
    def block_rows(self) -> tuple[int, ...]:
        lengths = list(self.map(len))
        # Partitions without rows are forgotten.
        self._partitions = dict(itertools.compress(self._partitions.items(), lengths))
        return _block_rows(lengths)

    def observed_labels(self) -> np.ndarray:
        return distinct_labels(self.map(lambda rows: np.unique(rows.y)))

    def blocks(self, make: Callable[..., "Objective"]) -> "ClusterBlocks":
        """Return the objectives of the partitions, each made by ``make(X, y, n_threads=1)``."""
        # The scheduler keeps the recipe, which so outlives the workers.
        with _large_messages():
            recipe = self._client.submit(_Recipe, next(self._numbers), make=make, pure=False)
        return ClusterBlocks(self, make, recipe)

    def map(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> Iterator[Any]:
        """Yield ``function(rows, *arguments)`` of each partition; see `Blocks.map`."""
        numbers, own = list(self._partitions), []
        if each is not None:
            numbers = [n for n, value in zip(numbers, each, strict=True) if value is not None]
            own = [[value for value in each if value is not None]]
        if not numbers:
            return
        rows = [self._partitions[number] for number in numbers]
        # Not by keyword: Client.map keeps a large value under its keyword, whatever fit it is of.
        columns = [rows, *([argument] * len(rows) for argument in arguments), *own]
        with _large_messages():
            futures = self._client.map(function, *columns, pure=False)
        while futures:
            some = futures[:_FETCHED_TOGETHER]
            try:
                found = self._client.gather(some)
            except Exception as error:
                for number, future in zip(numbers, some, strict=False):
                    if future.status in ("error", "cancelled", "lost"):
                        raise _failure(number, future) from error
                raise
            yield from found
            del numbers[:_FETCHED_TOGETHER], futures[:_FETCHED_TOGETHER]


class ClusterBlocks:
    """Objectives that live with their rows on the workers; see `ClusterSource.blocks`."""

    def __init__(self, source: ClusterSource, make: Callable, recipe: Any) -> None:
        self.block_rows = source.block_rows
        self._source, self._make, self._recipe = source, make, recipe

    def map(
        self, task: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> Iterator[Any]:
        """Yield ``task(objective, *arguments)`` of each partition; see `ClusterSource.map`."""
        return self._source.map(_answer, self._recipe, task, *arguments, each=each)

    def changed(self, method: str, *arguments: Any) -> "ClusterBlocks":
        return self._source.blocks(partial(make_changed, self._make, method, arguments))


class _Recipe(NamedTuple):
    """How workers make an objective of rows, and its number among all."""

    number: int
    make: Callable[..., "Objective"]


class _Rows:
    """Rows and labels of a partition, with the objectives made of them, on this worker alone."""

    def __init__(self, X: Any, y: Any) -> None:
        self.X, self.y = floating(X), check_labels("y", y)
        array = self.X.data if sparse.issparse(self.X) else self.X
        while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
            array = array.base
        if isinstance(array, (np.memmap, mmap.mmap)):
            # Rows of a mapped file must stay those whose norms are kept.
            self.X = self.X.copy()
        if len(self.y) != self.X.shape[0]:
            raise ValueError(
                f"X has {self.X.shape[0]} rows and y has {len(self.y)}; give y the partitions of X."
            )
        self._objectives: dict[int, Objective] = {}

    def objective(self, recipe: _Recipe) -> "Objective":
        """Return the objective of a recipe, made when first asked for."""
        if recipe.number not in self._objectives:
            # One thread each: Dask works on several partitions at a time.
            self._objectives[recipe.number] = recipe.make(self.X, self.y, n_threads=1)
        return self._objectives[recipe.number]

    def __len__(self) -> int:
        return len(self.y)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Rows, (self.X, self.y)

    def __sizeof__(self) -> int:
        """Return what it costs to move the rows, from which Dask decides where to work."""
        X = self.X
        arrays = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return sum(array.nbytes for array in (*arrays, self.y))


def _answer(rows: _Rows, recipe: _Recipe, task: Callable[..., Any], *arguments: Any) -> Any:
    # Whether numpy complains, in the log of a worker, would depend on the data.
    with np.errstate(all="ignore"):
        return task(rows.objective(recipe), *arguments)


def _block_rows(lengths: list[int]) -> tuple[int, ...]:
    """Return the lengths of the partitions that have rows."""
    if not any(lengths):
        raise ValueError("X and y have no rows: all their partitions are empty.")
    return tuple(length for length in lengths if length > 0)


def _name(number: int) -> str:
    return f"Partition {number} of X and y"


def _failure(number: int, future: Any) -> Exception:
    """Return the error of a partition, with its name."""
    if future.status != "error":
        return RuntimeError(
            f"{_name(number)} was lost with its worker, and Dask does not know how to compute it "
            "again. Make X and y from files or arrays, not from scattered data."
        )
    error = future.exception()
    if isinstance(error, ValueError):
        return ValueError(f"{_name(number)}: {error}")
    return RuntimeError(f"{_name(number)} failed: {type(error).__name__}: {error}")


def _client() -> Any:
    """Return the client in use, if there is one; then dask.distributed has been imported."""
    distributed = sys.modules.get("distributed")
    try:
        client = distributed and distributed.default_client()
    except ValueError:
        return None
    if client is not None and client.asynchronous:
        raise ValueError(
            "fit waits for its results and needs a client that does: make the "
            "dask.distributed.Client without asynchronous=True."
        )
    return client


def _large_messages() -> AbstractContextManager:
    """Keep dask.distributed from advising against what is intended: a basis or a sample to send."""
    import dask

    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"})


def _template(X: Any) -> Any:
    """Return X without its rows."""
    if not hasattr(X, "to_delayed") or X.ndim != 2 or math.isnan(X.shape[1]):
        raise ValueError(
            "X must be a dask array or data frame with two dimensions and a known number of "
            f"columns, got {type(X).__name__}."
        )
    return X._meta if hasattr(X, "columns") else np.empty((0, X.shape[1]), dtype=X.dtype)


def _pairs(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Return each partition of X with its labels."""
    if not hasattr(y, "to_delayed") or y.ndim != 1:
        raise ValueError(
            "y must be a dask array or series with one dimension, as X belongs to dask, got "
            f"{type(y).__name__} with ndim={getattr(y, 'ndim', None)}; an array becomes one by "
            "dask.array.from_array(y, chunks=X.chunks[0])."
        )
    if hasattr(X, "chunks") and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    if X.npartitions != y.npartitions:
        raise ValueError(
            f"X has {X.npartitions} partitions and y has {y.npartitions}; give y those of X, for "
            "arrays by y.rechunk(X.chunks[0])."
        )
    return list(zip(_partitions(X), _partitions(y), strict=True))


def _partitions(data: Any) -> list[Any]:
    parts = data.to_delayed()
    return list(parts.ravel() if isinstance(parts, np.ndarray) else parts)
