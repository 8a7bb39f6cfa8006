"""Buckets: the rows of a dataset cut into pieces of equal size along a curve; each becomes a row group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.layout.curves import CURVES, KEY_BITS, Codes, Keys
from parketto.layout.ranks import Ranking, Weighted, rank

# Every column is cut finer than the buckets need, so that these can be cut where it suits the curve.
_EXTRA_BITS = 3
_MAX_BITS = 16
# How large buckets may be beside their ideal size, and how small beside the largest possible one.
_LARGEST = 1.2
_SMALLEST = 0.7
_LOOKED_UP_BITS = 16
# A few rows among many others need a finer grid than their own number tells.
_LOCAL_BITS = 3


@dataclass(frozen=True)
class Buckets:
    """Says for any row to which bucket it belongs: plain data, the same answer wherever it is asked.

    A bucket begins at each of the `cuts` along the curve. Where a single point of the curve has so many rows that
    they fill several buckets, `widths` says how many, and rows are dealt out to them in turn.
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
        """How many buckets there are."""
        return int(self.numbers[-1] + self.widths[-1])

    def parts(self, count: int) -> npt.NDArray[np.int64]:
        """The first buckets of about so many runs of buckets of about equal size, cut where it suits the curve."""
        count = min(count, self.count)
        size, spare = self.count / count, self.count / count * (_LARGEST - 1)
        firsts = [0]
        for wanted in (at * size for at in range(1, count)):
            # Whole numbers that are near enough; where there are none, the nearest one.
            high = max(math.floor(wanted + spare), round(wanted))
            low = min(math.ceil(wanted - spare), high) - 1
            firsts.append(roundest(low, high))
        return np.array(firsts)

    def keys(self, columns: Sequence[pa.Array]) -> Keys:
        """The places of rows along the curve, from the clustering columns."""
        return CURVES[self.curve](self._codes(columns), self.bits)

    def _codes(self, columns: Sequence[pa.Array]) -> list[Codes]:
        return [ranking(column) for ranking, column in zip(self.rankings, columns, strict=True)]

    def _places(self, codes: list[Codes]) -> npt.NDArray[np.integer[Any]]:
        """Between which cuts rows are."""
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
        """The same for every cell of the grid that the curve runs through, if that is small: rows look it up."""
        dimensions = len(self.columns)
        if dimensions * self.bits > _LOOKED_UP_BITS:
            return None
        cells = np.arange(1 << (dimensions * self.bits), dtype=np.uint32)
        low = np.uint32((1 << self.bits) - 1)
        codes = [(cells >> np.uint32(self.bits * at)) & low for at in range(dimensions - 1, -1, -1)]
        return self._between_cuts(CURVES[self.curve](codes, self.bits)).astype(np.int32)

    def of(self, columns: Sequence[pa.Array], first_row: int = 0) -> npt.NDArray[np.int32]:
        """The buckets of rows, from the clustering columns; `first_row` numbers the first of them."""
        place = self._places(self._codes(columns))
        found: npt.NDArray[np.int32] = self.numbers[place]
        widths = self.widths[place]
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
        sample: Some of the rows, each taken with the same chance.
        columns: The columns that the curve runs through.
        curve: Which curve.
        count: About how many buckets there should be.
        most: Which share of the rows a bucket may have at most, if that matters.
        surroundings: For each column what is known of other rows, if there are any beside these: then the curve is
            the one through all rows, so that the buckets fit in with those of the others.
        share: Which share of its rows the sample is.

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
    high = len(keys) * (_LARGEST / count if most is None else most)
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
    """Where buckets of at most so many of the sorted keys begin, and how many buckets each of these is.

    A curve fills one square after the other, and the larger the square, the rounder the key at which it ends. So
    of the keys at which a bucket may end the roundest is taken: one that just reaches into the next square would
    be read for all that is in it. A single key that has too many rows makes several buckets.
    """
    cuts, widths, start = [0], [1], 0
    while len(keys) - start > most:
        low, high = int(keys[start + int(most * _SMALLEST)]), int(keys[start + most])
        end = roundest(low, high)
        following = int(np.searchsorted(keys, np.uint64(end)))
        if following == start:  # one key is more than a bucket
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
    """Of the numbers above the lower one, up to the higher one, the one with the most zeros at its end.

    >>> roundest(5, 9), roundest(8, 11), roundest(3, 3)
    (8, 10, 3)
    """
    differing = (low ^ high).bit_length() - 1
    return high if differing < 0 else high >> differing << differing


def curve_bits(dimensions: int, count: int) -> int:
    """How fine a grid the curve runs through, in bits for each dimension.

    >>> curve_bits(2, 64), curve_bits(8, 1000), curve_bits(40, 1000)
    (6, 5, 1)
    """
    wanted = math.ceil(math.log2(max(2, count)) / dimensions) + _EXTRA_BITS
    return max(1, min(_MAX_BITS, KEY_BITS // dimensions, wanted))
