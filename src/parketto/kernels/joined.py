"""A merge whose keys an engine joins: what the join needs to know of rows, and what becomes of its result.

The source goes through the join as a whole, the target only with its keys. The join says for each source row in
which row of which file its key is; what changes in a file then comes, in the order of its rows, to whoever
rewrites that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.merge import refuse_null_keys
from parketto.kernels.merge_source import check_nulls
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.partitions import canonical_folder, folders
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import file_writer
from parketto.kernels.travel import travel_name, unpack
from parketto.kernels.work import Worker
from parketto.kernels.write import Written
from parketto.storage.footers import FileInfo

#: What a join must know of a source row: its place in the source, and the folder that it belongs to.
SOURCE_FIELDS = (pa.field("seq", pa.int64()), pa.field("folder", pa.string()))
#: What it must know of a target row: the position of its file, its number there, and the folder it is in.
TARGET_FIELDS = (pa.field("file", pa.int32()), pa.field("row", pa.int64()), pa.field("here", pa.string()))


@dataclass(frozen=True)
class SourceColumns:
    """Checks rows of the source, and adds their place in it and the folder that they belong to."""

    target: MergeTarget

    def __call__(
        self, _file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        """Further columns for a batch, whose first row has the number `row` in the file at `position`."""
        check_nulls(batch, self.target.schema, self.target.rules.keys)
        partition_by = self.target.form.partition_by
        place = (position << 40) + row + np.arange(batch.num_rows)
        found = (
            folders(pa.Table.from_batches([batch]), partition_by)
            if partition_by
            else pa.nulls(batch.num_rows, pa.string())
        )
        return {"seq": pa.array(place), "folder": found}


@dataclass(frozen=True)
class TargetColumns:
    """Checks keys of the target, and adds where they are."""

    target: MergeTarget

    def __call__(self, file: FileInfo, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Further columns for a batch, whose first row has the number `row` in the file at `position`."""
        refuse_null_keys(batch, self.target.rules.keys)
        return {
            "file": pa.repeat(pa.scalar(position, pa.int32()), batch.num_rows),
            "row": pa.array(row + np.arange(batch.num_rows)),
            "here": pa.repeat(pa.scalar(home_of(file, self.target), pa.string()), batch.num_rows),
        }


def home_of(file: FileInfo, target: MergeTarget) -> str | None:
    """The folder that rows of a file belong to; None where there are no partitions."""
    return canonical_folder(file, target.form) if target.form.partition_by else None


@dataclass(frozen=True)
class Edited:
    """What became of one file, by its position in the target."""

    position: int
    written: Written
    matched: int
    replaced: int


def edit_file(
    position: int, pieces: Iterator[pa.RecordBatch], target: MergeTarget, travelled: pa.Schema, worker: Worker
) -> Edited:
    """Rewrite a file of the target.

    `pieces` tell what changes, in the order of rows: the number of the `row`, whether it is the `home` of a row of
    the source (otherwise it goes), and that row's columns, travelling, of the schema `travelled`.
    """
    file = target.files[position]
    assert file.schema is not None, "files of a target come from a snapshot"
    schema = carrier_schema(file.schema).remove_metadata()
    reader = LogicalReader(worker.store, schema, worker.batch_bytes, target.form)
    edits = _Edits(pieces, travelled, schema)
    start = rows = 0
    writer = file_writer(file, "merge", target.compression, worker)
    for batch in worker.until_cancelled(reader.read(file)):
        kept = edits.apply(start, batch, keep_missing=not target.rules.removes_missing)
        start += batch.num_rows
        rows += kept.num_rows
        for part in kept.to_batches():
            writer.write(recast(part, schema))
    if rows:
        writer.finish()
    return Edited(position, Written(tuple(writer.staged), rows), edits.matched, edits.replaced)


class _Edits:
    """What changes in one file, taken in as its rows go by."""

    def __init__(self, pieces: Iterator[pa.RecordBatch], travelled: pa.Schema, schema: pa.Schema) -> None:
        self._pieces, self._travelled, self._schema = pieces, travelled, schema
        self._waiting: pa.Table | None = None
        self.matched = self.replaced = 0

    def apply(self, start: int, batch: pa.RecordBatch, *, keep_missing: bool) -> pa.Table:
        """A batch of the file, whose first row has the number `start`, with its changes."""
        numbers, homes, rows = self._up_to(start + batch.num_rows)
        if not len(numbers) and keep_missing:
            return pa.Table.from_batches([batch])
        at = numbers - start
        self.matched += len(at)
        self.replaced += int(homes.sum())
        take = np.arange(batch.num_rows)
        take[at[homes]] = batch.num_rows + np.flatnonzero(homes)
        keep = np.full(batch.num_rows, keep_missing)
        keep[at] = homes
        nullable = pa.schema(pa.field(item.name, item.type) for item in self._schema)
        table = pa.concat_tables([pa.Table.from_batches([batch]).cast(nullable), rows.cast(nullable)])
        return table.take(pa.array(take[keep]))

    def _up_to(self, stop: int) -> tuple[np.ndarray, np.ndarray, pa.Table]:
        parts = [] if self._waiting is None else [self._waiting]
        while not parts or parts[-1].column("row")[-1].as_py() < stop:
            piece = next(self._pieces, None)
            if piece is None:
                break
            if piece.num_rows:
                parts.append(pa.Table.from_batches([piece]))
        if not parts:
            empty = pa.schema(pa.field(item.name, item.type) for item in self._schema).empty_table()
            return np.empty(0, np.int64), np.empty(0, np.bool_), empty
        table = pa.concat_tables(parts)
        numbers = table.column("row").to_numpy()
        border = int(np.searchsorted(numbers, stop))
        self._waiting = table.slice(border) if border < len(numbers) else None
        ready = table.slice(0, border)
        return numbers[:border], ready.column("home").to_numpy(), self._rows(ready)

    def _rows(self, ready: pa.Table) -> pa.Table:
        payload = ready.select([travel_name(at) for at in range(len(self._travelled.names))])
        parts = [unpack(part, self._travelled) for part in payload.to_batches()]
        return pa.Table.from_batches(parts, self._travelled).select(self._schema.names)


def joined_outcome(
    target: MergeTarget,
    edited: Mapping[int, Edited],
    added: Written,
    inserted: int,
    moved: int,
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]],
) -> MergeOutcome:
    """What a merge did: `edited` are the files with matches; `inserted` and `moved` rows were added."""
    files = dict(enumerate(target.files))
    matched = sum(edit.matched for edit in edited.values())
    updated = sum(edit.replaced for edit in edited.values()) + moved
    removed = [files[position] for position, edit in edited.items() if not edit.written.staged]
    gone = 0
    if target.rules.removes_missing:
        removed += [file for position, file in files.items() if position not in edited and file.num_rows]
        gone = target.num_rows - matched
    return MergeOutcome(
        rewritten=tuple(
            (files[position], edit.written) for position, edit in sorted(edited.items()) if edit.written.staged
        ),
        removed=tuple(removed),
        added=added,
        inserted=inserted,
        updated=updated,
        deleted=matched - updated + gone,
        ranges=ranges,
    )
