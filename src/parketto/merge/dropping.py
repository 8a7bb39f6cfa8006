"""Rewrites a file without some of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from parketto.merge.keys import Indices
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_rewriter import FileRewriter
from parketto.parquet.output import Output, Written
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import LogicalReader
from parketto.runtime.task import Worker


def drop_rows(file: FileInfo, rows: Indices, output: Output, worker: Worker) -> Written:
    """Rewrite a file without the rows of these numbers, which are sorted; no file is written if none remains.

    Row groups that keep all rows are copied.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    reader = row_reader(worker, file, PartitionSpec(), file.schema.names)
    start = 0
    with reader.open(file) as opened, FileRewriter(opened, output, worker) as rewriter:
        for number, group in enumerate(file.row_groups):
            first, stop = np.searchsorted(rows, [start, start + group.num_rows])
            if stop - first < group.num_rows and not (first == stop and rewriter.copy(number)):
                rewriter.begin(number)
                kept = _without(rows[first:stop] - start, reader.rows(opened, number))
                for batch in worker.until_cancelled(kept):
                    rewriter.write(batch)
            start += group.num_rows
    return rewriter.written


def _without(rows: Indices, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without the rows of these numbers."""
    start = 0
    for batch in batches:
        first, stop = np.searchsorted(rows, [start, start + batch.num_rows])
        keep = np.ones(batch.num_rows, np.bool_)
        keep[rows[first:stop] - start] = False
        yield batch if first == stop else batch.filter(pa.array(keep))
        start += batch.num_rows


def row_reader(worker: Worker, file: FileInfo, spec: PartitionSpec, names: Sequence[str]) -> LogicalReader:
    """A reader of some columns of a file, in decoded types."""
    assert file.schema is not None, "files to read come from a snapshot"
    whole = spec.row_schema(file.schema)
    return LogicalReader(
        worker.store,
        pa.schema([whole.field(name) for name in names]),
        worker.batch_bytes,
        spec,
        use_threads=worker.use_threads,
        widths=worker.widths,
    )
