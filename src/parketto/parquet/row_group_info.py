"""The metadata of row groups, read from a Parquet footer."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from parketto.display import counted, readable_bytes

_TEMPORAL = frozenset({"DATE", "TIME", "TIMESTAMP"})
_TEXT = frozenset({"STRING", "ENUM", "JSON"})
#: The deprecated LZ4 codec, which Spark writes for "lz4". Arrow reads it, but never writes it.
HADOOP_LZ4 = "lz4_hadoop"
#: The codecs that can be written, with their numbers in footers.
CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
CODECS_BY_NUMBER = {5: HADOOP_LZ4, **{number: name for name, number in CODECS.items()}}
# Hadoop's LZ4 is the only readable codec that has no name in PyArrow.
_CODEC_NAMES = {"uncompressed": "none", "unknown": HADOOP_LZ4}


def writable_codec(codec: str | None) -> str | None:
    """The codec with which Arrow rewrites files of a codec."""
    return "lz4" if codec == HADOOP_LZ4 else codec


class ColumnStats(NamedTuple):
    """Bounds of a column in a row group or a file; None where the writer recorded none.

    Dates and times are integers as in the file (days, or units of the column's type): Python's own types can
    represent neither nanoseconds nor every year.
    """

    min: Any
    max: Any
    null_count: int | None


UNKNOWN_STATS = ColumnStats(None, None, None)
# One mapping for all row groups without bounds: with a million files, one for each would take 64 MB.
NO_COLUMNS: Mapping[str, ColumnStats] = {}


@dataclass(frozen=True, slots=True)
class RowGroupInfo:
    """A row group: row count, uncompressed bytes, declared sort order, column bounds, and codec."""

    num_rows: int
    total_byte_size: int
    sorted_by: tuple[str, ...] = ()
    columns: Mapping[str, ColumnStats] = field(default_factory=lambda: NO_COLUMNS)
    codec: str | None = None

    def __repr__(self) -> str:
        bounds = f", bounds of {counted(len(self.columns), 'column')}" if self.columns else ""
        return f"<RowGroupInfo: {counted(self.num_rows, 'row')}, {readable_bytes(self.total_byte_size)}{bounds}>"


def read_row_groups(
    footer: pq.FileMetaData, names: Mapping[int, str], wanted: Mapping[str, int]
) -> tuple[RowGroupInfo, ...]:
    """The row groups of a file.

    Args:
        footer: The file's footer.
        names: Top-level columns by leaf number.
        wanted: The leaf numbers of the columns whose bounds to read.
    """
    groups = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = {name: _column_stats(group.column(index)) for name, index in wanted.items()}
        groups.append(
            RowGroupInfo(
                num_rows=group.num_rows,
                total_byte_size=group.total_byte_size,
                sorted_by=_declared_order(group, names),
                columns=columns or NO_COLUMNS,
                codec=_codec(group),
            )
        )
    return tuple(groups)


def _codec(group: pq.RowGroupMetaData) -> str | None:
    if group.num_columns == 0:
        return None
    # Columns almost always share one codec, so a few of them are enough.
    last = group.num_columns - 1
    codecs = [group.column(index).compression for index in {0, last}]
    if len(set(codecs)) > 1:
        codecs.append(group.column(last // 2).compression)
    codec = str(max(codecs, key=codecs.count)).lower()
    return _CODEC_NAMES.get(codec, codec)


def _declared_order(group: pq.RowGroupMetaData, names: Mapping[int, str]) -> tuple[str, ...]:
    declared = []
    for column in group.sorting_columns:
        if column.descending or column.nulls_first or column.column_index not in names:
            break
        declared.append(names[column.column_index])
    return tuple(declared)


def _column_stats(column: pq.ColumnChunkMetaData) -> ColumnStats:
    stats = column.statistics
    if stats is None:
        return UNKNOWN_STATS
    low, high = _bounds(stats) if stats.has_min_max else (None, None)
    if low != low or high != high:  # some writers record NaN as a bound
        low = high = None
    return ColumnStats(low, high, stats.null_count if stats.has_null_count else None)


def _bounds(stats: pq.Statistics) -> tuple[Any, Any]:
    kind = stats.logical_type.type
    if kind in _TEMPORAL:
        return stats.min_raw, stats.max_raw
    if kind in _TEXT:
        try:
            return bytes(stats.min_raw).decode(), bytes(stats.max_raw).decode()
        except UnicodeDecodeError:  # a writer may have truncated a bound within a character
            return None, None
    if kind == "FLOAT16":
        return struct.unpack("<e", stats.min_raw)[0], struct.unpack("<e", stats.max_raw)[0]
    return stats.min, stats.max
