"""Writes rows to the folders of their partitions, in one pass: large partitions at once, small ones at the end.

Rows are buffered by partition. When the buffers are full, the largest one becomes a row group of its file. Buffers
that are too small for a row group are spilled instead, and become files at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.file_writer import FileWriter
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import FolderNumbers
from parketto.runtime.batches import decoded_bytes
from parketto.runtime.prefetch import prefetch
from parketto.runtime.task import Worker
from parketto.runtime.threads import ThreadPool
from parketto.sorting.spill_runs import SpillRuns
from parketto.tasks.write_folder import folder_writer, stored_rows, write_folder

# Buffered rows become a row group if they are this many, or have this many decoded bytes; fewer are spilled.
_MIN_ROWS = 32 * 1024
_MIN_BYTES = 4 * 1024 * 1024
_MAX_OPEN = 256  # files that are written at once; the rows of further partitions are spilled
_ROWS_PER_PIECE = 256  # rows of each partition that are split together: with fewer, a row takes longer
# Partitions are written in parallel only if each can have row groups of this many decoded bytes.
_MIN_ROW_GROUP_BYTES = 16 * 1024 * 1024


@dataclass
class _Partition:
    """The buffered rows of a partition, and how its other rows are stored."""

    folder: str
    rows: list[pa.Table] = field(default_factory=list)
    size: int = 0
    num_rows: int = 0
    written_rows: int = 0
    writer: FileWriter | None = None
    is_spilled: bool = False

    @property
    def is_large(self) -> bool:
        """Whether the buffered rows are enough for a row group."""
        return self.num_rows >= _MIN_ROWS or self.size >= _MIN_BYTES

    def add(self, rows: pa.Table) -> None:
        self.rows.append(rows)
        self.size += rows.nbytes
        self.num_rows += rows.num_rows

    def detach(self) -> None:
        """Copy the buffered rows, so that they do not share memory with other ones."""
        self.rows = [pa.concat_tables(self.rows).combine_chunks()]

    def flush(self) -> pa.Table:
        found, self.rows, self.size, self.num_rows = pa.concat_tables(self.rows), [], 0, 0
        return found


def write_partitions(rows: Iterator[pa.RecordBatch], output: Output, worker: Worker, *, threads: int) -> Written:
    """Write unsorted rows to the folders of their partitions; in each, they keep their order.

    Args:
        rows: The rows.
        output: The new files.
        worker: The resources of the task.
        threads: With more than one, the next rows are prefetched.
    """
    decoded = decoded_schema(output.row_schema).remove_metadata()
    with _PartitionsWriter(decoded, output, worker) as writer:
        writer.write((cast_rows(batch, decoded) for batch in rows), threads)
        return writer.finished()


class _PartitionsWriter:
    def __init__(self, schema: pa.Schema, output: Output, worker: Worker) -> None:
        self._schema, self._output, self._worker = schema, output, worker
        self._calendar = CalendarCheck(output.format.schema, output.format.metadata, output.format.traits.int96)
        self._most_bytes = 2 * worker.run_bytes  # a third of the memory is for buffers
        self._numbers = FolderNumbers(output.partition_by)
        self._partitions: list[_Partition] = []
        self._size = self._num_open = 0
        # A remote filesystem buffers megabytes for each open file. Sorts need all rows of a partition.
        local = worker.store.local_path(output.directory) is not None
        self._most_open = _MAX_OPEN if local and not output.sort_by else 0
        self._encoding: deque[FileWriter] = deque()
        self._stack = ExitStack()
        self._spilled = self._stack.enter_context(SpillRuns(worker.scratch_directory(), schema))
        self._encoders = ThreadPoolExecutor(worker.threads, "parketto-encode")
        self._stack.callback(self._encoders.shutdown, cancel_futures=True)

    def __enter__(self) -> _PartitionsWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        for partition in self._partitions:
            if partition.writer is not None:
                partition.writer.abandon()
        self._stack.close()

    def write(self, rows: Iterator[pa.RecordBatch], threads: int) -> None:
        """Distribute rows to the buffers of their partitions."""
        held: list[pa.RecordBatch] = []
        size = num_rows = 0
        with closing(prefetch(rows, threads)) as batches:
            for batch in batches:
                held.append(batch)
                size, num_rows = size + decoded_bytes(batch), num_rows + batch.num_rows
                wanted = _ROWS_PER_PIECE * len(self._partitions) * size // max(1, num_rows)
                if size >= min(max(wanted, self._worker.batch_bytes // 2), self._most_bytes // 4):
                    self._distribute(pa.Table.from_batches(held))
                    held, size, num_rows = [], 0, 0
                del batch
        if held:
            self._distribute(pa.Table.from_batches(held))

    def _distribute(self, rows: pa.Table) -> None:
        if self._size + rows.nbytes > self._most_bytes:
            self._make_room()
        self._size += rows.nbytes
        for number, piece in self._numbers.split(rows):
            if number == len(self._partitions):
                self._partitions.append(_Partition(self._numbers.folders[number]))
            partition = self._partitions[number]
            if partition.rows and partition.size + piece.nbytes > self._worker.row_group_bytes:
                self._flush([number])  # frees no memory: see `_make_room`
            partition.add(piece)

    def finished(self) -> Written:
        """Write the remaining rows, and finish all files."""
        found: dict[int, Written] = {}
        self._flush(
            number for number, each in enumerate(self._partitions) if each.writer is not None and each.rows
        )
        for number, partition in enumerate(self._partitions):
            if partition.writer is not None:
                partition.writer.finish()
                found[number] = Written(tuple(partition.writer.staged), partition.written_rows)
        found |= self._remaining([number for number in range(len(self._partitions)) if number not in found])
        return Written.total(found[number] for number in sorted(found))

    def _remaining(self, numbers: Sequence[int]) -> dict[int, Written]:
        """Write partitions that have no file so far, as many at once as memory allows."""
        worker, found = self._worker, dict[int, Written]()
        at_once = max(1, min(worker.threads, worker.row_group_bytes // _MIN_ROW_GROUP_BYTES))
        if self._output.sort_by:
            at_once = 1  # a sort has runs and spill files of its own, and uses several threads
        share = worker.shared_by(at_once)
        spilled, pending = self._spilled.read_all(), deque[tuple[int, Future[Written]]]()
        with ThreadPool(at_once, "parketto-write") as pool:
            for number in numbers:
                partition = self._partitions[number]
                rows = chain(spilled.pop(number, ()), partition.flush().to_batches() if partition.rows else ())
                if at_once == 1:
                    found[number] = write_folder(rows, self._output, partition.folder, worker)
                    continue
                checked = pool.until_stopped(worker.until_cancelled(rows))
                pending.append((number, pool.submit(write_folder, checked, self._output, partition.folder, share)))
                if len(pending) > at_once:
                    done, written = pending.popleft()
                    found[done] = written.result()
            return found | {number: written.result() for number, written in pending}

    def _make_room(self) -> None:
        """Empty the buffers. All at once, because their rows are slices of the same tables."""
        buffered = [number for number, partition in enumerate(self._partitions) if partition.rows]
        small = [number for number in buffered if not self._partitions[number].is_large]
        self._flush(set(buffered).difference(small))
        self._size = sum(self._partitions[number].size for number in small)
        if self._size > self._most_bytes // 4:
            self._flush(small)
            self._size = 0
        else:
            for number in small:
                self._partitions[number].detach()

    def _flush(self, numbers: Iterable[int]) -> None:
        """Write the buffered rows of partitions as row groups of their files, or spill them."""
        spilled = []
        for number in sorted(numbers):
            partition = self._partitions[number]
            if partition.writer is None and partition.is_large and not partition.is_spilled:
                self._open(partition)
            if partition.writer is not None:
                self._encode(partition, partition.writer)
            else:
                partition.is_spilled = True
                spilled.append(number)
        self._spilled.write((number, self._partitions[number].flush()) for number in spilled)

    def _open(self, partition: _Partition) -> None:
        if self._num_open < self._most_open:
            self._num_open += 1
            partition.writer = folder_writer(self._output, partition.folder, self._worker, self._encoders)

    def _encode(self, partition: _Partition, writer: FileWriter) -> None:
        writer.settle()
        partition.written_rows += partition.num_rows
        for batch in partition.flush().combine_chunks().to_batches():  # many short chunks take longer to encode
            writer.write(stored_rows(batch, self._output, self._calendar))
        writer.end_row_group()
        # Each of these holds a row group until its columns are encoded and appended.
        self._encoding.append(writer)
        if len(self._encoding) > self._worker.threads:
            self._encoding.popleft().settle()
