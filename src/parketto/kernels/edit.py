"""Deleting and updating rows of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.partitions import folder_codes
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import file_writer, row_group_ends
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.expressions import Assignment, Predicate, updated
from parketto.plan.form import Form
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

    The columns of the condition are read first. If nothing matches the file is left alone, and if all of it is
    deleted it is not read any further.
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

    def run(self, worker: Worker) -> Edited:
        """Look, and rewrite if there is a reason to."""
        matched = sum(pc.sum(mask).as_py() or 0 for _, mask in self._read(worker, self.condition.columns))
        if not matched or self.dry_run:
            return Edited(matched, directories=self._directories(worker) if matched else frozenset())
        if self.changes is None and matched == self.file.num_rows:
            return Edited(matched)
        if self.elsewhere is None:
            return Edited(matched, self._rewrite(worker, self._changed))
        moved = write_rows(self._matching(worker), self.elsewhere, worker, at_least_one=False)
        if matched == self.file.num_rows:
            return Edited(matched, moved=moved)
        return Edited(matched, self._rewrite(worker, _without), moved)

    def _directories(self, worker: Worker) -> frozenset[str]:
        if self.elsewhere is None:
            return frozenset()
        output, found = self.elsewhere, set[str]()
        for batch in self._matching(worker):
            found.update(folder_codes(pa.Table.from_batches([batch]), output.partition_by)[1])
        return frozenset(f"{output.directory}/{output.folders.get(name, name)}" for name in found)

    def _read(
        self, worker: Worker, columns: tuple[str, ...] | None = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]:
        assert self.file.schema is not None, "files to edit come from a snapshot"
        schema = self.form.row_schema(self.file.schema)
        if columns is not None:
            # A condition without any column (`TRUE`) still needs to know how many rows there are.
            schema = pa.schema([schema.field(name) for name in columns or schema.names[:1]])
        reader = LogicalReader(worker.store, schema, worker.batch_bytes, self.form, use_threads=worker.use_threads)
        for batch in worker.until_cancelled(reader.read(self.file)):
            yield batch, self.condition.matches(batch)

    def _rewrite(
        self, worker: Worker, change: Callable[[pa.RecordBatch, pa.BooleanArray], pa.RecordBatch]
    ) -> Written:
        assert self.file.schema is not None, "files to edit come from a snapshot"
        schema = carrier_schema(self.file.schema).remove_metadata()
        seen = rows = 0
        ends = row_group_ends(self.file)
        with file_writer(self.file, self.operation, self.compression, worker, self._order()) as writer:
            for batch, mask in self._read(worker):
                kept = change(batch, mask)
                seen, rows = seen + batch.num_rows, rows + kept.num_rows
                writer.write(recast(kept.select(schema.names), schema))
                if seen in ends:
                    writer.cut()
        return Written(tuple(writer.staged), rows)

    def _changed(self, batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
        return _without(batch, mask) if self.changes is None else updated(batch, mask, self.changes)

    def _matching(self, worker: Worker) -> Iterator[pa.RecordBatch]:
        assert self.changes is not None, "rows move because they are changed"
        for batch, mask in self._read(worker):
            found = batch.filter(mask)
            if found.num_rows:
                yield updated(found, pa.repeat(pa.scalar(True), found.num_rows), self.changes)

    def _order(self) -> tuple[str, ...]:
        """The order that the file declares and still has afterwards: rows only go, or change in other columns."""
        declared = {group.sorted_by for group in self.file.row_groups if group.num_rows}
        if len(declared) != 1:
            return ()
        changed = {change.column for change in self.changes or ()}
        kept: list[str] = []
        for name in declared.pop():
            if name in changed:
                break
            kept.append(name)
        return tuple(kept)


def _without(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return batch.filter(pc.invert(mask))
