"""Validation of arguments before any data is read: thresholds, codecs, column names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from parketto.errors import ColumnNotFound, InvalidArgument, quoted

DEFAULT_TARGET_MB = 128
MEGABYTE = 1024 * 1024
CODECS = ("snappy", "gzip", "lz4", "zstd", "brotli", "none")
DEFAULT_CODEC = "snappy"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The target size of files. Weights are exact integers, so planning is deterministic.

    A file's weight relative to `capacity` is how full it is, by bytes or by rows, whichever is more.
    """

    target_bytes: int | None
    target_rows: int | None

    @classmethod
    def of(cls, target_mb_per_file: float | None, target_rows_per_file: int | None) -> Thresholds:
        """The validated thresholds; without either argument the target is 128 MB.

        >>> Thresholds.of(None, None).target_bytes == 128 * 1024 * 1024
        True
        """
        megabytes = _positive("target_mb_per_file", target_mb_per_file)
        rows = _whole("target_rows_per_file", target_rows_per_file)
        if megabytes is None and rows is None:
            megabytes = DEFAULT_TARGET_MB
        return cls(
            None if megabytes is None else max(1, int(megabytes * MEGABYTE)),
            rows,
        )

    @property
    def capacity(self) -> int:
        """The weight of a file that is exactly full."""
        return (self.target_bytes or 1) * (self.target_rows or 1)

    def weight(self, size_bytes: int, num_rows: int) -> int:
        """The weight of a file of this size, to compare with `capacity`."""
        if self.target_rows is None:
            return size_bytes
        if self.target_bytes is None:
            return num_rows
        return max(size_bytes * self.target_rows, num_rows * self.target_bytes)

    def is_light(self, weight: int) -> bool:
        """Whether a file of this weight is at most half full, so that two of them fit into one."""
        return 2 * weight <= self.capacity

    def files_needed(self, size_bytes: int, num_rows: int) -> int:
        """The number of files that this amount of data fills."""
        return max(1, -(-self.weight(size_bytes, num_rows) // self.capacity))


@dataclass(frozen=True, slots=True)
class CompactionScope:
    """Which files a compaction may merge: by default all.

    Partitions with fewer than `min_file_count` files are skipped. With `max_file_bytes` only smaller files count,
    and only these are merged.
    """

    min_file_count: int = 1
    max_file_bytes: int | None = None

    @classmethod
    def of(cls, min_file_count: int, max_file_size_mb: float | None) -> CompactionScope:
        """The validated scope.

        >>> CompactionScope.of(5, 20)
        CompactionScope(min_file_count=5, max_file_bytes=20971520)
        """
        count = _whole("min_file_count", min_file_count)
        if count is None:
            raise InvalidArgument("min_file_count must be a whole number greater than 0, got None")
        megabytes = _positive("max_file_size_mb", max_file_size_mb)
        return cls(count, None if megabytes is None else max(1, int(megabytes * MEGABYTE)))

    def admits(self, size_bytes: int) -> bool:
        """Whether a file of this size is small enough."""
        return self.max_file_bytes is None or size_bytes < self.max_file_bytes


def _positive(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value) or value <= 0:
        raise InvalidArgument(f"{name} must be greater than 0, got {value!r}")
    return value


def _whole(name: str, value: float | None) -> int | None:
    number = _positive(name, value)
    if number is not None and number != int(number):
        raise InvalidArgument(f"{name} must be a whole number, got {value!r}")
    return None if number is None else int(number)


def check_positive_integer(name: str, value: object) -> None:
    """Raise unless a setting is None or an integer of at least 1."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidArgument(f"{name} must be a whole number greater than 0, got {value!r}")


def check_max_rows(max_rows_per_file: int | None) -> int | None:
    """The validated row limit per file: an integer of at least 1, or None."""
    return _whole("max_rows_per_file", max_rows_per_file)


def check_codec(compression: object) -> str | None:
    """The codec's name in lower case, or None to keep the codec of the files."""
    if compression is None:
        return None
    name = compression.lower() if isinstance(compression, str) else ""
    if name == "uncompressed":
        return "none"
    if name not in CODECS:
        raise InvalidArgument(f"unknown compression {compression!r}; valid codecs: {quoted(CODECS)}")
    return name


def check_names(argument: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The validated column names: distinct, and at least one."""
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidArgument(f"{argument} must be a list of column names, got {columns!r}")
    if not columns:
        raise InvalidArgument(f"{argument} is empty: name at least one column")
    names: list[object] = list(columns)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InvalidArgument(f"{argument} must be column names, got {quoted(wrong)}")
    if len(set(columns)) < len(columns):
        raise InvalidArgument(f"{argument} names a column twice: {quoted(columns)}")
    return tuple(columns)


def check_columns_exist(
    columns: Sequence[str], schema: pa.Schema, what: str = "columns", partition_columns: Sequence[str] = ()
) -> None:
    """Raise an error that lists missing and available columns, unless all columns are in the schema."""
    missing = [name for name in columns if name not in schema.names]
    if only_in_path := [name for name in missing if name in partition_columns]:
        raise InvalidArgument(
            f"{quoted(only_in_path)}: a partition column that exists only in the path has one value per file, "
            f"so it cannot order rows; available columns: {quoted(schema.names)}"
        )
    if missing:
        raise ColumnNotFound(missing, schema.names, what)
    if ambiguous := [name for name in columns if schema.names.count(name) > 1]:
        raise InvalidArgument(f"{what} are ambiguous: the data has duplicate column names {quoted(ambiguous)}")
