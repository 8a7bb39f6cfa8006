"""Reads files in several threads, and yields their rows in order.

A file of a few hundred rows takes longer to open than to decode, so each thread reads pieces of several files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeAlias

import pyarrow as pa

from parketto.parquet.file_info import FileInfo
from parketto.runtime.batches import decoded_bytes

_MAX_PIECE_FILES = 32  # files that a thread reads as one piece


_SMALL_BATCH_ROWS = 4096  # batches with fewer rows on average are combined


_SizeOf: TypeAlias = Callable[[pa.RecordBatch], int]


_Started: TypeAlias = tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]


def read_parallel(
    files: Sequence[FileInfo],
    read: Callable[[Sequence[FileInfo]], Iterator[pa.RecordBatch]],
    limit_bytes: int,
    *,
    threads: int,
    size_of: _SizeOf = decoded_bytes,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of files, in order.

    A thread that has read about `limit_bytes` of a piece leaves the rest to the caller. So at most that much is
    held per thread, plus once more.

    Args:
        files: The files.
        read: Returns the rows of some files.
        limit_bytes: The approximate size of a piece, and the most of it that is held.
        threads: The number of reader threads; with less than two, the caller's thread reads.
        size_of: Returns the size of a batch in bytes.
    """
    pieces = _pieces(files, limit_bytes)
    if threads < 2 or len(pieces) == 1:
        for piece in pieces:
            yield from _coalesced(read(piece), limit_bytes, size_of)
        return
    pool = ThreadPoolExecutor(threads, "parketto-read")
    started: deque[Future[_Started]] = deque()
    try:
        remaining = iter(pieces)
        while True:
            for piece in remaining:
                started.append(pool.submit(_start, read(piece), limit_bytes, size_of))
                if len(started) > threads:
                    break
            if not started:
                return
            batches, rest = started.popleft().result()
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
        if pieces[-1] and (grown > limit_bytes or len(pieces[-1]) == _MAX_PIECE_FILES):
            pieces.append([])
            grown -= size
        pieces[-1].append(file)
        size = grown
    return pieces


def _start(rows: Iterator[pa.RecordBatch], limit_bytes: int, size_of: _SizeOf) -> _Started:
    """The first batches up to a size, small ones combined; and the rest, which is not read yet."""
    held, size = [], 0
    for batch in rows:
        held.append(batch)
        size += size_of(batch)
        if size >= limit_bytes:
            return held, rows
    return _combined(held), rows


def _coalesced(rows: Iterator[pa.RecordBatch], limit_bytes: int, size_of: _SizeOf) -> Iterator[pa.RecordBatch]:
    while True:
        held, rows = _start(rows, limit_bytes, size_of)
        yield from held
        if not held:
            return


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    # Combining large batches would only copy them.
    if len(batches) < 2 or sum(batch.num_rows for batch in batches) > _SMALL_BATCH_ROWS * len(batches):
        return batches
    try:
        found: Iterable[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    except pa.ArrowInvalid:  # the dictionaries of several files have more values than their index type
        return batches
    return list(found)
