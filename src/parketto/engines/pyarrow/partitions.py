"""Cutting rows that are in the order of their partitions into the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa

from parketto.storage.hive import encode_segment


def by_partition(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """The folder of each partition, with its rows; each partition's rows must be used before the next one's.

    >>> batch = pa.record_batch({"day": [1, 1, 2], "n": [7, 8, 9]})
    >>> [(folder, [rows.num_rows for rows in found]) for folder, found in by_partition([batch], ["day"])]
    [('day=1', [2]), ('day=2', [1])]
    """
    pieces = (piece for batch in batches for piece in _pieces(batch, columns))
    for folder, found in groupby(pieces, key=itemgetter(0)):
        yield folder, (rows for _, rows in found)


def _pieces(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    if batch.num_rows == 0:
        return
    codes = [
        batch.column(name).dictionary_encode("encode").indices.to_numpy(zero_copy_only=False) for name in columns
    ]
    changes = np.any([column[1:] != column[:-1] for column in codes], axis=0)
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, stop in pairwise(borders):
        values = [batch.column(name)[start].as_py() for name in columns]
        yield "/".join(map(encode_segment, columns, values)), batch.slice(start, stop - start)
