"""A merge whose source is too large to broadcast: source and target keys are shuffled by a hash of the key.

One Spark job does it, in three stages. The first reads the source, and of the target only its keys. The second
joins one hash bucket in each task and sends what changes to the task that rewrites the file. The third rewrites
files. Rows are shuffled as packets of Arrow bytes, so the JVM never takes them apart. What is new becomes files
of the target size in a job of its own, because only then is known how much of it there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parketto.engines.spark.frames import described
from parketto.engines.spark.merge_stages import BUCKETED, SENT, Edit, Join, Read, Report, Unit
from parketto.engines.spark.shipping import Shipped, ship
from parketto.engines.spark.tasks import parallelism, payload_frame, results, stage_progress
from parketto.kernels.joined import Edited, FileCounts, joined_outcome, planned_outcome
from parketto.kernels.key_join import SEQUENCE, edit_schema
from parketto.kernels.keys import may_share_key
from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.rows import FileRows
from parketto.kernels.write import Output, Written
from parketto.storage.bounds import bounds
from parketto.storage.footers import FileInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from parketto.engines.base import Context

_READ_BYTES = 32 * 1024 * 1024  # a task reads about so much
_EDIT_BYTES = 64 * 1024 * 1024  # a task rewrites about so much; more tasks would leave cores waiting at the end
_LEAST_EDIT_BYTES = 8 * 1024 * 1024  # less is not worth a task
_BUCKET_SHARE = 8  # of a task's memory, for the encoded source rows of a bucket: decoded they are larger
_KEY_BYTES = 32  # about what a key of the target takes in a join
_UNITS_PER_TASK = 16
_DECODED = 2  # decoded rows take about so many times the bytes that Parquet says
_CHUNK_SHARE = 8
_LEAST_CHUNK, _MOST_CHUNK = 4096, 1 << 20  # rows

WriteAdded = Callable[[FileRows, Output], Written]


class LargeMerge:
    """One merge by a shuffle. `write` makes files of the dataset out of rows that were kept in files."""

    def __init__(
        self,
        spark: SparkSession,
        source: FileRows,
        target: MergeTarget,
        context: Context,
        memory: int,
        write: WriteAdded,
    ) -> None:
        self._spark, self._source, self._target, self._context = spark, source, target, context
        self._memory, self._write = memory, write
        self._schema = prepared_schema(target.schema, target.form)
        self._cores = parallelism(spark)
        found = {name: self._source_bounds(name) for name in target.rules.keys}
        self._ranges = {name: pair for name, pair in found.items() if pair is not None}
        keys = target.rules.keys
        self._scanned = [at for at, file in enumerate(target.files) if may_share_key(file, keys, self._ranges)]

    def run(self) -> MergeOutcome:
        """Join, rewrite the files with matches, then write what is new."""
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
        edited = {each.position: each for each in found if isinstance(each, Edited)}
        added = self._added([report.additions for report in reports if report.additions is not None])
        moved = sum(report.moved for report in reports)
        return joined_outcome(target, edited, added, inserted, moved, self._ranges, len(self._scanned))

    def _added(self, paths: Sequence[str]) -> Written:
        if not paths:
            return Written()
        store = self._context.store
        schema = self._schema.append(pa.field(SEQUENCE, pa.int64()))
        rows = FileRows(schema, store, described(store, sorted(paths)))
        return self._write(rows, replace(self._target.additions, row_schema=self._schema))

    def _shuffled(self) -> list[Any]:
        """What the tasks of the one job return."""
        store, staging, target = self._context.store, self._context.staging, self._target
        buckets, parts = self._buckets(), self._parts()
        read = Read(self._source, target, store, self._schema, self._memory, buckets)
        frame = payload_frame(self._spark, [ship(units) for units in self._units()])
        frame = frame.mapInArrow(Shipped(read), BUCKETED)
        join = Join(target, store, staging, self._memory, self._schema, parts, self._chunk_rows())
        sent = (
            frame.repartitionById(buckets, "bucket")
            .mapInArrow(Shipped(join), SENT)
            .repartitionById(join.part_count, "part")
            .sortWithinPartitions("file", "chunk")
        )
        edit = Edit(target, store, staging, self._memory, edit_schema(self._schema, target.change.updated))
        return results(self._spark, sent, edit, "parketto merge", stage_progress(self._context.counter()))

    def _units(self) -> list[list[Unit]]:
        """What each task reads: neighbours, so that small files share a task, and large ones get several."""
        target = self._target
        share = len(target.rules.keys) / len(self._schema.names)
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
        """How many hash buckets there are: each fits into a task's memory, and every core has one."""
        keys = sum(self._target.files[at].num_rows for at in self._scanned) * _KEY_BYTES
        wanted = -(-(self._source_bytes + keys) * _BUCKET_SHARE // self._memory)
        return _multiple(wanted, self._cores)

    def _parts(self) -> dict[int, int]:
        """Which task rewrites each file that may have matches: all tasks have about the same to do."""
        if not self._target.rules.updates or self._target.dry_run:
            return {}
        files = self._target.files
        total = sum(files[at].size_bytes for at in self._scanned)
        wanted = min(_multiple(-(-total // _EDIT_BYTES), self._cores), max(1, total // _LEAST_EDIT_BYTES))
        loads = [(0, part) for part in range(min(len(self._scanned), wanted))]
        parts = {}
        for at in sorted(self._scanned, key=lambda at: files[at].size_bytes, reverse=True):
            load, part = heapq.heappop(loads)
            parts[at] = part
            heapq.heappush(loads, (load + files[at].size_bytes, part))
        return parts

    def _chunk_rows(self) -> int:
        """How many rows of a file are edited together: their new values fit into a part of a task's memory."""
        width = _DECODED * self._source_bytes / max(1, self._source.num_rows)
        return int(min(max(self._memory / _CHUNK_SHARE / max(1.0, width), _LEAST_CHUNK), _MOST_CHUNK))

    @property
    def _source_bytes(self) -> int:
        return sum(group.total_byte_size for file in self._source.files for group in file.row_groups)

    def _source_bounds(self, name: str) -> tuple[pa.Scalar, pa.Scalar] | None:
        found = [bounds(file, name) for file in self._source.files if file.num_rows]
        pairs = [pair for pair in found if pair is not None]
        if not pairs or len(pairs) < len(found):
            return None
        lowest = min((low for low, _ in pairs), key=lambda value: value.as_py())
        return lowest, max((high for _, high in pairs), key=lambda value: value.as_py())


def row_group_runs(file: FileInfo) -> Iterator[tuple[int, int, int]]:
    """The row groups of a file in runs that are worth reading together: first, stop, and their size."""
    start = size = 0
    for number, group in enumerate(file.row_groups):
        size += group.total_byte_size
        if size >= _READ_BYTES or number + 1 == len(file.row_groups):
            yield start, number + 1, size
            start, size = number + 1, 0


def _multiple(wanted: int, cores: int) -> int:
    """At least so many, and as many for each core."""
    return max(1, -(-wanted // cores)) * cores
