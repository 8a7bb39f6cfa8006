"""The difference of two sets of rows: which rows only one of them has, and which differ only outside of their key.

Rows are compared by 128-bit hashes of their values. NULLs are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.merge.digests import comparable_keys
from parketto.merge.hashing import Hashes, key_hashes
from parketto.merge.keys import key_columns
from parketto.sorting.order import by_number

#: The columns of hashes: two for the whole row, two for its key.
_ROW, _KEY = ("hash of row 0", "hash of row 1"), ("hash of key 0", "hash of key 1")
_BUCKET_BITS = 6  # 64 buckets, each of which is an open file
MAX_LEVEL = 9  # the bits of a hash are used up
_SEEDS = (0, 0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RowDiff:
    """Rows of two states that differ; without key columns, none are changed."""

    added: pa.Table
    removed: pa.Table
    #: The rows whose key is in both states: as they were, and as they are, in the same order.
    before: pa.Table
    after: pa.Table


def hashed(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The rows, with the hashes of their values and keys."""
    found = rows
    for names, columns in ((_ROW, rows.schema.names), (_KEY, keys or rows.schema.names)):
        values = pa.table({name: comparable_keys(rows.column(name)) for name in columns})
        parts = key_columns(values, columns, with_nulls=True)
        for name, seed in zip(names, _SEEDS, strict=True):
            found = found.append_column(name, pa.array(key_hashes(parts, seed), pa.uint64()))
    return found


def by_bucket(rows: pa.RecordBatch, level: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Hashed rows by bucket: rows of the same key are in the same one. Each level uses other bits of the hash."""
    bits = rows.column(_KEY[0]).to_numpy() >> np.uint64(level * _BUCKET_BITS)
    numbers = (bits % np.uint64(1 << _BUCKET_BITS)).astype(np.int64)
    order, spans = by_number(numbers)
    ordered = rows.take(pa.array(order))
    for bucket, start, stop in spans:
        yield int(bucket), ordered.slice(start, stop - start)


def compared(old: pa.Table, new: pa.Table, *, keyed: bool) -> RowDiff:
    """The difference of hashed rows; the result has no hashes."""
    removed, added = _without(old, new, _ROW), _without(new, old, _ROW)
    columns = [name for name in new.column_names if name not in (*_ROW, *_KEY)]
    if not keyed:
        none = new.select(columns).slice(0, 0)
        return RowDiff(added.select(columns), removed.select(columns), none, none)
    # What is left has no equal row in the other state. If its key has, the row was changed.
    pairs = _numbered(removed, _KEY).join(
        _numbered(added, _KEY), [*_KEY, "rank"], join_type="inner", right_suffix=" of new"
    )
    pairs = pairs.sort_by("row of new")
    return RowDiff(
        _without(added, removed, _KEY).select(columns),
        _without(removed, added, _KEY).select(columns),
        removed.take(pairs.column("row")).select(columns),
        added.take(pairs.column("row of new")).select(columns),
    )


def _without(rows: pa.Table, others: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows that have no equal among others, as often as they occur more often here."""
    left = _numbered(rows, names).join(_numbered(others, names), [*names, "rank"], join_type="left anti")
    return rows.take(left.sort_by("row").column("row"))


def _numbered(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The hashes of rows, the numbers of the rows, and the rank of each among those with the same hashes."""
    first, second = (rows.column(name).to_numpy() for name in names)
    return pa.table(
        {names[0]: first, names[1]: second, "rank": _ranks(first, second), "row": np.arange(len(first))}
    )


def _ranks(first: Hashes, second: Hashes) -> npt.NDArray[np.int64]:
    """How many earlier rows have the same hashes.

    >>> _ranks(np.array([7, 8, 7], np.uint64), np.array([1, 1, 1], np.uint64)).tolist()
    [0, 0, 1]
    """
    order = np.lexsort((second, first))
    sorted_first, sorted_second = first[order], second[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (sorted_first[1:] != sorted_first[:-1]) | (sorted_second[1:] != sorted_second[:-1])
    positions = np.arange(len(order))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    return ranks
