"""The tasks of a merge whose source is small enough to be at hand everywhere: match, rewrite, add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.keys import Indices, KeyIndex
from parketto.kernels.merge_source import FOLDER, Prepared, SpooledSource
from parketto.kernels.replacing import Flags, Rewriting, Rewritten, RowEdits, logical_reader, rewrite_file
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.form import Form
from parketto.plan.merge import distinct_numbers, null_keys
from parketto.storage.footers import FileInfo

_ADDED_ROWS = 64 * 1024


@dataclass(frozen=True)
class Matched:
    """Which source rows have their key in a file, whether they belong there, and how many rows these are."""

    sources: Indices
    at_home: Flags
    num_rows: int
    #: The numbers of the row groups that have any.
    row_groups: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MatchFile:
    """Look the keys of a file up in the source. Only keys are read, and only if the footer leaves a chance."""

    file: FileInfo
    source: Prepared
    keys: tuple[str, ...]
    form: Form
    #: The folder that rows of the file are at home in; None where rows do not move.
    here: str | None

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def run(self, worker: Worker) -> Matched:
        """Match all rows of the file."""
        if not self.file.num_rows:
            return Matched(np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        assert self.file.schema is not None, "files to match come from a snapshot"
        source = SpooledSource.of(worker, self.source, self.keys)
        # Whether NULLs are among the keys must be known, even where no key can match.
        unknown = any(self.file.column_stats(name).null_count is None for name in self._inside())
        found = source.lookup(self.file)
        if found is None and not unknown:
            return Matched(np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        index, start = found or (None, 0)
        matches, hit = [np.empty(0, np.int64)], set[int]()
        wanted = None if unknown else source.row_groups(self.file)
        for rows, numbers in self._read_keys(worker, wanted):
            refuse_null_keys(rows, self.keys)
            if index is not None:
                found_rows = index.find(rows)
                matches.append(found_rows[found_rows >= 0] + start)
                hit.update(distinct_numbers(numbers[found_rows >= 0]).tolist())
        everything = np.concatenate(matches)
        sources = distinct_numbers(everything)
        return Matched(sources, self._at_home(source.rows, sources), len(everything), frozenset(hit))

    def _inside(self) -> list[str]:
        return [name for name in self.keys if name not in self.form.path_only]

    def _read_keys(self, worker: Worker, wanted: Sequence[int] | None) -> Iterator[tuple[pa.Table, Indices]]:
        """Keys in large pieces, because looking up costs as much as the source is large; and their row groups."""
        waiting: list[pa.RecordBatch] = []
        numbers: list[int] = []
        size = 0
        reader = logical_reader(worker, self.file, self.keys, self.form)
        for number, rows in reader.read_row_groups(self.file, wanted):
            for batch in worker.until_cancelled(rows):
                waiting.append(batch)
                numbers.append(number)
                size += batch.nbytes
                if size >= worker.run_bytes:
                    yield _piece(waiting, numbers)
                    waiting, numbers, size = [], [], 0
        if waiting:
            yield _piece(waiting, numbers)

    def _at_home(self, rows: pa.Table, sources: Indices) -> Flags:
        if self.here is None:
            return np.ones(len(sources), np.bool_)
        belongs = rows.column(FOLDER).take(pa.array(sources))
        return np.asarray(pc.equal(belongs, self.here).to_numpy(), dtype=np.bool_)


def _piece(batches: list[pa.RecordBatch], numbers: list[int]) -> tuple[pa.Table, Indices]:
    return pa.Table.from_batches(batches), np.repeat(numbers, [batch.num_rows for batch in batches])


@dataclass(frozen=True)
class RewriteMatches:
    """Write a file anew: matched rows give way to the source's, or go; the others stay, unless all must go.

    `homes` are the source rows that take their places in the file, `leaving` those that take the rest of a row
    from here to another partition. `row_groups` are those that have matched rows.
    """

    file: FileInfo
    source: Prepared
    keys: tuple[str, ...]
    homes: Indices
    leaving: Indices
    row_groups: frozenset[int]
    rewriting: Rewriting

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def run(self, worker: Worker) -> Rewritten:
        """Stream what changes through."""
        source = SpooledSource.of(worker, self.source, self.keys)
        homes, leaving = self._flags(self.homes), self._flags(self.leaving)
        edits = _Edits(source, self.file, self.keys, homes, leaving, self.row_groups)
        return rewrite_file(self.file, self.rewriting, edits, worker)

    def _flags(self, rows: Indices) -> Flags:
        flags = np.zeros(self.source.num_rows, np.bool_)
        flags[rows] = True
        return flags


class _Edits:
    """What happens to the rows of a file: those whose keys the source has are looked up again."""

    def __init__(
        self,
        source: SpooledSource,
        file: FileInfo,
        keys: Sequence[str],
        homes: Flags,
        leaving: Flags,
        row_groups: frozenset[int],
    ) -> None:
        self._keys = keys
        self._source, self._homes, self._leaving, self._row_groups = source, homes, leaving, row_groups
        self._index: KeyIndex | None = None
        self._first = 0
        if (found := source.lookup(file)) is not None:
            self._index, self._first = found

    @property
    def columns(self) -> Sequence[str]:
        """The keys."""
        return self._keys

    def touch(self, number: int, _stop: int) -> bool:
        """Whether a row group has such rows."""
        return number in self._row_groups

    def of(self, _start: int, batch: pa.RecordBatch) -> RowEdits:
        """What happens to the rows of a batch."""
        found = np.full(batch.num_rows, -1) if self._index is None else self._index.find(batch)
        at = np.flatnonzero(found >= 0)
        sources = found[at] + self._first
        rows = self._source.rows.take(pa.array(sources))
        return RowEdits(at, _first(sources, self._homes), _first(sources, self._leaving), rows)


def _first(sources: Indices, waiting: Flags) -> Flags:
    """Which of the rows found are the first of a source row that waits; it waits no longer."""
    chosen = np.zeros(len(sources), np.bool_)
    candidates = np.flatnonzero(waiting[sources])
    _, first = np.unique(sources[candidates], return_index=True)
    chosen[candidates[first]] = True
    waiting[sources[chosen]] = False
    return chosen


@dataclass(frozen=True)
class AddRows:
    """Write some rows of the source as new files."""

    source: Prepared
    rows: Indices
    output: Output
    keys: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """About the size of these rows."""
        return int(self.source.size_bytes * len(self.rows) / max(1, self.source.num_rows))

    def run(self, worker: Worker) -> Written:
        """Take the rows, piece by piece."""
        source = SpooledSource.of(worker, self.source, self.keys).rows.select(self.output.row_schema.names)
        pieces = (
            batch
            for start in range(0, len(self.rows), _ADDED_ROWS)
            for batch in source.take(pa.array(self.rows[start : start + _ADDED_ROWS])).to_batches()
        )
        return write_rows(pieces, self.output, worker, at_least_one=False)


def refuse_null_keys(batch: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> None:
    """A target with NULLs among its keys cannot be merged into."""
    for name in keys:
        if batch.column(name).null_count:
            raise null_keys(name, "target")
