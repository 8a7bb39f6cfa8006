"""Work that other threads do ahead of the one that needs it, in the same order.

A file of a few hundred rows takes longer to open than to decode: `read_ahead` has several threads read pieces of a
few files each. Rows that are sorted can be written while the next ones are being sorted: `one_ahead`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TypeAlias, TypeVar

import pyarrow as pa

from parketto.kernels.crew import Crew
from parketto.kernels.sizes import decoded_bytes, runs
from parketto.storage.footers import FileInfo

_MOST_FILES = 32
_WORTH_ROWS = 4096
_SizeOf: TypeAlias = Callable[[pa.RecordBatch], int]
_Begun: TypeAlias = tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]
Item = TypeVar("Item")


def one_ahead(items: Iterator[Item], threads: int) -> Generator[Item, None, None]:
    """The same, but each is made by another thread while the caller is busy with the one before.

    Whoever gives it up closes it, and then nothing is made any more.

    >>> list(one_ahead(iter("abc"), threads=2))
    ['a', 'b', 'c']

    Args:
        items: What to make; none of it is None.
        threads: How many threads there are, the caller's among them. With one it all is made there.
    """
    if threads < 2:
        yield from items
        return
    with Crew(1, "parketto-ahead") as crew:
        made = crew.submit(next, items, None)
        while (item := made.result()) is not None:
            made = crew.submit(next, items, None)
            yield item
            del item  # or it would be there until the next one is


class Pieces:
    """Rows in pieces, for work that has each of them twice for a moment: as it came, and in another order.

    >>> rows = pa.table({"n": range(10)}).to_batches(max_chunksize=2)
    >>> with Pieces(rows, run_bytes=64, threads=2) as pieces:
    ...     pieces.is_one, [piece.num_rows for piece in pieces]
    (False, [4, 4, 2])

    Args:
        batches: The rows.
        run_bytes: How much may be held, about.
        threads: With more than one, the next piece is made while the caller is busy with the one before.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], run_bytes: int, threads: int) -> None:
        #: About how large a piece is; one more is held if it is made ahead.
        self.limit = max(1, run_bytes // (2 if threads < 2 else 3))
        self._coming = one_ahead(runs(batches, self.limit), threads)
        self._first: list[pa.Table] = []

    def __enter__(self) -> Pieces:
        self._first = list(islice(self._coming, 2))
        return self

    def __exit__(self, *_error: object) -> None:
        self._coming.close()

    @property
    def is_one(self) -> bool:
        """Whether all rows fit into one piece, or there are none; before any was taken."""
        return len(self._first) < 2

    @property
    def row_bytes(self) -> float:
        """How large rows are, as the first piece tells; before it was taken."""
        return float(self._first[0].nbytes / self._first[0].num_rows)

    def __iter__(self) -> Iterator[pa.Table]:
        while self._first:
            yield self._first.pop(0)
        yield from self._coming


def read_ahead(
    files: Sequence[FileInfo],
    read: Callable[[Sequence[FileInfo]], Iterator[pa.RecordBatch]],
    limit_bytes: int,
    *,
    threads: int,
    size_of: _SizeOf = decoded_bytes,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of files, in order.

    A thread that has read about `limit_bytes` of a piece leaves the rest of it to the caller, so no more is held
    than that for each thread, and once more.

    Args:
        files: The files.
        read: Gives the rows of some files.
        limit_bytes: About how much a piece should be, and at most how much of it is held.
        threads: How many other threads may read; of one the caller has no use.
        size_of: Says how much of it a batch is.
    """
    pieces = _pieces(files, limit_bytes)
    if threads < 2 or len(pieces) == 1:
        for piece in pieces:
            yield from _together(read(piece), limit_bytes, size_of)
        return
    pool = ThreadPoolExecutor(threads, "parketto-read")
    begun: deque[Future[_Begun]] = deque()
    try:
        waiting = iter(pieces)
        while True:
            for piece in waiting:
                begun.append(pool.submit(_begin, read(piece), limit_bytes, size_of))
                if len(begun) > threads:
                    break
            if not begun:
                return
            batches, rest = begun.popleft().result()
            with closing(rest):  # type: ignore[type-var]
                yield from batches
                del batches
                yield from rest
    finally:
        pool.shutdown(cancel_futures=True)


def _pieces(files: Sequence[FileInfo], limit_bytes: int) -> list[list[FileInfo]]:
    pieces: list[list[FileInfo]] = [[]]
    size = 0
    for file in files:
        grown = size + sum(group.total_byte_size for group in file.row_groups)
        if pieces[-1] and (grown > limit_bytes or len(pieces[-1]) == _MOST_FILES):
            pieces.append([])
            grown -= size
        pieces[-1].append(file)
        size = grown
    return pieces


def _begin(rows: Iterator[pa.RecordBatch], limit_bytes: int, size_of: _SizeOf) -> _Begun:
    """What comes first, up to a size, as one batch if it is small; and the rest, still to be read."""
    held, size = [], 0
    for batch in rows:
        held.append(batch)
        size += size_of(batch)
        if size >= limit_bytes:
            return held, rows
    return _combined(held), rows


def _together(rows: Iterator[pa.RecordBatch], limit_bytes: int, size_of: _SizeOf) -> Iterator[pa.RecordBatch]:
    while True:
        held, rows = _begin(rows, limit_bytes, size_of)
        yield from held
        if not held:
            return


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    # What is large already would only be copied.
    if len(batches) < 2 or sum(batch.num_rows for batch in batches) > _WORTH_ROWS * len(batches):
        return batches
    found: Iterable[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return list(found)
