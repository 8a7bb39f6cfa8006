"""The tasks of a merge whose source is small enough to be at hand everywhere: match, rewrite, add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.keys import Indices
from parketto.kernels.merge_source import FOLDER, Prepared, SpooledSource
from parketto.kernels.replacing import Rewriting, Rewritten, RowEdits, logical_rows, rewrite_file
from parketto.kernels.work import Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.plan.form import Form
from parketto.plan.merge import null_keys
from parketto.storage.footers import FileInfo

_ADDED_ROWS = 64 * 1024


@dataclass(frozen=True)
class Matched:
    """Which source rows have their key in a file, whether they belong there, and how many rows these are."""

    sources: Indices
    at_home: npt.NDArray[np.bool_]
    num_rows: int


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
        matches: list[Indices] = []
        for rows in self._read_keys(worker):
            refuse_null_keys(rows, self.keys)
            if index is not None:
                found_rows = index.find(rows)
                matches.append(found_rows[found_rows >= 0] + start)
        everything = np.concatenate(matches) if matches else np.empty(0, np.int64)
        sources = np.unique(everything)
        return Matched(sources, self._at_home(source.rows, sources), len(everything))

    def _inside(self) -> list[str]:
        return [name for name in self.keys if name not in self.form.path_only]

    def _read_keys(self, worker: Worker) -> Iterator[pa.Table]:
        """Keys in large pieces: looking some up costs as much as the whole source is large."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in worker.until_cancelled(logical_rows(worker, self.file, self.keys, self.form)):
            waiting.append(batch)
            size += batch.nbytes
            if size >= worker.run_bytes:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _at_home(self, rows: pa.Table, sources: Indices) -> npt.NDArray[np.bool_]:
        if self.here is None:
            return np.ones(len(sources), np.bool_)
        belongs = rows.column(FOLDER).take(pa.array(sources))
        return np.asarray(pc.equal(belongs, self.here).to_numpy(), dtype=np.bool_)


@dataclass(frozen=True)
class RewriteMatches:
    """Write a file anew: matched rows give way to the source's, or go; the others stay, unless all must go.

    `homes` are the source rows that take their places in the file, `leaving` those that take the rest of a row
    from here to another partition.
    """

    file: FileInfo
    source: Prepared
    keys: tuple[str, ...]
    homes: Indices
    leaving: Indices
    rewriting: Rewriting

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def run(self, worker: Worker) -> Rewritten:
        """Stream the file through."""
        source = SpooledSource.of(worker, self.source, self.keys)
        index, start = source.lookup(self.file) or (None, 0)
        homes, leaving = (self._flags(rows) for rows in (self.homes, self.leaving))

        def edits_of(_row: int, batch: pa.RecordBatch) -> RowEdits:
            found = np.full(batch.num_rows, -1) if index is None else index.find(batch)
            at = np.flatnonzero(found >= 0)
            sources = found[at] + start
            return RowEdits(
                at, _first(sources, homes), _first(sources, leaving), source.rows.take(pa.array(sources))
            )

        return rewrite_file(self.file, self.rewriting, edits_of, worker)

    def _flags(self, rows: Indices) -> npt.NDArray[np.bool_]:
        flags = np.zeros(self.source.num_rows, np.bool_)
        flags[rows] = True
        return flags


def _first(sources: Indices, waiting: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
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
