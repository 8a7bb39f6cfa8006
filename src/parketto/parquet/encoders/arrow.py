"""Encodes with Arrow: every type and codec, within the memory of a task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import file_writer
from parketto.parquet.output import Output
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.reader import BatchReader
from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker

# Larger row groups do not speed readers up. With several, one is encoded while rows for the next are read.
ENCODED_ROWS = 256 * 1024


def encode_files(files: Sequence[FileInfo], output: Output, worker: Worker) -> StagedFile:
    """Write all rows of the files as one staged file."""
    schema = output.format.schema.remove_metadata()
    reader = BatchReader(
        worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
    )
    rows = read_parallel(files, reader.read, worker.batch_bytes, threads=worker.threads, size_of=reader.sizes.of)
    # The reading threads must end with the task, not when Python collects the generator.
    with (
        file_writer(output, worker, single_file=True, row_group_rows=ENCODED_ROWS) as writer,
        closing(rows),
    ):
        for batch in worker.until_cancelled(rows):
            writer.write(batch)
    (staged,) = writer.staged
    return staged
