"""Prefetching: another thread makes the next item, in order, while the caller works on the current one.

For example, sorted rows are written while the next ones are being sorted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from parketto.runtime.batches import runs
from parketto.runtime.threads import ThreadPool

Item = TypeVar("Item")


def prefetch(items: Iterator[Item], threads: int) -> Generator[Item, None, None]:
    """The same items, each made by another thread while the caller works on the one before.

    To stop early, close the generator: then no more items are made.

    >>> list(prefetch(iter("abc"), threads=2))
    ['a', 'b', 'c']

    Args:
        items: The items; none of them is None.
        threads: The number of threads, including the caller's. With one, the caller's thread makes all items.
    """
    if threads < 2:
        yield from items
        return
    with ThreadPool(1, "parketto-prefetch") as pool:
        made = pool.submit(next, items, None)
        while (item := made.result()) is not None:
            made = pool.submit(next, items, None)
            yield item
            del item  # free it before the next one arrives


class Chunks:
    """Rows in chunks, for work that briefly holds each chunk twice: in its original order, and reordered.

    >>> rows = pa.table({"n": range(10)}).to_batches(max_chunksize=2)
    >>> with Chunks(rows, run_bytes=64, threads=2) as pieces:
    ...     pieces.is_one, [piece.num_rows for piece in pieces]
    (False, [4, 4, 2])

    Args:
        batches: The rows.
        run_bytes: About how many bytes may be held.
        threads: With more than one, the next chunk is prefetched while the caller works on the one before.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], run_bytes: int, threads: int) -> None:
        #: The approximate size of a chunk; with prefetching, one more is held.
        self.limit = max(1, run_bytes // (2 if threads < 2 else 3))
        self._tables = prefetch(runs(batches, self.limit), threads)
        self._first: list[pa.Table] = []

    def __enter__(self) -> Chunks:
        self._first = list(islice(self._tables, 2))
        return self

    def __exit__(self, *_error: object) -> None:
        self._tables.close()

    @property
    def is_one(self) -> bool:
        """Whether all rows fit into one chunk, or there are none. Valid until a chunk is taken."""
        return len(self._first) < 2

    @property
    def row_bytes(self) -> float:
        """The average size of rows in the first chunk. Valid until it is taken."""
        return float(self._first[0].nbytes / self._first[0].num_rows)

    def __iter__(self) -> Iterator[pa.Table]:
        while self._first:
            yield self._first.pop(0)
        yield from self._tables
