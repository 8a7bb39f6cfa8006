"""Shuffle merge, for sources too large to broadcast: source rows and target keys are shuffled by key hash.

One Spark job has three stages. The first reads the source rows and the target's keys. The second joins one hash
bucket per task and sends the edits to the task that rewrites the file. The third rewrites files. Rows are shuffled
as blocks of Arrow bytes, so the JVM never deserializes them. A separate job writes the new rows to files of the
target size, because their volume is known only then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parketto.engines.spark.frames import spool_footers
from parketto.engines.spark.merge_stages import BUCKETED, SENT, Edit, Join, Read, Report, Unit
from parketto.engines.spark.shipping import PickledFunction, dumps
from parketto.engines.spark.tasks import parallelism, payload_frame, results, stage_progress
from parketto.merge.join import (
    Edited,
    EditUnmatched,
    FileCounts,
    join_outcome,
    numbered_groups,
    planned_outcome,
    rows_left,
)
from parketto.merge.key_join import SEQUENCE, edit_schema
from parketto.merge.keys import may_share_key
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.bounds import bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import AnyTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from parketto.engines.base import Context

_READ_BYTES = 32 * 1024 * 1024  # bytes per read task
_EDIT_BYTES = 64 * 1024 * 1024  # bytes of files per rewrite task; more tasks would leave cores idle at the end
_MIN_EDIT_BYTES = 8 * 1024 * 1024  # less does not justify a rewrite task
_BUCKET_SHARE = 8  # a bucket's source rows, still encoded, get 1/8 of a task's memory: decoded they are larger
_KEY_BYTES = 32  # approximate bytes per target key in a join
_UNITS_PER_TASK = 16  # about how many units a task reads, if they are small
_DECODED = 2  # approximate ratio of decoded bytes to `total_byte_size` in the footer
_CHUNK_SHARE = 8  # the new values of a chunk get 1/8 of a task's memory
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 4096, 1 << 20

RunTasks = Callable[[Sequence[AnyTask]], list[Any]]
WriteAdded = Callable[[FileRows, Output], Written]


class ShuffleMerge:
    """One shuffle merge. `write` writes spooled rows to new files of the dataset, `run` runs further tasks."""

    def __init__(
        self,
        spark: SparkSession,
        source: FileRows,
        target: MergeTarget,
        context: Context,
        memory: int,
        write: WriteAdded,
        run: RunTasks,
    ) -> None:
        self._spark, self._source, self._target, self._context = spark, source, target, context
        self._memory, self._write, self._run = memory, write, run
        self._cores = parallelism(spark)
        found = {name: self._source_bounds(name) for name in target.rules.keys}
        self._ranges = {name: pair for name, pair in found.items() if pair is not None}
        keys = target.rules.keys
        self._scanned = [at for at, file in enumerate(target.files) if may_share_key(file, keys, self._ranges)]

    def run(self) -> MergeOutcome:
        """Join, rewrite the files with matches, then write the new rows."""
        target = self._target
        found = self._shuffled()
        reports = [each for each in found if isinstance(each, Report)]
        inserted = sum(report.inserted for report in reports)
        if target.dry_run:
            counts: dict[int, FileCounts] = {}
            for report in reports:
                for position, count in report.counts.items():
                    counts[position] = counts.get(position, FileCounts(0, 0, 0)) + count
            folders = sorted(frozenset[str]().union(*(report.folders for report in reports)))
            return planned_outcome(target, counts, inserted, folders, self._ranges, len(self._scanned))
        edited = Edited.total(each for each in found if isinstance(each, Edited))
        left = rows_left(target, edited.counts)
        unmatched = numbered_groups(target, {at: left[at] for at in left if at not in edited.counts})
        rest = self._run([EditUnmatched(tuple(group), target) for group in unmatched])
        edited = Edited.total([edited, *rest])
        added = self._added([report.additions for report in reports if report.additions is not None])
        moved = sum(report.moved for report in reports)
        return join_outcome(target, edited, added, inserted, moved, self._ranges, len(self._scanned))

    def _added(self, paths: Sequence[str]) -> Written:
        if not paths:
            return Written()
        store = self._context.store
        schema = self._target.row_schema.append(pa.field(SEQUENCE, pa.int64()))
        rows = FileRows(schema, store, spool_footers(store, sorted(paths)))
        return self._write(rows, self._target.additions)

    def _shuffled(self) -> list[Any]:
        """The results of the job's tasks."""
        store, staging, target = self._context.store, self._context.staging, self._target
        buckets, groups = self._buckets(), self._groups()
        parts = self._parts(groups)
        places = tuple(chain.from_iterable(groups))
        read = Read(self._source, target, store, self._memory, buckets)
        frame = payload_frame(self._spark, [dumps(units) for units in self._units()])
        frame = frame.mapInArrow(PickledFunction(read), BUCKETED)
        join = Join(target, store, staging, self._memory, parts, places, self._chunk_rows())
        sent = (
            frame.repartitionById(buckets, "bucket")
            .mapInArrow(PickledFunction(join), SENT)
            .repartitionById(join.part_count, "part")
            .sortWithinPartitions("place", "chunk")
        )
        values = edit_schema(target.row_schema, target.change.updated)
        edit = Edit(target, store, staging, self._memory, values, tuple(groups))
        return results(self._spark, sent, edit, "parketto merge", stage_progress(self._context.counter()))

    def _units(self) -> list[list[Unit]]:
        """The units of each read task: neighbouring small files share a task, large files are split."""
        target = self._target
        share = len(target.matched_columns) / len(target.row_schema.names)
        found = [(True, at, file, 1.0) for at, file in enumerate(self._source.files)]
        found += [(False, at, target.files[at], share) for at in self._scanned]
        units = [
            (Unit(is_source, at, first, stop), size * share)
            for is_source, at, file, share in found
            for first, stop, size in row_group_runs(file)
        ]
        total = sum(size for _, size in units)
        tasks = max(-(-len(units) // _UNITS_PER_TASK), int(total // _READ_BYTES))
        tasks = min(len(units), _multiple(tasks, self._cores))
        bundles: list[list[Unit]] = [[] for _ in range(tasks)]
        before = 0.0
        for unit, size in units:
            bundles[int(before * tasks / max(1.0, total))].append(unit)
            before += size
        return [bundle for bundle in bundles if bundle]

    def _buckets(self) -> int:
        """The number of hash buckets: each fits into a task's memory, and every core has at least one."""
        keys = sum(self._target.files[at].num_rows for at in self._scanned) * _KEY_BYTES
        wanted = -(-(self._source_bytes + keys) * _BUCKET_SHARE // self._memory)
        return _multiple(wanted, self._cores)

    def _groups(self) -> list[tuple[int, ...]]:
        """The groups of files that may have matches. The tasks that rewrite them find out which files have any."""
        if not self._target.rules.edits or self._target.dry_run:
            return []
        files = self._target.files
        return list(map(tuple, numbered_groups(self._target, {at: files[at].num_rows for at in self._scanned})))

    def _parts(self, groups: Sequence[tuple[int, ...]]) -> dict[int, int]:
        """The rewrite task of each file; all tasks get about the same number of bytes."""
        files = self._target.files
        sizes = [sum(files[at].size_bytes for at in group) for group in groups]
        total = sum(sizes)
        wanted = min(_multiple(-(-total // _EDIT_BYTES), self._cores), max(1, total // _MIN_EDIT_BYTES))
        loads = [(0, part) for part in range(min(len(groups), wanted))]
        parts = {}
        for size, group in sorted(zip(sizes, groups, strict=True), reverse=True):
            load, part = heapq.heappop(loads)
            parts.update(dict.fromkeys(group, part))
            heapq.heappush(loads, (load + size, part))
        return parts

    def _chunk_rows(self) -> int:
        """The number of rows that are edited together: their new values fit into a share of a task's memory."""
        width = _DECODED * self._source_bytes / max(1, self._source.num_rows)
        return int(min(max(self._memory / _CHUNK_SHARE / max(1.0, width), _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS))

    @property
    def _source_bytes(self) -> int:
        return sum(group.total_byte_size for file in self._source.files for group in file.row_groups)

    def _source_bounds(self, name: str) -> tuple[pa.Scalar, pa.Scalar] | None:
        files = [file for file in self._source.files if file.num_rows]
        # NULL keys match those of files, which bounds do not show.
        if self._target.rules.null_keys_match and any(file.column_stats(name).null_count != 0 for file in files):
            return None
        found = [bounds(file, name) for file in files]
        pairs = [pair for pair in found if pair is not None]
        if not pairs or len(pairs) < len(found):
            return None
        lowest = min((low for low, _ in pairs), key=lambda value: value.as_py())
        highest = max((high for _, high in pairs), key=lambda value: value.as_py())
        kind = self._target.row_schema.field(name).type
        try:
            return lowest.cast(kind), highest.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None  # reading the source reports values that do not fit


def row_group_runs(file: FileInfo) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive row groups to read together, as (first, stop, bytes)."""
    start = size = 0
    for number, group in enumerate(file.row_groups):
        size += group.total_byte_size
        if size >= _READ_BYTES or number + 1 == len(file.row_groups):
            yield start, number + 1, size
            start, size = number + 1, 0


def _multiple(wanted: int, cores: int) -> int:
    """`wanted`, rounded up to a multiple of the number of cores."""
    return max(1, -(-wanted // cores)) * cores
