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
from parketto.kernels.merge_source import FOLDER, distinct
from parketto.kernels.merge_target import MergeTarget
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import travel_name
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.layout.order import by_number

SEQUENCE = "parketto:sequence"  # the place of a row in the source
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
    source = source.take(pc.sort_indices(source.column(SEQUENCE)))
    source = distinct(source, rules, complete=False)
    found = KeyIndex(source, rules.keys).find(keys)
    hits = np.flatnonzero(found >= 0)
    sources = found[hits]
    is_matched = np.zeros(source.num_rows, np.bool_)
    is_matched[sources] = True
    new = np.flatnonzero(~is_matched) if rules.inserts else np.empty(0, np.int64)
    target.refuse_unfilled(len(new))
    values = edit_schema(schema, change.updated)
    if not rules.updates:
        hits = sources = hits[:0]
    files, rows = (keys.column(name).to_numpy()[hits] for name in (FILE, ROW))
    at_home = _at_home(source, sources, files, target)
    is_first = _first_of_each(sources, at_home, files, rows)
    homes, away = is_first & at_home, is_first & ~at_home
    if target.dry_run:
        added = source.take(pa.array(np.concatenate([new, sources[away]])))
        return JoinedBucket(
            _edits(source, values),
            added.slice(0, 0),
            len(new),
            counts=_counts(files, is_first, homes),
            folders=_folders(added),
        )
    # Where columns stay as they are, a row that moves leaves from its file; else the source has all of it.
    leaving = away & (change.updated is not None)
    moved = sources[away & ~leaving]
    additions = source.take(pa.array(np.sort(np.concatenate([new, moved]))))
    order = np.lexsort((rows, files))
    edits = _edits(source, values, sources[order], files[order], rows[order], homes[order], leaving[order])
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
    order = np.lexsort((rows, files, ~at_home, sources))
    ordered = sources[order]
    first = np.zeros(len(sources), np.bool_)
    first[order[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]] = True
    return first


_NO_ROWS, _NO_FLAGS = np.empty(0, np.int64), np.empty(0, np.bool_)


def _edits(
    source: pa.Table,
    values: pa.Schema,
    sources: Indices = _NO_ROWS,
    files: Indices = _NO_ROWS,
    rows: Indices = _NO_ROWS,
    homes: Flags = _NO_FLAGS,
    leaving: Flags = _NO_FLAGS,
) -> pa.Table:
    # Rows that go have no new values.
    taken = source.select(values.names).take(pa.array(sources, pa.int64(), mask=~(homes | leaving)))
    new_values = {travel_name(at): column for at, column in enumerate(taken.columns)}
    return pa.table({"file": files, "row": rows, "home": homes, "leaving": leaving, **new_values})


def _folders(rows: pa.Table) -> frozenset[str]:
    if FOLDER not in rows.column_names:
        return frozenset([""] if rows.num_rows else [])
    return frozenset(pc.unique(rows.column(FOLDER)).to_pylist())


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
