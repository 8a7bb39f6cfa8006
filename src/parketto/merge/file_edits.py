"""Rewrites a file with row edits. Edits that change nothing are dropped; without any other, the file stays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa

from parketto.merge.row_edits import Rewriting, RowEdits, effective_edits, kept_rows, moved_rows, together
from parketto.merge.source import prepared_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_rewriter import FileRewriter
from parketto.parquet.output import Written, output_like
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import LogicalReader, OpenFile
from parketto.runtime.task import Worker
from parketto.sorting.spill import SpillFiles
from parketto.tasks.write import write_rows


@dataclass(frozen=True)
class Rewritten:
    """What replaces a file (`kept`), and the rows that moved to other partitions (`moved_out`).

    If it is `unchanged`, no edit changes a value: the file stays.
    """

    kept: Written = field(default_factory=Written)
    moved_out: Written = field(default_factory=Written)
    unchanged: bool = False


class Edits(Protocol):
    """The edits of a file, requested in row order."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that identify rows; empty if row numbers do."""

    def touch(self, number: int, stop: int) -> bool:
        """Whether the next row group has edits; `stop` is the number of the row after its last."""

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of the next rows; `start` is the number of the first."""


def rewrite_file(file: FileInfo, rewriting: Rewriting, edits: Edits, worker: Worker) -> Rewritten:
    """Rewrite a file: row groups without changes are copied, the others are decoded and encoded.

    If no row remains, no file is written; nor if nothing changes.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    names = [*file.schema.names, *(name for name in rewriting.spec.path_only if name not in file.schema.names)]
    reader = logical_reader(worker, file, names, rewriting.spec)
    changed = rewriting.changed(file.schema.names)
    output = output_like(file, "merge", rewriting.compression, changed)
    with reader.open(file) as opened, FileRewriter(opened, output, worker) as rewriter:
        rewrite = _FileRewrite(opened, reader, rewriter, rewriting, changed, worker)
        unchanged = not rewrite.run(edits)
    return Rewritten(unchanged=True) if unchanged else Rewritten(rewriter.written, rewrite.moved_out())


class _FileRewrite:
    """The rewriting of one file. Row groups before the first change are written once there is one."""

    def __init__(
        self,
        opened: OpenFile,
        reader: LogicalReader,
        rewriter: FileRewriter,
        rewriting: Rewriting,
        changed: frozenset[str],
        worker: Worker,
    ) -> None:
        assert opened.file.schema is not None, "files to rewrite come from a snapshot"
        self._opened, self._reader, self._rewriter, self._rewriting = opened, reader, rewriter, rewriting
        self._changed, self._worker, self._names = changed, worker, opened.file.schema.names
        self._spilled: SpillFiles[None] | None = None
        self._unwritten: list[int] | None = []

    def run(self, edits: Edits) -> bool:
        """Write all row groups, unless nothing changes; return whether anything does."""
        replacer = _ColumnReplacer(self._opened, self._rewriter, self._rewriting, self._changed, self._worker)
        start = 0
        for number, group in enumerate(self._opened.file.row_groups):
            touched = edits.touch(number, start + group.num_rows)
            known = replacer.find_edits(number, start, edits) if touched else None
            changes = self._first_change(number, start, known or edits, all_columns=known is None, touched=touched)
            if changes is not None:
                self._begin()
                if known is None or not replacer.replace_columns(number, start, known):
                    self._write(number, start, changes)
            elif group.num_rows and (touched or self._rewriting.keeps_others):
                self._keep(number)
            elif group.num_rows:
                self._begin()
            start += group.num_rows
        return self._unwritten is None

    def moved_out(self) -> Written:
        """Write the rows that move to other partitions."""
        if self._spilled is None:
            return Written()
        output = self._rewriting.elsewhere
        assert output is not None, "rows that move need an output"
        self._spilled.close()
        moved = (part.select(output.row_schema.names) for part in self._spilled[None])
        return write_rows(moved, output, self._worker, at_least_one=False)

    def _begin(self) -> None:
        """Something changes: write the row groups before it."""
        unwritten, self._unwritten = self._unwritten, None
        for number in unwritten or ():
            self._keep(number)

    def _keep(self, number: int) -> None:
        """Write a row group without changes."""
        if self._unwritten is not None:
            self._unwritten.append(number)
        elif not self._rewriter.copy(number):
            self._rewriter.begin(number)
            for batch in self._rows(number):
                self._rewriter.write(batch.select(self._names))

    def _first_change(
        self, number: int, start: int, edits: Edits | _KnownEdits, *, all_columns: bool, touched: bool
    ) -> _Changes | None:
        """The edits of a row group that change anything; None if none does.

        Reads until it finds a change, so mostly one batch: with `all_columns` the row group, else the columns that
        get new values.
        """
        if not touched:
            return None
        rewriting, compared = self._rewriting, self._compared
        rows = self._rows(number, None if all_columns else {*compared, *edits.columns})
        held: list[pa.RecordBatch] | None = [] if all_columns else None
        found, first, size = [], start, 0
        for batch in rows:
            part = effective_edits(batch, edits.of(first, batch), rewriting, compared)
            found.append(part.shifted(first - start))
            first += batch.num_rows
            size += batch.nbytes
            if held is not None:
                held = [*held, batch] if size <= self._worker.row_group_bytes else None
            if len(part.at) or not (rewriting.keeps_others or len(part.untouched) == batch.num_rows):
                known = _KnownEdits(start, first, together(found), edits)
                return _Changes(known, None if held is None else chain(held, rows))
        return None

    @property
    def _compared(self) -> frozenset[str]:
        """The columns of rows that get new values; of the path only those that rows move by."""
        by_path = self._rewriting.updated or frozenset()
        return self._changed | by_path.intersection(self._rewriting.spec.path_only)

    def _rows(self, number: int, wanted: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        reader, opened = self._reader, self._opened
        if wanted is not None:
            names = [name for name in reader.schema.names if name in wanted] or self._names[:1]
            reader = logical_reader(self._worker, opened.file, names, self._rewriting.spec)
            opened = reader.also(opened)
        return self._worker.until_cancelled(reader.rows(opened, number))

    def _write(self, number: int, start: int, changes: _Changes) -> None:
        """Write a row group with its changes."""
        self._rewriter.begin(number, self._changed)
        for batch in self._rows(number) if changes.rows is None else changes.rows:
            found = changes.edits.of(start, batch)
            start += batch.num_rows
            for part in kept_rows(batch.select(self._names), found, self._rewriting).to_batches():
                self._rewriter.write(part)
            if found.moves_out.any():
                self._spilled = self._spilled or SpillFiles(self._worker.scratch_directory())
                self._spilled.write(None, moved_rows(batch, found, self._rewriting.updated))


@dataclass(frozen=True)
class _Changes:
    """The edits of a row group, and its rows, unless these must be read again."""

    edits: _KnownEdits
    rows: Iterator[pa.RecordBatch] | None


class _ColumnReplacer:
    """Replaces only the changed columns of a row group, if all of its edits are updates in place.

    The edits are found first, from the columns that identify rows.
    """

    def __init__(
        self,
        opened: OpenFile,
        rewriter: FileRewriter,
        rewriting: Rewriting,
        changed: frozenset[str],
        worker: Worker,
    ) -> None:
        self._opened, self._rewriter, self._rewriting = opened, rewriter, rewriting
        self._changed, self._worker = changed, worker
        assert opened.file.schema is not None, "files to rewrite come from a snapshot"
        self._names = opened.file.schema.names

    def find_edits(self, number: int, start: int, edits: Edits) -> _KnownEdits | None:
        """The edits of a row group, as far as they fit into memory; None if this does not pay off."""
        size = self._opened.file.row_groups[number].total_byte_size
        changing = len(self._changed.intersection(self._names))
        # If most columns change, finding edits first takes longer than encoding the few others.
        worth_it = 0 < changing <= len(self._names) // 2
        if not (worth_it and self._rewriting.keeps_others and size <= self._worker.row_group_bytes):
            return None
        found, first, held = [], start, 0
        for batch in self._rows(number, edits.columns or self._names[:1]):
            part = edits.of(first, batch)
            found.append(part.shifted(first - start))
            first += batch.num_rows
            held += part.rows.nbytes
            if held > self._worker.row_group_bytes:  # a small row group may get large values
                break
        return _KnownEdits(start, first, together(found), edits)

    def replace_columns(self, number: int, start: int, known: _KnownEdits) -> bool:
        """Replace the changed columns if all edits are known and in place; return whether it did."""
        group = self._opened.file.row_groups[number]
        if known.stop < start + group.num_rows or not known.edits.in_place.all():
            return False
        values = self._new_values(number, start, known)
        return self._rewriter.replace_columns(number, self._changed, values, self._rewriting.compression)

    def _new_values(self, number: int, start: int, known: _KnownEdits) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(number, [name for name in self._names if name in self._changed]):
            yield from kept_rows(batch, known.of(start, batch), self._rewriting).to_batches()
            start += batch.num_rows

    def _rows(self, number: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        reader = logical_reader(self._worker, self._opened.file, names, self._rewriting.spec)
        return self._worker.until_cancelled(reader.rows(reader.also(self._opened), number))


@dataclass(frozen=True)
class _KnownEdits:
    """The known edits of the first rows of a row group, mostly of all; `others` has the edits of the rest.

    `start` is the number of the first row, and `stop` of the first row whose edits are not known yet.
    """

    start: int
    stop: int
    edits: RowEdits
    others: Edits | _KnownEdits

    @property
    def columns(self) -> Sequence[str]:
        """The columns that identify rows whose edits are not known yet."""
        return self.others.columns

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch, whose first row has the number `start`."""
        first, known = start - self.start, min(max(self.stop - start, 0), batch.num_rows)
        untouched = self.edits.untouched
        here = slice(*np.searchsorted(self.edits.at, [first, first + known]).tolist())
        found = RowEdits(
            self.edits.at[here] - first,
            self.edits.in_place[here],
            self.edits.moves_out[here],
            self.edits.rows.slice(here.start, here.stop - here.start),
            untouched[slice(*np.searchsorted(untouched, [first, first + known]).tolist())] - first,
        )
        if known == batch.num_rows:
            return found
        return together([found, self.others.of(start + known, batch.slice(known)).shifted(known)])


def logical_reader(worker: Worker, file: FileInfo, names: Sequence[str], spec: PartitionSpec) -> LogicalReader:
    """A reader of a file in the types of a prepared source: columns of the path are strings."""
    assert file.schema is not None, "files to read come from a snapshot"
    string_spec = replace(spec, path_only={name: pa.string() for name in spec.path_only})
    whole = prepared_schema(string_spec.row_schema(file.schema), string_spec)
    schema = pa.schema([whole.field(name) for name in names])
    return LogicalReader(
        worker.store, schema, worker.batch_bytes, string_spec, use_threads=worker.use_threads, widths=worker.widths
    )
