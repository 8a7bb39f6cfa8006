"""Prepares the source of a merge once: checked, deduplicated, sorted, and spooled for all tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.merge.clauses import Clauses
from parketto.merge.keys import KeyIndex, SortedKeys, have_different_values, sort_by_key
from parketto.merge.rules import MergeRules, duplicate_keys, null_keys
from parketto.merge.scope import Scope
from parketto.parquet.decoded_types import cast_column, decoded_schema, exact_values
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.partitions import folders
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.runtime.arrays import Indices
from parketto.runtime.task import Worker
from parketto.sorting.order import order_keys
from parketto.storage.store import Store

FOLDER = "parketto:folder"


# One index of up to this many rows (24 bytes each) serves all files: one for each small file would take longer.
_INDEXED_ROWS = 1024 * 1024


@dataclass(frozen=True)
class Prepared:
    """The location and size of the prepared source."""

    path: str
    num_rows: int
    size_bytes: int
    #: Minimum and maximum of each key, where they can be compared with footers.
    ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]] = field(default_factory=dict)
    #: The rows that are not inserted; None: all may be.
    refused: Indices | None = None


@dataclass(frozen=True)
class PrepareSource:
    """Check the rows of a source, convert them to the target's columns, sort and spool them."""

    source: FileRows | ArrowRows
    target: pa.Schema
    spec: PartitionSpec
    rules: MergeRules
    path: str
    clauses: Clauses | None = None
    scope: Scope | None = None
    #: Whether rows with values that the target's types cannot hold are left out; otherwise they are refused.
    skips_misfits: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the source, where it is known."""
        return self.source.size_bytes if isinstance(self.source, FileRows) else 0

    def run(self, worker: Worker) -> Prepared:
        """Load the source into memory once; later tasks read it from the spool."""
        extra = () if self.clauses is None else self.clauses.extra
        batches: Iterable[pa.RecordBatch] = self.source.read(worker)
        if self.skips_misfits:
            batches = _fitting(batches, prepared_schema(self.target, self.spec))
        rows = source_table(batches, self.target, self.spec, extra)
        check_nulls(rows, self.target, self.rules, self.source.schema.names)
        if self.scope is not None:
            self.scope.refuse_outside(rows, self.rules.keys)
        rows = distinct(rows, self.rules)
        rows = sort_by_key(rows, self.rules.keys[0])
        if self.spec.partition_by:
            rows = rows.append_column(FOLDER, folders(rows, self.spec.partition_by))
        rows = rows.combine_chunks()
        path = worker.staging.of_attempt(self.path)
        with worker.store.open_output(path) as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        refused = None if self.clauses is None else np.flatnonzero(~self.clauses.insertable(rows))
        return Prepared(path, rows.num_rows, rows.nbytes, self._ranges(rows), refused)

    def _ranges(self, rows: pa.Table) -> dict[str, tuple[pa.Scalar, pa.Scalar]]:
        names = [name for name in self.rules.keys if name not in self.spec.path_only]
        kinds = {name: rows.schema.field(name).type for name in names}
        return {
            name: (found["min"], found["max"])
            for name, kind in kinds.items()
            # NULL keys match those of files, which bounds do not show.
            if rows.num_rows > rows.column(name).null_count == 0
            and not pat.is_floating(kind)
            and not pat.is_fixed_size_binary(kind)
            for found in [_min_max(rows.column(name))]
        }


class SortedSource:
    """Prepared rows of a source, sorted by their first key, and what files may have in common with them."""

    def __init__(self, rows: pa.Table, rules: MergeRules) -> None:
        self.rows = rows
        self._rules, self._sorted = rules, SortedKeys(rows, rules.keys[0])
        self._whole: KeyIndex | None = None

    def lookup(self, file: FileInfo) -> tuple[KeyIndex, int] | None:
        """An index of the rows whose keys the file may contain, and the number of its first row; None if empty."""
        start, stop = self._sorted.span(file)
        if start >= stop:
            return None
        if self.rows.num_rows > _INDEXED_ROWS and 2 * (stop - start) < self.rows.num_rows:
            return self._indexed(self.rows.slice(start, stop - start)), start
        if self._whole is None:
            self._whole = self._indexed(self.rows)
        return self._whole, 0

    def _indexed(self, rows: pa.Table) -> KeyIndex:
        return KeyIndex(rows, self._rules.keys, with_nulls=self._rules.null_keys_match)

    def row_groups(self, file: FileInfo) -> list[int]:
        """The row groups of a file that may contain a key, according to their bounds."""
        return [number for number, group in enumerate(file.row_groups) if self._sorted.meets(file, group)]


class SpooledSource(SortedSource):
    """The prepared source as tasks read it: memory-mapped from a local disk."""

    def __init__(self, store: Store, prepared: Prepared, rules: MergeRules) -> None:
        local = store.local_path(prepared.path)
        self._source: Any = pa.memory_map(local) if local is not None else store.open_input(prepared.path)
        super().__init__(pa.ipc.open_file(self._source).read_all(), rules)

    @classmethod
    def of(cls, worker: Worker, prepared: Prepared, rules: MergeRules) -> SpooledSource:
        """The source, opened once for all tasks of a worker."""
        found: SpooledSource | None = worker.cache.get(prepared.path)
        if found is None:
            worker.cache[prepared.path] = found = cls(worker.store, prepared, rules)
        return found


def sorted_keys(rows: pa.Table, target: pa.Schema, spec: PartitionSpec) -> SortedSource:
    """The keys that a schema can hold, in its columns and types."""
    fitting = source_table(_fitting(rows.to_batches(), prepared_schema(target, spec)), target, spec)
    return SortedSource(sort_by_key(fitting, target.names[0]), MergeRules("deduplicate", tuple(target.names)))


def source_table(
    batches: Iterable[pa.RecordBatch], target: pa.Schema, spec: PartitionSpec, extra: Sequence[pa.Field] = ()
) -> pa.Table:
    """The rows of a source with the target's columns, in its order and decoded types, and the `extra` ones."""
    schema = pa.schema([*prepared_schema(target, spec), *extra])
    return pa.Table.from_batches(list(as_target(batches, schema)), schema)


def prepared_schema(target: pa.Schema, spec: PartitionSpec) -> pa.Schema:
    """The schema of prepared source rows: columns of the path are strings, and all columns are nullable."""
    return pa.schema(
        pa.field(item.name, pa.string() if item.name in spec.path_only else item.type)
        for item in decoded_schema(target)
    )


def as_target(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches converted to the columns and types of a schema; missing columns are NULL."""
    for batch in batches:
        given = set(batch.schema.names)
        columns = [
            _as_type(batch.column(item.name), item) if item.name in given else pa.nulls(batch.num_rows, item.type)
            for item in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_type(column: pa.Array, field: pa.Field) -> pa.Array:
    return cast_column(_decoded(column, field), field)


def _decoded(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type != field.type and pat.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _fitting(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that a schema can hold, in its columns and types."""
    for batch in batches:
        found = [exact_values(_decoded(batch.column(item.name), item), item) for item in schema]
        rows = pa.RecordBatch.from_arrays([column for column, _ in found], schema=schema)
        yield rows.filter(functools.reduce(pc.and_, [fits for _, fits in found]))


def check_nulls(
    rows: pa.Table | pa.RecordBatch, target: pa.Schema, rules: MergeRules, given: Sequence[str]
) -> None:
    """Refuse NULLs in keys, unless these match, and in columns of the source that the target declares not null."""
    for name in () if rules.null_keys_match else rules.keys:
        if rows.column(name).null_count:
            raise null_keys(name, "source")
    for item in target:
        if not item.nullable and item.name in given and rows.column(item.name).null_count:
            raise InvalidArgument(
                f"the source has NULL values in {item.name!r}, which is declared not null in the target"
            )


def distinct(rows: pa.Table, rules: MergeRules, *, complete: bool = True) -> pa.Table:
    """The rows with distinct keys: duplicates are refused, or the last or highest row of a key is taken.

    Without `complete`, `rows` are not all rows of the source.
    """
    if have_different_values(rows, rules.keys[0]):
        return rows
    index = KeyIndex(rows, rules.keys, with_nulls=rules.null_keys_match)
    kept = distinct_rows(rows, rules, index, complete=complete)
    return rows if kept is None else rows.take(pa.array(kept))


def distinct_rows(rows: pa.Table, rules: MergeRules, index: KeyIndex, *, complete: bool = True) -> Indices | None:
    """The positions of the rows that `distinct` returns; None if all. `index` is an index of their keys.

    Without `complete`, `rows` are not all rows of the source, and have not all of its duplicates.
    """
    codes = index.codes
    counts = np.bincount(codes)
    if counts.max(initial=0) <= 1:
        return None
    if not rules.deduplicates:
        example = int(np.flatnonzero(codes == np.argmax(counts > 1))[0])
        key = {name: rows.column(name)[example].as_py() for name in rules.keys}
        raise duplicate_keys(rules.strategy, rules.keys, key, int((counts > 1).sum()), complete=complete)
    # Stable: equal rows stay in source order, and the last one wins.
    order = _ascending(rows, rules.order_by) if rules.order_by else np.arange(rows.num_rows)
    by_key = order[np.argsort(codes[order], kind="stable")]
    last = np.append(codes[by_key][1:] != codes[by_key][:-1], True)
    return np.sort(by_key[last])


def _ascending(rows: pa.Table, columns: Sequence[str]) -> Indices:
    """The positions of rows in ascending order, NULLs first, NaN last; the sort is stable."""
    keys = order_keys(rows, columns)
    ranked = {}
    for name in keys.column_names:
        column = keys.column(name)
        ranked[f"{name} known"] = pc.is_valid(column)
        if pat.is_floating(column.type):
            ranked[f"{name} nan"] = pc.fill_null(pc.is_nan(column), False)
        ranked[name] = column
    table = pa.table(ranked)
    found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _min_max(column: pa.ChunkedArray) -> dict[str, pa.Scalar]:
    """Minimum and maximum of values without NULLs, also of types that Arrow sorts but `min_max` refuses."""
    kind = column.type
    if pat.is_decimal(kind) and kind.bit_width < 128:
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    elif pat.is_duration(kind):
        column = column.cast(pa.int64())
    found = pc.min_max(column)
    return {end: found[end].cast(kind) for end in ("min", "max")}
