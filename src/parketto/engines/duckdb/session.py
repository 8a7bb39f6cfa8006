"""DuckDB for one operation: an in-memory database that spills, with Arrow streams in and out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from parketto.arguments import MEGABYTE
from parketto.errors import EngineUnavailable, OperationCancelled, OutOfMemory
from parketto.runtime.threads import ThreadPool

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_BATCH_ROWS = 32 * 1024  # rows per batch of a streamed result

Result = TypeVar("Result")


def require_duckdb() -> Any:
    """The duckdb module; raises an error that says how to install it."""
    try:
        import duckdb
    except ImportError as error:
        raise EngineUnavailable(
            "the DuckDB engine needs the package duckdb, which is not installed. To fix it, run: "
            "pip install 'parketto[duckdb]'; or use engine='pyarrow', which is always available"
        ) from error
    return duckdb


def connect(
    memory: int, threads: int, scratch: str, *, in_order: bool, fetch_extensions: bool = False
) -> DuckDBPyConnection:
    """An in-memory database with a memory limit, which spills to the scratch folder.

    Args:
        memory: Bytes that DuckDB may use before it spills.
        threads: The number of threads.
        scratch: The folder to spill to.
        in_order: Whether rows keep their input order without ORDER BY; that takes memory.
        fetch_extensions: Whether DuckDB may install extensions, which a user's own queries may need.
    """
    connection: DuckDBPyConnection = require_duckdb().connect(
        ":memory:",
        config={
            "memory_limit": f"{max(1, memory // MEGABYTE)}MiB",
            "threads": threads,
            "temp_directory": scratch,
            "autoinstall_known_extensions": fetch_extensions,
            "preserve_insertion_order": in_order,
            # Queries see registered tables only, not the Python variables around them.
            "python_enable_replacements": False,
        },
    )
    _disable_progress_bar(connection)
    return connection


def _disable_progress_bar(connection: DuckDBPyConnection) -> None:
    """Turn the progress bar off, which DuckDB draws on standard output during long queries."""
    connection.execute("SET enable_progress_bar = false")


def arrow_reader(result: DuckDBPyRelation, rows: int = _BATCH_ROWS) -> pa.RecordBatchReader:
    """A stream of a result's rows; DuckDB 2 has another name for this."""
    read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    return read(rows)


def arrow_table(result: DuckDBPyRelation) -> pa.Table:
    """All rows of a result; DuckDB 2 has another name for this."""
    return (getattr(result, "to_arrow_table", None) or result.fetch_arrow_table)()


def out_of_memory(error: Exception, memory: int, enough: int) -> OutOfMemory:
    """The error for work that exceeds DuckDB's memory and cannot be spilled.

    Args:
        error: DuckDB's own error.
        memory: DuckDB's memory limit, in bytes.
        enough: The setting that doubles this limit, in bytes.
    """
    reason = str(error).partition("\n")[0].removeprefix("Out of Memory Error: ")
    return OutOfMemory(
        f"DuckDB has {memory // MEGABYTE} MB of memory, and cannot spill all that it needs: {reason}. Nothing "
        f"was changed; pass a larger memory_mb, such as memory_mb={enough // MEGABYTE}",
        enough // MEGABYTE,
    )


class Session:
    """A connection for one thread at a time; `cursor` opens others to the same database.

    Errors of a stream that DuckDB reads are raised unchanged, not as errors of DuckDB.
    """

    def __init__(self, memory: int, threads: int, scratch: str, *, in_order: bool = False) -> None:
        self._connection = connect(memory, threads, scratch, in_order=in_order)
        self._memory = memory
        self._cursors: list[Session] = []
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._interrupted = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for cursor in self._cursors:
            cursor._connection.close()
        self._connection.close()

    def cursor(self) -> Session:
        """Another connection to the same database, for another thread."""
        made = object.__new__(Session)
        made._cursors, made._lock, made._memory = [], self._lock, self._memory
        made._failure, made._interrupted = None, self._interrupted
        with self._lock:
            made._connection = self._connection.cursor()
            _disable_progress_bar(made._connection)
            self._cursors.append(made)
        return made

    def interrupt(self) -> None:
        """Interrupt all queries of this database; callable from any thread."""
        with self._lock:
            for session in (self, *self._cursors):
                session._interrupted = True
                session._connection.interrupt()

    def feed(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Register a stream of rows, which queries can read once."""
        reader = pa.RecordBatchReader.from_batches(schema, self._record_failure(batches))
        self._connection.register(name, reader)

    def table(self, name: str, rows: pa.Table) -> None:
        """Register a table for queries."""
        self._connection.register(name, rows)

    def view_files(self, name: str, paths: list[str], **options: Any) -> None:
        """Create a view of Parquet files on the local disk."""
        self._connection.read_parquet(paths, **options).create_view(name)

    def run(self, query: str) -> None:
        """Run a statement."""
        with self._own_errors():
            self._off_main_thread(lambda: self._connection.execute(query))

    def rows(self, query: str) -> Iterator[pa.RecordBatch]:
        """A stream of the rows of a query."""
        with self._own_errors():
            yield from self._off_main_thread(lambda: arrow_reader(self._connection.sql(query)))

    def all_rows(self, query: str) -> pa.Table:
        """All rows of a query, whose result is small."""
        with self._own_errors():
            return self._off_main_thread(lambda: arrow_table(self._connection.sql(query)))

    def _off_main_thread(self, work: Callable[[], Result]) -> Result:
        """Run work in another thread, if this is the main one.

        In the main thread DuckDB handles signals itself, and turns Ctrl-C into an ordinary error ("Query
        interrupted").
        """
        if threading.current_thread() is not threading.main_thread():
            return work()
        with ThreadPool(1, "parketto-duckdb") as pool:
            future: Future[Result] | None = None
            try:
                future = pool.submit(work)
                return future.result()
            except BaseException:
                if future is None or not future.done():
                    self.interrupt()
                raise

    def _record_failure(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            self._failure = error
            raise

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure from None
            if self._interrupted:
                raise OperationCancelled("the operation was cancelled; nothing was changed") from error
            if isinstance(error, require_duckdb().OutOfMemoryException):
                # DuckDB gets one half of the setting.
                raise out_of_memory(error, self._memory, 4 * self._memory) from error
            raise


def quoted_name(name: str) -> str:
    """A column name, quoted for SQL.

    >>> print(quoted_name('a "b" c'))
    "a ""b"" c"
    """
    return '"' + name.replace('"', '""') + '"'


def relation_of(rows: Any, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
    """A relation over an Arrow object, which DuckDB scans when the relation is used."""
    duckdb = require_duckdb()
    return duckdb.from_arrow(rows) if connection is None else connection.from_arrow(rows)
