"""Edits that are found before the rows are read to be rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parketto.merge.row_edits import Edits, Rewriting, RowEdits, together
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.reader import OpenFile
from parketto.parquet.row_changes import RowChanges
from parketto.parquet.variants import cast
from parketto.runtime.task import Worker
from parketto.tasks.file_rewriter import FileRewriter

_RUNS = 3  # as many sort runs as the edits of a stream may be large: half of the memory of a task


@dataclass(frozen=True)
class KnownEdits:
    """The known edits of the first rows of a row group or file, mostly of all; `others` has the edits of the rest.

    `start` is the number of the first row, and `stop` of the first row whose edits are not known yet.
    """

    start: int
    stop: int
    edits: RowEdits
    others: Edits | KnownEdits
    #: Whether the first row groups have edits. Only `others` knows about the rest.
    touched: tuple[bool, ...] = ()

    @property
    def columns(self) -> Sequence[str]:
        """The columns that identify rows whose edits are not known yet."""
        return self.others.columns

    def touch(self, number: int, stop: int) -> bool:
        """Whether the next row group has edits; `stop` is the number of the row after its last."""
        return self.touched[number] if number < len(self.touched) else self.others.touch(number, stop)

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch, whose first row has the number `start`."""
        first, known = start - self.start, min(max(self.stop - start, 0), batch.num_rows)
        if not known:
            return self.others.of(start, batch)
        found = self.edits.between(first, first + known)
        if known == batch.num_rows:
            return found
        return together([found, self.others.of(start + known, batch.slice(known)).shifted(known)])


class EditsInAdvance:
    """Finds the edits of neighbouring files before they are rewritten. Iterating returns all edits, found or not.

    Args:
        files: The files.
        edits: Files, in the same order, each with its edits.
        reader_of: Returns a reader of some columns.
        rewriter: The rewriter of the files.
        rewriting: How to rewrite them.
        worker: The resources of the task.
    """

    def __init__(
        self,
        files: Sequence[FileInfo],
        edits: Iterable[tuple[FileInfo, Edits]],
        reader_of: Callable[[Sequence[str]], LogicalReader],
        rewriter: FileRewriter,
        rewriting: Rewriting,
        worker: Worker,
    ) -> None:
        self._files, self._edits, self._reader_of = files, iter(edits), reader_of
        self._rewriter, self._rewriting, self._worker = rewriter, rewriting, worker
        self._found: list[tuple[FileInfo, Edits]] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[tuple[FileInfo, Edits]]:
        yield from self._found
        yield from self._edits

    def changes(self) -> RowChanges | None:
        """The edits of all files; None if they need too much memory, move rows, or let files stay or be copied."""
        paths, found = [], []
        for file, edits in self._edits:
            touched: list[bool] = []
            parts: list[RowEdits] = []
            stop, is_useful = self._find(file, edits, touched, parts)
            if not parts:  # the file stays
                self._found.append((file, KnownEdits(0, 0, _NO_EDITS, edits, tuple(touched))))
                return None
            paths.append(file.path)
            found.append(together(parts))
            self._found.append((file, KnownEdits(0, stop, found[-1], edits, tuple(touched))))
            if not is_useful:
                return None
        # Row numbers count through all files, so that none may be missing.
        return self._row_changes(found) if paths == [file.path for file in self._files] else None

    def _find(self, file: FileInfo, edits: Edits, touched: list[bool], found: list[RowEdits]) -> tuple[int, bool]:
        """Add what is found to the lists, up to the first reason to give up.

        Returns:
            The number of the first row whose edits are not known, and whether there is no reason to give up.
        """
        start = 0
        assert file.schema is not None, "files to rewrite come from a snapshot"
        copies_columns = self._rewriting.may_copy_columns(file.schema.names)
        with self._reader_of(edits.columns).open(file) as opened:
            copies = self._rewriter.copies_unchanged(file)
            for number, (group, copied) in enumerate(zip(file.row_groups, copies, strict=True)):
                touched.append(edits.touch(number, start + group.num_rows))
                if copied and (copies_columns if touched[-1] else self._rewriting.keeps_others):
                    return start, False
                if not touched[-1]:
                    start += group.num_rows
                    continue
                for batch in self._identifying(opened, number, edits.columns):
                    found.append(edits.of(start, batch).shifted(start))
                    start += batch.num_rows
                    self._bytes += found[-1].at.nbytes + found[-1].rows.nbytes
                    if found[-1].moves_out.any() or self._bytes > _RUNS * self._worker.run_bytes:
                        return start, False
        return start, True

    def _identifying(self, opened: OpenFile, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The columns of a row group that identify rows."""
        if not columns:  # row numbers do
            yield pa.record_batch({"": pa.nulls(opened.file.row_groups[number].num_rows)})
            return
        yield from self._worker.until_cancelled(self._reader_of(columns).rows(opened, number))

    def _row_changes(self, found: Sequence[RowEdits]) -> RowChanges:
        """The edits, one of each file."""
        schema = self._files[0].schema
        assert schema is not None, "files to rewrite come from a snapshot"
        starts = np.cumsum([0, *(file.num_rows for file in self._files)])
        stays = np.full(starts[-1], self._rewriting.keeps_others)
        for start, edits in zip(starts, found, strict=False):
            stays[start + edits.at] = edits.in_place
            stays[start + edits.untouched] = True
        at = np.concatenate([start + each.at[each.in_place] for start, each in zip(starts, found, strict=False)])
        if not len(at):
            return RowChanges(stays)
        # Without a copy, if possible.
        rows = pa.concat_tables(
            each.rows if each.in_place.all() else each.rows.filter(pa.array(each.in_place)) for each in found
        )
        updated = self._rewriting.updated
        values = {
            field.name: cast(rows.column(field.name), field.type)
            for field in decoded_schema(schema)
            if updated is None or field.name in updated
        }
        return RowChanges(None if stays.all() else stays, at, pa.table(values))


_NO_EDITS = RowEdits(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.bool_), pa.table({}))
