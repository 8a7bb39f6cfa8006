"""Feeds rows to DuckDB, as Arrow streams of exchange columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from parketto.engines.duckdb.session import Session
from parketto.merge.source import as_target
from parketto.parquet.exchange_types import ExtraColumns, exchange_schema, to_exchange_with
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.runtime.task import Worker


def feed_rows(
    session: Session,
    name: str,
    rows: ArrowRows | FileRows,
    schema: pa.Schema,
    worker: Worker,
    added: ExtraColumns | None = None,
    added_fields: Sequence[pa.Field] = (),
    *,
    only: Sequence[int] | None = None,
) -> None:
    """Register rows, which queries can read once, as columns `c0`, `c1`, …, and the columns of `added`.

    Args:
        session: The connection to register them in.
        name: The table name in queries.
        rows: The rows.
        schema: The columns to read, in decoded types.
        worker: The resources to read with.
        added: Computes further columns (see `to_exchange_with`).
        added_fields: The names and types of these columns.
        only: The positions of the files to read; by default all.
    """
    exchanged = pa.schema([*exchange_schema(schema), *added_fields])
    session.feed(name, exchanged, worker.until_cancelled(_batches(rows, schema, exchanged, worker, added, only)))


def _batches(
    rows: ArrowRows | FileRows,
    schema: pa.Schema,
    exchanged: pa.Schema,
    worker: Worker,
    added: ExtraColumns | None,
    only: Sequence[int] | None,
) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, ArrowRows):
        yield from to_exchange_with(as_target(rows.read(worker), schema), exchanged, None, 0, added)
        return
    # DuckDB's own threads process the rows; one more thread for decoding is enough.
    read = rows.reader(worker, use_threads=True)
    for position in range(len(rows.files)) if only is None else only:
        file = rows.files[position]
        yield from to_exchange_with(as_target(read(file), schema), exchanged, file, position, added)
