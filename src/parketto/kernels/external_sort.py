"""Sorting more rows than fit into memory: sorted runs go to disk and are merged, block by block.

Merging compares no rows in Python. Each round loads a block of every run, finds the smallest of the blocks'
last rows, and hands out all rows up to it, because no run can still bring one that is smaller.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from parketto.kernels.ahead import one_ahead
from parketto.kernels.sizes import runs
from parketto.layout.order import order_indices, order_keys

# More runs than this are merged in several passes, so that one block of each always fits into the bound.
_MAX_FAN_IN = 48
_MIN_FAN_IN = 4  # a block of rows that are wider than the bound has one row
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
    """The same rows in order. About twice `run_bytes` are held; what does not fit goes to `scratch`.

    With several threads rows come in while those before are sorted, and are merged while those before are used.
    """
    spilled: list[str] = []
    block_bytes = 1.0
    # Each run is there twice for a moment: as it came and in its order; and the next one, if it is made ahead.
    limit = run_bytes if threads < 2 else max(1, 2 * run_bytes // 3)
    with closing(one_ahead(runs(batches, limit), threads)) as tables:
        last = next(tables, None)
        for table in tables:
            assert last is not None, "there was one before"
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
        # Neighbours only: between equal rows the number of the run decides.
        some = [spilled[at : at + fan_in] for at in range(0, len(spilled), fan_in)]
        spilled = [_merged(each, schema, columns, scratch) for each in some]
    with closing(one_ahead(_merge(spilled, schema, columns), threads)) as ordered:
        yield from _batches(ordered)


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches(max_chunksize=_OUTPUT_ROWS)


def sort_table(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows in order."""
    return table.take(pa.array(order_indices(order_keys(table, columns))))


def _merged(paths: Sequence[str], schema: pa.Schema, columns: Sequence[str], scratch: str) -> str:
    if len(paths) == 1:
        return paths[0]
    path = _new_run(scratch)
    _write_run(path, schema, _batches(_merge(paths, schema, columns)))
    return path


def _new_run(scratch: str) -> str:
    return os.path.join(scratch, f"run-{uuid.uuid4().hex}.arrows")


def _spill(table: pa.Table, scratch: str) -> str:
    path = _new_run(scratch)
    block = max(1, -(-table.num_rows // _BLOCKS_PER_RUN))
    _write_run(path, table.schema, table.combine_chunks().to_batches(max_chunksize=block))
    return path


def _write_run(path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, schema, options=write_options()) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_options() -> pa.ipc.IpcWriteOptions:
    """How rows are written that are soon read again."""
    return pa.ipc.IpcWriteOptions(compression="lz4")


def read_run(path: str) -> Iterator[pa.RecordBatch]:
    """Rows that were spilled, once."""
    with pa.OSFile(path, "rb") as source, pa.ipc.open_stream(source) as reader:
        yield from reader
    os.unlink(path)


def _merge(paths: Sequence[str], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    runs = dict(enumerate(read_run(path) for path in paths))
    last_keys: dict[int, pa.Table] = {}  # of each run that has more to give: the last row that was loaded
    block_rows: dict[int, int] = {}
    pending = schema.empty_table()
    owner = np.empty(0, dtype=np.int32)
    while runs or pending.num_rows:
        loaded = np.bincount(owner, minlength=len(paths))
        parts, owners = [pending], [owner]
        for number in list(runs):
            if 2 * loaded[number] > block_rows.get(number, 0):
                continue  # at least half a block is still waiting
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
        # Which run a row is from decides between equal rows: those of an earlier run came first.
        keys = order_keys(table, columns).append_column(_RUN, pa.array(owner))
        ready, rest = _up_to_smallest(keys, list(last_keys.values()))
        yield table.take(pa.array(ready))
        pending, owner = table.take(pa.array(rest)), owner[rest]


def _up_to_smallest(keys: pa.Table, last_keys: list[pa.Table]) -> tuple[np.ndarray, np.ndarray]:
    """The positions of rows, in order, that may go out now, and those that must wait."""
    if not last_keys:
        return order_indices(keys), np.empty(0, dtype=np.int64)
    candidates = pa.concat_tables(last_keys)
    smallest = candidates.slice(int(order_indices(candidates)[0]), 1)
    order = order_indices(pa.concat_tables([keys, smallest]))
    # The border row was added last, so equal rows stand before it.
    border = int(np.flatnonzero(order == keys.num_rows)[0])
    return order[:border], order[border + 1 :]
