"""Executes plans on Spark: Arrow tasks, and Spark's own shuffle where tasks must exchange rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from parketto.arguments import MEGABYTE, check_positive_integer
from parketto.engines.base import Context, GroupResult, TaskEngine, plain_local_paths
from parketto.engines.merging import broadcast_merge
from parketto.engines.spark.clustering import WriteBuckets, along_curve, in_order, sampling
from parketto.engines.spark.frames import (
    ScanRows,
    SpoolRows,
    WriteRows,
    count_frame,
    derived_frame,
    spool,
    spool_footers,
    write_frame,
)
from parketto.engines.spark.jobs import session_stopped
from parketto.engines.spark.merging import ShuffleMerge
from parketto.engines.spark.queries import is_frame, run_query
from parketto.engines.spark.reading import read_files
from parketto.engines.spark.session import (
    active_session,
    get_session,
    is_local,
    is_stopped,
    stop_session,
    worker_memory_mb,
)
from parketto.engines.spark.shuffle_write import shuffle_write
from parketto.engines.spark.tasks import parallelism, results, run_tasks, spark_errors, stage_progress
from parketto.engines.spark.text_files import reading_text, text_frame
from parketto.engines.spark.types import stored_columns, stored_schema
from parketto.engines.text_files import TextFormat
from parketto.engines.text_types import KnownTypes, ParsedColumns, named
from parketto.errors import InvalidArgument, TransformFailed
from parketto.expressions.derived import DerivedColumns
from parketto.merge.key_join import WriteAdditions
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import exchange_name, keeps_order
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import ArrowRows, FileRows, FrameRows, RowSource, checked_columns
from parketto.planning.rewrite import FileGroup, RewritePlan
from parketto.runtime.batches import decoded_bytes
from parketto.runtime.task import Task, Worker, cores
from parketto.storage.store import FileEntry, Store
from parketto.tasks.cluster import buckets_of
from parketto.tasks.rewrite import RewriteGroup, group_output
from parketto.tasks.scan import Scan
from parketto.tasks.write import CopyRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_MEMORY_MB = 256
DEFAULT_BROADCAST_MB = 64
# Tasks on one machine share one copy of the source, in the page cache.
LOCAL_BROADCAST_MB = 256
DEFAULT_SHUFFLE_MB = 512
# With fewer cores, one task is faster than a shuffle. On two busy cores, 10 million rows took 53 s shuffled as JVM
# rows and 15 s in one task; shuffled to their partitions as Arrow blocks, 10 s and 5 s.
_CORES_FOR_SHUFFLE = 8
DEFAULT_FOOTERS_IN_TASKS = 5000
_BROADCAST_SHARE = 16  # a broadcast source gets 1/16 of a Python worker's memory limit, if Spark sets one
_COPY_BYTES = 64 * MEGABYTE  # bytes of files per copy task
_SORT_ALONE_BYTES = 64 * MEGABYTE  # a group up to this size is not shuffled for the sake of balance
_OUTSIZED_FACTOR = 2  # a larger group is shuffled if it exceeds twice a core's share of the work

Result = TypeVar("Result")


class SparkEngine(TaskEngine):
    """Runs every operation on Spark. The session is found, or started, on first use.

    Args:
        spark: The session to use; by default the active one, else a new one.
        memory_mb: Approximate memory limit for the data of one Spark task's Python worker.
        broadcast_mb: A merge broadcasts a source up to this uncompressed size, and shuffles a larger one. By
            default 64, or 256 if all tasks run on this machine.
        shuffle_mb: A partition larger than this is sorted by a shuffle; a smaller one is sorted in one task, which
            spills to disk if needed. By default 512, and unlimited with fewer than 8 cores, where a single task is
            faster. Repartitioning shuffles files larger than this; by default it always shuffles, unless all tasks
            run on this machine and it has fewer than 8 cores.
        footers_in_tasks: With at least this many files, Spark tasks read the footers.
    """

    name = "spark"

    def __init__(
        self,
        spark: SparkSession | None = None,
        memory_mb: int = DEFAULT_MEMORY_MB,
        broadcast_mb: float | None = None,
        shuffle_mb: float | None = None,
        footers_in_tasks: int = DEFAULT_FOOTERS_IN_TASKS,
    ) -> None:
        check_positive_integer("memory_mb", memory_mb)
        check_positive_integer("footers_in_tasks", footers_in_tasks)
        self.footers_in_tasks = footers_in_tasks
        self._given = spark
        self._started: SparkSession | None = None
        self._memory = memory_mb * MEGABYTE
        self._broadcast_mb = broadcast_mb
        self._shuffle_mb = shuffle_mb

    def _broadcast_bytes(self, session: SparkSession) -> int:
        found = self._broadcast_mb
        if found is None:
            found = LOCAL_BROADCAST_MB if is_local(session) else DEFAULT_BROADCAST_MB
            if (limit := worker_memory_mb(session)) is not None:
                found = min(found, limit / _BROADCAST_SHARE)
        return int(found * MEGABYTE)

    @property
    def session(self) -> SparkSession:
        """The session that jobs run in."""
        none_active = active_session() is None
        session, ours = get_session(self._given)
        if ours and none_active:
            self._started = session
        return session

    @contextmanager
    def _session_for(self, context: Context) -> Iterator[SparkSession]:
        """The session that the operation began with: if it is stopped meanwhile, no other session continues.

        Errors of its jobs are raised with the types that callers know.
        """
        if "session" not in context.kept:
            context.kept["session"] = self.session
        session: SparkSession = context.kept["session"]
        with spark_errors(session):
            if is_stopped(session):
                raise session_stopped()
            yield session

    def close(self) -> None:
        """Stop the session if this engine started it."""
        session, self._started = self._started, None
        if session is not None:
            stop_session(session)

    def check_store(self, store: Store) -> None:
        """Refuse a store of this process alone: Spark's tasks run in others, and must see the same files."""
        if not store.shared:
            raise InvalidArgument(
                "memory:// exists in this process only, and Spark's tasks run in others. Use a local path or an "
                "object store, or engine='pyarrow'"
            )

    def task_processes(self) -> int:
        """The number of cores of the session: each runs a Python worker."""
        return parallelism(self.session)

    def timezone(self) -> str:
        """The session's time zone."""
        return str(self.session.conf.get("spark.sql.session.timeZone"))

    def adopt(self, rows: Any) -> RowSource | None:
        """A Spark DataFrame, classic or Connect, as a row source; None for any other object."""
        return FrameRows(checked_columns(stored_schema(rows.schema)), rows) if is_frame(rows) else None

    def run(self, tasks: Sequence[Task[Result]], context: Context) -> list[Result]:
        """Run tasks as Spark tasks."""
        if not tasks:
            return []
        report = context.reporter(tasks) if context.progress is not None else None
        with self._session_for(context) as session:
            return run_tasks(
                session, tasks, context.store, context.staging, self._memory, report, context.operation
            )

    def worker(self, context: Context) -> Worker:
        """The resources for a task in the driver, for rows that are already there."""
        return Worker(context.store, context.staging, self._memory, threads=cores(), cancelled=context.cancelled)

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Rewrite each group in one task; a large group that is clustered is sorted by a shuffle instead."""
        with self._session_for(context) as session:
            large = [group for group in plan.groups if self._sorts_by_shuffle(group, plan, session)]
        shuffled = set(map(id, large))
        small = [group for group in plan.groups if id(group) not in shuffled]
        tasks = [RewriteGroup(group, plan.operation, plan.clustering) for group in small]
        results = dict(zip(map(id, small), self.run(tasks, context), strict=True))
        for group in large:
            results[id(group)] = self._lay_out(group, plan, context)
        return [GroupResult(group, results[id(group)]) for group in plan.groups]

    def _sorts_by_shuffle(self, group: FileGroup, plan: RewritePlan, session: SparkSession) -> bool:
        if not plan.order_by or not all(keeps_order(group.schema.field(name).type) for name in plan.order_by):
            return False
        cores = parallelism(session)
        if self._shuffle_mb is None and cores < _CORES_FOR_SHUFFLE:
            return False
        limit = DEFAULT_SHUFFLE_MB if self._shuffle_mb is None else self._shuffle_mb
        # With many cores and few groups, one large task would keep the others waiting: a shuffle is faster.
        fair = sum(each.size_bytes for each in plan.groups) / cores
        outsized = group.size_bytes > max(_SORT_ALONE_BYTES, _OUTSIZED_FACTOR * fair)
        return outsized or group.size_bytes > limit * MEGABYTE

    def _partitions_by_shuffle(self, rows: FileRows, session: SparkSession) -> bool:
        """Whether Spark shuffles rows to their partitions. On one machine with few cores, one task is faster."""
        if self._shuffle_mb is not None:
            return rows.size_bytes > self._shuffle_mb * MEGABYTE
        return not is_local(session) or parallelism(session) >= _CORES_FOR_SHUFFLE

    def _lay_out(self, group: FileGroup, plan: RewritePlan, context: Context) -> Any:
        with self._session_for(context) as session:
            return self._laid_out(session, group, plan, context)

    def _laid_out(self, session: SparkSession, group: FileGroup, plan: RewritePlan, context: Context) -> Any:
        assert plan.clustering is not None, "only clustered groups are shuffled"
        rows = FileRows(group.schema, context.store, group.files)
        output = group_output(group, plan.operation, plan.order_by)
        progress = stage_progress(context.counter())
        if plan.clustering.is_linear:
            frame = in_order(session, rows, plan.order_by, group.outputs, self._memory)
            writer: WriteRows | WriteBuckets = WriteRows(context.store, context.staging, self._memory, output)
        else:
            quiet = replace(context, progress=None)
            samples = self.run(sampling(group, plan.clustering, parallelism(session)), quiet)
            buckets = buckets_of(samples, group, plan.clustering)
            frame = along_curve(session, rows, buckets, group.outputs, self._memory)
            per_bucket = group.num_rows / buckets.count
            writer = WriteBuckets(context.store, context.staging, self._memory, output, per_bucket)
        written, _ = write_frame(session, frame, writer, f"parketto {plan.operation}", progress)
        return written.staged

    def write(self, source: RowSource, output: Output, context: Context) -> Written:
        """Write rows: Arrow batches in the driver, files and DataFrames in tasks."""
        if isinstance(source, ArrowRows):
            return super().write(source, output, context)
        with self._session_for(context) as session:
            written = self._written(session, source, output, context)
        if written.staged:
            return written
        empty = super().write(ArrowRows(source.schema, ()), replace(output, checks=None), context)
        return written + empty

    def _written(
        self, session: SparkSession, source: FileRows | FrameRows, output: Output, context: Context
    ) -> Written:
        what = f"parketto {context.operation}"
        progress = stage_progress(context.counter())
        if isinstance(source, FileRows) and output.partition_by and self._partitions_by_shuffle(source, session):
            return shuffle_write(
                session, source, output, context.store, context.staging, self._memory, what, progress
            )
        if isinstance(source, FileRows):
            parts = [source] if output.single or output.partition_by else _portions(source)
            tasks = [CopyRows(part, output) for part in parts]
            return sum(self.run(tasks, context), Written())
        frame = _exchange_frame(source)
        frame = frame.coalesce(1) if output.single else frame
        writer = WriteRows(context.store, context.staging, self._memory, output)
        return write_frame(session, frame, writer, what, progress)[0]

    def count_partitions(self, source: RowSource, columns: tuple[str, ...], context: Context) -> Counter[str]:
        """Row counts by partition folder; those of a DataFrame are counted in its tasks."""
        if not isinstance(source, FrameRows):
            return super().count_partitions(source, columns, context)
        with self._session_for(context) as session:
            return count_frame(session, _exchange_frame(source), source.schema, columns)

    def scan(self, source: RowSource, function: Scan[Result], context: Context) -> list[Result]:
        """The results of a function over the rows of a source; a DataFrame is read in its tasks."""
        if not isinstance(source, FrameRows):
            return super().scan(source, function, context)
        with self._session_for(context) as session:
            scanner = ScanRows(decoded_schema(source.schema).remove_metadata(), function)
            return results(session, _exchange_frame(source), scanner, f"parketto {context.operation}")

    def derived(self, source: FileRows | FrameRows, columns: DerivedColumns) -> RowSource:
        """The rows of files or a DataFrame with computed columns, which Spark tasks compute."""
        if not isinstance(source, FrameRows):
            return super().derived(source, columns)
        return FrameRows(columns.schema, derived_frame(_exchange_frame(source), columns))

    def scan_files(
        self, store: Store, entries: Sequence[FileEntry], format_name: TextFormat, known: KnownTypes
    ) -> RowSource:
        """The rows of CSV or JSON files, read by Spark if they are on the local disk, which all tasks see."""
        paths = plain_local_paths(store, entries)
        if paths is None:
            return super().scan_files(store, entries, format_name, known)
        with reading_text(paths, format_name):
            frame = text_frame(self.session, paths, format_name)
            types = known.among(stored_schema(frame.schema), has_types=format_name == "json")
            frame = text_frame(self.session, paths, format_name, frame.schema, types) if types else frame
            rows = FrameRows(checked_columns(stored_schema(frame.schema)), frame)
            if not types:
                return rows
            parsed = ParsedColumns(rows.schema, types, named(paths))
            return FrameRows(parsed.schema, derived_frame(_exchange_frame(rows), parsed))

    def transformed(self, rows: FileRows, root: str, function: Callable[[Any], Any]) -> RowSource:
        """The result of a function that receives files as a Spark DataFrame."""
        result = function(self.frame(rows, root))
        if (found := self.adopt(result)) is None:
            raise TransformFailed(f"the function must return a Spark DataFrame, not {type(result).__name__}")
        return found

    def frame(self, rows: FileRows, root: str) -> DataFrame:
        """The rows of files as a Spark DataFrame."""
        return read_files(self.session, rows, root, self._memory)

    def query(
        self,
        text: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None,
        tables: Mapping[str, DataFrame],
    ) -> DataFrame:
        """The result of an SQL query; no other query sees its tables."""
        return run_query(self.session, text, parameters, tables)

    def merge(self, source: RowSource, target: MergeTarget, context: Context) -> MergeOutcome:
        """Broadcast the source to every task, or shuffle it if it is too large for that."""
        with self._session_for(context) as session:
            rows = self._spooled(session, source, context)
            if isinstance(rows, ArrowRows) or _decoded_size(rows) <= self._broadcast_bytes(session):
                return broadcast_merge(self, rows, target, context)
            # Tasks spool to this folder, which exists only if the source was spooled.
            context.store.make_dirs(context.staging.spool_path("").rstrip("/"))
            write = partial(self._write_added, session, context)
            run = partial(self.run, context=context)
            return ShuffleMerge(session, rows, target, context, self._memory, write, run).run()

    def _write_added(self, session: SparkSession, context: Context, rows: FileRows, output: Output) -> Written:
        """Write rows that a merge adds: in the order of the source, unless they are shuffled by partition."""
        # One task suffices for few rows: a shuffle takes two more jobs.
        large = self._shuffle_mb is not None or rows.size_bytes > _COPY_BYTES
        if output.partition_by and large and self._partitions_by_shuffle(rows, session):
            return self.write(rows.selected(output.row_schema.names), output, context)
        parts = [rows] if output.partition_by else _portions(rows)
        return sum(self.run([WriteAdditions(part, output) for part in parts], context), Written())

    def _spooled(self, session: SparkSession, source: RowSource, context: Context) -> ArrowRows | FileRows:
        """A source that can be read again. A DataFrame is spooled, because it may return other rows next time."""
        if isinstance(source, FileRows):
            return source
        context.store.make_dirs(context.staging.spool_path("").rstrip("/"))
        if isinstance(source, FrameRows):
            spooler = SpoolRows(context.store, context.staging, self._memory, source.schema)
            paths = sorted(results(session, _exchange_frame(source), spooler, "parketto merge: source"))
        else:
            head, rest = _head(source, self._broadcast_bytes(session))
            if rest is None:
                return ArrowRows(source.schema, head)
            paths = [context.staging.spool_path("rows")]
            with self.worker(context) as worker:
                spool(rest, source.schema, paths[0], worker)
        return FileRows(source.schema, context.store, spool_footers(context.store, paths))


def _exchange_frame(source: FrameRows) -> DataFrame:
    """A DataFrame with positional column names, in exchange types."""
    return stored_columns(source.frame.toDF(*(exchange_name(at) for at in range(len(source.schema.names)))))


def _head(source: ArrowRows, limit: int) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """All batches, as a list if they fit into `limit` bytes, else as an iterator."""
    batches, head, size = iter(source.batches), [], 0
    for batch in batches:
        head.append(batch)
        size += decoded_bytes(batch)
        if size > limit:
            return [], _chained(head, batches)
    return head, None


def _chained(head: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from head
    yield from rest


def _decoded_size(rows: FileRows) -> int:
    return sum(group.total_byte_size for file in rows.files for group in file.row_groups)


def _portions(source: FileRows) -> list[FileRows]:
    """The files in order, in portions of one task each."""
    portions: list[list[FileInfo]] = [[]]
    size = 0
    for file in source.files:
        if size >= _COPY_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(file)
        size += file.size_bytes
    return [replace(source, files=tuple(portion)) for portion in portions]
