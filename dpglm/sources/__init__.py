"""Tables that are read from files, or block by block, wherever they are."""

from dpglm.sources.base import Source
from dpglm.sources.csv import read_csv
from dpglm.sources.parquet import ParquetSource

__all__ = ["ParquetSource", "Source", "read_csv"]
