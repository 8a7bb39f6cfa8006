"""Deletes or updates rows: finds the matching ones of a file, then rewrites neighbouring files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.expressions.conditions import Assignment, Predicate, updated
from parketto.expressions.pruning import row_groups_may_match, rows_may_match
from parketto.parquet.equality import equal_values
from parketto.parquet.file_info import FileInfo
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.output import Output, Rewrite, Written
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.partitions import folder_codes
from parketto.parquet.reader import OpenFile
from parketto.parquet.row_changes import RowChanges
from parketto.runtime.arrays import Flags
from parketto.runtime.task import Worker
from parketto.tasks.file_rewriter import FileRewriter
from parketto.tasks.write import write_rows


@dataclass(frozen=True)
class Edit:
    """What happens to matching rows: they are deleted, or get new values."""

    operation: str
    condition: Predicate
    #: None: delete.
    changes: tuple[Assignment, ...] | None
    spec: PartitionSpec
    #: The output for matching rows, if their partition may change.
    elsewhere: Output | None = None

    @property
    def changed(self) -> frozenset[str]:
        """The columns that get new values."""
        return frozenset(change.column for change in self.changes or ())

    @property
    def removes_matches(self) -> bool:
        """Whether matching rows are removed from their file."""
        return self.changes is None or self.elsewhere is not None

    def edited(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that stay in its file, edited."""
        if not self.removes_matches:
            return self.updated(batch)
        return batch.filter(pc.invert(self.condition.matches(batch)))

    def updated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch, with new values in those that match."""
        return updated(batch, self.condition.matches(batch), self.changes or ())

    def moved(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The matching rows, updated."""
        assert self.changes is not None, "only updated rows move"
        for batch in batches:
            matching = batch.filter(self.condition.matches(batch))
            if matching.num_rows:
                yield updated(matching, pa.repeat(pa.scalar(True), matching.num_rows), self.changes)

    def reader(self, like: FileInfo, worker: Worker, columns: Iterable[str] | None = None) -> LogicalReader:
        """A reader of files of one schema: of all columns, or of some."""
        assert like.schema is not None, "files to edit come from a snapshot"
        schema = self.spec.row_schema(like.schema)
        if columns is not None:
            # A condition without any column (`TRUE`) still needs the number of rows.
            schema = pa.schema([schema.field(name) for name in tuple(columns) or schema.names[:1]])
        return LogicalReader.of(worker, schema, self.spec)

    def values_reader(self, like: FileInfo, worker: Worker) -> LogicalReader:
        """A reader of only the columns that change, and those that they depend on."""
        used = {name for change in self.changes or () for name in (change.column, *change.columns)}
        return self.reader(like, worker, used.union(self.condition.columns))


@dataclass(frozen=True)
class Matches:
    """The matching rows of a file."""

    num_rows: int
    #: The number of matching rows of each row group in which any row changes.
    row_groups: Mapping[int, int] = field(default_factory=dict)
    #: In a dry run: the directories that rows would move to.
    directories: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FindMatches:
    """Find the matching rows of a file. An update also compares values: rows that have the new ones do not change.

    Only the columns of the condition are read, in row groups whose bounds allow a match.
    """

    file: FileInfo
    edit: Edit
    dry_run: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return (self.file,)

    def run(self, worker: Worker) -> Matches:
        """Count the matching rows."""
        found = self._matches(worker)
        matched = sum(found.values())
        changing = found if self.edit.changes is None else self._changing(worker, found)
        if self.edit.elsewhere is not None and changing:
            changing = found
        moves = self.dry_run and bool(changing)
        return Matches(matched, changing, self._directories(worker, found) if moves else frozenset())

    def _matches(self, worker: Worker) -> dict[int, int]:
        """The number of matching rows in each row group that has any."""
        condition, spec = self.edit.condition, self.edit.spec
        found = Counter[int]()
        reader = self.edit.reader(self.file, worker, condition.columns)
        with reader.open(self.file) as opened:
            for number in self._possible():
                pages = opened.pages(number, condition.columns, condition.columns)
                rows = rows_may_match(condition, self.file, number, pages, spec.path_only)
                for batch in worker.until_cancelled(reader.rows_in(opened, number, rows, pages)):
                    found[number] += condition.matches(batch).true_count
        return {number: count for number, count in found.items() if count}

    def _changing(self, worker: Worker, found: Mapping[int, int]) -> dict[int, int]:
        """Those of the row groups with matching rows in which a value changes."""
        changing: dict[int, int] = {}
        if not found:
            return changing
        reader = self.edit.values_reader(self.file, worker)
        for number, rows in reader.read_row_groups(self.file, sorted(found)):
            for batch in worker.until_cancelled(rows):
                edited = self.edit.updated(batch)
                names = self.edit.changed
                if not all(equal_values(batch.column(name), edited.column(name)).all() for name in names):
                    changing[number] = found[number]
                    break
        return changing

    def _possible(self) -> list[int]:
        groups, condition = self.file.row_groups, self.edit.condition
        # The bounds of the whole file have been checked already.
        may_match = (
            row_groups_may_match(condition, self.file, self.edit.spec.path_only) if len(groups) > 1 else [True]
        )
        return [number for number, group in enumerate(groups) if group.num_rows and may_match[number]]

    def _directories(self, worker: Worker, found: Mapping[int, int]) -> frozenset[str]:
        if self.edit.elsewhere is None:
            return frozenset()
        output, names = self.edit.elsewhere, set[str]()
        for batch in self.edit.moved(_rows(self.edit.reader(self.file, worker), self.file, found, worker)):
            names.update(folder_codes(pa.Table.from_batches([batch]), output.partition_by)[1])
        return frozenset(f"{output.directory}/{output.folders.get(name, name)}" for name in names)


@dataclass(frozen=True)
class Edited:
    """What became of files, and the rows that were written to other partitions."""

    files: Rewrite = field(default_factory=Rewrite)
    moved: Written = field(default_factory=Written)


@dataclass(frozen=True)
class EditFiles:
    """Delete or update the matching rows of neighbouring files.

    Only row groups with matching rows are decoded, except those that are deleted whole. Small ones are encoded
    together with their neighbours. An update leaves row groups alone whose rows have the new values already.
    """

    files: tuple[FileInfo, ...]
    edit: Edit
    #: The matching rows of each file.
    matches: tuple[Matches, ...]
    compression: str | None
    #: Whether row groups of another codec than `compression` are re-encoded.
    recompress: bool = True

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Edited:
        """Rewrite the files, then write the rows that move."""
        edit, first = self.edit, self.files[0]
        reader, values = edit.reader(first, worker), edit.values_reader(first, worker)
        changed = frozenset[str]() if edit.removes_matches else edit.changed
        codec = self.compression if self.recompress else None
        with FileRewriter(self.files, edit.operation, worker, self.compression, changed, codec) as rewriter:
            if edit.changes is None and rewriter.rewrite_at_once(lambda: self._deletes(rewriter, worker)):
                return Edited(rewriter.result)
            for file, found in zip(self.files, self.matches, strict=True):
                with reader.open(file) as opened:
                    rewriter.next_file(opened)
                    self._rewrite(opened, found.row_groups, rewriter, reader, values, worker)
        if edit.elsewhere is None:
            return Edited(rewriter.result)
        moving = (
            batch
            for file, found in zip(self.files, self.matches, strict=True)
            for batch in edit.moved(_rows(reader, file, found.row_groups, worker))
        )
        return Edited(rewriter.result, write_rows(moving, edit.elsewhere, worker, at_least_one=False))

    def _deletes(self, rewriter: FileRewriter, worker: Worker) -> RowChanges | None:
        """The rows that do not match; None if row groups are copied. Row groups without any match are not read."""
        stays: list[Flags] = []
        condition = self.edit.condition
        reader = self.edit.reader(self.files[0], worker, condition.columns)
        for file, matches in zip(self.files, self.matches, strict=True):
            groups = list(enumerate(zip(file.row_groups, rewriter.copies_unchanged(file), strict=True)))
            if any(copied and number not in matches.row_groups for number, (_, copied) in groups):
                return None
            with reader.open(file) as opened:
                for number, (group, _) in groups:
                    if matches.row_groups.get(number, 0) in (0, group.num_rows):
                        stays.append(np.full(group.num_rows, number not in matches.row_groups))
                        continue
                    stays.extend(
                        pc.invert(condition.matches(batch)).to_numpy(zero_copy_only=False)
                        for batch in worker.until_cancelled(reader.rows(opened, number))
                    )
        return RowChanges(np.concatenate(stays))

    def _rewrite(
        self,
        opened: OpenFile,
        found: Mapping[int, int],
        rewriter: FileRewriter,
        reader: LogicalReader,
        values: LogicalReader,
        worker: Worker,
    ) -> None:
        edit = self.edit
        changed = frozenset[str]() if edit.removes_matches else edit.changed
        for number, group in enumerate(opened.file.row_groups):
            matching = found.get(number, 0)
            if not group.num_rows or (edit.removes_matches and matching == group.num_rows):
                continue
            if not matching and rewriter.copy(number):
                continue
            if matching and not edit.removes_matches and rewriter.may_copy(number):
                rows = map(edit.edited, worker.until_cancelled(values.rows(values.also(opened), number)))
                if rewriter.replace_columns(number, changed, rows):
                    continue
                del rows  # frees its memory before the row group is read again
            rewriter.begin(number, changed if matching else ())
            for batch in worker.until_cancelled(reader.rows(opened, number)):
                rewriter.write(edit.edited(batch) if matching else batch)


def _rows(
    reader: LogicalReader, file: FileInfo, found: Mapping[int, int], worker: Worker
) -> Iterator[pa.RecordBatch]:
    """The rows of the row groups with matching rows."""
    for _, rows in reader.read_row_groups(file, sorted(found)):
        yield from worker.until_cancelled(rows)
