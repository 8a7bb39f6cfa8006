"""Reads and edits small files together: calls for each of them would take longer than the work on their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import TracebackType

import pyarrow as pa

from parketto.arguments import MEGABYTE
from parketto.merge.moved import MovedRows
from parketto.merge.row_edits import Edits, Rewriting, RowEdits, changes_any, effective_edits, kept_rows, together
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.runtime.prefetch import prefetch
from parketto.runtime.task import Worker
from parketto.tasks.file_rewriter import FileRewriter

_ROWS_TOGETHER = 64 * 1024  # from here on, calls take no noticeable part of the time
_MAX_BYTES_TOGETHER = 64 * MEGABYTE  # an Arrow array of strings holds 2 GB, however much memory there is
_FILES_AHEAD = 16  # files that another thread reads at once; handing each over takes 0.1 ms


class SmallFiles:
    """Reads small files, several ahead of the caller.

    Args:
        files: The files that are encoded as a whole, in the order in which they are requested.
        reader: The reader of their rows, used by no other thread.
        worker: The resources of the task.
    """

    def __init__(self, files: Iterable[FileInfo], reader: LogicalReader, worker: Worker) -> None:
        self._reader, self._worker = reader, worker
        self._most = min(worker.batch_bytes, _MAX_BYTES_TOGETHER)
        self._files = [
            file for file in files if sum(group.total_byte_size for group in file.row_groups) <= self._most
        ]
        self._paths = {file.path for file in self._files}
        self._pieces = prefetch(self._read(), worker.threads)
        self._piece: dict[str, list[pa.RecordBatch] | None] = {}

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pieces.close()

    def rows(self, file: FileInfo) -> list[pa.RecordBatch] | None:
        """All rows of a file; None if it is not small, or its rows are not."""
        if file.path not in self._paths:
            return None
        while file.path not in self._piece:
            self._piece = next(self._pieces)
        return self._piece.pop(file.path)

    def _read(self) -> Iterator[dict[str, list[pa.RecordBatch] | None]]:
        piece: dict[str, list[pa.RecordBatch] | None] = {}
        held = 0
        for file in self._files:
            piece[file.path], size = self._all_rows(file)
            held += size
            if held >= self._most // 2 or len(piece) == _FILES_AHEAD:
                yield piece
                piece, held = {}, 0
        if piece:
            yield piece

    def _all_rows(self, file: FileInfo) -> tuple[list[pa.RecordBatch] | None, int]:
        """The rows of a file, and their bytes; None if these are too many: values expand when they are decoded."""
        rows: list[pa.RecordBatch] = []
        size = 0
        with self._reader.open(file) as opened:
            for batch in self._worker.until_cancelled(self._reader.rows(opened, *range(len(file.row_groups)))):
                size += batch.nbytes
                if size > self._most:
                    return None, 0
                rows.append(batch)
        return rows, size


class EditsTogether:
    """Applies the edits of several small files at once."""

    def __init__(
        self,
        rewriter: FileRewriter,
        rewriting: Rewriting,
        names: Sequence[str],
        moved: MovedRows,
        worker: Worker,
    ) -> None:
        self._rewriter, self._rewriting, self._names, self._moved = rewriter, rewriting, names, moved
        self._most_bytes = min(worker.batch_bytes, _MAX_BYTES_TOGETHER)
        self._begin()

    def _begin(self) -> None:
        self._files: list[FileInfo] = []
        self._starts = [0]
        self._batches: list[pa.RecordBatch] = []
        self._edits: list[RowEdits] = []
        self._bytes = 0

    def add(self, file: FileInfo, rows: Sequence[pa.RecordBatch], edits: Edits) -> None:
        """Find the edits of the rows of a file."""
        start = self._starts[-1]
        for batch in rows:
            self._edits.append(edits.of(start - self._starts[-1], batch).shifted(start))
            self._batches.append(batch)
            start += batch.num_rows
            self._bytes += batch.nbytes + self._edits[-1].rows.nbytes
        self._files.append(file)
        self._starts.append(start)
        if start >= _ROWS_TOGETHER or self._bytes >= self._most_bytes:
            self.apply()

    def apply(self) -> None:
        """Write the rows of files in which anything changes."""
        if self._batches:
            batch = pa.concat_batches(self._batches)
            found = together(self._edits)
            found = replace(found, rows=found.rows.combine_chunks())
            compared = self._rewriting.compared(self._names)
            self._write(batch, effective_edits(batch, found, self._rewriting, compared))
        self._begin()

    def _write(self, batch: pa.RecordBatch, edits: RowEdits) -> None:
        for start, stop, files in self._changed(edits):
            rows, found = batch.slice(start, stop - start), edits.between(start, stop)
            kept = kept_rows(rows.select(self._names), found, self._rewriting)
            at = 0
            for file, left in files:
                self._rewriter.next_encoded(file)
                for part in kept.slice(at, left).to_batches():
                    self._rewriter.write(part)
                at += left
            self._moved.add(rows, found)

    def _changed(self, edits: RowEdits) -> Iterator[tuple[int, int, list[tuple[FileInfo, int]]]]:
        """Runs of files in which anything changes: first row, last row + 1, and each file with the rows left."""
        run: list[tuple[FileInfo, int]] = []
        first = 0
        for file, (start, stop) in zip(self._files, pairwise(self._starts), strict=True):
            found = edits.between(start, stop)
            if changes_any(found, stop - start, self._rewriting):
                run.append((file, found.rows_left(stop - start, keeps_others=self._rewriting.keeps_others)))
                continue
            if run:
                yield first, start, run
            run, first = [], stop
        if run:
            yield first, self._starts[-1], run
