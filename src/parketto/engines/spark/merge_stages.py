"""What the tasks of a merge by shuffle do, in three stages: read and hash, join a bucket, rewrite files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from parketto.engines.spark.frames import spool
from parketto.engines.spark.packets import packets, unpacked
from parketto.engines.spark.shipping import ship
from parketto.engines.spark.tasks import raising_typed, task_attempt
from parketto.kernels.joined import FileCounts, edit_file
from parketto.kernels.key_join import FILE, ROW, SEQUENCE, by_bucket, join_bucket
from parketto.kernels.merge import refuse_null_keys
from parketto.kernels.merge_source import FOLDER, as_target, check_nulls
from parketto.kernels.merge_target import MergeTarget
from parketto.kernels.partitions import folders
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rows import FileRows
from parketto.kernels.sizes import runs
from parketto.kernels.work import Staging, Worker
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store

BUCKETED = "bucket int, is_source boolean, packet binary"
SENT = "part int, file int, chunk int, packet binary"
_REPORT = -1  # the number of no file: marks what a bucket reports

Unit = tuple[int, int, int]


def _units(batches: Iterable[pa.RecordBatch]) -> Iterator[Unit]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _rows_of(reader: LogicalReader, file: FileInfo, first: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of some row groups, and the number of each batch's first row in the file."""
    row = sum(group.num_rows for group in file.row_groups[:first])
    for _, batches in reader.read_row_groups(file, range(first, stop)):
        for batch in batches:
            yield row, batch
            row += batch.num_rows


def _bucketed(
    rows: Iterator[pa.RecordBatch], keys: tuple[str, ...], buckets: int, worker: Worker, *, is_source: bool
) -> Iterator[pa.RecordBatch]:
    for run in runs(rows, worker.run_bytes):
        for bucket, piece in by_bucket(run, keys, buckets):
            for packet in packets(piece):
                numbered = pa.array([bucket], pa.int32())
                yield pa.record_batch({"bucket": numbered, "is_source": [is_source], "packet": [packet]})


@dataclass(frozen=True)
class ReadSource:
    """Reads the source, in the columns and types of the target."""

    source: FileRows
    target: MergeTarget
    schema: pa.Schema
    memory: int
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packets of source rows for the row groups that come in."""
        with raising_typed(), Worker(self.source.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.source.store, self.source.schema, worker.batch_bytes, self.source.form)
            for position, first, stop in _units(batches):
                rows = self._rows(reader, position, first, stop)
                yield from _bucketed(rows, self.target.rules.keys, self.buckets, worker, is_source=True)

    def _rows(self, reader: LogicalReader, position: int, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        rules = self.target.rules
        for row, batch in _rows_of(reader, self.source.files[position], first, stop):
            [rows] = as_target([batch], self.schema)
            check_nulls(rows, self.target.schema, rules.keys, self.target.source.names)
            place = pa.array((position << 40) + row + np.arange(rows.num_rows))
            rows = rows.append_column(SEQUENCE, place)
            if partition_by := self.target.form.partition_by:
                rows = rows.append_column(FOLDER, folders(pa.Table.from_batches([rows]), partition_by))
            yield rows


@dataclass(frozen=True)
class ReadKeys:
    """Reads the keys of target files, with the position of their file and their number in it."""

    store: Store
    target: MergeTarget
    schema: pa.Schema
    memory: int
    buckets: int
    #: The position in the target of each file that is read.
    positions: Sequence[int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packets of keys for the row groups that come in."""
        keys = self.target.rules.keys
        texts = replace(self.target.form, path_only={name: pa.string() for name in self.target.form.path_only})
        schema = pa.schema([self.schema.field(name) for name in keys])
        with raising_typed(), Worker(self.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.store, schema, worker.batch_bytes, texts)
            for at, first, stop in _units(batches):
                rows = self._rows(reader, self.positions[at], first, stop)
                yield from _bucketed(rows, keys, self.buckets, worker, is_source=False)

    def _rows(self, reader: LogicalReader, position: int, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        for row, batch in _rows_of(reader, self.target.files[position], first, stop):
            refuse_null_keys(batch, self.target.rules.keys)
            batch = batch.append_column(FILE, pa.repeat(pa.scalar(position, pa.int32()), batch.num_rows))
            yield batch.append_column(ROW, pa.array(row + np.arange(batch.num_rows)))


Reader = ReadSource | ReadKeys


@dataclass(frozen=True)
class Report:
    """What a bucket has to say beside its edits; `additions` is a file of rows that are added."""

    inserted: int
    moved: int
    additions: str | None
    counts: dict[int, FileCounts]
    folders: frozenset[str]


@dataclass(frozen=True)
class Join:
    """Joins the rows of a bucket, keeps those that are new, and sends edits to the task of their file."""

    target: MergeTarget
    store: Store
    staging: Staging
    memory: int
    schema: pa.Schema
    parts: dict[int, int]
    chunk_rows: int

    @property
    def part_count(self) -> int:
        """How many tasks rewrite files."""
        return max(self.parts.values(), default=0) + 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the buckets that come in report, and packets of edits."""
        arrived: dict[int, tuple[list[Any], list[Any]]] = {}
        for batch in batches:
            for bucket, is_source, packet in zip(*batch.columns, strict=True):
                arrived.setdefault(bucket.as_py(), ([], []))[not is_source.as_py()].append(packet)
        with raising_typed(), Worker(self.store, self.staging, self.memory) as worker:
            for bucket, (source, keys) in sorted(arrived.items()):
                if source:
                    yield from self._joined(bucket, source, keys, worker)

    def _joined(self, bucket: int, source: list[Any], keys: list[Any], worker: Worker) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(unpacked(source))
        found = join_bucket(rows, self._keys(keys), self.target, self.schema)
        del rows
        report = Report(
            found.inserted, found.moved, self._kept(bucket, found.additions, worker), found.counts, found.folders
        )
        yield _sent(bucket % self.part_count, _REPORT, 0, ship(report))
        if not found.edits.num_rows:
            return
        files, numbers = (found.edits.column(name).to_numpy() for name in ("file", "row"))
        chunks = numbers // self.chunk_rows
        # Edits are in the order of files and rows, and so of chunks.
        changes = np.flatnonzero((files[1:] != files[:-1]) | (chunks[1:] != chunks[:-1])) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(files)]):
            file = int(files[start])
            for packet in packets(found.edits.slice(start, stop - start).drop_columns("file")):
                yield _sent(self.parts[file], file, int(chunks[start]), packet)

    def _keys(self, packed: list[Any]) -> pa.Table:
        schema = pa.schema([self.schema.field(name) for name in self.target.rules.keys])
        schema = schema.append(pa.field(FILE, pa.int32())).append(pa.field(ROW, pa.int64()))
        return pa.Table.from_batches(unpacked(packed), schema)

    def _kept(self, bucket: int, additions: pa.Table, worker: Worker) -> str | None:
        path = self.staging.spool_path(f"new-{bucket:08d}-{task_attempt()}")
        rows = additions.select([*self.schema.names, SEQUENCE])
        return path if spool(rows.to_batches(), rows.schema, path, worker) else None


def _sent(part: int, file: int, chunk: int, packet: bytes) -> pa.RecordBatch:
    columns = [pa.array([value], pa.int32()) for value in (part, file, chunk)]
    return pa.RecordBatch.from_arrays([*columns, pa.array([packet])], ["part", "file", "chunk", "packet"])


@dataclass(frozen=True)
class Edit:
    """Rewrites files, whose edits come in the order of files and chunks of rows. Reports are passed on."""

    target: MergeTarget
    store: Store
    staging: Staging
    memory: int
    values: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What became of the files whose edits come in."""
        staging = replace(self.staging, attempt=task_attempt())
        rows = (
            (file.as_py(), chunk.as_py(), packet)
            for batch in batches
            for _, file, chunk, packet in zip(*batch.columns, strict=True)
        )
        with raising_typed(), Worker(self.store, staging, self.memory) as worker:
            for file, found in groupby(rows, key=lambda row: row[0]):
                if file == _REPORT:
                    yield from (pa.record_batch({"result": [packet.as_py()]}) for _, _, packet in found)
                else:
                    edited = edit_file(file, _in_order(found), self.target, self.values, worker)
                    yield pa.record_batch({"result": [ship(edited)]})


def _in_order(rows: Iterator[tuple[int, int, Any]]) -> Iterator[pa.RecordBatch]:
    """The edits of a file, chunk by chunk; those of a chunk come from all buckets."""
    for _, found in groupby(rows, key=lambda row: row[1]):
        edits = pa.Table.from_batches(unpacked(packet for *_, packet in found))
        order = np.argsort(edits.column("row").to_numpy())
        yield from edits.take(pa.array(order)).combine_chunks().to_batches()
