"""Buckets: ranges of about equal size along a curve through the rows; each becomes a row group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.sorting.curves import CURVES, KEY_BITS, Codes, Keys
from parketto.sorting.ranks import Ranking, Weighted, rank

_EXTRA_BITS = 3  # per column beyond what the buckets need, so that they can end where squares of the curve end
_MAX_BITS = 16
_MAX_SIZE = 1.2  # size limit of a bucket, relative to the ideal size
_MIN_SIZE = 0.7  # minimum size of a bucket, relative to the limit
_LOOKUP_BITS = 16  # grids up to this size use a lookup table
_LOCAL_BITS = 3  # added where rows share the grid with many others: their own number makes it too coarse


@dataclass(frozen=True)
class Buckets:
    """Maps rows to buckets: plain data with the same result in every process.

    A bucket begins at each of the `cuts` along the curve. Where the rows of a single point of the curve fill
    several buckets, `widths` contains their number, and rows are distributed to them round-robin.
    """

    columns: tuple[str, ...]
    curve: str
    bits: int
    rankings: tuple[Ranking, ...]
    cuts: Keys
    numbers: npt.NDArray[np.int32]
    widths: npt.NDArray[np.int32]

    @property
    def count(self) -> int:
        """The number of buckets."""
        return int(self.numbers[-1] + self.widths[-1])

    def parts(self, count: int) -> npt.NDArray[np.int64]:
        """The first buckets of about `count` ranges of similar size, which end where squares of the curve end."""
        count = min(count, self.count)
        size, spare = self.count / count, self.count / count * (_MAX_SIZE - 1)
        firsts = [0]
        for wanted in (at * size for at in range(1, count)):
            # The integers within tolerance; if there are none, the nearest one.
            high = max(math.floor(wanted + spare), round(wanted))
            low = min(math.ceil(wanted - spare), high) - 1
            firsts.append(roundest(low, high))
        return np.array(firsts)

    def keys(self, columns: Sequence[pa.Array]) -> Keys:
        """The positions of rows along the curve, from the clustering columns."""
        return CURVES[self.curve](self._codes(columns), self.bits)

    def _codes(self, columns: Sequence[pa.Array]) -> list[Codes]:
        return [ranking(column) for ranking, column in zip(self.rankings, columns, strict=True)]

    def _cut_indices(self, codes: list[Codes]) -> npt.NDArray[np.integer[Any]]:
        """The index of the cut that each row follows."""
        if self._grid is None:
            return self._between_cuts(CURVES[self.curve](codes, self.bits))
        cell = codes[0]
        for more in codes[1:]:
            cell = (cell << np.uint32(self.bits)) | more
        return self._grid[cell]

    def _between_cuts(self, keys: Keys) -> npt.NDArray[np.integer[Any]]:
        return np.maximum(np.searchsorted(self.cuts, keys, side="right"), 1) - 1

    @cached_property
    def _grid(self) -> npt.NDArray[np.int32] | None:
        """A lookup table from grid cells to cut indices, if the grid is small."""
        dimensions = len(self.columns)
        if dimensions * self.bits > _LOOKUP_BITS:
            return None
        cells = np.arange(1 << (dimensions * self.bits), dtype=np.uint32)
        low = np.uint32((1 << self.bits) - 1)
        codes = [(cells >> np.uint32(self.bits * at)) & low for at in range(dimensions - 1, -1, -1)]
        return self._between_cuts(CURVES[self.curve](codes, self.bits)).astype(np.int32)

    def of(self, columns: Sequence[pa.Array], first_row: int = 0) -> npt.NDArray[np.int32]:
        """The buckets of rows, from the clustering columns; `first_row` is the number of the first one."""
        cut = self._cut_indices(self._codes(columns))
        found: npt.NDArray[np.int32] = self.numbers[cut]
        widths = self.widths[cut]
        if (several := np.flatnonzero(widths > 1)).size:
            found[several] += ((first_row + several) % widths[several]).astype(np.int32)
        return found


def cut_buckets(
    sample: pa.Table,
    columns: Sequence[str],
    curve: str,
    count: int,
    most: float | None = None,
    surroundings: Sequence[Weighted | None] = (),
    share: float = 1.0,
) -> Buckets:
    """Cut the curve through a sample of rows into buckets of about equal size.

    Args:
        sample: A uniform sample of the rows.
        columns: The dimensions of the curve.
        curve: The name of the curve.
        count: The approximate number of buckets.
        most: The largest share of the rows that a bucket may have, if limited.
        surroundings: For each column, what is known of other rows of the dataset, if any. The curve then runs
            through all rows, so that the buckets match those of the other rows.
        share: The sampled share of the rows.

    >>> rows = pa.table({"a": [1, 2, 1, 2], "b": ["x", "x", "y", "y"]})
    >>> buckets = cut_buckets(rows, ["a", "b"], "hilbert", 4)
    >>> buckets.of(rows.to_batches()[0].columns).tolist()
    [0, 3, 1, 2]
    """
    arrays = [sample.column(name).combine_chunks() for name in columns]
    others = list(surroundings) or [None] * len(columns)
    bits = curve_bits(len(columns), count) + (_LOCAL_BITS if surroundings else 0)
    bits = max(1, min(bits, KEY_BITS // len(columns)))
    rankings = tuple(rank(array, bits, other, share) for array, other in zip(arrays, others, strict=True))
    codes = [ranking(array) for ranking, array in zip(rankings, arrays, strict=True)]
    keys = np.sort(CURVES[curve](codes, bits))
    high = len(keys) * (_MAX_SIZE / count if most is None else most)
    cuts, widths = _cut(keys, max(1, int(high)))
    numbers = np.cumsum([0, *widths[:-1]])
    return Buckets(
        tuple(columns),
        curve,
        bits,
        rankings,
        np.array(cuts, np.uint64),
        numbers.astype(np.int32),
        np.array(widths, np.int32),
    )


def _cut(keys: Keys, most: int) -> tuple[list[int], list[int]]:
    """Where buckets of at most `most` of the sorted keys begin, and the number of buckets at each cut.

    A curve fills one square after the other, and the larger the square, the rounder the key at which it ends. So a
    bucket ends at the roundest possible key: a bucket that barely reaches into the next square would be read by
    all queries on that square. A single key with too many rows makes several buckets.
    """
    cuts, widths, start = [0], [1], 0
    while len(keys) - start > most:
        low, high = int(keys[start + int(most * _MIN_SIZE)]), int(keys[start + most])
        end = roundest(low, high)
        following = int(np.searchsorted(keys, np.uint64(end)))
        if following == start:  # a single key exceeds a bucket
            following = int(np.searchsorted(keys, np.uint64(end), side="right"))
            widths[-1] = -(-(following - start) // most)
            end += 1
        if following == len(keys):
            break
        cuts.append(end)
        widths.append(1)
        start = following
    return cuts, widths


def roundest(low: int, high: int) -> int:
    """The number above `low`, up to `high`, with the most trailing zero bits; `high` if both are equal.

    >>> roundest(5, 9), roundest(8, 11), roundest(3, 3)
    (8, 10, 3)
    """
    differing = (low ^ high).bit_length() - 1
    return high if differing < 0 else high >> differing << differing


def curve_bits(dimensions: int, count: int) -> int:
    """The resolution of the curve's grid, in bits per dimension.

    >>> curve_bits(2, 64), curve_bits(8, 1000), curve_bits(40, 1000)
    (6, 5, 1)
    """
    wanted = math.ceil(math.log2(max(2, count)) / dimensions) + _EXTRA_BITS
    return max(1, min(_MAX_BITS, KEY_BITS // dimensions, wanted))
