"""Deletes or updates rows of one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from parketto.expressions.conditions import Assignment, Predicate, updated
from parketto.expressions.pruning import row_groups_may_match, rows_may_match
from parketto.parquet.equality import equal_values
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_rewriter import FileRewriter
from parketto.parquet.output import Output, Written, output_like
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.partitions import folder_codes
from parketto.parquet.reader import LogicalReader
from parketto.runtime.task import Worker
from parketto.tasks.write import write_rows


@dataclass(frozen=True)
class Edited:
    """The matching rows of a file, what replaces it (`kept`), and rows written to other partitions (`moved`)."""

    matched: int
    kept: Written = field(default_factory=Written)
    moved: Written = field(default_factory=Written)
    #: Whether all matching rows have the new values already: the file stays.
    unchanged: bool = False
    #: In a dry run: the directories that rows would move to.
    directories: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EditFile:
    """Delete or update the matching rows of a file.

    The columns of the condition are read first, in row groups whose bounds allow a match. If nothing matches, the
    file stays as it is; else only row groups with matching rows are decoded, except those that are deleted whole.
    An update leaves row groups and files alone whose rows have the new values already.
    """

    file: FileInfo
    operation: str
    condition: Predicate
    #: None: delete.
    changes: tuple[Assignment, ...] | None
    spec: PartitionSpec
    compression: str | None
    #: The output for matching rows, if their partition may change.
    elsewhere: Output | None = None
    dry_run: bool = False
    #: Whether row groups of another codec than `compression` are re-encoded.
    recompress: bool = True

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return (self.file,)

    def run(self, worker: Worker) -> Edited:
        """Find the matching rows, and rewrite the file if there are any."""
        found = self._matches(worker)
        matched = sum(found.values())
        changing = found if self.changes is None else self._changing(worker, found)
        if matched and not changing:
            return Edited(matched, unchanged=True)
        if not matched or self.dry_run:
            return Edited(matched, directories=self._directories(worker, found) if matched else frozenset())
        if self.changes is None and matched == self.file.num_rows:
            return Edited(matched)
        if self.elsewhere is None:
            return Edited(matched, self._rewrite(worker, changing))
        moved = write_rows(self._moving(worker, found), self.elsewhere, worker, at_least_one=False)
        if matched == self.file.num_rows:
            return Edited(matched, moved=moved)
        return Edited(matched, self._rewrite(worker, found), moved)

    @property
    def _removes_matches(self) -> bool:
        """Whether matching rows are removed from the file."""
        return self.changes is None or self.elsewhere is not None

    def _matches(self, worker: Worker) -> dict[int, int]:
        """The number of matching rows in each row group that has any."""
        found = Counter[int]()
        reader = self._reader(worker, self.condition.columns)
        with reader.open(self.file) as opened:
            for number in self._possible():
                pages = opened.pages(number, self.condition.columns, self.condition.columns)
                rows = rows_may_match(self.condition, self.file, number, pages, self.spec.path_only)
                for batch in worker.until_cancelled(reader.rows_in(opened, number, rows, pages)):
                    found[number] += self.condition.matches(batch).true_count
        return {number: count for number, count in found.items() if count}

    def _changing(self, worker: Worker, found: Mapping[int, int]) -> dict[int, int]:
        """Those of the row groups with matching rows in which a value changes."""
        columns = {change.column for change in self.changes or ()}
        reader, changing = self._changing_reader(worker), {}
        for number, rows in reader.read_row_groups(self.file, sorted(found)):
            for batch in worker.until_cancelled(rows):
                edited = self._updated(batch)
                if not all(equal_values(batch.column(name), edited.column(name)).all() for name in columns):
                    changing[number] = found[number]
                    break
        return changing

    def _possible(self) -> list[int]:
        groups = self.file.row_groups
        # The bounds of the whole file have been checked already.
        may_match = (
            row_groups_may_match(self.condition, self.file, self.spec.path_only) if len(groups) > 1 else [True]
        )
        return [number for number, group in enumerate(groups) if group.num_rows and may_match[number]]

    def _directories(self, worker: Worker, found: Mapping[int, int]) -> frozenset[str]:
        if self.elsewhere is None:
            return frozenset()
        output, names = self.elsewhere, set[str]()
        for batch in self._moving(worker, found):
            names.update(folder_codes(pa.Table.from_batches([batch]), output.partition_by)[1])
        return frozenset(f"{output.directory}/{output.folders.get(name, name)}" for name in names)

    def _reader(self, worker: Worker, columns: tuple[str, ...] | None = None) -> LogicalReader:
        assert self.file.schema is not None, "files to edit come from a snapshot"
        schema = self.spec.row_schema(self.file.schema)
        if columns is not None:
            # A condition without any column (`TRUE`) still needs the number of rows.
            schema = pa.schema([schema.field(name) for name in columns or schema.names[:1]])
        return LogicalReader(
            worker.store,
            schema,
            worker.batch_bytes,
            self.spec,
            use_threads=worker.use_threads,
            widths=worker.widths,
        )

    def _rewrite(self, worker: Worker, found: Mapping[int, int]) -> Written:
        changed = frozenset() if self._removes_matches else {change.column for change in self.changes or ()}
        output = output_like(self.file, self.operation, self.compression, changed)
        reader = self._reader(worker)
        with (
            reader.open(self.file) as opened,
            FileRewriter(opened, output, worker, self.compression if self.recompress else None) as rewriter,
        ):
            values = self._changing_reader(worker)
            changing = values.also(opened)
            for number, group in enumerate(self.file.row_groups):
                matching = found.get(number, 0)
                if not group.num_rows or (self._removes_matches and matching == group.num_rows):
                    continue
                if not matching and rewriter.copy(number):
                    continue
                if matching and not self._removes_matches:
                    rows = map(self._edited, worker.until_cancelled(values.rows(changing, number)))
                    if rewriter.replace_columns(number, changed, rows):
                        continue
                    del rows  # frees its memory before the row group is read again
                rewriter.begin(number, changed if matching else ())
                for batch in worker.until_cancelled(reader.rows(opened, number)):
                    rewriter.write(self._edited(batch) if matching else batch)
        return rewriter.written

    def _changing_reader(self, worker: Worker) -> LogicalReader:
        """A reader of only the columns that change, and those that they depend on."""
        changes = self.changes or ()
        used = {name for change in changes for name in (change.column, *change.columns)}
        return self._reader(worker, tuple(used.union(self.condition.columns)))

    def _edited(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._removes_matches:
            return self._updated(batch)
        return batch.filter(pc.invert(self.condition.matches(batch)))

    def _updated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return updated(batch, self.condition.matches(batch), self.changes or ())

    def _moving(self, worker: Worker, found: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        """The matching rows, updated."""
        assert self.changes is not None, "only updated rows move"
        for _, rows in self._reader(worker).read_row_groups(self.file, sorted(found)):
            for batch in worker.until_cancelled(rows):
                matching = batch.filter(self.condition.matches(batch))
                if matching.num_rows:
                    yield updated(matching, pa.repeat(pa.scalar(True), matching.num_rows), self.changes)
