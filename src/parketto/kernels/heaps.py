"""Rows by partition, however many there are: they are dealt out to a heap on disk for each folder.

A sort by the partition columns would bring them together as well, but it compares rows, and reads and writes them
again and again; here each is written once and read once, in the order that it came.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from parketto.kernels.ahead import Pieces
from parketto.kernels.external_sort import read_run, sort_batches, write_options
from parketto.kernels.partitions import by_partition, pieces_by_folder

# Each has a file open while rows are dealt out. Those of further folders are sorted.
_MAX_HEAPS = 256


@dataclass(frozen=True)
class Heap:
    """Rows on disk, to be read once, whenever and wherever."""

    path: str

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read_run(self.path)


def by_folder(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Sequence[str],
    run_bytes: int,
    scratch: str,
    *,
    threads: int = 1,
) -> Generator[tuple[str, Heap | Iterator[pa.RecordBatch]], None, None]:
    """The folder of each partition, with its rows; but for heaps, each one's must be used before the next one's.

    Args:
        batches: The rows.
        schema: Their schema.
        columns: The partition columns.
        run_bytes: How much may be held, about.
        scratch: Where to put what does not fit.
        threads: With more than one, rows come in while those before are dealt out.
    """
    with Pieces(batches, run_bytes, threads) as tables:
        if tables.is_one:
            for table in tables:
                for folder, piece in pieces_by_folder(table, columns):
                    yield folder, iter(piece.to_batches())
            return
        with _Heaps(schema, scratch) as heaps:
            for table in tables:
                for folder, piece in pieces_by_folder(table, columns):
                    heaps.add(folder, piece)
                del table, piece  # or they would be there until the next ones are
    for folder, path in heaps.paths.items():
        yield folder, Heap(path)
    if heaps.rest is not None:
        ordered = sort_batches(read_run(heaps.rest), schema, columns, run_bytes, scratch)
        yield from by_partition(ordered, columns)


class _Heaps:
    """A file of rows for each folder, and one for the rows of all folders that are too many."""

    def __init__(self, schema: pa.Schema, scratch: str) -> None:
        self._schema, self._prefix = schema, os.path.join(scratch, f"heap-{uuid.uuid4().hex}")
        self._open = ExitStack()
        self._writers: dict[str, pa.ipc.RecordBatchStreamWriter] = {}
        self.paths: dict[str, str] = {}
        self.rest: str | None = None

    def __enter__(self) -> _Heaps:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def add(self, folder: str, rows: pa.Table) -> None:
        """Put rows on the heap of a folder."""
        writer = self._writers.get(folder)
        if writer is None and len(self.paths) < _MAX_HEAPS:
            self.paths[folder] = f"{self._prefix}-{len(self.paths):05d}.arrows"
            writer = self._writers[folder] = self._new(self.paths[folder])
        elif writer is None:
            if self.rest is None:
                self.rest = f"{self._prefix}-rest.arrows"
                self._writers[""] = self._new(self.rest)
            writer = self._writers[""]
        writer.write_table(rows)

    def _new(self, path: str) -> pa.ipc.RecordBatchStreamWriter:
        sink = self._open.enter_context(pa.OSFile(path, "wb"))
        return self._open.enter_context(pa.ipc.new_stream(sink, self._schema, options=write_options()))
