"""Writes rows as new files: in one directory, or in one per partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.encoders.partition_stream import encode_partitions
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.partitions import by_partition
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import Worker
from parketto.tasks.write_folder import write_directory, write_folder
from parketto.tasks.write_partitions import write_partitions


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
        return write_directory(rows, output, output.directory, worker, at_least_one=at_least_one)
    if in_partition_order:
        # Only one file is open at a time, however many partitions there are.
        folders = by_partition(rows, output.partition_by)
        written = sum((write_folder(found, output, folder, worker) for folder, found in folders), Written())
    else:
        written = write_partitions(rows, output, worker, threads=worker.threads if prefetch else 1)
    if not written.staged and at_least_one:
        return write_directory(iter(()), output, output.directory, worker, at_least_one=True)
    return written


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
        return copy_rows(self.source, self.output, worker, at_least_one=False)


def copy_rows(source: FileRows, output: Output, worker: Worker, *, at_least_one: bool = True) -> Written:
    """Write the rows of files as new files; without any, one file with the schema if `at_least_one`."""
    ours = source.transform is None
    if ours and output.partition_by and not source.spec.path_only:
        found = encode_partitions(source.files, output, worker)
        if found is not None:
            return found
    return write_rows(source.read(worker), output, worker, at_least_one=at_least_one, prefetch=ours)


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
