"""Which files DuckDB's own scan gives exactly as they are; the others reach it through Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from parketto.engines.duckdb.session import Session, quoted_name
from parketto.kernels.carrier import carrier_type, is_plain
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import travel_name
from parketto.storage.calendars import OldCalendar
from parketto.storage.footers import FileInfo
from parketto.storage.store import Store

#: Columns that a scan adds: where a row is from.
FILE_NAME, FILE_ROW = "filename", "file_row_number"
# DuckDB takes paths for patterns.
_SPECIAL = frozenset("*?[]{}")
_CODECS = frozenset({"snappy", "gzip", "zstd", "lz4", "brotli", "none", None})
#: How many digits DuckDB's decimals have at most.
MAX_PRECISION = 38


def can_scan(rows: FileRows) -> bool:
    """Whether DuckDB's own scan gives exactly these columns of these files."""
    schema = rows.schema
    return (
        bool(rows.files)
        and not any(name in rows.form.path_only for name in schema.names)
        and all(is_exact(carrier_type(kind)) for kind in schema.types)
        and all(can_open(rows.store, file) for file in rows.files)
    )


def can_open(store: Store, file: FileInfo) -> bool:
    """Whether DuckDB finds a file, and its columns by their names."""
    names = [] if file.schema is None else file.schema.names
    return (
        store.local_path(file.path) is not None
        and not _SPECIAL.intersection(file.path)
        and file.codecs <= _CODECS
        and not file.traits.int96_timestamps
        and not any(OldCalendar.of(file.metadata))
        # DuckDB cannot name a column that has no name.
        and "" not in names
        # It does not tell upper from lower case, and adds two columns of its own.
        and len({FILE_NAME, FILE_ROW, *(name.lower() for name in names)}) == len(names) + 2
    )


def is_exact(kind: pa.DataType) -> bool:
    """Whether DuckDB has the values of a type as they are in the file."""
    if pat.is_timestamp(kind):
        return bool(kind.unit == "us" or (kind.unit == "ns" and kind.tz is None))
    if pat.is_decimal(kind):
        return bool(kind.precision <= MAX_PRECISION and 0 <= kind.scale <= kind.precision)
    return is_plain(kind)


def view_files(session: Session, name: str, store: Store, files: Sequence[FileInfo]) -> None:
    """Let queries read files by DuckDB's own scan, with the columns that say where a row is from."""
    session.view_files(
        name, local_paths(store, files), hive_partitioning=False, filename=True, file_row_number=True
    )


def local_paths(store: Store, files: Sequence[FileInfo]) -> list[str]:
    """The paths of files on the local disk."""
    return [store.local_path(file.path) or file.path for file in files]


def numbered(schema: pa.Schema, columns: Sequence[str]) -> str:
    """Columns of a view under the names by which they travel."""
    return ", ".join(f"{quoted_name(name)} AS {travel_name(schema.get_field_index(name))}" for name in columns)
