"""A merge whose keys an engine joins: what the join needs to know of rows, and what becomes of its result.

The source goes through the join as a whole, the target only with its keys. The join says for each source row in
which row of which file its key is; what changes in a file then comes, in the order of its rows, to whoever
rewrites that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from parketto.kernels.merge import refuse_null_keys
from parketto.kernels.merge_source import check_nulls
from parketto.kernels.merge_target import MergeOutcome, MergeTarget
from parketto.kernels.partitions import folders
from parketto.kernels.replacing import Rewritten, RowEdits, rewrite_file
from parketto.kernels.travel import travel_name, unpack
from parketto.kernels.work import StagedFile, Worker
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
        check_nulls(batch, self.target.schema, self.target.rules.keys, self.target.source.names)
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
            "here": pa.repeat(pa.scalar(self.target.home_of(file), pa.string()), batch.num_rows),
        }


@dataclass(frozen=True)
class Edited:
    """What became of one file, by its position in the target."""

    position: int
    rewritten: Rewritten
    matched: int
    replaced: int


def edit_file(
    position: int, pieces: Iterator[pa.RecordBatch], target: MergeTarget, travelled: pa.Schema, worker: Worker
) -> Edited:
    """Rewrite a file of the target.

    `pieces` tell what changes, in the order of rows: the number of the `row`, whether it is the `home` of a row of
    the source or its values leave with such a row (`leaving`), and that row's columns, travelling, of the schema
    `travelled`. Rows that are neither go.
    """
    edits = _Edits(pieces, travelled)
    rewritten = rewrite_file(target.files[position], target.rewriting, edits, worker)
    return Edited(position, rewritten, edits.matched, edits.replaced)


class _Edits:
    """What changes in one file, taken in as its rows go by."""

    def __init__(self, pieces: Iterator[pa.RecordBatch], travelled: pa.Schema) -> None:
        self._pieces, self._travelled = pieces, travelled
        self._waiting: pa.Table | None = None
        self.matched = self.replaced = 0

    @property
    def columns(self) -> Sequence[str]:
        """None: rows are known by their numbers."""
        return ()

    def touch(self, _number: int, stop: int) -> bool:
        """Whether a row before that one changes, of those that have not gone by."""
        while self._waiting is None:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            if piece.num_rows:
                self._waiting = pa.Table.from_batches([piece])
        return bool(self._waiting.column("row")[0].as_py() < stop)

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The changes of a batch of the file, whose first row has the number `start`."""
        ready = self._up_to(start + batch.num_rows)
        if ready is None:
            nothing = np.empty(0, np.bool_)
            return RowEdits(np.empty(0, np.int64), nothing, nothing, self._travelled.empty_table())
        homes, leaving = (ready.column(name).to_numpy() for name in ("home", "leaving"))
        self.matched += ready.num_rows
        self.replaced += int(homes.sum() + leaving.sum())
        return RowEdits(ready.column("row").to_numpy() - start, homes, leaving, self._rows(ready))

    def _up_to(self, stop: int) -> pa.Table | None:
        parts = [] if self._waiting is None else [self._waiting]
        while not parts or parts[-1].column("row")[-1].as_py() < stop:
            piece = next(self._pieces, None)
            if piece is None:
                break
            if piece.num_rows:
                parts.append(pa.Table.from_batches([piece]))
        if not parts:
            return None
        table = pa.concat_tables(parts)
        border = int(np.searchsorted(table.column("row").to_numpy(), stop))
        self._waiting = table.slice(border) if border < table.num_rows else None
        return table.slice(0, border)

    def _rows(self, ready: pa.Table) -> pa.Table:
        payload = ready.select([travel_name(at) for at in range(len(self._travelled.names))])
        parts = [unpack(part, self._travelled) for part in payload.to_batches()]
        return pa.Table.from_batches(parts, self._travelled)


def joined_outcome(
    target: MergeTarget,
    edited: Mapping[int, Edited],
    added: Written,
    inserted: int,
    moved: int,
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]],
    scanned: int,
) -> MergeOutcome:
    """What a merge did: `edited` are the files with matches; `inserted` and `moved` rows were added."""
    files = dict(enumerate(target.files))
    matched = sum(edit.matched for edit in edited.values())
    updated = sum(edit.replaced for edit in edited.values()) + moved
    kept = {position: edit.rewritten.kept for position, edit in sorted(edited.items())}
    removed = [files[position] for position, written in kept.items() if not written.staged]
    gone = 0
    if target.rules.removes_missing:
        removed += [file for position, file in files.items() if position not in edited and file.num_rows]
        gone = target.num_rows - matched
    return MergeOutcome(
        rewritten=tuple((files[position], written) for position, written in kept.items() if written.staged),
        removed=tuple(removed),
        added=sum((edit.rewritten.left for edit in edited.values()), added),
        inserted=inserted,
        updated=updated,
        deleted=matched - updated + gone,
        ranges=ranges,
        scanned=scanned,
    )


def planned_outcome(
    target: MergeTarget,
    counts: Mapping[int, FileCounts],
    inserted: int,
    added_folders: Sequence[str],
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]],
    scanned: int,
) -> MergeOutcome:
    """What a merge would do, by what was counted for each file with matches; `moved` rows are counted there."""
    edited = {
        position: Edited(
            position,
            Rewritten(PLANNED if found.stay(target, target.files[position]) else Written()),
            found.matched,
            found.replaced,
        )
        for position, found in counts.items()
    }
    outcome = joined_outcome(target, edited, Written(), inserted, 0, ranges, scanned)
    return replace(outcome, added_folders=tuple(added_folders))


@dataclass(frozen=True)
class FileCounts:
    """How many rows of a file match, how many of these get new values, and how many of those stay in the file."""

    matched: int
    replaced: int
    homes: int

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(self.matched + other.matched, self.replaced + other.replaced, self.homes + other.homes)

    def stay(self, target: MergeTarget, file: FileInfo) -> int:
        """How many rows of the file stay."""
        return self.homes + (0 if target.rules.removes_missing else file.num_rows - self.matched)


#: Stands for a file that would be written.
PLANNED = Written((StagedFile("", ""),), 0)
