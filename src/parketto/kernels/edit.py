"""Deleting and updating rows of one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.partitions import folder_codes
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import group_output
from parketto.kernels.successor import Successor
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.expressions import Assignment, Predicate, updated
from parketto.plan.form import Form
from parketto.plan.pruning import row_groups_may_match
from parketto.plan.rewrite import FileGroup
from parketto.rowgroups.area import without_area
from parketto.storage.footers import FileInfo


@dataclass(frozen=True)
class Edited:
    """How many rows of a file match, what was written in its place, and what was written elsewhere."""

    matched: int
    kept: Written = field(default_factory=Written)
    moved: Written = field(default_factory=Written)
    #: In a dry run: the directories that rows would move to.
    directories: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EditFile:
    """Delete the rows of a file that match, or change them.

    The columns of the condition are read first, of row groups that can have matching rows as far as their bounds
    tell. If nothing matches the file is left alone; else only row groups with matching rows are decoded, and of
    those not the ones that go as a whole.
    """

    file: FileInfo
    operation: str
    condition: Predicate
    #: None deletes.
    changes: tuple[Assignment, ...] | None
    form: Form
    compression: str | None
    #: Where matching rows go, if their partition may change.
    elsewhere: Output | None = None
    dry_run: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return (self.file,)

    def run(self, worker: Worker) -> Edited:
        """Look, and rewrite if there is a reason to."""
        found = self._matches(worker)
        matched = sum(found.values())
        if not matched or self.dry_run:
            return Edited(matched, directories=self._directories(worker, found) if matched else frozenset())
        if self.changes is None and matched == self.file.num_rows:
            return Edited(matched)
        if self.elsewhere is None:
            return Edited(matched, self._rewrite(worker, found))
        moved = write_rows(self._moving(worker, found), self.elsewhere, worker, at_least_one=False)
        if matched == self.file.num_rows:
            return Edited(matched, moved=moved)
        return Edited(matched, self._rewrite(worker, found), moved)

    @property
    def _takes_away(self) -> bool:
        """Whether rows that match leave the file."""
        return self.changes is None or self.elsewhere is not None

    def _matches(self, worker: Worker) -> dict[int, int]:
        """How many rows match in each row group that has any."""
        found = Counter[int]()
        reader = self._reader(worker, self.condition.columns)
        for number, rows in reader.read_row_groups(self.file, self._possible()):
            for batch in worker.until_cancelled(rows):
                found[number] += pc.sum(self.condition.matches(batch)).as_py() or 0
        return {number: count for number, count in found.items() if count}

    def _possible(self) -> list[int]:
        groups = self.file.row_groups
        # The file as a whole has been asked about already.
        hopeful = (
            row_groups_may_match(self.condition, self.file, self.form.path_only) if len(groups) > 1 else [True]
        )
        return [number for number, group in enumerate(groups) if group.num_rows and hopeful[number]]

    def _directories(self, worker: Worker, found: Mapping[int, int]) -> frozenset[str]:
        if self.elsewhere is None:
            return frozenset()
        output, names = self.elsewhere, set[str]()
        for batch in self._moving(worker, found):
            names.update(folder_codes(pa.Table.from_batches([batch]), output.partition_by)[1])
        return frozenset(f"{output.directory}/{output.folders.get(name, name)}" for name in names)

    def _reader(self, worker: Worker, columns: tuple[str, ...] | None = None) -> LogicalReader:
        assert self.file.schema is not None, "files to edit come from a snapshot"
        schema = self.form.row_schema(self.file.schema)
        if columns is not None:
            # A condition without any column (`TRUE`) still needs to know how many rows there are.
            schema = pa.schema([schema.field(name) for name in columns or schema.names[:1]])
        return LogicalReader(
            worker.store,
            schema,
            worker.batch_bytes,
            self.form,
            use_threads=worker.use_threads,
            widths=worker.widths,
        )

    def _rewrite(self, worker: Worker, found: Mapping[int, int]) -> Written:
        changed = frozenset() if self._takes_away else {change.column for change in self.changes or ()}
        noted = replace(self.file, metadata=without_area(self.file.metadata, changed))
        output = group_output(FileGroup((noted,), compression=self.compression), self.operation, ())
        reader = self._reader(worker)
        with (
            reader.open(self.file) as opened,
            Successor(opened, output, worker, self.compression) as successor,
        ):
            values = self._changing_reader(worker)
            changing = values.also(opened)
            for number, group in enumerate(self.file.row_groups):
                matching = found.get(number, 0)
                if not group.num_rows or (self._takes_away and matching == group.num_rows):
                    continue
                if not matching and successor.copy(number):
                    continue
                if matching and not self._takes_away:
                    rows = map(self._edited, worker.until_cancelled(values.rows(changing, number)))
                    if successor.graft(number, changed, rows):
                        continue
                    del rows  # or what it holds would be there while the row group is read again
                successor.begin(number, changed if matching else ())
                for batch in worker.until_cancelled(reader.rows(opened, number)):
                    successor.write(self._edited(batch) if matching else batch)
        return successor.written

    def _changing_reader(self, worker: Worker) -> LogicalReader:
        """Reads no more than what changes, and what that depends on."""
        changes = self.changes or ()
        used = {name for change in changes for name in (change.column, *change.columns)}
        return self._reader(worker, tuple(used.union(self.condition.columns)))

    def _edited(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self.condition.matches(batch)
        return batch.filter(pc.invert(mask)) if self._takes_away else updated(batch, mask, self.changes or ())

    def _moving(self, worker: Worker, found: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        """The rows that match, changed."""
        assert self.changes is not None, "rows move because they are changed"
        for _, rows in self._reader(worker).read_row_groups(self.file, sorted(found)):
            for batch in worker.until_cancelled(rows):
                matching = batch.filter(self.condition.matches(batch))
                if matching.num_rows:
                    yield updated(matching, pa.repeat(pa.scalar(True), matching.num_rows), self.changes)
