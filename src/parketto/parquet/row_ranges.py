"""Ranges of rows in a row group, and the rows of a stream that are inside of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

#: First row and end of each range; ascending, disjoint and not empty.
Ranges: TypeAlias = Sequence[tuple[int, int]]

_BLOCK_ROWS = 8192  # rows that match within one block are read together: pages are mostly larger


def count(ranges: Ranges) -> int:
    """The number of rows.

    >>> count([(0, 3), (5, 6)])
    4
    """
    return sum(end - start for start, end in ranges)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order as ascending ones, overlapping and adjacent ones joined.

    >>> merged([(5, 8), (0, 2), (2, 3), (7, 9)])
    [(0, 3), (5, 9)]
    """
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without_first(ranges: Ranges, rows: int) -> Ranges:
    """The ranges without their first rows.

    >>> without_first([(0, 3), (5, 9)], 4)
    [(6, 9)]
    """
    found = []
    for start, end in ranges:
        skipped = min(rows, end - start)
        rows -= skipped
        if start + skipped < end:
            found.append((start + skipped, end))
    return found


def positions(inner: Ranges, outer: Ranges) -> Ranges:
    """Where the rows of ranges are among the rows of other ranges that contain them.

    >>> positions([(6, 8)], [(0, 2), (5, 9)])
    [(3, 5)]
    """
    found, before, at = [], 0, 0
    for start, end in inner:
        while outer[at][1] < end:
            before += outer[at][1] - outer[at][0]
            at += 1
        shift = before - outer[at][0]
        found.append((start + shift, end + shift))
    return found


def rows_at(batches: Iterable[pa.RecordBatch], ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """Those rows of a stream whose positions are inside of the ranges."""
    start = at = 0
    for batch in batches:
        end = start + batch.num_rows
        wanted = []
        while at < len(ranges) and ranges[at][0] < end:
            wanted.append((max(ranges[at][0], start) - start, min(ranges[at][1], end) - start))
            if ranges[at][1] > end:
                break
            at += 1
        if len(wanted) == 1:
            yield batch.slice(wanted[0][0], wanted[0][1] - wanted[0][0])
        elif wanted:
            yield batch.take(pa.array(np.concatenate([np.arange(*each) for each in wanted])))
        if at == len(ranges):
            return
        start = end


class Hits:
    """Collects which rows of some ranges match, from the masks of consecutive batches."""

    def __init__(self, ranges: Ranges) -> None:
        self._starts = np.array([start for start, _ in ranges])
        sizes = np.array([end - start for start, end in ranges])
        self._before = np.cumsum(sizes) - sizes
        self._seen = 0
        #: Ranges around the matching rows, at most one per block and batch.
        self.ranges: list[tuple[int, int]] = []

    def add(self, mask: pa.BooleanArray) -> None:
        """Add the mask of the next rows."""
        found = np.flatnonzero(mask.to_numpy(zero_copy_only=False)) + self._seen
        self._seen += len(mask)
        if len(found):
            at = np.searchsorted(self._before, found, side="right") - 1
            rows = found - self._before[at] + self._starts[at]
            firsts = np.flatnonzero(np.diff(rows // _BLOCK_ROWS, prepend=-1))
            lasts = np.append(firsts[1:], len(rows)) - 1
            self.ranges += zip(rows[firsts].tolist(), (rows[lasts] + 1).tolist(), strict=True)

    @property
    def are_dense(self) -> bool:
        """Whether so many blocks have matches that reading only those saves nothing."""
        return self._seen >= 4 * _BLOCK_ROWS and 2 * _BLOCK_ROWS * len(self.ranges) > self._seen
