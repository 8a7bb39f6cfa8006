"""Executes plans with DuckDB: it joins rows out of core and runs queries, and Arrow writes the files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa

from parketto.arguments import MEGABYTE
from parketto.engines.base import Context, plain_local_paths
from parketto.engines.duckdb.merging import Merge
from parketto.engines.duckdb.scanning import can_scan, numbered, view_files
from parketto.engines.duckdb.session import Session, require_duckdb
from parketto.engines.duckdb.text_files import duckdb_text_rows
from parketto.engines.merging import broadcast_merge
from parketto.engines.text_files import TextFormat
from parketto.engines.text_types import KnownTypes
from parketto.engines.threads import ThreadEngine
from parketto.errors import OutOfMemory
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import from_exchange, keeps_order
from parketto.parquet.row_source import FileRows, FrameRows, RowSource
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker, cores
from parketto.storage.store import FileEntry, Store

DEFAULT_MEMORY_MB = 1024
_THREAD_MEMORY = 128 * MEGABYTE  # with less per thread, DuckDB fails to sort wide rows instead of spilling them


class DuckDBEngine(ThreadEngine):
    """Joins and scans with DuckDB; all other work runs as Arrow tasks.

    Args:
        memory_mb: Approximate memory limit for data. DuckDB gets one half, at least 128 MB, and spills to disk
            what does not fit; the other half is for reading and writing files.
        threads: Number of DuckDB threads, and of files that are written at once; by default one per core, as far
            as memory allows.
    """

    name = "duckdb"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        require_duckdb()
        super().__init__(memory_mb, threads)
        self._memory //= 2
        self._duckdb_memory = max(self._memory, _THREAD_MEMORY)
        self._threads = min(threads or cores(), self._duckdb_memory // _THREAD_MEMORY)

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Match by DuckDB's join; if DuckDB cannot sort the `order_by` columns, match by Arrow."""
        assert not isinstance(source, FrameRows), "only the Spark engine adopts DataFrames"
        if not all(keeps_order(target.schema.field(name).type) for name in target.rules.order_by):
            return broadcast_merge(self, source, target, context)
        with self._session(context) as (session, worker):
            return Merge(self, session, target, context).run(source, worker)

    def read(self, rows: FileRows) -> pa.Table:
        """The rows of files as a table, read by DuckDB's own scan where that is exact."""
        schema = decoded_schema(rows.schema).remove_metadata()
        found = self._scanned(rows, schema) if can_scan(rows) else None
        if found is None:
            with Worker(rows.store, Staging(""), self._memory, threads=self._threads) as worker:
                found = list(rows.read(worker))
        return pa.Table.from_batches(found, schema).cast(rows.schema)

    def scan_files(
        self, store: Store, entries: Sequence[FileEntry], format_name: TextFormat, known: KnownTypes
    ) -> RowSource:
        """The rows of CSV or JSON files, read by DuckDB if they are on the local disk."""
        paths = plain_local_paths(store, entries)
        if paths is None:
            return super().scan_files(store, entries, format_name, known)
        return duckdb_text_rows(paths, format_name, known, self._duckdb_memory, self._threads)

    def _scanned(self, rows: FileRows, schema: pa.Schema) -> list[pa.RecordBatch] | None:
        """The rows that DuckDB reads; None if it fails, so that Arrow reads them or names the damaged file."""
        with (
            tempfile.TemporaryDirectory(prefix="parketto-") as scratch,
            Session(self._duckdb_memory, self._threads, scratch, in_order=True) as session,
        ):
            try:
                view_files(session, "scanned", rows.store, rows.files)
                query = f"SELECT {numbered(rows.schema, rows.schema.names)} FROM scanned"
                return [from_exchange(batch, schema) for batch in session.rows(query)]
            except (require_duckdb().Error, OutOfMemory):
                return None

    @contextlib.contextmanager
    def _session(self, context: Context) -> Iterator[tuple[Session, Worker]]:
        """A database for one operation, interrupted when the operation is cancelled."""
        with (
            self.worker(context) as worker,
            Session(self._duckdb_memory, self._threads, worker.scratch_directory()) as session,
        ):
            context.on_cancel.append(session.interrupt)
            yield session, worker
