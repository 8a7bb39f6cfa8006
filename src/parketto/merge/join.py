"""Join merge: the columns that an engine's join needs, and how its result becomes file edits.

The join reads whole source rows, but only the keys of the target. It finds the file and row of each source key.
The edits of a file, sorted by row, then go to the task that rewrites the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from parketto.merge.broadcast import refuse_null_keys
from parketto.merge.file_edits import Rewritten, rewrite_files
from parketto.merge.row_edits import RowEdits
from parketto.merge.scope import Scope
from parketto.merge.source import check_nulls
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.exchange_types import exchange_name, from_exchange
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Replaced, Rewrite, Written
from parketto.parquet.partitions import folders
from parketto.runtime.task import Worker

#: Columns that a join needs of a source row: its sequence number, its folder, and whether it may be inserted.
SOURCE_FIELDS = (
    pa.field("seq", pa.int64()),
    pa.field("folder", pa.string()),
    pa.field("insertable", pa.bool_()),
)
#: Columns that a join needs of a target row: the position of its file, its row number, its folder, and its scope.
TARGET_FIELDS = (
    pa.field("file", pa.int32()),
    pa.field("row", pa.int64()),
    pa.field("file_folder", pa.string()),
    pa.field("in_scope", pa.bool_()),
)


@dataclass(frozen=True)
class SourceColumns:
    """Checks source rows, and adds the columns of `SOURCE_FIELDS`."""

    target: MergeTarget

    def __call__(
        self, _file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        """Further columns for a batch, whose first row has the number `row` in the file at `position`."""
        check_nulls(batch, self.target.schema, self.target.rules, self.target.source.names)
        partition_by = self.target.spec.partition_by
        sequence = (position << 40) + row + np.arange(batch.num_rows)
        found = (
            folders(pa.Table.from_batches([batch]), partition_by)
            if partition_by
            else pa.nulls(batch.num_rows, pa.string())
        )
        if self.target.scope is not None:
            self.target.scope.refuse_outside(batch, self.target.rules.keys)
        clauses = self.target.clauses
        insertable = np.ones(batch.num_rows, np.bool_) if clauses is None else clauses.insertable(batch)
        return {"seq": pa.array(sequence), "folder": found, "insertable": pa.array(insertable)}


@dataclass(frozen=True)
class TargetColumns:
    """Checks target keys, and adds their file, row and folder."""

    target: MergeTarget

    def __call__(self, file: FileInfo, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Further columns for a batch, whose first row has the number `row` in the file at `position`."""
        refuse_null_keys(batch, self.target.rules)
        scope = self.target.scope
        in_scope = np.ones(batch.num_rows, np.bool_) if scope is None else scope.matches(batch)
        return {
            "file": pa.repeat(pa.scalar(position, pa.int32()), batch.num_rows),
            "row": pa.array(row + np.arange(batch.num_rows)),
            "file_folder": pa.repeat(pa.scalar(self.target.folder_of(file), pa.string()), batch.num_rows),
            "in_scope": pa.array(in_scope),
        }


@dataclass(frozen=True)
class Edited:
    """What became of files, by their positions in the target, and how many of their rows are edited."""

    rewritten: Rewritten
    counts: Mapping[int, FileCounts]

    @classmethod
    def total(cls, parts: Iterable[Edited]) -> Edited:
        """All parts together."""
        found = list(parts)
        return cls(
            Rewritten.total(each.rewritten for each in found),
            {position: counts for each in found for position, counts in each.counts.items()},
        )


#: The edits of files in the order of their rows, by the position of the file in the target.
FilePieces = Iterable[tuple[int, Iterator[pa.RecordBatch]]]


def edit_files(
    positions: Sequence[int], pieces: FilePieces, target: MergeTarget, values_schema: pa.Schema, worker: Worker
) -> Edited:
    """Rewrite neighbouring files of the target; those without `pieces` stay.

    The pieces of a file are its edits, sorted by row: the number of the `row`, whether it is updated in place
    (`in_place`) or moves to another partition (`moves_out`) or stays as it is (`untouched`), and the columns of
    the source row in exchange types, of the schema `values_schema`. Rows that are none of these are deleted.
    """
    counts: dict[int, FileCounts] = {}

    def edits() -> Iterator[tuple[FileInfo, _Edits]]:
        for position, found in pieces:
            edits = _Edits(found, values_schema, target.scope)
            yield target.files[position], edits
            counts[position] = FileCounts(edits.matched, edits.replaced, 0, edits.untouched)

    files = [target.files[position] for position in positions]
    return Edited(rewrite_files(files, edits(), target.rewriting, worker), counts)


def pieces_by_file(
    positions: Sequence[int], rows: Iterable[pa.RecordBatch]
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The edits of each of some files, from batches that are sorted by the number of the `file`.

    Those of a file must be consumed before the next file is requested; a rest is skipped.
    """
    pieces = ((int(piece.column("file")[0].as_py()), piece) for batch in rows for piece in _file_runs(batch))
    remaining = iter(positions)
    for found, group in groupby(pieces, key=lambda pair: pair[0]):
        for position in remaining:
            if position == found:
                yield found, (piece for _, piece in group)
                break
            yield position, iter(())
    yield from ((position, iter(())) for position in remaining)


def _file_runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The parts of a batch that belong to one file each."""
    if batch.num_rows:
        numbers = batch.column("file").to_numpy()
        for start, stop in pairwise(
            [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        ):
            yield batch.slice(start, stop - start)


def numbered_groups(
    target: MergeTarget, edited: Mapping[int, int], removed: Iterable[int] = ()
) -> list[list[int]]:
    """The groups of files to rewrite, as positions in the target. Arguments as for `edit_groups`."""
    files = target.files
    positions = {files[at].path: at for at in edited}
    groups = target.groups(
        {files[at].path: rows for at, rows in edited.items()}, {files[at].path for at in removed}
    )
    return [[positions[file.path] for file in group] for group in groups]


class _Edits:
    """The edits of one file, consumed in row order."""

    def __init__(self, pieces: Iterator[pa.RecordBatch], schema: pa.Schema, scope: Scope | None) -> None:
        self._pieces, self._schema, self._scope = pieces, schema, scope
        self._pending: pa.Table | None = None
        self.matched = self.replaced = self.untouched = 0

    @property
    def columns(self) -> Sequence[str]:
        """None but those of the scope: row numbers identify rows."""
        return () if self._scope is None else self._scope.columns

    def touch(self, _number: int, stop: int) -> bool:
        """Whether a pending edit is before the row `stop`, or rows may be outside of the scope, which stay."""
        if self._scope is not None:
            return True
        while self._pending is None:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            if piece.num_rows:
                self._pending = pa.Table.from_batches([piece])
        return bool(self._pending.column("row")[0].as_py() < stop)

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch, whose first row has the number `start`."""
        ready = self._up_to(start + batch.num_rows)
        outside = np.empty(0, np.int64)
        if self._scope is not None:
            outside = np.flatnonzero(~self._scope.matches(batch))
        if ready is None:
            nothing = np.empty(0, np.bool_)
            return RowEdits(np.empty(0, np.int64), nothing, nothing, self._schema.empty_table(), outside)
        stays = ready.column("untouched").to_numpy()
        untouched = ready.column("row").to_numpy()[stays] - start
        if len(untouched):
            self.untouched += len(untouched)
            ready = ready.filter(pa.array(~stays))
        in_place, moves_out = (ready.column(name).to_numpy() for name in ("in_place", "moves_out"))
        self.matched += ready.num_rows
        self.replaced += int(in_place.sum() + moves_out.sum())
        rows = ready.column("row").to_numpy() - start
        return RowEdits(rows, in_place, moves_out, self._rows(ready), np.union1d(untouched, outside))

    def _up_to(self, stop: int) -> pa.Table | None:
        parts = [] if self._pending is None else [self._pending]
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
        self._pending = table.slice(border) if border < table.num_rows else None
        return table.slice(0, border)

    def _rows(self, ready: pa.Table) -> pa.Table:
        payload = ready.select([exchange_name(at) for at in range(len(self._schema.names))])
        parts = [from_exchange(part, self._schema) for part in payload.to_batches()]
        return pa.Table.from_batches(parts, self._schema)


def join_outcome(
    target: MergeTarget,
    edited: Edited,
    added: Written,
    inserted: int,
    moved: int,
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]],
    scanned: int,
) -> MergeOutcome:
    """The outcome of a merge: `edited` are the files with matches; `inserted` and `moved` rows were added."""
    found = edited.counts.values()
    matched = sum(counts.matched for counts in found)
    updated = sum(counts.replaced for counts in found) + moved
    removed = list(edited.rewritten.files.emptied)
    gone = 0
    if target.rules.removes_missing:
        removed += [file for at, file in enumerate(target.files) if at not in edited.counts and file.num_rows]
        total = target.num_rows if target.scope is None else target.scope.num_rows
        gone = total - matched - sum(counts.untouched for counts in found)
    return MergeOutcome(
        rewritten=edited.rewritten.files.replaced,
        removed=tuple(removed),
        added=edited.rewritten.moved_out + added,
        inserted=inserted,
        updated=updated,
        deleted=matched - updated + gone,
        ranges=ranges,
        scanned=scanned,
    )


def partly_in_scope(target: MergeTarget) -> list[int]:
    """The positions of files with rows outside of the scope: they are rewritten, even without a match."""
    if target.scope is None:
        return []
    return [at for at, file in enumerate(target.files) if target.scope.rows_outside(file)]


@dataclass(frozen=True)
class EditUnmatched:
    """Rewrite files of which no row has a source row: only those outside of the scope stay."""

    positions: tuple[int, ...]
    target: MergeTarget

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files."""
        return tuple(self.target.files[position] for position in self.positions)

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Edited:
        """Rewrite the files."""
        pieces = ((position, iter(())) for position in self.positions)
        return edit_files(self.positions, pieces, self.target, pa.schema([]), worker)


def rows_left(target: MergeTarget, counts: Mapping[int, FileCounts]) -> dict[int, int]:
    """The rows that are left of each file that is edited or has rows outside of the scope."""
    edited = {**dict.fromkeys(partly_in_scope(target), FileCounts(0, 0, 0)), **counts}
    return {position: found.stay(target, target.files[position]) for position, found in edited.items()}


def planned_outcome(
    target: MergeTarget,
    counts: Mapping[int, FileCounts],
    inserted: int,
    added_folders: Sequence[str],
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]],
    scanned: int,
) -> MergeOutcome:
    """The outcome of a dry run, from the counts of each file with matches, which include moved rows."""
    files, left = target.files, rows_left(target, counts)
    emptied = [position for position, rows in left.items() if not rows]
    groups = numbered_groups(target, {at: rows for at, rows in left.items() if rows}, emptied)
    rewrite = Rewrite(
        tuple(Replaced(tuple(files[at] for at in group)) for group in groups),
        tuple(files[position] for position in sorted(emptied)),
    )
    edited = Edited(Rewritten(rewrite), {**dict.fromkeys(left, FileCounts(0, 0, 0)), **counts})
    outcome = join_outcome(target, edited, Written(), inserted, 0, ranges, scanned)
    return replace(outcome, added_folders=tuple(added_folders))


@dataclass(frozen=True)
class FileCounts:
    """How many rows of a file are edited, how many of them get new values, and how many of those stay in the file.

    `untouched` rows match, and stay as they are.
    """

    matched: int
    replaced: int
    in_place: int
    untouched: int = 0

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(
            self.matched + other.matched,
            self.replaced + other.replaced,
            self.in_place + other.in_place,
            self.untouched + other.untouched,
        )

    def stay(self, target: MergeTarget, file: FileInfo) -> int:
        """The number of rows that stay in the file."""
        stay = self.untouched if target.rules.removes_missing else file.num_rows - self.matched
        outside = 0 if target.scope is None else target.scope.rows_outside(file)
        return self.in_place + stay + (outside if target.rules.removes_missing else 0)
