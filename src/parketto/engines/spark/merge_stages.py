"""The task functions of a shuffle merge, in three stages: read and hash, join a bucket, rewrite files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from parketto.engines.spark.arrow_blocks import blocks, unblocked
from parketto.engines.spark.frames import spool
from parketto.engines.spark.shipping import dumps, loads
from parketto.engines.spark.tasks import catching, task_attempt
from parketto.merge.broadcast import refuse_null_keys
from parketto.merge.join import FileCounts, edit_files
from parketto.merge.key_join import FILE, ROW, SEQUENCE, by_bucket, join_bucket
from parketto.merge.source import FOLDER, as_target, check_nulls, distinct
from parketto.merge.target import MergeTarget
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.partitions import folders
from parketto.parquet.row_source import FileRows
from parketto.runtime.batches import runs
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.storage.store import Store

#: Where `is_source` is NULL, the packet is a pickled error.
BUCKETED = "bucket int, is_source boolean, packet binary"
SENT = "part int, place int, chunk int, packet binary"
_SKEW = 4  # a bucket with over 4 times its share of rows probably has duplicate keys
_REPORT = -1  # the place that marks a bucket's report


class Unit(NamedTuple):
    """A run of row groups of a file that are read together."""

    is_source: bool
    position: int
    first: int
    stop: int


@dataclass(frozen=True)
class Read:
    """Reads source rows in the target's columns and types, and of the target the keys and what conditions use.

    A source row gets its sequence number and, in a partitioned dataset, its folder. A key gets the position of its
    file and its row number.
    """

    source: FileRows
    target: MergeTarget
    store: Store
    memory: int
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blocks of rows by hash bucket, for the incoming units."""
        failed: list[Exception] = []
        with catching(failed), Worker(self.store, Staging(""), self.memory) as worker:
            whole = LogicalReader(self.source.store, self.source.schema, worker.batch_bytes, self.source.spec)
            keys = LogicalReader(self.store, key_schema(self.target), worker.batch_bytes, self._string_spec())
            for payload in chain.from_iterable(batch.column("payload") for batch in batches):
                for unit in loads(payload.as_py()):
                    rows = self._source_rows(whole, unit) if unit.is_source else self._keys(keys, unit)
                    yield from self._bucketed(runs(rows, worker.run_bytes), is_source=unit.is_source)
        yield from (_bucketed(0, None, dumps(error)) for error in failed)

    def _bucketed(self, tables: Iterable[pa.Table], *, is_source: bool) -> Iterator[pa.RecordBatch]:
        rules = self.target.rules
        for table in tables:
            # All rows of a key share a bucket: without this, a frequent key would overload it.
            rows = distinct(table, rules, complete=False) if is_source and rules.deduplicates else table
            for bucket, piece in by_bucket(rows, rules, self.buckets):
                if is_source and piece.num_rows > _SKEW * (rows.num_rows / self.buckets + 1):
                    distinct(piece, rules, complete=False)  # raises on duplicate keys, before the shuffle
                yield from (_bucketed(bucket, is_source, packet) for packet in blocks(piece))

    def _source_rows(self, reader: LogicalReader, unit: Unit) -> Iterator[pa.RecordBatch]:
        target = self.target
        for row, batch in _rows_of(reader, self.source.files[unit.position], unit):
            [rows] = as_target([batch], target.source_schema)
            check_nulls(rows, target.schema, target.rules, target.source.names)
            if target.scope is not None:
                target.scope.refuse_outside(rows, target.rules.keys)
            sequence = pa.array((unit.position << 40) + row + np.arange(rows.num_rows))
            rows = rows.append_column(SEQUENCE, sequence)
            if target.spec.partition_by:
                belongs = folders(pa.Table.from_batches([rows]), target.spec.partition_by)
                rows = rows.append_column(FOLDER, belongs)
            yield rows

    def _keys(self, reader: LogicalReader, unit: Unit) -> Iterator[pa.RecordBatch]:
        for row, batch in _rows_of(reader, self.target.files[unit.position], unit):
            refuse_null_keys(batch, self.target.rules)
            files = pa.repeat(pa.scalar(unit.position, pa.int32()), batch.num_rows)
            keys = batch.append_column(FILE, files).append_column(ROW, pa.array(row + np.arange(batch.num_rows)))
            scope = self.target.scope
            yield keys if scope is None else keys.filter(pa.array(scope.matches(batch)))

    def _string_spec(self) -> PartitionSpec:
        """A spec with strings for keys that are stored only in the path: these are compared as strings."""
        spec = self.target.spec
        return replace(spec, path_only={name: pa.string() for name in spec.path_only})


def key_schema(target: MergeTarget) -> pa.Schema:
    """The columns of target rows that are joined."""
    return pa.schema([target.row_schema.field(name) for name in target.matched_columns])


def _bucketed(bucket: int, is_source: bool | None, packet: bytes) -> pa.RecordBatch:
    columns = [pa.array([bucket], pa.int32()), pa.array([is_source], pa.bool_()), pa.array([packet])]
    return pa.RecordBatch.from_arrays(columns, ["bucket", "is_source", "packet"])


def _rows_of(reader: LogicalReader, file: FileInfo, unit: Unit) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of a unit, each with the row number of its first row in the file."""
    row = sum(group.num_rows for group in file.row_groups[: unit.first])
    for _, batches in reader.read_row_groups(file, range(unit.first, unit.stop)):
        for batch in batches:
            yield row, batch
            row += batch.num_rows


@dataclass(frozen=True)
class Report:
    """The result of a bucket apart from its edits; `additions` is the spool file of the rows to add."""

    inserted: int
    moved: int
    additions: str | None
    counts: dict[int, FileCounts]
    folders: frozenset[str]


@dataclass(frozen=True)
class Join:
    """Joins the rows of a bucket, spools the new ones, and sends edits to the task that rewrites their file.

    `parts` has the task of each file. `places` are the files in the order in which tasks rewrite them.
    """

    target: MergeTarget
    store: Store
    staging: Staging
    memory: int
    parts: dict[int, int]
    places: tuple[int, ...]
    chunk_rows: int

    @property
    def part_count(self) -> int:
        """The number of tasks that rewrite files."""
        return max(self.parts.values(), default=0) + 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The reports of the incoming buckets, and blocks of edits."""
        received: dict[int, tuple[list[Any], list[Any]]] = {}
        for batch in batches:
            for bucket, is_source, packet in zip(*batch.columns, strict=True):
                if not is_source.is_valid:
                    yield _sent(0, _REPORT, 0, packet.as_py())
                    return
                received.setdefault(bucket.as_py(), ([], []))[not is_source.as_py()].append(packet)
        failed: list[Exception] = []
        with catching(failed), Worker(self.store, self.staging, self.memory) as worker:
            for bucket, (source, keys) in sorted(received.items()):
                if source:
                    yield from self._join(bucket, source, keys, worker)
        yield from (_sent(0, _REPORT, 0, dumps(error)) for error in failed)

    def _join(self, bucket: int, source: list[Any], keys: list[Any], worker: Worker) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(unblocked(source))
        found = join_bucket(rows, self._keys(keys), self.target)
        del rows
        report = Report(
            found.inserted, found.moved, self._spool(bucket, found.additions, worker), found.counts, found.folders
        )
        yield _sent(bucket % self.part_count, _REPORT, 0, dumps(report))
        if not found.edits.num_rows:
            return
        files, numbers = (found.edits.column(name).to_numpy() for name in ("file", "row"))
        chunks = numbers // self.chunk_rows
        # Edits are sorted by file and row, and so by chunk.
        places = {file: place for place, file in enumerate(self.places)}
        changes = np.flatnonzero((files[1:] != files[:-1]) | (chunks[1:] != chunks[:-1])) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(files)]):
            file = int(files[start])
            for packet in blocks(found.edits.slice(start, stop - start).drop_columns("file")):
                yield _sent(self.parts[file], places[file], int(chunks[start]), packet)

    def _keys(self, packed: list[Any]) -> pa.Table:
        schema = key_schema(self.target).append(pa.field(FILE, pa.int32())).append(pa.field(ROW, pa.int64()))
        return pa.Table.from_batches(unblocked(packed), schema)

    def _spool(self, bucket: int, additions: pa.Table, worker: Worker) -> str | None:
        path = self.staging.spool_path(f"new-{bucket:08d}-{task_attempt()}")
        rows = additions.select([*self.target.row_schema.names, SEQUENCE])
        return path if spool(rows.to_batches(), rows.schema, path, worker) else None


def _sent(part: int, place: int, chunk: int, packet: bytes) -> pa.RecordBatch:
    columns = [pa.array([value], pa.int32()) for value in (part, place, chunk)]
    return pa.RecordBatch.from_arrays([*columns, pa.array([packet])], ["part", "place", "chunk", "packet"])


@dataclass(frozen=True)
class Edit:
    """Rewrites groups of files from edits sorted by file and chunk of rows. Passes reports on."""

    target: MergeTarget
    store: Store
    staging: Staging
    memory: int
    values: pa.Schema
    groups: tuple[tuple[int, ...], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        """The results of the rewritten files, and the reports."""
        staging = replace(self.staging, attempt=task_attempt())
        rows = (
            (place.as_py(), chunk.as_py(), packet)
            for batch in batches
            for _, place, chunk, packet in zip(*batch.columns, strict=True)
        )
        places = [(number, file) for number, group in enumerate(self.groups) for file in group]
        with Worker(self.store, staging, self.memory) as worker:
            for group, found in groupby(rows, key=lambda row: None if row[0] == _REPORT else places[row[0]][0]):
                if group is None:
                    yield from (loads(packet.as_py()) for _, _, packet in found)
                else:
                    by_place = groupby(found, key=lambda row: row[0])
                    pieces = ((places[place][1], _in_order(edits)) for place, edits in by_place)
                    yield edit_files(self.groups[group], pieces, self.target, self.values, worker)


def _in_order(rows: Iterator[tuple[int, int, Any]]) -> Iterator[pa.RecordBatch]:
    """The edits of a file in row order; those of a chunk come from all buckets."""
    for _, found in groupby(rows, key=lambda row: row[1]):
        edits = pa.Table.from_batches(unblocked(packet for *_, packet in found))
        order = np.argsort(edits.column("row").to_numpy())
        yield from edits.take(pa.array(order)).combine_chunks().to_batches()
