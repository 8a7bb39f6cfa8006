"""Sorting rows whose buckets are known: they are dealt out to disk by bucket, then each bucket is sorted alone.

Rows are compared once, and only with those of their own bucket; a merge of sorted runs would compare them twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa

from parketto.kernels.ahead import Pieces, one_ahead
from parketto.kernels.external_sort import read_run, sort_batches, write_options
from parketto.layout.order import by_number, order_indices, order_keys

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
    """Rows in the order of their buckets, and inside of a bucket in that of columns.

    Args:
        batches: The rows; the last column is the number of a row's bucket.
        schema: Their schema.
        columns: The columns that decide the order inside of a bucket.
        buckets: How many buckets there are.
        run_bytes: How much may be held, about twice.
        scratch: Where to put what does not fit.
        num_rows: How many rows there are.
        threads: With more than one, rows come in while those before are dealt out, and are sorted while those
            before are used.
    """
    with Pieces(batches, run_bytes, threads) as pieces:
        if pieces.is_one:
            for piece in pieces:
                yield from _sorted(piece, columns)
            return
        wanted = math.ceil(pieces.row_bytes * num_rows / pieces.limit)
        parts = max(2, min(buckets, wanted, _MAX_FILES))
        paths = [os.path.join(scratch, f"part-{number:05d}.arrows") for number in range(parts)]
        sizes = _deal(pieces, schema, paths, buckets)

    def in_order() -> Iterator[Iterable[pa.RecordBatch]]:
        for path, size in zip(paths, sizes, strict=True):
            found = read_run(path)
            if size > 4 * pieces.limit:  # far more than foreseen: this part is sorted on disk once more
                keys = (schema.names[-1], *columns)
                yield sort_batches(found, schema, keys, run_bytes, scratch)
            elif size:
                ordered = _sorted(pa.Table.from_batches(found, schema), columns)
                yield ordered if threads < 2 else list(ordered)

    with closing(one_ahead(in_order(), threads)) as ordered:
        for part in ordered:
            yield from part
            del part


def _deal(tables: Iterable[pa.Table], schema: pa.Schema, paths: Sequence[str], buckets: int) -> list[int]:
    """Write rows to the files of their parts; returns how large each is in memory."""
    sizes = [0] * len(paths)
    with ExitStack() as stack:
        writers = []
        for path in paths:
            sink = stack.enter_context(pa.OSFile(path, "wb"))
            writers.append(stack.enter_context(pa.ipc.new_stream(sink, schema, options=write_options())))
        for table in tables:
            numbers = np.asarray(table.column(table.num_columns - 1)).astype(np.int64)
            part = (numbers * len(paths) // buckets).astype(np.uint16)
            order, pieces = by_number(part)
            ordered = table.take(pa.array(order))
            del table  # or it would be there until the next one is
            for number, start, end in pieces:
                piece = ordered.slice(start, end - start)
                writers[number].write_table(piece)
                sizes[number] += piece.nbytes
            del ordered, piece
    return sizes


def _sorted(table: pa.Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    numbers = np.asarray(table.column(table.num_columns - 1))
    order, pieces = by_number((numbers - numbers.min()).astype(np.uint32))
    # Rows are compared by their keys, and moved once.
    keys = order_keys(table, columns).take(pa.array(order))
    for _, start, end in pieces:
        order[start:end] = order[start:end][order_indices(keys.slice(start, end - start))]
    del keys
    yield from table.take(pa.array(order)).to_batches(max_chunksize=_OUTPUT_ROWS)
