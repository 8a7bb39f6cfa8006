"""Rewriting a file of which some rows change: they get new values in their place, leave for elsewhere, or go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.kernels.merge_source import prepared_schema
from parketto.kernels.reader import LogicalReader, OpenFile
from parketto.kernels.rewrite import group_output
from parketto.kernels.successor import Successor
from parketto.kernels.variants import cast
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.form import Form
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups.area import without_area
from parketto.storage.footers import FileInfo

# With at least so many rows between two that change, slices are faster than one `take`: 0.06 to 0.3 ms for 32,768
# rows of a column with 8 changes, against 0.1 to 0.5 ms; with 300 changes 1 ms and more.
_ROWS_BETWEEN = 512

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowEdits:
    """What happens to some rows of a batch.

    `at` are their positions, `rows` the new values for each; of these rows some are the `homes` of their new
    values, some leave with them (`leaving`), and the others go.
    """

    at: Indices
    homes: Flags
    leaving: Flags
    rows: pa.Table


@dataclass(frozen=True)
class Rewriting:
    """How files are rewritten."""

    form: Form
    compression: str | None
    #: The columns that new values are for; None: all of them.
    updated: frozenset[str] | None
    #: Whether rows stay that nothing is said of.
    keeps_others: bool
    #: Where rows go that leave.
    elsewhere: Output | None = None
    #: Columns that are the same in a row and in its new values, because these are found by them.
    keys: frozenset[str] = frozenset()

    def changed(self, names: Iterable[str]) -> frozenset[str]:
        """Which of a file's columns get new values."""
        return frozenset(names) - self.keys if self.updated is None else self.updated


@dataclass(frozen=True)
class Rewritten:
    """What was written in the place of a file, and what of it was written elsewhere."""

    kept: Written = field(default_factory=Written)
    left: Written = field(default_factory=Written)


class Edits(Protocol):
    """Tells what happens to the rows of a file, as they go by."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns by which it knows rows; none, if it goes by their numbers."""

    def touch(self, number: int, stop: int) -> bool:
        """Whether anything happens in the next row group: its number, and that of the row after its last."""

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """What happens to the next rows; `start` is the number of the first."""


def rewrite_file(file: FileInfo, rewriting: Rewriting, edits: Edits, worker: Worker) -> Rewritten:
    """Write the successor of a file: row groups in which nothing happens are copied, the others streamed through.

    If no row stays, there is no file.
    """
    assert file.schema is not None, "files to rewrite come from a snapshot"
    names = [*file.schema.names, *(name for name in rewriting.form.path_only if name not in file.schema.names)]
    reader = logical_reader(worker, file, names, rewriting.form)
    changed = rewriting.changed(file.schema.names)
    noted = replace(file, metadata=without_area(file.metadata, changed))
    output = group_output(FileGroup((noted,), compression=rewriting.compression), "merge", ())
    spool = _Spool(worker)
    start = 0
    with reader.open(file) as opened, Successor(opened, output, worker) as successor:
        grafting = _Grafting(opened, successor, rewriting, changed, worker)
        for number, group in enumerate(file.row_groups):
            touched = edits.touch(number, start + group.num_rows)
            known = grafting.look(number, start, edits) if touched else None
            if known is not None and grafting.graft(number, start, known):
                pass
            elif touched or (rewriting.keeps_others and group.num_rows and not successor.copy(number)):
                successor.begin(number, changed if touched else ())
                first = start
                for batch in worker.until_cancelled(reader.rows(opened, number)):
                    found = (known or edits).of(first, batch)
                    first += batch.num_rows
                    for part in _kept(batch.select(file.schema.names), found, rewriting).to_batches():
                        successor.write(part)
                    if found.leaving.any():
                        spool.add(_left(batch, found, rewriting.updated))
            start += group.num_rows
    left = Written()
    if spool.rows:
        assert rewriting.elsewhere is not None, "rows leave for somewhere"
        wanted = rewriting.elsewhere.row_schema.names
        leaving = (part.select(wanted) for part in spool.read())
        left = write_rows(leaving, rewriting.elsewhere, worker, at_least_one=False)
    return Rewritten(successor.written, left)


class _Grafting:
    """Exchanges some columns of a row group: those of a merge, where all that happens is that rows get new values.

    What happens is found out first, from the columns that tell.
    """

    def __init__(
        self,
        opened: OpenFile,
        successor: Successor,
        rewriting: Rewriting,
        changed: frozenset[str],
        worker: Worker,
    ) -> None:
        self._opened, self._successor, self._rewriting = opened, successor, rewriting
        self._changed, self._worker = changed, worker
        assert opened.file.schema is not None, "files to rewrite come from a snapshot"
        self._names = opened.file.schema.names

    def look(self, number: int, start: int, edits: Edits) -> _KnownEdits | None:
        """What happens in a row group, unless that cannot help, or is too much to hold at once."""
        size = self._opened.file.row_groups[number].total_byte_size
        changing = len(self._changed.intersection(self._names))
        # To look first takes longer than to encode the few columns that stay.
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

    def graft(self, number: int, start: int, known: _KnownEdits) -> bool:
        """Do it, if no row leaves."""
        group = self._opened.file.row_groups[number]
        if known.stop < start + group.num_rows or not known.edits.homes.all():
            return False
        values = self._new_values(number, start, known)
        return self._successor.graft(number, self._changed, values, self._rewriting.compression)

    def _new_values(self, number: int, start: int, known: _KnownEdits) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(number, [name for name in self._names if name in self._changed]):
            yield from _kept(batch, known.of(start, batch), self._rewriting).to_batches()
            start += batch.num_rows

    def _rows(self, number: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        reader = logical_reader(self._worker, self._opened.file, names, self._rewriting.form)
        return self._worker.until_cancelled(reader.rows(reader.also(self._opened), number))


@dataclass(frozen=True)
class _KnownEdits:
    """What happens to the first rows of a row group, mostly all of them, and who tells about the others.

    `start` is the number of the first row, and `stop` of the first one of which nothing is known yet.
    """

    start: int
    stop: int
    edits: RowEdits
    others: Edits

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """What happens to some of them."""
        first, known = start - self.start, min(max(self.stop - start, 0), batch.num_rows)
        here = slice(*np.searchsorted(self.edits.at, [first, first + known]).tolist())
        found = RowEdits(
            self.edits.at[here] - first,
            self.edits.homes[here],
            self.edits.leaving[here],
            self.edits.rows.slice(here.start, here.stop - here.start),
        )
        if known == batch.num_rows:
            return found
        more = self.others.of(start + known, batch.slice(known))
        return _together([found, replace(more, at=more.at + known)])


def _together(parts: Sequence[RowEdits]) -> RowEdits:
    return RowEdits(
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.homes for part in parts]),
        np.concatenate([part.leaving for part in parts]),
        pa.concat_tables([part.rows for part in parts]),
    )


def _kept(batch: pa.RecordBatch, edits: RowEdits, rewriting: Rewriting) -> pa.Table:
    """A batch with the rows that stay, changed or not."""
    if not len(edits.at) and rewriting.keeps_others:
        return pa.Table.from_batches([batch])
    if rewriting.keeps_others and len(edits.at) * _ROWS_BETWEEN <= batch.num_rows:
        return _patched(batch, edits, rewriting)
    own = np.arange(batch.num_rows)
    new = own.copy()
    new[edits.at[edits.homes]] = batch.num_rows + np.flatnonzero(edits.homes)
    keep = np.full(batch.num_rows, rewriting.keeps_others)
    keep[edits.at] = edits.homes
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if edits.homes.any() and (rewriting.updated is None or name in rewriting.updated):
            both = pa.chunked_array([column, *cast(edits.rows.column(name), column.type).chunks])
            columns[name] = both.take(pa.array(new[keep]))
        else:
            columns[name] = column.take(pa.array(own[keep]))
    return pa.table(columns)


def _patched(batch: pa.RecordBatch, edits: RowEdits, rewriting: Rewriting) -> pa.Table:
    """The same where few rows change: what lies between them is taken as it is, not row by row."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        changes = rewriting.updated is None or name in rewriting.updated
        rows = cast(edits.rows.column(name), column.type).combine_chunks() if changes else None
        parts, start = [], 0
        for number, (at, stays) in enumerate(zip(edits.at.tolist(), edits.homes.tolist(), strict=True)):
            if rows is None and stays:
                continue
            parts.append(column.slice(start, at - start))
            if rows is not None and stays:
                parts.append(rows.slice(number, 1))
            start = at + 1
        columns[name] = pa.concat_arrays([*parts, column.slice(start)])
    return pa.table(columns)


def _left(batch: pa.RecordBatch, edits: RowEdits, updated: frozenset[str] | None) -> pa.Table:
    """The rows that leave, whole: new values where there are any, old ones elsewhere."""
    here, new = pa.array(edits.at[edits.leaving]), pa.array(np.flatnonzero(edits.leaving))
    return pa.table(
        {
            name: cast(edits.rows.column(name), column.type).take(new)
            if updated is None or name in updated
            else column.take(here)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
    )


def logical_reader(worker: Worker, file: FileInfo, names: Sequence[str], form: Form) -> LogicalReader:
    """Reads rows of a file in the types of a prepared source: columns of the path as texts."""
    assert file.schema is not None, "files to read come from a snapshot"
    texts = replace(form, path_only={name: pa.string() for name in form.path_only})
    whole = prepared_schema(texts.row_schema(file.schema), texts)
    schema = pa.schema([whole.field(name) for name in names])
    return LogicalReader(
        worker.store, schema, worker.batch_bytes, texts, use_threads=worker.use_threads, widths=worker.widths
    )


class _Spool:
    """Rows that are needed again later, on disk meanwhile."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._path, self.rows = worker, "", 0
        self._sink: pa.NativeFile | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Keep some rows."""
        if self._writer is None:
            self._path = f"{self._worker.scratch_directory()}/leaving.arrows"
            self._sink = pa.OSFile(self._path, "wb")
            self._writer = pa.ipc.new_stream(self._sink, rows.schema)
        self.rows += rows.num_rows
        self._writer.write_table(rows)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All of them."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        with pa.OSFile(self._path, "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader
