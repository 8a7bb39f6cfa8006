"""The tasks of a merge whose source is small enough to be at hand everywhere: match, rewrite, add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.keys import Indices
from parketto.kernels.merge_source import FOLDER, Prepared, SpooledSource, prepared_schema
from parketto.kernels.partitions import canonical_folder
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rewrite import file_writer
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
        for batch in worker.until_cancelled(
            _logical_rows(worker, self.file, self.keys, self.form, worker.batch_bytes)
        ):
            waiting.append(batch)
            size += batch.nbytes
            if size >= worker.run_bytes:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _at_home(self, rows: pa.Table, sources: Indices) -> npt.NDArray[np.bool_]:
        if not self.form.partition_by:
            return np.ones(len(sources), np.bool_)
        assert self.file.schema is not None, "files to match come from a snapshot"
        here = canonical_folder(self.file, self.form)
        belongs = rows.column(FOLDER).take(pa.array(sources))
        return np.asarray(pc.equal(belongs, here).to_numpy(), dtype=np.bool_)


@dataclass(frozen=True)
class RewriteMatches:
    """Write a file anew: matched rows give way to the source's, or go; the others stay, unless all must go."""

    file: FileInfo
    source: Prepared
    keys: tuple[str, ...]
    form: Form
    replacements: Indices
    removes_missing: bool
    compression: str | None

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.file.size_bytes

    def run(self, worker: Worker) -> Written:
        """Stream the file through."""
        assert self.file.schema is not None, "files to rewrite come from a snapshot"
        source = SpooledSource.of(worker, self.source, self.keys)
        found = source.lookup(self.file)
        index, start = found if found is not None else (None, 0)
        waiting = np.zeros(self.source.num_rows, np.bool_)
        waiting[self.replacements] = True
        schema = carrier_schema(self.file.schema).remove_metadata()
        rows = 0
        names = [*schema.names, *(name for name in self.keys if name in self.form.path_only)]
        with file_writer(self.file, "merge", self.compression, worker) as writer:
            for batch in worker.until_cancelled(
                _logical_rows(worker, self.file, names, self.form, worker.batch_bytes)
            ):
                matches = np.full(batch.num_rows, -1) if index is None else index.find(batch)
                matches = np.where(matches >= 0, matches + start, -1)
                kept = self._merged(batch.select(schema.names), matches, source.rows, waiting)
                rows += kept.num_rows
                for part in kept.to_batches():
                    writer.write(recast(part, schema))
        return Written(tuple(writer.staged), rows)

    def _merged(
        self, batch: pa.RecordBatch, matches: Indices, source: pa.Table, waiting: npt.NDArray[np.bool_]
    ) -> pa.Table:
        return replaced(batch, matches, source, waiting, keep_missing=not self.removes_missing)


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


def replaced(
    batch: pa.RecordBatch,
    matches: Indices,
    source: pa.Table,
    waiting: npt.NDArray[np.bool_],
    *,
    keep_missing: bool,
) -> pa.Table:
    """A batch of the target after the merge.

    `matches` says for each row which row of the source has its key (or -1). The first match of a source row that
    is `waiting` takes its place here, and waits no longer; other matched rows go. Rows without a match stay or go.
    """
    matched = np.flatnonzero(matches >= 0)
    if not len(matched) and keep_missing:
        return pa.Table.from_batches([batch])
    candidates = matched[waiting[matches[matched]]]
    _, first = np.unique(matches[candidates], return_index=True)
    homes = np.sort(candidates[first])
    waiting[matches[homes]] = False
    take = np.arange(batch.num_rows)
    take[homes] = batch.num_rows + np.arange(len(homes))
    keep = matches < 0 if keep_missing else np.zeros(batch.num_rows, np.bool_)
    keep[homes] = True
    rows = pa.Table.from_batches([batch])
    if len(homes):
        new = source.select(batch.schema.names).take(pa.array(matches[homes])).cast(_nullable(batch.schema))
        rows = pa.concat_tables([rows.cast(_nullable(batch.schema)), new])
    return rows.take(pa.array(take[keep]))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema(pa.field(item.name, item.type) for item in schema)


def refuse_null_keys(batch: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> None:
    """A target with NULLs among its keys cannot be merged into."""
    for name in keys:
        if batch.column(name).null_count:
            raise null_keys(name, "target")


def _logical_rows(
    worker: Worker, file: FileInfo, names: Sequence[str], form: Form, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Rows of a file in the types of a prepared source: columns of the path as texts."""
    assert file.schema is not None, "files to read come from a snapshot"
    texts = replace(form, path_only={name: pa.string() for name in form.path_only})
    whole = prepared_schema(texts.row_schema(file.schema), texts)
    schema = pa.schema([whole.field(name) for name in names])
    yield from LogicalReader(worker.store, schema, batch_bytes, texts, use_threads=worker.use_threads).read(file)
