"""The handler of the Spark engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

from parketto.compat.base import ParquetHandler
from parketto.storage.hive import PartitionFilter
from parketto.storage.options import GivenOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkParquetHandler(ParquetHandler):
    """Reads, writes, queries and maintains Parquet on Spark.

    Args:
        spark: The session; by default the active one, or one that is started on first use and stopped by `close`.
            Existing sessions stay open.
        storage_options: Where the files are (`AwsStorageOptions`, `StorageOptions`, …), or plain options for a
            path's filesystem.
        filesystem: An fsspec filesystem, if paths do not determine it.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> handler = SparkParquetHandler()  # as a context manager it closes itself
        >>> path = tempfile.mkdtemp() + "/users"
        >>> stats = handler.write_parquet_dataset(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}), path)
        >>> handler.merge_parquet_dataset(pa.table({"id": [2], "name": ["Ben"]}), path, key_columns=["id"])
        {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 2}
        >>> handler.execute_sql("SELECT name FROM users WHERE id = ?", [2], tables={"users": path}).collect()
        [Row(name='Ben')]
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        storage_options: GivenOptions = None,
        filesystem: AbstractFileSystem | None = None,
    ) -> None:
        from parketto.engines.spark.engine import SparkEngine

        self._engine = SparkEngine(spark)
        super().__init__(self._engine, storage_options, filesystem)

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        self._check_open()
        return self._engine.session

    def close(self) -> None:
        """Stop the session if this handler started it. Safe to call twice."""
        super().close()
        self._engine.close()

    def read_parquet(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
    ) -> DataFrame:
        """A file, or a dataset with its partition columns, as a Spark DataFrame.

        Args:
            path: A Parquet file or the directory of a dataset.
            columns: The columns to read; by default all.
            partition_filter: The partitions to read.

        Raises:
            FileNotFoundError: There is nothing to read.
            ValueError: A column does not exist; the message lists those that do.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/ticks"
            >>> _ = handler.write_parquet_dataset(pa.table({"day": [1, 2], "n": [3, 4]}), path, partition_by="day")
            >>> handler.read_parquet(path, columns=["n"]).orderBy("n").collect()
            [Row(n=3), Row(n=4)]
        """
        return self._engine.frame(*self._rows(path, columns, partition_filter))

    def execute_sql(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The result of a query as a Spark DataFrame.

        Args:
            query: Spark SQL. It can read Parquet directly (``SELECT * FROM parquet.`/data/x.parquet` ``), or from
                `tables`.
            parameters: Values for `?` (a list) or for `:name` (a mapping). They are bound, not interpolated.
            tables: Table names of the query, mapped to paths or Spark DataFrames. Visible to this query only.

        Raises:
            pyspark.errors.PySparkException: The query is invalid or fails.

        Example:
            >>> handler = SparkParquetHandler()
            >>> handler.execute_sql("SELECT :low + 1 AS n", {"low": 41}).collect()
            [Row(n=42)]
        """
        self._check_open()
        frames = {
            name: self.read_parquet(table) if isinstance(table, str | os.PathLike) else table
            for name, table in (tables or {}).items()
        }
        return self._engine.query(query, parameters, frames)
