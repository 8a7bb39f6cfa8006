"""Bounds from footers as values of the columns' own types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.storage.calendars import OldCalendar
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import ColumnStats, RowGroupInfo

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def leaf_index(schema: pa.Schema, column: str) -> int:
    """The position of a column among the leaves of the schema, which is how Parquet counts."""
    position = schema.get_field_index(column)
    return sum(_leaves(kind) for kind in schema.types[:position])


def _leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.DictionaryType) or kind.num_fields == 0:
        return 1
    return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))


def bounds(file: FileInfo, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The smallest and the largest value of a column in a file, or None if that cannot be trusted or is not known.

    The bounds of floating-point columns say nothing about NaN, so there are none.
    """
    kind = _value_type(file, column)
    return None if kind is None or pat.is_floating(kind) else _typed(file, column, kind, file.column_stats(column))


def row_group_bounds(file: FileInfo, group: RowGroupInfo, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The smallest and the largest value of a column in a row group, or None if unknown; NaN is neither."""
    kind, stats = _value_type(file, column), group.columns.get(column)
    return None if kind is None or stats is None else _typed(file, column, kind, stats)


def typed_bounds(file: FileInfo, column: str, values: Sequence[Any]) -> pa.Array | None:
    """Bounds of row groups, of files like this one, as values of the column's own type; None if they are none."""
    kind = _value_type(file, column)
    return None if kind is None else _cast(file, column, kind, values)


def _value_type(file: FileInfo, column: str) -> pa.DataType | None:
    if file.schema is None:
        return None
    kind = file.schema.field(column).type
    if pat.is_dictionary(kind):
        kind = kind.value_type
    return None if kind.num_fields else kind


def _typed(
    file: FileInfo, column: str, kind: pa.DataType, stats: ColumnStats
) -> tuple[pa.Scalar, pa.Scalar] | None:
    found = None if stats.min is None else _cast(file, column, kind, [stats.min, stats.max])
    return None if found is None else (found[0], found[1])


def _cast(file: FileInfo, column: str, kind: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    assert file.schema is not None, "its type is known"
    written = _written_type(kind, file.traits.leaves[leaf_index(file.schema, column)])
    first = OldCalendar.of(file.metadata).limit(written, int96=(column, 0) in file.traits.int96)
    if first is not None and any(value is not None and value < first for value in values):
        return None  # by another calendar than the one that they would be compared in
    try:
        return pa.array(values, written).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError):
        return None


def _written_type(kind: pa.DataType, leaf: str) -> pa.DataType:
    """The type of the raw value: Parquet's unit may be another than Arrow's."""
    if pat.is_date(kind):
        return pa.date32()
    unit = next((short for name, short in _UNITS.items() if name in leaf), None)
    if unit is None:
        return kind
    if pat.is_timestamp(kind):
        return pa.timestamp(unit, kind.tz)
    if pat.is_time(kind):
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)
    return kind
