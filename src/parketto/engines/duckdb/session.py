"""DuckDB for one operation: a database in memory that spills, Arrow streams in, Arrow streams out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from parketto.errors import EngineUnavailable, OperationCancelled, OutOfMemory
from parketto.kernels.crew import Crew
from parketto.plan.limits import MEGABYTE

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_BATCH_ROWS = 32 * 1024

Result = TypeVar("Result")


def require_duckdb() -> Any:
    """The library, or an error that says how to install it."""
    try:
        import duckdb
    except ImportError as error:
        raise EngineUnavailable(
            "the DuckDB engine needs the package duckdb, which is not installed. To fix it, run: "
            "pip install 'parketto[duckdb]'"
        ) from error
    return duckdb


def connect(
    memory: int, threads: int, scratch: str, *, in_order: bool, fetch_extensions: bool = False
) -> DuckDBPyConnection:
    """A database in memory that uses no more than so many bytes of it, and else the scratch folder.

    Args:
        memory: How many bytes DuckDB may use before it spills.
        threads: How many threads it has.
        scratch: The folder to spill to.
        in_order: Whether rows keep the order that they come in without being told to; that takes memory.
        fetch_extensions: Whether DuckDB may fetch extensions: a user's own queries may need some.
    """
    connection: DuckDBPyConnection = require_duckdb().connect(
        ":memory:",
        config={
            "memory_limit": f"{max(1, memory // MEGABYTE)}MiB",
            "threads": threads,
            "temp_directory": scratch,
            "autoinstall_known_extensions": fetch_extensions,
            "preserve_insertion_order": in_order,
            # Tables are what was made known as tables, not whatever variables there are where a query is run.
            "python_enable_replacements": False,
        },
    )
    _quieten(connection)
    return connection


def _quieten(connection: DuckDBPyConnection) -> None:
    """Or DuckDB would draw on the standard output whenever a query takes a while."""
    connection.execute("SET enable_progress_bar = false")


def arrow_reader(result: DuckDBPyRelation, rows: int = _BATCH_ROWS) -> pa.RecordBatchReader:
    """The rows of a result as they come; DuckDB 2 has another name for this."""
    read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    return read(rows)


def arrow_table(result: DuckDBPyRelation) -> pa.Table:
    """All rows of a result; DuckDB 2 has another name for this."""
    return (getattr(result, "to_arrow_table", None) or result.fetch_arrow_table)()


def out_of_memory(error: Exception, memory: int, enough: int) -> OutOfMemory:
    """The error for work that takes more than the memory that DuckDB has, and cannot be spilled.

    Args:
        error: What DuckDB says.
        memory: How many bytes it has.
        enough: The setting with which it would have twice as much, in bytes.
    """
    reason = str(error).partition("\n")[0].removeprefix("Out of Memory Error: ")
    return OutOfMemory(
        f"DuckDB has {memory // MEGABYTE} MB of memory, and cannot spill all of what it needs: {reason}. Nothing "
        f"was changed; pass a larger memory_mb, such as memory_mb={enough // MEGABYTE}",
        enough // MEGABYTE,
    )


class Session:
    """A connection for one thread at a time, and its way to the others of the same database.

    Errors of a stream that DuckDB reads come out of it as what they were, not as DuckDB's words about them.
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
            _quieten(made._connection)
            self._cursors.append(made)
        return made

    def interrupt(self) -> None:
        """Make all queries of this database end now; from any thread."""
        with self._lock:
            for session in (self, *self._cursors):
                session._interrupted = True
                session._connection.interrupt()

    def feed(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Let queries read a stream of rows, once, under a name."""
        reader = pa.RecordBatchReader.from_batches(schema, self._watched(batches))
        self._connection.register(name, reader)

    def table(self, name: str, rows: pa.Table) -> None:
        """Let queries read a table under a name."""
        self._connection.register(name, rows)

    def view_files(self, name: str, paths: list[str], **options: Any) -> None:
        """Let queries read Parquet files of the local disk under a name."""
        self._connection.read_parquet(paths, **options).create_view(name)

    def run(self, query: str) -> None:
        """Run a statement."""
        with self._own_errors():
            self._apart(lambda: self._connection.execute(query))

    def rows(self, query: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query as they come."""
        with self._own_errors():
            yield from self._apart(lambda: arrow_reader(self._connection.sql(query)))

    def all_rows(self, query: str) -> pa.Table:
        """The rows of a query whose result is small."""
        with self._own_errors():
            return self._apart(lambda: arrow_table(self._connection.sql(query)))

    def _apart(self, work: Callable[[], Result]) -> Result:
        """Do work in a thread of its own, if this is the main one.

        There DuckDB looks for signals itself, and makes of a Ctrl-C an ordinary error ("Query interrupted").
        """
        if threading.current_thread() is not threading.main_thread():
            return work()
        with Crew(1, "parketto-duckdb") as crew:
            future: Future[Result] | None = None
            try:
                future = crew.submit(work)
                return future.result()
            except BaseException:
                if future is None or not future.done():
                    self.interrupt()
                raise

    def _watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
                # Of the setting, DuckDB has one half.
                raise out_of_memory(error, self._memory, 4 * self._memory) from error
            raise


def quoted_name(name: str) -> str:
    """A column's name as SQL has it.

    >>> print(quoted_name('a "b" c'))
    "a ""b"" c"
    """
    return '"' + name.replace('"', '""') + '"'
