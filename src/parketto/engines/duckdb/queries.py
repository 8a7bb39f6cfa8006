"""User SQL on DuckDB."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
import threading
import weakref
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
from fsspec import AbstractFileSystem

from parketto.arguments import MEGABYTE
from parketto.engines.duckdb.engine import DuckDBEngine
from parketto.engines.duckdb.scanning import MAX_PRECISION, can_scan, local_paths
from parketto.engines.duckdb.session import arrow_table, connect, out_of_memory, quoted_name, require_duckdb
from parketto.errors import InvalidArgument, quoted
from parketto.expressions.time_zones import zone_info
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.runtime.task import cores

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class Queries:
    """Runs SQL queries over files of a filesystem, and over tables.

    Args:
        filesystem: The filesystem to register in DuckDB, under its protocols.
        memory_mb: The memory that DuckDB uses before it spills to disk.
        timezone: The time zone of queries.
    """

    def __init__(self, filesystem: AbstractFileSystem, memory_mb: int, timezone: str = "UTC") -> None:
        self._filesystem, self._memory = filesystem, memory_mb * MEGABYTE
        self._timezone = _zone_name(timezone)
        self._clean: weakref.finalize[Any, Any] | None = None
        self._connection: DuckDBPyConnection | None = None
        self._lock = threading.Lock()
        # A connection runs one query at a time.
        self._running = threading.Lock()

    @property
    def connection(self) -> DuckDBPyConnection:
        """The connection, opened on first use."""
        with self._lock:
            if self._connection is None:
                scratch = tempfile.mkdtemp(prefix="parketto-")
                # Removes the folder even if the connection is never closed.
                self._clean = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
                self._connection = connect(self._memory, cores(), scratch, in_order=True, fetch_extensions=True)
                # Not the machine's time zone: a query means the same everywhere.
                self._connection.execute(f"SET TimeZone = '{self._timezone}'")
                self._connection.register_filesystem(self._filesystem)
            return self._connection

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._clean is not None:
            self._clean()

    def run(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None,
        tables: Mapping[str, ArrowRows | FileRows],
        engine: DuckDBEngine,
    ) -> pa.Table:
        """The result of a query; its tables exist while it runs."""
        if isinstance(parameters, str | bytes):
            raise InvalidArgument("parameters must be a sequence of values, or a mapping of names to values")
        bound = dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())
        connection = self.connection
        with self._running:
            self._refuse_known(connection, tables)
            # Undo each registration in its own way, and once: a second time could drop an object of the user's.
            undo: list[Callable[[], object]] = []
            try:
                for name, rows in tables.items():
                    if isinstance(rows, FileRows) and can_scan(rows):
                        self._view(connection, name, rows)
                        drop = f"DROP VIEW temp.main.{quoted_name(name)}"
                        undo.append(partial(connection.execute, drop))
                    else:
                        found = engine.read(rows) if isinstance(rows, FileRows) else _table(rows)
                        connection.register(name, _queryable(found))
                        undo.append(partial(connection.unregister, name))
                result: Any = connection.sql(query, params=bound) if bound else connection.sql(query)
                return pa.table({}) if result is None else arrow_table(result)
            except require_duckdb().OutOfMemoryException as error:
                raise out_of_memory(error, self._memory, 2 * self._memory) from error
            finally:
                for step in undo:
                    step()

    @staticmethod
    def _refuse_known(connection: DuckDBPyConnection, tables: Mapping[str, ArrowRows | FileRows]) -> None:
        """Refuse names of temporary tables and views of the user, which would be lost."""
        if not tables:
            return
        query = (
            "SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal "
            "UNION ALL SELECT table_name FROM duckdb_tables() WHERE temporary"
        )
        known = {name.lower() for (name,) in connection.execute(query).fetchall()}
        if taken := sorted(name for name in tables if name.lower() in known):
            raise InvalidArgument(
                f"the connection already has temporary tables named {quoted(taken)}; use other names"
            )

    @staticmethod
    def _view(connection: DuckDBPyConnection, name: str, rows: FileRows) -> None:
        """Create a view of files that DuckDB scans itself: it reads only what the query needs."""
        columns = ", ".join(quoted_name(column) for column in rows.schema.names)
        paths = ", ".join(
            f"'{path.replace(chr(39), chr(39) * 2)}'" for path in local_paths(rows.store, rows.files)
        )
        connection.execute(
            f"CREATE TEMP VIEW {quoted_name(name)} AS SELECT {columns} FROM "
            f"read_parquet([{paths}], hive_partitioning = false)"
        )


def _zone_name(name: str) -> str:
    """DuckDB's name of a time zone.

    >>> _zone_name("+05:30"), _zone_name("Z"), _zone_name("America/New_York")
    ('GMT+05:30', 'UTC', 'America/New_York')
    """
    zone = zone_info(name)
    if zone is dt.UTC:
        return "UTC"
    if isinstance(zone, zoneinfo.ZoneInfo):
        return str(zone.key)
    minutes, seconds = divmod(abs(zone.utcoffset(None) or dt.timedelta()).seconds, 60)
    if seconds:
        raise InvalidArgument(f"DuckDB does not support the time zone {name!r}: offsets must be whole minutes")
    sign = "-" if (zone.utcoffset(None) or dt.timedelta()) < dt.timedelta() else "+"
    return f"GMT{sign}{minutes // 60:02}:{minutes % 60:02}"


def _table(rows: ArrowRows) -> pa.Table:
    """Rows as a table, which a query may read more than once."""
    return pa.Table.from_batches(list(rows.batches), rows.schema)


def _queryable(table: pa.Table) -> pa.Table:
    """A table whose types DuckDB accepts from Arrow, where it has an equivalent for unsupported ones."""
    return table.cast(pa.schema([item.with_type(_queryable_type(item.type)) for item in table.schema]))


def _queryable_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_float16(kind):
        return pa.float32()
    if pat.is_decimal256(kind) and kind.precision <= MAX_PRECISION:
        return pa.decimal128(kind.precision, kind.scale)
    return kind
