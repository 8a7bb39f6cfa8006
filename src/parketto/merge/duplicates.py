"""The tasks of a deduplication: read keys into hash buckets, find the rows to drop, drop them.

The positions of dropped rows go through spool files, never through the driver: there may be billions of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa

from parketto.errors import UnreadableFile
from parketto.merge.digests import comparable_keys
from parketto.merge.hashing import Hashes, key_hashes
from parketto.merge.keys import KeyIndex, key_columns, matchable
from parketto.merge.rules import MergeRules
from parketto.merge.source import distinct_rows
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.partition_spec import PartitionSpec
from parketto.runtime.arrays import Indices
from parketto.runtime.task import Worker
from parketto.sorting.order import by_number, comparable

POSITION = "position"  # of a row: the number of its file and, in the low bits, of the row in it
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1
_INTEGER = np.dtype("<i8")
# What a row adds to its keys, in bytes: its position, hash, order and code. Comparing takes copies of these.
_ROW_BYTES = 32


@dataclass(frozen=True)
class DuplicateRules:
    """Which rows are duplicates, and which one of them is kept."""

    keys: tuple[str, ...]
    #: The row with the highest values is kept; of equal ones, the last.
    order_by: tuple[str, ...]
    #: Whether keys may be NULL.
    with_nulls: bool

    def keyed(self, rows: pa.Table, positions: Indices) -> pa.Table:
        """Keys and order of rows, with their positions."""
        keys = [matchable(comparable_keys(rows.column(name))) for name in self.keys]
        order = [comparable(rows.column(name)) for name in self.order_by]
        return pa.table(
            {
                **{f"key {at}": column for at, column in enumerate(keys)},
                **{f"order {at}": column for at, column in enumerate(order)},
                POSITION: positions,
            }
        )

    def kept(self, keyed: pa.Table) -> Indices | None:
        """The numbers of the rows to keep, sorted; None if all. Rows must be in the order of their positions."""
        names = _key_names(keyed)
        order = tuple(f"order {at}" for at in range(len(self.order_by)))
        rules = MergeRules("deduplicate", names, order)
        return distinct_rows(keyed, rules, KeyIndex(keyed, names, with_nulls=self.with_nulls))

    def hashes(self, keyed: pa.Table) -> Hashes:
        """The hash of each key."""
        return key_hashes(key_columns(keyed, _key_names(keyed), with_nulls=self.with_nulls))


def _key_names(keyed: pa.Table) -> tuple[str, ...]:
    return tuple(name for name in keyed.column_names if name.startswith("key "))


@dataclass(frozen=True)
class Span:
    """Row numbers of one file in a spool file: `count` integers from the position `start`."""

    path: str
    start: int
    count: int

    def read(self, worker: Worker) -> Indices:
        """The row numbers."""
        size = _INTEGER.itemsize
        content = worker.store.read_range(self.path, self.start * size, (self.start + self.count) * size)
        return np.frombuffer(content, _INTEGER)


@dataclass(frozen=True)
class Piece:
    """Keys of one bucket: a batch of a spool file, and its size."""

    path: str
    batch: int
    size_bytes: int


@dataclass(frozen=True)
class Found:
    """The rows to drop, by the number of their file, and the keys that are yet to be compared, by bucket."""

    dropped: Sequence[tuple[int, Span]]
    pieces: Sequence[tuple[int, Piece]] = ()


class _Dropped:
    """Writes the positions of rows to a spool file, sorted positions at a time."""

    def __init__(self, sink: IO[bytes], path: str) -> None:
        self._sink, self._path, self._written = sink, path, 0
        self.spans: list[tuple[int, Span]] = []

    def add(self, positions: Indices) -> None:
        _, spans = by_number(positions >> _ROW_BITS)
        self._sink.write((positions & _ROW_MASK).astype(_INTEGER).tobytes())
        for file, start, stop in spans:
            self.spans.append((file, Span(self._path, self._written + start, stop - start)))
        self._written += len(positions)


@dataclass(frozen=True)
class ReadKeys:
    """Read the keys of some files, and distribute them to hash buckets.

    Duplicates that are read together are decided at once, so a frequent key does not fill its bucket.
    """

    #: The files with their numbers, in path order.
    numbered: tuple[tuple[int, FileInfo], ...]
    spec: PartitionSpec
    rules: DuplicateRules
    buckets: int
    path: str

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return tuple(file for _, file in self.numbered)

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Found:
        """Read all keys, as many at a time as fit into memory."""
        path = worker.staging.of_attempt(self.path)
        pieces: list[tuple[int, Piece]] = []
        writer: pa.ipc.RecordBatchFileWriter | None = None
        with (
            worker.store.open_output(f"{path}.keys") as keys,
            worker.store.open_output(f"{path}.rows") as rows,
        ):
            dropped = _Dropped(rows, f"{path}.rows")
            for chunk in self._chunks(worker):
                keyed = self._undecided(chunk, dropped)
                if writer is None:
                    writer = pa.ipc.new_file(keys, keyed.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
                for bucket, batch in self._by_bucket(keyed):
                    pieces.append((bucket, Piece(f"{path}.keys", len(pieces), batch.nbytes)))
                    writer.write_batch(batch)
            if writer is not None:
                writer.close()
        return Found(tuple(dropped.spans), tuple(pieces))

    def _undecided(self, keyed: pa.Table, dropped: _Dropped) -> pa.Table:
        kept = self.rules.kept(keyed)
        if kept is None:
            return keyed
        loses = np.ones(keyed.num_rows, np.bool_)
        loses[kept] = False
        dropped.add(keyed.column(POSITION).to_numpy()[loses])
        return keyed.take(pa.array(kept))

    def _by_bucket(self, keyed: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
        number = ((self.rules.hashes(keyed) >> np.uint64(32)) * np.uint64(self.buckets)) >> np.uint64(32)
        order, spans = by_number(number.astype(np.int64))
        ordered = keyed.take(pa.array(order)).combine_chunks()
        for bucket, start, stop in spans:
            yield bucket, ordered.slice(start, stop - start).to_batches()[0]

    def _chunks(self, worker: Worker) -> Iterator[pa.Table]:
        names = tuple(dict.fromkeys((*self.rules.keys, *self.rules.order_by)))
        parts: list[pa.RecordBatch] = []
        positions: list[Indices] = []
        size = 0
        for number, file in self.numbered:
            row = number << _ROW_BITS
            for batch in worker.until_cancelled(row_reader(worker, file, self.spec, names).read(file)):
                self._check_nulls(file, batch)
                parts.append(batch)
                positions.append(row + np.arange(batch.num_rows))
                row += batch.num_rows
                size += batch.nbytes + _ROW_BYTES * batch.num_rows
                if size >= worker.run_bytes:
                    yield self.rules.keyed(pa.Table.from_batches(parts), np.concatenate(positions))
                    parts, positions, size = [], [], 0
        if parts:
            yield self.rules.keyed(pa.Table.from_batches(parts), np.concatenate(positions))

    def _check_nulls(self, file: FileInfo, batch: pa.RecordBatch) -> None:
        for name in self.rules.keys:
            if not self.rules.with_nulls and batch.column(name).null_count:
                raise UnreadableFile(file.path, f"it has NULLs in {name!r}, of which its footer counts none")


@dataclass(frozen=True)
class CompareBucket:
    """Find the rows to drop among all rows of a hash bucket."""

    pieces: tuple[Piece, ...]
    rules: DuplicateRules
    path: str

    @property
    def size_bytes(self) -> int:
        """The size of the keys."""
        return sum(piece.size_bytes for piece in self.pieces)

    def run(self, worker: Worker) -> Found:
        """Compare all keys of the bucket; those of a bucket that exceeds the memory in several passes."""
        path = worker.staging.of_attempt(self.path)
        passes = -(-self.size_bytes // worker.run_bytes)
        with worker.store.open_output(path) as sink:
            dropped = _Dropped(sink, path)
            for number in range(passes):
                keyed = pa.Table.from_batches(self._batches(worker, number, passes))
                keyed = keyed.take(pa.array(np.argsort(keyed.column(POSITION).to_numpy())))
                kept = self.rules.kept(keyed)
                if kept is not None:
                    loses = np.ones(keyed.num_rows, np.bool_)
                    loses[kept] = False
                    dropped.add(keyed.column(POSITION).to_numpy()[loses])
        return Found(tuple(dropped.spans))

    def _batches(self, worker: Worker, number: int, passes: int) -> list[pa.RecordBatch]:
        """The keys of one pass."""
        by_path: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            by_path.setdefault(piece.path, []).append(piece)
        found = []
        for path, pieces in by_path.items():
            with worker.store.open_input(path) as source, pa.ipc.open_file(source) as reader:
                for piece in pieces:
                    worker.check_cancelled()
                    batch = reader.get_batch(piece.batch)
                    if passes > 1:
                        # The high bits are the same in the whole bucket.
                        mine = self.rules.hashes(pa.Table.from_batches([batch])) % np.uint64(passes) == number
                        batch = batch.filter(pa.array(mine))
                    found.append(batch)
        return found


@dataclass(frozen=True)
class SpooledRows:
    """The rows of a file to drop, in spool files."""

    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """Their number."""
        return sum(span.count for span in self.spans)

    def rows(self, worker: Worker) -> Indices:
        """Their numbers, sorted."""
        return np.sort(np.concatenate([span.read(worker) for span in self.spans]))


def by_file(found: Iterable[Found]) -> Mapping[int, SpooledRows]:
    """The rows to drop of each file, by its number."""
    spans: dict[int, list[Span]] = {}
    for each in found:
        for number, span in each.dropped:
            spans.setdefault(number, []).append(span)
    return {number: SpooledRows(tuple(each)) for number, each in spans.items()}


def row_reader(worker: Worker, file: FileInfo, spec: PartitionSpec, names: Sequence[str]) -> LogicalReader:
    """A reader of some columns of a file, in decoded types."""
    assert file.schema is not None, "files to read come from a snapshot"
    whole = spec.row_schema(file.schema)
    return LogicalReader.of(worker, pa.schema([whole.field(name) for name in names]), spec)
