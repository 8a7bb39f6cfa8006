"""Rewrites files without some of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from parketto.merge.keys import Indices
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.output import Rewrite
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import OpenFile
from parketto.runtime.task import Worker
from parketto.tasks.file_rewriter import FileRewriter


class RowNumbers(Protocol):
    """Which rows of a file are dropped; picklable."""

    def rows(self, worker: Worker) -> Indices:
        """Their numbers, sorted."""


@dataclass(frozen=True)
class DropRows:
    """Rewrite neighbouring files without some rows; row groups that keep all of theirs are copied."""

    files: tuple[FileInfo, ...]
    #: The rows to drop of each file: never all.
    dropped: tuple[RowNumbers, ...]
    operation: str
    compression: str | None
    #: Whether row groups of another codec than `compression` are re-encoded.
    recompress: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Rewrite:
        """Rewrite the files."""
        first = self.files[0]
        assert first.schema is not None, "files to rewrite come from a snapshot"
        reader = row_reader(worker, first, PartitionSpec(), first.schema.names)
        codec = self.compression if self.recompress else None
        with FileRewriter(self.files, self.operation, worker, self.compression, codec=codec) as rewriter:
            for file, dropped in zip(self.files, self.dropped, strict=True):
                with reader.open(file) as opened:
                    rewriter.next_file(opened)
                    _drop(opened, dropped.rows(worker), reader, rewriter, worker)
        return rewriter.result


def _drop(opened: OpenFile, rows: Indices, reader: LogicalReader, rewriter: FileRewriter, worker: Worker) -> None:
    start = 0
    for number, group in enumerate(opened.file.row_groups):
        first, stop = np.searchsorted(rows, [start, start + group.num_rows])
        if stop - first < group.num_rows and not (first == stop and rewriter.copy(number)):
            rewriter.begin(number)
            kept = _without(rows[first:stop] - start, reader.rows(opened, number))
            for batch in worker.until_cancelled(kept):
                rewriter.write(batch)
        start += group.num_rows


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
