"""Encodes one row group in memory with Polars, as the same file that Arrow would write."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import FooterError
from parketto.parquet.appender import RowGroupAppender
from parketto.parquet.codec import WORKLOAD, PolarsFailed, forced, have_twins, may_use_polars, polars_failures
from parketto.parquet.column_metadata import MIN_TRUNCATED_BYTES

if TYPE_CHECKING:
    from parketto.parquet.file_format import FileFormat

# About 32,000 numbers: few enough for a useful page index. Smaller pages take longer to write.
PAGE_BYTES = 256 * 1024
# Codecs that Polars compresses as Arrow does: names, and levels where there are several.
Codec: TypeAlias = Literal["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"]
CODECS: dict[str, tuple[Codec, int | None]] = {
    "none": ("uncompressed", None),
    "snappy": ("snappy", None),
    "lz4": ("lz4", None),
    "zstd": ("zstd", 1),
}
# In fewer rows, a call of Polars and another footer take longer than its encoding saves.
_MIN_ROWS = 64 * 1024


def _pays(kind: pa.DataType) -> bool:
    """Whether Polars encodes rows of a type faster than Arrow, from Arrow's memory.

    Strings would be converted first. Polars never makes a dictionary of floats, which are smaller with one.
    """
    return bool(pat.is_integer(kind) or pat.is_boolean(kind) or pat.is_date32(kind) or pat.is_timestamp(kind))


def _has_whole_bounds(column: pa.ChunkedArray) -> bool:
    """Whether Polars writes bounds as they are. It truncates long ones, which Arrow keeps, or leaves out."""
    if pat.is_primitive(column.type):
        return True
    longest = pc.max(pc.binary_length(column)).as_py()
    return longest is None or longest < MIN_TRUNCATED_BYTES


def polars_columns(file_format: FileFormat, rows: pa.Table) -> list[bool]:
    """Which columns Polars encodes as Arrow does, and faster unless it is forced."""
    traits = file_format.traits
    everywhere = forced() == "polars"
    if (
        not (everywhere or rows.num_rows >= _MIN_ROWS)
        or not rows.num_rows
        or file_format.codec not in CODECS
        or traits.int96_timestamps
        or traits.annotations
        or not may_use_polars()
        or len(set(rows.schema.names)) < rows.num_columns
    ):
        return [False] * rows.num_columns
    stored = file_format.schema
    readable = file_format.readable_as or stored
    return [
        (everywhere or _pays(column.type))
        and stored.field(at).nullable
        and have_twins((column.type, readable.field(at).type))
        and _has_whole_bounds(column)
        for at, column in enumerate(rows.columns)
    ]


def suits_polars(file_format: FileFormat, rows: pa.Table) -> bool:
    """Whether Polars encodes all columns as Arrow does, and faster unless it is forced."""
    return not file_format.order_by and all(polars_columns(file_format, rows))


def encode_rows(file_format: FileFormat, rows: pa.Table) -> pa.Buffer | None:
    """A whole file in memory, with the rows as one row group; None if Arrow must encode them."""
    if not suits_polars(file_format, rows) or not WORKLOAD.pays(rows.nbytes):
        return None
    name, level = CODECS[file_format.codec]
    file = io.BytesIO()
    try:
        rows.validate(full=True)  # Polars trusts text to be UTF-8
        with polars_failures():
            import polars as pl

            frame = pl.from_arrow(rows, rechunk=False)
            assert isinstance(frame, pl.DataFrame), "it is made of a table"
            frame.write_parquet(
                file,
                compression=name,
                compression_level=level,
                row_group_size=rows.num_rows,
                data_page_size=PAGE_BYTES,
            )
        file.seek(0)
        take_over(file, file_format, rows.num_rows)
    except (PolarsFailed, FooterError, pa.ArrowInvalid):
        return None
    return pa.py_buffer(file.getbuffer())


def take_over(file: IO[bytes], file_format: FileFormat, num_rows: int) -> None:
    """Replace the footer of a file that Polars has written by the one that Arrow would have written."""
    with RowGroupAppender(file, same_arrow_schema=lambda _one, _other: True) as out:
        out.take_over(file_format.empty_footer)
        if out.num_rows != num_rows:
            raise FooterError(f"{out.num_rows} rows were written of {num_rows}")
        out.finish(file_format.metadata)
