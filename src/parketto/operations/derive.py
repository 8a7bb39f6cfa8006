"""Partition columns of a write: columns of the rows, or SQL expressions over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import pyarrow as pa

from parketto.engines.base import Engine
from parketto.errors import InvalidArgument
from parketto.expressions.derived import DerivedColumns
from parketto.expressions.time_zones import Clock
from parketto.parquet.row_source import ArrowRows, RowSource

#: Names of columns, SQL expressions by the names of new columns, or both in one list.
PartitionBy: TypeAlias = str | Mapping[str, str] | Sequence[str | Mapping[str, str]]


def with_derived_columns(
    source: RowSource, partition_by: PartitionBy | None, engine: Engine, clock: Callable[[], Clock]
) -> tuple[RowSource, str | Sequence[str] | None]:
    """The rows with the partition columns that expressions define, and the names of all partition columns."""
    derived, names = derived_columns(partition_by, source.schema, clock)
    if derived is None:
        return source, names
    if isinstance(source, ArrowRows):
        return ArrowRows(derived.schema, _derived_batches(source, derived)), names
    return engine.derived(source, derived), names


def derived_columns(
    partition_by: PartitionBy | None, schema: pa.Schema, clock: Callable[[], Clock]
) -> tuple[DerivedColumns | None, str | Sequence[str] | None]:
    """The partition columns that expressions define, if any, and the names of all partition columns."""
    if partition_by is None or isinstance(partition_by, str):
        return None, partition_by
    items = [partition_by] if isinstance(partition_by, Mapping) else partition_by
    if not isinstance(items, Sequence):
        raise InvalidArgument(f"partition_by must be a list of column names, got {partition_by!r}")
    names: list[Any] = []
    expressions: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, Mapping):
            names.append(item)
            continue
        names += item
        expressions |= item
    if not expressions:
        return None, names
    for name, text in expressions.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument(
                f"partition_by maps {name!r} to {text!r}; expected an SQL expression such as 'CAST(ts AS DATE)'"
            )
    return DerivedColumns.of(expressions, schema, clock()), names


def _derived_batches(source: ArrowRows, derived: DerivedColumns) -> Any:
    if isinstance(source.batches, Sequence):
        return _DerivedBatches(source.batches, derived)
    return derived(iter(source.batches))


class _DerivedBatches(Sequence[pa.RecordBatch]):
    """Batches in memory with further columns, which are computed whenever a batch is read."""

    def __init__(self, batches: Sequence[pa.RecordBatch], derived: DerivedColumns) -> None:
        self._batches, self._derived = batches, derived

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, at: int) -> pa.RecordBatch: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[pa.RecordBatch]: ...

    def __getitem__(self, at: int | slice) -> pa.RecordBatch | Sequence[pa.RecordBatch]:
        if isinstance(at, slice):
            return _DerivedBatches(self._batches[at], self._derived)
        return self._derived.added(self._batches[at])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self._derived.added, self._batches)
