"""Decodes whole row groups with Polars, into the batches that Arrow's reader returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.codec import (
    WORKLOAD,
    PolarsFailed,
    are_plain,
    forced,
    knows_zones,
    may_use_polars,
    polars_failures,
)
from parketto.parquet.decoders.sound_pages import MemoryFile
from parketto.parquet.row_ranges import Ranges

if TYPE_CHECKING:
    import polars as pl

# A call of Polars takes as long as Arrow needs for about this many numbers. A string counts as several.
_MIN_VALUES = 300_000
_STRING_VALUES = 6


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


def decode(source: Any, ranges: Ranges, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a file, in batches of a schema.

    Args:
        source: The file: a `MemoryFile`, or one with a file descriptor.
        ranges: The rows, by their numbers in the file. Those of one range are in memory at a time.
        schema: The columns, in the order and with the types of the file.
        batch_rows: The maximum rows of a batch.

    Raises:
        PolarsFailed: Polars cannot decode the next rows.
    """
    for start, end in ranges:
        rows = _frame(source, start, end, schema.names).to_arrow(compat_level=_newest())
        if rows.num_rows != end - start:
            raise PolarsFailed("Polars has found fewer rows")
        for batch in rows.to_batches(max_chunksize=batch_rows):
            yield _exact(batch, schema)


def _frame(source: Any, start: int, end: int, names: Sequence[str]) -> pl.DataFrame:
    with polars_failures():
        import polars as pl
        import polars.selectors as cs

        rows = pl.scan_parquet(
            _given(source), glob=False, hive_partitioning=False, use_statistics=False, cache=False, parallel="none"
        )
        return rows.select(cs.by_name(*names)).slice(start, end - start).collect()


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
                raise PolarsFailed(f"column {field.name!r} has type {column.type}, not {field.type}")
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:  # too long for the offsets of the type
                raise PolarsFailed(str(error)) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
