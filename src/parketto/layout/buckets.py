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
_HEAVY = 1.5
#: How far a cut may be moved from where it would make all pieces equal, as a share of a piece.
SPARE = 0.2
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
        size = self.count / count
        wanted = np.arange(1, count) * size
        # Whole numbers that are near enough; where there are none, the nearest one.
        high = np.maximum(np.floor(wanted + size * SPARE), np.rint(wanted))
        low = np.minimum(np.ceil(wanted - size * SPARE), high) - 1
        return np.concatenate([[0], roundest(low, high).astype(np.int64)])

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
    surroundings: Sequence[Weighted | None] = (),
    share: float = 1.0,
    spare: float = SPARE,
) -> Buckets:
    """Cut the curve through a sample of rows into about `count` buckets of about equal size.

    Args:
        sample: Some of the rows, each taken with the same chance.
        columns: The columns that the curve runs through.
        curve: Which curve.
        count: How many buckets there should be.
        surroundings: For each column what is known of other rows, if there are any beside these: then the curve is
            the one through all rows, so that the buckets fit in with those of the others.
        share: Which share of its rows the sample is.
        spare: How far a cut may be moved to where it suits the curve, as a share of a bucket.

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
    keys, counts = np.unique(CURVES[curve](codes, bits), return_counts=True)
    if not len(keys):
        keys, counts = np.zeros(1, np.uint64), np.ones(1, np.int64)
    size = counts.sum() / count
    heavy = np.flatnonzero(counts >= _HEAVY * size)
    # A point that fills buckets of its own begins one, and so does the next point.
    begin = np.zeros(1, np.uint64)
    cuts = np.unique(
        np.concatenate([begin, _round_cuts(keys, counts, count, spare), keys[heavy], keys[heavy] + np.uint64(1)])
    )
    inside = np.add.reduceat(np.append(counts, 0), np.searchsorted(keys, cuts))
    filled = np.append(np.searchsorted(keys, cuts[1:]), len(keys)) > np.searchsorted(keys, cuts)
    cuts, inside = cuts[filled], inside[filled]
    is_heavy = np.isin(cuts, keys[heavy])
    widths = np.where(is_heavy, np.maximum(1, np.rint(inside / size)), 1).astype(np.int32)
    numbers = (np.cumsum(widths) - widths).astype(np.int32)
    return Buckets(tuple(columns), curve, bits, rankings, cuts, numbers, widths)


def _round_cuts(keys: Keys, counts: npt.NDArray[np.int64], count: int, spare: float) -> Keys:
    """Where to cut the curve so that all pieces have about the same number of rows.

    A curve fills one square after the other, and the larger the square, the rounder the number at which it ends.
    So of the keys near the ideal cut the roundest one is taken: a piece that just reaches into the next square
    would be read for all that is in it.
    """
    size = counts.sum() / count
    wanted = np.arange(1, count) * size
    upto = np.cumsum(counts)
    low = keys[np.minimum(np.searchsorted(upto, wanted - size * spare), len(keys) - 1)]
    high = keys[np.minimum(np.searchsorted(upto, wanted + size * spare, side="right"), len(keys) - 1)]
    return roundest(low, high)


def roundest(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> Keys:
    """Of the numbers above the lower bound, up to the higher one, the one with the most zeros at its end.

    >>> roundest(np.array([5, 8, 3]), np.array([9, 11, 3])).tolist()
    [8, 10, 3]
    """
    low, high = low.astype(np.uint64), high.astype(np.uint64)
    differing = low ^ high
    for shift in (1, 2, 4, 8, 16, 32):
        differing |= differing >> np.uint64(shift)
    return np.asarray(high & ~(differing >> np.uint64(1)))


def curve_bits(dimensions: int, count: int) -> int:
    """How fine a grid the curve runs through, in bits for each dimension.

    >>> curve_bits(2, 64), curve_bits(8, 1000), curve_bits(40, 1000)
    (6, 5, 1)
    """
    wanted = math.ceil(math.log2(max(2, count)) / dimensions) + _EXTRA_BITS
    return max(1, min(_MAX_BITS, KEY_BITS // dimensions, wanted))
