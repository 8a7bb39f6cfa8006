"""Buckets: the rows of a dataset cut into pieces of equal size along a curve; each becomes a row group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.layout.curves import CURVES, KEY_BITS, Keys
from parketto.layout.ranks import Ranking, rank

# Every column is cut finer than the buckets need, so that these can be cut where it suits the curve.
_EXTRA_BITS = 3
_MAX_BITS = 16
_HEAVY = 1.5


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

    def keys(self, columns: Sequence[pa.Array]) -> Keys:
        """The places of rows along the curve, from the clustering columns."""
        codes = [ranking(column) for ranking, column in zip(self.rankings, columns, strict=True)]
        return CURVES[self.curve](codes, self.bits)

    def of(self, columns: Sequence[pa.Array], first_row: int = 0) -> npt.NDArray[np.int32]:
        """The buckets of rows, from the clustering columns; `first_row` numbers the first of them."""
        place = np.maximum(np.searchsorted(self.cuts, self.keys(columns), side="right"), 1) - 1
        found: npt.NDArray[np.int32] = self.numbers[place]
        widths = self.widths[place]
        if (several := np.flatnonzero(widths > 1)).size:
            found[several] += ((first_row + several) % widths[several]).astype(np.int32)
        return found


def cut_buckets(sample: pa.Table, columns: Sequence[str], curve: str, count: int) -> Buckets:
    """Cut the curve through a sample of rows into about `count` buckets of about equal size.

    >>> rows = pa.table({"a": [1, 2, 1, 2], "b": ["x", "x", "y", "y"]})
    >>> buckets = cut_buckets(rows, ["a", "b"], "hilbert", 4)
    >>> buckets.of(rows.to_batches()[0].columns).tolist()
    [0, 3, 1, 2]
    """
    arrays = [sample.column(name).combine_chunks() for name in columns]
    bits = curve_bits(len(columns), count)
    rankings = tuple(rank(array, bits) for array in arrays)
    codes = [ranking(array) for ranking, array in zip(rankings, arrays, strict=True)]
    keys, counts = np.unique(CURVES[curve](codes, bits), return_counts=True)
    if not len(keys):
        keys, counts = np.zeros(1, np.uint64), np.ones(1, np.int64)
    size = counts.sum() / count
    before = np.cumsum(counts) - counts
    heavy = counts >= _HEAVY * size
    piece = ((before + counts / 2) / size).astype(np.int64)
    begins = np.append(True, (piece[1:] != piece[:-1]) | heavy[1:] | heavy[:-1])
    widths = np.maximum(1, np.where(heavy, np.rint(counts / size), 1)).astype(np.int32)[begins]
    numbers = (np.cumsum(widths) - widths).astype(np.int32)
    return Buckets(tuple(columns), curve, bits, rankings, keys[begins], numbers, widths)


def curve_bits(dimensions: int, count: int) -> int:
    """How fine a grid the curve runs through, in bits for each dimension.

    >>> curve_bits(2, 64), curve_bits(8, 1000), curve_bits(40, 1000)
    (6, 5, 1)
    """
    wanted = math.ceil(math.log2(max(2, count)) / dimensions) + _EXTRA_BITS
    return max(1, min(_MAX_BITS, KEY_BITS // dimensions, wanted))
