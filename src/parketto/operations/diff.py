"""Compare two states of a dataset: rows added, removed and changed. Only files that differ are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from parketto.arguments import check_columns_exist, check_names
from parketto.display import Result
from parketto.errors import IncompatibleTypes, StateUnavailable
from parketto.merge.row_diff import MAX_LEVEL, RowDiff, by_bucket, compared, hashed
from parketto.operations.context import DatasetContext, PastState
from parketto.operations.folder_types import partitions_of
from parketto.operations.past_states import LoggedFiles, StateLike, refuse_without_history, state_of
from parketto.operations.read import RowQuery, Scan, row_schema, scan_of
from parketto.parquet.partition_spec import path_types
from parketto.parquet.promotion import common_type, promoted
from parketto.parquet.snapshot import read_snapshot
from parketto.sorting.spill import ScratchFolder, SpillFiles
from parketto.storage.store import FileEntry

_WHOLE_BYTES = 8 * 1024 * 1024  # of files, whose rows are compared in memory, without buckets on disk
_PART_BYTES = 64 * 1024 * 1024  # of decoded rows that are compared in memory at once
_Batches = Sequence[Iterable[pa.RecordBatch]]  # of both states
_CHANGED = ("before", "after")


class Diff(Result):
    """The rows that differ between two states. A mapping of counts, serialisable with `json.dumps`.

    Keys: `start` and `end` (numbers of commits), `key_columns`, `rows_added`, `rows_removed`, `rows_changed`,
    `files_compared` and `bytes_compared`. The rows are in temporary files, which are removed with this object.
    """

    def __init__(self, counts: Mapping[str, Any], folder: ScratchFolder, schemas: Mapping[str, pa.Schema]) -> None:
        super().__init__(counts)
        self._folder, self._schemas = folder, dict(schemas)

    @property
    def added(self) -> pa.RecordBatchReader:
        """The rows that only the later state has."""
        return self._rows("added")

    @property
    def removed(self) -> pa.RecordBatchReader:
        """The rows that only the earlier state has."""
        return self._rows("removed")

    @property
    def changed(self) -> pa.RecordBatchReader:
        """The rows whose key is in both states: its columns, and the others as structs `before` and `after`."""
        return self._rows("changed")

    def _rows(self, kind: str) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schemas[kind], self._read(kind))

    def _read(self, kind: str) -> Iterator[pa.RecordBatch]:
        path = _path(self._folder.path, kind)
        if os.path.exists(path):
            with pa.OSFile(path, "rb") as source, pa.ipc.open_stream(source) as reader:
                yield from reader


def diff(
    dataset: DatasetContext, start: StateLike, end: StateLike | None, key_columns: str | Sequence[str] | None
) -> Diff:
    """Find the files that differ → distribute their rows to buckets → compare each bucket."""
    names = [key_columns] if isinstance(key_columns, str) else key_columns
    keys = () if names is None else check_names("key_columns", names)
    refuse_without_history(dataset, "a comparison of states", StateUnavailable)
    logged = LoggedFiles.of(dataset)
    old = state_of(dataset, logged, logged.number_at(start))
    new = state_of(dataset, logged, logged.commits.last if end is None else logged.number_at(end))
    known = {(entry.path, entry.fingerprint) for entry in old.files}
    same = known & {(entry.path, entry.fingerprint) for entry in new.files}
    sides = [_Side.of(dataset, state, same) for state in (old, new)]
    schema = _common_schema(sides)
    check_columns_exist(keys, schema, "key_columns")
    size = sum(entry.size_bytes for side in sides for entry in side.files)
    folder = ScratchFolder()
    with _Output(folder.path, schema, keys) as output:
        for old_rows, new_rows in _parts(sides, schema, keys, folder.path, whole=size <= _WHOLE_BYTES):
            output.write(compared(old_rows, new_rows, keyed=bool(keys)))
    counts = {
        "start": old.number,
        "end": new.number,
        "key_columns": list(keys) or None,
        **{f"rows_{kind}": output.counts[kind] for kind in output.schemas},
        "files_compared": sum(len(side.files) for side in sides),
        "bytes_compared": size,
    }
    return Diff(counts, folder, output.schemas)


@dataclass(frozen=True)
class _Side:
    """The files of a state that the other one does not have."""

    files: Sequence[FileEntry]
    scan: Scan | None
    schema: pa.Schema

    @classmethod
    def of(cls, dataset: DatasetContext, state: PastState, same: set[tuple[str, str]]) -> _Side:
        files = [entry for entry in state.files if (entry.path, entry.fingerprint) not in same]
        if not state.files:
            return cls(files, None, pa.schema([]))
        context = replace(dataset, past=state)
        # If all files are the same, one of them shows the columns.
        snapshot = read_snapshot(context.snapshot_store(), dataset.root, files or state.files[:1])
        types = path_types(partitions_of(state.files, dataset.root))
        snapshot = snapshot.with_path_types(types).unified()
        return cls(files, scan_of(context, snapshot, RowQuery()) if files else None, row_schema(snapshot))

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in a schema that may have more columns."""
        for batch in self.scan.batches() if self.scan is not None else ():
            columns = [
                promoted(batch.column(item.name), item.type)
                if item.name in batch.schema.names
                else pa.nulls(batch.num_rows, item.type)
                for item in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _common_schema(sides: Sequence[_Side]) -> pa.Schema:
    """The columns of both states, those of the later one first."""
    old, new = (side.schema for side in sides)
    found = []
    for name in dict.fromkeys([*new.names, *old.names]):
        kinds = [each.field(name).type for each in (old, new) if name in each.names]
        kind = common_type(kinds)
        if kind is None:
            raise IncompatibleTypes(
                f"the states cannot be compared: column {name!r} was {kinds[0]} and became {kinds[1]}. "
                "Read them with as_of instead"
            )
        found.append(pa.field(name, kind))
    return pa.schema(found)


def _parts(
    sides: Sequence[_Side], schema: pa.Schema, keys: Sequence[str], folder: str, *, whole: bool
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of both states with hashes: all at once, or in parts that fit into memory."""
    if not any(side.files for side in sides):
        return
    nothing = pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)
    like = hashed(nothing, keys).schema
    rows = [(hashed(batch, keys) for batch in side.batches(schema)) for side in sides]
    for pair in [rows] if whole else _buckets(rows, folder):
        old, new = (pa.Table.from_batches(batches, like) for batches in pair)
        yield old, new


def _buckets(rows: _Batches, folder: str, level: int = 0) -> Iterator[_Batches]:
    """Hashed rows of both states by bucket. A bucket that is too large is divided again, by other bits."""
    spilled: list[SpillFiles[int]] = []
    for batches in rows:
        with SpillFiles[int](folder) as files:
            for batch in batches:
                for bucket, part in by_bucket(batch, level):
                    files.write(bucket, part)
        spilled.append(files)
    for bucket in sorted({bucket for files in spilled for bucket in files}):
        pair = [files[bucket] if bucket in files else () for files in spilled]  # noqa: SIM401 - no mapping
        if level < MAX_LEVEL and sum(files.size(bucket) for files in spilled) > _PART_BYTES:
            yield from _buckets(pair, folder, level + 1)
        else:
            yield pair


class _Output:
    """Writes the rows that differ to files."""

    def __init__(self, folder: str, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._folder, self._keys = folder, keys
        self._others = [item for item in schema if item.name not in keys]
        values = pa.struct(self._others)
        changed = pa.schema([*(schema.field(key) for key in keys), *((name, values) for name in _CHANGED)])
        self.schemas = {"added": schema, "removed": schema, "changed": changed if keys else schema}
        self.counts = dict.fromkeys(self.schemas, 0)
        self._open = ExitStack()
        self._writers: dict[str, pa.ipc.RecordBatchStreamWriter] = {}

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def write(self, found: RowDiff) -> None:
        """Append the rows of one bucket."""
        self._write("added", found.added)
        self._write("removed", found.removed)
        if found.after.num_rows:
            columns = [found.after.column(key) for key in self._keys]
            sides = [self._values(rows) for rows in (found.before, found.after)]
            self._write("changed", pa.Table.from_arrays([*columns, *sides], schema=self.schemas["changed"]))

    def _values(self, rows: pa.Table) -> pa.Array:
        rows = rows.combine_chunks()
        columns = [_one_array(rows.column(item.name)) for item in self._others]
        if not columns:
            return pa.array([{}] * rows.num_rows, pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=self._others)

    def _write(self, kind: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if kind not in self._writers:
            sink = self._open.enter_context(pa.OSFile(_path(self._folder, kind), "wb"))
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writers[kind] = self._open.enter_context(pa.ipc.new_stream(sink, rows.schema, options=options))
        self._writers[kind].write_table(rows)
        self.counts[kind] += rows.num_rows


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _path(folder: str, kind: str) -> str:
    return os.path.join(folder, f"{kind}.arrows")
