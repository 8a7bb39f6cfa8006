"""External merge sort: sorted runs are spilled to disk and merged, block by block.

Merging compares no rows in Python. Each round loads a block of every run, finds the smallest of the blocks'
last rows, and emits all rows up to it, because no run can still contain a smaller one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from parketto.runtime.batches import runs
from parketto.runtime.prefetch import prefetch
from parketto.sorting.order import order_indices, order_keys
from parketto.sorting.spill import SpillFile, spill

# More runs than this are merged in several passes, so that one block of each fits into the memory budget.
_MAX_FAN_IN = 48
_MIN_FAN_IN = 4  # also if single rows exceed the memory budget: their blocks have one row
_BLOCKS_PER_RUN = 64
_OUTPUT_ROWS = 16 * 1024
_RUN = "run"


def sort_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Sequence[str],
    run_bytes: int,
    scratch: str,
    *,
    threads: int = 1,
) -> Generator[pa.RecordBatch, None, None]:
    """The same rows, sorted. About twice `run_bytes` are held in memory; the rest is spilled to `scratch`.

    With several threads, input is prefetched while earlier rows are sorted, and rows are merged while earlier ones
    are consumed.
    """
    spilled: list[SpillFile] = []
    block_bytes = 1.0
    # A run is briefly in memory twice, unsorted and sorted; prefetch adds the next run.
    limit = run_bytes if threads < 2 else max(1, 2 * run_bytes // 3)
    with closing(prefetch(runs(batches, limit), threads)) as tables:
        last = next(tables, None)
        for table in tables:
            assert last is not None, "a run precedes this one"
            block_bytes = max(block_bytes, last.nbytes / min(last.num_rows, _BLOCKS_PER_RUN))
            spilled.append(_spill(sort_table(last, columns), scratch))
            last = table
            del table
    if last is None:
        return
    last = sort_table(last, columns)
    if not spilled:
        yield from last.to_batches(max_chunksize=_OUTPUT_ROWS)
        return
    spilled.append(_spill(last, scratch))
    del last
    fan_in = int(min(_MAX_FAN_IN, max(_MIN_FAN_IN, run_bytes / block_bytes)))
    while len(spilled) > fan_in:
        # Only adjacent runs: the run number breaks ties between equal rows.
        adjacent = [spilled[at : at + fan_in] for at in range(0, len(spilled), fan_in)]
        spilled = [_merged(each, schema, columns, scratch) for each in adjacent]
    with closing(prefetch(_merge(spilled, schema, columns), threads)) as ordered:
        yield from _batches(ordered)


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches(max_chunksize=_OUTPUT_ROWS)


def sort_table(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows of a table, sorted by columns."""
    return table.take(pa.array(order_indices(order_keys(table, columns))))


def _merged(files: Sequence[SpillFile], schema: pa.Schema, columns: Sequence[str], scratch: str) -> SpillFile:
    if len(files) == 1:
        return files[0]
    return spill(_batches(_merge(files, schema, columns)), schema, scratch)


def _spill(table: pa.Table, scratch: str) -> SpillFile:
    block = max(1, -(-table.num_rows // _BLOCKS_PER_RUN))
    return spill(table.combine_chunks().to_batches(max_chunksize=block), table.schema, scratch)


def _merge(files: Sequence[SpillFile], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    runs = dict(enumerate(map(iter, files)))
    last_keys: dict[int, pa.Table] = {}  # for each unfinished run, the last row that was loaded
    block_rows: dict[int, int] = {}
    pending = schema.empty_table()
    owner = np.empty(0, dtype=np.int32)
    while runs or pending.num_rows:
        loaded = np.bincount(owner, minlength=len(files))
        parts, owners = [pending], [owner]
        for number in list(runs):
            if 2 * loaded[number] > block_rows.get(number, 0):
                continue  # at least half a block is still pending
            batch = next(runs[number], None)
            if batch is None:
                del runs[number]
                last_keys.pop(number, None)
                continue
            parts.append(pa.Table.from_batches([batch]))
            owners.append(np.full(batch.num_rows, number, dtype=np.int32))
            last = order_keys(parts[-1].slice(batch.num_rows - 1), columns)
            last_keys[number] = last.append_column(_RUN, pa.array([number], pa.int32()))
            block_rows[number] = batch.num_rows
        table = pa.concat_tables(parts)
        owner = np.concatenate(owners)
        # The run number breaks ties between equal rows, which keeps the sort stable.
        keys = order_keys(table, columns).append_column(_RUN, pa.array(owner))
        ready, rest = _up_to_smallest(keys, list(last_keys.values()))
        yield table.take(pa.array(ready))
        pending, owner = table.take(pa.array(rest)), owner[rest]


def _up_to_smallest(keys: pa.Table, last_keys: list[pa.Table]) -> tuple[np.ndarray, np.ndarray]:
    """The sorted positions of rows that can be emitted now, and of those that stay pending."""
    if not last_keys:
        return order_indices(keys), np.empty(0, dtype=np.int64)
    candidates = pa.concat_tables(last_keys)
    smallest = candidates.slice(int(order_indices(candidates)[0]), 1)
    order = order_indices(pa.concat_tables([keys, smallest]))
    # The border row was added last, so equal rows sort before it.
    border = int(np.flatnonzero(order == keys.num_rows)[0])
    return order[:border], order[border + 1 :]
