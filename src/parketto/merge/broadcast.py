"""The tasks of a broadcast merge, in which every task reads the whole source: match, rewrite, add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.merge.clauses import Clauses, Verdicts
from parketto.merge.decision import distinct_numbers
from parketto.merge.file_edits import Rewritten, logical_reader, rewrite_files
from parketto.merge.keys import KeyIndex, Rows
from parketto.merge.row_edits import Rewriting, RowEdits
from parketto.merge.rules import MergeRules, null_keys
from parketto.merge.scope import Scope
from parketto.merge.source import FOLDER, Prepared, SpooledSource
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output, Written
from parketto.parquet.partition_spec import PartitionSpec
from parketto.runtime.arrays import Flags, Indices
from parketto.runtime.task import Worker
from parketto.tasks.write import write_rows

_ADDED_ROWS = 64 * 1024  # rows that are taken from the source at once
# What looking up a row adds to its keys, in bytes: its hash, place, result and row group. Comparing takes copies.
_LOOKUP_BYTES = 32
_MOST_MATCHES = 2  # target rows per source row, up to which all matches are remembered


@dataclass(frozen=True)
class RowMatches:
    """The numbers of the matched rows of a file, sorted, and the source row of each."""

    rows: Indices
    sources: Indices


@dataclass(frozen=True)
class Matched:
    """The source rows that update rows of a file, whether they belong to its folder, and the edited rows."""

    sources: Indices
    same_folder: Flags
    num_rows: int
    #: The numbers of the row groups with matches.
    row_groups: frozenset[int] = frozenset()
    #: The source rows with a key in the file, whether they update it or not; None: `sources`.
    matched: Indices | None = None
    #: The number of matched rows that stay as they are.
    untouched: int = 0
    #: The matched rows. None: keys are looked up again, because conditions decide, or many rows have the same key.
    matches: RowMatches | None = None


@dataclass(frozen=True)
class MatchFile:
    """Look up the keys of a file in the source. Reads only keys, and only if the footer allows a match."""

    file: FileInfo
    source: Prepared
    rules: MergeRules
    spec: PartitionSpec
    #: The folder that rows of the file belong to; None if rows never move.
    folder: str | None
    clauses: Clauses | None = None
    scope: Scope | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def run(self, worker: Worker) -> Matched:
        """Match all rows of the file."""
        if not self.file.num_rows:
            return Matched(np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        assert self.file.schema is not None, "files to match come from a snapshot"
        source = SpooledSource.of(worker, self.source, self.rules)
        # NULL keys must be detected, even if no key can match.
        unknown = not self.rules.null_keys_match and any(
            self.file.column_stats(name).null_count is None for name in self._inside()
        )
        lookup = source.lookup(self.file)
        if lookup is None and not unknown:
            return Matched(np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        index, start = lookup or (None, 0)
        places, matches, edited = ([np.empty(0, np.int64)] for _ in range(3))
        num_rows, untouched = 0, 0
        wanted = None if unknown else source.row_groups(self.file)
        for rows, numbers in self._read_keys(worker, wanted):
            refuse_null_keys(rows, self.rules)
            if index is not None:
                found = index.find(rows)
                if self.scope is not None:
                    found[~self.scope.matches(rows)] = -1
                at = np.flatnonzero(found >= 0)
                places.append(numbers[at])
                sources = found[at] + start
                if self.clauses is not None:
                    matches.append(sources)
                    verdicts = judged(self.clauses, source.rows, sources, rows, at)
                    untouched += int((~verdicts.edits).sum())
                    num_rows += int(verdicts.deletes.sum())
                    sources = sources[verdicts.updates]
                num_rows += len(sources)
                edited.append(sources)
        hit, row_sources = np.concatenate(places), np.concatenate(edited)
        sources = distinct_numbers(row_sources)
        same_folder = self._same_folder(source.rows, sources)
        matched = None if self.clauses is None else distinct_numbers(np.concatenate(matches))
        ends = np.cumsum([group.num_rows for group in self.file.row_groups])
        row_groups = frozenset(distinct_numbers(np.searchsorted(ends, hit, side="right")).tolist())
        keeps = self.clauses is None and self.scope is None and len(hit) <= _MOST_MATCHES * len(sources)
        row_matches = RowMatches(hit, row_sources) if keeps else None
        return Matched(sources, same_folder, num_rows, row_groups, matched, untouched, row_matches)

    def _inside(self) -> list[str]:
        return [name for name in self.rules.keys if name not in self.spec.path_only]

    def _read_keys(self, worker: Worker, wanted: Sequence[int] | None) -> Iterator[tuple[pa.Table, Indices]]:
        """Keys and their row numbers, in large pieces, because the cost of a lookup grows with the source."""
        batches: list[pa.RecordBatch] = []
        numbers: list[Indices] = []
        size = 0
        starts = np.cumsum([0, *(group.num_rows for group in self.file.row_groups)]).tolist()
        reader = logical_reader(
            worker, self.file, compared_columns(self.rules.keys, self.clauses, self.scope), self.spec
        )
        for number, rows in reader.read_row_groups(self.file, wanted):
            start = starts[number]
            for batch in worker.until_cancelled(rows):
                batches.append(batch)
                numbers.append(np.arange(start, start + batch.num_rows))
                start += batch.num_rows
                size += batch.nbytes + _LOOKUP_BYTES * batch.num_rows
                if size >= worker.run_bytes:
                    yield _piece(batches, numbers)
                    batches, numbers, size = [], [], 0
        if batches:
            yield _piece(batches, numbers)

    def _same_folder(self, rows: pa.Table, sources: Indices) -> Flags:
        if self.folder is None:
            return np.ones(len(sources), np.bool_)
        belongs = rows.column(FOLDER).take(pa.array(sources))
        return np.asarray(pc.equal(belongs, self.folder).to_numpy(), dtype=np.bool_)


def compared_columns(keys: Sequence[str], clauses: Clauses | None, scope: Scope | None) -> tuple[str, ...]:
    """The columns of target rows that are read to match them: the keys, and those that conditions use."""
    used = () if clauses is None else clauses.target_columns
    return tuple(dict.fromkeys((*keys, *used, *(() if scope is None else scope.columns))))


def judged(clauses: Clauses, source: pa.Table, sources: Indices, target: Rows, at: Indices) -> Verdicts:
    """What happens to the target rows at some positions, each of which has a source row."""
    one = source.select(clauses.source_columns).take(pa.array(sources))
    return clauses.judge(_with_rows(one, sources), target.take(pa.array(at)))


def _with_rows(rows: pa.Table, sources: Indices) -> pa.Table:
    # Without columns, a table has no rows.
    return rows if rows.num_columns else pa.table({"row": sources})


def _piece(batches: list[pa.RecordBatch], numbers: list[Indices]) -> tuple[pa.Table, Indices]:
    return pa.Table.from_batches(batches), np.concatenate(numbers)


@dataclass(frozen=True)
class FileEdits:
    """A file to rewrite; the source rows that update it in place, and those that move rows out of it."""

    file: FileInfo
    in_place: Indices
    moves_out: Indices
    #: The numbers of the row groups with matched rows.
    row_groups: frozenset[int]
    #: See `Matched`.
    matches: RowMatches | None = None


@dataclass(frozen=True)
class RewriteMatches:
    """Rewrite neighbouring files: matched rows are updated, moved or deleted; the others stay, unless all go."""

    edits: tuple[FileEdits, ...]
    source: Prepared
    rules: MergeRules
    rewriting: Rewriting
    clauses: Clauses | None = None
    scope: Scope | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files."""
        return tuple(each.file for each in self.edits)

    def run(self, worker: Worker) -> Rewritten:
        """Rewrite the files with the edits of the source."""
        return rewrite_files(self.files, self._found(worker), self.rewriting, worker)

    def _found(self, worker: Worker) -> Iterator[tuple[FileInfo, _Edits]]:
        source = SpooledSource.of(worker, self.source, self.rules)
        # One array for all files: with many of them, new ones for each would take longer than the edits.
        in_place, moves_out = (np.zeros(self.source.num_rows, np.bool_) for _ in range(2))
        for each in self.edits:
            in_place[each.in_place], moves_out[each.moves_out] = True, True
            yield (
                each.file,
                _Edits(
                    source,
                    each.file,
                    self.rules.keys,
                    in_place,
                    moves_out,
                    each.row_groups,
                    self.clauses,
                    self.scope,
                    each.matches,
                ),
            )
            in_place[each.in_place], moves_out[each.moves_out] = False, False


class _Edits:
    """The edits of a file. Unless its matches are known, its keys are looked up in the source again."""

    def __init__(
        self,
        source: SpooledSource,
        file: FileInfo,
        keys: Sequence[str],
        in_place: Flags,
        moves_out: Flags,
        row_groups: frozenset[int],
        clauses: Clauses | None,
        scope: Scope | None,
        matches: RowMatches | None,
    ) -> None:
        self._matches = matches
        self._keys, self._clauses, self._scope = keys, clauses, scope
        self._source, self._in_place, self._moves_out, self._row_groups = source, in_place, moves_out, row_groups
        self._index: KeyIndex | None = None
        self._first = 0
        if matches is None and (found := source.lookup(file)) is not None:
            self._index, self._first = found

    @property
    def columns(self) -> Sequence[str]:
        """The keys, and the columns that conditions use; none if the matches are known."""
        return () if self._matches is not None else compared_columns(self._keys, self._clauses, self._scope)

    def touch(self, number: int, _stop: int) -> bool:
        """Whether a row group has matched rows, or may have rows outside of the scope, which stay."""
        return number in self._row_groups or self._scope is not None

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch."""
        nothing = np.empty(0, np.int64)
        if self._matches is not None:
            first, last = np.searchsorted(self._matches.rows, [start, start + batch.num_rows])
            at, sources = self._matches.rows[first:last] - start, self._matches.sources[first:last]
            return self._edits(at, sources, np.ones(len(at), np.bool_), nothing)
        found = np.full(batch.num_rows, -1) if self._index is None else self._index.find(batch)
        outside = nothing
        if self._scope is not None:
            outside = np.flatnonzero(~self._scope.matches(batch))
            found[outside] = -1
        at = np.flatnonzero(found >= 0)
        sources = found[at] + self._first
        updates, untouched = np.ones(len(at), np.bool_), nothing
        if self._clauses is not None:
            verdicts = judged(self._clauses, self._source.rows, sources, batch, at)
            untouched, edits = at[~verdicts.edits], verdicts.edits
            at, sources, updates = at[edits], sources[edits], verdicts.updates[edits]
        return self._edits(at, sources, updates, np.union1d(untouched, outside))

    def _edits(self, at: Indices, sources: Indices, updates: Flags, untouched: Indices) -> RowEdits:
        """The edits of rows with a source row, which update it or delete it."""
        rows = self._source.rows.take(pa.array(sources))
        in_place, moves_out = (_first(sources, updates, flags) for flags in (self._in_place, self._moves_out))
        return RowEdits(at, in_place, moves_out, rows, untouched)


def _first(sources: Indices, updates: Flags, pending: Flags) -> Flags:
    """Flags the first update of each pending source row, which is then no longer pending."""
    chosen = np.zeros(len(sources), np.bool_)
    candidates = np.flatnonzero(pending[sources] & updates)
    _, first = np.unique(sources[candidates], return_index=True)
    chosen[candidates[first]] = True
    pending[sources[chosen]] = False
    return chosen


@dataclass(frozen=True)
class AddRows:
    """Write some rows of the source as new files."""

    source: Prepared
    rows: Indices
    output: Output
    rules: MergeRules

    @property
    def size_bytes(self) -> int:
        """The approximate size of these rows."""
        return int(self.source.size_bytes * len(self.rows) / max(1, self.source.num_rows))

    def run(self, worker: Worker) -> Written:
        """Take and write the rows, piece by piece."""
        source = SpooledSource.of(worker, self.source, self.rules).rows.select(self.output.row_schema.names)
        pieces = (
            batch
            for start in range(0, len(self.rows), _ADDED_ROWS)
            for batch in source.take(pa.array(self.rows[start : start + _ADDED_ROWS])).to_batches()
        )
        return write_rows(pieces, self.output, worker, at_least_one=False)


def refuse_null_keys(batch: pa.RecordBatch | pa.Table, rules: MergeRules) -> None:
    """Refuse a target with NULL keys, unless these match."""
    for name in () if rules.null_keys_match else rules.keys:
        if batch.column(name).null_count:
            raise null_keys(name, "target")
