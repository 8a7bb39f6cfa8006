"""Rewrites a file with row edits: rows are updated in place, moved to another partition, or deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.merge.source import prepared_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_rewriter import FileRewriter
from parketto.parquet.output import Output, Written, output_like
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import LogicalReader, OpenFile
from parketto.parquet.variants import cast
from parketto.runtime.task import Worker
from parketto.sorting.spill import SpillFiles
from parketto.tasks.write import write_rows

# With at least this many rows per edit, slices are faster than one `take`: 0.06 to 0.3 ms against 0.1 to 0.5 ms
# for 32,768 rows of a column with 8 edits. With 300 edits, slices take 1 ms and more.
_MIN_ROWS_PER_EDIT = 512

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowEdits:
    """The edits of some rows of a batch.

    `at` are their positions, `rows` their new values. Rows in `in_place` are updated in place, rows in `moves_out`
    move to another partition, and the others are deleted.
    """

    at: Indices
    in_place: Flags
    moves_out: Flags
    rows: pa.Table


@dataclass(frozen=True)
class Rewriting:
    """How to rewrite files."""

    spec: PartitionSpec
    compression: str | None
    #: The columns that get new values; None: all of them.
    updated: frozenset[str] | None
    #: Whether rows without edits stay.
    keeps_others: bool
    #: The output for rows that move.
    elsewhere: Output | None = None
    #: Columns with equal old and new values, because edits are matched by them.
    keys: frozenset[str] = frozenset()

    def changed(self, names: Iterable[str]) -> frozenset[str]:
        """The columns of a file that get new values."""
        return frozenset(names) - self.keys if self.updated is None else self.updated


@dataclass(frozen=True)
class Rewritten:
    """What replaces a file (`kept`), and the rows that moved to other partitions (`moved_out`)."""

    kept: Written = field(default_factory=Written)
    moved_out: Written = field(default_factory=Written)


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
    """Rewrite a file: row groups without edits are copied, the others are decoded and encoded.

    If no row remains, no file is written.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    names = [*file.schema.names, *(name for name in rewriting.spec.path_only if name not in file.schema.names)]
    reader = logical_reader(worker, file, names, rewriting.spec)
    changed = rewriting.changed(file.schema.names)
    output = output_like(file, "merge", rewriting.compression, changed)
    spilled: SpillFiles[None] | None = None
    start = 0
    with reader.open(file) as opened, FileRewriter(opened, output, worker) as rewriter:
        replacer = _ColumnReplacer(opened, rewriter, rewriting, changed, worker)
        for number, group in enumerate(file.row_groups):
            touched = edits.touch(number, start + group.num_rows)
            known = replacer.find_edits(number, start, edits) if touched else None
            if known is not None and replacer.replace_columns(number, start, known):
                pass
            elif touched or (rewriting.keeps_others and group.num_rows and not rewriter.copy(number)):
                rewriter.begin(number, changed if touched else ())
                first = start
                for batch in worker.until_cancelled(reader.rows(opened, number)):
                    found = (known or edits).of(first, batch)
                    first += batch.num_rows
                    for part in _kept(batch.select(file.schema.names), found, rewriting).to_batches():
                        rewriter.write(part)
                    if found.moves_out.any():
                        spilled = spilled or SpillFiles(worker.scratch_directory())
                        spilled.write(None, _moved_out(batch, found, rewriting.updated))
            start += group.num_rows
    moved_out = Written()
    if spilled is not None:
        assert rewriting.elsewhere is not None, "rows that move need an output"
        spilled.close()
        wanted = rewriting.elsewhere.row_schema.names
        moved = (part.select(wanted) for part in spilled[None])
        moved_out = write_rows(moved, rewriting.elsewhere, worker, at_least_one=False)
    return Rewritten(rewriter.written, moved_out)


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
            found.append(replace(part, at=part.at + (first - start)))
            first += batch.num_rows
            held += part.rows.nbytes
            if held > self._worker.row_group_bytes:  # a small row group may get large values
                break
        return _KnownEdits(start, first, _together(found), edits)

    def replace_columns(self, number: int, start: int, known: _KnownEdits) -> bool:
        """Replace the changed columns if all edits are known and in place; return whether it did."""
        group = self._opened.file.row_groups[number]
        if known.stop < start + group.num_rows or not known.edits.in_place.all():
            return False
        values = self._new_values(number, start, known)
        return self._rewriter.replace_columns(number, self._changed, values, self._rewriting.compression)

    def _new_values(self, number: int, start: int, known: _KnownEdits) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(number, [name for name in self._names if name in self._changed]):
            yield from _kept(batch, known.of(start, batch), self._rewriting).to_batches()
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
    others: Edits

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch, whose first row has the number `start`."""
        first, known = start - self.start, min(max(self.stop - start, 0), batch.num_rows)
        here = slice(*np.searchsorted(self.edits.at, [first, first + known]).tolist())
        found = RowEdits(
            self.edits.at[here] - first,
            self.edits.in_place[here],
            self.edits.moves_out[here],
            self.edits.rows.slice(here.start, here.stop - here.start),
        )
        if known == batch.num_rows:
            return found
        more = self.others.of(start + known, batch.slice(known))
        return _together([found, replace(more, at=more.at + known)])


def _together(parts: Sequence[RowEdits]) -> RowEdits:
    return RowEdits(
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.in_place for part in parts]),
        np.concatenate([part.moves_out for part in parts]),
        pa.concat_tables([part.rows for part in parts]),
    )


def _kept(batch: pa.RecordBatch, edits: RowEdits, rewriting: Rewriting) -> pa.Table:
    """The rows of a batch that stay, updated or not."""
    if not len(edits.at) and rewriting.keeps_others:
        return pa.Table.from_batches([batch])
    if rewriting.keeps_others and len(edits.at) * _MIN_ROWS_PER_EDIT <= batch.num_rows:
        return _patched(batch, edits, rewriting)
    own = np.arange(batch.num_rows)
    new = own.copy()
    new[edits.at[edits.in_place]] = batch.num_rows + np.flatnonzero(edits.in_place)
    keep = np.full(batch.num_rows, rewriting.keeps_others)
    keep[edits.at] = edits.in_place
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if edits.in_place.any() and (rewriting.updated is None or name in rewriting.updated):
            both = pa.chunked_array([column, *cast(edits.rows.column(name), column.type).chunks])
            columns[name] = both.take(pa.array(new[keep]))
        else:
            columns[name] = column.take(pa.array(own[keep]))
    return pa.table(columns)


def _patched(batch: pa.RecordBatch, edits: RowEdits, rewriting: Rewriting) -> pa.Table:
    """The same for few edits: the rows between them are sliced, not taken one by one."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        changes = rewriting.updated is None or name in rewriting.updated
        rows = cast(edits.rows.column(name), column.type).combine_chunks() if changes else None
        parts, start = [], 0
        for number, (at, stays) in enumerate(zip(edits.at.tolist(), edits.in_place.tolist(), strict=True)):
            if rows is None and stays:
                continue
            parts.append(column.slice(start, at - start))
            if rows is not None and stays:
                parts.append(rows.slice(number, 1))
            start = at + 1
        columns[name] = pa.concat_arrays([*parts, column.slice(start)])
    return pa.table(columns)


def _moved_out(batch: pa.RecordBatch, edits: RowEdits, updated: frozenset[str] | None) -> pa.Table:
    """The rows that move, with all columns: new values in updated columns, old values in the others."""
    old, new = pa.array(edits.at[edits.moves_out]), pa.array(np.flatnonzero(edits.moves_out))
    return pa.table(
        {
            name: cast(edits.rows.column(name), column.type).take(new)
            if updated is None or name in updated
            else column.take(old)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
    )


def logical_reader(worker: Worker, file: FileInfo, names: Sequence[str], spec: PartitionSpec) -> LogicalReader:
    """A reader of a file in the types of a prepared source: columns of the path are strings."""
    assert file.schema is not None, "files to read come from a snapshot"
    string_spec = replace(spec, path_only={name: pa.string() for name in spec.path_only})
    whole = prepared_schema(string_spec.row_schema(file.schema), string_spec)
    schema = pa.schema([whole.field(name) for name in names])
    return LogicalReader(
        worker.store, schema, worker.batch_bytes, string_spec, use_threads=worker.use_threads, widths=worker.widths
    )
