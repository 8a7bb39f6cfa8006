"""Functions and handlers for each engine: argument mapping over `Dataset`, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fsspec import AbstractFileSystem

from parketto.dataset import Dataset
from parketto.engines.base import ProgressCallback
from parketto.operations.single import write_file
from parketto.operations.sources import given_rows, path_rows
from parketto.plan.limits import check_codec, check_columns_exist, check_names
from parketto.plan.merge import MergeStats, Strategy
from parketto.plan.naming import NamingScheme
from parketto.stats import MaintenanceStats, WriteStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact_parquet_dataset_pyarrow(
    path: str,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter = None,
    compression: str | None = None,
    dry_run: bool = False,
    filesystem: AbstractFileSystem | None = None,
) -> MaintenanceStats:
    """Put the small files of a dataset together, with PyArrow and fsspec alone. See `Dataset.compact`.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset
        >>> for part in range(4):
        ...     _ = Dataset("memory://compact-example", engine="pyarrow").write(pa.table({"part": [part]}))
        >>> stats = compact_parquet_dataset_pyarrow("memory://compact-example", target_mb_per_file=128)
        >>> stats["compacted_file_count"], stats["after_file_count"]
        (4, 1)
    """
    return Dataset(path, "pyarrow", filesystem).compact(
        target_mb_per_file, target_rows_per_file, partition_filter, compression, dry_run
    )


def optimize_parquet_dataset_pyarrow(
    path: str,
    zorder_columns: Sequence[str],
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter = None,
    compression: str | None = None,
    dry_run: bool = False,
    filesystem: AbstractFileSystem | None = None,
) -> MaintenanceStats:
    """Order the rows of a dataset by columns, with PyArrow and fsspec alone. See `Dataset.optimize`.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset
        >>> dataset = Dataset("memory://optimize-example", engine="pyarrow")
        >>> _ = dataset.write(pa.table({"user": [3, None, 1]}))
        >>> stats = optimize_parquet_dataset_pyarrow("memory://optimize-example", zorder_columns=["user"])
        >>> dataset.read().column("user").to_pylist()
        [1, 3, None]
    """
    return Dataset(path, "pyarrow", filesystem).optimize(
        zorder_columns, target_mb_per_file, target_rows_per_file, partition_filter, compression, dry_run
    )


class SparkParquetHandler:
    """Reads, writes, queries and maintains Parquet on Spark.

    Args:
        spark: The session to use; by default the active one, or else one that is started with the first use and
            stopped by `close`. A session that was there already stays open.
        storage_options: Options for the filesystem that a path names.
        filesystem: An fsspec filesystem, if paths alone do not say which.

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
        storage_options: Mapping[str, Any] | None = None,
        filesystem: AbstractFileSystem | None = None,
    ) -> None:
        from parketto.engines.spark.engine import SparkEngine

        self._engine = SparkEngine(spark)
        self._storage_options, self._filesystem = storage_options, filesystem

    def __enter__(self) -> SparkParquetHandler:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def spark(self) -> SparkSession:
        """The session that everything runs on."""
        return self._engine.session

    def close(self) -> None:
        """Stop the session if this handler started it. Safe to call twice."""
        self._engine.close()

    def read_parquet(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
    ) -> DataFrame:
        """A file, or all files of a dataset with the columns of its folders, as a Spark DataFrame.

        Args:
            path: A Parquet file or the directory of a dataset.
            columns: Which columns to read; by default all.
            partition_filter: Which partitions of a dataset to read.

        Raises:
            FileNotFoundError: There is nothing to read.
            ValueError: A column is not there; the message lists those that are.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/ticks"
            >>> _ = handler.write_parquet_dataset(pa.table({"day": [1, 2], "n": [3, 4]}), path, partition_by="day")
            >>> handler.read_parquet(path, columns=["n"]).orderBy("n").collect()
            [Row(n=3), Row(n=4)]
        """
        rows, root = path_rows(path, self._engine, self._filesystem, self._storage_options, partition_filter)
        if columns is not None:
            names = check_names("columns", columns)
            check_columns_exist(names, rows.schema)
            rows = rows.selected(names)
        return self._engine.frame(rows, root)

    def write_parquet(self, table: Any, path: str | os.PathLike[str], compression: str = "snappy") -> None:
        """Write rows to one Parquet file: all of it appears, or nothing. Folders on the way are made.

        Args:
            table: A Spark DataFrame, a PyArrow table or reader, a pandas or Polars frame, or a path.
            path: The file.
            compression: snappy, gzip, lz4, zstd, brotli or none.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/deep/down/one.parquet"
            >>> handler.write_parquet(pa.table({"n": [1, 2, 3]}), path, compression="brotli")
            >>> handler.read_parquet(path).count()
            3
        """
        codec = check_codec(compression) or "none"
        store, location = open_store(path, self._filesystem, self._storage_options)
        rows = given_rows(table, self._engine, self._filesystem, self._storage_options)
        write_file(store, location, rows, codec, self._engine)

    def write_parquet_dataset(
        self,
        table: Any,
        path: str | os.PathLike[str],
        mode: Literal["append", "overwrite"] = "append",
        max_rows_per_file: int | None = None,
        compression: str = "snappy",
        basename_template: str | None = None,
        naming: NamingScheme | None = None,
        partition_by: str | Sequence[str] | None = None,
    ) -> WriteStats:
        """Add rows to a dataset, or replace all of it by them. See `Dataset.write`.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/events"
            >>> rows = handler.spark.range(1000)
            >>> handler.write_parquet_dataset(rows, path, max_rows_per_file=600)["rows_written"]
            1000
        """
        return self._dataset(path).write(
            table,
            mode,
            max_rows_per_file=max_rows_per_file,
            compression=compression,
            partition_by=partition_by,
            naming=naming,
            basename_template=basename_template,
        )

    def execute_sql(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The result of a query as a Spark DataFrame.

        Args:
            query: Spark's SQL. Parquet can be named in it (``SELECT * FROM parquet.`/data/x.parquet` ``), or given
                as `tables`.
            parameters: Values for `?` (a list) or for `:name` (a mapping). They are bound, never pasted.
            tables: Names that the query uses, each for a path or a Spark DataFrame.

        Raises:
            pyspark.errors.PySparkException: Whatever Spark has to say about the query.

        Example:
            >>> handler = SparkParquetHandler()
            >>> handler.execute_sql("SELECT :low + 1 AS n", {"low": 41}).collect()
            [Row(n=42)]
        """
        frames = {
            name: self.read_parquet(table) if isinstance(table, str | os.PathLike) else table
            for name, table in (tables or {}).items()
        }
        return self._engine.query(query, parameters, frames)

    def merge_parquet_dataset(
        self,
        source: Any,
        target: str | os.PathLike[str],
        key_columns: str | Sequence[str],
        strategy: Strategy = "upsert",
        dedup_order_by: str | Sequence[str] | None = None,
        compression: str = "snappy",
        partition_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> MergeStats:
        """Bring rows into a dataset by their keys. See `Dataset.merge` for the strategies and the rules.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/users"
            >>> changes = pa.table({"id": [1, 1, 2], "at": [10, 20, 5], "name": ["A", "Ada", "Bob"]})
            >>> handler.merge_parquet_dataset(changes, path, ["id"], "deduplicate", dedup_order_by=["at"])
            {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}
        """
        return self._dataset(target).merge(
            source,
            key_columns,
            strategy,
            dedup_order_by=dedup_order_by,
            compression=compression,
            partition_by=partition_by,
            progress=progress,
        )

    def compact_parquet_dataset(
        self,
        path: str | os.PathLike[str],
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Put the small files of a dataset together. See `Dataset.compact`.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/events"
            >>> for part in range(4):
            ...     _ = handler.write_parquet_dataset(pa.table({"part": [part]}), path)
            >>> handler.compact_parquet_dataset(path, target_mb_per_file=128)["after_file_count"]
            1
        """
        return self._dataset(path).compact(
            target_mb_per_file, target_rows_per_file, partition_filter, compression, dry_run, progress=progress
        )

    def optimize_parquet_dataset(
        self,
        path: str | os.PathLike[str],
        zorder_columns: Sequence[str],
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Order the rows of each partition of a dataset by columns. See `Dataset.optimize`.

        Example:
            >>> import tempfile, pyarrow as pa
            >>> handler, path = SparkParquetHandler(), tempfile.mkdtemp() + "/events"
            >>> _ = handler.write_parquet_dataset(pa.table({"user": [3, None, 1]}), path)
            >>> _ = handler.optimize_parquet_dataset(path, zorder_columns=["user"])
            >>> [row.user for row in handler.read_parquet(path).collect()]
            [1, 3, None]
        """
        return self._dataset(path).optimize(
            zorder_columns,
            target_mb_per_file,
            target_rows_per_file,
            partition_filter,
            compression,
            dry_run,
            progress=progress,
        )

    def _dataset(self, path: str | os.PathLike[str]) -> Dataset:
        return Dataset(path, self._engine, self._filesystem, self._storage_options)
