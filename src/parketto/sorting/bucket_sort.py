"""Bucket sort: rows whose buckets are known are spilled by bucket, then each bucket is sorted on its own.

Rows are compared once, and only within their bucket; a merge of sorted runs would compare them twice.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from parketto.runtime.prefetch import Chunks, prefetch
from parketto.sorting.external_sort import sort_batches
from parketto.sorting.order import order_indices, order_keys, split_by_number
from parketto.sorting.spill import SpillFiles

_OUTPUT_ROWS = 16 * 1024
_MAX_FILES = 256


def sort_by_bucket(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Sequence[str],
    buckets: int,
    run_bytes: int,
    scratch: str,
    num_rows: int,
    *,
    threads: int = 1,
) -> Generator[pa.RecordBatch, None, None]:
    """Rows ordered by bucket, and within a bucket by columns.

    Args:
        batches: The rows; the last column is the bucket number.
        schema: Their schema.
        columns: The sort columns within a bucket.
        buckets: The number of buckets.
        run_bytes: The memory budget; about twice as much is held.
        scratch: The local folder for spill files.
        num_rows: The number of rows.
        threads: With more than one, input is prefetched while earlier rows are spilled, and parts are sorted
            while earlier ones are consumed.
    """
    with Chunks(batches, run_bytes, threads) as pieces:
        if pieces.is_one:
            for piece in pieces:
                yield from _sorted(piece, columns)
            return
        wanted = math.ceil(pieces.row_bytes * num_rows / pieces.limit)
        parts = max(2, min(buckets, wanted, _MAX_FILES))
        with SpillFiles[int](scratch) as spilled:
            _distribute(pieces, spilled, parts, buckets)

    def in_order() -> Iterator[Iterable[pa.RecordBatch]]:
        for part in range(parts):
            if part not in spilled:
                continue
            if spilled.size(part) > 4 * pieces.limit:  # far more than estimated: sort this part externally
                keys = (schema.names[-1], *columns)
                yield sort_batches(spilled[part], schema, keys, run_bytes, scratch)
            else:
                ordered = _sorted(pa.Table.from_batches(spilled[part], schema), columns)
                yield ordered if threads < 2 else list(ordered)

    with closing(prefetch(in_order(), threads)) as ordered:
        for part in ordered:
            yield from part
            del part


def _distribute(tables: Iterable[pa.Table], spilled: SpillFiles[int], parts: int, buckets: int) -> None:
    """Write rows to the spill files of their parts; a part is a range of buckets."""
    for table in tables:
        numbers = np.asarray(table.column(table.num_columns - 1)).astype(np.int64)
        distributed = split_by_number(table, (numbers * parts // buckets).astype(np.uint16))
        del table  # frees it before the next one is read
        for part, rows in distributed:
            spilled.write(part, rows)
        del rows


def _sorted(table: pa.Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    order = order_indices(order_keys(table, [table.schema.names[-1], *columns]))
    yield from table.take(pa.array(order)).to_batches(max_chunksize=_OUTPUT_ROWS)
