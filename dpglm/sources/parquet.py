"""Parquet files of raw columns, which their schema encodes while they are read."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpglm.exceptions import require
from dpglm.schema import Schema, load_schema
from dpglm.schema.table import plain_path
from dpglm.schema.values import check_names, composed, read_columns, with_max_row_norm
from dpglm.sources.base import LocalSource, rows_of_a_block


class ParquetSource(LocalSource):
    """Rows and labels of a Parquet file, or of a directory of them, encoded as the schema says.

    Parameters
    ----------
    path : path-like
        A file, or a directory, whose files are read in the order of their names.
    schema : Schema
        Columns, bounds, categories and labels. Other columns are not read.
    block_rows : int, optional
        Most rows of a block, within a row group; by default 8 MB of encoded rows.
    sparse_output : bool, default=False
        Encode to CSR blocks, for many categories.
    cache : bool or path-like, default=None
        Folder (for ``True``, of temporary files) of a file of encoded rows that later passes of a
        fit read. Only the user can read it. It is not encrypted, and ends with any end of the fit.

    Raises
    ------
    ImportError, OSError, ValueError
        If pyarrow is not installed, a file is not Parquet, or a column of the schema is missing.

    Examples
    --------
    >>> import tempfile
    >>> from dpglm import DPLogisticRegression
    >>> from dpglm.datasets import make_census
    >>> from dpglm.schema import load_schema
    >>> X, y = make_census(300, random_state=0, as_frame=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     X.assign(**{y.name: y}).to_parquet(f"{folder}/part-0.parquet")
    ...     source = ParquetSource(folder, load_schema("census"), block_rows=100)
    ...     model = DPLogisticRegression(classes=[0, 1], max_iter=3).fit(source)
    >>> source.block_rows, model.n_features_in_
    ((100, 100, 100), 141)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Schema | str | os.PathLike[str],
        *,
        block_rows: int | None = None,
        sparse_output: bool = False,
        cache: bool | str | os.PathLike[str] | None = None,
    ) -> None:
        self.cache = cache
        schema = schema if isinstance(schema, Schema) else load_schema(schema)
        self._schema, self._encoder = schema, schema.transformer(sparse_output)
        self._columns = [*schema.feature_names, schema.target.name]
        self.n_features = schema.n_encoded
        bound = schema.max_row_norm(fit_intercept=False)
        self.template = with_max_row_norm(np.empty((0, self.n_features)), bound)
        # A number has at most about five values, with those of its term.
        n_entries = 5 * len(schema.columns) + schema.n_interactions
        row_bytes = 12 * n_entries if sparse_output else 8 * self.n_features
        self._batch_rows = block_rows = rows_of_a_block(block_rows, row_bytes)
        require("pyarrow", "parquet", "ParquetSource")
        from pyarrow import dataset
        from pyarrow import schema as arrow_schema

        # With a schema no file is looked into, and the first to be broken is named later.
        path = os.fspath(plain_path(path, folder=True))
        found = dataset.dataset(path, arrow_schema([]), format="parquet")
        self._filesystem = found.filesystem
        # The file of each block, its row group and its place among the blocks of the group.
        self._places: list[tuple[str, int, int]] = []
        rows: list[int] = []
        for file in sorted(found.files):
            for group, n_rows in enumerate(self._group_rows(file)):
                for place, start in enumerate(range(0, n_rows, block_rows)):
                    self._places.append((file, group, place))
                    rows.append(min(block_rows, n_rows - start))
        if not rows:
            raise ValueError(f"{path!r} holds no rows.")
        self.block_rows = tuple(rows)

    def describe(self, block: int) -> str:
        file, group, place = self._places[block]
        return f"Block {block} (part {place} of row group {group} of {file})"

    def observed_labels(self) -> np.ndarray:
        return self._schema.classes

    def _open(self, file):
        from pyarrow import parquet

        return parquet.ParquetFile(self._filesystem.open_input_file(file), pre_buffer=False)

    def _group_rows(self, file):
        """Return the rows of each row group of a file, and check its columns."""
        try:
            with self._open(file) as parquet:
                metadata, names = parquet.metadata, [*map(composed, parquet.schema_arrow.names)]
        except Exception as error:
            raise OSError(f"{file} could not be read as Parquet: {error}") from error
        missing = [name for name in self._columns if composed(name) not in names]
        if missing:
            # A folder of Hive has it in its name.
            hint = "; write it into the files of such folders" * (f"{missing[0]}=" in file)
            raise ValueError(f"{file} has no column {missing[0]!r}, which the schema names{hint}.")
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def _read(self, wanted: Sequence[int]) -> Iterator[tuple[Any, None]]:
        import pyarrow

        places = dict.fromkeys(self._places[block] for block in wanted)
        for file in dict.fromkeys(place[0] for place in places):
            with self._open(file) as parquet:
                own = check_names(parquet.schema_arrow.empty_table(), self._columns)
                for group in dict.fromkeys(place[1] for place in places if place[0] == file):
                    batches = parquet.iter_batches(
                        batch_size=self._batch_rows, row_groups=[group], columns=own
                    )
                    for place, batch in enumerate(batches):
                        if (file, group, place) in places:
                            yield pyarrow.Table.from_batches([batch]), None

    def _encoded(self, table: Any, _: None) -> tuple[Any, np.ndarray]:
        target = self._schema.target
        labels = target.numbers(read_columns(table, [target.name])[target.name])
        return self._encoder.transform(table), labels
