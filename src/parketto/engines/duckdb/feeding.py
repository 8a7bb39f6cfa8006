"""Rows on their way into DuckDB: as Arrow streams of travelling columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from parketto.engines.duckdb.session import Session
from parketto.kernels.merge_source import as_target
from parketto.kernels.rows import ArrowRows, FileRows
from parketto.kernels.travel import Added, packed_with, travel_schema
from parketto.kernels.work import Worker


def feed_rows(
    session: Session,
    name: str,
    rows: ArrowRows | FileRows,
    schema: pa.Schema,
    worker: Worker,
    added: Added | None = None,
    added_fields: Sequence[pa.Field] = (),
    *,
    only: Sequence[int] | None = None,
) -> None:
    """Let queries read rows, once, as columns `c0`, `c1`, …, and whatever `added` makes.

    Args:
        session: The connection that reads them.
        name: The name for queries.
        rows: The rows.
        schema: The columns that are wanted, in their carrier types.
        worker: What is read with.
        added: Makes further columns (see `packed_with`).
        added_fields: The names and types of these columns.
        only: The positions of the files that are wanted; by default all.
    """
    travelling = pa.schema([*travel_schema(schema), *added_fields])
    session.feed(name, travelling, worker.until_cancelled(_packed(rows, schema, travelling, worker, added, only)))


def _packed(
    rows: ArrowRows | FileRows,
    schema: pa.Schema,
    travelling: pa.Schema,
    worker: Worker,
    added: Added | None,
    only: Sequence[int] | None,
) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, ArrowRows):
        yield from packed_with(as_target(rows.read(worker), schema), travelling, None, 0, added)
        return
    # DuckDB has its threads busy with what comes out of here; one more for decoding is enough.
    read = rows.reader(worker, use_threads=True)
    for position in range(len(rows.files)) if only is None else only:
        file = rows.files[position]
        yield from packed_with(as_target(read(file), schema), travelling, file, position, added)
