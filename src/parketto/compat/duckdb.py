"""The handler of the DuckDB engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from parketto.compat.base import ParquetHandler
from parketto.parquet.row_source import arrow_rows
from parketto.storage.hive import PartitionFilter
from parketto.storage.options import AnyStorageOptions, GivenOptions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class DuckDBParquetHandler(ParquetHandler):
    """Reads, writes, queries and maintains Parquet with DuckDB.

    Args:
        storage_options: Where the files are (`LocalStorageOptions`, `AwsStorageOptions`, `StorageOptions`), or
            plain options for a path's filesystem.
        filesystem: An fsspec filesystem, as an alternative.
        memory_mb: The approximate memory for the data of operations; queries may use the same amount in addition.
            DuckDB spills the excess to disk.
        timezone: The time zone of timestamps without one in queries; UTC by default, not the machine's.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import StorageOptions
        >>> with DuckDBParquetHandler(StorageOptions("memory")) as handler:
        ...     _ = handler.write_parquet_dataset(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}), "/people")
        ...     stats = handler.merge_parquet_dataset(pa.table({"id": [2], "name": ["Ben"]}), "/people", ["id"])
        ...     found = handler.execute_sql("SELECT name FROM t WHERE id = ?", [2], tables={"t": "/people"})
        >>> stats
        {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 2}
        >>> found.to_pylist()
        [{'name': 'Ben'}]
    """

    def __init__(
        self,
        storage_options: GivenOptions = None,
        filesystem: AbstractFileSystem | None = None,
        memory_mb: int | None = None,
        *,
        timezone: str = "UTC",
    ) -> None:
        from parketto.engines.duckdb.engine import DEFAULT_MEMORY_MB, DuckDBEngine
        from parketto.engines.duckdb.queries import Queries

        self._engine = DuckDBEngine(memory_mb or DEFAULT_MEMORY_MB)
        if filesystem is None and isinstance(storage_options, AnyStorageOptions):
            filesystem = storage_options.filesystem()
        self._queries = Queries(filesystem or LocalFileSystem(), memory_mb or DEFAULT_MEMORY_MB, timezone)
        super().__init__(self._engine, storage_options, filesystem)

    @property
    def connection(self) -> DuckDBPyConnection:
        """The connection for queries; the filesystem is registered in it."""
        self._check_open()
        return self._queries.connection

    def close(self) -> None:
        """Close the connection. Safe to call twice.

        Example:
            >>> handler = DuckDBParquetHandler()
            >>> handler.close()
        """
        super().close()
        self._queries.close()

    def read_parquet(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        partition_filter: PartitionFilter = None,
    ) -> pa.Table:
        """A file, or a dataset with its partition columns, in the exact schema of the files.

        Args:
            path: A Parquet file or the directory of a dataset.
            columns: The columns to read; by default all.
            partition_filter: The partitions to read.

        Returns:
            The rows, in file order.

        Raises:
            FileNotFoundError: There is nothing to read.
            ValueError: A column does not exist; the message lists those that do.

        Example:
            >>> import pyarrow as pa
            >>> from parketto import StorageOptions
            >>> handler = DuckDBParquetHandler(StorageOptions("memory"))
            >>> table = pa.table({"day": [1, 2], "n": [3, 4]})
            >>> _ = handler.write_parquet_dataset(table, "/ticks", partition_by="day")
            >>> handler.read_parquet("/ticks", columns=["n"], partition_filter="day=2").to_pylist()
            [{'n': 4}]
        """
        return self._engine.read(self._rows(path, columns, partition_filter)[0])

    def execute_sql(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """The result of a query.

        Args:
            query: DuckDB SQL. It can read Parquet directly (`SELECT * FROM parquet_scan('/data/x.parquet')`; files
                of the registered filesystem by URL), or from `tables`.
            parameters: Values for `?` (a list) or for `$name` (a mapping). They are bound, not interpolated.
            tables: Table names of the query, mapped to paths, PyArrow tables or readers, or pandas or Polars
                DataFrames.

        Returns:
            The result, in DuckDB's Arrow types.

        Raises:
            OutOfMemory: The query needs more memory than `memory_mb`, and cannot spill.
            duckdb.Error: The query is invalid or fails.

        Example:
            >>> import pyarrow as pa
            >>> handler = DuckDBParquetHandler()
            >>> trades = pa.table({"symbol": ["BTC", "ETH", "BTC"], "size": [1.5, 2.0, 0.5]})
            >>> query = "SELECT symbol, sum(size) AS size FROM trades GROUP BY ALL HAVING sum(size) >= $least"
            >>> handler.execute_sql(query, {"least": 2.0}, {"trades": trades}).sort_by("symbol").to_pylist()
            [{'symbol': 'BTC', 'size': 2.0}, {'symbol': 'ETH', 'size': 2.0}]
        """
        self._check_open()
        sources = {
            name: self._rows(table)[0] if isinstance(table, str | os.PathLike) else arrow_rows(table)
            for name, table in (tables or {}).items()
        }
        return self._queries.run(query, parameters, sources, self._engine)
