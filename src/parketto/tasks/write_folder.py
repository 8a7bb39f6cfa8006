"""Writes rows as new files of one directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.file_writer import FileWriter, file_writer
from parketto.parquet.output import Output, Written
from parketto.runtime.task import Worker
from parketto.sorting.external_sort import sort_batches
from parketto.storage.hive import NULL_PARTITION


def write_folder(batches: Iterable[pa.RecordBatch], output: Output, folder: str, worker: Worker) -> Written:
    """Write the rows of one partition."""
    return write_directory(iter(batches), output, output.directory_of(folder), worker, at_least_one=False)


def folder_writer(output: Output, folder: str, worker: Worker, encoders: ThreadPoolExecutor) -> FileWriter:
    """A writer for the rows of one partition; several writers share the encoders."""
    return file_writer(output, worker, directory=output.directory_of(folder), encoders=encoders)


def write_directory(
    batches: Iterator[pa.RecordBatch], output: Output, directory: str, worker: Worker, *, at_least_one: bool
) -> Written:
    """Write rows as files of a directory; without any, one file with the schema if `at_least_one`."""
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
