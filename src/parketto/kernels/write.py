"""Writing rows as new files: in one directory, or in one for each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.kernels.carrier import carrier_schema, fitted
from parketto.kernels.crew import Crew
from parketto.kernels.heaps import Heap, by_folder
from parketto.kernels.partitions import by_partition
from parketto.kernels.rows import FileRows
from parketto.kernels.work import StagedFile, Worker
from parketto.kernels.writer import FileFormat, RollingWriter
from parketto.storage.calendars import CalendarCheck
from parketto.storage.footers import FileInfo

# Several partitions are written at once if each of them can have row groups of that size, decoded.
_LEAST_ROW_GROUP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Output:
    """What new files are to be like.

    `row_schema` is the schema of the rows that come in. The files have it too, less the partition columns if
    those are to stand in the path alone (then the format's schema lacks them).
    """

    directory: str
    format: FileFormat
    row_schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    max_rows: int | None = None
    roll_bytes: int | None = None
    row_group_rows: int | None = None
    #: All rows are to become one file.
    single: bool = False
    prefix: str = "part"
    #: Folders of partitions that there are already under another name (`day=01` for `day=1`).
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """Files that were staged, and how many rows went into them."""

    staged: tuple[StagedFile, ...] = ()
    num_rows: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.staged + other.staged, self.num_rows + other.num_rows)


def write_rows(
    batches: Iterable[pa.RecordBatch],
    output: Output,
    worker: Worker,
    *,
    at_least_one: bool = True,
    in_partition_order: bool = False,
    ahead: bool = True,
) -> Written:
    """Write rows; without any, one file with the schema if `at_least_one`.

    Another thread may take the rows out of `batches` if it may work `ahead`. Not if they are a caller's doing:
    that may only work in the thread of the caller, or wait for so long that nobody could interrupt it.
    """
    rows = worker.until_cancelled(iter(batches))
    if not output.partition_by:
        return _write_directory(rows, output, output.directory, worker, at_least_one=at_least_one)
    if in_partition_order:
        # One file after the other is open, however many partitions there are.
        folders = by_partition(rows, output.partition_by)
        written = sum((write_folder(found, output, folder, worker) for folder, found in folders), Written())
    else:
        written = _write_heaps(rows, output, worker, ahead=ahead)
    if not written.staged and at_least_one:
        return _write_directory(iter(()), output, output.directory, worker, at_least_one=True)
    return written


def _write_heaps(rows: Iterator[pa.RecordBatch], output: Output, worker: Worker, *, ahead: bool) -> Written:
    """Write rows that come in any order into the folders of their partitions: as many at once as memory allows."""
    carried = carrier_schema(output.row_schema)
    given = (fitted(batch, carried) for batch in rows)
    folders = by_folder(
        given,
        carried,
        output.partition_by,
        worker.run_bytes,
        worker.scratch_directory(),
        threads=worker.threads if ahead else 1,
    )
    written = Written()
    at_once = max(1, min(worker.threads, worker.row_group_bytes // _LEAST_ROW_GROUP_BYTES))
    share = worker.shared_by(at_once)
    begun: deque[Future[Written]] = deque()
    with closing(folders), Crew(at_once, "parketto-write") as crew:
        for folder, found in folders:
            if at_once == 1 or not isinstance(found, Heap):
                written += write_folder(found, output, folder, worker)
                continue
            begun.append(
                crew.submit(
                    write_folder, crew.until_dismissed(worker.until_cancelled(iter(found))), output, folder, share
                )
            )
            if len(begun) > at_once:
                written += begun.popleft().result()
        return sum((each.result() for each in begun), written)


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
        """Stream the rows through."""
        rows = self.source.read(worker)
        return write_rows(rows, self.output, worker, at_least_one=False, ahead=self.source.transform is None)


@dataclass(frozen=True)
class WriteSlice:
    """Write some of the rows that are in this process."""

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
    """Rows cut into about equal parts, each of whole files of `max_rows`.

    >>> rows = pa.table({"n": range(10)}).to_batches(max_chunksize=4)
    >>> [part.num_rows for part in row_slices(rows, 3, 2)]
    [6, 4]
    """
    table = pa.Table.from_batches(batches)
    files = -(-table.num_rows // max_rows)
    step = max_rows * max(1, -(-files // parts))
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]


def output_writer(output: Output, directory: str, worker: Worker) -> RollingWriter:
    """A writer for new files in one directory."""
    return RollingWriter(
        worker.store,
        output.format,
        worker.new_files(output.prefix, directory),
        row_group_bytes=worker.row_group_bytes,
        row_limits=None if output.max_rows is None else repeat(output.max_rows),
        roll_bytes=output.roll_bytes,
        row_group_rows=output.row_group_rows,
    )


def _write_directory(
    batches: Iterator[pa.RecordBatch], output: Output, directory: str, worker: Worker, *, at_least_one: bool
) -> Written:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None and not at_least_one:
        return Written()
    rows = 0
    schema = output.format.schema
    calendar = CalendarCheck(schema, output.format.metadata, output.format.traits.int96)
    with output_writer(output, directory, worker) as writer:
        for batch in _with_first(first, batches):
            rows += batch.num_rows
            if batch.schema.names != schema.names:
                batch = batch.select(schema.names)
            batch = fitted(batch, schema)
            _refuse_nulls(batch)
            calendar.refuse_written(batch)
            writer.write(batch)
    return Written(tuple(writer.staged), rows)


def _refuse_nulls(batch: pa.RecordBatch) -> None:
    for item, column in zip(batch.schema, batch.columns, strict=True):
        if not item.nullable and column.null_count:
            raise InvalidArgument(
                f"the rows have NULL values in {item.name!r}, which is declared not null; nothing was changed"
            )


def _with_first(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from rest
