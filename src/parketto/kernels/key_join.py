"""Joins the source rows and the target keys of one hash bucket, and decides what becomes of each row.

All rows of a key are in one bucket, so a bucket needs no other one to decide. Which rows a bucket gets does not
depend on the order in which they arrive: the result is the same if a task is run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.external_sort import sort_batches
from parketto.kernels.hashing import key_hashes
from parketto.kernels.joined import FileCounts
from parketto.kernels.keys import Flags, Indices, KeyIndex, key_columns
from parketto.kernels.merge_source import FOLDER, distinct_rows
from parketto.kernels.merge_target import MergeTarget
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import travel_name
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.layout.order import by_number

SEQUENCE = "parketto:sequence"  # the place of a row in the source
_ROW_BITS = 40  # of a number that puts rows of all files in order: enough for the rows of a file
FILE, ROW = "parketto:file", "parketto:row"  # the position of a target file, and the number of a row in it


@dataclass(frozen=True)
class JoinedBucket:
    """What a bucket says: `edits` of rows that are there, and source rows that become rows of new files.

    Edits are in the order of files and rows: `file`, `row`, whether the row is the `home` of its new values or
    leaves with them (`leaving`), and these values by position.
    """

    edits: pa.Table
    additions: pa.Table
    inserted: int = 0
    moved: int = 0
    #: Of a dry run: what would happen to each file, and the folders that rows would be added to.
    counts: dict[int, FileCounts] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


def by_bucket(rows: pa.Table, keys: tuple[str, ...], buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each hash bucket."""
    hashes = key_hashes(key_columns(rows, keys))
    numbers = ((hashes >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)
    order, spans = by_number(numbers.astype(np.int64))
    ordered = rows.take(pa.array(order))
    for bucket, start, stop in spans:
        yield bucket, ordered.slice(start, stop - start)


def edit_schema(schema: pa.Schema, updated: frozenset[str] | None) -> pa.Schema:
    """The columns whose new values an edit carries."""
    return pa.schema([item for item in schema if updated is None or item.name in updated])


def join_bucket(source: pa.Table, keys: pa.Table, target: MergeTarget, schema: pa.Schema) -> JoinedBucket:
    """Decide about the rows of one bucket.

    Args:
        source: Rows of the source, with their place in it and, where partitions can change, their folder.
        keys: Keys of the target, each with its file and row.
        target: What the merge means.
        schema: The columns of a source row that is on its way into the target.
    """
    rules, change = target.rules, target.change
    # Only keys and what decides between duplicates are put in order; whole rows are taken when they are sent on.
    order = np.argsort(source.column(SEQUENCE).to_numpy())
    deciding = source.select([*dict.fromkeys((*rules.keys, *rules.order_by))]).take(pa.array(order))
    index = KeyIndex(deciding, rules.keys)
    kept = distinct_rows(deciding, rules, index, complete=False)
    if kept is not None:
        order, index = order[kept], KeyIndex(deciding.take(pa.array(kept)), rules.keys)
    found = index.find(keys)
    hits = np.flatnonzero(found >= 0) if rules.updates else np.empty(0, np.int64)
    is_matched = np.zeros(len(order), np.bool_)
    is_matched[found[found >= 0]] = True
    new = order[~is_matched] if rules.inserts else order[:0]
    target.refuse_unfilled(len(new))
    sources, values = order[found[hits]], edit_schema(schema, change.updated)
    files, rows = (keys.column(name).to_numpy()[hits] for name in (FILE, ROW))
    at_home = _at_home(source, sources, files, target)
    is_first = _first_of_each(sources, at_home, files, rows)
    homes, away = is_first & at_home, is_first & ~at_home
    if target.dry_run:
        added = np.concatenate([new, sources[away]])
        nothing = source.slice(0, 0)
        counts = _counts(files, is_first, homes)
        return JoinedBucket(nothing, nothing, len(new), counts=counts, folders=_folders(source, added))
    # Where columns stay as they are, a row that moves leaves from its file; else the source has all of it.
    leaving = away & (change.updated is not None)
    moved = sources[away & ~leaving]
    additions = source.take(pa.array(np.concatenate([new, moved])))
    edits = _edits(source, values, sources, files, rows, homes, leaving)
    return JoinedBucket(edits, additions, len(new), len(moved))


def _at_home(source: pa.Table, sources: Indices, files: Indices, target: MergeTarget) -> Flags:
    """Whether each matched row lies in the folder that its source row belongs to."""
    if target.change.moves == "never":
        return np.ones(len(sources), np.bool_)
    positions, codes = np.unique(files, return_inverse=True)
    folders = pa.array([target.home_of(target.files[position]) for position in positions], pa.string())
    belongs = source.column(FOLDER).take(pa.array(sources))
    found: Flags = pc.equal(belongs, folders.take(pa.array(codes))).to_numpy()
    return found


def _first_of_each(sources: Indices, at_home: Flags, files: Indices, rows: Indices) -> Flags:
    """For each source row one of its matches: the first in path order, those at home before others."""
    first = np.zeros(len(sources), np.bool_)
    if np.bincount(sources).max(initial=0) <= 1:
        return ~first
    order = np.lexsort((rows, files, ~at_home, sources))
    ordered = sources[order]
    first[order[np.append(True, ordered[1:] != ordered[:-1])]] = True
    return first


def _edits(
    source: pa.Table,
    values: pa.Schema,
    sources: Indices,
    files: Indices,
    rows: Indices,
    homes: Flags,
    leaving: Flags,
) -> pa.Table:
    order = np.argsort((files.astype(np.int64) << _ROW_BITS) + rows)
    has_values = (homes | leaving)[order]
    # Rows that go have no new values.
    positions = pa.array(sources[order], mask=None if has_values.all() else ~has_values)
    taken = source.select(values.names).take(positions)
    return pa.table(
        {
            "file": files[order],
            "row": rows[order],
            "home": homes[order],
            "leaving": leaving[order],
            **{travel_name(at): column for at, column in enumerate(taken.columns)},
        }
    )


def _folders(source: pa.Table, rows: Indices) -> frozenset[str]:
    if FOLDER not in source.column_names:
        return frozenset([""] if len(rows) else [])
    return frozenset(pc.unique(source.column(FOLDER).take(pa.array(rows))).to_pylist())


def _counts(files: Indices, is_first: Flags, homes: Flags) -> dict[int, FileCounts]:
    positions, codes = np.unique(files, return_inverse=True)
    counted = (np.bincount(codes, weights, len(positions)) for weights in (None, is_first, homes))
    return {
        int(position): FileCounts(*map(int, counts)) for position, *counts in zip(positions, *counted, strict=True)
    }


@dataclass(frozen=True)
class WriteAdditions:
    """Write rows that are new, in the order of the source."""

    rows: FileRows
    output: Output

    @property
    def size_bytes(self) -> int:
        """The size of the files that the rows are kept in."""
        return self.rows.size_bytes

    def run(self, worker: Worker) -> Written:
        """Sort them, on disk if need be, and write them."""
        ordered = sort_batches(
            self.rows.read(worker), self.rows.schema, [SEQUENCE], worker.run_bytes, worker.scratch_directory()
        )
        wanted = self.output.row_schema.names
        return write_rows((batch.select(wanted) for batch in ordered), self.output, worker, at_least_one=False)
