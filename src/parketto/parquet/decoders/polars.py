"""Decodes whole row groups with Polars, into the batches that Arrow's reader returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from parketto.parquet.codec import WORKLOAD, are_plain, forced, knows_zones, may_use_polars
from parketto.parquet.compatible import ASSEMBLED_BY
from parketto.parquet.footer import MAGIC
from parketto.parquet.page_index import has_checksums
from parketto.parquet.row_ranges import Ranges

if TYPE_CHECKING:
    import polars as pl

    from parketto.parquet.file_info import FileInfo

# A call of Polars takes as long as Arrow needs for about this many numbers. A string counts as several.
_MIN_VALUES = 300_000
_STRING_VALUES = 6


class Undecoded(Exception):
    """Polars has not decoded the rows; Arrow must, and reports what is wrong with them."""


class MemoryFile(pa.BufferReader):  # type: ignore[misc]
    """A file in memory, whose bytes other libraries read without a copy."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content


def suits_polars(schema: pa.Schema, stored: pa.Schema, num_rows: int) -> bool:
    """Whether Polars decodes some columns of a file exactly, and faster than Arrow unless it is forced."""
    texts = sum(not pat.is_primitive(kind) for kind in schema.types)
    values = num_rows * (len(schema) + texts * (_STRING_VALUES - 1))
    return (
        num_rows > 0
        and (values >= _MIN_VALUES or forced() == "polars")
        and are_plain(schema)
        and knows_zones(stored.types)
        and may_use_polars()
        and WORKLOAD.pays(8 * values)
    )


def may_have_checksums(source: IO[bytes], file: FileInfo, metadata: pq.FileMetaData | None = None) -> bool:
    """Whether pages of a file may have checksums: Polars would not verify them.

    The first page of a file decides. If its column chunks come from several files, the first page of each does:
    writers give checksums to all pages of a chunk or to none. Without their metadata, the file may have some.
    """
    if not file.created_by.startswith(ASSEMBLED_BY):
        return has_checksums(source, len(MAGIC), file.size_bytes)
    if metadata is None:
        return True
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    return any(has_checksums(source, _start(chunk), file.size_bytes) for chunk in chunks if chunk.num_values)


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """The offset of a column chunk. An offset of 0, or behind the first data page, means no dictionary."""
    first, dictionary = int(chunk.data_page_offset), int(chunk.dictionary_page_offset or 0)
    return dictionary if 0 < dictionary < first else first


def decode(source: Any, ranges: Ranges, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a file, in batches of a schema.

    Args:
        source: The file: a `MemoryFile`, or one with a file descriptor.
        ranges: The rows, by their numbers in the file. Those of one range are in memory at a time.
        schema: The columns, in the order and with the types of the file.
        batch_rows: The maximum rows of a batch.

    Raises:
        Undecoded: Polars cannot decode the next rows.
    """
    for start, end in ranges:
        rows = _frame(source, start, end, schema.names).to_arrow(compat_level=_newest())
        if rows.num_rows != end - start:
            raise Undecoded("Polars has found fewer rows")
        for batch in rows.to_batches(max_chunksize=batch_rows):
            yield _exact(batch, schema)


def _frame(source: Any, start: int, end: int, names: Sequence[str]) -> pl.DataFrame:
    try:
        import polars as pl
        import polars.selectors as cs
        from polars.exceptions import PanicException, PolarsError
    except ImportError as error:  # the installation is broken; Arrow needs nothing of it
        raise Undecoded(str(error)) from error
    try:
        rows = pl.scan_parquet(
            _given(source), glob=False, hive_partitioning=False, use_statistics=False, cache=False, parallel="none"
        )
        return rows.select(cs.by_name(*names)).slice(start, end - start).collect()
    except (PolarsError, PanicException, OSError) as error:
        raise Undecoded(str(error)) from error
    except KeyboardInterrupt as error:
        # Polars checks for signals in all threads. Python raises them in the main one only, if at all.
        if threading.current_thread() is threading.main_thread():
            raise
        raise Undecoded("interrupted") from error


def _given(source: Any) -> str | bytes:
    """What Polars reads: the same open file, not what may have replaced it at its path."""
    return source.content if isinstance(source, MemoryFile) else f"/dev/fd/{source.fileno()}"


def _newest() -> pl.CompatLevel:
    import polars as pl

    return pl.CompatLevel.newest()


def _exact(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of the schema. Polars has strings as views."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if column.type != field.type:
            text = pat.is_string_view(column.type) and (
                pat.is_string(field.type) or pat.is_large_string(field.type)
            )
            binary = pat.is_binary_view(column.type) and (
                pat.is_binary(field.type) or pat.is_large_binary(field.type)
            )
            if not (text or binary):
                raise Undecoded(f"column {field.name!r} has type {column.type}, not {field.type}")
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:  # too long for the offsets of the type
                raise Undecoded(str(error)) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
