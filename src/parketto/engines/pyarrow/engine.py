"""Carries out plans with PyArrow: groups in parallel over the cores, all within one bound of memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import repeat

import pyarrow as pa

from parketto.engines.base import Context, GroupResult, Progress, StagedFile, WriteRequest, unique_names
from parketto.engines.pyarrow.carrier import carrier_schema, recast
from parketto.engines.pyarrow.external_sort import sort_batches
from parketto.engines.pyarrow.partitions import by_partition
from parketto.engines.pyarrow.reader import BatchReader
from parketto.engines.pyarrow.writer import FileFormat, RollingWriter
from parketto.errors import InvalidArgument
from parketto.plan.limits import MEGABYTE
from parketto.plan.rewrite import FileGroup, RewritePlan

DEFAULT_MEMORY_MB = 256
_PREFIXES = {"compact": "compact", "optimize": "optimized"}
# Of a worker's share of memory: decoded rows that wait for their row group, a run that is being sorted
# (twice: before and after), batches on their way. The rest is what encoding and compressing need.
_ROW_GROUP_SHARE = 6
_RUN_SHARE = 6
_BATCH_SHARE = 32
_MIN_WORKER_MB = 32
# A file that is cut by its size consists of at least so many row groups, for the cut to be near the target.
_ROW_GROUPS_PER_FILE = 8
_MIN_ROW_GROUP_ROWS = 1024


class PyArrowEngine:
    """Streams every group through bounded memory.

    Args:
        memory_mb: About how much memory all workers together may use for data.
        threads: How many groups are rewritten at once; by default one per core, as far as memory allows.
    """

    name = "pyarrow"

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB, threads: int | None = None) -> None:
        limits: dict[str, object] = {"memory_mb": memory_mb, "threads": threads}
        for name, value in limits.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidArgument(f"{name} must be a whole number greater than 0, got {value!r}")
        self._memory = memory_mb * MEGABYTE
        self._workers = threads or min(os.cpu_count() or 1, max(1, memory_mb // _MIN_WORKER_MB))

    def rewrite(self, plan: RewritePlan, context: Context) -> Sequence[GroupResult]:
        """Write the new files of every group; the largest groups first, so that the cores end together."""
        workers = min(self._workers, len(plan.groups)) or 1
        share = self._memory // workers
        report = _Reporter(plan, context)

        def work(group: FileGroup) -> GroupResult:
            result = self._rewrite_group(group, plan, context, share)
            report(group)
            return result

        largest_first = sorted(plan.groups, key=lambda group: group.size_bytes, reverse=True)
        with ThreadPoolExecutor(workers, thread_name_prefix="parketto-rewrite") as pool:
            futures = [pool.submit(work, group) for group in largest_first]
            try:
                finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
            except BaseException:
                # The other workers stop at their next batch; leaving the block waits for them.
                context.cancelled.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def write(self, request: WriteRequest, context: Context) -> Sequence[StagedFile]:
        """Write rows from outside as new files."""
        batches = _until_cancelled(request.batches, context)
        if not request.partition_by:
            return self._write_directory(request, request.directory, batches, context)
        # In the order of the partitions one file after the other is open, however many partitions there are.
        carried = carrier_schema(request.schema)
        ordered = sort_batches(
            (recast(batch, carried) for batch in batches),
            carried,
            request.partition_by,
            self._memory // _RUN_SHARE,
            context.staging.scratch_directory(),
        )
        staged: list[StagedFile] = []
        for folder, found in by_partition(ordered, request.partition_by):
            rows = (recast(batch, request.schema) for batch in found)
            staged += self._write_directory(request, f"{request.directory}/{folder}", rows, context)
        return staged or self._write_directory(request, request.directory, iter(()), context)

    def _write_directory(
        self, request: WriteRequest, directory: str, batches: Iterable[pa.RecordBatch], context: Context
    ) -> list[StagedFile]:
        names = unique_names("part")
        writer = RollingWriter(
            context.store,
            FileFormat(request.schema, request.compression),
            lambda: context.staging.new_file(directory, next(names)),
            row_group_bytes=self._memory // _ROW_GROUP_SHARE,
            row_limits=None if request.max_rows is None else repeat(request.max_rows),
        )
        with writer:
            for batch in batches:
                writer.write(batch)
        return writer.staged

    def _rewrite_group(self, group: FileGroup, plan: RewritePlan, context: Context, memory: int) -> GroupResult:
        schema = carrier_schema(group.schema)
        file_format = FileFormat(schema, group.codec, group.metadata, group.traits, plan.order_by, group.schema)
        names = unique_names(_PREFIXES[plan.operation])
        writer = RollingWriter(
            context.store,
            file_format,
            lambda: context.staging.new_file(group.directory, next(names)),
            row_group_bytes=memory // _ROW_GROUP_SHARE,
            row_limits=group.row_limits(),
            roll_bytes=group.roll_bytes,
            **_row_group_rows(group),
        )
        # Where groups keep the cores busy, threads inside of each would only get in each other's way.
        reader = BatchReader(context.store, schema, memory // _BATCH_SHARE, use_threads=memory == self._memory)
        batches = _until_cancelled(reader.read(group.files), context)
        if plan.order_by:
            batches = sort_batches(
                batches,
                schema.remove_metadata(),
                plan.order_by,
                memory // _RUN_SHARE,
                context.staging.scratch_directory(),
            )
        with writer:
            for batch in _until_cancelled(batches, context):
                writer.write(batch)
        return GroupResult(group, tuple(writer.staged))


class _Reporter:
    def __init__(self, plan: RewritePlan, context: Context) -> None:
        self._plan, self._callback = plan, context.progress
        self._total_bytes = sum(group.size_bytes for group in plan.groups)
        self._lock = threading.Lock()
        self._done = self._done_bytes = 0

    def __call__(self, group: FileGroup) -> None:
        if self._callback is None:
            return
        with self._lock:
            self._done += 1
            self._done_bytes += group.size_bytes
            self._callback(
                Progress(
                    self._plan.operation,
                    self._done,
                    len(self._plan.groups),
                    self._done_bytes,
                    self._total_bytes,
                )
            )


def _row_group_rows(group: FileGroup) -> dict[str, int]:
    if group.roll_bytes is None or not group.num_rows:
        return {}
    row_bytes = max(1.0, group.size_bytes / group.num_rows)
    return {"row_group_rows": max(_MIN_ROW_GROUP_ROWS, int(group.roll_bytes / _ROW_GROUPS_PER_FILE / row_bytes))}


def _until_cancelled(batches: Iterator[pa.RecordBatch], context: Context) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        context.check_cancelled()
        yield batch
