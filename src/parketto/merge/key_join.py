"""Joins the source rows and the target keys of one hash bucket, and decides what happens to each row.

All rows of a key are in one bucket, so buckets are independent. The result does not depend on the order in which
rows arrive: a retried task returns the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.merge.broadcast import judged
from parketto.merge.hashing import key_hashes
from parketto.merge.join import FileCounts
from parketto.merge.keys import KeyIndex, key_columns
from parketto.merge.rules import MergeRules
from parketto.merge.source import FOLDER, distinct_rows
from parketto.merge.target import MergeTarget
from parketto.parquet.exchange_types import exchange_name
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import FileRows
from parketto.runtime.arrays import Flags, Indices
from parketto.runtime.task import Worker
from parketto.sorting.external_sort import sort_batches
from parketto.sorting.order import by_number
from parketto.tasks.write import write_rows

SEQUENCE = "parketto:sequence"  # the position of a row in the source
_ROW_BITS = 40  # low bits of a sort key of file and row: enough for the rows of a file
FILE, ROW = "parketto:file", "parketto:row"  # the position of a target file, and the number of a row in it


@dataclass(frozen=True)
class JoinedBucket:
    """The result of a bucket: `edits` of existing rows, and source rows to write to new files.

    Edits are sorted by file and row: `file`, `row`, whether the row is updated in place (`in_place`), moves to
    another partition (`moves_out`) or stays as it is (`untouched`), and the new values by position.
    """

    edits: pa.Table
    additions: pa.Table
    inserted: int = 0
    moved: int = 0
    #: In a dry run: the counts of each file, and the folders that rows would be added to.
    counts: dict[int, FileCounts] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


def by_bucket(rows: pa.Table, rules: MergeRules, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each hash bucket."""
    hashes = key_hashes(key_columns(rows, rules.keys, with_nulls=rules.null_keys_match))
    numbers = ((hashes >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)
    order, spans = by_number(numbers.astype(np.int64))
    ordered = rows.take(pa.array(order))
    for bucket, start, stop in spans:
        yield bucket, ordered.slice(start, stop - start)


def edit_schema(schema: pa.Schema, updated: frozenset[str] | None) -> pa.Schema:
    """The columns of an edit's new values."""
    return pa.schema([item for item in schema if updated is None or item.name in updated])


def join_bucket(source: pa.Table, keys: pa.Table, target: MergeTarget) -> JoinedBucket:
    """Join one bucket, and decide what happens to its rows.

    Args:
        source: Source rows, with their sequence number and, if partitions can change, their folder.
        keys: Keys of the target and columns that conditions use, each with its file and row.
        target: The target and the rules of the merge.
    """
    rules, change = target.rules, target.change
    # Sort only keys and the columns that decide between duplicates; whole rows are taken once, at the end.
    order = np.argsort(source.column(SEQUENCE).to_numpy())
    deciding = source.select([*dict.fromkeys((*rules.keys, *rules.order_by))]).take(pa.array(order))
    index = KeyIndex(deciding, rules.keys, with_nulls=rules.null_keys_match)
    kept = distinct_rows(deciding, rules, index, complete=False)
    if kept is not None:
        order = order[kept]
        index = KeyIndex(deciding.take(pa.array(kept)), rules.keys, with_nulls=rules.null_keys_match)
    found = index.find(keys)
    hits = np.flatnonzero(found >= 0) if rules.edits else np.empty(0, np.int64)
    is_matched = np.zeros(len(order), np.bool_)
    is_matched[found[found >= 0]] = True
    new = _insertable(source, order[~is_matched], target)
    target.refuse_unfilled(len(new))
    updates, untouched = _judged(source, order[found[hits]], keys, hits, target)
    if not rules.removes_missing:  # rows that stay need no edit
        hits, updates, untouched = hits[~untouched], updates[~untouched], untouched[~untouched]
    sources, values = order[found[hits]], edit_schema(target.row_schema, change.updated)
    files, rows = (keys.column(name).to_numpy()[hits] for name in (FILE, ROW))
    same_folder = _same_folder(source, sources, files, target)
    is_first = _first_of_each(sources, updates, same_folder, files, rows)
    in_place, changes_folder = is_first & same_folder, is_first & ~same_folder
    if target.dry_run:
        added = np.concatenate([new, sources[changes_folder]])
        nothing = source.slice(0, 0)
        counts = _counts(files, ~untouched, is_first, in_place, untouched)
        return JoinedBucket(nothing, nothing, len(new), counts=counts, folders=_folders(source, added))
    # If some columns are not updated, a moved row is read from its file; else the source has all of it.
    moves_out = changes_folder & (change.updated is not None)
    moved = sources[changes_folder & ~moves_out]
    additions = source.take(pa.array(np.concatenate([new, moved])))
    edits = _edits(source, values, sources, files, rows, in_place, moves_out, untouched)
    return JoinedBucket(edits, additions, len(new), len(moved))


def _insertable(source: pa.Table, new: Indices, target: MergeTarget) -> Indices:
    """Those of the source rows without a match that are inserted."""
    if not target.rules.inserts or target.clauses is None:
        return new if target.rules.inserts else new[:0]
    return new[target.clauses.insertable(source.take(pa.array(new)))]


def _judged(
    source: pa.Table, sources: Indices, keys: pa.Table, hits: Indices, target: MergeTarget
) -> tuple[Flags, Flags]:
    """Which matched rows are updated, and which stay as they are."""
    updates, untouched = np.ones(len(hits), np.bool_), np.zeros(len(hits), np.bool_)
    if target.clauses is None or not target.judges or not len(hits):
        return updates, untouched
    verdicts = judged(target.clauses, source, sources, keys, hits)
    return verdicts.updates, ~verdicts.edits


def _same_folder(source: pa.Table, sources: Indices, files: Indices, target: MergeTarget) -> Flags:
    """Whether each matched row is in the folder that its source row belongs to."""
    if target.change.moves == "never":
        return np.ones(len(sources), np.bool_)
    positions, codes = np.unique(files, return_inverse=True)
    folders = pa.array([target.folder_of(target.files[position]) for position in positions], pa.string())
    belongs = source.column(FOLDER).take(pa.array(sources))
    found: Flags = pc.equal(belongs, folders.take(pa.array(codes))).to_numpy()
    return found


def _first_of_each(sources: Indices, updates: Flags, same_folder: Flags, files: Indices, rows: Indices) -> Flags:
    """Flags one update of each source row: the first in path order, rows in its own folder first."""
    if np.bincount(sources).max(initial=0) <= 1:
        return updates
    first = np.zeros(len(sources), np.bool_)
    order = np.lexsort((rows, files, ~same_folder, ~updates, sources))
    ordered = sources[order]
    first[order[np.append(True, ordered[1:] != ordered[:-1])]] = True
    return first & updates


def _edits(
    source: pa.Table,
    values: pa.Schema,
    sources: Indices,
    files: Indices,
    rows: Indices,
    in_place: Flags,
    moves_out: Flags,
    untouched: Flags,
) -> pa.Table:
    order = np.argsort((files.astype(np.int64) << _ROW_BITS) + rows)
    has_values = (in_place | moves_out)[order]
    # Deleted rows have no new values.
    positions = pa.array(sources[order], mask=None if has_values.all() else ~has_values)
    taken = source.select(values.names).take(positions)
    return pa.table(
        {
            "file": files[order],
            "row": rows[order],
            "in_place": in_place[order],
            "moves_out": moves_out[order],
            "untouched": untouched[order],
            **{exchange_name(at): column for at, column in enumerate(taken.columns)},
        }
    )


def _folders(source: pa.Table, rows: Indices) -> frozenset[str]:
    if FOLDER not in source.column_names:
        return frozenset([""] if len(rows) else [])
    return frozenset(pc.unique(source.column(FOLDER).take(pa.array(rows))).to_pylist())


def _counts(files: Indices, *flags: Flags) -> dict[int, FileCounts]:
    """The counts of each file, in the order of the fields of `FileCounts`."""
    positions, codes = np.unique(files, return_inverse=True)
    counted = (np.bincount(codes, weights, len(positions)) for weights in flags)
    return {
        int(position): FileCounts(*map(int, counts)) for position, *counts in zip(positions, *counted, strict=True)
    }


@dataclass(frozen=True)
class WriteAdditions:
    """Write added rows in source order."""

    rows: FileRows
    output: Output

    @property
    def size_bytes(self) -> int:
        """The size of the spool files with the rows."""
        return self.rows.size_bytes

    def run(self, worker: Worker) -> Written:
        """Sort the rows, spilling if needed, and write them."""
        ordered = sort_batches(
            self.rows.read(worker), self.rows.schema, [SEQUENCE], worker.run_bytes, worker.scratch_directory()
        )
        wanted = self.output.row_schema.names
        return write_rows((batch.select(wanted) for batch in ordered), self.output, worker, at_least_one=False)
