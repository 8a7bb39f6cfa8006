"""Carries out plans with DuckDB: its joins and sorts where rows must meet, out of core; Arrow writes the files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa

from parketto.engines.base import Context, GroupResult
from parketto.engines.duckdb.merging import Merge
from parketto.engines.duckdb.scanning import can_scan, numbered, view_files
from parketto.engines.duckdb.session import Session, require_duckdb
from parketto.engines.duckdb.sorting import DealRows, SortGroup
from parketto.engines.merging import merge_small
from parketto.engines.threads import ThreadEngine
from parketto.errors import InvalidArgument, OutOfMemory
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rewrite import RewriteGroup
from parketto.kernels.rows import FileRows, FrameRows, RowSource
from parketto.kernels.travel import keeps_order, unpack
from parketto.kernels.work import Staging, Worker, cores, widest_row
from parketto.kernels.write import Output, Written
from parketto.plan.limits import MEGABYTE
from parketto.plan.rewrite import RewritePlan

DEFAULT_MEMORY_MB = 1024
# With less than this for a thread DuckDB runs out of memory where wide rows are sorted, instead of spilling them.
_THREAD_MEMORY = 128 * MEGABYTE
_VALUES_AT_ONCE = 8  # of the widest rows, a sort holds about so many whatever its limit is


class DuckDBEngine(ThreadEngine):
    """Joins, sorts and scans with DuckDB; what needs none of these runs as tasks with Arrow inside.

    Args:
        memory_mb: About how much memory may be used for data. DuckDB gets one half and spills to disk what does
            not fit, but never less than 128 MB; the other half is for reading and writing files.
        threads: How many threads DuckDB has, and how many files are written at once; by default one per core, as
            far as memory allows.
    """

    name = "duckdb"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        require_duckdb()
        super().__init__(memory_mb, threads)
        self._memory //= 2
        self._duckdb_memory = max(self._memory, _THREAD_MEMORY)
        self._threads = min(threads or cores(), self._duckdb_memory // _THREAD_MEMORY)

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """One task for each group; where rows are put in order, DuckDB sorts them."""
        if plan.clustering is None:
            return super().rewrite(plan, context)
        with self._session(context) as (session, _):
            tasks = [
                SortGroup(group, plan.operation, plan.clustering, session)
                if all(keeps_order(group.schema.field(name).type) for name in plan.order_by)
                and not self._is_too_wide(group)
                else RewriteGroup(group, plan.operation, plan.clustering)
                for group in plan.groups
            ]
            results = self.run(tasks, context)
        return [GroupResult(group, staged) for group, staged in zip(plan.groups, results, strict=True)]

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows as new files; DuckDB brings those of a partition together."""
        if isinstance(source, FrameRows) or not output.partition_by or self._is_too_wide(source):
            return super().write(source, output, context)
        with self._session(context) as (session, _):
            return self.run([DealRows(source, output, session)], context)[0]

    def _is_too_wide(self, rows: object) -> bool:
        """Whether DuckDB could not sort the rows of files for lack of memory: it holds some values whole."""
        return _VALUES_AT_ONCE * widest_row(rows) > self._duckdb_memory

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Match by DuckDB's join; values that DuckDB cannot put in order are matched by Arrow."""
        if isinstance(source, FrameRows):
            raise InvalidArgument(f"the {self.name} engine cannot read a {type(source.frame).__name__}")
        if not all(keeps_order(target.schema.field(name).type) for name in target.rules.order_by):
            return merge_small(self, source, target, context)
        with self._session(context) as (session, worker):
            return Merge(self, session, target, context).run(source, worker)

    def read(self, rows: FileRows) -> pa.Table:
        """The rows of files as a table, by DuckDB's own scan where that gives them exactly."""
        schema = carrier_schema(rows.schema).remove_metadata()
        found = self._scanned(rows, schema) if can_scan(rows) else None
        if found is None:
            with Worker(rows.store, Staging(""), self._memory, threads=self._threads) as worker:
                found = list(rows.read(worker))
        return pa.Table.from_batches(found, schema).cast(rows.schema)

    def _scanned(self, rows: FileRows, schema: pa.Schema) -> list[pa.RecordBatch] | None:
        """What DuckDB reads; None where it gives up, so that Arrow may read it or say which file is damaged."""
        with (
            tempfile.TemporaryDirectory(prefix="parketto-") as scratch,
            Session(self._duckdb_memory, self._threads, scratch, in_order=True) as session,
        ):
            try:
                view_files(session, "scanned", rows.store, rows.files)
                query = f"SELECT {numbered(rows.schema, rows.schema.names)} FROM scanned"
                return [unpack(batch, schema) for batch in session.rows(query)]
            except (require_duckdb().Error, OutOfMemory):
                return None

    @contextlib.contextmanager
    def _session(self, context: Context) -> Iterator[tuple[Session, Worker]]:
        """A database for one operation, which ends when the operation is cancelled."""
        with (
            self.worker(context) as worker,
            Session(self._duckdb_memory, self._threads, worker.scratch_directory()) as session,
        ):
            context.on_cancel.append(session.interrupt)
            yield session, worker
