"""Writes rows as new files: in one directory, or in one per partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import file_writer
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import by_partition, spill_by_partition
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import Worker
from parketto.runtime.threads import ThreadPool
from parketto.sorting.external_sort import sort_batches
from parketto.sorting.spill import SpillFile
from parketto.storage.hive import NULL_PARTITION

# Partitions are written in parallel only if each can have row groups of this many decoded bytes.
_MIN_ROW_GROUP_BYTES = 16 * 1024 * 1024


def write_rows(
    batches: Iterable[pa.RecordBatch],
    output: Output,
    worker: Worker,
    *,
    at_least_one: bool = True,
    in_partition_order: bool = False,
    prefetch: bool = True,
) -> Written:
    """Write rows; without any, one file with the schema if `at_least_one`.

    With `prefetch`, another thread may read from `batches`. Not for an iterator of the caller: it may work only in
    the caller's thread, or block for so long that it could not be interrupted.
    """
    rows = worker.until_cancelled(iter(batches))
    if output.checks is not None:
        with output.checks.checking(worker) as check:
            passed = check.passed(rows)
            if in_partition_order:
                decoded = decoded_schema(output.row_schema).remove_metadata()
                passed = (cast_rows(batch, decoded) for batch in passed)
            written = write_rows(
                passed,
                replace(output, checks=None),
                worker,
                at_least_one=at_least_one,
                in_partition_order=in_partition_order,
                prefetch=prefetch,
            )
        return replace(written, violations=check.found)
    if not output.partition_by:
        return _write_directory(rows, output, output.directory, worker, at_least_one=at_least_one)
    if in_partition_order:
        # Only one file is open at a time, however many partitions there are.
        folders = by_partition(rows, output.partition_by)
        written = sum((write_folder(found, output, folder, worker) for folder, found in folders), Written())
    else:
        written = _write_partitions(rows, output, worker, prefetch=prefetch)
    if not written.staged and at_least_one:
        return _write_directory(iter(()), output, output.directory, worker, at_least_one=True)
    return written


def _write_partitions(
    rows: Iterator[pa.RecordBatch], output: Output, worker: Worker, *, prefetch: bool
) -> Written:
    """Write unsorted rows to the folders of their partitions, as many at once as memory allows."""
    decoded = decoded_schema(output.row_schema)
    given = (cast_rows(batch, decoded) for batch in rows)
    folders = spill_by_partition(
        given,
        decoded,
        output.partition_by,
        worker.run_bytes,
        worker.scratch_directory(),
        threads=worker.threads if prefetch else 1,
    )
    written = Written()
    at_once = max(1, min(worker.threads, worker.row_group_bytes // _MIN_ROW_GROUP_BYTES))
    if output.sort_by:
        at_once = 1  # a sort has runs and spill files of its own, and uses several threads
    share = worker.shared_by(at_once)
    pending: deque[Future[Written]] = deque()
    with closing(folders), ThreadPool(at_once, "parketto-write") as pool:
        for folder, found in folders:
            if at_once == 1 or not isinstance(found, SpillFile):
                written += write_folder(found, output, folder, worker)
                continue
            pending.append(
                pool.submit(
                    write_folder, pool.until_stopped(worker.until_cancelled(iter(found))), output, folder, share
                )
            )
            if len(pending) > at_once:
                written += pending.popleft().result()
        return sum((each.result() for each in pending), written)


def write_folder(batches: Iterable[pa.RecordBatch], output: Output, folder: str, worker: Worker) -> Written:
    """Write the rows of one partition."""
    directory = f"{output.directory}/{output.folders.get(folder, folder)}"
    return _write_directory(iter(batches), output, directory, worker, at_least_one=False)


@dataclass(frozen=True)
class CopyRows:
    """Write the rows of files as new files."""

    source: FileRows
    output: Output

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return self.source.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return self.source.files

    def run(self, worker: Worker) -> Written:
        """Read and write the rows."""
        rows = self.source.read(worker)
        return write_rows(rows, self.output, worker, at_least_one=False, prefetch=self.source.transform is None)


@dataclass(frozen=True)
class WriteSlice:
    """Write a slice of rows that are in memory."""

    rows: pa.Table
    output: Output

    @property
    def size_bytes(self) -> int:
        """The size of these rows."""
        return int(self.rows.nbytes)

    def run(self, worker: Worker) -> Written:
        """Write them as whole files."""
        return write_rows(self.rows.to_batches(), self.output, worker, at_least_one=False)


def row_slices(batches: list[pa.RecordBatch], max_rows: int, parts: int) -> list[pa.Table]:
    """Rows split into about equal parts, each of whole files of `max_rows`.

    >>> rows = pa.table({"n": range(10)}).to_batches(max_chunksize=4)
    >>> [part.num_rows for part in row_slices(rows, 3, 2)]
    [6, 4]
    """
    table = pa.Table.from_batches(batches)
    files = -(-table.num_rows // max_rows)
    step = max_rows * max(1, -(-files // parts))
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]


def _write_directory(
    batches: Iterator[pa.RecordBatch], output: Output, directory: str, worker: Worker, *, at_least_one: bool
) -> Written:
    if output.sort_by:
        batches, output = _sorted(batches, output, worker)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None and not at_least_one:
        return Written()
    rows = 0
    schema = output.format.schema
    calendar = CalendarCheck(schema, output.format.metadata, output.format.traits.int96)
    with file_writer(output, worker, directory=directory) as writer:
        for batch in _with_first(first, batches):
            rows += batch.num_rows
            writer.write(stored_rows(batch, output, calendar))
    return Written(tuple(writer.staged), rows)


def _sorted(
    batches: Iterator[pa.RecordBatch], output: Output, worker: Worker
) -> tuple[Iterator[pa.RecordBatch], Output]:
    """The rows in order, spilled to disk if needed, and the output that declares the order."""
    decoded = decoded_schema(output.format.schema).remove_metadata()
    # A partition column that only the path contains has one value per file.
    columns = [name for name in output.sort_by if name in decoded.names]
    stored = (cast_rows(batch, decoded) for batch in batches)
    rows = sort_batches(stored, decoded, columns, worker.run_bytes, worker.scratch_directory())
    return rows, replace(output, format=replace(output.format, order_by=tuple(columns)))


def stored_rows(batch: pa.RecordBatch, output: Output, calendar: CalendarCheck) -> pa.RecordBatch:
    """The rows as files store them: their columns and types; values that do not fit are an error."""
    schema = output.format.schema
    for name in output.partition_by:
        if name not in schema.names and name in batch.schema.names:
            _refuse_ambiguous(name, batch.column(name))
    batch = cast_rows(batch, schema)
    _refuse_nulls(batch)
    calendar.refuse_written(batch)
    return batch


def _refuse_nulls(batch: pa.RecordBatch) -> None:
    for item, column in zip(batch.schema, batch.columns, strict=True):
        if not item.nullable and column.null_count:
            raise InvalidArgument(
                f"the rows have NULL values in {item.name!r}, which is declared not null; nothing was changed"
            )


def _refuse_ambiguous(name: str, column: pa.Array) -> None:
    """Refuse texts that a path cannot tell from NULL. Values in the files can."""
    if pat.is_string(column.type) or pat.is_large_string(column.type):
        found = pc.is_in(column, value_set=pa.array(["", NULL_PARTITION], column.type))
        if pc.any(found).as_py():
            raise InvalidArgument(
                f"partition column {name!r} has the value {column.filter(found)[0].as_py()!r}, which a path "
                "cannot tell from NULL; replace it, or keep partition columns in the files. Nothing was changed"
            )


def _with_first(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from rest
