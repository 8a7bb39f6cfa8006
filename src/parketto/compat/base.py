"""The base of the handlers: maps arguments to `Dataset`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Self

from fsspec import AbstractFileSystem

from parketto.arguments import check_codec, check_columns_exist, check_names
from parketto.dataset import Dataset
from parketto.engines.base import Engine
from parketto.errors import InvalidArgument
from parketto.merge.rules import MergeStats, Strategy
from parketto.operations.sources import path_rows, row_source_of
from parketto.operations.write_file import write_file
from parketto.parquet.row_source import FileRows
from parketto.planning.clustering import DEFAULT_CURVE, Curve
from parketto.planning.copy_policy import Rewrite
from parketto.planning.naming import NamingScheme
from parketto.progress import ProgressOption
from parketto.results import MaintenanceStats, WriteStats
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions


class ParquetHandler:
    """The operations common to all engines; the examples use DuckDB."""

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
        """Release all resources. Safe to call twice."""
        self._closed = True

    @property
    def _any_engine(self) -> Engine:
        self._check_open()
        return self._own_engine

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(f"this {type(self).__name__} is closed; make a new one")

    def write_parquet(self, table: Any, path: str | os.PathLike[str], compression: str = "snappy") -> None:
        """Write rows to one Parquet file, atomically. Missing parent directories are created.

        Args:
            table: A PyArrow table or reader, a pandas, Polars or (on Spark) Spark DataFrame, or a path.
            path: The file.
            compression: snappy, gzip, lz4, zstd, brotli or none.

        Raises:
            ValueError: The codec is unknown, or `table` does not contain rows.
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
        rows = row_source_of(table, self._any_engine, self._filesystem, self._storage_options)
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
        progress: ProgressOption = None,
    ) -> WriteStats:
        """Append rows to a dataset, or replace all of its rows. See `Dataset.write`.

        Args:
            table: A PyArrow table or reader, a pandas, Polars or (on Spark) Spark DataFrame, or a path.
            path: The directory of the dataset; created if missing.
            mode: `"append"` only adds files; `"overwrite"` replaces all Parquet files, atomically.
            max_rows_per_file: The maximum number of rows per file.
            compression: snappy, gzip, lz4, zstd, brotli or none.
            basename_template: Such as `"data_{}.parquet"`: files are numbered, and the next append continues the
                numbering.
            naming: `"uuid"` (the default), `"timestamp"` (names sort by time) or `"sequential"`.
            partition_by: The partition columns.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Returns:
            The number of rows, files and bytes written, and of files replaced.

        Raises:
            ValueError: An invalid mode, codec or number, or columns that differ from those of the dataset.
            TypeError: A column of appended rows has another type than in the dataset.
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
        progress: ProgressOption = None,
    ) -> MergeStats:
        """Merge rows into a dataset by key. Only files with a matching key are rewritten.

        The strategies:

        * `upsert`: updates existing keys and inserts new ones. For change feeds.
        * `insert`: only inserts new keys; no file is rewritten. For incremental loads that may be repeated.
        * `update`: only updates existing keys; other keys of the source are ignored.
        * `full_merge`: makes the dataset equal to the source: keys that the source lacks are deleted.
        * `deduplicate`: like `upsert`, but the source may contain duplicate keys: the last row wins, or the one
          that is highest in `dedup_order_by`.

        Args:
            source: A PyArrow table or reader, a pandas, Polars or (on Spark) Spark DataFrame, or a path; with the
                same columns as the target, in any order.
            target: The directory of the dataset; created if missing.
            key_columns: The columns that identify a row; without NULLs.
            strategy: See above.
            dedup_order_by: Of source rows with one key, the one with the highest values of these columns wins.
            compression: The codec of written files.
            partition_by: The partition columns, if the dataset does not exist yet.
            progress: True to show it, or a callback that gets a `Progress` as work completes.

        Returns:
            The number of rows inserted, updated and deleted, and the total afterwards.

        Raises:
            ValueError: Columns are missing, a key is NULL, the strategy is unknown, or the source has duplicate
                keys. Nothing was changed.
            TypeError: A column has different types in source and target. Nothing was changed.

        Example:
            A change feed, of which the newest state of each key is kept:

            >>> import pyarrow as pa
            >>> from parketto import DuckDBParquetHandler, StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> changes = pa.table({"id": [1, 1, 2], "at": [10, 20, 5], "name": ["A", "Ada", "Bob"]})
            >>> handler.merge_parquet_dataset(changes, "/users", ["id"], "deduplicate", dedup_order_by=["at"])
            {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}

            An incremental load, which may be repeated:

            >>> batch = pa.table({"id": [2, 3], "at": [7, 8], "name": ["Ben", "Cy"]})
            >>> handler.merge_parquet_dataset(batch, "/users", "id", "insert")
            {'inserted': 1, 'updated': 0, 'deleted': 0, 'total': 3}

            New values for existing keys only:

            >>> fixes = pa.table({"id": [3, 9], "at": [9, 9], "name": ["Cyd", "Zoe"]})
            >>> handler.merge_parquet_dataset(fixes, "/users", "id", "update")
            {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 3}

            A full snapshot of another system:

            >>> snapshot = pa.table({"id": [3, 4], "at": [10, 10], "name": ["Cyd", "Dee"]})
            >>> handler.merge_parquet_dataset(snapshot, "/users", "id", "full_merge")
            {'inserted': 1, 'updated': 1, 'deleted': 2, 'total': 2}
        """
        return self._dataset(target).merge(
            source,
            key_columns,
            strategy=strategy,
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
        progress: ProgressOption = None,
        *,
        rewrite: Rewrite = "auto",
        verify: bool = False,
    ) -> MaintenanceStats:
        """Merge the small files of a dataset. See `Dataset.compact`.

        Args:
            path: The directory of the dataset.
            target_mb_per_file: The target file size; 128 MB if neither threshold is given.
            target_rows_per_file: The maximum number of rows per file.
            partition_filter: The partitions to rewrite.
            compression: The codec of rewritten files; by default they keep theirs.
            dry_run: Only plan: nothing is written or removed.
            progress: True to show it, or a callback that gets a `Progress` as work completes.
            rewrite: How row groups are written to the new files: `"auto"`, `"copy"` or `"encode"`.
            verify: Decode row groups before they are copied, to find damage.

        Returns:
            The number of files and bytes before and after, the number of merged files, and the codec; in a dry run
            also the planned groups.

        Raises:
            FileNotFoundError: There is no dataset.
            ValueError: An invalid threshold or codec.

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
            partition_filter=partition_filter,
            compression=compression,
            dry_run=dry_run,
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
        progress: ProgressOption = None,
        *,
        curve: Curve = DEFAULT_CURVE,
    ) -> MaintenanceStats:
        """Cluster the rows of each partition of a dataset by columns. See `Dataset.optimize`.

        Args:
            path: The directory of the dataset.
            zorder_columns: The columns that queries filter by.
            target_mb_per_file: The target file size; 128 MB if neither threshold is given.
            target_rows_per_file: The maximum number of rows per file.
            partition_filter: The partitions to rewrite.
            compression: The codec of rewritten files; by default they keep theirs.
            dry_run: Only plan: nothing is written or removed.
            progress: True to show it, or a callback that gets a `Progress` as work completes.
            curve: `"hilbert"`, `"zorder"`, or `"linear"` for a plain sort.

        Returns:
            The number of files before and after, the number of rewritten files, the columns and curve, the codec,
            and the share that queries on each column read before and after; in a dry run also the planned groups.

        Raises:
            FileNotFoundError: There is no dataset.
            ValueError: A column does not exist (the message lists those that do), or a threshold is invalid.

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
            target_mb_per_file=target_mb_per_file,
            target_rows_per_file=target_rows_per_file,
            partition_filter=partition_filter,
            compression=compression,
            dry_run=dry_run,
            curve=curve,
            progress=progress,
        )

    def _rows(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
    ) -> tuple[FileRows, str]:
        """The rows of a file or dataset, and the root directory of its partitions."""
        rows, root = path_rows(path, self._any_engine, self._filesystem, self._storage_options, partition_filter)
        if columns is not None:
            names = check_names("columns", columns)
            check_columns_exist(names, rows.schema)
            rows = rows.selected(names)
        return rows, root

    def _dataset(self, path: str | os.PathLike[str]) -> Dataset:
        return Dataset(path, self._any_engine, filesystem=self._filesystem, storage_options=self._storage_options)
