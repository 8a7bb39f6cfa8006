"""Decides which files DuckDB's own scan reads exactly; Arrow reads the others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from parketto.engines.duckdb.session import Session, quoted_name
from parketto.parquet.calendars import OldCalendar
from parketto.parquet.decoded_types import decoded_type, is_plain
from parketto.parquet.exchange_types import exchange_name
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_source import FileRows
from parketto.storage.store import Store

#: Columns that a scan adds: the file and the number of a row.
FILE_NAME, FILE_ROW = "filename", "file_row_number"
# Characters in paths that DuckDB interprets as glob patterns.
_SPECIAL = frozenset("*?[]{}")
_CODECS = frozenset({"snappy", "gzip", "zstd", "lz4", "brotli", "none", None})
#: Maximum precision of DuckDB's decimals.
MAX_PRECISION = 38


def can_scan(rows: FileRows) -> bool:
    """Whether DuckDB's own scan returns exactly these columns of these files."""
    schema = rows.schema
    return (
        bool(rows.files)
        and not any(name in rows.spec.path_only for name in schema.names)
        and all(is_exact(decoded_type(kind)) for kind in schema.types)
        and all(can_open(rows.store, file) for file in rows.files)
    )


def can_open(store: Store, file: FileInfo) -> bool:
    """Whether DuckDB can open a file, and find its columns by name."""
    names = [] if file.schema is None else file.schema.names
    return (
        store.local_path(file.path) is not None
        and file.has_stored_types
        and not _SPECIAL.intersection(file.path)
        and file.codecs <= _CODECS
        and not file.traits.int96_timestamps
        and not any(OldCalendar.of(file.metadata))
        # DuckDB cannot select a column with an empty name.
        and "" not in names
        # It ignores case, and adds two columns of its own.
        and len({FILE_NAME, FILE_ROW, *(name.lower() for name in names)}) == len(names) + 2
    )


def is_exact(kind: pa.DataType) -> bool:
    """Whether DuckDB reads the values of a type exactly."""
    if pat.is_timestamp(kind):
        return bool(kind.unit == "us" or (kind.unit == "ns" and kind.tz is None))
    if pat.is_decimal(kind):
        return bool(kind.precision <= MAX_PRECISION and 0 <= kind.scale <= kind.precision)
    return is_plain(kind)


def view_files(session: Session, name: str, store: Store, files: Sequence[FileInfo]) -> None:
    """Create a view of DuckDB's own scan of files, with columns for the file and number of each row."""
    session.view_files(
        name, local_paths(store, files), hive_partitioning=False, filename=True, file_row_number=True
    )


def local_paths(store: Store, files: Sequence[FileInfo]) -> list[str]:
    """The paths of files on the local disk."""
    return [store.local_path(file.path) or file.path for file in files]


def numbered(schema: pa.Schema, columns: Sequence[str]) -> str:
    """The SELECT list of a view's columns under their exchange names."""
    return ", ".join(f"{quoted_name(name)} AS {exchange_name(schema.get_field_index(name))}" for name in columns)
