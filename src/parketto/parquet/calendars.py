"""Refuses dates and timestamps that Spark wrote in its legacy calendar.

Spark 2.4, and newer versions in LEGACY mode, write dates before 15 October 1582 in the Julian calendar, and
timestamps before 1900 with the local times of older Java versions. Such files are marked, and only Spark converts
these values on read. Later values are the same in both calendars. So only old values are refused: where they would
be compared, and where new ones would be misread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument, UnreadableFile
from parketto.parquet.compatible import LEGACY_DATES, LEGACY_INT96, SPARK_CALENDAR_CHANGES, SPARK_VERSION
from parketto.parquet.int96 import leaf_names, leaf_types

# Since the epoch. From here on both calendars agree: 1582-10-15, and 1900-01-01T00:00:00Z in any time zone.
_FIRST_DAY = -141_427
_FIRST_SECOND = -2_208_988_800
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class OldCalendar(NamedTuple):
    """Which values of a file are in the legacy calendar: dates and timestamps, INT96 timestamps."""

    dates: bool = False
    int96: bool = False

    @classmethod
    def of(cls, notes: Mapping[bytes, bytes] | None) -> OldCalendar:
        """The calendar that a file's key-value metadata declares.

        >>> OldCalendar.of({b"org.apache.spark.version": b"3.0.1", b"org.apache.spark.legacyDateTime": b""})
        OldCalendar(dates=True, int96=True)
        """
        version = (notes or {}).get(SPARK_VERSION)
        if notes is None or version is None:  # Spark ignores the markers of other writers
            return cls()
        first, second = SPARK_CALENDAR_CHANGES
        return cls(version < first or LEGACY_DATES in notes, version < second or LEGACY_INT96 in notes)

    def limit(self, kind: pa.DataType, *, int96: bool = False) -> int | None:
        """The first value of a type that is equal in both calendars, as a number; None if all are."""
        if int96:
            return _FIRST_SECOND * _PER_SECOND[kind.unit] if self.int96 else None
        if pat.is_date32(kind):
            return _FIRST_DAY if self.dates else None
        # Spark never wrote timestamps without a time zone in the legacy calendar.
        return (
            _FIRST_SECOND * _PER_SECOND[kind.unit] if self.dates and pat.is_timestamp(kind) and kind.tz else None
        )


class CalendarCheck:
    """Finds legacy-calendar values in rows of a file, or in rows about to be written with its metadata.

    Args:
        schema: The columns of the rows, in any order.
        notes: The file's key-value metadata.
        int96: The leaves that are INT96 timestamps.
    """

    def __init__(
        self, schema: pa.Schema, notes: Mapping[bytes, bytes] | None, int96: Collection[tuple[str, int]]
    ) -> None:
        calendar = OldCalendar.of(notes)
        self._limits: dict[str, list[int | None]] = {}
        if not any(calendar):
            return
        kinds = [kind for item in schema for kind in leaf_types(item.type)]
        for leaf, kind in zip(leaf_names(schema), kinds, strict=True):
            limit = calendar.limit(kind, int96=leaf in int96)
            self._limits.setdefault(leaf[0], []).append(limit)
        self._limits = {
            name: limits for name, limits in self._limits.items() if any(limit is not None for limit in limits)
        }

    @property
    def limits_any(self) -> bool:
        """Whether the values of any column must be checked."""
        return bool(self._limits)

    def old_column(self, rows: pa.RecordBatch | pa.Table) -> str | None:
        """The first column with a value that differs between the calendars, if any."""
        for name, limits in self._limits.items():
            if name not in rows.schema.names:
                continue
            column = rows.column(name)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                for leaf, limit in zip(_leaves([chunk]), limits, strict=True):
                    if limit is not None and _min_value(leaf, limit) < limit:
                        return name
        return None

    def refuse_read(self, path: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Raise if values that were read from a file would be misinterpreted."""
        if self._limits and (name := self.old_column(rows)) is not None:
            raise UnreadableFile(
                path,
                f"column {name!r} has dates before 1582-10-15, or timestamps before 1900, in Spark's legacy "
                f"calendar (LEGACY), which only Spark converts; {_ADVICE}",
            )

    def refuse_written(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Raise if rows would be misread in a file of the legacy calendar."""
        if self._limits and (name := self.old_column(rows)) is not None:
            raise InvalidArgument(
                f"column {name!r} would get dates before 1582-10-15, or timestamps before 1900, in a file that "
                "Spark reads in its legacy calendar (LEGACY), and would be misread. Nothing was changed; "
                f"{_ADVICE}"
            )


_ADVICE = (
    "rewrite the dataset with Spark first, with spark.sql.parquet.datetimeRebaseModeInWrite and "
    "spark.sql.parquet.int96RebaseModeInWrite set to CORRECTED"
)


def _min_value(values: pa.Array, default: int) -> int:
    number = pa.int32() if pat.is_date32(values.type) else pa.int64()
    found = pc.min(values.view(number)).as_py()
    return default if found is None else int(found)


def _leaves(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """The values of leaves in Parquet order, without those below a NULL."""
    for array in arrays:
        if isinstance(array, pa.ExtensionArray):
            yield from _leaves([array.storage])
        elif pat.is_struct(array.type):
            yield from _leaves(array.flatten())
        elif pat.is_map(array.type):
            entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field]))).flatten()
            yield from _leaves(entries.flatten())
        elif pat.is_nested(array.type):
            yield from _leaves([array.flatten()])
        else:
            yield array
