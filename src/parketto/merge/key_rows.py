"""Tasks that find the rows of a file by a table of keys: to delete them, or to return them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.errors import ColumnNotFound, IncompatibleTypes
from parketto.merge.file_edits import logical_reader
from parketto.merge.keys import KeyIndex
from parketto.merge.rules import MergeRules, path_text_type, same_kind
from parketto.merge.source import Prepared, SortedSource, SpooledSource, sorted_keys
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.promotion import is_castable
from parketto.runtime.arrays import Indices
from parketto.runtime.task import Worker
from parketto.sorting.order import check_orderable


def key_fields(keys: Sequence[str], given: pa.Schema, schema: pa.Schema, spec: PartitionSpec) -> pa.Schema:
    """The key columns of a dataset, if a table of keys has them in types whose values can be cast.

    Args:
        keys: Their names.
        given: The schema of the table of keys.
        schema: The schema of the dataset.
        spec: Its partition spec.
    """
    for where, names in (("of the keys", given.names), ("of the dataset", schema.names)):
        if missing := [name for name in keys if name not in names]:
            raise ColumnNotFound(missing, names, f"key_columns {where}")
    wrong = [
        f"{name!r} is {own} in the keys and {kind} in the dataset"
        for name, own, kind in ((name, given.field(name).type, schema.field(name).type) for name in keys)
        if not (path_text_type(own) if name in spec.path_only else same_kind(own, kind) or is_castable(own, kind))
    ]
    if wrong:
        raise IncompatibleTypes(f"incompatible types: {'; '.join(wrong)}. Cast the keys first")
    check_orderable(keys, schema)
    return pa.schema([schema.field(name) for name in keys])


@dataclass(frozen=True)
class KeyLookup:
    """A file, and the keys to look up in it."""

    file: FileInfo
    source: Prepared
    keys: tuple[str, ...]
    spec: PartitionSpec

    def batches(self, worker: Worker, columns: Sequence[str] = ()) -> Iterator[tuple[Indices, pa.RecordBatch]]:
        """The rows with one of the keys: their numbers, and their keys and `columns`, batch by batch."""
        source = SpooledSource.of(worker, self.source, MergeRules("deduplicate", self.keys))
        return _rows_with_keys(worker, self.file, source, self.keys, self.spec, columns)

    def rows(self, worker: Worker) -> Indices:
        """The numbers of the rows with one of the keys, sorted."""
        return np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in self.batches(worker))])


def _rows_with_keys(
    worker: Worker,
    file: FileInfo,
    source: SortedSource,
    keys: Sequence[str],
    spec: PartitionSpec,
    columns: Sequence[str] = (),
) -> Iterator[tuple[Indices, pa.RecordBatch]]:
    found = source.lookup(file)
    if found is None or not file.num_rows:
        return
    index, _ = found
    starts = np.cumsum([0, *(group.num_rows for group in file.row_groups)])
    reader = logical_reader(worker, file, tuple(dict.fromkeys((*keys, *columns))), spec)
    for number, rows in reader.read_row_groups(file, source.row_groups(file)):
        start = int(starts[number])
        for batch in worker.until_cancelled(rows):
            at = _found(index, batch, keys)
            if len(at):
                yield start + at, batch.take(pa.array(at))
            start += batch.num_rows


def _found(index: KeyIndex, batch: pa.RecordBatch, keys: Sequence[str]) -> Indices:
    """The positions of the rows whose key is in the index; a key with a NULL is in none."""
    at: Indices = np.arange(batch.num_rows)
    rows = batch.select(list(keys))
    for name in keys:
        if rows.column(name).null_count:
            valid = np.flatnonzero(pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False))
            at, rows = at[valid], rows.take(pa.array(valid))
    return at[index.find(rows) >= 0]


@dataclass(frozen=True)
class CountRows:
    """Count the rows of a file that have one of the keys."""

    lookup: KeyLookup

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.lookup.file.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The file."""
        return (self.lookup.file,)

    def run(self, worker: Worker) -> int:
        """Count them."""
        return len(self.lookup.rows(worker))


@dataclass(frozen=True)
class FindRows:
    """Find the rows of a file that have one of the keys; returns their keys and some columns."""

    lookup: KeyLookup
    columns: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self.lookup.file.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The file."""
        return (self.lookup.file,)

    def run(self, worker: Worker) -> pa.Table | None:
        """Find the rows; None if there are none."""
        parts = [batch for _, batch in self.lookup.batches(worker, self.columns)]
        return pa.Table.from_batches(parts) if parts else None


@dataclass(frozen=True)
class HasKeys:
    """Whether a file has a row with one of the keys, which are in memory and in any types."""

    file: FileInfo
    rows: pa.Table
    spec: PartitionSpec
    size_bytes = 0

    def run(self, worker: Worker) -> bool:
        """Read the file until there is such a row. Raises if a key column is missing or of a different kind."""
        assert self.file.schema is not None, "files to read come from a snapshot"
        names = self.rows.schema.names
        fields = key_fields(names, self.rows.schema, self.spec.row_schema(self.file.schema), self.spec)
        source = sorted_keys(self.rows, fields, replace(self.spec, partition_by=()))
        return any(True for _ in _rows_with_keys(worker, self.file, source, names, self.spec))
