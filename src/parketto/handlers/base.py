"""What handlers of all engines offer alike: argument mapping over `Dataset`, nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Self

from fsspec import AbstractFileSystem

from parketto.dataset import Dataset
from parketto.engines.base import Engine, ProgressCallback
from parketto.errors import InvalidArgument
from parketto.kernels.rows import FileRows
from parketto.operations.single import write_file
from parketto.operations.sources import given_rows, path_rows
from parketto.plan.clustering import DEFAULT_CURVE, Curve
from parketto.plan.copying import Rewrite
from parketto.plan.limits import check_codec, check_columns_exist, check_names
from parketto.plan.merge import MergeStats, Strategy
from parketto.plan.naming import NamingScheme
from parketto.stats import MaintenanceStats, WriteStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions


class ParquetHandler:
    """The operations that are the same on every engine; examples run on DuckDB."""

    def __init__(
        self,
        engine: Engine,
        storage_options: GivenOptions = None,
        filesystem: AbstractFileSystem | None = None,
    ) -> None:
        self._own_engine, self._storage_options, self._filesystem = engine, storage_options, filesystem
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what the handler holds. Safe to call twice."""
        self._closed = True

    @property
    def _any_engine(self) -> Engine:
        self._check_open()
        return self._own_engine

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(f"this {type(self).__name__} is closed; make a new one")

    def write_parquet(self, table: Any, path: str | os.PathLike[str], compression: str = "snappy") -> None:
        """Write rows to one Parquet file: all of it appears, or nothing. Folders on the way are made.

        Args:
            table: A PyArrow table or reader, a pandas or Polars frame, a path, or (on Spark) a Spark DataFrame.
            path: The file.
            compression: snappy, gzip, lz4, zstd, brotli or none.

        Raises:
            ValueError: The codec is unknown, or what was given are no rows.
            NotADirectoryError: The path is a directory.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> handler.write_parquet(pa.table({"n": [1, 2, 3]}), "/deep/down/one.parquet", compression="brotli")
            >>> handler.read_parquet("/deep/down/one.parquet").num_rows
            3
        """
        codec = check_codec(compression) or "none"
        store, location = open_store(path, self._filesystem, self._storage_options)
        rows = given_rows(table, self._any_engine, self._filesystem, self._storage_options)
        write_file(store, location, rows, codec, self._any_engine)

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
        progress: ProgressCallback | None = None,
    ) -> WriteStats:
        """Add rows to a dataset, or replace all of it by them. See `Dataset.write`.

        Args:
            table: A PyArrow table or reader, a pandas or Polars frame, a path, or (on Spark) a Spark DataFrame.
            path: The directory of the dataset; it is made if need be.
            mode: `"append"` adds files and touches none; `"overwrite"` replaces all Parquet files, atomically.
            max_rows_per_file: Cut files after so many rows.
            compression: snappy, gzip, lz4, zstd, brotli or none.
            basename_template: Such as `"data_{}.parquet"`: files are numbered, and numbering goes on with the next
                append.
            naming: `"uuid"` (the default), `"timestamp"` (names sort by time) or `"sequential"`.
            partition_by: Columns whose values become folders.
            progress: Called as work gets done.

        Returns:
            How many rows, files and bytes were written, and how many files were replaced.

        Raises:
            ValueError: A mode, codec or number that makes no sense, or rows with other columns than the dataset.
            TypeError: A column has another type than in the dataset that rows are added to.
            NotADirectoryError: The path is a file.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> table = pa.table({"id": range(1000)})
            >>> stats = handler.write_parquet_dataset(table, "/events", max_rows_per_file=600)
            >>> stats["files_written"], stats["rows_written"]
            (2, 1000)
        """
        return self._dataset(path).write(
            table,
            mode,
            max_rows_per_file=max_rows_per_file,
            compression=compression,
            partition_by=partition_by,
            naming=naming,
            basename_template=basename_template,
            progress=progress,
        )

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
        """Bring rows into a dataset by their keys. Only files with a matching key are rewritten.

        The strategies:

        * `upsert`: keys that are there get the source's values, others are added. The way to apply a change feed.
        * `insert`: only keys that are not there are added; no file is rewritten. For incremental loads that may be
          repeated.
        * `update`: only keys that are there change; others in the source are passed over.
        * `full_merge`: afterwards the dataset is the source: keys that the source lacks are removed.
        * `deduplicate`: as `upsert`, but the source may have a key several times: the last one counts, or the one
          that is highest in `dedup_order_by`.

        Args:
            source: A PyArrow table or reader, a pandas or Polars frame, a path, or (on Spark) a Spark DataFrame;
                with the same columns as the target, in any order.
            target: The directory of the dataset; it is made if need be.
            key_columns: The columns that say which row is which; without NULLs.
            strategy: See above.
            dedup_order_by: Columns that say which of several source rows with one key counts: the highest.
            compression: The codec of files that are written.
            partition_by: Columns whose values become folders, if the dataset is made now.
            progress: Called as work gets done.

        Returns:
            How many rows were inserted, updated and deleted, and the total afterwards.

        Raises:
            ValueError: Columns are missing, a key is NULL, the strategy is unknown, or keys of the source are not
                unique. Nothing was changed.
            TypeError: A column has another type in the source than in the target. Nothing was changed.

        Example:
            A change feed, in which the newest state of each key counts:

            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> changes = pa.table({"id": [1, 1, 2], "at": [10, 20, 5], "name": ["A", "Ada", "Bob"]})
            >>> handler.merge_parquet_dataset(changes, "/users", ["id"], "deduplicate", dedup_order_by=["at"])
            {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}

            An incremental load, which may be repeated without harm:

            >>> batch = pa.table({"id": [2, 3], "at": [7, 8], "name": ["Ben", "Cy"]})
            >>> handler.merge_parquet_dataset(batch, "/users", "id", "insert")
            {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 3}

            New values for what is there already, and for nothing else:

            >>> fixes = pa.table({"id": [3, 9], "at": [9, 9], "name": ["Cyd", "Zoe"]})
            >>> handler.merge_parquet_dataset(fixes, "/users", "id", "update")
            {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 3}

            The state of another system, as a whole:

            >>> everybody = pa.table({"id": [3, 4], "at": [10, 10], "name": ["Cyd", "Dee"]})
            >>> handler.merge_parquet_dataset(everybody, "/users", "id", "full_merge")
            {'inserted': 1, 'updated': 1, 'deleted': 2, 'total': 2}
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
        *,
        rewrite: Rewrite = "auto",
        verify: bool = False,
    ) -> MaintenanceStats:
        """Put the small files of a dataset together. See `Dataset.compact`.

        Args:
            path: The directory of the dataset.
            target_mb_per_file: About how large files should be; 128 MB if nothing is said.
            target_rows_per_file: How many rows a file may have at most.
            partition_filter: Which partitions to work on.
            compression: Another codec for files that are rewritten; by default the one they have.
            dry_run: Only say what would be done.
            progress: Called as work gets done.
            rewrite: How rows come into the new files: `"auto"`, `"copy"` or `"encode"`.
            verify: Whether row groups are decoded before they are copied, to find damage.

        Returns:
            How many files and bytes there were and are, how many were put together, and the codec; in a dry run
            also the groups that are planned.

        Raises:
            FileNotFoundError: There is no dataset.
            ValueError: A threshold or codec that makes no sense.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> for part in range(4):
            ...     _ = handler.write_parquet_dataset(pa.table({"part": [part]}), "/compact-me")
            >>> handler.compact_parquet_dataset("/compact-me", target_mb_per_file=128)["after_file_count"]
            1
        """
        return self._dataset(path).compact(
            target_mb_per_file,
            target_rows_per_file,
            partition_filter,
            compression,
            dry_run,
            rewrite=rewrite,
            verify=verify,
            progress=progress,
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
        *,
        curve: Curve = DEFAULT_CURVE,
    ) -> MaintenanceStats:
        """Lay out the rows of each partition of a dataset by columns. See `Dataset.optimize`.

        Args:
            path: The directory of the dataset.
            zorder_columns: The columns that queries filter by.
            target_mb_per_file: About how large files should be; 128 MB if nothing is said.
            target_rows_per_file: How many rows a file may have at most.
            partition_filter: Which partitions to work on.
            compression: Another codec for files that are rewritten; by default the one they have.
            dry_run: Only say what would be done.
            progress: Called as work gets done.
            curve: `"hilbert"`, `"zorder"`, or `"linear"` for a plain sort.

        Returns:
            How many files there were and are, how many were rewritten, along which columns and curve, the codec,
            and what queries on each column read before and after; in a dry run also the groups that are planned.

        Raises:
            FileNotFoundError: There is no dataset.
            ValueError: A column is not there (the message lists those that are), or a threshold makes no sense.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> _ = handler.write_parquet_dataset(pa.table({"user": [3, None, 1]}), "/order-me")
            >>> _ = handler.optimize_parquet_dataset("/order-me", zorder_columns=["user"])
            >>> handler.read_parquet("/order-me").column("user").to_pylist()
            [1, 3, None]
        """
        return self._dataset(path).optimize(
            zorder_columns,
            target_mb_per_file,
            target_rows_per_file,
            partition_filter,
            compression,
            dry_run,
            curve=curve,
            progress=progress,
        )

    def _rows(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
    ) -> tuple[FileRows, str]:
        """The rows of a file or dataset, and the folder that its partitions are below."""
        rows, root = path_rows(path, self._any_engine, self._filesystem, self._storage_options, partition_filter)
        if columns is not None:
            names = check_names("columns", columns)
            check_columns_exist(names, rows.schema)
            rows = rows.selected(names)
        return rows, root

    def _dataset(self, path: str | os.PathLike[str]) -> Dataset:
        return Dataset(path, self._any_engine, self._filesystem, self._storage_options)
