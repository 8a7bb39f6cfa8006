"""The handler of the DuckDB engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from parketto.handlers.base import ParquetHandler
from parketto.kernels.rows import arrow_rows
from parketto.storage.hive import PartitionFilter
from parketto.storage.options import AnyStorageOptions, GivenOptions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class DuckDBParquetHandler(ParquetHandler):
    """Reads, writes, queries and maintains Parquet with DuckDB.

    Args:
        storage_options: Where the files are (`LocalStorageOptions`, `AwsStorageOptions`, `StorageOptions`), or
            plain options for the filesystem that a path names.
        filesystem: An fsspec filesystem, instead.
        memory_mb: About how much memory operations may use for data, and queries as much again; DuckDB spills to
            disk what does not fit.
        timezone: The time zone in which queries read times that do not say theirs; UTC by default, whatever the
            machine's is.

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
        """The connection that queries run on; the filesystem is registered in it."""
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
        """A file, or all files of a dataset with the columns of its folders, in their exact schema.

        Args:
            path: A Parquet file or the directory of a dataset.
            columns: Which columns to read; by default all.
            partition_filter: Which partitions of a dataset to read.

        Returns:
            The rows, in the order of the files.

        Raises:
            FileNotFoundError: There is nothing to read.
            ValueError: A column is not there; the message lists those that are.

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
            query: DuckDB's SQL. Parquet can be named in it (`SELECT * FROM parquet_scan('/data/x.parquet')`; files
                of the registered filesystem by their URLs), or given as `tables`.
            parameters: Values for `?` (a list) or for `$name` (a mapping). They are bound, never pasted.
            tables: Names that the query uses, each for a path, a PyArrow table or reader, or a pandas or Polars
                frame.

        Returns:
            What the query gives, in the Arrow types that DuckDB has for it.

        Raises:
            OutOfMemory: The query needs more memory than `memory_mb`, and cannot be spilled.
            duckdb.Error: Whatever else DuckDB has to say about the query.

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
