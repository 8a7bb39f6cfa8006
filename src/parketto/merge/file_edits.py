"""Rewrites files with row edits. Edits that change nothing are dropped; a file without any other stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa

from parketto.merge.known_edits import EditsInAdvance, KnownEdits
from parketto.merge.moved import MovedRows
from parketto.merge.row_edits import Edits, Rewriting, changes_any, effective_edits, kept_rows, together
from parketto.merge.small_files import EditsTogether, SmallFiles
from parketto.merge.source import prepared_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.output import Rewrite, Written
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.reader import OpenFile
from parketto.runtime.task import Worker
from parketto.tasks.file_rewriter import FileRewriter


@dataclass(frozen=True)
class Rewritten:
    """What became of files (those that it does not name stay), and the rows that moved to other partitions."""

    files: Rewrite = field(default_factory=Rewrite)
    moved_out: Written = field(default_factory=Written)

    @classmethod
    def total(cls, parts: Iterable[Rewritten]) -> Rewritten:
        """All parts together, in order."""
        found = list(parts)
        return cls(Rewrite.total(each.files for each in found), Written.total(each.moved_out for each in found))


def rewrite_files(
    files: Sequence[FileInfo],
    edits: Iterable[tuple[FileInfo, Edits]],
    rewriting: Rewriting,
    worker: Worker,
    prefix: str = "merge",
    codec: str | None = None,
) -> Rewritten:
    """Rewrite neighbouring files: row groups without changes are copied, the others are decoded and encoded.

    Files without edits stay, and so do those in which nothing changes. Small files are edited together.

    Args:
        files: The files, see `FileRewriter`.
        edits: Files, in the same order, each with its edits.
        rewriting: How to rewrite them.
        worker: The resources of the task.
        prefix: The prefix of the names of new files.
        codec: The codec that row groups must have to be copied; None accepts any.
    """
    schema = files[0].schema
    assert schema is not None, "files to rewrite come from a snapshot"
    changed = rewriting.changed(schema.names)
    readers = _Readers(files[0], rewriting.spec, worker)
    moved = MovedRows(rewriting, worker)
    with FileRewriter(files, prefix, worker, rewriting.compression, changed, codec) as rewriter:
        in_advance = EditsInAdvance(files, edits, readers.of, rewriter, rewriting, worker)
        if rewriter.rewrite_at_once(in_advance.changes):
            return Rewritten(rewriter.result)
        small_files = filter(rewriter.encodes, files)
        with SmallFiles(small_files, readers.made(readers.whole.schema.names), worker) as small:
            joint = EditsTogether(rewriter, rewriting, readers.names, moved, worker)
            for file, found in in_advance:
                if (rows := small.rows(file)) is not None:
                    joint.add(file, rows, found)
                    continue
                joint.apply()
                with readers.whole.open(file) as opened:
                    rewriter.next_file(opened)
                    if not _FileRewrite(opened, readers, rewriter, rewriting, changed, moved).run(found):
                        rewriter.keep_file()
            joint.apply()
    return Rewritten(rewriter.result, moved.write())


class _Readers:
    """Readers of columns of files of one schema."""

    def __init__(self, like: FileInfo, spec: PartitionSpec, worker: Worker) -> None:
        assert like.schema is not None, "files to rewrite come from a snapshot"
        self.worker, self.names = worker, like.schema.names
        self._like, self._spec = like, spec
        self._known: dict[tuple[str, ...], LogicalReader] = {}
        path_only = (name for name in spec.path_only if name not in self.names)
        self.whole = self.of([*self.names, *path_only])

    def of(self, names: Iterable[str]) -> LogicalReader:
        """A reader of some columns."""
        wanted = tuple(names)
        if wanted not in self._known:
            self._known[wanted] = self.made(wanted)
        return self._known[wanted]

    def made(self, names: Sequence[str]) -> LogicalReader:
        """A reader of some columns, for another thread."""
        return logical_reader(self.worker, self._like, names, self._spec)

    def rows(
        self, opened: OpenFile, number: int, names: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a row group: all columns, or some."""
        if names is None:
            return self.worker.until_cancelled(self.whole.rows(opened, number))
        reader = self.of([name for name in self.whole.schema.names if name in names] or self.names[:1])
        return self.worker.until_cancelled(reader.rows(reader.also(opened), number))


class _FileRewrite:
    """The rewriting of one file. Row groups before the first change are written once there is one."""

    def __init__(
        self,
        opened: OpenFile,
        readers: _Readers,
        rewriter: FileRewriter,
        rewriting: Rewriting,
        changed: frozenset[str],
        moved: MovedRows,
    ) -> None:
        self._opened, self._readers, self._rewriter, self._rewriting = opened, readers, rewriter, rewriting
        self._changed, self._names, self._moved = changed, readers.names, moved
        self._unwritten: list[int] | None = []

    def run(self, edits: Edits) -> bool:
        """Write all row groups, unless nothing changes; return whether anything does."""
        replacer = _ColumnReplacer(self._opened, self._readers, self._rewriter, self._rewriting, self._changed)
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
            for batch in self._readers.rows(self._opened, number):
                self._rewriter.write(batch.select(self._names))

    def _first_change(
        self, number: int, start: int, edits: Edits | KnownEdits, *, all_columns: bool, touched: bool
    ) -> _Changes | None:
        """The edits of a row group that change anything; None if none does.

        Reads until it finds a change, so mostly one batch: with `all_columns` the row group, else the columns that
        get new values.
        """
        if not touched:
            return None
        rewriting = self._rewriting
        compared = rewriting.compared(self._names)
        rows = self._readers.rows(self._opened, number, None if all_columns else {*compared, *edits.columns})
        held: list[pa.RecordBatch] | None = [] if all_columns else None
        found, first, size = [], start, 0
        for batch in rows:
            part = effective_edits(batch, edits.of(first, batch), rewriting, compared)
            found.append(part.shifted(first - start))
            first += batch.num_rows
            size += batch.nbytes
            if held is not None:
                held.append(batch)
                if size > self._readers.worker.row_group_bytes:
                    held = None
            if changes_any(part, batch.num_rows, rewriting):
                known = KnownEdits(start, first, together(found), edits)
                return _Changes(known, None if held is None else chain(held, rows))
        return None

    def _write(self, number: int, start: int, changes: _Changes) -> None:
        """Write a row group with its changes."""
        self._rewriter.begin(number, self._changed)
        for batch in self._readers.rows(self._opened, number) if changes.rows is None else changes.rows:
            found = changes.edits.of(start, batch)
            start += batch.num_rows
            for part in kept_rows(batch.select(self._names), found, self._rewriting).to_batches():
                self._rewriter.write(part)
            self._moved.add(batch, found)


@dataclass(frozen=True)
class _Changes:
    """The edits of a row group, and its rows, unless these must be read again."""

    edits: KnownEdits
    rows: Iterator[pa.RecordBatch] | None


class _ColumnReplacer:
    """Replaces only the changed columns of a row group, if all of its edits are updates in place.

    The edits are found first, from the columns that identify rows.
    """

    def __init__(
        self,
        opened: OpenFile,
        readers: _Readers,
        rewriter: FileRewriter,
        rewriting: Rewriting,
        changed: frozenset[str],
    ) -> None:
        self._opened, self._readers, self._rewriter, self._rewriting = opened, readers, rewriter, rewriting
        self._changed, self._names, self._most = changed, readers.names, readers.worker.row_group_bytes

    def find_edits(self, number: int, start: int, edits: Edits) -> KnownEdits | None:
        """The edits of a row group, as far as they fit into memory; None if this does not pay off."""
        size = self._opened.file.row_groups[number].total_byte_size
        can_replace = self._rewriting.may_copy_columns(self._names) and self._rewriter.may_copy(number)
        if not (can_replace and size <= self._most):
            return None
        found, first, held = [], start, 0
        for batch in self._readers.rows(self._opened, number, edits.columns or self._names[:1]):
            part = edits.of(first, batch)
            found.append(part.shifted(first - start))
            first += batch.num_rows
            held += part.rows.nbytes
            if held > self._most:  # a small row group may get large values
                break
        return KnownEdits(start, first, together(found), edits)

    def replace_columns(self, number: int, start: int, known: KnownEdits) -> bool:
        """Replace the changed columns if all edits are known and in place; return whether it did."""
        group = self._opened.file.row_groups[number]
        if known.stop < start + group.num_rows or not known.edits.in_place.all():
            return False
        values = self._new_values(number, start, known)
        return self._rewriter.replace_columns(number, self._changed, values, self._rewriting.compression)

    def _new_values(self, number: int, start: int, known: KnownEdits) -> Iterator[pa.RecordBatch]:
        for batch in self._readers.rows(self._opened, number, self._changed.intersection(self._names)):
            yield from kept_rows(batch, known.of(start, batch), self._rewriting).to_batches()
            start += batch.num_rows


def logical_reader(worker: Worker, file: FileInfo, names: Sequence[str], spec: PartitionSpec) -> LogicalReader:
    """A reader of a file in the types of a prepared source: columns of the path are strings."""
    assert file.schema is not None, "files to read come from a snapshot"
    string_spec = replace(spec, path_only={name: pa.string() for name in spec.path_only})
    whole = prepared_schema(string_spec.row_schema(file.schema), string_spec)
    return LogicalReader.of(worker, pa.schema([whole.field(name) for name in names]), string_spec)
