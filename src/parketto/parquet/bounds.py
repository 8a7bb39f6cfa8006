"""Bounds (min/max statistics) from footers as values of the columns' own types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.calendars import OldCalendar
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def leaf_index(schema: pa.Schema, column: str) -> int:
    """The position of a column's first leaf among the Parquet leaf columns."""
    position = schema.get_field_index(column)
    return sum(_leaves(kind) for kind in schema.types[:position])


def _leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.DictionaryType) or kind.num_fields == 0:
        return 1
    return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))


def bounds(file: FileInfo, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The smallest and the largest value of a column in a file; None if unknown or not trustworthy.

    Floating-point columns have none: their bounds ignore NaN.
    """
    kind = _value_type(file, column)
    return None if kind is None or pat.is_floating(kind) else _typed(file, column, kind, file.column_stats(column))


def row_group_bounds(file: FileInfo, group: RowGroupInfo, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The smallest and the largest value of a column in a row group, NaN ignored; None if unknown."""
    kind, stats = _value_type(file, column), group.columns.get(column)
    return None if kind is None or stats is None else _typed(file, column, kind, stats)


def typed_bounds(file: FileInfo, column: str, values: Sequence[Any]) -> pa.Array | None:
    """Bounds of row groups, from files of the same format, in the column's own type; None if not convertible."""
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
    assert file.schema is not None, "the schema is known"
    written = _written_type(kind, file.traits.leaves[leaf_index(file.schema, column)])
    limit = OldCalendar.of(file.metadata).limit(written, int96=(column, 0) in file.traits.int96)
    if limit is not None and any(value is not None and value < limit for value in values):
        return None  # legacy-calendar values cannot be compared
    try:
        return pa.array(values, written).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError):
        return None


def _written_type(kind: pa.DataType, leaf: str) -> pa.DataType:
    """The type of the stored value: Parquet's time unit may differ from Arrow's."""
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
